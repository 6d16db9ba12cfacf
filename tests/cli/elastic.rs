//! Elastic jobs: ranks are killed, the others go on with the right sums, and replacements are let in.

use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

use crate::process::{End, Folder, Run, example, ringway};

/// A rank of a generation, as it says itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Said {
    generation: u64,
    rank: u32,
    ranks: u32,
    pid: i32,
    carried: u32,
}

impl Said {
    fn read(line: &str) -> Said {
        let numbers: Vec<u64> = line
            .split(|c: char| !c.is_ascii_digit())
            .filter(|digits| !digits.is_empty())
            .map(|digits| digits.parse().unwrap())
            .collect();
        let [generation, rank, ranks, pid, carried, _step] = numbers[..] else { panic!("{line}") };
        Said { generation, rank: rank as u32, ranks: ranks as u32, pid: pid as i32, carried: carried as u32 }
    }
}

fn start(options: &[&str], stop: &str) -> Run {
    let mut command = ringway(&["run"]);
    command.args(options).args(["--", example("elastic"), "0", stop]);
    Run::start(command)
}

/// All members of the next generation of so many ranks; smaller ones that come before are passed over.
fn generation_of(run: &Run, ranks: u32) -> Vec<Said> {
    let mut said: Vec<Said> = Vec::new();
    loop {
        let next = Said::read(&run.line());
        if said.first().is_some_and(|first| first.generation != next.generation) {
            said.clear();
        }
        said.push(next);
        if said.len() == ranks as usize && said.iter().all(|member| member.ranks == ranks) {
            said.sort();
            assert!(said.iter().zip(0..).all(|(member, rank)| member.rank == rank), "{said:?}");
            return said;
        }
    }
}

fn kill(member: &Said, signal: Signal) {
    kill_process(Pid::from_raw(member.pid).unwrap(), signal).expect("the rank is there");
}

/// Descriptors that a process has open.
fn descriptors(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the process is there").count()
}

/// Waits until a process has no more descriptors than it had: those of the group before it closes by and by.
fn has_no_more_than(pid: i32, had: usize) {
    let until = Instant::now() + Duration::from_secs(30);
    while descriptors(pid) > had {
        assert!(Instant::now() < until, "process {pid} has {} descriptors, {had} before", descriptors(pid));
        std::thread::yield_now();
    }
}

/// All ranks came to the end with the same total, which each of them has checked.
fn ended_well(end: &End, ranks: u32) {
    let (done, mut totals): (Vec<&String>, Vec<&str>) =
        end.stdout.iter().filter_map(|line| Some((line, line.split_once(" is done after ")?.1))).unzip();
    totals.dedup();
    assert!(end.code() == 0 && done.len() == ranks as usize && totals.len() == 1, "{end:?}");
}

#[test]
fn survivors_go_on_and_a_replacement_is_let_in() {
    let folder = Folder::new("elastic");
    let stop = folder.path_of("stop");
    let run = start(&["-n", "3", "--min-ranks", "2", "--restarts", "4"], &stop);
    let mut before = generation_of(&run, 3);
    assert_eq!((before[0].generation, before[0].carried), (1, 0));
    // Rank 0, which has the state that newcomers get, then another, and more of them.
    let (launcher, lasting) = (run.child.id() as i32, before[1].pid);
    let mut had = None;
    for victim in [0, 2, 2, 1] {
        kill(&before[victim], Signal::KILL);
        let after = generation_of(&run, 3);
        let survivors: Vec<i32> =
            before.iter().filter(|member| member.rank != victim as u32).map(|member| member.pid).collect();
        let first: Vec<i32> = after[..2].iter().map(|member| member.pid).collect();
        assert_eq!(first, survivors, "who was there comes first, in the order of before");
        assert!(before.iter().all(|member| member.pid != after[2].pid), "{before:?} {after:?}");
        assert!(after.iter().all(|member| member.carried == 2), "{after:?}");
        let (by_launcher, by_rank) =
            *had.get_or_insert_with(|| (descriptors(launcher), descriptors(lasting)));
        has_no_more_than(launcher, by_launcher);
        has_no_more_than(lasting, by_rank);
        before = after;
    }
    std::fs::write(&stop, "").unwrap();
    let end = run.end();
    ended_well(&end, 3);
    assert!(end.stderr.contains("was killed by SIGKILL; starting it again, 0 restarts left"), "{end:?}");
}

#[test]
fn a_job_goes_on_with_fewer_and_ends_below_the_least() {
    let folder = Folder::new("elastic-fewer");
    let stop = folder.path_of("stop");
    let run = start(&["-n", "3", "--min-ranks", "2"], &stop);
    let all = generation_of(&run, 3);
    kill(&all[1], Signal::KILL);
    let two = generation_of(&run, 2);
    assert_eq!([two[0].pid, two[1].pid], [all[0].pid, all[2].pid]);
    kill(&two[1], Signal::KILL);
    let end = run.end();
    assert_eq!(end.code(), 137, "{end:?}");
    assert!(end.stderr.contains("was killed by SIGKILL; 2 ranks go on"), "{end:?}");
    assert!(end.stderr.contains("was killed by SIGKILL; ending the other 1 rank"), "{end:?}");
}

#[test]
fn all_ranks_hear_that_one_is_told_to_end() {
    let folder = Folder::new("elastic-told");
    let stop = folder.path_of("stop");
    // One rank alone; then the launcher, whose ranks all get the signal.
    let run = start(&["-n", "3", "--min-ranks", "3"], &stop);
    kill(&generation_of(&run, 3)[1], Signal::TERM);
    ended_well(&run.end(), 3);
    let run = start(&["-n", "2"], &stop);
    generation_of(&run, 2);
    run.signal(Signal::TERM);
    ended_well(&run.end(), 2);
}

#[test]
fn limits_that_cannot_be_are_refused() {
    for (options, says) in [
        (&["-n", "2", "--min-ranks", "3"][..], "3 to 2 ranks, and 2 to start"),
        (&["-n", "2", "--min-ranks", "1", "--max-ranks", "1"], "1 to 1 ranks, and 2 to start"),
        (&["-n", "2", "--restarts", "1"], "--min-ranks"),
    ] {
        let mut command = ringway(&["run"]);
        command.args(options).args(["--", "true"]);
        let end = Run::start(command).end();
        assert!(end.code() != 0 && end.stderr.contains(says), "{options:?}: {end:?}");
    }
}
