//! No step of the ladder of distances is ignored: for each, a machine in which two choices differ by that step alone,
//! and the same machine with the step mutated, where the other choice must be made.

mod recorded;

use recorded::{cpu_lists, cpus};
use ringway_topology::Machine;
use ringway_topology::model::link::{Distance, Part, distance};
use ringway_topology::model::machine::{
    Cache, Core, Gpu, IbPort, InfiniBand, LinkState, NumaNode, Package, Parts, Source,
};
use ringway_topology::model::pci::{PciAddress, PciDevice};
use ringway_topology::model::place::{Placement, Progress, Request, Threads, place};
use ringway_topology::model::reach::{Reach, too_far};

/// Two packages of two NUMA nodes of four cores, an accelerator at node 0 and two cards that hang anywhere.
struct Bench {
    parts: Parts,
}

fn pci(text: &str) -> PciAddress {
    text.parse().unwrap()
}

const GPU: &str = "0000:10:00.0";

impl Bench {
    fn new() -> Bench {
        let mut parts = Parts::bare("bench".to_owned(), Source::Synthetic, cpus("0-15"));
        parts.packages = (0..2)
            .map(|index| Package { index, cpus: cpus(&format!("{}-{}", index * 8, index * 8 + 7)) })
            .collect();
        parts.nodes = (0..4)
            .map(|index| NumaNode {
                index,
                cpus: cpus(&format!("{}-{}", index * 4, index * 4 + 3)),
                memory_bytes: 1 << 30,
            })
            .collect();
        parts.cores = (0..16).map(|cpu: u32| Core::of(cpus(&cpu.to_string()))).collect();
        let mut bench = Bench { parts };
        bench.device(GPU, 0, 0x10, &["0000:10:01.0", "0000:11:00.0", "0000:12:00.0"], 0x0302);
        bench.parts.gpus.push(Gpu { name: "gpu".to_owned(), pci: pci(GPU), node: Some(0) });
        bench
    }

    fn device(&mut self, address: &str, node: u32, root: u8, bridges: &[&str], class: u16) {
        let cpus = self.parts.nodes[node as usize].cpus.clone();
        self.parts.pci.push(PciDevice {
            address: pci(address),
            class,
            vendor: 1,
            device: 1,
            cpus,
            node: Some(node),
            root: (0, root),
            bridges: bridges.iter().map(|bridge| pci(bridge)).collect(),
        });
    }

    /// A card at this address: node, host bridge and bridges.
    fn card(mut self, name: &str, address: &str, node: u32, root: u8, bridges: &[&str]) -> Bench {
        self.device(address, node, root, bridges, 0x0207);
        let ports = vec![IbPort { number: 1, state: LinkState::Up, link: None, rate_gbps: None }];
        let (pci, node) = (Some(pci(address)), Some(node));
        self.parts.infiniband.push(InfiniBand { name: name.to_owned(), pci, node, ports, nics: Vec::new() });
        self
    }

    fn machine(&self) -> Machine {
        Machine::new(self.parts.clone()).unwrap()
    }

    /// The card of a rank that has the accelerator.
    fn card_of_gpu(&self) -> String {
        let machine = self.machine();
        let request = Request { devices: vec![pci(GPU)], ..Request::plain(&machine, 1) };
        place(&machine, &request).unwrap()[0].infiniband.join("+")
    }
}

/// Node, host bridge and bridges of a card at each step from the accelerator, the nearest first.
type Hang = (Distance, &'static str, u32, u8, &'static [&'static str]);
const LADDER: [Hang; 7] = [
    (Distance::Same, "0000:10:00.1", 0, 0x10, &["0000:10:01.0", "0000:11:00.0", "0000:12:00.0"]),
    (Distance::Switch, "0000:20:00.0", 0, 0x10, &["0000:10:01.0", "0000:11:00.0", "0000:12:01.0"]),
    (Distance::Switches, "0000:21:00.0", 0, 0x10, &["0000:10:01.0", "0000:13:00.0", "0000:14:00.0"]),
    (Distance::HostBridge, "0000:22:00.0", 0, 0x10, &["0000:10:02.0"]),
    (Distance::Node, "0000:30:00.0", 0, 0x30, &["0000:30:01.0"]),
    (Distance::Package, "0000:40:00.0", 1, 0x40, &["0000:40:01.0"]),
    (Distance::Machine, "0000:50:00.0", 2, 0x50, &["0000:50:01.0"]),
];

#[test]
fn the_ladder_is_what_it_says() {
    for (step, address, node, root, bridges) in LADDER {
        let machine = Bench::new().card("a", address, node, root, bridges).machine();
        let found = distance(&machine, Part::Device(pci(GPU)), Part::Device(pci(address)));
        assert_eq!(found, Some(step), "{address}");
        let back = distance(&machine, Part::Device(pci(address)), Part::Device(pci(GPU)));
        assert_eq!(back, Some(step), "symmetric");
    }
}

#[test]
fn the_card_follows_every_step_from_the_accelerator() {
    for (at, near) in LADDER.iter().enumerate() {
        for far in &LADDER[at + 1..] {
            let with = |first: &Hang, second: &Hang| {
                let (_, address, node, root, bridges) = *first;
                let bench = Bench::new().card("a", address, node, root, bridges);
                let (_, address, node, root, bridges) = *second;
                bench.card("b", address, node, root, bridges).card_of_gpu()
            };
            // The cards change places, and nothing else does.
            assert_eq!(with(near, far), "a", "{:?} before {:?}", near.0, far.0);
            assert_eq!(with(far, near), "b", "{:?} before {:?}", near.0, far.0);
        }
    }
}

/// Firmware distances from node 0 to the others; the rest is the same.
fn slit(bench: &mut Bench, from_0: [u32; 4]) {
    let mut table = vec![vec![20; 4]; 4];
    for (at, row) in table.iter_mut().enumerate() {
        row[at] = 10;
        row[0] = from_0[at];
    }
    table[0] = from_0.to_vec();
    bench.parts.node_distances = table;
}

#[test]
fn the_firmwares_distance_decides_between_equal_steps() {
    let both =
        || Bench::new().card("a", "0000:50:00.0", 2, 0x50, &[]).card("b", "0000:60:00.0", 3, 0x60, &[]);
    let card = |from_0| {
        let mut bench = both();
        slit(&mut bench, from_0);
        bench.card_of_gpu()
    };
    assert_eq!(card([10, 12, 20, 30]), "a");
    assert_eq!(card([10, 12, 30, 20]), "b");
}

#[test]
fn the_memory_node_follows_the_accelerator() {
    let node = |allowed: &str, from_0: [u32; 4]| {
        let mut bench = Bench::new();
        slit(&mut bench, from_0);
        bench.parts.allowed = cpus(allowed);
        let machine = bench.machine();
        let request = Request { devices: vec![pci(GPU)], ..Request::plain(&machine, 1) };
        place(&machine, &request).unwrap()[0].node
    };
    assert_eq!(node("0-15", [10, 12, 20, 30]), Some(0), "its own");
    assert_eq!(node("4-15", [10, 12, 20, 30]), Some(1), "the other of the package, without its own");
    assert_eq!(node("8-15", [10, 12, 20, 30]), Some(2), "by the firmware's distance, without the package");
    assert_eq!(node("8-15", [10, 12, 30, 20]), Some(3), "by the firmware's distance");
}

#[test]
fn the_progress_thread_goes_beside_the_card() {
    let progress = |card_at: u32, from_0: Option<[u32; 4]>| {
        let mut bench = Bench::new().card("a", "0000:50:00.0", card_at, 0x50, &[]);
        if let Some(from_0) = from_0 {
            slit(&mut bench, from_0);
        }
        // No NUMA node holds all CPUs: the rank alone spans them.
        let machine = bench.machine();
        let request = Request { progress: Progress::Apart, ..Request::plain(&machine, 1) };
        let placed: Vec<Placement> = place(&machine, &request).unwrap();
        assert!(!placed[0].progress.meets(&placed[0].cpus));
        placed[0].progress.to_string()
    };
    assert_eq!([0, 1, 2, 3].map(|node| progress(node, None)), ["3", "7", "11", "15"], "on the card's node");
    // Without its node's CPUs, on the other of its package; then by the firmware.
    let without = |allowed: &str, from_0| {
        let mut bench = Bench::new().card("a", "0000:50:00.0", 0, 0x50, &[]);
        slit(&mut bench, from_0);
        bench.parts.allowed = cpus(allowed);
        let machine = bench.machine();
        let request = Request { progress: Progress::Apart, ..Request::plain(&machine, 1) };
        place(&machine, &request).unwrap()[0].progress.to_string()
    };
    assert_eq!(without("4-15", [10, 12, 20, 30]), "7");
    assert_eq!(without("8-15", [10, 12, 20, 30]), "11");
    assert_eq!(without("8-15", [10, 12, 30, 20]), "15");
}

#[test]
fn shares_follow_cores_caches_nodes_and_packages() {
    // Sixteen CPUs with nothing known of them are cut in order.
    let bare = || Parts::bare("bare".to_owned(), Source::Synthetic, cpus("0-15"));
    let lists = |parts: Parts, ranks: u32| {
        let machine = Machine::new(parts).unwrap();
        let request = Request { threads: Threads::All, ..Request::plain(&machine, ranks) };
        cpu_lists(&place(&machine, &request).unwrap())
    };
    let in_order = lists(bare(), 2);
    assert_eq!(in_order, ["0-7", "8-15"]);
    // Whatever says that the odd and the even belong together changes that.
    let halves = [cpus("0,2,4,6,8,10,12,14"), cpus("1,3,5,7,9,11,13,15")];
    let odd_and_even = ["0,2,4,6,8,10,12,14", "1,3,5,7,9,11,13,15"];
    let mut packages = bare();
    packages.packages =
        (0..).zip(&halves).map(|(index, cpus)| Package { index, cpus: cpus.clone() }).collect();
    assert_eq!(lists(packages, 2), odd_and_even, "packages");
    let mut nodes = bare();
    nodes.nodes = (0..)
        .zip(&halves)
        .map(|(index, cpus)| NumaNode { index, cpus: cpus.clone(), memory_bytes: 0 })
        .collect();
    assert_eq!(lists(nodes, 2), odd_and_even, "NUMA nodes");
    let mut caches = bare();
    caches.caches = halves.iter().map(|cpus| Cache { level: 3, size_bytes: 0, cpus: cpus.clone() }).collect();
    assert_eq!(lists(caches, 2), odd_and_even, "caches");
    let mut cores = bare();
    cores.cores = (0..8u32).map(|cpu| Core::of(cpus(&format!("{cpu},{}", cpu + 8)))).collect();
    assert_eq!(lists(cores, 2), ["0-3,8-11", "4-7,12-15"], "cores");
}

/// How far cards may be from an accelerator, on a machine with one behind the switch of each.
#[test]
fn each_step_of_reach_admits_the_cards_that_it_says() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/shapes/dgx-h100.xml");
    let machine = ringway_topology::host::from_xml_file(std::path::Path::new(file)).unwrap();
    let gpu = |at: usize| machine.parts().gpus[at].pci;
    let far = |at, card: &str, reach| too_far(&machine, gpu(at), &[card.to_owned()], reach);
    let fits = |at, card: &str| {
        Reach::WORDS.into_iter().find(|word| far(at, card, Reach::of(word).unwrap()).is_none())
    };
    // Its own; another of its package; one of the other package; one that is not there.
    let admitted = ["mlx5_0", "mlx5_3", "mlx5_6", "rxe0"].map(|card| fits(0, card).unwrap());
    assert_eq!(admitted, ["PIX", "PHB", "SYS", "SYS"]);
    assert_eq!(["mlx5_6", "mlx5_0"].map(|card| fits(4, card).unwrap()), ["PIX", "SYS"]);
    let both = ["mlx5_0".to_owned(), "mlx5_6".to_owned()];
    let one = too_far(&machine, gpu(0), &both, Reach::Switches).unwrap();
    assert_eq!(
        (one.card.as_str(), one.at),
        ("mlx5_6", Some(Distance::Machine)),
        "one rail too far is too many"
    );
    assert_eq!(too_far(&machine, gpu(0), &[], Reach::Switch), None);
}
