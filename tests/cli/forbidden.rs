//! Where io_uring is forbidden, as container engines do by default: the epoll driver takes its place and is named, and
//! whoever asked for io_uring by name is told.

use crate::process::{End, Run, ringway};
use rustix::io::Errno;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// The number of io_uring_setup, the same on every architecture.
const IO_URING_SETUP: i64 = 425;

/// As [`bench_without`], of io_uring_setup.
fn bench_without_uring(errno: Errno, environment: &'static [(&str, &str)]) -> End {
    bench_without(IO_URING_SETUP, errno, environment)
}

/// `ringway bench` of two ranks in an otherwise empty environment, under a filter that answers a system call with `errno`.
/// Needs no privilege. A filter holds for the thread that installs it and for what is started from there.
fn bench_without(call: i64, errno: Errno, environment: &'static [(&str, &str)]) -> End {
    let confined = move || {
        let refuse = SeccompAction::Errno(errno.raw_os_error().unsigned_abs());
        let rules = [(call, Vec::new())].into_iter().collect();
        let filter = SeccompFilter::new(
            rules,
            SeccompAction::Allow,
            refuse,
            std::env::consts::ARCH.try_into().expect("seccompiler knows this architecture"),
        );
        let program: BpfProgram = filter.and_then(TryInto::try_into).expect("a filter of one rule");
        seccompiler::apply_filter(&program).expect("the system lets a process confine itself");
        let mut command = ringway(&["bench", "all-reduce", "-n", "2", "--sizes", "4,300K", "--iters", "2"]);
        command.env_clear().envs(environment.iter().copied());
        Run::start(command).end()
    };
    std::thread::spawn(confined).join().expect("the filter is in force")
}

#[test]
fn epoll_takes_the_place_of_a_forbidden_io_uring_and_is_named() {
    for (errno, words) in
        [(Errno::PERM, "Operation not permitted"), (Errno::NOSYS, "Function not implemented")]
    {
        let end = bench_without_uring(errno, &[("RINGWAY_NET", "tcp")]);
        assert_eq!(end.code(), 0, "{end:?}");
        let rows: Vec<&String> = end.stdout.iter().filter(|l| !l.starts_with('#')).collect();
        assert_eq!(rows.len(), 2, "{end:?}");
        for row in rows {
            let columns: Vec<&str> = row.split_whitespace().collect();
            assert_eq!((columns[8], columns.last()), ("0", Some(&"epoll")), "#wrong and transport of {row}");
        }
        let why = format!("driver epoll (io_uring refused: {words}");
        let told = end.stdout.iter().filter(|l| l.contains(" by epoll: ") && l.contains(&why));
        assert_eq!(told.count(), 2, "each rank says why: {end:?}");
    }
}

#[test]
fn a_forbidden_io_uring_that_was_asked_for_is_an_error_on_every_rank() {
    for errno in [Errno::PERM, Errno::NOSYS] {
        let end = bench_without_uring(errno, &[("RINGWAY_IO_DRIVER", "uring")]);
        assert_ne!(end.code(), 0, "{end:?}");
        for rank in 0..2 {
            let begins = format!("ringway bench: rank {rank}: no way to move data: io_uring was asked for");
            let line = end.stderr.lines().find(|l| l.starts_with(&begins));
            let line = line.unwrap_or_else(|| panic!("rank {rank} says nothing: {end:?}"));
            assert!(line.contains("seccomp") && line.contains("RINGWAY_IO_DRIVER=auto"), "{line}");
        }
    }
}

#[test]
fn ranks_that_may_not_read_each_others_memory_exchange_it_all_the_same() {
    // process_vm_readv, as container engines forbid it without a ptrace capability; memfd_create, as nobody should.
    const PROCESS_VM_READV: i64 = if cfg!(target_arch = "x86_64") { 310 } else { 270 };
    const MEMFD_CREATE: i64 = if cfg!(target_arch = "x86_64") { 319 } else { 279 };
    for (call, transport, words) in [
        (PROCESS_VM_READV, "shm", "its other memory is read through the queue (process_vm_readv: "),
        (MEMFD_CREATE, "uring", "not shm: the system refused what shared memory needs"),
    ] {
        let end = bench_without(call, Errno::PERM, &[("RINGWAY_SHM_CMA", "on")]);
        assert_eq!(end.code(), 0, "{end:?}");
        let rows: Vec<&String> = end.stdout.iter().filter(|l| !l.starts_with('#')).collect();
        assert_eq!(rows.len(), 2, "{end:?}");
        for row in rows {
            let columns: Vec<&str> = row.split_whitespace().collect();
            let last = columns.last().map(|last| if *last == "epoll" { "uring" } else { last });
            assert_eq!((columns[8], last), ("0", Some(transport)), "{row}");
        }
        assert_eq!(end.stdout.iter().filter(|l| l.contains(words)).count(), 2, "each rank says why: {end:?}");
    }
}
