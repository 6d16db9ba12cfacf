//! Which path this processor takes, found out once.

use super::kernels::Operands;
use super::op::ReduceOp;
use super::portable;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use ringway_dataplane::memory::DType;
use std::fmt;
use std::sync::OnceLock;

/// An instruction set that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelPath {
    /// The baseline of the architecture: SSE2 on x86-64, NEON on aarch64.
    Portable,
    /// AVX2 and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl KernelPath {
    /// Every path, slowest first.
    pub const ALL: [KernelPath; 3] = [KernelPath::Portable, KernelPath::Avx2, KernelPath::Avx512];

    /// The name that `doctor` prints, e.g. `avx512`.
    pub const fn name(self) -> &'static str {
        match self {
            KernelPath::Portable => "portable",
            KernelPath::Avx2 => "avx2",
            KernelPath::Avx512 => "avx512",
        }
    }

    /// Whether this processor and operating system can run the path.
    pub fn is_available(self) -> bool {
        match self {
            KernelPath::Portable => true,
            #[cfg(target_arch = "x86_64")]
            KernelPath::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            #[cfg(target_arch = "x86_64")]
            KernelPath::Avx512 => {
                KernelPath::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(not(target_arch = "x86_64"))]
            KernelPath::Avx2 | KernelPath::Avx512 => false,
        }
    }
}

impl fmt::Display for KernelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Why bytes were not reduced. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReduceError {
    /// The operation has no meaning on the type.
    #[error("{op} is not defined on {dtype}: {}", remedy(*.op))]
    Unsupported {
        /// The operation asked for.
        op: ReduceOp,
        /// The type of the elements.
        dtype: DType,
    },
    /// Slices of unequal length, or a length that is no whole number of elements.
    #[error("{op} of {dtype}: lengths of {acc} and {incoming} bytes must be equal, and multiples of {}", .dtype.size())]
    Length {
        /// The operation asked for.
        op: ReduceOp,
        /// The type of the elements.
        dtype: DType,
        /// Length of the slice to be written, in bytes.
        acc: usize,
        /// Length of the slice that disagrees with it, in bytes.
        incoming: usize,
    },
    /// An average over no ranks.
    #[error("an average needs at least one rank")]
    NoRanks,
}

const fn remedy(op: ReduceOp) -> &'static str {
    match op {
        ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => "use it on integers or bool",
        _ => "use and, or, xor, min or max on bool",
    }
}

/// The kernels of one path that this processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernels {
    /// I3: available on this processor; only `on` and `best` make one.
    path: KernelPath,
}

impl Kernels {
    /// The kernels of a given path, or `None` where the processor lacks it.
    pub fn on(path: KernelPath) -> Option<Kernels> {
        path.is_available().then_some(Kernels { path })
    }

    /// The fastest kernels of this processor, found out at the first call.
    pub fn best() -> Kernels {
        static BEST: OnceLock<Kernels> = OnceLock::new();
        *BEST.get_or_init(|| {
            let fastest = KernelPath::ALL.into_iter().rev().find_map(Kernels::on);
            fastest.unwrap_or(Kernels { path: KernelPath::Portable })
        })
    }

    /// The path taken.
    pub fn path(self) -> KernelPath {
        self.path
    }

    /// As [`combine`](super::combine), on this path.
    pub fn combine(
        self,
        op: ReduceOp,
        dtype: DType,
        acc: &mut [u8],
        incoming: &[u8],
    ) -> Result<(), ReduceError> {
        check(op, dtype, acc.len(), incoming.len())?;
        self.run(op, dtype, Operands::InPlace { acc, incoming });
        Ok(())
    }

    /// As [`combine_into`](super::combine_into), on this path.
    pub fn combine_into(
        self,
        op: ReduceOp,
        dtype: DType,
        out: &mut [u8],
        left: &[u8],
        right: &[u8],
    ) -> Result<(), ReduceError> {
        check(op, dtype, out.len(), left.len())?;
        check(op, dtype, out.len(), right.len())?;
        self.run(op, dtype, Operands::Into { out, left, right });
        Ok(())
    }

    /// As [`finish`](super::finish), on this path.
    pub fn finish(self, op: ReduceOp, dtype: DType, bytes: &mut [u8], ranks: u32) -> Result<(), ReduceError> {
        check(op, dtype, bytes.len(), bytes.len())?;
        if op != ReduceOp::Avg {
            return Ok(());
        }
        if ranks == 0 {
            return Err(ReduceError::NoRanks);
        }
        match self.path {
            KernelPath::Portable => portable::average(dtype, bytes, ranks),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: by I3 the processor has AVX2 and F16C.
            KernelPath::Avx2 => unsafe { avx2::average(dtype, bytes, ranks) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: by I3 the processor has AVX-512 F, BW, DQ and VL.
            KernelPath::Avx512 => unsafe { avx512::average(dtype, bytes, ranks) },
            #[cfg(not(target_arch = "x86_64"))]
            KernelPath::Avx2 | KernelPath::Avx512 => unreachable!("I3: not available here"),
        }
        Ok(())
    }

    fn run(self, op: ReduceOp, dtype: DType, operands: Operands<'_>) {
        match self.path {
            KernelPath::Portable => portable::combine(op, dtype, operands),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: by I3 the processor has AVX2 and F16C.
            KernelPath::Avx2 => unsafe { avx2::combine(op, dtype, operands) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: by I3 the processor has AVX-512 F, BW, DQ and VL.
            KernelPath::Avx512 => unsafe { avx512::combine(op, dtype, operands) },
            #[cfg(not(target_arch = "x86_64"))]
            KernelPath::Avx2 | KernelPath::Avx512 => unreachable!("I3: not available here"),
        }
    }
}

fn check(op: ReduceOp, dtype: DType, acc: usize, incoming: usize) -> Result<(), ReduceError> {
    if !op.supports(dtype) {
        return Err(ReduceError::Unsupported { op, dtype });
    }
    if acc != incoming || !acc.is_multiple_of(dtype.size()) {
        return Err(ReduceError::Length { op, dtype, acc, incoming });
    }
    Ok(())
}
