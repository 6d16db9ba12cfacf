//! Arithmetic on elements, as TensorFlow defines it: integers wrap, and division rounds as the operation says.

use crate::tensor::Scalar;

/// A type that is computed with.
pub(super) trait Number: Scalar + PartialOrd + std::iter::Sum {
    /// Sums of many are kept in this.
    type Sum: Copy + Send + Sync;
    const ZERO: Self;
    const ONE: Self;
    /// What a maximum of nothing is.
    const LOWEST: Self;
    /// What a minimum of nothing is.
    const HIGHEST: Self;
    const IS_INT: bool;
    const NO_SUM: Self::Sum;
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    /// Rounds integers towards zero. The divisor of integers is not zero.
    fn over(self, other: Self) -> Self;
    fn floor_over(self, other: Self) -> Self;
    fn floor_rest(self, other: Self) -> Self;
    fn rest(self, other: Self) -> Self;
    fn power(self, other: Self) -> Self;
    fn negative(self) -> Self;
    fn magnitude(self) -> Self;
    /// -1, 0 or 1.
    fn sign(self) -> Self;
    /// NaN when either is.
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn add_to(self, sum: Self::Sum) -> Self::Sum;
    fn join(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    fn of_sum(sum: Self::Sum) -> Self;
    /// The sum over `count`.
    fn of_mean(sum: Self::Sum, count: usize) -> Self;
    fn to_f64(self) -> f64;
    fn of_f64(value: f64) -> Self;
    fn is_below_zero(self) -> bool {
        self < Self::ZERO
    }
}

macro_rules! floats {
    ($($t:ty),+) => {$(
        impl Number for $t {
            type Sum = f64;
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LOWEST: Self = <$t>::NEG_INFINITY;
            const HIGHEST: Self = <$t>::INFINITY;
            const IS_INT: bool = false;
            const NO_SUM: f64 = 0.0;
            fn plus(self, other: Self) -> Self { self + other }
            fn minus(self, other: Self) -> Self { self - other }
            fn times(self, other: Self) -> Self { self * other }
            fn over(self, other: Self) -> Self { self / other }
            fn floor_over(self, other: Self) -> Self { (self / other).floor() }
            fn floor_rest(self, other: Self) -> Self {
                let rest = self % other;
                if rest != 0.0 && (rest < 0.0) != (other < 0.0) { rest + other } else { rest }
            }
            fn rest(self, other: Self) -> Self { self % other }
            fn power(self, other: Self) -> Self { self.powf(other) }
            fn negative(self) -> Self { -self }
            fn magnitude(self) -> Self { self.abs() }
            fn sign(self) -> Self {
                if self > 0.0 { 1.0 } else if self < 0.0 { -1.0 } else { self }
            }
            fn larger(self, other: Self) -> Self {
                if self > other || self.is_nan() { self } else { other }
            }
            fn smaller(self, other: Self) -> Self {
                if self < other || self.is_nan() { self } else { other }
            }
            fn add_to(self, sum: f64) -> f64 { sum + f64::from(self) }
            fn join(a: f64, b: f64) -> f64 { a + b }
            fn of_sum(sum: f64) -> Self { sum as $t }
            fn of_mean(sum: f64, count: usize) -> Self { (sum / count as f64) as $t }
            fn to_f64(self) -> f64 { f64::from(self) }
            fn of_f64(value: f64) -> Self { value as $t }
        }
    )+};
}

floats!(f32, f64);

macro_rules! ints {
    ($([$t:ty; $negative:expr; $magnitude:expr; $sign:expr; $floor:expr; $rest:expr; $fits:expr]),+ $(,)?) => {$(
        impl Number for $t {
            type Sum = $t;
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const LOWEST: Self = <$t>::MIN;
            const HIGHEST: Self = <$t>::MAX;
            const IS_INT: bool = true;
            const NO_SUM: $t = 0;
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
            fn minus(self, other: Self) -> Self { self.wrapping_sub(other) }
            fn times(self, other: Self) -> Self { self.wrapping_mul(other) }
            fn over(self, other: Self) -> Self { self.wrapping_div(other) }
            fn floor_over(self, other: Self) -> Self { $floor(self, other) }
            fn floor_rest(self, other: Self) -> Self { $rest(self, other) }
            fn rest(self, other: Self) -> Self { self.wrapping_rem(other) }
            fn power(self, other: Self) -> Self {
                let (mut base, mut left, mut power) = (self, other, 1 as $t);
                while left > 0 {
                    if left % 2 == 1 { power = power.wrapping_mul(base); }
                    base = base.wrapping_mul(base);
                    left /= 2;
                }
                power
            }
            fn negative(self) -> Self { $negative(self) }
            fn magnitude(self) -> Self { $magnitude(self) }
            fn sign(self) -> Self { $sign(self) }
            fn larger(self, other: Self) -> Self { self.max(other) }
            fn smaller(self, other: Self) -> Self { self.min(other) }
            fn add_to(self, sum: $t) -> $t { sum.wrapping_add(self) }
            fn join(a: $t, b: $t) -> $t { a.wrapping_add(b) }
            fn of_sum(sum: $t) -> Self { sum }
            fn of_mean(sum: $t, count: usize) -> Self {
                // A count that the type does not hold is past any sum that it holds.
                if count == 0 { 0 } else { $fits(count).map_or(0, |count: $t| sum.wrapping_div(count)) }
            }
            fn to_f64(self) -> f64 { self as f64 }
            fn of_f64(value: f64) -> Self { value as $t }
        }
    )+};
}

macro_rules! signed {
    ($($t:ty),+) => { ints!($([$t; <$t>::wrapping_neg; <$t>::wrapping_abs; <$t>::signum; |a: $t, b: $t| {
        let (quotient, rest) = (a.wrapping_div(b), a.wrapping_rem(b));
        if rest != 0 && (rest < 0) != (b < 0) { quotient - 1 } else { quotient }
    }; |a: $t, b: $t| {
        let rest = a.wrapping_rem(b);
        if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }
    }; |count: usize| <$t>::try_from(count).ok()]),+); };
}

macro_rules! unsigned {
    ($($t:ty),+) => { ints!($([$t; <$t>::wrapping_neg; std::convert::identity; |a: $t| a.min(1); |a: $t, b: $t| a / b;
        |a: $t, b: $t| a % b; |count: usize| <$t>::try_from(count).ok()]),+); };
}

signed!(i8, i16, i32, i64);
unsigned!(u8, u16, u32, u64);

/// Functions of real numbers.
pub(super) trait Real: Number + std::ops::Neg<Output = Self> {
    fn exp(self) -> Self;
    fn exp_m1(self) -> Self;
    fn ln(self) -> Self;
    fn ln_1p(self) -> Self;
    fn sqrt(self) -> Self;
    fn sin(self) -> Self;
    fn cos(self) -> Self;
    fn tan(self) -> Self;
    fn asin(self) -> Self;
    fn acos(self) -> Self;
    fn atan(self) -> Self;
    fn atan2(self, x: Self) -> Self;
    fn sinh(self) -> Self;
    fn cosh(self) -> Self;
    fn tanh(self) -> Self;
    fn asinh(self) -> Self;
    fn acosh(self) -> Self;
    fn atanh(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn round_even(self) -> Self;
    fn erf(self) -> Self;
    fn erfc(self) -> Self;
    fn lgamma(self) -> Self;
    fn is_nan(self) -> bool;
    fn is_infinite(self) -> bool;
    fn is_finite(self) -> bool;
}

macro_rules! reals {
    ($($t:ty, $erf:path, $erfc:path, $lgamma:path);+ $(;)?) => {$(
        impl Real for $t {
            fn exp(self) -> Self { self.exp() }
            fn exp_m1(self) -> Self { self.exp_m1() }
            fn ln(self) -> Self { self.ln() }
            fn ln_1p(self) -> Self { self.ln_1p() }
            fn sqrt(self) -> Self { self.sqrt() }
            fn sin(self) -> Self { self.sin() }
            fn cos(self) -> Self { self.cos() }
            fn tan(self) -> Self { self.tan() }
            fn asin(self) -> Self { self.asin() }
            fn acos(self) -> Self { self.acos() }
            fn atan(self) -> Self { self.atan() }
            fn atan2(self, x: Self) -> Self { self.atan2(x) }
            fn sinh(self) -> Self { self.sinh() }
            fn cosh(self) -> Self { self.cosh() }
            fn tanh(self) -> Self { self.tanh() }
            fn asinh(self) -> Self { self.asinh() }
            fn acosh(self) -> Self { self.acosh() }
            fn atanh(self) -> Self { self.atanh() }
            fn floor(self) -> Self { self.floor() }
            fn ceil(self) -> Self { self.ceil() }
            fn round_even(self) -> Self { self.round_ties_even() }
            fn erf(self) -> Self { $erf(self) }
            fn erfc(self) -> Self { $erfc(self) }
            fn lgamma(self) -> Self { $lgamma(self) }
            fn is_nan(self) -> bool { self.is_nan() }
            fn is_infinite(self) -> bool { self.is_infinite() }
            fn is_finite(self) -> bool { self.is_finite() }
        }
    )+};
}

reals! {
    f32, libm::erff, libm::erfcf, libm::lgammaf;
    f64, libm::erf, libm::erfc, libm::lgamma;
}
