//! XLA's coordination service, on top of the coordinator: the dialect of JAX, in which tasks are numbers.
//!
//! Task `i` is the i-th task of the cluster: jobs in the order of its description, and their tasks in theirs.

use std::sync::Arc;
use std::time::Duration;

use ringway_proto::xla::coordination as xla;
use ringway_proto::xla::coordination::coordination_service_server::CoordinationService;
use ringway_topology::{Incarnation, TaskId};
use tonic::{Request, Response, Status};

use super::ServerConfig;
use super::desk::{Desk, unexpected};
use crate::core::coordination::request::{BarrierCall, Life, Reply, Request as Ask, State, TaskStatus};
use crate::rpc::convert::{self, XlaTasks};

type Answer<T> = Result<Response<T>, Status>;

/// The service.
pub(super) struct XlaCoordination {
    desk: Desk,
    incarnation: Incarnation,
    tasks: Arc<XlaTasks>,
    /// How long a task may be silent: its heartbeats come at half of what its user gave, and do not say what that was.
    silence: Duration,
}

impl XlaCoordination {
    pub(super) fn new(desk: Desk, config: &ServerConfig) -> Self {
        let tasks = Arc::new(XlaTasks::new(&config.coordinator.jobs));
        XlaCoordination { desk, incarnation: config.incarnation, tasks, silence: config.xla_heartbeat_limit }
    }

    async fn ask(&self, from: Option<Life>, ask: Ask) -> Result<Reply, Status> {
        self.desk.ask_as(from, ask).await.map_err(|refusal| self.tasks.status(&refusal))
    }

    /// For requests whose answer is that they are done.
    async fn done<T: Default>(&self, from: Option<Life>, ask: Ask) -> Answer<T> {
        self.ask(from, ask).await?;
        Ok(Response::new(T::default()))
    }

    async fn entry(&self, from: Option<Life>, ask: Ask) -> Result<Option<xla::KeyValueEntry>, Status> {
        match self.ask(from, ask).await? {
            Reply::Entry { key, value } => Ok(Some(xla::KeyValueEntry { key, value: value.to_vec() })),
            other => Err(unexpected(&other)),
        }
    }

    /// Which life of a task calls, if it says so. Refuses a call that was meant for another life of the service; callers
    /// that do not say are taken at their word.
    fn caller(&self, said: Option<&xla::Incarnations>) -> Result<Option<Life>, Status> {
        let Some(said) = said else { return Ok(None) };
        if said.service_incarnation != 0 && said.service_incarnation != self.incarnation.0 {
            return Err(convert::service_mismatch(said.service_incarnation, self.incarnation));
        }
        // JAX leaves the field for the task's number empty.
        let life = Life { task: None, incarnation: Incarnation(said.task_incarnation) };
        Ok((said.task_incarnation != 0).then_some(life))
    }

    fn task_info(&self, status: &TaskStatus) -> xla::TaskInfo {
        let state = match status.state {
            State::Disconnected => xla::TaskState::Disconnected,
            State::Connected => xla::TaskState::Connected,
            State::Error => xla::TaskState::Error,
        };
        let error = status.error.as_ref();
        xla::TaskInfo {
            task_id: self.tasks.number(&status.task),
            state: state.into(),
            error_code: error.map_or(0, |error| error.code.number()),
            error_message: error.map_or_else(String::new, |error| error.message.to_string()),
            error_payload: error.map(|error| self.tasks.error_payload(error)),
            incarnation: status.incarnation.0,
        }
    }
}

#[tonic::async_trait]
impl CoordinationService for XlaCoordination {
    /// Answers when all tasks have registered.
    async fn register_task(
        &self,
        request: Request<xla::RegisterTaskRequest>,
    ) -> Answer<xla::RegisterTaskResponse> {
        let request = request.into_inner();
        let task = self.tasks.task(request.source_task_id)?;
        let incarnation = Incarnation(request.incarnation);
        let silence = Some(self.silence);
        self.ask(None, Ask::RegisterTogether { task, incarnation, silence }).await?;
        Ok(Response::new(xla::RegisterTaskResponse { service_incarnation: self.incarnation.0 }))
    }

    async fn heartbeat(&self, request: Request<xla::HeartbeatRequest>) -> Answer<xla::HeartbeatResponse> {
        let request = request.into_inner();
        let from = self.caller(request.incarnations.as_ref())?;
        let task = self.tasks.task(request.source_task_id)?;
        self.ask(from, Ask::Heartbeat { task, incarnation: Incarnation(request.incarnation) }).await?;
        Ok(Response::new(xla::HeartbeatResponse { service_incarnation: self.incarnation.0 }))
    }

    async fn shutdown_task(
        &self,
        request: Request<xla::ShutdownTaskRequest>,
    ) -> Answer<xla::ShutdownTaskResponse> {
        let request = request.into_inner();
        let from = self.caller(request.incarnations.as_ref())?;
        self.done(from, Ask::Shutdown { task: self.tasks.task(request.source_task_id)? }).await
    }

    async fn watch_tasks(&self, request: Request<xla::WatchTasksRequest>) -> Answer<xla::WatchTasksResponse> {
        let request = request.into_inner();
        let from = self.caller(request.incarnations.as_ref())?;
        let job = self.tasks.only_job()?.to_owned();
        match self.ask(from, Ask::WatchJob { job, version: request.version_number }).await? {
            Reply::Job { states, version } => {
                let task_state = states.iter().map(|status| self.task_info(status)).collect();
                Ok(Response::new(xla::WatchTasksResponse { task_state, version_number: version }))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn insert_key_value(
        &self,
        request: Request<xla::InsertKeyValueRequest>,
    ) -> Answer<xla::InsertKeyValueResponse> {
        let request = request.into_inner();
        let from = self.caller(request.incarnations.as_ref())?;
        let kv = request.kv.ok_or_else(|| Status::invalid_argument("the request has no key"))?;
        self.done(from, Ask::Insert { key: kv.key, value: kv.value, overwrite: request.allow_overwrite })
            .await
    }

    async fn get_key_value(
        &self,
        request: Request<xla::GetKeyValueRequest>,
    ) -> Answer<xla::GetKeyValueResponse> {
        let request = request.into_inner();
        let from = self.caller(request.incarnations.as_ref())?;
        let kv = self.entry(from, Ask::Get { key: request.key }).await?;
        Ok(Response::new(xla::GetKeyValueResponse { kv }))
    }

    async fn try_get_key_value(
        &self,
        request: Request<xla::TryGetKeyValueRequest>,
    ) -> Answer<xla::TryGetKeyValueResponse> {
        let request = request.into_inner();
        let from = self.caller(request.incarnations.as_ref())?;
        let kv = self.entry(from, Ask::TryGet { key: request.key }).await?;
        Ok(Response::new(xla::TryGetKeyValueResponse { kv }))
    }

    async fn increment_key_value(
        &self,
        request: Request<xla::IncrementKeyValueRequest>,
    ) -> Answer<xla::IncrementKeyValueResponse> {
        let request = request.into_inner();
        let from = self.caller(request.incarnations.as_ref())?;
        let kv = self.entry(from, Ask::Increment { key: request.key, by: request.increment }).await?;
        Ok(Response::new(xla::IncrementKeyValueResponse { kv }))
    }

    async fn get_key_value_dir(
        &self,
        request: Request<xla::GetKeyValueDirRequest>,
    ) -> Answer<xla::GetKeyValueDirResponse> {
        let request = request.into_inner();
        let from = self.caller(request.incarnations.as_ref())?;
        match self.ask(from, Ask::GetDirectory { directory: request.directory_key }).await? {
            Reply::Directory { directory, entries } => {
                let entries = entries.into_iter();
                let kv = entries.map(|(key, value)| xla::KeyValueEntry { key, value: value.to_vec() });
                Ok(Response::new(xla::GetKeyValueDirResponse { directory_key: directory, kv: kv.collect() }))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn delete_key_value(
        &self,
        request: Request<xla::DeleteKeyValueRequest>,
    ) -> Answer<xla::DeleteKeyValueResponse> {
        let request = request.into_inner();
        let from = self.caller(request.incarnations.as_ref())?;
        self.done(from, Ask::Delete { key: request.key }).await
    }

    async fn barrier(&self, request: Request<xla::BarrierRequest>) -> Answer<xla::BarrierResponse> {
        let request = request.into_inner();
        let from = self.caller(request.incarnations.as_ref())?;
        let call = BarrierCall {
            id: request.barrier_id,
            counter: request.counter,
            counted: true,
            timeout: convert::timeout(request.barrier_timeout_in_ms),
            tasks: self.tasks.tasks(&request.task_ids)?,
            source: self.tasks.task(request.source_task_id)?,
        };
        match self.ask(from, Ask::Barrier(call)).await? {
            Reply::Barrier { counter } => Ok(Response::new(xla::BarrierResponse { counter })),
            other => Err(unexpected(&other)),
        }
    }

    async fn cancel_barrier(
        &self,
        request: Request<xla::CancelBarrierRequest>,
    ) -> Answer<xla::CancelBarrierResponse> {
        let request = request.into_inner();
        let from = self.caller(request.incarnations.as_ref())?;
        let source: TaskId = self.tasks.task(request.source_task_id)?;
        self.done(from, Ask::CancelBarrier { id: request.barrier_id, counter: request.counter, source }).await
    }

    async fn get_alive_tasks(
        &self,
        request: Request<xla::GetAliveTasksRequest>,
    ) -> Answer<xla::GetAliveTasksResponse> {
        let request = request.into_inner();
        let from = self.caller(request.incarnations.as_ref())?;
        let source = self.tasks.task(request.requesting_task_id)?;
        match self.ask(from, Ask::AliveTasks { source, tasks: self.tasks.tasks(&request.task_ids)? }).await? {
            Reply::Alive(alive) => Ok(Response::new(xla::GetAliveTasksResponse {
                alive_task_ids: alive.iter().map(|(task, _)| self.tasks.number(task)).collect(),
                incarnations: alive.iter().map(|(_, incarnation)| incarnation.0).collect(),
            })),
            other => Err(unexpected(&other)),
        }
    }

    async fn poll_for_error(
        &self,
        request: Request<xla::PollForErrorRequest>,
    ) -> Answer<xla::PollForErrorResponse> {
        let request = request.into_inner();
        let from = self.caller(request.incarnations.as_ref())?;
        self.done(from, Ask::PollForError { task: self.tasks.task(request.source_task_id)? }).await
    }
}
