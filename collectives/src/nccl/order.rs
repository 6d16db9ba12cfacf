//! What a rank has called on a communicator over GPUs, and whether the others have called the same.
//!
//! A call's stamp (that of [`crate::engine::Call`]) goes to all others as a message of the control communicator, and theirs are
//! compared. In groups of more than [`EVERYBODY`] ranks it goes to those at distances 1, 2, 4, ..., so that any difference is
//! seen by some rank, which ends the communicator; another may learn of it one call later. A message between two ranks sends
//! its stamp along with it. This goes on while the GPU is at work; a call returns when both are done.

#![forbid(unsafe_code)]

use super::stream::Event;
use crate::engine::{Call, CollectiveError, Communicator, Handle};
use ringway_dataplane::memory::Buffer;
use ringway_dataplane::transport::Stamp;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of a stamp.
const STAMP_BYTES: usize = 24;
/// Tags of stamps on the control communicator: of collectives, and of messages.
const COLLECTIVES: u32 = 0;
const MESSAGES: u32 = 1;
/// Stamps that may be waited for at once on one communicator.
pub(super) const MAX_UNDER_WAY: usize = 64;

/// The largest group in which every rank compares with every other: the GPUs of a host.
const EVERYBODY: u32 = 8;

/// With whom a call's stamp is compared.
#[derive(Clone, Copy, Debug)]
pub(super) enum With {
    /// A collective.
    Group,
    /// A message to this rank, which compares.
    To(u32),
    /// A message from this rank.
    From(u32),
}

/// A call, and with whom it is compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said {
    pub(super) call: Call,
    pub(super) with: With,
}

/// How far, around the ring of ranks, those are to whom a rank's stamps go.
fn distances(ranks: u32) -> impl Iterator<Item = u32> {
    let step = move |distance: &u32| Some(if ranks <= EVERYBODY { distance + 1 } else { distance * 2 });
    std::iter::successors(Some(1), step).take_while(move |distance| *distance < ranks)
}

/// A stamp that is waited for.
struct Check {
    ours: Call,
    from: u32,
    stamp: Handle<u8>,
}

/// The calls of one rank, in order.
#[derive(Default)]
pub(super) struct Order {
    seq: u32,
    history: u16,
    checks: VecDeque<Check>,
    /// Number of the first in `checks`.
    first: u64,
    /// Buffers and events that calls before have left.
    stamps: Vec<Buffer<u8>>,
    pub(super) events: Vec<Arc<Event>>,
}

impl Order {
    /// Gives a collective its number.
    pub(super) fn number(&mut self, call: &mut Call) {
        (call.seq, call.history) = (self.seq, self.history);
        self.seq = self.seq.wrapping_add(1);
        self.history = call.history_after();
    }

    /// Whether these calls may begin besides those under way.
    pub(super) fn has_room(&self, control: &Communicator, calls: &[Said]) -> bool {
        let stamps = |said: &Said| match said.with {
            With::Group => distances(control.size()).count(),
            With::To(_) | With::From(_) => 1,
        };
        // However many one group of calls has, it may go by itself.
        self.checks.is_empty() || self.checks.len() + calls.iter().map(stamps).sum::<usize>() <= MAX_UNDER_WAY
    }

    /// The number behind the last check so far.
    pub(super) fn until(&self) -> u64 {
        self.first + self.checks.len() as u64
    }

    /// Sends the stamps of a call, and asks for those of others.
    pub(super) fn say(&mut self, control: &Communicator, said: &Said) -> Result<(), CollectiveError> {
        match said.with {
            With::To(to) => self.tell(control, &said.call, to, MESSAGES),
            With::From(from) => self.expect(control, said.call, from, MESSAGES),
            With::Group => {
                let (rank, size) = (control.rank(), control.size());
                distances(size).try_for_each(|distance| {
                    self.expect(control, said.call, (rank + size - distance) % size, COLLECTIVES)?;
                    self.tell(control, &said.call, (rank + distance) % size, COLLECTIVES)
                })
            }
        }
    }

    fn expect(
        &mut self,
        control: &Communicator,
        ours: Call,
        from: u32,
        tag: u32,
    ) -> Result<(), CollectiveError> {
        let stamp = control.recv_start(self.buffer(control)?, from, tag)?;
        self.checks.push_back(Check { ours, from, stamp });
        Ok(())
    }

    fn tell(
        &mut self,
        control: &Communicator,
        call: &Call,
        to: u32,
        tag: u32,
    ) -> Result<(), CollectiveError> {
        let mut buffer = self.buffer(control)?;
        buffer.copy_from_slice(&call.stamp().0);
        // It goes on by itself; its buffer goes back to the pool.
        drop(control.send_start(buffer, to, tag)?);
        Ok(())
    }

    fn buffer(&mut self, control: &Communicator) -> Result<Buffer<u8>, CollectiveError> {
        self.stamps.pop().map_or_else(|| control.alloc(STAMP_BYTES), Ok)
    }

    /// Whether all checks before number `until` are over.
    pub(super) fn is_compared(&self, until: u64) -> bool {
        self.first >= until
    }

    /// Compares what has come, up to check number `until`; whether all of that has.
    pub(super) fn compare(&mut self, control: &Communicator, until: u64) -> Result<bool, CollectiveError> {
        while self.first < until {
            if self.checks.front().is_some_and(|check| !check.stamp.is_over()) {
                return Ok(false);
            }
            let Some(check) = self.checks.pop_front() else { return Ok(true) };
            self.first += 1;
            let buffer = check.stamp.wait()?;
            let theirs = <[u8; STAMP_BYTES]>::try_from(&buffer[..]).ok().map(Stamp);
            let theirs = theirs.as_ref().and_then(Call::from_stamp);
            if theirs != Some(check.ours) {
                return Err(differ(control, check.ours, check.from, theirs));
            }
            self.stamps.push(buffer);
        }
        Ok(true)
    }
}

fn differ(control: &Communicator, ours: Call, from: u32, theirs: Option<Call>) -> CollectiveError {
    let (ours_who, theirs_who) = (control.who(control.rank()), control.who(from));
    match theirs {
        Some(theirs) => CollectiveError::Mismatch { ours_who, ours, theirs_who, theirs },
        None => CollectiveError::Transport {
            who: theirs_who,
            during: crate::engine::During::Call(ours),
            evidence: "its stamp of the call is none of ours: every rank needs the same version of ringway"
                .to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::distances;

    #[test]
    fn small_groups_compare_all_and_large_ones_few() {
        let of = |ranks| distances(ranks).collect::<Vec<_>>();
        assert_eq!(of(1), []);
        assert_eq!(of(4), [1, 2, 3]);
        assert_eq!(of(8), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(of(9), [1, 2, 4, 8]);
        assert_eq!(of(1000).len(), 10);
    }
}
