//! The flight recorder: the last calls of a rank, in a ring of fixed size.

#![forbid(unsafe_code)]

use super::fingerprint::Call;
use std::time::{Duration, Instant};

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

/// A record as it is kept: what it says in durations is worked out when it is asked for.
#[derive(Debug)]
struct Kept {
    group: u32,
    call: Call,
    bytes: u64,
    began: Instant,
    ended: Option<(Instant, Ending)>,
}

#[derive(Debug)]
pub(super) struct Recorder {
    epoch: Instant,
    ring: Vec<Kept>,
    capacity: usize,
    next: u64,
    /// Where the next goes: `next` modulo the capacity.
    at: usize,
}

impl Recorder {
    pub(super) fn new(capacity: usize) -> Recorder {
        let capacity = capacity.max(1);
        Recorder { epoch: Instant::now(), ring: Vec::with_capacity(capacity), capacity, next: 0, at: 0 }
    }

    /// Notes that a call begins; returns the number to end it by.
    pub(super) fn begin(&mut self, group: u32, call: Call, bytes: u64) -> u64 {
        let record = Kept { group, call, bytes, began: Instant::now(), ended: None };
        match self.ring.get_mut(self.at) {
            Some(old) => *old = record,
            None => self.ring.push(record),
        }
        self.at = if self.at + 1 == self.capacity { 0 } else { self.at + 1 };
        self.next += 1;
        self.next - 1
    }

    /// Notes how a call ended, if it is still kept.
    pub(super) fn end(&mut self, number: u64, ending: Ending) {
        let back = self.next - number;
        if back <= self.capacity as u64 {
            let at = self.at + if back as usize > self.at { self.capacity } else { 0 } - back as usize;
            self.ring[at].ended = Some((Instant::now(), ending));
        }
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
            ended: kept.ended.map(|(then, ending)| (since(then), ending)),
        };
        self.ring[oldest..].iter().chain(&self.ring[..oldest]).map(told).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_calls_are_kept_in_order() {
        let mut recorder = Recorder::new(3);
        let call = |seq| Call {
            collective: None,
            dtype: None,
            op: None,
            algorithm: None,
            root: 0,
            count: 0,
            seq,
            history: 0,
        };
        let numbers: Vec<u64> = (0..5).map(|seq| recorder.begin(1, call(seq), 8)).collect();
        recorder.end(numbers[0], Ending::Failed);
        recorder.end(numbers[3], Ending::Done);
        let kept = recorder.records();
        assert_eq!(kept.iter().map(|r| r.call.seq).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(
            kept.iter().map(|r| r.ended.map(|e| e.1)).collect::<Vec<_>>(),
            [None, Some(Ending::Done), None]
        );
    }
}
