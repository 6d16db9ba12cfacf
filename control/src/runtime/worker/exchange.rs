//! The edges of one step: values of this task through its rendezvous, values of others from them.

use std::sync::Arc;

use ringway_dataplane::rendezvous::{Key, Rendezvous, Source, StepId};
use tokio::sync::watch;

use super::convert::{rendezvous_error, why};
use super::peers::{Peers, Wanted};
use super::step::{Exchange, Received};
use super::trace::Trace;
use crate::core::graph::DeviceName;
use crate::kernels::OpError;
use crate::tensor::Tensor;

/// The edges of one step.
pub(super) struct StepExchange {
    step: StepId,
    /// `/job:worker/replica:0/task:1`.
    task: Arc<str>,
    rendezvous: Rendezvous,
    peers: Arc<Peers>,
    trace: Option<Arc<Trace>>,
    cancel: watch::Sender<bool>,
}

impl StepExchange {
    pub(super) fn new(step: i64, task: Arc<str>, rendezvous: Rendezvous, peers: Arc<Peers>) -> StepExchange {
        let (cancel, _) = watch::channel(false);
        StepExchange { step: StepId(step), task, rendezvous, peers, trace: None, cancel }
    }

    /// The exchange, whose tensors from other tasks are part of a trace.
    pub(super) fn with_trace(self, trace: Option<Arc<Trace>>) -> StepExchange {
        StepExchange { trace, ..self }
    }
}

/// Whether a device is of a task; both are full names.
pub(super) fn is_of(device: &str, task: &str) -> bool {
    device.strip_prefix(task).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Exchange for StepExchange {
    fn send(&self, key: &Key, tensor: &Tensor, is_dead: bool) -> Result<(), OpError> {
        let value = tensor.to_value(is_dead)?;
        self.rendezvous.send(self.step, key, value).map_err(|error| rendezvous_error(&error))
    }

    fn recv(&self, key: &Key, then: Received) {
        let (from, life) = match key.parts() {
            Ok(parts) => (parts.send_device, parts.send_incarnation),
            Err(error) => return then(Err(OpError::invalid(error.to_string()))),
        };
        if is_of(from, &self.task) {
            self.rendezvous.recv(self.step, key, Source::Local, move |result| {
                let arrived = result.map_err(|error| rendezvous_error(&error));
                then(arrived.and_then(|value| Ok(Tensor::from_value(value)?)));
            });
            return;
        }
        let then = self.peers.transfers.watch(self.step.0, key, self.trace.as_ref(), then);
        let task = DeviceName::parse(from).map(|device| device.task_part().to_string());
        let peer = task
            .ok_or_else(|| OpError::invalid(format!("{from} is no device")))
            .and_then(|task| self.peers.find(&task));
        match peer {
            Ok(peer) => {
                let wanted = Wanted { step: self.step.0, key: key.clone(), life };
                self.peers.recv(peer, wanted, self.cancel.subscribe(), then);
            }
            Err(error) => then(Err(error)),
        }
    }

    fn abort(&self, error: &OpError) {
        self.cancel.send_replace(true);
        self.rendezvous.abort(self.step, why(error));
    }
}
