//! The same for XLA's dialect, in which tasks are numbers.

use ringway_proto::xla::coordination as xla;
use ringway_topology::{Incarnation, TaskId};
use tonic::Status;

use prost::Message;

use super::{BARRIER_ERROR_KEY, SERVICE_ERROR_KEY, invalid, with_payloads};
use crate::core::coordination::errors::{Code, Origin, Refusal};

const MISMATCH_KEY: &str = "type.googleapis.com/tensorflow.ServiceMismatchError";

/// Tasks and their numbers.
#[derive(Debug)]
pub(in crate::rpc) struct XlaTasks {
    jobs: Vec<(String, u32)>,
}

impl XlaTasks {
    /// The tasks of these jobs, one after the other.
    pub(in crate::rpc) fn new(jobs: &[(String, u32)]) -> XlaTasks {
        XlaTasks { jobs: jobs.to_vec() }
    }

    /// The task of this number.
    pub(in crate::rpc) fn task(&self, number: i32) -> Result<TaskId, Status> {
        let all: u32 = self.jobs.iter().map(|(_, tasks)| tasks).sum();
        let none = || invalid(format!("there is no task {number}: the cluster has {all}, numbered from 0"));
        let mut index = u32::try_from(number).map_err(|_| none())?;
        for (job, tasks) in &self.jobs {
            if index < *tasks {
                return TaskId::new(job.clone(), index).map_err(invalid);
            }
            index -= tasks;
        }
        Err(none())
    }

    /// The tasks of these numbers.
    pub(in crate::rpc) fn tasks(&self, numbers: &[i32]) -> Result<Vec<TaskId>, Status> {
        numbers.iter().map(|number| self.task(*number)).collect()
    }

    /// The number of a task; -1 for one that is not of the cluster, which the coordinator never names.
    pub(in crate::rpc) fn number(&self, task: &TaskId) -> i32 {
        let before = self.jobs.iter().take_while(|(job, _)| job != task.job());
        let before: u32 = before.map(|(_, tasks)| tasks).sum();
        i32::try_from(before + task.index()).unwrap_or(-1)
    }

    /// The cluster's job, if it has only one.
    pub(in crate::rpc) fn only_job(&self) -> Result<&str, Status> {
        match self.jobs.as_slice() {
            [(job, _)] => Ok(job),
            jobs => Err(Status::failed_precondition(format!(
                "tasks are watched as one job, and this cluster has {}: serve one job to clients of this kind",
                jobs.len()
            ))),
        }
    }

    /// Says which task an error is of.
    pub(in crate::rpc) fn error_payload(&self, refusal: &Refusal) -> xla::CoordinationServiceError {
        match &refusal.origin {
            Origin::Task { task, reported } => xla::CoordinationServiceError {
                is_reported_error: *reported,
                source_task_id: self.number(task),
            },
            Origin::Call | Origin::Elsewhere { .. } | Origin::Barrier { .. } => {
                xla::CoordinationServiceError::default()
            }
        }
    }

    /// A refusal as a gRPC status, with details for XLA's clients.
    pub(in crate::rpc) fn status(&self, refusal: &Refusal) -> Status {
        let barrier = match &refusal.origin {
            Origin::Call | Origin::Elsewhere { .. } | Origin::Task { .. } => None,
            Origin::Barrier { id, counter } => {
                let error = xla::BarrierError { barrier_id: id.clone(), counter: *counter };
                Some((BARRIER_ERROR_KEY, error.encode_to_vec()))
            }
        };
        let general = (SERVICE_ERROR_KEY, self.error_payload(refusal).encode_to_vec());
        with_payloads(refusal.code, &refusal.message, barrier.into_iter().chain([general]))
    }
}

/// The refusal of a call that was meant for another life of the service.
pub(in crate::rpc) fn service_mismatch(meant: u64, me: Incarnation) -> Status {
    let message = format!(
        "the call is for the service's incarnation {meant}, and this is {}: the coordination service was restarted, and its \
         state is lost",
        me.0
    );
    let payload = xla::ServiceMismatchError { service_incarnation: me.0 }.encode_to_vec();
    let general = (SERVICE_ERROR_KEY, xla::CoordinationServiceError::default().encode_to_vec());
    with_payloads(Code::Internal, &message, [(MISMATCH_KEY, payload), general])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_numbered_over_all_jobs() {
        let tasks = XlaTasks::new(&[("chief".to_owned(), 1), ("worker".to_owned(), 3)]);
        let named = |job: &str, index| TaskId::new(job, index).unwrap();
        assert_eq!(tasks.task(0).unwrap(), named("chief", 0));
        assert_eq!(tasks.tasks(&[1, 3]).unwrap(), [named("worker", 0), named("worker", 2)]);
        assert!((0..4).all(|number| tasks.number(&tasks.task(number).unwrap()) == number));
        for none in [-1, 4, i32::MAX] {
            assert!(tasks.task(none).unwrap_err().message().contains("the cluster has 4"), "{none}");
        }
        assert!(tasks.only_job().is_err());
    }
}
