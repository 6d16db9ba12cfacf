//! A checked graph: what `GraphDef`s and functions become before anything is done with them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use ringway_proto::tensorflow::{AttrValue, GraphDef, NodeDef};

use super::attrs::Attrs;
use super::device::DeviceName;
use super::error::GraphError;
use super::library::Library;
use super::signature::{Signature, Type, near, signature};

/// Nodes that a graph may have.
pub const NODES_LIMIT: usize = 1 << 20;
/// Names that the error for a cycle gives.
const NAMED_IN_CYCLE: usize = 5;

/// A node by its place in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    /// As an index into [`Graph::nodes`].
    #[must_use]
    pub fn at(self) -> usize {
        self.0 as usize
    }
}

/// One output of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Output {
    /// The node.
    pub node: NodeId,
    /// Which of its outputs, from 0.
    pub index: u32,
}

/// One node.
#[derive(Clone, Debug)]
pub struct Node {
    /// As the caller gave it.
    pub def: Arc<NodeDef>,
    /// Its attributes, with defaults.
    pub attrs: Attrs,
    /// Where it is asked to be.
    pub device: DeviceName,
    /// What it reads, in order.
    pub inputs: Vec<Output>,
    /// What must have run before it.
    pub control: Vec<NodeId>,
    /// Types that it takes.
    pub input_types: Vec<Type>,
    /// Types that it gives.
    pub output_types: Vec<Type>,
    /// Its operation has state or effects.
    pub stateful: bool,
}

impl Node {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.def.name
    }

    /// Its operation.
    #[must_use]
    pub fn op(&self) -> &str {
        &self.def.op
    }
}

/// Nodes whose edges are known to be right (invariants G1 to G3).
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: Vec<Node>,
    by_name: HashMap<Arc<str>, NodeId>,
    library: Arc<Library>,
}

impl Graph {
    /// Checks a graph, and its functions' signatures; the functions' bodies are checked when they are instantiated.
    ///
    /// # Errors
    /// [`GraphError`]: the first thing that is wrong.
    pub fn from_def(def: &GraphDef) -> Result<Graph, GraphError> {
        let library = match &def.library {
            Some(library) => Arc::new(Library::from_def(library)?),
            None => Arc::default(),
        };
        Graph::from_nodes(&def.node, library, &HashMap::new())
    }

    /// Checks nodes that may call the functions of `library`. Attributes that are placeholders take their values from
    /// `outer`.
    ///
    /// # Errors
    /// As for [`Graph::from_def`].
    pub fn from_nodes(
        defs: &[NodeDef],
        library: Arc<Library>,
        outer: &HashMap<String, AttrValue>,
    ) -> Result<Graph, GraphError> {
        if defs.len() > NODES_LIMIT {
            return Err(GraphError::TooLarge { what: "nodes", given: defs.len(), limit: NODES_LIMIT });
        }
        let mut graph = Graph { nodes: Vec::with_capacity(defs.len()), by_name: HashMap::new(), library };
        for def in defs {
            graph.add(def, outer)?;
        }
        for (at, def) in defs.iter().enumerate() {
            graph.connect(at, def)?;
        }
        graph.refuse_cycles()?;
        Ok(graph)
    }

    /// All nodes, in the caller's order.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// One node.
    ///
    /// # Panics
    /// When the id is of another, larger graph.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.at()]
    }

    /// Ids of all nodes, in order.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    /// The node of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    /// The output that "name" or "name:index" means.
    #[must_use]
    pub fn find_output(&self, name: &str) -> Option<Output> {
        let (node, index) = split_index(name).unwrap_or((name, 0));
        let node = self.find(node)?;
        ((index as usize) < self.node(node).output_types.len()).then_some(Output { node, index })
    }

    /// Type of an output.
    ///
    /// # Panics
    /// When the output is of another graph.
    #[must_use]
    pub fn output_type(&self, output: Output) -> Type {
        self.node(output.node).output_types[output.index as usize]
    }

    /// The functions that its nodes may call.
    #[must_use]
    pub fn library(&self) -> &Arc<Library> {
        &self.library
    }

    fn add(&mut self, def: &NodeDef, outer: &HashMap<String, AttrValue>) -> Result<(), GraphError> {
        let node = || def.name.clone();
        if !is_name(&def.name) {
            return Err(GraphError::BadName { node: node() });
        }
        let unknown = || GraphError::UnknownOp { op: def.op.clone(), node: node(), near: near(&def.op) };
        let signature = self.signature(&def.op).ok_or_else(unknown)?;
        let attrs = Attrs::new(&def.name, signature, &def.attr, outer)?;
        let (input_types, output_types) = (signature.input_types(&attrs)?, signature.output_types(&attrs)?);
        let stateful = signature.stateful;
        let device = DeviceName::parse(&def.device)
            .ok_or_else(|| GraphError::BadDevice { node: node(), device: def.device.clone() })?;
        match self.by_name.entry(def.name.as_str().into()) {
            Entry::Occupied(_) => return Err(GraphError::DuplicateNode { node: node() }),
            Entry::Vacant(free) => free.insert(NodeId(self.nodes.len() as u32)),
        };
        let (inputs, control, def) = (Vec::new(), Vec::new(), Arc::new(def.clone()));
        self.nodes.push(Node { def, attrs, device, inputs, control, input_types, output_types, stateful });
        Ok(())
    }

    fn signature(&self, op: &str) -> Option<&Signature> {
        self.library.signature(op).or_else(|| signature(op))
    }

    fn connect(&mut self, at: usize, def: &NodeDef) -> Result<(), GraphError> {
        let node = || def.name.clone();
        let (mut inputs, mut control) = (Vec::new(), Vec::new());
        for input in &def.input {
            let missing = || GraphError::UnknownInput { node: node(), input: input.clone() };
            if let Some(before) = input.strip_prefix('^') {
                control.push(self.find(before).ok_or_else(missing)?);
                continue;
            }
            if !control.is_empty() {
                return Err(GraphError::ControlFirst { node: node() });
            }
            let (from, index) = match input.rsplit_once(':') {
                None => (input.as_str(), 0),
                Some(_) => split_index(input)
                    .ok_or_else(|| GraphError::BadInput { node: node(), input: input.clone() })?,
            };
            inputs.push(Output { node: self.find(from).ok_or_else(missing)?, index });
        }
        self.check_inputs(at, &inputs)?;
        self.nodes[at].inputs = inputs;
        self.nodes[at].control = control;
        Ok(())
    }

    fn check_inputs(&self, at: usize, inputs: &[Output]) -> Result<(), GraphError> {
        let me = &self.nodes[at];
        let node = || me.name().to_owned();
        if inputs.len() != me.input_types.len() {
            let (expected, given) = (me.input_types.len(), inputs.len());
            return Err(GraphError::InputCount { node: node(), op: me.op().to_owned(), expected, given });
        }
        for (index, (input, expected)) in inputs.iter().zip(&me.input_types).enumerate() {
            let source = self.node(input.node);
            let given = source.output_types.get(input.index as usize);
            let given = *given.ok_or_else(|| GraphError::NoSuchOutput {
                node: node(),
                source_node: source.name().to_owned(),
                index: input.index,
                outputs: source.output_types.len(),
            })?;
            if !given.fits(*expected) {
                return Err(GraphError::InputType {
                    node: node(),
                    index,
                    given,
                    source_node: source.name().to_owned(),
                    source_index: input.index,
                    expected: *expected,
                });
            }
        }
        Ok(())
    }

    /// Takes away nodes that wait for nothing until none is left (G2).
    fn refuse_cycles(&self) -> Result<(), GraphError> {
        let mut readers: Vec<Vec<u32>> = vec![Vec::new(); self.nodes.len()];
        let mut waits_for: Vec<u32> = vec![0; self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            for before in node.inputs.iter().map(|input| input.node).chain(node.control.iter().copied()) {
                if !closes_loop(self.node(before).op()) {
                    readers[before.at()].push(at as u32);
                    waits_for[at] += 1;
                }
            }
        }
        let mut ready: Vec<u32> =
            (0..self.nodes.len() as u32).filter(|at| waits_for[*at as usize] == 0).collect();
        let mut done = 0;
        while let Some(at) = ready.pop() {
            done += 1;
            for reader in &readers[at as usize] {
                waits_for[*reader as usize] -= 1;
                if waits_for[*reader as usize] == 0 {
                    ready.push(*reader);
                }
            }
        }
        if done == self.nodes.len() {
            return Ok(());
        }
        let left = self.nodes.iter().zip(&waits_for).filter(|(_, waits)| **waits > 0);
        let some = left.map(|(node, _)| node.name().to_owned()).take(NAMED_IN_CYCLE).collect();
        Err(GraphError::Cycle { nodes: self.nodes.len() - done, some })
    }
}

/// Operations over whose edges the next iteration of a loop begins.
fn closes_loop(op: &str) -> bool {
    matches!(op, "NextIteration" | "RefNextIteration")
}

fn split_index(text: &str) -> Option<(&str, u32)> {
    let (name, index) = text.rsplit_once(':')?;
    Some((name, index.parse().ok()?))
}

fn is_name(name: &str) -> bool {
    let begins = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
    name.starts_with(begins) && name.chars().all(|c| begins(c) || matches!(c, '\\' | '-' | '/' | '>' | ','))
}
