//! Where this rank runs, as the others are told: machine, place in it, and the switches above it.

use super::pinning::Binding;
use crate::launch::{FABRIC_LIMIT_BYTES, Fabric, FabricError, Launch};
use crate::settings::{Settings, read_text};
use ringway_topology::HostId;
use ringway_topology::model::order::Site;

/// Why the file of switches is of no use.
#[derive(Debug, thiserror::Error)]
pub enum TopologyFileError {
    /// It cannot be read.
    #[error("RINGWAY_TOPOLOGY_FILE={path}: {source}; all ranks need it")]
    Read {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// It says what cannot be.
    #[error("RINGWAY_TOPOLOGY_FILE={path}: {source}")]
    Content {
        /// The file.
        path: String,
        /// What is wrong.
        source: FabricError,
    },
}

/// This rank's site. Two processes are on one machine if they have one kernel.
///
/// # Errors
/// [`TopologyFileError`].
pub(super) fn site(
    binding: &Binding,
    host: &HostId,
    launch: &Launch,
    settings: &Settings,
) -> Result<Site, TopologyFileError> {
    let machine = if host.boot().is_empty() { host.name() } else { host.boot() };
    let switches = match &settings.topology_file {
        Some(path) => above(path, host.name())?,
        None => launch.switches.clone(),
    };
    Ok(Site { machine: machine.to_owned(), switches, ..binding.site.clone() })
}

fn above(path: &str, host: &str) -> Result<Vec<String>, TopologyFileError> {
    let text = read_text(path, FABRIC_LIMIT_BYTES)
        .map_err(|source| TopologyFileError::Read { path: path.to_owned(), source })?;
    let found = Fabric::parse(&text).and_then(|fabric| fabric.above(host));
    found.map_err(|source| TopologyFileError::Content { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{Explicit, Here, Vars};

    #[test]
    fn the_file_goes_before_what_slurm_tells() {
        let file = std::env::temp_dir().join(format!("ringway-topology-{}.conf", std::process::id()));
        std::fs::write(&file, "SwitchName=rack1 Nodes=node[1-2]\nSwitchName=spine Switches=rack1\n").unwrap();
        let file = file.to_str().unwrap().to_owned();
        let slurm = [("SLURM_TOPOLOGY_ADDR", "pod.node1"), ("SLURM_TOPOLOGY_ADDR_PATTERN", "switch.node")];
        let vars: Vars =
            slurm.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let found = |pairs: &[(&str, &str)]| {
            let settings = Settings::from_pairs(pairs.iter().copied()).unwrap();
            let here = Here { host: "node1".to_owned(), ..Here::default() };
            let launch = Launch::discover(&Explicit::default(), &settings, &vars, &here).unwrap();
            site(&Binding::default(), &HostId::new("node1", "b").unwrap(), &launch, &settings)
        };
        let by_slurm = found(&[]).unwrap();
        assert_eq!((by_slurm.machine.as_str(), by_slurm.switches.join("/")), ("b", "pod".to_owned()));
        assert_eq!(found(&[("RINGWAY_TOPOLOGY_FILE", &file)]).unwrap().switches, ["spine", "rack1"]);
        std::fs::write(&file, "Nodes=x").unwrap();
        let told = found(&[("RINGWAY_TOPOLOGY_FILE", &file)]).unwrap_err().to_string();
        assert!(told.contains(&file) && told.contains("line 1"), "{told}");
        std::fs::remove_file(&file).unwrap();
        let told = found(&[("RINGWAY_TOPOLOGY_FILE", &file)]).unwrap_err().to_string();
        assert!(told.contains("all ranks need it"), "{told}");
    }
}
