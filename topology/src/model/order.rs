//! The order in which a ring visits ranks.
//!
//! A ring is as fast as its slowest link, and a link that it crosses twice carries twice the bytes. So ranks of one rack
//! stand together, in it those of one host, in it those of one package, in it those of one NUMA node: then the ring
//! enters and leaves each of them once. Trees and recursive doubling, which join neighbours first, gain by the same order.
//!
//! - I1: the order holds every rank once.
//! - I2: ranks below one switch are contiguous; below it, those of one host; in a host, those of one package; in a
//!   package, those of one node.
//! - I3: it starts at the lowest rank, and groups follow one another by their lowest rank, so that ranks that
//!   are in a good order already stay as they are, but for I4.
//! - I4: where ranks of a host have network devices of their own (rails), a host is visited backwards if the ring then
//!   enters it on the rail by which it left the last one.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::str::FromStr;

use super::ids::{NAME_LIMIT_BYTES, Rank, clip};
use super::link::Distance;
use super::machine::Machine;
use super::place::Placement;

/// Switches above a host, at most: real networks have up to four.
pub const SWITCH_LIMIT: usize = 16;

/// Whether a machine or a switch can be called so in the text of a [`Site`]: 1 to 255 of ASCII's letters and digits, and
/// of `._-:@`.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '@');
    (1..=NAME_LIMIT_BYTES).contains(&text.len()) && text.chars().all(good)
}

/// Where a rank runs, as far as ordering needs to know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Site {
    /// Which machine, by anything that no other machine has: a boot id, or a name.
    pub machine: String,
    /// The switches above the machine, the outermost first: those of its rack last. Empty where nobody tells.
    pub switches: Vec<String>,
    /// Its package in the machine; none when its CPUs span packages, or are not known.
    pub package: Option<u32>,
    /// Its NUMA node in the machine; none when its CPUs span nodes, or are not known.
    pub node: Option<u32>,
    /// Which of the machine's network devices it uses, counted in their order, where ranks have different ones.
    pub rail: Option<u32>,
}

impl Site {
    /// A machine, and nothing more.
    #[must_use]
    pub fn on(machine: impl Into<String>) -> Site {
        Site { machine: machine.into(), ..Site::default() }
    }

    /// Of a rank placed on `described`, which others know as `machine`.
    #[must_use]
    pub fn of(machine: impl Into<String>, described: &Machine, placement: &Placement) -> Site {
        let parts = described.parts();
        let first = placement.cpus.first();
        let package = first.and_then(|cpu| described.package_of(cpu));
        let package = package.filter(|package| placement.cpus.inside(&package.cpus));
        let place = |names: Vec<&String>, own: &[String]| match own {
            [only] => names.into_iter().position(|name| name == only).map(|at| at as u32),
            _ => None,
        };
        let rdma = place(parts.infiniband.iter().map(|device| &device.name).collect(), &placement.infiniband);
        let rail = rdma.or_else(|| place(parts.nics.iter().map(|nic| &nic.name).collect(), &placement.nics));
        let package = package.map(|package| package.index);
        Site { machine: machine.into(), switches: Vec::new(), package, node: placement.node, rail }
    }
}

impl fmt::Display for Site {
    /// As one line of fields: `machine=a package=0 node=1 rail=3 switches=spine/rack7`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "machine={}", self.machine)?;
        for (name, value) in [("package", self.package), ("node", self.node), ("rail", self.rail)] {
            value.map_or(Ok(()), |value| write!(f, " {name}={value}"))?;
        }
        if self.switches.is_empty() { Ok(()) } else { write!(f, " switches={}", self.switches.join("/")) }
    }
}

impl FromStr for Site {
    type Err = SiteError;

    fn from_str(text: &str) -> Result<Site, SiteError> {
        let bad = || SiteError { text: clip(text) };
        let mut site = Site::default();
        for field in text.split(' ') {
            let (name, value) = field.split_once('=').ok_or_else(bad)?;
            let number = || value.parse().map(Some).map_err(|_| bad());
            match name {
                "machine" if is_name(value) => site.machine = value.to_owned(),
                "package" => site.package = number()?,
                "node" => site.node = number()?,
                "rail" => site.rail = number()?,
                "switches" => site.switches = value.split('/').map(str::to_owned).collect(),
                _ => return Err(bad()),
            }
        }
        let sound = site.switches.len() <= SWITCH_LIMIT && site.switches.iter().all(|switch| is_name(switch));
        if sound && !site.machine.is_empty() { Ok(site) } else { Err(bad()) }
    }
}

/// A text that is no site.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} does not say where a rank runs: are all ranks of one version?")]
pub struct SiteError {
    /// The text given, cut to a printable length.
    pub text: String,
}

/// Where one rank runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// The rank.
    pub rank: Rank,
    /// Its place.
    pub site: Site,
}

impl Location {
    /// The distance to another rank, in steps that ordering tells apart: node, package, machine, network.
    #[must_use]
    pub fn distance(&self, other: &Location) -> Distance {
        let (own, other) = (&self.site, &other.site);
        if own.machine != other.machine {
            Distance::Network
        } else if own.package != other.package || own.package.is_none() {
            Distance::Machine
        } else if own.node != other.node || own.node.is_none() {
            Distance::Package
        } else {
            Distance::Node
        }
    }
}

/// A step of the way down to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Level<'l> {
    Switch(&'l str),
    Machine(&'l str),
    Package(Option<u32>),
    Node(Option<u32>),
}

/// The ranks in the order that a ring visits them.
#[must_use]
pub fn ring_order(locations: &[Location]) -> Vec<Rank> {
    machines(locations).into_iter().flatten().map(|at| at.rank).collect()
}

/// How many ranks each machine has, in the order of [`ring_order`].
#[must_use]
pub fn hosts_in_order(locations: &[Location]) -> Vec<u32> {
    machines(locations).iter().map(|ranks| ranks.len() as u32).collect()
}

/// How many ranks each NUMA node has, in the order of [`ring_order`]. Neighbours of one machine whose nodes are not known
/// count as of one.
#[must_use]
pub fn nodes_in_order(locations: &[Location]) -> Vec<u32> {
    let machines = machines(locations);
    let same = |a: &&Location, b: &&Location| (a.site.package, a.site.node) == (b.site.package, b.site.node);
    machines.iter().flat_map(|ranks| ranks.chunk_by(same)).map(|ranks| ranks.len() as u32).collect()
}

/// How many network devices the ranks of each machine share out among them: the fewest of any machine, and at least one.
#[must_use]
pub fn rails_per_host(locations: &[Location]) -> u32 {
    let rails =
        |ranks: &Vec<&Location>| ranks.iter().filter_map(|at| at.site.rail).collect::<BTreeSet<_>>().len();
    machines(locations).iter().map(rails).min().map_or(1, |rails| rails.max(1) as u32)
}

/// The ranks machine by machine, in order.
fn machines(locations: &[Location]) -> Vec<Vec<&Location>> {
    let paths: Vec<Vec<Level<'_>>> = locations.iter().map(path).collect();
    let mut lowest: HashMap<&[Level<'_>], Rank> = HashMap::new();
    for (at, path) in locations.iter().zip(&paths) {
        for depth in 1..=path.len() {
            let held = lowest.entry(&path[..depth]).or_insert(at.rank);
            *held = at.rank.min(*held);
        }
    }
    // At each depth, groups by their lowest rank (I2, I3).
    let key =
        |path: &[Level<'_>]| -> Vec<Rank> { (1..=path.len()).map(|depth| lowest[&path[..depth]]).collect() };
    let mut keyed: Vec<(Vec<Rank>, &Location)> =
        locations.iter().zip(&paths).map(|(at, path)| (key(path), at)).collect();
    keyed.sort_by(|(a, at_a), (b, at_b)| (a, at_a.rank).cmp(&(b, at_b.rank)));
    let mut machines: Vec<Vec<&Location>> = Vec::new();
    for (_, at) in keyed {
        match machines.last_mut() {
            Some(last) if last[0].site.machine == at.site.machine => last.push(at),
            _ => machines.push(vec![at]),
        }
    }
    stay_on_rails(&mut machines);
    machines
}

/// I4.
fn stay_on_rails(machines: &mut [Vec<&Location>]) {
    let rail = |at: Option<&&Location>| at.and_then(|at| at.site.rail);
    for next in 1..machines.len() {
        let left_by = rail(machines[next - 1].last());
        let (first, last) = (rail(machines[next].first()), rail(machines[next].last()));
        if left_by.is_some() && left_by != first && left_by == last {
            machines[next].reverse();
        }
    }
}

fn path(at: &Location) -> Vec<Level<'_>> {
    let site = &at.site;
    let switches = site.switches.iter().map(|switch| Level::Switch(switch));
    let inside = [Level::Machine(&site.machine), Level::Package(site.package), Level::Node(site.node)];
    switches.chain(inside).collect()
}

/// How many hops of the ring are at least this far, the hop from the last rank back to the first included.
///
/// Ranks of `order` that have no location are passed over.
#[must_use]
pub fn hops_at_least(order: &[Rank], locations: &[Location], step: Distance) -> usize {
    hops(order, locations, |from, to| from.distance(to) >= step)
}

/// How many hops of the ring leave a group of machines that share the first `depth` switches above them.
#[must_use]
pub fn hops_between_switches(order: &[Rank], locations: &[Location], depth: usize) -> usize {
    let above = |at: &Location| at.site.switches.iter().take(depth).cloned().collect::<Vec<_>>();
    hops(order, locations, |from, to| above(from) != above(to))
}

fn hops(order: &[Rank], locations: &[Location], counts: impl Fn(&Location, &Location) -> bool) -> usize {
    let by_rank: HashMap<Rank, &Location> = locations.iter().map(|at| (at.rank, at)).collect();
    let ring: Vec<&Location> = order.iter().filter_map(|rank| by_rank.get(rank).copied()).collect();
    let next = ring.iter().skip(1).chain(ring.first());
    ring.iter().zip(next).filter(|(from, to)| from.rank != to.rank && counts(from, to)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(rank: u32, host: &str, package: u32, node: u32) -> Location {
        let site = Site { package: Some(package), node: Some(node), ..Site::on(host) };
        Location { rank: Rank(rank), site }
    }

    /// Ranks dealt over racks, hosts, packages and nodes like cards: the worst order there is.
    fn dealt(racks: u32, hosts: u32, packages: u32, nodes: u32, per_node: u32) -> Vec<Location> {
        let world = racks * hosts * packages * nodes * per_node;
        (0..world)
            .map(|rank| {
                let (rack, rest) = (rank % racks, rank / racks);
                let (host, rest) = (rest % hosts, rest / hosts);
                let (package, node) = (rest % packages, rest / packages % nodes);
                let mut at = at(rank, &format!("host{rack}-{host}"), package, package * nodes + node);
                at.site.switches = vec!["spine".to_owned(), format!("rack{rack}")];
                at
            })
            .collect()
    }

    #[test]
    fn a_ring_crosses_each_slow_link_once() {
        for (racks, hosts, packages, nodes, per_node) in
            [(1, 2, 2, 2, 2), (3, 3, 2, 1, 4), (2, 5, 1, 4, 1), (1, 1, 2, 2, 3), (4, 1, 1, 1, 2)]
        {
            let locations = dealt(racks, hosts, packages, nodes, per_node);
            let order = ring_order(&locations);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, locations.iter().map(|at| at.rank).collect::<Vec<_>>(), "I1");
            let once = |groups: u32| if groups > 1 { groups as usize } else { 0 };
            let crossings = |step| hops_at_least(&order, &locations, step);
            assert_eq!(hops_between_switches(&order, &locations, 2), once(racks), "I2: racks");
            assert_eq!(crossings(Distance::Network), once(racks * hosts), "I2: hosts");
            assert_eq!(crossings(Distance::Machine), once(racks * hosts * packages), "I2: packages");
            assert_eq!(crossings(Distance::Package), once(racks * hosts * packages * nodes), "I2: nodes");
            assert_eq!(order[0], Rank(0), "I3");
            assert_eq!(
                hosts_in_order(&locations),
                vec![packages * nodes * per_node; (racks * hosts) as usize]
            );
            assert_eq!(
                nodes_in_order(&locations),
                vec![per_node; (racks * hosts * packages * nodes) as usize]
            );
            assert_eq!(rails_per_host(&locations), 1, "none are told");
        }
    }

    #[test]
    fn the_order_as_dealt_would_cross_more() {
        let locations = dealt(2, 2, 2, 1, 2);
        let dealt_order: Vec<Rank> = locations.iter().map(|at| at.rank).collect();
        assert_eq!(hops_at_least(&dealt_order, &locations, Distance::Network), 16);
        assert_eq!(hops_between_switches(&dealt_order, &locations, 2), 16);
        assert_eq!(hops_at_least(&ring_order(&locations), &locations, Distance::Network), 4);
    }

    #[test]
    fn a_good_order_is_kept() {
        let locations = [at(0, "b", 1, 1), at(1, "b", 1, 1), at(2, "b", 0, 0), at(3, "a", 0, 0)];
        assert_eq!(ring_order(&locations), [Rank(0), Rank(1), Rank(2), Rank(3)], "I3");
    }

    #[test]
    fn a_ring_stays_on_its_rails() {
        let on_rails = |hosts: u32, rails: u32| -> Vec<Location> {
            (0..hosts * rails)
                .map(|rank| {
                    let (host, rail) = (rank / rails, rank % rails);
                    let mut at = at(rank, &format!("host{host}"), 0, 0);
                    at.site.rail = Some(rail);
                    at
                })
                .collect()
        };
        let crossing = |locations: &[Location], order: &[Rank]| {
            let rail = |rank: Rank| {
                (locations[rank.index()].site.machine.clone(), locations[rank.index()].site.rail)
            };
            let next = order.iter().skip(1).chain(order.first());
            let hops = order.iter().zip(next).map(|(&from, &to)| (rail(from), rail(to)));
            hops.filter(|(from, to)| from.0 != to.0 && from.1 != to.1).count()
        };
        for (hosts, rails, left) in [(4, 8, 0), (2, 4, 0), (3, 4, 1), (5, 2, 1)] {
            let locations = on_rails(hosts, rails);
            assert_eq!(rails_per_host(&locations), rails);
            let order = ring_order(&locations);
            assert_eq!(crossing(&locations, &order), left, "I4: {hosts} hosts of {rails} rails");
            assert_eq!(hops_at_least(&order, &locations, Distance::Network), hosts as usize, "I2");
            let plain: Vec<Rank> = locations.iter().map(|at| at.rank).collect();
            assert_eq!(crossing(&locations, &plain), hosts as usize);
        }
    }

    #[test]
    fn small_rings_and_unplaced_ranks_have_an_order() {
        assert!(ring_order(&[]).is_empty());
        assert_eq!(hops_at_least(&[], &[], Distance::Same), 0);
        let one = [at(7, "a", 0, 0)];
        assert_eq!(ring_order(&one), [Rank(7)]);
        assert_eq!(hops_at_least(&[Rank(7)], &one, Distance::Same), 0, "a rank alone has no hop");
        let spanning = [Location { rank: Rank(0), site: Site::on("a") }, at(1, "a", 0, 0)];
        assert_eq!(spanning[0].distance(&spanning[1]), Distance::Machine);
        assert_eq!(ring_order(&spanning).len(), 2);
    }

    #[test]
    fn sites_are_read_back_as_written() {
        let mut site = at(0, "0b1c-2d", 1, 3).site;
        site.rail = Some(7);
        site.switches = vec!["spine".to_owned(), "rack-7".to_owned()];
        assert_eq!(site.to_string(), "machine=0b1c-2d package=1 node=3 rail=7 switches=spine/rack-7");
        for site in [site, Site::on("a")] {
            assert_eq!(site.to_string().parse(), Ok(site));
        }
        let many = format!("machine=a switches={}", vec!["s"; SWITCH_LIMIT + 1].join("/"));
        for text in [
            "",
            "machine=",
            "package=0",
            "machine=a b",
            "machine=a node=-1",
            "machine=a x=1",
            "machine=a switches=",
            &many,
        ] {
            assert!(text.parse::<Site>().is_err(), "{text:?}");
        }
    }
}
