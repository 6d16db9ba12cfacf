//! Rounds: how the processes of an elastic job agree, again and again, on who is in its group.
//!
//! The groups of one name are a series, and each of them a generation. Who wants to be in the next one says so, and is
//! answered when the round closes: members of the last generation that go on, and newcomers, which wait until those let
//! them in.
//!
//! - R1. All members of a generation get the same table.
//! - R2. Generations are numbered from 1 on; a process that was told of one is never told of an earlier one.
//! - R3. A generation has no fewer members than the least of its series, and no more than the most.
//! - R4. A round closes when every member of the last generation that is left has asked for the next one: nobody who lives
//!   is left behind, and nobody who is lost is waited for.
//! - R5. Members of the last generation come first, in the order of their ranks, then newcomers in the order of tasks.
//!   [`RoundTable::carried`] tells how many were there before: they have the state of the job.
//! - R6. Every caller has an answer: the table, at its own deadline who is missing, or why its task goes.
//! - R7. When all members of a generation have left in order, the series is over, and who waits is told so. When the last of
//!   them is lost, whoever comes begins anew, with nobody carried over.
//!
//! A group that was entered by [`super::groups`] is the first generation of its name's series.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::errors::{Code, Refusal, list};
use super::groups::{GroupMember, GroupTable};
use super::membership::{Membership, Slot};
use super::request::{Effect, Process, Regroup, Reply, ReplyTo};
use super::{Answer, Held};
use crate::core::time::Time;

mod stored;

/// How few and how many members a group may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundLimits {
    /// No group has fewer; at least 1.
    pub least: u32,
    /// No group has more.
    pub most: u32,
}

/// A generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundTable {
    /// Which; the first is 1.
    pub generation: u64,
    /// So many members, those with the lowest ranks, were in the generation before.
    pub carried: u32,
    /// Its members.
    pub group: GroupTable,
}

/// The key that is written when newcomers wait for the generation after this one.
#[must_use]
pub fn knock_key(group: &str, generation: u64) -> String {
    format!("{KNOCKS}{group}/{generation}")
}

/// What the keys of knocks begin with.
const KNOCKS: &str = "ringway/rounds/";

/// Whether somebody who waits for this key only listens for newcomers, as every member does for as long as it lives.
pub(super) fn is_knock(key: &str) -> bool {
    key.starts_with(KNOCKS)
}

/// A process that wants to be in the next generation.
#[derive(Debug)]
struct Entrant {
    wish: Regroup,
    callers: Vec<ReplyTo>,
    since: Time,
    deadline: Time,
}

/// The generations of one name.
#[derive(Debug)]
struct Series {
    limits: RoundLimits,
    latest: Option<Arc<RoundTable>>,
    /// Members of the latest that have neither left nor are lost, with their ranks.
    present: BTreeMap<Slot, u32>,
    entrants: BTreeMap<Slot, Entrant>,
    /// Since when the round could close.
    ready: Option<Time>,
    /// Newcomers have been announced to the members of the latest.
    knocked: bool,
}

/// A round that waits.
pub(super) struct Open {
    pub(super) name: String,
    pub(super) since: Time,
    pub(super) deadline: Time,
    pub(super) here: Vec<Slot>,
    /// Members of the last generation that have not asked.
    pub(super) late: Vec<Slot>,
    /// How many have to come at least.
    pub(super) missing: usize,
}

/// All series of the service.
#[derive(Debug)]
pub(super) struct Rounds {
    series: BTreeMap<String, Series>,
    /// Not remembered as they are.
    changed: BTreeSet<String>,
    limit: usize,
}

/// What follows from a round.
pub(super) struct Closed {
    /// Who has which rank now.
    pub(super) ranks: Vec<(Slot, u32)>,
    /// The key by which newcomers of this round were announced.
    pub(super) answered: Option<String>,
}

impl Rounds {
    /// At most `limit` series at a time.
    pub(super) fn new(limit: usize) -> Self {
        Rounds { series: BTreeMap::new(), changed: BTreeSet::new(), limit }
    }

    /// Whether a series has this name.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.series.contains_key(name)
    }

    /// The latest generations: each name, its table, and how many of its members are still there.
    pub(super) fn made(&self) -> impl Iterator<Item = (&str, &RoundTable, usize)> {
        self.series.iter().filter_map(|(name, series)| {
            let latest = series.latest.as_deref()?;
            Some((name.as_str(), latest, series.present.len()))
        })
    }

    /// The rounds in which somebody waits.
    pub(super) fn open(&self) -> Vec<Open> {
        let open = |(name, series): (&String, &Series)| {
            let since = series.entrants.values().map(|entrant| entrant.since).min()?;
            let deadline = series.entrants.values().map(|entrant| entrant.deadline).max()?;
            let late: Vec<Slot> = series.late().collect();
            let few = (series.limits.least as usize).saturating_sub(series.entrants.len());
            let (here, missing) = (series.entrants.keys().copied().collect(), few.max(late.len()));
            Some(Open { name: name.clone(), since, deadline, here, late, missing })
        };
        self.series.iter().filter_map(open).collect()
    }

    /// A group becomes the first generation of its name.
    pub(super) fn follow(
        &mut self,
        name: &str,
        table: &GroupTable,
        present: &BTreeMap<Slot, u32>,
        limits: RoundLimits,
    ) {
        let latest = RoundTable { generation: 1, carried: 0, group: table.clone() };
        let mut series = Series::new(limits);
        (series.latest, series.present) = (Some(Arc::new(latest)), present.clone());
        self.changed.insert(name.to_owned());
        self.series.insert(name.to_owned(), series);
    }

    /// A process wants to be in the next generation. Its round is closed by [`Rounds::close`].
    pub(super) fn enter(
        &mut self,
        now: Time,
        slot: Slot,
        wish: Regroup,
        timeout: Duration,
        to: ReplyTo,
        out: &mut Vec<Effect>,
    ) -> Result<Answer, Refusal> {
        let name = wish.group.clone();
        let RoundLimits { least, most } = wish.limits;
        if least == 0 || least > most {
            let message = format!(
                "group {name:?} of {least} to {most} members: give it at least 1, and no more at least than at most"
            );
            return Err(Refusal::new(Code::InvalidArgument, message));
        }
        if !self.series.contains_key(&name) && self.series.len() >= self.limit {
            let message = format!("{} series of groups exist, the limit: end some first", self.limit);
            return Err(Refusal::new(Code::ResourceExhausted, message));
        }
        let generation = self.series.get(&name).map_or(0, Series::generation);
        if wish.after > generation {
            let message = format!(
                "{} was in generation {} of group {name:?}, and the service knows of {generation}: start the job anew",
                who(&wish.process),
                wish.after
            );
            return Err(Refusal::new(Code::FailedPrecondition, message));
        }
        let series = self.series.entry(name.clone()).or_insert_with(|| Series::new(wish.limits));
        if series.limits != wish.limits {
            let (has, of) = (series.limits, who(&wish.process));
            let message = format!(
                "members of group {name:?} disagree: {of} wants {least} to {most} members, the others {} to {}; start \
                 all with the same limits",
                has.least, has.most
            );
            return Err(Refusal::new(Code::InvalidArgument, message));
        }
        if wish.after < generation
            && let Some(again) = series.again(slot, &wish.process)
        {
            return Ok(Answer::Now(Ok(Reply::Round(again))));
        }
        series.add(now, slot, wish, timeout, to, out);
        Ok(Answer::Held(Held::Round(name)))
    }

    /// Closes a round that can be closed. `next_epoch` is taken by it.
    pub(super) fn close(&mut self, now: Time, next_epoch: u64, out: &mut Vec<Effect>) -> Option<Closed> {
        let (name, series) = self.series.iter_mut().find_map(|(name, series)| {
            let due = series.due(now)?;
            (due <= now).then_some((name.clone(), series))
        })?;
        self.changed.insert(name.clone());
        Some(series.make(&name, next_epoch, out))
    }

    /// The keys to write, as newcomers wait whom members do not know of yet.
    pub(super) fn knocks(&mut self) -> Vec<String> {
        let knock = |(name, series): (&String, &mut Series)| {
            let room = series.present.len() < series.limits.most as usize;
            let waits = series.entrants.keys().any(|slot| !series.present.contains_key(slot));
            let knock = room && waits && !series.present.is_empty() && !series.knocked;
            series.knocked |= knock;
            knock.then(|| knock_key(name, series.generation()))
        };
        self.series.iter_mut().filter_map(knock).collect()
    }

    /// A task is lost, or has left in order. Returns the keys that nobody needs any more.
    pub(super) fn lose(
        &mut self,
        slot: Slot,
        in_order: bool,
        error: &Refusal,
        out: &mut Vec<Effect>,
    ) -> Vec<String> {
        let mut over = Vec::new();
        for (name, series) in &mut self.series {
            let callers = series.entrants.remove(&slot).map_or_else(Vec::new, |entrant| entrant.callers);
            out.extend(callers.into_iter().map(|to| Effect::Reply { to, result: Err(error.clone()) }));
            if series.present.remove(&slot).is_some() {
                self.changed.insert(name.clone());
                if series.present.is_empty() && in_order {
                    over.push(name.clone());
                }
            }
        }
        let mut keys = Vec::new();
        for name in over {
            let Some(mut series) = self.series.remove(&name) else { continue };
            let message = format!(
                "group {name:?} is over: the members of its generation {} have left in order; start a new job",
                series.generation()
            );
            let error = Refusal::new(Code::FailedPrecondition, message);
            series.dismiss(&error, out);
            keys.extend(series.knocked.then(|| knock_key(&name, series.generation())));
        }
        self.tidy();
        keys
    }

    /// A caller has gone. If nobody waits for its task any more, the task does not ask any more.
    pub(super) fn forget(&mut self, name: &str, to: ReplyTo) {
        if let Some(series) = self.series.get_mut(name) {
            series.entrants.retain(|_, entrant| {
                entrant.callers.retain(|&caller| caller != to);
                !entrant.callers.is_empty()
            });
        }
        self.tidy();
    }

    /// Answers those whose time is over, naming who is missing.
    pub(super) fn expire(&mut self, now: Time, members: &Membership, out: &mut Vec<Effect>) {
        for (name, series) in &mut self.series {
            let due = series.entrants.iter().filter(|(_, entrant)| entrant.deadline <= now);
            let due: Vec<(Slot, Refusal)> =
                due.map(|(&slot, _)| (slot, series.overdue(name, slot, now, members))).collect();
            for (slot, error) in due {
                let callers = series.entrants.remove(&slot).map_or_else(Vec::new, |entrant| entrant.callers);
                out.extend(callers.into_iter().map(|to| Effect::Reply { to, result: Err(error.clone()) }));
            }
        }
        self.tidy();
    }

    /// When the next round closes, or the next caller's time is over.
    pub(super) fn deadline(&self) -> Option<Time> {
        let of = |series: &Series| {
            let callers = series.entrants.values().map(|entrant| entrant.deadline).min();
            let ready = series.ready.map(|ready| ready + series.last_call());
            callers.into_iter().chain(ready).min()
        };
        self.series.values().filter_map(of).min()
    }

    /// Sends everybody away, since the service ends.
    pub(super) fn stop(&mut self, error: &Refusal, out: &mut Vec<Effect>) {
        for series in self.series.values_mut() {
            series.dismiss(error, out);
        }
    }

    /// Drops series that never came to a generation and that nobody waits in.
    fn tidy(&mut self) {
        self.series.retain(|_, series| series.latest.is_some() || !series.entrants.is_empty());
    }
}

impl Series {
    fn new(limits: RoundLimits) -> Self {
        let (present, entrants) = (BTreeMap::new(), BTreeMap::new());
        Series { limits, latest: None, present, entrants, ready: None, knocked: false }
    }

    fn generation(&self) -> u64 {
        self.latest.as_ref().map_or(0, |latest| latest.generation)
    }

    /// The latest generation, for a member that asks again, as its answer was lost.
    fn again(&self, slot: Slot, process: &Process) -> Option<Arc<RoundTable>> {
        let latest = self.latest.as_ref()?;
        let member = &latest.group.members[*self.present.get(&slot)? as usize];
        (member.process.incarnation == process.incarnation).then(|| latest.clone())
    }

    fn add(
        &mut self,
        now: Time,
        slot: Slot,
        wish: Regroup,
        timeout: Duration,
        to: ReplyTo,
        out: &mut Vec<Effect>,
    ) {
        let deadline = now + timeout;
        let before = self.entrants.remove(&slot);
        let (mut callers, mut since) = (Vec::new(), now);
        if let Some(before) = before {
            if before.wish.process.incarnation == wish.process.incarnation {
                (callers, since) = (before.callers, before.since);
            } else {
                let message =
                    format!("a newer process of {} wants to enter: this one must end", wish.process.task);
                let error = Refusal::new(Code::Aborted, message);
                out.extend(
                    before.callers.into_iter().map(|to| Effect::Reply { to, result: Err(error.clone()) }),
                );
            }
        }
        callers.push(to);
        self.entrants.insert(slot, Entrant { wish, callers, since, deadline });
    }

    /// Members of the last generation that have not asked for the next.
    fn late(&self) -> impl Iterator<Item = Slot> + '_ {
        self.present.keys().copied().filter(|slot| !self.entrants.contains_key(slot))
    }

    /// Those whose wishes count: members of the last generation; without any, all.
    fn deciding(&self) -> impl Iterator<Item = &Regroup> {
        let all = self.present.is_empty();
        let decides = move |slot: &Slot| all || self.present.contains_key(slot);
        self.entrants.iter().filter(move |(slot, _)| decides(slot)).map(|(_, entrant)| &entrant.wish)
    }

    fn last_call(&self) -> Duration {
        self.deciding().map(|wish| wish.last_call).max().unwrap_or_default()
    }

    /// Those who would be in the next generation if the round closed now, by rank, and how many of them are carried over.
    fn next(&self) -> (Vec<Slot>, usize) {
        let mut carried: Vec<(u32, Slot)> = self.present.iter().map(|(&slot, &rank)| (rank, slot)).collect();
        carried.sort_unstable();
        let carried: Vec<Slot> = carried.into_iter().map(|(_, slot)| slot).collect();
        let count = carried.len();
        let open = self.deciding().all(|wish| wish.newcomers);
        let newcomers = self.entrants.keys().copied().filter(|slot| open && !self.present.contains_key(slot));
        let room = (self.limits.most as usize).saturating_sub(count);
        (carried.into_iter().chain(newcomers.take(room)).collect(), count)
    }

    /// When the round closes, if nothing else happens; `None` while it cannot. Notes since when it can.
    fn due(&mut self, now: Time) -> Option<Time> {
        let members = self.next().0.len();
        // R3 and R4
        let ready = self.late().next().is_none() && members >= self.limits.least as usize;
        if !ready || self.entrants.is_empty() {
            self.ready = None;
            return None;
        }
        let since = *self.ready.get_or_insert(now);
        let enough = self.deciding().map(|wish| wish.enough).max().unwrap_or_default();
        let full = members >= enough.min(self.limits.most) as usize;
        Some(if full { since } else { since + self.last_call() })
    }

    /// Closes the round.
    fn make(&mut self, name: &str, epoch: u64, out: &mut Vec<Effect>) -> Closed {
        let (next, carried) = self.next();
        let answered = std::mem::take(&mut self.knocked).then(|| knock_key(name, self.generation()));
        let mut secret = None;
        let (mut members, mut waiting) = (Vec::new(), Vec::new());
        let ranks: Vec<(Slot, u32)> = next.into_iter().zip(0..).collect();
        for &(slot, rank) in &ranks {
            let Some(Entrant { wish, callers, .. }) = self.entrants.remove(&slot) else {
                unreachable!("R4: who is in the next generation has asked for it")
            };
            secret.get_or_insert(wish.fresh_secret);
            waiting.extend(callers);
            members.push(GroupMember {
                rank,
                process: wish.process,
                addresses: wish.addresses,
                hosts_coordinator: wish.hosts_coordinator,
            });
        }
        let group = GroupTable { members, epoch, secret: secret.unwrap_or_default() };
        let table =
            Arc::new(RoundTable { generation: self.generation() + 1, carried: carried as u32, group });
        for to in waiting {
            out.push(Effect::Reply { to, result: Ok(Reply::Round(table.clone())) });
        }
        (self.latest, self.ready) = (Some(table), None);
        self.present = ranks.iter().copied().collect();
        Closed { ranks, answered }
    }

    /// Why the round has not closed in the time of this entrant.
    fn overdue(&self, name: &str, slot: Slot, now: Time, members: &Membership) -> Refusal {
        let next = self.generation() + 1;
        let waited = self.entrants.get(&slot).map_or(Duration::ZERO, |entrant| now.since(entrant.since));
        let late: Vec<String> = self
            .present
            .iter()
            .filter(|(slot, _)| !self.entrants.contains_key(slot))
            .map(|(&slot, rank)| match &members.get(slot).process {
                Some(process) => format!("rank {rank} ({})", who(process)),
                None => format!("rank {rank} ({})", members.name(slot)),
            })
            .collect();
        let (ready, _) = self.next();
        let newcomer = !self.present.contains_key(&slot);
        let why = if !late.is_empty() && newcomer {
            format!("its members have not let newcomers in, as they do by growing. Not there: {}", list(late))
        } else if !late.is_empty() {
            format!("not there: {}; look at what they do", list(late))
        } else {
            format!(
                "{} of at least {} members are there; start others, or allow fewer",
                ready.len().min(self.entrants.len()),
                self.limits.least
            )
        };
        let message = format!("generation {next} of group {name:?} was not made within {waited:.1?}: {why}");
        Refusal::new(Code::DeadlineExceeded, message)
    }

    /// Sends everybody away.
    fn dismiss(&mut self, error: &Refusal, out: &mut Vec<Effect>) {
        for to in std::mem::take(&mut self.entrants).into_values().flat_map(|entrant| entrant.callers) {
            out.push(Effect::Reply { to, result: Err(error.clone()) });
        }
    }
}

fn who(process: &Process) -> String {
    format!("{} (pid {} on host {})", process.task, process.pid, process.host)
}
