//! Who has been heard of, and when.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::membership::Slot;
use crate::core::time::Time;

/// The last sign of life of each task that is watched.
///
/// - I1. `order` holds exactly the pairs of `seen`, ordered by time: the first is the next to expire.
#[derive(Debug)]
pub(super) struct Heartbeats {
    limit: Duration,
    seen: BTreeMap<Slot, Time>,
    order: BTreeSet<(Time, Slot)>,
}

impl Heartbeats {
    /// Silence for `limit` means that a task is lost.
    pub(super) fn new(limit: Duration) -> Self {
        Heartbeats { limit, seen: BTreeMap::new(), order: BTreeSet::new() }
    }

    /// A sign of life.
    pub(super) fn beat(&mut self, slot: Slot, now: Time) {
        if let Some(before) = self.seen.insert(slot, now) {
            self.order.remove(&(before, slot));
        }
        self.order.insert((now, slot));
    }

    /// The task is no longer watched.
    pub(super) fn stop(&mut self, slot: Slot) {
        if let Some(before) = self.seen.remove(&slot) {
            self.order.remove(&(before, slot));
        }
    }

    /// A task that has been silent for the limit, and for how long.
    pub(super) fn expired(&self, now: Time) -> Option<(Slot, Duration)> {
        let &(seen, slot) = self.order.first()?;
        (seen + self.limit <= now).then(|| (slot, now.since(seen)))
    }

    /// Takes a span off everybody's silence: it was ours, not theirs.
    pub(super) fn forgive(&mut self, span: Duration, now: Time) {
        for (slot, seen) in &mut self.seen {
            self.order.remove(&(*seen, *slot));
            *seen = (*seen + span).min(now);
            self.order.insert((*seen, *slot));
        }
    }

    /// When the next task expires, unless it is heard of.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.order.first().map(|&(seen, _)| seen + self.limit)
    }
}
