//! The largest of each window of an image, or their mean.

use super::contract::{Call, OpError};
use super::dispatch::{Built, by_number, by_type, kernel, widened};
use super::number::Number;
use super::registry::Family;
use super::shapes::shape_input;
use super::window::{Slide, Sliding, height_and_width};
use crate::core::graph::Node;
use crate::tensor::{Shape, Tensor, Writer};

/// Operations of this family.
pub(super) const OPS: Family = &[
    ("MaxPool", max_pool),
    ("MaxPoolGrad", max_pool_grad),
    ("AvgPool", avg_pool),
    ("AvgPoolGrad", avg_pool_grad),
];

/// A pool whose sizes fit.
struct Plan {
    slides: [Slide; 2],
    batch: usize,
    depth: usize,
    out: Shape,
}

impl Plan {
    fn of(image: &Shape, sliding: &Sliding, window: [usize; 2]) -> Result<Plan, OpError> {
        let [batch, height, width, depth] = image[..] else {
            return Err(OpError::invalid(format!("tensor_in must be 4-dimensional, and is {image}")));
        };
        let slides = sliding.over([height, width], window)?;
        let out = Shape::new(&[batch, slides[0].places, slides[1].places, depth])?;
        Ok(Plan { slides, batch, depth, out })
    }

    /// Calls `run(result, pixels)` for each window: where its result is, and where its pixels are, as places of their
    /// first channels.
    fn each(&self, mut run: impl FnMut(usize, &[usize])) {
        let [down, across] = self.slides;
        let mut pixels = Vec::new();
        let mut result = 0;
        for image in 0..self.batch {
            for y in 0..down.places {
                for x in 0..across.places {
                    pixels.clear();
                    for row in (0..down.window).filter_map(|i| down.at(y, i)) {
                        let first = (image * down.size + row) * across.size;
                        pixels.extend(
                            (0..across.window)
                                .filter_map(|j| across.at(x, j))
                                .map(|column| (first + column) * self.depth),
                        );
                    }
                    run(result, &pixels);
                    result += self.depth;
                }
            }
        }
    }
}

/// Refuses windows that are absurdly larger than the image, which would be walked for nothing.
fn window(node: &Node) -> Result<[usize; 2], super::BuildError> {
    let window = height_and_width(node, "ksize")?;
    if window.iter().any(|size| *size > 1 << 14) {
        return Err(node.attrs.wrong("ksize", "holds a size over 2^14").into());
    }
    Ok(window)
}

fn max_pool(node: &Node) -> Built {
    widened(node, |node| {
        let (sliding, window) = (Sliding::of(node)?, window(node)?);
        by_number!(node, "T", T => kernel(move |call| {
            let image = call.tensor(0)?;
            let plan = Plan::of(image.shape(), &sliding, window)?;
            let mut out = Writer::new(image.dtype(), plan.out.clone())?;
            let (from, to) = (image.as_slice::<T>()?, out.elements_mut::<T>()?);
            plan.each(|result, pixels| {
                let to = &mut to[result..result + plan.depth];
                to.fill(T::LOWEST);
                for pixel in pixels {
                    to.iter_mut().zip(&from[*pixel..]).for_each(|(to, from)| *to = to.larger(*from));
                }
            });
            call.set(0, out.freeze())
        }))
    })
}

/// The gradient goes to the first of the largest of each window.
fn max_pool_grad(node: &Node) -> Built {
    widened(node, |node| {
        let (sliding, window) = (Sliding::of(node)?, window(node)?);
        by_number!(node, "T", T => kernel(move |call| {
            let (image, gradient) = (call.tensor(0)?, call.tensor(2)?);
            let plan = Plan::of(image.shape(), &sliding, window)?;
            check(&plan, &gradient)?;
            let mut out = Writer::new(image.dtype(), image.shape().clone())?;
            out.bytes_mut().fill(0);
            let (from, gradients, to) = (image.as_slice::<T>()?, gradient.as_slice::<T>()?, out.elements_mut::<T>()?);
            plan.each(|result, pixels| {
                for channel in 0..plan.depth {
                    let mut places = pixels.iter().map(|pixel| pixel + channel);
                    let Some(first) = places.next() else { continue };
                    let best = places.fold(first, |best, at| if from[at] > from[best] { at } else { best });
                    to[best] = to[best].plus(gradients[result + channel]);
                }
            });
            call.set(0, out.freeze())
        }))
    })
}

fn check(plan: &Plan, gradient: &Tensor) -> Result<(), OpError> {
    if *gradient.shape() == plan.out {
        return Ok(());
    }
    let (given, expected) = (gradient.shape(), &plan.out);
    Err(OpError::invalid(format!("Expected grad shape to be {expected}, but got {given}")))
}

fn avg_pool(node: &Node) -> Built {
    widened(node, |node| {
        let (sliding, window) = (Sliding::of(node)?, window(node)?);
        by_type!(node, "T", [DtFloat f32, DtDouble f64], T => kernel(move |call| {
            let image = call.tensor(0)?;
            let plan = Plan::of(image.shape(), &sliding, window)?;
            let mut out = Writer::new(image.dtype(), plan.out.clone())?;
            let (from, to) = (image.as_slice::<T>()?, out.elements_mut::<T>()?);
            plan.each(|result, pixels| {
                let to = &mut to[result..result + plan.depth];
                to.fill(0.0);
                for pixel in pixels {
                    to.iter_mut().zip(&from[*pixel..]).for_each(|(to, from)| *to += *from);
                }
                to.iter_mut().for_each(|sum| *sum /= pixels.len() as T);
            });
            call.set(0, out.freeze())
        }))
    })
}

fn avg_pool_grad(node: &Node) -> Built {
    widened(node, |node| {
        let (sliding, window) = (Sliding::of(node)?, window(node)?);
        by_type!(node, "T", [DtFloat f32, DtDouble f64], T => kernel(move |call: &mut Call<'_>| {
            let (shape, gradient) = (shape_input(call, 0)?, call.tensor(1)?);
            let plan = Plan::of(&shape, &sliding, window)?;
            check(&plan, &gradient)?;
            let mut out = Writer::new(gradient.dtype(), shape)?;
            out.bytes_mut().fill(0);
            let (gradients, to) = (gradient.as_slice::<T>()?, out.elements_mut::<T>()?);
            plan.each(|result, pixels| {
                for pixel in pixels {
                    let from = &gradients[result..result + plan.depth];
                    to[*pixel..].iter_mut().zip(from).for_each(|(to, from)| *to += *from / pixels.len() as T);
                }
            });
            call.set(0, out.freeze())
        }))
    })
}
