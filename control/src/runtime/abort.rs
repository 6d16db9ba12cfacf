//! Losses, both ways: what the control plane hears kills the communicators that need the lost rank, and what the data
//! plane sees is told to the control plane, so that ranks without a connection to the dead one hear of it too.
//!
//! - **A1** A loss that comes from the control plane is not reported back to it.
//! - **A2** Only the rank that itself saw a connection fail reports it; one that was told by a peer does not.

use super::world::number;
use crate::rpc::client::{Agent, Alarm, GroupMember, Loss};
use ringway_collectives::engine::{CollectiveError, OnFailure, Reporter, Who};
use ringway_dataplane::transport::{Cause, CauseKind, Peer};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// What stands between the planes of one process.
#[derive(Debug, Default)]
pub(super) struct Bridge {
    agent: OnceLock<Weak<Agent>>,
    members: OnceLock<Vec<GroupMember>>,
    me: OnceLock<u32>,
    /// Members that the control plane has told of, or been told of, by number.
    told: Mutex<Vec<u32>>,
}

impl Bridge {
    /// The engine's callback. Until [`Bridge::connect`] it has nobody to tell.
    pub(super) fn on_failure(self: &Arc<Self>) -> OnFailure {
        let bridge = self.clone();
        OnFailure(Arc::new(move |_, error| bridge.failed(error)))
    }

    /// Joins both planes: alarms of `agent` go to `reporter` from now on, those before included.
    pub(super) fn connect(
        self: &Arc<Self>,
        agent: &Arc<Agent>,
        members: Vec<GroupMember>,
        me: u32,
        reporter: Reporter,
    ) {
        // A bridge is connected once, right after it was made.
        let _ = self.me.set(me);
        let _ = self.members.set(members);
        let _ = self.agent.set(Arc::downgrade(agent));
        let bridge = self.clone();
        agent.on_loss(move |alarm| bridge.alarm(alarm, &reporter));
    }

    fn members(&self) -> &[GroupMember] {
        self.members.get().map_or(&[], Vec::as_slice)
    }

    /// Whether this is the first that is heard of the member's loss.
    fn first(&self, member: &GroupMember) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let new = !told.contains(&number(member));
        if new {
            told.push(number(member));
        }
        new
    }

    /// From the control plane to the data plane.
    fn alarm(&self, alarm: &Alarm, reporter: &Reporter) {
        match alarm {
            Alarm::Lost(loss) => {
                let same = |m: &&GroupMember| same_life(m, loss);
                let Some(member) = self.members().iter().find(same) else { return };
                if self.me.get() == Some(&number(member)) {
                    let what = format!("the others have given this rank up: {}", loss.detail);
                    return self.cut_off(&what, reporter);
                }
                self.first(member);
                reporter.report_loss(Peer(number(member)), Cause::new(CauseKind::Reported, evidence(loss)));
            }
            Alarm::CoordinatorLost { detail } => {
                self.cut_off(&format!("the coordination service is lost: {detail}"), reporter);
            }
            Alarm::Dropped { detail } => {
                self.cut_off(&format!("the coordination service has dropped this rank: {detail}"), reporter);
            }
        }
    }

    /// Without the control plane a rank cannot know who lives: it gives up, with its own words.
    fn cut_off(&self, why: &str, reporter: &Reporter) {
        // The caller of the next collective is told.
        tracing::info!("{why}");
        reporter.abort(super::world::WORLD_GROUP, why);
    }

    /// The member that an error names. Where hosts share a name, so that two may be meant, none: no healthy rank is to be
    /// reported.
    fn named(&self, who: &Who) -> Option<&GroupMember> {
        let is = |m: &&GroupMember| m.process.pid == who.pid && m.process.host.name() == who.host;
        let mut found = self.members().iter().filter(is);
        found.next().filter(|_| found.next().is_none())
    }

    /// Says because of whom this rank fails, so that a launcher does not take its end for the first failure.
    fn blame(&self, error: &CollectiveError) {
        let who = match error {
            CollectiveError::Lost { who, .. } | CollectiveError::Aborted { who, .. } => who,
            _ => return,
        };
        let (Some(agent), Some(cause)) = (self.agent.get().and_then(Weak::upgrade), self.named(who)) else {
            return;
        };
        if self.me.get() != Some(&number(cause)) {
            agent.blame(&cause.process);
        }
    }

    /// From the data plane to the control plane.
    fn failed(&self, error: &CollectiveError) {
        self.blame(error);
        let CollectiveError::Lost { who, kind, evidence, .. } = error else { return };
        // A1 and A2
        let seen_here = !matches!(kind, CauseKind::Reported | CauseKind::Left | CauseKind::Local);
        let Some(agent) = self.agent.get().and_then(Weak::upgrade).filter(|_| seen_here) else { return };
        let Some(lost) = self.named(who).filter(|m| self.first(m)).cloned() else { return };
        // Not waited for: the engine is locked.
        agent.tell_loss(&lost.process.task, lost.process.incarnation, evidence);
    }
}

fn same_life(member: &GroupMember, loss: &Loss) -> bool {
    member.process.task == loss.task && member.process.incarnation == loss.incarnation
}

fn evidence(loss: &Loss) -> String {
    format!("the coordination service reports: {}", loss.detail)
}
