//! The straight path of small messages: one that can go at once needs no run, no lease and no completion.
//!
//! It is a call like any other: numbered by its tag alone, stamped, recorded, refused on a dead communicator. What cannot
//! go at once takes the way of all calls.

#![forbid(unsafe_code)]

use super::core::{Core, message_lane};
use super::group::Last;
use super::plan::{Kind, Request, What};
use ringway_dataplane::transport::{Stamp, Tag, Transport};

impl Core {
    /// Sends a message at once, where no other of this process waits to be sent before it. `false`: nothing happened.
    #[inline]
    pub(super) fn send_at_once(&mut self, group: usize, request: &Request, bytes: &[u8]) -> bool {
        let What::Send { to, tag } = request.what else { return false };
        // C2, R3: those that wait for depth or found a queue full must not be overtaken.
        let is_first = !self.is_queueing() && self.depth_used(Kind::Send) == 0;
        let small = bytes.len() as u64 <= self.caps.eager_bytes;
        let Some(g) = self.groups[group].as_mut().filter(|g| is_first && small && g.dead.is_none()) else {
            return false;
        };
        let call = request.call();
        let stamp = if self.options.check { call.stamp() } else { Stamp::default() };
        let tag = Tag { group: g.info.id, lane: message_lane(tag) };
        if !self.transport.send_now(g.peers[to as usize], tag, &stamp, bytes) {
            return false;
        }
        g.last = Last::AtOnce { bytes: bytes.len() };
        self.recorder.passed(g.info.id, call, bytes.len() as u64);
        self.exchanged(group, to, true, bytes.len() as u64);
        true
    }
}
