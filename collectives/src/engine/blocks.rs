//! Blocks of unequal lengths: where each rank's lies in a buffer.

#![forbid(unsafe_code)]

use super::error::InvalidCall;
use std::ops::Range;
use std::sync::Arc;

/// One block per rank, each of its own length and place in a buffer, in elements: the counts and displacements of MPI.
/// Cheap to clone. Keep it, and calls with it are planned once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks(Arc<[Range<usize>]>);

impl Blocks {
    /// Blocks of these lengths, one after the other, in rank order. Lengths of 0 are allowed.
    ///
    /// # Errors
    /// [`InvalidCall::Blocks`] when together they are longer than any memory.
    pub fn packed(counts: &[usize]) -> Result<Blocks, InvalidCall> {
        let mut at = 0usize;
        let block = |count: &usize| {
            let start = at;
            at = at.checked_add(*count)?;
            Some(start..at)
        };
        let blocks: Option<Arc<[Range<usize>]>> = counts.iter().map(block).collect();
        blocks.map(Blocks).ok_or_else(too_long)
    }

    /// Blocks of these lengths, the `i`-th beginning at element `displacements[i]`.
    ///
    /// # Errors
    /// [`InvalidCall::Blocks`] when there are not as many of the one as of the other, or one ends beyond any memory.
    pub fn at(counts: &[usize], displacements: &[usize]) -> Result<Blocks, InvalidCall> {
        if counts.len() != displacements.len() {
            let why = format!("there are {} counts and {} displacements", counts.len(), displacements.len());
            return Err(InvalidCall::Blocks(why));
        }
        let block = |(count, start): (&usize, &usize)| Some(*start..start.checked_add(*count)?);
        let blocks: Option<Arc<[Range<usize>]>> = counts.iter().zip(displacements).map(block).collect();
        blocks.map(Blocks).ok_or_else(too_long)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Elements of a rank's block; 0 for a rank that has none.
    pub fn count(&self, rank: u32) -> usize {
        self.0.get(rank as usize).map_or(0, Range::len)
    }

    /// Elements of all of them.
    pub fn total(&self) -> usize {
        self.0.iter().map(Range::len).fold(0, usize::saturating_add)
    }

    /// Elements of the longest.
    pub fn longest(&self) -> usize {
        self.0.iter().map(Range::len).max().unwrap_or(0)
    }

    /// Where a rank's block lies.
    pub fn range(&self, rank: u32) -> Option<Range<usize>> {
        self.0.get(rank as usize).cloned()
    }

    pub(super) fn ranges(&self) -> &Arc<[Range<usize>]> {
        &self.0
    }

    /// The same blocks one after the other.
    pub(super) fn packed_again(&self) -> Arc<[Range<usize>]> {
        let mut at = 0;
        let block = |range: &Range<usize>| {
            let start = at;
            at += range.len();
            start..at
        };
        self.0.iter().map(block).collect()
    }

    /// A digest of the lengths, by which ranks find out that theirs differ.
    pub(super) fn digest(&self) -> u32 {
        let mix = |h: u64, range: &Range<usize>| {
            let mixed = (h ^ range.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^ (mixed >> 29)
        };
        (self.0.iter().fold(0xcbf2_9ce4_8422_2325, mix) >> 32) as u32
    }

    /// Refuses blocks that are not one per rank, or do not lie within a buffer of `len` elements; and, if they are
    /// written, blocks that overlap.
    pub(super) fn check(
        &self,
        buffer: &'static str,
        len: usize,
        size: u32,
        written: bool,
    ) -> Result<(), InvalidCall> {
        if self.0.len() != size as usize {
            let why = format!("{} blocks of the {buffer} are given for {size} ranks", self.0.len());
            return Err(InvalidCall::Blocks(why));
        }
        if let Some((rank, block)) = (0u32..).zip(self.0.iter()).find(|(_, block)| block.end > len) {
            let why = format!(
                "block {rank} of the {buffer} is elements {}..{}, and the {buffer} has {len}",
                block.start, block.end
            );
            return Err(InvalidCall::Blocks(why));
        }
        let is_packed = self.0.windows(2).all(|pair| pair[0].end <= pair[1].start);
        if !written || is_packed {
            return Ok(());
        }
        let mut sorted: Vec<&Range<usize>> = self.0.iter().filter(|block| !block.is_empty()).collect();
        sorted.sort_unstable_by_key(|block| block.start);
        match sorted.windows(2).find(|pair| pair[0].end > pair[1].start) {
            None => Ok(()),
            Some(pair) => {
                let why = format!("blocks {:?} and {:?} of the {buffer} overlap", pair[0], pair[1]);
                Err(InvalidCall::Blocks(why))
            }
        }
    }
}

fn too_long() -> InvalidCall {
    InvalidCall::Blocks("their lengths and displacements overflow".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_lie_where_they_are_said_to_and_others_are_refused() {
        let packed = Blocks::packed(&[3, 0, 2]).unwrap();
        assert_eq!((packed.range(1), packed.range(2)), (Some(3..3), Some(3..5)));
        assert_eq!((packed.total(), packed.longest(), packed.count(7)), (5, 3, 0));
        assert!(packed.check("input", 5, 3, true).is_ok());
        assert!(packed.check("input", 4, 3, true).is_err());
        assert!(packed.check("input", 5, 4, true).is_err());
        let crossed = Blocks::at(&[2, 2], &[3, 0]).unwrap();
        assert!(crossed.check("output", 5, 2, true).is_ok());
        let overlapping = Blocks::at(&[2, 2], &[1, 0]).unwrap();
        assert!(overlapping.check("input", 5, 2, false).is_ok());
        assert!(overlapping.check("output", 5, 2, true).is_err());
        assert!(Blocks::at(&[1], &[]).is_err());
        assert!(Blocks::at(&[1], &[usize::MAX]).is_err());
        assert!(Blocks::packed(&[usize::MAX, 1]).is_err());
        assert_eq!(packed.digest(), Blocks::at(&[3, 0, 2], &[9, 1, 40]).unwrap().digest());
        assert_ne!(packed.digest(), Blocks::packed(&[3, 2, 0]).unwrap().digest());
    }
}
