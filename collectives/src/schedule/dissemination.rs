//! The dissemination barrier: in round `i` every rank tells the rank `2^i` above it all that it has heard.
//!
//! Source: D. Hensgen, R. Finkel, U. Manber, "Two algorithms for barrier synchronization" (1988).

#![forbid(unsafe_code)]

use super::step::{Rank, Schedule, Span, Step};
use super::symmetry::Symmetry;

/// Barrier in `ceil(log2 ranks)` rounds for any number of ranks, over one chunk that holds no bytes. Its messages are
/// `Reduce` steps, whose receives need not wait for sends, so that it finishes without buffering; the hazards of the
/// one chunk (I4) hold each round's send until the last round's message is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DisseminationBarrier {
    /// Number of ranks.
    pub ranks: u32,
}

impl Schedule for DisseminationBarrier {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        1
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let n = self.ranks;
        let round = index / 2;
        if round >= n.next_power_of_two().ilog2() {
            return None;
        }
        let distance = 1 << round;
        Some(if index.is_multiple_of(2) {
            Step::Send { to: (rank + distance) % n, span: Span::one(0) }
        } else {
            Step::Reduce { from: (rank + n - distance) % n, span: Span::one(0) }
        })
    }

    fn symmetry(&self) -> Option<Symmetry> {
        Some(Symmetry::Turn { period: 1 })
    }
}
