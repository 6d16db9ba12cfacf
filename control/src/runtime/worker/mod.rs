//! The worker: partitions of graphs, run step by step, their tensors handed to and taken from other tasks.
//!
//! - [`service`]: what a [`Worker`] answers. [`sessions`]: what masters have told it.
//! - [`program`]: graphs and functions made ready to run. [`executor`]: runs them, on the threads of a [`pool`].
//!   `flow`: calls of functions, conditions, loops. [`away`]: nodes that use resources of other tasks.
//! - [`step`]: what the nodes of one step share. `exchange`: its edges to other tasks. [`peers`]: these tasks.
//! - [`trace`]: what is recorded of steps for those who ask.
//! - [`collectives`]: collective operations. `groups`: who is in which group, as the leader answers it.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringway_proto::tensorflow::error::Code;

pub mod away;
pub mod collectives;
mod convert;
mod exchange;
pub mod executor;
mod flow;
mod groups;
pub mod peers;
pub mod pool;
pub mod program;
pub mod service;
pub mod sessions;
pub mod step;
pub mod trace;

pub use executor::Executor;
pub use peers::DataPlane;
pub use pool::Pool;
pub use program::{Functions, Program, ProgramError};
pub use step::{Exchange, Step};

use crate::core::graph::DeviceName;
use crate::kernels::{OpError, Resources};
use crate::random::incarnation;
use crate::rpc::credentials::Credentials;
use collectives::{Collectives, OpenEndpoint};
use groups::Groups;
use peers::Peers;
use sessions::{Session, Tables};

/// Threads for calls to other tasks.
const CALL_THREADS: usize = 2;

/// How a worker is made.
pub struct WorkerConfig {
    /// Its job.
    pub job: String,
    /// Its index in the job.
    pub task: u32,
    /// Where all tasks are: `/job:worker/replica:0/task:1` to `host:port`.
    pub addresses: HashMap<String, String>,
    /// What other tasks are shown, and must show.
    pub credentials: Credentials,
    /// Threads that kernels run on; 0 for as many as this process may use processors.
    pub threads: usize,
    /// How it meets other tasks on the data plane.
    pub plane: DataPlane,
    /// Opens this task's end of a collective group's own data plane.
    pub open_endpoint: OpenEndpoint,
}

/// What a task received from others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Tensors over the data plane.
    pub plane_tensors: u64,
    /// Their bytes.
    pub plane_bytes: u64,
    /// Tensors by gRPC.
    pub grpc_tensors: u64,
    /// Their bytes, as messages.
    pub grpc_bytes: u64,
}

struct Shared {
    job: String,
    /// `/job:worker/replica:0/task:1`.
    task: Arc<str>,
    /// The task's CPU, in full.
    device: Arc<str>,
    incarnation: u64,
    resources: Arc<Resources>,
    executor: Executor,
    plane: Arc<DataPlane>,
    peers: Arc<Peers>,
    groups: Groups,
    open_endpoint: Arc<OpenEndpoint>,
    joined: Arc<collectives::Groups>,
    /// For masters that make no session of their own.
    legacy: Arc<Session>,
    tables: Mutex<Tables>,
    calls: tokio::runtime::Handle,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // The last handle may go within another runtime, where waiting is not allowed.
            runtime.shutdown_background();
        }
    }
}

/// A worker. Cheap to clone; its methods are the RPCs of TensorFlow's WorkerService, for callers in this process too.
#[derive(Clone)]
pub struct Worker {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Worker({})", self.shared.task)
    }
}

impl Worker {
    /// Starts a worker.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(config: WorkerConfig) -> io::Result<Worker> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(CALL_THREADS)
            .thread_name("ringway-calls")
            .enable_all()
            .build()?;
        let device = DeviceName::cpu(&config.job, config.task);
        let resources = Arc::new(Resources::new(&config.job));
        let plane = Arc::new(config.plane);
        let peers = Peers::new(plane.clone(), runtime.handle().clone(), config.addresses, config.credentials);
        let shared = Shared {
            legacy: Arc::new(Session::new("", (String::new(), 0), resources.clone())),
            job: config.job,
            task: device.task_part().to_string().into(),
            device: device.to_string().into(),
            incarnation: incarnation().0,
            resources,
            executor: Executor::new(Pool::new(config.threads)?),
            plane,
            peers: Arc::new(peers),
            groups: Groups::default(),
            open_endpoint: Arc::new(config.open_endpoint),
            joined: Arc::default(),
            tables: Mutex::default(),
            calls: runtime.handle().clone(),
            runtime: Some(runtime),
        };
        Ok(Worker { shared: Arc::new(shared) })
    }

    /// `/job:worker/replica:0/task:1`.
    #[must_use]
    pub fn task(&self) -> &str {
        &self.shared.task
    }

    /// Full name of its device.
    #[must_use]
    pub fn device(&self) -> &Arc<str> {
        &self.shared.device
    }

    /// This life of its device.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.shared.incarnation
    }

    /// What outlives steps, for all sessions that are not isolated.
    #[must_use]
    pub fn resources(&self) -> &Arc<Resources> {
        &self.shared.resources
    }

    /// What runs programs here.
    #[must_use]
    pub fn executor(&self) -> &Executor {
        &self.shared.executor
    }

    /// How it meets other tasks.
    #[must_use]
    pub fn plane(&self) -> &Arc<DataPlane> {
        &self.shared.plane
    }

    /// Ends what the worker does for others on threads of their own: its collective groups.
    pub fn close(&self) {
        self.shared.joined.end(&OpError::new(Code::Cancelled, format!("{} is ending", self.shared.task)));
    }

    /// Learns where the tasks of a cluster are.
    pub fn learn(&self, cluster: &ringway_proto::tensorflow::ClusterDef) {
        self.shared.peers.learn(cluster);
    }

    /// The edges of a step of this number, for steps that are run by others than [`Worker::run_graph`].
    #[must_use]
    pub fn exchange(&self, step: i64) -> Arc<dyn Exchange> {
        let shared = &self.shared;
        let rendezvous = shared.plane.rendezvous.clone();
        Arc::new(exchange::StepExchange::new(step, shared.task.clone(), rendezvous, shared.peers.clone()))
    }

    /// Its collectives, of groups that come together at the first task of its job, or at `leader` where that is given.
    #[must_use]
    pub fn collectives(&self, leader: &str) -> Arc<Collectives> {
        let shared = &self.shared;
        let leader = match leader {
            "" => format!("/job:{}/replica:0/task:0", shared.job),
            leader => DeviceName::parse(leader)
                .map_or_else(|| leader.to_owned(), |device| device.task_part().to_string()),
        };
        Arc::new(Collectives::new(self.clone(), leader, shared.open_endpoint.clone(), shared.joined.clone()))
    }

    fn peers(&self) -> &Arc<Peers> {
        &self.shared.peers
    }

    /// The way to a task, for calls of any service.
    pub(in crate::runtime) fn channel(
        &self,
        task: &str,
    ) -> Result<crate::rpc::credentials::SecureChannel, OpError> {
        Ok(self.shared.peers.find(task)?.channel.clone())
    }

    /// Where calls to other tasks run.
    pub(in crate::runtime) fn calls(&self) -> tokio::runtime::Handle {
        self.shared.calls.clone()
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        // The tables are whole between any two statements.
        self.shared.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
