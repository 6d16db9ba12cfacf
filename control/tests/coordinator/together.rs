//! Registering together, which life of a task speaks, and which use of a barrier is meant.

use std::time::Duration;

use ringway_control::core::coordination::errors::Code;
use ringway_control::core::coordination::preemption::{NOTICE_KEY, TENSORFLOW_KEY};
use ringway_control::core::coordination::request::{
    BarrierCall, Event, Life, Reply, ReplyTo, Request, State,
};
use ringway_topology::Incarnation;

use super::bench::*;

fn together(index: u32, life: u64) -> Request {
    Request::RegisterTogether { task: worker(index), incarnation: Incarnation(life), silence: None }
}

fn as_life(bench: &mut Bench, index: u32, life: u64, request: Request) -> ReplyTo {
    bench.next += 1;
    let reply = ReplyTo(bench.next);
    let from = Some(Life { task: Some(worker(index)), incarnation: Incarnation(life) });
    bench.event(Event::Ask { reply, from, request });
    reply
}

fn said_by(bench: &mut Bench, index: u32, life: u64, request: Request) -> Answer {
    let reply = as_life(bench, index, life, request);
    bench.answers.remove(&reply).expect("the answer comes at once")
}

#[test]
fn tasks_that_register_together_are_connected_at_once() {
    let mut bench = Bench::with(|_| {});
    let first = [bench.ask(together(0, 1)), bench.ask(together(1, 1))];
    assert_eq!(state(&mut bench, 0), State::Disconnected, "A1");
    let again = bench.ask(together(1, 1));
    let last = bench.ask(together(2, 1));
    for reply in first.into_iter().chain([again, last]) {
        assert_eq!(bench.answers.remove(&reply), Some(Ok(Reply::Done)));
    }
    assert!((0..3).all(|index| state(&mut bench, index) == State::Connected));
    assert_eq!(bench.now(together(2, 1)), Ok(Reply::Done), "a call that is repeated is answered at once");
    // A2: one that left comes back alone; when all have left, the next ones come together.
    bench.now(Request::Shutdown { task: worker(2) }).unwrap();
    assert_eq!(bench.now(together(2, 2)), Ok(Reply::Done), "A2");
    (0..3).for_each(|index| drop(bench.now(Request::Shutdown { task: worker(index) })));
    let next = bench.ask(together(0, 3));
    assert!(!bench.answers.contains_key(&next), "A2");
}

/// A3.
#[test]
fn the_next_job_that_registers_together_finds_nothing_of_the_one_before() {
    let mut bench = Bench::with(|config| config.durable = true);
    let mut job = |life| {
        let came: Vec<ReplyTo> = (0..3).map(|index| bench.ask(together(index, life))).collect();
        for reply in came {
            assert_eq!(bench.answers.remove(&reply), Some(Ok(Reply::Done)));
        }
        assert_eq!(bench.now(insert("cluster/topology", "mine")), Ok(Reply::Done), "job {life}");
        assert_eq!(code(&bench.now(insert("cluster/topology", "again"))), Some(Code::AlreadyExists));
        // A count of uses begins anew as well.
        pass_use(&mut bench, 0);
        assert_eq!(bench.now(register(1, life)), Ok(Reply::Done), "one that is there takes nothing away");
        assert_eq!(code(&bench.now(insert("cluster/topology", "again"))), Some(Code::AlreadyExists));
        let kept = |prefix: &str| bench.stored.keys().filter(|key| key.starts_with(prefix)).count();
        assert_eq!((kept("key/"), kept("barrier/")), (1, 1), "job {life}");
        match life {
            // In order, or by dying.
            1 => (0..3).for_each(|index| drop(bench.now(Request::Shutdown { task: worker(index) }))),
            _ => bench.pass(Duration::from_secs(20)),
        }
    };
    (1..4).for_each(&mut job);
}

#[test]
fn who_ends_or_is_restarted_before_all_are_there_harms_nobody() {
    let mut bench = Bench::with(|config| config.register_timeout = Duration::from_secs(3));
    let waits = bench.ask(together(0, 1));
    let old = bench.ask(together(1, 1));
    let new = bench.ask(together(1, 2));
    assert_eq!(
        code(&bench.answers.remove(&old).unwrap()),
        Some(Code::AlreadyExists),
        "A1: the old one is told"
    );
    bench.event(Event::Gone { reply: new });
    let last = bench.ask(together(2, 1));
    assert!(bench.answers.is_empty(), "one that has gone is not there");
    bench.pass(Duration::from_secs(3));
    for reply in [waits, last] {
        let refusal = bench.answers.remove(&reply).unwrap().unwrap_err();
        assert_eq!(refusal.code, Code::DeadlineExceeded);
        assert!(
            refusal.message.contains("1 of 3 tasks did not register within 3s: /job:worker/task:1"),
            "{refusal}"
        );
    }
    assert_eq!(bench.machine.waiting(), 0);
}

#[test]
fn a_life_that_was_replaced_changes_nothing() {
    let mut bench = Bench::up();
    assert_eq!(said_by(&mut bench, 0, 1, insert("a", "1")), Ok(Reply::Done));
    bench.now(register(0, 2)).unwrap_err();
    assert_eq!(said_by(&mut bench, 0, 1, insert("b", "1")), Ok(Reply::Done), "nobody is in its place yet");
    bench.now(register(0, 2)).unwrap();
    // C4: whatever it asks.
    let cancel = Request::CancelBarrier { id: "b".to_owned(), counter: 0, source: worker(0) };
    let delete = Request::Delete { key: "a".to_owned() };
    let leave = Request::Shutdown { task: worker(0) };
    for request in [insert("c", "1"), barrier("b", 0, &[]), cancel, delete, leave, together(0, 1)] {
        let refusal = said_by(&mut bench, 0, 1, request).unwrap_err();
        assert_eq!(refusal.code, Code::Aborted);
        assert!(refusal.message.contains("was replaced by"), "{refusal}");
    }
    assert_eq!(said_by(&mut bench, 0, 2, insert("c", "2")), Ok(Reply::Done));
    assert_eq!(
        code(&said_by(&mut bench, 1, 9, insert("d", "1"))),
        Some(Code::Aborted),
        "nor one that never was"
    );
}

#[test]
fn a_life_is_known_by_its_incarnation_alone() {
    let mut bench = Bench::with(|_| {});
    (0..3).for_each(|index| bench.now(register(index, 10 + u64::from(index))).map(drop).unwrap());
    bench.now(register(1, 21)).unwrap_err();
    bench.now(register(1, 21)).unwrap();
    let mut said = |life, request| {
        let reply = ReplyTo(1000 + life);
        let from = Some(Life { task: None, incarnation: Incarnation(life) });
        bench.event(Event::Ask { reply, from, request });
        bench.answers.remove(&reply).expect("the answer comes at once")
    };
    assert_eq!(said(21, insert("a", "1")), Ok(Reply::Done));
    assert_eq!(code(&said(11, insert("b", "1"))), Some(Code::Aborted), "C4");
    assert_eq!(
        said(99, insert("c", "1")),
        Ok(Reply::Done),
        "one that nobody knows cannot be known to be older"
    );
}

fn use_of(counter: i64, source: u32, tasks: &[u32]) -> Request {
    Request::Barrier(BarrierCall {
        id: "b".to_owned(),
        counter,
        counted: true,
        timeout: Duration::from_secs(5),
        tasks: tasks.iter().map(|&index| worker(index)).collect(),
        source: worker(source),
    })
}

/// Tasks 0 and 1 pass this use of the barrier.
fn pass_use(bench: &mut Bench, counter: i64) {
    let waits = bench.ask(use_of(counter, 0, &[0, 1]));
    assert_eq!(bench.now(use_of(counter, 1, &[0, 1])), Ok(Reply::Barrier { counter }));
    assert_eq!(bench.answers.remove(&waits), Some(Ok(Reply::Barrier { counter })));
}

#[test]
fn uses_of_a_barrier_follow_each_other() {
    let mut bench = Bench::up();
    (0..3).for_each(|counter| pass_use(&mut bench, counter));
    assert_eq!(
        bench.now(use_of(1, 0, &[0, 1])),
        Ok(Reply::Barrier { counter: 1 }),
        "B2: a call that is repeated"
    );
    // B5: a use that does not follow the last shows that the tasks are out of step.
    assert_eq!(code(&bench.now(use_of(5, 0, &[0, 1]))), Some(Code::Internal));
    let waits = bench.ask(use_of(3, 0, &[0, 1]));
    let refusal = bench.now(use_of(4, 1, &[0, 1])).unwrap_err();
    assert!(refusal.message.contains("is at its use 3 and was called for use 4"), "{refusal}");
    assert_eq!(
        code(&bench.answers.remove(&waits).unwrap()),
        Some(Code::Internal),
        "B5: nobody waits in vain"
    );
    pass_use(&mut bench, 4);
}

#[test]
fn a_new_life_takes_part_in_the_use_that_comes() {
    let mut bench = Bench::up();
    pass_use(&mut bench, 0);
    pass_use(&mut bench, 1);
    bench.pass(Duration::from_secs(1));
    bench.now(register(1, 2)).unwrap_err();
    bench.now(register(1, 2)).unwrap();
    // B5: its former self was part of use 0, it was not.
    let waits = bench.ask(use_of(0, 1, &[0, 1]));
    assert!(bench.answers.is_empty(), "what passed for its former self does not pass for it");
    assert_eq!(bench.now(use_of(2, 0, &[0, 1])), Ok(Reply::Barrier { counter: 2 }));
    assert_eq!(
        bench.answers.remove(&waits),
        Some(Ok(Reply::Barrier { counter: 2 })),
        "and it learns the count"
    );
}

#[test]
fn what_is_on_the_way_when_a_task_leaves_is_no_error() {
    let mut bench = Bench::up();
    bench.now(Request::Shutdown { task: worker(0) }).unwrap();
    assert_eq!(bench.now(beat(0, 1)), Ok(Reply::Done));
    assert_eq!(code(&bench.now(Request::PollForError { task: worker(0) })), Some(Code::Cancelled));
    assert_eq!(code(&bench.now(beat(0, 2))), Some(Code::FailedPrecondition), "but only of that life");
}

#[test]
fn a_barrier_that_failed_cannot_be_cancelled() {
    let mut bench = Bench::up();
    let late = bench.ask(barrier("b", 0, &[]));
    bench.pass(Duration::from_secs(5));
    assert_eq!(code(&bench.answers.remove(&late).unwrap()), Some(Code::DeadlineExceeded));
    let cancel = Request::CancelBarrier { id: "b".to_owned(), counter: 0, source: worker(1) };
    assert_eq!(code(&bench.now(cancel)), Some(Code::FailedPrecondition));
}

#[test]
fn the_first_notice_of_a_preemption_stands() {
    let mut bench = Bench::up();
    let waits = bench.ask(Request::Get { key: NOTICE_KEY.to_owned() });
    let watches = bench.ask(Request::Get { key: TENSORFLOW_KEY.to_owned() });
    bench.event(Event::Preempted { when: "now".to_owned() });
    bench.event(Event::Preempted { when: "later".to_owned() });
    for reply in [waits, watches] {
        let answer = bench.answers.remove(&reply).unwrap();
        assert!(matches!(&answer, Ok(Reply::Entry { value, .. }) if ***value == *b"now"), "{answer:?}");
    }
}
