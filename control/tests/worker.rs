//! A task's worker over gRPC: graphs that are run, sessions and graphs that are not there, tensors for tasks of TensorFlow's
//! and of Ringway's.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::time::Duration;

use ringway_control::launch::cluster::Cluster;
use ringway_control::runtime::task::Task;
use ringway_control::settings::Settings;
use ringway_proto::tensorflow as wire;
use ringway_proto::tensorflow::attr_value::Value;
use ringway_proto::tensorflow::worker_service_client::WorkerServiceClient;
use ringway_proto::tensorflow::{AttrValue, DataType, NodeDef};
use tonic::Code;
use tonic::transport::Channel;

#[path = "../../tests/ports/mod.rs"]
mod ports;

const FAR: Duration = Duration::from_secs(60);
const CPU: [&str; 2] =
    ["/job:worker/replica:0/task:0/device:CPU:0", "/job:worker/replica:0/task:1/device:CPU:0"];

struct Rig {
    tasks: Vec<Option<Task>>,
    serve: Box<dyn Fn(usize) -> Task>,
    at: Vec<SocketAddr>,
    clients: Vec<WorkerServiceClient<Channel>>,
    lives: Vec<u64>,
}

impl Rig {
    /// Two tasks of one cluster, and a client of each.
    async fn new() -> Rig {
        let at = Vec::from([0; 2].map(|_| SocketAddr::from(([127, 0, 0, 1], ports::free_ports(1)))));
        let cluster = Cluster::parse(&format!(r#"{{"worker": ["{}", "{}"]}}"#, at[0], at[1])).unwrap();
        let settings = Settings::from_pairs([("RINGWAY_INTER_OP_THREADS", "2")]).unwrap();
        let places = at.clone();
        let serve = move |index: usize| {
            Task::serve(places[index], &cluster, ("worker", index as u32), &settings).unwrap()
        };
        let tasks = (0..2).map(|index| Some(serve(index))).collect();
        let (mut clients, mut lives) = (Vec::new(), Vec::new());
        for at in &at {
            let (client, life) = meet(*at).await;
            clients.push(client);
            lives.push(life);
        }
        Rig { tasks, serve: Box::new(serve), at, clients, lives }
    }

    /// Ends a task, and starts it again at the same address.
    async fn restart(&mut self, index: usize) {
        self.tasks[index] = None;
        self.tasks[index] = Some((self.serve)(index));
        (self.clients[index], self.lives[index]) = meet(self.at[index]).await;
    }

    /// Has a task make a graph ready in the session that every worker has.
    async fn register(&mut self, task: usize, node: Vec<NodeDef>) -> Result<String, tonic::Status> {
        let request = wire::RegisterGraphRequest {
            graph_def: Some(wire::GraphDef { node, ..Default::default() }),
            ..Default::default()
        };
        Ok(self.clients[task].register_graph(request).await?.into_inner().graph_handle)
    }

    /// Two graphs, made ready: task 0 makes `value`, and task 1 receives and gives it.
    async fn cross(&mut self, value: f32) -> (String, String) {
        let sender = vec![constant("c", value), self.edge("_Send", &["c"], (0, 1), "c")];
        let receiver =
            vec![self.edge("_Recv", &[], (0, 1), "c"), self.edge("_Send", &["_Recv_c"], (1, 1), "out")];
        (self.register(0, sender).await.unwrap(), self.register(1, receiver).await.unwrap())
    }

    /// A step of these two graphs. What task 1 was given.
    async fn crosses(&mut self, (sends, receives): (&str, &str), id: i64) -> f32 {
        self.run(0, step(sends, id)).await.unwrap();
        let request = wire::RunGraphRequest { recv_key: vec![self.key(1, 1, "out")], ..step(receives, id) };
        let given = self.run(1, request).await.unwrap();
        read(given.recv[0].tensor.as_ref().unwrap())
    }

    async fn run(
        &mut self,
        task: usize,
        request: wire::RunGraphRequest,
    ) -> Result<wire::RunGraphResponse, tonic::Status> {
        let run = self.clients[task].run_graph(request);
        tokio::time::timeout(FAR, run).await.unwrap().map(tonic::Response::into_inner)
    }

    /// The key of a tensor from one task's device to another's.
    fn key(&self, from: usize, to: usize, tensor: &str) -> String {
        format!("{};{:016x};{};{tensor};0:0", CPU[from], self.lives[from], CPU[to])
    }

    /// A `_Send` or `_Recv` on that edge.
    fn edge(&self, op: &str, input: &[&str], (from, to): (usize, usize), tensor: &str) -> NodeDef {
        let text = |text: &str| Value::S(text.as_bytes().to_vec());
        let attrs = [
            (if op == "_Send" { "T" } else { "tensor_type" }, float()),
            ("tensor_name", text(tensor)),
            ("send_device", text(CPU[from])),
            ("recv_device", text(CPU[to])),
            ("send_device_incarnation", Value::I(self.lives[from] as i64)),
        ];
        node(&format!("{op}_{tensor}"), op, input, &attrs)
    }
}

/// A client of the task at `at`, and the life of its device.
async fn meet(at: SocketAddr) -> (WorkerServiceClient<Channel>, u64) {
    let mut client = WorkerServiceClient::connect(format!("http://{at}")).await.unwrap();
    let status = client.get_status(wire::GetStatusRequest {}).await.unwrap().into_inner();
    (client, status.device_attributes[0].incarnation)
}

fn float() -> Value {
    Value::Type(DataType::DtFloat as i32)
}

fn node(name: &str, op: &str, inputs: &[&str], attrs: &[(&str, Value)]) -> NodeDef {
    let attr = |(name, value): &(&str, Value)| ((*name).to_owned(), AttrValue { value: Some(value.clone()) });
    NodeDef {
        name: name.into(),
        op: op.into(),
        input: inputs.iter().map(|input| (*input).to_owned()).collect(),
        attr: attrs.iter().map(attr).collect(),
        ..Default::default()
    }
}

fn scalar(value: f32) -> wire::TensorProto {
    wire::TensorProto { dtype: DataType::DtFloat as i32, float_val: vec![value], ..Default::default() }
}

fn constant(name: &str, value: f32) -> NodeDef {
    node(name, "Const", &[], &[("dtype", float()), ("value", Value::Tensor(scalar(value)))])
}

fn read(tensor: &wire::TensorProto) -> f32 {
    let bytes: [u8; 4] = tensor.tensor_content[..].try_into().unwrap();
    f32::from_le_bytes(bytes)
}

fn step(handle: &str, step_id: i64) -> wire::RunGraphRequest {
    wire::RunGraphRequest { graph_handle: handle.to_owned(), step_id, ..Default::default() }
}

#[tokio::test]
async fn feeds_go_in_and_fetches_come_out() {
    let mut rig = Rig::new().await;
    let nodes = vec![
        rig.edge("_Recv", &[], (0, 0), "x"),
        node("y", "Identity", &["_Recv_x"], &[("T", float())]),
        rig.edge("_Send", &["y"], (0, 0), "y"),
    ];
    let graph = rig.register(0, nodes).await.unwrap();
    for (id, value) in [(1, 5.0), (2, 6.0)] {
        let feed = wire::NamedTensorProto { name: rig.key(0, 0, "x"), tensor: Some(scalar(value)) };
        let request = wire::RunGraphRequest {
            send: vec![feed],
            recv_key: vec![rig.key(0, 0, "y")],
            ..step(&graph, id)
        };
        let given = rig.run(0, request).await.unwrap();
        assert_eq!(read(given.recv[0].tensor.as_ref().unwrap()), value);
        rig.clients[0].cleanup_graph(wire::CleanupGraphRequest { step_id: id }).await.unwrap();
    }
}

#[tokio::test]
async fn tensors_cross_between_tasks_of_ours_on_the_data_plane_alone() {
    let mut rig = Rig::new().await;
    let (sends, receives) = rig.cross(8.0).await;
    for id in 1..4 {
        assert_eq!(rig.crosses((&sends, &receives), id).await, 8.0);
    }
    let traffic = rig.tasks[1].as_ref().unwrap().traffic();
    assert_eq!((traffic.plane_tensors, traffic.plane_bytes, traffic.grpc_tensors), (3, 12, 0));
}

/// Of the first step: the receiver may not even have heard yet that the other life has ended.
#[tokio::test]
async fn a_tensor_of_a_tasks_next_life_is_asked_for_there() {
    let mut rig = Rig::new().await;
    let graphs = rig.cross(1.0).await;
    assert_eq!(rig.crosses((&graphs.0, &graphs.1), 1).await, 1.0);
    for life in 2_u8..5 {
        rig.restart(0).await;
        let graphs = rig.cross(f32::from(life)).await;
        assert_eq!(rig.crosses((&graphs.0, &graphs.1), i64::from(life)).await, f32::from(life));
    }
}

#[tokio::test]
async fn a_task_of_tensorflows_gets_the_tensor_itself_even_if_it_asks_first() {
    let mut rig = Rig::new().await;
    let sender = vec![constant("c", 9.0), rig.edge("_Send", &["c"], (0, 1), "c")];
    let graph = rig.register(0, sender).await.unwrap();
    let ask =
        |rendezvous_key: String| wire::RecvTensorRequest { step_id: 1, rendezvous_key, ..Default::default() };
    let mut asks = rig.clients[0].clone();
    let (asked, ran) =
        tokio::join!(asks.recv_tensor(ask(rig.key(0, 1, "c"))), rig.clients[0].run_graph(step(&graph, 1)));
    ran.unwrap();
    assert_eq!(read(asked.unwrap().into_inner().tensor.as_ref().unwrap()), 9.0);

    // Another life of the device.
    rig.lives[0] ^= 1;
    let status = asks.recv_tensor(ask(rig.key(0, 1, "c"))).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted);
    assert!(status.message().contains("expects a different device incarnation"), "{status}");
    let status = asks.recv_tensor(ask("nonsense".into())).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn what_is_not_there_is_named() {
    let mut rig = Rig::new().await;
    let unknown = rig.register(0, vec![node("x", "MatMull", &[], &[])]).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    assert!(
        unknown.message().contains("'MatMull'") && unknown.message().contains("Near it: MatMul"),
        "{unknown}"
    );

    let gone = rig.run(0, step("no such graph", 1)).await.unwrap_err();
    assert_eq!(gone.code(), Code::Aborted);
    assert!(gone.message().starts_with("Graph handle is not found: no such graph."), "{gone}");

    let session = wire::RunGraphRequest {
        session_handle: "s".into(),
        create_worker_session_called: true,
        ..step("g", 1)
    };
    let gone = rig.run(0, session).await.unwrap_err();
    assert_eq!(gone.code(), Code::Aborted);
    assert!(gone.message().starts_with("Session handle is not found: s."), "{gone}");

    // An error of a node: its name is in it, and it comes in the body when that is asked for.
    let nodes = vec![
        node("x", "Placeholder", &[], &[("dtype", float())]),
        node("y", "Identity", &["x"], &[("T", float())]),
    ];
    let graph = rig.register(0, nodes).await.unwrap();
    let in_body = wire::RunGraphRequest { store_errors_in_response_body: true, ..step(&graph, 2) };
    let failed = rig.run(0, in_body).await.unwrap();
    assert_eq!(failed.status_code, Code::InvalidArgument as i32);
    assert!(failed.status_error_message.ends_with("[[{{node x}}]]"), "{failed:?}");
    // Whoever receives in that step hears of it.
    let request =
        wire::RecvTensorRequest { step_id: 2, rendezvous_key: rig.key(0, 1, "y"), ..Default::default() };
    let status = rig.clients[0].recv_tensor(request).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_master_that_was_started_again_takes_nothing_over_and_leaves_others_alone() {
    let mut rig = Rig::new().await;
    let create = |handle: &str, master: &str, life: i64| wire::CreateWorkerSessionRequest {
        session_handle: handle.into(),
        master_task: master.into(),
        master_incarnation: life,
        ..Default::default()
    };
    let register = |handle: &str| wire::RegisterGraphRequest {
        session_handle: handle.into(),
        create_worker_session_called: true,
        ..Default::default()
    };
    for (handle, master, life) in [("a1", "/job:a", 1), ("b1", "/job:b", 1), ("a2", "/job:a", 2)] {
        rig.clients[0].create_worker_session(create(handle, master, life)).await.unwrap();
    }
    let status = rig.clients[0].register_graph(register("a1")).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted);
    for handle in ["b1", "a2"] {
        rig.clients[0].register_graph(register(handle)).await.unwrap();
    }
}

#[tokio::test]
async fn a_group_is_complete_when_all_are_there() {
    let mut rig = Rig::new().await;
    let member = |name: &str, size| wire::CompleteGroupRequest {
        group_key: 1,
        group_size: size,
        device_type: "CPU".into(),
        device_attributes: Some(wire::DeviceAttributes { name: name.into(), ..Default::default() }),
        ..Default::default()
    };
    let mut second = rig.clients[0].clone();
    let (one, two) = tokio::join!(
        rig.clients[0].complete_group(member(CPU[1], 2)),
        second.complete_group(member(CPU[0], 2))
    );
    let (one, two) = (one.unwrap().into_inner(), two.unwrap().into_inner());
    assert_eq!(one, two);
    let names: Vec<&str> = one.device_attributes.iter().map(|device| device.name.as_str()).collect();
    assert_eq!((names, one.num_tasks), (CPU.to_vec(), 2));
    let other = second.complete_group(member(CPU[0], 3)).await.unwrap_err();
    assert_eq!(other.code(), Code::InvalidArgument);
    let full = second.complete_group(member("/job:x/task:0/device:CPU:0", 2)).await.unwrap_err();
    assert!(full.message().contains("is full"), "{full}");
}

#[tokio::test]
async fn members_of_a_group_reduce_whatever_order_they_begin_in() {
    let mut rig = Rig::new().await;
    let int = |name: &str, value: i32| {
        let dtype = DataType::DtInt32 as i32;
        let tensor = wire::TensorProto { dtype, int_val: vec![value], ..Default::default() };
        node(name, "Const", &[], &[("dtype", Value::Type(dtype)), ("value", Value::Tensor(tensor))])
    };
    let mut runs = Vec::new();
    for task in 0..2 {
        let mut nodes = vec![constant("x", (task + 1) as f32), int("size", 2), int("group", 7)];
        let mut keys = Vec::new();
        // Nothing orders these, so that the tasks begin them as it happens (C1).
        for instance in 0..8 {
            let (at, name) = (format!("at_{instance}"), format!("sum_{instance}"));
            nodes.push(int(&at, instance));
            let merge = |op: &[u8]| Value::S(op.to_vec());
            let attrs = [("T", float()), ("merge_op", merge(b"Add")), ("final_op", merge(b"Id"))];
            nodes.push(node(&name, "CollectiveReduceV2", &["x", "size", "group", &at], &attrs));
            nodes.push(rig.edge("_Send", &[&name], (task, task), &name));
            keys.push(rig.key(task, task, &name));
        }
        let graph = rig.register(task, nodes).await.unwrap();
        runs.push(wire::RunGraphRequest { recv_key: keys, ..step(&graph, 1) });
    }
    let mut second = rig.clients[1].clone();
    let both =
        async { tokio::join!(rig.clients[0].run_graph(runs[0].clone()), second.run_graph(runs[1].clone())) };
    let (one, two) = tokio::time::timeout(FAR, both).await.unwrap();
    for given in [one.unwrap().into_inner(), two.unwrap().into_inner()] {
        let sums: Vec<f32> = given.recv.iter().map(|named| read(named.tensor.as_ref().unwrap())).collect();
        assert_eq!(sums, [3.0; 8]);
    }

    // One alone waits, until its step is aborted (C2).
    let error = aborted(&mut rig, runs[0].clone(), 2).await;
    assert_eq!(error.code(), Code::Cancelled, "{error}");
}

/// Has task 0 run a step, and ends it from outside. Its error.
async fn aborted(rig: &mut Rig, request: wire::RunGraphRequest, step_id: i64) -> tonic::Status {
    let mut alone = rig.clients[0].clone();
    let waits =
        tokio::spawn(async move { alone.run_graph(wire::RunGraphRequest { step_id, ..request }).await });
    let session = wire::DeleteWorkerSessionRequest::default();
    while !waits.is_finished() {
        rig.clients[0].delete_worker_session(session.clone()).await.unwrap();
        tokio::task::yield_now().await;
    }
    waits.await.unwrap().unwrap_err()
}

#[tokio::test]
async fn c3_a_group_whose_members_never_all_came_leaves_nothing_behind() {
    let mut rig = Rig::new().await;
    let dtype = DataType::DtFloat as i32;
    let merge = |op: &[u8]| Value::S(op.to_vec());
    let attrs = [
        ("T", Value::Type(dtype)),
        ("merge_op", merge(b"Add")),
        ("final_op", merge(b"Id")),
        ("subdiv_offsets", Value::List(Default::default())),
        ("group_size", Value::I(2)),
        ("group_key", Value::I(GROUP)),
        ("instance_key", Value::I(1)),
    ];
    let nodes = vec![constant("x", 1.0), node("sum", "CollectiveReduce", &["x"], &attrs)];
    let graph = rig.register(0, nodes).await.unwrap();
    for id in 1..4 {
        let error = aborted(&mut rig, step(&graph, id), id).await;
        assert_eq!(error.code(), Code::Cancelled, "{error}");
    }
    let gone = async {
        while threads_named(&format!("ringway-group-{GROUP}")) > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(FAR, gone).await.expect("threads of dead groups are still there");
}

/// A number of a group that no other test has.
const GROUP: i64 = 4711;

/// Threads of this process whose name begins so, as far as the system keeps names: 15 bytes.
fn threads_named(name: &str) -> usize {
    let name = &name[..name.len().min(15)];
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let is_named = |thread: &std::fs::DirEntry| {
        // One that has ended meanwhile has no name any more.
        std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    threads.filter_map(Result::ok).filter(is_named).count()
}

/// A reduction of the group [`GROUP`] and its instance `at`, over two devices, that may take so long.
fn reduction(name: &str, at: i64, group: i64, seconds: f32) -> NodeDef {
    let word = |word: &[u8]| Value::S(word.to_vec());
    let attrs = [
        ("T", float()),
        ("merge_op", word(b"Add")),
        ("final_op", word(b"Id")),
        ("subdiv_offsets", Value::List(Default::default())),
        ("group_size", Value::I(2)),
        ("group_key", Value::I(group)),
        ("instance_key", Value::I(at)),
        ("timeout_seconds", Value::F(seconds)),
    ];
    node(name, "CollectiveReduce", &["x"], &attrs)
}

#[tokio::test]
async fn c2_a_collective_that_takes_too_long_ends_and_names_who_is_missing() {
    let mut rig = Rig::new().await;
    // The members never meet. The first task leads, and knows who came; it tells the second.
    for (task, other) in [(0, 1), (1, 0)] {
        let nodes = vec![constant("x", 1.0), reduction("sum", 1, 20, 0.2)];
        let graph = rig.register(task, nodes).await.unwrap();
        let error = rig.run(task, step(&graph, 1)).await.unwrap_err();
        assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
        let missing = format!("{} came; missing are 1: /job:worker/replica:0/task:{other}", CPU[task]);
        assert!(error.message().contains(&missing), "{error}");
        assert!(error.message().contains("{{node sum}}"), "{error}");
    }
    // They have met, and one does not come to the second instance.
    let mut graphs = Vec::new();
    for (at, seconds) in [(1, 0.0), (2, 0.2)] {
        for task in 0..2 {
            let nodes = vec![constant("x", 1.0), reduction("sum", at, 21, seconds)];
            graphs.push(rig.register(task, nodes).await.unwrap());
        }
    }
    let mut second = rig.clients[1].clone();
    let both =
        tokio::join!(rig.clients[0].run_graph(step(&graphs[0], 2)), second.run_graph(step(&graphs[1], 2)));
    both.0.unwrap();
    both.1.unwrap();
    let error = rig.run(0, step(&graphs[2], 3)).await.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    assert!(error.message().contains(&format!("nothing came from {} (rank 1)", CPU[1])), "{error}");
    // The member that was idle hears of it (C2).
    let error = rig.run(1, step(&graphs[3], 4)).await.unwrap_err();
    assert!(error.message().contains("Collective has timed out: instance 2 of group 21"), "{error}");
}

#[tokio::test]
async fn a_group_of_tasks_of_both_kinds_is_refused() {
    let mut rig = Rig::new().await;
    let graph = rig.register(0, vec![constant("x", 1.0), reduction("sum", 1, 22, 0.0)]).await.unwrap();
    // As a task of TensorFlow's comes: without a word of the data plane.
    let stock = wire::CompleteGroupRequest {
        group_key: 22,
        group_size: 2,
        device_type: "CPU".into(),
        device_attributes: Some(wire::DeviceAttributes { name: CPU[1].into(), ..Default::default() }),
        ..Default::default()
    };
    let mut asks = rig.clients[0].clone();
    let (met, ran) = tokio::join!(asks.complete_group(stock), rig.clients[0].run_graph(step(&graph, 1)));
    assert_eq!(met.unwrap().into_inner().device_attributes.len(), 2);
    let error = ran.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    let words = format!("{} is no Ringway task: a collective group is of tasks of one kind", CPU[1]);
    assert!(error.message().contains(&words), "{error}");
}

#[tokio::test]
async fn a_traced_step_tells_of_its_nodes_and_of_what_came_from_other_tasks() {
    let mut rig = Rig::new().await;
    let (sends, receives) = rig.cross(3.0).await;
    let exec_opts = Some(wire::ExecutorOpts { record_timeline: true, ..Default::default() });
    let traced = |handle: &str| wire::RunGraphRequest { exec_opts, ..step(handle, 1) };
    let sent = rig.run(0, traced(&sends)).await.unwrap();
    let received = rig.run(1, traced(&receives)).await.unwrap();
    let labels = |answer: wire::RunGraphResponse| -> Vec<(String, String)> {
        let device = answer.step_stats.unwrap().dev_stats.swap_remove(0);
        device.node_stats.into_iter().map(|node| (node.node_name, node.timeline_label)).collect()
    };
    let sent = labels(sent);
    assert!(sent.contains(&("_Send_c".into(), "_Send_c = _Send(c)".into())), "{sent:?}");
    let received = labels(received);
    assert!(received.contains(&("_Recv_c".into(), "_Recv_c = _Recv()".into())), "{received:?}");
    let (_, transfer) = received.iter().find(|(name, _)| name == "RecvTensor").unwrap();
    assert!(transfer.ends_with(&format!(" c from {} to {}", CPU[0], CPU[1])), "{transfer}");
    assert_eq!(rig.run(0, step(&sends, 2)).await.unwrap().step_stats, None);
}

#[tokio::test]
async fn what_came_from_other_tasks_is_logged_while_that_is_wanted() {
    let mut rig = Rig::new().await;
    let (sends, receives) = rig.cross(3.0).await;
    let mut asks = rig.clients[1].clone();
    let mut log =
        async |request: wire::LoggingRequest| asks.logging(request).await.unwrap().into_inner().step;
    let fetch = |ids: &[i64]| wire::LoggingRequest { fetch_step_id: ids.to_vec(), ..Default::default() };
    log(wire::LoggingRequest { enable_rpc_logging: true, ..Default::default() }).await;
    for id in [1, 2, 3] {
        rig.crosses((&sends, &receives), id).await;
    }
    let steps = log(fetch(&[2, 1, 9])).await;
    assert_eq!(steps.iter().map(|step| step.step_id).collect::<Vec<_>>(), [2, 1]);
    let device = &steps[0].step_stats.as_ref().unwrap().dev_stats[0];
    assert_eq!((device.device.as_str(), device.node_stats.len()), (CPU[1], 1));
    assert_eq!(device.node_stats[0].node_name, "RecvTensor");
    // Fetched is gone, as is what was cleared.
    assert_eq!(log(fetch(&[1, 2])).await, []);
    log(wire::LoggingRequest { clear: true, ..Default::default() }).await;
    assert_eq!(log(fetch(&[3])).await, []);
    log(wire::LoggingRequest { disable_rpc_logging: true, ..Default::default() }).await;
    rig.crosses((&sends, &receives), 4).await;
    assert_eq!(log(fetch(&[4])).await, []);
}

#[tokio::test]
async fn a_tensor_that_the_machine_has_no_memory_for_fails_its_node_and_the_task_goes_on() {
    let mut rig = Rig::new().await;
    let dtype = DataType::DtInt64 as i32;
    let dims = wire::TensorProto {
        dtype,
        tensor_shape: Some(wire::TensorShapeProto {
            dim: vec![wire::tensor_shape_proto::Dim { size: 2, ..Default::default() }],
            ..Default::default()
        }),
        int64_val: vec![1 << 21, 1 << 20],
        ..Default::default()
    };
    let dims = node("dims", "Const", &[], &[("dtype", Value::Type(dtype)), ("value", Value::Tensor(dims))]);
    let attrs = [("T", float()), ("index_type", Value::Type(dtype))];
    let nodes = vec![dims, constant("one", 1.0), node("vast", "Fill", &["dims", "one"], &attrs)];
    let graph = rig.register(0, nodes).await.unwrap();
    for id in [1, 2] {
        let error = rig.run(0, step(&graph, id)).await.unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
        for word in ["[2097152,1048576]", "{{node vast}}", "may still take"] {
            assert!(error.message().contains(word), "{error}");
        }
    }
}
