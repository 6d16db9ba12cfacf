//! Names of the collectives and of the algorithms that run them.

#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;

/// A collective operation. Each entry says what the chunks of its schedules mean: the engine's layout maps them to
/// memory, and a chunk may be empty (a buffer shorter than the number of chunks).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Collective {
    /// Chunks are near-equal parts of the one buffer; at the end all of them hold the total on every rank. Where ranks gather
    /// operands, further chunks take those ([`Schedule::gathers`](super::Schedule::gathers)).
    AllReduce,
    /// Chunk `c` is the part of rank `c`; at the end rank `r`'s chunk `r` holds the total, and its other chunks hold
    /// partial results.
    ReduceScatter,
    /// Chunk `c` is the block of rank `c`; rank `r` brings chunk `r`, and at the end has all of them.
    AllGather,
    /// Chunks are near-equal parts of the one buffer, which the root brings and all have at the end.
    Broadcast,
    /// Chunks are near-equal parts of the one buffer; at the end they hold the total on the root and partial results
    /// elsewhere.
    Reduce,
    /// Chunk `c` is the block of rank `c`; at the end the root has all of them. Other ranks need room only for their
    /// own block or that of their subtree ([`AnySchedule::room`](super::AnySchedule::room)).
    Gather,
    /// Chunk `c` is the block of rank `c`; the root brings all, and at the end rank `r` has chunk `r`. Other ranks need
    /// room only for their own block or that of their subtree ([`AnySchedule::room`](super::AnySchedule::room)).
    Scatter,
    /// Chunk `j < ranks` is the block to send to rank `j`, chunk `ranks + j` the block received from rank `j`. The
    /// engine copies a rank's block to itself.
    AllToAll,
    /// One chunk of no bytes; no rank finishes before all have begun.
    Barrier,
    /// One chunk; at the end rank `r` has the reduction of ranks `0..=r`.
    Scan,
    /// Chunk 0 is what a rank brings, and is used up; at the end rank `r > 0` has the reduction of ranks `0..r` in chunk 1.
    ExclusiveScan,
}

impl Collective {
    /// Every collective.
    pub const ALL: [Collective; 11] = [
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::Gather,
        Collective::Scatter,
        Collective::AllToAll,
        Collective::Barrier,
        Collective::Scan,
        Collective::ExclusiveScan,
    ];

    /// Whether it has a root.
    pub const fn is_rooted(self) -> bool {
        matches!(self, Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter)
    }

    /// Whether it combines data, so that an operation belongs to it.
    pub const fn reduces(self) -> bool {
        matches!(
            self,
            Collective::AllReduce
                | Collective::ReduceScatter
                | Collective::Reduce
                | Collective::Scan
                | Collective::ExclusiveScan
        )
    }

    /// The algorithms that exist for it, for at least some numbers of ranks and hosts.
    pub const fn algorithms(self) -> &'static [Algorithm] {
        use Algorithm::*;
        match self {
            Collective::AllReduce => &[
                Ring,
                Tree,
                Doubling,
                Halving,
                Direct,
                DoubleTree,
                Leaders,
                Lanes,
                LaneHalving,
                LaneTrees,
                Chain,
                Exchange,
            ],
            Collective::ReduceScatter => &[Ring, Halving, Direct, Chain, Exchange],
            Collective::AllGather => &[Ring, Doubling, Direct, Leaders],
            Collective::Broadcast => &[Tree, Chain, ScatterAllGather, DoubleTree, Leaders, Direct],
            Collective::Reduce => &[Tree, Ring, DoubleTree, Leaders, Chain],
            Collective::Gather | Collective::Scatter => &[Direct, Tree],
            Collective::AllToAll => &[Direct],
            Collective::Barrier => &[Dissemination, Leaders],
            Collective::Scan | Collective::ExclusiveScan => &[Chain],
        }
    }

    /// Whether two of its algorithms give the same bits (I9).
    pub fn are_alike(self, a: Algorithm, b: Algorithm) -> bool {
        use Algorithm::{Direct, Doubling, Exchange, Halving};
        let in_doublings_order = |algorithm| matches!(algorithm, Doubling | Halving | Direct | Exchange);
        let in_halvings_order = |algorithm| matches!(algorithm, Halving | Exchange);
        match self {
            _ if !self.reduces() || a == b => true,
            Collective::AllReduce => in_doublings_order(a) && in_doublings_order(b),
            Collective::ReduceScatter => in_halvings_order(a) && in_halvings_order(b),
            _ => false,
        }
    }

    /// Its name in lower case with underscores, such as `all_reduce`.
    pub const fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::AllGather => "all_gather",
            Collective::Broadcast => "broadcast",
            Collective::Reduce => "reduce",
            Collective::Gather => "gather",
            Collective::Scatter => "scatter",
            Collective::AllToAll => "all_to_all",
            Collective::Barrier => "barrier",
            Collective::Scan => "scan",
            Collective::ExclusiveScan => "exclusive_scan",
        }
    }
}

/// How a collective is run. The names are those of NCCL where it has the algorithm (`Ring`, `Tree`), and MPI's usual
/// words for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// Round the ring of ranks, one chunk per message.
    Ring,
    /// Down or up a binomial tree, or both.
    Tree,
    /// Recursive doubling.
    Doubling,
    /// Recursive halving; for an all-reduce, halving and doubling (Rabenseifner).
    Halving,
    /// Straight to each other rank.
    Direct,
    /// Along a chain, pipelined by slices; reductions in the order of ranks, one after the other.
    Chain,
    /// Scatter down a tree, then all-gather round the ring (van de Geijn).
    ScatterAllGather,
    /// The dissemination pattern of barriers.
    Dissemination,
    /// Through one leader per host: up a tree to it, recursive doubling (or a tree, or direct messages) among leaders, down.
    Leaders,
    /// Round a ring inside each host, round one ring among hosts per rank of a host, and round inside again.
    Lanes,
    /// Down or up two binary trees at once, each with one half of the data (what NCCL calls Tree).
    DoubleTree,
    /// As `Lanes`, with recursive halving and doubling among hosts.
    LaneHalving,
    /// As `Lanes`, with two binary trees among hosts.
    LaneTrees,
    /// Everything straight to each other rank; each combines it by itself, in the order of ranks.
    Exchange,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Algorithm; 14] = [
        Algorithm::Ring,
        Algorithm::Tree,
        Algorithm::Doubling,
        Algorithm::Halving,
        Algorithm::Direct,
        Algorithm::Chain,
        Algorithm::ScatterAllGather,
        Algorithm::Dissemination,
        Algorithm::Leaders,
        Algorithm::Lanes,
        Algorithm::DoubleTree,
        Algorithm::LaneHalving,
        Algorithm::LaneTrees,
        Algorithm::Exchange,
    ];

    /// Its name, as settings and reports spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Ring => "Ring",
            Algorithm::Tree => "Tree",
            Algorithm::Doubling => "Doubling",
            Algorithm::Halving => "Halving",
            Algorithm::Direct => "Direct",
            Algorithm::Chain => "Chain",
            Algorithm::ScatterAllGather => "ScatterAllGather",
            Algorithm::Dissemination => "Dissemination",
            Algorithm::Leaders => "Leaders",
            Algorithm::Lanes => "Lanes",
            Algorithm::DoubleTree => "DoubleTree",
            Algorithm::LaneHalving => "LaneHalving",
            Algorithm::LaneTrees => "LaneTrees",
            Algorithm::Exchange => "Exchange",
        }
    }
}

/// A name that is not one of the expected ones.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Not an algorithm.
    #[error(
        "unknown algorithm {0:?}; use Ring, Tree, Doubling, Halving, Direct, Chain, ScatterAllGather, \
         Dissemination, Leaders, Lanes, DoubleTree, LaneHalving, LaneTrees or Exchange"
    )]
    Algorithm(String),
    /// Not a collective.
    #[error(
        "unknown collective {0:?}; use all_reduce, reduce_scatter, all_gather, broadcast, reduce, gather, scatter, \
         all_to_all, barrier, scan or exclusive_scan"
    )]
    Collective(String),
}

/// Compares without regard to case, hyphens and underscores.
fn same_name(a: &str, b: &str) -> bool {
    let letters =
        |s: &str| s.chars().filter(|c| !matches!(c, '-' | '_')).map(|c| c.to_ascii_lowercase()).collect();
    let (a, b): (String, String) = (letters(a), letters(b));
    a == b
}

impl FromStr for Algorithm {
    type Err = NameError;

    /// Accepts the name in any case, with or without hyphens and underscores.
    fn from_str(text: &str) -> Result<Algorithm, NameError> {
        let found = Algorithm::ALL.into_iter().find(|a| same_name(a.name(), text));
        found.ok_or_else(|| NameError::Algorithm(text.to_owned()))
    }
}

impl FromStr for Collective {
    type Err = NameError;

    /// Accepts the name in any case, with or without hyphens and underscores (`all_reduce`, `all-reduce`, `AllReduce`).
    fn from_str(text: &str) -> Result<Collective, NameError> {
        let found = Collective::ALL.into_iter().find(|c| same_name(c.name(), text));
        found.ok_or_else(|| NameError::Collective(text.to_owned()))
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_in_any_spelling() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
            assert_eq!(algorithm.name().to_uppercase().parse(), Ok(algorithm));
        }
        for collective in Collective::ALL {
            assert_eq!(collective.to_string().parse(), Ok(collective));
            assert_eq!(collective.name().replace('_', "-").parse(), Ok(collective));
        }
        assert_eq!("scatter_all_gather".parse(), Ok(Algorithm::ScatterAllGather));
        assert_eq!("AllReduce".parse(), Ok(Collective::AllReduce));
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let told = "Rign".parse::<Algorithm>().unwrap_err().to_string();
        assert!(Algorithm::ALL.iter().all(|a| told.contains(a.name())), "{told}");
        let told = "reduce_all".parse::<Collective>().unwrap_err().to_string();
        assert!(Collective::ALL.iter().all(|c| told.contains(c.name())), "{told}");
    }
}
