//! How a thread waits for a GPU: awake at first, then ever more rarely, so that a long wait costs next to no processor.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

/// Awake for so long: a call of a mebibyte takes less.
const SPIN: Duration = Duration::from_micros(100);
/// Giving way for so long.
const YIELD: Duration = Duration::from_millis(1);
/// The longest nap, which bounds how late bad news are noticed.
const NAP: Duration = Duration::from_millis(5);
/// A nap is this part of what was waited already.
const PART: u32 = 100;

/// One wait.
pub(super) struct Pause {
    since: Instant,
}

impl Pause {
    pub(super) fn new() -> Pause {
        Pause { since: Instant::now() }
    }

    /// How long it has been.
    pub(super) fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    /// Waits a little.
    pub(super) fn once(&self) {
        match self.since.elapsed() {
            so_far if so_far < SPIN => std::hint::spin_loop(),
            so_far if so_far < YIELD => std::thread::yield_now(),
            so_far => std::thread::sleep((so_far / PART).min(NAP)),
        }
    }
}
