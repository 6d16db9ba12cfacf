//! Bytes that two processes of a host exchange: pure encoding and decoding, little-endian.
//!
//! Over the socket go greetings ([`Greeting`], each of [`GREETING_BYTES`], a message of its own). The dialler says who it is
//! and draws a nonce (`Knock`); the listener draws another and proves itself over both (`Challenge`); the dialler proves
//! itself in turn, and with that (`Hello`) come descriptors of its queue, doorbell, word and blocks; with the listener's
//! `Welcome` come those of its doorbell, word and blocks. So neither shows anything to a side that has not proven itself.
//! The listener says `Refuse` instead at either place. Then records go through the queue: a header
//! ([`transport::matching::header`](crate::transport::matching::header)) and, for some kinds, a payload, up to the next
//! cache line. The header's second byte is 1 where a place follows an `Rts`.
#![forbid(unsafe_code)]

use crate::transport::authentication::{Key, NONCE_BYTES, Nonce, Proof};
use crate::transport::matching::{Frame, Kind, MAX_RAILS, Place, header};

/// Length of a record's header.
pub const HEADER_BYTES: usize = header::BYTES;
/// Length of every greeting.
pub const GREETING_BYTES: usize = 128;
/// Length of an encoded [`Place`].
pub const PLACE_BYTES: usize = 8 + 4 * MAX_RAILS;
/// Version of greeting and records. Both sides must have the same.
pub const VERSION: u16 = 3;
/// What every greeting begins with.
pub const MAGIC: [u8; 4] = *b"RWSM";

/// Role of the side that connects, in its proof.
const DIALLER: &str = "ringway shm dialler";
/// Role of the side that was connected to.
const LISTENER: &str = "ringway shm listener";

/// Where shown payload is, as the first key of its [`Place`]: this many bytes into the sender's blocks.
pub const IN_BLOCKS: u32 = 1;
/// At this address of the sender's memory.
pub const IN_MEMORY: u32 = 2;

/// Why a listener turns a dialler away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Refusal {
    /// Both dial each other, and the listener's own connection is the one to keep.
    UseMine = 1,
    /// The dialler's proof is not that of a member of the group.
    Unproven = 2,
    /// The dialler wants another process, or another life of it.
    Peer = 3,
    /// There is, or was, a connection between the two already.
    Duplicate = 4,
    /// The kernel says that it is another user or process than it should be.
    Credentials = 5,
    /// What it shares could not be mapped.
    Memory = 6,
}

impl Refusal {
    fn from_code(code: u16) -> Option<Refusal> {
        use Refusal::{Credentials, Duplicate, Memory, Peer, Unproven, UseMine};
        [UseMine, Unproven, Peer, Duplicate, Credentials, Memory].into_iter().find(|r| *r as u16 == code)
    }

    /// In words, for the refused side.
    pub fn words(self) -> &'static str {
        match self {
            Refusal::UseMine => "it is dialling us itself",
            Refusal::Unproven => {
                "our proof is not that of its group: it belongs to another job, or the two have different tokens"
            }
            Refusal::Peer => "one of the two has restarted since their addresses were exchanged",
            Refusal::Duplicate => "it has had a connection with us before",
            Refusal::Credentials => "the kernel names another user or process than the address does",
            Refusal::Memory => {
                "it could not map the memory between us: see its log, and raise ulimit -v and -n"
            }
        }
    }
}

/// Who a dialler is and whom it wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Identity {
    /// The dialler.
    pub from: u32,
    /// Whom it takes the listener for.
    pub to: u32,
    /// The dialler's incarnation.
    pub from_incarnation: u64,
    /// The incarnation that it expects of the listener.
    pub to_incarnation: u64,
    /// Drawn for this connection.
    pub nonce: Nonce,
}

/// What a side offers, and where its memory may be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Offer {
    /// Largest eager message that it takes.
    pub eager_bytes: u32,
    /// Units of eager window that it keeps.
    pub window_units: u32,
    /// Where in its memory it keeps `probe`, for an attempt to read it.
    pub probe_address: u64,
    /// What is there.
    pub probe: u64,
}

/// What is said before records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// From the dialler, to whoever listens.
    Knock(Identity),
    /// From the listener: its nonce, and its proof.
    Challenge(Nonce, Proof),
    /// From the dialler: its proof.
    Hello(Offer, Proof),
    /// From the listener: records may follow.
    Welcome(Offer),
    /// From the listener, which closes then. The code may be one of a later version.
    Refuse(Result<Refusal, u16>),
}

/// Length of an identity's encoding.
const IDENTITY_BYTES: usize = 24 + NONCE_BYTES;
/// Length of an offer's encoding.
const OFFER_BYTES: usize = 24;

impl Identity {
    fn encode(&self) -> [u8; IDENTITY_BYTES] {
        let mut bytes = [0; IDENTITY_BYTES];
        bytes[..4].copy_from_slice(&self.from.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.to.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.from_incarnation.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.to_incarnation.to_le_bytes());
        bytes[24..].copy_from_slice(&self.nonce);
        bytes
    }

    fn read(r: &mut Reader<'_>) -> Identity {
        Identity {
            from: u32::from_le_bytes(r.take()),
            to: u32::from_le_bytes(r.take()),
            from_incarnation: u64::from_le_bytes(r.take()),
            to_incarnation: u64::from_le_bytes(r.take()),
            nonce: r.take(),
        }
    }

    /// What the listener proves itself with to a dialler that says this.
    #[must_use]
    pub fn prove_listener(&self, key: &Key, challenge: &Nonce) -> Proof {
        key.prove(LISTENER, &[&self.encode(), challenge])
    }

    /// Whether a listener that has this challenge and proof is the one that the dialler wants.
    #[must_use]
    pub fn is_listener(&self, key: &Key, challenge: &Nonce, proof: &Proof) -> bool {
        key.verify(LISTENER, &[&self.encode(), challenge], proof)
    }

    /// What the dialler proves itself with.
    #[must_use]
    pub fn prove_dialler(&self, key: &Key, challenge: &Nonce, offer: &Offer) -> Proof {
        key.prove(DIALLER, &[&self.encode(), challenge, &offer.encode()])
    }

    /// Whether the dialler is who it says, and offers what it says.
    #[must_use]
    pub fn is_dialler(&self, key: &Key, challenge: &Nonce, offer: &Offer, proof: &Proof) -> bool {
        key.verify(DIALLER, &[&self.encode(), challenge, &offer.encode()], proof)
    }
}

impl Offer {
    fn encode(&self) -> [u8; OFFER_BYTES] {
        let mut bytes = [0; OFFER_BYTES];
        bytes[..4].copy_from_slice(&self.eager_bytes.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.window_units.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.probe_address.to_le_bytes());
        bytes[16..].copy_from_slice(&self.probe.to_le_bytes());
        bytes
    }

    fn read(r: &mut Reader<'_>) -> Offer {
        Offer {
            eager_bytes: u32::from_le_bytes(r.take()),
            window_units: u32::from_le_bytes(r.take()),
            probe_address: u64::from_le_bytes(r.take()),
            probe: u64::from_le_bytes(r.take()),
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    /// The next `N` bytes. Greetings have a fixed length, so there are enough.
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
        let mut bytes = Vec::with_capacity(GREETING_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        let kind: u16 = match self {
            Greeting::Knock(_) => 1,
            Greeting::Challenge(..) => 2,
            Greeting::Hello(..) => 3,
            Greeting::Welcome(_) => 4,
            Greeting::Refuse(_) => 5,
        };
        bytes.extend(kind.to_le_bytes());
        match self {
            Greeting::Knock(id) => bytes.extend(id.encode()),
            Greeting::Challenge(nonce, proof) => bytes.extend(nonce.iter().chain(proof)),
            Greeting::Hello(offer, proof) => bytes.extend(offer.encode().iter().chain(proof)),
            Greeting::Welcome(offer) => bytes.extend(offer.encode()),
            Greeting::Refuse(why) => {
                bytes.extend(why.map_or_else(|code| code, |why| why as u16).to_le_bytes());
            }
        }
        let mut out = [0; GREETING_BYTES];
        out[..bytes.len()].copy_from_slice(&bytes);
        out
    }

    /// Decodes, or says what is wrong.
    ///
    /// # Errors
    /// In words.
    pub fn decode(bytes: &[u8; GREETING_BYTES]) -> Result<Greeting, String> {
        let mut r = Reader(bytes);
        if r.take() != MAGIC {
            return Err("its greeting is not Ringway's".to_owned());
        }
        let version = u16::from_le_bytes(r.take());
        if version != VERSION {
            return Err(format!(
                "it speaks version {version} of the protocol, this program {VERSION}: run the same release everywhere"
            ));
        }
        match u16::from_le_bytes(r.take()) {
            1 => Ok(Greeting::Knock(Identity::read(&mut r))),
            2 => Ok(Greeting::Challenge(r.take(), r.take())),
            3 => Ok(Greeting::Hello(Offer::read(&mut r), r.take())),
            4 => Ok(Greeting::Welcome(Offer::read(&mut r))),
            5 => {
                let code = u16::from_le_bytes(r.take());
                Ok(Greeting::Refuse(Refusal::from_code(code).ok_or(code)))
            }
            other => Err(format!("its greeting is of unknown kind {other}")),
        }
    }
}

/// A frame's header and, of an `Rts`, whether its place follows.
pub fn encode(frame: &Frame) -> ([u8; HEADER_BYTES], bool) {
    let placed = frame.kind == Kind::Rts && !frame.place.is_none();
    let mut bytes = [0; HEADER_BYTES];
    header::write(frame, placed.into(), &mut bytes);
    (bytes, placed)
}

/// The frame of a header, and the length of the payload that follows it in the record; of an `Rts` its place.
///
/// # Errors
/// In words, when no well-behaved peer sends this.
pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<(Frame, usize), String> {
    let unknown =
        || format!("it sent a record that begins with {:02x?}, which is of no known kind", &bytes[..2]);
    let frame = header::read(bytes).ok_or_else(unknown)?;
    let payload = match (frame.kind, bytes[1]) {
        (Kind::Rts, 1) => PLACE_BYTES as u64,
        (Kind::Eager | Kind::Data | Kind::Note, 0) => frame.length,
        (_, 0) => 0,
        _ => return Err(unknown()),
    };
    let most = super::segment::RING_BYTES as u64 - HEADER_BYTES as u64;
    if payload > most {
        return Err(format!("it sent a record of {payload} bytes, over the limit of {most}"));
    }
    Ok((frame, payload as usize))
}

/// The bytes of a place.
pub fn encode_place(place: &Place) -> [u8; PLACE_BYTES] {
    let mut bytes = [0; PLACE_BYTES];
    bytes[..8].copy_from_slice(&place.address.to_le_bytes());
    for (key, into) in place.keys.iter().zip(bytes[8..].chunks_exact_mut(4)) {
        into.copy_from_slice(&key.to_le_bytes());
    }
    bytes
}

/// The place of these bytes.
pub fn decode_place(bytes: &[u8; PLACE_BYTES]) -> Place {
    let mut r = Reader(bytes);
    Place {
        address: u64::from_le_bytes(r.take()),
        keys: std::array::from_fn(|_| u32::from_le_bytes(r.take())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::authentication::PROOF_BYTES;
    use crate::transport::seed::Seeded;

    #[test]
    fn greetings_read_back() {
        let id = Identity { from: 1, to: 2, from_incarnation: 3, to_incarnation: 4, nonce: [5; NONCE_BYTES] };
        let offer = Offer { eager_bytes: 6, window_units: 7, probe_address: 8, probe: 9 };
        let all = [
            Greeting::Knock(id),
            Greeting::Challenge([1; NONCE_BYTES], [2; PROOF_BYTES]),
            Greeting::Hello(offer, [3; PROOF_BYTES]),
            Greeting::Welcome(offer),
            Greeting::Refuse(Ok(Refusal::Memory)),
            Greeting::Refuse(Err(99)),
        ];
        for greeting in all {
            assert_eq!(Greeting::decode(&greeting.encode()), Ok(greeting));
        }
        let mut bytes = Greeting::Knock(id).encode();
        bytes[4] = 9;
        assert!(Greeting::decode(&bytes).unwrap_err().contains("version 9"));
        bytes[0] = 0;
        assert!(Greeting::decode(&bytes).unwrap_err().contains("not Ringway's"));
    }

    #[test]
    fn a_proof_holds_for_its_side_its_nonces_and_what_was_said() {
        // A2, A3
        let (key, nonce) = (Key::new([1; 32]), [2; NONCE_BYTES]);
        let id = Identity { from: 1, to: 2, from_incarnation: 3, to_incarnation: 4, nonce: [5; NONCE_BYTES] };
        let offer = Offer { eager_bytes: 6, ..Offer::default() };
        let (dialler, listener) = (id.prove_dialler(&key, &nonce, &offer), id.prove_listener(&key, &nonce));
        assert!(id.is_dialler(&key, &nonce, &offer, &dialler) && id.is_listener(&key, &nonce, &listener));
        assert!(!id.is_dialler(&key, &nonce, &offer, &listener) && !id.is_listener(&key, &nonce, &dialler));
        let other = Key::new([3; 32]);
        assert!(
            !id.is_dialler(&other, &nonce, &offer, &dialler) && !id.is_listener(&other, &nonce, &listener)
        );
        let later = [6; NONCE_BYTES];
        assert!(!id.is_dialler(&key, &later, &offer, &dialler) && !id.is_listener(&key, &later, &listener));
        assert!(!id.is_dialler(&key, &nonce, &Offer { probe: 1, ..offer }, &dialler));
        let another = Identity { nonce: later, ..id };
        assert!(!another.is_listener(&key, &nonce, &listener));
        assert!(!Identity { from: 9, ..id }.is_dialler(&key, &nonce, &offer, &dialler));
    }

    #[test]
    fn hostile_headers_are_bounded() {
        let mut random = Seeded::new(11);
        for _ in 0..100_000 {
            let mut bytes = [0; HEADER_BYTES];
            bytes.iter_mut().for_each(|b| *b = random.next_u64() as u8);
            bytes[0] %= 16;
            bytes[1] %= 3;
            if random.below(2) == 0 {
                bytes[43..48].fill(0);
            }
            if let Ok((_, payload)) = decode(&bytes) {
                assert!(payload + HEADER_BYTES <= super::super::segment::RING_BYTES);
            }
        }
        let place = Place { address: 5, keys: [IN_MEMORY, 0, 0, 9] };
        assert_eq!(decode_place(&encode_place(&place)), place);
        let rts = Frame { place, ..Frame::bare(Kind::Rts) };
        let (bytes, placed) = encode(&rts);
        assert!(placed);
        assert_eq!(decode(&bytes), Ok((Frame { place: Place::default(), ..rts }, PLACE_BYTES)));
    }
}
