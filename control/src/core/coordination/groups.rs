//! Groups: processes that enter together get ranks, each other's addresses, and a secret.
//!
//! - G1. All members of a group get the same table.
//! - G2. Ranks are 0 to size - 1, each once. A member that asked for a rank has it.
//! - G3. A group is made when all its members are there. If one is lost before, too few tasks are left, or two disagree,
//!   all who came are told so at once, and the group may be tried again.
//! - G4. A group that is made never changes: a restarted task enters a group of another name.
//!
//! A group is forgotten when all its members have left or are lost; its name is then free.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::errors::{Code, Refusal, list};
use super::membership::{Membership, Slot};
use super::request::{Effect, Join, Process, Reply, ReplyTo};
use super::{Answer, Held};
use crate::core::time::Time;

mod stored;

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMember {
    /// Its rank in the group.
    pub rank: u32,
    /// The process.
    pub process: Process,
    /// Where its data plane is reached; carried unread.
    pub addresses: Vec<u8>,
    /// The coordinator runs in this process.
    pub hosts_coordinator: bool,
}

/// A group that is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupTable {
    /// By rank.
    pub members: Vec<GroupMember>,
    /// Above the epoch of every earlier group and loss.
    pub epoch: u64,
    /// Known to the members only.
    pub secret: [u8; 32],
}

#[derive(Debug)]
struct Entrant {
    process: Process,
    rank: Option<u32>,
    addresses: Vec<u8>,
    hosts_coordinator: bool,
    waiting: Vec<ReplyTo>,
}

#[derive(Debug)]
struct Forming {
    size: u32,
    first: Slot,
    entrants: BTreeMap<Slot, Entrant>,
    secret: [u8; 32],
    timeout: Duration,
    since: Time,
    deadline: Time,
}

/// A group that is not full yet.
pub(super) struct Incomplete {
    pub(super) name: String,
    pub(super) since: Time,
    pub(super) deadline: Time,
    /// Tasks that have entered, in order.
    pub(super) here: Vec<Slot>,
    /// Tasks that have to, in order, where the group is of the whole cluster.
    pub(super) late: Vec<Slot>,
    /// How many have to.
    pub(super) missing: usize,
}

#[derive(Debug)]
struct Made {
    table: Arc<GroupTable>,
    present: BTreeMap<Slot, u32>,
}

/// All groups of the service.
#[derive(Debug)]
pub(super) struct Groups {
    forming: BTreeMap<String, Forming>,
    made: BTreeMap<String, Made>,
    /// Made, left or forgotten, and not remembered as such.
    changed: BTreeSet<String>,
    limit: usize,
}

/// A task that wants to enter.
pub(super) struct Entry {
    pub(super) slot: Slot,
    pub(super) join: Join,
    /// How long the first entrant waits for the others.
    pub(super) timeout: Duration,
    pub(super) to: ReplyTo,
}

/// A group was made: who has which rank in it.
pub(super) struct Ranks(pub(super) Vec<(Slot, u32)>);

impl Groups {
    /// At most `limit` groups at a time.
    pub(super) fn new(limit: usize) -> Self {
        Groups { forming: BTreeMap::new(), made: BTreeMap::new(), changed: BTreeSet::new(), limit }
    }

    /// The groups that are made: each name, its table, and how many of its members are still there.
    pub(super) fn made(&self) -> impl Iterator<Item = (&str, &GroupTable, usize)> {
        self.made.iter().map(|(name, made)| (name.as_str(), &*made.table, made.present.len()))
    }

    /// The group of this name, if it is made, and its members that are still there, with their ranks.
    pub(super) fn of(&self, name: &str) -> Option<(&GroupTable, &BTreeMap<Slot, u32>)> {
        self.made.get(name).map(|made| (&*made.table, &made.present))
    }

    /// The groups that are not full yet.
    pub(super) fn incomplete(&self, members: &Membership) -> Vec<Incomplete> {
        let everyone = members.everyone();
        let view = |(name, forming): (&String, &Forming)| {
            let whole = forming.size as usize == everyone.len();
            let absent = everyone.iter().filter(|slot| whole && !forming.entrants.contains_key(slot));
            Incomplete {
                name: name.clone(),
                since: forming.since,
                deadline: forming.deadline,
                here: forming.entrants.keys().copied().collect(),
                late: absent.copied().collect(),
                missing: (forming.size as usize).saturating_sub(forming.entrants.len()),
            }
        };
        self.forming.iter().map(view).collect()
    }

    /// A task wants to enter. `next_epoch` is taken when this makes the group.
    pub(super) fn enter(
        &mut self,
        now: Time,
        entry: Entry,
        next_epoch: u64,
        out: &mut Vec<Effect>,
    ) -> (Answer, Option<Ranks>) {
        let Entry { slot, join, timeout, to } = entry;
        if let Some(made) = self.made.get(&join.group) {
            return (Answer::Now(made.again(slot, &join)), None);
        }
        if let Err(error) = self.admit(&join) {
            return (Answer::Now(Err(error)), None);
        }
        let name = join.group.clone();
        let forming = self.forming.entry(name.clone()).or_insert_with(|| Forming {
            size: join.size,
            first: slot,
            entrants: BTreeMap::new(),
            secret: join.fresh_secret,
            timeout,
            since: now,
            deadline: now + timeout,
        });
        if let Some(error) = forming.conflict(slot, &join) {
            self.fail(&name, &error, out);
            return (Answer::Now(Err(error)), None);
        }
        forming.add(slot, join, to);
        let ranks =
            (forming.entrants.len() == forming.size as usize).then(|| self.make(&name, next_epoch, out));
        (Answer::Held(Held::Group(name)), ranks)
    }

    fn admit(&self, join: &Join) -> Result<(), Refusal> {
        let name = &join.group;
        let bad = |message: String| Err(Refusal::new(Code::InvalidArgument, message));
        if join.size == 0 {
            return bad(format!("group {name:?} of size 0: a group has at least one member"));
        }
        if let Some(rank) = join.rank.filter(|&rank| rank >= join.size) {
            return bad(format!("rank {rank} does not exist in group {name:?} of size {}", join.size));
        }
        let new = !self.forming.contains_key(name);
        if new && self.forming.len() + self.made.len() >= self.limit {
            let message = format!("{} groups exist, the limit: end some first", self.limit);
            return Err(Refusal::new(Code::ResourceExhausted, message));
        }
        Ok(())
    }

    fn make(&mut self, name: &str, epoch: u64, out: &mut Vec<Effect>) -> Ranks {
        let forming = self.forming.remove(name).expect("the group was forming");
        let mut free = vec![true; forming.size as usize];
        for rank in forming.entrants.values().filter_map(|entrant| entrant.rank) {
            free[rank as usize] = false;
        }
        let mut free = (0..forming.size).filter(|&rank| free[rank as usize]);
        let (mut members, mut waiting, mut ranks) = (Vec::new(), Vec::new(), Vec::new());
        for (slot, entrant) in forming.entrants {
            let rank = entrant
                .rank
                .or_else(|| free.next())
                .expect("ranks asked for are distinct and below the size");
            ranks.push((slot, rank));
            waiting.extend(entrant.waiting);
            members.push(GroupMember {
                rank,
                process: entrant.process,
                addresses: entrant.addresses,
                hosts_coordinator: entrant.hosts_coordinator,
            });
        }
        members.sort_by_key(|member| member.rank);
        let table = Arc::new(GroupTable { members, epoch, secret: forming.secret });
        for to in waiting {
            out.push(Effect::Reply { to, result: Ok(Reply::Group(table.clone())) });
        }
        self.changed.insert(name.to_owned());
        self.made.insert(name.to_owned(), Made { table, present: ranks.iter().copied().collect() });
        Ranks(ranks)
    }

    /// A task failed or left.
    pub(super) fn lose(&mut self, slot: Slot, error: &Refusal, out: &mut Vec<Effect>) {
        let hit = self.forming.iter().filter(|(_, forming)| forming.entrants.contains_key(&slot));
        let names: Vec<String> = hit.map(|(name, _)| name.clone()).collect();
        for name in names {
            let message = format!("group {name:?} cannot be made: {error}");
            self.fail(&name, &Refusal { message: message.into(), ..error.clone() }, out);
        }
        let changed = &mut self.changed;
        self.made.retain(|name, made| {
            if made.present.remove(&slot).is_some() {
                changed.insert(name.clone());
            }
            !made.present.is_empty()
        });
    }

    /// Ends the attempts that too few tasks are left for, naming those that are gone.
    pub(super) fn abandon(&mut self, members: &Membership, out: &mut Vec<Effect>) {
        let left = members.everyone().len() - members.gone().len();
        let hopeless = self.forming.iter().filter(|(_, forming)| forming.size as usize > left);
        let names: Vec<String> = hopeless.map(|(name, _)| name.clone()).collect();
        for name in names {
            let why = list(members.gone().map(|(task, why)| format!("{task}: {why}")));
            let message = format!("group {name:?} cannot be made: {why}; look at the logs of those first");
            self.fail(&name, &Refusal::new(Code::Aborted, message), out);
        }
    }

    /// Ends the attempts whose time is over, naming who is missing.
    pub(super) fn expire(&mut self, now: Time, members: &Membership, out: &mut Vec<Effect>) {
        let due = self.forming.iter().filter(|(_, forming)| forming.deadline <= now);
        let elsewhere = |slot: Slot| {
            // Of a task that is missing in one group: the other that it waits in.
            let other = self.forming.iter().find(|(_, forming)| forming.entrants.contains_key(&slot));
            other.map(|(name, _)| name.as_str())
        };
        let late: Vec<(String, Refusal)> =
            due.map(|(name, forming)| (name.clone(), forming.late(name, members, elsewhere))).collect();
        for (name, error) in late {
            self.fail(&name, &error, out);
        }
    }

    /// When the next attempt ends by itself.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.forming.values().map(|forming| forming.deadline).min()
    }

    /// A caller has gone. If nobody waits for its task any more, the task is no longer an entrant.
    pub(super) fn forget(&mut self, name: &str, to: ReplyTo) {
        if let Some(forming) = self.forming.get_mut(name) {
            forming.entrants.retain(|_, entrant| {
                entrant.waiting.retain(|&waiting| waiting != to);
                !entrant.waiting.is_empty()
            });
            if forming.entrants.is_empty() {
                self.forming.remove(name);
            }
        }
    }

    /// Sends everybody away, since the service ends.
    pub(super) fn stop(&mut self, error: &Refusal, out: &mut Vec<Effect>) {
        let names: Vec<String> = self.forming.keys().cloned().collect();
        for name in names {
            self.fail(&name, error, out);
        }
    }

    fn fail(&mut self, name: &str, error: &Refusal, out: &mut Vec<Effect>) {
        if let Some(forming) = self.forming.remove(name) {
            for to in forming.entrants.into_values().flat_map(|entrant| entrant.waiting) {
                out.push(Effect::Reply { to, result: Err(error.clone()) });
            }
        }
    }
}

impl Forming {
    /// How this entrant disagrees with those who came before.
    fn conflict(&self, slot: Slot, join: &Join) -> Option<Refusal> {
        let name = &join.group;
        let message = if join.size != self.size {
            let first = self.entrants.get(&self.first).or_else(|| self.entrants.values().next())?;
            format!(
                "members of group {name:?} disagree: {} says size {}, {} says size {}; start all with the same world size",
                who(&join.process),
                join.size,
                who(&first.process),
                self.size
            )
        } else {
            let rank = join.rank?;
            let (_, other) = self
                .entrants
                .iter()
                .find(|(other, entrant)| **other != slot && entrant.rank == Some(rank))?;
            format!(
                "two members of group {name:?} want rank {rank}: {} and {}; give each its own rank",
                who(&join.process),
                who(&other.process)
            )
        };
        Some(Refusal::new(Code::InvalidArgument, message))
    }

    fn add(&mut self, slot: Slot, join: Join, to: ReplyTo) {
        let Join { process, rank, addresses, hosts_coordinator, .. } = join;
        let waiting = self.entrants.remove(&slot).map_or_else(Vec::new, |entrant| entrant.waiting);
        let mut entrant = Entrant { process, rank, addresses, hosts_coordinator, waiting };
        entrant.waiting.push(to);
        self.entrants.insert(slot, entrant);
    }

    fn late<'a>(
        &self,
        name: &str,
        members: &Membership,
        elsewhere: impl Fn(Slot) -> Option<&'a str>,
    ) -> Refusal {
        let taken: Vec<u32> = self.entrants.values().filter_map(|entrant| entrant.rank).collect();
        let missing = self.size as usize - self.entrants.len();
        let ranks = if taken.len() == self.entrants.len() {
            format!(": rank {}", list((0..self.size).filter(|rank| !taken.contains(rank))))
        } else {
            String::new()
        };
        let mut todo = "Start them, or look at their logs";
        let absent = members.everyone();
        let absent = absent.iter().filter(|slot| !self.entrants.contains_key(slot));
        let absent: Vec<String> = absent
            .map(|&slot| {
                let member = members.get(slot);
                match (&member.process, elsewhere(slot)) {
                    (Some(process), Some(other)) => {
                        todo = "Groups have the names of jobs: start all ranks with the same RINGWAY_JOB_ID";
                        format!("{}, which waits in group {other:?}", who(process))
                    }
                    (Some(process), None) => who(process),
                    (None, _) => format!("{} (never registered)", member.task),
                }
            })
            .collect();
        let message = format!(
            "group {name:?} of {} was not complete within {:?}; {missing} missing{ranks}. Not there: {}. {todo}",
            self.size,
            self.timeout,
            list(absent.into_iter())
        );
        Refusal::new(Code::DeadlineExceeded, message)
    }
}

impl Made {
    /// Answers a member that asks again, and refuses everybody else (G4).
    fn again(&self, slot: Slot, join: &Join) -> Result<Reply, Refusal> {
        let member = self.present.get(&slot).map(|&rank| &self.table.members[rank as usize]);
        match member {
            Some(member) if member.process.incarnation == join.process.incarnation => {
                Ok(Reply::Group(self.table.clone()))
            }
            _ => {
                let message = format!(
                    "group {:?} of {} was made without {}: enter a group of another name",
                    join.group,
                    self.table.members.len(),
                    who(&join.process)
                );
                Err(Refusal::new(Code::FailedPrecondition, message))
            }
        }
    }
}

fn who(process: &Process) -> String {
    format!("{} (pid {} on host {})", process.task, process.pid, process.host)
}
