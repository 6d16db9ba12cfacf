//! Flight records as a trace in Chrome's JSON format, which ui.perfetto.dev and chrome://tracing open: a process per rank,
//! its calls as slices on a track per communicator, what befell it as instants.
//!
//! - **P1** Slices of one track nest or follow each other, as the format asks: calls that are under way at once go on
//!   tracks of their own.
//! - **P2** Moments of all ranks count from the earliest of them, by each rank's clock: as good as the hosts' clocks agree.

use std::collections::BTreeMap;

use ringway_proto::ringway::v1::{CallRecord, RankReport};
use serde_json::{Value, json};

use super::call_in_words;

/// Tracks of one communicator, at most; calls beyond share the last.
const TRACKS: usize = 64;
/// Number of the track on which instants are.
const EVENTS_TRACK: u64 = 0;

/// A trace of these flight records.
#[must_use]
pub fn trace(reports: &[RankReport]) -> String {
    let origin_us = reports.iter().map(|report| report.epoch_unix_us).min().unwrap_or(0);
    let mut events = Vec::new();
    for report in reports {
        let offset_us = (report.epoch_unix_us - origin_us) as f64;
        rank(report, offset_us, &mut events);
    }
    let trace = json!({
        "displayTimeUnit": "ns",
        "otherData": { "origin_unix_us": origin_us.to_string(), "writer": "ringway" },
        "traceEvents": events,
    });
    trace.to_string()
}

fn rank(report: &RankReport, offset_us: f64, out: &mut Vec<Value>) {
    let pid = report.rank;
    let at = |ns: u64| offset_us + ns as f64 / 1e3;
    let name = format!("rank {} ({}, pid {})", report.rank, report.host, report.pid);
    out.push(json!({ "ph": "M", "name": "process_name", "pid": pid, "args": { "name": name } }));
    out.push(json!({ "ph": "M", "name": "process_sort_index", "pid": pid, "args": { "sort_index": pid } }));
    out.push(track(pid, EVENTS_TRACK, "events"));
    let mut calls: Vec<&CallRecord> = report.calls.iter().collect();
    calls.sort_by_key(|call| call.began_ns);
    let mut tracks = Tracks::default();
    for call in calls {
        let ended_ns = call.ended_ns.unwrap_or(report.now_ns).max(call.began_ns);
        let (tid, new) = tracks.take(call.group, call.began_ns, ended_ns);
        if let Some(name) = new {
            out.push(track(pid, tid, &name));
        }
        let arguments = json!({
            "communicator": call.group, "bytes": call.bytes, "algorithm": call.algorithm,
            "outcome": call.outcome, "root": call.root,
        });
        let duration = |ns: u64| ns.saturating_sub(call.began_ns) as f64 / 1e3;
        out.push(json!({
            "ph": "X", "cat": call.outcome, "name": call_in_words(call), "pid": pid, "tid": tid,
            "ts": at(call.began_ns), "dur": duration(ended_ns), "args": arguments,
        }));
        if let Some(first) = call.first_byte_ns {
            out.push(json!({
                "ph": "X", "cat": "wait", "name": "until the first message", "pid": pid, "tid": tid,
                "ts": at(call.began_ns), "dur": duration(first.min(ended_ns)),
            }));
        }
    }
    for happening in &report.happenings {
        let mut name = happening.what.clone();
        if let Some(rank) = happening.rank {
            name += &format!(" rank {rank}");
        }
        if let Some(group) = happening.group {
            name += &format!(" communicator {group}");
        }
        out.push(json!({
            "ph": "i", "s": "p", "cat": "event", "name": name, "pid": pid, "tid": EVENTS_TRACK,
            "ts": at(happening.at_ns), "args": { "detail": happening.detail },
        }));
    }
}

fn track(pid: u32, tid: u64, name: &str) -> Value {
    json!({ "ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": { "name": name } })
}

/// P1: until when each track of each communicator is taken.
#[derive(Default)]
struct Tracks(BTreeMap<u32, Vec<u64>>);

impl Tracks {
    /// A free track for a call, and its name if it is new. Calls come in the order in which they began.
    fn take(&mut self, group: u32, began_ns: u64, ended_ns: u64) -> (u64, Option<String>) {
        let ends = self.0.entry(group).or_default();
        let free = ends.iter().position(|end| *end <= began_ns);
        let new = free.is_none() && ends.len() < TRACKS;
        if new {
            ends.push(0);
        }
        let at = free.unwrap_or(ends.len() - 1);
        ends[at] = ended_ns.max(ends[at]);
        let name = match at {
            0 => format!("communicator {group}"),
            _ => format!("communicator {group}, {} at once", at + 1),
        };
        (1 + u64::from(group) * TRACKS as u64 + at as u64, new.then_some(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_proto::ringway::v1::Happening;

    fn call(number: u32, began_us: u64, ended_us: Option<u64>) -> CallRecord {
        let outcome = if ended_us.is_some() { "done" } else { "open" };
        CallRecord {
            group: 1,
            number,
            operation: "all_reduce".into(),
            began_ns: began_us * 1000,
            ended_ns: ended_us.map(|us| us * 1000),
            outcome: outcome.into(),
            ..Default::default()
        }
    }

    fn slices(trace: &Value) -> Vec<&Value> {
        trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X").collect()
    }

    #[test]
    fn ranks_share_one_clock_and_have_a_process_each() {
        // P2
        let of = |rank, epoch_unix_us| RankReport {
            rank,
            epoch_unix_us,
            now_ns: 90_000,
            calls: vec![call(1, 10, Some(20)), call(2, 30, None)],
            happenings: vec![Happening {
                at_ns: 40_000,
                what: "lost".into(),
                rank: Some(2),
                ..Default::default()
            }],
            ..Default::default()
        };
        let trace: Value = serde_json::from_str(&trace(&[of(0, 1_000_000), of(1, 1_000_005)])).unwrap();
        let at = |slice: &Value| {
            (slice["pid"].as_u64().unwrap(), slice["ts"].as_f64().unwrap(), slice["dur"].as_f64().unwrap())
        };
        let told: Vec<_> = slices(&trace).into_iter().map(at).collect();
        assert_eq!(told, [(0, 10.0, 10.0), (0, 30.0, 60.0), (1, 15.0, 10.0), (1, 35.0, 60.0)]);
        let instants: Vec<&Value> =
            trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "i").collect();
        assert_eq!(instants.len(), 2);
        assert_eq!(instants[1]["name"], "lost rank 2");
        assert_eq!(instants[1]["ts"], 45.0);
    }

    #[test]
    fn calls_under_way_at_once_are_on_tracks_of_their_own() {
        // P1
        let calls =
            vec![call(1, 0, Some(10)), call(2, 5, Some(15)), call(3, 10, Some(12)), call(4, 11, Some(20))];
        let report = RankReport { calls, ..Default::default() };
        let trace: Value = serde_json::from_str(&trace(&[report])).unwrap();
        let mut by_track: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
        for slice in slices(&trace) {
            let (ts, dur) = (slice["ts"].as_f64().unwrap(), slice["dur"].as_f64().unwrap());
            by_track.entry(slice["tid"].as_u64().unwrap()).or_default().push((ts, ts + dur));
        }
        assert_eq!(by_track.len(), 3);
        for slices in by_track.values() {
            assert!(slices.windows(2).all(|two| two[0].1 <= two[1].0), "{slices:?}");
        }
    }

    #[test]
    fn no_records_make_an_empty_trace() {
        let trace: Value = serde_json::from_str(&trace(&[])).unwrap();
        assert!(trace["traceEvents"].as_array().unwrap().is_empty());
    }
}
