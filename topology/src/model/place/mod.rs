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
//! - I6: a progress thread has allowed CPUs beside the rank's network device, that no other rank has. They are none of
//!   the rank's own where it is asked to be apart and its share has the room ([`Progress::Apart`]).
//! - I7: slow cores are no rank's, on a machine with two kinds where several ranks would wait for the slowest of them
//!   and the quick cores go round. Progress threads may have them.

mod nearest;
mod progress;
mod share;

use super::cpuset::CpuSet;
use super::ids::LocalRank;
use super::link::Distance;
use super::machine::Machine;
use super::pci::PciAddress;
use nearest::{Chosen, Home, assign, usable_infiniband, usable_nics};
use progress::Shares;
use share::choose_cpus;

/// An interface this many times slower than the fastest is a management port and carries no tensors.
pub const MANAGEMENT_SPEED_RATIO: u32 = 8;

/// Cores of a share from which on one of them is left to the progress thread.
pub const PROGRESS_CORE_FROM: usize = 4;

/// Which hardware threads of its cores a rank gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Threads {
    /// All of them.
    #[default]
    All,
    /// The first of each core, where the core is all the rank's: for programs whose threads are in each other's way
    /// on one core.
    OnePerCore,
}

/// Where progress threads run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Progress {
    /// On the CPUs of their rank.
    #[default]
    Shared,
    /// On CPUs of their own, beside the rank's network device: a core that no rank has if it is as near as the rank's
    /// own; else one of the rank's, if it has at least [`PROGRESS_CORE_FROM`]; else a hardware thread that
    /// [`Threads::OnePerCore`] leaves over; else as [`Progress::Shared`].
    Apart,
}

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
    /// Which hardware threads ranks get.
    pub threads: Threads,
    /// Where progress threads run.
    pub progress: Progress,
}

impl Request {
    /// Ranks without accelerators, on any of the machine's allowed CPUs and interfaces, with all hardware threads of
    /// their cores, progress threads among them.
    #[must_use]
    pub fn plain(machine: &Machine, local_ranks: u32) -> Self {
        let allowed = machine.parts().allowed.clone();
        Request {
            local_ranks,
            allowed,
            devices: Vec::new(),
            nics: None,
            infiniband: None,
            threads: Threads::All,
            progress: Progress::Shared,
        }
    }
}

/// Where one rank goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The rank.
    pub rank: LocalRank,
    /// CPUs to run on.
    pub cpus: CpuSet,
    /// CPUs for the progress thread.
    pub progress: CpuSet,
    /// The rank's accelerator.
    pub device: Option<PciAddress>,
    /// NUMA node to take memory from; none when the CPUs span nodes or the machine names none.
    pub node: Option<u32>,
    /// Names of the network interfaces to use, nearest to the rank; empty when there is none.
    pub nics: Vec<String>,
    /// Names of the RDMA devices to use, nearest to the rank; empty when there is none.
    pub infiniband: Vec<String>,
    /// Why, one reason for each of the above that there is.
    pub reasons: Vec<String>,
}

impl Placement {
    /// Why, in one line.
    #[must_use]
    pub fn reason(&self) -> String {
        self.reasons.join("; ")
    }
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
    let cards = usable_nics(machine, request.nics.as_deref());
    let hcas = usable_infiniband(machine, request.infiniband.as_deref());
    let (nics, infiniband) = (assign(&homes, &cards), assign(&homes, &hcas));
    let mut shares = Shares::new(machine, request, &allowed, homes.iter().map(|home| home.cpus.clone()));
    let placed = homes.iter().zip(nics.iter().zip(&infiniband)).enumerate();
    Ok(placed
        .map(|(rank, (home, (nics, infiniband)))| {
            // RDMA is what data goes by where there is any.
            let beside = infiniband.first().or(nics.first()).map(|chosen| chosen.candidate);
            let split = shares.split(rank, beside);
            let names =
                |chosen: &[Chosen<'_, '_>]| chosen.iter().map(|c| c.candidate.name.to_owned()).collect();
            let mut reasons = vec![home_reason(machine, home, &split.cpus)];
            reasons.extend(device_reasons(home, nics.iter().chain(infiniband)));
            if nics.is_empty() {
                reasons.push("no network interface that is up".to_owned());
            }
            reasons.extend(split.reason);
            Placement {
                rank: LocalRank(rank as u32),
                cpus: split.cpus,
                progress: split.progress,
                device: home.device,
                node: home.node,
                nics: names(nics),
                infiniband: names(infiniband),
                reasons,
            }
        })
        .collect())
}

fn home_reason(machine: &Machine, home: &Home<'_>, cpus: &CpuSet) -> String {
    let mut text = format!("cpus {cpus}");
    match (home.node, machine.parts().nodes.len()) {
        (Some(node), 1) => text += &format!(" of the only NUMA node, {node}"),
        (Some(node), _) => text += &format!(" and memory of NUMA node {node}"),
        (None, 0) => text += ", NUMA not known",
        (None, _) => text += " spanning NUMA nodes, memory not bound",
    }
    if let Some(device) = home.device {
        text += &format!(", near accelerator {device}");
    }
    text
}

fn device_reasons<'a>(
    home: &Home<'_>,
    chosen: impl Iterator<Item = &'a Chosen<'a, 'a>>,
) -> impl Iterator<Item = String> {
    let from = if home.device.is_some() { " as the accelerator" } else { "" };
    chosen.map(move |Chosen { candidate, step }| {
        let from = if *step < Distance::Package { from } else { "" };
        format!("{} {step}{from}", candidate.name)
    })
}
