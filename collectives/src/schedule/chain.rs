//! Reductions along the chain of ranks `0, 1, ..., n - 1`: each rank combines what comes from below with its own and hands
//! it on. So every result is `((x0 op x1) op x2) op ...`, the same expression for every element, whatever the size and
//! the slices. The slices that the engine cuts make a pipeline of it, which moves each byte about twice past every rank,
//! as a ring does; what it costs more is the length of the way, `n - 1` messages one after another in each direction.

#![forbid(unsafe_code)]

use super::step::{Rank, Schedule, Span, Step};

/// The one chunk of most of these.
const ALL: Span = Span::one(0);

/// Picks entry `index` of a program of steps, of which some do not exist on this rank.
fn pick<const N: usize>(steps: [Option<Step>; N], index: u32) -> Option<Step> {
    steps.into_iter().flatten().nth(index as usize)
}

/// The neighbours of a rank, where it has them.
fn neighbours(ranks: u32, rank: Rank) -> (Option<Rank>, Option<Rank>) {
    (rank.checked_sub(1), (rank + 1 < ranks).then_some(rank + 1))
}

/// All-reduce: up the chain, and the total down again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChainAllReduce {
    /// Number of ranks.
    pub ranks: u32,
}

impl Schedule for ChainAllReduce {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        1
    }

    #[inline]
    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let (below, above) = neighbours(self.ranks, rank);
        let program = [
            below.map(|from| Step::Reduce { from, span: ALL }),
            above.map(|to| Step::Send { to, span: ALL }),
            above.map(|from| Step::Recv { from, span: ALL }),
            below.map(|to| Step::Send { to, span: ALL }),
        ];
        pick(program, index)
    }
}

/// Reduce: up the chain, and from its last rank to the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChainReduce {
    /// Number of ranks.
    pub ranks: u32,
    /// The rank that ends with the total.
    pub root: Rank,
}

impl Schedule for ChainReduce {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        1
    }

    #[inline]
    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let (below, above) = neighbours(self.ranks, rank);
        let (last, root) = (self.ranks - 1, self.root);
        let program = [
            below.map(|from| Step::Reduce { from, span: ALL }),
            above.map(|to| Step::Send { to, span: ALL }),
            (rank == root && root != last).then_some(Step::Recv { from: last, span: ALL }),
            (rank == last && root != last).then_some(Step::Send { to: root, span: ALL }),
        ];
        pick(program, index)
    }
}

/// Reduce-scatter: one block after the other up the chain; then its last rank hands them out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChainReduceScatter {
    /// Number of ranks.
    pub ranks: u32,
}

impl Schedule for ChainReduceScatter {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        self.ranks
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let n = self.ranks;
        let (below, above) = neighbours(n, rank);
        match (below, above) {
            (None, None) => None,
            (None, Some(to)) if index < n => Some(Step::Send { to, span: Span::one(index) }),
            (Some(from), Some(_)) if index < 2 * n && index.is_multiple_of(2) => {
                Some(Step::Reduce { from, span: Span::one(index / 2) })
            }
            (Some(_), Some(to)) if index < 2 * n => Some(Step::Send { to, span: Span::one(index / 2) }),
            (Some(from), None) if index < n => Some(Step::Reduce { from, span: Span::one(index) }),
            (Some(_), None) => {
                let to = index - n;
                (to < n - 1).then_some(Step::Send { to, span: Span::one(to) })
            }
            (below, Some(_)) => {
                let before = if below.is_some() { 2 * n } else { n };
                (index == before).then_some(Step::Recv { from: n - 1, span: Span::one(rank) })
            }
        }
    }
}

/// Scan: rank `r` ends with the reduction of ranks `0..=r`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChainScan {
    /// Number of ranks.
    pub ranks: u32,
}

impl Schedule for ChainScan {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        1
    }

    #[inline]
    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let (below, above) = neighbours(self.ranks, rank);
        let program = [
            below.map(|from| Step::Reduce { from, span: ALL }),
            above.map(|to| Step::Send { to, span: ALL }),
        ];
        pick(program, index)
    }
}

/// Exclusive scan: rank `r` ends with the reduction of ranks `0..r` in chunk 1. Chunk 0, its own operand, becomes what goes
/// on to the next rank. Each rank sends its result twice, once to be combined and once to be kept: a step has one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChainExclusiveScan {
    /// Number of ranks.
    pub ranks: u32,
}

impl Schedule for ChainExclusiveScan {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        2
    }

    #[inline]
    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let (below, above) = neighbours(self.ranks, rank);
        let send = above.map(|to| Step::Send { to, span: ALL });
        let program = [
            below.map(|from| Step::Reduce { from, span: ALL }),
            send,
            below.map(|from| Step::Recv { from, span: Span::one(1) }),
            send,
        ];
        pick(program, index)
    }
}
