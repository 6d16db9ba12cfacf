//! The verbs interface of RDMA devices: what libibverbs offers, behind safe owners.
//!
//! The library is opened at run time ([`Library::load`]), never linked. Each owner holds what it stands on, so
//! that nothing is taken down under something that still uses it, in whatever order they are dropped.
//!
//! Invariants:
//! - I1. A raw pointer in an owner came from the verb that made the object, is not null, and is given back to the
//!   matching verb exactly once, in `Drop`.
//! - I2. An owner holds an [`Arc`](std::sync::Arc) of every object that its own was made from, and its `Drop` runs
//!   before those are let go: a queue pair before its queues and domain, these before the context, that before the
//!   library.
//! - I3. Every event that was read is acknowledged before the call that read it returns, so that destroying an
//!   object never waits for one.
//! - I4. Objects that are used together belong to one context: creation refuses others.
//! - I5. Every verb may be called from any thread, as libibverbs promises. Posting takes `&mut self`, so that
//!   requests keep the order of their owner's calls.
//! - I6. Memory is lent to the device by `unsafe` calls only: [`MemoryRegion::register`] and the posting of
//!   requests. Their contracts say until when.
//!
//! Numbers that leave this module are in host byte order; a GID is 16 bytes as on the wire.

mod address;
mod completion;
mod context;
mod error;
mod event;
/// What bindgen made of rdma-core's header; `generate.sh` beside it says how.
#[allow(
    missing_docs,
    unreachable_pub,
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    dead_code
)]
#[rustfmt::skip]
#[path = "generated/verbs_h.rs"]
mod sys;
mod library;
mod memory;
mod port;
mod posting;
mod queue_pair;
mod shared_receive;
mod status;
#[cfg(test)]
pub(super) mod tests;

pub use address::{AddressHandle, GlobalRoute, Route};
pub use completion::{CompletionChannel, CompletionQueue};
pub use context::{Context, DeviceLimits};
pub use error::{PostError, VerbsError};
pub use event::{AsyncEvent, AsyncEventKind, AsyncSubject};
pub use library::{LIBRARY, Library, LoadError};
pub use memory::{Access, MemoryRegion, ProtectionDomain};
pub use port::{GidEntry, GidKind, LinkLayer, PortState, PortStatus};
pub use posting::{Destination, ReceiveRequest, SendOp, SendRequest, Sge};
pub use queue_pair::{
    QueuePair, QueuePairCapacity, QueuePairKind, QueuePairSpec, QueuePairState, ReadyToReceive, ReadyToSend,
};
pub use shared_receive::SharedReceiveQueue;
pub use status::{CompletionOpcode, CompletionStatus, WorkCompletion};
