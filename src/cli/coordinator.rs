//! The coordination service as this program runs it: inside `ringway run`, and alone as `ringway serve`.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ringway_control::core::coordination::CoordinatorConfig;
use ringway_control::launch::RANK_JOB;
use ringway_control::rpc::serve::{ServeError, Server, ServerConfig};
use ringway_control::settings::{Family, HostPort, Settings};
use ringway_topology::{Incarnation, TaskId};

/// Why it could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CoordinatorError {
    /// The service itself says why.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// There is no randomness to tell this life of the service from another.
    #[error("cannot read /dev/urandom: {0}")]
    Random(io::Error),
}

/// A coordination service that runs until it is dropped.
pub(crate) struct Coordinator {
    server: Server,
}

impl Coordinator {
    /// Serves the ranks of this host, on loopback at a free port.
    pub(crate) fn for_ranks(settings: &Settings, ranks: u32) -> Result<Self, CoordinatorError> {
        let loopback = match settings.socket_family {
            Some(Family::V6) => IpAddr::V6(Ipv6Addr::LOCALHOST),
            _ => IpAddr::V4(Ipv4Addr::LOCALHOST),
        };
        let jobs = vec![(RANK_JOB.to_owned(), ranks)];
        Self::start(SocketAddr::new(loopback, 0), settings, jobs, Vec::new())
    }

    /// Serves `jobs` (names and how many tasks) at `bind`; errors of tasks are also pushed to `agents`, which are
    /// tasks with servers of their own.
    pub(crate) fn start(
        bind: SocketAddr,
        settings: &Settings,
        jobs: Vec<(String, u32)>,
        agents: Vec<(TaskId, String)>,
    ) -> Result<Self, CoordinatorError> {
        let config = CoordinatorConfig {
            jobs,
            heartbeat_limit: settings.heartbeat_timeout,
            register_timeout: settings.join_timeout,
            join_timeout: settings.join_timeout,
            ..CoordinatorConfig::one_job(RANK_JOB, 1)
        };
        let incarnation = Incarnation(u64::from_le_bytes(random().map_err(CoordinatorError::Random)?));
        let config = ServerConfig { agents, ..ServerConfig::new(config, incarnation) };
        Ok(Coordinator { server: Server::start(bind, config)? })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> HostPort {
        let address = self.server.local_addr();
        HostPort { host: address.ip().to_string(), port: address.port() }
    }
}

/// Random bytes from the kernel.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
