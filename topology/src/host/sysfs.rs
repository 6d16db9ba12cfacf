//! A machine read from the kernel's files, without libhwloc.
//!
//! Files as in the kernel's Documentation/admin-guide/cputopology.rst and Documentation/ABI (sysfs-devices-
//! system-cpu, sysfs-devices-node). All are read below a root, so that recorded machines can be tested.

use std::path::Path;

use super::files::Tree;
use super::{DiscoverError, finish};
use crate::model::cpuset::CpuSet;
use crate::model::machine::{Cache, Core, Machine, NumaNode, Package, Parts, Source};

/// Describes the machine whose `/sys` and `/proc` are below `root`. All its CPUs count as allowed.
///
/// # Errors
/// When a file that every kernel has is missing or a file's content is malformed, with the file.
pub fn discover_at(root: &Path) -> Result<Machine, DiscoverError> {
    let tree = Tree::new(root);
    let parts = cpu_side(&tree)?;
    finish(&tree, parts, None)
}

/// CPUs, packages, caches and memory; no devices.
pub(super) fn cpu_side(tree: &Tree) -> Result<Parts, DiscoverError> {
    let name = tree.attribute("proc/sys/kernel/hostname").unwrap_or_else(|| "this machine".into());
    let online: CpuSet = tree.parsed("sys/devices/system/cpu/online")?;
    let mut parts = Parts::bare(name, Source::Sysfs, online);
    for cpu in parts.cpus.clone().iter() {
        add_topology(tree, cpu, &mut parts)?;
        add_caches(tree, cpu, &mut parts)?;
    }
    add_nodes(tree, &mut parts)?;
    add_speeds(tree, &mut parts)?;
    Ok(parts)
}

/// Which cores are slower, as the kernel tells: by capacity (arm64), or by naming both kinds (Intel's hybrids, whose
/// kinds are known by the names of their counters).
pub(super) fn add_speeds(tree: &Tree, parts: &mut Parts) -> Result<(), DiscoverError> {
    let mut speeds = Vec::new();
    for cpu in parts.cpus.iter() {
        let path = format!("sys/devices/system/cpu/cpu{cpu}/cpu_capacity");
        match tree.optional_parsed(&path)? {
            Some(capacity) => speeds.push((cpu, capacity)),
            // All CPUs have such a file, or none.
            None => break,
        }
    }
    for (name, speed) in [("cpu_core", 100), ("cpu_atom", 50)] {
        let cpus: Option<CpuSet> = tree.optional_parsed(&format!("sys/devices/{name}/cpus"))?;
        speeds.extend(cpus.unwrap_or_default().iter().map(|cpu| (cpu, speed)));
    }
    parts.set_speeds(&speeds);
    Ok(())
}

/// The core and package of one CPU. A CPU without such files (some containers hide them) is a core by itself
/// in no package.
fn add_topology(tree: &Tree, cpu: u32, parts: &mut Parts) -> Result<(), DiscoverError> {
    let dir = format!("sys/devices/system/cpu/cpu{cpu}/topology");
    // The second name of each is the one before kernel 5.4.
    let siblings = |new: &str, old: &str| -> Result<Option<CpuSet>, DiscoverError> {
        match tree.optional_parsed(&format!("{dir}/{new}"))? {
            Some(cpus) => Ok(Some(cpus)),
            None => tree.optional_parsed(&format!("{dir}/{old}")),
        }
    };
    let core: CpuSet = match siblings("core_cpus_list", "thread_siblings_list")? {
        // Some kernels list siblings that are offline.
        Some(cpus) => cpus.and(&parts.cpus),
        None => CpuSet::of([cpu])?,
    };
    if !core.contains(cpu) {
        return Err(
            tree.malformed(&dir, &format!("CPU {cpu} is not among the threads of its own core, {core}"))
        );
    }
    if !parts.cores.iter().any(|known| known.cpus == core) {
        parts.cores.push(Core::of(core));
    }
    let Some(package) = siblings("package_cpus_list", "core_siblings_list")? else { return Ok(()) };
    let package = package.and(&parts.cpus);
    if !package.contains(cpu) {
        return Err(tree.malformed(&dir, &format!("CPU {cpu} is not in its own package, {package}")));
    }
    if !parts.packages.iter().any(|known| known.cpus == package) {
        // Some arm64 machines call their only package -1.
        let id: i64 = tree.optional_parsed(&format!("{dir}/physical_package_id"))?.unwrap_or(0);
        let index = u32::try_from(id.max(0)).map_err(|error| tree.malformed(&dir, &error.to_string()))?;
        parts.packages.push(Package { index, cpus: package });
    }
    Ok(())
}

fn add_caches(tree: &Tree, cpu: u32, parts: &mut Parts) -> Result<(), DiscoverError> {
    let dir = format!("sys/devices/system/cpu/cpu{cpu}/cache");
    for entry in tree.names(&dir)?.iter().filter(|name| name.starts_with("index")) {
        let dir = format!("{dir}/{entry}");
        if tree.optional(&format!("{dir}/type"))?.is_some_and(|kind| kind == "Instruction") {
            continue;
        }
        let (Some(level), Some(cpus)) = (
            tree.optional_parsed::<u8>(&format!("{dir}/level"))?,
            tree.optional_parsed::<CpuSet>(&format!("{dir}/shared_cpu_list"))?,
        ) else {
            continue; // The firmware does not tell who shares it, so it is of no use here.
        };
        let cpus = cpus.and(&parts.cpus);
        if cpus.is_empty() || parts.caches.iter().any(|known| known.level == level && known.cpus == cpus) {
            continue;
        }
        let size_path = format!("{dir}/size");
        let size_bytes = match tree.optional(&size_path)? {
            Some(text) => {
                parse_size(&text).ok_or_else(|| tree.malformed(&size_path, "not a size such as 512K"))?
            }
            None => 0,
        };
        parts.caches.push(Cache { level, size_bytes, cpus });
    }
    Ok(())
}

/// A size as the kernel writes it: a number and K, M or G, or nothing for bytes.
fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let unit: u64 = match &text[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// NUMA nodes; none on a kernel without NUMA.
fn add_nodes(tree: &Tree, parts: &mut Parts) -> Result<(), DiscoverError> {
    const DIR: &str = "sys/devices/system/node";
    // Node numbers are listed in the same notation as CPUs.
    let Some(online) = tree.optional_parsed::<CpuSet>(&format!("{DIR}/online"))? else { return Ok(()) };
    for index in online.iter() {
        let cpus: CpuSet = tree.parsed(&format!("{DIR}/node{index}/cpulist"))?;
        let path = format!("{DIR}/node{index}/meminfo");
        let memory_bytes = match tree.optional(&path)? {
            Some(text) => parse_memory_total(&text)
                .ok_or_else(|| tree.malformed(&path, "no line of the form: Node N MemTotal: N kB"))?,
            None => 0,
        };
        parts.nodes.push(NumaNode { index, cpus: cpus.and(&parts.cpus), memory_bytes });
        let path = format!("{DIR}/node{index}/distance");
        if let Some(text) = tree.optional(&path)? {
            let row: Result<Vec<u32>, _> = text.split_whitespace().map(str::parse).collect();
            parts.node_distances.push(row.map_err(|error| tree.malformed(&path, &error.to_string()))?);
        }
    }
    Ok(())
}

fn parse_memory_total(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains("MemTotal:"))?;
    let mut words = line.split_whitespace().rev();
    if words.next()? != "kB" {
        return None;
    }
    words.next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_memory_lines_are_read() {
        assert_eq!(parse_size("32K"), Some(32 << 10));
        assert_eq!(parse_size("2M"), Some(2 << 20));
        assert_eq!(parse_size("17"), Some(17));
        for text in ["", "K", "32KB", "32KK", "-1K", "18446744073709551615K"] {
            assert_eq!(parse_size(text), None, "{text:?}");
        }
        assert_eq!(
            parse_memory_total("\nNode 1 MemTotal:       16 kB\nNode 1 MemFree: 1 kB"),
            Some(16 << 10)
        );
        for text in ["", "MemTotal: 16", "Node 0 MemTotal: x kB", "MemTotal: 18446744073709551615 kB"] {
            assert_eq!(parse_memory_total(text), None, "{text:?}");
        }
    }
}
