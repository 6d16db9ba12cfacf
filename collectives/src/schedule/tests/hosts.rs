//! All-reduce over hosts of several ranks.

use super::passes_check;
use crate::schedule::simulate::{Network, Posting, Resource, Workload, price};
use crate::schedule::*;

const POSTINGS: [Posting; 3] = [Posting::STRICT, Posting::WIDE, Posting::BUFFERED];

/// Hosts of some shapes: even, the last smaller, and ragged.
pub(super) fn shapes(ranks: u32) -> Vec<Vec<u32>> {
    let even = (1..=9).chain([16, ranks]).map(|each: u32| {
        let whole = vec![each.min(ranks); (ranks / each.min(ranks)) as usize];
        let rest = ranks - whole.iter().sum::<u32>();
        whole.into_iter().chain((rest > 0).then_some(rest)).collect::<Vec<_>>()
    });
    let ragged = [[1, 4, 2], [3, 1, 5], [7, 2, 2]].into_iter().map(|pattern| {
        let mut left = ranks;
        let lengths = pattern.into_iter().cycle().map_while(|len: u32| {
            let taken = len.min(left);
            left -= taken;
            (taken > 0).then_some(taken)
        });
        lengths.collect()
    });
    even.chain(ragged).collect()
}

/// The nodes of hosts, two to three of each.
fn nodes(hosts: &[u32]) -> Vec<u32> {
    let split = |host: u32| {
        let third = host.div_ceil(3);
        [third, third.min(host - third), host - third - third.min(host - third)]
    };
    hosts.iter().flat_map(|host| split(*host)).filter(|ranks| *ranks > 0).collect()
}

#[test]
fn schedules_over_hosts_are_right_for_1_to_130_ranks_in_hosts_of_any_shape() {
    for ranks in (1..=24).chain([33, 47, 64, 65, 130]) {
        for (number, lengths) in (0..).zip(shapes(ranks)) {
            let hosts = Runs::of(&lengths).unwrap();
            let nodes = (number % 2 == 0).then(|| Runs::of(&nodes(&lengths)).unwrap());
            // Each schedule under one of the postings in turn.
            let posting = POSTINGS[(ranks as usize + number) % 3];
            for collective in Collective::ALL {
                for &among in collective.algorithms() {
                    let root = if collective.is_rooted() { ranks * 2 / 3 } else { 0 };
                    let leaders = LeaderSchedule::new(collective, hosts.clone(), nodes.clone(), among, root);
                    let lanes = (collective == Collective::AllReduce)
                        .then(|| LaneAllReduce::new(hosts.clone(), among))
                        .flatten();
                    let both = [leaders.map(AnySchedule::from), lanes.map(AnySchedule::from)];
                    for schedule in both.into_iter().flatten() {
                        assert_eq!(
                            schedule.steps(0),
                            (0..).map_while(|i| schedule.step(0, i)).count() as u32
                        );
                        passes_check(collective, among, root, schedule, posting, u32::MAX);
                    }
                }
            }
        }
    }
}

#[test]
fn schedules_over_hosts_are_right_at_samples_to_4096_ranks() {
    for (ranks, ranks_per_host) in [(512, 8), (1000, 10), (4096, 64), (4095, 8)] {
        let hosts = Runs::even(ranks, ranks_per_host).unwrap();
        let nodes = Runs::even(ranks, ranks_per_host / 2);
        for among in [Algorithm::Doubling, Algorithm::Halving, Algorithm::Tree, Algorithm::DoubleTree] {
            let what = Collective::AllReduce;
            let leaders = LeaderSchedule::new(what, hosts.clone(), nodes.clone(), among, 0);
            // I7: trees inside hosts carry both halves of a double tree's buffer at once.
            assert_eq!(leaders.is_none(), among == Algorithm::DoubleTree);
            let lanes = LaneAllReduce::new(hosts.clone(), among).unwrap();
            for schedule in leaders.map(AnySchedule::from).into_iter().chain([lanes.into()]) {
                passes_check(what, among, 0, schedule, Posting::STRICT, 16);
            }
        }
    }
}

#[test]
fn what_cannot_be_laid_out_does_not_exist() {
    let hosts = || Runs::even(8, 2).unwrap();
    let leaders = |what, among, root| LeaderSchedule::new(what, hosts(), None, among, root);
    assert_eq!(leaders(Collective::AllReduce, Algorithm::Dissemination, 0), None);
    assert_eq!(leaders(Collective::AllToAll, Algorithm::Direct, 0), None);
    assert_eq!(leaders(Collective::Broadcast, Algorithm::Tree, 8), None);
    assert!(leaders(Collective::Broadcast, Algorithm::Tree, 7).is_some());
    assert_eq!(LaneAllReduce::new(hosts(), Algorithm::Dissemination), None);
    assert!(LaneAllReduce::new(Runs::of(&[2, 1, 3]).unwrap(), Algorithm::Ring).is_some());
}

/// A broadcast through leaders enters each host once, however ragged hosts are; the tree of ranks does not know them.
#[test]
fn a_broadcast_through_leaders_enters_each_host_once() {
    let lengths = [3, 1, 5, 2, 4, 1];
    let group = Arrangement::new(&(0..16).collect::<Vec<_>>(), &lengths).unwrap();
    let hosts = Runs::of(&lengths).unwrap();
    let crossings = |algorithm| {
        let schedule = group.schedule(Collective::Broadcast, algorithm, 9).unwrap();
        let sends = (0..16).flat_map(|rank| {
            let steps = (0..).map_while(|index| schedule.step(rank, index));
            steps.filter(Step::is_send).map(|step| (rank, step.peer())).collect::<Vec<_>>()
        });
        sends.filter(|(from, to)| hosts.find(*from) != hosts.find(*to)).count()
    };
    assert_eq!(crossings(Algorithm::Leaders), 5);
    assert!(crossings(Algorithm::Tree) > 5);
}

/// Seven hosts of six ranks, shared memory inside, one interface of 25 Gbit/s each.
#[test]
fn hierarchy_pays_where_hosts_are_far_apart() {
    let inside = LinkCosts::SHARED_MEMORY;
    let between = LinkCosts {
        latency_us: 10.0,
        message_us: 2.0,
        eager_message_us: 2.0,
        bytes_per_us: 3_000.0,
        ..LinkCosts::TCP_LOOPBACK
    };
    let network = Network::hosts(42, 6, inside, between);
    let priced = |schedule: &AnySchedule, bytes| {
        let work =
            Workload { bytes, slice_bytes: (1 << 20) / u64::from(schedule.chunks()), slices_in_flight: 8 };
        price(schedule, Collective::AllReduce, &network, &work).unwrap()
    };
    let flat = |algorithm| AnySchedule::new(Collective::AllReduce, algorithm, 42, 0).unwrap();
    let hosts = || Runs::even(42, 6).unwrap();
    let leaders: AnySchedule =
        LeaderSchedule::new(Collective::AllReduce, hosts(), None, Algorithm::Doubling, 0).unwrap().into();
    let lanes: AnySchedule = LaneAllReduce::new(hosts(), Algorithm::Ring).unwrap().into();
    for (bytes, hierarchical) in [(8 << 10, &leaders), (1 << 20, &lanes), (64 << 20, &lanes)] {
        let time_us = priced(hierarchical, bytes).time_us;
        let exists = |a: &Algorithm| AnySchedule::new(Collective::AllReduce, *a, 42, 0).is_some();
        for algorithm in Collective::AllReduce.algorithms().iter().copied().filter(exists) {
            let flat_us = priced(&flat(algorithm), bytes).time_us;
            assert!(time_us < flat_us, "{hierarchical:?} {time_us} us, {algorithm} {flat_us} us, {bytes} B");
        }
    }
    // Each byte leaves a host about twice by lanes; by doubling, once for each of its ranks in each round.
    let out = |schedule: &AnySchedule| {
        let found = priced(schedule, 1 << 20);
        let out = found.loads.iter().filter(|load| load.resource == Resource::HostOut(0));
        out.map(|load| load.bytes).sum::<f64>() / f64::from(1 << 20)
    };
    let by_lanes = out(&lanes);
    assert!((by_lanes - 12.0 / 7.0).abs() < 1e-6, "{by_lanes}");
    let by_doubling = out(&flat(Algorithm::Doubling));
    assert!(by_doubling > 6.0, "{by_doubling}");
}
