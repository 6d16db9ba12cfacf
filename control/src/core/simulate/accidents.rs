//! What befalls the tasks, their streams and the coordinator, and what must be known of it afterwards.

use std::sync::Arc;
use std::time::Duration;

use ringway_topology::Incarnation;

use super::Scenario;
use super::script::task;
use super::tasks::Life;
use super::world::{
    CallInfo, Clockwork, HEARTBEAT_LIMIT, Happening, Outcome, Purpose, RECONNECT_GRACE, World,
};
use crate::core::coordination::errors::Refusal;
use crate::core::coordination::losses::Loss;
use crate::core::coordination::request::{Event, Reply, ReplyTo, Request, State, WatchId};
use crate::core::machine::Machine;
use crate::core::time::Time;

/// Everybody hears of a loss within this time, also if a stream breaks meanwhile.
pub(super) const SPREAD: Duration = Duration::from_millis(2000);
/// All accidents happen within this time.
const ACCIDENTS: Duration = Duration::from_millis(2000);
/// Under a launcher, half of them do within this time, while tasks begin and wait for each other.
const EARLY: Duration = Duration::from_millis(60);

/// Something that goes wrong.
#[derive(Clone, Copy, Debug)]
pub(super) enum Accident {
    Kill,
    Stop,
    Break,
    StopCoordinator,
    Crash,
}

impl World {
    pub(super) fn plan_accidents(&mut self) {
        let Scenario { kills, stops, breaks, coordinator_stops, crashes, .. } = self.scenario;
        let plan = [
            (kills, Accident::Kill),
            (stops, Accident::Stop),
            (breaks, Accident::Break),
            (u32::from(coordinator_stops), Accident::StopCoordinator),
            (crashes, Accident::Crash),
        ];
        for (times, accident) in plan {
            for _ in 0..times {
                let early = self.scenario.launcher && self.random.per_mille(500);
                let at = self.random.span(Duration::ZERO, if early { EARLY } else { ACCIDENTS });
                self.later(at, Happening::Accident(accident));
            }
        }
    }

    pub(super) fn accident(&mut self, accident: Accident) -> Outcome {
        let index = self.random.below(u64::from(self.scenario.tasks)) as u32;
        let task = &self.tasks[index as usize];
        let running = task.life == Life::Running && task.stopped_until <= self.now;
        match accident {
            Accident::Kill if running => self.kill(index),
            Accident::Stop if running => {
                let span = self.random.span(Duration::ZERO, HEARTBEAT_LIMIT * 2);
                self.tasks[index as usize].stopped_until = self.now + span;
                let deadline = self.tasks[index as usize].agent.deadline();
                self.set_timer(Clockwork::Task(index), deadline);
                self.note(|| format!("{index} is stopped for {span:?}"));
            }
            Accident::Break => {
                let open: Vec<WatchId> =
                    self.streams.iter().filter(|(_, stream)| stream.open).map(|(&watch, _)| watch).collect();
                if !open.is_empty() {
                    let watch = open[self.random.below(open.len() as u64) as usize];
                    self.note(|| format!("the stream {} breaks", watch.0));
                    self.break_stream(watch);
                }
            }
            Accident::StopCoordinator => {
                let span = self.random.span(Duration::ZERO, HEARTBEAT_LIMIT * 2);
                self.coordinator_stopped_until = self.now + span;
                self.checks.stalled += span;
                let deadline = self.coordinator.deadline();
                self.set_timer(Clockwork::Coordinator, deadline);
                self.note(|| format!("the coordinator is stopped for {span:?}"));
            }
            Accident::Crash => return self.crash(),
            Accident::Kill | Accident::Stop => {}
        }
        Ok(())
    }

    pub(super) fn kill(&mut self, index: u32) {
        let task = &self.tasks[index as usize];
        let (life, ready) = (task.incarnation, task.ready.is_some());
        let vanished = self.random.per_mille(300);
        let streamed =
            self.streams.values().any(|stream| stream.index == index && stream.life == life && stream.open);
        self.note(|| format!("{index} is killed; vanished: {vanished}"));
        self.over(index, vanished);
        if !self.scenario.launcher && self.random.per_mille(700) {
            let after = self.random.span(Duration::from_millis(20), Duration::from_millis(1500));
            self.later(after, Happening::Born { index });
        }
        if self.down {
            // Whoever goes on is asked about it.
            return;
        }
        // What was sent before may arrive this much later, and be taken for a sign of life.
        let sent = Scenario::SLOW * 2 + self.coordinator.tick();
        let why = "without a heartbeat".to_owned();
        let crashes = self.crashes;
        self.later(sent + HEARTBEAT_LIMIT, Happening::Probe { index, life, why, crashes });
        // A coordinator that has just gone on may not know the stream yet.
        if ready && streamed && !vanished && self.scenario.crashes == 0 {
            let why = "with its stream broken".to_owned();
            self.later(sent + RECONNECT_GRACE, Happening::Probe { index, life, why, crashes });
        }
    }

    /// S10
    pub(super) fn process_ended(&mut self, index: u32, life: Incarnation) -> Outcome {
        if self.coordinator_stopped_until > self.now {
            self.at(self.coordinator_stopped_until, Happening::Ended { index, life });
            return Ok(());
        }
        let how = "was killed by SIGKILL".to_owned();
        self.coordinator_gets(Event::ProcessEnded { task: task(index), how })?;
        self.checks.report.ends_seen += 1;
        if self.checks.joins > 0 {
            return Err(format!("S10: {index} is over, and {} wait for its group", self.checks.joins));
        }
        self.ask_for_state(index, life, "as its launcher has seen".to_owned())
    }

    pub(super) fn break_stream(&mut self, watch: WatchId) {
        if let Some(stream) = self.streams.get_mut(&watch) {
            stream.open = false;
            let (here, there) = (self.delay(), self.delay());
            // That is later than any request on the way arrives.
            self.later(here + Scenario::SLOW, Happening::Broken { watch });
            self.later(there, Happening::WatchEnded { watch });
        }
    }

    /// Every agent that was there and ran all the time has announced a loss that still stands.
    pub(super) fn heard(&self, loss: &Arc<Loss>, since: Time) -> Outcome {
        if !self.checks.stalled.is_zero() || self.checks.losses.get(&loss.task) != Some(loss) {
            return Ok(());
        }
        let life = (loss.task.clone(), loss.incarnation);
        let there = self.tasks.iter().enumerate().filter(|(_, task)| {
            task.life == Life::Running
                && task.ready.is_some_and(|ready| ready < since)
                && task.stopped_until < since
        });
        match there.into_iter().find(|(_, task)| !task.announced.contains(&life)) {
            Some((index, _)) => {
                Err(format!("S7: the agent of {index} has not heard in {SPREAD:?} that {loss}"))
            }
            None => Ok(()),
        }
    }

    pub(super) fn probe(&mut self, index: u32, life: Incarnation, why: String) -> Outcome {
        if self.down || self.coordinator_stopped_until > self.now || !self.checks.stalled.is_zero() {
            // What a stopped coordinator owes is checked in the runs in which it is not stopped.
            return Ok(());
        }
        self.ask_for_state(index, life, why)
    }

    fn ask_for_state(&mut self, index: u32, life: Incarnation, why: String) -> Outcome {
        let to = ReplyTo(self.id());
        self.calls.insert(to, CallInfo { index, life, purpose: Purpose::Probe { index, life, why } });
        self.coordinator_gets(Event::Ask {
            reply: to,
            from: None,
            request: Request::TaskStates { tasks: vec![task(index)] },
        })
    }
}

/// A life that is over must not count as connected.
pub(super) fn judge(index: u32, life: Incarnation, why: &str, result: &Result<Reply, Refusal>) -> Outcome {
    match result {
        Ok(Reply::States(states)) => {
            let alive =
                states.iter().any(|status| status.incarnation == life && status.state == State::Connected);
            if alive {
                Err(format!("S4: {index} is over as {life}, {why}, and counts as connected"))
            } else {
                Ok(())
            }
        }
        other => Err(format!("a question for states got {other:?}")),
    }
}
