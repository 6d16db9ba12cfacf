//! The coordination service as processes of ours run it: rank 0 where the launcher offers none, `ringway run`, and
//! `ringway serve`.

use crate::core::coordination::CoordinatorConfig;
use crate::launch::RANK_JOB;
use crate::random::incarnation;
use crate::rpc::credentials::Credentials;
use crate::rpc::serve::{Keep, ServeError, Server, ServerConfig};
use crate::settings::Settings;
use crate::window::WindowConfig;
use ringway_topology::TaskId;
use std::net::SocketAddr;
use tonic::service::Routes;

/// Starts the service for `ranks` ranks at `bind` (port 0: a free one). `window` is what it shows of itself.
///
/// # Errors
/// When the address cannot be had, or is open to everybody; the error says why and what to do.
pub fn start_coordinator(
    bind: SocketAddr,
    ranks: u32,
    settings: &Settings,
    window: WindowConfig,
) -> Result<Server, ServeError> {
    let credentials = Credentials::from_settings(settings)?;
    let jobs = vec![(RANK_JOB.to_owned(), ranks)];
    serve_cluster(bind, jobs, Vec::new(), None, Keep::Nowhere, settings, (credentials, window))
}

/// Starts the service for a cluster at `bind`: `jobs` are names and numbers of tasks; errors of tasks are also
/// pushed to `agents`, tasks with servers of their own, at `host:port`. `mounted` are other services on the same port.
/// `keep` says where the state is kept, if it is.
/// Callers must show `credentials`.
///
/// # Errors
/// When the address cannot be had, or is open to everybody; the error says why and what to do.
pub fn serve_cluster(
    bind: SocketAddr,
    jobs: Vec<(String, u32)>,
    agents: Vec<(TaskId, String)>,
    mounted: Option<Routes>,
    keep: Keep,
    settings: &Settings,
    (credentials, window): (Credentials, WindowConfig),
) -> Result<Server, ServeError> {
    let config = CoordinatorConfig {
        jobs,
        heartbeat_limit: settings.heartbeat_timeout,
        register_timeout: settings.join_timeout,
        join_timeout: settings.join_timeout,
        ..CoordinatorConfig::one_job(RANK_JOB, 1)
    };
    let config = ServerConfig {
        agents,
        keep,
        window,
        credentials,
        insecure: settings.insecure,
        xla_heartbeat_limit: settings.xla_heartbeat_timeout,
        ..ServerConfig::new(config, incarnation())
    };
    Server::start_with(bind, config, mounted)
}
