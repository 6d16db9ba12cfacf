//! Answers of a task to those who ask, through the coordinator, how it is.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringway_proto::ringway::v1 as wire;
use ringway_proto::ringway::v1::status_client::StatusClient;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::core::coordination::request::Process;
use crate::rpc::credentials::SecureChannel;
use crate::rpc::{MESSAGE_LIMIT_BYTES, convert};

/// Surveys that a task answers at once; further ones go without its answer.
const ANSWERS_LIMIT: usize = 4;
/// An answer that is not taken within this time comes too late.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Makes a report; with the flight record, if asked for. `None` where there is nothing to tell any more.
pub(super) type Tell = dyn Fn(bool) -> Option<wire::RankReport> + Send + Sync;

/// Who makes the task's reports.
#[derive(Clone)]
pub(super) struct Surveys {
    process: Process,
    tell: Arc<Mutex<Option<Arc<Tell>>>>,
    places: Arc<Semaphore>,
}

impl Surveys {
    pub(super) fn new(process: Process) -> Self {
        Surveys { process, tell: Arc::default(), places: Arc::new(Semaphore::new(ANSWERS_LIMIT)) }
    }

    /// From now on `tell` makes the reports.
    pub(super) fn told_by(&self, tell: Arc<Tell>) {
        *self.tell.lock().unwrap_or_else(PoisonError::into_inner) = Some(tell);
    }

    /// A report of a task: who it is, and what `tell` adds.
    fn report(&self, flight: bool) -> wire::RankReport {
        let tell = self.tell.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let report = tell.and_then(|tell| tell(flight)).unwrap_or_default();
        wire::RankReport {
            task: Some(convert::task_name(&self.process.task)),
            host: self.process.host.name().to_owned(),
            pid: self.process.pid,
            incarnation: convert::life(self.process.incarnation),
            ..report
        }
    }

    /// Answers on the runtime of the caller, in its own time: a report takes the engine's lock for a moment.
    pub(super) fn answer(&self, channel: SecureChannel, survey: wire::Survey) {
        let Ok(place) = self.places.clone().try_acquire_owned() else { return };
        let surveys = self.clone();
        tokio::spawn(async move {
            let made = tokio::task::spawn_blocking(move || surveys.report(survey.flight)).await;
            let Ok(report) = made else { return };
            let request = wire::ReportRequest { survey: survey.id, report: Some(report) };
            let mut client = StatusClient::new(channel).max_encoding_message_size(MESSAGE_LIMIT_BYTES);
            match timeout(ANSWER_LIMIT, client.report(request)).await {
                Ok(Ok(_)) => {}
                Ok(Err(status)) => tracing::debug!(%status, "a report of this task was not taken"),
                Err(_) => tracing::debug!("a report of this task was not taken in time"),
            }
            drop(place);
        });
    }
}
