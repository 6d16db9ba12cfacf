//! Barriers: points that each of a set of tasks reaches before any of them goes on.
//!
//! - B1. A barrier passes only when each of its tasks has called it.
//! - B2. Its result never changes: once it has passed or failed, every later call gets that answer at once.
//! - B3. It ends at its deadline, which the first call sets, at the latest.
//! - B4. All callers name the same tasks; otherwise it fails.
//! - B5. Where callers count the uses of an id, one use is under way at a time, and the next follows the last. A call for
//!   another use shows that tasks are out of step: it is refused, and what is under way fails. A life that began after
//!   the last use has not counted yet, and takes part in the one that comes.
//!
//! Ended barriers are remembered up to a limit, the oldest forgotten first; a call to a forgotten one begins it anew
//! and fails at its deadline.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::Answer;
use super::Held;
use super::errors::{Code, Origin, Refusal, list};
use super::membership::{Membership, Slot};
use super::request::{Effect, Reply, ReplyTo};
use crate::core::time::Time;

mod stored;

/// One use of a barrier's id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) id: Arc<str>,
    pub(super) counter: i64,
}

impl Key {
    fn origin(&self) -> Origin {
        Origin::Barrier { id: self.id.to_string(), counter: self.counter }
    }
}

/// A call to a barrier whose tasks are known.
pub(super) struct Call {
    pub(super) key: Key,
    pub(super) source: Slot,
    /// In order, each once.
    pub(super) tasks: Arc<[Slot]>,
    pub(super) timeout: Duration,
    pub(super) to: ReplyTo,
}

#[derive(Debug)]
pub(super) struct Open {
    tasks: Arc<[Slot]>,
    arrived: BTreeSet<Slot>,
    waiting: Vec<ReplyTo>,
    timeout: Duration,
    pub(super) since: Time,
    pub(super) deadline: Time,
}

impl Open {
    /// The tasks that have come, and those that have not, in order.
    pub(super) fn split(&self) -> (Vec<Slot>, Vec<Slot>) {
        self.tasks.iter().partition(|slot| self.arrived.contains(slot))
    }
}

/// How a barrier ended, and when.
#[derive(Debug)]
struct Ended {
    result: Result<(), Refusal>,
    at: Time,
}

impl Ended {
    fn answer(&self, key: &Key) -> Answer {
        Answer::Now(self.result.clone().map(|()| Reply::Barrier { counter: key.counter }))
    }
}

/// All barriers of the service.
#[derive(Debug)]
pub(super) struct Barriers {
    open: BTreeMap<Key, Open>,
    deadlines: BTreeSet<(Time, Key)>,
    ended: BTreeMap<Key, Ended>,
    oldest: VecDeque<Key>,
    /// Ended or forgotten, and not remembered as such.
    changed: BTreeSet<Key>,
    /// So many have ended: they are remembered with their numbers.
    ends: u64,
    recalled: Vec<(u64, Key)>,
    open_limit: usize,
    ended_limit: usize,
    /// When the machine was last told the time.
    now: Time,
}

impl Barriers {
    /// At most `open_limit` barriers are under way and `ended_limit` remembered.
    pub(super) fn new(open_limit: usize, ended_limit: usize) -> Self {
        Barriers {
            open: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            ended: BTreeMap::new(),
            oldest: VecDeque::new(),
            changed: BTreeSet::new(),
            ends: 0,
            recalled: Vec::new(),
            open_limit,
            ended_limit,
            now: Time::ZERO,
        }
    }

    /// The barriers under way.
    pub(super) fn open(&self) -> impl Iterator<Item = (&Key, &Open)> {
        self.open.iter()
    }

    /// What time it is: ends are dated by it.
    pub(super) fn tick(&mut self, now: Time) {
        self.now = now;
    }

    /// Which use of an id a caller that counts them means; its life began at `began` (B5).
    pub(super) fn instance(&mut self, key: Key, began: Time, out: &mut Vec<Effect>) -> Result<Key, Refusal> {
        let uses = |counter| Key { id: key.id.clone(), counter };
        let all = || (uses(i64::MIN), uses(i64::MAX));
        let last =
            self.ended.range(all().0..=all().1).next_back().map(|(last, ended)| (last.counter, ended.at));
        let open = self.open.range(all().0..=all().1).next().map(|(open, _)| open.counter);
        let fresh = last.is_some_and(|(_, at)| at < began) && key.counter == 0;
        let expected = match (open, last) {
            (Some(open), _) => open,
            (None, Some((last, _))) => last.saturating_add(1),
            (None, None) => return Ok(key),
        };
        if key.counter == expected || (!fresh && self.ended.contains_key(&key)) {
            return Ok(key);
        }
        if fresh {
            return Ok(uses(expected));
        }
        let message = format!(
            "barrier {:?} is at its use {expected} and was called for use {}: the caller was restarted, or tasks call it \
             different numbers of times",
            key.id, key.counter
        );
        let error = Refusal::new(Code::Internal, message).from(uses(expected).origin());
        if open.is_some() {
            self.end(&uses(expected), Err(error.clone()), out);
        }
        Err(error)
    }

    /// A task is at a barrier.
    pub(super) fn enter(
        &mut self,
        now: Time,
        call: Call,
        members: &Membership,
        out: &mut Vec<Effect>,
    ) -> Answer {
        let Call { key, source, tasks, timeout, to } = call;
        if let Some(ended) = self.ended.get(&key) {
            return ended.answer(&key);
        }
        if !self.open.contains_key(&key) {
            if self.open.len() >= self.open_limit {
                let message =
                    format!("{} barriers are under way, the limit: end some first", self.open_limit);
                return Answer::Now(Err(Refusal::new(Code::ResourceExhausted, message)));
            }
            let deadline = now + timeout;
            self.deadlines.insert((deadline, key.clone()));
            let open = Open {
                tasks: tasks.clone(),
                arrived: BTreeSet::new(),
                waiting: Vec::new(),
                timeout,
                since: now,
                deadline,
            };
            self.open.insert(key.clone(), open);
        }
        let open = self.open.get_mut(&key).expect("the barrier was opened above");
        open.waiting.push(to);
        if let Some(error) = misuse(&key, open, &tasks, source, members) {
            self.end(&key, Err(error), out);
        } else {
            open.arrived.insert(source);
            if open.arrived.len() == open.tasks.len() {
                self.end(&key, Ok(()), out);
            }
        }
        Answer::Held(Held::Barrier(key))
    }

    /// A barrier that cannot be: it fails, for those who wait and for all who come.
    pub(super) fn refuse(&mut self, key: Key, error: Refusal, out: &mut Vec<Effect>) -> Answer {
        if let Some(ended) = self.ended.get(&key) {
            return ended.answer(&key);
        }
        let error = error.from(key.origin());
        self.end(&key, Err(error.clone()), out);
        Answer::Now(Err(error))
    }

    /// Ends a barrier on a task's wish.
    pub(super) fn cancel(
        &mut self,
        key: Key,
        source: &impl std::fmt::Display,
        out: &mut Vec<Effect>,
    ) -> Result<Reply, Refusal> {
        match self.ended.get(&key).map(|ended| &ended.result) {
            Some(Ok(())) => {
                let message = format!("barrier {:?} has passed and cannot be cancelled", key.id);
                Err(Refusal::new(Code::FailedPrecondition, message).from(key.origin()))
            }
            Some(Err(error)) if error.code == Code::Cancelled => Ok(Reply::Done),
            Some(Err(error)) => {
                let message = format!("barrier {:?} has failed already: {error}", key.id);
                Err(Refusal::new(Code::FailedPrecondition, message).from(key.origin()))
            }
            None => {
                let message = format!("barrier {:?} was cancelled by {source}", key.id);
                let error = Refusal::new(Code::Cancelled, message).from(key.origin());
                self.end(&key, Err(error), out);
                Ok(Reply::Done)
            }
        }
    }

    /// A task failed or left: the barriers that it takes part in cannot pass.
    pub(super) fn lose(&mut self, slot: Slot, members: &Membership, why: &str, out: &mut Vec<Effect>) {
        let hit = self.open.iter().filter(|(_, open)| open.tasks.binary_search(&slot).is_ok());
        let keys: Vec<Key> = hit.map(|(key, _)| key.clone()).collect();
        for key in keys {
            let message = format!("barrier {:?} cannot pass: {} {why}", key.id, members.name(slot));
            let error = Refusal::new(Code::Internal, message).from(key.origin());
            self.end(&key, Err(error), out);
        }
    }

    /// Ends the barriers whose time is over, naming who did not come.
    pub(super) fn expire(&mut self, now: Time, members: &Membership, out: &mut Vec<Effect>) {
        while let Some((deadline, key)) = self.deadlines.first() {
            if *deadline > now {
                break;
            }
            let key = key.clone();
            let open = &self.open[&key];
            let late = open.tasks.iter().filter(|slot| !open.arrived.contains(slot));
            let message = format!(
                "barrier {:?} did not pass within {:?}: {} of {} tasks came; late: {}",
                key.id,
                open.timeout,
                open.arrived.len(),
                open.tasks.len(),
                list(late.map(|&slot| members.name(slot)))
            );
            let error = Refusal::new(Code::DeadlineExceeded, message).from(key.origin());
            self.end(&key, Err(error), out);
        }
    }

    /// Ends all barriers, since the service ends.
    pub(super) fn stop(&mut self, error: &Refusal, out: &mut Vec<Effect>) {
        let keys: Vec<Key> = self.open.keys().cloned().collect();
        for key in keys {
            self.end(&key, Err(error.clone()), out);
        }
    }

    /// Forgets how barriers have ended, so that their ids are new.
    pub(super) fn clear(&mut self) {
        self.oldest.clear();
        self.changed.extend(std::mem::take(&mut self.ended).into_keys());
    }

    /// When the next barrier ends by itself.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// A caller has gone. Its task stays at the barrier.
    pub(super) fn forget(&mut self, key: &Key, to: ReplyTo) {
        if let Some(open) = self.open.get_mut(key) {
            open.waiting.retain(|&waiting| waiting != to);
        }
    }

    fn end(&mut self, key: &Key, result: Result<(), Refusal>, out: &mut Vec<Effect>) {
        if let Some(open) = self.open.remove(key) {
            self.deadlines.remove(&(open.deadline, key.clone()));
            for to in open.waiting {
                let result = result.clone().map(|()| Reply::Barrier { counter: key.counter });
                out.push(Effect::Reply { to, result });
            }
        }
        self.ended.insert(key.clone(), Ended { result, at: self.now });
        self.changed.insert(key.clone());
        self.oldest.push_back(key.clone());
        while self.oldest.len() > self.ended_limit {
            if let Some(oldest) = self.oldest.pop_front() {
                self.ended.remove(&oldest);
                self.changed.insert(oldest);
            }
        }
    }
}

/// Why this call shows that the barrier cannot pass.
fn misuse(
    key: &Key,
    open: &Open,
    tasks: &Arc<[Slot]>,
    source: Slot,
    members: &Membership,
) -> Option<Refusal> {
    let names = |slots: &[Slot]| list(slots.iter().map(|&slot| members.name(slot).clone()));
    let (code, message) = if !Arc::ptr_eq(&open.tasks, tasks) && open.tasks != *tasks {
        let message = format!(
            "barrier {:?} was called with different tasks: {} named {}, others {}; name the same tasks everywhere",
            key.id,
            members.name(source),
            names(tasks),
            names(&open.tasks)
        );
        (Code::InvalidArgument, message)
    } else if tasks.binary_search(&source).is_err() {
        let message = format!(
            "barrier {:?} was called by {}, which is not among its tasks {}",
            key.id,
            members.name(source),
            names(tasks)
        );
        (Code::InvalidArgument, message)
    } else if let Some((slot, error)) = members.first_error(tasks) {
        (Code::Internal, format!("barrier {:?} cannot pass: {} failed: {error}", key.id, members.name(slot)))
    } else {
        return None;
    };
    Some(Refusal::new(code, message).from(key.origin()))
}
