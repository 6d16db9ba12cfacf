//! `ringway status` on jobs that run: who waits for whom, flight records, sockets and metrics.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::failures::signal;
use crate::ports::free_ports;
use crate::process::{Folder, Run, ringway};

/// A test that asks for longer has failed.
const LIMIT: Duration = Duration::from_secs(60);

/// A benchmark of 4 ranks that shows itself in a folder of its own, and the ranks' process ids, once all have reduced.
struct Job {
    run: Run,
    pids: Vec<i32>,
    folder: Folder,
}

impl Job {
    fn start(name: &str, environment: &[(&str, &str)]) -> Job {
        let folder = Folder::new(name);
        let mut command = ringway(&["bench", "all-reduce", "-n", "4", "--sizes", "1M", "--iters", "1000000"]);
        command.args(["-w", "1"]).envs(environment.iter().copied());
        command.env("RINGWAY_RUNTIME_DIR", sockets(&folder)).env("RINGWAY_DUMP_DIR", records(&folder));
        let run = Run::start(command);
        let pids = crate::failures::pids_of_bench(&run);
        let job = Job { run, pids, folder };
        job.status_when(&["--json"], |look| {
            let look: Value = serde_json::from_str(look).expect("JSON");
            let ranks = look["reports"].as_array().expect("reports");
            ranks.len() == 4 && ranks.iter().all(has_reduced)
        });
        job
    }

    /// What `ringway status` says of the job.
    fn status(&self, arguments: &[&str]) -> String {
        let mut command = ringway(&["status", "--timeout-ms", "400"]);
        command.args(arguments).env("RINGWAY_RUNTIME_DIR", sockets(&self.folder));
        let out = command.output().expect("it runs");
        let said = String::from_utf8(out.stdout).expect("text");
        assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
        said
    }

    /// What it says once that is as the test expects. Ranks that are there may be late to answer on a busy machine.
    fn status_when(&self, arguments: &[&str], expected: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + LIMIT;
        loop {
            let said = self.status(arguments);
            if expected(&said) {
                return said;
            }
            assert!(Instant::now() < until, "it is never as expected, at last:\n{said}");
        }
    }

    /// What it says as JSON, once so many ranks have answered.
    fn look_of(&self, ranks: usize) -> Value {
        let read = |said: &str| -> Value { serde_json::from_str(said).expect("JSON") };
        let all = |said: &str| read(said)["reports"].as_array().expect("reports").len() == ranks;
        read(&self.status_when(&["--json"], all))
    }
}

/// Whether a rank has made the call that the benchmark is of.
fn has_reduced(report: &Value) -> bool {
    let totals = report["totals"].as_array().expect("totals");
    totals.iter().any(|total| total["operation"] == "all_reduce" && total["done"] != 0)
}

fn sockets(folder: &Folder) -> PathBuf {
    folder.path("s")
}

fn records(folder: &Folder) -> PathBuf {
    folder.path("records")
}

/// Text of a local socket.
fn said_by(socket: &Path) -> String {
    let mut text = String::new();
    UnixStream::connect(socket).expect("it listens").read_to_string(&mut text).expect("text");
    text
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("a file")).expect("JSON")
}

#[test]
fn a_stopped_rank_is_named_with_those_who_wait_for_it() {
    let job = Job::start("stopped", &[]);
    let calm = |text: &str| text.contains("4 of 4 tasks connected") && !text.contains("does not answer");
    job.status_when(&[], calm);
    signal(job.pids[2], Signal::STOP);
    let waits =
        |text: &str| text.contains("\nstragglers\n") && text.contains("ranks 0, 1 and 3 wait for it since");
    let text = job.status_when(&[], waits);
    let named = format!("rank 2 (pid {} on host ", job.pids[2]);
    let straggler = text.lines().find(|line| line.trim_start().starts_with(&named));
    assert!(straggler.is_some_and(|line| line.contains("does not answer")), "{text}");
    // A bench's ranks reduce, and agree in between.
    let on_it = [" waits for rank 2 since ", " and 2 since ", " waits for ranks 2 and "];
    let wait = text.lines().find(|line| on_it.iter().any(|on| line.contains(on)));
    assert!(wait.is_some_and(|line| line.contains('#')), "{text}");
    let seen = job.look_of(3);
    assert_eq!(seen["silent"][0]["task"], 2);
    // It was no failure.
    signal(job.pids[2], Signal::CONT);
    job.status_when(&[], |text| !text.contains("does not answer") && !text.contains("stragglers"));
    let seen = job.look_of(4);
    for peer in seen["reports"].as_array().unwrap().iter().flat_map(|r| r["peers"].as_array().unwrap()) {
        assert!(peer["route"].as_str().is_some_and(|route| !route.is_empty()), "{peer}");
        assert!(peer["sends"] != 0 || peer["receives"] != 0, "{peer}");
    }
}

#[test]
fn a_killed_rank_leaves_flight_records_of_the_others() {
    let job = Job::start("killed", &[]);
    signal(job.pids[1], Signal::KILL);
    let Job { run, folder, .. } = job;
    let end = run.end();
    assert_eq!(end.code(), 128 + 9, "{end:?}");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(records(&folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let reports: Vec<Value> = files.iter().map(|path| json(path)).collect();
    let ranks: Vec<u64> = reports.iter().map(|report| report["rank"].as_u64().unwrap()).collect();
    assert_eq!(ranks, [0, 2, 3], "{files:?}");
    for report in &reports {
        assert_eq!(report["format"], "ringway.flight.1");
        let why = report["why"].as_str().unwrap();
        assert!(why.contains("rank 1 on host") && why.contains("was lost"), "{why}");
        assert!(why.contains(" #") || why.contains("between calls"), "the operation: {why}");
        let calls = report["calls"].as_array().unwrap();
        assert!(calls.iter().any(|call| call["outcome"] == "done" && call["operation"] == "all_reduce"));
        // One that heard of it from the control plane may be in its call yet.
        let last = &calls.last().unwrap()["outcome"];
        assert!(why.contains("between calls") || last == "failed" || last == "open", "{last}");
        let befell = report["happenings"].as_array().unwrap();
        assert!(befell.iter().any(|h| h["what"] == "died"), "{befell:?}");
    }
    // The records make one trace.
    let trace = folder.path("trace.json");
    let mut command = ringway(&["status", "--from"]);
    command.arg(records(&folder)).arg("--perfetto").arg(&trace);
    assert!(command.output().unwrap().status.success());
    assert_eq!(ranks_of(&json(&trace)), [0, 2, 3]);
}

#[test]
fn an_endless_flight_record_is_refused() {
    let folder = Folder::new("endless");
    std::os::unix::fs::symlink("/dev/zero", folder.path("ringway-flight-a.json")).unwrap();
    let from = folder.path_of("");
    let end = Run::start(ringway(&["status", "--perfetto", "/dev/null", "--from", &from])).end();
    assert!(end.code() != 0 && end.stderr.contains("longer than"), "{end:?}");
}

/// The ranks that have slices in a trace.
fn ranks_of(trace: &Value) -> Vec<u64> {
    let events = trace["traceEvents"].as_array().expect("events");
    let slices = events.iter().filter(|event| event["ph"] == "X");
    let mut ranks: Vec<u64> = slices
        .map(|slice| {
            assert!(slice["ts"].is_number() && slice["dur"].as_f64().unwrap() >= 0.0, "{slice}");
            slice["pid"].as_u64().unwrap()
        })
        .collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

#[test]
fn flight_records_of_a_running_job_are_files_and_a_trace() {
    let job = Job::start("dump", &[]);
    let trace = job.folder.path("trace.json");
    let to_trace = ["--dump", "--perfetto", trace.to_str().unwrap()];
    job.status_when(&to_trace, |_| ranks_of(&json(&trace)) == [0, 1, 2, 3]);
    let to_files = format!("--dump={}", records(&job.folder).display());
    let files = job.status_when(&[&to_files], |files| files.lines().count() == 4);
    for path in files.lines() {
        let report = json(Path::new(path));
        assert_eq!(report["why"], "asked");
        assert!(report["calls"].as_array().is_some_and(|calls| !calls.is_empty()), "{path}");
    }
}

#[test]
fn every_process_says_how_it_is_on_a_socket() {
    let job = Job::start("sockets", &[]);
    let at = |name: &str, pid: u32| sockets(&job.folder).join(format!("{name}-{pid}.sock"));
    let rank = said_by(&at("rank3", job.pids[3] as u32));
    assert!(rank.starts_with("ringway ") && rank.contains("\nrank 3 of 4, "), "{rank}");
    assert!(rank.contains("all_reduce") && rank.contains("rank 3 with "), "{rank}");
    let service = said_by(&at("coordinator", job.run.child.id()));
    assert!(service.contains("4 of 4 tasks connected"), "{service}");
    job.run.signal(Signal::TERM);
    let Job { run, folder, .. } = job;
    run.end();
    let left: Vec<_> = std::fs::read_dir(sockets(&folder)).unwrap().collect();
    // Nor do those of ranks that a signal ended stay.
    let names: Vec<_> = left.into_iter().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.is_empty(), "{names:?}");
}

#[test]
fn a_switched_off_socket_is_not_there() {
    let folder = Folder::new("off");
    let mut command = ringway(&["bench", "all-reduce", "-n", "2", "--sizes", "8", "--iters", "2"]);
    command.env("RINGWAY_STATUS_SOCKET", "off").env("RINGWAY_RUNTIME_DIR", sockets(&folder));
    assert_eq!(Run::start(command).end().code(), 0);
    assert!(!sockets(&folder).exists());
    let mut command = ringway(&["status"]);
    command.env("RINGWAY_RUNTIME_DIR", sockets(&folder));
    let end = Run::start(command).end();
    assert_eq!(end.code(), 125, "{end:?}");
    assert!(end.stderr.contains("no job of this user runs here"), "{end:?}");
}

#[test]
fn prometheus_finds_numbers_of_every_rank_and_of_the_service() {
    let port = free_ports(5);
    let bind = format!("127.0.0.1:{port}");
    let job = Job::start("metrics", &[("RINGWAY_METRICS_BIND", &bind)]);
    for offset in 0..5 {
        let mut stream = TcpStream::connect(("127.0.0.1", port + offset)).expect("metrics are there");
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("version=0.0.4"), "{head}");
        for line in body.lines().filter(|line| !line.starts_with("# ")) {
            let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
            assert!(series.starts_with("ringway_") && value.parse::<f64>().is_ok(), "{line}");
        }
        let expected = match offset {
            4 => "ringway_tasks{state=\"connected\"} 4".to_owned(),
            rank => format!("ringway_calls_total{{rank=\"{rank}\",operation=\"all_reduce\"}} "),
        };
        assert!(body.contains(&expected), "{expected} is not in\n{body}");
    }
    drop(job);
}
