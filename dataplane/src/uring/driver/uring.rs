//! A whole batch in one `io_uring_enter`.
//!
//! Every operation carries a no-wait flag, so the kernel ends it within the call: with bytes, or with `EAGAIN`.
//! Nothing is ever left armed.

use super::epoll::attempt;
use super::{BATCH, Batch, Io, Outcome};
use crate::memory::{Region, RegionId};
use crate::transport::{RegionKey, RegisterError};
use crate::uring::registration::{Registered, Table};
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// The write does not raise SIGPIPE (Linux 6.18, `RWF_NOSIGNAL`).
const RWF_NOSIGNAL: i32 = 0x100;
/// Operations shorter than this go unregistered: measured, header and body in one call are quicker then.
const FIXED_LEAST_BYTES: usize = 128 << 10;

/// Batches of up to this many small operations go by plain system calls.
const PLAIN_MOST: usize = 4;

#[derive(Clone, Copy)]
struct Message {
    header: libc::msghdr,
    parts: [libc::iovec; 2],
}

/// An io_uring and what is registered with it.
pub(in crate::uring) struct UringDriver {
    ring: IoUring,
    table: Option<Table>,
    /// Flags of registered writes.
    write_flags: i32,
    messages: Box<[Message; BATCH]>,
    described: String,
}

// SAFETY: the pointers in `messages` are only used within `run`, which fills them first; the ring is used by one
// thread at a time under `&mut self`.
unsafe impl Send for UringDriver {}

impl UringDriver {
    pub(in crate::uring) fn new() -> std::io::Result<UringDriver> {
        let entries = BATCH as u32;
        let ring =
            IoUring::builder().dontfork().setup_submit_all().setup_coop_taskrun().build(entries).or_else(
                |e| match e.raw_os_error() {
                    // A kernel before 5.19 knows neither flag.
                    Some(libc::EINVAL) => IoUring::builder().dontfork().build(entries),
                    _ => Err(e),
                },
            )?;
        let empty = Message {
            // SAFETY: msghdr is plain old data for which all zeros is an empty header.
            header: unsafe { std::mem::zeroed() },
            parts: [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2],
        };
        let mut driver = UringDriver {
            ring,
            table: None,
            write_flags: 0,
            messages: Box::new([empty; BATCH]),
            described: String::new(),
        };
        driver.described = match driver.try_registration() {
            Ok(()) => "registered buffers".into(),
            Err(why) => format!("no registered buffers: {why}"),
        };
        Ok(driver)
    }

    /// Sets up the table of regions, after a trial of registered reads and writes on a socket pair.
    fn try_registration(&mut self) -> Result<(), String> {
        let mut table = Table::new(&self.ring).map_err(|e| format!("no table of buffers: {e}"))?;
        let (a, b) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK,
            None,
        )
        .map_err(|e| e.to_string())?;
        let mut region = crate::memory::Pool::default().region(4096).map_err(|e| e.to_string())?;
        let id = region.id();
        let trial = |driver: &mut UringDriver, table: &Table, region: &mut Region| -> Result<(), String> {
            let page = region.bytes_mut(0..64).map_err(|e| e.to_string())?;
            page.fill(7);
            let at = table.find(id, page.as_ptr(), 64).ok_or("trial region not found")?;
            driver.fixed(a.as_fd(), page, at, true).map_err(|e| format!("registered write: {e}"))?;
            let at = table.find(id, page.as_ptr(), 64).ok_or("trial region not found")?;
            let got =
                driver.fixed(b.as_fd(), page, at, false).map_err(|e| format!("registered read: {e}"))?;
            let none = driver.fixed(b.as_fd(), page, at, false);
            if got != 64 || none != Err(Errno::AGAIN) {
                return Err(format!("registered reads of a nonblocking socket answer {got}, {none:?}"));
            }
            Ok(())
        };
        table.add(&self.ring, &region).map_err(|e| e.to_string())?;
        self.write_flags = libc::RWF_NOWAIT | RWF_NOSIGNAL;
        let mut result = trial(self, &table, &mut region);
        if result.is_err() && sigpipe_is_ignored() {
            self.write_flags = libc::RWF_NOWAIT;
            result = trial(self, &table, &mut region);
        }
        table.remove(&self.ring, id);
        result.map(|()| self.table = Some(table))
    }

    /// One registered operation, alone.
    fn fixed(&mut self, fd: BorrowedFd<'_>, span: &mut [u8], at: Registered, write: bool) -> Outcome {
        let fd = types::Fd(fd.as_raw_fd());
        let len = span.len().min(at.most) as u32;
        let entry = if write {
            opcode::WriteFixed::new(fd, span.as_ptr(), len, at.index).rw_flags(self.write_flags).build()
        } else {
            opcode::ReadFixed::new(fd, span.as_mut_ptr(), len, at.index).rw_flags(libc::RWF_NOWAIT).build()
        };
        // SAFETY: the span is borrowed until `finish` has seen the operation end (D1).
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| Errno::BUSY)?;
        let mut outcomes = [Err(Errno::IO); BATCH];
        self.finish(1, &mut outcomes);
        outcomes[0]
    }

    pub(in crate::uring) fn describe(&self) -> &str {
        &self.described
    }

    pub(in crate::uring) fn registers(&self) -> bool {
        self.table.is_some()
    }

    pub(in crate::uring) fn register(&mut self, region: &Region) -> Result<RegionKey, RegisterError> {
        match &mut self.table {
            Some(table) => table.add(&self.ring, region),
            None => Err(RegisterError::Useless),
        }
    }

    pub(in crate::uring) fn deregister(&mut self, region: RegionId) {
        if let Some(table) = &mut self.table {
            table.remove(&self.ring, region);
        }
    }

    /// The regions in the kernel's table.
    #[cfg(test)]
    pub(in crate::uring) fn registered(&self) -> Vec<RegionId> {
        self.table.as_ref().map_or_else(Vec::new, Table::regions)
    }

    pub(in crate::uring) fn forget_unmapped(&mut self) {
        if let Some(table) = &mut self.table {
            table.forget_unmapped(&self.ring);
        }
    }

    pub(in crate::uring) fn run(&mut self, batch: &mut Batch<'_>, outcomes: &mut [Outcome; BATCH]) {
        let large = batch.ops.iter().take(batch.len).flatten().any(is_large);
        if batch.len <= PLAIN_MOST && !large {
            // Measured: a few plain calls are quicker than a ring round for them.
            for (op, outcome) in batch.ops.iter_mut().take(batch.len).flatten().zip(outcomes) {
                *outcome = attempt(op);
            }
            return;
        }
        let mut pushed = 0;
        for (i, op) in batch.ops.iter_mut().take(batch.len).enumerate() {
            let Some(op) = op else { continue };
            let entry = self.entry(i, op).user_data(i as u64);
            // SAFETY: the batch borrows every buffer, and `messages` stay put, until `finish` has seen all
            // operations end (D1).
            match unsafe { self.ring.submission().push(&entry) } {
                Ok(()) => pushed += 1,
                // The ring has room for a whole batch and is empty between batches.
                Err(_) => outcomes[i] = Err(Errno::AGAIN),
            }
        }
        self.finish(pushed, outcomes);
    }

    /// Where a span is registered that is long enough for it to be used.
    pub(in crate::uring) fn find(&self, region: Option<RegionId>, span: &[u8]) -> Option<Registered> {
        if span.len() < FIXED_LEAST_BYTES {
            return None;
        }
        self.table.as_ref()?.find(region?, span.as_ptr(), span.len())
    }

    fn entry(&mut self, i: usize, op: &mut Io<'_>) -> io_uring::squeue::Entry {
        let send_flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        match op {
            Io::Send { fd, head, body, region } => {
                let fd = types::Fd(fd.as_raw_fd());
                let registered = self.find(*region, body);
                match (head.is_empty(), registered) {
                    (true, Some(at)) => {
                        let len = body.len().min(at.most) as u32;
                        opcode::WriteFixed::new(fd, body.as_ptr(), len, at.index)
                            .rw_flags(self.write_flags)
                            .build()
                    }
                    // The registered body follows with the next batch.
                    (false, Some(_)) => opcode::Send::new(fd, head.as_ptr(), head.len() as u32)
                        .flags(send_flags | libc::MSG_MORE)
                        .build(),
                    (true, None) => {
                        opcode::Send::new(fd, body.as_ptr(), body.len() as u32).flags(send_flags).build()
                    }
                    (false, None) if body.is_empty() => {
                        opcode::Send::new(fd, head.as_ptr(), head.len() as u32).flags(send_flags).build()
                    }
                    (false, None) => {
                        let message = &mut self.messages[i];
                        message.parts = [part(head), part(body)];
                        message.header.msg_iov = message.parts.as_mut_ptr();
                        message.header.msg_iovlen = 2;
                        opcode::SendMsg::new(fd, &raw const message.header).flags(send_flags as u32).build()
                    }
                }
            }
            Io::Recv { fd, into, region } => {
                let fd = types::Fd(fd.as_raw_fd());
                match self.find(*region, into) {
                    Some(at) => {
                        let len = into.len().min(at.most) as u32;
                        opcode::ReadFixed::new(fd, into.as_mut_ptr(), len, at.index)
                            .rw_flags(libc::RWF_NOWAIT)
                            .build()
                    }
                    None => opcode::Recv::new(fd, into.as_mut_ptr(), into.len() as u32)
                        .flags(libc::MSG_DONTWAIT)
                        .build(),
                }
            }
        }
    }

    /// Submits what was pushed and collects all `len` outcomes (D1).
    fn finish(&mut self, len: usize, outcomes: &mut [Outcome; BATCH]) {
        let mut left = len;
        let mut refused = 0;
        while left > 0 {
            // Operations end within the first call; waiting only covers a kernel that ends them a moment later.
            let called =
                if left == len && refused == 0 { self.ring.submit() } else { self.ring.submit_and_wait(1) };
            match called {
                Ok(_) => {}
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
                Err(e) => {
                    refused += 1;
                    tracing::error!("io_uring_enter failed: {e}");
                    // Leaving with buffers in the kernel's hands would break D1.
                    if refused > 1000 {
                        eprintln!("ringway: io_uring does not give operations back ({e}): aborting");
                        std::process::abort();
                    }
                }
            }
            for entry in self.ring.completion() {
                let n = entry.result();
                let outcome = usize::try_from(n).map_err(|_| Errno::from_raw_os_error(-n));
                if let Some(place) = outcomes.get_mut(entry.user_data() as usize) {
                    *place = outcome;
                }
                left -= 1;
            }
        }
    }
}

fn is_large(op: &Io<'_>) -> bool {
    match op {
        Io::Send { body, .. } => body.len() >= FIXED_LEAST_BYTES,
        Io::Recv { into, region, .. } => region.is_some() && into.len() >= FIXED_LEAST_BYTES,
    }
}

fn part(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// Whether a write to a closed connection leaves the process alive by itself.
fn sigpipe_is_ignored() -> bool {
    // SAFETY: sigaction is plain old data; with a null new action the call only fills in the old one.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut now) == 0
            && now.sa_sigaction != libc::SIG_DFL
    }
}
