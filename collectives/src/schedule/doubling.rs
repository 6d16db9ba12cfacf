//! Recursive doubling: log2(ranks) rounds, each with a partner twice as far away.
//!
//! Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH",
//! International Journal of High Performance Computing Applications 19 (2005), sections 4.1 and 4.5.

#![forbid(unsafe_code)]

use super::step::{Rank, Schedule, Span, Step};
use super::symmetry::Symmetry;

/// The ranks that stay active where some are folded, so that they are a power of two: of the first `2 * extra` ranks each odd one hands its
/// data to the even one below it. Neighbours are folded so that every active rank stands for a run of ranks (I6).
#[derive(Clone, Copy)]
pub(super) struct Active {
    pub(super) extra: u32,
    pub(super) rounds: u32,
}

/// What a rank is after folding.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// Takes part with this number among the active ones; `twin` is the rank folded into it.
    Active { number: u32, twin: Option<Rank> },
    /// Sits the rounds out; the rank below it acts for both.
    Folded { into: Rank },
}

impl Active {
    pub(super) fn of(ranks: u32) -> Active {
        let rounds = ranks.ilog2();
        Active { extra: ranks - (1 << rounds), rounds }
    }

    pub(super) fn place(&self, rank: Rank) -> Place {
        if rank >= 2 * self.extra {
            return Place::Active { number: rank - self.extra, twin: None };
        }
        if rank.is_multiple_of(2) {
            Place::Active { number: rank / 2, twin: Some(rank + 1) }
        } else {
            Place::Folded { into: rank - 1 }
        }
    }

    /// The rank that has `number` among the active ones.
    pub(super) fn rank(&self, number: u32) -> Rank {
        if number < self.extra { 2 * number } else { number + self.extra }
    }

    /// A step of an all-reduce over `all` whose active part has `inner_steps` steps, given by `inner(number, index)`.
    pub(super) fn step(
        &self,
        all: Span,
        rank: Rank,
        index: u32,
        inner_steps: u32,
        inner: impl FnOnce(u32, u32) -> Step,
    ) -> Option<Step> {
        match self.place(rank) {
            Place::Folded { into } => match index {
                0 => Some(Step::Send { to: into, span: all }),
                1 => Some(Step::Recv { from: into, span: all }),
                _ => None,
            },
            Place::Active { number, twin: None } => (index < inner_steps).then(|| inner(number, index)),
            Place::Active { number, twin: Some(twin) } => match index {
                0 => Some(Step::Reduce { from: twin, span: all }),
                i if i <= inner_steps => Some(inner(number, i - 1)),
                i if i == inner_steps + 1 => Some(Step::Send { to: twin, span: all }),
                _ => None,
            },
        }
    }
}

/// All-reduce of one chunk: in round `i` partners at distance `2^i` exchange everything and both combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DoublingAllReduce {
    /// Number of ranks; those beyond a power of two are folded into a neighbour.
    pub ranks: u32,
}

impl Schedule for DoublingAllReduce {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        1
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let fold = Active::of(self.ranks);
        let all = Span::one(0);
        fold.step(all, rank, index, 2 * fold.rounds, |number, i| {
            let peer = fold.rank(number ^ (1 << (i / 2)));
            if i.is_multiple_of(2) {
                Step::Send { to: peer, span: all }
            } else {
                Step::Reduce { from: peer, span: all }
            }
        })
    }

    fn symmetry(&self) -> Option<Symmetry> {
        self.ranks.is_power_of_two().then_some(Symmetry::Swap { period: 1 })
    }
}

/// All-gather: in round `i` partners at distance `2^i` exchange the `2^i` chunks that each holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DoublingAllGather {
    /// Number of ranks; a power of two.
    pub ranks: u32,
}

impl Schedule for DoublingAllGather {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        self.ranks
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let round = index / 2;
        if round >= self.ranks.ilog2() {
            return None;
        }
        let held = 1 << round;
        let peer = rank ^ held;
        let block = |of: Rank| Span::new(of & !(held - 1), held);
        Some(if index.is_multiple_of(2) {
            Step::Send { to: peer, span: block(rank) }
        } else {
            Step::Recv { from: peer, span: block(peer) }
        })
    }

    fn symmetry(&self) -> Option<Symmetry> {
        self.ranks.is_power_of_two().then_some(Symmetry::Swap { period: 1 })
    }
}
