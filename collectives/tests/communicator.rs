//! The communicator as users hold it: ranks are threads, over loopback.

#[allow(dead_code)]
mod harness;

use harness::{communicator, ranks, within};
use ringway_collectives::engine::{
    CollectiveError, Communicator, Ending, EngineOptions, InvalidCall, OnFailure, WriteDown,
};
use ringway_collectives::reduce::ReduceOp;
use ringway_collectives::schedule::Algorithm;
use ringway_dataplane::transport::{Cause, CauseKind, Hub, LoopbackConfig, Peer};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Poll, Waker};

fn config(seed: u64) -> LoopbackConfig {
    let eager_bytes = if seed.is_multiple_of(2) { 0 } else { 8192 };
    LoopbackConfig { seed, eager_bytes, depth: 64, reorder: seed.is_multiple_of(3) }
}

fn value(rank: u32, i: usize) -> i64 {
    i64::from(rank) * 1000 + i as i64
}

#[test]
fn every_call_gives_its_result() {
    for (n, seed) in [(1u32, 0), (2, 1), (3, 2), (4, 3), (7, 4)] {
        ranks(n, config(seed), &EngineOptions::default(), |c| {
            let (me, size) = (c.rank(), c.size() as usize);
            assert_eq!((c.size(), c.members().len()), (n, size));
            for len in [0usize, 1, 5, 3000] {
                let mine: Vec<i64> = (0..len).map(|i| value(me, i)).collect();
                let sum: Vec<i64> = (0..len).map(|i| (0..n).map(|r| value(r, i)).sum()).collect();
                let mut buffer = mine.clone();
                c.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
                assert_eq!(buffer, sum);
                let mut out = vec![0; len];
                c.all_reduce_into(&mine, &mut out, ReduceOp::Max).unwrap();
                assert_eq!(out, (0..len).map(|i| value(n - 1, i)).collect::<Vec<_>>());
                let mut all = vec![0; len * size];
                c.all_gather(&mine, &mut all).unwrap();
                let whole: Vec<i64> = (0..n).flat_map(|r| (0..len).map(move |i| value(r, i))).collect();
                assert_eq!(all, whole);
                let mut part = vec![0; len];
                c.reduce_scatter(&all, &mut part, ReduceOp::Sum).unwrap();
                assert_eq!(part, mine.iter().map(|v| v * i64::from(n)).collect::<Vec<_>>());
                let root = n / 2;
                let mut buffer = mine.clone();
                c.broadcast(&mut buffer, root).unwrap();
                assert_eq!(buffer, (0..len).map(|i| value(root, i)).collect::<Vec<_>>());
                let mut buffer = mine.clone();
                c.reduce(&mut buffer, ReduceOp::Min, root).unwrap();
                assert!(me != root || buffer == (0..len).map(|i| value(0, i)).collect::<Vec<_>>());
                let mut gathered = vec![0; if me == root { len * size } else { 0 }];
                c.gather(&mine, &mut gathered, root).unwrap();
                assert!(me != root || gathered == whole);
                let mut part = vec![0; len];
                c.scatter(&gathered, &mut part, root).unwrap();
                assert_eq!(part, mine);
                let mut turned = vec![0; len * size];
                c.all_to_all(&whole, &mut turned).unwrap();
                assert!(turned.chunks(len.max(1)).all(|b| b == mine));
                c.barrier().unwrap();
            }
        });
    }
}

#[test]
fn slices_of_any_alignment_reduce() {
    ranks(3, config(5), &EngineOptions::default(), |c| {
        let mut bytes = vec![1u8; 1001];
        c.all_reduce(&mut bytes[3..], ReduceOp::Sum).unwrap();
        assert!(bytes[..3].iter().all(|b| *b == 1) && bytes[3..].iter().all(|b| *b == 3));
    });
}

#[test]
fn started_calls_end_in_any_order_on_several_communicators() {
    for seed in 0..4 {
        ranks(3, config(seed), &EngineOptions::default(), |a| {
            let b = a.split(Some(1), 100 - a.rank()).unwrap().expect("all have a color");
            assert_eq!((b.size(), b.rank()), (3, 2 - a.rank()), "ordered by key");
            let start = |c: &Communicator, i: usize| {
                let mut buffer = c.alloc::<i64>(500 + i).unwrap();
                buffer.iter_mut().enumerate().for_each(|(k, v)| *v = value(c.rank(), k));
                c.all_reduce_start(buffer, ReduceOp::Sum).unwrap()
            };
            // Ranks start on the two in different orders.
            let mut handles = Vec::new();
            for i in 0..6 {
                let order: [&Communicator; 2] = if a.rank() == 0 { [&a, &b] } else { [&b, &a] };
                order.iter().for_each(|c| handles.push(start(c, i)));
            }
            let keep = handles.len() - 2;
            for handle in handles.drain(..keep).rev() {
                let sum = handle.wait().unwrap();
                assert!(sum.iter().enumerate().all(|(k, v)| *v == (0..3).map(|r| value(r, k)).sum::<i64>()));
            }
            // The last two are dropped, and go on by themselves: a blocking call still finds its place after them.
            drop(handles);
            a.barrier().unwrap();
            b.barrier().unwrap();
        });
    }
}

#[test]
fn started_messages_wait_for_their_turn_and_hold_up_no_receives() {
    for (seed, depth) in [(0, 1), (1, 1), (2, 64)] {
        let config = LoopbackConfig { depth, ..config(seed) };
        ranks(2, config, &EngineOptions::default(), |c| {
            let peer = 1 - c.rank();
            let buffer = |from: u32, i: usize| {
                let mut buffer = c.alloc::<i64>(100 * i).unwrap();
                buffer.iter_mut().enumerate().for_each(|(k, v)| *v = value(from, i + k));
                buffer
            };
            // All sends before any receive, more of them than the transport takes.
            let sends: Vec<_> =
                (0..40).map(|i| c.send_start(buffer(c.rank(), i), peer, 7).unwrap()).collect();
            let receives: Vec<_> =
                (0..40).map(|i| c.recv_start(c.alloc::<i64>(100 * i).unwrap(), peer, 7).unwrap()).collect();
            for (i, handle) in receives.into_iter().enumerate().rev() {
                assert_eq!(handle.wait().unwrap()[..], buffer(peer, i)[..], "message {i}");
            }
            // Asked often enough, a handle is done, without anybody waiting.
            let mut sends = sends.into_iter();
            let first = sends.next().unwrap();
            while !first.is_done() {
                std::thread::yield_now();
            }
            assert_eq!(first.wait().unwrap().len(), 0);
            for (handle, i) in sends.zip(1..) {
                assert_eq!(handle.wait().unwrap()[..], buffer(c.rank(), i)[..]);
            }
            assert!(c.send_start(buffer(0, 1), c.rank(), 0).is_err(), "to itself");
            c.barrier().unwrap();
        });
    }
}

#[test]
fn handles_are_futures() {
    // A waker may call back.
    struct Unpark(std::thread::Thread, Arc<Communicator>);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            assert_eq!(self.1.failure(), None);
            self.0.unpark();
        }
    }
    ranks(2, config(1), &EngineOptions::default(), |c| {
        let c = Arc::new(c);
        let mut handle = {
            let mut buffer = c.alloc::<f32>(100_000).unwrap();
            buffer.fill(1.5);
            Box::pin(c.all_reduce_start(buffer, ReduceOp::Sum).unwrap())
        };
        let waker = Arc::new(Unpark(std::thread::current(), Arc::clone(&c))).into();
        let mut context = std::task::Context::from_waker(&waker);
        let buffer = loop {
            match handle.as_mut().poll(&mut context) {
                std::task::Poll::Ready(end) => break end.unwrap(),
                std::task::Poll::Pending => std::thread::park(),
            }
        };
        assert!(buffer.iter().all(|v| *v == 3.0));
        let (gathered, scattered) = (c.alloc::<u8>(10).unwrap(), c.alloc::<u8>(10).unwrap());
        let gather = c.all_gather_start(gathered).unwrap();
        let scatter = c.reduce_scatter_start(scattered, ReduceOp::Max).unwrap();
        let broadcast = c.broadcast_start(c.alloc::<u16>(3).unwrap(), 1).unwrap();
        assert_eq!(broadcast.wait().unwrap().len(), 3);
        assert_eq!((gather.wait().unwrap().len(), scatter.wait().unwrap().len()), (10, 10));
    });
}

#[test]
fn two_threads_call_on_two_communicators_at_once() {
    ranks(2, config(4), &EngineOptions::default(), |a| {
        let b = a.split(Some(0), 0).unwrap().expect("all have a color");
        std::thread::scope(|scope| {
            for c in [&a, &b] {
                scope.spawn(move || {
                    for i in 0..200u32 {
                        let mut x = [i, c.rank()];
                        c.all_reduce(&mut x, ReduceOp::Sum).unwrap();
                        assert_eq!(x, [2 * i, 1]);
                    }
                });
            }
        });
    });
}

#[test]
fn a_split_makes_groups_by_color() {
    ranks(6, config(2), &EngineOptions::default(), |c| {
        let color = (c.rank() < 5).then_some(c.rank() % 2);
        let part = c.split(color, 0).unwrap();
        assert_eq!(part.is_none(), c.rank() == 5);
        if let Some(part) = &part {
            let mut x = [c.rank()];
            part.all_reduce(&mut x, ReduceOp::Sum).unwrap();
            assert_eq!(x, [if c.rank() % 2 == 0 { 6 } else { 4 }]);
            let again = part.split(Some(7), part.rank()).unwrap().expect("all have a color");
            assert_eq!((again.rank(), again.size()), (part.rank(), part.size()));
            again.barrier().unwrap();
        }
        c.barrier().unwrap();
    });
}

#[test]
fn messages_go_by_peer_and_tag() {
    ranks(3, config(6), &EngineOptions::default(), |c| {
        let (next, prev) = ((c.rank() + 1) % 3, (c.rank() + 2) % 3);
        let mut got = [0u32; 2];
        c.sendrecv(&[c.rank(), 9], next, &mut got, prev, 5).unwrap();
        assert_eq!(got, [prev, 9]);
        // Tags overtake each other where sends do not wait.
        if c.rank() == 0 {
            let wide = vec![7u8; 100_000];
            std::thread::scope(|scope| {
                scope.spawn(|| c.send(&wide, 1, 1).unwrap());
                scope.spawn(|| c.send(&[1u8, 2], 1, 2).unwrap());
            });
        } else if c.rank() == 1 {
            let (mut small, mut wide) = ([0u8; 2], vec![0u8; 100_000]);
            c.recv(&mut small, 0, 2).unwrap();
            c.recv(&mut wide, 0, 1).unwrap();
            assert!(small == [1, 2] && wide.iter().all(|b| *b == 7));
        }
        c.barrier().unwrap();
        let mut one = [0u8];
        let refused = c.recv(&mut one, c.rank(), 0).unwrap_err();
        assert!(
            matches!(refused, CollectiveError::Invalid { why: InvalidCall::WithItself, .. }),
            "{refused}"
        );
        let refused = c.send(&one, 1 - c.rank().min(1), u32::MAX).unwrap_err();
        assert!(matches!(refused, CollectiveError::Invalid { why: InvalidCall::TagTooLarge { .. }, .. }));
    });
}

#[test]
fn messages_that_do_not_fit_each_other_are_mismatches() {
    let ends = ranks(2, config(0), &EngineOptions::default(), |c| match c.rank() {
        0 => c.send(&[1u32; 4], 1, 3),
        _ => c.recv(&mut [0u32; 5], 0, 3),
    });
    for end in ends {
        let text = end.unwrap_err().to_string();
        assert!(text.contains("u32 x 4") && text.contains("u32 x 5"), "{text}");
    }
}

#[test]
fn bad_arguments_are_refused_before_anything_is_sent() {
    ranks(2, config(1), &EngineOptions::default(), |c| {
        let refused = |e: CollectiveError| match e {
            CollectiveError::Invalid { why, .. } => why,
            e => panic!("{e}"),
        };
        let mut x = [0f32; 3];
        assert!(matches!(
            refused(c.all_reduce(&mut x, ReduceOp::Xor).unwrap_err()),
            InvalidCall::Unsupported { .. }
        ));
        assert!(matches!(refused(c.broadcast(&mut x, 2).unwrap_err()), InvalidCall::NoSuchRank { .. }));
        let mut y = [0f32; 3];
        assert!(matches!(refused(c.all_to_all(&x, &mut y).unwrap_err()), InvalidCall::NotAMultiple { .. }));
        assert!(matches!(refused(c.all_gather(&x, &mut y).unwrap_err()), InvalidCall::WrongLength { .. }));
        // All have refused the same calls: the communicator lives.
        c.all_reduce(&mut x, ReduceOp::Sum).unwrap();
    });
}

#[test]
fn a_refusal_on_one_rank_is_an_error_on_all() {
    let ends = ranks(3, config(0), &EngineOptions::default(), |c| {
        let mut x = [1f32; 10];
        let op = if c.rank() == 1 { ReduceOp::And } else { ReduceOp::Sum };
        let first = c.all_reduce(&mut x, op);
        // The one that refused learns of it by its next call.
        first.and_then(|()| c.barrier())
    });
    for (rank, end) in ends.into_iter().enumerate() {
        let text = end.unwrap_err().to_string();
        assert!(text.contains("and is not defined on f32") && text.contains("rank 1"), "rank {rank}: {text}");
    }
}

#[test]
fn a_failure_is_written_down_before_an_awaited_call_tells_of_it() {
    let written = Arc::new(AtomicUsize::new(0));
    let keep = written.clone();
    let options = EngineOptions {
        write_down: Some(WriteDown(Arc::new(move |flight| {
            keep.fetch_add(usize::from(flight.groups[0].rank == 0), Ordering::Relaxed);
        }))),
        ..EngineOptions::default()
    };
    ranks(2, LoopbackConfig { depth: 4, ..config(0) }, &options, |c| {
        if c.rank() == 1 {
            return assert!(c.barrier().is_err());
        }
        // The second waits for the first's place: it is over as soon as anybody looks.
        let start = |tag| c.recv_start(c.alloc::<u8>(1).unwrap(), 1, tag).unwrap();
        let (_first, second) = (start(0), start(1));
        c.reporter().abort(c.id(), "enough");
        let end = pin!(second).poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(end, Poll::Ready(Err(CollectiveError::Aborted { .. }))), "{end:?}");
        assert_eq!(written.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_dead_rank_is_named_within_pending_and_later_calls() {
    for seed in 0..10 {
        let hub = Hub::new(config(seed));
        let members = hub.group(4).unwrap();
        let (tell, told) = channel();
        let written = Arc::new(Mutex::new(Vec::new()));
        let keep = written.clone();
        let options = EngineOptions {
            write_down: Some(WriteDown(Arc::new(move |flight| {
                let open = flight.calls.iter().filter(|c| c.ended.is_none()).count();
                assert_eq!(open, 0, "the calls have ended before they are written down");
                keep.lock().unwrap().push(flight.groups[0].rank);
            }))),
            on_failure: Some(OnFailure(Arc::new(move |group, e: &CollectiveError| {
                tell.send((group, e.clone())).expect("the test listens");
            }))),
            ..EngineOptions::default()
        };
        within("a dead rank", || {
            std::thread::scope(|scope| {
                for (transport, rank) in members.into_iter().zip(0..) {
                    let (options, hub, written) = (&options, hub.clone(), &written);
                    scope.spawn(move || {
                        let c = communicator(transport, rank, 4, options);
                        let mut x = vec![1.0f32; 200_000];
                        for i in 0.. {
                            if rank == 2 && i == 3 + seed {
                                hub.kill(Peer(2));
                            }
                            let Err(error) = c.all_reduce(&mut x, ReduceOp::Avg) else { continue };
                            let mine = || written.lock().unwrap().iter().filter(|r| **r == rank).count();
                            assert_eq!(mine(), 1, "written down before the call returns");
                            assert_eq!(c.failure(), Some(error.clone()));
                            assert_eq!(c.barrier(), Err(error.clone()), "later calls answer the same");
                            assert_eq!(mine(), 1, "and once");
                            let CollectiveError::Lost { who, .. } = &error else { panic!("{error}") };
                            assert!(rank == 2 || (who.rank, who.pid) == (2, 1002), "{error}");
                            let last = c.recorded().into_iter().rev().find(|r| r.ended.is_some());
                            assert_eq!(last.and_then(|r| r.ended).map(|e| e.1), Some(Ending::Failed));
                            break;
                        }
                    });
                }
            });
        });
        drop(options);
        assert_eq!(told.iter().count(), 4, "each rank's owner is told once");
    }
}

#[test]
fn the_control_plane_reports_losses_and_aborts_from_other_threads() {
    for abort in [false, true] {
        let waiting = Barrier::new(2);
        let ends = ranks(2, config(2), &EngineOptions::default(), |c| {
            if c.rank() == 1 {
                // It never calls; it only lives until rank 0 has been told.
                waiting.wait();
                return Ok(());
            }
            let reporter = c.reporter();
            let end = std::thread::scope(|scope| {
                scope.spawn(move || match abort {
                    true => reporter.abort(1, "enough"),
                    false => reporter
                        .report_loss(Peer(1), Cause::new(CauseKind::Reported, "no heartbeat for 10 s")),
                });
                c.barrier()
            });
            waiting.wait();
            end
        });
        let text = ends[0].clone().unwrap_err().to_string();
        let expected = if abort {
            "rank 0 on host here (pid 1000) aborted this communicator"
        } else {
            "no heartbeat for 10 s"
        };
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn an_abort_reaches_those_who_wait() {
    let ends = ranks(3, config(3), &EngineOptions::default(), |c| {
        if c.rank() == 2 {
            c.abort("the loss is not a number");
        }
        c.all_reduce(&mut [1.0f32], ReduceOp::Sum)
    });
    for end in ends {
        let text = end.unwrap_err().to_string();
        assert!(text.contains("rank 2") && text.contains("the loss is not a number"), "{text}");
    }
}

#[test]
fn other_groups_live_on() {
    let gone = Barrier::new(4);
    let hub = Hub::new(config(3));
    let members = hub.group(4).unwrap();
    within("other groups", || {
        std::thread::scope(|scope| {
            for (transport, rank) in members.into_iter().zip(0..) {
                let (hub, gone) = (hub.clone(), &gone);
                scope.spawn(move || {
                    let c = communicator(transport, rank, 4, &EngineOptions::default());
                    let pair = c.split(Some(rank / 2), 0).unwrap().expect("all have a color");
                    pair.barrier().unwrap();
                    gone.wait();
                    if rank == 3 {
                        hub.kill(Peer(3));
                    }
                    gone.wait();
                    let world = c.barrier().unwrap_err();
                    assert!(rank == 3 || world.to_string().contains("rank 3"), "{world}");
                    let mut x = [rank];
                    let half = pair.all_reduce(&mut x, ReduceOp::Sum);
                    assert_eq!(half.is_ok(), rank < 2);
                });
            }
        });
    });
}

#[test]
fn the_last_choice_is_told() {
    ranks(2, config(1), &EngineOptions { wanted: Algorithm::Ring.into(), ..Default::default() }, |c| {
        assert!(c.last_choice().is_none());
        c.all_reduce(&mut [0u8; 100], ReduceOp::Sum).unwrap();
        let choice = c.last_choice().unwrap();
        assert_eq!((choice.algorithm, choice.slices), (Some(Algorithm::Ring), 1));
        assert!(c.route(1 - c.rank()).is_some() && c.route(c.rank()).is_none());
        assert_eq!(c.transport_name(), "loopback");
    });
}

#[test]
fn calls_go_by_the_algorithm_that_is_preferred_and_are_explained() {
    use ringway_collectives::schedule::{Collective, Wanted, Why};
    ranks(4, config(1), &EngineOptions::default(), |c| {
        let bytes = 4 * 64;
        for algorithm in [Algorithm::DoubleTree, Algorithm::Ring, Algorithm::Halving] {
            c.prefer(algorithm.into());
            let told = c.explain(Collective::AllReduce, bytes);
            assert_eq!((told.choice.algorithm, told.choice.why, told.hosts), (algorithm, Why::Forced, 1));
            assert!(told.prices.iter().all(|p| p.permitted == (p.algorithm == algorithm)));
            let mut values = vec![c.rank() as f32; 64];
            c.all_reduce(&mut values, ReduceOp::Sum).unwrap();
            assert_eq!(values, vec![6.0; 64]);
            assert_eq!(c.last_choice().unwrap().algorithm, Some(algorithm));
        }
        c.prefer(Wanted::ANY);
        assert_eq!(c.explain(Collective::AllReduce, bytes).choice.why, Why::Cheapest);
    });
}
