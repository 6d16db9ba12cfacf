//! What one rank has under way in the simulation in time: the open steps of each slice, and which of them wait for which.

#![forbid(unsafe_code)]

use crate::schedule::{Rank, Span, Step};
use std::collections::VecDeque;

/// Steps of one rank and slice that are open at once: as many as a [`Steps`] has bits.
pub(super) const AHEAD: u32 = 16;

/// Some of a program's open steps, by their numbers modulo [`AHEAD`].
pub(super) type Steps = u16;

/// Where a step's number is in a set of steps.
pub(super) const fn bit(index: u32) -> Steps {
    1 << (index % AHEAD)
}

/// One rank's part in one slice. A step waits, is posted, moves, and is done; what is received and combined arrives and is being combined
/// between the two. It is in at most one of the sets below.
pub(super) struct Program {
    /// The oldest open step, and how many follow.
    pub(super) base: u32,
    pub(super) open: u32,
    pub(super) ended: bool,
    /// By number modulo [`AHEAD`]; of steps that are not open, anything.
    steps: [Step; AHEAD as usize],
    /// The earlier steps that each of them has to wait for (I4).
    behind: [Steps; AHEAD as usize],
    pub(super) waiting: Steps,
    /// Receives that no send has met.
    pub(super) posted: Steps,
    pub(super) arrived: Steps,
    /// Receives that nothing held up when they were posted: what comes is combined where it lies.
    pub(super) passing: Steps,
    done: Steps,
    /// Sends posted to this program that no receive has met, or that have not come yet, in the order in which they were posted.
    pub(super) unmatched: Vec<Unmatched>,
}

/// A message to a program that did not find its receive posted.
#[derive(Clone, Copy)]
pub(super) struct Unmatched {
    /// The sending rank, as it is named here, and the number of its step.
    pub(super) from: Rank,
    pub(super) sent: u32,
    /// Whether it did not wait for its receiver's word, and so is under way.
    pub(super) at_once: bool,
    /// The receive that has been posted for it meanwhile.
    pub(super) taken: Option<u32>,
    /// Whether it has come.
    pub(super) here: bool,
}

impl Default for Program {
    fn default() -> Program {
        let none = Step::Send { to: 0, span: Span::one(0) };
        Program {
            base: 0,
            open: 0,
            ended: false,
            steps: [none; AHEAD as usize],
            behind: [0; AHEAD as usize],
            waiting: 0,
            posted: 0,
            arrived: 0,
            passing: 0,
            done: 0,
            unmatched: Vec::new(),
        }
    }
}

impl Program {
    pub(super) fn step(&self, index: u32) -> Step {
        self.steps[(index % AHEAD) as usize]
    }

    pub(super) fn is_blocked(&self, index: u32) -> bool {
        self.behind[(index % AHEAD) as usize] != 0
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended && self.open == 0
    }

    /// The numbers of some open steps, in order.
    pub(super) fn in_order(&self, steps: Steps) -> impl Iterator<Item = u32> + use<> {
        let (base, mut left) = (self.base, steps.rotate_right(self.base % AHEAD));
        std::iter::from_fn(move || {
            let place = left.trailing_zeros();
            (left != 0).then(|| {
                left &= left - 1;
                base + place
            })
        })
    }

    /// Forgets the oldest steps that are done.
    pub(super) fn retire(&mut self) {
        while self.open > 0 && self.done & bit(self.base) != 0 {
            self.done &= !bit(self.base);
            self.base += 1;
            self.open -= 1;
        }
    }

    /// Opens the next step.
    pub(super) fn push(&mut self, step: Step) {
        let index = self.base + self.open;
        let earlier = (self.base..index).filter(|earlier| self.done & bit(*earlier) == 0);
        let behind = earlier.filter(|earlier| step.conflicts_with(&self.step(*earlier)));
        self.behind[(index % AHEAD) as usize] = behind.fold(0, |steps, earlier| steps | bit(earlier));
        self.steps[(index % AHEAD) as usize] = step;
        self.waiting |= bit(index);
        self.passing &= !bit(index);
        self.open += 1;
    }

    /// A message that left before its receive was posted has come; answers with the receive, if that was posted meanwhile.
    pub(super) fn comes(&mut self, from: Rank, sent: u32) -> Option<u32> {
        let place = self.unmatched.iter().position(|message| (message.from, message.sent) == (from, sent))?;
        match self.unmatched[place].taken {
            Some(_) => self.unmatched.remove(place).taken,
            None => {
                self.unmatched[place].here = true;
                None
            }
        }
    }

    /// A step neither waits nor looks for its match any more.
    pub(super) fn start(&mut self, index: u32) {
        self.waiting &= !bit(index);
        self.posted &= !bit(index);
    }

    pub(super) fn finish(&mut self, index: u32) {
        self.done |= bit(index);
        for behind in &mut self.behind {
            *behind &= !bit(index);
        }
    }
}

/// The programs of one rank: slices that have begun and not all ended, and those ahead of it that others sent to already.
#[derive(Default)]
pub(super) struct Row {
    first: u32,
    pub(super) programs: VecDeque<Program>,
}

impl Row {
    /// The program of a slice that has not ended.
    pub(super) fn at(&mut self, slice: u32) -> &mut Program {
        &mut self.programs[(slice - self.first) as usize]
    }

    /// The same, made if need be. `None` where it has ended long since.
    pub(super) fn reach(&mut self, slice: u32) -> Option<&mut Program> {
        let place = slice.checked_sub(self.first)? as usize;
        while self.programs.len() <= place {
            self.programs.push_back(Program::default());
        }
        self.programs.get_mut(place)
    }

    pub(super) fn drop_ended(&mut self) {
        while self.programs.front().is_some_and(Program::has_ended) {
            self.programs.pop_front();
            self.first += 1;
        }
    }
}
