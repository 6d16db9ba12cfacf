//! Which send belongs to which receive, between this side and one peer: pure, for any transport with a byte stream
//! or message queue underneath.
//!
//! # Protocol
//! Messages of a tag are numbered in each direction from 0 in the order of their posts; frames carry the number.
//! - **Eager**: a message of at most the agreed `eager_bytes` goes out at once with its payload when there is credit
//!   for it. It waits in a buffer here if its receive is not posted yet. Each costs `1 + ceil(bytes / 64)` units of
//!   the receiver's window, which come back in the `credit` field of any frame.
//! - **Rendezvous**: any other. The receiver says `Cts` (clear to send, with the number of the place it
//!   wants the bytes in) as soon as it is posted; a sender that is posted first says `Rts`. Once the sender has
//!   both, `Data` frames follow, of at most [`FRAME_BYTES`] each. Where the device writes payload by itself, an `Rts` is
//!   a message more for a receiver that says `Cts` in any case, and tells it only what does not match: it is kept back
//!   until [`Matcher::announce`].
//! - Each side compares stamps and lengths by itself. A side that finds a mismatch has announced its own half by
//!   then or does so now, so the other side finds it too.
//! - **Pulling**, between processes that can read each other's memory: `Rts` says where the payload is, and the receiver
//!   copies it out by itself as soon as both halves are there, and says `Taken`. Where it cannot read it, it says `Cts`,
//!   and `Data` follows as above. No `Cts` is said before an `Rts` has come.
//! - `CancelSend` and `CancelRecv` take a half back; the other half is then discarded.
//!
//! # Invariants
//! - **M1** Every posted operation completes exactly once (T1).
//! - **M2** The halves of one number meet, whatever the order in which posts and frames come (T2).
//! - **M3** A send never waits for anything but its own receive: without credit it becomes a rendezvous (T4, T5).
//! - **M4** What the peer can make this side keep is bounded: parked payload by the window, parked announcements by
//!   [`MAX_PARKED`]; more ends the connection (T9).
//! - **M5** A place number that is stale, from a cancelled or failed receive, swallows its bytes.
//! - **M6** Memory that a device reads or writes by itself stays lent until it has stopped. A receive whose place was
//!   given out with an address ([`Matcher::expose`]) and is withdrawn ends when the peer has said `Withdrawn`, after
//!   all that it has written. A send that is withdrawn ends when what was handed out of it has left. A send whose place
//!   was given out ([`Matcher::show`]) and is withdrawn ends when the peer has said `Taken`.
//! - **M7** Memory of a device goes by rendezvous alone, whatever its length, between places with addresses. Payload that comes
//!   for it in a message is none that a well-behaved peer sends.

pub mod header;
mod inbound;
mod keys;
mod outbound;
mod parked;
mod pull;
mod retired;
mod slots;
#[cfg(test)]
mod tests;
mod violation;

pub use inbound::{Body, Incoming, Parked};
pub use outbound::Payload;
pub use pull::Pull;
pub use retired::Retired;
pub use slots::SlotId;
pub use violation::Violation;

use super::op::{Cause, Completion, Event, Op, OpError, OpId, Peer, Stamp};
use crate::memory::{Lease, ReadLease, WriteLease};
use keys::{Key, Map};
use parked::Shelf;
use slots::Slots;
use std::collections::VecDeque;

/// Most payload bytes of one frame, so that small frames get a turn between those of a large message.
pub const FRAME_BYTES: u64 = 1 << 20;
/// Bytes of one unit of eager credit.
pub const UNIT_BYTES: u64 = 64;
/// Most announcements of one kind that a peer may have parked here.
pub const MAX_PARKED: usize = 1 << 16;
/// Groups of which late frames are told from new ones after [`Matcher::retire`]; the oldest is forgotten first.
pub const MAX_RETIRED: usize = 1 << 16;
/// Frames that may wait to be sent before a post is refused. Only cancelling over and over gets there.
pub const MAX_QUEUED: usize = 1 << 14;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A whole message, payload included. `length` bytes follow.
    Eager,
    /// A send is posted: `length` bytes.
    Rts,
    /// A receive is posted: `length` bytes into `slot`.
    Cts,
    /// `length` bytes of a message follow, for `slot` at `offset`.
    Data,
    /// Nothing but `credit`.
    Credit,
    /// The sender takes its half back; `offset` as in `Landed`. With a `slot`, its place was given out: the receiver is to
    /// say `Taken`.
    CancelSend,
    /// The receiver takes its half back. With a `slot`, its place has an address: the sender is to say `Withdrawn`.
    CancelRecv,
    /// The sender will write no more to `slot`, and its devices have written all; `offset` as in `Landed`.
    Withdrawn,
    /// All of the message was written to `slot`, by several devices, of which none knows of the others. Bit `r` of
    /// `offset` says that rail `r` carried bytes of it. That they are visible is for the receiving transport to find
    /// out before the frame is accepted.
    Landed,
    /// A note of `length` bytes follows.
    Note,
    /// Nothing more will come.
    Bye,
    /// The receiver will read no more of the memory of the send with this `slot`: it has all of it, or, with an `offset` of
    /// 0, has left it.
    Taken,
    /// Of a transport with several rails, about one of them; none of matching's business.
    Rail,
}

/// Most devices that a place is registered with: a message is striped over at most so many.
pub const MAX_RAILS: usize = 4;

/// Where a receive's bytes go when the sender's device writes them by itself. All zero: it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Place {
    /// Address of the first byte in the receiver's memory.
    pub address: u64,
    /// What each of the receiver's devices knows the memory by; zero where it does not.
    pub keys: [u32; MAX_RAILS],
}

impl Place {
    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        *self == Place::default()
    }
}

/// One header, before encoding. Fields that a kind does not use are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub kind: Kind,
    /// Units of eager window given back.
    pub credit: u16,
    /// Number of the message on its tag, in its direction.
    pub seq: u32,
    /// The tag ([`super::Tag::to_u64`]).
    pub tag: u64,
    /// The stamp of the announcing side.
    pub stamp: Stamp,
    /// Bytes of the message, or of this frame's payload (`Data`, `Note`).
    pub length: u64,
    /// Number of the place at the receiver; in `Rts` and `Taken`, of the send at the sender.
    pub slot: u64,
    /// In `Cts`, and in `Data` for the sending side's own use: where the place is, for one-sided writes. In `Rts`: where
    /// the payload is, for one-sided reads.
    pub place: Place,
    /// Where this payload begins in the message; in the ends of a message, the rails that carried it.
    pub offset: u64,
}

impl Frame {
    /// A frame of `kind` with all else zero.
    pub fn bare(kind: Kind) -> Frame {
        Frame {
            kind,
            credit: 0,
            seq: 0,
            tag: 0,
            stamp: Stamp::default(),
            length: 0,
            slot: 0,
            place: Place::default(),
            offset: 0,
        }
    }
}

/// What both sides have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Messages of up to this many bytes may go eagerly; 0: none. The lesser of both sides' wishes.
    pub eager_bytes: u64,
    /// Units of eager window that the peer keeps for us.
    pub their_window: u32,
    /// Units of eager window that we keep for the peer.
    pub our_window: u32,
}

/// Units of eager window that a message of `bytes` takes.
#[inline]
pub fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX - 1) + 1
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum SendState {
    /// Eager, waiting for its turn; holds credit.
    Queued,
    /// Eager, its header is out.
    Leaving,
    /// Announced by `Rts`.
    Announced,
    /// Matched: goes to this place of the peer.
    Streaming { to: u64, place: Place },
}

/// How a send that was taken back ends once the device has let go of it.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Ending {
    /// This side took it back.
    Cancelled,
    /// The peer took its receive back, and waits to hear that this place is left alone.
    Discarded { place: u64 },
}

#[derive(Debug)]
struct SendOp {
    id: OpId,
    key: Key,
    stamp: Stamp,
    bytes: ReadLease,
    state: SendState,
    /// Payload bytes of the frames handed out so far.
    framed: u64,
    /// Payload bytes that have left.
    sent: u64,
    /// Its last frame was handed out.
    last: bool,
    /// Where it is was given out.
    shown: bool,
    /// Several devices write it: its end is told by a frame.
    striped: bool,
    /// The rails that carried bytes of it, a bit each.
    rails: u64,
    ending: Option<Ending>,
}

#[derive(Debug)]
struct RecvOp {
    id: OpId,
    key: Key,
    stamp: Stamp,
    into: WriteLease,
    cleared: bool,
    announced: bool,
    received: u64,
    /// The peer's device may write here by itself.
    exposed: bool,
    /// Taken back, waiting for the peer to confirm.
    withdrawn: bool,
    /// What it is read out of.
    source: Option<Source>,
}

/// A send of the peer's whose memory can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Source {
    /// The peer's number of it.
    slot: u64,
    place: Place,
}

#[derive(Debug)]
enum Cts {
    Clear { slot: u64, stamp: Stamp, length: u64, place: Place },
    Discard,
}

#[derive(Debug)]
enum Arrived {
    Rts { stamp: Stamp, length: u64, source: Source },
    Eager { stamp: Stamp, bytes: Vec<u8>, whole: bool, claimed: Option<SlotId> },
    Cancelled,
}

#[derive(Debug)]
enum Out {
    Control(Frame),
    Eager(SlotId),
}

/// The halves of all matches with one peer.
#[derive(Debug)]
pub struct Matcher {
    peer: Peer,
    depth: usize,
    agreed: Option<Agreed>,
    /// Posted before `open`, with their numbers.
    early: VecDeque<(OpId, Op, u32)>,
    early_sends: usize,
    /// Next number to post, by tag: (sends, receives). Only this side's posts add tags.
    next: Map<u64, (u32, u32)>,
    sends: Slots<SendOp>,
    send_keys: Map<Key, SlotId>,
    cts: Map<Key, Cts>,
    recvs: Slots<RecvOp>,
    recv_keys: Map<Key, SlotId>,
    arrived: Map<Key, Arrived>,
    shelf: Shelf,
    out: VecDeque<Out>,
    /// Sends whose `Rts` is kept back, and some that have gone on without it.
    unsaid: VecDeque<SlotId>,
    streams: VecDeque<SlotId>,
    /// Receives that are being read out of the peer's memory.
    pulls: VecDeque<SlotId>,
    /// Units that may be spent.
    credit: u32,
    /// Units to give back.
    owed: u32,
    /// Units that the peer has spent and not got back.
    outstanding: u32,
    /// Operations that were taken back and are not confirmed (M6).
    withdrawing: usize,
    /// Whether a device reads lent memory by itself (M6).
    one_sided: bool,
    /// Whether receivers read payload out of the senders' memory.
    pulling: bool,
    /// What may go at once ([`Matcher::at_once`]).
    at_once_bytes: u64,
    moved: Moved,
}

/// Payload bytes that a matcher was told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Left, whether in messages or written by a device.
    pub sent: u64,
    /// Came in messages.
    pub received: u64,
    /// Were written by the peer's device: messages that ended well.
    pub landed: u64,
    /// Were read by the peer out of the memory that was lent here: messages that ended well.
    pub shown: u64,
}

#[inline]
fn done(events: &mut Vec<Event>, id: OpId, result: Result<(), OpError>, lease: impl Into<Lease>) {
    events.push(Event::Done(Completion { id, result, lease: lease.into() }));
}

impl Matcher {
    /// A matcher with `peer` that takes `depth` operations in each direction. Operations wait until [`Self::open`].
    pub fn new(peer: Peer, depth: u32, window_bytes: usize) -> Matcher {
        Matcher {
            peer,
            depth: depth as usize,
            agreed: None,
            early: VecDeque::new(),
            early_sends: 0,
            next: Map::default(),
            sends: Slots::new(depth),
            send_keys: Map::default(),
            cts: Map::default(),
            recvs: Slots::new(depth),
            recv_keys: Map::default(),
            arrived: Map::default(),
            shelf: Shelf::new(window_bytes.saturating_mul(2)),
            out: VecDeque::new(),
            unsaid: VecDeque::new(),
            streams: VecDeque::new(),
            pulls: VecDeque::new(),
            credit: 0,
            owed: 0,
            outstanding: 0,
            withdrawing: 0,
            one_sided: false,
            pulling: false,
            at_once_bytes: 0,
            moved: Moved::default(),
        }
    }

    /// How much payload has moved so far.
    pub fn moved(&self) -> Moved {
        self.moved
    }

    /// For a transport whose device reads and writes lent memory by itself (M6), and that says
    /// [`announce`](Self::announce) before it sleeps.
    #[must_use]
    pub fn one_sided(self) -> Matcher {
        let unsaid = VecDeque::with_capacity(self.most_unsaid());
        Matcher { one_sided: true, unsaid, ..self }
    }

    /// For a transport whose receivers read payload out of the senders' memory where they can.
    #[must_use]
    pub fn pulling(self) -> Matcher {
        Matcher { pulling: true, ..self }
    }

    /// The connection stands: operations begin.
    pub fn open(&mut self, agreed: Agreed, events: &mut Vec<Event>) {
        self.agreed = Some(agreed);
        self.credit = agreed.their_window;
        self.early_sends = 0;
        while let Some((id, op, seq)) = self.early.pop_front() {
            self.begin(id, op, seq, events);
        }
    }

    fn eager(&self, length: u64) -> bool {
        self.agreed.is_some_and(|a| a.eager_bytes > 0 && length <= a.eager_bytes)
    }

    /// Takes an operation, or gives it back when `depth` are in flight or too many frames wait.
    ///
    /// # Errors
    /// The operation.
    #[allow(clippy::result_large_err)]
    pub fn post(&mut self, id: OpId, op: Op, events: &mut Vec<Event>) -> Result<(), Op> {
        let send = matches!(op, Op::Send { .. });
        let early = if send { self.early_sends } else { self.early.len() - self.early_sends };
        let held = early + if send { self.sends.len() } else { self.recvs.len() };
        if held >= self.depth || self.out.len() >= MAX_QUEUED {
            return Err(op);
        }
        let (next_send, next_recv) = self.next.entry(op.tag().to_u64()).or_default();
        let next = if send { next_send } else { next_recv };
        let seq = *next;
        *next = seq.wrapping_add(1);
        if self.agreed.is_none() {
            self.early_sends += usize::from(send);
            self.early.push_back((id, op, seq));
        } else {
            self.begin(id, op, seq, events);
        }
        Ok(())
    }

    fn begin(&mut self, id: OpId, op: Op, seq: u32, events: &mut Vec<Event>) {
        match op {
            Op::Send { tag, stamp, bytes, .. } => {
                let key = (tag.to_u64(), seq);
                let op = SendOp {
                    id,
                    key,
                    stamp,
                    bytes,
                    state: SendState::Queued,
                    framed: 0,
                    sent: 0,
                    last: false,
                    shown: false,
                    striped: false,
                    rails: 0,
                    ending: None,
                };
                self.begin_send(op, events);
            }
            Op::Recv { tag, stamp, into, .. } => {
                let key = (tag.to_u64(), seq);
                let op = RecvOp {
                    id,
                    key,
                    stamp,
                    into,
                    cleared: false,
                    announced: false,
                    received: 0,
                    exposed: false,
                    withdrawn: false,
                    source: None,
                };
                self.begin_recv(op, events);
            }
        }
    }

    /// Whether the next receive on `tag` has its message here already, so that it can be taken after a goodbye (T11).
    pub fn has_arrived(&self, tag: u64) -> bool {
        let seq = self.next.get(&tag).map_or(0, |n| n.1);
        matches!(self.arrived.get(&(tag, seq)), Some(Arrived::Eager { whole: true, .. } | Arrived::Cancelled))
    }

    fn begin_recv(&mut self, mut op: RecvOp, events: &mut Vec<Event>) {
        let (id, key, stamp, length) = (op.id, op.key, op.stamp, op.into.len() as u64);
        let found = if self.arrived.is_empty() { None } else { self.arrived.remove(&key) };
        match found {
            None => {
                // M7: its place is told at once.
                op.cleared = op.into.is_on_device() || !self.eager(length) && !self.pulling;
                self.await_recv(op);
            }
            Some(Arrived::Cancelled) => done(events, id, Err(OpError::Cancelled), op.into),
            Some(Arrived::Rts { stamp: theirs, length: their_bytes, source }) => {
                op.announced = true;
                if theirs == stamp && their_bytes == length {
                    if self.can_pull(&source) {
                        self.pull(op, source, events);
                    } else {
                        op.cleared = true;
                        self.await_recv(op);
                    }
                } else {
                    // The sender finds the mismatch in this, and sends nothing to the place.
                    self.out.push_back(Out::Control(Frame { stamp, length, ..keyed(Kind::Cts, key) }));
                    done(events, id, Err(OpError::Mismatch { theirs, their_bytes }), op.into);
                }
            }
            Some(Arrived::Eager { stamp: theirs, bytes, whole, .. }) => {
                let their_bytes = bytes.len() as u64;
                // M7
                if theirs != stamp || their_bytes != length || op.into.is_on_device() {
                    self.unpark(bytes);
                    done(events, id, Err(OpError::Mismatch { theirs, their_bytes }), op.into);
                } else if whole {
                    op.into.bytes_mut().copy_from_slice(&bytes);
                    self.unpark(bytes);
                    done(events, id, Ok(()), op.into);
                } else {
                    op.announced = true;
                    let claimed = self.recvs.put(op).ok();
                    self.arrived.insert(key, Arrived::Eager { stamp: theirs, bytes, whole, claimed });
                }
            }
        }
    }

    fn await_recv(&mut self, op: RecvOp) {
        let (key, stamp, length, cleared) = (op.key, op.stamp, op.into.len() as u64, op.cleared);
        // `post` has made sure of a place.
        let Ok(slot) = self.recvs.put(op) else { return };
        self.recv_keys.insert(key, slot);
        if cleared {
            let cts = Frame { stamp, length, slot: slot.0, ..keyed(Kind::Cts, key) };
            self.out.push_back(Out::Control(cts));
        }
    }

    /// Takes a parked buffer back and gives its credit back.
    fn unpark(&mut self, bytes: Vec<u8>) {
        self.owe(units(bytes.len() as u64));
        self.shelf.give(bytes);
    }

    fn owe(&mut self, units: u32) {
        self.owed += units;
        self.outstanding -= units.min(self.outstanding);
    }

    /// Withdraws an operation (T7). `false`: not one of this peer's.
    pub fn cancel(&mut self, id: OpId, events: &mut Vec<Event>) -> bool {
        if let Some(at) = self.early.iter().position(|(i, ..)| *i == id)
            && let Some((id, op, seq)) = self.early.remove(at)
        {
            let send = matches!(op, Op::Send { .. });
            self.early_sends -= usize::from(send);
            let kind = if send { Kind::CancelSend } else { Kind::CancelRecv };
            self.out.push_back(Out::Control(keyed(kind, (op.tag().to_u64(), seq))));
            done(events, id, Err(OpError::Cancelled), op.into_lease());
            return true;
        }
        if let Some(slot) = self.sends.find(|s| s.id == id) {
            self.cancel_send(slot, events);
            return true;
        }
        let Some(slot) = self.recvs.find(|r| r.id == id) else { return false };
        self.cancel_recv(slot, events);
        true
    }

    fn cancel_recv(&mut self, slot: SlotId, events: &mut Vec<Event>) {
        let Some(op) = self.recvs.get_mut(slot) else { return };
        if op.withdrawn {
            return;
        }
        let exposed = op.exposed;
        let place = if exposed { slot.0 } else { 0 };
        self.recv_keys.remove(&op.key);
        self.out.push_back(Out::Control(Frame { slot: place, ..keyed(Kind::CancelRecv, op.key) }));
        if exposed {
            op.withdrawn = true;
            self.withdrawing += 1;
        } else if let Some(op) = self.recvs.take(slot) {
            done(events, op.id, Err(OpError::Cancelled), op.into);
        }
    }

    /// Whether operations that were taken back wait for the peer or the device (M6): they end soon, or the peer is
    /// to be given up.
    pub fn is_withdrawing(&self) -> bool {
        self.withdrawing > 0
    }

    fn forget_withdrawal(&mut self, withdrawn: bool) {
        self.withdrawing -= usize::from(withdrawn).min(self.withdrawing);
    }

    /// Ends everything, as lost for `cause`; what had arrived stays for [`Self::has_arrived`].
    pub fn fail(&mut self, cause: &Cause, events: &mut Vec<Event>) {
        let lost = || Err(OpError::PeerLost { peer: self.peer, cause: cause.clone() });
        while let Some((id, op, _)) = self.early.pop_front() {
            done(events, id, lost(), op.into_lease());
        }
        while let Some(op) = self.sends.take_any() {
            done(events, op.id, lost(), op.bytes);
        }
        while let Some(op) = self.recvs.take_any() {
            done(events, op.id, lost(), op.into);
        }
        self.early_sends = 0;
        self.withdrawing = 0;
        self.send_keys.clear();
        self.recv_keys.clear();
        self.cts.clear();
        self.out.clear();
        self.streams.clear();
        self.pulls.clear();
    }

    /// Forgets what has arrived for a group. Its posted operations have been cancelled.
    pub fn retire(&mut self, group: u32) {
        let of = |tag: &u64| (*tag >> 32) as u32 == group;
        self.next.retain(|tag, _| !of(tag));
        self.cts.retain(|(tag, _), _| !of(tag));
        let mut freed = 0;
        self.arrived.retain(|(tag, _), a| {
            let keep = !of(tag);
            if let (false, Arrived::Eager { bytes, .. }) = (keep, a) {
                freed += units(bytes.len() as u64);
            }
            keep
        });
        self.owe(freed);
    }

    /// Operations that have not matched, as (sends, receives).
    pub fn unmatched(&self) -> (usize, usize) {
        let streaming = self.streams.len();
        let early_recvs = self.early.len() - self.early_sends;
        let sends = (self.sends.len() - streaming.min(self.sends.len())) + self.early_sends;
        (sends, self.recv_keys.len() + early_recvs)
    }

    /// Whether sends are pending.
    pub fn has_sends(&self) -> bool {
        self.sends.len() + self.early_sends > 0
    }

    /// Whether something from the peer is awaited.
    pub fn expects(&self) -> bool {
        self.recvs.len() > 0 || self.sends.len() > 0
    }
}

fn keyed(kind: Kind, (tag, seq): Key) -> Frame {
    Frame { tag, seq, ..Frame::bare(kind) }
}
