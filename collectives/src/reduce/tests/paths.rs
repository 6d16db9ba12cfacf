//! I1 and I2: every path that this processor has, on every type and operation, against the reference and
//! against each other, bit for bit, at every alignment.

use super::reference;
use crate::reduce::{KernelPath, Kernels, ReduceOp};
use half::{bf16, f16};
use proptest::prelude::*;
use ringway_dataplane::memory::DType;
use ringway_dataplane::transport::seed::Seeded;

/// What surrounds every written slice, and must survive.
const GUARD: u8 = 0xa5;
/// Alignments tried, in bytes.
const OFFSETS: usize = 8;

fn paths() -> impl Iterator<Item = Kernels> {
    KernelPath::ALL.into_iter().filter_map(Kernels::on)
}

fn pairs() -> impl Iterator<Item = (ReduceOp, DType)> {
    let all = ReduceOp::ALL.into_iter().flat_map(|op| DType::ALL.into_iter().map(move |dtype| (op, dtype)));
    all.filter(|(op, dtype)| op.supports(*dtype))
}

/// Bytes that are the same on every run.
struct Random(Seeded);

impl Random {
    fn new(seed: u64) -> Random {
        Random(Seeded::new(seed))
    }

    /// `count` elements: one in four is a special value, the others random bits.
    fn elements(&mut self, dtype: DType, count: usize) -> Vec<u8> {
        let specials = specials(dtype);
        let mut bytes = Vec::new();
        for _ in 0..count {
            let bits = self.0.next_u64();
            let bits = if bits & 3 == 0 { specials[(bits >> 2) as usize % specials.len()] } else { bits };
            bytes.extend_from_slice(&low_bytes(bits, dtype.size()));
        }
        bytes
    }
}

/// The value of `size` bytes in the machine's order.
fn low_bytes(bits: u64, size: usize) -> Vec<u8> {
    match size {
        1 => vec![bits as u8],
        2 => (bits as u16).to_ne_bytes().to_vec(),
        4 => (bits as u32).to_ne_bytes().to_vec(),
        _ => bits.to_ne_bytes().to_vec(),
    }
}

/// Zeros, ones, infinities, NaNs with payloads and signs, subnormals and extremes, as bits.
fn specials(dtype: DType) -> Vec<u64> {
    let (exponent, one) = match dtype {
        DType::F16 => (0x7c00, 0x3c00),
        DType::Bf16 => (0x7f80, 0x3f80),
        DType::F32 => (0x7f80_0000, 0x3f80_0000),
        DType::F64 => (0x7ff0_0000_0000_0000, 0x3ff0_0000_0000_0000),
        _ => return vec![0, 1, 2, u64::MAX, i64::MAX as u64, i64::MIN as u64, 0x7f, 0x80, 0x7fff, 0x8000],
    };
    let sign = 1u64 << (dtype.size() * 8 - 1);
    let mantissa = sign - 1 - exponent;
    let quiet = exponent | (mantissa + 1) >> 1;
    let positive = [
        0,
        1,
        mantissa,
        mantissa + 1,
        one,
        one + 1,
        exponent - 1,
        exponent,
        exponent + 1,
        quiet,
        quiet + 5,
        exponent | mantissa,
    ];
    positive.into_iter().flat_map(|bits| [bits, bits | sign]).collect()
}

/// Element by element, by the reference.
fn expected(op: ReduceOp, dtype: DType, left: &[u8], right: &[u8]) -> Vec<u8> {
    let elements = left.chunks(dtype.size()).zip(right.chunks(dtype.size()));
    elements.flat_map(|(a, b)| reference::combine(op, dtype, a, b)).collect()
}

/// `bytes` at `offset` from an address that is a multiple of 64, with guards before and after.
struct Placed {
    buffer: Vec<u8>,
    start: usize,
    len: usize,
}

impl Placed {
    fn new(bytes: &[u8], offset: usize) -> Placed {
        let mut buffer = vec![GUARD; bytes.len() + 192];
        let start = 64 + buffer.as_ptr().align_offset(64) + offset;
        buffer[start..start + bytes.len()].copy_from_slice(bytes);
        Placed { buffer, start, len: bytes.len() }
    }

    fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.start + self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..self.start + self.len]
    }

    fn guards_hold(&self) -> bool {
        let (before, after) = (&self.buffer[..self.start], &self.buffer[self.start + self.len..]);
        before.iter().chain(after).all(|b| *b == GUARD)
    }
}

/// Both forms, both orders, at the given alignments, on every path.
fn check(op: ReduceOp, dtype: DType, left: &[u8], right: &[u8], offsets: [usize; 3]) {
    let expected = expected(op, dtype, left, right);
    for kernels in paths() {
        let case = || format!("{op} {dtype} {} {} bytes at {offsets:?}", kernels.path(), left.len());
        for (a, b) in [(left, right), (right, left)] {
            let mut acc = Placed::new(a, offsets[0]);
            let incoming = Placed::new(b, offsets[1]);
            kernels.combine(op, dtype, acc.bytes_mut(), incoming.bytes()).unwrap();
            assert_eq!(acc.bytes(), expected, "{}", case());
            assert!(acc.guards_hold(), "{}", case());

            let acc = Placed::new(a, offsets[0]);
            let mut out = Placed::new(&vec![0; a.len()], offsets[2]);
            kernels.combine_into(op, dtype, out.bytes_mut(), acc.bytes(), incoming.bytes()).unwrap();
            assert_eq!(out.bytes(), expected, "into: {}", case());
            assert!(out.guards_hold(), "into: {}", case());
        }
    }
}

#[test]
fn every_length_at_every_alignment() {
    let mut random = Random::new(1);
    for (op, dtype) in pairs() {
        for count in 0..=67 {
            let (left, right) = (random.elements(dtype, count), random.elements(dtype, count));
            let at = count % OFFSETS;
            check(op, dtype, &left, &right, [at, (count / OFFSETS) % OFFSETS, (at * 3 + 1) % OFFSETS]);
        }
        for at in 0..OFFSETS * OFFSETS {
            let (left, right) = (random.elements(dtype, 37), random.elements(dtype, 37));
            check(op, dtype, &left, &right, [at % OFFSETS, at / OFFSETS, (at * 5) % OFFSETS]);
        }
    }
}

#[test]
fn a_long_slice() {
    let mut random = Random::new(2);
    for (op, dtype) in pairs() {
        let (left, right) = (random.elements(dtype, 3001), random.elements(dtype, 3001));
        check(op, dtype, &left, &right, [1, 2, 3]);
    }
}

#[test]
fn one_nan_among_numbers_is_quiet_wherever_it_is() {
    const COUNT: usize = 3000;
    for (dtype, loud) in [(DType::F32, 0xffc1_2345), (DType::F64, 0xfff8_0123_4567_89ab)] {
        let one = if dtype == DType::F32 { 1f32.to_bits().into() } else { 1f64.to_bits() };
        let ones = low_bytes(one, dtype.size()).repeat(COUNT);
        for at in [0, 1, 511, 512, 1023, 1024, 2047, 2048, COUNT - 1] {
            let mut left = ones.clone();
            left[at * dtype.size()..][..dtype.size()].copy_from_slice(&low_bytes(loud, dtype.size()));
            for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Avg] {
                check(op, dtype, &left, &ones, [0; 3]);
            }
        }
    }
}

#[test]
fn every_special_value_meets_every_other() {
    for (op, dtype) in pairs() {
        let all = specials(dtype);
        let element = |bits: &u64| low_bytes(*bits, dtype.size());
        let left: Vec<u8> = all.iter().flat_map(|a| element(a).repeat(all.len())).collect();
        let right: Vec<u8> = all.iter().flat_map(element).collect::<Vec<_>>().repeat(all.len());
        check(op, dtype, &left, &right, [0; 3]);
    }
}

#[test]
fn every_f16_and_bf16_meets_every_special_value() {
    for dtype in [DType::F16, DType::Bf16] {
        let left: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max] {
            for special in specials(dtype).into_iter().step_by(5) {
                let right = low_bytes(special, 2).repeat(left.len() / 2);
                let expected = expected(op, dtype, &left, &right);
                for kernels in paths() {
                    let mut acc = left.clone();
                    kernels.combine(op, dtype, &mut acc, &right).unwrap();
                    assert!(acc == expected, "{op} {dtype} {} with {special:#x}", kernels.path());
                }
            }
        }
    }
}

/// The rounding of one combine is at most half a unit in the last place of the exact result.
#[test]
fn halves_are_within_half_a_unit_of_the_exact_result() {
    let mut random = Random::new(3);
    let read = |dtype, bytes: &[u8]| {
        let bits = u16::from_ne_bytes(bytes.try_into().unwrap());
        if dtype == DType::F16 { f16::from_bits(bits).to_f64() } else { f64::from(bf16::from_bits(bits)) }
    };
    // Largest finite value, smallest normal value, significant bits.
    for (dtype, largest, smallest, bits) in
        [(DType::F16, 65504.0, 2f64.powi(-14), 11), (DType::Bf16, f64::from(bf16::MAX), 2f64.powi(-126), 8)]
    {
        let (left, right) = (random.elements(dtype, 4000), random.elements(dtype, 4000));
        let mut checked = 0;
        for (op, exact) in
            [(ReduceOp::Sum, (|a, b| a + b) as fn(f64, f64) -> f64), (ReduceOp::Prod, |a, b| a * b)]
        {
            let mut acc = left.clone();
            crate::reduce::combine(op, dtype, &mut acc, &right).unwrap();
            for ((a, b), got) in left.chunks(2).zip(right.chunks(2)).zip(acc.chunks(2)) {
                let (a, b, got) = (read(dtype, a), read(dtype, b), read(dtype, got));
                let exact = exact(a, b);
                if exact.is_finite() && (smallest..=largest).contains(&exact.abs()) {
                    let bound = exact.abs() * 2f64.powi(-bits);
                    assert!((got - exact).abs() <= bound, "{op} {dtype}: {a:e}, {b:e} gave {got:e}");
                    checked += 1;
                }
            }
        }
        assert!(checked > 1000, "{dtype}: only {checked} results in range");
    }
}

#[test]
fn every_path_averages_alike() {
    let mut random = Random::new(4);
    for dtype in DType::ALL.into_iter().filter(|t| ReduceOp::Avg.supports(*t)) {
        for (count, ranks) in [(0, 1), (1, 2), (67, 3), (67, 1), (131, 257), (131, u32::MAX)] {
            let bytes = random.elements(dtype, count);
            let results = paths().map(|kernels| {
                let mut placed = Placed::new(&bytes, count % OFFSETS);
                kernels.finish(ReduceOp::Avg, dtype, placed.bytes_mut(), ranks).unwrap();
                assert!(placed.guards_hold(), "{dtype} {}", kernels.path());
                (kernels.path(), placed.bytes().to_vec())
            });
            let results: Vec<_> = results.collect();
            for (path, result) in &results[1..] {
                assert_eq!(result, &results[0].1, "{dtype} {path} over {ranks}");
            }
        }
    }
}

proptest! {
    /// Any bytes, any operation; a failure prints its smallest input and stores its seed.
    #[test]
    fn any_bytes(
        code in 1u8..=8,
        kind in 1u8..=13,
        elements in prop::collection::vec(any::<(u64, u64)>(), 0..200),
        offsets in any::<[u8; 3]>(),
    ) {
        let (op, dtype) = (ReduceOp::from_code(code).unwrap(), DType::from_code(kind).unwrap());
        if op.supports(dtype) {
            let side = |pick: fn(&(u64, u64)) -> u64| -> Vec<u8> {
                elements.iter().flat_map(|pair| low_bytes(pick(pair), dtype.size())).collect()
            };
            check(op, dtype, &side(|p| p.0), &side(|p| p.1), offsets.map(|o| usize::from(o) % OFFSETS));
        }
    }
}
