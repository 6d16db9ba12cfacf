//! Every schedule, for every number of ranks to 130 and samples to 4,096, and schedules broken on purpose.

mod arrangements;
mod broken;
mod choosing;
mod hosts;
mod measured;
mod parts;
mod symmetries;

use super::simulate::{Check, Posting, verify};
use super::*;

/// Each schedule of `ranks` ranks, from the first, the last and a middle root where there is one.
fn schedules(ranks: u32) -> Vec<(Collective, Algorithm, Rank, AnySchedule)> {
    let mut found = Vec::new();
    for collective in Collective::ALL {
        let mut roots = if collective.is_rooted() { vec![0, ranks / 3, ranks - 1] } else { vec![0] };
        roots.dedup();
        for &algorithm in collective.algorithms() {
            for &root in &roots {
                if let Some(schedule) = AnySchedule::new(collective, algorithm, ranks, root) {
                    found.push((collective, algorithm, root, schedule));
                }
            }
        }
    }
    found
}

/// Panics with all that it takes to run it again unless `schedule` is right.
fn passes_check(
    collective: Collective,
    algorithm: Algorithm,
    root: Rank,
    schedule: AnySchedule,
    posting: Posting,
    sampled_chunks: u32,
) {
    let seed = u64::from(schedule.ranks()) << 32 | u64::from(root);
    let check = Check { posting, seed, sampled_chunks, rank_order: schedule.keeps_rank_order() };
    if let Err(fault) = verify(&schedule, collective, root, &check) {
        panic!("{algorithm} {collective}, root {root}, {schedule:?}, {check:?}: {fault}");
    }
}

fn passes(ranks: u32, postings: &[Posting], sampled_chunks: u32, pick: impl Fn(&AnySchedule) -> bool) {
    for (collective, algorithm, root, schedule) in schedules(ranks).into_iter().filter(|s| pick(&s.3)) {
        for &posting in postings {
            passes_check(collective, algorithm, root, schedule.clone(), posting, sampled_chunks);
        }
    }
}

#[test]
fn all_schedules_are_right_for_1_to_130_ranks_with_the_least_credit() {
    for ranks in 1..=130 {
        passes(ranks, &[Posting::STRICT], u32::MAX, |_| true);
    }
}

#[test]
fn all_schedules_are_right_with_wide_windows_and_buffers() {
    for ranks in (1..=66).chain([95, 96, 97, 127, 128, 129, 130]) {
        passes(ranks, &[Posting::WIDE, Posting::BUFFERED], u32::MAX, |_| true);
    }
}

/// Whether the number of messages of the whole schedule grows with the square of the ranks.
fn is_quadratic(schedule: &AnySchedule) -> bool {
    schedule.steps(0).min(schedule.steps(1)) > 64
}

#[test]
fn schedules_of_few_messages_are_right_at_samples_to_4096_ranks() {
    for ranks in [131, 255, 256, 257, 511, 777, 1000, 1024, 1025, 2047, 3001, 4095, 4096] {
        passes(ranks, &[Posting::STRICT], 32, |s| !is_quadratic(s));
    }
    passes(4093, &[Posting::WIDE, Posting::BUFFERED], 32, |s| !is_quadratic(s));
}

#[test]
fn schedules_of_many_messages_are_right_at_samples_to_777_ranks() {
    for ranks in [191, 256] {
        passes(ranks, &[Posting::STRICT, Posting::WIDE], u32::MAX, is_quadratic);
    }
    passes(777, &[Posting::STRICT], u32::MAX, is_quadratic);
}

/// Every step, message and chunk of schedules of up to 33 million messages. A root only renumbers the ranks, so one
/// of them will do.
fn pass_at_4096(pick: impl Fn(Collective) -> bool) {
    const ROOT: Rank = 4096 / 3;
    let all = schedules(4096).into_iter();
    let many = all.filter(|s| is_quadratic(&s.3) && pick(s.0) && (s.2 == ROOT || !s.0.is_rooted()));
    let checked: Vec<Collective> = many
        .map(|(collective, algorithm, root, schedule)| {
            passes_check(collective, algorithm, root, schedule, Posting::STRICT, u32::MAX);
            collective
        })
        .collect();
    assert!(!checked.is_empty());
}

#[test]
fn all_reduces_of_many_messages_are_right_at_4096_ranks() {
    pass_at_4096(|collective| collective == Collective::AllReduce);
}

#[test]
fn other_schedules_of_many_messages_are_right_at_4096_ranks() {
    pass_at_4096(|collective| collective != Collective::AllReduce);
}

/// The steps of `rank` in order.
fn program(schedule: &impl Schedule, rank: Rank) -> Vec<Step> {
    (0..).map_while(|index| schedule.step(rank, index)).collect()
}

#[test]
fn steps_counts_a_program_and_room_covers_it() {
    for ranks in 1..=33 {
        for (collective, algorithm, root, schedule) in schedules(ranks) {
            for rank in 0..ranks {
                let steps = program(&schedule, rank);
                let place = format!("{algorithm} {collective} of {ranks} ranks, root {root}, rank {rank}");
                assert_eq!(schedule.steps(rank) as usize, steps.len(), "{place}");
                let room = schedule.room(rank);
                assert!(room.end() <= schedule.chunks(), "{place}");
                for step in steps {
                    let span = step.span();
                    assert!(span.first >= room.first && span.end() <= room.end(), "{place}: {step}, {room}");
                }
            }
        }
    }
}

#[test]
fn every_listed_algorithm_exists_at_powers_of_two_and_no_other_does() {
    for collective in Collective::ALL {
        for algorithm in Algorithm::ALL {
            // Those over hosts need an arrangement.
            use Algorithm::{LaneHalving, LaneTrees, Lanes, Leaders};
            let over_hosts = matches!(algorithm, Leaders | Lanes | LaneHalving | LaneTrees);
            let listed = collective.algorithms().contains(&algorithm) && !over_hosts;
            assert_eq!(
                AnySchedule::new(collective, algorithm, 8, 3).is_some(),
                listed,
                "{algorithm} {collective}"
            );
            let fits = listed
                && !(matches!(algorithm, Algorithm::Halving | Algorithm::Exchange)
                    && collective == Collective::ReduceScatter)
                && !(algorithm == Algorithm::Doubling && collective == Collective::AllGather);
            assert_eq!(
                AnySchedule::new(collective, algorithm, 6, 3).is_some(),
                fits,
                "{algorithm} {collective}"
            );
            assert_eq!(AnySchedule::new(collective, algorithm, 0, 0), None);
            assert_eq!(AnySchedule::new(collective, algorithm, MAX_RANKS + 1, 0), None);
            assert!(!collective.is_rooted() || AnySchedule::new(collective, algorithm, 8, 8).is_none());
        }
    }
}

#[test]
fn two_ranks_all_reduce_by_exchanging_halves() {
    let (send, reduce) =
        (|chunk| Step::Send { to: 1, span: Span::one(chunk) }, Step::Reduce { from: 1, span: Span::one(0) });
    let receive = Step::Recv { from: 1, span: Span::one(1) };
    for algorithm in [Algorithm::Ring, Algorithm::Halving] {
        let schedule = AnySchedule::new(Collective::AllReduce, algorithm, 2, 0).unwrap();
        assert_eq!(schedule.chunks(), 2);
        assert_eq!(program(&schedule, 0), [send(1), reduce, send(0), receive], "{algorithm}");
    }
}

#[test]
fn the_largest_groups_have_no_overflow() {
    for (collective, algorithm, root, schedule) in schedules(MAX_RANKS) {
        for rank in [0, 1, root, MAX_RANKS / 2, MAX_RANKS - 1] {
            let steps = schedule.steps(rank);
            assert!(schedule.step(rank, steps).is_none(), "{algorithm} {collective} rank {rank}");
            assert!(schedule.step(rank, u32::MAX).is_none(), "{algorithm} {collective} rank {rank}");
            for index in [0, steps / 3, steps / 2, steps.saturating_sub(1)].into_iter().filter(|&i| i < steps)
            {
                let step = schedule.step(rank, index).unwrap();
                assert!(
                    step.span().end() <= schedule.chunks() && step.peer() < MAX_RANKS && step.peer() != rank
                );
            }
        }
    }
}
