//! Takes connections: so many at once, and none that does not speak HTTP/2.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

/// What a client that speaks HTTP/2 sends first (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Connections that are taken and not yet given to the service.
const TAKEN_LIMIT: usize = 16;
/// Pause after the system refused to hand out a connection, usually for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(20);

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
        while !taken.is_closed() {
            let (stream, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot take a connection; trying again");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let Ok(place) = places.clone().try_acquire_owned() else {
                tracing::warn!(%from, limit, "closing a connection: the service has as many as it takes");
                continue;
            };
            if taken.send(Ok(Connection::new(stream, from, place, handshake_timeout))).await.is_err() {
                return;
            }
        }
    });
    Ok(ReceiverStream::new(connections))
}

/// A connection that has a place, and must begin with the preface of HTTP/2 in time.
pub(super) struct Connection {
    stream: TcpStream,
    from: SocketAddr,
    /// Bytes of the preface seen so far.
    seen: usize,
    deadline: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: TcpStream, from: SocketAddr, place: OwnedSemaphorePermit, timeout: Duration) -> Self {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%from, %error, "small messages may be delayed on this connection");
        }
        let deadline = Some(Box::pin(tokio::time::sleep(timeout)));
        Connection { stream, from, seen: 0, deadline, _place: place }
    }

    /// Looks at what came before the preface is complete.
    fn inspect(&mut self, bytes: &[u8]) -> io::Result<()> {
        let expected = &PREFACE[self.seen..];
        let count = bytes.len().min(expected.len());
        if bytes[..count] != expected[..count] {
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(24)]).into_owned();
            tracing::warn!(
                from = %self.from,
                begins = ?shown,
                "closing a connection that does not speak HTTP/2: this port is the coordination service"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not HTTP/2"));
        }
        self.seen += count;
        if self.seen == PREFACE.len() {
            self.deadline = None;
        }
        Ok(())
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(deadline) = &mut this.deadline
            && deadline.as_mut().poll(cx).is_ready()
        {
            tracing::warn!(from = %this.from, "closing a connection that stayed silent");
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        if this.deadline.is_some() {
            this.inspect(&buf.filled()[before..])?;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl Connected for Connection {
    type ConnectInfo = SocketAddr;

    fn connect_info(&self) -> SocketAddr {
        self.from
    }
}
