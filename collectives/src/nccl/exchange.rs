//! How the unique id of an NCCL communicator gets from its rank 0 to the others.

#![forbid(unsafe_code)]

use super::library::UniqueId;
use crate::engine::{CollectiveError, Communicator};
use std::time::{Duration, Instant};

/// How long one question for a key waits, so that the death of a rank is noticed in between.
const QUESTION: Duration = Duration::from_millis(200);

/// A place outside of the communicator where one rank leaves bytes for others: the control plane's key-value store.
pub trait Exchange: Send + Sync {
    /// Leaves `value` under `key`.
    ///
    /// # Errors
    /// In words.
    fn publish(&self, key: &str, value: &[u8]) -> Result<(), String>;

    /// Takes a copy of what is under `key`, waiting up to `wait` for it; `None` when nothing came.
    ///
    /// # Errors
    /// In words.
    fn fetch(&self, key: &str, wait: Duration) -> Result<Option<Vec<u8>>, String>;

    /// Removes `key`.
    fn forget(&self, key: &str);
}

/// The key of a communicator's id. Ids of groups are not used twice, and a restarted rank has another incarnation.
pub(super) fn key(control: &Communicator) -> String {
    let first = control.members().first().map_or(0, |member| member.incarnation);
    format!("nccl/{:08x}-{first:016x}", control.id())
}

/// Why the id did not come.
pub(super) enum Missed {
    /// The communicator died meanwhile.
    Dead(CollectiveError),
    /// In words.
    Why(String),
}

/// Waits for the id under `key`, for `limit` at most.
pub(super) fn fetch(
    exchange: &dyn Exchange,
    key: &str,
    control: &Communicator,
    limit: Duration,
) -> Result<UniqueId, Missed> {
    let since = Instant::now();
    loop {
        control.look().map_err(Missed::Dead)?;
        if let Some(bytes) = exchange.fetch(key, QUESTION).map_err(Missed::Why)? {
            let why = || format!("{} bytes under {key} are no unique id of NCCL", bytes.len());
            return UniqueId::from_bytes(&bytes).ok_or_else(|| Missed::Why(why()));
        }
        if since.elapsed() > limit {
            return Err(Missed::Why(format!("rank 0 has left no unique id under {key} within {limit:?}")));
        }
    }
}
