//! The `ringway` program as users meet it, as a process.
//!
//! Nothing here sleeps: a test waits for lines on a pipe, or for the pipe's end, which comes when no process holds
//! it any more. A limit only bounds a test that fails.
#![forbid(unsafe_code)]

mod bench;
mod choice;
mod doctor;
mod elastic;
mod failover;
mod failures;
mod forbidden;
mod gpu;
mod partition;
#[path = "../ports/mod.rs"]
mod ports;
mod process;
mod rdma;
mod run;
mod security;
mod serve;
mod shared_memory;
mod status;
mod strategies;
mod topo;
