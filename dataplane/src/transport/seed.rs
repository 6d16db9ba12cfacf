//! A small seeded generator for what must be random and yet replay: loopback's reordering, faults, test schedules.
//!
//! SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014). Not for secrets.

/// A generator; the same seed gives the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Seeded(u64);

impl Seeded {
    /// The generator of `seed`.
    pub fn new(seed: u64) -> Seeded {
        Seeded(seed)
    }

    /// The generator of `seed` and two further words, e.g. the two ends of a channel.
    pub fn of(seed: u64, a: u64, b: u64) -> Seeded {
        let mut mix = Seeded(seed);
        mix.0 ^= mix.next_u64().wrapping_add(a);
        mix.0 ^= mix.next_u64().wrapping_add(b);
        mix
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 when `bound` is 0. The bias of the reduction is below `bound` / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A place in a list of so many; 0 when there is none.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True once in `n` on average; never when `n` is 0.
    pub fn once_in(&mut self, n: u32) -> bool {
        n > 0 && self.below(u64::from(n)) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replays_and_stays_in_bounds() {
        // The first output of SplitMix64 from state 0, as published with the algorithm.
        assert_eq!(Seeded::new(0).next_u64(), 0xe220_a839_7b1d_cdaf);
        let (mut a, mut b) = (Seeded::of(7, 1, 2), Seeded::of(7, 1, 2));
        assert!((0..1000).all(|_| a.below(10) == b.below(10)));
        assert!((0..1000).all(|_| a.below(3) < 3));
        assert_ne!(Seeded::of(7, 1, 2).next_u64(), Seeded::of(7, 2, 1).next_u64());
        assert!(!a.once_in(0) && a.once_in(1) && a.below(0) == 0 && a.index(1) == 0);
    }
}
