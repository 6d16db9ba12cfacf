//! A coordinator that goes on from what another remembered: P1 and P2 of `memory`, N1 and N2 of `once`.

use std::collections::BTreeMap;
use std::time::Duration;

use ringway_control::core::coordination::errors::Code;
use ringway_control::core::coordination::losses::Evidence;
use ringway_control::core::coordination::memory::RestoreError;
use ringway_control::core::coordination::request::{CallId, Reply, Request, State, Value};
use ringway_control::core::coordination::{ANSWERS_LIMIT, Coordinator, CoordinatorConfig};
use ringway_topology::Incarnation;

use crate::bench::*;

fn durable() -> CoordinatorConfig {
    CoordinatorConfig {
        heartbeat_limit: Duration::from_secs(8),
        durable: true,
        ..CoordinatorConfig::one_job("worker", 3)
    }
}

/// Three tasks that are connected to a coordinator which remembers.
fn up() -> Bench {
    let mut bench = Bench::with(|config| *config = durable());
    (0..3).for_each(|index| assert_eq!(bench.now(register(index, 1)), Ok(Reply::Done)));
    bench
}

/// Another coordinator goes on, after a time in which there was none.
fn killed(bench: Bench) -> Bench {
    let mut next = Bench::with(|config| *config = durable());
    next.now = bench.now + Duration::from_secs(20);
    next.stored = bench.stored;
    let entries: Vec<(String, Value)> =
        next.stored.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    next.machine = Coordinator::restore(durable(), entries, next.now).unwrap();
    next
}

fn numbered(index: u32, life: u64, sequence: u64, oldest: u64, request: Request) -> Request {
    let call = CallId { task: worker(index), incarnation: Incarnation(life), sequence, oldest };
    Request::Once { call, request: Box::new(request) }
}

fn add(by: i64) -> Request {
    Request::Increment { key: "sum".to_owned(), by }
}

fn value(answer: Answer) -> String {
    match answer {
        Ok(Reply::Entry { value, .. }) => String::from_utf8(value.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// P1.
#[test]
fn what_was_answered_stands() {
    let mut bench = up();
    bench.now(insert("a/b", "kept")).unwrap();
    bench.now(insert("a/c", "removed")).unwrap();
    bench.now(Request::Delete { key: "a/c".to_owned() }).unwrap();
    let callers: Vec<_> = (0..3).map(|index| bench.ask(barrier("passed", index, &[]))).collect();
    assert!(callers.iter().all(|to| bench.answers[to].is_ok()));
    let waits = bench.ask(barrier("open", 0, &[]));
    let joins: Vec<_> = (0..3).map(|index| bench.ask(join(index, Some(index), 3))).collect();
    let table = bench.answers[&joins[0]].clone();
    // A task is lost, and its next life comes.
    bench.now(register(2, 7)).unwrap_err();
    bench.now(register(2, 7)).unwrap();
    assert!(bench.answers[&waits].is_err(), "the barrier cannot pass");
    let failed = bench.answers[&waits].clone();

    let mut bench = killed(bench);
    assert_eq!((state(&mut bench, 1), state(&mut bench, 2)), (State::Connected, State::Connected));
    assert_eq!(code(&bench.now(beat(2, 1))), Some(Code::Aborted), "C4: the former life is known");
    assert_eq!(code(&bench.now(register(2, 1))), Some(Code::FailedPrecondition));
    assert_eq!(bench.now(beat(2, 7)), Ok(Reply::Done));
    assert_eq!(value(bench.now(Request::TryGet { key: "a/b".to_owned() })), "kept");
    assert_eq!(code(&bench.now(Request::TryGet { key: "a/c".to_owned() })), Some(Code::NotFound));
    assert_eq!(bench.now(barrier("passed", 0, &[])), Ok(Reply::Barrier { counter: 0 }), "B2");
    assert_eq!(bench.now(barrier("open", 0, &[])), failed, "B2");
    assert_eq!(bench.now(join(0, Some(0), 3)), table, "G1");
    bench.now(watch(900, 0, 1, 0)).unwrap();
    assert_eq!(bench.losses(900), [(2, Evidence::Restart)], "L1");
    bench.now(watch(901, 1, 1, u64::MAX)).unwrap();
    assert_eq!(bench.losses(901), [], "what a task knows is not said again");

    // Once more, from what the second has remembered.
    bench.now(insert("later", "x")).unwrap();
    let mut bench = killed(bench);
    assert_eq!(value(bench.now(Request::TryGet { key: "later".to_owned() })), "x");
    assert_eq!(bench.now(join(1, Some(1), 3)), table);
}

/// P1: a barrier that was under way passes when all have called it again, and not before.
#[test]
fn a_barrier_under_way_begins_anew() {
    let mut bench = up();
    bench.ask(barrier("b", 0, &[]));
    bench.ask(barrier("b", 1, &[]));
    let mut bench = killed(bench);
    let late = bench.ask(barrier("b", 2, &[]));
    assert!(!bench.answers.contains_key(&late), "B1: the calls before are gone with their callers");
    let others = [0, 1].map(|index| bench.ask(barrier("b", index, &[])));
    assert!(others.iter().chain([&late]).all(|to| bench.answers[to].is_ok()));
}

/// P2.
#[test]
fn silence_begins_anew_and_a_task_that_died_meanwhile_is_found() {
    let mut bench = killed(up());
    bench.now(watch(900, 0, 1, 0)).unwrap();
    bench.pass(Duration::from_secs(7));
    assert_eq!(bench.losses(900), [], "nobody is blamed for the time without a coordinator");
    [0, 1].into_iter().for_each(|index| drop(bench.now(beat(index, 1))));
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.losses(900), [(2, Evidence::Heartbeat)], "within its limit of the takeover");
}

/// N1.
#[test]
fn a_request_that_is_asked_again_changes_nothing() {
    let mut bench = up();
    assert_eq!(value(bench.now(numbered(0, 1, 5, 5, add(10)))), "10");
    assert_eq!(value(bench.now(numbered(0, 1, 5, 5, add(10)))), "10");
    bench.now(numbered(1, 1, 1, 1, insert("k", "v"))).unwrap();
    let mut bench = killed(bench);
    assert_eq!(value(bench.now(numbered(0, 1, 5, 5, add(10)))), "10", "also after a takeover");
    assert_eq!(bench.now(numbered(1, 1, 1, 1, insert("k", "v"))), Ok(Reply::Done), "it is its own key");
    assert_eq!(code(&bench.now(numbered(1, 1, 2, 1, insert("k", "v")))), Some(Code::AlreadyExists));
    assert_eq!(value(bench.now(numbered(0, 1, 6, 6, add(1)))), "11");
    // N3: a copy of the first that was late.
    assert_eq!(code(&bench.now(numbered(0, 1, 5, 5, add(10)))), Some(Code::Aborted));
    let mut bench = killed(bench);
    assert_eq!(code(&bench.now(numbered(0, 1, 5, 5, add(10)))), Some(Code::Aborted));
    // Another life has numbers of its own.
    bench.now(register(0, 2)).unwrap_err();
    bench.now(register(0, 2)).unwrap();
    assert_eq!(value(bench.now(numbered(0, 2, 6, 6, add(1)))), "12");
    assert_eq!(code(&bench.now(numbered(0, 1, 7, 7, add(1)))), Some(Code::Aborted), "C4");
    let odd = numbered(0, 2, 8, 8, Request::TryGet { key: "k".to_owned() });
    assert_eq!(code(&bench.now(odd)), Some(Code::InvalidArgument));
}

/// N2.
#[test]
fn answers_that_are_kept_are_bounded() {
    let mut bench = up();
    let limit = ANSWERS_LIMIT as u64;
    (0..limit).for_each(|number| drop(bench.now(numbered(0, 1, number, 0, add(1))).unwrap()));
    let over = bench.now(numbered(0, 1, limit, 0, add(1)));
    assert_eq!(code(&over), Some(Code::ResourceExhausted));
    assert_eq!(value(bench.now(numbered(0, 1, limit, 1, add(1)))), (limit + 1).to_string());
}

#[test]
fn state_of_another_cluster_or_version_is_refused_in_words() {
    let bench = up();
    let entries = |stored: &BTreeMap<String, Value>| -> Vec<(String, Value)> {
        stored.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let other = CoordinatorConfig::one_job("worker", 4);
    let error = Coordinator::restore(other, entries(&bench.stored), bench.now).unwrap_err();
    assert!(error.to_string().contains("worker with 3 tasks"), "{error}");
    for (key, value) in [("member/9", &b""[..]), ("group/g", b"\xff"), ("riddle", b""), ("barrier/x", b"")] {
        let mut stored = bench.stored.clone();
        stored.insert(key.to_owned(), Value::new(value.to_vec()));
        let error = Coordinator::restore(durable(), entries(&stored), bench.now).unwrap_err();
        assert!(matches!(&error, RestoreError::Malformed { key: named, .. } if named == key), "{error}");
    }
}
