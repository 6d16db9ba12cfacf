//! What two tasks say to each other: pure encoding.
//!
//! A message is little-endian and travels in one note or several (a first byte of 1 says that more of it follows, 0 that
//! it ends here), which arrive in order. A payload that does not fit the note of its answer follows as a message of the
//! transport, from where it lies.
//!
//! | kind | fields | from |
//! |---|---|---|
//! | 1 ask | request u64, step i64, key | who needs a value |
//! | 2 value | request u64, length of meta u16, meta, payload | who has it |
//! | 3 coming | request u64, bytes u64, meta | who has it: the payload is sent at the same time |
//! | 4 refusal | request u64, reason u8, code u32, words | who was asked |
//! | 5 never mind | request u64 | who had asked |
//! | 6 abort | step i64, code u32, words | either |
//! | 7 shown | request u64, offset u64, bytes u64, meta | who has it: the payload is to be read where it lies |
//! | 8 seen | request u64, whether it was (u8): if not, it is to be sent | who had asked, once it reads no more |
//!
//! - **W1** Whatever arrives is a message or a [`Garbled`], and no more than [`MAX_MESSAGE_BYTES`] of a message are kept.

use super::key::MAX_KEY_BYTES;
use super::value::MAX_META_BYTES;
use crate::transport::Note;

/// Most bytes of words that go with a refusal or an abort; more is cut.
pub const MAX_WORDS_BYTES: usize = 2048;
/// Longest message.
pub const MAX_MESSAGE_BYTES: usize = 17 + MAX_KEY_BYTES;
/// What a note carries of one.
const PART_BYTES: usize = Note::MAX_BYTES - 1;

const _: () =
    assert!(17 + MAX_META_BYTES + 8 <= MAX_MESSAGE_BYTES && 14 + MAX_WORDS_BYTES <= MAX_MESSAGE_BYTES);

/// Why a task that was asked does not answer with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// The step was aborted; the code and the words say why.
    Aborted = 1,
    /// The step is over there.
    Over = 2,
    /// Somebody else waits for that key.
    Twice = 3,
    /// Something else, in words.
    Other = 4,
}

/// A message, borrowed from the bytes that it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Asks for a value.
    Ask {
        /// Number of the question, chosen by who asks.
        request: u64,
        /// The step.
        step: i64,
        /// The key's text.
        key: &'a str,
    },
    /// A value in full.
    Value {
        /// The question.
        request: u64,
        /// What the payload is.
        meta: &'a [u8],
        /// The payload.
        payload: &'a [u8],
    },
    /// A value whose payload follows.
    Coming {
        /// The question.
        request: u64,
        /// Length of the payload.
        bytes: u64,
        /// What it is.
        meta: &'a [u8],
    },
    /// There will be no value.
    Refusal {
        /// The question.
        request: u64,
        /// Why not.
        reason: Reason,
        /// Of an abort.
        code: u32,
        /// For people.
        words: &'a str,
    },
    /// An earlier question is no more.
    NeverMind {
        /// The question.
        request: u64,
    },
    /// A value whose payload the asker is to read where it lies.
    Shown {
        /// The question.
        request: u64,
        /// Where the payload begins, in the transport's terms.
        offset: u64,
        /// Its length.
        bytes: u64,
        /// What it is.
        meta: &'a [u8],
    },
    /// A payload that was shown is read no more, or could not be read.
    Seen {
        /// The question.
        request: u64,
        /// `false`: it is to be sent.
        read: bool,
    },
    /// A step has failed.
    Abort {
        /// The step.
        step: i64,
        /// Opaque.
        code: u32,
        /// For people.
        words: &'a str,
    },
}

/// Bytes that are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it sent {0}, which is not the rendezvous's protocol")]
pub struct Garbled(pub &'static str);

/// The longest payload that goes in the note of its answer, with `meta` bytes beside it; `None`: none does.
#[must_use]
pub fn inline_bytes(meta: usize) -> Option<usize> {
    (PART_BYTES - 11).checked_sub(meta)
}

fn cut(words: &str) -> &str {
    let mut end = words.len().min(MAX_WORDS_BYTES);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    &words[..end]
}

impl Message<'_> {
    /// The bytes, appended.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Message::Ask { request, step, key } => {
                out.push(1);
                out.extend(request.to_le_bytes());
                out.extend(step.to_le_bytes());
                out.extend(key.as_bytes());
            }
            Message::Value { request, meta, payload } => {
                out.push(2);
                out.extend(request.to_le_bytes());
                out.extend((meta.len() as u16).to_le_bytes());
                out.extend(meta);
                out.extend(payload);
            }
            Message::Coming { request, bytes, meta } => {
                out.push(3);
                out.extend(request.to_le_bytes());
                out.extend(bytes.to_le_bytes());
                out.extend(meta);
            }
            Message::Refusal { request, reason, code, words } => {
                out.push(4);
                out.extend(request.to_le_bytes());
                out.push(reason as u8);
                out.extend(code.to_le_bytes());
                out.extend(cut(words).as_bytes());
            }
            Message::NeverMind { request } => {
                out.push(5);
                out.extend(request.to_le_bytes());
            }
            Message::Shown { request, offset, bytes, meta } => {
                out.push(7);
                out.extend(request.to_le_bytes());
                out.extend(offset.to_le_bytes());
                out.extend(bytes.to_le_bytes());
                out.extend(meta);
            }
            Message::Seen { request, read } => {
                out.push(8);
                out.extend(request.to_le_bytes());
                out.push(read.into());
            }
            Message::Abort { step, code, words } => {
                out.push(6);
                out.extend(step.to_le_bytes());
                out.extend(code.to_le_bytes());
                out.extend(cut(words).as_bytes());
            }
        }
    }
}

/// Takes fields off the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Garbled> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Garbled("a message that is cut short"))?;
        self.0 = rest;
        Ok(*head)
    }

    fn number(&mut self) -> Result<u64, Garbled> {
        self.take().map(u64::from_le_bytes)
    }

    fn code(&mut self) -> Result<u32, Garbled> {
        self.take().map(u32::from_le_bytes)
    }

    fn text(self) -> Result<&'a str, Garbled> {
        std::str::from_utf8(self.0).map_err(|_| Garbled("a text that is not UTF-8"))
    }

    fn meta(bytes: &[u8]) -> Result<&[u8], Garbled> {
        if bytes.len() > MAX_META_BYTES {
            Err(Garbled("a longer description than there can be"))
        } else {
            Ok(bytes)
        }
    }
}

impl<'a> Message<'a> {
    /// The message in these bytes.
    ///
    /// # Errors
    /// [`Garbled`] when they are none (W1).
    pub fn decode(bytes: &'a [u8]) -> Result<Message<'a>, Garbled> {
        let mut reader = Reader(bytes);
        let [kind] = reader.take()?;
        let first = reader.take::<8>()?;
        let (request, step) = (u64::from_le_bytes(first), i64::from_le_bytes(first));
        Ok(match kind {
            1 => {
                let step = i64::from_le_bytes(reader.take()?);
                Message::Ask { request, step, key: reader.text()? }
            }
            2 => {
                let meta_bytes = usize::from(u16::from_le_bytes(reader.take()?));
                let split = reader.0.split_at_checked(meta_bytes);
                let (meta, payload) = split.ok_or(Garbled("a message that is cut short"))?;
                Message::Value { request, meta: Reader::meta(meta)?, payload }
            }
            3 => Message::Coming { request, bytes: reader.number()?, meta: Reader::meta(reader.0)? },
            4 => {
                let reason = match reader.take()? {
                    [1] => Reason::Aborted,
                    [2] => Reason::Over,
                    [3] => Reason::Twice,
                    [4] => Reason::Other,
                    _ => return Err(Garbled("a refusal of an unknown kind")),
                };
                Message::Refusal { request, reason, code: reader.code()?, words: reader.text()? }
            }
            5 if reader.0.is_empty() => Message::NeverMind { request },
            7 => {
                let (offset, bytes) = (reader.number()?, reader.number()?);
                Message::Shown { request, offset, bytes, meta: Reader::meta(reader.0)? }
            }
            8 if matches!(reader.0, [0 | 1]) => Message::Seen { request, read: reader.take()? == [1] },
            6 => Message::Abort { step, code: reader.code()?, words: reader.text()? },
            _ => return Err(Garbled("a message of an unknown kind")),
        })
    }
}

/// Cuts an encoded message into notes.
pub fn notes(message: &[u8]) -> impl Iterator<Item = Note> + '_ {
    let parts = message.chunks(PART_BYTES);
    let last = parts.len().saturating_sub(1);
    parts.enumerate().filter_map(move |(i, part)| {
        let mut bytes = [0; Note::MAX_BYTES];
        bytes[0] = u8::from(i < last);
        bytes[1..=part.len()].copy_from_slice(part);
        Note::new(&bytes[..=part.len()])
    })
}

/// Puts notes together again.
#[derive(Debug, Default)]
pub struct Assembly {
    so_far: Vec<u8>,
}

impl Assembly {
    /// Takes the next note in. `Some`: a message is whole.
    ///
    /// # Errors
    /// [`Garbled`] when it belongs to no message (W1).
    pub fn take<'a>(&'a mut self, note: &'a [u8]) -> Result<Option<&'a [u8]>, Garbled> {
        let Some((more, part)) = note.split_first() else { return Err(Garbled("an empty note")) };
        // What was handed out last is done with.
        if self.so_far.first() == Some(&DONE) {
            self.so_far.clear();
        }
        if self.so_far.len() + part.len() > MAX_MESSAGE_BYTES + 1 {
            return Err(Garbled("a longer message than there can be"));
        }
        match more {
            0 if self.so_far.is_empty() => Ok(Some(part)),
            0 => {
                self.so_far.extend(part);
                self.so_far[0] = DONE;
                Ok(Some(&self.so_far[1..]))
            }
            1 => {
                if self.so_far.is_empty() {
                    self.so_far.push(OPEN);
                }
                self.so_far.extend(part);
                Ok(None)
            }
            _ => Err(Garbled("a note of an unknown kind")),
        }
    }
}

/// First byte of an assembly: more is to come, or all of it was handed out.
const OPEN: u8 = 0;
const DONE: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::seed::Seeded;

    fn all<'a>(text: &'a str, bytes: &'a [u8]) -> [Message<'a>; 8] {
        [
            Message::Ask { request: 1, step: -2, key: text },
            Message::Value { request: u64::MAX, meta: &bytes[..7], payload: &bytes[7..] },
            Message::Coming { request: 3, bytes: 1 << 40, meta: bytes },
            Message::Refusal { request: 4, reason: Reason::Twice, code: 9, words: text },
            Message::NeverMind { request: 5 },
            Message::Shown { request: 6, offset: 1 << 41, bytes: 99, meta: bytes },
            Message::Seen { request: 7, read: true },
            Message::Abort { step: i64::MIN, code: 13, words: text },
        ]
    }

    #[test]
    fn messages_come_back_as_they_were() {
        let mut assembly = Assembly::default();
        for len in [10, 300, 462, 463, 479, 480, 2000] {
            let (text, bytes) = ("x".repeat(len), vec![7; len]);
            for message in all(&text, &bytes) {
                let mut encoded = Vec::new();
                message.encode(&mut encoded);
                let notes: Vec<Note> = notes(&encoded).collect();
                assert_eq!(notes.len(), encoded.len().div_ceil(PART_BYTES));
                for (i, note) in notes.iter().enumerate() {
                    match assembly.take(note.bytes()).unwrap() {
                        Some(whole) => {
                            assert_eq!(Message::decode(whole).unwrap(), message);
                            assert_eq!(i, notes.len() - 1);
                        }
                        None => assert!(i < notes.len() - 1),
                    }
                }
            }
        }
    }

    #[test]
    fn an_inline_value_fits_its_note() {
        for meta in [0, 20, PART_BYTES - 11] {
            let payload = vec![1; inline_bytes(meta).unwrap()];
            let mut encoded = Vec::new();
            Message::Value { request: 1, meta: &vec![0; meta], payload: &payload }.encode(&mut encoded);
            assert_eq!(notes(&encoded).count(), 1);
        }
        assert_eq!(inline_bytes(PART_BYTES), None);
    }

    #[test]
    fn words_are_cut_between_characters() {
        let mut encoded = Vec::new();
        Message::Abort { step: 0, code: 0, words: &"é".repeat(2000) }.encode(&mut encoded);
        assert!(encoded.len() <= MAX_MESSAGE_BYTES);
        assert!(
            matches!(Message::decode(&encoded), Ok(Message::Abort { words, .. }) if words.len() <= MAX_WORDS_BYTES)
        );
    }

    #[test]
    fn whatever_arrives_is_read_within_limits() {
        // W1
        let (text, bytes) = ("key".repeat(30), [5; 90]);
        for seed in 0..4000 {
            let mut random = Seeded::of(seed, 0, 0);
            let mut encoded = Vec::new();
            all(&text, &bytes)[random.below(8) as usize].encode(&mut encoded);
            for _ in 0..random.below(4) {
                let at = random.below(encoded.len() as u64) as usize;
                encoded[at] = random.next_u64() as u8;
            }
            encoded.truncate(random.below(encoded.len() as u64 + 1) as usize);
            if let Ok(message) = Message::decode(&encoded) {
                let mut again = Vec::new();
                message.encode(&mut again);
                assert_eq!(again, encoded, "seed {seed}");
            }
        }
        let mut assembly = Assembly::default();
        let part = [1; Note::MAX_BYTES];
        let refused = (0..100).find(|_| assembly.take(&part).is_err()).unwrap();
        assert!(refused <= MAX_MESSAGE_BYTES / PART_BYTES + 1, "{refused}");
        assert!(assembly.take(&[]).is_err() && Assembly::default().take(&[2, 1]).is_err());
    }
}
