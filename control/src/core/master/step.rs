//! One step over several workers: who has answered, and which error is the first cause.
//!
//! - **T1** A step ends once, with success only when every part succeeded.
//! - **T2** A worker whose connection is lost is the cause, whatever others say of it; else an error that is nobody
//!   else's echo (cancelled, aborted, unavailable); else the first.
//! - **T3** After the first error a step ends within [`GRACE`], and after its deadline at once: what has not answered by
//!   then is cancelled.
//! - **T4** The step is cleaned up on every task that was told to run it and can be reached.

use std::time::Duration;

use super::error::MasterError;
use crate::core::coordination::errors::Code;
use crate::core::machine::Machine;
use crate::core::time::Time;

/// How long a step waits for a better cause after an error that may be an echo of another.
pub const GRACE: Duration = Duration::from_millis(300);

/// A worker's failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its code.
    pub code: Code,
    /// In words.
    pub message: String,
    /// No answer came: the connection was lost, or could not be made.
    pub lost: bool,
}

/// What happens to a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A part is through.
    Answered {
        /// Which: its place among the parts.
        part: usize,
        /// How.
        result: Result<(), Failure>,
    },
    /// The session ends.
    Cancelled(MasterError),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// End the call that runs the part; its worker aborts the step.
    Cancel(usize),
    /// Have the part's worker forget the step.
    CleanUp(usize),
    /// The step is over.
    Finish(Result<(), MasterError>),
}

/// The state of a step.
#[derive(Clone, Debug)]
pub struct Step {
    id: i64,
    began: Time,
    limit: Option<Duration>,
    parts: Vec<Part>,
    waiting: usize,
    failed: Option<Time>,
    over: bool,
}

#[derive(Clone, Debug)]
struct Part {
    task: String,
    result: Option<Result<(), Failure>>,
    /// In which order it answered.
    turn: usize,
}

impl Step {
    /// A step that was just handed to `tasks`.
    #[must_use]
    pub fn new(id: i64, tasks: impl IntoIterator<Item = String>, now: Time, limit: Option<Duration>) -> Step {
        let parts: Vec<Part> = tasks.into_iter().map(|task| Part { task, result: None, turn: 0 }).collect();
        let waiting = parts.len();
        Step { id, began: now, limit, parts, waiting, failed: None, over: false }
    }

    fn finish(&mut self, result: Result<(), MasterError>, out: &mut Vec<Effect>) {
        self.over = true;
        for (at, part) in self.parts.iter().enumerate() {
            if part.result.is_none() {
                out.push(Effect::Cancel(at));
            }
        }
        for (at, part) in self.parts.iter().enumerate() {
            if !matches!(&part.result, Some(Err(failure)) if failure.lost) {
                out.push(Effect::CleanUp(at));
            }
        }
        out.push(Effect::Finish(result));
    }

    /// The failure that explains the others (T2).
    fn cause(&self) -> Option<MasterError> {
        let rank = |failure: &Failure| match failure {
            Failure { lost: true, .. } => 0,
            failure => 1 + usize::from(Step::is_echo(failure)),
        };
        let failures = self.parts.iter().filter_map(|part| match &part.result {
            Some(Err(failure)) => Some((rank(failure), part.turn, part, failure)),
            _ => None,
        });
        let (_, _, part, failure) = failures.min_by_key(|(rank, turn, _, _)| (*rank, *turn))?;
        Some(MasterError::Worker {
            task: part.task.clone(),
            code: failure.code,
            message: failure.message.clone(),
        })
    }

    fn is_echo(failure: &Failure) -> bool {
        !failure.lost && matches!(failure.code, Code::Cancelled | Code::Aborted | Code::Unavailable)
    }
}

impl Machine for Step {
    type Event = Event;
    type Effect = Effect;

    fn on_event(&mut self, now: Time, event: Event, out: &mut Vec<Effect>) {
        if self.over {
            return;
        }
        match event {
            Event::Cancelled(why) => self.finish(Err(why), out),
            Event::Answered { part, result } => {
                let turn = self.parts.len() - self.waiting;
                let Some(answered) = self.parts.get_mut(part).filter(|part| part.result.is_none()) else {
                    return;
                };
                let may_be_echo = result.as_ref().err().map(Step::is_echo);
                (answered.result, answered.turn) = (Some(result), turn);
                self.waiting -= 1;
                if self.waiting == 0 || may_be_echo == Some(false) {
                    let cause = self.cause();
                    self.finish(cause.map_or(Ok(()), Err), out);
                } else if may_be_echo == Some(true) {
                    self.failed.get_or_insert(now);
                }
            }
        }
    }

    fn on_time(&mut self, now: Time, out: &mut Vec<Effect>) {
        if self.over || self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        let error = self.cause().unwrap_or_else(|| MasterError::Deadline {
            step: self.id,
            limit: self.limit.unwrap_or_default(),
            waiting: self
                .parts
                .iter()
                .filter(|part| part.result.is_none())
                .map(|part| part.task.clone())
                .collect(),
        });
        self.finish(Err(error), out);
    }

    fn deadline(&self) -> Option<Time> {
        let limit = self.limit.map(|limit| self.began + limit);
        let grace = self.failed.map(|failed| failed + GRACE);
        [limit, grace].into_iter().flatten().min().filter(|_| !self.over)
    }
}
