//! How elastic groups meet the rest of the service: who is alive, groups that were entered otherwise, keys.

use super::config::BARRIER_TIMEOUT_LIMIT;
use super::errors::{Code, Refusal};
use super::request::{Effect, Regroup, ReplyTo};
use super::{Answer, Coordinator};
use crate::core::time::Time;

impl Coordinator {
    /// A process wants to be in the next generation of a group.
    pub(super) fn regroup(
        &mut self,
        now: Time,
        wish: Regroup,
        to: ReplyTo,
        out: &mut Vec<Effect>,
    ) -> Result<Answer, Refusal> {
        self.name_fits("group", &wish.group)?;
        let slot = self.members.live(&wish.process)?;
        let limit = self.config.limits.address_bytes;
        if wish.addresses.len() > limit {
            let message =
                format!("addresses of {} bytes are over the limit of {limit}", wish.addresses.len());
            return Err(Refusal::new(Code::InvalidArgument, message));
        }
        let tasks = self.config.tasks();
        if wish.limits.least > tasks {
            let message = format!(
                "group {:?} of at least {} members is larger than the cluster of {tasks} tasks: start the coordinator \
                 for that many",
                wish.group, wish.limits.least
            );
            return Err(Refusal::new(Code::InvalidArgument, message));
        }
        self.members.runs_as(slot, wish.process.clone());
        if !self.rounds.knows(&wish.group)
            && let Some((table, present)) = self.groups.of(&wish.group)
        {
            self.rounds.follow(&wish.group, table, present, wish.limits);
        }
        let timeout = wish.timeout.unwrap_or(self.config.join_timeout).min(BARRIER_TIMEOUT_LIMIT);
        self.rounds.enter(now, slot, wish, timeout, to, out)
    }

    /// Closes the rounds that can be, and tells members of newcomers.
    pub(super) fn close_rounds(&mut self, now: Time, out: &mut Vec<Effect>) {
        while let Some(closed) = self.rounds.close(now, self.epoch + 1, out) {
            self.epoch += 1;
            for (slot, rank) in closed.ranks {
                self.members.get_mut(slot).rank = Some(rank);
            }
            if let Some(key) = closed.answered {
                // It may have been deleted by others.
                let _ = self.store.delete(&key);
            }
        }
        for key in self.rounds.knocks() {
            // A store that is full has other troubles; newcomers then wait for the next loss.
            let _ = self.store.insert(&key, Vec::new(), false, out);
        }
    }
}
