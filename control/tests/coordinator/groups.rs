//! Groups: who gets in, and what those hear who do not.

use crate::bench::*;
use std::time::Duration;

use ringway_control::core::coordination::errors::Code;
use ringway_control::core::coordination::request::{Event, Notice, Reply, ReplyTo, Request, State, WatchId};
use ringway_topology::Incarnation;

#[test]
fn a_group_gives_asked_ranks_and_fills_the_rest() {
    let mut bench = Bench::up();
    let waiting = [bench.ask(join(0, None, 3)), bench.ask(join(1, Some(0), 3))];
    assert!(bench.answers.is_empty(), "G3");
    let last = bench.ask(join(2, None, 3));
    let tables: Vec<_> = [waiting[0], waiting[1], last]
        .into_iter()
        .map(|reply| match bench.answers.remove(&reply).unwrap() {
            Ok(Reply::Group(table)) => table,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(tables[0] == tables[1] && tables[1] == tables[2], "G1");
    let ranks: Vec<_> =
        tables[0].members.iter().map(|m| (m.rank, m.process.task.index(), m.addresses[0])).collect();
    assert_eq!(ranks, [(0, 1, 1), (1, 0, 0), (2, 2, 2)], "G2");
    assert_eq!((tables[0].epoch, tables[0].secret), (1, [1; 32]));
    assert!(matches!(bench.now(join(1, Some(0), 3)), Ok(Reply::Group(_))), "asking again answers again");
    bench.now(watch(900, 0, 1, 0)).unwrap();
    bench.now(register(2, 2)).unwrap_err();
    bench.now(register(2, 2)).unwrap();
    let Notice::Loss(loss) = &bench.notices[0].1 else { panic!() };
    assert_eq!((loss.rank, loss.epoch, loss.pid), (Some(2), 2, Some(102)));
    let mut anew = join(2, None, 3);
    if let Request::Join(join) = &mut anew {
        join.process.incarnation = Incarnation(2);
    }
    assert_eq!(code(&bench.now(anew)), Some(Code::FailedPrecondition), "G4");
}

#[test]
fn a_group_that_cannot_be_made_tells_all_who_came() {
    for (wrong, code_of_it) in
        [(join(1, Some(0), 3), Code::InvalidArgument), (join(1, None, 2), Code::InvalidArgument)]
    {
        let mut bench = Bench::up();
        let first = bench.ask(join(0, Some(0), 3));
        assert_eq!(code(&bench.now(wrong)), Some(code_of_it), "G3");
        let refusal = bench.answers.remove(&first).unwrap().unwrap_err();
        assert!(
            refusal.message.contains("pid 100 on host here") && refusal.message.contains("pid 101"),
            "{refusal}"
        );
    }
    let mut bench = Bench::up();
    assert_eq!(code(&bench.now(join(0, Some(3), 3))), Some(Code::InvalidArgument));
    assert_eq!(code(&bench.now(join(0, None, 0))), Some(Code::InvalidArgument));
    assert_eq!(code(&bench.now(join(0, None, 4))), Some(Code::InvalidArgument));
    let first = bench.ask(join(0, None, 3));
    bench.ask(join(1, None, 3));
    bench.now(register(1, 2)).unwrap_err();
    let refusal = bench.answers.remove(&first).unwrap().unwrap_err();
    assert_eq!(refusal.code, Code::Aborted, "a member was lost");
    assert!(refusal.message.contains("/job:worker/task:1"), "{refusal}");
}

/// G3: who waits hears at once that others will not come.
#[test]
fn a_group_that_too_few_tasks_are_left_for_fails_at_once() {
    let told = |bench: &mut Bench, to: ReplyTo| match bench.answers.remove(&to) {
        Some(Err(error)) => error.to_string(),
        other => panic!("it waits, or got in: {other:?}"),
    };
    // Never registered.
    let mut bench = Bench::with(|_| {});
    (0..2).for_each(|index| assert_eq!(bench.now(register(index, 1)), Ok(Reply::Done)));
    let waiting = [bench.ask(join(0, None, 3)), bench.ask(join(1, None, 3))];
    bench.event(Event::ProcessEnded { task: worker(2), how: "pid 7 on host h exited with code 3".into() });
    for to in waiting {
        let said = told(&mut bench, to);
        assert!(said.contains("task:2: pid 7 on host h exited with code 3"), "{said}");
    }
    // Later callers need not wait; smaller groups can be made; a new life may come.
    let late = bench.ask(join(0, None, 3));
    assert!(told(&mut bench, late).contains("exited with code 3"));
    let few = [bench.ask(join(0, None, 2)), bench.ask(join(1, None, 2))];
    assert!(few.iter().all(|to| matches!(bench.answers.get(to), Some(Ok(Reply::Group(_))))));

    // Registered and not yet entered: by its launcher, by its silence.
    let mut bench = Bench::up();
    let waiting = bench.ask(join(0, None, 3));
    bench.event(Event::ProcessEnded { task: worker(2), how: "killed by SIGKILL".into() });
    assert!(told(&mut bench, waiting).contains("killed by SIGKILL"));
    assert_eq!(state(&mut bench, 2), State::Error);
    assert_eq!(bench.now(register(2, 2)), Ok(Reply::Done));
    let again = bench.ask(join(0, None, 3));
    assert!(!bench.answers.contains_key(&again), "the new life of task 2 is waited for");
    assert_eq!(bench.now(watch(1, 1, 1, 0)), Ok(Reply::Done));
    bench.event(Event::WatchBroken { watch: WatchId(1) });
    bench.pass(Duration::from_secs(1));
    assert!(told(&mut bench, again).contains("task:1"), "its connection ended");

    // A task that has left in order may come again.
    let mut bench = Bench::up();
    let waiting = bench.ask(join(0, None, 3));
    assert_eq!(bench.now(Request::Shutdown { task: worker(2) }), Ok(Reply::Done));
    assert!(!bench.answers.contains_key(&waiting));
    bench.event(Event::ProcessEnded { task: worker(2), how: "exited with code 0".into() });
    assert!(told(&mut bench, waiting).contains("exited with code 0"));
}

/// Ranks of one cluster that were told different jobs meet in none: each hears where the other is.
#[test]
fn a_member_that_waits_in_another_group_is_said_to() {
    let mut bench = Bench::up();
    let mut of_other = join(1, Some(1), 3);
    if let Request::Join(join) = &mut of_other {
        join.group = "moon".to_owned();
    }
    let waiting = [bench.ask(join(0, Some(0), 3)), bench.ask(of_other)];
    bench.pass_alive(Duration::from_secs(5));
    for (to, other, group) in
        [(waiting[0], "task:1 (pid 101", "moon"), (waiting[1], "task:0 (pid 100", "world")]
    {
        let refusal = bench.answers.remove(&to).unwrap().unwrap_err();
        assert_eq!(refusal.code, Code::DeadlineExceeded);
        let said = refusal.to_string();
        assert!(said.contains(other) && said.contains(&format!("waits in group {group:?}")), "{said}");
        assert!(said.contains("RINGWAY_JOB_ID"), "{said}");
    }
    // Who is simply late is not said to be elsewhere.
    let to = bench.ask(join(0, None, 3));
    bench.pass_alive(Duration::from_secs(5));
    let said = bench.answers.remove(&to).unwrap().unwrap_err().to_string();
    assert!(!said.contains("RINGWAY_JOB_ID"), "{said}");
}
