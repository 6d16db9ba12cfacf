//! Prices a schedule by simulating it in time: slices, ports, hosts' network interfaces and cores.
//!
//! The closed formulas of [`estimate`](crate::schedule::estimate) are what ranks choose by; this is what checks them,
//! and what plans for machines of many hosts. A message passes its sender's port, between hosts also both hosts'
//! interfaces (and between switches the links that join those), and its receiver's port. It holds each for `message_us`
//! (ports only) and its bytes over the bandwidth, and is on the next while still on the one before; `latency_us` passes on
//! the way. It starts when both sides have posted it, or where it is no longer than
//! [`EAGER_BYTES`](crate::schedule::EAGER_BYTES) when its sender has, and a port sends in the order of starts.
//!
//! A combine holds its rank's core, or where the link does not move bytes by itself, the receiving port, since the same core
//! takes bytes in. What nothing holds up when its receive is posted is combined as it is taken
//! ([`Network::passing_bytes_per_us`]): a rank that sends what it is to combine into gets its operand into scratch first, and then gets
//! back what the other has read in its memory, for as much as moving it takes.
//!
//! Where ranks share cores, half of a message's time at a port is work of the core, one end's as the other's, and so are all
//! combines and what a call costs before its first step; a core that passes from one rank to another loses a moment. Each
//! rank runs several slices at once, each of them under the hazards I4.

#![forbid(unsafe_code)]

use super::Fault;
use super::clockwork::Clockwork;
use crate::schedule::cost::LinkCosts;
use crate::schedule::symmetry::{Blocks, Symmetry};
use crate::schedule::{Collective, Rank, Schedule};
use std::collections::{HashMap, HashSet};

/// Where a rank is: on which host, by which of the network's interfaces it reaches others, and at which switch that hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The host, by any number.
    pub host: u32,
    /// Its interface, by a number that no other host's has. Ranks that share it share its bandwidth.
    pub interface: u32,
    /// The switch that the interface hangs at: the rack's, or the rail's.
    pub switch: u32,
}

/// The machine that a schedule is priced on.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// By rank.
    pub places: Vec<Place>,
    /// Links between ranks of one host.
    pub inside: LinkCosts,
    /// Links between hosts; the bandwidth is that of an interface.
    pub between: LinkCosts,
    /// Bandwidth of each direction of the link that joins a switch with all others, in bytes per microsecond. Infinite
    /// where the network blocks nothing.
    pub uplink_bytes_per_us: f64,
    /// What a call costs a rank before its first step, in microseconds.
    pub call_us: f64,
    /// How fast a rank of a host combines what it is sent within the host where it lies, beside moving it, in bytes per
    /// microsecond, where ranks share memory; `None` where that is done as elsewhere, by [`LinkCosts::reduce_bytes_per_us`].
    pub passing_bytes_per_us: Option<f64>,
    /// Where ranks share cores.
    pub shared: Option<SharedCores>,
}

/// Cores that ranks share, and that do what transports and combines do.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedCores {
    /// The core of each rank.
    pub cores: Vec<u32>,
    /// What it takes until another rank of a core runs, in microseconds.
    pub switch_us: f64,
}

impl Network {
    /// Every rank on a host of its own.
    pub fn flat(ranks: u32, costs: LinkCosts) -> Network {
        Network::hosts(ranks, 1, costs, costs)
    }

    /// Hosts of equally many neighbouring ranks (fewer on the last if need be) with one interface each, at one switch.
    pub fn hosts(ranks: u32, ranks_per_host: u32, inside: LinkCosts, between: LinkCosts) -> Network {
        let place = |rank: Rank| {
            let host = rank / ranks_per_host.max(1);
            Place { host, interface: host, switch: 0 }
        };
        let places = (0..ranks).map(place).collect();
        Network {
            places,
            inside,
            between,
            uplink_bytes_per_us: f64::INFINITY,
            call_us: 0.0,
            passing_bytes_per_us: None,
            shared: None,
        }
    }

    /// Blocks of ranks that are moved onto each other by `symmetry` and are alike here: the smallest that are. All ranks
    /// are one block where there are no others.
    fn blocks(&self, symmetry: Option<Symmetry>, ranks: u32) -> Blocks {
        let Some(symmetry) = symmetry else { return Blocks::alone(ranks) };
        let host = self.places.first().map(|place| place.host);
        let of_a_host = self.places.iter().take_while(|place| Some(place.host) == host).count() as u32;
        let sizes = [symmetry.period(), of_a_host.max(symmetry.period())];
        let blocks = sizes.into_iter().filter_map(|block| symmetry.by_blocks(block, ranks));
        blocks.into_iter().find(|blocks| self.is_kept_by(blocks, ranks)).unwrap_or(Blocks::alone(ranks))
    }

    /// Whether all ranks hang at one switch and have a core each (who is first at a shared one hangs on the order of all ranks), ranks
    /// of one host or interface are again of one when they are moved, and no block shares an interface with another.
    fn is_kept_by(&self, blocks: &Blocks, ranks: u32) -> bool {
        let Some(first) = self.places.first() else { return false };
        let several = self.places.iter().any(|place| place.host != first.host);
        let mut users = HashMap::new();
        let own = (0..ranks).zip(&self.places).all(|(rank, place)| {
            let block = rank / blocks.each();
            !several || *users.entry(place.interface).or_insert(block) == block
        });
        let moved_alike = |number: u32| {
            let mut images: [HashMap<u32, u32>; 2] = Default::default();
            let together = (0..ranks).zip(&self.places).all(|(rank, from)| {
                let into = self.places[blocks.moved(rank, number) as usize];
                let pairs = [(from.host, into.host), (from.interface, into.interface)];
                images.iter_mut().zip(pairs).all(|(image, (a, b))| *image.entry(a).or_insert(b) == b)
            });
            // What goes to one place also comes from one.
            together && images.iter().all(|image| image.values().collect::<HashSet<_>>().len() == image.len())
        };
        let one_switch = self.places.iter().all(|place| place.switch == first.switch);
        own && one_switch && self.shared.is_none() && blocks.generators().all(moved_alike)
    }
}

/// How much is moved, and in which pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// All chunks of one rank together (for an all-to-all, its send chunks), in bytes.
    pub bytes: u64,
    /// How many bytes of every chunk one slice covers; at least 1.
    pub slice_bytes: u64,
    /// Slices that one rank runs at once; at least 1.
    pub slices_in_flight: u32,
}

/// Something that is used by one message or combine at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// The sending side of a rank.
    Send(Rank),
    /// The receiving side of a rank.
    Receive(Rank),
    /// The core that combines for a rank.
    Core(Rank),
    /// Outward side of an interface.
    HostOut(u32),
    /// Inward side of an interface.
    HostIn(u32),
    /// From a switch to the others.
    SwitchOut(u32),
    /// From the other switches to one.
    SwitchIn(u32),
}

/// How long a resource was in use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// The resource.
    pub resource: Resource,
    /// Bytes through it.
    pub bytes: f64,
    /// Time in use, in microseconds.
    pub busy_us: f64,
}

/// What a schedule costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Price {
    /// When the last rank is done, in microseconds.
    pub time_us: f64,
    /// Every resource that was used.
    pub loads: Vec<Load>,
}

impl Price {
    /// The resource in use longest, if any was used.
    pub fn busiest(&self) -> Option<&Load> {
        self.loads.iter().max_by(|a, b| a.busy_us.total_cmp(&b.busy_us))
    }
}

/// Simulates `schedule` as `collective` on `network`, which has a place for each of its ranks. The schedule should have passed [`verify`](super::verify);
/// one that hangs is answered with [`Fault::Deadlock`].
///
/// # Panics
/// When the network has fewer places, or where cores are shared fewer of those, than the schedule ranks.
pub fn price<S: Schedule + ?Sized>(
    schedule: &S,
    collective: Collective,
    network: &Network,
    work: &Workload,
) -> Result<Price, Fault> {
    let blocks = network.blocks(schedule.symmetry(), schedule.ranks());
    priced(schedule, collective, network, work, blocks)
}

/// Rounds after which what [`price_behind_barrier`] foretells no longer changes but by who was first.
const ROUNDS: u32 = 4;

/// As `ringway bench` measures: the longest time on any rank from when it leaves a barrier, after some of these calls
/// each behind a barrier of its own. Ranks leave a barrier one after the other, and who shares a core with others goes on
/// at once where those wait. Loads are those of one call and its barrier, on average.
///
/// # Panics
/// As [`price`].
pub fn price_behind_barrier<S: Schedule + ?Sized>(
    schedule: &S,
    collective: Collective,
    network: &Network,
    work: &Workload,
) -> Result<Price, Fault> {
    let blocks = Blocks::alone(schedule.ranks());
    let mut clockwork = Clockwork::new(schedule, collective, network, work, blocks).behind_barriers(ROUNDS);
    clockwork.run()?;
    Ok(clockwork.price())
}

/// How many ranks [`price`] simulates for all: the first ones. All of them where they do not do alike.
///
/// # Panics
/// As [`price`].
pub fn distinct_ranks<S: Schedule + ?Sized>(schedule: &S, network: &Network) -> u32 {
    network.blocks(schedule.symmetry(), schedule.ranks()).each()
}

/// Simulates the first of these blocks for all.
pub(in crate::schedule) fn priced<S: Schedule + ?Sized>(
    schedule: &S,
    collective: Collective,
    network: &Network,
    work: &Workload,
    blocks: Blocks,
) -> Result<Price, Fault> {
    let mut clockwork = Clockwork::new(schedule, collective, network, work, blocks);
    clockwork.run()?;
    Ok(clockwork.price())
}
