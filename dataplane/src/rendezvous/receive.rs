//! Receiving without a callback: blocking, and as a future.

use super::error::RendezvousError;
use super::handle::Rendezvous;
use super::key::Key;
use super::peer::Source;
use super::table::{StepId, WaiterId};
use super::value::Value;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

type Outcome = Result<Value, RendezvousError>;

#[derive(Default)]
struct Slot {
    outcome: Option<Outcome>,
    task: Option<Waker>,
}

/// Where a receive's outcome is put, and who waits there.
#[derive(Default)]
struct Place {
    slot: Mutex<Slot>,
    filled: Condvar,
}

impl Place {
    fn put(&self, outcome: Outcome) {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        slot.outcome = Some(outcome);
        let task = slot.task.take();
        drop(slot);
        self.filled.notify_one();
        if let Some(task) = task {
            task.wake();
        }
    }
}

/// A receive under way. Await it, or [`wait`](Receive::wait); dropping it cancels.
#[must_use = "dropping a receive cancels it"]
pub struct Receive {
    rendezvous: Rendezvous,
    id: WaiterId,
    place: Arc<Place>,
    over: bool,
}

impl std::fmt::Debug for Receive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Receive({:?})", self.id)
    }
}

impl Rendezvous {
    /// Begins to receive a value.
    pub fn receive(&self, step: StepId, key: &Key, from: Source) -> Receive {
        let place = Arc::new(Place::default());
        let there = Arc::clone(&place);
        let id = self.recv(step, key, from, move |outcome| there.put(outcome));
        Receive { rendezvous: self.clone(), id, place, over: false }
    }

    /// Receives a value, and waits for it for at most `timeout`.
    ///
    /// # Errors
    /// [`RendezvousError`]; with [`RendezvousError::Cancelled`] when the time is over.
    pub fn recv_wait(
        &self,
        step: StepId,
        key: &Key,
        from: Source,
        timeout: Duration,
    ) -> Result<Value, RendezvousError> {
        self.receive(step, key, from).wait(timeout)
    }
}

impl Receive {
    /// For [`Rendezvous::cancel`].
    #[must_use]
    pub fn id(&self) -> WaiterId {
        self.id
    }

    /// Waits for the value for at most `timeout`.
    ///
    /// # Errors
    /// As [`Rendezvous::recv_wait`].
    pub fn wait(mut self, timeout: Duration) -> Result<Value, RendezvousError> {
        let deadline = Instant::now().checked_add(timeout);
        let mut timed_out = false;
        loop {
            let mut slot = self.place.slot.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(outcome) = slot.outcome.take() {
                drop(slot);
                self.over = true;
                return outcome;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            match left {
                Some(left) if left.is_zero() && !timed_out => {
                    drop(slot);
                    timed_out = true;
                    self.rendezvous.cancel_as(self.id, true);
                }
                // Cancelled, or being called this moment: the outcome comes at once.
                Some(_) if timed_out => drop(self.place.filled.wait(slot)),
                None => drop(self.place.filled.wait(slot)),
                Some(left) => drop(self.place.filled.wait_timeout(slot, left)),
            }
        }
    }
}

impl Future for Receive {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut slot = self.place.slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outcome) = slot.outcome.take() {
            drop(slot);
            self.over = true;
            return Poll::Ready(outcome);
        }
        slot.task = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Receive {
    fn drop(&mut self) {
        if !self.over {
            self.rendezvous.cancel(self.id);
        }
    }
}
