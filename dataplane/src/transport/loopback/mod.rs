//! The in-process transport: threads of one process, or one thread playing all ranks, exchange messages by one copy.
//!
//! It is the reference for the other transports, what unit tests and in-process benches run on, and a tool for users'
//! own tests. Driven from one thread it is deterministic: the same seed and the same calls give the same events in the
//! same order. Not a way to talk between processes.
//!
//! - [`Hub`] (`hub`) is the wire: members join it, and meet by address.
//! - [`Loopback`] is one member's transport. It may move between threads; one uses it at a time.
//! - `channel`: one direction between two members, where matching happens (L1 to L3).
//!
//! The receiver's `poll` moves the bytes, from the sender's memory into the receiver's, under the direction's lock.
//! - **L4** A completion for the other end is handed over while the direction is locked, so that a loss, which locks it
//!   too, comes after it (T6).
//! - **L5** Who changes something that a member must poll for sets the member's `attention` and then reads its
//!   `asleep`; who goes to sleep sets `asleep` and then reads `attention`. So one of them sees the other (T10).

mod channel;
mod hub;

use super::caps::Caps;
use super::contract::{Address, ConnectError, Copies, RegionKey, RegisterError, Transport};
use super::op::{Cause, CauseKind, Completion, Event, Note, Op, OpId, Peer, PostError};
use super::seed::Seeded;
use super::wake::Waker;
use crate::fabric::sleep_on;
use crate::memory::{Region, RegionId};
use channel::{Direction, End, Out};
use hub::{Member, Pair, lock};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub use channel::{MAX_QUEUED_NOTES, MAX_RETIRED_GROUPS};
pub use hub::Hub;

/// Highest peer number that a member takes.
pub const MAX_PEER: u32 = 65_535;
/// Longest message in bytes: any that memory can hold.
const MAX_MESSAGE_BYTES: u64 = isize::MAX as u64;

/// How a hub behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopbackConfig {
    /// Seed of the reordering.
    pub seed: u64,
    /// Sends of up to this many bytes finish before their receive is posted, as long as fewer than `depth` messages to
    /// that peer are held so. 0: a send finishes only when matched.
    pub eager_bytes: usize,
    /// Operations posted to one peer, in each direction, before `post` answers `Full`. At least 1.
    pub depth: u32,
    /// Holds matches back for some polls of their receiver, so that tags and peers overtake each other (never two
    /// messages of one tag).
    pub reorder: bool,
}

impl Default for LoopbackConfig {
    /// Seed 0, 8 KiB eager, 64 deep, in order.
    fn default() -> LoopbackConfig {
        LoopbackConfig { seed: 0, eager_bytes: 8192, depth: 64, reorder: false }
    }
}

/// One member's transport. Dropping it without [`Transport::leave`] looks to the others as a crash.
#[derive(Debug)]
pub struct Loopback {
    hub: Hub,
    me: Arc<Member>,
    links: Vec<Option<Arc<Pair>>>,
    /// Own completions that no poll has handed out yet.
    done: Vec<Event>,
    /// The other end's completions, on their way to its inbox.
    theirs: Vec<Event>,
    copied_bytes: u64,
    /// Something is held back for a later poll.
    held: bool,
    left: bool,
    random: Seeded,
}

impl Loopback {
    fn of(hub: Hub, me: Arc<Member>, random: Seeded) -> Loopback {
        Loopback {
            hub,
            me,
            links: Vec::new(),
            done: Vec::new(),
            theirs: Vec::new(),
            copied_bytes: 0,
            held: false,
            left: false,
            random,
        }
    }

    /// Moves what has matched on `pair`, whose other member is called `peer`.
    fn deliver(&mut self, peer: Peer, pair: &Pair, flush: bool) {
        let (to, from) = pair.seen_by(&self.me);
        let other = pair.other(&self.me);
        let after = {
            let mut from = lock(&from.state);
            let after = from.deliver(flush, &mut Out { sender: &mut self.theirs, receiver: &mut self.done });
            other.hand_over(&mut self.theirs);
            after
        };
        if after.held {
            from.dirty.store(true, Ordering::Release);
            self.held = true;
        }
        if after.goodbye {
            let cause = Cause::new(CauseKind::Left, format!("peer {} said goodbye", peer.0));
            let mut none = Vec::new();
            let mut out = Out { sender: &mut self.done, receiver: &mut none };
            lock(&to.state).end_one(End::Sender, &cause, &mut out);
            // What the leaver itself finished for this side comes before the goodbye too.
            self.done.append(&mut lock(&self.me.inbox));
            self.done.push(Event::Left { peer });
        }
    }

    fn link(&self, peer: Peer) -> Option<&Arc<Pair>> {
        self.links.get(peer.0 as usize)?.as_ref()
    }

    /// Everything of `f` happens to both directions with one peer: as sender, and as receiver.
    fn on_both(&mut self, pair: &Pair, mut f: impl FnMut(&mut Direction, End, &mut Out<'_>)) {
        let (to, from) = pair.seen_by(&self.me);
        let other = pair.other(&self.me);
        for (channel, end) in [(to, End::Sender), (from, End::Receiver)] {
            let mut direction = lock(&channel.state);
            let (mine, theirs) = (&mut self.done, &mut self.theirs);
            let mut out = match end {
                End::Sender => Out { sender: mine, receiver: theirs },
                End::Receiver => Out { sender: theirs, receiver: mine },
            };
            f(&mut direction, end, &mut out);
            other.hand_over(&mut self.theirs);
        }
    }

    fn all_links(&self) -> Vec<(Peer, Arc<Pair>)> {
        let links = self.links.iter().enumerate();
        links.filter_map(|(i, l)| Some((Peer(i as u32), Arc::clone(l.as_ref()?)))).collect()
    }

    /// Moves what has matched, either way, and says whether sends are still unfinished.
    fn flush(&mut self) -> bool {
        let mut unfinished = false;
        for (_, pair) in self.all_links() {
            self.on_both(&pair, |direction, end, out| {
                if end == End::Sender {
                    direction.move_matched(true, out);
                    unfinished |= direction.sends_posted() > 0;
                }
            });
        }
        unfinished
    }

    fn parse(&self, peer: Peer, to: &Address) -> Result<Arc<Member>, ConnectError> {
        let bad = |why: &str| ConnectError::BadAddress { peer, why: why.to_owned() };
        let (hub, index) = to.0.split_first_chunk::<8>().ok_or_else(|| bad("it has under 12 bytes"))?;
        let index: [u8; 4] = index.try_into().map_err(|_| bad("it does not have 12 bytes"))?;
        if u64::from_le_bytes(*hub) != self.hub.id() {
            return Err(ConnectError::NoRoute { peer, why: "it is of another in-process hub".to_owned() });
        }
        let member = self.hub.member(u32::from_le_bytes(index));
        let member = member.ok_or_else(|| bad("the hub has no such member"))?;
        if member.index == self.me.index {
            return Err(bad("it is this member's own"));
        }
        if peer.0 > MAX_PEER {
            return Err(bad("the peer's number is over 65535"));
        }
        Ok(member)
    }
}

/// Payload of a message that has moved.
fn copied_bytes(event: &Event) -> u64 {
    match event {
        Event::Done(Completion { result: Ok(()), lease, .. }) => lease.bytes().len() as u64,
        _ => 0,
    }
}

impl Transport for Loopback {
    fn caps(&self) -> Caps {
        let config = self.hub.config();
        Caps {
            name: "loopback",
            speaks: "loopback",
            max_message_bytes: MAX_MESSAGE_BYTES,
            eager_bytes: config.eager_bytes as u64,
            depth: config.depth,
            registers: false,
            sleepable: true,
            withdraws_alone: true,
            in_process: true,
        }
    }

    fn address(&self) -> Address {
        let mut bytes = self.hub.id().to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.me.index.to_le_bytes());
        Address(bytes)
    }

    fn register(&mut self, _region: &Region) -> Result<RegionKey, RegisterError> {
        Err(RegisterError::Useless)
    }

    fn deregister(&mut self, _region: RegionId) {}

    fn connect(&mut self, peer: Peer, to: &Address) -> Result<(), ConnectError> {
        let member = self.parse(peer, to)?;
        let bad = |why| ConnectError::BadAddress { peer, why };
        if let Some(pair) = self.link(peer) {
            if pair.other(&self.me).index == member.index {
                return Ok(());
            }
            if lock(&pair.seen_by(&self.me).0.state).sender_end.is_none() {
                return Err(bad("the peer is connected under another address".to_owned()));
            }
        }
        let same = |p: &Pair| p.other(&self.me).index == member.index;
        if let Some(i) = self.links.iter().flatten().position(|p| same(p)) {
            return Err(bad(format!("it is the address of another peer, the {i}th of this member")));
        }
        let pair = self.hub.pair(&self.me, &member);
        let (to, from) = pair.seen_by(&self.me);
        let lost = {
            let mut to = lock(&to.state);
            to.receiver_name = Some(peer);
            to.sender_end.clone()
        };
        lock(&from.state).sender_name = Some(peer);
        from.dirty.store(true, Ordering::Release);
        if let Some(cause) = lost {
            self.done.push(Event::Lost { peer, cause });
        } else if member.gone.load(Ordering::SeqCst) {
            let cause = Cause::new(CauseKind::Closed, format!("peer {} is no more", peer.0));
            pair.sever_at(&self.me, cause.clone(), cause);
        }
        let slot = peer.0 as usize;
        if self.links.len() <= slot {
            self.links.resize(slot + 1, None);
        }
        self.links[slot] = Some(pair);
        self.me.rouse();
        Ok(())
    }

    fn close(&mut self, peer: Peer, why: Cause) {
        if let Some(pair) = self.link(peer) {
            let theirs = Cause::new(CauseKind::Closed, format!("peer {} closed: {why}", self.me.name.0));
            pair.sever_at(&self.me, why, theirs);
        }
    }

    fn post(&mut self, id: OpId, op: Op) -> Result<(), (PostError, Op)> {
        let peer = op.peer();
        let Some(pair) = self.links.get(peer.0 as usize).and_then(Option::as_ref) else {
            return Err((PostError::Unknown(peer), op));
        };
        if op.is_on_device() {
            return Err((PostError::OnDevice { peer, why: "loopback copies" }, op));
        }
        let (to, from) = pair.seen_by(&self.me);
        let other = pair.other(&self.me);
        match op {
            Op::Send { tag, stamp, bytes, .. } => {
                let mut direction = lock(&to.state);
                let mut out = Out { sender: &mut self.done, receiver: &mut self.theirs };
                let ready = direction
                    .send((id, tag, stamp), bytes, &mut out)
                    .map_err(|(e, bytes)| (e, Op::Send { to: peer, tag, stamp, bytes }))?;
                other.hand_over(&mut self.theirs);
                drop(direction);
                if ready {
                    to.dirty.store(true, Ordering::Release);
                    other.rouse();
                }
            }
            Op::Recv { tag, stamp, into, .. } => {
                let mut direction = lock(&from.state);
                let mut out = Out { sender: &mut self.theirs, receiver: &mut self.done };
                let ready = direction
                    .recv((id, tag, stamp), into, &mut out)
                    .map_err(|(e, into)| (e, Op::Recv { from: peer, tag, stamp, into }))?;
                other.hand_over(&mut self.theirs);
                drop(direction);
                if ready {
                    from.dirty.store(true, Ordering::Release);
                    self.me.attention.store(true, Ordering::SeqCst);
                }
            }
        }
        Ok(())
    }

    fn cancel(&mut self, id: OpId) {
        let mut found = false;
        for (_, pair) in self.all_links() {
            self.on_both(&pair, |direction, end, out| {
                found = found || direction.cancel(end, id, out);
            });
        }
    }

    fn note(&mut self, to: Peer, note: &Note) -> Result<(), PostError> {
        let pair = self.link(to).ok_or(PostError::Unknown(to))?;
        let channel = pair.seen_by(&self.me).0;
        lock(&channel.state).note(note)?;
        channel.dirty.store(true, Ordering::Release);
        pair.other(&self.me).rouse();
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Event>) -> bool {
        self.me.asleep.store(false, Ordering::SeqCst);
        let before = out.len();
        out.append(&mut self.done);
        let held = std::mem::take(&mut self.held);
        if self.me.attention.swap(false, Ordering::SeqCst) || held {
            out.append(&mut lock(&self.me.inbox));
            let n = self.links.len();
            let reorder = self.hub.config().reorder;
            let first = if reorder { self.random.below(n as u64) as usize } else { 0 };
            for i in (first..n).chain(0..first) {
                let Some(pair) = &self.links[i] else { continue };
                if pair.seen_by(&self.me).1.dirty.swap(false, Ordering::AcqRel) {
                    let pair = Arc::clone(pair);
                    self.deliver(Peer(i as u32), &pair, false);
                }
            }
            out.append(&mut self.done);
        }
        self.copied_bytes += out[before..].iter().map(copied_bytes).sum::<u64>();
        out.len() != before || held
    }

    fn prepare_sleep(&mut self) -> bool {
        if self.me.waker.take() || self.held || !self.done.is_empty() {
            return false;
        }
        self.me.asleep.store(true, Ordering::SeqCst);
        let quiet = !self.me.attention.load(Ordering::SeqCst);
        if !quiet {
            self.me.asleep.store(false, Ordering::SeqCst);
        }
        quiet
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.me.waker.fd())
    }

    fn waker(&self) -> Waker {
        self.me.waker.clone()
    }

    fn next_timer_ms(&self) -> Option<u64> {
        None
    }

    fn retire(&mut self, group: u32) {
        for (_, pair) in self.all_links() {
            self.on_both(&pair, |direction, end, out| {
                if end == End::Receiver {
                    direction.retire(group, out);
                }
            });
        }
    }

    fn leave(&mut self, linger_ms: u64) {
        let deadline = Instant::now() + Duration::from_millis(linger_ms);
        while self.flush() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.me.asleep.store(true, Ordering::SeqCst);
            if !self.me.attention.swap(false, Ordering::SeqCst) {
                sleep_on(Some(self.me.waker.fd()), left);
                self.me.waker.take();
            }
        }
        let cause = Cause::new(CauseKind::Local, "this side has left");
        for (_, pair) in self.all_links() {
            self.on_both(&pair, |direction, end, out| {
                direction.move_matched(true, out);
                match end {
                    End::Sender => direction.say_goodbye(&cause, out),
                    End::Receiver => direction.end_one(End::Receiver, &cause, out),
                }
            });
            pair.seen_by(&self.me).0.dirty.store(true, Ordering::Release);
            pair.other(&self.me).rouse();
        }
        self.left = true;
        self.me.gone.store(true, Ordering::SeqCst);
    }

    fn why(&self, peer: Peer) -> Option<String> {
        let pair = self.link(peer)?;
        let config = self.hub.config();
        Some(format!(
            "in-process hub {}, member {} (peer {}), {} B eager, {} deep",
            self.hub.id(),
            pair.other(&self.me).index,
            pair.other(&self.me).name.0,
            config.eager_bytes,
            config.depth
        ))
    }

    fn copies(&self) -> Copies {
        Copies { copied_bytes: self.copied_bytes, placed_bytes: 0 }
    }

    fn pending(&self, peer: Peer) -> (usize, usize) {
        let Some(pair) = self.link(peer) else { return (0, 0) };
        let (to, from) = pair.seen_by(&self.me);
        (lock(&to.state).unmatched(End::Sender), lock(&from.state).unmatched(End::Receiver))
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        if self.left {
            self.hub.forget_pairs(&self.me);
        } else {
            self.hub.drop_out(&self.me, &format!("peer {} ended without a goodbye", self.me.name.0));
        }
        // The hub outlives this member, and must not keep its memory mapped.
        lock(&self.me.inbox).clear();
    }
}

#[cfg(test)]
mod tests;
