//! Functions that a graph may call.

use std::collections::HashMap;
use std::sync::Arc;

use ringway_proto::tensorflow::attr_value::Value;
use ringway_proto::tensorflow::{AttrValue, FunctionDef, FunctionDefLibrary, NodeDef};

use super::attrs::Attrs;
use super::error::GraphError;
use super::signature::{Signature, Type, signature};
use super::sound::{Graph, NodeId};

/// Functions that a library may have.
pub const FUNCTIONS_LIMIT: usize = 1 << 16;

/// Functions by name, with their signatures.
#[derive(Clone, Debug, Default)]
pub struct Library {
    functions: HashMap<String, (Arc<FunctionDef>, Signature)>,
}

/// A function's body as a graph: a node `_Arg` for each argument and `_Retval` for each result.
#[derive(Clone, Debug)]
pub struct Body {
    /// The graph.
    pub graph: Graph,
    /// The `_Arg` of each argument, in order.
    pub args: Vec<NodeId>,
    /// The `_Retval` of each result, in order.
    pub returns: Vec<NodeId>,
    /// Nodes that must run though no result needs them.
    pub effects: Vec<NodeId>,
}

impl Library {
    /// The functions of a graph.
    ///
    /// # Errors
    /// When a signature cannot be read, or there are more than [`FUNCTIONS_LIMIT`].
    pub fn from_def(def: &FunctionDefLibrary) -> Result<Library, GraphError> {
        let mut library = Library::default();
        for function in &def.function {
            library.add(function)?;
        }
        Ok(library)
    }

    /// Adds a function; one of the same name is replaced.
    ///
    /// # Errors
    /// As for [`Library::from_def`].
    pub fn add(&mut self, function: &FunctionDef) -> Result<(), GraphError> {
        if self.functions.len() >= FUNCTIONS_LIMIT {
            let given = self.functions.len() + 1;
            return Err(GraphError::TooLarge { what: "functions", given, limit: FUNCTIONS_LIMIT });
        }
        let unnamed =
            || GraphError::Function { function: String::new(), problem: "has no signature".to_owned() };
        let signature = Signature::from_op_def(function.signature.as_ref().ok_or_else(unnamed)?)?;
        self.functions.insert(signature.name.clone(), (Arc::new(function.clone()), signature));
        Ok(())
    }

    /// Adds all of another's functions.
    pub fn merge(&mut self, other: &Library) {
        self.functions.extend(other.functions.iter().map(|(name, known)| (name.clone(), known.clone())));
    }

    /// Forgets a function. Whether it was there.
    pub fn remove(&mut self, name: &str) -> bool {
        self.functions.remove(name).is_some()
    }

    /// The function's signature.
    #[must_use]
    pub fn signature(&self, name: &str) -> Option<&Signature> {
        self.functions.get(name).map(|(_, signature)| signature)
    }

    /// The function.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<FunctionDef>> {
        self.functions.get(name).map(|(def, _)| def)
    }

    /// All functions, as they travel.
    #[must_use]
    pub fn to_def(&self) -> FunctionDefLibrary {
        let mut function: Vec<FunctionDef> =
            self.functions.values().map(|(def, _)| (**def).clone()).collect();
        // In an order that does not change from run to run.
        function.sort_by(|a, b| name_of(a).cmp(name_of(b)));
        FunctionDefLibrary { function, ..Default::default() }
    }

    /// The body of a function, with the attributes of the call.
    ///
    /// # Errors
    /// [`GraphError`], when there is no such function or its body is not sound.
    pub fn instantiate(
        self: &Arc<Library>,
        name: &str,
        attrs: &HashMap<String, AttrValue>,
    ) -> Result<Body, GraphError> {
        let wrong = |problem: String| GraphError::Function { function: name.to_owned(), problem };
        let (def, signature) =
            self.functions.get(name).ok_or_else(|| wrong("is not in the library".to_owned()))?;
        let outer = Attrs::new(name, signature, attrs, &HashMap::new())?;
        let (ins, outs) = (signature.input_types(&outer)?, signature.output_types(&outer)?);
        if ins.len() != signature.inputs.len() || outs.len() != signature.outputs.len() {
            return Err(wrong("takes or gives lists, which functions here do not".to_owned()));
        }
        let mut nodes = Vec::with_capacity(def.node_def.len() + ins.len() + outs.len());
        for (index, (arg, kind)) in signature.inputs.iter().zip(&ins).enumerate() {
            nodes.push(port("_Arg", &arg.name, index, *kind, Vec::new()));
        }
        let names = self.names(def, &outer)?;
        for node in &def.node_def {
            let mut node = node.clone();
            for input in &mut node.input {
                *input =
                    names.input(input).ok_or_else(|| wrong(format!("input '{input}' of '{}'", node.name)))?;
            }
            nodes.push(node);
        }
        for (index, (arg, kind)) in signature.outputs.iter().zip(&outs).enumerate() {
            let from = def.ret.get(&arg.name).and_then(|from| names.input(from));
            let from = from.ok_or_else(|| wrong(format!("result '{}' comes from nowhere", arg.name)))?;
            // No node of a function's body can have this name: `<` is not allowed in names that callers give.
            nodes.push(port("_Retval", &format!("{}_RetVal", arg.name), index, *kind, vec![from]));
        }
        unique_returns(&mut nodes, outs.len());
        let graph = Graph::from_nodes(&nodes, self.clone(), outer.all())?;
        let returns = (nodes.len() - outs.len()..nodes.len()).map(|at| NodeId(at as u32)).collect();
        let effects = def.control_ret.values().map(|node| graph.find(node));
        let effects = effects.collect::<Option<Vec<_>>>();
        let effects = effects.ok_or_else(|| wrong("a control result is not there".to_owned()))?;
        Ok(Body { graph, args: (0..ins.len() as u32).map(NodeId).collect(), returns, effects })
    }

    /// Where in the function's nodes each "node:result" begins.
    fn names<'a>(&'a self, def: &'a FunctionDef, outer: &Attrs) -> Result<Names<'a>, GraphError> {
        let mut names = Names::default();
        for arg in def.signature.iter().flat_map(|signature| &signature.input_arg) {
            names.args.insert(arg.name.as_str());
        }
        for node in &def.node_def {
            let known = self.signature(&node.op).or_else(|| signature(&node.op));
            let known = known.ok_or_else(|| GraphError::UnknownOp {
                op: node.op.clone(),
                node: node.name.clone(),
                near: super::signature::near(&node.op),
            })?;
            let attrs = Attrs::new(&node.name, known, &node.attr, outer.all())?;
            let ranges = known.output_ranges(&attrs)?;
            let ranges = ranges.into_iter().map(|(name, from, _)| (name.to_owned(), from)).collect();
            names.nodes.insert(node.name.as_str(), ranges);
        }
        Ok(names)
    }
}

fn name_of(def: &FunctionDef) -> &str {
    def.signature.as_ref().map_or("", |signature| &signature.name)
}

/// What the inputs of a function's nodes may name.
#[derive(Default)]
struct Names<'a> {
    args: std::collections::HashSet<&'a str>,
    nodes: HashMap<&'a str, HashMap<String, usize>>,
}

impl Names<'_> {
    /// A graph's name for "arg", "node:result:index" or "^node".
    fn input(&self, input: &str) -> Option<String> {
        if input.starts_with('^') {
            return Some(input.to_owned());
        }
        let mut parts = input.split(':');
        let (node, result, index) = (parts.next()?, parts.next(), parts.next());
        let index: usize = index.map_or(Some(0), |index| index.parse().ok())?;
        match result {
            None => self.args.contains(node).then(|| node.to_owned()),
            // "arg:0" is an argument too.
            Some("0") if self.args.contains(node) => Some(node.to_owned()),
            Some(result) => {
                let from = self.nodes.get(node)?.get(result)?;
                Some(format!("{node}:{}", from.checked_add(index)?))
            }
        }
    }
}

/// A node through which a value enters or leaves a function.
fn port(op: &str, name: &str, index: usize, kind: Type, input: Vec<String>) -> NodeDef {
    let attr = |value| AttrValue { value: Some(value) };
    let attrs = [
        ("T".to_owned(), attr(Value::Type(kind.to_wire()))),
        ("index".to_owned(), attr(Value::I(index as i64))),
    ];
    NodeDef { name: name.to_owned(), op: op.to_owned(), input, attr: attrs.into(), ..Default::default() }
}

/// Gives the last `count` nodes names that no other has.
fn unique_returns(nodes: &mut [NodeDef], count: usize) {
    let split = nodes.len() - count;
    let (body, returns) = nodes.split_at_mut(split);
    let mut taken: std::collections::HashSet<&str> = body.iter().map(|node| node.name.as_str()).collect();
    for node in returns {
        while taken.contains(node.name.as_str()) {
            node.name.push('_');
        }
        taken.insert(node.name.as_str());
    }
}
