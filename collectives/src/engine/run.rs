//! One call under way: executes its plan's schedule, slice by slice, over any transport.
//!
//! Invariants:
//! - **R1** `posted` counts the operations that the transport holds; the run ends only when it is 0, so that every
//!   region has its leases back.
//! - **R2** Of `n` lanes, lane `l` runs slices `l`, `l + n`, `l + 2n`, ..., one at a time. Slice `s` has the tag of lane
//!   `s` modulo the plan's lanes, also where a narrow run has only one: messages of a tag have the same order on all
//!   ranks.
//! - **R3** A step whose post was refused as `Full` stays unposted, and holds up only what must not overtake it (H2).
//! - **R4** The message of a `Reduce` that no hazard holds up is combined where it lies, if the transport lets it be seen
//!   there. Until a large one has come its receive stays unposted, and it is looked for whenever a poll has moved
//!   something.
//! - **R5** A step whose post was refused as `Gone` is tried once more after a poll, and a fault only then: a transport may
//!   have seen a peer's end, and not have told yet what the peer said last, such as which rank's death it left for.

#![forbid(unsafe_code)]

mod edges;

use super::core::Failure;
use super::fingerprint::{Call, count_stamp, slice_stamp};
use super::hazard::{Ready, WINDOW, Window};
use super::layout::PLACES;
use super::plan::{Plan, Program, Request};
use super::recorder::{Befell, Recorder};
use super::straight::{Stand, Stands};
use super::traffic::Traffic;
use crate::reduce::Kernels;
use crate::schedule::{Rank, Schedule, Span, Step};
use ringway_dataplane::memory::{Lease, LendError, Region};
use ringway_dataplane::transport::{Cause, Found, Op, OpId, Peer, PostError, Stamp, Tag, Transport};
use std::sync::Arc;
use std::time::Instant;

/// Bytes combined before the transport is polled again, so that a long row of reductions leaves no wire idle.
const COMBINE_BYTES: usize = 64 << 10;

/// A step's operation, as its completion names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpName {
    pub(super) slot: u16,
    pub(super) generation: u32,
    pub(super) lane: u8,
    pub(super) place: u8,
}

impl OpName {
    pub(super) fn id(self) -> OpId {
        let low = u64::from(self.lane) << 8 | u64::from(self.place);
        OpId(u64::from(self.slot) << 48 | u64::from(self.generation) << 16 | low)
    }

    pub(super) fn of(id: OpId) -> OpName {
        let OpId(bits) = id;
        OpName {
            slot: (bits >> 48) as u16,
            generation: (bits >> 16) as u32,
            lane: (bits >> 8) as u8,
            place: bits as u8,
        }
    }
}

/// What a run needs of its surroundings to go on.
pub(super) struct Io<'a> {
    pub(super) transport: &'a mut dyn Transport,
    /// The endpoint's number of each rank.
    pub(super) peers: &'a [Peer],
    pub(super) kernels: Kernels,
    pub(super) traffic: &'a mut Traffic,
    pub(super) recorder: &'a mut Recorder,
}

impl Io<'_> {
    /// Counts a message that went at once: no completion tells of it.
    pub(super) fn exchanged(&mut self, with: Peer, sends: bool, bytes: u64) {
        if self.traffic.count(with, sends, bytes) {
            self.recorder.happens(Befell::Reached, None, Some(with), "");
        }
    }
}

/// Why a run cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A peer that the run needs is gone.
    Gone { rank: Rank, cause: Cause },
    /// The other side's message has another stamp or length.
    /// `count` is what this side would exchange, where each pair has a length of its own.
    Mismatch { rank: Rank, theirs: Stamp, count: Option<u64> },
    /// The user's reduction failed.
    Function { message: String },
    /// The transport or the engine broke its own rules.
    Broken { rank: Rank, evidence: String },
}

/// How much of the transport a run may use at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// What its plan says.
    Full,
    /// One lane, with one send and one receive posted, in program order: the regime that schedules finish in at any
    /// depth (schedule invariant I3).
    Narrow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not in use.
    Idle,
    /// Waits for transport depth.
    Queued,
    /// Runs.
    Active,
    /// Has failed and waits for its leases.
    Failing,
    /// Over; the owner takes the regions and the outcome.
    Done,
}

/// R5: whether a post was refused because a peer is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    None,
    /// Since the last poll.
    Untold,
    /// Before the last poll.
    Told,
}

#[derive(Debug, Default)]
struct Lane {
    window: Window,
    slice: u32,
    busy: bool,
    /// Free scratch slots, by bit, and the slot of each place.
    free: u32,
    slot_of: [u8; WINDOW],
}

/// A slot for a call. Kept and used again, with its lanes and scratch.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) slot: u16,
    pub(super) generation: u32,
    pub(super) phase: Phase,
    pub(super) group: usize,
    pub(super) rank: Rank,
    pub(super) call: Call,
    pub(super) plan: Arc<Plan>,
    pub(super) request: Request,
    pub(super) regions: [Option<Region>; PLACES],
    pub(super) scratch: Option<Region>,
    pub(super) tag: Tag,
    pub(super) error: Option<Failure>,
    /// A started call: an owned buffer, a future, a progress thread.
    pub(super) started: bool,
    /// A started call whose handle was dropped.
    pub(super) orphan: bool,
    pub(super) waker: Option<std::task::Waker>,
    pub(super) record: u64,
    /// Since when nothing has completed, and how long until the next inquiry.
    pub(super) moved: bool,
    pub(super) still_since: Option<Instant>,
    pub(super) patience_ms: u64,
    /// The rank that cancelled its half of a message of ours.
    pub(super) withdrawn: Option<Rank>,
    /// Whether a post found a queue full (R3).
    pub(super) stalled: bool,
    pub(super) refusal: Refusal,
    /// Transport depth that the run holds while it is active.
    pub(super) depth_taken: u32,
    /// Where the slices of a call go on that was begun at once: the copies before those that were begun are made too.
    pub(super) begun: Option<Stands>,
    width: Width,
    /// Sends and receives that the transport holds.
    sending: u32,
    receiving: u32,
    stamp: Stamp,
    lanes: Vec<Lane>,
    dirty: u32,
    /// Lanes with a step that is looked for (R4).
    looking: u32,
    unfinished: u32,
    pub(super) posted: u32,
}

impl Run {
    /// An idle slot.
    pub(super) fn idle(slot: u16, call: Call, plan: Arc<Plan>, request: Request) -> Run {
        Run {
            slot,
            generation: 0,
            phase: Phase::Idle,
            group: 0,
            rank: 0,
            call,
            plan,
            request,
            regions: [None, None, None],
            scratch: None,
            tag: Tag { group: 0, lane: 0 },
            error: None,
            started: false,
            orphan: false,
            waker: None,
            record: 0,
            moved: false,
            still_since: None,
            patience_ms: 0,
            withdrawn: None,
            stalled: false,
            refusal: Refusal::None,
            depth_taken: 0,
            begun: None,
            width: Width::Full,
            sending: 0,
            receiving: 0,
            stamp: Stamp::default(),
            lanes: Vec::new(),
            dirty: 0,
            looking: 0,
            unfinished: 0,
            posted: 0,
        }
    }

    /// Begins: every lane takes a slice. `check` is whether messages carry the call's stamp.
    #[inline]
    pub(super) fn activate(&mut self, check: bool, width: Width) -> Result<(), Fault> {
        self.phase = Phase::Active;
        self.width = width;
        self.stamp = if check { self.call.stamp() } else { Stamp::default() };
        let lanes = self.width() as usize;
        if self.lanes.len() < lanes {
            self.lanes.resize_with(lanes, Lane::default);
        }
        let over = self.begun.map_or(0, |begun| begun.over);
        self.unfinished = self.plan.layout.slices - over;
        (self.dirty, self.looking) = (0, 0);
        // R2
        (0..lanes as u32)
            .map(|i| over + i)
            .try_for_each(|slice| self.take_slice(slice as usize % lanes, slice))
    }

    /// Lanes that run.
    #[inline]
    fn width(&self) -> u32 {
        match self.width {
            Width::Full => self.plan.lanes,
            Width::Narrow => 1,
        }
    }

    /// R2: begins a slice on an idle lane, if there is one of that number.
    #[inline]
    fn take_slice(&mut self, lane: usize, slice: u32) -> Result<(), Fault> {
        let l = &mut self.lanes[lane];
        l.busy = slice < self.plan.layout.slices;
        if !l.busy {
            return Ok(());
        }
        l.slice = slice;
        l.free = (1u32 << self.plan.slots) - 1;
        let stand = self.begun.and_then(|begun| begun.of(slice));
        let Stand { step, gathered, .. } = stand.unwrap_or_default();
        let gather = self.plan.layout.gather.as_ref().filter(|_| !gathered);
        l.window.restart(step, gather.map(|gather| gather.steps));
        if let Some(Stand { step, ahead, .. }) = stand.filter(|stand| stand.ahead != 0) {
            l.window.slide(&self.plan.program, self.rank);
            let places = (0..WINDOW as u32).filter(|behind| ahead & 1 << behind != 0);
            for place in places.map(|behind| Window::place(step + behind)) {
                l.window.set_posted(place);
                l.window.set_completed(place);
            }
        }
        self.dirty |= 1 << lane;
        match self.plan.layout.before {
            Some(copy) if stand.is_none() => self.copy(copy, slice, lane),
            _ => Ok(()),
        }
    }

    /// Takes back the lease of a completed operation, and notes success. Returns the step that it was for.
    #[inline]
    pub(super) fn complete(&mut self, name: OpName, lease: Lease, ok: bool) -> Result<Step, Fault> {
        let place = usize::from(name.place);
        let lane = usize::from(name.lane);
        let step = self.lanes[lane].window.step(place);
        let home = match step {
            Step::Reduce { .. } => self.scratch.as_mut(),
            Step::Send { span, .. } | Step::Recv { span, .. } => {
                let slice = self.lanes[lane].slice;
                self.regions[self.plan.layout.locate(span, slice, lane).place].as_mut()
            }
        };
        self.posted -= 1;
        *(if step.is_send() { &mut self.sending } else { &mut self.receiving }) -= 1;
        self.moved = true;
        let restored = match home {
            Some(region) => region.restore(lease).map_err(|e| e.to_string()),
            None => Err("a lease came back to a run without its region".to_owned()),
        };
        restored.map_err(|evidence| Fault::Broken { rank: step.peer(), evidence })?;
        if ok {
            self.lanes[lane].window.set_completed(place);
            self.dirty |= 1 << lane;
        }
        Ok(step)
    }

    /// Elements of a step, where each pair of ranks has a length of its own.
    pub(super) fn pair_count(&self, step: Step, name: OpName) -> Option<u64> {
        let lane = usize::from(name.lane);
        let spot = self.plan.layout.locate(step.span(), self.lanes[lane].slice, lane);
        self.plan.pairwise.then_some((spot.bytes.len() / self.plan.layout.caller_bytes) as u64)
    }

    /// Whether the step that has completed was the last of a message.
    #[inline]
    pub(super) fn is_last_of_message(&self) -> bool {
        matches!(self.plan.program, Program::Message(_)) && self.plan.layout.slices == 1 && self.posted == 0
    }

    /// Whether there is something to do without a further completion.
    #[inline]
    pub(super) fn is_dirty(&self) -> bool {
        self.dirty != 0
    }

    /// Marks every busy lane, so that steps which were refused try again: after a poll whose events were looked at.
    pub(super) fn retry(&mut self) {
        self.stalled = false;
        if self.refusal == Refusal::Untold {
            self.refusal = Refusal::Told;
        }
        for lane in 0..self.width() as usize {
            self.dirty |= u32::from(self.lanes[lane].busy) << lane;
        }
    }

    /// R4: something has come.
    #[inline]
    pub(super) fn look_again(&mut self) {
        self.dirty |= std::mem::take(&mut self.looking);
    }

    /// Posts and combines what can be. Stops after [`COMBINE_BYTES`] of combining, to be called again. Returns whether
    /// the call is over.
    pub(super) fn advance(&mut self, io: &mut Io<'_>) -> Result<bool, Fault> {
        let mut budget = COMBINE_BYTES;
        let mut pending = self.dirty;
        while pending != 0 {
            let lane = pending.trailing_zeros() as usize;
            pending &= pending - 1;
            self.dirty &= !(1 << lane);
            self.advance_lane(lane, io, &mut budget)?;
        }
        Ok(self.unfinished == 0)
    }

    fn advance_lane(&mut self, lane: usize, io: &mut Io<'_>, budget: &mut usize) -> Result<(), Fault> {
        while self.lanes[lane].busy {
            self.lanes[lane].window.slide(&self.plan.program, self.rank);
            if self.lanes[lane].window.is_at_gate() {
                self.gather(lane, io.kernels)?;
                self.lanes[lane].window.open_gate();
                continue;
            }
            if self.lanes[lane].window.finished() {
                self.finish_slice(lane, io.kernels)?;
                self.take_slice(lane, self.lanes[lane].slice.saturating_add(self.width()))?;
                continue;
            }
            let mut freed = false;
            for number in self.lanes[lane].window.open() {
                match self.lanes[lane].window.ready(number) {
                    Ready::Waits => {}
                    Ready::Post(step) if self.must_wait(lane, number, step) => {}
                    Ready::Post(step) => freed |= self.post(lane, number, step, io)?,
                    Ready::Combine(_) if *budget == 0 => self.dirty |= 1 << lane,
                    Ready::Combine(span) => {
                        *budget = budget.saturating_sub(self.combine(lane, number, span, io.kernels)?);
                        freed = true;
                    }
                }
            }
            // A step that is over may let the window slide, or an older one use the scratch that a combine freed.
            if !freed {
                break;
            }
        }
        Ok(())
    }

    /// Whether a step that could be posted has to wait because the run is narrow.
    fn must_wait(&self, lane: usize, number: u32, step: Step) -> bool {
        let busy = if step.is_send() { self.sending } else { self.receiving } > 0;
        self.width == Width::Narrow && (busy || self.lanes[lane].window.passes(number, step))
    }

    /// Tag and stamp of a lane's slice.
    fn names(&self, lane: usize) -> (Tag, Stamp) {
        let slice = self.lanes[lane].slice;
        let tag = Tag { group: self.tag.group, lane: self.tag.lane + slice % self.plan.lanes };
        (tag, slice_stamp(&self.stamp, if self.stamp == Stamp::default() { 0 } else { slice }))
    }

    /// Whether the message of a step waits at its sender.
    fn is_large(&self, step: Step, lane: usize) -> bool {
        let bytes = self.plan.layout.locate(step.span(), self.lanes[lane].slice, lane).bytes;
        bytes.len() as u64 > self.plan.eager_bytes
    }

    /// R4: combines the message of a `Reduce` where it lies.
    fn combine_there(
        &mut self,
        lane: usize,
        number: u32,
        step: Step,
        io: &mut Io<'_>,
    ) -> Result<Found, Fault> {
        let ((tag, stamp), rank) = (self.names(lane), step.peer());
        let spot = self.plan.layout.locate(step.span(), self.lanes[lane].slice, lane);
        let (Some(op), Some(dtype)) = (self.request.op, self.plan.dtype) else { return Ok(Found::Other) };
        let Some(region) = self.regions[spot.place].as_mut() else { return Ok(Found::Other) };
        let broken = |evidence: String| Fault::Broken { rank, evidence };
        let acc = region.bytes_mut(spot.bytes).map_err(|e| broken(e.to_string()))?;
        let (kernels, len, mut combined) = (io.kernels, acc.len(), Ok(()));
        let mut take = |bytes: &[u8]| combined = kernels.combine(op, dtype, acc, bytes);
        let peer = io.peers[rank as usize];
        let found = io.transport.take_now(peer, tag, (&stamp, len), 0, &mut take);
        combined.map_err(|e| broken(e.to_string()))?;
        if found == Found::Message {
            io.exchanged(peer, false, len as u64);
            io.recorder.message(self.record);
            let (window, place) = (&mut self.lanes[lane].window, Window::place(number));
            window.set_posted(place);
            window.set_completed(place);
            window.set_combined(place);
            self.moved = true;
        }
        Ok(found)
    }

    /// Posts a step. Returns whether it is over already.
    fn post(&mut self, lane: usize, number: u32, step: Step, io: &mut Io<'_>) -> Result<bool, Fault> {
        let by_kernels = self.request.function.is_none();
        if matches!(step, Step::Reduce { .. }) && by_kernels && self.lanes[lane].window.is_clear(number) {
            match self.combine_there(lane, number, step, io)? {
                Found::Message => return Ok(true),
                Found::Nothing | Found::Behind if self.is_large(step, lane) => {
                    self.looking |= 1 << lane;
                    return Ok(false);
                }
                Found::Nothing | Found::Behind | Found::Other => {}
            }
        }
        let place = Window::place(number);
        let (tag, mut stamp) = self.names(lane);
        let l = &mut self.lanes[lane];
        let rank = step.peer();
        let peer = io.peers[rank as usize];
        let spot = self.plan.layout.locate(step.span(), l.slice, lane);
        if self.plan.pairwise && stamp != Stamp::default() {
            count_stamp(&mut stamp, (spot.bytes.len() / self.plan.layout.caller_bytes) as u64);
        }
        let lent = |e: LendError| Fault::Broken { rank, evidence: e.to_string() };
        let missing = || Fault::Broken { rank, evidence: "a step names memory that the call has not".into() };
        let op = match step {
            Step::Send { .. } => {
                let region = self.regions[spot.place].as_mut().ok_or_else(missing)?;
                if !region.is_on_device() && spot.bytes.len() as u64 <= self.plan.at_once_bytes {
                    let bytes = region.bytes(spot.bytes.clone()).map_err(lent)?;
                    if io.transport.send_now(peer, tag, &stamp, bytes) {
                        io.exchanged(peer, true, bytes.len() as u64);
                        l.window.set_posted(place);
                        l.window.set_completed(place);
                        self.moved = true;
                        return Ok(true);
                    }
                }
                Op::Send { to: peer, tag, stamp, bytes: region.lend_read(spot.bytes).map_err(lent)? }
            }
            Step::Recv { .. } => {
                let region = self.regions[spot.place].as_mut().ok_or_else(missing)?;
                Op::Recv { from: peer, tag, stamp, into: region.lend_write(spot.bytes).map_err(lent)? }
            }
            Step::Reduce { .. } => {
                if l.free == 0 {
                    return Ok(false);
                }
                let slot = l.free.trailing_zeros() as usize;
                let start = (lane * self.plan.slots + slot) * self.plan.slot_bytes;
                let region = self.scratch.as_mut().ok_or_else(missing)?;
                let into = region.lend_write(start..start + spot.bytes.len()).map_err(lent)?;
                l.free &= !(1 << slot);
                l.slot_of[place] = slot as u8;
                Op::Recv { from: peer, tag, stamp, into }
            }
        };
        let name =
            OpName { slot: self.slot, generation: self.generation, lane: lane as u8, place: place as u8 };
        match io.transport.post(name.id(), op) {
            Ok(()) => {
                l.window.set_posted(place);
                self.posted += 1;
                *(if step.is_send() { &mut self.sending } else { &mut self.receiving }) += 1;
                Ok(false)
            }
            Err((why, op)) => {
                self.take_back(lane, place, step, spot.place, op.into_lease(), why).map(|()| false)
            }
        }
    }

    /// Undoes a refused post. R3: `Full` is no fault. R5: nor is `Gone` at first.
    fn take_back(
        &mut self,
        lane: usize,
        place: usize,
        step: Step,
        home: usize,
        lease: Lease,
        why: PostError,
    ) -> Result<(), Fault> {
        let rank = step.peer();
        let home = match step {
            Step::Reduce { .. } => {
                let l = &mut self.lanes[lane];
                l.free |= 1 << l.slot_of[place];
                self.scratch.as_mut()
            }
            Step::Send { .. } | Step::Recv { .. } => self.regions[home].as_mut(),
        };
        if let Some(Err(e)) = home.map(|r| r.restore(lease)) {
            return Err(Fault::Broken { rank, evidence: e.to_string() });
        }
        match why {
            PostError::Full(_) => {
                self.stalled = true;
                Ok(())
            }
            PostError::Gone { cause, .. } if self.refusal == Refusal::Told => {
                Err(Fault::Gone { rank, cause })
            }
            PostError::Gone { .. } => {
                self.refusal = Refusal::Untold;
                Ok(())
            }
            why @ (PostError::Unknown(_) | PostError::OnDevice { .. } | PostError::TooLong { .. }) => {
                Err(Fault::Broken { rank, evidence: why.to_string() })
            }
        }
    }

    /// Combines an arrived message into its span. Returns its bytes.
    fn combine(&mut self, lane: usize, number: u32, span: Span, kernels: Kernels) -> Result<usize, Fault> {
        let place = Window::place(number);
        let l = &mut self.lanes[lane];
        let slot = usize::from(l.slot_of[place]);
        let spot = self.plan.layout.locate(span, l.slice, lane);
        let len = spot.bytes.len();
        if len > 0 {
            let start = (lane * self.plan.slots + slot) * self.plan.slot_bytes;
            let step = l.window.step(place);
            let rank = step.peer();
            let broken = |evidence: String| Fault::Broken { rank, evidence };
            let (Some(scratch), Some(region)) = (self.scratch.as_mut(), self.regions[spot.place].as_mut())
            else {
                return Err(broken("a reduction without memory".into()));
            };
            let incoming = scratch.bytes_mut(start..start + len).map_err(|e| broken(e.to_string()))?;
            let acc = region.bytes_mut(spot.bytes).map_err(|e| broken(e.to_string()))?;
            match (&self.request.function, self.request.op, self.plan.dtype) {
                (Some(function), ..) => {
                    let left = self.plan.program.incoming_is_left(self.rank, &step);
                    function.combine(acc, incoming, left).map_err(|message| Fault::Function { message })?;
                }
                (None, Some(op), Some(dtype)) => {
                    kernels.combine(op, dtype, acc, incoming).map_err(|e| broken(e.to_string()))?;
                }
                _ => return Err(broken("a reduction without an operation".into())),
            }
        }
        l.free |= 1 << slot;
        l.window.set_combined(place);
        Ok(len)
    }

    /// The operations that the transport holds, with their peers.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = (OpId, Step)> + '_ {
        let busy = self.lanes.iter().enumerate().filter(|(_, l)| l.busy);
        busy.flat_map(move |(lane, l)| {
            l.window.open().map(Window::place).filter(|p| l.window.in_flight(*p)).map(move |place| {
                let (slot, generation) = (self.slot, self.generation);
                let name = OpName { slot, generation, lane: lane as u8, place: place as u8 };
                (name.id(), l.window.step(place))
            })
        })
    }

    /// The steps that the run waits for: those with the transport, and those that are looked for (R4).
    pub(super) fn awaited(&self) -> impl Iterator<Item = Step> + '_ {
        let looks = |(lane, l): &(usize, &Lane)| l.busy && self.looking & 1 << lane != 0;
        let looked_for = |l: &Lane, number| match l.window.ready(number) {
            Ready::Post(step @ Step::Reduce { .. }) => Some(step),
            _ => None,
        };
        let looking = self.lanes.iter().enumerate().filter(looks);
        let looked_for =
            looking.flat_map(move |(_, l)| l.window.open().filter_map(move |number| looked_for(l, number)));
        self.in_flight().map(|(_, step)| step).chain(looked_for)
    }

    /// The wakers' and the regions' end: the slot is free for another call.
    #[inline]
    pub(super) fn reset(&mut self) {
        self.phase = Phase::Idle;
        self.generation = self.generation.wrapping_add(1);
        self.waker = None;
        self.error = None;
        (self.started, self.orphan) = (false, false);
        (self.withdrawn, self.stalled, self.refusal) = (None, false, Refusal::None);
        for lane in &mut self.lanes {
            lane.busy = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_names_read_back() {
        let name = OpName { slot: 513, generation: u32::MAX - 1, lane: 15, place: 7 };
        assert_eq!(OpName::of(name.id()), name);
    }
}
