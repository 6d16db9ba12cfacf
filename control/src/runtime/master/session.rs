//! A session that lives: its graph, what its workers know of it, and whether they are still the same.
//!
//! - **V1** A run is registered at each of its workers once, and again only after a worker was another one.
//! - **V2** Before a step, no worker of it is in doubt: one whose connection ended is asked who it is. One that was
//!   started again gets its session and its graphs anew, under its new incarnation.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringway_proto::tensorflow as tf;
use tokio::sync::watch;

use super::cluster::Member;
use super::partial::Partial;
use crate::core::coordination::errors::Code;
use crate::core::graph::DeviceName;
use crate::core::master::step::Failure;
use crate::core::master::{Devices, MasterError, Plan, Plans, Program, Signature};

/// Callables of one session.
const CALLABLES_LIMIT: usize = 1 << 16;
/// How long a worker has to say who it is.
const STATUS_LIMIT: Duration = Duration::from_secs(5);
/// How long a worker has to take a session or a graph.
const REGISTER_LIMIT: Duration = Duration::from_secs(120);
/// How long a worker has to forget something.
const FORGET_LIMIT: Duration = Duration::from_secs(5);
/// Workers that are started again while a step waits to begin; past that the step fails.
const RENEWALS_LIMIT: usize = 4;

/// Where a session comes from.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    /// The master's task.
    pub(super) task: String,
    /// This life of the master.
    pub(super) incarnation: u64,
}

/// One session.
pub(super) struct Session {
    pub(super) handle: String,
    pub(super) config: tf::ConfigProto,
    pub(super) members: Vec<Member>,
    origin: Origin,
    default_task: usize,
    state: Mutex<State>,
    /// Held while workers are told something that changes them.
    changing: tokio::sync::Mutex<()>,
    ended: watch::Sender<Option<MasterError>>,
}

#[derive(Default)]
struct State {
    program: Arc<Program>,
    devices: Arc<Devices>,
    plans: Plans<Arc<Registered>>,
    callables: HashMap<i64, (Signature, tf::RunOptions)>,
    next_callable: i64,
    partial: HashMap<String, Arc<Partial>>,
    next_partial: u64,
}

/// A run that its workers know.
#[derive(Debug)]
pub(super) struct Registered {
    /// The run; its graphs are at the workers.
    pub(super) plan: Plan,
    /// For each part, the worker's handle.
    pub(super) handles: Vec<String>,
}

/// Ends a call that takes too long.
pub(super) async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
        let message =
            format!("no answer within {limit:?}: the process is stopped, or its host cannot be reached");
        Err(Failure { code: Code::Unavailable, message, lost: true })
    })
}

/// A worker's failure as the session's error.
pub(super) fn by(member: &Member, failure: Failure) -> MasterError {
    member.hear(&failure);
    MasterError::Worker { task: member.name.clone(), code: failure.code, message: failure.message }
}

impl Session {
    /// A session over workers that have said what devices they have.
    pub(super) fn new(
        handle: String,
        config: tf::ConfigProto,
        members: Vec<Member>,
        devices: Devices,
        default_task: usize,
        origin: Origin,
    ) -> Session {
        let state = State { devices: Arc::new(devices), ..State::default() };
        let (changing, (ended, _)) = (tokio::sync::Mutex::default(), watch::channel(None));
        Session { handle, config, members, origin, default_task, state: Mutex::new(state), changing, ended }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn soft(&self) -> bool {
        self.config.allow_soft_placement
    }

    /// Gives the session its graph, and begins it at all workers.
    pub(super) async fn begin(&self, graph: tf::GraphDef) -> Result<(), MasterError> {
        let devices = self.devices();
        let program = Program::new(graph, &devices, self.soft())?;
        self.state().program = Arc::new(program);
        let calls = self.members.iter().map(|member| self.introduce(member));
        join_all(calls).await.into_iter().collect()
    }

    /// Begins the session at one worker, which is then certain.
    async fn introduce(&self, member: &Member) -> Result<(), MasterError> {
        let losses = member.port().losses();
        let server = tf::ServerDef {
            job_name: member.task.job.clone(),
            task_index: i32::try_from(member.task.index).unwrap_or(i32::MAX),
            protocol: "grpc".to_owned(),
            cluster: self.config.cluster_def.clone(),
            default_session_config: Some(self.config.clone()),
            ..tf::ServerDef::default()
        };
        let request = tf::CreateWorkerSessionRequest {
            session_handle: self.handle.clone(),
            server_def: Some(server),
            isolate_session_state: self.config.isolate_session_state,
            master_task: self.origin.task.clone(),
            // The wire has it signed: the same bits.
            master_incarnation: self.origin.incarnation as i64,
            ..tf::CreateWorkerSessionRequest::default()
        };
        within(REGISTER_LIMIT, member.port().create_session(request)).await.map_err(|why| by(member, why))?;
        member.sure(losses);
        Ok(())
    }

    pub(super) fn devices(&self) -> Arc<Devices> {
        self.state().devices.clone()
    }

    pub(super) fn program(&self) -> Arc<Program> {
        self.state().program.clone()
    }

    /// Adds to the graph. The new version.
    pub(super) async fn extend(&self, more: tf::GraphDef, expected: i64) -> Result<i64, MasterError> {
        let _turn = self.changing.lock().await;
        let (program, devices) = (self.program(), self.devices());
        let extended = program.extend(more, expected, &devices, self.soft())?;
        let version = extended.version();
        self.state().program = Arc::new(extended);
        Ok(version)
    }

    /// The run for a signature, known to its workers, none of which is in doubt (V1, V2).
    pub(super) async fn prepare(&self, signature: &Signature) -> Result<Arc<Registered>, MasterError> {
        if let Some(ready) = self.ready(signature) {
            return Ok(ready);
        }
        let _turn = self.changing.lock().await;
        for _ in 0..RENEWALS_LIMIT {
            if let Some(ready) = self.ready(signature) {
                return Ok(ready);
            }
            let (program, devices) = (self.program(), self.devices());
            let plan = match self.known(signature) {
                Some(known) => known.plan.clone(),
                None => program.plan(signature.clone(), &devices)?,
            };
            if self.renew(&plan).await? || self.known(signature).is_some() {
                continue;
            }
            let tasks: Vec<usize> = plan.parts.iter().map(|part| part.task).collect();
            match self.register(plan).await {
                Err(_) if tasks.iter().any(|task| self.members[*task].has_forgotten()) => {}
                result => return result,
            }
        }
        Err(MasterError::SessionClosed(format!("{} (its workers end again and again)", self.handle)))
    }

    fn known(&self, signature: &Signature) -> Option<Arc<Registered>> {
        self.state().plans.get(signature).cloned()
    }

    fn ready(&self, signature: &Signature) -> Option<Arc<Registered>> {
        let known = self.known(signature)?;
        known.plan.parts.iter().all(|part| self.members[part.task].is_sure()).then_some(known)
    }

    /// Asks workers of a run that are in doubt who they are. Whether one of them is another.
    async fn renew(&self, plan: &Plan) -> Result<bool, MasterError> {
        let mut changed = false;
        for part in &plan.parts {
            let member = &self.members[part.task];
            if member.is_sure() {
                continue;
            }
            let losses = member.port().losses();
            let status =
                within(STATUS_LIMIT, member.port().get_status()).await.map_err(|why| by(member, why))?;
            if self.is_same(part.task, &status) {
                if member.has_forgotten() {
                    self.introduce(member).await?;
                    let old = self.state().plans.drain();
                    old.into_iter().for_each(|old| self.forget(&old, Some(part.task)));
                    changed = true;
                }
                member.sure(losses);
                continue;
            }
            tracing::info!(session = %self.handle, task = %member.name, "a worker was started again");
            self.replace(part.task, status)?;
            self.introduce(member).await?;
            changed = true;
        }
        Ok(changed)
    }

    fn is_same(&self, task: usize, status: &tf::GetStatusResponse) -> bool {
        let devices = self.devices();
        let known: Vec<_> = devices.all().iter().filter(|device| device.task == task).collect();
        known.len() == status.device_attributes.len()
            && known.iter().zip(&status.device_attributes).all(|(known, now)| {
                known.incarnation() == now.incarnation && known.attributes.name == now.name
            })
    }

    /// Takes in the devices of a worker that was started again. All runs are made anew: keys hold incarnations.
    fn replace(&self, task: usize, status: tf::GetStatusResponse) -> Result<(), MasterError> {
        let mut state = self.state();
        let mut tasks: Vec<(String, Vec<tf::DeviceAttributes>)> =
            self.members.iter().map(|member| (member.name.clone(), Vec::new())).collect();
        for device in state.devices.all().iter().filter(|device| device.task != task) {
            tasks[device.task].1.push(device.attributes.clone());
        }
        tasks[task].1 = status.device_attributes;
        let devices = Devices::new(tasks, self.default_task);
        if devices.names() != state.devices.names() {
            return Err(MasterError::Worker {
                task: self.members[task].name.clone(),
                code: Code::Aborted,
                message: "the worker was started again with other devices: begin a new session".to_owned(),
            });
        }
        state.devices = Arc::new(devices);
        let old = state.plans.drain();
        drop(state);
        old.into_iter().for_each(|old| self.forget(&old, Some(task)));
        Ok(())
    }

    async fn register(&self, mut plan: Plan) -> Result<Arc<Registered>, MasterError> {
        let calls = plan.parts.iter_mut().map(|part| {
            let request = tf::RegisterGraphRequest {
                session_handle: self.handle.clone(),
                create_worker_session_called: true,
                graph_def: Some(std::mem::take(&mut part.graph)),
                graph_options: Some(self.config.graph_options.clone().unwrap_or_default()),
                debug_options: Some(tf::DebugOptions::default()),
                collective_graph_key: plan.signature.collective_graph_key,
                config_proto: Some(self.config.clone()),
                ..tf::RegisterGraphRequest::default()
            };
            let member = &self.members[part.task];
            async move {
                within(REGISTER_LIMIT, member.port().register_graph(request))
                    .await
                    .map_err(|why| by(member, why))
            }
        });
        let answers = join_all(calls.collect::<Vec<_>>()).await;
        let failed = answers.iter().find_map(|answer| answer.as_ref().err().cloned());
        let handles = answers.into_iter().map(Result::unwrap_or_default).collect();
        let registered = Arc::new(Registered { plan, handles });
        if let Some(error) = failed {
            self.forget(&registered, None);
            return Err(error);
        }
        let gone = self.state().plans.insert(registered.plan.signature.clone(), registered.clone());
        gone.iter().for_each(|gone| self.forget(gone, None));
        Ok(registered)
    }

    /// Has workers forget a run, in the background; all but `without`.
    fn forget(&self, registered: &Registered, without: Option<usize>) {
        for (part, handle) in registered.plan.parts.iter().zip(&registered.handles) {
            if Some(part.task) == without || handle.is_empty() {
                continue;
            }
            let request = tf::DeregisterGraphRequest {
                session_handle: self.handle.clone(),
                create_worker_session_called: true,
                graph_handle: handle.clone(),
            };
            // A worker that cannot be reached has nothing to forget.
            let call = self.members[part.task].port().deregister_graph(request);
            tokio::spawn(within(FORGET_LIMIT, call));
        }
    }

    /// The id of the next step of a group of collectives, which several masters run together: its leader counts.
    pub(super) async fn next_step(&self, graph_key: i64) -> Result<i64, MasterError> {
        let leader = self
            .config
            .experimental
            .as_ref()
            .map_or("", |experimental| &experimental.collective_group_leader);
        let leader = DeviceName::parse(leader).unwrap_or_default();
        let led = |member: &&Member| {
            let full =
                DeviceName { replica: Some(0), ..DeviceName::cpu(&member.task.job, member.task.index) };
            leader.task_part().covers(&full)
        };
        let Some(member) = self.members.iter().find(led) else {
            return Err(MasterError::Cluster(format!(
                "the collective group leader {leader} is not a task of the session"
            )));
        };
        within(STATUS_LIMIT, member.port().next_step(graph_key)).await.map_err(|why| by(member, why))
    }

    /// A worker does not know what it was told: it must have been another one.
    pub(super) fn distrust(&self, registered: &Registered, task: usize) {
        self.members[task].doubt();
        let mut state = self.state();
        let same = |known: &Arc<Registered>| std::ptr::eq(&**known, registered);
        if state.plans.get(&registered.plan.signature).is_some_and(same) {
            state.plans.remove(&registered.plan.signature);
            drop(state);
            self.forget(registered, Some(task));
        }
    }

    /// Keeps a callable. Its handle.
    pub(super) fn add_callable(
        &self,
        signature: Signature,
        options: tf::RunOptions,
    ) -> Result<i64, MasterError> {
        let mut state = self.state();
        if state.callables.len() >= CALLABLES_LIMIT {
            return Err(MasterError::TooMany { what: "callables", limit: CALLABLES_LIMIT });
        }
        let handle = state.next_callable;
        state.next_callable += 1;
        state.callables.insert(handle, (signature, options));
        Ok(handle)
    }

    pub(super) fn callable(&self, handle: i64) -> Result<(Signature, tf::RunOptions), MasterError> {
        self.state().callables.get(&handle).cloned().ok_or(MasterError::NoCallable(handle))
    }

    pub(super) fn release_callable(&self, handle: i64) -> Result<(), MasterError> {
        self.state().callables.remove(&handle).map(|_| ()).ok_or(MasterError::NoCallable(handle))
    }

    /// Keeps a run in parts. Its handle.
    pub(super) fn add_partial(&self, partial: Partial) -> Result<String, MasterError> {
        let mut state = self.state();
        if state.partial.len() >= super::partial::PARTIAL_LIMIT {
            return Err(MasterError::TooMany { what: "partial runs", limit: super::partial::PARTIAL_LIMIT });
        }
        let handle = state.next_partial.to_string();
        state.next_partial += 1;
        state.partial.insert(handle.clone(), Arc::new(partial));
        Ok(handle)
    }

    pub(super) fn partial(&self, handle: &str) -> Result<Arc<Partial>, MasterError> {
        let known = self.state().partial.get(handle).cloned();
        known.ok_or_else(|| MasterError::NoPartialRun(handle.to_owned()))
    }

    pub(super) fn remove_partial(&self, handle: &str) {
        let gone = self.state().partial.remove(handle);
        // Its end may tell workers something: not under the lock.
        drop(gone);
    }

    /// Hears of the session's end.
    pub(super) fn watch(&self) -> watch::Receiver<Option<MasterError>> {
        self.ended.subscribe()
    }

    /// Ends all steps, and the session at all workers that can be reached.
    pub(super) async fn end(&self) {
        self.ended.send_replace(Some(MasterError::SessionClosed(self.handle.clone())));
        let partial = std::mem::take(&mut self.state().partial);
        drop(partial);
        let calls = self.members.iter().map(|member| {
            let request = tf::DeleteWorkerSessionRequest { session_handle: self.handle.clone() };
            within(FORGET_LIMIT, member.port().delete_session(request))
        });
        for (answer, member) in join_all(calls.collect::<Vec<_>>()).await.into_iter().zip(&self.members) {
            if let Err(why) = answer {
                tracing::debug!(session = %self.handle, task = %member.name, why = %why.message, "not told of a session's end");
            }
        }
    }
}

/// Makes calls at once, and waits for all. Their results in order.
pub(super) async fn join_all<F: Future>(calls: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut calls: Vec<_> = calls.into_iter().map(|call| Some(Box::pin(call))).collect();
    let mut results: Vec<Option<F::Output>> = calls.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (call, result) in calls.iter_mut().zip(&mut results) {
            if let Some(running) = call
                && let std::task::Poll::Ready(done) = running.as_mut().poll(cx)
            {
                (*call, *result) = (None, Some(done));
            }
        }
        if calls.iter().any(Option::is_some) { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    results.into_iter().flatten().collect()
}
