//! Ranks that do alike (I8): that they do, and that a simulation of some of them is one of all.

use super::hosts::shapes;
use crate::schedule::simulate::{Network, Place, SharedCores, Workload, distinct_ranks, price, priced};
use crate::schedule::*;
use std::collections::HashSet;

/// How far apart steps are looked at for conflicts: farther than any engine looks ahead.
const WINDOW: u32 = 24;

fn program(schedule: &AnySchedule, rank: Rank) -> Vec<Step> {
    (0..).map_while(|index| schedule.step(rank, index)).collect()
}

/// Every schedule of so many ranks whose ranks do alike, also over hosts of equally many.
fn schedules(ranks: u32) -> Vec<(Collective, AnySchedule)> {
    let mut found = HashSet::new();
    for collective in Collective::ALL {
        for &algorithm in collective.algorithms() {
            let root = if collective.is_rooted() { ranks / 2 } else { 0 };
            found.extend(AnySchedule::new(collective, algorithm, ranks, root).map(|s| (collective, s)));
            for lengths in shapes(ranks) {
                let group = Arrangement::new(&(0..ranks).collect::<Vec<_>>(), &lengths).unwrap();
                let over = group.schedule(collective, algorithm, root);
                found.extend(over.map(|s| (collective, s.among_positions().clone())));
            }
        }
    }
    let mut found: Vec<_> = found.into_iter().filter(|(_, schedule)| schedule.symmetry().is_some()).collect();
    found.sort_by_key(|(_, schedule)| format!("{schedule:?}"));
    found
}

#[test]
fn ranks_that_are_moved_onto_others_do_what_those_do() {
    let mut kinds = std::collections::BTreeSet::new();
    for ranks in (2..=12).chain([16, 24]) {
        for (collective, schedule) in schedules(ranks) {
            let Some(symmetry) = schedule.symmetry() else { continue };
            let blocks = symmetry.by_blocks(symmetry.period(), ranks).expect("its own period");
            kinds.insert(format!("{collective} {symmetry:?}").replace(char::is_numeric, ""));
            for number in blocks.generators() {
                for rank in 0..ranks {
                    let moved = blocks.moved(rank, number);
                    let (here, there) = (program(&schedule, rank), program(&schedule, moved));
                    assert_eq!(here.len(), there.len(), "{schedule:?} rank {rank}");
                    for (at, (a, b)) in here.iter().zip(&there).enumerate() {
                        let alike = std::mem::discriminant(a) == std::mem::discriminant(b)
                            && a.span().count == b.span().count
                            && blocks.moved(a.peer(), number) == b.peer();
                        assert!(alike, "{schedule:?} rank {rank} step {at}: {a}; moved to {moved}: {b}");
                        for before in at.saturating_sub(WINDOW as usize)..at {
                            let (first, second) =
                                (a.conflicts_with(&here[before]), b.conflicts_with(&there[before]));
                            assert_eq!(first, second, "{schedule:?} rank {rank} steps {before} and {at}");
                        }
                    }
                }
            }
        }
    }
    assert!(kinds.len() >= 7, "{kinds:?}");
}

/// Hosts of equally many ranks with one or two interfaces, and links of some kinds.
fn networks(ranks: u32) -> Vec<Network> {
    let slow = LinkCosts { latency_us: 7.0, bytes_per_us: 900.0, ..LinkCosts::NETWORK };
    let mut found = vec![Network::flat(ranks, LinkCosts::TCP_LOOPBACK), Network::flat(ranks, slow)];
    for each in (1..=ranks).filter(|each| ranks.is_multiple_of(*each)) {
        let plain = Network::hosts(ranks, each, LinkCosts::SHARED_MEMORY, slow);
        let mut rails = plain.clone();
        for (rank, place) in (0..).zip(&mut rails.places) {
            *place = Place { interface: place.host * 2 + rank % each * 2 / each, ..*place };
        }
        let offloaded = Network { between: LinkCosts { offloaded: true, ..slow }, ..rails.clone() };
        found.extend([plain, rails, offloaded]);
    }
    found
}

#[test]
fn some_ranks_are_simulated_for_all_with_the_same_time() {
    let (mut compared, mut differ) = (0, Vec::new());
    for ranks in [2, 3, 4, 6, 8, 12] {
        for (collective, schedule) in schedules(ranks) {
            for (number, network) in (0..).zip(networks(ranks)) {
                if distinct_ranks(&schedule, &network) == ranks {
                    continue;
                }
                for (bytes, slice_bytes, slices_in_flight) in
                    [(8, 8, 2), (96_000, 1_000, 3), (400_000, 9_000, 2)]
                {
                    let work = Workload { bytes, slice_bytes, slices_in_flight };
                    let some = price(&schedule, collective, &network, &work).unwrap();
                    let all = priced(&schedule, collective, &network, &work, Blocks::alone(ranks)).unwrap();
                    compared += 1;
                    if some.time_us != all.time_us {
                        differ.push(format!(
                            "{schedule:?} network {number} {work:?}: {} for {}",
                            some.time_us, all.time_us
                        ));
                    }
                }
            }
        }
    }
    assert!(differ.is_empty(), "{} of {compared}: {:#?}", differ.len(), &differ[..differ.len().min(40)]);
    assert!(compared > 1_000, "{compared}");
}

/// What is not alike is simulated by itself.
#[test]
fn ranks_that_are_placed_unlike_stand_for_themselves() {
    let ring = AnySchedule::new(Collective::AllReduce, Algorithm::Ring, 8, 0).unwrap();
    let costs = LinkCosts::NETWORK;
    let alike = Network::hosts(8, 2, costs, costs);
    assert_eq!(distinct_ranks(&ring, &alike), 2);
    assert_eq!(distinct_ranks(&ring, &Network::hosts(8, 3, costs, costs)), 8);
    let mut switches = alike.clone();
    switches.places[7].switch = 1;
    assert_eq!(distinct_ranks(&ring, &switches), 8);
    let mut interfaces = alike.clone();
    interfaces.places[3].interface = 0;
    assert_eq!(distinct_ranks(&ring, &interfaces), 8);
    let cores = (0..8).map(|rank| rank / 2).collect();
    let shared = Network { shared: Some(SharedCores { cores, switch_us: 1.0 }), ..alike.clone() };
    assert_eq!(distinct_ranks(&ring, &shared), 8);
    let tree = AnySchedule::new(Collective::AllReduce, Algorithm::Tree, 8, 0).unwrap();
    assert_eq!(distinct_ranks(&tree, &alike), 8);
}
