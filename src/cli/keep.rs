//! `ringway serve --ranks`: the coordination service of a job of ranks by itself, and where it keeps what must outlive it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::value_parser;
use rustix::process::Signal;

use super::run::MAX_WORLD_RANKS;
use super::say;
use super::serve::{ServeCommandError, reload, resolve, say_farewell};
use super::signals::Signals;
use ringway_control::launch::RANK_JOB;
use ringway_control::rpc::credentials::Credentials;
use ringway_control::rpc::serve::{Keep, ServeError};
use ringway_control::runtime::serve_cluster;
use ringway_control::settings::{HostPort, Settings, TlsFiles};
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
    #[arg(long, value_name = "N", conflicts_with_all = ["cluster", "job", "task"], value_parser = value_parser!(u32).range(1..=MAX_WORLD_RANKS))]
    ranks: Option<u32>,
    /// Keep members, keys and barriers in this file, so that the service can be started again
    #[arg(long, value_name = "FILE", requires = "ranks")]
    state: Option<PathBuf>,
    /// When what was written to the file must have reached the disk
    #[arg(long, value_name = "WHEN", default_value = "every", requires = "state")]
    state_sync: When,
    /// Keep them in etcd, with etcds:// in TLS: any number of candidates stand there, and one of them leads
    #[arg(long, value_name = "etcd://HOST,HOST,...", requires = "ranks", conflicts_with = "state")]
    store: Option<String>,
    /// Show etcd this certificate, PEM; without it, the process's own (--tls-cert)
    #[arg(long, value_name = "FILE", requires_all = ["store", "store_key", "store_ca"])]
    store_cert: Option<PathBuf>,
    /// Its key, PEM
    #[arg(long, value_name = "FILE", requires = "store_cert")]
    store_key: Option<PathBuf>,
    /// The authorities whose certificates etcd may have, PEM
    #[arg(long, value_name = "FILE", requires = "store_cert")]
    store_ca: Option<PathBuf>,
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

    /// What etcd is shown: certificates of its own, or those of the process.
    fn credentials(
        &self,
        store: &str,
        tls: bool,
        own: &Credentials,
    ) -> Result<Credentials, ServeCommandError> {
        let files = (self.store_cert.clone(), self.store_key.clone(), self.store_ca.clone());
        let unfit = |why: &str| ServeCommandError::Store { given: store.to_owned(), why: why.to_owned() };
        match files {
            (Some(_), ..) if !tls => Err(unfit("--store-cert is for etcds://")),
            (Some(certificate), Some(key), Some(authorities)) => {
                let settings = ["--store-cert", "--store-key", "--store-ca"];
                let files = TlsFiles { certificate, key, authorities, name: None, settings };
                Ok(Credentials::of_files(files).map_err(ServeError::from)?)
            }
            _ if tls && own.tls().is_none() => Err(unfit(
                "etcds:// needs certificates: give --store-cert, --store-key and --store-ca, or RINGWAY_TLS_CERT, \
                 RINGWAY_TLS_KEY and RINGWAY_TLS_CA if etcd has the same authority",
            )),
            _ if tls => Ok(own.certificates()),
            _ => Ok(Credentials::default()),
        }
    }

    fn keep(
        &self,
        bind: &HostPort,
        settings: &Settings,
        own: &Credentials,
    ) -> Result<Keep, ServeCommandError> {
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
        let credentials = self.credentials(store, address.tls, own)?;
        Ok(Keep::Etcd { address, credentials, lease, advertise: advertise.to_string(), failover })
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
    let credentials = Credentials::from_settings(settings).map_err(ServeError::from)?;
    let keep = args.keep(&bind, settings, &credentials)?;
    let of_store = match &keep {
        Keep::Etcd { credentials, .. } => credentials.clone(),
        Keep::Nowhere | Keep::File { .. } => Credentials::default(),
    };
    // Where the state is kept, another service goes on with the job.
    let is_end_of_job = matches!(keep, Keep::Nowhere);
    let how = match &keep {
        Keep::Nowhere => String::new(),
        Keep::File { store, .. } => format!(", kept in {}", store.path().display()),
        Keep::Etcd { address, advertise, .. } => format!(", kept in {address}, as candidate {advertise}"),
    };
    let at: SocketAddr = resolve(&bind)?;
    let name = settings.job_id.as_deref().unwrap_or(NAME);
    let window = WindowConfig::new(settings, format!("coordinator-{}", bind.port), name, Some(0));
    let jobs = vec![(RANK_JOB.to_owned(), ranks)];
    let shown = (credentials.clone(), window);
    let server = serve_cluster(at, jobs, Vec::new(), None, keep, settings, shown)?;
    say(&format!("serve: coordination of {ranks} ranks{how}, at {}; SIGTERM ends it", server.local_addr()));
    loop {
        let arrived = signals.wait(Some(LOOK_EVERY)).map_err(ServeCommandError::Signals)?;
        if arrived.iter().any(|signal| *signal != Signal::HUP) {
            if is_end_of_job && arrived.contains(&Signal::TERM) {
                let grace = settings.preemption_grace;
                let is_alone = || server.wait_until_empty(Duration::ZERO);
                let announce = || {
                    server.announce_preemption(grace);
                    !is_alone()
                };
                say_farewell(announce, is_alone, grace, &mut signals)?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        if !arrived.is_empty() {
            reload(of_store.reload().and_then(|_| credentials.reload()));
        }
        if server.has_ended() {
            return Err(ServeCommandError::Ended);
        }
    }
}
