//! What makes a graph unsound, in the words that users of TensorFlow know.

use super::signature::Type;

/// Why a graph is refused. `node` is the name of the node at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// No such operation.
    #[error(
        "Op type not registered '{op}' in node {{{{node {node}}}}}.{} Make sure the op is one that this server knows, or \
         place the node on a task that does",
        near_words(.near)
    )]
    UnknownOp {
        /// Name of the operation.
        op: String,
        /// The node.
        node: String,
        /// Operations with names like it.
        near: Vec<String>,
    },
    /// Two nodes of one name.
    #[error("Node '{node}' is not unique: give every node of the graph a name of its own")]
    DuplicateNode {
        /// The name.
        node: String,
    },
    /// A node has no name, or one that cannot be.
    #[error(
        "Node name '{node}' is not valid: letters, digits, and _ . \\ - / > , beginning with a letter, digit, . or _"
    )]
    BadName {
        /// The name.
        node: String,
    },
    /// An input names a node that is not there.
    #[error("Node '{node}': Unknown input node '{input}'")]
    UnknownInput {
        /// The node.
        node: String,
        /// The input as given.
        input: String,
    },
    /// An input cannot be read.
    #[error("Node '{node}': input '{input}' is not \"name\", \"name:index\" or \"^name\"")]
    BadInput {
        /// The node.
        node: String,
        /// The input as given.
        input: String,
    },
    /// A control input stands before a data input.
    #[error("Node '{node}': Control dependencies must come after regular dependencies")]
    ControlFirst {
        /// The node.
        node: String,
    },
    /// An input names an output that its node does not have.
    #[error(
        "Node '{node}': Connecting to invalid output {index} of source node {source_node} which has {outputs} outputs"
    )]
    NoSuchOutput {
        /// The node.
        node: String,
        /// The node that it reads.
        source_node: String,
        /// The output asked for.
        index: u32,
        /// How many there are.
        outputs: usize,
    },
    /// The wrong number of inputs.
    #[error("NodeDef expected {expected} inputs but got {given}; node '{node}' of op {op}")]
    InputCount {
        /// The node.
        node: String,
        /// Its operation.
        op: String,
        /// What the operation takes.
        expected: usize,
        /// What is there.
        given: usize,
    },
    /// An input of the wrong type.
    #[error(
        "Input {index} of node {node} was passed {given} from {source_node}:{source_index} incompatible with expected {expected}"
    )]
    InputType {
        /// The node.
        node: String,
        /// Which input.
        index: usize,
        /// Type of what it reads.
        given: Type,
        /// The node that it reads.
        source_node: String,
        /// Which output of it.
        source_index: u32,
        /// Type that the node takes.
        expected: Type,
    },
    /// An attribute is missing.
    #[error(
        "No attr named '{attr}' in NodeDef '{node}' (op {op}), and it has no default\n\t [[{{{{node {node}}}}}]]"
    )]
    NoAttr {
        /// The node.
        node: String,
        /// Its operation.
        op: String,
        /// The attribute.
        attr: String,
    },
    /// An attribute is not of its kind.
    #[error("NodeDef '{node}' (op {op}): attr '{attr}' {problem}")]
    Attr {
        /// The node.
        node: String,
        /// Its operation.
        op: String,
        /// The attribute.
        attr: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Nodes feed each other in a circle that is no loop.
    #[error("Graph is invalid, contains a cycle with {nodes} nodes, including: {}", .some.join(", "))]
    Cycle {
        /// How many nodes are on cycles or behind them.
        nodes: usize,
        /// Some of their names.
        some: Vec<String>,
    },
    /// More than a server takes.
    #[error("the graph has {given} {what}, over the limit of {limit}: run a smaller graph")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much.
        given: usize,
        /// The limit.
        limit: usize,
    },
    /// A device cannot be read.
    #[error("Malformed device specification '{device}' in node: {node}")]
    BadDevice {
        /// The node.
        node: String,
        /// The device as given.
        device: String,
    },
    /// A function cannot be read.
    #[error("function '{function}': {problem}")]
    Function {
        /// The function.
        function: String,
        /// What is wrong.
        problem: String,
    },
}

fn near_words(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!(" Near it: {}.", near.join(", ")) }
}
