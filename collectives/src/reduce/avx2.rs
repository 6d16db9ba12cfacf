//! 256-bit vectors, as the compiler finds them; f16 by the processor's own conversions, eight at a time.
#![forbid(unsafe_code)]

use super::element::Wide;
use std::arch::x86_64::{
    __m128i, __m256, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm256_add_ps, _mm256_and_ps, _mm256_blendv_ps,
    _mm256_cmp_ps, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_div_ps, _mm256_max_ps, _mm256_min_ps,
    _mm256_mul_ps, _mm256_or_ps, _mm256_set1_ps,
};

super::kernels::kernels! { #[target_feature(enable = "avx2,f16c")] }

/// Elements whose NaN are made quiet together: few enough to be in the nearest cache still.
const BLOCK: usize = 1024;

/// Eight f16 as they lie in memory.
#[derive(Clone, Copy)]
struct F16x8(__m128i);

/// Bytes in an [`F16x8`].
const BYTES: usize = 16;

impl Wire<BYTES> for F16x8 {
    #[inline(always)]
    fn load(bytes: [u8; BYTES]) -> F16x8 {
        F16x8(bytemuck::cast(bytes))
    }
    #[inline(always)]
    fn store(self) -> [u8; BYTES] {
        bytemuck::cast(self.0)
    }
}

/// The eight numbers as f32; exact.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn widen(x: F16x8) -> __m256 {
    _mm256_cvtph_ps(x.0)
}

/// Rounds to nearest even, and makes the quiet NaN of every lane where `nan` is set.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn narrow(x: __m256, nan: __m256) -> F16x8 {
    let quieted = _mm256_blendv_ps(x, _mm256_set1_ps(f32::from_bits(0x7fc0_0000)), nan);
    F16x8(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(quieted))
}

/// All ones where either operand is NaN.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn unordered(a: __m256, b: __m256) -> __m256 {
    _mm256_cmp_ps::<_CMP_UNORD_Q>(a, b)
}

/// As `float`, but sums and products are made quiet a block at a time.
#[target_feature(enable = "avx2,f16c")]
fn wide<T: Wire<N> + Ordered + Number + Wide, const N: usize>(op: ReduceOp, operands: Operands<'_>) {
    match (op, operands) {
        (ReduceOp::Sum | ReduceOp::Avg, Operands::InPlace { acc, incoming }) => {
            in_blocks::<T, N>(acc, incoming, |a, b| T::plain_sum(a, b));
        }
        (ReduceOp::Prod, Operands::InPlace { acc, incoming }) => {
            in_blocks::<T, N>(acc, incoming, |a, b| T::plain_prod(a, b));
        }
        (op, operands) => float::<T, N>(op, operands),
    }
}

/// `acc[i] = f(acc[i], incoming[i])`, and any NaN becomes the quiet one. That a block has one shows in bits that three
/// operations on integers gather. To compare and choose for each, as this instruction set does it, costs a processor as
/// much, and an emulated one (`tests/soft-roce`) half as long again as all the rest.
#[target_feature(enable = "avx2,f16c")]
fn in_blocks<T: Wire<N> + Wide, const N: usize>(acc: &mut [u8], incoming: &[u8], f: impl Fn(T, T) -> T) {
    let blocks = acc.as_chunks_mut::<N>().0.chunks_mut(BLOCK);
    for (acc, incoming) in blocks.zip(incoming.as_chunks::<N>().0.chunks(BLOCK)) {
        let mut marks = T::Mark::default();
        for (a, b) in acc.iter_mut().zip(incoming) {
            let combined = f(T::load(*a), T::load(*b));
            marks |= combined.mark();
            *a = combined.store();
        }
        if T::has_nan(marks) {
            acc.iter_mut().for_each(|a| *a = T::load(*a).quiet().store());
        }
    }
}

#[target_feature(enable = "avx2,f16c")]
fn combine_f16(op: ReduceOp, operands: Operands<'_>) {
    let (vectors, rest) = operands.split(BYTES);
    match op {
        ReduceOp::Sum | ReduceOp::Avg => zip::<F16x8, BYTES>(vectors, |a, b| {
            let sum = _mm256_add_ps(widen(a), widen(b));
            narrow(sum, unordered(sum, sum))
        }),
        ReduceOp::Prod => zip::<F16x8, BYTES>(vectors, |a, b| {
            let product = _mm256_mul_ps(widen(a), widen(b));
            narrow(product, unordered(product, product))
        }),
        // The instruction gives its second operand where the two are equal, hence both orders: see `element`.
        ReduceOp::Min => zip::<F16x8, BYTES>(vectors, |a, b| {
            let (a, b) = (widen(a), widen(b));
            narrow(_mm256_or_ps(_mm256_min_ps(a, b), _mm256_min_ps(b, a)), unordered(a, b))
        }),
        ReduceOp::Max => zip::<F16x8, BYTES>(vectors, |a, b| {
            let (a, b) = (widen(a), widen(b));
            narrow(_mm256_and_ps(_mm256_max_ps(a, b), _mm256_max_ps(b, a)), unordered(a, b))
        }),
        ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => unreachable!("refused by `supports`"),
    }
    float::<f16, 2>(op, rest);
}

#[target_feature(enable = "avx2,f16c")]
fn average_f16(bytes: &mut [u8], ranks: u32) {
    let at = bytes.len() - bytes.len() % BYTES;
    let (vectors, rest) = bytes.split_at_mut(at);
    let divisor = _mm256_set1_ps(ranks as f32);
    each::<F16x8, BYTES>(vectors, |x| {
        let quotient = _mm256_div_ps(widen(x), divisor);
        narrow(quotient, unordered(quotient, quotient))
    });
    each::<f16, 2>(rest, |x| x.over(ranks));
}
