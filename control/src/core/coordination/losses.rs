//! Losses: who was lost, by what it was recognised, and the streams on which the others hear of it.
//!
//! - L1. Each life of a task is announced as lost at most once, to every stream that is open, and to each that is
//!   opened later and has not seen it.
//! - L2. Announcements on one stream are in the order of their epochs.
//! - L3. A task has at most one stream; a new one replaces the old.
//! - L4. When a stream breaks and no other comes within the grace, the task is lost, unless it left in order. So it is with
//!   the call in which a task waits for errors, for tasks that open no stream.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ringway_topology::{HostId, Incarnation, TaskId};

use super::membership::Slot;
use super::request::{Effect, Notice, WatchId};
use crate::core::time::Time;

mod stored;

/// By what a loss was recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Evidence {
    /// No heartbeat within the limit.
    Heartbeat,
    /// Its connection to the coordination service ended and did not come back.
    Connection,
    /// A peer saw its connection to the task fail.
    Peer,
    /// The task itself gave up.
    Own,
    /// A new incarnation of the task appeared.
    Restart,
    /// The process with the coordination service is gone or silent.
    Coordinator,
    /// Its launcher, which hosts the service, saw its process end.
    Launcher,
}

/// The end of one life of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The task.
    pub task: TaskId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Its host, if it was ever told.
    pub host: Option<HostId>,
    /// Its process id on that host, if it was ever told.
    pub pid: Option<u32>,
    /// Its rank in the first group that it entered.
    pub rank: Option<u32>,
    /// By what the loss was recognised.
    pub evidence: Evidence,
    /// The evidence in words.
    pub detail: String,
    /// Above the epoch of every earlier group and loss. 0 when the agent found the loss itself.
    pub epoch: u64,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank {
            Some(rank) => write!(f, "rank {rank} ({}", self.task)?,
            None => write!(f, "{} (no rank yet", self.task)?,
        }
        if let (Some(host), Some(pid)) = (&self.host, self.pid) {
            write!(f, ", pid {pid} on host {host}")?;
        }
        write!(f, ") is lost: {}", self.detail)
    }
}

/// The log of losses and the streams that carry it.
#[derive(Debug)]
pub(super) struct Losses {
    grace: Duration,
    watches: BTreeMap<WatchId, Slot>,
    stream_of: BTreeMap<Slot, WatchId>,
    /// By epoch; of each task only the latest, so that the log is bounded by the cluster.
    log: BTreeMap<u64, Arc<Loss>>,
    logged: BTreeMap<Slot, u64>,
    /// Whose latest loss is not remembered.
    changed: BTreeSet<Slot>,
    /// Tasks whose stream broke, and when that makes them lost.
    suspects: BTreeMap<Slot, Time>,
}

impl Losses {
    /// A task whose stream broke has `grace` to open another.
    pub(super) fn new(grace: Duration) -> Self {
        Losses {
            grace,
            watches: BTreeMap::new(),
            stream_of: BTreeMap::new(),
            log: BTreeMap::new(),
            logged: BTreeMap::new(),
            changed: BTreeSet::new(),
            suspects: BTreeMap::new(),
        }
    }

    /// A stream is open: it gets the losses after `since_epoch`.
    pub(super) fn open(&mut self, watch: WatchId, slot: Slot, since_epoch: u64, out: &mut Vec<Effect>) {
        self.suspects.remove(&slot);
        if let Some(old) = self.stream_of.insert(slot, watch) {
            self.watches.remove(&old);
            out.push(Effect::CloseWatch { watch: old });
        }
        self.watches.insert(watch, slot);
        for loss in self.log.range(since_epoch.saturating_add(1)..).map(|(_, loss)| loss) {
            out.push(Effect::Notify { watch, notice: Notice::Loss(loss.clone()) });
        }
    }

    /// A stream broke.
    pub(super) fn broken(&mut self, watch: WatchId, now: Time) {
        if let Some(slot) = self.watches.remove(&watch) {
            self.stream_of.remove(&slot);
            self.suspects.insert(slot, now + self.grace);
        }
    }

    /// The call in which a task waited for errors ended from its side.
    pub(super) fn suspect(&mut self, slot: Slot, now: Time) {
        if !self.stream_of.contains_key(&slot) {
            self.suspects.insert(slot, now + self.grace);
        }
    }

    /// The task is there again.
    pub(super) fn clear(&mut self, slot: Slot) {
        self.suspects.remove(&slot);
    }

    /// A loss is announced to all.
    pub(super) fn announce(&mut self, slot: Slot, loss: Loss, out: &mut Vec<Effect>) {
        self.suspects.remove(&slot);
        self.changed.insert(slot);
        let (epoch, loss) = (loss.epoch, Arc::new(loss));
        if let Some(before) = self.logged.insert(slot, epoch) {
            self.log.remove(&before);
        }
        for &watch in self.watches.keys() {
            out.push(Effect::Notify { watch, notice: Notice::Loss(loss.clone()) });
        }
        self.log.insert(epoch, loss);
    }

    /// The streams that are open, with their tasks.
    pub(super) fn streams(&self) -> impl Iterator<Item = (WatchId, Slot)> + '_ {
        self.watches.iter().map(|(&watch, &slot)| (watch, slot))
    }

    /// A task left in order: its stream ends and means nothing.
    pub(super) fn leave(&mut self, slot: Slot, out: &mut Vec<Effect>) {
        self.suspects.remove(&slot);
        if let Some(watch) = self.stream_of.remove(&slot) {
            self.watches.remove(&watch);
            out.push(Effect::CloseWatch { watch });
        }
    }

    /// A task whose stream broke and did not come back in time.
    pub(super) fn expired(&self, now: Time) -> Option<Slot> {
        self.suspects.iter().find(|&(_, &deadline)| deadline <= now).map(|(&slot, _)| slot)
    }

    /// How long a task whose stream broke has to open another.
    pub(super) fn grace(&self) -> Duration {
        self.grace
    }

    /// When the next suspect is lost.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.suspects.values().min().copied()
    }

    /// Ends all streams, since the service ends.
    pub(super) fn stop(&mut self, out: &mut Vec<Effect>) {
        self.suspects.clear();
        self.stream_of.clear();
        for (watch, _) in std::mem::take(&mut self.watches) {
            out.push(Effect::Notify { watch, notice: Notice::Closing });
            out.push(Effect::CloseWatch { watch });
        }
    }
}
