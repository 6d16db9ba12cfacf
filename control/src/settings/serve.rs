//! Settings of a task that serves graphs: how long sessions live that nobody uses.

use std::time::Duration;

use super::Values;

/// How long things live that nobody uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeSettings {
    /// `RINGWAY_SESSION_LEASE_MS`: of a session at its master; for ever without.
    pub session_lease: Option<Duration>,
    /// `RINGWAY_WORKER_SESSION_LEASE_MS`: of a session at a worker; for ever without.
    pub worker_session_lease: Option<Duration>,
}

impl Values<'_> {
    pub(super) fn serve_settings(&self) -> ServeSettings {
        let lease = |name| Some(self.millis(name)).filter(|lease| !lease.is_zero());
        ServeSettings {
            session_lease: lease("RINGWAY_SESSION_LEASE_MS"),
            worker_session_lease: lease("RINGWAY_WORKER_SESSION_LEASE_MS"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;

    #[test]
    fn nought_is_for_ever() {
        let serve = |pairs: &[(&str, &str)]| Settings::from_pairs(pairs.iter().copied()).unwrap().serve;
        let day = Duration::from_secs(24 * 3600);
        let usual = ServeSettings { session_lease: Some(day), worker_session_lease: Some(2 * day) };
        assert_eq!(serve(&[]), usual);
        let given = serve(&[("RINGWAY_SESSION_LEASE_MS", "0"), ("RINGWAY_WORKER_SESSION_LEASE_MS", "500")]);
        assert_eq!((given.session_lease, given.worker_session_lease), (None, Some(day / 172_800)));
    }
}
