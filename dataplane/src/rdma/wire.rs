//! Messages on a queue pair: pure encoding and decoding, little-endian.
//!
//! A message is a frame's header ([`header`]), whose second byte says how many receives the speaker has posted again,
//! and what belongs to the frame: the place of a `Cts` ([`PLACE_BYTES`]: address, then a key for each of
//! [`MAX_RAILS`] devices; nothing where there is none), the payload of a `Data` or `Note`.
//!
//! An `Eager` has a header of its own, since most messages are small ones: [`WHOLE_BYTES`] are the first of that header, but
//! for the kind, which is [`WHOLE`]. The payload follows, and its length is what the device says of the message.
#![forbid(unsafe_code)]

use crate::transport::matching::header::{self, Whole};
use crate::transport::matching::{Frame, Kind, MAX_RAILS, Place};

/// Length of an encoded place.
pub const PLACE_BYTES: usize = 8 + 4 * MAX_RAILS;
/// Bytes of a message beside its payload.
pub const OVERHEAD_BYTES: usize = header::BYTES;
/// Length of the header of a whole message: kind, receives, credit, number, tag, stamp.
pub const WHOLE_BYTES: usize = 40;
/// The kind of a whole message.
pub const WHOLE: u8 = 0x81;

/// A message that no well-behaved peer sends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Shorter than a header.
    #[error("sent {0} bytes, less than a header")]
    Short(usize),
    /// Of no known kind.
    #[error("sent a frame of unknown kind {0}")]
    Kind(u8),
    /// Longer or shorter than its frame says.
    #[error("sent {bytes} bytes after a {kind:?} of {expected}")]
    Length {
        /// Its kind.
        kind: Kind,
        /// Bytes that belong to it.
        expected: u64,
        /// Bytes that came.
        bytes: usize,
    },
}

/// What a [`Kind::Rail`] frame says: the rail is in `slot`, what is said of it in `offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AboutRail {
    /// The speaker's end is down.
    Down {
        /// The rail.
        rail: usize,
    },
    /// The control rail is down, and all that had come in was taken. Not one of the messages that are counted.
    Resumed {
        /// The rail.
        rail: usize,
        /// Messages that were taken so far, modulo 2^32.
        taken: u32,
        /// Rails that are left to the speaker, a bit each.
        alive: u32,
    },
    /// Receives of fences were posted again.
    FencesBack {
        /// The rail.
        rail: usize,
        /// How many.
        count: u32,
    },
}

impl AboutRail {
    /// As a frame.
    pub fn frame(self) -> Frame {
        let (rail, offset, length, seq) = match self {
            AboutRail::Down { rail } => (rail, 0, 0, 0),
            AboutRail::Resumed { rail, taken, alive } => (rail, 1, taken, alive),
            AboutRail::FencesBack { rail, count } => (rail, 2, count, 0),
        };
        Frame { slot: rail as u64, offset, length: length.into(), seq, ..Frame::bare(Kind::Rail) }
    }

    /// What a frame of this kind says, or `None` where it is none of these.
    pub fn of(frame: &Frame) -> Option<AboutRail> {
        let rail = usize::try_from(frame.slot).ok().filter(|rail| *rail < MAX_RAILS)?;
        let number = u32::try_from(frame.length).ok()?;
        match frame.offset {
            0 => Some(AboutRail::Down { rail }),
            1 => Some(AboutRail::Resumed { rail, taken: number, alive: frame.seq }),
            2 => Some(AboutRail::FencesBack { rail, count: number }),
            _ => None,
        }
    }
}

/// Writes a message without its payload; returns its length. `into` holds at least a header and a place.
pub fn encode(frame: &Frame, receives: u8, into: &mut [u8]) -> usize {
    if frame.kind == Kind::Eager {
        let Frame { credit, seq, tag, length, .. } = *frame;
        return encode_whole(&Whole { credit, seq, tag, stamp: &frame.stamp.0, length }, receives, &[], into);
    }
    let Some((head, rest)) = into.split_first_chunk_mut() else { return 0 };
    header::write(frame, receives, head);
    if frame.kind != Kind::Cts || frame.place.is_none() {
        return header::BYTES;
    }
    let place = &mut rest[..PLACE_BYTES];
    place[..8].copy_from_slice(&frame.place.address.to_le_bytes());
    for (bytes, key) in place[8..].chunks_exact_mut(4).zip(frame.place.keys) {
        bytes.copy_from_slice(&key.to_le_bytes());
    }
    header::BYTES + PLACE_BYTES
}

/// Writes a whole small message; returns its length. `into` holds at least a header and the payload.
#[inline]
pub fn encode_whole(head: &Whole<'_>, receives: u8, payload: &[u8], into: &mut [u8]) -> usize {
    let Some((bytes, rest)) = into.split_first_chunk_mut::<WHOLE_BYTES>() else { return 0 };
    let first = [WHOLE, receives].map(u64::from);
    let first = first[0] | first[1] << 8 | u64::from(head.credit) << 16 | u64::from(head.seq) << 32;
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..16].copy_from_slice(&head.tag.to_le_bytes());
    bytes[16..].copy_from_slice(head.stamp);
    rest[..payload.len()].copy_from_slice(payload);
    WHOLE_BYTES + payload.len()
}

/// A whole small message: its header, how many receives were posted again, and the payload. `None`: [`decode`] it.
#[inline]
pub fn decode_whole(message: &[u8]) -> Option<(Whole<'_>, u8, &[u8])> {
    let (head, payload) = message.split_first_chunk::<WHOLE_BYTES>()?;
    let (words, _) = head.as_chunks::<8>();
    let (first, tag) = (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]));
    let stamp = head[16..].first_chunk()?;
    (first as u8 == WHOLE).then(|| {
        let (credit, seq) = ((first >> 16) as u16, (first >> 32) as u32);
        (Whole { credit, seq, tag, stamp, length: payload.len() as u64 }, (first >> 8) as u8, payload)
    })
}

/// Takes back what a message says of receives.
pub fn forget_receives(message: &mut [u8]) {
    message[1] = 0;
}

/// The frame of a message, how many receives were posted again, and the payload.
///
/// # Errors
/// [`WireError`].
pub fn decode(message: &[u8]) -> Result<(Frame, u8, &[u8]), WireError> {
    if let Some((whole, receives, payload)) = decode_whole(message) {
        return Ok((whole.frame(), receives, payload));
    }
    let (head, rest) =
        message.split_first_chunk::<{ header::BYTES }>().ok_or(WireError::Short(message.len()))?;
    let receives = head[1];
    let known = header::read(head).filter(|frame| frame.kind != Kind::Eager);
    let mut frame = known.ok_or(WireError::Kind(head[0]))?;
    let expected = match frame.kind {
        Kind::Data | Kind::Note => frame.length,
        Kind::Cts if rest.is_empty() => 0,
        Kind::Cts => PLACE_BYTES as u64,
        _ => 0,
    };
    if expected != rest.len() as u64 {
        return Err(WireError::Length { kind: frame.kind, expected, bytes: rest.len() });
    }
    if frame.kind != Kind::Cts || rest.is_empty() {
        return Ok((frame, receives, rest));
    }
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| rest[at + i]));
    frame.place = Place {
        address: u64::from(word(0)) | u64::from(word(4)) << 32,
        keys: std::array::from_fn(|i| word(8 + 4 * i)),
    };
    Ok((frame, receives, &[]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Stamp;
    use crate::transport::seed::Seeded;

    #[test]
    fn places_travel_with_their_frames() {
        let place = Place { address: 0x1234_5678_9abc_def0, keys: [1, 2, 3, u32::MAX] };
        let mut bytes = [0; 100];
        let frame = Frame { slot: 7, place, ..Frame::bare(Kind::Cts) };
        let n = encode(&frame, 200, &mut bytes);
        assert_eq!(decode(&bytes[..n]), Ok((frame, 200, &[][..])));
        let bare = Frame { place: Place::default(), ..frame };
        let n = encode(&bare, 0, &mut bytes);
        assert_eq!(decode(&bytes[..n]), Ok((bare, 0, &[][..])));
    }

    #[test]
    fn both_ways_of_whole_messages_agree() {
        let stamp = Stamp(std::array::from_fn(|i| i as u8 + 1));
        let whole = Whole { credit: 0x102, seq: 0x1234_5678, tag: u64::MAX - 3, stamp: &stamp.0, length: 3 };
        let frame = whole.frame();
        let (mut short, mut long) = ([7; 80], [7; 80]);
        let n = encode_whole(&whole, 9, b"abc", &mut short);
        let head = encode(&frame, 9, &mut long);
        long[head..head + 3].copy_from_slice(b"abc");
        assert_eq!((n, short), (WHOLE_BYTES + 3, long));
        assert_eq!(decode(&short[..n]), Ok((frame, 9, &b"abc"[..])));
        assert_eq!(decode_whole(&short[..n]), Some((whole, 9, &b"abc"[..])));
        forget_receives(&mut short);
        assert_eq!(decode_whole(&short[..n]), Some((whole, 0, &b"abc"[..])));
        // Neither a part of one, nor the long form of the header, which it never has.
        assert_eq!(decode(&short[..WHOLE_BYTES - 1]), Err(WireError::Short(WHOLE_BYTES - 1)));
        let mut odd = [0; header::BYTES + 3];
        header::write(&frame, 9, odd.first_chunk_mut().unwrap());
        assert_eq!((decode_whole(&odd), decode(&odd)), (None, Err(WireError::Kind(1))));
    }

    #[test]
    fn what_is_said_of_rails_comes_back() {
        let said = [
            AboutRail::Down { rail: 3 },
            AboutRail::Resumed { rail: 1, taken: u32::MAX, alive: 0b1010 },
            AboutRail::FencesBack { rail: 0, count: 4 },
        ];
        for about in said {
            let mut bytes = [0; 100];
            let n = encode(&about.frame(), 3, &mut bytes);
            let (frame, receives, _) = decode(&bytes[..n]).unwrap();
            assert_eq!((AboutRail::of(&frame), receives), (Some(about), 3));
        }
        let odd =
            [Frame { slot: 4, ..Frame::bare(Kind::Rail) }, Frame { offset: 3, ..Frame::bare(Kind::Rail) }];
        assert!(odd.iter().all(|frame| AboutRail::of(frame).is_none()));
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error() {
        // T9
        let mut random = Seeded::new(5);
        for _ in 0..20_000 {
            let len = random.below(120) as usize;
            let mut bytes: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
            if let (Some(kind), true) = (bytes.first_mut(), random.below(2) == 0) {
                *kind = if *kind % 15 == 14 { WHOLE } else { *kind % 15 };
            }
            if let Ok((frame, _, payload)) = decode(&bytes) {
                assert!(payload.len() as u64 == frame.length || payload.is_empty());
            }
        }
    }
}
