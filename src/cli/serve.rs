//! `ringway serve`: one task of a described cluster: coordination, and a worker that runs graphs.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::keep;
use super::say;
use super::security::SecurityArgs;
use super::signals::Signals;
use ringway::log::LogError;
use ringway_control::launch::cluster::{CLUSTER_LIMIT_BYTES, Cluster, ClusterError};
use ringway_control::rpc::serve::ServeError;
use ringway_control::rpc::tls::TlsError;
use ringway_control::runtime::task::{Task, TaskError};
use ringway_control::runtime::worker::Traffic;
use ringway_control::settings::{HostPort, Settings, SettingsError, read_text};
use ringway_control::store::StoreError;

/// Between two looks at who is still connected.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Run one task of a cluster: its coordination service, and a worker that runs graphs
///
/// Reads a description of the cluster, and serves it as one of its tasks until SIGTERM or SIGINT. TensorFlow's
/// coordination agents and ringway's own ranks register there; masters have it run parts of graphs.
#[derive(clap::Args)]
#[command(after_help = r#"Examples:
  ringway serve --cluster cluster.json --job worker --task 0
  ringway serve --cluster '{"worker": ["node1:29400", "node2:29400"]}' --job worker --task 0
  ringway serve --cluster cluster.json --job ps --task 0 --bind '[::]:2222'
  ringway serve --ranks 8 --bind node0:29400 --state /var/lib/ringway/job.state
  ringway serve --ranks 8 --bind node0:29400 --store etcd://etcd0,etcd1,etcd2

A cluster is JSON: {"JOB": ["HOST:PORT", ...]}, with the tasks of a job in order; or, as in
TensorFlow's ClusterDef, {"job": [{"name": "JOB", "tasks": {"0": "HOST:PORT"}}]}.

Beyond this host it listens with a token, TLS or --insecure alone. Clients of TensorFlow and JAX
can send no token and speak no TLS: for them, loopback or --insecure, on a network of the job's
own. SIGHUP reads certificates again.

  openssl rand -hex 32 > token; chmod 600 token
  ringway serve --cluster cluster.json --job worker --task 0 --token-file token

Ranks find a service outside of them by RINGWAY_COORDINATOR=HOST:PORT and
RINGWAY_COORDINATOR_BY=outside; several candidates (--store) by all their addresses, with
commas between them. A service that keeps its state (--state, --store) may be killed and
started again, or another candidate goes on: the ranks wait and notice nothing else."#)]
#[command(
    override_usage = "ringway serve --cluster <FILE|JSON> --job <JOB> --task <TASK> [OPTIONS]\n       \
                            ringway serve --ranks <N> [OPTIONS]"
)]
pub(crate) struct Args {
    /// A JSON file, or the JSON itself
    #[arg(long, value_name = "FILE|JSON", required_unless_present = "ranks")]
    cluster: Option<String>,
    /// The job of this task
    #[arg(long, required_unless_present = "ranks")]
    job: Option<String>,
    /// The index of this task in its job
    #[arg(long, required_unless_present = "ranks")]
    task: Option<u32>,
    /// Jobs whose tasks register with the coordination service, where not all do: with the workers of a
    /// MultiWorkerMirroredStrategy whose leader is ps:0, worker
    #[arg(long, value_name = "JOB", value_delimiter = ',')]
    coordinate: Vec<String>,
    #[command(flatten)]
    kept: keep::KeepArgs,
    /// Listen here instead of at the task's own address
    #[arg(long, value_name = "HOST:PORT")]
    bind: Option<String>,
    #[command(flatten)]
    security: SecurityArgs,
    /// Listen beyond this host with neither token nor TLS: whoever reaches the port can take part [RINGWAY_INSECURE]
    #[arg(long, help_heading = "Who may take part")]
    insecure: bool,
}

/// Why the service could not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeCommandError {
    /// A `RINGWAY_*` variable is not allowed.
    #[error("{0}")]
    Settings(#[from] SettingsError),
    /// `RINGWAY_LOG` is wrong.
    #[error("{0}")]
    Log(#[from] LogError),
    /// The cluster's file cannot be read.
    #[error("cannot read the cluster from {path}: {source}; give a file, or JSON that begins with {{")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The cluster is not sound.
    #[error("--cluster: {0}")]
    Cluster(#[from] ClusterError),
    /// `--bind` is not an address.
    #[error("--bind {given} is not HOST:PORT; an IPv6 address goes in brackets, as in [::]:29400")]
    Bind {
        /// What was given.
        given: String,
    },
    /// The host to listen on has no address.
    #[error("cannot find the address of {host}: {source}; give --bind with an address of this machine")]
    Resolve {
        /// The host.
        host: HostPort,
        /// What the system said.
        source: io::Error,
    },
    /// The task did not start.
    #[error("{0}")]
    Task(#[from] TaskError),
    /// `--store` is no address of etcd.
    #[error("--store {given}: {why}; write it as etcd://HOST,HOST,... with or without ports and a /PREFIX")]
    Store {
        /// What was given.
        given: String,
        /// What is wrong with it.
        why: String,
    },
    /// `--advertise` is not an address.
    #[error("--advertise {given} is not HOST:PORT; an IPv6 address goes in brackets, as in [fd00::1]:29400")]
    Advertise {
        /// What was given.
        given: String,
    },
    /// A candidate listens at all addresses and does not say by which it is reached.
    #[error(
        "this candidate listens at {bind}: give --advertise HOST:PORT, where ranks reach it, or --bind with that"
    )]
    Unadvertised {
        /// Where it listens.
        bind: String,
    },
    /// The state cannot be kept.
    #[error("{0}")]
    State(#[from] StoreError),
    /// The address cannot be listened on.
    #[error("{0}")]
    Serve(#[from] ServeError),
    /// The service has ended by itself.
    #[error("the coordination service has ended, since its state cannot be kept: it has said why above")]
    Ended,
    /// Signals cannot be received.
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
}

/// Serves until it is told to end.
///
/// # Errors
/// When the cluster is not sound or the address cannot be listened on.
pub(crate) fn run(args: &Args) -> Result<ExitCode, ServeCommandError> {
    let mut options = args.security.settings();
    options.extend(args.insecure.then(|| ("RINGWAY_INSECURE", "on".into())));
    let settings = Settings::from_env_and(&options)?;
    ringway::log::start(&settings)?;
    let mut signals =
        Signals::catch(&[Signal::TERM, Signal::INT, Signal::HUP]).map_err(ServeCommandError::Signals)?;
    if let Some(ranks) = args.kept.ranks() {
        return keep::run(&args.kept, ranks, args.bind.as_deref(), &settings, signals);
    }
    let (Some(cluster), Some(job), Some(task)) = (&args.cluster, &args.job, args.task) else {
        unreachable!("the arguments are required without --ranks")
    };
    let mut cluster = Cluster::parse(&read_cluster(cluster)?)?;
    cluster.coordinate(&args.coordinate)?;
    let own = cluster.address(job, task)?;
    let bind = match &args.bind {
        None => own.clone(),
        Some(given) => {
            HostPort::parse(given).ok_or_else(|| ServeCommandError::Bind { given: given.clone() })?
        }
    };
    let tasks = cluster.all().count();
    let served = Task::serve(resolve(&bind)?, &cluster, (job, task), &settings)?;
    say(&format!("serve: {job}:{task} of {tasks} tasks, at {}; SIGTERM ends it", served.local_addr()));
    let arrived = loop {
        let arrived = signals.wait(None).map_err(ServeCommandError::Signals)?;
        if arrived.iter().any(|signal| *signal != Signal::HUP) {
            break arrived;
        }
        if !arrived.is_empty() {
            reload(served.reload_certificates());
        }
    };
    if arrived.contains(&Signal::TERM) {
        let grace = settings.preemption_grace;
        let is_alone = || served.wait_until_alone(Duration::ZERO);
        say_farewell(|| served.announce_end(grace), is_alone, grace, &mut signals)?;
    }
    let Traffic { plane_tensors, plane_bytes, grpc_tensors, grpc_bytes } = served.traffic();
    drop(served);
    say(&format!(
        "serve: tensors received: {plane_tensors} over the data plane ({plane_bytes} B), {grpc_tensors} over gRPC \
         ({grpc_bytes} B)"
    ));
    Ok(ExitCode::SUCCESS)
}

/// Tells the tasks that are connected (`announce` says whether any is), and lets them leave, for `grace` at most or until
/// another signal.
pub(super) fn say_farewell(
    announce: impl FnOnce() -> bool,
    is_alone: impl Fn() -> bool,
    grace: Duration,
    signals: &mut Signals,
) -> Result<(), ServeCommandError> {
    if !announce() {
        return Ok(());
    }
    say(&format!(
        "serve: tasks are connected and are told; ending when they have left, in {} s, or at another signal",
        grace.as_secs_f64()
    ));
    let deadline = Instant::now() + grace;
    while Instant::now() < deadline && !is_alone() {
        let arrived = signals.wait(Some(LOOK_AGAIN)).map_err(ServeCommandError::Signals)?;
        if arrived.iter().any(|signal| *signal != Signal::HUP) {
            break;
        }
    }
    Ok(())
}

/// SIGHUP: connections that stand go on.
pub(super) fn reload(result: Result<Option<String>, TlsError>) {
    match result {
        Ok(Some(names)) => say(&format!("serve: certificates read again; this one is for {names}")),
        Ok(None) => say("serve: SIGHUP: there are no certificates to read again"),
        Err(error) => {
            say(&format!("serve: certificates not read again, those before stay in force: {error}"))
        }
    }
}

fn read_cluster(given: &str) -> Result<String, ServeCommandError> {
    if given.trim_start().starts_with('{') {
        return Ok(given.to_owned());
    }
    read_text(given, CLUSTER_LIMIT_BYTES as u64)
        .map_err(|source| ServeCommandError::File { path: given.into(), source })
}

pub(super) fn resolve(host: &HostPort) -> Result<SocketAddr, ServeCommandError> {
    let failed = |source| ServeCommandError::Resolve { host: host.clone(), source };
    let mut addresses = (host.host.as_str(), host.port).to_socket_addrs().map_err(failed)?;
    addresses.next().ok_or_else(|| failed(io::Error::from(io::ErrorKind::NotFound)))
}
