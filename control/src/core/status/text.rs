//! A look at a job, for people. Columns are as wide as what stands in them; nothing depends on a terminal.

use std::fmt::Write;
use std::time::Duration;

use ringway_proto::ringway::v1::{CallRecord, Overview, RankReport, TaskName, TaskView, WaitAtService};

use super::stragglers::{stragglers, waiting};
use super::{Look, ago, call_in_words, span};

/// Peers of one rank that are shown, at most.
const PEERS_SHOWN: usize = 8;
/// Lines about peers of all ranks together, at most.
const PEER_LINES: usize = 96;

/// The whole look.
#[must_use]
pub fn look(look: &Look) -> String {
    let mut out = service_line(&look.overview);
    out.push('\n');
    out += &table(look);
    section("stragglers", stragglers_of(look), &mut out);
    section("who waits for whom", waits_of(look), &mut out);
    section("waits at the service", look.overview.waits.iter().map(at_service).collect(), &mut out);
    let group = |g: &ringway_proto::ringway::v1::GroupAtService| {
        format!("{:?}: {} of {} ranks, epoch {}", g.name, g.present, g.size, g.epoch)
    };
    section("groups", look.overview.groups.iter().map(group).collect(), &mut out);
    section("dead communicators", look.reports.iter().flat_map(dead).collect(), &mut out);
    let mut about_peers: Vec<String> = look.reports.iter().flat_map(peers).collect();
    if about_peers.len() > PEER_LINES {
        let more = about_peers.split_off(PEER_LINES).len();
        about_peers.push(format!("{more} more lines: --json has all of them"));
    }
    section("peers", about_peers, &mut out);
    out
}

/// A coordination service by itself.
#[must_use]
pub fn service(overview: &Overview) -> String {
    look(&Look { overview: overview.clone(), ..Look::default() })
}

/// A rank by itself.
#[must_use]
pub fn rank(report: &RankReport) -> String {
    let mut out = format!(
        "rank {} of {}, incarnation {}, pid {} on host {}, by {}\n",
        report.rank, report.world_size, report.incarnation, report.pid, report.host, report.transport
    );
    let open = report.waits.iter().map(|wait| {
        let call = wait.call.as_ref().map_or_else(String::new, call_in_words);
        let began = wait.call.as_ref().map_or(0, |call| call.began_ns);
        let still = span(ago(report, wait.still_since_ns));
        let on: Vec<u32> = wait.on.iter().map(|on| on.rank).collect();
        let on = if on.is_empty() { String::new() } else { format!(", waits for {}", ranks(&on)) };
        let queued = if wait.queued { ", behind earlier calls" } else { "" };
        format!("{call}: for {}, still for {still}{on}{queued}", span(ago(report, began)))
    });
    section("calls under way", open.collect(), &mut out);
    section("last call", report.last.iter().map(|last| ended(report, last)).collect(), &mut out);
    let total = |t: &ringway_proto::ringway::v1::TotalReport| {
        let failed = if t.failed > 0 { format!(", {} failed", t.failed) } else { String::new() };
        let time = span(Duration::from_nanos(t.time_ns));
        format!("{}: {} calls, {}, {time}{failed}", t.operation, t.done, bytes(t.bytes))
    };
    section("so far", report.totals.iter().map(total).collect(), &mut out);
    section("dead communicators", dead(report), &mut out);
    section("peers", peers(report), &mut out);
    out
}

fn service_line(overview: &Overview) -> String {
    let connected = overview.tasks.iter().filter(|task| task.state == "connected").count();
    format!(
        "{connected} of {} tasks connected; coordination service {}, pid {} on host {}; a task is lost after {} of silence\n",
        overview.tasks.len(),
        overview.incarnation,
        overview.pid,
        overview.host,
        span(Duration::from_millis(overview.heartbeat_limit_ms))
    )
}

fn section(title: &str, lines: Vec<String>, out: &mut String) {
    if !lines.is_empty() {
        // Writing to text does not fail.
        let _ = write!(out, "\n{title}\n");
        lines.iter().for_each(|line| *out += &format!("  {line}\n"));
    }
}

const HEAD: [&str; 9] =
    ["RANK", "TASK", "STATE", "HOST", "PID", "HEARTBEAT", "INCARNATION", "SENT", "RECEIVED"];
/// Columns of numbers, which end at the right.
const NUMBERS: [bool; 9] = [true, false, false, false, true, true, false, true, true];

/// The tasks, a line each, with what their ranks say behind.
fn table(look: &Look) -> String {
    let mut rows = vec![(HEAD.map(str::to_owned), "DOES".to_owned())];
    rows.extend(look.overview.tasks.iter().map(|task| row(look, task)));
    let width =
        |column: usize| rows.iter().map(|(cells, _)| cells[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    let mut out = String::new();
    for (cells, rest) in &rows {
        for (column, cell) in cells.iter().enumerate() {
            let pad = " ".repeat(widths[column] - cell.chars().count());
            out += &if NUMBERS[column] { format!("{pad}{cell}  ") } else { format!("{cell}{pad}  ") };
        }
        out.push_str(rest);
        out.truncate(out.trim_end_matches(' ').len());
        out.push('\n');
    }
    out
}

fn row(look: &Look, task: &TaskView) -> ([String; 9], String) {
    let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let report = report_of(look, task);
    let sum = |of: fn(&ringway_proto::ringway::v1::PeerReport) -> u64| {
        // A rank with very many peers tells of those with the most bytes.
        let more = |r: &RankReport| if r.more_peers > 0 { "+" } else { "" };
        report.map_or_else(|| "-".to_owned(), |r| bytes(r.peers.iter().map(of).sum()) + more(r))
    };
    let cells = [
        task.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string()),
        format!("{}:{}", task.job, task.task),
        task.state.clone(),
        or_dash(task.host.clone()),
        if task.pid == 0 { "-".to_owned() } else { task.pid.to_string() },
        task.heartbeat_age_ms.map_or_else(|| "-".to_owned(), |ms| span(Duration::from_millis(ms))),
        or_dash(task.incarnation.clone()),
        sum(|peer| peer.sent_bytes),
        sum(|peer| peer.received_bytes),
    ];
    (cells, does(look, task, report))
}

fn report_of<'a>(look: &'a Look, task: &TaskView) -> Option<&'a RankReport> {
    let is = |name: &TaskName| name.job == task.job && name.task == task.task;
    look.reports.iter().find(|report| report.task.as_ref().is_some_and(is))
}

/// What a task does, in a few words.
fn does(look: &Look, task: &TaskView, report: Option<&RankReport>) -> String {
    let silent = look.silent.iter().any(|name| name.job == task.job && name.task == task.task);
    match report {
        _ if !task.error.is_empty() => task.error.clone(),
        _ if silent => "does not answer".to_owned(),
        None => String::new(),
        Some(report) => match (report.waits.first().and_then(|wait| wait.call.as_ref()), &report.last) {
            (Some(call), _) => format!("{}, for {}", call_in_words(call), span(ago(report, call.began_ns))),
            (None, Some(last)) => format!("no call; last {}", ended(report, last)),
            (None, None) => "no call yet".to_owned(),
        },
    }
}

fn ended(report: &RankReport, last: &CallRecord) -> String {
    let when = last.ended_ns.map_or_else(String::new, |then| format!(" {} ago", span(ago(report, then))));
    format!("{} {}{when}", call_in_words(last), last.outcome)
}

fn stragglers_of(look: &Look) -> Vec<String> {
    let line = |s: super::stragglers::Straggler| {
        let view = look.overview.tasks.iter().find(|task| task.rank == Some(s.rank));
        let place =
            view.map_or_else(String::new, |task| format!(" (pid {} on host {})", task.pid, task.host));
        let verb = if s.waiting.len() == 1 { "waits" } else { "wait" };
        format!(
            "rank {}{place} {}; {} {verb} for it since {}",
            s.rank,
            s.how,
            ranks(&s.waiting),
            span(s.waited)
        )
    };
    stragglers(look).into_iter().map(line).collect()
}

fn waits_of(look: &Look) -> Vec<String> {
    let line = |w: super::stragglers::Waiting| {
        format!("rank {} waits for {} since {}: {}", w.rank, ranks(&w.on), span(w.waited), w.call)
    };
    waiting(look).into_iter().map(line).collect()
}

/// `rank 3`, or `ranks 0, 1 and 3`.
fn ranks(ranks: &[u32]) -> String {
    let all: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    match all.split_last() {
        None => "nobody".to_owned(),
        Some((one, [])) => format!("rank {one}"),
        Some((last, rest)) => format!("ranks {} and {last}", rest.join(", ")),
    }
}

fn at_service(wait: &WaitAtService) -> String {
    let names = |tasks: &[TaskName], count: u64| {
        let mut named: Vec<String> = tasks.iter().map(|t| format!("{}:{}", t.job, t.task)).collect();
        if count > tasks.len() as u64 {
            named.push(format!("{} more", count - tasks.len() as u64));
        }
        named.join(", ")
    };
    let name = if wait.name.is_empty() { String::new() } else { format!(" {:?}", wait.name) };
    let late = if wait.late_count == 0 {
        String::new()
    } else if wait.late.is_empty() {
        format!("; {} late", wait.late_count)
    } else {
        format!("; late: {}", names(&wait.late, wait.late_count))
    };
    let left =
        wait.left_ms.map_or_else(String::new, |ms| format!("; fails in {}", span(Duration::from_millis(ms))));
    let waiting = match names(&wait.waiting, wait.waiting_count) {
        none if none.is_empty() => String::new(),
        some => format!(" by {some}"),
    };
    let since = span(Duration::from_millis(wait.waited_ms));
    format!("{}{name} waited for since {since}{waiting}{late}{left}", wait.awaited)
}

fn dead(report: &RankReport) -> Vec<String> {
    let dead = report.groups.iter().filter(|group| !group.dead.is_empty());
    dead.map(|group| format!("rank {}, communicator {}: {}", report.rank, group.id, group.dead)).collect()
}

fn peers(report: &RankReport) -> Vec<String> {
    let line = |peer: &ringway_proto::ringway::v1::PeerReport| {
        format!(
            "rank {} with {}: sent {} in {}, received {} in {}; {}",
            report.rank,
            peer.rank,
            bytes(peer.sent_bytes),
            peer.sends,
            bytes(peer.received_bytes),
            peer.receives,
            if peer.route.is_empty() { "not connected" } else { &peer.route }
        )
    };
    let mut lines: Vec<String> = report.peers.iter().take(PEERS_SHOWN).map(line).collect();
    let more = report.peers.len().saturating_sub(PEERS_SHOWN) + report.more_peers as usize;
    if more > 0 {
        lines.push(format!("rank {} with {more} more", report.rank));
    }
    lines
}

/// A number of bytes in the largest unit that leaves at least one.
fn bytes(count: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, shift)| count >> shift > 0) {
        Some((unit, shift)) => {
            let tenths = (u128::from(count) * 10) >> shift;
            format!("{}.{} {unit}", tenths / 10, tenths % 10)
        }
        None => format!("{count} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_proto::ringway::v1::{Awaited, GroupReport, PeerReport, Wait};

    fn example() -> Look {
        let task = |rank, host: &str| TaskView {
            job: "rank".into(),
            task: rank,
            rank: Some(rank),
            state: "connected".into(),
            host: host.into(),
            pid: 100 + rank,
            incarnation: "00000000000000ab".into(),
            heartbeat_age_ms: Some(400),
            ..Default::default()
        };
        let call = CallRecord { operation: "barrier".into(), number: 4, ..Default::default() };
        let report = RankReport {
            rank: 0,
            world_size: 2,
            task: Some(TaskName { job: "rank".into(), task: 0 }),
            now_ns: 3_000_000_000,
            waits: vec![Wait {
                call: Some(call),
                on: vec![Awaited { rank: 1, receives: true }],
                ..Default::default()
            }],
            peers: vec![PeerReport {
                rank: 1,
                sent_bytes: 2048,
                route: "uring (not rdma: none)".into(),
                ..Default::default()
            }],
            groups: vec![GroupReport { id: 9, dead: "somebody aborted".into(), ..Default::default() }],
            ..Default::default()
        };
        let wait = WaitAtService {
            awaited: "barrier".into(),
            name: "b".into(),
            waited_ms: 1000,
            left_ms: Some(4000),
            waiting_count: 3,
            late: vec![TaskName { job: "rank".into(), task: 1 }],
            late_count: 1,
            ..Default::default()
        };
        let overview = Overview {
            tasks: vec![task(0, "a"), task(1, "longer")],
            waits: vec![wait],
            heartbeat_limit_ms: 10_000,
            ..Default::default()
        };
        Look { overview, reports: vec![report], silent: vec![TaskName { job: "rank".into(), task: 1 }] }
    }

    #[test]
    fn a_look_names_who_is_late_and_why() {
        let text = look(&example());
        for expected in [
            "2 of 2 tasks connected",
            "a task is lost after 10.0 s of silence",
            "rank 1 (pid 101 on host longer) does not answer",
            "rank 0 waits for it since 3.0 s",
            "rank 0 waits for rank 1 since 3.0 s: barrier #4",
            "barrier \"b\" waited for since 1.0 s by 3 more; late: rank:1; fails in 4.0 s",
            "rank 0 with 1: sent 2.0 KiB in 0, received 0 B in 0; uring (not rdma: none)",
            "rank 0, communicator 9: somebody aborted",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
        assert!(text.lines().all(|line| !line.ends_with(' ')), "{text}");
        // The columns stand below each other.
        let starts: Vec<usize> = text
            .lines()
            .skip(2)
            .take(3)
            .map(|line| line.find("STATE").or(line.find("connected")).unwrap())
            .collect();
        assert!(starts.iter().all(|at| *at == starts[0]), "{text}");
    }

    #[test]
    fn a_sum_that_leaves_peers_out_says_so() {
        let mut example = example();
        assert!(look(&example).contains("2.0 KiB       0 B"), "{}", look(&example));
        example.reports[0].more_peers = 3;
        assert!(look(&example).contains("2.0 KiB+      0 B+"), "{}", look(&example));
    }

    #[test]
    fn a_rank_by_itself_tells_its_calls() {
        let text = rank(&example().reports[0]);
        assert!(text.starts_with("rank 0 of 2,"), "{text}");
        assert!(text.contains("barrier #4: for 3.0 s, still for 3.0 s, waits for rank 1"), "{text}");
    }

    #[test]
    fn lists_of_ranks_read_as_sentences() {
        assert_eq!([ranks(&[]), ranks(&[3]), ranks(&[0, 1, 3])], ["nobody", "rank 3", "ranks 0, 1 and 3"]);
    }
}
