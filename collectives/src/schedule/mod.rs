//! Pure collective schedules: which rank sends, receives and combines which chunk, in which order. No bytes, no IO, no
//! clock.
//!
//! [`choose`] picks an [`Algorithm`] and a slice for a [`Collective`] by what was measured ([`Tuning`]), else by closed
//! formulas over [`LinkCosts`], out of what may be used ([`Wanted`]), for ranks that lie as an [`Arrangement`] says; [`Arrangement::schedule`] makes the schedule; the engine asks it for one [`Step`] after the other. [`simulate`] proves
//! schedules right and prices them in simulated time. Schedules know nothing of slices: the engine runs one schedule per
//! slice, several at once, with bytes of its choosing for every chunk.
//!
//! # Invariants
//!
//! Every schedule keeps these; [`simulate`] checks them, and the engine relies on them.
//!
//! - **I1** `step(rank, index)` is a pure function for `rank < ranks` and any `index`: no allocation, O(log ranks) at
//!   most. It is `Some` for a rank's first `steps(rank)` indices and `None` for every later one.
//! - **I2** The k-th send from `a` to `b` matches the k-th `Recv` or `Reduce` of `b` from `a`; both span equally many
//!   chunks, and since chunk sizes are the same on all ranks, equally many bytes. No rank sends to itself. Nothing is
//!   left over.
//! - **I3** It finishes under sends that complete only when matched (no buffering at all), with credit for one send and
//!   one receive at a time and a look-ahead of [`MIN_AHEAD`] steps, as long as the receive of a `Reduce` is posted into
//!   scratch as soon as its turn for credit comes, and only the combine waits for hazards.
//! - **I4** Hazards, per rank: a step waits for each earlier step whose span overlaps its own, unless both are sends
//!   ([`Step::conflicts_with`]). So a send waits until earlier receives and combines on its span are done; a `Recv` and
//!   the combine of a `Reduce` wait until earlier sends, receives and combines on their span are done. Hazards go by
//!   chunk number even where a chunk holds no bytes. Combines of overlapping spans happen in program order.
//! - **I5** In a combine the operand of the lower rank stands on the left: the incoming one if `from` is below the own
//!   rank, else the accumulator; where ranks are rearranged, that of the lower position. By this rule the result is the same expression over the inputs on every rank, hence
//!   the same bits even where the operation tells its operands apart (NaN payloads, signed zeros, user functions).
//! - **I6** Where [`AnySchedule::keeps_rank_order`] says so, every combine joins two neighbouring runs of ranks, lower
//!   on the left: the result is `x0 op x1 op ... op xn-1` up to brackets, for an associative operation that need not
//!   commute.
//! - **I7** Chunks are combined in orders of their own by [`AnySchedule::parts`] at most, equal runs of chunks after
//!   each other: within a part, every chunk's result is the same expression over the inputs, up to the order of two operands.
//!   No step of a reduction spans chunks of two parts.
//! - **I8** Where [`Schedule::symmetry`] says so, a rank that is moved onto another does what that one does: as many steps of
//!   the same kinds over spans of the same lengths, with peers moved alike, and which steps conflict (I4) is the same.
//! - **I9** Algorithms that [`Collective::are_alike`] calls so give the same bits: every element is the same expression over the
//!   positions, of all-reduces in recursive doubling's order ([`Order::Doubling`]), of reduce-scatters in halving's. So which of them is run may differ between groups of
//!   equal positions, by what their links are.
//! - **I10** Where ranks combine what they have gathered ([`Schedule::gathers`]), all steps before are over first, and no step
//!   after has begun.

#![forbid(unsafe_code)]

mod algorithm;
mod any;
mod arrangement;
mod chain;
mod cost;
mod direct;
mod dissemination;
mod double_tree;
mod doubling;
mod gathered;
mod halving;
mod hierarchical;
mod ring;
mod runs;
mod select;
pub mod simulate;
mod step;
mod symmetry;
#[cfg(test)]
mod tests;
mod tree;
mod tuning;
mod wanted;

pub use algorithm::{Algorithm, Collective, NameError};
pub use any::AnySchedule;
pub use arrangement::{Arranged, Arrangement};
pub use chain::{ChainAllReduce, ChainExclusiveScan, ChainReduce, ChainReduceScatter, ChainScan};
pub use cost::{
    Costs, EAGER_BYTES, Estimate, FEWEST_IN_FLIGHT, LinkCosts, MOST_IN_FLIGHT, PAIR_MESSAGE_BYTES,
    SLICE_MESSAGE_BYTES, estimate, estimate_in_memory, estimate_over_hosts,
};
pub use direct::{
    DirectAllGather, DirectAllReduce, DirectAllToAll, DirectBroadcast, DirectGather, DirectReduceScatter,
    DirectScatter, ExchangeAllReduce, ExchangeReduceScatter,
};
pub use dissemination::DisseminationBarrier;
pub use double_tree::DoubleTree;
pub use doubling::{DoublingAllGather, DoublingAllReduce};
pub use gathered::{Bracket, Gathered, Order};
pub use halving::{HalvingAllReduce, HalvingReduceScatter};
pub use hierarchical::{LaneAllReduce, LeaderSchedule};
pub use ring::{ChainBroadcast, RingAllGather, RingAllReduce, RingReduce, RingReduceScatter};
pub use runs::{Run, Runs};
pub use select::{Basis, Choice, Priced, Why, choose, choose_alike, prices};
pub use step::{Rank, Schedule, Span, Step};
pub use symmetry::{Blocks, Symmetry};
pub use tree::{
    ScatterAllGatherBroadcast, TreeAllReduce, TreeBroadcast, TreeGather, TreeReduce, TreeScatter,
};
pub use tuning::{Best, CoreCosts, TUNING_LIMIT_BYTES, Tuning, TuningError, Width};
pub use wanted::{Wanted, WantedError};

/// The most ranks a schedule is made for; step numbers and rank arithmetic stay far from overflow.
pub const MAX_RANKS: u32 = 1 << 20;

/// The fewest steps of a rank that must be open at once (counted from its oldest unfinished step) for every schedule of
/// this module to finish under sends that complete only when matched (I3).
pub const MIN_AHEAD: u32 = 2;
