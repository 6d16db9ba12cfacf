//! The sending half: announcing, matching, and cutting messages into frames.

use super::header::Whole;
use super::{
    Cts, Ending, FRAME_BYTES, Frame, Kind, MAX_RAILS, Matcher, Out, Place, SendOp, SendState, SlotId, done,
    keyed, units,
};
use crate::memory::ReadLease;
use crate::transport::op::{Event, OpError, OpId, Stamp, Tag};

/// The payload that follows a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// The send that it is of.
    pub slot: SlotId,
    /// As posted.
    pub id: OpId,
    /// Where it begins in the message, in bytes.
    pub offset: usize,
    /// Its length in bytes.
    pub len: usize,
    /// Whether it is the end of the message.
    pub last: bool,
}

impl Matcher {
    pub(super) fn begin_send(&mut self, mut op: SendOp, events: &mut Vec<Event>) {
        let (key, stamp, length) = (op.key, op.stamp, op.bytes.len() as u64);
        let rts = Frame { stamp, length, ..keyed(Kind::Rts, key) };
        let found = if self.cts.is_empty() { None } else { self.cts.remove(&key) };
        match found {
            Some(Cts::Discard) => done(events, op.id, Ok(()), op.bytes),
            Some(Cts::Clear { slot, stamp: theirs, length: their_bytes, place }) => {
                if theirs == stamp && their_bytes == length {
                    op.state = SendState::Streaming { to: slot, place };
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
            None if self.eager(length) && self.credit >= units(length) && !op.bytes.is_on_device() => {
                self.credit -= units(length);
                if let Ok(slot) = self.sends.put(op) {
                    self.out.push_back(Out::Eager(slot));
                }
            }
            None => {
                op.state = SendState::Announced;
                if let Ok(slot) = self.sends.put(op) {
                    self.send_keys.insert(key, slot);
                    // A receiver that counts on an eager message says nothing by itself.
                    if self.one_sided && !self.eager(length) {
                        self.keep_back(slot);
                    } else {
                        let number = if self.pulling { slot.0 } else { 0 };
                        self.out.push_back(Out::Control(Frame { slot: number, ..rts }));
                    }
                }
            }
        }
    }

    /// Most of [`Self::unsaid`]: as many as may be posted, and as many that have gone on.
    pub(super) fn most_unsaid(&self) -> usize {
        2 * self.depth
    }

    /// Keeps the `Rts` of a send back.
    fn keep_back(&mut self, slot: SlotId) {
        if self.unsaid.len() >= self.most_unsaid() {
            let sends = &self.sends;
            self.unsaid.retain(|s| sends.get(*s).is_some_and(|op| op.state == SendState::Announced));
        }
        self.unsaid.push_back(slot);
    }

    /// Whether an `Rts` is kept back.
    #[inline]
    pub fn has_unsaid(&self) -> bool {
        !self.unsaid.is_empty()
    }

    /// Says what is kept back of sends whose receivers have not asked for them: they may not match.
    pub fn announce(&mut self) {
        while let Some(slot) = self.unsaid.pop_front() {
            self.say_rts(slot);
        }
    }

    /// Says the `Rts` of a send that turns out not to match, so that the receiver finds it too.
    pub(super) fn announce_one(&mut self, slot: SlotId) {
        if let Some(at) = self.unsaid.iter().position(|s| *s == slot) {
            self.unsaid.remove(at);
            self.say_rts(slot);
        }
    }

    fn say_rts(&mut self, slot: SlotId) {
        if let Some(op) = self.sends.get(slot).filter(|op| op.state == SendState::Announced) {
            let (stamp, length) = (op.stamp, op.bytes.len() as u64);
            self.out.push_back(Out::Control(Frame { stamp, length, ..keyed(Kind::Rts, op.key) }));
        }
    }

    /// For a transport on both of whose sides messages of up to so many bytes may go at once ([`Self::eager_now`]), where any go
    /// eagerly: also such as would wait for their receiver if they were posted.
    #[must_use]
    pub fn at_once(self, at_once_bytes: u64) -> Matcher {
        Matcher { at_once_bytes, ..self }
    }

    /// Whether any message of this length goes eagerly: one that is posted ([`Self::eager`]) or one that goes at once.
    pub(super) fn eager_at_most(&self, length: u64) -> bool {
        self.agreed.is_some_and(|a| a.eager_bytes > 0 && length <= a.eager_bytes.max(self.at_once_bytes))
    }

    /// The header of a message that can go at once: eagerly, and before nothing that waits to be sent. Its payload must
    /// follow, and the operation is over, without ever having been posted. `None`: post it.
    #[inline]
    pub fn eager_now<'a>(&mut self, tag: Tag, stamp: &'a Stamp, length: u64) -> Option<Whole<'a>> {
        let cost = units(length);
        // With a word from the receiver already, it may not go eagerly.
        if !self.eager_at_most(length) || self.credit < cost || !self.out.is_empty() || !self.cts.is_empty() {
            return None;
        }
        self.credit -= cost;
        let tag = tag.to_u64();
        let (next, _) = self.next.entry(tag).or_default();
        let seq = *next;
        *next = seq.wrapping_add(1);
        Some(Whole { credit: self.credit_to_return(), seq, tag, stamp: &stamp.0, length })
    }

    fn credit_to_return(&mut self) -> u16 {
        let back = self.owed.min(u32::from(u16::MAX));
        self.owed -= back;
        back as u16
    }

    /// The place of a send all of whose frames are handed out, some payload perhaps still unsent: before cancelling
    /// it, the caller copies what is left of the payload, since the peer will take it for good.
    pub fn committed(&self, id: OpId) -> Option<SlotId> {
        self.sends.find(|s| s.id == id && s.last)
    }

    pub(super) fn cancel_send(&mut self, slot: SlotId, events: &mut Vec<Event>) {
        let Some(op) = self.sends.get(slot) else { return };
        if self.one_sided && (op.last || op.ending.is_some()) {
            // All of it is with the device: it ends as it had already (T7).
            return;
        }
        if self.one_sided && op.sent < op.framed {
            self.end_send(slot, Ending::Cancelled);
            return;
        }
        if op.shown {
            self.take_back_shown(slot);
            return;
        }
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
        self.out.push_back(Out::Control(Frame { offset: op.rails, ..keyed(Kind::CancelSend, op.key) }));
        done(events, op.id, Err(OpError::Cancelled), op.bytes);
    }

    /// Hands out no more of a send; it ends when the device has let go of what it has (M6).
    pub(super) fn end_send(&mut self, slot: SlotId, ending: Ending) {
        let Some(op) = self.sends.get_mut(slot) else { return };
        op.ending = Some(ending);
        self.send_keys.remove(&op.key);
        self.streams.retain(|s| *s != slot);
    }

    /// The device has let go of a send that was taken back.
    fn let_go(&mut self, op: SendOp, ending: Ending, events: &mut Vec<Event>) {
        match ending {
            Ending::Cancelled => {
                let frame = Frame { offset: op.rails, ..keyed(Kind::CancelSend, op.key) };
                self.out.push_back(Out::Control(frame));
                done(events, op.id, Err(OpError::Cancelled), op.bytes);
            }
            Ending::Discarded { place } => {
                self.confirm(place, op.rails);
                done(events, op.id, Ok(()), op.bytes);
            }
        }
    }

    /// Tells the peer that nothing more will be written to a place that it has taken back, which these rails carried
    /// bytes of; 0 is no place.
    pub(super) fn confirm(&mut self, place: u64, rails: u64) {
        if place != 0 {
            let frame = Frame { slot: place, offset: rails, ..Frame::bare(Kind::Withdrawn) };
            self.out.push_back(Out::Control(frame));
        }
    }

    /// Whether there is a frame to send.
    pub fn has_output(&self) -> bool {
        !self.out.is_empty() || !self.streams.is_empty() || self.should_return_credit()
    }

    /// Whether there is a frame to send that is not of a large message.
    pub fn has_small_output(&self) -> bool {
        !self.out.is_empty() || self.should_return_credit()
    }

    fn should_return_credit(&self) -> bool {
        self.owed > 0 && self.agreed.is_some_and(|a| self.owed >= a.our_window / 2)
    }

    /// The next frame to send, with the payload that must follow it at once. Small frames come before those of large
    /// messages. After the payload has left, or was copied away, [`Self::sent`] is due, also for an empty one. A
    /// frame of a large message carries at most `limit_bytes` of this operation to this place, from 1 up to
    /// [`FRAME_BYTES`].
    pub fn next_frame(
        &mut self,
        limit_bytes: impl Fn(OpId, &Place) -> u64,
    ) -> Option<(Frame, Option<Payload>)> {
        let (mut frame, payload) = self.pick(limit_bytes)?;
        // A write into place carries no header.
        let silent = frame.kind == Kind::Data && !frame.place.is_none();
        if !silent {
            frame.credit = self.credit_to_return();
        }
        Some((frame, payload))
    }

    fn pick(&mut self, limit_bytes: impl Fn(OpId, &Place) -> u64) -> Option<(Frame, Option<Payload>)> {
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
                    return Some((
                        frame,
                        Some(Payload { slot, id: op.id, offset: 0, len: op.bytes.len(), last: true }),
                    ));
                }
            }
        }
        if self.one_sided && self.should_return_credit() {
            return Some((Frame::bare(Kind::Credit), None));
        }
        while let Some(slot) = self.streams.front().copied() {
            let Some(SendOp {
                state: SendState::Streaming { to, place }, id, framed, bytes, last, key, ..
            }) = self.sends.get_mut(slot)
            else {
                self.streams.pop_front();
                continue;
            };
            let (offset, total) = (*framed, bytes.len() as u64);
            let limit = limit_bytes(*id, place).clamp(1, FRAME_BYTES);
            let length = (total - offset).min(limit);
            *framed += length;
            let frame = Frame { slot: *to, offset, length, place: *place, ..keyed(Kind::Data, *key) };
            if *framed == total {
                *last = true;
                self.streams.pop_front();
            }
            let payload =
                Payload { slot, id: *id, offset: offset as usize, len: length as usize, last: *last };
            return Some((frame, Some(payload)));
        }
        self.should_return_credit().then(|| (Frame::bare(Kind::Credit), None))
    }

    /// The lease of a send, or `None` when it was cancelled or discarded meanwhile: the frame's payload is then any
    /// bytes, since the peer discards them.
    pub fn outgoing(&self, slot: SlotId) -> Option<&ReadLease> {
        self.sends.get(slot).map(|op| &op.bytes)
    }

    /// Several devices write this send: its end is told by a frame of its own.
    pub fn stripe(&mut self, slot: SlotId) {
        if let Some(op) = self.sends.get_mut(slot) {
            op.striped = true;
        }
    }

    /// A rail carries bytes of this send.
    pub fn carried(&mut self, slot: SlotId, rail: usize) {
        if let Some(op) = self.sends.get_mut(slot) {
            op.rails |= 1 << (rail % MAX_RAILS);
        }
    }

    /// Whether [`Self::stripe`] was said of it.
    pub fn is_striped(&self, slot: SlotId) -> bool {
        self.sends.get(slot).is_some_and(|op| op.striped)
    }

    /// `len` more payload bytes of a send have left.
    pub fn sent(&mut self, slot: SlotId, len: usize, events: &mut Vec<Event>) {
        self.moved.sent += len as u64;
        let Some(op) = self.sends.get_mut(slot) else { return };
        op.sent += len as u64;
        if op.sent < op.framed || !(op.last || op.ending.is_some()) {
            return;
        }
        let Some(op) = self.sends.take(slot) else { return };
        if op.state != SendState::Leaving {
            self.send_keys.remove(&op.key);
        }
        match (op.ending, op.state) {
            (Some(ending), _) => self.let_go(op, ending, events),
            (None, SendState::Streaming { to, .. }) if op.striped => {
                let frame = Frame { slot: to, offset: op.rails, ..Frame::bare(Kind::Landed) };
                self.out.push_back(Out::Control(frame));
                done(events, op.id, Ok(()), op.bytes);
            }
            (None, _) => done(events, op.id, Ok(()), op.bytes),
        }
    }
}
