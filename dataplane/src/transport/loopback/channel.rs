//! One direction between two members: what was sent, what is wanted, and what has matched.
//!
//! Invariants:
//! - **L1** Operations of a tag are numbered on each side as they are posted, and equal numbers match (T2). An operation
//!   that is withdrawn leaves its number unused, and the other side's operation of that number is discarded (T7).
//! - **L2** Sends and receives are counted apart, each up to `depth` (T4); messages held in eager buffers likewise.
//! - **L3** Every operation is in exactly one of `lanes` and `matched` until its completion is handed out (T1).

use crate::memory::{ReadLease, WriteLease};
use crate::transport::op::{Cause, CauseKind, Completion, Event, Note, OpError, OpId, Peer, PostError};
use crate::transport::op::{Stamp, Tag};
use crate::transport::seed::Seeded;
use std::collections::{HashMap, HashSet, VecDeque};

/// Notes that may wait in one direction before `note` answers `Full`.
pub const MAX_QUEUED_NOTES: usize = 256;
/// Groups whose late messages are ignored after [`Transport::retire`](crate::transport::Transport::retire); the one
/// that was retired first is forgotten first.
pub const MAX_RETIRED_GROUPS: usize = 1024;
/// With reordering, a match is held for fewer polls of its receiver than this.
const MAX_HOLD_POLLS: u64 = 6;

/// What a direction is made with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) eager_bytes: usize,
    pub(super) depth: usize,
    pub(super) reorder: bool,
}

#[derive(Debug)]
enum Sent {
    Posted { id: OpId, stamp: Stamp, bytes: ReadLease },
    Buffered { stamp: Stamp, bytes: Vec<u8> },
}

#[derive(Debug)]
struct Wanted {
    id: OpId,
    stamp: Stamp,
    into: WriteLease,
}

/// One tag's two sequences, each with the number of its operation (L1).
#[derive(Debug, Default)]
struct Lane {
    sent: VecDeque<(u64, Sent)>,
    wanted: VecDeque<(u64, Wanted)>,
    next_sent: u64,
    next_wanted: u64,
}

#[derive(Debug)]
struct Match {
    tag: Tag,
    sent: Sent,
    wanted: Wanted,
    hold_polls: u64,
}

/// Which end of the direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Sender,
    Receiver,
}

/// Completions for the two ends; the caller sees to it that they get there.
pub(super) struct Out<'a> {
    pub(super) sender: &'a mut Vec<Event>,
    pub(super) receiver: &'a mut Vec<Event>,
}

/// What a delivery left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left {
    /// Something is held for a later poll.
    pub(super) held: bool,
    /// The sender's goodbye was heard now.
    pub(super) goodbye: bool,
}

#[derive(Debug)]
pub(super) struct Direction {
    limits: Limits,
    random: Seeded,
    lanes: HashMap<Tag, Lane>,
    matched: VecDeque<Match>,
    notes: VecDeque<(u64, Box<Note>)>,
    sends_posted: usize,
    recvs_posted: usize,
    buffered: usize,
    spare_lanes: Vec<Lane>,
    spare_bytes: Vec<Vec<u8>>,
    held_tags: Vec<Tag>,
    retired: HashSet<u32>,
    /// The same, in the order in which they were retired.
    retired_order: VecDeque<u32>,
    /// What the receiver calls the sender, and the sender the receiver, once introduced.
    pub(super) sender_name: Option<Peer>,
    pub(super) receiver_name: Option<Peer>,
    /// Why nothing more is exchanged, in the words for each end.
    pub(super) sender_end: Option<Cause>,
    pub(super) receiver_end: Option<Cause>,
    /// The sender has left.
    goodbye: bool,
}

fn done(id: OpId, result: Result<(), OpError>, lease: impl Into<crate::memory::Lease>) -> Event {
    Event::Done(Completion { id, result, lease: lease.into() })
}

impl Direction {
    pub(super) fn new(limits: Limits, random: Seeded) -> Direction {
        Direction {
            limits,
            random,
            lanes: HashMap::with_capacity(limits.depth.min(64)),
            matched: VecDeque::new(),
            notes: VecDeque::new(),
            sends_posted: 0,
            recvs_posted: 0,
            buffered: 0,
            spare_lanes: Vec::new(),
            spare_bytes: Vec::new(),
            held_tags: Vec::new(),
            retired: HashSet::new(),
            retired_order: VecDeque::new(),
            sender_name: None,
            receiver_name: None,
            sender_end: None,
            receiver_end: None,
            goodbye: false,
        }
    }

    /// Takes a send. `Ok(true)`: there is something for the receiver to poll.
    pub(super) fn send(
        &mut self,
        (id, tag, stamp): (OpId, Tag, Stamp),
        bytes: ReadLease,
        out: &mut Out<'_>,
    ) -> Result<bool, (PostError, ReadLease)> {
        let peer = self.receiver_name.unwrap_or(Peer(u32::MAX));
        if let Some(cause) = &self.sender_end {
            return Err((PostError::Gone { peer, cause: cause.clone() }, bytes));
        }
        if self.sends_posted >= self.limits.depth {
            return Err((PostError::Full(peer), bytes));
        }
        if self.retired.contains(&tag.group) {
            out.sender.push(done(id, Ok(()), bytes));
            return Ok(false);
        }
        let eager = self.limits.eager_bytes > 0 && bytes.len() <= self.limits.eager_bytes;
        let lane = lane(&mut self.lanes, &mut self.spare_lanes, tag);
        let number = lane.next_sent;
        lane.next_sent += 1;
        // A receive that waits takes the bytes straight from the sender's memory, so nothing is buffered for it.
        // Nor is anything behind a send that was not buffered: what is lost when the sender leaves is then a tail.
        let follows = lane.sent.back().is_none_or(|s| matches!(s.1, Sent::Buffered { .. }));
        let room = self.buffered < self.limits.depth;
        let sent = if eager && room && follows && lane.wanted.is_empty() {
            let mut copy =
                self.spare_bytes.pop().unwrap_or_else(|| Vec::with_capacity(self.limits.eager_bytes));
            copy.clear();
            copy.extend_from_slice(bytes.bytes());
            self.buffered += 1;
            out.sender.push(done(id, Ok(()), bytes));
            Sent::Buffered { stamp, bytes: copy }
        } else {
            self.sends_posted += 1;
            Sent::Posted { id, stamp, bytes }
        };
        lane.sent.push_back((number, sent));
        Ok(self.settle(tag, out))
    }

    /// Takes a receive. `Ok(true)`: there is something for the receiver to poll.
    pub(super) fn recv(
        &mut self,
        (id, tag, stamp): (OpId, Tag, Stamp),
        into: WriteLease,
        out: &mut Out<'_>,
    ) -> Result<bool, (PostError, WriteLease)> {
        let peer = self.sender_name.unwrap_or(Peer(u32::MAX));
        if let Some(cause) = &self.receiver_end {
            let arrived = self.goodbye && self.lanes.get(&tag).is_some_and(Lane::next_has_arrived);
            if !arrived {
                return Err((PostError::Gone { peer, cause: cause.clone() }, into));
            }
        }
        if self.recvs_posted >= self.limits.depth {
            return Err((PostError::Full(peer), into));
        }
        let lane = lane(&mut self.lanes, &mut self.spare_lanes, tag);
        let number = lane.next_wanted;
        lane.next_wanted += 1;
        self.recvs_posted += 1;
        lane.wanted.push_back((number, Wanted { id, stamp, into }));
        Ok(self.settle(tag, out))
    }

    /// Matches equal numbers of a tag, and discards what can match no more (L1). Whether there is a new match.
    fn settle(&mut self, tag: Tag, out: &mut Out<'_>) -> bool {
        let Some(lane) = self.lanes.get_mut(&tag) else { return false };
        let mut matches = 0;
        let mut discarded = (None, None);
        loop {
            let sent = lane.sent.front().map(|s| s.0);
            let wanted = lane.wanted.front().map(|w| w.0);
            match (sent, wanted) {
                (Some(s), w) if s < lane.next_wanted && w.is_none_or(|w| s < w) => {
                    discarded.0 = lane.sent.pop_front();
                }
                (s, Some(w)) if w < lane.next_sent && s.is_none_or(|s| w < s) => {
                    discarded.1 = lane.wanted.pop_front();
                }
                (Some(s), Some(w)) if s == w => {
                    let pair = lane.sent.pop_front().zip(lane.wanted.pop_front());
                    if let Some(((_, sent), (_, wanted))) = pair {
                        let hold_polls =
                            if self.limits.reorder { self.random.below(MAX_HOLD_POLLS) } else { 0 };
                        self.matched.push_back(Match { tag, sent, wanted, hold_polls });
                        matches += 1;
                    }
                    continue;
                }
                _ => break,
            }
            match std::mem::take(&mut discarded) {
                (Some((_, Sent::Posted { id, bytes, .. })), _) => {
                    self.sends_posted -= 1;
                    out.sender.push(done(id, Err(OpError::Cancelled), bytes));
                }
                (Some((_, Sent::Buffered { bytes, .. })), _) => {
                    self.buffered -= 1;
                    self.spare_bytes.push(bytes);
                }
                (None, Some((_, w))) => {
                    self.recvs_posted -= 1;
                    out.receiver.push(done(w.id, Err(OpError::Cancelled), w.into));
                }
                (None, None) => {}
            }
        }
        if lane.sent.is_empty() && lane.wanted.is_empty() && lane.next_sent == lane.next_wanted {
            self.spare_lanes.extend(self.lanes.remove(&tag));
        }
        matches > 0
    }

    /// Queues a note.
    pub(super) fn note(&mut self, note: &Note) -> Result<(), PostError> {
        let peer = self.receiver_name.unwrap_or(Peer(u32::MAX));
        if let Some(cause) = &self.sender_end {
            return Err(PostError::Gone { peer, cause: cause.clone() });
        }
        if self.notes.len() >= MAX_QUEUED_NOTES {
            return Err(PostError::Full(peer));
        }
        let hold_polls = if self.limits.reorder { self.random.below(MAX_HOLD_POLLS) } else { 0 };
        self.notes.push_back((hold_polls, Box::new(*note)));
        Ok(())
    }

    /// Called by the receiver, which has been introduced to the sender: moves the bytes of what has matched.
    /// `flush`: nothing is held back any longer.
    pub(super) fn deliver(&mut self, flush: bool, out: &mut Out<'_>) -> Left {
        let Some(from) = self.sender_name else { return Left { held: false, goodbye: false } };
        while let Some((hold_polls, _)) = self.notes.front_mut() {
            if *hold_polls > 0 && !flush {
                *hold_polls -= 1;
                break;
            }
            if let Some((_, note)) = self.notes.pop_front() {
                out.receiver.push(Event::Note { from, note });
            }
        }
        self.move_matched(flush, out);
        let held = !self.matched.is_empty() || !self.notes.is_empty();
        let goodbye = self.goodbye && !held && self.receiver_end.is_none();
        if goodbye {
            self.unserved(from, out);
        }
        Left { held, goodbye }
    }

    /// Finishes the matches that are not held back.
    pub(super) fn move_matched(&mut self, flush: bool, out: &mut Out<'_>) {
        self.held_tags.clear();
        for _ in 0..self.matched.len() {
            let Some(mut m) = self.matched.pop_front() else { break };
            let behind = self.held_tags.contains(&m.tag);
            if (m.hold_polls > 0 || behind) && !flush {
                m.hold_polls = m.hold_polls.saturating_sub(1);
                self.held_tags.push(m.tag);
                self.matched.push_back(m);
            } else {
                self.finish(m, out);
            }
        }
    }

    /// Compares the two sides of a match, copies, and completes both.
    fn finish(&mut self, m: Match, out: &mut Out<'_>) {
        let Wanted { id: recv, stamp: wanted, mut into } = m.wanted;
        let (stamp, bytes) = match &m.sent {
            Sent::Posted { stamp, bytes, .. } => (*stamp, bytes.bytes()),
            Sent::Buffered { stamp, bytes } => (*stamp, bytes.as_slice()),
        };
        let (sent_bytes, wanted_bytes) = (bytes.len() as u64, into.len() as u64);
        let fits = stamp == wanted && sent_bytes == wanted_bytes;
        if fits {
            into.bytes_mut().copy_from_slice(bytes);
        }
        let mismatch = |theirs, their_bytes| Err(OpError::Mismatch { theirs, their_bytes });
        self.recvs_posted -= 1;
        let result = if fits { Ok(()) } else { mismatch(stamp, sent_bytes) };
        out.receiver.push(done(recv, result, into));
        match m.sent {
            Sent::Posted { id, bytes, .. } => {
                self.sends_posted -= 1;
                let result = if fits { Ok(()) } else { mismatch(wanted, wanted_bytes) };
                out.sender.push(done(id, result, bytes));
            }
            Sent::Buffered { bytes, .. } => {
                self.buffered -= 1;
                self.spare_bytes.push(bytes);
            }
        }
    }

    /// Withdraws one end's operation, wherever it is. Whether it was here.
    pub(super) fn cancel(&mut self, end: End, id: OpId, out: &mut Out<'_>) -> bool {
        if let Some(i) = self.matched.iter().position(|m| m.is(end, id)) {
            if let Some(m) = self.matched.remove(i) {
                self.drop_send(m.sent, OpError::Cancelled, out);
                self.drop_recv(m.wanted, OpError::Cancelled, out);
            }
            return true;
        }
        let found = self.lanes.iter().find_map(|(tag, lane)| lane.find(end, id).map(|i| (*tag, i)));
        let Some((tag, i)) = found else { return false };
        let Some(lane) = self.lanes.get_mut(&tag) else { return false };
        match end {
            End::Sender => {
                if let Some((_, sent)) = lane.sent.remove(i) {
                    self.drop_send(sent, OpError::Cancelled, out);
                }
            }
            End::Receiver => {
                if let Some((_, wanted)) = lane.wanted.remove(i) {
                    self.drop_recv(wanted, OpError::Cancelled, out);
                }
            }
        }
        self.settle(tag, out);
        true
    }

    fn drop_send(&mut self, sent: Sent, why: OpError, out: &mut Out<'_>) {
        match sent {
            Sent::Posted { id, bytes, .. } => {
                self.sends_posted -= 1;
                out.sender.push(done(id, Err(why), bytes));
            }
            Sent::Buffered { bytes, .. } => {
                self.buffered -= 1;
                self.spare_bytes.push(bytes);
            }
        }
    }

    fn drop_recv(&mut self, wanted: Wanted, why: OpError, out: &mut Out<'_>) {
        self.recvs_posted -= 1;
        out.receiver.push(done(wanted.id, Err(why), wanted.into));
    }

    /// The tags in use, in order, so that failures come in an order that replays.
    fn tags(&self) -> Vec<Tag> {
        let mut tags: Vec<Tag> = self.lanes.keys().copied().collect();
        tags.sort_unstable();
        tags
    }

    /// Ends the direction for good: everything pending completes with `PeerLost`.
    pub(super) fn end(&mut self, at_sender: &Cause, at_receiver: &Cause, out: &mut Out<'_>) {
        while let Some(m) = self.matched.pop_front() {
            self.lose_send(m.sent, at_sender, out);
            self.lose_recv(m.wanted, at_receiver, out);
        }
        self.lose_lanes(Some(at_sender), Some(at_receiver), out);
        self.lanes.clear();
        self.notes.clear();
        self.sender_end.get_or_insert_with(|| at_sender.clone());
        self.receiver_end.get_or_insert_with(|| at_receiver.clone());
    }

    /// One end is done with the direction while the other may still have use of it: its pending operations complete
    /// with `PeerLost`, and it posts no more.
    pub(super) fn end_one(&mut self, end: End, why: &Cause, out: &mut Out<'_>) {
        match end {
            End::Sender => {
                self.lose_lanes(Some(why), None, out);
                self.sender_end.get_or_insert_with(|| why.clone());
            }
            End::Receiver => {
                self.lose_lanes(None, Some(why), out);
                self.receiver_end.get_or_insert_with(|| why.clone());
            }
        }
    }

    /// The sender says goodbye: what it has finished sending can still be received.
    pub(super) fn say_goodbye(&mut self, own_end: &Cause, out: &mut Out<'_>) {
        self.end_one(End::Sender, own_end, out);
        self.goodbye = true;
    }

    /// After the goodbye: receives whose message never came.
    fn unserved(&mut self, from: Peer, out: &mut Out<'_>) {
        let cause = Cause::new(CauseKind::Left, format!("peer {} said goodbye before sending it", from.0));
        self.end_one(End::Receiver, &cause, out);
    }

    fn lose_lanes(&mut self, sends: Option<&Cause>, recvs: Option<&Cause>, out: &mut Out<'_>) {
        for tag in self.tags() {
            let Some(mut lane) = self.lanes.remove(&tag) else { continue };
            if let Some(cause) = sends {
                for (number, sent) in std::mem::take(&mut lane.sent) {
                    match sent {
                        Sent::Buffered { .. } => lane.sent.push_back((number, sent)),
                        Sent::Posted { .. } => {
                            lane.next_sent -= 1;
                            self.lose_send(sent, cause, out);
                        }
                    }
                }
            }
            // Numbers are given back (only tails are lost), so that what had arrived stays in step.
            if let Some(cause) = recvs {
                lane.next_wanted -= lane.wanted.len() as u64;
                for (_, wanted) in lane.wanted.drain(..) {
                    self.lose_recv(wanted, cause, out);
                }
            }
            if !lane.sent.is_empty() || !lane.wanted.is_empty() {
                self.lanes.insert(tag, lane);
            }
        }
    }

    fn lose_send(&mut self, sent: Sent, cause: &Cause, out: &mut Out<'_>) {
        let peer = self.receiver_name.unwrap_or(Peer(u32::MAX));
        self.drop_send(sent, OpError::PeerLost { peer, cause: cause.clone() }, out);
    }

    fn lose_recv(&mut self, wanted: Wanted, cause: &Cause, out: &mut Out<'_>) {
        let peer = self.sender_name.unwrap_or(Peer(u32::MAX));
        self.drop_recv(wanted, OpError::PeerLost { peer, cause: cause.clone() }, out);
    }

    /// The receiver will never want a message of this group again.
    pub(super) fn retire(&mut self, group: u32, out: &mut Out<'_>) {
        if self.retired.insert(group) {
            self.retired_order.push_back(group);
        }
        if self.retired_order.len() > MAX_RETIRED_GROUPS
            && let Some(oldest) = self.retired_order.pop_front()
        {
            self.retired.remove(&oldest);
        }
        for tag in self.tags().into_iter().filter(|t| t.group == group) {
            let Some(lane) = self.lanes.remove(&tag) else { continue };
            for (_, sent) in lane.sent {
                self.drop_send(sent, OpError::Cancelled, out);
            }
            for (_, wanted) in lane.wanted {
                self.drop_recv(wanted, OpError::Cancelled, out);
            }
        }
    }

    /// Operations that were posted at `end` and have not matched.
    pub(super) fn unmatched(&self, end: End) -> usize {
        let posted = |l: &Lane| match end {
            End::Sender => l.sent.iter().filter(|s| matches!(s.1, Sent::Posted { .. })).count(),
            End::Receiver => l.wanted.len(),
        };
        self.lanes.values().map(posted).sum()
    }

    /// Sends that are posted and not finished.
    pub(super) fn sends_posted(&self) -> usize {
        self.sends_posted
    }
}

fn lane<'a>(lanes: &'a mut HashMap<Tag, Lane>, spare: &mut Vec<Lane>, tag: Tag) -> &'a mut Lane {
    lanes.entry(tag).or_insert_with(|| {
        let mut lane = spare.pop().unwrap_or_default();
        (lane.next_sent, lane.next_wanted) = (0, 0);
        lane
    })
}

impl Lane {
    fn next_has_arrived(&self) -> bool {
        self.sent.iter().any(|s| s.0 == self.next_wanted)
    }

    fn find(&self, end: End, id: OpId) -> Option<usize> {
        match end {
            End::Sender => {
                self.sent.iter().position(|s| matches!(s.1, Sent::Posted { id: i, .. } if i == id))
            }
            End::Receiver => self.wanted.iter().position(|w| w.1.id == id),
        }
    }
}

impl Match {
    fn is(&self, end: End, id: OpId) -> bool {
        match end {
            End::Sender => matches!(self.sent, Sent::Posted { id: i, .. } if i == id),
            End::Receiver => self.wanted.id == id,
        }
    }
}
