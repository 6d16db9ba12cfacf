//! The worker of the master's own process: asked without gRPC, and without a copy of any tensor.

use ringway_proto::tensorflow as tf;
use tonic::Status;

use super::port::{Answer, WorkerPort, body};
use crate::core::coordination::errors::Code;
use crate::core::master::step::Failure;
use crate::runtime::worker::Worker;

fn failure(status: &Status) -> Failure {
    Failure {
        code: Code::from_number(status.code() as i32),
        message: status.message().to_owned(),
        lost: false,
    }
}

/// Makes a call and takes what is wanted out of its answer.
macro_rules! call {
    ($worker:expr, $method:ident, $request:expr, $take:expr) => {{
        let (worker, request) = ($worker.clone(), $request);
        Box::pin(async move { worker.$method(request).await.map($take).map_err(|status| failure(&status)) })
    }};
}

impl WorkerPort for Worker {
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
        call!(self, register_graph, request, |answer| answer.graph_handle)
    }

    fn deregister_graph(&self, request: tf::DeregisterGraphRequest) -> Answer<()> {
        call!(self, deregister_graph, request, |_| ())
    }

    fn run_graph(&self, request: tf::RunGraphRequest) -> Answer<tf::RunGraphResponse> {
        let worker = self.clone();
        Box::pin(
            async move { worker.run_graph(request).await.map_err(|status| failure(&status)).and_then(body) },
        )
    }

    fn clean_up(&self, step_id: i64) -> Answer<()> {
        call!(self, cleanup_graph, tf::CleanupGraphRequest { step_id }, |_| ())
    }

    fn clean_up_all(&self, container: Vec<String>) -> Answer<()> {
        call!(self, cleanup_all, tf::CleanupAllRequest { container }, |_| ())
    }

    fn next_step(&self, graph_key: i64) -> Answer<i64> {
        let worker = self.clone();
        Box::pin(async move {
            let request = tf::GetStepSequenceRequest { graph_key: vec![graph_key] };
            let answer = worker.get_step_sequence(request).await.map_err(|status| failure(&status))?;
            super::port::step_of(&answer, graph_key)
        })
    }
}
