//! What masters have told this worker: sessions, and graphs in them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
}

impl Session {
    pub(super) fn new(handle: &str, master: (String, i64), resources: Arc<Resources>) -> Session {
        Session { handle: handle.to_owned(), master, resources, graphs: Mutex::default() }
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
