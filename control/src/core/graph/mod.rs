//! Graphs: what operations there are, what a node takes and gives, and which graphs are sound.
//!
//! - [`mod@signature`]: what is known of each operation of TensorFlow, from a table (`ops.txt`).
//! - [`attrs`]: the attributes of a node, typed, with the defaults of its operation.
//! - [`device`]: names of devices, full and partial.
//! - [`sound`]: a `GraphDef` as a checked graph. [`library`]: the functions that it may call, and their bodies.
//!
//! Invariants (cited by the tests):
//! - **G1** Every input of a node of a [`Graph`] is an output that exists, of the type that the node takes.
//! - **G2** A cycle of a [`Graph`] passes through a `NextIteration`.
//! - **G3** Names of nodes are unique, and nodes keep the order in which the caller gave them.
//! - **G4** Nothing that a caller sends makes the checks panic, recurse, or take more than linear time and memory.
#![forbid(unsafe_code)]

pub mod attrs;
pub mod device;
pub mod error;
pub mod library;
pub mod signature;
pub mod sound;

pub use attrs::Attrs;
pub use device::DeviceName;
pub use error::GraphError;
pub use library::{Body, Library};
pub use signature::{Signature, Type, signature};
pub use sound::{Graph, Node, NodeId, Output};

#[cfg(test)]
mod tests;
