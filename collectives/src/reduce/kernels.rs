//! The loops, written once, and the macro that compiles them for one instruction set.
#![forbid(unsafe_code)]

use super::element::Wire;

/// The operands of one combine: two slices, or three.
pub(super) enum Operands<'a> {
    /// `acc = acc op incoming`.
    InPlace { acc: &'a mut [u8], incoming: &'a [u8] },
    /// `out = left op right`.
    Into { out: &'a mut [u8], left: &'a [u8], right: &'a [u8] },
}

impl<'a> Operands<'a> {
    /// The longest front part that is a multiple of `bytes`, and the rest.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn split(self, bytes: usize) -> (Operands<'a>, Operands<'a>) {
        match self {
            Operands::InPlace { acc, incoming } => {
                let at = acc.len() - acc.len() % bytes;
                let (acc, acc_rest) = acc.split_at_mut(at);
                let (incoming, incoming_rest) = incoming.split_at(at);
                let rest = Operands::InPlace { acc: acc_rest, incoming: incoming_rest };
                (Operands::InPlace { acc, incoming }, rest)
            }
            Operands::Into { out, left, right } => {
                let at = out.len() - out.len() % bytes;
                let (out, out_rest) = out.split_at_mut(at);
                let (left, left_rest) = left.split_at(at);
                let (right, right_rest) = right.split_at(at);
                let rest = Operands::Into { out: out_rest, left: left_rest, right: right_rest };
                (Operands::Into { out, left, right }, rest)
            }
        }
    }
}

/// `acc[i] = f(acc[i], incoming[i])`. The slices are byte arrays of alignment 1: any address will do.
#[inline(always)]
pub(super) fn in_place<T: Wire<N>, const N: usize>(acc: &mut [u8], incoming: &[u8], f: impl Fn(T, T) -> T) {
    for (a, b) in acc.as_chunks_mut::<N>().0.iter_mut().zip(incoming.as_chunks::<N>().0) {
        *a = f(T::load(*a), T::load(*b)).store();
    }
}

/// `out[i] = f(left[i], right[i])`.
#[inline(always)]
pub(super) fn into<T: Wire<N>, const N: usize>(
    out: &mut [u8],
    left: &[u8],
    right: &[u8],
    f: impl Fn(T, T) -> T,
) {
    let inputs = left.as_chunks::<N>().0.iter().zip(right.as_chunks::<N>().0);
    for (o, (a, b)) in out.as_chunks_mut::<N>().0.iter_mut().zip(inputs) {
        *o = f(T::load(*a), T::load(*b)).store();
    }
}

/// `bytes[i] = f(bytes[i])`.
#[inline(always)]
pub(super) fn each<T: Wire<N>, const N: usize>(bytes: &mut [u8], f: impl Fn(T) -> T) {
    for x in bytes.as_chunks_mut::<N>().0 {
        *x = f(T::load(*x)).store();
    }
}

/// Compiles `combine` and `average` for one instruction set: every function gets the given attributes, and
/// the loops above are inlined into them. The module gives `combine_f16` and `average_f16` itself, as some processors
/// convert that type by an instruction that no compiler finds by itself, and `wide`, the operations of f32 and f64: `float`,
/// unless NaN are found quicker another way.
macro_rules! kernels {
    ($(#[$set:meta])*) => {
        use super::element::{Bits, Number, Ordered, Wire};
        use super::kernels::{self, Operands};
        use super::op::ReduceOp;
        use half::{bf16, f16};
        use ringway_dataplane::memory::{Bool, DType};

        // Own functions, not inlined: their slices are parameters, which are known not to overlap.
        $(#[$set])*
        fn in_place<T: Wire<N>, const N: usize>(acc: &mut [u8], incoming: &[u8], f: impl Fn(T, T) -> T) {
            kernels::in_place::<T, N>(acc, incoming, f);
        }

        $(#[$set])*
        fn into<T: Wire<N>, const N: usize>(
            out: &mut [u8],
            left: &[u8],
            right: &[u8],
            f: impl Fn(T, T) -> T,
        ) {
            kernels::into::<T, N>(out, left, right, f);
        }

        $(#[$set])*
        fn each<T: Wire<N>, const N: usize>(bytes: &mut [u8], f: impl Fn(T) -> T) {
            kernels::each::<T, N>(bytes, f);
        }

        $(#[$set])*
        fn zip<T: Wire<N>, const N: usize>(operands: Operands<'_>, f: impl Fn(T, T) -> T) {
            match operands {
                Operands::InPlace { acc, incoming } => in_place::<T, N>(acc, incoming, f),
                Operands::Into { out, left, right } => into::<T, N>(out, left, right, f),
            }
        }

        $(#[$set])*
        fn float<T: Wire<N> + Ordered + Number, const N: usize>(op: ReduceOp, operands: Operands<'_>) {
            match op {
                ReduceOp::Sum | ReduceOp::Avg => zip::<T, N>(operands, |a, b| T::sum(a, b)),
                ReduceOp::Prod => zip::<T, N>(operands, |a, b| T::prod(a, b)),
                ReduceOp::Min => zip::<T, N>(operands, |a, b| T::min(a, b)),
                ReduceOp::Max => zip::<T, N>(operands, |a, b| T::max(a, b)),
                ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => unreachable!("refused by `supports`"),
            }
        }

        $(#[$set])*
        fn integer<T: Wire<N> + Ordered + Number + Bits, const N: usize>(
            op: ReduceOp,
            operands: Operands<'_>,
        ) {
            match op {
                ReduceOp::Sum | ReduceOp::Avg => zip::<T, N>(operands, |a, b| T::sum(a, b)),
                ReduceOp::Prod => zip::<T, N>(operands, |a, b| T::prod(a, b)),
                ReduceOp::Min => zip::<T, N>(operands, |a, b| T::min(a, b)),
                ReduceOp::Max => zip::<T, N>(operands, |a, b| T::max(a, b)),
                ReduceOp::And => zip::<T, N>(operands, |a, b| T::and(a, b)),
                ReduceOp::Or => zip::<T, N>(operands, |a, b| T::or(a, b)),
                ReduceOp::Xor => zip::<T, N>(operands, |a, b| T::xor(a, b)),
            }
        }

        $(#[$set])*
        fn truth(op: ReduceOp, operands: Operands<'_>) {
            match op {
                ReduceOp::And | ReduceOp::Min => zip::<Bool, 1>(operands, |a, b| Bool::and(a, b)),
                ReduceOp::Or | ReduceOp::Max => zip::<Bool, 1>(operands, |a, b| Bool::or(a, b)),
                ReduceOp::Xor => zip::<Bool, 1>(operands, |a, b| Bool::xor(a, b)),
                ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Avg => unreachable!("refused by `supports`"),
            }
        }

        /// Combines operands of equal length, a multiple of the type's size, where `op` supports `dtype`.
        $(#[$set])*
        pub(super) fn combine(op: ReduceOp, dtype: DType, operands: Operands<'_>) {
            match dtype {
                DType::F16 => combine_f16(op, operands),
                DType::Bf16 => float::<bf16, 2>(op, operands),
                DType::F32 => wide::<f32, 4>(op, operands),
                DType::F64 => wide::<f64, 8>(op, operands),
                DType::I8 => integer::<i8, 1>(op, operands),
                DType::I16 => integer::<i16, 2>(op, operands),
                DType::I32 => integer::<i32, 4>(op, operands),
                DType::I64 => integer::<i64, 8>(op, operands),
                DType::U8 => integer::<u8, 1>(op, operands),
                DType::U16 => integer::<u16, 2>(op, operands),
                DType::U32 => integer::<u32, 4>(op, operands),
                DType::U64 => integer::<u64, 8>(op, operands),
                DType::Bool => truth(op, operands),
            }
        }

        /// Divides every element by `ranks`, at least 1.
        $(#[$set])*
        pub(super) fn average(dtype: DType, bytes: &mut [u8], ranks: u32) {
            match dtype {
                DType::F16 => average_f16(bytes, ranks),
                DType::Bf16 => each::<bf16, 2>(bytes, |x| x.over(ranks)),
                DType::F32 => each::<f32, 4>(bytes, |x| x.over(ranks)),
                DType::F64 => each::<f64, 8>(bytes, |x| x.over(ranks)),
                DType::I8 => each::<i8, 1>(bytes, |x| x.over(ranks)),
                DType::I16 => each::<i16, 2>(bytes, |x| x.over(ranks)),
                DType::I32 => each::<i32, 4>(bytes, |x| x.over(ranks)),
                DType::I64 => each::<i64, 8>(bytes, |x| x.over(ranks)),
                DType::U8 => each::<u8, 1>(bytes, |x| x.over(ranks)),
                DType::U16 => each::<u16, 2>(bytes, |x| x.over(ranks)),
                DType::U32 => each::<u32, 4>(bytes, |x| x.over(ranks)),
                DType::U64 => each::<u64, 8>(bytes, |x| x.over(ranks)),
                DType::Bool => unreachable!("refused by `supports`"),
            }
        }
    };
}
pub(super) use kernels;
