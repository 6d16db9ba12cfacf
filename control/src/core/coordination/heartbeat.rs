//! Who has been heard of, and when.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::membership::Slot;
use crate::core::time::Time;

/// The last sign of life of each task that is watched.
///
/// - I1. `order` holds exactly the tasks of `seen`, ordered by when they expire: the first is the next.
#[derive(Debug)]
pub(super) struct Heartbeats {
    limit: Duration,
    seen: BTreeMap<Slot, Sign>,
    order: BTreeSet<(Time, Slot)>,
}

#[derive(Clone, Copy, Debug)]
struct Sign {
    at: Time,
    /// How long the task may be silent after it.
    limit: Duration,
}

impl Sign {
    fn expires(&self) -> Time {
        self.at + self.limit
    }
}

impl Heartbeats {
    /// Silence for `limit` means that a task is lost, unless the task has a limit of its own.
    pub(super) fn new(limit: Duration) -> Self {
        Heartbeats { limit, seen: BTreeMap::new(), order: BTreeSet::new() }
    }

    /// A task is watched from now on, with a limit of its own if one is given.
    pub(super) fn begin(&mut self, slot: Slot, limit: Option<Duration>, now: Time) {
        self.put(slot, Sign { at: now, limit: limit.unwrap_or(self.limit) });
    }

    /// A sign of life of a task that is watched.
    pub(super) fn beat(&mut self, slot: Slot, now: Time) {
        if let Some(sign) = self.seen.get(&slot) {
            self.put(slot, Sign { at: now, ..*sign });
        }
    }

    fn put(&mut self, slot: Slot, sign: Sign) {
        if let Some(before) = self.seen.insert(slot, sign) {
            self.order.remove(&(before.expires(), slot));
        }
        self.order.insert((sign.expires(), slot));
    }

    /// The last sign of life of a task that is watched.
    pub(super) fn last(&self, slot: Slot) -> Option<Time> {
        self.seen.get(&slot).map(|sign| sign.at)
    }

    /// The task is no longer watched.
    pub(super) fn stop(&mut self, slot: Slot) {
        if let Some(before) = self.seen.remove(&slot) {
            self.order.remove(&(before.expires(), slot));
        }
    }

    /// A task that has been silent for its limit, and for how long.
    pub(super) fn expired(&self, now: Time) -> Option<(Slot, Duration)> {
        let &(expires, slot) = self.order.first()?;
        (expires <= now).then(|| (slot, now.since(self.seen.get(&slot).map_or(expires, |sign| sign.at))))
    }

    /// Takes a span off everybody's silence: it was ours, not theirs.
    pub(super) fn forgive(&mut self, span: Duration, now: Time) {
        for (slot, sign) in &mut self.seen {
            self.order.remove(&(sign.expires(), *slot));
            sign.at = (sign.at + span).min(now);
            self.order.insert((sign.expires(), *slot));
        }
    }

    /// When the next task expires, unless it is heard of.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.order.first().map(|&(expires, _)| expires)
    }
}
