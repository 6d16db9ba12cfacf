//! Ranks on the machines of `shapes/`: where they go, that everything promised about it holds, and that each machine is
//! the same when it was written out and read again.

mod recorded;

use std::path::{Path, PathBuf};

use recorded::{Recording, cpu_lists, cpus};
use ringway_topology::Machine;
use ringway_topology::host::{from_xml, from_xml_file};
use ringway_topology::model::cpuset::CpuSet;
use ringway_topology::model::export::to_xml;
use ringway_topology::model::machine::Source;
use ringway_topology::model::place::{PROGRESS_CORE_FROM, Placement, Progress, Request, Threads, place};
use ringway_topology::model::plan::Plan;

const SHAPES: [&str; 13] = [
    "ac922",
    "altra",
    "cloud-8gpu",
    "cloud-vm",
    "container",
    "dgx-a100",
    "dgx-h100",
    "dual-xeon",
    "epyc-nps4",
    "grace-hopper",
    "laptop",
    "mi250x",
    "quad-xeon",
];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("shapes").join(format!("{name}.xml"))
}

fn shape(name: &str) -> Machine {
    from_xml_file(&path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Ranks with an accelerator each, and progress threads apart.
fn with_devices(machine: &Machine, ranks: u32) -> Vec<Placement> {
    let devices = machine.parts().gpus.iter().take(ranks as usize).map(|gpu| gpu.pci).collect();
    let request = Request { devices, progress: Progress::Apart, ..Request::plain(machine, ranks) };
    place(machine, &request).unwrap()
}

fn apart(machine: &Machine, ranks: u32, threads: Threads) -> Vec<Placement> {
    let request = Request { threads, progress: Progress::Apart, ..Request::plain(machine, ranks) };
    place(machine, &request).unwrap()
}

fn networks(placements: &[Placement]) -> Vec<String> {
    placements.iter().map(|one| format!("{} {}", one.infiniband.join("+"), one.nics.join("+"))).collect()
}

fn nodes(placements: &[Placement]) -> Vec<Option<u32>> {
    placements.iter().map(|one| one.node).collect()
}

fn progress(placements: &[Placement]) -> Vec<String> {
    placements.iter().map(|one| one.progress.to_string()).collect()
}

#[test]
fn the_list_is_that_of_the_files() {
    let files = std::fs::read_dir(path("x").parent().unwrap()).unwrap();
    let mut names: Vec<String> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".xml").map(str::to_owned))
        .collect();
    names.sort();
    assert_eq!(names, SHAPES);
}

#[test]
fn every_machine_is_the_same_when_it_is_written_and_read_again() {
    let mut machines: Vec<Machine> = SHAPES.iter().map(|name| shape(name)).collect();
    for name in ["quad-node.tree", "arm-bond.tree", "offline-cpus.tree", "container.tree"] {
        machines.push(Recording::named(name).machine());
    }
    for machine in machines {
        let name = machine.parts().name.clone();
        let again = from_xml(&to_xml(&machine)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut expected = machine.parts().clone();
        expected.source = Source::Xml;
        let mut found = again.parts().clone();
        // The order of caches, cores and devices says nothing.
        for parts in [&mut expected, &mut found] {
            parts.caches.sort_by_key(|cache| (cache.level, cache.cpus.first()));
            parts.cores.sort_by_key(|core| core.cpus.first());
            parts.nodes.sort_by_key(|node| node.index);
            parts.pci.sort_by_key(|device| device.address);
            parts.nics.sort_by(|a, b| a.name.cmp(&b.name));
            parts.infiniband.sort_by(|a, b| a.name.cmp(&b.name));
        }
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn what_is_promised_holds_on_every_machine() {
    for name in SHAPES {
        let machine = shape(name);
        let allowed = &machine.parts().allowed;
        for threads in [Threads::All, Threads::OnePerCore] {
            for ranks in [1, 2, 3, 4, 5, 8, 16, 40] {
                let placements = apart(&machine, ranks, threads);
                let context = || format!("{name}, {ranks} ranks, {threads:?}: {:?}", cpu_lists(&placements));
                for (at, one) in placements.iter().enumerate() {
                    assert!(!one.cpus.is_empty() && one.cpus.inside(allowed), "I1: {}", context());
                    assert!(!one.progress.is_empty() && one.progress.inside(allowed), "I6: {}", context());
                    let together = one.progress == one.cpus;
                    assert!(together || !one.progress.meets(&one.cpus), "I6: {}", context());
                    if ranks as usize > allowed.len() {
                        continue;
                    }
                    for other in &placements[..at] {
                        assert!(!one.cpus.meets(&other.cpus), "I2: {}", context());
                        assert!(!one.progress.meets(&other.cpus), "I6: {}", context());
                        assert!(!one.progress.meets(&other.progress), "I6: {}", context());
                        assert!(!one.cpus.meets(&other.progress), "I6: {}", context());
                    }
                }
                assert_eq!(apart(&machine, ranks, threads), placements, "I5");
            }
        }
    }
}

#[test]
fn one_thread_per_core_is_one_and_shared_progress_is_shared() {
    for name in SHAPES {
        let machine = shape(name);
        for one in apart(&machine, 2, Threads::OnePerCore) {
            for core in &machine.parts().cores {
                assert!(one.cpus.and(&core.cpus).len() <= 1, "{name}: {}", one.cpus);
            }
        }
        let request = Request::plain(&machine, 2);
        assert!(place(&machine, &request).unwrap().iter().all(|one| one.progress == one.cpus), "{name}");
    }
}

#[test]
fn dgx_h100() {
    let machine = shape("dgx-h100");
    let eight = with_devices(&machine, 8);
    let expected = [
        "mlx5_0 ibp25s0",
        "mlx5_3 ibp41s0",
        "mlx5_4 ibp57s0",
        "mlx5_5 ibp73s0",
        "mlx5_6 ibp153s0",
        "mlx5_9 ibp169s0",
        "mlx5_10 ibp185s0",
        "mlx5_11 ibp201s0",
    ];
    assert_eq!(networks(&eight), expected, "its own card each, the storage cards nobody's");
    assert_eq!(nodes(&eight), [0, 0, 0, 0, 1, 1, 1, 1].map(Some));
    assert_eq!(cpu_lists(&eight)[..2], ["0-12,112-124", "14-26,126-138"]);
    assert_eq!(progress(&eight)[..2], ["13,125", "27,139"]);
    assert_eq!(
        eight[0].reasons,
        [
            "cpus 0-12,112-124 and memory of NUMA node 0, near accelerator 0000:18:00.0",
            "ibp25s0 behind the same PCI switch as the accelerator",
            "mlx5_0 behind the same PCI switch as the accelerator",
            "progress thread on 13,125, a core of its own (mlx5_0 on the same NUMA node)",
        ]
    );
}

#[test]
fn dgx_a100() {
    let eight = with_devices(&shape("dgx-a100"), 8);
    let cards: Vec<String> = eight.iter().map(|one| one.infiniband.join("+")).collect();
    assert_eq!(cards, ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9"]);
    assert_eq!(
        nodes(&eight),
        [3, 3, 1, 1, 7, 7, 5, 5].map(Some),
        "accelerators are not in the order of nodes"
    );
    assert!(eight.iter().all(|one| one.cpus.len() == 14 && one.progress.len() == 2));
}

#[test]
fn two_ranks_share_a_card_where_there_are_half_as_many() {
    let four_cards = with_devices(&shape("cloud-8gpu"), 8);
    let cards: Vec<&str> = four_cards.iter().map(|one| one.nics[0].as_str()).collect();
    assert_eq!(cards, ["ens32", "ens32", "ens33", "ens33", "ens34", "ens34", "ens35", "ens35"]);
    let mi250x = with_devices(&shape("mi250x"), 8);
    let cards: Vec<&str> = mi250x.iter().map(|one| one.nics[0].as_str()).collect();
    assert_eq!(cards, ["hsn0", "hsn0", "hsn1", "hsn1", "hsn2", "hsn2", "hsn3", "hsn3"]);
    assert!(mi250x[0].reason().contains("hsn0 behind the same PCI switch"));
    assert!(mi250x[1].reason().contains("hsn0 on the same host bridge"));
    assert_eq!(nodes(&mi250x), [3, 3, 1, 1, 0, 0, 2, 2].map(Some));
    let ac922 = with_devices(&shape("ac922"), 6);
    assert_eq!(nodes(&ac922), [0, 0, 0, 8, 8, 8].map(Some), "nodes are numbered as the system numbers them");
    let cards: Vec<&str> = ac922.iter().map(|one| one.infiniband[0].as_str()).collect();
    assert_eq!(cards, ["mlx5_0", "mlx5_0", "mlx5_0", "mlx5_1", "mlx5_1", "mlx5_1"]);
}

#[test]
fn one_card_serves_all_and_management_none() {
    let machine = shape("dual-xeon");
    let four = apart(&machine, 4, Threads::All);
    assert!(four.iter().all(|one| one.nics == ["ens5f0np0"] && one.infiniband == ["mlx5_0"]));
    assert_eq!(nodes(&four), [0, 0, 1, 1].map(Some), "memory before the card");
    assert!(four[0].reason().contains("mlx5_0 elsewhere in the machine"), "{}", four[0].reason());
    assert_eq!(four[2].cpus, cpus("1,3,5,7,9,11,13,15,17,41,43,45,47,49,51,53,55,57"));
    let nps4 = apart(&shape("epyc-nps4"), 4, Threads::All);
    assert_eq!(nodes(&nps4), [0, 1, 2, 3].map(Some));
    assert!(nps4[1].reason().contains("mlx5_0 in the same package, on another NUMA node"));
    assert!(nps4[2].reason().contains("mlx5_0 on the same NUMA node"));
    assert_eq!(apart(&shape("altra"), 2, Threads::All)[1].nics, ["bond0"], "the bond, not its ports");
}

#[test]
fn the_firmware_tells_which_package_is_nearer() {
    let four = apart(&shape("quad-xeon"), 4, Threads::All);
    let cards: Vec<&str> = four.iter().map(|one| one.infiniband[0].as_str()).collect();
    assert_eq!(cards, ["mlx5_0", "mlx5_0", "mlx5_1", "mlx5_1"], "the ring of packages has no diagonal");
}

#[test]
fn grace_hopper_takes_memory_of_the_processor() {
    let one = &with_devices(&shape("grace-hopper"), 1)[0];
    assert_eq!((one.node, one.infiniband.join(" ")), (Some(0), "mlx5_0".to_owned()));
    assert_eq!((one.cpus.to_string(), one.progress.to_string()), ("0-70".to_owned(), "71".to_owned()));
}

#[test]
fn small_machines() {
    let vm = shape("cloud-vm");
    let four = apart(&vm, 4, Threads::All);
    assert_eq!(cpu_lists(&four), ["0-1", "2-3", "4-5", "6-7"]);
    assert_eq!(progress(&four), cpu_lists(&four), "a core is too little to give one away");
    assert!(four[0].reason().contains("too few to leave it a core"), "{}", four[0].reason());
    let siblings = apart(&vm, 4, Threads::OnePerCore);
    assert_eq!(cpu_lists(&siblings), ["0", "2", "4", "6"]);
    assert_eq!(progress(&siblings), ["1", "3", "5", "7"], "the threads left over");
    assert_eq!(progress(&apart(&vm, 1, Threads::All)), ["6-7"], "{PROGRESS_CORE_FROM} cores are enough");
    assert!(four.iter().all(|one| one.nics == ["ens5"]));

    let container = apart(&shape("container"), 3, Threads::All);
    assert_eq!(cpu_lists(&container), ["5", "11", "30"]);
    assert!(container.iter().all(|one| one.nics == ["eth0"] && one.progress == one.cpus));
    assert_eq!(cpu_lists(&apart(&shape("container"), 4, Threads::All)), vec!["5,11,30"; 4]);
}

#[test]
fn slow_cores_are_for_progress_threads() {
    let laptop = shape("laptop");
    assert_eq!(laptop.parts().cores.iter().filter(|core| core.slow).count(), 8);
    let slow = cpus("12-19");
    for ranks in 2..=6 {
        let placements = apart(&laptop, ranks, Threads::All);
        for one in &placements {
            assert!(
                !one.cpus.meets(&slow) && one.progress.inside(&slow) && one.progress.len() == 1,
                "I7: {one:?}"
            );
        }
    }
    let eight = apart(&laptop, 8, Threads::All);
    assert!(eight.iter().any(|one| one.cpus.meets(&slow)), "I7: the quick ones do not go round");
    let alone = &apart(&laptop, 1, Threads::All)[0];
    assert_eq!(alone.cpus.or(&alone.progress), cpus("0-19"), "I7: a rank alone waits for nobody");
}

#[test]
fn a_cpuset_narrows_each_machine() {
    for name in SHAPES {
        let machine = shape(name);
        let every_third = CpuSet::of(machine.parts().cpus.iter().step_by(3)).unwrap();
        let machine = machine.with_allowed(every_third.clone()).unwrap();
        for ranks in [1, 2, 5] {
            for one in apart(&machine, ranks, Threads::All) {
                assert!(one.cpus.inside(&every_third) && one.progress.inside(&every_third), "{name}");
            }
        }
    }
}

#[test]
fn plans_are_told_and_drawn() {
    for name in SHAPES {
        let machine = shape(name);
        let placements = match machine.parts().gpus.len() as u32 {
            0 => apart(&machine, 2, Threads::All),
            gpus => with_devices(&machine, gpus),
        };
        let plan = Plan { machine: &machine, placements: &placements };
        let (text, svg) = (plan.to_string(), plan.to_svg());
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"), "{name}");
        for one in &placements {
            assert!(one.reasons.iter().all(|reason| text.contains(reason)), "{name}: {text}");
            assert!(svg.contains(&format!("rank {}", one.rank)), "{name}");
        }
        for gpu in &machine.parts().gpus {
            assert!(text.contains(&gpu.name) && svg.contains(&gpu.name), "{name}: {}", gpu.name);
        }
        for device in &machine.parts().infiniband {
            assert!(svg.contains(&device.name), "{name}: {}", device.name);
        }
    }
}
