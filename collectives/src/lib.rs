//! Collective operations: pure schedules, the engine that runs them over any transport, and reduction kernels.

pub mod engine;
pub mod reduce;
pub mod schedule;
