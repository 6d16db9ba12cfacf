//! Errors of the service, and the feed by which tasks hear of each other's.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use ringway_topology::TaskId;

use super::membership::Slot;
use super::request::{Effect, ReplyTo};

/// Longest error text that a caller may hand in, in bytes; the rest is cut off.
pub const ERROR_TEXT_LIMIT_BYTES: usize = 16 << 10;

/// The canonical codes of gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Code {
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Code {
    const ALL: [Code; 16] = [
        Code::Cancelled,
        Code::Unknown,
        Code::InvalidArgument,
        Code::DeadlineExceeded,
        Code::NotFound,
        Code::AlreadyExists,
        Code::PermissionDenied,
        Code::ResourceExhausted,
        Code::FailedPrecondition,
        Code::Aborted,
        Code::OutOfRange,
        Code::Unimplemented,
        Code::Internal,
        Code::Unavailable,
        Code::DataLoss,
        Code::Unauthenticated,
    ];

    /// The code with this number; [`Code::Unknown`] for a number that is none. 0, "no error", is none.
    #[must_use]
    pub fn from_number(number: i32) -> Code {
        Code::ALL.into_iter().find(|code| code.number() == number).unwrap_or(Code::Unknown)
    }

    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> i32 {
        self as i32
    }
}

/// Where an error comes from, for the details that travel with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The call itself.
    Call,
    /// A task that failed.
    Task {
        /// The task.
        task: TaskId,
        /// Its user reported it.
        reported: bool,
    },
    /// Nowhere: another process is to be asked.
    Elsewhere {
        /// Where it is, as "host:port", if that is known.
        leader: Option<String>,
    },
    /// A barrier that did not pass.
    Barrier {
        /// Its id.
        id: String,
        /// Which use of the id.
        counter: i64,
    },
}

/// A request that was not granted: why, in words that say what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of error.
    pub code: Code,
    /// In words.
    pub message: Arc<str>,
    /// Where it comes from.
    pub origin: Origin,
}

impl Refusal {
    /// An error of the call itself.
    pub fn new(code: Code, message: impl fmt::Display) -> Refusal {
        Refusal { code, message: message.to_string().into(), origin: Origin::Call }
    }

    /// The same, said to come from elsewhere.
    #[must_use]
    pub fn from(self, origin: Origin) -> Refusal {
        Refusal { origin, ..self }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// An error that a task reports of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskError {
    /// The kind of error.
    pub code: Code,
    /// In the task's own words.
    pub message: String,
}

/// Callers that wait for the error of any task.
#[derive(Debug, Default)]
pub(super) struct ErrorFeed {
    waiting: BTreeMap<ReplyTo, Slot>,
}

impl ErrorFeed {
    /// A caller of `slot` waits.
    pub(super) fn wait(&mut self, slot: Slot, to: ReplyTo) {
        self.waiting.insert(to, slot);
    }

    /// The caller has gone. Its task, if no other call of it waits.
    pub(super) fn forget(&mut self, to: ReplyTo) -> Option<Slot> {
        let slot = self.waiting.remove(&to)?;
        // A caller that asked again meanwhile is still there.
        self.waiting.values().all(|&waiting| waiting != slot).then_some(slot)
    }

    /// A task failed: every caller is told.
    pub(super) fn tell_all(&mut self, error: &Refusal, out: &mut Vec<Effect>) {
        for (to, _) in std::mem::take(&mut self.waiting) {
            out.push(Effect::Reply { to, result: Err(error.clone()) });
        }
    }

    /// The task left in order: its own callers have nothing to wait for.
    pub(super) fn leave(&mut self, slot: Slot, out: &mut Vec<Effect>) {
        let error = Refusal::new(Code::Cancelled, "the task has left the cluster");
        self.waiting.retain(|&to, &mut waiting| {
            if waiting == slot {
                out.push(Effect::Reply { to, result: Err(error.clone()) });
            }
            waiting != slot
        });
    }
}

/// At most this many names are listed in a message; the rest are counted.
const NAMED: usize = 8;

/// "a, b and 3 more".
pub(super) fn list<T: fmt::Display>(names: impl IntoIterator<Item = T>) -> String {
    let mut names = names.into_iter();
    let shown: Vec<String> = names.by_ref().take(NAMED).map(|name| name.to_string()).collect();
    match names.count() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Text from outside, cut to [`ERROR_TEXT_LIMIT_BYTES`].
pub(super) fn clip(mut text: String) -> String {
    if text.len() > ERROR_TEXT_LIMIT_BYTES {
        let whole = (0..=ERROR_TEXT_LIMIT_BYTES).rev().find(|&end| text.is_char_boundary(end));
        text.truncate(whole.unwrap_or(0));
    }
    text
}
