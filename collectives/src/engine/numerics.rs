//! How floating-point reductions are computed, where more or less than the default is wanted.
//!
//! `u` is half the distance of 1 to the next number of a type: 2^-11 for f16, 2^-8 for bf16, 2^-24 for f32, 2^-53 for f64.
//! Of `n` ranks' elements `x`, a sum of the default kind differs from the true one by at most `(n - 1) * u * S / (1 - n * u)`
//! where `S` is the sum of all `|x|` (N. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2: the
//! bound holds for any order); an average has one rounding more. What a choice makes of that stands at it. All bounds are
//! for results that do not overflow and are not subnormal.

#![forbid(unsafe_code)]

use super::plan::Request;
use crate::reduce::ReduceOp;
use ringway_dataplane::memory::DType;

/// How reductions of floating-point numbers are computed and sent. All ranks of a communicator must choose alike; where
/// they do not, the first reduction that differs is a mismatch, which shows both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Numerics {
    /// Results are `((x0 op x1) op x2) op ...` in the order of ranks, for every element: the same bits whichever algorithm
    /// is asked for, wherever the ranks run, and however a vector is split into calls. Without it results are the same bits
    /// from run to run, for the same ranks, places, algorithm and length.
    ///
    /// It costs the choice of algorithms: sums, products and averages of floats, and functions of users, go from every rank
    /// to every other where they are short ([`Algorithm::Exchange`](crate::schedule::Algorithm)), else up and down the chain
    /// of ranks ([`Algorithm::Chain`](crate::schedule::Algorithm)), whose latency grows with the number of ranks. What no
    /// order can change (integers, minima, maxima, bits) runs as ever.
    pub reproducible: bool,
    /// f16 and bf16 are added, multiplied and averaged in f32, which is also what travels: twice the bytes, one rounding at
    /// the end instead of one per combine. A sum is then off by at most `u` of the result and `n * 2^-24 * S`.
    pub half_in_f32: bool,
    /// f32 sums, products and averages travel and are combined as bf16: half the bytes. A sum is off by at most
    /// `(n + 1) * 2^-8 * S`, for an average the same over `n`. Never a default; meant for gradients. Values beyond bf16's
    /// range (3.39e38) become infinite.
    pub f32_in_bf16: bool,
}

impl Numerics {
    /// What a request's elements travel as, where that is another type than its own.
    pub(super) fn wire(&self, request: &Request) -> Option<DType> {
        let rounds = matches!(request.op, Some(ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Avg));
        match request.dtype? {
            DType::F16 | DType::Bf16 if rounds && self.half_in_f32 => Some(DType::F32),
            DType::F32 if rounds && self.f32_in_bf16 => Some(DType::Bf16),
            _ => None,
        }
    }

    /// Whether a request's operands must be combined one after the other, in the order of ranks.
    pub(super) fn in_sequence(&self, request: &Request) -> bool {
        let rounds = matches!(request.op, Some(ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Avg))
            && request.dtype.is_some_and(|d| d.is_float());
        self.reproducible && (rounds || request.function.is_some())
    }
}
