//! Numbers in Prometheus' text exposition format, version 0.0.4.
//!
//! - **N1** A family is written once, its samples together, counters end in `_total`, units are base units.
//! - **N2** Labels have few values: ranks, operations, states. No label names a peer: 1,024 ranks would make a million
//!   series; per-peer bytes are in `ringway status`.

use std::fmt::Write;

use ringway_proto::ringway::v1::{Overview, RankReport};

/// What answers with this must say.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A family of samples under one name.
struct Family<'a> {
    name: &'a str,
    kind: &'a str,
    help: &'a str,
}

type Labels<'a> = Vec<(&'a str, String)>;

impl Family<'_> {
    /// Writes the family; nothing where it has no samples.
    fn write(&self, samples: impl IntoIterator<Item = (Vec<(&'static str, String)>, f64)>, out: &mut String) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return;
        }
        let Family { name, kind, help } = self;
        // Writing to text does not fail.
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(out, "{name}{} {value}", braces(&labels));
        }
    }
}

fn braces(labels: &Labels<'_>) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let one = |(name, value): &(&str, String)| format!("{name}=\"{}\"", escaped(value));
    format!("{{{}}}", labels.iter().map(one).collect::<Vec<_>>().join(","))
}

/// A label's value, with what would end it escaped.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn counter<'a>(name: &'a str, help: &'a str) -> Family<'a> {
    Family { name, kind: "counter", help }
}

fn gauge<'a>(name: &'a str, help: &'a str) -> Family<'a> {
    Family { name, kind: "gauge", help }
}

/// A rank's numbers.
#[must_use]
pub fn rank(report: &RankReport) -> String {
    let mut out = String::new();
    let own = || vec![("rank", report.rank.to_string())];
    let with = |name: &'static str, value: &str| {
        let mut labels = own();
        labels.push((name, value.to_owned()));
        labels
    };
    let totals = || report.totals.iter();
    counter("ringway_calls_total", "Calls that ended with a result.")
        .write(totals().map(|t| (with("operation", &t.operation), t.done as f64)), &mut out);
    counter("ringway_call_failures_total", "Calls that ended with an error.")
        .write(totals().map(|t| (with("operation", &t.operation), t.failed as f64)), &mut out);
    counter("ringway_call_bytes_total", "Bytes of the buffers of calls that ended with a result.")
        .write(totals().map(|t| (with("operation", &t.operation), t.bytes as f64)), &mut out);
    counter("ringway_call_seconds_total", "Time spent in calls that ended with a result.")
        .write(totals().map(|t| (with("operation", &t.operation), t.time_ns as f64 / 1e9)), &mut out);
    let (sent, received) =
        report.peers.iter().fold((0, 0), |(s, r), p| (s + p.sent_bytes, r + p.received_bytes));
    counter("ringway_payload_bytes_total", "Payload exchanged with all peers.").write(
        [(with("direction", "sent"), sent as f64), (with("direction", "received"), received as f64)],
        &mut out,
    );
    gauge("ringway_peers", "Peers that anything was exchanged with.")
        .write([(own(), report.peers.len() as f64)], &mut out);
    gauge("ringway_calls_open", "Calls under way.").write([(own(), report.waits.len() as f64)], &mut out);
    let still = report.waits.iter().map(|wait| report.now_ns.saturating_sub(wait.still_since_ns)).max();
    gauge(
        "ringway_stalled_seconds",
        "For how long nothing has moved of the call under way that has stood longest.",
    )
    .write([(own(), still.unwrap_or(0) as f64 / 1e9)], &mut out);
    let dead = report.groups.iter().filter(|group| !group.dead.is_empty()).count();
    gauge("ringway_communicators", "Communicators.").write(
        [(with("state", "alive"), (report.groups.len() - dead) as f64), (with("state", "dead"), dead as f64)],
        &mut out,
    );
    out
}

/// A coordination service's numbers.
#[must_use]
pub fn service(overview: &Overview) -> String {
    let mut out = String::new();
    let state = |state: &'static str| {
        let tasks = overview.tasks.iter().filter(|task| task.state == state).count();
        (vec![("state", state.to_owned())], tasks as f64)
    };
    gauge("ringway_tasks", "Tasks of the cluster.")
        .write(["connected", "disconnected", "error"].map(state), &mut out);
    let oldest = overview.tasks.iter().filter_map(|task| task.heartbeat_age_ms).max();
    gauge(
        "ringway_heartbeat_age_seconds",
        "Since the last sign of life of the task that was silent longest.",
    )
    .write([(Vec::new(), oldest.unwrap_or(0) as f64 / 1e3)], &mut out);
    gauge("ringway_groups", "Groups that are made.")
        .write([(Vec::new(), overview.groups.len() as f64)], &mut out);
    let kinds = ["barrier", "key", "group", "registration", "devices", "departure", "alive"];
    let kind = |kind: &'static str| {
        let waits = overview.waits.iter().filter(|wait| wait.awaited == kind).count();
        (vec![("for", kind.to_owned())], waits as f64)
    };
    gauge("ringway_waits", "What tasks wait for at the service.").write(kinds.map(kind), &mut out);
    let longest = overview.waits.iter().map(|wait| wait.waited_ms).max();
    gauge("ringway_longest_wait_seconds", "How long the longest of these lasts.")
        .write([(Vec::new(), longest.unwrap_or(0) as f64 / 1e3)], &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_proto::ringway::v1::{PeerReport, TaskView, TotalReport};
    use std::collections::BTreeSet;

    /// Reads the format as its description says, and returns the samples by name and labels.
    fn parse(text: &str) -> Vec<(String, String, f64)> {
        assert!(text.ends_with('\n') && !text.contains("\n\n"));
        let (mut samples, mut declared, mut current) = (Vec::new(), BTreeSet::new(), String::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(["counter", "gauge"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert!(declared.insert(name.to_owned()), "N1: {name} is declared twice");
                name.clone_into(&mut current);
            } else if !line.starts_with("# HELP ") {
                let (series, value) = line.rsplit_once(' ').unwrap();
                let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
                assert_eq!(name, current, "N1: samples stand below their family");
                assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{line}");
                samples.push((
                    name.to_owned(),
                    labels.trim_end_matches('}').to_owned(),
                    value.parse().unwrap(),
                ));
            }
        }
        samples
    }

    #[test]
    fn a_rank_tells_its_totals() {
        let total = TotalReport {
            operation: "all_reduce".into(),
            done: 3,
            failed: 1,
            bytes: 4096,
            time_ns: 1_500_000_000,
        };
        let peer = PeerReport { sent_bytes: 10, received_bytes: 20, ..Default::default() };
        let report = RankReport {
            rank: 2,
            totals: vec![total],
            peers: vec![peer.clone(), peer],
            ..Default::default()
        };
        let samples = parse(&rank(&report));
        let value = |name: &str, labels: &str| {
            let found = samples.iter().find(|(n, l, _)| n == name && l == labels);
            found.unwrap_or_else(|| panic!("{name} {labels} in {samples:?}")).2
        };
        assert_eq!(value("ringway_calls_total", "rank=\"2\",operation=\"all_reduce\""), 3.0);
        assert_eq!(value("ringway_call_seconds_total", "rank=\"2\",operation=\"all_reduce\""), 1.5);
        assert_eq!(value("ringway_payload_bytes_total", "rank=\"2\",direction=\"received\""), 40.0);
        assert_eq!(value("ringway_stalled_seconds", "rank=\"2\""), 0.0);
    }

    #[test]
    fn a_service_tells_its_tasks() {
        let task = TaskView { state: "connected".into(), heartbeat_age_ms: Some(1500), ..Default::default() };
        let samples = parse(&service(&Overview { tasks: vec![task], ..Default::default() }));
        assert!(samples.contains(&("ringway_tasks".into(), "state=\"connected\"".into(), 1.0)));
        assert!(samples.contains(&("ringway_heartbeat_age_seconds".into(), String::new(), 1.5)));
    }

    #[test]
    fn values_of_labels_end_where_they_end() {
        assert_eq!(braces(&vec![("a", "x\"\\\ny".to_owned())]), "{a=\"x\\\"\\\\\\ny\"}");
    }
}
