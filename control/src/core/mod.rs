//! The state of the control plane, as pure machines: no socket, no clock, no thread, no environment.
//!
//! A [`machine::Machine`] is told what happened and when, and answers with what is to be done. The driver in
//! [`crate::rpc`] feeds it from real sockets.

pub mod agent;
pub mod coordination;
pub mod eager;
pub mod election;
pub mod graph;
pub mod machine;
pub mod master;
pub mod simulate;
pub mod status;
pub mod time;
pub mod worker;
