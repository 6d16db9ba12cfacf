//! The agent as a machine. Invariants are those of its module's docs.

use std::sync::Arc;
use std::time::Duration;

use ringway_control::core::agent::{Agent, AgentTimes, Effect, Event, Failure, Outage};
use ringway_control::core::coordination::errors::{Code, Refusal};
use ringway_control::core::coordination::losses::{Evidence, Loss};
use ringway_control::core::coordination::request::Notice;
use ringway_control::core::machine::Machine;
use ringway_control::core::time::Time;
use ringway_topology::{Incarnation, TaskId};

struct Bench {
    agent: Agent,
    now: Time,
}

impl Bench {
    fn new() -> Bench {
        let times = AgentTimes {
            heartbeat_every: Duration::from_secs(2),
            silence_limit: Duration::from_secs(8),
            reconnect_grace: Duration::from_millis(400),
            register_timeout: Duration::from_secs(5),
        };
        Bench { agent: Agent::new(times), now: Time::ZERO }
    }

    /// Registered, with a stream.
    fn ready() -> Bench {
        let mut bench = Bench::new();
        assert_eq!(bench.event(Event::Start), [Effect::Register]);
        assert_eq!(bench.event(Event::Registered(Ok(()))), [Effect::OpenWatch { since_epoch: 0 }]);
        assert_eq!(bench.event(Event::WatchOpened), [Effect::Ready]);
        bench
    }

    fn event(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.agent.on_event(self.now, event, &mut effects);
        effects
    }

    /// Lets time pass as the driver would; `answer` says what becomes of each effect.
    fn pass(&mut self, span: Duration, answer: impl Fn(&Effect) -> Option<Event>) -> Vec<Effect> {
        let end = self.now + span;
        let mut all = Vec::new();
        while let Some(due) = self.agent.deadline().filter(|&due| due <= end) {
            self.now = self.now.max(due);
            let mut effects = Vec::new();
            self.agent.on_time(self.now, &mut effects);
            while !effects.is_empty() {
                let answers: Vec<Event> = effects.iter().filter_map(&answer).collect();
                all.append(&mut effects);
                answers.into_iter().for_each(|event| effects.extend(self.event(event)));
            }
        }
        self.now = end;
        all
    }
}

fn unreachable() -> Failure {
    Failure::Unreachable("connection refused".to_owned())
}

fn refused(code: Code) -> Failure {
    Failure::Refused(Refusal::new(code, "no"))
}

fn loss(index: u32, epoch: u64) -> Event {
    Event::Noticed(Notice::Loss(Arc::new(Loss {
        task: TaskId::new("worker", index).unwrap(),
        incarnation: Incarnation(1),
        host: None,
        pid: None,
        rank: Some(index),
        evidence: Evidence::Heartbeat,
        detail: "no heartbeat for 8.0 s".to_owned(),
        epoch,
    })))
}

fn beat_is_answered(effect: &Effect) -> Option<Event> {
    (*effect == Effect::Beat).then_some(Event::Beaten(Ok(())))
}

#[test]
fn it_tries_to_register_until_its_deadline() {
    for passing in [unreachable(), refused(Code::Aborted), refused(Code::Unavailable)] {
        let mut bench = Bench::new();
        let mut all = bench.event(Event::Start);
        all.extend(bench.event(Event::Registered(Err(passing.clone()))));
        let answer =
            |effect: &Effect| (*effect == Effect::Register).then(|| Event::Registered(Err(passing.clone())));
        all.extend(bench.pass(Duration::from_secs(20), answer));
        let tries = all.iter().filter(|effect| **effect == Effect::Register).count();
        assert!((20..200).contains(&tries), "A1: {tries} tries in 5 s, from 1 ms up");
        let Some(Effect::Failed(Outage::NotRegistered { last, tries: told })) = all.last() else {
            panic!("A1: {:?}", all.last())
        };
        assert_eq!((last, *told as usize), (&passing, tries));
    }
}

#[test]
fn it_gives_up_at_once_on_what_does_not_pass() {
    for code in [Code::InvalidArgument, Code::FailedPrecondition, Code::Unimplemented] {
        let mut bench = Bench::new();
        bench.event(Event::Start);
        let effects = bench.event(Event::Registered(Err(refused(code))));
        assert!(matches!(effects[..], [Effect::Failed(Outage::NotRegistered { .. })]), "A1: {effects:?}");
        assert_eq!(bench.event(Event::Leave), [], "A4");
        assert_eq!(bench.agent.deadline(), None, "A4");
    }
}

#[test]
fn a_loss_is_announced_once_also_over_a_gap() {
    let mut bench = Bench::ready();
    assert!(matches!(bench.event(loss(1, 4))[..], [Effect::Announce(_)]));
    assert_eq!(bench.event(loss(1, 4)), [], "A2");
    let ended = bench.event(Event::WatchEnded(unreachable()));
    assert_eq!(ended, []);
    let again = bench.pass(Duration::from_millis(1), |_| None);
    assert_eq!(again, [Effect::OpenWatch { since_epoch: 4 }], "A2: it asks for what it has not seen");
    assert_eq!(bench.event(Event::WatchOpened), []);
    assert!(matches!(bench.event(loss(2, 9))[..], [Effect::Announce(_)]));
}

#[test]
fn a_stream_that_does_not_come_back_is_the_loss_of_the_coordinator() {
    let mut bench = Bench::ready();
    bench.event(Event::WatchEnded(unreachable()));
    let answer = |effect: &Effect| match effect {
        Effect::OpenWatch { .. } => Some(Event::WatchEnded(unreachable())),
        _ => None,
    };
    let before = bench.pass(Duration::from_millis(399), answer);
    assert!(before.iter().all(|effect| matches!(effect, Effect::OpenWatch { .. })), "A3: {before:?}");
    let after = bench.pass(Duration::from_millis(1), answer);
    let Some(Effect::Failed(Outage::CoordinatorLost(why))) = after.last() else { panic!("A3: {after:?}") };
    assert!(why.contains("connection refused"), "{why}");
}

#[test]
fn silence_of_the_coordinator_is_its_loss() {
    let mut bench = Bench::ready();
    let alive = bench.pass(Duration::from_secs(60), beat_is_answered);
    assert_eq!(alive, vec![Effect::Beat; 30], "nothing but heartbeats, every 2 s");
    let unanswered = |effect: &Effect| (*effect == Effect::Beat).then_some(Event::Beaten(Err(unreachable())));
    let silent = bench.pass(Duration::from_millis(7_999), unanswered);
    assert_eq!(silent, vec![Effect::Beat; 3], "A3: heartbeats that are lost are made up for by the next");
    let lost = bench.pass(Duration::from_millis(1), unanswered);
    assert!(matches!(lost[..], [Effect::Failed(Outage::CoordinatorLost(_))]), "A3: {lost:?}");
}

#[test]
fn its_own_silence_is_not_the_coordinators() {
    let mut bench = Bench::ready();
    // The process was stopped for a minute.
    bench.now = bench.now + Duration::from_secs(60);
    let effects = bench.event(Event::Beaten(Err(unreachable())));
    assert_eq!(effects, [Effect::Beat], "A3: it goes on and asks");
    let dropped = bench.event(Event::Beaten(Err(refused(Code::Unavailable))));
    assert!(matches!(dropped[..], [Effect::Failed(Outage::Dropped(_))]), "{dropped:?}");
}

#[test]
fn it_leaves_once_and_then_is_silent() {
    let mut bench = Bench::ready();
    assert_eq!(bench.event(Event::Leave), [Effect::Shutdown]);
    assert_eq!(bench.event(Event::WatchEnded(unreachable())), [], "the stream ends with it");
    assert_eq!(bench.event(Event::ShutDown), [Effect::Left]);
    for late in [loss(1, 7), Event::Beaten(Err(refused(Code::Aborted))), Event::Leave] {
        assert_eq!(bench.event(late), [], "A4");
    }
}

#[test]
fn the_end_of_the_coordinator_in_order_is_no_loss() {
    let mut bench = Bench::ready();
    assert_eq!(bench.event(Event::Noticed(Notice::Closing)), [Effect::Closed]);
    assert_eq!(bench.event(Event::WatchEnded(unreachable())), [], "A4");
}
