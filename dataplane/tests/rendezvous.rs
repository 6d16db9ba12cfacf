//! The rendezvous between tasks, over the in-process transport in all its moods, over TCP and in shared memory.

mod rendezvous_tasks;

use rendezvous_tasks::{FAR, Puppet, Tasks, key, patterned, value};
use ringway_dataplane::memory::SharedBytes;
use ringway_dataplane::rendezvous::wire::{Message, Reason};
use ringway_dataplane::rendezvous::{Key, Meta, RendezvousError, Source, StepId, Traffic, Value, Why};
use ringway_dataplane::transport::seed::Seeded;
use ringway_dataplane::transport::{Address, CauseKind, Note, Peer, Transport};
use std::sync::mpsc;
use std::time::Duration;

const STEP: StepId = StepId(-3);

#[test]
fn values_of_every_size_arrive_whoever_comes_first() {
    for tasks in Tasks::of_every_kind(2) {
        let [a, b] = [&tasks.all[0], &tasks.all[1]];
        let sizes = [0, 1, 300, 440, 470, 480, 4096, 8191, 8192, 70_000, 3 << 20];
        let (tx, rx) = mpsc::channel();
        for (i, bytes) in sizes.into_iter().enumerate() {
            let tx = tx.clone();
            let ask = || {
                let tx = tx.clone();
                b.recv(STEP, &key(i), Source::Peer(Peer(0)), move |r| tx.send((bytes, r)).unwrap())
            };
            if i % 2 == 0 {
                ask();
                a.send(STEP, &key(i), value(i as u64, bytes)).unwrap();
            } else {
                a.send(STEP, &key(i), value(i as u64, bytes)).unwrap();
                ask();
            }
        }
        for _ in sizes {
            let (bytes, got) = rx.recv_timeout(FAR).unwrap_or_else(|_| panic!("{}", tasks.name));
            let got = got.unwrap_or_else(|e| panic!("{}: {e}", tasks.name));
            let i = sizes.iter().position(|b| *b == bytes).unwrap() as u64;
            assert!(*got.payload == patterned(i, bytes)[..], "{}, {bytes} bytes", tasks.name);
            assert_eq!(*got.meta, i.to_le_bytes());
        }
        let total: usize = sizes.iter().sum();
        let received = b.traffic()[0].1;
        assert_eq!((received.values_received, received.bytes_received), (11, total as u64));
        tasks.until(|| {
            let Traffic { values_sent, bytes_sent, .. } = a.traffic()[0].1;
            (values_sent, bytes_sent) == (11, total as u64)
        });
        assert_eq!((a.waiting(), b.waiting()), ((0, 0), (0, 0)));
    }
}

#[test]
fn a_payload_is_lent_from_where_it_lies() {
    // V2
    let tasks = Tasks::loopback(2, 0, 64, false);
    let [a, b] = [&tasks.all[0], &tasks.all[1]];
    let shared = SharedBytes::copy_of(&patterned(1, 1 << 20), a.pool()).unwrap();
    let kept = shared.clone();
    a.send(STEP, &key(0), Value::new(Meta::default(), shared.slice(4096..))).unwrap();
    drop(shared);
    let got = b.recv_wait(STEP, &key(0), Source::Peer(Peer(0)), FAR).unwrap();
    assert!(*got.payload == kept[4096..]);
    // The lease ends, and its owner may write again.
    let mut kept = kept;
    tasks.until(|| kept.is_unique());
    // What was received goes back to the pool it came from, and is used again.
    let at = got.payload.as_ptr();
    drop(got);
    a.send(STEP, &key(1), Value::new(Meta::default(), kept.slice(4096..))).unwrap();
    let got = b.recv_wait(STEP, &key(1), Source::Peer(Peer(0)), FAR).unwrap();
    assert_eq!(got.payload.as_ptr(), at);
}

#[test]
fn a_payload_is_read_where_it_lies_and_lent_until_it_is_let_go_of() {
    // V2
    let tasks = Tasks::shm(&[true, true], 64);
    let [a, b] = [&tasks.all[0], &tasks.all[1]];
    let mut kept = SharedBytes::copy_of(&patterned(1, 1 << 20), a.pool()).unwrap();
    a.send(STEP, &key(0), Value::new(Meta::default(), kept.slice(4096..))).unwrap();
    let got = b.recv_wait(STEP, &key(0), Source::Peer(Peer(0)), FAR).unwrap();
    assert!(*got.payload == kept[4096..]);
    // It is the sender's memory, seen through another mapping, and nobody's to write.
    assert_ne!(got.payload.as_ptr(), kept[4096..].as_ptr());
    assert!(!kept.is_unique());
    let part = got.payload.slice(64..128);
    let whole = got.payload.try_into_mut().unwrap_err();
    drop(whole);
    assert_eq!(part[..], kept[4096 + 64..4096 + 128]);
    // A value that is passed on is read by the third where the first has it, or copied.
    drop(part);
    tasks.until(|| kept.is_unique());
    let mut kept = kept.try_into_mut().unwrap();
    kept[4096] = 77;
    let mut kept = kept.freeze();
    a.send(STEP, &key(1), Value::new(Meta::default(), kept.slice(4096..))).unwrap();
    let again = b.recv_wait(STEP, &key(1), Source::Peer(Peer(0)), FAR).unwrap();
    assert_eq!(again.payload[0], 77);
    // One whose data plane has ended may still be reading: the memory is not used again.
    b.send(STEP, &key(2), again.clone()).unwrap();
    let back = a.recv_wait(STEP, &key(2), Source::Peer(Peer(1)), FAR).unwrap();
    assert_eq!(back.payload[..], again.payload[..]);
    drop(back);
    let Tasks { all, .. } = tasks;
    let mut all = all.into_iter();
    let a = all.next().unwrap();
    drop(all);
    assert!(a.recv_wait(STEP, &key(3), Source::Peer(Peer(1)), FAR).is_err());
    assert!(!kept.is_unique() && again.payload[0] == 77);
}

#[test]
fn a_payload_that_cannot_be_seen_is_sent() {
    let tasks = Tasks::shm(&[true, false], 64);
    let [a, b] = [&tasks.all[0], &tasks.all[1]];
    let mut kept = SharedBytes::copy_of(&patterned(2, 300_000), a.pool()).unwrap();
    a.send(STEP, &key(0), Value::new(Meta::default(), kept.clone())).unwrap();
    let got = b.recv_wait(STEP, &key(0), Source::Peer(Peer(0)), FAR).unwrap();
    assert!(got.payload[..] == kept[..]);
    tasks.until(|| kept.is_unique());
    assert!(got.payload.try_into_mut().is_ok(), "a copy of its own");
    assert_eq!(a.traffic()[0].1.values_sent, 1);
}

#[test]
fn values_of_this_task_need_no_data_plane() {
    let tasks = Tasks::loopback(1, 0, 1, false);
    let a = &tasks.all[0];
    let (tx, rx) = mpsc::channel();
    let me = std::thread::current().id();
    let ran_on = tx.clone();
    a.recv(STEP, &key(0), Source::Local, move |r| {
        ran_on.send((std::thread::current().id(), r.unwrap().payload)).unwrap();
    });
    let sent = value(0, 100_000);
    a.send(STEP, &key(0), sent.clone()).unwrap();
    let (thread, payload) = rx.try_recv().expect("the sender's own thread calls");
    assert!(thread == me && payload.same_memory(&sent.payload));
    a.send(STEP, &key(1), value(1, 5)).unwrap();
    assert!(matches!(a.send(STEP, &key(1), value(1, 5)), Err(RendezvousError::Twice { .. })));
    assert_eq!(a.recv_wait(STEP, &key(1), Source::Local, FAR).unwrap().payload.len(), 5);
    let late = a.recv_wait(STEP, &key(2), Source::Local, Duration::from_millis(5)).unwrap_err();
    assert_eq!(late.to_string(), "step -3, key 2: the receive was cancelled: its time is over");
    assert!(matches!(
        a.recv_wait(STEP, &key(2), Source::Peer(Peer(9)), FAR),
        Err(RendezvousError::Unknown { peer: Peer(9), .. })
    ));
}

#[test]
fn an_abort_reaches_every_task_that_was_asked() {
    // V4: 0 waits for 1, which waits for 2; 1 fails.
    for tasks in Tasks::of_every_kind(3) {
        let [a, b, c] = [&tasks.all[0], &tasks.all[1], &tasks.all[2]];
        let (at_a, at_b) = (
            a.receive(STEP, &key(0), Source::Peer(Peer(1))),
            b.receive(STEP, &key(1), Source::Peer(Peer(2))),
        );
        let (at_c, here) = (c.receive(STEP, &key(2), Source::Local), b.receive(STEP, &key(3), Source::Local));
        let other_step = c.receive(StepId(8), &key(2), Source::Local);
        // Both questions have arrived before the abort.
        tasks.until(|| b.waiting().1 == 3 && c.waiting().1 == 3);
        b.abort(STEP, Why::new(8, "node MatMul: out of memory"));
        b.abort(STEP, Why::new(9, "a later reason"));
        for (who, receive) in [("a", at_a), ("b", at_b), ("c", at_c), ("here", here)] {
            match receive.wait(FAR) {
                Err(RendezvousError::Aborted { why, .. }) => {
                    assert_eq!(why, Why::new(8, "node MatMul: out of memory"), "{} {who}", tasks.name);
                }
                other => panic!("{} {who}: {other:?}", tasks.name),
            }
        }
        // Whoever comes later hears it too, on each of them.
        for task in [a, b, c] {
            assert!(matches!(task.send(STEP, &key(7), value(0, 1)), Err(RendezvousError::Aborted { .. })));
        }
        c.send(StepId(8), &key(2), value(5, 10)).unwrap();
        assert_eq!(other_step.wait(FAR).unwrap().payload.len(), 10);
    }
}

#[test]
fn a_step_that_is_over_tells_who_still_asks() {
    for tasks in Tasks::of_every_kind(2) {
        let [a, b] = [&tasks.all[0], &tasks.all[1]];
        let receive = b.receive(STEP, &key(0), Source::Peer(Peer(0)));
        tasks.until(|| a.waiting().1 == 1);
        a.cleanup(STEP);
        let error = receive.wait(FAR).unwrap_err();
        assert_eq!(
            error.to_string(),
            "step -3, key 0: task 0 on host0 (pid 1) answers: the step is over there"
        );
        let late = b.recv_wait(STEP, &key(1), Source::Peer(Peer(0)), FAR);
        assert!(matches!(late, Err(RendezvousError::Refused { .. })), "{late:?}");
        assert!(matches!(a.send(STEP, &key(0), value(0, 1)), Err(RendezvousError::Over { .. })));
    }
}

#[test]
fn receives_that_are_taken_back_leave_the_lane_in_step() {
    // V1, V3: every second one is cancelled at some moment of its life; the others get their own payloads.
    for tasks in Tasks::of_every_kind(2) {
        let [a, b] = [&tasks.all[0], &tasks.all[1]];
        let (tx, rx) = mpsc::channel();
        let n = 40;
        for i in 0..n {
            let tx = tx.clone();
            let step = StepId(i as i64);
            let bytes = 20_000 + i * 1000;
            let send = || a.send(step, &key(i), value(i as u64, bytes)).unwrap();
            if i % 4 >= 2 {
                send();
            }
            let id = b.recv(step, &key(i), Source::Peer(Peer(0)), move |r| tx.send((i, r)).unwrap());
            if i % 4 < 2 {
                if i % 8 < 4 {
                    tasks.until(|| a.waiting().1 == 1);
                }
                send();
            }
            if i % 2 == 0 {
                b.cancel(id);
            }
        }
        for _ in 0..n {
            let (i, got) = rx.recv_timeout(FAR).unwrap_or_else(|_| panic!("{}", tasks.name));
            match got {
                Ok(got) => {
                    assert!(*got.payload == patterned(i as u64, 20_000 + i * 1000)[..], "{}", tasks.name)
                }
                Err(RendezvousError::Cancelled { timed_out: false, .. }) => assert_eq!(i % 2, 0),
                Err(other) => panic!("{}: {other}", tasks.name),
            }
        }
        // And the lane still works.
        a.send(StepId(1000), &key(0), value(9, 50_000)).unwrap();
        let got = b.recv_wait(StepId(1000), &key(0), Source::Peer(Peer(0)), FAR).unwrap();
        assert!(*got.payload == patterned(9, 50_000)[..], "{}", tasks.name);
    }
}

#[test]
fn a_lost_task_is_named_to_whoever_waits_for_it() {
    // V1
    let mut tasks = Tasks::loopback(3, 4096, 64, false);
    let waits = tasks.all[1].receive(STEP, &key(0), Source::Peer(Peer(0)));
    let other = tasks.all[1].receive(STEP, &key(1), Source::Peer(Peer(2)));
    tasks.until(|| tasks.all[0].waiting().1 == 1 && tasks.all[2].waiting().1 == 1);
    tasks.kill(0);
    match waits.wait(FAR).unwrap_err() {
        RendezvousError::Lost { loss, .. } => {
            assert_eq!((loss.who.name.as_str(), loss.who.host.as_str()), ("task 0", "host0"));
            assert_eq!(
                (loss.cause.kind, loss.cause.evidence.as_str()),
                (CauseKind::Closed, "peer 0 was killed")
            );
        }
        error => panic!("{error}"),
    }
    assert_eq!(tasks.losses_but_of(0), [(1, Peer(0)), (2, Peer(0))].into());
    let later = tasks.all[1].recv_wait(STEP, &key(5), Source::Peer(Peer(0)), FAR).unwrap_err();
    assert!(later.to_string().contains("task 0 on host0 (pid 1) is lost: peer 0 was killed"), "{later}");
    // The others go on, and the lost one comes back with another life.
    tasks.all[2].send(STEP, &key(1), value(3, 30_000)).unwrap();
    assert_eq!(other.wait(FAR).unwrap().payload.len(), 30_000);
    tasks.restart(0);
    tasks.all[0].send(STEP, &key(6), value(4, 40_000)).unwrap();
    let got = tasks.all[1].recv_wait(STEP, &key(6), Source::Peer(Peer(0)), FAR).unwrap();
    assert_eq!(got.payload.len(), 40_000);
}

#[test]
fn who_leaves_lets_what_is_under_way_arrive() {
    for mut tasks in Tasks::of_every_kind(2) {
        let waits = tasks.all[1].receive(STEP, &key(0), Source::Peer(Peer(0)));
        let never = tasks.all[1].receive(STEP, &key(1), Source::Peer(Peer(0)));
        tasks.until(|| tasks.all[0].waiting().1 == 2);
        tasks.all[0].send(STEP, &key(0), value(2, 1 << 20)).unwrap();
        drop(tasks.all.remove(0));
        let got = waits.wait(FAR).unwrap_or_else(|e| panic!("{}: {e}", tasks.name));
        assert!(*got.payload == patterned(2, 1 << 20)[..]);
        match never.wait(FAR).unwrap_err() {
            RendezvousError::Lost { loss, .. } => {
                assert_eq!(loss.cause.kind, CauseKind::Left, "{}", tasks.name);
            }
            error => panic!("{}: {error}", tasks.name),
        }
    }
}

#[test]
fn a_task_that_ends_tells_its_own_receives() {
    let mut tasks = Tasks::loopback(2, 0, 4, false);
    let (tx, rx) = mpsc::channel();
    tasks.all[0].recv(STEP, &key(0), Source::Peer(Peer(1)), move |r| tx.send(r).unwrap());
    drop(tasks.all.remove(0));
    assert!(matches!(rx.recv_timeout(FAR), Ok(Err(RendezvousError::Closed { .. }))));
}

#[test]
fn a_panic_in_a_call_stops_nobody() {
    let tasks = Tasks::loopback(2, 0, 4, false);
    tasks.all[1].recv(STEP, &key(0), Source::Peer(Peer(0)), |_| panic!("of the test"));
    tasks.all[0].send(STEP, &key(0), value(0, 10)).unwrap();
    tasks.all[0].send(STEP, &key(1), value(0, 10)).unwrap();
    assert!(tasks.all[1].recv_wait(STEP, &key(1), Source::Peer(Peer(0)), FAR).is_ok());
}

#[test]
fn long_keys_and_descriptions_travel_in_pieces() {
    for tasks in Tasks::of_every_kind(2) {
        let long = Key::new(&"k".repeat(4096)).unwrap();
        let meta = Meta::new(&[7; 2560]).unwrap();
        for bytes in [3, 100_000] {
            let payload = SharedBytes::copy_of(&patterned(0, bytes), tasks.all[0].pool()).unwrap();
            tasks.all[0].send(STEP, &long, Value::new(meta.clone(), payload)).unwrap();
            let got = tasks.all[1].recv_wait(STEP, &long, Source::Peer(Peer(0)), FAR).unwrap();
            assert!(got.meta == meta && got.payload.len() == bytes, "{}", tasks.name);
        }
    }
}

#[test]
fn many_threads_and_steps_at_once() {
    for tasks in Tasks::of_every_kind(3) {
        std::thread::scope(|scope| {
            for (me, task) in tasks.all.iter().enumerate() {
                for thread in 0..2usize {
                    let name = &tasks.name;
                    scope.spawn(move || {
                        for round in 0..30usize {
                            let step = StepId((round * 2 + thread) as i64);
                            for to in (0..3).filter(|to| *to != me) {
                                let key = Key::new(&format!("{me}>{to}")).unwrap();
                                let bytes = [7, 3000, 66_000][(round + to) % 3];
                                task.send(step, &key, value((round * 10 + me) as u64, bytes)).unwrap();
                            }
                            for from in (0..3).filter(|from| *from != me) {
                                let key = Key::new(&format!("{from}>{me}")).unwrap();
                                let got = task.recv_wait(step, &key, Source::Peer(Peer(from as u32)), FAR);
                                let got = got.unwrap_or_else(|e| panic!("{name}: {e}"));
                                let bytes = [7, 3000, 66_000][(round + me) % 3];
                                assert!(*got.payload == patterned((round * 10 + from) as u64, bytes)[..]);
                            }
                        }
                    });
                }
            }
        });
        for task in &tasks.all {
            assert_eq!(task.waiting(), (0, 0), "{}", tasks.name);
        }
    }
}

#[test]
fn an_address_that_is_none_is_an_error() {
    let tasks = Tasks::loopback(1, 0, 1, false);
    let error = tasks.all[0].connect(Peer(3), Default::default(), &Address(vec![1, 2, 3])).unwrap_err();
    assert!(error.to_string().starts_with("peer 3: not an address"), "{error}");
}

#[test]
fn what_nobody_asked_for_takes_no_memory_and_stops_nobody() {
    // V3: answers without a question, twice, to another's question, and longer than anything.
    let tasks = Tasks::loopback(2, 0, 4, false);
    let mut puppet = tasks.puppet(7);
    let other = tasks.all[0].receive(STEP, &key(0), Source::Peer(Peer(1)));
    let here = tasks.all[0].receive(STEP, &key(0), Source::Peer(Peer(7)));
    let request = puppet.question();
    // The other task's question among them.
    assert_eq!(request, 1);
    for wrong in [0, request + 1, request ^ 1 << 32, u64::MAX] {
        puppet.say(&Message::Value { request: wrong, meta: &[], payload: b"nothing" });
        puppet.say(&Message::Coming { request: wrong, bytes: 1 << 60, meta: &[] });
        puppet.say(&Message::Refusal { request: wrong, reason: Reason::Over, code: 0, words: "" });
        puppet.say(&Message::NeverMind { request: wrong });
    }
    puppet.say(&Message::Coming { request, bytes: 1 << 60, meta: &[] });
    let error = here.wait(FAR).unwrap_err().to_string();
    assert!(error.contains("task 7 on host7") && error.contains("over this task's limit"), "{error}");
    puppet.say(&Message::Coming { request, bytes: 10, meta: &[] });
    // It still answers, and asks.
    let again = tasks.all[0].receive(STEP, &key(2), Source::Peer(Peer(7)));
    let request = puppet.question();
    puppet.say(&Message::Value { request, meta: &[1], payload: b"at last" });
    assert_eq!(*again.wait(FAR).unwrap().payload, *b"at last");
    tasks.all[1].send(STEP, &key(0), value(0, 9000)).unwrap();
    assert_eq!(other.wait(FAR).unwrap().payload.len(), 9000);
}

#[test]
fn questions_of_one_task_are_limited() {
    // V3
    let tasks = Tasks::loopback(1, 0, 4, false);
    let mut puppet = tasks.puppet(7);
    for request in [5, 5] {
        puppet.say(&Message::Ask { request, step: 1, key: "twice" });
    }
    let refused = |puppet: &mut Puppet| {
        puppet.poll();
        puppet.heard.iter().any(|m| matches!(Message::decode(m), Ok(Message::Refusal { request: 5, .. })))
    };
    tasks.until(|| refused(&mut puppet));
    assert_eq!(tasks.all[0].waiting().1, 1);
    puppet.say(&Message::NeverMind { request: 5 });
    tasks.until(|| tasks.all[0].waiting().1 == 0);
}

#[test]
fn who_breaks_the_protocol_is_closed_and_no_other() {
    // V3
    let tasks = Tasks::loopback(2, 0, 4, false);
    let waits = tasks.all[0].receive(STEP, &key(0), Source::Peer(Peer(1)));
    for seed in 0..40 {
        let mut random = Seeded::of(seed, 0, 0);
        let number = 10 + seed as u32;
        let mut puppet = tasks.puppet(number);
        let garbage: Vec<u8> = (0..random.below(480)).map(|_| random.next_u64() as u8).collect();
        // A kind that there is not, whatever follows.
        let garbage = [&[random.below(2) as u8 * 7, 99][..], &garbage[..garbage.len().min(400)]].concat();
        puppet.transport.note(Peer(0), &Note::new(&garbage).unwrap()).unwrap();
        let error = tasks.all[0].recv_wait(STEP, &key(1), Source::Peer(Peer(number)), FAR).unwrap_err();
        match error {
            RendezvousError::Lost { loss, .. } => {
                assert_eq!(loss.cause.kind, CauseKind::Protocol, "seed {seed}")
            }
            other => panic!("seed {seed}: {other}"),
        }
    }
    tasks.all[1].send(STEP, &key(0), value(0, 9000)).unwrap();
    assert_eq!(waits.wait(FAR).unwrap().payload.len(), 9000);
}
