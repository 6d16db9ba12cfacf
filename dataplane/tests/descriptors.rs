//! A process that has no file descriptor left says so, and does not blame the peer. Alone in its process, as the limit
//! is the process's.
#![forbid(unsafe_code)]

use ringway_dataplane::memory::Pool;
use ringway_dataplane::transport::{
    CauseKind, Event, Keyring, Op, OpError, OpId, Peer, Stamp, Tag, Transport,
};
use ringway_dataplane::uring::{Bind, Config, TcpTransport};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

/// Files that the process may have open.
const FILES: u64 = 256;
const DEADLINE: Duration = Duration::from_secs(20);

fn transport(me: u32) -> TcpTransport {
    let at = vec![Bind::new(IpAddr::V4(Ipv4Addr::LOCALHOST), "lo")];
    TcpTransport::new(Config::new(me, Keyring::of([9; 32]), 100 + u64::from(me), at)).unwrap()
}

#[test]
fn a_process_without_descriptors_names_its_own_limit() {
    let (mut a, b) = (transport(0), transport(1));
    a.connect(Peer(1), &b.address()).unwrap();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: Some(FILES), ..limit }).unwrap();
    let mut region = Pool::default().region(8).unwrap();
    let send = Op::Send {
        to: Peer(1),
        tag: Tag { group: 1, lane: 0 },
        stamp: Stamp::default(),
        bytes: region.lend_read(0..8).unwrap(),
    };
    let all_there_are: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
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
    drop(all_there_are);
    assert_eq!(cause.kind, CauseKind::Local, "{cause:?}");
    assert!(cause.evidence.contains(&format!("limit, {FILES}")), "{cause:?}");
    assert!(cause.evidence.contains("ulimit -n"), "{cause:?}");
}
