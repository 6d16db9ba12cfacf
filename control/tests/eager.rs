//! A task's remote eager over gRPC: what ends when its client does.
#![forbid(unsafe_code)]

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use ringway_control::launch::cluster::Cluster;
use ringway_control::runtime::task::Task;
use ringway_control::settings::Settings;
use ringway_proto::tensorflow as wire;
use ringway_proto::tensorflow::attr_value::{ListValue, Value};
use ringway_proto::tensorflow::eager as tf;
use ringway_proto::tensorflow::eager::eager_service_client::EagerServiceClient;
use ringway_proto::tensorflow::eager::operation::{Input, input};
use ringway_proto::tensorflow::eager::queue_item::Item;
use ringway_proto::tensorflow::{AttrValue, DataType, NodeDef};
use tonic::Code;
use tonic::transport::Channel;

const FAR: Duration = Duration::from_secs(20);
const ID: u64 = 7;

struct Rig {
    _task: Task,
    at: SocketAddr,
}

impl Rig {
    fn new() -> Rig {
        let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let cluster = Cluster::parse(&format!(r#"{{"worker": ["{at}"]}}"#)).unwrap();
        let settings = Settings::from_pairs([("RINGWAY_INTER_OP_THREADS", "2")]).unwrap();
        Rig { _task: Task::serve(at, &cluster, ("worker", 0), &settings).unwrap(), at }
    }

    async fn client(&self) -> EagerServiceClient<Channel> {
        EagerServiceClient::connect(format!("http://{}", self.at)).await.unwrap()
    }

    /// A context that holds a function, `endless`, which does not end.
    async fn context(&self, keep_alive_secs: i64) -> EagerServiceClient<Channel> {
        let mut client = self.client().await;
        let server_def = wire::ServerDef { job_name: "worker".into(), ..Default::default() };
        let create = tf::CreateContextRequest {
            context_id: ID,
            server_def: Some(server_def),
            keep_alive_secs,
            ..Default::default()
        };
        client.create_context(create).await.unwrap();
        let register = |function| {
            let function_def = Some(function);
            Item::RegisterFunction(tf::RegisterFunctionOp { function_def, ..Default::default() })
        };
        let pass = node("pass", "Identity", &[("T", boolean())]);
        let types = Value::List(ListValue { r#type: vec![DataType::DtBool as i32], ..Default::default() });
        let attrs = [("T", types), ("cond", callee("same")), ("body", callee("same"))];
        let goes_round = node("loop", "While", &attrs);
        let functions =
            [function("same", pass, "pass:output:0"), function("endless", goes_round, "loop:output:0")];
        client.enqueue(request(functions.map(register))).await.unwrap();
        client
    }
}

fn boolean() -> Value {
    Value::Type(DataType::DtBool as i32)
}

fn callee(name: &str) -> Value {
    Value::Func(wire::NameAttrList { name: name.into(), ..Default::default() })
}

fn node(name: &str, op: &str, attrs: &[(&str, Value)]) -> NodeDef {
    let attr = |(name, value): &(&str, Value)| ((*name).to_owned(), AttrValue { value: Some(value.clone()) });
    let attr = attrs.iter().map(attr).collect();
    NodeDef { name: name.into(), op: op.into(), input: vec!["x".into()], attr, ..Default::default() }
}

/// A function of one truth value, `x`, that gives another.
fn function(name: &str, node: NodeDef, gives: &str) -> wire::FunctionDef {
    let port = |name: &str| wire::op_def::ArgDef {
        name: name.into(),
        r#type: DataType::DtBool as i32,
        ..Default::default()
    };
    let signature = wire::OpDef {
        name: name.into(),
        input_arg: vec![port("x")],
        output_arg: vec![port("out")],
        ..Default::default()
    };
    wire::FunctionDef {
        signature: Some(signature),
        node_def: vec![node],
        ret: [("out".to_owned(), gives.to_owned())].into(),
        ..Default::default()
    }
}

fn request(items: impl IntoIterator<Item = Item>) -> tf::EnqueueRequest {
    let queue = items.into_iter().map(|item| tf::QueueItem { item: Some(item) }).collect();
    tf::EnqueueRequest { context_id: ID, queue }
}

/// Keeps a value as the result of operation `mark`, and then calls `endless`.
fn endless(mark: i64) -> tf::EnqueueRequest {
    let yes =
        wire::TensorProto { dtype: DataType::DtBool as i32, bool_val: vec![true], ..Default::default() };
    let sent = tf::SendTensorOp { op_id: mark, tensors: vec![yes.clone()], ..Default::default() };
    let operation = tf::Operation {
        id: mark + 1,
        name: "endless".into(),
        is_function: true,
        op_inputs: vec![Input { item: Some(input::Item::Tensor(yes)) }],
        ..Default::default()
    };
    request([Item::SendTensor(sent), Item::Operation(operation)])
}

/// Waits until the result of `mark` is there.
async fn has_begun(client: &mut EagerServiceClient<Channel>, mark: i64) {
    let handle = tf::RemoteTensorHandle { op_id: mark, ..Default::default() };
    let operation = tf::Operation {
        id: mark + 2,
        name: "Identity".into(),
        op_inputs: vec![Input { item: Some(input::Item::RemoteHandle(handle)) }],
        attrs: [("T".to_owned(), AttrValue { value: Some(boolean()) })].into(),
        ..Default::default()
    };
    let asks = async {
        while client.enqueue(request([Item::Operation(operation.clone())])).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    soon(asks).await;
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(FAR, what).await.expect("it does not end")
}

#[tokio::test]
async fn e2_a_silent_clients_context_ends_with_what_runs_in_it() {
    let rig = Rig::new();
    let mut client = rig.context(1).await;
    let error = soon(client.enqueue(endless(1))).await.unwrap_err();
    assert_eq!(error.code(), Code::Cancelled);
    assert!(error.message().contains("silent for as long as its lease"), "{error}");
    let error = client.keep_alive(tf::KeepAliveRequest { context_id: ID }).await.unwrap_err();
    assert_eq!(error.code(), Code::Aborted);
}

#[tokio::test]
async fn a_closed_context_ends_what_runs_in_it() {
    let rig = Rig::new();
    let (mut client, mut other) = (rig.context(0).await, rig.client().await);
    let runs = tokio::spawn(async move { client.enqueue(endless(1)).await });
    has_begun(&mut other, 1).await;
    let close = tf::CloseContextRequest { context_id: ID, ..Default::default() };
    other.close_context(close).await.unwrap();
    let error = soon(runs).await.unwrap().unwrap_err();
    assert_eq!(error.code(), Code::Cancelled);
    assert!(error.message().contains("its client closed it"), "{error}");
}

#[tokio::test]
async fn what_runs_for_a_client_ends_when_it_goes() {
    let rig = Rig::new();
    let (mut client, mut other) = (rig.context(0).await, rig.client().await);
    let done = || tf::WaitQueueDoneRequest { context_id: ID, ..Default::default() };

    // By a call.
    let runs = tokio::spawn(async move { client.enqueue(endless(1)).await });
    has_begun(&mut other, 1).await;
    runs.abort();
    assert!(runs.await.unwrap_err().is_cancelled());
    soon(other.wait_queue_done(done())).await.unwrap();

    // By a stream.
    let mut client = rig.client().await;
    let (requests, stream) = tokio::sync::mpsc::channel(1);
    let stream = tokio_stream::wrappers::ReceiverStream::new(stream);
    let answers = client.streaming_enqueue(stream).await.unwrap();
    requests.send(endless(11)).await.unwrap();
    has_begun(&mut other, 11).await;
    drop((answers, requests, client));
    soon(other.wait_queue_done(done())).await.unwrap();
}
