//! Two matchers over an adversarial wire, seeded.

mod one_sided;

use super::header::Whole;
use super::{Agreed, Body, FRAME_BYTES, Frame, Kind, Matcher, Parked, Place, Retired, SlotId, Violation};
use crate::memory::{DeviceMemory, Lease, Pool, Region};
use crate::transport::seed::Seeded;
use crate::transport::{Cause, CauseKind, Event, Op, OpError, OpId, Peer, Stamp, Tag};
use std::collections::{HashMap, VecDeque};

const SPAN: usize = 512;
const SPANS: usize = 64;
const LANES: u64 = 3;
/// Holds all operations of a simulation at once.
const DEEP: u32 = 64;

fn stamp(n: u8) -> Stamp {
    Stamp([n; 24])
}

/// What the k-th send on a lane carries.
fn content(from: usize, lane: u32, k: u32, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u32 * 7 + lane * 31 + k * 13 + from as u32 * 101) as u8).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    lane: u32,
    k: u32,
    send: bool,
    stamp: u8,
    len: usize,
}

#[derive(Debug)]
struct Posted {
    plan: Plan,
    span: usize,
    cancelled: bool,
    result: Option<Result<(), OpError>>,
    bytes: Vec<u8>,
}

/// A frame whose payload is on its way: of a send, or kept from a cancelled one.
enum Tail {
    Send(SlotId, usize, usize),
    Kept(Vec<u8>),
}

/// How large messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// In frames.
    Frames,
    /// A device of the sender writes them into place by itself.
    OneSided,
    /// The receiver reads them out of the sender's memory.
    Pulling,
}

const HOWS: [How; 3] = [How::Frames, How::OneSided, How::Pulling];

struct Side {
    me: usize,
    matcher: Matcher,
    region: Region,
    free: Vec<usize>,
    posted: HashMap<OpId, Posted>,
    next: HashMap<(u32, bool), u32>,
    events: Vec<Event>,
    tail: Option<Tail>,
    body: Option<Body>,
    retired: Retired,
    ids: u64,
    how: How,
    /// Writes that the device has not finished, oldest first.
    with_device: VecDeque<(SlotId, usize)>,
}

#[derive(Default)]
struct Wire {
    bytes: VecDeque<Item>,
}

enum Item {
    Frame(Frame),
    Payload(Vec<u8>),
    /// Written by the sender's device: place, offset, bytes, whether the place is told that the message ends.
    Write(SlotId, usize, Vec<u8>, bool),
}

impl Side {
    fn new(me: usize, depth: u32, pool: &Pool, how: How) -> Side {
        let matcher = Matcher::new(Peer(1 - me as u32), depth, 4096);
        Side {
            me,
            matcher: match how {
                How::Frames => matcher,
                How::OneSided => matcher.one_sided(),
                How::Pulling => matcher.pulling(),
            },
            region: pool.region(SPAN * SPANS).unwrap(),
            free: (0..SPANS).collect(),
            posted: HashMap::new(),
            next: HashMap::new(),
            events: Vec::new(),
            tail: None,
            body: None,
            retired: Retired::default(),
            ids: 0,
            how,
            with_device: VecDeque::new(),
        }
    }

    fn post(&mut self, plan: Plan) -> bool {
        let Some(span) = self.free.pop() else { return false };
        let (at, tag) = (span * SPAN, Tag { group: 1, lane: plan.lane });
        let range = at..at + plan.len;
        let op = if plan.send {
            let bytes = content(self.me, plan.lane, plan.k, plan.len);
            self.region.bytes_mut(range.clone()).unwrap().copy_from_slice(&bytes);
            let bytes = self.region.lend_read(range).unwrap();
            Op::Send { to: Peer(0), tag, stamp: stamp(plan.stamp), bytes }
        } else {
            let into = self.region.lend_write(range).unwrap();
            Op::Recv { from: Peer(0), tag, stamp: stamp(plan.stamp), into }
        };
        self.ids += 1;
        let id = OpId(self.ids);
        if let Err(op) = self.matcher.post(id, op, &mut self.events) {
            self.region.restore(op.into_lease()).unwrap();
            self.free.push(span);
            return false;
        }
        self.posted.insert(id, Posted { plan, span, cancelled: false, result: None, bytes: Vec::new() });
        self.collect();
        true
    }

    fn collect(&mut self) {
        for event in std::mem::take(&mut self.events) {
            let Event::Done(c) = event else { panic!("not a completion: {event:?}") };
            let posted = self.posted.get_mut(&c.id).expect("M1: a completion of nothing");
            assert!(posted.result.is_none(), "M1: twice");
            posted.bytes = c.lease.bytes().to_vec();
            assert_eq!(matches!(c.lease, Lease::Read(_)), posted.plan.send);
            posted.result = Some(c.result);
            self.region.restore(c.lease).unwrap();
            self.free.push(posted.span);
        }
    }

    fn cancel(&mut self, id: OpId) {
        if let Some(slot) = self.matcher.committed(id).filter(|_| self.how != How::OneSided)
            && let Some(Tail::Send(of, offset, left)) = self.tail
            && of == slot
        {
            let rest = self.matcher.outgoing(slot).unwrap().bytes()[offset..offset + left].to_vec();
            self.tail = Some(Tail::Kept(rest));
        }
        let pending = self.posted[&id].result.is_none();
        assert_eq!(self.matcher.cancel(id, &mut self.events), pending, "known while pending");
        self.collect();
        let posted = self.posted.get_mut(&id).unwrap();
        let at_once = self.how == How::Frames;
        assert!(!at_once || posted.result.is_some(), "T7: a cancelled operation ends at once");
        posted.cancelled |= pending && matches!(posted.result, None | Some(Err(OpError::Cancelled)));
    }

    /// The device has finished its oldest write.
    fn finish_write(&mut self) -> bool {
        let Some((slot, len)) = self.with_device.pop_front() else { return false };
        assert!(len == 0 || self.matcher.outgoing(slot).is_some(), "M6: lent until the device has let go");
        self.matcher.sent(slot, len, &mut self.events);
        self.collect();
        true
    }

    /// The peer's device writes into a place of this side.
    fn land(&mut self, slot: SlotId, offset: usize, bytes: &[u8], last: bool) {
        let op = self.matcher.recvs.get_mut(slot).expect("M6: lent while the peer may write");
        op.into.bytes_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
        if last {
            self.matcher.landed(slot.index() as u32, &mut self.events).unwrap();
        }
    }

    /// Puts some bytes on the wire.
    fn transmit(&mut self, wire: &mut Wire, random: &mut Seeded) -> bool {
        match self.tail.take() {
            Some(Tail::Kept(rest)) => wire.bytes.push_back(Item::Payload(rest)),
            Some(Tail::Send(slot, offset, left)) => {
                let n = 1 + random.below(left as u64) as usize;
                let bytes = match self.matcher.outgoing(slot) {
                    Some(lease) => lease.bytes()[offset..offset + n].to_vec(),
                    None => vec![0xdd; n],
                };
                wire.bytes.push_back(Item::Payload(bytes));
                self.matcher.sent(slot, n, &mut self.events);
                if left > n {
                    self.tail = Some(Tail::Send(slot, offset + n, left - n));
                }
            }
            None => {
                // Frames of 100 bytes, so that large messages have several.
                let limit = if self.how == How::OneSided { 100 } else { FRAME_BYTES };
                let kept_back = self.matcher.has_unsaid();
                if kept_back && random.below(4) == 0 {
                    self.matcher.announce();
                }
                let Some((mut frame, payload)) = self.matcher.next_frame(|_, _| limit) else {
                    self.matcher.announce();
                    return kept_back;
                };
                if let Some(p) = payload.filter(|_| !frame.place.is_none()) {
                    let bytes =
                        self.matcher.outgoing(p.slot).unwrap().bytes()[p.offset..p.offset + p.len].to_vec();
                    let striped = frame.slot % 3 == 0;
                    if striped {
                        self.matcher.stripe(p.slot);
                    }
                    let tells = p.last && !striped;
                    wire.bytes.push_back(Item::Write(SlotId(frame.slot), p.offset, bytes, tells));
                    self.with_device.push_back((p.slot, p.len));
                    self.collect();
                    return true;
                }
                // Some memory cannot be registered: such messages travel in frames.
                let slot = SlotId(frame.slot);
                if frame.kind == Kind::Cts
                    && self.how == How::OneSided
                    && random.below(4) > 0
                    && self.matcher.expose(slot)
                {
                    frame.place = Place { address: 1, keys: [7; 4] };
                }
                if frame.kind == Kind::Rts
                    && self.how == How::Pulling
                    && random.below(4) > 0
                    && self.matcher.show(slot)
                {
                    frame.place = Place { address: slot.0, keys: [7; 4] };
                }
                wire.bytes.push_back(Item::Frame(frame));
                match payload {
                    Some(p) if p.len > 0 => self.tail = Some(Tail::Send(p.slot, p.offset, p.len)),
                    Some(p) => self.matcher.sent(p.slot, 0, &mut self.events),
                    None => {}
                }
            }
        }
        self.collect();
        true
    }

    /// Takes one item from the wire.
    fn receive(&mut self, wire: &mut Wire) -> bool {
        match wire.bytes.pop_front() {
            None => return false,
            Some(Item::Frame(frame)) => {
                assert!(self.body.is_none(), "a frame within a payload");
                self.body = self
                    .matcher
                    .accept(&frame, &self.retired, &mut self.events)
                    .unwrap_or_else(|v| panic!("{frame:?}: {v}"));
            }
            Some(Item::Payload(bytes)) => {
                let mut body = self.body.take().expect("a payload after its frame");
                if let Some(into) = self.matcher.buffer(&body) {
                    into[..bytes.len()].copy_from_slice(&bytes);
                }
                self.matcher.advance(&mut body, bytes.len(), &mut self.events);
                self.body = Some(body).filter(|b| b.left() > 0);
            }
            Some(Item::Write(slot, offset, bytes, last)) => self.land(slot, offset, &bytes, last),
        }
        self.collect();
        true
    }

    /// Reads some bytes of what the other side shows.
    fn pull(&mut self, other: &Side, random: &mut Seeded) -> bool {
        let Some(pull) = self.matcher.next_pull() else { return false };
        let (slot, offset) = (pull.slot, pull.offset as usize);
        if random.below(8) == 0 {
            self.matcher.cannot_pull(slot);
            return true;
        }
        let shown = other.matcher.announced(SlotId(pull.place.address));
        let shown = shown.expect("M6: lent while the peer may read").bytes();
        let n = 1 + random.below(pull.into.len() as u64) as usize;
        pull.into[..n].copy_from_slice(&shown[offset..offset + n]);
        self.matcher.pulled(slot, n, &mut self.events);
        self.collect();
        true
    }

    fn by_place(&self) -> HashMap<(u32, u32, bool), &Posted> {
        self.posted.values().map(|p| ((p.plan.lane, p.plan.k, p.plan.send), p)).collect()
    }
}

fn check_pair(send: &Posted, recv: &Posted, from: usize) {
    let (s, r) = (send.result.as_ref().unwrap(), recv.result.as_ref().unwrap());
    let (sp, rp) = (send.plan, recv.plan);
    let equal = (sp.stamp, sp.len) == (rp.stamp, rp.len);
    let why = format!("{sp:?} -> {s:?} and {rp:?} -> {r:?}, cancelled {} {}", send.cancelled, recv.cancelled);
    if r.is_ok() {
        assert!(equal && (!send.cancelled || s.is_ok()), "T3: {why}");
        assert_eq!(recv.bytes, content(from, sp.lane, sp.k, sp.len), "T2: {why}");
    }
    match (send.cancelled, recv.cancelled) {
        (false, false) if equal => assert!(s.is_ok() && r.is_ok(), "M2: {why}"),
        (false, false) => {
            let theirs = OpError::Mismatch { theirs: stamp(sp.stamp), their_bytes: sp.len as u64 };
            assert_eq!(r, &Err(theirs), "T3: {why}");
            let theirs = OpError::Mismatch { theirs: stamp(rp.stamp), their_bytes: rp.len as u64 };
            assert!(s.is_ok() || s == &Err(theirs), "T3: {why}");
        }
        // One that is cancelled while it ends may have ended well.
        (true, false) if s.is_ok() && r.is_ok() => {}
        (true, false) => assert!(
            matches!(r, Err(OpError::Cancelled)) || (!equal && matches!(r, Err(OpError::Mismatch { .. }))),
            "T7: {why}"
        ),
        (false, true) => {
            assert!(s.is_ok() || (!equal && matches!(s, Err(OpError::Mismatch { .. }))), "T7: {why}")
        }
        (true, true) => {}
    }
}

/// Posts the same plans at both sides, in random order, with the wire in between; then lets everything end.
fn simulate(seed: u64) {
    let mut random = Seeded::of(seed, 0, 0);
    let pool = Pool::default();
    let depth = [1, 3, DEEP][random.below(3) as usize];
    let agreed = Agreed {
        eager_bytes: [0, 64, 200][random.below(3) as usize],
        their_window: [1, 4, 12][random.below(3) as usize],
        our_window: 0,
    };
    let agreed = Agreed { our_window: agreed.their_window, ..agreed };
    let how = HOWS[random.below(3) as usize];
    let mut sides = [0, 1].map(|me| Side::new(me, depth, &pool, how));
    let mut wires = [Wire::default(), Wire::default()];
    let cancels = random.below(3) == 0;
    let mut queues = plans(&mut random, &mut sides, depth == DEEP);
    let mut open = [false, false];
    let mut idle = 0;
    while idle < 600 {
        idle += 1;
        let me = random.below(2) as usize;
        let other = 1 - me;
        let did = match random.below(8) {
            0 if !open[0] && random.below(4) == 0 => {
                open = [true, true];
                sides.iter_mut().for_each(|s| {
                    s.matcher.open(agreed, &mut s.events);
                    s.collect();
                });
                true
            }
            0..3 => {
                let lane = random.below(LANES * 2) as usize;
                let queue = &mut queues[me][lane];
                queue.front().copied().is_some_and(|plan| sides[me].post(plan)) && queue.pop_front().is_some()
            }
            3 if cancels => {
                let mut pending: Vec<OpId> =
                    sides[me].posted.iter().filter(|p| p.1.result.is_none()).map(|p| *p.0).collect();
                pending.sort();
                let pick = pending.get(random.below(pending.len().max(1) as u64 * 6) as usize).copied();
                pick.map(|id| sides[me].cancel(id)).is_some()
            }
            3..5 => open[0] && sides[me].transmit(&mut wires[me], &mut random),
            5 => {
                // A write is finished when it has reached the other side.
                let written = wires[me].bytes.iter().any(|i| matches!(i, Item::Write(..)));
                let [a, b] = &mut sides;
                let (mine, theirs) = if me == 0 { (a, b) } else { (b, a) };
                (!written && mine.finish_write()) || mine.pull(theirs, &mut random)
            }
            _ => sides[me].receive(&mut wires[other]),
        };
        if did {
            idle = 0;
        }
    }
    for (me, side) in sides.iter().enumerate() {
        assert!(queues[me].iter().all(VecDeque::is_empty), "M3: posts stay refused");
        let pending: Vec<_> = side.posted.values().filter(|p| p.result.is_none()).collect();
        assert!(pending.is_empty(), "M1, M3: side {me} still has {pending:?}");
        assert_eq!(side.matcher.unmatched(), (0, 0));
        assert!(side.matcher.arrived.is_empty() && side.matcher.cts.is_empty(), "M4: nothing stays parked");
    }
    for from in 0..2 {
        let (here, there) = (sides[from].by_place(), sides[1 - from].by_place());
        for ((lane, k, _), send) in here.iter().filter(|p| p.0.2) {
            check_pair(send, there[&(*lane, *k, false)], from);
        }
    }
}

type Queues = [Vec<VecDeque<Plan>>; 2];

/// Lanes are posted in any order among each other when the queues are deep. With shallow ones, both sides must keep to
/// one order, as any program must.
fn plans(random: &mut Seeded, sides: &mut [Side; 2], apart: bool) -> Queues {
    let mut queues: Queues = std::array::from_fn(|_| vec![VecDeque::new(); LANES as usize * 2]);
    let mismatches = random.below(3) == 0;
    for _ in 0..40 {
        let (from, lane) = (random.below(2) as usize, random.below(LANES) as u32);
        let k = sides[from].next.entry((lane, true)).or_default();
        let len = [0, 1, 63, 64, 65, 200, 201, SPAN][random.below(8) as usize];
        let send = Plan { lane, k: *k, send: true, stamp: 1, len };
        *k += 1;
        let mut recv = Plan { send: false, ..send };
        if mismatches && random.below(5) == 0 {
            recv.stamp = 2;
            recv.len = [len, len / 2][random.below(2) as usize];
        }
        let queue = if apart { lane as usize } else { 0 };
        queues[from][queue].push_back(send);
        queues[1 - from][queue + LANES as usize].push_back(recv);
    }
    queues
}

#[test]
fn halves_meet_whatever_the_order() {
    for seed in 0..2000 {
        let result = std::panic::catch_unwind(|| simulate(seed));
        assert!(result.is_ok(), "seed {seed} fails: replay with simulate({seed})");
    }
}

fn open_matcher(eager_bytes: u64, window: u32) -> Matcher {
    let mut matcher = Matcher::new(Peer(1), 4, 4096);
    let agreed = Agreed { eager_bytes, their_window: window, our_window: window };
    matcher.open(agreed, &mut Vec::new());
    matcher
}

fn accept(matcher: &mut Matcher, frame: Frame) -> Result<Option<Body>, Violation> {
    matcher.accept(&frame, &Retired::default(), &mut Vec::new())
}

#[test]
fn what_a_peer_can_park_is_bounded() {
    // M4
    let mut m = open_matcher(64, 4);
    let eager = |seq| Frame { seq, length: 64, ..Frame::bare(Kind::Eager) };
    for seq in 0..2 {
        let mut body = accept(&mut m, eager(seq)).unwrap().unwrap();
        m.advance(&mut body, 64, &mut Vec::new());
    }
    assert_eq!(accept(&mut m, eager(2)), Err(Violation::Window { bytes: 64 }));
    let over = Frame { length: 65, ..Frame::bare(Kind::Eager) };
    assert_eq!(accept(&mut open_matcher(64, 99), over), Err(Violation::Window { bytes: 65 }));
    let mut m = open_matcher(0, 0);
    for kind in [Kind::Rts, Kind::Cts] {
        for seq in 0..super::MAX_PARKED as u32 {
            accept(&mut m, Frame { seq, ..Frame::bare(kind) }).unwrap();
        }
        let more = Frame { seq: super::MAX_PARKED as u32, ..Frame::bare(kind) };
        assert_eq!(accept(&mut m, more), Err(Violation::Parked));
    }
}

#[test]
fn nonsense_is_a_violation() {
    let mut m = open_matcher(64, 4);
    let data = Frame { slot: 5, length: 1, ..Frame::bare(Kind::Data) };
    assert!(matches!(accept(&mut m, data), Err(Violation::Place { .. })));
    let credit = Frame { credit: 1, ..Frame::bare(Kind::Credit) };
    assert!(matches!(accept(&mut m, credit), Err(Violation::Credit { .. })));
    accept(&mut m, Frame::bare(Kind::Rts)).unwrap();
    assert!(matches!(accept(&mut m, Frame::bare(Kind::Rts)), Err(Violation::Twice { .. })));
    assert_eq!(accept(&mut m, Frame::bare(Kind::Bye)), Err(Violation::Kind(Kind::Bye)));
}

#[test]
fn random_frames_never_panic() {
    // T9
    let kinds = [
        Kind::Eager,
        Kind::Rts,
        Kind::Cts,
        Kind::Data,
        Kind::Credit,
        Kind::CancelSend,
        Kind::CancelRecv,
        Kind::Withdrawn,
        Kind::Landed,
        Kind::Note,
        Kind::Bye,
    ];
    for seed in 0..300 {
        let mut random = Seeded::of(seed, 1, 0);
        let pool = Pool::default();
        let mut side = Side::new(0, 4, &pool, HOWS[(seed % 3) as usize]);
        side.matcher.open(Agreed { eager_bytes: 64, their_window: 9, our_window: 9 }, &mut Vec::new());
        for k in 0..3 {
            side.post(Plan { lane: k, k: 0, send: k == 1, stamp: 0, len: 100 * k as usize });
        }
        for _ in 0..60 {
            let mut pick = |n: u64| random.below(n);
            let frame = Frame {
                kind: kinds[pick(11) as usize],
                credit: pick(3) as u16,
                seq: pick(3) as u32,
                tag: 1 << 32 | pick(3),
                stamp: stamp(pick(2) as u8),
                length: [0, 1, 64, 100, 200, u64::MAX][pick(6) as usize],
                slot: [pick(4), 1 << 32 | pick(4), u64::MAX][pick(3) as usize],
                offset: [0, 1, u64::MAX][pick(3) as usize],
                place: Place { address: pick(2), ..Place::default() },
            };
            if pick(8) == 0 && side.matcher.landed(pick(5) as u32, &mut side.events).is_err() {
                break;
            }
            let Ok(body) = side.matcher.accept(&frame, &side.retired, &mut side.events) else { break };
            if let Some(mut body) = body {
                let n = body.left();
                if let Some(into) = side.matcher.buffer(&body) {
                    into.fill(1);
                }
                side.matcher.advance(&mut body, n, &mut side.events);
            }
            side.collect();
        }
        side.matcher.fail(&Cause::new(CauseKind::Protocol, "test"), &mut side.events);
        side.collect();
        assert!(side.posted.values().all(|p| p.result.is_some()), "M1, seed {seed}");
    }
}

#[test]
fn a_retired_group_gives_its_credit_back() {
    let mut m = open_matcher(64, 4);
    let eager = Frame { tag: 7 << 32, length: 64, ..Frame::bare(Kind::Eager) };
    let mut body = accept(&mut m, eager).unwrap().unwrap();
    m.advance(&mut body, 64, &mut Vec::new());
    assert!(m.has_arrived(7 << 32));
    m.retire(7);
    assert!(!m.has_arrived(7 << 32));
    let (frame, payload) = m.next_frame(|_, _| FRAME_BYTES).unwrap();
    assert_eq!((frame.kind, frame.credit, payload), (Kind::Credit, 2, None));
    let mut retired = Retired::default();
    retired.add(7);
    let late = m.accept(&Frame { seq: 1, ..eager }, &retired, &mut Vec::new()).unwrap();
    assert_eq!(late, Some(Body::discard(64)));
    assert!(!m.has_arrived(7 << 32));
}

#[test]
fn the_straight_way_takes_what_waits_and_touches_nothing_else() {
    // M2, M4
    let pool = Pool::default();
    let mut side = Side::new(0, 4, &pool, How::OneSided);
    side.matcher.open(Agreed { eager_bytes: 64, their_window: 8, our_window: 8 }, &mut Vec::new());
    assert!(side.post(Plan { lane: 0, k: 0, send: false, stamp: 1, len: 3 }));
    let (tag, ours, theirs) = (Tag { group: 1, lane: 0 }.to_u64(), [1; 24], [2; 24]);
    let good = Whole { credit: 0, seq: 0, tag, stamp: &ours, length: 3 };
    let (mut none, mut over) = (Retired::default(), Retired::default());
    none.add(9);
    over.add(1);
    let odd = [
        (Whole { credit: 1, ..good }, "abc", &none),
        (Whole { seq: 1, ..good }, "abc", &none),
        (Whole { tag: tag + 1, ..good }, "abc", &none),
        (Whole { stamp: &theirs, ..good }, "abc", &none),
        (Whole { length: 4, ..good }, "abc", &none),
        (Whole { length: 4, ..good }, "abcd", &none),
        (good, "abc", &over),
    ];
    for (head, payload, retired) in odd {
        assert!(!side.matcher.take_whole(&head, payload.as_bytes(), retired, &mut side.events), "{head:?}");
    }
    let state = |m: &Matcher| (m.credit, m.owed, m.outstanding, m.unmatched());
    assert!(side.events.is_empty() && state(&side.matcher) == (8, 0, 0, (0, 1)));
    assert!(side.matcher.take_whole(&good, b"abc", &none, &mut side.events));
    assert_eq!(state(&side.matcher), (8, 2, 0, (0, 0)));
    side.collect();
    let posted = side.posted.values().next().unwrap();
    assert_eq!((&posted.result, &posted.bytes[..]), (&Some(Ok(())), &b"abc"[..]));
    assert!(!side.matcher.take_whole(&good, b"abc", &none, &mut side.events), "once");
}

#[test]
fn what_goes_at_once_may_be_longer_than_what_goes_eagerly_if_posted() {
    let (tag, stamp, retired, mut events) =
        (Tag { group: 1, lane: 2 }, stamp(3), Retired::default(), Vec::new());
    let new = |eager_bytes, at_once_bytes| {
        let mut matcher = Matcher::new(Peer(1), 4, 4096).at_once(at_once_bytes);
        matcher.open(Agreed { eager_bytes, their_window: 40, our_window: 40 }, &mut Vec::new());
        matcher
    };
    let [mut from, mut to, mut other] = [1000, 1000, 0].map(|at_once_bytes| new(64, at_once_bytes));
    assert!(from.eager_now(tag, &stamp, 1001).is_none() && new(0, 1000).eager_now(tag, &stamp, 1).is_none());
    let head = from.eager_now(tag, &stamp, 1000).unwrap();
    let expected = (tag.to_u64(), &stamp, 1000);
    assert!(!other.take_unposted(&head, expected) && to.take_unposted(&head, expected));
    // One that is parked is no worse, and one that is posted waits for its receiver.
    let (seq, length) = (1, 1000);
    let frame = Frame { stamp, length, seq, tag: tag.to_u64(), ..Frame::bare(Kind::Eager) };
    to.deliver(&frame, &[7; 1000], &retired, &mut events).unwrap();
    assert_eq!(to.take_parked(expected, &mut |bytes| assert_eq!(bytes, [7; 1000])), Parked::Taken);
    let refused = other.deliver(&frame, &[7; 1000], &retired, &mut events);
    assert_eq!(refused, Err(Violation::Window { bytes: 1000 }));
    let bytes = Pool::default().region(1000).unwrap().lend_read(0..1000).unwrap();
    from.post(OpId(1), Op::Send { to: Peer(1), tag, stamp, bytes }, &mut events).unwrap();
    assert_eq!(from.next_frame(|_, _| 4096).map(|(frame, _)| frame.kind), Some(Kind::Rts));
}

#[test]
fn memory_of_a_device_goes_by_places_alone() {
    // M7: nothing of it is eager, its receives say at once where they are, and no payload is taken for them.
    let file = std::fs::File::open("/dev/null").unwrap();
    let memory = DeviceMemory::new((1 << 40, 100), (file.into(), 0), ()).unwrap();
    let (mut region, mut events, retired) = (memory.region(0..100).unwrap(), Vec::new(), Retired::default());
    let (tag, stamp) = (Tag { group: 1, lane: 0 }, stamp(3));
    let new = |events: &mut Vec<Event>| {
        let mut matcher = Matcher::new(Peer(1), 8, 4096).one_sided();
        matcher.open(Agreed { eager_bytes: 4096, their_window: 1000, our_window: 1000 }, events);
        matcher
    };
    let mut matcher = new(&mut events);
    let bytes = region.lend_read(0..50).unwrap();
    matcher.post(OpId(1), Op::Send { to: Peer(1), tag, stamp, bytes }, &mut events).unwrap();
    let into = region.lend_write(50..100).unwrap();
    matcher.post(OpId(2), Op::Recv { from: Peer(1), tag, stamp, into }, &mut events).unwrap();
    let mut said = || matcher.next_frame(|_, _| 4096).map(|(frame, payload)| (frame, payload.is_none()));
    let (rts, cts) = (said().unwrap(), said().unwrap());
    assert_eq!((rts.0.kind, rts.1, cts.0.kind, cts.1), (Kind::Rts, true, Kind::Cts, true));
    let eager = Frame { stamp, length: 50, tag: tag.to_u64(), ..Frame::bare(Kind::Eager) };
    let data = Frame { slot: cts.0.slot, ..Frame { kind: Kind::Data, ..eager } };
    for frame in [data, eager] {
        let taken = matcher.deliver(&frame, &[1; 50], &retired, &mut events);
        assert_eq!(taken, Err(Violation::Device { bytes: 50 }), "{frame:?}");
    }
    let mut matcher = new(&mut events);
    matcher.deliver(&eager, &[1; 50], &retired, &mut events).unwrap();
    let into = memory.region(0..50).unwrap().lend_write(0..50).unwrap();
    matcher.post(OpId(3), Op::Recv { from: Peer(1), tag, stamp, into }, &mut events).unwrap();
    assert!(matches!(&events[..], [Event::Done(c)] if matches!(c.result, Err(OpError::Mismatch { .. }))));
}
