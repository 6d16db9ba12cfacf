//! What is asked of the coordinator and what it answers, free of any wire format.

#![allow(missing_docs, reason = "each variant is documented; its fields are named for what they are")]

use std::sync::Arc;
use std::time::Duration;

use ringway_topology::{HostId, Incarnation, TaskId};

use super::errors::{Refusal, TaskError};
use super::groups::GroupTable;
use super::losses::Loss;
use super::memory::Write;
use super::overview::Overview;
use super::rounds::{RoundLimits, RoundTable};
use super::waits::Wait;
use crate::core::time::Time;

/// Names a caller that waits for an answer. The driver gives each request a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplyTo(pub u64);

/// Names an open stream of notices. The driver gives each stream a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(pub u64);

/// A value of the store. Shared, since one value may answer thousands of callers.
pub type Value = Arc<Vec<u8>>;

/// A device of a task. Its description is carried unread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// A serialised DeviceAttributes of TensorFlow.
    Attributes(Vec<u8>),
    /// A serialised topology of XLA.
    Topology(Vec<u8>),
    /// A message of the type that `type_url` names.
    Any {
        /// Type of the message.
        type_url: String,
        /// The message.
        value: Vec<u8>,
    },
}

impl Device {
    /// Length of its description, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Device::Attributes(bytes) | Device::Topology(bytes) => bytes.len(),
            Device::Any { type_url, value } => type_url.len() + value.len(),
        }
    }
}

/// One life of a task, and where it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The task.
    pub task: TaskId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Its host.
    pub host: HostId,
    /// Its process id on that host.
    pub pid: u32,
}

/// Which life of a task a call comes from, where its caller says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// The task. `None`: whichever has this incarnation, which is drawn at random.
    pub task: Option<TaskId>,
    /// Which life of it.
    pub incarnation: Incarnation,
}

/// A caller's wish to enter a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// Name of the group.
    pub group: String,
    /// The caller.
    pub process: Process,
    /// The rank that the caller must get, if it has to be a certain one.
    pub rank: Option<u32>,
    /// Members of the group.
    pub size: u32,
    /// Where the caller's data plane is reached; carried unread.
    pub addresses: Vec<u8>,
    /// How long the first caller waits for the others; `None` for the coordinator's own limit.
    pub timeout: Option<Duration>,
    /// The coordinator runs in the caller's process.
    pub hosts_coordinator: bool,
    /// Random bytes, drawn by the driver. Those of the first caller become the group's secret.
    pub fresh_secret: [u8; 32],
}

/// A caller's wish to be in the next generation of an elastic group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regroup {
    /// Name of the group.
    pub group: String,
    /// The caller.
    pub process: Process,
    /// The generation that the caller was in last; 0 for none.
    pub after: u64,
    /// How few and how many members a generation may have.
    pub limits: RoundLimits,
    /// The round closes at once when so many are there.
    pub enough: u32,
    /// With fewer it closes so long after it could.
    pub last_call: Duration,
    /// Newcomers may enter, as far as the caller is concerned.
    pub newcomers: bool,
    /// Where the caller's data plane is reached; carried unread.
    pub addresses: Vec<u8>,
    /// How long the caller waits; `None` for the coordinator's own limit.
    pub timeout: Option<Duration>,
    /// The coordinator runs in the caller's process.
    pub hosts_coordinator: bool,
    /// Random bytes, drawn by the driver. Those of rank 0 become the group's secret.
    pub fresh_secret: [u8; 32],
}

/// A call to a barrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BarrierCall {
    /// Its id.
    pub id: String,
    /// Which use of the id; the first is 0.
    pub counter: i64,
    /// The caller counts the uses of an id, so that a use which it cannot have been part of is none of its own.
    pub counted: bool,
    /// Counted from the first call.
    pub timeout: Duration,
    /// The tasks that take part; none named means every task of the cluster.
    pub tasks: Vec<TaskId>,
    /// The caller's task.
    pub source: TaskId,
}

/// Names a request among those of one life of a task, so that it can be asked again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallId {
    /// The task that asks.
    pub task: TaskId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// The number of the request; each has its own.
    pub sequence: u64,
    /// Lower numbers have had their answers.
    pub oldest: u64,
}

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Connect a task. `silence` is how long it may be silent, where that is not for the service to say.
    Register { task: TaskId, incarnation: Incarnation, silence: Option<Duration> },
    /// The same, answered when all tasks of the cluster are connected, which they become together.
    RegisterTogether { task: TaskId, incarnation: Incarnation, silence: Option<Duration> },
    /// The task is alive.
    Heartbeat { task: TaskId, incarnation: Incarnation },
    /// Answer when all tasks have asked this.
    WaitForAll { task: TaskId, devices: Vec<Device> },
    /// Disconnect a task.
    Shutdown { task: TaskId },
    /// Let a task that is in error connect again.
    Reset { task: TaskId },
    /// The task reports its own failure.
    ReportError { task: TaskId, error: TaskError },
    /// How these tasks are.
    TaskStates { tasks: Vec<TaskId> },
    /// How the tasks of a job are, once its version is above this one.
    WatchJob { job: String, version: i64 },
    /// Store a value.
    Insert { key: String, value: Vec<u8>, overwrite: bool },
    /// Read a value, waiting for it.
    Get { key: String },
    /// Read a value that is there.
    TryGet { key: String },
    /// Add to a decimal value.
    Increment { key: String, by: i64 },
    /// Read everything under a directory.
    GetDirectory { directory: String },
    /// Remove a key and everything under it.
    Delete { key: String },
    /// Wait for others.
    Barrier(BarrierCall),
    /// End a barrier that has not passed.
    CancelBarrier { id: String, counter: i64, source: TaskId },
    /// Which of these tasks are alive, once each has asked this or is gone.
    AliveTasks { source: TaskId, tasks: Vec<TaskId> },
    /// Answer with the error of the first task that fails.
    PollForError { task: TaskId },
    /// Enter a group.
    Join(Box<Join>),
    /// Be in the next generation of an elastic group.
    Regroup(Box<Regroup>),
    /// A task is lost, or gives up itself.
    ReportLoss { reporter: TaskId, incarnation: Incarnation, lost: TaskId, seen: Incarnation, detail: String },
    /// A task fails because of another.
    Blame { reporter: TaskId, incarnation: Incarnation, cause: TaskId },
    /// Who waits for what, and for whom; at most so many tasks are named in each list.
    Waits { names: usize },
    /// All that is known; at most so many tasks are named in each list of waits.
    Overview { names: usize },
    /// Ask all tasks with a stream of notices how they are.
    Survey { survey: u64, flight: bool },
    /// A request that changes a key, with a number: asked again, it changes nothing and gets the same answer.
    Once { call: CallId, request: Box<Request> },
    /// Open a stream of notices under the given name.
    Watch { watch: WatchId, process: Process, since_epoch: u64 },
}

impl Request {
    /// Whether its caller may have to wait for others. All else is answered at once, however many wait.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        !matches!(
            self,
            Request::Register { .. }
                | Request::Heartbeat { .. }
                | Request::Reset { .. }
                | Request::ReportError { .. }
                | Request::TaskStates { .. }
                | Request::Insert { .. }
                | Request::TryGet { .. }
                | Request::Increment { .. }
                | Request::GetDirectory { .. }
                | Request::Delete { .. }
                | Request::CancelBarrier { .. }
                | Request::ReportLoss { .. }
                | Request::Blame { .. }
                | Request::Waits { .. }
                | Request::Overview { .. }
                | Request::Survey { .. }
                | Request::Once { .. }
                | Request::Watch { .. }
        )
    }

    /// The task that asks, where the request itself says so.
    #[must_use]
    pub fn source(&self) -> Option<&TaskId> {
        match self {
            Request::Register { task, .. }
            | Request::RegisterTogether { task, .. }
            | Request::Heartbeat { task, .. }
            | Request::WaitForAll { task, .. }
            | Request::Shutdown { task }
            | Request::ReportError { task, .. }
            | Request::PollForError { task } => Some(task),
            Request::Barrier(call) => Some(&call.source),
            Request::CancelBarrier { source, .. } | Request::AliveTasks { source, .. } => Some(source),
            Request::Join(join) => Some(&join.process.task),
            Request::Regroup(wish) => Some(&wish.process.task),
            Request::ReportLoss { reporter, .. } | Request::Blame { reporter, .. } => Some(reporter),
            Request::Watch { process, .. } => Some(&process.task),
            Request::Once { call, .. } => Some(&call.task),
            Request::Reset { .. }
            | Request::TaskStates { .. }
            | Request::WatchJob { .. }
            | Request::Insert { .. }
            | Request::Get { .. }
            | Request::TryGet { .. }
            | Request::Increment { .. }
            | Request::GetDirectory { .. }
            | Request::Delete { .. }
            | Request::Waits { .. }
            | Request::Overview { .. }
            | Request::Survey { .. } => None,
        }
    }
}

/// How a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not seen yet, or left in order.
    Disconnected,
    /// Registered and alive.
    Connected,
    /// Failed.
    Error,
}

/// How a task is, with its error if it failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskStatus {
    /// The task.
    pub task: TaskId,
    /// Its state.
    pub state: State,
    /// Its latest incarnation; 0 when it was never seen.
    pub incarnation: Incarnation,
    /// Why it is in error.
    pub error: Option<Refusal>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Done; nothing to tell.
    Done,
    /// The devices of all tasks, in the order of the tasks.
    Devices(Arc<Vec<Device>>),
    /// How the tasks asked for are.
    States(Vec<TaskStatus>),
    /// How the tasks of a job are at a version.
    Job { states: Vec<TaskStatus>, version: i64 },
    /// A key as the caller wrote it, and its value.
    Entry { key: String, value: Value },
    /// Keys under a directory, with their values.
    Directory { directory: String, entries: Vec<(String, Value)> },
    /// The barrier passed.
    Barrier { counter: i64 },
    /// The tasks that are alive.
    Alive(Vec<(TaskId, Incarnation)>),
    /// The group.
    Group(Arc<GroupTable>),
    /// The next generation of an elastic group.
    Round(Arc<RoundTable>),
    /// Who waits, the longest first, and what time it is.
    Waits { waits: Vec<Wait>, now: Time },
    /// All that is known.
    Overview(Box<Overview>),
    /// The tasks that were asked.
    Surveyed(Vec<TaskId>),
}

/// What a stream of notices carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A task is lost.
    Loss(Arc<Loss>),
    /// Somebody wants to know how the task is; with its flight record, if `flight` is set.
    Survey { survey: u64, flight: bool },
    /// The coordinator ends in order.
    Closing,
}

/// What happens to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody asks, and may say which life of a task it is.
    Ask { reply: ReplyTo, from: Option<Life>, request: Request },
    /// A caller that waited has gone.
    Gone { reply: ReplyTo },
    /// A stream of notices ended from the other side.
    WatchBroken { watch: WatchId },
    /// Who started a task, and hosts the service, saw the task's process end: in these words.
    ProcessEnded { task: TaskId, how: String },
    /// The machine of the service is about to be taken away, at this time, which [`super::preemption::time_text`] wrote.
    Preempted { when: String },
    /// The service is about to end.
    Stop,
}

/// What the coordinator wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Keep this in mind: all of it or none, and before any later effect is carried out.
    Remember { writes: Vec<Write> },
    /// Answer a caller.
    Reply { to: ReplyTo, result: Result<Reply, Refusal> },
    /// Put a notice on a stream.
    Notify { watch: WatchId, notice: Notice },
    /// End a stream.
    CloseWatch { watch: WatchId },
    /// Tell an agent that runs a server of its own of an error of another task.
    PushError { to: TaskId, error: Refusal },
    /// A task fails because of another, as it says itself.
    Blamed { reporter: TaskId, cause: TaskId },
    /// So many tasks are connected now.
    Connected { tasks: u32 },
}
