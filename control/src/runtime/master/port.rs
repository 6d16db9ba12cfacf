//! What the master asks of a worker, wherever that is: over gRPC, or in this process without it.

use std::pin::Pin;

use ringway_proto::tensorflow as tf;

use crate::core::coordination::errors::Code;
use crate::core::master::step::Failure;
use crate::rpc::client::worker::{WorkerClient, told};
use crate::runtime::worker::Worker;

/// An answer that is under way. Dropping it ends the call, and a worker aborts the step that the call ran.
pub type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// A worker.
pub trait WorkerPort: Send + Sync {
    /// Its devices.
    fn get_status(&self) -> Answer<tf::GetStatusResponse>;
    /// Begins a session.
    fn create_session(&self, request: tf::CreateWorkerSessionRequest) -> Answer<()>;
    /// Ends a session.
    fn delete_session(&self, request: tf::DeleteWorkerSessionRequest) -> Answer<()>;
    /// Takes its part of a graph. The handle.
    fn register_graph(&self, request: tf::RegisterGraphRequest) -> Answer<String>;
    /// Forgets a part.
    fn deregister_graph(&self, request: tf::DeregisterGraphRequest) -> Answer<()>;
    /// Runs a part. An error in the body of the response is a failure here.
    fn run_graph(&self, request: tf::RunGraphRequest) -> Answer<tf::RunGraphResponse>;
    /// Forgets a step.
    fn clean_up(&self, step_id: i64) -> Answer<()>;
    /// Drops the resources in containers; without names, in the default one.
    fn clean_up_all(&self, containers: Vec<String>) -> Answer<()>;
    /// The next step of a group of collectives.
    fn next_step(&self, graph_key: i64) -> Answer<i64>;

    /// Connections to it that ended so far; a worker in this process has none.
    fn losses(&self) -> u64 {
        0
    }
}

/// The step that a worker counted for a group of collectives.
///
/// # Errors
/// When the answer has none for it.
pub(super) fn step_of(answer: &tf::GetStepSequenceResponse, graph_key: i64) -> Result<i64, Failure> {
    let sequence = answer.step_sequence.iter().find(|sequence| sequence.graph_key == graph_key);
    sequence.map(|sequence| sequence.next_step_id).ok_or_else(|| Failure {
        code: Code::Internal,
        message: format!("no step for the collective graph key {graph_key} in the answer"),
        lost: false,
    })
}

/// The error that a response carries in its body, if any.
///
/// # Errors
/// That one.
pub fn body(response: tf::RunGraphResponse) -> Result<tf::RunGraphResponse, Failure> {
    match response.status_code {
        0 => Ok(response),
        code => Err(Failure {
            code: Code::from_number(code),
            message: response.status_error_message,
            lost: false,
        }),
    }
}

/// Makes a worker of `$worker`, of which `$call!(worker, method, request)` calls the RPC `method`: the response's message,
/// or the [`Failure`].
macro_rules! impl_worker_port {
    ($worker:ty, $call:ident, |$this:ident| $losses:expr) => {
        impl WorkerPort for $worker {
            fn get_status(&self) -> Answer<tf::GetStatusResponse> {
                let worker = self.clone();
                Box::pin(async move { $call!(worker, get_status, tf::GetStatusRequest {}) })
            }

            fn create_session(&self, request: tf::CreateWorkerSessionRequest) -> Answer<()> {
                let worker = self.clone();
                Box::pin(async move { $call!(worker, create_worker_session, request).map(drop) })
            }

            fn delete_session(&self, request: tf::DeleteWorkerSessionRequest) -> Answer<()> {
                let worker = self.clone();
                Box::pin(async move { $call!(worker, delete_worker_session, request).map(drop) })
            }

            fn register_graph(&self, request: tf::RegisterGraphRequest) -> Answer<String> {
                let worker = self.clone();
                Box::pin(
                    async move { $call!(worker, register_graph, request).map(|answer| answer.graph_handle) },
                )
            }

            fn deregister_graph(&self, request: tf::DeregisterGraphRequest) -> Answer<()> {
                let worker = self.clone();
                Box::pin(async move { $call!(worker, deregister_graph, request).map(drop) })
            }

            fn run_graph(&self, request: tf::RunGraphRequest) -> Answer<tf::RunGraphResponse> {
                let worker = self.clone();
                Box::pin(async move { $call!(worker, run_graph, request).and_then(body) })
            }

            fn clean_up(&self, step_id: i64) -> Answer<()> {
                let worker = self.clone();
                let request = tf::CleanupGraphRequest { step_id };
                Box::pin(async move { $call!(worker, cleanup_graph, request).map(drop) })
            }

            fn clean_up_all(&self, container: Vec<String>) -> Answer<()> {
                let worker = self.clone();
                let request = tf::CleanupAllRequest { container };
                Box::pin(async move { $call!(worker, cleanup_all, request).map(drop) })
            }

            fn next_step(&self, graph_key: i64) -> Answer<i64> {
                let worker = self.clone();
                let request = tf::GetStepSequenceRequest { graph_key: vec![graph_key] };
                Box::pin(async move { step_of(&$call!(worker, get_step_sequence, request)?, graph_key) })
            }

            fn losses(&self) -> u64 {
                let $this = self;
                $losses
            }
        }
    };
}

/// Over gRPC.
macro_rules! call_there {
    ($client:expr, $method:ident, $request:expr) => {{
        let answer = $client.service().$method($request).await;
        answer.map(tonic::Response::into_inner).map_err(|status| $client.failure(&status))
    }};
}

impl_worker_port!(WorkerClient, call_there, |client| WorkerClient::losses(client));

/// The worker of the master's own process: without gRPC, and without a copy of any tensor.
macro_rules! call_here {
    ($worker:expr, $method:ident, $request:expr) => {
        $worker.$method($request).await.map_err(|status| told(&status))
    };
}

// It has no connections that could end.
impl_worker_port!(Worker, call_here, |_worker| 0);
