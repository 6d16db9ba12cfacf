//! The master's service: TensorFlow's clients on one side, [`Master`] on the other.

use ringway_proto::tensorflow as tf;
use ringway_proto::tensorflow::master_service_server::{MasterService, MasterServiceServer};
use tonic::codec::CompressionEncoding;
use tonic::{Code, Request, Response, Status};

use crate::core::master::MasterError;
use crate::rpc::TENSOR_MESSAGE_LIMIT_BYTES;
use crate::runtime::master::Master;

/// The service, ready to be put behind a port.
#[must_use]
pub fn service(master: Master) -> MasterServiceServer<Desk> {
    MasterServiceServer::new(Desk(master))
        .max_decoding_message_size(TENSOR_MESSAGE_LIMIT_BYTES)
        .max_encoding_message_size(TENSOR_MESSAGE_LIMIT_BYTES)
        .accept_compressed(CompressionEncoding::Gzip)
}

/// Answers the service's calls.
#[derive(Clone, Debug)]
pub struct Desk(Master);

fn status(error: MasterError) -> Status {
    Status::new(Code::from_i32(error.code().number()), error.to_string())
}

#[tonic::async_trait]
impl MasterService for Desk {
    async fn create_session(
        &self,
        request: Request<tf::CreateSessionRequest>,
    ) -> Result<Response<tf::CreateSessionResponse>, Status> {
        self.0.create_session(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn extend_session(
        &self,
        request: Request<tf::ExtendSessionRequest>,
    ) -> Result<Response<tf::ExtendSessionResponse>, Status> {
        self.0.extend_session(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn partial_run_setup(
        &self,
        request: Request<tf::PartialRunSetupRequest>,
    ) -> Result<Response<tf::PartialRunSetupResponse>, Status> {
        self.0.partial_run_setup(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn run_step(
        &self,
        request: Request<tf::RunStepRequest>,
    ) -> Result<Response<tf::RunStepResponse>, Status> {
        let request = request.into_inner();
        let in_body = request.store_errors_in_response_body;
        match self.0.run_step(request).await {
            Ok(response) => Ok(Response::new(response)),
            Err(error) if in_body => Ok(Response::new(tf::RunStepResponse {
                metadata: Some(tf::RunMetadata::default()),
                status_code: error.code().number(),
                status_error_message: error.to_string(),
                ..tf::RunStepResponse::default()
            })),
            Err(error) => Err(status(error)),
        }
    }

    async fn close_session(
        &self,
        request: Request<tf::CloseSessionRequest>,
    ) -> Result<Response<tf::CloseSessionResponse>, Status> {
        self.0.close_session(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn list_devices(
        &self,
        request: Request<tf::ListDevicesRequest>,
    ) -> Result<Response<tf::ListDevicesResponse>, Status> {
        self.0.list_devices(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn reset(&self, request: Request<tf::ResetRequest>) -> Result<Response<tf::ResetResponse>, Status> {
        self.0.reset(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn make_callable(
        &self,
        request: Request<tf::MakeCallableRequest>,
    ) -> Result<Response<tf::MakeCallableResponse>, Status> {
        self.0.make_callable(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn run_callable(
        &self,
        request: Request<tf::RunCallableRequest>,
    ) -> Result<Response<tf::RunCallableResponse>, Status> {
        self.0.run_callable(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn release_callable(
        &self,
        request: Request<tf::ReleaseCallableRequest>,
    ) -> Result<Response<tf::ReleaseCallableResponse>, Status> {
        self.0.release_callable(request.into_inner()).await.map(Response::new).map_err(status)
    }
}
