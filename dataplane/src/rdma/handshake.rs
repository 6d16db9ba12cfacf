//! How two sides tell each other of their queue pairs, over datagrams that may be lost: pure, with time as an argument.
//!
//! Each side says [`Hello`] until it has heard the other's and knows that its own was heard. A side that has heard makes
//! its queue pairs ready before it answers, so a side that was heard may send at once.
//!
//! Each hello is proven by an HMAC over all of it ([`crate::transport::authentication`]). It carries a nonce that its
//! speaker drew for this meeting, and repeats the other's if one was heard. A hello counts as heard when it repeats this
//! side's nonce: an older one, said again by somebody else, cannot. So the first hello of each is answered by one that
//! repeats its nonce, and queue pairs are connected by that.
//!
//! Invariants (cited by the tests):
//! - **H1** Whichever datagrams are lost, repeated or late, both sides come up, as long as some get through.
//! - **H2** A side is up only when the other receives.
//! - **H3** One that is heard by nobody gives up at its deadline, counted from its first hello, and says how often it
//!   tried.
//! - **H4** Queue pairs are connected, and a side is up, only by hellos that one with the key has said in this meeting.
//!   Keys of memory and messages follow, so neither goes to anybody else.
#![forbid(unsafe_code)]

use super::choice::MAX_RAILS;
use crate::transport::authentication::{Key, NONCE_BYTES, Nonce, PROOF_BYTES, Proof};

/// Length of an encoded hello: fits the smallest MTU.
pub const HELLO_BYTES: usize = 160;
/// What is proven of it.
const PROVEN_BYTES: usize = HELLO_BYTES - PROOF_BYTES;
/// Role of whoever says a hello: both sides have the same, and name each other.
const SPEAKER: &str = "ringway rdma hello";
/// Version of this protocol. Both sides must have the same.
pub const VERSION: u16 = 4;
/// What every hello begins with.
pub const MAGIC: [u8; 4] = *b"RWRD";
/// Pause before a hello is repeated the first time; it doubles each time.
pub const FIRST_PAUSE_MS: u64 = 4;
/// The longest pause.
pub const MAX_PAUSE_MS: u64 = 250;

/// What one side is, wants and offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Hello {
    /// Whether the speaker has heard the other's, or will not.
    pub answer: Answer,
    /// The speaker's, drawn for this meeting.
    pub nonce: Nonce,
    /// The other side's, as far as it was heard; else zeros.
    pub echo: Nonce,
    /// The speaker.
    pub from: u32,
    /// Whom it speaks to.
    pub to: u32,
    /// The speaker's incarnation.
    pub from_incarnation: u64,
    /// The incarnation that it expects of the other side.
    pub to_incarnation: u64,
    /// Largest eager message that it takes.
    pub eager_bytes: u32,
    /// Units of eager window that it keeps.
    pub window_units: u32,
    /// Receives that it has posted.
    pub receives: u16,
    /// Payload bytes that fit each of them.
    pub payload_bytes: u32,
    /// How many of `ends` there are, best first.
    pub rails: u8,
    /// Queue pair number and first packet number, by rail; zeros for one that the speaker leaves out.
    pub ends: [(u32, u32); MAX_RAILS],
}

/// What a hello answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Answer {
    /// Nothing was heard yet.
    #[default]
    None,
    /// The other's was heard, and its queue pairs can send here. Whether it has heard this side's is not known yet.
    Heard,
    /// Both have heard: nothing more needs to be said.
    Both,
    /// There was a connection between the two, and it is over.
    Over,
}

impl Answer {
    /// In words, for a side that is turned away.
    pub fn refusal(self) -> Option<&'static str> {
        match self {
            Answer::None | Answer::Heard | Answer::Both => None,
            Answer::Over => Some("it has had a connection with us before, and that is over"),
        }
    }
}

impl Hello {
    /// The bytes of a datagram, with the proof that one with the key has said it.
    pub fn encode(&self, key: &Key) -> [u8; HELLO_BYTES] {
        let said = self.said();
        let proof = key.prove(SPEAKER, &[&said]);
        std::array::from_fn(|i| if i < PROVEN_BYTES { said[i] } else { proof[i - PROVEN_BYTES] })
    }

    /// Whether one with the key has said what was decoded with this proof.
    pub fn is_proven(&self, key: &Key, proof: &Proof) -> bool {
        key.verify(SPEAKER, &[&self.said()], proof)
    }

    fn said(&self) -> [u8; PROVEN_BYTES] {
        let mut bytes = Vec::with_capacity(PROVEN_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.push(self.answer as u8);
        bytes.push(self.rails);
        bytes.extend(self.nonce);
        bytes.extend(self.echo);
        bytes.extend(self.from.to_le_bytes());
        bytes.extend(self.to.to_le_bytes());
        bytes.extend(self.from_incarnation.to_le_bytes());
        bytes.extend(self.to_incarnation.to_le_bytes());
        bytes.extend(self.eager_bytes.to_le_bytes());
        bytes.extend(self.window_units.to_le_bytes());
        bytes.extend(self.payload_bytes.to_le_bytes());
        for (number, psn) in self.ends {
            bytes.extend(number.to_le_bytes());
            bytes.extend(psn.to_le_bytes());
        }
        bytes.extend(self.receives.to_le_bytes());
        bytes.resize(PROVEN_BYTES, 0);
        std::array::from_fn(|i| bytes[i])
    }

    /// The hello in a datagram and its proof, not looked at; or `None` when it is none of this version.
    pub fn decode(bytes: &[u8]) -> Option<(Hello, Proof)> {
        let bytes = bytes.first_chunk::<HELLO_BYTES>()?;
        let mut at = 0;
        fn take<const N: usize>(bytes: &[u8; HELLO_BYTES], at: &mut usize) -> [u8; N] {
            let from = *at;
            *at += N;
            std::array::from_fn(|i| bytes[from + i])
        }
        if take(bytes, &mut at) != MAGIC || u16::from_le_bytes(take(bytes, &mut at)) != VERSION {
            return None;
        }
        let [answer, rails] = take(bytes, &mut at);
        let answer = match answer {
            0 => Answer::None,
            1 => Answer::Heard,
            2 => Answer::Both,
            3 => Answer::Over,
            _ => return None,
        };
        let hello = Hello {
            answer,
            rails,
            nonce: take::<NONCE_BYTES>(bytes, &mut at),
            echo: take(bytes, &mut at),
            from: u32::from_le_bytes(take(bytes, &mut at)),
            to: u32::from_le_bytes(take(bytes, &mut at)),
            from_incarnation: u64::from_le_bytes(take(bytes, &mut at)),
            to_incarnation: u64::from_le_bytes(take(bytes, &mut at)),
            eager_bytes: u32::from_le_bytes(take(bytes, &mut at)),
            window_units: u32::from_le_bytes(take(bytes, &mut at)),
            payload_bytes: u32::from_le_bytes(take(bytes, &mut at)),
            ends: std::array::from_fn(|_| {
                (u32::from_le_bytes(take(bytes, &mut at)), u32::from_le_bytes(take(bytes, &mut at)))
            }),
            receives: u16::from_le_bytes(take(bytes, &mut at)),
        };
        // Bytes that nothing is in are zeros, so that what is decoded is all that was proven.
        let proof = take_last(bytes);
        (usize::from(rails) <= MAX_RAILS && bytes[at..PROVEN_BYTES].iter().all(|b| *b == 0))
            .then_some((hello, proof))
    }
}

fn take_last(bytes: &[u8; HELLO_BYTES]) -> Proof {
    std::array::from_fn(|i| bytes[PROVEN_BYTES + i])
}

/// What to do after a hello was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Heard {
    /// It is the first: make the queue pairs ready for it, then answer.
    pub connect: bool,
    /// The other side does not know that it was heard: answer.
    pub answer: bool,
}

/// One side of a meeting.
#[derive(Clone, Debug)]
pub struct Meeting {
    nonce: Nonce,
    /// Of the last hello that was heard; of the one that counts, once one does.
    echo: Nonce,
    theirs: Option<Hello>,
    was_heard: bool,
    due_ms: u64,
    pause_ms: u64,
    deadline_ms: u64,
    timeout_ms: u64,
    spoken: u32,
}

impl Meeting {
    /// A meeting that begins now, with a nonce drawn for it: the first hello is due at once.
    pub fn new(nonce: Nonce, now_ms: u64, timeout_ms: u64) -> Meeting {
        Meeting {
            nonce,
            echo: Nonce::default(),
            theirs: None,
            was_heard: false,
            due_ms: now_ms,
            pause_ms: FIRST_PAUSE_MS,
            deadline_ms: u64::MAX,
            timeout_ms,
            spoken: 0,
        }
    }

    /// Whether a hello is to be said now. What it answers is [`Self::answer`].
    pub fn speaks(&mut self, now_ms: u64) -> bool {
        if now_ms < self.due_ms || self.is_up() {
            return false;
        }
        if self.spoken == 0 {
            // What this side itself took to begin, such as to pin much memory, is not the peer's time.
            self.deadline_ms = now_ms.saturating_add(self.timeout_ms);
        }
        self.due_ms = now_ms + self.pause_ms;
        self.pause_ms = (self.pause_ms * 2).min(MAX_PAUSE_MS);
        self.spoken += 1;
        true
    }

    /// What this side's hellos say now.
    pub fn answer(&self) -> Answer {
        match self.theirs {
            None => Answer::None,
            Some(_) if self.was_heard => Answer::Both,
            Some(_) => Answer::Heard,
        }
    }

    /// This side's nonce, and what its hellos repeat of the other's.
    pub fn nonces(&self) -> (Nonce, Nonce) {
        (self.nonce, self.echo)
    }

    /// Whether a hello was said in this meeting, since it repeats this side's nonce (H4).
    pub fn is_fresh(&self, hello: &Hello) -> bool {
        hello.echo == self.nonce && (self.theirs.is_none() || hello.nonce == self.echo)
    }

    /// Takes the other's hello, which is of the right incarnations and peers, and proven.
    pub fn hear(&mut self, hello: &Hello) -> Heard {
        if !self.is_fresh(hello) {
            // Of the beginning, or of long ago: answered, so that its speaker can show that it is still there.
            if self.theirs.is_none() {
                self.echo = hello.nonce;
            }
            return Heard { connect: false, answer: hello.answer == Answer::None };
        }
        let connect = self.theirs.is_none();
        if connect {
            self.echo = hello.nonce;
            self.theirs = Some(*hello);
        }
        self.was_heard |= hello.answer != Answer::None;
        Heard { connect, answer: hello.answer != Answer::Both }
    }

    /// A message came over the queue pairs: the other side is up, so it has heard.
    pub fn data_came(&mut self) {
        self.was_heard = true;
    }

    /// Whether this side may send (H2).
    pub fn is_up(&self) -> bool {
        self.theirs.is_some() && self.was_heard
    }

    /// When to look again.
    pub fn due_ms(&self) -> u64 {
        self.due_ms.min(self.deadline_ms)
    }

    /// Whether the time is over, and what was tried in it (H3).
    pub fn is_late(&self, now_ms: u64) -> Option<String> {
        (now_ms >= self.deadline_ms && !self.is_up()).then(|| {
            let heard =
                if self.theirs.is_some() { "it was heard, but does not hear us" } else { "no answer" };
            format!("{heard}, after {} hellos", self.spoken)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::seed::Seeded;
    use std::collections::VecDeque;

    #[test]
    fn hellos_come_back_as_they_were() {
        let hello = Hello {
            answer: Answer::Heard,
            nonce: [3; NONCE_BYTES],
            echo: [4; NONCE_BYTES],
            from: 1,
            to: 2,
            from_incarnation: u64::MAX - 3,
            to_incarnation: 9,
            eager_bytes: 8192,
            window_units: 77,
            receives: 64,
            payload_bytes: 8200,
            rails: 2,
            ends: [(17, 1), (18, 2), (0, 0), (0, 0)],
        };
        let key = Key::new([1; 32]);
        let bytes = hello.encode(&key);
        let (read, proof) = Hello::decode(&bytes).unwrap();
        assert!(read == hello && read.is_proven(&key, &proof));
        assert!(!read.is_proven(&Key::new([2; 32]), &proof));
        let mut random = Seeded::new(1);
        for _ in 0..20_000 {
            let mut bytes = bytes;
            let at = if random.once_in(2) { random.below(12) } else { random.below(HELLO_BYTES as u64) };
            bytes[at as usize] ^= 1 + random.below(255) as u8;
            if let Some((read, proof)) = Hello::decode(&bytes) {
                assert!(usize::from(read.rails) <= MAX_RAILS);
                assert!(!read.is_proven(&key, &proof), "byte {at}");
            }
        }
        assert_eq!(Hello::decode(&bytes[..HELLO_BYTES - 1]), None);
    }

    /// Two sides over a wire that loses, repeats and delays, and brings hellos of an earlier meeting of the same two and of
    /// the sides themselves; `true` when a side is ready to receive.
    fn simulate(seed: u64) {
        let mut random = Seeded::of(seed, 0, 0);
        let loss = random.below(8);
        let nonces = [[1; NONCE_BYTES], [2; NONCE_BYTES]];
        let mut sides =
            [Meeting::new(nonces[0], 0, 60_000), Meeting::new(nonces[1], random.below(300), 60_000)];
        let old = |me: usize, answer| Hello {
            answer,
            nonce: [11 + me as u8; NONCE_BYTES],
            echo: [12 - me as u8; NONCE_BYTES],
            ..Hello::default()
        };
        let answers = [Answer::None, Answer::Heard, Answer::Both];
        let mut ready = [false; 2];
        let mut wires: [VecDeque<(u64, Hello)>; 2] = Default::default();
        for now in 0..30_000 {
            for me in 0..2 {
                if random.once_in(20) {
                    let replayed = old(1 - me, answers[random.below(3) as usize]);
                    wires[me].push_back((now, replayed));
                }
                let mut speak = sides[me].speaks(now);
                while wires[me].front().is_some_and(|(at, _)| *at <= now) {
                    let (_, hello) = wires[me].pop_front().unwrap();
                    let heard = sides[me].hear(&hello);
                    assert!(!heard.connect || hello.nonce == nonces[1 - me], "H4, seed {seed}");
                    ready[me] |= heard.connect;
                    speak |= heard.answer;
                }
                if speak {
                    let (nonce, echo) = sides[me].nonces();
                    let hello = Hello { answer: sides[me].answer(), nonce, echo, ..Hello::default() };
                    let copies = if random.below(10) < loss { 0 } else { 1 + random.below(2) };
                    for _ in 0..copies {
                        wires[1 - me].push_back((now + random.below(40), hello));
                    }
                }
                assert!(!sides[me].is_up() || ready[1 - me], "H2, seed {seed}");
            }
            if sides.iter().all(Meeting::is_up) {
                return;
            }
        }
        panic!("H1: not both are up, seed {seed}: {sides:?}");
    }

    #[test]
    fn both_come_up_over_any_wire() {
        (0..2000).for_each(simulate);
    }

    #[test]
    fn nobody_waits_for_ever() {
        // H3
        let mut alone = Meeting::new([1; NONCE_BYTES], 1, 1000);
        let spoken = (5..1005).filter(|now| alone.speaks(*now)).count();
        assert_eq!(alone.is_late(1004), None);
        assert_eq!(alone.is_late(1005), Some(format!("no answer, after {spoken} hellos")));
        assert!((6..20).contains(&spoken), "{spoken}");
        let hello = Hello { nonce: [2; NONCE_BYTES], echo: [1; NONCE_BYTES], ..Hello::default() };
        assert!(!alone.hear(&Hello { echo: [3; NONCE_BYTES], ..hello }).connect, "H4");
        assert!(alone.hear(&hello).connect);
        assert!(!alone.hear(&Hello { nonce: [9; NONCE_BYTES], answer: Answer::Both, ..hello }).connect);
        assert!(!alone.is_up(), "another meeting's");
        assert!(alone.is_late(2000).unwrap().starts_with("it was heard"));
    }
}
