//! Ranks that do alike: moved onto each other, each does what the other did, with peers moved as it was. A simulation
//! then runs some of them for all.

#![forbid(unsafe_code)]

use super::step::Rank;

/// What moves the ranks of a schedule onto each other (I8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Symmetry {
    /// Round a circle of all ranks, by a multiple of `period`, which divides their number: a rank goes to `rank + period`.
    Turn {
        /// The least distance; at least 1.
        period: u32,
    },
    /// Blocks of `period` ranks change places by exclusive or of their numbers. There are a power of two of blocks.
    Swap {
        /// Ranks of a block; at least 1.
        period: u32,
    },
}

impl Symmetry {
    /// The same for groups of so many ranks in the place of each rank.
    #[must_use]
    pub const fn of_groups(self, each: u32) -> Symmetry {
        match self {
            Symmetry::Turn { period } => Symmetry::Turn { period: period * each },
            Symmetry::Swap { period } => Symmetry::Swap { period: period * each },
        }
    }

    /// Ranks that are moved together, at least.
    pub const fn period(self) -> u32 {
        match self {
            Symmetry::Turn { period } | Symmetry::Swap { period } => period,
        }
    }

    /// This symmetry by blocks of `block` ranks. `None` unless those are made of its own, and make up all ranks.
    pub fn by_blocks(self, block: u32, ranks: u32) -> Option<Blocks> {
        let whole = block > 0 && ranks.is_multiple_of(block) && block.is_multiple_of(self.period());
        let fits = match self {
            Symmetry::Turn { .. } => true,
            Symmetry::Swap { period } => {
                (block / period).is_power_of_two() && (ranks / period).is_power_of_two()
            }
        };
        (whole && fits).then_some(Blocks { symmetry: self, block, ranks })
    }
}

/// Blocks of ranks that are moved onto each other. The first block stands for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    symmetry: Symmetry,
    block: u32,
    ranks: u32,
}

impl Blocks {
    /// One block of all ranks: each stands for itself.
    pub const fn alone(ranks: u32) -> Blocks {
        Blocks { symmetry: Symmetry::Turn { period: ranks }, block: ranks, ranks }
    }

    /// Ranks of a block.
    pub const fn each(&self) -> u32 {
        self.block
    }

    /// How many blocks there are.
    pub const fn count(&self) -> u32 {
        self.ranks / self.block
    }

    /// The rank of the first block that stands for `rank`.
    pub const fn stands_for(&self, rank: Rank) -> Rank {
        rank % self.block
    }

    /// Where `rank` comes to when block `number` is moved onto the first.
    pub const fn moved(&self, rank: Rank, number: u32) -> Rank {
        match self.symmetry {
            Symmetry::Turn { .. } => {
                let by = number * self.block;
                if rank >= by { rank - by } else { rank + (self.ranks - by) }
            }
            Symmetry::Swap { .. } => ((rank / self.block) ^ number) * self.block + rank % self.block,
        }
    }

    /// Block numbers of which every move is made.
    pub fn generators(&self) -> impl Iterator<Item = u32> {
        let (turns, count) = (matches!(self.symmetry, Symmetry::Turn { .. }), self.count());
        (0..u32::BITS)
            .map(|bit| 1 << bit)
            .take_while(move |number| *number < count && (!turns || *number == 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_moved_onto_the_first_and_all_ranks_with_them() {
        let turn = Symmetry::Turn { period: 2 }.by_blocks(4, 12).unwrap();
        let swap = Symmetry::Swap { period: 3 }.by_blocks(6, 24).unwrap();
        for (blocks, ranks) in [(turn, 12), (swap, 24)] {
            assert_eq!(blocks.count() * blocks.each(), ranks);
            for number in 0..blocks.count() {
                let mut seen: Vec<Rank> = (0..ranks).map(|rank| blocks.moved(rank, number)).collect();
                for lane in 0..blocks.each() {
                    assert_eq!(seen[(number * blocks.each() + lane) as usize], lane);
                }
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..ranks));
            }
        }
        assert_eq!(turn.generators().collect::<Vec<_>>(), [1]);
        assert_eq!(swap.generators().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(Blocks::alone(7).generators().count(), 0);
    }

    #[test]
    fn blocks_that_do_not_fit_are_none() {
        assert_eq!(Symmetry::Turn { period: 2 }.by_blocks(3, 12), None);
        assert_eq!(Symmetry::Turn { period: 1 }.by_blocks(5, 12), None);
        assert_eq!(Symmetry::Swap { period: 2 }.by_blocks(6, 24), None);
        assert_eq!(Symmetry::Swap { period: 3 }.by_blocks(3, 9), None);
        assert_eq!(Symmetry::Turn { period: 2 }.of_groups(4).period(), 8);
    }
}
