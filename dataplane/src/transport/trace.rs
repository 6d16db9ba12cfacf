//! A decorator that remembers what a transport did: the last operations and events, and counts per peer. The flight
//! recorder's source.
//!
//! - **R1** Memory is bounded: a ring of a fixed number of records, one entry per operation in flight, one set of
//!   counters per peer. Once these have grown, recording allocates nothing.
//! - **R2** What the transport does and tells is passed on unchanged and in order.

use super::contract::{Address, ConnectError, Copies, Transport};
use super::forward::forward;
use super::op::{Cause, Event, Note, Op, OpId, Peer, PostError, Tag};
use std::collections::HashMap;
use std::time::Instant;

/// What a record tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// A send was taken.
    PostSend,
    /// A receive was taken.
    PostRecv,
    /// A post was refused.
    Refused,
    /// A send finished.
    Sent,
    /// A receive finished.
    Received,
    /// An operation ended with an error.
    Failed,
    /// An operation was cancelled by this side; how it ended comes later.
    Cancel,
    /// A note was sent; `bytes` is its length.
    NoteOut,
    /// A note came; `bytes` is its length.
    NoteIn,
    /// The peer was introduced.
    Connect,
    /// This side closed the peer.
    Close,
    /// The peer was lost.
    Lost,
    /// The peer said goodbye.
    Left,
}

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Nanoseconds since the trace began.
    pub at_ns: u64,
    /// What happened.
    pub what: What,
    /// With whom.
    pub peer: Peer,
    /// The operation, or 0 where there is none.
    pub id: OpId,
    /// The operation's tag, or zeros where there is none.
    pub tag: Tag,
    /// Payload length in bytes.
    pub bytes: u64,
}

/// Totals of one peer since the trace began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sends that finished, and their bytes.
    pub sends: u64,
    /// Bytes of these.
    pub sent_bytes: u64,
    /// Receives that finished.
    pub receives: u64,
    /// Bytes of these.
    pub received_bytes: u64,
    /// Operations that ended with an error.
    pub failures: u64,
    /// Posts that were refused.
    pub refusals: u64,
    /// Notes sent.
    pub notes_out: u64,
    /// Notes that came.
    pub notes_in: u64,
}

/// An operation that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// The operation.
    pub id: OpId,
    /// The other side.
    pub peer: Peer,
    /// Its sequence.
    pub tag: Tag,
    /// Payload length in bytes.
    pub bytes: u64,
    /// Whether it sends (or else receives).
    pub sends: bool,
    /// When it was posted, in nanoseconds since the trace began.
    pub since_ns: u64,
}

/// What a trace knows at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Nanoseconds since the trace began.
    pub now_ns: u64,
    /// The last records, oldest first.
    pub records: Vec<Record>,
    /// How many older ones the ring no longer holds.
    pub forgotten: u64,
    /// Totals of each peer that was ever introduced or posted to, by number.
    pub peers: Vec<(Peer, Counters)>,
    /// Operations that have not ended, oldest first.
    pub open: Vec<Open>,
    /// How payload has moved so far: whether a processor copied it.
    pub copies: Copies,
    /// Calls of `poll`, and how many of these moved nothing.
    pub polls: u64,
    /// Of these, how many moved nothing.
    pub idle_polls: u64,
}

#[derive(Debug)]
struct Book {
    begun: Instant,
    ring: Vec<Record>,
    capacity: usize,
    written: u64,
    peers: Vec<Option<Counters>>,
    open: HashMap<OpId, Open>,
    polls: u64,
    idle_polls: u64,
}

impl Book {
    fn now_ns(&self) -> u64 {
        // 584 years fit.
        self.begun.elapsed().as_nanos() as u64
    }

    fn write(&mut self, record: Record) {
        if self.ring.len() < self.capacity {
            self.ring.push(record);
        } else {
            let at = (self.written % self.capacity as u64) as usize;
            self.ring[at] = record;
        }
        self.written += 1;
    }

    fn plain(&mut self, what: What, peer: Peer, bytes: u64) {
        let record =
            Record { at_ns: self.now_ns(), what, peer, id: OpId(0), tag: Tag { group: 0, lane: 0 }, bytes };
        self.write(record);
    }

    fn of_op(&mut self, what: What, op: Open) {
        let Open { id, peer, tag, bytes, .. } = op;
        let record = Record { at_ns: self.now_ns(), what, peer, id, tag, bytes };
        self.write(record);
    }

    /// A peer's counters; `None` for a number that no table of peers has.
    fn counters(&mut self, peer: Peer) -> Option<&mut Counters> {
        self.peers.get_mut(peer.0 as usize)?.as_mut()
    }

    fn know(&mut self, peer: Peer) {
        let at = peer.0 as usize;
        if self.peers.len() <= at {
            self.peers.resize(at + 1, None);
        }
        self.peers[at].get_or_insert_default();
    }

    fn count(&mut self, peer: Peer, f: impl FnOnce(&mut Counters)) {
        if let Some(counters) = self.counters(peer) {
            f(counters);
        }
    }

    fn told(&mut self, event: &Event) {
        match event {
            Event::Done(c) => {
                let Some(op) = self.open.remove(&c.id) else { return };
                let what = match (&c.result, op.sends) {
                    (Ok(()), true) => What::Sent,
                    (Ok(()), false) => What::Received,
                    (Err(_), _) => What::Failed,
                };
                self.of_op(what, op);
                self.count(op.peer, |n| match what {
                    What::Sent => (n.sends, n.sent_bytes) = (n.sends + 1, n.sent_bytes + op.bytes),
                    What::Received => {
                        (n.receives, n.received_bytes) = (n.receives + 1, n.received_bytes + op.bytes);
                    }
                    _ => n.failures += 1,
                });
            }
            Event::Note { from, note } => {
                self.plain(What::NoteIn, *from, note.bytes().len() as u64);
                self.count(*from, |n| n.notes_in += 1);
            }
            Event::Lost { peer, .. } => self.plain(What::Lost, *peer, 0),
            Event::Left { peer } => self.plain(What::Left, *peer, 0),
        }
    }
}

/// A transport that is recorded.
#[derive(Debug)]
pub struct Trace<T> {
    inner: T,
    book: Book,
}

impl<T: Transport> Trace<T> {
    /// Records `inner` from now on, keeping the last `records` records (at least 1).
    pub fn new(inner: T, records: usize) -> Trace<T> {
        let capacity = records.max(1);
        let book = Book {
            begun: Instant::now(),
            ring: Vec::with_capacity(capacity),
            capacity,
            written: 0,
            peers: Vec::new(),
            open: HashMap::with_capacity(inner.caps().depth.min(1024) as usize * 4),
            polls: 0,
            idle_polls: 0,
        };
        Trace { inner, book }
    }

    /// What is known now. Allocates; for diagnosis.
    pub fn snapshot(&self) -> Snapshot {
        let book = &self.book;
        let oldest = if book.ring.len() < book.capacity { 0 } else { book.written as usize % book.capacity };
        let peers = book.peers.iter().enumerate();
        let mut open: Vec<Open> = book.open.values().copied().collect();
        open.sort_by_key(|o| (o.since_ns, o.id));
        Snapshot {
            now_ns: book.now_ns(),
            records: book.ring[oldest..].iter().chain(&book.ring[..oldest]).copied().collect(),
            forgotten: book.written - book.ring.len() as u64,
            peers: peers.filter_map(|(i, c)| Some((Peer(i as u32), (*c)?))).collect(),
            open,
            copies: self.inner.copies(),
            polls: book.polls,
            idle_polls: book.idle_polls,
        }
    }

    /// The transport, without its trace.
    pub fn into_inner(self) -> T {
        self.inner
    }
}

impl<T: Transport> Transport for Trace<T> {
    forward!(inner: caps, address, register, deregister, reaches_devices, keep_registered,
        release_registered, show, view, has_unsent, prepare_sleep, sleep_fd, waker, next_timer_ms, retire, leave, why, copies, pending);
    fn connect(&mut self, peer: Peer, to: &Address) -> Result<(), ConnectError> {
        self.inner.connect(peer, to)?;
        self.book.know(peer);
        self.book.plain(What::Connect, peer, 0);
        Ok(())
    }

    fn close(&mut self, peer: Peer, why: Cause) {
        self.book.plain(What::Close, peer, 0);
        self.inner.close(peer, why);
    }

    fn post(&mut self, id: OpId, op: Op) -> Result<(), (PostError, Op)> {
        let open = Open {
            id,
            peer: op.peer(),
            tag: op.tag(),
            bytes: op.len() as u64,
            sends: matches!(op, Op::Send { .. }),
            since_ns: self.book.now_ns(),
        };
        let taken = self.inner.post(id, op);
        if taken.is_ok() {
            self.book.of_op(if open.sends { What::PostSend } else { What::PostRecv }, open);
            self.book.open.insert(id, open);
        } else {
            self.book.of_op(What::Refused, open);
            self.book.count(open.peer, |n| n.refusals += 1);
        }
        taken
    }

    fn cancel(&mut self, id: OpId) {
        if let Some(op) = self.book.open.get(&id).copied() {
            self.book.of_op(What::Cancel, op);
        }
        self.inner.cancel(id);
    }

    fn note(&mut self, to: Peer, note: &Note) -> Result<(), PostError> {
        self.inner.note(to, note)?;
        self.book.plain(What::NoteOut, to, note.bytes().len() as u64);
        self.book.count(to, |n| n.notes_out += 1);
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Event>) -> bool {
        let before = out.len();
        let moved = self.inner.poll(out);
        self.book.polls += 1;
        self.book.idle_polls += u64::from(!moved);
        out[before..].iter().for_each(|event| self.book.told(event));
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Pool;
    use crate::transport::{CauseKind, Hub, LoopbackConfig, Stamp};

    const TAG: Tag = Tag { group: 3, lane: 4 };

    fn traced(records: usize) -> (Trace<crate::transport::Loopback>, crate::transport::Loopback) {
        let mut group = Hub::new(LoopbackConfig::default()).group(2).unwrap();
        let b = group.pop().unwrap();
        let address = b.address();
        let mut a = Trace::new(group.pop().unwrap(), records);
        a.connect(Peer(1), &address).unwrap();
        (a, b)
    }

    fn whats(s: &Snapshot) -> Vec<What> {
        s.records.iter().map(|r| r.what).collect()
    }

    #[test]
    fn tells_what_happened_and_what_has_not() {
        let (mut a, mut b) = traced(100);
        let pool = Pool::default();
        let (mut r, mut q) = (pool.region(10).unwrap(), pool.region(10).unwrap());
        let stamp = Stamp::default();
        let bytes = r.lend_read(0..10).unwrap();
        a.post(OpId(1), Op::Send { to: Peer(1), tag: TAG, stamp, bytes }).unwrap();
        let into = q.lend_write(0..10).unwrap();
        a.post(OpId(2), Op::Recv { from: Peer(1), tag: TAG, stamp, into }).unwrap();
        a.note(Peer(1), &Note::new(b"abc").unwrap()).unwrap();
        b.note(Peer(0), &Note::new(b"de").unwrap()).unwrap();
        let mut out = Vec::new();
        a.poll(&mut out);
        let s = a.snapshot();
        let told = [What::Connect, What::PostSend, What::PostRecv, What::NoteOut, What::Sent, What::NoteIn];
        assert_eq!(whats(&s), told);
        assert_eq!((s.records[4].tag, s.records[4].bytes, s.records[4].id), (TAG, 10, OpId(1)));
        assert!(s.records.is_sorted_by_key(|r| r.at_ns) && s.forgotten == 0);
        let [open] = s.open[..] else { panic!("{s:?}") };
        assert_eq!((open.id, open.peer, open.sends), (OpId(2), Peer(1), false));
        let [(Peer(1), n)] = s.peers[..] else { panic!("{s:?}") };
        assert_eq!((n.sends, n.sent_bytes, n.receives, n.notes_out, n.notes_in), (1, 10, 0, 1, 1));
        assert_eq!(s.copies, Copies { copied_bytes: 10, placed_bytes: 0 });
        a.close(Peer(1), Cause::new(CauseKind::Local, "enough"));
        a.poll(&mut out);
        let s = a.snapshot();
        assert_eq!(whats(&s)[6..], [What::Close, What::Failed, What::Lost]);
        assert!(s.open.is_empty() && s.peers[0].1.failures == 1);
    }

    #[test]
    fn the_ring_keeps_the_last() {
        // R1
        let (mut a, _b) = traced(4);
        for k in 0..7u8 {
            a.note(Peer(1), &Note::new(&vec![0; k.into()]).unwrap()).unwrap();
        }
        let s = a.snapshot();
        assert_eq!(s.records.iter().map(|r| r.bytes).collect::<Vec<_>>(), [3, 4, 5, 6]);
        assert_eq!(s.forgotten, 4);
        assert_eq!(s.peers[0].1.notes_out, 7);
    }
}
