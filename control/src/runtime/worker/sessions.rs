//! What masters have told this worker: sessions, and graphs in them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::collectives::Collectives;
use super::program::{Functions, Program};
use super::step::Step;
use crate::kernels::Resources;

/// Sessions at once.
pub const SESSIONS_LIMIT: usize = 1 << 14;
/// Graphs of one session.
pub const GRAPHS_LIMIT: usize = 1 << 14;
/// Steps of which it is known that they ran and were not cleaned up; older ones are cleaned up unasked.
pub const STEPS_LIMIT: usize = 1 << 16;

/// A graph that can be run.
pub(super) struct Registered {
    pub(super) program: Arc<Program>,
    pub(super) functions: Arc<Functions>,
    pub(super) collectives: Arc<Collectives>,
}

/// A session of some master.
pub(super) struct Session {
    pub(super) handle: String,
    /// Who made it, and which life of it.
    pub(super) master: (String, i64),
    pub(super) resources: Arc<Resources>,
    graphs: Mutex<HashMap<String, Arc<Registered>>>,
    used: Mutex<Instant>,
}

impl Session {
    pub(super) fn new(handle: &str, master: (String, i64), resources: Arc<Resources>) -> Session {
        Session {
            handle: handle.to_owned(),
            master,
            resources,
            graphs: Mutex::default(),
            used: Mutex::new(Instant::now()),
        }
    }

    /// Its master uses it.
    pub(super) fn touch(&self, now: Instant) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    fn ends(&self, lease: Duration) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) + lease
    }

    fn graphs(&self) -> MutexGuard<'_, HashMap<String, Arc<Registered>>> {
        self.graphs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn graph(&self, handle: &str) -> Option<Arc<Registered>> {
        self.graphs().get(handle).cloned()
    }

    /// Whether there was room for it.
    pub(super) fn keep(&self, handle: &str, graph: Registered) -> bool {
        let mut graphs = self.graphs();
        let room = graphs.len() < GRAPHS_LIMIT;
        if room {
            graphs.insert(handle.to_owned(), Arc::new(graph));
        }
        room
    }

    pub(super) fn forget(&self, handle: &str) -> bool {
        self.graphs().remove(handle).is_some()
    }
}

/// A step that runs here, or has run and was not cleaned up.
#[derive(Default)]
pub(super) struct Live {
    /// Of which session.
    pub(super) session: String,
    /// Its graphs that run.
    pub(super) running: Vec<Arc<Step>>,
    /// In which order steps came.
    pub(super) number: u64,
    /// A graph that runs in parts: what it gives in the end.
    pub(super) partial: Option<Partial>,
}

/// The end of a graph that runs in parts.
pub(super) type Partial = tokio::sync::oneshot::Receiver<Result<(), crate::kernels::OpError>>;

/// The tables.
#[derive(Default)]
pub(super) struct Tables {
    pub(super) sessions: HashMap<String, Arc<Session>>,
    pub(super) steps: HashMap<i64, Live>,
    pub(super) next: u64,
}

impl Tables {
    /// The sessions whose lease has ended by `now`, and when the next one ends. One that has a step under way is in use.
    pub(super) fn ended(&self, now: Instant, lease: Duration) -> (Vec<String>, Option<Instant>) {
        let running = self.steps.values().filter(|live| !live.running.is_empty());
        let busy: HashSet<&str> = running.map(|live| live.session.as_str()).collect();
        let idle = self.sessions.values().filter(|session| !busy.contains(session.handle.as_str()));
        let (over, left): (Vec<_>, Vec<_>) = idle.partition(|session| session.ends(lease) <= now);
        let next = left.iter().map(|session| session.ends(lease)).min();
        (over.iter().map(|session| session.handle.clone()).collect(), next)
    }

    /// The step's entry, and the steps that had to make room for it.
    pub(super) fn enter(&mut self, id: i64, session: &str) -> (&mut Live, Vec<i64>) {
        let mut given_up = Vec::new();
        if self.steps.len() >= STEPS_LIMIT {
            let mut idle: Vec<(u64, i64)> = self
                .steps
                .iter()
                .filter(|(_, s)| s.running.is_empty())
                .map(|(id, s)| (s.number, *id))
                .collect();
            idle.sort_unstable();
            given_up = idle.into_iter().take(STEPS_LIMIT / 2).map(|(_, id)| id).collect();
            given_up.iter().for_each(|id| drop(self.steps.remove(id)));
        }
        let next = self.next;
        let live = self.steps.entry(id).or_insert_with(|| Live {
            session: session.to_owned(),
            number: next,
            ..Live::default()
        });
        self.next += 1;
        (live, given_up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_nobody_uses_ends_and_others_stay() {
        let (lease, begin) = (Duration::from_secs(10), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut tables = Tables::default();
        for handle in ["idle", "used", "busy"] {
            let session = Session::new(handle, ("m".to_owned(), 1), Arc::new(Resources::new("j")));
            session.touch(begin);
            tables.sessions.insert(handle.to_owned(), Arc::new(session));
        }
        assert_eq!(tables.ended(at(9), lease), (vec![], Some(at(10))));
        tables.sessions["used"].touch(at(5));
        tables.enter(7, "busy").0.running.push(super::super::step::tests::idle_step());
        assert_eq!(tables.ended(at(10), lease), (vec!["idle".to_owned()], Some(at(15))));
        tables.steps.clear();
        let mut over = tables.ended(at(15), lease).0;
        over.sort_unstable();
        assert_eq!(over, ["busy", "idle", "used"]);
    }
}
