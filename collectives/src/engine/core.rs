//! The engine behind the lock: the endpoint's transport, the calls under way on it, and their communicators.
//!
//! Invariants:
//! - **C1** Every slot is idle, or belongs to one call until its owner takes the outcome.
//! - **C2** The active collective runs together need no more than half of the transport's depth, so that none finds a
//!   queue full that only its own progress could empty; the others wait in the order in which they were called. But the
//!   oldest call of every communicator is always active: where depth is short it runs narrowly (one message each way at
//!   a time), so that ranks may start calls on several communicators in different orders. Messages between two ranks
//!   take from another quarter of the depth, sends and receives each from their own: neither waits behind the other.
//! - **C3** Two active runs of one group never share a tag: their numbers differ by less than [`SEQ_WINDOW`].

#![forbid(unsafe_code)]

use super::error::CollectiveError;
use super::failure::Closed;
use super::fingerprint::{Call, cutting};
use super::group::Group;
use super::layout::{INPUT, OUTPUT, WORK};
use super::options::{EngineOptions, MAX_SLICES_IN_FLIGHT};
use super::plan::{KINDS, Kind, Plan, Request, What};
use super::recorder::{Befell, Ending, Recorder};
use super::run::{Fault, Io, OpName, Phase, Refusal, Run};
use super::straight::Begun;
use super::traffic::Traffic;
use crate::reduce::Kernels;
use crate::schedule::Collective;
use ringway_dataplane::fabric::Patience;
use ringway_dataplane::memory::{AllocError, Ledger, Region};
use ringway_dataplane::transport::{Caps, Completion, Event, OpError, Tag, Transport};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Calls that may be under way on one endpoint.
pub const MAX_CALLS: usize = 256;
/// C3: collective calls of one group that may be apart while both are under way.
pub(super) const SEQ_WINDOW: u32 = 256;
/// Largest tag of a point-to-point message. The lanes of such messages have the top bit.
pub const MAX_TAG: u32 = (1 << 31) - 1;
const MESSAGE_LANES: u32 = 1 << 31;
/// Events that a poll has room for without growing.
const EVENTS: usize = 256;

/// Where a call's regions, input and output, are taken from and put back into. By reference, since moving them costs
/// small calls more than anything else here.
#[derive(Debug)]
pub(super) struct CallRegions<'a> {
    pub(super) input: &'a mut Option<Region>,
    pub(super) output: &'a mut Option<Region>,
}

/// How a run failed. Boxed: every call hands one on, and hardly any has one.
pub(super) type Failure = Box<CollectiveError>;

/// How a call comes to its run.
pub(super) enum Entry {
    New { started: bool },
    Begun(Begun),
}

/// Who polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Driver {
    Nobody,
    Caller,
    Background,
}

pub(super) struct Core {
    pub(super) transport: Box<dyn Transport>,
    pub(super) caps: Caps,
    pub(super) options: EngineOptions,
    pub(super) groups: Vec<Option<Group>>,
    pub(super) runs: Vec<Run>,
    pub(super) free: Vec<u16>,
    pub(super) active: Vec<u16>,
    pub(super) queued: VecDeque<u16>,
    /// Depth that active runs take, by [`Kind`].
    pub(super) depth_used: [u32; KINDS],
    events: Vec<Event>,
    pub(super) kernels: Kernels,
    pub(super) recorder: Recorder,
    pub(super) traffic: Traffic,
    /// Collective calls since one went the way of all calls.
    pub(super) at_once: u32,
    /// Memory of calls at once, as [`WORK`] is of runs.
    pub(super) work: Vec<u8>,
    /// Whether a communicator has died since the record was last written down.
    pub(super) fallen: bool,
    /// Closed communicators, so that late inquiries are answered.
    pub(super) retired: VecDeque<Closed>,
    /// Ids that a split under way may give to its groups.
    pub(super) reserved: Vec<u32>,
    /// Ledgers of borrowed memory, kept so that lending allocates nothing.
    pub(super) ledgers: Vec<Ledger>,
    pub(super) next_tick: Instant,
    /// How long the driver polls before it sleeps.
    pub(super) patience: Patience,
    /// How long calls that are made at once wait for a message.
    pub(super) waits_at_once: Patience,
    pub(super) driver: Driver,
    pub(super) asleep: u32,
    pub(super) followers: u32,
    pub(super) background: bool,
    /// A call that is over left something that goes only by polling (D6).
    pub(super) unsent: bool,
    pub(super) closing: bool,
    /// Started calls that are not over.
    pub(super) started: u32,
    /// Whether a call has ended since this was last looked at.
    pub(super) ended: bool,
    /// Tasks whose calls have ended. Their wakers are foreign code, and are called without the lock.
    pub(super) to_wake: Vec<std::task::Waker>,
}

impl Core {
    pub(super) fn new(transport: Box<dyn Transport>, options: EngineOptions) -> Core {
        Core {
            caps: transport.caps(),
            transport,
            groups: Vec::new(),
            runs: Vec::with_capacity(MAX_CALLS),
            free: Vec::with_capacity(MAX_CALLS),
            active: Vec::with_capacity(MAX_CALLS),
            queued: VecDeque::with_capacity(MAX_CALLS),
            depth_used: [0; KINDS],
            events: Vec::with_capacity(EVENTS),
            kernels: Kernels::best(),
            recorder: Recorder::new(options.recorded_calls),
            traffic: Traffic::default(),
            at_once: 0,
            work: Vec::new(),
            fallen: false,
            retired: VecDeque::new(),
            reserved: Vec::new(),
            ledgers: Vec::new(),
            next_tick: Instant::now(),
            patience: Patience::default(),
            waits_at_once: Patience::default(),
            driver: Driver::Nobody,
            asleep: 0,
            followers: 0,
            background: false,
            unsent: false,
            closing: false,
            started: 0,
            ended: false,
            to_wake: Vec::new(),
            options,
        }
    }

    #[inline]
    pub(super) fn group(&mut self, index: usize) -> &mut Group {
        self.groups[index]
            .as_mut()
            .unwrap_or_else(|| unreachable!("a group lives while a communicator holds it"))
    }

    /// Why a communicator is dead, if it is.
    pub(super) fn check(&mut self, group: usize) -> Result<(), CollectiveError> {
        self.group(group).dead.clone().map_or(Ok(()), Err)
    }

    /// Begins a call. On success the regions stay with the run until [`Core::take`].
    pub(super) fn begin(
        &mut self,
        group: usize,
        name: &'static str,
        request: &Request,
        regions: CallRegions<'_>,
        started: bool,
    ) -> Result<u16, Failure> {
        let g = self.group(group);
        if let Some(dead) = &g.dead {
            return Err(Box::new(dead.clone()));
        }
        let rank = g.info.my_rank;
        let g = self.groups[group].as_mut().unwrap_or_else(|| unreachable!("checked above"));
        let plan = match g.plan(request, &self.options, &self.caps) {
            Ok(plan) => plan,
            Err(why) => {
                let error = CollectiveError::Invalid { rank, call: name, why };
                self.refuse(group, request, &error);
                return Err(Box::new(error));
            }
        };
        let Some(slot) = self.slot(request, &plan) else {
            return Err(Box::new(CollectiveError::TooManyStarted { limit: MAX_CALLS }));
        };
        if let Err(why) = self.furnish(slot, &plan) {
            self.free.push(slot);
            let error = CollectiveError::Memory { rank, call: name, why };
            self.refuse(group, request, &error);
            return Err(Box::new(error));
        }
        self.enter(slot, group, request, plan, regions, Entry::New { started });
        Ok(slot)
    }

    /// C1: an idle slot, or `None` when all are taken.
    pub(super) fn slot(&mut self, request: &Request, plan: &Arc<Plan>) -> Option<u16> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let slot = self.runs.len();
        (slot < MAX_CALLS).then(|| {
            self.runs.push(Run::idle(slot as u16, call_of(request, plan), Arc::clone(plan), request.clone()));
            slot as u16
        })
    }

    /// Whether that many calls can begin.
    pub(super) fn has_room(&self, calls: usize) -> bool {
        self.free.len() + MAX_CALLS - self.runs.len() >= calls
    }

    /// Gives a slot the work area and scratch of its plan, unless what it has from before will do.
    pub(super) fn furnish(&mut self, slot: u16, plan: &Plan) -> Result<(), AllocError> {
        let run = &mut self.runs[usize::from(slot)];
        let in_work = plan.layout.low.is_work() || plan.layout.high.is_work();
        let work = in_work.then_some(plan.work_bytes);
        let scratch = (plan.slots > 0).then(|| plan.scratch_bytes());
        for (have, needed) in [(&mut run.regions[WORK], work), (&mut run.scratch, scratch)] {
            let Some(needed) = needed.filter(|n| have.as_ref().is_none_or(|h| h.len() < *n)) else {
                continue;
            };
            if let Some(old) = have.take() {
                self.transport.deregister(old.id());
                self.options.pool.recycle(old);
            }
            let mut region = self.options.pool.region(needed)?;
            region.reserve(super::hazard::WINDOW * MAX_SLICES_IN_FLIGHT as usize);
            // Unregistered memory works as well, only slower.
            let _ = self.transport.register(&region);
            *have = Some(region);
        }
        Ok(())
    }

    /// The point of no return: the call has a number, and other ranks may count on it.
    pub(super) fn enter(
        &mut self,
        slot: u16,
        group: usize,
        request: &Request,
        plan: Arc<Plan>,
        regions: CallRegions<'_>,
        entry: Entry,
    ) {
        let g = self.groups[group].as_mut().unwrap_or_else(|| unreachable!("the caller holds it"));
        let mut call = call_of(request, &plan);
        let lane = match request.what {
            What::Collective(_) => {
                call = match entry {
                    Entry::New { .. } => g.numbers.take(call, None),
                    Entry::Begun(begun) => begun.call,
                };
                collective_lane(call.seq)
            }
            What::Send { tag, .. } | What::Receive { tag, .. } => message_lane(tag),
        };
        g.open_runs += 1;
        g.last.set(&plan);
        let bytes = request.count as u64 * plan.layout.caller_bytes as u64;
        let run = &mut self.runs[usize::from(slot)];
        run.group = group;
        run.rank = g.info.my_rank;
        run.tag = Tag { group: g.info.id, lane };
        let started = matches!(entry, Entry::New { started: true });
        (run.record, run.begun) = match entry {
            Entry::New { .. } => (self.recorder.begin(g.info.id, call, bytes), None),
            Entry::Begun(begun) => (begun.record, Some(begun.stands)),
        };
        (run.call, run.plan, run.request) = (call, plan, request.clone());
        // Moving a region that is not there costs as much as moving one.
        for (into, from) in [(INPUT, regions.input), (OUTPUT, regions.output)] {
            if from.is_some() {
                run.regions[into] = from.take();
            }
        }
        (run.started, run.moved, run.still_since) = (started, true, None);
        run.phase = Phase::Queued;
        self.started += u32::from(started);
        match self.width(slot).filter(|_| self.queued.is_empty()) {
            Some(width) => self.activate(slot, width),
            None => {
                self.queued.push_back(slot);
                self.activate_queued();
            }
        }
        if request.is_collective() {
            self.hear_out(group, &call);
        }
    }

    /// Lets a run go as far as it can.
    pub(super) fn advance(&mut self, slot: u16) {
        let run = &mut self.runs[usize::from(slot)];
        if run.phase != Phase::Active {
            return;
        }
        let Some(group) = self.groups[run.group].as_ref() else { return };
        let mut io = Io {
            transport: &mut *self.transport,
            peers: &group.peers,
            kernels: self.kernels,
            traffic: &mut self.traffic,
            recorder: &mut self.recorder,
        };
        match run.advance(&mut io) {
            Ok(true) => self.finish(slot, None),
            Ok(false) => {}
            Err(fault) => self.fault(slot, fault),
        }
    }

    /// Polls the transport once, and lets every run go on. Returns whether anything moved.
    pub(super) fn turn(&mut self) -> bool {
        let mut events = std::mem::take(&mut self.events);
        let mut moved = self.transport.poll(&mut events);
        let some = !events.is_empty();
        for event in events.drain(..) {
            self.on_event(event);
        }
        self.events = events;
        let mut at = 0;
        while let Some(&slot) = self.active.get(at) {
            let run = &mut self.runs[usize::from(slot)];
            if (some && run.stalled) || run.refusal == Refusal::Untold {
                run.retry();
            }
            if moved {
                run.look_again();
            }
            if run.is_dirty() {
                moved = true;
                self.advance(slot);
            }
            at += usize::from(self.active.get(at) == Some(&slot));
        }
        moved || some
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Done(completion) => self.on_done(completion),
            Event::Note { from, note } => self.on_note(from, &note),
            Event::Lost { peer, cause } => self.on_lost(peer, &cause),
            // A goodbye hurts only the runs that still need the peer; their operations fail of themselves (T11).
            Event::Left { peer } => self.recorder.happens(Befell::Left, None, Some(peer), ""),
        }
    }

    fn on_done(&mut self, completion: Completion) {
        let name = OpName::of(completion.id);
        let slot = name.slot;
        let open = |r: &&mut Run| {
            r.generation == name.generation && matches!(r.phase, Phase::Active | Phase::Failing)
        };
        let Some(run) = self.runs.get_mut(usize::from(slot)).filter(open) else {
            tracing::error!("a transport completed an operation that nobody has posted: {:?}", completion.id);
            return;
        };
        let (bytes, record, group) = (completion.lease.len() as u64, run.record, run.group);
        let completed = run.complete(name, completion.lease, completion.result.is_ok());
        if let (Ok(step), Ok(())) = (&completed, &completion.result) {
            let (rank, sends) = (step.peer(), step.is_send());
            self.exchanged(group, rank, sends, bytes);
            if !sends {
                self.recorder.message(record);
            }
        }
        let run = &mut self.runs[usize::from(slot)];
        if run.phase == Phase::Failing {
            if run.posted == 0 {
                let error = run.error.take();
                self.finish(slot, error);
            }
            return;
        }
        let step = match completed {
            Ok(step) => step,
            Err(fault) => return self.fault(slot, fault),
        };
        let rank = step.peer();
        match completion.result {
            // A message of one slice is over with its one step.
            Ok(()) if run.is_last_of_message() => self.finish(slot, None),
            Ok(()) => {}
            Err(OpError::PeerLost { cause, .. }) => self.fault(slot, Fault::Gone { rank, cause }),
            Err(OpError::Mismatch { theirs, .. }) => {
                let count = self.runs[usize::from(slot)].pair_count(step, name);
                self.fault(slot, Fault::Mismatch { rank, theirs, count });
            }
            Err(OpError::Cancelled) => self.on_withdrawn(slot, rank),
        }
    }

    /// Counts a message with a rank of a group.
    pub(super) fn exchanged(&mut self, group: usize, rank: u32, sends: bool, bytes: u64) {
        let Some(peer) = self.groups[group].as_ref().map(|g| g.peers[rank as usize]) else { return };
        if self.traffic.count(peer, sends, bytes) {
            self.recorder.happens(Befell::Reached, None, Some(peer), "");
        }
    }

    /// Ends a run: the owner may take its outcome.
    #[inline]
    pub(super) fn finish(&mut self, slot: u16, error: Option<Failure>) {
        let run = &mut self.runs[usize::from(slot)];
        debug_assert_eq!(run.posted, 0, "R1");
        let was_queued = run.phase == Phase::Queued;
        run.phase = Phase::Done;
        self.recorder.end(run.record, if error.is_some() { Ending::Failed } else { Ending::Done });
        run.error = error;
        self.ended = true;
        let depth = run.depth_taken;
        let used = &mut self.depth_used[run.request.kind() as usize];
        if run.started {
            self.started -= 1;
            self.to_wake.extend(run.waker.take());
        }
        let orphan = run.orphan;
        if was_queued {
            self.queued.retain(|s| *s != slot);
        } else {
            self.active.retain(|s| *s != slot);
            *used -= depth;
        }
        if orphan {
            self.take_orphan(slot);
        }
        if !self.queued.is_empty() {
            self.activate_queued();
        }
    }

    /// Takes the outcome of a run that is done, and frees its slot.
    pub(super) fn take(&mut self, slot: u16, regions: CallRegions<'_>) -> Result<(), Failure> {
        let run = &mut self.runs[usize::from(slot)];
        debug_assert_eq!(run.phase, Phase::Done, "C1");
        let result = run.error.take().map_or(Ok(()), Err);
        *regions.input = run.regions[INPUT].take();
        *regions.output = run.regions[OUTPUT].take();
        self.free_slot(slot);
        result
    }

    /// As [`Self::take`], for a call with one region.
    #[inline]
    pub(super) fn take_started(&mut self, slot: u16) -> (Option<Region>, Result<(), Failure>) {
        let run = &mut self.runs[usize::from(slot)];
        debug_assert_eq!(run.phase, Phase::Done, "C1");
        let result = run.error.take().map_or(Ok(()), Err);
        let place = if run.regions[INPUT].is_some() { INPUT } else { OUTPUT };
        let region = run.regions[place].take();
        self.free_slot(slot);
        (region, result)
    }

    #[inline]
    fn free_slot(&mut self, slot: u16) {
        let run = &mut self.runs[usize::from(slot)];
        let group = run.group;
        run.reset();
        self.free.push(slot);
        self.release_group(group);
    }

    /// Takes the outcome of a run whose handle was dropped: its buffers go back to the pool.
    pub(super) fn take_orphan(&mut self, slot: u16) {
        // Nobody is left to be told of a failure.
        if let (Some(region), _) = self.take_started(slot) {
            self.options.pool.recycle(region);
        }
    }

    #[inline]
    fn release_group(&mut self, group: usize) {
        let Some(g) = self.groups[group].as_mut() else { return };
        g.open_runs -= 1;
        if g.closed && g.open_runs == 0 {
            self.retire(group);
        }
    }

    /// Adds a communicator. Its index stays valid until [`Core::close`].
    pub(super) fn add_group(&mut self, mut group: Group) -> usize {
        group.numerics = self.options.numerics;
        group.shares_memory = group.shares_memory_over(&*self.transport);
        group.costs = group.costs_by(&self.options);
        group.here = group.costs_here(&self.options);
        group.numbers.history = cutting(&self.options, (&group.costs, group.here.as_ref()), self.caps.depth);
        self.retired.retain(|closed| closed.id != group.info.id);
        self.recorder.happens(Befell::Made, Some(group.info.id), None, "");
        match self.groups.iter().position(Option::is_none) {
            Some(index) => {
                self.groups[index] = Some(group);
                index
            }
            None => {
                self.groups.push(Some(group));
                self.groups.len() - 1
            }
        }
    }

    /// Closes a communicator; what is still under way on it goes on.
    pub(super) fn close(&mut self, group: usize) {
        self.group(group).closed = true;
        if self.group(group).open_runs == 0 {
            self.retire(group);
        }
    }

    fn retire(&mut self, group: usize) {
        let Some(g) = self.groups[group].take() else { return };
        self.transport.retire(g.info.id);
        self.recorder.happens(Befell::Closed, Some(g.info.id), None, "");
        if self.retired.len() == super::MAX_RETIRED {
            self.retired.pop_front();
        }
        self.retired.push_back(Closed::new(g));
    }

    /// Remembers a call that was refused for its arguments, and tells the other ranks, which may have made it.
    pub(super) fn refuse(&mut self, group: usize, request: &Request, error: &CollectiveError) {
        let g = self.group(group);
        if !request.is_collective() {
            return;
        }
        let call = g.numbers.take(request.call(), Some(error.to_string()));
        self.tell_refusal(group, &call, error.to_string());
        // Those who asked before have been told now.
        while self.group(group).recall(call.seq).is_some() {}
    }
}

/// C3: the first lane of a collective call.
pub(super) fn collective_lane(seq: u32) -> u32 {
    seq % SEQ_WINDOW * MAX_SLICES_IN_FLIGHT
}

/// The lane of messages with this tag of the user's.
pub(super) fn message_lane(tag: u32) -> u32 {
    MESSAGE_LANES | tag
}

/// What a request is to error messages and stamps, once planned.
pub(super) fn call_of(request: &Request, plan: &Plan) -> Call {
    Call { algorithm: plan.algorithm, form: plan.form, ..request.call() }
}

impl Request {
    pub(super) fn is_collective(&self) -> bool {
        self.kind() == Kind::Collective
    }

    pub(super) fn kind(&self) -> Kind {
        match self.what {
            What::Collective(_) => Kind::Collective,
            What::Send { .. } => Kind::Send,
            What::Receive { .. } => Kind::Receive,
        }
    }

    /// The call, without its number and algorithm.
    pub(super) fn call(&self) -> Call {
        let (collective, root, count) = match (self.what, &self.blocks) {
            // What the ranks of a pair must have in common is in its messages.
            (What::Collective(Collective::AllToAll), Some(_)) => (Some(Collective::AllToAll), 0, 0),
            (What::Collective(collective), Some(blocks)) => (Some(collective), blocks.digest(), self.count),
            (What::Collective(collective), None) => (Some(collective), self.root, self.count),
            (What::Send { tag, .. } | What::Receive { tag, .. }, _) => (None, tag, self.count),
        };
        Call {
            collective,
            dtype: self.dtype,
            op: self.op,
            algorithm: None,
            form: self.form(),
            root,
            count: count as u64,
            seq: 0,
            history: 0,
        }
    }
}
