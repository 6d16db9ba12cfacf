//! A machine as libhwloc describes it: this one, a synthetic one, or one recorded as XML.
//!
//! libhwloc finds accelerators through vendors' libraries too. Those are left alone: loading one takes up to
//! seconds, and a PCI class says as much as placement needs.

use std::collections::HashMap;

use hwlocality::Topology;
use hwlocality::bitmap::{BitmapRef, SpecializedBitmapRef};
use hwlocality::cpu::cpuset::CpuSet as HwlocSet;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::{
    DownstreamAttributes, ObjectAttributes, PCIDeviceAttributes, UpstreamAttributes,
};
use hwlocality::object::distance::DistancesKind;
use hwlocality::object::types::{BridgeType, CacheType, OSDeviceType, ObjectType};
use hwlocality::topology::builder::{BuildFlags, TopologyBuilder, TypeFilter};

use super::DiscoverError;
use crate::model::cpuset::CpuSet;
use crate::model::ids::clip;
use crate::model::machine::{
    Cache, Core, Gpu, IbPort, InfiniBand, LinkState, Nic, NicKind, NumaNode, Package, Parts, Source,
};
use crate::model::pci::{PciAddress, PciDevice};

/// CPUs, caches and memory of this machine, disallowed ones included; no devices.
pub(super) fn this_machine() -> Result<Parts, DiscoverError> {
    // The thread's binding is left alone: the discovery that would change it looks at every CPU in turn.
    let flags = BuildFlags::INCLUDE_DISALLOWED | BuildFlags::DONT_CHANGE_BINDING;
    let builder = TopologyBuilder::new()
        .with_flags(flags)
        .map_err(failed("setting flags"))?
        .with_io_type_filter(TypeFilter::KeepNone)
        .map_err(failed("leaving out devices"))?;
    let topology = builder.build().map_err(failed("reading this machine"))?;
    if !topology.is_this_system() {
        return Err(DiscoverError::AnotherMachine);
    }
    parts(&topology, Source::Hwloc)
}

/// The machine of a synthetic description.
pub(super) fn synthetic(text: &str) -> Result<Parts, DiscoverError> {
    let refused = || DiscoverError::Synthetic { text: clip(text) };
    let builder = TopologyBuilder::new().from_synthetic(text).map_err(|_| refused())?;
    let topology = builder.build().map_err(|_| refused())?;
    parts(&topology, Source::Synthetic)
}

/// The machine of an XML text.
pub(super) fn xml(text: &str) -> Result<Parts, DiscoverError> {
    let refused = |reason: &dyn std::fmt::Display| DiscoverError::Xml { reason: reason.to_string() };
    // libhwloc answers a text without a topology element with an error that its binding does not expect.
    if !text.contains("<topology") {
        return Err(refused(&"it has no topology element"));
    }
    let builder = TopologyBuilder::new()
        .with_flags(BuildFlags::INCLUDE_DISALLOWED)
        .map_err(failed("setting flags"))?
        .with_io_type_filter(TypeFilter::KeepImportant)
        .map_err(failed("asking for devices"))?
        .from_xml(text)
        .map_err(|error| refused(&error))?;
    let topology = builder.build().map_err(|error| refused(&error))?;
    let mut parts = parts(&topology, Source::Xml)?;
    add_devices(&topology, &mut parts)?;
    Ok(parts)
}

fn failed<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> DiscoverError {
    move |error| DiscoverError::Hwloc { what, reason: error.to_string() }
}

/// A set of hwloc's. One without end, which a hostile XML can hold, is no set of CPUs.
fn cpu_set(set: Option<BitmapRef<'_, HwlocSet>>) -> Result<CpuSet, DiscoverError> {
    let Some(set) = set else { return Ok(CpuSet::new()) };
    if set.weight().is_none() {
        return Err(DiscoverError::Xml { reason: "it has a set of infinitely many CPUs".into() });
    }
    let mut cpus = CpuSet::new();
    for cpu in set.as_bitmap_ref().iter_set() {
        cpus.insert(u32::try_from(usize::from(cpu)).unwrap_or(u32::MAX))?;
    }
    Ok(cpus)
}

fn index(object: &TopologyObject) -> Result<u32, DiscoverError> {
    let index = object.os_index().unwrap_or(object.logical_index());
    u32::try_from(index).map_err(|_| DiscoverError::Xml { reason: format!("index {index} is too large") })
}

fn text(text: Option<&std::ffi::CStr>) -> Option<String> {
    text.map(|text| text.to_string_lossy().into_owned())
}

fn parts(topology: &Topology, source: Source) -> Result<Parts, DiscoverError> {
    let root = topology.root_object();
    let name = match source {
        Source::Synthetic => "synthetic machine".into(),
        _ => text(root.info("HostName")).unwrap_or_else(|| "machine".into()),
    };
    let mut parts = Parts::bare(name, source, cpu_set(Some(topology.cpuset()))?);
    parts.allowed = cpu_set(Some(topology.allowed_cpuset()))?.and(&parts.cpus);
    for object in topology.objects_with_type(ObjectType::Package) {
        parts.packages.push(Package { index: index(object)?, cpus: cpu_set(object.cpuset())? });
    }
    for object in topology.objects_with_type(ObjectType::Core) {
        parts.cores.push(Core { cpus: cpu_set(object.cpuset())? });
    }
    if parts.cores.is_empty() {
        // A description may leave cores out; then a hardware thread is as much of a core as is known.
        for cpu in parts.cpus.clone().iter() {
            parts.cores.push(Core { cpus: CpuSet::of([cpu])? });
        }
    }
    for object in topology.objects_with_type(ObjectType::NUMANode) {
        let memory_bytes = match object.attributes() {
            Some(ObjectAttributes::NUMANode(node)) => node.local_memory().map_or(0, u64::from),
            _ => 0,
        };
        parts.nodes.push(NumaNode { index: index(object)?, cpus: cpu_set(object.cpuset())?, memory_bytes });
    }
    for object in topology.normal_objects() {
        if let Some(ObjectAttributes::Cache(cache)) = object.attributes()
            && cache.cache_type() != CacheType::Instruction
        {
            let level = u8::try_from(cache.depth()).unwrap_or(u8::MAX);
            let size_bytes = cache.size().map_or(0, u64::from);
            parts.caches.push(Cache { level, size_bytes, cpus: cpu_set(object.cpuset())? });
        }
    }
    parts.node_distances = node_distances(topology, &parts.nodes)?;
    Ok(parts)
}

/// The firmware's table of distances, in the order of `nodes`; empty where there is none for all of them.
fn node_distances(topology: &Topology, nodes: &[NumaNode]) -> Result<Vec<Vec<u32>>, DiscoverError> {
    let tables = topology
        .distances_with_type(Some(DistancesKind::MEANS_LATENCY), ObjectType::NUMANode)
        .map_err(failed("reading NUMA distances"))?;
    let Some(table) = tables.first() else { return Ok(Vec::new()) };
    let mut place = HashMap::new();
    for (at, object) in table.objects().enumerate() {
        if let Some(object) = object {
            place.insert(index(object)?, at);
        }
    }
    let side = table.num_objects();
    let values = table.distances();
    let row = |from: &NumaNode| -> Option<Vec<u32>> {
        let from = *place.get(&from.index)?;
        nodes.iter().map(|to| u32::try_from(*values.get(from * side + place.get(&to.index)?)?).ok()).collect()
    };
    Ok(nodes.iter().map(row).collect::<Option<_>>().unwrap_or_default())
}

fn add_devices(topology: &Topology, parts: &mut Parts) -> Result<(), DiscoverError> {
    for object in topology.pci_devices() {
        let Some(ObjectAttributes::PCIDevice(pci)) = object.attributes() else { continue };
        let mut cpus = cpu_set(object.first_non_io_ancestor().and_then(TopologyObject::cpuset))?;
        if cpus.is_empty() {
            cpus = parts.cpus.clone();
        }
        let node = parts.nodes.iter().find(|node| cpus.inside(&node.cpus)).map(|node| node.index);
        let address = address(pci);
        let (root, bridges) = bridges_above(object, address);
        let (class, vendor, device) = (pci.class_id(), pci.vendor_id(), pci.device_id());
        parts.pci.push(PciDevice { address, class, vendor, device, cpus, node, root, bridges });
    }
    let mut accelerator_names = HashMap::new();
    for object in topology.os_devices() {
        let Some(ObjectAttributes::OSDevice(device)) = object.attributes() else { continue };
        let Some(name) = text(object.name()) else { continue };
        let pci = object.ancestors().find_map(|above| match above.attributes() {
            Some(ObjectAttributes::PCIDevice(pci)) => Some(address(pci)),
            _ => None,
        });
        let node = pci.and_then(|pci| parts.pci.iter().find(|known| known.address == pci)?.node);
        match device.device_type() {
            OSDeviceType::Network => parts.nics.push(recorded_nic(name, pci, node)),
            OSDeviceType::OpenFabrics => {
                parts.infiniband.push(InfiniBand { name, pci, node, ports: ports(object), nics: Vec::new() });
            }
            OSDeviceType::CoProcessor => {
                if let Some(pci) = pci {
                    accelerator_names.entry(pci).or_insert(name);
                }
            }
            _ => {}
        }
    }
    for device in &mut parts.infiniband {
        let own = parts.nics.iter().filter(|nic| nic.pci.is_some() && nic.pci == device.pci);
        device.nics = own.map(|nic| nic.name.clone()).collect();
    }
    for device in &parts.pci {
        let name = accelerator_names.remove(&device.address);
        if name.is_some() || device.is_accelerator() {
            let name = name.unwrap_or_else(|| device.address.to_string());
            parts.gpus.push(Gpu { name, pci: device.address, node: device.node });
        }
    }
    Ok(())
}

/// A network interface of a recording, which says nothing about its link. Only those with a device are recorded.
fn recorded_nic(name: String, pci: Option<PciAddress>, node: Option<u32>) -> Nic {
    Nic {
        name,
        kind: NicKind::Physical,
        pci,
        node,
        state: LinkState::Unknown,
        speed_mbps: None,
        mtu_bytes: None,
        master: None,
    }
}

/// The ports of an RDMA device, from hwloc's notes `Port1State` and so on; state 4 is active.
fn ports(object: &TopologyObject) -> Vec<IbPort> {
    (1..=u8::MAX)
        .map_while(|number| {
            let state = match text(object.info(&format!("Port{number}State")))?.as_str() {
                "4" => LinkState::Up,
                _ => LinkState::Down,
            };
            Some(IbPort { number, state, link: None, rate_gbps: None })
        })
        .collect()
}

fn address(pci: &PCIDeviceAttributes) -> PciAddress {
    PciAddress {
        domain: pci.domain().into(),
        bus: pci.bus_id(),
        device: pci.bus_device(),
        function: pci.function(),
    }
}

/// The host bridge and the PCI bridges above a device, the outermost bridge first.
fn bridges_above(object: &TopologyObject, own: PciAddress) -> ((u32, u8), Vec<PciAddress>) {
    let mut root = (own.domain, own.bus);
    let mut bridges = Vec::new();
    for above in object.ancestors() {
        let Some(ObjectAttributes::Bridge(bridge)) = above.attributes() else { continue };
        // The binding panics when asked for the attributes of a side that cannot be, which an XML may hold.
        if bridge.upstream_type() == BridgeType::PCI {
            if let Some(UpstreamAttributes::PCI(pci)) = bridge.upstream_attributes() {
                bridges.push(address(pci));
            }
        } else if bridge.downstream_type() == BridgeType::PCI
            && let Some(DownstreamAttributes::PCI(bus)) = bridge.downstream_attributes()
        {
            root = (bus.domain().into(), bus.secondary_bus());
        }
    }
    bridges.reverse();
    (root, bridges)
}
