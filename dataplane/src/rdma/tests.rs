//! Transports of one process, over the devices of this host.
#![forbid(unsafe_code)]

use super::choice::{Choice, RdmaConfig, choose};
use super::survey;
use super::{Config, RdmaTransport};
use crate::transport::conformance::{Depth, Mode, Rig, Skip, run_one};
use crate::transport::{Keyring, Peer, Transport};

/// Says whether a missing device fails the tests, as where it is known to be there: `require`.
const WANTED: &str = "RINGWAY_TEST_RDMA";

/// Fails where the environment promises a device, and there is none.
pub(super) fn may_be_missing(why: &dyn std::fmt::Display) {
    let wanted = std::env::var(WANTED).is_ok_and(|w| w == "require");
    assert!(!wanted, "{WANTED}=require, and there is no RDMA: {why}");
}

/// The rails of this host, or why there are none.
fn rails(config: &RdmaConfig) -> Result<Choice, Skip> {
    let host = survey::this_host().unwrap_or_else(|e| panic!("{e}"));
    choose(&host, config).map_err(|why| {
        may_be_missing(&why);
        Skip::new(format!("an RDMA device ({why})"))
    })
}

/// `rails` devices for each member, in turn, so that packets really travel.
fn open(me: u32, choice: &Choice, mode: Mode, rails: usize) -> Box<dyn Transport> {
    let mut mine = Choice { rails: choice.rails.clone(), verdicts: Vec::new() };
    mine.rails.rotate_left(me as usize % choice.rails.len());
    mine.rails.truncate(rails);
    let mut config = Config::new(me, Keyring::of([7; 32]), 1000 + u64::from(me));
    // So that what is over the eager limit has stripes.
    config.stripe_bytes = 4096;
    config.connect_timeout_ms = 5_000;
    config.rdma.timeout = 14;
    if mode.depth == Depth::One {
        config.depth = 1;
    }
    if !mode.eager {
        config.eager_bytes = 0;
    }
    Box::new(RdmaTransport::open(config, &mine).unwrap_or_else(|e| panic!("{e}")))
}

struct Devices;

impl Rig for Devices {
    fn members(&mut self, n: u32, mode: Mode) -> Result<Vec<Box<dyn Transport>>, Skip> {
        if mode.reorder {
            return Err(Skip::new("a wire that reorders"));
        }
        let choice = rails(&RdmaConfig::default())?;
        Ok((0..n).map(|me| open(me, &choice, mode, 1)).collect())
    }
}

crate::transport_conformance!(Devices);

/// Members with two rails each.
struct TwoRails;

impl Rig for TwoRails {
    fn members(&mut self, n: u32, mode: Mode) -> Result<Vec<Box<dyn Transport>>, Skip> {
        if mode.reorder {
            return Err(Skip::new("a wire that reorders"));
        }
        let choice = rails(&RdmaConfig::default())?;
        if choice.rails.len() < 2 {
            return Err(Skip::new("a second device"));
        }
        Ok((0..n).map(|me| open(me, &choice, mode, 2)).collect())
    }
}

/// The checks of the suite in which the end of a striped message matters.
#[test]
fn two_rails_conform() {
    for check in [
        "every_size_arrives_whole",
        "random_traffic_between_all",
        "both_directions_stream_at_once",
        "cancel_at_every_stage",
        "a_goodbye_comes_after_what_was_sent",
        "leaving_flushes_what_is_queued",
        "messages_rouse_a_sleeper",
    ] {
        run_one(&mut TwoRails, check);
    }
}

#[test]
fn peers_may_be_this_process_itself() {
    let Ok(choice) = rails(&RdmaConfig::default()) else { return };
    let mode = Mode { eager: true, depth: Depth::Own, reorder: false };
    let (a, mut b) = (open(0, &choice, mode, 1), open(1, &choice, mode, 1));
    assert_eq!(b.connect(Peer(0), &a.address()), Ok(()));
}

/// Two members over all rails of this host, and what goes wrong with them.
mod rails {
    use super::super::choice::{Choice, RdmaConfig};
    use super::super::links::Stage;
    use super::super::outgoing::ANNOUNCE_MS;
    use super::super::{Config, RdmaTransport};
    use crate::memory::{Pool, Region};
    use crate::transport::seed::Seeded;
    use crate::transport::{Event, Found, Keyring, Op, OpId, Peer, Stamp, Tag, Transport};
    use std::time::{Duration, Instant};

    const DEADLINE: Duration = Duration::from_secs(60);
    const TAG: Tag = Tag { group: 1, lane: 1 };

    struct Two {
        sides: [RdmaTransport; 2],
        pool: Pool,
        next: u64,
        events: [Vec<Event>; 2],
    }

    fn two(eager_bytes: u32) -> Option<Two> {
        several(eager_bytes, 1)
    }

    /// Each device as that many rails.
    fn several(eager_bytes: u32, copies: usize) -> Option<Two> {
        let choice = super::rails(&RdmaConfig::default()).ok()?;
        if choice.rails.len() < 2 {
            println!("skipped: a second device is missing");
            return None;
        }
        let open = |me: u32| {
            let mut rails: Vec<_> = (0..copies).flat_map(|_| choice.rails.clone()).collect();
            rails.rotate_left(me as usize);
            let mut config = Config::new(me, Keyring::of([1; 32]), 50 + u64::from(me));
            config.eager_bytes = eager_bytes;
            config.stripe_bytes = 32 << 10;
            config.rdma.timeout = 14;
            RdmaTransport::open(config, &Choice { rails, verdicts: Vec::new() }).unwrap()
        };
        let mut sides = [open(0), open(1)];
        let addresses = [sides[0].address(), sides[1].address()];
        sides[0].connect(Peer(1), &addresses[1]).unwrap();
        sides[1].connect(Peer(0), &addresses[0]).unwrap();
        Some(Two { sides, pool: Pool::default(), next: 1, events: [Vec::new(), Vec::new()] })
    }

    fn content(n: usize, len: usize) -> Vec<u8> {
        (0..len).map(|i| (i.wrapping_mul(31) >> 3) as u8 ^ n as u8).collect()
    }

    impl Two {
        fn poll(&mut self) {
            for (side, events) in self.sides.iter_mut().zip(&mut self.events) {
                side.poll(events);
            }
        }

        /// Posts a message of each length from 0 to 1 and from 1 to 0.
        fn post(&mut self, lens: &[usize]) -> Vec<(usize, OpId, Region, Option<Vec<u8>>)> {
            let mut posted = Vec::new();
            for (n, len) in lens.iter().copied().enumerate() {
                for me in 0..2 {
                    let peer = Peer(1 - me as u32);
                    let (mut from, mut to) = (self.pool.region(len).unwrap(), self.pool.region(len).unwrap());
                    from.bytes_mut(0..len).unwrap().copy_from_slice(&content(n * 2 + me, len));
                    let (send, recv) = (OpId(self.next), OpId(self.next + 1));
                    self.next += 2;
                    let stamp = Stamp::default();
                    let bytes = from.lend_read(0..len).unwrap();
                    self.sides[me].post(send, Op::Send { to: peer, tag: TAG, stamp, bytes }).unwrap();
                    let into = to.lend_write(0..len).unwrap();
                    self.sides[me].post(recv, Op::Recv { from: peer, tag: TAG, stamp, into }).unwrap();
                    posted.push((me, send, from, None));
                    posted.push((me, recv, to, Some(content(n * 2 + 1 - me, len))));
                }
            }
            posted
        }

        /// Waits for all, breaking rails on the way: after so many polls, that rail of that side.
        fn finish(
            &mut self,
            mut posted: Vec<(usize, OpId, Region, Option<Vec<u8>>)>,
            mut breaks: Vec<(usize, usize, usize)>,
        ) {
            let began = Instant::now();
            let mut polls = 0;
            while !posted.is_empty() {
                breaks.retain(|(at, side, rail)| {
                    if *at == polls {
                        self.sides[*side].break_rail(Peer(1 - *side as u32), *rail);
                    }
                    *at != polls
                });
                polls += 1;
                self.poll();
                for side in 0..2 {
                    for event in std::mem::take(&mut self.events[side]) {
                        let Event::Done(done) = event else { panic!("{event:?}") };
                        let at = posted.iter().position(|p| p.1 == done.id).expect("F1: once");
                        assert_eq!(done.result, Ok(()), "F1");
                        let (_, _, mut region, expected) = posted.swap_remove(at);
                        region.restore(done.lease).unwrap();
                        if let Some(expected) = expected {
                            assert!(region.bytes(0..expected.len()).unwrap() == expected, "F1, F2");
                        }
                        self.pool.recycle(region);
                    }
                }
                assert!(began.elapsed() < DEADLINE, "F1: still pending {:?}", posted.len());
            }
        }
    }

    fn writes_under_way(side: &RdmaTransport) -> usize {
        match side.links[0].channel.as_ref().map(|channel| &channel.stage) {
            Some(Stage::Up(connection)) => connection.rails.iter().map(|rail| rail.writes.len()).sum(),
            _ => 0,
        }
    }

    #[test]
    fn messages_begin_at_a_post_and_writes_at_a_poll() {
        let Some(mut two) = two(64) else { return };
        let first = two.post(&[10]);
        two.finish(first, Vec::new());
        let (len, tag, stamp) = (100_000, TAG, Stamp::default());
        let (mut from, mut to) = (two.pool.region(len).unwrap(), two.pool.region(len).unwrap());
        let into = to.lend_write(0..len).unwrap();
        two.sides[0].post(OpId(90), Op::Recv { from: Peer(1), tag, stamp, into }).unwrap();
        // Behind the announcement, which left at its post: side 0 does not poll.
        two.sides[0].send_now(Peer(1), Tag { group: 1, lane: 2 }, &stamp, b"now").then_some(()).unwrap();
        let mut word = two.pool.region(3).unwrap();
        let into = word.lend_write(0..3).unwrap();
        let behind = Op::Recv { from: Peer(0), tag: Tag { group: 1, lane: 2 }, stamp, into };
        two.sides[1].post(OpId(91), behind).unwrap();
        let began = Instant::now();
        while two.events[1].is_empty() {
            two.sides[1].poll(&mut two.events[1]);
            assert!(began.elapsed() < DEADLINE, "T8: what was posted has not gone");
        }
        let bytes = from.lend_read(0..len).unwrap();
        two.sides[1].post(OpId(92), Op::Send { to: Peer(0), tag, stamp, bytes }).unwrap();
        assert_eq!(writes_under_way(&two.sides[1]), 0, "a post writes nothing");
        two.sides[1].poll(&mut two.events[1]);
        assert!(writes_under_way(&two.sides[1]) > 0 || two.events[1].len() > 1, "a poll does");
        two.finish(
            vec![(0, OpId(90), to, None), (1, OpId(91), word, None), (1, OpId(92), from, None)],
            Vec::new(),
        );
    }

    #[test]
    fn a_receiver_that_is_late_is_not_told_what_it_will_ask_for() {
        let Some(mut two) = two(64) else { return };
        let first = two.post(&[10]);
        two.finish(first, Vec::new());
        let (len, tag, stamp) = (100_000, TAG, Stamp::default());
        let (mut from, mut to) = (two.pool.region(len).unwrap(), two.pool.region(len).unwrap());
        let bytes = from.lend_read(0..len).unwrap();
        let side = &mut two.sides[0];
        side.post(OpId(90), Op::Send { to: Peer(1), tag, stamp, bytes }).unwrap();
        let keeps = |side: &RdmaTransport| {
            side.links[0].channel.as_ref().is_some_and(|channel| channel.matcher.has_unsaid())
        };
        let since = side.now_ms;
        for now_ms in [since, since + 1, since + ANNOUNCE_MS - 1] {
            side.now_ms = now_ms;
            side.announce();
            assert!(keeps(side) && side.dirty.is_empty(), "{} ms", now_ms - since);
            assert_eq!(side.pulse_due_ms(), Some(since + ANNOUNCE_MS), "a sleeper wakes to say it");
        }
        side.now_ms = since + ANNOUNCE_MS;
        side.announce();
        assert!(!keeps(side) && !side.dirty.is_empty(), "it may not match");
        let into = to.lend_write(0..len).unwrap();
        two.sides[1].post(OpId(91), Op::Recv { from: Peer(0), tag, stamp, into }).unwrap();
        two.finish(vec![(0, OpId(90), from, None), (1, OpId(91), to, None)], Vec::new());
    }

    #[test]
    fn who_only_takes_holds_nobody_up() {
        // K3: far more messages than there are receives, and side 0 does not poll.
        let Some(mut two) = two(8192) else { return };
        let warm = two.post(&[10]);
        two.finish(warm, vec![]);
        let (messages, stamp, began) = (1000, Stamp::default(), Instant::now());
        let (mut sent, mut taken, mut polls) = (0, 0, 0);
        while taken < messages {
            while sent < messages && two.sides[1].send_now(Peer(0), TAG, &stamp, &content(sent, 100)) {
                sent += 1;
            }
            two.sides[1].poll(&mut two.events[1]);
            let expected = content(taken, 100);
            let mut take = |bytes: &[u8]| assert!(bytes == expected, "K1: message {taken}");
            match two.sides[0].take_now(Peer(1), TAG, (&stamp, 100), 8, &mut take) {
                Found::Message => taken += 1,
                Found::Nothing => {}
                Found::Behind | Found::Other => {
                    polls += 1;
                    two.sides[0].poll(&mut two.events[0]);
                }
            }
            assert!(began.elapsed() < DEADLINE, "K3: {sent} sent, {taken} taken");
        }
        assert!(polls < 10, "K2: {polls} polls");
    }

    #[test]
    fn large_messages_are_striped_and_small_ones_are_not() {
        let Some(mut two) = two(8192) else { return };
        let posted = two.post(&[1, 8000, 300_000, 5 << 20]);
        two.finish(posted, vec![]);
        let why = two.sides[0].why(Peer(1)).unwrap();
        assert_eq!(why.matches("MTU").count(), 2, "{why}");
        // No copy of what is over the eager limit.
        let traffic = two.sides[0].traffic(Peer(1)).unwrap();
        assert_eq!(traffic.copied_bytes, 1 + 8000);
        assert_eq!(traffic.written_bytes.iter().sum::<u64>(), 300_000 + (5 << 20));
        assert!(traffic.written_bytes.iter().all(|b| *b > 1 << 20), "{traffic:?}");
    }

    #[test]
    fn a_failed_rail_is_dropped_and_messages_go_on() {
        // F1, F2: whichever rail fails, on either side or both, at any time.
        for eager in [0, 8192] {
            for rail in 0..2 {
                for sides in [vec![0], vec![1], vec![0, 1]] {
                    for at in [0, 3, 9, 30] {
                        let Some(mut two) = two(eager) else { return };
                        let warm = two.post(&[10]);
                        two.finish(warm, vec![]);
                        let lens = [3 << 20, 0, 7, 4096, 200_000, 1 << 20, 2 << 20, 1];
                        let posted = two.post(&lens);
                        let breaks = sides.iter().map(|side| (at, *side, rail)).collect();
                        two.finish(posted, breaks);
                        let again = two.post(&[100, 70_000, 3 << 20]);
                        two.finish(again, vec![]);
                    }
                }
            }
        }
    }

    #[test]
    fn as_long_as_one_rail_is_left_messages_go_on() {
        // F1, F2: four rails, of which up to three fail, on one side or the other, whenever.
        for seed in 0..12 {
            let mut random = Seeded::of(seed, 0, 0);
            let Some(mut two) = several([0, 8192][seed as usize % 2], 2) else { return };
            println!("seed {seed}");
            let warm = two.post(&[10]);
            two.finish(warm, vec![]);
            let mut rails = [0, 1, 2, 3];
            for i in 0..4 {
                rails.swap(i, random.below(4) as usize);
            }
            let at_once = random.below(2) == 0;
            let mut breaks = Vec::new();
            for rail in &rails[..1 + random.below(3) as usize] {
                let at = if at_once { 5 } else { random.below(40) as usize };
                breaks.push((at, random.below(2) as usize, *rail));
                if random.below(3) == 0 {
                    breaks.push((at, 0, *rail));
                }
            }
            let posted = two.post(&[1 << 20, 0, 7, 4096, 200_000, 300_000, 2 << 20, 1]);
            two.finish(posted, breaks);
            let again = two.post(&[100, 70_000, 1 << 20]);
            two.finish(again, vec![]);
        }
    }

    #[test]
    fn the_last_rail_is_the_last() {
        let Some(mut two) = two(8192) else { return };
        let warm = two.post(&[10]);
        two.finish(warm, vec![]);
        two.sides[0].break_rail(Peer(1), 1);
        let posted = two.post(&[1 << 20]);
        two.finish(posted, vec![]);
        two.sides[0].break_rail(Peer(1), 0);
        let _pending = two.post(&[1 << 20]);
        let began = Instant::now();
        let lost = |events: &[Event]| events.iter().any(|e| matches!(e, Event::Lost { .. }));
        while !two.events.iter().all(|e| lost(e)) {
            two.poll();
            assert!(began.elapsed() < DEADLINE, "T6: {:?}", two.events);
        }
    }
}
