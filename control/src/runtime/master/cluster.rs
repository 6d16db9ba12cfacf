//! The tasks that a master may use, and how they are reached.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ringway_proto::tensorflow as tf;

use super::port::WorkerPort;
use crate::core::coordination::errors::Code;
use crate::core::graph::DeviceName;
use crate::core::master::MasterError;
use crate::core::master::step::Failure;
use crate::rpc::client::worker::WorkerClient;
use crate::rpc::credentials::Credentials;

/// Tasks of one cluster.
pub const TASKS_LIMIT: usize = 1 << 16;
/// What a worker says to a session that it does not know: it was started again, or the session's lease ended there.
const SESSION_NOT_FOUND: &str = "Session handle is not found";
/// A connection count that none is: what is there must be looked at before it is used.
const UNSURE: u64 = u64::MAX;

/// A task that has a worker.
#[derive(Clone)]
pub struct ClusterTask {
    /// Its job.
    pub job: String,
    /// Its index in the job.
    pub index: u32,
    /// Its worker.
    pub port: Arc<dyn WorkerPort>,
}

impl ClusterTask {
    /// A task whose worker is at "host:port", reached with these credentials.
    ///
    /// # Errors
    /// [`MasterError::Cluster`] when that is no address.
    pub fn remote(
        job: &str,
        index: u32,
        address: &str,
        credentials: &Credentials,
    ) -> Result<ClusterTask, MasterError> {
        let client = WorkerClient::new(address, credentials)
            .map_err(|error| MasterError::Cluster(format!("task {index} of {job}: '{address}': {error}")))?;
        Ok(ClusterTask { job: job.to_owned(), index, port: Arc::new(client) })
    }

    /// `/job:j/replica:0/task:i`.
    #[must_use]
    pub fn name(&self) -> String {
        task_name(&self.job, self.index)
    }
}

impl std::fmt::Debug for ClusterTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}

/// A task as its devices name it.
#[must_use]
pub fn task_name(job: &str, index: u32) -> String {
    format!("/job:{job}/replica:0/task:{index}")
}

/// A task of one session.
pub(super) struct Member {
    pub(super) task: ClusterTask,
    pub(super) name: String,
    /// The worker's count of lost connections when this session last made sure of it.
    seen: AtomicU64,
    /// The worker does not know the session any more.
    forgotten: AtomicBool,
}

impl Member {
    pub(super) fn new(task: ClusterTask) -> Member {
        Member { name: task.name(), task, seen: AtomicU64::new(UNSURE), forgotten: AtomicBool::new(false) }
    }

    pub(super) fn port(&self) -> &dyn WorkerPort {
        &*self.task.port
    }

    /// Whether the worker is still the one that the session knows, as far as is seen from here.
    pub(super) fn is_sure(&self) -> bool {
        self.seen.load(Ordering::Acquire) == self.port().losses()
    }

    /// The worker was the one that the session knows when its count was `losses`.
    pub(super) fn sure(&self, losses: u64) {
        self.forgotten.store(false, Ordering::Release);
        self.seen.store(losses, Ordering::Release);
    }

    /// Takes note of what a failure says about the worker.
    pub(super) fn hear(&self, failure: &Failure) {
        if failure.code == Code::Aborted && failure.message.contains(SESSION_NOT_FOUND) {
            self.forgotten.store(true, Ordering::Release);
        } else if !failure.lost {
            return;
        }
        self.doubt();
    }

    /// Whether the worker has forgotten the session, as far as is known.
    pub(super) fn has_forgotten(&self) -> bool {
        self.forgotten.load(Ordering::Acquire)
    }

    /// Something points to another process.
    pub(super) fn doubt(&self) {
        self.seen.store(UNSURE, Ordering::Release);
    }
}

/// The tasks that a session uses: those of `config.cluster_def`, or `known`, as far as its filters let them through.
/// `own` is always used where it has a worker.
pub(super) fn members(
    config: &tf::ConfigProto,
    known: &[ClusterTask],
    own: (&str, u32),
    credentials: &Credentials,
) -> Result<Vec<Member>, MasterError> {
    let given = match &config.cluster_def {
        Some(cluster) if !cluster.job.is_empty() => given(cluster, known, credentials)?,
        _ => known.to_vec(),
    };
    let mut filters = Vec::new();
    for filter in &config.device_filters {
        let name = DeviceName::parse(filter);
        filters.push(
            name.ok_or_else(|| MasterError::Cluster(format!("device filter '{filter}' is no device name")))?,
        );
    }
    let passes = |task: &ClusterTask| {
        let name = DeviceName { replica: Some(0), ..DeviceName::cpu(&task.job, task.index) };
        filters.is_empty()
            || (task.job.as_str(), task.index) == own
            || filters.iter().any(|filter| filter.task_part().covers(&name))
    };
    Ok(given.into_iter().filter(passes).map(Member::new).collect())
}

/// The tasks of a cluster that a client describes. A task of this process stays in it.
fn given(
    cluster: &tf::ClusterDef,
    known: &[ClusterTask],
    credentials: &Credentials,
) -> Result<Vec<ClusterTask>, MasterError> {
    let mut tasks = Vec::new();
    for job in &cluster.job {
        for (index, address) in &job.tasks {
            let index = u32::try_from(*index)
                .map_err(|_| MasterError::Cluster(format!("job {} has a task {index}", job.name)))?;
            let there = known.iter().find(|task| task.job == job.name && task.index == index);
            tasks.push(match there {
                Some(task) => task.clone(),
                None => ClusterTask::remote(&job.name, index, address, credentials)?,
            });
            if tasks.len() > TASKS_LIMIT {
                return Err(MasterError::TooMany { what: "tasks", limit: TASKS_LIMIT });
            }
        }
    }
    tasks.sort_by(|a, b| (&a.job, a.index).cmp(&(&b.job, b.index)));
    Ok(tasks)
}
