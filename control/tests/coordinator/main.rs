//! The coordinator as a machine: what it answers, when, and to whom. Invariants are those of its modules' docs.

mod bench;
mod groups;
mod overview;
mod restore;
mod rounds;
mod together;
mod waits;

use bench::*;
use std::collections::BTreeMap;
use std::time::Duration;

use ringway_control::core::coordination::Limits;
use ringway_control::core::coordination::errors::{Code, TaskError};
use ringway_control::core::coordination::losses::Evidence;
use ringway_control::core::coordination::request::{
    BarrierCall, Device, Event, Notice, Reply, ReplyTo, Request, State, WatchId,
};
use ringway_control::core::machine::Machine;
use ringway_topology::{Incarnation, TaskId};

#[test]
fn a_life_begins_once_and_a_new_one_replaces_it() {
    let mut bench = Bench::up();
    assert_eq!(bench.now(register(0, 1)), Ok(Reply::Done), "the same life may say it again");
    // A live task with another incarnation: the old life is over, and the new one may try again.
    assert_eq!(code(&bench.now(register(0, 2))), Some(Code::Aborted));
    assert_eq!(state(&mut bench, 0), State::Error);
    assert_eq!(code(&bench.now(register(0, 1))), Some(Code::FailedPrecondition), "the old one may not");
    assert_eq!(bench.now(register(0, 2)), Ok(Reply::Done));
    // C4: what the old life still has under way changes nothing.
    assert_eq!(code(&bench.now(register(0, 1))), Some(Code::FailedPrecondition));
    assert_eq!(code(&bench.now(beat(0, 1))), Some(Code::Aborted));
    assert_eq!(bench.now(beat(0, 2)), Ok(Reply::Done));
    assert_eq!(state(&mut bench, 0), State::Connected);
}

#[test]
fn a_task_that_is_not_of_the_cluster_is_told_what_is() {
    let mut bench = Bench::up();
    let answer = bench.now(register(3, 1));
    assert_eq!(code(&answer), Some(Code::InvalidArgument));
    assert!(answer.unwrap_err().message.contains("worker with 3 tasks"));
    let other =
        Request::Register { task: TaskId::new("ps", 0).unwrap(), incarnation: Incarnation(1), silence: None };
    assert_eq!(code(&bench.now(other)), Some(Code::InvalidArgument));
    assert_eq!(code(&bench.now(beat(9, 1))), Some(Code::InvalidArgument));
}

#[test]
fn silence_for_the_limit_is_a_loss_and_no_sooner() {
    let mut bench = Bench::up();
    bench.now(watch(900, 0, 1, 0)).unwrap();
    bench.pass(Duration::from_secs(7));
    bench.now(beat(0, 1)).unwrap();
    bench.now(beat(1, 1)).unwrap();
    bench.pass(Duration::from_millis(999));
    assert_eq!(bench.losses(900), [], "C3: not before the limit");
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.losses(900), [(2, Evidence::Heartbeat)]);
    assert_eq!(code(&bench.now(beat(2, 1))), Some(Code::Unavailable), "it is told itself");
    assert_eq!(bench.pushed.len(), 2, "the agents of the two others are told");
}

#[test]
fn silence_of_the_coordinator_itself_is_nobodys_loss() {
    let mut bench = Bench::up();
    bench.pass(Duration::from_secs(1));
    // C5: it was stopped, for longer than the limit.
    bench.now = bench.now + Duration::from_secs(60);
    let mut effects = Vec::new();
    bench.machine.on_time(bench.now, &mut effects);
    bench.take(effects);
    assert_eq!(state(&mut bench, 0), State::Connected);
    bench.pass(Duration::from_secs(8));
    assert_eq!(state(&mut bench, 0), State::Error, "from then on silence counts");
}

#[test]
fn all_tasks_hear_of_all_devices() {
    let mut bench = Bench::up();
    let device = |index: u32| Device::Attributes(vec![index as u8]);
    let wait = |index: u32| Request::WaitForAll { task: worker(index), devices: vec![device(index)] };
    let waiting = [bench.ask(wait(2)), bench.ask(wait(0))];
    assert!(bench.answers.is_empty());
    let last = bench.ask(wait(1));
    for reply in [waiting[0], waiting[1], last] {
        let answer = bench.answers.remove(&reply).unwrap();
        let Ok(Reply::Devices(devices)) = answer else { panic!("{answer:?}") };
        assert_eq!(*devices, [device(0), device(1), device(2)], "in the order of the tasks");
    }
}

#[test]
fn who_does_not_come_is_named() {
    let mut bench = Bench::with(|config| config.register_timeout = Duration::from_secs(3));
    bench.now(register(0, 1)).unwrap();
    let reply = bench.ask(Request::WaitForAll { task: worker(0), devices: Vec::new() });
    bench.pass(Duration::from_secs(3));
    let refusal = bench.answers.remove(&reply).unwrap().unwrap_err();
    assert_eq!(refusal.code, Code::DeadlineExceeded);
    assert!(refusal.message.contains("/job:worker/task:1, /job:worker/task:2"), "{refusal}");
    assert_eq!(bench.machine.waiting(), 0);
}

#[test]
fn a_barrier_passes_with_its_last_task_and_stays_passed() {
    let mut bench = Bench::up();
    let first = bench.ask(barrier("b", 0, &[]));
    let again = bench.ask(barrier("b", 0, &[]));
    let second = bench.ask(barrier("b", 2, &[2, 1, 0, 0]));
    assert!(bench.answers.is_empty(), "B1: one task that asks twice is one task");
    let third = bench.ask(barrier("b", 1, &[]));
    for reply in [first, again, second, third] {
        assert_eq!(bench.answers.remove(&reply), Some(Ok(Reply::Barrier { counter: 0 })));
    }
    assert_eq!(bench.now(barrier("b", 0, &[])), Ok(Reply::Barrier { counter: 0 }), "B2");
    let cancel = Request::CancelBarrier { id: "b".to_owned(), counter: 0, source: worker(0) };
    assert_eq!(code(&bench.now(cancel)), Some(Code::FailedPrecondition));
}

#[test]
fn a_barrier_that_is_late_names_the_late_and_stays_failed() {
    let mut bench = Bench::up();
    let reply = bench.ask(barrier("b", 0, &[0, 2]));
    bench.pass(Duration::from_secs(5));
    let refusal = bench.answers.remove(&reply).unwrap().unwrap_err();
    assert_eq!(refusal.code, Code::DeadlineExceeded, "B3");
    assert!(refusal.message.ends_with("1 of 2 tasks came; late: /job:worker/task:2"), "{refusal}");
    assert_eq!(code(&bench.now(barrier("b", 2, &[0, 2]))), Some(Code::DeadlineExceeded), "B2");
}

#[test]
fn a_barrier_that_cannot_be_fails_for_all() {
    let cases: [(&str, Request); 3] = [
        ("different tasks", barrier("b", 1, &[0, 1, 2])),
        ("not among its tasks", barrier("b", 2, &[0, 1])),
        ("not in the cluster", barrier("b", 1, &[0, 1, 7])),
    ];
    for (why, wrong) in cases {
        let mut bench = Bench::up();
        let first = bench.ask(barrier("b", 0, &[0, 1]));
        assert_eq!(code(&bench.now(wrong)), Some(Code::InvalidArgument), "B4: {why}");
        let refusal = bench.answers.remove(&first).unwrap().unwrap_err();
        assert_eq!(refusal.code, Code::InvalidArgument);
        assert!(refusal.message.contains(why), "{refusal}");
    }
    let mut bench = Bench::up();
    let none = Request::Barrier(BarrierCall {
        id: "b".to_owned(),
        counter: 0,
        counted: false,
        timeout: Duration::ZERO,
        tasks: Vec::new(),
        source: worker(0),
    });
    assert_eq!(code(&bench.now(none)), Some(Code::InvalidArgument));
}

#[test]
fn a_barrier_ends_with_the_loss_or_leave_of_a_task() {
    let mut bench = Bench::up();
    let lost = bench.ask(barrier("b", 0, &[0, 1]));
    let others = bench.ask(barrier("c", 0, &[0, 2]));
    let error = TaskError { code: Code::Internal, message: "out of memory".to_owned() };
    bench.now(Request::ReportError { task: worker(1), error }).unwrap();
    let refusal = bench.answers.remove(&lost).unwrap().unwrap_err();
    assert_eq!(refusal.code, Code::Internal);
    assert!(refusal.message.contains("/job:worker/task:1 failed: out of memory"), "{refusal}");
    assert_eq!(
        code(&bench.now(barrier("new", 0, &[0, 1]))),
        Some(Code::Internal),
        "also one that begins later"
    );
    bench.now(Request::Shutdown { task: worker(2) }).unwrap();
    let refusal = bench.answers.remove(&others).unwrap().unwrap_err();
    assert!(refusal.message.contains("/job:worker/task:2 has left"), "{refusal}");
}

#[test]
fn a_barrier_can_be_cancelled() {
    let mut bench = Bench::up();
    let reply = bench.ask(barrier("b", 0, &[]));
    let cancel = Request::CancelBarrier { id: "b".to_owned(), counter: 0, source: worker(1) };
    assert_eq!(bench.now(cancel.clone()), Ok(Reply::Done));
    assert_eq!(code(&bench.answers.remove(&reply).unwrap()), Some(Code::Cancelled));
    assert_eq!(bench.now(cancel), Ok(Reply::Done));
    assert_eq!(code(&bench.now(barrier("b", 2, &[]))), Some(Code::Cancelled));
}

#[test]
fn keys_are_paths() {
    let mut bench = Bench::up();
    assert_eq!(bench.now(insert("a//b/", "1")), Ok(Reply::Done));
    assert_eq!(code(&bench.now(insert("/a/b", "2"))), Some(Code::AlreadyExists), "K1");
    bench.now(insert("a/b/c", "3")).unwrap();
    bench.now(insert("a/bc", "4")).unwrap();
    let list = |bench: &mut Bench, directory: &str| match bench
        .now(Request::GetDirectory { directory: directory.to_owned() })
    {
        Ok(Reply::Directory { entries, .. }) => entries.into_iter().map(|(key, _)| key).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(list(&mut bench, "a"), ["a/b", "a/b/c", "a/bc"]);
    assert_eq!(list(&mut bench, "/a/b/"), ["a/b/c"], "only what is under it");
    assert_eq!(list(&mut bench, ""), ["a/b", "a/b/c", "a/bc"]);
    bench.now(Request::Delete { key: "a/b".to_owned() }).unwrap();
    assert_eq!(list(&mut bench, "a"), ["a/bc"], "the key and everything under it, and no more");
    for nameless in ["", "/", "///"] {
        assert_eq!(code(&bench.now(insert(nameless, "x"))), Some(Code::InvalidArgument));
        assert_eq!(
            code(&bench.now(Request::Delete { key: nameless.to_owned() })),
            Some(Code::InvalidArgument)
        );
    }
}

#[test]
fn a_read_waits_for_a_write_or_for_its_caller_to_go() {
    let mut bench = Bench::up();
    let get = |key: &str| Request::Get { key: key.to_owned() };
    let (first, second, gone) = (bench.ask(get("k")), bench.ask(get("/k/")), bench.ask(get("k")));
    bench.event(Event::Gone { reply: gone });
    bench.now(insert("k", "v")).unwrap();
    for (reply, key) in [(first, "k"), (second, "/k/")] {
        let answer = bench.answers.remove(&reply).unwrap();
        let Ok(Reply::Entry { key: named, value }) = answer else { panic!("{answer:?}") };
        assert_eq!((&*named, &value[..]), (key, b"v".as_slice()), "K3: under the name that it was asked by");
    }
    assert_eq!(bench.answers, BTreeMap::new(), "a caller that has gone gets no answer");
    assert_eq!(bench.machine.waiting(), 0);
}

#[test]
fn numbers_are_added_to_as_text() {
    let mut bench = Bench::up();
    let mut add = |key: &str, by| bench.now(Request::Increment { key: key.to_owned(), by });
    let value = |answer: Answer| match answer {
        Ok(Reply::Entry { value, .. }) => String::from_utf8(value.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(value(add("n", 5)), "5");
    assert_eq!(value(add("n", -7)), "-2");
    assert_eq!(value(add("n", i64::MIN + 2)), i64::MIN.to_string());
    assert_eq!(code(&add("n", -1)), Some(Code::OutOfRange));
    bench.now(insert("text", "seven")).unwrap();
    let answer = bench.now(Request::Increment { key: "text".to_owned(), by: 1 });
    assert_eq!(code(&answer), Some(Code::FailedPrecondition));
}

#[test]
fn everything_is_bounded() {
    let limits = Limits {
        keys: 2,
        key_bytes: 8,
        value_bytes: 4,
        store_bytes: 8,
        reply_bytes: 5,
        waiting: 2,
        barriers: 1,
        ended_barriers: 1,
        groups: 1,
        address_bytes: 1,
    };
    let mut bench = Bench::with(|config| config.limits = limits);
    (0..3).for_each(|index| drop(bench.now(register(index, 1))));
    let full = Some(Code::ResourceExhausted);
    assert_eq!(code(&bench.now(insert("a", "12345"))), full, "value");
    assert_eq!(code(&bench.now(insert("123456789", "1"))), Some(Code::InvalidArgument), "key");
    bench.now(insert("a", "1234")).unwrap();
    assert_eq!(code(&bench.now(insert("b", "123"))), full, "K4: bytes");
    bench.now(insert("b", "12")).unwrap();
    assert_eq!(code(&bench.now(insert("c", ""))), full, "K4: keys");
    assert_eq!(code(&bench.now(Request::GetDirectory { directory: String::new() })), full, "one answer");
    let held = bench.ask(barrier("one", 0, &[]));
    assert_eq!(code(&bench.now(barrier("two", 0, &[]))), full, "barriers");
    bench.ask(Request::Get { key: "never".to_owned() });
    assert_eq!(code(&bench.now(Request::Get { key: "never".to_owned() })), full, "callers that wait");
    bench.now(Request::Heartbeat { task: worker(0), incarnation: Incarnation(1) }).unwrap();
    bench.event(Event::Gone { reply: held });
    let mut wide = join(0, None, 1);
    if let Request::Join(join) = &mut wide {
        join.addresses = vec![0; 2];
    }
    assert_eq!(code(&bench.now(wide)), Some(Code::InvalidArgument), "addresses");
}

#[test]
fn errors_reach_those_who_poll() {
    let mut bench = Bench::up();
    let poll = |index: u32| Request::PollForError { task: worker(index) };
    let (first, second) = (bench.ask(poll(0)), bench.ask(poll(1)));
    bench.now(Request::Shutdown { task: worker(1) }).unwrap();
    assert_eq!(code(&bench.answers.remove(&second).unwrap()), Some(Code::Cancelled), "it left itself");
    let error = TaskError { code: Code::DataLoss, message: "bad batch".to_owned() };
    bench.now(Request::ReportError { task: worker(2), error: error.clone() }).unwrap();
    let refusal = bench.answers.remove(&first).unwrap().unwrap_err();
    assert_eq!((refusal.code, &*refusal.message), (Code::DataLoss, "bad batch"));
    assert_eq!(code(&bench.now(poll(0))), Some(Code::DataLoss), "an error that stands is told at once");
    assert_eq!(
        code(&bench.now(Request::ReportError { task: worker(2), error })),
        Some(Code::FailedPrecondition)
    );
    bench.now(Request::Reset { task: worker(2) }).unwrap();
    assert_eq!(state(&mut bench, 2), State::Disconnected);
    bench.now(register(2, 1)).unwrap();
    let waits = bench.ask(poll(0));
    assert!(!bench.answers.contains_key(&waits), "nothing stands any more");
}

#[test]
fn a_job_is_watched_by_its_version() {
    let mut bench = Bench::up();
    let ask = |version| Request::WatchJob { job: "worker".to_owned(), version };
    let Ok(Reply::Job { states, version }) = bench.now(ask(-1)) else {
        panic!("the first answer comes at once")
    };
    assert_eq!(states.len(), 3);
    let waiting = bench.ask(ask(version));
    assert!(bench.answers.is_empty());
    bench.now(Request::Shutdown { task: worker(1) }).unwrap();
    let answer = bench.answers.remove(&waiting).unwrap();
    let Ok(Reply::Job { states, version: after }) = answer else { panic!("{answer:?}") };
    assert!(after > version && states[1].state == State::Disconnected);
    let other = bench.now(Request::WatchJob { job: "ps".to_owned(), version: -1 });
    assert_eq!(code(&other), Some(Code::InvalidArgument));
}

#[test]
fn the_living_agree_on_who_is_alive() {
    let mut bench = Bench::up();
    let ask = |index: u32| Request::AliveTasks { source: worker(index), tasks: Vec::new() };
    let (first, second) = (bench.ask(ask(0)), bench.ask(ask(2)));
    assert!(bench.answers.is_empty(), "I2: task 1 is alive and has not asked");
    bench.pass_alive(Duration::from_secs(1));
    bench
        .now(Request::ReportLoss {
            reporter: worker(0),
            incarnation: Incarnation(1),
            lost: worker(1),
            seen: Incarnation(1),
            detail: "reset".to_owned(),
        })
        .unwrap();
    let alive = vec![(worker(0), Incarnation(1)), (worker(2), Incarnation(1))];
    assert_eq!(bench.answers.remove(&first), Some(Ok(Reply::Alive(alive.clone()))));
    assert_eq!(bench.answers.remove(&second), Some(Ok(Reply::Alive(alive))));
    let outsider = Request::AliveTasks { source: worker(0), tasks: vec![worker(2)] };
    assert_eq!(code(&bench.now(outsider)), Some(Code::InvalidArgument));
}

#[test]
fn a_task_says_because_of_whom_it_fails() {
    let mut bench = Bench::up();
    let blame =
        |life| Request::Blame { reporter: worker(0), incarnation: Incarnation(life), cause: worker(2) };
    assert_eq!(code(&bench.now(blame(7))), Some(Code::Aborted), "an earlier life has nothing to say");
    assert_eq!(bench.now(blame(1)), Ok(Reply::Done));
    assert_eq!(bench.blamed, [(worker(0), worker(2))]);
}

#[test]
fn a_stream_tells_each_loss_once() {
    let mut bench = Bench::up();
    bench.now(watch(900, 0, 1, 0)).unwrap();
    bench.now(register(1, 2)).unwrap_err();
    bench.now(watch(901, 2, 1, 0)).unwrap();
    assert_eq!(bench.losses(900), [(1, Evidence::Restart)]);
    assert_eq!(bench.losses(901), [(1, Evidence::Restart)], "L1: one that is opened later catches up");
    bench.now(watch(902, 2, 1, 1)).unwrap();
    assert_eq!(bench.closed, [WatchId(901)], "L3");
    assert_eq!(bench.losses(902), [], "L1: what was seen is not told again");
    let stranger = bench.now(watch(903, 1, 2, 0));
    assert!(stranger.is_err(), "only a connected life may watch");
}

#[test]
fn a_broken_stream_is_a_loss_after_the_grace() {
    let mut bench = Bench::up();
    bench.now(watch(900, 0, 1, 0)).unwrap();
    bench.now(watch(901, 1, 1, 0)).unwrap();
    bench.now(watch(902, 2, 1, 0)).unwrap();
    bench.event(Event::WatchBroken { watch: WatchId(901) });
    bench.event(Event::WatchBroken { watch: WatchId(902) });
    bench.pass(Duration::from_millis(199));
    bench.now(watch(903, 2, 1, 0)).unwrap();
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.losses(900), [(1, Evidence::Connection)], "L4");
    bench.event(Event::WatchBroken { watch: WatchId(903) });
    bench.now(Request::Shutdown { task: worker(2) }).unwrap();
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.losses(900).len(), 1, "L4: one that leaves in order is not lost");
}

#[test]
fn tasks_leave_together_where_it_is_set_so() {
    let mut bench = Bench::with(|config| config.shutdown_timeout = Some(Duration::from_secs(2)));
    (0..3).for_each(|index| drop(bench.now(register(index, 1))));
    let leave = |index: u32| Request::Shutdown { task: worker(index) };
    let (first, second) = (bench.ask(leave(0)), bench.ask(leave(1)));
    assert!(bench.answers.is_empty());
    bench.pass(Duration::from_secs(2));
    assert_eq!(bench.answers.remove(&first), Some(Ok(Reply::Done)));
    assert_eq!(bench.answers.remove(&second), Some(Ok(Reply::Done)));
    assert_eq!(state(&mut bench, 0), State::Disconnected);
    assert_eq!(state(&mut bench, 2), State::Error, "the one that did not come is in error");
    (0..3).for_each(|index| drop(bench.now(register(index, 2))));
    let all: Vec<ReplyTo> = (0..3).map(|index| bench.ask(leave(index))).collect();
    all.iter().for_each(|reply| assert_eq!(bench.answers.remove(reply), Some(Ok(Reply::Done))));
}

#[test]
fn nobody_is_late_where_the_only_one_that_left_is_lost() {
    let mut bench = Bench::with(|config| config.shutdown_timeout = Some(Duration::from_secs(2)));
    (0..3).for_each(|index| drop(bench.now(register(index, 1))));
    bench.ask(Request::Shutdown { task: worker(0) });
    bench.event(Event::ProcessEnded { task: worker(0), how: "killed".to_owned() });
    bench.pass(Duration::from_secs(3));
    assert_eq!([state(&mut bench, 0), state(&mut bench, 1)], [State::Error, State::Connected]);
}

/// What a store could not take is refused, rather than the end of the service.
#[test]
fn what_is_remembered_fits_under_one_key() {
    let mut bench = Bench::with(|config| {
        config.durable = true;
        config.limits.value_bytes = 1000;
    });
    (0..3).for_each(|index| drop(bench.now(register(index, 1))));
    let mut wide = join(0, None, 3);
    if let Request::Join(join) = &mut wide {
        join.addresses = vec![0; 300];
    }
    assert_eq!(code(&bench.now(wide)), Some(Code::ResourceExhausted));
    let devices = vec![Device::Attributes(vec![0; 600]), Device::Topology(vec![0; 600])];
    let wait = Request::WaitForAll { task: worker(0), devices };
    assert_eq!(code(&bench.now(wait)), Some(Code::ResourceExhausted));
    bench.ask(join(0, None, 3));
    assert!(bench.answers.is_empty());
}

#[test]
fn nobody_is_left_waiting_at_the_end() {
    let mut bench = Bench::up();
    bench.now(watch(900, 0, 1, 0)).unwrap();
    let held = [
        bench.ask(barrier("b", 0, &[])),
        bench.ask(join(0, None, 3)),
        bench.ask(Request::Get { key: "never".to_owned() }),
        bench.ask(Request::PollForError { task: worker(0) }),
        bench.ask(Request::WaitForAll { task: worker(0), devices: Vec::new() }),
        bench.ask(Request::AliveTasks { source: worker(0), tasks: Vec::new() }),
    ];
    assert_eq!(bench.machine.waiting(), held.len());
    bench.event(Event::Stop);
    held.iter()
        .for_each(|reply| assert_eq!(code(&bench.answers.remove(reply).unwrap()), Some(Code::Aborted)));
    assert_eq!(bench.notices, [(WatchId(900), Notice::Closing)]);
    assert_eq!(bench.machine.waiting(), 0);
    assert_eq!(code(&bench.now(register(0, 5))), Some(Code::Aborted));
}
