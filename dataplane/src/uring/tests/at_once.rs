//! Small messages that go and are taken by one system call each.

use super::puppet::with_puppets;
use super::{DEADLINE, config, pair, tag, until};
use crate::memory::Pool;
use crate::transport::{Cause, CauseKind, Event, Found, Note, Op, OpId, Peer, Stamp, Tag, Transport};
use crate::uring::connection::Verdict;
use crate::uring::links::Way;
use crate::uring::wire::HEADER_BYTES;
use crate::uring::{Config, DriverChoice, TcpTransport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant};

const STAMP: Stamp = Stamp([1; 24]);
/// Enough for a byte on its way over loopback to come, as a rule; whoever needs more looks again.
const LOOKS: u32 = 1000;

/// Two that are connected and have nothing else to do.
fn connected(of: impl Fn(u32) -> Config) -> (TcpTransport, TcpTransport) {
    let (mut a, mut b) = pair(of);
    a.note(Peer(1), &Note::new(b"dial").unwrap()).unwrap();
    until(&mut a, &mut b, |_, of_b| of_b.iter().any(|e| matches!(e, Event::Note { .. })));
    (a, b)
}

fn look(t: &mut TcpTransport, from: u32, tag: Tag, stamp: &Stamp, len: usize) -> (Found, Vec<u8>) {
    let (began, mut got) = (Instant::now(), Vec::new());
    loop {
        let found =
            t.take_now(Peer(from), tag, (stamp, len), LOOKS, &mut |bytes| got.extend_from_slice(bytes));
        if found != Found::Nothing {
            return (found, got);
        }
        assert!(began.elapsed() < DEADLINE, "nothing comes");
    }
}

#[test]
fn a_small_message_is_taken_where_it_is_next() {
    for driver in [DriverChoice::Auto, DriverChoice::Epoll] {
        let (mut a, mut b) = connected(|me| config(me, "127.0.0.1", driver));
        let mut nothing = |_: &[u8]| panic!("nothing was sent");
        assert_eq!(b.take_now(Peer(0), tag(3), (&STAMP, 100), 1, &mut nothing), Found::Nothing);
        assert!(a.send_now(Peer(1), tag(3), &STAMP, &[5; 100]));
        // What is not expected is kept for whoever expects it.
        assert_eq!(look(&mut b, 0, tag(4), &STAMP, 100).0, Found::Other);
        assert_eq!(look(&mut b, 0, tag(3), &Stamp([2; 24]), 100).0, Found::Other);
        assert_eq!(look(&mut b, 0, tag(3), &STAMP, 99).0, Found::Other);
        assert_eq!(look(&mut b, 0, tag(3), &STAMP, 100), (Found::Message, vec![5; 100]));
        // Of what comes together each is found, also behind and before a note.
        assert!(a.send_now(Peer(1), tag(3), &STAMP, &[6; 8]) && a.send_now(Peer(1), tag(3), &STAMP, &[]));
        a.note(Peer(1), &Note::new(b"between").unwrap()).unwrap();
        assert!(!a.send_now(Peer(1), tag(3), &STAMP, &[7; 8]), "it must not overtake the note");
        let mut of_b = Vec::new();
        a.poll(&mut Vec::new());
        assert!(a.send_now(Peer(1), tag(3), &STAMP, &[7; 8]));
        for expected in [vec![6; 8], vec![], vec![7; 8]] {
            let (began, mut found) = (Instant::now(), (Found::Other, Vec::new()));
            while found.0 != Found::Message {
                assert!(began.elapsed() < DEADLINE, "{expected:?} does not come");
                found = look(&mut b, 0, tag(3), &STAMP, expected.len());
                b.poll(&mut of_b);
            }
            assert_eq!(found.1, expected);
        }
        assert!(matches!(&of_b[..], [Event::Note { note, .. }] if note.bytes() == b"between"), "{of_b:?}");
    }
}

#[test]
fn a_stream_that_is_only_taken_gives_its_room_back() {
    let (mut a, mut b) = connected(|me| config(me, "127.0.0.1", DriverChoice::Auto));
    let began = Instant::now();
    // Over twice the window.
    for round in 0..10_000u32 {
        let content = [round as u8; 1000];
        while !a.send_now(Peer(1), tag(3), &STAMP, &content) {
            assert!(began.elapsed() < DEADLINE, "round {round}: no room comes back");
            a.poll(&mut Vec::new());
        }
        assert_eq!(
            look(&mut b, 0, tag(3), &STAMP, 1000),
            (Found::Message, content.to_vec()),
            "round {round}"
        );
    }
    assert_eq!((a.copies().copied_bytes, b.copies().copied_bytes), (10_000_000, 10_000_000));
}

#[test]
fn what_a_full_socket_does_not_take_goes_later() {
    let small =
        |me| Config { socket_buffer_bytes: Some(8 << 10), ..config(me, "127.0.0.1", DriverChoice::Auto) };
    let (mut a, mut b) = connected(small);
    let mut sent = 0u32;
    while a.send_now(Peer(1), tag(3), &STAMP, &[sent as u8; 5000]) {
        sent += 1;
        assert!(sent < 800, "the socket takes everything");
    }
    assert!(sent > 0);
    let (began, mut taken) = (Instant::now(), 0);
    while taken < sent {
        assert!(began.elapsed() < DEADLINE, "{taken} of {sent}");
        a.poll(&mut Vec::new());
        let (mut got, len) = (Vec::new(), 5000);
        let take = &mut |bytes: &[u8]| got.extend_from_slice(bytes);
        match b.take_now(Peer(0), tag(3), (&STAMP, len), LOOKS, take) {
            Found::Message => {
                assert_eq!(got, [taken as u8; 5000], "message {taken}");
                taken += 1;
            }
            // Half of it is here.
            _ => drop(b.poll(&mut Vec::new())),
        }
    }
}

/// Whether what a sleeper waits on is ready within `wait`.
fn wakes(t: &TcpTransport, wait: Duration) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(t.sleep_fd().unwrap(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::try_from(wait).unwrap())).unwrap() > 0
}

#[test]
fn room_wakes_whoever_sleeps_while_another_thread_sends() {
    for driver in [DriverChoice::Auto, DriverChoice::Epoll] {
        let small = Config { socket_buffer_bytes: Some(8 << 10), ..config(0, "127.0.0.1", driver) };
        // A peer that only reads: nothing that it says wakes anybody.
        let (mut t, mut streams) = with_puppets(small, 1);
        while !t.prepare_sleep() {
            t.poll(&mut Vec::new());
        }
        let mut sent = 0;
        while t.send_now(Peer(1), tag(3), &STAMP, &[sent as u8; 5000]) {
            sent += 1;
        }
        let channel = t.links[t.link_of(1).unwrap() as usize].channel.as_ref().unwrap();
        assert!(matches!(&channel.way, Way::Up(c) if c.has_output()), "the socket took {sent} messages");
        let (began, mut read, all) = (Instant::now(), 0, sent * (HEADER_BYTES + 5000));
        let (mut awake, mut bytes) = (false, vec![0; 64 << 10]);
        streams[0].set_nonblocking(true).unwrap();
        while read < all {
            assert!(began.elapsed() < DEADLINE, "{read} of {all} bytes; awake: {awake}");
            match streams[0].read(&mut bytes) {
                Ok(n) => read += n,
                Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
            }
            awake |= wakes(&t, Duration::ZERO);
            if awake {
                t.poll(&mut Vec::new());
            }
        }
        while !t.prepare_sleep() {
            t.poll(&mut Vec::new());
        }
        assert!(!wakes(&t, Duration::from_millis(1)), "room is not waited for any more");
    }
}

#[test]
fn whoever_waits_for_a_message_hears_of_the_end() {
    // T11: what came before the goodbye is taken all the same.
    let (mut a, mut b) = connected(|me| config(me, "127.0.0.1", DriverChoice::Auto));
    assert!(a.send_now(Peer(1), tag(3), &STAMP, &[5; 100]));
    a.leave(1000);
    assert_eq!(look(&mut b, 0, tag(3), &STAMP, 100), (Found::Message, vec![5; 100]));
    assert_eq!(look(&mut b, 0, tag(3), &STAMP, 100).0, Found::Other);
    let (began, mut of_b) = (Instant::now(), Vec::new());
    while of_b.is_empty() {
        assert!(began.elapsed() < DEADLINE, "no goodbye");
        b.poll(&mut of_b);
    }
    assert!(matches!(of_b[..], [Event::Left { peer: Peer(0) }]), "{of_b:?}");
    assert!(!b.send_now(Peer(0), tag(3), &STAMP, &[1]), "to nobody");
}

#[test]
fn what_a_peer_said_last_is_told_before_its_end() {
    let (mut a, mut b) = connected(|me| config(me, "127.0.0.1", DriverChoice::Auto));
    a.note(Peer(1), &Note::new(b"why").unwrap()).unwrap();
    // Returns when the other's host has everything.
    a.leave(1000);
    assert_eq!(look(&mut b, 0, tag(3), &STAMP, 8).0, Found::Other);
    assert!(!b.send_now(Peer(0), tag(3), &STAMP, &[1]), "to nobody");
    // Refusing this would tell of the end.
    let mut into = Pool::default().region(8).unwrap();
    let into = into.lend_write(0..8).unwrap();
    b.post(OpId(1), Op::Recv { from: Peer(0), tag: tag(3), stamp: STAMP, into }).unwrap();
    let (began, mut of_b) = (Instant::now(), Vec::new());
    while of_b.len() < 3 {
        assert!(began.elapsed() < DEADLINE, "{of_b:?}");
        b.poll(&mut of_b);
    }
    let [Event::Note { note, .. }, Event::Done(done), Event::Left { .. }] = &of_b[..] else {
        panic!("{of_b:?}")
    };
    assert!(note.bytes() == b"why" && done.result.is_err(), "{of_b:?}");
}

#[test]
fn a_peer_ends_once() {
    // Its goodbye is seen by a look, and this side gives it up before the next poll.
    let (mut a, mut b) = connected(|me| config(me, "127.0.0.1", DriverChoice::Auto));
    a.leave(1000);
    assert_eq!(look(&mut b, 0, tag(3), &STAMP, 8).0, Found::Other);
    b.close(Peer(0), Cause::new(CauseKind::Local, "given up".to_owned()));
    let (mut of_b, mut polls) = (Vec::new(), 0);
    while polls < 3 || !b.prepare_sleep() {
        b.poll(&mut of_b);
        polls += 1;
    }
    let [Event::Lost { peer: Peer(0), cause }] = &of_b[..] else { panic!("{of_b:?}") };
    assert_eq!(cause.kind, CauseKind::Local);
}

#[test]
fn only_a_poll_ends_a_link() {
    // What a look sends on behind itself must not tell of an end that another look saw.
    let (mut a, mut b) = connected(|me| config(me, "127.0.0.1", DriverChoice::Auto));
    a.poll(&mut Vec::new());
    let at = b.link_of(0).unwrap();
    b.ended.push((at, Verdict::Left));
    b.pump(&[at], true);
    assert!(b.links[at as usize].gone.is_none() && b.done.is_empty());
    let mut of_b = Vec::new();
    b.poll(&mut of_b);
    assert!(matches!(of_b[..], [Event::Left { peer: Peer(0) }]), "{of_b:?}");
}

#[test]
fn a_reset_that_a_send_at_once_met_is_told_as_one() {
    for looks in [false, true] {
        let (mut t, mut streams) = with_puppets(config(0, "127.0.0.1", DriverChoice::Epoll), 1);
        rustix::net::sockopt::set_socket_linger(&streams[0], Some(Duration::ZERO)).unwrap();
        streams.clear();
        let (began, mut events) = (Instant::now(), Vec::new());
        assert!(t.send_now(Peer(1), tag(3), &STAMP, &[1]), "nobody has looked at the socket since");
        if looks {
            while t.take_now(Peer(1), tag(3), (&STAMP, 1), LOOKS, &mut |_| {}) == Found::Nothing {
                assert!(began.elapsed() < DEADLINE, "no end");
            }
        }
        while events.is_empty() {
            assert!(began.elapsed() < DEADLINE, "no end");
            t.poll(&mut events);
        }
        let [Event::Lost { peer: Peer(1), cause }] = &events[..] else { panic!("{events:?}") };
        assert_eq!(cause.kind, CauseKind::Reset, "{cause:?}");
        assert!(cause.evidence.contains("reset by peer"), "{cause:?}");
    }
}
