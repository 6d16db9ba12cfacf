//! How system calls are made: a batch of nonblocking sends and receives at a time.
//!
//! - **D1** Every operation of a batch has ended when `Driver::run` returns: nothing stays with the kernel, so the
//!   slices of the batch are borrowed for the call only, and the driver may move between threads.

mod epoll;
mod uring;

use crate::memory::RegionId;
use crate::transport::{RegionKey, RegisterError};
use std::os::fd::BorrowedFd;

pub(super) use epoll::{EpollDriver, attempt};
pub(super) use uring::UringDriver;

/// Most operations of one batch.
pub(super) const BATCH: usize = 32;

/// One nonblocking attempt.
pub(super) enum Io<'a> {
    /// `head`, then `body`. `region` is the region of `body`, for a driver that has it registered.
    Send { fd: BorrowedFd<'a>, head: &'a [u8], body: &'a [u8], region: Option<RegionId> },
    /// Into `into`, which lies in `region`, if that is known.
    Recv { fd: BorrowedFd<'a>, into: &'a mut [u8], region: Option<RegionId> },
}

/// Bytes moved, or the error (`EAGAIN`: nothing could be moved now). A receive of 0 is the end of the stream.
pub(super) type Outcome = Result<usize, rustix::io::Errno>;

/// A batch with its outcomes.
pub(super) struct Batch<'a> {
    pub(super) ops: [Option<Io<'a>>; BATCH],
    pub(super) len: usize,
}

impl<'a> Batch<'a> {
    pub(super) fn new() -> Batch<'a> {
        Batch { ops: [const { None }; BATCH], len: 0 }
    }

    /// Adds an operation. There is always room for two by each of `BATCH / 2` connections.
    pub(super) fn push(&mut self, op: Io<'a>) {
        if let Some(place) = self.ops.get_mut(self.len) {
            *place = Some(op);
            self.len += 1;
        }
    }
}

/// Which driver to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DriverChoice {
    /// io_uring where the kernel allows it, else plain system calls.
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// Plain system calls.
    Epoll,
}

/// Whether this kernel lets this process use io_uring: how it would be used, in words.
///
/// # Errors
/// What the system refuses the ring with.
pub fn probe_uring() -> std::io::Result<String> {
    UringDriver::new().map(|driver| driver.describe().to_owned())
}

/// The way system calls are made.
pub(super) enum Driver {
    /// One `io_uring_enter` per batch.
    Uring(Box<UringDriver>),
    /// One system call per operation.
    Epoll(EpollDriver),
}

impl Driver {
    /// Makes the driver and says why it is this one.
    pub(super) fn new(choice: DriverChoice) -> std::io::Result<(Driver, String)> {
        if choice == DriverChoice::Epoll {
            return Ok((Driver::Epoll(EpollDriver), "driver epoll (as set)".into()));
        }
        match UringDriver::new() {
            Ok(uring) => {
                let why = format!("driver io_uring ({})", uring.describe());
                Ok((Driver::Uring(Box::new(uring)), why))
            }
            Err(e) if choice == DriverChoice::Uring => Err(e),
            Err(e) => Ok((Driver::Epoll(EpollDriver), format!("driver epoll (io_uring refused: {e})"))),
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Driver::Uring(_) => "uring",
            Driver::Epoll(_) => "epoll",
        }
    }

    pub(super) fn registers(&self) -> bool {
        matches!(self, Driver::Uring(u) if u.registers())
    }

    /// Tries every operation once (D1).
    pub(super) fn run(&mut self, batch: &mut Batch<'_>, outcomes: &mut [Outcome; BATCH]) {
        match self {
            Driver::Uring(driver) => driver.run(batch, outcomes),
            Driver::Epoll(driver) => driver.run(batch, outcomes),
        }
    }

    pub(super) fn register(&mut self, region: &crate::memory::Region) -> Result<RegionKey, RegisterError> {
        match self {
            Driver::Uring(driver) => driver.register(region),
            Driver::Epoll(_) => Err(RegisterError::Useless),
        }
    }

    pub(super) fn deregister(&mut self, region: RegionId) {
        if let Driver::Uring(driver) = self {
            driver.deregister(region);
        }
    }

    /// Gives up registrations of memory that is unmapped. Cheap when nothing was.
    pub(super) fn forget_unmapped(&mut self) {
        if let Driver::Uring(driver) = self {
            driver.forget_unmapped();
        }
    }
}

/// What the kernel knows of the way to the other host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Health {
    /// Segments sent and not acknowledged.
    pub(super) unacknowledged: u32,
    /// Retransmissions and probes in a row that were not answered.
    pub(super) unanswered: u32,
    /// Since the last acknowledgement.
    pub(super) silent_ms: u32,
}

/// The health of a connection, or `None` when the kernel does not tell.
pub(super) fn health(fd: BorrowedFd<'_>) -> Option<Health> {
    use std::os::fd::AsRawFd;
    // SAFETY: tcp_info is plain old data; getsockopt writes at most `len` bytes of it, and what an older kernel does
    // not write stays zero.
    let (answer, info) = unsafe {
        let mut info: libc::tcp_info = std::mem::zeroed();
        let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
        let place = (&raw mut info).cast();
        let answer = libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, place, &raw mut len);
        (answer, info)
    };
    (answer == 0).then(|| Health {
        unacknowledged: info.tcpi_unacked,
        unanswered: u32::from(info.tcpi_retransmits) + u32::from(info.tcpi_probes),
        silent_ms: info.tcpi_last_ack_recv,
    })
}

/// Bytes that were sent and that the other host has not acknowledged.
pub(super) fn unacknowledged_bytes(fd: BorrowedFd<'_>) -> usize {
    use std::os::fd::AsRawFd;
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ (SIOCOUTQ) writes one int, which `bytes` is.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    // A broken connection has nothing that will ever be acknowledged.
    if answer == 0 { usize::try_from(bytes).unwrap_or(0) } else { 0 }
}
