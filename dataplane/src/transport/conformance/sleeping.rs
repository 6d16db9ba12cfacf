//! Sleeping on a transport's fd, and being roused (T10).

use super::field::{Field, pattern, tag};
use super::{DEADLINE, Mode, Rig, Skip};
use crate::memory::Pool;
use crate::transport::{Event, Note, Op, OpId, Peer, Stamp, Transport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::Instant;

fn need_sleep(f: &Field) -> Result<(), Skip> {
    if f.caps().sleepable { Ok(()) } else { Err(Skip::new("a way to sleep (Caps::sleepable)")) }
}

/// Sleeps once, after `prepare_sleep` said `true`, for at most the transport's timer.
fn sleep(t: &dyn Transport, invariant: &str) {
    let timer = t.next_timer_ms().map(std::time::Duration::from_millis);
    let longest = timer.unwrap_or(DEADLINE).min(DEADLINE);
    let limit = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: longest.subsec_nanos().into() };
    let fd = t.sleep_fd().unwrap_or_else(|| panic!("{invariant}: sleepable, and no fd"));
    let roused = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit));
    assert!(roused == Ok(1) || timer.is_some(), "{invariant}: slept through it ({roused:?})");
}

/// Polls until there is nothing to poll and nobody has called.
fn quiet(t: &mut dyn Transport) {
    let (mut out, deadline) = (Vec::new(), Instant::now() + DEADLINE);
    while t.poll(&mut out) || !t.prepare_sleep() {
        assert!(Instant::now() < deadline, "T10: an idle transport never lets its thread sleep");
    }
}

/// T10: a wake from another thread ends a sleep, or forbids the next; polling in between does not take it.
pub(super) fn a_wake_is_never_lost(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut f = Field::new(rig, mode, 2)?;
    need_sleep(&f)?;
    f.round_trips(0, 1);
    let t = f.member_mut(0);
    let (waker, mut out) = (t.waker(), Vec::new());
    quiet(t);
    waker.wake();
    t.poll(&mut out);
    assert!(!t.prepare_sleep(), "T10: a wake before the sleep was lost in a poll");
    quiet(t);
    for _ in 0..200 {
        std::thread::scope(|scope| {
            scope.spawn(|| waker.wake());
            t.poll(&mut out);
            while t.prepare_sleep() {
                sleep(t, "T10");
                t.poll(&mut out);
            }
        });
    }
    quiet(t);
    assert!(out.is_empty(), "T10: a wake is no event: {out:?}");
    Ok(())
}

/// T10: two threads exchange messages and notes, sleeping whenever there is nothing to do; no message is slept through.
pub(super) fn messages_rouse_a_sleeper(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    const ROUNDS: u64 = 150;
    let mut f = Field::new(rig, mode, 2)?;
    need_sleep(&f)?;
    let big = f.caps().eager_bytes as usize + 100_000;
    let members: Vec<_> = f.members.iter_mut().filter_map(Option::take).collect();
    std::thread::scope(|scope| {
        for (me, mut t) in members.into_iter().enumerate() {
            scope.spawn(move || {
                let other = Peer(1 - me as u32);
                let pool = Pool::default();
                for round in 0..ROUNDS {
                    let len = if round % 5 == 0 { big } else { 24 };
                    let mut region = pool.region(len).unwrap_or_else(|e| panic!("{e}"));
                    let stamp = Stamp::default();
                    let op = if (round + me as u64).is_multiple_of(2) {
                        region.bytes_mut(0..len).unwrap_or_else(|e| panic!("{e}")).fill(round as u8);
                        let bytes = region.lend_read(0..len).unwrap_or_else(|e| panic!("{e}"));
                        Op::Send { to: other, tag: tag(0), stamp, bytes }
                    } else {
                        let into = region.lend_write(0..len).unwrap_or_else(|e| panic!("{e}"));
                        Op::Recv { from: other, tag: tag(0), stamp, into }
                    };
                    assert!(t.post(OpId(round), op).is_ok(), "T8: refused in round {round}");
                    let lease = loop {
                        let mut out = Vec::new();
                        let moved = t.poll(&mut out);
                        if let Some(Event::Done(c)) = out.into_iter().next() {
                            assert_eq!((c.id, c.result), (OpId(round), Ok(())), "T2");
                            break c.lease;
                        }
                        if !moved && t.prepare_sleep() {
                            sleep(&*t, "T10");
                        }
                    };
                    assert!(lease.bytes().iter().all(|b| *b == round as u8), "T3: round {round}");
                    assert_eq!(region.restore(lease), Ok(()));
                }
                t.leave(2000);
            });
        }
    });
    Ok(())
}

/// T10: with something to tell, `prepare_sleep` says no, or the fd is readable.
pub(super) fn nobody_sleeps_on_what_is_to_be_told(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut f = Field::new(rig, mode, 2)?;
    need_sleep(&f)?;
    f.round_trips(0, 1);
    let content = pattern(1, 100);
    let receive = f.recv((1, 0), tag(0), content.len());
    quiet_member(&mut f, 1);
    let send = f.send((0, 1), tag(0), &content);
    let hello = Note::new(b"hello").unwrap_or_else(|| unreachable!("5 bytes fit"));
    assert_eq!(f.member_mut(0).note(Peer(1), &hello), Ok(()));
    // From here on only the receiver is polled, and only when it may not sleep or has slept.
    let deadline = Instant::now() + DEADLINE;
    while f.result(receive).is_none() {
        f.poll_one(0);
        if f.member_mut(1).prepare_sleep() {
            // In zero-buffer transports the sender has its part in the match: it is polled while the receiver sleeps.
            let ready = {
                let t = f.member(1);
                let fd = t.sleep_fd().unwrap_or_else(|| panic!("T10: sleepable, and no fd"));
                let limit = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit)) == Ok(1)
            };
            if ready {
                f.poll_one(1);
            }
        } else {
            f.poll_one(1);
        }
        f.holds("T10", "the sleeper was roused for the message", Instant::now() < deadline);
    }
    f.succeed("T2", &[send, receive]);
    f.check_bytes("T2", receive, &content);
    Ok(())
}

fn quiet_member(f: &mut Field, i: usize) {
    let deadline = Instant::now() + DEADLINE;
    while f.poll_one(i) || !f.member_mut(i).prepare_sleep() {
        f.holds("T10", "an idle transport lets its thread sleep", Instant::now() < deadline);
    }
}
