//! The form of the state file: a mark, then records that each say how long they are and carry a checksum. Pure.
//!
//! ```text
//! "RWSTATE1"  then per record:  length u32 | its CRC-32C u32 | CRC-32C of the payload u32 | payload (a StoredBatch)
//! ```
//! Numbers are little-endian. The length has a checksum of its own, since one that is wrong would hide all that follows.
//!
//! - R1. What [`frame`] wrote, [`Reader`] reads back.
//! - R2. A file that was cut off anywhere gives all records before the cut, and says where the sound part ends.
//! - R3. A record that does not fit its checksum and has others after it is damage, never passed over.

use std::io::{self, Read};
use std::sync::Arc;

use prost::Message;
use ringway_proto::ringway::v1::{StoredBatch, stored_batch};

use crate::core::coordination::memory::Write;

/// What a state file begins with: its kind, and the version of its form.
pub(super) const MARK: [u8; 8] = *b"RWSTATE1";
/// Bytes before the payload of a record.
pub(super) const HEADER_BYTES: u64 = 12;
/// Longest payload of a record, in bytes.
pub(super) const RECORD_LIMIT_BYTES: usize = 256 << 20;

/// The CRC-32C (Castagnoli, RFC 3720 appendix B.4) of several pieces in a row.
pub(super) fn checksum(pieces: &[&[u8]]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let (mut value, mut bit) = (byte as u32, 0);
            while bit < 8 {
                value = if value & 1 == 1 { (value >> 1) ^ 0x82f6_3b78 } else { value >> 1 };
                bit += 1;
            }
            table[byte] = value;
            byte += 1;
        }
        table
    };
    let bytes = pieces.iter().copied().flatten();
    !bytes.fold(!0u32, |sum, byte| TABLE[usize::from(sum as u8 ^ byte)] ^ (sum >> 8))
}

/// Appends a record that holds these changes. False, with nothing appended, when they are over the limit.
pub(super) fn frame(writes: &[Write], out: &mut Vec<u8>) -> bool {
    let of = |write: &Write| stored_batch::Write {
        key: write.key.clone(),
        value: write.value.as_ref().map(|value| value.to_vec()),
    };
    let payload = StoredBatch { writes: writes.iter().map(of).collect() }.encode_to_vec();
    let Some(length) = u32::try_from(payload.len()).ok().filter(|_| payload.len() <= RECORD_LIMIT_BYTES)
    else {
        return false;
    };
    let length = length.to_le_bytes();
    out.extend_from_slice(&length);
    out.extend_from_slice(&checksum(&[&length]).to_le_bytes());
    out.extend_from_slice(&checksum(&[&payload]).to_le_bytes());
    out.extend_from_slice(&payload);
    true
}

/// What comes next in a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Changes that were remembered together.
    Batch(Vec<Write>),
    /// The file ends after a whole record.
    End,
    /// The last record was not written whole: it begins here, and counts for nothing.
    Torn {
        /// In bytes from the beginning of the file.
        at: u64,
    },
    /// A record in the midst of the file does not fit its checksum, or is no record.
    Damaged {
        /// In bytes from the beginning of the file.
        at: u64,
        /// What is wrong.
        why: &'static str,
    },
}

/// Reads the records of a file whose length is known.
pub(super) struct Reader<R> {
    from: R,
    at: u64,
    length: u64,
}

impl<R: Read> Reader<R> {
    /// Reads the mark. `None` when it is not there.
    pub(super) fn open(mut from: R, length: u64) -> io::Result<Option<Self>> {
        let mut mark = [0; MARK.len()];
        if length < MARK.len() as u64 {
            return Ok(None);
        }
        from.read_exact(&mut mark)?;
        Ok((mark == MARK).then_some(Reader { from, at: MARK.len() as u64, length }))
    }

    /// The next record.
    pub(super) fn next(&mut self) -> io::Result<Next> {
        let (at, left) = (self.at, self.length - self.at);
        if left == 0 {
            return Ok(Next::End);
        }
        if left < HEADER_BYTES {
            return Ok(Next::Torn { at });
        }
        let mut header = [0; HEADER_BYTES as usize];
        self.from.read_exact(&mut header)?;
        let word = |at: usize| header[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
        if checksum(&[&header[..4]]) != word(4) {
            return self.then_nothing(at);
        }
        let (size, sum) = (u64::from(word(0)), word(8));
        if size > RECORD_LIMIT_BYTES as u64 {
            return Ok(Next::Damaged { at, why: "its length is over the limit of a record" });
        }
        if size > left - HEADER_BYTES {
            return Ok(Next::Torn { at });
        }
        let mut payload = vec![0; size as usize];
        self.from.read_exact(&mut payload)?;
        self.at += HEADER_BYTES + size;
        if checksum(&[&payload]) != sum {
            let last = self.at == self.length;
            let why = "its checksum does not fit";
            return Ok(if last { Next::Torn { at } } else { Next::Damaged { at, why } });
        }
        match StoredBatch::decode(payload.as_slice()) {
            Ok(batch) => Ok(Next::Batch(batch.writes.into_iter().map(write).collect())),
            Err(_) => Ok(Next::Damaged { at, why: "it is of another version of ringway" }),
        }
    }

    /// The record at `at` has no sound length. A file may have grown before what belongs there was written: it then ends
    /// in zeros. Anything else was written, and the record is damaged.
    fn then_nothing(&mut self, at: u64) -> io::Result<Next> {
        let mut rest = [0; 4096];
        loop {
            match self.from.read(&mut rest)? {
                0 => return Ok(Next::Torn { at }),
                got if rest[..got].iter().all(|&byte| byte == 0) => {}
                _ => return Ok(Next::Damaged { at, why: "its length does not fit its checksum" }),
            }
        }
    }
}

fn write(stored: stored_batch::Write) -> Write {
    Write { key: stored.key, value: stored.value.map(Arc::new) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value: &[u8]) -> Write {
        Write { key: key.to_owned(), value: Some(Arc::new(value.to_vec())) }
    }

    fn batches() -> Vec<Vec<Write>> {
        vec![
            vec![put("a", b"1"), Write { key: "b".to_owned(), value: None }],
            vec![],
            vec![put("long", &[7; 300])],
            vec![put("", b"")],
        ]
    }

    fn file() -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut ends) = (MARK.to_vec(), vec![MARK.len()]);
        for batch in batches() {
            assert!(frame(&batch, &mut bytes));
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    fn read(bytes: &[u8]) -> (Vec<Vec<Write>>, Next) {
        let mut reader = Reader::open(bytes, bytes.len() as u64).unwrap().expect("the mark is there");
        let mut found = Vec::new();
        loop {
            match reader.next().unwrap() {
                Next::Batch(batch) => found.push(batch),
                end => return (found, end),
            }
        }
    }

    #[test]
    fn known_checksum() {
        // RFC 3720, appendix B.4; and the check value of the catalogue of CRCs.
        assert_eq!(checksum(&[&[0; 32]]), 0x8a91_36aa);
        assert_eq!(checksum(&[b"1234", b"56789"]), 0xe306_9283);
    }

    /// R1 and R2.
    #[test]
    fn a_file_cut_off_anywhere_gives_what_was_whole() {
        let (bytes, ends) = file();
        assert_eq!(read(&bytes), (batches(), Next::End));
        for cut in MARK.len()..bytes.len() {
            let (found, end) = read(&bytes[..cut]);
            let whole = ends.iter().rposition(|&end| end <= cut).unwrap();
            assert_eq!(found, batches()[..whole], "cut at {cut}");
            let sound = ends[whole] as u64;
            assert_eq!(end, if sound == cut as u64 { Next::End } else { Next::Torn { at: sound } });
        }
        assert!(Reader::open(&bytes[..5], 5).unwrap().is_none());
    }

    /// R2: the file has grown, and what belongs there was not written, or only its beginning.
    #[test]
    fn zeros_at_the_end_are_a_torn_record() {
        let (bytes, _) = file();
        let sound = bytes.len() as u64;
        let mut begun = vec![0; 5000];
        begun[..6].fill(0xff);
        for tail in [vec![0; 12], vec![0; 5000], vec![0x5a; 12], begun] {
            let torn = [bytes.as_slice(), &tail].concat();
            assert_eq!(read(&torn), (batches(), Next::Torn { at: sound }), "{} bytes", tail.len());
        }
    }

    /// R3.
    #[test]
    fn a_changed_bit_is_found() {
        let (bytes, ends) = file();
        for at in ends[0]..ends[1] {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            let (found, end) = read(&bad);
            assert_eq!(found.len(), 0, "byte {at}");
            assert!(matches!(end, Next::Damaged { at, .. } if at == ends[0] as u64), "byte {at}: {end:?}");
        }
    }
}
