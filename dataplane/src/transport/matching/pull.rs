//! Payload that the receiver reads out of the sender's memory by itself.

use super::{
    Ending, Frame, Kind, Matcher, Out, Place, RecvOp, SendState, SlotId, Source, Violation, done, keyed,
};
use crate::memory::{ReadLease, RegionId};
use crate::transport::op::{Event, OpError, OpId};

/// A receive that is to be read out of the peer's memory.
#[derive(Debug)]
pub struct Pull<'a> {
    /// The receive.
    pub slot: SlotId,
    /// As posted.
    pub id: OpId,
    /// Where the payload begins in the peer's memory, in the transport's terms.
    pub place: Place,
    /// Bytes of it that have been read.
    pub offset: u64,
    /// Where the rest goes.
    pub into: &'a mut [u8],
    /// The region that it is of.
    pub region: RegionId,
}

impl Matcher {
    pub(super) fn can_pull(&self, source: &Source) -> bool {
        self.pulling && source.slot != 0 && !source.place.is_none()
    }

    /// A receive has met a send whose memory can be read.
    pub(super) fn pull(&mut self, op: RecvOp, source: Source, events: &mut Vec<Event>) {
        let key = op.key;
        // `post` has made sure of a place.
        let Ok(slot) = self.recvs.put(op) else { return };
        self.recv_keys.insert(key, slot);
        self.start_pull(slot, source, events);
    }

    pub(super) fn start_pull(&mut self, slot: SlotId, source: Source, events: &mut Vec<Event>) {
        let Some(op) = self.recvs.get_mut(slot) else { return };
        op.source = Some(source);
        if op.into.is_empty() {
            self.say_taken(source.slot, true);
            self.end_pull(slot, events);
        } else {
            self.pulls.push_back(slot);
        }
    }

    /// Says that the peer's send is no longer read: all of it is here, or not.
    pub(super) fn say_taken(&mut self, slot: u64, whole: bool) {
        let frame = Frame { slot, offset: whole.into(), ..Frame::bare(Kind::Taken) };
        self.out.push_back(Out::Control(frame));
    }

    fn end_pull(&mut self, slot: SlotId, events: &mut Vec<Event>) {
        if let Some(op) = self.recvs.take(slot) {
            self.recv_keys.remove(&op.key);
            done(events, op.id, Ok(()), op.into);
        }
    }

    /// Whether there is something to read.
    pub fn has_pulls(&self) -> bool {
        !self.pulls.is_empty()
    }

    /// The receive to go on reading for. What was read is told by [`Self::pulled`].
    pub fn next_pull(&mut self) -> Option<Pull<'_>> {
        // Cancelled meanwhile: nothing there.
        while let Some(slot) = self.pulls.front().copied()
            && self.recvs.get(slot).is_none_or(|op| op.source.is_none())
        {
            self.pulls.pop_front();
        }
        let slot = *self.pulls.front()?;
        let RecvOp { id, into, received, source: Some(source), .. } = self.recvs.get_mut(slot)? else {
            return None;
        };
        let region = into.region();
        let into = into.bytes_mut().get_mut(*received as usize..)?;
        Some(Pull { slot, id: *id, place: source.place, offset: *received, into, region })
    }

    /// `len` more bytes were read for this receive.
    pub fn pulled(&mut self, slot: SlotId, len: usize, events: &mut Vec<Event>) {
        self.moved.received += len as u64;
        let Some(op) = self.recvs.get_mut(slot) else { return };
        op.received += len as u64;
        if op.received < op.into.len() as u64 {
            return;
        }
        let source = op.source;
        self.pulls.retain(|s| *s != slot);
        if let Some(source) = source {
            self.say_taken(source.slot, true);
        }
        self.end_pull(slot, events);
    }

    /// The peer's memory cannot be read after all: the payload is to be sent.
    pub fn cannot_pull(&mut self, slot: SlotId) {
        self.pulls.retain(|s| *s != slot);
        let Some(op) = self.recvs.get_mut(slot) else { return };
        op.source = None;
        op.received = 0;
        op.cleared = true;
        let (stamp, length) = (op.stamp, op.into.len() as u64);
        let cts = Frame { stamp, length, slot: slot.0, ..keyed(Kind::Cts, op.key) };
        self.out.push_back(Out::Control(cts));
    }

    /// A send that an `Rts` is about to announce.
    pub fn announced(&self, slot: SlotId) -> Option<&ReadLease> {
        self.sends.get(slot).map(|op| &op.bytes)
    }

    /// The `Rts` of this send goes out with its place (M6). `false`: it has ended meanwhile.
    pub fn show(&mut self, slot: SlotId) -> bool {
        match self.sends.get_mut(slot) {
            Some(op) if op.state == SendState::Announced && op.ending.is_none() => {
                op.shown = true;
                true
            }
            _ => false,
        }
    }

    /// Takes back a send that the peer may be reading: it ends when the peer has left it (M6).
    pub(super) fn take_back_shown(&mut self, slot: SlotId) {
        let Some(op) = self.sends.get_mut(slot) else { return };
        if op.ending.is_some() {
            return;
        }
        op.ending = Some(Ending::Cancelled);
        self.withdrawing += 1;
        self.send_keys.remove(&op.key);
        let frame = Frame { slot: slot.0, ..keyed(Kind::CancelSend, op.key) };
        self.out.push_back(Out::Control(frame));
    }

    pub(super) fn on_taken(&mut self, frame: &Frame, events: &mut Vec<Event>) -> Result<(), Violation> {
        let slot = SlotId(frame.slot);
        let outside = Violation::Place { slot: frame.slot, offset: 0, length: 0 };
        if !self.sends.known(slot) {
            return Err(outside);
        }
        match self.sends.get(slot) {
            // It had ended by the time that the peer heard.
            None => return Ok(()),
            Some(op) if op.state == SendState::Announced => {}
            // The peer asks for the payload by `Cts`, and nothing else was withdrawn.
            Some(_) => return Err(outside),
        }
        let Some(op) = self.sends.take(slot) else { return Ok(()) };
        self.send_keys.remove(&op.key);
        self.forget_withdrawal(op.ending.is_some());
        let whole = frame.offset != 0;
        if whole {
            self.moved.shown += op.bytes.len() as u64;
        }
        match op.ending {
            Some(_) if !whole => done(events, op.id, Err(OpError::Cancelled), op.bytes),
            _ => done(events, op.id, Ok(()), op.bytes),
        }
        Ok(())
    }
}
