//! Why a peer is reached the way it is: a record per peer, so that no fallback is silent.

use std::fmt;

/// One transport that is not used with a peer, and why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The transport's name.
    pub transport: String,
    /// Why not.
    pub why: String,
}

/// How one peer is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Name of the transport in use; `None` when no way was found.
    pub chosen: Option<String>,
    /// Those that were preferred to it, or else considered, in that order.
    pub rejected: Vec<Rejected>,
}

impl Record {
    /// Adds a transport that is not used.
    pub fn reject(&mut self, transport: impl Into<String>, why: impl Into<String>) {
        self.rejected.push(Rejected { transport: transport.into(), why: why.into() });
    }
}

impl fmt::Display for Record {
    /// One line: `uring (not rdma: the peer does not offer it; not shm: another host)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.chosen.as_deref().unwrap_or("no transport"))?;
        for (i, Rejected { transport, why }) in self.rejected.iter().enumerate() {
            write!(f, "{}not {transport}: {why}", if i == 0 { " (" } else { "; " })?;
        }
        f.write_str(if self.rejected.is_empty() { "" } else { ")" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_one_line() {
        let mut record = Record::default();
        assert_eq!(record.to_string(), "no transport");
        record.chosen = Some("uring".to_owned());
        assert_eq!(record.to_string(), "uring");
        record.reject("shm", "another host");
        record.reject("rdma", "the peer does not offer it");
        assert_eq!(record.to_string(), "uring (not shm: another host; not rdma: the peer does not offer it)");
    }
}
