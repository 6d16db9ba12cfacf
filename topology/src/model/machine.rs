//! What one machine consists of.
//!
//! The tree of packages, NUMA nodes, caches and cores is kept as lists of CPU sets: one object is below another
//! when its set is inside the other's. That is the tree that every source agrees on, whatever levels it names,
//! and a consumer that wants the network cards need not walk it.
//!
//! Invariants, checked by [`Machine::new`] whatever the source:
//! - I1: the machine has a CPU, and every set of CPUs is inside the machine's.
//! - I2: packages share no CPU; nor do cores; nor do caches of one level. Two NUMA nodes share none, or those of
//!   one are all among those of the other (memory of two kinds).
//! - I3: packages, NUMA nodes, PCI devices, network interfaces and InfiniBand devices are named once each.
//! - I4: a device names a PCI device and a NUMA node of this machine, or none.
//! - I5: there are at most [`NODE_LIMIT`] NUMA nodes and [`DEVICE_LIMIT`] devices of a kind.
//! - I6: the table of distances between NUMA nodes has a row and a column per node, or is empty.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;

use super::cpuset::CpuSet;
use super::pci::{PciAddress, PciDevice};

/// Most NUMA nodes of a machine: the largest MAX_NUMNODES of Linux.
pub const NODE_LIMIT: usize = 1024;

/// Most PCI devices, network interfaces or RDMA devices of a machine: some thousands of virtual functions are seen.
pub const DEVICE_LIMIT: usize = 16_384;

/// Where a description of a machine came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// libhwloc asked about this machine.
    Hwloc,
    /// Files under /sys were read.
    Sysfs,
    /// hwloc's synthetic notation.
    Synthetic,
    /// An XML file that hwloc exported.
    Xml,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Hwloc => "hwloc",
            Source::Sysfs => "sysfs",
            Source::Synthetic => "synthetic",
            Source::Xml => "XML",
        })
    }
}

/// A processor package (socket).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// The operating system's number.
    pub index: u32,
    /// Its online CPUs.
    pub cpus: CpuSet,
}

/// A NUMA node: memory, and the CPUs next to it (none for memory behind a link).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// The operating system's number.
    pub index: u32,
    /// CPUs for which this memory is local.
    pub cpus: CpuSet,
    /// Size of the memory; 0 where it is not known.
    pub memory_bytes: u64,
}

/// A cache that holds data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// 1 for the one next to the core.
    pub level: u8,
    /// Size; 0 where it is not known.
    pub size_bytes: u64,
    /// CPUs that share it.
    pub cpus: CpuSet,
}

/// A core, with one or more hardware threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// Its hardware threads.
    pub cpus: CpuSet,
    /// Whether it is of the slower kind, on a machine that has two (efficiency cores of a laptop, say).
    pub slow: bool,
}

impl Core {
    /// A core of the machine's only or quicker kind.
    #[must_use]
    pub const fn of(cpus: CpuSet) -> Core {
        Core { cpus, slow: false }
    }
}

/// Of the most that a core of a machine can do, the percentage below which another core of it counts as of a slower
/// kind. Cores of one kind differ by some percent where the best of them may clock higher.
pub(crate) const SLOW_BELOW_PERCENT: u64 = 75;

/// Whether a link carries data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkState {
    /// Carrier and configured.
    Up,
    /// No carrier, or switched off.
    Down,
    /// The driver does not say, or the description was not taken from the live machine.
    Unknown,
}

/// What kind of network interface it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NicKind {
    /// A device (a virtual machine's paravirtual card counts).
    Physical,
    /// The loopback interface.
    Loopback,
    /// One end of a pair of virtual interfaces: what a container calls eth0.
    Veth,
    /// A software bridge, as docker0.
    Bridge,
    /// Several interfaces used as one.
    Bond,
    /// A VLAN, macvlan or ipvlan on another interface.
    Stacked,
    /// Any other interface without a device behind it: tunnels, dummies.
    Virtual,
}

impl NicKind {
    /// Whether traffic through it can leave the machine at the speed of a device: a device, or several in a
    /// bond.
    #[must_use]
    pub fn is_real(self) -> bool {
        matches!(self, NicKind::Physical | NicKind::Bond)
    }
}

/// A network interface. Its addresses are not here: they change while it stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// The interface's name, as eth0.
    pub name: String,
    /// What it is.
    pub kind: NicKind,
    /// The PCI device behind it.
    pub pci: Option<PciAddress>,
    /// NUMA node next to it, where known.
    pub node: Option<u32>,
    /// Whether it carries data.
    pub state: LinkState,
    /// Speed of the link, where the driver says.
    pub speed_mbps: Option<u32>,
    /// Largest packet, where known.
    pub mtu_bytes: Option<u32>,
    /// The bond or bridge that it belongs to.
    pub master: Option<String>,
}

/// What an RDMA device's port speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IbLink {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE or iWARP.
    Ethernet,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IbPort {
    /// From 1 up.
    pub number: u8,
    /// Whether it carries data.
    pub state: LinkState,
    /// What it speaks, where known.
    pub link: Option<IbLink>,
    /// Signalling rate, where known.
    pub rate_gbps: Option<u32>,
}

/// An RDMA device, as the verbs know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfiniBand {
    /// The device's name, as mlx5_0.
    pub name: String,
    /// The PCI device behind it; none for a software device.
    pub pci: Option<PciAddress>,
    /// NUMA node next to it, where known.
    pub node: Option<u32>,
    /// Its ports.
    pub ports: Vec<IbPort>,
    /// Network interfaces of the same PCI device.
    pub nics: Vec<String>,
}

/// An accelerator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// A driver's name for it where one was seen, as cuda0; otherwise its PCI address.
    pub name: String,
    /// The PCI device that it is.
    pub pci: PciAddress,
    /// NUMA node next to it, where known.
    pub node: Option<u32>,
}

/// The parts of a machine, as read from any source, not yet checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The host's name or the description's.
    pub name: String,
    /// Where all this came from.
    pub source: Source,
    /// Online CPUs.
    pub cpus: CpuSet,
    /// CPUs that this process may use: affinity and cpuset.
    pub allowed: CpuSet,
    /// Processor packages.
    pub packages: Vec<Package>,
    /// NUMA nodes.
    pub nodes: Vec<NumaNode>,
    /// `node_distances[i][j]`: the firmware's relative cost for the CPUs of `nodes[i]` to reach the memory of
    /// `nodes[j]`, 10 being local (ACPI's System Locality Information Table). Empty where not known.
    pub node_distances: Vec<Vec<u32>>,
    /// Caches that hold data, of every level.
    pub caches: Vec<Cache>,
    /// Cores.
    pub cores: Vec<Core>,
    /// PCI devices.
    pub pci: Vec<PciDevice>,
    /// Network interfaces.
    pub nics: Vec<Nic>,
    /// RDMA devices.
    pub infiniband: Vec<InfiniBand>,
    /// Accelerators.
    pub gpus: Vec<Gpu>,
}

impl Parts {
    /// Marks slow cores, from what each CPU can do relative to the others, as far as that is known.
    pub(crate) fn set_speeds(&mut self, speeds: &[(u32, u64)]) {
        let most = speeds.iter().map(|(_, speed)| *speed).max().unwrap_or(0);
        let slow = |speed: u64| speed.saturating_mul(100) < most.saturating_mul(SLOW_BELOW_PERCENT);
        for core in &mut self.cores {
            let own = speeds.iter().find(|(cpu, _)| core.cpus.contains(*cpu));
            core.slow = own.is_some_and(|(_, speed)| slow(*speed));
        }
    }

    /// A machine's parts with only its name, source and CPUs, all of them allowed.
    #[must_use]
    pub fn bare(name: String, source: Source, cpus: CpuSet) -> Self {
        Parts {
            name,
            source,
            allowed: cpus.clone(),
            cpus,
            packages: Vec::new(),
            nodes: Vec::new(),
            node_distances: Vec::new(),
            caches: Vec::new(),
            cores: Vec::new(),
            pci: Vec::new(),
            nics: Vec::new(),
            infiniband: Vec::new(),
            gpus: Vec::new(),
        }
    }

    /// I5, for a source to check before it relates devices to each other.
    pub(crate) fn check_counts(&self) -> Result<(), MachineError> {
        let counts = [
            ("NUMA nodes", self.nodes.len(), NODE_LIMIT),
            ("PCI devices", self.pci.len(), DEVICE_LIMIT),
            ("network interfaces", self.nics.len(), DEVICE_LIMIT),
            ("RDMA devices", self.infiniband.len(), DEVICE_LIMIT),
        ];
        match counts.into_iter().find(|(_, count, limit)| count > limit) {
            Some((what, count, limit)) => Err(MachineError::TooMany { what, count, limit }),
            None => Ok(()),
        }
    }
}

/// One machine, checked. Its parts are read through [`Machine::parts`] and never changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    parts: Parts,
}

impl Machine {
    /// Checks the parts against the module's invariants.
    ///
    /// # Errors
    /// The first invariant broken, with the object that breaks it.
    pub fn new(parts: Parts) -> Result<Self, MachineError> {
        parts.check_counts()?;
        check_sets(&parts)?;
        check_names(&parts)?;
        check_places(&parts)?;
        Ok(Machine { parts })
    }

    /// Everything there is.
    #[must_use]
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// The same machine seen by a process that may use only `allowed` of its CPUs.
    ///
    /// # Errors
    /// When `allowed` holds a CPU that the machine lacks (I1).
    pub fn with_allowed(mut self, allowed: CpuSet) -> Result<Self, MachineError> {
        self.parts.allowed = allowed;
        Machine::new(self.parts)
    }

    /// The NUMA node with this number.
    #[must_use]
    pub fn node(&self, index: u32) -> Option<&NumaNode> {
        self.parts.nodes.iter().find(|node| node.index == index)
    }

    /// The first NUMA node next to this CPU. The first of two is the one with ordinary memory.
    #[must_use]
    pub fn node_of(&self, cpu: u32) -> Option<&NumaNode> {
        self.parts.nodes.iter().find(|node| node.cpus.contains(cpu))
    }

    /// The package that holds this CPU.
    #[must_use]
    pub fn package_of(&self, cpu: u32) -> Option<&Package> {
        self.parts.packages.iter().find(|package| package.cpus.contains(cpu))
    }

    /// The first NUMA node to whose CPUs all of these belong; none when they span nodes or are none.
    #[must_use]
    pub fn node_around(&self, cpus: &CpuSet) -> Option<&NumaNode> {
        self.parts.nodes.iter().find(|node| !cpus.is_empty() && cpus.inside(&node.cpus))
    }

    /// The PCI device at this address.
    #[must_use]
    pub fn pci_device(&self, address: PciAddress) -> Option<&PciDevice> {
        self.parts.pci.iter().find(|device| device.address == address)
    }

    /// The firmware's distance from one NUMA node to another (10 is local), where it gives one.
    #[must_use]
    pub fn node_distance(&self, from: u32, to: u32) -> Option<u32> {
        let at = |index| self.parts.nodes.iter().position(|node| node.index == index);
        self.parts.node_distances.get(at(from)?)?.get(at(to)?).copied()
    }
}

fn check_sets(parts: &Parts) -> Result<(), MachineError> {
    if parts.cpus.is_empty() {
        return Err(MachineError::NoCpu);
    }
    let inside = |what: &dyn fmt::Display, cpus: &CpuSet| {
        if cpus.inside(&parts.cpus) {
            return Ok(());
        }
        Err(MachineError::Foreign { what: what.to_string(), cpus: cpus.minus(&parts.cpus) })
    };
    inside(&"the allowed set", &parts.allowed)?;
    let mut levels: Vec<(String, Vec<&CpuSet>)> = vec![
        ("packages".into(), parts.packages.iter().map(|package| &package.cpus).collect()),
        ("cores".into(), parts.cores.iter().map(|core| &core.cpus).collect()),
    ];
    let mut cache_levels: Vec<u8> = parts.caches.iter().map(|cache| cache.level).collect();
    cache_levels.sort_unstable();
    cache_levels.dedup();
    for level in cache_levels {
        let sets = parts.caches.iter().filter(|cache| cache.level == level).map(|cache| &cache.cpus);
        levels.push((format!("level {level} caches"), sets.collect()));
    }
    for (what, sets) in levels {
        let mut seen = CpuSet::new();
        for set in sets {
            inside(&what, set)?;
            if seen.meets(set) {
                return Err(MachineError::Overlap { what, cpus: seen.and(set) });
            }
            seen = seen.or(set);
        }
    }
    for (at, node) in parts.nodes.iter().enumerate() {
        inside(&format_args!("NUMA node {}", node.index), &node.cpus)?;
        let crosses = |other: &&NumaNode| {
            let nested = node.cpus.inside(&other.cpus) || other.cpus.inside(&node.cpus);
            node.cpus.meets(&other.cpus) && !nested
        };
        if let Some(other) = parts.nodes[..at].iter().find(crosses) {
            return Err(MachineError::Overlap {
                what: "NUMA nodes".into(),
                cpus: node.cpus.and(&other.cpus),
            });
        }
    }
    for device in &parts.pci {
        inside(&format_args!("PCI device {}", device.address), &device.cpus)?;
    }
    Ok(())
}

fn check_names(parts: &Parts) -> Result<(), MachineError> {
    fn once<K: Eq + Hash + fmt::Display>(
        what: &'static str,
        keys: impl Iterator<Item = K>,
    ) -> Result<(), MachineError> {
        let mut seen = HashSet::new();
        for key in keys {
            let name = key.to_string();
            if !seen.insert(key) {
                return Err(MachineError::Twice { what, name });
            }
        }
        Ok(())
    }
    once("package", parts.packages.iter().map(|package| package.index))?;
    once("NUMA node", parts.nodes.iter().map(|node| node.index))?;
    once("PCI device", parts.pci.iter().map(|device| device.address))?;
    once("network interface", parts.nics.iter().map(|nic| &nic.name))?;
    once("InfiniBand device", parts.infiniband.iter().map(|device| &device.name))?;
    once("accelerator", parts.gpus.iter().map(|gpu| gpu.pci))
}

fn check_places(parts: &Parts) -> Result<(), MachineError> {
    let side = parts.nodes.len();
    let square =
        parts.node_distances.len() == side && parts.node_distances.iter().all(|row| row.len() == side);
    if !parts.node_distances.is_empty() && !square {
        return Err(MachineError::Distances { nodes: side });
    }
    let nodes: HashSet<u32> = parts.nodes.iter().map(|node| node.index).collect();
    let devices: HashSet<PciAddress> = parts.pci.iter().map(|device| device.address).collect();
    let good = |name: &dyn fmt::Display, pci: Option<PciAddress>, node: Option<u32>| {
        if let Some(address) = pci.filter(|address| !devices.contains(address)) {
            return Err(MachineError::Nowhere {
                device: name.to_string(),
                place: format!("PCI device {address}"),
            });
        }
        match node.filter(|node| !nodes.contains(node)) {
            Some(node) => {
                Err(MachineError::Nowhere { device: name.to_string(), place: format!("NUMA node {node}") })
            }
            None => Ok(()),
        }
    };
    for device in &parts.pci {
        good(&device.address, None, device.node)?;
    }
    for nic in &parts.nics {
        good(&nic.name, nic.pci, nic.node)?;
    }
    for device in &parts.infiniband {
        good(&device.name, device.pci, device.node)?;
    }
    parts.gpus.iter().try_for_each(|gpu| good(&gpu.name, Some(gpu.pci), gpu.node))
}

/// A description that cannot be a machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MachineError {
    /// I1: no CPU.
    #[error("the description has no online CPU: check that its source is complete")]
    NoCpu,
    /// I1: a CPU outside the machine.
    #[error("{what} names CPUs {cpus}, which the machine does not have online")]
    Foreign {
        /// What names them.
        what: String,
        /// The CPUs that are not there.
        cpus: CpuSet,
    },
    /// I2: two objects that cannot share CPUs do.
    #[error("two {what} both hold CPUs {cpus}: the description contradicts itself")]
    Overlap {
        /// The kind of object.
        what: String,
        /// The CPUs in both.
        cpus: CpuSet,
    },
    /// I3: one name for two objects.
    #[error("{what} {name} is described twice")]
    Twice {
        /// The kind of object.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// I4: a device at a place that is not there.
    #[error("device {device} is said to be at {place}, which the machine does not have")]
    Nowhere {
        /// The device.
        device: String,
        /// The place.
        place: String,
    },
    /// I5: more objects than any machine has.
    #[error("{count} {what} are over the limit of {limit}")]
    TooMany {
        /// The kind of object.
        what: &'static str,
        /// How many are described.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// I6: the table of distances is not square.
    #[error("the table of NUMA distances does not have {nodes} rows of {nodes}")]
    Distances {
        /// NUMA nodes that the machine has.
        nodes: usize,
    },
}
