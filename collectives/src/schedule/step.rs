//! What one rank does, one step at a time.

#![forbid(unsafe_code)]

use super::gathered::Gathered;
use super::symmetry::Symmetry;
use std::fmt;

/// Number of a rank within its group, `0..ranks`.
pub type Rank = u32;

/// A run of chunks, `first..first + count`. It never wraps past the last chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first chunk of the run.
    pub first: u32,
    /// How many chunks it covers; at least 1 in every schedule of this module.
    pub count: u32,
}

impl Span {
    /// The span `first..first + count`.
    pub const fn new(first: u32, count: u32) -> Span {
        Span { first, count }
    }

    /// The span of the single chunk `chunk`.
    pub const fn one(chunk: u32) -> Span {
        Span { first: chunk, count: 1 }
    }

    /// One past the last chunk.
    pub const fn end(&self) -> u32 {
        self.first + self.count
    }

    /// Whether the two spans share a chunk; then the steps that carry them may conflict (I4).
    pub const fn overlaps(&self, other: &Span) -> bool {
        self.first < other.end() && other.first < self.end()
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunks {}..{}", self.first, self.end())
    }
}

/// One step of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Send `span` to rank `to`.
    Send {
        /// The receiving rank.
        to: Rank,
        /// The chunks sent.
        span: Span,
    },
    /// Receive over `span`, replacing what it held.
    Recv {
        /// The sending rank.
        from: Rank,
        /// The chunks replaced.
        span: Span,
    },
    /// Receive into scratch, then combine into `span`. The operand of the lower rank stands on the left (I5).
    Reduce {
        /// The sending rank.
        from: Rank,
        /// The chunks combined into.
        span: Span,
    },
}

impl Step {
    /// The chunks that this step reads or writes.
    pub const fn span(&self) -> Span {
        match *self {
            Step::Send { span, .. } | Step::Recv { span, .. } | Step::Reduce { span, .. } => span,
        }
    }

    /// The rank at the other end.
    pub const fn peer(&self) -> Rank {
        match *self {
            Step::Send { to, .. } => to,
            Step::Recv { from, .. } | Step::Reduce { from, .. } => from,
        }
    }

    /// Whether this step sends; otherwise it receives.
    pub const fn is_send(&self) -> bool {
        matches!(self, Step::Send { .. })
    }

    /// For a `Reduce` of rank `rank`: whether the incoming operand stands on the left of the accumulator (I5).
    pub const fn incoming_is_left(&self, rank: Rank) -> bool {
        self.peer() < rank
    }

    /// Whether `self`, later in program order of a rank, must wait for `earlier` of the same rank (I4):
    /// they share a chunk, and at least one of them writes it.
    pub const fn conflicts_with(&self, earlier: &Step) -> bool {
        let one_writes = !self.is_send() || !earlier.is_send();
        one_writes && self.span().overlaps(&earlier.span())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Send { to, span } => write!(f, "send {span} to rank {to}"),
            Step::Recv { from, span } => write!(f, "receive {span} from rank {from}"),
            Step::Reduce { from, span } => write!(f, "reduce {span} from rank {from}"),
        }
    }
}

/// A collective written down as the steps of every rank. See the [module documentation](super) for the invariants
/// that every implementation keeps and the engine relies on.
pub trait Schedule: Send + Sync {
    /// How many ranks take part; at least 1.
    fn ranks(&self) -> u32;

    /// How many chunks the steps speak of; at least 1. What they mean depends on the collective (see
    /// [`Collective`](super::Collective)).
    fn chunks(&self) -> u32;

    /// The step number `index` of `rank` in program order, or `None` past its last one. It costs O(log ranks) at
    /// most and never allocates (I1).
    fn step(&self, rank: Rank, index: u32) -> Option<Step>;

    /// For a `Reduce` of `rank`: whether the incoming operand stands on the left of the accumulator (I5).
    fn incoming_is_left(&self, rank: Rank, step: &Step) -> bool {
        step.incoming_is_left(rank)
    }

    /// Where a rank stands among those that take part, by which operands are ordered.
    fn position(&self, rank: Rank) -> u32 {
        rank
    }

    /// Of an all-reduce whose ranks combine by themselves what they have gathered: when, and what.
    fn gathers(&self) -> Option<Gathered> {
        None
    }

    /// What moves its ranks onto each other, if anything does (I8). Schedules in which all talk to all keep it to themselves: which of
    /// several hosts is first at another's interface hangs on more than what each does.
    fn symmetry(&self) -> Option<Symmetry> {
        None
    }

    /// How many steps `rank` has. The default asks `step` O(log steps) times.
    fn steps(&self, rank: Rank) -> u32 {
        let mut past = 1;
        while self.step(rank, past - 1).is_some() {
            past *= 2;
        }
        // The answer lies in past / 2 ..= past - 1.
        let (mut low, mut high) = (past / 2, past - 1);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.step(rank, middle).is_some() {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}
