//! Registering together: tasks that come this way are connected when all of the cluster are there, all at once.
//!
//! - A1. Before that moment nobody hears of a task that ends or is restarted: its later life takes its place.
//! - A2. After it, tasks connect one by one, until all have gone; then the next ones come together again.
//! - A3. Those are another job, which finds no key and no barrier of the one before, as if the service were new: JAX starts
//!   a service for each job.

use std::collections::BTreeMap;
use std::time::Duration;

use ringway_topology::Incarnation;

use super::errors::{Code, Refusal, list};
use super::membership::{Membership, Slot};
use super::request::{Effect, ReplyTo};
use crate::core::time::Time;

/// A task that has come and waits for the others.
#[derive(Debug)]
pub(super) struct Entrant {
    pub(super) incarnation: Incarnation,
    /// How long it may be silent once it is connected, if it has a limit of its own.
    pub(super) silence: Option<Duration>,
    pub(super) callers: Vec<ReplyTo>,
}

/// The tasks that have come.
#[derive(Debug)]
pub(super) struct Gathering {
    timeout: Duration,
    entrants: BTreeMap<Slot, Entrant>,
    since: Option<Time>,
    complete: bool,
}

impl Gathering {
    /// The first that comes waits for `timeout` at most.
    pub(super) fn new(timeout: Duration) -> Self {
        Gathering { timeout, entrants: BTreeMap::new(), since: None, complete: false }
    }

    /// Whether all have been there since nobody was.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Tasks are connected already, so that the others connect one by one.
    pub(super) fn resume(&mut self, connected: bool) {
        self.complete = connected;
    }

    /// Everybody has gone.
    pub(super) fn reopen(&mut self) {
        self.complete = false;
    }

    /// A task comes, or the same one again. An earlier life of it is sent away.
    pub(super) fn enter(
        &mut self,
        now: Time,
        slot: Slot,
        entrant: Entrant,
        members: &Membership,
        out: &mut Vec<Effect>,
    ) {
        self.since.get_or_insert(now);
        match self.entrants.get_mut(&slot) {
            Some(before) if before.incarnation == entrant.incarnation => {
                before.callers.extend(entrant.callers)
            }
            _ => {
                let replaced = self.entrants.insert(slot, entrant);
                let message =
                    format!("a newer process of {} registers: this one must end", members.name(slot));
                let error = Refusal::new(Code::AlreadyExists, message);
                for to in replaced.into_iter().flat_map(|before| before.callers) {
                    out.push(Effect::Reply { to, result: Err(error.clone()) });
                }
            }
        }
    }

    /// All who have come, if they and those who are connected are everybody.
    pub(super) fn take(&mut self, members: &Membership) -> Option<BTreeMap<Slot, Entrant>> {
        let here = self.entrants.len() + members.connected_count() as usize;
        if self.entrants.is_empty() || here < members.everyone().len() {
            return None;
        }
        self.complete = true;
        self.since = None;
        Some(std::mem::take(&mut self.entrants))
    }

    /// A caller has gone. Its task has not come, if no other call of it waits.
    pub(super) fn forget(&mut self, slot: Slot, to: ReplyTo) {
        if let Some(entrant) = self.entrants.get_mut(&slot) {
            entrant.callers.retain(|&caller| caller != to);
            if entrant.callers.is_empty() {
                self.entrants.remove(&slot);
            }
        }
        if self.entrants.is_empty() {
            self.since = None;
        }
    }

    /// Sends everybody away, if the time is over, and says who is missing.
    pub(super) fn expire(&mut self, now: Time, members: &Membership, out: &mut Vec<Effect>) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            let late = self.late(members);
            let message = format!(
                "{} of {} tasks did not register within {:?}: {}; start them, or look at their logs",
                late.len(),
                members.everyone().len(),
                self.timeout,
                list(late.iter().map(|&slot| members.name(slot)))
            );
            self.stop(&Refusal::new(Code::DeadlineExceeded, message), out);
        }
    }

    /// Sends everybody away.
    pub(super) fn stop(&mut self, error: &Refusal, out: &mut Vec<Effect>) {
        self.since = None;
        for to in std::mem::take(&mut self.entrants).into_values().flat_map(|entrant| entrant.callers) {
            out.push(Effect::Reply { to, result: Err(error.clone()) });
        }
    }

    /// When those who have come give up.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.since.map(|since| since + self.timeout)
    }

    /// Since when somebody waits.
    pub(super) fn since(&self) -> Option<Time> {
        self.since
    }

    /// Those who have come.
    pub(super) fn here(&self) -> impl Iterator<Item = Slot> + '_ {
        self.entrants.keys().copied()
    }

    /// Those who have not.
    pub(super) fn late(&self, members: &Membership) -> Vec<Slot> {
        let everyone = members.everyone();
        let here = |slot: &Slot| self.entrants.contains_key(slot) || members.is_connected(*slot);
        everyone.iter().copied().filter(|slot| !here(slot)).collect()
    }
}
