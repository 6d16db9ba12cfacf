//! Keys of messages, and maps by them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Tag, and number of the message on it.
pub(super) type Key = (u64, u32);

/// Multiply-and-rotate over the few words of a key: keys are made by this job's own ranks, and their number is
/// bounded (M4), so no defence against chosen keys is needed.
#[derive(Default)]
pub(super) struct KeyHasher(u64);

impl KeyHasher {
    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.add(u64::from(*b)));
    }

    fn write_u32(&mut self, word: u32) {
        self.add(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.add(word);
    }
}

pub(super) type Map<K, V> = HashMap<K, V, BuildHasherDefault<KeyHasher>>;
