//! All-reduce of f32 sums by size, algorithm and transport: by ranks that are threads of this process, and by real
//! processes.
//!
//! Bytes counted are those of one rank's buffer (algbw). Ranks beyond the cores take turns, so compare lines of one run.

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use ringway_collectives::engine::{Communicator, EngineOptions, GroupInfo, Member};
use ringway_collectives::reduce::ReduceOp;
use ringway_collectives::schedule::{Algorithm, Wanted};
use ringway_dataplane::memory::Buffer;
use ringway_dataplane::transport::{Hub, Keyring, LoopbackConfig, Peer, Transport};
use ringway_dataplane::uring::{Bind, Config, TcpTransport};
use ringway_topology::model::order::Site;
use std::net::Ipv4Addr;
use std::process::Command;
use std::time::{Duration, Instant};

const SIZES: [usize; 5] = [8, 4 << 10, 256 << 10, 8 << 20, 64 << 20];
/// What the cost model chooses, and each algorithm by itself.
const ALGORITHMS: [Option<Algorithm>; 5] =
    [None, Some(Algorithm::Ring), Some(Algorithm::Tree), Some(Algorithm::Doubling), Some(Algorithm::Halving)];
/// An algorithm that sends whole buffers is not measured beyond this.
const WHOLE_BUFFER_LIMIT: usize = 8 << 20;

/// One end for each rank, introduced to all others.
type Ends = Vec<Box<dyn Transport>>;
/// Makes the ends of so many ranks.
type Wire = fn(u32) -> Ends;

fn loopback(ranks: u32) -> Ends {
    let ends = Hub::new(LoopbackConfig::default()).group(ranks).expect("a file descriptor for each rank");
    ends.into_iter().map(|end| Box::new(end) as Box<dyn Transport>).collect()
}

fn tcp(ranks: u32) -> Ends {
    let end = |me| {
        let bind = vec![Bind::new(Ipv4Addr::LOCALHOST.into(), "lo")];
        TcpTransport::new(Config::new(me, Keyring::of([7; 32]), 1 + u64::from(me), bind))
            .expect("a port on 127.0.0.1")
    };
    let mut ends: Vec<TcpTransport> = (0..ranks).map(end).collect();
    let addresses: Vec<_> = ends.iter().map(|end| end.address()).collect();
    for (me, end) in (0..ranks).zip(&mut ends) {
        for (other, address) in (0..ranks).zip(&addresses).filter(|(other, _)| *other != me) {
            end.connect(Peer(other), address).expect("an address of this transport");
        }
    }
    ends.into_iter().map(|end| Box::new(end) as Box<dyn Transport>).collect()
}

fn communicators(transports: Ends, algorithm: Option<Algorithm>) -> Vec<Communicator> {
    let member = |rank| Member {
        peer: Peer(rank),
        host: "bench".to_owned(),
        pid: 1 + rank,
        incarnation: 1,
        site: Site::default(),
    };
    let members: Vec<Member> = (0..transports.len() as u32).map(member).collect();
    let join = |(transport, my_rank)| {
        let wanted = algorithm.map_or(Wanted::ANY, Wanted::from);
        let options = EngineOptions { wanted, ..EngineOptions::default() };
        let group = GroupInfo { id: 1, my_rank, members: members.clone() };
        Communicator::new(transport, group, options).expect("a well-formed group")
    };
    transports.into_iter().zip(0u32..).map(join).collect()
}

/// One rank's part of `rounds` all-reduces; the buffer is lent to each and comes back.
fn rounds(comm: &Communicator, mut buffer: Buffer<f32>, rounds: u64) -> (Buffer<f32>, Duration) {
    comm.barrier().expect("no failure in one process");
    let began = Instant::now();
    for _ in 0..rounds {
        let handle = comm.all_reduce_start(buffer, ReduceOp::Sum).expect("no failure in one process");
        buffer = handle.wait().expect("no failure in one process");
    }
    (buffer, began.elapsed())
}

/// `count` all-reduces by all ranks at once; the time of the slowest.
fn measure(ranks: &mut [(Communicator, Option<Buffer<f32>>)], count: u64) -> Duration {
    std::thread::scope(|scope| {
        let run = |(comm, slot): &mut (Communicator, Option<Buffer<f32>>)| {
            let (buffer, took) = rounds(comm, slot.take().expect("home between measurements"), count);
            *slot = Some(buffer);
            took
        };
        let threads: Vec<_> = ranks.iter_mut().map(|rank| scope.spawn(move || run(rank))).collect();
        let times = threads.into_iter().map(|thread| thread.join().expect("a rank that ends"));
        times.max().unwrap_or_default()
    })
}

fn all_reduce(c: &mut Criterion) {
    let worlds: [(&str, Wire, u32); 3] = [("loopback", loopback, 2), ("tcp", tcp, 2), ("tcp", tcp, 4)];
    for (name, transports, ranks) in worlds {
        let mut group = c.benchmark_group(format!("{name} {ranks} ranks"));
        group.sampling_mode(SamplingMode::Flat);
        for bytes in SIZES {
            group.throughput(Throughput::Bytes(bytes as u64));
            for algorithm in ALGORITHMS {
                let whole = matches!(algorithm, Some(Algorithm::Tree | Algorithm::Doubling));
                if whole && bytes > WHOLE_BUFFER_LIMIT {
                    continue;
                }
                let label = algorithm.map_or("chosen".to_owned(), |a| a.to_string());
                // Zeros stay zeros, so that no sum overflows, however often it is repeated.
                let with_buffer = |comm: Communicator| {
                    let buffer = comm.alloc::<f32>(bytes / 4).expect("memory for the buffer");
                    (comm, Some(buffer))
                };
                let mut world: Vec<_> =
                    communicators(transports(ranks), algorithm).into_iter().map(with_buffer).collect();
                group.bench_function(BenchmarkId::new(label, bytes), |b| {
                    b.iter_custom(|count| measure(&mut world, count));
                });
            }
        }
        group.finish();
    }
}

/// The mean time of `count` all-reduces of `bytes` by two processes, as `ringway bench` measures it, times `count`.
fn processes_once(bytes: usize, count: u64) -> Duration {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_ringway"));
    bench.args(["bench", "all-reduce", "-n", "2", "--csv", "-c", "0", "-w", "2"]);
    bench.args(["--sizes", &bytes.to_string(), "--iters", &count.to_string()]);
    let done = bench.output().expect("ringway starts");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8(done.stdout).expect("CSV is text");
    let mean_us =
        text.lines().nth(1).and_then(|row| row.split(',').nth(8)).and_then(|us| us.parse::<f64>().ok());
    Duration::from_secs_f64(mean_us.expect("a row with its time") * count as f64 / 1e6)
}

fn processes(c: &mut Criterion) {
    let mut group = c.benchmark_group("tcp 2 processes");
    group.sampling_mode(SamplingMode::Flat);
    for bytes in SIZES {
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::new("chosen", bytes), |b| {
            b.iter_custom(|count| processes_once(bytes, count));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .nresamples(1001)
        .without_plots()
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400));
    targets = all_reduce, processes
}
criterion_main!(benches);
