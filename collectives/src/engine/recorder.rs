//! The flight recorder: the last calls of a rank and what befell it, in rings of fixed size, and totals.
//!
//! - **Y1** Memory is bounded. Once the ring of calls is full, recording a call allocates nothing and takes no lock but
//!   the engine's, which its caller has anyway.
//! - **Y2** The clock is looked at twice for a call, and once more where the call is long.

#![forbid(unsafe_code)]

use super::fingerprint::Call;
use crate::schedule::Collective;
use ringway_dataplane::transport::Peer;
use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

/// Happenings that are kept: losses, deaths, first messages. They are rare.
pub const RECORDED_HAPPENINGS: usize = 512;
/// Longest detail of a happening, in bytes.
const DETAIL_BYTES: usize = 512;
/// Y2: from this many bytes on it is noted when a call's first message came. Below, the first is the whole, or nearly.
const FIRST_BYTE_FROM: u64 = 4096;

/// One call, as the recorder kept it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its communicator's id.
    pub group: u32,
    /// What was called.
    pub call: Call,
    /// Bytes of the buffer, or of one block.
    pub bytes: u64,
    /// When it began, since the engine was made.
    pub began: Duration,
    /// When its first message had come; `None` before that, and where a call is short.
    pub first_byte: Option<Duration>,
    /// How it ended and when, or `None` while it is under way.
    pub ended: Option<(Duration, Ending)>,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With a result.
    Done,
    /// With an error.
    Failed,
}

/// Something that befell an endpoint, other than a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happening {
    /// When, since the engine was made.
    pub at: Duration,
    /// What.
    pub what: Befell,
    /// The communicator concerned, if one is.
    pub group: Option<u32>,
    /// The peer concerned, if one is.
    pub peer: Option<Peer>,
    /// In words; empty where there is no more to say.
    pub detail: String,
}

/// What may befall an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Befell {
    /// A communicator was made.
    Made,
    /// The first message with a peer ended: their connection carries.
    Reached,
    /// A peer was lost.
    Lost,
    /// A peer said goodbye.
    Left,
    /// A communicator died: of a lost member, of mismatched calls, of somebody's abort.
    Died,
    /// A communicator was closed.
    Closed,
}

impl Befell {
    /// One word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Befell::Made => "made",
            Befell::Reached => "reached",
            Befell::Lost => "lost",
            Befell::Left => "left",
            Befell::Died => "died",
            Befell::Closed => "closed",
        }
    }
}

/// Totals of one kind of call since the engine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// Calls that ended well.
    pub done: u64,
    /// Calls that failed.
    pub failed: u64,
    /// Bytes of those that ended well, each as [`Record::bytes`].
    pub bytes: u64,
    /// Time spent in those that ended well.
    pub time: Duration,
}

/// Kinds of calls: the collectives, and messages.
const KINDS: usize = Collective::ALL.len() + 1;

/// A record as it is kept: what it says in durations is worked out when it is asked for.
#[derive(Debug)]
struct Kept {
    group: u32,
    call: Call,
    bytes: u64,
    began: Instant,
    first_byte: Option<Instant>,
    ended: Option<(Instant, Ending)>,
}

#[derive(Debug)]
pub(super) struct Recorder {
    epoch: Instant,
    wall: SystemTime,
    ring: Vec<Kept>,
    capacity: usize,
    next: u64,
    /// Where the next goes: `next` modulo the capacity.
    at: usize,
    totals: [Total; KINDS],
    happenings: VecDeque<Happening>,
}

impl Recorder {
    pub(super) fn new(capacity: usize) -> Recorder {
        let capacity = capacity.max(1);
        Recorder {
            epoch: Instant::now(),
            wall: SystemTime::now(),
            ring: Vec::with_capacity(capacity),
            capacity,
            next: 0,
            at: 0,
            totals: [Total::default(); KINDS],
            happenings: VecDeque::new(),
        }
    }

    /// Notes that a call begins; returns the number to end it by.
    #[inline]
    pub(super) fn begin(&mut self, group: u32, call: Call, bytes: u64) -> u64 {
        self.begin_at(Instant::now(), group, call, bytes)
    }

    /// As [`Self::begin`], for one that began then.
    #[inline]
    pub(super) fn begin_at(&mut self, began: Instant, group: u32, call: Call, bytes: u64) -> u64 {
        self.keep(Kept { group, call, bytes, began, first_byte: None, ended: None })
    }

    #[inline]
    fn keep(&mut self, record: Kept) -> u64 {
        match self.ring.get_mut(self.at) {
            Some(old) => *old = record,
            None => self.ring.push(record),
        }
        self.at = if self.at + 1 == self.capacity { 0 } else { self.at + 1 };
        self.next += 1;
        self.next - 1
    }

    /// The record of a call, if it is still kept.
    fn kept(&mut self, number: u64) -> Option<&mut Kept> {
        let back = self.next - number;
        (back <= self.capacity as u64).then(move || {
            let at = self.at + if back as usize > self.at { self.capacity } else { 0 } - back as usize;
            &mut self.ring[at]
        })
    }

    /// When the newest call ended, or began.
    #[inline]
    pub(super) fn newest(&self) -> Option<Instant> {
        let at = if self.at == 0 { self.capacity } else { self.at } - 1;
        self.ring.get(at).map(|kept| kept.ended.as_ref().map_or(kept.began, |(when, _)| *when))
    }

    /// Notes that a message of a call has come, if it is the first of a long one (Y2).
    pub(super) fn message(&mut self, number: u64) {
        let wanted = |kept: &&mut Kept| kept.first_byte.is_none() && kept.bytes >= FIRST_BYTE_FROM;
        if let Some(kept) = self.kept(number).filter(wanted) {
            kept.first_byte = Some(Instant::now());
        }
    }

    /// Notes a call that has ended well, and began then, or as it ended.
    #[inline]
    pub(super) fn passed(&mut self, began: Option<Instant>, group: u32, call: Call, bytes: u64) {
        let now = Instant::now();
        let began = began.unwrap_or(now);
        let ended = Some((now, Ending::Done));
        self.keep(Kept { group, call, bytes, began, first_byte: None, ended });
        let total = &mut self.totals[call.collective.map_or(KINDS - 1, |c| c as usize)];
        total.done += 1;
        total.bytes += bytes;
        total.time += now - began;
    }

    /// Notes how a call ended, if it is still kept.
    #[inline]
    pub(super) fn end(&mut self, number: u64, ending: Ending) {
        let Some(kept) = self.kept(number) else { return };
        let now = Instant::now();
        kept.ended = Some((now, ending));
        let (kind, bytes, time) =
            (kept.call.collective.map_or(KINDS - 1, |c| c as usize), kept.bytes, now - kept.began);
        let total = &mut self.totals[kind];
        match ending {
            Ending::Failed => total.failed += 1,
            Ending::Done => {
                total.done += 1;
                total.bytes += bytes;
                total.time += time;
            }
        }
    }

    /// Notes that something befell the endpoint.
    pub(super) fn happens(&mut self, what: Befell, group: Option<u32>, peer: Option<Peer>, detail: &str) {
        if self.happenings.len() == RECORDED_HAPPENINGS {
            self.happenings.pop_front();
        }
        let mut end = detail.len().min(DETAIL_BYTES);
        while !detail.is_char_boundary(end) {
            end -= 1;
        }
        let at = self.epoch.elapsed();
        self.happenings.push_back(Happening { at, what, group, peer, detail: detail[..end].to_owned() });
    }

    /// The kept records, oldest first.
    pub(super) fn records(&self) -> Vec<Record> {
        let oldest = if self.ring.len() < self.capacity { 0 } else { self.at };
        let since = |then: Instant| then.duration_since(self.epoch);
        let told = |kept: &Kept| Record {
            group: kept.group,
            call: kept.call,
            bytes: kept.bytes,
            began: since(kept.began),
            first_byte: kept.first_byte.map(since),
            ended: kept.ended.map(|(then, ending)| (since(then), ending)),
        };
        self.ring[oldest..].iter().chain(&self.ring[..oldest]).map(told).collect()
    }

    /// When a call began, if that is still known.
    pub(super) fn began(&mut self, number: u64) -> Option<Duration> {
        let epoch = self.epoch;
        self.kept(number).map(|kept| kept.began.duration_since(epoch))
    }

    /// The last call that ended, if it is still kept.
    pub(super) fn last_ended(&self) -> Option<Record> {
        self.records().into_iter().filter(|r| r.ended.is_some()).max_by_key(|r| r.ended.map(|(at, _)| at))
    }

    /// How many older calls the ring no longer holds.
    pub(super) fn forgotten(&self) -> u64 {
        self.next - self.ring.len() as u64
    }

    /// What befell the endpoint, oldest first.
    pub(super) fn happenings(&self) -> Vec<Happening> {
        self.happenings.iter().cloned().collect()
    }

    /// Totals of the kinds of calls that were made; `None` stands for messages.
    pub(super) fn totals(&self) -> Vec<(Option<Collective>, Total)> {
        let kinds = Collective::ALL.into_iter().map(Some).chain([None]);
        let at = |kind: Option<Collective>| kind.map_or(KINDS - 1, |c| c as usize);
        let all = kinds.map(|kind| (kind, self.totals[at(kind)]));
        all.filter(|(_, total)| *total != Total::default()).collect()
    }

    /// The time of day at which durations begin.
    pub(super) fn wall(&self) -> SystemTime {
        self.wall
    }

    /// A moment, as durations are counted here.
    pub(super) fn since_epoch(&self, then: Instant) -> Duration {
        then.saturating_duration_since(self.epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(seq: u32) -> Call {
        Call {
            collective: Some(Collective::Broadcast),
            dtype: None,
            op: None,
            algorithm: None,
            form: Default::default(),
            root: 0,
            count: 0,
            seq,
            history: 0,
        }
    }

    #[test]
    fn the_last_calls_are_kept_in_order() {
        let mut recorder = Recorder::new(3);
        let numbers: Vec<u64> = (0..5).map(|seq| recorder.begin(1, call(seq), 8)).collect();
        recorder.end(numbers[0], Ending::Failed);
        recorder.end(numbers[3], Ending::Done);
        let kept = recorder.records();
        assert_eq!(kept.iter().map(|r| r.call.seq).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(
            kept.iter().map(|r| r.ended.map(|e| e.1)).collect::<Vec<_>>(),
            [None, Some(Ending::Done), None]
        );
        assert_eq!(recorder.forgotten(), 2);
        assert_eq!(recorder.last_ended().map(|r| r.call.seq), Some(3));
        assert!(recorder.began(numbers[1]).is_none() && recorder.began(numbers[2]).is_some());
        recorder.passed(None, 1, call(5), 8);
        let last = recorder.records()[2];
        assert_eq!((last.call.seq, last.ended), (5, Some((last.began, Ending::Done))));
    }

    #[test]
    fn the_first_message_of_a_long_call_is_noted_once() {
        // Y2
        let mut recorder = Recorder::new(4);
        let (short, long) = (recorder.begin(1, call(0), 8), recorder.begin(1, call(1), FIRST_BYTE_FROM));
        [short, long].into_iter().for_each(|number| recorder.message(number));
        let first = recorder.records()[1].first_byte;
        recorder.message(long);
        recorder.end(long, Ending::Done);
        let kept = recorder.records();
        assert!(kept[0].first_byte.is_none());
        assert!(kept[1].first_byte.is_some() && kept[1].first_byte == first);
        assert!(kept[1].ended.is_some_and(|(at, _)| Some(at) >= first));
    }

    #[test]
    fn calls_are_totalled_by_their_kind() {
        let mut recorder = Recorder::new(4);
        let message = Call { collective: None, ..call(0) };
        for (call, ending) in [
            (call(0), Ending::Done),
            (call(1), Ending::Done),
            (call(2), Ending::Failed),
            (message, Ending::Done),
        ] {
            let number = recorder.begin(1, call, 10);
            recorder.end(number, ending);
        }
        let totals = recorder.totals();
        let told: Vec<_> = totals.iter().map(|(kind, t)| (*kind, t.done, t.failed, t.bytes)).collect();
        assert_eq!(told, [(Some(Collective::Broadcast), 2, 1, 20), (None, 1, 0, 10)]);
    }

    #[test]
    fn happenings_are_bounded_in_number_and_length() {
        // Y1
        let mut recorder = Recorder::new(1);
        for _ in 0..RECORDED_HAPPENINGS + 5 {
            recorder.happens(Befell::Lost, Some(1), Some(Peer(2)), &"\u{e9}".repeat(DETAIL_BYTES));
        }
        let kept = recorder.happenings();
        assert_eq!(kept.len(), RECORDED_HAPPENINGS);
        assert!(kept.iter().all(|h| h.detail.len() <= DETAIL_BYTES && !h.detail.is_empty()));
    }
}
