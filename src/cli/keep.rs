//! `ringway serve --ranks`: the coordination service of a job of ranks by itself, and where it keeps what must outlive it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use super::say;
use super::serve::{ServeCommandError, resolve};
use super::signals::Signals;
use ringway_control::launch::RANK_JOB;
use ringway_control::rpc::serve::Keep;
use ringway_control::runtime::serve_cluster;
use ringway_control::settings::{HostPort, Settings};
use ringway_control::store::etcd::EtcdAddress;
use ringway_control::store::file::{FileStore, Sync};
use ringway_control::window::WindowConfig;

/// How often it is looked whether the service has ended by itself.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Where it listens unless it is told.
const BIND: &str = "0.0.0.0:29400";
/// What etcd's keys are named after where the job has no name.
const NAME: &str = "job";

#[derive(clap::Args)]
pub(super) struct KeepArgs {
    /// Serve the coordination of a job of this many ranks, and nothing else
    #[arg(long, value_name = "N", conflicts_with_all = ["cluster", "job", "task"])]
    ranks: Option<u32>,
    /// Keep members, keys and barriers in this file, so that the service can be started again
    #[arg(long, value_name = "FILE", requires = "ranks")]
    state: Option<PathBuf>,
    /// When what was written to the file must have reached the disk
    #[arg(long, value_name = "WHEN", default_value = "every", requires = "state")]
    state_sync: When,
    /// Keep them in etcd: any number of candidates stand there, and one of them leads
    #[arg(long, value_name = "etcd://HOST,HOST,...", requires = "ranks", conflicts_with = "state")]
    store: Option<String>,
    /// Where ranks find this candidate, if it does not listen there
    #[arg(long, value_name = "HOST:PORT", requires = "store")]
    advertise: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum When {
    /// Before anybody is told: it survives the machine's death
    Every,
    /// When the system likes: it survives the process's death
    System,
}

impl KeepArgs {
    /// The number of ranks, where only their coordination is served.
    pub(super) fn ranks(&self) -> Option<u32> {
        self.ranks
    }

    fn keep(&self, bind: &HostPort, settings: &Settings) -> Result<Keep, ServeCommandError> {
        let failover = settings.failover_timeout;
        if let Some(path) = &self.state {
            let sync = if self.state_sync == When::Every { Sync::Every } else { Sync::System };
            return Ok(Keep::File { store: FileStore::open(path, sync)?, failover });
        }
        let Some(store) = &self.store else { return Ok(Keep::Nowhere) };
        let name = settings.job_id.as_deref().unwrap_or(NAME);
        let address = EtcdAddress::parse(store, name)
            .map_err(|why| ServeCommandError::Store { given: store.clone(), why })?;
        let advertise = match &self.advertise {
            Some(given) => {
                HostPort::parse(given).ok_or_else(|| ServeCommandError::Advertise { given: given.clone() })?
            }
            None if ["0.0.0.0", "::"].contains(&bind.host.as_str()) => {
                return Err(ServeCommandError::Unadvertised { bind: bind.to_string() });
            }
            None => bind.clone(),
        };
        // etcd counts seconds.
        let lease = Duration::from_secs(settings.lease.as_millis().div_ceil(1000) as u64);
        Ok(Keep::Etcd { address, lease, advertise: advertise.to_string(), failover })
    }
}

/// Serves until it is told to end.
///
/// # Errors
/// When the address cannot be listened on, or the state cannot be kept as asked.
pub(super) fn run(
    args: &KeepArgs,
    ranks: u32,
    bind: Option<&str>,
    settings: &Settings,
    mut signals: Signals,
) -> Result<ExitCode, ServeCommandError> {
    let given = bind.unwrap_or(BIND);
    let bind = HostPort::parse(given).ok_or_else(|| ServeCommandError::Bind { given: given.to_owned() })?;
    let keep = args.keep(&bind, settings)?;
    let how = match &keep {
        Keep::Nowhere => String::new(),
        Keep::File { store, .. } => format!(", kept in {}", store.path().display()),
        Keep::Etcd { address, advertise, .. } => format!(", kept in {address}, as candidate {advertise}"),
    };
    let at: SocketAddr = resolve(&bind)?;
    let name = settings.job_id.as_deref().unwrap_or(NAME);
    let window = WindowConfig::new(settings, format!("coordinator-{}", bind.port), name, Some(0));
    let jobs = vec![(RANK_JOB.to_owned(), ranks)];
    let server = serve_cluster(at, jobs, Vec::new(), None, keep, settings, window)?;
    say(&format!("serve: coordination of {ranks} ranks{how}, at {}; SIGTERM ends it", server.local_addr()));
    while signals.wait(Some(LOOK_EVERY)).map_err(ServeCommandError::Signals)?.is_empty() {
        if server.has_ended() {
            return Err(ServeCommandError::Ended);
        }
    }
    Ok(ExitCode::SUCCESS)
}
