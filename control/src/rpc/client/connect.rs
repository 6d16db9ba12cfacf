//! The connection to the coordinator, and what was seen on the way there.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::transport::Endpoint;

use crate::rpc::credentials::{Credentials, SecureChannel};
use crate::rpc::inspected::{Inspect, Inspected};
use crate::rpc::tls;

/// One try to connect takes no longer.
const TRY_LIMIT: Duration = Duration::from_secs(3);
/// Bytes that tell an HTTP/2 server: the header of its first frame.
const FRAME_HEADER: usize = 9;
/// What a TLS server's first record begins with where it was not spoken TLS to.
const TLS_ALERT: u8 = 21;
/// Type of the frame that a server sends first (RFC 9113, section 3.4).
const SETTINGS: u8 = 4;

/// What was seen at the coordinator's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// No try has ended yet.
    Nothing,
    /// The name of the host means nothing here.
    Unresolved(String),
    /// The connection was refused.
    Refused,
    /// There was no answer at all.
    NoAnswer,
    /// The connection was taken, and then nothing came.
    Silent,
    /// The connection was taken and closed at once.
    Closed,
    /// What came is not HTTP/2. It begins so.
    OtherProtocol(String),
    /// One side does not trust the other, or does not speak TLS. In words.
    Untrusted(String),
    /// The connection was closed in the handshake of TLS.
    NotShaken,
    /// The system said so.
    System(String),
    /// HTTP/2 is spoken there.
    Good,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Seen::Nothing => f.write_str("no try to connect has ended; allow more time"),
            Seen::Unresolved(why) => write!(f, "the host's name cannot be resolved ({why}); check the name"),
            Seen::Refused => f.write_str(
                "connection refused: nothing serves there, or a firewall rejects it; start the coordinator, or check the address",
            ),
            Seen::NoAnswer => f.write_str(
                "no answer: the host is down, not reachable from here, or a firewall drops what is sent; check address and network",
            ),
            Seen::Silent => f.write_str(
                "the connection was taken and nothing came: the coordinator is stopped, or another program has the port",
            ),
            Seen::Closed => f.write_str(
                "the connection was closed at once: another program has the port, or the coordinator takes no more connections",
            ),
            Seen::OtherProtocol(begins) => {
                write!(f, "what serves there is not a coordinator: it answers with {begins:?}; check the port")
            }
            Seen::NotShaken => f.write_str(
                "the connection was closed in the handshake of TLS: the coordinator serves without TLS, or takes no more \
                 connections; set RINGWAY_TLS_CERT, RINGWAY_TLS_KEY and RINGWAY_TLS_CA on both sides, or on none",
            ),
            Seen::System(why) | Seen::Untrusted(why) => f.write_str(why),
            Seen::Good => f.write_str("the coordinator was reached, but did not answer in time"),
        }
    }
}

impl Seen {
    /// What was seen, without advice: for when the coordinator was there before.
    pub(super) fn brief(&self) -> String {
        match self {
            Seen::Refused => "connection refused".to_owned(),
            Seen::NoAnswer => "no answer from its host".to_owned(),
            Seen::Silent => "it takes connections and does not answer".to_owned(),
            Seen::Closed => "it closes connections at once".to_owned(),
            Seen::Good => "it did not answer in time".to_owned(),
            other => other.to_string(),
        }
    }
}

/// Keeps what was seen last.
#[derive(Clone, Debug)]
pub(super) struct Sight(Arc<Mutex<Seen>>);

impl Sight {
    pub(super) fn new() -> Self {
        Sight(Arc::new(Mutex::new(Seen::Nothing)))
    }

    pub(super) fn last(&self) -> Seen {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn see(&self, seen: Seen) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }
}

/// A channel that connects when it is used, and again when the connection broke. Must be made within a runtime.
pub(super) fn channel(
    address: &str,
    sight: &Sight,
    credentials: &Credentials,
) -> Result<SecureChannel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    let (address, sight, shown) = (address.to_owned(), sight.clone(), credentials.clone());
    Ok(credentials.on(endpoint.connect_with_connector_lazy(tower::service_fn(move |_| {
        let (address, sight, shown) = (address.clone(), sight.clone(), shown.clone());
        async move { Ok::<_, io::Error>(TokioIo::new(connect(&address, sight, &shown).await?)) }
    }))))
}

async fn connect(address: &str, sight: Sight, credentials: &Credentials) -> io::Result<Inspected<Sighted>> {
    let found = match tokio::net::lookup_host(address).await {
        Ok(found) => found.collect::<Vec<_>>(),
        Err(error) => {
            sight.see(Seen::Unresolved(error.to_string()));
            return Err(error);
        }
    };
    let tried = tokio::time::timeout(TRY_LIMIT, TcpStream::connect(found.as_slice())).await;
    let result = tried.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    match result.and_then(|stream| stream.set_nodelay(true).map(|()| stream)) {
        Ok(stream) => {
            sight.see(Seen::Silent);
            let shaken = tokio::time::timeout(TRY_LIMIT, credentials.connected(stream, address)).await;
            let wire =
                shaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).inspect_err(|error| {
                    if tls::is_tls(error) {
                        sight.see(Seen::Untrusted(tls::words(error)));
                    } else if error.kind() != io::ErrorKind::TimedOut {
                        sight.see(Seen::NotShaken);
                    }
                })?;
            let in_tls = credentials.tls().is_some();
            Ok(Inspected::new(wire, Sighted { sight, in_tls, header: Vec::with_capacity(FRAME_HEADER) }))
        }
        Err(error) => {
            sight.see(match error.kind() {
                io::ErrorKind::ConnectionRefused => Seen::Refused,
                io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable => Seen::NoAnswer,
                _ => Seen::System(error.to_string()),
            });
            Err(error)
        }
    }
}

/// Looks for an HTTP/2 server.
struct Sighted {
    sight: Sight,
    in_tls: bool,
    header: Vec<u8>,
}

impl Inspect for Sighted {
    fn broken(&mut self, error: &io::Error) {
        if tls::is_tls(error) {
            self.sight.see(Seen::Untrusted(tls::words(error)));
        } else if self.in_tls {
            self.sight.see(Seen::NotShaken);
        } else {
            self.sight.see(Seen::Closed);
        }
    }

    fn inspect(&mut self, bytes: &[u8]) -> io::Result<bool> {
        if bytes.is_empty() {
            self.sight.see(Seen::Closed);
            return Ok(false);
        }
        let wanted = FRAME_HEADER - self.header.len();
        self.header.extend_from_slice(&bytes[..bytes.len().min(wanted)]);
        if self.header.len() > 3 && self.header[3] != SETTINGS {
            if bytes.first() == Some(&TLS_ALERT) {
                let why = "the coordinator wants TLS: set RINGWAY_TLS_CERT, RINGWAY_TLS_KEY and RINGWAY_TLS_CA here too";
                self.sight.see(Seen::Untrusted(why.to_owned()));
                return Err(io::Error::new(io::ErrorKind::InvalidData, "TLS"));
            }
            let begins = String::from_utf8_lossy(&bytes[..bytes.len().min(24)]).into_owned();
            self.sight.see(Seen::OtherProtocol(begins));
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not HTTP/2"));
        }
        let good = self.header.len() == FRAME_HEADER;
        if good {
            self.sight.see(Seen::Good);
        }
        Ok(good)
    }
}
