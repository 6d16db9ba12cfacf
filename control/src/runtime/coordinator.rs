//! The coordination service as a job's own process runs it: rank 0, where the launcher offers none.

use super::random::incarnation;
use crate::core::coordination::CoordinatorConfig;
use crate::launch::RANK_JOB;
use crate::rpc::serve::{ServeError, Server, ServerConfig};
use crate::settings::Settings;
use std::net::SocketAddr;

/// Starts the service for `ranks` ranks at `bind` (port 0: a free one).
///
/// # Errors
/// When the address cannot be had; the error says why and what to do.
pub fn start_coordinator(bind: SocketAddr, ranks: u32, settings: &Settings) -> Result<Server, ServeError> {
    let config = CoordinatorConfig {
        heartbeat_limit: settings.heartbeat_timeout,
        register_timeout: settings.join_timeout,
        join_timeout: settings.join_timeout,
        ..CoordinatorConfig::one_job(RANK_JOB, ranks)
    };
    Server::start(bind, ServerConfig::new(config, incarnation()))
}
