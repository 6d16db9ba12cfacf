//! What nodes compute.
//!
//! [`build`] makes the kernel of a node once, with its attributes read and checked; [`Kernel::run`] computes with it
//! once per step, on any number of threads at a time. The operations of control flow, of edges between tasks, of calls
//! of functions and of collectives are the executor's own ([`is_executor_op`]).
//!
//! - [`contract`]: what a kernel sees of a step, and how it fails. [`registry`]: which operations there are.
//! - [`resources`]: what outlives a step: containers, [`variable`]s and others.
//!
//! Invariants (cited by the tests):
//! - **K1** A kernel never panics, whatever its inputs are: they are checked where they are used.
//! - **K2** A kernel asks for no more memory than its outputs and one working copy of its inputs need, and an output past
//!   [`crate::tensor::array::TENSOR_BYTES_LIMIT`] is refused before memory is asked for.
//! - **K3** A kernel that updates variables holds all of them from its first read to its last write.
//! - **K4** The same inputs give the same bits on every run.
#![forbid(unsafe_code)]

pub mod contract;
pub mod registry;
pub mod resources;
pub mod variable;

mod binary;
mod broadcast;
mod cast;
mod checks;
mod constants;
mod conv;
mod diag;
mod dispatch;
mod gather;
mod join;
mod list;
mod matmul;
mod nn;
mod norm;
mod number;
mod optimizer;
mod philox;
mod pool;
mod random;
mod reduce;
mod segment;
mod shapes;
mod slice;
mod state;
mod unary;
mod walk;
mod window;

pub use contract::{Call, Kernel, OpError, Slot, StepScope};
pub use registry::{BuildError, build, is_executor_op, is_known};
pub use resources::{Resource, Resources};
pub use variable::Variable;
