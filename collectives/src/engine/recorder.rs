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

#[derive(Debug)]
pub(super) struct Recorder {
    epoch: Instant,
    ring: Vec<Record>,
    capacity: usize,
    next: u64,
}

impl Recorder {
    pub(super) fn new(capacity: usize) -> Recorder {
        let capacity = capacity.max(1);
        Recorder { epoch: Instant::now(), ring: Vec::with_capacity(capacity), capacity, next: 0 }
    }

    /// Notes that a call begins; returns the number to end it by.
    pub(super) fn begin(&mut self, group: u32, call: Call, bytes: u64) -> u64 {
        let record = Record { group, call, bytes, began: self.epoch.elapsed(), ended: None };
        let at = (self.next % self.capacity as u64) as usize;
        match self.ring.get_mut(at) {
            Some(old) => *old = record,
            None => self.ring.push(record),
        }
        self.next += 1;
        self.next - 1
    }

    /// Notes how a call ended, if it is still kept.
    pub(super) fn end(&mut self, number: u64, ending: Ending) {
        if self.next - number <= self.capacity as u64 {
            let at = (number % self.capacity as u64) as usize;
            self.ring[at].ended = Some((self.epoch.elapsed(), ending));
        }
    }

    /// The kept records, oldest first.
    pub(super) fn records(&self) -> Vec<Record> {
        let oldest =
            if self.ring.len() < self.capacity { 0 } else { (self.next % self.capacity as u64) as usize };
        self.ring[oldest..].iter().chain(&self.ring[..oldest]).copied().collect()
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
