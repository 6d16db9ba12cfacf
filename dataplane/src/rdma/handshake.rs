//! How two sides tell each other of their queue pairs, over datagrams that may be lost: pure, with time as an argument.
//!
//! Each side says [`Hello`] until it has heard the other's and knows that its own was heard. A side that has heard makes
//! its queue pairs ready before it answers, so a side that was heard may send at once.
//!
//! Invariants (cited by the tests):
//! - **H1** Whichever datagrams are lost, repeated or late, both sides come up, as long as some get through.
//! - **H2** A side is up only when the other receives.
//! - **H3** One that is heard by nobody gives up at its deadline, counted from its first hello, and says how often it
//!   tried.
#![forbid(unsafe_code)]

use super::choice::MAX_RAILS;

/// Length of an encoded hello: fits the smallest MTU.
pub const HELLO_BYTES: usize = 128;
/// Version of this protocol. Both sides must have the same.
pub const VERSION: u16 = 2;
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
    /// The job's secret.
    pub token: [u8; 16],
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
    /// The bytes of a datagram.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = Vec::with_capacity(HELLO_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.push(self.answer as u8);
        bytes.push(self.rails);
        bytes.extend(self.token);
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
        bytes.resize(HELLO_BYTES, 0);
        std::array::from_fn(|i| bytes[i])
    }

    /// The hello in a datagram, or `None` when it is none of this version.
    pub fn decode(bytes: &[u8]) -> Option<Hello> {
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
            token: take(bytes, &mut at),
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
        (usize::from(rails) <= MAX_RAILS).then_some(hello)
    }
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
    theirs: Option<Hello>,
    was_heard: bool,
    due_ms: u64,
    pause_ms: u64,
    deadline_ms: u64,
    timeout_ms: u64,
    spoken: u32,
}

impl Meeting {
    /// A meeting that begins now: the first hello is due at once.
    pub fn new(now_ms: u64, timeout_ms: u64) -> Meeting {
        Meeting {
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

    /// Takes the other's hello, which is of the right job, incarnations and peers.
    pub fn hear(&mut self, hello: &Hello) -> Heard {
        let connect = self.theirs.is_none();
        if connect {
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
            token: [3; 16],
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
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        let mut random = Seeded::new(1);
        for _ in 0..20_000 {
            let mut bytes = hello.encode();
            bytes[random.below(12) as usize] = random.next_u64() as u8;
            if let Some(read) = Hello::decode(&bytes) {
                assert!(usize::from(read.rails) <= MAX_RAILS);
            }
        }
        assert_eq!(Hello::decode(&hello.encode()[..127]), None);
    }

    /// Two sides over a wire that loses, repeats and delays; `true` when a side is ready to receive.
    fn simulate(seed: u64) {
        let mut random = Seeded::of(seed, 0, 0);
        let loss = random.below(8);
        let mut sides = [Meeting::new(0, 60_000), Meeting::new(random.below(300), 60_000)];
        let mut ready = [false; 2];
        let mut wires: [VecDeque<(u64, Hello)>; 2] = Default::default();
        for now in 0..30_000 {
            for me in 0..2 {
                let mut speak = sides[me].speaks(now);
                while wires[me].front().is_some_and(|(at, _)| *at <= now) {
                    let (_, hello) = wires[me].pop_front().unwrap();
                    let heard = sides[me].hear(&hello);
                    ready[me] |= heard.connect;
                    speak |= heard.answer;
                }
                if speak {
                    let hello = Hello { answer: sides[me].answer(), ..Hello::default() };
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
        let mut alone = Meeting::new(1, 1000);
        let spoken = (5..1005).filter(|now| alone.speaks(*now)).count();
        assert_eq!(alone.is_late(1004), None);
        assert_eq!(alone.is_late(1005), Some(format!("no answer, after {spoken} hellos")));
        assert!((6..20).contains(&spoken), "{spoken}");
        alone.hear(&Hello::default());
        assert!(alone.is_late(2000).unwrap().starts_with("it was heard"));
    }
}
