//! What the coordinator knows, as `ringway.v1.Status` tells it.

use std::time::Duration;

use ringway_proto::ringway::v1 as wire;
use ringway_topology::{Incarnation, TaskId};
use tonic::Status;

use crate::core::coordination::overview::{GroupView, Overview, TaskView};
use crate::core::coordination::request::State;
use crate::core::coordination::waits::{Awaited, Wait};
use crate::core::time::Time;

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// A life, as people compare it; empty for none.
pub(crate) fn life(incarnation: Incarnation) -> String {
    if incarnation.0 == 0 { String::new() } else { format!("{:016x}", incarnation.0) }
}

/// A task's name.
pub(crate) fn task_name(task: &TaskId) -> wire::TaskName {
    wire::TaskName { job: task.job().to_owned(), task: task.index() }
}

/// A task's name, read.
pub(in crate::rpc) fn named_task(name: Option<&wire::TaskName>) -> Result<TaskId, Status> {
    let name = name.ok_or_else(|| Status::invalid_argument("the report names no task"))?;
    TaskId::new(name.job.clone(), name.task).map_err(|error| Status::invalid_argument(error.to_string()))
}

/// All that the service knows. `host` is where it runs.
pub(in crate::rpc) fn overview(
    overview: &Overview,
    incarnation: Incarnation,
    host: &str,
    pid: u32,
) -> wire::Overview {
    wire::Overview {
        incarnation: life(incarnation),
        host: host.to_owned(),
        pid,
        tasks: overview.tasks.iter().map(task).collect(),
        waits: overview.waits.iter().map(|w| wait(w, overview.now)).collect(),
        groups: overview.groups.iter().map(group).collect(),
        heartbeat_limit_ms: millis(overview.heartbeat_limit),
    }
}

fn task(view: &TaskView) -> wire::TaskView {
    let state = match view.status.state {
        State::Disconnected => "disconnected",
        State::Connected => "connected",
        State::Error => "error",
    };
    wire::TaskView {
        job: view.status.task.job().to_owned(),
        task: view.status.task.index(),
        state: state.to_owned(),
        incarnation: life(view.status.incarnation),
        host: view.process.as_ref().map_or_else(String::new, |process| process.host.name().to_owned()),
        pid: view.process.as_ref().map_or(0, |process| process.pid),
        rank: view.rank,
        heartbeat_age_ms: view.silent.map(millis),
        error: view.status.error.as_ref().map_or_else(String::new, |error| error.message.to_string()),
    }
}

fn wait(wait: &Wait, now: Time) -> wire::WaitAtService {
    let (awaited, name) = match &wait.awaited {
        Awaited::Registration => ("registration", String::new()),
        Awaited::Devices => ("devices", String::new()),
        Awaited::Key(key) => ("key", key.clone()),
        Awaited::Barrier { id, counter: 0 } => ("barrier", id.clone()),
        Awaited::Barrier { id, counter } => ("barrier", format!("{id} (use {counter})")),
        Awaited::Alive => ("alive", String::new()),
        Awaited::Group(name) => ("group", name.clone()),
        Awaited::Departure => ("departure", String::new()),
    };
    wire::WaitAtService {
        awaited: awaited.to_owned(),
        name,
        waited_ms: millis(now.since(wait.since)),
        left_ms: wait.deadline.map(|deadline| millis(deadline.since(now))),
        waiting: wait.waiting.iter().map(task_name).collect(),
        waiting_count: wait.waiting_count as u64,
        late: wait.late.iter().map(task_name).collect(),
        late_count: wait.late_count as u64,
    }
}

fn group(view: &GroupView) -> wire::GroupAtService {
    wire::GroupAtService {
        name: view.name.clone(),
        size: view.size as u32,
        present: view.present as u32,
        epoch: view.epoch,
    }
}
