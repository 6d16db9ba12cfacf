//! The order in which a ring visits ranks.
//!
//! A ring is as fast as its slowest link, and a link that it crosses twice carries twice the bytes. So ranks of
//! one host stand together, in it those of one package, in it those of one NUMA node: then the ring enters and
//! leaves each of them once.
//!
//! - I1: the order holds every rank once.
//! - I2: ranks of one host are contiguous; in a host, those of one package; in a package, those of one node.
//! - I3: it starts at the lowest rank, and groups follow one another by their lowest rank, so that ranks that
//!   are in a good order already stay as they are.

use std::collections::HashMap;
use std::hash::Hash;

use super::ids::{HostId, Rank};
use super::link::Distance;
use super::machine::Machine;
use super::place::Placement;

/// Where one rank runs, as far as ordering needs to know.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// The rank.
    pub rank: Rank,
    /// Its host.
    pub host: HostId,
    /// Its package in the host; none when its CPUs span packages.
    pub package: Option<u32>,
    /// Its NUMA node in the host; none when its CPUs span nodes.
    pub node: Option<u32>,
}

impl Location {
    /// The location of a rank placed on `machine`.
    #[must_use]
    pub fn of(rank: Rank, host: HostId, machine: &Machine, placement: &Placement) -> Self {
        let first = placement.cpus.first();
        let package = first.and_then(|cpu| machine.package_of(cpu));
        let package = package.filter(|package| placement.cpus.inside(&package.cpus));
        Location { rank, host, package: package.map(|package| package.index), node: placement.node }
    }

    /// The distance to another rank, in steps that ordering tells apart: node, package, machine, network.
    #[must_use]
    pub fn distance(&self, other: &Location) -> Distance {
        if self.host != other.host {
            Distance::Network
        } else if self.package != other.package || self.package.is_none() {
            Distance::Machine
        } else if self.node != other.node || self.node.is_none() {
            Distance::Package
        } else {
            Distance::Node
        }
    }
}

/// The ranks in the order that a ring visits them.
#[must_use]
pub fn ring_order(locations: &[Location]) -> Vec<Rank> {
    let hosts = lowest(locations.iter().map(|at| (&at.host, at.rank)));
    let packages = lowest(locations.iter().map(|at| ((&at.host, at.package), at.rank)));
    let nodes = lowest(locations.iter().map(|at| ((&at.host, at.package, at.node), at.rank)));
    let mut keyed: Vec<_> = locations
        .iter()
        .map(|at| {
            let host = hosts[&at.host];
            let package = packages[&(&at.host, at.package)];
            let node = nodes[&(&at.host, at.package, at.node)];
            (host, package, node, at.rank)
        })
        .collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(.., rank)| rank).collect()
}

/// How many hops of the ring are at least this far, the hop from the last rank back to the first included.
///
/// Ranks of `order` that have no location are passed over.
#[must_use]
pub fn hops_at_least(order: &[Rank], locations: &[Location], step: Distance) -> usize {
    let by_rank: HashMap<Rank, &Location> = locations.iter().map(|at| (at.rank, at)).collect();
    let ring: Vec<&Location> = order.iter().filter_map(|rank| by_rank.get(rank).copied()).collect();
    let next = ring.iter().skip(1).chain(ring.first());
    ring.iter().zip(next).filter(|(from, to)| from.rank != to.rank && from.distance(to) >= step).count()
}

/// The lowest rank of each group.
fn lowest<K: Eq + Hash>(members: impl Iterator<Item = (K, Rank)>) -> HashMap<K, Rank> {
    let mut lowest = HashMap::new();
    for (key, rank) in members {
        let held = lowest.entry(key).or_insert(rank);
        *held = rank.min(*held);
    }
    lowest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(rank: u32, host: &str, package: u32, node: u32) -> Location {
        let host = HostId::new(host, "").unwrap();
        Location { rank: Rank(rank), host, package: Some(package), node: Some(node) }
    }

    /// Ranks dealt over hosts, packages and nodes like cards: the worst order there is.
    fn dealt(hosts: u32, packages: u32, nodes: u32, per_node: u32) -> Vec<Location> {
        let world = hosts * packages * nodes * per_node;
        (0..world)
            .map(|rank| {
                let (host, rest) = (rank % hosts, rank / hosts);
                let (package, node) = (rest % packages, rest / packages % nodes);
                at(rank, &format!("host{host}"), package, package * nodes + node)
            })
            .collect()
    }

    #[test]
    fn a_ring_crosses_each_slow_link_once() {
        for (hosts, packages, nodes, per_node) in [(2, 2, 2, 2), (3, 2, 1, 4), (5, 1, 4, 1), (1, 2, 2, 3)] {
            let locations = dealt(hosts, packages, nodes, per_node);
            let order = ring_order(&locations);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, locations.iter().map(|at| at.rank).collect::<Vec<_>>(), "I1");
            let once = |groups: u32| if groups > 1 { groups as usize } else { 0 };
            let crossings = |step| hops_at_least(&order, &locations, step);
            assert_eq!(crossings(Distance::Network), once(hosts), "I2: hosts");
            assert_eq!(crossings(Distance::Machine), once(hosts * packages), "I2: packages");
            assert_eq!(crossings(Distance::Package), once(hosts * packages * nodes), "I2: nodes");
            assert_eq!(order[0], Rank(0), "I3");
        }
    }

    #[test]
    fn the_order_as_dealt_would_cross_more() {
        let locations = dealt(2, 2, 1, 2);
        let dealt_order: Vec<Rank> = locations.iter().map(|at| at.rank).collect();
        assert_eq!(hops_at_least(&dealt_order, &locations, Distance::Network), 8);
        assert_eq!(hops_at_least(&ring_order(&locations), &locations, Distance::Network), 2);
    }

    #[test]
    fn a_good_order_is_kept() {
        let locations = [at(0, "b", 1, 1), at(1, "b", 1, 1), at(2, "b", 0, 0), at(3, "a", 0, 0)];
        assert_eq!(ring_order(&locations), [Rank(0), Rank(1), Rank(2), Rank(3)], "I3");
    }

    #[test]
    fn small_rings_and_unplaced_ranks_have_an_order() {
        assert!(ring_order(&[]).is_empty());
        assert_eq!(hops_at_least(&[], &[], Distance::Same), 0);
        let one = [at(7, "a", 0, 0)];
        assert_eq!(ring_order(&one), [Rank(7)]);
        assert_eq!(hops_at_least(&[Rank(7)], &one, Distance::Same), 0, "a rank alone has no hop");
        let spanning = [Location { package: None, node: None, ..at(0, "a", 0, 0) }, at(1, "a", 0, 0)];
        assert_eq!(spanning[0].distance(&spanning[1]), Distance::Machine);
        assert_eq!(ring_order(&spanning).len(), 2);
    }
}
