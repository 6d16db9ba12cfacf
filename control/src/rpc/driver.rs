//! Feeds one machine: a task, a clock, a bounded inbox, and an outbox that carries out what the machine wants.

use std::future::pending;
use std::time::{Duration, Instant};

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
    origin: Instant,
}

impl Clock {
    /// A clock whose origin is now.
    pub(super) fn start() -> Self {
        Clock { origin: Instant::now() }
    }

    pub(super) fn now(&self) -> Time {
        Time::ZERO + self.origin.elapsed()
    }

    async fn reach(&self, deadline: Option<Time>) {
        match deadline {
            Some(deadline) => {
                tokio::time::sleep_until((self.origin + Duration::from_nanos(deadline.0)).into()).await
            }
            None => pending().await,
        }
    }
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
