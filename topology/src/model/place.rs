//! Where the ranks of one machine go: CPUs, memory node, network interfaces, and why.
//!
//! - I1: every rank has at least one CPU, and only allowed ones.
//! - I2: while ranks do not outnumber CPUs (those of the accelerators' NUMA node, where ranks have accelerators),
//!   no two ranks share a CPU. When they do, and are a whole multiple of a node's CPUs, they are dealt out to those
//!   one each: ranks that the kernel moves about take up to twice as long for small messages (docs/performance.md).
//!   Else the ranks of a node share all its CPUs, so that the kernel can balance them.
//! - I3: a rank's CPUs lie in one NUMA node, unless its package or the machine has fewer ranks than nodes; then
//!   a rank has whole nodes, neighbours in the tree.
//! - I4: a rank's interfaces are the nearest usable ones; ranks equally near to several share them out.
//! - I5: the same machine and request give the same placement.

use std::collections::BTreeMap;

use super::cpuset::CpuSet;
use super::ids::LocalRank;
use super::link::{Distance, Part, distance};
use super::machine::{InfiniBand, LinkState, Machine, Nic, NicKind};
use super::pci::PciAddress;

/// An interface this many times slower than the fastest is a management port and carries no tensors.
pub const MANAGEMENT_SPEED_RATIO: u32 = 8;

/// What is to be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Ranks on this machine.
    pub local_ranks: u32,
    /// CPUs they may use; CPUs that the machine lacks are left out.
    pub allowed: CpuSet,
    /// The accelerator of each local rank, or empty when ranks have none.
    pub devices: Vec<PciAddress>,
    /// Names of the network interfaces to choose from, whatever their kind and state (a setting names them, or
    /// only they have an address); none leaves the choice to the rules of this module.
    pub nics: Option<Vec<String>>,
    /// Names of the RDMA devices to choose from, likewise.
    pub infiniband: Option<Vec<String>>,
}

impl Request {
    /// Ranks without accelerators, on any of the machine's allowed CPUs and interfaces.
    #[must_use]
    pub fn plain(machine: &Machine, local_ranks: u32) -> Self {
        let allowed = machine.parts().allowed.clone();
        Request { local_ranks, allowed, devices: Vec::new(), nics: None, infiniband: None }
    }
}

/// Where one rank goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The rank.
    pub rank: LocalRank,
    /// CPUs to run on.
    pub cpus: CpuSet,
    /// NUMA node to take memory from; none when the CPUs span nodes or the machine names none.
    pub node: Option<u32>,
    /// Names of the network interfaces to use, nearest to the rank; empty when there is none.
    pub nics: Vec<String>,
    /// Names of the RDMA devices to use, nearest to the rank; empty when there is none.
    pub infiniband: Vec<String>,
    /// Why, in one line.
    pub reason: String,
}

/// A request that cannot be met.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// None of the allowed CPUs is one of the machine's.
    #[error(
        "no CPU left to place ranks on: allowed are {allowed}, the machine has {online}; widen the affinity or cpuset"
    )]
    NoCpu {
        /// CPUs allowed.
        allowed: CpuSet,
        /// CPUs that the machine has online.
        online: CpuSet,
    },
    /// There is not one device per rank.
    #[error("{devices} devices are named for {local_ranks} local ranks: name one for each, or none at all")]
    DeviceCount {
        /// Devices named.
        devices: usize,
        /// Ranks to place.
        local_ranks: u32,
    },
    /// The machine has no such device.
    #[error(
        "local rank {rank} is to use PCI device {address}, which this machine does not have; see the list of devices that `ringway doctor` prints"
    )]
    UnknownDevice {
        /// The rank.
        rank: LocalRank,
        /// The device.
        address: PciAddress,
    },
}

/// Places the ranks of `request` on `machine`, in order of local rank.
///
/// # Errors
/// When no allowed CPU exists, or the devices do not fit the ranks or the machine.
pub fn place(machine: &Machine, request: &Request) -> Result<Vec<Placement>, PlaceError> {
    let allowed = request.allowed.and(&machine.parts().cpus);
    if allowed.is_empty() {
        let online = machine.parts().cpus.clone();
        return Err(PlaceError::NoCpu { allowed: request.allowed.clone(), online });
    }
    let ranks = request.local_ranks as usize;
    if !request.devices.is_empty() && request.devices.len() != ranks {
        let devices = request.devices.len();
        return Err(PlaceError::DeviceCount { devices, local_ranks: request.local_ranks });
    }
    for (rank, &address) in request.devices.iter().enumerate() {
        if machine.pci_device(address).is_none() {
            return Err(PlaceError::UnknownDevice { rank: LocalRank(rank as u32), address });
        }
    }
    let cpus = choose_cpus(machine, &allowed, &request.devices, ranks);
    let homes: Vec<Home<'_>> = cpus
        .into_iter()
        .enumerate()
        .map(|(rank, cpus)| Home::new(machine, cpus, request.devices.get(rank).copied()))
        .collect();
    let nics = assign(&homes, &usable_nics(machine, request.nics.as_deref()));
    let infiniband = assign(&homes, &usable_infiniband(machine, request.infiniband.as_deref()));
    Ok(homes
        .into_iter()
        .zip(nics.into_iter().zip(infiniband))
        .enumerate()
        .map(|(rank, (home, (nics, infiniband)))| Placement {
            rank: LocalRank(rank as u32),
            reason: home.reason(&nics, &infiniband),
            node: home.node,
            cpus: home.cpus,
            nics: nics.into_iter().map(|(name, _)| name).collect(),
            infiniband: infiniband.into_iter().map(|(name, _)| name).collect(),
        })
        .collect())
}

/// A rank's CPUs and memory, from which nearness is judged.
struct Home<'m> {
    machine: &'m Machine,
    cpus: CpuSet,
    node: Option<u32>,
    device: Option<PciAddress>,
}

impl<'m> Home<'m> {
    fn new(machine: &'m Machine, cpus: CpuSet, device: Option<PciAddress>) -> Self {
        let node = machine.node_around(&cpus).map(|node| node.index);
        Home { machine, cpus, node, device }
    }

    /// The nearest of a candidate's places, from the rank's accelerator if it has one, else from its CPUs. A
    /// candidate without a known place is as far as can be in one machine. The second number is the firmware's
    /// distance between NUMA nodes, which tells two packages apart.
    fn distance_to(&self, candidate: &Candidate<'_>) -> (Distance, u32) {
        let mut nearest = (Distance::Machine, u32::MAX);
        for &place in &candidate.places {
            for own in self.own_parts() {
                if let Some(step) = distance(self.machine, own, place) {
                    nearest = nearest.min((step, self.node_distance(own, place)));
                }
            }
        }
        nearest
    }

    fn own_parts(&self) -> Vec<Part> {
        if let Some(device) = self.device {
            return vec![Part::Device(device)];
        }
        // One CPU per NUMA node stands for all of them there.
        let mut by_node: BTreeMap<Option<u32>, u32> = BTreeMap::new();
        for cpu in self.cpus.iter() {
            by_node.entry(self.machine.node_of(cpu).map(|node| node.index)).or_insert(cpu);
        }
        by_node.into_values().map(Part::Cpu).collect()
    }

    fn node_distance(&self, own: Part, place: Part) -> u32 {
        let node = |part| match part {
            Part::Cpu(cpu) => self.machine.node_of(cpu).map(|node| node.index),
            Part::Node(index) => Some(index),
            Part::Device(address) => self.machine.pci_device(address).and_then(|device| device.node),
        };
        let known = |from, to| self.machine.node_distance(from, to);
        node(own).zip(node(place)).and_then(|(from, to)| known(from, to)).unwrap_or(u32::MAX)
    }

    fn reason(&self, nics: &[(String, Distance)], infiniband: &[(String, Distance)]) -> String {
        let mut text = format!("cpus {}", self.cpus);
        match (self.node, self.machine.parts().nodes.len()) {
            (Some(node), 1) => text += &format!(" of the only NUMA node, {node}"),
            (Some(node), _) => text += &format!(" and memory of NUMA node {node}"),
            (None, 0) => text += ", NUMA not known",
            (None, _) => text += " spanning NUMA nodes, memory not bound",
        }
        if let Some(device) = self.device {
            text += &format!(", near accelerator {device}");
        }
        let from = if self.device.is_some() { " as the accelerator" } else { "" };
        for (name, step) in nics.iter().chain(infiniband) {
            let from = if *step < Distance::Package { from } else { "" };
            text += &format!("; {name} {step}{from}");
        }
        if nics.is_empty() {
            text += "; no network interface that is up";
        }
        text
    }
}

/// A level of the tree at which CPUs are divided among ranks.
struct Level {
    sets: Vec<CpuSet>,
    /// Whether memory is local to the objects of this level, so that a rank had better not straddle two.
    holds_memory: bool,
}

fn choose_cpus(machine: &Machine, allowed: &CpuSet, devices: &[PciAddress], ranks: usize) -> Vec<CpuSet> {
    let levels = levels(machine);
    let Some(nodes) = home_nodes(machine, allowed, devices) else {
        return share_out(&levels, allowed, ranks);
    };
    // Ranks whose accelerators are near one node share that node's CPUs, in order of rank.
    let mut by_node: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (rank, node) in nodes.into_iter().enumerate() {
        by_node.entry(node).or_default().push(rank);
    }
    let mut cpus = vec![CpuSet::new(); ranks];
    for (node, members) in by_node {
        let local = machine.node(node).map_or_else(CpuSet::new, |node| node.cpus.and(allowed));
        let shares = share_out(&levels, &local, members.len());
        for (rank, share) in members.into_iter().zip(shares) {
            cpus[rank] = share;
        }
    }
    cpus
}

/// The node nearest to each rank's accelerator that has allowed CPUs; none when ranks have no accelerators, or
/// the firmware does not say where one is.
fn home_nodes(machine: &Machine, allowed: &CpuSet, devices: &[PciAddress]) -> Option<Vec<u32>> {
    let candidates: Vec<u32> =
        machine.parts().nodes.iter().filter(|node| node.cpus.meets(allowed)).map(|node| node.index).collect();
    let nearest = |&address: &PciAddress| {
        let own = machine.pci_device(address)?.node?;
        candidates.iter().copied().min_by_key(|&node| {
            let step = distance(machine, Part::Device(address), Part::Node(node));
            (step, machine.node_distance(own, node), node)
        })
    };
    if devices.is_empty() { None } else { devices.iter().map(nearest).collect() }
}

fn levels(machine: &Machine) -> Vec<Level> {
    let parts = machine.parts();
    let mut levels = vec![
        Level {
            sets: parts.packages.iter().map(|package| package.cpus.clone()).collect(),
            holds_memory: true,
        },
        Level { sets: parts.nodes.iter().map(|node| node.cpus.clone()).collect(), holds_memory: true },
    ];
    for level in (1..=5).rev() {
        let caches = parts.caches.iter().filter(|cache| cache.level == level);
        levels.push(Level { sets: caches.map(|cache| cache.cpus.clone()).collect(), holds_memory: false });
    }
    levels.push(Level {
        sets: parts.cores.iter().map(|core| core.cpus.clone()).collect(),
        holds_memory: false,
    });
    levels
}

/// Divides `cpus` among `ranks`, cutting at the outermost level that brings structure first.
fn share_out(levels: &[Level], cpus: &CpuSet, ranks: usize) -> Vec<CpuSet> {
    if ranks <= 1 {
        return vec![cpus.clone(); ranks];
    }
    let Some((level, finer)) = levels.split_first() else {
        return share_singles(cpus, ranks);
    };
    if ranks > cpus.len() && !level.holds_memory {
        return crowd(cpus, ranks);
    }
    let groups = partition(&level.sets, cpus);
    let units = units(levels, cpus, ranks);
    let weights: Vec<usize> =
        groups.iter().map(|group| units.iter().filter(|unit| unit.meets(group)).count()).collect();
    let merged = merge_neighbours(&weights, ranks);
    let shares = if merged.is_some() { Vec::new() } else { shares(&weights, ranks) };
    if groups.len() == 1 || !(level.holds_memory || is_even(&weights, &shares, merged.as_deref(), ranks)) {
        return share_out(finer, cpus, ranks);
    }
    match merged {
        Some(owners) => (0..ranks)
            .map(|rank| {
                let own = groups.iter().zip(&owners).filter(|(_, owner)| **owner == rank);
                own.fold(CpuSet::new(), |sum, (group, _)| sum.or(group))
            })
            .collect(),
        None => groups.iter().zip(shares).flat_map(|(group, share)| share_out(finer, group, share)).collect(),
    }
}

/// What is counted when shares are compared: cores while there are enough of them, else hardware threads.
fn units(levels: &[Level], cpus: &CpuSet, ranks: usize) -> Vec<CpuSet> {
    let cores = levels.last().map(|cores| partition(&cores.sets, cpus)).unwrap_or_default();
    if cores.len() >= ranks { cores } else { singles(cpus) }
}

fn singles(cpus: &CpuSet) -> Vec<CpuSet> {
    cpus.iter().filter_map(|cpu| CpuSet::of([cpu]).ok()).collect()
}

/// `cpus` cut along `sets`, empty pieces left out; what no set holds is a last piece.
fn partition(sets: &[CpuSet], cpus: &CpuSet) -> Vec<CpuSet> {
    let mut left = cpus.clone();
    let mut pieces = Vec::new();
    for set in sets {
        let piece = left.and(set);
        if !piece.is_empty() {
            left = left.minus(&piece);
            pieces.push(piece);
        }
    }
    if !left.is_empty() {
        pieces.push(left);
    }
    pieces
}

/// With fewer ranks than groups: the rank that owns each group, contiguous and near even. None when there are
/// enough ranks for every group, or the groups are so uneven that a rank would get nothing.
fn merge_neighbours(weights: &[usize], ranks: usize) -> Option<Vec<usize>> {
    if ranks >= weights.len() {
        return None;
    }
    let total: usize = weights.iter().sum();
    let mut before = 0;
    let owners: Vec<usize> = weights
        .iter()
        .map(|weight| {
            let owner = (2 * before + weight) * ranks / (2 * total);
            before += weight;
            owner
        })
        .collect();
    (0..ranks).all(|rank| owners.contains(&rank)).then_some(owners)
}

/// How many ranks each group gets: each next rank goes where its share will be the largest (d'Hondt's method),
/// so the rank with the least has as much as can be. Of two equal choices the heavier group is taken, and a
/// group too small to be worth a rank stays idle.
fn shares(weights: &[usize], ranks: usize) -> Vec<usize> {
    let mut shares = vec![0usize; weights.len()];
    for _ in 0..ranks {
        let best = (0..weights.len()).reduce(|best, other| {
            let (there, here) = (weights[other] * (shares[best] + 1), weights[best] * (shares[other] + 1));
            if (there, weights[other]) > (here, weights[best]) { other } else { best }
        });
        if let Some(best) = best {
            shares[best] += 1;
        }
    }
    shares
}

/// Whether cutting here leaves the poorest rank as rich as an even division would.
fn is_even(weights: &[usize], shares: &[usize], merged: Option<&[usize]>, ranks: usize) -> bool {
    let even = weights.iter().sum::<usize>() / ranks;
    let poorest = match merged {
        Some(owners) => (0..ranks)
            .map(|rank| weights.iter().zip(owners).filter(|(_, owner)| **owner == rank).map(|(w, _)| w).sum())
            .min(),
        None => weights.iter().zip(shares).filter(|(_, share)| **share > 0).map(|(w, share)| w / share).min(),
    };
    poorest.is_some_and(|poorest: usize| poorest >= even)
}

/// I2: more ranks than CPUs.
fn crowd(cpus: &CpuSet, ranks: usize) -> Vec<CpuSet> {
    if !ranks.is_multiple_of(cpus.len().max(1)) {
        return vec![cpus.clone(); ranks];
    }
    singles(cpus).into_iter().cycle().take(ranks).collect()
}

/// The last level: single CPUs, in contiguous runs.
fn share_singles(cpus: &CpuSet, ranks: usize) -> Vec<CpuSet> {
    let all = singles(cpus);
    if ranks > all.len() {
        return crowd(cpus, ranks);
    }
    let bound = |rank: usize| rank * all.len() / ranks;
    (0..ranks)
        .map(|rank| all[bound(rank)..bound(rank + 1)].iter().fold(CpuSet::new(), |sum, cpu| sum.or(cpu)))
        .collect()
}

/// A device that a rank might use, and the places it has.
struct Candidate<'m> {
    name: &'m str,
    places: Vec<Part>,
}

fn place_of(pci: Option<PciAddress>, node: Option<u32>) -> Option<Part> {
    pci.map(Part::Device).or(node.map(Part::Node))
}

/// Interfaces that carry tensors: real ones that are up and not a member of another; of a bond or bridge, the
/// whole. Without any, virtual ones that are up; without those, loopback.
fn usable_nics<'m>(machine: &'m Machine, named: Option<&[String]>) -> Vec<Candidate<'m>> {
    let nics = &machine.parts().nics;
    let chosen = match named {
        Some(names) => nics.iter().filter(|nic| names.contains(&nic.name)).collect(),
        None => carriers(nics),
    };
    let candidate = |nic: &'m Nic| {
        let parts = std::iter::once(nic).chain(members(nics, nic));
        Candidate { name: &nic.name, places: parts.filter_map(|nic| place_of(nic.pci, nic.node)).collect() }
    };
    chosen.into_iter().map(candidate).collect()
}

/// The interfaces that belong to a bond or bridge.
fn members<'m>(nics: &'m [Nic], whole: &Nic) -> Vec<&'m Nic> {
    nics.iter().filter(|nic| nic.master.as_deref() == Some(whole.name.as_str())).collect()
}

fn carriers(nics: &[Nic]) -> Vec<&Nic> {
    let up = |nic: &&Nic| nic.state != LinkState::Down && nic.master.is_none();
    let real =
        |nic: &Nic| nic.kind.is_real() || members(nics, nic).iter().any(|member| member.kind.is_real());
    let preferences: [&dyn Fn(&Nic) -> bool; 3] =
        [&real, &|nic| nic.kind != NicKind::Loopback, &|nic| nic.kind == NicKind::Loopback];
    let of = |wanted: &dyn Fn(&Nic) -> bool| -> Vec<&Nic> {
        nics.iter().filter(up).filter(|nic| wanted(nic)).collect()
    };
    let mut chosen = preferences.into_iter().map(of).find(|found| !found.is_empty()).unwrap_or_default();
    let speed = |nic: &Nic| {
        nic.speed_mbps.or_else(|| members(nics, nic).iter().filter_map(|member| member.speed_mbps).max())
    };
    let fastest = chosen.iter().filter_map(|nic| speed(nic)).max().unwrap_or(0);
    chosen.retain(|nic| speed(nic).is_none_or(|own| own.saturating_mul(MANAGEMENT_SPEED_RATIO) > fastest));
    chosen
}

fn usable_infiniband<'m>(machine: &'m Machine, named: Option<&[String]>) -> Vec<Candidate<'m>> {
    let carries = |device: &InfiniBand| {
        device.ports.is_empty() || device.ports.iter().any(|port| port.state != LinkState::Down)
    };
    let chosen =
        |device: &&InfiniBand| named.map_or_else(|| carries(device), |names| names.contains(&device.name));
    let candidate = |device: &'m InfiniBand| Candidate {
        name: &device.name,
        places: place_of(device.pci, device.node).into_iter().collect(),
    };
    machine.parts().infiniband.iter().filter(chosen).map(candidate).collect()
}

/// Gives each rank the nearest candidates. Ranks to which the same ones are nearest divide them: several each
/// when there are more candidates than ranks, in turn when there are fewer.
fn assign(homes: &[Home<'_>], candidates: &[Candidate<'_>]) -> Vec<Vec<(String, Distance)>> {
    let mut rivals: BTreeMap<Vec<usize>, Vec<(usize, Distance)>> = BTreeMap::new();
    for (rank, home) in homes.iter().enumerate() {
        let distances: Vec<_> = candidates.iter().map(|candidate| home.distance_to(candidate)).collect();
        let Some(&nearest) = distances.iter().min() else { continue };
        let set = (0..candidates.len()).filter(|&index| distances[index] == nearest).collect();
        rivals.entry(set).or_default().push((rank, nearest.0));
    }
    let mut chosen = vec![Vec::new(); homes.len()];
    for (set, ranks) in rivals {
        for (turn, (rank, step)) in ranks.iter().enumerate() {
            let bound = |turn: usize| turn * set.len() / ranks.len();
            let own = if set.len() >= ranks.len() {
                &set[bound(turn)..bound(turn + 1)]
            } else {
                &set[turn % set.len()..][..1]
            };
            chosen[*rank] = own.iter().map(|&index| (candidates[index].name.to_owned(), *step)).collect();
        }
    }
    chosen
}
