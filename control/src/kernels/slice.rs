//! Parts of values, and values arranged in another way.

use super::contract::{Call, OpError};
use super::dispatch::{Built, dimension, integers, kernel};
use super::registry::Family;
use super::shapes::shape_input;
use super::walk::{Walk, blank, steps};
use crate::core::graph::Node;
use crate::tensor::{Shape, Tensor};

/// Operations of this family.
pub(super) const OPS: Family = &[
    ("Slice", slice),
    ("StridedSlice", strided_slice),
    ("StridedSliceGrad", strided_slice_grad),
    ("Tile", tile),
    ("Pad", pad),
    ("PadV2", pad),
    ("MirrorPad", mirror_pad),
    ("Transpose", transpose),
    ("ConjugateTranspose", transpose),
    ("ReverseV2", reverse),
    ("Roll", roll),
];

fn slice(_: &Node) -> Built {
    kernel(|call| {
        let (tensor, begin, size) = (call.take(0)?, integers(&call.tensor(1)?)?, integers(&call.tensor(2)?)?);
        let rank = tensor.shape().rank();
        if begin.len() != rank || size.len() != rank {
            return Err(OpError::invalid(format!(
                "Expected begin and size arguments to be 1-D tensors of size {rank}, but got {} and {}",
                begin.len(),
                size.len()
            )));
        }
        let whole = steps(tensor.shape());
        let (mut sizes, mut start) = (Vec::with_capacity(rank), 0);
        for at in 0..rank {
            let full = tensor.shape()[at] as i64;
            let size = if size[at] == -1 { full.saturating_sub(begin[at]) } else { size[at] };
            if !(0..=full).contains(&begin[at]) || size < 0 || size > full - begin[at] {
                return Err(OpError::invalid(format!(
                    "Expected begin[{at}] in [0, {full}] and size[{at}] in [0, {full} - begin], but got {} and {size}",
                    begin[at]
                )));
            }
            start += begin[at] as isize * whole[at];
            sizes.push(size as usize);
        }
        let walk = Walk { shape: Shape::new(&sizes)?, start, steps: whole };
        call.set(0, part(tensor, &walk)?)
    })
}

/// The elements of a walk; without a copy where they lie one after the other.
fn part(tensor: Tensor, walk: &Walk) -> Result<Tensor, OpError> {
    if walk.shape == *tensor.shape() && walk.start == 0 && walk.steps == steps(tensor.shape()) {
        return Ok(tensor);
    }
    let mut run = None;
    let mut runs = 0;
    // Only a walk of one run is looked at to its end.
    if walk.shape.iter().zip(tensor.shape().iter()).skip(1).all(|(part, whole)| part == whole) {
        walk.runs(|_, from, _, step| (run, runs) = (Some((from, step)), runs + 1));
    }
    match run {
        Some((from, 1)) if runs == 1 => Ok(tensor.part(from as usize, walk.shape.clone())?),
        _ => walk.read(&tensor),
    }
}

/// The attributes of a strided slice: bits, one for each entry of begin, end and strides.
#[derive(Clone, Copy)]
struct Masks {
    begin: i64,
    end: i64,
    ellipsis: i64,
    new_axis: i64,
    shrink: i64,
}

impl Masks {
    fn of(node: &Node) -> Result<Masks, super::BuildError> {
        let mask = |name: &str| node.attrs.int(name);
        let masks = Masks {
            begin: mask("begin_mask")?,
            end: mask("end_mask")?,
            ellipsis: mask("ellipsis_mask")?,
            new_axis: mask("new_axis_mask")?,
            shrink: mask("shrink_axis_mask")?,
        };
        if masks.ellipsis.count_ones() > 1 {
            return Err(node.attrs.wrong("ellipsis_mask", "has more than one ellipsis").into());
        }
        Ok(masks)
    }
}

fn bit(mask: i64, at: usize) -> bool {
    at < 64 && mask >> at & 1 == 1
}

/// The part that a strided slice takes of a value of shape `whole`, and the shape that it gives it.
fn strided(
    whole: &Shape,
    [begin, end, strides]: [&[i64]; 3],
    masks: Masks,
) -> Result<(Walk, Shape), OpError> {
    let count = begin.len();
    if end.len() != count || strides.len() != count || count > 64 {
        return Err(OpError::invalid("Expected begin, end, and strides to be 1D equal size tensors"));
    }
    let takes = (0..count).filter(|at| !bit(masks.new_axis, *at) && !bit(masks.ellipsis, *at)).count();
    let has_ellipsis = (0..count).any(|at| bit(masks.ellipsis, at));
    let Some(left) = whole.rank().checked_sub(takes) else {
        let (rank, takes) = (whole.rank(), takes);
        return Err(OpError::invalid(format!(
            "Index out of range using input dim {takes}; input has only {rank} dims"
        )));
    };
    let full = steps(whole);
    let (mut sizes, mut moves, mut out) = (Vec::new(), Vec::new(), Vec::new());
    let (mut start, mut dim) = (0, 0);
    // Without an ellipsis there is one behind the last entry.
    for at in 0..count + usize::from(!has_ellipsis) {
        if at == count || bit(masks.ellipsis, at) {
            sizes.extend_from_slice(&whole[dim..dim + left]);
            out.extend_from_slice(&whole[dim..dim + left]);
            moves.extend_from_slice(&full[dim..dim + left]);
            dim += left;
            continue;
        }
        if bit(masks.new_axis, at) {
            out.push(1);
            continue;
        }
        let (first, len) = range_of(at, dim, whole[dim], [begin[at], end[at], strides[at]], masks)?;
        start += first as isize * full[dim];
        moves.push(full[dim].saturating_mul(strides[at] as isize));
        sizes.push(len);
        if !bit(masks.shrink, at) {
            out.push(len);
        }
        dim += 1;
    }
    Ok((Walk { shape: Shape::new(&sizes)?, start, steps: moves }, Shape::new(&out)?))
}

/// The first index that entry `at` takes of a dimension, and how many.
fn range_of(
    at: usize,
    dim: usize,
    size: usize,
    [begin, end, stride]: [i64; 3],
    masks: Masks,
) -> Result<(i64, usize), OpError> {
    let size = size as i64;
    if stride == 0 {
        return Err(OpError::invalid(format!("strides[{at}] must be non-zero")));
    }
    let wrap = |index: i64| if index < 0 { index.saturating_add(size) } else { index };
    if bit(masks.shrink, at) {
        let first = wrap(begin);
        if bit(masks.begin, at) || stride < 0 {
            return Err(OpError::invalid("only stride 1 allowed on non-range indexing."));
        }
        if !(0..size).contains(&first) {
            let message = format!("slice index {begin} of dimension {dim} out of bounds.");
            return Err(OpError::invalid(message));
        }
        return Ok((first, 1));
    }
    let (low, high) = if stride > 0 { (0, size) } else { (-1, size - 1) };
    let (from_mask, to_mask) = if stride > 0 { (low, high) } else { (high, low) };
    let first = if bit(masks.begin, at) { from_mask } else { wrap(begin).clamp(low, high) };
    let last = if bit(masks.end, at) { to_mask } else { wrap(end).clamp(low, high) };
    let distance = if stride > 0 { last - first } else { first - last };
    let step = stride.unsigned_abs();
    let len = u64::try_from(distance).map_or(0, |distance| distance.div_ceil(step)) as usize;
    Ok((if len == 0 { 0 } else { first }, len))
}

fn strided_slice(node: &Node) -> Built {
    let masks = Masks::of(node)?;
    kernel(move |call| {
        let tensor = call.take(0)?;
        let [begin, end, strides] = [1, 2, 3].map(|at| call.tensor(at).and_then(|t| integers(&t)));
        let (walk, shape) = strided(tensor.shape(), [&begin?, &end?, &strides?], masks)?;
        call.set(0, part(tensor, &walk)?.with_shape(shape)?)
    })
}

/// Zero, but for what a strided slice would have taken.
fn strided_slice_grad(node: &Node) -> Built {
    let masks = Masks::of(node)?;
    kernel(move |call| {
        let whole = shape_input(call, 0)?;
        let [begin, end, strides] = [1, 2, 3].map(|at| call.tensor(at).and_then(|t| integers(&t)));
        let gradient = call.take(4)?;
        let (walk, shape) = strided(&whole, [&begin?, &end?, &strides?], masks)?;
        if *gradient.shape() != shape {
            let given = gradient.shape();
            return Err(OpError::invalid(format!("shape of dy was {given} instead of {shape}")));
        }
        let mut out = blank(gradient.dtype(), whole, None)?;
        walk.write(&gradient, &mut out)?;
        call.set(0, out.freeze())
    })
}

fn tile(_: &Node) -> Built {
    kernel(|call| {
        let (tensor, times) = (call.take(0)?, integers(&call.tensor(1)?)?);
        let sizes = tensor.shape();
        if times.len() != sizes.rank() || times.iter().any(|times| *times < 0) {
            return Err(OpError::invalid(format!(
                "Expected multiples argument to be a vector of length {} with no value below 0, but got {times:?}",
                sizes.rank()
            )));
        }
        let mut out = Vec::with_capacity(times.len());
        // As dimensions in pairs: how often, at a step of 0, and the dimension itself.
        let (mut pairs, mut moves) = (Vec::new(), Vec::new());
        for ((size, times), step) in sizes.iter().zip(&times).zip(steps(sizes)) {
            out.push(size.saturating_mul(*times as usize));
            pairs.extend([*times as usize, *size]);
            moves.extend([0, step]);
        }
        let shape = Shape::new(&out)?;
        if shape == *tensor.shape() {
            return call.set(0, tensor);
        }
        let walk = Walk { shape: Shape::new(&pairs)?, start: 0, steps: moves };
        call.set(0, walk.read(&tensor)?.with_shape(shape)?)
    })
}

/// How much is put before and after each dimension.
fn paddings(call: &Call<'_>, sizes: &Shape) -> Result<(Vec<[usize; 2]>, Shape), OpError> {
    let table = call.tensor(1)?;
    if table.shape().sizes() != [sizes.rank(), 2] {
        let (rank, given) = (sizes.rank(), table.shape());
        return Err(OpError::invalid(format!(
            "paddings must be a matrix with 2 columns and {rank} rows: {given}"
        )));
    }
    let (mut all, mut out) = (Vec::new(), Vec::new());
    for (pair, size) in integers(&table)?.chunks_exact(2).zip(sizes.iter()) {
        let [Ok(before), Ok(after)] = [pair[0], pair[1]].map(usize::try_from) else {
            return Err(OpError::invalid(format!("Paddings must be non-negative: {} {}", pair[0], pair[1])));
        };
        all.push([before, after]);
        out.push(before.saturating_add(*size).saturating_add(after));
    }
    Ok((all, Shape::new(&out)?))
}

fn pad(_: &Node) -> Built {
    kernel(|call| {
        let tensor = call.take(0)?;
        let (paddings, shape) = paddings(call, tensor.shape())?;
        let value = if call.inputs() > 2 { Some(call.tensor(2)?) } else { None };
        if value.as_ref().is_some_and(|value| value.len() != 1) {
            return Err(OpError::invalid("constant_values must be a scalar."));
        }
        let steps = steps(&shape);
        let start = paddings.iter().zip(&steps).map(|([before, _], step)| *before as isize * step).sum();
        let mut out = blank(tensor.dtype(), shape, value.as_ref())?;
        Walk { shape: tensor.shape().clone(), start, steps }.write(&tensor, &mut out)?;
        call.set(0, out.freeze())
    })
}

fn mirror_pad(node: &Node) -> Built {
    // Whether the edge itself is repeated.
    let offset = match node.attrs.text("mode")? {
        "REFLECT" => 1,
        "SYMMETRIC" => 0,
        _ => return Err(node.attrs.wrong("mode", "is neither REFLECT nor SYMMETRIC").into()),
    };
    kernel(move |call| {
        let mut tensor = call.take(0)?;
        let (paddings, _) = paddings(call, tensor.shape())?;
        for (dim, [before, after]) in paddings.into_iter().enumerate() {
            let size = tensor.shape()[dim];
            if before.max(after) + offset > size {
                return Err(OpError::invalid(format!(
                    "paddings must be no greater than the dimension size: {before}, {after} greater than {size}"
                )));
            }
            let edge = |from: usize, len: usize| -> Result<Tensor, OpError> {
                reversed(&super::join::taken(&tensor, dim, from, len)?, &[dim])
            };
            let (head, tail) = (edge(offset, before)?, edge(size - offset - after, after)?);
            tensor = super::join::joined(&[head, tensor.clone(), tail], dim as i64)?;
        }
        call.set(0, tensor)
    })
}

fn transpose(_: &Node) -> Built {
    kernel(|call| {
        let (tensor, order) = (call.take(0)?, integers(&call.tensor(1)?)?);
        let rank = tensor.shape().rank();
        let mut seen = vec![false; rank];
        let mut dims = Vec::with_capacity(rank);
        for dim in &order {
            let at = dimension(*dim, rank, "a dimension of perm")?;
            if std::mem::replace(&mut seen[at], true) {
                return Err(OpError::invalid(format!("{dim} is twice in perm")));
            }
            dims.push(at);
        }
        if dims.len() != rank {
            return Err(OpError::invalid(format!(
                "transpose expects a vector of size {rank}. But input(1) is a vector of size {}",
                dims.len()
            )));
        }
        call.set(0, transposed(&tensor, &dims)?)
    })
}

/// The dimensions in another order; `dims` is a permutation of them.
pub(super) fn transposed(tensor: &Tensor, dims: &[usize]) -> Result<Tensor, OpError> {
    let whole = steps(tensor.shape());
    let sizes: Vec<usize> = dims.iter().map(|dim| tensor.shape()[*dim]).collect();
    let moves = dims.iter().map(|dim| whole[*dim]).collect();
    part(tensor.clone(), &Walk { shape: Shape::new(&sizes)?, start: 0, steps: moves })
}

fn reverse(_: &Node) -> Built {
    kernel(|call| {
        let (tensor, dims) = (call.take(0)?, integers(&call.tensor(1)?)?);
        let rank = tensor.shape().rank();
        let mut all = Vec::new();
        for dim in dims {
            let at = dimension(dim, rank, "'axis'")?;
            if all.contains(&at) {
                return Err(OpError::invalid(format!("axis {at} specified more than once.")));
            }
            all.push(at);
        }
        call.set(0, reversed(&tensor, &all)?)
    })
}

fn reversed(tensor: &Tensor, dims: &[usize]) -> Result<Tensor, OpError> {
    let (mut steps, mut start) = (steps(tensor.shape()), 0);
    if tensor.is_empty() {
        return Ok(tensor.clone());
    }
    for dim in dims {
        start += (tensor.shape()[*dim] as isize - 1) * steps[*dim];
        steps[*dim] = -steps[*dim];
    }
    Walk { shape: tensor.shape().clone(), start, steps }.read(tensor)
}

fn roll(_: &Node) -> Built {
    kernel(|call| {
        let mut tensor = call.take(0)?;
        let (shifts, dims) = (integers(&call.tensor(1)?)?, integers(&call.tensor(2)?)?);
        if shifts.len() != dims.len() {
            return Err(OpError::invalid("shift and axis must have the same size"));
        }
        for (shift, dim) in shifts.into_iter().zip(dims) {
            let dim = dimension(dim, tensor.shape().rank(), "axis")?;
            let size = tensor.shape()[dim];
            let head = shift.checked_rem_euclid(size as i64).unwrap_or(0) as usize;
            if head > 0 {
                let (low, high) = (
                    super::join::taken(&tensor, dim, 0, size - head)?,
                    super::join::taken(&tensor, dim, size - head, head)?,
                );
                tensor = super::join::joined(&[high, low], dim as i64)?;
            }
        }
        call.set(0, tensor)
    })
}
