//! What engines say to each other outside of messages: the content of notes.
//!
//! ```text
//! byte  0..3   'R', version 1, kind (1 asks, 2 refused, 3 lost, 4 mismatch, 5 aborted, 6 transport, 7 histories)
//!       3      kind of cause, of a loss
//!       4..8   group
//!       8..12  rank that it is about            16..40  its call's stamp, or zeros between calls
//!       12..16 rank that found out, or the other side of a mismatch       40..64  that one's stamp
//!       64..66 length of the text, at most MAX_TEXT_BYTES                 66..    text, UTF-8
//! ```
//! Of kind 7, bytes 8..12 are the number of a call, and the text is the digests, two bytes each. Integers are little-endian. A note that does not read is ignored: it can neither hurt nor be believed.

#![forbid(unsafe_code)]

use super::error::{CollectiveError, During};
use super::fingerprint::Call;
use super::group::Group;
use ringway_dataplane::transport::{CauseKind, Note, Stamp};

/// Longest text in bytes; longer ones are cut at a character.
pub(super) const MAX_TEXT_BYTES: usize = Note::MAX_BYTES - HEADER_BYTES;
/// Most digests of one [`Word::Histories`].
pub(super) const MAX_HISTORIES: usize = MAX_TEXT_BYTES / 2;
const HEADER_BYTES: usize = 66;
const MAGIC: u8 = b'R';
const VERSION: u8 = 1;

const CAUSES: [CauseKind; 8] = [
    CauseKind::Closed,
    CauseKind::Reset,
    CauseKind::Unreachable,
    CauseKind::Refused,
    CauseKind::Protocol,
    CauseKind::Left,
    CauseKind::Reported,
    CauseKind::Local,
];

/// The content of a note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// "I wait for you in this call: do you make the same?"
    Asks { group: u32, stamp: Stamp },
    /// "I was called so, and refused, for this reason."
    Refused { group: u32, stamp: Stamp, why: String },
    /// "Our calls before call `seq` differ. These are the digests of mine before it and before each of those that led
    /// to it, oldest first: which call was it?"
    Histories { group: u32, seq: u32, histories: Vec<u16> },
    /// "This communicator is dead."
    Dead { group: u32, death: Death },
}

/// Why a communicator is dead, by ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Death {
    Lost { rank: u32, seen_by: u32, during: Stamp, kind: CauseKind, evidence: String },
    Mismatch { a: u32, a_call: Stamp, b: u32, b_call: Stamp },
    Aborted { rank: u32, during: Stamp, message: String },
    Transport { rank: u32, seen_by: u32, during: Stamp, evidence: String },
}

struct Raw<'a> {
    kind: u8,
    cause: u8,
    group: u32,
    ranks: (u32, u32),
    stamps: (Stamp, Stamp),
    text: &'a [u8],
}

/// The longest head of `text` that fits.
fn fitting(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

impl Raw<'_> {
    fn note(&self) -> Note {
        let text = self.text;
        let mut b = [0u8; Note::MAX_BYTES];
        b[..4].copy_from_slice(&[MAGIC, VERSION, self.kind, self.cause]);
        b[4..8].copy_from_slice(&self.group.to_le_bytes());
        b[8..12].copy_from_slice(&self.ranks.0.to_le_bytes());
        b[12..16].copy_from_slice(&self.ranks.1.to_le_bytes());
        b[16..40].copy_from_slice(&self.stamps.0.0);
        b[40..64].copy_from_slice(&self.stamps.1.0);
        b[64..66].copy_from_slice(&(text.len() as u16).to_le_bytes());
        b[HEADER_BYTES..HEADER_BYTES + text.len()].copy_from_slice(text);
        let content = &b[..HEADER_BYTES + text.len()];
        Note::new(content).unwrap_or_else(|| unreachable!("the text was cut to fit"))
    }

    fn read(note: &Note) -> Option<Raw<'_>> {
        let b = note.bytes();
        if b.len() < HEADER_BYTES || b[0] != MAGIC || b[1] != VERSION {
            return None;
        }
        let int = |at: usize| Some(u32::from_le_bytes(b[at..at + 4].try_into().ok()?));
        let len = usize::from(u16::from_le_bytes([b[64], b[65]]));
        (b.len() == HEADER_BYTES + len).then_some(())?;
        Some(Raw {
            kind: b[2],
            cause: b[3],
            group: int(4)?,
            ranks: (int(8)?, int(12)?),
            stamps: (Stamp(b[16..40].try_into().ok()?), Stamp(b[40..64].try_into().ok()?)),
            text: &b[HEADER_BYTES..],
        })
    }
}

impl Word {
    pub(super) fn note(&self) -> Note {
        let none = Stamp::default();
        let raw = |kind, group, ranks, stamps, text| Raw {
            kind,
            cause: 0,
            group,
            ranks,
            stamps,
            text: fitting(text).as_bytes(),
        };
        match self {
            Word::Asks { group, stamp } => raw(1, *group, (0, 0), (*stamp, none), "").note(),
            Word::Refused { group, stamp, why } => raw(2, *group, (0, 0), (*stamp, none), why).note(),
            Word::Histories { group, seq, histories } => {
                let newest = &histories[histories.len().saturating_sub(MAX_HISTORIES)..];
                let text: Vec<u8> = newest.iter().flat_map(|h| h.to_le_bytes()).collect();
                Raw { text: &text, ..raw(7, *group, (*seq, 0), (none, none), "") }.note()
            }
            Word::Dead { group, death } => match death {
                Death::Lost { rank, seen_by, during, kind, evidence } => Raw {
                    cause: CAUSES.iter().position(|k| k == kind).unwrap_or(0) as u8,
                    ..raw(3, *group, (*rank, *seen_by), (*during, none), evidence)
                }
                .note(),
                Death::Mismatch { a, a_call, b, b_call } => {
                    raw(4, *group, (*a, *b), (*a_call, *b_call), "").note()
                }
                Death::Aborted { rank, during, message } => {
                    raw(5, *group, (*rank, 0), (*during, none), message).note()
                }
                Death::Transport { rank, seen_by, during, evidence } => {
                    raw(6, *group, (*rank, *seen_by), (*during, none), evidence).note()
                }
            },
        }
    }

    pub(super) fn read(note: &Note) -> Option<Word> {
        let raw = Raw::read(note)?;
        let (group, (rank, other), (first, second)) = (raw.group, raw.ranks, raw.stamps);
        // Text from elsewhere ends up on terminals.
        let words = std::str::from_utf8(raw.text);
        let text =
            || Some(words.ok()?.chars().map(|c| if c.is_control() { '.' } else { c }).collect::<String>());
        let dead = |death| Word::Dead { group, death };
        Some(match raw.kind {
            1 => Word::Asks { group, stamp: first },
            2 => Word::Refused { group, stamp: first, why: text()? },
            3 => dead(Death::Lost {
                rank,
                seen_by: other,
                during: first,
                kind: *CAUSES.get(usize::from(raw.cause))?,
                evidence: text()?,
            }),
            4 => dead(Death::Mismatch { a: rank, a_call: first, b: other, b_call: second }),
            5 => dead(Death::Aborted { rank, during: first, message: text()? }),
            6 => dead(Death::Transport { rank, seen_by: other, during: first, evidence: text()? }),
            7 if raw.text.len().is_multiple_of(2) => Word::Histories {
                group,
                seq: rank,
                histories: raw.text.chunks_exact(2).map(|h| u16::from_le_bytes([h[0], h[1]])).collect(),
            },
            _ => return None,
        })
    }

    pub(super) fn group(&self) -> u32 {
        match self {
            Word::Asks { group, .. }
            | Word::Refused { group, .. }
            | Word::Histories { group, .. }
            | Word::Dead { group, .. } => *group,
        }
    }
}

fn during(stamp: &Stamp) -> During {
    Call::from_stamp(stamp).map_or(During::Idle, During::Call)
}

fn stamp(during: &During) -> Stamp {
    match during {
        During::Call(call) => call.stamp(),
        During::Idle => Stamp::default(),
    }
}

impl Death {
    /// The error that this is to the members, or `None` when it does not fit the group.
    pub(super) fn error(&self, group: &Group) -> Option<CollectiveError> {
        let known = |rank: u32| (rank < group.size()).then(|| group.who(rank));
        let seen = |evidence: &str, by: u32| format!("{evidence} (seen by rank {by})");
        Some(match self {
            Death::Lost { rank, seen_by, during: at, kind, evidence } => CollectiveError::Lost {
                who: known(*rank)?,
                during: during(at),
                kind: *kind,
                evidence: seen(evidence, known(*seen_by)?.rank),
            },
            Death::Mismatch { a, a_call, b, b_call } => CollectiveError::Mismatch {
                ours_who: known(*a)?,
                ours: Call::from_stamp(a_call)?,
                theirs_who: known(*b)?,
                theirs: Call::from_stamp(b_call)?,
            },
            Death::Aborted { rank, during: at, message } => {
                CollectiveError::Aborted { who: known(*rank)?, during: during(at), message: message.clone() }
            }
            Death::Transport { rank, seen_by, during: at, evidence } => CollectiveError::Transport {
                who: known(*rank)?,
                during: during(at),
                evidence: seen(evidence, known(*seen_by)?.rank),
            },
        })
    }

    /// What the other members are told of an error that `seen_by` has found. `None` for errors that kill nothing.
    pub(super) fn of(error: &CollectiveError, seen_by: u32) -> Option<Death> {
        Some(match error {
            CollectiveError::Lost { who, during, kind, evidence } => Death::Lost {
                rank: who.rank,
                seen_by,
                during: stamp(during),
                kind: *kind,
                evidence: evidence.clone(),
            },
            CollectiveError::Mismatch { ours_who, ours, theirs_who, theirs } => Death::Mismatch {
                a: ours_who.rank,
                a_call: ours.stamp(),
                b: theirs_who.rank,
                b_call: theirs.stamp(),
            },
            CollectiveError::Aborted { who, during, message } => {
                Death::Aborted { rank: who.rank, during: stamp(during), message: message.clone() }
            }
            CollectiveError::Transport { who, during, evidence } => Death::Transport {
                rank: who.rank,
                seen_by,
                during: stamp(during),
                evidence: evidence.clone(),
            },
            CollectiveError::Invalid { .. }
            | CollectiveError::Memory { .. }
            | CollectiveError::TooManyStarted { .. } => return None,
        })
    }

    /// The rank that cannot be told, because it is the one that is gone.
    pub(super) fn gone(&self) -> Option<u32> {
        match self {
            Death::Lost { rank, .. } => Some(*rank),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Vec<Word> {
        let (s, t) = (Stamp([7; 24]), Stamp([9; 24]));
        let deaths = [
            Death::Lost { rank: 3, seen_by: 1, during: s, kind: CauseKind::Reset, evidence: "RST".into() },
            Death::Mismatch { a: 1, a_call: s, b: 2, b_call: t },
            Death::Aborted { rank: 0, during: s, message: "no data".into() },
            Death::Transport { rank: 5, seen_by: 2, during: t, evidence: "lost lease".into() },
        ];
        let mut words = vec![
            Word::Asks { group: 7, stamp: s },
            Word::Refused { group: u32::MAX, stamp: t, why: "bad root".into() },
            Word::Histories {
                group: 3,
                seq: 700,
                histories: (0..MAX_HISTORIES as u16).map(|h| h ^ 0xff80).collect(),
            },
        ];
        words.extend(deaths.map(|death| Word::Dead { group: 9, death }));
        words
    }

    #[test]
    fn words_read_back() {
        for word in words() {
            assert_eq!(Word::read(&word.note()), Some(word));
        }
    }

    #[test]
    fn long_texts_are_cut_and_control_characters_shown_as_dots() {
        let word = Word::Refused { group: 1, stamp: Stamp::default(), why: "ü\n".repeat(500) };
        let Some(Word::Refused { why, .. }) = Word::read(&word.note()) else { panic!("a refusal") };
        assert!(why.starts_with("ü.ü.") && why.len() <= MAX_TEXT_BYTES && why.len() > MAX_TEXT_BYTES - 3);
    }

    #[test]
    fn hostile_notes_are_ignored() {
        let whole = words()[1].note();
        for len in 0..whole.bytes().len() {
            let cut = Note::new(&whole.bytes()[..len]).unwrap();
            assert_eq!(Word::read(&cut), None);
        }
        for at in 0..whole.bytes().len() {
            for value in [0, 1, 127, 128, 255] {
                let mut bytes = whole.bytes().to_vec();
                bytes[at] = value;
                // It may read as another word, but never panics.
                let _ = Word::read(&Note::new(&bytes).unwrap());
            }
        }
    }
}
