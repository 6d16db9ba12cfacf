//! The lives of tasks: how one begins, is kept up, and ends, in order or not.

use std::time::Duration;

use ringway_topology::{Incarnation, TaskId};

use super::errors::{Code, Origin, Refusal, TaskError, clip};
use super::gathering::Entrant;
use super::losses::{Evidence, Loss};
use super::membership::Slot;
use super::request::{Effect, Reply, ReplyTo, State};
use super::{Answer, Coordinator, Held};
use crate::core::time::Time;

impl Coordinator {
    pub(super) fn connected(&self, task: &TaskId) -> Result<Slot, Refusal> {
        let slot = self.members.slot(task)?;
        self.members.connected_as(slot, self.members.get(slot).incarnation)?;
        Ok(slot)
    }

    pub(super) fn register(
        &mut self,
        now: Time,
        task: &TaskId,
        incarnation: Incarnation,
        silence: Option<Duration>,
        out: &mut Vec<Effect>,
    ) -> Result<Reply, Refusal> {
        let slot = self.members.slot(task)?;
        let member = self.members.get(slot);
        let same = member.incarnation == incarnation;
        if member.past.contains(&incarnation) {
            let message = format!(
                "incarnation {incarnation} of {task} was replaced by {}: this process must end",
                member.incarnation
            );
            return Err(Refusal::new(Code::FailedPrecondition, message));
        }
        match member.state {
            State::Connected if same => {}
            State::Error if same => {
                let why = member.error.as_ref().map_or("", |error| &error.message);
                let message = format!("{task} is in error ({why}): reset it, or start it as a new process");
                return Err(Refusal::new(Code::FailedPrecondition, message));
            }
            State::Connected => {
                let message = format!(
                    "{task} is connected as incarnation {} and now registers as {incarnation}: it was restarted, \
                     or two processes were given the same task",
                    member.incarnation
                );
                self.lose(slot, Evidence::Restart, Code::Aborted, message.clone(), out);
                return Err(Refusal::new(
                    Code::Aborted,
                    format!("{message}; the old one is dropped, register again"),
                ));
            }
            State::Disconnected | State::Error => self.members.connect(now, slot, incarnation, out),
        }
        self.members.bears(slot, silence);
        self.heartbeats.begin(slot, silence, now);
        self.gather(now, out);
        Ok(Reply::Done)
    }

    /// A task registers, to be connected when all are there.
    pub(super) fn register_together(
        &mut self,
        now: Time,
        task: &TaskId,
        (incarnation, silence): (Incarnation, Option<Duration>),
        to: ReplyTo,
        out: &mut Vec<Effect>,
    ) -> Result<Answer, Refusal> {
        let slot = self.members.slot(task)?;
        let member = self.members.get(slot);
        let is_there = match member.state {
            State::Disconnected => false,
            State::Connected => true,
            // A life that failed does not come again; another one comes with the next job.
            State::Error => member.incarnation == incarnation,
        };
        if self.gathering.is_complete() || is_there {
            let reply = self.register(now, task, incarnation, silence, out)?;
            self.members.devices(slot, Vec::new(), out);
            return Ok(Answer::Now(Ok(reply)));
        }
        self.members.not_replaced(slot, incarnation)?;
        let entrant = Entrant { incarnation, silence, callers: vec![to] };
        self.gathering.enter(now, slot, entrant, &self.members, out);
        self.gather(now, out);
        Ok(Answer::Held(Held::Gathering(slot)))
    }

    /// Connects those who registered together, if all are there.
    fn gather(&mut self, now: Time, out: &mut Vec<Effect>) {
        let Some(entrants) = self.gathering.take(&self.members) else { return };
        let before = |slot: &Slot| self.members.get(*slot).incarnation != Incarnation::default();
        if entrants.len() == self.members.everyone().len() && entrants.keys().any(before) {
            // A3
            self.store.clear();
            self.barriers.clear();
        }
        for (slot, Entrant { incarnation, silence, callers }) in entrants {
            self.members.connect(now, slot, incarnation, out);
            self.members.devices(slot, Vec::new(), out);
            self.members.bears(slot, silence);
            self.heartbeats.begin(slot, silence, now);
            out.extend(callers.into_iter().map(|to| Effect::Reply { to, result: Ok(Reply::Done) }));
        }
    }

    pub(super) fn heartbeat(
        &mut self,
        now: Time,
        task: &TaskId,
        incarnation: Incarnation,
    ) -> Result<Reply, Refusal> {
        let slot = self.members.slot(task)?;
        let member = self.members.get(slot);
        if member.state == State::Disconnected && member.incarnation == incarnation && incarnation.0 != 0 {
            // It was on the way when the task left.
            return Ok(Reply::Done);
        }
        self.members.connected_as(slot, incarnation)?;
        self.heartbeats.beat(slot, now);
        Ok(Reply::Done)
    }

    pub(super) fn shutdown(
        &mut self,
        now: Time,
        task: &TaskId,
        to: ReplyTo,
        out: &mut Vec<Effect>,
    ) -> Result<Answer, Refusal> {
        let slot = self.members.slot(task)?;
        let member = self.members.get(slot);
        match (member.state, self.departure.timeout()) {
            (State::Disconnected, _) => Ok(Answer::Now(Ok(Reply::Done))),
            (State::Error, _) => {
                let why = member.error.as_ref().map_or("", |error| &error.message).to_owned();
                self.members.set_state(slot, State::Disconnected, None, out);
                let message = format!("{task} leaves while in error: {why}");
                Ok(Answer::Now(Err(Refusal::new(Code::FailedPrecondition, message))))
            }
            (State::Connected, None) => {
                self.leave(slot, out);
                Ok(Answer::Now(Ok(Reply::Done)))
            }
            (State::Connected, Some(_)) => {
                self.departure.wait(slot, to, now);
                self.depart(now, out);
                Ok(Answer::Held(Held::Departure(slot)))
            }
        }
    }

    /// Lets those leave who wait for it, if it is time.
    pub(super) fn depart(&mut self, now: Time, out: &mut Vec<Effect>) {
        let Some(leave) = self.departure.due(now, &self.members) else { return };
        for (slot, callers) in leave.leaving {
            self.leave(slot, out);
            out.extend(callers.into_iter().map(|to| Effect::Reply { to, result: Ok(Reply::Done) }));
        }
        for slot in leave.late {
            let message = format!(
                "{} did not leave within {:?} of the others",
                self.members.name(slot),
                self.departure.timeout().unwrap_or_default()
            );
            self.lose(slot, Evidence::Own, Code::DeadlineExceeded, message, out);
        }
    }

    /// A task leaves in order.
    fn leave(&mut self, slot: Slot, out: &mut Vec<Effect>) {
        self.heartbeats.stop(slot);
        self.members.set_state(slot, State::Disconnected, None, out);
        self.losses.leave(slot, out);
        self.feed.leave(slot, out);
        self.barriers.lose(slot, &self.members, "has left", out);
        let message = format!("{} has left", self.members.name(slot));
        let error = Refusal::new(Code::FailedPrecondition, message).from(self.origin(slot, false));
        self.groups.lose(slot, &error, out);
        for key in self.rounds.lose(slot, true, &error, out) {
            // Nobody is left who would wait for it.
            let _ = self.store.delete(&key);
        }
        self.alive.settle(&self.members, out);
        self.emptied();
    }

    /// Those who come when nobody is left come together again (A2).
    fn emptied(&mut self) {
        if self.members.connected_count() == 0 {
            self.gathering.reopen();
        }
    }

    /// A task is lost: everybody who has to do with it is told.
    pub(super) fn lose(
        &mut self,
        slot: Slot,
        evidence: Evidence,
        code: Code,
        detail: String,
        out: &mut Vec<Effect>,
    ) {
        if self.members.get(slot).state != State::Connected {
            return;
        }
        let reported = evidence == Evidence::Own;
        let error = Refusal::new(code, &detail).from(self.origin(slot, reported));
        self.heartbeats.stop(slot);
        self.members.set_state(slot, State::Error, Some(error.clone()), out);
        self.epoch += 1;
        let member = self.members.get(slot);
        let loss = Loss {
            task: member.task.clone(),
            incarnation: member.incarnation,
            host: member.process.as_ref().map(|process| process.host.clone()),
            pid: member.process.as_ref().map(|process| process.pid),
            rank: member.rank,
            evidence,
            detail,
            epoch: self.epoch,
        };
        self.losses.announce(slot, loss, out);
        for to in self.members.connected() {
            out.push(Effect::PushError {
                to: self.members.name(to).clone(),
                error: self.named(slot, &error),
            });
        }
        self.feed.tell_all(&self.named(slot, &error), out);
        self.members.fail_wait(&error, out);
        self.barriers.lose(slot, &self.members, &format!("failed: {error}"), out);
        self.groups.lose(slot, &error, out);
        self.rounds.lose(slot, false, &error, out);
        // A task that was restarted comes again at once.
        if evidence != Evidence::Restart {
            self.members.give_up(slot, &*error.message);
            self.groups.abandon(&self.members, out);
        }
        self.alive.settle(&self.members, out);
        for to in self.departure.lose(slot) {
            out.push(Effect::Reply { to, result: Err(error.clone()) });
        }
        self.emptied();
    }

    /// The process of a task has ended: whatever the task was doing, it will not go on, nor come later.
    pub(super) fn process_ended(&mut self, task: &TaskId, how: String, out: &mut Vec<Effect>) {
        // A launcher names its own ranks; one that is not of the cluster has nobody who waits for it.
        let Ok(slot) = self.members.slot(task) else { return };
        self.members.give_up(slot, &how);
        self.lose(slot, Evidence::Launcher, Code::Unavailable, how, out);
        self.groups.abandon(&self.members, out);
    }

    /// The error of a task as others hear of it: its own words, or what was found of it, with its name, which clients do
    /// not take from the details.
    pub(super) fn named(&self, slot: Slot, error: &Refusal) -> Refusal {
        if matches!(error.origin, Origin::Task { reported: true, .. }) {
            return error.clone();
        }
        let message = format!("{} is lost: {error}", self.members.name(slot));
        Refusal::new(error.code, message).from(error.origin.clone())
    }

    fn origin(&self, slot: Slot, reported: bool) -> Origin {
        Origin::Task { task: self.members.name(slot).clone(), reported }
    }

    pub(super) fn reset(&mut self, task: &TaskId, out: &mut Vec<Effect>) -> Result<Reply, Refusal> {
        let slot = self.members.slot(task)?;
        match self.members.get(slot).state {
            State::Error => {
                self.members.set_state(slot, State::Disconnected, None, out);
                Ok(Reply::Done)
            }
            state => {
                let message = format!("{task} is not in error but {state:?}: there is nothing to reset");
                Err(Refusal::new(Code::FailedPrecondition, message))
            }
        }
    }

    pub(super) fn report_error(
        &mut self,
        task: &TaskId,
        error: TaskError,
        out: &mut Vec<Effect>,
    ) -> Result<Reply, Refusal> {
        let slot = self.members.slot(task)?;
        if self.members.get(slot).state != State::Connected {
            let message =
                format!("{task} is not connected, or is in error already: its error is not passed on");
            return Err(Refusal::new(Code::FailedPrecondition, message));
        }
        self.lose(slot, Evidence::Own, error.code, clip(error.message), out);
        Ok(Reply::Done)
    }

    pub(super) fn report_loss(
        &mut self,
        reporter: Slot,
        lost: &TaskId,
        seen: Incarnation,
        detail: String,
        out: &mut Vec<Effect>,
    ) -> Result<Reply, Refusal> {
        let slot = self.members.slot(lost)?;
        if self.members.get(slot).incarnation == seen {
            let detail = clip(detail);
            let (evidence, code, detail) = if slot == reporter {
                (Evidence::Own, Code::Aborted, detail)
            } else {
                (
                    Evidence::Peer,
                    Code::Unavailable,
                    format!("{detail} (seen by {})", self.members.name(reporter)),
                )
            };
            self.lose(slot, evidence, code, detail, out);
        }
        Ok(Reply::Done)
    }
}
