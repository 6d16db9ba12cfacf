//! Tasks' remote eager over gRPC: what ends when its client does, and functions over what several tasks have.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::net::SocketAddr;
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
use ringway_proto::tensorflow::worker_service_client::WorkerServiceClient;
use ringway_proto::tensorflow::{AttrValue, DataType, NodeDef};
use tonic::Code;
use tonic::transport::Channel;

#[path = "../../tests/ports/mod.rs"]
mod ports;

const FAR: Duration = Duration::from_secs(60);
const ID: u64 = 7;

const CPU: [&str; 2] =
    ["/job:worker/replica:0/task:0/device:CPU:0", "/job:worker/replica:0/task:1/device:CPU:0"];

struct Rig {
    _tasks: Vec<Task>,
    at: Vec<SocketAddr>,
}

impl Rig {
    /// Two tasks of one cluster.
    fn new() -> Rig {
        let at = Vec::from([0; 2].map(|_| SocketAddr::from(([127, 0, 0, 1], ports::free_ports(1)))));
        let cluster = Cluster::parse(&format!(r#"{{"worker": ["{}", "{}"]}}"#, at[0], at[1])).unwrap();
        let settings = Settings::from_pairs([("RINGWAY_INTER_OP_THREADS", "2")]).unwrap();
        let serve =
            |index: usize| Task::serve(at[index], &cluster, ("worker", index as u32), &settings).unwrap();
        Rig { _tasks: (0..2).map(serve).collect(), at }
    }

    /// A client of task 0.
    async fn client(&self) -> EagerServiceClient<Channel> {
        EagerServiceClient::connect(format!("http://{}", self.at[0])).await.unwrap()
    }

    async fn worker(&self, task: usize) -> WorkerServiceClient<Channel> {
        WorkerServiceClient::connect(format!("http://{}", self.at[task])).await.unwrap()
    }

    /// Contexts of one client on both tasks, and the lives of their devices.
    async fn contexts(&self) -> (Vec<EagerServiceClient<Channel>>, Vec<u64>) {
        let mut devices = Vec::new();
        for task in 0..2 {
            let status = self.worker(task).await.get_status(wire::GetStatusRequest {}).await.unwrap();
            devices.extend(status.into_inner().device_attributes);
        }
        let tasks = self.at.iter().enumerate().map(|(task, at)| (task as i32, at.to_string())).collect();
        let job = wire::JobDef { name: "worker".into(), tasks };
        let mut clients = Vec::new();
        for (task, at) in self.at.iter().enumerate() {
            let server_def = wire::ServerDef {
                cluster: Some(wire::ClusterDef { job: vec![job.clone()] }),
                job_name: "worker".into(),
                task_index: task as i32,
                ..Default::default()
            };
            let create = tf::CreateContextRequest {
                context_id: ID,
                server_def: Some(server_def),
                cluster_device_attributes: devices.clone(),
                ..Default::default()
            };
            let mut client = EagerServiceClient::connect(format!("http://{at}")).await.unwrap();
            client.create_context(create).await.unwrap();
            clients.push(client);
        }
        (clients, devices.iter().map(|device| device.incarnation).collect())
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
        let pass = node("pass", "Identity", &["x"], &[("T", boolean())]);
        let attrs = [("T", types(&[DataType::DtBool])), ("cond", callee("same")), ("body", callee("same"))];
        let goes_round = node("loop", "While", &["x"], &attrs);
        let truth = [("x", DataType::DtBool)];
        let functions = [
            function("same", &truth, vec![pass], "pass:output:0", DataType::DtBool),
            function("endless", &truth, vec![goes_round], "loop:output:0", DataType::DtBool),
        ];
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

fn types(all: &[DataType]) -> Value {
    let r#type = all.iter().map(|dtype| *dtype as i32).collect();
    Value::List(ListValue { r#type, ..Default::default() })
}

fn attrs(all: &[(&str, Value)]) -> HashMap<String, AttrValue> {
    let attr = |(name, value): &(&str, Value)| ((*name).to_owned(), AttrValue { value: Some(value.clone()) });
    all.iter().map(attr).collect()
}

fn node(name: &str, op: &str, inputs: &[&str], given: &[(&str, Value)]) -> NodeDef {
    let input = inputs.iter().map(|input| (*input).to_owned()).collect();
    NodeDef { name: name.into(), op: op.into(), input, attr: attrs(given), ..Default::default() }
}

/// A function of these arguments that gives the value `from`.
fn function(
    name: &str,
    takes: &[(&str, DataType)],
    nodes: Vec<NodeDef>,
    from: &str,
    gives: DataType,
) -> wire::FunctionDef {
    let port = |(name, dtype): &(&str, DataType)| wire::op_def::ArgDef {
        name: (*name).into(),
        r#type: *dtype as i32,
        ..Default::default()
    };
    let signature = wire::OpDef {
        name: name.into(),
        input_arg: takes.iter().map(port).collect(),
        output_arg: vec![port(&("out", gives))],
        ..Default::default()
    };
    wire::FunctionDef {
        signature: Some(signature),
        node_def: nodes,
        ret: [("out".to_owned(), from.to_owned())].into(),
        ..Default::default()
    }
}

fn float(value: f32) -> input::Item {
    let dtype = DataType::DtFloat as i32;
    input::Item::Tensor(wire::TensorProto { dtype, float_val: vec![value], ..Default::default() })
}

/// The first result of an operation on task 0.
fn result(op_id: i64, dtype: DataType) -> input::Item {
    let device = CPU[0].to_owned();
    input::Item::RemoteHandle(tf::RemoteTensorHandle {
        op_id,
        device,
        dtype: dtype as i32,
        ..Default::default()
    })
}

fn operation(id: i64, name: &str, inputs: Vec<input::Item>, given: &[(&str, Value)]) -> Item {
    Item::Operation(tf::Operation {
        id,
        name: name.into(),
        is_function: name == "outer",
        op_inputs: inputs.into_iter().map(|item| Input { item: Some(item) }).collect(),
        attrs: attrs(given),
        ..Default::default()
    })
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

#[tokio::test]
async fn a_function_uses_a_variable_and_a_value_of_another_task() {
    let rig = Rig::new();
    let (mut clients, lives) = rig.contexts().await;
    let (resource, number) = (DataType::DtResource, DataType::DtFloat);
    let dtype = || ("dtype", Value::Type(number as i32));
    let shape = ("shape", Value::Shape(wire::TensorShapeProto::default()));
    let named = ("shared_name", Value::S(b"v".to_vec()));
    let made = request([
        operation(1, "VarHandleOp", vec![], &[dtype(), shape, named]),
        operation(2, "AssignVariableOp", vec![result(1, resource), float(10.0)], &[dtype()]),
        operation(3, "ReadVariableOp", vec![result(1, resource)], &[dtype()]),
    ]);
    clients[0].enqueue(made).await.unwrap();

    // On task 1: v += x, and the product of both; called by another function.
    let takes = [("v", resource), ("x", number)];
    let adds = vec![
        node("add", "AssignAddVariableOp", &["v", "x"], &[dtype()]),
        node("read", "ReadVariableOp", &["v", "^add"], &[dtype()]),
        node("product", "Mul", &["read:value:0", "x"], &[("T", Value::Type(number as i32))]),
    ];
    let call = [("Tin", types(&[resource, number])), ("Tout", types(&[number])), ("f", callee("inner"))];
    let calls = vec![node("call", "StatefulPartitionedCall", &["v", "x"], &call)];
    let functions = [
        function("inner", &takes, adds, "product:z:0", number),
        function("outer", &takes, calls, "call:output:0", number),
    ];
    let register = |function| {
        let function_def = Some(function);
        Item::RegisterFunction(tf::RegisterFunctionOp { function_def, ..Default::default() })
    };
    clients[1].enqueue(request(functions.map(register))).await.unwrap();
    let text = |text: &str| Value::S(text.as_bytes().to_vec());
    let mut reader = rig.worker(1).await;
    for (id, x, expected) in [(5, float(3.0), 13.0 * 3.0), (7, result(3, number), 23.0 * 10.0)] {
        let name = format!("out_{id}");
        let edge = [
            ("T", Value::Type(number as i32)),
            ("tensor_name", text(&name)),
            ("send_device", text(CPU[1])),
            ("recv_device", text(CPU[0])),
            ("send_device_incarnation", Value::I(lives[1] as i64)),
        ];
        let given = input::Item::RemoteHandle(tf::RemoteTensorHandle { op_id: id, ..Default::default() });
        let run = request([
            operation(id, "outer", vec![result(1, resource), x], &[]),
            operation(id + 1, "_Send", vec![given], &edge),
        ]);
        soon(clients[1].enqueue(run)).await.unwrap();
        let rendezvous_key = format!("{};{:016x};{};{name};0:0", CPU[1], lives[1], CPU[0]);
        let ask = wire::RecvTensorRequest { step_id: ID as i64, rendezvous_key, ..Default::default() };
        let tensor = soon(reader.recv_tensor(ask)).await.unwrap().into_inner().tensor.unwrap();
        assert_eq!(f32::from_le_bytes(tensor.tensor_content[..].try_into().unwrap()), expected);
    }

    // What goes wrong there is said here, and leaves nothing behind that the next call could trip over.
    let nowhere = request([operation(9, "outer", vec![result(77, resource), float(1.0)], &[])]);
    let error = soon(clients[1].enqueue(nowhere)).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("Op ID: 77"), "{error}");
    let again = request([operation(11, "outer", vec![result(1, resource), float(1.0)], &[])]);
    soon(clients[1].enqueue(again)).await.unwrap();
}
