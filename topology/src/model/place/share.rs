//! Which CPUs each rank gets.

use std::collections::BTreeMap;

use crate::model::cpuset::CpuSet;
use crate::model::link::{Part, distance};
use crate::model::machine::Machine;
use crate::model::pci::PciAddress;

/// A level of the tree at which CPUs are divided among ranks.
struct Level {
    sets: Vec<CpuSet>,
    /// Whether memory is local to the objects of this level, so that a rank had better not straddle two.
    holds_memory: bool,
}

/// The shares of all ranks. Slow cores are left out where ranks wait for each other and there are enough others.
pub(super) fn choose_cpus(
    machine: &Machine,
    allowed: &CpuSet,
    devices: &[PciAddress],
    ranks: usize,
) -> Vec<CpuSet> {
    let quick = quick_cores(machine, allowed);
    let few = ranks > 1 && quick.len() >= ranks;
    let quick = quick.iter().fold(CpuSet::new(), |sum, core| sum.or(core));
    let allowed = if few { &quick } else { allowed };
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

/// What may be used of each core that is not slow.
fn quick_cores(machine: &Machine, allowed: &CpuSet) -> Vec<CpuSet> {
    let quick = machine.parts().cores.iter().filter(|core| !core.slow);
    quick.map(|core| core.cpus.and(allowed)).filter(|cpus| !cpus.is_empty()).collect()
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
pub(super) fn partition(sets: &[CpuSet], cpus: &CpuSet) -> Vec<CpuSet> {
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
