//! A machine as a compact tree of text, for people.
//!
//! Like objects are told once with their number: a machine of 256 CPUs fits on a screen.

use std::fmt;

use super::cpuset::CpuSet;
use super::export::kind_word;
use super::machine::{Gpu, IbLink, InfiniBand, LinkState, Machine, Nic, NumaNode};

/// A size in the largest binary unit that fits, to one decimal where needed.
#[must_use]
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() < 0.05 || value >= 100.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

fn count(number: usize, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.parts();
        let memory: u64 = parts.nodes.iter().map(|node| node.memory_bytes).sum();
        write!(
            f,
            "{} ({}): {}, {}, {}",
            parts.name,
            parts.source,
            count(parts.packages.len(), "package"),
            count(parts.cores.len(), "core"),
            count(parts.cpus.len(), "CPU"),
        )?;
        if memory > 0 {
            write!(f, ", {}", size(memory))?;
        }
        writeln!(f)?;
        if parts.allowed != parts.cpus {
            writeln!(f, "  allowed CPUs {} of {}", parts.allowed, parts.cpus)?;
        }
        for package in &parts.packages {
            writeln!(f, "  package {}: {}", package.index, self.inside(&package.cpus))?;
            let own = |node: &&NumaNode| !node.cpus.is_empty() && node.cpus.inside(&package.cpus);
            for node in parts.nodes.iter().filter(own) {
                self.show_node(f, "    ", node)?;
            }
        }
        let in_a_package =
            |node: &NumaNode| parts.packages.iter().any(|package| node.cpus.inside(&package.cpus));
        for node in parts.nodes.iter().filter(|node| node.cpus.is_empty() || !in_a_package(node)) {
            self.show_node(f, "  ", node)?;
        }
        self.show_devices(f, "  ", None)
    }
}

impl Machine {
    /// What a set of CPUs consists of: cores, and caches by level, the outermost first.
    fn inside(&self, cpus: &CpuSet) -> String {
        let parts = self.parts();
        let cores = parts.cores.iter().filter(|core| core.cpus.inside(cpus)).count();
        let mut text = format!("CPUs {cpus}, {}", count(cores, "core"));
        for level in (1..=5).rev() {
            let sizes: Vec<u64> = parts
                .caches
                .iter()
                .filter(|cache| cache.level == level && cache.cpus.inside(cpus))
                .map(|cache| cache.size_bytes)
                .collect();
            match sizes.as_slice() {
                [] => {}
                [one] => text += &format!(", L{level} {}", size(*one)),
                [first, rest @ ..] if rest.iter().all(|other| other == first) => {
                    text += &format!(", L{level} {} x {}", sizes.len(), size(*first));
                }
                _ => text += &format!(", L{level} {} in {}", size(sizes.iter().sum()), sizes.len()),
            }
        }
        text
    }

    fn show_node(&self, f: &mut fmt::Formatter<'_>, indent: &str, node: &NumaNode) -> fmt::Result {
        write!(f, "{indent}NUMA node {}: ", node.index)?;
        match node.memory_bytes {
            0 => write!(f, "memory not known, CPUs {}", node.cpus)?,
            bytes => write!(f, "{}, CPUs {}", size(bytes), node.cpus)?,
        }
        writeln!(f)?;
        self.show_devices(f, &format!("{indent}  "), Some(node.index))
    }

    /// Devices next to the node, or those next to none that is known.
    fn show_devices(&self, f: &mut fmt::Formatter<'_>, indent: &str, at: Option<u32>) -> fmt::Result {
        let parts = self.parts();
        for gpu in parts.gpus.iter().filter(|gpu| gpu.node == at) {
            writeln!(f, "{indent}{}", Shown(gpu))?;
        }
        for device in parts.infiniband.iter().filter(|device| device.node == at) {
            writeln!(f, "{indent}{}", Shown(device))?;
        }
        // Hosts of containers have hundreds of virtual interfaces: those share a line.
        let listed = |nic: &&Nic| nic.kind.is_real();
        for nic in parts.nics.iter().filter(|nic| nic.node == at).filter(listed) {
            writeln!(f, "{indent}{}", Shown(nic))?;
        }
        let mut others = parts.nics.iter().filter(|nic| nic.node == at && !listed(nic)).peekable();
        if others.peek().is_none() {
            return Ok(());
        }
        write!(f, "{indent}other networks:")?;
        for nic in others {
            let down = if nic.state == LinkState::Down { ", down" } else { "" };
            write!(f, " {} ({}{down})", nic.name, kind_word(nic.kind))?;
        }
        writeln!(f)
    }
}

struct Shown<T>(T);

impl fmt::Display for Shown<&Gpu> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "accelerator {}", self.0.name)?;
        if self.0.name != self.0.pci.to_string() {
            write!(f, " at {}", self.0.pci)?;
        }
        Ok(())
    }
}

impl fmt::Display for Shown<&InfiniBand> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RDMA {}", self.0.name)?;
        if let Some(pci) = self.0.pci {
            write!(f, " at {pci}")?;
        }
        for port in &self.0.ports {
            write!(f, ", port {} {}", port.number, state(port.state))?;
            match port.link {
                Some(IbLink::InfiniBand) => f.write_str(" InfiniBand")?,
                Some(IbLink::Ethernet) => f.write_str(" Ethernet")?,
                None => {}
            }
            if let Some(rate) = port.rate_gbps {
                write!(f, " {rate} Gb/s")?;
            }
        }
        if !self.0.nics.is_empty() {
            write!(f, ", also {}", self.0.nics.join(" "))?;
        }
        Ok(())
    }
}

impl fmt::Display for Shown<&Nic> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "network {} ({})", self.0.name, kind_word(self.0.kind))?;
        if let Some(pci) = self.0.pci {
            write!(f, " at {pci}")?;
        }
        write!(f, ", {}", state(self.0.state))?;
        if let Some(speed) = self.0.speed_mbps {
            write!(f, ", {speed} Mb/s")?;
        }
        if let Some(mtu) = self.0.mtu_bytes {
            write!(f, ", MTU {mtu}")?;
        }
        if let Some(master) = &self.0.master {
            write!(f, ", part of {master}")?;
        }
        Ok(())
    }
}

fn state(state: LinkState) -> &'static str {
    match state {
        LinkState::Up => "up",
        LinkState::Down => "down",
        LinkState::Unknown => "state not known",
    }
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_short_and_right() {
        let shown: Vec<String> =
            [0, 512, 1024, 48 << 10, 1 << 20, 5_194_412_032, 1536 << 30].map(size).to_vec();
        assert_eq!(shown, ["0 B", "512 B", "1 KiB", "48 KiB", "1 MiB", "4.8 GiB", "1.5 TiB"]);
    }
}
