//! Where the control plane and the data plane meet: nowhere else does code see both.
//!
//! - [`world`]: from a launch and settings to a communicator over all ranks of the job.
//! - [`elastic`]: groups that shrink and grow.
//! - [`coordinator`]: the coordination service as a job's own process runs it.
//! - `device`: communicators over GPUs, as the settings say.
//! - [`transports`]: the data plane's transports, as the settings want them.
//! - [`rendezvous`]: the data plane of a task that is no rank: tensors by key.
//! - `rdma`: whether a rank uses RDMA, and what it says where it does not.
//! - [`master`]: sessions over the workers of a cluster.
//! - [`pinning`]: where a rank's threads run.
//! - [`task`]: a task of a cluster, as `ringway serve` runs it.
//! - [`worker`]: graphs that run on this task, for masters elsewhere.
//! - [`eager`]: operations that clients have run here one by one.
//! - [`report`]: what a rank tells of itself, and writes down when a communicator dies.
//! - `proof`: what processes prove themselves to each other with on the data plane.
//! - [`abort`]: losses, from the data plane to the control plane and back.
#![forbid(unsafe_code)]

pub mod abort;
pub mod card;
pub mod coordinator;
#[cfg(feature = "nccl")]
mod device;
pub mod eager;
pub mod elastic;
pub mod master;
pub mod pinning;
mod proof;
mod rdma;
pub mod rendezvous;
pub mod report;
pub mod site;
pub mod task;
pub mod transports;
mod tuning;
pub mod worker;
pub mod world;

pub use crate::random::incarnation;
pub use coordinator::{serve_cluster, start_coordinator};
pub use elastic::Regrouping;
pub use rdma::RdmaUnusable;
pub use world::{JoinError, World, join, rejoin};
