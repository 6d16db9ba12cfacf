//! Where the coordination service is, and who runs it.

use super::Meeting;
use crate::settings::{CoordinatorBy, HostPort, Settings};

/// The ports that an address without one is given a port from: below 32768, where Linux begins to hand out
/// ports for outgoing connections, and above the crowded registered ones.
pub const DERIVED_PORTS: std::ops::Range<u16> = 20_000..32_000;

/// Where the coordination service is, and who runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoordinatorPlace {
    /// Where ranks reach it. With port 0 (single process) the system picks one, and nobody else needs to know.
    pub address: HostPort,
    /// Other candidates, of which any may lead; then it is outside of the ranks.
    pub others: Vec<HostPort>,
    /// Whether this process runs the service; at most one rank does.
    pub i_host: bool,
    /// Where the port comes from; it decides what to advise when it is taken.
    pub port_from: PortFrom,
}

/// Where the coordinator's port comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortFrom {
    /// The user or the launcher gave it.
    Given,
    /// Hashed from the job id into [`DERIVED_PORTS`], since the launcher gives none.
    ///
    /// Two jobs may hash to one port (1 in 12,000 for a pair), and another program may hold it. Rank 0 then
    /// fails to listen, with [`CoordinatorPlace::when_taken`] as advice; the other ranks may reach the other job's
    /// service, which refuses them because their job id differs. No rank ever joins a wrong job.
    Derived,
    /// The system picks a free one.
    System,
}

impl CoordinatorPlace {
    /// What to tell the user when this process should run the service and the port is taken.
    pub fn when_taken(&self) -> String {
        match self.port_from {
            PortFrom::Given => format!(
                "port {} is in use: end the program that holds it (`ss -ltnp 'sport = :{}'` names it), or set \
                 RINGWAY_COORDINATOR=HOST:PORT with a free port on every rank; or RINGWAY_COORDINATOR_BY=outside, if that \
                 is the job's own coordination service",
                self.address.port, self.address.port
            ),
            PortFrom::Derived | PortFrom::System => format!(
                "port {}, derived from the job id, is in use by another job or program: set RINGWAY_COORDINATOR=\
                 {}:PORT with a free port on every rank, or another RINGWAY_JOB_ID",
                self.address.port, self.address.host
            ),
        }
    }
}

/// Settles the place from what the launcher tells; `Err` holds the remedy when it cannot be known.
pub(super) fn choose(
    meeting: Meeting,
    settings: &Settings,
    rank: u32,
    world_size: u32,
    job_id: &str,
) -> Result<CoordinatorPlace, String> {
    let others = settings.other_coordinators.clone();
    let i_host = rank == 0 && settings.coordinator_by == CoordinatorBy::Rank0 && others.is_empty();
    let loopback =
        if settings.socket_family == Some(crate::settings::Family::V6) { "::1" } else { "127.0.0.1" };
    let (host, port, port_from) = match meeting {
        Meeting::At(address) => (address.host, address.port, PortFrom::Given),
        _ if world_size == 1 => {
            return Ok(CoordinatorPlace {
                address: HostPort { host: loopback.to_owned(), port: 0 },
                others,
                i_host: true,
                port_from: PortFrom::System,
            });
        }
        Meeting::On(host) => (host, derived_port(job_id), PortFrom::Derived),
        Meeting::ThisHost => (loopback.to_owned(), derived_port(job_id), PortFrom::Derived),
        Meeting::Unknown(remedy) => return Err(remedy),
    };
    if settings.coordinator_by == CoordinatorBy::Outside && port_from == PortFrom::Derived {
        return Err(
            "RINGWAY_COORDINATOR_BY=outside needs its address: set RINGWAY_COORDINATOR=HOST:PORT".to_owned()
        );
    }
    Ok(CoordinatorPlace { address: HostPort { host, port }, others, i_host, port_from })
}

/// A port of [`DERIVED_PORTS`] by the FNV-1a hash of the job id: the same on every rank.
fn derived_port(job_id: &str) -> u16 {
    let count = u64::from(DERIVED_PORTS.end - DERIVED_PORTS.start);
    DERIVED_PORTS.start + u16::try_from(fnv1a(job_id.as_bytes()) % count).expect("below the number of ports")
}

/// The 64-bit FNV-1a hash (Fowler, Noll, Vo): offset basis 0xcbf29ce484222325, prime 0x100000001b3.
pub(super) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv_known_values() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn derived_ports_stay_in_range_and_spread() {
        let ports: std::collections::BTreeSet<u16> =
            (0..1000).map(|i| derived_port(&format!("job-{i}"))).collect();
        assert!(ports.iter().all(|port| DERIVED_PORTS.contains(port)));
        assert!(ports.len() > 900, "{} different ports for 1,000 jobs", ports.len());
    }

    #[test]
    fn advice_when_the_port_is_taken_names_it() {
        let place = |port_from| CoordinatorPlace {
            address: HostPort { host: "node1".into(), port: 29400 },
            others: Vec::new(),
            i_host: true,
            port_from,
        };
        assert!(place(PortFrom::Given).when_taken().contains("29400"));
        assert!(place(PortFrom::Derived).when_taken().contains("RINGWAY_COORDINATOR=node1:PORT"));
    }
}
