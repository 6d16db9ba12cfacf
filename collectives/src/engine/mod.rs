//! Runs schedules over transports: what users hold is a [`Communicator`].
//!
//! ```text
//! communicator, blocking, started, p2p, split,
//! ragged, own, batch                               the calls, checked and turned into requests
//!   attend, on_device                             what goes on beside, on GPUs, and moves their memory
//!   shared                                        the lock, and which thread drives
//!     core                                        calls under way on one endpoint, events
//!       queue                                     which of them are active, and whose turn is next
//!       failure, inquiry, history, word           how a communicator dies, and how everybody learns of it
//!       group, fingerprint                        members, numbered calls, stamps
//!       recorder, traffic, flight                  what is remembered, and how others look at it
//!       run, hazard                               one call: slices over lanes, steps and their order
//!       straight                                  small calls and messages that are made at once
//!       numerics, reduction, blocks               what is asked beyond an operation and a length
//!       plan, arrange, layout, slice              from arguments to schedule, memory and slices
//! ```
//!
//! - **E1** A call that was not refused ends on every rank: with the result, or with one error that is the same cause
//!   on all of them. No mixture of calls hangs.
//! - **E2** The same call gives the same bits on every rank and every time, whatever the transport and the slices.
//! - **E3** Memory that was lent is home before a call returns, whatever happened.
//! - **E4** A warm blocking call allocates nothing, and takes no lock that anybody else holds for long.

#![forbid(unsafe_code)]

mod arrange;
#[cfg(feature = "nccl")]
mod attend;
mod batch;
mod blocking;
mod blocks;
mod communicator;
mod core;
mod error;
mod explain;
mod failure;
mod fingerprint;
mod flight;
mod group;
mod handle;
mod hazard;
mod history;
mod inquiry;
mod layout;
mod numerics;
#[cfg(feature = "nccl")]
mod on_device;
mod options;
mod own;
mod p2p;
mod plan;
mod queue;
mod ragged;
mod recorder;
mod reduction;
mod run;
mod shared;
mod slice;
mod split;
mod started;
mod straight;
mod traffic;
mod word;

pub use batch::CallGroup;
pub use blocks::Blocks;
pub use communicator::{Choice, Communicator};
pub use core::{MAX_CALLS, MAX_TAG};
pub use error::{CollectiveError, During, InvalidCall, Who};
pub use explain::Explained;
pub use fingerprint::{Call, Form};
pub use flight::{Awaited, Flight, GroupView, Keep, MAX_AWAITED, PeerView, WaitView, WriteDown};
pub use group::{GroupInfo, Member};
pub use handle::Handle;
pub use inquiry::MAX_INQUIRY_MS;
pub use numerics::Numerics;
pub use options::{
    DEFAULT_INQUIRY_MS, DEFAULT_LINGER_MS, DEFAULT_RECORDED_CALLS, DEFAULT_SLICES_IN_FLIGHT, EngineOptions,
    MAX_SLICES_IN_FLIGHT, OnFailure, OnProgressThread, Progress, Told,
};
pub use recorder::{Befell, Ending, Happening, RECORDED_HAPPENINGS, Record, Total};
pub use reduction::Reduction;
pub use shared::Reporter;
pub use split::SPLIT_IDS;
pub use traffic::Exchanged;

/// Closed communicators that an endpoint remembers, to answer those who still wait for it there.
const MAX_RETIRED: usize = 64;

#[cfg(test)]
mod tests;
