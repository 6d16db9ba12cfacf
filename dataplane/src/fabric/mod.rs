//! What stands between a communicator and its transports.
//!
//! - [`endpoint`]: several transports as one. [`route`]: which one reaches a peer. [`why`]: and why that one.
//! - [`interface`]: which addresses of this host are used, and why.
//! - [`progress`]: how a thread waits for a transport: a short spin, then sleep.
#![forbid(unsafe_code)]

pub mod endpoint;
pub mod interface;
pub mod progress;
pub mod route;
pub mod why;

pub use endpoint::{Endpoint, EndpointError};
pub use progress::{LONGEST_AT_ONCE_US, Patience, Pause, Spin, SpinPolicy, WaitOutcome, Waiter, sleep_on};
pub use route::Policy;
