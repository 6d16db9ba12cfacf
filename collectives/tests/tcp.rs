//! The engine over TCP: the same calls, failures and mismatches as over loopback, with both drivers.

#[allow(dead_code)]
mod harness;

use harness::{communicator, members, ranks_over, within};
use ringway_collectives::engine::{CallGroup, CollectiveError, Communicator, EngineOptions, GroupInfo};
use ringway_collectives::reduce::ReduceOp;
use ringway_collectives::schedule::{Algorithm, Collective};
use ringway_dataplane::fabric::{Endpoint, Policy};
use ringway_dataplane::shm;
use ringway_dataplane::transport::{Address, Keyring, Peer, Transport};
use ringway_dataplane::uring::{Bind, Config, DriverChoice, TcpTransport};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

/// `n` transports on this host that know each other.
fn transports(n: u32, driver: DriverChoice, eager_bytes: u32) -> Vec<TcpTransport> {
    transports_of(n, |config| Config { driver, eager_bytes, ..config })
}

fn transports_of(n: u32, of: impl Fn(Config) -> Config) -> Vec<TcpTransport> {
    let open = |me| {
        let bind = vec![Bind::new([127, 0, 0, 1].into(), "lo")];
        TcpTransport::new(of(Config::new(me, Keyring::of([3; 32]), 1, bind)))
    };
    let mut all: Vec<TcpTransport> = (0..n).map(|me| open(me).expect("a TCP transport")).collect();
    introduce(&mut all);
    all
}

fn introduce(all: &mut [impl Transport]) {
    let addresses: Vec<Address> = all.iter().map(Transport::address).collect();
    for (me, transport) in all.iter_mut().enumerate() {
        for (peer, address) in addresses.iter().enumerate().filter(|(peer, _)| *peer != me) {
            transport.connect(Peer(peer as u32), address).expect("an address of the same kind");
        }
    }
}

#[test]
fn results_are_right_with_every_driver_eager_or_not() {
    for (n, driver, eager_bytes) in [
        (2, DriverChoice::Auto, 64 << 10),
        (2, DriverChoice::Epoll, 0),
        (3, DriverChoice::Auto, 0),
        (4, DriverChoice::Epoll, 64 << 10),
    ] {
        for algorithm in Collective::AllReduce.algorithms() {
            let options = EngineOptions {
                wanted: (*algorithm).into(),
                slice_bytes: Some(20_000),
                ..EngineOptions::default()
            };
            ranks_over(transports(n, driver, eager_bytes), &format!("{n} {algorithm}"), &options, |c| {
                for len in [0usize, 1, 1000, 70_001] {
                    let mine: Vec<i32> = (0..len as i32).map(|i| i * 3 + c.rank() as i32).collect();
                    let ranks: i32 = (0..n as i32).sum();
                    let mut x = mine.clone();
                    c.all_reduce(&mut x, ReduceOp::Sum).unwrap();
                    assert!(x.iter().zip(0..).all(|(x, i)| *x == n as i32 * i * 3 + ranks), "{len}");
                    let mut all = vec![0; len * n as usize];
                    c.all_gather(&mine, &mut all).unwrap();
                    let mut part = vec![0; len];
                    c.reduce_scatter(&all, &mut part, ReduceOp::Max).unwrap();
                    assert!(part == mine, "{len}");
                    c.broadcast(&mut part, n - 1).unwrap();
                    let from_last = |i: i32| i * 3 + n as i32 - 1;
                    assert!(part.iter().zip(0..).all(|(x, i)| *x == from_last(i)), "{len}");
                    c.barrier().unwrap();
                }
            });
        }
    }
}

#[test]
fn started_calls_overlap() {
    ranks_over(transports(2, DriverChoice::Auto, 0), "started", &EngineOptions::default(), |c| {
        let mut handles = Vec::new();
        for i in 0..20 {
            let mut buffer = c.alloc::<f32>(10_000 + i).unwrap();
            buffer.fill(i as f32);
            handles.push(c.all_reduce_start(buffer, ReduceOp::Sum).unwrap());
        }
        for (i, handle) in handles.into_iter().enumerate() {
            assert!(handle.wait().unwrap().iter().all(|x| *x == 2.0 * i as f32));
        }
    });
}

#[test]
fn what_a_call_that_is_over_left_goes_without_another_call() {
    // D6: a receiver that does not read yet leaves a sender with more than its socket takes.
    const MESSAGES: u32 = 12;
    for driver in [DriverChoice::Auto, DriverChoice::Epoll] {
        let (sent, received) = (Barrier::new(2), Barrier::new(2));
        let small = |config| Config { driver, socket_buffer_bytes: Some(8 << 10), ..config };
        ranks_over(transports_of(2, small), "left behind", &EngineOptions::default(), |c| {
            c.barrier().unwrap();
            if c.rank() == 0 {
                (0..MESSAGES).for_each(|i| c.send(&[i; 1250], 1, 0).unwrap());
                sent.wait();
            } else {
                sent.wait();
                for i in 0..MESSAGES {
                    let mut message = [0; 1250];
                    c.recv(&mut message, 0, 0).unwrap();
                    assert_eq!(message, [i; 1250]);
                }
            }
            received.wait();
        });
    }
}

/// `send` leaves rank 0 with most of 12 messages of 5000 bytes for the last rank, of which its socket takes few, and no thread that sends
/// the rest. They come all the same.
fn comes_whole<T: Transport + 'static>(
    transports: Vec<T>,
    what: &str,
    send: impl Fn(&Communicator, &[Vec<u8>]) + Sync,
) {
    let messages: Vec<Vec<u8>> = (0..12).map(|i| vec![i; 5000]).collect();
    let (sent, received) = (AtomicBool::new(false), Barrier::new(transports.len()));
    ranks_over(transports, what, &EngineOptions::default(), |c| {
        if c.rank() == 0 {
            send(&c, &messages);
            sent.store(true, Ordering::Release);
        }
        // Whoever is to be reached listens; the last rank no longer than until it is.
        let is_reached =
            || c.rank() + 1 == c.size() && c.route(0).is_some_and(|why| why.contains("accepted"));
        while !sent.load(Ordering::Acquire) && !is_reached() {
            c.progress().unwrap();
            std::thread::yield_now();
        }
        if c.rank() + 1 == c.size() {
            while !sent.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            for message in &messages {
                let mut came = vec![0; message.len()];
                c.recv(&mut came, 0, 0).unwrap();
                assert_eq!(came, *message);
            }
        }
        received.wait();
    });
}

#[test]
fn what_messages_left_that_a_handle_waited_for_goes_without_another_call() {
    // D6: before there is a connection nothing goes at once.
    for driver in [DriverChoice::Auto, DriverChoice::Epoll] {
        let small = |config| Config { driver, socket_buffer_bytes: Some(8 << 10), ..config };
        comes_whole(transports_of(2, small), "waited for", |c, messages| {
            let start = |message: &Vec<u8>| {
                let mut buffer = c.alloc::<u8>(message.len()).unwrap();
                buffer.copy_from_slice(message);
                c.send_start(buffer, 1, 0).unwrap()
            };
            let handles: Vec<_> = messages.iter().map(start).collect();
            handles.into_iter().for_each(|handle| drop(handle.wait().unwrap()));
        });
    }
}

#[test]
fn what_is_left_of_calls_made_together_goes_whichever_group_comes_first() {
    // D6: ranks 0 and 1 share memory, and rank 2 is reached by TCP.
    let small = |config| Config { socket_buffer_bytes: Some(8 << 10), ..config };
    let shared =
        |me: u32| shm::ShmTransport::new(shm::Config::new(me, Keyring::of([3; 32]), 80 + u64::from(me)));
    let mut tcp = vec![];
    for (me, transport) in (0..3).zip(transports_of(3, small)) {
        let mut ways: Vec<(Box<dyn Transport>, Policy)> = vec![(Box::new(transport), Policy::Prefer)];
        if me < 2 {
            ways.insert(0, (Box::new(shared(me).expect("shared memory")), Policy::Prefer));
        }
        tcp.push(Endpoint::new(ways).expect("an endpoint"));
    }
    introduce(&mut tcp);
    comes_whole(tcp, "made together", |c, messages| {
        let near = c.with_group(GroupInfo { id: 2, my_rank: 0, members: members(2) }).unwrap();
        let mut group = CallGroup::start();
        group.send(&near, &[1u8], 1, 0);
        messages.iter().for_each(|message| group.send(c, message, 2, 0));
        group.end().unwrap();
    });
}

#[test]
fn an_abort_reaches_whom_no_message_has_reached() {
    let hears = |give_up: &(dyn Fn(&Communicator) + Sync)| {
        let heard = Barrier::new(3);
        ranks_over(transports(3, DriverChoice::Auto, 0), "gave up", &EngineOptions::default(), |c| {
            match c.rank() {
                0 => give_up(&c),
                _ => assert!(matches!(c.barrier(), Err(CollectiveError::Aborted { .. }))),
            }
            heard.wait();
        });
    };
    hears(&|c| c.abort("no data"));
    hears(&|c| assert!(c.broadcast(&mut [0u8], 7).is_err()));
}

#[test]
fn mismatches_show_both_sides() {
    for eager_bytes in [0, 64 << 10] {
        let ends = ranks_over(
            transports(3, DriverChoice::Auto, eager_bytes),
            "mismatch",
            &EngineOptions::default(),
            |c| {
                let mut x = vec![1.0f32; if c.rank() == 2 { 2000 } else { 1000 }];
                c.all_reduce(&mut x, ReduceOp::Sum).and_then(|()| c.barrier())
            },
        );
        for end in ends {
            let text = end.unwrap_err().to_string();
            assert!(text.contains("f32 x 1000") && text.contains("f32 x 2000"), "{text}");
        }
    }
    // Roots that never meet in a message.
    let ends = ranks_over(transports(2, DriverChoice::Auto, 0), "roots", &EngineOptions::default(), |c| {
        c.broadcast(&mut [c.rank(); 50_000], c.rank())
    });
    for end in ends {
        assert!(matches!(end, Err(CollectiveError::Mismatch { .. })), "{end:?}");
    }
}

#[test]
fn a_process_that_vanishes_is_named_even_by_those_who_never_talked_to_it() {
    // The victim connects to its neighbours and closes its sockets without a goodbye, as a killed process does.
    let options = EngineOptions { wanted: Algorithm::Ring.into(), ..EngineOptions::default() };
    let mut all = transports(4, DriverChoice::Auto, 0);
    let mut victim = all.remove(2);
    let reached = Barrier::new(4);
    within("vanish", || {
        std::thread::scope(|scope| {
            for (transport, rank) in all.into_iter().zip([0, 1, 3]) {
                let (options, reached) = (&options, &reached);
                scope.spawn(move || {
                    let c = communicator(transport, rank, 4, options);
                    reached.wait();
                    let end = c.all_reduce(&mut vec![1.0f32; 100_000], ReduceOp::Sum);
                    let Err(CollectiveError::Lost { who, .. }) = &end else { panic!("{end:?}") };
                    assert_eq!((who.rank, who.pid), (2, 1002), "on rank {rank}");
                });
            }
            let hello = ringway_dataplane::transport::Note::new(b"hello").expect("short");
            for peer in [1, 3] {
                victim.note(Peer(peer), &hello).expect("a peer that was introduced");
            }
            reached.wait();
            let mut events = Vec::new();
            // Until its neighbours are connected, whoever dialled.
            while [1, 3].iter().any(|peer| victim.why(Peer(*peer)).is_none()) {
                victim.poll(&mut events);
            }
            drop(victim);
        });
    });
}
