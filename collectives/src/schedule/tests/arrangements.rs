//! Ranks that lie anywhere: schedules stay right in any order, and the order is worth what theory says.

use super::super::simulate::{Check, Network, Place, Posting, Price, Resource, Workload, price, verify};
use crate::schedule::*;
use ringway_topology::model::ids::Rank as WorldRank;
use ringway_topology::model::order::{Location, Site, hosts_in_order, ring_order};

const INSIDE: LinkCosts = LinkCosts {
    latency_us: 0.1,
    message_us: 0.0,
    eager_message_us: 0.0,
    bytes_per_us: 1e6,
    reduce_bytes_per_us: 1e7,
    offloaded: true,
};
/// 100 Gbit/s.
const BETWEEN: LinkCosts = LinkCosts { latency_us: 1.5, bytes_per_us: 12_000.0, ..INSIDE };

/// Steele and Vigna's splitmix64.
fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn shuffled(ranks: u32, seed: &mut u64) -> Vec<Rank> {
    let mut order: Vec<Rank> = (0..ranks).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, (random(seed) % (at as u64 + 1)) as usize);
    }
    order
}

/// Hosts of any numbers of ranks, in place of a number that all have.
const RAGGED: u32 = u32::MAX;

/// Ranks of each host.
fn hosts(ranks: u32, per_host: u32, seed: &mut u64) -> Vec<u32> {
    let (mut hosts, mut left) = (Vec::new(), ranks);
    while left > 0 {
        let host = if per_host == RAGGED { 1 + (random(seed) % 6) as u32 } else { per_host };
        hosts.push(host.min(left));
        left -= host.min(left);
    }
    hosts
}

/// Ranks of each of a host's two nodes; one node where there is one rank.
fn halved(host: u32) -> impl Iterator<Item = u32> {
    [host.div_ceil(2), host / 2].into_iter().filter(|ranks| *ranks > 0)
}

#[test]
fn schedules_are_right_in_any_order() {
    let mut seed = 0x5eed;
    for ranks in (1..=33).chain([64, 100]) {
        for per_host in [1, 2, 4, 8, ranks, RAGGED] {
            let begin = seed;
            // Every second time in the order of numbers, in which an all-gather goes through leaders too.
            let own: Vec<Rank> = (0..ranks).collect();
            let order = if ranks % 2 == 0 { shuffled(ranks, &mut seed) } else { own };
            let hosts = hosts(ranks, per_host, &mut seed);
            let nodes: Vec<u32> = hosts.iter().flat_map(|host| halved(*host)).collect();
            let group = Arrangement::new(&order, &hosts).unwrap().with_nodes(&nodes);
            for collective in Collective::ALL {
                for &algorithm in collective.algorithms() {
                    let root = order[ranks as usize / 2];
                    let priced = estimate_over_hosts(collective, algorithm, &group, 1000, &Costs::default());
                    let schedule = group.schedule(collective, algorithm, root);
                    assert_eq!(priced.is_some(), schedule.is_some(), "{algorithm} {collective}, {hosts:?}");
                    let Some(schedule) = schedule else { continue };
                    let check = Check {
                        rank_order: schedule.keeps_rank_order(),
                        ..Check::new(Posting::STRICT, begin)
                    };
                    if let Err(fault) = verify(&schedule, collective, root, &check) {
                        panic!(
                            "{algorithm} {collective} of {ranks} ranks on hosts of {hosts:?}, seed {begin:#x}: {fault}"
                        );
                    }
                    for rank in 0..ranks {
                        let steps = (0..).map_while(|index| schedule.step(rank, index)).count();
                        assert_eq!(schedule.steps(rank) as usize, steps);
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_no_arrangement_is_refused() {
    let made =
        |order: &[Rank], hosts: &[u32]| Arrangement::new(order, hosts).map(|group| group.most_per_host());
    assert_eq!(made(&[0, 1, 2], &[2, 1]), Some(2));
    assert_eq!(made(&[2, 0, 1], &[1, 2]), Some(2), "hosts of unequally many");
    for (order, hosts) in [
        (&[0, 1, 1][..], &[3][..]),
        (&[0, 1, 3], &[3]),
        (&[0, 1, 2], &[2]),
        (&[0, 1, 2], &[3, 0]),
        (&[0, 1, 2], &[u32::MAX, 4]),
        (&[], &[]),
    ] {
        assert_eq!(made(order, hosts), None, "{order:?} {hosts:?}");
    }
    let mixed = Arrangement::new(&[2, 0, 1], &[3]).unwrap();
    assert_eq!([0, 1, 2].map(|rank| mixed.rank(mixed.position(rank))), [0, 1, 2]);
    assert!(mixed.schedule(Collective::AllReduce, Algorithm::Lanes, 0).is_none(), "one host");
}

/// Ranks on hosts in racks, dealt out like cards: the worst order there is.
struct Dealt {
    locations: Vec<Location>,
    network: Network,
}

impl Dealt {
    /// One interface per host at its rack's switch; with `rails`, one per rank at the switch of its number in its host.
    fn new(racks: u32, hosts: u32, ranks: u32, rails: bool, uplink_bytes_per_us: f64) -> Dealt {
        let world = racks * hosts * ranks;
        let (mut locations, mut places) = (Vec::new(), Vec::new());
        for rank in 0..world {
            let (rack, host, lane) = (rank % racks, rank / racks % hosts, rank / racks / hosts);
            let host = rack * hosts + host;
            let site = Site {
                switches: vec![format!("rack{rack}")],
                rail: rails.then_some(lane),
                ..Site::on(format!("host{host}"))
            };
            locations.push(Location { rank: WorldRank(rank), site });
            places.push(match rails {
                true => Place { host, interface: host * ranks + lane, switch: lane },
                false => Place { host, interface: host, switch: rack },
            });
        }
        let flat = Network::hosts(1, 1, INSIDE, BETWEEN);
        let network = Network { places, uplink_bytes_per_us, ..flat };
        Dealt { locations, network }
    }

    /// The order that ranks should have.
    fn arranged(&self) -> Arrangement {
        let order: Vec<Rank> = ring_order(&self.locations).into_iter().map(|rank| rank.0).collect();
        Arrangement::new(&order, &hosts_in_order(&self.locations)).unwrap()
    }

    fn price(&self, group: &Arrangement, algorithm: Algorithm, bytes: u64) -> Price {
        let schedule = group.schedule(Collective::AllReduce, algorithm, 0).unwrap();
        let slice_bytes = (bytes / u64::from(schedule.chunks())).max(1);
        let work = Workload { bytes, slice_bytes, slices_in_flight: 1 };
        price(&schedule, Collective::AllReduce, &self.network, &work).unwrap()
    }

    /// How much longer the ring takes in the order of numbers than in the order that ranks should have.
    fn gain(&self) -> f64 {
        let bytes = 64 << 20;
        let bad = Arrangement::together(self.locations.len() as u32);
        let time = |group: &Arrangement| self.price(group, Algorithm::Ring, bytes).time_us;
        time(&bad) / time(&self.arranged())
    }
}

fn near(found: f64, theory: f64) -> bool {
    (found / theory - 1.0).abs() < 0.05
}

#[test]
fn a_ring_of_dealt_ranks_takes_as_many_times_longer_as_a_host_has_ranks() {
    for (hosts, ranks) in [(4, 8), (2, 4), (8, 2), (3, 5)] {
        // Every hop leaves its host, so an interface carries all ranks' bytes; in order, one rank's.
        let gain = Dealt::new(1, hosts, ranks, false, f64::INFINITY).gain();
        assert!(near(gain, f64::from(ranks)), "{hosts} hosts of {ranks}: {gain}");
    }
    let already = Dealt::new(1, 8, 1, false, f64::INFINITY).gain();
    assert!(near(already, 1.0), "one rank per host: {already}");
}

#[test]
fn a_ring_over_racks_crosses_each_uplink_once() {
    // The uplink is the narrowest, and carries every host's bytes; in order, one host's.
    for (racks, hosts) in [(4, 4), (2, 8), (3, 2)] {
        let gain = Dealt::new(racks, hosts, 1, false, BETWEEN.bytes_per_us / 2.0).gain();
        assert!(near(gain, f64::from(hosts)), "{racks} racks of {hosts} hosts: {gain}");
    }
    // With several ranks on each host as well.
    let gain = Dealt::new(2, 2, 4, false, BETWEEN.bytes_per_us / 2.0).gain();
    assert!(near(gain, 8.0), "{gain}");
}

#[test]
fn a_ring_stays_on_its_rails() {
    // Hosts one after the other, each by the order of its rails: the ring leaves by the last rail and enters by the
    // first, all hosts through the two uplinks of those. There and back again, it never changes its rail.
    let (hosts, ranks, narrow) = (4, 4, 4.0);
    let dealt = Dealt::new(1, hosts, ranks, true, BETWEEN.bytes_per_us / narrow);
    let plain: Vec<Rank> =
        (0..hosts).flat_map(|host| (0..ranks).map(move |lane| lane * hosts + host)).collect();
    let plain = Arrangement::new(&plain, &[ranks; 4]).unwrap();
    let price = |group: &Arrangement| dealt.price(group, Algorithm::Ring, 64 << 20);
    let (plain, arranged) = (price(&plain), price(&dealt.arranged()));
    let across =
        |found: &Price| found.loads.iter().any(|load| matches!(load.resource, Resource::SwitchOut(_)));
    assert!(across(&plain) && !across(&arranged));
    let gain = plain.time_us / arranged.time_us;
    assert!(near(gain, f64::from(hosts) * narrow), "{gain}");
}

#[test]
fn a_tree_in_order_crosses_each_interface_once() {
    let dealt = Dealt::new(1, 4, 8, false, f64::INFINITY);
    let out = |group: &Arrangement| {
        let found = dealt.price(group, Algorithm::Tree, 1 << 20);
        let out = found.loads.iter().filter(|load| matches!(load.resource, Resource::HostOut(_)));
        out.map(|load| load.bytes).sum::<f64>() / f64::from(1 << 20)
    };
    // Up and down, each of the other three hosts once.
    assert_eq!(out(&dealt.arranged()), 6.0);
    assert!(out(&Arrangement::together(32)) > 20.0);
}

/// Over hosts the formulas need not be exact, but the choice must be.
#[test]
fn the_choice_over_hosts_is_near_the_best_by_simulation() {
    let wide = LinkCosts {
        bytes_per_us: 40_000.0,
        latency_us: 0.5,
        message_us: 0.2,
        eager_message_us: 0.2,
        ..INSIDE
    };
    let between = LinkCosts { message_us: 0.3, eager_message_us: 0.3, latency_us: 3.0, ..BETWEEN };
    for (hosts, lanes) in [(2, 8), (4, 4), (16, 2), (3, 6)] {
        let ranks = hosts * lanes;
        let order: Vec<Rank> = (0..ranks).collect();
        let group = Arrangement::new(&order, &vec![lanes; hosts as usize]).unwrap();
        let network = Network::hosts(ranks, lanes, wide, between);
        let costs = Costs { inside: wide, between };
        for bytes in [8, 4 << 10, 64 << 10, 1 << 20, 32 << 20] {
            let time = |algorithm: Algorithm| {
                let estimate = estimate_over_hosts(Collective::AllReduce, algorithm, &group, bytes, &costs)?;
                let schedule = group.schedule(Collective::AllReduce, algorithm, 0)?;
                let Estimate { slice_bytes, slices_in_flight, .. } = estimate;
                let work = Workload { bytes, slice_bytes, slices_in_flight };
                Some(price(&schedule, Collective::AllReduce, &network, &work).unwrap().time_us)
            };
            let choice = choose(Collective::AllReduce, &group, bytes, &costs, Basis::default()).unwrap();
            let rivals = Collective::AllReduce.algorithms().iter();
            let (best_us, best) =
                rivals.filter_map(|&a| Some((time(a)?, a))).min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
            let mine = time(choice.algorithm).unwrap();
            assert!(
                mine <= 1.4 * best_us,
                "{hosts} x {lanes}, {bytes} B: {} takes {mine} us, {best} {best_us} us",
                choice.algorithm
            );
        }
    }
}
