//! The sending half: announcing, matching, and cutting messages into frames.

use super::{Cts, FRAME_BYTES, Frame, Kind, Matcher, Out, SendOp, SendState, SlotId, done, keyed, units};
use crate::memory::ReadLease;
use crate::transport::op::{Event, OpError, OpId};

/// The payload that follows a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// The send that it is of.
    pub slot: SlotId,
    /// Where it begins in the message, in bytes.
    pub offset: usize,
    /// Its length in bytes.
    pub len: usize,
}

impl Matcher {
    pub(super) fn begin_send(&mut self, mut op: SendOp, events: &mut Vec<Event>) {
        let (key, stamp, length) = (op.key, op.stamp, op.bytes.len() as u64);
        let rts = Frame { stamp, length, ..keyed(Kind::Rts, key) };
        let found = if self.cts.is_empty() { None } else { self.cts.remove(&key) };
        match found {
            Some(Cts::Discard) => done(events, op.id, Ok(()), op.bytes),
            Some(Cts::Clear { slot, stamp: theirs, length: their_bytes }) => {
                if theirs == stamp && their_bytes == length {
                    op.state = SendState::Streaming { to: slot };
                    if let Ok(slot) = self.sends.put(op) {
                        self.send_keys.insert(key, slot);
                        self.streams.push_back(slot);
                    }
                } else {
                    // The receiver finds the mismatch in this.
                    self.out.push_back(Out::Control(rts));
                    done(events, op.id, Err(OpError::Mismatch { theirs, their_bytes }), op.bytes);
                }
            }
            None if self.eager(length) && self.credit >= units(length) => {
                self.credit -= units(length);
                if let Ok(slot) = self.sends.put(op) {
                    self.out.push_back(Out::Eager(slot));
                }
            }
            None => {
                op.state = SendState::Announced;
                if let Ok(slot) = self.sends.put(op) {
                    self.send_keys.insert(key, slot);
                    self.out.push_back(Out::Control(rts));
                }
            }
        }
    }

    /// The place of a send all of whose frames are handed out, some payload perhaps still unsent: before cancelling
    /// it, the caller copies what is left of the payload, since the peer will take it for good.
    pub fn committed(&self, id: OpId) -> Option<SlotId> {
        self.sends.find(|s| s.id == id && s.last)
    }

    pub(super) fn cancel_send(&mut self, slot: SlotId, events: &mut Vec<Event>) {
        let Some(op) = self.sends.take(slot) else { return };
        self.send_keys.remove(&op.key);
        if op.last {
            done(events, op.id, Ok(()), op.bytes);
            return;
        }
        if op.state == SendState::Queued {
            self.credit += units(op.bytes.len() as u64);
        }
        self.streams.retain(|s| *s != slot);
        self.out.push_back(Out::Control(keyed(Kind::CancelSend, op.key)));
        done(events, op.id, Err(OpError::Cancelled), op.bytes);
    }

    /// Whether there is a frame to send.
    pub fn has_output(&self) -> bool {
        !self.out.is_empty() || !self.streams.is_empty() || self.should_return_credit()
    }

    fn should_return_credit(&self) -> bool {
        self.owed > 0 && self.agreed.is_some_and(|a| self.owed >= a.our_window / 2)
    }

    /// The next frame to send, with the payload that must follow it at once. Small frames come before those of large
    /// messages. After the payload has left, or was copied away, [`Self::sent`] is due, also for an empty one.
    pub fn next_frame(&mut self) -> Option<(Frame, Option<Payload>)> {
        let (mut frame, payload) = self.pick()?;
        let back = self.owed.min(u32::from(u16::MAX));
        self.owed -= back;
        frame.credit = back as u16;
        Some((frame, payload))
    }

    fn pick(&mut self) -> Option<(Frame, Option<Payload>)> {
        while let Some(out) = self.out.pop_front() {
            match out {
                Out::Control(frame) => return Some((frame, None)),
                Out::Eager(slot) => {
                    // Cancelled meanwhile: nothing there.
                    let Some(op) = self.sends.get_mut(slot) else { continue };
                    op.state = SendState::Leaving;
                    op.last = true;
                    op.framed = op.bytes.len() as u64;
                    let frame = Frame { stamp: op.stamp, length: op.framed, ..keyed(Kind::Eager, op.key) };
                    return Some((frame, Some(Payload { slot, offset: 0, len: op.bytes.len() })));
                }
            }
        }
        while let Some(slot) = self.streams.front().copied() {
            let Some(SendOp { state: SendState::Streaming { to }, framed, bytes, last, key, .. }) =
                self.sends.get_mut(slot)
            else {
                self.streams.pop_front();
                continue;
            };
            let (offset, total) = (*framed, bytes.len() as u64);
            let length = (total - offset).min(FRAME_BYTES);
            *framed += length;
            let frame = Frame { slot: *to, offset, length, ..keyed(Kind::Data, *key) };
            if *framed == total {
                *last = true;
                self.streams.pop_front();
            }
            let payload = Payload { slot, offset: offset as usize, len: length as usize };
            return Some((frame, Some(payload)));
        }
        self.should_return_credit().then(|| (Frame::bare(Kind::Credit), None))
    }

    /// The lease of a send, or `None` when it was cancelled or discarded meanwhile: the frame's payload is then any
    /// bytes, since the peer discards them.
    pub fn outgoing(&self, slot: SlotId) -> Option<&ReadLease> {
        self.sends.get(slot).map(|op| &op.bytes)
    }

    /// `len` more payload bytes of a send have left.
    pub fn sent(&mut self, slot: SlotId, len: usize, events: &mut Vec<Event>) {
        let Some(op) = self.sends.get_mut(slot) else { return };
        op.sent += len as u64;
        if op.last
            && op.sent == op.framed
            && let Some(op) = self.sends.take(slot)
        {
            if op.state != SendState::Leaving {
                self.send_keys.remove(&op.key);
            }
            done(events, op.id, Ok(()), op.bytes);
        }
    }
}
