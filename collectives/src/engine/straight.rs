//! The straight path of small calls: what can be made at once needs no run, no lease and no completion.
//!
//! A call made so is one like any other: numbered, stamped, recorded, refused on a dead communicator. What cannot be made
//! at once takes the way of all calls, from the step on that it has come to: the other ranks cannot tell, so each goes
//! its own way, and bits and errors are the same.
//!
//! - **A1** Nothing is made at once while another call is under way or somebody drives: no message overtakes another (C2, R3).
//! - **A2** A call waits at once for no longer than a few looks, and where ranks share cores for as long as such calls have
//!   been found to take ([`Patience::at_once`]), and for nothing but the next expected message. Whatever else happens (a mismatch, a
//!   death, another thread, a long wait) is met by a run.
//! - **A3** One call in [`AT_ONCE_IN_A_ROW`] goes the way of all calls, so that all else is looked at however busy a rank
//!   is with small calls.
//! - **A4** So does a call that comes long after the one before: a rank that was idle hears first of what happened meanwhile,
//!   though the message that it would take is there.
//! - **A5** Before a call waits for a message, it sends all that it could send after it: nobody waits for what somebody else
//!   has not sent yet. Sends keep their order.
//! - **A6** A call of several slices goes in rounds, each slice one round behind the one before, so that what a slice waits for was
//!   sent a round ago. In a round the newest slice is first, which sends before older ones wait. Slices end in their order, at
//!   most [`MOST_BEGUN`] are begun and not over, and messages of a tag have the order that runs give them (R2).

#![forbid(unsafe_code)]

mod rounds;

use super::blocking::Memory;
use super::core::{
    CallRegions, Core, Driver, Entry, Failure, MAX_CALLS, call_of, collective_lane, message_lane,
};
use super::error::CollectiveError;
use super::fingerprint::{Call, slice_stamp};
use super::group::Last;
use super::hazard::WINDOW;
use super::layout::{Copy, INPUT, OUTPUT, Spot, WORK};
use super::plan::{Kind, Plan, Request, What};
use super::recorder::Ending;
use super::run::Io;
use crate::schedule::{Rank, Schedule, Span, Step};
use ringway_dataplane::fabric::{Patience, Spin};
use ringway_dataplane::transport::{Found, Peer, Stamp, Tag, Transport};
pub(super) use rounds::{MOST_BEGUN, Stands};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A3
const AT_ONCE_IN_A_ROW: u32 = 128;
/// A4
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// A collective call that was begun without a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub(super) call: Call,
    pub(super) record: u64,
    pub(super) stands: Stands,
    pub(super) since: Instant,
}

/// How far a call has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stand {
    /// The first step that is not over.
    pub(super) step: u32,
    /// Sends behind it that are over (A5): bit `i` is step `step + i`.
    pub(super) ahead: u32,
    /// What was gathered is combined (schedule invariant I10).
    pub(super) gathered: bool,
}

impl Stand {
    /// The step is over.
    fn next(&mut self) {
        self.step += 1;
        self.ahead >>= 1;
    }

    /// Whether the step that has come to be the first was made before its turn.
    fn is_made(self) -> bool {
        self.ahead & 1 != 0
    }
}

/// What came of the attempt to make a call at once.
pub(super) enum AtOnce {
    /// Nothing happened.
    NotBegun,
    /// It is numbered and recorded, and not over.
    Begun(Begun),
    /// It is over, and well.
    Over,
}

/// A2: how long a call looks for a message at once.
#[derive(Clone, Copy)]
pub(super) struct Glance<'a> {
    pub(super) spin: Spin,
    /// Threads that wait for the engine.
    pub(super) contenders: &'a AtomicU32,
}

impl Glance<'_> {
    /// Looks before giving way. 0: nothing is made at once.
    fn looks(&self) -> u32 {
        self.spin.looks()
    }

    /// Whether to give way and then look again, for a message that was not there at `since` or is looked for first now.
    fn gives_way(&self, patience: &Patience, since: &mut Option<Instant>) -> bool {
        let limit = patience.gives_way_for();
        if limit.is_zero() || self.contenders.load(Ordering::Relaxed) > 0 {
            return false;
        }
        let now = Instant::now();
        now.duration_since(*since.get_or_insert(now)) < limit
    }

    /// Takes the next message from a peer, if it is the expected one and has come or comes soon. `false`: nothing happened.
    fn takes(
        &self,
        patience: &mut Patience,
        transport: &mut dyn Transport,
        from: Peer,
        tag: Tag,
        expected: (&Stamp, usize),
        take: &mut dyn FnMut(&[u8]),
    ) -> bool {
        let mut since: Option<Instant> = None;
        loop {
            match transport.take_now(from, tag, expected, self.looks(), take) {
                Found::Message => {
                    if let Some(since) = since {
                        patience.learn(since.elapsed());
                    }
                    return true;
                }
                Found::Nothing if self.gives_way(patience, &mut since) => std::thread::yield_now(),
                Found::Nothing | Found::Behind | Found::Other => return false,
            }
        }
    }
}

/// The memory of a call, by place.
pub(super) struct Places<'a, 'm> {
    pub(super) input: &'a mut Memory<'m>,
    pub(super) output: &'a mut Memory<'m>,
    work: &'a mut Vec<u8>,
}

impl Places<'_, '_> {
    fn read(&self, spot: Spot) -> &[u8] {
        let all = match spot.place {
            INPUT => self.input.bytes(),
            OUTPUT => self.output.bytes(),
            _ => self.work,
        };
        &all[spot.bytes]
    }

    fn write(&mut self, spot: Spot) -> &mut [u8] {
        let all = match spot.place {
            INPUT => self.input.bytes_mut(),
            OUTPUT => self.output.bytes_mut(),
            _ => self.work,
        };
        &mut all[spot.bytes]
    }

    /// The two operands of a combination, which lie apart.
    fn operands(&mut self, into: Spot, from: Spot) -> (&mut [u8], &[u8]) {
        match (into.place, from.place) {
            (INPUT, WORK) => (&mut self.input.bytes_mut()[into.bytes], &self.work[from.bytes]),
            (WORK, INPUT) => (&mut self.work[into.bytes], &self.input.bytes()[from.bytes]),
            (OUTPUT, WORK) => (&mut self.output.bytes_mut()[into.bytes], &self.work[from.bytes]),
            (WORK, OUTPUT) => (&mut self.work[into.bytes], &self.output.bytes()[from.bytes]),
            (WORK, WORK) => {
                let pair = self.work.get_disjoint_mut([into.bytes, from.bytes]);
                let [a, b] = pair.unwrap_or_else(|_| unreachable!("operands lie apart"));
                (a, b)
            }
            places => unreachable!("no layout combines {places:?}"),
        }
    }

    fn copy(&mut self, from: Spot, to: Spot) {
        let (source, target) = match (from.place, to.place) {
            (INPUT, OUTPUT) => (self.input.bytes(), self.output.bytes_mut()),
            (INPUT, WORK) => (self.input.bytes(), &mut self.work[..]),
            (WORK, INPUT) => (&self.work[..], self.input.bytes_mut()),
            (WORK, OUTPUT) => (&self.work[..], self.output.bytes_mut()),
            places => unreachable!("no layout copies from and to {places:?}"),
        };
        target[to.bytes].copy_from_slice(&source[from.bytes]);
    }
}

/// A collective call that is being made at once.
struct Straight<'a, 'm> {
    io: Io<'a>,
    plan: &'a Plan,
    request: &'a Request,
    rank: Rank,
    /// Of the call's first slice, and the call's.
    first_tag: Tag,
    call_stamp: Stamp,
    /// The slice that is being moved on, with its tag and stamp.
    slice: u32,
    tag: Tag,
    stamp: Stamp,
    places: Places<'a, 'm>,
    glance: Glance<'a>,
    patience: &'a mut Patience,
}

impl Straight<'_, '_> {
    /// Where the bytes of a step are; an empty chunk need not be in its buffer.
    fn spot(&self, step: Step) -> Spot {
        let spot = self.plan.layout.locate(step.span(), self.slice, 0);
        if spot.bytes.is_empty() { Spot { bytes: 0..0, ..spot } } else { spot }
    }

    /// Goes over to a slice (R2).
    fn turn_to(&mut self, slice: u32) {
        self.slice = slice;
        self.tag.lane = self.first_tag.lane + slice % self.plan.lanes;
        if self.call_stamp != Stamp::default() {
            self.stamp = slice_stamp(&self.call_stamp, slice);
        }
    }

    fn send(&mut self, step: Step) -> bool {
        let bytes = self.places.read(self.spot(step));
        let peer = self.io.peers[step.peer() as usize];
        let sent = self.io.transport.send_now(peer, self.tag, &self.stamp, bytes);
        if sent {
            let len = bytes.len() as u64;
            self.io.exchanged(peer, true, len);
        }
        sent
    }

    /// Waits for the message of a step, and combines or keeps it.
    #[inline]
    fn receive(&mut self, step: Step) -> bool {
        let spot = self.spot(step);
        let Straight { io, tag, stamp, places, request, glance, patience, .. } = self;
        let peer = io.peers[step.peer() as usize];
        let (kernels, into) = (io.kernels, places.write(spot));
        let len = into.len();
        let reduces = matches!(step, Step::Reduce { .. });
        let mut take = |bytes: &[u8]| match (reduces, request.op, request.dtype) {
            (true, Some(op), Some(dtype)) => {
                let combined = kernels.combine(op, dtype, into, bytes);
                debug_assert!(
                    combined.is_ok(),
                    "checked before the call, and lengths are equal: {combined:?}"
                );
            }
            _ => into.copy_from_slice(bytes),
        };
        let found = glance.takes(patience, io.transport, peer, *tag, (stamp, len), &mut take);
        if found {
            io.exchanged(peer, false, len as u64);
        }
        found
    }

    /// Makes the first step if others wait for it, and the copies that a call begins with. Returns how far that is; `None`:
    /// nothing happened that any other rank could tell.
    fn begin(&mut self) -> Option<Stand> {
        let first = self.plan.program.step(self.rank, 0)?;
        let before = self.plan.layout.before;
        // What others wait for comes before what they do not.
        let needed = |copy: &Copy| self.plan.layout.in_area(&copy.to, Span::one(copy.to_first), 0, 0).place;
        let is_urgent = first.is_send() && before.as_ref().map(needed) != Some(self.spot(first).place);
        if !is_urgent {
            before.iter().for_each(|copy| self.copy(copy));
        }
        if first.is_send() && !self.send(first) {
            return None;
        }
        if is_urgent {
            before.iter().for_each(|copy| self.copy(copy));
        }
        Some(Stand { step: u32::from(first.is_send()), ..Stand::default() })
    }

    fn copy(&mut self, copy: &Copy) {
        for i in 0..copy.span.count {
            let spot = |area, chunk| self.plan.layout.in_area(area, Span::one(chunk), 0, 0);
            let (from, to) = (spot(&copy.from, copy.span.first + i), spot(&copy.to, copy.to_first + i));
            if !from.bytes.is_empty() {
                self.places.copy(from, to);
            }
        }
    }

    /// Makes the steps of the one slice from `stand` on, to its end. Returns where it could not go on, if there is such a place.
    fn go(&mut self, mut stand: Stand) -> Option<Stand> {
        loop {
            if !stand.gathered && self.plan.layout.gather.as_ref().is_some_and(|g| g.steps == stand.step) {
                self.gather();
                stand.gathered = true;
            }
            let Some(step) = self.plan.program.step(self.rank, stand.step) else {
                self.finish();
                return None;
            };
            if !step.is_send() {
                self.send_ahead(&mut stand);
            }
            let made = stand.is_made() || if step.is_send() { self.send(step) } else { self.receive(step) };
            if !made {
                return Some(stand);
            }
            stand.next();
        }
    }

    /// Combines what was gathered.
    fn gather(&mut self) {
        let plan = self.plan;
        let (Some(gather), Some(op), Some(dtype)) =
            (&plan.layout.gather, self.request.op, self.request.dtype)
        else {
            return;
        };
        for bracket in gather.brackets.iter() {
            let spot = |position| plan.layout.operand(gather, position, 0, 0);
            let (into, from) = (spot(bracket.into), spot(bracket.from));
            if into.bytes.is_empty() {
                continue;
            }
            let (sum, incoming) = self.places.operands(into, from);
            let combined = self.io.kernels.combine(op, dtype, sum, incoming);
            debug_assert!(combined.is_ok(), "checked before the call: {combined:?}");
        }
    }

    /// A5: makes the sends behind a step that waits, up to the first that cannot be made before it.
    fn send_ahead(&mut self, stand: &mut Stand) {
        let (program, rank, first) = (&self.plan.program, self.rank, stand.step);
        let step = |behind| program.step(rank, first + behind);
        let unmade = |ahead: u32, below: u32| (0..below).filter(move |behind| ahead & 1 << behind == 0);
        // I10 of schedules.
        let gate = self.plan.layout.gather.as_ref().filter(|_| !stand.gathered).map(|g| g.steps - first);
        for behind in 1..gate.unwrap_or(u32::MAX).min(WINDOW as u32) {
            let Some(next) = step(behind) else { return };
            if !next.is_send() || stand.ahead & 1 << behind != 0 {
                continue;
            }
            let mut earlier = unmade(stand.ahead, behind).filter_map(step);
            if earlier.any(|earlier| next.conflicts_with(&earlier)) || !self.send(next) {
                return;
            }
            stand.ahead |= 1 << behind;
        }
    }

    /// What is left to do after a slice's last step.
    fn finish(&mut self) {
        let layout = &self.plan.layout;
        if let (Some((area, span)), Some(op), Some(dtype)) =
            (layout.total, self.request.op, self.request.dtype)
        {
            let spot = layout.in_area(&area, span, self.slice, 0);
            if !spot.bytes.is_empty() {
                let ranks = self.plan.averaged;
                let finished = self.io.kernels.finish(op, dtype, self.places.write(spot), ranks);
                debug_assert!(finished.is_ok(), "checked before the call: {finished:?}");
            }
        }
        if let Some(copy) = layout.after {
            self.copy(&copy);
        }
    }
}

impl Core {
    /// A1, A3, A4: whether a call may be made at once; if so, what time it is.
    #[inline]
    fn may_go_at_once(&mut self) -> Option<Instant> {
        let idle = self.active.is_empty() && !self.is_queueing() && self.driver == Driver::Nobody;
        let newest = self.recorder.newest().filter(|_| idle && self.at_once < AT_ONCE_IN_A_ROW);
        let now = newest.and_then(|newest| {
            let now = Instant::now();
            (now.saturating_duration_since(newest) < LONGEST_PAUSE).then_some(now)
        });
        self.at_once = if now.is_some() { self.at_once + 1 } else { 0 };
        now
    }

    /// Makes a small collective call at once, where that can be done.
    pub(super) fn collective_at_once<'m>(
        &mut self,
        group: usize,
        request: &Request,
        (input, output): (&mut Memory<'m>, &mut Memory<'m>),
        glance: Glance<'_>,
    ) -> AtOnce {
        if glance.looks() == 0 {
            return AtOnce::NotBegun;
        }
        let Some(now) = self.may_go_at_once() else { return AtOnce::NotBegun };
        let Core { groups, transport, options, recorder, traffic, kernels, work, waits_at_once, .. } = self;
        let Some(g) = groups[group].as_mut().filter(|g| g.is_calm()) else { return AtOnce::NotBegun };
        let Some(plan) = g.kept_plan(request).filter(|plan| plan.at_once).cloned() else {
            return AtOnce::NotBegun;
        };
        let (rank, seq) = (g.info.my_rank, g.numbers.seq);
        let call = Call { seq, history: g.numbers.history, ..call_of(request, &plan) };
        let call_stamp = if options.check { call.stamp() } else { Stamp::default() };
        let tag = Tag { group: g.info.id, lane: collective_lane(seq) };
        let io = Io { transport: &mut **transport, peers: &g.peers, kernels: *kernels, traffic, recorder };
        if work.len() < plan.work_bytes {
            work.resize(plan.work_bytes, 0);
        }
        let places = Places { input, output, work };
        let patience = waits_at_once;
        let stamp = if options.check { slice_stamp(&call_stamp, 0) } else { call_stamp };
        let mut way = Straight {
            io,
            plan: &plan,
            request,
            rank,
            first_tag: tag,
            call_stamp,
            slice: 0,
            tag,
            stamp,
            places,
            glance,
            patience,
        };
        let Some(stand) = way.begin() else { return AtOnce::NotBegun };
        let bytes = request.count as u64 * plan.layout.caller_bytes as u64;
        let record = way.io.recorder.begin_at(now, tag.group, call, bytes);
        g.numbers.take(call, None);
        let stuck = match plan.layout.slices {
            1 => way.go(stand).map(Stands::one),
            _ => way.go_in_rounds(stand),
        };
        match stuck {
            Some(stands) => AtOnce::Begun(Begun { call, record, stands, since: now }),
            None => {
                way.io.recorder.end(record, Ending::Done);
                g.last.set(&plan);
                AtOnce::Over
            }
        }
    }

    /// Goes on, as a run, with a call that was begun at once.
    pub(super) fn go_on(
        &mut self,
        group: usize,
        name: &'static str,
        request: &Request,
        regions: CallRegions<'_>,
        begun: Begun,
    ) -> Result<u16, Failure> {
        let g = self.groups[group].as_mut().unwrap_or_else(|| unreachable!("the caller holds it"));
        let rank = g.info.my_rank;
        let furnished = match g.plan(request, &self.options, &self.caps) {
            Ok(plan) => match self.slot(request, &plan) {
                Some(slot) => self.furnish(slot, &plan).map(|()| (slot, plan)).map_err(|why| {
                    self.free.push(slot);
                    CollectiveError::Memory { rank, call: name, why }
                }),
                None => Err(CollectiveError::TooManyStarted { limit: MAX_CALLS }),
            },
            Err(why) => Err(CollectiveError::Invalid { rank, call: name, why }),
        };
        match furnished {
            Ok((slot, plan)) => {
                let work = self.work.get(..plan.work_bytes).unwrap_or(&[]);
                if let Some(region) = self.runs[usize::from(slot)].regions[WORK].as_mut()
                    && let Ok(into) = region.bytes_mut(0..work.len())
                {
                    into.copy_from_slice(work);
                }
                self.enter(slot, group, request, plan, regions, Entry::Begun(begun));
                Ok(slot)
            }
            Err(error) => {
                // The others count on the rest of it.
                self.recorder.end(begun.record, Ending::Failed);
                self.abort(group, error.to_string());
                Err(Box::new(error))
            }
        }
    }

    /// Sends a message at once, where no other of this process waits to be sent before it. `false`: nothing happened.
    #[inline]
    pub(super) fn send_at_once(&mut self, group: usize, request: &Request, bytes: &[u8]) -> bool {
        let What::Send { to, tag } = request.what else { return false };
        // C2, R3: those that wait for depth or found a queue full must not be overtaken.
        let is_first = !self.is_queueing() && self.depth_used(Kind::Send) == 0;
        let small = bytes.len() as u64 <= self.caps.eager_bytes;
        let Some(g) = self.groups[group].as_mut().filter(|g| is_first && small && g.dead.is_none()) else {
            return false;
        };
        let call = request.call();
        let stamp = if self.options.check { call.stamp() } else { Stamp::default() };
        let tag = Tag { group: g.info.id, lane: message_lane(tag) };
        if !self.transport.send_now(g.peers[to as usize], tag, &stamp, bytes) {
            return false;
        }
        g.last = Last::AtOnce { bytes: bytes.len() };
        self.recorder.passed(None, g.info.id, call, bytes.len() as u64);
        self.exchanged(group, to, true, bytes.len() as u64);
        true
    }

    /// Receives a small message at once, where it has come or comes soon, and no other of this process waits before it.
    /// `false`: nothing happened.
    pub(super) fn receive_at_once(
        &mut self,
        group: usize,
        request: &Request,
        into: &mut [u8],
        glance: Glance<'_>,
    ) -> bool {
        let What::Receive { from, tag } = request.what else { return false };
        if glance.looks() == 0 || into.len() as u64 > self.caps.eager_bytes {
            return false;
        }
        let Some(now) = self.may_go_at_once() else { return false };
        let Some(g) = self.groups[group].as_mut().filter(|g| g.is_calm()) else { return false };
        let call = request.call();
        let stamp = if self.options.check { call.stamp() } else { Stamp::default() };
        let tag = Tag { group: g.info.id, lane: message_lane(tag) };
        let (peer, len) = (g.peers[from as usize], into.len());
        let mut take = |bytes: &[u8]| into.copy_from_slice(bytes);
        if !glance.takes(&mut self.waits_at_once, &mut *self.transport, peer, tag, (&stamp, len), &mut take) {
            return false;
        }
        g.last = Last::AtOnce { bytes: len };
        self.recorder.passed(Some(now), g.info.id, call, len as u64);
        self.exchanged(group, from, false, len as u64);
        true
    }
}
