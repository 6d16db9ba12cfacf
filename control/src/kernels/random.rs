//! Random values, with the bits that TensorFlow draws from the same seeds on a CPU. (The normal ones agree as far as the
//! platform's logarithm and sine do.)

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use half::{bf16, f16};
use ringway_proto::tensorflow::DataType;

use super::contract::{Call, OpError};
use super::dispatch::{Built, heavy, integers, kernel, unsupported};
use super::philox::{Philox, Words, normal_f32, normal_f64, unit_f32, unit_f64};
use super::registry::{BuildError, Family};
use super::shapes::shape_input;
use crate::core::graph::Node;
use crate::tensor::{Shape, Tensor, Writer};

/// Operations of this family.
pub(super) const OPS: Family = &[
    ("RandomUniform", random_uniform),
    ("RandomStandardNormal", random_normal),
    ("TruncatedNormal", truncated_normal),
    ("RandomUniformInt", random_uniform_int),
    ("RandomShuffle", random_shuffle),
    ("StatelessRandomUniform", stateless_uniform),
    ("StatelessRandomNormal", stateless_normal),
    ("StatelessTruncatedNormal", stateless_truncated_normal),
    ("StatelessRandomUniformV2", stateless_uniform_v2),
    ("StatelessRandomNormalV2", stateless_normal_v2),
    ("StatelessTruncatedNormalV2", stateless_truncated_normal_v2),
    ("StatelessRandomUniformInt", stateless_uniform_int),
    ("StatelessRandomUniformIntV2", stateless_uniform_int_v2),
    ("StatelessRandomGetKeyCounter", get_key_counter),
    ("StatelessRandomGetAlg", get_alg),
];

/// Blocks that TensorFlow puts aside for each element that an operation draws.
const BLOCKS_PER_ELEMENT: u64 = 256;
/// Truncated normals are within so many deviations.
const TRUNCATE: f64 = 2.0;
/// Elements that are drawn together of what is drawn again until it fits.
const GROUP: usize = 4;
/// The number of this generator among TensorFlow's.
const PHILOX: i32 = 1;

/// What is drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Law {
    Uniform,
    Normal,
    Truncated,
}

/// Elements drawn from a stream.
fn draw(law: Law, dtype: DataType, shape: Shape, from: Philox) -> Result<Tensor, OpError> {
    let mut out = Writer::new(dtype, shape)?;
    match dtype {
        DataType::DtFloat => match law {
            Law::Uniform => fill(out.elements_mut()?, from, |block| block.map(unit_f32)),
            Law::Normal => fill(out.elements_mut()?, from, normals),
            Law::Truncated => {
                truncated(out.elements_mut()?, from, |words| normal_f32([words.next(), words.next()]))
            }
        },
        DataType::DtDouble => match law {
            Law::Uniform => {
                fill(out.elements_mut()?, from, |[a, b, c, d]| [unit_f64([a, b]), unit_f64([c, d])])
            }
            Law::Normal => fill(out.elements_mut()?, from, normal_f64),
            Law::Truncated => truncated_f64(out.elements_mut()?, from),
        },
        DataType::DtHalf => match law {
            Law::Uniform => fill::<f16, 4>(out.elements_mut()?, from, |block| {
                block.map(|word| f16::from_f32(f16::from_bits(15 << 10 | word as u16 & 0x3ff).to_f32() - 1.0))
            }),
            Law::Normal => fill(out.elements_mut()?, from, |block| normals(block).map(f16::from_f32)),
            Law::Truncated => truncated(out.elements_mut()?, from, |words| {
                normal_f32([words.next(), words.next()]).map(f16::from_f32)
            }),
        },
        _ => match law {
            Law::Uniform => fill::<bf16, 4>(out.elements_mut()?, from, |block| {
                block
                    .map(|word| bf16::from_f32(bf16::from_bits(127 << 7 | word as u16 & 0x7f).to_f32() - 1.0))
            }),
            Law::Normal => fill(out.elements_mut()?, from, |block| normals(block).map(bf16::from_f32)),
            Law::Truncated => truncated(out.elements_mut()?, from, |words| {
                normal_f32([words.next(), words.next()]).map(bf16::from_f32)
            }),
        },
    }
    Ok(out.freeze())
}

/// The types that [`draw`] knows.
fn check_float(node: &Node) -> Result<DataType, BuildError> {
    const KNOWN: &[DataType] =
        &[DataType::DtFloat, DataType::DtDouble, DataType::DtHalf, DataType::DtBfloat16];
    let dtype = node.attrs.dtype("dtype")?;
    if KNOWN.contains(&dtype) { Ok(dtype) } else { Err(unsupported(node, "dtype", dtype, KNOWN)) }
}

fn normals([a, b, c, d]: [u32; 4]) -> [f32; 4] {
    let ([a, b], [c, d]) = (normal_f32([a, b]), normal_f32([c, d]));
    [a, b, c, d]
}

/// A block after the other, `N` elements from each.
fn fill<T: Copy, const N: usize>(out: &mut [T], mut from: Philox, make: impl Fn([u32; 4]) -> [T; N]) {
    for chunk in out.chunks_mut(N) {
        chunk.copy_from_slice(&make(from.next())[..chunk.len()]);
    }
}

/// Groups of four, each from a part of the stream of its own, drawn until four are small enough.
fn truncated<T: Copy + Into<f64>>(out: &mut [T], from: Philox, pair: impl Fn(&mut Words) -> [T; 2]) {
    const WORDS_PER_BLOCK: u64 = 4;
    for (group, chunk) in out.chunks_mut(GROUP).enumerate() {
        let mut from = from;
        from.skip(group as u64 * GROUP as u64 * BLOCKS_PER_ELEMENT / WORDS_PER_BLOCK);
        let mut words = Words::of(from);
        let mut filled = 0;
        while filled < chunk.len() {
            for value in pair(&mut words) {
                if value.into().abs() < TRUNCATE && filled < chunk.len() {
                    chunk[filled] = value;
                    filled += 1;
                }
            }
        }
    }
}

/// As [`truncated`], in groups of two, of which each pair of numbers takes four words.
fn truncated_f64(out: &mut [f64], from: Philox) {
    const PAIR: usize = 2;
    for (group, chunk) in out.chunks_mut(PAIR).enumerate() {
        let mut from = from;
        from.skip(group as u64 * PAIR as u64 * BLOCKS_PER_ELEMENT / 4);
        let mut words = Words::of(from);
        let mut filled = 0;
        while filled < chunk.len() {
            for value in normal_f64(std::array::from_fn(|_| words.next())) {
                if value.abs() < TRUNCATE && filled < chunk.len() {
                    chunk[filled] = value;
                    filled += 1;
                }
            }
        }
    }
}

/// Integers in `low..high`, which is not empty.
fn draw_ints(low: &Tensor, high: &Tensor, shape: Shape, from: Philox) -> Result<Tensor, OpError> {
    let range = |low: i64, high: i64| {
        if low < high {
            Ok(high.wrapping_sub(low) as u64)
        } else {
            Err(OpError::invalid(format!("Need minval < maxval, got {low} >= {high}")))
        }
    };
    if low.dtype() == DataType::DtInt32 {
        let low = low.single::<i32>()?;
        let range = range(i64::from(low), i64::from(high.single::<i32>()?))? as u32;
        let int = |word: u32| low.wrapping_add((word % range) as i32);
        return Ok(Tensor::build(shape, |out| fill(out, from, |block| block.map(int)))?);
    }
    let low = low.single::<i64>()?;
    let range = range(low, high.single::<i64>()?)?;
    let int = |a: u32, b: u32| low.wrapping_add(((u64::from(a) | u64::from(b) << 32) % range) as i64);
    Ok(Tensor::build(shape, |out| fill(out, from, |[a, b, c, d]| [int(a, b), int(c, d)]))?)
}

/// A word that differs from one process, and one call, to the next.
fn word() -> u64 {
    RandomState::new().hash_one(())
}

/// The stream that a node draws from, step after step.
struct Stream(Mutex<Philox>);

impl Stream {
    fn of(node: &Node) -> Result<Stream, BuildError> {
        let seeds = [node.attrs.int("seed")? as u64, node.attrs.int("seed2")? as u64];
        let seeds = if seeds == [0, 0] { [word(), word()] } else { seeds };
        Ok(Stream(Mutex::new(Philox::new(seeds[0], seeds[1]))))
    }

    /// The place where so many blocks are this caller's alone.
    fn reserve(&self, blocks: u64) -> Philox {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let here = *stream;
        stream.skip(blocks);
        here
    }

    fn for_elements(&self, elements: usize) -> Philox {
        self.reserve((elements as u64).saturating_mul(BLOCKS_PER_ELEMENT))
    }
}

fn stateful(node: &Node, law: Law) -> Built {
    let (dtype, stream) = (check_float(node)?, Stream::of(node)?);
    heavy(move |call| {
        let shape = shape_input(call, 0)?;
        let from = stream.for_elements(shape.elements());
        call.set(0, draw(law, dtype, shape, from)?)
    })
}

fn random_uniform(node: &Node) -> Built {
    stateful(node, Law::Uniform)
}

fn random_normal(node: &Node) -> Built {
    stateful(node, Law::Normal)
}

fn truncated_normal(node: &Node) -> Built {
    stateful(node, Law::Truncated)
}

fn random_uniform_int(node: &Node) -> Built {
    let stream = Stream::of(node)?;
    kernel(move |call| {
        let shape = shape_input(call, 0)?;
        let from = stream.for_elements(shape.elements());
        call.set(0, draw_ints(&call.tensor(1)?, &call.tensor(2)?, shape, from)?)
    })
}

fn random_shuffle(node: &Node) -> Built {
    let stream = Stream::of(node)?;
    kernel(move |call| {
        let tensor = call.take(0)?;
        let Some(rows) = tensor.shape().first().copied().filter(|rows| *rows > 1) else {
            return call.set(0, tensor);
        };
        let mut order: Vec<i64> = (0..rows as i64).collect();
        let mut words = Words::of(stream.reserve((rows as u64 - 1).div_ceil(4)));
        for at in 0..rows - 1 {
            // 32 bits for each row but the last.
            order.swap(at, at + words.next() as usize % (rows - at));
        }
        call.set(0, super::gather::gathered(&tensor, &Tensor::vector(&order)?, 0, 0)?)
    })
}

/// The two seeds in an input.
fn seeds(call: &Call<'_>, index: usize) -> Result<[u64; 2], OpError> {
    match integers(&call.tensor(index)?)?[..] {
        [a, b] => Ok([a as u64, b as u64]),
        _ => Err(OpError::invalid(format!("seed must have shape [2], not {}", call.tensor(index)?.shape()))),
    }
}

fn stateless(node: &Node, law: Law) -> Built {
    let dtype = check_float(node)?;
    heavy(move |call| {
        let drawn = draw(law, dtype, shape_input(call, 0)?, Philox::scrambled(seeds(call, 1)?))?;
        call.set(0, drawn)
    })
}

fn stateless_uniform(node: &Node) -> Built {
    stateless(node, Law::Uniform)
}

fn stateless_normal(node: &Node) -> Built {
    stateless(node, Law::Normal)
}

fn stateless_truncated_normal(node: &Node) -> Built {
    stateless(node, Law::Truncated)
}

fn stateless_uniform_int(_: &Node) -> Built {
    heavy(|call| {
        let (shape, from) = (shape_input(call, 0)?, Philox::scrambled(seeds(call, 1)?));
        call.set(0, draw_ints(&call.tensor(2)?, &call.tensor(3)?, shape, from)?)
    })
}

/// The stream that a key and a counter name.
fn keyed(call: &Call<'_>) -> Result<Philox, OpError> {
    let (key, counter, algorithm) = (call.tensor(1)?, call.tensor(2)?, call.tensor(3)?);
    let ([key], [low, high, ..]) = (key.as_slice::<u64>()?, counter.as_slice::<u64>()?) else {
        return Err(OpError::invalid("key must have one element, and counter two"));
    };
    let algorithm = algorithm.single::<i32>()?;
    // 3 leaves the choice to the device.
    if algorithm != PHILOX && algorithm != 3 {
        return Err(OpError::invalid(format!(
            "Unsupported algorithm id: {algorithm}: only Philox (1) is drawn from"
        )));
    }
    let split = |value: u64| [value as u32, (value >> 32) as u32];
    let ([a, b], [c, d]) = (split(*low), split(*high));
    Ok(Philox { counter: [a, b, c, d], key: split(*key) })
}

fn keyed_law(node: &Node, law: Law) -> Built {
    let dtype = check_float(node)?;
    heavy(move |call| {
        let drawn = draw(law, dtype, shape_input(call, 0)?, keyed(call)?)?;
        call.set(0, drawn)
    })
}

fn stateless_uniform_v2(node: &Node) -> Built {
    keyed_law(node, Law::Uniform)
}

fn stateless_normal_v2(node: &Node) -> Built {
    keyed_law(node, Law::Normal)
}

fn stateless_truncated_normal_v2(node: &Node) -> Built {
    keyed_law(node, Law::Truncated)
}

fn stateless_uniform_int_v2(_: &Node) -> Built {
    heavy(|call| {
        let (shape, from) = (shape_input(call, 0)?, keyed(call)?);
        call.set(0, draw_ints(&call.tensor(4)?, &call.tensor(5)?, shape, from)?)
    })
}

fn get_key_counter(_: &Node) -> Built {
    kernel(|call| {
        let Philox { counter: [a, b, c, d], key } = Philox::scrambled(seeds(call, 0)?);
        let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        call.set(0, Tensor::vector(&[join(key[0], key[1])])?)?;
        call.set(1, Tensor::vector(&[join(a, b), join(c, d)])?)
    })
}

fn get_alg(_: &Node) -> Built {
    kernel(|call| call.set(0, Tensor::scalar(PHILOX)?))
}
