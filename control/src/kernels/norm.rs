//! Normalisation by the statistics of a batch.

use super::contract::{Call, OpError};
use super::dispatch::{Built, heavy, unsupported, widened};
use super::registry::{BuildError, Family};
use crate::core::graph::Node;
use crate::tensor::{Shape, Tensor, Writer};
use ringway_proto::tensorflow::DataType;

/// Operations of this family.
pub(super) const OPS: Family = &[
    ("FusedBatchNorm", batch_norm),
    ("FusedBatchNormV2", batch_norm),
    ("FusedBatchNormV3", batch_norm),
    ("FusedBatchNormGrad", batch_norm_grad),
    ("FusedBatchNormGradV2", batch_norm_grad),
    ("FusedBatchNormGradV3", batch_norm_grad),
];

/// Attributes of both.
#[derive(Clone, Copy)]
struct Norm {
    epsilon: f64,
    is_training: bool,
}

impl Norm {
    fn of(node: &Node) -> Result<Norm, BuildError> {
        if node.attrs.text("data_format")? != "NHWC" {
            return Err(node
                .attrs
                .wrong("data_format", "is not NHWC, which is the only format that is computed")
                .into());
        }
        for attr in ["T", "U"] {
            let dtype = node.attrs.dtype(attr).unwrap_or(DataType::DtFloat);
            if dtype != DataType::DtFloat {
                return Err(unsupported(node, attr, dtype, &[DataType::DtFloat]));
            }
        }
        let epsilon = f64::from(node.attrs.float("epsilon")?);
        Ok(Norm { epsilon, is_training: node.attrs.bool("is_training")? })
    }
}

/// The inputs `range`, each a row of one number per channel of `image`.
fn per_channel<const N: usize>(call: &Call<'_>, first: usize, image: &Shape) -> Result<[Tensor; N], OpError> {
    let Some(channels) = image.last().filter(|_| image.rank() == 4) else {
        return Err(OpError::invalid(format!("input must be 4-dimensional, and is {image}")));
    };
    let mut rows = Vec::with_capacity(N);
    for index in first..first + N {
        let row = call.tensor(index)?;
        if row.shape().sizes() != [*channels] {
            let given = row.shape();
            return Err(OpError::invalid(format!(
                "input {index} must have {channels} elements in a row, and is {given}"
            )));
        }
        rows.push(row);
    }
    rows.try_into().map_err(|_| OpError::internal("a row of channels is not there"))
}

fn empty() -> Result<Tensor, OpError> {
    Ok(Tensor::vector::<f32>(&[])?)
}

/// Mean and variance (over all elements, not all but one) of each channel.
fn statistics(elements: &[f32], channels: usize) -> (Vec<f64>, Vec<f64>) {
    let rows = elements.len() / channels.max(1);
    let (mut mean, mut variance) = (vec![0.0; channels], vec![0.0; channels]);
    for row in elements.chunks_exact(channels.max(1)) {
        mean.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
    }
    mean.iter_mut().for_each(|sum| *sum /= rows as f64);
    for row in elements.chunks_exact(channels.max(1)) {
        let pairs = variance.iter_mut().zip(&mean).zip(row);
        pairs.for_each(|((sum, mean), x)| *sum += (f64::from(*x) - mean).powi(2));
    }
    variance.iter_mut().for_each(|sum| *sum /= rows as f64);
    (mean, variance)
}

fn batch_norm(node: &Node) -> Built {
    widened(node, |node| {
        let norm = Norm::of(node)?;
        // The first form keeps nothing of what was before.
        let factor = f64::from(node.attrs.float("exponential_avg_factor").unwrap_or(1.0));
        heavy(move |call| {
            let x = call.take(0)?;
            let [scale, offset] = per_channel::<2>(call, 1, x.shape())?;
            let channels = scale.len();
            let old = if norm.is_training && factor == 1.0 {
                None
            } else {
                Some(per_channel::<2>(call, 3, x.shape())?)
            };
            let rows = x.len() / channels.max(1);
            let wide = |row: &Tensor| -> Result<Vec<f64>, OpError> {
                Ok(row.as_slice::<f32>()?.iter().map(|x| f64::from(*x)).collect())
            };
            let (mean, variance) = match &old {
                Some([mean, variance]) if !norm.is_training => (wide(mean)?, wide(variance)?),
                _ => statistics(x.as_slice()?, channels),
            };
            let (scale, offset) = (wide(&scale)?, wide(&offset)?);
            let mut y = x.into_writer_or_copy()?;
            for row in y.elements_mut::<f32>()?.chunks_exact_mut(channels.max(1)) {
                for (channel, x) in row.iter_mut().enumerate() {
                    let deviation = (variance[channel] + norm.epsilon).sqrt();
                    *x = ((f64::from(*x) - mean[channel]) / deviation * scale[channel] + offset[channel])
                        as f32;
                }
            }
            let narrow = |row: &[f64]| Tensor::vector(&row.iter().map(|x| *x as f32).collect::<Vec<_>>());
            // What goes on is the estimate over all but one, and what the gradient needs is over all.
            let unbiased = if norm.is_training { rows as f64 / (rows as f64 - 1.0).max(1.0) } else { 1.0 };
            let moving = |now: &[f64], unbiased: f64, at: usize| -> Result<Tensor, OpError> {
                let mut next: Vec<f64> = now.iter().map(|now| now * unbiased).collect();
                if let (Some(old), true) = (&old, norm.is_training) {
                    let old = wide(&old[at])?;
                    next.iter_mut()
                        .zip(old)
                        .for_each(|(next, old)| *next = *next * factor + old * (1.0 - factor));
                }
                Ok(narrow(&next)?)
            };
            call.set(0, y.freeze())?;
            call.set(1, moving(&mean, 1.0, 0)?)?;
            call.set(2, moving(&variance, unbiased, 1)?)?;
            call.set(3, narrow(&mean)?)?;
            call.set(4, narrow(&variance)?)?;
            if call.outputs() > 5 { call.set(5, empty()?) } else { Ok(()) }
        })
    })
}

fn batch_norm_grad(node: &Node) -> Built {
    widened(node, |node| {
        let norm = Norm::of(node)?;
        heavy(move |call| {
            let (gradient, x) = (call.tensor(0)?, call.tensor(1)?);
            if gradient.shape() != x.shape() {
                let (gradient, x) = (gradient.shape(), x.shape());
                return Err(OpError::invalid(format!(
                    "x and y_backprop must have same shape, but x has shape {x} and y_backprop {gradient}"
                )));
            }
            let [scale, mean, variance] = per_channel::<3>(call, 2, x.shape())?;
            let (scale, mean, variance) =
                (scale.as_slice::<f32>()?, mean.as_slice::<f32>()?, variance.as_slice::<f32>()?);
            let channels = scale.len();
            let rows = (x.len() / channels.max(1)) as f64;
            let (dy, elements) = (gradient.as_slice::<f32>()?, x.as_slice::<f32>()?);
            let inverse: Vec<f64> =
                variance.iter().map(|v| 1.0 / (f64::from(*v) + norm.epsilon).sqrt()).collect();
            let centred = |at: usize| {
                let channel = at % channels;
                (channel, (f64::from(elements[at]) - f64::from(mean[channel])) * inverse[channel])
            };
            let (mut of_scale, mut of_offset) = (vec![0.0; channels], vec![0.0; channels]);
            for (at, dy) in dy.iter().enumerate() {
                let (channel, x) = centred(at);
                of_scale[channel] += f64::from(*dy) * x;
                of_offset[channel] += f64::from(*dy);
            }
            let mut out = Writer::new(DataType::DtFloat, x.shape().clone())?;
            for (at, (out, dy)) in out.elements_mut::<f32>()?.iter_mut().zip(dy).enumerate() {
                let (channel, x) = centred(at);
                let through =
                    if norm.is_training { (of_offset[channel] + x * of_scale[channel]) / rows } else { 0.0 };
                *out = (f64::from(scale[channel]) * inverse[channel] * (f64::from(*dy) - through)) as f32;
            }
            let narrow = |row: &[f64]| Tensor::vector(&row.iter().map(|x| *x as f32).collect::<Vec<_>>());
            call.set(0, out.freeze())?;
            call.set(1, narrow(&of_scale)?)?;
            call.set(2, narrow(&of_offset)?)?;
            call.set(3, empty()?)?;
            call.set(4, empty()?)
        })
    })
}
