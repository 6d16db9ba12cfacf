//! Elastic groups: R1 to R7 of `rounds`, by hand. Chaos is for the simulation.

use std::sync::Arc;
use std::time::Duration;

use ringway_control::core::coordination::CoordinatorConfig;
use ringway_control::core::coordination::errors::Code;
use ringway_control::core::coordination::request::{Event, Regroup, Reply, ReplyTo, Request};
use ringway_control::core::coordination::rounds::{RoundLimits, RoundTable, knock_key};

use super::bench::*;

const AT_ONCE: Duration = Duration::ZERO;

/// A wish of a life that was in `after`: for as many as there are, without waiting for more.
fn wish(index: u32, life: u64, after: u64) -> Regroup {
    Regroup {
        group: "job".to_owned(),
        process: process(index, life),
        after,
        limits: RoundLimits { least: 2, most: 3 },
        enough: 3,
        last_call: AT_ONCE,
        newcomers: true,
        addresses: vec![index as u8],
        timeout: Some(Duration::from_secs(5)),
        hosts_coordinator: false,
        fresh_secret: [index as u8 + 1; 32],
    }
}

fn regroup(bench: &mut Bench, wish: Regroup) -> ReplyTo {
    bench.ask(Request::Regroup(Box::new(wish)))
}

fn table(bench: &mut Bench, reply: ReplyTo) -> Arc<RoundTable> {
    match bench.answers.remove(&reply) {
        Some(Ok(Reply::Round(table))) => table,
        other => panic!("{other:?}"),
    }
}

fn members(table: &RoundTable) -> Vec<(u32, u64)> {
    let of = |member: &ringway_control::core::coordination::groups::GroupMember| {
        (member.process.task.index(), member.process.incarnation.0)
    };
    table.group.members.iter().map(of).collect()
}

/// Three tasks in generation 1.
fn up() -> Bench {
    let mut bench = Bench::up();
    let asked: Vec<ReplyTo> = [2, 0, 1]
        .map(|index| regroup(&mut bench, Regroup { last_call: Duration::from_secs(1), ..wish(index, 1, 0) }))
        .into();
    for reply in asked {
        let table = table(&mut bench, reply);
        assert_eq!((table.generation, table.carried, members(&table)), (1, 0, vec![(0, 1), (1, 1), (2, 1)]));
    }
    bench
}

fn killed(bench: &mut Bench, index: u32) {
    bench.event(Event::ProcessEnded { task: worker(index), how: "was killed by SIGKILL".to_owned() });
}

/// R1, R4 and R5.
#[test]
fn survivors_go_on_and_a_replacement_is_let_in() {
    let mut bench = up();
    let early = regroup(&mut bench, wish(1, 1, 1));
    assert!(bench.answers.is_empty(), "R4: the others live");
    killed(&mut bench, 0);
    assert!(bench.answers.is_empty(), "R4: task 2 lives");
    let last = regroup(&mut bench, wish(2, 1, 1));
    let (one, other) = (table(&mut bench, early), table(&mut bench, last));
    assert_eq!(one, other, "R1");
    assert_eq!((one.generation, one.carried, members(&one)), (2, 2, vec![(1, 1), (2, 1)]));
    // The replacement waits, and the members hear of it.
    let knock = bench.ask(Request::Get { key: knock_key("job", 2) });
    bench.now(register(0, 2)).unwrap();
    let newcomer = regroup(&mut bench, wish(0, 2, 0));
    assert!(bench.answers.remove(&knock).is_some_and(|answer| answer.is_ok()));
    let again = regroup(&mut bench, wish(2, 1, 1));
    assert_eq!(table(&mut bench, again), one, "a member whose answer was lost is answered again");
    let grown = [1, 2].map(|index| regroup(&mut bench, wish(index, 1, 2)));
    let whole = table(&mut bench, newcomer);
    assert_eq!((whole.generation, whole.carried, members(&whole)), (3, 2, vec![(1, 1), (2, 1), (0, 2)]));
    assert!(grown.map(|reply| table(&mut bench, reply)).iter().all(|table| *table == whole), "R1");
    let gone = bench.now(Request::TryGet { key: knock_key("job", 2) });
    assert_eq!(code(&gone), Some(Code::NotFound), "nobody knocks any more");
}

/// R4: one member's word is enough to go on without newcomers.
#[test]
fn newcomers_wait_while_members_shrink() {
    let mut bench = up();
    killed(&mut bench, 2);
    bench.now(register(2, 2)).unwrap();
    let newcomer = regroup(&mut bench, wish(2, 2, 0));
    let shrunk = [(0, false), (1, true)]
        .map(|(index, newcomers)| regroup(&mut bench, Regroup { newcomers, ..wish(index, 1, 1) }));
    let shrunk = shrunk.map(|reply| table(&mut bench, reply));
    assert_eq!(members(&shrunk[0]), [(0, 1), (1, 1)]);
    // It is announced to the new generation at once.
    assert!(bench.now(Request::TryGet { key: knock_key("job", 2) }).is_ok());
    bench.pass(Duration::from_secs(5));
    let refusal = bench.answers.remove(&newcomer).unwrap().unwrap_err();
    assert_eq!(refusal.code, Code::DeadlineExceeded, "R6");
    assert!(refusal.message.contains("its members have not let newcomers in"), "{refusal}");
}

/// R3.
#[test]
fn nobody_goes_on_with_fewer_than_the_least() {
    let mut bench = up();
    killed(&mut bench, 0);
    killed(&mut bench, 1);
    let alone = regroup(&mut bench, wish(2, 1, 1));
    bench.pass_alive(Duration::from_secs(4));
    assert!(bench.answers.is_empty());
    bench.now(register(0, 2)).unwrap();
    let newcomer = regroup(&mut bench, wish(0, 2, 0));
    let two = table(&mut bench, alone);
    assert_eq!((members(&two), two.carried), (vec![(2, 1), (0, 2)], 1));
    assert_eq!(table(&mut bench, newcomer), two);
    killed(&mut bench, 0);
    let alone = regroup(&mut bench, wish(2, 1, 2));
    bench.pass_alive(Duration::from_secs(5));
    let refusal = bench.answers.remove(&alone).unwrap().unwrap_err();
    assert!(refusal.message.contains("1 of at least 2 members are there"), "{refusal}");
}

#[test]
fn fewer_than_enough_wait_for_a_last_call() {
    let mut bench = Bench::up();
    let second = Duration::from_secs(1);
    let first = regroup(&mut bench, Regroup { last_call: second, ..wish(0, 1, 0) });
    bench.pass(second);
    let other = regroup(&mut bench, Regroup { last_call: second, ..wish(1, 1, 0) });
    bench.pass(second / 2);
    assert!(bench.answers.is_empty());
    bench.pass(second / 2);
    assert_eq!(members(&table(&mut bench, first)), [(0, 1), (1, 1)]);
    table(&mut bench, other);
    assert_eq!(bench.machine.waiting(), 0);
}

/// R6.
#[test]
fn a_member_that_does_not_come_is_named() {
    let mut bench = up();
    let waits = [0, 2].map(|index| regroup(&mut bench, wish(index, 1, 1)));
    let late = &bench.machine.waits(8)[0];
    assert_eq!(late.late, [worker(1)]);
    bench.pass(Duration::from_secs(5));
    for reply in waits {
        let refusal = bench.answers.remove(&reply).unwrap().unwrap_err();
        assert!(
            refusal.message.contains("not there: rank 1 (/job:worker/task:1 (pid 101 on host here)"),
            "{refusal}"
        );
    }
    // R4: the next try needs it as well.
    let again = regroup(&mut bench, wish(0, 1, 1));
    regroup(&mut bench, wish(2, 1, 1));
    assert!(bench.answers.is_empty());
    bench.event(Event::Gone { reply: again });
    regroup(&mut bench, wish(1, 1, 1));
    assert!(bench.answers.is_empty(), "one whose caller has gone has not come");
}

#[test]
fn callers_agree_on_limits_that_can_be() {
    let mut bench = Bench::up();
    let limits = |least, most| Regroup { limits: RoundLimits { least, most }, ..wish(0, 1, 0) };
    for (least, most) in [(0, 3), (3, 2), (4, 9)] {
        let refused = bench.now(Request::Regroup(Box::new(limits(least, most))));
        assert_eq!(code(&refused), Some(Code::InvalidArgument), "{least} to {most}");
    }
    regroup(&mut bench, wish(0, 1, 0));
    let other = Regroup { limits: RoundLimits { least: 1, most: 3 }, ..wish(1, 1, 0) };
    let refusal = bench.now(Request::Regroup(Box::new(other))).unwrap_err();
    assert!(refusal.message.contains("wants 1 to 3 members, the others 2 to 3"), "{refusal}");
    let unknown =
        bench.now(Request::Regroup(Box::new(Regroup { group: "other".to_owned(), ..wish(1, 1, 7) })));
    assert_eq!(code(&unknown), Some(Code::FailedPrecondition));
}

/// R7.
#[test]
fn a_series_ends_with_its_members_or_begins_anew() {
    let mut bench = up();
    killed(&mut bench, 2);
    bench.now(register(2, 2)).unwrap();
    let newcomer = regroup(&mut bench, wish(2, 2, 0));
    for index in [0, 1] {
        bench.now(Request::Shutdown { task: worker(index) }).unwrap();
    }
    let refusal = bench.answers.remove(&newcomer).unwrap().unwrap_err();
    assert!(
        refusal.message.contains("is over: the members of its generation 1 have left in order"),
        "{refusal}"
    );

    let mut bench = up();
    (0..3).for_each(|index| killed(&mut bench, index));
    let anew: Vec<ReplyTo> = (0..3)
        .map(|index| {
            bench.now(register(index, 2)).unwrap();
            regroup(&mut bench, Regroup { last_call: Duration::from_secs(1), ..wish(index, 2, 0) })
        })
        .collect();
    let whole = table(&mut bench, anew[0]);
    assert_eq!((whole.generation, whole.carried), (2, 0));
}

#[test]
fn a_group_of_a_fixed_size_is_the_first_generation_of_its_name() {
    let mut bench = Bench::up();
    (0..3).for_each(|index| {
        bench.ask(join(index, Some(2 - index), 3));
    });
    killed(&mut bench, 1);
    let of = |index| Regroup { group: "world".to_owned(), ..wish(index, 1, 1) };
    let both = [0, 2].map(|index| regroup(&mut bench, of(index)));
    let next = both.map(|reply| table(&mut bench, reply));
    assert_eq!((next[0].generation, next[0].carried), (2, 2));
    assert_eq!(members(&next[0]), [(2, 1), (0, 1)], "R5: in the order of their ranks");
}

#[test]
fn generations_outlive_their_coordinator() {
    let durable = || CoordinatorConfig { durable: true, ..CoordinatorConfig::one_job("worker", 3) };
    let mut bench = Bench::with(|config| *config = durable());
    let asked: Vec<ReplyTo> = (0..3)
        .map(|index| {
            bench.now(register(index, 1)).unwrap();
            regroup(&mut bench, Regroup { last_call: Duration::from_secs(1), ..wish(index, 1, 0) })
        })
        .collect();
    let made = table(&mut bench, asked[0]);
    let entries: Vec<_> = bench.stored.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    let mut next = Bench::with(|config| *config = durable());
    next.machine =
        ringway_control::core::coordination::Coordinator::restore(durable(), entries, next.now).unwrap();
    let again = regroup(&mut next, wish(1, 1, 0));
    assert_eq!(table(&mut next, again), made);
    killed(&mut next, 0);
    let both = [1, 2].map(|index| regroup(&mut next, wish(index, 1, 1)));
    let shrunk = both.map(|reply| table(&mut next, reply));
    assert_eq!((shrunk[0].generation, members(&shrunk[0])), (2, vec![(1, 1), (2, 1)]));
}
