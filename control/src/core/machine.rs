//! The contract between pure state and the driver that feeds it.

use super::time::Time;

/// State that changes only by what it is told, and acts only through what it returns.
///
/// - M1. `now` never goes back between calls.
/// - M2. The driver calls [`Machine::on_time`] no later than [`Machine::deadline`], plus the delay of the host.
/// - M3. Effects are carried out in the order in which they were pushed.
pub trait Machine {
    /// What may happen to the machine.
    type Event;
    /// What the machine wants done.
    type Effect;

    /// Takes in one event and pushes what follows from it.
    fn on_event(&mut self, now: Time, event: Self::Event, out: &mut Vec<Self::Effect>);

    /// Lets time pass: everything that is due at `now` happens.
    fn on_time(&mut self, now: Time, out: &mut Vec<Self::Effect>);

    /// When [`Machine::on_time`] next has something to do; `None` while only events can change anything.
    fn deadline(&self) -> Option<Time>;
}
