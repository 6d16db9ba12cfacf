//! Signals as events: received on a descriptor that can be waited on with a deadline.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

/// Signals that have arrived and were not yet looked at.
pub(crate) struct Signals {
    wake: UnixStream,
    arrived: Vec<(Signal, Arc<AtomicBool>)>,
}

impl Signals {
    /// Begins to receive these signals.
    ///
    /// One that is ignored when the program starts stays so (nohup ignores SIGHUP), and processes that it starts
    /// inherit that; only SIGCHLD is received in any case.
    pub(crate) fn catch(signals: &[Signal]) -> io::Result<Self> {
        let (wake, wake_end) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        wake_end.set_nonblocking(true)?;
        let ignored = ignored_mask(&std::fs::read_to_string("/proc/self/status")?);
        let mut arrived = Vec::new();
        for signal in signals {
            let number = signal.as_raw();
            if *signal != Signal::CHILD && ignored & (1 << (number - 1)) != 0 {
                continue;
            }
            let flag = Arc::new(AtomicBool::new(false));
            // In this order: the flag is up before the descriptor wakes the reader.
            signal_hook::flag::register(number, Arc::clone(&flag))?;
            signal_hook::low_level::pipe::register(number, wake_end.try_clone()?)?;
            arrived.push((*signal, flag));
        }
        Ok(Signals { wake, arrived })
    }

    /// Waits until a signal arrives or the time is up, and returns what has arrived.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Vec<Signal>> {
        let timeout =
            timeout.map(|time| Timespec::try_from(time).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 }));
        match poll(&mut [PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN)], timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut bytes = [0; 64];
        while matches!((&self.wake).read(&mut bytes), Ok(n) if n > 0) {}
        let taken = self.arrived.iter().filter(|(_, flag)| flag.swap(false, Ordering::SeqCst));
        Ok(taken.map(|(signal, _)| *signal).collect())
    }
}

/// The mask of ignored signals in `/proc/self/status`, bit n-1 for signal n; 0 when it is not told.
fn ignored_mask(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// A signal's name, such as SIGTERM, or its number.
pub(crate) fn name(signal: u8) -> String {
    signal_hook::low_level::signal_name(i32::from(signal)).map_or(format!("signal {signal}"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_status() {
        assert_eq!(ignored_mask("Name:\tx\nSigIgn:\t0000000000001001\n"), 0x1001);
        assert_eq!(ignored_mask("Name:\tx\n"), 0);
    }

    #[test]
    fn names() {
        assert_eq!(name(9), "SIGKILL");
        assert_eq!(name(60), "signal 60");
    }
}
