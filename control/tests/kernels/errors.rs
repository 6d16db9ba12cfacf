//! What users see when something is wrong, and what holds over several runs of one kernel.

use std::collections::HashMap;

use ringway_control::core::graph::Graph;
use ringway_control::kernels::{BuildError, Resources, Slot, Variable, build, is_executor_op, variable};
use ringway_control::tensor::{PartialShape, Shape, Tensor};
use ringway_proto::tensorflow::attr_value::Value;
use ringway_proto::tensorflow::error::Code;
use ringway_proto::tensorflow::{AttrValue, DataType, GraphDef, NodeDef};

use crate::run::Bench;

const FLOAT: Value = Value::Type(DataType::DtFloat as i32);
const INT: Value = Value::Type(DataType::DtInt32 as i32);

fn node(name: &str, op: &str, inputs: &[&str], attrs: &[(&str, Value)]) -> NodeDef {
    let attr: HashMap<_, _> =
        attrs.iter().map(|(n, v)| ((*n).to_owned(), AttrValue { value: Some(v.clone()) })).collect();
    let input = inputs.iter().map(|i| (*i).to_owned()).collect();
    NodeDef { name: name.to_owned(), op: op.to_owned(), input, attr, ..Default::default() }
}

fn constant(name: &str, value: Tensor) -> NodeDef {
    let attrs = [("dtype", Value::Type(value.dtype() as i32)), ("value", Value::Tensor(value.to_proto()))];
    node(name, "Const", &[], &attrs)
}

fn graph(nodes: Vec<NodeDef>) -> Graph {
    Graph::from_def(&GraphDef { node: nodes, ..Default::default() }).unwrap()
}

/// The message with which the last of these nodes fails.
fn said(nodes: Vec<NodeDef>) -> String {
    Bench::new().run(&graph(nodes)).unwrap_err()
}

fn floats(sizes: &[usize]) -> Tensor {
    Tensor::zeros(DataType::DtFloat, Shape::new(sizes).unwrap()).unwrap()
}

#[test]
fn messages_are_those_that_users_know() {
    let (a, b) = (constant("a", floats(&[1, 3])), constant("b", floats(&[2, 1])));
    let product = said(vec![a.clone(), b, node("m", "MatMul", &["a", "b"], &[("T", FLOAT)])]);
    assert!(product.contains("Matrix size-incompatible: In[0]: [1,3], In[1]: [2,1]"), "{product}");
    let zero = constant("z", Tensor::vector(&[0i32]).unwrap());
    let quotient = said(vec![zero, node("q", "FloorDiv", &["z", "z"], &[("T", INT)])]);
    assert!(quotient.ends_with("Integer division by zero"), "{quotient}");
    let unfed = said(vec![node("x", "Placeholder", &[], &[("dtype", FLOAT), ("shape", shape(&[2, 2]))])]);
    let expected = "You must feed a value for placeholder tensor 'x' with dtype float and shape [2,2]";
    assert!(unfed.ends_with(expected), "{unfed}");
    let handle = node(
        "v",
        "VarHandleOp",
        &[],
        &[("dtype", FLOAT), ("shape", shape(&[])), ("shared_name", Value::S(b"unset".to_vec()))],
    );
    let unset = said(vec![handle, node("r", "ReadVariableOp", &["v"], &[("dtype", FLOAT)])]);
    assert!(
        unset.contains("Could not find variable unset.") && unset.contains("container=worker"),
        "{unset}"
    );
    assert!(unset.contains("(Could not find resource: worker/unset)"), "{unset}");
    let reference = node("reference", "VariableV2", &[], &[("dtype", FLOAT), ("shape", shape(&[]))]);
    let unset = said(vec![reference, node("i", "Identity", &["reference"], &[("T", FLOAT)])]);
    assert!(unset.ends_with("Attempting to use uninitialized value reference"), "{unset}");
    let c = constant("c", floats(&[2, 4]));
    let shapes = said(vec![a, c, node("s", "AddV2", &["a", "c"], &[("T", FLOAT)])]);
    assert!(shapes.ends_with("Incompatible shapes: [1,3] vs. [2,4]"), "{shapes}");
}

fn shape(sizes: &[i64]) -> Value {
    Value::Shape(PartialShape::from_sizes(sizes).unwrap().to_proto())
}

#[test]
fn k2_what_would_be_too_large_is_refused() {
    let dims = constant("dims", Tensor::vector(&[1i64 << 20, 1 << 20]).unwrap());
    let one = constant("one", Tensor::scalar(1f32).unwrap());
    let index = Value::Type(DataType::DtInt64 as i32);
    let fill =
        graph(vec![dims, one, node("f", "Fill", &["dims", "one"], &[("T", FLOAT), ("index_type", index)])]);
    let bench = Bench::new();
    let constants = ["dims", "one"].map(|name| fill.node(fill.find(name).unwrap()));
    let mut inputs: Vec<Slot> =
        constants.into_iter().map(|node| bench.call(node, &mut []).unwrap().remove(0)).collect();
    let error = bench.call(fill.node(fill.find("f").unwrap()), &mut inputs).unwrap_err();
    assert_eq!(error.code, Code::ResourceExhausted);
    assert!(error.message.contains("OOM when allocating tensor with shape[1048576,1048576]"), "{error}");
}

#[test]
fn what_has_no_kernel_is_named() {
    // TensorFlow has it, and the server does not compute it.
    let text = constant("t", Tensor::from_strings(Shape::scalar(), vec![Default::default()]).unwrap());
    let graph = graph(vec![text, node("u", "StringUpper", &["t"], &[])]);
    let Err(BuildError::Unsupported { op, node, .. }) = build(graph.node(graph.find("u").unwrap())) else {
        panic!("StringUpper has no kernel")
    };
    assert_eq!((op.as_str(), node.as_str()), ("StringUpper", "u"));
    assert!(is_executor_op("_Send") && is_executor_op("CollectiveReduceV2") && !is_executor_op("AddV2"));
}

#[test]
fn unsupported_types_are_named_with_those_that_are() {
    let text = constant("t", Tensor::from_strings(Shape::scalar(), vec![Default::default()]).unwrap());
    let string = Value::Type(DataType::DtString as i32);
    let failed = said(vec![text, node("s", "Sub", &["t", "t"], &[("T", string)])]);
    assert!(
        failed.contains("Op 'Sub' used by {{node s}} with T=string; it is computed for: float, double"),
        "{failed}"
    );
}

/// Runs one node twice on these inputs, as two steps of one session do.
fn two_steps(op: &str, attrs: &[(&str, Value)], input: Tensor) -> [Tensor; 2] {
    let graph = graph(vec![constant("s", input.clone()), node("r", op, &["s"], attrs)]);
    let kernel = build(graph.node(graph.find("r").unwrap())).unwrap();
    let bench = Bench::new();
    [0, 1].map(|_| {
        let mut outputs = [Slot::Empty];
        bench.run_kernel(&*kernel, &mut [Slot::Tensor(input.clone())], &mut outputs).unwrap();
        outputs[0].value().unwrap()
    })
}

#[test]
fn a_stream_goes_on_from_step_to_step() {
    // What tensorflow-cpu 2.21 draws in the first two steps of one session.
    let shape = || Tensor::vector(&[3i32]).unwrap();
    let seeds = [("dtype", FLOAT), ("T", INT), ("seed", Value::I(20)), ("seed2", Value::I(3))];
    let uniform = two_steps("RandomUniform", &seeds, shape());
    let expected = [[0.613_097_2f32, 0.650_123, 0.539_734], [0.053_024_65f32, 0.701_623_1, 0.605_124_35]];
    assert_eq!(uniform.map(|t| t.as_slice::<f32>().unwrap().to_vec()), expected);
    let normal = two_steps("TruncatedNormal", &seeds, shape());
    let expected = [[-0.800_706_9f32, -0.580_802_86, 0.764_269_35], [-0.725_398_7, -0.918_463, -0.401_333_3]];
    for (drawn, expected) in normal.iter().zip(expected) {
        let near = drawn.as_slice::<f32>().unwrap().iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5);
        assert!(near, "{drawn:?}");
    }
    let rows = Tensor::vector(&[0i32, 1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    let shuffled =
        two_steps("RandomShuffle", &[("T", INT), ("seed", Value::I(4)), ("seed2", Value::I(5))], rows);
    let expected = [[5, 4, 2, 1, 7, 6, 3, 8, 0], [6, 4, 3, 2, 0, 7, 8, 5, 1]];
    assert_eq!(shuffled.map(|t| t.as_slice::<i32>().unwrap().to_vec()), expected);
}

#[test]
fn a_fused_product_is_what_it_stands_for() {
    let attrs = |ops: &[&str]| {
        let s = ops.iter().map(|op| op.as_bytes().to_vec()).collect();
        let list = ringway_proto::tensorflow::attr_value::ListValue { s, ..Default::default() };
        [("T", FLOAT), ("num_args", Value::I(1)), ("fused_ops", Value::List(list))]
    };
    let a = constant("a", Tensor::new(Shape::new(&[1, 2]).unwrap(), &[1f32, -2.0]).unwrap());
    let b = constant("b", Tensor::new(Shape::new(&[2, 2]).unwrap(), &[1f32, 2.0, 3.0, -4.0]).unwrap());
    let bias = constant("c", Tensor::vector(&[0.5f32, 1.0]).unwrap());
    let fused = node("m", "_FusedMatMul", &["a", "b", "c"], &attrs(&["BiasAdd", "Relu"]));
    let graph = graph(vec![a, b, bias, fused]);
    let product = Bench::new().run(&graph).unwrap()[3][0].value().unwrap();
    assert_eq!(product.as_slice::<f32>().unwrap(), [0.0, 11.0]);
}

#[test]
fn k3_concurrent_updates_are_all_counted() {
    let counter = std::sync::Arc::new(Variable::new("c", DataType::DtInt64, PartialShape::unknown()));
    let other = std::sync::Arc::new(Variable::new("d", DataType::DtInt64, PartialShape::unknown()));
    for variable in [&counter, &other] {
        variable.assign(Tensor::vector(&[0i64]).unwrap()).unwrap();
    }
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let pair = if thread % 2 == 0 { [&counter, &other] } else { [&other, &counter] };
            scope.spawn(move || {
                for _ in 0..500 {
                    let held = variable::lock_all(pair).unwrap();
                    variable::update_all(held, |writers| {
                        writers.iter_mut().try_for_each(|writer| {
                            writer.elements_mut::<i64>()?[0] += 1;
                            Ok(())
                        })
                    })
                    .unwrap();
                }
            });
        }
        // A reader keeps what it read.
        let before = counter.read().unwrap();
        let value = before.as_slice::<i64>().unwrap()[0];
        scope.spawn(move || {
            assert_eq!(before.as_slice::<i64>().unwrap()[0], value);
        });
    });
    for variable in [&counter, &other] {
        assert_eq!(variable.read().unwrap().as_slice::<i64>().unwrap(), [2000]);
    }
    assert!(variable::lock_all([&counter, &counter]).is_err());
}

#[test]
fn resources_are_found_removed_and_cleared() {
    let resources = Resources::new("worker");
    let make = || Ok(Variable::new("v", DataType::DtFloat, PartialShape::unknown()));
    let made = resources.find_or_make("", "v", make).unwrap();
    assert!(std::sync::Arc::ptr_eq(&made, &resources.find::<Variable>("worker", "v").unwrap()));
    resources.find_or_make("own", "v", make).unwrap();
    assert_eq!(resources.len(), 2);
    assert!(resources.remove("", "v") && !resources.remove("", "v"));
    resources.clear(&["own".to_owned()]);
    assert!(resources.is_empty());
    let handle =
        resources.make_anonymous("d", |name| Variable::new(name, DataType::DtFloat, PartialShape::unknown()));
    let tensor = Tensor::handle(handle.clone());
    assert!(resources.resolve::<Variable>(&tensor).is_ok() && resources.len() == 1);
    drop(tensor);
    let name = handle.name.clone();
    drop(handle);
    assert!(resources.find::<Variable>("", &name).is_none() && resources.is_empty());
}
