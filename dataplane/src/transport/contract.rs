//! The Transport trait.
//!
//! Contract (the conformance suite cites these):
//! - **T1** Every operation that `post` took completes exactly once, with its lease.
//! - **T2** The k-th send to a peer on a tag matches the k-th receive from it on that tag. Tags are independent: an
//!   unmatched message on one never holds up another.
//! - **T3** The two sides of a match have equal stamps and lengths, else each side that has not yet finished
//!   completes with `Mismatch`, and no byte is delivered. An eager send may already have finished.
//! - **T4** Posting a send never waits for receives to be posted on this side, and the other way round: credit for
//!   the one does not depend on the other.
//! - **T5** It works with no eager buffer: a send may finish only when matched. With one, a send of up to
//!   `eager_bytes` may finish before. One that goes at once (`send_now`) is one that was posted and has finished,
//!   and one that is taken at once (`take_now`) is a receive that was posted and has finished.
//! - **T6** When a peer is lost, all its pending operations complete with `PeerLost`, then `Event::Lost` comes once,
//!   and later posts answer `Gone`, as a post may also do that comes between the end and the poll that tells of it and of
//!   what the peer said last. Other peers are not affected.
//! - **T7** After `cancel`, the operation completes without waiting for the peer: as `Cancelled`, or as it had
//!   already ended. The sequence stays in step: the other side's half of the match, posted before or after, is
//!   discarded with it. A discarded receive completes as `Cancelled`; a discarded send as finished or `Cancelled`.
//!   Without [`Caps::withdraws_alone`], memory that a device may be reading or writing is first waited for: a moment
//!   with a peer that polls, and for a named time with one that does not, which is then lost.
//! - **T8** No call blocks, and none but `connect` and failure paths allocates once buffers have grown to their
//!   working size.
//! - **T9** Bytes from the network never cause a panic, nor memory growth beyond the named limits.
//! - **T10** A wake is never lost: after `Waker::wake`, the sleep ends or the next `prepare_sleep` answers `false`,
//!   once. Only `prepare_sleep` takes a wake, so that a caller that polls in between still learns of it.
//! - **T11** A goodbye is heard after all that was sent before it, and after the end of each send whose bytes have all
//!   gone: the peer may have left for having them. Then `Event::Left` comes once; sends, pending or later, fail
//!   (`PeerLost` or `Gone`, with `CauseKind::Left`), and so does a receive unless its message had arrived: that one is
//!   still delivered, whether it was posted before `Left` or after.
//!
//! A peer may send before this side has introduced it: what it sends waits, within the limits of T9, until then.

use super::caps::Caps;
use super::op::{Cause, Event, Note, Op, OpId, Peer, PostError, Stamp, Tag};
use super::wake::Waker;
use crate::memory::{ForeignBytes, ReadLease, Region, RegionId};
use std::os::fd::BorrowedFd;

/// Where a transport can be reached: opaque bytes, exchanged through the control plane.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Address(pub Vec<u8>);

/// A transport's handle of a registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionKey(pub u64);

/// Why a region was not registered. Its messages still travel, by the unregistered path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The kernel or device refused; usually the locked-memory limit.
    #[error("{bytes} bytes were not registered ({why}): raise the locked-memory limit (ulimit -l) for speed")]
    Refused {
        /// Length of the region.
        bytes: usize,
        /// The system's words.
        why: String,
    },
    /// The transport's table of regions is full.
    #[error("{limit} regions are registered, the limit of this transport")]
    TableFull {
        /// The limit.
        limit: usize,
    },
    /// The transport does not register, or the region is borrowed.
    #[error("this transport has no use for the registration of this region")]
    Useless,
}

/// Why a peer's address was not taken. Reaching the peer is tried later, lazily, and fails as an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The bytes are not an address of this transport.
    #[error("peer {}: not an address of this transport: {why}", .peer.0)]
    BadAddress {
        /// The peer.
        peer: Peer,
        /// What is wrong with it.
        why: String,
    },
    /// None of the peer's addresses can be reached from this host's interfaces.
    #[error("peer {}: no way from here to any of its addresses: {why}", .peer.0)]
    NoRoute {
        /// The peer.
        peer: Peer,
        /// Addresses and interfaces looked at.
        why: String,
    },
}

/// How the payload of this side's sends and receives has moved between lent memory and the wire, in bytes since the
/// transport began. What was cancelled or lost half way counts as far as it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// Copied by a processor: into messages or out of them, by this process or the kernel.
    pub copied_bytes: u64,
    /// Read from lent memory or placed into it by a device, without a copy.
    pub placed_bytes: u64,
}

impl std::ops::AddAssign for Copies {
    fn add_assign(&mut self, more: Copies) {
        self.copied_bytes += more.copied_bytes;
        self.placed_bytes += more.placed_bytes;
    }
}

/// Where a peer sees bytes of another process in place, in the transport's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// Where they begin in the memory that is shown.
    pub offset: u64,
    /// How many they are.
    pub bytes: u64,
}

/// What [`Transport::take_now`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The message: its bytes were handed over, and the receive is over.
    Message,
    /// Nothing has come yet. It may be looked for again, or a receive be posted.
    Nothing,
    /// Something else has come before it. It may be looked for again after a poll, or a receive be posted.
    Behind,
    /// Something that only a posted receive and a poll find out about.
    Other,
}

/// One way of moving bytes to a set of peers. One thread uses it at a time; it may move between threads.
pub trait Transport: Send {
    /// What it can do.
    fn caps(&self) -> Caps;

    /// Where others reach it.
    fn address(&self) -> Address;

    /// Makes messages from and into `region` cheaper, for as long as its memory lives. Idempotent.
    ///
    /// # Errors
    /// [`RegisterError`]; the region works unregistered all the same.
    fn register(&mut self, region: &Region) -> Result<RegionKey, RegisterError>;

    /// Forgets a registration. Unknown ids are ignored.
    fn deregister(&mut self, region: RegionId);

    /// By which of this side's devices memory of a device ([`Region::is_on_device`]) is read and written in exchanges with this
    /// peer, which was introduced; or why it is not, in words. Both sides of a message lend such memory, or neither does.
    ///
    /// # Errors
    /// Why not.
    fn reaches_devices(&self, with: Peer) -> Result<Vec<String>, String> {
        let _ = with;
        Err(format!("{} moves bytes by processors", self.caps().name))
    }

    /// Registers memory of a device and keeps it registered, within the limits that registrations have, until
    /// [`Transport::release_registered`], called as often: before any of it is lent.
    ///
    /// # Errors
    /// [`RegisterError`]; the memory is then none that may be lent.
    fn keep_registered(&mut self, region: &Region) -> Result<(), RegisterError> {
        let _ = region;
        Err(RegisterError::Useless)
    }

    /// The registration may go when room is needed, or by [`Transport::deregister`]. Unknown ids are ignored.
    fn release_registered(&mut self, region: RegionId) {
        let _ = region;
    }

    /// Introduces a peer. Connections are made lazily, at the first post or note. Idempotent for the same address.
    ///
    /// # Errors
    /// [`ConnectError`] when the address cannot be used.
    fn connect(&mut self, peer: Peer, to: &Address) -> Result<(), ConnectError>;

    /// Declares a peer lost: its pending operations complete with `PeerLost` (T6). Unknown peers are ignored.
    fn close(&mut self, peer: Peer, why: Cause);

    /// Takes an operation.
    ///
    /// # Errors
    /// [`PostError`], and the operation untouched.
    #[allow(clippy::result_large_err)]
    fn post(&mut self, id: OpId, op: Op) -> Result<(), (PostError, Op)>;

    /// Sends a small message where it can go at once, ahead of nothing that was posted before it. `true`: its bytes have
    /// been copied, it took its place on the tag (T2), and nothing more is heard of it. `false`: nothing happened; post it.
    /// Costs less than a post, its lease and its completion, where a transport has it at all. It may take messages beyond
    /// `eager_bytes`, which are copied once more than if they were posted.
    fn send_now(&mut self, to: Peer, tag: Tag, stamp: &Stamp, bytes: &[u8]) -> bool {
        let _ = (to, tag, stamp, bytes);
        false
    }

    /// Takes the next message of `from` on `tag` where it has come, or comes within `looks` looks, and has this stamp and
    /// length: `take` is called once, with its bytes, and it was received (T2). They may lie in memory that the peer can
    /// change: what is decided by them is decided once. Should the peer be lost meanwhile, `take` may have been called and
    /// the message not been received; a receive that is posted then fails. Otherwise nothing happened.
    /// Costs less than a post, its lease and its completion, and a copy less, where a transport has it at all.
    fn take_now(
        &mut self,
        from: Peer,
        tag: Tag,
        expected: (&Stamp, usize),
        looks: u32,
        take: &mut dyn FnMut(&[u8]),
    ) -> Found {
        let _ = (from, tag, expected, looks, take);
        Found::Other
    }

    /// Withdraws an operation (T7). Unknown and finished ids are ignored. The completion comes from `poll`.
    fn cancel(&mut self, id: OpId);

    /// Sends a note.
    ///
    /// # Errors
    /// [`PostError`] when the peer is gone, unknown, or has too many notes queued.
    fn note(&mut self, to: Peer, note: &Note) -> Result<(), PostError>;

    /// Where `to` can read these bytes in place, without a message, or `None` where it cannot. They must be left alone
    /// until `to` has said, by means of its own, that it sees them no more, or has ended.
    fn show(&mut self, _to: Peer, _bytes: &ReadLease) -> Option<Sight> {
        None
    }

    /// The bytes that `from` shows there, or `None` where they cannot be seen.
    fn view(&mut self, _from: Peer, _sight: Sight) -> Option<ForeignBytes> {
        None
    }

    /// Whether large messages with this peer, which was introduced, are read where they lie, at the speed of memory. Both
    /// sides say the same.
    fn shares_memory(&self, _with: Peer) -> bool {
        false
    }

    /// Moves bytes, and appends what happened to `out`. Returns whether anything moved at all (bytes or events), so
    /// that the caller's spinning knows idleness from slow progress.
    fn poll(&mut self, out: &mut Vec<Event>) -> bool;

    /// Whether something that is to go to a peer waits here for room, or for a connection, and goes only by polling: of a send that is
    /// over, a note, or what tells the peer how to go on.
    fn has_unsent(&self) -> bool {
        false
    }

    /// Says that the caller is about to sleep on `sleep_fd`. `false`: there is something to poll, do not sleep.
    fn prepare_sleep(&mut self) -> bool;

    /// Readable when `poll` has something to say, after `prepare_sleep` answered `true`.
    fn sleep_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Rouses whoever sleeps on `sleep_fd`, from any thread.
    fn waker(&self) -> Waker;

    /// Earliest moment, from now, at which `poll` must be called even if the fd stays silent (retries, timeouts).
    fn next_timer_ms(&self) -> Option<u64>;

    /// Forgets the arrived and unmatched messages of a group for good, and ignores late ones. Its posted operations
    /// must have been cancelled.
    fn retire(&mut self, group: u32);

    /// Says goodbye to all peers, so that they can tell an orderly end from a crash. Queued bytes are flushed for at
    /// most `linger_ms`. Called once, last; blocks for at most that long.
    fn leave(&mut self, linger_ms: u64);

    /// For diagnosis: how this peer is reached and why so (addresses, interface, driver, congestion control), or
    /// `None` before any connection. One line.
    fn why(&self, peer: Peer) -> Option<String>;

    /// For diagnosis: how payload has moved so far.
    fn copies(&self) -> Copies;

    /// For diagnosis: tags with posted operations towards this peer that have not matched, as (sends, receives).
    fn pending(&self, peer: Peer) -> (usize, usize);
}

impl Tag {
    /// The tag's 64-bit wire form: group in the upper half.
    pub fn to_u64(self) -> u64 {
        u64::from(self.group) << 32 | u64::from(self.lane)
    }
}

impl<T: Transport + ?Sized> Transport for Box<T> {
    fn caps(&self) -> Caps {
        (**self).caps()
    }

    fn address(&self) -> Address {
        (**self).address()
    }

    fn register(&mut self, region: &Region) -> Result<RegionKey, RegisterError> {
        (**self).register(region)
    }

    fn deregister(&mut self, region: RegionId) {
        (**self).deregister(region);
    }

    fn reaches_devices(&self, with: Peer) -> Result<Vec<String>, String> {
        (**self).reaches_devices(with)
    }

    fn keep_registered(&mut self, region: &Region) -> Result<(), RegisterError> {
        (**self).keep_registered(region)
    }

    fn release_registered(&mut self, region: RegionId) {
        (**self).release_registered(region);
    }

    fn connect(&mut self, peer: Peer, to: &Address) -> Result<(), ConnectError> {
        (**self).connect(peer, to)
    }

    fn close(&mut self, peer: Peer, why: Cause) {
        (**self).close(peer, why);
    }

    fn post(&mut self, id: OpId, op: Op) -> Result<(), (PostError, Op)> {
        (**self).post(id, op)
    }

    fn send_now(&mut self, to: Peer, tag: Tag, stamp: &Stamp, bytes: &[u8]) -> bool {
        (**self).send_now(to, tag, stamp, bytes)
    }

    fn take_now(
        &mut self,
        from: Peer,
        tag: Tag,
        expected: (&Stamp, usize),
        looks: u32,
        take: &mut dyn FnMut(&[u8]),
    ) -> Found {
        (**self).take_now(from, tag, expected, looks, take)
    }

    fn cancel(&mut self, id: OpId) {
        (**self).cancel(id);
    }

    fn note(&mut self, to: Peer, note: &Note) -> Result<(), PostError> {
        (**self).note(to, note)
    }

    fn show(&mut self, to: Peer, bytes: &ReadLease) -> Option<Sight> {
        (**self).show(to, bytes)
    }

    fn view(&mut self, from: Peer, sight: Sight) -> Option<ForeignBytes> {
        (**self).view(from, sight)
    }

    fn shares_memory(&self, with: Peer) -> bool {
        (**self).shares_memory(with)
    }

    fn poll(&mut self, out: &mut Vec<Event>) -> bool {
        (**self).poll(out)
    }

    fn has_unsent(&self) -> bool {
        (**self).has_unsent()
    }

    fn prepare_sleep(&mut self) -> bool {
        (**self).prepare_sleep()
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).sleep_fd()
    }

    fn waker(&self) -> Waker {
        (**self).waker()
    }

    fn next_timer_ms(&self) -> Option<u64> {
        (**self).next_timer_ms()
    }

    fn retire(&mut self, group: u32) {
        (**self).retire(group);
    }

    fn leave(&mut self, linger_ms: u64) {
        (**self).leave(linger_ms);
    }

    fn why(&self, peer: Peer) -> Option<String> {
        (**self).why(peer)
    }

    fn copies(&self) -> Copies {
        (**self).copies()
    }

    fn pending(&self, peer: Peer) -> (usize, usize) {
        (**self).pending(peer)
    }
}
