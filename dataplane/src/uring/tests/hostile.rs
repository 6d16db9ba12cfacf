//! Strangers, peers that break the protocol, and peers that end at every stage.

use super::{DEADLINE, completion, config, filled, pair, tag, until};
use crate::memory::Pool;
use crate::transport::matching::{Frame, Kind};
use crate::transport::{CauseKind, Event, Note, Op, OpError, OpId, Peer, PostError, Stamp, Transport};
use crate::uring::device::Published;
use crate::uring::wire::{self, GREETING_BYTES, Greeting, Identity, Refusal};
use crate::uring::{Config, DriverChoice, TcpTransport};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

/// The driver does not matter here; the lesser one is everywhere.
fn alone() -> TcpTransport {
    TcpTransport::new(config(0, "127.0.0.1", DriverChoice::Epoll)).unwrap()
}

fn at(t: &TcpTransport) -> SocketAddr {
    Published::decode(&t.address()).unwrap().at[0]
}

fn poll_until(t: &mut TcpTransport, mut is: impl FnMut(&mut TcpTransport, &mut Vec<Event>) -> bool) {
    let (began, mut events) = (Instant::now(), Vec::new());
    loop {
        t.poll(&mut events);
        if is(t, &mut events) {
            return;
        }
        assert!(began.elapsed() < DEADLINE, "nothing more happens; events: {events:?}");
    }
}

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

fn hello(t: &Config) -> Identity {
    Identity {
        token: t.token,
        from: 1,
        to: t.me,
        from_incarnation: 101,
        to_incarnation: t.incarnation,
        host: t.host,
        nonce: 5,
        channel: 0,
        eager_bytes: 64 << 10,
        window_units: 1000,
    }
}

/// A transport that knows peer 1, which is a bare socket that has been welcomed.
fn with_puppet() -> (TcpTransport, TcpStream) {
    let mut t = alone();
    let puppet = TcpListener::bind("127.0.0.1:0").unwrap();
    let published = Published {
        number: 1,
        incarnation: 101,
        host: t.config.host,
        at: vec![puppet.local_addr().unwrap()],
    };
    t.connect(Peer(1), &published.encode()).unwrap();
    let mut stream = TcpStream::connect(at(&t)).unwrap();
    stream.write_all(&Greeting::Hello(hello(&t.config)).encode()).unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut welcome = [0; GREETING_BYTES];
    poll_until(&mut t, |_, _| stream.read(&mut welcome).is_ok_and(|n| n == GREETING_BYTES));
    assert!(matches!(Greeting::decode(&welcome), Ok(Greeting::Welcome(id)) if id.nonce == 5 && id.to == 1));
    stream.set_nonblocking(false).unwrap();
    (t, stream)
}

#[test]
fn strangers_are_turned_away_and_harm_nobody() {
    // C2, C3
    let mut t = alone();
    let silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(at(&t)).unwrap()).collect();
    for words in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0x16, 3, 1, 2, 0], &[0; 500], b"RWAX"] {
        let mut stream = TcpStream::connect(at(&t)).unwrap();
        stream.write_all(words).unwrap();
        assert_eq!(read_to_end(&mut t, &mut stream), b"");
    }
    let right = hello(&t.config);
    let cases = [
        (Identity { token: [8; 16], ..right }, Refusal::Token),
        (Identity { to: 7, ..right }, Refusal::Peer),
        (Identity { to_incarnation: 1, ..right }, Refusal::Incarnation),
        (right, Refusal::NotYet),
    ];
    for (id, why) in cases {
        let mut stream = TcpStream::connect(at(&t)).unwrap();
        // In two pieces, as a slow network would.
        let bytes = Greeting::Hello(id).encode();
        stream.write_all(&bytes[..50]).unwrap();
        t.poll(&mut Vec::new());
        stream.write_all(&bytes[50..]).unwrap();
        let answer = read_to_end(&mut t, &mut stream);
        assert_eq!(answer, Greeting::Refuse(Ok(why)).encode());
    }
    // The silent ones are still there, and a peer gets through all the same.
    let mut peer = TcpTransport::new(config(1, "127.0.0.1", DriverChoice::Epoll)).unwrap();
    t.connect(Peer(1), &peer.address()).unwrap();
    peer.connect(Peer(0), &t.address()).unwrap();
    peer.note(Peer(0), &Note::new(b"hi").unwrap()).unwrap();
    until(&mut t, &mut peer, |x, _| matches!(x[..], [Event::Note { .. }]));
    drop(silent);
}

#[test]
fn too_many_strangers_push_the_oldest_out() {
    // C3
    let mut t = alone();
    let streams: Vec<TcpStream> = (0..super::super::MAX_STRANGERS + 1)
        .map(|_| {
            let stream = TcpStream::connect(at(&t)).unwrap();
            t.poll(&mut Vec::new());
            stream
        })
        .collect();
    let mut first = &streams[0];
    first.set_nonblocking(true).unwrap();
    let mut byte = [0];
    poll_until(&mut t, |_, _| {
        matches!(first.read(&mut byte), Ok(0)) || first.take_error().unwrap().is_some()
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
        [(|c| c.token = [1; 16], "another job"), (|c| c.incarnation = 7, "restarted")];
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
