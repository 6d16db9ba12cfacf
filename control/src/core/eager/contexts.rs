//! Contexts and their leases.

use std::collections::HashMap;
use std::time::Duration;

use super::error::EagerError;
use crate::core::time::Time;

/// Contexts of one task at once.
pub const CONTEXTS_LIMIT: usize = 1024;
/// The longest lease; a longer one is cut to it.
pub const LEASE_LIMIT: Duration = Duration::from_secs(7 * 24 * 3600);

/// The contexts of one task, each with what it holds.
#[derive(Debug)]
pub struct Contexts<T> {
    open: HashMap<u64, Context<T>>,
}

#[derive(Debug)]
struct Context<T> {
    holds: T,
    view: u64,
    lease: Option<Duration>,
    last_call: Time,
}

impl<T> Context<T> {
    fn ends(&self) -> Option<Time> {
        self.lease.map(|lease| self.last_call + lease)
    }
}

impl<T> Default for Contexts<T> {
    fn default() -> Self {
        Contexts { open: HashMap::new() }
    }
}

impl<T> Contexts<T> {
    /// Begins a context. `keep_alive_secs` of 0 or less means that it never expires. One of the same id at the same view
    /// or an earlier one is replaced, and what it held comes back.
    ///
    /// # Errors
    /// [`EagerError::ContextExists`] when one is there with a later view; [`EagerError::TooMany`].
    pub fn create(
        &mut self,
        now: Time,
        id: u64,
        view: u64,
        keep_alive_secs: i64,
        holds: T,
    ) -> Result<Option<T>, EagerError> {
        match self.open.get(&id) {
            Some(there) if view < there.view => return Err(EagerError::ContextExists { id }),
            None if self.open.len() >= CONTEXTS_LIMIT => {
                return Err(EagerError::TooMany { what: "contexts", limit: CONTEXTS_LIMIT });
            }
            _ => {}
        }
        let lease = u64::try_from(keep_alive_secs).ok().filter(|secs| *secs > 0);
        let lease = lease.map(|secs| Duration::from_secs(secs).min(LEASE_LIMIT));
        let replaced = self.open.insert(id, Context { holds, view, lease, last_call: now });
        Ok(replaced.map(|context| context.holds))
    }

    /// What a context holds, for a call of its client, which renews the lease.
    ///
    /// # Errors
    /// [`EagerError::NoContext`].
    pub fn call(&mut self, now: Time, id: u64) -> Result<&mut T, EagerError> {
        let context = self.open.get_mut(&id).ok_or(EagerError::NoContext { id })?;
        context.last_call = now;
        Ok(&mut context.holds)
    }

    /// The client lives. Its view of the cluster.
    ///
    /// # Errors
    /// [`EagerError::NoContext`].
    pub fn keep_alive(&mut self, now: Time, id: u64) -> Result<u64, EagerError> {
        self.call(now, id)?;
        Ok(self.open[&id].view)
    }

    /// The client's next view of the cluster (E3).
    ///
    /// # Errors
    /// [`EagerError::NoContext`]; [`EagerError::View`] when it is not the next one.
    pub fn update(&mut self, now: Time, id: u64, view: u64) -> Result<&mut T, EagerError> {
        let context = self.open.get_mut(&id).ok_or(EagerError::NoContext { id })?;
        context.last_call = now;
        if Some(view) != context.view.checked_add(1) {
            return Err(EagerError::View { id, current: context.view, given: view });
        }
        context.view = view;
        Ok(&mut context.holds)
    }

    /// Ends a context, unless the call is of an earlier view than the context's. What it held.
    pub fn close(&mut self, id: u64, view: u64) -> Option<T> {
        match self.open.get(&id) {
            Some(context) if view >= context.view => self.open.remove(&id).map(|context| context.holds),
            _ => None,
        }
    }

    /// Ends all contexts. What they held.
    pub fn close_all(&mut self) -> Vec<(u64, T)> {
        self.open.drain().map(|(id, context)| (id, context.holds)).collect()
    }

    /// Ends the contexts whose lease is over at `now`. What they held.
    pub fn expire(&mut self, now: Time) -> Vec<(u64, T)> {
        let over = |context: &Context<T>| context.ends().is_some_and(|end| end <= now);
        let ids: Vec<u64> = self.open.iter().filter(|(_, c)| over(c)).map(|(id, _)| *id).collect();
        ids.into_iter().filter_map(|id| Some((id, self.open.remove(&id)?.holds))).collect()
    }

    /// When the next lease ends, if no call comes before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.open.values().filter_map(Context::ends).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Time {
        Time::ZERO + Duration::from_secs(secs)
    }

    #[test]
    fn e2_a_lease_lasts_from_the_last_call() {
        let mut contexts = Contexts::default();
        contexts.create(at(0), 7, 0, 60, "first").unwrap();
        contexts.create(at(0), 8, 0, 0, "for ever").unwrap();
        assert_eq!(contexts.deadline(), Some(at(60)));
        assert_eq!(contexts.keep_alive(at(50), 7), Ok(0));
        assert!(contexts.expire(at(109)).is_empty());
        assert_eq!(contexts.expire(at(110)), [(7, "first")]);
        // E1: it is gone, and says so to whoever still calls.
        assert_eq!(contexts.call(at(111), 7), Err(EagerError::NoContext { id: 7 }));
        assert!(contexts.expire(at(1_000_000)).is_empty());
        assert_eq!(contexts.close(8, 0), Some("for ever"));
        assert_eq!(contexts.close(8, 0), None);
    }

    #[test]
    fn e3_views_go_on_by_one() {
        let mut contexts = Contexts::default();
        contexts.create(at(0), 7, 3, 60, ()).unwrap();
        assert_eq!(contexts.update(at(1), 7, 5), Err(EagerError::View { id: 7, current: 3, given: 5 }));
        contexts.update(at(1), 7, 4).unwrap();
        assert!(contexts.update(at(1), 7, 4).is_err());
        assert_eq!(contexts.close(7, 3), None, "a late call of an earlier view ends nothing");
        assert_eq!(contexts.create(at(2), 7, 3, 60, ()), Err(EagerError::ContextExists { id: 7 }));
        assert_eq!(contexts.create(at(2), 7, 4, 60, ()), Ok(Some(())));
    }

    #[test]
    fn e5_contexts_are_limited() {
        let mut contexts = Contexts::default();
        for id in 0..CONTEXTS_LIMIT as u64 {
            contexts.create(at(0), id, 0, 1, ()).unwrap();
        }
        let over = contexts.create(at(0), u64::MAX, 0, 1, ()).unwrap_err();
        assert!(matches!(over, EagerError::TooMany { .. }));
        assert_eq!(contexts.expire(at(1)).len(), CONTEXTS_LIMIT);
    }
}
