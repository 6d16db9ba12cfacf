//! Ranks as threads of this process, over loopback.

use ringway_collectives::engine::{Communicator, EngineOptions, GroupInfo, Member};
use ringway_dataplane::transport::{Hub, LoopbackConfig, Peer, Transport};
use ringway_topology::model::order::Site;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Longer than any test here takes on a busy machine; a hang ends the process with the test's name.
const HANG: Duration = Duration::from_secs(120);

/// Ends the process if `f` hangs.
pub(crate) fn within<R>(what: &str, f: impl FnOnce() -> R) -> R {
    let (done, waits) = channel::<()>();
    let name = what.to_owned();
    let watch = std::thread::spawn(move || {
        if waits.recv_timeout(HANG) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{name} hangs");
            std::process::exit(101);
        }
    });
    let result = f();
    drop(done);
    watch.join().expect("the watch only waits");
    result
}

pub(crate) fn members(n: u32) -> Vec<Member> {
    (0..n)
        .map(|r| Member {
            peer: Peer(r),
            host: "here".into(),
            pid: 1000 + r,
            incarnation: 1,
            site: Site::default(),
        })
        .collect()
}

pub(crate) fn communicator(
    transport: impl Transport + 'static,
    rank: u32,
    n: u32,
    options: &EngineOptions,
) -> Communicator {
    let group = GroupInfo { id: 1, my_rank: rank, members: members(n) };
    Communicator::new(Box::new(transport), group, options.clone()).expect("a well-formed group")
}

/// Runs `f` on `n` ranks, each a thread; what they return, in rank order.
pub(crate) fn ranks<R: Send>(
    n: u32,
    config: LoopbackConfig,
    options: &EngineOptions,
    f: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let group = Hub::new(config).group(n).expect("file descriptors for the group");
    ranks_over(group, &format!("{n} ranks, {config:?}"), options, f)
}

/// As [`ranks`], over the given transports, which know each other.
pub(crate) fn ranks_over<R: Send>(
    transports: Vec<impl Transport + 'static>,
    what: &str,
    options: &EngineOptions,
    f: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let n = transports.len() as u32;
    within(what, || {
        std::thread::scope(|scope| {
            let threads: Vec<_> = transports
                .into_iter()
                .zip(0..)
                .map(|(transport, rank)| {
                    let f = &f;
                    scope.spawn(move || f(communicator(transport, rank, n, options)))
                })
                .collect();
            threads.into_iter().map(|t| t.join().expect("no rank panics")).collect()
        })
    })
}
