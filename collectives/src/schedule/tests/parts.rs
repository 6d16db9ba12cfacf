//! I7: which chunks are combined alike.

use super::schedules;
use crate::schedule::simulate::mix;
use crate::schedule::*;
use std::collections::{HashMap, VecDeque};

/// Runs all ranks with every send buffered, on expressions whose operands have no order. Answers what each chunk of `rank`
/// ends as.
fn expressions(schedule: &AnySchedule, rank: Rank) -> Vec<u64> {
    let (ranks, chunks) = (schedule.ranks(), schedule.chunks() as usize);
    let combined = |a: u64, b: u64| mix(mix(a).wrapping_add(mix(b)));
    let mut memory: Vec<Vec<u64>> = (0..ranks).map(|rank| vec![mix(u64::from(rank)); chunks]).collect();
    let mut wire: HashMap<(Rank, Rank), VecDeque<Vec<u64>>> = HashMap::new();
    let mut next = vec![0; ranks as usize];
    // I10. A receive waits for its message here, so all before it is over.
    let gather = |rank: Rank, held: &mut [u64], gathered: Gathered| {
        let chunk = |position| match position == rank {
            true => gathered.part(rank) as usize,
            false => (gathered.chunks + position) as usize,
        };
        for Bracket { into, from, .. } in gathered.order.brackets(ranks, rank) {
            held[chunk(into)] = combined(held[chunk(into)], held[chunk(from)]);
        }
    };
    let mut is_gathered = vec![false; ranks as usize];
    loop {
        let mut moved = false;
        for rank in 0..ranks {
            loop {
                if let Some(gathered) = schedule.gathers().filter(|g| g.steps == next[rank as usize])
                    && !std::mem::replace(&mut is_gathered[rank as usize], true)
                {
                    gather(rank, &mut memory[rank as usize], gathered);
                    moved = true;
                }
                let Some(step) = schedule.step(rank, next[rank as usize]) else { break };
                let held = &mut memory[rank as usize][step.span().first as usize..step.span().end() as usize];
                match step {
                    Step::Send { to, .. } => wire.entry((rank, to)).or_default().push_back(held.to_vec()),
                    Step::Recv { from, .. } | Step::Reduce { from, .. } => {
                        let Some(came) = wire.get_mut(&(from, rank)).and_then(VecDeque::pop_front) else {
                            break;
                        };
                        let reduces = matches!(step, Step::Reduce { .. });
                        for (own, came) in held.iter_mut().zip(came) {
                            *own = if reduces { combined(*own, came) } else { came };
                        }
                    }
                }
                next[rank as usize] += 1;
                moved = true;
            }
        }
        if !moved {
            return memory.swap_remove(rank as usize);
        }
    }
}

fn check(what: &str, schedule: &AnySchedule, root: Rank) {
    let chunks = schedule.gathers().map_or(schedule.chunks(), |gathered| gathered.chunks);
    let parts = schedule.parts();
    assert!(parts >= 1 && chunks.is_multiple_of(parts), "{what}: {parts} parts of {chunks} chunks");
    let each = chunks / parts;
    for rank in 0..schedule.ranks() {
        let steps = (0..).map_while(|index| schedule.step(rank, index));
        for step in steps.filter(|step| step.span().first < chunks) {
            let (first, last) = (step.span().first / each, (step.span().end() - 1) / each);
            assert_eq!(first, last, "{what}, rank {rank}: {step}");
        }
    }
    let ends = expressions(schedule, root);
    for part in ends[..chunks as usize].chunks(each as usize) {
        assert!(part.iter().all(|chunk| *chunk == part[0]), "{what}: {part:?}");
    }
}

#[test]
fn chunks_of_a_part_are_combined_alike() {
    let mut differ = 0;
    for ranks in 1..=26 {
        for (collective, algorithm, root, schedule) in schedules(ranks) {
            if matches!(collective, Collective::AllReduce | Collective::Reduce) {
                check(&format!("{algorithm} {collective} of {ranks}, root {root}"), &schedule, root);
                differ += u32::from(schedule.parts() > 1);
            }
        }
        for lengths in super::hosts::shapes(ranks) {
            let hosts = Runs::of(&lengths).unwrap();
            for &among in Collective::AllReduce.algorithms() {
                let leaders = LeaderSchedule::new(Collective::AllReduce, hosts.clone(), None, among, 0);
                let lanes = LaneAllReduce::new(hosts.clone(), among);
                let both = [leaders.map(AnySchedule::from), lanes.map(AnySchedule::from)];
                for schedule in both.into_iter().flatten() {
                    check(&format!("{schedule:?}"), &schedule, 0);
                    differ += u32::from(schedule.parts() > 1);
                }
            }
        }
    }
    assert!(differ > 100, "{differ}");
}

#[test]
fn algorithms_that_are_called_alike_combine_alike() {
    // I9; and others do not, so that the test can tell.
    let mut differ = 0;
    for ranks in 1..=40 {
        let end = |algorithm| {
            let schedule = AnySchedule::new(Collective::AllReduce, algorithm, ranks, 0)?;
            Some(expressions(&schedule, ranks / 2)[0])
        };
        let doubling = end(Algorithm::Doubling);
        for &algorithm in Collective::AllReduce.algorithms() {
            let Some(found) = end(algorithm) else { continue };
            if Collective::AllReduce.are_alike(algorithm, Algorithm::Doubling) {
                assert_eq!(Some(found), doubling, "{algorithm}, {ranks} ranks");
            } else {
                differ += u32::from(Some(found) != doubling);
            }
        }
    }
    assert!(differ > 80, "{differ}");
    // A rank keeps its own block.
    for ranks in [1u32, 2, 4, 8, 16, 32] {
        for rank in 0..ranks {
            let end = |algorithm| {
                let schedule = AnySchedule::new(Collective::ReduceScatter, algorithm, ranks, 0).unwrap();
                expressions(&schedule, rank)[rank as usize]
            };
            let halving = end(Algorithm::Halving);
            for &algorithm in &[Algorithm::Ring, Algorithm::Direct, Algorithm::Exchange] {
                let alike = Collective::ReduceScatter.are_alike(algorithm, Algorithm::Halving);
                assert_eq!(end(algorithm) == halving, alike || ranks <= 2, "{algorithm}, {ranks} ranks");
            }
        }
    }
    assert!(!Collective::Reduce.are_alike(Algorithm::Tree, Algorithm::Ring));
    assert!(Collective::Broadcast.are_alike(Algorithm::Tree, Algorithm::Chain));
}
