//! Descriptions that are broken, contradictory or meant to do harm give an error, never a panic.

mod recorded;

use std::path::Path;

use recorded::{Recording, cpus, fixture};
use ringway_topology::Machine;
use ringway_topology::host::{from_xml, from_xml_file, sysfs};
use ringway_topology::model::cpuset::CPU_LIMIT;
use ringway_topology::model::machine::{Cache, Core, MachineError, NumaNode, Package, Parts, Source};

const GARBAGE: [&[u8]; 8] =
    [b"", b"x", b"-1", b"0-4294967295", b"99999999999999999999", b"0-3,", b"\xff\xfe\0", b"70000"];

#[test]
fn every_file_of_a_recording_may_be_garbage() {
    for name in ["arm-bond.tree", "container.tree"] {
        let text = fixture(name);
        let recording = Recording::of(&text);
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.contains(" -> ")) {
            let (path, content) = line.split_once(": ").unwrap();
            for garbage in GARBAGE {
                recording.write(path, garbage);
                if let Err(error) = sysfs::discover_at(recording.root()) {
                    assert!(!error.to_string().is_empty());
                }
            }
            recording.write(path, content);
        }
        assert!(sysfs::discover_at(recording.root()).is_ok(), "the recording is whole again");
    }
}

#[test]
fn an_error_names_the_file_and_what_is_wrong() {
    let recording = Recording::named("offline-cpus.tree");
    let told = |path: &str, content: &str| {
        let before = std::fs::read(recording.root().join(path)).unwrap();
        recording.write(path, content);
        let error = sysfs::discover_at(recording.root()).unwrap_err().to_string();
        recording.write(path, before);
        assert!(error.contains(path) || content.is_empty(), "{error}");
        error
    };
    told("sys/devices/system/cpu/online", "0-x");
    told("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "zero");
    told("sys/devices/system/cpu/cpu0/cache/index0/size", "32 kilobytes");
    told("sys/devices/system/node/node2/cpulist", "4-");
    told("sys/devices/system/node/node2/meminfo", "plenty");
    told("sys/devices/system/node/node2/distance", "near far");
    assert!(told("sys/devices/system/cpu/online", "").contains("no online CPU"));
    let big = "0,".repeat(100_000);
    assert!(told("sys/devices/system/cpu/online", &big).contains("limit"));
}

#[test]
fn contradictions_are_found() {
    let overlapping = Recording::named("container.tree");
    overlapping.write("sys/devices/system/cpu/cpu1/topology/core_cpus_list", "0-1");
    let error = sysfs::discover_at(overlapping.root()).unwrap_err().to_string();
    assert!(error.contains("cores both hold CPUs 0"), "{error}");
    let absent = sysfs::discover_at(Path::new("/nonexistent")).unwrap_err().to_string();
    assert!(absent.contains("/nonexistent/sys/devices/system/cpu/online"), "{absent}");

    let broken = |change: &dyn Fn(&mut Parts)| {
        let mut parts = Parts::bare("m".into(), Source::Sysfs, cpus("0-3"));
        change(&mut parts);
        Machine::new(parts).unwrap_err()
    };
    let package = |index, list| Package { index, cpus: cpus(list) };
    let node = |index, list| NumaNode { index, cpus: cpus(list), memory_bytes: 0 };
    let cache = |level, list| Cache { level, size_bytes: 0, cpus: cpus(list) };
    assert_eq!(broken(&|parts| parts.cpus = cpus("")), MachineError::NoCpu, "I1");
    assert!(matches!(broken(&|parts| parts.allowed = cpus("9")), MachineError::Foreign { .. }), "I1");
    assert!(
        matches!(broken(&|parts| parts.cores = vec![Core::of(cpus("7"))]), MachineError::Foreign { .. }),
        "I1"
    );
    let overlap = broken(&|parts| parts.packages = vec![package(0, "0-2"), package(1, "2-3")]);
    assert_eq!(
        overlap.to_string(),
        "two packages both hold CPUs 2: the description contradicts itself",
        "I2"
    );
    assert!(
        matches!(
            broken(&|parts| parts.caches = vec![cache(2, "0-1"), cache(2, "1-2")]),
            MachineError::Overlap { .. }
        ),
        "I2"
    );
    assert!(
        matches!(
            broken(&|parts| parts.nodes = vec![node(0, "0-1"), node(1, "1-3")]),
            MachineError::Overlap { .. }
        ),
        "I2"
    );
    assert!(
        matches!(
            broken(&|parts| parts.nodes = vec![node(0, "0-1"), node(0, "2-3")]),
            MachineError::Twice { .. }
        ),
        "I3"
    );
    assert!(
        matches!(
            broken(&|parts| {
                parts.nodes = vec![node(0, "0-3")];
                parts.node_distances = vec![vec![10, 20]];
            }),
            MachineError::Distances { nodes: 1 }
        ),
        "I6"
    );
    let crowd = |parts: &mut Parts| parts.nodes = (0..2000).map(|index| node(index, "")).collect();
    assert!(matches!(broken(&crowd), MachineError::TooMany { count: 2000, .. }), "I5");
    let mut two_memories = Parts::bare("m".into(), Source::Sysfs, cpus("0-3"));
    two_memories.nodes = vec![node(0, "0-3"), node(1, "0-3"), node(2, "")];
    two_memories.caches = vec![cache(1, "0-1"), cache(2, "0-3")];
    assert!(Machine::new(two_memories).is_ok(), "high-bandwidth memory, and memory behind a link");
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let missing = from_xml_file(Path::new("/nonexistent/machine.xml")).unwrap_err().to_string();
    assert!(missing.contains("/nonexistent/machine.xml"), "{missing}");
    let endless = from_xml_file(Path::new("/dev/zero")).unwrap_err().to_string();
    assert!(endless.contains("/dev/zero") && endless.contains("limit"), "{endless}");
}

#[test]
fn broken_xml_is_refused() {
    let whole = fixture("virtual-machine.xml");
    for text in [
        "",
        "x",
        "<a/>",
        "<topology",
        "<topology/>",
        "<topology version=\"2.0\"></topology>",
        "\0",
        "<topology\0/>",
    ] {
        assert!(from_xml(text).is_err(), "{text:?}");
    }
    assert!(from_xml(&whole.replace("cpuset=\"0x00000003\"", "")).is_err(), "objects without CPUs");
    let infinite = whole.replace("0x00000003", "0xf...f").replace("0x00000001", "0xf...f");
    assert!(from_xml(&infinite).is_err(), "sets without end");
    let far = format!("\"0x1{}\"", ",".repeat(3000));
    match from_xml(&whole.replace("\"0x00000003\"", &far)) {
        Ok(machine) => assert!(machine.parts().cpus.last() < Some(CPU_LIMIT), "{}", machine.parts().cpus),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

#[test]
fn xml_may_end_anywhere_or_hold_anything() {
    let whole = fixture("gpu-box.xml");
    // Every 61st byte: prime to the line lengths, so that cuts fall everywhere in an element.
    for at in (0..whole.len()).step_by(61) {
        assert!(from_xml(&whole[..at]).is_err(), "cut at byte {at}");
    }
    let attributes = [
        "cpuset",
        "nodeset",
        "os_index",
        "cache_size",
        "depth",
        "bridge_pci",
        "pci_busid",
        "pci_type",
        "osdev_type",
        "bridge_type",
        "gp_index",
        "type",
        "name",
        "allowed_cpuset",
    ];
    for attribute in attributes {
        for garbage in
            ["", "x", "-1", "0xffffffff,0xffffffff", "99999999999999999999", "0x0", "ffff:ff:ff.f", "&lt;"]
        {
            for nth in [0, 1, 5] {
                let Some((at, _)) = whole.match_indices(&format!(" {attribute}=\"")).nth(nth) else {
                    continue;
                };
                let start = at + attribute.len() + 3;
                let end = start + whole[start..].find('"').unwrap();
                let changed = format!("{}{garbage}{}", &whole[..start], &whole[end..]);
                if let Err(error) = from_xml(&changed) {
                    assert!(!error.to_string().is_empty());
                }
            }
        }
    }
}

/// Found by mutation (`FUZZ_SEED=9074` of `machines_in_xml`).
#[test]
fn a_machine_none_of_whose_cpus_may_be_used_is_refused() {
    let whole = fixture("virtual-machine.xml");
    let (at, name) = whole.match_indices("allowed_cpuset=\"").next().unwrap();
    let start = at + name.len();
    let end = start + whole[start..].find('"').unwrap();
    let error = from_xml(&format!("{}0x0{}", &whole[..start], &whole[end..])).unwrap_err().to_string();
    assert!(error.contains("allowed_cpuset") && error.contains("no CPU"), "{error}");
}

#[cfg(feature = "hwloc")]
mod with_hwloc {
    use ringway_topology::host::from_synthetic;

    #[test]
    fn broken_synthetic_descriptions_are_refused() {
        for text in [
            "",
            "pack",
            "pack:",
            "pack:0 pu:1",
            "pack:x pu:1",
            "nonsense:2 pu:1",
            "pu:1 pack:2",
            "a\0b",
            "pack:-1 pu:2",
            "pu:4294967295",
            "pack:1000 core:1000 pu:1000",
        ] {
            assert!(from_synthetic(text).is_err(), "{text:?}");
        }
    }
}
