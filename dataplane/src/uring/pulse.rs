//! Noticing a link that is down while data is on its way.
//!
//! The kernel's keepalive covers idle connections ([`device`](super::device)). With data outstanding it only
//! retransmits, for a quarter of an hour. `TCP_USER_TIMEOUT` would end that sooner, but it also ends connections to a
//! peer that is alive and slow to read (its window stays closed), and a straggler is not a failure. So we look
//! ourselves: an acknowledgement of any kind, of data or of a window probe, is a sign of life; a peer whose process is
//! stopped still gives it, a dead link does not.
#![forbid(unsafe_code)]

use super::driver::{self, Health};
use super::links::Way;
use super::transport::TcpTransport;
use crate::transport::{Cause, CauseKind};
use std::time::{Duration, Instant};

/// Between two looks at busy connections.
pub const PULSE_MS: u64 = 5_000;
/// Without any acknowledgement for so long, while the kernel asks for one, the link counts as down.
pub const DEAD_LINK_MS: u32 = 20_000;
/// Retransmissions or probes that went unanswered in a row by then.
pub const LEAST_UNANSWERED: u32 = 3;

fn is_dead(health: &Health) -> bool {
    health.silent_ms >= DEAD_LINK_MS && health.unanswered >= LEAST_UNANSWERED
}

impl TcpTransport {
    /// When to look next, if any connection is busy.
    pub(super) fn pulse_due(&self) -> Option<Instant> {
        (!self.active.is_empty()).then(|| self.felt_at + Duration::from_millis(PULSE_MS))
    }

    /// Looks at busy connections from time to time, and ends those over a dead link.
    pub(super) fn feel_pulse(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.felt_at) < Duration::from_millis(PULSE_MS) {
            return;
        }
        self.felt_at = now;
        for i in 0..self.active.len() {
            let at = self.active[i];
            let Some(Way::Up(connection)) = self.links[at as usize].channel.as_ref().map(|c| &c.way) else {
                continue;
            };
            if let Some(health) = driver::health(connection.fd()).filter(is_dead) {
                let evidence = format!(
                    "no sign of life from {} for {} ms, {} segments unacknowledged after {} attempts: the link is down",
                    connection.remote, health.silent_ms, health.unacknowledged, health.unanswered
                );
                self.lose(at, Cause::new(CauseKind::Reset, evidence));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_straggler_is_not_dead() {
        let health = |unanswered, silent_ms| Health { unacknowledged: 1, unanswered, silent_ms };
        // Answered probes of a closed window, a long pause between two of them, and a short outage.
        assert!(!is_dead(&health(0, 60_000)) && !is_dead(&health(1, 119_000)) && !is_dead(&health(6, 9_000)));
        assert!(is_dead(&health(6, 25_000)));
    }

    #[test]
    fn the_kernel_tells_of_a_live_connection() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let health = driver::health(std::os::fd::AsFd::as_fd(&stream)).unwrap();
        assert!(!is_dead(&health), "{health:?}");
    }
}
