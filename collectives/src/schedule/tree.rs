//! Tree algorithms over the range-halving tree, which is the binomial tree where ranks are a power of two and the root
//! is rank 0.
//!
//! The head of a range of ranks (the root, for all of them) sends to the first rank of the half it is not in, which is
//! the head of that half; both go on with their halves. Depth is `ceil(log2 ranks)` for any root. Every subtree is a
//! run of neighbouring ranks: the blocks of a subtree never wrap (as they do in a binomial tree rotated to the root),
//! and a reduction keeps rank order for any root (I6).
//!
//! Source of the scatter and all-gather broadcast: M. Barnett et al., "Interprocessor collective communication library
//! (InterCom)" (1994), as told in R. Thakur, R. Rabenseifner, W. Gropp (2005), section 4.2.

#![forbid(unsafe_code)]

use super::direct::pair_then_tail;
use super::ring;
use super::step::{Rank, Schedule, Span, Step};

/// Where a rank stands in the tree: the ranks of its subtree and who its parent is.
#[derive(Clone, Copy)]
pub(super) struct Node {
    rank: Rank,
    parent: Option<Rank>,
    first: Rank,
    past: Rank,
}

/// One child of a node and the ranks of the child's subtree.
#[derive(Clone, Copy)]
struct Child {
    rank: Rank,
    first: Rank,
    past: Rank,
}

impl Child {
    fn blocks(&self) -> Span {
        Span::new(self.first, self.past - self.first)
    }
}

impl Node {
    pub(super) fn find(ranks: u32, root: Rank, rank: Rank) -> Node {
        let mut node = Node { rank: root, parent: None, first: 0, past: ranks };
        while node.rank != rank {
            let (child, rest) =
                node.split().expect("a rank below `ranks` is found before its range is down to one");
            node = if (child.first..child.past).contains(&rank) {
                Node { rank: child.rank, parent: Some(node.rank), first: child.first, past: child.past }
            } else {
                rest
            };
        }
        node
    }

    /// Halves the range: the half without the node's own rank becomes a child, the other stays with the node. Of an
    /// odd range the node keeps the smaller half where it can, since it has sent (or received) a message more.
    fn split(&self) -> Option<(Child, Node)> {
        if self.past - self.first < 2 {
            return None;
        }
        let half = (self.past - self.first) / 2;
        let low = self.rank < self.first + half;
        let middle = if low { self.first + half } else { (self.past - half).min(self.rank) };
        Some(if low {
            (Child { rank: middle, first: middle, past: self.past }, Node { past: middle, ..*self })
        } else {
            (Child { rank: self.first, first: self.first, past: middle }, Node { first: middle, ..*self })
        })
    }

    /// The child number `number`, the largest subtree first.
    fn child(&self, number: u32) -> Option<Child> {
        let (mut child, mut rest) = self.split()?;
        for _ in 0..number {
            (child, rest) = rest.split()?;
        }
        Some(child)
    }

    fn children(&self) -> u32 {
        let (mut count, mut node) = (0, *self);
        while let Some((_, rest)) = node.split() {
            (count, node) = (count + 1, rest);
        }
        count
    }

    fn blocks(&self) -> Span {
        Span::new(self.first, self.past - self.first)
    }

    /// Step of a fan-out from the root: receive from the parent, then send to the children, largest subtree first.
    /// `whole` is the span of every message, or `None` for the blocks of the subtree concerned.
    pub(super) fn fan_out(&self, index: u32, whole: Option<Span>) -> Option<Step> {
        let number = match self.parent {
            Some(from) if index == 0 => {
                return Some(Step::Recv { from, span: whole.unwrap_or(self.blocks()) });
            }
            Some(_) => index - 1,
            None => index,
        };
        self.child(number).map(|child| Step::Send { to: child.rank, span: whole.unwrap_or(child.blocks()) })
    }

    /// Step of a fan-in to the root: from the children, smallest subtree first, so that combines join neighbouring
    /// runs; then to the parent. `whole` is the span of a reduction, or `None` to gather the blocks of the subtrees.
    pub(super) fn fan_in(&self, index: u32, whole: Option<Span>) -> Option<Step> {
        let children = self.children();
        if index < children {
            let child = self.child(children - 1 - index)?;
            return Some(match whole {
                Some(span) => Step::Reduce { from: child.rank, span },
                None => Step::Recv { from: child.rank, span: child.blocks() },
            });
        }
        let to = self.parent?;
        (index == children).then_some(Step::Send { to, span: whole.unwrap_or(self.blocks()) })
    }

    pub(super) fn fan_steps(&self) -> u32 {
        self.children() + u32::from(self.parent.is_some())
    }
}

/// The whole buffer as one chunk.
const WHOLE: Option<Span> = Some(Span::one(0));

/// All-reduce of one chunk: reduce to rank 0, then broadcast from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TreeAllReduce {
    /// Number of ranks.
    pub ranks: u32,
}

impl Schedule for TreeAllReduce {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        1
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let node = Node::find(self.ranks, 0, rank);
        let up = node.fan_steps();
        if index < up { node.fan_in(index, WHOLE) } else { node.fan_out(index - up, WHOLE) }
    }
}

/// Broadcast of one chunk from `root`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TreeBroadcast {
    /// Number of ranks.
    pub ranks: u32,
    /// The rank that brings the data.
    pub root: Rank,
}

impl Schedule for TreeBroadcast {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        1
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        Node::find(self.ranks, self.root, rank).fan_out(index, WHOLE)
    }
}

/// Reduction of one chunk to `root`; other ranks' buffers end with partial results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TreeReduce {
    /// Number of ranks.
    pub ranks: u32,
    /// The rank that ends with the total.
    pub root: Rank,
}

impl Schedule for TreeReduce {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        1
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        Node::find(self.ranks, self.root, rank).fan_in(index, WHOLE)
    }
}

/// Gather of one chunk per rank to `root`. A rank inside the tree holds the chunks of its subtree on the way, so every
/// rank needs room for the run of chunks of its subtree ([`TreeGather::room`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TreeGather {
    /// Number of ranks.
    pub ranks: u32,
    /// The rank that ends with all chunks.
    pub root: Rank,
}

impl TreeGather {
    /// The chunks that pass through `rank`, its own among them.
    pub fn room(&self, rank: Rank) -> Span {
        Node::find(self.ranks, self.root, rank).blocks()
    }
}

impl Schedule for TreeGather {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        self.ranks
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        Node::find(self.ranks, self.root, rank).fan_in(index, None)
    }
}

/// Scatter of one chunk per rank from `root`. A rank inside the tree holds the chunks of its subtree on the way, so
/// every rank needs room for the run of chunks of its subtree ([`TreeScatter::room`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TreeScatter {
    /// Number of ranks.
    pub ranks: u32,
    /// The rank that brings all chunks.
    pub root: Rank,
}

impl TreeScatter {
    /// The chunks that pass through `rank`, its own among them.
    pub fn room(&self, rank: Rank) -> Span {
        Node::find(self.ranks, self.root, rank).blocks()
    }
}

impl Schedule for TreeScatter {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        self.ranks
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        Node::find(self.ranks, self.root, rank).fan_out(index, None)
    }
}

/// Broadcast of a large buffer from `root`: scatter its `ranks` near-equal chunks down the tree, then all-gather them
/// around the ring. A rank is not sent again the chunks that the scatter left with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScatterAllGatherBroadcast {
    /// Number of ranks.
    pub ranks: u32,
    /// The rank that brings the data.
    pub root: Rank,
}

impl ScatterAllGatherBroadcast {
    /// Rounds of the all-gather in which `rank` receives. A rank other than the root is the first of its subtree
    /// (only the root can be head of a range that starts before it), so round `i` brings it chunk `rank - 1 - i`
    /// and the chunks that it has would come in the last rounds.
    fn rounds(&self, node: &Node) -> u32 {
        self.ranks - (node.past - node.first)
    }
}

impl Schedule for ScatterAllGatherBroadcast {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        self.ranks
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let n = self.ranks;
        let node = Node::find(n, self.root, rank);
        let down = node.fan_steps();
        if index < down {
            return node.fan_out(index, None);
        }
        let receives = self.rounds(&node);
        let sends = self.rounds(&Node::find(n, self.root, (rank + 1) % n));
        let index = index - down;
        if index >= sends + receives {
            return None;
        }
        let (send, round) = pair_then_tail(index, sends, receives);
        Some(ring::all_gather(n, rank, 2 * round + u32::from(!send)))
    }
}
