//! Feeds one machine: a task, a clock, a bounded inbox, and an outbox that carries out what the machine wants.

use std::future::pending;
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};
use tokio::sync::mpsc;

use crate::core::machine::Machine;
use crate::core::time::Time;

/// Events that wait for the machine; past that, whoever sends one waits.
pub(super) const INBOX_LIMIT: usize = 1024;
/// Events taken in between two looks at the clock.
const BATCH: usize = 64;

/// Real time, as a machine counts it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    kind: ClockId,
    origin: Timespec,
}

impl Clock {
    /// A clock whose origin is now, and which stands still while the system is suspended: nobody is late for that.
    pub(super) fn start() -> Self {
        Clock::of(ClockId::Monotonic)
    }

    /// A clock whose origin is now, and which goes on while the system is suspended, as the clocks of others do: what was
    /// lent for some time must be known to be over.
    pub(super) fn start_through_suspension() -> Self {
        Clock::of(ClockId::Boottime)
    }

    fn of(kind: ClockId) -> Self {
        Clock { kind, origin: clock_gettime(kind) }
    }

    pub(super) fn now(&self) -> Time {
        time_between(self.origin, clock_gettime(self.kind))
    }

    async fn reach(&self, deadline: Option<Time>) {
        match deadline {
            Some(deadline) => tokio::time::sleep(deadline.since(self.now())).await,
            None => pending().await,
        }
    }
}

/// The time at `now` of a clock that began at `origin`; zero before that.
fn time_between(origin: Timespec, now: Timespec) -> Time {
    let nanos = |at: Timespec| i128::from(at.tv_sec) * 1_000_000_000 + i128::from(at.tv_nsec);
    let since = (nanos(now) - nanos(origin)).max(0);
    Time::ZERO + Duration::from_nanos(u64::try_from(since).unwrap_or(u64::MAX))
}

/// Carries out effects.
pub(super) trait Outbox<E> {
    /// What comes with an event for the outbox: who is to be answered.
    type Attachment;

    /// Takes what came with an event, before the machine sees the event.
    fn attach(&mut self, attachment: Self::Attachment);

    /// Carries out one effect. Must not block.
    fn carry_out(&mut self, effect: E);
}

/// An event on its way to the machine.
pub(super) struct Input<E, A> {
    pub(super) event: E,
    pub(super) attachment: Option<A>,
}

/// Runs the machine until every sender of events is gone.
///
/// `urgent` has no bound of its own: what is sent there is bounded by the requests under way, and must not be lost to a
/// full inbox. What was put into the inbox before an urgent event was sent is taken in before it: a caller that goes
/// never overtakes its own request.
pub(super) async fn drive<M, O>(
    mut machine: M,
    mut outbox: O,
    clock: Clock,
    mut inbox: mpsc::Receiver<Input<M::Event, O::Attachment>>,
    mut urgent: mpsc::UnboundedReceiver<M::Event>,
) where
    M: Machine,
    O: Outbox<M::Effect>,
{
    let mut batch = Vec::with_capacity(BATCH);
    let mut pressing = Vec::with_capacity(BATCH);
    let mut effects = Vec::new();
    loop {
        tokio::select! {
            biased;
            taken = urgent.recv_many(&mut pressing, BATCH) => {
                if taken == 0 {
                    return;
                }
                batch.extend(std::iter::from_fn(|| inbox.try_recv().ok()).take(INBOX_LIMIT));
            }
            taken = inbox.recv_many(&mut batch, BATCH) => {
                if taken == 0 {
                    return;
                }
            }
            () = clock.reach(machine.deadline()) => {}
        }
        for input in batch.drain(..) {
            input.attachment.into_iter().for_each(|attachment| outbox.attach(attachment));
            machine.on_event(clock.now(), input.event, &mut effects);
        }
        for event in pressing.drain(..) {
            machine.on_event(clock.now(), event, &mut effects);
        }
        // A busy inbox must not keep what is due from happening.
        let now = clock.now();
        if machine.deadline().is_some_and(|deadline| deadline <= now) {
            machine.on_time(now, &mut effects);
        }
        effects.drain(..).for_each(|effect| outbox.carry_out(effect));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_clock_count_from_its_origin() {
        let at = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
        assert_eq!(time_between(at(5, 999_999_999), at(6, 1)), Time(2), "over the second");
        assert_eq!(time_between(at(5, 7), at(5, 7)), Time::ZERO);
        assert_eq!(time_between(at(5, 7), at(5, 6)), Time::ZERO, "never before it");
        assert_eq!(time_between(at(0, 0), at(i64::MAX, 0)), Time(u64::MAX), "until the end of time");
    }

    #[test]
    fn both_clocks_go_on() {
        for clock in [Clock::start(), Clock::start_through_suspension()] {
            let before = clock.now();
            while clock.now() == before {}
            assert!(clock.now() > before);
        }
    }
}
