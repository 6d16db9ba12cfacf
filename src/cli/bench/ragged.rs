//! Blocks of unequal lengths for the v forms: they rise from rank to rank, `1 : 2 : 3 ...`.

use ringway::Blocks;
use std::ops::Range;

/// Elements of each of `ranks` blocks of together `ranks * part`.
pub(super) fn lengths(ranks: u32, part: usize) -> Vec<usize> {
    let (n, all) = (u128::from(ranks), u128::from(ranks) * part as u128);
    let up_to = |i: u128| (all * (i * (i + 1)) / (n * (n + 1)).max(1)) as usize;
    (0..n).map(|i| up_to(i + 1) - up_to(i)).collect()
}

/// Elements that `from` sends to each rank of an all-to-all, which are as many as that one sends to it.
pub(super) fn between(ranks: u32, part: usize, from: u32) -> Vec<usize> {
    let lengths = lengths(ranks, part);
    (0..ranks).map(|to| lengths[((from + to) % ranks) as usize]).collect()
}

/// Where block `index` of these lengths lies, packed.
pub(super) fn place(lengths: &[usize], index: u32) -> Range<usize> {
    let start = lengths[..index as usize].iter().sum();
    start..start + lengths[index as usize]
}

/// Blocks of these lengths, one after the other.
pub(super) fn packed(lengths: &[usize]) -> Blocks {
    Blocks::packed(lengths).unwrap_or_else(|why| unreachable!("the lengths add up to a buffer's: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_rise_and_fill_the_buffer_and_pairs_agree() {
        for (ranks, part) in [(1, 5), (2, 1), (3, 1000), (7, 0), (4, 12_345)] {
            let all = lengths(ranks, part);
            assert_eq!(all.iter().sum::<usize>(), ranks as usize * part);
            assert!(all.windows(2).all(|pair| pair[1] + 1 >= pair[0]), "{all:?}");
            assert_eq!(place(&all, ranks - 1).end, ranks as usize * part);
            for from in 0..ranks {
                for to in 0..ranks {
                    let (there, back) = (between(ranks, part, from), between(ranks, part, to));
                    assert_eq!(there[to as usize], back[from as usize]);
                }
            }
        }
    }
}
