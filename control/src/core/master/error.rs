//! Why the master refuses, in the words and with the codes that users of TensorFlow know.

use std::time::Duration;

use crate::core::coordination::errors::Code;
use crate::core::graph::{GraphError, Type};

/// Why a call of the master failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MasterError {
    /// The graph is not sound.
    #[error("{0}")]
    Graph(#[from] GraphError),
    /// No device is what a node asks for.
    #[error(
        "Cannot assign a device for operation {node}: {{{{node {node}}}}} was explicitly assigned to {asked} but \
         available devices are [ {} ]. Make sure the device specification refers to a valid device.\n\t [[{node}]]",
        .available.join(", ")
    )]
    NoDevice {
        /// The node.
        node: String,
        /// What it asks for.
        asked: String,
        /// All devices of the session.
        available: Vec<String>,
    },
    /// Nodes that must be together ask for different devices.
    #[error(
        "Cannot colocate nodes {{{{colocation_node {node}}}}} and {{{{colocation_node {other}}}}}: cannot merge \
         devices with incompatible parts: {conflict}. Give both the same device, or remove the colocation\n\t [[{node}]]"
    )]
    Colocation {
        /// The node.
        node: String,
        /// One that it must be with.
        other: String,
        /// The names in conflict.
        conflict: String,
    },
    /// Neither fetches nor targets.
    #[error("Must specify at least one target to fetch or execute.")]
    NothingToRun,
    /// A fed tensor is not in the graph.
    #[error("FeedInputs: unable to find feed output {0}")]
    FeedNotFound(String),
    /// A fetched tensor is not in the graph.
    #[error("FetchOutputs node {0}: not found")]
    FetchNotFound(String),
    /// Targets are not in the graph.
    #[error("PruneForTargets: Some target nodes not found: {0}")]
    TargetNotFound(String),
    /// A node has fewer outputs.
    #[error("{what} {name}: output index too large, must be < {outputs}")]
    OutputIndex {
        /// `FeedInputs` or `FetchOutputs`.
        what: &'static str,
        /// The tensor.
        name: String,
        /// How many outputs its node has.
        outputs: usize,
    },
    /// Twice in the feeds.
    #[error("Endpoint \"{0}\" fed more than once.")]
    FedTwice(String),
    /// In feeds and fetches.
    #[error("{0} is both fed and fetched.")]
    FedAndFetched(String),
    /// A fed value is of another type than its tensor.
    #[error("Feed {name} is of type {given} where the graph has {expected}: feed a value of type {expected}")]
    FeedType {
        /// The tensor.
        name: String,
        /// Type of the value.
        given: Type,
        /// Type in the graph.
        expected: Type,
    },
    /// A fed value does not hold what its shape says, or has a shape that cannot be.
    #[error("Feed {name} is malformed: {problem}")]
    FeedMalformed {
        /// The tensor.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// A callable is called with another number of values.
    #[error("RunCallable: expected {expected} feeds, but {given} were given")]
    FeedCount {
        /// As it was made.
        expected: usize,
        /// As it is called.
        given: usize,
    },
    /// An input crosses into a loop without an `Enter`.
    #[error(
        "The node '{node}' has inputs from different frames. The input node '{first}' is in frame '{first_frame}'. \
         The input node '{second}' is in frame '{second_frame}'."
    )]
    Frames {
        /// The node.
        node: String,
        /// One of its inputs.
        first: String,
        /// The loop that it is in.
        first_frame: String,
        /// Another input.
        second: String,
        /// The loop that it is in.
        second_frame: String,
    },
    /// A loop over several tasks has no condition to follow.
    #[error("A cross-device loop must have a pivot predicate: {0}")]
    NoPivot(String),
    /// Tensor connections of a callable make a circle.
    #[error("Graph is invalid, contains a cycle with {nodes} nodes, including: {some}")]
    Cycle {
        /// How many nodes are on it or behind it.
        nodes: usize,
        /// One of them.
        some: String,
    },
    /// No such session.
    #[error("Session {0} is not found. Possibly, this master has restarted.")]
    NoSession(String),
    /// The session ended while the call was under way.
    #[error("Session {0} is closed: it was closed, reset, or unused for longer than its lease")]
    SessionClosed(String),
    /// An extension of another version of the graph.
    #[error("Current version is {current} but caller expected {expected}.")]
    Version {
        /// The graph's.
        current: i64,
        /// The caller's.
        expected: i64,
    },
    /// An extension brings a node that is there.
    #[error(
        "GraphDef argument to Extend includes node '{0}', which was created by a previous call to Create or Extend in \
         this session."
    )]
    NodeThere(String),
    /// More of something than the master keeps.
    #[error("the session has {limit} {what}, and takes no more: close or release some")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many are allowed.
        limit: usize,
    },
    /// A part of a run that was not set up, or has ended.
    #[error("Must run PartialRunSetup before performing partial runs: there is no partial run '{0}'")]
    NoPartialRun(String),
    /// A part of a run feeds or fetches what was not announced.
    #[error("The {what} {name} was not specified in partial_run_setup.")]
    NotAnnounced {
        /// `feed` or `fetch`.
        what: &'static str,
        /// The tensor.
        name: String,
    },
    /// A part of a run feeds or fetches what an earlier part did.
    #[error("The {what} {name} has already been {done}.")]
    Again {
        /// `feed` or `fetch`.
        what: &'static str,
        /// The tensor.
        name: String,
        /// `fed` or `fetched`.
        done: &'static str,
    },
    /// A part of a run fetches too early.
    #[error(
        "Fetch {fetch} can't be computed from the feeds that have been fed so far: {missing} is missing."
    )]
    TooEarly {
        /// The fetch.
        fetch: String,
        /// A feed that it needs.
        missing: String,
    },
    /// No such callable.
    #[error("No such callable handle: {0}. It was released, or made in another session")]
    NoCallable(i64),
    /// What this master does not do.
    #[error("{0}")]
    Unimplemented(String),
    /// More was fetched than an answer can hold.
    #[error(
        "what is fetched makes {bytes} bytes, up to {fetch}, and one answer may hold {limit}: fetch fewer tensors at once, \
         parts of them (tf.slice), or what is computed from them"
    )]
    FetchTooLarge {
        /// The fetch that is too much.
        fetch: String,
        /// Bytes of the tensors up to it.
        bytes: usize,
        /// How many there may be.
        limit: usize,
    },
    /// A worker failed: its own words.
    #[error("From {task}:\n{message}")]
    Worker {
        /// The task.
        task: String,
        /// Its code.
        code: Code,
        /// What it says, or what was seen of its connection.
        message: String,
    },
    /// A step did not end in time.
    #[error(
        "Timed out waiting for step {step} after {limit:?}: no answer from {}. Allow more with \
         RunOptions.timeout_in_ms or ConfigProto.operation_timeout_in_ms, or look at what these tasks wait for",
        .waiting.join(", ")
    )]
    Deadline {
        /// The step.
        step: i64,
        /// How long it had.
        limit: Duration,
        /// Tasks that did not answer.
        waiting: Vec<String>,
    },
    /// Tasks of the cluster did not answer when a session was to begin.
    #[error(
        "CreateSession: no answer from {} within {limit:?}. Start these tasks, or leave them out with \
         ConfigProto.device_filters",
        .missing.join(", ")
    )]
    Missing {
        /// The tasks, each with what was seen.
        missing: Vec<String>,
        /// How long they had.
        limit: Duration,
    },
    /// The cluster of a session's configuration cannot be used.
    #[error("ConfigProto.cluster_def: {0}")]
    Cluster(String),
}

impl MasterError {
    /// The canonical code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            MasterError::Graph(GraphError::UnknownOp { .. } | GraphError::NoAttr { .. })
            | MasterError::FeedNotFound(_)
            | MasterError::FetchNotFound(_)
            | MasterError::TargetNotFound(_) => Code::NotFound,
            MasterError::NoSession(_) | MasterError::Version { .. } => Code::Aborted,
            MasterError::SessionClosed(_) => Code::Cancelled,
            MasterError::TooMany { .. } | MasterError::FetchTooLarge { .. } => Code::ResourceExhausted,
            MasterError::Unimplemented(_) => Code::Unimplemented,
            MasterError::Worker { code, .. } => *code,
            MasterError::Deadline { .. } => Code::DeadlineExceeded,
            MasterError::Missing { .. } => Code::Unavailable,
            _ => Code::InvalidArgument,
        }
    }
}
