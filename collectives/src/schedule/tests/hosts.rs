//! All-reduce over hosts of several ranks.

use super::passes_check;
use crate::schedule::simulate::{Network, Posting, Resource, Workload, price};
use crate::schedule::*;

const POSTINGS: [Posting; 3] = [Posting::STRICT, Posting::WIDE, Posting::BUFFERED];

fn both(ranks: u32, ranks_per_host: u32, among: Algorithm) -> impl Iterator<Item = AnySchedule> {
    let leaders = LeaderAllReduce::new(ranks, ranks_per_host, among).map(AnySchedule::from);
    let lanes = LaneAllReduce::new(ranks, ranks_per_host, among).map(AnySchedule::from);
    leaders.into_iter().chain(lanes)
}

#[test]
fn hierarchical_all_reduces_are_right_for_1_to_60_ranks_in_hosts_of_any_size() {
    for ranks in 1..=60 {
        for ranks_per_host in (1..=9).chain([16, ranks]) {
            for &among in Collective::AllReduce.algorithms() {
                for schedule in both(ranks, ranks_per_host, among) {
                    // Each schedule under one of the postings in turn.
                    let posting = POSTINGS[((ranks + ranks_per_host) % 3) as usize];
                    passes_check(Collective::AllReduce, among, 0, schedule, posting, u32::MAX);
                    assert_eq!(schedule.steps(0), (0..).map_while(|i| schedule.step(0, i)).count() as u32);
                }
            }
        }
    }
}

#[test]
fn hierarchical_all_reduces_are_right_at_samples_to_4096_ranks() {
    for (ranks, ranks_per_host) in [(512, 8), (1000, 10), (4096, 64), (4095, 8)] {
        for among in [Algorithm::Doubling, Algorithm::Halving, Algorithm::Tree] {
            for schedule in both(ranks, ranks_per_host, among) {
                passes_check(Collective::AllReduce, among, 0, schedule, Posting::STRICT, 16);
            }
        }
    }
}

#[test]
fn what_cannot_be_laid_out_does_not_exist() {
    assert_eq!(LeaderAllReduce::new(0, 1, Algorithm::Ring), None);
    assert_eq!(LeaderAllReduce::new(8, 0, Algorithm::Ring), None);
    assert_eq!(LeaderAllReduce::new(8, 2, Algorithm::Chain), None);
    assert_eq!(LaneAllReduce::new(9, 2, Algorithm::Ring), None);
    assert!(LaneAllReduce::new(8, 2, Algorithm::Ring).is_some());
    assert!(LeaderAllReduce::new(9, 2, Algorithm::Ring).is_some());
}

/// Seven hosts of six ranks, shared memory inside, one interface of 25 Gbit/s each.
#[test]
fn hierarchy_pays_where_hosts_are_far_apart() {
    let inside = LinkCosts::SHARED_MEMORY;
    let between =
        LinkCosts { latency_us: 10.0, message_us: 2.0, bytes_per_us: 3_000.0, ..LinkCosts::TCP_LOOPBACK };
    let network = Network::hosts(42, 6, inside, between);
    let priced = |schedule: AnySchedule, bytes| {
        let work =
            Workload { bytes, slice_bytes: (1 << 20) / u64::from(schedule.chunks()), slices_in_flight: 8 };
        price(&schedule, Collective::AllReduce, &network, &work).unwrap()
    };
    let flat = |algorithm| AnySchedule::new(Collective::AllReduce, algorithm, 42, 0).unwrap();
    let leaders: AnySchedule = LeaderAllReduce::new(42, 6, Algorithm::Doubling).unwrap().into();
    let lanes: AnySchedule = LaneAllReduce::new(42, 6, Algorithm::Ring).unwrap().into();
    for (bytes, hierarchical) in [(8 << 10, leaders), (1 << 20, lanes), (64 << 20, lanes)] {
        let time_us = priced(hierarchical, bytes).time_us;
        let exists = |a: &Algorithm| AnySchedule::new(Collective::AllReduce, *a, 42, 0).is_some();
        for algorithm in Collective::AllReduce.algorithms().iter().copied().filter(exists) {
            let flat_us = priced(flat(algorithm), bytes).time_us;
            assert!(time_us < flat_us, "{hierarchical:?} {time_us} us, {algorithm} {flat_us} us, {bytes} B");
        }
    }
    // Each byte leaves a host about twice by lanes; by doubling, once for each of its ranks in each round.
    let out = |schedule| {
        let found = priced(schedule, 1 << 20);
        let out = found.loads.iter().filter(|load| load.resource == Resource::HostOut(0));
        out.map(|load| load.bytes).sum::<f64>() / f64::from(1 << 20)
    };
    let by_lanes = out(lanes);
    assert!((by_lanes - 12.0 / 7.0).abs() < 1e-6, "{by_lanes}");
    let by_doubling = out(flat(Algorithm::Doubling));
    assert!(by_doubling > 6.0, "{by_doubling}");
}
