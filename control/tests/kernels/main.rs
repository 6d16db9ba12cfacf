//! Kernels against stock TensorFlow: `golden.pb` (see `generate.py`) holds small graphs and what it computes from them.

mod errors;
mod fuzz;
mod run;

use std::collections::BTreeMap;

use half::{bf16, f16};
use prost::Message;
use ringway_control::core::graph::{Graph, Node};
use ringway_control::kernels::registry;
use ringway_control::tensor::Tensor;
use ringway_proto::tensorflow::{DataType, GraphDef, NodeDef};

use run::Bench;

/// Elements as numbers, for comparing; `None` for those that are not.
fn numbers(tensor: &Tensor) -> Option<Vec<f64>> {
    macro_rules! all {
        ($t:ty) => {
            tensor.as_slice::<$t>().unwrap().iter().map(|x| *x as f64).collect()
        };
    }
    Some(match tensor.dtype() {
        DataType::DtFloat => all!(f32),
        DataType::DtDouble => all!(f64),
        DataType::DtInt8 => all!(i8),
        DataType::DtInt16 => all!(i16),
        DataType::DtInt32 => all!(i32),
        DataType::DtInt64 => all!(i64),
        DataType::DtUint8 => all!(u8),
        DataType::DtUint16 => all!(u16),
        DataType::DtUint32 => all!(u32),
        DataType::DtUint64 => all!(u64),
        DataType::DtHalf => tensor.as_slice::<f16>().unwrap().iter().map(|x| x.to_f64()).collect(),
        DataType::DtBfloat16 => tensor.as_slice::<bf16>().unwrap().iter().map(|x| x.to_f64()).collect(),
        _ => return None,
    })
}

/// What is wrong with `given`, if anything.
fn difference(given: &Tensor, expected: &Tensor, within: f64) -> Option<String> {
    if (given.dtype(), given.shape()) != (expected.dtype(), expected.shape()) {
        return Some(format!("{given:?} and not {expected:?}"));
    }
    let (Some(given_all), Some(expected_all)) = (numbers(given), numbers(expected)) else {
        return (given.to_proto() != expected.to_proto()).then(|| "another value".to_owned());
    };
    let is_float = matches!(
        given.dtype(),
        DataType::DtFloat | DataType::DtDouble | DataType::DtHalf | DataType::DtBfloat16
    );
    let near = |a: f64, b: f64| {
        a == b || a.is_nan() && b.is_nan() || is_float && (a - b).abs() <= within * (1.0 + b.abs())
    };
    let bad = given_all.iter().zip(&expected_all).position(|(a, b)| !near(*a, *b))?;
    Some(format!("element {bad} is {} and not {}", given_all[bad], expected_all[bad]))
}

/// The nodes of each case, and what is expected of it.
fn cases() -> BTreeMap<String, (Vec<NodeDef>, Vec<NodeDef>)> {
    let golden = GraphDef::decode(&include_bytes!("golden.pb")[..]).expect("golden.pb is a GraphDef");
    let mut cases: BTreeMap<String, (Vec<NodeDef>, Vec<NodeDef>)> = BTreeMap::new();
    for node in golden.node {
        let scope = node.name.split('/').next().unwrap().to_owned();
        let case = cases.entry(scope).or_default();
        if node.name.contains("/expected/") { case.1.push(node) } else { case.0.push(node) }
    }
    cases
}

fn attr<'a>(node: &'a Node, name: &str) -> &'a ringway_proto::tensorflow::attr_value::Value {
    node.attrs.get(name).unwrap_or_else(|| panic!("{} has no {name}", node.name()))
}

#[test]
fn all_cases_are_computed_as_tensorflow_does() {
    use ringway_proto::tensorflow::attr_value::Value;
    let mut wrong = Vec::new();
    let (mut outputs, mut ops) = (0, std::collections::BTreeSet::new());
    for (scope, (nodes, expected)) in cases() {
        let bench = Bench::new();
        let graph = Graph::from_def(&GraphDef { node: nodes, ..Default::default() });
        let graph = graph.unwrap_or_else(|error| panic!("{scope}: {error}"));
        ops.extend(graph.nodes().iter().map(|node| node.op().to_owned()));
        let results = match bench.run(&graph) {
            Ok(results) => results,
            Err(error) => {
                wrong.push(format!("{scope}: {error}"));
                continue;
            }
        };
        let expected = Graph::from_def(&GraphDef { node: expected, ..Default::default() }).unwrap();
        for node in expected.nodes() {
            let (Value::S(of), Value::F(within)) = (attr(node, "_of"), attr(node, "_within")) else {
                panic!("{scope}: attributes of another kind")
            };
            let of = std::str::from_utf8(of).unwrap();
            let output = graph.find_output(of).unwrap_or_else(|| panic!("{scope} has no {of}"));
            let given = results[output.node.at()][output.index as usize].value().unwrap();
            let value = Tensor::from_proto(node.attrs.tensor("value").unwrap()).unwrap();
            outputs += 1;
            if let Some(why) = difference(&given, &value, f64::from(*within)) {
                wrong.push(format!("{scope}: {of} ({}): {why}", graph.node(output.node).op()));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {outputs} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(outputs > 500 && ops.len() > 150, "{outputs} outputs of {} operations", ops.len());
}

#[test]
fn each_operation_with_a_kernel_is_one_that_tensorflow_has() {
    for name in registry::names() {
        assert!(ringway_control::core::graph::signature(name).is_some(), "{name}");
        assert!(!registry::is_executor_op(name), "{name} is the executor's");
    }
}
