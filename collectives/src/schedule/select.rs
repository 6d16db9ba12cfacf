//! Chooses the algorithm and slice of a collective: what was measured to be quickest, else the cheapest by the closed
//! formulas.

#![forbid(unsafe_code)]

use super::algorithm::{Algorithm, Collective};
use super::arrangement::{Arranged, Arrangement};
use super::cost::{Costs, Estimate, LinkCosts, estimate_in_memory, estimate_over_hosts};
use super::step::Rank;
use super::tuning::Tuning;
use super::wanted::Wanted;
use std::fmt;

/// The reason for a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// It is the only algorithm for this collective and number of ranks.
    Only,
    /// It costs least by the formulas.
    Cheapest,
    /// Of those that give the same bits as the cheapest over any transport (I9), it costs least over this one.
    CheapestAlike,
    /// It was measured to be quickest.
    Tuned,
    /// It was asked for; of several that were, it costs least or was measured to be quickest.
    Forced,
    /// Others were asked for that do not exist for this collective and number of ranks; this one costs least.
    ForcedMissing,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::Only => "the only algorithm here",
            Why::Cheapest => "cheapest by the cost model",
            Why::CheapestAlike => "cheapest over shared memory, of those that give the same bits",
            Why::Tuned => "quickest as measured",
            Why::Forced => "asked for",
            Why::ForcedMissing => "what was asked for does not exist here; cheapest by the cost model",
        })
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
    /// Slices of a rank that are under way at a time; at least 1.
    pub slices_in_flight: u32,
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

/// What a choice is made by besides costs. All ranks of a group must hold equal ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct Basis<'a> {
    /// Which algorithms may be used.
    pub wanted: Wanted,
    /// What was measured.
    pub tuning: Option<&'a Tuning>,
}

impl From<Algorithm> for Basis<'_> {
    fn from(algorithm: Algorithm) -> Self {
        Basis { wanted: algorithm.into(), tuning: None }
    }
}

/// What an algorithm would cost: a line of the table that a choice is made from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Priced {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// What it costs by the formulas with its best slice.
    pub estimate: Estimate,
    /// Whether it may be used.
    pub permitted: bool,
}

/// All algorithms of `collective` that `estimate` has an answer for, with what they cost by it
/// ([`estimate_over_hosts`](super::estimate_over_hosts), [`estimate_in_memory`](super::estimate_in_memory)). In the order of
/// [`Collective::algorithms`].
pub fn prices<'a>(
    collective: Collective,
    wanted: &'a Wanted,
    estimate: impl Fn(Algorithm) -> Option<Estimate> + 'a,
) -> impl Iterator<Item = Priced> + 'a {
    collective.algorithms().iter().filter_map(move |&algorithm| {
        let permitted = wanted.permits(collective, algorithm);
        Some(Priced { algorithm, estimate: estimate(algorithm)?, permitted })
    })
}

/// Chooses for `collective` among the ranks of `group` over `bytes` bytes (all chunks of one rank together; for an
/// all-to-all, its send chunks): of the algorithms that may be used, what was measured to be quickest for this size, else
/// the cheapest by the formulas. Where none of those exists, of all algorithms. `None` for no ranks or more than
/// [`MAX_RANKS`](super::MAX_RANKS).
///
/// Equal arguments give equal choices on every machine: the formulas use only operations that IEEE 754 defines to the
/// last bit, and of algorithms that cost the same, the one listed first by [`Collective::algorithms`] is taken. So ranks
/// need not talk to agree, as long as they hold the same `costs` and `basis`.
pub fn choose(
    collective: Collective,
    group: &Arrangement,
    bytes: u64,
    costs: &Costs,
    basis: Basis<'_>,
) -> Option<Choice> {
    let Basis { wanted, tuning } = basis;
    let (mut rivals, mut permitted): (u32, u32) = (0, 0);
    let (mut any, mut best): (Option<Priced>, Option<Priced>) = (None, None);
    let tuned = tuning.and_then(|tuning| tuning.best(collective, group.ranks(), group.hosts(), bytes));
    let estimate = |algorithm| estimate_over_hosts(collective, algorithm, group, bytes, costs);
    for priced in prices(collective, &wanted, estimate) {
        rivals += 1;
        let cheaper =
            |than: Option<Priced>| than.is_none_or(|than| priced.estimate.time_us < than.estimate.time_us);
        if cheaper(any) {
            any = Some(priced);
        }
        if !priced.permitted {
            continue;
        }
        permitted += 1;
        if let Some(tuned) = tuned.filter(|tuned| tuned.algorithm == priced.algorithm) {
            let why = if wanted.is_any(collective) { Why::Tuned } else { Why::Forced };
            // What was measured at one size holds for larger ones too, which want larger slices.
            let Estimate { time_us, slice_bytes, slices_in_flight } = priced.estimate;
            let larger = slice_bytes > tuned.slice_bytes;
            let (slice_bytes, slices_in_flight) = if larger {
                (slice_bytes, slices_in_flight)
            } else {
                (tuned.slice_bytes, tuned.slices_in_flight)
            };
            let algorithm = tuned.algorithm;
            return Some(Choice { algorithm, slice_bytes, slices_in_flight, time_us, why });
        }
        if cheaper(best) {
            best = Some(priced);
        }
    }
    let why = match (wanted.is_any(collective), permitted, rivals) {
        (false, 0, _) => Why::ForcedMissing,
        (false, ..) => Why::Forced,
        (true, _, 1) => Why::Only,
        (true, ..) => Why::Cheapest,
    };
    let Priced { algorithm, estimate, .. } = best.or(any)?;
    let Estimate { time_us, slice_bytes, slices_in_flight } = estimate;
    Some(Choice { algorithm, slice_bytes, slices_in_flight, time_us, why })
}

/// As [`choose`] by `costs`, which are the same whatever carries the bytes; then, by `here`, what the links of this group
/// cost, whose ranks all share memory, out of the algorithms that give the same bits as the one chosen
/// ([`Collective::are_alike`]). What was measured to be quickest stays.
pub fn choose_alike(
    collective: Collective,
    group: &Arrangement,
    bytes: u64,
    (costs, here): (&Costs, &LinkCosts),
    basis: Basis<'_>,
) -> Option<Choice> {
    let choice = choose(collective, group, bytes, costs, basis)?;
    let tuning = basis.tuning.and_then(|tuning| tuning.best(collective, group.ranks(), group.hosts(), bytes));
    if matches!(choice.why, Why::Only | Why::Tuned | Why::ForcedMissing) || tuning.is_some() {
        return Some(choice);
    }
    let mut best: Option<Priced> = None;
    let estimate = |algorithm| estimate_in_memory(collective, algorithm, group.ranks(), bytes, here);
    for priced in prices(collective, &basis.wanted, estimate) {
        let cheaper = best.is_none_or(|best| priced.estimate.time_us < best.estimate.time_us);
        if priced.permitted && collective.are_alike(priced.algorithm, choice.algorithm) && cheaper {
            best = Some(priced);
        }
    }
    let Some(Priced { algorithm, estimate, .. }) = best else { return Some(choice) };
    let Estimate { time_us, slice_bytes, slices_in_flight } = estimate;
    let why = if choice.why == Why::Forced { Why::Forced } else { Why::CheapestAlike };
    Some(Choice { algorithm, slice_bytes, slices_in_flight, time_us, why })
}
