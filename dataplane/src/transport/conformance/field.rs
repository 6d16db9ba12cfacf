//! Members, what they were asked, and what they told: the harness of the checks.
//!
//! All members are polled in turn from one thread. Every completion is checked as it comes (T1): its id is pending, its
//! lease is the one that was posted.

use super::{DEADLINE, Depth, Mode, Rig, Skip};
use crate::memory::{Pool, Region};
use crate::transport::seed::Seeded;
use crate::transport::{
    Caps, CauseKind, Completion, Event, Found, Note, Op, OpError, OpId, Peer, PostError, Stamp, Tag,
    Transport,
};
use std::collections::HashMap;
use std::time::Instant;

/// What receive buffers hold before anything is received.
pub(super) const UNTOUCHED: u8 = 0xee;

/// A stamp of 24 equal bytes.
pub(super) fn stamp(n: u8) -> Stamp {
    Stamp([n; 24])
}

/// The lane `n` of group 1.
pub(super) fn tag(n: u32) -> Tag {
    Tag { group: 1, lane: n }
}

/// `len` bytes that no other seed gives.
pub(super) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Seeded::of(seed, len as u64, 0);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// One thing that a member told, in order.
#[derive(Debug)]
pub(super) enum Told {
    Done(OpId, Result<(), OpError>),
    Note(Peer, Vec<u8>),
    Lost(Peer, CauseKind),
    Left(Peer),
}

/// One operation: member and id.
pub(super) type At = (usize, OpId);

struct Posted {
    region: Region,
    pending: bool,
}

pub(super) struct Field {
    pub(super) members: Vec<Option<Box<dyn Transport>>>,
    pub(super) told: Vec<Vec<Told>>,
    /// Goes into every panic: what is varied, such as a seed or a stage.
    pub(super) context: String,
    pool: Pool,
    ops: HashMap<At, Posted>,
    next_id: u64,
    mode: Mode,
    started: Instant,
}

impl Field {
    /// `n` members that know each other.
    pub(super) fn new(rig: &mut dyn Rig, mode: Mode, n: u32) -> Result<Field, Skip> {
        let mut field = Field::strangers(rig, mode, n)?;
        for i in 0..n as usize {
            for j in (0..n as usize).filter(|j| *j != i) {
                field.introduce(i, j);
            }
        }
        Ok(field)
    }

    /// `n` members that do not.
    pub(super) fn strangers(rig: &mut dyn Rig, mode: Mode, n: u32) -> Result<Field, Skip> {
        let members: Vec<_> = rig.members(n, mode)?.into_iter().map(Some).collect();
        let told = members.iter().map(|_| Vec::new()).collect();
        let field = Field {
            members,
            told,
            context: String::new(),
            pool: Pool::default(),
            ops: HashMap::new(),
            next_id: 1,
            mode,
            started: Instant::now(),
        };
        let caps = field.caps();
        assert!(
            mode.eager || caps.eager_bytes == 0,
            "the rig was asked for no eager buffer, and made {caps:?}"
        );
        assert!(
            mode.depth == Depth::Own || caps.depth == 1,
            "the rig was asked for depth 1, and made {caps:?}"
        );
        Ok(field)
    }

    pub(super) fn introduce(&mut self, to: usize, whom: usize) {
        let address = self.member(whom).address();
        let result = self.member_mut(to).connect(Peer(whom as u32), &address);
        assert_eq!(result, Ok(()), "{}", self.at());
    }

    pub(super) fn at(&self) -> String {
        format!("[{}{}{}]", self.mode, if self.context.is_empty() { "" } else { ", " }, self.context)
    }

    pub(super) fn member(&self, i: usize) -> &dyn Transport {
        self.members[i].as_deref().unwrap_or_else(|| panic!("member {i} is gone {}", self.at()))
    }

    pub(super) fn member_mut(&mut self, i: usize) -> &mut dyn Transport {
        let at = self.at();
        self.members[i].as_deref_mut().unwrap_or_else(|| panic!("member {i} is gone {at}"))
    }

    pub(super) fn caps(&self) -> Caps {
        self.member(0).caps()
    }

    /// Skips what needs several operations to one peer at a time.
    pub(super) fn need_depth(&self, depth: u32) -> Result<(), Skip> {
        if self.caps().depth >= depth {
            Ok(())
        } else {
            Err(Skip::new(format!("a depth of {depth} operations")))
        }
    }

    /// Skips what needs an eager buffer for `bytes`.
    pub(super) fn need_eager(&self, bytes: u64) -> Result<(), Skip> {
        if self.caps().eager_bytes >= bytes {
            Ok(())
        } else {
            Err(Skip::new(format!("an eager buffer of {bytes} bytes")))
        }
    }

    fn post(&mut self, me: usize, region: Region, op: Op) -> Result<OpId, PostError> {
        let id = OpId(self.next_id);
        self.next_id += 1;
        let (peer, tag, len) = (op.peer(), op.tag(), op.len());
        match self.member_mut(me).post(id, op) {
            Ok(()) => {
                self.ops.insert((me, id), Posted { region, pending: true });
                Ok(id)
            }
            Err((why, op)) => {
                assert_eq!((op.peer(), op.tag(), op.len()), (peer, tag, len), "handed back {}", self.at());
                let mut region = region;
                let restored = region.restore(op.into_lease());
                assert_eq!(restored, Ok(()), "handed back another lease {}", self.at());
                Err(why)
            }
        }
    }

    fn region(&mut self, len: usize) -> Region {
        self.pool.region(len).unwrap_or_else(|e| panic!("{e}"))
    }

    pub(super) fn try_send(
        &mut self,
        (me, to): (usize, usize),
        tag: Tag,
        stamp: Stamp,
        content: &[u8],
    ) -> Result<OpId, PostError> {
        let mut region = self.region(content.len());
        region.bytes_mut(0..content.len()).unwrap_or_else(|e| panic!("{e}")).copy_from_slice(content);
        let bytes = region.lend_read(0..content.len()).unwrap_or_else(|e| panic!("{e}"));
        self.post(me, region, Op::Send { to: Peer(to as u32), tag, stamp, bytes })
    }

    /// Whether it went at once.
    pub(super) fn send_now(&mut self, (me, to): (usize, usize), tag: Tag, content: &[u8]) -> bool {
        self.member_mut(me).send_now(Peer(to as u32), tag, &stamp(0), content)
    }

    /// What it found, and the bytes.
    pub(super) fn take_now(
        &mut self,
        (me, from): (usize, usize),
        tag: Tag,
        len: usize,
    ) -> (Found, Option<Vec<u8>>) {
        let (mut got, stamp) = (None, stamp(0));
        let mut take = |bytes: &[u8]| {
            let before = got.replace(bytes.to_vec());
            assert!(before.is_none(), "T1: handed over twice");
        };
        let found = self.member_mut(me).take_now(Peer(from as u32), tag, (&stamp, len), 1, &mut take);
        assert_eq!(found == Found::Message, got.is_some(), "T5: {found:?} {}", self.at());
        (found, got)
    }

    pub(super) fn try_recv(
        &mut self,
        (me, from): (usize, usize),
        tag: Tag,
        stamp: Stamp,
        len: usize,
    ) -> Result<OpId, PostError> {
        let mut region = self.region(len);
        region.bytes_mut(0..len).unwrap_or_else(|e| panic!("{e}")).fill(UNTOUCHED);
        let into = region.lend_write(0..len).unwrap_or_else(|e| panic!("{e}"));
        self.post(me, region, Op::Recv { from: Peer(from as u32), tag, stamp, into })
    }

    /// Posts, polling all members while the queue is full.
    fn insist(&mut self, what: &str, mut attempt: impl FnMut(&mut Field) -> Result<OpId, PostError>) -> OpId {
        let deadline = Instant::now() + DEADLINE;
        loop {
            match attempt(self) {
                Ok(id) => return id,
                Err(PostError::Full(_)) => {
                    assert!(Instant::now() < deadline, "{what} stayed full {}: {}", self.at(), self.state());
                    self.poll();
                }
                Err(other) => panic!("{what}: {other} {}", self.at()),
            }
        }
    }

    /// Sends from member `me` to member `to`, stamped 0.
    pub(super) fn send(&mut self, (me, to): (usize, usize), tag: Tag, content: &[u8]) -> At {
        (me, self.insist("a send", |f| f.try_send((me, to), tag, stamp(0), content)))
    }

    /// Receives at member `me` from member `from`, stamped 0.
    pub(super) fn recv(&mut self, (me, from): (usize, usize), tag: Tag, len: usize) -> At {
        (me, self.insist("a receive", |f| f.try_recv((me, from), tag, stamp(0), len)))
    }

    /// Polls one member; whether it moved.
    pub(super) fn poll_one(&mut self, i: usize) -> bool {
        let Some(member) = &mut self.members[i] else { return false };
        let mut events = Vec::new();
        let moved = member.poll(&mut events);
        assert!(moved || events.is_empty(), "poll told {events:?} and said that nothing moved {}", self.at());
        for event in events {
            let told = match event {
                Event::Done(c) => self.take(i, c),
                Event::Note { from, note } => Told::Note(from, note.bytes().to_vec()),
                Event::Lost { peer, cause } => Told::Lost(peer, cause.kind),
                Event::Left { peer } => Told::Left(peer),
            };
            self.told[i].push(told);
        }
        moved
    }

    fn take(&mut self, i: usize, c: Completion) -> Told {
        let at = self.at();
        let posted = self.ops.get_mut(&(i, c.id));
        let posted =
            posted.unwrap_or_else(|| panic!("T1: member {i} completed {:?}, never posted {at}", c.id));
        assert!(posted.pending, "T1: member {i} completed {:?} twice {at}", c.id);
        posted.pending = false;
        assert_eq!(posted.region.restore(c.lease), Ok(()), "T1: another operation's lease {at}");
        Told::Done(c.id, c.result)
    }

    /// Polls every member once; whether any moved.
    pub(super) fn poll(&mut self) -> bool {
        (0..self.members.len()).fold(false, |moved, i| self.poll_one(i) | moved)
    }

    /// Polls all until `true`. `invariant` is what hangs otherwise.
    pub(super) fn until(&mut self, invariant: &str, what: &str, mut is: impl FnMut(&Field) -> bool) {
        let everyone: Vec<usize> = (0..self.members.len()).collect();
        self.until_of(&everyone, invariant, what, &mut is);
    }

    /// Polls only these members until `true`.
    pub(super) fn until_of(
        &mut self,
        who: &[usize],
        invariant: &str,
        what: &str,
        is: &mut dyn FnMut(&Field) -> bool,
    ) {
        let deadline = Instant::now() + DEADLINE;
        while !is(self) {
            let moved = who.iter().fold(false, |moved, i| self.poll_one(*i) | moved);
            if !moved {
                assert!(
                    Instant::now() < deadline,
                    "{invariant}: hung waiting for {what} {}: {}",
                    self.at(),
                    self.state()
                );
                std::thread::yield_now();
            }
        }
    }

    /// For loops that post and poll: the field is not older than [`DEADLINE`].
    pub(super) fn in_time(&self, invariant: &str, what: &str) {
        let in_time = self.started.elapsed() < DEADLINE;
        assert!(in_time, "{invariant}: hung waiting for {what} {}: {}", self.at(), self.state());
    }

    /// For a panic: what is pending and what was told last.
    fn state(&self) -> String {
        let mut pending: Vec<&At> = self.ops.iter().filter(|o| o.1.pending).map(|o| o.0).collect();
        pending.sort();
        let last: Vec<_> = self.told.iter().map(|t| t.iter().rev().take(3).collect::<Vec<_>>()).collect();
        format!("pending {pending:?}, last told by member {last:?}")
    }

    /// The end of an operation, once it has come.
    pub(super) fn result(&self, (me, id): At) -> Option<&Result<(), OpError>> {
        self.told[me].iter().find_map(|t| match t {
            Told::Done(i, result) if *i == id => Some(result),
            _ => None,
        })
    }

    /// Polls all until these have ended.
    pub(super) fn finish(&mut self, invariant: &str, ops: &[At]) {
        self.until(invariant, "completions", |f| ops.iter().all(|o| f.result(*o).is_some()));
    }

    /// The end of an operation that has ended.
    pub(super) fn ended(&self, at: At) -> &Result<(), OpError> {
        self.result(at).unwrap_or_else(|| panic!("{at:?} has not ended {}", self.at()))
    }

    /// Ends these, all with success.
    pub(super) fn succeed(&mut self, invariant: &str, ops: &[At]) {
        self.finish(invariant, ops);
        for op in ops {
            assert_eq!(self.ended(*op), &Ok(()), "{invariant} {}", self.at());
        }
    }

    /// Forgets operations that have ended, so that their memory is used again.
    pub(super) fn forget(&mut self) {
        for (_, posted) in self.ops.extract_if(|_, p| !p.pending) {
            self.pool.recycle(posted.region);
        }
        self.told.iter_mut().for_each(|t| t.retain(|t| !matches!(t, Told::Done(..))));
    }

    /// The bytes of an operation that has ended.
    pub(super) fn bytes(&self, at: At) -> &[u8] {
        let region = &self.ops[&at].region;
        region.bytes(0..region.len()).unwrap_or_else(|e| panic!("{e} {}", self.at()))
    }

    /// Checks what a receive received.
    pub(super) fn check_bytes(&self, invariant: &str, at: At, expected: &[u8]) {
        let got = self.bytes(at);
        if got != expected {
            let differs = got.iter().zip(expected).position(|(a, b)| a != b);
            let (got, expected, at) = (got.len(), expected.len(), self.at());
            panic!("{invariant}: {got} bytes for {expected}, first difference at {differs:?} {at}");
        }
    }

    /// Notes there and back between two members: whatever was on its way has had its chance to move.
    pub(super) fn round_trips(&mut self, a: usize, b: usize) {
        for k in 0..4u8 {
            for (from, to) in [(a, b), (b, a)] {
                let note = Note::new(&[0xf0, k]).unwrap_or_else(|| unreachable!("2 bytes fit a note"));
                let sent = self.member_mut(from).note(Peer(to as u32), &note);
                assert_eq!(sent, Ok(()), "{}", self.at());
                let before = self.notes_told(to);
                self.until("T8", "a note", |f| f.notes_told(to) > before);
            }
        }
    }

    fn notes_told(&self, i: usize) -> usize {
        self.told[i].iter().filter(|t| matches!(t, Told::Note(..))).count()
    }

    /// How often member `i` was told that `peer` is lost, and that it left.
    pub(super) fn departures(&self, i: usize, peer: usize) -> (usize, usize) {
        let peer = Peer(peer as u32);
        let count = |f: &dyn Fn(&Told) -> bool| self.told[i].iter().filter(|t| f(t)).count();
        (
            count(&|t| matches!(t, Told::Lost(p, _) if *p == peer)),
            count(&|t| matches!(t, Told::Left(p) if *p == peer)),
        )
    }

    /// Position in what member `me` told of the end of an operation.
    pub(super) fn position(&self, at: At) -> usize {
        let is = |t: &Told| matches!(t, Told::Done(id, _) if *id == at.1);
        self.told[at.0].iter().position(is).unwrap_or_else(|| panic!("{at:?} has not ended {}", self.at()))
    }

    /// `assert!` with the context.
    pub(super) fn holds(&self, invariant: &str, what: &str, is: bool) {
        assert!(is, "{invariant}: {what} {}: {}", self.at(), self.state());
    }
}
