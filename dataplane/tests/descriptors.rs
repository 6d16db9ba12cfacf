//! A process that has no file descriptor left, or may not make files as long as shared memory needs, says so, and does not
//! blame the peer. Alone in its process, as the limits are the process's.
#![forbid(unsafe_code)]

use ringway_dataplane::memory::Pool;
use ringway_dataplane::shm::{self, ShmTransport};
use ringway_dataplane::transport::{
    Address, Cause, CauseKind, Event, Keyring, Op, OpError, OpId, Peer, Stamp, Tag, Transport,
};
use ringway_dataplane::uring::{Bind, Config, TcpTransport};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Files that the process may have open.
const FILES: u64 = 256;
const DEADLINE: Duration = Duration::from_secs(60);

fn tcp(me: u32) -> TcpTransport {
    let at = vec![Bind::new(IpAddr::V4(Ipv4Addr::LOCALHOST), "lo")];
    TcpTransport::new(Config::new(me, Keyring::of([9; 32]), 100 + u64::from(me), at)).unwrap()
}

fn shared_memory(me: u32) -> ShmTransport {
    let config = shm::Config::new(me, Keyring::of([9; 32]), 100 + u64::from(me));
    ShmTransport::new(config).unwrap()
}

/// Why peer 1 cannot be reached while `held` is.
fn cause_while<T>(a: &mut impl Transport, address: &Address, held: impl FnOnce() -> T) -> Cause {
    a.connect(Peer(1), address).unwrap();
    let mut region = Pool::default().region(8).unwrap();
    let send = Op::Send {
        to: Peer(1),
        tag: Tag { group: 1, lane: 0 },
        stamp: Stamp::default(),
        bytes: region.lend_read(0..8).unwrap(),
    };
    let held = held();
    a.post(OpId(1), send).unwrap();
    let (began, mut events) = (Instant::now(), Vec::new());
    let cause = loop {
        a.poll(&mut events);
        let ended = events.drain(..).find_map(|e| if let Event::Done(done) = e { Some(done) } else { None });
        if let Some(done) = ended {
            let Err(OpError::PeerLost { cause, .. }) = &done.result else { panic!("{:?}", done.result) };
            let cause = cause.clone();
            region.restore(done.lease).unwrap();
            break cause;
        }
        assert!(began.elapsed() < DEADLINE, "nothing happens");
    };
    drop(held);
    assert_eq!(cause.kind, CauseKind::Local, "{cause:?}");
    cause
}

#[test]
fn a_process_at_its_limits_names_them() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(FILES), ..limit }).unwrap();
    let all_there_are = || std::iter::from_fn(|| File::open("/dev/null").ok()).collect::<Vec<File>>();
    let b = tcp(1);
    let by_tcp = cause_while(&mut tcp(0), &b.address(), all_there_are);
    let b = shared_memory(1);
    let by_memory = cause_while(&mut shared_memory(0), &b.address(), all_there_are);
    for cause in [by_tcp, by_memory] {
        assert!(cause.evidence.contains(&format!("limit, {FILES}")), "{cause:?}");
        assert!(cause.evidence.contains("ulimit -n"), "{cause:?}");
    }
    // The word of a process fits, its queues do not.
    let limit = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: Some(64 << 10), ..limit }).unwrap();
    let (mut a, mut b) = (shared_memory(0), shared_memory(1));
    b.connect(Peer(0), &a.address()).unwrap();
    let stop = AtomicBool::new(false);
    let cause = std::thread::scope(|scope| {
        let at = b.address();
        scope.spawn(|| {
            let began = Instant::now();
            while !stop.load(Ordering::Relaxed) && began.elapsed() < 2 * DEADLINE {
                b.poll(&mut Vec::new());
            }
        });
        let cause = cause_while(&mut a, &at, || ());
        stop.store(true, Ordering::Relaxed);
        cause
    });
    // What is written of the test's end may go to a file that is longer already.
    setrlimit(Resource::Fsize, limit).unwrap();
    assert!(cause.evidence.contains("ulimit -f"), "{cause:?}");
}
