//! Things that end when nobody uses them: sessions, by handle.
//!
//! - **L1** What is in use never ends by its lease; unused, it ends once its lease has passed.

use std::collections::HashMap;
use std::time::Duration;

use super::error::MasterError;
use crate::core::time::Time;

/// Sessions that a master has at once.
pub const SESSIONS_LIMIT: usize = 4096;

/// Values by handle, each with when it was last used.
#[derive(Debug)]
pub struct Leases<T> {
    lease: Option<Duration>,
    all: HashMap<String, Leased<T>>,
}

#[derive(Debug)]
struct Leased<T> {
    value: T,
    used: Time,
    users: u32,
}

impl<T> Leases<T> {
    /// Empty. `None`: nothing ends by itself.
    #[must_use]
    pub fn new(lease: Option<Duration>) -> Self {
        Leases { lease, all: HashMap::new() }
    }

    /// Adds a value. One of the same handle is replaced.
    ///
    /// # Errors
    /// [`MasterError::TooMany`] past [`SESSIONS_LIMIT`].
    pub fn insert(&mut self, now: Time, handle: String, value: T) -> Result<(), MasterError> {
        if self.all.len() >= SESSIONS_LIMIT {
            return Err(MasterError::TooMany { what: "sessions", limit: SESSIONS_LIMIT });
        }
        self.all.insert(handle, Leased { value, used: now, users: 0 });
        Ok(())
    }

    /// The value, which is in use until [`Leases::release`].
    pub fn take(&mut self, now: Time, handle: &str) -> Option<&T> {
        let leased = self.all.get_mut(handle)?;
        leased.used = now;
        leased.users += 1;
        Some(&leased.value)
    }

    /// A use has ended.
    pub fn release(&mut self, now: Time, handle: &str) {
        if let Some(leased) = self.all.get_mut(handle) {
            leased.used = now;
            leased.users = leased.users.saturating_sub(1);
        }
    }

    /// Takes a value out.
    pub fn remove(&mut self, handle: &str) -> Option<T> {
        self.all.remove(handle).map(|leased| leased.value)
    }

    /// Takes all out.
    pub fn drain(&mut self) -> Vec<(String, T)> {
        self.all.drain().map(|(handle, leased)| (handle, leased.value)).collect()
    }

    /// Takes out what has ended by `now`, in the order of handles.
    pub fn expire(&mut self, now: Time) -> Vec<(String, T)> {
        let Some(lease) = self.lease else { return Vec::new() };
        let ended = |leased: &Leased<T>| leased.users == 0 && now >= leased.used + lease;
        let mut handles: Vec<String> =
            self.all.iter().filter(|(_, leased)| ended(leased)).map(|(handle, _)| handle.clone()).collect();
        handles.sort_unstable();
        handles.into_iter().filter_map(|handle| self.remove(&handle).map(|value| (handle, value))).collect()
    }

    /// When the next one ends, if nothing happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let lease = self.lease?;
        self.all.values().filter(|leased| leased.users == 0).map(|leased| leased.used + lease).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn l1_unused_ends_and_used_stays() {
        let mut leases = Leases::new(Some(Duration::from_secs(10)));
        leases.insert(at(0), "a".to_owned(), 1).unwrap();
        leases.insert(at(0), "b".to_owned(), 2).unwrap();
        assert_eq!(leases.take(at(5), "a"), Some(&1));
        assert_eq!(leases.deadline(), Some(at(10)));
        assert!(leases.expire(at(9)).is_empty());
        assert_eq!(leases.expire(at(30)), [("b".to_owned(), 2)]);
        assert_eq!(leases.deadline(), None);
        leases.release(at(40), "a");
        assert!(leases.expire(at(49)).is_empty());
        assert_eq!(leases.expire(at(50)), [("a".to_owned(), 1)]);
        assert_eq!(leases.take(at(51), "a"), None);
    }

    #[test]
    fn without_a_lease_nothing_ends() {
        let mut leases = Leases::new(None);
        leases.insert(at(0), "a".to_owned(), 1).unwrap();
        assert_eq!(leases.deadline(), None);
        assert!(leases.expire(Time(u64::MAX)).is_empty());
    }
}
