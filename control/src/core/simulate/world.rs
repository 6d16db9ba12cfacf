//! The network, the tasks and the clock of a run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ringway_topology::{Incarnation, TaskId};

use super::accidents::{Accident, SPREAD, judge};
use super::check::Checks;
use super::crashes::Taken;
use super::random::Random;
use super::script::{CALL_LIMIT, REGISTER_TIMEOUT, task};
use super::tasks::{Life, Task};
use super::{Report, Scenario, Violation};
use crate::core::agent::{self, Failure};
use crate::core::coordination::errors::Refusal;
use crate::core::coordination::losses::{Evidence, Loss};
use crate::core::coordination::request::{
    self, Effect, Event, Notice, Reply, ReplyTo, Request, Value, WatchId,
};
use crate::core::coordination::{Coordinator, CoordinatorConfig};
use crate::core::machine::Machine;
use crate::core::time::Time;

pub(super) const HEARTBEAT_LIMIT: Duration = Duration::from_millis(3000);
pub(super) const HEARTBEAT_EVERY: Duration = Duration::from_millis(750);
/// Agents bear more than the coordinator, so that a coordinator that was stopped finds them there.
pub(super) const AGENT_LIMIT: Duration = Duration::from_millis(12_000);
pub(super) const RECONNECT_GRACE: Duration = Duration::from_millis(700);
/// A request that was lost fails on the caller's side within this time.
const LOSS_NOTICED: Duration = Duration::from_millis(100);
/// All tasks have come to an end by then, or one hangs.
const HORIZON: Time = Time(120_000_000_000);
/// Lines that are kept for the report of a violation.
const TRACE_LINES: usize = 60;

/// What a call is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Register,
    Beat,
    Watch(WatchId),
    Shutdown,
    Step(usize),
    /// A second copy of a request; nobody waits for its answer.
    Copy,
    /// The simulation asks whether a life is known to be over.
    Probe {
        index: u32,
        life: Incarnation,
        why: String,
    },
}

#[derive(Clone, Debug)]
pub(super) struct CallInfo {
    pub(super) index: u32,
    pub(super) life: Incarnation,
    pub(super) purpose: Purpose,
}

#[derive(Debug)]
pub(super) enum Happening {
    Arrive {
        to: ReplyTo,
        request: Request,
    },
    Gone {
        to: ReplyTo,
    },
    Broken {
        watch: WatchId,
    },
    Answer {
        to: ReplyTo,
        result: Result<Reply, Refusal>,
    },
    NoAnswer {
        to: ReplyTo,
    },
    Noticed {
        watch: WatchId,
        notice: Notice,
    },
    WatchEnded {
        watch: WatchId,
    },
    Born {
        index: u32,
    },
    Accident(Accident),
    Probe {
        index: u32,
        life: Incarnation,
        why: String,
        /// It counts if the coordinator was killed no more often.
        crashes: u32,
    },
    /// A step is asked again; none is the last, to leave.
    Again {
        index: u32,
        life: Incarnation,
        at: Option<usize>,
    },
    /// What was on its way is remembered, unless the coordinator was killed meanwhile.
    Committed {
        crashes: u32,
    },
    /// A coordinator goes on.
    Restored,
    /// The launcher sees that a process is over.
    Ended {
        index: u32,
        life: Incarnation,
    },
    /// By now everybody has heard of a loss.
    Heard {
        loss: Arc<Loss>,
        since: Time,
        /// It counts if the coordinator was killed no more often.
        crashes: u32,
    },
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) index: u32,
    pub(super) life: Incarnation,
    /// When what was put on it so far has arrived: notices stay in order.
    pub(super) clear: Time,
    /// When the coordinator hears of it: it cannot hear of its end before.
    pub(super) arrives: Time,
    pub(super) open: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Clockwork {
    Coordinator,
    Task(u32),
}

/// A run.
pub(super) struct World {
    pub(super) seed: u64,
    pub(super) scenario: Scenario,
    pub(super) random: Random,
    pub(super) now: Time,
    pub(super) sequence: u64,
    pub(super) queue: BTreeMap<(Time, u64), Happening>,
    pub(super) timers: BTreeSet<(Time, Clockwork)>,
    pub(super) timer_of: BTreeMap<Clockwork, Time>,
    pub(super) coordinator: Coordinator,
    pub(super) coordinator_stopped_until: Time,
    pub(super) config: CoordinatorConfig,
    /// What is remembered, and what waits to be.
    pub(super) stored: BTreeMap<String, Value>,
    pub(super) waiting: Vec<Taken>,
    pub(super) committing: Vec<Taken>,
    /// There is no coordinator; and how often that began.
    pub(super) down: bool,
    pub(super) crashes: u32,
    pub(super) tasks: Vec<Task>,
    pub(super) calls: BTreeMap<ReplyTo, CallInfo>,
    pub(super) streams: BTreeMap<WatchId, Stream>,
    pub(super) next_id: u64,
    pub(super) checks: Checks,
    /// Lives that the coordinator has taken.
    registered: BTreeSet<(TaskId, Incarnation)>,
    pub(super) trace: VecDeque<String>,
}

/// `Err` is a check that failed.
pub(super) type Outcome = Result<(), String>;

impl World {
    pub(super) fn new(seed: u64, scenario: Scenario) -> Self {
        let tasks = scenario.tasks;
        let config = CoordinatorConfig {
            heartbeat_limit: HEARTBEAT_LIMIT,
            reconnect_grace: RECONNECT_GRACE,
            register_timeout: REGISTER_TIMEOUT,
            durable: scenario.crashes > 0,
            ..CoordinatorConfig::one_job("worker", tasks)
        };
        let mut world = World {
            seed,
            random: Random::new(seed),
            now: Time::ZERO,
            sequence: 0,
            queue: BTreeMap::new(),
            timers: BTreeSet::new(),
            timer_of: BTreeMap::new(),
            coordinator: Coordinator::new(config.clone()),
            coordinator_stopped_until: Time::ZERO,
            config,
            stored: BTreeMap::new(),
            waiting: Vec::new(),
            committing: Vec::new(),
            down: false,
            crashes: 0,
            tasks: (0..tasks).map(|index| Task::unborn(seed, index)).collect(),
            calls: BTreeMap::new(),
            streams: BTreeMap::new(),
            next_id: 1,
            checks: Checks::new(tasks),
            registered: BTreeSet::new(),
            trace: VecDeque::new(),
            scenario,
        };
        for index in 0..tasks {
            let at = world.random.span(Duration::ZERO, Duration::from_millis(50));
            world.later(at, Happening::Born { index });
        }
        world.plan_accidents();
        world
    }

    pub(super) fn run(mut self) -> Result<Report, Violation> {
        match self.go() {
            Ok(()) => {
                self.checks.report.time = self.now;
                Ok(self.checks.report)
            }
            Err(what) => {
                let trace = self.trace.into_iter().collect();
                Err(Violation { seed: self.seed, tasks: self.scenario.tasks, time: self.now, what, trace })
            }
        }
    }

    fn go(&mut self) -> Outcome {
        loop {
            let timer = self.timers.first().copied();
            let message = self.queue.keys().next().copied();
            match (timer, message) {
                (Some((at, who)), next) if next.is_none_or(|(time, _)| at < time) => {
                    self.now = self.now.max(at);
                    self.tick(who)?;
                }
                (_, Some(key)) => {
                    self.now = self.now.max(key.0);
                    let happening = self.queue.remove(&key).expect("the key was just read");
                    self.checks.report.happenings += 1;
                    self.happen(happening)?;
                }
                (_, None) => break,
            }
            if self.now > HORIZON {
                return Err(self.hanging());
            }
            if self.queue.is_empty() && self.tasks.iter().all(|task| task.life == Life::Over) {
                break;
            }
        }
        self.checks.end(self.coordinator.waiting())
    }

    fn hanging(&self) -> String {
        let hangs = self.tasks.iter().enumerate().filter(|(_, task)| task.life != Life::Over);
        let hangs: Vec<String> = hangs.take(4).map(|(i, task)| format!("{i} at step {}", task.at)).collect();
        format!("S2: tasks hang: {hangs:?}; {} happenings are left", self.queue.len())
    }

    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        // The trace of thousands of tasks says nothing and costs most of the time.
        if self.scenario.tasks <= 64 {
            if self.trace.len() == TRACE_LINES {
                self.trace.pop_front();
            }
            let line = format!("{} {}", self.now, line());
            self.trace.push_back(line);
        }
    }

    pub(super) fn later(&mut self, after: Duration, happening: Happening) {
        self.at(self.now + after, happening);
    }

    pub(super) fn at(&mut self, time: Time, happening: Happening) {
        self.sequence += 1;
        self.queue.insert((time, self.sequence), happening);
    }

    pub(super) fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(super) fn delay(&mut self) -> Duration {
        if self.random.per_mille(self.scenario.slow) {
            self.random.span(Duration::ZERO, Scenario::SLOW)
        } else {
            self.random.span(Duration::from_micros(50), Duration::from_millis(5))
        }
    }

    pub(super) fn set_timer(&mut self, who: Clockwork, at: Option<Time>) {
        let at = at.map(|at| match who {
            Clockwork::Coordinator => at.max(self.coordinator_stopped_until),
            Clockwork::Task(index) => at.max(self.tasks[index as usize].stopped_until),
        });
        if let Some(before) = self.timer_of.remove(&who) {
            self.timers.remove(&(before, who));
        }
        if let Some(at) = at {
            self.timer_of.insert(who, at);
            self.timers.insert((at, who));
        }
    }

    fn tick(&mut self, who: Clockwork) -> Outcome {
        match who {
            Clockwork::Coordinator => {
                let mut effects = Vec::new();
                self.coordinator.on_time(self.now, &mut effects);
                self.after_coordinator(None, effects)
            }
            Clockwork::Task(index) => {
                let mut effects = Vec::new();
                self.tasks[index as usize].agent.on_time(self.now, &mut effects);
                self.after_agent(index, effects)
            }
        }
    }

    fn happen(&mut self, happening: Happening) -> Outcome {
        match happening {
            Happening::Arrive { to, request } => self.coordinator_gets(self.asked(to, request)),
            Happening::Gone { to } => self.coordinator_gets(Event::Gone { reply: to }),
            Happening::Broken { watch } => self.coordinator_gets(Event::WatchBroken { watch }),
            Happening::Answer { to, result } => self.answered(to, Ok(result)),
            Happening::NoAnswer { to } => self.answered(to, Err(())),
            Happening::Noticed { watch, notice } => {
                let Some(stream) = self.streams.get(&watch).filter(|stream| stream.open) else {
                    return Ok(());
                };
                let (index, life) = (stream.index, stream.life);
                let again = Happening::Noticed { watch, notice: notice.clone() };
                if self.is_stopped(index, life, again) {
                    return Ok(());
                }
                self.agent_gets(index, life, agent::Event::Noticed(notice))
            }
            Happening::WatchEnded { watch } => {
                let Some(stream) = self.streams.get(&watch) else { return Ok(()) };
                let (index, life) = (stream.index, stream.life);
                if self.is_stopped(index, life, Happening::WatchEnded { watch }) {
                    return Ok(());
                }
                self.streams.remove(&watch);
                let end = Failure::Unreachable("the stream broke".to_owned());
                self.agent_gets(index, life, agent::Event::WatchEnded(end))
            }
            Happening::Born { index } => self.born(index),
            Happening::Accident(accident) => self.accident(accident),
            Happening::Probe { crashes, .. } if crashes != self.crashes => Ok(()),
            Happening::Probe { index, life, why, .. } => self.probe(index, life, why),
            Happening::Again { index, life, at } => self.again(index, life, at),
            Happening::Committed { crashes } => self.committed(crashes),
            Happening::Restored => self.restored(),
            Happening::Ended { index, life } => self.process_ended(index, life),
            Happening::Heard { crashes, .. } if crashes != self.crashes => Ok(()),
            Happening::Heard { loss, since, .. } => self.heard(&loss, since),
        }
    }

    /// Puts off what comes to a task that is stopped. False when the task runs, or that life of it is over.
    pub(super) fn is_stopped(&mut self, index: u32, life: Incarnation, again: Happening) -> bool {
        let task = &self.tasks[index as usize];
        let until = task.stopped_until;
        let stopped = task.incarnation == life && task.life == Life::Running && until > self.now;
        if stopped {
            self.at(until, again);
        }
        stopped
    }

    pub(super) fn coordinator_gets(&mut self, event: Event) -> Outcome {
        if self.coordinator_stopped_until > self.now {
            let until = self.coordinator_stopped_until;
            let again = match event {
                Event::Ask { reply, request, .. } => Happening::Arrive { to: reply, request },
                Event::Gone { reply } => Happening::Gone { to: reply },
                Event::WatchBroken { watch } => Happening::Broken { watch },
                // The launcher is stopped with it; nobody stops the service in this world, nor takes its machine away.
                Event::ProcessEnded { .. } | Event::Preempted { .. } | Event::Stop => return Ok(()),
            };
            self.at(until, again);
            return Ok(());
        }
        if !matches!(event, Event::Ask { request: Request::Heartbeat { .. }, .. }) {
            self.note(|| format!("-> {event:?}"));
        }
        if self.down {
            if let Event::Ask { reply, .. } = event {
                self.refuse(reply);
            }
            return Ok(());
        }
        let mut effects = Vec::new();
        self.coordinator.on_event(self.now, event.clone(), &mut effects);
        self.after_coordinator(Some(event), effects)
    }

    /// A request as it arrives: with the life of the task that sent it, where it does not begin or name one itself.
    fn asked(&self, to: ReplyTo, asked: Request) -> Event {
        let life = |call: &CallInfo| request::Life { task: Some(task(call.index)), incarnation: call.life };
        let is_signed =
            !matches!(asked, Request::Register { .. } | Request::Heartbeat { .. } | Request::Watch { .. });
        // Probes ask for nobody.
        let calls = self.calls.get(&to);
        let calls = calls.filter(|call| is_signed && !matches!(call.purpose, Purpose::Probe { .. }));
        Event::Ask { reply: to, from: calls.map(life), request: asked }
    }

    fn after_coordinator(&mut self, event: Option<Event>, effects: Vec<Effect>) -> Outcome {
        let asked = event.is_some();
        if self.scenario.crashes > 0 {
            self.take_down(event, effects);
        } else {
            self.carry_out(self.now, event.as_ref(), effects)?;
        }
        let deadline = self.coordinator.deadline();
        match deadline.filter(|&deadline| deadline <= self.now) {
            // As the driver does: what is due is not left for later.
            Some(_) if asked => self.tick(Clockwork::Coordinator),
            Some(due) => Err(format!("S2: the coordinator left something undone that was due at {due}")),
            None => {
                self.set_timer(Clockwork::Coordinator, deadline);
                Ok(())
            }
        }
    }

    /// Does what the coordinator wanted done at `at`.
    pub(super) fn carry_out(&mut self, at: Time, event: Option<&Event>, effects: Vec<Effect>) -> Outcome {
        for loss in self.checks.step(at, event, &effects)? {
            if loss.evidence == Evidence::Restart && self.is_blamed_on_the_past(&loss, event) {
                return Err(format!("S9: the newest life of a task is taken for an old one: {loss}"));
            }
            let crashes = self.crashes;
            self.later(SPREAD, Happening::Heard { loss, since: self.now, crashes });
        }
        if let Some(Event::Ask { reply, request: Request::Register { task, incarnation, .. }, .. }) = event
            && effects.contains(&Effect::Reply { to: *reply, result: Ok(Reply::Done) })
        {
            self.registered.insert((task.clone(), *incarnation));
        }
        for effect in effects {
            match effect {
                Effect::Reply { to, result } => self.send_answer(to, result)?,
                Effect::Notify { watch, notice } => self.send_notice(watch, notice),
                Effect::CloseWatch { watch } => {
                    let clear = self.streams.get(&watch).map(|stream| stream.clear);
                    if let Some(clear) = clear {
                        let at = clear.max(self.now + self.delay());
                        self.at(at, Happening::WatchEnded { watch });
                    }
                }
                Effect::Remember { .. }
                | Effect::PushError { .. }
                | Effect::Blamed { .. }
                | Effect::Connected { .. } => {}
            }
        }
        Ok(())
    }

    fn send_answer(&mut self, to: ReplyTo, result: Result<Reply, Refusal>) -> Outcome {
        let Some(call) = self.calls.get(&to).cloned() else { return Ok(()) };
        self.note(|| format!("<- {} for {} ({:?}): {result:?}", to.0, call.index, call.purpose));
        match call.purpose {
            Purpose::Copy => {
                self.calls.remove(&to);
            }
            Purpose::Probe { index, life, why } => {
                self.calls.remove(&to);
                return judge(index, life, &why, &result);
            }
            Purpose::Watch(watch) => {
                let at = self.now + self.delay();
                if result.is_ok() && self.random.per_mille(self.scenario.lost) {
                    self.break_stream(watch);
                } else {
                    if let Some(stream) = self.streams.get_mut(&watch) {
                        stream.clear = stream.clear.max(at);
                    }
                    self.at(at, Happening::Answer { to, result });
                }
            }
            _ if self.random.per_mille(self.scenario.lost) => {
                let after = self.random.span(Duration::ZERO, LOSS_NOTICED);
                self.later(after, Happening::NoAnswer { to });
            }
            _ => {
                let after = self.delay();
                self.later(after, Happening::Answer { to, result });
            }
        }
        Ok(())
    }

    fn send_notice(&mut self, watch: WatchId, notice: Notice) {
        let at = self.now + self.delay();
        if let Some(stream) = self.streams.get_mut(&watch) {
            stream.clear = stream.clear.max(at);
            let at = stream.clear;
            self.at(at, Happening::Noticed { watch, notice });
        }
    }

    /// Whether the newest life of a task was called lost since one that registered before it came again. One that
    /// was never seen cannot be known to be older.
    fn is_blamed_on_the_past(&self, loss: &Loss, event: Option<&Event>) -> bool {
        let newest = &self.tasks[loss.task.index() as usize];
        match event {
            Some(Event::Ask { request: Request::Register { task, incarnation, .. }, .. }) => {
                newest.incarnation == loss.incarnation
                    && self.registered.contains(&(task.clone(), *incarnation))
            }
            _ => false,
        }
    }

    /// Sends a request; gives when it arrives, if it does.
    pub(super) fn send(&mut self, index: u32, purpose: Purpose, request: Request, limit: Duration) -> Time {
        let life = self.tasks[index as usize].incarnation;
        if self.random.per_mille(self.scenario.doubled) && !matches!(purpose, Purpose::Watch(_)) {
            let copy = ReplyTo(self.id());
            self.calls.insert(copy, CallInfo { index, life, purpose: Purpose::Copy });
            let after = self.delay() + self.delay();
            self.later(after, Happening::Arrive { to: copy, request: request.clone() });
            self.later(CALL_LIMIT, Happening::Gone { to: copy });
        }
        let to = ReplyTo(self.id());
        self.calls.insert(to, CallInfo { index, life, purpose });
        self.tasks[index as usize].calls.insert(to);
        if self.random.per_mille(self.scenario.lost) {
            let after = self.random.span(Duration::ZERO, LOSS_NOTICED);
            self.later(after, Happening::NoAnswer { to });
            self.now
        } else {
            let after = self.delay();
            self.later(after, Happening::Arrive { to, request });
            self.later(limit, Happening::NoAnswer { to });
            self.now + after
        }
    }
}
