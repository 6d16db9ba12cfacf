//! How a thread waits for a transport: a short spin, then sleep.
//!
//! Measured on two cores over TCP (one 8-byte ping, microseconds): blocking 24, spinning for 20 us first 4.2; with more
//! ranks than cores, spinning 3950, blocking at once 6.5. So a rank spins for 20 us while every local rank has a core,
//! and not at all otherwise.
//!
//! - **W1** A wait ends when there are events, when the sleeper was roused by [`Waker::wake`](crate::transport::Waker),
//!   or at its deadline, whichever is first; a wake is never slept through (T10).
//! - **W2** Once the spin is over, a thread without anything to do makes no more than one round per wake of the fd or
//!   timer of the transport.
//! - **W3** Waiting allocates nothing and makes no system call but `ppoll`.

use crate::transport::{Event, Transport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How long a thread spins, in microseconds, while every local rank has a core of its own.
pub const SPIN_US: u32 = 20;
/// First and longest nap, in microseconds, on a transport that cannot be slept on. Naps double in between: at the
/// longest, a thread uses well under 1 % of a core.
const NAP_US: (u64, u64) = (50, 5_000);

/// How long to spin before sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SpinPolicy {
    /// [`SPIN_US`] while the host's ranks are no more than its cores, else 0.
    #[default]
    Auto,
    /// This many microseconds.
    Micros(u32),
}

impl SpinPolicy {
    /// The spin in microseconds for `local_ranks` ranks on this host with `cores` that this process may use.
    pub fn spin_us(self, local_ranks: usize, cores: usize) -> u32 {
        match self {
            SpinPolicy::Micros(us) => us,
            SpinPolicy::Auto if local_ranks <= cores => SPIN_US,
            SpinPolicy::Auto => 0,
        }
    }

    /// The spin for `local_ranks` ranks on this host. Counts the cores in this thread's affinity mask and cgroup quota.
    pub fn here(self, local_ranks: usize) -> Duration {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Duration::from_micros(self.spin_us(local_ranks, cores).into())
    }
}

/// Why a wait ended. A caller with flags of its own looks at them after every wait, whatever ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// There are new events.
    Events,
    /// Somebody may have called the waker, or the transport asked for another look; there are no new events.
    Woken,
    /// The deadline has passed without events.
    TimedOut,
}

/// Waits for a transport, on its caller's thread.
#[derive(Clone, Debug)]
pub struct Waiter {
    spin: Duration,
}

impl Waiter {
    /// A waiter that spins for `spin_us` microseconds without progress before it sleeps.
    pub fn new(spin_us: u32) -> Waiter {
        Waiter { spin: Duration::from_micros(spin_us.into()) }
    }

    /// Polls `transport`, and sleeps when there is nothing to do, until W1. New events are appended to `events`.
    pub fn wait<T: Transport + ?Sized>(
        &self,
        transport: &mut T,
        events: &mut Vec<Event>,
        deadline: Instant,
    ) -> WaitOutcome {
        let before = events.len();
        let mut idle_since = None;
        let mut nap_us = NAP_US.0;
        let mut asked = false;
        loop {
            let moved = transport.poll(events);
            if events.len() > before {
                return WaitOutcome::Events;
            }
            if asked {
                return WaitOutcome::Woken;
            }
            let now = Instant::now();
            if now >= deadline {
                return WaitOutcome::TimedOut;
            }
            if moved {
                (idle_since, nap_us) = (None, NAP_US.0);
                continue;
            }
            let since = *idle_since.get_or_insert(now);
            if now.duration_since(since) < self.spin {
                std::hint::spin_loop();
            } else if transport.prepare_sleep() {
                sleep(transport, deadline.saturating_duration_since(now), &mut nap_us);
            } else {
                // A wake that came with it is taken now (T10), so this wait must end.
                asked = true;
            }
        }
    }
}

/// Until the transport has something to say, its timer, or `longest`.
fn sleep<T: Transport + ?Sized>(transport: &T, longest: Duration, nap_us: &mut u64) {
    let timer = transport.next_timer_ms().map_or(longest, Duration::from_millis);
    let longest = longest.min(timer);
    match transport.sleep_fd() {
        Some(fd) => sleep_on(Some(fd), longest),
        None => {
            sleep_on(None, longest.min(Duration::from_micros(*nap_us)));
            *nap_us = (*nap_us * 2).min(NAP_US.1);
        }
    }
}

/// Sleeps until `fd` is readable, for `longest` at most. An interrupted sleep is a short one, and a refused one shows as
/// polling: nothing to report either way.
pub fn sleep_on(fd: Option<BorrowedFd<'_>>, longest: Duration) {
    let timeout = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: longest.subsec_nanos().into() };
    let _ = match fd {
        Some(fd) => poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout)),
        None => poll(&mut [], Some(&timeout)),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{Hub, LoopbackConfig, Note, Peer, Trace};

    const FAR: Duration = Duration::from_secs(30);

    fn pair() -> (crate::transport::Loopback, crate::transport::Loopback) {
        let mut group = Hub::new(LoopbackConfig::default()).group(2).unwrap();
        let b = group.pop().unwrap();
        (group.pop().unwrap(), b)
    }

    #[test]
    fn spins_only_while_ranks_have_cores() {
        assert_eq!(SpinPolicy::Auto.spin_us(2, 2), SPIN_US);
        assert_eq!(SpinPolicy::Auto.spin_us(3, 2), 0);
        assert_eq!(SpinPolicy::Micros(7).spin_us(3, 2), 7);
    }

    #[test]
    fn ends_with_events_from_a_sleeping_or_spinning_wait() {
        // W1
        for spin_us in [0, 20, 5000] {
            let (mut a, b) = pair();
            let mut events = Vec::new();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let mut b = b;
                    b.note(Peer(0), &Note::new(b"x").unwrap()).unwrap();
                    b.leave(0);
                });
                let waiter = Waiter::new(spin_us);
                let deadline = Instant::now() + FAR;
                while events.len() < 2 {
                    assert_ne!(waiter.wait(&mut a, &mut events, deadline), WaitOutcome::TimedOut, "W1");
                }
            });
            assert!(matches!(events[..], [Event::Note { .. }, Event::Left { .. }]), "{events:?}");
        }
    }

    #[test]
    fn a_waiting_thread_does_next_to_nothing() {
        // W2: without a spin, waiting is a poll, a sleep until the deadline, and a last poll.
        let (a, _b) = pair();
        let (mut a, mut events) = (Trace::new(a, 16), Vec::new());
        while Waiter::new(0).wait(&mut a, &mut events, Instant::now()) == WaitOutcome::Woken {}
        let before = a.snapshot().polls;
        let deadline = Instant::now() + Duration::from_millis(100);
        assert_eq!(Waiter::new(0).wait(&mut a, &mut events, deadline), WaitOutcome::TimedOut);
        let polls = a.snapshot().polls - before;
        assert!(polls <= 4, "{polls} polls");
    }

    #[test]
    fn a_wake_ends_the_wait_once() {
        // W1, T10: raised before, and raised from another thread while asleep.
        let (mut a, _b) = pair();
        let (waiter, mut events) = (Waiter::new(0), Vec::new());
        // Being introduced may ask for a look.
        while waiter.wait(&mut a, &mut events, Instant::now()) == WaitOutcome::Woken {}
        let waker = crate::transport::Transport::waker(&a);
        waker.wake();
        assert!(!a.poll(&mut events), "polling takes no wake");
        assert_eq!(waiter.wait(&mut a, &mut events, Instant::now() + FAR), WaitOutcome::Woken);
        std::thread::scope(|scope| {
            scope.spawn(|| waker.wake());
            assert_eq!(waiter.wait(&mut a, &mut events, Instant::now() + FAR), WaitOutcome::Woken);
        });
        assert_eq!(waiter.wait(&mut a, &mut events, Instant::now()), WaitOutcome::TimedOut);
        assert!(events.is_empty());
    }
}
