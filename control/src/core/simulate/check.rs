//! What must hold, checked against what goes into the coordinator and what comes out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ringway_topology::{Incarnation, TaskId};

use super::Report;
use super::model::{Expected, Model};
use super::script::{BARRIER_TIMEOUT, JOIN_TIMEOUT, REGISTER_TIMEOUT, takes_part, task};
use crate::core::coordination::errors::{Code, Refusal};
use crate::core::coordination::groups::GroupTable;
use crate::core::coordination::losses::Loss;
use crate::core::coordination::request::{Effect, Event, Notice, Reply, ReplyTo, Request};
use crate::core::time::Time;

/// What a request that is not answered yet is about.
#[derive(Debug)]
enum Asked {
    /// Which, and when.
    Barrier(String, Time),
    Join,
    Store,
    All(Time),
    Other,
}

#[derive(Debug, Default)]
struct BarrierSeen {
    first: Option<Time>,
    callers: BTreeSet<u32>,
    everyone: bool,
    answer: Option<Result<(), Code>>,
}

/// Everything that is remembered for the checks.
#[derive(Debug)]
pub(super) struct Checks {
    tasks: u32,
    /// Time for which the coordinator was stopped: deadlines are late by that at most.
    pub(super) stalled: Duration,
    asked: BTreeMap<ReplyTo, Asked>,
    barriers: BTreeMap<String, BarrierSeen>,
    model: Model,
    joined: BTreeSet<(TaskId, Incarnation)>,
    join_first: Option<Time>,
    /// Callers that wait for the group.
    pub(super) joins: u32,
    table: Option<Arc<GroupTable>>,
    /// Losses that stand, by task: the latest of each.
    pub(super) losses: BTreeMap<TaskId, Arc<Loss>>,
    pub(super) report: Report,
}

impl Checks {
    pub(super) fn new(tasks: u32) -> Self {
        Checks {
            tasks,
            stalled: Duration::ZERO,
            asked: BTreeMap::new(),
            barriers: BTreeMap::new(),
            model: Model::default(),
            joined: BTreeSet::new(),
            join_first: None,
            joins: 0,
            table: None,
            losses: BTreeMap::new(),
            report: Report::default(),
        }
    }

    /// One event went into the coordinator, or time did, and these effects came out. The losses that are new.
    pub(super) fn step(
        &mut self,
        now: Time,
        event: Option<&Event>,
        effects: &[Effect],
    ) -> Result<Vec<Arc<Loss>>, String> {
        let mut new = Vec::new();
        let expected = match event {
            Some(Event::Ask { reply, request, .. }) => {
                self.ask(now, *reply, request, refused(*reply, effects))?
            }
            Some(Event::Gone { reply }) => {
                self.model.gone(*reply);
                if matches!(self.asked.remove(reply), Some(Asked::Join)) {
                    self.join_ended();
                }
                Vec::new()
            }
            Some(
                Event::WatchBroken { .. }
                | Event::ProcessEnded { .. }
                | Event::Preempted { .. }
                | Event::Stop,
            )
            | None => Vec::new(),
        };
        let mut expected: BTreeMap<ReplyTo, Expected> = expected.into_iter().collect();
        for effect in effects {
            match effect {
                Effect::Reply { to, result } => self.reply(now, *to, result, &mut expected)?,
                Effect::Notify { notice: Notice::Loss(loss), .. } => {
                    let known = self.losses.insert(loss.task.clone(), loss.clone());
                    if known.as_ref() != Some(loss) {
                        self.report.losses += 1;
                        new.push(loss.clone());
                    }
                }
                _ => {}
            }
        }
        match expected.into_iter().next() {
            Some((to, answer)) => {
                Err(format!("S3: request {} has no answer, but should have {answer:?}", to.0))
            }
            None => Ok(new),
        }
    }

    /// The coordinator was killed: whoever waited asks again, and barriers that were under way begin anew.
    pub(super) fn forget_callers(&mut self) {
        self.asked.clear();
        self.model.forget_callers();
        (self.joins, self.join_first) = (0, None);
        for barrier in self.barriers.values_mut().filter(|barrier| barrier.answer.is_none()) {
            barrier.callers.clear();
            barrier.first = None;
        }
    }

    /// A request came; `refused` says that its caller was turned away, so that it counts for nobody else.
    fn ask(
        &mut self,
        now: Time,
        to: ReplyTo,
        request: &Request,
        refused: bool,
    ) -> Result<Vec<(ReplyTo, Expected)>, String> {
        // A life that was replaced changes nothing.
        let store = if refused { None } else { self.model.ask(to, request) };
        let asked = match request {
            Request::Barrier(call) if !refused => {
                let barrier = self.barriers.entry(call.id.clone()).or_default();
                barrier.first.get_or_insert(now);
                barrier.everyone = call.tasks.is_empty();
                barrier.callers.insert(call.source.index());
                Asked::Barrier(call.id.clone(), now)
            }
            Request::Join(join) if !refused => {
                self.join_first.get_or_insert(now);
                self.joins += 1;
                self.joined.insert((join.process.task.clone(), join.process.incarnation));
                Asked::Join
            }
            Request::WaitForAll { .. } => Asked::All(now),
            _ if store.is_some() => Asked::Store,
            _ => Asked::Other,
        };
        match self.asked.insert(to, asked) {
            Some(_) => Err(format!("the simulation used the token {} twice", to.0)),
            None => Ok(store.unwrap_or_default()),
        }
    }

    fn reply(
        &mut self,
        now: Time,
        to: ReplyTo,
        result: &Result<Reply, Refusal>,
        expected: &mut BTreeMap<ReplyTo, Expected>,
    ) -> Result<(), String> {
        let asked = self.asked.remove(&to);
        let asked =
            asked.ok_or_else(|| format!("S6: an answer to {}, which was not asked or has one", to.0))?;
        match asked {
            Asked::Barrier(id, since) => self.barrier_reply(now, &id, since, result),
            Asked::Join => {
                let outcome = self.join_reply(now, result);
                self.join_ended();
                outcome
            }
            Asked::Store => {
                self.report.store_answers += 1;
                let should = expected.remove(&to);
                if should.is_none() || should != Expected::of(result) {
                    return Err(format!(
                        "S3: request {} got {result:?} and should have got {should:?}",
                        to.0
                    ));
                }
                Ok(())
            }
            Asked::All(since) if now > since + REGISTER_TIMEOUT + self.stalled => {
                Err(format!("S2: a wait for all tasks went on for {:?}", now.since(since)))
            }
            Asked::All(_) | Asked::Other => Ok(()),
        }
    }

    fn barrier_reply(
        &mut self,
        now: Time,
        id: &str,
        since: Time,
        result: &Result<Reply, Refusal>,
    ) -> Result<(), String> {
        let tasks = self.tasks;
        let late = self.stalled;
        let barrier = self.barriers.get_mut(id).ok_or("S1: an answer to a barrier that nobody called")?;
        let answer = match result {
            Ok(_) => Ok(()),
            Err(refusal) => Err(refusal.code),
        };
        match barrier.answer {
            Some(before) if before != answer => {
                return Err(format!("S1: barrier {id:?} was answered {before:?} and now {answer:?}"));
            }
            Some(_) => return Ok(()),
            None => barrier.answer = Some(answer),
        }
        if answer.is_ok() {
            self.report.barriers_passed += 1;
            let mut missing = (0..tasks).filter(|&i| barrier.everyone || takes_part(i));
            if let Some(missing) = missing.find(|i| !barrier.callers.contains(i)) {
                return Err(format!("S1: barrier {id:?} passed without {}", task(missing)));
            }
        } else {
            self.report.barriers_failed += 1;
        }
        let limit = barrier.first.unwrap_or(now) + BARRIER_TIMEOUT + late;
        // A caller that comes after the end is answered at once, and may be the first to hear of it.
        if now > limit && since < now {
            Err(format!("S2: barrier {id:?} was to end by {limit}"))
        } else {
            Ok(())
        }
    }

    /// An attempt to make a group ends when nobody waits for it.
    fn join_ended(&mut self) {
        self.joins -= 1;
        if self.joins == 0 {
            self.join_first = None;
        }
    }

    fn join_reply(&mut self, now: Time, result: &Result<Reply, Refusal>) -> Result<(), String> {
        let Ok(Reply::Group(table)) = result else {
            // The attempt has ended; the next call begins another.
            let limit = self.join_first.take().map(|first| first + JOIN_TIMEOUT + self.stalled);
            return match limit {
                Some(limit) if now > limit => {
                    Err(format!("S2: the group was to be made or given up by {limit}"))
                }
                _ => Ok(()),
            };
        };
        if self.table.as_ref() == Some(table) {
            return Ok(());
        }
        self.join_first = None;
        // The name is free again only after all members of the group before have gone.
        self.table = Some(table.clone());
        self.report.groups += 1;
        if table.members.len() != self.tasks as usize {
            return Err(format!("S5: a group of {} members of {}", table.members.len(), self.tasks));
        }
        for (rank, member) in table.members.iter().enumerate() {
            let life = (member.process.task.clone(), member.process.incarnation);
            let asked_for = life.0.index().is_multiple_of(3);
            if member.rank as usize != rank
                || !self.joined.contains(&life)
                || member.addresses != life.1.0.to_le_bytes()
                || (asked_for && member.rank != life.0.index())
            {
                return Err(format!("S5: a wrong member at rank {rank}: {member:?}"));
            }
        }
        Ok(())
    }

    /// At the end nothing waits.
    pub(super) fn end(&self, waiting: usize) -> Result<(), String> {
        if waiting == 0 { Ok(()) } else { Err(format!("S6: {waiting} callers wait at the end")) }
    }
}

/// Whether this caller was turned away at once: it is not connected, or is not what it says.
fn refused(caller: ReplyTo, effects: &[Effect]) -> bool {
    effects.iter().any(|effect| match effect {
        Effect::Reply { to, result: Err(refusal) } => {
            *to == caller
                && matches!(refusal.code, Code::FailedPrecondition | Code::Unavailable | Code::Aborted)
        }
        _ => false,
    })
}
