//! Rows by segment, by partition, by order and by value.

use std::collections::HashMap;

use ringway_proto::tensorflow::DataType;

use super::contract::{Call, OpError};
use super::dispatch::{Built, by_number, by_type, index_vector, integer, integers, kernel, widened};
use super::join::element_bytes;
use super::number::Number;
use super::registry::Family;
use super::walk::blank;
use crate::core::graph::Node;
use crate::tensor::{Scalar, Shape, Tensor, Writer};

/// Operations of this family.
pub(super) const OPS: Family = &[
    ("UnsortedSegmentSum", unsorted_sum),
    ("UnsortedSegmentProd", unsorted_prod),
    ("UnsortedSegmentMax", unsorted_max),
    ("UnsortedSegmentMin", unsorted_min),
    ("SegmentSum", sorted_sum),
    ("SegmentMean", sorted_mean),
    ("DynamicPartition", dynamic_partition),
    ("DynamicStitch", dynamic_stitch),
    ("ParallelDynamicStitch", dynamic_stitch),
    ("Unique", unique),
    ("UniqueWithCounts", unique),
    ("TopKV2", top_k),
    ("InTopK", in_top_k),
    ("InTopKV2", in_top_k),
    ("Bincount", bincount),
];

/// Rows of `data` combined by the segment that each belongs to; rows of a negative segment are dropped.
fn segments<T: Number>(
    call: &Call<'_>,
    count: i64,
    none: T,
    f: impl Fn(T, T) -> T,
) -> Result<Tensor, OpError> {
    let (data, ids) = (call.tensor(0)?, call.tensor(1)?);
    let (whole, of) = (data.shape(), ids.shape());
    if whole.rank() < of.rank() || whole[..of.rank()] != of[..] {
        return Err(OpError::invalid(format!(
            "data.shape = {whole} does not start with segment_ids.shape = {of}"
        )));
    }
    let count = usize::try_from(count)
        .map_err(|_| OpError::invalid(format!("Input num_segments == {count} must not be negative.")))?;
    let inner = whole.product(of.rank()..);
    let shape = Shape::new(&[&[count], &whole[of.rank()..]].concat())?;
    let mut out = Writer::new(T::DTYPE, shape)?;
    let (to, from) = (out.elements_mut::<T>()?, data.as_slice::<T>()?);
    to.fill(none);
    for (row, id) in integers(&ids)?.into_iter().enumerate() {
        if id < 0 {
            continue;
        }
        let id = usize::try_from(id).ok().filter(|id| *id < count);
        let id =
            id.ok_or_else(|| OpError::invalid(format!("segment_ids[{row}] is out of range [0, {count})")))?;
        let (to, from) = (&mut to[id * inner..][..inner], &from[row * inner..][..inner]);
        to.iter_mut().zip(from).for_each(|(to, from)| *to = f(*to, *from));
    }
    Ok(out.freeze())
}

macro_rules! unsorted {
    ($($name:ident: $none:expr, $f:expr;)+) => {$(
        fn $name(node: &Node) -> Built {
            widened(node, |node| by_number!(node, "T", T => kernel(|call| {
                let count = integer(&call.tensor(2)?, "num_segments")?;
                let out = segments::<T>(call, count, $none, $f)?;
                call.set(0, out)
            })))
        }
    )+};
}

// An empty segment of a maximum is the lowest finite number.
unsorted! {
    unsorted_sum: T::ZERO, Number::plus;
    unsorted_prod: T::ONE, Number::times;
    unsorted_max: T::MIN, Number::larger;
    unsorted_min: T::MAX, Number::smaller;
}

/// How many segments ids in ascending order name.
fn sorted_count(call: &Call<'_>) -> Result<i64, OpError> {
    let ids = integers(&call.tensor(1)?)?;
    if !ids.is_sorted() || ids.first().is_some_and(|first| *first < 0) {
        return Err(OpError::invalid("segment ids are not increasing from 0 or more"));
    }
    Ok(ids.last().map_or(0, |last| last.saturating_add(1)))
}

fn sorted_sum(node: &Node) -> Built {
    widened(node, |node| {
        by_number!(node, "T", T => kernel(|call| {
            let out = segments::<T>(call, sorted_count(call)?, T::ZERO, Number::plus)?;
            call.set(0, out)
        }))
    })
}

fn sorted_mean(node: &Node) -> Built {
    widened(node, |node| {
        by_number!(node, "T", T => kernel(|call| {
            let sums = segments::<T>(call, sorted_count(call)?, T::ZERO, Number::plus)?;
            let inner = sums.shape().product(1..);
            let mut out = sums.into_writer_or_copy()?;
            let mut counts = vec![0; out.shape()[0]];
            integers(&call.tensor(1)?)?.into_iter().for_each(|id| counts[id as usize] += 1);
            if inner > 0 {
                for (row, count) in out.elements_mut::<T>()?.chunks_exact_mut(inner).zip(counts) {
                    row.iter_mut().filter(|_| count > 0).for_each(|sum| *sum = sum.over(T::of_f64(f64::from(count))));
                }
            }
            call.set(0, out.freeze())
        }))
    })
}

fn dynamic_partition(node: &Node) -> Built {
    let count = node.attrs.int("num_partitions")?;
    kernel(move |call| {
        let (data, parts) = (call.tensor(0)?, call.tensor(1)?);
        let (whole, of) = (data.shape(), parts.shape());
        if whole.rank() < of.rank() || whole[..of.rank()] != of[..] {
            let message = format!("data.shape = {whole} does not start with partitions.shape = {of}");
            return Err(OpError::invalid(message));
        }
        let mut rows: Vec<Vec<i64>> = vec![Vec::new(); call.outputs()];
        for (row, part) in integers(&parts)?.into_iter().enumerate() {
            let slot = usize::try_from(part).ok().and_then(|part| rows.get_mut(part));
            slot.ok_or_else(|| {
                OpError::invalid(format!("partitions[{row}] = {part} is not in [0, {count})"))
            })?
            .push(row as i64);
        }
        let flat = data.clone().with_shape(Shape::new(&[&[of.elements()], &whole[of.rank()..]].concat())?)?;
        for (index, rows) in rows.into_iter().enumerate() {
            call.set(index, super::gather::gathered(&flat, &Tensor::vector(&rows)?, 0, 0)?)?;
        }
        Ok(())
    })
}

fn dynamic_stitch(_: &Node) -> Built {
    kernel(|call| {
        let count = call.inputs() / 2;
        let mut highest = -1;
        let mut inner: Option<Shape> = None;
        for at in 0..count {
            let (indices, data) = (call.tensor(at)?, call.tensor(count + at)?);
            let (of, whole) = (indices.shape(), data.shape());
            let begins = whole.rank() >= of.rank() && whole[..of.rank()] == of[..];
            let rest = if begins { Some(Shape::new(&whole[of.rank()..])?) } else { None };
            if rest.is_none() || inner.as_ref().is_some_and(|inner| Some(inner) != rest.as_ref()) {
                return Err(OpError::invalid(format!(
                    "data[{at}].shape = {whole} does not start with indices[{at}].shape = {of}, or ends otherwise than \
                     the others"
                )));
            }
            inner = rest;
            highest = integers(&indices)?.into_iter().fold(highest, i64::max);
        }
        let inner = inner.unwrap_or_else(Shape::scalar);
        let rows = (highest + 1) as usize;
        let shape = Shape::new(&[&[rows], &inner[..]].concat())?;
        let first = call.tensor(count)?;
        let bytes = inner.elements() * element_bytes(&first)?;
        let mut out = blank(first.dtype(), shape, None)?;
        for at in 0..count {
            let (indices, data) = (integers(&call.tensor(at)?)?, call.tensor(count + at)?);
            let from = data.bytes().unwrap_or_default();
            for (row, index) in indices.into_iter().enumerate() {
                let index = usize::try_from(index)
                    .map_err(|_| OpError::invalid(format!("indices[{at}] = {index} is below 0")))?;
                out.bytes_mut()[index * bytes..][..bytes].copy_from_slice(&from[row * bytes..][..bytes]);
            }
        }
        call.set(0, out.freeze())
    })
}

/// The distinct elements in the order in which they are first met, and for each element which of them it is.
fn unique(node: &Node) -> Built {
    let out = node.attrs.dtype("out_idx")?;
    kernel(move |call| {
        let tensor = call.tensor(0)?;
        if tensor.shape().rank() != 1 {
            return Err(OpError::invalid(format!(
                "unique expects a 1D vector, got shape {}",
                tensor.shape()
            )));
        }
        let mut first: Vec<i64> = Vec::new();
        let mut which: Vec<usize> = Vec::with_capacity(tensor.len());
        let mut counts: Vec<usize> = Vec::new();
        let mut known: HashMap<&[u8], usize> = HashMap::new();
        let size = if tensor.strings().is_ok() { 0 } else { element_bytes(&tensor)? };
        for at in 0..tensor.len() {
            let key = match tensor.strings() {
                Ok(strings) => &strings[at][..],
                Err(_) => &tensor.bytes().unwrap_or_default()[at * size..][..size],
            };
            let place = *known.entry(key).or_insert(first.len());
            if place == first.len() {
                first.push(at as i64);
                counts.push(0);
            }
            counts[place] += 1;
            which.push(place);
        }
        call.set(0, super::gather::gathered(&tensor, &Tensor::vector(&first)?, 0, 0)?)?;
        call.set(1, index_vector(&which, out)?)?;
        if call.outputs() > 2 {
            call.set(2, index_vector(&counts, out)?)?;
        }
        Ok(())
    })
}

/// Larger first, and of equals the earlier; NaN is last.
fn ranked<T: Number>(row: &[T], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    let by = |a: &usize, b: &usize| {
        row[*b]
            .partial_cmp(&row[*a])
            .unwrap_or_else(|| row[*b].to_f64().total_cmp(&row[*a].to_f64()))
            .then(a.cmp(b))
    };
    if k > 0 && k < order.len() {
        order.select_nth_unstable_by(k - 1, by);
        order.truncate(k);
    }
    order.sort_by(by);
    order.truncate(k);
    order
}

fn top_k(node: &Node) -> Built {
    let index_type = node.attrs.dtype("index_type")?;
    if !matches!(index_type, DataType::DtInt32 | DataType::DtInt64) {
        return Err(node.attrs.wrong("index_type", "is neither int32 nor int64").into());
    }
    let by = |node: &Node| -> Built {
        let index_type = node.attrs.dtype("index_type")?;
        by_number!(node, "T", T => kernel(move |call| {
            let (tensor, k) = (call.tensor(0)?, integer(&call.tensor(1)?, "k")?);
            let Some(width) = tensor.shape().last().copied() else {
                return Err(OpError::invalid("input must be >= 1-D, got shape []"));
            };
            let k = usize::try_from(k).ok().filter(|k| *k <= width);
            let k = k.ok_or_else(|| OpError::invalid(format!("input must have at least k columns. Had {width}, needed k")))?;
            let mut sizes = tensor.shape().to_vec();
            sizes[tensor.shape().rank() - 1] = k;
            let shape = Shape::new(&sizes)?;
            let (mut values, mut places) = (Vec::new(), Vec::new());
            for row in tensor.as_slice::<T>()?.chunks_exact(width.max(1)) {
                let order = ranked(row, k);
                values.extend(order.iter().map(|at| row[*at]));
                places.extend(order);
            }
            call.set(0, Tensor::new(shape.clone(), &values)?)?;
            call.set(1, index_vector(&places, index_type)?.with_shape(shape)?)
        }))
    };
    widened(node, by)
}

fn in_top_k(node: &Node) -> Built {
    let fixed = node.attrs.int("k").ok();
    kernel(move |call| {
        let (predictions, targets) = (call.tensor(0)?, call.tensor(1)?);
        let k = match fixed {
            Some(k) => k,
            None => integer(&call.tensor(2)?, "k")?,
        };
        let (rows, targets) = (predictions.shape(), integers(&targets)?);
        if rows.rank() != 2 || rows[0] != targets.len() {
            let message = format!(
                "First dimension of predictions {rows} must match length of targets {}",
                targets.len()
            );
            return Err(OpError::invalid(message));
        }
        let width = rows[1];
        let all = predictions.as_slice::<f32>()?;
        let shape = Shape::vector(targets.len())?;
        call.set(
            0,
            Tensor::build(shape, |out: &mut [ringway_dataplane::memory::Bool]| {
                for (row, (out, target)) in out.iter_mut().zip(targets).enumerate() {
                    let row = &all[row * width..][..width];
                    let mine = usize::try_from(target).ok().and_then(|target| row.get(target)).copied();
                    let is_in = mine.is_some_and(|mine| {
                        let above = row.iter().filter(|other| **other > mine).count() as i64;
                        mine.is_finite() && row.iter().all(|other| other.is_finite()) && above < k
                    });
                    *out = is_in.into();
                }
            })?,
        )
    })
}

fn bincount(node: &Node) -> Built {
    by_type!(node, "T", [DtInt32 i32, DtInt64 i64, DtFloat f32, DtDouble f64], T => kernel(|call| {
        let (values, size, weights) = (integers(&call.tensor(0)?)?, integer(&call.tensor(1)?, "size")?, call.tensor(2)?);
        let weights = weights.as_slice::<T>()?;
        if size < 0 || !weights.is_empty() && weights.len() != values.len() {
            return Err(OpError::invalid("size must be at least 0, and weights must have the same shape as arr"));
        }
        let mut out = blank(T::DTYPE, Shape::from_sizes(&[size])?, None)?;
        let bins = out.elements_mut::<T>()?;
        for (at, value) in values.into_iter().enumerate() {
            let bin = usize::try_from(value).map_err(|_| OpError::invalid("Input arr must be non-negative!"))?;
            if let Some(bin) = bins.get_mut(bin) {
                *bin = bin.plus(weights.get(at).copied().unwrap_or(T::ONE));
            }
        }
        call.set(0, out.freeze())
    }))
}
