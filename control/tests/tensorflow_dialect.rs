//! The service as TensorFlow's clients use it: raw calls of the generated client, in all revisions of the dialect.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use prost::Message;
use ringway_control::core::coordination::CoordinatorConfig;
use ringway_control::rpc::serve::{Server, ServerConfig};
use ringway_proto::tensorflow as tf;
use ringway_proto::tensorflow::coordination_service_client::CoordinationServiceClient;
use ringway_topology::{Incarnation, TaskId};
use tokio::sync::mpsc;
use tonic::codec::CompressionEncoding;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

type Client = CoordinationServiceClient<Channel>;

const LEADER: u64 = 4242;

fn start(change: impl FnOnce(&mut ServerConfig)) -> Server {
    let mut coordinator = CoordinatorConfig::one_job("worker", 2);
    coordinator.heartbeat_limit = Duration::from_secs(60);
    let mut config = ServerConfig::new(coordinator, Incarnation(LEADER));
    change(&mut config);
    Server::start("127.0.0.1:0".parse().unwrap(), config).unwrap()
}

async fn client(server: &Server) -> Client {
    CoordinationServiceClient::connect(format!("http://{}", server.local_addr())).await.unwrap()
}

fn worker(index: i32) -> Option<tf::CoordinatedTask> {
    Some(tf::CoordinatedTask { job_name: "worker".to_owned(), task_id: index, recoverable: false })
}

async fn register(client: &mut Client, index: i32) {
    let request =
        tf::RegisterTaskRequest { incarnation: 7, source_task: worker(index), ..Default::default() };
    let answer = client.register_task(request).await.unwrap().into_inner();
    assert_eq!(answer.leader_incarnation, LEADER);
}

/// The details of a status: what `grpc-status-details-bin` carries.
#[derive(Clone, PartialEq, Message)]
struct Details {
    #[prost(map = "string, bytes", tag = "1")]
    payloads: std::collections::HashMap<String, Vec<u8>>,
}

fn detail<T: Message + Default>(status: &Status, name: &str) -> T {
    let details = Details::decode(status.details()).unwrap();
    let key = format!("type.googleapis.com/tensorflow.{name}");
    T::decode(details.payloads[&key].as_slice()).unwrap()
}

#[tokio::test]
async fn all_revisions_meet() {
    let server = start(|_| {});
    let mut old = client(&server).await;
    let mut new = client(&server).await;
    // First revision: the task in two fields, devices as they are.
    let request =
        tf::RegisterTaskRequest { job: "worker".to_owned(), task: 0, incarnation: 7, ..Default::default() };
    let answer = old.register_worker(request).await.unwrap().into_inner();
    assert_eq!(answer.leader_incarnation, LEADER);
    register(&mut new, 1).await;
    let beat = tf::HeartbeatRequest { job: "worker".to_owned(), task: 0, incarnation: 7, source_task: None };
    assert_eq!(old.heartbeat(beat).await.unwrap().into_inner().leader_incarnation, LEADER);
    let from_old = tf::WaitForAllTasksRequest {
        job: "worker".to_owned(),
        local_device_attributes: vec![b"first".to_vec()],
        ..Default::default()
    };
    let any = |value: &[u8]| prost_types::Any {
        type_url: "type.googleapis.com/x".to_owned(),
        value: value.to_vec(),
    };
    let from_new = tf::WaitForAllTasksRequest {
        source_task: worker(1),
        local_device_info: Some(tf::CoordinationServiceDeviceInfo {
            tf: Some(tf::TfDeviceList { devices: vec![b"second".to_vec()] }),
            xla: b"xla".to_vec(),
        }),
        device_info: Some(tf::DeviceInfo { device: vec![any(b"third")] }),
        ..Default::default()
    };
    let (first, second) = tokio::join!(old.wait_for_all_tasks(from_old), new.wait_for_all_tasks(from_new));
    let (first, second) = (first.unwrap().into_inner(), second.unwrap().into_inner());
    assert_eq!(first, second);
    assert_eq!(first.leader_incarnation, LEADER);
    assert_eq!(first.cluster_device_attributes, [b"first".to_vec(), b"second".to_vec()]);
    let info = first.cluster_device_info.unwrap();
    assert_eq!((info.tf.unwrap().devices.len(), &*info.xla), (2, b"xla".as_slice()));
    assert_eq!(first.device_info.unwrap().device, [any(b"third")]);
}

#[tokio::test]
async fn an_error_says_whose_it_is() {
    let server = start(|_| {});
    let mut calls = client(&server).await;
    register(&mut calls, 0).await;
    register(&mut calls, 1).await;
    let mut poller = calls.clone();
    let report = tf::ReportErrorToServiceRequest {
        error_code: Code::DataLoss as i32,
        error_message: "bad batch".to_owned(),
        error_origin: worker(1),
        ..Default::default()
    };
    let (polled, reported) = tokio::join!(
        poller.poll_for_error(tf::PollForErrorRequest { source_task: worker(0) }),
        calls.report_error_to_service(report)
    );
    reported.unwrap();
    let status = polled.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::DataLoss, "bad batch"));
    let error: tf::CoordinationServiceError = detail(&status, "CoordinationServiceError");
    assert_eq!((error.is_reported_error, error.source_task), (true, worker(1)));

    let barrier = tf::BarrierRequest {
        barrier_id: "b".to_owned(),
        barrier_timeout_in_ms: 60_000,
        source_task: worker(0),
        counter: 3,
        ..Default::default()
    };
    let status = calls.barrier(barrier).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    let error: tf::BarrierError = detail(&status, "BarrierError");
    assert_eq!((&*error.barrier_id, error.counter), ("b", 3));

    let states = tf::GetTaskStateRequest { source_task: vec![worker(1).unwrap(), worker(0).unwrap()] };
    let states = calls.get_task_state(states).await.unwrap().into_inner().task_state;
    assert_eq!(states[0].state(), tf::CoordinatedTaskState::TaskstateError);
    assert_eq!((states[0].error_code, &*states[0].error_message), (Code::DataLoss as i32, "bad batch"));
    assert_eq!(states[1].state(), tf::CoordinatedTaskState::TaskstateConnected);

    calls.reset_task(tf::ResetTaskRequest { source_task: worker(1) }).await.unwrap();
    register(&mut calls, 1).await;
    let alive = |index| tf::GetAliveTasksRequest { requesting_task: worker(index), tasks: Vec::new() };
    let mut other = calls.clone();
    let (first, second) = tokio::join!(calls.get_alive_tasks(alive(0)), other.get_alive_tasks(alive(1)));
    assert_eq!(first.unwrap().into_inner().incarnations, [7, 7]);
    assert_eq!(second.unwrap().into_inner().alive_tasks, [worker(0).unwrap(), worker(1).unwrap()]);
}

#[tokio::test]
async fn the_rest_of_the_dialect_answers() {
    let server = start(|_| {});
    let mut calls = client(&server).await.send_compressed(CompressionEncoding::Gzip);
    register(&mut calls, 0).await;
    let value = b"compressible ".repeat(10_000);
    let kv = Some(tf::KeyValueEntry { key: "d/k".to_owned(), value: value.clone() });
    let insert = tf::InsertKeyValueRequest { kv, allow_overwrite: false };
    calls.insert_key_value(insert.clone()).await.unwrap();
    assert_eq!(calls.insert_key_value(insert).await.unwrap_err().code(), Code::AlreadyExists);
    let get = tf::GetKeyValueRequest { key: "d/k".to_owned() };
    assert_eq!(calls.get_key_value(get).await.unwrap().into_inner().kv.unwrap().value, value);
    let add = tf::IncrementKeyValueRequest { key: "n".to_owned(), increment: 3 };
    assert_eq!(calls.increment_key_value(add).await.unwrap().into_inner().kv.unwrap().value, b"3");
    let list = tf::GetKeyValueDirRequest { directory_key: "d".to_owned() };
    assert_eq!(calls.get_key_value_dir(list).await.unwrap().into_inner().kv.len(), 1);
    calls
        .delete_key_value(tf::DeleteKeyValueRequest { key: "d".to_owned(), is_directory: true })
        .await
        .unwrap();
    let missing = calls.try_get_key_value(tf::TryGetKeyValueRequest { key: "d/k".to_owned() }).await;
    assert_eq!(missing.unwrap_err().code(), Code::NotFound);
    let cancel = tf::CancelBarrierRequest { barrier_id: "b".to_owned(), source_task: worker(0), counter: 0 };
    calls.cancel_barrier(cancel).await.unwrap();
    let watch = tf::WatchJobStateRequest { job_name: "worker".to_owned(), version_number: -1 };
    assert_eq!(calls.watch_job_state(watch).await.unwrap().into_inner().task_state.len(), 2);
    let error = calls.report_error_to_agent(tf::ReportErrorToTaskRequest::default()).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    for nobody in [None, worker(-1), worker(2)] {
        let request = tf::ShutdownTaskRequest { source_task: nobody };
        assert_eq!(calls.shutdown_task(request).await.unwrap_err().code(), Code::InvalidArgument);
    }
    calls.shutdown_task(tf::ShutdownTaskRequest { source_task: worker(0) }).await.unwrap();
}

#[tokio::test]
async fn a_call_that_its_caller_gives_up_is_forgotten() {
    let server = start(|_| {});
    let mut calls = client(&server).await;
    let mut hasty = Request::new(tf::GetKeyValueRequest { key: "later".to_owned() });
    hasty.set_timeout(Duration::from_millis(1));
    let status = calls.get_key_value(hasty).await.unwrap_err();
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status:?}");
    let kv = Some(tf::KeyValueEntry { key: "later".to_owned(), value: b"v".to_vec() });
    calls.insert_key_value(tf::InsertKeyValueRequest { kv, allow_overwrite: false }).await.unwrap();
}

/// An agent's own server, which takes errors that are pushed.
#[derive(Clone)]
struct AgentServer(mpsc::UnboundedSender<tf::ReportErrorToTaskRequest>);

impl tonic::server::UnaryService<tf::ReportErrorToTaskRequest> for AgentServer {
    type Response = tf::ReportErrorToTaskResponse;
    type Future = Ready<Result<Response<Self::Response>, Status>>;

    fn call(&mut self, request: Request<tf::ReportErrorToTaskRequest>) -> Self::Future {
        self.0.send(request.into_inner()).unwrap();
        ready(Ok(Response::new(tf::ReportErrorToTaskResponse {})))
    }
}

impl tower::Service<tonic::codegen::http::Request<tonic::body::Body>> for AgentServer {
    type Response = tonic::codegen::http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: tonic::codegen::http::Request<tonic::body::Body>) -> Self::Future {
        assert_eq!(request.uri().path(), "/tensorflow.CoordinationService/ReportErrorToTask");
        let agent = self.clone();
        Box::pin(async move {
            let codec = tonic_prost::ProstCodec::default();
            Ok(tonic::server::Grpc::new(codec).unary(agent, request).await)
        })
    }
}

impl tonic::server::NamedService for AgentServer {
    const NAME: &'static str = "tensorflow.CoordinationService";
}

#[tokio::test]
async fn errors_are_pushed_to_agents_with_servers() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let agent: SocketAddr = listener.local_addr().unwrap();
    let (send, mut pushed) = mpsc::unbounded_channel();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    tokio::spawn(
        tonic::transport::Server::builder().add_service(AgentServer(send)).serve_with_incoming(incoming),
    );
    let server = start(|config| {
        config.agents = vec![(TaskId::new("worker", 0).unwrap(), agent.to_string())];
    });
    let mut calls = client(&server).await;
    register(&mut calls, 0).await;
    register(&mut calls, 1).await;
    let report = tf::ReportErrorToServiceRequest {
        error_code: Code::Internal as i32,
        error_message: "no memory".to_owned(),
        source_job: "worker".to_owned(),
        source_task: 1,
        error_origin: None,
    };
    calls.report_error_to_service(report).await.unwrap();
    let error = pushed.recv().await.unwrap();
    assert_eq!((error.error_code, &*error.error_message), (Code::Internal as i32, "no memory"));
    assert_eq!(error.error_payload.unwrap().source_task, worker(1));
}
