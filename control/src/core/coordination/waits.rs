//! Who waits for what and for whom, and since when: what names the stragglers of a job.

use std::collections::BTreeMap;

use ringway_topology::TaskId;

use super::membership::Slot;
use super::rounds::is_knock;
use super::{Coordinator, Held};
use crate::core::time::Time;

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Awaited {
    /// That all tasks of the cluster register.
    Registration,
    /// That all tasks of the cluster have told their devices.
    Devices,
    /// That somebody writes this key.
    Key(String),
    /// That all tasks of a barrier come to it.
    Barrier {
        /// Its id.
        id: String,
        /// Which use of the id.
        counter: i64,
    },
    /// That each task which is alive asks who is.
    Alive,
    /// That the group of this name is full.
    Group(String),
    /// That all tasks want to leave.
    Departure,
}

/// A wait that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// What for.
    pub awaited: Awaited,
    /// When its first caller came.
    pub since: Time,
    /// When it fails, if nothing happens before.
    pub deadline: Option<Time>,
    /// Tasks that wait, in order; the first ones, where they are more than were asked for.
    pub waiting: Vec<TaskId>,
    /// Tasks and callers that wait. Callers that do not say of which task they are count one each.
    pub waiting_count: usize,
    /// Tasks that are waited for, in order; the first ones. None where it can be anybody: who writes a key, or enters a
    /// group that is smaller than the cluster.
    pub late: Vec<TaskId>,
    /// How many have to come; 0 for a key.
    pub late_count: usize,
}

/// Callers that wait for the same, among the same tasks.
type Kind<'a> = (Awaited, Option<&'a [Slot]>);

impl Coordinator {
    /// All waits that have not ended, the longest first. Each list has at most `names` tasks.
    #[must_use]
    pub fn waits(&self, names: usize) -> Vec<Wait> {
        let mut waits = Vec::new();
        if let Some(since) = self.gathering.since() {
            let here: Vec<Slot> = self.gathering.here().collect();
            let late = self.gathering.late(&self.members);
            waits.push(self.wait(
                Awaited::Registration,
                (since, self.gathering.deadline()),
                &here,
                &late,
                names,
            ));
        }
        for (key, open) in self.barriers.open() {
            let awaited = Awaited::Barrier { id: key.id.to_string(), counter: key.counter };
            let (here, late) = open.split();
            waits.push(self.wait(awaited, (open.since, Some(open.deadline)), &here, &late, names));
        }
        for group in self.groups.incomplete(&self.members) {
            let times = (group.since, Some(group.deadline));
            let wait = self.wait(Awaited::Group(group.name), times, &group.here, &group.late, names);
            waits.push(Wait { late_count: group.missing, ..wait });
        }
        for round in self.rounds.open() {
            let times = (round.since, Some(round.deadline));
            let wait = self.wait(Awaited::Group(round.name), times, &round.here, &round.late, names);
            waits.push(Wait { late_count: round.missing, ..wait });
        }
        self.add_callers(names, &mut waits);
        waits.sort_by(|a, b| (a.since, &a.awaited).cmp(&(b.since, &b.awaited)));
        waits
    }

    /// Adds the waits that are kept by caller alone.
    fn add_callers(&self, names: usize, waits: &mut Vec<Wait>) {
        let mut found: BTreeMap<Kind<'_>, (Time, Vec<Option<Slot>>)> = BTreeMap::new();
        for caller in self.held.values() {
            let key = match &caller.held {
                // Members of every group listen for newcomers: nobody is late with that.
                Held::Key(path) if is_knock(path) => continue,
                Held::Key(path) => (Awaited::Key(path.clone()), None),
                Held::Everyone => (Awaited::Devices, None),
                Held::Alive(tasks) => (Awaited::Alive, Some(&tasks[..])),
                Held::Departure(_) => (Awaited::Departure, None),
                // Told already, or waits for nobody.
                Held::Gathering(_)
                | Held::Barrier(_)
                | Held::Group(_)
                | Held::Round(_)
                | Held::Poll
                | Held::Job(_) => continue,
            };
            let (since, callers) = found.entry(key).or_insert((caller.since, Vec::new()));
            *since = (*since).min(caller.since);
            callers.push(caller.of);
        }
        for ((awaited, among), (since, callers)) in found {
            let mut here: Vec<Slot> = callers.iter().flatten().copied().collect();
            here.sort_unstable();
            here.dedup();
            let nameless = callers.iter().filter(|of| of.is_none()).count();
            let (late, deadline) = self.late_for(&awaited, among, &here);
            let wait = self.wait(awaited, (since, deadline), &here, &late, names);
            waits.push(Wait { waiting_count: here.len() + nameless, ..wait });
        }
    }

    fn late_for(
        &self,
        awaited: &Awaited,
        among: Option<&[Slot]>,
        here: &[Slot],
    ) -> (Vec<Slot>, Option<Time>) {
        let absent = |slot: &Slot| here.binary_search(slot).is_err();
        match awaited {
            Awaited::Devices => (self.members.without_devices().collect(), self.members.deadline()),
            Awaited::Alive => {
                let live = among.unwrap_or_default().iter().filter(|slot| self.members.is_connected(**slot));
                (live.copied().filter(absent).collect(), None)
            }
            Awaited::Departure => {
                (self.members.connected().filter(absent).collect(), self.departure.deadline())
            }
            _ => (Vec::new(), None),
        }
    }

    fn wait(
        &self,
        awaited: Awaited,
        (since, deadline): (Time, Option<Time>),
        here: &[Slot],
        late: &[Slot],
        names: usize,
    ) -> Wait {
        let named = |slots: &[Slot]| {
            slots.iter().take(names).map(|&slot| self.members.name(slot).clone()).collect::<Vec<TaskId>>()
        };
        Wait {
            awaited,
            since,
            deadline,
            waiting: named(here),
            waiting_count: here.len(),
            late: named(late),
            late_count: late.len(),
        }
    }
}
