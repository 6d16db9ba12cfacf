//! Where the pure machines of [`crate::core`] meet clocks and sockets.
//!
//! - `driver` feeds a machine; `convert` turns wire messages into what machines understand, and back;
//!   `inspected` looks at how a connection begins.
//! - [`credentials`]: the token and the certificates that a process shows, and wants to be shown; [`tls`]: the latter.
//! - [`serve`] is the coordination service behind a port; [`client`] is the agent in each task.

pub mod client;
pub mod credentials;
pub mod serve;
pub mod tls;

mod convert;
mod driver;
mod inspected;

pub(crate) use convert::{life, task_name};

/// Longest message in either direction: a value of 64 MiB and its envelope.
pub const MESSAGE_LIMIT_BYTES: usize = (64 << 20) + (1 << 20);

/// Longest message that may hold graphs and tensors: protobuf's own limit.
pub const TENSOR_MESSAGE_LIMIT_BYTES: usize = i32::MAX as usize;

/// Bytes of tensors that one message may hold: the rest is for its names and shapes.
pub const TENSORS_OF_A_MESSAGE_BYTES: usize = TENSOR_MESSAGE_LIMIT_BYTES - (1 << 20);
