//! Shapes as values, values of other shapes, and values made from a shape.

use ringway_proto::tensorflow::DataType;

use super::broadcast::Broadcast;
use super::contract::{Call, OpError};
use super::dispatch::{
    Built, by_index, by_number, by_type, dimension, index_vector, integer, integers, kernel, widened,
};
use super::number::Number;
use super::registry::Family;
use crate::core::graph::Node;
use crate::tensor::{PartialShape, Shape, Tensor, Writer, size_of, type_name};

/// Operations of this family.
pub(super) const OPS: Family = &[
    ("Shape", shape),
    ("ShapeN", shape),
    ("Rank", rank),
    ("Size", size),
    ("Reshape", reshape),
    ("ExpandDims", expand_dims),
    ("Squeeze", squeeze),
    ("EnsureShape", ensure_shape),
    ("Fill", fill),
    ("ZerosLike", zeros_like),
    ("OnesLike", ones_like),
    ("Empty", empty),
    ("Range", range),
    ("LinSpace", lin_space),
    ("BroadcastTo", broadcast_to),
    ("BroadcastArgs", broadcast_args),
    ("BroadcastGradientArgs", broadcast_gradient_args),
    ("InvertPermutation", invert_permutation),
];

fn shape(node: &Node) -> Built {
    let out = node.attrs.dtype("out_type")?;
    kernel(move |call| {
        for index in 0..call.outputs() {
            let sizes = index_vector(call.tensor(index)?.shape(), out)?;
            call.set(index, sizes)?;
        }
        Ok(())
    })
}

fn rank(_: &Node) -> Built {
    kernel(|call| {
        let rank = call.tensor(0)?.shape().rank();
        call.set(0, Tensor::scalar(rank as i32)?)
    })
}

fn size(node: &Node) -> Built {
    let out = node.attrs.dtype("out_type")?;
    kernel(move |call| {
        let size = index_vector(&[call.tensor(0)?.len()], out)?;
        call.set(0, size.with_shape(Shape::scalar())?)
    })
}

/// A shape that an input gives as a row of sizes.
pub(super) fn shape_input(call: &Call<'_>, index: usize) -> Result<Shape, OpError> {
    let sizes = call.tensor(index)?;
    if sizes.shape().rank() != 1 {
        let message = format!("dims must be a vector of integers, got shape {}", sizes.shape());
        return Err(OpError::invalid(message));
    }
    Ok(Shape::from_sizes(&integers(&sizes)?)?)
}

fn reshape(_: &Node) -> Built {
    kernel(|call| {
        let (tensor, wanted) = (call.take(0)?, call.tensor(1)?);
        if wanted.shape().rank() != 1 {
            let message = format!("sizes input must be 1-D, not {}", wanted.shape());
            return Err(OpError::invalid(message));
        }
        let mut sizes = integers(&wanted)?;
        let unknown: Vec<usize> = (0..sizes.len()).filter(|at| sizes[*at] == -1).collect();
        match unknown[..] {
            [] => {}
            [at] => {
                sizes[at] = 1;
                let others = Shape::from_sizes(&sizes)?.elements();
                let len = tensor.len();
                if others == 0 && len > 0 || others > 0 && !len.is_multiple_of(others) {
                    return Err(OpError::invalid(format!(
                        "Input to reshape is a tensor with {len} values, but the requested shape requires a multiple \
                         of {others}"
                    )));
                }
                sizes[at] = len.checked_div(others).unwrap_or(0) as i64;
            }
            _ => return Err(OpError::invalid("only one input size may be -1")),
        }
        let shape = Shape::from_sizes(&sizes)?;
        if shape.elements() != tensor.len() {
            return Err(OpError::invalid(format!(
                "Input to reshape is a tensor with {} values, but the requested shape has {}",
                tensor.len(),
                shape.elements()
            )));
        }
        call.set(0, tensor.with_shape(shape)?)
    })
}

fn expand_dims(_: &Node) -> Built {
    kernel(|call| {
        let (tensor, at) = (call.take(0)?, integer(&call.tensor(1)?, "dim")?);
        let mut sizes = tensor.shape().to_vec();
        let at = dimension(at, sizes.len() + 1, "the dimension to insert")?;
        sizes.insert(at, 1);
        call.set(0, tensor.with_shape(Shape::new(&sizes)?)?)
    })
}

fn squeeze(node: &Node) -> Built {
    let dims = node.attrs.ints("squeeze_dims")?.to_vec();
    kernel(move |call| {
        let tensor = call.take(0)?;
        let sizes = tensor.shape().to_vec();
        let mut drops = vec![dims.is_empty(); sizes.len()];
        for dim in &dims {
            let at = dimension(*dim, sizes.len(), "the dimension to squeeze")?;
            if sizes[at] != 1 {
                let message =
                    format!("Can not squeeze dim[{at}], expected a dimension of 1, got {}", sizes[at]);
                return Err(OpError::invalid(message));
            }
            drops[at] = true;
        }
        let keeps = |(size, drops): &(usize, bool)| !drops || *size != 1;
        let left: Vec<usize> = sizes.into_iter().zip(drops).filter(keeps).map(|(size, _)| size).collect();
        call.set(0, tensor.with_shape(Shape::new(&left)?)?)
    })
}

fn ensure_shape(node: &Node) -> Built {
    let shape = node.attrs.shape("shape")?;
    let shape =
        PartialShape::from_proto(shape).map_err(|error| node.attrs.wrong("shape", &error.to_string()))?;
    kernel(move |call| {
        let tensor = call.take(0)?;
        if !shape.covers(tensor.shape()) {
            let given = tensor.shape();
            let message =
                format!("Shape of tensor input {given} is not compatible with expected shape {shape}.");
            return Err(OpError::invalid(message));
        }
        call.set(0, tensor)
    })
}

fn fill(_: &Node) -> Built {
    kernel(|call| {
        let (shape, value) = (shape_input(call, 0)?, call.tensor(1)?);
        if value.len() != 1 {
            return Err(OpError::invalid(format!("value must be a scalar, got shape {}", value.shape())));
        }
        call.set(0, filled(&value, shape)?)
    })
}

/// The one element of `value` again and again.
pub(super) fn filled(value: &Tensor, shape: Shape) -> Result<Tensor, OpError> {
    if let Ok([value]) = value.strings() {
        let empty = Tensor::zeros(DataType::DtString, shape)?;
        let strings = vec![value.clone(); empty.len()];
        return Ok(Tensor::from_strings(empty.shape().clone(), strings)?);
    }
    let mut out = Writer::new(value.dtype(), shape)?;
    let one = value.bytes().unwrap_or_default();
    match one.len() {
        1 => out.bytes_mut().fill(one[0]),
        2 => fill_words::<u16>(&mut out, one),
        4 => fill_words::<u32>(&mut out, one),
        8 => fill_words::<u64>(&mut out, one),
        _ => out.bytes_mut().chunks_exact_mut(one.len().max(1)).for_each(|word| word.copy_from_slice(one)),
    }
    Ok(out.freeze())
}

fn fill_words<W: bytemuck::Pod>(out: &mut Writer, one: &[u8]) {
    let words: &mut [W] = bytemuck::cast_slice_mut(out.bytes_mut());
    words.fill(bytemuck::pod_read_unaligned(one));
}

fn zeros_like(_: &Node) -> Built {
    kernel(|call| {
        let tensor = call.tensor(0)?;
        call.set(0, Tensor::zeros(tensor.dtype(), tensor.shape().clone())?)
    })
}

fn ones_like(node: &Node) -> Built {
    if node.attrs.dtype("T")? == DataType::DtBool {
        return kernel(|call| {
            let tensor = call.tensor(0)?;
            call.set(0, filled(&Tensor::scalar(ringway_dataplane::memory::Bool(1))?, tensor.shape().clone())?)
        });
    }
    widened(node, |node| {
        by_number!(node, "T", T => kernel(|call| {
            let tensor = call.tensor(0)?;
            call.set(0, filled(&Tensor::scalar(T::ONE)?, tensor.shape().clone())?)
        }))
    })
}

fn empty(node: &Node) -> Built {
    let dtype = node.attrs.dtype("dtype")?;
    // Always zero: what memory held before is nobody's business.
    kernel(move |call| call.set(0, Tensor::zeros(dtype, shape_input(call, 0)?)?))
}

fn range(node: &Node) -> Built {
    by_type!(node, "Tidx", [DtInt32 i32, DtInt64 i64, DtFloat f32, DtDouble f64, DtInt8 i8, DtInt16 i16, DtUint16 u16,
        DtUint32 u32], T => kernel(|call| {
        let [start, limit, delta] = [0, 1, 2].map(|index| call.tensor(index)?.single::<T>().map_err(OpError::from));
        let (start, limit, delta) = (start?, limit?, delta?);
        if delta == T::ZERO {
            return Err(OpError::invalid("Requires delta != 0"));
        }
        if (delta > T::ZERO && start > limit) || (delta.is_below_zero() && start < limit) {
            let (relation, sign) = if delta > T::ZERO { ("<=", ">") } else { (">=", "<") };
            return Err(OpError::invalid(format!(
                "Requires start {relation} limit when delta {sign} 0: {start}/{limit}"
            )));
        }
        let len = if T::IS_INT {
            let (start, limit, delta) = (start as i128, limit as i128, delta as i128);
            ((limit - start).abs() + delta.abs() - 1) / delta.abs()
        } else {
            ((limit.to_f64() - start.to_f64()) / delta.to_f64()).abs().ceil() as i128
        };
        let len = i64::try_from(len).unwrap_or(i64::MAX);
        let shape = Shape::from_sizes(&[len])?;
        let mut value = start;
        call.set(0, Tensor::build(shape, |out: &mut [T]| {
            for out in out {
                *out = value;
                value = value.plus(delta);
            }
        })?)
    }))
}

fn lin_space(node: &Node) -> Built {
    widened(node, |node| {
        by_type!(node, "T", [DtFloat f32, DtDouble f64], T => kernel(|call| {
            let (start, stop) = (call.tensor(0)?.single::<T>()?, call.tensor(1)?.single::<T>()?);
            let count = integer(&call.tensor(2)?, "num")?;
            if count <= 0 {
                return Err(OpError::invalid(format!("Requires num > 0: {count}")));
            }
            let step = if count > 1 { (stop - start) / (count - 1) as T } else { 0.0 };
            call.set(0, Tensor::build(Shape::from_sizes(&[count])?, |out: &mut [T]| {
                out.iter_mut().enumerate().for_each(|(at, out)| *out = start + step * at as T);
                if let [_, .., last] = out {
                    *last = stop;
                }
            })?)
        }))
    })
}

fn broadcast_to(_: &Node) -> Built {
    kernel(|call| {
        let (tensor, shape) = (call.take(0)?, shape_input(call, 1)?);
        let plan = Broadcast::of([tensor.shape(), &shape])?;
        if plan.shape != shape {
            let given = tensor.shape();
            let message =
                format!("Incompatible shapes: {given} vs. {shape}: the one does not broadcast to the other");
            return Err(OpError::invalid(message));
        }
        if *tensor.shape() == shape {
            return call.set(0, tensor);
        }
        if let Ok(strings) = tensor.strings() {
            let mut all = vec![Default::default(); Tensor::zeros(DataType::DtString, shape.clone())?.len()];
            plan.runs(|at, [from, _], len, [step, _]| {
                (0..len).for_each(|i| all[at + i] = strings[from + i * step].clone());
            });
            return call.set(0, Tensor::from_strings(shape, all)?);
        }
        let (mut out, size) = (Writer::new(tensor.dtype(), shape)?, size_of(tensor.dtype()).unwrap_or(1));
        let (from, to) = (tensor.bytes().unwrap_or_default(), out.bytes_mut());
        plan.runs(|at, [from_at, _], len, [step, _]| {
            let to = &mut to[at * size..(at + len) * size];
            if step == 1 {
                to.copy_from_slice(&from[from_at * size..][..len * size]);
            } else {
                let one = &from[from_at * size..][..size];
                to.chunks_exact_mut(size).for_each(|to| to.copy_from_slice(one));
            }
        });
        call.set(0, out.freeze())
    })
}

fn broadcast_args(node: &Node) -> Built {
    let out = node.attrs.dtype("T")?;
    kernel(move |call| {
        let (a, b) = (shape_input(call, 0)?, shape_input(call, 1)?);
        call.set(0, index_vector(&Broadcast::of([&a[..], &b])?.shape, out)?)
    })
}

/// The dimensions over which the gradient of each of two broadcast operands is summed.
fn broadcast_gradient_args(node: &Node) -> Built {
    let out = node.attrs.dtype("T")?;
    kernel(move |call| {
        let (a, b) = (shape_input(call, 0)?, shape_input(call, 1)?);
        let whole = Broadcast::of([&a[..], &b])?.shape;
        let rank = whole.rank();
        for (index, mine) in [&a, &b].into_iter().enumerate() {
            // A dimension that is missing here is as one of size 1; one of size 1 in both is in both lists, but shapes
            // that are equal sum over nothing.
            let repeats = |at: &usize| (*at + mine.rank()).checked_sub(rank).is_none_or(|at| mine[at] == 1);
            let sums = |at: &usize| a != b && repeats(at);
            let dims: Vec<usize> = (0..rank).filter(sums).collect();
            call.set(index, index_vector(&dims, out)?)?;
        }
        Ok(())
    })
}

fn invert_permutation(node: &Node) -> Built {
    by_index!(node, "T", T => kernel(|call| {
        let tensor = call.tensor(0)?;
        if tensor.shape().rank() != 1 {
            return Err(OpError::invalid(format!("invert_permutation expects a 1D vector, got {}", tensor.shape())));
        }
        let mut inverse: Vec<T> = vec![-1; tensor.len()];
        for (at, to) in tensor.as_slice::<T>()?.iter().enumerate() {
            let slot = usize::try_from(*to).ok().and_then(|to| inverse.get_mut(to));
            let slot = slot.ok_or_else(|| OpError::invalid(format!("{to} is not between 0 and {}", tensor.len())))?;
            if *slot != -1 {
                return Err(OpError::invalid(format!("{to} is duplicated in the input.")));
            }
            *slot = at as T;
        }
        call.set(0, Tensor::vector(&inverse)?)
    }))
}

/// What a shape is called in an error, with its type.
pub(super) fn described(tensor: &Tensor) -> String {
    format!("{} {}", type_name(tensor.dtype()), tensor.shape())
}
