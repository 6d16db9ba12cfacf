//! Chooses the algorithm and slice of a collective: the cheapest by the closed formulas.

#![forbid(unsafe_code)]

use super::algorithm::{Algorithm, Collective};
use super::arrangement::{Arranged, Arrangement};
use super::cost::{Costs, Estimate, estimate_over_hosts};
use super::step::Rank;
use std::fmt;

/// The reason for a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// It is the only algorithm for this collective and number of ranks.
    Only,
    /// It costs least by the formulas.
    Cheapest,
    /// It was asked for.
    Forced,
    /// Another was asked for that does not exist for this collective and number of ranks; this one costs least.
    ForcedMissing(Algorithm),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Only => f.write_str("the only algorithm here"),
            Why::Cheapest => f.write_str("cheapest by the cost model"),
            Why::Forced => f.write_str("asked for"),
            Why::ForcedMissing(asked) => {
                write!(f, "{asked} was asked for and does not exist here; cheapest by the cost model")
            }
        }
    }
}

/// How to run a collective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The algorithm. It exists for the collective and number of ranks asked about.
    pub algorithm: Algorithm,
    /// How many bytes of every chunk one slice covers; at least 1. A chunk of `c` bytes is run in
    /// `ceil(c / slice_bytes)` slices. Round it up to whole elements.
    pub slice_bytes: u64,
    /// What it costs by the formulas, in microseconds.
    pub time_us: f64,
    /// Why it was chosen.
    pub why: Why,
}

impl Choice {
    /// The schedule of the choice for the group that it was made for; `None` if `root` is not one of its ranks.
    pub fn schedule(&self, collective: Collective, group: &Arrangement, root: Rank) -> Option<Arranged> {
        group.schedule(collective, self.algorithm, root)
    }
}

/// Chooses for `collective` among the ranks of `group` over `bytes` bytes (all chunks of one rank together; for an
/// all-to-all, its send chunks). `forced` is taken where it exists. `None` for no ranks or more than
/// [`MAX_RANKS`](super::MAX_RANKS).
///
/// Equal arguments give equal choices on every machine: the formulas use only operations that IEEE 754 defines to the
/// last bit, and of algorithms that cost the same, the one listed first by [`Collective::algorithms`] is taken. So ranks
/// need not talk to agree, as long as they hold the same `costs`. Allocates nothing.
pub fn choose(
    collective: Collective,
    group: &Arrangement,
    bytes: u64,
    costs: &Costs,
    forced: Option<Algorithm>,
) -> Option<Choice> {
    let priced = |algorithm| estimate_over_hosts(collective, algorithm, group, bytes, costs);
    let made =
        |algorithm, Estimate { time_us, slice_bytes }, why| Choice { algorithm, slice_bytes, time_us, why };
    if let Some(algorithm) = forced
        && let Some(estimate) = priced(algorithm)
    {
        return Some(made(algorithm, estimate, Why::Forced));
    }
    let mut best: Option<Choice> = None;
    let mut rivals = 0;
    for &algorithm in collective.algorithms() {
        let Some(estimate) = priced(algorithm) else { continue };
        rivals += 1;
        if best.is_none_or(|best| estimate.time_us < best.time_us) {
            best = Some(made(algorithm, estimate, Why::Cheapest));
        }
    }
    let why = match forced {
        Some(asked) => Why::ForcedMissing(asked),
        None if rivals == 1 => Why::Only,
        None => Why::Cheapest,
    };
    best.map(|best| Choice { why, ..best })
}
