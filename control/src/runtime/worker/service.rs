//! What a worker answers: one method per RPC of TensorFlow's WorkerService, for callers in this process too.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use prost::Message;
use prost_types::Any;
use ringway_dataplane::rendezvous::{Key, Source, StepId};
use ringway_proto::tensorflow as wire;
use ringway_proto::tensorflow::error::Code;
use tonic::Status;

use super::convert::{rendezvous_error, status, why};
use super::exchange::{StepExchange, is_of};
use super::peers::DATA_PLANE_TASK;
use super::program::{Functions, Program, ProgramError};
use super::sessions::{Registered, SESSIONS_LIMIT, Session};
use super::step::Step;
use super::trace::Trace;
use super::{Traffic, Worker};
use crate::core::graph::Graph;
use crate::kernels::{OpError, Resources};
use crate::random::incarnation;
use crate::rpc::TENSORS_OF_A_MESSAGE_BYTES;
use crate::tensor::{Tensor, type_name};

/// Memory of a device as TensorFlow's own CPU devices give it.
const MEMORY_LIMIT_BYTES: i64 = 256 << 20;
/// Longest pause between two looks for sessions that nobody uses.
const SESSIONS_EVERY: Duration = Duration::from_secs(10);
/// "Not given", of the id that XLA gives to devices.
const NO_XLA_ID: i64 = -1;

fn refuse(code: Code, message: impl Into<String>) -> Status {
    status(&OpError::new(code, message))
}

/// The tensor as part of a message that has `so_far` bytes of tensors, or why it cannot be.
fn message_of(tensor: &Tensor, key: &Key, so_far: &mut usize) -> Result<wire::TensorProto, OpError> {
    let message = tensor.to_proto();
    *so_far = so_far.saturating_add(message.encoded_len());
    if *so_far <= TENSORS_OF_A_MESSAGE_BYTES {
        return Ok(message);
    }
    let name = key.parts().map_or("", |parts| parts.tensor_name);
    let why = format!(
        "{name}, of shape {} and type {}, makes {so_far} bytes in one message, which may hold {}: fetch it in parts \
         (tf.slice), fewer tensors at once, or what is computed from it",
        tensor.shape(),
        type_name(tensor.dtype()),
        TENSORS_OF_A_MESSAGE_BYTES,
    );
    Err(OpError::new(Code::ResourceExhausted, why))
}

/// Aborts a step whose caller went away before it was over.
struct Guard<'a> {
    worker: &'a Worker,
    step: Arc<Step>,
    over: bool,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.step.abort(&OpError::new(Code::Cancelled, "RunGraph: the caller went away"));
        }
        self.worker.leave(&self.step);
    }
}

impl Worker {
    /// The devices of this worker.
    #[must_use]
    pub fn devices(&self) -> Vec<wire::DeviceAttributes> {
        vec![wire::DeviceAttributes {
            name: self.shared.device.to_string(),
            device_type: "CPU".to_owned(),
            memory_limit: MEMORY_LIMIT_BYTES,
            locality: Some(wire::DeviceLocality::default()),
            incarnation: self.shared.incarnation,
            xla_global_id: NO_XLA_ID,
            ..Default::default()
        }]
    }

    /// Its devices.
    ///
    /// # Errors
    /// None; the status is there for the likeness to the others.
    pub async fn get_status(&self, _: wire::GetStatusRequest) -> Result<wire::GetStatusResponse, Status> {
        Ok(wire::GetStatusResponse { device_attributes: self.devices() })
    }

    /// Begins a session.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` past [`SESSIONS_LIMIT`].
    pub async fn create_worker_session(
        &self,
        request: wire::CreateWorkerSessionRequest,
    ) -> Result<wire::CreateWorkerSessionResponse, Status> {
        if let Some(cluster) = request.server_def.as_ref().and_then(|def| def.cluster.as_ref()) {
            self.shared.peers.learn(cluster);
        }
        let master = (request.master_task, request.master_incarnation);
        self.forget_earlier_lives(&master);
        let resources = match request.isolate_session_state {
            true => Arc::new(Resources::new(&self.shared.job)),
            false => self.shared.resources.clone(),
        };
        let session = Session::new(&request.session_handle, master, resources);
        let mut tables = self.tables();
        if tables.sessions.len() >= SESSIONS_LIMIT {
            let message = format!("this worker has {SESSIONS_LIMIT} sessions, the most it takes: close some");
            return Err(refuse(Code::ResourceExhausted, message));
        }
        tables.sessions.insert(request.session_handle, Arc::new(session));
        Ok(wire::CreateWorkerSessionResponse {})
    }

    /// A master that was started again has lost what its earlier life had here.
    fn forget_earlier_lives(&self, (name, life): &(String, i64)) {
        if name.is_empty() || *life == 0 {
            return;
        }
        let stale = |session: &&Arc<Session>| session.master.0 == *name && session.master.1 != *life;
        let stale: Vec<String> =
            self.tables().sessions.values().filter(stale).map(|session| session.handle.clone()).collect();
        for handle in stale {
            tracing::info!(
                master = name,
                session = handle,
                "the master was started again: its session is over"
            );
            self.end_session(&handle);
        }
    }

    /// Ends a session: its graphs go, and its steps are aborted.
    ///
    /// # Errors
    /// None: a session that is not there has ended.
    pub async fn delete_worker_session(
        &self,
        request: wire::DeleteWorkerSessionRequest,
    ) -> Result<wire::DeleteWorkerSessionResponse, Status> {
        self.end_session(&request.session_handle);
        Ok(wire::DeleteWorkerSessionResponse {})
    }

    fn end_session(&self, handle: &str) {
        let steps: Vec<i64> = {
            let mut tables = self.tables();
            tables.sessions.remove(handle);
            tables.steps.iter().filter(|(_, step)| step.session == handle).map(|(id, _)| *id).collect()
        };
        let why = OpError::new(Code::Cancelled, format!("the session {handle} was closed"));
        for id in steps {
            self.abort_step(id, &why);
            self.end_step(id);
        }
    }

    /// Ends sessions that nobody has used for `lease`, as they come to that. Runs until it is dropped.
    pub async fn watch_sessions(&self, lease: Option<Duration>) {
        let Some(lease) = lease else { return };
        loop {
            let now = Instant::now();
            let (over, next) = self.tables().ended(now, lease);
            for handle in over {
                tracing::info!(session = handle, "a session that no master uses any more is over");
                self.end_session(&handle);
            }
            let next = next.map_or(SESSIONS_EVERY, |next| next.saturating_duration_since(now));
            tokio::time::sleep(next.clamp(Duration::from_millis(1), SESSIONS_EVERY)).await;
        }
    }

    fn session(&self, handle: &str, created: bool) -> Result<Arc<Session>, Status> {
        if !created {
            return Ok(self.shared.legacy.clone());
        }
        let session = self.tables().sessions.get(handle).cloned();
        session.inspect(|session| session.touch(Instant::now())).ok_or_else(|| {
            let task = &self.shared.task;
            let message = format!(
                "Session handle is not found: {handle}. Possibly this worker (\"{task}\") just restarted."
            );
            refuse(Code::Aborted, message)
        })
    }

    /// Takes a partition of a graph, and makes it ready to run.
    ///
    /// # Errors
    /// When the graph is not sound, or has an operation that is not computed here.
    pub async fn register_graph(
        &self,
        request: wire::RegisterGraphRequest,
    ) -> Result<wire::RegisterGraphResponse, Status> {
        let session = self.session(&request.session_handle, request.create_worker_session_called)?;
        let def = request.graph_def.unwrap_or_default();
        let experimental = request.config_proto.and_then(|config| config.experimental);
        let leader = experimental.map(|given| given.collective_group_leader).unwrap_or_default();
        let collectives = self.collectives(&leader);
        let made = tokio::task::spawn_blocking(move || -> Result<Registered, ProgramError> {
            let graph = Graph::from_def(&def)?;
            let functions = Arc::new(Functions::new(graph.library().clone()));
            Ok(Registered { program: Arc::new(Program::new(&graph)?), functions, collectives })
        });
        let made = made.await.map_err(|error| refuse(Code::Internal, format!("RegisterGraph: {error}")))?;
        let graph = made.map_err(|error| refuse(error.code(), error.to_string()))?;
        let graph_handle = format!("{:016x}", incarnation().0);
        if !session.keep(&graph_handle, graph) {
            let message = "this session has as many graphs as it may have: deregister some";
            return Err(refuse(Code::ResourceExhausted, message));
        }
        Ok(wire::RegisterGraphResponse { graph_handle })
    }

    /// Forgets a graph. Steps of it that run go on.
    ///
    /// # Errors
    /// `ABORTED` when there is no such session or graph.
    pub async fn deregister_graph(
        &self,
        request: wire::DeregisterGraphRequest,
    ) -> Result<wire::DeregisterGraphResponse, Status> {
        let session = self.session(&request.session_handle, request.create_worker_session_called)?;
        match session.forget(&request.graph_handle) {
            true => Ok(wire::DeregisterGraphResponse {}),
            false => Err(self.no_graph(&request.graph_handle)),
        }
    }

    fn no_graph(&self, handle: &str) -> Status {
        let task = &self.shared.task;
        let message = format!(
            "Graph handle is not found: {handle}. Possibly, this worker (\"{task}\") just restarted."
        );
        refuse(Code::Aborted, message)
    }

    /// Runs a partition as part of a step. Errors of the step come in the response where the caller asks for that.
    ///
    /// # Errors
    /// What a node fails with, with its name; `ABORTED` when there is no such session or graph.
    pub async fn run_graph(&self, request: wire::RunGraphRequest) -> Result<wire::RunGraphResponse, Status> {
        let in_body = request.store_errors_in_response_body;
        match self.run(request).await {
            Err(error) if in_body => Ok(wire::RunGraphResponse {
                status_code: error.code() as i32,
                status_error_message: error.message().to_owned(),
                ..Default::default()
            }),
            result => result,
        }
    }

    async fn run(&self, request: wire::RunGraphRequest) -> Result<wire::RunGraphResponse, Status> {
        let session = self.session(&request.session_handle, request.create_worker_session_called)?;
        let graph = session.graph(&request.graph_handle);
        let graph = graph.ok_or_else(|| self.no_graph(&request.graph_handle))?;
        let id = request.step_id;
        if request.is_partial {
            return self.run_part(&session, &graph, request).await;
        }
        let traced = request.exec_opts.is_some_and(|asked| asked.record_timeline || asked.record_costs);
        let trace = traced.then(|| Arc::new(Trace::new(self.shared.device.clone())));
        let step = self.enter(id, &session, &graph, trace.clone());
        let mut guard = Guard { worker: self, step: step.clone(), over: false };
        let result = async {
            self.feed(id, request.send)?;
            self.shared.executor.run(&graph.program, Vec::new(), &step).await?;
            self.fetch(id, &request.recv_key).await
        };
        let result = result.await;
        guard.over = true;
        if let Err(error) = &result {
            step.abort(error);
        }
        let recv = result.map_err(|error| status(&error))?;
        let step_stats = trace.map(|trace| trace.take());
        Ok(wire::RunGraphResponse { recv, step_stats, ..Default::default() })
    }

    /// A step that may be told of an abort from now on.
    fn enter(&self, id: i64, session: &Session, graph: &Registered, trace: Option<Arc<Trace>>) -> Arc<Step> {
        let shared = &self.shared;
        let exchange =
            StepExchange::new(id, shared.task.clone(), shared.plane.rendezvous.clone(), shared.peers.clone());
        let step = Step::new(
            id,
            shared.device.clone(),
            session.resources.clone(),
            Arc::new(exchange.with_trace(trace.clone())),
            graph.functions.clone(),
        );
        let step = Arc::new(step.with_collectives(graph.collectives.clone()).with_trace(trace));
        let given_up = {
            let mut tables = self.tables();
            let (live, given_up) = tables.enter(id, &session.handle);
            live.running.push(step.clone());
            given_up
        };
        given_up.into_iter().for_each(|id| shared.plane.rendezvous.cleanup(StepId(id)));
        step
    }

    fn leave(&self, step: &Arc<Step>) {
        let mut tables = self.tables();
        if let Some(live) = tables.steps.get_mut(&step.id) {
            live.running.retain(|running| !Arc::ptr_eq(running, step));
            let session = live.session.clone();
            if let Some(session) = tables.sessions.get(&session) {
                session.touch(Instant::now());
            }
        }
    }

    fn feed(&self, id: i64, tensors: Vec<wire::NamedTensorProto>) -> Result<(), OpError> {
        for named in tensors {
            let key = Key::new(&named.name).map_err(|error| OpError::invalid(error.to_string()))?;
            let tensor = Tensor::from_proto(&named.tensor.unwrap_or_default())?;
            let sent = self.shared.plane.rendezvous.send(StepId(id), &key, tensor.to_value(false)?);
            sent.map_err(|error| rendezvous_error(&error))?;
        }
        Ok(())
    }

    async fn fetch(&self, id: i64, keys: &[String]) -> Result<Vec<wire::NamedTensorProto>, OpError> {
        let (mut fetched, mut bytes) = (Vec::with_capacity(keys.len()), 0);
        for name in keys {
            let key = Key::new(name).map_err(|error| OpError::invalid(error.to_string()))?;
            let value = self.shared.plane.rendezvous.receive(StepId(id), &key, Source::Local).await;
            let arrived = Tensor::from_value(value.map_err(|error| rendezvous_error(&error))?)?;
            if arrived.is_dead {
                let message = format!("The tensor returned for {name} was not valid.");
                return Err(OpError::invalid(message));
            }
            let tensor = message_of(&arrived.tensor, &key, &mut bytes)?;
            fetched.push(wire::NamedTensorProto { name: name.clone(), tensor: Some(tensor) });
        }
        Ok(fetched)
    }

    /// One part of a graph that is fed and fetched in several calls.
    async fn run_part(
        &self,
        session: &Session,
        graph: &Registered,
        request: wire::RunGraphRequest,
    ) -> Result<wire::RunGraphResponse, Status> {
        let id = request.step_id;
        if self.tables().steps.get(&id).is_none_or(|live| live.partial.is_none()) {
            let step = self.enter(id, session, graph, None);
            let (tell, told) = tokio::sync::oneshot::channel();
            let (worker, running) = (self.clone(), step.clone());
            let done = move |result: Result<Vec<_>, OpError>| {
                worker.leave(&running);
                // Nobody may be waiting for the end yet, or any more.
                drop(tell.send(result.map(drop)));
            };
            if let Some(live) = self.tables().steps.get_mut(&id) {
                live.partial = Some(told);
            }
            self.shared.executor.start(&graph.program, Vec::new(), &step, Box::new(done));
        }
        let result = async {
            self.feed(id, request.send)?;
            let fetched = self.fetch(id, &request.recv_key).await?;
            if request.is_last_partial_run {
                let end = self.tables().steps.get_mut(&id).and_then(|live| live.partial.take());
                if let Some(end) = end {
                    end.await.unwrap_or_else(|_| Err(OpError::internal("the executor lost a run")))?;
                }
            }
            Ok(fetched)
        };
        let result: Result<_, OpError> = result.await;
        if let Err(error) = &result {
            self.abort_step(id, error);
        }
        let recv = result.map_err(|error| status(&error))?;
        Ok(wire::RunGraphResponse { recv, ..Default::default() })
    }

    /// Ends what runs here of a step.
    pub fn abort_step(&self, id: i64, error: &OpError) {
        let running = self.tables().steps.get(&id).map(|live| live.running.clone()).unwrap_or_default();
        running.iter().for_each(|step| step.abort(error));
        self.shared.plane.rendezvous.abort(StepId(id), why(error));
    }

    /// A step is over: what it left is given up.
    pub fn end_step(&self, id: i64) {
        self.tables().steps.remove(&id);
        self.shared.plane.rendezvous.cleanup(StepId(id));
    }

    /// A step is over: what it left is given up.
    ///
    /// # Errors
    /// None.
    pub async fn cleanup_graph(
        &self,
        request: wire::CleanupGraphRequest,
    ) -> Result<wire::CleanupGraphResponse, Status> {
        self.end_step(request.step_id);
        Ok(wire::CleanupGraphResponse {})
    }

    /// Drops the variables and other resources in some containers, in the default one when none is named.
    ///
    /// # Errors
    /// None.
    pub async fn cleanup_all(
        &self,
        request: wire::CleanupAllRequest,
    ) -> Result<wire::CleanupAllResponse, Status> {
        self.shared.resources.clear(&request.container);
        let sessions: Vec<_> = self.tables().sessions.values().cloned().collect();
        sessions.iter().for_each(|session| session.resources.clear(&request.container));
        Ok(wire::CleanupAllResponse {})
    }

    /// Gives a tensor of a step to another task, as soon as it is there; or, to one of ours, the word of where to ask for
    /// it on the data plane.
    ///
    /// # Errors
    /// `ABORTED` when the device has another life than the caller knows, or the step was aborted with that code; the
    /// first error of the step otherwise.
    pub async fn recv_tensor(
        &self,
        request: wire::RecvTensorRequest,
    ) -> Result<wire::RecvTensorResponse, Status> {
        let key = Key::parse(&request.rendezvous_key)
            .map_err(|error| refuse(Code::InvalidArgument, error.to_string()))?;
        self.check_life(&key)?;
        if let Some(answer) = self.offer(&request) {
            return Ok(answer);
        }
        let rendezvous = &self.shared.plane.rendezvous;
        let value = rendezvous.receive(StepId(request.step_id), &key, Source::Local).await;
        let arrived = value
            .map_err(|error| rendezvous_error(&error))
            .and_then(|value| Ok(Tensor::from_value(value)?))
            .map_err(|error| status(&error))?;
        let tensor = message_of(&arrived.tensor, &key, &mut 0).map_err(|error| status(&error))?;
        let micros = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Ok(wire::RecvTensorResponse {
            tensor: Some(tensor),
            is_dead: arrived.is_dead,
            send_start_micros: micros.map_or(0, |time| i64::try_from(time.as_micros()).unwrap_or(i64::MAX)),
            ..Default::default()
        })
    }

    fn check_life(&self, key: &Key) -> Result<(), Status> {
        let shared = &self.shared;
        let parts = key.parts().map_err(|error| refuse(Code::InvalidArgument, error.to_string()))?;
        if is_of(parts.send_device, &shared.task) && parts.send_incarnation != shared.incarnation {
            let message = format!(
                "RecvTensor expects a different device incarnation: {} vs. {}. Your worker job (\"{}\") was probably \
                 restarted. Check your worker job for the reason why it was restarted.",
                parts.send_incarnation, shared.incarnation, shared.task
            );
            return Err(refuse(Code::Aborted, message));
        }
        Ok(())
    }

    /// The answer to a task of ours that is reached on the data plane.
    fn offer(&self, request: &wire::RecvTensorRequest) -> Option<wire::RecvTensorResponse> {
        let card = request.transport_options.as_ref().filter(|any| any.type_url == DATA_PLANE_TASK)?;
        match (self.shared.plane.introduce)(&card.value) {
            Ok(_) => {
                let card = self.shared.plane.card.clone();
                let transport_options = Some(Any { type_url: DATA_PLANE_TASK.to_owned(), value: card });
                Some(wire::RecvTensorResponse { transport_options, ..Default::default() })
            }
            Err(why) => {
                tracing::warn!(why, "a task is not reached on the data plane; its tensors go by gRPC");
                None
            }
        }
    }

    /// Nothing: no tensor waits for its receiver's word before it goes.
    ///
    /// # Errors
    /// None.
    pub async fn mark_recv_finished(
        &self,
        _: wire::MarkRecvFinishedRequest,
    ) -> Result<wire::MarkRecvFinishedResponse, Status> {
        Ok(wire::MarkRecvFinishedResponse {})
    }

    /// Begins or ends the recording of tensors from other tasks, hands out what was recorded of the steps that are asked
    /// for, and forgets it. A request that asks for nothing ends it, as old masters mean by that.
    ///
    /// # Errors
    /// None.
    pub async fn logging(&self, request: wire::LoggingRequest) -> Result<wire::LoggingResponse, Status> {
        let transfers = &self.shared.peers.transfers;
        if request.enable_rpc_logging {
            transfers.want(true);
        }
        let asks_nothing = !request.enable_rpc_logging && request.fetch_step_id.is_empty() && !request.clear;
        if request.disable_rpc_logging || asks_nothing {
            transfers.want(false);
        }
        let step = request.fetch_step_id.iter().filter_map(|id| transfers.take(*id)).collect();
        if request.clear {
            transfers.clear();
        }
        Ok(wire::LoggingResponse { step })
    }

    /// Accepted, and no more: what a step did is asked for with the step, by `RunOptions.trace_level`.
    ///
    /// # Errors
    /// None.
    pub async fn tracing(&self, _: wire::TracingRequest) -> Result<wire::TracingResponse, Status> {
        Ok(wire::TracingResponse::default())
    }

    /// What this task received from others so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let shared = &self.shared;
        let mut traffic = Traffic {
            grpc_tensors: shared.peers.by_grpc.tensors.load(Ordering::Relaxed),
            grpc_bytes: shared.peers.by_grpc.bytes.load(Ordering::Relaxed),
            ..Traffic::default()
        };
        for (_, peer) in shared.plane.rendezvous.traffic() {
            traffic.plane_tensors += peer.values_received;
            traffic.plane_bytes += peer.bytes_received;
        }
        traffic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_a_message_holds_is_refused_with_the_name_of_what_is_too_much() {
        let device = "/job:w/replica:0/task:0/device:CPU:0";
        let key = Key::parse(&format!("{device};0000000000000007;{device};y:0;0:0")).unwrap();
        let tensor = Tensor::vector(&[1_f32; 8]).unwrap();
        let mut bytes = 0;
        let message = message_of(&tensor, &key, &mut bytes).unwrap();
        assert_eq!(bytes, message.encoded_len());
        bytes = TENSORS_OF_A_MESSAGE_BYTES;
        let error = message_of(&tensor, &key, &mut bytes).unwrap_err();
        assert_eq!(error.code, Code::ResourceExhausted);
        assert!(error.message.starts_with("y:0, of shape [8] and type float, makes "), "{error:?}");
    }
}
