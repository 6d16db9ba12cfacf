//! Calls to the worker of another task, ours or TensorFlow's.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use ringway_proto::tensorflow as tf;
use ringway_proto::tensorflow::worker_service_client::WorkerServiceClient;
use tokio::net::TcpStream;
use tonic::Status;
use tonic::transport::Endpoint;

use crate::core::coordination::errors::Code;
use crate::core::master::step::Failure;
use crate::rpc::TENSOR_MESSAGE_LIMIT_BYTES;
use crate::rpc::credentials::{Credentials, SecureChannel};
use crate::rpc::inspected::{Inspect, Inspected};
use crate::rpc::tls;

/// One try to connect takes no longer.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// What a peer may send before it is told to go on.
const WINDOW_BYTES: u32 = 16 << 20;
/// Silence on a connection after which its host is probed, and between probes.
const PROBE_AFTER: Duration = Duration::from_secs(5);
/// Unanswered probes after which a connection is lost.
const PROBES: u32 = 3;

/// The worker of one task. Connects when it is used, and again when the connection broke. Cheap to clone.
#[derive(Clone, Debug)]
pub struct WorkerClient {
    address: Arc<str>,
    endpoint: Endpoint,
    credentials: Credentials,
    /// Made within the runtime of the first call.
    client: Arc<OnceLock<WorkerServiceClient<SecureChannel>>>,
    losses: Arc<AtomicU64>,
}

impl WorkerClient {
    /// A way to the worker at "host:port", who is shown these credentials and must show the same.
    ///
    /// # Errors
    /// When that is no address.
    pub fn new(address: &str, credentials: &Credentials) -> Result<WorkerClient, tonic::transport::Error> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES);
        let (client, losses) = (Arc::default(), Arc::default());
        let credentials = credentials.clone();
        Ok(WorkerClient { address: address.into(), endpoint, credentials, client, losses })
    }

    /// Connections that ended so far: when it has grown, the process there may be another one.
    #[must_use]
    pub fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    /// The gRPC client, for calls of any kind. Must be called within a runtime.
    #[must_use]
    pub fn service(&self) -> WorkerServiceClient<SecureChannel> {
        let client = self.client.get_or_init(|| {
            WorkerServiceClient::new(channel(&self.endpoint, &self.address, &self.credentials, &self.losses))
                .max_decoding_message_size(TENSOR_MESSAGE_LIMIT_BYTES)
                .max_encoding_message_size(TENSOR_MESSAGE_LIMIT_BYTES)
        });
        client.clone()
    }

    /// What a status tells: the worker's own words, or what happened to the connection.
    #[must_use]
    pub fn failure(&self, status: &Status) -> Failure {
        match std::error::Error::source(status) {
            None => told(status),
            Some(mut source) => {
                while let Some(deeper) = source.source() {
                    source = deeper;
                }
                let message = format!(
                    "the connection to {} was lost ({source}): its process ended, or its host cannot be reached",
                    self.address
                );
                Failure { code: Code::Unavailable, message, lost: true }
            }
        }
    }

    /// Asks for the devices.
    ///
    /// # Errors
    /// The worker's, or that it cannot be reached.
    pub async fn get_status(&self) -> Result<tf::GetStatusResponse, Failure> {
        let answer = self.service().get_status(tf::GetStatusRequest {}).await;
        answer.map(tonic::Response::into_inner).map_err(|status| self.failure(&status))
    }
}

fn channel(
    endpoint: &Endpoint,
    address: &Arc<str>,
    credentials: &Credentials,
    losses: &Arc<AtomicU64>,
) -> SecureChannel {
    let (address, losses, shown) = (address.clone(), losses.clone(), credentials.clone());
    credentials.on(endpoint.connect_with_connector_lazy(tower::service_fn(move |_| {
        let (address, losses, shown) = (address.clone(), losses.clone(), shown.clone());
        async move { Ok::<_, io::Error>(TokioIo::new(connect(&address, &shown, losses).await?)) }
    })))
}

/// What a worker itself says in a status.
pub(crate) fn told(status: &Status) -> Failure {
    let code = Code::from_number(status.code() as i32);
    Failure { code, message: status.message().to_owned(), lost: false }
}

async fn connect(
    address: &str,
    credentials: &Credentials,
    losses: Arc<AtomicU64>,
) -> io::Result<Inspected<EndCounted>> {
    let tried = tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect(address)).await;
    let stream = tried.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    stream.set_nodelay(true)?;
    // Pings of HTTP/2 would do as well, but TensorFlow's servers close connections for them.
    let probes =
        socket2::TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_AFTER).with_retries(PROBES);
    let socket = socket2::SockRef::from(&stream);
    socket.set_tcp_keepalive(&probes)?;
    socket.set_tcp_user_timeout(Some(PROBE_AFTER * PROBES))?;
    let shaken = tokio::time::timeout(CONNECT_LIMIT, credentials.connected(stream, address)).await;
    let wire = shaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(tls::in_words)?;
    Ok(Inspected::new(wire, EndCounted(losses)))
}

/// Goes with a connection, and counts its end.
struct EndCounted(Arc<AtomicU64>);

impl Inspect for EndCounted {
    fn inspect(&mut self, _: &[u8]) -> io::Result<bool> {
        Ok(true)
    }
}

impl Drop for EndCounted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}
