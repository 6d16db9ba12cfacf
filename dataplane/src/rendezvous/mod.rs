//! Values by key between the tasks of a job: whoever has one sends it, whoever needs it receives it, in either order.
//!
//! - [`key`]: what a value is known by. [`value`]: what travels.
//! - [`table`]: which value belongs to which waiter; pure.
//! - [`peer`]: who is at the other end. [`error`]: why a value did not come.
#![forbid(unsafe_code)]

pub mod error;
pub mod key;
pub mod peer;
pub mod table;
pub mod value;

pub use error::RendezvousError;
pub use key::{Key, KeyError, Parts};
pub use peer::{PeerInfo, PeerLoss, Source, Traffic};
pub use table::{StepId, WaiterId, Why};
pub use value::{Meta, Value};
