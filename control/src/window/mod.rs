//! What a process shows of itself without gRPC: text on a local socket, and numbers for Prometheus.
//!
//! - **O1** Nobody who asks can hold up the process: each is answered from a task of the small runtime that is there
//!   anyway, has a deadline, and is one of few.
//! - **O2** A window that cannot be opened costs a warning and nothing else.
#![forbid(unsafe_code)]

pub mod metrics;
pub mod socket;

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use crate::settings::{HostPort, Settings};

/// Makes what is shown, at the moment when somebody asks.
pub type Page = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = String> + Send>> + Send + Sync>;

/// What a process shows, and where.
#[derive(Clone, Debug, Default)]
pub struct WindowConfig {
    /// The folder of its socket; `None` for no socket.
    pub socket_dir: Option<PathBuf>,
    /// What the socket's name begins with: `rank3`, `coordinator`.
    pub name: String,
    /// The job that the process is of.
    pub job: String,
    /// Where its metrics are; `None` for nowhere.
    pub metrics: Option<HostPort>,
}

impl WindowConfig {
    /// What the settings say for the process `name` of a job. It is number `offset` of those of its host that have metrics;
    /// `None` where it has none.
    ///
    /// A port that does not exist is said (O2).
    #[must_use]
    pub fn new(settings: &Settings, name: impl Into<String>, job: &str, offset: Option<u32>) -> Self {
        let metrics = offset.and_then(|offset| {
            settings.status.metrics_at(offset).unwrap_or_else(|problem| {
                tracing::warn!("no metrics here: {problem}");
                None
            })
        });
        WindowConfig {
            socket_dir: settings.status.socket.then(|| settings.status.runtime_dir.clone()),
            name: name.into(),
            job: job.to_owned(),
            metrics,
        }
    }
}

/// The first line that a socket says, by which `ringway status` finds the coordination service.
#[must_use]
pub fn heading(config: &WindowConfig, coordinator: &str) -> String {
    let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
    format!("ringway {version} {} of job {}, coordinator {coordinator}, pid {pid}\n", config.name, config.job)
}

/// What a socket's first line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heading {
    /// The process: `rank3`, `coordinator`.
    pub name: String,
    /// Its job.
    pub job: String,
    /// Where its coordination service is.
    pub coordinator: String,
}

impl Heading {
    /// Reads a first line; `None` when it is none of ours.
    #[must_use]
    pub fn parse(line: &str) -> Option<Heading> {
        let (_, rest) = line.strip_prefix("ringway ")?.split_once(' ')?;
        let (rest, _pid) = rest.trim_end().rsplit_once(", pid ")?;
        let (rest, coordinator) = rest.rsplit_once(", coordinator ")?;
        let (name, job) = rest.split_once(" of job ")?;
        Some(Heading { name: name.to_owned(), job: job.to_owned(), coordinator: coordinator.to_owned() })
    }
}

/// Opens the windows of a process on the runtime of the caller; they close when that ends, or the task is dropped.
/// `text` is what the socket says after its first line.
pub async fn open(config: WindowConfig, coordinator: String, text: Page, numbers: Page) {
    let heading = heading(&config, &coordinator);
    let socket = async {
        let Some(dir) = &config.socket_dir else { return };
        match socket::Socket::bind(dir, &config.name, socket::SUFFIX) {
            Ok(socket) => socket.serve(&heading, &text).await,
            Err(error) => tracing::warn!("no status socket: {error}"),
        }
    };
    let metrics = async {
        let Some(at) = &config.metrics else { return };
        match metrics::bind(at).await {
            Ok((listener, address)) => {
                tracing::info!("metrics are at http://{address}/metrics");
                metrics::serve(listener, &numbers).await;
            }
            Err(error) => tracing::warn!(
                "no metrics at {at}: {error}; give RINGWAY_METRICS_BIND an address of this host with free ports"
            ),
        }
    };
    tokio::join!(socket, metrics);
}

/// Whether an address is of this host alone.
#[must_use]
pub fn is_local(address: &SocketAddr) -> bool {
    address.ip().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_are_read_back() {
        let config =
            WindowConfig { name: "rank3".into(), job: "a, coordinator b".into(), ..Default::default() };
        let read = Heading::parse(&heading(&config, "[::1]:29400")).unwrap();
        assert_eq!(
            (&*read.name, &*read.job, &*read.coordinator),
            ("rank3", "a, coordinator b", "[::1]:29400")
        );
        assert!(Heading::parse("HTTP/1.1 200 OK").is_none() && Heading::parse("").is_none());
    }
}
