//! How another thread rouses one that sleeps on a transport's fd.

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An eventfd that makes a transport's `sleep_fd` readable. Cheap to clone; clones rouse the same sleeper.
#[derive(Clone, Debug)]
pub struct Waker {
    fd: Arc<OwnedFd>,
    raised: Arc<AtomicBool>,
}

impl Waker {
    /// A new waker.
    ///
    /// # Errors
    /// When the process is out of file descriptors.
    pub fn new() -> std::io::Result<Waker> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Waker { fd: Arc::new(fd), raised: Arc::default() })
    }

    /// Rouses the sleeper, or its next attempt to sleep.
    pub fn wake(&self) {
        if !self.raised.swap(true, Ordering::AcqRel) {
            // The counter cannot overflow (one write per `raised` edge), so a failure means the fd is gone.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// For the sleeper: whether it was roused since the last call.
    pub fn take(&self) -> bool {
        if !self.raised.load(Ordering::Acquire) {
            return false;
        }
        // Each time that it is raised something is written once. That may still be to come: what came after it was taken
        // would leave the fd readable with nobody to read it, and no sleep would last any more.
        let mut counter = [0u8; 8];
        while rustix::io::read(&self.fd, &mut counter) == Err(Errno::AGAIN) {
            std::thread::yield_now();
        }
        // A wake until here is taken with it.
        self.raised.swap(false, Ordering::AcqRel)
    }

    /// For the transport: the fd to put into its poll set.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::sync::atomic::AtomicU32;

    fn readable(w: &Waker) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(w.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn wakes_are_level_and_collapse() {
        let w = Waker::new().unwrap();
        assert!(!readable(&w) && !w.take());
        w.wake();
        w.clone().wake();
        assert!(readable(&w));
        assert!(w.take() && !w.take() && !readable(&w));
        w.wake();
        assert!(readable(&w) && w.take());
    }

    #[test]
    fn a_wake_that_is_taken_while_it_is_made_leaves_nothing_behind() {
        const ROUNDS: u32 = 3000;
        let (w, turn) = (Waker::new().unwrap(), AtomicU32::new(0));
        let reaches = |number: u32| {
            while turn.load(Ordering::Acquire) < number {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    reaches(2 * round + 1);
                    w.wake();
                    turn.store(2 * round + 2, Ordering::Release);
                }
            });
            for round in 0..ROUNDS {
                turn.store(2 * round + 1, Ordering::Release);
                while !w.take() {
                    std::thread::yield_now();
                }
                reaches(2 * round + 2);
                assert!(!readable(&w) && !w.take(), "round {round}");
            }
        });
    }
}
