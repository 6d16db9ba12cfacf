//! Queues: how deep, what a full one does, and that directions do not share (T4, T5, T8).

use super::field::{At, Field, pattern, stamp, tag};
use super::{Mode, Rig, Skip};
use crate::transport::{Peer, PostError};

/// Posts to member 1 until the queue is full.
fn fill(f: &mut Field, sends: bool, content: &[u8]) -> Vec<At> {
    let depth = f.caps().depth;
    let mut posted = Vec::new();
    loop {
        let result = if sends {
            f.try_send((0, 1), tag(posted.len() as u32), stamp(0), content)
        } else {
            f.try_recv((0, 1), tag(posted.len() as u32), stamp(0), content.len())
        };
        match result {
            Ok(id) => posted.push((0, id)),
            Err(why) => {
                f.holds("T8", "a full queue says so, of the right peer", why == PostError::Full(Peer(1)));
                f.holds("T4", "the queue takes `depth` operations", posted.len() >= depth as usize);
                return posted;
            }
        }
        let few = (posted.len() as u64) <= 4 * u64::from(depth) + 16;
        f.holds("T8", "a queue has an end", few);
    }
}

/// T8: the operation comes back whole (checked by the field), the other peers' queues are open, and the queue opens
/// again after completions.
pub(super) fn a_full_queue_hands_the_operation_back(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut f = Field::new(rig, mode, 3)?;
    // Over the eager limit, so that nothing finishes unmatched.
    let content = pattern(1, f.caps().eager_bytes as usize + 100);
    for sends in [true, false] {
        f.context = format!("sends: {sends}");
        let posted = fill(&mut f, sends, &content);
        let other = [f.send((0, 2), tag(0), b"to another"), f.recv((2, 0), tag(0), 10)];
        f.succeed("T8", &other);
        let mut others = Vec::new();
        for k in 0..posted.len() as u32 {
            others.push(if sends {
                f.recv((1, 0), tag(k), content.len())
            } else {
                f.send((1, 0), tag(k), &content)
            });
        }
        f.succeed("T8", &posted);
        f.succeed("T8", &others);
        let again = if sends { f.send((0, 1), tag(0), b"again") } else { f.recv((0, 1), tag(0), 5) };
        let answer = if sends { f.recv((1, 0), tag(0), 5) } else { f.send((1, 0), tag(0), b"again") };
        f.succeed("T8", &[again, answer]);
    }
    Ok(())
}

/// T4: with all sends posted and none received, both sides can still post receives, and then all finishes; and the
/// other way round.
pub(super) fn sends_and_receives_have_their_own_credit(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    for sends_first in [true, false] {
        let mut f = Field::new(rig, mode, 2)?;
        f.context = format!("sends first: {sends_first}");
        let depth = f.caps().depth.min(64);
        let content = pattern(2, f.caps().eager_bytes as usize + 77);
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for sending in [sends_first, !sends_first] {
            for k in 0..depth {
                for (me, other) in [(0, 1), (1, 0)] {
                    // No poll in between: the credit must be there already.
                    let posted = if sending {
                        f.try_send((me, other), tag(k), stamp(0), &content)
                    } else {
                        f.try_recv((me, other), tag(k), stamp(0), content.len())
                    };
                    let id = posted.unwrap_or_else(|e| panic!("T4: {e} (sends first: {sends_first})"));
                    if sending { &mut sends } else { &mut receives }.push((me, id));
                }
            }
        }
        f.succeed("T4", &sends);
        f.succeed("T4", &receives);
        for at in receives {
            f.check_bytes("T4", at, &content);
        }
    }
    Ok(())
}

/// T4, T5: both sides stream to each other, each sending as fast as its queue takes it.
pub(super) fn both_directions_stream_at_once(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    const MESSAGES: usize = 60;
    let mut f = Field::new(rig, mode, 2)?;
    let lens = [100, f.caps().eager_bytes as usize + 20_000];
    let content = |me: usize, k: usize| pattern((me * 1000 + k) as u64, lens[k % 2]);
    let (mut sends, mut receives) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    loop {
        for (me, other) in [(0, 1), (1, 0)] {
            let k = sends[me].len();
            if k < MESSAGES
                && let Ok(id) = f.try_send((me, other), tag(0), stamp(0), &content(me, k))
            {
                sends[me].push((me, id));
            }
            let k = receives[me].len();
            if k < MESSAGES
                && let Ok(id) = f.try_recv((me, other), tag(0), stamp(0), lens[k % 2])
            {
                receives[me].push((me, id));
            }
        }
        f.poll();
        f.in_time("T4", "every operation to be taken");
        if sends.iter().chain(&receives).all(|v| v.len() == MESSAGES) {
            break;
        }
    }
    for me in 0..2 {
        f.succeed("T4", &sends[me]);
        f.succeed("T4", &receives[me]);
        for (k, at) in receives[me].iter().enumerate() {
            f.check_bytes("T2", *at, &content(1 - me, k));
        }
    }
    Ok(())
}

/// T5: over the eager limit (and without a buffer, always), a send does not finish before its match.
pub(super) fn without_a_buffer_a_send_waits_for_its_match(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut f = Field::new(rig, mode, 2)?;
    let eager = f.caps().eager_bytes as usize;
    let mut lens = vec![eager + 1, eager + 300_000];
    if eager == 0 {
        lens.push(0);
    }
    for len in lens {
        f.context = format!("{len} bytes");
        let content = pattern(len as u64, len);
        let send = f.send((0, 1), tag(0), &content);
        f.round_trips(0, 1);
        f.holds("T5", "no send over the eager limit finishes unmatched", f.result(send).is_none());
        let receive = f.recv((1, 0), tag(0), len);
        f.succeed("T5", &[send, receive]);
        f.check_bytes("T5", receive, &content);
    }
    Ok(())
}

/// T8: an unknown peer and a message that is too long are refused at once.
pub(super) fn posts_that_cannot_be_are_refused(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut f = Field::new(rig, mode, 2)?;
    let unknown = Err(PostError::Unknown(Peer(9)));
    let sent = f.try_send((0, 9), tag(0), stamp(0), b"x");
    f.holds("T8", "a send to a stranger is refused", sent == unknown);
    let received = f.try_recv((0, 9), tag(0), stamp(0), 1);
    f.holds("T8", "a receive from a stranger is refused", received == unknown);
    let limit_bytes = f.caps().max_message_bytes;
    if limit_bytes < 1 << 26 {
        let bytes = limit_bytes + 1;
        let sent = f.try_send((0, 1), tag(0), stamp(0), &vec![0; bytes as usize]);
        f.holds(
            "T8",
            "too long a message is refused",
            sent == Err(PostError::TooLong { bytes, limit_bytes }),
        );
    }
    Ok(())
}
