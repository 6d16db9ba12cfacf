//! Started calls that only callers move on: ranks are threads, over loopback.

#[allow(dead_code)]
mod harness;

use harness::{communicator, ranks, within};
use ringway_collectives::engine::{
    CollectiveError, Communicator, EngineOptions, Handle, OnProgressThread, Progress, WriteDown,
};
use ringway_collectives::reduce::ReduceOp;
use ringway_dataplane::transport::{Cause, CauseKind, Hub, LoopbackConfig, Peer};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Waker};

/// Several messages for every pair of ranks.
const LONG: usize = 300_000;

fn config(seed: u64) -> LoopbackConfig {
    let eager_bytes = if seed.is_multiple_of(2) { 0 } else { 8192 };
    LoopbackConfig { seed, eager_bytes, depth: 64, reorder: seed.is_multiple_of(3) }
}

/// By callers alone: no thread may begin.
fn by_caller() -> EngineOptions {
    let begun = OnProgressThread(Arc::new(|| {
        eprintln!("D5: a progress thread was made");
        std::process::abort();
    }));
    EngineOptions { progress: Progress::Caller, on_progress_thread: Some(begun), ..EngineOptions::default() }
}

fn start(c: &Communicator, len: usize) -> Handle<f32> {
    let mut buffer = c.alloc::<f32>(len).unwrap();
    buffer.fill(c.rank() as f32);
    c.all_reduce_start(buffer, ReduceOp::Sum).unwrap()
}

/// An executor of one task, which has nothing to do but to poll when it is told to.
fn awaited<F: Future>(future: F) -> F::Output {
    struct Told(AtomicUsize);
    impl std::task::Wake for Told {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let told = Arc::new(Told(AtomicUsize::new(0)));
    let waker = Arc::clone(&told).into();
    let mut future = pin!(future);
    for polls in 1.. {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => assert_eq!(told.0.load(Ordering::SeqCst), polls, "nobody would poll again"),
        }
    }
    unreachable!("polled for ever")
}

#[test]
fn every_way_of_asking_moves_started_calls_on() {
    for (n, seed) in [(2, 0), (3, 1), (3, 2), (4, 3)] {
        ranks(n, config(seed), &by_caller(), |c| {
            let right = |sum: &[f32]| sum.iter().all(|v| *v == (n * (n - 1) / 2) as f32);
            // Each rank in its own way, and another each time.
            for round in 0..8 {
                let handle = start(&c, LONG);
                match (round + c.rank()) % 4 {
                    0 => assert!(right(&handle.wait().unwrap())),
                    1 => {
                        while !handle.is_done() {}
                        assert!(right(&handle.wait().unwrap()));
                    }
                    2 => assert!(right(&awaited(handle).unwrap())),
                    _ => {
                        while c.progress().unwrap() {}
                        assert!(handle.is_done() && right(&handle.wait().unwrap()));
                    }
                }
            }
            // A blocking call moves on what was started before it, also what nobody waits for.
            let (kept, dropped) = (start(&c, LONG), start(&c, 10));
            drop(dropped);
            c.barrier().unwrap();
            while !kept.is_done() {}
            assert!(right(&kept.wait().unwrap()));
            // The dropped call may still miss a message that was sent before those of the barrier: messages of different calls
            // overtake each other.
            while c.progress().unwrap() {}
            // Messages too.
            let (next, previous) = ((c.rank() + 1) % n, (c.rank() + n - 1) % n);
            let receive = c.recv_start(c.alloc::<f32>(LONG).unwrap(), previous, 0).unwrap();
            let mut buffer = c.alloc::<f32>(LONG).unwrap();
            buffer.fill(c.rank() as f32);
            let send = c.send_start(buffer, next, 0).unwrap();
            assert!(awaited(receive).unwrap().iter().all(|v| *v == previous as f32));
            while !send.is_done() {}
            // What is dropped last ends as the communicator goes.
            drop(start(&c, LONG));
        });
    }
}

#[test]
fn nothing_moves_while_no_call_is_made() {
    for seed in 0..4 {
        let looked = Barrier::new(2);
        ranks(2, config(seed), &by_caller(), |c| {
            let handle = start(&c, LONG);
            looked.wait();
            if c.rank() == 0 {
                for _ in 0..1000 {
                    assert!(!handle.is_done() && c.progress().unwrap(), "rank 1 makes no call");
                }
            }
            looked.wait();
            assert!(handle.wait().unwrap().iter().all(|v| *v == 1.0));
        });
    }
}

#[test]
fn two_threads_may_ask_while_a_third_waits() {
    ranks(2, config(1), &by_caller(), |a| {
        let b = a.split(Some(0), 0).unwrap().expect("all have a color");
        for _ in 0..20 {
            let (waits, asks, polls) = (start(&a, LONG), start(&b, LONG), start(&b, 1000));
            std::thread::scope(|scope| {
                scope.spawn(|| assert_eq!(waits.wait().unwrap()[0], 1.0));
                scope.spawn(|| while !asks.is_done() {});
                assert_eq!(awaited(polls).unwrap()[0], 1.0);
            });
            assert_eq!(asks.wait().unwrap()[0], 1.0);
        }
    });
}

/// One of these is how a rank hears that its started call has failed.
fn hear(c: &Communicator, handle: Handle<f32>) -> CollectiveError {
    match c.rank() {
        0 => handle.wait().unwrap_err(),
        1 => awaited(handle).unwrap_err(),
        2 => {
            while !handle.is_done() {}
            handle.wait().unwrap_err()
        }
        _ => loop {
            if let Err(error) = c.progress() {
                assert_eq!(handle.wait().unwrap_err(), error);
                return error;
            }
        },
    }
}

#[test]
fn a_dead_rank_is_named_however_its_death_is_heard_of() {
    for seed in 0..4 {
        let hub = Hub::new(config(seed));
        let written = Arc::new(AtomicUsize::new(0));
        let keep = written.clone();
        let write_down = WriteDown(Arc::new(move |flight| {
            keep.fetch_or(1 << flight.groups[0].rank, Ordering::SeqCst);
        }));
        let options = EngineOptions { write_down: Some(write_down), ..by_caller() };
        let met = Barrier::new(5);
        within("a dead rank", || {
            std::thread::scope(|scope| {
                for (transport, rank) in hub.group(5).unwrap().into_iter().zip(0..) {
                    let (options, hub, written, met) = (&options, hub.clone(), &written, &met);
                    scope.spawn(move || {
                        let c = communicator(transport, rank, 5, options);
                        c.barrier().unwrap();
                        met.wait();
                        if rank == 4 {
                            return hub.kill(Peer(4));
                        }
                        let CollectiveError::Lost { who, .. } = hear(&c, start(&c, LONG)) else {
                            panic!("rank {rank}: {:?}", c.failure());
                        };
                        assert_eq!((who.rank, who.pid), (4, 1004));
                        let mine = written.load(Ordering::SeqCst) & 1 << rank;
                        assert_ne!(mine, 0, "it is written down before anybody is told");
                    });
                }
            });
        });
    }
}

#[test]
fn what_other_threads_report_is_heard_by_the_next_call_made() {
    let reported = Barrier::new(2);
    ranks(2, config(2), &by_caller(), |c| {
        if c.rank() == 1 {
            // It makes no call; it only lives until rank 0 has been told.
            reported.wait();
            return;
        }
        let handle = start(&c, LONG);
        let cause = Cause::new(CauseKind::Reported, "no heartbeat for 10 s");
        c.reporter().report_loss(Peer(1), cause);
        assert!(handle.is_done(), "it is over at once");
        let error = handle.wait().unwrap_err();
        assert!(error.to_string().contains("no heartbeat for 10 s"), "{error}");
        assert_eq!(c.progress(), Err(error));
        reported.wait();
    });
}

#[test]
fn calls_that_never_meet_are_mismatches_by_asking_alone() {
    let ends = ranks(2, config(0), &by_caller(), |c| {
        // Each waits for the other to begin.
        let buffer = c.alloc::<f32>(LONG).unwrap();
        let handle = c.broadcast_start(buffer, 1 - c.rank()).unwrap();
        let mut handle = pin!(handle);
        loop {
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready(end) = handle.as_mut().poll(&mut context) {
                break end.unwrap_err().to_string();
            }
        }
    });
    for end in ends {
        assert!(end.contains("root 0") && end.contains("root 1"), "{end}");
    }
}
