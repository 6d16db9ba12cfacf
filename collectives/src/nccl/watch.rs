//! A thread that looks after started calls while nobody waits for them: a rank that is lost, an error of NCCL, or a call that
//! takes too long ends the communicator, so that the GPU's streams go on.

#![forbid(unsafe_code)]

use super::shared::{Open, Shared, lock};
use crate::engine::Call;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often it looks: well within the second in which a loss is told.
const PERIOD: Duration = Duration::from_millis(100);

/// The thread; it is started with the first call that needs it, and ends with this.
pub(super) struct Watch {
    shared: Arc<Shared>,
    thread: std::sync::Mutex<Option<JoinHandle<()>>>,
}

impl Watch {
    pub(super) fn new(shared: &Arc<Shared>) -> Watch {
        Watch { shared: Arc::clone(shared), thread: std::sync::Mutex::default() }
    }

    /// Looks after a call from now on, until [`Watch::leave`].
    pub(super) fn take(&self, open: Open) {
        lock(&self.shared.started).open.push(open);
        self.shared.changed.notify_all();
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let run = move || watch(&shared);
            *thread = std::thread::Builder::new()
                .name("ringway-watch".into())
                .spawn(run)
                .inspect_err(|error| tracing::warn!(%error, "started calls are looked after only while they are waited for"))
                .ok();
        }
    }

    /// Somebody waits for the call, or it is over.
    pub(super) fn leave(shared: &Shared, call: &Call) {
        let mut started = lock(&shared.started);
        if let Some(at) = started.open.iter().position(|open| open.call == *call) {
            started.open.remove(at);
        }
    }
}

fn watch(shared: &Shared) {
    loop {
        let mut started = lock(&shared.started);
        while started.open.is_empty() && !started.closing {
            started = shared.changed.wait(started).unwrap_or_else(PoisonError::into_inner);
        }
        let (started, _) = shared
            .changed
            .wait_timeout_while(started, PERIOD, |started| !started.closing)
            .unwrap_or_else(PoisonError::into_inner);
        if started.closing {
            return;
        }
        let oldest = started.open.first().cloned();
        drop(started);
        if let Some(oldest) = oldest
            && shared.watch_over(&oldest)
        {
            Watch::leave(shared, &oldest.call);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        lock(&self.shared.started).closing = true;
        self.shared.changed.notify_all();
        if let Some(thread) = lock(&self.thread).take() {
            // It has nothing to answer.
            let _ = thread.join();
        }
    }
}
