//! The counter behind which a coordinator takes requests: open while one is here, and closed while another process has it.

use std::sync::{PoisonError, RwLock};

use tokio::sync::mpsc;

use super::desk::Caller;
use crate::core::coordination::errors::{Code, Origin, Refusal};
use crate::core::coordination::request::Event;
use crate::rpc::driver::Input;

/// The ways to a coordinator.
#[derive(Clone)]
pub(super) struct Ways {
    pub(super) inbox: mpsc::Sender<Input<Event, Caller>>,
    pub(super) urgent: mpsc::UnboundedSender<Event>,
}

enum State {
    Open(Ways),
    /// Why, and where the coordinator is, if that is known.
    Closed(String, Option<String>),
}

/// The counter of one service.
pub(super) struct Counter {
    state: RwLock<State>,
    /// Another process may go on with what this one knows.
    kept: bool,
}

impl Counter {
    /// With a coordinator for as long as the service is there.
    pub(super) fn always(ways: Ways) -> Counter {
        Counter { state: RwLock::new(State::Open(ways)), kept: false }
    }

    /// Closed until a coordinator is here.
    pub(super) fn closed() -> Counter {
        let why = "this candidate has just been started and knows no leader yet".to_owned();
        Counter { state: RwLock::new(State::Closed(why, None)), kept: true }
    }

    /// A coordinator is here.
    pub(super) fn open(&self, ways: Ways) {
        self.set(State::Open(ways));
    }

    /// The coordinator is elsewhere, or nowhere. In words, and at which address.
    pub(super) fn close(&self, why: String, leader: Option<String>) {
        self.set(State::Closed(why, leader));
    }

    fn set(&self, state: State) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// The ways to the coordinator.
    ///
    /// # Errors
    /// When it is not here: says where.
    pub(super) fn ways(&self) -> Result<Ways, Refusal> {
        match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            State::Open(ways) => Ok(ways.clone()),
            State::Closed(why, leader) => Err(elsewhere(why, leader.clone())),
        }
    }

    /// Why a caller gets no answer from a coordinator that was here when it asked.
    pub(super) fn gone(&self) -> Refusal {
        match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            State::Closed(why, leader) => elsewhere(why, leader.clone()),
            State::Open(_) if self.kept => elsewhere("the leader has changed", None),
            State::Open(_) => Refusal::new(Code::Aborted, "the coordination service has ended"),
        }
    }

    /// Tells the coordinator something, if it is here.
    pub(super) fn tell(&self, event: Event) {
        if let Ok(ways) = self.ways() {
            // Without a driver there is nobody to tell.
            let _ = ways.urgent.send(event);
        }
    }
}

fn elsewhere(why: &str, leader: Option<String>) -> Refusal {
    let advice = match &leader {
        Some(leader) => format!("{why}: ask {leader}"),
        None => format!("{why}: ask again soon, here or at another candidate"),
    };
    Refusal::new(Code::Unavailable, advice).from(Origin::Elsewhere { leader })
}
