//! Graphs that are sound, and every way not to be.

use std::collections::HashMap;
use std::sync::Arc;

use ringway_proto::tensorflow::attr_value::Value;
use ringway_proto::tensorflow::op_def::ArgDef;
use ringway_proto::tensorflow::{
    AttrValue, DataType, FunctionDef, FunctionDefLibrary, GraphDef, NodeDef, OpDef, TensorProto,
};

use super::*;

fn node(name: &str, op: &str, inputs: &[&str], attrs: &[(&str, Value)]) -> NodeDef {
    let attr = attrs.iter().map(|(n, v)| ((*n).to_owned(), AttrValue { value: Some(v.clone()) })).collect();
    let input = inputs.iter().map(|i| (*i).to_owned()).collect();
    NodeDef { name: name.to_owned(), op: op.to_owned(), input, attr, ..Default::default() }
}

const FLOAT: Value = Value::Type(DataType::DtFloat as i32);
const INT: Value = Value::Type(DataType::DtInt32 as i32);

fn constant(name: &str, dtype: Value) -> NodeDef {
    node(name, "Const", &[], &[("dtype", dtype), ("value", Value::Tensor(TensorProto::default()))])
}

fn add(name: &str, a: &str, b: &str) -> NodeDef {
    node(name, "AddV2", &[a, b], &[("T", FLOAT)])
}

fn check(nodes: Vec<NodeDef>) -> Result<Graph, GraphError> {
    Graph::from_def(&GraphDef { node: nodes, ..Default::default() })
}

#[test]
fn a_sound_graph_knows_its_edges_and_types() {
    let graph = check(vec![add("sum", "a", "b:0"), constant("a", FLOAT), constant("b", FLOAT)]).unwrap();
    let sum = graph.node(graph.find("sum").unwrap());
    assert_eq!(sum.inputs, [Output { node: NodeId(1), index: 0 }, Output { node: NodeId(2), index: 0 }]);
    assert_eq!(graph.output_type(graph.find_output("sum:0").unwrap()), Type::of(DataType::DtFloat));
    assert_eq!(graph.find_output("sum:1"), None);
}

#[test]
fn what_is_wrong_is_named() {
    let a = || constant("a", FLOAT);
    let said = |nodes: Vec<NodeDef>| check(nodes).unwrap_err().to_string();
    assert!(
        said(vec![node("m", "MatMull", &[], &[])]).contains("'MatMull' in node {{node m}}. Near it: MatMul")
    );
    assert!(said(vec![a(), a()]).contains("Node 'a' is not unique"));
    assert!(said(vec![add("s", "a", "gone"), a()]).contains("Unknown input node 'gone'"));
    assert!(said(vec![add("s", "a:7", "a"), a()]).contains("invalid output 7 of source node a which has 1"));
    assert!(said(vec![add("s", "a:x", "a"), a()]).contains("'a:x'"));
    assert!(said(vec![add("s", "^a", "a"), a()]).contains("Control dependencies must come after"));
    assert!(
        said(vec![node("s", "AddV2", &["a"], &[("T", FLOAT)]), a()]).contains("expected 2 inputs but got 1")
    );
    let types = said(vec![add("s", "a", "i"), a(), constant("i", INT)]);
    assert!(
        types.contains("Input 1 of node s was passed int32 from i:0 incompatible with expected float"),
        "{types}"
    );
    assert!(
        said(vec![node("s", "AddV2", &["a", "a"], &[]), a()]).contains("No attr named 'T' in NodeDef 's'")
    );
    assert!(
        said(vec![node("s", "AddV2", &["a", "a"], &[("T", Value::I(1))]), a()]).contains("not of kind type")
    );
    assert!(said(vec![node("", "NoOp", &[], &[])]).contains("not valid"));
    let placed = NodeDef { device: "worker".to_owned(), ..a() };
    assert!(said(vec![placed]).contains("Malformed device specification 'worker'"));
    let many = [("N", Value::I(i64::MAX)), ("T", FLOAT)];
    assert!(said(vec![node("n", "AddN", &["a"], &many), a()]).contains("'N'"));
}

#[test]
fn g2_a_cycle_needs_a_loop() {
    let error = check(vec![add("x", "y", "a"), add("y", "x", "a"), constant("a", FLOAT)]).unwrap_err();
    assert_eq!(error, GraphError::Cycle { nodes: 2, some: vec!["x".to_owned(), "y".to_owned()] });
    let merge = node("merge", "Merge", &["a", "next"], &[("T", FLOAT), ("N", Value::I(2))]);
    let next = node("next", "NextIteration", &["merge"], &[("T", FLOAT)]);
    check(vec![merge, next, constant("a", FLOAT)]).unwrap();
}

#[test]
fn g4_a_long_chain_is_checked_without_recursion() {
    let mut nodes = vec![constant("n0", FLOAT)];
    nodes.extend((1..20_000).map(|at| {
        let before = format!("n{}", at - 1);
        add(&format!("n{at}"), &before, &before)
    }));
    assert_eq!(check(nodes).unwrap().nodes().len(), 20_000);
}

fn doubling() -> FunctionDef {
    let arg = |name: &str| ArgDef { name: name.to_owned(), type_attr: "T".to_owned(), ..Default::default() };
    let attr = ringway_proto::tensorflow::op_def::AttrDef {
        name: "T".to_owned(),
        r#type: "type".to_owned(),
        ..Default::default()
    };
    let signature = OpDef {
        name: "twice".to_owned(),
        input_arg: vec![arg("x")],
        output_arg: vec![arg("y")],
        attr: vec![attr],
        ..Default::default()
    };
    let sum = node("sum", "AddV2", &["x", "x"], &[("T", Value::Placeholder("T".to_owned()))]);
    FunctionDef {
        signature: Some(signature),
        node_def: vec![sum],
        ret: HashMap::from([("y".to_owned(), "sum:z:0".to_owned())]),
        ..Default::default()
    }
}

#[test]
fn a_function_is_called_and_instantiated() {
    let library = FunctionDefLibrary { function: vec![doubling()], ..Default::default() };
    let nodes = vec![constant("a", FLOAT), node("call", "twice", &["a"], &[("T", FLOAT)])];
    let graph =
        Graph::from_def(&GraphDef { node: nodes, library: Some(library), ..Default::default() }).unwrap();
    let call = graph.node(graph.find("call").unwrap());
    assert_eq!(call.output_types, [Type::of(DataType::DtFloat)]);
    let body = graph.library().instantiate("twice", call.attrs.all()).unwrap();
    let ops: Vec<_> = body.graph.nodes().iter().map(Node::op).collect();
    assert_eq!(ops, ["_Arg", "AddV2", "_Retval"]);
    assert_eq!(body.graph.node(body.returns[0]).inputs, [Output { node: NodeId(1), index: 0 }]);
    let missing = Arc::new(Library::default()).instantiate("gone", &HashMap::new());
    assert!(missing.unwrap_err().to_string().contains("'gone'"));
}
