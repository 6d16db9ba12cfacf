//! Names: of ranks in a communicator, of hosts, and of tasks in a cluster.
//!
//! Each is a type of its own, so that a rank of the world is never passed where a rank of the host is meant.

use std::fmt;
use std::str::FromStr;

/// Longest job or host name accepted, in bytes. Names come from other processes, so they are bounded.
pub const NAME_LIMIT_BYTES: usize = 255;

/// Position of a process in a communicator, from 0 to world size - 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u32);

impl Rank {
    /// The rank as an index into a slice with one element per rank.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<u32> for Rank {
    fn from(rank: u32) -> Self {
        Rank(rank)
    }
}

/// Position of a process among those of its job on the same host, from 0 up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalRank(pub u32);

impl LocalRank {
    /// The local rank as an index into a slice with one element per local rank.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for LocalRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<u32> for LocalRank {
    fn from(rank: u32) -> Self {
        LocalRank(rank)
    }
}

/// One life of a task: drawn at random at start, so that a restarted process is never taken for the old one.
///
/// Zero is reserved for "not known".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A machine: its name for people, and its kernel's boot id for deciding whether two processes share memory.
///
/// Two containers on one machine have different names and the same boot id; two machines cloned from one image
/// may have the same name and never the same boot id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId {
    name: String,
    boot: String,
}

impl HostId {
    /// A host called `name` whose kernel has the boot id `boot` (empty where there is none).
    ///
    /// # Errors
    /// When `name` is empty, or either is over [`NAME_LIMIT_BYTES`] or holds characters other than letters,
    /// digits, `.`, `_` and `-` (and `:` in the name, for numeric IPv6 names).
    pub fn new(name: impl Into<String>, boot: impl Into<String>) -> Result<Self, IdError> {
        let (name, boot) = (name.into(), boot.into());
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let good = !name.is_empty()
            && name.len() <= NAME_LIMIT_BYTES
            && boot.len() <= NAME_LIMIT_BYTES
            && name.chars().all(|c| plain(c) || c == ':')
            && boot.chars().all(plain);
        if good {
            Ok(HostId { name, boot })
        } else {
            Err(IdError::Host { text: clip(&format!("{name}@{boot}")) })
        }
    }

    /// The name for people, as `hostname` prints it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The boot id of the host's kernel; empty where there is none.
    #[must_use]
    pub fn boot(&self) -> &str {
        &self.boot
    }

    /// Whether both run on the same kernel, so that memory can be shared between them.
    #[must_use]
    pub fn same_kernel(&self, other: &HostId) -> bool {
        if self.boot.is_empty() || other.boot.is_empty() { self == other } else { self.boot == other.boot }
    }

    /// The text that [`str::parse`] reads back: `name@boot`.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("{}@{}", self.name, self.boot)
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl FromStr for HostId {
    type Err = IdError;

    /// Reads `name@boot`, or a name alone.
    fn from_str(text: &str) -> Result<Self, IdError> {
        let (name, boot) = text.split_once('@').unwrap_or((text, ""));
        HostId::new(name, boot)
    }
}

/// A task of a cluster: a job's name and the index in it, as in `/job:worker/task:3`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    job: String,
    index: u32,
}

impl TaskId {
    /// Task `index` of `job`.
    ///
    /// # Errors
    /// When `job` does not start with a letter, holds anything but ASCII letters, digits, `_`, `-` and `.`, or
    /// is over [`NAME_LIMIT_BYTES`].
    pub fn new(job: impl Into<String>, index: u32) -> Result<Self, IdError> {
        let job = job.into();
        let good = job.len() <= NAME_LIMIT_BYTES
            && job.starts_with(|c: char| c.is_ascii_alphabetic())
            && job.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
        if good { Ok(TaskId { job, index }) } else { Err(IdError::Job { job: clip(&job) }) }
    }

    /// The job's name.
    #[must_use]
    pub fn job(&self) -> &str {
        &self.job
    }

    /// The index in the job, from 0 up.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.index
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/job:{}/task:{}", self.job, self.index)
    }
}

impl FromStr for TaskId {
    type Err = IdError;

    /// Reads `/job:NAME/task:INDEX` and `/job:NAME/replica:0/task:INDEX`, the two forms that TensorFlow writes.
    /// Only replica 0 exists.
    fn from_str(text: &str) -> Result<Self, IdError> {
        let bad = || IdError::Task { text: clip(text) };
        let rest = text.strip_prefix("/job:").ok_or_else(bad)?;
        let (job, rest) = rest.split_once('/').ok_or_else(bad)?;
        let index = rest.strip_prefix("replica:0/").unwrap_or(rest).strip_prefix("task:").ok_or_else(bad)?;
        if !index.bytes().all(|b| b.is_ascii_digit()) {
            return Err(bad());
        }
        TaskId::new(job, index.parse().map_err(|_| bad())?)
    }
}

/// A name that cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The job's name has a wrong form.
    #[error(
        "job name {job:?} is not usable: start with a letter; use letters, digits, '_', '-' and '.' only, at most 255 bytes"
    )]
    Job {
        /// The name given, cut to a printable length.
        job: String,
    },
    /// The task is not written as a task.
    #[error("{text:?} is not a task: write it as /job:NAME/task:INDEX, for example /job:worker/task:0")]
    Task {
        /// The text given, cut to a printable length.
        text: String,
    },
    /// The host is not written as a host.
    #[error(
        "{text:?} is not a host: give its name of letters, digits, '.', '_' and '-', at most 255 bytes, and its boot id after '@'"
    )]
    Host {
        /// The text given, cut to a printable length.
        text: String,
    },
}

/// The first characters of a text of unknown origin and length, for an error message.
pub(crate) fn clip(text: &str) -> String {
    const SHOWN_CHARS: usize = 80;
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_read_back_as_written() {
        for text in ["/job:worker/task:0", "/job:jax_worker/task:4294967295", "/job:a-b.c/task:7"] {
            assert_eq!(text.parse::<TaskId>().unwrap().to_string(), text);
        }
        let task: TaskId = "/job:ps/replica:0/task:2".parse().unwrap();
        assert_eq!((task.job(), task.index()), ("ps", 2));
    }

    #[test]
    fn what_is_no_task_is_refused_and_shown() {
        for text in [
            "",
            "/job:",
            "/job:/task:0",
            "/job:w",
            "/job:w/task:",
            "/job:w/task:-1",
            "/job:w/task:+1",
            "/job:w/task:4294967296",
            "/job:w/replica:1/task:0",
            "/job:1w/task:0",
            "/job:w w/task:0",
            "job:w/task:0",
            "/job:w/task:0/",
        ] {
            assert!(text.parse::<TaskId>().is_err(), "{text:?} was taken for a task");
        }
        let long = "x".repeat(100_000);
        let error = long.parse::<TaskId>().unwrap_err().to_string();
        assert!(error.len() < 300, "the message repeats a hostile name at full length");
    }

    #[test]
    fn containers_of_one_machine_share_a_kernel_and_clones_do_not() {
        let (a, b) = (HostId::new("a", "boot-1").unwrap(), HostId::new("b", "boot-1").unwrap());
        let clone = HostId::new("a", "boot-2").unwrap();
        assert!(a.same_kernel(&b) && !a.same_kernel(&clone));
        let (nameless_a, nameless_b) = (HostId::new("a", "").unwrap(), HostId::new("b", "").unwrap());
        assert!(nameless_a.same_kernel(&nameless_a) && !nameless_a.same_kernel(&nameless_b));
        assert!(!a.same_kernel(&nameless_a), "an unknown boot id proves nothing");
        assert_eq!(a.to_text().parse::<HostId>().unwrap(), a);
        assert_eq!(nameless_a.to_text().parse::<HostId>().unwrap(), nameless_a);
    }

    #[test]
    fn hosts_with_unusable_names_are_refused() {
        for (name, boot) in [("", "b"), ("a b", ""), ("a", "b@c"), ("a\n", "")] {
            assert!(HostId::new(name, boot).is_err(), "{name:?} {boot:?}");
        }
    }
}
