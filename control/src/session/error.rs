//! Why a step, or a graph, did not work.

use std::fmt;
use std::time::Duration;

use ringway_proto::tensorflow::error::Code;

use crate::core::graph::GraphError;
use crate::tensor::TensorError;

/// Why a call of a session failed. `Debug` prints the message, so that a program whose `main` returns it says what to do.
#[derive(thiserror::Error)]
pub enum SessionError {
    /// The caller is a task of an asynchronous runtime, which a blocking call would hold up.
    #[error(
        "a session's calls block, and this one was made within an asynchronous runtime: make it in \
         tokio::task::spawn_blocking, or on a thread of its own"
    )]
    Asynchronous,
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

impl fmt::Debug for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_string())
    }
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
