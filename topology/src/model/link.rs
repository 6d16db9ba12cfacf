//! How far apart two parts of a machine are.
//!
//! Distances are steps of a ladder, not numbers: what lies between two parts decides which of two choices is
//! nearer, on every machine, without measuring. The steps between devices are those that NCCL and
//! `nvidia-smi topo` name PIX ([`Distance::Switch`]), PXB ([`Distance::Switches`]), PHB ([`Distance::HostBridge`]),
//! NODE and SYS.

use std::fmt;

use super::cpuset::CpuSet;
use super::machine::Machine;
use super::pci::{PciAddress, PciDevice};

/// What lies between two parts, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distance {
    /// The same CPU, or functions of one card.
    Same,
    /// Hardware threads of one core.
    Core,
    /// Cores that share a cache.
    Cache,
    /// Devices below one PCI switch or root port: data between them does not reach the processor.
    Switch,
    /// Devices below switches that hang together below one root port: as before, through more of them.
    Switches,
    /// Devices below one host bridge.
    HostBridge,
    /// One NUMA node.
    Node,
    /// One package, different NUMA nodes.
    Package,
    /// One machine, different packages.
    Machine,
    /// Different machines.
    Network,
}

impl Distance {
    /// The step in words that fit after a device's name, as in "behind the same PCI switch".
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Distance::Same => "in the same place",
            Distance::Core => "on the same core",
            Distance::Cache => "on the same cache",
            Distance::Switch => "behind the same PCI switch",
            Distance::Switches => "behind PCI switches that hang together",
            Distance::HostBridge => "on the same host bridge",
            Distance::Node => "on the same NUMA node",
            Distance::Package => "in the same package, on another NUMA node",
            Distance::Machine => "elsewhere in the machine",
            Distance::Network => "on another machine",
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

/// A part of a machine that has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// A logical CPU.
    Cpu(u32),
    /// A NUMA node's memory.
    Node(u32),
    /// A PCI device: a network card or an accelerator.
    Device(PciAddress),
}

/// The distance between two parts of `machine`, or none when it lacks one of them. Symmetric.
#[must_use]
pub fn distance(machine: &Machine, a: Part, b: Part) -> Option<Distance> {
    let near_a = cpus_near(machine, a)?;
    let near_b = cpus_near(machine, b)?;
    Some(match (a, b) {
        (Part::Cpu(a), Part::Cpu(b)) if a == b => Distance::Same,
        (Part::Cpu(a), Part::Cpu(b)) => {
            between_cpus(machine, a, b).unwrap_or_else(|| between_sets(machine, near_a, near_b))
        }
        (Part::Node(a), Part::Node(b)) if a == b => Distance::Node,
        (Part::Node(_), Part::Node(_)) => {
            // Two memories of the same CPUs (ordinary and high-bandwidth) are different nodes of one package.
            between_sets(machine, near_a, near_b).max(Distance::Package)
        }
        (Part::Device(a), Part::Device(b)) => {
            let (a, b) = (machine.pci_device(a)?, machine.pci_device(b)?);
            between_devices(a, b).unwrap_or_else(|| between_sets(machine, near_a, near_b))
        }
        _ => between_sets(machine, near_a, near_b),
    })
}

/// The CPUs next to a part; none when the machine lacks the part.
fn cpus_near(machine: &Machine, part: Part) -> Option<&CpuSet> {
    match part {
        Part::Cpu(cpu) if machine.parts().cpus.contains(cpu) => Some(
            // The smallest set at hand that holds the CPU; all that is asked of it is node and package.
            machine
                .parts()
                .cores
                .iter()
                .map(|core| &core.cpus)
                .find(|cpus| cpus.contains(cpu))
                .unwrap_or(machine.node_of(cpu).map_or(&machine.parts().cpus, |node| &node.cpus)),
        ),
        Part::Cpu(_) => None,
        Part::Node(index) => machine.node(index).map(|node| &node.cpus),
        Part::Device(address) => machine.pci_device(address).map(|device| &device.cpus),
    }
}

fn between_cpus(machine: &Machine, a: u32, b: u32) -> Option<Distance> {
    let parts = machine.parts();
    let both = |cpus: &CpuSet| cpus.contains(a) && cpus.contains(b);
    if parts.cores.iter().any(|core| both(&core.cpus)) {
        Some(Distance::Core)
    } else if parts.caches.iter().any(|cache| both(&cache.cpus)) && same_node(machine, a, b) {
        Some(Distance::Cache)
    } else {
        None
    }
}

/// A cache that spans NUMA nodes (sub-NUMA clustering) does not make them one.
fn same_node(machine: &Machine, a: u32, b: u32) -> bool {
    machine.node_of(a).map(|node| node.index) == machine.node_of(b).map(|node| node.index)
}

/// A switch is a bridge to its inner bus and one more to each device: two devices below it part at its last.
fn between_devices(a: &PciDevice, b: &PciDevice) -> Option<Distance> {
    let shared = a.bridges.iter().zip(&b.bridges).take_while(|(a, b)| a == b).count();
    let apart = a.bridges.len().max(b.bridges.len()) - shared;
    match (a.root == b.root, shared, apart) {
        _ if a.address.same_card(b.address) => Some(Distance::Same),
        (true, 1.., 0 | 1) => Some(Distance::Switch),
        (true, 1.., _) => Some(Distance::Switches),
        (true, 0, _) => Some(Distance::HostBridge),
        (false, ..) => None,
    }
}

/// By the NUMA node, else the package, whose CPUs hold both sets. A set wider than a package says nothing.
fn between_sets(machine: &Machine, a: &CpuSet, b: &CpuSet) -> Distance {
    let both = |cpus: &CpuSet| a.inside(cpus) && b.inside(cpus);
    if a.is_empty() || b.is_empty() {
        Distance::Machine
    } else if machine.parts().nodes.iter().any(|node| both(&node.cpus)) {
        Distance::Node
    } else if machine.parts().packages.iter().any(|package| both(&package.cpus)) {
        Distance::Package
    } else {
        Distance::Machine
    }
}
