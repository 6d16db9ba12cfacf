//! The tasks of a run: their lives, their agents, and their way through their scripts.

use std::collections::BTreeSet;
use std::time::Duration;

use ringway_topology::{Incarnation, TaskId};

use super::Scenario;
use super::script::{CALL_LIMIT, Step, process, request, script};
use super::world::{
    AGENT_LIMIT, Clockwork, HEARTBEAT_EVERY, Happening, Outcome, Purpose, RECONNECT_GRACE, Stream, World,
};
use crate::core::agent::{self, Agent, AgentTimes, Failure};
use crate::core::coordination::errors::Refusal;
use crate::core::coordination::request::{CallId, Reply, ReplyTo, Request, WatchId};
use crate::core::machine::Machine;
use crate::core::time::Time;

/// The connections of a task that ended without a word are given up by the coordinator's side after this time.
const KEEPALIVE: Duration = Duration::from_millis(6000);
/// A launcher sees the end of a process within this time.
const END_SEEN: Duration = Duration::from_millis(5);
/// How long agents wait for a coordinator that was killed.
const FAILOVER: Duration = Duration::from_millis(20_000);
/// Tries of a step that did not reach the coordinator.
const TRIES: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Unborn,
    Running,
    /// Ended: by its own will, by an accident, or since its agent gave up.
    Over,
}

#[derive(Debug)]
pub(super) struct Task {
    pub(super) life: Life,
    pub(super) incarnation: Incarnation,
    pub(super) agent: Agent,
    pub(super) steps: Vec<Step>,
    pub(super) at: usize,
    pub(super) tries: u32,
    pub(super) ready: Option<Time>,
    pub(super) stopped_until: Time,
    /// Calls and streams of this life that have not ended, and some that have.
    pub(super) calls: BTreeSet<ReplyTo>,
    pub(super) streams: BTreeSet<WatchId>,
    /// Losses that its agent has announced.
    pub(super) announced: BTreeSet<(TaskId, Incarnation)>,
}

impl Task {
    pub(super) fn unborn(seed: u64, index: u32) -> Task {
        let times = AgentTimes {
            heartbeat_every: HEARTBEAT_EVERY,
            silence_limit: AGENT_LIMIT,
            reconnect_grace: RECONNECT_GRACE,
            register_timeout: Duration::from_secs(5),
        };
        Task {
            life: Life::Unborn,
            incarnation: Incarnation(0),
            agent: Agent::new(times),
            steps: script(seed, index),
            at: 0,
            tries: 0,
            ready: None,
            stopped_until: Time::ZERO,
            calls: BTreeSet::new(),
            streams: BTreeSet::new(),
            announced: BTreeSet::new(),
        }
    }
}

impl World {
    /// A call has its answer, or its caller knows that none will come.
    pub(super) fn answered(&mut self, to: ReplyTo, result: Result<Result<Reply, Refusal>, ()>) -> Outcome {
        let Some(call) = self.calls.get(&to).cloned() else { return Ok(()) };
        let again = match &result {
            Ok(result) => Happening::Answer { to, result: result.clone() },
            Err(()) => Happening::NoAnswer { to },
        };
        if self.is_stopped(call.index, call.life, again) {
            return Ok(());
        }
        self.calls.remove(&to);
        self.tasks[call.index as usize].calls.remove(&to);
        if result.is_err() {
            let after = self.delay() + Scenario::SLOW;
            self.later(after, Happening::Gone { to });
        }
        let outcome = match result {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(refusal)) => Err(Failure::Refused(refusal)),
            Err(()) => Err(Failure::Unreachable("no answer came".to_owned())),
        };
        if self.scenario.crashes > 0
            && call.purpose == Purpose::Shutdown
            && matches!(outcome, Err(Failure::Unreachable(_)))
        {
            let after = self.random.span(Duration::from_millis(5), Duration::from_millis(100));
            self.later(after, Happening::Again { index: call.index, life: call.life, at: None });
            return Ok(());
        }
        let plain = outcome.clone().map(|_| ());
        let event = match call.purpose {
            Purpose::Register => agent::Event::Registered(plain),
            Purpose::Beat => agent::Event::Beaten(plain),
            Purpose::Shutdown => agent::Event::ShutDown,
            // Its end has been told, which no answer follows.
            Purpose::Watch(watch) if !self.streams.contains_key(&watch) => return Ok(()),
            Purpose::Watch(watch) => match plain {
                Ok(()) => {
                    if self.scenario.crashes > 0 {
                        self.agent_gets(call.index, call.life, agent::Event::Failover(FAILOVER))?;
                    }
                    agent::Event::WatchOpened
                }
                Err(failure) => {
                    self.break_stream(watch);
                    self.streams.remove(&watch);
                    agent::Event::WatchEnded(failure)
                }
            },
            Purpose::Step(at) => return self.step_done(call.index, call.life, at, outcome),
            Purpose::Copy | Purpose::Probe { .. } => return Ok(()),
        };
        self.agent_gets(call.index, call.life, event)
    }

    pub(super) fn agent_gets(&mut self, index: u32, life: Incarnation, event: agent::Event) -> Outcome {
        let task = &mut self.tasks[index as usize];
        if task.incarnation != life || task.life != Life::Running {
            return Ok(());
        }
        let mut effects = Vec::new();
        task.agent.on_event(self.now, event, &mut effects);
        self.after_agent(index, effects)
    }

    pub(super) fn after_agent(&mut self, index: u32, effects: Vec<agent::Effect>) -> Outcome {
        let who = process(index, self.tasks[index as usize].incarnation);
        for effect in effects {
            match effect {
                agent::Effect::Register => {
                    let request = Request::Register {
                        task: who.task.clone(),
                        incarnation: who.incarnation,
                        silence: None,
                    };
                    self.send(index, Purpose::Register, request, CALL_LIMIT);
                }
                agent::Effect::Beat => {
                    let request = Request::Heartbeat { task: who.task.clone(), incarnation: who.incarnation };
                    self.send(index, Purpose::Beat, request, CALL_LIMIT);
                }
                agent::Effect::OpenWatch { since_epoch } => self.open_watch(index, since_epoch),
                agent::Effect::Ready => {
                    self.tasks[index as usize].ready = Some(self.now);
                    self.next_step(index)?;
                }
                agent::Effect::Announce(loss) => {
                    let life = (loss.task.clone(), loss.incarnation);
                    if self.scenario.is_calm() {
                        return Err(format!("S8: nothing went wrong, and {loss}"));
                    }
                    if !self.tasks[index as usize].announced.insert(life) {
                        return Err(format!("S7: the agent of {index} announced twice: {loss}"));
                    }
                }
                agent::Effect::Shutdown => {
                    let request = Request::Shutdown { task: who.task.clone() };
                    self.send(index, Purpose::Shutdown, request, CALL_LIMIT);
                }
                agent::Effect::Left => {
                    self.over(index, false);
                }
                agent::Effect::Closed => return Err("the coordinator said that it ends".to_owned()),
                agent::Effect::Failed(outage) => {
                    self.note(|| format!("the agent of {index} gives up: {outage:?}"));
                    if self.scenario.is_calm() {
                        return Err(format!(
                            "S8: nothing went wrong, and the agent of {index} gives up: {outage:?}"
                        ));
                    }
                    self.over(index, false);
                }
            }
        }
        let task = &self.tasks[index as usize];
        let deadline = if task.life == Life::Running { task.agent.deadline() } else { None };
        self.set_timer(Clockwork::Task(index), deadline);
        Ok(())
    }

    pub(super) fn open_watch(&mut self, index: u32, since_epoch: u64) {
        let process = process(index, self.tasks[index as usize].incarnation);
        let watch = WatchId(self.id());
        let stream =
            Stream { index, life: process.incarnation, clear: self.now, arrives: self.now, open: true };
        self.streams.insert(watch, stream);
        self.tasks[index as usize].streams.insert(watch);
        let arrives = self.send(
            index,
            Purpose::Watch(watch),
            Request::Watch { watch, process, since_epoch },
            CALL_LIMIT,
        );
        if let Some(stream) = self.streams.get_mut(&watch) {
            stream.arrives = arrives;
        }
    }

    pub(super) fn next_step(&mut self, index: u32) -> Outcome {
        let task = &self.tasks[index as usize];
        let life = task.incarnation;
        match task.steps.get(task.at).cloned() {
            None => self.agent_gets(index, life, agent::Event::Leave),
            Some(step) => {
                let at = task.at;
                let mut request =
                    request(&step, self.scenario.tasks, &process(index, life), &mut self.random);
                if self.scenario.crashes > 0 && step.changes() {
                    let sequence = at as u64;
                    let call = CallId {
                        task: process(index, life).task,
                        incarnation: life,
                        sequence,
                        oldest: sequence,
                    };
                    request = Request::Once { call, request: Box::new(request) };
                }
                self.send(index, Purpose::Step(at), request, step.limit());
                Ok(())
            }
        }
    }

    pub(super) fn step_done(
        &mut self,
        index: u32,
        life: Incarnation,
        at: usize,
        outcome: Result<Reply, Failure>,
    ) -> Outcome {
        let smooth = self.scenario.is_calm() && !self.scenario.coordinator_stops;
        let task = &mut self.tasks[index as usize];
        if task.incarnation != life || task.life != Life::Running || task.at != at {
            return Ok(());
        }
        let reads = matches!(task.steps[at], Step::Get { .. });
        if self.scenario.crashes > 0 && !reads && matches!(outcome, Err(Failure::Unreachable(_))) {
            // As an agent does where the service goes on.
            let after = self.random.span(Duration::from_millis(5), Duration::from_millis(100));
            self.later(after, Happening::Again { index, life, at: Some(at) });
            return Ok(());
        }
        if let Err(failure) = &outcome
            && smooth
            && task.steps[at].must_succeed()
        {
            return Err(format!("S8: nothing went wrong, and {index} at {:?}: {failure:?}", task.steps[at]));
        }
        task.tries += 1;
        let again =
            matches!(outcome, Err(Failure::Unreachable(_))) && !matches!(task.steps[at], Step::Get { .. });
        if !again || task.tries == TRIES {
            task.at += 1;
            task.tries = 0;
        }
        self.next_step(index)
    }

    pub(super) fn again(&mut self, index: u32, life: Incarnation, at: Option<usize>) -> Outcome {
        if self.is_stopped(index, life, Happening::Again { index, life, at }) {
            return Ok(());
        }
        let task = &self.tasks[index as usize];
        if task.incarnation != life || task.life != Life::Running {
            return Ok(());
        }
        match at {
            Some(at) if at == task.at => self.next_step(index),
            Some(_) => Ok(()),
            None => {
                let request = Request::Shutdown { task: process(index, life).task };
                self.send(index, Purpose::Shutdown, request, CALL_LIMIT);
                Ok(())
            }
        }
    }

    pub(super) fn born(&mut self, index: u32) -> Outcome {
        let incarnation = Incarnation(self.random.next() | 1);
        self.tasks[index as usize] =
            Task { life: Life::Running, incarnation, ..Task::unborn(self.seed, index) };
        self.note(|| format!("{index} begins as {incarnation}"));
        self.agent_gets(index, incarnation, agent::Event::Start)
    }

    /// A life ends. Its connections end with it, at once or, when it vanished, once they are given up.
    pub(super) fn over(&mut self, index: u32, vanished: bool) {
        self.tasks[index as usize].life = Life::Over;
        self.set_timer(Clockwork::Task(index), None);
        if self.scenario.launcher {
            let (after, life) =
                (self.random.span(Duration::ZERO, END_SEEN), self.tasks[index as usize].incarnation);
            self.later(after, Happening::Ended { index, life });
        }
        let after = if vanished { KEEPALIVE } else { self.delay() };
        let task = &mut self.tasks[index as usize];
        let (streams, calls) = (std::mem::take(&mut task.streams), std::mem::take(&mut task.calls));
        for watch in streams {
            if let Some(stream) = self.streams.remove(&watch) {
                self.at((self.now + after).max(stream.arrives), Happening::Broken { watch });
            }
        }
        for to in calls {
            if self.calls.remove(&to).is_some() {
                self.later(after + Scenario::SLOW, Happening::Gone { to });
            }
        }
    }
}
