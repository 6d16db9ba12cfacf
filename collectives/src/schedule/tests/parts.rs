//! I7: which chunks are combined alike.

use super::schedules;
use crate::schedule::simulate::mix;
use crate::schedule::*;
use std::collections::{HashMap, VecDeque};

/// Runs all ranks with every send buffered, on expressions whose operands have no order. Answers what each chunk of `rank`
/// ends as.
fn expressions(schedule: &AnySchedule, rank: Rank) -> Vec<u64> {
    let (ranks, chunks) = (schedule.ranks(), schedule.chunks() as usize);
    let mut memory: Vec<Vec<u64>> = (0..ranks).map(|rank| vec![mix(u64::from(rank)); chunks]).collect();
    let mut wire: HashMap<(Rank, Rank), VecDeque<Vec<u64>>> = HashMap::new();
    let mut next = vec![0; ranks as usize];
    loop {
        let mut moved = false;
        for rank in 0..ranks {
            while let Some(step) = schedule.step(rank, next[rank as usize]) {
                let held = &mut memory[rank as usize][step.span().first as usize..step.span().end() as usize];
                match step {
                    Step::Send { to, .. } => wire.entry((rank, to)).or_default().push_back(held.to_vec()),
                    Step::Recv { from, .. } | Step::Reduce { from, .. } => {
                        let Some(came) = wire.get_mut(&(from, rank)).and_then(VecDeque::pop_front) else {
                            break;
                        };
                        let reduces = matches!(step, Step::Reduce { .. });
                        for (own, came) in held.iter_mut().zip(came) {
                            *own = if reduces { mix(mix(*own).wrapping_add(mix(came))) } else { came };
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
    let (parts, chunks) = (schedule.parts(), schedule.chunks());
    assert!(parts >= 1 && chunks.is_multiple_of(parts), "{what}: {parts} parts of {chunks} chunks");
    let each = chunks / parts;
    for rank in 0..schedule.ranks() {
        for step in (0..).map_while(|index| schedule.step(rank, index)) {
            let (first, last) = (step.span().first / each, (step.span().end() - 1) / each);
            assert_eq!(first, last, "{what}, rank {rank}: {step}");
        }
    }
    let ends = expressions(schedule, root);
    for part in ends.chunks(each as usize) {
        assert!(part.iter().all(|chunk| *chunk == part[0]), "{what}: {part:?}");
    }
}

#[test]
fn chunks_of_a_part_are_combined_alike() {
    let mut differ = 0;
    for ranks in 1..=26 {
        for (collective, algorithm, root, schedule) in schedules(ranks) {
            if matches!(collective, Collective::AllReduce | Collective::Reduce) && !schedule.gathers() {
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
                for schedule in both.into_iter().flatten().filter(|schedule| !schedule.gathers()) {
                    check(&format!("{schedule:?}"), &schedule, 0);
                    differ += u32::from(schedule.parts() > 1);
                }
            }
        }
    }
    assert!(differ > 100, "{differ}");
}
