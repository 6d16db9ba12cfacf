//! The reduction operations, by name and wire code.
#![forbid(unsafe_code)]

use ringway_dataplane::memory::DType;
use std::fmt;

/// How the elements of two ranks become one.
///
/// The discriminant is the wire code of the operation (one byte in a call's fingerprint); codes are never
/// reused. Every operation gives the same bits whichever operand stands left (see [`crate::reduce`], I1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ReduceOp {
    /// `a + b`; integers wrap.
    Sum = 1,
    /// `a * b`; integers wrap.
    Prod = 2,
    /// The smaller one. Floats: IEEE 754-2019 `minimum`: NaN wins, and -0 is less than +0. Booleans: and.
    Min = 3,
    /// The larger one. Floats: IEEE 754-2019 `maximum`: NaN wins, and -0 is less than +0. Booleans: or.
    Max = 4,
    /// The sum divided by the number of ranks, once, at the end (see [`crate::reduce::finish`]).
    Avg = 5,
    /// Bitwise and of integers, logical and of booleans.
    And = 6,
    /// Bitwise or of integers, logical or of booleans.
    Or = 7,
    /// Bitwise exclusive or of integers, logical exclusive or of booleans.
    Xor = 8,
}

impl ReduceOp {
    /// Every operation, in the order of their wire codes.
    pub const ALL: [ReduceOp; 8] = [
        ReduceOp::Sum,
        ReduceOp::Prod,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Avg,
        ReduceOp::And,
        ReduceOp::Or,
        ReduceOp::Xor,
    ];

    /// The name that tables and error messages print, e.g. `sum` (the names of nccl-tests, and and/or/xor).
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Prod => "prod",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Avg => "avg",
            ReduceOp::And => "and",
            ReduceOp::Or => "or",
            ReduceOp::Xor => "xor",
        }
    }

    /// The operation with this wire code, or `None`.
    pub fn from_code(code: u8) -> Option<ReduceOp> {
        ReduceOp::ALL.into_iter().find(|op| *op as u8 == code)
    }

    /// Whether the operation is defined on elements of this type.
    ///
    /// Numbers: sum, prod, min, max, avg. Integers also: and, or, xor. Booleans, after MPI's logical
    /// operations: and, or, xor, min (the same as and), max (the same as or), and no sum, prod or avg.
    pub const fn supports(self, dtype: DType) -> bool {
        match self {
            ReduceOp::Min | ReduceOp::Max => true,
            ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Avg => !matches!(dtype, DType::Bool),
            ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => !dtype.is_float(),
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for ReduceOp {
    type Err = UnknownReduceOp;

    fn from_str(s: &str) -> Result<ReduceOp, UnknownReduceOp> {
        ReduceOp::ALL.into_iter().find(|op| op.name() == s).ok_or_else(|| UnknownReduceOp(s.to_owned()))
    }
}

/// A name that is no reduction.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no reduction: use sum, prod, min, max, avg, and, or, xor")]
pub struct UnknownReduceOp(pub String);
