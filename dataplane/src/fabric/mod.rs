//! What stands between a communicator and its transports.
//!
//! - [`interface`]: which addresses of this host are used, and why.
//! - [`progress`]: how a thread waits for a transport: a short spin, then sleep.
#![forbid(unsafe_code)]

pub mod interface;
pub mod progress;

pub use progress::{SpinPolicy, WaitOutcome, Waiter};
