//! Why a step, or a graph, did not work.

use std::time::Duration;

use ringway_proto::tensorflow::error::Code;

use crate::core::graph::GraphError;
use crate::tensor::TensorError;

/// Why a call of a session failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The target names no master.
    #[error("{target:?} names no master: give grpc://HOST:PORT, with an IPv6 address in brackets")]
    Target {
        /// As given.
        target: String,
    },
    /// The master was not reached.
    #[error(
        "the master at {target} was not reached: {why}. Start it with `ringway serve`, or correct the target"
    )]
    Connect {
        /// Where it should be.
        target: String,
        /// What happened.
        why: String,
    },
    /// This process cannot make the client's runtime.
    #[error("this process cannot start a client: {0}")]
    Runtime(std::io::Error),
    /// The master, or a worker behind it, refused or failed.
    #[error("{call} at {target}: {code:?}: {message}")]
    Status {
        /// Where the master is.
        target: String,
        /// The call.
        call: &'static str,
        /// Status code.
        code: Code,
        /// In the words of whoever failed.
        message: String,
    },
    /// The master did not answer in time.
    #[error(
        "{call} at {target}: no answer within {limit:?}: see what its tasks do, or give the step more time"
    )]
    Timeout {
        /// Where the master is.
        target: String,
        /// The call.
        call: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// The answer is not what was asked for.
    #[error("{target} answered {call} with {problem}")]
    Answer {
        /// Where the master is.
        target: String,
        /// The call.
        call: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The graph is not sound.
    #[error("the graph: {0}")]
    Graph(#[from] GraphError),
    /// A tensor cannot be.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl SessionError {
    /// The status code, where a task gave one.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            SessionError::Status { code, .. } => Some(*code),
            _ => None,
        }
    }
}
