//! Elements by index: gathered, scattered, selected.

use ringway_dataplane::memory::Bool;
use ringway_proto::tensorflow::DataType;

use super::broadcast::Broadcast;
use super::contract::OpError;
use super::dispatch::{Built, by_index, by_number, by_type, dimension, integer, integers, kernel, widened};
use super::join::element_bytes;
use super::number::Number;
use super::registry::Family;
use super::shapes::shape_input;
use super::walk::blank;
use crate::core::graph::Node;
use crate::tensor::{Scalar, Shape, Tensor, Writer};

/// Operations of this family.
pub(super) const OPS: Family = &[
    ("Gather", gather),
    ("GatherV2", gather_v2),
    ("GatherNd", gather_nd),
    ("ScatterNd", scatter_nd),
    ("TensorScatterUpdate", tensor_scatter_update),
    ("TensorScatterAdd", tensor_scatter_add),
    ("TensorScatterSub", tensor_scatter_sub),
    ("TensorScatterMax", tensor_scatter_max),
    ("TensorScatterMin", tensor_scatter_min),
    ("Select", select),
    ("SelectV2", select_v2),
    ("OneHot", one_hot),
    ("Where", where_true),
];

fn gather(_: &Node) -> Built {
    kernel(|call| {
        let rows = gathered(&call.tensor(0)?, &call.tensor(1)?, 0, 0)?;
        call.set(0, rows)
    })
}

fn gather_v2(node: &Node) -> Built {
    let batch_dims = node.attrs.int("batch_dims")?;
    kernel(move |call| {
        let (params, indices, axis) = (call.tensor(0)?, call.tensor(1)?, integer(&call.tensor(2)?, "axis")?);
        let axis = dimension(axis, params.shape().rank(), "axis")?;
        let rank = indices.shape().rank() as i64;
        let batch = if batch_dims < 0 { batch_dims.saturating_add(rank) } else { batch_dims };
        let batch = usize::try_from(batch).ok().filter(|batch| *batch <= axis && *batch as i64 <= rank);
        let batch = batch.ok_or_else(|| {
            OpError::invalid(format!("batch_dims ({batch_dims}) must be less than or equal to axis ({axis}) and the rank of indices"))
        })?;
        call.set(0, gathered(&params, &indices, axis, batch)?)
    })
}

/// Slices of `params` along `axis`, one for each of `indices`; the first `batch` dimensions of both go together.
pub(super) fn gathered(
    params: &Tensor,
    indices: &Tensor,
    axis: usize,
    batch: usize,
) -> Result<Tensor, OpError> {
    let (from, at) = (params.shape(), indices.shape());
    if from.rank() <= axis || from[..batch] != at[..batch] {
        return Err(OpError::invalid(format!(
            "params of shape {from} cannot be gathered by indices of shape {at}"
        )));
    }
    let shape = Shape::new(&[&from[..axis], &at[batch..], &from[axis + 1..]].concat())?;
    let rows = integers(indices)?;
    let size = from[axis];
    if let Some(bad) = rows.iter().position(|row| !(0..size as i64).contains(row)) {
        let place = if at.rank() == 0 { String::new() } else { format!("[{bad}]") };
        return Err(OpError::invalid(format!("indices{place} = {} is not in [0, {size})", rows[bad])));
    }
    let batches = from.product(..batch);
    let (outer, inner) = (from.product(batch..axis), from.product(axis + 1..));
    let per_batch = at.product(batch..);
    // The slices in order: which slice of `params` each one is.
    let slices = (0..batches * outer).flat_map(|row| {
        let rows = &rows[row / outer.max(1) * per_batch..][..per_batch];
        rows.iter().map(move |index| row * size + *index as usize)
    });
    if let Ok(strings) = params.strings() {
        let all = slices.flat_map(|slice| &strings[slice * inner..][..inner]).cloned().collect();
        return Ok(Tensor::from_strings(shape, all)?);
    }
    let bytes = inner * element_bytes(params)?;
    let from = params.bytes().unwrap_or_default();
    let mut out = Writer::new(params.dtype(), shape)?;
    if bytes > 0 {
        for (to, slice) in out.bytes_mut().chunks_exact_mut(bytes).zip(slices) {
            to.copy_from_slice(&from[slice * bytes..][..bytes]);
        }
    }
    Ok(out.freeze())
}

/// Which slice of a value of shape `whole` each row of `indices` names, how many dimensions an index has, and how many
/// elements such a slice has.
fn nd_slices(whole: &Shape, indices: &Tensor) -> Result<(Vec<usize>, usize, usize), OpError> {
    let at = indices.shape();
    let Some(depth) = at.last().copied().filter(|depth| *depth <= whole.rank()) else {
        return Err(OpError::invalid(format!(
            "index innermost dimension length must be <= params rank; saw indices of shape {at} for shape {whole}"
        )));
    };
    let count = at.product(..at.rank() - 1);
    let strides = Shape::new(&whole[..depth])?.strides();
    let all = integers(indices)?;
    let mut slices = Vec::with_capacity(count);
    for row in 0..count {
        let index = &all[row * depth..][..depth];
        if index.iter().zip(whole.iter()).any(|(at, size)| !(0..*size as i64).contains(at)) {
            return Err(OpError::invalid(format!(
                "indices[{row}] = {index:?} does not index into shape {whole}"
            )));
        }
        slices.push(index.iter().zip(&strides).map(|(at, stride)| *at as usize * stride).sum());
    }
    Ok((slices, depth, whole.product(depth..)))
}

fn gather_nd(_: &Node) -> Built {
    kernel(|call| {
        let (params, indices) = (call.tensor(0)?, call.tensor(1)?);
        let (slices, depth, inner) = nd_slices(params.shape(), &indices)?;
        let at = indices.shape();
        let shape = Shape::new(&[&at[..at.rank() - 1], &params.shape()[depth..]].concat())?;
        let bytes = inner * element_bytes(&params)?;
        let from = params.bytes().unwrap_or_default();
        let mut out = Writer::new(params.dtype(), shape)?;
        if bytes > 0 {
            for (to, slice) in out.bytes_mut().chunks_exact_mut(bytes).zip(slices) {
                to.copy_from_slice(&from[slice * bytes..][..bytes]);
            }
        }
        call.set(0, out.freeze())
    })
}

/// Combines the slices of `updates` into those of `into` that `indices` name.
fn scatter<T: Scalar>(
    into: Tensor,
    indices: &Tensor,
    updates: &Tensor,
    f: impl Fn(T, T) -> T,
) -> Result<Tensor, OpError> {
    let (slices, depth, inner) = nd_slices(into.shape(), indices)?;
    let at = indices.shape();
    let expected = [&at[..at.rank() - 1], &into.shape()[depth..]].concat();
    if updates.shape().sizes() != expected {
        return Err(OpError::invalid(format!(
            "Must have updates.shape = indices.shape[:-1] + params.shape[indices.shape[-1]:], got updates.shape {}, \
             indices.shape {at}, params.shape {}",
            updates.shape(),
            into.shape()
        )));
    }
    let mut out = into.into_writer_or_copy()?;
    let (to, from) = (out.elements_mut::<T>()?, updates.as_slice::<T>()?);
    for (row, slice) in slices.into_iter().enumerate() {
        let (to, from) = (&mut to[slice * inner..][..inner], &from[row * inner..][..inner]);
        to.iter_mut().zip(from).for_each(|(to, from)| *to = f(*to, *from));
    }
    Ok(out.freeze())
}

fn scatter_nd(node: &Node) -> Built {
    widened(node, |node| {
        by_number!(node, "T", T => kernel(|call| {
            let (indices, updates, shape) = (call.tensor(0)?, call.tensor(1)?, shape_input(call, 2)?);
            let zeros = Tensor::zeros(T::DTYPE, shape)?;
            call.set(0, scatter::<T>(zeros, &indices, &updates, Number::plus)?)
        }))
    })
}

macro_rules! tensor_scatters {
    ($($name:ident: $f:expr;)+) => {$(
        fn $name(node: &Node) -> Built {
            widened(node, |node| by_number!(node, "T", T => kernel(|call| {
                let (into, indices, updates) = (call.take(0)?, call.tensor(1)?, call.tensor(2)?);
                call.set(0, scatter::<T>(into, &indices, &updates, $f)?)
            })))
        }
    )+};
}

tensor_scatters! {
    tensor_scatter_update: |_, new| new;
    tensor_scatter_add: Number::plus;
    tensor_scatter_sub: Number::minus;
    tensor_scatter_max: Number::larger;
    tensor_scatter_min: Number::smaller;
}

/// The first form: the condition is of the operands' shape, or a scalar, or one per row.
fn select(_: &Node) -> Built {
    kernel(|call| {
        let (condition, a, b) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
        if a.shape() != b.shape() {
            let (a, b) = (a.shape(), b.shape());
            return Err(OpError::invalid(format!("'then' and 'else' must have the same size: {a} vs. {b}")));
        }
        let rank = a.shape().rank();
        let fits = condition.shape() == a.shape()
            || condition.shape().rank() == 0
            || condition.shape().rank() == 1 && rank > 1 && condition.len() == a.shape()[0];
        if !fits {
            let (condition, a) = (condition.shape(), a.shape());
            let message = format!("Inputs to operation Select of different shapes: {condition} vs. {a}");
            return Err(OpError::invalid(message));
        }
        let mut sizes = condition.shape().to_vec();
        if !sizes.is_empty() {
            sizes.resize(rank, 1);
        }
        let condition = condition.with_shape(Shape::new(&sizes)?)?;
        call.set(0, selected(&condition, &a, &b)?)
    })
}

fn select_v2(_: &Node) -> Built {
    kernel(|call| {
        let out = selected(&call.tensor(0)?, &call.tensor(1)?, &call.tensor(2)?)?;
        call.set(0, out)
    })
}

fn selected(condition: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor, OpError> {
    let plan = Broadcast::of([condition.shape(), a.shape(), b.shape()])?;
    if let (Ok(from_a), Ok(from_b)) = (a.strings(), b.strings()) {
        let condition = condition.as_slice::<Bool>()?;
        let mut all = Vec::new();
        plan.runs(|_, [c, a, b], len, steps| {
            all.extend((0..len).map(|i| {
                let first = condition[c + i * steps[0]].get();
                if first { from_a[a + i * steps[1]].clone() } else { from_b[b + i * steps[2]].clone() }
            }));
        });
        return Ok(Tensor::from_strings(plan.shape, all)?);
    }
    let mut out = Writer::new(a.dtype(), plan.shape.clone())?;
    match element_bytes(a)? {
        1 => pick::<u8>(&plan, condition, a, b, &mut out)?,
        2 => pick::<u16>(&plan, condition, a, b, &mut out)?,
        4 => pick::<u32>(&plan, condition, a, b, &mut out)?,
        8 => pick::<u64>(&plan, condition, a, b, &mut out)?,
        _ => pick::<[u64; 2]>(&plan, condition, a, b, &mut out)?,
    }
    Ok(out.freeze())
}

fn pick<W: bytemuck::Pod>(
    plan: &Broadcast<3>,
    condition: &Tensor,
    a: &Tensor,
    b: &Tensor,
    out: &mut Writer,
) -> Result<(), OpError> {
    let words = |tensor: &Tensor| tensor.shared().map_or_else(Default::default, Clone::clone);
    let (a, b, condition) = (words(a), words(b), condition.as_slice::<Bool>()?);
    let (a, b): (&[W], &[W]) = (bytemuck::cast_slice(&a), bytemuck::cast_slice(&b));
    let to: &mut [W] = bytemuck::cast_slice_mut(out.bytes_mut());
    plan.runs(|at, [from_c, from_a, from_b], len, [c, a_step, b_step]| {
        for (i, to) in to[at..at + len].iter_mut().enumerate() {
            let first = condition[from_c + i * c].get();
            *to = if first { a[from_a + i * a_step] } else { b[from_b + i * b_step] };
        }
    });
    Ok(())
}

fn one_hot(node: &Node) -> Built {
    let axis = node.attrs.int("axis")?;
    kernel(move |call| {
        let (indices, depth) = (call.tensor(0)?, integer(&call.tensor(1)?, "depth")?);
        let (on, off) = (call.tensor(2)?, call.tensor(3)?);
        if on.len() != 1 || off.len() != 1 {
            return Err(OpError::invalid("on_value and off_value must be scalars"));
        }
        let depth = usize::try_from(depth)
            .map_err(|_| OpError::invalid(format!("depth must be non-negative, got: {depth}")))?;
        let axis = dimension(axis, indices.shape().rank() + 1, "axis")?;
        let mut sizes = indices.shape().to_vec();
        sizes.insert(axis, depth);
        let shape = Shape::new(&sizes)?;
        let inner = indices.shape().product(axis..);
        let mut out = blank(off.dtype(), shape, Some(&off))?;
        let size = element_bytes(&on)?;
        let (on, to) = (on.bytes().unwrap_or_default(), out.bytes_mut());
        let all = match indices.dtype() {
            DataType::DtUint8 => indices.as_slice::<u8>()?.iter().map(|at| i64::from(*at)).collect(),
            DataType::DtInt8 => indices.as_slice::<i8>()?.iter().map(|at| i64::from(*at)).collect(),
            _ => integers(&indices)?,
        };
        for (at, index) in all.into_iter().enumerate() {
            if let Some(index) = usize::try_from(index).ok().filter(|index| *index < depth) {
                let place = (at / inner * depth + index) * inner + at % inner;
                to[place * size..][..size].copy_from_slice(on);
            }
        }
        call.set(0, out.freeze())
    })
}

fn where_true(node: &Node) -> Built {
    by_type!(node, "T", [DtBool Bool, DtFloat f32, DtDouble f64, DtInt32 i32, DtInt64 i64, DtInt8 i8, DtUint8 u8,
        DtInt16 i16, DtUint16 u16, DtUint32 u32, DtUint64 u64], T => kernel(|call| {
        let tensor = call.tensor(0)?;
        let zero: T = bytemuck::Zeroable::zeroed();
        let elements = tensor.as_slice::<T>()?.iter().enumerate();
        let set: Vec<usize> = elements.filter(|(_, value)| **value != zero).map(|(at, _)| at).collect();
        let shape = Shape::new(&[set.len(), tensor.shape().rank()])?;
        let sizes = tensor.shape();
        call.set(0, Tensor::build(shape, |out: &mut [i64]| {
            for (row, flat) in set.into_iter().enumerate() {
                let mut left = flat;
                for dim in (0..sizes.rank()).rev() {
                    out[row * sizes.rank() + dim] = (left % sizes[dim]) as i64;
                    left /= sizes[dim];
                }
            }
        })?)
    }))
}

/// Rows of `into` by `indices`, combined with rows of `updates` (or with its one element): `(row, update)`.
pub(super) fn scatter_rows<T: Scalar>(
    into: &mut Writer,
    indices: &Tensor,
    updates: &Tensor,
    f: impl Fn(T, T) -> T,
) -> Result<(), OpError> {
    let whole = into.shape().clone();
    let Some(rows) = whole.first().copied() else {
        return Err(OpError::invalid("params must be at least 1 dimensional"));
    };
    let inner = whole.product(1..);
    let expected = [&indices.shape()[..], &whole[1..]].concat();
    let is_one = updates.shape().rank() == 0;
    if !is_one && updates.shape().sizes() != expected {
        return Err(OpError::invalid(format!(
            "Must have updates.shape = indices.shape + params.shape[1:] or updates.shape = [], got updates.shape {}, \
             indices.shape {}, params.shape {whole}",
            updates.shape(),
            indices.shape()
        )));
    }
    let at = integers(indices)?;
    if let Some(bad) = at.iter().position(|row| !(0..rows as i64).contains(row)) {
        return Err(OpError::invalid(format!("indices[{bad}] = {} is not in [0, {rows})", at[bad])));
    }
    let (to, from) = (into.elements_mut::<T>()?, updates.as_slice::<T>()?);
    for (row, index) in at.into_iter().enumerate() {
        let to = &mut to[index as usize * inner..][..inner];
        if is_one {
            to.iter_mut().for_each(|to| *to = f(*to, from[0]));
        } else {
            to.iter_mut().zip(&from[row * inner..][..inner]).for_each(|(to, from)| *to = f(*to, *from));
        }
    }
    Ok(())
}

/// The index type is checked where a node is made; here it is read.
pub(super) fn check_index_type(node: &Node, attr: &str) -> Result<(), super::BuildError> {
    by_index!(node, attr, T => { let _ = T::DTYPE; Ok(()) })
}
