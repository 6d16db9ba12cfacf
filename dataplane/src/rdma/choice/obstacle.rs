//! What is in the way of RDMA, and what to do about it: one line each (R3).

use std::fmt;

use super::model::{DeviceFile, LinkLayer, Port, PortState};

/// One thing in the way. `Display` says what it is, [`remedy`](Obstacle::remedy) what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The kernel has no RDMA.
    NoKernelSupport,
    /// The kernel has RDMA, and no device.
    NoDevice,
    /// The verbs library cannot be used.
    NoLibrary {
        /// Which, and what the loader said.
        why: String,
    },
    /// The verbs library has no provider (its driver) for a device.
    NoProvider {
        /// The device.
        device: String,
    },
    /// There are devices, and no folder of files to open them by.
    NoDeviceFolder {
        /// The devices' names.
        devices: Vec<String>,
    },
    /// A device's file is not there.
    NoDeviceFile {
        /// The device.
        device: String,
        /// Where its file would be.
        path: String,
    },
    /// A device's file may not be opened.
    Denied {
        /// The device.
        device: String,
        /// Its file.
        path: String,
        /// Owner, group and mode.
        owner: String,
        /// Who asked.
        asker: String,
        /// What the system said.
        error: String,
    },
    /// Too little memory may be locked.
    LockedMemoryLow {
        /// How much may be, in bytes.
        limit_bytes: u64,
        /// How much is needed, in bytes.
        needed_bytes: u64,
    },
    /// `RINGWAY_IB_HCA` leaves no port.
    FilterLeavesNothing {
        /// The setting.
        filter: String,
        /// What there is, as `device:port`.
        found: Vec<String>,
    },
    /// A device without ports.
    NoPort {
        /// The device.
        device: String,
    },
    /// A port carries no data.
    PortNotActive {
        /// As `device:port`.
        port: String,
        /// What it speaks.
        link_layer: LinkLayer,
        /// Its logical state.
        state: PortState,
        /// Its physical state in the kernel's words.
        physical_state: String,
        /// The interfaces that belong to it.
        netdevs: Vec<String>,
    },
    /// An InfiniBand port that no subnet manager has configured.
    NoSubnetManager {
        /// As `device:port`.
        port: String,
        /// Its logical state.
        state: PortState,
    },
    /// A port without GIDs.
    NoGid {
        /// As `device:port`.
        port: String,
    },
    /// GIDs, and none may be used.
    NoUsableGid {
        /// As `device:port`.
        port: String,
        /// Each GID, and why not.
        gids: Vec<String>,
    },
    /// `RINGWAY_IB_GID_INDEX` names no GID.
    NoSuchGidIndex {
        /// As `device:port`.
        port: String,
        /// The setting.
        index: u8,
        /// The GIDs there are.
        found: Vec<String>,
    },
    /// `RINGWAY_IB_PKEY` names no partition key.
    NoPkey {
        /// As `device:port`.
        port: String,
        /// The setting: an index.
        index: u16,
        /// The keys there are, as `index: key`.
        found: Vec<String>,
    },
}

impl Obstacle {
    /// What a device's file has against being opened.
    pub(super) fn of_file(device: &str, file: &DeviceFile) -> Option<Obstacle> {
        let device = device.to_owned();
        match file {
            DeviceFile::Usable { .. } => None,
            DeviceFile::Missing { path } => Some(Obstacle::NoDeviceFile { device, path: path.clone() }),
            DeviceFile::Denied { path, owner, asker, error } => Some(Obstacle::Denied {
                device,
                path: path.clone(),
                owner: owner.clone(),
                asker: asker.clone(),
                error: error.clone(),
            }),
        }
    }

    /// What a port's state has against carrying data.
    pub(super) fn of_state(name: &str, port: &Port) -> Option<Obstacle> {
        let link_up = matches!(port.state, PortState::Init | PortState::Armed);
        let infiniband = port.link_layer == LinkLayer::InfiniBand;
        if infiniband && (link_up || port.state == PortState::Active && port.lid == 0) {
            return Some(Obstacle::NoSubnetManager { port: name.to_owned(), state: port.state });
        }
        if port.state == PortState::Active {
            return None;
        }
        let mut netdevs: Vec<String> = port.gids.iter().filter_map(|gid| gid.netdev.clone()).collect();
        netdevs.sort();
        netdevs.dedup();
        Some(Obstacle::PortNotActive {
            port: name.to_owned(),
            link_layer: port.link_layer,
            state: port.state,
            physical_state: port.physical_state.clone(),
            netdevs,
        })
    }

    /// Whether this host simply has no RDMA, as most hosts do: nothing that anybody forgot.
    pub fn is_absence(&self) -> bool {
        matches!(self, Obstacle::NoKernelSupport | Obstacle::NoDevice)
    }

    /// What to do about it.
    pub fn remedy(&self) -> String {
        match self {
            Obstacle::NoKernelSupport => "load the adapter's driver (modprobe mlx5_ib, irdma, bnxt_re or efa), or \
                for trials on any network interface: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0"
                .to_owned(),
            Obstacle::NoDevice => "look for the adapter with lspci and load its driver (modprobe mlx5_ib, irdma, \
                bnxt_re or efa), or for trials: rdma link add rxe0 type rxe netdev eth0"
                .to_owned(),
            Obstacle::NoLibrary { .. } => "install libibverbs and its providers (Debian: apt install libibverbs1 \
                ibverbs-providers; Fedora and RHEL: dnf install libibverbs; Arch: pacman -S rdma-core)"
                .to_owned(),
            Obstacle::NoProvider { .. } => "install the verbs providers (Debian: apt install ibverbs-providers; Fedora \
                and RHEL: dnf install libibverbs; Arch: pacman -S rdma-core)"
                .to_owned(),
            Obstacle::NoDeviceFolder { .. } => "hand the devices to the container (docker run --device=/dev/infiniband \
                --cap-add=IPC_LOCK, in Kubernetes an RDMA device plugin); outside of one: modprobe ib_uverbs"
                .to_owned(),
            Obstacle::NoDeviceFile { path, .. } => {
                format!("hand {path} to the container as well (docker run --device={path}); outside of one: modprobe ib_uverbs")
            }
            Obstacle::Denied { path, .. } => format!(
                "let this user open {path} for reading and writing: join its group, or a udev rule \
                 KERNEL==\"uverbs*\", MODE=\"0666\"; in a container: docker run --device={path}"
            ),
            Obstacle::LockedMemoryLow { .. } => "ulimit -l unlimited (a line `* - memlock unlimited` in \
                /etc/security/limits.conf, LimitMEMLOCK=infinity of a systemd unit, --ulimit memlock=-1 of docker run)"
                .to_owned(),
            Obstacle::FilterLeavesNothing { .. } => "name one of those in RINGWAY_IB_HCA, or unset it".to_owned(),
            Obstacle::NoPort { device } => format!("look into dmesg for what {device}'s driver says"),
            Obstacle::PortNotActive { link_layer: LinkLayer::InfiniBand, .. } => {
                "check cable and switch (ibstat shows the port)".to_owned()
            }
            Obstacle::PortNotActive { netdevs, physical_state, .. } => match netdevs.first() {
                Some(netdev) if physical_state == "Disabled" => format!("ip link set {netdev} up"),
                Some(netdev) => format!("ip link set {netdev} up, and check cable, switch and the other end"),
                None => "bring its network interface up (rdma link shows it), and check cable and switch".to_owned(),
            },
            Obstacle::NoSubnetManager { .. } => {
                "start a subnet manager on the fabric (opensm, or the switch's own)".to_owned()
            }
            Obstacle::NoGid { .. } => "give its network interface an IP address (rdma link shows it)".to_owned(),
            Obstacle::NoUsableGid { .. } => "give its network interface an address that the settings allow, or change \
                RINGWAY_IB_ADDR_FAMILY, RINGWAY_IB_ADDR_RANGE or RINGWAY_IB_ROCE_VERSION; in a container, use the \
                host's network or move the device into its namespace"
                .to_owned(),
            Obstacle::NoSuchGidIndex { .. } => {
                "unset RINGWAY_IB_GID_INDEX, so that the GID is found by type and subnet, or name one of those".to_owned()
            }
            Obstacle::NoPkey { .. } => {
                "give the index of one of those in RINGWAY_IB_PKEY, or have the subnet manager add the key".to_owned()
            }
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::NoKernelSupport => {
                f.write_str("this kernel has no RDMA loaded (no /sys/class/infiniband)")
            }
            Obstacle::NoDevice => f.write_str("there is no RDMA device (/sys/class/infiniband is empty)"),
            Obstacle::NoLibrary { why } => write!(f, "the verbs library cannot be used: {why}"),
            Obstacle::NoProvider { device } => {
                write!(f, "the verbs library does not know {device}: its provider is missing")
            }
            Obstacle::NoDeviceFolder { devices } => write!(
                f,
                "/dev/infiniband is not there, so {} cannot be opened, as in a container without it",
                devices.join(", ")
            ),
            Obstacle::NoDeviceFile { device, path } => {
                write!(f, "{device} cannot be opened: {path} is not there")
            }
            Obstacle::Denied { device, path, owner, asker, error } => {
                write!(f, "{device} cannot be opened: {path} is of {owner}, and this is {asker} ({error})")
            }
            Obstacle::LockedMemoryLow { limit_bytes, needed_bytes } => write!(
                f,
                "only {} KiB of memory may be locked, and RDMA needs {} KiB to begin with",
                limit_bytes >> 10,
                needed_bytes >> 10
            ),
            Obstacle::FilterLeavesNothing { filter, found } => {
                write!(f, "RINGWAY_IB_HCA={filter} leaves nothing of {}", found.join(", "))
            }
            Obstacle::NoPort { device } => write!(f, "{device} has no port"),
            Obstacle::PortNotActive { port, state, physical_state, .. } => {
                write!(f, "port {port} is {state}")?;
                if physical_state.is_empty() { Ok(()) } else { write!(f, " (its link: {physical_state})") }
            }
            Obstacle::NoSubnetManager { port, state } => {
                write!(f, "port {port} is {state} and has no LID: no subnet manager has configured it")
            }
            Obstacle::NoGid { port } => write!(f, "port {port} has no GID"),
            Obstacle::NoUsableGid { port, gids } => {
                write!(f, "port {port} has no GID that may be used: {}", gids.join("; "))
            }
            Obstacle::NoSuchGidIndex { port, index, found } => {
                write!(f, "port {port} has no GID at RINGWAY_IB_GID_INDEX={index}: {}", listed(found))
            }
            Obstacle::NoPkey { port, index, found } => {
                write!(f, "port {port} has no partition key at RINGWAY_IB_PKEY={index}: {}", listed(found))
            }
        }
    }
}

fn listed(found: &[String]) -> String {
    if found.is_empty() { "it has none".to_owned() } else { format!("it has {}", found.join("; ")) }
}
