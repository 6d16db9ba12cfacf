//! How two sides of a connection prove to each other that they belong together: pure, but for [`nonce`].
//!
//! A [`Key`] is what the control plane gave both sides: the secret of a group, or what two tasks told each other. It never
//! travels over the data plane. A proof is an HMAC-SHA256 (RFC 2104, FIPS 180-4) by that key over everything that a side
//! says of itself and of the other: numbers, incarnations, limits, queue pairs, and the nonces of both sides. Proofs are
//! compared in constant time.
//!
//! A transport keeps a [`Keyring`], which the control plane fills: it opens its transports first, since their addresses are
//! exchanged with the group's membership, and admits its peers when it has the group's secret.
//!
//! What a handshake over TCP looks like ([`crate::uring::wire`]):
//!
//! 1. The listener says a nonce of its own to whoever connects, and nothing else.
//! 2. The dialler says who it is, whom it wants, what it offers, a nonce of its own, and its proof ([`DIALLER`]) over all
//!    that and the listener's nonce.
//! 3. The listener answers with the same of itself, and its proof ([`LISTENER`]) over all that and the dialler's proof.
//!
//! In shared memory ([`crate::shm::wire`]) the dialler speaks first and the listener proves itself first, since greetings
//! there bring descriptors of memory, which neither side shows to one that has not proven itself. Datagrams of RDMA
//! ([`crate::rdma`]) each bring a proof.
//!
//! Invariants (cited by the tests):
//! - **A1** Nothing is taken from a side that has not proven itself, and nothing of value is shown to it: nonces, numbers
//!   and proofs alone.
//! - **A2** What was proven once proves nothing again: each proof is over a nonce that the other side drew for this
//!   connection.
//! - **A3** A proof of one side is none of the other: the two are of different roles, and name both sides in their order.
//! - **A4** A secret is neither printed nor sent.
#![forbid(unsafe_code)]

use hmac::{Hmac, KeyInit, Mac};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};

/// Length of a secret.
pub const SECRET_BYTES: usize = 32;
/// Length of a nonce: two draws are never alike.
pub const NONCE_BYTES: usize = 16;
/// Length of a proof.
pub const PROOF_BYTES: usize = 32;
/// Length of a block of SHA-256.
const BLOCK_BYTES: usize = 64;
/// Role of the side that connects.
pub const DIALLER: &str = "ringway dialler";
/// Role of the side that was connected to.
pub const LISTENER: &str = "ringway listener";

/// Random bytes that make a handshake unlike any other.
pub type Nonce = [u8; NONCE_BYTES];
/// Evidence that a side has the key.
pub type Proof = [u8; PROOF_BYTES];

/// Draws a nonce.
///
/// # Errors
/// When the kernel gives no random bytes.
pub fn nonce() -> io::Result<Nonce> {
    let mut bytes = [0; NONCE_BYTES];
    let mut filled = 0;
    while filled < NONCE_BYTES {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(bytes)
}

/// What two sides prove themselves to each other with.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; SECRET_BYTES]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A4
        f.write_str("Key(hidden)")
    }
}

impl Key {
    /// The key of those who share a secret.
    #[must_use]
    pub fn new(secret: [u8; SECRET_BYTES]) -> Key {
        Key(secret)
    }

    /// The key of two sides that told each other a secret each: the same on both.
    #[must_use]
    pub fn between(mine: &[u8; SECRET_BYTES], theirs: &[u8; SECRET_BYTES]) -> Key {
        let (low, high) = if mine <= theirs { (mine, theirs) } else { (theirs, mine) };
        Key(Key(*low).prove("ringway pair", &[high]))
    }

    /// A key that only those have who know this one and agree on `parts`, such as a job's name and its token.
    #[must_use]
    pub fn bound_to(&self, parts: &[&[u8]]) -> Key {
        Key(self.prove("ringway key", parts))
    }

    fn mac(&self, role: &str, parts: &[&[u8]]) -> Hmac<Sha256> {
        // As HMAC pads a key that is shorter than the hash's block.
        let mut block = [0; BLOCK_BYTES];
        block[..SECRET_BYTES].copy_from_slice(&self.0);
        let mut mac = Hmac::<Sha256>::new(&block.into());
        // Each with its length before it, so that no two lists of parts are the same bytes.
        for part in [role.as_bytes()].iter().chain(parts) {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }

    /// The proof of one who has the key, in a role, over these parts.
    #[must_use]
    pub fn prove(&self, role: &str, parts: &[&[u8]]) -> Proof {
        self.mac(role, parts).finalize().into_bytes().into()
    }

    /// Whether `proof` is that of one who has the key. Takes the same time wherever the two differ.
    #[must_use]
    pub fn verify(&self, role: &str, parts: &[&[u8]], proof: &Proof) -> bool {
        self.mac(role, parts).verify(proof.into()).is_ok()
    }
}

#[derive(Default)]
struct Keys {
    all: Option<Key>,
    by_life: HashMap<u64, Key>,
}

/// The keys of a process's peers, by their incarnations. Clones share what they hold: one is the transports', which look
/// when they meet a peer, another the control plane's, which fills it.
#[derive(Clone, Default)]
pub struct Keyring(Arc<RwLock<Keys>>);

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("Keyring").field("peers", &keys.by_life.len()).finish_non_exhaustive()
    }
}

impl Keyring {
    /// One that admits whoever has this secret: for sides that know it before they open their transports.
    #[must_use]
    pub fn of(secret: [u8; SECRET_BYTES]) -> Keyring {
        Keyring(Arc::new(RwLock::new(Keys { all: Some(Key::new(secret)), by_life: HashMap::new() })))
    }

    /// Admits the process of this incarnation, by this key from now on.
    pub fn admit(&self, incarnation: u64, key: Key) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).by_life.insert(incarnation, key);
    }

    /// Admits the process of this incarnation no more. Connections that stand go on.
    pub fn dismiss(&self, incarnation: u64) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).by_life.remove(&incarnation);
    }

    /// The key of the process of this incarnation; `None` while it is not admitted.
    #[must_use]
    pub fn key(&self, incarnation: u64) -> Option<Key> {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        keys.by_life.get(&incarnation).or(keys.all.as_ref()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs_are_those_of_the_standard() {
        // Computed by another implementation (Python's hmac) over the same framing.
        let key = Key::new([0x0b; 32]);
        let hex: String = key.prove("role", &[b"Hi", b"There"]).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "ed2613ea313193591454ff0c057953c34781c0d58fcbbabc3b99487c9daf295c");
    }

    #[test]
    fn a_proof_holds_for_its_key_role_and_parts_alone() {
        // A3
        let key = Key::new([7; 32]);
        let proof = key.prove(DIALLER, &[b"ab", b"c"]);
        assert!(key.verify(DIALLER, &[b"ab", b"c"], &proof));
        assert!(!key.verify(LISTENER, &[b"ab", b"c"], &proof));
        assert!(!key.verify(DIALLER, &[b"a", b"bc"], &proof));
        assert!(!key.verify(DIALLER, &[b"ab", b"c", b""], &proof));
        assert!(!Key::new([8; 32]).verify(DIALLER, &[b"ab", b"c"], &proof));
        for bit in 0..PROOF_BYTES * 8 {
            let mut wrong = proof;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.verify(DIALLER, &[b"ab", b"c"], &wrong), "bit {bit}");
        }
    }

    #[test]
    fn two_sides_come_to_one_key() {
        let (a, b) = ([1; 32], [2; 32]);
        assert!(Key::between(&a, &b) == Key::between(&b, &a));
        assert!(Key::between(&a, &b) != Key::between(&a, &a));
        let key = Key::new(a);
        assert!(key.bound_to(&[b"job", b"token"]) != key.bound_to(&[b"jobt", b"oken"]));
    }

    #[test]
    fn keys_are_found_by_life_and_never_printed() {
        // A4
        let (ring, shared) = (Keyring::default(), Keyring::of([9; 32]));
        assert!(ring.key(1).is_none() && shared.key(1).is_some());
        ring.clone().admit(1, Key::new([0xab; 32]));
        assert!(ring.key(1) == Some(Key::new([0xab; 32])) && ring.key(2).is_none());
        let shown = format!("{ring:?} {:?}", ring.key(1));
        assert!(!shown.contains("171") && !shown.contains("ab"), "{shown}");
        ring.dismiss(1);
        assert!(ring.key(1).is_none());
        assert!(nonce().unwrap() != nonce().unwrap());
    }
}
