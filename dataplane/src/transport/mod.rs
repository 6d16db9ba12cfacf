//! The one contract that every way of moving bytes keeps, and what stands on it alone.
//!
//! - [`contract`]: the [`Transport`] trait. [`op`]: operations, events, errors. [`caps`]: what a transport can do.
//! - [`authentication`]: how two sides prove that they belong together.
//! - [`conformance`]: the suite that holds every transport to it.
//! - [`fault`], [`trace`], [`named`]: decorators of any transport, that break it on purpose, remember what it did, and
//!   give it another name.
//! - [`limits`]: errors that are about a limit of this process or host.
//! - [`loopback`]: threads of one process. [`seed`]: randomness that replays.
//! - [`matching`]: which send belongs to which receive, for transports over a stream.
//! - [`complaints`]: warnings about strangers, so many only. [`wake`]: how another thread rouses one that sleeps on a transport.
#![forbid(unsafe_code)]

pub mod authentication;
pub mod caps;
pub mod complaints;
pub mod conformance;
pub mod contract;
pub mod fault;
pub(crate) mod forward;
pub mod limits;
pub mod loopback;
pub mod matching;
pub mod named;
pub mod op;
pub mod seed;
pub mod trace;
pub mod wake;

pub use authentication::{Key, Keyring};
pub use caps::Caps;
pub use complaints::Complaints;
pub use contract::{Address, ConnectError, Copies, Found, RegionKey, RegisterError, Sight, Transport};
pub use fault::{After, Fault, FaultHandle, FaultPlan, Faulty};
pub use loopback::{Hub, Loopback, LoopbackConfig};
pub use named::Named;
pub use op::{Cause, CauseKind, Completion, Event, Note, Op, OpError, OpId, Peer, PostError, Stamp, Tag};
pub use trace::Trace;
pub use wake::Waker;
