use super::super::trace::Trace;
use super::*;
use crate::core::graph::{Graph, Library};
use crate::kernels::Resources;
use crate::runtime::worker::program::Functions;
use crate::runtime::worker::step::{Exchange, Received};
use ringway_dataplane::memory::Bool;
use ringway_dataplane::rendezvous::Key;
use ringway_proto::tensorflow::attr_value::Value;
use ringway_proto::tensorflow::error::Code;
use ringway_proto::tensorflow::{
    AttrValue, DataType, FunctionDef, FunctionDefLibrary, GraphDef, NameAttrList, NodeDef, OpDef, op_def,
};
use std::sync::mpsc;
use std::time::Duration;

const FAR: Duration = Duration::from_secs(60);

/// Keeps what is sent, and who waits.
#[derive(Default)]
struct Kept {
    sent: Mutex<Vec<(String, Option<Tensor>)>>,
    waiting: Mutex<Vec<(String, Received)>>,
    waits: std::sync::Condvar,
}

impl Exchange for Kept {
    fn send(&self, key: &Key, tensor: &Tensor, is_dead: bool) -> Result<(), OpError> {
        let tensor = (!is_dead).then(|| tensor.clone());
        self.sent.lock().unwrap().push((key.text().to_owned(), tensor));
        Ok(())
    }

    fn recv(&self, key: &Key, then: Received) {
        self.waiting.lock().unwrap().push((key.text().to_owned(), then));
        self.waits.notify_all();
    }

    fn abort(&self, why: &OpError) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap());
        waiting.into_iter().for_each(|(_, then)| then(Err(why.clone())));
    }
}

impl Kept {
    /// Takes out whoever waits, once there are so many.
    fn take(&self, count: usize) -> Vec<(String, Received)> {
        let waiting = self.waiting.lock().unwrap();
        let (mut waiting, late) =
            self.waits.wait_timeout_while(waiting, FAR, |waiting| waiting.len() < count).unwrap();
        assert!(!late.timed_out(), "{} of {count} wait", waiting.len());
        std::mem::take(&mut *waiting)
    }
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

fn float() -> Value {
    Value::Type(DataType::DtFloat as i32)
}

fn arg(name: &str, index: i64, dtype: DataType) -> NodeDef {
    node(name, "_Arg", &[], &[("T", Value::Type(dtype as i32)), ("index", Value::I(index))])
}

fn result(index: i64, input: &str) -> NodeDef {
    node(&format!("result_{index}"), "_Retval", &[input], &[("T", float()), ("index", Value::I(index))])
}

fn edge(name: &str, op: &str, inputs: &[&str], tensor: &str) -> NodeDef {
    let device = Value::S(b"/job:a/replica:0/task:0/device:CPU:0".to_vec());
    let of = if op == "_Send" { "T" } else { "tensor_type" };
    let attrs = [
        (of, float()),
        ("tensor_name", Value::S(tensor.as_bytes().to_vec())),
        ("send_device", device.clone()),
        ("recv_device", device),
        ("send_device_incarnation", Value::I(7)),
    ];
    node(name, op, inputs, &attrs)
}

struct Rig {
    executor: Executor,
    kept: Arc<Kept>,
    step: Arc<Step>,
    program: Arc<Program>,
}

impl Rig {
    fn new(nodes: Vec<NodeDef>, functions: Vec<FunctionDef>) -> Rig {
        let library = Some(FunctionDefLibrary { function: functions, ..Default::default() });
        let graph = Graph::from_def(&GraphDef { node: nodes, library, ..Default::default() }).unwrap();
        let library: Arc<Library> = graph.library().clone();
        let kept = Arc::new(Kept::default());
        let step = Step::new(
            1,
            "/job:a/replica:0/task:0/device:CPU:0".into(),
            Arc::new(Resources::new("a")),
            kept.clone(),
            Arc::new(Functions::new(library)),
        );
        Rig {
            executor: Executor::new(Pool::new(2).unwrap()),
            kept,
            step: Arc::new(step),
            program: Arc::new(Program::new(&graph).unwrap()),
        }
    }

    fn start(&self, args: Vec<Slot>) -> mpsc::Receiver<Result<Vec<Slot>, OpError>> {
        let (tell, told) = mpsc::channel();
        self.executor.start(
            &self.program,
            args,
            &self.step,
            Box::new(move |result| tell.send(result).unwrap()),
        );
        told
    }

    fn run(&self, args: Vec<Slot>) -> Result<Vec<Slot>, OpError> {
        self.start(args).recv_timeout(FAR).unwrap()
    }
}

fn slot(value: f32) -> Slot {
    Slot::Tensor(Tensor::scalar(value).unwrap())
}

fn read(slot: &Slot) -> f32 {
    slot.value().unwrap().single().unwrap()
}

#[test]
fn values_go_through_and_dead_branches_end_at_the_merge() {
    let pred = arg("pred", 1, DataType::DtBool);
    let t = || ("T", float());
    let nodes = vec![
        arg("x", 0, DataType::DtFloat),
        pred,
        node("switch", "Switch", &["x", "pred"], &[t()]),
        node("no", "Identity", &["switch:0"], &[t()]),
        node("yes", "Identity", &["switch:1"], &[t()]),
        node("merge", "Merge", &["no", "yes"], &[t(), ("N", Value::I(2))]),
        edge("send_yes", "_Send", &["yes"], "yes"),
        result(0, "merge"),
    ];
    let rig = Rig::new(nodes, Vec::new());
    for taken in [true, false] {
        let pred = Slot::Tensor(Tensor::scalar(Bool::from(taken)).unwrap());
        let given = rig.run(vec![slot(3.0), pred]).unwrap();
        assert_eq!(read(&given[0]), 3.0);
        let (key, sent) = rig.kept.sent.lock().unwrap().pop().unwrap();
        assert!(key.ends_with(";yes;0:0"), "{key}");
        assert_eq!(sent.is_some(), taken, "a transfer runs on a dead branch as well");
    }
}

#[test]
fn waiting_holds_no_thread() {
    // More receives than threads, each of which is answered only when all wait (X3).
    let count = 50;
    let mut nodes: Vec<NodeDef> =
        (0..count).map(|at| edge(&format!("recv_{at}"), "_Recv", &[], &format!("t{at}"))).collect();
    nodes.extend((0..count).map(|at| result(at, &format!("recv_{at}"))));
    let rig = Rig::new(nodes, Vec::new());
    let told = rig.start(Vec::new());
    for (key, then) in rig.kept.take(count as usize) {
        let number: f32 = key.split(';').nth(3).unwrap()[1..].parse().unwrap();
        then(Ok(Arrived { tensor: Tensor::scalar(number).unwrap(), is_dead: false }));
    }
    let given = told.recv_timeout(FAR).unwrap().unwrap();
    let numbers: Vec<f32> = given.iter().map(read).collect();
    assert_eq!(numbers, (0..count).map(|at| at as f32).collect::<Vec<_>>());
}

#[test]
fn the_first_error_is_the_result_and_ends_whoever_waits() {
    let nodes = vec![
        edge("fails", "_Recv", &[], "fails"),
        edge("waits", "_Recv", &[], "waits"),
        result(0, "fails"),
        result(1, "waits"),
    ];
    let rig = Rig::new(nodes, Vec::new());
    let told = rig.start(Vec::new());
    let (fail, wait): (Vec<_>, Vec<_>) =
        rig.kept.take(2).into_iter().partition(|(key, _)| key.contains(";fails;"));
    rig.kept.waiting.lock().unwrap().extend(wait);
    for (_, then) in fail {
        then(Err(OpError::new(Code::DataLoss, "the tape broke")));
    }
    let error = told.recv_timeout(FAR).unwrap().unwrap_err();
    assert_eq!(error.code, Code::DataLoss);
    assert_eq!(error.message, "the tape broke\n\t [[{{node fails}}]]", "X2");
    // What begins in an aborted step ends by the same error (X2).
    assert_eq!(rig.run(Vec::new()).unwrap_err(), error);
}

fn function(name: &str, nodes: Vec<NodeDef>, args: &[DataType], from: &str, gives: DataType) -> FunctionDef {
    let port =
        |name: String, dtype: DataType| op_def::ArgDef { name, r#type: dtype as i32, ..Default::default() };
    let inputs = args.iter().enumerate().map(|(at, dtype)| port(format!("x{at}"), *dtype)).collect();
    let signature = OpDef {
        name: name.into(),
        input_arg: inputs,
        output_arg: vec![port("out".into(), gives)],
        ..Default::default()
    };
    FunctionDef {
        signature: Some(signature),
        node_def: nodes,
        ret: [("out".to_owned(), from.to_owned())].into(),
        ..Default::default()
    }
}

fn callee(name: &str) -> Value {
    Value::Func(NameAttrList { name: name.into(), ..Default::default() })
}

fn types(all: &[DataType]) -> Value {
    let list = ringway_proto::tensorflow::attr_value::ListValue {
        r#type: all.iter().map(|dtype| *dtype as i32).collect(),
        ..Default::default()
    };
    Value::List(list)
}

#[test]
fn functions_are_called_deeply_without_a_deep_stack() {
    // Each calls the next; the last is an identity.
    let depth = 2_000;
    let (ins, outs) = (types(&[DataType::DtFloat]), types(&[DataType::DtFloat]));
    let call = |name: &str, input: &str, of: &str| {
        let attrs = [("Tin", ins.clone()), ("Tout", outs.clone()), ("f", callee(of))];
        node(name, "PartitionedCall", &[input], &attrs)
    };
    let last = node("pass", "Identity", &["x0"], &[("T", float())]);
    let mut functions =
        vec![function("f0", vec![last], &[DataType::DtFloat], "pass:output:0", DataType::DtFloat)];
    for at in 1..depth {
        let inner = call("call", "x0", &format!("f{}", at - 1));
        let made = function(
            &format!("f{at}"),
            vec![inner],
            &[DataType::DtFloat],
            "call:output:0",
            DataType::DtFloat,
        );
        functions.push(made);
    }
    let outermost = format!("f{}", depth - 1);
    let nodes = vec![arg("x", 0, DataType::DtFloat), call("call", "x", &outermost), result(0, "call")];
    let rig = Rig::new(nodes, functions);
    assert_eq!(read(&rig.run(vec![slot(4.0)]).unwrap()[0]), 4.0);
}

#[test]
fn a_function_that_calls_itself_without_end_fails() {
    let float_list = types(&[DataType::DtFloat]);
    let attrs = [("Tin", float_list.clone()), ("Tout", float_list), ("f", callee("again"))];
    let call = |input: &str| node("call", "PartitionedCall", &[input], &attrs);
    let again = function("again", vec![call("x0")], &[DataType::DtFloat], "call:output:0", DataType::DtFloat);
    let nodes = vec![arg("x", 0, DataType::DtFloat), call("x"), result(0, "call")];
    let error = Rig::new(nodes, vec![again]).run(vec![slot(1.0)]).unwrap_err();
    assert_eq!(error.code, Code::ResourceExhausted);
    assert!(error.message.contains(&format!("more than {CALLS_LIMIT} deep")), "{error:?}");
}

#[test]
fn a_function_that_calls_itself_twice_fails_before_its_calls_fill_the_memory() {
    let float_list = types(&[DataType::DtFloat]);
    let attrs = [("Tin", float_list.clone()), ("Tout", float_list), ("f", callee("again"))];
    let call = |name: &str, input: &str| node(name, "PartitionedCall", &[input], &attrs);
    let sum = node("sum", "AddV2", &["a:output:0", "b:output:0"], &[("T", float())]);
    let body = vec![call("a", "x0"), call("b", "x0"), sum];
    let again = function("again", body, &[DataType::DtFloat], "sum:z:0", DataType::DtFloat);
    let nodes = vec![arg("x", 0, DataType::DtFloat), call("call", "x"), result(0, "call")];
    let rig = Rig::new(nodes, vec![again]);
    let error = rig.run(vec![slot(1.0)]).unwrap_err();
    assert_eq!(error.code, Code::ResourceExhausted);
    assert!(error.message.contains(&format!("more than {CALLS_UNDER_WAY_LIMIT} calls")), "{error:?}");
}

#[test]
fn a_traced_step_tells_of_its_nodes_those_of_functions_too() {
    let float_list = types(&[DataType::DtFloat]);
    let attrs = [("Tin", float_list.clone()), ("Tout", float_list), ("f", callee("negate"))];
    let negate = node("negative", "Neg", &["x0"], &[("T", float())]);
    let negate = function("negate", vec![negate], &[DataType::DtFloat], "negative:y:0", DataType::DtFloat);
    let call = node("call", "PartitionedCall", &["x"], &attrs);
    let nodes = vec![arg("x", 0, DataType::DtFloat), call, result(0, "call")];
    let mut rig = Rig::new(nodes, vec![negate]);
    let trace = Arc::new(Trace::new("device".into()));
    rig.step = Arc::new(Arc::into_inner(rig.step).unwrap().with_trace(Some(trace.clone())));
    rig.run(vec![slot(4.0)]).unwrap();
    let stats = trace.take().dev_stats.swap_remove(0);
    let label = |name: &str| {
        let node = stats.node_stats.iter().find(|node| node.node_name == name);
        node.unwrap_or_else(|| panic!("{name} in {stats:?}")).timeline_label.clone()
    };
    assert_eq!(label("negative"), "negative = Neg(x0)");
    assert_eq!(label("call"), "call = PartitionedCall(x)");
}

#[test]
fn a_branch_is_chosen_by_its_condition() {
    let pass = |name: &str, from: usize| {
        let node = node("pass", "Identity", &[&format!("x{from}")], &[("T", float())]);
        let args = [DataType::DtFloat, DataType::DtFloat];
        function(name, vec![node], &args, "pass:output:0", DataType::DtFloat)
    };
    let attrs = [
        ("Tcond", float()),
        ("Tin", types(&[DataType::DtFloat, DataType::DtFloat])),
        ("Tout", types(&[DataType::DtFloat])),
        ("then_branch", callee("first")),
        ("else_branch", callee("second")),
    ];
    let args = (0..3).map(|at| arg(&format!("x{at}"), at, DataType::DtFloat));
    let mut nodes: Vec<NodeDef> = args.collect();
    nodes.extend([node("if", "If", &["x0", "x1", "x2"], &attrs), result(0, "if")]);
    let rig = Rig::new(nodes, vec![pass("first", 0), pass("second", 1)]);
    for (condition, expected) in [(1.0, 10.0), (0.0, 20.0)] {
        let given = rig.run(vec![slot(condition), slot(10.0), slot(20.0)]).unwrap();
        assert_eq!(read(&given[0]), expected);
    }
}
