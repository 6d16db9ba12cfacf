//! Which tasks there are, and how each of them is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ringway_topology::{Incarnation, TaskId};

use super::errors::{Code, Refusal, list};
use super::request::{Device, Effect, Process, Reply, ReplyTo, State, TaskStatus};
use crate::core::time::Time;

mod stored;

/// Earlier lives of a task that are remembered.
const PAST_LIVES_LIMIT: usize = 16;

/// A task of the cluster, by its position in the list of all tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Slot(pub(super) u32);

/// What is known of a task.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) task: TaskId,
    pub(super) state: State,
    pub(super) incarnation: Incarnation,
    /// When that life was connected.
    pub(super) began: Time,
    /// Earlier lives, the latest last, so that what they still have under way is recognised.
    pub(super) past: VecDeque<Incarnation>,
    pub(super) error: Option<Refusal>,
    /// Where it runs, once it has said so.
    pub(super) process: Option<Process>,
    /// Its rank in the first group that it entered.
    pub(super) rank: Option<u32>,
    /// How long it may be silent, if it has a limit of its own.
    pub(super) silence: Option<Duration>,
    devices: Option<Vec<Device>>,
}

/// A job: which slots are its tasks, and how often one of them changed.
#[derive(Debug)]
struct Job {
    first: u32,
    tasks: u32,
    /// Starts at 1, so that 0 asks for an answer at once.
    version: i64,
    watchers: Vec<ReplyTo>,
}

/// The list of all tasks. It is fixed when the service starts.
#[derive(Debug)]
pub(super) struct Membership {
    members: Vec<Member>,
    jobs: BTreeMap<String, Job>,
    connected: u32,
    /// The tasks in error.
    failed: BTreeSet<Slot>,
    /// The tasks that will not come any more as they are, and why; a new life of one takes it off.
    gone: BTreeMap<Slot, String>,
    everyone: Arc<[Slot]>,
    /// The latest life of each task, and its earlier ones.
    lives: BTreeMap<Incarnation, Slot>,
    /// Tasks whose devices are known.
    known: usize,
    waiting: Vec<ReplyTo>,
    wait_deadline: Option<Time>,
    changed: Changed,
}

/// What is not remembered as it is.
#[derive(Debug, Default)]
struct Changed {
    slots: BTreeSet<Slot>,
    jobs: BTreeSet<String>,
}

impl Membership {
    /// All tasks of these jobs, none connected. A job that is named twice gets the larger count.
    pub(super) fn new(jobs: &[(String, u32)]) -> Self {
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        for (name, tasks) in jobs {
            let count = counts.entry(name.clone()).or_default();
            *count = (*count).max(*tasks);
        }
        let (mut members, mut table) = (Vec::new(), BTreeMap::new());
        for (name, tasks) in counts {
            let first = members.len() as u32;
            let named = (0..tasks).filter_map(|index| TaskId::new(name.clone(), index).ok());
            members.extend(named.map(Member::unseen));
            let tasks = members.len() as u32 - first;
            table.insert(name, Job { first, tasks, version: 1, watchers: Vec::new() });
        }
        let everyone = (0..members.len() as u32).map(Slot).collect();
        Membership {
            members,
            jobs: table,
            connected: 0,
            failed: BTreeSet::new(),
            gone: BTreeMap::new(),
            everyone,
            lives: BTreeMap::new(),
            known: 0,
            waiting: Vec::new(),
            wait_deadline: None,
            changed: Changed::default(),
        }
    }

    /// The task's slot.
    pub(super) fn slot(&self, task: &TaskId) -> Result<Slot, Refusal> {
        let job = self.jobs.get(task.job()).filter(|job| task.index() < job.tasks);
        job.map(|job| Slot(job.first + task.index())).ok_or_else(|| {
            let jobs = self.jobs.iter().map(|(name, job)| format!("{name} with {} tasks", job.tasks));
            let message = format!(
                "{task} is not in the cluster, which has job {}: give the coordinator and its tasks the same cluster",
                list(jobs)
            );
            Refusal::new(Code::InvalidArgument, message)
        })
    }

    /// The task's slot, if it is connected as this incarnation.
    pub(super) fn live(&self, process: &Process) -> Result<Slot, Refusal> {
        let slot = self.slot(&process.task)?;
        self.connected_as(slot, process.incarnation)?;
        Ok(slot)
    }

    /// Whether the task is connected as this incarnation.
    pub(super) fn connected_as(&self, slot: Slot, incarnation: Incarnation) -> Result<(), Refusal> {
        let member = self.get(slot);
        match member.state {
            State::Connected if member.incarnation == incarnation => Ok(()),
            State::Connected => Err(Refusal::new(
                Code::Aborted,
                format!(
                    "{} is connected as incarnation {}, not {incarnation}: the caller was replaced and must end",
                    member.task, member.incarnation
                ),
            )),
            State::Error => Err(member
                .error
                .clone()
                .unwrap_or_else(|| Refusal::new(Code::Aborted, format!("{} is in error", member.task)))),
            State::Disconnected => Err(Refusal::new(
                Code::FailedPrecondition,
                format!("{} is not registered: register it first", member.task),
            )),
        }
    }

    /// Whether the task is connected.
    pub(super) fn is_connected(&self, slot: Slot) -> bool {
        self.get(slot).state == State::Connected
    }

    /// Whose life this is, of those that are remembered.
    pub(super) fn life(&self, incarnation: Incarnation) -> Option<Slot> {
        self.lives.get(&incarnation).copied()
    }

    /// Refuses a life of a task in whose place there is another (C4).
    pub(super) fn not_replaced(&self, slot: Slot, incarnation: Incarnation) -> Result<(), Refusal> {
        let member = self.get(slot);
        let other = member.state == State::Connected && member.incarnation != incarnation;
        if !other && !member.past.contains(&incarnation) {
            return Ok(());
        }
        let message = format!(
            "incarnation {} of {} was replaced by {}: this process must end",
            incarnation, member.task, member.incarnation
        );
        Err(Refusal::new(Code::Aborted, message))
    }

    /// What is known of the task.
    pub(super) fn get(&self, slot: Slot) -> &Member {
        &self.members[slot.0 as usize]
    }

    /// What is known of the task, to be changed.
    pub(super) fn get_mut(&mut self, slot: Slot) -> &mut Member {
        self.changed.slots.insert(slot);
        &mut self.members[slot.0 as usize]
    }

    /// Where the task runs.
    pub(super) fn runs_as(&mut self, slot: Slot, process: Process) {
        if self.get(slot).process.as_ref() != Some(&process) {
            self.get_mut(slot).process = Some(process);
        }
    }

    /// How long the task may be silent, if it has a limit of its own.
    pub(super) fn bears(&mut self, slot: Slot, silence: Option<Duration>) {
        if self.get(slot).silence != silence {
            self.get_mut(slot).silence = silence;
        }
    }

    /// The task's name.
    pub(super) fn name(&self, slot: Slot) -> &TaskId {
        &self.get(slot).task
    }

    /// All tasks, in order.
    pub(super) fn everyone(&self) -> Arc<[Slot]> {
        self.everyone.clone()
    }

    /// Connected tasks, in order.
    pub(super) fn connected(&self) -> impl Iterator<Item = Slot> + '_ {
        self.everyone.iter().copied().filter(|&slot| self.is_connected(slot))
    }

    /// How many tasks are connected.
    pub(super) fn connected_count(&self) -> u32 {
        self.connected
    }

    /// The first task in error among these, which are in order, and its error.
    pub(super) fn first_error(&self, slots: &[Slot]) -> Option<(Slot, Refusal)> {
        let slot = self.failed.iter().copied().find(|slot| slots.binary_search(slot).is_ok())?;
        self.get(slot).error.clone().map(|error| (slot, error))
    }

    /// A task will not come any more as it is. The first reason stays.
    pub(super) fn give_up(&mut self, slot: Slot, why: impl Into<String>) {
        self.changed.slots.insert(slot);
        self.gone.entry(slot).or_insert_with(|| why.into());
    }

    /// The tasks that will not come any more, with the reasons.
    pub(super) fn gone(&self) -> impl ExactSizeIterator<Item = (&TaskId, &str)> {
        self.gone.iter().map(|(&slot, why)| (self.name(slot), why.as_str()))
    }

    /// Changes the state of a task and tells those who watch its job.
    pub(super) fn set_state(
        &mut self,
        slot: Slot,
        state: State,
        error: Option<Refusal>,
        out: &mut Vec<Effect>,
    ) {
        self.changed.slots.insert(slot);
        let member = &mut self.members[slot.0 as usize];
        let before = std::mem::replace(&mut member.state, state);
        member.error = error;
        if state == State::Error {
            self.failed.insert(slot);
        } else {
            self.failed.remove(&slot);
        }
        if state != State::Connected && member.devices.take().is_some() {
            self.known -= 1;
        }
        self.connected -= u32::from(before == State::Connected);
        self.connected += u32::from(state == State::Connected);
        if before != state {
            out.push(Effect::Connected { tasks: self.connected });
        }
        let name = self.members[slot.0 as usize].task.job().to_owned();
        let watchers = self.jobs.get_mut(&name).map_or_else(Vec::new, |job| {
            job.version += 1;
            std::mem::take(&mut job.watchers)
        });
        for to in watchers {
            out.push(Effect::Reply { to, result: self.job_states(&name) });
        }
        self.changed.jobs.insert(name);
    }

    /// A task begins a life.
    pub(super) fn connect(&mut self, now: Time, slot: Slot, incarnation: Incarnation, out: &mut Vec<Effect>) {
        self.gone.remove(&slot);
        self.changed.slots.insert(slot);
        self.lives.insert(incarnation, slot);
        let member = &mut self.members[slot.0 as usize];
        member.began = now;
        let before = std::mem::replace(&mut member.incarnation, incarnation);
        if before != incarnation && before != Incarnation::default() {
            member.past.push_back(before);
            if member.past.len() > PAST_LIVES_LIMIT
                && let Some(oldest) = member.past.pop_front()
            {
                self.lives.remove(&oldest);
            }
        }
        member.process = None;
        member.rank = None;
        self.set_state(slot, State::Connected, None, out);
    }

    /// How a task is.
    pub(super) fn status(&self, slot: Slot) -> TaskStatus {
        let member = self.get(slot);
        TaskStatus {
            task: member.task.clone(),
            state: member.state,
            incarnation: member.incarnation,
            error: member.error.clone(),
        }
    }

    /// How the tasks of a job are; `None` while its version is not above `version`, and `to` waits.
    pub(super) fn watch_job(
        &mut self,
        job: &str,
        version: i64,
        to: ReplyTo,
    ) -> Option<Result<Reply, Refusal>> {
        match self.jobs.get_mut(job) {
            Some(found) if version >= found.version => {
                found.watchers.push(to);
                None
            }
            _ => Some(self.job_states(job)),
        }
    }

    fn job_states(&self, name: &str) -> Result<Reply, Refusal> {
        let job = self.jobs.get(name).ok_or_else(|| {
            let jobs = list(self.jobs.keys());
            Refusal::new(Code::InvalidArgument, format!("no job is called {name:?}; there are {jobs}"))
        })?;
        let states = (job.first..job.first + job.tasks).map(|slot| self.status(Slot(slot))).collect();
        Ok(Reply::Job { states, version: job.version })
    }

    /// The task's devices are known now. All who wait are answered once those of all tasks are known.
    pub(super) fn wait_for_all(
        &mut self,
        slot: Slot,
        devices: Vec<Device>,
        to: ReplyTo,
        deadline: Time,
        out: &mut Vec<Effect>,
    ) {
        self.waiting.push(to);
        self.wait_deadline.get_or_insert(deadline);
        self.devices(slot, devices, out);
    }

    /// The task's devices are known now.
    pub(super) fn devices(&mut self, slot: Slot, devices: Vec<Device>, out: &mut Vec<Effect>) {
        self.known += usize::from(self.get(slot).devices.is_none());
        self.get_mut(slot).devices = Some(devices);
        if self.known == self.members.len() && !self.waiting.is_empty() {
            let all = self.members.iter().flat_map(|member| member.devices.iter().flatten().cloned());
            let devices = Arc::new(all.collect::<Vec<_>>());
            self.end_wait(Ok(Reply::Devices(devices)), out);
        }
    }

    /// Tasks whose devices are not known, in order.
    pub(super) fn without_devices(&self) -> impl Iterator<Item = Slot> + '_ {
        self.everyone.iter().copied().filter(|&slot| self.get(slot).devices.is_none())
    }

    /// Sends everybody away, since the service ends.
    pub(super) fn stop(&mut self, error: &Refusal, out: &mut Vec<Effect>) {
        self.fail_wait(error, out);
        for to in self.jobs.values_mut().flat_map(|job| job.watchers.drain(..)) {
            out.push(Effect::Reply { to, result: Err(error.clone()) });
        }
    }

    /// A task failed, or left: those who wait for all tasks are told.
    pub(super) fn fail_wait(&mut self, error: &Refusal, out: &mut Vec<Effect>) {
        self.end_wait(Err(error.clone()), out);
    }

    /// Those who wait for all tasks are told who is missing, if their time is over.
    pub(super) fn expire_wait(&mut self, now: Time, timeout: Duration, out: &mut Vec<Effect>) {
        if self.wait_deadline.is_some_and(|deadline| deadline <= now) {
            let missing = self.members.iter().filter(|member| member.devices.is_none());
            let count = missing.clone().count();
            let message = format!(
                "{count} of {} tasks did not come within {timeout:?}: {}; start them, or look at their logs",
                self.members.len(),
                list(missing.map(|member| &member.task))
            );
            self.end_wait(Err(Refusal::new(Code::DeadlineExceeded, message)), out);
        }
    }

    fn end_wait(&mut self, result: Result<Reply, Refusal>, out: &mut Vec<Effect>) {
        self.wait_deadline = None;
        for to in self.waiting.drain(..) {
            out.push(Effect::Reply { to, result: result.clone() });
        }
    }

    /// When the wait for all tasks ends.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.wait_deadline
    }

    /// A caller that waited for all tasks has gone.
    pub(super) fn forget_wait(&mut self, to: ReplyTo) {
        self.waiting.retain(|&waiting| waiting != to);
    }

    /// A caller that watched a job has gone.
    pub(super) fn forget_watcher(&mut self, job: &str, to: ReplyTo) {
        if let Some(job) = self.jobs.get_mut(job) {
            job.watchers.retain(|&watching| watching != to);
        }
    }
}

impl Member {
    fn unseen(task: TaskId) -> Member {
        Member {
            task,
            state: State::Disconnected,
            incarnation: Incarnation::default(),
            began: Time::ZERO,
            past: VecDeque::new(),
            error: None,
            process: None,
            rank: None,
            silence: None,
            devices: None,
        }
    }
}
