//! Candidates that elect a leader by a store, replayed under seeded chaos: requests and answers are slow or lost,
//! candidates are cut off, stopped, killed and started again, and their clocks run at different speeds.
//!
//! Checked at every instant:
//! - V1. At most one candidate holds itself for the leader (E1 of [`crate::core::election`]).
//! - V2. No write of an earlier term takes effect after a later term has begun.
//! - V3. A candidate leads and steps down by turns (E2).
//! - V4. When nothing goes wrong any more, there is a leader within a bounded time (E4).

use std::collections::BTreeMap;
use std::time::Duration;

use super::random::Random;
use crate::core::election::{Claim, Effect, Election, ElectionTimes, Event, Lease, Term};
use crate::core::machine::Machine;
use crate::core::time::Time;

/// The store's span of a lease.
const SPAN: Duration = Duration::from_secs(2);
/// A request without an answer fails after this time.
const REQUEST_LIMIT: Duration = Duration::from_millis(500);
/// The longest delay of a message, in either direction.
const SLOW: Duration = Duration::from_millis(400);
/// Accidents happen until then.
const ACCIDENTS_END: Time = Time(40_000_000_000);
/// A leader stands this long after the last of them at the latest.
const SETTLED: Duration = Duration::from_secs(12);
/// Clocks differ from the true one by so many parts in a thousand at most.
const DRIFT: u64 = 40;

/// What happened in a run without a fault of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ElectionReport {
    /// Times that a candidate began to lead.
    pub terms: u64,
    /// Times that one said that it leads no more.
    pub step_downs: u64,
    /// Writes of leaders that took effect.
    pub written: u64,
    /// Writes of former leaders that were refused.
    pub fenced: u64,
    /// The longest time in which nobody led.
    pub longest_gap: Duration,
}

/// The store: one leader's key, leases, and the terms of the writes that took effect.
#[derive(Debug, Default)]
struct Store {
    revision: i64,
    leader: Option<(String, Lease, i64)>,
    leases: BTreeMap<Lease, Time>,
    last_written: i64,
}

impl Store {
    fn expire(&mut self, now: Time) {
        let over: Vec<Lease> =
            self.leases.iter().filter(|(_, ends)| **ends <= now).map(|(&lease, _)| lease).collect();
        over.into_iter().for_each(|lease| self.end(lease));
    }

    fn end(&mut self, lease: Lease) {
        self.leases.remove(&lease);
        if self.leader.as_ref().is_some_and(|(_, bound, _)| *bound == lease) {
            self.leader = None;
            self.revision += 1;
        }
    }
}

/// What a candidate asks of the store.
#[derive(Clone, Debug)]
enum Ask {
    Grant,
    Claim(Lease),
    Renew(Lease),
    Revoke(Lease),
    Watch(i64),
    Write(Term),
}

#[derive(Debug)]
enum Happening {
    /// A request of this life of a candidate arrives.
    Arrive(usize, u32, Ask),
    /// An answer arrives.
    Answer(usize, u32, Event),
    Tick(usize, u32),
    /// A leader writes something now and then.
    Act(usize),
    Cut(usize, Duration),
    Stop(usize, Duration),
    Kill(usize),
    Begin(usize),
}

#[derive(Debug)]
struct Candidate {
    machine: Election,
    life: u32,
    alive: bool,
    stopped_until: Time,
    cut_until: Time,
    /// Its clock runs at this many parts in a thousand of the true one.
    speed: u64,
    leading: bool,
}

struct World {
    random: Random,
    now: Time,
    sequence: u64,
    queue: BTreeMap<(Time, u64), Happening>,
    store: Store,
    next_lease: i64,
    /// Watches that wait for the leadership to change after a revision.
    watches: Vec<(usize, u32, i64)>,
    candidates: Vec<Candidate>,
    led_last: Time,
    report: ElectionReport,
}

fn machine() -> Election {
    Election::new(ElectionTimes { retry: Duration::from_millis(200), recheck: Duration::from_secs(3) })
}

impl World {
    fn new(seed: u64, candidates: usize) -> World {
        let mut random = Random::new(seed);
        let fresh = |random: &mut Random| Candidate {
            machine: machine(),
            life: 0,
            alive: false,
            stopped_until: Time::ZERO,
            cut_until: Time::ZERO,
            speed: 1000 - DRIFT + random.below(2 * DRIFT + 1),
            leading: false,
        };
        let all = (0..candidates).map(|_| fresh(&mut random)).collect();
        let mut world = World {
            random,
            now: Time::ZERO,
            sequence: 0,
            queue: BTreeMap::new(),
            store: Store::default(),
            next_lease: 0,
            watches: Vec::new(),
            candidates: all,
            led_last: Time::ZERO,
            report: ElectionReport::default(),
        };
        world.plan(candidates);
        world
    }

    fn plan(&mut self, candidates: usize) {
        let whole = Duration::from_nanos(ACCIDENTS_END.0);
        for who in 0..candidates {
            let at = self.random.span(Duration::ZERO, Duration::from_millis(300));
            self.later(at, Happening::Begin(who));
            for _ in 0..3 {
                let (at, span) =
                    (self.random.span(Duration::ZERO, whole), self.random.span(Duration::ZERO, SPAN * 2));
                self.later(at, Happening::Cut(who, span));
                let (at, span) =
                    (self.random.span(Duration::ZERO, whole), self.random.span(Duration::ZERO, SPAN * 2));
                self.later(at, Happening::Stop(who, span));
                let at = self.random.span(Duration::ZERO, whole);
                self.later(at, Happening::Kill(who));
            }
            for _ in 0..150 {
                let at = self.random.span(Duration::ZERO, whole + SETTLED);
                self.later(at, Happening::Act(who));
            }
        }
    }

    fn later(&mut self, after: Duration, happening: Happening) {
        self.sequence += 1;
        self.queue.insert((self.now + after, self.sequence), happening);
    }

    /// What time it is for a candidate.
    fn clock(&self, who: usize) -> Time {
        Time(self.now.0 / 1000 * self.candidates[who].speed)
    }

    /// When a candidate's clock shows this.
    fn true_time(&self, who: usize, local: Time) -> Time {
        Time((local.0 / self.candidates[who].speed + 1) * 1000)
    }

    fn delay(&mut self) -> Duration {
        if self.now < ACCIDENTS_END && self.random.per_mille(100) {
            self.random.span(Duration::ZERO, SLOW)
        } else {
            self.random.span(Duration::from_micros(100), Duration::from_millis(4))
        }
    }

    fn is_lost(&mut self, who: usize) -> bool {
        self.candidates[who].cut_until > self.now || (self.now < ACCIDENTS_END && self.random.per_mille(30))
    }

    fn ask(&mut self, who: usize, ask: Ask) {
        let life = self.candidates[who].life;
        let failed = |why: &str| match &ask {
            Ask::Grant => Some(Event::Granted(Err(why.to_owned()))),
            Ask::Claim(lease) => Some(Event::Claimed(*lease, Err(why.to_owned()))),
            Ask::Renew(lease) => Some(Event::Renewed(*lease, Err(why.to_owned()))),
            Ask::Revoke(_) | Ask::Watch(_) | Ask::Write(_) => None,
        };
        // The first answer counts, and this one comes last.
        if let Some(event) = failed("no answer") {
            self.later(REQUEST_LIMIT, Happening::Answer(who, life, event));
        }
        if !self.is_lost(who) {
            let after = self.delay();
            self.later(after, Happening::Arrive(who, life, ask));
        }
    }

    fn answer(&mut self, who: usize, life: u32, event: Event) {
        if !self.is_lost(who) {
            let after = self.delay();
            self.later(after, Happening::Answer(who, life, event));
        }
    }

    fn arrive(&mut self, who: usize, life: u32, ask: Ask) -> Result<(), String> {
        match ask {
            Ask::Grant => {
                self.next_lease += 1;
                let lease = Lease(self.next_lease);
                self.store.leases.insert(lease, self.now + SPAN);
                self.answer(who, life, Event::Granted(Ok((lease, SPAN))));
            }
            Ask::Claim(lease) => {
                let claim = match &self.store.leader {
                    Some((name, ..)) => {
                        Ok(Claim::Held { leader: name.clone(), revision: self.store.revision })
                    }
                    None if !self.store.leases.contains_key(&lease) => Err("no such lease".to_owned()),
                    None => {
                        self.store.revision += 1;
                        self.store.leader = Some((who.to_string(), lease, self.store.revision));
                        Ok(Claim::Won { revision: self.store.revision })
                    }
                };
                self.answer(who, life, Event::Claimed(lease, claim));
            }
            Ask::Renew(lease) => {
                let ends = self.now + SPAN;
                let span = self.store.leases.get_mut(&lease).map(|until| {
                    *until = ends;
                    SPAN
                });
                self.answer(who, life, Event::Renewed(lease, Ok(span)));
            }
            Ask::Revoke(lease) => self.store.end(lease),
            Ask::Watch(revision) => self.watches.push((who, life, revision)),
            Ask::Write(term) => {
                let stands = self.store.leader.as_ref().is_some_and(|(_, _, since)| *since == term.revision);
                if !stands {
                    self.report.fenced += 1;
                } else if term.revision < self.store.last_written {
                    return Err(format!(
                        "V2: a write of term {} after {}",
                        term.revision, self.store.last_written
                    ));
                } else {
                    self.store.last_written = term.revision;
                    self.report.written += 1;
                }
            }
        }
        Ok(())
    }

    fn tell_watchers(&mut self) {
        let revision = self.store.revision;
        let (due, waiting) =
            std::mem::take(&mut self.watches).into_iter().partition(|&(.., since)| since < revision);
        self.watches = waiting;
        let due: Vec<(usize, u32, i64)> = due;
        for (who, life, since) in due {
            self.answer(who, life, Event::Changed(since));
        }
    }

    fn feed(&mut self, who: usize, event: Option<Event>) -> Result<(), String> {
        let (now, mut effects) = (self.clock(who), Vec::new());
        match event {
            Some(event) => self.candidates[who].machine.on_event(now, event, &mut effects),
            None => self.candidates[who].machine.on_time(now, &mut effects),
        }
        for effect in effects {
            match effect {
                Effect::Grant => self.ask(who, Ask::Grant),
                Effect::Claim(lease) => self.ask(who, Ask::Claim(lease)),
                Effect::Renew(lease) => self.ask(who, Ask::Renew(lease)),
                Effect::Revoke(lease) => self.ask(who, Ask::Revoke(lease)),
                Effect::Watch(revision) => self.ask(who, Ask::Watch(revision)),
                Effect::Lead(..) => {
                    self.report.terms += 1;
                    if std::mem::replace(&mut self.candidates[who].leading, true) {
                        return Err(format!("V3: {who} leads twice"));
                    }
                }
                Effect::StepDown(_) => {
                    self.report.step_downs += 1;
                    if !std::mem::replace(&mut self.candidates[who].leading, false) {
                        return Err(format!("V3: {who} steps down and did not lead"));
                    }
                }
                Effect::Until(_) | Effect::Follow(_) | Effect::Retired => {}
            }
        }
        if let Some(deadline) = self.candidates[who].machine.deadline() {
            let at = self.true_time(who, deadline).max(self.now);
            let life = self.candidates[who].life;
            self.later(at.since(self.now), Happening::Tick(who, life));
        }
        Ok(())
    }

    /// Puts off what happens to a candidate that is stopped; `None` when that life of it is over.
    fn awake(&mut self, who: usize, life: u32) -> Option<bool> {
        let candidate = &self.candidates[who];
        (candidate.alive && candidate.life == life).then_some(candidate.stopped_until <= self.now)
    }

    fn happen(&mut self, happening: Happening) -> Result<(), String> {
        match happening {
            Happening::Arrive(who, life, ask) => self.arrive(who, life, ask),
            Happening::Answer(who, life, event) => match self.awake(who, life) {
                Some(true) => self.feed(who, Some(event)),
                Some(false) => {
                    let wait = self.candidates[who].stopped_until.since(self.now);
                    self.later(wait, Happening::Answer(who, life, event));
                    Ok(())
                }
                None => Ok(()),
            },
            Happening::Tick(who, life) => match self.awake(who, life) {
                // Of several ticks for one deadline the first has done it.
                Some(true)
                    if self.candidates[who].machine.deadline().is_some_and(|at| at <= self.clock(who)) =>
                {
                    self.feed(who, None)
                }
                Some(false) => {
                    let wait = self.candidates[who].stopped_until.since(self.now);
                    self.later(wait, Happening::Tick(who, life));
                    Ok(())
                }
                _ => Ok(()),
            },
            Happening::Act(who) => {
                let candidate = &self.candidates[who];
                if candidate.alive
                    && candidate.stopped_until <= self.now
                    && let Some(term) = candidate.machine.leads(self.clock(who))
                {
                    self.ask(who, Ask::Write(term));
                }
                Ok(())
            }
            Happening::Cut(who, span) => {
                self.candidates[who].cut_until = self.now + span;
                Ok(())
            }
            Happening::Stop(who, span) => {
                self.candidates[who].stopped_until = self.now + span;
                Ok(())
            }
            Happening::Kill(who) => {
                if std::mem::replace(&mut self.candidates[who].alive, false) {
                    let after = self.random.span(Duration::ZERO, SPAN * 2);
                    self.later(after, Happening::Begin(who));
                }
                Ok(())
            }
            Happening::Begin(who) => {
                let candidate = &mut self.candidates[who];
                candidate.machine = machine();
                (candidate.alive, candidate.leading) = (true, false);
                candidate.life += 1;
                self.feed(who, Some(Event::Start))
            }
        }
    }

    fn leaders(&self) -> Vec<usize> {
        let all = self.candidates.iter().enumerate();
        let leads = |who: usize, candidate: &Candidate| {
            candidate.alive && candidate.machine.leads(self.clock(who)).is_some()
        };
        all.filter(|(who, candidate)| leads(*who, candidate)).map(|(who, _)| who).collect()
    }

    fn run(mut self) -> Result<ElectionReport, String> {
        let horizon = ACCIDENTS_END + SETTLED + SPAN * 2;
        while let Some(((at, _), happening)) = self.queue.pop_first() {
            if at > horizon {
                break;
            }
            self.now = at;
            self.store.expire(at);
            self.happen(happening)?;
            self.tell_watchers();
            let leaders = self.leaders();
            match leaders.as_slice() {
                [] if at > ACCIDENTS_END + SETTLED => return Err(format!("V4: nobody leads at {at}")),
                [] => self.report.longest_gap = self.report.longest_gap.max(at.since(self.led_last)),
                [_] => self.led_last = at,
                several => return Err(format!("V1: {several:?} lead at {at}")),
            }
        }
        Ok(self.report)
    }
}

/// Runs one seed with so many candidates.
///
/// # Errors
/// When a check fails: which, and what was seen.
pub fn run_election(seed: u64, candidates: usize) -> Result<ElectionReport, String> {
    World::new(seed, candidates).run()
}
