//! Fingerprints of data: what each chunk of each rank holds, and what it ought to hold at the end.

#![forbid(unsafe_code)]

use super::Fault;
use crate::schedule::{Collective, Rank, Span};

/// SplitMix64's finaliser (G. Steele, D. Lea, C. Flood 2014): a bijection that scatters its input.
pub(crate) fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What a chunk holds. A large world has millions of these, so it is small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    /// Sum of the contributions, modulo 2^64.
    sum: u64,
    /// Hash of the expression that made it.
    expression: u32,
    covers: Cover,
}

/// A run of ranks, `first..past`, counted modulo 2^16: exact below 65,536 ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cover {
    first: u16,
    past: u16,
}

impl Cover {
    /// What is left once a combine has joined runs that do not touch.
    const BROKEN: Cover = Cover { first: 1, past: 0 };

    fn of(first: Rank, past: Rank) -> Cover {
        Cover { first: first as u16, past: past as u16 }
    }

    fn join(left: Cover, right: Cover) -> Cover {
        let touch = left.past == right.first && left != Cover::BROKEN && right != Cover::BROKEN;
        if touch { Cover { first: left.first, past: right.past } } else { Cover::BROKEN }
    }
}

impl Value {
    fn of(seed: u64, rank: Rank, chunk: u32) -> Value {
        let sum = mix(seed ^ mix(u64::from(rank) << 32 | u64::from(chunk)));
        Value { sum, expression: sum as u32, covers: Cover::of(rank, rank + 1) }
    }

    /// What a rank holds before anything of use is in a chunk: different everywhere, equal to no contribution.
    fn junk(seed: u64, rank: Rank, chunk: u32) -> Value {
        Value::of(mix(seed), rank, chunk)
    }

    pub(super) fn combine(left: Value, right: Value) -> Value {
        Value {
            sum: left.sum.wrapping_add(right.sum),
            expression: mix(u64::from(left.expression) << 32 | u64::from(right.expression)) as u32,
            covers: Cover::join(left.covers, right.covers),
        }
    }
}

/// The chunks that values are carried for, all or a sample, with their columns in memory.
pub(super) struct Columns {
    chunks: u32,
    /// Sorted sample; `None` for all chunks.
    sample: Option<Vec<u32>>,
}

impl Columns {
    pub(super) fn new(chunks: u32, most: u32, seed: u64) -> Columns {
        if chunks <= most {
            return Columns { chunks, sample: None };
        }
        // The first and last chunk are where bounds go wrong; the rest is random.
        let mut sample: Vec<u32> =
            (2..most).map(|i| (mix(seed ^ u64::from(i)) % u64::from(chunks)) as u32).collect();
        sample.extend([0, chunks - 1]);
        sample.sort_unstable();
        sample.dedup();
        Columns { chunks, sample: Some(sample) }
    }

    pub(super) fn len(&self) -> usize {
        self.sample.as_ref().map_or(self.chunks as usize, Vec::len)
    }

    pub(super) fn sampled(&self) -> bool {
        self.sample.is_some()
    }

    pub(super) fn chunk(&self, column: usize) -> u32 {
        self.sample.as_ref().map_or(column as u32, |sample| sample[column])
    }

    /// The columns of the chunks of `span`.
    pub(super) fn of(&self, span: Span) -> std::ops::Range<usize> {
        match &self.sample {
            None => span.first as usize..span.end() as usize,
            Some(sample) => {
                sample.partition_point(|&c| c < span.first)..sample.partition_point(|&c| c < span.end())
            }
        }
    }
}

/// What each chunk starts with and must end with.
pub(super) struct Goal {
    pub(super) collective: Collective,
    pub(super) ranks: u32,
    /// Those that are brought and wanted: further ones take what is gathered on the way.
    pub(super) chunks: u32,
    pub(super) root: Rank,
    pub(super) seed: u64,
    pub(super) rank_order: bool,
}

impl Goal {
    fn own(&self, rank: Rank, chunk: u32) -> Value {
        Value::of(self.seed, rank, chunk)
    }

    /// A value that is right nowhere.
    pub(super) fn unknown(&self) -> Value {
        Value::junk(self.seed, Rank::MAX - 1, u32::MAX)
    }

    pub(super) fn start(&self, rank: Rank, chunk: u32) -> Value {
        let n = self.ranks;
        let brings = match self.collective {
            _ if chunk >= self.chunks => false,
            Collective::AllReduce
            | Collective::ReduceScatter
            | Collective::Reduce
            | Collective::Barrier
            | Collective::Scan => true,
            Collective::ExclusiveScan => chunk == 0,
            Collective::Broadcast | Collective::Scatter => rank == self.root,
            Collective::AllGather | Collective::Gather => rank == chunk,
            // The engine's copy of a rank's block to itself has no place in the schedule.
            Collective::AllToAll if chunk == n + rank => return self.own(rank, rank),
            Collective::AllToAll => chunk < n,
        };
        if brings { self.own(rank, chunk) } else { Value::junk(self.seed, rank, chunk) }
    }

    /// Checks one column of memory; `held(rank)` is what the rank has in it.
    pub(super) fn check(&self, chunk: u32, held: impl Fn(Rank) -> Value) -> Result<(), Fault> {
        let n = self.ranks;
        let all = 0..n;
        match self.collective {
            _ if chunk >= self.chunks => Ok(()),
            Collective::AllReduce => self.total(chunk, all, held),
            Collective::ReduceScatter => self.total(chunk, chunk..chunk + 1, held),
            Collective::Reduce => self.total(chunk, self.root..self.root + 1, held),
            Collective::AllGather => self.equal(chunk, all, held, |_| self.own(chunk, chunk)),
            Collective::Broadcast => self.equal(chunk, all, held, |_| self.own(self.root, chunk)),
            Collective::Gather => {
                self.equal(chunk, self.root..self.root + 1, held, |_| self.own(chunk, chunk))
            }
            Collective::Scatter => self.equal(chunk, chunk..chunk + 1, held, |_| self.own(self.root, chunk)),
            Collective::AllToAll if chunk < n => self.equal(chunk, all, held, |rank| self.own(rank, chunk)),
            Collective::AllToAll => self.equal(chunk, all, held, |rank| self.own(chunk - n, rank)),
            Collective::Scan => self.prefixes(chunk, 0, all, held),
            Collective::ExclusiveScan if chunk == 1 => self.prefixes(0, 1, 1..n.max(1), held),
            Collective::ExclusiveScan => Ok(()),
            // Nothing but the order of events matters.
            Collective::Barrier => Ok(()),
        }
    }

    /// Whether each rank has the total of the ranks up to `short` below it, in rank order.
    fn prefixes(
        &self,
        chunk: u32,
        short: u32,
        ranks: std::ops::Range<Rank>,
        held: impl Fn(Rank) -> Value,
    ) -> Result<(), Fault> {
        let mut sum = 0u64;
        for rank in ranks {
            sum = sum.wrapping_add(self.own(rank - short, chunk).sum);
            let value = held(rank);
            if value.sum != sum {
                return Err(Fault::Wrong { rank, chunk });
            }
            if value.covers != Cover::of(0, rank + 1 - short) {
                return Err(Fault::OutOfOrder { rank, chunk });
            }
        }
        Ok(())
    }

    fn equal(
        &self,
        chunk: u32,
        mut ranks: std::ops::Range<Rank>,
        held: impl Fn(Rank) -> Value,
        wanted: impl Fn(Rank) -> Value,
    ) -> Result<(), Fault> {
        match ranks.find(|&rank| held(rank) != wanted(rank)) {
            Some(rank) => Err(Fault::Wrong { rank, chunk }),
            None => Ok(()),
        }
    }

    fn total(
        &self,
        chunk: u32,
        ranks: std::ops::Range<Rank>,
        held: impl Fn(Rank) -> Value,
    ) -> Result<(), Fault> {
        let sum = (0..self.ranks).fold(0u64, |sum, rank| sum.wrapping_add(self.own(rank, chunk).sum));
        let other = ranks.start;
        let expression = held(other).expression;
        for rank in ranks {
            let value = held(rank);
            if value.sum != sum {
                return Err(Fault::Wrong { rank, chunk });
            }
            if value.expression != expression {
                return Err(Fault::Disagree { rank, other, chunk });
            }
            if self.rank_order && value.covers != Cover::of(0, self.ranks) {
                return Err(Fault::OutOfOrder { rank, chunk });
            }
        }
        Ok(())
    }
}
