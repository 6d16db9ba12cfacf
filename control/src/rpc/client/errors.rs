//! What can go wrong between an agent and the coordinator, one enum per operation.

use std::io;
use std::time::Duration;

use ringway_topology::TaskId;

use super::connect::Seen;
use crate::core::coordination::errors::{Code, Refusal};

/// Why an agent did not start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The address is none.
    #[error(
        "{address:?} is not an address of a coordinator ({why}): write it as host:port, IPv6 as [host]:port"
    )]
    BadAddress {
        /// The address given.
        address: String,
        /// What is wrong with it.
        why: String,
    },
    /// There was no coordinator to talk to.
    #[error(
        "{task} cannot register with the coordinator at {address} ({tries} {} in {waited:.1?}): {seen}",
        if *tries == 1 { "try" } else { "tries" }
    )]
    Unreachable {
        /// The task that wanted to register.
        task: TaskId,
        /// Where the coordinator should be.
        address: String,
        /// How often it was tried.
        tries: u32,
        /// For how long.
        waited: Duration,
        /// What was seen last.
        seen: Seen,
    },
    /// The coordinator said no.
    #[error("the coordinator at {address} does not take {task}: {reason}")]
    Refused {
        /// The task that wanted to register.
        task: TaskId,
        /// Where the coordinator is.
        address: String,
        /// Its reason.
        reason: String,
    },
    /// The system gave no thread or no runtime.
    #[error("cannot start the agent of {task}: {source}")]
    System {
        /// The task.
        task: TaskId,
        /// What the system said.
        source: io::Error,
    },
}

/// How a call failed, before it is said in the words of its operation.
#[derive(Clone, Debug)]
pub(super) enum CallFailure {
    Refused(Refusal),
    TimedOut(Duration),
    Unreachable(String),
    Ended(String),
}

impl CallFailure {
    /// What happened, in words.
    pub(super) fn words(&self, address: &str) -> String {
        match self {
            CallFailure::Refused(refusal) => refusal.to_string(),
            CallFailure::TimedOut(limit) => {
                format!("the coordinator at {address} did not answer within {limit:.1?}")
            }
            CallFailure::Unreachable(why) => {
                format!("the connection to the coordinator at {address} failed: {why}")
            }
            CallFailure::Ended(why) => why.clone(),
        }
    }
}

/// Why a task did not enter a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// Not all members came in time.
    #[error("{task}: {detail}")]
    Incomplete {
        /// The task that wanted to enter.
        task: TaskId,
        /// Who is missing.
        detail: String,
    },
    /// Members do not agree on size or ranks, or the group cannot be.
    #[error("{task}: {detail}")]
    Disagree {
        /// The task that wanted to enter.
        task: TaskId,
        /// Both sides.
        detail: String,
    },
    /// A member was lost while the others waited.
    #[error("{task}: {detail}")]
    MemberLost {
        /// The task that wanted to enter.
        task: TaskId,
        /// Who, and by what evidence.
        detail: String,
    },
    /// The coordinator said no otherwise.
    #[error("{task} cannot enter group {group:?}: {detail}")]
    Refused {
        /// The task that wanted to enter.
        task: TaskId,
        /// The group.
        group: String,
        /// Why.
        detail: String,
    },
    /// The coordinator was not reached, or not in time.
    #[error("{task} cannot enter group {group:?}: {detail}")]
    Unreachable {
        /// The task that wanted to enter.
        task: TaskId,
        /// The group.
        group: String,
        /// What was seen.
        detail: String,
    },
}

impl JoinError {
    pub(super) fn new(task: &TaskId, group: &str, address: &str, failure: &CallFailure) -> Self {
        let (task, group, detail) = (task.clone(), group.to_owned(), failure.words(address));
        match failure {
            CallFailure::Refused(refusal) => match refusal.code {
                Code::DeadlineExceeded => JoinError::Incomplete { task, detail },
                Code::InvalidArgument => JoinError::Disagree { task, detail },
                Code::Aborted | Code::Unavailable => JoinError::MemberLost { task, detail },
                _ => JoinError::Refused { task, group, detail },
            },
            _ => JoinError::Unreachable { task, group, detail },
        }
    }
}

/// Why the key-value store did not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The key does not exist.
    #[error("key {key:?} does not exist in the coordinator's store")]
    Missing {
        /// The key.
        key: String,
    },
    /// The key exists, and overwriting is not allowed.
    #[error("key {key:?} exists already in the coordinator's store: delete it first, or allow overwriting")]
    Exists {
        /// The key.
        key: String,
    },
    /// Nobody wrote the key in time.
    #[error("nobody wrote key {key:?} within {limit:.1?}: look at the task that should")]
    TimedOut {
        /// The key.
        key: String,
        /// How long it was waited for.
        limit: Duration,
    },
    /// The coordinator said no otherwise.
    #[error("the coordinator's store refuses key {key:?}: {detail}")]
    Refused {
        /// The key.
        key: String,
        /// Why.
        detail: String,
    },
    /// The coordinator was not reached.
    #[error("key {key:?}: {detail}")]
    Unreachable {
        /// The key.
        key: String,
        /// What was seen.
        detail: String,
    },
}

impl StoreError {
    pub(super) fn new(key: &str, address: &str, failure: &CallFailure) -> Self {
        let (key, detail) = (key.to_owned(), failure.words(address));
        match failure {
            CallFailure::Refused(refusal) => match refusal.code {
                Code::NotFound => StoreError::Missing { key },
                Code::AlreadyExists => StoreError::Exists { key },
                _ => StoreError::Refused { key, detail },
            },
            CallFailure::TimedOut(limit) => StoreError::TimedOut { key, limit: *limit },
            _ => StoreError::Unreachable { key, detail },
        }
    }
}

/// Why a barrier did not pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BarrierError {
    /// Tasks came late; they are named.
    #[error("{task}: {detail}")]
    Late {
        /// The task that waited.
        task: TaskId,
        /// Who is late.
        detail: String,
    },
    /// A task failed or left; it is named.
    #[error("{task}: {detail}")]
    TaskLost {
        /// The task that waited.
        task: TaskId,
        /// Who, and by what evidence.
        detail: String,
    },
    /// The coordinator said no otherwise.
    #[error("{task} at barrier {barrier:?}: {detail}")]
    Refused {
        /// The task that waited.
        task: TaskId,
        /// The barrier.
        barrier: String,
        /// Why.
        detail: String,
    },
    /// The coordinator was not reached.
    #[error("{task} at barrier {barrier:?}: {detail}")]
    Unreachable {
        /// The task that waited.
        task: TaskId,
        /// The barrier.
        barrier: String,
        /// What was seen.
        detail: String,
    },
}

impl BarrierError {
    pub(super) fn new(task: &TaskId, barrier: &str, address: &str, failure: &CallFailure) -> Self {
        let (task, barrier, detail) = (task.clone(), barrier.to_owned(), failure.words(address));
        match failure {
            CallFailure::Refused(refusal) => match refusal.code {
                Code::DeadlineExceeded => BarrierError::Late { task, detail },
                Code::Internal => BarrierError::TaskLost { task, detail },
                _ => BarrierError::Refused { task, barrier, detail },
            },
            _ => BarrierError::Unreachable { task, barrier, detail },
        }
    }
}

/// Why a loss was not reported, or a task could not leave in order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// The coordinator said no.
    #[error("the coordinator does not take the report of {task}: {detail}")]
    Refused {
        /// The task that reports.
        task: TaskId,
        /// Why.
        detail: String,
    },
    /// The coordinator was not reached.
    #[error("the report of {task} was not delivered: {detail}")]
    Unreachable {
        /// The task that reports.
        task: TaskId,
        /// What was seen.
        detail: String,
    },
}

impl ReportError {
    pub(super) fn new(task: &TaskId, address: &str, failure: &CallFailure) -> Self {
        let (task, detail) = (task.clone(), failure.words(address));
        match failure {
            CallFailure::Refused(_) => ReportError::Refused { task, detail },
            _ => ReportError::Unreachable { task, detail },
        }
    }
}

/// Why a task did not leave in order. It is gone all the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaveError {
    /// The coordinator did not confirm it in time.
    #[error("{task} leaves without the coordinator's word: {detail}")]
    Unconfirmed {
        /// The task.
        task: TaskId,
        /// What was seen.
        detail: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_try_is_not_several() {
        let of = |tries| {
            let (task, address) = ("/job:worker/task:0".parse().unwrap(), "h:1".to_owned());
            let (waited, seen) = (Duration::from_secs(1), Seen::Nothing);
            AgentError::Unreachable { task, address, tries, waited, seen }.to_string()
        };
        assert!(of(1).contains("(1 try in 1.0s)") && of(2).contains("(2 tries in 1.0s)"), "{}", of(1));
    }
}
