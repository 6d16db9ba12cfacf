//! The master at work: sessions over the workers of a cluster. What it decides is in [`crate::core::master`].
//!
//! - [`cluster`]: the tasks, and [`port`]: how a worker is asked, the one of this process and those of others.
//! - `session`: what workers know of a session, and whether they are still the same.
//! - `steps`: one step. `partial`: a run in several parts.
//!
//! [`crate::rpc::serve::master`] is the service in front of it.

pub mod cluster;
pub mod port;

mod partial;
mod session;
mod steps;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ringway_proto::tensorflow as tf;

pub use cluster::{ClusterTask, task_name};
pub use port::{Answer, WorkerPort};

use self::cluster::{Member, members};
use self::partial::Partial;
use self::session::{Origin, Session, join_all, within};
use self::steps::{CleanUp, Run, Share, StepOptions, step_id};
use crate::core::master::leases::Leases;
use crate::core::master::{Devices, MasterError, Signature};
use crate::core::time::Time;
use crate::rpc::credentials::Credentials;

/// How long a worker that does not answer is given before it is asked again.
const RETRY: Duration = Duration::from_millis(250);
/// One try to ask a worker for its devices takes no longer.
const STATUS_LIMIT: Duration = Duration::from_secs(5);
/// Longest pause between two looks for sessions that have ended by their lease.
const LEASES_EVERY: Duration = Duration::from_secs(10);

/// How a master behaves.
#[derive(Clone, Debug)]
pub struct MasterConfig {
    /// The job of the master's own task.
    pub job: String,
    /// Its index in the job.
    pub task: u32,
    /// The tasks that have workers, its own if that has one.
    pub tasks: Vec<ClusterTask>,
    /// This life of the master; drawn at random by the caller.
    pub incarnation: u64,
    /// What workers are shown, and must show.
    pub credentials: Credentials,
    /// A session that nobody uses for so long is closed.
    pub session_lease: Option<Duration>,
    /// How long a session waits for all its workers to be there.
    pub workers_timeout: Duration,
}

impl MasterConfig {
    /// The usual settings: sessions live for a day unused, and wait 5 min for their workers.
    #[must_use]
    pub fn new(job: &str, task: u32, tasks: Vec<ClusterTask>) -> MasterConfig {
        MasterConfig {
            job: job.to_owned(),
            task,
            tasks,
            incarnation: crate::random::incarnation().0,
            credentials: Credentials::default(),
            session_lease: Some(Duration::from_secs(24 * 3600)),
            workers_timeout: Duration::from_secs(300),
        }
    }
}

/// A master. Cheap to clone; its calls must be made within a tokio runtime.
#[derive(Clone)]
pub struct Master(Arc<Inner>);

struct Inner {
    config: MasterConfig,
    began: Instant,
    sessions: Mutex<Leases<Arc<Session>>>,
    /// Leases are looked after.
    watched: AtomicBool,
}

impl std::fmt::Debug for Master {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Master").field(&self.0.config.job).field(&self.0.config.task).finish()
    }
}

/// A session in use.
struct Using {
    master: Arc<Inner>,
    session: Arc<Session>,
}

impl Drop for Using {
    fn drop(&mut self) {
        let now = self.master.now();
        self.master.sessions().release(now, &self.session.handle);
    }
}

impl Inner {
    fn now(&self) -> Time {
        Time::ZERO + self.began.elapsed()
    }

    fn sessions(&self) -> MutexGuard<'_, Leases<Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(self: &Arc<Inner>, handle: &str) -> Result<Using, MasterError> {
        let now = self.now();
        let session = self.sessions().take(now, handle).cloned();
        let session = session.ok_or_else(|| MasterError::NoSession(handle.to_owned()))?;
        Ok(Using { master: self.clone(), session })
    }
}

impl Master {
    /// A master without sessions.
    #[must_use]
    pub fn new(config: MasterConfig) -> Master {
        let sessions = Mutex::new(Leases::new(config.session_lease));
        Master(Arc::new(Inner { config, began: Instant::now(), sessions, watched: AtomicBool::new(false) }))
    }

    /// Begins to close sessions whose lease ends, once there is one.
    fn watch_leases(&self) {
        if self.0.watched.swap(true, Ordering::Relaxed) {
            return;
        }
        let weak = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            loop {
                let Some(inner) = weak.upgrade() else { return };
                let ended = inner.sessions().expire(inner.now());
                for (handle, session) in ended {
                    tracing::info!(session = %handle, "a session that nobody uses is closed");
                    session.end().await;
                }
                let next = inner.sessions().deadline().map(|deadline| deadline.since(inner.now()));
                drop(inner);
                tokio::time::sleep(
                    next.unwrap_or(LEASES_EVERY).clamp(Duration::from_millis(1), LEASES_EVERY),
                )
                .await;
            }
        });
    }

    /// Begins a session.
    ///
    /// # Errors
    /// [`MasterError`]: a graph that is not sound, or workers that are not there.
    pub async fn create_session(
        &self,
        request: tf::CreateSessionRequest,
    ) -> Result<tf::CreateSessionResponse, MasterError> {
        self.watch_leases();
        let config = request.config.unwrap_or_default();
        let own = (self.0.config.job.as_str(), self.0.config.task);
        let members = members(&config, &self.0.config.tasks, own, &self.0.config.credentials)?;
        let devices = self.devices_of(&members, &config).await?;
        let default_task =
            members.iter().position(|member| (member.task.job.as_str(), member.task.index) == own);
        let default_task = default_task.unwrap_or(0);
        let tasks = members.iter().map(|member| member.name.clone()).zip(devices).collect();
        let handle = format!("{:016x}", crate::random::incarnation().0);
        let origin = Origin { task: task_name(own.0, own.1), incarnation: self.0.config.incarnation };
        let devices = Devices::new(tasks, default_task);
        let session = Arc::new(Session::new(handle.clone(), config, members, devices, default_task, origin));
        let begun = session.begin(request.graph_def.unwrap_or_default()).await;
        let now = self.0.now();
        let kept = begun.and_then(|()| self.0.sessions().insert(now, handle.clone(), session.clone()));
        if let Err(why) = kept {
            tokio::spawn(async move { session.end().await });
            return Err(why);
        }
        Ok(tf::CreateSessionResponse { session_handle: handle, graph_version: 0 })
    }

    /// The devices of all members, once all have answered.
    async fn devices_of(
        &self,
        members: &[Member],
        config: &tf::ConfigProto,
    ) -> Result<Vec<Vec<tf::DeviceAttributes>>, MasterError> {
        let limit = u64::try_from(config.operation_timeout_in_ms).ok().filter(|ms| *ms > 0);
        let limit = limit.map_or(self.0.config.workers_timeout, Duration::from_millis);
        let end = Instant::now() + limit;
        let asked = members.iter().map(|member| async move {
            loop {
                match within(STATUS_LIMIT, member.port().get_status()).await {
                    Ok(status) => return Ok(status.device_attributes),
                    Err(why) if !why.lost || Instant::now() + RETRY >= end => {
                        return Err(format!("{} ({})", member.name, why.message));
                    }
                    Err(_) => tokio::time::sleep(RETRY).await,
                }
            }
        });
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for answer in join_all(asked).await {
            match answer {
                Ok(devices) => found.push(devices),
                Err(what) => missing.push(what),
            }
        }
        if missing.is_empty() { Ok(found) } else { Err(MasterError::Missing { missing, limit }) }
    }

    /// Adds nodes to a session's graph.
    ///
    /// # Errors
    /// [`MasterError`]: another version, nodes that are there, or nodes that are not sound.
    pub async fn extend_session(
        &self,
        request: tf::ExtendSessionRequest,
    ) -> Result<tf::ExtendSessionResponse, MasterError> {
        let using = self.0.take(&request.session_handle)?;
        let more = request.graph_def.unwrap_or_default();
        let new_graph_version = using.session.extend(more, request.current_graph_version).await?;
        Ok(tf::ExtendSessionResponse { new_graph_version })
    }

    /// Runs a step, or a part of one that was set up.
    ///
    /// # Errors
    /// [`MasterError`]: what was wrong with the request, or the first cause among the workers' errors.
    pub async fn run_step(&self, request: tf::RunStepRequest) -> Result<tf::RunStepResponse, MasterError> {
        let using = self.0.take(&request.session_handle)?;
        let session = &using.session;
        let run_options = request.options.unwrap_or_default();
        let options = StepOptions::new(&run_options, &session.config);
        let fetches = request.fetch;
        let (fetched, metadata) = if request.partial_run_handle.is_empty() {
            let mut feeds = Vec::with_capacity(request.feed.len());
            let mut names = Vec::with_capacity(request.feed.len());
            for feed in request.feed {
                names.push(feed.name);
                feeds.push(Some(feed.tensor.unwrap_or_default()));
            }
            let signature = Signature {
                feeds: names,
                fetches: fetches.clone(),
                targets: request.target,
                connections: Vec::new(),
                collective_graph_key: graph_key(&run_options),
            };
            (self.whole(session, &signature, feeds, &options).await?, true)
        } else {
            let handle = request.partial_run_handle;
            Partial::next(session, &handle, request.feed, &fetches, &options).await?
        };
        let named = fetches.into_iter().zip(fetched.tensors);
        let tensor =
            named.map(|(name, tensor)| tf::NamedTensorProto { name, tensor: Some(tensor) }).collect();
        let metadata = metadata.then_some(fetched.metadata);
        Ok(tf::RunStepResponse { tensor, metadata, ..tf::RunStepResponse::default() })
    }

    async fn whole(
        &self,
        session: &Arc<Session>,
        signature: &Signature,
        feeds: Vec<Option<tf::TensorProto>>,
        options: &StepOptions,
    ) -> Result<steps::Fetched, MasterError> {
        let registered = session.prepare(signature).await?;
        let step = match signature.collective_graph_key {
            0 => step_id(),
            key => session.next_step(key).await?,
        };
        let mut clean_up = CleanUp::new(session, step, &registered);
        let run = Run { session, registered: &registered, step, options, share: Share::Whole };
        run.run(feeds, &mut clean_up).await
    }

    /// Announces a run in several parts.
    ///
    /// # Errors
    /// [`MasterError`]: names that are not there.
    pub async fn partial_run_setup(
        &self,
        request: tf::PartialRunSetupRequest,
    ) -> Result<tf::PartialRunSetupResponse, MasterError> {
        let using = self.0.take(&request.session_handle)?;
        let signature = Signature {
            feeds: request.feed,
            fetches: request.fetch,
            targets: request.target,
            ..Signature::default()
        };
        let partial_run_handle = Partial::set_up(&using.session, signature).await?;
        Ok(tf::PartialRunSetupResponse { partial_run_handle })
    }

    /// Ends a session. Steps that are under way end with [`MasterError::SessionClosed`].
    ///
    /// # Errors
    /// [`MasterError::NoSession`].
    pub async fn close_session(
        &self,
        request: tf::CloseSessionRequest,
    ) -> Result<tf::CloseSessionResponse, MasterError> {
        let session = self.0.sessions().remove(&request.session_handle);
        session.ok_or(MasterError::NoSession(request.session_handle))?.end().await;
        Ok(tf::CloseSessionResponse {})
    }

    /// The devices of a session; without a handle, those that answer now.
    ///
    /// # Errors
    /// [`MasterError::NoSession`].
    pub async fn list_devices(
        &self,
        request: tf::ListDevicesRequest,
    ) -> Result<tf::ListDevicesResponse, MasterError> {
        let local_device = if request.session_handle.is_empty() {
            let calls = self.0.config.tasks.iter().map(|task| within(STATUS_LIMIT, task.port.get_status()));
            let answers = join_all(calls.collect::<Vec<_>>()).await.into_iter();
            answers.flatten().flat_map(|status| status.device_attributes).collect()
        } else {
            let using = self.0.take(&request.session_handle)?;
            using.session.devices().all().iter().map(|device| device.attributes.clone()).collect()
        };
        Ok(tf::ListDevicesResponse { local_device, remote_device: Vec::new() })
    }

    /// Ends all sessions, and drops the resources of all workers that pass the filters.
    ///
    /// # Errors
    /// [`MasterError::Cluster`] when a filter cannot be read, and the first worker that did not do it.
    pub async fn reset(&self, request: tf::ResetRequest) -> Result<tf::ResetResponse, MasterError> {
        let ended = self.0.sessions().drain();
        join_all(ended.iter().map(|(_, session)| session.end())).await;
        let config = tf::ConfigProto { device_filters: request.device_filters, ..tf::ConfigProto::default() };
        let own = (self.0.config.job.as_str(), self.0.config.task);
        let members = members(&config, &self.0.config.tasks, own, &self.0.config.credentials)?;
        let calls = members.iter().map(|member| {
            let call = member.port().clean_up_all(request.container.clone());
            async move { within(STATUS_LIMIT, call).await.map_err(|why| session::by(member, why)) }
        });
        join_all(calls).await.into_iter().collect::<Result<Vec<()>, _>>()?;
        Ok(tf::ResetResponse {})
    }

    /// Sets feeds, fetches and targets up, to be run many times.
    ///
    /// # Errors
    /// [`MasterError`]: names that are not there, or values that would have to stay on a device other than a CPU.
    pub async fn make_callable(
        &self,
        request: tf::MakeCallableRequest,
    ) -> Result<tf::MakeCallableResponse, MasterError> {
        let using = self.0.take(&request.session_handle)?;
        let options = request.options.unwrap_or_default();
        if let Some(device) =
            options.feed_devices.values().chain(options.fetch_devices.values()).find(|d| !is_cpu(d))
        {
            let why = format!(
                "feeds and fetches travel through host memory here, not on {device}: name a CPU, or none"
            );
            return Err(MasterError::Unimplemented(why));
        }
        let run_options = options.run_options.unwrap_or_default();
        let connections =
            options.tensor_connection.into_iter().map(|link| (link.from_tensor, link.to_tensor));
        let signature = Signature {
            feeds: options.feed,
            fetches: options.fetch,
            targets: options.target,
            connections: connections.collect(),
            collective_graph_key: graph_key(&run_options),
        };
        using.session.prepare(&signature).await?;
        Ok(tf::MakeCallableResponse { handle: using.session.add_callable(signature, run_options)? })
    }

    /// Runs what was set up.
    ///
    /// # Errors
    /// As for [`Master::run_step`], and [`MasterError::NoCallable`].
    pub async fn run_callable(
        &self,
        request: tf::RunCallableRequest,
    ) -> Result<tf::RunCallableResponse, MasterError> {
        let using = self.0.take(&request.session_handle)?;
        let session = &using.session;
        let (signature, options) = session.callable(request.handle)?;
        if request.feed.len() != signature.feeds.len() {
            return Err(MasterError::FeedCount {
                expected: signature.feeds.len(),
                given: request.feed.len(),
            });
        }
        let options = StepOptions::new(&options, &session.config);
        let feeds = request.feed.into_iter().map(Some).collect();
        let fetched = self.whole(session, &signature, feeds, &options).await?;
        Ok(tf::RunCallableResponse { fetch: fetched.tensors, metadata: Some(fetched.metadata) })
    }

    /// Forgets what was set up.
    ///
    /// # Errors
    /// [`MasterError::NoSession`] and [`MasterError::NoCallable`].
    pub async fn release_callable(
        &self,
        request: tf::ReleaseCallableRequest,
    ) -> Result<tf::ReleaseCallableResponse, MasterError> {
        let using = self.0.take(&request.session_handle)?;
        using.session.release_callable(request.handle)?;
        Ok(tf::ReleaseCallableResponse {})
    }
}

fn graph_key(options: &tf::RunOptions) -> i64 {
    options.experimental.as_ref().map_or(0, |experimental| experimental.collective_graph_key)
}

fn is_cpu(device: &str) -> bool {
    let name = crate::core::graph::DeviceName::parse(device);
    name.is_some_and(|name| name.kind.is_none_or(|kind| kind == "CPU"))
}
