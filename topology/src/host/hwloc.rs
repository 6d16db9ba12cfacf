//! A machine as libhwloc describes it: this one, or a synthetic one.
//!
//! Devices are not asked for. libhwloc finds accelerators through vendors' libraries, and loading one takes up to
//! seconds; a PCI class says as much as placement needs.

use std::collections::HashMap;

use hwlocality::Topology;
use hwlocality::bitmap::{BitmapRef, SpecializedBitmapRef};
use hwlocality::cpu::cpuset::CpuSet as HwlocSet;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::distance::DistancesKind;
use hwlocality::object::types::{CacheType, ObjectType};
use hwlocality::topology::builder::{BuildFlags, TopologyBuilder, TypeFilter};

use super::DiscoverError;
use crate::model::cpuset::{CPU_LIMIT, CpuSet};
use crate::model::ids::clip;
use crate::model::machine::{Cache, Core, NumaNode, Package, Parts, Source};

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
    if !is_bounded(text) {
        return Err(refused());
    }
    let builder = TopologyBuilder::new().from_synthetic(text).map_err(|_| refused())?;
    let topology = builder.build().map_err(|_| refused())?;
    parts(&topology, Source::Synthetic)
}

/// Whether every count is a number and all of them multiply to a machine that can be: libhwloc would build any
/// number of objects.
fn is_bounded(text: &str) -> bool {
    // Attributes in parentheses and memory in brackets multiply nothing.
    let mut depth = 0u32;
    let outside: String = text
        .chars()
        .filter(|c| {
            match c {
                '(' | '[' => depth += 1,
                ')' | ']' => depth = depth.saturating_sub(1),
                _ => return depth == 0,
            }
            false
        })
        .collect();
    let count = |level: &str| level.rsplit(':').next().and_then(|count| count.parse::<u32>().ok());
    let product =
        outside.split_whitespace().try_fold(1u32, |product, level| product.checked_mul(count(level)?));
    product.is_some_and(|product| (1..=CPU_LIMIT).contains(&product))
}

fn failed<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> DiscoverError {
    move |error| DiscoverError::Hwloc { what, reason: error.to_string() }
}

/// A set of hwloc's, which can also be one without end.
fn cpu_set(set: Option<BitmapRef<'_, HwlocSet>>) -> Result<CpuSet, DiscoverError> {
    let Some(set) = set else { return Ok(CpuSet::new()) };
    if set.weight().is_none() {
        return Err(failed("listing CPUs")("a set of infinitely many CPUs"));
    }
    let mut cpus = CpuSet::new();
    for cpu in set.as_bitmap_ref().iter_set() {
        cpus.insert(u32::try_from(usize::from(cpu)).unwrap_or(u32::MAX))?;
    }
    Ok(cpus)
}

fn index(object: &TopologyObject) -> Result<u32, DiscoverError> {
    let index = object.os_index().unwrap_or(object.logical_index());
    u32::try_from(index).map_err(failed("numbering objects"))
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
        parts.cores.push(Core::of(cpu_set(object.cpuset())?));
    }
    if parts.cores.is_empty() {
        // A description may leave cores out; then a hardware thread is as much of a core as is known.
        for cpu in parts.cpus.clone().iter() {
            parts.cores.push(Core::of(CpuSet::of([cpu])?));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::from_xml;
    use crate::model::export::to_xml;

    /// Other programs read what is exported: libhwloc finds the same cores, caches, nodes and distances in it.
    #[test]
    fn libhwloc_reads_what_is_exported() {
        for text in [
            include_str!("../../shapes/dgx-a100.xml"),
            include_str!("../../shapes/grace-hopper.xml"),
            include_str!("../../shapes/laptop.xml"),
            include_str!("../../shapes/cloud-vm.xml"),
        ] {
            let ours = from_xml(text).unwrap();
            let builder = TopologyBuilder::new().from_xml(&to_xml(&ours)).unwrap();
            let theirs = parts(&builder.build().unwrap(), Source::Hwloc).unwrap();
            let ours = ours.parts();
            let sorted = |sets: Vec<&CpuSet>| {
                let mut lists: Vec<String> = sets.into_iter().map(ToString::to_string).collect();
                lists.sort();
                lists
            };
            let cores = |parts: &Parts| sorted(parts.cores.iter().map(|core| &core.cpus).collect());
            let caches = |parts: &Parts| sorted(parts.caches.iter().map(|cache| &cache.cpus).collect());
            assert_eq!((cores(&theirs), caches(&theirs)), (cores(ours), caches(ours)), "{}", ours.name);
            assert_eq!((&theirs.cpus, &theirs.packages), (&ours.cpus, &ours.packages), "{}", ours.name);
            let nodes = |parts: &Parts| {
                parts.nodes.iter().map(|node| (node.index, node.memory_bytes)).collect::<Vec<_>>()
            };
            let (mut theirs_nodes, mut ours_nodes) = (nodes(&theirs), nodes(ours));
            theirs_nodes.sort_unstable();
            ours_nodes.sort_unstable();
            assert_eq!(theirs_nodes, ours_nodes, "{}", ours.name);
        }
    }
}
