//! Who waits for whom, since when, and who is behind it: the rank that others wait for and that waits for nobody.
//!
//! - **W1** A straggler is only named when some rank says that it waits for it, or for one that does.
//! - **W2** Ranks that wait for each other in a circle have no straggler among them: their waits are listed as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ringway_proto::ringway::v1::{RankReport, Wait};

use super::{Look, ago, call_in_words, span};

/// Waits that are shorter are the course of things.
pub const NOTEWORTHY: Duration = Duration::from_millis(200);

/// One rank that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The rank.
    pub rank: u32,
    /// The call that it is in.
    pub call: String,
    /// For so long nothing of it has moved.
    pub waited: Duration,
    /// The ranks that it waits for.
    pub on: Vec<u32>,
}

/// A rank that others wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Straggler {
    /// The rank.
    pub rank: u32,
    /// How it is, in words.
    pub how: String,
    /// Ranks that wait for it, also through others.
    pub waiting: Vec<u32>,
    /// Since when the first of them waits.
    pub waited: Duration,
}

/// All ranks that wait for others for longer than [`NOTEWORTHY`], the longest first.
#[must_use]
pub fn waiting(look: &Look) -> Vec<Waiting> {
    let mut all: Vec<Waiting> = look.reports.iter().filter_map(one).collect();
    all.sort_by_key(|w| (std::cmp::Reverse(w.waited), w.rank));
    all
}

/// A rank's oldest call that waits for others.
fn one(report: &RankReport) -> Option<Waiting> {
    let waits = |wait: &&Wait| !wait.queued && !wait.on.is_empty();
    let wait = report.waits.iter().find(waits)?;
    let waited = ago(report, wait.still_since_ns);
    let on: BTreeSet<u32> = wait.on.iter().map(|on| on.rank).filter(|rank| *rank != report.rank).collect();
    let call = wait.call.as_ref().map_or_else(String::new, call_in_words);
    (waited >= NOTEWORTHY).then(|| Waiting { rank: report.rank, call, waited, on: on.into_iter().collect() })
}

/// The ranks that are behind all waits.
#[must_use]
pub fn stragglers(look: &Look) -> Vec<Straggler> {
    let waiting = waiting(look);
    let edges: BTreeMap<u32, &Waiting> = waiting.iter().map(|w| (w.rank, w)).collect();
    let mut found: BTreeMap<u32, (Vec<u32>, Duration)> = BTreeMap::new();
    for from in &waiting {
        for root in roots(from, &edges) {
            let (ranks, waited) = found.entry(root).or_default();
            ranks.push(from.rank);
            *waited = from.waited.max(*waited);
        }
    }
    let named = |(rank, (mut waiting, waited)): (u32, (Vec<u32>, Duration))| {
        waiting.sort_unstable();
        Straggler { rank, how: how(look, rank), waiting, waited }
    };
    found.into_iter().map(named).collect()
}

/// The ends of the waits that begin at a rank.
fn roots(from: &Waiting, edges: &BTreeMap<u32, &Waiting>) -> BTreeSet<u32> {
    let (mut seen, mut next, mut roots) = (BTreeSet::from([from.rank]), from.on.clone(), BTreeSet::new());
    while let Some(rank) = next.pop() {
        if !seen.insert(rank) {
            continue;
        }
        match edges.get(&rank) {
            Some(on) => next.extend(&on.on),
            None => drop(roots.insert(rank)),
        }
    }
    roots
}

/// How a rank is that others wait for.
fn how(look: &Look, rank: u32) -> String {
    let view = look.overview.tasks.iter().find(|task| task.rank == Some(rank));
    let age = view.and_then(|task| task.heartbeat_age_ms).map(Duration::from_millis);
    let beat = age.map_or_else(String::new, |age| format!(", its last heartbeat was {} ago", span(age)));
    let Some(report) = look.reports.iter().find(|report| report.rank == rank) else {
        let state = view.map_or("not known", |task| task.state.as_str());
        return match state {
            "connected" => format!("does not answer{beat}: stopped, or its host is busy or cut off"),
            state => format!("is {state}"),
        };
    };
    if let Some(wait) = report.waits.first() {
        let call = wait.call.as_ref().map_or_else(String::new, call_in_words);
        return format!("is in {call} and moves");
    }
    match &report.last {
        Some(last) => {
            let ended = last.ended_ns.map_or(Duration::ZERO, |then| ago(report, then));
            format!("is in no call; its last, {}, ended {} ago", call_in_words(last), span(ended))
        }
        None => "is in no call, and has made none yet".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_proto::ringway::v1::{Awaited, CallRecord, Overview, TaskView};

    const SECOND: u64 = 1_000_000_000;

    fn call(number: u32) -> CallRecord {
        CallRecord {
            operation: "all_reduce".into(),
            r#type: "f32".into(),
            number,
            count: 8,
            ..Default::default()
        }
    }

    fn report(rank: u32, on: &[u32]) -> RankReport {
        let on: Vec<Awaited> = on.iter().map(|rank| Awaited { rank: *rank, receives: true }).collect();
        let wait = Wait { call: Some(call(7)), still_since_ns: 2 * SECOND, queued: false, on };
        let waits = if wait.on.is_empty() { Vec::new() } else { vec![wait] };
        let last = Some(CallRecord { ended_ns: Some(SECOND), ..call(6) });
        RankReport { rank, now_ns: 5 * SECOND, waits, last, ..Default::default() }
    }

    fn look(reports: Vec<RankReport>) -> Look {
        let task = |rank| TaskView {
            task: rank,
            rank: Some(rank),
            state: "connected".into(),
            heartbeat_age_ms: Some(2900),
            ..Default::default()
        };
        let overview = Overview { tasks: (0..4).map(task).collect(), ..Default::default() };
        Look { overview, reports, silent: Vec::new() }
    }

    #[test]
    fn a_rank_that_does_not_answer_is_behind_all_who_wait_for_it() {
        // 0 waits for 3, which waits for 2, which does not answer; 1 waits for 2.
        let look = look(vec![report(0, &[3]), report(1, &[2]), report(3, &[2])]);
        let [straggler] = &stragglers(&look)[..] else { panic!("{look:?}") };
        assert_eq!((straggler.rank, &straggler.waiting[..]), (2, &[0, 1, 3][..]));
        assert_eq!(straggler.waited, Duration::from_secs(3));
        assert!(
            straggler.how.contains("does not answer") && straggler.how.contains("2.9 s ago"),
            "{straggler:?}"
        );
        let waiting = waiting(&look);
        assert_eq!(waiting[0].call, "all_reduce #7 f32 x 8");
        assert_eq!(waiting.iter().map(|w| (w.rank, w.on[0])).collect::<Vec<_>>(), [(0, 3), (1, 2), (3, 2)]);
    }

    #[test]
    fn a_rank_that_computes_is_said_to_be_in_no_call() {
        let look = look(vec![report(0, &[1]), report(1, &[])]);
        let [straggler] = &stragglers(&look)[..] else { panic!() };
        assert_eq!((straggler.rank, &straggler.waiting[..]), (1, &[0][..]));
        assert!(
            straggler.how.contains("in no call; its last, all_reduce #6 f32 x 8, ended 4.0 s ago"),
            "{straggler:?}"
        );
    }

    #[test]
    fn short_waits_and_circles_blame_nobody() {
        // W1, W2
        let mut short = look(vec![report(0, &[1]), report(1, &[])]);
        short.reports[0].now_ns = 2 * SECOND + 1;
        assert!(stragglers(&short).is_empty() && waiting(&short).is_empty());
        let circle = look(vec![report(0, &[1]), report(1, &[0])]);
        assert!(stragglers(&circle).is_empty());
        assert_eq!(waiting(&circle).len(), 2);
    }
}
