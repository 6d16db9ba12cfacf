//! The generator that TensorFlow draws from: Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy
//! as 1, 2, 3; 2011). The same seeds give the same bits.

/// A stream of 128-bit blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Philox {
    pub(super) counter: [u32; 4],
    pub(super) key: [u32; 2],
}

const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const FACTORS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const ROUNDS: usize = 10;

fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

impl Philox {
    /// The stream of two seeds.
    pub(super) fn new(seed: u64, seed2: u64) -> Philox {
        let [low, high] = halves(seed2);
        Philox { counter: [0, 0, low, high], key: halves(seed) }
    }

    /// The stream of the seeds of an operation without state, which may be weak.
    pub(super) fn scrambled(seeds: [u64; 2]) -> Philox {
        let [a, b] = seeds.map(halves);
        let mut mixer = Philox { counter: [a[0], a[1], b[0], b[1]], key: [0x3ec8_f720, 0x0246_1e29] };
        let mix = mixer.next();
        Philox { counter: [0, 0, mix[2], mix[3]], key: [mix[0], mix[1]] }
    }

    /// Passes over so many blocks.
    pub(super) fn skip(&mut self, blocks: u64) {
        let [low, high] =
            [0, 2].map(|at| u64::from(self.counter[at]) | u64::from(self.counter[at + 1]) << 32);
        let (low, carry) = low.overflowing_add(blocks);
        let high = high.wrapping_add(u64::from(carry));
        let ([a, b], [c, d]) = (halves(low), halves(high));
        self.counter = [a, b, c, d];
    }

    /// The next block.
    pub(super) fn next(&mut self) -> [u32; 4] {
        let (mut block, mut key) = (self.counter, self.key);
        for round in 0..ROUNDS {
            if round > 0 {
                key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
            }
            let [a, b] =
                [u64::from(FACTORS[0]) * u64::from(block[0]), u64::from(FACTORS[1]) * u64::from(block[2])]
                    .map(halves);
            block = [b[1] ^ block[1] ^ key[0], b[0], a[1] ^ block[3] ^ key[1], a[0]];
        }
        self.skip(1);
        block
    }
}

/// A stream word by word.
pub(super) struct Words {
    from: Philox,
    block: [u32; 4],
    used: usize,
}

impl Words {
    pub(super) fn of(from: Philox) -> Words {
        Words { from, block: [0; 4], used: 4 }
    }

    pub(super) fn next(&mut self) -> u32 {
        if self.used == 4 {
            (self.block, self.used) = (self.from.next(), 0);
        }
        self.used += 1;
        self.block[self.used - 1]
    }
}

/// Uniform in [0, 1), from the low bits of a word.
pub(super) fn unit_f32(word: u32) -> f32 {
    f32::from_bits(127 << 23 | word & 0x7f_ffff) - 1.0
}

/// Uniform in [0, 1), from two words.
pub(super) fn unit_f64(words: [u32; 2]) -> f64 {
    let mantissa = u64::from(words[0] & 0xf_ffff) << 32 | u64::from(words[1]);
    f64::from_bits(1023 << 52 | mantissa) - 1.0
}

/// Two normal numbers (Box and Muller).
pub(super) fn normal_f32(words: [u32; 2]) -> [f32; 2] {
    let u = unit_f32(words[0]).max(1e-7);
    let angle = 2.0 * std::f32::consts::PI * unit_f32(words[1]);
    let radius = (-2.0 * u.ln()).sqrt();
    [angle.sin() * radius, angle.cos() * radius]
}

/// As [`normal_f32`].
pub(super) fn normal_f64(words: [u32; 4]) -> [f64; 2] {
    let u = unit_f64([words[0], words[1]]).max(1e-7);
    let angle = 2.0 * std::f64::consts::PI * unit_f64([words[2], words[3]]);
    let radius = (-2.0 * u.ln()).sqrt();
    [angle.sin() * radius, angle.cos() * radius]
}
