//! Inputs and expected results of a benchmark's collectives, chosen so that every type holds them exactly: what a
//! verification finds wrong is wrong, never rounding.

use half::{bf16, f16};
use ringway_collectives::reduce::ReduceOp;
use ringway_dataplane::memory::DType;

/// Inputs are below this. Sums over [`MANY_RANKS`] of them stay below 256, which even bf16 holds exactly.
const MODULUS: u64 = 4;
/// Beyond so many ranks, each element is summed from one rank's value and zeros, and averaged over zeros and ones.
const MANY_RANKS: u64 = 64;

/// Writes one small integer as an element of `dtype` at the start of `out`.
fn store(dtype: DType, value: u64, out: &mut [u8]) {
    match dtype {
        DType::F16 => out.copy_from_slice(&f16::from_f64(value as f64).to_ne_bytes()),
        DType::Bf16 => out.copy_from_slice(&bf16::from_f64(value as f64).to_ne_bytes()),
        DType::F32 => out.copy_from_slice(&(value as f32).to_ne_bytes()),
        DType::F64 => out.copy_from_slice(&(value as f64).to_ne_bytes()),
        DType::Bool => out[0] = u8::from(value != 0),
        // Two's complement: the low bytes of a small non-negative number are the number in every width.
        _ => out.copy_from_slice(&value.to_le_bytes()[..dtype.size()]),
    }
}

/// Element `index` of rank `rank`'s input.
fn input(op: Option<ReduceOp>, rank: u64, ranks: u64, index: u64) -> u64 {
    match op {
        // One rank holds a 2, the others 1: the product is 2 however many ranks there are.
        Some(ReduceOp::Prod) => 1 + u64::from(rank == index % ranks),
        // A multiple of the ranks in sum, so that the average is whole.
        Some(ReduceOp::Avg) if ranks > MANY_RANKS => index % 2,
        Some(ReduceOp::Avg) => index % MODULUS,
        Some(ReduceOp::Sum) if ranks > MANY_RANKS && rank != index % ranks => 0,
        _ => (index ^ (index >> 7) ^ (rank * 5)) % MODULUS,
    }
}

/// The reduction of element `index` over the first `among` of all ranks.
fn reduced(op: ReduceOp, (among, ranks): (u64, u64), index: u64) -> u64 {
    let all = (0..among).map(|rank| input(Some(op), rank, ranks, index));
    match op {
        ReduceOp::Sum => all.sum(),
        ReduceOp::Prod => all.product(),
        ReduceOp::Min => all.min().unwrap_or(0),
        ReduceOp::Max => all.max().unwrap_or(0),
        ReduceOp::Avg => input(Some(op), 0, ranks, index),
        ReduceOp::And => all.reduce(|a, b| a & b).unwrap_or(0),
        ReduceOp::Or => all.fold(0, |a, b| a | b),
        ReduceOp::Xor => all.fold(0, |a, b| a ^ b),
    }
}

/// The reduction as `dtype` holds it: booleans reduce as truth values, not as numbers.
fn reduced_as(dtype: DType, op: ReduceOp, (among, ranks): (u64, u64), index: u64) -> u64 {
    if dtype != DType::Bool {
        return reduced(op, (among, ranks), index);
    }
    let mut all = (0..among).map(|rank| input(Some(op), rank, ranks, index) != 0);
    u64::from(match op {
        ReduceOp::Sum | ReduceOp::Max | ReduceOp::Or => all.any(|b| b),
        ReduceOp::Prod | ReduceOp::Min | ReduceOp::And | ReduceOp::Avg => all.all(|b| b),
        ReduceOp::Xor => all.fold(false, |a, b| a ^ b),
    })
}

/// Fills `out` with elements `first..` of rank `rank`'s input.
pub(super) fn fill(dtype: DType, op: Option<ReduceOp>, rank: u32, ranks: u32, first: u64, out: &mut [u8]) {
    for (i, cell) in (first..).zip(out.chunks_exact_mut(dtype.size())) {
        store(dtype, input(op, rank.into(), ranks.into(), i), cell);
    }
}

/// How many elements of `found` differ from elements `first..` of what rank `rank` put in.
pub(super) fn wrong_copy(dtype: DType, rank: u32, ranks: u32, first: u64, found: &[u8]) -> u64 {
    wrong(dtype, first, found, |i| input(None, rank.into(), ranks.into(), i))
}

/// How many elements of `found` differ from elements `first..` of the reduction.
pub(super) fn wrong_reduction(dtype: DType, op: ReduceOp, ranks: u32, first: u64, found: &[u8]) -> u64 {
    wrong_prefix(dtype, op, (ranks, ranks), first, found)
}

/// How many elements of `found` differ from elements `first..` of the reduction of the first `among` of all ranks.
pub(super) fn wrong_prefix(
    dtype: DType,
    op: ReduceOp,
    (among, ranks): (u32, u32),
    first: u64,
    found: &[u8],
) -> u64 {
    wrong(dtype, first, found, |i| reduced_as(dtype, op, (among.into(), ranks.into()), i))
}

fn wrong(dtype: DType, first: u64, found: &[u8], expected: impl Fn(u64) -> u64) -> u64 {
    let mut cell = [0u8; 8];
    let cell = &mut cell[..dtype.size()];
    let mut count = 0;
    for (i, have) in (first..).zip(found.chunks_exact(dtype.size())) {
        store(dtype, expected(i), cell);
        count += u64::from(*have != *cell);
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_filled_is_right_and_a_flipped_byte_is_wrong() {
        for dtype in DType::ALL {
            let mut buf = vec![0u8; dtype.size() * 100];
            fill(dtype, None, 3, 5, 7, &mut buf);
            assert_eq!(wrong_copy(dtype, 3, 5, 7, &buf), 0);
            assert!(wrong_copy(dtype, 3, 5, 8, &buf) > 0, "{dtype}: a shifted copy passes");
            buf[dtype.size() * 50] ^= 0x80;
            assert_eq!(wrong_copy(dtype, 3, 5, 7, &buf), 1);
        }
    }

    #[test]
    fn one_rank_reduces_to_its_input() {
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg, ReduceOp::Xor]
        {
            let mut buf = vec![0u8; 400];
            fill(DType::F32, Some(op), 0, 1, 0, &mut buf);
            assert_eq!(wrong_reduction(DType::F32, op, 1, 0, &buf), 0, "{op}");
        }
    }

    #[test]
    fn sums_stay_exact_in_the_narrowest_types() {
        for ranks in [64, 65, 1024] {
            let sum = |i| reduced(ReduceOp::Sum, (ranks, ranks), i);
            let product = |i| reduced(ReduceOp::Prod, (ranks, ranks), i);
            assert!((0..1000).all(|i| sum(i) < 256 && product(i) == 2));
            assert!((0..1000).any(|i| sum(i) > 0));
        }
    }
}
