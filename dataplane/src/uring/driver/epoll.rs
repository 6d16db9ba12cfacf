//! One system call per operation, where io_uring is forbidden or not there.

use super::{BATCH, Batch, Io, Outcome};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg};
use std::io::IoSlice;

/// Plain `send`, `sendmsg` and `recv`.
pub(in crate::uring) struct EpollDriver;

impl EpollDriver {
    pub(super) fn run(&mut self, batch: &mut Batch<'_>, outcomes: &mut [Outcome; BATCH]) {
        for (op, outcome) in batch.ops.iter_mut().take(batch.len).zip(outcomes) {
            if let Some(op) = op {
                *outcome = attempt(op);
            }
        }
    }
}

/// One operation by one system call: for a few small ones the quickest way, whatever the driver.
pub(in crate::uring) fn attempt(op: &mut Io<'_>) -> Outcome {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match op {
        Io::Send { fd, head, body: [], .. } => send(*fd, head, flags),
        Io::Send { fd, head: [], body, .. } => send(*fd, body, flags),
        Io::Send { fd, head, body, .. } => {
            let parts = [IoSlice::new(head), IoSlice::new(body)];
            sendmsg(*fd, &parts, &mut SendAncillaryBuffer::default(), flags)
        }
        Io::Recv { fd, into, .. } => recv(*fd, &mut **into, RecvFlags::DONTWAIT).map(|(n, _)| n),
    }
}
