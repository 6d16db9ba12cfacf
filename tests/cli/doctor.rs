//! `ringway doctor`: what it shows, what a setting changes, and its exit codes.

use crate::process::{Run, ringway};

fn doctor(arguments: &[&str], environment: &[(&str, &str)]) -> (i32, String) {
    let mut command = ringway(&[&["doctor"], arguments].concat());
    command.envs(environment.iter().copied());
    let end = Run::start(command).end();
    (end.code(), end.stdout.join("\n"))
}

fn json(environment: &[(&str, &str)]) -> (i32, serde_json::Value) {
    let (code, text) = doctor(&["--json"], environment);
    (code, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

/// The findings and facts of one section.
fn section<'a>(report: &'a serde_json::Value, title: &str) -> &'a serde_json::Value {
    let sections = report["sections"].as_array().expect("sections");
    sections
        .iter()
        .find(|section| section["title"] == title)
        .unwrap_or_else(|| panic!("no {title}: {report:#}"))
}

#[test]
fn every_subject_is_covered() {
    let (_, text) = doctor(&["-n", "3"], &[]);
    for subject in [
        "Settings",
        "Launch",
        "Who may take part",
        "Network interfaces",
        "TCP congestion control",
        "io_uring",
        "lockable",
        "/dev/shm",
        "transparent huge pages",
        "control group",
        "memory node",
        "RDMA",
        "Shared memory between ranks",
        "GPUs",
        "NCCL",
        "local rank 2",
    ] {
        assert!(text.contains(subject), "{subject} is missing: {text}");
    }
}

#[test]
fn settings_say_where_they_come_from() {
    let environment = [("RINGWAY_SLICE_BYTES", "1M"), ("RINGWAY_TOKEN", "hunter2.hunter2.hunter2")];
    let (_, report) = json(&environment);
    let facts = section(&report, "Settings")["facts"].as_array().unwrap();
    let fact =
        |name: &str| facts.iter().find(|fact| fact["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(fact("RINGWAY_SLICE_BYTES")["value"], "1M");
    assert_eq!(fact("RINGWAY_SLICE_BYTES")["note"], "from the environment");
    assert_eq!(fact("RINGWAY_HEARTBEAT_TIMEOUT_MS")["value"], "10000");
    assert_eq!(fact("RINGWAY_HEARTBEAT_TIMEOUT_MS")["note"], "default");
    assert!(!report.to_string().contains("hunter2"), "a secret is not shown");
    let (code, text) = doctor(&["--settings"], &environment);
    assert_eq!(code, 0);
    assert!(text.contains("RINGWAY_SLICE_BYTES=1M  (from the environment)"), "{text}");
    assert!(text.contains("RINGWAY_SPIN_US=auto  (default)"), "{text}");
    assert!(!text.contains("hunter2"));
}

#[test]
fn problems_come_with_remedies_and_an_exit_code() {
    for (environment, title, said) in [
        (("RINGWAY_SPIN_USS", "1"), "Settings", "did you mean RINGWAY_SPIN_US?"),
        (("RINGWAY_WORLD_SIZE", "4"), "Launch", "RINGWAY_RANK"),
        (("RINGWAY_TOKEN_FILE", "/no/such/file"), "Settings", "it cannot be read"),
        (("RINGWAY_SOCKET_IFNAME", "nosuchif"), "Network interfaces", "nosuchif"),
        (("RINGWAY_CONGESTION_CONTROL", "nosuchcc"), "TCP congestion control", "modprobe tcp_nosuchcc"),
    ] {
        let (code, report) = json(&[environment]);
        assert_eq!((code, &report["ok"]), (1, &serde_json::Value::Bool(false)), "{environment:?}");
        let findings = section(&report, title)["findings"].as_array().unwrap();
        let problem = findings.iter().find(|finding| finding["severity"] == "problem");
        let problem = problem.unwrap_or_else(|| panic!("{environment:?}: {report:#}"));
        assert!(problem.to_string().contains(said), "{environment:?}: {problem:#}");
        assert!(!problem["remedy"].as_str().unwrap().is_empty());
    }
}

#[test]
fn a_setting_changes_what_would_be_used() {
    let (_, report) = json(&[("RINGWAY_SOCKET_IFNAME", "=lo")]);
    let facts = section(&report, "Network interfaces")["facts"].as_array().unwrap();
    let between = facts.iter().find(|fact| fact["name"] == "between hosts").expect("one is used");
    assert!(between["value"].as_str().unwrap().starts_with("lo "), "{between}");
}
