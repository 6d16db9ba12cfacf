//! An elastic group whose members die, are replaced and come late, under a coordinator that is killed: replayed from a seed.
//!
//! Tasks register, ask for a generation, work, and ask for the next one: when a member is lost, or now and then at a step
//! boundary, with newcomers or without. Answers and words of losses are late by any time; callers give up and ask again.
//!
//! Checked at every answer (R1 to R6 of [`crate::core::coordination::rounds`]):
//! - G1. All members of a generation hear the same table, with each of them once.
//! - G2. No task hears of a generation that is not above the one it was in, nor of one that it is not in.
//! - G3. No generation is outside of the limits.
//! - G4. Members that were carried over come first, in the order of before, and are exactly those of the last generation who
//!   lived as far as the coordinator knew.
//! - G5. At the end, when nobody dies any more, all tasks that run are in one generation, within a bounded time.
//! - G6. Each request has one answer at most, and nothing waits at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ringway_topology::{HostId, Incarnation, TaskId};

use super::Violation;
use super::random::Random;
use crate::core::coordination::errors::Refusal;
use crate::core::coordination::request::{
    Effect, Event, Process, Regroup, Reply, ReplyTo, Request, State, Value,
};
use crate::core::coordination::rounds::{RoundLimits, RoundTable};
use crate::core::coordination::{Coordinator, CoordinatorConfig};
use crate::core::machine::Machine;
use crate::core::time::Time;

const JOB: &str = "worker";
const GROUP: &str = "elastic";
/// The longest delay of a message.
const SLOW: Duration = Duration::from_millis(50);
/// Accidents happen until then.
const ACCIDENTS_END: Time = Time(20_000_000_000);
/// All who run are in one generation this long after the last accident.
const SETTLED: Duration = Duration::from_secs(20);
/// A caller of a round waits so long.
const PATIENCE: Duration = Duration::from_secs(4);
/// Longest work between two rounds.
const WORK: Duration = Duration::from_millis(600);
/// A process that died is started again within this time, or never.
const RESTART: Duration = Duration::from_millis(1500);

/// What happened in a run without a fault of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ElasticReport {
    /// Generations that somebody heard of.
    pub generations: u64,
    /// Members that were carried over, in all of them.
    pub carried: u64,
    /// Processes that died.
    pub deaths: u64,
    /// Rounds that were not made in a caller's time.
    pub overdue: u64,
    /// Coordinators that went on from what was remembered.
    pub restored: u64,
}

#[derive(Debug)]
enum Happening {
    Born(u32),
    Arrive(ReplyTo, Request),
    Answer(ReplyTo, Result<Reply, Refusal>),
    /// A task of this life hears of a loss, and its work is over.
    Loss(u32, u64),
    /// Work of a task in this generation is over.
    Boundary(u32, u64, u64),
    Ask(u32, u64),
    Kill(u32),
    Ended(u32, u64),
    Crash,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Nothing,
    Registering,
    Asking,
    Working,
}

#[derive(Debug)]
struct Task {
    /// Its latest life; 0 before the first.
    life: u64,
    runs: bool,
    doing: Doing,
    generation: u64,
}

struct World {
    random: Random,
    now: Time,
    sequence: u64,
    queue: BTreeMap<(Time, u64), Happening>,
    coordinator: Coordinator,
    config: CoordinatorConfig,
    stored: BTreeMap<String, Value>,
    limits: RoundLimits,
    tasks: Vec<Task>,
    calls: BTreeMap<ReplyTo, (u32, u64)>,
    next_call: u64,
    /// By generation.
    tables: BTreeMap<u64, Arc<RoundTable>>,
    /// Lives that the coordinator knows to be over.
    over: BTreeSet<u64>,
    report: ElasticReport,
}

/// Runs one seed with so many tasks, of which at least `least` make a group.
///
/// # Errors
/// When a check fails: a fault of the coordinator, or of the simulation.
pub fn run_elastic(seed: u64, tasks: u32, least: u32) -> Result<ElasticReport, Violation> {
    let mut world = World::new(seed, tasks, least);
    world.run().map_err(|what| Violation { seed, tasks, time: world.now, what, trace: Vec::new() })?;
    Ok(world.report)
}

fn name(index: u32) -> TaskId {
    TaskId::new(JOB, index).unwrap_or_else(|error| unreachable!("a plain name: {error}"))
}

/// The lives that are members, by rank.
fn lives_in(table: &RoundTable) -> Vec<u64> {
    table.group.members.iter().map(|member| member.process.incarnation.0).collect()
}

impl World {
    fn new(seed: u64, tasks: u32, least: u32) -> World {
        let config = CoordinatorConfig {
            // Deaths are told by the launcher: silence is the other simulation's.
            heartbeat_limit: Duration::from_secs(3600),
            durable: true,
            ..CoordinatorConfig::one_job(JOB, tasks)
        };
        let new = |_| Task { life: 0, runs: false, doing: Doing::Nothing, generation: 0 };
        let mut world = World {
            random: Random::new(seed),
            now: Time::ZERO,
            sequence: 0,
            queue: BTreeMap::new(),
            coordinator: Coordinator::new(config.clone()),
            config,
            stored: BTreeMap::new(),
            limits: RoundLimits { least, most: tasks },
            tasks: (0..tasks).map(new).collect(),
            calls: BTreeMap::new(),
            next_call: 0,
            tables: BTreeMap::new(),
            over: BTreeSet::new(),
            report: ElasticReport::default(),
        };
        for index in 0..tasks {
            let late = if world.random.per_mille(300) { Duration::from_secs(8) } else { SLOW };
            world.soon(late, Happening::Born(index));
        }
        for _ in 0..2 * tasks {
            let at = world.random.span(Duration::ZERO, ACCIDENTS_END.since(Time::ZERO));
            let index = world.random.below(u64::from(tasks)) as u32;
            world.at(Time::ZERO + at, Happening::Kill(index));
        }
        for _ in 0..world.random.below(4) {
            let at = world.random.span(Duration::ZERO, ACCIDENTS_END.since(Time::ZERO));
            world.at(Time::ZERO + at, Happening::Crash);
        }
        world
    }

    fn at(&mut self, at: Time, what: Happening) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), what);
    }

    fn soon(&mut self, most: Duration, what: Happening) {
        let after = self.random.span(Duration::from_micros(10), most);
        self.at(self.now + after, what);
    }

    fn run(&mut self) -> Result<(), String> {
        let end = ACCIDENTS_END + SETTLED;
        loop {
            let timer = self.coordinator.deadline();
            let next = self.queue.keys().next().map(|(at, _)| *at);
            let Some(at) = timer.into_iter().chain(next).min().filter(|at| *at <= end) else { break };
            self.now = at.max(self.now);
            if next.is_none_or(|next| timer.is_some_and(|timer| timer < next)) {
                let mut out = Vec::new();
                self.coordinator.on_time(self.now, &mut out);
                self.carry_out(out)?;
                continue;
            }
            if let Some((_, what)) = self.queue.pop_first() {
                self.happen(what)?;
            }
        }
        self.settled()
    }

    fn happen(&mut self, what: Happening) -> Result<(), String> {
        match what {
            Happening::Born(index) => self.born(index),
            Happening::Arrive(to, request) => {
                return self.tell(Event::Ask { reply: to, from: None, request });
            }
            Happening::Answer(to, result) => return self.answer(to, result),
            Happening::Loss(index, life) => {
                let task = &mut self.tasks[index as usize];
                if task.runs && task.life == life && task.doing == Doing::Working {
                    self.ask(index);
                }
            }
            Happening::Boundary(index, life, generation) => {
                let task = &self.tasks[index as usize];
                let same = task.life == life && task.generation == generation;
                if task.runs && same && task.doing == Doing::Working {
                    self.ask(index);
                }
            }
            Happening::Ask(index, life) => {
                let task = &self.tasks[index as usize];
                if task.runs && task.life == life && task.doing == Doing::Nothing {
                    self.ask(index);
                }
            }
            Happening::Kill(index) => self.kill(index),
            Happening::Ended(index, life) => {
                if self.tasks[index as usize].life == life {
                    let how = "was killed by SIGKILL".to_owned();
                    return self.tell(Event::ProcessEnded { task: name(index), how });
                }
            }
            Happening::Crash => return self.crash(),
        }
        Ok(())
    }

    fn born(&mut self, index: u32) {
        let life = u64::from(index) + 1 + (self.tasks[index as usize].life / 1000 + 1) * 1000;
        self.tasks[index as usize] = Task { life, runs: true, doing: Doing::Registering, generation: 0 };
        self.register(index);
    }

    fn register(&mut self, index: u32) {
        let incarnation = Incarnation(self.tasks[index as usize].life);
        self.send(index, Request::Register { task: name(index), incarnation, silence: None });
    }

    fn send(&mut self, index: u32, request: Request) {
        self.next_call += 1;
        let to = ReplyTo(self.next_call);
        self.calls.insert(to, (index, self.tasks[index as usize].life));
        self.soon(SLOW, Happening::Arrive(to, request));
    }

    fn ask(&mut self, index: u32) {
        let newcomers = self.random.per_mille(800);
        let enough = self.random.below(u64::from(self.limits.most) + 1) as u32;
        let last_call = self.random.span(Duration::ZERO, Duration::from_millis(400));
        let task = &mut self.tasks[index as usize];
        task.doing = Doing::Asking;
        let host: HostId = "node0@boot".parse().unwrap_or_else(|error| unreachable!("a plain host: {error}"));
        let wish = Regroup {
            group: GROUP.to_owned(),
            process: Process { task: name(index), incarnation: Incarnation(task.life), host, pid: index + 1 },
            after: task.generation,
            limits: self.limits,
            enough,
            last_call,
            // In the end newcomers must be let in.
            newcomers: newcomers || self.now > ACCIDENTS_END,
            addresses: task.life.to_le_bytes().to_vec(),
            timeout: Some(PATIENCE),
            hosts_coordinator: false,
            fresh_secret: [index as u8; 32],
        };
        self.send(index, Request::Regroup(Box::new(wish)));
    }

    fn kill(&mut self, index: u32) {
        if !self.tasks[index as usize].runs {
            return;
        }
        self.report.deaths += 1;
        let life = self.tasks[index as usize].life;
        self.tasks[index as usize].runs = false;
        self.soon(SLOW, Happening::Ended(index, life));
        // Some come again before the service knows that they were gone; few never.
        if self.random.per_mille(900) {
            self.soon(RESTART, Happening::Born(index));
        }
    }

    /// The coordinator is killed; another goes on from what was remembered. Who waits asks again.
    fn crash(&mut self) -> Result<(), String> {
        self.report.restored += 1;
        let entries = self.stored.clone();
        self.coordinator = Coordinator::restore(self.config.clone(), entries, self.now)
            .map_err(|error| format!("what was remembered is of no use: {error}"))?;
        self.calls.clear();
        let again = |what: &Happening| !matches!(what, Happening::Arrive(..) | Happening::Answer(..));
        self.queue.retain(|_, what| again(what));
        for index in 0..self.tasks.len() as u32 {
            match self.tasks[index as usize] {
                Task { runs: true, doing: Doing::Registering, .. } => self.register(index),
                Task { runs: true, doing: Doing::Asking, .. } => self.ask(index),
                Task { runs: false, life, .. } if life > 0 => self.soon(SLOW, Happening::Ended(index, life)),
                _ => {}
            }
        }
        Ok(())
    }

    fn tell(&mut self, event: Event) -> Result<(), String> {
        let mut out = Vec::new();
        self.coordinator.on_event(self.now, event, &mut out);
        self.carry_out(out)
    }

    fn carry_out(&mut self, effects: Vec<Effect>) -> Result<(), String> {
        for effect in &effects {
            if let Effect::Remember { writes } = effect {
                for write in writes.clone() {
                    match write.value {
                        Some(value) => drop(self.stored.insert(write.key, value)),
                        None => drop(self.stored.remove(&write.key)),
                    }
                }
            }
        }
        for effect in effects {
            if let Effect::Reply { to, result } = effect {
                if let Ok(Reply::Round(table)) = &result {
                    self.made(table)?;
                }
                self.soon(SLOW, Happening::Answer(to, result));
            }
        }
        self.note_deaths();
        Ok(())
    }

    /// The lives that the coordinator knows to be there.
    fn connected(&self) -> BTreeSet<u64> {
        let overview = self.coordinator.overview(self.now, 0);
        let there = overview.tasks.iter().filter(|view| view.status.state == State::Connected);
        there.map(|view| view.status.incarnation.0).collect()
    }

    /// Lives that the coordinator has come to know to be over: the others hear of it, sooner or later.
    fn note_deaths(&mut self) {
        let lives = self.connected();
        let members = self.tables.values().next_back().map_or_else(Vec::new, |table| lives_in(table));
        let new: Vec<u64> =
            members.into_iter().filter(|life| !lives.contains(life) && !self.over.contains(life)).collect();
        for life in new {
            self.over.insert(life);
            for index in 0..self.tasks.len() as u32 {
                let listener = self.tasks[index as usize].life;
                self.soon(SLOW * 4, Happening::Loss(index, listener));
            }
        }
    }

    /// G1, G3 and G4: a table as the coordinator gives it out.
    fn made(&mut self, table: &Arc<RoundTable>) -> Result<(), String> {
        let members = lives_in(table);
        match self.tables.get(&table.generation) {
            Some(known) if known == table => return Ok(()),
            Some(known) => return Err(format!("G1: {known:?}, and now {table:?}")),
            None => {}
        }
        let latest = self.tables.values().next_back();
        if latest.is_some_and(|latest| latest.generation + 1 != table.generation) {
            return Err(format!("G2: generation {} follows {latest:?}", table.generation));
        }
        let size = members.len() as u32;
        if size < self.limits.least || size > self.limits.most {
            return Err(format!("G3: {size} members, with limits {:?}", self.limits));
        }
        if members.iter().collect::<BTreeSet<_>>().len() != members.len() {
            return Err(format!("G1: a member is there twice: {members:?}"));
        }
        let before = latest.map_or_else(Vec::new, |latest| lives_in(latest));
        let connected = self.connected();
        let live = before.iter().filter(|life| connected.contains(life) && !self.over.contains(life));
        let (carried, newcomers) = members.split_at(table.carried as usize);
        if !carried.iter().eq(live) || newcomers.iter().any(|life| before.contains(life)) {
            return Err(format!(
                "G4: {before:?}, of whom {connected:?} live, became {carried:?} and {newcomers:?}"
            ));
        }
        self.report.generations += 1;
        self.report.carried += carried.len() as u64;
        self.tables.insert(table.generation, table.clone());
        Ok(())
    }

    fn answer(&mut self, to: ReplyTo, result: Result<Reply, Refusal>) -> Result<(), String> {
        let (index, life) = self
            .calls
            .remove(&to)
            .ok_or_else(|| format!("G6: {} has two answers, or was not asked", to.0))?;
        let task = &mut self.tasks[index as usize];
        if !task.runs || task.life != life {
            return Ok(());
        }
        match (task.doing, result) {
            (Doing::Registering, Ok(_)) => {
                task.doing = Doing::Nothing;
                self.soon(SLOW, Happening::Ask(index, life));
            }
            (Doing::Registering, Err(_)) => self.register(index),
            (Doing::Asking, Ok(Reply::Round(table))) => {
                let inside = table.group.members.iter().any(|member| member.process.incarnation.0 == life);
                if table.generation <= task.generation || !inside {
                    return Err(format!("G2: life {life} in {} hears of {table:?}", task.generation));
                }
                (task.doing, task.generation) = (Doing::Working, table.generation);
                let generation = table.generation;
                self.soon(WORK, Happening::Boundary(index, life, generation));
                // A member may be lost before this one has begun to listen.
                if table.group.members.iter().any(|member| self.over.contains(&member.process.incarnation.0))
                {
                    self.soon(SLOW, Happening::Loss(index, life));
                }
            }
            (Doing::Asking, Err(error)) => {
                self.report.overdue += 1;
                task.doing = Doing::Nothing;
                if !error.message.contains("was not made within") {
                    return Err(format!("R6: life {life} of {index} is told {error}"));
                }
                self.soon(SLOW, Happening::Ask(index, life));
            }
            (doing, result) => return Err(format!("an answer while {doing:?}: {result:?}")),
        }
        Ok(())
    }

    /// G5 and G6.
    fn settled(&self) -> Result<(), String> {
        let running: BTreeSet<u64> =
            self.tasks.iter().filter(|task| task.runs).map(|task| task.life).collect();
        if (running.len() as u32) < self.limits.least {
            return Ok(());
        }
        let latest = self.tables.values().next_back().ok_or("G5: no generation was ever made")?;
        let members: BTreeSet<u64> = lives_in(latest).into_iter().collect();
        if members != running {
            return Err(format!("G5: {running:?} run, and generation {} is {members:?}", latest.generation));
        }
        Ok(())
    }
}
