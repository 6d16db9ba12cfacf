//! What a kernel sees of a step, and how it fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ringway_proto::tensorflow::error::Code;

use super::resources::Resources;
use super::variable::Variable;
use crate::tensor::{Tensor, TensorError};

/// Computes one node. Made once per graph, run once per step (and per iteration), by many threads at a time.
pub trait Kernel: Send + Sync {
    /// Reads the inputs of `call` and sets all of its outputs.
    ///
    /// # Errors
    /// [`OpError`], as a client of TensorFlow knows it; the executor adds the node's name.
    fn run(&self, call: &mut Call<'_>) -> Result<(), OpError>;

    /// Whether it takes so little time that handing it to another thread would take more.
    fn is_cheap(&self) -> bool {
        true
    }
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct OpError {
    /// Canonical status code.
    pub code: Code,
    /// What was wrong, without the node's name.
    pub message: String,
}

impl OpError {
    /// An error of this code.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> OpError {
        OpError { code, message: message.into() }
    }

    /// The inputs do not fit the operation, or each other.
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> OpError {
        OpError::new(Code::InvalidArgument, message)
    }

    /// The state of a resource does not allow the operation.
    #[must_use]
    pub fn precondition(message: impl Into<String>) -> OpError {
        OpError::new(Code::FailedPrecondition, message)
    }

    /// A defect of this program.
    #[must_use]
    pub fn internal(message: impl Into<String>) -> OpError {
        OpError::new(Code::Internal, message)
    }
}

impl From<TensorError> for OpError {
    fn from(error: TensorError) -> OpError {
        OpError::new(error.code(), error.to_string())
    }
}

/// What an edge brings to a node or takes from it.
#[derive(Clone, Debug, Default)]
pub enum Slot {
    /// Nothing: taken, or not yet set.
    #[default]
    Empty,
    /// A value.
    Tensor(Tensor),
    /// A reference to a variable. Where a value is asked for, it stands for what the variable holds at that time.
    Ref(Arc<Variable>),
}

impl Slot {
    /// The value, now.
    ///
    /// # Errors
    /// [`Code::FailedPrecondition`] for a variable that has none yet, [`Code::Internal`] for an empty slot.
    pub fn value(&self) -> Result<Tensor, OpError> {
        match self {
            Slot::Tensor(tensor) => Ok(tensor.clone()),
            Slot::Ref(variable) => variable.read(),
            Slot::Empty => Err(OpError::internal("an input is not there")),
        }
    }
}

/// What all kernels of a step on one device share.
#[derive(Clone, Copy)]
pub struct StepScope<'a> {
    /// The step.
    pub step_id: i64,
    /// Full name of the device, as in `/job:worker/replica:0/task:1/device:CPU:0`.
    pub device: &'a str,
    /// What outlives the step.
    pub resources: &'a Resources,
    /// What ends with the step (stacks of loops); the executor makes one per step and drops it with the step.
    pub temporaries: &'a Resources,
    /// Set when the step is aborted; a kernel that takes long looks at it.
    pub cancelled: &'a AtomicBool,
}

/// One run of one kernel.
pub struct Call<'a> {
    scope: StepScope<'a>,
    node: &'a str,
    inputs: &'a mut [Slot],
    outputs: &'a mut [Slot],
}

impl<'a> Call<'a> {
    /// A run of `node`. The kernel may take inputs out of `inputs`, and sets each of `outputs`, which are as many as the
    /// node has.
    #[must_use]
    pub fn new(
        scope: StepScope<'a>,
        node: &'a str,
        inputs: &'a mut [Slot],
        outputs: &'a mut [Slot],
    ) -> Call<'a> {
        Call { scope, node, inputs, outputs }
    }

    /// What it shares with the other kernels of the step.
    #[must_use]
    pub fn scope(&self) -> StepScope<'a> {
        self.scope
    }

    /// Name of the node.
    #[must_use]
    pub fn node(&self) -> &'a str {
        self.node
    }

    /// How many inputs there are.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.inputs.len()
    }

    /// How many outputs there are.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.outputs.len()
    }

    /// What resources outlive the step.
    #[must_use]
    pub fn resources(&self) -> &'a Resources {
        self.scope.resources
    }

    /// Whether the step is aborted.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.scope.cancelled.load(Ordering::Relaxed)
    }

    fn slot(&mut self, index: usize) -> Result<&mut Slot, OpError> {
        self.inputs.get_mut(index).ok_or_else(|| OpError::internal(format!("there is no input {index}")))
    }

    /// An input's value.
    ///
    /// # Errors
    /// As for [`Slot::value`].
    pub fn tensor(&self, index: usize) -> Result<Tensor, OpError> {
        let slot = self.inputs.get(index);
        slot.ok_or_else(|| OpError::internal(format!("there is no input {index}")))?.value()
    }

    /// An input's value, which the edge gives up: if it was the last to hold it, the memory may be written in place
    /// ([`Tensor::into_writer`]).
    ///
    /// # Errors
    /// As for [`Slot::value`].
    pub fn take(&mut self, index: usize) -> Result<Tensor, OpError> {
        match std::mem::take(self.slot(index)?) {
            Slot::Tensor(tensor) => Ok(tensor),
            slot => slot.value(),
        }
    }

    /// An input that is a reference.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] when it is a value.
    pub fn variable(&self, index: usize) -> Result<Arc<Variable>, OpError> {
        match self.inputs.get(index) {
            Some(Slot::Ref(variable)) => Ok(Arc::clone(variable)),
            _ => Err(OpError::invalid(format!("input {index} must be a reference to a variable"))),
        }
    }

    /// Whether an input is a reference.
    #[must_use]
    pub fn is_ref(&self, index: usize) -> bool {
        matches!(self.inputs.get(index), Some(Slot::Ref(_)))
    }

    /// Moves an input to an output as it is, reference or value.
    ///
    /// # Errors
    /// [`Code::Internal`] when there is no such input or output.
    pub fn forward(&mut self, input: usize, output: usize) -> Result<(), OpError> {
        let slot = std::mem::take(self.slot(input)?);
        self.put(output, slot)
    }

    /// Sets an output to a value.
    ///
    /// # Errors
    /// [`Code::Internal`] when there is no such output.
    pub fn set(&mut self, index: usize, tensor: Tensor) -> Result<(), OpError> {
        self.put(index, Slot::Tensor(tensor))
    }

    /// Sets an output to a reference.
    ///
    /// # Errors
    /// As for [`Call::set`].
    pub fn set_ref(&mut self, index: usize, variable: Arc<Variable>) -> Result<(), OpError> {
        self.put(index, Slot::Ref(variable))
    }

    fn put(&mut self, index: usize, slot: Slot) -> Result<(), OpError> {
        let out = self.outputs.get_mut(index);
        *out.ok_or_else(|| OpError::internal(format!("there is no output {index}")))? = slot;
        Ok(())
    }
}
