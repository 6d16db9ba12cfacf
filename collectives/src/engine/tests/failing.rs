//! Deaths, mismatches and refusals: everybody learns of the one cause, and nobody hangs.

use super::world::{World, info};
use crate::engine::error::{CollectiveError, InvalidCall};
use crate::engine::group::Group;
use crate::engine::options::EngineOptions;
use crate::engine::plan::{Request, What};
use crate::engine::run::Phase;
use crate::reduce::ReduceOp;
use crate::schedule::{Collective, Costs, LinkCosts};
use ringway_dataplane::memory::DType;
use ringway_dataplane::transport::seed::Seeded;
use ringway_dataplane::transport::{Cause, CauseKind, Fault, FaultPlan, Faulty, Hub, LoopbackConfig, Peer};

fn request(collective: Collective, count: usize) -> Request {
    Request {
        what: What::Collective(collective),
        dtype: (collective != Collective::Barrier).then_some(DType::F32),
        op: collective.reduces().then_some(ReduceOp::Sum),
        function: None,
        blocks: None,
        received: None,
        count: if collective == Collective::Barrier { 0 } else { count },
        root: 0,
        in_place: !matches!(collective, Collective::Gather | Collective::Scatter | Collective::AllToAll),
    }
}

fn world(n: u32, seed: u64, eager_bytes: usize) -> World {
    let options = EngineOptions { slice_bytes: Some(256), ..EngineOptions::default() };
    World::new(n, LoopbackConfig { seed, eager_bytes, depth: 64, reorder: seed % 2 == 1 }, &options)
}

/// Memory that fits any in-place call of `request`.
fn bytes(request: &Request, n: u32) -> Vec<u8> {
    vec![0; request.count * 4 * n as usize]
}

/// Each rank makes its own call; the outcomes of all.
fn make_all(world: &mut World, requests: &[Request]) -> Vec<Result<(), CollectiveError>> {
    let n = requests.len() as u32;
    let begun: Vec<_> = requests
        .iter()
        .enumerate()
        .map(|(rank, r)| {
            let bytes = vec![0; r.count * 4 * n as usize];
            let block = Some(&bytes[..r.count * 4]);
            let at_root = (r.root == rank as u32).then_some(&bytes[..]);
            let (input, output) = match r.what {
                What::Collective(Collective::Gather) => (block, at_root),
                What::Collective(Collective::Scatter) => (at_root, block),
                What::Collective(Collective::AllToAll) => (Some(&bytes[..]), Some(&bytes[..])),
                _ => (Some(&bytes[..input_bytes(r, n)]), None),
            };
            world.begin(rank, 0, r, input, output)
        })
        .collect();
    let calls: Vec<(usize, u16)> =
        begun.iter().enumerate().filter_map(|(rank, b)| b.as_ref().ok().map(|slot| (rank, *slot))).collect();
    world.settle(&calls);
    let end = |(rank, begun): (usize, Result<u16, CollectiveError>)| world.take(rank, begun?).0;
    begun.into_iter().enumerate().map(end).collect()
}

fn input_bytes(request: &Request, n: u32) -> usize {
    let blocks = match request.what {
        What::Collective(Collective::AllGather | Collective::ReduceScatter) => n as usize,
        _ => 1,
    };
    request.count * 4 * blocks
}

#[test]
fn a_rank_killed_at_any_point_is_named_by_all_others() {
    // F1 to F3
    for seed in 0..120u64 {
        let mut rng = Seeded::new(seed);
        let n = 2 + rng.index(5) as u32;
        let victim = rng.index(n as usize);
        let mut w = world(n, seed, if seed % 3 == 0 { 0 } else { 4096 });
        let collective =
            [Collective::AllReduce, Collective::AllGather, Collective::Broadcast, Collective::Barrier]
                [rng.index(4)];
        let r = request(collective, 2000);
        let calls: Vec<(usize, u16)> = (0..n as usize)
            .map(|rank| {
                (rank, w.begin(rank, 0, &r, Some(&bytes(&r, n)[..input_bytes(&r, n)]), None).unwrap())
            })
            .collect();
        for _ in 0..rng.index(60) {
            let rank = rng.index(n as usize);
            w.cores[rank].turn();
        }
        w.kill(victim as u32);
        w.settle(&calls);
        // Those that had finished before learn of it by their next call at the latest.
        w.quiesce();
        for (rank, slot) in calls.into_iter().filter(|(rank, _)| *rank != victim) {
            let (ended, ..) = w.take(rank, slot);
            let dead = w.cores[rank].check(0).expect_err("the group is dead");
            let CollectiveError::Lost { who, .. } = &dead else { panic!("seed {seed}: {dead}") };
            assert_eq!(
                (who.rank, &who.host[..], who.pid),
                (victim as u32, &*format!("h{victim}"), 100 + victim as u32)
            );
            assert!(ended.is_ok() || ended == Err(dead.clone()), "seed {seed}: {ended:?}");
            let again = w.begin(rank, 0, &r, Some(&bytes(&r, n)), None);
            assert_eq!(again, Err(dead), "later calls answer at once");
        }
    }
}

#[test]
fn mismatched_calls_are_errors_on_all_ranks_that_show_both_sides() {
    let base = request(Collective::AllReduce, 100);
    let variants = [
        Request { count: 101, ..base.clone() },
        Request { count: 0, ..base.clone() },
        Request { count: 100_000, ..base.clone() },
        Request { dtype: Some(DType::I32), ..base.clone() },
        Request { op: Some(ReduceOp::Max), ..base.clone() },
        request(Collective::Barrier, 0),
        request(Collective::AllGather, 100),
        request(Collective::Broadcast, 100),
    ];
    for (v, other) in variants.iter().enumerate() {
        for (n, odd) in [(2, 0), (2, 1), (3, 1), (5, 4)] {
            for eager in [0, 1 << 16] {
                let mut w = world(n, 2 * v as u64, eager);
                let mut requests = vec![base.clone(); n as usize];
                requests[odd] = other.clone();
                let ends = make_all(&mut w, &requests);
                w.quiesce();
                for (rank, end) in ends.iter().enumerate() {
                    // One that had all it needed may have finished; the communicator is dead all the same.
                    let dead = w.cores[rank].check(0).expect_err("the group is dead");
                    assert!(end.is_ok() || *end == Err(dead.clone()), "{end:?}");
                    let CollectiveError::Mismatch { ours_who, ours, theirs_who, theirs } = &dead else {
                        panic!("variant {v}, {n} ranks, eager {eager}, rank {rank}: {dead}")
                    };
                    assert!(
                        ours != theirs && (ours_who.rank == odd as u32) != (theirs_who.rank == odd as u32),
                        "{dead}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_rank_that_would_cut_calls_differently_is_found_in_the_first_one() {
    let base = EngineOptions { slice_bytes: Some(256), ..EngineOptions::default() };
    let costs = Costs { between: LinkCosts { latency_us: 3.5, ..base.costs.between }, ..base.costs };
    let others = [
        EngineOptions { slices_in_flight: Some(1), ..base.clone() },
        EngineOptions { slice_bytes: Some(512), ..base.clone() },
        EngineOptions { slice_bytes: None, ..base.clone() },
        EngineOptions { costs, ..base.clone() },
    ];
    for (v, other) in others.into_iter().enumerate() {
        for (n, odd, count) in [(2, 0, 0), (3, 2, 1), (3, 1, 10_000), (5, 4, 10_000)] {
            for eager_bytes in [0, 1 << 16] {
                let mut options = vec![base.clone(); n];
                options[odd] = other.clone();
                let config = LoopbackConfig { seed: v as u64, eager_bytes, depth: 64, reorder: true };
                let mut w = World::of(config, &options);
                make_all(&mut w, &vec![request(Collective::AllReduce, count); n]);
                w.quiesce();
                for rank in 0..n {
                    let dead = w.cores[rank].check(0).expect_err("the group is dead");
                    let said = dead.to_string();
                    assert!(
                        said.contains("the two cut it differently"),
                        "variant {v}, {n} ranks, rank {rank}: {said}"
                    );
                    assert!(said.contains(&format!("rank {odd} on host")), "{said}");
                }
            }
        }
    }
}

/// Ranks make `first`, and those that got through make the same call on all; what each communicator died of.
fn deaths(w: &mut World, first: &[Request]) -> Vec<CollectiveError> {
    let n = first.len() as u32;
    let ends = make_all(w, first);
    if ends.iter().all(Result::is_ok) {
        // All finished by eager sends: the next call tells.
        make_all(w, &vec![request(Collective::AllReduce, 10); n as usize]);
    }
    w.quiesce();
    (0..n as usize).map(|rank| w.cores[rank].check(0).expect_err("the group is dead")).collect()
}

#[test]
fn different_roots_are_named_on_all_ranks_even_where_no_message_meets() {
    const ROOTED: [Collective; 4] =
        [Collective::Broadcast, Collective::Reduce, Collective::Gather, Collective::Scatter];
    for (usual, other) in ROOTED.into_iter().flat_map(|u| ROOTED.map(|o| (u, o))) {
        for (n, odd, root) in [(2, 1, 1), (2, 0, 1), (3, 1, 1), (3, 2, 1), (4, 3, 3), (4, 1, 2), (5, 0, 4)] {
            for eager in [0, 1 << 16] {
                let mut w = world(n, 8 + u64::from(root), eager);
                let mut requests = vec![request(usual, 50); n as usize];
                requests[odd] = Request { root, ..request(other, 50) };
                for (rank, dead) in deaths(&mut w, &requests).into_iter().enumerate() {
                    let label = format!(
                        "{usual} and {other} from {root} on {odd} of {n}, eager {eager}, rank {rank}"
                    );
                    let CollectiveError::Mismatch { ours_who, ours, theirs_who, theirs } = &dead else {
                        panic!("{label}: {dead}")
                    };
                    assert!((ours.seq, theirs.seq) == (0, 0) && ours.root != theirs.root, "{label}: {dead}");
                    assert!(
                        (ours_who.rank == odd as u32) != (theirs_who.rank == odd as u32),
                        "{label}: {dead}"
                    );
                }
            }
        }
    }
}

#[test]
fn no_mixture_of_collectives_hangs_and_every_rank_is_told_of_two_that_differ() {
    // E1
    for seed in 0..400u64 {
        let mut rng = Seeded::new(seed);
        let n = 2 + rng.index(5) as u32;
        let kinds: Vec<Request> = (0..2 + rng.index(2))
            .map(|_| {
                let collective = Collective::ALL[rng.index(Collective::ALL.len())];
                let root = if collective.is_rooted() { rng.index(n as usize) as u32 } else { 0 };
                Request { root, ..request(collective, 40) }
            })
            .collect();
        let requests: Vec<Request> = (0..n).map(|_| kinds[rng.index(kinds.len())].clone()).collect();
        if requests.iter().all(|r| *r == requests[0]) {
            continue;
        }
        let mut w = world(n, seed, if seed % 3 == 0 { 0 } else { 1 << 16 });
        for (rank, dead) in deaths(&mut w, &requests).into_iter().enumerate() {
            let CollectiveError::Mismatch { ours, theirs, .. } = &dead else {
                panic!("seed {seed}, rank {rank}: {dead}")
            };
            let at = (ours.seq, theirs.seq);
            assert!(at == (0, 0) && !ours.same_but_history(theirs), "seed {seed}, rank {rank}: {dead}");
        }
    }
}

#[test]
fn an_earlier_call_is_named_however_many_came_between() {
    // The culprit and all that follow end by eager sends, so that nothing shows until the last call.
    for between in [0, 1, 5] {
        let mut w = world(2, 3, 1 << 16);
        let own = |rank: u32| Request { root: rank, ..request(Collective::Broadcast, 50) };
        make_all(&mut w, &[own(0), own(0)]);
        for _ in 0..=between {
            assert!(make_all(&mut w, &[own(0), own(1)]).iter().all(Result::is_ok), "eager");
        }
        for dead in deaths(&mut w, &[request(Collective::AllReduce, 10), request(Collective::AllReduce, 10)])
        {
            let CollectiveError::Mismatch { ours, theirs, .. } = &dead else { panic!("{dead}") };
            assert_eq!((ours.seq, theirs.seq), (1, 1), "{between} between: {dead}");
        }
    }
}

#[test]
fn a_rank_that_is_slow_to_say_which_call_it_was_is_waited_for() {
    let mut w = world(2, 3, 1 << 16);
    let own = |rank: u32| Request { root: rank, ..request(Collective::Broadcast, 50) };
    assert!(make_all(&mut w, &[own(0), own(1)]).iter().all(Result::is_ok), "eager");
    let last = request(Collective::AllReduce, 10);
    let calls = [0, 1].map(|rank| w.begin(rank, 0, &last, Some(&bytes(&last, 2)), None).unwrap());
    // Rank 1 has sent its half, and then gets no processor for the length of six inquiries.
    w.cores[1].turn();
    for _ in 0..6 {
        w.cores[0].turn();
        w.tick_alone(0);
    }
    w.settle(&[(0, calls[0]), (1, calls[1])]);
    for (rank, slot) in calls.into_iter().enumerate() {
        let end = w.take(rank, slot).0;
        let Err(dead @ CollectiveError::Mismatch { .. }) = end else { panic!("{end:?}") };
        assert!(!dead.to_string().contains("which one was not found out"), "rank {rank}: {dead}");
    }
}

#[test]
fn a_rank_that_cannot_say_which_call_it_was_is_no_hang() {
    // Rank 1 has got through, and does not poll: its answer never comes.
    let mut w = world(2, 3, 1 << 16);
    let own = |rank: u32| Request { root: rank, ..request(Collective::Broadcast, 50) };
    assert!(make_all(&mut w, &[own(0), own(1)]).iter().all(Result::is_ok), "eager");
    let last = request(Collective::Broadcast, 50);
    let root = Request { root: 1, ..last.clone() };
    let sent = w.begin(1, 0, &root, Some(&bytes(&root, 2)), None).unwrap();
    w.settle(&[(1, sent)]);
    let waits = w.begin(0, 0, &root, Some(&bytes(&root, 2)), None).unwrap();
    w.settle_alone(0, waits);
    let end = w.take(0, waits).0;
    let Err(dead @ CollectiveError::Mismatch { .. }) = end else { panic!("{end:?}") };
    assert!(dead.to_string().contains("which one was not found out"), "{dead}");
}

#[test]
fn calls_in_another_order_are_found() {
    let mut w = world(2, 4, 1 << 16);
    let (a, b) = (request(Collective::AllReduce, 10), request(Collective::Barrier, 0));
    let mut calls = Vec::new();
    for (rank, order) in [[a.clone(), b.clone()], [b, a]].into_iter().enumerate() {
        for r in order {
            if let Ok(slot) = w.begin(rank, 0, &r, Some(&bytes(&r, 2)[..input_bytes(&r, 2)]), None) {
                calls.push((rank, slot));
            }
        }
    }
    w.settle(&calls);
    for (rank, slot) in calls {
        assert!(matches!(w.take(rank, slot).0, Err(CollectiveError::Mismatch { .. })));
    }
}

#[test]
fn a_refusal_reaches_those_who_made_the_call_and_spares_those_who_refused_it_too() {
    let r = request(Collective::AllReduce, 10);
    let refusal = |w: &mut World, rank: usize| {
        let why = crate::engine::error::InvalidCall::Unsupported { op: ReduceOp::And, dtype: DType::F32 };
        let error = CollectiveError::Invalid { rank: rank as u32, call: "all_reduce", why };
        w.cores[rank].refuse(0, &Request { op: Some(ReduceOp::And), ..r.clone() }, &error);
    };
    // All refuse: the group lives.
    let mut w = world(3, 0, 0);
    (0..3).for_each(|rank| refusal(&mut w, rank));
    w.quiesce();
    assert!(make_all(&mut w, &[r.clone(), r.clone(), r.clone()]).iter().all(Result::is_ok));
    // One refuses, before or after the others have called.
    for before in [true, false] {
        let mut w = world(3, 1, 0);
        if before {
            refusal(&mut w, 2);
        }
        let calls: Vec<(usize, u16)> =
            (0..2).map(|rank| (rank, w.begin(rank, 0, &r, Some(&bytes(&r, 1)), None).unwrap())).collect();
        if !before {
            w.quiesce();
            refusal(&mut w, 2);
        }
        w.settle(&calls);
        for (rank, slot) in calls {
            let end = w.take(rank, slot).0;
            let Err(CollectiveError::Aborted { who, message, .. }) = &end else { panic!("{end:?}") };
            assert!(who.rank == 2 && message.contains("and is not defined on f32"), "{end:?}");
        }
    }
}

#[test]
fn an_abort_reaches_all_with_its_words() {
    let mut w = world(4, 3, 0);
    let r = request(Collective::AllReduce, 1000);
    let calls: Vec<(usize, u16)> =
        (0..3).map(|rank| (rank, w.begin(rank, 0, &r, Some(&bytes(&r, 1)), None).unwrap())).collect();
    w.cores[3].abort(0, "loss is not a number".to_owned());
    w.settle(&calls);
    for (rank, slot) in calls {
        let end = w.take(rank, slot).0;
        let Err(CollectiveError::Aborted { who, message, .. }) = end else { panic!("{end:?}") };
        assert_eq!((who.rank, &message[..]), (3, "loss is not a number"));
    }
}

#[test]
fn a_rank_that_fails_by_its_own_limits_blames_itself() {
    let mut w = world(3, 3, 0);
    let r = request(Collective::AllReduce, 1000);
    let calls: Vec<(usize, u16)> =
        (0..3).map(|rank| (rank, w.begin(rank, 0, &r, Some(&bytes(&r, 1)), None).unwrap())).collect();
    w.cores[2].transport.close(Peer(0), Cause::new(CauseKind::Local, "raise it (ulimit -n)"));
    // Before it hears what the others make of it.
    w.cores[2].turn();
    w.settle(&calls);
    for (rank, slot) in calls {
        let end = w.take(rank, slot).0;
        let (Err(CollectiveError::Aborted { who, .. }) | Err(CollectiveError::Lost { who, .. })) = &end
        else {
            panic!("{rank}: {end:?}")
        };
        assert_eq!(who.rank, 2, "{rank}: {end:?}");
        if rank != 2 {
            continue;
        }
        let Err(CollectiveError::Aborted { message, .. }) = end else { panic!("{end:?}") };
        assert!(message == "no way to rank 0 on host h0 (pid 100): raise it (ulimit -n)", "{message}");
    }
}

#[test]
fn a_goodbye_hurts_only_those_who_still_need_the_rank() {
    // Rank 2 makes its last call and leaves; the others finish that call.
    for seed in 0..20 {
        let mut w = world(3, seed, 1 << 16);
        let r = request(Collective::AllReduce, 10);
        let calls: Vec<(usize, u16)> =
            (0..3).map(|rank| (rank, w.begin(rank, 0, &r, Some(&bytes(&r, 1)), None).unwrap())).collect();
        w.settle(&calls[2..]);
        w.leave(2);
        w.settle(&calls);
        for (rank, slot) in &calls {
            assert_eq!(w.take(*rank, *slot).0, Ok(()), "seed {seed}");
        }
        // The next call needs it.
        let calls: Vec<(usize, u16)> = (0..2)
            .filter_map(|rank| w.begin(rank, 0, &r, Some(&bytes(&r, 1)), None).ok().map(|s| (rank, s)))
            .collect();
        w.settle(&calls);
        for rank in 0..2 {
            let dead = w.cores[rank].check(0);
            let Err(CollectiveError::Lost { who, kind, .. }) = dead else { panic!("seed {seed}: {dead:?}") };
            assert_eq!((who.rank, kind), (2, CauseKind::Left));
        }
    }
}

#[test]
fn a_communicator_closed_elsewhere_is_no_hang() {
    let mut w = world(2, 0, 0);
    let r = request(Collective::AllReduce, 10);
    let slot = w.begin(0, 0, &r, Some(&bytes(&r, 1)), None).unwrap();
    w.cores[1].close(0);
    w.settle(&[(0, slot)]);
    let end = w.take(0, slot).0;
    let Err(CollectiveError::Lost { who, kind, evidence, .. }) = end else { panic!("{end:?}") };
    assert_eq!((who.rank, kind), (1, CauseKind::Left));
    assert!(evidence.contains("closed"), "{evidence}");
}

#[test]
fn a_rank_that_closes_after_a_call_costs_nobody_that_call() {
    for seed in 0..6 {
        let mut w = world(3, seed, 1 << 16);
        let r = request(Collective::Reduce, 10);
        let first = w.begin(0, 0, &r, Some(&bytes(&r, 1)), None).unwrap();
        let over = w.begin(1, 0, &r, Some(&bytes(&r, 1)), None).unwrap();
        w.quiesce();
        assert_eq!(w.take(1, over).0, Ok(()), "seed {seed}");
        // An inquiry that was on its way when rank 1 had made its part, and has closed.
        w.cores[0].ask(first, 1);
        w.cores[1].close(0);
        w.quiesce();
        let last = w.begin(2, 0, &r, Some(&bytes(&r, 1)), None).unwrap();
        w.settle(&[(0, first), (2, last)]);
        assert_eq!((w.take(0, first).0, w.take(2, last).0), (Ok(()), Ok(())), "seed {seed}");
        // The next call needs it.
        let r = request(Collective::AllReduce, 10);
        let calls = [0, 2].map(|rank| (rank, w.begin(rank, 0, &r, Some(&bytes(&r, 1)), None).unwrap()));
        w.settle(&calls);
        for (rank, slot) in calls {
            let end = w.take(rank, slot).0;
            let Err(CollectiveError::Lost { who, kind, .. }) = end else { panic!("seed {seed}: {end:?}") };
            assert_eq!((who.rank, kind), (1, CauseKind::Left));
        }
    }
}

#[test]
fn a_receive_from_a_rank_that_has_closed_the_communicator_is_no_hang() {
    let message = |what| Request { what, op: None, in_place: false, ..request(Collective::AllReduce, 10) };
    let (send, receive) = (message(What::Send { to: 0, tag: 3 }), message(What::Receive { from: 1, tag: 3 }));
    let some = [7u8; 40];
    // What was sent before is received; what was not is not waited for. Eager, and as it waits for its receiver.
    for eager in [1 << 16, 0] {
        let mut w = world(2, 0, eager);
        let sent = w.begin(1, 0, &send, Some(&some), None).unwrap();
        if eager > 0 {
            w.settle(&[(1, sent)]);
            assert_eq!(w.take(1, sent).0, Ok(()));
        }
        w.cores[1].close(0);
        let first = w.begin(0, 0, &receive, None, Some(&[0; 40])).unwrap();
        w.settle(&[(0, first)]);
        let (end, _, got) = w.take(0, first);
        assert_eq!((end, &got[..]), (Ok(()), &some[..]), "eager {eager}");
        if eager == 0 {
            w.settle(&[(1, sent)]);
            assert_eq!(w.take(1, sent).0, Ok(()));
        }
        let second = w.begin(0, 0, &receive, None, Some(&[0; 40])).unwrap();
        w.settle(&[(0, second)]);
        let end = w.take(0, second).0;
        let Err(CollectiveError::Lost { who, kind, evidence, .. }) = end else { panic!("{end:?}") };
        assert_eq!((who.rank, kind), (1, CauseKind::Left));
        assert!(evidence.contains("closed"), "{evidence}");
    }
    // One that is late has closed nothing.
    let mut w = world(2, 0, 0);
    let first = w.begin(0, 0, &receive, None, Some(&[0; 40])).unwrap();
    for _ in 0..30 {
        w.tick();
        w.quiesce();
    }
    let sent = w.begin(1, 0, &send, Some(&some), None).unwrap();
    w.settle(&[(0, first), (1, sent)]);
    assert_eq!(w.take(0, first).0, Ok(()));
}

#[test]
fn a_rank_that_closes_after_another_call_is_no_hang_and_shows_both_sides() {
    // All but one call for the same root, and close once they are through, by eager sends. The one may wait for a rank that
    // has sent it nothing.
    let mut shown = 0;
    for (n, odd, root, other) in (3..6u32).flat_map(|n| {
        (0..n * n * n)
            .map(move |i| (n, i / n / n, i / n % n, i % n))
            .filter(|(.., root, other)| root != other)
    }) {
        let mut w = world(n, 0, 1 << 16);
        let from = |root| Request { root, ..request(Collective::Broadcast, 10) };
        let input = bytes(&from(0), 1);
        let others = (0..n as usize).filter(|rank| *rank != odd as usize);
        let begun: Vec<(usize, u16)> =
            others.map(|rank| (rank, w.begin(rank, 0, &from(root), Some(&input), None).unwrap())).collect();
        w.quiesce();
        for (rank, slot) in begun {
            if w.cores[rank].runs[usize::from(slot)].phase == Phase::Done {
                assert_eq!(w.take(rank, slot).0, Ok(()));
                w.cores[rank].close(0);
            }
        }
        let waits = w.begin(odd as usize, 0, &from(other), Some(&input), None).unwrap();
        w.settle(&[(odd as usize, waits)]);
        match w.take(odd as usize, waits).0 {
            // It sends, and hears of it later.
            Ok(()) => {}
            Err(CollectiveError::Mismatch { ours_who, ours, theirs_who, theirs }) => {
                assert!(ours_who.rank != theirs_who.rank && ours.root != theirs.root, "{ours} {theirs}");
                shown += 1;
            }
            Err(error) => panic!("{n} ranks, rank {odd} from {other} in place of {root}: {error}"),
        }
    }
    assert!(shown > 50, "{shown}");
}

#[test]
fn a_rank_that_closes_after_it_has_refused_a_call_says_why() {
    // Rank 0 joins the communicator when the words of the refusal have gone by.
    let mut w = world(2, 0, 0);
    let (r, why) = (request(Collective::AllReduce, 10), InvalidCall::WithItself);
    let error = CollectiveError::Invalid { rank: 1, call: "all_reduce", why };
    let group = |rank| Group::new(info(2, &[0, 1], rank)).unwrap();
    let index = w.cores[1].add_group(group(1));
    w.cores[1].refuse(index, &r, &error);
    w.cores[1].close(index);
    w.quiesce();
    let index = w.cores[0].add_group(group(0));
    let slot = w.begin(0, index, &r, Some(&bytes(&r, 1)), None).unwrap();
    w.settle(&[(0, slot)]);
    let end = w.take(0, slot).0;
    let Err(CollectiveError::Aborted { who, message, .. }) = end else { panic!("{end:?}") };
    assert!(who.rank == 1 && message.contains("with itself"), "{message}");
}

#[test]
fn a_communicator_closed_after_its_death_says_what_it_died_of() {
    let mut w = world(2, 0, 0);
    let r = request(Collective::AllReduce, 10);
    w.cores[1].abort(0, "no data".to_owned());
    w.cores[1].close(0);
    let slot = w.begin(0, 0, &r, Some(&bytes(&r, 1)), None).unwrap();
    w.settle(&[(0, slot)]);
    let end = w.take(0, slot).0;
    let Err(CollectiveError::Aborted { who, message, .. }) = end else { panic!("{end:?}") };
    assert_eq!((who.rank, &*message), (1, "no data"));
}

#[test]
fn what_a_rank_said_last_counts_before_its_end() {
    // R5: rank 0's transport has seen the word of rank 2's death and the end of rank 1, which said it, and has told of neither.
    let mut untold = 0;
    for seed in 0..20 {
        let mut w = world(3, 2 * seed, 4096);
        let r = request(Collective::AllReduce, 2000);
        w.cores[1].transport.close(Peer(2), Cause::new(CauseKind::Closed, "no more of it"));
        w.cores[1].turn();
        w.leave(1);
        let plan = FaultPlan { seed, faults: vec![Fault::DelayEvents { once_in: 1, polls: 1 }] };
        let nobody = Hub::new(LoopbackConfig::default()).join(Peer(0)).unwrap();
        let inner = std::mem::replace(&mut w.cores[0].transport, Box::new(nobody));
        w.cores[0].transport = Box::new(Faulty::new(inner, plan).unwrap());
        w.cores[0].turn();
        untold += u32::from(w.cores[0].check(0).is_ok());
        let Ok(slot) = w.begin(0, 0, &r, Some(&bytes(&r, 3)), None) else { continue };
        w.settle_alone(0, slot);
        let CollectiveError::Lost { who, .. } = w.take(0, slot).0.unwrap_err() else { panic!("seed {seed}") };
        assert_eq!(who.rank, 2, "seed {seed}");
    }
    assert!(untold > 3, "{untold}");
}

#[test]
fn a_slow_rank_is_no_failure() {
    let mut w = world(3, 5, 0);
    let r = request(Collective::AllReduce, 500);
    let mut calls: Vec<(usize, u16)> =
        (0..2).map(|rank| (rank, w.begin(rank, 0, &r, Some(&bytes(&r, 1)), None).unwrap())).collect();
    for _ in 0..30 {
        w.tick();
        w.quiesce();
    }
    calls.push((2, w.begin(2, 0, &r, Some(&bytes(&r, 1)), None).unwrap()));
    w.settle(&calls);
    for (rank, slot) in calls {
        assert_eq!(w.take(rank, slot).0, Ok(()));
    }
}
