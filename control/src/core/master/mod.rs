//! The master: sessions that run a graph over the tasks of a cluster.
//!
//! A call goes through these rooms, top to bottom:
//!
//! - [`program`]: a session's graph, checked and placed ([`placement`]) on the session's [`devices`].
//! - [`prune`]: what one run needs. [`partition`]: its parts, one per task; `frames`: loops over several tasks.
//! - [`plans`]: runs that workers know already. [`feed`]: whether a fed value is whole.
//! - [`step`]: a run over several workers, and whose error it is. [`partial`]: a run in several parts.
//! - [`leases`]: sessions end when nobody uses them.
//!
//! [`crate::runtime::master`] does what these decide.
#![forbid(unsafe_code)]

pub mod devices;
pub mod error;
pub mod feed;
pub mod leases;
pub mod partial;
pub mod partition;
pub mod placement;
pub mod plans;
pub mod program;
pub mod prune;
pub mod step;

mod cells;
mod frames;

pub use devices::{Device, Devices};
pub use error::MasterError;
pub use partial::PartialRun;
pub use partition::Part;
pub use plans::Plans;
pub use program::{Plan, Program};
pub use prune::Signature;

#[cfg(test)]
mod tests;
