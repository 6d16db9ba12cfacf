//! What a worker decides without touching a socket, a clock or a thread.
//!
//! - [`plan`]: a graph laid out for running: edges by index, frames of loops.
//! - [`execution`]: one run of a plan: which nodes may run now, and which are on a branch not taken.
#![forbid(unsafe_code)]

pub mod execution;
pub mod plan;

pub use execution::{Execution, Ready};
pub use plan::{Flow, NodeShape, Plan, PlanError};
