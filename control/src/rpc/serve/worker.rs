//! TensorFlow's WorkerService over a [`Worker`] of this process.

use ringway_proto::tensorflow as wire;
use ringway_proto::tensorflow::worker_service_server::{WorkerService, WorkerServiceServer};
use tonic::codec::CompressionEncoding;
use tonic::{Request, Response, Status};

use crate::rpc::TENSOR_MESSAGE_LIMIT_BYTES;
use crate::runtime::worker::Worker;

/// The service.
#[derive(Debug)]
pub struct WorkerRpc {
    worker: Worker,
}

impl WorkerRpc {
    /// Mounts a worker: messages of any length that protobuf allows, compressed or not.
    #[must_use]
    pub fn service(worker: Worker) -> WorkerServiceServer<WorkerRpc> {
        WorkerServiceServer::new(WorkerRpc { worker })
            .max_decoding_message_size(TENSOR_MESSAGE_LIMIT_BYTES)
            .max_encoding_message_size(TENSOR_MESSAGE_LIMIT_BYTES)
            .accept_compressed(CompressionEncoding::Gzip)
    }
}

/// Each RPC is the worker's method of that name, but for CompleteGroup, whose metadata may have a limit.
macro_rules! answers {
    ($($method:ident: $request:ident -> $response:ident;)*) => {
        #[tonic::async_trait]
        impl WorkerService for WorkerRpc {
            async fn complete_group(
                &self,
                request: Request<wire::CompleteGroupRequest>,
            ) -> Result<Response<wire::CompleteGroupResponse>, Status> {
                let limit = Worker::group_limit(request.metadata());
                self.worker.complete_group_within(request.into_inner(), limit).await.map(Response::new)
            }

            $(
                async fn $method(
                    &self,
                    request: Request<wire::$request>,
                ) -> Result<Response<wire::$response>, Status> {
                    self.worker.$method(request.into_inner()).await.map(Response::new)
                }
            )*
        }
    };
}

answers! {
    get_status: GetStatusRequest -> GetStatusResponse;
    create_worker_session: CreateWorkerSessionRequest -> CreateWorkerSessionResponse;
    delete_worker_session: DeleteWorkerSessionRequest -> DeleteWorkerSessionResponse;
    register_graph: RegisterGraphRequest -> RegisterGraphResponse;
    deregister_graph: DeregisterGraphRequest -> DeregisterGraphResponse;
    run_graph: RunGraphRequest -> RunGraphResponse;
    cleanup_graph: CleanupGraphRequest -> CleanupGraphResponse;
    cleanup_all: CleanupAllRequest -> CleanupAllResponse;
    recv_tensor: RecvTensorRequest -> RecvTensorResponse;
    mark_recv_finished: MarkRecvFinishedRequest -> MarkRecvFinishedResponse;
    recv_buf: RecvBufRequest -> RecvBufResponse;
    logging: LoggingRequest -> LoggingResponse;
    tracing: TracingRequest -> TracingResponse;
    complete_instance: CompleteInstanceRequest -> CompleteInstanceResponse;
    get_step_sequence: GetStepSequenceRequest -> GetStepSequenceResponse;
}
