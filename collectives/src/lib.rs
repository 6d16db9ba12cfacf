//! Collective operations: pure schedules, the engine that runs them over any transport, reduction kernels, and NCCL for
//! memory of GPUs.

pub mod engine;
#[cfg(feature = "nccl")]
pub mod nccl;
pub mod reduce;
pub mod schedule;
