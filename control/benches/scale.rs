//! The coordination service with thousands of tasks, each a tonic client of XLA's dialect; and JAX's own service driven by
//! the same clients in the same run.
//!
//! ```sh
//! cargo bench -p ringway-control --bench scale -- [--tasks 4096] [--connections 4096] [--rounds 5] [--python PYTHON]
//! cargo bench -p ringway-control --bench scale -- --heartbeats 10000
//! ```
//!
//! The services run in processes of their own, so that their processor time and memory are theirs. With `--python`, a
//! Python that has jaxlib, both take turns. The clients are in threads that share nothing, so that they take little of the time
//! of either. Open files: one for each connection in the service, and one here (`ulimit -n`).

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringway_control::core::coordination::CoordinatorConfig;
use ringway_control::rpc::serve::{Server, ServerConfig};
use ringway_proto::xla::coordination as xla;
use ringway_proto::xla::coordination::coordination_service_client::CoordinationServiceClient;
use ringway_topology::Incarnation;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

type Client = CoordinationServiceClient<Channel>;

/// Threads of the clients.
const CLIENT_THREADS: u32 = 2;
/// Connections that are being made at a time.
const CONNECTING: usize = 256;
/// Longest wait for anything.
const LIMIT_MS: i64 = 120_000;
/// How often a task says that it is alive, as JAX's tasks would with a limit of 10 s.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Heartbeats are watched for so long.
const WATCHED: Duration = Duration::from_secs(15);
/// Ticks of the processor times in /proc, which are the same on every Linux.
const TICKS_PER_S: f64 = 100.0;
/// JAX's service for so many tasks at a port, until its input ends.
const JAX_SERVICE: &str = "
import sys
from jax._src.lib import _jax
service = _jax.get_distributed_runtime_service(sys.argv[1], int(sys.argv[2]))
print('ready', flush=True)
sys.stdin.read()
";

struct Options {
    tasks: u32,
    connections: u32,
    rounds: u32,
    heartbeats: u32,
    python: Option<String>,
}

fn options() -> Options {
    let mut options = Options { tasks: 4096, connections: 4096, rounds: 5, heartbeats: 0, python: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a number follows");
        match word.as_str() {
            "--tasks" => options.tasks = number(),
            "--connections" => options.connections = number(),
            "--rounds" => options.rounds = number(),
            "--heartbeats" => options.heartbeats = number(),
            "--python" => options.python = words.next(),
            // What cargo adds.
            "--bench" => {}
            other => panic!("{other} means nothing here; see the head of benches/scale.rs"),
        }
    }
    options
}

/// A service in a process of its own.
struct Service {
    process: Child,
    address: SocketAddr,
}

impl Service {
    fn ours(tasks: u32) -> Service {
        let program = std::env::current_exe().expect("this program has a path");
        Service::start(Command::new(program).arg("--serve"), tasks)
    }

    fn jax(python: &str, tasks: u32) -> Service {
        Service::start(Command::new(python).arg("-c").arg(JAX_SERVICE), tasks)
    }

    fn start(command: &mut Command, tasks: u32) -> Service {
        let held = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = held.local_addr().expect("it is bound");
        drop(held);
        let command = command.arg(address.to_string()).arg(tasks.to_string());
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().expect("the service starts");
        let mut word = String::new();
        let output = process.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut word).expect("the service says when it is ready");
        assert_eq!(word.trim(), "ready", "the service did not start");
        Service { process, address }
    }

    /// Processor time so far.
    fn busy(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).expect("it runs");
        // After the name, which may hold anything but ends with the last parenthesis: 12th and 13th.
        let rest = stat.rsplit(')').next().unwrap_or_default();
        let ticks: f64 =
            rest.split_whitespace().skip(11).take(2).filter_map(|word| word.parse::<f64>().ok()).sum();
        Duration::from_secs_f64(ticks / TICKS_PER_S)
    }

    /// Memory in use, in bytes.
    fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It ends by itself when its input does; whoever does not is of no use any more.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The process with our service.
fn serve(address: &str, tasks: &str) {
    let tasks = tasks.parse().expect("a number");
    let config = ServerConfig::new(CoordinatorConfig::one_job("jax", tasks), Incarnation(4242));
    let server = Server::start(address.parse().expect("an address"), config).expect("the port is free");
    println!("ready");
    std::io::stdout().flush().expect("somebody listens");
    // Until whoever started it is gone.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(server);
}

/// The clients of one thread.
struct Share {
    runtime: Runtime,
    clients: Vec<Client>,
    tasks: Range<u32>,
}

/// All clients.
struct Crowd(Vec<Share>);

impl Crowd {
    /// So many connections, each of which several tasks may share.
    fn connect(address: SocketAddr, tasks: u32, connections: u32) -> Crowd {
        let cut = |all: u32, at: u32| all * at / CLIENT_THREADS;
        let shares = (0..CLIENT_THREADS).map(|at| Share {
            runtime: Builder::new_current_thread().enable_all().build().expect("a runtime"),
            clients: Vec::new(),
            tasks: cut(tasks, at)..cut(tasks, at + 1),
        });
        let mut crowd = Crowd(shares.collect());
        std::thread::scope(|scope| {
            for (at, share) in (0..).zip(&mut crowd.0) {
                let connections = cut(connections, at + 1) - cut(connections, at);
                scope.spawn(move || share.clients = share.runtime.block_on(connect(address, connections)));
            }
        });
        crowd
    }

    /// Each thread does its share.
    fn all<T: Send>(&self, part: impl AsyncFn(&Share) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let part = &part;
            let threads = self.0.iter().map(|share| scope.spawn(move || share.runtime.block_on(part(share))));
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|thread| thread.join().expect("no client panics")).collect()
        })
    }

    /// All tasks register; the incarnation of the service.
    fn register(&self) -> u64 {
        self.all(register).into_iter().max().unwrap_or(0)
    }
}

impl Share {
    fn clients(&self) -> impl Iterator<Item = (u32, Client)> {
        self.tasks.clone().zip(self.clients.iter().cycle().cloned())
    }
}

async fn connect(address: SocketAddr, connections: u32) -> Vec<Client> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address").tcp_nodelay(true);
    let mut clients = Vec::new();
    let mut making = JoinSet::new();
    for _ in 0..connections {
        if making.len() >= CONNECTING {
            clients.extend(making.join_next().await);
        }
        let endpoint = endpoint.clone();
        making.spawn(
            async move { Client::new(endpoint.connect().await.expect("the service takes connections")) },
        );
    }
    clients.extend(making.join_all().await.into_iter().map(Ok));
    clients.into_iter().map(|client| client.expect("no task panics")).collect()
}

fn incarnation(task: u32) -> u64 {
    0x5eed_0000_0000 + u64::from(task)
}

fn says(task: u32, service_incarnation: u64) -> Option<xla::Incarnations> {
    Some(xla::Incarnations { task_id: task as i32, task_incarnation: incarnation(task), service_incarnation })
}

async fn register(share: &Share) -> u64 {
    let mut calls = JoinSet::new();
    for (task, mut client) in share.clients() {
        let request =
            xla::RegisterTaskRequest { incarnation: incarnation(task), source_task_id: task as i32 };
        calls.spawn(async move { client.register_task(request).await });
    }
    let answers = calls.join_all().await;
    answers
        .into_iter()
        .map(|answer| answer.expect("all register").into_inner().service_incarnation)
        .max()
        .unwrap_or(0)
}

/// All tasks come to a barrier.
async fn barrier(share: &Share, service: u64) {
    let mut calls = JoinSet::new();
    for (task, mut client) in share.clients() {
        let request = xla::BarrierRequest {
            incarnations: says(task, service),
            barrier_id: "bench".to_owned(),
            barrier_timeout_in_ms: LIMIT_MS,
            source_task_id: task as i32,
            ..xla::BarrierRequest::default()
        };
        calls.spawn(async move { client.barrier(request).await });
    }
    for answer in calls.join_all().await {
        answer.expect("all pass");
    }
}

/// What one round took.
struct Round {
    connected: Duration,
    registered: Duration,
    passed: Duration,
    /// Processor time of the service for both.
    busy: Duration,
    /// Memory of the service for each task, in bytes.
    memory: u64,
}

impl Round {
    fn total(&self) -> Duration {
        self.registered + self.passed
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |span: Duration| span.as_secs_f64() * 1e3;
        write!(
            f,
            "{:9.0} {:9.0} {:9.0} {:9.0} {:9.0} {:9.1}",
            ms(self.connected),
            ms(self.registered),
            ms(self.passed),
            ms(self.total()),
            ms(self.busy),
            self.memory as f64 / 1024.0
        )
    }
}

fn round(service: &Service, tasks: u32, connections: u32) -> Round {
    let idle = service.resident();
    let begun = Instant::now();
    let crowd = Crowd::connect(service.address, tasks, connections);
    let connected = begun.elapsed();
    let (busy, begun) = (service.busy(), Instant::now());
    let incarnation = crowd.register();
    let registered = begun.elapsed();
    let begun = Instant::now();
    crowd.all(async |share| barrier(share, incarnation).await);
    let passed = begun.elapsed();
    let memory = service.resident().saturating_sub(idle) / u64::from(tasks);
    Round { connected, registered, passed, busy: service.busy().saturating_sub(busy), memory }
}

fn rounds(options: &Options) {
    let Options { tasks, connections, rounds, .. } = *options;
    println!("{tasks} tasks over {connections} connections; ms, and KiB of the service for each task");
    println!("service     connect  register   barrier      both       cpu    memory");
    for _ in 0..rounds {
        println!("ringway  {}", round(&Service::ours(tasks), tasks, connections));
        if let Some(python) = &options.python {
            println!("jaxlib   {}", round(&Service::jax(python, tasks), tasks, connections));
        }
    }
}

/// The tasks of a share say that they are alive, until `end`.
async fn beat(share: &Share, tasks: u32, service: u64, begun: Instant, end: Instant) {
    let mut beating = JoinSet::new();
    for (task, mut client) in share.clients() {
        beating.spawn(async move {
            let mut at = begun + HEARTBEAT.mul_f64(f64::from(task) / f64::from(tasks));
            while at < end {
                tokio::time::sleep_until(at.into()).await;
                at += HEARTBEAT;
                let request = xla::HeartbeatRequest {
                    incarnations: says(task, service),
                    incarnation: incarnation(task),
                    source_task_id: task as i32,
                };
                client.heartbeat(request).await.expect("the service takes heartbeats");
            }
        });
    }
    beating.join_all().await;
}

fn heartbeats(service: &Service, name: &str, tasks: u32, connections: u32) {
    let crowd = Crowd::connect(service.address, tasks, connections);
    let incarnation = crowd.register();
    let begun = Instant::now();
    // From the second time on, when every task has said it once.
    let watched = begun + HEARTBEAT;
    let end = watched + WATCHED;
    let share = std::thread::scope(|scope| {
        scope.spawn(|| crowd.all(async |share| beat(share, tasks, incarnation, begun, end).await));
        std::thread::sleep(watched.saturating_duration_since(Instant::now()));
        let busy = service.busy();
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        service.busy().saturating_sub(busy).as_secs_f64() / WATCHED.as_secs_f64()
    });
    println!("{name}: {tasks} tasks, a heartbeat each {HEARTBEAT:?}: {:.1} % of one core", share * 100.0);
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    if let [_, serve_word, address, tasks] = words.as_slice()
        && serve_word == "--serve"
    {
        return serve(address, tasks);
    }
    let options = options();
    if options.heartbeats == 0 {
        return rounds(&options);
    }
    let (tasks, connections) = (options.heartbeats, options.connections);
    heartbeats(&Service::ours(tasks), "ringway", tasks, connections);
    if let Some(python) = &options.python {
        heartbeats(&Service::jax(python, tasks), "jaxlib", tasks, connections);
    }
}
