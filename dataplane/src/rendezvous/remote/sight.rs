//! Payloads that a task of the same host reads where they lie: nothing is copied, and the memory is lent until the reader
//! has let go of it.

use super::Core;
use crate::memory::SharedBytes;
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::table::WaiterId;
use crate::rendezvous::value::{Meta, Value};
use crate::rendezvous::waiter::{Stage, Waiter};
use crate::rendezvous::wire::{Garbled, Message};
use crate::transport::{CauseKind, Peer, Sight, Waker};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Payloads from this size on are shown; smaller ones are copied sooner than let go of.
pub(super) const LEAST_SHOWN_BYTES: usize = 64 << 10;
/// Payloads that one task may have to look at at a time, and their bytes; others are copied.
const MAX_SHOWN: usize = 4096;
const MAX_SHOWN_BYTES: u64 = 16 << 30;

/// What is shown to one task, by its question.
#[derive(Default)]
pub(super) struct Showing {
    values: HashMap<u64, Value>,
    bytes: u64,
}

impl Showing {
    fn takes(&self, bytes: usize) -> bool {
        self.values.len() < MAX_SHOWN && self.bytes + bytes as u64 <= MAX_SHOWN_BYTES
    }

    fn put(&mut self, request: u64, value: &Value) {
        self.bytes += value.payload.len() as u64;
        self.values.insert(request, value.clone());
    }

    fn take(&mut self, request: u64) -> Option<Value> {
        let value = self.values.remove(&request)?;
        self.bytes -= value.payload.len() as u64;
        Some(value)
    }

    /// The task is gone. Where its process may live on, it may still be reading: that memory is given up rather than
    /// written over.
    pub(super) fn end(&mut self, why: CauseKind) {
        let ended = why == CauseKind::Closed;
        for (_, value) in self.values.drain().filter(|_| !ended) {
            std::mem::forget(value);
        }
        self.values.clear();
        self.bytes = 0;
    }
}

/// Payloads of other tasks that are read no more here, to be told to them.
pub(super) struct Releases {
    list: Mutex<Vec<(Peer, u64)>>,
    any: AtomicBool,
    waker: Waker,
}

impl Releases {
    pub(super) fn new(waker: Waker) -> Arc<Releases> {
        Arc::new(Releases { list: Mutex::default(), any: AtomicBool::new(false), waker })
    }

    fn add(&self, from: Peer, request: u64) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push((from, request));
        self.any.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl Core {
    /// Shows a payload to a peer that can read it where it lies. `false`: it is to be sent.
    pub(super) fn show(&mut self, peer: Peer, request: u64, value: &Value) -> bool {
        let bytes = value.payload.len();
        let takes = self.links.get(&peer).is_some_and(|l| l.lost.is_none() && l.showing.takes(bytes));
        if bytes < LEAST_SHOWN_BYTES || !takes {
            return false;
        }
        let Some(Sight { offset, bytes }) = self.transport.show(peer, &value.payload.lend()) else {
            return false;
        };
        if let Some(link) = self.links.get_mut(&peer) {
            link.showing.put(request, value);
            link.traffic.values_sent += 1;
            link.traffic.bytes_sent += bytes;
        }
        self.say(peer, &Message::Shown { request, offset, bytes, meta: &value.meta });
        true
    }

    /// A peer shows a payload.
    pub(super) fn shown(
        &mut self,
        from: Peer,
        request: u64,
        sight: Sight,
        meta: &[u8],
    ) -> Result<(), Garbled> {
        let meta = Meta::new(meta).ok_or(Garbled("a longer description than there can be"))?;
        let id = WaiterId(request);
        let asked = |w: &Waiter| matches!(w, Waiter::Away { peer, stage: Stage::Asked, .. } if *peer == from);
        let wanted = self.table().waiter(id).is_some_and(|(_, w)| asked(w));
        if wanted && sight.bytes > self.max_value_bytes {
            let (bytes, limit) = (sight.bytes, self.max_value_bytes);
            let who = Box::new(self.links.get(&from).map(|l| l.who.clone()).unwrap_or_default());
            let message = format!("a value of {bytes} bytes, over this task's limit of {limit}");
            self.fail(id, |step, key| RendezvousError::Refused { step, key, who, message });
            self.say(from, &Message::Seen { request, read: true });
            return Ok(());
        }
        if !wanted {
            self.say(from, &Message::Seen { request, read: true });
            return Ok(());
        }
        let Some(foreign) = self.transport.view(from, sight) else {
            self.say(from, &Message::Seen { request, read: false });
            return Ok(());
        };
        let releases = Arc::clone(&self.releases);
        let payload = SharedBytes::of_foreign(foreign, Box::new(move || releases.add(from, request)));
        if let Some((step, then)) = self.leaves(from, request) {
            self.deliver(from, step, then, Ok(Value { meta, payload }));
        }
        Ok(())
    }

    /// A peer reads a payload no more, or never could.
    pub(super) fn seen(&mut self, from: Peer, request: u64, read: bool) {
        let Some(link) = self.links.get_mut(&from) else { return };
        let Some(value) = link.showing.take(request) else { return };
        if !read {
            // Counted once it is sent.
            link.traffic.values_sent -= 1;
            link.traffic.bytes_sent -= value.payload.len() as u64;
            self.send_payload(from, request, &value);
        }
    }

    /// Tells of what is read no more here.
    pub(super) fn tell_releases(&mut self) {
        let releases = Arc::clone(&self.releases);
        if !releases.any.swap(false, Ordering::AcqRel) {
            return;
        }
        let list = std::mem::take(&mut *releases.list.lock().unwrap_or_else(PoisonError::into_inner));
        for (peer, request) in list {
            self.say(peer, &Message::Seen { request, read: true });
        }
    }
}
