//! Conversions between the 16-bit floats and f32, without branches, so that the compiler makes vectors of
//! them on every processor. Rounding is to nearest even; any NaN becomes the quiet NaN without payload.
//!
//! The method is Fabian Giesen's (<https://gist.github.com/rygorous/2156668>, public domain): numbers below
//! the normal range are rounded by the adder, by adding a number whose last bit is the result's last bit.
//! No result hangs on f32 numbers below f32's own normal range, so a process that flushes those to zero
//! gets the same bits.
#![forbid(unsafe_code)]

use half::{bf16, f16};

/// Exponent of f32 infinity, in place.
const F32_INFINITY: u32 = 255 << 23;
/// 65536.0: the first power of two that f16 cannot hold.
const F16_LIMIT: u32 = (127 + 16) << 23;
/// 2^-14: the smallest normal f16.
const F16_SMALLEST_NORMAL: u32 = (127 - 14) << 23;
/// 0.5: its last bit is 2^-24, the last bit of a subnormal f16.
const F16_SUBNORMAL_MAGIC: u32 = (127 - 1) << 23;

/// The f32 of the same value; exact.
#[inline(always)]
pub(super) fn f16_to_f32(x: f16) -> f32 {
    let bits = u32::from(x.to_bits());
    let sign = (bits & 0x8000) << 16;
    let shifted = (bits & 0x7fff) << 13;
    let exponent = shifted & (0x1f << 23);
    let normal = shifted + ((127 - 15) << 23);
    let special = shifted + ((255 - 31) << 23);
    let subnormal =
        (f32::from_bits(shifted + F16_SMALLEST_NORMAL) - f32::from_bits(F16_SMALLEST_NORMAL)).to_bits();
    let finite = if exponent == 0 { subnormal } else { normal };
    f32::from_bits(sign | if exponent == 0x1f << 23 { special } else { finite })
}

/// The nearest f16, ties to even; beyond its range, infinity.
#[inline(always)]
pub(super) fn f16_from_f32(x: f32) -> f16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(F16_SUBNORMAL_MAGIC))
        .to_bits()
        .wrapping_sub(F16_SUBNORMAL_MAGIC);
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + odd) >> 13;
    let finite = if magnitude < F16_SMALLEST_NORMAL { subnormal } else { normal };
    let bounded = if magnitude >= F16_LIMIT { 0x7c00 } else { finite };
    f16::from_bits(if magnitude > F32_INFINITY { 0x7e00 } else { (sign | bounded) as u16 })
}

/// The nearest bf16, ties to even; beyond its range, infinity.
#[inline(always)]
pub(super) fn bf16_from_f32(x: f32) -> bf16 {
    let bits = x.to_bits();
    let odd = (bits >> 16) & 1;
    let rounded = bits.wrapping_add(0x7fff + odd) >> 16;
    bf16::from_bits(if bits & 0x7fff_ffff > F32_INFINITY { 0x7fc0 } else { rounded as u16 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every f16 widens to what the `half` crate says, and comes back.
    #[test]
    fn every_f16_widens_exactly_and_returns() {
        for bits in 0..=u16::MAX {
            let x = f16::from_bits(bits);
            if x.is_nan() {
                assert!(f16_to_f32(x).is_nan(), "{bits:#x}");
                assert_eq!(f16_from_f32(f16_to_f32(x)).to_bits(), 0x7e00, "{bits:#x}");
            } else {
                assert_eq!(f16_to_f32(x).to_bits(), x.to_f32_const().to_bits(), "{bits:#x}");
                assert_eq!(f16_from_f32(f16_to_f32(x)).to_bits(), bits, "{bits:#x}");
            }
        }
    }

    /// Around every f16 and bf16: the value itself, the tie above it and its neighbours round as `half` says.
    #[test]
    fn ties_and_their_neighbours_round_to_even() {
        for bits in 0..=u16::MAX {
            let wide = f16_to_f32(f16::from_bits(bits));
            let next = f16_to_f32(f16::from_bits(bits.wrapping_add(1)));
            let tie = (wide + next) / 2.0;
            for x in [tie, f32::from_bits(tie.to_bits() ^ 1), f32::from_bits(tie.to_bits().wrapping_sub(1))] {
                if !x.is_nan() {
                    assert_eq!(f16_from_f32(x).to_bits(), f16::from_f32_const(x).to_bits(), "{x:e}");
                }
            }
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits(u32::from(bits) << 16 | low);
                if x.is_nan() {
                    assert_eq!(bf16_from_f32(x).to_bits(), 0x7fc0);
                } else {
                    assert_eq!(bf16_from_f32(x).to_bits(), bf16::from_f32_const(x).to_bits(), "{x:e}");
                }
            }
        }
    }
}
