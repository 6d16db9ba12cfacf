//! The network's switches above a host, from Slurm's variables or a file in the form of its `topology.conf`.
//!
//! The file, which `RINGWAY_TOPOLOGY_FILE` names, is the same on all hosts:
//!
//! ```text
//! # Hosts below each rack's switch, racks below the spine.
//! SwitchName=rack1 Nodes=node[01-16]
//! SwitchName=rack2 Nodes=node[17-32]
//! SwitchName=spine Switches=rack[1-2]
//! ```
//!
//! `BlockName` is read as `SwitchName`, other fields are passed over. See Slurm's topology.conf(5) and srun(1),
//! `SLURM_TOPOLOGY_ADDR`.

use std::collections::HashMap;

use super::hostlist::{HostlistError, expand};
use super::vars::Vars;
use ringway_topology::model::order::{SWITCH_LIMIT, is_name};

/// The longest file that is read, in bytes.
pub const FABRIC_LIMIT_BYTES: u64 = 16 << 20;
/// Of a name that is none, so much is shown.
const NAME_SHOWN_CHARS: usize = 64;

/// Why a file of switches is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// A line names no switch.
    #[error(
        "line {line} names no switch: write SwitchName=rack1 Nodes=node[01-16], or SwitchName=spine Switches=rack[1-2]"
    )]
    Line {
        /// Counted from 1.
        line: usize,
    },
    /// A switch has a name that others could not read.
    #[error("line {line}: {name:?} is no name of a switch: take up to 255 of A-Z, a-z, 0-9 and ._-:@")]
    Name {
        /// Counted from 1.
        line: usize,
        /// The name, cut to a printable length.
        name: String,
    },
    /// A list of names cannot be read.
    #[error("line {line}: {why}")]
    List {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        why: HostlistError,
    },
    /// A host or switch hangs at two switches.
    #[error("line {line}: {name} hangs at {other} already: name the one that traffic takes")]
    Twice {
        /// Counted from 1.
        line: usize,
        /// The host or switch.
        name: String,
        /// The switch that it hangs at by another line.
        other: String,
    },
    /// Switches hang above each other in a circle, or too many of them.
    #[error("{name} has over {SWITCH_LIMIT} switches above it: does one hang below itself?")]
    Deep {
        /// The host.
        name: String,
    },
}

/// The switches of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fabric {
    /// By host: its switch.
    hosts: HashMap<String, String>,
    /// By switch: the switch above it.
    switches: HashMap<String, String>,
}

impl Fabric {
    /// Reads a file's text.
    ///
    /// # Errors
    /// [`FabricError`], with the line.
    pub fn parse(text: &str) -> Result<Fabric, FabricError> {
        let mut fabric = Fabric::default();
        for (line, content) in (1..).zip(text.lines()) {
            let content = content.split('#').next().unwrap_or_default().trim();
            if content.is_empty() {
                continue;
            }
            let mut name = None;
            let (mut hosts, mut below) = (Vec::new(), Vec::new());
            for (key, value) in content.split_whitespace().filter_map(|field| field.split_once('=')) {
                let list = || expand(value).map_err(|why| FabricError::List { line, why });
                match key.to_ascii_lowercase().as_str() {
                    "switchname" | "blockname" => name = Some(value.to_owned()),
                    "nodes" => hosts = list()?,
                    "switches" => below = list()?,
                    _ => {}
                }
            }
            let name = name.filter(|name| !name.is_empty()).ok_or(FabricError::Line { line })?;
            if !is_name(&name) {
                return Err(FabricError::Name { line, name: name.chars().take(NAME_SHOWN_CHARS).collect() });
            }
            for (map, names) in [(&mut fabric.hosts, hosts), (&mut fabric.switches, below)] {
                for one in names {
                    if let Some(other) = map.insert(one.clone(), name.clone()).filter(|other| *other != name)
                    {
                        return Err(FabricError::Twice { line, name: one, other });
                    }
                }
            }
        }
        Ok(fabric)
    }

    /// The switches above a host, the outermost first; none for a host that the file does not name. A host may be named
    /// with or without its domain.
    ///
    /// # Errors
    /// [`FabricError::Deep`].
    pub fn above(&self, host: &str) -> Result<Vec<String>, FabricError> {
        let mut path = Vec::new();
        let mut next = self.hosts.get(host).or_else(|| self.hosts.get(short(host)));
        while let Some(switch) = next {
            if path.len() == SWITCH_LIMIT {
                return Err(FabricError::Deep { name: host.to_owned() });
            }
            path.push(switch.clone());
            next = self.switches.get(switch);
        }
        path.reverse();
        Ok(path)
    }
}

fn short(host: &str) -> &str {
    host.split('.').next().unwrap_or(host)
}

/// The switches above this host as Slurm's own variables give them, the outermost first. Empty without such variables, and
/// where they are about another host: a launcher that was started by srun hands them on to all hosts.
pub(super) fn from_slurm(vars: &Vars, host: &str) -> Vec<String> {
    let (Some(address), Some(pattern)) =
        (vars.get("SLURM_TOPOLOGY_ADDR"), vars.get("SLURM_TOPOLOGY_ADDR_PATTERN"))
    else {
        return Vec::new();
    };
    let kinds: Vec<&str> = pattern.split('.').collect();
    let names: Vec<&str> = address.splitn(kinds.len(), '.').collect();
    let (Some((node, above)), Some((&"node", kinds))) = (names.split_last(), kinds.split_last()) else {
        return Vec::new();
    };
    let ours = short(node) == short(host);
    let is_switch =
        kinds.len() == above.len() && kinds.iter().all(|kind| matches!(*kind, "switch" | "block"));
    if !ours || !is_switch || above.len() > SWITCH_LIMIT || !above.iter().all(|name| is_name(name)) {
        return Vec::new();
    }
    above.iter().map(|&name| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RACKS: &str = "# two racks\nSwitchName=rack1 Nodes=node[01-02],login\nswitchname=rack2 nodes=node[03-04] LinkSpeed=100\n\n\
                         SwitchName=spine Switches=rack[1-2] # all\n";

    #[test]
    fn switches_are_found_above_a_host() {
        let fabric = Fabric::parse(RACKS).unwrap();
        assert_eq!(fabric.above("node01").unwrap(), ["spine", "rack1"]);
        assert_eq!(fabric.above("node04.cluster.org").unwrap(), ["spine", "rack2"]);
        assert_eq!(fabric.above("node05").unwrap(), Vec::<String>::new());
        let blocks = Fabric::parse("BlockName=b1 Nodes=a[1-2]").unwrap();
        assert_eq!(blocks.above("a2").unwrap(), ["b1"]);
        assert_eq!(Fabric::parse("").unwrap(), Fabric::default());
    }

    #[test]
    fn what_is_no_network_is_refused_with_its_line() {
        let told = |text: &str| Fabric::parse(text).unwrap_err().to_string();
        assert!(told("\nNodes=a").starts_with("line 2 names no switch"));
        assert!(told("SwitchName=rack/1 Nodes=a").starts_with("line 1: \"rack/1\" is no name of a switch"));
        assert!(told(&format!("SwitchName={} Nodes=a", "r".repeat(1 << 16))).len() < 200);
        assert!(told("SwitchName=a Nodes=b[2-1]").starts_with("line 1:"));
        assert!(told("SwitchName=a Nodes=x\nSwitchName=b Nodes=x").contains("x hangs at a already"));
        let circle = Fabric::parse("SwitchName=a Nodes=x Switches=b\nSwitchName=b Switches=a").unwrap();
        assert!(circle.above("x").unwrap_err().to_string().contains("below itself"));
    }

    #[test]
    fn slurms_variables_are_read_for_this_host_alone() {
        let found = |address: &str, pattern: &str, host: &str| {
            let pairs = [("SLURM_TOPOLOGY_ADDR", address), ("SLURM_TOPOLOGY_ADDR_PATTERN", pattern)];
            let vars: Vars =
                pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            from_slurm(&vars, host)
        };
        assert_eq!(
            found("spine.rack7.node12", "switch.switch.node", "node12.cluster.org"),
            ["spine", "rack7"]
        );
        assert_eq!(found("b1.node12", "block.node", "node12"), ["b1"]);
        for (address, pattern, host) in [
            ("spine.rack7.node12", "switch.switch.node", "node13"),
            ("node12", "node", "node12"),
            ("rack7.node12", "switch.switch.node", "node12"),
            ("rack7.node12", "switch.switch", "node12"),
            (".node12", "switch.node", "node12"),
            ("x.node12", "pod.node", "node12"),
        ] {
            assert!(found(address, pattern, host).is_empty(), "{address} {pattern} {host}");
        }
    }
}
