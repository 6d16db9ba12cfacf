//! When the end of a message that several rails carried may be believed: pure.
//!
//! Such a message ends by a frame over the control rail, once all its writes were acknowledged. An acknowledgement does
//! not say that the bytes are visible in memory, and devices do not know of each other: an end could be seen before the
//! last bytes of another rail. What a device says of a queue pair is in order, though. So each rail that carried bytes
//! of the message says a *fence* behind them: an empty write that completes a receive there, with a running number. The
//! frame names the rails; the receiver holds it back until each of these has said its fence. It is the same for the end
//! of a message that was taken back.
//!
//! Both sides number the frames that name a rail, each in the order of the control rail; a fence says the number of the
//! last frame whose bytes are before it.
//!
//! Invariants (cited by the tests):
//! - **E1** An end is believed only when each rail that it names, but for the one that it came over, has said its fence,
//!   or is down: then all that had come in over it was taken, which the device puts behind the bytes.
//! - **E2** No end is believed while a rail that it names is being taken down: late writes could still come in.
//! - **E3** Ends are believed in the order of the control rail, each once, whatever is lost or told again when rails
//!   fail.
//! - **E4** A fence is said only for a receive that the peer has told of: at most [`FENCES`] that it has not given back.
#![forbid(unsafe_code)]

use super::choice::MAX_RAILS;
use std::collections::VecDeque;

/// Fences on one rail that the peer has not given back.
pub(super) const FENCES: u32 = 8;
/// Which bit of a number that comes with a write tells a fence from a place.
const FENCE_BIT: u32 = 1 << 31;
/// Ends that may be held back: a peer has no more places than operations.
const MAX_HELD: usize = super::MAX_DEPTH as usize;

/// What a fence with this number carries.
pub(super) fn immediate(number: u32) -> u32 {
    number | FENCE_BIT
}

/// The number of the fence that this came with, if it is one.
pub(super) fn number_of(immediate: u32) -> Option<u32> {
    (immediate & FENCE_BIT != 0).then_some(immediate & !FENCE_BIT)
}

fn next(number: u32) -> u32 {
    number.wrapping_add(1) & !FENCE_BIT
}

/// Whether the running number `said` has reached `awaited`.
fn reached(said: u32, awaited: u32) -> bool {
    said.wrapping_sub(awaited) & !FENCE_BIT < FENCE_BIT / 2
}

/// The speaking side of one rail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Speaker {
    /// Frames that named the rail, and those that a fence was said for.
    named: u32,
    said: u32,
    /// Fences that the peer has not given back, and that its device has not acknowledged.
    out: u32,
    under_way: u32,
}

impl Speaker {
    /// A frame names the rail.
    pub(super) fn name(&mut self) {
        self.named = next(self.named);
    }

    /// Whether frames wait for their fence.
    pub(super) fn is_due(&self) -> bool {
        self.named != self.said
    }

    /// The fence to say now: one stands for all before it.
    pub(super) fn say(&mut self) -> Option<u32> {
        (self.is_due() && self.out < FENCES).then(|| {
            self.said = self.named;
            self.out += 1;
            self.under_way += 1;
            self.said
        })
    }

    /// The peer's device has the oldest.
    pub(super) fn acknowledged(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// The peer has posted so many receives again. `false`: more than there were fences.
    pub(super) fn given_back(&mut self, count: u32) -> bool {
        let some = count <= self.out;
        self.out -= count.min(self.out);
        some
    }

    /// Whether all fences are with the peer's device.
    pub(super) fn is_quiet(&self) -> bool {
        !self.is_due() && self.under_way == 0
    }
}

/// How a rail is, as far as ends go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It carries data.
    Up,
    /// It takes no more, and not all that had come in was taken.
    Stopping,
    /// All that had come in was taken.
    Down,
    /// What had come in cannot be told any more.
    Broken,
}

#[derive(Clone, Copy, Debug)]
struct Heard {
    state: State,
    /// Frames that named the rail.
    named: u32,
    /// The last fence.
    fence: u32,
}

#[derive(Clone, Copy, Debug)]
struct Held<T> {
    end: T,
    /// Numbers of the fences that it waits for, by rail.
    awaited: [Option<u32>; MAX_RAILS],
}

/// What a peer said out of turn, or what was lost with a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum EndError {
    /// A fence with a number that goes back.
    #[error("said a fence twice on rail {rail}")]
    Fence {
        /// The rail.
        rail: usize,
    },
    /// Over the limit.
    #[error("ended over {MAX_HELD} messages whose bytes are not there")]
    TooMany,
    /// The rail's device broke with bytes that it had acknowledged.
    #[error("wrote over rail {rail}, whose device here broke before it had told of all bytes")]
    Broken {
        /// The rail.
        rail: usize,
    },
}

/// The hearing side: ends of type `T` that are held back.
#[derive(Debug)]
pub(super) struct Ends<T> {
    rails: [Heard; MAX_RAILS],
    held: VecDeque<Held<T>>,
}

impl<T: Copy> Ends<T> {
    /// All rails are up, and nothing was said.
    pub(super) fn new() -> Ends<T> {
        let up = Heard { state: State::Up, named: 0, fence: 0 };
        Ends { rails: [up; MAX_RAILS], held: VecDeque::new() }
    }

    /// Takes an end that came over the rail `by`; bit `r` of `carried` names rail `r`.
    ///
    /// # Errors
    /// [`EndError::TooMany`].
    pub(super) fn hold(&mut self, end: T, carried: u64, by: usize) -> Result<(), EndError> {
        if self.held.len() >= MAX_HELD {
            return Err(EndError::TooMany);
        }
        let mut awaited = [None; MAX_RAILS];
        for (r, rail) in self.rails.iter_mut().enumerate() {
            if carried & 1 << r != 0 && r != by {
                rail.named = next(rail.named);
                awaited[r] = Some(rail.named);
            }
        }
        self.held.push_back(Held { end, awaited });
        Ok(())
    }

    /// A fence came in over a rail.
    ///
    /// # Errors
    /// [`EndError::Fence`].
    pub(super) fn fence(&mut self, rail: usize, number: u32) -> Result<(), EndError> {
        let heard = self.rails.get_mut(rail).ok_or(EndError::Fence { rail })?;
        if number == heard.fence || !reached(number, heard.fence) {
            return Err(EndError::Fence { rail });
        }
        heard.fence = number;
        Ok(())
    }

    fn turn(&mut self, rail: usize, state: State) {
        if let Some(heard) = self.rails.get_mut(rail) {
            heard.state = state;
        }
    }

    /// A rail is being taken down (E2).
    pub(super) fn stopping(&mut self, rail: usize) {
        self.turn(rail, State::Stopping);
    }

    /// A rail is down, and all that had come in over it was taken.
    pub(super) fn down(&mut self, rail: usize) {
        self.turn(rail, State::Down);
    }

    /// A rail is down, and what had come in over it is not known.
    pub(super) fn broken(&mut self, rail: usize) {
        self.turn(rail, State::Broken);
    }

    /// Whether nothing is held back.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The next end that may be believed.
    ///
    /// # Errors
    /// [`EndError::Broken`]: one never can be.
    pub(super) fn next(&mut self) -> Result<Option<T>, EndError> {
        match self.held.front() {
            Some(held) if self.may_be_believed(held)? => Ok(self.held.pop_front().map(|held| held.end)),
            _ => Ok(None),
        }
    }

    fn may_be_believed(&self, held: &Held<T>) -> Result<bool, EndError> {
        let mut all = true;
        for (rail, (heard, awaited)) in self.rails.iter().zip(held.awaited).enumerate() {
            let Some(awaited) = awaited else { continue };
            all &= match heard.state {
                State::Down => true,
                State::Stopping => false,
                State::Up => reached(heard.fence, awaited),
                State::Broken if reached(heard.fence, awaited) => true,
                State::Broken => return Err(EndError::Broken { rail }),
            };
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests;
