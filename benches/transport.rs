//! Each transport between two threads of this process: messages to and fro, and a stream one way.
//!
//! Both threads poll without sleeping, and yield when nothing moves, so this is the cost of the transport and
//! of the kernel below it. `cargo bench --bench transport -- 'stream/uring'` runs one group.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ringway_dataplane::memory::{Pool, Region};
use ringway_dataplane::transport::{
    Event, Hub, Keyring, LoopbackConfig, Op, OpId, Peer, Stamp, Tag, Transport,
};
use ringway_dataplane::uring::{Bind, Config, DriverChoice, TcpTransport};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const TRANSPORTS: [&str; 3] = ["loopback", "epoll", "uring"];
const PING_BYTES: [usize; 3] = [8, 4 << 10, 1 << 20];
const STREAM_BYTES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
/// Messages of a stream under way at a time.
const WINDOW: usize = 8;
const TAG: Tag = Tag { group: 1, lane: 0 };

/// Two ends that know each other, or why this machine has no such transport.
fn pair(name: &str) -> Result<[Box<dyn Transport>; 2], String> {
    if name == "loopback" {
        let ends = Hub::new(LoopbackConfig::default()).group(2).map_err(|e| e.to_string())?;
        let ends: Vec<_> = ends.into_iter().map(|end| Box::new(end) as Box<dyn Transport>).collect();
        return ends.try_into().map_err(|_| "not two ends".to_owned());
    }
    let driver = if name == "uring" { DriverChoice::Uring } else { DriverChoice::Epoll };
    let end = |me| {
        let bind = vec![Bind::new(Ipv4Addr::LOCALHOST.into(), "lo")];
        let config = Config { driver, ..Config::new(me, Keyring::of([7; 32]), 1 + u64::from(me), bind) };
        TcpTransport::new(config).map_err(|e| e.to_string())
    };
    let (mut first, mut second) = (end(0)?, end(1)?);
    first.connect(Peer(1), &second.address()).map_err(|e| e.to_string())?;
    second.connect(Peer(0), &first.address()).map_err(|e| e.to_string())?;
    Ok([Box::new(first), Box::new(second)])
}

/// One end: a transport and a registered region cut into slots. An operation's id is its slot.
struct End {
    transport: Box<dyn Transport>,
    other: Peer,
    region: Region,
    slot_bytes: usize,
    events: Vec<Event>,
}

impl End {
    fn new(mut transport: Box<dyn Transport>, other: u32, slot_bytes: usize) -> End {
        let region = Pool::default().region(WINDOW * slot_bytes).expect("memory for the slots");
        // Unregistered memory works as well, only slower.
        let _ = transport.register(&region);
        End { transport, other: Peer(other), region, slot_bytes, events: Vec::new() }
    }

    fn send(&mut self, slot: usize) {
        let bytes = self.region.lend_read(slot * self.slot_bytes..(slot + 1) * self.slot_bytes);
        let bytes = bytes.expect("a free slot");
        let op = Op::Send { to: self.other, tag: TAG, stamp: Stamp::default(), bytes };
        self.transport.post(OpId(slot as u64), op).expect("a window below the transport's depth");
    }

    fn recv(&mut self, slot: usize) {
        let into = self.region.lend_write(slot * self.slot_bytes..(slot + 1) * self.slot_bytes);
        let into = into.expect("a free slot");
        let op = Op::Recv { from: self.other, tag: TAG, stamp: Stamp::default(), into };
        self.transport.post(OpId(slot as u64), op).expect("a window below the transport's depth");
    }

    /// Polls once and takes the leases home; appends the slots that became free.
    fn reap(&mut self, free: &mut Vec<usize>) {
        if !self.transport.poll(&mut self.events) {
            std::thread::yield_now();
        }
        for event in self.events.drain(..) {
            if let Event::Done(done) = event {
                done.result.expect("no failure in one process");
                self.region.restore(done.lease).expect("a lease of this region");
                free.push(done.id.0 as usize);
            }
        }
    }
}

/// Sends back what arrives, from slot 0, until told to stop; receives are posted ahead, into slot 1.
fn echo(mut end: End, stop: &AtomicBool) {
    let (mut done, mut arrived, mut sending) = (vec![], false, false);
    end.recv(1);
    while !stop.load(Ordering::Relaxed) {
        end.reap(&mut done);
        for slot in done.drain(..) {
            if slot == 1 {
                arrived = true;
                end.recv(1);
            } else {
                sending = false;
            }
        }
        if arrived && !sending {
            end.send(0);
            (arrived, sending) = (false, true);
        }
    }
}

/// Receives into whatever slot is free, until told to stop.
fn drain(mut end: End, stop: &AtomicBool) {
    let mut free: Vec<usize> = (0..WINDOW).collect();
    while !stop.load(Ordering::Relaxed) {
        for slot in free.drain(..) {
            end.recv(slot);
        }
        end.reap(&mut free);
    }
}

/// One message to the echo and back, `rounds` times.
fn ping(end: &mut End, rounds: u64) -> Duration {
    let began = Instant::now();
    let mut done = vec![];
    for _ in 0..rounds {
        end.recv(1);
        end.send(0);
        while done.len() < 2 {
            end.reap(&mut done);
        }
        done.clear();
    }
    began.elapsed()
}

/// `messages` sends, a window of them under way at a time.
fn stream(end: &mut End, messages: u64) -> Duration {
    let began = Instant::now();
    let mut free: Vec<usize> = (0..WINDOW).collect();
    for _ in 0..messages {
        while free.is_empty() {
            end.reap(&mut free);
        }
        let slot = free.pop().unwrap_or_default();
        end.send(slot);
    }
    while free.len() < WINDOW {
        end.reap(&mut free);
    }
    began.elapsed()
}

/// Measures `near` against a thread that runs `far`, for every size on every transport.
fn bench(
    c: &mut Criterion,
    name: &str,
    sizes: [usize; 3],
    far: fn(End, &AtomicBool),
    near: fn(&mut End, u64) -> Duration,
) {
    let mut group = c.benchmark_group(name);
    for transport in TRANSPORTS {
        for bytes in sizes {
            let [first, second] = match pair(transport) {
                Ok(ends) => ends,
                Err(why) => {
                    eprintln!("{transport} left out: {why}");
                    continue;
                }
            };
            let (mut here, there) = (End::new(first, 1, bytes), End::new(second, 0, bytes));
            let stop = AtomicBool::new(false);
            group.throughput(Throughput::Bytes(bytes as u64));
            std::thread::scope(|scope| {
                scope.spawn(|| far(there, &stop));
                group.bench_function(BenchmarkId::new(transport, bytes), |b| {
                    b.iter_custom(|rounds| near(&mut here, rounds));
                });
                stop.store(true, Ordering::Relaxed);
            });
        }
    }
    group.finish();
}

fn to_and_fro(c: &mut Criterion) {
    bench(c, "ping", PING_BYTES, echo, ping);
}

fn one_way(c: &mut Criterion) {
    bench(c, "stream", STREAM_BYTES, drain, stream);
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .nresamples(1001)
        .without_plots()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600));
    targets = to_and_fro, one_way
}
criterion_main!(benches);
