//! The coordination service: who is in the cluster, who is alive, barriers, a key-value store, groups, and the
//! announcement of losses.
//!
//! [`Coordinator`] is one machine. Its parts are one file each and know nothing of each other; what one has to say
//! to another (a task that is lost ends barriers, groups, waits) is said here.
//!
//! - C1. Every request is answered exactly once, or its caller goes ([`Event::Gone`]) before.
//! - C2. A call that waits ends: by its own deadline, by the loss of what it waits for, or by its caller's going.
//! - C3. A task that is silent for the heartbeat limit is announced as lost within one tick more.
//! - C4. A late message of an earlier life of a task changes nothing.
//! - C5. Silence counts only while the coordinator itself runs: when it was stopped, nobody else is blamed.

pub mod errors;
pub mod groups;
pub mod losses;
pub mod request;

mod alive;
mod barrier;
mod departure;
mod heartbeat;
mod kv;
mod membership;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ringway_topology::{Incarnation, TaskId};

use self::alive::AliveRounds;
use self::barrier::{Barriers, Call, Key};
use self::departure::Departure;
use self::errors::{Code, ErrorFeed, Origin, Refusal, TaskError, clip, list};
use self::groups::{Entry, Groups};
use self::heartbeat::Heartbeats;
use self::kv::Store;
use self::losses::{Evidence, Loss, Losses};
use self::membership::{Membership, Slot};
use self::request::{BarrierCall, Effect, Event, Join, Process, Reply, ReplyTo, Request, State, WatchId};
use super::machine::Machine;
use super::time::Time;

/// Longest time that a barrier may be given.
pub const BARRIER_TIMEOUT_LIMIT: Duration = Duration::from_secs(30 * 24 * 3600);

/// What the coordinator holds at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Keys in the store.
    pub keys: usize,
    /// Length of a key, of a barrier's id and of a group's name, in bytes.
    pub key_bytes: usize,
    /// Length of a value, in bytes.
    pub value_bytes: usize,
    /// Keys and values together, in bytes.
    pub store_bytes: usize,
    /// Length of one answer that lists a directory, in bytes.
    pub reply_bytes: usize,
    /// Callers that wait for something.
    pub waiting: usize,
    /// Barriers under way.
    pub barriers: usize,
    /// Barriers that have ended and are remembered.
    pub ended_barriers: usize,
    /// Groups, made and forming.
    pub groups: usize,
    /// Addresses of one member of a group, in bytes.
    pub address_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            keys: 1 << 20,
            key_bytes: 4 << 10,
            value_bytes: 64 << 20,
            store_bytes: 1 << 30,
            reply_bytes: 64 << 20,
            waiting: 1 << 18,
            barriers: 1 << 14,
            ended_barriers: 1 << 14,
            groups: 1 << 12,
            address_bytes: 64 << 10,
        }
    }
}

/// How a coordinator behaves.
#[derive(Clone, Debug)]
pub struct CoordinatorConfig {
    /// Jobs and how many tasks each has.
    pub jobs: Vec<(String, u32)>,
    /// Silence for so long means that a task is lost.
    pub heartbeat_limit: Duration,
    /// A task whose stream of notices broke has so long to open another.
    pub reconnect_grace: Duration,
    /// Longest wait for all tasks, counted from the first that waits.
    pub register_timeout: Duration,
    /// Longest wait for a group, where the caller sets none.
    pub join_timeout: Duration,
    /// Tasks leave together, and wait so long for each other; `None`: each leaves when it wants.
    pub shutdown_timeout: Option<Duration>,
    /// What is held at most.
    pub limits: Limits,
}

impl CoordinatorConfig {
    /// One job of `tasks` tasks with the usual times.
    #[must_use]
    pub fn one_job(name: &str, tasks: u32) -> Self {
        CoordinatorConfig {
            jobs: vec![(name.to_owned(), tasks)],
            heartbeat_limit: Duration::from_secs(10),
            reconnect_grace: Duration::from_millis(200),
            register_timeout: Duration::from_secs(300),
            join_timeout: Duration::from_secs(300),
            shutdown_timeout: None,
            limits: Limits::default(),
        }
    }

    /// All tasks of all jobs.
    #[must_use]
    pub fn tasks(&self) -> u32 {
        self.jobs.iter().map(|(_, tasks)| tasks).sum()
    }
}

/// How a request goes on.
enum Answer {
    /// It is answered with this.
    Now(Result<Reply, Refusal>),
    /// It waits there, or was answered just now by what it started.
    Held(Held),
}

/// Where a caller waits.
#[derive(Debug)]
enum Held {
    Everyone,
    Key(String),
    Barrier(Key),
    Alive(Arc<[Slot]>),
    Poll,
    Job(String),
    Group(String),
    Departure(Slot),
}

/// The coordination service, as a machine.
#[derive(Debug)]
pub struct Coordinator {
    config: CoordinatorConfig,
    members: Membership,
    heartbeats: Heartbeats,
    barriers: Barriers,
    store: Store,
    alive: AliveRounds,
    feed: ErrorFeed,
    groups: Groups,
    losses: Losses,
    departure: Departure,
    held: BTreeMap<ReplyTo, Held>,
    /// Of the latest group or loss.
    epoch: u64,
    /// When the coordinator last ran.
    awake: Time,
    stopped: bool,
}

impl Coordinator {
    /// A coordinator to which no task is connected yet.
    #[must_use]
    pub fn new(config: CoordinatorConfig) -> Self {
        let limits = config.limits;
        Coordinator {
            members: Membership::new(&config.jobs),
            heartbeats: Heartbeats::new(config.heartbeat_limit),
            barriers: Barriers::new(limits.barriers, limits.ended_barriers),
            store: Store::new(limits),
            alive: AliveRounds::default(),
            feed: ErrorFeed::default(),
            groups: Groups::new(limits.groups),
            losses: Losses::new(config.reconnect_grace),
            departure: Departure::new(config.shutdown_timeout),
            held: BTreeMap::new(),
            epoch: 0,
            awake: Time::ZERO,
            stopped: false,
            config,
        }
    }

    /// How often the coordinator looks at the clock while tasks are connected.
    #[must_use]
    pub fn tick(&self) -> Duration {
        self.config.heartbeat_limit / 8
    }

    /// Callers that wait for an answer.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.held.len()
    }

    /// Notes that the coordinator runs, and forgives the silence of a time in which it did not (C5).
    fn wake(&mut self, now: Time) {
        let asleep = now.since(self.awake);
        if asleep > self.config.heartbeat_limit / 2 {
            self.heartbeats.forgive(asleep, now);
        }
        self.awake = now;
    }

    fn ask(&mut self, now: Time, to: ReplyTo, request: Request, out: &mut Vec<Effect>) {
        let answer = if self.stopped {
            Answer::Now(Err(stopping()))
        } else if self.held.len() >= self.config.limits.waiting {
            let message = format!("{} callers wait already, the limit: try again later", self.held.len());
            Answer::Now(Err(Refusal::new(Code::ResourceExhausted, message)))
        } else {
            self.dispatch(now, to, request, out).unwrap_or_else(|error| Answer::Now(Err(error)))
        };
        match answer {
            Answer::Now(result) => out.push(Effect::Reply { to, result }),
            Answer::Held(held) => {
                self.held.insert(to, held);
            }
        }
    }

    fn dispatch(
        &mut self,
        now: Time,
        to: ReplyTo,
        request: Request,
        out: &mut Vec<Effect>,
    ) -> Result<Answer, Refusal> {
        let result = match request {
            Request::Register { task, incarnation } => self.register(now, &task, incarnation, out),
            Request::Heartbeat { task, incarnation } => self.heartbeat(now, &task, incarnation),
            Request::WaitForAll { task, devices } => {
                let slot = self.connected(&task)?;
                let deadline = now + self.config.register_timeout;
                self.members.wait_for_all(slot, devices, to, deadline, out);
                return Ok(Answer::Held(Held::Everyone));
            }
            Request::Shutdown { task } => return self.shutdown(now, &task, to, out),
            Request::Reset { task } => self.reset(&task, out),
            Request::ReportError { task, error } => self.report_error(&task, error, out),
            Request::TaskStates { tasks } => {
                let slots: Result<Vec<Slot>, Refusal> =
                    tasks.iter().map(|task| self.members.slot(task)).collect();
                Ok(Reply::States(slots?.into_iter().map(|slot| self.members.status(slot)).collect()))
            }
            Request::WatchJob { job, version } => match self.members.watch_job(&job, version, to) {
                Some(result) => result,
                None => return Ok(Answer::Held(Held::Job(job))),
            },
            Request::Insert { key, value, overwrite } => self.store.insert(&key, value, overwrite, out),
            Request::Get { key } => return Ok(self.store.get(key, to)),
            Request::TryGet { key } => self.store.try_get(key),
            Request::Increment { key, by } => self.store.increment(key, by, out),
            Request::GetDirectory { directory } => self.store.directory(directory),
            Request::Delete { key } => self.store.delete(&key),
            Request::Barrier(call) => return self.barrier(now, call, to, out),
            Request::CancelBarrier { id, counter, source } => {
                self.members.slot(&source)?;
                self.barriers.cancel(Key { id: id.into(), counter }, &source, out)
            }
            Request::AliveTasks { source, tasks } => return self.alive_tasks(&source, &tasks, to, out),
            Request::PollForError { task } => return self.poll_for_error(&task, to),
            Request::Join(join) => return self.join(now, *join, to, out),
            Request::ReportLoss { reporter, incarnation, lost, seen, detail } => {
                let reporter = self.members.slot(&reporter)?;
                self.members.connected_as(reporter, incarnation)?;
                self.report_loss(reporter, &lost, seen, detail, out)
            }
            Request::Watch { watch, process, since_epoch } => self.watch(watch, process, since_epoch, out),
        };
        Ok(Answer::Now(result))
    }

    fn connected(&self, task: &TaskId) -> Result<Slot, Refusal> {
        let slot = self.members.slot(task)?;
        self.members.connected_as(slot, self.members.get(slot).incarnation)?;
        Ok(slot)
    }

    fn register(
        &mut self,
        now: Time,
        task: &TaskId,
        incarnation: Incarnation,
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
            State::Disconnected | State::Error => self.members.connect(slot, incarnation, out),
        }
        self.heartbeats.beat(slot, now);
        Ok(Reply::Done)
    }

    fn heartbeat(&mut self, now: Time, task: &TaskId, incarnation: Incarnation) -> Result<Reply, Refusal> {
        let slot = self.members.slot(task)?;
        self.members.connected_as(slot, incarnation)?;
        self.heartbeats.beat(slot, now);
        Ok(Reply::Done)
    }

    fn shutdown(
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
    fn depart(&mut self, now: Time, out: &mut Vec<Effect>) {
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
        self.alive.settle(&self.members, out);
    }

    /// A task is lost: everybody who has to do with it is told.
    fn lose(&mut self, slot: Slot, evidence: Evidence, code: Code, detail: String, out: &mut Vec<Effect>) {
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
            out.push(Effect::PushError { to: self.members.name(to).clone(), error: error.clone() });
        }
        self.feed.tell_all(&error, out);
        self.members.fail_wait(&error, out);
        self.barriers.lose(slot, &self.members, &format!("failed: {error}"), out);
        self.groups.lose(slot, &error, out);
        self.alive.settle(&self.members, out);
        for to in self.departure.lose(slot) {
            out.push(Effect::Reply { to, result: Err(error.clone()) });
        }
    }

    fn origin(&self, slot: Slot, reported: bool) -> Origin {
        Origin::Task { task: self.members.name(slot).clone(), reported }
    }

    fn reset(&mut self, task: &TaskId, out: &mut Vec<Effect>) -> Result<Reply, Refusal> {
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

    fn report_error(
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

    fn report_loss(
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

    fn barrier(
        &mut self,
        now: Time,
        call: BarrierCall,
        to: ReplyTo,
        out: &mut Vec<Effect>,
    ) -> Result<Answer, Refusal> {
        let BarrierCall { id, counter, timeout, tasks, source } = call;
        let source = self.connected(&source)?;
        self.name_fits("barrier", &id)?;
        if timeout.is_zero() || timeout > BARRIER_TIMEOUT_LIMIT {
            let message = format!(
                "barrier {id:?} with a timeout of {timeout:?}: give one above 0 and at most {BARRIER_TIMEOUT_LIMIT:?}"
            );
            return Err(Refusal::new(Code::InvalidArgument, message));
        }
        let key = Key { id: id.into(), counter };
        let tasks = match self.set_of(&tasks) {
            Ok(tasks) => tasks,
            Err(error) => return Ok(self.barriers.refuse(key, error, out)),
        };
        Ok(self.barriers.enter(now, Call { key, source, tasks, timeout, to }, &self.members, out))
    }

    /// The slots of these tasks, in order, each once; of all tasks when none is named.
    fn set_of(&self, tasks: &[TaskId]) -> Result<Arc<[Slot]>, Refusal> {
        if tasks.is_empty() {
            return Ok(self.members.everyone());
        }
        let mut slots =
            tasks.iter().map(|task| self.members.slot(task)).collect::<Result<Vec<Slot>, Refusal>>()?;
        slots.sort_unstable();
        slots.dedup();
        Ok(slots.into())
    }

    fn name_fits(&self, what: &str, name: &str) -> Result<(), Refusal> {
        let limit = self.config.limits.key_bytes;
        if name.is_empty() || name.len() > limit {
            let message = format!("the name of a {what} has {} bytes: give it 1 to {limit}", name.len());
            return Err(Refusal::new(Code::InvalidArgument, message));
        }
        Ok(())
    }

    fn alive_tasks(
        &mut self,
        source: &TaskId,
        tasks: &[TaskId],
        to: ReplyTo,
        out: &mut Vec<Effect>,
    ) -> Result<Answer, Refusal> {
        let slot = self.connected(source)?;
        let tasks = self.set_of(tasks)?;
        if tasks.binary_search(&slot).is_err() {
            let names = list(tasks.iter().map(|&slot| self.members.name(slot)));
            let message = format!("{source} asks who is alive among {names}, and is not among them");
            return Err(Refusal::new(Code::InvalidArgument, message));
        }
        Ok(self.alive.ask(slot, tasks, to, &self.members, out))
    }

    fn poll_for_error(&mut self, task: &TaskId, to: ReplyTo) -> Result<Answer, Refusal> {
        let slot = self.connected(task)?;
        if let Some((_, error)) = self.members.first_error(&self.members.everyone()) {
            return Err(error);
        }
        self.feed.wait(slot, to);
        Ok(Answer::Held(Held::Poll))
    }

    fn join(&mut self, now: Time, join: Join, to: ReplyTo, out: &mut Vec<Effect>) -> Result<Answer, Refusal> {
        self.name_fits("group", &join.group)?;
        let slot = self.members.live(&join.process)?;
        let limit = self.config.limits.address_bytes;
        if join.addresses.len() > limit {
            let message =
                format!("addresses of {} bytes are over the limit of {limit}", join.addresses.len());
            return Err(Refusal::new(Code::InvalidArgument, message));
        }
        if join.size > self.config.tasks() {
            let message = format!(
                "group {:?} of size {} is larger than the cluster of {} tasks: start the coordinator for that many",
                join.group,
                join.size,
                self.config.tasks()
            );
            return Err(Refusal::new(Code::InvalidArgument, message));
        }
        self.members.get_mut(slot).process = Some(join.process.clone());
        let timeout = join.timeout.unwrap_or(self.config.join_timeout).min(BARRIER_TIMEOUT_LIMIT);
        let (answer, ranks) = self.groups.enter(now, Entry { slot, join, timeout, to }, self.epoch + 1, out);
        if let Some(ranks) = ranks {
            self.epoch += 1;
            for (slot, rank) in ranks.0 {
                self.members.get_mut(slot).rank.get_or_insert(rank);
            }
        }
        Ok(answer)
    }

    fn watch(
        &mut self,
        watch: WatchId,
        process: Process,
        since_epoch: u64,
        out: &mut Vec<Effect>,
    ) -> Result<Reply, Refusal> {
        let slot = self.members.live(&process)?;
        self.members.get_mut(slot).process = Some(process);
        self.losses.open(watch, slot, since_epoch, out);
        Ok(Reply::Done)
    }

    fn gone(&mut self, reply: ReplyTo) {
        match self.held.remove(&reply) {
            None => {}
            Some(Held::Everyone) => self.members.forget_wait(reply),
            Some(Held::Key(path)) => self.store.forget(&path, reply),
            Some(Held::Barrier(key)) => self.barriers.forget(&key, reply),
            Some(Held::Alive(tasks)) => self.alive.forget(&tasks, reply),
            Some(Held::Poll) => self.feed.forget(reply),
            Some(Held::Job(job)) => self.members.forget_watcher(&job, reply),
            Some(Held::Group(name)) => self.groups.forget(&name, reply),
            Some(Held::Departure(slot)) => self.departure.forget(slot, reply),
        }
    }

    /// The service ends: everybody who waits is told.
    fn stop(&mut self, out: &mut Vec<Effect>) {
        self.stopped = true;
        let error = stopping();
        self.losses.stop(out);
        self.members.fail_wait(&error, out);
        self.barriers.stop(&error, out);
        self.store.stop(&error, out);
        self.alive.stop(&error, out);
        self.feed.tell_all(&error, out);
        self.groups.stop(&error, out);
        for to in self.departure.stop() {
            out.push(Effect::Reply { to, result: Ok(Reply::Done) });
        }
    }

    /// Callers that were answered wait no longer.
    fn settle(&mut self, effects: &[Effect]) {
        for effect in effects {
            if let Effect::Reply { to, .. } = effect {
                self.held.remove(to);
            }
        }
    }
}

fn stopping() -> Refusal {
    Refusal::new(Code::Aborted, "the coordination service is shutting down")
}

impl Machine for Coordinator {
    type Event = Event;
    type Effect = Effect;

    fn on_event(&mut self, now: Time, event: Event, out: &mut Vec<Effect>) {
        self.wake(now);
        let from = out.len();
        match event {
            Event::Ask { reply, request } => self.ask(now, reply, request, out),
            Event::Gone { reply } => self.gone(reply),
            Event::WatchBroken { watch } => self.losses.broken(watch, now),
            Event::Stop => self.stop(out),
        }
        self.depart(now, out);
        self.settle(&out[from..]);
    }

    fn on_time(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.wake(now);
        let from = out.len();
        while let Some((slot, silence)) = self.heartbeats.expired(now) {
            let detail = format!("no heartbeat for {:.1} s", silence.as_secs_f64());
            self.lose(slot, Evidence::Heartbeat, Code::Unavailable, detail, out);
        }
        while let Some(slot) = self.losses.expired(now) {
            let detail = format!(
                "its connection to the coordination service ended and did not come back within {:?}",
                self.losses.grace()
            );
            self.lose(slot, Evidence::Connection, Code::Unavailable, detail, out);
            self.losses.leave(slot, out);
        }
        self.barriers.expire(now, &self.members, out);
        self.groups.expire(now, &self.members, out);
        self.members.expire_wait(now, self.config.register_timeout, out);
        self.depart(now, out);
        self.settle(&out[from..]);
    }

    fn deadline(&self) -> Option<Time> {
        let tick = (self.members.connected_count() > 0).then(|| self.awake + self.tick());
        let parts = [
            tick,
            self.heartbeats.deadline(),
            self.losses.deadline(),
            self.barriers.deadline(),
            self.groups.deadline(),
            self.members.deadline(),
            self.departure.deadline(),
        ];
        parts.into_iter().flatten().min()
    }
}
