//! Random numbers for identities and secrets, from the kernel.

use ringway_topology::Incarnation;
use rustix::rand::{GetRandomFlags, getrandom};
use std::hash::{BuildHasher, RandomState};
use std::io;

/// Random bytes that nobody can guess.
///
/// # Errors
/// When the kernel gives none.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(taken) => filled += taken,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

/// A number that no other life of any task has: random, never 0 (which stands for "not known").
#[must_use]
pub fn incarnation() -> Incarnation {
    // RandomState is seeded by the kernel's generator; the process id and the time tell forked copies apart.
    let now = std::time::SystemTime::now();
    Incarnation(RandomState::new().hash_one((std::process::id(), now)).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_differ() {
        let lives: std::collections::BTreeSet<u64> = (0..100).map(|_| incarnation().0).collect();
        assert_eq!(lives.len(), 100);
    }
}
