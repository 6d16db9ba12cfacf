//! Takes connections: so many at once, and none that does not speak HTTP/2, in TLS where there are certificates.
//!
//! A connection is a stranger's until it has shown what is asked for: the preface of HTTP/2, a certificate, a call with the
//! token. Strangers have [`ServerConfig::handshake_timeout`](super::ServerConfig::handshake_timeout) for that, and those of
//! one address have half of all places at most.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use crate::rpc::credentials::{Caller, Credentials, Doorman, Wire};
use crate::rpc::inspected::{Inspect, Inspected};
use crate::rpc::tls;

/// What a client that speaks HTTP/2 sends first (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What a record of TLS with a handshake begins with.
const TLS_RECORD: u8 = 22;
/// Connections that are taken and not yet given to the service.
const TAKEN_LIMIT: usize = 16;
/// Pause after the system refused to hand out a connection, usually for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(20);
/// Stands for this side among those complained about.
const OURSELVES: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);

/// A connection that has a place, and must begin with the preface of HTTP/2 in time.
pub(super) type Connection = Inspected<Preface>;

/// What is asked of those who come.
pub(super) struct Rules {
    /// Connections at once.
    pub(super) limit: usize,
    /// A stranger has so long to show what is asked for.
    pub(super) handshake_timeout: Duration,
    pub(super) credentials: Credentials,
    pub(super) doorman: Doorman,
}

/// How many strangers there are, by their addresses.
#[derive(Clone, Default)]
struct Crowd(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// One of a crowd, until it is dropped.
struct Stranger {
    crowd: Crowd,
    from: IpAddr,
}

impl Crowd {
    /// Another one; `None` when there are as many of this address as may be.
    fn enter(&self, from: IpAddr, limit: usize) -> Option<Stranger> {
        let mut crowd = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = crowd.get(&from).copied().unwrap_or(0);
        (count < limit).then(|| {
            crowd.insert(from, count + 1);
            Stranger { crowd: self.clone(), from }
        })
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut crowd = self.crowd.0.lock().unwrap_or_else(PoisonError::into_inner);
        match crowd.get_mut(&self.from) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(crowd.remove(&self.from)),
        }
    }
}

/// The connections that come to the listener.
pub(super) fn incoming(
    listener: std::net::TcpListener,
    rules: Rules,
) -> io::Result<ReceiverStream<io::Result<Connection>>> {
    let listener = TcpListener::from_std(listener)?;
    let (taken, connections) = mpsc::channel(TAKEN_LIMIT);
    tokio::spawn(async move {
        let limit = rules.limit;
        let (places, crowd) = (Arc::new(Semaphore::new(limit)), Crowd::default());
        while !taken.is_closed() {
            let (stream, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    rules.doorman.warn(
                        OURSELVES,
                        format_args!(
                            "cannot take a connection ({error}): trying again; raise ulimit -n if it persists"
                        ),
                    );
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let Ok(place) = places.clone().try_acquire_owned() else {
                let what = format_args!(
                    "closing a connection from {from}: the service has {limit}, as many as it takes"
                );
                rules.doorman.warn(from.ip(), what);
                continue;
            };
            let Some(stranger) = crowd.enter(from.ip(), limit.div_ceil(2)) else {
                let what = format_args!(
                    "closing a connection from {from}: as many from there have not shown who they are as may be"
                );
                rules.doorman.warn(from.ip(), what);
                continue;
            };
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%from, %error, "small messages may be delayed on this connection");
            }
            let preface = Preface {
                from,
                seen: 0,
                deadline: Box::pin(tokio::time::sleep(rules.handshake_timeout)),
                doorman: rules.doorman.clone(),
                known: Arc::default(),
                needs_token: rules.credentials.has_token(),
                stranger: Some(stranger),
                _place: place,
            };
            if rules.credentials.tls().is_some() {
                tokio::spawn(shake_hands(stream, preface, rules.credentials.clone(), taken.clone()));
            } else if taken.send(Ok(Connection::new(Wire::Plain(stream), preface))).await.is_err() {
                return;
            }
        }
    });
    Ok(ReceiverStream::new(connections))
}

/// The handshake of TLS, within the time that a stranger has.
async fn shake_hands(
    stream: TcpStream,
    mut preface: Preface,
    credentials: Credentials,
    taken: mpsc::Sender<io::Result<Connection>>,
) {
    let Some(tls) = credentials.tls() else { return };
    let from = preface.from;
    let doorman = preface.doorman.clone();
    let shaken = tokio::select! {
        shaken = tls.accept(stream) => shaken.map_err(|(error, stream)| (error, Some(stream))),
        () = &mut preface.deadline => Err((io::Error::new(io::ErrorKind::TimedOut, "it stayed silent"), None)),
    };
    match shaken {
        // Without a receiver the service has ended.
        Ok(stream) => drop(taken.send(Ok(Connection::new(Wire::Tls(Box::new(stream)), preface))).await),
        Err((error, stream)) => {
            doorman.warn(from.ip(), format_args!("closing a connection from {from}: {}", tls::words(&error)));
            if let Some(stream) = stream {
                tls::part(stream).await;
            }
        }
    }
}

/// Waits for the preface of HTTP/2, and for a call with the token where there is one.
pub(super) struct Preface {
    from: SocketAddr,
    /// Bytes of it seen so far.
    seen: usize,
    deadline: Pin<Box<Sleep>>,
    doorman: Doorman,
    known: Arc<AtomicBool>,
    needs_token: bool,
    /// Until it has shown all.
    stranger: Option<Stranger>,
    _place: OwnedSemaphorePermit,
}

impl Preface {
    /// Whether it has shown all; if so, it is no stranger any more.
    fn is_known(&mut self) -> bool {
        let is_known = self.known.load(Ordering::Relaxed);
        if is_known {
            self.stranger = None;
        }
        is_known
    }
}

impl Inspect for Preface {
    fn inspect(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let expected = &PREFACE[self.seen..];
        let count = bytes.len().min(expected.len());
        if bytes[..count] != expected[..count] {
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(24)]).into_owned();
            self.doorman.warn(
                self.from.ip(),
                format_args!(
                    "closing a connection from {} that does not speak HTTP/2 (it begins with {shown:?}): this port \
                     is the coordination service{}",
                    self.from,
                    if bytes.first() == Some(&TLS_RECORD) {
                        ", without TLS: give it certificates (RINGWAY_TLS_CERT), or take them from its clients"
                    } else {
                        ""
                    }
                ),
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not HTTP/2"));
        }
        self.seen += count;
        let is_spoken = self.seen == PREFACE.len();
        if is_spoken && !self.needs_token {
            self.known.store(true, Ordering::Relaxed);
        }
        Ok(is_spoken && self.is_known())
    }

    fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        ready!(self.deadline.as_mut().poll(cx));
        if self.is_known() {
            // Since the last bytes of it: its first call waits, and there is nothing else to say.
            return Poll::Pending;
        }
        let what = if self.seen == PREFACE.len() { "made no call with the token" } else { "stayed silent" };
        self.doorman
            .warn(self.from.ip(), format_args!("closing a connection from {} that {what}", self.from));
        Poll::Ready(io::ErrorKind::TimedOut.into())
    }
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        let preface = self.inspector();
        Caller { from: preface.from, known: preface.known.clone() }
    }
}
