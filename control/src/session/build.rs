//! A graph, operation by operation.
//!
//! Types of operations follow from what they read, and names are made unique, so that a graph reads as the computation
//! that it is. The first mistake is kept and comes out of [`GraphBuilder::finish`].

use std::collections::HashMap;

use ringway_proto::tensorflow::attr_value::{ListValue, Value};
use ringway_proto::tensorflow::{AttrValue, DataType, GraphDef, NodeDef, VersionDef};

use crate::core::graph::signature::{self, ArgKind};
use crate::core::graph::{Attrs, Graph, GraphError, Signature, Type};
use crate::tensor::{PartialShape, Tensor};

/// What TensorFlow calls the version of the graphs that it writes; one that all of its releases since 2.0 take.
const PRODUCER: i32 = 1087;

/// A value: what a node gives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Output {
    node: String,
    index: usize,
    kind: Type,
}

impl Output {
    /// Its name, `node:index`, by which it is fed and fetched.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}:{}", self.node, self.index)
    }

    /// Type of its elements.
    #[must_use]
    pub fn dtype(&self) -> DataType {
        self.kind.element
    }

    /// The node that gives it.
    #[must_use]
    pub fn op(&self) -> Op {
        Op { name: self.node.clone() }
    }
}

/// A node, for what it does rather than for what it gives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Op {
    name: String,
}

impl Op {
    /// Its name, by which it is run.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A graph in the making.
#[derive(Debug, Default)]
pub struct GraphBuilder {
    nodes: Vec<NodeDef>,
    /// How often each name was asked for.
    names: HashMap<String, usize>,
    device: String,
    after: Vec<Op>,
    mistake: Option<GraphError>,
}

impl GraphBuilder {
    /// An empty graph.
    #[must_use]
    pub fn new() -> GraphBuilder {
        GraphBuilder::default()
    }

    /// What `make` adds is placed on `device`, such as `/job:ps/task:0`.
    pub fn on<R>(&mut self, device: &str, make: impl FnOnce(&mut GraphBuilder) -> R) -> R {
        let outer = std::mem::replace(&mut self.device, device.to_owned());
        let made = make(self);
        self.device = outer;
        made
    }

    /// What `make` adds runs after `ops`.
    pub fn after<R>(&mut self, ops: &[Op], make: impl FnOnce(&mut GraphBuilder) -> R) -> R {
        let outer = self.after.len();
        self.after.extend_from_slice(ops);
        let made = make(self);
        self.after.truncate(outer);
        made
    }

    /// Begins a node of the operation `op`, whose name is taken from it unless [`NodeBuilder::name`] is called.
    pub fn node<'g>(&'g mut self, op: &str) -> NodeBuilder<'g> {
        NodeBuilder { graph: self, op: op.to_owned(), name: None, inputs: Vec::new(), attr: HashMap::new() }
    }

    /// The graph, checked.
    ///
    /// # Errors
    /// The first mistake that was made.
    pub fn finish(self) -> Result<GraphDef, GraphError> {
        if let Some(mistake) = self.mistake {
            return Err(mistake);
        }
        let versions = VersionDef { producer: PRODUCER, ..Default::default() };
        let def = GraphDef { node: self.nodes, versions: Some(versions), ..Default::default() };
        Graph::from_def(&def)?;
        Ok(def)
    }

    /// Keeps the first mistake.
    pub(super) fn note(&mut self, mistake: GraphError) {
        self.mistake.get_or_insert(mistake);
    }

    fn unique(&mut self, wanted: &str) -> String {
        let asked = self.names.entry(wanted.to_owned()).or_insert(0);
        *asked += 1;
        match *asked {
            1 => wanted.to_owned(),
            times => self.unique(&format!("{wanted}_{}", times - 1)),
        }
    }
}

/// A node in the making. [`NodeBuilder::one`], [`NodeBuilder::all`] or [`NodeBuilder::op`] adds it to the graph.
#[derive(Debug)]
#[must_use = "a node is added by `one`, `all` or `op`"]
pub struct NodeBuilder<'g> {
    graph: &'g mut GraphBuilder,
    op: String,
    name: Option<String>,
    /// One entry for each argument; lists have several values in theirs.
    inputs: Vec<Vec<Output>>,
    attr: HashMap<String, AttrValue>,
}

impl NodeBuilder<'_> {
    /// The name that the node gets, or one made from it if it is taken.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// The next argument.
    pub fn input(mut self, input: &Output) -> Self {
        self.inputs.push(vec![input.clone()]);
        self
    }

    /// The next argument, a list.
    pub fn inputs(mut self, inputs: &[Output]) -> Self {
        self.inputs.push(inputs.to_vec());
        self
    }

    /// An attribute.
    pub fn attr(mut self, name: &str, value: impl Into<Attr>) -> Self {
        self.attr.insert(name.to_owned(), AttrValue { value: Some(value.into().0) });
        self
    }

    /// Adds the node. What it gives first.
    pub fn one(self) -> Output {
        let (node, kinds) = self.add();
        // A node that gives nothing is a mistake, and noted; what stands here is never seen by a master.
        let kind = kinds.first().copied().unwrap_or(Type::of(DataType::DtInvalid));
        Output { node, index: 0, kind }
    }

    /// Adds the node. All that it gives.
    pub fn all(self) -> Vec<Output> {
        let (node, kinds) = self.add();
        let outputs = kinds.into_iter().enumerate();
        outputs.map(|(index, kind)| Output { node: node.clone(), index, kind }).collect()
    }

    /// Adds the node.
    pub fn op(self) -> Op {
        Op { name: self.add().0 }
    }

    fn add(mut self) -> (String, Vec<Type>) {
        let wanted = self.name.take().unwrap_or_else(|| self.op.clone());
        let name = self.graph.unique(&wanted);
        let kinds = self.kinds(&name).unwrap_or_else(|mistake| {
            self.graph.note(mistake);
            Vec::new()
        });
        let input = self.inputs.iter().flatten().map(Output::name);
        let input = input.chain(self.graph.after.iter().map(|op| format!("^{}", op.name))).collect();
        let device = self.graph.device.clone();
        let node =
            NodeDef { name: name.clone(), op: self.op, input, device, attr: self.attr, ..Default::default() };
        self.graph.nodes.push(node);
        (name, kinds)
    }

    /// Takes the types of arguments from what they are, and finds those of the results.
    fn kinds(&mut self, name: &str) -> Result<Vec<Type>, GraphError> {
        let near = || signature::near(&self.op);
        let unknown = || GraphError::UnknownOp { op: self.op.clone(), node: name.to_owned(), near: near() };
        let known = signature::signature(&self.op).ok_or_else(unknown)?;
        if known.inputs.len() != self.inputs.len() {
            let (expected, given) = (known.inputs.len(), self.inputs.len());
            return Err(GraphError::InputCount {
                node: name.to_owned(),
                op: self.op.clone(),
                expected,
                given,
            });
        }
        self.infer(known);
        let attrs = Attrs::new(name, known, &self.attr, &HashMap::new())?;
        known.output_types(&attrs)
    }

    fn infer(&mut self, known: &Signature) {
        let mut found = Vec::new();
        for (arg, values) in known.inputs.iter().zip(&self.inputs) {
            let first = values.first().map(|value| Value::Type(value.kind.element as i32));
            match &arg.kind {
                ArgKind::Fixed(_) => {}
                ArgKind::Attr(attr) => found.push((attr, first)),
                ArgKind::List(attr) => {
                    let all = values.iter().map(|value| value.kind.element as i32).collect();
                    found.push((attr, Some(Value::List(ListValue { r#type: all, ..Default::default() }))));
                }
                ArgKind::Repeated { count, of } => {
                    found.push((count, Some(Value::I(values.len() as i64))));
                    if let ArgKind::Attr(attr) = &**of {
                        found.push((attr, first));
                    }
                }
            }
        }
        for (attr, value) in found {
            if let Some(value) = value {
                self.attr.entry(attr.clone()).or_insert(AttrValue { value: Some(value) });
            }
        }
    }
}

/// The value of an attribute.
#[derive(Clone, Debug)]
pub struct Attr(Value);

impl From<Value> for Attr {
    fn from(value: Value) -> Attr {
        Attr(value)
    }
}

impl From<bool> for Attr {
    fn from(value: bool) -> Attr {
        Attr(Value::B(value))
    }
}

impl From<i64> for Attr {
    fn from(value: i64) -> Attr {
        Attr(Value::I(value))
    }
}

impl From<f32> for Attr {
    fn from(value: f32) -> Attr {
        Attr(Value::F(value))
    }
}

impl From<&str> for Attr {
    fn from(value: &str) -> Attr {
        Attr(Value::S(value.as_bytes().to_vec()))
    }
}

impl From<DataType> for Attr {
    fn from(value: DataType) -> Attr {
        Attr(Value::Type(value as i32))
    }
}

impl From<&Tensor> for Attr {
    fn from(value: &Tensor) -> Attr {
        Attr(Value::Tensor(value.to_proto()))
    }
}

impl From<&PartialShape> for Attr {
    fn from(value: &PartialShape) -> Attr {
        Attr(Value::Shape(value.to_proto()))
    }
}

impl From<&[DataType]> for Attr {
    fn from(value: &[DataType]) -> Attr {
        let types = value.iter().map(|dtype| *dtype as i32).collect();
        Attr(Value::List(ListValue { r#type: types, ..Default::default() }))
    }
}

impl From<&[i64]> for Attr {
    fn from(value: &[i64]) -> Attr {
        Attr(Value::List(ListValue { i: value.to_vec(), ..Default::default() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_follow_from_what_is_read() {
        let mut graph = GraphBuilder::new();
        let x = graph.placeholder("x", DataType::DtFloat, &PartialShape::unknown());
        let y = graph.on("/job:ps/task:1", |graph| graph.matmul(&x, &x, true, false));
        let sum = graph.add_n(&[x.clone(), y.clone(), y.clone()]);
        let wide = graph.cast(&sum, DataType::DtDouble);
        assert_eq!((sum.dtype(), wide.dtype()), (DataType::DtFloat, DataType::DtDouble));
        let done = graph.group("done", &[wide.op()]);
        let again = graph.group("done", std::slice::from_ref(&done));
        assert_eq!((done.name(), again.name()), ("done", "done_1"));
        let def = graph.finish().unwrap();
        let named = |name: &str| def.node.iter().find(|node| node.name == name).unwrap();
        assert_eq!(named("MatMul").device, "/job:ps/task:1");
        assert_eq!(named("AddN").input, ["x:0", "MatMul:0", "MatMul:0"]);
        assert_eq!(named("AddN").attr["N"].value, Some(Value::I(3)));
        assert_eq!(named("Cast").attr["SrcT"].value, Some(Value::Type(DataType::DtFloat as i32)));
        assert_eq!(named("done").input, ["^Cast"]);
    }

    #[test]
    fn the_first_mistake_comes_out_at_the_end() {
        let mut graph = GraphBuilder::new();
        let one = graph.constant(&Tensor::scalar(1.0_f32).unwrap());
        let whole = graph.constant(&Tensor::scalar(1_i32).unwrap());
        let odd = graph.node("Matmull").input(&one).one();
        graph.add(&odd, &one);
        assert!(graph.finish().unwrap_err().to_string().contains("'Matmull'"));
        let mut graph = GraphBuilder::new();
        let one = graph.constant(&Tensor::scalar(1.0_f32).unwrap());
        graph.node("AddV2").input(&one).one();
        assert!(graph.finish().unwrap_err().to_string().contains("expected 2 inputs but got 1"));
        let mut graph = GraphBuilder::new();
        let (a, b) = (graph.constant(&Tensor::scalar(1.0_f32).unwrap()), whole);
        graph.add(&a, &b);
        graph.finish().unwrap_err();
    }
}
