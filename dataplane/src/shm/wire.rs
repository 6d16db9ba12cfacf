//! Bytes that two processes of a host exchange: pure encoding and decoding, little-endian.
//!
//! Over the socket goes one [`Greeting`] each way ([`GREETING_BYTES`], a message of its own): the dialler's `Hello` with
//! descriptors of its queue, doorbell, word and blocks, and the listener's `Welcome` with those of its doorbell, word and
//! blocks, or `Refuse`. Then records go through the queue: a header
//! ([`transport::matching::header`](crate::transport::matching::header)) and, for some kinds, a payload, up to the next
//! cache line. The header's second byte is 1 where a place follows an `Rts`.
#![forbid(unsafe_code)]

use crate::transport::matching::{Frame, Kind, MAX_RAILS, Place, header};

/// Length of a record's header.
pub const HEADER_BYTES: usize = header::BYTES;
/// Length of every greeting.
pub const GREETING_BYTES: usize = 128;
/// Length of an encoded [`Place`].
pub const PLACE_BYTES: usize = 8 + 4 * MAX_RAILS;
/// Version of greeting and records. Both sides must have the same.
pub const VERSION: u16 = 1;
/// What every greeting begins with.
pub const MAGIC: [u8; 4] = *b"RWSM";

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
    /// Another job's token.
    Token = 2,
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
        use Refusal::{Credentials, Duplicate, Memory, Peer, Token, UseMine};
        [UseMine, Token, Peer, Duplicate, Credentials, Memory].into_iter().find(|r| *r as u16 == code)
    }

    /// In words, for the refused side.
    pub fn words(self) -> &'static str {
        match self {
            Refusal::UseMine => "it is dialling us itself",
            Refusal::Token => "it belongs to another job",
            Refusal::Peer => "one of the two has restarted since their addresses were exchanged",
            Refusal::Duplicate => "it has had a connection with us before",
            Refusal::Credentials => "the kernel names another user or process than the address does",
            Refusal::Memory => {
                "it could not map the memory between us: see its log, and raise ulimit -v and -n"
            }
        }
    }
}

/// Who one side is and what it wants and offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Identity {
    /// The job's secret.
    pub token: [u8; 16],
    /// The speaker.
    pub from: u32,
    /// Whom it takes the other side for.
    pub to: u32,
    /// The speaker's incarnation.
    pub from_incarnation: u64,
    /// The incarnation that it expects of the other side.
    pub to_incarnation: u64,
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
    /// From the dialler.
    Hello(Identity),
    /// From the listener: records may follow.
    Welcome(Identity),
    /// From the listener, which closes then. The code may be one of a later version.
    Refuse(Result<Refusal, u16>),
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
        match self {
            Greeting::Hello(id) | Greeting::Welcome(id) => {
                let kind: u16 = if matches!(self, Greeting::Hello(_)) { 1 } else { 2 };
                bytes.extend(kind.to_le_bytes());
                bytes.extend(id.token);
                bytes.extend(id.from.to_le_bytes());
                bytes.extend(id.to.to_le_bytes());
                bytes.extend(id.from_incarnation.to_le_bytes());
                bytes.extend(id.to_incarnation.to_le_bytes());
                bytes.extend(id.eager_bytes.to_le_bytes());
                bytes.extend(id.window_units.to_le_bytes());
                bytes.extend(id.probe_address.to_le_bytes());
                bytes.extend(id.probe.to_le_bytes());
            }
            Greeting::Refuse(why) => {
                bytes.extend(3u16.to_le_bytes());
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
        let kind = u16::from_le_bytes(r.take());
        if kind == 3 {
            let code = u16::from_le_bytes(r.take());
            return Ok(Greeting::Refuse(Refusal::from_code(code).ok_or(code)));
        }
        let id = Identity {
            token: r.take(),
            from: u32::from_le_bytes(r.take()),
            to: u32::from_le_bytes(r.take()),
            from_incarnation: u64::from_le_bytes(r.take()),
            to_incarnation: u64::from_le_bytes(r.take()),
            eager_bytes: u32::from_le_bytes(r.take()),
            window_units: u32::from_le_bytes(r.take()),
            probe_address: u64::from_le_bytes(r.take()),
            probe: u64::from_le_bytes(r.take()),
        };
        match kind {
            1 => Ok(Greeting::Hello(id)),
            2 => Ok(Greeting::Welcome(id)),
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
    use crate::transport::seed::Seeded;

    #[test]
    fn greetings_read_back() {
        let id = Identity {
            token: [7; 16],
            from: 1,
            to: 2,
            from_incarnation: 3,
            to_incarnation: 4,
            eager_bytes: 5,
            window_units: 6,
            probe_address: 7,
            probe: 8,
        };
        let refused = Greeting::Refuse(Ok(Refusal::Memory));
        for greeting in [Greeting::Hello(id), Greeting::Welcome(id), refused, Greeting::Refuse(Err(99))] {
            assert_eq!(Greeting::decode(&greeting.encode()), Ok(greeting));
        }
        let mut bytes = Greeting::Hello(id).encode();
        bytes[4] = 9;
        assert!(Greeting::decode(&bytes).unwrap_err().contains("version 9"));
        bytes[0] = 0;
        assert!(Greeting::decode(&bytes).unwrap_err().contains("not Ringway's"));
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
