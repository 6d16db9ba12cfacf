//! The engine over shared memory: small calls made at once and large ones combined where they lie give what all other ways
//! give, and fail as they do.

#[allow(dead_code)]
mod harness;

use harness::ranks_over;
use ringway_collectives::engine::{CollectiveError, Communicator, EngineOptions};
use ringway_collectives::reduce::ReduceOp;
use ringway_dataplane::shm::{Config, ShmTransport};
use ringway_dataplane::transport::{Address, Keyring, Peer, Transport};
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
        for len in [0usize, 1, 2, 511, 4097, 8192] {
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
            }
            checked_rounds(&c, 2);
        });
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
    let ends = ranks_over(transports(2, |config| config), "mismatch", &EngineOptions::default(), |c| {
        checked_rounds(&c, 3);
        let mut x = vec![1.0f32; if c.rank() == 1 { 20 } else { 10 }];
        // Plans of both are kept, so that the calls are made at once.
        for len in [10, 20] {
            c.all_reduce(&mut vec![1.0f32; len], ReduceOp::Sum).unwrap();
        }
        c.all_reduce(&mut x, ReduceOp::Sum).and_then(|()| c.barrier())
    });
    for end in ends {
        let text = end.unwrap_err().to_string();
        assert!(text.contains("f32 x 10") && text.contains("f32 x 20"), "{text}");
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
