//! Random numbers that depend on the seed alone (SplitMix64: Steele, Lea and Flood, 2014).

use std::time::Duration;

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub(in crate::core) struct Random(u64);

impl Random {
    pub(in crate::core) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(in crate::core) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is above 0. The bias is below 2^-32 for the bounds used here.
    pub(in crate::core) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True so many times in a thousand.
    pub(in crate::core) fn per_mille(&mut self, times: u32) -> bool {
        self.below(1000) < u64::from(times)
    }

    /// A span from `least` to `most`.
    pub(in crate::core) fn span(&mut self, least: Duration, most: Duration) -> Duration {
        let range = (most - least).as_nanos() as u64 + 1;
        least + Duration::from_nanos(self.below(range))
    }
}
