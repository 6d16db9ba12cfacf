//! Recursive halving: log2(ranks) rounds, each with half as many bytes as the one before.
//!
//! Source: R. Rabenseifner, "Optimization of Collective Reduction Operations" (2004); R. Thakur, R. Rabenseifner,
//! W. Gropp (2005), sections 4.4 and 4.5.

#![forbid(unsafe_code)]

use super::doubling::Active;
use super::step::{Rank, Schedule, Span, Step};
use super::symmetry::Symmetry;

/// All-reduce as reduce-scatter by vector halving and distance doubling, then the same way back as all-gather, over
/// `2^k` near-equal chunks. Partners are nearest while messages are largest, and combines join neighbouring runs of
/// ranks (I6). Ranks beyond a power of two are folded into a neighbour with the whole buffer. With two ranks it is
/// the exchange of two messages each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HalvingAllReduce {
    /// Number of ranks.
    pub ranks: u32,
}

/// The chunks that the active rank `number` answers for after `halvings` rounds: bit `i` of its number says which
/// half it kept in round `i`.
fn window(chunks: u32, number: u32, halvings: u32) -> Span {
    let mut span = Span::new(0, chunks);
    for round in 0..halvings {
        span.count /= 2;
        span.first += span.count * ((number >> round) & 1);
    }
    span
}

impl Schedule for HalvingAllReduce {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        1 << self.ranks.ilog2()
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let fold = Active::of(self.ranks);
        let chunks = self.chunks();
        let all = Span::new(0, chunks);
        fold.step(all, rank, index, 4 * fold.rounds, |number, i| {
            let (phase, send) = (i / 2, i.is_multiple_of(2));
            let scattering = phase < fold.rounds;
            let round = if scattering { phase } else { 2 * fold.rounds - 1 - phase };
            let partner = number ^ (1 << round);
            let peer = fold.rank(partner);
            let (mine, theirs) = (window(chunks, number, round + 1), window(chunks, partner, round + 1));
            match (scattering, send) {
                (true, true) => Step::Send { to: peer, span: theirs },
                (true, false) => Step::Reduce { from: peer, span: mine },
                (false, true) => Step::Send { to: peer, span: mine },
                (false, false) => Step::Recv { from: peer, span: theirs },
            }
        })
    }

    fn symmetry(&self) -> Option<Symmetry> {
        self.ranks.is_power_of_two().then_some(Symmetry::Swap { period: 1 })
    }
}

/// Reduce-scatter by recursive halving: in each round a rank sends the half that it will not own to its partner half
/// the range away. Rank `r` ends with the total of chunk `r`; a power of two of ranks only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HalvingReduceScatter {
    /// Number of ranks; a power of two.
    pub ranks: u32,
}

impl Schedule for HalvingReduceScatter {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        self.ranks
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let round = index / 2;
        if round >= self.ranks.ilog2() {
            return None;
        }
        let half = self.ranks >> (round + 1);
        let peer = rank ^ half;
        let block = |of: Rank| Span::new(of & !(half - 1), half);
        Some(if index.is_multiple_of(2) {
            Step::Send { to: peer, span: block(peer) }
        } else {
            Step::Reduce { from: peer, span: block(rank) }
        })
    }

    fn symmetry(&self) -> Option<Symmetry> {
        self.ranks.is_power_of_two().then_some(Symmetry::Swap { period: 1 })
    }
}
