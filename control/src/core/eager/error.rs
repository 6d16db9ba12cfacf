//! Why a call of a remote eager client is refused, in the words that its users know.

use ringway_proto::tensorflow::error::Code;

/// Why a call is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EagerError {
    /// No such context.
    #[error(
        "Unable to find a context_id matching the specified one ({id}). Perhaps the worker was restarted, or the \
         context was GC'd?"
    )]
    NoContext {
        /// The context.
        id: u64,
    },
    /// A context of this id has a later view.
    #[error("EagerService:CreateContext failed. Context id: <{id}> already exists.")]
    ContextExists {
        /// The context.
        id: u64,
    },
    /// A view that is not the next one.
    #[error(
        "EagerService:UpdateContext failed. Context id: <{id}> currently at view #{current} but received update \
         request at view #{given}. View id should only be continuously incremented."
    )]
    View {
        /// The context.
        id: u64,
        /// Its view.
        current: u64,
        /// The view of the call.
        given: u64,
    },
    /// No such result.
    #[error(
        "Unable to find the relevant tensor remote_handle: Op ID: {op_id}, Output num: {output}. One possible cause is \
         that the tensor was accessed after deallocation in a distributed worker setup, or that its operation failed"
    )]
    NoHandle {
        /// The operation.
        op_id: i64,
        /// Which of its results.
        output: i32,
    },
    /// Results under a number that has some.
    #[error("Op ID {op_id} has results already: give every operation of a context a number of its own")]
    Twice {
        /// The operation.
        op_id: i64,
    },
    /// No such operation or function.
    #[error(
        "'{name}' is neither a type of a primitive operation nor a name of a function registered in binary running \
         on {task}. Make sure the operation or function is registered in the binary running in this process."
    )]
    NoOperation {
        /// Its name.
        name: String,
        /// This task.
        task: String,
    },
    /// No such function to forget.
    #[error("Tried to remove non-existent function '{name}'.")]
    NoFunction {
        /// Its name.
        name: String,
    },
    /// A device of another task.
    #[error(
        "Could not satisfy device specification '{device}'. enable_soft_placement=0. Supported device types [CPU]. \
         All available devices [{available}]."
    )]
    NoDevice {
        /// The device asked for.
        device: String,
        /// This task's.
        available: String,
    },
    /// Over a limit.
    #[error("{what} of the context: the limit of {limit} is reached. Release some, or use another context")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A message lacks what it must have.
    #[error("{what}")]
    Malformed {
        /// What is missing.
        what: String,
    },
}

impl EagerError {
    /// The status code that goes with it.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            EagerError::NoContext { .. } => Code::Aborted,
            EagerError::NoOperation { .. } => Code::NotFound,
            EagerError::TooMany { .. } => Code::ResourceExhausted,
            EagerError::Twice { .. } => Code::AlreadyExists,
            EagerError::ContextExists { .. }
            | EagerError::View { .. }
            | EagerError::NoHandle { .. }
            | EagerError::NoFunction { .. }
            | EagerError::NoDevice { .. }
            | EagerError::Malformed { .. } => Code::InvalidArgument,
        }
    }
}
