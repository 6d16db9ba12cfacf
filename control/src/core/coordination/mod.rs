//! The coordination service: who is in the cluster, who is alive, barriers, a key-value store, groups, and the
//! announcement of losses.
//!
//! [`Coordinator`] is one machine. Its parts are one file each and know nothing of each other; what one has to say
//! to another (a task that is lost ends barriers, groups, waits) is said here and in `lives`.
//!
//! - C1. Every request is answered exactly once, or its caller goes ([`Event::Gone`]) before.
//! - C2. A call that waits ends: by its own deadline, by the loss of what it waits for, or by its caller's going.
//! - C3. A task that is silent for the heartbeat limit is announced as lost within one tick more.
//! - C4. A late message that says which life of a task it is of changes nothing once that life was replaced, whatever it
//!   asks. A life that was never registered cannot be known to be older.
//! - C5. Silence counts only while the coordinator itself runs: when it was stopped, nobody else is blamed.

pub mod errors;
pub mod groups;
pub mod losses;
pub mod memory;
pub mod overview;
pub mod preemption;
pub mod request;
pub mod rounds;
pub mod waits;

mod alive;
mod barrier;
mod config;
mod departure;
mod gathering;
mod heartbeat;
mod kv;
mod lives;
mod membership;
mod once;
mod regroup;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ringway_topology::{Incarnation, TaskId};

use self::alive::AliveRounds;
use self::barrier::{Barriers, Call, Key};
pub use self::config::{BARRIER_TIMEOUT_LIMIT, CoordinatorConfig, Limits};
use self::departure::Departure;
use self::errors::{Code, ErrorFeed, Refusal, list};
use self::gathering::Gathering;
use self::groups::{Entry, Groups};
use self::heartbeat::Heartbeats;
use self::kv::Store;
use self::losses::{Evidence, Losses};
use self::membership::{Membership, Slot};
use self::memory::Remembered;
pub use self::once::ANSWERS_LIMIT;
use self::once::Once;
use self::request::{
    BarrierCall, CallId, Device, Effect, Event, Join, Life, Process, Reply, ReplyTo, Request, State, WatchId,
};
use self::rounds::Rounds;
use super::machine::Machine;
use super::time::Time;

/// What is remembered of a member of a group besides its addresses: its task, host and numbers, in bytes.
const MEMBER_BYTES: usize = 128;

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
    Gathering(Slot),
    Everyone,
    Key(String),
    Barrier(Key),
    Alive(Arc<[Slot]>),
    Poll,
    Job(String),
    Group(String),
    Round(String),
    Departure(Slot),
}

/// A caller that waits.
#[derive(Debug)]
struct Caller {
    held: Held,
    since: Time,
    /// Its task, if it said so.
    of: Option<Slot>,
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
    rounds: Rounds,
    losses: Losses,
    departure: Departure,
    gathering: Gathering,
    once: Once,
    remembered: Remembered,
    held: BTreeMap<ReplyTo, Caller>,
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
            rounds: Rounds::new(limits.groups),
            losses: Losses::new(config.reconnect_grace),
            departure: Departure::new(config.shutdown_timeout),
            gathering: Gathering::new(config.register_timeout),
            once: Once::default(),
            remembered: Remembered::default(),
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
        self.barriers.tick(now);
    }

    fn ask(&mut self, now: Time, to: ReplyTo, from: Option<Life>, request: Request, out: &mut Vec<Effect>) {
        let source = from.as_ref().and_then(|life| life.task.as_ref()).or(request.source());
        let of = source.and_then(|task| self.members.slot(task).ok());
        let of = of.or_else(|| from.as_ref().and_then(|life| self.members.life(life.incarnation)));
        let answer = if self.stopped {
            Answer::Now(Err(stopping()))
        } else if request.may_wait() && self.held.len() >= self.config.limits.waiting {
            let message = format!("{} callers wait already, the limit: try again later", self.held.len());
            Answer::Now(Err(Refusal::new(Code::ResourceExhausted, message)))
        } else {
            let current = from.as_ref().zip(of);
            let current =
                current.map_or(Ok(()), |(life, slot)| self.members.not_replaced(slot, life.incarnation));
            let answer = current.and_then(|()| self.dispatch(now, to, request, out));
            answer.unwrap_or_else(|error| Answer::Now(Err(error)))
        };
        match answer {
            Answer::Now(result) => out.push(Effect::Reply { to, result }),
            Answer::Held(held) => {
                self.held.insert(to, Caller { held, since: now, of });
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
            Request::Register { task, incarnation, silence } => {
                self.register(now, &task, incarnation, silence, out)
            }
            Request::RegisterTogether { task, incarnation, silence } => {
                return self.register_together(now, &task, (incarnation, silence), to, out);
            }
            Request::Heartbeat { task, incarnation } => self.heartbeat(now, &task, incarnation),
            Request::WaitForAll { task, devices } => {
                let slot = self.connected(&task)?;
                self.can_remember(&"the devices of a task", devices.iter().map(Device::bytes).sum())?;
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
                self.name_fits("barrier", &id)?;
                self.barriers.cancel(Key { id: id.into(), counter }, &source, out)
            }
            Request::AliveTasks { source, tasks } => return self.alive_tasks(&source, &tasks, to, out),
            Request::PollForError { task } => return self.poll_for_error(&task, to),
            Request::Join(join) => return self.join(now, *join, to, out),
            Request::Regroup(wish) => return self.regroup(now, *wish, to, out),
            Request::ReportLoss { reporter, incarnation, lost, seen, detail } => {
                let reporter = self.members.slot(&reporter)?;
                self.members.connected_as(reporter, incarnation)?;
                self.report_loss(reporter, &lost, seen, detail, out)
            }
            Request::Blame { reporter, incarnation, cause } => {
                let slot = self.members.slot(&reporter)?;
                self.members.connected_as(slot, incarnation)?;
                self.members.slot(&cause)?;
                out.push(Effect::Blamed { reporter, cause });
                Ok(Reply::Done)
            }
            Request::Overview { names } => Ok(Reply::Overview(Box::new(self.overview(now, names)))),
            Request::Survey { survey, flight } => Ok(Reply::Surveyed(self.survey(survey, flight, out))),
            Request::Waits { names } => Ok(Reply::Waits { waits: self.waits(names), now }),
            Request::Once { call, request } => return self.ask_once(now, to, &call, *request, out),
            Request::Watch { watch, process, since_epoch } => self.watch(watch, process, since_epoch, out),
        };
        Ok(Answer::Now(result))
    }

    /// A request that changes something: it takes effect once, however often it is asked.
    fn ask_once(
        &mut self,
        now: Time,
        to: ReplyTo,
        call: &CallId,
        request: Request,
        out: &mut Vec<Effect>,
    ) -> Result<Answer, Refusal> {
        let slot = self.members.slot(&call.task)?;
        self.members.connected_as(slot, call.incarnation)?;
        if let Some(reply) = self.once.before(slot, call, &request)? {
            return Ok(Answer::Now(Ok(reply)));
        }
        if !matches!(request, Request::Insert { .. } | Request::Increment { .. } | Request::Delete { .. }) {
            let message = "only requests that change a key are numbered: ask without a number";
            return Err(Refusal::new(Code::InvalidArgument, message));
        }
        let answer = self.dispatch(now, to, request, out)?;
        if let Answer::Now(Ok(reply)) = &answer {
            self.once.keep(slot, call, reply);
        }
        Ok(answer)
    }

    fn barrier(
        &mut self,
        now: Time,
        call: BarrierCall,
        to: ReplyTo,
        out: &mut Vec<Effect>,
    ) -> Result<Answer, Refusal> {
        let BarrierCall { id, counter, counted, timeout, tasks, source } = call;
        let source = self.connected(&source)?;
        self.name_fits("barrier", &id)?;
        if timeout.is_zero() || timeout > BARRIER_TIMEOUT_LIMIT {
            let message = format!(
                "barrier {id:?} with a timeout of {timeout:?}: give one above 0 and at most {BARRIER_TIMEOUT_LIMIT:?}"
            );
            return Err(Refusal::new(Code::InvalidArgument, message));
        }
        let mut key = Key { id: id.into(), counter };
        if counted {
            let began = self.members.get(source).began;
            match self.barriers.instance(key, began, out) {
                Ok(instance) => key = instance,
                Err(error) => return Ok(Answer::Now(Err(error))),
            }
        }
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

    /// Whether what is to be remembered fits where it is remembered, if it is.
    fn can_remember(&self, what: &dyn std::fmt::Display, bytes: usize) -> Result<(), Refusal> {
        let limit = self.config.limits.value_bytes;
        if !self.config.durable || bytes <= limit {
            return Ok(());
        }
        let message = format!(
            "{what} takes {bytes} bytes, and the store of this service takes {limit} under one key: keep the state in a file"
        );
        Err(Refusal::new(Code::ResourceExhausted, message))
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
        let slot = self.members.slot(task)?;
        let member = self.members.get(slot);
        if member.state == State::Disconnected && member.incarnation != Incarnation::default() {
            // Its call was on the way when it left.
            return Err(Refusal::new(Code::Cancelled, "the task has left the cluster"));
        }
        self.members.connected_as(slot, member.incarnation)?;
        if let Some((lost, error)) = self.members.first_error(&self.members.everyone()) {
            return Err(self.named(lost, &error));
        }
        self.losses.clear(slot);
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
        let whole = (join.addresses.len() + MEMBER_BYTES).saturating_mul(join.size as usize);
        self.can_remember(&format_args!("group {:?} of {} members", join.group, join.size), whole)?;
        self.members.runs_as(slot, join.process.clone());
        let timeout = join.timeout.unwrap_or(self.config.join_timeout).min(BARRIER_TIMEOUT_LIMIT);
        let (answer, ranks) = self.groups.enter(now, Entry { slot, join, timeout, to }, self.epoch + 1, out);
        if let Some(ranks) = ranks {
            self.epoch += 1;
            for (slot, rank) in ranks.0 {
                if self.members.get(slot).rank.is_none() {
                    self.members.get_mut(slot).rank = Some(rank);
                }
            }
        }
        self.groups.abandon(&self.members, out);
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
        self.members.runs_as(slot, process);
        self.losses.open(watch, slot, since_epoch, out);
        Ok(Reply::Done)
    }

    fn gone(&mut self, now: Time, reply: ReplyTo) {
        match self.held.remove(&reply).map(|caller| caller.held) {
            None => {}
            Some(Held::Gathering(slot)) => self.gathering.forget(slot, reply),
            Some(Held::Everyone) => self.members.forget_wait(reply),
            Some(Held::Key(path)) => self.store.forget(&path, reply),
            Some(Held::Barrier(key)) => self.barriers.forget(&key, reply),
            Some(Held::Alive(tasks)) => self.alive.forget(&tasks, reply),
            Some(Held::Poll) => {
                if let Some(slot) = self.feed.forget(reply) {
                    self.losses.suspect(slot, now);
                }
            }
            Some(Held::Job(job)) => self.members.forget_watcher(&job, reply),
            Some(Held::Group(name)) => self.groups.forget(&name, reply),
            Some(Held::Round(name)) => self.rounds.forget(&name, reply),
            Some(Held::Departure(slot)) => self.departure.forget(slot, reply),
        }
    }

    /// The machine of the service is about to be taken away: whoever waits for that word has it.
    fn preempted(&mut self, when: String, out: &mut Vec<Effect>) {
        for key in [preemption::NOTICE_KEY, preemption::TENSORFLOW_KEY] {
            // The first notice stands, and a store that is full has other troubles.
            let _ = self.store.insert(key, when.clone().into_bytes(), false, out);
        }
    }

    /// The service ends: everybody who waits is told.
    fn stop(&mut self, out: &mut Vec<Effect>) {
        self.stopped = true;
        let error = stopping();
        self.losses.stop(out);
        self.members.stop(&error, out);
        self.gathering.stop(&error, out);
        self.barriers.stop(&error, out);
        self.store.stop(&error, out);
        self.alive.stop(&error, out);
        self.feed.tell_all(&error, out);
        self.groups.stop(&error, out);
        self.rounds.stop(&error, out);
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
            Event::Ask { reply, from, request } => self.ask(now, reply, from, request, out),
            Event::Gone { reply } => self.gone(now, reply),
            Event::WatchBroken { watch } => self.losses.broken(watch, now),
            Event::ProcessEnded { task, how } => self.process_ended(&task, how, out),
            Event::Preempted { when } => self.preempted(when, out),
            Event::Stop => self.stop(out),
        }
        self.depart(now, out);
        self.close_rounds(now, out);
        self.settle(&out[from..]);
        self.remember(from, out);
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
        self.rounds.expire(now, &self.members, out);
        self.members.expire_wait(now, self.config.register_timeout, out);
        self.gathering.expire(now, &self.members, out);
        self.depart(now, out);
        self.close_rounds(now, out);
        self.settle(&out[from..]);
        self.remember(from, out);
    }

    fn deadline(&self) -> Option<Time> {
        let tick = (self.members.connected_count() > 0).then(|| self.awake + self.tick());
        let parts = [
            tick,
            self.heartbeats.deadline(),
            self.losses.deadline(),
            self.barriers.deadline(),
            self.groups.deadline(),
            self.rounds.deadline(),
            self.members.deadline(),
            self.departure.deadline(),
            self.gathering.deadline(),
        ];
        parts.into_iter().flatten().min()
    }
}
