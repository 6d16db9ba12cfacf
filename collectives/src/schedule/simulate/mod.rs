//! Proves a schedule by running all its ranks on fingerprints, under the posting rules of the engine.
//!
//! Every chunk of every rank starts as a random number. A combine adds numbers modulo 2^64, so a total is right only if
//! every rank's contribution went in exactly once (up to a chance of 2^-64 per chunk). Beside the sum, each value
//! carries a hash of the expression that made it, which is neither commutative nor associative, and the run of ranks
//! that it covers: so [`verify`] finds ranks whose results are the same sum by another order of operations (I5), and
//! combines that break rank order (I6).
//!
//! The simulated engine posts sends and receives in program order, each direction with its own credit, looking ahead a
//! limited number of steps; it obeys the hazards I4; sends are buffered, or finish only when matched.

#![forbid(unsafe_code)]

mod clockwork;
mod price;
mod program;
mod queue;
mod run;
mod value;

use super::algorithm::Collective;
use super::step::{Rank, Schedule, Span, Step};
use run::Run;

#[cfg(test)]
pub(super) use price::priced;
pub use price::{
    Load, Network, Place, Price, Resource, SharedCores, Workload, distinct_ranks, price, price_behind_barrier,
};
#[cfg(test)]
pub(super) use value::mix;

/// How the simulated engine posts steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posting {
    /// Sends that one rank may have in flight; at least 1.
    pub sends: u32,
    /// Receives that one rank may have posted and not yet combined; at least 1.
    pub receives: u32,
    /// Steps that one rank may have open, counted from its oldest unfinished one; at least 1.
    pub ahead: u32,
    /// Whether a send finishes at once; otherwise when its receive is posted.
    pub buffered: bool,
}

impl Posting {
    /// The least that every schedule must live with (I3).
    pub const STRICT: Posting = Posting { sends: 1, receives: 1, ahead: super::MIN_AHEAD, buffered: false };
    /// A generous window over a transport that buffers nothing.
    pub const WIDE: Posting = Posting { sends: 8, receives: 8, ahead: 16, buffered: false };
    /// A generous window over a transport that buffers every send.
    pub const BUFFERED: Posting = Posting { buffered: true, ..Posting::WIDE };
}

/// What [`verify`] runs and looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// The posting rules.
    pub posting: Posting,
    /// Seed of the fingerprints and of the sampled chunks; print it with a failure.
    pub seed: u64,
    /// How many chunks, at most, to carry values for: `u32::MAX` for all of them. All steps are run in any case.
    pub sampled_chunks: u32,
    /// Whether every combine has to join neighbouring runs of ranks, lower on the left (I6).
    pub rank_order: bool,
}

impl Check {
    /// All chunks under `posting`, in any order of combination.
    pub const fn new(posting: Posting, seed: u64) -> Check {
        Check { posting, seed, sampled_chunks: u32::MAX, rank_order: false }
    }
}

/// What a schedule that passed has done, over all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages sent.
    pub messages: u64,
    /// Chunks sent, summed over messages.
    pub chunks: u64,
}

/// What is wrong with a schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A step names a rank or chunk that does not exist, its own rank, or no chunk at all.
    #[error(
        "step {index} of rank {rank} is out of bounds ({step}): peers are the other ranks below `ranks`, spans hold \
         1 to `chunks` chunks"
    )]
    Bounds {
        /// The rank.
        rank: Rank,
        /// Number of the step in the rank's program.
        index: u32,
        /// The step.
        step: Step,
    },
    /// A rank's program has a hole: `step` answers `None` and later `Some` (I1).
    #[error("the program of rank {rank} ends at step {index} and goes on after it")]
    Hole {
        /// The rank.
        rank: Rank,
        /// The first index that answered `None`.
        index: u32,
    },
    /// A send and the receive it matches differ in size (I2).
    #[error(
        "step {from_index} of rank {from} sends {sent}, which step {to_index} of rank {to} takes as {expected}: \
         counts must agree"
    )]
    SpanMismatch {
        /// The sending rank.
        from: Rank,
        /// The sender's step.
        from_index: u32,
        /// What it sends.
        sent: Span,
        /// The receiving rank.
        to: Rank,
        /// The receiver's step.
        to_index: u32,
        /// What it takes.
        expected: Span,
    },
    /// A step whose peer has ended its program without the matching step (I2).
    #[error("step {index} of rank {rank} has no match ({step}): the peer has ended")]
    Orphan {
        /// The rank.
        rank: Rank,
        /// Number of the step in the rank's program.
        index: u32,
        /// The step left over.
        step: Step,
    },
    /// Ranks wait for each other (I3).
    #[error("{stuck} ranks wait for each other; rank {rank} at step {index} ({step})")]
    Deadlock {
        /// The lowest rank that waits.
        rank: Rank,
        /// Its oldest unfinished step.
        index: u32,
        /// That step.
        step: Step,
        /// How many ranks wait.
        stuck: u32,
    },
    /// A chunk ends with something else than the collective promises.
    #[error("chunk {chunk} of rank {rank} ends with a wrong value")]
    Wrong {
        /// The rank.
        rank: Rank,
        /// The chunk.
        chunk: u32,
    },
    /// Two ranks reach the same total by different expressions, so floating-point results would differ (I5).
    #[error("chunk {chunk} of rank {rank} is combined in another order than on rank {other}")]
    Disagree {
        /// The rank.
        rank: Rank,
        /// The rank it is compared to.
        other: Rank,
        /// The chunk.
        chunk: u32,
    },
    /// A result that does not keep the order of ranks (I6).
    #[error("chunk {chunk} of rank {rank} is not combined in rank order")]
    OutOfOrder {
        /// The rank.
        rank: Rank,
        /// The chunk.
        chunk: u32,
    },
    /// A rank leaves a barrier that another has not entered.
    #[error("rank {rank} leaves the barrier without a word from rank {unheard}")]
    Early {
        /// The rank that leaves.
        rank: Rank,
        /// A rank it has not heard of.
        unheard: Rank,
    },
}

/// Runs `schedule` for all ranks as `collective` from or to `root` (ignored where there is none) and checks every
/// step and the result. Costs time and memory in proportion to all steps and to ranks times sampled chunks.
pub fn verify<S: Schedule + ?Sized>(
    schedule: &S,
    collective: Collective,
    root: Rank,
    check: &Check,
) -> Result<Stats, Fault> {
    let mut run = Run::new(schedule, collective, root, check);
    run.finish()?;
    run.result()?;
    Ok(run.stats())
}
