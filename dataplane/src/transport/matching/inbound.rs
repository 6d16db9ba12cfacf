//! The receiving half: what arrives, and where its bytes go.

use super::header::Whole;
use super::{
    Arrived, Cts, Ending, Frame, Key, Kind, MAX_PARKED, Matcher, Out, Place, RecvOp, Retired, SendState,
    SlotId, Source, Violation, done, keyed, units,
};
use crate::memory::{ReadLease, RegionId, WriteLease};
use crate::transport::op::{Event, OpError, OpId, Stamp};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Recv(SlotId),
    Park(Key),
    Discard,
}

/// Payload that is arriving.
#[derive(Debug, PartialEq, Eq)]
pub struct Body {
    target: Target,
    at: usize,
    left: usize,
}

impl Body {
    /// Bytes that are still to come.
    pub fn left(&self) -> usize {
        self.left
    }

    /// A payload that nobody wants.
    pub fn discard(left: usize) -> Body {
        Body { target: Target::Discard, at: 0, left }
    }
}

/// Where arriving bytes go.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// All that is still to come.
    pub bytes: &'a mut [u8],
    /// The region that they are of, if a posted receive's.
    pub region: Option<RegionId>,
}

/// What was parked of a message that is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parked {
    /// Nothing.
    Nothing,
    /// The message: it was taken.
    Taken,
    /// Where its sender shows it.
    Shown {
        /// In the transport's terms.
        place: Place,
    },
    /// Something else than is expected.
    Other,
}

fn twice(frame: &Frame) -> Violation {
    Violation::Twice { kind: frame.kind, tag: frame.tag, seq: frame.seq }
}

impl Matcher {
    /// Takes a frame in. Returns the payload that follows, if any does.
    ///
    /// # Errors
    /// [`Violation`]: no well-behaved peer sends this.
    pub fn accept(
        &mut self,
        frame: &Frame,
        retired: &Retired,
        events: &mut Vec<Event>,
    ) -> Result<Option<Body>, Violation> {
        self.take_credit(frame)?;
        let key = (frame.tag, frame.seq);
        let over = retired.has(frame.tag);
        match frame.kind {
            Kind::Eager => self.on_eager(frame, None, over, events),
            Kind::Data => self.on_data(frame, events),
            Kind::Credit => Ok(None),
            Kind::Rts | Kind::Cts if over => Ok(None),
            Kind::CancelSend if over && frame.slot == 0 => Ok(None),
            Kind::CancelRecv if over && frame.slot == 0 => Ok(None),
            Kind::Rts => self.on_rts(frame, events).map(|()| None),
            Kind::Cts => self.on_cts(frame, events).map(|()| None),
            Kind::CancelSend => self.on_cancel_send(key, frame.slot, over, events).map(|()| None),
            Kind::CancelRecv => self.on_cancel_recv(key, frame.slot, over, events).map(|()| None),
            Kind::Withdrawn => self.on_withdrawn(SlotId(frame.slot), events).map(|()| None),
            Kind::Landed => self.on_landed(SlotId(frame.slot), events).map(|()| None),
            Kind::Taken if self.pulling => self.on_taken(frame, events).map(|()| None),
            Kind::Taken | Kind::Note | Kind::Bye | Kind::Rail => Err(Violation::Kind(frame.kind)),
        }
    }

    /// Takes a frame in with the payload that belongs to it.
    ///
    /// # Errors
    /// [`Violation`]: no well-behaved peer sends this.
    pub fn deliver(
        &mut self,
        frame: &Frame,
        payload: &[u8],
        retired: &Retired,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        let body = match frame.kind {
            Kind::Eager => {
                self.take_credit(frame)?;
                self.on_eager(frame, Some(payload), retired.has(frame.tag), events)?
            }
            _ => self.accept(frame, retired, events)?,
        };
        let Some(mut body) = body else { return Ok(()) };
        if let Some(into) = self.buffer(&body)
            && let Some(payload) = payload.get(..into.len())
        {
            into.copy_from_slice(payload);
        }
        self.advance(&mut body, payload.len(), events);
        Ok(())
    }

    /// Takes a whole message that a posted receive waits for, and that is all as it should be: most of what comes. Returns
    /// whether it did; otherwise nothing has happened, and [`Self::deliver`] finds out more.
    #[inline]
    pub fn take_whole(
        &mut self,
        head: &Whole<'_>,
        payload: &[u8],
        retired: &Retired,
        events: &mut Vec<Event>,
    ) -> bool {
        let Some(agreed) = self.agreed else { return false };
        let cost = units(head.length);
        let given_back = u32::from(head.credit);
        let lawful = self.eager_at_most(head.length)
            && self.outstanding.saturating_add(cost) <= agreed.our_window
            && given_back <= agreed.their_window - self.credit.min(agreed.their_window);
        if !lawful || payload.len() as u64 != head.length || retired.has(head.tag) {
            return false;
        }
        let key = (head.tag, head.seq);
        let Some(slot) = self.recv_keys.get(&key).copied() else { return false };
        let fits = |op: &RecvOp| {
            let whole = !op.announced && op.into.len() == payload.len();
            whole && op.stamp.0 == *head.stamp && !op.into.is_on_device()
        };
        if !self.recvs.get(slot).is_some_and(fits) {
            return false;
        }
        self.recv_keys.remove(&key);
        self.credit += given_back;
        // Spent by the peer, and to be given back, at once.
        self.owed += cost;
        if let Some(mut op) = self.recvs.take(slot) {
            op.into.bytes_mut().copy_from_slice(payload);
            self.forget_withdrawal(op.withdrawn);
            done(events, op.id, Ok(()), op.into);
        }
        true
    }

    /// Takes a whole message whose receive was never posted, and is over with it, where it is the next on its tag and all as
    /// it should be. Returns whether it did; otherwise nothing has happened.
    #[inline]
    pub fn take_unposted(&mut self, head: &Whole<'_>, (tag, stamp, length): (u64, &Stamp, usize)) -> bool {
        let Some(agreed) = self.agreed else { return false };
        let cost = units(head.length);
        let given_back = u32::from(head.credit);
        let lawful = self.eager_at_most(head.length)
            && self.outstanding.saturating_add(cost) <= agreed.our_window
            && given_back <= agreed.their_window - self.credit.min(agreed.their_window);
        let wanted = head.tag == tag && head.length == length as u64 && *head.stamp == stamp.0;
        if !lawful || !wanted {
            return false;
        }
        let (_, next) = self.next.entry(tag).or_default();
        // With a word from the sender already, it is no ordinary message.
        if *next != head.seq || (!self.arrived.is_empty() && self.arrived.contains_key(&(tag, head.seq))) {
            return false;
        }
        *next = head.seq.wrapping_add(1);
        self.credit += given_back;
        // Spent by the peer, and to be given back, at once.
        self.owed += cost;
        self.moved.received += head.length;
        true
    }

    /// As [`Self::take_unposted`], of a message that a poll has parked.
    pub fn take_parked(
        &mut self,
        (tag, stamp, length): (u64, &Stamp, usize),
        take: &mut dyn FnMut(&[u8]),
    ) -> Parked {
        if self.arrived.is_empty() {
            return Parked::Nothing;
        }
        let key = (tag, self.next.get(&tag).map_or(0, |n| n.1));
        match self.arrived.get(&key) {
            None => Parked::Nothing,
            Some(Arrived::Eager { stamp: theirs, bytes, whole: true, claimed: None })
                if theirs == stamp && bytes.len() == length =>
            {
                take(bytes);
                if let Some(Arrived::Eager { bytes, .. }) = self.arrived.remove(&key) {
                    self.unpark(bytes);
                }
                self.next.entry(tag).or_default().1 = key.1.wrapping_add(1);
                Parked::Taken
            }
            Some(Arrived::Rts { stamp: theirs, length: bytes, source })
                if theirs == stamp && *bytes == length as u64 && self.can_pull(source) =>
            {
                Parked::Shown { place: source.place }
            }
            Some(_) => Parked::Other,
        }
    }

    /// Whether this announcement is of the next message on a tag, whose receive was never posted, and all as it should be.
    pub fn is_next_shown(&self, frame: &Frame, (tag, stamp, length): (u64, &Stamp, usize)) -> bool {
        let window = self.agreed.map_or(0, |a| a.their_window);
        let lawful = u32::from(frame.credit) <= window - self.credit.min(window);
        let source = Source { slot: frame.slot, place: frame.place };
        let wanted = frame.tag == tag && frame.stamp == *stamp && frame.length == length as u64;
        let next = self.next.get(&tag).map_or(0, |n| n.1);
        lawful
            && wanted
            && frame.seq == next
            && self.can_pull(&source)
            && !self.arrived.contains_key(&(tag, next))
    }

    /// The next message on a tag was read where its sender shows it: what [`Self::take_parked`] found, or what this
    /// announcement is of, which [`Self::is_next_shown`].
    pub fn took_shown(&mut self, tag: u64, announcement: Option<&Frame>) {
        let (_, next) = self.next.entry(tag).or_default();
        let key = (tag, *next);
        *next = key.1.wrapping_add(1);
        let (slot, length) = match announcement {
            Some(frame) => {
                self.credit += u32::from(frame.credit);
                (frame.slot, frame.length)
            }
            None => match self.arrived.remove(&key) {
                Some(Arrived::Rts { length, source, .. }) => (source.slot, length),
                _ => return,
            },
        };
        self.moved.received += length;
        self.say_taken(slot, true);
    }

    fn take_credit(&mut self, frame: &Frame) -> Result<(), Violation> {
        let (units, window) = (u32::from(frame.credit), self.agreed.map_or(0, |a| a.their_window));
        if units > window - self.credit.min(window) {
            return Err(Violation::Credit { units, window });
        }
        self.credit += units;
        Ok(())
    }

    /// Whether message `key` of ours (a send or a receive) is still to be posted.
    fn ahead(next: u32, seq: u32) -> bool {
        (seq.wrapping_sub(next) as i32) >= 0
    }

    fn recv_ahead(&self, key: Key) -> bool {
        Self::ahead(self.next.get(&key.0).map_or(0, |n| n.1), key.1)
    }

    fn send_ahead(&self, key: Key) -> bool {
        Self::ahead(self.next.get(&key.0).map_or(0, |n| n.0), key.1)
    }

    fn park(&mut self, frame: &Frame, what: Arrived) -> Result<(), Violation> {
        if self.arrived.len() >= MAX_PARKED {
            return Err(Violation::Parked);
        }
        match self.arrived.insert((frame.tag, frame.seq), what) {
            None => Ok(()),
            Some(_) => Err(twice(frame)),
        }
    }

    /// With the payload, if it is here already.
    fn on_eager(
        &mut self,
        frame: &Frame,
        payload: Option<&[u8]>,
        over: bool,
        events: &mut Vec<Event>,
    ) -> Result<Option<Body>, Violation> {
        let (key, bytes, window) =
            ((frame.tag, frame.seq), frame.length, self.agreed.map_or(0, |a| a.our_window));
        let cost = units(bytes);
        if !self.eager_at_most(bytes) || self.outstanding.saturating_add(cost) > window {
            return Err(Violation::Window { bytes });
        }
        self.outstanding += cost;
        let length = bytes as usize;
        let body = |target| Ok(Some(Body { target, at: 0, left: length }).filter(|b| b.left > 0));
        if over {
            self.owe(cost);
            return body(Target::Discard);
        }
        if let Some(slot) = self.recv_keys.get(&key).copied() {
            self.owe(cost);
            let Some(op) = self.recvs.get_mut(slot) else { return body(Target::Discard) };
            if op.announced {
                return Err(twice(frame));
            }
            op.announced = true;
            if op.stamp == frame.stamp && op.into.len() == length {
                if op.into.is_on_device() {
                    return Err(Violation::Device { bytes });
                }
                if let Some(payload) = payload.filter(|p| p.len() == length) {
                    op.into.bytes_mut().copy_from_slice(payload);
                    self.finish(slot, Ok(()), events);
                    return Ok(None);
                }
                self.finish_if_whole(slot, events);
                return body(Target::Recv(slot));
            }
            self.mismatch(slot, frame, events);
            return body(Target::Discard);
        }
        if !self.recv_ahead(key) {
            self.owe(cost);
            return body(Target::Discard);
        }
        if matches!(self.arrived.get(&key), Some(Arrived::Cancelled)) {
            return Err(twice(frame));
        }
        let bytes = self.shelf.take(length);
        let parked = Arrived::Eager { stamp: frame.stamp, bytes, whole: length == 0, claimed: None };
        self.park(frame, parked)?;
        body(Target::Park(key))
    }

    fn mismatch(&mut self, slot: SlotId, theirs: &Frame, events: &mut Vec<Event>) {
        if let Some(op) = self.recvs.take(slot) {
            self.recv_keys.remove(&op.key);
            let error = OpError::Mismatch { theirs: theirs.stamp, their_bytes: theirs.length };
            done(events, op.id, Err(error), op.into);
        }
    }

    fn on_rts(&mut self, frame: &Frame, events: &mut Vec<Event>) -> Result<(), Violation> {
        let key = (frame.tag, frame.seq);
        let source = Source { slot: frame.slot, place: frame.place };
        let Some(slot) = self.recv_keys.get(&key).copied() else {
            if self.recv_ahead(key) {
                self.park(frame, Arrived::Rts { stamp: frame.stamp, length: frame.length, source })?;
            }
            return Ok(());
        };
        let can_pull = self.can_pull(&source);
        let Some(op) = self.recvs.get_mut(slot) else { return Ok(()) };
        if op.announced {
            return Err(twice(frame));
        }
        op.announced = true;
        let (stamp, length) = (op.stamp, op.into.len() as u64);
        if can_pull && (stamp, length) == (frame.stamp, frame.length) {
            self.start_pull(slot, source, events);
            return Ok(());
        }
        if !op.cleared {
            op.cleared = true;
            let cts = Frame { stamp, length, slot: slot.0, ..keyed(Kind::Cts, key) };
            self.out.push_back(Out::Control(cts));
        }
        if stamp != frame.stamp || length != frame.length {
            self.mismatch(slot, frame, events);
        }
        Ok(())
    }

    fn on_cts(&mut self, frame: &Frame, events: &mut Vec<Event>) -> Result<(), Violation> {
        let key = (frame.tag, frame.seq);
        let (theirs, their_bytes) = (frame.stamp, frame.length);
        let Some(slot) = self.send_keys.get(&key).copied() else {
            if self.send_ahead(key) {
                if self.cts.len() >= MAX_PARKED {
                    return Err(Violation::Parked);
                }
                let (slot, place) = (frame.slot, frame.place);
                let cts = Cts::Clear { slot, stamp: theirs, length: their_bytes, place };
                if self.cts.insert(key, cts).is_some() {
                    return Err(twice(frame));
                }
            }
            return Ok(());
        };
        let Some(op) = self.sends.get_mut(slot) else { return Ok(()) };
        if op.state != SendState::Announced {
            return Err(twice(frame));
        }
        if op.stamp == theirs && op.bytes.len() as u64 == their_bytes {
            op.state = SendState::Streaming { to: frame.slot, place: frame.place };
            op.shown = false;
            self.streams.push_back(slot);
        } else {
            self.announce_one(slot);
            if let Some(op) = self.sends.take(slot) {
                self.send_keys.remove(&key);
                done(events, op.id, Err(OpError::Mismatch { theirs, their_bytes }), op.bytes);
            }
        }
        Ok(())
    }

    fn on_data(&mut self, frame: &Frame, events: &mut Vec<Event>) -> Result<Option<Body>, Violation> {
        let slot = SlotId(frame.slot);
        let outside = Violation::Place { slot: frame.slot, offset: frame.offset, length: frame.length };
        if !self.recvs.known(slot) || frame.length > super::FRAME_BYTES {
            return Err(outside);
        }
        let left = frame.length as usize;
        // M5: a stale place.
        let Some(op) = self.recvs.get_mut(slot) else {
            return Ok(Some(Body::discard(left)).filter(|b| b.left > 0));
        };
        if op.into.is_on_device() {
            return Err(Violation::Device { bytes: frame.length });
        }
        let total = op.into.len() as u64;
        let fits = frame.offset == op.received && frame.length <= total - op.received;
        if !op.cleared || !fits || (frame.length == 0 && total > 0) {
            return Err(outside);
        }
        op.announced = true;
        let body = Body { target: Target::Recv(slot), at: op.received as usize, left };
        self.finish_if_whole(slot, events);
        Ok(Some(body).filter(|b| b.left > 0))
    }

    fn on_cancel_send(
        &mut self,
        key: Key,
        shown: u64,
        over: bool,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        if self.pulling && shown != 0 {
            if self.out.len() >= super::MAX_QUEUED + MAX_PARKED {
                return Err(Violation::Parked);
            }
            // Whatever is being read of it ends below.
            self.say_taken(shown, false);
        }
        if over {
            return Ok(());
        }
        if let Some(slot) = self.recv_keys.remove(&key) {
            if let Some(op) = self.recvs.take(slot) {
                done(events, op.id, Err(OpError::Cancelled), op.into);
            }
        } else if self.recv_ahead(key) {
            if self.arrived.len() >= MAX_PARKED {
                return Err(Violation::Parked);
            }
            let before = self.arrived.insert(key, Arrived::Cancelled);
            if let Some(Arrived::Eager { bytes, .. }) = before {
                self.unpark(bytes);
            }
        }
        Ok(())
    }

    fn on_cancel_recv(
        &mut self,
        key: Key,
        place: u64,
        over: bool,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        if place != 0 && self.out.len() >= super::MAX_QUEUED + MAX_PARKED {
            return Err(Violation::Parked);
        }
        if let Some(slot) = self.send_keys.get(&key).copied() {
            let Some(op) = self.sends.get(slot) else { return Ok(()) };
            if self.one_sided && op.sent < op.framed {
                self.end_send(slot, Ending::Discarded { place });
                return Ok(());
            }
            self.send_keys.remove(&key);
            self.streams.retain(|s| *s != slot);
            if let Some(op) = self.sends.take(slot) {
                self.confirm(place, op.rails);
                done(events, op.id, Ok(()), op.bytes);
            }
            return Ok(());
        } else if !over && self.send_ahead(key) {
            if self.cts.len() >= MAX_PARKED {
                return Err(Violation::Parked);
            }
            self.cts.insert(key, Cts::Discard);
        } else if let Some(slot) = self.sends.find(|s| s.key == key && s.ending.is_some()) {
            // Both sides take it back: the peer hears when the device has let go.
            self.end_send(slot, Ending::Discarded { place });
            return Ok(());
        }
        self.confirm(place, 0);
        Ok(())
    }

    fn on_withdrawn(&mut self, slot: SlotId, events: &mut Vec<Event>) -> Result<(), Violation> {
        match self.recvs.get(slot) {
            Some(op) if op.withdrawn => {
                self.finish(slot, Err(OpError::Cancelled), events);
                Ok(())
            }
            Some(_) => Err(Violation::Kind(Kind::Withdrawn)),
            // It had ended by the time that the peer heard.
            None => Ok(()),
        }
    }

    /// A receive that a `Cts` is about to announce.
    pub fn incoming(&self, slot: SlotId) -> Option<(OpId, &WriteLease)> {
        self.recvs.get(slot).map(|op| (op.id, &op.into))
    }

    /// The `Cts` of this receive goes out with an address (M6). `false`: it has ended meanwhile.
    pub fn expose(&mut self, slot: SlotId) -> bool {
        let op = self.recvs.get_mut(slot);
        op.map(|op| op.exposed = true).is_some()
    }

    /// All of the message for the place with this index was written by the peer's device.
    ///
    /// # Errors
    /// [`Violation::Place`]: no such place was given out with an address.
    pub fn landed(&mut self, index: u32, events: &mut Vec<Event>) -> Result<(), Violation> {
        let outside = Violation::Place { slot: index.into(), offset: 0, length: 0 };
        let slot = self.recvs.at(index).ok_or(outside)?;
        self.on_landed(slot, events)
    }

    fn on_landed(&mut self, slot: SlotId, events: &mut Vec<Event>) -> Result<(), Violation> {
        match self.recvs.get(slot) {
            Some(op) if op.exposed && op.received == 0 => {
                self.moved.landed += op.into.len() as u64;
                self.finish(slot, Ok(()), events);
                Ok(())
            }
            _ => Err(Violation::Place { slot: slot.0, offset: 0, length: 0 }),
        }
    }

    /// Where the next bytes of `body` go, all [`Body::left`] of them, or `None` when they are to be thrown away.
    pub fn buffer(&mut self, body: &Body) -> Option<&mut [u8]> {
        self.spans(None, Some(body)).1.map(|incoming| incoming.bytes)
    }

    /// A send's lease and an arriving payload's bytes, at once.
    pub fn spans(
        &mut self,
        send: Option<SlotId>,
        body: Option<&Body>,
    ) -> (Option<&ReadLease>, Option<Incoming<'_>>) {
        let lease = send.and_then(|slot| self.sends.get(slot)).map(|op| &op.bytes);
        let Some(body) = body else { return (lease, None) };
        let span = body.at..body.at + body.left;
        let incoming = match body.target {
            Target::Recv(slot) => self.recvs.get_mut(slot).and_then(|op| {
                let region = Some(op.into.region());
                op.into.bytes_mut().get_mut(span).map(|bytes| Incoming { bytes, region })
            }),
            Target::Park(key) => match self.arrived.get_mut(&key) {
                Some(Arrived::Eager { bytes, whole: false, .. }) => {
                    bytes.get_mut(span).map(|bytes| Incoming { bytes, region: None })
                }
                _ => None,
            },
            Target::Discard => None,
        };
        (lease, incoming)
    }

    /// `len` bytes of `body` have arrived.
    pub fn advance(&mut self, body: &mut Body, len: usize, events: &mut Vec<Event>) {
        let len = len.min(body.left);
        body.at += len;
        self.moved.received += len as u64;
        body.left -= len;
        match body.target {
            Target::Recv(slot) => {
                if let Some(op) = self.recvs.get_mut(slot) {
                    op.received += len as u64;
                    self.finish_if_whole(slot, events);
                }
            }
            Target::Park(key) if body.left == 0 => self.finish_parked(key, events),
            Target::Park(_) | Target::Discard => {}
        }
    }

    fn finish_if_whole(&mut self, slot: SlotId, events: &mut Vec<Event>) {
        let whole = self.recvs.get(slot).is_some_and(|op| op.received == op.into.len() as u64);
        if whole {
            self.finish(slot, Ok(()), events);
        }
    }

    fn finish(&mut self, slot: SlotId, result: Result<(), OpError>, events: &mut Vec<Event>) {
        if let Some(op) = self.recvs.take(slot) {
            self.recv_keys.remove(&op.key);
            self.forget_withdrawal(op.withdrawn);
            done(events, op.id, result, op.into);
        }
    }

    fn finish_parked(&mut self, key: Key, events: &mut Vec<Event>) {
        let Some(Arrived::Eager { whole, claimed, .. }) = self.arrived.get_mut(&key) else { return };
        *whole = true;
        let Some(slot) = *claimed else { return };
        let Some(Arrived::Eager { bytes, .. }) = self.arrived.remove(&key) else { return };
        if let Some(mut op) = self.recvs.take(slot) {
            op.into.bytes_mut().copy_from_slice(&bytes);
            done(events, op.id, Ok(()), op.into);
        }
        self.unpark(bytes);
    }
}
