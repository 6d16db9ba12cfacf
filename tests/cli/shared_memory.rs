//! Shared memory between the ranks of a host: when it is used, what is said where it is not, and what is left behind.

use crate::process::{End, Folder, Run, ringway};
use rustix::process::{Pid, Signal, kill_process};

fn bench(environment: &[(&str, &str)]) -> End {
    let mut command = ringway(&["bench", "all-reduce", "-n", "2", "--sizes", "8,300K", "--iters", "2"]);
    command.envs(environment.iter().copied());
    Run::start(command).end()
}

fn transports(end: &End) -> Vec<&str> {
    let rows = end.stdout.iter().filter(|l| !l.starts_with('#'));
    rows.filter_map(|row| row.split_whitespace().last()).collect()
}

#[test]
fn where_it_is_not_used_each_rank_says_why() {
    for environment in [("RINGWAY_SHM", "off"), ("RINGWAY_NET", "^shm")] {
        let end = bench(&[environment]);
        assert_eq!(end.code(), 0, "{end:?}");
        assert!(transports(&end).iter().all(|t| ["uring", "epoll"].contains(t)), "{end:?}");
    }
    // One rank alone switches it off: both say so.
    let script =
        "[ $RINGWAY_RANK = 1 ] && export RINGWAY_SHM=off; exec \"$0\" bench all-reduce --sizes 8 --iters 2";
    let command = ringway(&["run", "-n", "2", "--", "sh", "-c", script, env!("CARGO_BIN_EXE_ringway")]);
    let end = Run::start(command).end();
    assert_eq!(end.code(), 0, "{end:?}");
    let told = end.stdout.iter().filter(|l| l.contains("(not shm: ") && l.contains("RINGWAY_SHM=off"));
    assert_eq!(told.count(), 2, "{end:?}");
}

#[test]
fn plain_memory_is_read_across_processes_where_that_is_asked_for() {
    let end = bench(&[("RINGWAY_SHM_CMA", "on")]);
    assert!(end.code() == 0 && transports(&end) == ["shm", "shm"], "{end:?}");
    // Where the system forbids it, it is the system that is named.
    let ways = ["its other memory is read by process_vm_readv", "through the queue (process_vm_readv: "];
    let told = end.stdout.iter().filter(|l| ways.iter().any(|way| l.contains(way)));
    assert_eq!(told.count(), 2, "{end:?}");
    // One rank alone asks for it: all the same.
    let script = "[ $RINGWAY_RANK = 1 ] && export RINGWAY_SHM_CMA=on; exec \"$0\" bench all-reduce --plain --sizes 300K --iters 2";
    let command = ringway(&["run", "-n", "2", "--", "sh", "-c", script, env!("CARGO_BIN_EXE_ringway")]);
    let end = Run::start(command).end();
    assert!(end.code() == 0 && transports(&end) == ["shm"], "{end:?}");
    assert!(end.stdout.iter().any(|l| l.contains("read through the queue (as chosen)")), "{end:?}");
}

#[test]
fn it_is_required_or_an_error() {
    let end = bench(&[("RINGWAY_SHM", "require")]);
    assert!(end.code() == 0 && transports(&end) == ["shm", "shm"], "{end:?}");
    let script = "[ $RINGWAY_RANK = 1 ] && export RINGWAY_SHM=off || export RINGWAY_SHM=require; \
                  exec \"$0\" bench all-reduce --sizes 8 --iters 2";
    let command = ringway(&["run", "-n", "2", "--", "sh", "-c", script, env!("CARGO_BIN_EXE_ringway")]);
    let end = Run::start(command).end();
    assert_ne!(end.code(), 0);
    assert!(end.stderr.contains("not shm: ") && end.stderr.contains("RINGWAY_SHM=off"), "{end:?}");
}

#[test]
fn killed_ranks_leave_nothing_in_shared_memory() {
    // S2
    let files = || -> Vec<_> {
        let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        entries.map(|e| e.file_name()).filter(|n| n.to_string_lossy().contains("ringway")).collect()
    };
    let folder = Folder::new("killed");
    let mut command =
        ringway(&["bench", "all-reduce", "-n", "2", "--sizes", "1M", "--iters", "1000000", "-w", "1"]);
    command.env("RINGWAY_RUNTIME_DIR", folder.path_of("sockets")).env("TMPDIR", folder.path_of(""));
    let run = Run::start(command);
    let mut pids = Vec::new();
    while pids.len() < 2 {
        if let Some((_, pid)) = run.line().split_once(" pid ") {
            pids.push(pid.split(':').next().unwrap().parse().unwrap());
        }
    }
    while !run.line().contains("(elements)") {}
    for pid in pids {
        // The second may have ended by the death of the first.
        let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
    }
    assert_ne!(run.end().code(), 0);
    assert_eq!(files(), Vec::<std::ffi::OsString>::new());
    // Nor a status socket, which a rank that was killed cannot remove.
    let left = |at: &str| std::fs::read_dir(folder.path_of(at)).unwrap().count();
    assert_eq!((left("sockets"), left("")), (0, 1));
}
