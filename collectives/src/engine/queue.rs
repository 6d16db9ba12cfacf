//! Whose turn it is: which calls are active at a time, and in which order the others become so. Invariants C2 and C3 of
//! [`core`](super::core) are kept here.

#![forbid(unsafe_code)]

use super::core::{Core, SEQ_WINDOW};
use super::plan::Kind;
use super::run::Width;

impl Core {
    /// Whether calls wait for the transport's depth (C2).
    pub(super) fn is_queueing(&self) -> bool {
        !self.queued.is_empty()
    }

    /// Depth that the active runs of a kind have taken (C2).
    pub(super) fn depth_used(&self, kind: Kind) -> u32 {
        self.depth_used[kind as usize]
    }

    /// C2, C3: how a run may become active now, if it may.
    pub(super) fn width(&self, slot: u16) -> Option<Width> {
        let run = &self.runs[usize::from(slot)];
        let used = self.depth_used[run.request.kind() as usize];
        if !run.request.is_collective() {
            return (used < (self.caps.depth / 4).max(1)).then_some(Width::Full);
        }
        let in_group = |other: &&u16| {
            let other = &self.runs[usize::from(**other)];
            other.request.is_collective() && other.group == run.group
        };
        let far =
            |other: &u16| run.call.seq.wrapping_sub(self.runs[usize::from(*other)].call.seq) >= SEQ_WINDOW;
        if self.active.iter().filter(in_group).any(far) {
            return None;
        }
        if run.plan.depth > 0 && used + run.plan.depth <= self.caps.depth / 2 {
            return Some(Width::Full);
        }
        (!self.active.iter().any(|other| in_group(&other))).then_some(Width::Narrow)
    }

    /// Activates what may be, in the order of calls on each communicator.
    pub(super) fn activate_queued(&mut self) {
        let mut at = 0;
        while let Some(&slot) = self.queued.get(at) {
            let run = &self.runs[usize::from(slot)];
            let (group, kind) = (run.group, run.request.kind());
            let overtakes = self.queued.iter().take(at).any(|earlier| {
                let earlier = &self.runs[usize::from(*earlier)];
                kind == earlier.request.kind() && (kind != Kind::Collective || earlier.group == group)
            });
            match self.width(slot).filter(|_| !overtakes) {
                Some(width) => {
                    self.queued.remove(at);
                    self.activate(slot, width);
                    // It may be over already, and others with it.
                    at = 0;
                }
                None => at += 1,
            }
        }
    }

    pub(super) fn activate(&mut self, slot: u16, width: Width) {
        self.active.push(slot);
        let run = &mut self.runs[usize::from(slot)];
        run.depth_taken = match (run.request.is_collective(), width) {
            (true, Width::Full) => run.plan.depth,
            (true, Width::Narrow) => 0,
            (false, _) => 1,
        };
        self.depth_used[run.request.kind() as usize] += run.depth_taken;
        match run.activate(self.options.check, width) {
            Ok(()) => self.advance(slot),
            Err(fault) => self.fault(slot, fault),
        }
    }
}
