//! Processors, memory nodes, control groups, devices, and where ranks would go.

use super::report::Section;
use super::size;
use ringway_control::runtime::pinning::request;
use ringway_control::settings::Settings;
use ringway_topology::host::{self, cgroup, pin};
use ringway_topology::model::machine::Machine;
use ringway_topology::model::place::place;

/// How many ranks the placement is shown for at most, where nobody asks for a number.
const RANKS_SHOWN: u32 = 8;

/// Processors and limits, devices, and the placement of `ranks` ranks.
pub(super) fn sections(ranks: Option<u32>, settings: &Settings) -> Vec<Section> {
    let mut cores = Section::new("Processors");
    limits(&mut cores);
    match host::discover() {
        Ok(machine) => {
            processors(&mut cores, &machine);
            let placed = placement(&machine, ranks, settings);
            vec![cores, devices(&machine), placed]
        }
        Err(error) => {
            cores.problem(error.to_string(), "ranks can still run with RINGWAY_PIN=off");
            vec![cores]
        }
    }
}

fn processors(section: &mut Section, machine: &Machine) {
    let parts = machine.parts();
    section.noted("CPUs", parts.cpus.to_string(), format!("read by {}", parts.source));
    section.fact("usable by this process", parts.allowed.to_string());
    section.fact("cores", parts.cores.len().to_string());
    for node in &parts.nodes {
        let value = format!("CPUs {}, {}", node.cpus, size(node.memory_bytes));
        section.fact(format!("memory node {}", node.index), value);
    }
}

fn limits(section: &mut Section) {
    match (cgroup::limits(), pin::parallelism()) {
        (Ok(limits), Ok(parallelism)) => {
            let quota = limits.cpu_quota.map_or("no limit".to_owned(), |cpus| format!("{cpus:.2} CPUs"));
            section.fact("control group's CPU time", quota);
            section.fact("control group's memory", limits.memory_bytes.map_or("no limit".to_owned(), size));
            section.noted(
                "ranks that can run at once",
                parallelism.effective.to_string(),
                "with more on this host, waiting ranks sleep at once instead of polling",
            );
            if parallelism.effective < parallelism.affinity {
                section.advice(
                    format!(
                        "the control group grants the time of {} of the {} CPUs in the affinity mask",
                        parallelism.effective, parallelism.affinity
                    ),
                    "start at most as many ranks here, or raise the container's CPU limit",
                );
            }
        }
        (Err(error), _) => section.advice(error.to_string(), "limits of control groups are not honoured"),
        (_, Err(error)) => section.advice(error.to_string(), "ranks are placed on all CPUs"),
    }
}

fn devices(machine: &Machine) -> Section {
    let mut section = Section::new("Devices");
    let parts = machine.parts();
    let near = |node: Option<u32>| node.map_or(String::new(), |node| format!(", near memory node {node}"));
    for gpu in &parts.gpus {
        section.fact(format!("accelerator {}", gpu.name), format!("PCI {}{}", gpu.pci, near(gpu.node)));
    }
    if parts.gpus.is_empty() {
        section.fact("accelerators", "none on PCI");
    }
    section
}

fn placement(machine: &Machine, ranks: Option<u32>, settings: &Settings) -> Section {
    let mut section = Section::new("Where ranks would go");
    let parts = machine.parts();
    let cores = parts.cores.iter().filter(|core| !core.cpus.and(&parts.allowed).is_empty()).count();
    section.noted(
        "bound by ringway run",
        format!("up to {cores} ranks"),
        "RINGWAY_PIN=auto, the default: while each has a core; spread: always; off: never",
    );
    let usable = u32::try_from(machine.parts().allowed.len()).unwrap_or(u32::MAX);
    let ranks = ranks.unwrap_or_else(|| usable.clamp(1, RANKS_SHOWN));
    match place(machine, &request(machine, ranks, settings)) {
        Ok(placements) => {
            for placement in placements {
                let node = placement.node.map_or(String::new(), |node| format!(", memory node {node}"));
                let nics =
                    if placement.nics.is_empty() { "none".to_owned() } else { placement.nics.join(", ") };
                section.noted(
                    format!("local rank {}", placement.rank.0),
                    format!("CPUs {}{node}, nearest interfaces: {nics}", placement.cpus),
                    placement.reason(),
                );
            }
        }
        Err(error) => {
            section.problem(error.to_string(), "RINGWAY_PIN=off leaves ranks where the system puts them")
        }
    }
    section
}
