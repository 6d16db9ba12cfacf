//! The master's decisions: placing, pruning, cutting, and whose error a step's is.

mod joining;
mod loops;
mod placing;
mod steps;

use ringway_proto::tensorflow::attr_value::{ListValue, Value};
use ringway_proto::tensorflow::{AttrValue, DataType, DeviceAttributes, GraphDef, NodeDef, TensorProto};

use super::*;

fn node(name: &str, op: &str, inputs: &[&str], device: &str, attrs: &[(&str, Value)]) -> NodeDef {
    let attr = attrs.iter().map(|(n, v)| ((*n).to_owned(), AttrValue { value: Some(v.clone()) })).collect();
    NodeDef {
        name: name.to_owned(),
        op: op.to_owned(),
        input: inputs.iter().map(|input| (*input).to_owned()).collect(),
        device: device.to_owned(),
        attr,
        ..NodeDef::default()
    }
}

const FLOAT: Value = Value::Type(DataType::DtFloat as i32);

fn constant(name: &str, device: &str) -> NodeDef {
    node(name, "Const", &[], device, &[("dtype", FLOAT), ("value", Value::Tensor(TensorProto::default()))])
}

fn placeholder(name: &str) -> NodeDef {
    node(name, "Placeholder", &[], "", &[("dtype", FLOAT)])
}

fn add(name: &str, a: &str, b: &str, device: &str) -> NodeDef {
    node(name, "AddV2", &[a, b], device, &[("T", FLOAT)])
}

fn identity(name: &str, input: &str, device: &str) -> NodeDef {
    node(name, "Identity", &[input], device, &[("T", FLOAT)])
}

fn bound_to(mut def: NodeDef, name: &str) -> NodeDef {
    let list = ListValue { s: vec![format!("loc:@{name}").into_bytes()], ..ListValue::default() };
    def.attr.insert("_class".to_owned(), AttrValue { value: Some(Value::List(list)) });
    def
}

fn cpu(task: &str, incarnation: u64) -> DeviceAttributes {
    DeviceAttributes {
        name: format!("{task}/device:CPU:0"),
        device_type: "CPU".to_owned(),
        incarnation,
        ..DeviceAttributes::default()
    }
}

/// `/job:ps/task:0` and workers; the default is worker 0.
fn devices(workers: usize) -> Devices {
    let mut names = vec!["/job:ps/replica:0/task:0".to_owned()];
    names.extend((0..workers).map(|at| format!("/job:worker/replica:0/task:{at}")));
    let tasks = names.into_iter().enumerate().map(|(at, name)| {
        let device = cpu(&name, 0xa0 + at as u64);
        (name, vec![device])
    });
    Devices::new(tasks.collect(), 1)
}

fn graph(nodes: Vec<NodeDef>) -> GraphDef {
    GraphDef { node: nodes, ..GraphDef::default() }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn wants(feeds: &[&str], fetches: &[&str], targets: &[&str]) -> Signature {
    Signature {
        feeds: names(feeds),
        fetches: names(fetches),
        targets: names(targets),
        ..Signature::default()
    }
}

fn plan(nodes: Vec<NodeDef>, signature: Signature) -> Result<Plan, MasterError> {
    let devices = devices(2);
    Program::new(graph(nodes), &devices, false)?.plan(signature, &devices)
}
