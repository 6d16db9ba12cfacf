//! One end of a rail: a queue pair, the receives that are posted on it, and the writes under way.
//!
//! Invariants (cited by the tests):
//! - **Q2** A receive slot is read only between its completion and its next posting.

use super::choice::{MAX_RAILS, RailPair, RdmaConfig};
use super::device::{Device, Way};
use super::ends::{FENCES, Speaker};
use super::failover::DRAIN_MS;
use super::registration::Pinned;
use super::verbs::{
    Access, PostError, QueuePair, QueuePairKind, QueuePairSpec, ReadyToReceive, ReadyToSend, ReceiveRequest,
    SendOp, SendRequest, Sge, VerbsError,
};
use crate::transport::matching::{Place, SlotId};
use crate::transport::{Cause, CauseKind};
use std::collections::VecDeque;
use std::sync::Arc;

/// Receives that a peer may count on.
pub(super) const RECEIVES: u32 = 64;
/// Receives beside those: for fences, and for messages about rails, of which there is one for each that fails.
const SPARE_RECEIVES: u32 = FENCES + MAX_RAILS as u32;
/// Receives that are posted again at a time.
pub(super) const RECEIVE_BATCH: usize = 16;
/// Messages to one peer that may be under way.
pub(super) const SENDS: u32 = 64;
/// Writes on one rail that may be under way.
pub(super) const WRITES: usize = 8;
/// Requests of the send queue: messages, writes (one more than the limit can slip in), a pulse, fences, and messages
/// about rails.
const REQUESTS: u32 = SENDS + WRITES as u32 + 2 + SPARE_RECEIVES;
/// Messages up to this many bytes travel in the request itself, where the device can.
const INLINE_BYTES: u32 = 256;
/// Code of the pause after a message found no receive, which does not happen: 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;
/// How often it is sent again then.
const RNR_RETRY: u8 = 3;
/// Most tries after the first: soft-RoCE takes the 7 that InfiniBand allows for "for ever", and a dead peer would never
/// be noticed.
const MAX_RETRY_COUNT: u8 = 6;
/// Completion entries that one rail may fill.
pub(super) const ENTRIES: u32 = RECEIVES + SPARE_RECEIVES + REQUESTS;

/// A write of payload into its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub(super) slot: SlotId,
    /// Where it is in this process's memory.
    pub(super) from: u64,
    pub(super) len: usize,
    /// Where it goes: the number of the place, and its address with the offset.
    pub(super) to: SlotId,
    pub(super) place: Place,
    /// This process's keys, by rail.
    pub(super) lkeys: [u32; MAX_RAILS],
    /// Number among the messages, where it tells of the end itself.
    pub(super) told: Option<u32>,
}

/// One end of a rail.
pub(super) struct Rail {
    pub(super) device: usize,
    // Before the ring: a queue pair's drop ends what it does with the ring's memory.
    pair: Option<QueuePair>,
    ring: Option<Pinned>,
    slot_bytes: usize,
    psn: u32,
    pub(super) max_write_bytes: u64,
    inline_bytes: u32,
    /// Under way, oldest first.
    pub(super) writes: VecDeque<Write>,
    pub(super) under_way_bytes: usize,
    /// Payload bytes written so far, straight from the memory that was lent into the memory of the receive.
    pub(super) written_bytes: u64,
    /// Receive slots to post again, and how many are posted.
    again: Vec<u32>,
    pub(super) posted: u32,
    pub(super) pulsing: bool,
    /// Receives to post again of which the peer did not count on.
    pub(super) uncounted: u32,
    /// What this side says of ends, and the peer's fences that are to be given back.
    pub(super) fences: Speaker,
    pub(super) fences_owed: u32,
    /// It has failed: nothing more is posted.
    failed: bool,
    stopped_ms: Option<u64>,
}

impl Rail {
    /// One that is left out.
    pub(super) fn absent(device: usize) -> Rail {
        Rail {
            device,
            pair: None,
            ring: None,
            slot_bytes: 0,
            psn: 0,
            max_write_bytes: 1,
            inline_bytes: 0,
            writes: VecDeque::new(),
            under_way_bytes: 0,
            written_bytes: 0,
            again: Vec::new(),
            posted: 0,
            pulsing: false,
            uncounted: 0,
            fences: Speaker::default(),
            fences_owed: 0,
            failed: false,
            stopped_ms: None,
        }
    }

    /// Makes the queue pair, and posts its receives.
    pub(super) fn new(
        device: usize,
        devices: &mut [Device],
        slot_bytes: usize,
        psn: u32,
        receive_id: impl Fn(u32) -> u64,
    ) -> Result<Rail, VerbsError> {
        let on = &mut devices[device];
        on.reserve(ENTRIES)?;
        let made = Rail::make(device, on, slot_bytes, psn, receive_id);
        made.inspect_err(|_| on.unreserve(ENTRIES))
    }

    fn make(
        device: usize,
        on: &Device,
        slot_bytes: usize,
        psn: u32,
        receive_id: impl Fn(u32) -> u64,
    ) -> Result<Rail, VerbsError> {
        let spec = QueuePairSpec {
            kind: QueuePairKind::ReliableConnection,
            send_queue: Arc::clone(&on.completions),
            receive_queue: Arc::clone(&on.completions),
            shared_receives: None,
            max_sends: REQUESTS,
            max_receives: RECEIVES + SPARE_RECEIVES,
            max_send_sges: 1,
            max_receive_sges: 1,
            max_inline_bytes: INLINE_BYTES,
            signal_all: false,
        };
        let mut pair = QueuePair::create(&on.domain, &spec)?;
        pair.to_init(on.rail.port, on.rail.pkey_index, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let receives = RECEIVES + SPARE_RECEIVES;
        let ring = Pinned::new(&[Some(Arc::clone(&on.domain))], receives as usize * slot_bytes)?;
        let inline_bytes = pair.capacity().max_inline_bytes;
        let mut rail = Rail {
            pair: Some(pair),
            ring: Some(ring),
            slot_bytes,
            psn,
            max_write_bytes: u64::from(on.port.max_message_bytes).max(1),
            inline_bytes,
            again: (0..receives).collect(),
            ..Rail::absent(device)
        };
        let posted = rail.post_receives(receive_id);
        posted.map_err(|e| VerbsError::Call {
            call: e.call,
            device: on.rail.device.clone(),
            errno: e.errno,
        })?;
        Ok(rail)
    }

    /// Gives back what [`Self::new`] has reserved.
    pub(super) fn unreserve(&self, devices: &mut [Device]) {
        if self.ring.is_some() {
            devices[self.device].unreserve(ENTRIES);
        }
    }

    /// Number of the queue pair and of its first packet; zeros where it is left out.
    pub(super) fn end(&self) -> (u32, u32) {
        self.pair.as_ref().map_or((0, 0), |pair| (pair.number(), self.psn))
    }

    /// Connects to the peer's queue pair.
    pub(super) fn bring_up(
        &mut self,
        (number, psn): (u32, u32),
        to: &RailPair,
        device: &Device,
        config: &RdmaConfig,
    ) -> Result<(), VerbsError> {
        let Some(pair) = &mut self.pair else { return Ok(()) };
        pair.to_rtr(&ReadyToReceive {
            route: device.route(config, &Way::of(to)),
            destination_qp: number,
            path_mtu_bytes: to.mtu.bytes(),
            receive_psn: psn,
            min_rnr_timer: MIN_RNR_TIMER,
            max_reads_served: 1,
        })?;
        pair.to_rts(&ReadyToSend {
            send_psn: self.psn,
            timeout: config.timeout,
            retry_count: config.retry_count.min(MAX_RETRY_COUNT),
            rnr_retry: RNR_RETRY,
            max_reads_issued: 1,
        })
    }

    /// Whether it carries data.
    #[inline]
    pub(super) fn is_alive(&self) -> bool {
        self.pair.is_some() && !self.failed
    }

    /// Whether nothing of the peer's can come in here any more.
    pub(super) fn is_down(&self) -> bool {
        self.pair.is_none()
    }

    /// Whether it has failed, and all that had come in was taken.
    pub(super) fn is_drained(&self) -> bool {
        self.failed && self.pair.is_some() && self.posted == 0
    }

    /// Whether it has been stopped for longer than it may take to end its requests.
    pub(super) fn is_stuck(&mut self, now_ms: u64) -> bool {
        self.failed && self.pair.is_some() && now_ms >= *self.stopped_ms.get_or_insert(now_ms) + DRAIN_MS
    }

    /// When [`Self::is_stuck`] is to be asked next, if it is stopped.
    pub(super) fn drain_due_ms(&self, now_ms: u64) -> Option<u64> {
        (self.failed && self.pair.is_some()).then(|| self.stopped_ms.map_or(now_ms, |since| since + DRAIN_MS))
    }

    /// Whether this queue pair is the rail's.
    #[inline]
    pub(super) fn is(&self, number: u32) -> bool {
        self.pair.as_ref().is_some_and(|p| p.number() == number)
    }

    /// Whether another write may be under way.
    pub(super) fn has_room(&self) -> bool {
        self.is_alive() && self.writes.len() < WRITES
    }

    /// Marks it as failed. `false`: it was already.
    pub(super) fn fail(&mut self) -> bool {
        // What is posted from now on might never end.
        !std::mem::replace(&mut self.failed, true)
    }

    /// Lets the device end all requests, so that what came in before can be told from what did not. `false`: it cannot.
    pub(super) fn stop(&mut self) -> bool {
        let Some(pair) = &mut self.pair else { return false };
        pair.to_error().inspect_err(|why| tracing::warn!("{why}")).is_ok()
    }

    /// Breaks it as a failing device would.
    #[cfg(test)]
    pub(super) fn break_down(&mut self) {
        self.stop();
    }

    /// Takes the queue pair down: nothing of the peer's comes in here any more.
    pub(super) fn kill(&mut self) -> VecDeque<Write> {
        self.pair = None;
        self.under_way_bytes = 0;
        self.pulsing = false;
        std::mem::take(&mut self.writes)
    }

    // Each kind of request has a copy of it, with nothing left to ask about the kind.
    #[inline(always)]
    fn post(&mut self, request: &SendRequest<'_>) -> Result<(), Cause> {
        let Some(pair) = &mut self.pair else { return Ok(()) };
        // SAFETY: whoever fills the request promises that its memory stays: the send ring's slots until the message is
        // done (Q2 of `connection`), a lease until the matcher hears that its write is done (M6 of `matching`).
        let posted = unsafe { pair.post_one(request) };
        posted.map_err(|e| refused(&e))
    }

    /// Posts a message out of registered memory.
    #[inline]
    pub(super) fn send(&mut self, wr_id: u64, piece: Sge, signaled: bool) -> Result<(), Cause> {
        let inline = piece.len <= self.inline_bytes;
        self.post(&request(wr_id, SendOp::Send, &[piece], signaled, inline))
    }

    /// Posts a write; `rail` is the index of this rail.
    pub(super) fn write(&mut self, wr_id: u64, rail: usize, write: Write) -> Result<(), Cause> {
        let (remote, rkey) = (write.place.address, write.place.keys[rail]);
        let op = match write.told {
            Some(_) => SendOp::WriteWithImm { remote, rkey, imm: write.to.index() as u32 },
            None => SendOp::Write { remote, rkey },
        };
        let piece = Sge { addr: write.from, len: write.len as u32, lkey: write.lkeys[rail] };
        let pieces = if write.len == 0 { &[][..] } else { std::slice::from_ref(&piece) };
        self.post(&request(wr_id, op, pieces, true, false))?;
        self.under_way_bytes += write.len;
        self.writes.push_back(write);
        Ok(())
    }

    /// The oldest write is done.
    pub(super) fn written(&mut self) -> Option<Write> {
        let write = self.writes.pop_front()?;
        self.under_way_bytes -= write.len;
        self.written_bytes += write.len as u64;
        Some(write)
    }

    /// Asks the peer's device for a sign of life, unless one is asked for already.
    pub(super) fn pulse(&mut self, wr_id: u64) -> Result<(), Cause> {
        if std::mem::replace(&mut self.pulsing, true) {
            return Ok(());
        }
        // An empty write needs neither address nor key (InfiniBand architecture, C9-88).
        self.post(&request(wr_id, SendOp::Write { remote: 0, rkey: 0 }, &[], true, false))
    }

    /// Posts a fence.
    pub(super) fn fence(&mut self, wr_id: u64, imm: u32) -> Result<(), Cause> {
        self.post(&request(wr_id, SendOp::WriteWithImm { remote: 0, rkey: 0, imm }, &[], true, false))
    }

    /// The message in a slot whose receive has completed.
    #[inline]
    pub(super) fn message(&mut self, slot: u32, len: usize) -> &[u8] {
        let at = slot as usize * self.slot_bytes;
        let Some(ring) = &self.ring else { return &[] };
        // SAFETY: the caller has the slot's completion, and gives it to `again` after this (Q2).
        unsafe { ring.bytes(at, len.min(self.slot_bytes)) }
    }

    /// A receive has completed.
    #[inline]
    pub(super) fn received(&mut self) {
        self.posted -= 1;
    }

    /// The slot has been read.
    #[inline]
    pub(super) fn again(&mut self, slot: u32) {
        self.again.push(slot);
    }

    /// Whether so many receives are to be posted again.
    pub(super) fn has_read(&self, least: usize) -> bool {
        self.again.len() >= least && !self.failed && self.is_alive()
    }

    /// Posts the receives that have been read; how many of those that the peer counts on.
    pub(super) fn post_receives(&mut self, wr_id: impl Fn(u32) -> u64) -> Result<u32, PostError> {
        let mut count = 0;
        if self.failed {
            return Ok(0);
        }
        while let (false, Some(pair), Some(ring)) = (self.again.is_empty(), &mut self.pair, &self.ring) {
            let first = self.again.len().saturating_sub(RECEIVE_BATCH);
            let slots = &self.again[first..];
            let mut pieces = [Sge::default(); RECEIVE_BATCH];
            for (piece, slot) in pieces.iter_mut().zip(slots) {
                *piece = Sge {
                    addr: ring.address(*slot as usize * self.slot_bytes),
                    len: self.slot_bytes as u32,
                    lkey: ring.lkey(0),
                };
            }
            let requests: [ReceiveRequest<'_>; RECEIVE_BATCH] = std::array::from_fn(|i| ReceiveRequest {
                wr_id: slots.get(i).map_or(0, |slot| wr_id(*slot)),
                sges: std::slice::from_ref(&pieces[i]),
            });
            // SAFETY: the slots have been read (Q2), and the ring outlives the queue pair.
            unsafe { pair.post_receive(&requests[..slots.len()])? };
            let posted = slots.len() as u32;
            self.again.truncate(first);
            self.posted += posted;
            let uncounted = self.uncounted.min(posted);
            self.uncounted -= uncounted;
            count += posted - uncounted;
        }
        Ok(count)
    }
}

#[cold]
fn refused(why: &PostError) -> Cause {
    Cause::new(CauseKind::Reset, why.to_string())
}

#[inline(always)]
fn request(wr_id: u64, op: SendOp, sges: &[Sge], signaled: bool, inline: bool) -> SendRequest<'_> {
    SendRequest { wr_id, op, sges, signaled, inline, fence: false, solicited: false, to: None }
}

impl Way {
    /// The peer's end of a rail.
    pub(super) fn of(pair: &RailPair) -> Way {
        Way { lid: pair.their_lid, gid: pair.their_gid, gid_index: pair.my_gid_index.filter(|_| pair.global) }
    }
}
