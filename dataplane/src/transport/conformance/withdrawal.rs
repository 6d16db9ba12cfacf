//! Operations that are taken back, and groups that end (T7).

use super::field::{At, Field, pattern, stamp, tag};
use super::{Mode, Rig, Skip};
use crate::transport::{OpError, Tag};

const CANCELLED: Result<(), OpError> = Err(OpError::Cancelled);

/// Cancels an operation and polls until it has ended: only its own member, unless a device has to be waited for.
fn cancel(f: &mut Field, at: At) {
    f.member_mut(at.0).cancel(at.1);
    let alone = [at.0];
    let all: Vec<usize> = (0..f.members.len()).collect();
    let polled = if f.caps().withdraws_alone { &alone[..] } else { &all };
    f.until_of(polled, "T7", "a cancelled operation", &mut |f| f.result(at).is_some());
}

/// The next message on a tag gets through.
fn next_matches(f: &mut Field, lane: u32) {
    let content = pattern(u64::from(lane) + 900, 333);
    let next = [f.send((0, 1), tag(lane), &content), f.recv((1, 0), tag(lane), 333)];
    f.succeed("T7", &next);
    f.check_bytes("T7", next[1], &content);
}

/// T7: the receive that a cancelled send would have matched is discarded, and the next pair matches.
pub(super) fn a_cancelled_send_leaves_the_tag_in_step(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut f = Field::new(rig, mode, 2)?;
    let big = f.caps().eager_bytes as usize + 70_000;
    for (lane, seen) in [(0, false), (1, true)] {
        f.context = format!("the peer has seen it: {seen}");
        let send = f.send((0, 1), tag(lane), &pattern(1, big));
        if seen {
            f.round_trips(0, 1);
        }
        cancel(&mut f, send);
        f.holds("T7", "an unmatched send is cancelled", f.ended(send) == &CANCELLED);
        let receive = f.recv((1, 0), tag(lane), big);
        f.finish("T7", &[receive]);
        f.holds("T7", "its receive is discarded", f.ended(receive) == &CANCELLED);
        next_matches(&mut f, lane);
    }
    Ok(())
}

/// T7: the send that a cancelled receive would have matched is discarded, and the next pair matches.
pub(super) fn a_cancelled_receive_leaves_the_tag_in_step(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut f = Field::new(rig, mode, 2)?;
    let eager = f.caps().eager_bytes as usize;
    for (lane, (len, seen)) in
        [(10, false), (10, true), (eager + 70_000, false), (eager + 70_000, true)].into_iter().enumerate()
    {
        let lane = lane as u32;
        f.context = format!("{len} bytes, the peer has seen it: {seen}");
        let receive = f.recv((1, 0), tag(lane), len);
        if seen {
            f.round_trips(0, 1);
        }
        cancel(&mut f, receive);
        f.holds("T7", "an unmatched receive is cancelled", f.ended(receive) == &CANCELLED);
        let send = f.send((0, 1), tag(lane), &pattern(2, len));
        f.finish("T7", &[send]);
        let discarded = matches!(f.ended(send), Ok(()) | Err(OpError::Cancelled));
        f.holds("T7", "its send is discarded", discarded);
        next_matches(&mut f, lane);
    }
    Ok(())
}

/// T1, T7: a message is cancelled at either or both ends after any number of polls; it ends whole or cancelled, and
/// its tag and others stay in step.
pub(super) fn cancel_at_every_stage(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut f = Field::new(rig, mode, 2)?;
    let lens = [20, f.caps().eager_bytes as usize + (1 << 20)];
    for (k, len) in lens.into_iter().enumerate() {
        let content = pattern(5, len);
        for stage in [0, 1, 2, 3, 4, 6, 9, 13, 20] {
            for who in 0..3 {
                f.context = format!("{len} bytes, stage {stage}, cancelled by {who}");
                let send = f.send((0, 1), tag(k as u32), &content);
                let receive = f.recv((1, 0), tag(k as u32), len);
                for _ in 0..stage {
                    f.poll();
                }
                if who != 0 {
                    cancel(&mut f, receive);
                }
                if who != 1 {
                    cancel(&mut f, send);
                }
                f.finish("T7", &[send, receive]);
                let fair = |r: &Result<(), OpError>| matches!(r, Ok(()) | Err(OpError::Cancelled));
                f.holds("T7", "whole or cancelled", fair(f.ended(send)) && fair(f.ended(receive)));
                if f.ended(receive).is_ok() {
                    f.check_bytes("T7", receive, &content);
                }
                next_matches(&mut f, k as u32);
                f.forget();
            }
        }
    }
    Ok(())
}

/// T7: ids that are over, or never were, are ignored.
pub(super) fn cancelling_what_is_over_does_nothing(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut f = Field::new(rig, mode, 2)?;
    let pair = [f.send((0, 1), tag(0), b"over"), f.recv((1, 0), tag(0), 4)];
    f.succeed("T2", &pair);
    for (me, id) in pair {
        f.member_mut(me).cancel(id);
        f.member_mut(1 - me).cancel(id);
    }
    f.member_mut(0).cancel(crate::transport::OpId(u64::MAX));
    next_matches(&mut f, 0);
    Ok(())
}

/// T7, T8: what has arrived for a retired group is dropped, what comes late is ignored and holds nothing up; other
/// groups go on.
pub(super) fn a_retired_group_is_forgotten(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut f = Field::new(rig, mode, 2)?;
    let eager = f.caps().eager_bytes as usize;
    let dead = |lane| Tag { group: 7, lane };
    for (lane, len) in [(0, 30), (1, eager + 50_000)] {
        let arrived = f.send((0, 1), dead(lane), &pattern(3, len));
        f.round_trips(0, 1);
        f.member_mut(1).retire(7);
        f.round_trips(0, 1);
        // The sender takes its own back, as it must before it retires the group in turn.
        cancel(&mut f, arrived);
        next_matches(&mut f, lane);
        let late = f.try_send((0, 1), dead(lane), stamp(0), &pattern(4, len));
        f.holds("T8", "a retired group takes no credit", late.is_ok());
        f.round_trips(0, 1);
        if let Ok(id) = late {
            cancel(&mut f, (0, id));
        }
        next_matches(&mut f, lane + 10);
    }
    // Eager messages that come late are dropped, so that any number of them finds room.
    if f.caps().eager_bytes >= 30 {
        let content = pattern(5, 30);
        for _ in 0..3 * f.caps().depth {
            let late = f.send((0, 1), dead(3), &content);
            f.finish("T8", &[late]);
        }
        next_matches(&mut f, 19);
    }
    f.member_mut(0).retire(7);
    next_matches(&mut f, 20);
    Ok(())
}
