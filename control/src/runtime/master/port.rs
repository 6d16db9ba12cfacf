//! What the master asks of a worker, wherever that is: over gRPC, or in this process without it.

use std::pin::Pin;

use ringway_proto::tensorflow as tf;

use crate::core::coordination::errors::Code;
use crate::core::master::step::Failure;
use crate::rpc::client::worker::WorkerClient;

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

/// Makes a call and takes what is wanted out of its answer.
macro_rules! call {
    ($client:expr, $method:ident, $request:expr, $take:expr) => {{
        let (client, request) = ($client.clone(), $request);
        Box::pin(async move {
            let answer = client.service().$method(request).await;
            answer.map(|answer| $take(answer.into_inner())).map_err(|status| client.failure(&status))
        })
    }};
}

impl WorkerPort for WorkerClient {
    fn get_status(&self) -> Answer<tf::GetStatusResponse> {
        call!(self, get_status, tf::GetStatusRequest {}, |answer| answer)
    }

    fn create_session(&self, request: tf::CreateWorkerSessionRequest) -> Answer<()> {
        call!(self, create_worker_session, request, |_| ())
    }

    fn delete_session(&self, request: tf::DeleteWorkerSessionRequest) -> Answer<()> {
        call!(self, delete_worker_session, request, |_| ())
    }

    fn register_graph(&self, request: tf::RegisterGraphRequest) -> Answer<String> {
        call!(self, register_graph, request, |answer: tf::RegisterGraphResponse| answer.graph_handle)
    }

    fn deregister_graph(&self, request: tf::DeregisterGraphRequest) -> Answer<()> {
        call!(self, deregister_graph, request, |_| ())
    }

    fn run_graph(&self, request: tf::RunGraphRequest) -> Answer<tf::RunGraphResponse> {
        let client = self.clone();
        Box::pin(async move {
            let answer = client.service().run_graph(request).await;
            answer.map_err(|status| client.failure(&status)).and_then(|answer| body(answer.into_inner()))
        })
    }

    fn clean_up(&self, step_id: i64) -> Answer<()> {
        call!(self, cleanup_graph, tf::CleanupGraphRequest { step_id }, |_| ())
    }

    fn clean_up_all(&self, container: Vec<String>) -> Answer<()> {
        call!(self, cleanup_all, tf::CleanupAllRequest { container }, |_| ())
    }

    fn next_step(&self, graph_key: i64) -> Answer<i64> {
        let client = self.clone();
        Box::pin(async move {
            let request = tf::GetStepSequenceRequest { graph_key: vec![graph_key] };
            let answer = client.service().get_step_sequence(request).await;
            step_of(&answer.map_err(|status| client.failure(&status))?.into_inner(), graph_key)
        })
    }

    fn losses(&self) -> u64 {
        WorkerClient::losses(self)
    }
}
