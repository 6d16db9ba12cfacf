//! Introductions, limits, reasons, registration, and what a warm transport costs (T8, T9).

use super::field::{Field, Told, pattern, stamp, tag};
use super::{DEADLINE, Mode, Rig, Skip};
use crate::memory::{Lease, Pool, Region, RegionId};
use crate::transport::{Address, ConnectError, Event, Note, Op, OpId, Peer, RegisterError, Transport};
use std::time::Instant;

/// What a peer sends before this side has introduced it waits.
pub(super) fn a_peer_may_send_before_it_is_introduced(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut f = Field::strangers(rig, mode, 2)?;
    f.introduce(0, 1);
    let content = pattern(1, 50);
    let send = f.send((0, 1), tag(0), &content);
    let hello = Note::new(b"hello").unwrap_or_else(|| unreachable!("5 bytes fit"));
    assert_eq!(f.member_mut(0).note(Peer(1), &hello), Ok(()));
    for _ in 0..50 {
        f.poll();
    }
    f.holds("T9", "nothing is told of strangers", f.told[1].is_empty());
    f.introduce(1, 0);
    let receive = f.recv((1, 0), tag(0), content.len());
    f.succeed("T2", &[send, receive]);
    f.check_bytes("T2", receive, &content);
    let greeted = |f: &Field| f.told[1].iter().any(|t| matches!(t, Told::Note(Peer(0), b) if b == b"hello"));
    f.until("T8", "the note from before", greeted);
    Ok(())
}

/// `connect` takes the same address again, and refuses what is no address.
pub(super) fn addresses_are_checked_and_idempotent(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut f = Field::new(rig, mode, 2)?;
    f.introduce(0, 1);
    for bytes in [vec![], vec![0xff; 3], vec![0; 4000]] {
        let answer = f.member_mut(0).connect(Peer(5), &Address(bytes));
        let refused = matches!(
            answer,
            Err(ConnectError::BadAddress { peer: Peer(5), .. } | ConnectError::NoRoute { .. })
        );
        f.holds("T9", "what is no address is refused", refused);
    }
    let pair = [f.send((0, 1), tag(0), b"fine"), f.recv((1, 0), tag(0), 4)];
    f.succeed("T2", &pair);
    f.introduce(0, 1);
    let pair = [f.send((1, 0), tag(0), b"fine"), f.recv((0, 1), tag(0), 4)];
    f.succeed("T2", &pair);
    Ok(())
}

/// Limits that a fabric can work with, and a line of reasons per peer.
pub(super) fn caps_and_reasons_make_sense(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut f = Field::strangers(rig, mode, 2)?;
    let caps = f.caps();
    f.holds("T8", "a queue holds something", caps.depth >= 1);
    f.holds("T5", "eager messages are messages", caps.eager_bytes <= caps.max_message_bytes);
    f.holds("T10", "sleepable means an fd", caps.sleepable == f.member(0).sleep_fd().is_some());
    f.holds("T8", "a stranger has no reasons", f.member(0).why(Peer(1)).is_none());
    f.introduce(0, 1);
    f.introduce(1, 0);
    f.round_trips(0, 1);
    let why = f.member(0).why(Peer(1)).unwrap_or_default();
    f.holds("T8", "reasons are one line", !why.is_empty() && !why.contains('\n'));
    Ok(())
}

/// `pending` counts posted operations that have not matched.
pub(super) fn pending_counts_what_has_not_matched(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut f = Field::new(rig, mode, 2)?;
    let big = f.caps().eager_bytes as usize + 10;
    f.holds("T8", "nothing is pending", f.member(0).pending(Peer(1)) == (0, 0));
    let ops = [f.send((0, 1), tag(0), &pattern(1, big)), f.recv((0, 1), tag(1), 10)];
    f.round_trips(0, 1);
    f.holds("T8", "one of each is pending", f.member(0).pending(Peer(1)) == (1, 1));
    let answers = [f.recv((1, 0), tag(0), big), f.send((1, 0), tag(1), &pattern(2, 10))];
    f.succeed("T2", &ops);
    f.succeed("T2", &answers);
    f.holds("T8", "nothing is pending again", f.member(0).pending(Peer(1)) == (0, 0));
    f.holds("T8", "nothing is pending with strangers", f.member(0).pending(Peer(9)) == (0, 0));
    Ok(())
}

/// One message in each direction of a region, 0 to 1 and back; the regions are reused.
struct Exchange {
    regions: [Region; 2],
    out: Vec<Event>,
    leases: [Option<Lease>; 2],
}

impl Exchange {
    fn new(len: usize) -> Exchange {
        let region = || {
            let mut region = Pool::default().region(len).unwrap_or_else(|e| panic!("{e}"));
            region.reserve(4);
            region
        };
        Exchange { regions: [region(), region()], out: Vec::with_capacity(16), leases: [None, None] }
    }

    /// Sends the whole region of `from` into that of the other.
    fn run(&mut self, members: &mut [Box<dyn Transport>], from: usize, invariant: &str) {
        let len = self.regions[0].len();
        let stamp = stamp(3);
        let lend = "nothing of the region is lent";
        let bytes = self.regions[from].lend_read(0..len).expect(lend);
        let into = self.regions[1 - from].lend_write(0..len).expect(lend);
        let (to, back) = (Peer(1 - from as u32), Peer(from as u32));
        let sent = members[from].post(OpId(1), Op::Send { to, tag: tag(0), stamp, bytes });
        let wanted = members[1 - from].post(OpId(2), Op::Recv { from: back, tag: tag(0), stamp, into });
        assert!(sent.is_ok() && wanted.is_ok(), "{invariant}: an idle queue takes an operation");
        let deadline = Instant::now() + DEADLINE;
        while self.leases.iter().any(Option::is_none) {
            for (i, member) in members.iter_mut().enumerate() {
                member.poll(&mut self.out);
                for event in self.out.drain(..) {
                    let Event::Done(c) = event else { panic!("{invariant}: {event:?}") };
                    assert!(c.result.is_ok(), "{invariant}: {:?}", c.result);
                    self.leases[i] = Some(c.lease);
                }
            }
            assert!(Instant::now() < deadline, "{invariant}: hung in a warm exchange");
        }
        for (lease, region) in self.leases.iter_mut().zip(&mut self.regions) {
            if let Some(lease) = lease.take() {
                assert_eq!(region.restore(lease), Ok(()));
            }
        }
    }
}

fn introduced(rig: &mut dyn Rig, mode: Mode) -> Result<Vec<Box<dyn Transport>>, Skip> {
    let mut f = Field::new(rig, mode, 2)?;
    Ok(f.members.iter_mut().filter_map(Option::take).collect())
}

/// Registered or not, twice or once, before and after: the bytes arrive.
pub(super) fn registration_changes_nothing_but_speed(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    let mut members = introduced(rig, mode)?;
    let len = members[0].caps().eager_bytes as usize + 200_000;
    let mut exchange = Exchange::new(len);
    let content = pattern(7, len);
    for round in 0..3u64 {
        if round == 1 {
            for (member, region) in members.iter_mut().zip(&exchange.regions) {
                let first = member.register(region);
                let answers = !matches!(first, Err(RegisterError::Useless)) || !member.caps().registers;
                assert!(answers, "T8: caps say that registration has a use");
                assert_eq!(member.register(region).is_ok(), first.is_ok(), "T8: registering is idempotent");
            }
        }
        if round == 2 {
            for (member, region) in members.iter_mut().zip(&exchange.regions) {
                member.deregister(region.id());
                member.deregister(RegionId(u64::MAX));
            }
        }
        exchange.regions[0].bytes_mut(0..len).expect("not lent").copy_from_slice(&content);
        exchange.regions[1].bytes_mut(0..len).expect("not lent").fill(0);
        exchange.run(&mut members, 0, "T8");
        assert!(exchange.regions[1].bytes(0..len).expect("not lent") == content, "T3: in round {round}");
    }
    Ok(())
}

/// T8: once buffers have grown, exchanging allocates nothing.
pub(super) fn warm_exchanges_allocate_nothing(rig: &mut dyn Rig, mode: Mode) -> Result<(), Skip> {
    if rig.allocations().is_none() {
        return Err(Skip::new("a counting allocator in the test binary (Rig::allocations)"));
    }
    let mut members = introduced(rig, mode)?;
    let eager = members[0].caps().eager_bytes as usize;
    let mut exchanges = [Exchange::new(8), Exchange::new(eager + 100_000)];
    let mut round = |members: &mut [Box<dyn Transport>]| {
        for exchange in &mut exchanges {
            for from in [0, 1] {
                exchange.run(members, from, "T8");
            }
        }
    };
    for _ in 0..100 {
        round(&mut members);
    }
    let before = rig.allocations();
    for _ in 0..100 {
        round(&mut members);
    }
    let after = rig.allocations();
    assert_eq!(before, after, "T8: allocations before and after 400 warm exchanges ({mode})");
    Ok(())
}
