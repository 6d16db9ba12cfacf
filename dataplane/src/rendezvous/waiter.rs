//! Who waits for a value, and how it is told.

use super::error::RendezvousError;
use super::key::Key;
use super::table::{Ended, Refusal, StepId, Table};
use super::value::Value;
use crate::transport::{OpId, Peer};

/// What is called with a value, or with the reason why there is none; once.
pub(super) type Call = Box<dyn FnOnce(Result<Value, RendezvousError>) + Send>;

/// What is to be done when a receive is over.
pub(super) struct Then {
    pub(super) key: Key,
    pub(super) call: Call,
}

/// How far a question to another task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Asked, not answered.
    Asked,
    /// The payload is announced; there was no room yet to receive it.
    Announced,
    /// The payload is being received.
    Receiving(OpId),
}

/// Somebody in the table.
pub(super) enum Waiter {
    /// A receive of this task, of a value of this task.
    Local(Then),
    /// A receive of this task, of a value of another one.
    Away { peer: Peer, then: Then, stage: Stage },
    /// Another task, which has asked.
    Asked { peer: Peer, request: u64 },
}

pub(super) type Waiters = Table<Value, Waiter>;

/// A receive that is over: to be called without any lock held.
pub(super) type Ready = (Call, Result<Value, RendezvousError>);

impl Then {
    /// The end of the receive, with an error.
    pub(super) fn fail(self, error: impl FnOnce(String) -> RendezvousError) -> Ready {
        let error = error(self.key.text().to_owned());
        (self.call, Err(error))
    }
}

/// A refusal of the table in the words of an error.
pub(super) fn refused(refusal: Refusal, step: StepId, key: String, limit: usize) -> RendezvousError {
    match refusal {
        Refusal::Twice => RendezvousError::Twice { step, key },
        Refusal::Ended(Ended::Aborted(why)) => RendezvousError::Aborted { step, key, why },
        Refusal::Ended(Ended::Over) => RendezvousError::Over { step, key },
        Refusal::Full => RendezvousError::Full { step, key, limit },
    }
}
