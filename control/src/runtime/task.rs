//! A task of a cluster, as `ringway serve` runs it: coordination, a master, a worker and remote eager behind one port.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ringway_dataplane::transport::Keyring;
use ringway_dataplane::transport::authentication::SECRET_BYTES;
use ringway_proto::ringway::v1::DataPlaneTask;
use ringway_topology::host::host_id;
use ringway_topology::{IdError, TaskId};
use tokio::task::AbortHandle;
use tonic::service::Routes;

use super::coordinator::serve_cluster;
use super::eager::Eager;
use super::master::cluster::ClusterTask;
use super::master::{Master, MasterConfig};
use super::pinning::Binding;
use super::proof::pair_key;
use super::rendezvous::{OpenError, TaskOptions, TaskRendezvous};
use super::transports::{Identity, Opened, open};
use super::worker::collectives::{OpenEndpoint, OwnEnd};
use super::worker::{DataPlane, Traffic, Worker, WorkerConfig};
use crate::core::master::MasterError;
use crate::launch::cluster::Cluster;
use crate::random::{self, incarnation};
use crate::rpc::credentials::Credentials;
use crate::rpc::serve::eager::EagerRpc;
use crate::rpc::serve::worker::WorkerRpc;
use crate::rpc::serve::{Keep, ServeError, Server};
use crate::rpc::tls::TlsError;
use crate::settings::{HostPort, Settings};
use crate::tensor::array::pool;
use crate::window::WindowConfig;

/// Why a task did not start.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// A job's name cannot be one.
    #[error("the cluster: {0}")]
    Name(#[from] IdError),
    /// There is no data plane.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// The worker got no threads.
    #[error("{task}: no threads to compute on: {source}; raise the limit on them (ulimit -u)")]
    Threads {
        /// The task.
        task: String,
        /// What the system said.
        source: io::Error,
    },
    /// A task of the cluster cannot be asked.
    #[error("{0}")]
    Master(#[from] MasterError),
    /// The files of TLS cannot be used.
    #[error("{0}")]
    Tls(#[from] TlsError),
    /// The port cannot be had.
    #[error("{0}")]
    Serve(#[from] ServeError),
}

/// A task that serves. Dropping it ends it.
#[derive(Debug)]
pub struct Task {
    server: Server,
    worker: Worker,
    eager: Eager,
    /// What ends eager contexts and sessions as their leases run out.
    leases: [AbortHandle; 2],
    credentials: Credentials,
}

impl Task {
    /// Serves the task `job:index` of a cluster at `bind`.
    ///
    /// # Errors
    /// [`TaskError`]; the message says what to do.
    pub fn serve(
        bind: SocketAddr,
        cluster: &Cluster,
        (job, index): (&str, u32),
        settings: &Settings,
    ) -> Result<Task, TaskError> {
        let credentials = Credentials::from_settings(settings)?;
        let mut agents = Vec::new();
        for (other, at, address) in cluster.all().filter(|(other, at, _)| (*other, *at) != (job, index)) {
            agents.push((TaskId::new(other, at)?, address.to_string()));
        }
        let name = |job: &str, index: u32| format!("/job:{job}/replica:0/task:{index}");
        let addresses: HashMap<String, String> =
            cluster.all().map(|(job, index, address)| (name(job, index), address.to_string())).collect();
        let host = |name: &str| cluster.all().all(|(_, _, address)| address.host == name);
        let all_local = host("localhost") || host("127.0.0.1") || host("::1");
        let task = name(job, index);
        let options =
            TaskOptions { name: task.clone(), all_local, pool: pool().clone(), on_loss: None, group: None };
        let plane = data_plane(TaskRendezvous::open(settings, options)?);
        let threads = settings.inter_op_threads.unwrap_or(0) as usize;
        let open_endpoint = open_endpoint(task.clone(), all_local, settings.clone());
        let config = WorkerConfig {
            job: job.to_owned(),
            task: index,
            addresses,
            credentials: credentials.clone(),
            threads,
            plane,
            open_endpoint,
        };
        let worker = Worker::start(config).map_err(|source| TaskError::Threads { task, source })?;
        let eager = Eager::new(worker.clone());
        let master = master(&worker, cluster, (job, index), settings, &credentials)?;
        let routes = Routes::new(WorkerRpc::service(worker.clone()))
            .add_service(crate::rpc::serve::master::service(master))
            .add_service(EagerRpc::service(eager.clone()));
        let window =
            WindowConfig::new(settings, format!("task-{job}-{index}"), &format!("{job}:{index}"), Some(0));
        let (jobs, routes) = (cluster.coordinated_sizes(), Some(routes));
        let shown = (credentials.clone(), window);
        let server = serve_cluster(bind, jobs, agents, routes, Keep::Nowhere, settings, shown)?;
        let (contexts, sessions, lease) =
            (eager.clone(), worker.clone(), settings.serve.worker_session_lease);
        let leases = [
            worker.calls().spawn(async move { contexts.watch_leases().await }).abort_handle(),
            worker.calls().spawn(async move { sessions.watch_sessions(lease).await }).abort_handle(),
        ];
        Ok(Task { server, worker, eager, leases, credentials })
    }

    /// Where it serves.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// Tells the tasks that are connected to its coordination service that this one will end in `grace`. Whether any is.
    #[must_use]
    pub fn announce_end(&self, grace: Duration) -> bool {
        self.server.announce_preemption(grace);
        !self.server.wait_until_empty(Duration::ZERO)
    }

    /// Waits until no task is connected to its coordination service, for `limit` at most. Whether that is so.
    #[must_use]
    pub fn wait_until_alone(&self, limit: Duration) -> bool {
        self.server.wait_until_empty(limit)
    }

    /// Reads the files of TLS again, for connections that begin from now on. The names of this side's certificate; `None`
    /// where there is no TLS.
    ///
    /// # Errors
    /// [`TlsError`]; what was read before stays in force then.
    pub fn reload_certificates(&self) -> Result<Option<String>, TlsError> {
        self.credentials.reload()
    }

    /// What it received from other tasks so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.worker.traffic()
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.leases.iter().for_each(AbortHandle::abort);
        self.eager.close_all();
        self.worker.close();
    }
}

/// The master of a task: it asks its own worker directly, and others by gRPC.
fn master(
    worker: &Worker,
    cluster: &Cluster,
    own: (&str, u32),
    settings: &Settings,
    credentials: &Credentials,
) -> Result<Master, MasterError> {
    let task = |(job, index, address): (&str, u32, &HostPort)| match (job, index) == own {
        true => Ok(ClusterTask { job: job.to_owned(), index, port: Arc::new(worker.clone()) }),
        false => ClusterTask::remote(job, index, &address.to_string(), credentials),
    };
    let tasks = cluster.all().map(task).collect::<Result<Vec<_>, MasterError>>()?;
    let incarnation = worker.incarnation();
    let session_lease = settings.serve.session_lease;
    Ok(Master::new(MasterConfig {
        incarnation,
        credentials: credentials.clone(),
        session_lease,
        ..MasterConfig::new(own.0, own.1, tasks)
    }))
}

/// How a worker meets other tasks through `tasks`.
#[must_use]
pub fn data_plane(tasks: TaskRendezvous) -> DataPlane {
    let (rendezvous, card) = ((*tasks).clone(), tasks.to_bytes());
    let introduce = move |card: &[u8]| tasks.introduce_bytes(card).map_err(|error| error.to_string());
    DataPlane { rendezvous, card, introduce: Box::new(introduce) }
}

/// What the keys of a collective group's members are for.
const GROUP_PURPOSE: &str = "a collective group's tasks";

/// Opens ends of collective groups' data planes for the task `name`.
fn open_endpoint(name: String, all_local: bool, settings: Settings) -> OpenEndpoint {
    Box::new(move || {
        let secret: [u8; SECRET_BYTES] = random::bytes().map_err(|error| error.to_string())?;
        let (keys, life) = (Keyring::default(), incarnation());
        // Any number that no other process has will do; both halves of a random one are used up.
        let number = (life.0 >> 32) as u32 ^ life.0 as u32;
        let identity = Identity { number, keys: keys.clone(), life };
        let transport = match open(&identity, all_local, &Binding::default(), &settings)
            .map_err(|error| error.to_string())?
        {
            Opened::Endpoint(transport) => transport,
            Opened::Unusable(unusable, _) => return Err(unusable.to_string()),
        };
        let host = host_id().map_err(|error| error.to_string())?;
        let card = DataPlaneTask {
            name: name.clone(),
            host: host.name().to_owned(),
            pid: std::process::id(),
            incarnation: life.0,
            address: transport.address().0,
            job: 0,
            secret: secret.to_vec(),
        };
        let settings = settings.clone();
        let admit = move |other: &DataPlaneTask| {
            let key = pair_key(&secret, &other.secret, GROUP_PURPOSE, &settings);
            key.map(|key| keys.admit(other.incarnation, key)).is_some()
        };
        Ok(OwnEnd { transport, card, admit: Box::new(admit) })
    })
}
