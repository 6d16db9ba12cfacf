//! A machine as the XML that hwloc 2 reads (`lstopo -i machine.xml`) and this crate reads back.
//!
//! What hwloc has no word for (what kind of interface, whether its link is up) stands in notes whose names begin with
//! `Ringway`, which other readers pass over. Elements and attributes as in hwloc's hwloc2.dtd.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::cpuset::CpuSet;
use super::machine::{IbLink, InfiniBand, LinkState, Machine, Nic, NicKind, NumaNode};
use super::pci::{PciAddress, PciDevice};

/// The machine as XML. [`from_xml`](crate::host::from_xml) makes the same machine of it, but for its source.
#[must_use]
pub fn to_xml(machine: &Machine) -> String {
    let mut writer = Writer { machine, text: String::new(), depth: 1, number: 0 };
    writer.text += "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">\n";
    writer.machine();
    writer.distances();
    writer.kinds();
    writer.text += "</topology>\n";
    writer.text
}

/// An object that holds CPUs, outermost kinds first.
struct Object {
    kind: &'static str,
    cpus: CpuSet,
    attributes: String,
}

struct Writer<'m> {
    machine: &'m Machine,
    text: String,
    depth: usize,
    number: u32,
}

impl<'m> Writer<'m> {
    fn line(&mut self, text: &str) {
        let _ = writeln!(self.text, "{}{text}", "  ".repeat(self.depth));
    }

    /// Begins an object; `attributes` with a space before each.
    fn open(&mut self, kind: &str, attributes: &str) {
        self.number += 1;
        let number = self.number;
        self.line(&format!("<object type=\"{kind}\"{attributes} gp_index=\"{number}\">"));
        self.depth += 1;
    }

    fn close(&mut self) {
        self.depth -= 1;
        self.line("</object>");
    }

    fn info(&mut self, name: &str, value: &str) {
        self.line(&format!("<info name=\"{name}\" value=\"{}\"/>", escape(value)));
    }

    fn machine(&mut self) {
        let parts = self.machine.parts();
        let nodes: CpuSet = parts.nodes.iter().fold(CpuSet::new(), |set, node| with(set, node.index));
        let allowed = format!(
            " os_index=\"0\"{} allowed_cpuset=\"{}\" allowed_nodeset=\"{}\"",
            sets(&parts.cpus, &nodes),
            mask(&parts.allowed),
            mask(&nodes)
        );
        self.open("Machine", &allowed);
        self.info("HostName", &parts.name);
        let objects = self.objects();
        // Each hangs below the smallest that holds it; the root's place is one past the last.
        let root = objects.len();
        let mut below: Vec<Vec<usize>> = vec![Vec::new(); root + 1];
        for (at, object) in objects.iter().enumerate() {
            let above = objects[..at].iter().rposition(|outer| object.cpus.inside(&outer.cpus));
            below[above.unwrap_or(root)].push(at);
        }
        below.iter_mut().for_each(|list| list.sort_by_key(|&at| objects[at].cpus.first()));
        let devices = self.device_places(&objects);
        self.memory(&objects, None);
        for &at in &below[root] {
            self.object(&objects, &below, &devices, at);
        }
        self.bridges(devices.get(&root).map_or(&[], Vec::as_slice));
        for nic in parts.nics.iter().filter(|nic| nic.pci.is_none()) {
            self.nic(nic);
        }
        for device in parts.infiniband.iter().filter(|device| device.pci.is_none()) {
            self.infiniband(device);
        }
        self.close();
    }

    /// Everything that holds CPUs, each after all that hold more.
    fn objects(&self) -> Vec<Object> {
        const CACHES: [&str; 5] = ["L1Cache", "L2Cache", "L3Cache", "L4Cache", "L5Cache"];
        let parts = self.machine.parts();
        let indexed = |index: u32| format!(" os_index=\"{index}\"");
        let mut objects: Vec<Object> = Vec::new();
        for package in &parts.packages {
            let attributes = indexed(package.index);
            objects.push(Object { kind: "Package", cpus: package.cpus.clone(), attributes });
        }
        for cache in parts.caches.iter().filter(|cache| (1..=5).contains(&cache.level)) {
            let kind = CACHES[usize::from(cache.level) - 1];
            let kept = u8::from(cache.level == 1);
            let attributes = format!(
                " cache_size=\"{}\" depth=\"{}\" cache_linesize=\"64\" cache_associativity=\"0\" cache_type=\"{kept}\"",
                cache.size_bytes, cache.level
            );
            objects.push(Object { kind, cpus: cache.cpus.clone(), attributes });
        }
        for (at, core) in (0..).zip(&parts.cores) {
            objects.push(Object { kind: "Core", cpus: core.cpus.clone(), attributes: indexed(at) });
        }
        for cpu in parts.cpus.iter() {
            objects.push(Object { kind: "PU", cpus: with(CpuSet::new(), cpu), attributes: indexed(cpu) });
        }
        // Memory hangs beside an object of the same CPUs, which is made where there is none.
        for node in parts.nodes.iter().filter(|node| !node.cpus.is_empty() && node.cpus != parts.cpus) {
            if !objects.iter().any(|object| object.kind != "PU" && object.cpus == node.cpus) {
                let attributes = " kind=\"1001\" subkind=\"0\"".to_owned();
                objects.push(Object { kind: "Group", cpus: node.cpus.clone(), attributes });
            }
        }
        let order = ["Package", "Group", "L5Cache", "L4Cache", "L3Cache", "L2Cache", "L1Cache", "Core", "PU"];
        let rank = |kind| order.iter().position(|known| *known == kind);
        objects.sort_by_key(|object| (std::cmp::Reverse(object.cpus.len()), rank(object.kind)));
        objects
    }

    /// The devices by the object that they hang below, which is a whole package or NUMA node, or the machine.
    fn device_places(&self, objects: &[Object]) -> BTreeMap<usize, Vec<&'m PciDevice>> {
        let parts = self.machine.parts();
        let mut places: BTreeMap<usize, Vec<&'m PciDevice>> = BTreeMap::new();
        for device in &parts.pci {
            let holds = |object: &Object| {
                let whole = parts.nodes.iter().any(|node| node.cpus == object.cpus)
                    || object.kind == "Package"
                    || device.cpus == object.cpus;
                whole && object.kind != "PU" && device.cpus.inside(&object.cpus)
            };
            let at = if device.cpus == parts.cpus { None } else { objects.iter().rposition(holds) };
            places.entry(at.unwrap_or(objects.len())).or_default().push(device);
        }
        places
    }

    fn object(
        &mut self,
        objects: &[Object],
        below: &[Vec<usize>],
        devices: &BTreeMap<usize, Vec<&'m PciDevice>>,
        at: usize,
    ) {
        let object = &objects[at];
        let near =
            |set, node: &NumaNode| if node.cpus.meets(&object.cpus) { with(set, node.index) } else { set };
        let nodes = self.machine.parts().nodes.iter().fold(CpuSet::new(), near);
        self.open(object.kind, &format!("{}{}", object.attributes, sets(&object.cpus, &nodes)));
        self.memory(objects, Some(at));
        for &inner in &below[at] {
            self.object(objects, below, devices, inner);
        }
        self.bridges(devices.get(&at).map_or(&[], Vec::as_slice));
        self.close();
    }

    /// NUMA nodes beside the outermost object of their CPUs; beside the machine, those of all CPUs or none.
    fn memory(&mut self, objects: &[Object], at: Option<usize>) {
        let parts = self.machine.parts();
        let mut nodes: Vec<&NumaNode> = parts.nodes.iter().collect();
        nodes.sort_unstable_by_key(|node| node.index);
        for node in nodes {
            let everywhere = node.cpus.is_empty() || node.cpus == parts.cpus;
            let place = objects.iter().position(|object| object.cpus == node.cpus).filter(|_| !everywhere);
            if place != at {
                continue;
            }
            let index = node.index;
            let sets = sets(&node.cpus, &with(CpuSet::new(), index));
            let memory = node.memory_bytes;
            self.open("NUMANode", &format!(" os_index=\"{index}\"{sets} local_memory=\"{memory}\""));
            self.close();
        }
    }

    /// Devices below their host bridges.
    fn bridges(&mut self, devices: &[&PciDevice]) {
        let mut roots: BTreeMap<(u32, u8), Vec<&PciDevice>> = BTreeMap::new();
        devices.iter().for_each(|device| roots.entry(device.root).or_default().push(device));
        for ((domain, bus), devices) in roots {
            let last = devices.iter().map(|device| device.address.bus).max().unwrap_or(bus);
            self.open(
                "Bridge",
                &format!(
                    " bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"{domain:04x}:[{bus:02x}-{:02x}]\"",
                    last.max(bus)
                ),
            );
            self.below_bridge(&devices, 0);
            self.close();
        }
    }

    /// Devices whose first `depth` bridges are written.
    fn below_bridge(&mut self, devices: &[&PciDevice], depth: usize) {
        let mut bridges: BTreeMap<PciAddress, Vec<&PciDevice>> = BTreeMap::new();
        for device in devices {
            match device.bridges.get(depth) {
                Some(&bridge) => bridges.entry(bridge).or_default().push(device),
                None => self.device(device),
            }
        }
        for (bridge, devices) in bridges {
            let inner = |device: &&PciDevice| {
                device.bridges.get(depth + 1).map_or(device.address.bus, |next| next.bus)
            };
            let first = devices.iter().map(inner).min().unwrap_or(bridge.bus);
            let last = devices.iter().map(|device| device.address.bus).max().unwrap_or(first);
            self.open(
                "Bridge",
                &format!(
                    " bridge_type=\"1-1\" depth=\"{}\" bridge_pci=\"{:04x}:[{first:02x}-{last:02x}]\" pci_busid=\"{bridge}\" \
                     pci_type=\"0604 [0000:0000] [0000:0000] 00\" pci_link_speed=\"0.000000\"",
                    depth + 1,
                    bridge.domain
                ),
            );
            self.below_bridge(&devices, depth + 1);
            self.close();
        }
    }

    fn device(&mut self, device: &PciDevice) {
        let PciDevice { address, class, vendor, device: model, .. } = device;
        self.open(
            "PCIDev",
            &format!(
                " pci_busid=\"{address}\" pci_type=\"{class:04x} [{vendor:04x}:{model:04x}] [0000:0000] 00\" \
                 pci_link_speed=\"0.000000\""
            ),
        );
        let parts = self.machine.parts();
        let here = Some(*address);
        for gpu in parts.gpus.iter().filter(|gpu| gpu.pci == *address && gpu.name != address.to_string()) {
            self.open("OSDev", &format!(" name=\"{}\" osdev_type=\"5\"", escape(&gpu.name)));
            self.close();
        }
        for nic in parts.nics.iter().filter(|nic| nic.pci == here) {
            self.nic(nic);
        }
        for device in parts.infiniband.iter().filter(|device| device.pci == here) {
            self.infiniband(device);
        }
        self.close();
    }

    fn nic(&mut self, nic: &Nic) {
        self.open("OSDev", &format!(" name=\"{}\" osdev_type=\"2\"", escape(&nic.name)));
        self.info("RingwayKind", kind_word(nic.kind));
        self.info("RingwayState", state_word(nic.state));
        let numbers = [
            ("RingwaySpeedMbps", nic.speed_mbps),
            ("RingwayMtuBytes", nic.mtu_bytes),
            ("RingwayNode", nic.node),
        ];
        for (name, number) in numbers {
            number.iter().for_each(|number| self.info(name, &number.to_string()));
        }
        nic.master.iter().for_each(|master| self.info("RingwayMaster", master));
        self.close();
    }

    fn infiniband(&mut self, device: &InfiniBand) {
        self.open("OSDev", &format!(" name=\"{}\" osdev_type=\"3\"", escape(&device.name)));
        for port in &device.ports {
            let name = |what: &str| format!("Port{}{what}", port.number);
            // The verbs' numbers of states: active, down, none.
            let state = match port.state {
                LinkState::Up => "4",
                LinkState::Down => "1",
                LinkState::Unknown => "0",
            };
            self.info(&name("State"), state);
            let link = port.link.map(|link| match link {
                IbLink::InfiniBand => "InfiniBand",
                IbLink::Ethernet => "Ethernet",
            });
            link.iter().for_each(|link| self.info(&format!("Ringway{}", name("Link")), link));
            let rate = port.rate_gbps;
            rate.iter()
                .for_each(|rate| self.info(&format!("Ringway{}", name("RateGbps")), &rate.to_string()));
        }
        if device.pci.is_none() {
            device.node.iter().for_each(|node| self.info("RingwayNode", &node.to_string()));
            device.nics.iter().for_each(|nic| self.info("RingwayNic", nic));
        }
        self.close();
    }

    fn distances(&mut self) {
        let parts = self.machine.parts();
        let side = parts.nodes.len();
        if parts.node_distances.is_empty() {
            return;
        }
        let join = |numbers: Vec<u32>| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        let indexes = join(parts.nodes.iter().map(|node| node.index).collect());
        let values = join(parts.node_distances.iter().flatten().copied().collect());
        // A latency (4) that the system gave (1).
        self.line(&format!(
            "<distances2 type=\"NUMANode\" nbobjs=\"{side}\" kind=\"5\" name=\"NUMALatency\" indexing=\"os\">"
        ));
        self.depth += 1;
        self.line(&format!("<indexes length=\"{}\">{indexes} </indexes>", indexes.len() + 1));
        self.line(&format!("<u64values length=\"{}\">{values} </u64values>", values.len() + 1));
        self.depth -= 1;
        self.line("</distances2>");
    }

    fn kinds(&mut self) {
        let of = |slow: bool| {
            let cores = self.machine.parts().cores.iter().filter(|core| core.slow == slow);
            cores.fold(CpuSet::new(), |set, core| set.or(&core.cpus))
        };
        let (slow, quick) = (of(true), of(false));
        if !slow.is_empty() {
            self.line(&format!("<cpukind cpuset=\"{}\" forced_efficiency=\"0\"/>", mask(&slow)));
            self.line(&format!("<cpukind cpuset=\"{}\" forced_efficiency=\"1\"/>", mask(&quick)));
        }
    }
}

/// The word for a kind of interface in a `RingwayKind` note.
pub(crate) fn kind_word(kind: NicKind) -> &'static str {
    match kind {
        NicKind::Physical => "device",
        NicKind::Loopback => "loopback",
        NicKind::Veth => "veth",
        NicKind::Bridge => "bridge",
        NicKind::Bond => "bond",
        NicKind::Stacked => "stacked",
        NicKind::Virtual => "virtual",
    }
}

/// The word for a link's state in a `RingwayState` note.
pub(crate) fn state_word(state: LinkState) -> &'static str {
    match state {
        LinkState::Up => "up",
        LinkState::Down => "down",
        LinkState::Unknown => "unknown",
    }
}

fn with(mut set: CpuSet, number: u32) -> CpuSet {
    // Numbers of CPUs and nodes are below the limit in a checked machine.
    let _ = set.insert(number);
    set
}

fn sets(cpus: &CpuSet, nodes: &CpuSet) -> String {
    let (cpus, nodes) = (mask(cpus), mask(nodes));
    format!(" cpuset=\"{cpus}\" complete_cpuset=\"{cpus}\" nodeset=\"{nodes}\" complete_nodeset=\"{nodes}\"")
}

/// A set as hwloc writes it: groups of 32, the highest first.
fn mask(set: &CpuSet) -> String {
    let groups = set.last().map_or(0, |last| last / 32) + 1;
    let group = |at: u32| {
        let bits = (0..32).filter(|bit| set.contains(at * 32 + bit)).fold(0u32, |word, bit| word | 1 << bit);
        format!("0x{bits:08x}")
    };
    (0..groups).rev().map(group).collect::<Vec<_>>().join(",")
}

/// Text for an attribute or for content.
pub(crate) fn escape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => plain += "&amp;",
            '<' => plain += "&lt;",
            '>' => plain += "&gt;",
            '"' => plain += "&quot;",
            c if c.is_control() => {
                let _ = write!(plain, "&#{};", u32::from(c));
            }
            c => plain.push(c),
        }
    }
    plain
}
