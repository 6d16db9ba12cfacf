//! Machines of many shapes are read right, from every source.

mod recorded;

use recorded::{Recording, cpus, fixture, fixture_path, nic};
use ringway_topology::host::{from_xml, from_xml_file};
use ringway_topology::model::link::{Distance, Part, distance};
use ringway_topology::model::machine::{LinkState, NicKind, Source};

#[test]
fn four_nodes_in_one_package() {
    let machine = Recording::named("quad-node.tree").machine();
    let parts = machine.parts();
    assert_eq!((parts.name.as_str(), parts.source), ("quad", Source::Sysfs));
    assert_eq!((parts.packages.len(), parts.nodes.len(), parts.cores.len()), (1, 4, 8));
    assert_eq!(parts.cpus, cpus("0-15"));
    assert_eq!(parts.nodes[1].cpus, cpus("2-3,10-11"));
    assert_eq!(parts.nodes[1].memory_bytes, 32 << 30);
    assert_eq!((machine.node_distance(0, 0), machine.node_distance(0, 3)), (Some(10), Some(12)));
    let levels: Vec<(u8, u64)> = parts.caches.iter().map(|cache| (cache.level, cache.size_bytes)).collect();
    assert_eq!(levels.iter().filter(|cache| **cache == (3, 16 << 20)).count(), 4);
    assert_eq!(
        levels.iter().filter(|cache| **cache == (1, 32 << 10)).count(),
        8,
        "instruction caches are left out"
    );

    let card = nic(&machine, "enp65s0");
    assert_eq!((card.kind, card.state, card.node), (NicKind::Physical, LinkState::Up, Some(1)));
    assert_eq!((card.speed_mbps, card.mtu_bytes), (Some(100_000), Some(9000)));
    assert_eq!(nic(&machine, "lo").kind, NicKind::Loopback);
    assert_eq!(nic(&machine, "docker0").kind, NicKind::Bridge);
    let device = &parts.infiniband[0];
    assert_eq!((device.name.as_str(), device.nics.as_slice()), ("mlx5_0", ["enp65s0".to_owned()].as_slice()));
    assert_eq!(device.ports[0].rate_gbps, Some(100));
}

#[test]
fn distances_climb_the_ladder() {
    let machine = Recording::named("quad-node.tree").machine();
    let between = |a, b| {
        let there = distance(&machine, a, b);
        assert_eq!(there, distance(&machine, b, a), "a distance has no direction");
        there.unwrap()
    };
    let cpu = Part::Cpu;
    assert_eq!(between(cpu(0), cpu(0)), Distance::Same);
    assert_eq!(between(cpu(0), cpu(8)), Distance::Core);
    assert_eq!(between(cpu(0), cpu(1)), Distance::Cache);
    assert_eq!(between(cpu(0), cpu(2)), Distance::Package);
    let (card_1, card_3) = (nic(&machine, "enp65s0").pci.unwrap(), nic(&machine, "enp193s0").pci.unwrap());
    assert_eq!(between(cpu(2), Part::Device(card_1)), Distance::Node);
    assert_eq!(between(cpu(0), Part::Device(card_1)), Distance::Package);
    assert_eq!(between(Part::Node(1), Part::Device(card_1)), Distance::Node);
    assert_eq!(between(Part::Device(card_1), Part::Device(card_3)), Distance::Package);
    assert_eq!(between(Part::Node(0), Part::Node(3)), Distance::Package);
    assert_eq!(between(cpu(0), Part::Node(0)), Distance::Node);
    assert_eq!(distance(&machine, cpu(99), cpu(0)), None);
    assert_eq!(distance(&machine, Part::Node(9), cpu(0)), None);
    assert!(Distance::Same < Distance::Core && Distance::Machine < Distance::Network);
}

#[test]
fn offline_cpus_are_left_out_wherever_they_are_listed() {
    let machine = Recording::named("offline-cpus.tree").machine();
    let parts = machine.parts();
    assert_eq!(parts.cpus, cpus("0-2,4-5,7"));
    let cores: Vec<String> = parts.cores.iter().map(|core| core.cpus.to_string()).collect();
    assert_eq!(cores, ["0-1", "2", "4-5", "7"]);
    let packages: Vec<(u32, String)> =
        parts.packages.iter().map(|package| (package.index, package.cpus.to_string())).collect();
    assert_eq!(packages, [(0, "0-2".to_owned()), (3, "4-5,7".to_owned())]);
    let nodes: Vec<u32> = parts.nodes.iter().map(|node| node.index).collect();
    assert_eq!(nodes, [0, 2], "node numbers have gaps");
    assert_eq!(machine.node_distance(0, 2), Some(21));
    assert_eq!(distance(&machine, Part::Cpu(2), Part::Cpu(7)), Some(Distance::Machine));
    let (up, down) = (nic(&machine, "ens1f0"), nic(&machine, "ens1f1"));
    assert_eq!((up.state, up.speed_mbps), (LinkState::Up, Some(10_000)));
    assert_eq!((down.state, down.speed_mbps), (LinkState::Down, None), "-1 is no speed");
    let ports = distance(&machine, Part::Device(up.pci.unwrap()), Part::Device(down.pci.unwrap()));
    assert_eq!(ports, Some(Distance::Same), "two functions of one card");
}

#[test]
fn a_container_has_a_veth_and_no_device() {
    let machine = Recording::named("container.tree").machine();
    let eth0 = nic(&machine, "eth0");
    assert_eq!((eth0.kind, eth0.pci, eth0.node), (NicKind::Veth, None, None));
    assert_eq!(nic(&machine, "tunl0").kind, NicKind::Virtual);
    assert!(machine.parts().caches.is_empty() && machine.parts().pci.is_empty());
}

#[test]
fn a_bond_without_numa_on_arm() {
    let machine = Recording::named("arm-bond.tree").machine();
    let parts = machine.parts();
    assert_eq!((parts.packages.len(), parts.packages[0].index, parts.nodes.len()), (1, 0, 0));
    assert_eq!(nic(&machine, "bond0").kind, NicKind::Bond);
    assert_eq!(nic(&machine, "bond0.7").kind, NicKind::Stacked);
    assert_eq!(nic(&machine, "enP4p1s0f0").master.as_deref(), Some("bond0"));
    assert!(parts.nics.iter().all(|nic| nic.name != "bonding_masters"), "a plain file is no interface");
    let rxe = &parts.infiniband[0];
    assert_eq!((rxe.pci, rxe.nics.as_slice()), (None, ["bond0".to_owned()].as_slice()));
    assert_eq!(distance(&machine, Part::Cpu(0), Part::Cpu(3)), Some(Distance::Cache));
    assert_eq!(distance(&machine, Part::Cpu(0), Part::Cpu(4)), Some(Distance::Package));
}

#[test]
fn a_machine_is_shown_on_one_screen() {
    let machine = Recording::named("offline-cpus.tree").machine();
    let expected = "\
old-pair (sysfs): 2 packages, 4 cores, 6 CPUs, 32 GiB
  package 0: CPUs 0-2, 2 cores, L3 30 MiB, L2 2 x 2 MiB, L1 2 x 48 KiB
    NUMA node 0: 16 GiB, CPUs 0-2
  package 3: CPUs 4-5,7, 2 cores, L3 30 MiB, L2 2 x 2 MiB, L1 2 x 48 KiB
    NUMA node 2: 16 GiB, CPUs 4-5,7
      network ens1f0 (device) at 0000:81:00.0, up, 10000 Mb/s, MTU 1500
      network ens1f1 (device) at 0000:81:00.1, down, MTU 1500
  other networks: lo (loopback)
";
    assert_eq!(machine.to_string(), expected);
    let restricted = machine.with_allowed(cpus("1-2")).unwrap().to_string();
    assert!(restricted.contains("\n  allowed CPUs 1-2 of 0-2,4-5,7\n"), "{restricted}");
}

#[test]
fn this_machine_is_read_alike_from_every_source() {
    let machine = ringway_topology::host::discover().unwrap();
    let from_files = ringway_topology::host::sysfs::discover_at(std::path::Path::new("/")).unwrap();
    let (a, b) = (machine.parts(), from_files.parts());
    assert_eq!(a.cpus, b.cpus);
    let sorted = |sets: Vec<String>| {
        let mut sets = sets;
        sets.sort();
        sets
    };
    let cores = |machine: &ringway_topology::Machine| {
        sorted(machine.parts().cores.iter().map(|core| core.cpus.to_string()).collect())
    };
    assert_eq!(cores(&machine), cores(&from_files));
    // Interfaces come and go while other tests run; this one stays.
    assert_eq!(nic(&machine, "lo").kind, NicKind::Loopback);
    assert_eq!(nic(&machine, "lo"), nic(&from_files, "lo"));
    assert!(!a.allowed.is_empty() && a.allowed.inside(&a.cpus));
    assert_eq!(a.source, if cfg!(feature = "hwloc") { Source::Hwloc } else { Source::Sysfs });
    let host = ringway_topology::host::host_id().unwrap();
    assert!(!host.name().is_empty() && host.same_kernel(&host));
}

#[test]
fn a_box_of_eight_accelerators_and_cards() {
    let machine = from_xml_file(&fixture_path("gpu-box.xml")).unwrap();
    let parts = machine.parts();
    assert_eq!((parts.name.as_str(), parts.source), ("gpu-box", Source::Xml));
    let gpus: Vec<&str> = parts.gpus.iter().map(|gpu| gpu.name.as_str()).collect();
    assert_eq!(
        gpus,
        ["cuda0", "cuda1", "cuda2", "cuda3", "cuda4", "cuda5", "cuda6", "cuda7"],
        "the management controller's display is no accelerator"
    );
    assert_eq!((parts.nics.len(), parts.infiniband.len()), (8, 8));
    assert_eq!(parts.infiniband[0].nics, ["ib0"]);
    assert_eq!((parts.gpus[3].node, parts.gpus[4].node), (Some(0), Some(1)));
    let gpu = |at: usize| Part::Device(parts.gpus[at].pci);
    let card = |at: usize| Part::Device(parts.nics[at].pci.unwrap());
    assert_eq!(distance(&machine, gpu(0), card(0)), Some(Distance::Switch));
    assert_eq!(distance(&machine, gpu(0), card(1)), Some(Distance::Node));
    assert_eq!(distance(&machine, gpu(0), card(4)), Some(Distance::Machine));
}

#[test]
fn a_recorded_virtual_machine() {
    let machine = from_xml(&fixture("virtual-machine.xml")).unwrap();
    let parts = machine.parts();
    assert_eq!((parts.packages.len(), parts.nodes.len(), parts.cores.len()), (1, 1, 2));
    let l3: Vec<u64> =
        parts.caches.iter().filter(|cache| cache.level == 3).map(|cache| cache.size_bytes).collect();
    assert_eq!(l3, [32 << 20]);
    assert_eq!(nic(&machine, "eth0").node, Some(0));
}

#[cfg(feature = "hwloc")]
mod with_hwloc {
    /// libhwloc can be told by the environment to describe another machine; ranks must not be placed on that.
    #[test]
    fn a_description_of_another_machine_is_not_taken_for_this_one() {
        const OTHER: &str = "HWLOC_SYNTHETIC";
        if std::env::var_os(OTHER).is_some() {
            assert_eq!(ringway_topology::host::discover().unwrap().parts().source, Source::Sysfs);
            return;
        }
        let name = "with_hwloc::a_description_of_another_machine_is_not_taken_for_this_one";
        let again = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(OTHER, "pack:3 core:5 pu:1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&again.stdout);
        assert!(again.status.success() && said.contains("1 passed"), "{said}");
    }

    use super::*;
    use ringway_topology::host::from_synthetic;

    #[test]
    fn synthetic_machines() {
        for (text, packages, nodes, cores, cpus) in [
            ("pack:2 numa:2 core:8 pu:2", 2, 4, 32, 64),
            ("pack:1 core:4 pu:1", 1, 1, 4, 4),
            ("numa:4 core:2 pu:1", 0, 4, 8, 8),
            ("pack:2 l3:2 core:3 pu:2", 2, 1, 12, 24),
            ("pu:3", 0, 1, 3, 3),
        ] {
            let machine = from_synthetic(text).unwrap();
            let parts = machine.parts();
            let found = (parts.packages.len(), parts.nodes.len(), parts.cores.len(), parts.cpus.len());
            assert_eq!(found, (packages, nodes, cores, cpus), "{text}");
            assert_eq!(parts.source, Source::Synthetic);
        }
        let machine = from_synthetic("pack:2 numa:2 core:8 pu:2").unwrap();
        let between = |a, b| distance(&machine, Part::Cpu(a), Part::Cpu(b)).unwrap();
        let (thread, node, package, other) = (between(0, 1), between(0, 2), between(0, 16), between(0, 32));
        assert_eq!(thread, Distance::Core);
        assert_eq!((node, package, other), (Distance::Node, Distance::Package, Distance::Machine));
    }
}

#[cfg(not(feature = "hwloc"))]
#[test]
fn what_needs_hwloc_says_so() {
    use ringway_topology::host::from_synthetic;
    let error = from_synthetic("pack:2 pu:2").unwrap_err().to_string();
    assert!(error.contains("pack:2 pu:2") && error.contains("feature hwloc"), "{error}");
}
