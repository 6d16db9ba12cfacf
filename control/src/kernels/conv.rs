//! Convolutions of images, as products of matrices: the windows of an image, a row each, times the filter.

use ringway_dataplane::memory::room::room;

use super::contract::{Call, OpError};
use super::dispatch::{Built, by_float, heavy, widened};
use super::matmul::{Factor, Fused, Matrix, multiply};
use super::registry::Family;
use super::shapes::shape_input;
use super::window::{Slide, Sliding};
use crate::core::graph::Node;
use crate::tensor::array::TENSOR_BYTES_LIMIT;
use crate::tensor::{Shape, Tensor, Writer};

/// Operations of this family.
pub(super) const OPS: Family = &[
    ("Conv2D", conv),
    ("_FusedConv2D", fused_conv),
    ("Conv2DBackpropFilter", backprop_filter),
    ("Conv2DBackpropInput", backprop_input),
];

/// A convolution whose sizes fit.
struct Plan {
    batch: usize,
    slides: [Slide; 2],
    depth: usize,
    filters: usize,
    /// Shape of the result.
    out: Shape,
}

impl Plan {
    fn of(image: &Shape, filter: &Shape, sliding: &Sliding) -> Result<Plan, OpError> {
        let ([batch, height, width, depth], [rows, columns, in_depth, filters]) = (&image[..], &filter[..])
        else {
            return Err(OpError::invalid(format!(
                "input and filter must be 4-dimensional: {image} and {filter}"
            )));
        };
        let (batch, depth, filters) = (*batch, *depth, *filters);
        if depth != *in_depth {
            return Err(OpError::invalid(format!(
                "input depth must be evenly divisible by filter depth, and here equal to it: {depth} vs {in_depth}"
            )));
        }
        let slides = sliding.over([*height, *width], [*rows, *columns])?;
        let out = Shape::new(&[batch, slides[0].places, slides[1].places, filters])?;
        Ok(Plan { batch, slides, depth, filters, out })
    }

    /// Windows of one image.
    fn places(&self) -> usize {
        self.slides[0].places * self.slides[1].places
    }

    /// Elements of one window.
    fn window(&self) -> usize {
        self.slides[0].window * self.slides[1].window * self.depth
    }

    fn image(&self) -> usize {
        self.slides[0].size * self.slides[1].size * self.depth
    }

    /// Room for the windows of one image (K2).
    fn columns<T: Factor>(&self) -> Result<Vec<T>, OpError> {
        let (places, window) = (self.places(), self.window());
        let refused = |why: &str| {
            let message = format!("OOM when unfolding {places} windows of {window} elements: {why}");
            OpError::new(ringway_proto::tensorflow::error::Code::ResourceExhausted, message)
        };
        let len = places.checked_mul(window).filter(|len| *len <= TENSOR_BYTES_LIMIT / size_of::<T>());
        let len = len.ok_or_else(|| refused("convolve smaller images"))?;
        let _room = room(len * size_of::<T>()).map_err(|error| refused(&error.to_string()))?;
        Ok(vec![T::zero(); len])
    }

    /// Calls `run(in_windows, in_image)` for each run of `depth` elements that a window has inside the image.
    fn each(&self, mut run: impl FnMut(usize, Option<usize>)) {
        let [down, across] = self.slides;
        let mut at = 0;
        for y in 0..down.places {
            for x in 0..across.places {
                for i in 0..down.window {
                    let row = down.at(y, i);
                    for j in 0..across.window {
                        let pixel = row.zip(across.at(x, j)).map(|(row, column)| row * across.size + column);
                        run(at, pixel.map(|pixel| pixel * self.depth));
                        at += self.depth;
                    }
                }
            }
        }
    }

    /// The windows of one image, a row each.
    fn unfold<T: Factor>(&self, image: &[T], columns: &mut [T]) {
        self.each(|at, from| {
            let to = &mut columns[at..at + self.depth];
            match from {
                Some(from) => to.copy_from_slice(&image[from..from + self.depth]),
                None => to.fill(T::zero()),
            }
        });
    }

    /// Adds each window's elements to the image where they are.
    fn fold<T: Factor>(&self, columns: &[T], image: &mut [T]) {
        self.each(|at, to| {
            if let Some(to) = to {
                let to = image[to..to + self.depth].iter_mut();
                to.zip(&columns[at..at + self.depth]).for_each(|(to, from)| *to = *to + *from);
            }
        });
    }

    fn has_work(&self) -> bool {
        self.image() > 0 && self.places() > 0 && self.filters > 0
    }
}

fn convolved<T: Factor>(call: &Call<'_>, sliding: &Sliding) -> Result<Tensor, OpError> {
    let (image, filter) = (call.tensor(0)?, call.tensor(1)?);
    let plan = Plan::of(image.shape(), filter.shape(), sliding)?;
    let mut out = Writer::new(T::DTYPE, plan.out.clone())?;
    if !plan.has_work() {
        out.bytes_mut().fill(0);
        return Ok(out.freeze());
    }
    let (images, filter) = (image.as_slice::<T>()?, filter.as_slice::<T>()?);
    let mut columns = plan.columns::<T>()?;
    let results = out.elements_mut::<T>()?.chunks_exact_mut(plan.places() * plan.filters);
    for (image, result) in images.chunks_exact(plan.image()).zip(results) {
        if call.is_cancelled() {
            break;
        }
        plan.unfold(image, &mut columns);
        multiply(windows(&plan, &columns, false), filters(&plan, filter, false), result, false)?;
    }
    Ok(out.freeze())
}

/// The windows of an image as a matrix.
fn windows<'a, T>(plan: &Plan, columns: &'a [T], is_transposed: bool) -> Matrix<'a, T> {
    Matrix { elements: columns, rows: plan.places(), columns: plan.window(), is_transposed }
}

/// The filters as a matrix, a column each.
fn filters<'a, T>(plan: &Plan, filter: &'a [T], is_transposed: bool) -> Matrix<'a, T> {
    Matrix { elements: filter, rows: plan.window(), columns: plan.filters, is_transposed }
}

/// The results of an image as a matrix, a row for each window.
fn results<'a, T>(plan: &Plan, results: &'a [T]) -> Matrix<'a, T> {
    Matrix { elements: results, rows: plan.places(), columns: plan.filters, is_transposed: false }
}

fn conv(node: &Node) -> Built {
    widened(node, |node| {
        let sliding = Sliding::of(node)?;
        by_float!(node, "T", T => heavy(move |call| {
            let out = convolved::<T>(call, &sliding)?;
            call.set(0, out)
        }))
    })
}

fn fused_conv(node: &Node) -> Built {
    widened(node, |node| {
        let (sliding, ops) = (Sliding::of(node)?, Fused::list(node)?);
        super::dispatch::by_type!(node, "T", [DtFloat f32], T => heavy(move |call| {
            let out = convolved::<T>(call, &sliding)?;
            let out = Fused::apply(&ops, out, call)?;
            call.set(0, out)
        }))
    })
}

/// Checks that a gradient is of the shape that the convolution gives.
fn check_gradient(plan: &Plan, gradient: &Tensor) -> Result<(), OpError> {
    if *gradient.shape() == plan.out {
        return Ok(());
    }
    let (given, expected) = (gradient.shape(), &plan.out);
    Err(OpError::invalid(format!("out_backprop has shape {given}, and the convolution gives {expected}")))
}

fn backprop_filter(node: &Node) -> Built {
    widened(node, |node| {
        let sliding = Sliding::of(node)?;
        by_float!(node, "T", T => heavy(move |call| {
            let (image, shape, gradient) = (call.tensor(0)?, shape_input(call, 1)?, call.tensor(2)?);
            let plan = Plan::of(image.shape(), &shape, &sliding)?;
            check_gradient(&plan, &gradient)?;
            let mut out = Writer::new(gradient.dtype(), shape)?;
            out.bytes_mut().fill(0);
            if plan.has_work() {
                let to = out.elements_mut::<T>()?;
                let mut columns = plan.columns::<T>()?;
                let gradients = gradient.as_slice::<T>()?.chunks_exact(plan.places() * plan.filters);
                for (image, gradient) in image.as_slice::<T>()?.chunks_exact(plan.image()).zip(gradients) {
                    plan.unfold(image, &mut columns);
                    multiply(windows(&plan, &columns, true), results(&plan, gradient), to, true)?;
                }
            }
            call.set(0, out.freeze())
        }))
    })
}

fn backprop_input(node: &Node) -> Built {
    widened(node, |node| {
        let sliding = Sliding::of(node)?;
        by_float!(node, "T", T => heavy(move |call| {
            let (mut shape, filter, gradient) = (shape_input(call, 0)?, call.tensor(1)?, call.tensor(2)?);
            // Height and width alone are enough.
            if let ([height, width], [batch, ..], [_, _, depth, _]) = (&shape[..], &gradient.shape()[..], &filter.shape()[..]) {
                shape = Shape::new(&[*batch, *height, *width, *depth])?;
            }
            let plan = Plan::of(&shape, filter.shape(), &sliding)?;
            check_gradient(&plan, &gradient)?;
            let mut out = Writer::new(gradient.dtype(), shape)?;
            out.bytes_mut().fill(0);
            if plan.has_work() {
                let mut columns = plan.columns::<T>()?;
                let filter = filter.as_slice::<T>()?;
                let gradients = gradient.as_slice::<T>()?.chunks_exact(plan.places() * plan.filters);
                let images = out.elements_mut::<T>()?.chunks_exact_mut(plan.image());
                for (image, gradient) in images.zip(gradients).take(plan.batch) {
                    multiply(results(&plan, gradient), filters(&plan, filter, true), &mut columns, false)?;
                    plan.fold(&columns, image);
                }
            }
            call.set(0, out.freeze())
        }))
    })
}
