//! A machine with ranks placed on it, as text for people.

use std::fmt;

use super::machine::Machine;
use super::pci::PciAddress;
use super::place::Placement;

/// A machine, and where ranks go on it.
///
/// Its text is the machine's tree, a line per rank, and the reasons per rank; [`Plan::to_svg`] draws it.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'p> {
    /// The machine.
    pub machine: &'p Machine,
    /// Its ranks, as [`place`](super::place::place) placed them on it.
    pub placements: &'p [Placement],
}

/// What stands in a place of the table where there is nothing.
const NOTHING: &str = "-";

impl Plan<'_> {
    /// The name of an accelerator: the driver's where it is known, else its address.
    pub(super) fn accelerator(&self, address: PciAddress) -> String {
        let known = self.machine.parts().gpus.iter().find(|gpu| gpu.pci == address);
        known.map_or_else(|| address.to_string(), |gpu| gpu.name.clone())
    }

    /// Head and one row per rank.
    pub(super) fn table(&self) -> Vec<[String; 7]> {
        let head = ["rank", "CPUs", "progress", "memory", "accelerator", "RDMA", "interfaces"];
        let rows = self.placements.iter().map(|one| {
            let list = |names: &[String]| if names.is_empty() { NOTHING.into() } else { names.join(" ") };
            [
                one.rank.to_string(),
                one.cpus.to_string(),
                if one.progress == one.cpus { "same".into() } else { one.progress.to_string() },
                one.node.map_or(NOTHING.into(), |node| format!("node {node}")),
                one.device.map_or(NOTHING.into(), |device| self.accelerator(device)),
                list(&one.infiniband),
                list(&one.nics),
            ]
        });
        std::iter::once(head.map(str::to_owned)).chain(rows).collect()
    }
}

impl fmt::Display for Plan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.machine)?;
        if self.placements.is_empty() {
            return Ok(());
        }
        let table = self.table();
        let width = |column: usize| table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..table[0].len()).map(width).collect();
        for row in &table {
            let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        writeln!(f)?;
        for one in self.placements {
            writeln!(f, "rank {}", one.rank)?;
            for reason in &one.reasons {
                writeln!(f, "  {reason}")?;
            }
        }
        Ok(())
    }
}
