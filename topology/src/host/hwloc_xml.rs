//! A machine from the XML that hwloc 2 exports (`lstopo machine.xml`, hwloc_topology_export_xml).
//!
//! Elements and attributes as in hwloc's hwloc2.dtd and hwloc/topology-xml.c.

use std::collections::HashMap;
use std::str::FromStr;

use super::DiscoverError;
use super::xml::{self, Element, XmlError};
use crate::model::cpuset::CpuSet;
use crate::model::export::{kind_word, state_word};
use crate::model::ids::clip;
use crate::model::machine::{
    Cache, Core, Gpu, IbLink, IbPort, InfiniBand, LinkState, Nic, NicKind, NumaNode, Package, Parts, Source,
};
use crate::model::pci::{PciAddress, PciDevice};

/// The parts of the machine that the text describes.
pub(super) fn parts(text: &str) -> Result<Parts, DiscoverError> {
    let failed =
        |error: XmlError| DiscoverError::Xml { reason: format!("line {}: {}", error.line, error.reason) };
    let document = xml::parse(text).map_err(failed)?;
    read(&document).map_err(failed)
}

fn wrong(element: &Element, reason: impl Into<String>) -> XmlError {
    XmlError { line: element.line, reason: reason.into() }
}

fn read(document: &Element) -> Result<Parts, XmlError> {
    if document.name != "topology" {
        return Err(wrong(document, format!("the root is {}, not topology", clip(&document.name))));
    }
    let version = document.attribute("version").unwrap_or("1");
    if !version.starts_with("2.") {
        let reason = format!("version {} of the format is not known here, only 2", clip(version));
        return Err(wrong(document, reason));
    }
    let machine = document.children.iter().find(|child| is_object(child, "Machine"));
    let machine = machine.ok_or_else(|| wrong(document, "no object of type Machine"))?;
    let cpus = required_set(machine, "cpuset")?;
    let name = info(machine, "HostName").unwrap_or("machine").to_owned();
    let mut parts = Parts::bare(name, Source::Xml, cpus);
    if machine.attribute("allowed_cpuset").is_some() {
        parts.allowed = required_set(machine, "allowed_cpuset")?.and(&parts.cpus);
        if parts.allowed.is_empty() {
            let reason =
                "allowed_cpuset holds no CPU of the machine: name those that may be used, or leave it out";
            return Err(wrong(machine, reason));
        }
    }
    let mut walk =
        Walk { parts, threads: CpuSet::new(), accelerators: HashMap::new(), numbers: HashMap::new() };
    walk.objects(machine, &Place::default())?;
    walk.finish(document, machine)
}

/// Where in the tree an object is, as far as devices below it need to know.
#[derive(Clone, Default)]
struct Place {
    cpus: CpuSet,
    root: Option<(u32, u8)>,
    bridges: Vec<PciAddress>,
    pci: Option<PciAddress>,
}

struct Walk {
    parts: Parts,
    /// CPUs that have an object of their own.
    threads: CpuSet,
    /// Drivers' names for accelerators.
    accelerators: HashMap<PciAddress, String>,
    /// NUMA nodes' numbers by their global number, for tables that use that.
    numbers: HashMap<u64, u32>,
}

impl Walk {
    fn objects(&mut self, object: &Element, above: &Place) -> Result<(), XmlError> {
        let mut place = above.clone();
        let kind = object.attribute("type").unwrap_or_default();
        if object.attribute("cpuset").is_some() {
            place.cpus = required_set(object, "cpuset")?;
        }
        let cpus = || required_set(object, "cpuset");
        match kind {
            "Package" => {
                self.parts.packages.push(Package { index: required(object, "os_index")?, cpus: cpus()? })
            }
            "Core" => self.parts.cores.push(Core::of(cpus()?)),
            "PU" => {
                let own = cpus()?;
                if own.len() != 1 || self.threads.meets(&own) {
                    return Err(wrong(object, format!("a PU is one CPU of its own, not {own}")));
                }
                self.threads = self.threads.or(&own);
            }
            "NUMANode" => {
                let index = required(object, "os_index")?;
                let memory_bytes = optional(object, "local_memory")?.unwrap_or(0);
                self.parts.nodes.push(NumaNode { index, cpus: cpus()?, memory_bytes });
                if let Some(number) = optional(object, "gp_index")? {
                    self.numbers.insert(number, index);
                }
            }
            "L1Cache" | "L2Cache" | "L3Cache" | "L4Cache" | "L5Cache" => {
                let level = required(object, "depth")?;
                let size_bytes = optional(object, "cache_size")?.unwrap_or(0);
                self.parts.caches.push(Cache { level, size_bytes, cpus: cpus()? });
            }
            "Bridge" => enter_bridge(object, &mut place)?,
            "PCIDev" => self.pci_device(object, &mut place)?,
            "OSDev" => self.device(object, &place)?,
            _ => {}
        }
        object
            .children
            .iter()
            .filter(|child| child.name == "object")
            .try_for_each(|child| self.objects(child, &place))
    }

    fn pci_device(&mut self, object: &Element, place: &mut Place) -> Result<(), XmlError> {
        let address: PciAddress = required(object, "pci_busid")?;
        let (class, vendor, device) = object
            .attribute("pci_type")
            .and_then(pci_type)
            .ok_or_else(|| wrong(object, "pci_type is not of the form 0200 [8086:1533] [0000:0000] 03"))?;
        place.pci = Some(address);
        let cpus = if place.cpus.is_empty() { self.parts.cpus.clone() } else { place.cpus.clone() };
        let root = place.root.unwrap_or((address.domain, address.bus));
        let bridges = place.bridges.clone();
        // Nodes may follow devices in the text; the node is filled in when all are known.
        self.parts.pci.push(PciDevice { address, class, vendor, device, cpus, node: None, root, bridges });
        Ok(())
    }

    /// A driver's device. Its NUMA node is filled in when all nodes are known.
    fn device(&mut self, object: &Element, place: &Place) -> Result<(), XmlError> {
        // hwloc_obj_osdev_type_t
        const NETWORK: u32 = 2;
        const OPEN_FABRICS: u32 = 3;
        const CO_PROCESSOR: u32 = 5;
        let Some(name) = object.attribute("name").map(str::to_owned) else { return Ok(()) };
        let pci = place.pci;
        match (required::<u32>(object, "osdev_type")?, pci) {
            (NETWORK, _) => self.parts.nics.push(Nic {
                name,
                kind: noted(object, "RingwayKind", &KINDS, kind_word)?.unwrap_or(NicKind::Physical),
                pci,
                node: noted_number(object, "RingwayNode")?,
                state: noted(object, "RingwayState", &STATES, state_word)?.unwrap_or(LinkState::Unknown),
                speed_mbps: noted_number(object, "RingwaySpeedMbps")?,
                mtu_bytes: noted_number(object, "RingwayMtuBytes")?,
                master: info(object, "RingwayMaster").map(str::to_owned),
            }),
            (OPEN_FABRICS, _) => self.parts.infiniband.push(InfiniBand {
                name,
                pci,
                node: noted_number(object, "RingwayNode")?,
                ports: ports(object)?,
                nics: infos(object, "RingwayNic").map(str::to_owned).collect(),
            }),
            (CO_PROCESSOR, Some(pci)) => {
                self.accelerators.entry(pci).or_insert(name);
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(mut self, document: &Element, machine: &Element) -> Result<Parts, XmlError> {
        let parts = &mut self.parts;
        parts.check_counts().map_err(|error| wrong(machine, error.to_string()))?;
        if self.threads != parts.cpus {
            let reason = format!("the machine has CPUs {} and PU objects for {}", parts.cpus, self.threads);
            return Err(wrong(machine, reason));
        }
        if parts.cores.is_empty() {
            // A description may leave cores out; then a hardware thread is as much of a core as is known.
            let single = |cpu| CpuSet::of([cpu]).map(Core::of);
            let cores: Result<_, _> = parts.cpus.iter().map(single).collect();
            parts.cores = cores.map_err(|error| wrong(machine, error.to_string()))?;
        }
        parts.set_speeds(&speeds(document)?);
        // In the order of the slots, as devices of a live machine are.
        parts.pci.sort_by_key(|device| device.address);
        let mut node_at = HashMap::new();
        for device in &mut parts.pci {
            let node = parts.nodes.iter().find(|node| device.cpus.inside(&node.cpus));
            device.node = node.map(|node| node.index);
            node_at.insert(device.address, device.node);
        }
        let node_of = |pci: Option<PciAddress>| pci.and_then(|pci| node_at.get(&pci).copied().flatten());
        for nic in parts.nics.iter_mut().filter(|nic| nic.pci.is_some()) {
            nic.node = node_of(nic.pci);
        }
        for device in parts.infiniband.iter_mut().filter(|device| device.pci.is_some()) {
            device.node = node_of(device.pci);
            let own = parts.nics.iter().filter(|nic| nic.pci.is_some() && nic.pci == device.pci);
            device.nics = own.map(|nic| nic.name.clone()).collect();
        }
        for device in &parts.pci {
            let name = self.accelerators.remove(&device.address);
            if name.is_some() || device.is_accelerator() {
                let name = name.unwrap_or_else(|| device.address.to_string());
                parts.gpus.push(Gpu { name, pci: device.address, node: device.node });
            }
        }
        let tables = document.children.iter().filter(|child| child.name == "distances2");
        for table in tables.filter(|table| table.attribute("type") == Some("NUMANode")) {
            if parts.node_distances.is_empty() {
                parts.node_distances = distances(table, &parts.nodes, &self.numbers)?;
            }
        }
        Ok(self.parts)
    }
}

fn is_object(element: &Element, kind: &str) -> bool {
    element.name == "object" && element.attribute("type") == Some(kind)
}

fn infos<'e>(object: &'e Element, name: &str) -> impl Iterator<Item = &'e str> {
    let infos = object.children.iter().filter(|child| child.name == "info");
    infos.filter(move |info| info.attribute("name") == Some(name)).filter_map(|info| info.attribute("value"))
}

fn info<'e>(object: &'e Element, name: &str) -> Option<&'e str> {
    infos(object, name).next()
}

const KINDS: [NicKind; 7] = [
    NicKind::Physical,
    NicKind::Loopback,
    NicKind::Veth,
    NicKind::Bridge,
    NicKind::Bond,
    NicKind::Stacked,
    NicKind::Virtual,
];
const STATES: [LinkState; 3] = [LinkState::Up, LinkState::Down, LinkState::Unknown];

/// A note that holds one of our own words.
fn noted<T: Copy>(
    object: &Element,
    name: &str,
    known: &[T],
    word: impl Fn(T) -> &'static str,
) -> Result<Option<T>, XmlError> {
    let Some(text) = info(object, name) else { return Ok(None) };
    let found = known.iter().copied().find(|&one| word(one) == text);
    found.map(Some).ok_or_else(|| wrong(object, format!("{name} cannot be {:?}", clip(text))))
}

fn noted_number(object: &Element, name: &str) -> Result<Option<u32>, XmlError> {
    let Some(text) = info(object, name) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| wrong(object, format!("{name} cannot be {:?}", clip(text))))
}

fn optional<T: FromStr>(object: &Element, name: &str) -> Result<Option<T>, XmlError> {
    let Some(text) = object.attribute(name) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| wrong(object, format!("{name} cannot be {:?}", clip(text))))
}

fn required<T: FromStr>(object: &Element, name: &str) -> Result<T, XmlError> {
    optional(object, name)?.ok_or_else(|| {
        let kind = object.attribute("type").unwrap_or("without type");
        wrong(object, format!("an object {} needs {name}", clip(kind)))
    })
}

/// A set as hwloc writes it: the kernel's mask with 0x before each group, empty groups for zero, and 0xf...f for
/// all CPUs there could be.
fn required_set(object: &Element, name: &str) -> Result<CpuSet, XmlError> {
    let text: String = required(object, name)?;
    let group = |group: &str| {
        let digits = group.strip_prefix("0x").unwrap_or(group);
        if digits.is_empty() { "0".to_owned() } else { digits.to_owned() }
    };
    let mask: Vec<String> = text.split(',').map(group).collect();
    let set = if text.contains("0x") { CpuSet::from_mask(&mask.join(",")).ok() } else { None };
    set.ok_or_else(|| wrong(object, format!("{name} cannot be {:?}", clip(&text))))
}

/// As in `0302 [10de:2330] [10de:16c1] a1`: class, vendor, device.
fn pci_type(text: &str) -> Option<(u16, u16, u16)> {
    let hex = |digits: &str| u16::from_str_radix(digits, 16).ok();
    let (class, rest) = text.split_once(" [")?;
    let (vendor, rest) = rest.split_once(':')?;
    let (device, _) = rest.split_once(']')?;
    Some((hex(class)?, hex(vendor)?, hex(device)?))
}

/// A host bridge says which bus begins below it (`bridge_pci="0000:[16-1a]"`); a PCI bridge has an address.
fn enter_bridge(object: &Element, place: &mut Place) -> Result<(), XmlError> {
    let kind: String = required(object, "bridge_type")?;
    if kind.starts_with('1') {
        place.bridges.push(required(object, "pci_busid")?);
        return Ok(());
    }
    let buses: String = required(object, "bridge_pci")?;
    let root = buses.split_once(":[").and_then(|(domain, rest)| {
        let (bus, _) = rest.split_once('-')?;
        Some((u32::from_str_radix(domain, 16).ok()?, u8::from_str_radix(bus, 16).ok()?))
    });
    let malformed = || wrong(object, format!("bridge_pci cannot be {:?}", clip(&buses)));
    place.root = Some(root.ok_or_else(malformed)?);
    place.bridges.clear();
    Ok(())
}

/// The ports of an RDMA device, from hwloc's notes `Port1State` and so on; state 4 is active, 0 none.
fn ports(object: &Element) -> Result<Vec<IbPort>, XmlError> {
    let mut ports = Vec::new();
    for number in 1..=u8::MAX {
        let Some(state) = info(object, &format!("Port{number}State")) else { break };
        let state = match state {
            "4" => LinkState::Up,
            "0" => LinkState::Unknown,
            _ => LinkState::Down,
        };
        let link = match info(object, &format!("RingwayPort{number}Link")) {
            Some("InfiniBand") => Some(IbLink::InfiniBand),
            Some("Ethernet") => Some(IbLink::Ethernet),
            _ => None,
        };
        let rate_gbps = noted_number(object, &format!("RingwayPort{number}RateGbps"))?;
        ports.push(IbPort { number, state, link, rate_gbps });
    }
    Ok(ports)
}

/// What each CPU can do relative to the others, from hwloc's notes on kinds of CPUs. Kinds that differ in frequency
/// alone are left out, since the best cores of a kind may clock higher.
fn speeds(document: &Element) -> Result<Vec<(u32, u64)>, XmlError> {
    let mut speeds = Vec::new();
    for kind in document.children.iter().filter(|child| child.name == "cpukind") {
        let speed = match (info(kind, "CoreType"), info(kind, "LinuxCapacity")) {
            (Some("IntelAtom"), _) => Some(50),
            (Some("IntelCore"), _) => Some(100),
            (_, Some(capacity)) => capacity.parse().ok(),
            (_, None) => optional::<u64>(kind, "forced_efficiency")?,
        };
        if let Some(speed) = speed {
            speeds.extend(required_set(kind, "cpuset")?.iter().map(|cpu| (cpu, speed)));
        }
    }
    Ok(speeds)
}

/// A table of latencies between NUMA nodes, in the order of `nodes`; empty when it is of another kind or does
/// not cover all of them.
fn distances(
    table: &Element,
    nodes: &[NumaNode],
    numbers: &HashMap<u64, u32>,
) -> Result<Vec<Vec<u32>>, XmlError> {
    /// HWLOC_DISTANCES_KIND_MEANS_LATENCY
    const MEANS_LATENCY: u64 = 1 << 2;
    if optional::<u64>(table, "kind")?.unwrap_or(0) & MEANS_LATENCY == 0 {
        return Ok(Vec::new());
    }
    // Long lists are split over several elements.
    let list = |name: &str| -> Result<Vec<u64>, XmlError> {
        let pieces = table.children.iter().filter(|child| child.name == name);
        let words = pieces.flat_map(|piece| piece.text.split_whitespace());
        let numbers: Result<_, _> = words.map(str::parse).collect();
        numbers.map_err(|_| wrong(table, format!("{name} is not a list of numbers")))
    };
    let (indexes, values) = (list("indexes")?, list("u64values")?);
    if indexes.len().checked_mul(indexes.len()) != Some(values.len()) {
        return Err(wrong(table, format!("{} distances for {} objects", values.len(), indexes.len())));
    }
    let by_number = table.attribute("indexing") == Some("gp");
    let column = |node: &NumaNode| {
        indexes.iter().position(|index| match by_number {
            true => numbers.get(index) == Some(&node.index),
            false => *index == u64::from(node.index),
        })
    };
    let Some(columns) = nodes.iter().map(column).collect::<Option<Vec<usize>>>() else {
        return Ok(Vec::new());
    };
    let distance = |from: usize, to: usize| u32::try_from(values[from * indexes.len() + to]).ok();
    let row = |&from: &usize| columns.iter().map(|&to| distance(from, to)).collect::<Option<Vec<u32>>>();
    Ok(columns.iter().map(row).collect::<Option<_>>().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_NODES: &str = r#"<topology version="2.0"><object type="Machine" cpuset="0x3">
        <object type="Package" os_index="0" cpuset="0x1"><object type="NUMANode" os_index="0" gp_index="7" cpuset="0x1"/><object type="PU" os_index="0" cpuset="0x1"/></object>
        <object type="Package" os_index="1" cpuset="0x2"><object type="NUMANode" os_index="4" gp_index="9" cpuset="0x2"/><object type="PU" os_index="1" cpuset="0x2"/></object>
        </object>
        <distances2 type="NUMANode" nbobjs="2" kind="5" indexing="os"><indexes length="2">4 </indexes><indexes length="2">0</indexes><u64values length="4">10 31 21 10</u64values></distances2>
        </topology>"#;

    #[test]
    fn distances_are_put_in_the_order_of_nodes() {
        let expected = [[10, 21], [31, 10]];
        assert_eq!(parts(TWO_NODES).unwrap().node_distances, expected);
        let by_number = TWO_NODES.replace(r#"indexing="os""#, r#"indexing="gp""#);
        let by_number = by_number.replace(">4 <", ">9 <").replace(">0<", ">7<");
        assert_eq!(parts(&by_number).unwrap().node_distances, expected);
        let bandwidth = TWO_NODES.replace(r#"kind="5""#, r#"kind="9""#);
        assert!(parts(&bandwidth).unwrap().node_distances.is_empty());
        let short = parts(&TWO_NODES.replace(" 21 10<", "<")).unwrap_err().to_string();
        assert!(short.contains("2 distances for 2 objects"), "{short}");
    }

    #[test]
    fn errors_say_the_line_and_the_object() {
        let told = |from: &str, to: &str| parts(&TWO_NODES.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(told("version=\"2.0\"", "").contains("version 1 of the format"));
        assert!(told("<object type=\"PU\" os_index=\"1\" cpuset=\"0x2\"/>", "").contains("PU objects for 0"));
        let misspelled = told("os_index=\"4\"", "os_indx=\"4\"");
        assert!(
            misspelled.contains("line 3") && misspelled.contains("NUMANode needs os_index"),
            "{misspelled}"
        );
        assert!(told("cpuset=\"0x3\"", "cpuset=\"0xf...f\"").contains("cpuset cannot be"));
        assert!(told("cpuset=\"0x3\"", "cpuset=\"0-1\"").contains("cpuset cannot be"));
        assert!(told("<topology version=\"2.0\">", "<machine>").contains("ends what did not begin"));
    }

    #[test]
    fn masks_of_hwloc_are_read() {
        let set = |text: &str| {
            let attributes = vec![("cpuset".to_owned(), text.to_owned())];
            required_set(&Element { attributes, ..Element::default() }, "cpuset")
                .map(|set| set.to_string())
                .ok()
        };
        assert_eq!(set("0x0000ffff"), Some("0-15".into()));
        assert_eq!(set("0x1,,0x00000001"), Some("0,64".into()));
        assert_eq!(set("0x0"), Some("none".into()));
        for text in ["", "x", "0x", "0xg", "0xf...f", "0xf...f,0x1", "0x123456789"] {
            assert!(set(text).is_none() || text == "0x", "{text}");
        }
    }
}
