//! The control plane: starting the coordination service, registering, barriers and the key-value store, each through
//! real gRPC on this host's loopback.

use criterion::{Criterion, criterion_group, criterion_main};
use ringway_control::launch::RANK_JOB;
use ringway_control::rpc::client::{Agent, AgentConfig, Process};
use ringway_control::rpc::serve::Server;
use ringway_control::runtime::{incarnation, start_coordinator};
use ringway_control::settings::Settings;
use ringway_control::window::WindowConfig;
use ringway_topology::TaskId;
use ringway_topology::host::host_id;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

/// Heartbeat limit; nothing here is silent for so long.
const LIMIT: Duration = Duration::from_secs(10);

fn server(tasks: u32) -> Server {
    let bind = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    start_coordinator(bind, tasks, &Settings::default(), WindowConfig::default()).expect("a free port")
}

fn agent(server: &Server, index: u32) -> Agent {
    let task = TaskId::new(RANK_JOB, index).expect("a good name");
    let host = host_id().expect("this host has a name");
    let process = Process { task, incarnation: incarnation(), host, pid: std::process::id() };
    Agent::start(AgentConfig::new(server.local_addr().to_string(), process, LIMIT))
        .expect("the service is up")
}

fn starting(c: &mut Criterion) {
    let mut group = c.benchmark_group("control");
    group.bench_function("start and stop the service", |b| b.iter(|| server(1)));
    group.bench_function("register and leave", |b| {
        let server = server(1);
        b.iter(|| agent(&server, 0).leave().expect("the service is up"));
    });
    group.finish();
}

fn store(c: &mut Criterion) {
    let server = server(1);
    let agent = agent(&server, 0);
    let mut group = c.benchmark_group("key-value store");
    for bytes in [16, 1 << 20] {
        let value = vec![7u8; bytes];
        group.bench_function(format!("set and get {bytes} B"), |b| {
            b.iter(|| {
                agent.kv_set("bench/key", &value, true).expect("the service is up");
                agent.kv_try_get("bench/key").expect("it was set")
            });
        });
    }
    group.finish();
    agent.leave().expect("the service is up");
}

fn barriers(c: &mut Criterion) {
    const TASKS: u32 = 4;
    let server = server(TASKS);
    let agents: Vec<Agent> = (0..TASKS).map(|index| agent(&server, index)).collect();
    let mut round = 0u64;
    let mut group = c.benchmark_group("barrier");
    group.bench_function(format!("{TASKS} tasks"), |b| {
        b.iter_custom(|count| {
            let first = round;
            round += count;
            let names: Vec<String> = (first..round).map(|n| format!("bench/{n}")).collect();
            let pass =
                |agent: &Agent| names.iter().for_each(|n| agent.barrier(n, &[], LIMIT).expect("all come"));
            let began = Instant::now();
            std::thread::scope(|scope| agents.iter().for_each(|agent| drop(scope.spawn(|| pass(agent)))));
            began.elapsed()
        });
    });
    group.finish();
    for agent in agents {
        agent.leave().expect("the service is up");
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .nresamples(1001)
        .without_plots()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1));
    targets = starting, store, barriers
}
criterion_main!(benches);
