//! Which operations there are.

use std::collections::HashMap;
use std::sync::OnceLock;

use ringway_proto::tensorflow::DataType;

use super::contract::Kernel;
use super::{
    binary, cast, checks, constants, conv, diag, gather, join, list, matmul, nn, norm, optimizer, pool,
    random, reduce, segment, shapes, slice, state, unary,
};
use crate::core::graph::{GraphError, Node};
use crate::tensor::type_name;

/// Makes the kernel of a node.
pub(super) type Builder = fn(&Node) -> Result<Box<dyn Kernel>, BuildError>;
/// Operations and what makes their kernels.
pub(super) type Family = &'static [(&'static str, Builder)];

/// All families of operations.
const FAMILIES: &[Family] = &[
    constants::OPS,
    shapes::OPS,
    unary::OPS,
    binary::OPS,
    cast::OPS,
    join::OPS,
    slice::OPS,
    gather::OPS,
    segment::OPS,
    diag::OPS,
    reduce::OPS,
    matmul::OPS,
    nn::OPS,
    norm::OPS,
    conv::OPS,
    pool::OPS,
    random::OPS,
    state::OPS,
    optimizer::OPS,
    list::OPS,
    checks::OPS,
];

/// Operations that are not kernels: the executor does them, or what it is made of.
const EXECUTOR_OPS: &[&str] = &[
    "Switch",
    "RefSwitch",
    "Merge",
    "RefMerge",
    "Enter",
    "RefEnter",
    "Exit",
    "RefExit",
    "NextIteration",
    "RefNextIteration",
    "LoopCond",
    "_Send",
    "_Recv",
    "_HostSend",
    "_HostRecv",
    "Send",
    "Recv",
    "_Arg",
    "_Retval",
    "_DeviceArg",
    "_DeviceRetval",
    "PartitionedCall",
    "StatefulPartitionedCall",
    "If",
    "StatelessIf",
    "While",
    "StatelessWhile",
    "Case",
    "StatelessCase",
    "SymbolicGradient",
    "RemoteCall",
    "_SwitchN",
];

/// Why a node has no kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// No kernel for the operation.
    #[error(
        "No OpKernel was registered to support Op '{op}' used by {{{{node {node}}}}}: this server does not compute it.{}",
        near_words(.near)
    )]
    Unsupported {
        /// The operation.
        op: String,
        /// The node.
        node: String,
        /// Operations that there are, with names like it.
        near: Vec<&'static str>,
    },
    /// No kernel for the operation with these types.
    #[error(
        "No OpKernel was registered to support Op '{op}' used by {{{{node {node}}}}} with {attr}={}; it is computed for: {}",
        type_name(*.given),
        type_names(.known)
    )]
    Type {
        /// The operation.
        op: String,
        /// The node.
        node: String,
        /// The attribute that holds the type.
        attr: String,
        /// The type.
        given: DataType,
        /// Types that there are kernels for.
        known: &'static [DataType],
    },
    /// An attribute cannot be.
    #[error(transparent)]
    Attr(#[from] GraphError),
}

fn near_words(near: &[&str]) -> String {
    if near.is_empty() { String::new() } else { format!(" Near it: {}.", near.join(", ")) }
}

fn type_names(types: &[DataType]) -> String {
    types.iter().map(|dtype| type_name(*dtype)).collect::<Vec<_>>().join(", ")
}

/// Makes the kernel of a node.
///
/// # Errors
/// [`BuildError`]: no such kernel, not for its types, or an attribute that cannot be.
pub fn build(node: &Node) -> Result<Box<dyn Kernel>, BuildError> {
    match all().get(node.op()) {
        Some(builder) => builder(node),
        None => {
            let (op, node) = (node.op().to_owned(), node.name().to_owned());
            Err(BuildError::Unsupported { near: near(&op), op, node })
        }
    }
}

/// Whether there is a kernel for this operation.
#[must_use]
pub fn is_known(op: &str) -> bool {
    all().contains_key(op)
}

/// Names of all operations that there are kernels for, sorted.
#[must_use]
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = all().keys().copied().collect();
    names.sort_unstable();
    names
}

/// Whether the executor does this operation itself. (Calls of a graph's own functions are known from its library.)
#[must_use]
pub fn is_executor_op(op: &str) -> bool {
    EXECUTOR_OPS.contains(&op) || op.starts_with("Collective")
}

fn all() -> &'static HashMap<&'static str, Builder> {
    static ALL: OnceLock<HashMap<&'static str, Builder>> = OnceLock::new();
    ALL.get_or_init(|| FAMILIES.iter().flat_map(|family| family.iter().copied()).collect())
}

/// At most four names that are like `op`, nearest first.
fn near(op: &str) -> Vec<&'static str> {
    let like = |name: &&'static str| strsim::jaro_winkler(name, op);
    let mut near: Vec<_> = names().into_iter().filter(|name| like(name) > 0.8).collect();
    near.sort_by(|a, b| like(b).total_cmp(&like(a)));
    near.truncate(4);
    near
}
