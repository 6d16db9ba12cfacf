//! `ringway tune`: measures links and every algorithm at several sizes, over the job's own ranks, and writes what choices are
//! made by (`RINGWAY_TUNING_FILE`).

use super::args::Bench;
use super::case::{Call, Case, OnHost};
use super::measure::BenchError;
use super::table::percentile;
use super::{BenchError as Failed, launch_ranks, sizes};
use ringway::{Communicator, Launch, ReduceOp, Settings};
use ringway_collectives::reduce::combine;
use ringway_collectives::schedule::{
    Algorithm, Best, Collective, CoreCosts, Costs, LinkCosts, Priced, Tuning, Wanted, Width,
};
use ringway_control::launch::Launcher;
use ringway_dataplane::memory::DType;
use ringway_topology::host::pin::allowed_cpus;
use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Messages of a ping-pong.
const PINGS: usize = 200;
/// Messages that are sent one after another before the first is received, few enough to go without the receiver's word; and
/// how often.
const ROW: usize = 8;
const ROWS: usize = 40;
/// Bytes of a message that waits for its receiver's word, and is still in caches; so does one of half as many.
const LONG_BYTES: usize = 64 << 10;
/// Bytes exchanged to measure a link's width.
const WIDE_BYTES: usize = 4 << 20;
/// Exchanges of those.
const WIDE_TIMES: usize = 8;
/// Vectors whose width is measured, in bytes.
const WIDTHS: [u64; 6] = [8 << 10, 64 << 10, 512 << 10, 4 << 20, 16 << 20, 64 << 20];
/// Bytes combined at a time to measure that.
const COMBINED_BYTES: usize = 128 << 10;
/// Runs of each algorithm and size, of which the median counts.
const RUNS: usize = 15;
/// Runs before those.
const WARM_UPS: usize = 3;
/// The collectives whose algorithms are compared.
const COMPARED: [(Bench, Collective); 6] = [
    (Bench::AllReduce, Collective::AllReduce),
    (Bench::ReduceScatter, Collective::ReduceScatter),
    (Bench::AllGather, Collective::AllGather),
    (Bench::Broadcast, Collective::Broadcast),
    (Bench::Reduce, Collective::Reduce),
    (Bench::Gather, Collective::Gather),
];

/// Measure links and algorithms over the job's ranks, and write what choices are made by
#[derive(clap::Args)]
#[command(after_help = "Examples:
  ringway tune -n 4 -o tuning.txt                        four ranks on this host
  srun -n 64 ringway tune -o tuning.txt                  under a launcher: its ranks, on any hosts
  RINGWAY_TUNING_FILE=tuning.txt srun -n 64 ./train      rank 0 reads it, and all ranks choose by it
  RINGWAY_TUNING_FILE=tuning.txt ringway bench all-reduce -n 4 --explain

The costs of links hold for jobs of any number of ranks; the quickest algorithms for jobs of as many ranks and hosts.
With a file, the bits of results are those of the algorithms that it names.")]
pub(crate) struct Args {
    /// Ranks to start on this host; under a launcher it joins that one's instead
    #[arg(short = 'n', long, value_name = "RANKS", value_parser = clap::value_parser!(u32).range(2..=1024))]
    ranks: Option<u32>,
    /// Sizes in bytes; K, M and G mean powers of 1024
    #[arg(long, value_delimiter = ',', value_parser = sizes::parse, default_value = "8,1K,8K,64K,512K,4M,32M")]
    sizes: Vec<u64>,
    /// Where to write; rank 0 does [default: standard output]
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Measures, as a rank of the launcher's job, or by starting ranks of its own.
///
/// # Errors
/// When it could not begin, or the file could not be written.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failed> {
    let settings = Settings::from_env()?;
    let launch = Launch::from_env()?;
    // Before minutes of measuring, not after.
    if launch.found_by == Launcher::Single || launch.rank.0 == 0 {
        args.output.as_deref().map_or(Ok(()), may_be_written)?;
    }
    if launch.found_by == Launcher::Single {
        return launch_ranks(args.ranks.unwrap_or(super::DEFAULT_RANKS));
    }
    if launch.world_size < 2 {
        let by = launch.found_by;
        return Err(Failed::Flags(format!(
            "one rank has no links to measure: have the launcher ({by}) start 2 or more"
        )));
    }
    let comm = Communicator::join(&launch, &settings)?;
    let told = measure(&comm, args).and_then(|tuning| Ok(write(&comm, args, &tuning)?));
    Ok(super::ended(&comm, "tune", told.map(|()| 0)))
}

/// Whether a file is or can be there. Keeps what is in it: the measuring may fail.
fn may_be_written(path: &Path) -> Result<(), Failed> {
    let opened = File::options().write(true).create(true).truncate(false).open(path);
    opened.map(drop).map_err(|why| Failed::Flags(format!("cannot write {}: {why}", path.display())))
}

fn write(comm: &Communicator, args: &Args, tuning: &Tuning) -> std::io::Result<()> {
    if comm.rank() != 0 {
        return Ok(());
    }
    let text = tuning.to_string();
    match &args.output {
        Some(path) => std::fs::write(path, text),
        None => std::io::stdout().write_all(text.as_bytes()),
    }
}

fn measure(comm: &Communicator, args: &Args) -> Result<Tuning, BenchError> {
    comm.barrier()?;
    let host = |rank: u32| &comm.members()[rank as usize].site.machine;
    let other = |same: bool| (1..comm.size()).find(|rank| (host(*rank) == host(0)) == same);
    let speed = combining(comm)?;
    let known = Costs::default();
    let link = |peer: Option<u32>, known: LinkCosts| match peer {
        None => Ok(LinkCosts { reduce_bytes_per_us: speed, ..known }),
        Some(peer) => between(comm, peer, speed),
    };
    let costs =
        Costs { inside: link(other(true), known.inside)?, between: link(other(false), known.between)? };
    let switch_us = switch(comm, &costs.inside)?;
    let (call_us, widths) = match other(true) {
        Some(peer) => widths(comm, peer, &costs.inside)?,
        None => (0.0, Vec::new()),
    };
    let core = CoreCosts { call_us, switch_us };
    let mut sizes = args.sizes.clone();
    sizes.sort_unstable();
    sizes.dedup();
    let mut best = Vec::new();
    for (bench, collective) in COMPARED {
        best.extend(compared(comm, bench, collective, &sizes)?);
    }
    comm.prefer(Wanted::ANY);
    let tuning = Tuning::new(costs, best).and_then(|tuning| tuning.with_widths(widths));
    Ok(tuning.unwrap_or_else(|| unreachable!("sizes were sorted")).with_core(core))
}

/// Rank 0's numbers, on all ranks.
fn agreed<const N: usize>(comm: &Communicator, mut numbers: [f64; N]) -> Result<[f64; N], BenchError> {
    comm.broadcast(&mut numbers, 0)?;
    Ok(numbers)
}

/// How fast a rank combines what is in its cache, in bytes per microsecond.
fn combining(comm: &Communicator) -> Result<f64, BenchError> {
    let (mut sum, operand) = (vec![0u8; COMBINED_BYTES], vec![0u8; COMBINED_BYTES]);
    let mut times = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let begun = Instant::now();
        // Sums of zeros are sums like others.
        let combined = combine(ReduceOp::Sum, DType::F32, &mut sum, &operand);
        debug_assert!(combined.is_ok());
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    let speed = COMBINED_BYTES as f64 / percentile(&times, 0.5).max(1e-3);
    Ok(agreed(comm, [speed])?[0])
}

/// What the link between rank 0 and another costs.
fn between(comm: &Communicator, peer: u32, reduce_bytes_per_us: f64) -> Result<LinkCosts, BenchError> {
    let mut found = [0.0; 4];
    if comm.rank() == 0 {
        found = links(comm, peer, true)?;
    } else if comm.rank() == peer {
        links(comm, 0, false)?;
    }
    comm.barrier()?;
    let [half, eager_message_us, waiting, bytes_per_us] = agreed(comm, found)?;
    let offloaded = comm.transport_name() == "rdma";
    let latency_us = (half - eager_message_us).max(0.01);
    let message_us = eager_message_us + waiting;
    Ok(LinkCosts { latency_us, message_us, eager_message_us, bytes_per_us, reduce_bytes_per_us, offloaded })
}

/// Half a round trip, what a message costs at its ends, and how much more where it waits for its receiver's word, all in
/// microseconds, and bytes per microsecond each way while both are used.
fn links(comm: &Communicator, peer: u32, first: bool) -> Result<[f64; 4], BenchError> {
    let half = trip(comm, peer, first, 8)?;
    let each = row(comm, peer, first)?;
    let both = |bytes, times| exchanged(comm, peer, bytes, times);
    // What is left when the bytes are taken away, that come on top as their number doubles; beyond a message that does not wait.
    let waiting = 2.0 * both(LONG_BYTES / 2, PINGS)? - both(LONG_BYTES, PINGS)? - both(8, PINGS)?;
    let wide = both(WIDE_BYTES, WIDE_TIMES)?;
    Ok([half, each.min(half), waiting.max(0.0), WIDE_BYTES as f64 / wide])
}

/// What it takes to send and receive so many bytes at once, in microseconds.
fn exchanged(comm: &Communicator, peer: u32, bytes: usize, times: usize) -> Result<f64, BenchError> {
    let (output, mut input) = (comm.alloc::<u8>(bytes)?, comm.alloc::<u8>(bytes)?);
    let mut exchanges = Vec::with_capacity(times);
    for _ in 0..times {
        let begun = Instant::now();
        comm.sendrecv(&output, peer, &mut input, peer, 0)?;
        exchanges.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    exchanges.sort_by(f64::total_cmp);
    Ok(percentile(&exchanges, 0.5))
}

/// Half a round trip of messages of so many bytes, in microseconds.
fn trip(comm: &Communicator, peer: u32, first: bool, bytes: usize) -> Result<f64, BenchError> {
    let mut message = comm.alloc::<u8>(bytes)?;
    let mut halves = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let begun = Instant::now();
        if first {
            comm.send(&message, peer, 0)?;
            comm.recv(&mut message, peer, 0)?;
        } else {
            comm.recv(&mut message, peer, 0)?;
            comm.send(&message, peer, 0)?;
        }
        halves.push(begun.elapsed().as_secs_f64() * 5e5);
    }
    halves.sort_by(f64::total_cmp);
    Ok(percentile(&halves, 0.5))
}

/// What a message costs whoever sends or receives it, whichever costs more, in microseconds: a row of them is sent, and
/// received when all have come. Of use on the first side.
fn row(comm: &Communicator, peer: u32, first: bool) -> Result<f64, BenchError> {
    const GO: u32 = 1;
    let mut times = Vec::with_capacity(ROWS);
    for _ in 0..ROWS {
        let mut word = [0u8; 8];
        if first {
            let begun = Instant::now();
            (0..ROW).try_for_each(|_| comm.send(&word, peer, 0))?;
            let sent = begun.elapsed().as_secs_f64();
            comm.send(&word, peer, GO)?;
            comm.recv(&mut word, peer, 0)?;
            times.push(sent.max(f64::from_ne_bytes(word)) * 1e6 / ROW as f64);
        } else {
            comm.recv(&mut word, peer, GO)?;
            let begun = Instant::now();
            (0..ROW).try_for_each(|_| comm.recv(&mut word, peer, 0))?;
            word = begun.elapsed().as_secs_f64().to_ne_bytes();
            comm.send(&word, peer, 0)?;
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(percentile(&times, 0.5))
}

/// A switch to another rank of a core, in microseconds, by messages to one that has the same single core as rank 0, where there is one.
fn switch(comm: &Communicator, link: &LinkCosts) -> Result<Option<f64>, BenchError> {
    let only = allowed_cpus().ok().filter(|cpus| cpus.len() == 1).and_then(|cpus| cpus.first());
    let mut cores = vec![0; comm.size() as usize];
    comm.all_gather(&[only.map_or(0, |cpu| u64::from(cpu) + 1)], &mut cores)?;
    let here = |rank: &u32| comm.members()[*rank as usize].site.machine == comm.members()[0].site.machine;
    let mate = (1..comm.size()).find(|rank| cores[0] != 0 && cores[*rank as usize] == cores[0] && here(rank));
    let mut half = 0.0;
    if let Some(mate) = mate {
        if comm.rank() == 0 {
            half = trip(comm, mate, true, 8)?;
        } else if comm.rank() == mate {
            trip(comm, 0, false, 8)?;
        }
    }
    comm.barrier()?;
    let [half] = agreed(comm, [half])?;
    let apart = link.latency_us + link.eager_message_us;
    Ok(mate.map(|_| (half - apart).max(0.0)))
}

/// What passes between rank 0 and a peer and is combined by them, of vectors of some sizes: by an all-gather and a reduce-scatter
/// of the two in place, in which each sends the other half of a vector, and copies nothing of its own. Before them, what the
/// shortest takes beyond a message: a call.
fn widths(comm: &Communicator, peer: u32, link: &LinkCosts) -> Result<(f64, Vec<Width>), BenchError> {
    const FASTEST: f64 = 1e6;
    let mut all = [0.0; 1 + 2 * WIDTHS.len()];
    let [call_us, found @ ..] = &mut all;
    let of_pair = comm.rank() == 0 || comm.rank() == peer;
    let single = comm.split(Some(comm.rank()), 0)?;
    let alone_us = single.as_ref().map_or(Ok(f64::INFINITY), alone)?;
    if let Some(pair) = comm.split(of_pair.then_some(0), comm.rank())? {
        pair.prefer(Algorithm::Ring.into());
        let least = in_place(&pair, 8)?;
        // Either is more than a call alone: the one where ranks come in each other's way, the other where small calls of several
        // ranks take a shorter path.
        *call_us = (least[0] - link.latency_us - link.eager_message_us).clamp(0.0, alone_us);
        for (found, bytes) in found.chunks_exact_mut(2).zip(WIDTHS) {
            let [moved, combined] = in_place(&pair, bytes)?;
            let half = bytes as f64 / 2.0;
            // Beyond what any message costs.
            let waiting = link.message_of(half) - link.message_of(4.0);
            let moving_us = (moved - least[0] - waiting).max(half / FASTEST);
            let combining_us = (combined - least[1] - waiting - moving_us).max(half / FASTEST);
            found.copy_from_slice(&[half / moving_us, half / combining_us]);
        }
    }
    comm.barrier()?;
    let [call_us, found @ ..] = agreed(comm, all)?;
    let width = |(bytes, speeds): (u64, &[f64])| Width {
        bytes,
        bytes_per_us: speeds[0],
        reduce_bytes_per_us: speeds[1],
    };
    Ok((call_us, WIDTHS.into_iter().zip(found.chunks_exact(2)).map(width).collect()))
}

/// What a call of one rank alone takes, in microseconds.
fn alone(comm: &Communicator) -> Result<f64, BenchError> {
    let mut times = Vec::with_capacity(PINGS);
    let mut word = [0.0f32; 2];
    for _ in 0..PINGS {
        let begun = Instant::now();
        comm.all_reduce(&mut word, ReduceOp::Sum)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(percentile(&times, 0.5))
}

/// The times of an all-gather and of a reduce-scatter of so many bytes, which each rank has written just before: what has not
/// changed since it was last read would be in the reader's cache.
fn in_place(pair: &Communicator, bytes: u64) -> Result<[f64; 2], BenchError> {
    let vector = RefCell::new(pair.alloc::<f32>(usize::try_from(bytes / 4).unwrap_or(usize::MAX))?);
    let write = || vector.borrow_mut().fill(0.0);
    let runs = if bytes <= LONG_BYTES as u64 { PINGS } else { RUNS };
    let gathered = timed(pair, runs, write, || Ok(pair.all_gather_in_place(&mut vector.borrow_mut())?))?;
    let reduced = timed(pair, runs, write, || {
        Ok(pair.reduce_scatter_in_place(&mut vector.borrow_mut(), ReduceOp::Sum)?)
    })?;
    Ok([gathered, reduced])
}

/// The quickest algorithm for each size, neighbours that agree joined.
fn compared(
    comm: &Communicator,
    bench: Bench,
    collective: Collective,
    sizes: &[u64],
) -> Result<Vec<Best>, BenchError> {
    let mut found: Vec<Best> = Vec::new();
    for (at, &bytes) in sizes.iter().enumerate() {
        comm.prefer(Wanted::ANY);
        let told = comm.explain(collective, bytes);
        let mut quickest: Option<(f64, Priced)> = None;
        for priced in told.prices {
            comm.prefer(priced.algorithm.into());
            let call = Call { bench, op: ReduceOp::Sum, root: 0, started: false, plain: false };
            let mut case = OnHost::<f32>::new(comm, call, bytes)?;
            let time_us = timed(comm, RUNS, || (), || case.run())?;
            if quickest.is_none_or(|(least, _)| time_us < least) {
                quickest = Some((time_us, priced));
            }
        }
        let Some((_, Priced { algorithm, estimate, .. })) = quickest else { continue };
        // Up to the middle of the way to the next size, by factors.
        let middle = |next: &u64| (bytes as f64 * *next as f64).sqrt() as u64;
        let up_to_bytes = sizes.get(at + 1).map_or(u64::MAX, middle);
        if let Some(last) = found.last_mut().filter(|last| last.algorithm == algorithm) {
            *last = Best {
                up_to_bytes,
                slice_bytes: estimate.slice_bytes,
                slices_in_flight: estimate.slices_in_flight,
                ..*last
            };
            continue;
        }
        found.push(Best {
            collective,
            ranks: comm.size(),
            hosts: told.hosts,
            up_to_bytes,
            algorithm,
            slice_bytes: estimate.slice_bytes,
            slices_in_flight: estimate.slices_in_flight,
        });
    }
    Ok(found)
}

/// The median of some runs, each as long as on the slowest rank, in microseconds; the same on all ranks.
fn timed(
    comm: &Communicator,
    runs: usize,
    before: impl Fn(),
    mut call: impl FnMut() -> Result<(), BenchError>,
) -> Result<f64, BenchError> {
    let mut times = Vec::with_capacity(runs);
    for run in 0..WARM_UPS + runs {
        before();
        comm.barrier()?;
        let begun = Instant::now();
        call()?;
        if run >= WARM_UPS {
            times.push(begun.elapsed().as_secs_f64() * 1e6);
        }
    }
    comm.all_reduce(&mut times, ReduceOp::Max)?;
    times.sort_by(f64::total_cmp);
    Ok(percentile(&times, 0.5))
}
