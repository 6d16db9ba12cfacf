//! A small network of dense layers, and its gradient, handed over layer by layer as soon as it is known.

use crate::random::Random;
use std::error::Error;
use std::ops::DerefMut;

/// What carries gradients between ranks. Buffers are lent: in at `start`, out at `wait`.
pub(crate) trait Reducer {
    type Buffer: DerefMut<Target = [f32]>;
    type Pending;
    /// A buffer of `len` numbers.
    fn alloc(&self, len: usize) -> Result<Self::Buffer, Box<dyn Error>>;
    /// Begins to sum the buffer over all ranks; every rank starts the same buffers in the same order.
    fn start(&self, buffer: Self::Buffer) -> Result<Self::Pending, Box<dyn Error>>;
    /// The sum.
    fn wait(&self, pending: Self::Pending) -> Result<Self::Buffer, Box<dyn Error>>;
}

/// One process by itself: the sum over one rank is what it has.
pub(crate) struct Alone;

impl Reducer for Alone {
    type Buffer = Vec<f32>;
    type Pending = Vec<f32>;

    fn alloc(&self, len: usize) -> Result<Vec<f32>, Box<dyn Error>> {
        Ok(vec![0.0; len])
    }
    fn start(&self, buffer: Vec<f32>) -> Result<Vec<f32>, Box<dyn Error>> {
        Ok(buffer)
    }
    fn wait(&self, pending: Vec<f32>) -> Result<Vec<f32>, Box<dyn Error>> {
        Ok(pending)
    }
}

/// `outputs = weights * inputs + bias`.
struct Layer {
    inputs: usize,
    outputs: usize,
    /// `outputs` rows of `inputs` weights, then `outputs` biases.
    parameters: Vec<f32>,
    velocity: Vec<f32>,
}

impl Layer {
    /// Weights drawn evenly from He's range, biases of zero.
    fn new(inputs: usize, outputs: usize, random: &mut Random) -> Layer {
        let range = (6.0 / inputs as f32).sqrt();
        let weights = (0..inputs * outputs).map(|_| (2.0 * random.unit() - 1.0) * range);
        let parameters: Vec<f32> = weights.chain(std::iter::repeat_n(0.0, outputs)).collect();
        Layer { inputs, outputs, velocity: vec![0.0; parameters.len()], parameters }
    }

    fn forward(&self, input: &[f32]) -> Vec<f32> {
        let (weights, biases) = self.parameters.split_at(self.inputs * self.outputs);
        let images = input.chunks_exact(self.inputs);
        let outputs = images.flat_map(|x| {
            let rows = weights.chunks_exact(self.inputs).zip(biases);
            rows.map(move |(row, bias)| bias + row.iter().zip(x).map(|(w, x)| w * x).sum::<f32>())
        });
        outputs.collect()
    }

    /// Adds up over the images how the loss changes with each parameter.
    fn gradient(&self, input: &[f32], error: &[f32], gradient: &mut [f32]) {
        gradient.fill(0.0);
        let (weights, biases) = gradient.split_at_mut(self.inputs * self.outputs);
        for (x, error) in input.chunks_exact(self.inputs).zip(error.chunks_exact(self.outputs)) {
            for ((row, bias), e) in weights.chunks_exact_mut(self.inputs).zip(&mut *biases).zip(error) {
                *bias += e;
                row.iter_mut().zip(x).for_each(|(w, x)| *w += e * x);
            }
        }
    }

    /// How the loss changes with each input that passed the rectifier.
    fn backward(&self, input: &[f32], error: &[f32]) -> Vec<f32> {
        let mut back = vec![0.0; input.len()];
        for (back, error) in back.chunks_exact_mut(self.inputs).zip(error.chunks_exact(self.outputs)) {
            for (row, e) in self.parameters.chunks_exact(self.inputs).zip(error) {
                back.iter_mut().zip(row).for_each(|(b, w)| *b += e * w);
            }
        }
        back.iter_mut().zip(input).filter(|(_, x)| **x <= 0.0).for_each(|(b, _)| *b = 0.0);
        back
    }

    fn update(&mut self, gradient: &[f32], rate: f32) {
        const MOMENTUM: f32 = 0.9;
        let state = self.parameters.iter_mut().zip(&mut self.velocity);
        for ((p, v), g) in state.zip(gradient) {
            *v = MOMENTUM * *v - rate * g;
            *p += *v;
        }
    }
}

/// Dense layers with rectifiers between them, and softmax with cross-entropy at the end.
pub(crate) struct Net<R: Reducer> {
    layers: Vec<Layer>,
    /// One for each layer, at home between steps.
    gradients: Vec<Option<R::Buffer>>,
}

impl<R: Reducer> Net<R> {
    /// A network with these widths, from the input to the classes; the same seed gives the same weights.
    pub(crate) fn new(widths: &[usize], seed: u64, reducer: &R) -> Result<Net<R>, Box<dyn Error>> {
        let mut random = Random::new(seed);
        let layers: Vec<Layer> = widths.windows(2).map(|w| Layer::new(w[0], w[1], &mut random)).collect();
        let buffers = layers.iter().map(|l| reducer.alloc(l.parameters.len()).map(Some));
        Ok(Net { gradients: buffers.collect::<Result<_, _>>()?, layers })
    }

    /// All weights and biases, layer by layer.
    pub(crate) fn parameters_mut(&mut self) -> impl Iterator<Item = &mut Vec<f32>> {
        self.layers.iter_mut().map(|layer| &mut layer.parameters)
    }

    /// FNV-1a over the bits of all parameters: equal exactly when they are, but for chance.
    pub(crate) fn checksum(&self) -> u64 {
        let bytes = self.layers.iter().flat_map(|l| &l.parameters).flat_map(|p| p.to_bits().to_le_bytes());
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, b| (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
    }

    /// The input of every layer, and the output of the last.
    fn activations(&self, pixels: &[f32]) -> Vec<Vec<f32>> {
        let mut all = vec![pixels.to_vec()];
        for (index, layer) in self.layers.iter().enumerate() {
            let mut output = layer.forward(&all[index]);
            if index + 1 < self.layers.len() {
                output.iter_mut().for_each(|x| *x = x.max(0.0));
            }
            all.push(output);
        }
        all
    }

    /// One step on this rank's part of a batch of `batch` images; returns the summed loss of the part.
    ///
    /// A layer's gradient is on its way to the other ranks while the layers before it are still computed.
    pub(crate) fn step(
        &mut self,
        reducer: &R,
        (pixels, labels): (&[f32], &[usize]),
        batch: usize,
        rate: f32,
    ) -> Result<f64, Box<dyn Error>> {
        let mut activations = self.activations(pixels);
        let mut error = activations.pop().unwrap_or_default();
        let loss = softmax_loss(&mut error, labels);
        let mut pending = Vec::new();
        for (index, layer) in self.layers.iter().enumerate().rev() {
            let input = &activations[index];
            let mut buffer = self.gradients[index].take().ok_or("an earlier step failed")?;
            layer.gradient(input, &error, &mut buffer);
            pending.push((index, reducer.start(buffer)?));
            if index > 0 {
                error = layer.backward(input, &error);
            }
        }
        for (index, pending) in pending {
            let sum = reducer.wait(pending)?;
            self.layers[index].update(&sum, rate / batch as f32);
            self.gradients[index] = Some(sum);
        }
        Ok(loss)
    }

    /// How many of the images are given their digit.
    pub(crate) fn correct(&self, pixels: &[f32], labels: &[usize]) -> usize {
        let scores = self.activations(pixels).pop().unwrap_or_default();
        let best = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]));
        let rows = scores.chunks_exact(scores.len() / labels.len().max(1));
        rows.zip(labels).filter(|(row, label)| best(row) == Some(**label)).count()
    }
}

/// Turns the scores of each image into the error of its probabilities; returns the summed cross-entropy.
fn softmax_loss(scores: &mut [f32], labels: &[usize]) -> f64 {
    let mut loss = 0.0;
    for (row, &label) in scores.chunks_exact_mut(crate::data::CLASSES).zip(labels) {
        let highest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row.iter_mut().for_each(|x| *x = (*x - highest).exp());
        let total: f32 = row.iter().sum();
        row.iter_mut().for_each(|x| *x /= total);
        loss -= f64::from(row[label].max(f32::MIN_POSITIVE).ln());
        row[label] -= 1.0;
    }
    loss
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reducer that keeps what was started, in order, and gives it back unchanged.
    #[derive(Default)]
    struct Recorder(std::cell::RefCell<Vec<Vec<f32>>>);

    impl Reducer for Recorder {
        type Buffer = Vec<f32>;
        type Pending = Vec<f32>;
        fn alloc(&self, len: usize) -> Result<Vec<f32>, Box<dyn Error>> {
            Alone.alloc(len)
        }
        fn start(&self, buffer: Vec<f32>) -> Result<Vec<f32>, Box<dyn Error>> {
            self.0.borrow_mut().push(buffer.clone());
            Ok(buffer)
        }
        fn wait(&self, pending: Vec<f32>) -> Result<Vec<f32>, Box<dyn Error>> {
            Ok(pending)
        }
    }

    fn images(count: usize) -> (Vec<f32>, Vec<usize>) {
        let mut random = Random::new(9);
        let pixels = (0..count * 6).map(|_| random.unit()).collect();
        (pixels, (0..count).map(|i| i % 10).collect())
    }

    const WIDTHS: [usize; 4] = [6, 7, 5, 10];

    fn gradients(pixels: &[f32], labels: &[usize]) -> Vec<Vec<f32>> {
        let recorder = Recorder::default();
        Net::new(&WIDTHS, 3, &recorder).unwrap().step(&recorder, (pixels, labels), 1, 0.0).unwrap();
        recorder.0.into_inner()
    }

    /// Each gradient, from the last layer to the first, against the difference quotient of the loss.
    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        let (pixels, labels) = images(11);
        let analytic = gradients(&pixels, &labels);
        let mut checked = 0;
        for (layer, gradient) in (0..WIDTHS.len() - 1).rev().zip(&analytic) {
            for index in (0..gradient.len()).step_by(3) {
                let loss = |shift: f32| {
                    let mut net = Net::new(&WIDTHS, 3, &Alone).unwrap();
                    net.layers[layer].parameters[index] += shift;
                    net.step(&Alone, (&pixels, &labels), 1, 0.0).unwrap()
                };
                let slope = (loss(5e-3) - loss(-5e-3)) / 1e-2;
                let difference = (slope - f64::from(gradient[index])).abs();
                assert!(difference < 2e-2, "layer {layer}, parameter {index}: {slope} {}", gradient[index]);
                checked += 1;
            }
        }
        assert!(checked > 40);
    }

    /// What ranks send adds up to what one process has, also where a rank has no image.
    #[test]
    fn the_parts_add_up_to_the_whole() {
        let (pixels, labels) = images(5);
        let whole = gradients(&pixels, &labels);
        let parts = [0..2, 2..2, 2..5].map(|r| gradients(&pixels[r.start * 6..r.end * 6], &labels[r]));
        for (layer, whole) in whole.iter().enumerate() {
            for (index, expected) in whole.iter().enumerate() {
                let sum: f32 = parts.iter().map(|part| part[layer][index]).sum();
                assert!((sum - expected).abs() < 1e-5, "layer {layer}, parameter {index}");
            }
        }
    }
}
