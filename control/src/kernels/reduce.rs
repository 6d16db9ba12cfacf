//! Many elements as one, along dimensions. Sums of floats are kept in `f64`.

use ringway_dataplane::memory::Bool;
use ringway_proto::tensorflow::DataType;

use super::contract::{Call, OpError};
use super::dispatch::{Built, by_number, by_type, dimension, integer, integers, kernel, widened};
use super::number::Number;
use super::registry::Family;
use crate::core::graph::Node;
use crate::tensor::{Scalar, Shape, Tensor, Writer};

/// Operations of this family.
pub(super) const OPS: Family = &[
    ("Sum", sum),
    ("Mean", mean),
    ("Prod", prod),
    ("Max", max),
    ("Min", min),
    ("All", all),
    ("Any", any),
    ("EuclideanNorm", euclidean_norm),
    ("ArgMax", arg_max),
    ("ArgMin", arg_min),
    ("Cumsum", cumsum),
    ("Cumprod", cumprod),
    ("L2Loss", l2_loss),
    ("AddN", add_n),
    ("AccumulateNV2", add_n),
];

/// Partial sums that are kept at a time, so that neighbours do not wait for each other.
const LANES: usize = 8;

/// A value as dimensions that are kept and dimensions that go, each joined with equal neighbours.
struct Plan {
    /// Sizes, outermost first, and whether each goes.
    joined: Vec<(usize, bool)>,
    /// Shape of the result.
    shape: Shape,
    /// Elements of the result.
    kept: usize,
    /// Elements that each of them is made from.
    gone: usize,
}

impl Plan {
    fn of(call: &Call<'_>, keep_dims: bool) -> Result<Plan, OpError> {
        let tensor = call.tensor(0)?;
        let sizes = tensor.shape();
        let mut goes = vec![false; sizes.rank()];
        for dim in integers(&call.tensor(1)?)? {
            let at = dimension(dim, sizes.rank(), "Invalid reduction dimension")?;
            if std::mem::replace(&mut goes[at], true) {
                return Err(OpError::invalid(format!(
                    "Invalid reduction arguments: Axes contains duplicate dimension: {at}"
                )));
            }
        }
        let mut out = Vec::new();
        let mut joined: Vec<(usize, bool)> = Vec::new();
        let (mut kept, mut gone) = (1, 1);
        for (size, goes) in sizes.iter().copied().zip(goes) {
            match (goes, keep_dims) {
                (true, true) => out.push(1),
                (true, false) => {}
                (false, _) => out.push(size),
            }
            *(if goes { &mut gone } else { &mut kept }) *= size;
            match joined.last_mut() {
                Some((inner, same)) if *same == goes => *inner *= size,
                _ => joined.push((size, goes)),
            }
        }
        Ok(Plan { joined, shape: Shape::new(&out)?, kept, gone })
    }

    /// Walks the elements in order, in runs along the innermost joined dimension: `run(at, to, len, goes)`: elements
    /// `at..at + len` go into result `to`, or into `to..to + len`.
    fn runs(&self, mut run: impl FnMut(usize, usize, usize, bool)) {
        let (len, goes) = self.joined.last().copied().unwrap_or((1, true));
        let outer = &self.joined[..self.joined.len().saturating_sub(1)];
        if self.kept == 0 || self.gone == 0 {
            return;
        }
        // How far the result moves along each outer dimension.
        let mut steps = vec![0; outer.len()];
        let mut step = if goes { 1 } else { len };
        for (dim, (size, goes)) in outer.iter().enumerate().rev() {
            if !goes {
                steps[dim] = step;
                step *= size;
            }
        }
        let mut index = vec![0; outer.len()];
        let (mut at, mut to) = (0, 0);
        loop {
            run(at, to, len, goes);
            at += len;
            let mut dim = outer.len();
            loop {
                let Some(next) = dim.checked_sub(1) else { return };
                dim = next;
                index[dim] += 1;
                to += steps[dim];
                if index[dim] < outer[dim].0 {
                    break;
                }
                to -= steps[dim] * outer[dim].0;
                index[dim] = 0;
            }
        }
    }

    /// Folds all elements into accumulators that begin as `none`.
    fn fold<T: Scalar, A: Copy>(
        &self,
        elements: &[T],
        none: A,
        add: impl Fn(A, T) -> A + Copy,
        join: impl Fn(A, A) -> A + Copy,
    ) -> Vec<A> {
        let mut all = vec![none; self.kept];
        self.runs(|at, to, len, goes| {
            let run = &elements[at..at + len];
            if goes {
                all[to] = join(all[to], folded(run, none, add, join));
            } else {
                all[to..to + len].iter_mut().zip(run).for_each(|(to, from)| *to = add(*to, *from));
            }
        });
        all
    }
}

/// One run as one, in lanes whose order does not depend on anything but the length (K4).
fn folded<T: Copy, A: Copy>(
    run: &[T],
    none: A,
    add: impl Fn(A, T) -> A + Copy,
    join: impl Fn(A, A) -> A + Copy,
) -> A {
    let mut lanes = [none; LANES];
    let whole = run.chunks_exact(LANES);
    let rest = whole.remainder();
    for chunk in whole {
        lanes.iter_mut().zip(chunk).for_each(|(lane, value)| *lane = add(*lane, *value));
    }
    let all = lanes.into_iter().fold(none, join);
    rest.iter().fold(all, |all, value| add(all, *value))
}

/// Folds an input along the dimensions that the other one names.
fn reduce<T: Scalar, A: Copy, R: Scalar>(
    call: &mut Call<'_>,
    keep_dims: bool,
    none: A,
    add: impl Fn(A, T) -> A + Copy,
    join: impl Fn(A, A) -> A + Copy,
    finish: impl Fn(A, usize) -> R,
) -> Result<(), OpError> {
    let (plan, tensor) = (Plan::of(call, keep_dims)?, call.tensor(0)?);
    let mut out = Writer::new(R::DTYPE, plan.shape.clone())?;
    let all = plan.fold(tensor.as_slice::<T>()?, none, add, join);
    out.elements_mut::<R>()?.iter_mut().zip(all).for_each(|(out, all)| *out = finish(all, plan.gone));
    call.set(0, out.freeze())
}

fn sum(node: &Node) -> Built {
    widened(node, |node| {
        let keep = node.attrs.bool("keep_dims")?;
        by_number!(node, "T", T => kernel(move |call| {
            reduce::<T, _, T>(call, keep, T::NO_SUM, |sum, x| x.add_to(sum), T::join, |sum, _| T::of_sum(sum))
        }))
    })
}

fn mean(node: &Node) -> Built {
    widened(node, |node| {
        let keep = node.attrs.bool("keep_dims")?;
        by_number!(node, "T", T => kernel(move |call| {
            reduce::<T, _, T>(call, keep, T::NO_SUM, |sum, x| x.add_to(sum), T::join, T::of_mean)
        }))
    })
}

fn prod(node: &Node) -> Built {
    widened(node, |node| {
        let keep = node.attrs.bool("keep_dims")?;
        by_number!(node, "T", T => kernel(move |call| {
            reduce::<T, T, T>(call, keep, T::ONE, Number::times, Number::times, |all, _| all)
        }))
    })
}

fn max(node: &Node) -> Built {
    widened(node, |node| {
        let keep = node.attrs.bool("keep_dims")?;
        by_number!(node, "T", T => kernel(move |call| {
            reduce::<T, T, T>(call, keep, T::LOWEST, Number::larger, Number::larger, |all, _| all)
        }))
    })
}

fn min(node: &Node) -> Built {
    widened(node, |node| {
        let keep = node.attrs.bool("keep_dims")?;
        by_number!(node, "T", T => kernel(move |call| {
            reduce::<T, T, T>(call, keep, T::HIGHEST, Number::smaller, Number::smaller, |all, _| all)
        }))
    })
}

fn all(node: &Node) -> Built {
    let keep = node.attrs.bool("keep_dims")?;
    kernel(move |call| {
        let and = |a, b| a && b;
        reduce::<Bool, bool, Bool>(call, keep, true, |all, x| all && x.get(), and, |all, _| all.into())
    })
}

fn any(node: &Node) -> Built {
    let keep = node.attrs.bool("keep_dims")?;
    kernel(move |call| {
        let or = |a, b| a || b;
        reduce::<Bool, bool, Bool>(call, keep, false, |any, x| any || x.get(), or, |any, _| any.into())
    })
}

fn euclidean_norm(node: &Node) -> Built {
    widened(node, |node| {
        let keep = node.attrs.bool("keep_dims")?;
        by_number!(node, "T", T => kernel(move |call| {
            let square = |sum: f64, x: T| sum + x.to_f64() * x.to_f64();
            reduce::<T, f64, T>(call, keep, 0.0, square, |a, b| a + b, |sum, _| T::of_f64(sum.sqrt()))
        }))
    })
}

fn arg_max(node: &Node) -> Built {
    extreme(node, true)
}

fn arg_min(node: &Node) -> Built {
    extreme(node, false)
}

/// The first place of the largest, or smallest, element along a dimension.
fn extreme(node: &Node, largest: bool) -> Built {
    let out = node.attrs.dtype("output_type")?;
    if !matches!(out, DataType::DtInt32 | DataType::DtInt64) {
        return Err(node.attrs.wrong("output_type", "is neither int32 nor int64").into());
    }
    let by: super::registry::Builder = if largest { places::<true> } else { places::<false> };
    widened(node, by)
}

fn places<const LARGEST: bool>(node: &Node) -> Built {
    let index_type = node.attrs.dtype("output_type")?;
    by_type!(node, "T", [DtFloat f32, DtDouble f64, DtInt32 i32, DtInt64 i64, DtInt16 i16, DtInt8 i8, DtUint8 u8,
        DtUint16 u16, DtUint32 u32, DtUint64 u64], T => kernel(move |call| {
        let (tensor, dim) = (call.tensor(0)?, integer(&call.tensor(1)?, "dim")?);
        let axis = dimension(dim, tensor.shape().rank(), "Expected dimension")?;
        let mut sizes = tensor.shape().to_vec();
        let size = sizes.remove(axis);
        let shape = Shape::new(&sizes)?;
        if size == 0 && shape.elements() > 0 {
            let message = format!("Reduction axis {axis} is empty in shape {}", tensor.shape());
            return Err(OpError::invalid(message));
        }
        let inner = tensor.shape().product(axis + 1..);
        let elements = tensor.as_slice::<T>()?;
        let mut best = Vec::with_capacity(shape.elements());
        for at in 0..shape.elements() {
            let first = at / inner * size * inner + at % inner;
            let (mut place, mut value) = (0, elements[first]);
            for step in 1..size {
                let next = elements[first + step * inner];
                if if LARGEST { next > value } else { next < value } {
                    (place, value) = (step, next);
                }
            }
            best.push(place);
        }
        call.set(0, super::dispatch::index_vector(&best, index_type)?.with_shape(shape)?)
    }))
}

fn cumsum(node: &Node) -> Built {
    widened(node, |node| {
        let (exclusive, reverse) = (node.attrs.bool("exclusive")?, node.attrs.bool("reverse")?);
        by_number!(node, "T", T => kernel(move |call| running::<T>(call, [exclusive, reverse], T::ZERO, Number::plus)))
    })
}

fn cumprod(node: &Node) -> Built {
    widened(node, |node| {
        let (exclusive, reverse) = (node.attrs.bool("exclusive")?, node.attrs.bool("reverse")?);
        by_number!(node, "T", T => kernel(move |call| running::<T>(call, [exclusive, reverse], T::ONE, Number::times)))
    })
}

/// Along a dimension, each element combined with all before it.
fn running<T: Scalar>(
    call: &mut Call<'_>,
    [exclusive, reverse]: [bool; 2],
    none: T,
    f: impl Fn(T, T) -> T,
) -> Result<(), OpError> {
    let (tensor, axis) = (call.take(0)?, integer(&call.tensor(1)?, "axis")?);
    let axis = dimension(axis, tensor.shape().rank(), "ScanOp: Expected scan axis")?;
    let (size, inner) = (tensor.shape()[axis], tensor.shape().product(axis + 1..));
    let outer = tensor.shape().product(..axis);
    let mut out = tensor.into_writer_or_copy()?;
    let elements = out.elements_mut::<T>()?;
    for row in 0..outer * inner {
        let first = row / inner * size * inner + row % inner;
        let mut so_far = none;
        for step in 0..size {
            let at = first + if reverse { size - 1 - step } else { step } * inner;
            let with = f(so_far, elements[at]);
            elements[at] = if exclusive { so_far } else { with };
            so_far = with;
        }
    }
    call.set(0, out.freeze())
}

fn l2_loss(node: &Node) -> Built {
    widened(node, |node| {
        by_type!(node, "T", [DtFloat f32, DtDouble f64], T => kernel(|call| {
            let tensor = call.tensor(0)?;
            let square = |sum: f64, x: T| sum + x.to_f64() * x.to_f64();
            let sum = folded(tensor.as_slice::<T>()?, 0.0, square, |a, b| a + b);
            call.set(0, Tensor::scalar((sum / 2.0) as T)?)
        }))
    })
}

fn add_n(node: &Node) -> Built {
    if node.attrs.dtype("T")? == DataType::DtVariant {
        return kernel(super::list::add_lists);
    }
    widened(node, |node| {
        by_number!(node, "T", T => kernel(|call| {
            let mut sum = call.take(0)?;
            for index in 1..call.inputs() {
                let next = call.take(index)?;
                if next.shape() != sum.shape() {
                    let (a, b) = (sum.shape(), next.shape());
                    return Err(OpError::invalid(format!("Inputs to operation of type AddN must have the same size and shape. Input 0: {a} != input {index}: {b}")));
                }
                sum = super::binary::combine::<T>(sum, next, Number::plus)?;
            }
            call.set(0, sum)
        }))
    })
}
