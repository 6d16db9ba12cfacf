//! What a job is doing, told to people and programs: pure, from the messages of `ringway.v1.Status`.
//!
//! - [`stragglers`]: who waits for whom, and who is behind it.
//! - [`text`]: for people.
//! - [`perfetto`]: flight records as a trace that ui.perfetto.dev opens.
//! - [`prometheus`]: numbers as Prometheus takes them.

pub mod perfetto;
pub mod prometheus;
pub mod stragglers;
pub mod text;

pub use ringway_proto::ringway::v1::{CallRecord, Overview, RankReport, TaskName};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What a file with a flight record says first.
pub const FLIGHT_FORMAT: &str = "ringway.flight.1";

/// One look at a job.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Look {
    /// What the coordination service knows.
    pub overview: Overview,
    /// What the ranks say that answered, by rank.
    pub reports: Vec<RankReport>,
    /// Tasks that were asked and did not answer in time.
    pub silent: Vec<TaskName>,
}

impl Look {
    /// A task's rank in the world, if it has one.
    #[must_use]
    pub fn rank_of(&self, task: &TaskName) -> Option<u32> {
        let is = |t: &&ringway_proto::ringway::v1::TaskView| t.job == task.job && t.task == task.task;
        self.overview.tasks.iter().find(is).and_then(|t| t.rank)
    }
}

/// A flight record as a file holds it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FlightFile {
    /// [`FLIGHT_FORMAT`].
    pub format: String,
    /// The record.
    #[serde(flatten)]
    pub report: RankReport,
}

impl FlightFile {
    /// The file of a record.
    #[must_use]
    pub fn new(report: RankReport) -> Self {
        FlightFile { format: FLIGHT_FORMAT.to_owned(), report }
    }

    /// Its text: JSON.
    ///
    /// # Panics
    /// Never: every value has a form in JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain data")
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// When it is no flight record that this version reads; in words.
    pub fn from_json(text: &str) -> Result<FlightFile, String> {
        let file: FlightFile = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if file.format != FLIGHT_FORMAT {
            return Err(format!("its format is {:?}, not {FLIGHT_FORMAT:?}", file.format));
        }
        Ok(file)
    }
}

/// A call in words, as errors name it: `all_reduce #12 f32 x 4096 sum`.
#[must_use]
pub fn call_in_words(call: &CallRecord) -> String {
    let mut words = match call.operation.as_str() {
        "message" => format!("a message with tag {}", call.root),
        operation => format!("{operation} #{}", call.number),
    };
    if !call.r#type.is_empty() {
        words += &format!(" {} x {}", call.r#type, call.count);
    }
    if !call.reduction.is_empty() {
        words += &format!(" {}", call.reduction);
    }
    words
}

/// A span of time, to be read at a glance.
#[must_use]
pub fn span(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        s @ 1..120 => format!("{}.{} s", s, time.subsec_millis() / 100),
        s @ 120..7200 => format!("{} min {} s", s / 60, s % 60),
        s => format!("{} h {} min", s / 3600, s % 3600 / 60),
    }
}

/// Nanoseconds of a report, as a span up to its moment.
fn ago(report: &RankReport, then_ns: u64) -> Duration {
    Duration::from_nanos(report.now_ns.saturating_sub(then_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_back_and_others_refused() {
        let report =
            RankReport { rank: 3, now_ns: 7, calls: vec![CallRecord::default()], ..Default::default() };
        let file = FlightFile::new(report.clone());
        assert_eq!(FlightFile::from_json(&file.to_json()).unwrap().report, report);
        let other = file.to_json().replace(FLIGHT_FORMAT, "ringway.flight.9");
        assert!(FlightFile::from_json(&other).unwrap_err().contains("ringway.flight.9"));
        assert!(FlightFile::from_json("{}").is_err() && FlightFile::from_json("[1,2").is_err());
    }

    #[test]
    fn spans_are_read_at_a_glance() {
        let told = |ms| span(Duration::from_millis(ms));
        assert_eq!([told(12), told(3149), told(125_000)], ["12 ms", "3.1 s", "2 min 5 s"]);
        assert_eq!(told(7_300_000), "2 h 1 min");
    }
}
