//! Two transports in one process, over real sockets.
#![forbid(unsafe_code)]

mod at_once;
mod goodbye;
mod hostile;
mod puppet;
mod registering;

use super::driver::probe_uring;
use super::{Bind, Config, DriverChoice, TcpTransport};
use crate::memory::{Pool, Region};
use crate::transport::{
    Completion, Event, Keyring, Note, Op, OpId, Peer, RegisterError, Stamp, Tag, Transport,
};
use std::net::IpAddr;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(60);

fn config(me: u32, ip: &str, driver: DriverChoice) -> Config {
    let ip: IpAddr = ip.parse().unwrap();
    Config {
        driver,
        connect_timeout_ms: 5_000,
        ..Config::new(me, Keyring::of([9; 32]), 100 + u64::from(me), vec![Bind::new(ip, "lo")])
    }
}

fn pair(of: impl Fn(u32) -> Config) -> (TcpTransport, TcpTransport) {
    let (mut a, mut b) = (TcpTransport::new(of(0)).unwrap(), TcpTransport::new(of(1)).unwrap());
    a.connect(Peer(1), &b.address()).unwrap();
    b.connect(Peer(0), &a.address()).unwrap();
    (a, b)
}

fn tag(lane: u32) -> Tag {
    Tag { group: 1, lane }
}

fn filled(pool: &Pool, len: usize, seed: u8) -> Region {
    let mut region = pool.region(len).unwrap();
    for (i, b) in region.bytes_mut(0..len).unwrap().iter_mut().enumerate() {
        *b = (i as u8).wrapping_mul(31).wrapping_add(seed);
    }
    region
}

fn until(
    a: &mut TcpTransport,
    b: &mut TcpTransport,
    mut done: impl FnMut(&mut Vec<Event>, &mut Vec<Event>) -> bool,
) {
    let (began, mut of_a, mut of_b) = (Instant::now(), Vec::new(), Vec::new());
    loop {
        a.poll(&mut of_a);
        b.poll(&mut of_b);
        if done(&mut of_a, &mut of_b) {
            return;
        }
        assert!(began.elapsed() < DEADLINE, "nothing more happens; events: {of_a:?} {of_b:?}");
    }
}

fn completion(event: Event) -> Completion {
    match event {
        Event::Done(c) => c,
        other => panic!("not a completion: {other:?}"),
    }
}

fn exchange(ip: &str, driver: DriverChoice, eager_bytes: u32) {
    let (mut a, mut b) = pair(|me| Config { eager_bytes, ..config(me, ip, driver) });
    let pool = Pool::default();
    for (n, len) in [0usize, 1, 7, 64, 1000, 8192, 8193, 65_535, 65_536, 65_537, 1 << 20, (3 << 20) + 1]
        .into_iter()
        .enumerate()
    {
        let mut source = filled(&pool, len, n as u8);
        let mut target = pool.region(len).unwrap();
        for registered in [a.register(&source), b.register(&target)] {
            let useful = a.caps().registers && len > 0;
            match registered {
                Ok(_) => assert!(useful),
                // An ordinary user's locked memory is used up, and the bytes travel all the same.
                Err(e @ RegisterError::Refused { .. }) => {
                    assert!(useful && registering::room_bytes().is_some(), "{e}");
                }
                Err(RegisterError::Useless) => assert!(!useful),
                Err(e) => panic!("{e}"),
            }
        }
        let send = Op::Send {
            to: Peer(1),
            tag: tag(3),
            stamp: Stamp::default(),
            bytes: source.lend_read(0..len).unwrap(),
        };
        let recv = Op::Recv {
            from: Peer(0),
            tag: tag(3),
            stamp: Stamp::default(),
            into: target.lend_write(0..len).unwrap(),
        };
        if n % 2 == 0 {
            a.post(OpId(1), send).unwrap();
            b.post(OpId(2), recv).unwrap();
        } else {
            b.post(OpId(2), recv).unwrap();
            a.post(OpId(1), send).unwrap();
        }
        let mut leases = Vec::new();
        until(&mut a, &mut b, |x, y| {
            leases.extend(x.drain(..).chain(y.drain(..)).map(completion));
            leases.len() == 2
        });
        for c in leases {
            assert_eq!(c.result, Ok(()), "{len} bytes");
            if c.id == OpId(1) { source.restore(c.lease).unwrap() } else { target.restore(c.lease).unwrap() }
        }
        assert_eq!(source.bytes(0..len).unwrap(), target.bytes(0..len).unwrap(), "{len} bytes");
        a.deregister(source.id());
        b.deregister(target.id());
    }
    assert!(a.why(Peer(1)).unwrap().contains("same host"), "{:?}", a.why(Peer(1)));
    a.leave(1000);
    let mut events = Vec::new();
    while events.is_empty() {
        b.poll(&mut events);
    }
    assert!(matches!(events[..], [Event::Left { peer: Peer(0) }]), "{events:?}");
}

/// Whether io_uring is to be had; says so if not.
fn has_uring() -> bool {
    let refused = probe_uring().err();
    if let Some(e) = &refused {
        println!("skipped: io_uring is missing: {e}");
    }
    refused.is_none()
}

#[test]
fn every_size_travels_by_io_uring() {
    if !has_uring() {
        return;
    }
    exchange("127.0.0.1", DriverChoice::Uring, 64 << 10);
    exchange("::1", DriverChoice::Uring, 0);
}

#[test]
fn every_size_travels_by_plain_calls() {
    exchange("127.0.0.1", DriverChoice::Epoll, 0);
    exchange("::1", DriverChoice::Epoll, 64 << 10);
}

#[test]
fn sides_number_each_other_as_they_like() {
    // Whoever dials: first one side, then both at once. A third, of the same number here, is told apart by its address.
    let of = |me: u32| config(me, "127.0.0.1", DriverChoice::Auto);
    let mut a = TcpTransport::new(of(3_000_000_001)).unwrap();
    let mut b = TcpTransport::new(of(17)).unwrap();
    assert!(a.connect(Peer(5), &a.address()).is_err(), "its own address");
    a.connect(Peer(0), &b.address()).unwrap();
    b.connect(Peer(0), &a.address()).unwrap();
    let note =
        |t: &mut TcpTransport, text: &str| t.note(Peer(0), &Note::new(text.as_bytes()).unwrap()).unwrap();
    note(&mut a, "from a");
    let heard = |events: &mut Vec<Event>, text: &str| {
        events
            .iter()
            .any(|e| matches!(e, Event::Note { from: Peer(0), note } if note.bytes() == text.as_bytes()))
    };
    until(&mut a, &mut b, |_, of_b| heard(of_b, "from a"));
    let mut c = TcpTransport::new(of(17)).unwrap();
    let mut d = TcpTransport::new(Config { incarnation: 9, ..of(17) }).unwrap();
    c.connect(Peer(0), &d.address()).unwrap();
    d.connect(Peer(0), &c.address()).unwrap();
    note(&mut c, "from c");
    note(&mut d, "from d");
    until(&mut c, &mut d, |of_c, of_d| heard(of_c, "from d") && heard(of_d, "from c"));
}
