//! Values by key between the tasks of a job: whoever has one sends it, whoever needs it receives it, in either order.
//!
//! - [`key`]: what a value is known by. [`value`]: what travels.
//! - [`handle`]: what a process holds; [`receive`]: its blocking and awaited forms.
//! - [`table`]: which value belongs to which waiter; pure. `waiter`: who waits, and what is called then.
//! - `remote`: values of other tasks, over any transport. [`wire`]: what the tasks say to each other; pure.
//! - [`peer`]: who is at the other end. [`error`]: why a value did not come.
#![forbid(unsafe_code)]

pub mod error;
pub mod handle;
pub mod key;
pub mod peer;
pub mod receive;
mod remote;
pub mod table;
pub mod value;
mod waiter;
pub mod wire;

pub use error::RendezvousError;
pub use handle::{OnLoss, Options, Rendezvous, StartError};
pub use key::{Key, KeyError, Parts};
pub use peer::{PeerInfo, PeerLoss, Source, Traffic};
pub use receive::Receive;
pub use table::{StepId, WaiterId, Why};
pub use value::{Meta, Value};
