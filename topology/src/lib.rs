//! What a machine looks like (pure model) and how this machine is found out and threads pinned to it (host).
//!
//! - [`model`] holds plain data and pure functions: names of ranks, hosts and tasks, the parts of a machine,
//!   distances between them, where local ranks go, and in what order a ring visits ranks. No system call, no
//!   clock, no environment: an eight-GPU machine is tested on a laptop.
//! - [`host`] reads a machine (libhwloc, or sysfs where that is missing), its limits (affinity, cgroups), and
//!   pins threads and memory. It is the only place with `unsafe` code.
#![deny(unsafe_code)]

pub mod host;
pub mod model;

pub use model::ids::{HostId, IdError, Incarnation, LocalRank, Rank, TaskId};
pub use model::machine::Machine;
