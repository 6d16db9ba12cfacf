//! Which network devices are nearest to each rank.

use std::collections::BTreeMap;

use super::MANAGEMENT_SPEED_RATIO;
use crate::model::cpuset::CpuSet;
use crate::model::link::{Distance, Part, distance};
use crate::model::machine::{InfiniBand, LinkState, Machine, Nic, NicKind};
use crate::model::pci::PciAddress;

/// A rank's CPUs and memory, from which nearness is judged.
pub(super) struct Home<'m> {
    machine: &'m Machine,
    pub(super) cpus: CpuSet,
    pub(super) node: Option<u32>,
    pub(super) device: Option<PciAddress>,
}

impl<'m> Home<'m> {
    pub(super) fn new(machine: &'m Machine, cpus: CpuSet, device: Option<PciAddress>) -> Self {
        let node = machine.node_around(&cpus).map(|node| node.index);
        Home { machine, cpus, node, device }
    }

    /// The nearest of a candidate's places, from the rank's accelerator if it has one, else from its CPUs. A
    /// candidate without a known place is as far as can be in one machine.
    fn distance_to(&self, candidate: &Candidate<'_>) -> (Distance, u32) {
        let mut nearest = (Distance::Machine, u32::MAX);
        for &place in &candidate.places {
            for own in self.own_parts() {
                nearest = how_far(self.machine, own, place).map_or(nearest, |far| nearest.min(far));
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
}

/// How far one part is from another: the step, and the firmware's distance between their NUMA nodes, which tells two
/// packages apart. None when the machine lacks one of them.
pub(super) fn how_far(machine: &Machine, from: Part, to: Part) -> Option<(Distance, u32)> {
    let node = |part| match part {
        Part::Cpu(cpu) => machine.node_of(cpu).map(|node| node.index),
        Part::Node(index) => Some(index),
        Part::Device(address) => machine.pci_device(address).and_then(|device| device.node),
    };
    let told = node(from).zip(node(to)).and_then(|(from, to)| machine.node_distance(from, to));
    Some((distance(machine, from, to)?, told.unwrap_or(u32::MAX)))
}

/// A device that a rank might use, and the places it has.
pub(super) struct Candidate<'m> {
    pub(super) name: &'m str,
    pub(super) places: Vec<Part>,
}

/// A device that a rank uses, and how far it is.
#[derive(Clone, Copy)]
pub(super) struct Chosen<'c, 'm> {
    pub(super) candidate: &'c Candidate<'m>,
    pub(super) step: Distance,
}

fn place_of(pci: Option<PciAddress>, node: Option<u32>) -> Option<Part> {
    pci.map(Part::Device).or(node.map(Part::Node))
}

/// Interfaces that carry tensors: real ones that are up and not a member of another; of a bond or bridge, the
/// whole. Without any, virtual ones that are up; without those, loopback.
pub(super) fn usable_nics<'m>(machine: &'m Machine, named: Option<&[String]>) -> Vec<Candidate<'m>> {
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

pub(super) fn usable_infiniband<'m>(machine: &'m Machine, named: Option<&[String]>) -> Vec<Candidate<'m>> {
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
/// when there are more candidates than ranks, in turn when there are fewer. Where such sets of two kinds of ranks
/// overlap, those with less to choose from choose first.
pub(super) fn assign<'c, 'm>(
    homes: &[Home<'_>],
    candidates: &'c [Candidate<'m>],
) -> Vec<Vec<Chosen<'c, 'm>>> {
    let mut rivals: BTreeMap<Vec<usize>, Vec<(usize, Distance)>> = BTreeMap::new();
    for (rank, home) in homes.iter().enumerate() {
        let distances: Vec<_> = candidates.iter().map(|candidate| home.distance_to(candidate)).collect();
        let Some(&nearest) = distances.iter().min() else { continue };
        let set = (0..candidates.len()).filter(|&index| distances[index] == nearest).collect();
        rivals.entry(set).or_default().push((rank, nearest.0));
    }
    let mut chosen = vec![Vec::new(); homes.len()];
    let mut users = vec![0usize; candidates.len()];
    let mut rivals: Vec<_> = rivals.into_iter().collect();
    rivals.sort_by_key(|(set, _)| set.len());
    for (set, ranks) in rivals {
        // Those that fewest use; more of them only if these do not go round.
        let mut set = set;
        set.sort_by_key(|&index| (users[index], index));
        let least = set.iter().take_while(|&&index| users[index] == users[set[0]]).count();
        set.truncate(least.max(ranks.len().min(set.len())));
        set.sort_unstable();
        for (turn, (rank, step)) in ranks.iter().enumerate() {
            let bound = |turn: usize| turn * set.len() / ranks.len();
            let own = if set.len() >= ranks.len() {
                &set[bound(turn)..bound(turn + 1)]
            } else {
                &set[turn % set.len()..][..1]
            };
            own.iter().for_each(|&index| users[index] += 1);
            chosen[*rank] =
                own.iter().map(|&index| Chosen { candidate: &candidates[index], step: *step }).collect();
        }
    }
    chosen
}
