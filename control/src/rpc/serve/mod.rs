//! The coordination service behind a port: TensorFlow's dialect and our session setup, over HTTP/2, in TLS where there
//! are certificates; and the master, where the process is a task of a described cluster.
//!
//! A [`Server`] lives in the process of a launcher, of rank 0, or of `ringway serve`. It has one thread.

pub mod master;

mod accept;
mod coordination;
mod counter;
mod desk;
pub mod eager;
mod office;
mod push;
mod rounds;
mod session;
mod standard;
mod status;
pub mod worker;
mod xla;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use ringway_dataplane::transport::limits::in_words;
use ringway_proto::ringway::v1::session_setup_server::SessionSetupServer;
use ringway_proto::ringway::v1::status_server::StatusServer;
use ringway_proto::tensorflow::coordination_service_server::CoordinationServiceServer;
use ringway_proto::xla::coordination::coordination_service_server::CoordinationServiceServer as XlaCoordinationServer;
use ringway_topology::{Incarnation, TaskId};
use tokio::sync::{mpsc, oneshot};
use tonic::codec::CompressionEncoding;
use tonic::service::{InterceptorLayer, Routes};

use self::accept::{Rules, incoming};
use self::coordination::Coordination;
use self::counter::{Counter, Ways};
use self::desk::{Desk, Files, Population};
use self::office::{Office, stand};
use self::push::Pusher;
use self::session::Session;
use self::status::StatusDesk;
use self::xla::XlaCoordination;
use super::MESSAGE_LIMIT_BYTES;
use super::credentials::{Credentials, Doorman, Gate};
use super::driver::{Clock, INBOX_LIMIT, drive};
use super::tls::TlsError;
use crate::core::coordination::preemption::time_text;
use crate::core::coordination::request::Event;
use crate::core::coordination::{Coordinator, CoordinatorConfig};
use crate::store::etcd::{EtcdAddress, EtcdStore, VALUE_LIMIT_BYTES};
use crate::store::file::FileStore;
use crate::window::{self, WindowConfig};

/// Connections that the kernel holds until the service takes them.
const BACKLOG: u32 = 4096;
/// Streams of one connection that are open at once. Each call that waits is one.
const STREAMS_LIMIT: u32 = 4096;
/// Longest headers of a call.
const HEADERS_LIMIT_BYTES: u32 = 16 << 10;
/// Threads that serve connections where tensors come and go on them.
pub const MOUNTED_THREADS: usize = 4;
/// What a client may send before it is told to go on, where tensors come.
const WINDOW_BYTES: u32 = 16 << 20;
/// JAX's own limit where its user gives none.
const XLA_HEARTBEAT_LIMIT: Duration = Duration::from_secs(100);
/// How long a candidate that ends takes to give its leadership back.
const RETIRE_LIMIT: Duration = Duration::from_secs(1);
/// How long the service waits at its end for answers to be read.
const FLUSH: Duration = Duration::from_millis(200);
/// Between two probes of a connection on which nothing moves.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(20);
/// A connection that does not answer a probe for so long is closed.
const KEEPALIVE_LIMIT: Duration = Duration::from_secs(20);

/// How the service behaves.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The state behind the port.
    pub coordinator: CoordinatorConfig,
    /// This life of the service; drawn at random by the caller.
    pub incarnation: Incarnation,
    /// Connections at once; further ones are closed when they come.
    pub connections_limit: usize,
    /// A connection that has not spoken HTTP/2 within this time is closed.
    pub handshake_timeout: Duration,
    /// Silence for so long means that a task which speaks XLA's dialect is lost.
    pub xla_heartbeat_limit: Duration,
    /// Where what must outlive the process is kept.
    pub keep: Keep,
    /// What callers must show, and what this side shows to agents with servers of their own.
    pub credentials: Credentials,
    /// Whether to listen beyond this host without credentials.
    pub insecure: bool,
    /// Agents that run servers of their own, at "host:port", and want errors pushed there. TensorFlow's do.
    pub agents: Vec<(TaskId, String)>,
    /// What the process shows of the service without gRPC.
    pub window: WindowConfig,
}

impl ServerConfig {
    /// The usual settings for a coordinator. Room for four connections per task.
    #[must_use]
    pub fn new(coordinator: CoordinatorConfig, incarnation: Incarnation) -> Self {
        let connections_limit = coordinator.tasks() as usize * 4 + 64;
        ServerConfig {
            coordinator,
            incarnation,
            connections_limit,
            handshake_timeout: Duration::from_secs(10),
            xla_heartbeat_limit: XLA_HEARTBEAT_LIMIT,
            keep: Keep::Nowhere,
            credentials: Credentials::default(),
            insecure: false,
            agents: Vec::new(),
            window: WindowConfig::default(),
        }
    }
}

/// Where a service keeps what it must not forget, and who else may go on with it.
#[derive(Clone, Debug)]
pub enum Keep {
    /// Nowhere: the service's end is the end of the job.
    Nowhere,
    /// In a file: the service may be started again at the same address.
    File {
        /// The file.
        store: FileStore,
        /// How long tasks wait for it.
        failover: Duration,
    },
    /// In etcd: any number of candidates stand, each at its own address, and one of them leads.
    Etcd {
        /// Where etcd is.
        address: EtcdAddress,
        /// What it is shown, and must show.
        credentials: Credentials,
        /// A leader that is gone for so long is replaced; in whole seconds.
        lease: Duration,
        /// Where tasks and other candidates find this one, as "host:port".
        advertise: String,
        /// How long tasks wait for a new leader.
        failover: Duration,
    },
}

impl Keep {
    /// How long tasks wait for the service after its end.
    fn failover(&self) -> Option<Duration> {
        match self {
            Keep::Nowhere => None,
            Keep::File { failover, .. } | Keep::Etcd { failover, .. } => Some(*failover),
        }
    }
}

/// Why the service did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another program has the port.
    #[error(
        "cannot serve at {address}: the port is in use. Stop the program that has it (`ss -ltnp` names it), give \
         another port, or port 0 for a free one"
    )]
    PortInUse {
        /// Where it was to be.
        address: SocketAddr,
    },
    /// The port is reserved.
    #[error("cannot serve at {address}: this user may not open the port. Give one above 1023")]
    NotAllowed {
        /// Where it was to be.
        address: SocketAddr,
    },
    /// The address is of another machine.
    #[error(
        "cannot serve at {address}: this machine has no such address. Give one of its own, or 0.0.0.0 or [::]"
    )]
    NotHere {
        /// Where it was to be.
        address: SocketAddr,
    },
    /// Everybody could take part.
    #[error(
        "not serving at {address}: whoever reaches that port could take part in the job. Give it a token (RINGWAY_TOKEN, or \
         RINGWAY_TOKEN_FILE on a file system that all hosts share), or certificates (RINGWAY_TLS_CERT, RINGWAY_TLS_KEY, \
         RINGWAY_TLS_CA); on a network that only the job's users reach, --insecure or RINGWAY_INSECURE=1 will do"
    )]
    Open {
        /// Where it was to be.
        address: SocketAddr,
    },
    /// The files of TLS cannot be used.
    #[error("{0}")]
    Tls(Box<TlsError>),
    /// The system refused otherwise.
    #[error("cannot serve at {address}: {}", in_words(source))]
    System {
        /// Where it was to be.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}

impl From<TlsError> for ServeError {
    fn from(error: TlsError) -> ServeError {
        ServeError::Tls(Box::new(error))
    }
}

impl ServeError {
    fn new(address: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => ServeError::PortInUse { address },
            io::ErrorKind::PermissionDenied => ServeError::NotAllowed { address },
            io::ErrorKind::AddrNotAvailable => ServeError::NotHere { address },
            _ => ServeError::System { address, source },
        }
    }
}

/// A running coordination service. Dropping it ends the service: whoever waits gets an answer first.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    incarnation: Incarnation,
    population: Arc<Population>,
    told: mpsc::UnboundedSender<Event>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts the service at `bind`; port 0 takes a free one. When this returns, clients can connect.
    ///
    /// # Errors
    /// When the address cannot be had, or the system gives no thread.
    pub fn start(bind: SocketAddr, config: ServerConfig) -> Result<Server, ServeError> {
        Server::start_with(bind, config, None)
    }

    /// As [`Server::start`], with other services on the same port. These have heavier work than coordination has, so that
    /// connections are then served by [`MOUNTED_THREADS`] threads.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn start_with(
        bind: SocketAddr,
        config: ServerConfig,
        mounted: Option<Routes>,
    ) -> Result<Server, ServeError> {
        if !bind.ip().is_loopback() && config.credentials.is_empty() && !config.insecure {
            return Err(ServeError::Open { address: bind });
        }
        let fault = |source| ServeError::new(bind, source);
        let doorman = Doorman::default();
        let gate = Gate::new(&config.credentials, doorman.clone()).map_err(fault)?;
        let mut runtime = match mounted {
            None => tokio::runtime::Builder::new_current_thread(),
            Some(_) => tokio::runtime::Builder::new_multi_thread(),
        };
        if mounted.is_some() {
            runtime.worker_threads(MOUNTED_THREADS).thread_name("ringway-serve");
        }
        let runtime = runtime.enable_all().build().map_err(fault)?;
        let listener = listen(bind).map_err(fault)?;
        let address = listener.local_addr().map_err(fault)?;
        let population = Arc::new(Population::default());
        let (stop, stopped) = oneshot::channel();
        let (incarnation, counted) = (config.incarnation, population.clone());
        let (told, tells) = mpsc::unbounded_channel();
        let thread = std::thread::Builder::new().name("ringway-coord".to_owned()).spawn(move || {
            runtime.block_on(serve(listener, config, (mounted, gate, doorman), counted, tells, stopped));
        });
        let thread = Some(thread.map_err(fault)?);
        Ok(Server { address, incarnation, population, told, stop: Some(stop), thread })
    }

    /// Where the service is, with the port that was taken.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// This life of the service.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Whether the service has ended by itself, since its state cannot be kept. It has logged why.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Tells the service that the process of a task has ended, in words: `how` names the process and its exit status.
    ///
    /// Whoever started the processes knows it first, also of one that never connected. All tasks hear of the loss if the
    /// task was connected, and a group that cannot be made without it fails at once.
    pub fn process_ended(&self, task: TaskId, how: impl Into<String>) {
        // The receiver is gone only if the service has ended already.
        let _ = self.told.send(Event::ProcessEnded { task, how: how.into() });
    }

    /// Tells all tasks that wait for such a word that the machine of the service will be taken away in `grace`.
    pub fn announce_preemption(&self, grace: Duration) {
        let end = SystemTime::now() + grace;
        let seconds = end.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let when = time_text(i64::try_from(seconds).unwrap_or(i64::MAX));
        // The receiver is gone only if the service has ended already.
        let _ = self.told.send(Event::Preempted { when });
    }

    /// The task because of which this one failed, as it said itself: the first that it named.
    #[must_use]
    pub fn blamed_by(&self, task: &TaskId) -> Option<TaskId> {
        self.population.blamed_by(task)
    }

    /// Waits until no task is connected, for `limit` at most. Whether that is so.
    ///
    /// The process that hosts the service calls this before it ends, so that the others do not lose the service.
    #[must_use]
    pub fn wait_until_empty(&self, limit: Duration) -> bool {
        self.population.wait_until_empty(limit)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The receiver is gone only if the service has ended already.
        let _ = self.stop.take().map(|stop| stop.send(()));
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(address = %self.address, "the coordination service ended in a panic");
        }
    }
}

fn listen(bind: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(bind), socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&bind.into())?;
    socket.listen(BACKLOG as i32)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// A candidate that stands for election, and how it is told not to.
type Standing = (oneshot::Sender<()>, tokio::task::JoinHandle<()>);

/// Opens the counter: at once where nothing is kept, else when this candidate leads.
fn open_counter(
    config: &ServerConfig,
    files: Arc<impl Fn() -> Files + Send + Sync + 'static>,
) -> Result<(Arc<Counter>, Option<Standing>), String> {
    let durable = CoordinatorConfig { durable: true, ..config.coordinator.clone() };
    let (retire, retiring) = oneshot::channel();
    match &config.keep {
        Keep::Nowhere => {
            let (inbox, inputs) = mpsc::channel(INBOX_LIMIT);
            let (urgent, events) = mpsc::unbounded_channel();
            let coordinator = Coordinator::new(config.coordinator.clone());
            tokio::spawn(drive(coordinator, files(), Clock::start(), inputs, events));
            Ok((Arc::new(Counter::always(Ways { inbox, urgent })), None))
        }
        Keep::File { store, .. } => {
            let (counter, name) = (Arc::new(Counter::closed()), "the service".to_owned());
            let store = store.clone();
            let office = Office { store, name, config: durable, counter: counter.clone(), files };
            Ok((counter, Some((retire, tokio::spawn(stand(office, retiring))))))
        }
        Keep::Etcd { address, credentials, lease, advertise, .. } => {
            let (counter, name) = (Arc::new(Counter::closed()), advertise.clone());
            let store = EtcdStore::new(address.clone(), *lease, credentials)?;
            let mut durable = durable;
            durable.limits.value_bytes = durable.limits.value_bytes.min(VALUE_LIMIT_BYTES);
            let office = Office { store, name, config: durable, counter: counter.clone(), files };
            Ok((counter, Some((retire, tokio::spawn(stand(office, retiring))))))
        }
    }
}

/// Returns when a candidate stands no more.
async fn over(standing: &mut Option<Standing>) {
    match standing {
        // A panic there has said so.
        Some((_, standing)) => drop(standing.await),
        None => std::future::pending().await,
    }
}

/// The service ends: everybody who waits is told, or another goes on.
async fn let_go(standing: Option<Standing>, counter: &Counter) {
    let Some((retire, standing)) = standing else { return counter.tell(Event::Stop) };
    // A candidate that has ended needs no word.
    let _ = retire.send(());
    if tokio::time::timeout(RETIRE_LIMIT, standing).await.is_err() {
        tracing::warn!("the leadership ends with its lease, since the store did not take it back in time");
    }
}

/// What is asked of those who come.
fn rules(config: &ServerConfig, doorman: Doorman) -> Rules {
    Rules {
        limit: config.connections_limit,
        handshake_timeout: config.handshake_timeout,
        credentials: config.credentials.clone(),
        doorman,
    }
}

async fn serve(
    listener: TcpListener,
    config: ServerConfig,
    (mounted, gate, doorman): (Option<Routes>, Gate, Doorman),
    population: Arc<Population>,
    mut tells: mpsc::UnboundedReceiver<Event>,
    stopped: oneshot::Receiver<()>,
) {
    let address = listener.local_addr().map_or_else(|_| String::new(), |address| address.to_string());
    let connections = match incoming(listener, rules(&config, doorman)) {
        Ok(connections) => connections,
        Err(error) => return tracing::error!(%error, "the coordination service cannot take connections"),
    };
    let (agents, shown) = (config.agents.clone(), config.credentials.clone());
    let files = Arc::new(move || Files::new(population.clone(), Pusher::new(&agents, shown.clone())));
    let (counter, mut standing) = match open_counter(&config, files) {
        Ok(opened) => opened,
        Err(error) => return tracing::error!("the coordination service cannot keep its state: {error}"),
    };
    let desk = Desk::new(&config, counter.clone());
    let coordination = CoordinationServiceServer::new(Coordination::new(desk.clone(), config.incarnation))
        .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
        .max_encoding_message_size(MESSAGE_LIMIT_BYTES)
        .accept_compressed(CompressionEncoding::Gzip);
    let xla = XlaCoordinationServer::new(XlaCoordination::new(desk.clone(), &config))
        .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
        .max_encoding_message_size(MESSAGE_LIMIT_BYTES)
        .accept_compressed(CompressionEncoding::Gzip);
    let session =
        SessionSetupServer::new(Session::new(desk.clone(), config.incarnation, config.keep.failover()))
            .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
            .max_encoding_message_size(MESSAGE_LIMIT_BYTES)
            .accept_compressed(CompressionEncoding::Gzip);
    let status = StatusDesk::new(desk.clone(), config.incarnation);
    let (text, numbers) = status.pages();
    tokio::spawn(status.clone().serve_locally(config.window.clone()));
    let status = StatusServer::new(status)
        .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
        .accept_compressed(CompressionEncoding::Gzip);
    tokio::spawn(window::open(config.window.clone(), address, text, numbers));
    let (drain, drained) = oneshot::channel::<()>();
    let window = mounted.is_some().then_some(WINDOW_BYTES);
    let (routes, health) = standard::add(mounted.unwrap_or_default()).await;
    let service = tonic::transport::Server::builder()
        .max_concurrent_streams(STREAMS_LIMIT)
        .initial_stream_window_size(window)
        .initial_connection_window_size(window)
        .http2_max_header_list_size(Some(HEADERS_LIMIT_BYTES))
        .http2_keepalive_interval(Some(KEEPALIVE_EVERY))
        .http2_keepalive_timeout(Some(KEEPALIVE_LIMIT))
        .layer(InterceptorLayer::new(gate))
        .add_routes(routes)
        .add_service(coordination)
        .add_service(xla)
        .add_service(session)
        .add_service(rounds::service(desk.clone()))
        .add_service(status)
        .serve_with_incoming_shutdown(connections, async {
            let _ = drained.await;
        });
    let mut service = std::pin::pin!(service);
    tokio::select! {
        result = &mut service => {
            if let Err(error) = result {
                tracing::error!(%error, "the coordination service ended");
            }
            return;
        }
        // It has said why.
        () = over(&mut standing) => return,
        // An error means that the handle is gone, which also ends the service.
        _ = stopped => {}
        () = async { while let Some(event) = tells.recv().await { counter.tell(event) } } => {}
    }
    let_go(standing, &counter).await;
    standard::end(&health).await;
    let _ = drain.send(());
    // What is not read by then is lost with the connection, which says as much.
    let _ = tokio::time::timeout(FLUSH, service).await;
}
