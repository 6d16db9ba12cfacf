//! Where this rank runs, as the others are told: machine, place in it, and the switches above it.

use super::pinning::Binding;
use crate::launch::{Fabric, FabricError, Launch};
use crate::settings::Settings;
use ringway_topology::HostId;
use ringway_topology::model::order::Site;
use std::io::Read;

/// The longest file of switches that is read, in bytes.
pub const TOPOLOGY_LIMIT_BYTES: u64 = 16 << 20;

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
    /// It is too long.
    #[error("RINGWAY_TOPOLOGY_FILE={path}: longer than {TOPOLOGY_LIMIT_BYTES} bytes")]
    Long {
        /// The file.
        path: String,
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
    let read = || -> std::io::Result<String> {
        let mut text = String::new();
        std::fs::File::open(path)?.take(TOPOLOGY_LIMIT_BYTES + 1).read_to_string(&mut text)?;
        Ok(text)
    };
    let path = || path.to_owned();
    let text = read().map_err(|source| TopologyFileError::Read { path: path(), source })?;
    if text.len() as u64 > TOPOLOGY_LIMIT_BYTES {
        return Err(TopologyFileError::Long { path: path() });
    }
    let found = Fabric::parse(&text).and_then(|fabric| fabric.above(host));
    found.map_err(|source| TopologyFileError::Content { path: path(), source })
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
