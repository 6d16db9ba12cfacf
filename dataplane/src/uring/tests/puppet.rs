//! Peers that are bare sockets, which say byte for byte what a test wants, in the order that it wants.

use super::{DEADLINE, config};
use crate::transport::authentication::{Key, NONCE_BYTES, Nonce, Proof};
use crate::transport::{Event, Peer, Transport};
use crate::uring::device::Published;
use crate::uring::wire::{GREETING_BYTES, Greeting, Identity};
use crate::uring::{Config, DriverChoice, TcpTransport};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

/// The lesser driver, which is everywhere.
pub(super) fn alone() -> TcpTransport {
    TcpTransport::new(config(0, "127.0.0.1", DriverChoice::Epoll)).unwrap()
}

pub(super) fn at(t: &TcpTransport) -> SocketAddr {
    Published::decode(&t.address()).unwrap().at[0]
}

pub(super) fn poll_until(
    t: &mut TcpTransport,
    mut is: impl FnMut(&mut TcpTransport, &mut Vec<Event>) -> bool,
) {
    let (began, mut events) = (Instant::now(), Vec::new());
    loop {
        t.poll(&mut events);
        if is(t, &mut events) {
            return;
        }
        assert!(began.elapsed() < DEADLINE, "nothing more happens; events: {events:?}");
    }
}

/// What peer 1 says of itself.
pub(super) fn hello(t: &Config) -> Identity {
    Identity {
        from: 1,
        to: t.me,
        from_incarnation: 101,
        to_incarnation: t.incarnation,
        host: t.host,
        nonce: [5; NONCE_BYTES],
        channel: 0,
        eager_bytes: 64 << 10,
        window_units: 1000,
    }
}

/// A transport that knows peer 1, which is a bare socket that has been welcomed.
pub(super) fn with_puppet() -> (TcpTransport, TcpStream) {
    let (t, mut streams) = with_puppets(config(0, "127.0.0.1", DriverChoice::Epoll), 1);
    (t, streams.remove(0))
}

/// The same with peers 1 to `n`.
pub(super) fn with_puppets(config: Config, n: u32) -> (TcpTransport, Vec<TcpStream>) {
    let mut t = TcpTransport::new(config).unwrap();
    let streams = (1..=n).map(|number| welcomed(&mut t, number)).collect();
    (t, streams)
}

fn welcomed(t: &mut TcpTransport, number: u32) -> TcpStream {
    let puppet = TcpListener::bind("127.0.0.1:0").unwrap();
    let incarnation = 100 + u64::from(number);
    let at_puppet = vec![puppet.local_addr().unwrap()];
    let published = Published { number, incarnation, host: t.config.host, at: at_puppet };
    t.connect(Peer(number), &published.encode()).unwrap();
    let mut stream = TcpStream::connect(at(t)).unwrap();
    let nonce = challenge(t, &mut stream);
    let id = Identity { from: number, from_incarnation: incarnation, ..hello(&t.config) };
    let (right, proof) = proven(id, &nonce);
    stream.write_all(&Greeting::Hello(right, proof).encode()).unwrap();
    match greeting(t, &mut stream) {
        Greeting::Welcome(id, theirs) => {
            assert_eq!((id.from, id.to), (0, number));
            assert!(id.is_listener(&key(), &proof, &theirs));
        }
        other => panic!("{other:?}"),
    }
    stream
}

/// That of all here.
pub(super) fn key() -> Key {
    Key::new([9; 32])
}

pub(super) fn proven(id: Identity, challenge: &Nonce) -> (Identity, Proof) {
    (id, id.prove_dialler(&key(), challenge))
}

/// The next greeting that `t` says.
fn greeting(t: &mut TcpTransport, stream: &mut TcpStream) -> Greeting {
    stream.set_nonblocking(true).unwrap();
    let mut bytes = [0; GREETING_BYTES];
    poll_until(t, |_, _| stream.read(&mut bytes).is_ok_and(|n| n == GREETING_BYTES));
    stream.set_nonblocking(false).unwrap();
    Greeting::decode(&bytes).unwrap()
}

pub(super) fn challenge(t: &mut TcpTransport, stream: &mut TcpStream) -> Nonce {
    match greeting(t, stream) {
        Greeting::Challenge(nonce) => nonce,
        other => panic!("{other:?}"),
    }
}
