//! Leaving together: where it is set so, a task that leaves waits until all others do.

use std::collections::BTreeMap;
use std::time::Duration;

use super::membership::{Membership, Slot};
use super::request::ReplyTo;
use crate::core::time::Time;

/// The tasks that want to leave.
#[derive(Debug)]
pub(super) struct Departure {
    /// How long the first one waits for the others; `None`: nobody waits.
    timeout: Option<Duration>,
    waiting: BTreeMap<Slot, Vec<ReplyTo>>,
    deadline: Option<Time>,
}

/// Those who leave now, with their callers, and those who are left behind.
pub(super) struct Leave {
    pub(super) leaving: Vec<(Slot, Vec<ReplyTo>)>,
    pub(super) late: Vec<Slot>,
}

impl Departure {
    pub(super) fn new(timeout: Option<Duration>) -> Self {
        Departure { timeout, waiting: BTreeMap::new(), deadline: None }
    }

    /// How long the first one waits for the others.
    pub(super) fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// A task wants to leave.
    pub(super) fn wait(&mut self, slot: Slot, to: ReplyTo, now: Time) {
        self.waiting.entry(slot).or_default().push(to);
        self.deadline.get_or_insert(now + self.timeout.unwrap_or_default());
    }

    /// A caller has gone. Its task still wants to leave.
    pub(super) fn forget(&mut self, slot: Slot, to: ReplyTo) {
        if let Some(callers) = self.waiting.get_mut(&slot) {
            callers.retain(|&caller| caller != to);
        }
    }

    /// A task failed while it waited: its callers are handed back.
    pub(super) fn lose(&mut self, slot: Slot) -> Vec<ReplyTo> {
        let callers = self.waiting.remove(&slot).unwrap_or_default();
        if self.waiting.is_empty() {
            // Nobody leaves any more, so nobody is late.
            self.deadline = None;
        }
        callers
    }

    /// Those who leave, if everybody who is connected wants to, or the time is over.
    pub(super) fn due(&mut self, now: Time, members: &Membership) -> Option<Leave> {
        let deadline = self.deadline?;
        let late: Vec<Slot> = members.connected().filter(|slot| !self.waiting.contains_key(slot)).collect();
        if deadline > now && !late.is_empty() {
            return None;
        }
        self.deadline = None;
        Some(Leave { leaving: std::mem::take(&mut self.waiting).into_iter().collect(), late })
    }

    /// When those who wait leave at the latest.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Sends everybody away, since the service ends.
    pub(super) fn stop(&mut self) -> Vec<ReplyTo> {
        self.deadline = None;
        std::mem::take(&mut self.waiting).into_values().flatten().collect()
    }
}
