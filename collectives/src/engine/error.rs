//! What a collective call may answer instead of a result.

#![forbid(unsafe_code)]

use super::fingerprint::Call;
use crate::reduce::ReduceOp;
use crate::schedule::Collective;
use ringway_dataplane::memory::{AllocError, DType};
use ringway_dataplane::transport::CauseKind;
use std::fmt;

/// A member of a communicator, as errors name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Who {
    /// Its rank in the communicator.
    pub rank: u32,
    /// Its host.
    pub host: String,
    /// Its process id on that host.
    pub pid: u32,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} on host {} (pid {})", self.rank, self.host, self.pid)
    }
}

/// Why a call on a communicator failed.
///
/// All but [`CollectiveError::Invalid`], [`CollectiveError::Memory`] and [`CollectiveError::TooManyStarted`] mean that
/// the communicator is dead: every pending and later call on it answers the same error, on every rank.
///
/// `Debug` prints the message that `Display` does: `unwrap`, and a `main` that returns the error, show it to people.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum CollectiveError {
    /// A member is gone.
    #[error(
        "{who} was lost {during}: {evidence}. This communicator is dead: make a new one from the survivors"
    )]
    Lost {
        /// Who is gone.
        who: Who,
        /// What this rank, or the rank that saw it, was doing.
        during: During,
        /// The kind of evidence.
        kind: CauseKind,
        /// What was seen, and by whom.
        evidence: String,
    },
    /// Two members made different calls.
    #[error(
        "mismatched calls: {ours_who} called {ours}, {theirs_who} called {theirs}{}. This communicator is dead: make \
         every rank call the same collectives with the same arguments in the same order",
        earlier(ours, theirs)
    )]
    Mismatch {
        /// One side.
        ours_who: Who,
        /// Its call.
        ours: Call,
        /// The other side.
        theirs_who: Who,
        /// Its call.
        theirs: Call,
    },
    /// A member ended it: by `abort`, or by a call that it made with bad arguments.
    #[error("{who} aborted this communicator {during}: {message}")]
    Aborted {
        /// Who did.
        who: Who,
        /// What it was doing.
        during: During,
        /// Its own words.
        message: String,
    },
    /// A member was never introduced, or its engine is set differently, or something does not keep its contract.
    #[error("{who}: exchange failed {during}: {evidence}. This communicator is dead: make a new one")]
    Transport {
        /// The member concerned.
        who: Who,
        /// What this rank was doing.
        during: During,
        /// What happened.
        evidence: String,
    },
    /// The arguments make no call. Nothing was sent, and the communicator lives on.
    #[error("{call} on rank {rank}: {why}")]
    Invalid {
        /// The rank that made the call.
        rank: u32,
        /// What was called.
        call: &'static str,
        /// What is wrong with it.
        why: InvalidCall,
    },
    /// Memory for the call was not to be had. Nothing was sent.
    #[error("no memory for {call} on rank {rank}: {why}")]
    Memory {
        /// The rank that made the call.
        rank: u32,
        /// What was called.
        call: &'static str,
        /// The system's words.
        why: AllocError,
    },
    /// As many operations as there may be are under way. Nothing was sent.
    #[error(
        "{limit} operations are under way on this endpoint, the limit: wait for some of their handles first"
    )]
    TooManyStarted {
        /// The limit.
        limit: usize,
    },
}

impl fmt::Debug for CollectiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In one piece, as standard error has no buffer and other ranks write there too.
        f.write_str(&self.to_string())
    }
}

/// Where in a rank's work something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum During {
    /// In this call.
    Call(Call),
    /// Between calls.
    Idle,
}

impl fmt::Display for During {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            During::Call(call) => write!(f, "during {call}"),
            During::Idle => f.write_str("between calls"),
        }
    }
}

/// Says so when two calls differ in nothing but in what came before them: other calls, or how the engines were made; or in
/// the algorithm alone, which no argument names.
fn earlier(ours: &Call, theirs: &Call) -> &'static str {
    if ours.algorithm != theirs.algorithm && ours.same_but_algorithm(theirs) {
        ", by another algorithm: every rank needs the same algorithms asked for, tuning and costs"
    } else if ours.same_but_history(theirs) && ours.seq == 0 {
        ", and the two cut it differently: every rank needs the same slice_bytes, slices_in_flight and costs"
    } else if ours.same_but_history(theirs) {
        ", and one of their earlier calls differed (which one was not found out)"
    } else {
        ""
    }
}

/// What is wrong with the arguments of a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCall {
    /// The rank is not in the communicator.
    #[error("{what} {rank} is not below the communicator's size, {size}")]
    NoSuchRank {
        /// `root`, `destination` or `source`.
        what: &'static str,
        /// The rank given.
        rank: u32,
        /// Ranks in the communicator.
        size: u32,
    },
    /// A buffer does not hold a whole block per rank.
    #[error("{len} elements are not a multiple of the {size} ranks")]
    NotAMultiple {
        /// Elements given.
        len: usize,
        /// Ranks in the communicator.
        size: u32,
    },
    /// Two buffers of one call do not fit each other.
    #[error("the {buffer} has {len} elements where {expected} are needed")]
    WrongLength {
        /// `input` or `output`.
        buffer: &'static str,
        /// Elements given.
        len: usize,
        /// Elements needed.
        expected: usize,
    },
    /// The reduction has no meaning on the type.
    #[error("{op} is not defined on {dtype}")]
    Unsupported {
        /// The reduction.
        op: ReduceOp,
        /// The type.
        dtype: DType,
    },
    /// NCCL has no such reduction.
    #[error("NCCL has no {op} of {dtype}: reduce it in memory of the host")]
    NotByNccl {
        /// The reduction.
        op: ReduceOp,
        /// The type.
        dtype: DType,
    },
    /// A message to oneself, which nobody would take.
    #[error("a rank cannot exchange messages with itself")]
    WithItself,
    /// The tag is too large.
    #[error("tag {tag} is above the largest, {max}")]
    TagTooLarge {
        /// The tag given.
        tag: u32,
        /// The largest.
        max: u32,
    },
    /// The forced algorithm cannot run this call within the transport's message length.
    #[error(
        "{bytes} bytes are over the transport's longest message, {limit_bytes}, and {collective} cannot cut them"
    )]
    MessageTooLong {
        /// The collective.
        collective: Collective,
        /// Bytes of its longest message.
        bytes: u64,
        /// The transport's limit.
        limit_bytes: u64,
    },
    /// The system did not give what every call needs.
    #[error("the system does not give {0}")]
    System(String),
    /// Blocks of unequal lengths do not fit the ranks or the buffer.
    #[error("{0}: give one count per rank, and blocks that lie within the buffer")]
    Blocks(String),
    /// The group's description does not hold together.
    #[error("the group is not well-formed: {0}")]
    Group(String),
}
