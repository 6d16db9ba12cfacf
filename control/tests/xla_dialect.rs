//! The service as JAX's clients use it: raw calls of the generated client.

use std::time::Duration;

use prost::Message;
use ringway_control::core::coordination::CoordinatorConfig;
use ringway_control::rpc::serve::{Server, ServerConfig};
use ringway_proto::xla::coordination as xla;
use ringway_proto::xla::coordination::coordination_service_client::CoordinationServiceClient;
use ringway_topology::Incarnation;
use tonic::transport::Channel;
use tonic::{Code, Status};

type Client = CoordinationServiceClient<Channel>;

const SERVICE: u64 = 4242;

fn start() -> Server {
    let config = ServerConfig::new(CoordinatorConfig::one_job("jax", 2), Incarnation(SERVICE));
    Server::start("127.0.0.1:0".parse().unwrap(), config).unwrap()
}

async fn client(server: &Server) -> Client {
    CoordinationServiceClient::connect(format!("http://{}", server.local_addr())).await.unwrap()
}

/// Both tasks, registered: each is answered when the other is there.
async fn both(server: &Server) -> (Client, Client) {
    let (mut first, mut second) = (client(server).await, client(server).await);
    let request = |id| xla::RegisterTaskRequest { incarnation: 7, source_task_id: id };
    let (one, other) = tokio::join!(first.register_task(request(0)), second.register_task(request(1)));
    for answer in [one, other] {
        assert_eq!(answer.unwrap().into_inner().service_incarnation, SERVICE);
    }
    (first, second)
}

fn said(id: i32) -> Option<xla::Incarnations> {
    Some(xla::Incarnations { task_id: id, task_incarnation: 7, service_incarnation: SERVICE })
}

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
async fn tasks_are_numbers() {
    let server = start();
    let (mut first, mut second) = both(&server).await;
    let kv = Some(xla::KeyValueEntry { key: "a//b".to_owned(), value: vec![9; 1 << 20] });
    let insert = xla::InsertKeyValueRequest { incarnations: said(0), kv, allow_overwrite: false };
    first.insert_key_value(insert).await.unwrap();
    let get = xla::GetKeyValueRequest { incarnations: said(1), key: "/a/b".to_owned() };
    let found = second.get_key_value(get).await.unwrap().into_inner().kv.unwrap();
    assert_eq!((found.key.as_str(), found.value.len()), ("/a/b", 1 << 20));
    let barrier = |id| xla::BarrierRequest {
        incarnations: said(id),
        barrier_id: "start".to_owned(),
        barrier_timeout_in_ms: 60_000,
        source_task_id: id,
        ..Default::default()
    };
    let (one, other) = tokio::join!(first.barrier(barrier(0)), second.barrier(barrier(1)));
    assert_eq!((one.unwrap().into_inner().counter, other.unwrap().into_inner().counter), (0, 0));
    let beat = xla::HeartbeatRequest { incarnations: said(1), incarnation: 7, source_task_id: 1 };
    assert_eq!(second.heartbeat(beat).await.unwrap().into_inner().service_incarnation, SERVICE);
    let nobody = xla::ShutdownTaskRequest { incarnations: said(2), source_task_id: 2 };
    let refused = first.shutdown_task(nobody).await.unwrap_err();
    assert!(refused.message().contains("no task 2: the cluster has 2"), "{refused}");
    let watch = xla::WatchTasksRequest { incarnations: said(0), version_number: 0 };
    let tasks = first.watch_tasks(watch).await.unwrap().into_inner().task_state;
    assert_eq!(tasks.iter().map(|task| task.task_id).collect::<Vec<_>>(), [0, 1]);
    assert!(tasks.iter().all(|task| task.state() == xla::TaskState::Connected && task.incarnation == 7));
}

#[tokio::test]
async fn a_call_for_another_life_of_the_service_is_refused() {
    let server = start();
    let (mut first, _second) = both(&server).await;
    let meant = Some(xla::Incarnations { service_incarnation: 1, ..said(0).unwrap() });
    let beat = xla::HeartbeatRequest { incarnations: meant, incarnation: 7, source_task_id: 0 };
    let refused = first.heartbeat(beat).await.unwrap_err();
    assert_eq!(refused.code(), Code::Internal);
    let mismatch: xla::ServiceMismatchError = detail(&refused, "ServiceMismatchError");
    assert_eq!(mismatch.service_incarnation, SERVICE);
}

fn barrier_of(id: i32, name: &str, counter: i64) -> xla::BarrierRequest {
    xla::BarrierRequest {
        incarnations: said(id),
        barrier_id: name.to_owned(),
        barrier_timeout_in_ms: 60_000,
        source_task_id: id,
        counter,
        ..Default::default()
    }
}

#[tokio::test]
async fn tasks_that_are_out_of_step_are_told() {
    let server = start();
    let (mut first, mut second) = both(&server).await;
    for counter in 0..2 {
        let (one, other) = tokio::join!(
            first.barrier(barrier_of(0, "step", counter)),
            second.barrier(barrier_of(1, "step", counter))
        );
        assert_eq!(
            (one.unwrap().into_inner().counter, other.unwrap().into_inner().counter),
            (counter, counter)
        );
    }
    let refused = first.barrier(barrier_of(0, "step", 7)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Internal);
    let whose: xla::BarrierError = detail(&refused, "BarrierError");
    assert_eq!((whose.barrier_id.as_str(), whose.counter), ("step", 2));
    // Clients take an error for one of the coordination service by this.
    let _: xla::CoordinationServiceError = detail(&refused, "CoordinationServiceError");
}

#[tokio::test]
async fn a_process_that_was_replaced_is_refused() {
    let server = start();
    let (mut first, mut second) = both(&server).await;
    let again = xla::RegisterTaskRequest { incarnation: 9, source_task_id: 1 };
    assert_eq!(second.register_task(again).await.unwrap_err().code(), Code::Aborted);
    second.register_task(again).await.unwrap();
    // Requests about keys do not say whose they are but by the incarnation. Task 0 has the same in this test.
    let old = xla::BarrierRequest { incarnations: said(1), ..barrier_of(1, "b", 0) };
    let refused = first.barrier(old).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted);
    assert!(refused.message().contains("was replaced by"), "{refused}");
}

#[tokio::test]
async fn compressed_requests_and_large_values_are_taken() {
    let server = start();
    let (first, mut second) = both(&server).await;
    let value = vec![3; 20 << 20];
    let mut first = first.send_compressed(tonic::codec::CompressionEncoding::Gzip);
    let kv = Some(xla::KeyValueEntry { key: "large".to_owned(), value: value.clone() });
    let insert = xla::InsertKeyValueRequest { incarnations: said(0), kv, allow_overwrite: false };
    first.insert_key_value(insert).await.unwrap();
    second = second.max_decoding_message_size(64 << 20);
    let get = xla::TryGetKeyValueRequest { incarnations: said(1), key: "large".to_owned() };
    let found = second.try_get_key_value(get).await.unwrap().into_inner().kv.unwrap();
    assert!(found.value == value);
}

#[tokio::test]
async fn a_task_whose_connection_ends_is_lost_at_once() {
    let server = start();
    let (mut first, mut second) = both(&server).await;
    let poll = |id| xla::PollForErrorRequest { incarnations: said(id), source_task_id: id };
    let mut again = second.clone();
    let dies = tokio::spawn(async move { second.poll_for_error(poll(1)).await });
    let waits = tokio::spawn(async move { first.poll_for_error(poll(0)).await });
    // A task that never waited for errors cannot be missed: its call is there before its connection ends, because the
    // heartbeat after it on the same connection was answered.
    let beat = xla::HeartbeatRequest { incarnations: said(1), incarnation: 7, source_task_id: 1 };
    again.heartbeat(beat).await.unwrap();
    dies.abort();
    drop(again);
    let told = tokio::time::timeout(Duration::from_secs(60), waits).await.unwrap().unwrap().unwrap_err();
    assert_eq!(told.code(), Code::Unavailable);
    assert!(told.message().starts_with("/job:jax/task:1 is lost: its connection"), "{told}");
    assert!(told.message().contains("ended and did not come back"), "{told}");
    let origin: xla::CoordinationServiceError = detail(&told, "CoordinationServiceError");
    assert_eq!(origin.source_task_id, 1);
}
