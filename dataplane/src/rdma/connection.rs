//! One connection: rails, the ring of small messages, and writes of large ones.
//!
//! Small messages go over one rail, the control rail, into receives that the peer has posted. Large ones are written
//! into the place of their receive: one that fits a write, or has the connection's only rail, tells the place's number
//! with the last; otherwise each rail takes some of the writes, and a message tells of the end when all are done, with
//! fences on the rails themselves (`ends`).
//!
//! Invariants (cited by the tests):
//! - **Q1** A message or telling write is posted only for a receive that the peer has told of, so that it never finds
//!   none. One receive is kept back for telling of receives, so that both sides can always tell.
//! - **Q2** A send slot is written only when its last message is done.
//! - **Q3** At most [`WRITES`](super::rail::WRITES) writes that tell nothing are under way on a rail, so that small
//!   messages do not wait behind large ones for long. Telling ones are as many as messages at most.

use super::MIN_PAYLOAD_BYTES;
use super::choice::{MAX_RAILS, RailPair, RdmaConfig};
use super::device::Device;
use super::ends::Ends;
use super::failover::{Failover, Resumed};
use super::handshake::Hello;
use super::outgoing::Much;
use super::rail::{RECEIVE_BATCH, RECEIVES, Rail, SENDS, Write};
use super::registration::{Pinned, Registered};
use super::request::{Kind as Request, WrId, distance};
use super::verbs::{Sge, VerbsError, WorkCompletion};
use super::wire::{self, OVERHEAD_BYTES};
use crate::memory::ReadLease;
use crate::transport::matching::header::Whole;
use crate::transport::matching::{Frame, Kind, Matcher, Place, Retired};
use crate::transport::{Cause, CauseKind, Copies, Event, Note, OpId};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Every so many messages, one asks for a completion, which stands for all before it.
const SIGNAL_EVERY: u32 = 16;

/// What operations hold.
pub(super) type Holds = HashMap<OpId, Arc<Registered>>;

/// Whether a hello tells of this queue pair: number 0 is never one of ours.
fn is_announced((number, _): (u32, u32)) -> bool {
    number != 0
}

/// What a connection has come to.
pub(super) enum Verdict {
    /// It goes on.
    On,
    /// The peer has said goodbye.
    Left,
    /// It is over.
    Lost(Cause),
}

/// What was posted under a number of the control rail.
#[derive(Clone, Copy, Debug)]
pub(super) enum Posted {
    /// A message of so many bytes, in the number's slot.
    Message(u32),
    /// A telling write.
    Write(Write),
}

/// A connection, from before its peer is known.
pub(super) struct Connection {
    link: u32,
    generation: u16,
    // Before the ring: a queue pair's drop ends what it does with the ring's memory.
    pub(super) rails: Vec<Rail>,
    /// Index of the rail that messages go over.
    pub(super) control: usize,
    ring: Pinned,
    slot_bytes: usize,
    /// Payload bytes of a message, and of a write where there are several rails.
    payload_bytes: usize,
    pub(super) stripe_bytes: u64,
    /// What was posted, by number modulo [`SENDS`].
    pub(super) log: Vec<Posted>,
    /// Number of the next message, and of the oldest that is not known to be done.
    pub(super) next: u32,
    pub(super) done: u32,
    /// Messages and telling writes that came in.
    pub(super) taken: u32,
    /// Receives of the peer that are left (Q1).
    pub(super) budget: u32,
    pub(super) their_receives: u32,
    /// Receives posted again and not told of.
    pub(super) owed: u32,
    /// Writes to do again, over other rails.
    pub(super) redo: VecDeque<Write>,
    /// What is to be said of rails.
    pub(super) about_rails: VecDeque<Frame>,
    pub(super) failover: Option<Failover>,
    /// What the peer said of rails that were its control rail and failed.
    pub(super) heard: [Option<Resumed>; MAX_RAILS],
    /// Ends of striped messages.
    pub(super) ends: Ends<Frame>,
    /// Number of the goodbye.
    goodbye: Option<u32>,
    /// The peer's goodbye came.
    pub(super) left: bool,
    /// Rails that failed before both sides were ready.
    pub(super) failed_early: Vec<(usize, Cause)>,
    /// Payload bytes that were copied through the ring.
    pub(super) copied_bytes: u64,
    /// Payload bytes that were copied out of messages.
    pub(super) copied_in_bytes: u64,
}

impl Connection {
    /// Makes the queue pairs of these rails whose devices work, and posts their receives.
    pub(super) fn new(
        (link, generation): (u32, u16),
        pairs: &[RailPair],
        devices: &mut [Device],
        (payload_bytes, stripe_bytes): (usize, u64),
        psn: u32,
    ) -> Result<Connection, VerbsError> {
        let slot_bytes = (OVERHEAD_BYTES + payload_bytes.max(wire::PLACE_BYTES)).next_multiple_of(64);
        let mut rails: Vec<Rail> = Vec::with_capacity(pairs.len());
        let usable: Vec<bool> = pairs.iter().map(|p| devices[p.mine].is_usable()).collect();
        // Where no port works now, one may when the peer answers.
        let any = usable.contains(&true);
        let mut refused = None;
        for (pair, usable) in pairs.iter().zip(usable) {
            let id = |aux| WrId { kind: Request::Receive, generation, link, aux }.pack();
            let made = match usable || (!any && devices[pair.mine].broken.is_none()) {
                true => {
                    Rail::new(pair.mine, devices, slot_bytes, psn, id).map_err(|why| refused = Some(why)).ok()
                }
                false => None,
            };
            rails.push(made.unwrap_or_else(|| Rail::absent(pair.mine)));
        }
        let domain = |r: &Rail| r.is_alive().then(|| Arc::clone(&devices[r.device].domain));
        let domains: Vec<_> = rails.iter().map(domain).collect();
        // And one for each rail whose failure is told of.
        let ring = match refused {
            Some(why) if domains.iter().all(Option::is_none) => Err(why),
            _ => Pinned::new(&domains, (SENDS as usize + MAX_RAILS) * slot_bytes),
        };
        let ring = ring.inspect_err(|_| rails.iter().for_each(|r| r.unreserve(devices)))?;
        Ok(Connection {
            link,
            generation,
            rails,
            control: 0,
            ring,
            slot_bytes,
            payload_bytes,
            stripe_bytes,
            log: vec![Posted::Message(0); SENDS as usize],
            next: 0,
            done: 0,
            taken: 0,
            budget: 0,
            their_receives: 0,
            owed: 0,
            redo: VecDeque::new(),
            about_rails: VecDeque::new(),
            failover: None,
            heard: [None; MAX_RAILS],
            ends: Ends::new(),
            goodbye: None,
            left: false,
            failed_early: Vec::new(),
            copied_bytes: 0,
            copied_in_bytes: 0,
        })
    }

    /// What is to be told of the queue pairs.
    pub(super) fn introduce(&self, hello: &mut Hello) {
        hello.receives = RECEIVES as u16;
        hello.payload_bytes = self.payload_bytes as u32;
        hello.rails = self.rails.len() as u8;
        for (into, rail) in hello.ends.iter_mut().zip(&self.rails) {
            *into = rail.end();
        }
    }

    /// Whether what a peer tells of is what its release could.
    pub(super) fn accepts(&self, theirs: &Hello) -> Result<(), String> {
        let (rails, most) = (usize::from(theirs.rails), self.rails.len());
        if rails == 0 || rails > most {
            return Err(format!("{rails} rails, out of {most}"));
        }
        if !theirs.ends.into_iter().any(is_announced) {
            return Err("no rail that is up".to_owned());
        }
        if u32::from(theirs.receives) != RECEIVES {
            return Err(format!("{} receives, for {RECEIVES}", theirs.receives));
        }
        let least = MIN_PAYLOAD_BYTES.max(theirs.eager_bytes);
        if theirs.payload_bytes < least {
            return Err(format!("messages of {} bytes, for {least} at least", theirs.payload_bytes));
        }
        Ok(())
    }

    /// Connects to what the peer has told of.
    pub(super) fn bring_up(
        &mut self,
        theirs: &Hello,
        pairs: &[RailPair],
        devices: &[Device],
        config: &RdmaConfig,
    ) -> Result<(), String> {
        self.payload_bytes = self.payload_bytes.min(theirs.payload_bytes as usize);
        self.their_receives = u32::from(theirs.receives);
        self.budget = self.their_receives;
        let mut common = None;
        let mut refused = None;
        for (at, ((rail, pair), end)) in self.rails.iter_mut().zip(pairs).zip(theirs.ends).enumerate() {
            if !rail.is_alive() || !is_announced(end) {
                rail.kill();
                continue;
            }
            common.get_or_insert(at);
            // One that fails was told of, so it fails as one that is up.
            if let Err(why) = rail.bring_up(end, pair, &devices[rail.device], config) {
                self.failed_early.push((at, Cause::new(CauseKind::Unreachable, why.to_string())));
                refused = Some(why.to_string());
            }
        }
        self.control = common.ok_or("no rail is up on both sides")?;
        match refused {
            Some(why) if self.failed_early.len() >= self.alive() => Err(why),
            _ => Ok(()),
        }
    }

    /// Leaves a rail out before the peer has heard of it.
    pub(super) fn leave_out(&mut self, rail: usize) {
        self.rails[rail].kill();
    }

    /// A port failed before both sides were ready.
    pub(super) fn fail_early(&mut self, rail: usize, cause: Cause) -> Verdict {
        if self.rails[rail].is_alive() && self.failed_early.iter().all(|(r, _)| *r != rail) {
            self.failed_early.push((rail, cause.clone()));
        }
        match self.failed_early.len() < self.alive() {
            true => Verdict::On,
            false => Verdict::Lost(cause),
        }
    }

    /// How payload has moved through its queues; what the peer has written is the matcher's to count.
    pub(super) fn copies(&self) -> Copies {
        Copies {
            copied_bytes: self.copied_bytes + self.copied_in_bytes,
            placed_bytes: self.rails.iter().map(|r| r.written_bytes).sum(),
        }
    }

    pub(super) fn is_generation(&self, generation: u16) -> bool {
        self.generation == generation
    }

    #[inline]
    pub(super) fn id(&self, kind: Request, aux: u32) -> u64 {
        WrId { kind, generation: self.generation, link: self.link, aux }.pack()
    }

    /// The rail of this queue pair of a device: each device has its own numbers.
    #[inline]
    pub(super) fn rail_of(&self, device: usize, number: u32) -> Option<usize> {
        self.rails.iter().position(|r| r.device == device && r.is(number))
    }

    pub(super) fn alive(&self) -> usize {
        self.rails.iter().filter(|r| r.is_alive()).count()
    }

    /// Whether a message may be posted, with or without the receive that is kept back (Q1).
    #[inline]
    fn has_room(&self, kept_back: u32) -> bool {
        distance(self.done, self.next) < SENDS && self.budget > kept_back && self.failover.is_none()
    }

    /// Whether [`Self::fill`] has something to do beside what the matcher has: with several rails it may always.
    #[inline]
    pub(super) fn has_output(&self) -> bool {
        self.rails.len() > 1 || self.owed >= RECEIVES / 2 || self.has_read(self.control)
    }

    /// Whether the peer may soon be out of receives.
    #[inline]
    pub(super) fn is_short(&self) -> bool {
        self.rails[self.control].has_read(RECEIVES as usize / 2) || self.owed >= RECEIVES / 2
    }

    /// Whether receives of this rail are to be posted again: those of messages many at a time, which leaves the peer
    /// enough (Q1), since it is told of those that are posted alone.
    fn has_read(&self, rail: usize) -> bool {
        let of_messages = rail == self.control && self.rails[rail].uncounted == 0;
        self.rails[rail].has_read(if of_messages { RECEIVE_BATCH } else { 1 })
    }

    /// Whether all writes and fences are done.
    fn is_quiet(&self) -> bool {
        let written = self.rails.iter().all(|r| r.writes.is_empty()) && self.redo.is_empty();
        written && self.failover.is_none() && self.are_fences_quiet()
    }

    /// Posts what there is to send. Completions of small sends come from here. Returns whether anything was.
    pub(super) fn fill(
        &mut self,
        much: Much,
        matcher: &mut Matcher,
        notes: &mut VecDeque<Note>,
        holds: &Holds,
        events: &mut Vec<Event>,
    ) -> Result<bool, Cause> {
        let began = self.next;
        let mut written = much == Much::All && self.redo_writes(matcher)?;
        self.post_receives()?;
        if self.rails.len() > 1 {
            self.post_fences()?;
        }
        while self.has_room(1) {
            if let Some(frame) = self.about_rails.pop_front() {
                self.send(&frame, &[])?;
                continue;
            }
            if let Some(note) = notes.pop_front() {
                let frame = Frame { length: note.bytes().len() as u64, ..Frame::bare(Kind::Note) };
                self.send(&frame, note.bytes())?;
                continue;
            }
            let writes = much == Much::All && self.rails.iter().any(Rail::has_room);
            if !writes && !matcher.has_small_output() {
                break;
            }
            let (small, large) = (self.payload_bytes as u64, self.write_bytes());
            let limit = |id, place: &Place| match place.is_none() || !holds.contains_key(&id) {
                true => small,
                false => large,
            };
            let Some((frame, payload)) = matcher.next_frame(limit) else { break };
            match payload {
                None => {
                    self.name_rails(&frame);
                    self.send(&self.expose(frame, matcher, holds), &[])?;
                }
                Some(payload) => match holds.get(&payload.id) {
                    Some(held) if frame.kind == Kind::Data && !frame.place.is_none() => {
                        self.write(&frame, &payload, held, matcher)?;
                        written = true;
                    }
                    _ => {
                        let lease = matcher.outgoing(payload.slot);
                        if lease.is_some_and(ReadLease::is_on_device) {
                            return Err(self.violation("receives in memory that its devices do not reach, for memory of a device here"));
                        }
                        let lease = lease.map_or(&[][..], |l| l.bytes());
                        let end = payload.offset + payload.len;
                        self.send(&frame, lease.get(payload.offset..end).unwrap_or(&[]))?;
                        self.copied_bytes += payload.len as u64;
                        matcher.sent(payload.slot, payload.len, events);
                    }
                },
            }
        }
        if self.rails.len() > 1 {
            self.post_fences()?;
        }
        if self.owed >= RECEIVES / 2 && self.has_room(0) {
            self.send(&Frame::bare(Kind::Credit), &[])?;
        }
        Ok(written || self.next != began)
    }

    /// Whether a message may go at once, before nothing that waits to be sent.
    #[inline]
    pub(super) fn sends_now(&self) -> bool {
        self.has_room(1) && self.about_rails.is_empty()
    }

    /// Posts a whole message.
    #[inline]
    pub(super) fn send_whole(&mut self, head: &Whole<'_>, payload: &[u8]) -> Result<(), Cause> {
        self.copied_bytes += payload.len() as u64;
        let (receives, into) = self.next_slot();
        let len = wire::encode_whole(head, receives, payload, into);
        self.post_next(len as u32, false)
    }

    /// Posts one message.
    fn send(&mut self, frame: &Frame, payload: &[u8]) -> Result<(), Cause> {
        if frame.kind == Kind::Bye {
            self.goodbye = Some(self.next);
        }
        let (receives, into) = self.next_slot();
        let head = wire::encode(frame, receives, into);
        into[head..head + payload.len()].copy_from_slice(payload);
        self.post_next((head + payload.len()) as u32, frame.kind == Kind::Bye)
    }

    /// Where the next message goes, and how many receives it tells of.
    #[inline]
    fn next_slot(&mut self) -> (u8, &mut [u8]) {
        let receives = self.owed.min(u32::from(u8::MAX));
        self.owed -= receives;
        let at = (self.next % SENDS) as usize * self.slot_bytes;
        // SAFETY: the slot's last message is done (Q2): `has_room` came before.
        (receives as u8, unsafe { self.ring.bytes_mut(at, self.slot_bytes) })
    }

    /// Posts the next message, which is in its slot.
    #[inline]
    fn post_next(&mut self, len: u32, signaled: bool) -> Result<(), Cause> {
        let number = self.next;
        self.log[(number % SENDS) as usize] = Posted::Message(len);
        self.post_message(number, len, signaled)?;
        self.next = number.wrapping_add(1);
        Ok(())
    }

    /// Posts the message of a number, which is in its slot.
    #[inline]
    pub(super) fn post_message(&mut self, number: u32, len: u32, signaled: bool) -> Result<(), Cause> {
        let at = (number % SENDS) as usize * self.slot_bytes;
        let piece = Sge { addr: self.ring.address(at), len, lkey: self.ring.lkey(self.control) };
        let signaled = signaled || number.wrapping_add(1).is_multiple_of(SIGNAL_EVERY);
        let id = self.id(Request::Send, number);
        self.budget -= 1;
        self.rails[self.control].send(id, piece, signaled)
    }

    /// Takes what a message said of receives back: it is posted again, on another rail.
    pub(super) fn forget_receives(&mut self, number: u32) {
        let at = (number % SENDS) as usize * self.slot_bytes;
        // SAFETY: the rail that the message was posted on is down, and it is not posted on another yet (Q2).
        wire::forget_receives(unsafe { self.ring.bytes_mut(at, self.slot_bytes) });
    }

    /// Posts the message that tells of the failure of `old` on another rail, beside all others.
    pub(super) fn send_about(&mut self, frame: &Frame, old: usize, rail: usize) -> Result<(), Cause> {
        let at = (SENDS as usize + old) * self.slot_bytes;
        // SAFETY: the slot is of this one failure: whatever of it is posted on other rails has the same bytes (Q2).
        let len = wire::encode(frame, 0, unsafe { self.ring.bytes_mut(at, self.slot_bytes) });
        let piece = Sge { addr: self.ring.address(at), len: len as u32, lkey: self.ring.lkey(rail) };
        let id = self.id(Request::About, 0);
        self.rails[rail].send(id, piece, true)
    }

    /// Says that nothing more comes. `false`: there is no room now.
    pub(super) fn say_goodbye(&mut self) -> Result<bool, Cause> {
        if !self.is_quiet() || !self.has_room(0) {
            return Ok(false);
        }
        self.send(&Frame::bare(Kind::Bye), &[])?;
        Ok(true)
    }

    /// Whether the goodbye has reached the peer's host.
    pub(super) fn is_goodbye_heard(&self) -> bool {
        self.goodbye.is_some_and(|g| distance(self.done, g) >= SENDS)
    }

    /// Asks the peer's device for a sign of life.
    pub(super) fn pulse(&mut self) -> Result<(), Cause> {
        let id = self.id(Request::Pulse, 0);
        let first = self.rails.iter().position(Rail::is_alive).filter(|_| self.failover.is_some());
        self.rails[first.unwrap_or(self.control)].pulse(id)
    }

    /// Takes the completion of a request of this side.
    pub(super) fn after_request(
        &mut self,
        id: WrId,
        (device, wc): (usize, &WorkCompletion),
        devices: &[Device],
        retired: &Retired,
        matcher: &mut Matcher,
        events: &mut Vec<Event>,
    ) -> Verdict {
        let Some(rail) = self.rail_of(device, wc.qp_num) else { return Verdict::On };
        if !wc.is_success() {
            let cause = self.failed(id.kind, rail, wc, devices);
            return self.after_failure(rail, (cause, false), retired, matcher, events);
        }
        match id.kind {
            Request::Send => self.done_up_to(id.aux, matcher, events),
            Request::Write => {
                let written = self.rails[rail].written();
                if let Some(Write { told: Some(number), .. }) = written {
                    self.done_up_to(number, matcher, events);
                } else if let Some(write) = written {
                    matcher.sent(write.slot, write.len, events);
                }
            }
            Request::Pulse => self.rails[rail].pulsing = false,
            Request::Fence => self.rails[rail].fences.acknowledged(),
            Request::About | Request::Receive | Request::HelloHeard | Request::HelloLeft => {}
        }
        Verdict::On
    }

    /// A rail failed, or its device broke.
    pub(super) fn after_failure(
        &mut self,
        rail: usize,
        (cause, broke): (Cause, bool),
        retired: &Retired,
        matcher: &mut Matcher,
        events: &mut Vec<Event>,
    ) -> Verdict {
        match self.rail_failed(rail, cause, broke) {
            Verdict::On => self.settle(retired, matcher, events),
            over => over,
        }
    }

    /// All messages and telling writes up to this number are with the peer.
    pub(super) fn done_up_to(&mut self, number: u32, matcher: &mut Matcher, events: &mut Vec<Event>) {
        let count = (distance(self.done, number) + 1).min(distance(self.done, self.next));
        for _ in 0..count {
            if let Posted::Write(write) = self.log[(self.done % SENDS) as usize] {
                matcher.sent(write.slot, write.len, events);
            }
            self.done = self.done.wrapping_add(1);
        }
    }

    fn post_receives(&mut self) -> Result<(), Cause> {
        for i in 0..self.rails.len() {
            if !self.has_read(i) {
                continue;
            }
            let (link, generation) = (self.link, self.generation);
            let id = |aux| WrId { kind: Request::Receive, generation, link, aux }.pack();
            let posted = self.rails[i].post_receives(id);
            let posted = posted.map_err(|e| Cause::new(CauseKind::Reset, e.to_string()))?;
            self.owed += if i == self.control { posted } else { 0 };
        }
        Ok(())
    }

    pub(super) fn violation(&self, what: &str) -> Cause {
        Cause::new(CauseKind::Protocol, format!("it {what} (after {} messages)", self.taken))
    }
}
