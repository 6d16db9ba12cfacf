//! What a host has to do RDMA with: plain data.

use core::net::Ipv6Addr;
use std::fmt;

/// All that was found on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Whether the kernel has RDMA at all (`/sys/class/infiniband` is there).
    pub kernel: bool,
    /// Whether `/dev/infiniband` is there.
    pub device_folder: bool,
    /// Devices, by name.
    pub devices: Vec<Device>,
    /// How much memory this process may lock.
    pub locked_memory: LockedMemory,
    /// Why the verbs library cannot be used, where that is known.
    pub library_missing: Option<String>,
}

/// How much memory a process may lock for a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockedMemory {
    /// As much as there is.
    #[default]
    Unlimited,
    /// This many bytes.
    Bytes(u64),
}

/// An RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name in the kernel, such as `mlx5_0` or `rxe0`.
    pub name: String,
    /// Its node GUID, in the order of the wire.
    pub node_guid: u64,
    /// The NUMA node next to it, where the firmware says so.
    pub numa_node: Option<u32>,
    /// Its PCI address, such as `0000:17:00.0`; a software device has none.
    pub pci: Option<String>,
    /// Whether this process can open it.
    pub file: DeviceFile,
    /// Whether the verbs library knows the device; true where that was not asked.
    pub known_to_library: bool,
    /// Its ports, by number.
    pub ports: Vec<Port>,
}

/// Whether the file by which a device is opened can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceFile {
    /// It can be opened.
    Usable {
        /// Its path.
        path: String,
    },
    /// It is not there.
    Missing {
        /// Where it would be.
        path: String,
    },
    /// This process may not open it for reading and writing.
    Denied {
        /// Its path.
        path: String,
        /// Owner, group and mode, such as `user root, group rdma, mode 0660`.
        owner: String,
        /// Who asked, such as `user 1000`.
        asker: String,
        /// What the system said.
        error: String,
    },
}

impl DeviceFile {
    /// Where the file is, or would be.
    pub fn path(&self) -> &str {
        match self {
            DeviceFile::Usable { path } | DeviceFile::Missing { path } | DeviceFile::Denied { path, .. } => {
                path
            }
        }
    }
}

/// One port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number, from 1.
    pub number: u8,
    /// Its logical state.
    pub state: PortState,
    /// Its physical state in the kernel's words, such as `LinkUp`, `Disabled` or `Polling`; empty when not told.
    pub physical_state: String,
    /// What it speaks.
    pub link_layer: LinkLayer,
    /// Its speed in megabits per second, 0 when not told.
    pub rate_mbps: u32,
    /// Its local identifier; 0 on Ethernet, and before a subnet manager gave one.
    pub lid: u16,
    /// The subnet manager's local identifier; 0 when there is none.
    pub sm_lid: u16,
    /// Its active MTU: from the device where it was opened, otherwise what its interface's MTU allows.
    pub active_mtu: Option<Mtu>,
    /// Its GIDs that are not empty, by index.
    pub gids: Vec<Gid>,
    /// Its partition keys that are not empty, as (index, key).
    pub pkeys: Vec<(u16, u16)>,
}

/// The logical state of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortState {
    /// No link.
    Down,
    /// A link, but nobody has configured it: on InfiniBand, no subnet manager.
    Init,
    /// Configured, not yet carrying data.
    Armed,
    /// Carrying data.
    Active,
    /// Anything else, such as a deferred activation.
    Other,
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PortState::Down => "down",
            PortState::Init => "initialising",
            PortState::Armed => "armed",
            PortState::Active => "active",
            PortState::Other => "in no known state",
        })
    }
}

/// What a port speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
        })
    }
}

/// A path MTU: one of the five that InfiniBand and RoCE know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1,024 bytes.
    B1024 = 3,
    /// 2,048 bytes.
    B2048 = 4,
    /// 4,096 bytes.
    B4096 = 5,
}

/// Headers of a RoCE packet that do not fit beside the payload, in bytes: what the kernel's `iboe_get_mtu` takes off.
const ROCE_HEADERS_BYTES: u32 = 96;

impl Mtu {
    /// All, smallest first.
    pub const ALL: [Mtu; 5] = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];

    /// Its payload in bytes.
    pub fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// The value of the verbs' `enum ibv_mtu`: 1 to 5.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// From the value of the verbs' `enum ibv_mtu`.
    pub fn from_code(code: u8) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|mtu| mtu.code() == code)
    }

    /// From its payload in bytes.
    pub fn from_bytes(bytes: u32) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// The largest that fits an Ethernet interface of this MTU.
    pub fn within_interface(mtu_bytes: u32) -> Option<Mtu> {
        Mtu::ALL.into_iter().rev().find(|mtu| mtu.bytes() + ROCE_HEADERS_BYTES <= mtu_bytes)
    }
}

/// What a GID stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GidKind {
    /// A port of an InfiniBand subnet.
    InfiniBand,
    /// RoCE version 1: Ethernet frames of their own kind, never routed.
    RoceV1,
    /// RoCE version 2: UDP, routed like any IP.
    RoceV2,
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GidKind::InfiniBand => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
        })
    }
}

/// A version of RoCE, where the settings ask for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RoceVersion {
    /// Ethernet only.
    V1,
    /// Over UDP.
    V2,
}

/// One entry of a port's table of GIDs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its index in the table.
    pub index: u8,
    /// Its sixteen bytes.
    pub bytes: [u8; 16],
    /// What it stands for.
    pub kind: GidKind,
    /// The network interface it belongs to.
    pub netdev: Option<String>,
    /// Whether that interface is in this process's network namespace; true where there is no interface.
    pub netdev_here: bool,
    /// Prefix length of its IP address on that interface, in the address's own bits (24 for 10.0.0.1/24).
    pub prefix_len: Option<u8>,
}

/// A GID as people read it: the IP address in it, IPv4 where it is one.
pub fn show_gid(bytes: &[u8; 16]) -> String {
    let v6 = Ipv6Addr::from(*bytes);
    v6.to_ipv4_mapped().map_or_else(|| v6.to_string(), |v4| v4.to_string())
}

impl fmt::Display for Gid {
    /// `GID 1, RoCE v2 10.77.0.1 on sr0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GID {}, {} {}", self.index, self.kind, show_gid(&self.bytes))?;
        match &self.netdev {
            Some(netdev) => write!(f, " on {netdev}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus_are_those_of_the_verbs() {
        assert_eq!(Mtu::ALL.map(Mtu::bytes), [256, 512, 1024, 2048, 4096]);
        assert!(Mtu::ALL.iter().all(|mtu| Mtu::from_code(mtu.code()) == Some(*mtu)));
        assert!(Mtu::ALL.iter().all(|mtu| Mtu::from_bytes(mtu.bytes()) == Some(*mtu)));
        assert_eq!(Mtu::from_code(0), None);
        assert_eq!(Mtu::within_interface(9000), Some(Mtu::B4096));
        assert_eq!(Mtu::within_interface(1500), Some(Mtu::B1024));
        assert_eq!(Mtu::within_interface(300), None);
    }
}
