//! Who is at the other end.

use crate::transport::{Cause, Peer};
use std::fmt;

/// What errors call a task.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct PeerInfo {
    /// Its name, e.g. `/job:worker/replica:0/task:1` or `rank 3`.
    pub name: String,
    /// Its host.
    pub host: String,
    /// Its process, 0 where that is not known.
    pub pid: u32,
    /// Its life.
    pub incarnation: u64,
}

impl fmt::Display for PeerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.name.is_empty() { "a task" } else { &self.name })?;
        if !self.host.is_empty() {
            write!(f, " on {}", self.host)?;
        }
        if self.pid != 0 {
            write!(f, " (pid {})", self.pid)?;
        }
        Ok(())
    }
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// This task.
    Local,
    /// Another one.
    Peer(Peer),
}

/// What went over the data plane, to and from one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Values sent.
    pub values_sent: u64,
    /// Their payload bytes.
    pub bytes_sent: u64,
    /// Values received.
    pub values_received: u64,
    /// Their payload bytes.
    pub bytes_received: u64,
}

/// A task is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerLoss {
    /// Its number here.
    pub peer: Peer,
    /// Its name, host and life.
    pub who: PeerInfo,
    /// What was seen.
    pub cause: Cause,
}
