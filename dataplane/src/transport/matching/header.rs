//! A frame as bytes, little-endian: the same for every transport that sends frames.
//!
//! | bytes | |
//! | --- | --- |
//! | 0 | kind |
//! | 1 | zero, or the transport's own |
//! | 2..4 | credit |
//! | 4..8 | seq |
//! | 8..16 | tag |
//! | 16..40 | stamp |
//! | 40..48 | length |
//! | 48..56 | slot |
//! | 56..64 | offset |
//!
//! [`Frame::place`] is not in it: where it travels, it follows.

use super::{Frame, Kind, Place};
use crate::transport::op::Stamp;

/// Length of a header.
pub const BYTES: usize = 64;

/// Kinds, by their numbers on the wire from 1 on.
pub(crate) const KINDS: [Kind; 13] = [
    Kind::Eager,
    Kind::Rts,
    Kind::Cts,
    Kind::Data,
    Kind::Credit,
    Kind::CancelSend,
    Kind::CancelRecv,
    Kind::Note,
    Kind::Bye,
    Kind::Withdrawn,
    Kind::Landed,
    Kind::Rail,
    Kind::Taken,
];

const EAGER: u8 = 1;

/// What the header of a [`Kind::Eager`] frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole<'a> {
    /// Units of eager window given back.
    pub credit: u16,
    /// Number of the message on its tag, in its direction.
    pub seq: u32,
    /// The tag.
    pub tag: u64,
    /// The sending side's stamp.
    pub stamp: &'a [u8; 24],
    /// Bytes of the message.
    pub length: u64,
}

impl Whole<'_> {
    /// As a frame.
    pub fn frame(&self) -> Frame {
        let Whole { credit, seq, tag, stamp, length } = *self;
        Frame { credit, seq, tag, stamp: Stamp(*stamp), length, ..Frame::bare(Kind::Eager) }
    }
}

fn code(kind: Kind) -> u8 {
    match kind {
        Kind::Eager => EAGER,
        Kind::Rts => 2,
        Kind::Cts => 3,
        Kind::Data => 4,
        Kind::Credit => 5,
        Kind::CancelSend => 6,
        Kind::CancelRecv => 7,
        Kind::Note => 8,
        Kind::Bye => 9,
        Kind::Withdrawn => 10,
        Kind::Landed => 11,
        Kind::Rail => 12,
        Kind::Taken => 13,
    }
}

/// The bytes of a frame.
pub fn encode(frame: &Frame) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    write(frame, 0, &mut bytes);
    bytes
}

/// Writes a frame, with a second byte of the transport's own.
pub fn write(frame: &Frame, own: u8, bytes: &mut [u8; BYTES]) {
    bytes[0] = code(frame.kind);
    bytes[1] = own;
    bytes[2..4].copy_from_slice(&frame.credit.to_le_bytes());
    bytes[4..8].copy_from_slice(&frame.seq.to_le_bytes());
    bytes[8..16].copy_from_slice(&frame.tag.to_le_bytes());
    bytes[16..40].copy_from_slice(&frame.stamp.0);
    bytes[40..48].copy_from_slice(&frame.length.to_le_bytes());
    bytes[48..56].copy_from_slice(&frame.slot.to_le_bytes());
    bytes[56..64].copy_from_slice(&frame.offset.to_le_bytes());
}

/// Writes the header of a whole message, as [`write()`] would: the straight way of small messages.
#[inline]
pub fn write_eager(message: &Whole<'_>, own: u8, bytes: &mut [u8; BYTES]) {
    bytes[0] = EAGER;
    bytes[1] = own;
    bytes[2..4].copy_from_slice(&message.credit.to_le_bytes());
    bytes[4..8].copy_from_slice(&message.seq.to_le_bytes());
    bytes[8..16].copy_from_slice(&message.tag.to_le_bytes());
    bytes[16..40].copy_from_slice(message.stamp);
    bytes[40..48].copy_from_slice(&message.length.to_le_bytes());
    bytes[48..64].fill(0);
}

/// The header of a whole message, read where it lies; `None`: of another kind, or not as [`write_eager`] would have it.
#[inline]
pub fn read_eager(bytes: &[u8; BYTES]) -> Option<Whole<'_>> {
    let (words, _) = bytes.as_chunks::<8>();
    let zeros = u64::from_le_bytes(words[6]) | u64::from_le_bytes(words[7]);
    let stamp = bytes[16..].first_chunk()?;
    (bytes[0] == EAGER && zeros == 0).then(|| Whole {
        credit: u16::from_le_bytes([bytes[2], bytes[3]]),
        seq: (u64::from_le_bytes(words[0]) >> 32) as u32,
        tag: u64::from_le_bytes(words[1]),
        stamp,
        length: u64::from_le_bytes(words[5]),
    })
}

/// The frame of these bytes, or `None` when the kind is unknown or the second byte is not zero.
pub fn decode(bytes: &[u8; BYTES]) -> Option<Frame> {
    if bytes[1] == 0 { read(bytes) } else { None }
}

/// The frame of these bytes, whatever the second one is, or `None` when the kind is unknown.
pub fn read(bytes: &[u8; BYTES]) -> Option<Frame> {
    fn at<const N: usize>(bytes: &[u8; BYTES], from: usize) -> [u8; N] {
        std::array::from_fn(|i| bytes[from + i])
    }
    let kind = *KINDS.get(usize::from(bytes[0]).checked_sub(1)?)?;
    Some(Frame {
        kind,
        credit: u16::from_le_bytes(at(bytes, 2)),
        seq: u32::from_le_bytes(at(bytes, 4)),
        tag: u64::from_le_bytes(at(bytes, 8)),
        stamp: Stamp(at(bytes, 16)),
        length: u64::from_le_bytes(at(bytes, 40)),
        slot: u64::from_le_bytes(at(bytes, 48)),
        place: Place::default(),
        offset: u64::from_le_bytes(at(bytes, 56)),
    })
}
