//! How a thread waits for a transport: it looks again and again for a moment, then gives way between looks to whoever
//! else wants its core, then sleeps.
//!
//! Measured on two cores over TCP. One 8-byte ping takes 24 us where both sides sleep at once, and 4.2 us where they
//! look for 20 us first. With more ranks than cores the core that a rank looks from is the one that its peer needs: such
//! a ping takes 3950 us. Giving way between looks costs nothing where nobody else wants the core, hands it over without a
//! sleep and a wake-up where a peer does, and cut an all-reduce of 64 KiB among 4 ranks on 2 cores from 147 to 120 us.
//!
//! How long it polls follows the waits before ([`Patience`]): where what is waited for has come soon after the sleep began, the
//! sleep and the wake-up cost more than the polling would have. Soft-RoCE between two cores of an emulated processor takes
//! 20 us a trip: an all-reduce of 8 B took 73 us with ranks that sleep after 20 us and 56 us with such as poll on.
//!
//! - **W1** A wait ends when there are events, when the sleeper was roused by [`Waker::wake`](crate::transport::Waker),
//!   or at its deadline, whichever is first; a wake is never slept through (T10).
//! - **W2** Once the spin is over, a thread without anything to do makes no more than one round per wake of the fd or
//!   timer of the transport.
//! - **W3** Waiting allocates nothing and makes no system call but `ppoll` and `sched_yield`.
//! - **W4** A thread polls for longer than its setting only if it was not set, while every local rank has a core of its own,
//!   and after a wait that ended within [`LONGEST_SPIN_US`]; after a longer one it does not. So polling for nothing costs no more
//!   than that for each such wait.

use crate::transport::{Event, Transport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How long a thread looks without giving way, in microseconds, while every local rank has a core of its own: what an
/// exchange of small messages takes.
pub const LOOK_US: u32 = 4;
/// After how long a thread sleeps, in microseconds, while every local rank has a core of its own.
pub const SPIN_US: u32 = 20;
/// After how long a thread sleeps, in microseconds, when ranks share cores. Measured with 4 ranks on 2 cores: from 25 to
/// 200 us all-reduces of 64 KiB to 8 MiB take the same while the cores share a cache. While they do not, who polls is in
/// the way of who copies: 8 MiB took 11.8 ms by sleeping at once, 12.9 by 40 us, 15 by 100 us.
pub const SHARED_SPIN_US: u32 = 25;
/// Longest time that a thread polls before it sleeps, in microseconds, after waits that were short (W4).
pub const LONGEST_SPIN_US: u32 = 200;
/// Longest time that a rank gives way at once for what small calls wait for where ranks share cores, in microseconds, after
/// calls that took no longer than half of that. A rank that sleeps costs its peers a wake-up, so that those sleep too once it
/// takes more than [`SHARED_SPIN_US`]: calls that began so would go on so.
pub const LONGEST_AT_ONCE_US: u32 = 1000;
/// First and longest nap, in microseconds, on a transport that cannot be slept on. Naps double in between: at the
/// longest, a thread uses well under 1 % of a core.
const NAP_US: (u64, u64) = (50, 5_000);

/// How long to wait before sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SpinPolicy {
    /// [`LOOK_US`] and [`SPIN_US`] while the host's ranks are no more than its cores, else 0 and [`SHARED_SPIN_US`].
    #[default]
    Auto,
    /// Look for this many microseconds without giving way, then sleep.
    Micros(u32),
}

impl SpinPolicy {
    /// The spin for `local_ranks` ranks on this host with `cores` that this process may use.
    pub fn spin(self, local_ranks: usize, cores: usize) -> Spin {
        let (look_us, all_us) = match self {
            SpinPolicy::Micros(us) => (us, us),
            SpinPolicy::Auto if local_ranks <= cores => (LOOK_US, SPIN_US),
            SpinPolicy::Auto => (0, SHARED_SPIN_US),
        };
        let follows = self == SpinPolicy::Auto && local_ranks <= cores;
        let longest_us = if follows { all_us.max(LONGEST_SPIN_US) } else { all_us };
        let micros = |us: u32| Duration::from_micros(us.into());
        Spin { look: micros(look_us), all: micros(all_us), longest: micros(longest_us) }
    }

    /// The spin for `local_ranks` ranks on this host. Counts the cores in this thread's affinity mask and cgroup quota.
    pub fn here(self, local_ranks: usize) -> Spin {
        self.spin(local_ranks, std::thread::available_parallelism().map_or(1, usize::from))
    }
}

/// How a thread passes the time until it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Spin {
    look: Duration,
    all: Duration,
    longest: Duration,
}

/// How long a thread polls before it sleeps, after the waits that it has had (W4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Patience {
    spin: Spin,
    all: Duration,
}

impl Patience {
    /// Before the first wait.
    pub fn new(spin: Spin) -> Patience {
        Patience { spin, all: spin.all }
    }

    /// For what a call waits for at once ([`Patience::gives_way_for`]).
    pub fn at_once(spin: Spin) -> Patience {
        let longest = Duration::from_micros(LONGEST_AT_ONCE_US.into()).max(spin.all);
        Patience { spin: Spin { longest, ..spin }, all: spin.all }
    }

    /// How long to give way between looks for what is expected at once. Zero while every local rank has a core of its own.
    pub fn gives_way_for(&self) -> Duration {
        if self.spin.look.is_zero() { self.all } else { Duration::ZERO }
    }

    /// What to do after `idle` without progress.
    pub fn pause(&self, idle: Duration) -> Pause {
        Spin { all: self.all, ..self.spin }.pause(idle)
    }

    /// Something came after `idle` without progress, asleep or not. Next time, twice as long is waited for it; after a long
    /// wait, as long as is set.
    pub fn learn(&mut self, idle: Duration) {
        let twice = idle * 2;
        if idle > self.spin.longest {
            self.all = self.spin.all;
        } else if twice > self.all {
            self.all = twice.min(self.spin.longest);
        } else {
            // Slowly back, so that one trip that was short by chance does not send the next wait to sleep.
            self.all = (self.all - (self.all - twice) / 16).max(self.spin.all);
        }
    }
}

/// How often a thread looks for a message that it expects at once while every local rank has a core of its own, before it
/// goes the longer way of waiting for all that may happen: about [`LOOK_US`].
const LOOKS: u32 = 1000;

/// What a thread that found nothing does before it looks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Nothing.
    None,
    /// Gives way to other threads that are ready to run on its core ([`std::thread::yield_now`]).
    GiveWay,
    /// Sleeps until woken.
    Sleep,
}

impl Spin {
    /// How often to look for what is expected at once, before giving way where ranks share cores. 0: not at all.
    pub fn looks(&self) -> u32 {
        match (self.look.is_zero(), self.all.is_zero()) {
            (false, _) => LOOKS,
            (true, false) => 1,
            (true, true) => 0,
        }
    }

    /// What to do after `idle` without progress.
    pub fn pause(&self, idle: Duration) -> Pause {
        match idle {
            idle if idle < self.look => Pause::None,
            idle if idle < self.all => Pause::GiveWay,
            _ => Pause::Sleep,
        }
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
    spin: Spin,
}

impl Waiter {
    /// A waiter that looks for `spin_us` microseconds without progress before it sleeps.
    pub fn new(spin_us: u32) -> Waiter {
        Waiter { spin: SpinPolicy::Micros(spin_us).spin(1, 1) }
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
            match self.spin.pause(now.duration_since(since)) {
                Pause::None => std::hint::spin_loop(),
                Pause::GiveWay => std::thread::yield_now(),
                Pause::Sleep if transport.prepare_sleep() => {
                    sleep(transport, deadline.saturating_duration_since(now), &mut nap_us);
                }
                // A wake that came with it is taken now (T10), so this wait must end.
                Pause::Sleep => asked = true,
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

    const FAR: Duration = Duration::from_secs(60);

    fn pair() -> (crate::transport::Loopback, crate::transport::Loopback) {
        let mut group = Hub::new(LoopbackConfig::default()).group(2).unwrap();
        let b = group.pop().unwrap();
        (group.pop().unwrap(), b)
    }

    #[test]
    fn looks_without_giving_way_only_while_ranks_have_cores() {
        let pauses =
            |spin: Spin| [0, 3, 4, 7, 19, 20, 24, 25].map(|us| spin.pause(Duration::from_micros(us)));
        use Pause::{GiveWay, None, Sleep};
        let own = [None, None, GiveWay, GiveWay, GiveWay, Sleep, Sleep, Sleep];
        assert_eq!(pauses(SpinPolicy::Auto.spin(2, 2)), own);
        let shared = [GiveWay, GiveWay, GiveWay, GiveWay, GiveWay, GiveWay, GiveWay, Sleep];
        assert_eq!(pauses(SpinPolicy::Auto.spin(3, 2)), shared);
        let set = [None, None, None, Sleep, Sleep, Sleep, Sleep, Sleep];
        assert_eq!(pauses(SpinPolicy::Micros(7).spin(3, 2)), set);
        assert_eq!(pauses(SpinPolicy::Micros(0).spin(1, 2)), [Sleep; 8]);
    }

    #[test]
    fn polls_for_longer_after_short_waits_alone() {
        // W4
        let us = |us: u32| Duration::from_micros(us.into());
        let lasts = |patience: &Patience| {
            let sleeps = |n: &u32| patience.pause(us(*n)) == Pause::Sleep;
            (0..=10 * LONGEST_SPIN_US).find(sleeps).unwrap()
        };
        let mut own = Patience::new(SpinPolicy::Auto.spin(2, 2));
        assert_eq!(lasts(&own), SPIN_US);
        own.learn(us(3));
        assert_eq!(lasts(&own), SPIN_US);
        own.learn(us(40));
        assert_eq!(lasts(&own), 80);
        own.learn(us(LONGEST_SPIN_US));
        assert_eq!(lasts(&own), LONGEST_SPIN_US);
        own.learn(us(30));
        assert!((150..LONGEST_SPIN_US).contains(&lasts(&own)));
        (0..200).for_each(|_| own.learn(us(30)));
        assert!((60..80).contains(&lasts(&own)), "{own:?}");
        own.learn(us(LONGEST_SPIN_US + 1));
        assert_eq!(lasts(&own), SPIN_US);
        (0..200).for_each(|_| own.learn(us(1)));
        assert_eq!(lasts(&own), SPIN_US);
        // Where cores are shared, or it is set, nothing is learnt.
        for spin in [
            SpinPolicy::Auto.spin(3, 2),
            SpinPolicy::Micros(0).spin(1, 2),
            SpinPolicy::Micros(500).spin(1, 2),
        ] {
            let mut fixed = Patience::new(spin);
            let before = lasts(&fixed);
            for waited in [0, 10, 100, 199, 501, 5000] {
                fixed.learn(us(waited));
                assert_eq!(lasts(&fixed), before);
            }
        }
    }

    #[test]
    fn what_is_expected_at_once_is_given_way_for_while_that_pays() {
        let us = |us: u32| Duration::from_micros(us.into());
        let mut patience = Patience::at_once(SpinPolicy::Auto.spin(4, 2));
        assert_eq!(patience.gives_way_for(), us(SHARED_SPIN_US));
        // A call that took 300 us by way of sleeping would have needed so long.
        patience.learn(us(300));
        assert_eq!(patience.gives_way_for(), us(600));
        patience.learn(us(LONGEST_AT_ONCE_US));
        assert_eq!(patience.gives_way_for(), us(LONGEST_AT_ONCE_US));
        patience.learn(us(LONGEST_AT_ONCE_US + 1));
        assert_eq!(patience.gives_way_for(), us(SHARED_SPIN_US));
        patience.learn(us(300));
        (0..200).for_each(|_| patience.learn(us(3)));
        assert_eq!(patience.gives_way_for(), us(SHARED_SPIN_US));
        // Whoever has a core of its own looks, and gives no way.
        assert_eq!(Patience::at_once(SpinPolicy::Auto.spin(2, 2)).gives_way_for(), Duration::ZERO);
        assert_eq!(Patience::at_once(SpinPolicy::Micros(0).spin(4, 2)).gives_way_for(), Duration::ZERO);
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
