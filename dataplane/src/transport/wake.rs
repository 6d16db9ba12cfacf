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
        let w = Waker::new().unwrap();
        // Another thread has raised it, and is kept from running before it writes.
        w.raised.store(true, Ordering::Release);
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| w.take());
            // Who takes it at once is given the time to.
            for _ in 0..10_000 {
                if taken.is_finished() {
                    break;
                }
                std::thread::yield_now();
            }
            rustix::io::write(&w.fd, &1u64.to_ne_bytes()).unwrap();
            assert!(taken.join().unwrap());
        });
        assert!(!readable(&w) && !w.take());
    }
}
