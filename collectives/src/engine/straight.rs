//! The straight path of small calls: what can be made at once needs no run, no lease and no completion.
//!
//! A call made so is one like any other: numbered, stamped, recorded, refused on a dead communicator. What cannot be made
//! at once takes the way of all calls, from the step on that it has come to: the other ranks cannot tell, so each goes
//! its own way, and bits and errors are the same.
//!
//! - **A1** Nothing is made at once while another call is under way or somebody drives: no message overtakes another (C2, R3).
//! - **A2** A call waits at once for no longer than a few looks, and for nothing but the next expected message. Whatever
//!   else happens (a mismatch, a death, another thread, a long wait) is met by a run.
//! - **A3** One call in [`AT_ONCE_IN_A_ROW`] goes the way of all calls, so that all else is looked at however busy a rank
//!   is with small calls.
//! - **A4** So does a call that comes long after the one before: a rank that was idle hears first of what happened meanwhile,
//!   though the message that it would take is there.

#![forbid(unsafe_code)]

use super::core::{
    CallRegions, Core, Driver, Entry, Failure, MAX_CALLS, call_of, collective_lane, message_lane,
};
use super::error::CollectiveError;
use super::fingerprint::{Call, slice_stamp};
use super::group::Last;
use super::layout::Spot;
use super::plan::{Kind, Plan, Request, What};
use super::recorder::Ending;
use super::run::Io;
use crate::schedule::{Rank, Schedule, Step};
use ringway_dataplane::transport::{Found, Stamp, Tag, Transport};
use std::time::Duration;

/// A3
const AT_ONCE_IN_A_ROW: u32 = 128;
/// A4
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// A collective call that was begun without a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub(super) call: Call,
    pub(super) record: u64,
    /// Its steps that are over.
    pub(super) steps: u32,
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

/// A collective call that is being made at once.
struct Straight<'a> {
    io: Io<'a>,
    plan: &'a Plan,
    request: &'a Request,
    rank: Rank,
    tag: Tag,
    stamp: &'a Stamp,
    buffer: &'a mut [u8],
}

impl Straight<'_> {
    /// The bytes of a step; an empty chunk need not be in the buffer.
    fn bytes(&self, step: Step) -> std::ops::Range<usize> {
        let Spot { bytes, .. } = self.plan.layout.locate(step.span(), 0, 0);
        if bytes.is_empty() { 0..0 } else { bytes }
    }

    fn send(&mut self, step: Step) -> bool {
        let span = self.bytes(step);
        let peer = self.io.peers[step.peer() as usize];
        let sent = self.io.transport.send_now(peer, self.tag, self.stamp, &self.buffer[span.clone()]);
        if sent {
            self.io.exchanged(peer, true, span.len() as u64);
        }
        sent
    }

    /// Waits for the message of a step, and combines or keeps it.
    fn receive(&mut self, step: Step, looks: u32) -> bool {
        let span = self.bytes(step);
        let Straight { io, tag, stamp, buffer, request, .. } = self;
        let peer = io.peers[step.peer() as usize];
        let (kernels, into) = (io.kernels, &mut buffer[span]);
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
        let found = io.transport.take_now(peer, *tag, (*stamp, len), looks, &mut take) == Found::Message;
        if found {
            io.exchanged(peer, false, len as u64);
        }
        found
    }

    /// Makes the steps from `first` on. Returns the first that could not be made, if there is one.
    fn go(&mut self, first: u32, looks: u32) -> Option<u32> {
        let mut index = first;
        while let Some(step) = self.plan.program.step(self.rank, index) {
            let made = if step.is_send() { self.send(step) } else { self.receive(step, looks) };
            if !made {
                return Some(index);
            }
            index += 1;
        }
        None
    }

    /// What is left to do after the last step.
    fn finish(&mut self) {
        if let (Some((area, span)), Some(op), Some(dtype)) =
            (self.plan.layout.total, self.request.op, self.request.dtype)
        {
            let spot = self.plan.layout.in_area(&area, span, 0, 0);
            let ranks = self.plan.averaged;
            let finished = self.io.kernels.finish(op, dtype, &mut self.buffer[spot.bytes], ranks);
            debug_assert!(finished.is_ok(), "checked before the call: {finished:?}");
        }
    }
}

impl Core {
    /// A1, A3, A4: whether a call may be made at once.
    #[inline]
    fn may_go_at_once(&mut self) -> bool {
        let idle = self.active.is_empty() && !self.is_queueing() && self.driver == Driver::Nobody;
        let idle = idle && self.recorder.newest().is_some_and(|newest| newest.elapsed() < LONGEST_PAUSE);
        self.at_once = if idle && self.at_once < AT_ONCE_IN_A_ROW { self.at_once + 1 } else { 0 };
        self.at_once > 0
    }

    /// Makes a small collective call over one buffer at once, where that can be done.
    pub(super) fn collective_at_once(
        &mut self,
        group: usize,
        request: &Request,
        buffer: &mut [u8],
        looks: u32,
    ) -> AtOnce {
        if looks == 0 || !self.may_go_at_once() {
            return AtOnce::NotBegun;
        }
        let Core { groups, transport, options, recorder, traffic, kernels, .. } = self;
        let Some(g) = groups[group].as_mut().filter(|g| g.is_calm()) else { return AtOnce::NotBegun };
        let Some(plan) = g.kept_plan(request).filter(|plan| plan.at_once).cloned() else {
            return AtOnce::NotBegun;
        };
        let (rank, seq) = (g.info.my_rank, g.numbers.seq);
        let call = Call { seq, history: g.numbers.history, ..call_of(request, &plan) };
        let stamp = if options.check { slice_stamp(&call.stamp(), 0) } else { Stamp::default() };
        let tag = Tag { group: g.info.id, lane: collective_lane(seq) };
        let io = Io { transport: &mut **transport, peers: &g.peers, kernels: *kernels, traffic, recorder };
        let mut way = Straight { io, plan: &plan, request, rank, tag, stamp: &stamp, buffer };
        // The message goes first: what others wait for comes before what they do not.
        let mut steps = 0;
        match plan.program.step(rank, 0) {
            Some(step) if step.is_send() => {
                if !way.send(step) {
                    return AtOnce::NotBegun;
                }
                steps = 1;
            }
            Some(_) => {}
            None => return AtOnce::NotBegun,
        }
        let bytes = request.count as u64 * plan.layout.caller_bytes as u64;
        let record = way.io.recorder.begin(tag.group, call, bytes);
        g.numbers.take(call, None);
        match way.go(steps, looks) {
            Some(steps) => AtOnce::Begun(Begun { call, record, steps }),
            None => {
                way.finish();
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
        self.recorder.passed(g.info.id, call, bytes.len() as u64);
        self.exchanged(group, to, true, bytes.len() as u64);
        true
    }
}
