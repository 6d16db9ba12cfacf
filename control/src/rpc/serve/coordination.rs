//! TensorFlow's coordination service, on top of the coordinator.

use ringway_proto::tensorflow as tf;
use ringway_proto::tensorflow::coordination_service_server::CoordinationService;
use ringway_topology::Incarnation;
use tonic::{Request, Response, Status};

use super::desk::{Desk, unexpected};
use crate::core::coordination::errors::{Code, TaskError};
use crate::core::coordination::request::{BarrierCall, Life, Reply, Request as Ask};
use crate::rpc::convert;

type Answer<T> = Result<Response<T>, Status>;

/// The service.
pub(super) struct Coordination {
    desk: Desk,
    incarnation: Incarnation,
}

impl Coordination {
    pub(super) fn new(desk: Desk, incarnation: Incarnation) -> Self {
        Coordination { desk, incarnation }
    }

    async fn ask(&self, from: Option<Life>, ask: Ask) -> Result<Reply, Status> {
        self.desk.ask_as(from, ask).await.map_err(|refusal| convert::status(&refusal))
    }

    /// For requests whose answer is that they are done.
    async fn done<T: Default>(&self, from: Option<Life>, ask: Ask) -> Answer<T> {
        self.ask(from, ask).await?;
        Ok(Response::new(T::default()))
    }

    async fn entry(&self, from: Option<Life>, ask: Ask) -> Result<tf::KeyValueEntry, Status> {
        match self.ask(from, ask).await? {
            Reply::Entry { key, value } => Ok(convert::entry(key, &value)),
            other => Err(unexpected(&other)),
        }
    }
}

#[tonic::async_trait]
impl CoordinationService for Coordination {
    async fn register_task(
        &self,
        request: Request<tf::RegisterTaskRequest>,
    ) -> Answer<tf::RegisterTaskResponse> {
        let (from, request) = convert::signed(request)?;
        let task = convert::task_of(request.source_task, request.job, request.task)?;
        self.ask(from, Ask::Register { task, incarnation: Incarnation(request.incarnation), silence: None })
            .await?;
        Ok(Response::new(tf::RegisterTaskResponse { leader_incarnation: self.incarnation.0 }))
    }

    async fn register_worker(
        &self,
        request: Request<tf::RegisterTaskRequest>,
    ) -> Answer<tf::RegisterTaskResponse> {
        self.register_task(request).await
    }

    async fn heartbeat(&self, request: Request<tf::HeartbeatRequest>) -> Answer<tf::HeartbeatResponse> {
        let (from, request) = convert::signed(request)?;
        let task = convert::task_of(request.source_task, request.job, request.task)?;
        self.ask(from, Ask::Heartbeat { task, incarnation: Incarnation(request.incarnation) }).await?;
        Ok(Response::new(tf::HeartbeatResponse { leader_incarnation: self.incarnation.0 }))
    }

    async fn wait_for_all_tasks(
        &self,
        request: Request<tf::WaitForAllTasksRequest>,
    ) -> Answer<tf::WaitForAllTasksResponse> {
        let (from, request) = convert::signed(request)?;
        let task = convert::task_of(request.source_task.clone(), request.job.clone(), request.task)?;
        match self.ask(from, Ask::WaitForAll { task, devices: convert::devices(request) }).await? {
            Reply::Devices(devices) => Ok(Response::new(convert::all_devices(&devices, self.incarnation))),
            other => Err(unexpected(&other)),
        }
    }

    async fn shutdown_task(
        &self,
        request: Request<tf::ShutdownTaskRequest>,
    ) -> Answer<tf::ShutdownTaskResponse> {
        let (from, request) = convert::signed(request)?;
        self.done(from, Ask::Shutdown { task: convert::task(request.source_task)? }).await
    }

    async fn reset_task(&self, request: Request<tf::ResetTaskRequest>) -> Answer<tf::ResetTaskResponse> {
        let (from, request) = convert::signed(request)?;
        self.done(from, Ask::Reset { task: convert::task(request.source_task)? }).await
    }

    async fn report_error_to_task(
        &self,
        _: Request<tf::ReportErrorToTaskRequest>,
    ) -> Answer<tf::ReportErrorToTaskResponse> {
        Err(Status::failed_precondition(
            "no agent is behind this port, only the coordination service: use ReportErrorToService",
        ))
    }

    async fn report_error_to_agent(
        &self,
        request: Request<tf::ReportErrorToTaskRequest>,
    ) -> Answer<tf::ReportErrorToTaskResponse> {
        self.report_error_to_task(request).await
    }

    async fn report_error_to_service(
        &self,
        request: Request<tf::ReportErrorToServiceRequest>,
    ) -> Answer<tf::ReportErrorToServiceResponse> {
        let (from, request) = convert::signed(request)?;
        let task = convert::task_of(request.error_origin, request.source_job, request.source_task)?;
        let error = TaskError { code: Code::from_number(request.error_code), message: request.error_message };
        self.done(from, Ask::ReportError { task, error }).await
    }

    async fn get_task_state(
        &self,
        request: Request<tf::GetTaskStateRequest>,
    ) -> Answer<tf::GetTaskStateResponse> {
        let (from, request) = convert::signed(request)?;
        let tasks = convert::tasks(request.source_task)?;
        match self.ask(from, Ask::TaskStates { tasks }).await? {
            Reply::States(states) => {
                let task_state = states.iter().map(convert::state_info).collect();
                Ok(Response::new(tf::GetTaskStateResponse { task_state }))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn watch_job_state(
        &self,
        request: Request<tf::WatchJobStateRequest>,
    ) -> Answer<tf::WatchJobStateResponse> {
        let (from, request) = convert::signed(request)?;
        match self.ask(from, Ask::WatchJob { job: request.job_name, version: request.version_number }).await?
        {
            Reply::Job { states, version } => {
                let task_state = states.iter().map(convert::state_info).collect();
                Ok(Response::new(tf::WatchJobStateResponse { task_state, version_number: version }))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn insert_key_value(
        &self,
        request: Request<tf::InsertKeyValueRequest>,
    ) -> Answer<tf::InsertKeyValueResponse> {
        let sequence = convert::sequence(&request)?;
        let (from, request) = convert::signed(request)?;
        let tf::InsertKeyValueRequest { kv, allow_overwrite } = request;
        let kv = kv.ok_or_else(|| Status::invalid_argument("the request has no key"))?;
        let ask = Ask::Insert { key: kv.key, value: kv.value, overwrite: allow_overwrite };
        self.done(from.clone(), convert::numbered(from, sequence, ask)).await
    }

    async fn get_key_value(
        &self,
        request: Request<tf::GetKeyValueRequest>,
    ) -> Answer<tf::GetKeyValueResponse> {
        let (from, request) = convert::signed(request)?;
        let kv = self.entry(from, Ask::Get { key: request.key }).await?;
        Ok(Response::new(tf::GetKeyValueResponse { kv: Some(kv) }))
    }

    async fn try_get_key_value(
        &self,
        request: Request<tf::TryGetKeyValueRequest>,
    ) -> Answer<tf::TryGetKeyValueResponse> {
        let (from, request) = convert::signed(request)?;
        let kv = self.entry(from, Ask::TryGet { key: request.key }).await?;
        Ok(Response::new(tf::TryGetKeyValueResponse { kv: Some(kv) }))
    }

    async fn increment_key_value(
        &self,
        request: Request<tf::IncrementKeyValueRequest>,
    ) -> Answer<tf::IncrementKeyValueResponse> {
        let sequence = convert::sequence(&request)?;
        let (from, request) = convert::signed(request)?;
        let ask = Ask::Increment { key: request.key, by: request.increment };
        let kv = self.entry(from.clone(), convert::numbered(from, sequence, ask)).await?;
        Ok(Response::new(tf::IncrementKeyValueResponse { kv: Some(kv) }))
    }

    async fn get_key_value_dir(
        &self,
        request: Request<tf::GetKeyValueDirRequest>,
    ) -> Answer<tf::GetKeyValueDirResponse> {
        let (from, request) = convert::signed(request)?;
        match self.ask(from, Ask::GetDirectory { directory: request.directory_key }).await? {
            Reply::Directory { directory, entries } => {
                let kv = entries.into_iter().map(|(key, value)| convert::entry(key, &value)).collect();
                Ok(Response::new(tf::GetKeyValueDirResponse { directory_key: directory, kv }))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn delete_key_value(
        &self,
        request: Request<tf::DeleteKeyValueRequest>,
    ) -> Answer<tf::DeleteKeyValueResponse> {
        let sequence = convert::sequence(&request)?;
        let (from, request) = convert::signed(request)?;
        let ask = Ask::Delete { key: request.key };
        self.done(from.clone(), convert::numbered(from, sequence, ask)).await
    }

    async fn barrier(&self, request: Request<tf::BarrierRequest>) -> Answer<tf::BarrierResponse> {
        let (from, request) = convert::signed(request)?;
        let call = BarrierCall {
            id: request.barrier_id,
            counter: request.counter,
            // The revisions whose clients do not count name each barrier anew.
            counted: request.counter > 0,
            timeout: convert::timeout(request.barrier_timeout_in_ms),
            tasks: convert::tasks(request.tasks)?,
            source: convert::task(request.source_task)?,
        };
        match self.ask(from, Ask::Barrier(call)).await? {
            Reply::Barrier { counter } => Ok(Response::new(tf::BarrierResponse { counter })),
            other => Err(unexpected(&other)),
        }
    }

    async fn cancel_barrier(
        &self,
        request: Request<tf::CancelBarrierRequest>,
    ) -> Answer<tf::CancelBarrierResponse> {
        let (from, request) = convert::signed(request)?;
        let source = convert::task(request.source_task)?;
        self.done(from, Ask::CancelBarrier { id: request.barrier_id, counter: request.counter, source }).await
    }

    async fn get_alive_tasks(
        &self,
        request: Request<tf::GetAliveTasksRequest>,
    ) -> Answer<tf::GetAliveTasksResponse> {
        let (from, request) = convert::signed(request)?;
        let source = convert::task(request.requesting_task)?;
        match self.ask(from, Ask::AliveTasks { source, tasks: convert::tasks(request.tasks)? }).await? {
            Reply::Alive(alive) => Ok(Response::new(tf::GetAliveTasksResponse {
                alive_tasks: alive.iter().map(|(task, _)| convert::coordinated_task(task)).collect(),
                incarnations: alive.iter().map(|(_, incarnation)| incarnation.0).collect(),
            })),
            other => Err(unexpected(&other)),
        }
    }

    async fn poll_for_error(
        &self,
        request: Request<tf::PollForErrorRequest>,
    ) -> Answer<tf::PollForErrorResponse> {
        let (from, request) = convert::signed(request)?;
        self.done(from, Ask::PollForError { task: convert::task(request.source_task)? }).await
    }
}
