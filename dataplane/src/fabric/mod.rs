//! What stands between a communicator and its transports.
//!
//! - [`progress`]: how a thread waits for a transport: a short spin, then sleep.
#![forbid(unsafe_code)]

pub mod progress;

pub use progress::{SpinPolicy, WaitOutcome, Waiter};
