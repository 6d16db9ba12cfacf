//! 512-bit vectors, as the compiler finds them; f16 by the processor's own conversions, sixteen at a time.
#![forbid(unsafe_code)]

use std::arch::x86_64::{
    __m256i, __m512, __mmask16, _CMP_UNORD_Q, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm512_add_ps,
    _mm512_and_ps, _mm512_cmp_ps_mask, _mm512_cvtph_ps, _mm512_cvtps_ph, _mm512_div_ps, _mm512_mask_mov_ps,
    _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps, _mm512_or_ps, _mm512_set1_ps,
};

super::kernels::kernels! { #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")] }

/// Sixteen f16 as they lie in memory.
#[derive(Clone, Copy)]
struct F16x16(__m256i);

/// Bytes in an [`F16x16`].
const BYTES: usize = 32;

impl Wire<BYTES> for F16x16 {
    #[inline(always)]
    fn load(bytes: [u8; BYTES]) -> F16x16 {
        F16x16(bytemuck::cast(bytes))
    }
    #[inline(always)]
    fn store(self) -> [u8; BYTES] {
        bytemuck::cast(self.0)
    }
}

/// The sixteen numbers as f32; exact.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn widen(x: F16x16) -> __m512 {
    _mm512_cvtph_ps(x.0)
}

/// Rounds to nearest even, and makes the quiet NaN of every lane where `nan` is set.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn narrow(x: __m512, nan: __mmask16) -> F16x16 {
    let quieted = _mm512_mask_mov_ps(x, nan, _mm512_set1_ps(f32::from_bits(0x7fc0_0000)));
    F16x16(_mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(quieted))
}

/// Set where either operand is NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn unordered(a: __m512, b: __m512) -> __mmask16 {
    _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, b)
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn wide<T: Wire<N> + Ordered + Number, const N: usize>(op: ReduceOp, operands: Operands<'_>) {
    float::<T, N>(op, operands);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn combine_f16(op: ReduceOp, operands: Operands<'_>) {
    let (vectors, rest) = operands.split(BYTES);
    match op {
        ReduceOp::Sum | ReduceOp::Avg => zip::<F16x16, BYTES>(vectors, |a, b| {
            let sum = _mm512_add_ps(widen(a), widen(b));
            narrow(sum, unordered(sum, sum))
        }),
        ReduceOp::Prod => zip::<F16x16, BYTES>(vectors, |a, b| {
            let product = _mm512_mul_ps(widen(a), widen(b));
            narrow(product, unordered(product, product))
        }),
        // The instruction gives its second operand where the two are equal, hence both orders: see `element`.
        ReduceOp::Min => zip::<F16x16, BYTES>(vectors, |a, b| {
            let (a, b) = (widen(a), widen(b));
            narrow(_mm512_or_ps(_mm512_min_ps(a, b), _mm512_min_ps(b, a)), unordered(a, b))
        }),
        ReduceOp::Max => zip::<F16x16, BYTES>(vectors, |a, b| {
            let (a, b) = (widen(a), widen(b));
            narrow(_mm512_and_ps(_mm512_max_ps(a, b), _mm512_max_ps(b, a)), unordered(a, b))
        }),
        ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => unreachable!("refused by `supports`"),
    }
    float::<f16, 2>(op, rest);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn average_f16(bytes: &mut [u8], ranks: u32) {
    let at = bytes.len() - bytes.len() % BYTES;
    let (vectors, rest) = bytes.split_at_mut(at);
    let divisor = _mm512_set1_ps(ranks as f32);
    each::<F16x16, BYTES>(vectors, |x| {
        let quotient = _mm512_div_ps(widen(x), divisor);
        narrow(quotient, unordered(quotient, quotient))
    });
    each::<f16, 2>(rest, |x| x.over(ranks));
}
