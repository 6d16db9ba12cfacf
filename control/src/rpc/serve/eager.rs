//! TensorFlow's remote eager service, on top of the contexts of a task.

use ringway_proto::tensorflow::eager as tf;
use ringway_proto::tensorflow::eager::eager_service_server::{EagerService, EagerServiceServer};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::CompressionEncoding;
use tonic::{Request, Response, Status, Streaming};

use crate::kernels::OpError;
use crate::rpc::TENSOR_MESSAGE_LIMIT_BYTES;
use crate::runtime::eager::Eager;

/// Answers of one stream that wait for their reader; past that, its next request waits.
const ANSWERS_LIMIT: usize = 64;

type Answer<T> = Result<Response<T>, Status>;

/// The service.
#[derive(Clone, Debug)]
pub struct EagerRpc {
    eager: Eager,
}

impl EagerRpc {
    /// Mounts the contexts of a task: messages of any length that protobuf allows, compressed or not.
    #[must_use]
    pub fn service(eager: Eager) -> EagerServiceServer<EagerRpc> {
        EagerServiceServer::new(EagerRpc { eager })
            .max_decoding_message_size(TENSOR_MESSAGE_LIMIT_BYTES)
            .max_encoding_message_size(TENSOR_MESSAGE_LIMIT_BYTES)
            .accept_compressed(CompressionEncoding::Gzip)
    }
}

fn status(error: OpError) -> Status {
    Status::new(tonic::Code::from_i32(error.code as i32), error.message)
}

#[tonic::async_trait]
impl EagerService for EagerRpc {
    async fn create_context(
        &self,
        request: Request<tf::CreateContextRequest>,
    ) -> Answer<tf::CreateContextResponse> {
        let device_attributes = self.eager.create(request.into_inner()).map_err(status)?;
        Ok(Response::new(tf::CreateContextResponse { device_attributes }))
    }

    async fn update_context(
        &self,
        request: Request<tf::UpdateContextRequest>,
    ) -> Answer<tf::UpdateContextResponse> {
        let device_attributes = self.eager.update(request.into_inner()).map_err(status)?;
        Ok(Response::new(tf::UpdateContextResponse { device_attributes }))
    }

    async fn enqueue(&self, request: Request<tf::EnqueueRequest>) -> Answer<tf::EnqueueResponse> {
        let queue_response = self.eager.enqueue(request.into_inner()).await.map_err(status)?;
        Ok(Response::new(tf::EnqueueResponse { queue_response }))
    }

    type StreamingEnqueueStream = ReceiverStream<Result<tf::EnqueueResponse, Status>>;

    /// Each request is done and answered before the next is. The first that fails ends the stream, by which its client
    /// knows that nothing after it was done.
    async fn streaming_enqueue(
        &self,
        request: Request<Streaming<tf::EnqueueRequest>>,
    ) -> Answer<Self::StreamingEnqueueStream> {
        let mut requests = request.into_inner();
        let (answers, stream) = mpsc::channel(ANSWERS_LIMIT);
        let eager = self.eager.clone();
        tokio::spawn(async move {
            loop {
                let request = match requests.message().await {
                    Ok(Some(request)) => request,
                    Ok(None) => return,
                    // The client is gone.
                    Err(_) => return,
                };
                let answer = tokio::select! {
                    answer = eager.enqueue(request) => answer.map_err(status),
                    // It is gone while something is done for it, which that ends.
                    () = answers.closed() => return,
                };
                let failed = answer.is_err();
                let answer = answer.map(|queue_response| tf::EnqueueResponse { queue_response });
                if answers.send(answer).await.is_err() || failed {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn wait_queue_done(
        &self,
        request: Request<tf::WaitQueueDoneRequest>,
    ) -> Answer<tf::WaitQueueDoneResponse> {
        self.eager.wait_done(request.into_inner().context_id).await.map_err(status)?;
        Ok(Response::new(tf::WaitQueueDoneResponse {}))
    }

    async fn run_component_function(
        &self,
        request: Request<tf::RunComponentFunctionRequest>,
    ) -> Answer<tf::RunComponentFunctionResponse> {
        self.eager.run_component(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn keep_alive(&self, request: Request<tf::KeepAliveRequest>) -> Answer<tf::KeepAliveResponse> {
        let context_view_id = self.eager.keep_alive(request.into_inner().context_id).map_err(status)?;
        Ok(Response::new(tf::KeepAliveResponse { context_view_id }))
    }

    async fn close_context(
        &self,
        request: Request<tf::CloseContextRequest>,
    ) -> Answer<tf::CloseContextResponse> {
        let request = request.into_inner();
        self.eager.close(request.context_id, request.context_view_id);
        Ok(Response::new(tf::CloseContextResponse {}))
    }
}
