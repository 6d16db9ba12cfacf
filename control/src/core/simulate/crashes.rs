//! A coordinator that keeps what it must not forget, is killed at any point, and goes on from it.
//!
//! What it wants done waits, as in the service, until what it wants remembered before is; a crash loses what waits. What was
//! on its way to be remembered may have come there, though nobody was told.

use std::time::Duration;

use super::Scenario;
use super::tasks::Life;
use super::world::{Clockwork, HEARTBEAT_LIMIT, Happening, Outcome, World};
use crate::core::coordination::Coordinator;
use crate::core::coordination::request::{Effect, Event, ReplyTo};
use crate::core::machine::Machine;
use crate::core::time::Time;

/// The coordinator is gone for so long at most.
const OUTAGE: Duration = Duration::from_millis(1500);
/// Remembering takes so long at most.
const COMMIT: Duration = Duration::from_millis(4);
/// A caller learns within this time that nobody serves.
const REFUSED: Duration = Duration::from_millis(60);

/// An event that the coordinator has taken in, and what it wants done for it.
#[derive(Debug)]
pub(super) struct Taken {
    at: Time,
    event: Option<Event>,
    effects: Vec<Effect>,
}

impl World {
    /// Puts what the coordinator wants done behind what is to be remembered first.
    pub(super) fn take_down(&mut self, event: Option<Event>, effects: Vec<Effect>) {
        self.waiting.push(Taken { at: self.now, event, effects });
        self.commit();
    }

    fn commit(&mut self) {
        if self.committing.is_empty() && !self.waiting.is_empty() {
            self.committing = std::mem::take(&mut self.waiting);
            let (after, crashes) = (self.random.span(Duration::ZERO, COMMIT), self.crashes);
            self.later(after, Happening::Committed { crashes });
        }
    }

    fn remember(&mut self, effects: &[Effect]) {
        for effect in effects {
            let Effect::Remember { writes } = effect else { continue };
            for write in writes.clone() {
                match write.value {
                    Some(value) => drop(self.stored.insert(write.key, value)),
                    None => drop(self.stored.remove(&write.key)),
                }
            }
        }
    }

    /// What was to be remembered is: the rest is done.
    pub(super) fn committed(&mut self, crashes: u32) -> Outcome {
        if crashes != self.crashes {
            return Ok(());
        }
        for Taken { at, event, effects } in std::mem::take(&mut self.committing) {
            self.remember(&effects);
            self.carry_out(at, event.as_ref(), effects)?;
        }
        self.commit();
        Ok(())
    }

    /// The coordinator is killed.
    pub(super) fn crash(&mut self) -> Outcome {
        if self.down {
            return Ok(());
        }
        (self.down, self.crashes) = (true, self.crashes + 1);
        let came = self.random.below(self.committing.len() as u64 + 1) as usize;
        self.note(|| format!("the coordinator is killed; {came} commits came through"));
        for Taken { at, event, effects } in std::mem::take(&mut self.committing).into_iter().take(came) {
            self.remember(&effects);
            // It has taken effect, and nobody is told.
            self.checks.step(at, event.as_ref(), &effects)?;
        }
        self.waiting.clear();
        self.checks.forget_callers();
        self.set_timer(Clockwork::Coordinator, None);
        let open: Vec<_> =
            self.streams.iter().filter(|(_, stream)| stream.open).map(|(&watch, _)| watch).collect();
        open.into_iter().for_each(|watch| self.break_stream(watch));
        let calls: Vec<ReplyTo> = self.calls.keys().copied().collect();
        calls.into_iter().for_each(|to| self.refuse(to));
        let after = self.random.span(Duration::ZERO, OUTAGE);
        self.later(after, Happening::Restored);
        Ok(())
    }

    /// Nobody serves: the caller learns so.
    pub(super) fn refuse(&mut self, to: ReplyTo) {
        let after = self.random.span(Duration::ZERO, REFUSED);
        self.later(after, Happening::NoAnswer { to });
    }

    /// Another coordinator goes on.
    pub(super) fn restored(&mut self) -> Outcome {
        let entries = self.stored.iter().map(|(key, value)| (key.clone(), value.clone()));
        let restored = Coordinator::restore(self.config.clone(), entries, self.now);
        self.coordinator = restored.map_err(|error| format!("S11: {error}"))?;
        self.down = false;
        self.checks.report.restored += 1;
        self.note(|| "a coordinator goes on".to_owned());
        let deadline = self.coordinator.deadline();
        self.set_timer(Clockwork::Coordinator, deadline);
        // S4: a task that is over is known to be within its limit from now on.
        let late = Scenario::SLOW * 2 + self.coordinator.tick() + COMMIT;
        let over: Vec<u32> =
            (0..self.scenario.tasks).filter(|&index| self.tasks[index as usize].life == Life::Over).collect();
        for index in over {
            let (life, why) =
                (self.tasks[index as usize].incarnation, "and a coordinator goes on".to_owned());
            let crashes = self.crashes;
            self.later(late + HEARTBEAT_LIMIT, Happening::Probe { index, life, why, crashes });
        }
        Ok(())
    }
}
