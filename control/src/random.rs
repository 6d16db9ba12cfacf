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

/// The data plane's greeting of a job: peers that greet otherwise belong to another job. Told to every rank by the
/// job id and, if there is one, its secret; it tells jobs apart and is no defence against one who listens.
pub(crate) fn token(job_id: &str, secret: &str) -> [u8; 16] {
    let mut token = [0; 16];
    for (half, out) in token.chunks_exact_mut(8).enumerate() {
        // FNV-1a, 64 bits, once from each of two offsets: fixed forever, unlike the standard library's hashers.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64 ^ (half as u64);
        for byte in job_id.bytes().chain([0]).chain(secret.bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        out.copy_from_slice(&hash.to_le_bytes());
    }
    token
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_differ_and_tokens_tell_jobs_apart() {
        let lives: std::collections::BTreeSet<u64> = (0..100).map(|_| incarnation().0).collect();
        assert_eq!(lives.len(), 100);
        assert_eq!(token("a", "s"), token("a", "s"));
        assert!(token("a", "s") != token("a", "t") && token("a", "s") != token("as", ""));
    }
}
