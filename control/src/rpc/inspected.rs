//! A connection whose first bytes are looked at before anybody else reads them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::credentials::Wire;

/// What is looked for at the beginning of a connection.
pub(super) trait Inspect: Unpin {
    /// Looks at what came next; no bytes are the end of the stream. `true`: enough was seen.
    ///
    /// # Errors
    /// When it is not what it should be; the connection then ends.
    fn inspect(&mut self, bytes: &[u8]) -> io::Result<bool>;

    /// The connection broke before enough was seen.
    fn broken(&mut self, _error: &io::Error) {}

    /// Why the wait for enough is over, if it is; else the context is woken when it will be.
    fn poll_overdue(&mut self, _cx: &mut Context<'_>) -> Poll<io::Error> {
        Poll::Pending
    }
}

/// A connection under inspection until enough was seen.
pub(super) struct Inspected<I> {
    stream: Wire,
    inspector: I,
    enough: bool,
}

impl<I: Inspect> Inspected<I> {
    pub(super) fn new(stream: Wire, inspector: I) -> Self {
        Inspected { stream, inspector, enough: false }
    }

    pub(super) fn inspector(&self) -> &I {
        &self.inspector
    }
}

impl<I: Inspect> AsyncRead for Inspected<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.enough {
            return Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        if let Poll::Ready(error) = this.inspector.poll_overdue(cx) {
            return Poll::Ready(Err(error));
        }
        let before = buf.filled().len();
        if let Err(error) = ready!(Pin::new(&mut this.stream).poll_read(cx, buf)) {
            this.inspector.broken(&error);
            return Poll::Ready(Err(error));
        }
        this.enough = this.inspector.inspect(&buf.filled()[before..])?;
        Poll::Ready(Ok(()))
    }
}

impl<I: Inspect> AsyncWrite for Inspected<I> {
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
