//! What is loopback's own; the contract is held by the conformance suite (`tests/conformance_loopback.rs`).

use super::*;
use crate::memory::{Pool, Region};
use crate::transport::op::{OpError, Stamp, Tag};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const TAG: Tag = Tag { group: 1, lane: 0 };

fn region(bytes: usize) -> Region {
    Pool::default().region(bytes).unwrap()
}

fn send(to: u32, tag: Tag, region: &mut Region, len: usize) -> Op {
    let bytes = region.lend_read(0..len).unwrap();
    Op::Send { to: Peer(to), tag, stamp: Stamp::default(), bytes }
}

fn recv(from: u32, tag: Tag, region: &mut Region, len: usize) -> Op {
    let into = region.lend_write(0..len).unwrap();
    Op::Recv { from: Peer(from), tag, stamp: Stamp::default(), into }
}

fn polled(t: &mut Loopback) -> Vec<Event> {
    let mut out = Vec::new();
    while t.poll(&mut out) {}
    out
}

/// A line per event, without addresses.
fn told(events: &[Event]) -> Vec<String> {
    let line = |e: &Event| match e {
        Event::Done(c) => format!("{} {:?}", c.id.0, c.result),
        other => format!("{other:?}"),
    };
    events.iter().map(line).collect()
}

/// Many tags between three members, polled in turn; everything that was told, in order.
fn played(seed: u64) -> Vec<Vec<String>> {
    let hub = Hub::new(LoopbackConfig { seed, eager_bytes: 16, depth: 32, reorder: true });
    let mut members = hub.group(3).unwrap();
    let mut regions: Vec<Vec<Region>> = (0..3).map(|_| (0..40).map(|_| region(64)).collect()).collect();
    let mut random = Seeded::new(seed);
    let mut tales = vec![Vec::new(); 3];
    for k in 0..20u64 {
        for me in 0..3u32 {
            let at = me as usize;
            let tag = Tag { group: 1, lane: random.below(4) as u32 };
            let (to, from) = ((me + 1) % 3, (me + 2) % 3);
            let len = if random.once_in(2) { 8 } else { 64 };
            let (k2, out) = (2 * k, &mut regions[at]);
            members[at].post(OpId(k2), send(to, tag, &mut out[k2 as usize], len)).unwrap();
            let k3 = 2 * k + 1;
            members[at].post(OpId(k3), recv(from, tag, &mut out[k3 as usize], len)).unwrap();
            let mut events = Vec::new();
            members[at].poll(&mut events);
            tales[at].extend(told(&events));
        }
    }
    for (member, tale) in members.iter_mut().zip(&mut tales) {
        tale.extend(told(&polled(member)));
    }
    tales
}

#[test]
fn one_thread_and_one_seed_replay() {
    for seed in 0..20 {
        assert_eq!(played(seed), played(seed), "seed {seed}");
    }
    assert!((1..20).any(|seed| played(seed) != played(0)));
}

#[test]
fn a_peer_may_send_before_it_is_introduced() {
    let hub = Hub::new(LoopbackConfig::default());
    let (mut a, mut b) = (hub.join(Peer(0)).unwrap(), hub.join(Peer(1)).unwrap());
    // b calls a by another number than the hub does.
    a.connect(Peer(1), &b.address()).unwrap();
    let mut ra = region(8);
    ra.bytes_mut(0..8).unwrap().fill(9);
    a.post(OpId(1), send(1, TAG, &mut ra, 8)).unwrap();
    a.note(Peer(1), &Note::new(b"hello").unwrap()).unwrap();
    assert!(polled(&mut b).is_empty());
    b.connect(Peer(7), &a.address()).unwrap();
    let mut rb = region(8);
    b.post(OpId(2), recv(7, TAG, &mut rb, 8)).unwrap();
    let events = polled(&mut b);
    assert!(matches!(&events[0], Event::Note { from: Peer(7), note } if note.bytes() == b"hello"));
    assert!(matches!(&events[1], Event::Done(c) if c.result.is_ok() && c.lease.bytes() == [9; 8]));
}

#[test]
fn bad_addresses_are_named() {
    let (hub, other) = (Hub::new(LoopbackConfig::default()), Hub::new(LoopbackConfig::default()));
    let (mut a, b) = (hub.join(Peer(0)).unwrap(), hub.join(Peer(1)).unwrap());
    let far = other.join(Peer(1)).unwrap();
    let bad = |r| matches!(r, Err(ConnectError::BadAddress { .. }));
    assert!(bad(a.connect(Peer(1), &Address(vec![1, 2]))));
    assert!(bad(a.connect(Peer(0), &a.address())));
    assert!(matches!(a.connect(Peer(1), &far.address()), Err(ConnectError::NoRoute { .. })));
    a.connect(Peer(1), &b.address()).unwrap();
    a.connect(Peer(1), &b.address()).unwrap();
    assert!(bad(a.connect(Peer(2), &b.address())));
}

#[test]
fn killed_members_are_lost_and_may_join_again() {
    let hub = Hub::new(LoopbackConfig::default());
    let mut members = hub.group(3).unwrap();
    let mut r = region(8);
    members[0].post(OpId(5), recv(2, TAG, &mut r, 8)).unwrap();
    hub.kill(Peer(2));
    let events = polled(&mut members[0]);
    assert_eq!(events.len(), 2, "{events:?}");
    let Event::Done(c) = &events[0] else { panic!("{events:?}") };
    let Err(OpError::PeerLost { peer: Peer(2), cause }) = &c.result else { panic!("{events:?}") };
    assert_eq!((cause.kind, cause.evidence.as_str()), (CauseKind::Closed, "peer 2 was killed"));
    assert!(matches!(&events[1], Event::Lost { peer: Peer(2), .. }));
    // Its own view: everybody is lost.
    assert_eq!(polled(&mut members[2]).len(), 2);
    // A new life has a new address, under which the others take it in again.
    let again = hub.join(Peer(2)).unwrap();
    assert_ne!(again.address(), members[2].address());
    members[0].connect(Peer(2), &again.address()).unwrap();
    let mut r = region(8);
    members[0].post(OpId(6), send(2, TAG, &mut r, 8)).unwrap();
    assert_eq!(told(&polled(&mut members[0])), ["6 Ok(())"]);
}

#[test]
fn threads_sleep_between_messages() {
    const ROUNDS: u64 = 2000;
    let hub = Hub::new(LoopbackConfig { eager_bytes: 0, depth: 1, ..LoopbackConfig::default() });
    let members = hub.group(2).unwrap();
    std::thread::scope(|scope| {
        for (me, mut t) in members.into_iter().enumerate() {
            scope.spawn(move || {
                let (mut r, mut out) = (region(8), Vec::new());
                let other = 1 - me as u32;
                for round in 0..ROUNDS {
                    let sends = (round + me as u64).is_multiple_of(2);
                    let op = if sends { send(other, TAG, &mut r, 8) } else { recv(other, TAG, &mut r, 8) };
                    t.post(OpId(round), op).unwrap();
                    while out.is_empty() {
                        if !t.poll(&mut out) && t.prepare_sleep() {
                            let mut fds = [PollFd::from_borrowed_fd(t.sleep_fd().unwrap(), PollFlags::IN)];
                            let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
                            assert_eq!(
                                poll(&mut fds, Some(&limit)),
                                Ok(1),
                                "L5: slept through round {round}"
                            );
                        }
                    }
                    let Event::Done(c) = out.remove(0) else { panic!("round {round}: {out:?}") };
                    assert_eq!((c.id, &c.result), (OpId(round), &Ok(())));
                    r.restore(c.lease).unwrap();
                }
                t.leave(1000);
            });
        }
    });
}
