//! Reduction kernels: every operation on every type, at any alignment, the same bits on every processor.
//!
//! The kernels work on bytes, as that is what arrives from a network: no slice need be aligned.
//!
//! Invariants:
//! - I1 (symmetry): `a op b` and `b op a` are the same bits. No operation needs to be told whose operand
//!   stands left, and two ranks that exchange and combine agree. Floats pay for it with one select, or
//!   a second pass over a block that has one: a NaN result is always the quiet NaN of the type, positive and without
//!   payload, since which payload survives an addition is up to the processor. Floating-point sums and products still depend on how operands are
//!   grouped, which a schedule fixes.
//! - I2 (one arithmetic): all paths give the same bits, x86-64 or aarch64, vectors or scalars.
//! - I3 (available): a path is only entered on a processor that has it.
//!
//! f16 and bf16 are computed in f32 and rounded once per combine, to nearest even; this equals the exactly
//! rounded sum. Integers wrap.

mod dispatch;
mod element;
mod half;
mod kernels;
mod op;
mod portable;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

pub use dispatch::{KernelPath, Kernels, ReduceError};
pub use op::{ReduceOp, UnknownReduceOp};

use ringway_dataplane::memory::DType;

/// `acc[i] = acc[i] op incoming[i]`, in the machine's byte order. [`ReduceOp::Avg`] adds, as
/// [`ReduceOp::Sum`] does, and leaves the division to [`finish`].
///
/// Both slices have the same length in bytes, a multiple of the type's size, and any alignment.
///
/// # Errors
/// Where `op` does not [support](ReduceOp::supports) `dtype`, and where lengths are unequal or not a whole
/// number of elements. `acc` is then as it was.
pub fn combine(op: ReduceOp, dtype: DType, acc: &mut [u8], incoming: &[u8]) -> Result<(), ReduceError> {
    Kernels::best().combine(op, dtype, acc, incoming)
}

/// `out[i] = left[i] op right[i]`, which saves the copy before a [`combine`]. Otherwise the same.
///
/// # Errors
/// As [`combine`]; `out` is then as it was.
pub fn combine_into(
    op: ReduceOp,
    dtype: DType,
    out: &mut [u8],
    left: &[u8],
    right: &[u8],
) -> Result<(), ReduceError> {
    Kernels::best().combine_into(op, dtype, out, left, right)
}

/// What is left to do once all ranks are combined: for [`ReduceOp::Avg`], every element is divided by
/// `ranks`; for the others, nothing.
///
/// Floats are divided and rounded once (f16 and bf16 in f32). Integers are divided with truncation towards
/// zero, as NCCL does, after a sum that wraps. The sum comes first, so an average of large values can
/// overflow where the mean itself would not.
///
/// # Errors
/// As [`combine`], and for an average where `ranks` is 0. `bytes` is then as it was.
pub fn finish(op: ReduceOp, dtype: DType, bytes: &mut [u8], ranks: u32) -> Result<(), ReduceError> {
    Kernels::best().finish(op, dtype, bytes, ranks)
}

/// The name of the path that this processor takes, e.g. `avx512`, for `ringway doctor`.
pub fn kernel_name() -> &'static str {
    Kernels::best().path().name()
}

#[cfg(test)]
mod tests;
