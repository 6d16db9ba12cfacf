//! T1 to T4: steps over workers that fail, answer late or never, in simulation.

use std::time::Duration;

use super::super::step::{Effect, Event, Failure, GRACE, Step};
use super::*;
use crate::core::coordination::errors::Code;
use crate::core::machine::Machine;
use crate::core::simulate::random::Random;
use crate::core::time::Time;

fn failure(code: Code, message: &str, lost: bool) -> Failure {
    Failure { code, message: message.to_owned(), lost }
}

fn tasks(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("/job:worker/replica:0/task:{at}")).collect()
}

/// What each worker of a simulated step does.
#[derive(Clone, Debug)]
enum Fate {
    Answers(Duration),
    Fails(Duration, Failure),
    Silent,
}

/// Runs a step; when it ended, how, and which parts were cancelled and cleaned up.
fn play(fates: &[Fate], limit: Option<Duration>) -> (Time, Result<(), MasterError>, Vec<usize>, Vec<usize>) {
    let mut step = Step::new(7, tasks(fates.len()), Time::ZERO, limit);
    let mut events: Vec<(Time, usize, Result<(), Failure>)> = Vec::new();
    for (part, fate) in fates.iter().enumerate() {
        match fate {
            Fate::Answers(after) => events.push((Time::ZERO + *after, part, Ok(()))),
            Fate::Fails(after, why) => events.push((Time::ZERO + *after, part, Err(why.clone()))),
            Fate::Silent => {}
        }
    }
    events.sort_by_key(|(at, part, _)| (*at, *part));
    let (mut events, mut out, mut now) = (events.into_iter().peekable(), Vec::new(), Time::ZERO);
    while !out.iter().any(|effect| matches!(effect, Effect::Finish(_))) {
        let due = step.deadline();
        match events.peek() {
            Some((at, _, _)) if due.is_none_or(|due| *at < due) => {
                let (at, part, result) = events.next().unwrap();
                now = at;
                step.on_event(at, Event::Answered { part, result }, &mut out);
            }
            _ => {
                now = due.expect("a step whose workers are silent has a deadline");
                step.on_time(now, &mut out);
            }
        }
    }
    // What comes later changes nothing.
    let before = out.len();
    for (at, part, result) in events {
        step.on_event(at, Event::Answered { part, result }, &mut out);
        step.on_time(at, &mut out);
    }
    assert_eq!((out.len(), step.deadline()), (before, None));
    let (mut result, mut cancelled, mut cleaned) = (None, Vec::new(), Vec::new());
    for effect in out {
        match effect {
            Effect::Cancel(part) => cancelled.push(part),
            Effect::CleanUp(part) => cleaned.push(part),
            Effect::Finish(how) => assert_eq!(result.replace(how), None, "a step ends once"),
        }
    }
    (now, result.unwrap(), cancelled, cleaned)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn t2_a_lost_worker_is_the_cause_whoever_speaks_first() {
    let fates = [
        Fate::Fails(ms(5), failure(Code::Unavailable, "peer is gone", false)),
        Fate::Fails(ms(40), failure(Code::Unavailable, "connection lost", true)),
        Fate::Silent,
    ];
    let (at, result, cancelled, cleaned) = play(&fates, None);
    assert_eq!(at, Time::ZERO + ms(40));
    assert_eq!(result.unwrap_err().to_string(), "From /job:worker/replica:0/task:1:\nconnection lost");
    assert_eq!((cancelled, cleaned), (vec![2], vec![0, 2]));
}

#[test]
fn t3_an_echo_waits_for_its_cause_and_not_for_ever() {
    let echo = || failure(Code::Cancelled, "cancelled", false);
    let fates = [Fate::Fails(ms(5), echo()), Fate::Silent];
    let (at, result, cancelled, _) = play(&fates, None);
    assert_eq!((at, cancelled), (Time::ZERO + ms(5) + GRACE, vec![1]));
    assert_eq!(result.unwrap_err().code(), Code::Cancelled);
    let fates =
        [Fate::Fails(ms(5), echo()), Fate::Fails(ms(9), failure(Code::InvalidArgument, "by zero", false))];
    assert!(play(&fates, None).1.unwrap_err().to_string().ends_with("by zero"));
}

#[test]
fn t3_a_deadline_names_who_did_not_answer() {
    let (at, result, _, _) = play(&[Fate::Answers(ms(3)), Fate::Silent], Some(ms(50)));
    let error = result.unwrap_err();
    assert_eq!((at, error.code()), (Time::ZERO + ms(50), Code::DeadlineExceeded));
    assert!(error.to_string().contains("no answer from /job:worker/replica:0/task:1"), "{error}");
}

#[test]
fn a_session_that_ends_ends_the_step() {
    let (mut step, mut out) = (Step::new(1, tasks(2), Time::ZERO, None), Vec::new());
    let why = MasterError::SessionClosed("s".to_owned());
    step.on_event(Time::ZERO, Event::Cancelled(why.clone()), &mut out);
    assert_eq!(out.last(), Some(&Effect::Finish(Err(why))));
    assert_eq!(out.len(), 5);
}

#[test]
fn steps_end_once_in_time_and_with_a_true_cause() {
    for seed in 0..3000 {
        let random = &mut Random::new(seed);
        let fates: Vec<Fate> = (0..1 + random.below(6))
            .map(|_| {
                let after = random.span(ms(0), ms(900));
                match random.below(6) {
                    0 => Fate::Silent,
                    1 => Fate::Fails(after, failure(Code::Internal, "own", false)),
                    2 => Fate::Fails(after, failure(Code::Cancelled, "echo", false)),
                    3 => Fate::Fails(after, failure(Code::Unavailable, "gone", true)),
                    _ => Fate::Answers(after),
                }
            })
            .collect();
        let limit = ms(800);
        let (at, result, cancelled, cleaned) = play(&fates, Some(limit));
        let fail = |what: &str| panic!("seed {seed}: {what}: {fates:?} gave {result:?} at {at}");
        let all_well = fates.iter().all(|fate| matches!(fate, Fate::Answers(after) if *after < limit));
        if result.is_ok() != all_well {
            fail("success is that of all parts");
        }
        if at > Time::ZERO + limit {
            fail("a step ends by its deadline");
        }
        let heard = |fate: &Fate| match fate {
            Fate::Answers(after) | Fate::Fails(after, _) => Time::ZERO + *after <= at,
            Fate::Silent => false,
        };
        for (part, fate) in fates.iter().enumerate() {
            let lost = matches!(fate, Fate::Fails(_, failure) if failure.lost && heard(fate));
            if cleaned.contains(&part) == lost {
                fail("a step is cleaned up where it can be");
            }
            if cancelled.contains(&part) && heard(fate) && at < Time::ZERO + limit {
                // At the very deadline an answer may not have been taken in.
                let same_time = matches!(fate, Fate::Answers(a) | Fate::Fails(a, _) if Time::ZERO + *a == at);
                if !same_time {
                    fail("what has answered is not cancelled");
                }
            }
        }
        let lost_heard = fates.iter().any(|fate| matches!(fate, Fate::Fails(_, f) if f.lost && heard(fate)));
        if let Err(MasterError::Worker { message, .. }) = &result
            && lost_heard
            && message != "gone"
        {
            fail("a lost worker is the cause");
        }
    }
}
