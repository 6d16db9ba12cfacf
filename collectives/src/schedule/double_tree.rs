//! Two binary trees at once, each for one half of the data: a rank that forwards in one tree is a leaf of the other, so
//! that all ranks send and receive alike, and bytes flow at the full width of every port in a number of hops that grows
//! with the logarithm of the ranks. Cut into slices, it is for buffers of middling size among many ranks.
//!
//! Both trees have the root at position 0, with one child there. The first is the tree in which the parent of a position
//! is found from its lowest bit (the odd positions are leaves); the second is the same over positions mirrored, or where
//! that would leave leaves as leaves, shifted by one.
//!
//! The messages of both trees have one order that all ranks keep to: by the round in which a message that goes down
//! could come at the soonest, then by tree, then by who receives it. So the first message of all that are not
//! done is next at both of its ends, and no rank waits in a circle, with a single message of credit (I3). Upwards they go
//! in the opposite order.
//!
//! Source: P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan"
//! (2009); the numbering of the trees is that of NCCL.

#![forbid(unsafe_code)]

use super::algorithm::Collective;
use super::step::{Rank, Schedule, Span, Step};

/// Most messages of one rank in one direction: a parent and two children in each tree.
const EDGES: usize = 6;

/// A message that goes down, as one of its ends sees it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Edge {
    /// When it could come at the soonest.
    round: u32,
    /// Which tree, which is the number of the chunk.
    tree: u32,
    /// Where its receiver stands in that tree.
    place: u32,
    peer: Rank,
    receives: bool,
}

/// All-reduce, broadcast or reduction over two trees. Two chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DoubleTree {
    what: Collective,
    ranks: u32,
    root: Rank,
}

impl DoubleTree {
    /// For `what`, an all-reduce, a broadcast or a reduction, from or to `root`, which is 0 for an all-reduce. `None` for
    /// another collective, no ranks, or a root that is none of them.
    pub fn new(what: Collective, ranks: u32, root: Rank) -> Option<DoubleTree> {
        let exists = matches!(what, Collective::AllReduce | Collective::Broadcast | Collective::Reduce);
        (exists && root < ranks && ranks <= super::MAX_RANKS).then_some(DoubleTree { what, ranks, root })
    }

    /// Whether combines join neighbouring ranks (I6): no subtree of a mirrored tree wraps, where positions are ranks.
    pub(super) fn keeps_rank_order(&self) -> bool {
        self.what == Collective::Broadcast || self.ranks <= 2 || (self.ranks % 2 == 1 && self.root == 0)
    }

    /// As [`AnySchedule::parts`](super::AnySchedule::parts).
    pub(super) fn parts(&self) -> u32 {
        if self.what == Collective::Broadcast { 1 } else { 2 }
    }

    /// Where a rank stands in a tree.
    fn place(&self, tree: u32, rank: Rank) -> u32 {
        let n = self.ranks;
        let position = (rank + n - self.root) % n;
        match position {
            0 => 0,
            _ if tree == 0 => position,
            // Odd and even change places.
            _ if n % 2 == 1 => n - position,
            _ => position % (n - 1) + 1,
        }
    }

    /// Who stands there.
    fn rank(&self, tree: u32, place: u32) -> Rank {
        let n = self.ranks;
        let position = match place {
            0 => 0,
            _ if tree == 0 => place,
            _ if n % 2 == 1 => n - place,
            _ => (place + n - 3) % (n - 1) + 1,
        };
        (position + self.root) % n
    }

    /// The messages of a rank that go down, in order; `None`s behind them.
    fn edges(&self, rank: Rank) -> [Option<Edge>; EDGES] {
        let mut edges = [None; EDGES];
        let mut found = 0;
        for tree in 0..2 {
            let own = self.place(tree, rank);
            let here = round(self.ranks, own);
            if let Some(parent) = parent(self.ranks, own) {
                let peer = self.rank(tree, parent);
                edges[found] = Some(Edge { round: here, tree, place: own, peer, receives: true });
                found += 1;
            }
            for (place, turn) in children(self.ranks, own).into_iter().flatten().zip(1..) {
                let peer = self.rank(tree, place);
                edges[found] = Some(Edge { round: here + turn, tree, place, peer, receives: false });
                found += 1;
            }
        }
        edges[..found].sort_unstable();
        edges
    }
}

/// The parent of a place in the tree of `n`.
fn parent(n: u32, place: u32) -> Option<u32> {
    if place == 0 {
        return None;
    }
    let bit = place & place.wrapping_neg();
    let up = (place ^ bit) | (bit << 1);
    Some(if up < n { up } else { place ^ bit })
}

/// The children of a place, the one with the larger subtree first.
fn children(n: u32, place: u32) -> [Option<u32>; 2] {
    if place == 0 {
        return [(n > 1).then(|| 1 << (n - 1).ilog2()), None];
    }
    let mut low = (place & place.wrapping_neg()) >> 1;
    let below = (low > 0).then(|| place - low);
    while low > 0 && place + low >= n {
        low >>= 1;
    }
    [below, (low > 0).then(|| place + low)]
}

/// When what goes down from the root can be at a place: each message takes its sender one round.
fn round(n: u32, place: u32) -> u32 {
    let (mut round, mut at) = (0, place);
    while let Some(up) = parent(n, at) {
        let first = children(n, up)[0] == Some(at);
        round += if first { 1 } else { 2 };
        at = up;
    }
    round
}

impl Schedule for DoubleTree {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        2
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let edges = self.edges(rank);
        let count = edges.iter().flatten().count() as u32;
        let up = if self.what == Collective::Broadcast { 0 } else { count };
        let down = if self.what == Collective::Reduce { 0 } else { count };
        if index < up {
            let Edge { tree, peer, receives, .. } = edges[(up - 1 - index) as usize]?;
            let span = Span::one(tree);
            return Some(if receives {
                Step::Send { to: peer, span }
            } else {
                Step::Reduce { from: peer, span }
            });
        }
        let index = index - up;
        if index >= down {
            return None;
        }
        let Edge { tree, peer, receives, .. } = edges[index as usize]?;
        let span = Span::one(tree);
        Some(if receives { Step::Recv { from: peer, span } } else { Step::Send { to: peer, span } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_forwards_in_one_tree_is_a_leaf_of_the_other() {
        for ranks in 2..=200 {
            let trees = DoubleTree::new(Collective::AllReduce, ranks, 0).unwrap();
            for rank in 1..ranks {
                let forwards = |tree| {
                    let place = trees.place(tree, rank);
                    assert_eq!(trees.rank(tree, place), rank, "{ranks} ranks, tree {tree}");
                    children(ranks, place)[0].is_some()
                };
                assert!(!(forwards(0) && forwards(1)), "rank {rank} of {ranks}");
            }
        }
    }

    #[test]
    fn parents_and_children_agree_and_trees_are_as_deep_as_the_logarithm() {
        for n in 1..=300 {
            for place in 0..n {
                for child in children(n, place).into_iter().flatten() {
                    assert_eq!(parent(n, child), Some(place), "{n} ranks");
                }
                let depth = std::iter::successors(Some(place), |at| parent(n, *at)).count() as u32 - 1;
                assert!(depth <= n.next_power_of_two().ilog2(), "place {place} of {n}");
            }
        }
    }
}
