//! Direct algorithms: every rank talks to every other it has something for, in one round of messages.
//! The fewest rounds there are; the number of messages grows with the square of the ranks.

#![forbid(unsafe_code)]

use super::gathered::{Gathered, Order};
use super::step::{Rank, Schedule, Span, Step};

/// Reduce-scatter in two sweeps of `n - 1` steps each: data first moves up (to higher ranks), then down. So rank `r`
/// combines the ranks below it from `r - 1` to 0 and then those above it from `r + 1` on, and each combination
/// joins two neighbouring runs of ranks (I6).
fn reduce_scatter(n: u32, rank: Rank, index: u32) -> Step {
    let (below, above) = (rank, n - 1 - rank);
    let up = index < n - 1;
    let (sends, receives) = if up { (above, below) } else { (below, above) };
    let (send, round) = pair_then_tail(index % (n - 1), sends, receives);
    let distance = round + 1;
    if send {
        let to = if up { rank + distance } else { rank - distance };
        Step::Send { to, span: Span::one(to) }
    } else {
        let from = if up { rank - distance } else { rank + distance };
        Step::Reduce { from, span: Span::one(rank) }
    }
}

/// Place of step `index` among `sends` sends and `receives` receives that alternate, a send first, until the shorter
/// list ends: whether it is a send, and its number among those.
pub(super) fn pair_then_tail(index: u32, sends: u32, receives: u32) -> (bool, u32) {
    let pairs = sends.min(receives);
    if index < 2 * pairs { (index.is_multiple_of(2), index / 2) } else { (sends > receives, index - pairs) }
}

/// All-gather by rotation: in round `i` every rank sends its chunk to the rank `i` above it.
fn all_gather(n: u32, rank: Rank, index: u32) -> Step {
    let distance = index / 2 + 1;
    if index.is_multiple_of(2) {
        Step::Send { to: (rank + distance) % n, span: Span::one(rank) }
    } else {
        let from = (rank + n - distance) % n;
        Step::Recv { from, span: Span::one(from) }
    }
}

/// Gather to `root`, which takes the chunks in the order `root + 1, root + 2, ...`.
pub(super) fn gather(n: u32, root: Rank, rank: Rank, index: u32) -> Option<Step> {
    if rank != root {
        return (index == 0).then_some(Step::Send { to: root, span: Span::one(rank) });
    }
    (index < n - 1).then(|| {
        let from = (root + 1 + index) % n;
        Step::Recv { from, span: Span::one(from) }
    })
}

/// All-reduce in two rounds: part `c` of the buffer is gathered by rank `c`, which combines it and sends the total to all.
/// Chunks `0..ranks` are the parts, chunk `ranks + r` takes what rank `r` has of one's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DirectAllReduce {
    /// Number of ranks.
    pub ranks: u32,
}

impl Schedule for DirectAllReduce {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        2 * self.ranks
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let half = 2 * (self.ranks - 1);
        match index {
            i if i < half => Some(match reduce_scatter(self.ranks, rank, i) {
                Step::Reduce { from, .. } => Step::Recv { from, span: Span::one(self.ranks + from) },
                send => send,
            }),
            i if i < 2 * half => Some(all_gather(self.ranks, rank, i - half)),
            _ => None,
        }
    }

    fn gathers(&self) -> Option<Gathered> {
        Some(Gathered { steps: 2 * (self.ranks - 1), chunks: self.ranks, order: Order::Doubling })
    }
}

/// All-reduce in one round: every rank sends all it has to all others, and combines what comes. The fewest messages one
/// after another that there can be, and the most bytes. Chunk 0 is the buffer, chunk `1 + r` takes what rank `r` has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExchangeAllReduce {
    /// Number of ranks.
    pub ranks: u32,
}

impl Schedule for ExchangeAllReduce {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        1 + self.ranks
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        (index < 2 * (self.ranks - 1)).then(|| match all_gather(self.ranks, rank, index) {
            Step::Send { to, .. } => Step::Send { to, span: Span::one(0) },
            Step::Recv { from, .. } | Step::Reduce { from, .. } => {
                Step::Recv { from, span: Span::one(1 + from) }
            }
        })
    }

    fn gathers(&self) -> Option<Gathered> {
        Some(Gathered { steps: 2 * (self.ranks - 1), chunks: 1, order: Order::Doubling })
    }
}

/// Reduce-scatter in one round: every rank sends chunk `c` to rank `c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DirectReduceScatter {
    /// Number of ranks.
    pub ranks: u32,
}

impl Schedule for DirectReduceScatter {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        self.ranks
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        (index < 2 * (self.ranks - 1)).then(|| reduce_scatter(self.ranks, rank, index))
    }
}

/// Reduce-scatter in one round: every rank sends chunk `c` to rank `c`, which combines what it has gathered in the order of
/// recursive halving; a power of two of ranks only. Chunks `0..ranks` are the blocks, chunk `ranks + r` takes what rank `r` has
/// of one's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExchangeReduceScatter {
    /// Number of ranks; a power of two.
    pub ranks: u32,
}

impl Schedule for ExchangeReduceScatter {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        2 * self.ranks
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        // An all-to-all of which a rank keeps the sum.
        DirectAllToAll { ranks: self.ranks }.step(rank, index)
    }

    fn gathers(&self) -> Option<Gathered> {
        Some(Gathered { steps: 2 * (self.ranks - 1), chunks: self.ranks, order: Order::Halving })
    }
}

/// All-gather in one round: every rank sends its chunk to all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DirectAllGather {
    /// Number of ranks.
    pub ranks: u32,
}

impl Schedule for DirectAllGather {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        self.ranks
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        (index < 2 * (self.ranks - 1)).then(|| all_gather(self.ranks, rank, index))
    }
}

/// Broadcast in one round: the root sends all to everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DirectBroadcast {
    /// Number of ranks.
    pub ranks: u32,
    /// The rank that brings the data.
    pub root: Rank,
}

impl Schedule for DirectBroadcast {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        1
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let (n, span) = (self.ranks, Span::one(0));
        if rank != self.root {
            return (index == 0).then_some(Step::Recv { from: self.root, span });
        }
        (index < n - 1).then(|| Step::Send { to: (rank + 1 + index) % n, span })
    }
}

/// Gather: every rank sends its chunk straight to `root`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DirectGather {
    /// Number of ranks.
    pub ranks: u32,
    /// The rank that ends with all chunks.
    pub root: Rank,
}

impl Schedule for DirectGather {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        self.ranks
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        gather(self.ranks, self.root, rank, index)
    }
}

/// Scatter: `root` sends every rank its chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DirectScatter {
    /// Number of ranks.
    pub ranks: u32,
    /// The rank that brings all chunks.
    pub root: Rank,
}

impl Schedule for DirectScatter {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        self.ranks
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        // A scatter is a gather with every message turned round.
        Some(match gather(self.ranks, self.root, rank, index)? {
            Step::Send { to, span } => Step::Recv { from: to, span },
            Step::Recv { from, span } | Step::Reduce { from, span } => Step::Send { to: from, span },
        })
    }
}

/// All-to-all by rotation. Chunk `j < ranks` is the block for rank `j`; chunk `ranks + j` takes the block from rank
/// `j`. A rank's own block is not in the schedule: the engine copies chunk `rank` to chunk `ranks + rank`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DirectAllToAll {
    /// Number of ranks.
    pub ranks: u32,
}

impl Schedule for DirectAllToAll {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        2 * self.ranks
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let n = self.ranks;
        let distance = index / 2 + 1;
        if index / 2 >= n - 1 {
            return None;
        }
        Some(if index.is_multiple_of(2) {
            let to = (rank + distance) % n;
            Step::Send { to, span: Span::one(to) }
        } else {
            let from = (rank + n - distance) % n;
            Step::Recv { from, span: Span::one(n + from) }
        })
    }
}
