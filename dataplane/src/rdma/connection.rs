//! One connection: queue pairs, the ring of small messages, and writes of large ones.
//!
//! Small messages are sent into receives that the peer has posted, and large ones written into the place of their
//! receive, the last write with the place's number.
//!
//! Invariants (cited by the tests):
//! - **Q1** A message or numbered write is posted only for a receive that the peer has told of, so that it never finds
//!   none. One receive is kept back for telling of receives, so that both sides can always tell.
//! - **Q2** A send slot is written only when its last message is done, a receive slot read only between its completion
//!   and its next posting.
//! - **Q3** At most [`WRITES`] writes are under way, so that small messages do not wait behind large ones for long.

use super::choice::{RailPair, RdmaConfig};
use super::device::{Device, Way};
use super::handshake::Hello;
use super::registration::{Pinned, Registered};
use super::request::{Kind as Request, WrId, distance};
use super::verbs::{
    Access, PostError, QueuePair, QueuePairKind, QueuePairSpec, ReadyToReceive, ReadyToSend, ReceiveRequest,
    SendOp, SendRequest, Sge, VerbsError, WorkCompletion,
};
use super::wire::{self, OVERHEAD_BYTES};
use crate::transport::matching::{FRAME_BYTES, Frame, Kind, Matcher, Payload, Place, Retired, SlotId};
use crate::transport::{Cause, CauseKind, Event, Note, OpId, Peer};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Receives that are posted for one peer.
pub(super) const RECEIVES: u32 = 64;
/// Messages to one peer that may be under way.
const SENDS: u32 = 64;
/// Writes to one peer that may be under way.
pub(super) const WRITES: usize = 8;
/// Every so many messages, one asks for a completion, which stands for all before it.
const SIGNAL_EVERY: u32 = 16;
/// Requests of the send queue: messages, writes (one more than the limit can slip in), a pulse.
const REQUESTS: u32 = SENDS + WRITES as u32 + 1 + 1;
/// Messages up to this many bytes travel in the request itself, where the device can.
const INLINE_BYTES: u32 = 256;
/// Code of the pause after a message found no receive, which does not happen (Q1): 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;
/// How often it is sent again then.
const RNR_RETRY: u8 = 3;
/// Most tries after the first: soft-RoCE takes the 7 that InfiniBand allows for "for ever", and a dead peer would never
/// be noticed.
const MAX_RETRY_COUNT: u8 = 6;
/// Completion entries that one connection may fill.
pub(super) const ENTRIES: u32 = RECEIVES + REQUESTS;

/// What operations hold.
pub(super) type Holds = HashMap<OpId, Arc<Registered>>;

/// What a connection has come to.
pub(super) enum Verdict {
    /// It goes on.
    On,
    /// The peer has said goodbye.
    Left,
    /// It is over.
    Lost(Cause),
}

/// One end of a rail.
struct End {
    device: usize,
    pair: QueuePair,
    psn: u32,
    max_write_bytes: u64,
    /// Payload under way, oldest first.
    writes: VecDeque<(SlotId, usize)>,
}

/// A connection, from before its peer is known.
pub(super) struct Connection {
    link: u32,
    generation: u16,
    // Before the ring: a queue pair's drop ends what it does with the ring's memory.
    ends: Vec<End>,
    ring: Pinned,
    slot_bytes: usize,
    /// Payload bytes of a message.
    payload_bytes: usize,
    /// Number of the next message, and of the oldest that is not known to be done.
    next: u32,
    done: u32,
    /// Receives of the peer that are left (Q1).
    budget: u32,
    their_receives: u32,
    /// Receives posted again and not told of.
    owed: u32,
    again: Vec<u32>,
    pulsing: bool,
    /// Number of the goodbye.
    goodbye: Option<u32>,
    frames: u64,
    /// Payload bytes written straight from and into place, and copied through the ring.
    pub(super) placed_bytes: u64,
    pub(super) copied_bytes: u64,
}

fn broken(call: &PostError, device: &str) -> Cause {
    Cause::new(CauseKind::Reset, format!("{call} (on {device})"))
}

impl Connection {
    /// Makes the queue pairs of these rails, and posts the receives of the first.
    pub(super) fn new(
        (link, generation): (u32, u16),
        pairs: &[RailPair],
        devices: &mut [Device],
        config: &RdmaConfig,
        payload_bytes: usize,
        psn: u32,
    ) -> Result<Connection, VerbsError> {
        let slot_bytes = (OVERHEAD_BYTES + payload_bytes.max(wire::PLACE_BYTES)).next_multiple_of(64);
        let mut ends = Vec::with_capacity(pairs.len());
        for pair in pairs {
            ends.push(End::new(pair.mine, devices, config, psn)?);
        }
        let first = ends.first().map_or(0, |e| e.device);
        let ring = Pinned::new(&devices[first].domain, (RECEIVES + SENDS) as usize * slot_bytes)?;
        let mut connection = Connection {
            link,
            generation,
            ends,
            ring,
            slot_bytes,
            payload_bytes,
            next: 0,
            done: 0,
            budget: 0,
            their_receives: 0,
            owed: 0,
            again: (0..RECEIVES).collect(),
            pulsing: false,
            goodbye: None,
            frames: 0,
            placed_bytes: 0,
            copied_bytes: 0,
        };
        connection.post_receives().map_err(|e| VerbsError::Call {
            call: e.call,
            device: devices[first].rail.device.clone(),
            errno: e.errno,
        })?;
        connection.owed = 0;
        Ok(connection)
    }

    /// What is to be told of the queue pairs.
    pub(super) fn introduce(&self, hello: &mut Hello) {
        hello.receives = RECEIVES as u16;
        hello.payload_bytes = self.payload_bytes as u32;
        hello.rails = self.ends.len() as u8;
        for (into, end) in hello.ends.iter_mut().zip(&self.ends) {
            *into = (end.pair.number(), end.psn);
        }
    }

    /// Connects to what the peer has told of.
    pub(super) fn bring_up(
        &mut self,
        theirs: &Hello,
        pairs: &[RailPair],
        devices: &[Device],
        config: &RdmaConfig,
    ) -> Result<(), VerbsError> {
        self.payload_bytes = self.payload_bytes.min(theirs.payload_bytes as usize);
        self.their_receives = u32::from(theirs.receives);
        self.budget = self.their_receives;
        self.ends.truncate(usize::from(theirs.rails));
        for ((end, pair), (number, psn)) in self.ends.iter_mut().zip(pairs).zip(theirs.ends) {
            let way = Way::of(pair);
            end.pair.to_rtr(&ReadyToReceive {
                route: devices[end.device].route(config, &way),
                destination_qp: number,
                path_mtu_bytes: pair.mtu.bytes(),
                receive_psn: psn,
                min_rnr_timer: MIN_RNR_TIMER,
                max_reads_served: 1,
            })?;
            end.pair.to_rts(&ReadyToSend {
                send_psn: end.psn,
                timeout: config.timeout,
                retry_count: config.retry_count.min(MAX_RETRY_COUNT),
                rnr_retry: RNR_RETRY,
                max_reads_issued: 1,
            })?;
        }
        Ok(())
    }

    pub(super) fn is_generation(&self, generation: u16) -> bool {
        self.generation == generation
    }

    /// The devices in use, by index.
    pub(super) fn devices(&self) -> impl Iterator<Item = usize> + '_ {
        self.ends.iter().map(|e| e.device)
    }

    fn request(&self, kind: Request, aux: u32) -> u64 {
        WrId { kind, generation: self.generation, link: self.link, aux }.pack()
    }

    /// Whether a message may be posted, with or without the receive that is kept back (Q1).
    fn has_room(&self, kept_back: u32) -> bool {
        distance(self.done, self.next) < SENDS && self.budget > kept_back
    }

    /// Whether all messages and writes are done.
    pub(super) fn is_quiet(&self) -> bool {
        self.ends.iter().all(|e| e.writes.is_empty())
    }

    /// Posts what there is to send. Completions of small sends come from here. Returns whether anything was.
    pub(super) fn fill(
        &mut self,
        matcher: &mut Matcher,
        notes: &mut VecDeque<Note>,
        holds: &Holds,
        events: &mut Vec<Event>,
    ) -> Result<bool, Cause> {
        let began = self.next;
        let mut written = false;
        self.repost()?;
        while self.has_room(1) {
            if let Some(note) = notes.pop_front() {
                let frame = Frame { length: note.bytes().len() as u64, ..Frame::bare(Kind::Note) };
                self.send(&frame, note.bytes())?;
                continue;
            }
            if self.ends[0].writes.len() >= WRITES && !matcher.has_small_output() {
                break;
            }
            let (small, large) = (self.payload_bytes as u64, self.ends[0].max_write_bytes.min(FRAME_BYTES));
            let limit = |id, place: &Place| match place.is_none() || !holds.contains_key(&id) {
                true => small,
                false => large,
            };
            let Some((frame, payload)) = matcher.next_frame(limit) else { break };
            match payload {
                None => self.send(&expose(frame, matcher, holds, self.ends[0].device), &[])?,
                Some(payload) => match holds.get(&payload.id) {
                    Some(held) if frame.kind == Kind::Data && !frame.place.is_none() => {
                        self.write(&frame, &payload, held, matcher)?;
                        written = true;
                    }
                    _ => {
                        let lease = matcher.outgoing(payload.slot).map_or(&[][..], |l| l.bytes());
                        let end = payload.offset + payload.len;
                        self.send(&frame, lease.get(payload.offset..end).unwrap_or(&[]))?;
                        self.copied_bytes += payload.len as u64;
                        matcher.sent(payload.slot, payload.len, events);
                    }
                },
            }
        }
        if self.owed >= RECEIVES / 2 && self.has_room(0) {
            self.send(&Frame::bare(Kind::Credit), &[])?;
        }
        Ok(written || self.next != began)
    }

    /// Posts one message.
    fn send(&mut self, frame: &Frame, payload: &[u8]) -> Result<(), Cause> {
        let slot = (RECEIVES + self.next % SENDS) as usize * self.slot_bytes;
        let receives = self.owed.min(u32::from(u8::MAX));
        self.owed -= receives;
        // SAFETY: the slot's last message is done (Q2): `has_room` came before.
        let into = unsafe { self.ring.bytes_mut(slot, self.slot_bytes) };
        let head = wire::encode(frame, receives as u8, into);
        into[head..head + payload.len()].copy_from_slice(payload);
        let len = (head + payload.len()) as u32;
        let piece = Sge { addr: self.ring.address(slot), len, lkey: self.ring.lkey() };
        let request = SendRequest {
            wr_id: self.request(Request::Send, self.next),
            op: SendOp::Send,
            sges: &[piece],
            signaled: (self.next + 1).is_multiple_of(SIGNAL_EVERY) || frame.kind == Kind::Bye,
            inline: len <= self.ends[0].pair.capacity().max_inline_bytes,
            fence: false,
            solicited: false,
            to: None,
        };
        // SAFETY: the slot is not written again before a completion says that the message is done (Q2), and the ring
        // outlives the queue pair.
        let posted = unsafe { self.ends[0].pair.post_send(&[request]) };
        posted.map_err(|e| broken(&e, "the queue pair of small messages"))?;
        if frame.kind == Kind::Bye {
            self.goodbye = Some(self.next);
        }
        self.next = self.next.wrapping_add(1);
        self.budget -= 1;
        Ok(())
    }

    /// Posts a write of payload into its place.
    fn write(
        &mut self,
        frame: &Frame,
        payload: &Payload,
        held: &Registered,
        matcher: &Matcher,
    ) -> Result<(), Cause> {
        let wr_id = self.request(Request::Write, 0);
        let end = &mut self.ends[0];
        // Withdrawn at this very moment: it is told of by its own frame, and nothing is to be written.
        let Some(lease) = matcher.outgoing(payload.slot) else { return Ok(()) };
        let piece = Sge {
            addr: lease.as_ptr().addr() as u64 + payload.offset as u64,
            len: payload.len as u32,
            lkey: held.lkey(end.device),
        };
        let remote = frame.place.address.wrapping_add(payload.offset as u64);
        let rkey = frame.place.keys[0];
        let index = SlotId(frame.slot).index() as u32;
        let op = match payload.last {
            true => SendOp::WriteWithImm { remote, rkey, imm: index },
            false => SendOp::Write { remote, rkey },
        };
        let request = SendRequest {
            wr_id,
            op,
            sges: std::slice::from_ref(&piece),
            signaled: true,
            inline: false,
            fence: false,
            solicited: false,
            to: None,
        };
        // SAFETY: the lease stays with the matcher until this write's completion has been told to it (M6), or the queue
        // pair is gone; its registration is held as long (G1).
        let posted = unsafe { end.pair.post_send(&[request]) };
        posted.map_err(|e| broken(&e, "the queue pair of writes"))?;
        end.writes.push_back((payload.slot, payload.len));
        self.budget -= u32::from(payload.last);
        self.placed_bytes += payload.len as u64;
        Ok(())
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

    /// Asks the peer's device for a sign of life, unless one is asked for already.
    pub(super) fn pulse(&mut self) -> Result<(), Cause> {
        if std::mem::replace(&mut self.pulsing, true) {
            return Ok(());
        }
        let request = SendRequest {
            wr_id: self.request(Request::Pulse, 0),
            // An empty write needs neither address nor key (InfiniBand architecture, C9-88).
            op: SendOp::Write { remote: 0, rkey: 0 },
            sges: &[],
            signaled: true,
            inline: false,
            fence: false,
            solicited: false,
            to: None,
        };
        // SAFETY: it has no memory.
        let posted = unsafe { self.ends[0].pair.post_send(&[request]) };
        posted.map_err(|e| broken(&e, "the queue pair of small messages"))
    }

    /// Takes the completion of a request of this side.
    pub(super) fn after_request(
        &mut self,
        id: WrId,
        wc: &WorkCompletion,
        devices: &[Device],
        matcher: &mut Matcher,
        events: &mut Vec<Event>,
    ) -> Verdict {
        if !wc.is_success() {
            return Verdict::Lost(self.failed(id.kind, wc, devices));
        }
        match id.kind {
            Request::Send => {
                let done = distance(self.done, id.aux) + 1;
                self.done = self.done.wrapping_add(done.min(distance(self.done, self.next)));
            }
            Request::Write => {
                if let Some((slot, len)) = self.ends[0].writes.pop_front() {
                    matcher.sent(slot, len, events);
                }
            }
            Request::Pulse => self.pulsing = false,
            Request::Receive | Request::HelloHeard | Request::HelloLeft => {}
        }
        Verdict::On
    }

    /// Takes what came into a receive.
    pub(super) fn after_receive(
        &mut self,
        slot: u32,
        wc: &WorkCompletion,
        devices: &[Device],
        (peer, retired): (Peer, &Retired),
        matcher: &mut Matcher,
        events: &mut Vec<Event>,
    ) -> Verdict {
        if !wc.is_success() {
            return Verdict::Lost(self.failed(Request::Receive, wc, devices));
        }
        self.frames += 1;
        let taken = match wc.imm {
            Some(index) => matcher.landed(index, events).map(|()| false).map_err(|v| v.to_string()),
            None => self.take(slot, wc.byte_len as usize, (peer, retired), matcher, events),
        };
        self.again.push(slot);
        match taken {
            Ok(false) => Verdict::On,
            Ok(true) => Verdict::Left,
            Err(what) => Verdict::Lost(self.violation(&what)),
        }
    }

    /// Takes a message. `true`: it is a goodbye.
    fn take(
        &mut self,
        slot: u32,
        len: usize,
        (peer, retired): (Peer, &Retired),
        matcher: &mut Matcher,
        events: &mut Vec<Event>,
    ) -> Result<bool, String> {
        // SAFETY: the receive has completed, and is posted again only after this (Q2).
        let message = unsafe { self.ring.bytes(slot as usize * self.slot_bytes, len.min(self.slot_bytes)) };
        let (frame, receives, payload) = wire::decode(message).map_err(|e| e.to_string())?;
        self.budget += u32::from(receives);
        if self.budget > self.their_receives {
            return Err(format!("told of {receives} receives, more than it has"));
        }
        match frame.kind {
            Kind::Bye => return Ok(true),
            Kind::Note => {
                let note =
                    Note::new(payload).ok_or_else(|| format!("sent a note of {} bytes", payload.len()))?;
                events.push(Event::Note { from: peer, note: Box::new(note) });
            }
            _ => {
                let body = matcher.accept(&frame, retired, events).map_err(|v| v.to_string())?;
                if let Some(mut body) = body {
                    if let Some(into) = matcher.buffer(&body) {
                        into.copy_from_slice(payload);
                    }
                    matcher.advance(&mut body, payload.len(), events);
                }
            }
        }
        Ok(false)
    }

    fn repost(&mut self) -> Result<(), Cause> {
        self.post_receives().map_err(|e| broken(&e, "the queue pair of small messages"))
    }

    fn post_receives(&mut self) -> Result<(), PostError> {
        while let Some(slot) = self.again.last().copied() {
            let piece = Sge {
                addr: self.ring.address(slot as usize * self.slot_bytes),
                len: self.slot_bytes as u32,
                lkey: self.ring.lkey(),
            };
            let request = ReceiveRequest { wr_id: self.request(Request::Receive, slot), sges: &[piece] };
            // SAFETY: the slot has been read (Q2), and the ring outlives the queue pair.
            unsafe { self.ends[0].pair.post_receive(&[request])? };
            self.again.pop();
            self.owed += 1;
        }
        Ok(())
    }

    fn failed(&self, kind: Request, wc: &WorkCompletion, devices: &[Device]) -> Cause {
        let what = match kind {
            Request::Receive => "a receive",
            Request::Send => "a message",
            Request::Write => "a write",
            Request::Pulse => "a sign of life that was asked for",
            Request::HelloHeard | Request::HelloLeft => "a hello",
        };
        let device = self.ends.first().map_or("", |e| devices[e.device].rail.device.as_str());
        let evidence = format!(
            "{what} on queue pair {} of {device} ended with: {} (vendor {:#x}), after {} messages from the peer",
            wc.qp_num, wc.status, wc.vendor_error, self.frames
        );
        Cause::new(CauseKind::Reset, evidence)
    }

    fn violation(&self, what: &str) -> Cause {
        Cause::new(CauseKind::Protocol, format!("it {what} (after {} messages)", self.frames))
    }
}

impl End {
    fn new(device: usize, devices: &mut [Device], config: &RdmaConfig, psn: u32) -> Result<End, VerbsError> {
        let on = &mut devices[device];
        on.reserve(ENTRIES)?;
        let spec = QueuePairSpec {
            kind: QueuePairKind::ReliableConnection,
            send_queue: Arc::clone(&on.completions),
            receive_queue: Arc::clone(&on.completions),
            shared_receives: None,
            max_sends: REQUESTS,
            max_receives: RECEIVES,
            max_send_sges: 1,
            max_receive_sges: 1,
            max_inline_bytes: INLINE_BYTES,
            signal_all: false,
        };
        let made = QueuePair::create(&on.domain, &spec).and_then(|mut pair| {
            pair.to_init(on.rail.port, on.rail.pkey_index, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
            Ok(pair)
        });
        let pair = made.inspect_err(|_| on.unreserve(ENTRIES))?;
        let max_write_bytes = u64::from(on.port.max_message_bytes).max(1);
        let _ = config;
        Ok(End { device, pair, psn, max_write_bytes, writes: VecDeque::new() })
    }
}

/// Gives a `Cts` the address of its receive, where that is registered.
fn expose(frame: Frame, matcher: &mut Matcher, holds: &Holds, device: usize) -> Frame {
    let slot = SlotId(frame.slot);
    if frame.kind != Kind::Cts {
        return frame;
    }
    let Some((id, lease)) = matcher.incoming(slot) else { return frame };
    let Some(held) = holds.get(&id) else { return frame };
    let mut place = Place { address: lease.as_ptr().addr() as u64, ..Place::default() };
    place.keys[0] = held.rkey(device);
    matcher.expose(slot);
    Frame { place, ..frame }
}

impl Way {
    /// The peer's end of a rail.
    pub(super) fn of(pair: &RailPair) -> Way {
        Way { lid: pair.their_lid, gid: pair.their_gid, gid_index: pair.my_gid_index.filter(|_| pair.global) }
    }
}
