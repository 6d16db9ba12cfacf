//! Strangers, peers that break the protocol, and peers that end at every stage.

use super::puppet::{alone, at, challenge, hello, key, poll_until, proven, with_puppet};
use super::{completion, config, filled, pair, tag, until};
use crate::memory::Pool;
use crate::transport::authentication::{Key, Keyring, NONCE_BYTES, Nonce, Proof};
use crate::transport::complaints::counted::Warnings;
use crate::transport::matching::{Frame, Kind};
use crate::transport::{CauseKind, Event, Note, Op, OpError, OpId, Peer, PostError, Stamp, Transport};
use crate::uring::device::Published;
use crate::uring::wire::{self, GREETING_BYTES, Greeting, Identity, Refusal};
use crate::uring::{Config, DriverChoice, TcpTransport};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

/// Everything that the other side sends until it closes, while `t` is polled.
fn read_to_end(t: &mut TcpTransport, stream: &mut TcpStream) -> Vec<u8> {
    stream.set_nonblocking(true).unwrap();
    let mut all = Vec::new();
    poll_until(t, |_, events| {
        assert!(events.is_empty(), "a stranger made {events:?}");
        let mut some = [0; 256];
        match stream.read(&mut some) {
            Ok(0) => true,
            Ok(n) => {
                all.extend_from_slice(&some[..n]);
                false
            }
            Err(e) => e.kind() != std::io::ErrorKind::WouldBlock,
        }
    });
    all
}

/// What `t` answers to a hello, after which it closes.
fn answer_to(t: &mut TcpTransport, make: impl FnOnce(&Nonce) -> Greeting) -> Greeting {
    let mut stream = TcpStream::connect(at(t)).unwrap();
    let bytes = make(&challenge(t, &mut stream)).encode();
    // In two pieces, as a slow network would.
    stream.write_all(&bytes[..50]).unwrap();
    t.poll(&mut Vec::new());
    stream.write_all(&bytes[50..]).unwrap();
    let answer = read_to_end(t, &mut stream);
    Greeting::decode(answer.first_chunk().unwrap()).unwrap()
}

#[test]
fn strangers_are_turned_away_and_harm_nobody() {
    // C2, C3
    let mut t = alone();
    let silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(at(&t)).unwrap()).collect();
    for words in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0x16, 3, 1, 2, 0], &[0; 500], b"RWAX"] {
        let mut stream = TcpStream::connect(at(&t)).unwrap();
        stream.write_all(words).unwrap();
        let said = read_to_end(&mut t, &mut stream);
        // A1
        assert!(matches!(Greeting::decode(said.first_chunk().unwrap()), Ok(Greeting::Challenge(_))));
        assert_eq!(said.len(), GREETING_BYTES);
    }
    let right = hello(&t.config);
    let cases = [
        (Identity { to: 7, ..right }, Refusal::Peer),
        (Identity { to_incarnation: 1, ..right }, Refusal::Incarnation),
        (right, Refusal::NotYet),
    ];
    for (id, why) in cases {
        let answer = answer_to(&mut t, |nonce| {
            let (id, proof) = proven(id, nonce);
            Greeting::Hello(id, proof)
        });
        assert_eq!(answer, Greeting::Refuse(Ok(why)));
    }
    // The silent ones are still there, and a peer gets through all the same.
    let mut peer = TcpTransport::new(config(1, "127.0.0.1", DriverChoice::Epoll)).unwrap();
    t.connect(Peer(1), &peer.address()).unwrap();
    peer.connect(Peer(0), &t.address()).unwrap();
    peer.note(Peer(0), &Note::new(b"hi").unwrap()).unwrap();
    until(&mut t, &mut peer, |x, _| matches!(x[..], [Event::Note { .. }]));
    drop(silent);
}

/// What is warned of when somebody connects and does something that ends it.
fn warnings_of(t: &mut TcpTransport, end: impl FnOnce(&mut TcpTransport, TcpStream)) -> usize {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let stream = TcpStream::connect(at(t)).unwrap();
    poll_until(t, |t, _| !t.door.is_quiet());
    end(t, stream);
    poll_until(t, |t, _| t.door.is_quiet());
    warnings.count()
}

#[test]
fn peers_that_give_a_connection_up_are_not_warned_of() {
    // With what they were told unread, which is a reset; before their hello, and in the middle of it.
    type End = fn(&mut TcpTransport, TcpStream);
    let ends: [End; 3] = [
        |_, stream| drop(stream),
        |t, mut stream| _ = challenge(t, &mut stream),
        |t, mut stream| {
            let (id, proof) = proven(hello(&t.config), &challenge(t, &mut stream));
            stream.write_all(&Greeting::Hello(id, proof).encode()[..100]).unwrap();
        },
    ];
    for end in ends {
        let (mut t, _member) = with_puppet();
        assert_eq!(warnings_of(&mut t, end), 0);
        // What is no greeting is warned of, whoever sends it; and so is somebody of whom nothing is known.
        assert_eq!(warnings_of(&mut t, |_, mut s| s.write_all(b"GET / HTTP/1.1").unwrap()), 1);
        assert_eq!(warnings_of(&mut alone(), end), 1);
    }
}

#[test]
fn only_a_fresh_proof_of_the_right_key_is_taken() {
    // C2, A1 to A3: and whoever is up stays up.
    let (mut t, mut member) = with_puppet();
    let recorded = {
        let mut stream = TcpStream::connect(at(&t)).unwrap();
        let nonce = challenge(&mut t, &mut stream);
        proven(hello(&t.config), &nonce)
    };
    let right = hello(&t.config);
    let mirrored = Identity { from: 0, to: 1, from_incarnation: 100, to_incarnation: 101, ..right };
    type Make = fn(Identity, &Nonce) -> (Identity, Proof);
    let cases: [(Identity, Make, Refusal); 6] = [
        (right, |id, nonce| (id, id.prove_dialler(&Key::new([8; 32]), nonce)), Refusal::Unproven),
        (right, |id, _| (id, [0; 32]), Refusal::Unproven),
        // What was proven is what is said.
        (
            right,
            |id, nonce| (Identity { eager_bytes: 1 << 20, ..id }, proven(id, nonce).1),
            Refusal::Unproven,
        ),
        // A listener's proof, and what this side itself would say to its peer.
        (right, |id, _| (id, id.prove_listener(&key(), &[0; 32])), Refusal::Unproven),
        (mirrored, proven, Refusal::Peer),
        // A rank that has a connection already.
        (right, proven, Refusal::Duplicate),
    ];
    for (id, make, why) in cases {
        let answer = answer_to(&mut t, |nonce| {
            let (id, proof) = make(id, nonce);
            Greeting::Hello(id, proof)
        });
        assert_eq!(answer, Greeting::Refuse(Ok(why)));
    }
    let answer = answer_to(&mut t, |_| Greeting::Hello(recorded.0, recorded.1));
    assert_eq!(answer, Greeting::Refuse(Ok(Refusal::Unproven)), "replayed");
    // One that ends in the middle of its hello.
    let mut cut = TcpStream::connect(at(&t)).unwrap();
    cut.write_all(&Greeting::Hello(recorded.0, recorded.1).encode()[..100]).unwrap();
    cut.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_to_end(&mut t, &mut cut).len(), GREETING_BYTES);
    t.note(Peer(1), &Note::new(b"still there").unwrap()).unwrap();
    member.set_nonblocking(true).unwrap();
    let mut byte = [0];
    poll_until(&mut t, |_, events| {
        assert!(events.is_empty(), "{events:?}");
        member.read(&mut byte).is_ok_and(|n| n == 1)
    });
}

#[test]
fn a_listener_without_the_key_is_not_believed() {
    // A1: the dialler says nothing but its hello to it, and goes on trying until its deadline.
    let of = |me| Config { connect_timeout_ms: 100, ..config(me, "127.0.0.1", DriverChoice::Epoll) };
    let mut t = TcpTransport::new(of(0)).unwrap();
    let puppet = TcpListener::bind("127.0.0.1:0").unwrap();
    puppet.set_nonblocking(true).unwrap();
    let at = vec![puppet.local_addr().unwrap()];
    let published = Published { number: 1, incarnation: 101, host: t.config.host, at };
    t.connect(Peer(1), &published.encode()).unwrap();
    t.note(Peer(1), &Note::new(b"secret").unwrap()).unwrap();
    let (mut taken, mut fooled) = (Vec::new(), false);
    poll_until(&mut t, |_, events| {
        if let Ok((stream, _)) = puppet.accept() {
            stream.set_nonblocking(true).unwrap();
            let mut stream = stream;
            stream.write_all(&Greeting::Challenge([3; NONCE_BYTES]).encode()).unwrap();
            taken.push(stream);
        }
        for stream in &mut taken {
            let mut bytes = [0; 2 * GREETING_BYTES];
            let Ok(n) = stream.read(&mut bytes) else { continue };
            assert!(n <= GREETING_BYTES, "it spoke on before it was welcomed");
            let Some(Ok(Greeting::Hello(id, proof))) = bytes.first_chunk().map(Greeting::decode) else {
                continue;
            };
            let back = Identity {
                from: 1,
                to: 0,
                from_incarnation: id.to_incarnation,
                to_incarnation: id.from_incarnation,
                ..id
            };
            // Its own proof back, which is all that one without the key has.
            stream.write_all(&Greeting::Welcome(back, proof).encode()).unwrap();
            fooled = true;
        }
        match &events[..] {
            [Event::Lost { cause, .. }] => {
                assert!(cause.evidence.contains("another process answered"), "{cause}");
                true
            }
            _ => false,
        }
    });
    assert!(fooled);
}

#[test]
fn a_peer_may_be_admitted_after_it_was_introduced() {
    // As in a group, whose secret comes with its membership.
    let (keys, mut a) = (Keyring::default(), alone());
    let of = Config { keys: keys.clone(), ..config(1, "127.0.0.1", DriverChoice::Epoll) };
    let mut b = TcpTransport::new(of).unwrap();
    a.connect(Peer(1), &b.address()).unwrap();
    b.connect(Peer(0), &a.address()).unwrap();
    a.note(Peer(1), &Note::new(b"hi").unwrap()).unwrap();
    for _ in 0..100 {
        let mut events = Vec::new();
        a.poll(&mut events);
        b.poll(&mut events);
        assert!(events.is_empty(), "{events:?}");
    }
    keys.admit(100, key());
    until(&mut a, &mut b, |_, y| matches!(y[..], [Event::Note { .. }]));
}

#[test]
fn too_many_strangers_push_the_oldest_out() {
    // C3
    let mut t = alone();
    let streams: Vec<TcpStream> = (0..crate::uring::MAX_STRANGERS_PER_SOURCE + 1)
        .map(|_| {
            let stream = TcpStream::connect(at(&t)).unwrap();
            t.poll(&mut Vec::new());
            stream
        })
        .collect();
    let mut first = &streams[0];
    first.set_nonblocking(true).unwrap();
    let mut bytes = [0; 2 * GREETING_BYTES];
    poll_until(&mut t, |_, _| {
        matches!(first.read(&mut bytes), Ok(0)) || first.take_error().unwrap().is_some()
    });
}

#[test]
fn a_peer_that_breaks_the_protocol_is_lost_for_it() {
    // C4, T9
    let frame = |kind| Frame::bare(kind);
    let large = u64::MAX;
    let cases: Vec<Vec<u8>> = vec![
        vec![0xff; 64],
        wire::encode(&Frame { slot: 99, length: 8, ..frame(Kind::Data) }).to_vec(),
        wire::encode(&Frame { length: large, ..frame(Kind::Data) }).to_vec(),
        wire::encode(&Frame { length: large, ..frame(Kind::Eager) }).to_vec(),
        wire::encode(&Frame { length: 481, ..frame(Kind::Note) }).to_vec(),
        wire::encode(&Frame { length: large, ..frame(Kind::Note) }).to_vec(),
        wire::encode(&Frame { credit: 60_000, ..frame(Kind::Credit) }).to_vec(),
        [wire::encode(&frame(Kind::Rts)), wire::encode(&frame(Kind::Rts))].concat(),
    ];
    for bytes in cases {
        let (mut t, mut stream) = with_puppet();
        let mut region = Pool::default().region(9).unwrap();
        let into = region.lend_write(0..9).unwrap();
        t.post(OpId(1), Op::Recv { from: Peer(1), tag: tag(0), stamp: Stamp::default(), into }).unwrap();
        stream.write_all(&bytes).unwrap();
        poll_until(&mut t, |t, events| match &events[..] {
            [Event::Done(c), Event::Lost { peer: Peer(1), cause }] => {
                assert_eq!(cause.kind, CauseKind::Protocol, "{cause}");
                assert!(matches!(&c.result, Err(OpError::PeerLost { .. })));
                let again = t.note(Peer(1), &Note::new(b"").unwrap());
                assert!(matches!(again, Err(PostError::Gone { .. })));
                true
            }
            _ => false,
        });
    }
}

#[test]
fn a_peer_that_ends_at_any_byte_is_lost() {
    // T6: FIN and RST in a header, in a payload, between frames.
    let eager = wire::encode(&Frame { length: 4000, tag: 1 << 32, ..Frame::bare(Kind::Eager) });
    let mut bytes = eager.to_vec();
    bytes.extend_from_slice(&[7; 4000]);
    for cut in [0, 1, 63, 64, 65, 4063, 4064] {
        for reset in [false, true] {
            let (mut t, mut stream) = with_puppet();
            let mut region = Pool::default().region(4000).unwrap();
            let into = region.lend_write(0..4000).unwrap();
            let op = Op::Recv { from: Peer(1), tag: tag(0), stamp: Stamp::default(), into };
            t.post(OpId(1), op).unwrap();
            stream.write_all(&bytes[..cut]).unwrap();
            if reset {
                socket2::SockRef::from(&stream).set_linger(Some(std::time::Duration::ZERO)).unwrap();
            } else {
                stream.shutdown(Shutdown::Both).unwrap();
            }
            drop(stream);
            poll_until(&mut t, |_, events| match &events[..] {
                [Event::Done(c), Event::Lost { cause, .. }] => {
                    // A reset may overtake what was sent before it.
                    assert!(c.result.is_err() || cut == 4064, "{c:?}");
                    let kinds: &[CauseKind] =
                        if reset { &[CauseKind::Reset] } else { &[CauseKind::Closed, CauseKind::Reset] };
                    assert!(kinds.contains(&cause.kind), "{cause:?}");
                    true
                }
                _ => false,
            });
        }
    }
}

#[test]
fn a_goodbye_is_not_a_loss() {
    let (mut t, mut stream) = with_puppet();
    stream.write_all(&wire::encode(&Frame::bare(Kind::Bye))).unwrap();
    drop(stream);
    poll_until(&mut t, |_, events| matches!(events[..], [Event::Left { peer: Peer(1) }]));
}

#[test]
fn the_unreachable_are_lost_with_what_was_tried() {
    let mut t =
        TcpTransport::new(Config { connect_timeout_ms: 60, ..config(0, "127.0.0.1", DriverChoice::Epoll) })
            .unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let published = Published { number: 1, incarnation: 1, host: t.config.host, at: vec![closed] };
    t.connect(Peer(1), &published.encode()).unwrap();
    t.note(Peer(1), &Note::new(b"x").unwrap()).unwrap();
    assert!(t.next_timer_ms().is_some_and(|ms| ms <= 60));
    poll_until(&mut t, |_, events| match &events[..] {
        [Event::Lost { cause, .. }] => {
            assert_eq!(cause.kind, CauseKind::Unreachable);
            assert!(cause.evidence.contains(&closed.to_string()), "{cause}");
            true
        }
        _ => false,
    });
    assert_eq!(t.next_timer_ms(), None);
}

#[test]
fn another_job_and_another_incarnation_are_refused() {
    // C2
    type Change = fn(&mut Config);
    let changes: [(Change, &str); 2] =
        [(|c| c.keys = Keyring::of([1; 32]), "another job"), (|c| c.incarnation = 7, "restarted")];
    for (change, words) in changes {
        let mut a = alone();
        let mut other = config(1, "127.0.0.1", DriverChoice::Epoll);
        change(&mut other);
        let mut b = TcpTransport::new(other).unwrap();
        let stale = Published { incarnation: 101, ..Published::decode(&b.address()).unwrap() };
        a.connect(Peer(1), &stale.encode()).unwrap();
        b.connect(Peer(0), &a.address()).unwrap();
        a.note(Peer(1), &Note::new(b"x").unwrap()).unwrap();
        until(&mut a, &mut b, |x, y| {
            assert!(y.is_empty(), "{y:?}");
            match &x[..] {
                [Event::Lost { cause, .. }] => {
                    assert_eq!(cause.kind, CauseKind::Refused, "{cause}");
                    assert!(cause.evidence.contains(words), "{cause}");
                    true
                }
                _ => false,
            }
        });
    }
}

#[test]
fn both_may_dial_at_once() {
    // C1
    for round in 0..25u8 {
        let (mut a, mut b) = pair(|me| config(me, "127.0.0.1", DriverChoice::Epoll));
        let pool = Pool::default();
        let len = 100;
        let (mut from_a, mut from_b) = (filled(&pool, len, round), filled(&pool, len, round + 1));
        let send = |to, bytes| Op::Send { to, tag: tag(0), stamp: Stamp::default(), bytes };
        a.post(OpId(1), send(Peer(1), from_a.lend_read(0..len).unwrap())).unwrap();
        b.post(OpId(2), send(Peer(0), from_b.lend_read(0..len).unwrap())).unwrap();
        let (mut at_a, mut at_b) = (pool.region(len).unwrap(), pool.region(len).unwrap());
        let recv = |from, into| Op::Recv { from, tag: tag(0), stamp: Stamp::default(), into };
        a.post(OpId(3), recv(Peer(1), at_a.lend_write(0..len).unwrap())).unwrap();
        b.post(OpId(4), recv(Peer(0), at_b.lend_write(0..len).unwrap())).unwrap();
        let mut ended = 0;
        until(&mut a, &mut b, |x, y| {
            for c in x.drain(..).chain(y.drain(..)).map(completion) {
                assert_eq!(c.result, Ok(()), "round {round}");
                ended += 1;
            }
            ended == 4
        });
        let (a_why, b_why) = (a.why(Peer(1)).unwrap(), b.why(Peer(0)).unwrap());
        assert!(a_why.contains("dialled") != b_why.contains("dialled"), "{a_why} | {b_why}");
        // Nothing of the second connection comes after.
        for _ in 0..50 {
            let mut events = Vec::new();
            a.poll(&mut events);
            b.poll(&mut events);
            assert!(events.is_empty(), "{events:?}");
        }
    }
}
