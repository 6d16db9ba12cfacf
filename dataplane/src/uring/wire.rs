//! Bytes on the wire: pure encoding and decoding, little-endian.
//!
//! A connection begins with greetings ([`Greeting`], each of [`GREETING_BYTES`]): the listener's `Challenge`, the dialler's
//! `Hello`, the listener's `Welcome` or `Refuse`, as [`crate::transport::authentication`] has it. After a `Welcome`, frames
//! follow in both directions: a header of [`HEADER_BYTES`] and, for some kinds, a payload.
#![forbid(unsafe_code)]

use crate::transport::authentication::{DIALLER, Key, LISTENER, NONCE_BYTES, Nonce, PROOF_BYTES, Proof};
use crate::transport::matching::{Frame, header};

/// Length of a frame's header.
pub const HEADER_BYTES: usize = header::BYTES;
/// Length of every greeting.
pub const GREETING_BYTES: usize = 128;
/// Version of greeting and frames. Both sides must have the same.
pub const VERSION: u16 = 2;
/// What every greeting begins with.
pub const MAGIC: [u8; 4] = *b"RWAY";

/// Why bytes are not ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The first bytes are not [`MAGIC`].
    #[error("it begins with {0:02x?}, which is not Ringway's protocol")]
    Magic([u8; 4]),
    /// Another version.
    #[error("it speaks version {0} of the protocol, this program {VERSION}: run the same release everywhere")]
    Version(u16),
    /// A greeting of a kind that does not exist.
    #[error("its greeting is of unknown kind {0}")]
    Greeting(u16),
    /// A frame of a kind that does not exist, or with a reserved byte set.
    #[error("a frame begins with {0:02x?}, which is of no known kind")]
    Frame([u8; 2]),
}

/// Why a listener turns a dialler away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Refusal {
    /// The dialler has not been introduced yet: try again.
    NotYet = 1,
    /// Both dial each other, and the listener's own connection is the one to keep.
    UseMine = 2,
    /// The dialler's proof is not that of a member of the group.
    Unproven = 3,
    /// The dialler wants another peer than the one that listens here.
    Peer = 4,
    /// Another incarnation of either side.
    Incarnation = 5,
    /// There is, or was, a connection between the two already.
    Duplicate = 6,
}

impl Refusal {
    fn from_code(code: u16) -> Option<Refusal> {
        use Refusal::{Duplicate, Incarnation, NotYet, Peer, Unproven, UseMine};
        [NotYet, UseMine, Unproven, Peer, Incarnation, Duplicate].into_iter().find(|r| *r as u16 == code)
    }

    /// In words, for the refused side.
    pub fn words(self) -> &'static str {
        match self {
            Refusal::NotYet => "it does not know of us yet",
            Refusal::UseMine => "it is dialling us itself",
            Refusal::Unproven => {
                "our proof is not that of its group: it belongs to another job (check that no old process listens on this \
                 port), or the two have different tokens"
            }
            Refusal::Peer => "another peer listens on this port",
            Refusal::Incarnation => "one of the two has restarted since their addresses were exchanged",
            Refusal::Duplicate => "it has had a connection with us before",
        }
    }
}

/// Who one side is and what it wants and offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Identity {
    /// The speaker.
    pub from: u32,
    /// Whom it takes the other side for.
    pub to: u32,
    /// The speaker's incarnation.
    pub from_incarnation: u64,
    /// The incarnation that it expects of the other side.
    pub to_incarnation: u64,
    /// Identity of the speaker's host; 0: unknown.
    pub host: u128,
    /// The speaker's, drawn for this connection. The listener has said it before, in its challenge.
    pub nonce: Nonce,
    /// Which of several connections of the pair.
    pub channel: u16,
    /// Largest eager message that it takes.
    pub eager_bytes: u32,
    /// Units of eager window that it keeps.
    pub window_units: u32,
}

/// What is said before frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// From the listener, to whoever connects: its nonce.
    Challenge(Nonce),
    /// From the dialler.
    Hello(Identity, Proof),
    /// From the listener: frames may follow.
    Welcome(Identity, Proof),
    /// From the listener, which closes then. The code may be one of a later version.
    Refuse(Result<Refusal, u16>),
}

/// Length of an identity's encoding.
const IDENTITY_BYTES: usize = 50 + NONCE_BYTES;

impl Identity {
    fn encode(&self) -> [u8; IDENTITY_BYTES] {
        let mut bytes = [0; IDENTITY_BYTES];
        let mut w = Writer(&mut bytes, 0);
        w.put(&self.from.to_le_bytes());
        w.put(&self.to.to_le_bytes());
        w.put(&self.from_incarnation.to_le_bytes());
        w.put(&self.to_incarnation.to_le_bytes());
        w.put(&self.host.to_le_bytes());
        w.put(&self.nonce);
        w.put(&self.eager_bytes.to_le_bytes());
        w.put(&self.window_units.to_le_bytes());
        w.put(&self.channel.to_le_bytes());
        bytes
    }

    /// What the dialler proves itself with, to a listener that has challenged it.
    #[must_use]
    pub fn prove_dialler(&self, key: &Key, challenge: &Nonce) -> Proof {
        key.prove(DIALLER, &[&VERSION.to_le_bytes(), &self.encode(), challenge])
    }

    /// Whether a dialler has proven itself to a listener that has challenged it.
    #[must_use]
    pub fn is_dialler(&self, key: &Key, challenge: &Nonce, proof: &Proof) -> bool {
        key.verify(DIALLER, &[&VERSION.to_le_bytes(), &self.encode(), challenge], proof)
    }

    /// What the listener proves itself with, to a dialler that has proven itself: that holds its nonce, and so does this.
    #[must_use]
    pub fn prove_listener(&self, key: &Key, dialler: &Proof) -> Proof {
        key.prove(LISTENER, &[&VERSION.to_le_bytes(), &self.encode(), dialler])
    }

    /// Whether a listener has proven itself to the dialler, by what that has proven itself with.
    #[must_use]
    pub fn is_listener(&self, key: &Key, dialler: &Proof, proof: &Proof) -> bool {
        key.verify(LISTENER, &[&VERSION.to_le_bytes(), &self.encode(), dialler], proof)
    }
}

struct Writer<'a>(&'a mut [u8], usize);

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.0[self.1..self.1 + bytes.len()].copy_from_slice(bytes);
        self.1 += bytes.len();
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    /// The next `N` bytes. Buffers have fixed lengths, so there are enough.
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.0.split_at(N);
        self.0 = rest;
        let mut out = [0; N];
        out.copy_from_slice(head);
        out
    }
}

impl Greeting {
    /// Encodes.
    pub fn encode(&self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        let mut w = Writer(&mut bytes, 0);
        w.put(&MAGIC);
        w.put(&VERSION.to_le_bytes());
        match self {
            Greeting::Hello(id, proof) | Greeting::Welcome(id, proof) => {
                let kind: u16 = if matches!(self, Greeting::Hello(..)) { 1 } else { 2 };
                w.put(&kind.to_le_bytes());
                w.put(&id.encode());
                w.put(proof);
            }
            Greeting::Challenge(nonce) => {
                w.put(&4u16.to_le_bytes());
                w.put(nonce);
            }
            Greeting::Refuse(why) => {
                w.put(&3u16.to_le_bytes());
                w.put(&why.map_or_else(|code| code, |r| r as u16).to_le_bytes());
            }
        }
        bytes
    }

    /// Decodes.
    ///
    /// # Errors
    /// [`WireError`] when it is not ours.
    pub fn decode(bytes: &[u8; GREETING_BYTES]) -> Result<Greeting, WireError> {
        let mut r = Reader(bytes);
        let magic = r.take();
        if magic != MAGIC {
            return Err(WireError::Magic(magic));
        }
        let version = u16::from_le_bytes(r.take());
        if version != VERSION {
            return Err(WireError::Version(version));
        }
        let kind = u16::from_le_bytes(r.take());
        if kind == 3 {
            let code = u16::from_le_bytes(r.take());
            return Ok(Greeting::Refuse(Refusal::from_code(code).ok_or(code)));
        }
        if kind == 4 {
            return Ok(Greeting::Challenge(r.take()));
        }
        let id = Identity {
            from: u32::from_le_bytes(r.take()),
            to: u32::from_le_bytes(r.take()),
            from_incarnation: u64::from_le_bytes(r.take()),
            to_incarnation: u64::from_le_bytes(r.take()),
            host: u128::from_le_bytes(r.take()),
            nonce: r.take(),
            eager_bytes: u32::from_le_bytes(r.take()),
            window_units: u32::from_le_bytes(r.take()),
            channel: u16::from_le_bytes(r.take()),
        };
        let proof: [u8; PROOF_BYTES] = r.take();
        match kind {
            1 => Ok(Greeting::Hello(id, proof)),
            2 => Ok(Greeting::Welcome(id, proof)),
            other => Err(WireError::Greeting(other)),
        }
    }
}

/// Whether the first bytes of a connection, up to as many as a greeting has, can be one. Lets a listener close a
/// connection of another protocol at its first bytes.
pub fn plausible(first: &[u8]) -> bool {
    let n = first.len().min(MAGIC.len());
    first[..n] == MAGIC[..n]
}

/// Encodes a header.
pub fn encode(frame: &Frame) -> [u8; HEADER_BYTES] {
    header::encode(frame)
}

/// Decodes a header.
///
/// # Errors
/// [`WireError::Frame`] when its kind is unknown.
pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Frame, WireError> {
    header::decode(bytes).ok_or(WireError::Frame([bytes[0], bytes[1]]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::seed::Seeded;

    fn random_bytes<const N: usize>(random: &mut Seeded) -> [u8; N] {
        std::array::from_fn(|_| random.next_u64() as u8)
    }

    #[test]
    fn frames_come_back_as_they_were() {
        let mut random = Seeded::new(1);
        for round in 0..2000 {
            let mut bytes: [u8; HEADER_BYTES] = random_bytes(&mut random);
            bytes[..2].copy_from_slice(&[1 + round as u8 % header::KINDS.len() as u8, 0]);
            let frame = decode(&bytes).unwrap();
            assert_eq!(encode(&frame), bytes);
        }
    }

    #[test]
    fn greetings_come_back_as_they_were() {
        let mut random = Seeded::new(2);
        for (kind, end) in [(1u8, 106), (2, 106), (4, 24)] {
            let mut bytes: [u8; GREETING_BYTES] = random_bytes(&mut random);
            bytes[..8].copy_from_slice(&[b'R', b'W', b'A', b'Y', VERSION as u8, 0, kind, 0]);
            // Behind the last field there is nothing.
            bytes[end..].fill(0);
            assert_eq!(Greeting::decode(&bytes).unwrap().encode(), bytes);
        }
        for why in [Ok(Refusal::NotYet), Ok(Refusal::Duplicate), Err(900)] {
            assert_eq!(Greeting::decode(&Greeting::Refuse(why).encode()), Ok(Greeting::Refuse(why)));
        }
    }

    #[test]
    fn any_bytes_are_a_frame_or_an_error() {
        // T9
        let mut random = Seeded::new(3);
        for _ in 0..20_000 {
            let mut greeting: [u8; GREETING_BYTES] = random_bytes(&mut random);
            if random.once_in(2) {
                greeting[..4].copy_from_slice(&MAGIC);
            }
            if random.once_in(2) {
                greeting[4..6].copy_from_slice(&VERSION.to_le_bytes());
            }
            let wrong = Greeting::decode(&greeting);
            assert!(greeting[..4] == MAGIC || matches!(wrong, Err(WireError::Magic(_))));
            let header: [u8; HEADER_BYTES] = random_bytes(&mut random);
            assert_eq!(
                decode(&header).is_ok(),
                (1..=header::KINDS.len()).contains(&usize::from(header[0])) && header[1] == 0
            );
        }
    }

    #[test]
    fn other_protocols_are_known_by_their_first_bytes() {
        assert!(plausible(b"") && plausible(b"RW") && plausible(b"RWAY...."));
        assert!(!plausible(b"G") && !plausible(b"RWT") && !plausible(b"\x16\x03\x01"));
    }
}
