//! The arithmetic of one pair of elements. Every path compiles these same functions, which is why every
//! path gives the same bits.
#![forbid(unsafe_code)]

use super::half::{bf16_from_f32, f16_from_f32, f16_to_f32};
use half::{bf16, f16};
use ringway_dataplane::memory::Bool;
#[cfg(target_arch = "x86_64")]
use std::ops::BitOrAssign;

/// An element of `N` bytes, in the machine's byte order.
pub(super) trait Wire<const N: usize>: Copy {
    fn load(bytes: [u8; N]) -> Self;
    fn store(self) -> [u8; N];
}

/// A type that has min and max.
pub(super) trait Ordered {
    fn min(a: Self, b: Self) -> Self;
    fn max(a: Self, b: Self) -> Self;
}

/// A type that counts.
pub(super) trait Number {
    fn sum(a: Self, b: Self) -> Self;
    fn prod(a: Self, b: Self) -> Self;
    /// The element over a number of ranks (at least 1).
    fn over(self, ranks: u32) -> Self;
}

/// A float whose results can be made quiet afterwards, many at a time.
#[cfg(target_arch = "x86_64")]
pub(super) trait Wide {
    /// Of the type's width; combined by "or".
    type Mark: Copy + Default + BitOrAssign;
    fn plain_sum(a: Self, b: Self) -> Self;
    fn plain_prod(a: Self, b: Self) -> Self;
    fn mark(self) -> Self::Mark;
    /// Whether a NaN is among those whose marks were combined.
    fn has_nan(marks: Self::Mark) -> bool;
    fn quiet(self) -> Self;
}

/// A type whose bits, or whose truth, combine.
pub(super) trait Bits {
    fn and(a: Self, b: Self) -> Self;
    fn or(a: Self, b: Self) -> Self;
    fn xor(a: Self, b: Self) -> Self;
}

macro_rules! integers {
    ($($t:ty, $n:literal, $wide:ty);+ $(;)?) => {$(
        impl Wire<$n> for $t {
            #[inline(always)]
            fn load(bytes: [u8; $n]) -> $t { <$t>::from_ne_bytes(bytes) }
            #[inline(always)]
            fn store(self) -> [u8; $n] { self.to_ne_bytes() }
        }
        impl Ordered for $t {
            #[inline(always)]
            fn min(a: $t, b: $t) -> $t { Ord::min(a, b) }
            #[inline(always)]
            fn max(a: $t, b: $t) -> $t { Ord::max(a, b) }
        }
        impl Number for $t {
            #[inline(always)]
            fn sum(a: $t, b: $t) -> $t { a.wrapping_add(b) }
            #[inline(always)]
            fn prod(a: $t, b: $t) -> $t { a.wrapping_mul(b) }
            // Wide enough for any world size; the quotient is never larger than the dividend, so it fits.
            #[inline(always)]
            fn over(self, ranks: u32) -> $t { (<$wide>::from(self) / <$wide>::from(ranks)) as $t }
        }
        impl Bits for $t {
            #[inline(always)]
            fn and(a: $t, b: $t) -> $t { a & b }
            #[inline(always)]
            fn or(a: $t, b: $t) -> $t { a | b }
            #[inline(always)]
            fn xor(a: $t, b: $t) -> $t { a ^ b }
        }
    )+};
}

integers! {
    i8, 1, i64; i16, 2, i64; i32, 4, i64; i64, 8, i64;
    u8, 1, u32; u16, 2, u32; u32, 4, u32; u64, 8, u64;
}

/// Any NaN becomes the one quiet NaN of the type. Which operand's payload an addition keeps is up to the
/// processor and the compiler; without this, ranks could disagree about the bits.
macro_rules! quiet {
    ($t:ty, $quiet_bits:literal, $value:expr) => {{
        let value: $t = $value;
        <$t>::from_bits(if value.is_nan() { $quiet_bits } else { value.to_bits() })
    }};
}

macro_rules! floats {
    ($($t:ty, $n:literal, $quiet_bits:literal, $mark:ty);+ $(;)?) => {$(
        impl Wire<$n> for $t {
            #[inline(always)]
            fn load(bytes: [u8; $n]) -> $t { <$t>::from_ne_bytes(bytes) }
            #[inline(always)]
            fn store(self) -> [u8; $n] { self.to_ne_bytes() }
        }
        impl Ordered for $t {
            // Both selects agree unless the operands are equal or one is NaN. Equal operands differ at most
            // in the sign of zero, which "or" makes negative and "and" positive. Each select is one instruction.
            #[inline(always)]
            fn min(a: $t, b: $t) -> $t {
                let (left, right) = (if a < b { a } else { b }, if b < a { b } else { a });
                let bits = left.to_bits() | right.to_bits();
                <$t>::from_bits(if a.is_nan() | b.is_nan() { $quiet_bits } else { bits })
            }
            #[inline(always)]
            fn max(a: $t, b: $t) -> $t {
                let (left, right) = (if a > b { a } else { b }, if b > a { b } else { a });
                let bits = left.to_bits() & right.to_bits();
                <$t>::from_bits(if a.is_nan() | b.is_nan() { $quiet_bits } else { bits })
            }
        }
        impl Number for $t {
            #[inline(always)]
            fn sum(a: $t, b: $t) -> $t { quiet!($t, $quiet_bits, a + b) }
            #[inline(always)]
            fn prod(a: $t, b: $t) -> $t { quiet!($t, $quiet_bits, a * b) }
            #[inline(always)]
            fn over(self, ranks: u32) -> $t { quiet!($t, $quiet_bits, self / ranks as $t) }
        }
        #[cfg(target_arch = "x86_64")]
        impl Wide for $t {
            type Mark = $mark;
            #[inline(always)]
            fn plain_sum(a: $t, b: $t) -> $t { a + b }
            #[inline(always)]
            fn plain_prod(a: $t, b: $t) -> $t { a * b }
            // Without its sign, a NaN is the only number above infinity: the difference is negative.
            #[inline(always)]
            fn mark(self) -> $mark {
                (<$t>::INFINITY.to_bits() as $mark).wrapping_sub(self.to_bits() as $mark & <$mark>::MAX)
            }
            #[inline(always)]
            fn has_nan(marks: $mark) -> bool { marks < 0 }
            #[inline(always)]
            fn quiet(self) -> $t { quiet!($t, $quiet_bits, self) }
        }
    )+};
}

floats! { f32, 4, 0x7fc0_0000, i32; f64, 8, 0x7ff8_0000_0000_0000, i64; }

/// Types of 16 bits: computed in f32, rounded once to nearest even.
macro_rules! halves {
    ($($t:ty, $widen:expr, $narrow:expr);+ $(;)?) => {$(
        impl Wire<2> for $t {
            #[inline(always)]
            fn load(bytes: [u8; 2]) -> $t { <$t>::from_bits(u16::from_ne_bytes(bytes)) }
            #[inline(always)]
            fn store(self) -> [u8; 2] { self.to_bits().to_ne_bytes() }
        }
        impl Ordered for $t {
            #[inline(always)]
            fn min(a: $t, b: $t) -> $t { $narrow(<f32 as Ordered>::min($widen(a), $widen(b))) }
            #[inline(always)]
            fn max(a: $t, b: $t) -> $t { $narrow(<f32 as Ordered>::max($widen(a), $widen(b))) }
        }
        impl Number for $t {
            #[inline(always)]
            fn sum(a: $t, b: $t) -> $t { $narrow($widen(a) + $widen(b)) }
            #[inline(always)]
            fn prod(a: $t, b: $t) -> $t { $narrow($widen(a) * $widen(b)) }
            #[inline(always)]
            fn over(self, ranks: u32) -> $t { $narrow($widen(self) / ranks as f32) }
        }
    )+};
}

#[inline(always)]
fn bf16_to_f32(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

halves! { f16, f16_to_f32, f16_from_f32; bf16, bf16_to_f32, bf16_from_f32; }

impl Wire<1> for Bool {
    #[inline(always)]
    fn load(bytes: [u8; 1]) -> Bool {
        Bool(bytes[0])
    }
    #[inline(always)]
    fn store(self) -> [u8; 1] {
        [self.0]
    }
}

impl Bits for Bool {
    #[inline(always)]
    fn and(a: Bool, b: Bool) -> Bool {
        Bool(u8::from(a.get() & b.get()))
    }
    #[inline(always)]
    fn or(a: Bool, b: Bool) -> Bool {
        Bool(u8::from(a.get() | b.get()))
    }
    #[inline(always)]
    fn xor(a: Bool, b: Bool) -> Bool {
        Bool(u8::from(a.get() ^ b.get()))
    }
}

impl Ordered for Bool {
    #[inline(always)]
    fn min(a: Bool, b: Bool) -> Bool {
        Bits::and(a, b)
    }
    #[inline(always)]
    fn max(a: Bool, b: Bool) -> Bool {
        Bits::or(a, b)
    }
}
