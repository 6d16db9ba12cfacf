//! Biases, softmax and losses.

use super::contract::{Call, OpError};
use super::dispatch::{Built, by_float, by_number, integers, kernel, widened};
use super::number::{Number, Real};
use super::registry::{BuildError, Family};
use crate::core::graph::Node;
use crate::tensor::{Scalar, Shape, Tensor, Writer};

/// Operations of this family.
pub(super) const OPS: Family = &[
    ("BiasAdd", bias_add),
    ("BiasAddV1", bias_add),
    ("BiasAddGrad", bias_add_grad),
    ("Softmax", softmax),
    ("LogSoftmax", log_softmax),
    ("SoftmaxCrossEntropyWithLogits", cross_entropy),
    ("SparseSoftmaxCrossEntropyWithLogits", sparse_cross_entropy),
];

/// Whether channels come right behind the batch (`NCHW`), and not last.
fn channels_first(node: &Node) -> Result<bool, BuildError> {
    // The first form of the operation has no such attribute.
    if node.op() == "BiasAddV1" {
        return Ok(false);
    }
    match node.attrs.text("data_format")? {
        "NHWC" => Ok(false),
        "NCHW" => Ok(true),
        _ => Err(node.attrs.wrong("data_format", "is neither NHWC nor NCHW").into()),
    }
}

/// Which dimension holds the channels.
fn channel_dimension(shape: &Shape, first: bool) -> Result<usize, OpError> {
    let dim = if first { Some(1) } else { shape.rank().checked_sub(1) };
    let dim = dim.filter(|dim| *dim < shape.rank() && shape.rank() >= 2);
    dim.ok_or_else(|| OpError::invalid(format!("Input tensor must be at least 2D: {shape}")))
}

fn bias_add(node: &Node) -> Built {
    widened(node, |node| {
        let first = channels_first(node)?;
        by_number!(node, "T", T => kernel(move |call| {
            let (value, bias) = (call.take(0)?, call.tensor(1)?);
            let dim = channel_dimension(value.shape(), first)?;
            if bias.shape().sizes() != [value.shape()[dim]] {
                let (bias, value) = (bias.shape(), value.shape());
                return Err(OpError::invalid(format!("Must provide as many biases as the channel dimension of the input tensor: {bias} vs. {value}")));
            }
            let inner = value.shape().product(dim + 1..);
            let mut out = value.into_writer_or_copy()?;
            let (elements, biases) = (out.elements_mut::<T>()?, bias.as_slice::<T>()?);
            if !elements.is_empty() {
                for row in elements.chunks_exact_mut(inner * biases.len()) {
                    for (run, bias) in row.chunks_exact_mut(inner).zip(biases) {
                        run.iter_mut().for_each(|value| *value = value.plus(*bias));
                    }
                }
            }
            call.set(0, out.freeze())
        }))
    })
}

fn bias_add_grad(node: &Node) -> Built {
    widened(node, |node| {
        let first = channels_first(node)?;
        by_number!(node, "T", T => kernel(move |call| {
            let gradient = call.tensor(0)?;
            let dim = channel_dimension(gradient.shape(), first)?;
            let (channels, inner) = (gradient.shape()[dim], gradient.shape().product(dim + 1..));
            let mut sums = vec![T::NO_SUM; channels];
            if !gradient.is_empty() {
                for row in gradient.as_slice::<T>()?.chunks_exact(inner * channels) {
                    for (run, sum) in row.chunks_exact(inner).zip(&mut sums) {
                        *sum = run.iter().fold(*sum, |sum, value| value.add_to(sum));
                    }
                }
            }
            let sums: Vec<T> = sums.into_iter().map(T::of_sum).collect();
            call.set(0, Tensor::vector(&sums)?)
        }))
    })
}

/// The largest of a row, and `ln` of the sum of `e^(x - largest)`.
fn log_sum<T: Real>(row: &[T]) -> (T, f64) {
    let largest = row.iter().copied().fold(T::LOWEST, Number::larger);
    let sum: f64 = row.iter().map(|x| x.minus(largest).exp().to_f64()).sum();
    (largest, sum.ln())
}

/// Computes each row of the innermost dimension with its largest element and the logarithm of its sum.
fn by_row<T: Real>(call: &mut Call<'_>, f: impl Fn(T, T, f64) -> T) -> Result<(), OpError> {
    let logits = call.take(0)?;
    let Some(width) = logits.shape().last().copied() else {
        return Err(OpError::invalid("logits must have >= 1 dimension, got []"));
    };
    let mut out = logits.into_writer_or_copy()?;
    if width > 0 {
        for row in out.elements_mut::<T>()?.chunks_exact_mut(width) {
            let (largest, log) = log_sum(row);
            row.iter_mut().for_each(|x| *x = f(*x, largest, log));
        }
    }
    call.set(0, out.freeze())
}

fn softmax(node: &Node) -> Built {
    widened(node, |node| {
        by_float!(node, "T", T => kernel(|call| {
            by_row::<T>(call, |x, largest, log| T::of_f64((x - largest).exp().to_f64() / log.exp()))
        }))
    })
}

fn log_softmax(node: &Node) -> Built {
    widened(node, |node| {
        by_float!(node, "T", T => kernel(|call| {
            by_row::<T>(call, |x, largest, log| T::of_f64((x - largest).to_f64() - log))
        }))
    })
}

/// The loss of each row and its gradient, for labels that are a distribution each.
fn cross_entropy(node: &Node) -> Built {
    widened(node, |node| {
        by_float!(node, "T", T => kernel(|call| {
            let (logits, labels) = (call.tensor(0)?, call.tensor(1)?);
            let plan = super::broadcast::Broadcast::of([logits.shape(), labels.shape()])?;
            let shape = plan.shape.clone();
            if shape.rank() != 2 {
                let (logits, labels) = (logits.shape(), labels.shape());
                return Err(OpError::invalid(format!("logits and labels must be broadcastable to a matrix: {logits} vs. {labels}")));
            }
            let spread = |tensor: &Tensor, which: usize| -> Result<Vec<T>, OpError> {
                let (elements, mut all) = (tensor.as_slice::<T>()?, Vec::with_capacity(shape.elements()));
                plan.runs(|_, from, len, steps| all.extend((0..len).map(|i| elements[from[which] + i * steps[which]])));
                Ok(all)
            };
            let (logits, labels) = (spread(&logits, 0)?, spread(&labels, 1)?);
            let mut losses = Writer::new(T::DTYPE, Shape::vector(shape[0])?)?;
            let mut gradient = Writer::new(T::DTYPE, shape.clone())?;
            let to = gradient.elements_mut::<T>()?;
            for (row, loss) in losses.elements_mut::<T>()?.iter_mut().enumerate() {
                let range = row * shape[1]..(row + 1) * shape[1];
                let (logits, labels) = (&logits[range.clone()], &labels[range.clone()]);
                let (largest, log) = log_sum(logits);
                let mut sum = 0.0;
                for ((to, x), p) in to[range].iter_mut().zip(logits).zip(labels) {
                    let log_q = (*x - largest).to_f64() - log;
                    // A label of zero adds nothing, however unlikely it is.
                    sum += if *p == 0.0 { 0.0 } else { -p.to_f64() * log_q };
                    *to = T::of_f64(log_q.exp()) - *p;
                }
                *loss = T::of_f64(sum);
            }
            call.set(0, losses.freeze())?;
            call.set(1, gradient.freeze())
        }))
    })
}

/// The loss of each row and its gradient, for labels that are one class each.
fn sparse_cross_entropy(node: &Node) -> Built {
    super::gather::check_index_type(node, "Tlabels")?;
    widened(node, |node| {
        by_float!(node, "T", T => kernel(|call| {
            let (logits, labels) = (call.take(0)?, call.tensor(1)?);
            let shape = logits.shape().clone();
            if shape.rank() != 2 || labels.shape().sizes() != [shape[0]] {
                let labels = labels.shape();
                return Err(OpError::invalid(format!("logits and labels must have the same first dimension, got logits shape {shape} and labels shape {labels}")));
            }
            let (classes, labels) = (shape[1], integers(&labels)?);
            if classes == 0 && shape[0] > 0 {
                return Err(OpError::invalid(format!("Must have at least one class, but got logits shape {shape}")));
            }
            if let Some(bad) = labels.iter().find(|label| !(0..classes as i64).contains(label)) {
                return Err(OpError::invalid(format!(
                    "Received a label value of {bad} which is outside the valid range of [0, {classes}).  Label values: {}",
                    labels.iter().take(32).map(i64::to_string).collect::<Vec<_>>().join(" ")
                )));
            }
            let mut losses = Writer::new(T::DTYPE, Shape::vector(shape[0])?)?;
            let mut gradient = logits.into_writer_or_copy()?;
            let rows = gradient.elements_mut::<T>()?.chunks_exact_mut(classes.max(1));
            for ((row, loss), label) in rows.zip(losses.elements_mut::<T>()?).zip(labels) {
                let (largest, log) = log_sum(row);
                *loss = T::of_f64(log - (row[label as usize] - largest).to_f64());
                row.iter_mut().for_each(|x| *x = T::of_f64(((*x - largest).to_f64() - log).exp()));
                row[label as usize] -= 1.0;
            }
            call.set(0, losses.freeze())?;
            call.set(1, gradient.freeze())
        }))
    })
}
