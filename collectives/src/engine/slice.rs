//! How a call is cut into slices that run one after another, several at a time.
//!
//! Slice `s` takes the `s`-th piece of every chunk and runs the whole schedule on it, so that the reduction of one
//! slice overlaps the wire time of others while its data is in cache. All ranks cut alike: everything here is a
//! function of what their stamps agree on and of the settings.

#![forbid(unsafe_code)]

use super::hazard::WINDOW;
use crate::schedule::{AnySchedule, Schedule};
use std::ops::Range;

/// Part `index` of `parts` near-equal parts of `total`: the first `total % parts` of them are longer by one.
#[inline]
pub(super) fn near_equal(total: usize, parts: usize, index: usize) -> Range<usize> {
    if parts == 1 {
        return 0..total;
    }
    let (each, longer) = (total / parts, total % parts);
    let start = index * each + index.min(longer);
    start..start + each + usize::from(index < longer)
}

/// Most chunks that one `Reduce` step of any rank spans.
pub(super) fn widest_reduce(schedule: &AnySchedule) -> u32 {
    match schedule {
        // A folded rank hands over everything.
        AnySchedule::HalvingAllReduce(s) if !s.ranks.is_power_of_two() => schedule.chunks(),
        AnySchedule::LeaderSchedule(_) => schedule.chunks(),
        AnySchedule::LaneAllReduce(s) => s.widest(),
        AnySchedule::HalvingAllReduce(_) | AnySchedule::HalvingReduceScatter(_) => {
            (schedule.chunks() / 2).max(1)
        }
        _ => 1,
    }
}

/// Most chunks that one message spans.
pub(super) fn widest_message(schedule: &AnySchedule) -> u32 {
    match schedule {
        AnySchedule::HalvingAllReduce(_)
        | AnySchedule::HalvingReduceScatter(_)
        | AnySchedule::DoublingAllGather(_)
        | AnySchedule::ScatterAllGatherBroadcast(_)
        | AnySchedule::TreeGather(_)
        | AnySchedule::LeaderSchedule(_)
        | AnySchedule::TreeScatter(_) => schedule.chunks(),
        AnySchedule::LaneAllReduce(s) => s.widest(),
        _ => 1,
    }
}

/// Most messages to one peer in one direction that a slice has posted at a time: what it needs of the transport's
/// depth.
pub(super) fn burst(schedule: &AnySchedule) -> u32 {
    let neighbours_most = (2 * schedule.ranks()).min(WINDOW as u32 / 2);
    match schedule {
        AnySchedule::RingAllReduce(_)
        | AnySchedule::RingReduceScatter(_)
        | AnySchedule::RingAllGather(_)
        | AnySchedule::RingReduce(_)
        | AnySchedule::LeaderSchedule(_) => neighbours_most,
        AnySchedule::LaneAllReduce(s) if !s.has_others() => neighbours_most,
        // A rank without a lane has nothing but sends to one that has.
        AnySchedule::LaneAllReduce(s) => s.chunks().min(WINDOW as u32).max(neighbours_most),
        // The chain's first rank has nothing but sends to the next, its last nothing but receives.
        AnySchedule::ChainReduceScatter(_) => (2 * schedule.ranks()).min(WINDOW as u32),
        // A leaf of the scatter's tree has nothing but receives from its neighbour.
        AnySchedule::ScatterAllGatherBroadcast(_) => (2 * schedule.ranks()).min(WINDOW as u32),
        // A child's message of each tree, and the parent's.
        AnySchedule::DoubleTree(_) => 4,
        _ => 2,
    }
}

/// Slices under way at a time, and the depth that a run needs for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) lanes: u32,
    /// Messages per peer and direction that all lanes may have posted; 0 where the transport is too shallow for even
    /// one, which must then keep to one message each way.
    pub(super) depth: u32,
}

/// Shares `depth` out among at most `wanted` lanes. Several lanes could fill a queue with messages that the other side
/// posts only after one that found it full, so there are as many as the depth holds the bursts of.
pub(super) fn share(schedule: &AnySchedule, wanted: u32, slices: u32, depth: u32) -> Share {
    let burst = burst(schedule);
    let lanes = wanted.min(slices).min(depth / burst);
    Share { lanes: lanes.max(1), depth: lanes * burst }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Algorithm, Collective, Step};

    fn schedules(ranks: u32) -> impl Iterator<Item = AnySchedule> {
        Collective::ALL.into_iter().flat_map(move |c| {
            c.algorithms().iter().filter_map(move |a| AnySchedule::new(c, *a, ranks, ranks / 3))
        })
    }

    #[test]
    fn parts_cover_the_whole_in_order() {
        for total in [0, 1, 7, 64, 1000] {
            for parts in [1, 2, 3, 7, 64] {
                let mut at = 0;
                for index in 0..parts {
                    let part = near_equal(total, parts, index);
                    assert_eq!(part.start, at);
                    assert!(part.len() <= total.div_ceil(parts));
                    at = part.end;
                }
                assert_eq!(at, total);
            }
        }
    }

    #[test]
    fn bounds_hold_for_every_step() {
        for ranks in 1..=17 {
            for schedule in schedules(ranks) {
                let (reduce, message) = (widest_reduce(&schedule), widest_message(&schedule));
                for rank in 0..ranks {
                    let mut index = 0;
                    while let Some(step) = schedule.step(rank, index) {
                        assert!(step.span().count <= message, "{schedule:?}: {step}");
                        if matches!(step, Step::Reduce { .. }) {
                            assert!(step.span().count <= reduce, "{schedule:?}: {step}");
                        }
                        index += 1;
                    }
                }
            }
        }
    }

    #[test]
    fn bursts_hold_for_every_window() {
        for ranks in 1..=17 {
            for schedule in schedules(ranks) {
                for rank in 0..ranks {
                    let steps: Vec<Step> = (0..).map_while(|i| schedule.step(rank, i)).collect();
                    for window in steps.windows(WINDOW.min(steps.len()).max(1)) {
                        for step in window {
                            let same = |s: &&Step| s.is_send() == step.is_send() && s.peer() == step.peer();
                            let count = window.iter().filter(same).count() as u32;
                            assert!(count <= burst(&schedule), "{schedule:?} rank {rank}: {count} {steps:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_shallow_transport_gets_one_lane() {
        let ring = AnySchedule::new(Collective::AllReduce, Algorithm::Ring, 9, 0).unwrap();
        assert_eq!(share(&ring, 4, 100, 1), Share { lanes: 1, depth: 0 });
        assert_eq!(share(&ring, 4, 100, 64), Share { lanes: 4, depth: 32 });
        assert_eq!(share(&ring, 4, 2, 64).lanes, 2);
    }
}
