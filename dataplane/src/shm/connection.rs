//! The two queues of one connection that stands: records in and out, and payload read where it is.
#![forbid(unsafe_code)]

use super::MAX_EAGER_BYTES;
use super::handshake::{Heard, Other, hear, is_alive};
use super::queue::{Corrupt, Ringer};
use super::registration::{Read, place_of};
use super::segment::{Inlet, Outlet, RING_BYTES, Window};
use super::wire::{self, PLACE_BYTES};
use crate::transport::matching::header::{self, Whole};
use crate::transport::matching::{Frame, Kind, Matcher, Parked, Place, Retired, SlotId};
use crate::transport::{Cause, CauseKind, Event, Found, Note, Peer, Stamp, Tag};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Records taken from one peer before others get their turn.
const RECORDS_PER_POLL: usize = 64;
/// Payload of a record that is a piece of a large message: small beside the ring, so that the peer reads one while the
/// next is written.
const PIECE_BYTES: u64 = 32 << 10;
/// Read room is given back after so much, if a poll does not end before.
const RELEASE_BYTES: u64 = (RING_BYTES / 4) as u64;
/// Read of one peer's memory before others get their turn.
const PULL_BYTES: usize = 1 << 20;

/// What a connection has come to.
pub(super) enum Verdict {
    /// It goes on; whether anything moved.
    On(bool),
    /// The peer has said goodbye.
    Left,
    /// It is over.
    Lost(Cause),
}

/// A connection after its greeting.
pub(super) struct Connection {
    socket: OwnedFd,
    /// The peer's process, in words.
    who: String,
    out: Outlet,
    into: Inlet,
    other: Other,
    ringer: Ringer,
    /// The largest payload that one record needs room for.
    largest: usize,
    /// The last attempt to send found no room.
    blocked: bool,
    /// The peer's end of the socket is closed: what is in the queue is the last of it.
    ended: bool,
    records: u64,
}

impl Connection {
    pub(super) fn new(
        socket: OwnedFd,
        who: String,
        (out, into): (Outlet, Inlet),
        other: Other,
        eager_bytes: u64,
    ) -> Connection {
        let largest = (eager_bytes as usize).min(MAX_EAGER_BYTES).max(PIECE_BYTES as usize);
        Connection {
            socket,
            who,
            out,
            into,
            other,
            ringer: Ringer::default(),
            largest,
            blocked: false,
            ended: false,
            records: 0,
        }
    }

    /// Something happened on the socket, which is silent while all is well.
    pub(super) fn hear_socket(&mut self) -> Verdict {
        match hear(&self.socket) {
            Heard::Nothing => Verdict::On(false),
            Heard::Ended => {
                self.ended = true;
                Verdict::On(true)
            }
            Heard::Greeting(..) => Verdict::Lost(self.protocol("it greeted twice")),
            Heard::Nonsense(why) => Verdict::Lost(self.protocol(&why)),
        }
    }

    /// Rouses the peer if it sleeps.
    fn ring(&mut self) {
        if self.ringer.must_ring(self.other.bell.word()) {
            // A full counter rouses it too, and a peer that is gone is found by its socket.
            let _ = rustix::io::write(&self.other.doorbell, &1u64.to_ne_bytes());
        }
    }

    /// Takes what has come.
    pub(super) fn receive(
        &mut self,
        peer: Peer,
        matcher: &mut Matcher,
        retired: &Retired,
        events: &mut Vec<Event>,
    ) -> Verdict {
        let mut taken = 0;
        while taken < RECORDS_PER_POLL {
            match self.receive_one(peer, matcher, retired, events) {
                Ok(Some(Kind::Bye)) => return Verdict::Left,
                Ok(Some(_)) => taken += 1,
                Ok(None) => break,
                Err(what) => return Verdict::Lost(self.protocol(&what)),
            }
            if self.into.unreleased() >= RELEASE_BYTES && self.into.release() {
                self.ring();
            }
        }
        if taken > 0 && self.into.release() {
            self.ring();
        }
        self.records += taken as u64;
        if self.ended && taken == 0 && !self.into.has_news() {
            return Verdict::Lost(self.closed());
        }
        Verdict::On(taken > 0)
    }

    fn receive_one(
        &mut self,
        peer: Peer,
        matcher: &mut Matcher,
        retired: &Retired,
        events: &mut Vec<Event>,
    ) -> Result<Option<Kind>, String> {
        let broken = |e: Corrupt| e.to_string();
        let Some(header) = self.into.header().map_err(broken)? else { return Ok(None) };
        let (mut frame, payload) = wire::decode(&header)?;
        self.into.check(payload).map_err(broken)?;
        match frame.kind {
            Kind::Bye => {}
            Kind::Note => {
                let mut content = [0; Note::MAX_BYTES];
                let content =
                    content.get_mut(..payload).ok_or_else(|| format!("it sent a note of {payload} bytes"))?;
                self.into.payload(content);
                if let Some(note) = Note::new(content) {
                    events.push(Event::Note { from: peer, note: Box::new(note) });
                }
            }
            kind => {
                if kind == Kind::Rts && payload > 0 {
                    let mut place = [0; PLACE_BYTES];
                    self.into.payload(&mut place);
                    frame.place = wire::decode_place(&place);
                }
                let body = matcher.accept(&frame, retired, events).map_err(|v| format!("it {v}"))?;
                if let Some(mut body) = body {
                    // A body is as long as the frame says, which is what the record has.
                    if let Some(into) = matcher.buffer(&body) {
                        self.into.payload(into);
                    }
                    matcher.advance(&mut body, payload, events);
                }
            }
        }
        self.into.advance(payload).map_err(broken)?;
        Ok(Some(frame.kind))
    }

    /// Reads payload that the peer shows.
    pub(super) fn pull(&mut self, matcher: &mut Matcher, events: &mut Vec<Event>) -> Verdict {
        let mut left = PULL_BYTES;
        while left > 0
            && let Some(pull) = matcher.next_pull()
        {
            let (slot, whole) = (pull.slot, pull.into.len());
            let n = whole.min(left);
            let read = self.other.read(&pull.place, pull.offset, &mut pull.into[..n]);
            left -= n;
            if read == Read::No {
                matcher.cannot_pull(slot);
                continue;
            }
            if n == whole {
                // The peer may have ended meanwhile, and its memory be another's.
                let gone = self.into.is_closed() || (read == Read::Attached && !is_alive(&self.socket));
                if gone {
                    // A goodbye may stand in the queue; the next round finds out.
                    self.ended = true;
                    return Verdict::On(true);
                }
            }
            matcher.pulled(slot, n, events);
        }
        Verdict::On(left < PULL_BYTES)
    }

    /// Sends what there is to send, as long as there is room.
    pub(super) fn fill(
        &mut self,
        matcher: &mut Matcher,
        notes: &mut VecDeque<Note>,
        events: &mut Vec<Event>,
    ) -> Verdict {
        let mut moved = false;
        self.blocked = false;
        while !notes.is_empty() || matcher.has_output() {
            match self.out.has_room(self.largest) {
                Ok(true) => {}
                Ok(false) => {
                    self.blocked = true;
                    break;
                }
                Err(e) => return Verdict::Lost(self.protocol(&e.to_string())),
            }
            if let Some(note) = notes.pop_front() {
                let frame = Frame { length: note.bytes().len() as u64, ..Frame::bare(Kind::Note) };
                self.out.push(&wire::encode(&frame).0, note.bytes());
            } else if !self.send_next(matcher, events) {
                break;
            }
            moved = true;
        }
        if moved {
            self.ring();
        }
        Verdict::On(moved)
    }

    fn send_next(&mut self, matcher: &mut Matcher, events: &mut Vec<Event>) -> bool {
        let Some((mut frame, payload)) = matcher.next_frame(|_, _| PIECE_BYTES) else { return false };
        if let Some(payload) = payload {
            let bytes = matcher.outgoing(payload.slot).map_or(&[][..], |lease| lease.bytes());
            let bytes = bytes.get(payload.offset..payload.offset + payload.len).unwrap_or(&[]);
            self.out.push(&wire::encode(&frame).0, bytes);
            matcher.sent(payload.slot, payload.len, events);
            return true;
        }
        let shown = SlotId(frame.slot);
        if frame.kind == Kind::Rts
            && let Some(place) = matcher.announced(shown).map(place_of)
            && (place.keys[0] == wire::IN_BLOCKS || self.other.attach.is_ok())
            && matcher.show(shown)
        {
            frame.place = place;
        }
        match wire::encode(&frame) {
            (header, true) => self.out.push(&header, &wire::encode_place(&frame.place)),
            (header, false) => self.out.push(&header, &[]),
        }
        true
    }

    /// Whether a message of this length can go at once.
    pub(super) fn sends_now(&mut self, bytes: usize) -> bool {
        // A queue that is not as it should be is found by the next poll.
        self.out.has_room(bytes) == Ok(true)
    }

    /// Sends a small message, for which there is room.
    pub(super) fn send_now(&mut self, head: &Whole<'_>, bytes: &[u8]) {
        let mut header = [0; wire::HEADER_BYTES];
        header::write_eager(head, 0, &mut header);
        self.out.push(&header, bytes);
        self.ring();
    }

    /// Takes a message that is expected and has come, or comes within `looks` looks: a small one straight out of the queue, a
    /// large one out of the peer's blocks. What is not just so is left to a poll, which finds out what it is.
    pub(super) fn take_now(
        &mut self,
        matcher: &mut Matcher,
        tag: Tag,
        (stamp, length): (&Stamp, usize),
        looks: u32,
        take: &mut dyn FnMut(&[u8]),
    ) -> Found {
        let expected = (tag.to_u64(), stamp, length);
        match matcher.take_parked(expected, take) {
            Parked::Nothing => {}
            Parked::Taken => return Found::Message,
            Parked::Other => return Found::Other,
            Parked::Shown { place } => return self.take_shown(matcher, expected, &place, None, take),
        }
        let mut left = looks;
        let header = loop {
            match self.into.header() {
                Ok(Some(header)) => break header,
                Ok(None) if left > 0 => left -= 1,
                Ok(None) => return Found::Nothing,
                Err(_) => return Found::Other,
            }
        };
        let Some(head) = header::read_eager(&header).filter(|_| header[1] == 0) else {
            return self.take_announced(matcher, expected, &header, take);
        };
        if head.tag != expected.0 {
            return Found::Behind;
        }
        if self.into.check(length).is_err() || !matcher.take_unposted(&head, expected) {
            return Found::Other;
        }
        take(self.into.lend(length));
        self.taken(length);
        Found::Message
    }

    /// As [`Self::take_now`], of what begins with this header if it is no small message.
    fn take_announced(
        &mut self,
        matcher: &mut Matcher,
        expected: (u64, &Stamp, usize),
        header: &[u8; wire::HEADER_BYTES],
        take: &mut dyn FnMut(&[u8]),
    ) -> Found {
        let Ok((mut frame, PLACE_BYTES)) = wire::decode(header) else { return Found::Behind };
        if frame.kind != Kind::Rts || frame.tag != expected.0 {
            return Found::Behind;
        }
        if self.into.check(PLACE_BYTES).is_err() {
            return Found::Other;
        }
        let mut place = [0; PLACE_BYTES];
        self.into.payload(&mut place);
        frame.place = wire::decode_place(&place);
        if !matcher.is_next_shown(&frame, expected) {
            return Found::Other;
        }
        let found = self.take_shown(matcher, expected, &frame.place, Some(&frame), take);
        if found == Found::Message {
            self.taken(PLACE_BYTES);
        }
        found
    }

    /// Takes what the peer shows at this place.
    fn take_shown(
        &mut self,
        matcher: &mut Matcher,
        (tag, _, length): (u64, &Stamp, usize),
        place: &Place,
        announcement: Option<&Frame>,
        take: &mut dyn FnMut(&[u8]),
    ) -> Found {
        // Its owner waits to hear of it: what cannot be told at once is for a call that is asked what it leaves.
        if matcher.has_small_output() || self.out.has_room(self.largest) != Ok(true) {
            return Found::Other;
        }
        let Some(bytes) = self.other.shown(place, length) else { return Found::Other };
        take(bytes);
        // The peer may have ended meanwhile, and what was read be no longer what it sent.
        if self.into.is_closed() {
            self.ended = true;
            return Found::Other;
        }
        matcher.took_shown(tag, announcement);
        Found::Message
    }

    /// A record was taken, which [`Inlet::check`] has found whole.
    fn taken(&mut self, payload: usize) {
        self.records += 1;
        let advanced = self.into.advance(payload);
        debug_assert_eq!(advanced, Ok(()));
        // Who waits for room waits for most of the queue, so small messages are given back together.
        if self.into.unreleased() >= RELEASE_BYTES && self.into.release() {
            self.ring();
        }
    }

    /// Before a sleep: asks to be roused for room if some is missing.
    pub(super) fn ask_for_room(&mut self) {
        if self.blocked {
            self.out.ask_for_room();
        }
    }

    /// The last look before a sleep: whether there is something to do.
    pub(super) fn has_work(&mut self, has_output: bool) -> bool {
        self.into.has_news() || self.ended || (has_output && self.out.has_room(self.largest) != Ok(false))
    }

    /// The peer's blocks.
    pub(super) fn window(&self) -> Option<&Arc<Window>> {
        self.other.window.as_ref().ok()
    }

    /// Says goodbye. `false`: there is no room now.
    pub(super) fn say_goodbye(&mut self) -> bool {
        let room = self.sends_now(0);
        if room {
            self.out.push(&wire::encode(&Frame::bare(Kind::Bye)).0, &[]);
            self.ring();
        }
        room
    }

    /// What was shown may change from now on, and whatever the peer is reading of it is not to be believed.
    pub(super) fn close(&mut self) {
        self.out.close();
    }

    fn closed(&self) -> Cause {
        let Connection { who, records, .. } = self;
        let evidence = format!("{who} closed its end without a goodbye, after {records} messages");
        Cause::new(CauseKind::Closed, evidence)
    }

    fn protocol(&self, what: &str) -> Cause {
        let Connection { who, records, .. } = self;
        Cause::new(CauseKind::Protocol, format!("{what} ({who}, after {records} messages)"))
    }
}
