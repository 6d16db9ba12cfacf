//! What the nodes of one step share.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringway_dataplane::rendezvous::Key;

use tokio::sync::Notify;

use super::away::Elsewhere;
use super::collectives::Collectives;
use super::program::Functions;
use super::trace::Trace;
use crate::kernels::{OpError, Resources, StepScope};
use crate::tensor::Tensor;
use crate::tensor::travel::Arrived;

/// What is called with a received value, or with the reason why there is none.
pub type Received = Box<dyn FnOnce(Result<Arrived, OpError>) + Send>;

/// Where the edges of a graph end that lead to other graphs, or to the client.
pub trait Exchange: Send + Sync {
    /// Gives a value to whoever receives it.
    ///
    /// # Errors
    /// When the step has ended, or the key was sent already.
    fn send(&self, key: &Key, tensor: &Tensor, is_dead: bool) -> Result<(), OpError>;

    /// Receives a value. `then` is called once, by any thread, and does not block.
    fn recv(&self, key: &Key, then: Received);

    /// Fails whoever waits for a value of the step, here and elsewhere.
    fn abort(&self, why: &OpError);
}

/// One step, as long as it runs.
pub struct Step {
    /// Its number.
    pub id: i64,
    /// Full name of the device that it runs on.
    pub device: Arc<str>,
    /// What outlives it.
    pub resources: Arc<Resources>,
    /// Where its edges lead.
    pub exchange: Arc<dyn Exchange>,
    /// The functions that its graph may call.
    pub functions: Arc<Functions>,
    /// What carries its collective operations; without it they fail.
    pub collectives: Option<Arc<Collectives>>,
    /// Where nodes run whose resources are of other tasks; without it there are none.
    pub elsewhere: Option<Arc<dyn Elsewhere>>,
    /// What is told of its nodes, where its caller asks for that.
    pub trace: Option<Arc<Trace>>,
    /// Calls of functions that are under way.
    calls: AtomicUsize,
    temporaries: Resources,
    cancelled: AtomicBool,
    end: Mutex<End>,
    /// Told when it is aborted.
    told: Notify,
}

/// Called when a step is aborted, with the reason.
pub(super) type OnAbort = Box<dyn FnOnce(&OpError) + Send>;

#[derive(Default)]
struct End {
    why: Option<OpError>,
    tell: Vec<OnAbort>,
}

impl Step {
    /// A step that begins.
    #[must_use]
    pub fn new(
        id: i64,
        device: Arc<str>,
        resources: Arc<Resources>,
        exchange: Arc<dyn Exchange>,
        functions: Arc<Functions>,
    ) -> Step {
        Step {
            id,
            device,
            resources,
            exchange,
            functions,
            collectives: None,
            elsewhere: None,
            trace: None,
            calls: AtomicUsize::new(0),
            temporaries: Resources::new("step"),
            cancelled: AtomicBool::new(false),
            end: Mutex::default(),
            told: Notify::new(),
        }
    }

    /// The step, with collective operations.
    #[must_use]
    pub fn with_collectives(self, collectives: Arc<Collectives>) -> Step {
        Step { collectives: Some(collectives), ..self }
    }

    /// The step, with a way to the resources of other tasks.
    #[must_use]
    pub fn with_elsewhere(self, elsewhere: Arc<dyn Elsewhere>) -> Step {
        Step { elsewhere: Some(elsewhere), ..self }
    }

    /// The step, traced.
    #[must_use]
    pub fn with_trace(self, trace: Option<Arc<Trace>>) -> Step {
        Step { trace, ..self }
    }

    /// Another call of a function begins, unless so many are under way. Whether it does; it ends by [`Step::returned`].
    pub(super) fn calls(&self, limit: usize) -> bool {
        let room = self.calls.fetch_add(1, Ordering::Relaxed) < limit;
        if !room {
            self.returned();
        }
        room
    }

    /// A call of a function is over.
    pub(super) fn returned(&self) {
        self.calls.fetch_sub(1, Ordering::Relaxed);
    }

    /// What kernels see of it.
    #[must_use]
    pub fn scope(&self) -> StepScope<'_> {
        StepScope {
            step_id: self.id,
            device: &self.device,
            resources: &self.resources,
            temporaries: &self.temporaries,
            cancelled: &self.cancelled,
        }
    }

    /// Ends the step by an error: kernels that look are told, and whoever waits for a value of it fails. The first
    /// reason counts.
    pub fn abort(&self, why: &OpError) {
        let tell = {
            let mut end = self.end();
            if end.why.is_some() {
                return;
            }
            end.why = Some(why.clone());
            std::mem::take(&mut end.tell)
        };
        self.cancelled.store(true, Ordering::Release);
        self.exchange.abort(why);
        self.told.notify_waiters();
        tell.into_iter().for_each(|tell| tell(why));
    }

    /// Has `tell` called when the step is aborted; at once if it was.
    pub(super) fn when_aborted(&self, tell: OnAbort) {
        let mut end = self.end();
        match end.why.clone() {
            None => end.tell.push(tell),
            Some(why) => {
                drop(end);
                tell(&why);
            }
        }
    }

    /// Waits until the step is aborted. The reason.
    pub async fn abortion(&self) -> OpError {
        loop {
            // Before the look, so that no word of it is missed.
            let told = self.told.notified();
            if let Some(why) = self.aborted() {
                return why;
            }
            told.await;
        }
    }

    fn end(&self) -> MutexGuard<'_, End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the step was aborted, if it was.
    #[must_use]
    pub fn aborted(&self) -> Option<OpError> {
        if !self.cancelled.load(Ordering::Acquire) {
            return None;
        }
        self.end().why.clone()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    struct Nowhere;

    impl Exchange for Nowhere {
        fn send(&self, _: &Key, _: &Tensor, _: bool) -> Result<(), OpError> {
            Ok(())
        }

        fn recv(&self, _: &Key, then: Received) {
            then(Err(OpError::internal("nothing comes from nowhere")));
        }

        fn abort(&self, _: &OpError) {}
    }

    /// A step that does nothing.
    pub(in crate::runtime::worker) fn idle_step() -> Arc<Step> {
        let (resources, functions) = (Arc::new(Resources::new("j")), Arc::default());
        Arc::new(Step::new(1, "d".into(), resources, Arc::new(Nowhere), functions))
    }
}
