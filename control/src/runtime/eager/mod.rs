//! Remote eager on a task: contexts, and the operations that clients have run in them.
//!
//! - [`context`]: one client's state here. [`operation`]: single operations as programs. `owners`: what other tasks have.
//!
//! The calls of one request, and of one stream, run one after the other; different requests run at the same time, as they
//! may need each other to end (a send here, a receive there).
#![forbid(unsafe_code)]

pub mod context;
pub mod operation;
mod owners;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ringway_proto::tensorflow::DeviceAttributes;
use ringway_proto::tensorflow::eager::RunComponentFunctionResponse;
use ringway_proto::tensorflow::eager::{
    CreateContextRequest, EnqueueRequest, QueueResponse, RunComponentFunctionRequest, UpdateContextRequest,
};
use ringway_proto::tensorflow::error::Code;
use tokio::sync::Notify;

use self::context::Context;
use super::worker::Worker;
use crate::core::eager::{Contexts, EagerError};
use crate::core::graph::DeviceName;
use crate::core::time::Time;
use crate::kernels::OpError;

impl From<EagerError> for OpError {
    fn from(error: EagerError) -> OpError {
        OpError::new(error.code(), error.to_string())
    }
}

/// The contexts of one task.
#[derive(Clone)]
pub struct Eager(Arc<Inner>);

struct Inner {
    worker: Worker,
    contexts: Mutex<Contexts<Arc<Context>>>,
    origin: Instant,
    /// A lease may end earlier than before.
    changed: Notify,
}

impl std::fmt::Debug for Eager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Eager")
    }
}

impl Eager {
    /// The contexts of the task that `worker` is: none yet.
    #[must_use]
    pub fn new(worker: Worker) -> Eager {
        let (contexts, changed) = (Mutex::default(), Notify::new());
        Eager(Arc::new(Inner { worker, contexts, origin: Instant::now(), changed }))
    }

    /// Ends contexts as their leases run out. Runs until it is dropped.
    pub async fn watch_leases(&self) {
        loop {
            let (over, next) = {
                let (now, mut contexts) = (self.now(), self.contexts());
                (contexts.expire(now), contexts.deadline())
            };
            for (id, context) in over {
                tracing::info!(
                    context = id,
                    "an eager client has been silent for as long as its lease was: what it held is given up"
                );
                context.end("its client was silent for as long as its lease was");
            }
            let sleep = async {
                match next {
                    Some(Time(nanos)) => {
                        let at = self.0.origin + std::time::Duration::from_nanos(nanos);
                        tokio::time::sleep_until(at.into()).await;
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep => {}
                () = self.0.changed.notified() => {}
            }
        }
    }

    /// Ends all contexts, as the task ends.
    pub fn close_all(&self) {
        for (_, context) in self.contexts().close_all() {
            context.end("its task ends");
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.0.origin.elapsed()
    }

    fn contexts(&self) -> MutexGuard<'_, Contexts<Arc<Context>>> {
        // Contexts are whole between any two calls.
        self.0.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn context(&self, id: u64) -> Result<Arc<Context>, EagerError> {
        self.contexts().call(self.now(), id).cloned()
    }

    /// Begins a context. The devices of this task, under the name that the client's cluster has for it.
    ///
    /// # Errors
    /// [`EagerError::ContextExists`], [`EagerError::TooMany`], or `INVALID_ARGUMENT` when the cluster names no such task.
    pub fn create(&self, request: CreateContextRequest) -> Result<Vec<DeviceAttributes>, OpError> {
        let malformed = |what: &str| EagerError::Malformed { what: what.to_owned() };
        let cluster =
            request.server_def.ok_or_else(|| malformed("CreateContext: the request has no server_def"))?;
        let task = u32::try_from(cluster.task_index).ok().filter(|_| !cluster.job_name.is_empty());
        let task =
            task.ok_or_else(|| malformed("CreateContext: server_def names no task for this server"))?;
        let device = DeviceName::cpu(&cluster.job_name, task);
        let context = Context::new(request.context_id, device, &cluster, self.0.worker.clone());
        context.set_lives(&request.cluster_device_attributes);
        let devices = context.devices();
        let mut contexts = self.contexts();
        if request.clear_existing_contexts {
            contexts.close_all().into_iter().for_each(|(_, old)| old.end("its client begins anew"));
        }
        let (id, view) = (request.context_id, request.context_view_id);
        let replaced = contexts.create(self.now(), id, view, request.keep_alive_secs, Arc::new(context))?;
        drop(contexts);
        if let Some(old) = replaced {
            old.end("it was created again");
        }
        self.0.changed.notify_one();
        Ok(devices)
    }

    /// The client's next view of the cluster.
    ///
    /// # Errors
    /// [`EagerError::NoContext`], [`EagerError::View`].
    pub fn update(&self, request: UpdateContextRequest) -> Result<Vec<DeviceAttributes>, OpError> {
        let context =
            self.contexts().update(self.now(), request.context_id, request.context_view_id).cloned()?;
        if let Some(cluster) = request.server_def {
            context.set_cluster(&cluster);
        }
        context.set_lives(&request.cluster_device_attributes);
        Ok(context.devices())
    }

    /// Does what is queued, in order. One answer for each thing.
    ///
    /// # Errors
    /// The first thing that fails; what comes after it is not done.
    pub async fn enqueue(&self, request: EnqueueRequest) -> Result<Vec<QueueResponse>, OpError> {
        let context = self.context(request.context_id)?;
        let mut answers = Vec::with_capacity(request.queue.len());
        for item in request.queue {
            answers.push(context.run(item).await?);
        }
        Ok(answers)
    }

    /// Runs this task's part of a function over several tasks.
    ///
    /// # Errors
    /// What the function says.
    pub async fn run_component(
        &self,
        request: RunComponentFunctionRequest,
    ) -> Result<RunComponentFunctionResponse, OpError> {
        let context = self.context(request.context_id)?;
        let operation = request.operation.ok_or_else(|| EagerError::Malformed {
            what: "RunComponentFunction: the request has no operation".to_owned(),
        })?;
        context.run_component(operation, &request.output_num).await
    }

    /// Waits until what was queued before is done.
    ///
    /// # Errors
    /// [`EagerError::NoContext`].
    pub async fn wait_done(&self, id: u64) -> Result<(), OpError> {
        let context = self.context(id)?;
        context.idle().await;
        Ok(())
    }

    /// The client lives. Its view.
    ///
    /// # Errors
    /// [`EagerError::NoContext`].
    pub fn keep_alive(&self, id: u64) -> Result<u64, OpError> {
        Ok(self.contexts().keep_alive(self.now(), id)?)
    }

    /// Ends a context. One that has ended already is what is wanted.
    pub fn close(&self, id: u64, view: u64) {
        if let Some(context) = self.contexts().close(id, view) {
            context.end("its client closed it");
        }
    }
}

/// The error of whoever still waits in a context that has ended.
fn ended(why: &str) -> OpError {
    OpError::new(Code::Cancelled, format!("the eager context has ended: {why}"))
}
