//! All that is known, and asking the tasks themselves.

use std::time::Duration;

use ringway_control::core::coordination::overview::Overview;
use ringway_control::core::coordination::request::{Notice, Reply, Request, State, WatchId};
use ringway_control::core::coordination::waits::Awaited;

use super::bench::*;

fn overview(bench: &mut Bench) -> Overview {
    match bench.now(Request::Overview { names: 9 }) {
        Ok(Reply::Overview(overview)) => *overview,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_overview_tells_members_silence_waits_and_groups() {
    let mut bench = Bench::up();
    for index in 0..3 {
        bench.ask(join(index, None, 3));
    }
    bench.pass(Duration::from_secs(2));
    assert_eq!(bench.now(beat(1, 1)), Ok(Reply::Done));
    bench.ask(barrier("b", 0, &[]));
    bench.pass(Duration::from_secs(1));
    let seen = overview(&mut bench);
    assert_eq!((seen.now, seen.heartbeat_limit), (bench.now, Duration::from_secs(8)));
    let silent: Vec<u64> = seen.tasks.iter().map(|task| task.silent.unwrap().as_secs()).collect();
    assert_eq!(silent, [3, 1, 3]);
    assert!(seen.tasks.iter().all(|task| task.status.state == State::Connected));
    assert_eq!(seen.tasks.iter().map(|task| task.rank).collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
    assert_eq!(seen.tasks[2].process.as_ref().unwrap().task, worker(2));
    assert_eq!(seen.waits.len(), 1);
    assert_eq!(seen.waits[0].awaited, Awaited::Barrier { id: "b".to_owned(), counter: 0 });
    assert_eq!((seen.groups.len(), seen.groups[0].size, seen.groups[0].present), (1, 3, 3));
    // Silence ends a task, and it leaves its group.
    bench.pass(Duration::from_secs(6));
    let seen = overview(&mut bench);
    assert!(seen.tasks[0].status.error.is_some() && seen.tasks[0].silent.is_none());
    assert_eq!(seen.groups[0].present, 1);
}

#[test]
fn a_survey_goes_to_those_who_listen() {
    let mut bench = Bench::up();
    for index in [0, 2] {
        assert_eq!(bench.now(watch(900 + u64::from(index), index, 1, 0)), Ok(Reply::Done));
    }
    let asked = bench.now(Request::Survey { survey: 5, flight: true });
    assert_eq!(asked, Ok(Reply::Surveyed(vec![worker(0), worker(2)])));
    let notice = Notice::Survey { survey: 5, flight: true };
    assert_eq!(bench.notices, [(WatchId(900), notice.clone()), (WatchId(902), notice)]);
}
