//! What all ranks are told when one dies, stops or errs: the failure contract, on processes.

use crate::ports::free_ports;
use crate::process::{End, Run, command, example, ringway};
use rustix::process::{Pid, Signal, kill_process};

/// The program of `examples/failures.rs`.
fn failures() -> &'static str {
    example("failures")
}

fn mistake(words: &[&str]) -> End {
    let mut command = ringway(&["run", "-n", "4", "--", failures()]);
    command.args(words);
    Run::start(command).end()
}

/// What each of 4 ranks said, by rank.
fn by_rank(end: &End) -> Vec<&str> {
    (0..4)
        .map(|r| {
            let begins = format!("rank {r}: ");
            let line = end.stdout.iter().find_map(|l| l.strip_prefix(&begins));
            line.unwrap_or_else(|| panic!("rank {r} said nothing: {end:?}"))
        })
        .collect()
}

#[test]
fn mismatched_calls_are_errors_on_every_rank_that_show_both_sides() {
    for (words, ours, theirs) in [
        ("count", "1000", "2000"),
        ("type", "f32", "i32"),
        ("operation", "sum", "max"),
        // No message passes between the two roots: the next call finds it.
        ("root", "root 0", "root 3"),
        ("order", "all_reduce", "broadcast"),
        ("skip", "all_reduce", "barrier"),
    ] {
        let end = mistake(&[words]);
        assert_ne!(end.code(), 0, "{words}: {end:?}");
        for said in by_rank(&end) {
            assert!(said.contains("mismatched calls"), "{words}: {said}");
            assert!(said.contains(ours) && said.contains(theirs), "{words}: {said}");
            assert!(said.contains("pid "), "{words}: {said}");
        }
    }
}

#[test]
fn an_abort_reaches_all_ranks_with_the_words_of_the_one() {
    let end = mistake(&["abort"]);
    for said in by_rank(&end) {
        assert!(said.contains("the data of shard 7 is damaged") && said.contains("rank 3"), "{said}");
    }
}

#[test]
fn a_panic_is_told_to_all_other_ranks() {
    let end = mistake(&["panic"]);
    assert_eq!(end.code(), 101, "its own code, not that of those who failed because of it: {end:?}");
    for rank in 0..3 {
        let begins = format!("rank {rank}: rank 3 on host ");
        assert!(end.stdout.iter().any(|l| l.starts_with(&begins) && l.contains("it panicked")), "{end:?}");
    }
}

/// Four ranks of which one, before it joins, does what the shell words say. All that the others may wait is a day.
fn before_joining(rank: u32, does: &str) -> End {
    let script = format!("[ $RINGWAY_RANK = {rank} ] && {{ {does}; }}; exec \"$0\" count");
    let mut command = ringway(&["run", "-n", "4", "--", "sh", "-c", &script, failures()]);
    command.env("RINGWAY_JOIN_TIMEOUT_MS", "86400000");
    Run::start(command).end()
}

#[test]
fn a_rank_that_ends_before_it_joins_is_named_to_those_that_wait() {
    for (does, how, code) in [
        ("exit 7", "exited with code 7", 7),
        ("exit 0", "exited with code 0", 1),
        ("kill -9 $$", "was killed by SIGKILL", 137),
    ] {
        let end = before_joining(2, does);
        assert_eq!(end.code(), code, "{end:?}");
        let told = end.stderr.lines().filter(|l| l.contains("rank 2 of 4 (pid ") && l.contains(" on host "));
        let told = told.filter(|l| l.contains("cannot be made") && l.contains(how));
        assert_eq!(told.count(), 3, "{does}: all others are told: {end:?}");
    }
}

#[test]
fn a_rank_that_is_refused_tells_those_that_wait_why() {
    let end = before_joining(1, "export RINGWAY_SOCKET_IFNAME=none0");
    assert_ne!(end.code(), 0);
    let told = end.stderr.lines().filter(|l| l.contains("cannot be made") && l.contains("none0"));
    assert_eq!(told.count(), 3, "all others are told: {end:?}");
}

#[test]
fn a_rank_that_is_late_costs_waiting_and_nothing_else() {
    let end = mistake(&["late", "700"]);
    assert_eq!(end.code(), 0, "{end:?}");
    assert!(by_rank(&end).iter().all(|said| *said == "fine"));
}

#[test]
fn a_rank_that_exits_without_a_word_is_named_by_the_others() {
    let end = mistake(&["exit"]);
    assert_eq!(end.code(), 3, "its own code, not that of those who failed because of it: {end:?}");
    for rank in 0..3 {
        let begins = format!("rank {rank}: rank 3 on host ");
        assert!(end.stdout.iter().any(|l| l.starts_with(&begins) && l.contains("was lost")), "{end:?}");
    }
}

/// A long benchmark of 4 ranks, and the ranks' process ids, once it runs.
fn running_bench(environment: &[(&str, &str)]) -> (Run, Vec<i32>) {
    let mut command =
        ringway(&["bench", "all-reduce", "-n", "4", "--sizes", "1M", "--iters", "1000000", "-w", "1"]);
    command.envs(environment.iter().copied());
    let run = Run::start(command);
    let pids = pids_of_bench(&run);
    (run, pids)
}

/// The ranks' process ids of a benchmark of 4 ranks, once it runs.
pub(crate) fn pids_of_bench(run: &Run) -> Vec<i32> {
    let mut pids = Vec::new();
    loop {
        let line = run.line();
        if let Some((_, pid)) = line.split_once(" pid ") {
            pids.push(pid.split(':').next().unwrap().parse().unwrap());
        }
        // The last line of the head: from here on the ranks reduce.
        if line.contains("(elements)") {
            assert_eq!(pids.len(), 4);
            return pids;
        }
    }
}

pub(crate) fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).expect("the rank is there");
}

#[test]
fn a_killed_rank_is_named_by_all_others() {
    // Over shared memory and over TCP.
    for (victim, net) in [(0, "auto"), (1, "tcp"), (2, "auto"), (3, "tcp"), (3, "auto")] {
        let (run, pids) = running_bench(&[("RINGWAY_NET", net)]);
        signal(pids[victim], Signal::KILL);
        let end = run.end();
        assert_eq!(end.code(), 128 + 9, "{end:?}");
        for rank in (0..4).filter(|r| *r != victim) {
            let says = format!("ringway bench: rank {rank}: rank {victim} on host ");
            let line = end.stderr.lines().find(|l| l.starts_with(&says));
            let line = line.unwrap_or_else(|| panic!("rank {rank} does not name rank {victim}: {end:?}"));
            assert!(line.contains(&format!("(pid {}) was lost", pids[victim])), "{line}");
            // One that hears of it from others just then has no call under way.
            let calls = ["all_gather #", "all_reduce #", "barrier #", "broadcast #"];
            let during =
                calls.map(|call| format!("during {call}")).into_iter().chain(["between calls".to_owned()]);
            assert!(during.into_iter().any(|d| line.contains(&d)), "the operation: {line}");
        }
    }
}

/// Whether a process has a progress thread.
fn has_progress_thread(pid: i32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the rank is there");
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    // The system keeps 15 characters.
    names.into_iter().any(|name| name.starts_with("ringway-progres"))
}

#[test]
fn a_killed_rank_is_named_of_started_calls_too_by_whomever_they_are_moved_on() {
    for (progress, net) in [("caller", "auto"), ("caller", "tcp"), ("thread", "auto")] {
        let bench = "echo pid $RINGWAY_RANK $$; exec \"$0\" bench all-reduce --overlap -b 1M -i 4 -e 64M";
        let mut command =
            ringway(&["run", "-n", "3", "--", "sh", "-c", bench, env!("CARGO_BIN_EXE_ringway")]);
        command.env("RINGWAY_PROGRESS", progress).env("RINGWAY_NET", net);
        let run = Run::start(command);
        let (mut pids, mut begun) = ([0; 3], false);
        while !begun || pids.contains(&0) {
            let line = run.line();
            if let Some((rank, pid)) = line.strip_prefix("pid ").and_then(|words| words.split_once(' ')) {
                pids[rank.parse::<usize>().unwrap()] = pid.parse().unwrap();
            }
            // A row of the table: calls were started and waited for.
            begun |= line.starts_with(' ');
        }
        for pid in pids {
            assert_eq!(has_progress_thread(pid), progress == "thread", "{progress}");
        }
        signal(pids[1], Signal::KILL);
        let end = run.end();
        assert_eq!(end.code(), 128 + 9, "{end:?}");
        for rank in [0, 2] {
            let says = format!("ringway bench: rank {rank}: rank 1 on host ");
            let line = end.stderr.lines().find(|l| l.starts_with(&says));
            assert!(line.is_some_and(|l| l.contains(&format!("(pid {}) was lost", pids[1]))), "{end:?}");
        }
    }
}

#[test]
fn a_stopped_rank_is_named_once_the_heartbeat_limit_is_over() {
    for net in ["auto", "tcp"] {
        let (run, pids) = running_bench(&[("RINGWAY_HEARTBEAT_TIMEOUT_MS", "1500"), ("RINGWAY_NET", net)]);
        signal(pids[2], Signal::STOP);
        // The survivors name it; the launcher then ends the stopped one.
        let end = run.end();
        for rank in [0, 1, 3] {
            let says = format!("ringway bench: rank {rank}: rank 2 on host ");
            let line = end.stderr.lines().find(|l| l.starts_with(&says));
            assert!(line.is_some_and(|l| l.contains("heartbeat")), "rank {rank}, {net}: {end:?}");
        }
    }
}

#[test]
fn an_unreachable_coordinator_is_named_with_what_to_do() {
    let mut rank = command(failures());
    rank.arg("count").env("RINGWAY_RANK", "1").env("RINGWAY_WORLD_SIZE", "2");
    rank.env("RINGWAY_COORDINATOR", "127.0.0.1:9").env("RINGWAY_CONNECT_TIMEOUT_MS", "500");
    // The wait for the others begins once the service is reached: were it this that counts, the test would not end.
    rank.env("RINGWAY_JOIN_TIMEOUT_MS", "86400000");
    let end = Run::start(rank).end();
    assert_ne!(end.code(), 0);
    assert!(end.stderr.contains("127.0.0.1:9") && end.stderr.contains("connection refused"), "{end:?}");
}

#[test]
fn a_coordinator_that_cannot_listen_says_why_and_nothing_else() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap().to_string();
    for (at, says, other) in [
        (taken.as_str(), "is in use", "no such address"),
        ("203.0.113.7:29400", "no such address", "is in use"),
    ] {
        let mut rank = command(failures());
        rank.arg("count").env("RINGWAY_RANK", "0").env("RINGWAY_WORLD_SIZE", "2");
        rank.env("RINGWAY_COORDINATOR", at).env("RINGWAY_INSECURE", "1");
        let end = Run::start(rank).end();
        assert_ne!(end.code(), 0);
        assert!(end.stderr.matches(says).count() == 1 && !end.stderr.contains(other), "{end:?}");
    }
}

#[test]
fn a_rank_that_never_comes_is_named_by_those_that_wait() {
    let at = format!("127.0.0.1:{}", free_ports(1));
    let mut rank = command(failures());
    rank.arg("count").env("RINGWAY_RANK", "0").env("RINGWAY_WORLD_SIZE", "3");
    rank.env("RINGWAY_COORDINATOR", at).env("RINGWAY_JOIN_TIMEOUT_MS", "1000");
    let end = Run::start(rank).end();
    assert_ne!(end.code(), 0);
    assert!(end.stderr.contains("task:1") && end.stderr.contains("task:2"), "{end:?}");
}
