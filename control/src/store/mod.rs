//! Where the coordination service keeps what must outlive its process, and who of several candidates may change it.
//!
//! [`Store`] is the small part of etcd that this needs: leases, a key of leadership that is put if it is not there, changes
//! that take effect only while that key is, and a watch. [`mod@file`] is one for a single process, [`etcd`] one for any number.
//!
//! - T1. A commit that returned `Ok` survives the death of the process, and of the machine where the store says so.
//! - T2. A commit of a term that is over changes nothing, and says so ([`StoreError::Fenced`]).
//! - T3. Every call ends: with an answer, or an error within the store's own limit for one call. A file has no such limit:
//!   while its disk does not answer, a commit waits.
#![forbid(unsafe_code)]

pub mod etcd;
pub mod file;

mod record;

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

pub use crate::core::coordination::memory::Write;
pub use crate::core::coordination::request::Value;
pub use crate::core::election::{Claim, Lease, Term};

/// A key of the service's state, and what is remembered under it.
pub type Entry = (String, Value);

/// Why a store does not do what is asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The state file cannot be opened or written.
    #[error("cannot {what} the state file {}: {source}; check the disk, and that this user may write there", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Another process has the file.
    #[error("the state file {} is in use by another process: end that one first, or give another file", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file is of another kind.
    #[error("{} is no state file of ringway: give another, or move it away", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file was damaged where it had been written before.
    #[error(
        "the state file {} is damaged at byte {at} ({why}): put a copy in its place, or go on with what comes before: \
         truncate -s {at} '{}'", path.display(), path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the damaged record begins.
        at: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The store was not reached, or did not answer in time.
    #[error(
        "etcd at {endpoints} does not {what}: {why}; check that it runs and has a majority of its members"
    )]
    Unreachable {
        /// All its members that were given.
        endpoints: String,
        /// What was tried.
        what: &'static str,
        /// What was seen at the last of them that was tried.
        why: String,
    },
    /// The store said no.
    #[error("etcd at {endpoints} refuses to {what}: {why}")]
    Refused {
        /// All its members that were given.
        endpoints: String,
        /// What was tried.
        what: &'static str,
        /// Its words.
        why: String,
    },
    /// Another term has begun.
    #[error("the leadership was lost: another candidate leads, or the lease has ended")]
    Fenced,
    /// What is to be remembered is too large for the store.
    #[error(
        "{key:?} with {bytes} bytes is over the store's limit of {limit_bytes}: keep large values elsewhere"
    )]
    TooLarge {
        /// The key.
        key: String,
        /// Its size with its value.
        bytes: usize,
        /// What the store takes.
        limit_bytes: usize,
    },
    /// The store's own thread has ended.
    #[error("the state file is closed")]
    Closed,
}

/// A store, seen from one candidate. Clones are handles of the same.
pub trait Store: Clone + Send + Sync + 'static {
    /// Asks for a lease: it, and its span from when this was called.
    fn grant(&self) -> impl Future<Output = Result<(Lease, Duration), StoreError>> + Send;

    /// Renews a lease: its span from when this was called, or `None` when it is over.
    fn renew(&self, lease: Lease) -> impl Future<Output = Result<Option<Duration>, StoreError>> + Send;

    /// Ends a lease, and a leadership that is bound to it.
    fn revoke(&self, lease: Lease) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Puts `name` under the key of leadership, bound to the lease, if the key is not there.
    fn claim(&self, lease: Lease, name: &str) -> impl Future<Output = Result<Claim, StoreError>> + Send;

    /// Returns when the leadership has changed after this revision.
    fn changed(&self, revision: i64) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Everything that is remembered.
    fn load(&self) -> impl Future<Output = Result<Vec<Entry>, StoreError>> + Send;

    /// Remembers these changes, batch after batch: each batch takes effect as a whole, and none after one that did not.
    fn commit(
        &self,
        term: Term,
        batches: Vec<Vec<Write>>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Bytes of a change: its key and its value.
fn size(write: &Write) -> usize {
    write.key.len() + write.value.as_ref().map_or(0, |value| value.len())
}

/// Changes one after the other, of which the last to each key counts.
fn latest(writes: impl IntoIterator<Item = Write>) -> Vec<Write> {
    let mut found = std::collections::BTreeMap::new();
    writes.into_iter().for_each(|write| drop(found.insert(write.key, write.value)));
    found.into_iter().map(|(key, value)| Write { key, value }).collect()
}
