//! Devices read from the kernel's files: PCI, network interfaces, RDMA devices, accelerators.
//!
//! Files as in the kernel's Documentation/ABI (sysfs-bus-pci, sysfs-class-net, sysfs-class-infiniband).

use super::DiscoverError;
use super::files::Tree;
use crate::model::cpuset::CpuSet;
use crate::model::machine::{Gpu, IbLink, IbPort, InfiniBand, LinkState, Nic, NicKind, Parts};
use crate::model::pci::{PciAddress, PciDevice};

const PCI: &str = "sys/bus/pci/devices";
const NET: &str = "sys/class/net";
const INFINIBAND: &str = "sys/class/infiniband";

/// Adds to `parts` the devices below the tree, placed among its CPUs and NUMA nodes.
pub(super) fn add(tree: &Tree, parts: &mut Parts) -> Result<(), DiscoverError> {
    parts.pci = pci_devices(tree, parts)?;
    for name in tree.names(NET)? {
        // The directory also holds a plain file where bonding is loaded.
        if tree.exists(&format!("{NET}/{name}/ifindex")) {
            let nic = network_interface(tree, name, parts);
            parts.nics.push(nic);
        }
    }
    // In the order of the slots: by name, the tenth card would come second.
    parts.nics.sort_by_key(|nic| (nic.pci.is_none(), nic.pci));
    for name in tree.names(INFINIBAND)? {
        let device = infiniband_device(tree, name, parts)?;
        parts.infiniband.push(device);
    }
    parts.infiniband.sort_by_key(|device| (device.pci.is_none(), device.pci));
    let accelerators = parts.pci.iter().filter(|device| device.is_accelerator());
    parts.gpus = accelerators
        .map(|device| Gpu { name: device.address.to_string(), pci: device.address, node: device.node })
        .collect();
    Ok(())
}

/// Network controllers, accelerators and RDMA adapters. The many other devices of a server are not read.
fn pci_devices(tree: &Tree, parts: &Parts) -> Result<Vec<PciDevice>, DiscoverError> {
    let mut devices = Vec::new();
    for name in tree.names(PCI)? {
        let dir = format!("{PCI}/{name}");
        let address: PciAddress = name
            .parse()
            .map_err(|error: crate::model::pci::PciAddressError| tree.malformed(&dir, &error.to_string()))?;
        let hex = |file: &str| -> Result<u32, DiscoverError> {
            let path = format!("{dir}/{file}");
            let text = tree.required(&path)?;
            let digits = text.strip_prefix("0x").unwrap_or(&text);
            u32::from_str_radix(digits, 16).map_err(|error| tree.malformed(&path, &error.to_string()))
        };
        // The file also holds the programming interface, in the lowest byte.
        let class = (hex("class")? >> 8) as u16;
        if !matches!(class >> 8, 0x02 | 0x03 | 0x12) {
            continue;
        }
        let target = tree.link(&dir).unwrap_or_default();
        let (root, bridges) = place_in_tree(&target, address);
        let (cpus, node) = near(tree, &dir, parts)?;
        let (vendor, device) = (hex("vendor")? as u16, hex("device")? as u16);
        devices.push(PciDevice { address, class, vendor, device, cpus, node, root, bridges });
    }
    Ok(devices)
}

/// The host bridge and the bridges on the way to a device, from the target of its link in /sys/bus:
/// `../../../devices/pci0000:16/0000:16:01.0/0000:17:00.0`.
fn place_in_tree(target: &str, address: PciAddress) -> ((u32, u8), Vec<PciAddress>) {
    let mut root = (address.domain, address.bus);
    let mut bridges = Vec::new();
    for part in target.split('/') {
        if let Some((domain, bus)) = part.strip_prefix("pci").and_then(|name| name.split_once(':')) {
            let both = (u32::from_str_radix(domain, 16), u8::from_str_radix(bus, 16));
            if let (Ok(domain), Ok(bus)) = both {
                root = (domain, bus);
                bridges.clear();
            }
        } else if let Ok(bridge) = part.parse::<PciAddress>() {
            bridges.push(bridge);
        }
    }
    bridges.retain(|bridge| *bridge != address);
    (root, bridges)
}

/// The CPUs and the NUMA node next to a device. Firmware that says nothing leaves all CPUs and node -1.
fn near(tree: &Tree, dir: &str, parts: &Parts) -> Result<(CpuSet, Option<u32>), DiscoverError> {
    let listed: CpuSet = tree.optional_parsed(&format!("{dir}/local_cpulist"))?.unwrap_or_default();
    let node: i64 = tree.optional_parsed(&format!("{dir}/numa_node"))?.unwrap_or(-1);
    let node = parts.nodes.iter().find(|known| i64::from(known.index) == node);
    let mut cpus = listed.and(&parts.cpus);
    if cpus.is_empty() {
        cpus = node.map_or_else(CpuSet::new, |node| node.cpus.clone());
    }
    if cpus.is_empty() {
        cpus = parts.cpus.clone();
    }
    let around = || parts.nodes.iter().find(|node| cpus.inside(&node.cpus));
    let node = node.or_else(around).map(|node| node.index);
    Ok((cpus, node))
}

fn network_interface(tree: &Tree, name: String, parts: &Parts) -> Nic {
    let dir = format!("{NET}/{name}");
    let target = tree.link(&dir).unwrap_or_default();
    // A driver that is removed while its files are read leaves gaps; the next reading is whole.
    let number = |file: &str| tree.attribute(&format!("{dir}/{file}")).and_then(|text| text.parse().ok());
    let pci = last_address(&target).filter(|address| parts.pci.iter().any(|known| known.address == *address));
    let node = match pci {
        Some(address) => parts.pci.iter().find(|known| known.address == address).and_then(|known| known.node),
        None => {
            let index: Option<u32> = number("device/numa_node");
            index.filter(|index| parts.nodes.iter().any(|node| node.index == *index))
        }
    };
    let state = match tree.attribute(&format!("{dir}/operstate")).as_deref() {
        Some("up") => LinkState::Up,
        Some("unknown") | None => LinkState::Unknown,
        Some(_) => LinkState::Down,
    };
    let master = tree.link(&format!("{dir}/master"));
    Nic {
        kind: interface_kind(tree, &dir),
        pci,
        node,
        state,
        // Drivers that do not know say -1, or the largest number.
        speed_mbps: number("speed").filter(|&speed| speed > 0 && speed < u32::MAX),
        mtu_bytes: number("mtu"),
        master: master.and_then(|target| target.rsplit('/').next().map(str::to_owned)),
        name,
    }
}

/// What an interface is, from the files that its driver makes. Names prove nothing: a container's veth is eth0.
fn interface_kind(tree: &Tree, dir: &str) -> NicKind {
    /// ARPHRD_LOOPBACK and ARPHRD_ETHER of the kernel's if_arp.h.
    const TYPE_LOOPBACK: &str = "772";
    const TYPE_ETHERNET: &str = "1";
    let read = |file: &str| tree.attribute(&format!("{dir}/{file}")).unwrap_or_default();
    let has = |file: &str| tree.exists(&format!("{dir}/{file}"));
    let uevent = read("uevent");
    let devtype = uevent.lines().find_map(|line| line.strip_prefix("DEVTYPE=")).unwrap_or_default();
    let kind = read("type");
    let (index, below) = (read("ifindex"), read("iflink"));
    match devtype {
        _ if kind == TYPE_LOOPBACK => NicKind::Loopback,
        _ if has("device") => NicKind::Physical,
        _ if has("bonding") => NicKind::Bond,
        _ if has("bridge") => NicKind::Bridge,
        "bond" => NicKind::Bond,
        "bridge" => NicKind::Bridge,
        "vlan" | "macvlan" | "macvtap" | "ipvlan" | "ipvtap" => NicKind::Stacked,
        "" if kind == TYPE_ETHERNET && index != below && below != "0" => NicKind::Veth,
        _ => NicKind::Virtual,
    }
}

/// The innermost PCI address in a path, as in `../../devices/pci0000:00/0000:00:03.0/virtio2/net/eth0`.
fn last_address(path: &str) -> Option<PciAddress> {
    path.split('/').rev().find_map(|part| part.parse().ok())
}

fn infiniband_device(tree: &Tree, name: String, parts: &Parts) -> Result<InfiniBand, DiscoverError> {
    let dir = format!("{INFINIBAND}/{name}");
    let pci = last_address(&tree.link(&dir).unwrap_or_default());
    let pci = parts.pci.iter().find(|known| Some(known.address) == pci);
    let mut ports = Vec::new();
    for number in tree.names(&format!("{dir}/ports"))? {
        let dir = format!("{dir}/ports/{number}");
        let Ok(number) = number.parse() else {
            return Err(tree.malformed(&dir, "a port is named by a number from 1 to 255"));
        };
        let read = |file: &str| tree.attribute(&format!("{dir}/{file}"));
        ports.push(IbPort {
            number,
            state: port_state(read("state").as_deref()),
            link: match read("link_layer").as_deref() {
                Some("InfiniBand") => Some(IbLink::InfiniBand),
                Some("Ethernet") => Some(IbLink::Ethernet),
                _ => None,
            },
            rate_gbps: read("rate").as_deref().and_then(port_rate),
        });
    }
    ports.sort_by_key(|port| port.number);
    // A software device names the interface that it stands on.
    let parent = tree.attribute(&format!("{dir}/parent"));
    let own = |nic: &&Nic| match pci {
        Some(device) => nic.pci == Some(device.address),
        None => parent.as_ref() == Some(&nic.name),
    };
    let nics: Vec<&Nic> = parts.nics.iter().filter(own).collect();
    let node = pci.and_then(|device| device.node).or_else(|| nics.iter().find_map(|nic| nic.node));
    let nics = nics.iter().map(|nic| nic.name.clone()).collect();
    Ok(InfiniBand { name, pci: pci.map(|device| device.address), node, ports, nics })
}

/// As in `4: ACTIVE`; the other states (down, init, armed, active defer) carry no data.
fn port_state(text: Option<&str>) -> LinkState {
    match text.and_then(|text| text.split(':').next()) {
        Some("4") => LinkState::Up,
        Some(_) => LinkState::Down,
        None => LinkState::Unknown,
    }
}

/// As in `100 Gb/sec (4X EDR)` and `2.5 Gb/sec (1X SDR)`, in whole gigabits.
fn port_rate(text: &str) -> Option<u32> {
    let (number, unit) = text.split_once(' ')?;
    let whole = number.split('.').next()?;
    if unit.starts_with("Gb/sec") { whole.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_a_device_is_read_from_its_link() {
        let address: PciAddress = "0000:18:00.0".parse().unwrap();
        let target = "../../../devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0";
        let (root, bridges) = place_in_tree(target, address);
        assert_eq!(root, (0, 0x16));
        let shown: Vec<String> = bridges.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["0000:16:01.0", "0000:17:00.0"]);
        assert_eq!(place_in_tree("", address), ((0, 0x18), Vec::new()));
        assert_eq!(place_in_tree("../pcix:y/::/pci", address), ((0, 0x18), Vec::new()));
    }

    #[test]
    fn port_attributes_are_read() {
        assert_eq!(port_rate("100 Gb/sec (4X EDR)"), Some(100));
        assert_eq!(port_rate("2.5 Gb/sec (1X SDR)"), Some(2));
        assert_eq!(port_rate("fast"), None);
        assert_eq!(port_state(Some("4: ACTIVE")), LinkState::Up);
        assert_eq!(port_state(Some("1: DOWN")), LinkState::Down);
        assert_eq!(port_state(None), LinkState::Unknown);
    }
}
