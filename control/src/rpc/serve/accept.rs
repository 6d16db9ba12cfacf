//! Takes connections: so many at once, and none that does not speak HTTP/2.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use ringway_dataplane::transport::Complaints;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use crate::rpc::inspected::{Inspect, Inspected};

/// What a client that speaks HTTP/2 sends first (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Connections that are taken and not yet given to the service.
const TAKEN_LIMIT: usize = 16;
/// Pause after the system refused to hand out a connection, usually for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(20);
/// Stands for this side among those complained about.
const OURSELVES: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);

/// A connection that has a place, and must begin with the preface of HTTP/2 in time.
pub(super) type Connection = Inspected<Preface>;

/// Warns about who is turned away.
#[derive(Clone, Default)]
struct Doorman(Arc<Mutex<Complaints>>);

impl Doorman {
    fn warn(&self, from: IpAddr, what: fmt::Arguments<'_>) {
        if self.0.lock().unwrap_or_else(PoisonError::into_inner).due(from, Instant::now()) {
            tracing::warn!("{what}");
        } else {
            tracing::debug!("{what}");
        }
    }
}

/// The connections that come to the listener.
pub(super) fn incoming(
    listener: std::net::TcpListener,
    limit: usize,
    handshake_timeout: Duration,
) -> io::Result<ReceiverStream<io::Result<Connection>>> {
    let listener = TcpListener::from_std(listener)?;
    let (taken, connections) = mpsc::channel(TAKEN_LIMIT);
    tokio::spawn(async move {
        let places = Arc::new(Semaphore::new(limit));
        let doorman = Doorman::default();
        while !taken.is_closed() {
            let (stream, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    doorman.warn(
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
                doorman.warn(from.ip(), what);
                continue;
            };
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%from, %error, "small messages may be delayed on this connection");
            }
            let deadline = Box::pin(tokio::time::sleep(handshake_timeout));
            let preface = Preface { from, seen: 0, deadline, doorman: doorman.clone(), _place: place };
            if taken.send(Ok(Connection::new(stream, preface))).await.is_err() {
                return;
            }
        }
    });
    Ok(ReceiverStream::new(connections))
}

/// Waits for the preface of HTTP/2.
pub(super) struct Preface {
    from: SocketAddr,
    /// Bytes of it seen so far.
    seen: usize,
    deadline: Pin<Box<Sleep>>,
    doorman: Doorman,
    _place: OwnedSemaphorePermit,
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
                     is the coordination service",
                    self.from
                ),
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not HTTP/2"));
        }
        self.seen += count;
        Ok(self.seen == PREFACE.len())
    }

    fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        ready!(self.deadline.as_mut().poll(cx));
        self.doorman
            .warn(self.from.ip(), format_args!("closing a connection from {} that stayed silent", self.from));
        Poll::Ready(io::ErrorKind::TimedOut.into())
    }
}

impl Connected for Connection {
    type ConnectInfo = SocketAddr;

    fn connect_info(&self) -> SocketAddr {
        self.inspector().from
    }
}
