//! Who waits for whom, and since when.

use std::time::Duration;

use ringway_control::core::coordination::request::{Reply, Request};
use ringway_control::core::coordination::rounds::knock_key;
use ringway_control::core::coordination::waits::{Awaited, Wait};
use ringway_control::core::time::Time;
use ringway_topology::Incarnation;

use super::bench::*;

fn waits(bench: &mut Bench, names: usize) -> Vec<Wait> {
    match bench.now(Request::Waits { names }) {
        Ok(Reply::Waits { waits, now }) => {
            assert_eq!(now, bench.now);
            waits
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn stragglers_are_named_and_the_longest_wait_comes_first() {
    let mut bench = Bench::up();
    assert_eq!(waits(&mut bench, 9), []);
    bench.ask(join(1, None, 3));
    bench.pass(Duration::from_secs(1));
    bench.ask(barrier("b", 0, &[]));
    bench.pass(Duration::from_secs(1));
    let key = bench.ask(Request::Get { key: "/a//b".to_owned() });
    let found = waits(&mut bench, 9);
    let group = Wait {
        awaited: Awaited::Group("world".to_owned()),
        since: Time::ZERO,
        deadline: Some(Time::ZERO + Duration::from_secs(5)),
        waiting: vec![worker(1)],
        waiting_count: 1,
        late: vec![worker(0), worker(2)],
        late_count: 2,
    };
    let started = Time::ZERO + Duration::from_secs(1);
    let barrier_wait = Wait {
        awaited: Awaited::Barrier { id: "b".to_owned(), counter: 0 },
        since: started,
        deadline: Some(started + Duration::from_secs(5)),
        waiting: vec![worker(0)],
        waiting_count: 1,
        late: vec![worker(1), worker(2)],
        late_count: 2,
    };
    let reading = Wait {
        awaited: Awaited::Key("a/b".to_owned()),
        since: started + Duration::from_secs(1),
        deadline: None,
        waiting: Vec::new(),
        waiting_count: 1,
        late: Vec::new(),
        late_count: 0,
    };
    assert_eq!(found, [group, barrier_wait, reading]);
    let few = waits(&mut bench, 1);
    assert_eq!((few[1].late.as_slice(), few[1].late_count), ([worker(1)].as_slice(), 2), "lists are bounded");
    // What has ended is waited for no longer.
    bench.now(insert("a/b", "1")).unwrap();
    assert!(bench.answers.contains_key(&key));
    bench.ask(barrier("b", 1, &[]));
    bench.ask(barrier("b", 2, &[]));
    assert_eq!(waits(&mut bench, 9).len(), 1);
}

#[test]
fn members_that_listen_for_newcomers_wait_for_nobody() {
    let mut bench = Bench::up();
    bench.ask(Request::Get { key: knock_key("job", 1) });
    assert_eq!(waits(&mut bench, 9), []);
}

#[test]
fn whoever_has_not_registered_is_a_straggler() {
    let mut bench = Bench::with(|_| {});
    bench.ask(Request::RegisterTogether { task: worker(1), incarnation: Incarnation(1), silence: None });
    let found = waits(&mut bench, 9);
    assert_eq!(found.len(), 1);
    assert_eq!(
        (&found[0].awaited, &*found[0].late),
        (&Awaited::Registration, [worker(0), worker(2)].as_slice())
    );
    for index in 0..3 {
        bench.now(register(index, 1)).unwrap();
    }
    bench.ask(Request::WaitForAll { task: worker(0), devices: Vec::new() });
    let found = waits(&mut bench, 9);
    assert_eq!((&found[0].awaited, found[0].waiting.as_slice()), (&Awaited::Devices, [worker(0)].as_slice()));
    bench.ask(Request::AliveTasks { source: worker(2), tasks: vec![worker(0), worker(2)] });
    let found = waits(&mut bench, 9);
    let alive = found.iter().find(|wait| wait.awaited == Awaited::Alive).unwrap();
    assert_eq!(
        (alive.waiting.as_slice(), alive.late.as_slice()),
        ([worker(2)].as_slice(), [worker(0)].as_slice())
    );
}

#[test]
fn those_who_want_to_leave_wait_for_the_others() {
    let mut bench = Bench::with(|config| config.shutdown_timeout = Some(Duration::from_secs(9)));
    for index in 0..3 {
        bench.now(register(index, 1)).unwrap();
    }
    bench.ask(Request::Shutdown { task: worker(2) });
    let found = waits(&mut bench, 9);
    assert_eq!(
        (&found[0].awaited, found[0].late.as_slice()),
        (&Awaited::Departure, [worker(0), worker(1)].as_slice())
    );
    assert_eq!(found[0].deadline, Some(Time::ZERO + Duration::from_secs(9)));
}
