//! What a process shows to others, and wants to be shown: the job's token, and certificates.
//!
//! Ours send the token with each call, as gRPC's metadata `authorization: Bearer TOKEN`. Clients of TensorFlow and JAX
//! cannot: a service that they are to use has none.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use ringway_dataplane::transport::Complaints;
use ringway_dataplane::transport::authentication::Key;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tonic::body::Body;
use tonic::codegen::http::{self, HeaderValue};
use tonic::metadata::MetadataValue;
use tonic::service::Interceptor;
use tonic::transport::{Channel, Uri};
use tonic::{Request, Status};
use tower::Service;

use super::tls::{self, Tls, TlsError, TlsStream};
use crate::settings::{Secret, Settings, TlsFiles};

/// The header that has the token.
const AUTHORIZATION: &str = "authorization";
/// What comes before it there.
const SCHEME: &str = "Bearer ";

/// A channel that shows the token with each call. Cheap to clone.
#[derive(Clone)]
pub struct SecureChannel {
    channel: Channel,
    header: Option<HeaderValue>,
}

impl fmt::Debug for SecureChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecureChannel(..)")
    }
}

impl Service<http::Request<Body>> for SecureChannel {
    type Response = http::Response<Body>;
    type Error = tonic::transport::Error;
    type Future = <Channel as Service<http::Request<Body>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        if let Some(header) = &self.header {
            request.headers_mut().insert(http::header::AUTHORIZATION, header.clone());
        }
        self.channel.call(request)
    }
}

/// What a process has to show, and how it knows others. Cheap to clone. The default has nothing, and knows anybody.
#[derive(Clone, Default)]
pub struct Credentials {
    token: Option<Secret>,
    tls: Option<Arc<Tls>>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("token", &self.token).field("tls", &self.tls).finish()
    }
}

impl Credentials {
    /// Those that the settings name. Reads the files of TLS.
    ///
    /// # Errors
    /// [`TlsError`] when a file cannot be used.
    pub fn from_settings(settings: &Settings) -> Result<Credentials, TlsError> {
        let tls = settings.tls.clone().map(Tls::load).transpose()?;
        Ok(Credentials { token: settings.token.clone(), tls: tls.map(Arc::new) })
    }

    /// A token alone.
    #[must_use]
    pub fn of_token(token: Secret) -> Credentials {
        Credentials { token: Some(token), tls: None }
    }

    /// Certificates alone, of these files.
    ///
    /// # Errors
    /// [`TlsError`] when a file cannot be used.
    pub fn of_files(files: TlsFiles) -> Result<Credentials, TlsError> {
        Ok(Credentials { token: None, tls: Some(Arc::new(Tls::load(files)?)) })
    }

    /// The certificates without the token, for those who are not to see it.
    #[must_use]
    pub fn certificates(&self) -> Credentials {
        Credentials { token: None, tls: self.tls.clone() }
    }

    /// Whether there is anything by which others are known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.token.is_none() && self.tls.is_none()
    }

    pub(super) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// The certificates.
    #[must_use]
    pub fn tls(&self) -> Option<&Arc<Tls>> {
        self.tls.as_ref()
    }

    /// Reads the files of TLS again, for connections that begin from now on. The names of this side's certificate; `None`
    /// where there is no TLS.
    ///
    /// # Errors
    /// [`TlsError`]; what was read before stays in force then.
    pub fn reload(&self) -> Result<Option<String>, TlsError> {
        let Some(tls) = &self.tls else { return Ok(None) };
        tls.reload()?;
        Ok(Some(tls.names()))
    }

    /// A channel that shows the token.
    #[must_use]
    pub fn on(&self, channel: Channel) -> SecureChannel {
        let header = self.token.as_ref().and_then(|token| {
            // The settings let nothing into a token that a header cannot hold.
            let mut header = HeaderValue::try_from(format!("{SCHEME}{}", token.reveal())).ok()?;
            header.set_sensitive(true);
            Some(header)
        });
        SecureChannel { channel, header }
    }

    /// The connection to a server at "host:port", in TLS where there are certificates.
    ///
    /// # Errors
    /// Those of the handshake: `InvalidData` when a certificate was refused, with which and why.
    pub(crate) async fn connected(&self, stream: TcpStream, address: &str) -> io::Result<Wire> {
        match &self.tls {
            None => Ok(Wire::Plain(stream)),
            Some(tls) => {
                let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
                let host = host.trim_start_matches('[').trim_end_matches(']');
                Ok(Wire::Tls(Box::new(tls.connect(stream, host).await?)))
            }
        }
    }
}

impl Credentials {
    /// Connects to "host:port" within `limit`, handshake included, for channels.
    pub(crate) fn connector(
        &self,
        address: &str,
        limit: Duration,
    ) -> impl Service<Uri, Response = TokioIo<Wire>, Error = io::Error, Future: Send> + Send + 'static + use<>
    {
        let (credentials, address) = (self.clone(), address.to_owned());
        tower::service_fn(move |_: Uri| {
            let (credentials, address) = (credentials.clone(), address.clone());
            async move {
                let connected = tokio::time::timeout(limit, async {
                    let stream = TcpStream::connect(address.as_str()).await?;
                    stream.set_nodelay(true)?;
                    credentials.connected(stream, &address).await.map_err(tls::in_words)
                });
                let connected = connected.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
                connected.map(TokioIo::new)
            }
        })
    }
}

/// Whose call it is: what the server knows of the connection.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) from: std::net::SocketAddr,
    /// Set by the first call with the right token.
    pub(super) known: Arc<std::sync::atomic::AtomicBool>,
}

/// Warns about who is turned away, each source once in a while.
#[derive(Clone, Default)]
pub(super) struct Doorman(Arc<Mutex<Complaints>>);

impl Doorman {
    pub(super) fn warn(&self, from: IpAddr, what: fmt::Arguments<'_>) {
        if self.0.lock().unwrap_or_else(PoisonError::into_inner).due(from, Instant::now()) {
            tracing::warn!("{what}");
        } else {
            tracing::debug!("{what}");
        }
    }
}

/// Lets calls with the token through.
#[derive(Clone)]
pub(super) struct Gate {
    /// Proofs of the header under a key of this process: two are compared instead of the headers themselves, so that the
    /// time it takes tells nothing of these.
    wanted: Option<Arc<(Key, [u8; 32])>>,
    doorman: Doorman,
}

impl Gate {
    pub(super) fn new(credentials: &Credentials, doorman: Doorman) -> io::Result<Gate> {
        let wanted = credentials.token.as_ref().map(|token| {
            let key = Key::new(crate::random::bytes()?);
            let header = format!("{SCHEME}{}", token.reveal());
            let proof = key.prove(AUTHORIZATION, &[header.as_bytes()]);
            io::Result::Ok(Arc::new((key, proof)))
        });
        Ok(Gate { wanted: wanted.transpose()?, doorman })
    }

    /// What to say to a call with this header; `None` for one that may pass.
    fn refusal(&self, header: Option<&[u8]>) -> Option<&'static str> {
        let (key, proof) = self.wanted.as_deref()?;
        match header {
            None => Some(
                "this service takes calls with the job's token alone: set RINGWAY_TOKEN or RINGWAY_TOKEN_FILE to what the \
                 service has (clients of TensorFlow and JAX cannot send one: serve them on loopback, or with --insecure \
                 and no token)",
            ),
            Some(header) if key.verify(AUTHORIZATION, &[header], proof) => None,
            Some(_) => Some(
                "the call's token is not the service's: set RINGWAY_TOKEN or RINGWAY_TOKEN_FILE to what the service has",
            ),
        }
    }
}

impl Interceptor for Gate {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let caller = request.extensions().get::<Caller>();
        let header = request.metadata().get(AUTHORIZATION).map(MetadataValue::as_encoded_bytes);
        match (self.refusal(header), caller) {
            (None, Some(caller)) => caller.known.store(true, std::sync::atomic::Ordering::Relaxed),
            (None, None) => {}
            (Some(why), caller) => {
                if let Some(caller) = caller {
                    let what = if header.is_none() { "without a token" } else { "with another token" };
                    self.doorman.warn(
                        caller.from.ip(),
                        format_args!(
                            "calls {what} from {} are refused: RINGWAY_TOKEN differs there",
                            caller.from
                        ),
                    );
                }
                return Err(Status::unauthenticated(why));
            }
        }
        Ok(request)
    }
}

/// A connection in the clear, or in TLS.
pub(crate) enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Wire::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Wire::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Wire::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Wire::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Wire::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Wire::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Wire::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Wire::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Wire::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Wire::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Wire::Plain(stream) => stream.is_write_vectored(),
            Wire::Tls(stream) => stream.is_write_vectored(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_opens_for_its_token_alone() {
        let credentials = Credentials::of_token(Secret::new("0123456789abcdef"));
        let gate = Gate::new(&credentials, Doorman::default()).unwrap();
        assert_eq!(gate.refusal(Some(b"Bearer 0123456789abcdef")), None);
        for wrong in ["Bearer 0123456789abcdeF", "Bearer 0123456789abcde", "0123456789abcdef", "", "bearer"] {
            assert!(
                gate.refusal(Some(wrong.as_bytes())).unwrap().contains("is not the service's"),
                "{wrong}"
            );
        }
        assert!(gate.refusal(None).unwrap().contains("set RINGWAY_TOKEN"));
        let open = Gate::new(&Credentials::default(), Doorman::default()).unwrap();
        assert!(open.refusal(None).is_none() && open.refusal(Some(b"Bearer x")).is_none());
        let shown = format!("{credentials:?}");
        assert!(!shown.contains("0123"), "{shown}");
    }
}
