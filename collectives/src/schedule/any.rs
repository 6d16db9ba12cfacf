//! One type for every schedule, so that they are stored and called without allocation or dynamic dispatch.

#![forbid(unsafe_code)]

use super::step::{Rank, Schedule, Span, Step};
use super::*;

macro_rules! any_schedule {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Any of the schedules of this module.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum AnySchedule {
            $($(#[$doc])* $name($name)),*
        }

        impl Schedule for AnySchedule {
            fn ranks(&self) -> u32 {
                match self { $(AnySchedule::$name(s) => s.ranks()),* }
            }

            fn chunks(&self) -> u32 {
                match self { $(AnySchedule::$name(s) => s.chunks()),* }
            }

            fn gathers(&self) -> Option<Gathered> {
                match self { $(AnySchedule::$name(s) => s.gathers()),* }
            }

            fn symmetry(&self) -> Option<Symmetry> {
                match self { $(AnySchedule::$name(s) => s.symmetry()),* }
            }

            #[inline]
            fn step(&self, rank: Rank, index: u32) -> Option<Step> {
                match self { $(AnySchedule::$name(s) => s.step(rank, index)),* }
            }
        }

        $(impl From<$name> for AnySchedule {
            fn from(schedule: $name) -> AnySchedule {
                AnySchedule::$name(schedule)
            }
        })*
    };
}

any_schedule! {
    /// All-reduce round the ring.
    RingAllReduce,
    /// All-reduce up and down a tree.
    TreeAllReduce,
    /// All-reduce by recursive doubling.
    DoublingAllReduce,
    /// All-reduce by recursive halving and doubling.
    HalvingAllReduce,
    /// All-reduce in two rounds of direct messages.
    DirectAllReduce,
    /// All-reduce in one round of direct messages.
    ExchangeAllReduce,
    /// All-reduce, broadcast or reduction over two trees at once.
    DoubleTree,
    /// Over hosts through one leader each.
    LeaderSchedule,
    /// All-reduce over hosts by lanes.
    LaneAllReduce,
    /// All-reduce up and down the chain of ranks.
    ChainAllReduce,
    /// Reduce-scatter up the chain of ranks.
    ChainReduceScatter,
    /// Reduce up the chain of ranks.
    ChainReduce,
    /// Scan up the chain of ranks.
    ChainScan,
    /// Exclusive scan up the chain of ranks.
    ChainExclusiveScan,
    /// Reduce-scatter round the ring.
    RingReduceScatter,
    /// Reduce-scatter by recursive halving.
    HalvingReduceScatter,
    /// Reduce-scatter by direct messages.
    DirectReduceScatter,
    /// Reduce-scatter by direct messages, combined when all have come.
    ExchangeReduceScatter,
    /// All-gather round the ring.
    RingAllGather,
    /// All-gather by recursive doubling.
    DoublingAllGather,
    /// All-gather by direct messages.
    DirectAllGather,
    /// Broadcast down a tree.
    TreeBroadcast,
    /// Broadcast along a chain.
    ChainBroadcast,
    /// Broadcast by direct messages.
    DirectBroadcast,
    /// Broadcast by scatter and all-gather.
    ScatterAllGatherBroadcast,
    /// Reduce up a tree.
    TreeReduce,
    /// Reduce round the ring.
    RingReduce,
    /// Gather up a tree.
    TreeGather,
    /// Gather by direct messages.
    DirectGather,
    /// Scatter down a tree.
    TreeScatter,
    /// Scatter by direct messages.
    DirectScatter,
    /// All-to-all by direct messages.
    DirectAllToAll,
    /// The dissemination barrier.
    DisseminationBarrier,
}

impl AnySchedule {
    /// The schedule that runs `collective` by `algorithm` among `ranks` ranks; `root` is ignored where the collective
    /// has none. `None` where the algorithm does not exist for the collective or for this number of ranks (recursive
    /// halving and exchange of a reduce-scatter and doubling of an all-gather need a power of two), where `root` is not below
    /// `ranks`, and for no ranks or more than [`MAX_RANKS`].
    pub fn new(collective: Collective, algorithm: Algorithm, ranks: u32, root: Rank) -> Option<AnySchedule> {
        use {Algorithm as A, Collective as C};
        if ranks == 0 || ranks > MAX_RANKS || (collective.is_rooted() && root >= ranks) {
            return None;
        }
        let even = ranks.is_power_of_two();
        Some(match (collective, algorithm) {
            (C::AllReduce, A::Ring) => RingAllReduce { ranks }.into(),
            (C::AllReduce, A::Tree) => TreeAllReduce { ranks }.into(),
            (C::AllReduce, A::Doubling) => DoublingAllReduce { ranks }.into(),
            (C::AllReduce, A::Halving) => HalvingAllReduce { ranks }.into(),
            (C::AllReduce, A::Direct) => DirectAllReduce { ranks }.into(),
            (C::AllReduce, A::Exchange) => ExchangeAllReduce { ranks }.into(),
            (C::AllReduce, A::DoubleTree) => DoubleTree::new(collective, ranks, 0)?.into(),
            (C::Broadcast | C::Reduce, A::DoubleTree) => DoubleTree::new(collective, ranks, root)?.into(),
            (C::AllReduce, A::Chain) => ChainAllReduce { ranks }.into(),
            (C::ReduceScatter, A::Chain) => ChainReduceScatter { ranks }.into(),
            (C::Reduce, A::Chain) => ChainReduce { ranks, root }.into(),
            (C::Scan, A::Chain) => ChainScan { ranks }.into(),
            (C::ExclusiveScan, A::Chain) => ChainExclusiveScan { ranks }.into(),
            (C::ReduceScatter, A::Ring) => RingReduceScatter { ranks }.into(),
            (C::ReduceScatter, A::Halving) if even => HalvingReduceScatter { ranks }.into(),
            (C::ReduceScatter, A::Direct) => DirectReduceScatter { ranks }.into(),
            (C::ReduceScatter, A::Exchange) if even => ExchangeReduceScatter { ranks }.into(),
            (C::AllGather, A::Ring) => RingAllGather { ranks }.into(),
            (C::AllGather, A::Doubling) if even => DoublingAllGather { ranks }.into(),
            (C::AllGather, A::Direct) => DirectAllGather { ranks }.into(),
            (C::Broadcast, A::Tree) => TreeBroadcast { ranks, root }.into(),
            (C::Broadcast, A::Chain) => ChainBroadcast { ranks, root }.into(),
            (C::Broadcast, A::Direct) => DirectBroadcast { ranks, root }.into(),
            (C::Broadcast, A::ScatterAllGather) => ScatterAllGatherBroadcast { ranks, root }.into(),
            (C::Reduce, A::Tree) => TreeReduce { ranks, root }.into(),
            (C::Reduce, A::Ring) => RingReduce { ranks, root }.into(),
            (C::Gather, A::Tree) => TreeGather { ranks, root }.into(),
            (C::Gather, A::Direct) => DirectGather { ranks, root }.into(),
            (C::Scatter, A::Tree) => TreeScatter { ranks, root }.into(),
            (C::Scatter, A::Direct) => DirectScatter { ranks, root }.into(),
            (C::AllToAll, A::Direct) => DirectAllToAll { ranks }.into(),
            (C::Barrier, A::Dissemination) => DisseminationBarrier { ranks }.into(),
            _ => return None,
        })
    }

    /// Whether combines join neighbouring runs of ranks with the lower ones on the left (I6), so that an associative
    /// operation need not commute. True of schedules that do not reduce.
    pub fn keeps_rank_order(&self) -> bool {
        match self {
            AnySchedule::RingAllReduce(s) => s.ranks <= 2,
            AnySchedule::RingReduceScatter(s) => s.ranks <= 2,
            AnySchedule::RingReduce(s) => s.ranks <= 2,
            AnySchedule::HalvingReduceScatter(s) => s.ranks <= 2,
            AnySchedule::ExchangeReduceScatter(s) => s.ranks <= 2,
            AnySchedule::DoubleTree(s) => s.keeps_rank_order(),
            AnySchedule::LeaderSchedule(s) => s.inner().is_some_and(|inner| inner.keeps_rank_order()),
            AnySchedule::LaneAllReduce(s) => s.ranks() <= 2,
            _ => true,
        }
    }

    /// How many equal runs the buffer's chunks make of which each is combined in an order of its own (I7). 1 where all chunks are
    /// combined alike, where none is, and where chunks are the blocks of ranks.
    pub fn parts(&self) -> u32 {
        match self {
            // `a op b` is `b op a`.
            _ if self.ranks() <= 2 => 1,
            AnySchedule::RingAllReduce(_) | AnySchedule::RingReduce(_) => self.chunks(),
            AnySchedule::DoubleTree(s) => s.parts(),
            AnySchedule::LaneAllReduce(s) => s.parts(),
            _ => 1,
        }
    }

    /// The chunks that `rank` reads or writes at any time, including those only passing through: a rank needs memory
    /// for these and no others. All chunks, except in a gather or scatter for ranks other than the root.
    pub fn room(&self, rank: Rank) -> Span {
        match self {
            AnySchedule::TreeGather(s) => s.room(rank),
            AnySchedule::TreeScatter(s) => s.room(rank),
            AnySchedule::DirectGather(DirectGather { root, .. })
            | AnySchedule::DirectScatter(DirectScatter { root, .. })
                if *root != rank =>
            {
                Span::one(rank)
            }
            _ => Span::new(0, self.chunks()),
        }
    }
}
