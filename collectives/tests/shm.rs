//! The engine over shared memory: small calls made at once and large ones combined where they lie give what all other ways
//! give, and fail as they do.

#[allow(dead_code)]
mod harness;

use harness::{communicator, ranks_over, within};
use ringway_collectives::engine::{
    Blocks, CollectiveError, Communicator, EngineOptions, Numerics, Progress, Reduction,
};
use ringway_collectives::reduce::ReduceOp;
use ringway_collectives::schedule::{Algorithm, Collective, Wanted, Why};
use ringway_dataplane::shm::{Config, ShmTransport};
use ringway_dataplane::transport::{Address, Keyring, Peer, Transport};
use std::ops::Range;
use std::sync::Barrier;
use std::time::Duration;

/// `n` transports of this process that know each other.
fn transports(n: u32, shape: impl Fn(Config) -> Config) -> Vec<ShmTransport> {
    let open = |me| ShmTransport::new(shape(Config::new(me, Keyring::of([5; 32]), 70 + u64::from(me))));
    let mut all: Vec<ShmTransport> = (0..n).map(|me| open(me).expect("shared memory")).collect();
    let addresses: Vec<Address> = all.iter().map(Transport::address).collect();
    for (me, transport) in all.iter_mut().enumerate() {
        for (peer, address) in addresses.iter().enumerate().filter(|(peer, _)| *peer != me) {
            transport.connect(Peer(peer as u32), address).expect("an address of the same kind");
        }
    }
    all
}

fn checked_rounds(c: &Communicator, rounds: usize) {
    let n = c.size();
    for round in 0..rounds {
        for len in [0usize, 1, 2, 511, 4097, 8192, 32_768, 60_001] {
            let mine = |i: usize| (i * 3 + round) as i32 + c.rank() as i32;
            let total = |i: usize| (i * 3 + round) as i32 * n as i32 + (0..n as i32).sum::<i32>();
            let mut x: Vec<i32> = (0..len).map(mine).collect();
            c.all_reduce(&mut x, ReduceOp::Sum).unwrap();
            assert!(x.iter().enumerate().all(|(i, x)| *x == total(i)), "{len} in round {round}");
            let root = round as u32 % n;
            let mut x: Vec<i32> = (0..len).map(mine).collect();
            c.reduce(&mut x, ReduceOp::Sum, root).unwrap();
            assert!(c.rank() != root || x.iter().enumerate().all(|(i, x)| *x == total(i)), "{len}");
            c.broadcast(&mut x, root).unwrap();
            assert!(x.iter().enumerate().all(|(i, x)| *x == total(i)), "{len} in round {round}");
            c.barrier().unwrap();
        }
        let mut mean = [c.rank() as f64, 1.0];
        c.all_reduce(&mut mean, ReduceOp::Avg).unwrap();
        assert_eq!(mean, [f64::from(n - 1) / 2.0, 1.0]);
    }
}

#[test]
fn small_calls_are_right_whoever_is_late() {
    // A1 to A3: many more calls than go at once in a row, with a rank that is late now and then and one that makes its own
    // calls through handles.
    for n in [2, 3, 4] {
        ranks_over(transports(n, |config| config), &format!("{n} ranks"), &EngineOptions::default(), |c| {
            checked_rounds(&c, 20);
            for round in 0..200u32 {
                if round % n == c.rank() && round % 50 < n {
                    std::thread::sleep(Duration::from_millis(2));
                }
                let mut x = [c.rank(), round];
                if round % 3 == 0 && c.rank() == 1 {
                    let mut owned = c.alloc::<u32>(2).unwrap();
                    owned.copy_from_slice(&x);
                    x.copy_from_slice(&c.all_reduce_start(owned, ReduceOp::Max).unwrap().wait().unwrap());
                } else {
                    c.all_reduce(&mut x, ReduceOp::Max).unwrap();
                }
                assert_eq!(x, [n - 1, round]);
                let mut long = vec![c.rank() + round; if round % 2 == 0 { 32_767 } else { 64_000 }];
                c.all_reduce(&mut long, ReduceOp::Max).unwrap();
                assert!(long.iter().all(|x| *x == n - 1 + round), "round {round}");
            }
            checked_rounds(&c, 2);
        });
    }
}

#[test]
fn ranks_that_share_memory_choose_among_equal_bits_by_what_it_costs() {
    // I9 of schedules
    ranks_over(transports(4, |config| config), "4 ranks", &EngineOptions::default(), |c| {
        let told = |bytes| {
            let choice = c.explain(Collective::AllReduce, bytes).choice;
            (choice.algorithm, choice.why)
        };
        assert_eq!(told(8), (Algorithm::Exchange, Why::CheapestAlike));
        assert_eq!(told(32 << 10), (Algorithm::Direct, Why::CheapestAlike));
        assert_eq!(told(1 << 30).1, Why::Cheapest);
        let scattered = |bytes| c.explain(Collective::ReduceScatter, bytes).choice.algorithm;
        assert_eq!([8, 2 << 10, 64 << 10, 512 << 10, 8 << 20].map(scattered), [Algorithm::Exchange; 5]);
        c.prefer(Algorithm::Doubling.into());
        assert_eq!(told(8), (Algorithm::Doubling, Why::Forced));
        c.barrier().unwrap();
    });
}

/// A rank's bits of reduce-scatters into another buffer and in place, at once and as runs, and of a mean.
fn scattered_bits(c: &Communicator, algorithm: Algorithm, len: usize) -> Vec<u32> {
    c.prefer(algorithm.into());
    let all = len * c.size() as usize;
    let brought: Vec<f32> = (0..all).map(|i| 1.0 / (3 + c.rank() as usize * 7 + i) as f32).collect();
    let mut found = Vec::new();
    for _ in 0..TIMES {
        let mut own = vec![0.0f32; len];
        c.reduce_scatter(&brought, &mut own, ReduceOp::Sum).unwrap();
        found.extend(own.iter().map(|x| x.to_bits()));
        c.reduce_scatter(&brought, &mut own, ReduceOp::Avg).unwrap();
        found.extend(own.iter().map(|x| x.to_bits()));
        let mut place = brought.clone();
        c.reduce_scatter_in_place(&mut place, ReduceOp::Sum).unwrap();
        found.extend(place[c.rank() as usize * len..][..len].iter().map(|x| x.to_bits()));
    }
    found
}

#[test]
fn a_reduce_scatter_gives_the_same_bits_by_halves_and_by_one_exchange() {
    // E2, I9 of schedules; and in the order of ranks up the chain and by one exchange.
    let plain = Numerics::default();
    let orders = [
        (plain, Algorithm::Halving),
        (Numerics { f32_in_bf16: true, ..plain }, Algorithm::Halving),
        (Numerics { reproducible: true, ..plain }, Algorithm::Chain),
    ];
    for n in [2, 4, 8] {
        for (numerics, other) in orders {
            let options = EngineOptions { numerics, slice_bytes: Some(20_000), ..EngineOptions::default() };
            ranks_over(transports(n, |config| config), &format!("{n} ranks"), &options, |c| {
                for len in [0, 1, 5, 1000, 4096, 30_001] {
                    let (a, b) =
                        (scattered_bits(&c, other, len), scattered_bits(&c, Algorithm::Exchange, len));
                    assert!(a == b, "{other} and Exchange, {len} elements, {n} ranks, {numerics:?}");
                }
            });
        }
    }
}

#[test]
fn ranks_that_send_at_once_what_others_do_not_choose_alike() {
    // What a rank sends at once is its own setting.
    for n in [2, 3, 4] {
        let own = |config: Config| match config.me {
            1 => Config { eager_bytes: 1 << 10, ..config },
            _ => config,
        };
        ranks_over(transports(n, own), &format!("{n} ranks"), &EngineOptions::default(), |c| {
            for len in [1usize, 512, 3000, 5000, 8192, 9000, 16_000, 20_000, 100_000] {
                let mut x = vec![c.rank(); len];
                c.all_reduce(&mut x, ReduceOp::Sum).unwrap();
                assert!(x.iter().all(|x| *x == n * (n - 1) / 2), "{len} elements");
            }
        });
    }
}

#[test]
fn a_mismatch_of_nothing_but_the_algorithm_says_what_it_comes_from() {
    let ends = ranks_over(transports(3, |config| config), "algorithm", &EngineOptions::default(), |c| {
        c.prefer(if c.rank() == 1 { Algorithm::Ring } else { Algorithm::Tree }.into());
        c.all_reduce(&mut [c.rank()], ReduceOp::Sum).and_then(|()| c.barrier())
    });
    for end in ends {
        let text = end.unwrap_err().to_string();
        assert!(text.contains("every rank needs the same algorithms asked for"), "{text}");
    }
}

#[test]
fn two_ranks_that_share_memory_go_by_halves_at_every_length_but_short_ones() {
    ranks_over(transports(2, |config| config), "2 ranks", &EngineOptions::default(), |c| {
        let chosen = |bytes| c.explain(Collective::AllReduce, bytes).choice.algorithm;
        let found = [8, 4 << 10, 32 << 10, 512 << 10, 8 << 20].map(chosen);
        use Algorithm::{Doubling, Ring};
        assert_eq!(found, [Doubling, Doubling, Ring, Ring, Ring]);
        // What one rank combines of another's it reads once: no half of it goes round.
        for bytes in [8, 4 << 10, 64 << 10, 1 << 20, 8 << 20, 1 << 30] {
            assert_eq!(c.explain(Collective::Reduce, bytes).choice.algorithm, Algorithm::Tree, "{bytes} B");
        }
        c.barrier().unwrap();
    });
}

/// How often each call is made: the first has no plan yet, and is not made at once.
const TIMES: usize = 3;

/// Elements that one rank brings.
fn brings(rank: i64, round: i64, range: Range<usize>) -> Vec<i64> {
    range.map(|i| rank * 1000 + i as i64 * 7 + round).collect()
}

/// Element by element, the sum of what some ranks bring.
fn sums(ranks: Range<i64>, round: i64, range: Range<usize>) -> Vec<i64> {
    let one = |i: usize| ranks.clone().map(|rank| rank * 1000 + i as i64 * 7 + round).sum();
    range.map(one).collect()
}

/// Calls of blocks, of `len` elements a rank.
fn checked_blocks(c: &Communicator, plus: &Reduction<i64>, len: usize, round: i64) {
    let (n, me) = (i64::from(c.size()), i64::from(c.rank()));
    let all = len * n as usize;
    let block = |rank: i64| rank as usize * len..(rank as usize + 1) * len;
    let (mine, full) = (brings(me, round, 0..len), brings(me, round, 0..all));
    let reduced = sums(0..n, round, block(me));
    let gathered: Vec<i64> = (0..n).flat_map(|rank| brings(rank, round, 0..len)).collect();
    let crossed: Vec<i64> = (0..n).flat_map(|rank| brings(rank, round, block(me))).collect();
    let blocks = Blocks::packed(&vec![len; n as usize]).unwrap();
    let root = (round % n) as u32;
    let fresh = || (vec![-1; len], vec![-1; all]);
    for _ in 0..TIMES {
        let (mut part, _) = fresh();
        c.reduce_scatter(&full, &mut part, ReduceOp::Sum).unwrap();
        assert_eq!(part, reduced, "reduce-scatter of {len}");
    }
    for _ in 0..TIMES {
        let (mut part, _) = fresh();
        c.reduce_scatter_with(&full, &mut part, plus).unwrap();
        assert_eq!(part, reduced, "reduce-scatter of {len} by a function");
    }
    for _ in 0..TIMES {
        let (_, mut whole) = fresh();
        c.all_gather(&mine, &mut whole).unwrap();
        assert_eq!(whole, gathered, "all-gather of {len}");
    }
    for _ in 0..TIMES {
        let (_, mut whole) = fresh();
        c.all_gather_v(&mine, &mut whole, &blocks).unwrap();
        assert_eq!(whole, gathered, "all-gather of listed blocks of {len}");
    }
    for _ in 0..TIMES {
        let (_, mut whole) = fresh();
        c.all_to_all(&full, &mut whole).unwrap();
        assert_eq!(whole, crossed, "all-to-all of {len}");
    }
    for _ in 0..TIMES {
        let (_, mut whole) = fresh();
        c.gather(&mine, &mut whole, root).unwrap();
        assert!(c.rank() != root || whole == gathered, "gather of {len}");
    }
    for _ in 0..TIMES {
        let (mut part, _) = fresh();
        c.scatter(&full, &mut part, root).unwrap();
        assert_eq!(part, brings(root.into(), round, block(me)), "scatter of {len}");
    }
}

/// Scans of `len` elements, and messages round the ranks.
fn checked_scans(c: &Communicator, len: usize, round: i64) {
    let (n, me) = (i64::from(c.size()), i64::from(c.rank()));
    let mine = brings(me, round, 0..len);
    for _ in 0..TIMES {
        let mut buffer = mine.clone();
        c.scan(&mut buffer, ReduceOp::Sum).unwrap();
        assert_eq!(buffer, sums(0..me + 1, round, 0..len), "scan of {len}");
    }
    for _ in 0..TIMES {
        let mut buffer = mine.clone();
        c.exclusive_scan(&mut buffer, ReduceOp::Sum).unwrap();
        let expected = if me == 0 { mine.clone() } else { sums(0..me, round, 0..len) };
        assert_eq!(buffer, expected, "exclusive scan of {len}");
    }
    let (before, after) = ((me + n - 1) % n, (me + 1) % n);
    for _ in 0..TIMES {
        let mut heard = vec![-1; len];
        if me == 0 {
            c.send(&mine, after as u32, 3).unwrap();
        }
        c.recv(&mut heard, before as u32, 3).unwrap();
        if me > 0 {
            c.send(&mine, after as u32, 3).unwrap();
        }
        assert_eq!(heard, brings(before, round, 0..len), "message of {len}");
    }
}

#[test]
fn blocks_lie_where_they_belong_whichever_way_a_call_goes() {
    // A1 to A3, with each rank late now and then, so that calls that were begun at once go on as runs.
    let one = |algorithm| EngineOptions { wanted: Wanted::only(algorithm), ..EngineOptions::default() };
    for algorithm in
        [Algorithm::Ring, Algorithm::Direct, Algorithm::Chain, Algorithm::Doubling, Algorithm::Tree]
    {
        for n in [2, 3, 4] {
            let label = format!("{algorithm:?} of {n} ranks");
            ranks_over(transports(n, |config| config), &label, &one(algorithm), |c| {
                let plus = Reduction::commutative(|other: &[i64], acc: &mut [i64]| {
                    acc.iter_mut().zip(other).for_each(|(a, b)| *a += b);
                });
                for len in [0, 1, 3, 500] {
                    for round in 0..5 {
                        if round % i64::from(n) == i64::from(c.rank()) && len == 3 {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        checked_blocks(&c, &plus, len, round);
                        checked_scans(&c, len, round);
                    }
                }
            });
        }
    }
}

#[test]
fn small_sums_that_travel_as_another_type_are_right() {
    for numerics in [
        Numerics { reproducible: true, ..Numerics::default() },
        Numerics { f32_in_bf16: true, ..Numerics::default() },
        Numerics { reproducible: true, f32_in_bf16: true, ..Numerics::default() },
    ] {
        for n in [2, 3] {
            ranks_over(transports(n, |config| config), &format!("{n}"), &EngineOptions::default(), |c| {
                c.set_numerics(numerics);
                for round in 0..20 {
                    // Small whole numbers, which all these types can hold.
                    let mine: Vec<f32> = (0..4 * n).map(|i| (i % 4 + c.rank() + round % 3) as f32).collect();
                    let total = |i: u32| (0..n).map(|rank| (i % 4 + rank + round % 3) as f32).sum::<f32>();
                    let mut sums = mine.clone();
                    c.all_reduce(&mut sums, ReduceOp::Sum).unwrap();
                    assert_eq!(sums, (0..4 * n).map(total).collect::<Vec<_>>(), "{numerics:?}");
                    let mut block = [0f32; 4];
                    c.reduce_scatter(&mine, &mut block, ReduceOp::Sum).unwrap();
                    assert_eq!(block, [0, 1, 2, 3].map(total), "{numerics:?}");
                    let mut sums = mine;
                    c.reduce_scatter_in_place(&mut sums, ReduceOp::Sum).unwrap();
                    let own = c.rank() as usize * 4;
                    assert_eq!(sums[own..own + 4], [0, 1, 2, 3].map(total), "{numerics:?}");
                }
            });
        }
    }
}

#[test]
fn large_calls_are_right_from_every_kind_of_memory() {
    // R4: blocks that are mapped, memory that is attached, and pieces through the queue.
    for (map_blocks, attach) in [(true, true), (false, true), (false, false)] {
        for n in [2, 3] {
            let all = transports(n, |config| Config { map_blocks, attach, ..config });
            ranks_over(all, &format!("{n} {map_blocks} {attach}"), &EngineOptions::default(), |c| {
                for len in [8193usize, 100_003, 1_000_000] {
                    let fill = |i: usize| i as f32 * 0.5 + c.rank() as f32;
                    let sum = |i: usize| (0..n).map(|r| i as f32 * 0.5 + r as f32).sum::<f32>();
                    let mut block = c.alloc::<f32>(len).unwrap();
                    let mut plain: Vec<f32> = (0..len).map(fill).collect();
                    for _ in 0..3 {
                        block.iter_mut().enumerate().for_each(|(i, x)| *x = fill(i));
                        plain.iter_mut().enumerate().for_each(|(i, x)| *x = fill(i));
                        c.all_reduce(&mut block, ReduceOp::Sum).unwrap();
                        c.all_reduce(&mut plain, ReduceOp::Sum).unwrap();
                        let close = |i: usize, x: f32| (x - sum(i)).abs() <= sum(i).abs() * 1e-6;
                        assert!(block.iter().enumerate().all(|(i, x)| close(i, *x)), "{len}");
                        assert!(block.iter().zip(&plain).all(|(a, b)| a.to_bits() == b.to_bits()), "{len}");
                    }
                }
            });
        }
    }
}

#[test]
fn mismatches_of_small_calls_show_both_sides() {
    // Of one slice and of several (A6), and of unequally many.
    for lengths in [[10, 20], [40_000, 40_001], [16_000, 60_000], [60_000, 10]] {
        let ends = ranks_over(transports(2, |config| config), "mismatch", &EngineOptions::default(), |c| {
            checked_rounds(&c, 3);
            let mut x = vec![1.0f32; lengths[c.rank() as usize]];
            // Plans of both are kept, so that the calls are made at once.
            for len in lengths {
                c.all_reduce(&mut vec![1.0f32; len], ReduceOp::Sum).unwrap();
            }
            c.all_reduce(&mut x, ReduceOp::Sum).and_then(|()| c.barrier())
        });
        for end in ends {
            let text = end.unwrap_err().to_string();
            assert!(lengths.iter().all(|len| text.contains(&format!("f32 x {len}"))), "{text}");
        }
    }
}

#[test]
fn who_goes_between_small_calls_is_named() {
    let ends = ranks_over(transports(3, |config| config), "gone", &EngineOptions::default(), |c| {
        for calls in 0.. {
            if c.rank() == 2 && calls == 500 {
                c.abort("enough");
                break;
            }
            c.all_reduce(&mut [calls], ReduceOp::Max)?;
        }
        Ok(())
    });
    for end in &ends[..2] {
        let Err(CollectiveError::Aborted { who, message, .. }) = end else { panic!("{end:?}") };
        assert_eq!((who.rank, message.as_str()), (2, "enough"));
    }
}

#[test]
fn a_large_message_that_is_looked_for_is_asked_about() {
    // R4: nothing is posted by the root. Rank 1 has closed the communicator, and goes on with another.
    let options = EngineOptions { wanted: Algorithm::Tree.into(), ..EngineOptions::default() };
    let ends = ranks_over(transports(2, |config| config), "looks", &options, |c| {
        let other = c.split(Some(0), c.rank()).unwrap().expect("a colour was given");
        let end = (c.rank() == 0).then(|| c.reduce(&mut vec![0u64; 100_000], ReduceOp::Sum, 0));
        drop(c);
        other.barrier().unwrap();
        end
    });
    let Some(Err(CollectiveError::Lost { who, evidence, .. })) = &ends[0] else { panic!("{ends:?}") };
    assert!(who.rank == 1 && evidence.contains("closed this communicator"), "{ends:?}");
}

/// A call of `len` elements, by its number below 14.
fn call_of(c: &Communicator, number: usize, len: usize) -> Result<(), CollectiveError> {
    let n = c.size() as usize;
    let (mut part, mut whole) = (vec![1i32; len], vec![1i32; len * n]);
    let last = c.size() - 1;
    match number {
        0 => c.all_reduce(&mut part, ReduceOp::Sum),
        1 => c.all_reduce(&mut whole, ReduceOp::Sum),
        2 => c.broadcast(&mut part, 0),
        3 => c.broadcast(&mut part, last),
        4 => c.reduce(&mut part, ReduceOp::Sum, 0),
        5 => c.reduce(&mut part, ReduceOp::Sum, last),
        6 => c.all_gather(&part, &mut whole),
        7 => c.reduce_scatter(&whole, &mut part, ReduceOp::Sum),
        8 => c.all_to_all(&whole.clone(), &mut whole),
        9 => c.gather(&part, &mut whole, 0),
        10 => c.scatter(&whole, &mut part, last),
        11 => c.scan(&mut part, ReduceOp::Sum),
        12 => c.exclusive_scan(&mut part, ReduceOp::Sum),
        _ => c.barrier(),
    }
}

#[test]
fn no_two_calls_that_differ_hang_though_both_are_made_at_once() {
    // A2, and E1 of the engine: plans of both calls are kept.
    let all = 0..14;
    let pairs = all.clone().flat_map(|a| all.clone().map(move |b| (a, b))).filter(|(a, b)| a != b);
    for (at, (usual, other)) in pairs.enumerate() {
        let (n, odd, len) = [(2, 0, 5), (3, 2, 5), (4, 1, 3000)][at % 3];
        let label = format!("{usual} and {other} on {odd} of {n}");
        let ends = ranks_over(transports(n, |config| config), &label, &EngineOptions::default(), |c| {
            for number in [usual, other, usual, other] {
                // The others may be past it already, and have found that they differ.
                call_of(&c, number, len)?;
            }
            call_of(&c, if c.rank() == odd { other } else { usual }, len).and_then(|()| c.barrier())
        });
        for (rank, end) in ends.into_iter().enumerate() {
            assert!(matches!(end, Err(CollectiveError::Mismatch { .. })), "{label}, rank {rank}: {end:?}");
        }
    }
}

#[test]
fn what_a_message_left_behind_a_full_queue_goes_without_another_call() {
    // D6: the owner of a large message waits to hear that it was taken, and the queue to it is full of what it has not looked at yet.
    const LARGE: usize = 1 << 20;
    const SMALL: u8 = 31;
    let (shown, taken, over) = (Barrier::new(2), Barrier::new(2), Barrier::new(2));
    let by_caller = EngineOptions { progress: Progress::Caller, ..EngineOptions::default() };
    let mut both = transports(2, |config| config).into_iter();
    let (near, far) = (both.next().expect("one"), both.next().expect("another"));
    within("what was taken is not told", || {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let c = communicator(far, 1, 2, &by_caller);
                c.barrier().unwrap();
                let large = c.send_start(c.alloc::<u8>(LARGE).unwrap(), 0, 0).unwrap();
                shown.wait();
                taken.wait();
                drop(large.wait().unwrap());
                for i in 0..SMALL {
                    let mut small = [0; 8192];
                    c.recv(&mut small, 0, 0).unwrap();
                    assert_eq!(small, [i; 8192]);
                }
                over.wait();
            });
            let c = communicator(near, 0, 2, &EngineOptions::default());
            c.barrier().unwrap();
            shown.wait();
            // As many as the queue of 256 KiB takes.
            (0..SMALL).for_each(|i| c.send(&[i; 8192], 1, 0).unwrap());
            c.recv(&mut vec![0u8; LARGE], 1, 0).unwrap();
            taken.wait();
            over.wait();
        });
    });
}
