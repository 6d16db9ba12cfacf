//! T11, in every order in which the end of a connection may meet what is under way on it: peers say and close exactly what
//! a test wants before the transport looks.

use super::puppet::{poll_until, with_puppets};
use super::{DEADLINE, config, filled, has_uring, tag};
use crate::memory::{Pool, Region};
use crate::transport::matching::{Frame, Kind};
use crate::transport::{CauseKind, Event, Op, OpError, OpId, Peer, Stamp, Transport};
use crate::uring::links::Way;
use crate::uring::wire::{self, HEADER_BYTES};
use crate::uring::{Config, DriverChoice, TcpTransport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::Write;
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Long enough to go straight out of the lent memory, and to be over when it has gone.
const LENGTH: usize = 20_000;
/// Messages that a peer has sent before it ends, together more than one look takes in.
const BEFORE: usize = 5;
const BEFORE_BYTES: usize = 30_000;
/// One peer, by plain calls; several, by one ring round with io_uring; more than are tried in each poll.
const PEERS: [u32; 3] = [1, 3, 12];

fn drivers() -> Vec<DriverChoice> {
    let uring = has_uring().then_some(DriverChoice::Uring);
    uring.into_iter().chain([DriverChoice::Epoll]).collect()
}

/// Room for what [`before`] writes, unread.
fn of(driver: DriverChoice) -> Config {
    Config { socket_buffer_bytes: Some(1 << 20), ..config(0, "127.0.0.1", driver) }
}

fn socket(t: &TcpTransport, peer: u32) -> BorrowedFd<'_> {
    let channel = t.links[t.link_of(peer).unwrap() as usize].channel.as_ref().unwrap();
    match &channel.way {
        Way::Up(connection) => connection.fd(),
        _ => panic!("peer {peer} is not connected"),
    }
}

/// Waits, without the transport, until `is`.
fn wait_for(what: &str, is: impl Fn() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < DEADLINE, "{what} does not come");
        std::thread::yield_now();
    }
}

/// Until so many bytes of a peer's are there to be read.
fn wait_for_bytes(t: &TcpTransport, peer: u32, n: usize) {
    wait_for("all that was sent", || rustix::io::ioctl_fionread(socket(t, peer)).unwrap() == n as u64);
}

/// Until a peer's reset has come.
fn wait_for_reset(t: &TcpTransport, peer: u32) {
    let fd = socket(t, peer);
    wait_for("the reset", || {
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::empty())];
        poll(&mut fds, Some(&Timespec::default())).unwrap();
        fds[0].revents().contains(PollFlags::HUP)
    });
}

fn bye() -> [u8; HEADER_BYTES] {
    wire::encode(&Frame::bare(Kind::Bye))
}

/// The messages on tag 0 that a peer sends before it ends.
fn before() -> Vec<u8> {
    let one = |seq| {
        let frame =
            Frame { seq, tag: tag(0).to_u64(), length: BEFORE_BYTES as u64, ..Frame::bare(Kind::Eager) };
        [&wire::encode(&frame)[..], &[seq as u8; BEFORE_BYTES]].concat()
    };
    (0..BEFORE as u32).flat_map(one).collect()
}

fn post_send(t: &mut TcpTransport, to: u32, region: &mut Region) {
    let bytes = region.lend_read(0..LENGTH).unwrap();
    let send = Op::Send { to: Peer(to), tag: tag(1), stamp: Stamp::default(), bytes };
    t.post(OpId(u64::from(to) << 8), send).unwrap();
}

/// Posts the receives of [`before`].
fn post_receives(t: &mut TcpTransport, from: u32, regions: &mut [Region]) {
    for (i, region) in (1..).zip(regions) {
        let into = region.lend_write(0..BEFORE_BYTES).unwrap();
        let receive = Op::Recv { from: Peer(from), tag: tag(0), stamp: Stamp::default(), into };
        t.post(OpId(u64::from(from) << 8 | i), receive).unwrap();
    }
}

fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
}

/// What became of the send to a peer, which receives from it ended well, and how it went.
fn told(events: &[Event], peer: u32) -> (Option<&Result<(), OpError>>, Vec<u64>, Option<&Event>) {
    let (mut send, mut received, mut gone) = (None, Vec::new(), None);
    for event in events {
        match event {
            Event::Done(c) if c.id.0 >> 8 == u64::from(peer) => match c.id.0 & 0xff {
                0 => send = Some(&c.result),
                number if c.result.is_ok() => received.push(number),
                _ => {}
            },
            Event::Left { peer: p } | Event::Lost { peer: p, .. } if p.0 == peer => gone = Some(event),
            _ => {}
        }
    }
    (send, received, gone)
}

/// Polls until all of `n` peers have gone.
fn until_gone(t: &mut TcpTransport, n: u32, check: impl Fn(u32, &[Event])) {
    poll_until(t, |_, events| {
        let gone = events.iter().filter(|e| !matches!(e, Event::Done(_))).count();
        if gone == n as usize {
            (1..=n).for_each(|peer| check(peer, events));
        }
        gone >= n as usize
    });
}

#[test]
fn a_send_that_has_gone_is_over_before_the_goodbye_is_heard() {
    for driver in drivers() {
        for n in PEERS {
            let (mut t, mut streams) = with_puppets(of(driver), n);
            let pool = Pool::default();
            let mut regions: Vec<Region> = (0..n).map(|_| filled(&pool, LENGTH, 1)).collect();
            // As a peer may that was quick between this side's send and its look at what came.
            for (peer, stream) in (1..).zip(&mut streams) {
                stream.write_all(&bye()).unwrap();
                wait_for_bytes(&t, peer, HEADER_BYTES);
            }
            for (peer, region) in (1..).zip(&mut regions) {
                post_send(&mut t, peer, region);
            }
            until_gone(&mut t, n, |peer, events| {
                let (send, _, gone) = told(events, peer);
                assert_eq!(send, Some(&Ok(())), "{driver:?}, peer {peer} of {n}: {events:?}");
                assert!(matches!(gone, Some(Event::Left { .. })), "{driver:?}, {n} peers: {events:?}");
            });
        }
    }
}

#[test]
fn what_came_before_a_goodbye_is_received_though_sends_meet_a_reset() {
    for driver in drivers() {
        for n in PEERS {
            for says_goodbye in [true, false] {
                let (mut t, streams) = with_puppets(of(driver), n);
                let pool = Pool::default();
                let mut sends: Vec<Region> = (0..n).map(|_| filled(&pool, LENGTH, 1)).collect();
                let all = n as usize * BEFORE;
                let mut receives: Vec<Region> =
                    (0..all).map(|_| pool.region(BEFORE_BYTES).unwrap()).collect();
                for (peer, mut stream) in (1..).zip(streams) {
                    let mut said = before();
                    if says_goodbye {
                        said.extend_from_slice(&bye());
                    }
                    stream.write_all(&said).unwrap();
                    wait_for_bytes(&t, peer, said.len());
                    reset(stream);
                    wait_for_reset(&t, peer);
                }
                for (peer, (send, receives)) in (1..).zip(sends.iter_mut().zip(receives.chunks_mut(BEFORE))) {
                    post_receives(&mut t, peer, receives);
                    post_send(&mut t, peer, send);
                }
                until_gone(&mut t, n, |peer, events| {
                    let what = format!("{driver:?}, peer {peer} of {n}, goodbye {says_goodbye}: {events:?}");
                    let (send, received, gone) = told(events, peer);
                    assert_eq!(received, [1, 2, 3, 4, 5], "{what}");
                    let Some(Err(OpError::PeerLost { cause, .. })) = send else { panic!("{what}") };
                    assert_eq!(cause.kind == CauseKind::Left, says_goodbye, "{what}");
                    assert_eq!(matches!(gone, Some(Event::Left { .. })), says_goodbye, "{what}");
                });
            }
        }
    }
}
