//! The collectives beyond the plain ones, by ranks as threads over loopback: unequal blocks, scans, users' functions,
//! groups of calls, and how results are computed.

mod harness;

use harness::{members, ranks};
use ringway_collectives::engine::{
    Blocks, CallGroup, CollectiveError, Communicator, EngineOptions, Form, GroupInfo, InvalidCall, Numerics,
    Reduction,
};
use ringway_collectives::reduce::ReduceOp;
use ringway_collectives::schedule::{Algorithm, Wanted};
use ringway_dataplane::transport::LoopbackConfig;

/// No eager buffers and room for one message, and the generous kind.
fn configs() -> [LoopbackConfig; 2] {
    let plain = LoopbackConfig::default();
    [LoopbackConfig { eager_bytes: 0, depth: 1, seed: 7, ..plain }, LoopbackConfig { seed: 8, ..plain }]
}

/// Room for a message of each of several communicators, and of each kind: what crossing orders need.
fn deep() -> [LoopbackConfig; 2] {
    configs().map(|config| LoopbackConfig { depth: config.depth.max(16), ..config })
}

fn options(algorithm: Option<Algorithm>) -> EngineOptions {
    EngineOptions {
        wanted: algorithm.map_or(Wanted::ANY, Wanted::only),
        slice_bytes: Some(64),
        slices_in_flight: Some(3),
        ..EngineOptions::default()
    }
}

/// Elements of rank `r`'s block.
fn count(r: u32) -> usize {
    [0, 3, 100, 1, 0, 57][r as usize % 6]
}

fn value(rank: u32, i: usize) -> i64 {
    i64::from(rank) * 1000 + i as i64
}

fn own(rank: u32, len: usize) -> Vec<i64> {
    (0..len).map(|i| value(rank, i)).collect()
}

#[test]
fn unequal_blocks_are_gathered_and_scattered_where_they_belong() {
    for config in configs() {
        for n in 1..=6 {
            for algorithm in [None, Some(Algorithm::Ring), Some(Algorithm::Direct), Some(Algorithm::Chain)] {
                ranks(n, config, &options(algorithm), |comm| blocks_of_one_rank(&comm, n));
            }
        }
    }
}

fn blocks_of_one_rank(comm: &Communicator, n: u32) {
    let counts: Vec<usize> = (0..n).map(count).collect();
    let packed = Blocks::packed(&counts).unwrap();
    // From the back, with a gap of 2 before each.
    let total: usize = counts.iter().map(|c| c + 2).sum();
    let mut at = total;
    let places: Vec<usize> = counts
        .iter()
        .map(|c| {
            at -= c + 2;
            at + 2
        })
        .collect();
    let spread = Blocks::at(&counts, &places).unwrap();
    let me = comm.rank();
    let mine = own(me, count(me));

    let mut all = vec![-1; total];
    comm.all_gather_v(&mine, &mut all, &spread).unwrap();
    let mut wanted = vec![-1; total];
    for r in 0..n {
        wanted[spread.range(r).unwrap()].copy_from_slice(&own(r, count(r)));
    }
    assert_eq!(all, wanted);

    let mut buffer = comm.alloc::<i64>(packed.total()).unwrap();
    buffer[packed.range(me).unwrap()].copy_from_slice(&mine);
    let buffer = comm.all_gather_v_start(buffer, &packed).unwrap().wait().unwrap();
    assert!((0..n).all(|r| buffer[packed.range(r).unwrap()] == own(r, count(r))));

    let input: Vec<i64> = (0..packed.total()).map(|i| value(me, i)).collect();
    let sum = |i: usize| (0..n).map(|r| value(r, i)).sum::<i64>();
    let wanted: Vec<i64> = packed.range(me).unwrap().map(sum).collect();
    let mut output = vec![-1; count(me)];
    comm.reduce_scatter_v(&input, &mut output, &packed, ReduceOp::Sum).unwrap();
    assert_eq!(output, wanted);
    let mut in_place = input.clone();
    comm.reduce_scatter_v_in_place(&mut in_place, &packed, ReduceOp::Sum).unwrap();
    assert_eq!(in_place[packed.range(me).unwrap()], wanted);

    // Rank a sends count(a + b) elements to rank b.
    let to = |r: u32| Blocks::packed(&(0..n).map(|b| count(r + b)).collect::<Vec<_>>()).unwrap();
    let (sent, received) = (to(me), to(me));
    let input: Vec<i64> = (0..n).flat_map(|b| own(me * 10 + b, count(me + b))).collect();
    let mut output = vec![-1; received.total()];
    comm.all_to_all_v(&input, &sent, &mut output, &received).unwrap();
    for from in 0..n {
        assert_eq!(output[received.range(from).unwrap()], own(from * 10 + me, count(me + from)));
    }
}

#[test]
fn counts_that_differ_are_a_mismatch_that_shows_both() {
    for config in configs() {
        let ends = ranks(3, config, &options(None), |comm| {
            let counts = if comm.rank() == 1 { [5, 6, 7] } else { [5, 5, 7] };
            let blocks = Blocks::packed(&counts).unwrap();
            let mine = vec![0u8; blocks.count(comm.rank())];
            comm.all_gather_v(&mine, &mut vec![0; blocks.total()], &blocks).unwrap_err()
        });
        for end in ends {
            let CollectiveError::Mismatch { ours, theirs, .. } = &end else { panic!("{end}") };
            assert!(ours.form.has(Form::BLOCKS) && theirs.form.has(Form::BLOCKS), "{end}");
            let mut counts = [ours.count, theirs.count];
            counts.sort_unstable();
            assert_eq!(counts, [17, 18], "{end}");
        }
        let ends = ranks(2, config, &options(None), |comm| {
            // Rank 0 sends 4 elements, rank 1 takes 9.
            let (sent, received) = if comm.rank() == 0 { ([1, 4], [1, 2]) } else { ([2, 1], [9, 1]) };
            let (sent, received) = (Blocks::packed(&sent).unwrap(), Blocks::packed(&received).unwrap());
            let (input, mut output) = (vec![0f32; sent.total()], vec![0f32; received.total()]);
            // What rank 0 receives is as it should be: it may be through before it hears of the other half.
            let call = comm.all_to_all_v(&input, &sent, &mut output, &received);
            call.and_then(|()| comm.barrier()).unwrap_err()
        });
        for end in ends {
            let CollectiveError::Mismatch { ours, theirs, .. } = &end else { panic!("{end}") };
            let mut counts = [ours.count, theirs.count];
            counts.sort_unstable();
            assert_eq!(counts, [4, 9], "{end}");
        }
    }
}

#[test]
fn blocks_that_do_not_fit_are_refused_and_nothing_is_sent() {
    ranks(1, configs()[1], &options(None), |comm| {
        let blocks = Blocks::packed(&[4]).unwrap();
        let short = comm.all_gather_v(&[1u8; 4], &mut [0; 3], &blocks).unwrap_err();
        assert!(matches!(short, CollectiveError::Invalid { why: InvalidCall::Blocks(_), .. }), "{short}");
        let two = Blocks::packed(&[4, 4]).unwrap();
        assert!(comm.all_gather_v(&[1u8; 4], &mut [0; 8], &two).is_err());
        comm.all_gather_v(&[1u8; 4], &mut [0; 4], &blocks).unwrap();
    });
}

/// Squares of 2 x 2 integers modulo 2^32 multiply associatively and do not commute.
fn multiply(left: &[u32], right: &mut [u32]) {
    for (l, r) in left.chunks_exact(4).zip(right.chunks_exact_mut(4)) {
        let product = |i: usize, j: usize| {
            let (a, b) = (l[2 * i].wrapping_mul(r[j]), l[2 * i + 1].wrapping_mul(r[2 + j]));
            a.wrapping_add(b)
        };
        let new = [product(0, 0), product(0, 1), product(1, 0), product(1, 1)];
        r.copy_from_slice(&new);
    }
}

fn matrices(rank: u32) -> Vec<u32> {
    vec![1, rank + 2, 0, 1, rank + 1, 1, 1, 0]
}

#[test]
fn functions_that_do_not_commute_are_applied_in_rank_order() {
    let own = Reduction::in_order(multiply);
    for config in configs() {
        for n in 1..=6 {
            for algorithm in [None, Some(Algorithm::Ring), Some(Algorithm::Tree), Some(Algorithm::Doubling)] {
                // Every slice is whole matrices.
                let options = EngineOptions { slice_bytes: Some(1 << 20), ..options(algorithm) };
                ranks(n, config, &options, |comm| {
                    let upto = |last: u32| {
                        (0..last).rev().fold(matrices(last), |mut right, r| {
                            multiply(&matrices(r), &mut right);
                            right
                        })
                    };
                    let mut buffer = matrices(comm.rank());
                    // An element of this function is four of these: whole ones only in parts of one chunk.
                    if n == 1 || matches!(algorithm, Some(Algorithm::Tree | Algorithm::Doubling)) {
                        comm.all_reduce_with(&mut buffer, &own).unwrap();
                        assert_eq!(buffer, upto(n - 1), "{n} {algorithm:?}");
                    }
                    let mut buffer = matrices(comm.rank());
                    comm.scan_with(&mut buffer, &own).unwrap();
                    assert_eq!(buffer, upto(comm.rank()));
                    let mut buffer = matrices(comm.rank());
                    comm.exclusive_scan_with(&mut buffer, &own).unwrap();
                    let before = comm.rank().checked_sub(1).map_or(matrices(0), upto);
                    assert_eq!(buffer, before);
                    let input: Vec<u32> = (0..n).flat_map(|_| matrices(comm.rank())).collect();
                    let mut output = vec![0; 8];
                    comm.reduce_scatter_with(&input, &mut output, &own).unwrap();
                    assert_eq!(output, upto(n - 1));
                    let mut buffer = matrices(comm.rank());
                    comm.reduce_with(&mut buffer, &own, n / 2).unwrap();
                    assert!(comm.rank() != n / 2 || buffer == upto(n - 1), "{n} {algorithm:?}");
                });
            }
        }
    }
}

#[test]
fn every_algorithm_keeps_the_order_of_ranks_for_a_function_that_needs_it() {
    let leftmost = Reduction::in_order(|left: &[u16], right: &mut [u16]| right.copy_from_slice(left));
    for algorithm in Algorithm::ALL {
        for n in 1..=5 {
            ranks(n, configs()[n as usize % 2], &options(Some(algorithm)), |comm| {
                let mut buffer = vec![comm.rank() as u16 + 7; 333];
                comm.all_reduce_with(&mut buffer, &leftmost).unwrap();
                assert_eq!(buffer, [7; 333], "{algorithm} {n}");
                let buffer = comm.alloc::<u16>(333).unwrap();
                let ended = comm.all_reduce_with_start(buffer, &leftmost).unwrap().wait().unwrap();
                assert_eq!(ended[..], [0; 333]);
            });
        }
    }
}

#[test]
fn a_panic_in_a_function_is_an_error_on_every_rank() {
    for n in [2, 4] {
        let ends = ranks(n, configs()[1], &options(None), |comm| {
            let own = Reduction::<f32>::commutative(|_, _| panic!("divided by a pear"));
            comm.all_reduce_with(&mut [1.0; 100], &own).unwrap_err()
        });
        for end in ends {
            assert!(matches!(end, CollectiveError::Aborted { .. }), "{end}");
            assert!(end.to_string().contains("divided by a pear"), "{end}");
        }
    }
}

#[test]
fn a_function_meets_no_built_in_operation() {
    let ends = ranks(2, configs()[1], &options(None), |comm| {
        let own = Reduction::<u64>::commutative(|left, right| {
            right.iter_mut().zip(left).for_each(|(r, l)| *r = r.wrapping_add(*l));
        });
        match comm.rank() {
            0 => comm.all_reduce_with(&mut [1; 10], &own).unwrap_err(),
            _ => comm.all_reduce(&mut [1u64; 10], ReduceOp::Sum).unwrap_err(),
        }
    });
    assert!(ends.iter().all(|end| matches!(end, CollectiveError::Mismatch { .. })), "{ends:?}");
}

#[test]
fn calls_of_a_group_go_on_together() {
    for config in deep() {
        for n in 2..=4 {
            ranks(n, config, &options(None), |comm| {
                let me = comm.rank();
                let part = comm.split(Some(me % 2), 0).unwrap().unwrap();
                let mine = own(me, 1000);
                let mut from: Vec<Vec<i64>> = (0..n).map(|_| vec![0; 1000]).collect();
                let (mut sum, mut of_part, mut all) =
                    (own(me, 500), vec![i64::from(me)], vec![0; n as usize]);
                let one = [i64::from(me)];
                let mut group = CallGroup::start();
                // Everybody sends first: one after the other they would wait for ever.
                for to in (0..n).filter(|r| *r != me) {
                    group.send(&comm, &mine, to, 3);
                }
                // Ranks take their two communicators in different orders.
                if me.is_multiple_of(2) {
                    group.all_reduce(&part, &mut of_part, ReduceOp::Sum);
                    group.all_reduce(&comm, &mut sum, ReduceOp::Sum);
                } else {
                    group.all_reduce(&comm, &mut sum, ReduceOp::Sum);
                    group.all_reduce(&part, &mut of_part, ReduceOp::Sum);
                }
                group.all_gather(&comm, &one, &mut all);
                for (rank, buffer) in (0..n).zip(&mut from).filter(|(rank, _)| *rank != me) {
                    group.recv(&comm, buffer, rank, 3);
                }
                group.end().unwrap();
                for r in (0..n).filter(|r| *r != me) {
                    assert_eq!(from[r as usize], own(r, 1000));
                }
                assert_eq!(sum[7], (0..n).map(|r| value(r, 7)).sum::<i64>());
                assert_eq!(of_part[0], (0..n).filter(|r| r % 2 == me % 2).map(i64::from).sum::<i64>());
                assert_eq!(all, (0..i64::from(n)).collect::<Vec<_>>());
            });
        }
    }
}

#[test]
fn a_group_with_a_wrong_call_ends_with_its_error_on_all_ranks() {
    let ends = ranks(2, configs()[1], &options(None), |comm| {
        let (mut a, mut b) = ([1.0f32; 4], [1.0f32; 4]);
        let mut group = CallGroup::start();
        group.all_reduce(&comm, &mut a, if comm.rank() == 0 { ReduceOp::And } else { ReduceOp::Sum });
        group.broadcast(&comm, &mut b, 0);
        group.end()
    });
    assert!(matches!(ends[0], Err(CollectiveError::Invalid { .. })), "{:?}", ends[0]);
    assert!(matches!(ends[1], Err(CollectiveError::Aborted { .. })), "{:?}", ends[1]);
}

#[test]
fn a_group_of_more_calls_than_there_may_be_is_refused_and_costs_nothing() {
    ranks(2, configs()[1], &options(None), |comm| {
        let said = [comm.rank()];
        let mut group = CallGroup::start();
        (0..200_000).for_each(|_| group.send(&comm, &said, 1 - comm.rank(), 0));
        assert!(matches!(group.end(), Err(CollectiveError::TooManyStarted { .. })));
        comm.barrier().unwrap();
    });
}

#[test]
fn two_communicators_with_crossing_orders_of_started_calls_do_not_deadlock() {
    for config in deep() {
        ranks(3, config, &options(None), |comm| {
            let info = GroupInfo { id: 77, my_rank: comm.rank(), members: members(3) };
            let other = comm.with_group(info).unwrap();
            for round in 0..20 {
                let start = |c: &Communicator, len: usize| {
                    let mut buffer = c.alloc::<i64>(len).unwrap();
                    buffer.fill(1);
                    c.all_reduce_start(buffer, ReduceOp::Sum).unwrap()
                };
                let mut handles = Vec::new();
                for call in 0..6 {
                    let first = (call + comm.rank() as usize).is_multiple_of(2);
                    let (a, b) = if first { (&comm, &other) } else { (&other, &comm) };
                    handles.push(start(a, 100 + round));
                    handles.push(start(b, 100 + round));
                }
                for handle in handles {
                    assert!(handle.wait().unwrap().iter().all(|x| *x == 3));
                }
            }
        });
    }
}

#[test]
fn numerics_that_differ_are_a_mismatch() {
    let ends = ranks(2, configs()[1], &options(None), |comm| {
        let reproducible = comm.rank() == 0;
        comm.set_numerics(Numerics { reproducible, ..Numerics::default() });
        // What no order can change is the same call either way.
        comm.all_reduce(&mut [1u8; 10], ReduceOp::Sum).unwrap();
        comm.all_reduce(&mut [1f32; 10], ReduceOp::Sum).unwrap_err()
    });
    assert!(ends.iter().all(|end| matches!(end, CollectiveError::Mismatch { .. })), "{ends:?}");
    assert!(ends[0].to_string().contains("reproducible"), "{}", ends[0]);
}
