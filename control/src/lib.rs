//! The control plane: coordination, launch and settings, and the one place where it meets the data plane.
//!
//! - [`core`] holds the state of the control plane as pure machines.
//! - [`rpc`] feeds them from real clocks and sockets, and speaks gRPC.
//! - [`store`] keeps what must outlive a process, in a file or in etcd.
//! - [`runtime`] is where it meets the data plane.
//! - [`random`] draws identities and secrets.
//! - [`tensor`] holds values, and [`kernels`] computes with them.
//! - [`session`] is a client of a master.
//! - [`window`] is what a process shows of itself without gRPC.
//! - [`launch`] finds out which rank this process is; [`settings`] reads what the user set.
#![forbid(unsafe_code)]

pub mod core;
pub mod kernels;
pub mod launch;
pub mod random;
pub mod rpc;
pub mod runtime;
pub mod session;
pub mod settings;
pub mod store;
pub mod tensor;
pub mod window;
