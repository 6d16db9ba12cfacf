//! Calls of several slices at once (A6).

#![forbid(unsafe_code)]

use super::{Stand, Straight};
use crate::schedule::Schedule;

/// A6
pub(in crate::engine) const MOST_BEGUN: usize = 3;

/// How far the slices of a call have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct Stands {
    /// Slices that are over: the first so many.
    pub(in crate::engine) over: u32,
    /// Those behind them that were begun.
    begun: [Option<Stand>; MOST_BEGUN],
}

impl Stands {
    /// Of one slice.
    pub(super) fn one(stand: Stand) -> Stands {
        Stands { over: 0, begun: [Some(stand), None, None] }
    }

    /// Where a slice that was begun and is not over goes on.
    pub(in crate::engine) fn of(&self, slice: u32) -> Option<Stand> {
        self.begun.get(slice.checked_sub(self.over)? as usize).copied().flatten()
    }

    /// The oldest slice is over.
    fn shift(&mut self) {
        self.over += 1;
        self.begun.rotate_left(1);
        self.begun[MOST_BEGUN - 1] = None;
    }
}

/// What became of a slice in a round (A6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// It has come to the next message that it waits for.
    Done,
    /// It is over.
    Over,
    /// It cannot go on.
    Stuck,
}

impl Straight<'_, '_> {
    /// A6: goes on with a call of several slices, the first of which stands there. Returns where it could not go on. Apart from what
    /// calls of one slice take, whose nanoseconds count.
    #[inline(never)]
    pub(super) fn go_in_rounds(&mut self, first: Stand) -> Option<Stands> {
        let (slices, mut stands) = (self.plan.layout.slices, Stands::one(first));
        for round in 0.. {
            for slice in (stands.over..=round.min(slices - 1)).rev() {
                self.turn_to(slice);
                let mut stand = stands.of(slice).unwrap_or_default();
                let came = self.go_one_round(&mut stand, slice < round);
                stands.begun[(slice - stands.over) as usize] = Some(stand);
                match came {
                    Round::Done => {}
                    Round::Stuck => return Some(stands),
                    Round::Over => {
                        self.finish();
                        stands.shift();
                    }
                }
            }
            if stands.over == slices {
                break;
            }
        }
        None
    }

    /// Moves the slice on up to the next message that it waits for; behind one, if it is its turn to wait.
    fn go_one_round(&mut self, stand: &mut Stand, mut waits: bool) -> Round {
        while let Some(step) = self.plan.program.step(self.rank, stand.step) {
            if !step.is_send() && !std::mem::take(&mut waits) {
                return Round::Done;
            }
            let made = if step.is_send() { self.send(step) } else { self.receive(step) };
            if !made {
                return Round::Stuck;
            }
            stand.next();
        }
        Round::Over
    }
}
