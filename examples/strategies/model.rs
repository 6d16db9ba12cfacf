//! The network that both strategies train: two dense layers with a rectifier between them, softmax at the end.

use ringway::session::{GraphBuilder, Op, Output};
use ringway::tensor::{DataType, PartialShape, Shape, Tensor, TensorError};

use crate::data::{CLASSES, Images, PIXELS};
use crate::random::Random;

/// Widths of the layers, from the pixels to the digits.
const WIDTHS: [usize; 3] = [PIXELS, 32, CLASSES];
/// How far a step goes along the gradient.
pub(crate) const RATE: f32 = 0.2;

/// A variable and its value at the start.
struct Start {
    name: String,
    value: Tensor,
}

/// Weights and biases in order: weights from He's range, biases of zero. The same on every task.
fn starts(seed: u64) -> Result<Vec<Start>, TensorError> {
    let mut random = Random::new(seed);
    let mut all = Vec::new();
    for (layer, widths) in WIDTHS.windows(2).enumerate() {
        let range = (6.0 / widths[0] as f32).sqrt();
        let weights: Vec<f32> =
            (0..widths[0] * widths[1]).map(|_| (2.0 * random.unit() - 1.0) * range).collect();
        let weights = Tensor::new(Shape::new(widths)?, &weights)?;
        all.push(Start { name: format!("weights_{layer}"), value: weights });
        let biases = Tensor::zeros(DataType::DtFloat, Shape::new(&widths[1..])?)?;
        all.push(Start { name: format!("biases_{layer}"), value: biases });
    }
    Ok(all)
}

/// The variables of one copy of the network.
pub(crate) struct Variables {
    /// Their handles, in order.
    pub(crate) handles: Vec<Output>,
    /// Sets them to their values at the start.
    pub(crate) init: Op,
}

/// Makes the variables, each on the device that `place` gives for its number. `suffix` tells copies apart.
pub(crate) fn variables(
    graph: &mut GraphBuilder,
    suffix: &str,
    seed: u64,
    place: impl Fn(usize) -> String,
) -> Result<Variables, TensorError> {
    let (mut handles, mut inits) = (Vec::new(), Vec::new());
    for (number, start) in starts(seed)?.into_iter().enumerate() {
        graph.on(&place(number), |graph| {
            let shape = PartialShape::from(start.value.shape());
            let handle = graph.variable(&format!("{}{suffix}", start.name), DataType::DtFloat, &shape);
            let value = graph.constant(&start.value);
            inits.push(graph.assign(&handle, &value));
            handles.push(handle);
        });
    }
    let init = graph.on(&place(0), |graph| graph.group(&format!("init{suffix}"), &inits));
    Ok(Variables { handles, init })
}

/// What one worker computes from its images.
pub(crate) struct Tower {
    /// Fed with images, one a row.
    pub(crate) images: Output,
    /// Fed with their digits.
    pub(crate) digits: Output,
    /// Mean loss.
    pub(crate) loss: Output,
    /// The digit that each image seems to show.
    pub(crate) guesses: Output,
    /// How the mean loss changes with each variable, in their order.
    pub(crate) gradients: Vec<Output>,
}

/// The network over `variables`, computed on `device`.
pub(crate) fn tower(
    graph: &mut GraphBuilder,
    name: &str,
    device: &str,
    variables: &[Output],
) -> Result<Tower, TensorError> {
    let rows = PartialShape::from_sizes(&[-1, PIXELS as i64])?;
    let axis = Tensor::vector(&[0_i32])?;
    let (last, one) = (Tensor::scalar(1_i32)?, Tensor::scalar(1.0_f32)?);
    Ok(graph.on(device, |graph| {
        let images = graph.placeholder(&format!("{name}/images"), DataType::DtFloat, &rows);
        let digits =
            graph.placeholder(&format!("{name}/digits"), DataType::DtInt32, &PartialShape::unknown());
        let read: Vec<Output> = variables.iter().map(|v| graph.read(v, DataType::DtFloat)).collect();
        let hidden = graph.matmul(&images, &read[0], false, false);
        let hidden = graph.bias_add(&hidden, &read[1]);
        let hidden = graph.relu(&hidden);
        let scores = graph.matmul(&hidden, &read[2], false, false);
        let scores = graph.bias_add(&scores, &read[3]);
        let (losses, error) = graph.cross_entropy(&scores, &digits);
        let rows = graph.constant(&axis);
        let loss = graph.mean(&losses, &rows);
        // Of the mean: the error of each image counts by one over how many there are.
        let one = graph.constant(&one);
        let share = graph.node("Size").input(&digits).one();
        let share = graph.cast(&share, DataType::DtFloat);
        let share = graph.div(&one, &share);
        let error = graph.mul(&error, &share);
        let back = graph.matmul(&error, &read[2], false, true);
        let back = graph.relu_grad(&back, &hidden);
        let gradients = vec![
            graph.matmul(&images, &back, true, false),
            graph.sum(&back, &rows),
            graph.matmul(&hidden, &error, true, false),
            graph.sum(&error, &rows),
        ];
        let last = graph.constant(&last);
        let guesses = graph.arg_max(&scores, &last);
        Tower { images, digits, loss, guesses, gradients }
    }))
}

/// Images and digits as a tower is fed with them.
pub(crate) fn batch(images: &Images) -> Result<(Tensor, Tensor), TensorError> {
    let pixels = Tensor::new(Shape::new(&[images.len(), PIXELS])?, images.pixels())?;
    let digits: Vec<i32> = images.labels().iter().map(|digit| *digit as i32).collect();
    Ok((pixels, Tensor::vector(&digits)?))
}

/// Which part of the images was read right.
pub(crate) fn accuracy(guesses: &Tensor, images: &Images) -> Result<f64, TensorError> {
    let right = guesses.as_slice::<i64>()?.iter().zip(images.labels());
    let right = right.filter(|(guess, digit)| **guess == **digit as i64).count();
    Ok(right as f64 / images.len() as f64)
}
