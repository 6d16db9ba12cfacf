//! What each task does: a list of steps that follows from the seed, the same for each life of the task.

use std::time::Duration;

use ringway_topology::{HostId, Incarnation, TaskId};

use super::random::Random;
use crate::core::coordination::request::{BarrierCall, Join, Process, Request};

/// Rounds of keys and barriers in a script.
const ROUNDS: u64 = 3;
/// Keys that all tasks share.
const KEYS: u64 = 6;
/// The time that a barrier is given.
pub(super) const BARRIER_TIMEOUT: Duration = Duration::from_millis(2500);
/// The time that a group is given.
pub(super) const JOIN_TIMEOUT: Duration = Duration::from_millis(3000);
/// The time that a wait for all tasks is given.
pub(super) const REGISTER_TIMEOUT: Duration = Duration::from_millis(2800);
/// A step whose caller gets no answer for so long is given up by the caller.
pub(super) const CALL_LIMIT: Duration = Duration::from_millis(4000);
/// A read that waits is given up after this time.
pub(super) const READ_LIMIT: Duration = Duration::from_millis(60);

/// A step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    WaitForAll,
    Join,
    Insert { key: String, overwrite: bool },
    Get { key: String },
    TryGet { key: String },
    Increment { by: i64 },
    List,
    Delete { key: String },
    Barrier { id: String, everyone: bool },
    Alive,
}

impl Step {
    /// How long the caller waits.
    pub(super) fn limit(&self) -> Duration {
        if matches!(self, Step::Get { .. }) { READ_LIMIT } else { CALL_LIMIT }
    }

    /// Whether it changes a key.
    pub(super) fn changes(&self) -> bool {
        matches!(self, Step::Insert { .. } | Step::Increment { .. } | Step::Delete { .. })
    }

    /// Whether it must succeed where nothing goes wrong. The store may rightly say no.
    pub(super) fn must_succeed(&self) -> bool {
        matches!(self, Step::WaitForAll | Step::Join | Step::Barrier { .. } | Step::Alive)
    }
}

/// The name of a task.
pub(super) fn task(index: u32) -> TaskId {
    TaskId::new("worker", index).expect("the name is good")
}

/// A life of a task.
pub(super) fn process(index: u32, incarnation: Incarnation) -> Process {
    let host = HostId::new(format!("host{}", index / 8), "").expect("the name is good");
    Process { task: task(index), incarnation, host, pid: incarnation.0 as u32 }
}

/// The members of the barriers that are not for everybody: every other task, so that all know it from the index.
pub(super) fn takes_part(index: u32) -> bool {
    index.is_multiple_of(2)
}

/// The script of a task.
pub(super) fn script(seed: u64, index: u32) -> Vec<Step> {
    let mut shared = Random::new(seed ^ 0x5c21);
    let mut own = Random::new(seed.wrapping_mul(31).wrapping_add(u64::from(index)));
    let mut steps = Vec::new();
    if shared.per_mille(500) {
        steps.push(Step::WaitForAll);
    }
    steps.push(Step::Join);
    for round in 0..ROUNDS {
        for _ in 0..own.below(4) {
            steps.push(store_step(&mut own));
        }
        let everyone = shared.per_mille(700);
        if everyone || takes_part(index) {
            steps.push(Step::Barrier { id: format!("round/{round}"), everyone });
        }
    }
    if shared.per_mille(300) {
        steps.push(Step::Alive);
    }
    steps.push(Step::Barrier { id: "end".to_owned(), everyone: true });
    steps
}

fn store_step(own: &mut Random) -> Step {
    // One key in two spellings: the store must take them for the same.
    let number = own.below(KEYS);
    let key = if own.per_mille(300) { format!("/k//{number}/") } else { format!("k/{number}") };
    match own.below(8) {
        0 | 1 => Step::Insert { key, overwrite: own.per_mille(500) },
        2 | 3 => Step::Get { key },
        4 => Step::TryGet { key },
        5 => Step::Increment { by: own.below(100) as i64 - 50 },
        6 => Step::List,
        _ => Step::Delete { key },
    }
}

/// The request of a step.
pub(super) fn request(step: &Step, tasks: u32, process: &Process, random: &mut Random) -> Request {
    let source = process.task.clone();
    let index = source.index();
    match step.clone() {
        Step::WaitForAll => Request::WaitForAll { task: source, devices: Vec::new() },
        Step::Join => Request::Join(Box::new(Join {
            group: "world".to_owned(),
            process: process.clone(),
            // Some ask for a rank, the others get what is left.
            rank: (index.is_multiple_of(3)).then_some(index),
            size: tasks,
            addresses: process.incarnation.0.to_le_bytes().to_vec(),
            timeout: Some(JOIN_TIMEOUT),
            hosts_coordinator: false,
            fresh_secret: [(random.next() as u8) | 1; 32],
        })),
        Step::Insert { key, overwrite } => {
            Request::Insert { key, value: random.next().to_le_bytes().to_vec(), overwrite }
        }
        Step::Get { key } => Request::Get { key },
        Step::TryGet { key } => Request::TryGet { key },
        Step::Increment { by } => Request::Increment { key: "sum".to_owned(), by },
        Step::List => Request::GetDirectory { directory: "k".to_owned() },
        Step::Delete { key } => Request::Delete { key },
        Step::Barrier { id, everyone } => {
            let members =
                if everyone { Vec::new() } else { (0..tasks).filter(|&i| takes_part(i)).map(task).collect() };
            Request::Barrier(BarrierCall {
                id,
                counter: 0,
                counted: false,
                timeout: BARRIER_TIMEOUT,
                tasks: members,
                source,
            })
        }
        Step::Alive => Request::AliveTasks { source, tasks: Vec::new() },
    }
}
