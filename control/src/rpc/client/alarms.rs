//! Losses on their way to whoever must act on them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::core::coordination::groups::GroupMember;
use crate::core::coordination::losses::{Evidence, Loss};

/// Alarms that are kept for listeners that come later; older ones are forgotten.
const KEPT_LIMIT: usize = 4096;

/// Something that makes waiting for others pointless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alarm {
    /// A task is lost. It may be the listener's own: then the others have given it up.
    Lost(Arc<Loss>),
    /// The coordinator is gone or silent, and no task is known to host it.
    CoordinatorLost {
        /// What was seen.
        detail: String,
    },
    /// The coordinator has given up the listener's own task.
    Dropped {
        /// Its reason.
        detail: String,
    },
}

impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Alarm::Lost(loss) => loss.fmt(f),
            Alarm::CoordinatorLost { detail } | Alarm::Dropped { detail } => f.write_str(detail),
        }
    }
}

type Listener = Box<dyn Fn(&Alarm) + Send>;

/// The listeners, and what they may have missed.
#[derive(Default)]
pub(super) struct Alarms {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    listeners: Vec<Listener>,
    kept: VecDeque<Alarm>,
    coordinator_host: Option<GroupMember>,
}

impl Alarms {
    /// Adds a listener and tells it all that was raised before, on the thread of the caller.
    pub(super) fn listen(&self, listener: Listener) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.kept.iter().for_each(&listener);
        state.listeners.push(listener);
    }

    /// Tells all listeners.
    pub(super) fn raise(&self, alarm: Alarm) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.listeners.iter().for_each(|listener| listener(&alarm));
        if state.kept.len() == KEPT_LIMIT {
            state.kept.pop_front();
        }
        state.kept.push_back(alarm);
    }

    /// This member hosts the coordinator: with the coordinator it is lost too.
    pub(super) fn hosted_by(&self, member: &GroupMember) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).coordinator_host = Some(member.clone());
    }

    /// The alarm for the loss of the coordinator.
    pub(super) fn coordinator_lost(&self, detail: String) -> Alarm {
        match &self.state.lock().unwrap_or_else(PoisonError::into_inner).coordinator_host {
            None => Alarm::CoordinatorLost { detail },
            Some(host) => Alarm::Lost(Arc::new(Loss {
                task: host.process.task.clone(),
                incarnation: host.process.incarnation,
                host: Some(host.process.host.clone()),
                pid: Some(host.process.pid),
                rank: Some(host.rank),
                evidence: Evidence::Coordinator,
                detail,
                epoch: 0,
            })),
        }
    }
}
