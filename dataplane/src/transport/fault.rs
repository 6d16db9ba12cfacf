//! A decorator that makes a transport fail on purpose, by a seeded plan, so that code can be tested against faults
//! without a broken network.
//!
//! - **F1** Whatever the plan, the contract of [`contract`](super::contract) holds towards the caller: a fault is one that
//!   a real network or peer could cause.
//! - **F2** The same seed, plan and calls inject the same faults.
//! - **F3** With an empty plan nothing is changed.

use super::contract::{Address, ConnectError, Transport};
use super::forward::forward;
use super::op::{Cause, CauseKind, Event, Op, OpId, Peer, PostError, Stamp};
use super::seed::Seeded;
use super::wake::Waker;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// While stalled, how often a sleeper looks whether it was released, in milliseconds.
const STALL_LOOK_MS: u64 = 1;

/// When a fault strikes: after this much was taken by `post`, both directions together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Operations.
    Ops(u64),
    /// Payload bytes.
    Bytes(u64),
}

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection to a peer breaks, once, after so much was exchanged with it. The peer notices too.
    DropPeer {
        /// The peer.
        peer: Peer,
        /// When.
        after: After,
    },
    /// One event in `once_in` (and all that come after it) is told up to `polls` polls later.
    DelayEvents {
        /// 1: every event.
        once_in: u32,
        /// Longest delay.
        polls: u32,
    },
    /// One post in `once_in` is answered `Full`, as long as the peer's queue in that direction is not empty.
    RefusePosts {
        /// 1: every post.
        once_in: u32,
    },
    /// One operation in `once_in` gets another stamp, so that it and its match fail with `Mismatch`.
    CorruptStamps {
        /// 1: every operation.
        once_in: u32,
    },
    /// Nothing moves after so much was taken, until [`FaultHandle::release`].
    Stall {
        /// When.
        after: After,
    },
    /// In one poll in `once_in`, one of the operations in flight is cancelled.
    CancelStorm {
        /// 1: in every poll.
        once_in: u32,
    },
}

/// Which faults, and the seed of their chance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// The seed.
    pub seed: u64,
    /// The faults; each acts on its own.
    pub faults: Vec<Fault>,
}

/// How many faults were injected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Injected {
    /// Peers dropped.
    pub dropped: u64,
    /// Events delayed.
    pub delayed: u64,
    /// Posts refused.
    pub refused: u64,
    /// Stamps changed.
    pub corrupted: u64,
    /// Operations cancelled.
    pub cancelled: u64,
    /// Stalls begun.
    pub stalls: u64,
}

#[derive(Debug)]
struct Control {
    stalled: AtomicBool,
    drops: Mutex<Vec<Peer>>,
    dropping: AtomicBool,
    waker: Waker,
}

/// Injects faults from outside, from any thread.
#[derive(Clone, Debug)]
pub struct FaultHandle {
    control: Arc<Control>,
}

impl FaultHandle {
    /// Nothing moves from now on.
    pub fn stall(&self) {
        self.control.stalled.store(true, Ordering::SeqCst);
    }

    /// Ends a stall.
    pub fn release(&self) {
        self.control.stalled.store(false, Ordering::SeqCst);
        self.control.waker.wake();
    }

    /// Breaks the connection to a peer at the next poll.
    pub fn drop_peer(&self, peer: Peer) {
        self.control.drops.lock().unwrap_or_else(PoisonError::into_inner).push(peer);
        self.control.dropping.store(true, Ordering::SeqCst);
        self.control.waker.wake();
    }
}

/// What was taken so far.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    ops: u64,
    bytes: u64,
}

impl Taken {
    fn reaches(self, after: After) -> bool {
        match after {
            After::Ops(n) => self.ops >= n,
            After::Bytes(n) => self.bytes >= n,
        }
    }

    fn add(&mut self, bytes: usize) {
        self.ops += 1;
        self.bytes += bytes as u64;
    }
}

/// A transport with faults.
#[derive(Debug)]
pub struct Faulty<T> {
    inner: T,
    /// The faults, and whether each of those that strike once has struck.
    faults: Vec<(Fault, bool)>,
    random: Seeded,
    control: Arc<Control>,
    /// Never readable: what a sleeper sleeps on during a stall.
    silence: Waker,
    taken: Taken,
    taken_by_peer: BTreeMap<Peer, Taken>,
    /// Operations in flight, in the order of their ids.
    open: Vec<(OpId, Peer, bool)>,
    /// Events to be told, each after so many more polls once it is first.
    held: VecDeque<(u32, Event)>,
    injected: Injected,
}

impl<T: Transport> Faulty<T> {
    /// Wraps `inner` with the faults of `plan`.
    ///
    /// # Errors
    /// When the process is out of file descriptors.
    pub fn new(inner: T, plan: FaultPlan) -> std::io::Result<Faulty<T>> {
        let control = Arc::new(Control {
            stalled: AtomicBool::new(false),
            drops: Mutex::default(),
            dropping: AtomicBool::new(false),
            waker: inner.waker(),
        });
        Ok(Faulty {
            inner,
            faults: plan.faults.into_iter().map(|f| (f, false)).collect(),
            random: Seeded::new(plan.seed),
            control,
            silence: Waker::new()?,
            taken: Taken::default(),
            taken_by_peer: BTreeMap::new(),
            open: Vec::new(),
            held: VecDeque::new(),
            injected: Injected::default(),
        })
    }

    /// For injecting more from outside.
    pub fn handle(&self) -> FaultHandle {
        FaultHandle { control: Arc::clone(&self.control) }
    }

    /// What was injected so far.
    pub fn injected(&self) -> Injected {
        self.injected
    }

    fn stalled(&self) -> bool {
        self.control.stalled.load(Ordering::SeqCst)
    }

    /// Whether a fault that strikes by chance does so now. `pick` names the kind, and gives its chance.
    fn strikes(&mut self, pick: impl Fn(&Fault) -> Option<u32>) -> bool {
        let chance = self.faults.iter().find_map(|(f, _)| pick(f));
        chance.is_some_and(|once_in| self.random.once_in(once_in))
    }

    /// Faults that strike once, after so much was taken.
    fn strike_after(&mut self) {
        for (fault, struck) in self.faults.iter_mut().filter(|f| !f.1) {
            match *fault {
                Fault::DropPeer { peer, after } => {
                    let taken = self.taken_by_peer.get(&peer).copied().unwrap_or_default();
                    if taken.reaches(after) {
                        *struck = true;
                        self.injected.dropped += 1;
                        let evidence = format!(
                            "injected fault: connection reset after {} operations and {} bytes",
                            taken.ops, taken.bytes
                        );
                        self.inner.close(peer, Cause::new(CauseKind::Reset, evidence));
                    }
                }
                Fault::Stall { after } if self.taken.reaches(after) => {
                    *struck = true;
                    self.injected.stalls += 1;
                    self.control.stalled.store(true, Ordering::SeqCst);
                }
                _ => {}
            }
        }
    }

    /// Drops that were asked for from outside.
    fn strike_asked(&mut self) {
        if !self.control.dropping.swap(false, Ordering::SeqCst) {
            return;
        }
        let peers = std::mem::take(&mut *self.control.drops.lock().unwrap_or_else(PoisonError::into_inner));
        for peer in peers {
            self.injected.dropped += 1;
            self.inner.close(peer, Cause::new(CauseKind::Reset, "injected fault: connection reset"));
        }
    }

    fn storm(&mut self) {
        let storm = |f: &Fault| match f {
            Fault::CancelStorm { once_in } => Some(*once_in),
            _ => None,
        };
        if !self.open.is_empty() && self.strikes(storm) {
            let victim = self.random.below(self.open.len() as u64) as usize;
            self.injected.cancelled += 1;
            self.inner.cancel(self.open[victim].0);
        }
    }

    /// Tells what is no longer held back, in order.
    fn tell(&mut self, out: &mut Vec<Event>) {
        while let Some((polls, _)) = self.held.front_mut() {
            if *polls > 0 {
                *polls -= 1;
                return;
            }
            out.extend(self.held.pop_front().map(|held| held.1));
        }
    }

    /// Holds back what `out` has from `from` on, as planned.
    fn delay(&mut self, out: &mut Vec<Event>, from: usize) {
        let longest = self.faults.iter().find_map(|(f, _)| match f {
            Fault::DelayEvents { once_in, polls } => Some((*once_in, *polls)),
            _ => None,
        });
        let Some((once_in, polls)) = longest else { return };
        for event in out.drain(from..) {
            let hold = if self.random.once_in(once_in) { self.random.below(u64::from(polls) + 1) } else { 0 };
            self.injected.delayed += u64::from(hold > 0);
            self.held.push_back((hold as u32, event));
        }
        self.tell(out);
    }
}

fn stamp_of(op: &mut Op) -> &mut Stamp {
    match op {
        Op::Send { stamp, .. } | Op::Recv { stamp, .. } => stamp,
    }
}

impl<T: Transport> Transport for Faulty<T> {
    forward!(inner: caps, address, register, deregister, reaches_devices, keep_registered,
        release_registered, show, view, has_unsent, close, cancel, note, waker, retire, leave, why, copies, pending);
    fn connect(&mut self, peer: Peer, to: &Address) -> Result<(), ConnectError> {
        self.taken_by_peer.entry(peer).or_default();
        self.inner.connect(peer, to)
    }

    fn post(&mut self, id: OpId, mut op: Op) -> Result<(), (PostError, Op)> {
        let (peer, sends, len) = (op.peer(), matches!(op, Op::Send { .. }), op.len());
        let refuse = |f: &Fault| match f {
            Fault::RefusePosts { once_in } => Some(*once_in),
            _ => None,
        };
        // With an empty queue the caller would wait for a completion that cannot come (F1).
        let queued = self.open.iter().any(|o| (o.1, o.2) == (peer, sends));
        if queued && self.strikes(refuse) {
            self.injected.refused += 1;
            return Err((PostError::Full(peer), op));
        }
        let corrupt = |f: &Fault| match f {
            Fault::CorruptStamps { once_in } => Some(*once_in),
            _ => None,
        };
        let original = *stamp_of(&mut op);
        let corrupted = self.strikes(corrupt);
        if corrupted {
            let stamp = stamp_of(&mut op);
            let bit = self.random.below(8 * stamp.0.len() as u64) as usize;
            stamp.0[bit / 8] ^= 1 << (bit % 8);
        }
        match self.inner.post(id, op) {
            Ok(()) => {
                self.injected.corrupted += u64::from(corrupted);
                self.open.push((id, peer, sends));
                self.taken.add(len);
                if let Some(taken) = self.taken_by_peer.get_mut(&peer) {
                    taken.add(len);
                }
                Ok(())
            }
            Err((why, mut op)) => {
                *stamp_of(&mut op) = original;
                Err((why, op))
            }
        }
    }

    fn poll(&mut self, out: &mut Vec<Event>) -> bool {
        self.strike_after();
        self.strike_asked();
        if self.stalled() {
            return false;
        }
        self.storm();
        let from = out.len();
        let moved = self.inner.poll(out);
        for event in &out[from..] {
            if let Event::Done(c) = event
                && let Some(i) = self.open.iter().position(|o| o.0 == c.id)
            {
                self.open.swap_remove(i);
            }
        }
        self.delay(out, from);
        moved || !self.held.is_empty() || out.len() > from
    }

    fn prepare_sleep(&mut self) -> bool {
        if self.stalled() {
            // The wake of another thread is taken as ever; what the transport has to tell waits for the release.
            return !self.control.waker.take();
        }
        self.held.is_empty() && !self.control.dropping.load(Ordering::SeqCst) && self.inner.prepare_sleep()
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        if self.stalled() { Some(self.silence.fd()) } else { self.inner.sleep_fd() }
    }

    fn next_timer_ms(&self) -> Option<u64> {
        if self.stalled() { Some(STALL_LOOK_MS) } else { self.inner.next_timer_ms() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{WaitOutcome, Waiter};
    use crate::memory::{Lease, Pool, Region};
    use crate::transport::{Completion, Hub, Loopback, LoopbackConfig, OpError, Tag};
    use std::time::{Duration, Instant};

    const TAG: Tag = Tag { group: 1, lane: 1 };

    fn pair(plan: FaultPlan, depth: u32) -> (Faulty<Loopback>, Loopback) {
        let hub = Hub::new(LoopbackConfig { depth, ..LoopbackConfig::default() });
        let (a, mut b) = (hub.join(Peer(0)).unwrap(), hub.join(Peer(1)).unwrap());
        let mut a = Faulty::new(a, plan).unwrap();
        a.connect(Peer(1), &b.address()).unwrap();
        b.connect(Peer(0), &a.address()).unwrap();
        (a, b)
    }

    fn plan(faults: &[Fault]) -> FaultPlan {
        FaultPlan { seed: 5, faults: faults.to_vec() }
    }

    /// A message of `bytes` bytes on `lane` to or from `peer`; the region must live on.
    fn op(sends: bool, peer: u32, lane: u32, bytes: usize) -> (Region, Op) {
        let mut region = Pool::default().region(bytes).unwrap();
        let (stamp, tag) = (Stamp::default(), Tag { group: 1, lane });
        let op = if sends {
            Op::Send { to: Peer(peer), tag, stamp, bytes: region.lend_read(0..bytes).unwrap() }
        } else {
            Op::Recv { from: Peer(peer), tag, stamp, into: region.lend_write(0..bytes).unwrap() }
        };
        (region, op)
    }

    fn polled(t: &mut impl Transport) -> Vec<Event> {
        let mut out = Vec::new();
        while t.poll(&mut out) {}
        out
    }

    /// Ids and results, in the order told.
    type Ends = Vec<(u64, Result<(), OpError>)>;

    fn results(events: &[Event]) -> Ends {
        let done = |e: &Event| match e {
            Event::Done(Completion { id, result, .. }) => Some((id.0, result.clone())),
            _ => None,
        };
        events.iter().filter_map(done).collect()
    }

    #[test]
    fn a_peer_is_dropped_after_so_much() {
        let (mut a, mut b) = pair(plan(&[Fault::DropPeer { peer: Peer(1), after: After::Bytes(15) }]), 8);
        for k in 0..2 {
            let (_keep, op) = op(false, 1, 0, 10);
            a.post(OpId(k), op).unwrap();
            assert!(k == 1 || polled(&mut a).is_empty());
        }
        let events = polled(&mut a);
        let lost = |r: &Result<(), OpError>| {
            matches!(r, Err(OpError::PeerLost { cause, .. })
                if cause.evidence == "injected fault: connection reset after 2 operations and 20 bytes")
        };
        assert!(results(&events).iter().all(|r| lost(&r.1)) && events.len() == 3, "{events:?}");
        assert!(matches!(events[2], Event::Lost { peer: Peer(1), .. }));
        assert!(matches!(polled(&mut b)[..], [Event::Lost { peer: Peer(0), .. }]));
        assert_eq!(a.injected().dropped, 1);
    }

    #[test]
    fn a_changed_stamp_fails_both_sides_and_comes_back_unchanged() {
        let (mut a, mut b) = pair(plan(&[Fault::CorruptStamps { once_in: 1 }]), 1);
        let (_kept, wanted) = op(false, 0, 1, 10_000);
        b.post(OpId(1), wanted).unwrap();
        let (_keep, sent) = op(true, 1, 1, 10_000);
        a.post(OpId(1), sent).unwrap();
        let (_full, refused) = op(true, 1, 1, 10_000);
        let (why, back) = a.post(OpId(2), refused).unwrap_err();
        assert_eq!(why, PostError::Full(Peer(1)));
        assert!(matches!(back, Op::Send { tag: TAG, stamp: Stamp(s), .. } if s == [0; 24]));
        let at_b = results(&polled(&mut b));
        let at_a = results(&polled(&mut a));
        assert!(
            matches!(&at_b[..], [(1, Err(OpError::Mismatch { theirs, .. }))] if *theirs != Stamp::default())
        );
        assert!(matches!(&at_a[..], [(1, Err(OpError::Mismatch { .. }))]));
        assert_eq!(a.injected().corrupted, 1);
    }

    #[test]
    fn a_stall_lasts_until_it_is_released() {
        let (mut a, mut b) = pair(plan(&[Fault::Stall { after: After::Ops(1) }]), 8);
        let (_kept, wanted) = op(false, 1, 1, 10);
        a.post(OpId(1), wanted).unwrap();
        let (_keep, sent) = op(true, 0, 1, 10);
        b.post(OpId(1), sent).unwrap();
        let (waiter, mut events) = (Waiter::new(0), Vec::new());
        assert_eq!(waiter.wait(&mut a, &mut events, Instant::now()), WaitOutcome::TimedOut);
        let handle = a.handle();
        std::thread::scope(|scope| {
            scope.spawn(move || handle.release());
            let deadline = Instant::now() + Duration::from_secs(60);
            while events.is_empty() {
                assert_ne!(waiter.wait(&mut a, &mut events, deadline), WaitOutcome::TimedOut);
            }
        });
        assert_eq!(results(&events), [(1, Ok(()))]);
        assert_eq!(a.injected().stalls, 1);
    }

    #[test]
    fn drops_from_outside_come_at_the_next_poll() {
        let (mut a, _b) = pair(plan(&[]), 8);
        polled(&mut a);
        a.handle().drop_peer(Peer(1));
        assert!(!a.prepare_sleep());
        assert!(matches!(polled(&mut a)[..], [Event::Lost { peer: Peer(1), .. }]));
    }

    /// Everything but drops and stalls at once, on random traffic; what was told, and what was injected.
    fn chaos(seed: u64) -> (Ends, Injected) {
        let faults = vec![
            Fault::DelayEvents { once_in: 2, polls: 5 },
            Fault::RefusePosts { once_in: 3 },
            Fault::CorruptStamps { once_in: 7 },
            Fault::CancelStorm { once_in: 4 },
        ];
        let (mut a, mut b) = pair(FaultPlan { seed, faults }, 4);
        let mut random = Seeded::of(seed, 1, 1);
        let (mut keep, mut out, mut at_b): (Vec<Region>, Vec<Event>, usize) = Default::default();
        let (mut taken_a, mut taken_b) = (0u64, 0usize);
        for k in 0..400 {
            let (at_a, sends) = (random.once_in(2), random.once_in(2));
            let (region, op) = op(sends, u32::from(at_a), random.below(2) as u32, 10_000);
            keep.push(region);
            let taken = if at_a { a.post(OpId(k), op) } else { b.post(OpId(k), op) };
            match taken {
                Ok(()) if at_a => taken_a += 1,
                Ok(()) => taken_b += 1,
                Err((why, _)) => assert!(matches!(why, PostError::Full(_)), "seed {seed}: {why}"),
            }
            a.poll(&mut out);
            let mut other = Vec::new();
            b.poll(&mut other);
            at_b += results(&other).len();
        }
        a.close(Peer(1), Cause::new(CauseKind::Local, "over"));
        out.extend(polled(&mut a));
        at_b += results(&polled(&mut b)).len();
        // F1: every operation that was taken has ended once, with a lease of its own, and the loss came last.
        let ended = results(&out);
        let mut ids: Vec<u64> = ended.iter().map(|r| r.0).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!((ended.len() as u64, ids.len() as u64), (taken_a, taken_a), "T1: seed {seed}");
        assert_eq!(at_b, taken_b, "T1: seed {seed}");
        assert!(matches!(out.last(), Some(Event::Lost { peer: Peer(1), .. })), "T6: seed {seed}");
        let leases = out.into_iter().filter_map(|e| match e {
            Event::Done(Completion { lease, .. }) => Some(lease),
            _ => None,
        });
        for lease in leases {
            let of = match &lease {
                Lease::Read(l) => l.region(),
                Lease::Write(l) => l.region(),
            };
            let home = keep.iter_mut().find(|r| r.id() == of).unwrap();
            home.restore(lease).unwrap();
        }
        (ended, a.injected())
    }

    #[test]
    fn chaos_keeps_the_contract_and_replays() {
        let mut all = Injected::default();
        for seed in 0..40 {
            let (told, injected) = chaos(seed);
            assert_eq!((told, injected), chaos(seed), "F2: seed {seed}");
            all.delayed += injected.delayed;
            all.refused += injected.refused;
            all.corrupted += injected.corrupted;
            all.cancelled += injected.cancelled;
        }
        assert!(all.delayed > 0 && all.refused > 0 && all.corrupted > 0 && all.cancelled > 0, "{all:?}");
    }
}
