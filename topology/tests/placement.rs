//! Ranks go where they should on machines of many shapes (invariants of `model::place`).

mod recorded;

use recorded::{Recording, cpu_lists, cpus, fixture_path, placed};
use ringway_topology::host::from_xml_file;
use ringway_topology::model::cpuset::CpuSet;
use ringway_topology::model::link::Distance;
use ringway_topology::model::order::{Location, Site, hops_at_least, ring_order};
use ringway_topology::model::place::{PlaceError, Request, place};
use ringway_topology::{Machine, Rank};

/// Every placement of 1 to `most` ranks keeps the invariants, whatever the machine.
fn invariants_hold(machine: &Machine, most: u32) {
    let allowed = &machine.parts().allowed;
    for ranks in 1..=most {
        let placements = placed(machine, ranks);
        let context = || format!("{} with {ranks} ranks: {:?}", machine.parts().name, cpu_lists(&placements));
        assert_eq!(placements.len(), ranks as usize);
        for (at, one) in placements.iter().enumerate() {
            assert!(!one.cpus.is_empty() && one.cpus.inside(allowed), "I1: {}", context());
            assert_eq!(one.rank.index(), at);
            assert!(!one.reasons.is_empty());
            if ranks as usize <= allowed.len() {
                for other in &placements[..at] {
                    assert!(!one.cpus.meets(&other.cpus), "I2: {}", context());
                }
            }
            let nodes = || machine.parts().nodes.iter().map(|node| node.cpus.and(allowed));
            let whole = |node: CpuSet| node.inside(&one.cpus) || !node.meets(&one.cpus);
            let in_one = nodes().any(|node| one.cpus.inside(&node));
            assert!(in_one || nodes().all(whole), "I3: {}", context());
        }
        assert_eq!(placed(machine, ranks), placements, "I5");
    }
}

#[test]
fn ranks_follow_memory() {
    let machine = Recording::named("quad-node.tree").machine();
    invariants_hold(&machine, 20);
    let four = placed(&machine, 4);
    assert_eq!(cpu_lists(&four), ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]);
    assert_eq!(four.iter().map(|one| one.node).collect::<Vec<_>>(), [Some(0), Some(1), Some(2), Some(3)]);
    let eight = placed(&machine, 8);
    assert_eq!(cpu_lists(&eight)[..3], ["0,8", "1,9", "2,10"], "a core each, with both its threads");
    let sixteen = placed(&machine, 16);
    assert_eq!(cpu_lists(&sixteen)[..3], ["0", "8", "1"], "a thread each");
    let two = placed(&machine, 2);
    assert_eq!(cpu_lists(&two), ["0-3,8-11", "4-7,12-15"], "I3: whole nodes");
    assert_eq!(two[0].node, None);
    assert_eq!(cpu_lists(&placed(&machine, 1)), ["0-15"], "a rank alone has the machine");
    assert_eq!(cpu_lists(&placed(&machine, 3)), ["0-1,8-9", "2-5,10-13", "6-7,14-15"], "I3");
    let crowd = placed(&machine, 20);
    assert_eq!(crowd[0].cpus, cpus("0-1,8-9"), "I2: the ranks of a crowded node share it");
    assert_eq!(crowd[0].cpus, crowd[4].cpus);
    let twice = placed(&machine, 32);
    assert_eq!(
        cpu_lists(&twice)[..9],
        ["0", "1", "8", "9", "0", "1", "8", "9", "2"],
        "I2: dealt out in turn"
    );
}

#[test]
fn interfaces_are_the_nearest_ones() {
    // Fails if distances are ignored: with any rule that looks at names or numbers alone, a rank at node 3 would
    // get the card at node 1, or the management port at node 0 would be someone's nearest.
    let machine = Recording::named("quad-node.tree").machine();
    let four = placed(&machine, 4);
    assert_eq!(four[1].nics, ["enp65s0"]);
    assert_eq!(four[3].nics, ["enp193s0"]);
    assert_eq!(four[1].infiniband, ["mlx5_0"]);
    assert_eq!(four[3].infiniband, ["mlx5_1"]);
    // Nodes 0 and 2 are equally far from both cards, so they share them out.
    assert_eq!(four[0].nics, ["enp65s0"]);
    assert_eq!(four[2].nics, ["enp193s0"]);
    for one in &four {
        assert!(!one.nics.contains(&"eno1".to_owned()), "a management port carries no tensors");
        assert!(!one.nics.contains(&"docker0".to_owned()));
    }
    assert_eq!(
        four[3].reason(),
        "cpus 6-7,14-15 and memory of NUMA node 3; enp193s0 on the same NUMA node; mlx5_1 on the same NUMA node"
    );
    let alone = placed(&machine, 1);
    assert_eq!(
        alone[0].nics,
        ["enp65s0", "enp193s0"],
        "a rank that spans nodes uses the cards of all of them"
    );
}

#[test]
fn odd_cpusets_are_kept_to() {
    let machine = Recording::named("quad-node.tree").machine();
    let allowed_only = |list: &str| machine.clone().with_allowed(cpus(list)).unwrap();
    let odd = allowed_only("0,2-3,7,10");
    invariants_hold(&odd, 7);
    assert_eq!(cpu_lists(&placed(&odd, 5)), ["0", "2", "10", "3", "7"]);
    let one = allowed_only("13");
    assert_eq!(cpu_lists(&placed(&one, 2)), ["13", "13"], "I2: more ranks than CPUs share");
    assert_eq!(placed(&one, 1)[0].node, Some(2));
    // A node with a sliver of the allowed CPUs is left idle rather than slowing one rank down.
    let lopsided = allowed_only("0,4-7,12-15");
    assert_eq!(cpu_lists(&placed(&lopsided, 4)), ["4,12", "5,13", "6,14", "7,15"]);

    let machine = Recording::named("offline-cpus.tree").machine();
    invariants_hold(&machine, 8);
    assert_eq!(cpu_lists(&placed(&machine, 2)), ["0-2", "4-5,7"]);
    assert_eq!(cpu_lists(&placed(&machine, 4)), ["0-1", "2", "4-5", "7"]);
    let placements = placed(&machine, 2);
    assert_eq!(placements[0].nics, ["ens1f0"]);
    assert_eq!(placements[1].nics, ["ens1f0"]);
    assert!(placements[0].reason().contains("ens1f0 elsewhere in the machine"), "{}", placements[0].reason());
    assert!(placements[1].reason().contains("ens1f0 on the same NUMA node"), "{}", placements[1].reason());
}

#[test]
fn any_cpuset_keeps_the_invariants() {
    let machine = Recording::named("quad-node.tree").machine();
    // Steele and Vigna's splitmix64; the seed is in the message of a failure.
    let mut seed = 0x5eed_u64;
    for _ in 0..150 {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mask = (mixed ^ (mixed >> 27)) & 0xffff;
        let allowed = CpuSet::from_mask(&format!("{:x}", mask.max(1))).unwrap();
        let mut parts = machine.parts().clone();
        parts.name = format!("seed {seed:#x}, allowed {allowed}");
        parts.allowed = allowed;
        invariants_hold(&Machine::new(parts).unwrap(), 6);
    }
}

#[test]
fn interfaces_that_are_named_are_used_whatever_they_are() {
    let machine = Recording::named("quad-node.tree").machine();
    let named = |nics: &[&str], infiniband: &[&str]| {
        let owned = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect());
        let request =
            Request { nics: owned(nics), infiniband: owned(infiniband), ..Request::plain(&machine, 4) };
        place(&machine, &request).unwrap()
    };
    for one in named(&["eno1"], &["mlx5_1"]) {
        assert_eq!((one.nics.join(" "), one.infiniband.join(" ")), ("eno1".into(), "mlx5_1".into()));
    }
    let two = named(&["eno1", "enp193s0"], &[]);
    assert_eq!((two[0].nics.join(" "), two[3].nics.join(" ")), ("eno1".into(), "enp193s0".into()));
    assert!(two[0].infiniband.is_empty() && named(&["nonexistent"], &[])[0].nics.is_empty());
}

#[test]
fn containers_and_bonds_have_their_interface() {
    let machine = Recording::named("container.tree").machine();
    invariants_hold(&machine, 6);
    assert_eq!(
        placed(&machine, 2)[0].nics,
        ["eth0"],
        "a veth is used where there is nothing better, loopback not"
    );
    let machine = Recording::named("arm-bond.tree").machine();
    invariants_hold(&machine, 8);
    let three = placed(&machine, 3);
    assert_eq!(cpu_lists(&three), ["0-1", "2-3", "4-5"], "along the clusters");
    assert_eq!(three[0].nics, ["bond0"], "the bond, not its members, nor a VLAN on it");
    assert_eq!(three[0].infiniband, ["rxe0"]);
    assert!(three[0].reason().contains("NUMA not known"), "{}", three[0].reason());
}

#[test]
fn only_loopback_is_still_an_interface_and_none_is_said() {
    let bare = "sys/devices/system/cpu/online: 0-1\n";
    let none = Recording::of(bare).machine();
    assert!(placed(&none, 1)[0].nics.is_empty());
    assert!(placed(&none, 1)[0].reason().ends_with("no network interface that is up"));
    let lo = format!(
        "{bare}sys/class/net/lo -> ../../devices/virtual/net/lo\nsys/devices/virtual/net/lo/ifindex: 1\n\
         sys/devices/virtual/net/lo/type: 772\nsys/devices/virtual/net/lo/operstate: unknown\n"
    );
    assert_eq!(placed(&Recording::of(&lo).machine(), 1)[0].nics, ["lo"]);
    assert_eq!(cpu_lists(&placed(&none, 2)), ["0", "1"], "CPUs without a known core are cores");
}

#[test]
fn requests_that_cannot_be_met_are_refused() {
    let machine = Recording::named("quad-node.tree").machine();
    let request = |allowed: &str, devices: &[&str]| Request {
        allowed: cpus(allowed),
        devices: devices.iter().map(|address| address.parse().unwrap()).collect(),
        ..Request::plain(&machine, 2)
    };
    let refused = |request: &Request| place(&machine, request).unwrap_err();
    assert!(matches!(refused(&request("100", &[])), PlaceError::NoCpu { .. }));
    assert!(matches!(
        refused(&request("0", &["41:00.0"])),
        PlaceError::DeviceCount { devices: 1, local_ranks: 2 }
    ));
    let unknown = refused(&request("0", &["41:00.0", "99:00.0"])).to_string();
    assert!(unknown.contains("rank 1") && unknown.contains("0000:99:00.0"), "{unknown}");
    let none = Request { local_ranks: 0, ..request("0", &[]) };
    assert!(place(&machine, &none).unwrap().is_empty());
}

#[test]
fn a_ring_over_placed_ranks_enters_each_node_once() {
    let machine = Recording::named("quad-node.tree").machine();
    let placements = placed(&machine, 8);
    // Two such hosts, ranks dealt between them in turn.
    let locations: Vec<Location> = (0..16u32)
        .map(|rank| {
            let host = format!("host{}", rank % 2);
            Location { rank: Rank(rank), site: Site::of(host, &machine, &placements[rank as usize / 2]) }
        })
        .collect();
    let order = ring_order(&locations);
    assert_eq!(hops_at_least(&order, &locations, Distance::Network), 2);
    assert_eq!(hops_at_least(&order, &locations, Distance::Package), 8);
    let dealt: Vec<Rank> = (0..16).map(Rank).collect();
    assert_eq!(hops_at_least(&dealt, &locations, Distance::Network), 16);
}

#[test]
fn an_accelerator_and_its_rank_share_a_card_behind_one_switch() {
    // Fails if distances are ignored: the devices are handed to ranks in an order of their own.
    let machine = from_xml_file(&fixture_path("gpu-box.xml")).unwrap();
    let gpus = &machine.parts().gpus;
    let order = [7usize, 0, 3, 4, 2, 1, 6, 5];
    let devices = order.iter().map(|&at| gpus[at].pci).collect();
    let request = Request { devices, ..Request::plain(&machine, 8) };
    let placements = place(&machine, &request).unwrap();
    for (one, at) in placements.iter().zip(order) {
        assert_eq!(one.nics, [format!("ib{at}")], "{}", one.reason());
        assert_eq!(one.node, Some(if at < 4 { 0 } else { 1 }), "{}", one.reason());
        assert_eq!(one.cpus.len(), 4);
        if at == 5 {
            // mlx5_5's port is down, so its neighbours on the same NUMA node stand in.
            assert!(!one.infiniband.contains(&"mlx5_5".to_owned()) && !one.infiniband.is_empty());
        } else {
            assert_eq!(one.infiniband, [format!("mlx5_{at}")], "{}", one.reason());
        }
    }
    assert_eq!(
        placements[1].reason(),
        "cpus 0-3 and memory of NUMA node 0, near accelerator 0000:18:00.0; \
         ib0 behind the same PCI switch as the accelerator; mlx5_0 behind the same PCI switch as the accelerator"
    );
    for (at, one) in placements.iter().enumerate() {
        assert!(placements[..at].iter().all(|other| !other.cpus.meets(&one.cpus)), "I2");
    }
}

#[test]
fn without_accelerators_ranks_share_out_the_cards_of_their_node() {
    let machine = from_xml_file(&fixture_path("gpu-box.xml")).unwrap();
    let two = placed(&machine, 2);
    assert_eq!(two[0].nics, ["ib0", "ib1", "ib2", "ib3"]);
    assert_eq!(two[1].nics, ["ib4", "ib5", "ib6", "ib7"]);
    let eight = placed(&machine, 8);
    for (at, one) in eight.iter().enumerate() {
        assert_eq!(one.nics, [format!("ib{at}")]);
    }
    let sixteen = placed(&machine, 16);
    assert_eq!(sixteen[9].nics, ["ib5"], "eight ranks take turns at four cards");
}

#[cfg(feature = "hwloc")]
mod with_hwloc {
    use super::*;
    use ringway_topology::host::from_synthetic;

    #[test]
    fn synthetic_shapes_keep_the_invariants() {
        for text in [
            "pack:2 numa:2 core:8 pu:2",
            "pack:1 core:4 pu:1",
            "numa:4 core:2 pu:1",
            "pack:2 l3:2 core:3 pu:2",
            "pack:3 numa:1 core:5 pu:1",
            "pu:3",
            "pack:2 [numa] l3:4 [numa] core:2 pu:2",
        ] {
            invariants_hold(&from_synthetic(text).unwrap(), 40);
        }
        let machine = from_synthetic("pack:2 numa:1 core:4 pu:1").unwrap();
        assert_eq!(cpu_lists(&placed(&machine, 2)), ["0-3", "4-7"]);
        assert_eq!(cpu_lists(&placed(&machine, 3)), ["0-1", "2-3", "4-7"]);
    }
}
