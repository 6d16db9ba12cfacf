//! Warnings about those who connect and are turned away: each source is complained about once in a while, so that it
//! cannot fill a log.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Each source is complained about once in so long.
pub const COMPLAINT_EVERY_MS: u64 = 60_000;
/// Sources that are remembered as complained about.
pub const MAX_COMPLAINTS: usize = 256;

/// The sources that were complained about of late.
#[derive(Debug, Default)]
pub struct Complaints(HashMap<IpAddr, Instant>);

impl Complaints {
    /// Whether a complaint about this source is due, which is then taken as made.
    pub fn due(&mut self, from: IpAddr, now: Instant) -> bool {
        let recent = Duration::from_millis(COMPLAINT_EVERY_MS);
        let is_recent = |at: &Instant| now.duration_since(*at) < recent;
        if self.0.get(&from).is_some_and(is_recent) {
            return false;
        }
        if self.0.len() >= MAX_COMPLAINTS {
            self.0.retain(|_, at| is_recent(at));
        }
        // A crowd of sources: those beyond it are passed over.
        self.0.len() < MAX_COMPLAINTS && self.0.insert(from, now).is_none_or(|at| !is_recent(&at))
    }
}

#[cfg(test)]
pub(crate) mod counted {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Counts what is warned of.
    #[derive(Clone, Default)]
    pub(crate) struct Warnings(Arc<AtomicUsize>);

    impl Warnings {
        pub(crate) fn count(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    impl tracing::Subscriber for Warnings {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() <= tracing::Level::WARN
        }

        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }

        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &tracing::span::Id) {}

        fn exit(&self, _: &tracing::span::Id) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_is_due_once_in_a_while_and_a_crowd_only_so_often() {
        let (mut complaints, start) = (Complaints::default(), Instant::now());
        let ip = |n: u32| IpAddr::from(n.to_be_bytes());
        let later = start + Duration::from_millis(COMPLAINT_EVERY_MS);
        assert!(complaints.due(ip(1), start) && !complaints.due(ip(1), start));
        assert!(complaints.due(ip(2), start) && !complaints.due(ip(1), later - Duration::from_millis(1)));
        assert!(complaints.due(ip(1), later) && !complaints.due(ip(1), later));
        let crowd =
            |complaints: &mut Complaints, now| (0..10_000).filter(|n| complaints.due(ip(*n), now)).count();
        let mut complaints = Complaints::default();
        assert_eq!(crowd(&mut complaints, start), MAX_COMPLAINTS);
        assert_eq!(crowd(&mut complaints, start), 0);
        assert_eq!(crowd(&mut complaints, later), MAX_COMPLAINTS);
        assert!(complaints.0.len() <= MAX_COMPLAINTS);
    }
}
