//! Why a value did not come, or was not taken.

use super::peer::{PeerInfo, PeerLoss};
use super::table::{StepId, Why};
use crate::memory::AllocError;
use crate::transport::Peer;

/// Why a send or a receive failed. It names the step, the key and the other task.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RendezvousError {
    /// The step was aborted, here or by another task.
    #[error("{step}, {key}: the step was aborted: {}", .why.message)]
    Aborted {
        /// The step.
        step: StepId,
        /// The key.
        key: String,
        /// The first reason.
        why: Why,
    },
    /// The step is over: its values were given up.
    #[error("{step}, {key}: the step is over: send and receive before its cleanup")]
    Over {
        /// The step.
        step: StepId,
        /// The key.
        key: String,
    },
    /// A value of this key waits already, or somebody waits for it already.
    #[error("{step}, {key}: sent or awaited twice: a key carries one value to one receiver at a time")]
    Twice {
        /// The step.
        step: StepId,
        /// The key.
        key: String,
    },
    /// Too many values or receives wait.
    #[error("{step}, {key}: {limit} values or receives wait already: receive some of them first")]
    Full {
        /// The step.
        step: StepId,
        /// The key.
        key: String,
        /// The limit.
        limit: usize,
    },
    /// The waiting receive was cancelled, or its time was over.
    #[error("{step}, {key}: the receive was cancelled{}", if *.timed_out { ": its time is over" } else { "" })]
    Cancelled {
        /// The step.
        step: StepId,
        /// The key.
        key: String,
        /// Whether it was its own time limit.
        timed_out: bool,
    },
    /// The other task is lost.
    #[error("{step}, {key}: {} is lost: {}", .loss.who, .loss.cause)]
    Lost {
        /// The step.
        step: StepId,
        /// The key.
        key: String,
        /// The task, its host and its life, and what was seen.
        loss: Box<PeerLoss>,
    },
    /// The other task is not known here.
    #[error("{step}, {key}: peer {} was never introduced: connect to it first", .peer.0)]
    Unknown {
        /// The step.
        step: StepId,
        /// The key.
        key: String,
        /// Its number.
        peer: Peer,
    },
    /// The other task could not give it.
    #[error("{step}, {key}: {who} answers: {message}")]
    Refused {
        /// The step.
        step: StepId,
        /// The key.
        key: String,
        /// The task, its host and its life.
        who: Box<PeerInfo>,
        /// Its words.
        message: String,
    },
    /// There is no memory for the value.
    #[error("{step}, {key}: {source}")]
    Memory {
        /// The step.
        step: StepId,
        /// The key.
        key: String,
        /// Why not.
        source: AllocError,
    },
    /// The rendezvous was shut down.
    #[error("{step}, {key}: this task's rendezvous was shut down")]
    Closed {
        /// The step.
        step: StepId,
        /// The key.
        key: String,
    },
}
