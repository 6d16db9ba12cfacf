//! Values put together, and taken apart.

use ringway_proto::tensorflow::DataType;

use super::contract::{Call, OpError};
use super::dispatch::{Built, dimension, index_vector, integer, integers, kernel};
use super::registry::Family;
use super::shapes::described;
use crate::core::graph::Node;
use crate::tensor::{Shape, Tensor, Writer, size_of};

/// Operations of this family.
pub(super) const OPS: Family = &[
    ("ConcatV2", concat_v2),
    ("Concat", concat),
    ("ConcatOffset", concat_offset),
    ("Pack", pack),
    ("Unpack", unpack),
    ("Split", split),
    ("SplitV", split_v),
];

fn concat_v2(_: &Node) -> Built {
    kernel(|call| concatenate(call, 0, call.inputs() - 1))
}

fn concat(_: &Node) -> Built {
    kernel(|call| concatenate(call, 1, 0))
}

/// Joins all inputs from `first` on but the one that says along which dimension.
fn concatenate(call: &mut Call<'_>, first: usize, axis_at: usize) -> Result<(), OpError> {
    let axis = integer(&call.tensor(axis_at)?, "Concat dim tensor")?;
    let last = if axis_at == 0 { call.inputs() } else { axis_at };
    let values = (first..last).map(|index| call.tensor(index)).collect::<Result<Vec<_>, _>>()?;
    let joined = joined(&values, axis)?;
    call.set(0, joined)
}

/// `values` one after the other along a dimension that may count from the back.
pub(super) fn joined(values: &[Tensor], axis: i64) -> Result<Tensor, OpError> {
    let first = values.first().ok_or_else(|| OpError::invalid("there is nothing to concatenate"))?;
    let axis = dimension(axis, first.shape().rank(), "ConcatOp : Expected concatenating dimensions")?;
    let mut sizes = first.shape().to_vec();
    sizes[axis] = 0;
    for (index, value) in values.iter().enumerate() {
        let fits = value.shape().rank() == sizes.len()
            && (0..sizes.len()).all(|at| at == axis || value.shape()[at] == sizes[at]);
        if !fits {
            return Err(OpError::invalid(format!(
                "ConcatOp : Dimension {axis} in both shapes must be equal: shape[0] = {} vs. shape[{index}] = {}",
                first.shape(),
                value.shape()
            )));
        }
        sizes[axis] = sizes[axis].saturating_add(value.shape()[axis]);
    }
    let shape = Shape::new(&sizes)?;
    let (outer, inner) = (shape.product(..axis), shape.product(axis + 1..));
    if first.dtype() == DataType::DtString {
        let mut all = Vec::with_capacity(shape.elements());
        for row in 0..outer {
            for value in values {
                let run = value.shape()[axis] * inner;
                all.extend_from_slice(&value.strings()?[row * run..(row + 1) * run]);
            }
        }
        return Ok(Tensor::from_strings(shape, all)?);
    }
    let size = element_bytes(first)?;
    let mut out = Writer::new(first.dtype(), shape)?;
    let mut to = out.bytes_mut();
    let parts: Vec<(&[u8], usize)> = values
        .iter()
        .map(|value| (value.bytes().unwrap_or_default(), value.shape()[axis] * inner * size))
        .collect();
    for row in 0..outer {
        for (from, run) in &parts {
            let (here, rest) = to.split_at_mut(*run);
            here.copy_from_slice(&from[row * run..(row + 1) * run]);
            to = rest;
        }
    }
    Ok(out.freeze())
}

/// Bytes of an element of one size.
pub(super) fn element_bytes(tensor: &Tensor) -> Result<usize, OpError> {
    size_of(tensor.dtype())
        .ok_or_else(|| OpError::invalid(format!("a tensor of {} is not computed with", described(tensor))))
}

fn concat_offset(node: &Node) -> Built {
    let out = node.attrs.dtype("shape_type").unwrap_or(DataType::DtInt32);
    kernel(move |call| {
        let axis = integer(&call.tensor(0)?, "concat_dim")?;
        let mut offset: usize = 0;
        for index in 1..call.inputs() {
            let sizes = integers(&call.tensor(index)?)?;
            let axis = dimension(axis, sizes.len(), "Concat dim")?;
            let size = usize::try_from(sizes[axis]).map_err(|_| OpError::invalid("a size is below 0"))?;
            let mut offsets = vec![0; sizes.len()];
            offsets[axis] = offset;
            offset = offset.saturating_add(size);
            call.set(index - 1, index_vector(&offsets, out)?)?;
        }
        Ok(())
    })
}

fn pack(node: &Node) -> Built {
    let axis = node.attrs.int("axis")?;
    kernel(move |call| {
        let first = call.tensor(0)?;
        let axis = dimension(axis, first.shape().rank() + 1, "axis")?;
        let mut values = Vec::with_capacity(call.inputs());
        for index in 0..call.inputs() {
            let value = call.take(index)?;
            if value.shape() != first.shape() {
                let (a, b) = (first.shape(), value.shape());
                let message = format!(
                    "Shapes of all inputs must match: values[0].shape = {a} != values[{index}].shape = {b}"
                );
                return Err(OpError::invalid(message));
            }
            let mut sizes = value.shape().to_vec();
            sizes.insert(axis, 1);
            values.push(value.with_shape(Shape::new(&sizes)?)?);
        }
        let packed = joined(&values, axis as i64)?;
        call.set(0, packed)
    })
}

fn unpack(node: &Node) -> Built {
    let axis = node.attrs.int("axis")?;
    kernel(move |call| {
        let tensor = call.take(0)?;
        let axis = dimension(axis, tensor.shape().rank(), "axis")?;
        let count = call.outputs();
        if tensor.shape()[axis] != count {
            let message = format!("Input shape axis {axis} must equal {count}, got shape {}", tensor.shape());
            return Err(OpError::invalid(message));
        }
        let mut sizes = tensor.shape().to_vec();
        sizes.remove(axis);
        let shape = Shape::new(&sizes)?;
        for index in 0..count {
            call.set(index, taken(&tensor, axis, index, 1)?.with_shape(shape.clone())?)?;
        }
        Ok(())
    })
}

fn split(_: &Node) -> Built {
    kernel(|call| {
        let (axis, tensor) = (integer(&call.tensor(0)?, "split_dim tensor")?, call.take(1)?);
        let axis = dimension(axis, tensor.shape().rank(), "split_dim")?;
        let (count, size) = (call.outputs(), tensor.shape()[axis]);
        if count == 0 || !size.is_multiple_of(count) {
            return Err(OpError::invalid(format!(
                "Number of ways to split should evenly divide the split dimension, but got split_dim {axis} (size = \
                 {size}) and num_split {count}"
            )));
        }
        for index in 0..count {
            call.set(index, taken(&tensor, axis, index * (size / count), size / count)?)?;
        }
        Ok(())
    })
}

fn split_v(_: &Node) -> Built {
    kernel(|call| {
        let (tensor, sizes) = (call.take(0)?, integers(&call.tensor(1)?)?);
        let axis = integer(&call.tensor(2)?, "split_dim tensor")?;
        let axis = dimension(axis, tensor.shape().rank(), "split_dim")?;
        let whole = tensor.shape()[axis];
        let known: i64 =
            sizes.iter().filter(|size| **size != -1).fold(0, |sum, size| sum.saturating_add(*size));
        let rest = whole as i64 - known;
        let unknown = sizes.iter().filter(|size| **size == -1).count();
        let fits = sizes.len() == call.outputs()
            && sizes.iter().all(|size| *size >= -1)
            && (unknown == 0 && rest == 0 || unknown == 1 && rest >= 0);
        if !fits {
            return Err(OpError::invalid(format!(
                "Determined shape must either match input shape along split_dim exactly if fully specified, or be less \
                 than the size of the input along split_dim if not fully specified.  Got: {known} of {whole}"
            )));
        }
        let mut at = 0;
        for (index, size) in sizes.into_iter().enumerate() {
            let size = if size == -1 { rest } else { size } as usize;
            call.set(index, taken(&tensor, axis, at, size)?)?;
            at += size;
        }
        Ok(())
    })
}

/// The part `at..at + len` along a dimension, which must be inside.
pub(super) fn taken(tensor: &Tensor, axis: usize, at: usize, len: usize) -> Result<Tensor, OpError> {
    let mut sizes = tensor.shape().to_vec();
    let whole = std::mem::replace(&mut sizes[axis], len);
    let (outer, inner) = (tensor.shape().product(..axis), tensor.shape().product(axis + 1..));
    let shape = Shape::new(&sizes)?;
    if outer == 1 {
        return Ok(tensor.part(at * inner, shape)?);
    }
    if let Ok(strings) = tensor.strings() {
        let rows = (0..outer).flat_map(|row| &strings[(row * whole + at) * inner..][..len * inner]);
        return Ok(Tensor::from_strings(shape, rows.cloned().collect())?);
    }
    let inner = inner * element_bytes(tensor)?;
    let from = tensor.bytes().unwrap_or_default();
    let mut out = Writer::new(tensor.dtype(), shape)?;
    if len * inner > 0 {
        for (row, to) in out.bytes_mut().chunks_exact_mut(len * inner).enumerate() {
            to.copy_from_slice(&from[(row * whole + at) * inner..][..len * inner]);
        }
    }
    Ok(out.freeze())
}
