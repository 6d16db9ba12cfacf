//! Ring algorithms: every rank talks to its two neighbours only, and every byte crosses each link once.
//!
//! Sources: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009);
//! the pipelined chain is the linear array of R. Thakur, R. Rabenseifner, W. Gropp (2005).

#![forbid(unsafe_code)]

use super::step::{Rank, Schedule, Span, Step};
use super::symmetry::Symmetry;

/// Steps of each rank in a ring reduce-scatter or all-gather of `n` ranks.
pub(super) const fn half_steps(n: u32) -> u32 {
    2 * (n - 1)
}

/// Ring reduce-scatter: in round `i` a rank passes on chunk `rank - 1 - i`, and ends with the total of its own.
pub(super) fn reduce_scatter(n: u32, rank: Rank, index: u32) -> Step {
    let (next, prev) = neighbours(n, rank);
    let round = index / 2;
    let out = (rank + 2 * n - 1 - round) % n;
    if index.is_multiple_of(2) {
        Step::Send { to: next, span: Span::one(out) }
    } else {
        Step::Reduce { from: prev, span: Span::one((out + n - 1) % n) }
    }
}

/// Ring all-gather: in round `i` a rank passes on chunk `rank - i`, which it owned or has just received.
pub(super) fn all_gather(n: u32, rank: Rank, index: u32) -> Step {
    let (next, prev) = neighbours(n, rank);
    let round = index / 2;
    let out = (rank + n - round) % n;
    if index.is_multiple_of(2) {
        Step::Send { to: next, span: Span::one(out) }
    } else {
        Step::Recv { from: prev, span: Span::one((out + n - 1) % n) }
    }
}

fn neighbours(n: u32, rank: Rank) -> (Rank, Rank) {
    ((rank + 1) % n, (rank + n - 1) % n)
}

/// All-reduce as ring reduce-scatter and ring all-gather over `ranks` near-equal chunks of the buffer.
/// With two ranks it is the exchange of two messages each way: halves, then reduced halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingAllReduce {
    /// Number of ranks.
    pub ranks: u32,
}

impl Schedule for RingAllReduce {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        self.ranks
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let half = half_steps(self.ranks);
        match index {
            i if i < half => Some(reduce_scatter(self.ranks, rank, i)),
            i if i < 2 * half => Some(all_gather(self.ranks, rank, i - half)),
            _ => None,
        }
    }

    fn symmetry(&self) -> Option<Symmetry> {
        Some(Symmetry::Turn { period: 1 })
    }
}

/// Reduce-scatter around the ring; rank `r` ends with the total of chunk `r`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingReduceScatter {
    /// Number of ranks.
    pub ranks: u32,
}

impl Schedule for RingReduceScatter {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        self.ranks
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        (index < half_steps(self.ranks)).then(|| reduce_scatter(self.ranks, rank, index))
    }

    fn symmetry(&self) -> Option<Symmetry> {
        Some(Symmetry::Turn { period: 1 })
    }
}

/// All-gather around the ring; rank `r` brings chunk `r`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingAllGather {
    /// Number of ranks.
    pub ranks: u32,
}

impl Schedule for RingAllGather {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        self.ranks
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        (index < half_steps(self.ranks)).then(|| all_gather(self.ranks, rank, index))
    }

    fn symmetry(&self) -> Option<Symmetry> {
        Some(Symmetry::Turn { period: 1 })
    }
}

/// Reduce to `root` as ring reduce-scatter over `ranks` chunks, after which every rank sends its chunk to the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingReduce {
    /// Number of ranks.
    pub ranks: u32,
    /// The rank that ends with the total.
    pub root: Rank,
}

impl Schedule for RingReduce {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        self.ranks
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let (n, half) = (self.ranks, half_steps(self.ranks));
        if index < half {
            return Some(reduce_scatter(n, rank, index));
        }
        super::direct::gather(n, self.root, rank, index - half)
    }
}

/// Broadcast along the chain `root, root + 1, ...` as one chunk; the slices that the engine cuts make it a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChainBroadcast {
    /// Number of ranks.
    pub ranks: u32,
    /// The rank that brings the data.
    pub root: Rank,
}

impl Schedule for ChainBroadcast {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        1
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let n = self.ranks;
        let (next, prev) = neighbours(n, rank);
        let place = (rank + n - self.root) % n;
        let receives = u32::from(place > 0);
        let sends = u32::from(place + 1 < n);
        if index < receives {
            return Some(Step::Recv { from: prev, span: Span::one(0) });
        }
        (index < receives + sends).then_some(Step::Send { to: next, span: Span::one(0) })
    }
}
