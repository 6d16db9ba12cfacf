//! What an engine shows of itself: who is waited for, what was exchanged, and what befell it.

use super::world::World;
use crate::engine::flight::Awaited;
use crate::engine::options::EngineOptions;
use crate::engine::plan::{Request, What};
use crate::engine::recorder::{Befell, Ending};
use crate::engine::traffic::Exchanged;
use crate::reduce::ReduceOp;
use crate::schedule::{Algorithm, Collective};
use ringway_dataplane::memory::DType;
use ringway_dataplane::transport::{LoopbackConfig, Peer};

const ELEMENTS: usize = 4096;

fn all_reduce() -> Request {
    Request {
        what: What::Collective(Collective::AllReduce),
        dtype: Some(DType::F32),
        op: Some(ReduceOp::Sum),
        function: None,
        blocks: None,
        received: None,
        count: ELEMENTS,
        root: 0,
        in_place: true,
    }
}

fn world() -> World {
    let options = EngineOptions { wanted: Algorithm::Ring.into(), ..EngineOptions::default() };
    World::new(3, LoopbackConfig::default(), &options)
}

#[test]
fn a_rank_that_does_not_come_is_waited_for_by_its_neighbours() {
    let mut w = world();
    let bytes = vec![0u8; ELEMENTS * 4];
    for rank in [0, 1] {
        w.begin(rank, 0, &all_reduce(), Some(&bytes), None).unwrap();
    }
    w.quiesce();
    // Ranks 0 and 2 are of one machine, so the ring is 0, 2, 1: 1 waits for 2 to send, and for nobody else.
    let flight = w.cores[1].flight(false);
    let [wait] = &flight.waits[..] else { panic!("{flight:?}") };
    assert!(!wait.queued && wait.call.collective == Some(Collective::AllReduce) && wait.began.is_some());
    assert!(wait.on.contains(&Awaited { rank: 2, peer: Peer(2), receives: true }), "{wait:?}");
    assert!(wait.on.iter().all(|on| on.rank == 2 || !on.receives), "{wait:?}");
    assert!(flight.calls.is_empty() && flight.last.is_none());
    // The clock shows how long, and the same call as still.
    w.tick();
    w.tick();
    let later = w.cores[1].flight(true);
    assert!(later.waits[0].still_since >= wait.began.unwrap());
    assert!(later.calls[0].ended.is_none());
}

#[test]
fn what_was_exchanged_and_what_befell_is_told() {
    let mut w = world();
    let bytes = vec![0u8; ELEMENTS * 4];
    let calls: Vec<_> =
        (0..3).map(|rank| (rank, w.begin(rank, 0, &all_reduce(), Some(&bytes), None).unwrap())).collect();
    w.settle(&calls);
    for (rank, slot) in calls {
        w.take(rank, slot).0.unwrap();
    }
    let flight = w.cores[1].flight(true);
    let [call] = flight.calls[..] else { panic!("{flight:?}") };
    assert!(call.first_byte.is_some() && matches!(call.ended, Some((_, Ending::Done))));
    assert_eq!(flight.last, Some(call));
    // The ring 0, 2, 1: two thirds of the bytes twice, to the next and from the one before.
    let moved = ELEMENTS as u64 * 4 * 4 / 3;
    let of = |peer: u32| flight.peers.iter().find(|p| p.peer == Peer(peer)).unwrap().exchanged;
    let (to, from) = (of(0), of(2));
    assert!(to.sent_bytes.abs_diff(moved) < 16 && from.received_bytes.abs_diff(moved) < 16, "{flight:?}");
    assert_eq!((to.receives, from.sends), (0, 0));
    assert_ne!(to, Exchanged::default());
    let [(Some(Collective::AllReduce), total)] = flight.totals[..] else { panic!("{flight:?}") };
    assert_eq!((total.done, total.failed, total.bytes), (1, 0, ELEMENTS as u64 * 4));

    w.kill(2);
    w.quiesce();
    let flight = w.cores[1].flight(false);
    let befell: Vec<Befell> = flight.happenings.iter().map(|h| h.what).collect();
    let expected = [Befell::Made, Befell::Reached, Befell::Reached, Befell::Lost, Befell::Died];
    assert_eq!(befell, expected, "{flight:?}");
    let lost = &flight.happenings[3];
    assert!(lost.peer == Some(Peer(2)) && !lost.detail.is_empty());
    assert!(flight.groups[0].dead.as_ref().is_some_and(|why| why.contains("rank 2")), "{flight:?}");
    assert!(w.cores[1].fallen);
}
