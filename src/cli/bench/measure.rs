//! The sweep: for each size a check, a warm-up, timed iterations, and a check again.
//!
//! An iteration's time begins behind a barrier and is the largest over the ranks: what a step of a program waits for.

use super::args::CollectiveArgs;
use super::case::{Call, Case, How, OnHost};
use super::device::Place;
use super::printer::{Printout, RankLine};
use super::table::{Row, percentile};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ringway::{CollectiveError, Communicator, DType, Element, ReduceOp};
use ringway_topology::host::pin::allowed_cpus;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// The most timed iterations when they are chosen by time.
const MOST_ITERATIONS: u64 = 2000;
/// A size whose iterations take longer gets a progress bar on a terminal.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of one rank's description.
const WHO_BYTES: usize = 512;

/// Why a benchmark ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum BenchError {
    /// A collective failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// GPUs could not be used.
    #[cfg(feature = "nccl")]
    #[error(transparent)]
    Device(#[from] ringway_collectives::nccl::DeviceError),
    /// A value did not come by the rendezvous.
    #[error(transparent)]
    Tensors(Box<dyn std::error::Error + Send + Sync>),
    /// The table could not be printed.
    #[error("printing the table: {0}")]
    Output(#[from] std::io::Error),
}

/// Runs the whole sweep. Returns how many elements were wrong on any rank.
pub(super) fn sweep(comm: &Communicator, args: &CollectiveArgs) -> Result<u64, BenchError> {
    let place = Place::of(comm, args.device, args.inside)?;
    if let Some(collective) = args.bench().collective().filter(|_| args.explain) {
        super::explain::explain(comm, collective, &args.sweep.size_list())?;
    }
    let mut printout = head(comm, args, &place)?;
    let mut wrong = 0;
    for bytes in args.sweep.size_list() {
        if !printout.goes_on()? {
            break;
        }
        let row = match args.datatype {
            DType::F16 => one::<half::f16>(comm, args, bytes, &place),
            DType::Bf16 => one::<half::bf16>(comm, args, bytes, &place),
            DType::F32 => one::<f32>(comm, args, bytes, &place),
            DType::F64 => one::<f64>(comm, args, bytes, &place),
            DType::I8 => one::<i8>(comm, args, bytes, &place),
            DType::I16 => one::<i16>(comm, args, bytes, &place),
            DType::I32 => one::<i32>(comm, args, bytes, &place),
            DType::I64 => one::<i64>(comm, args, bytes, &place),
            DType::U8 => one::<u8>(comm, args, bytes, &place),
            DType::U16 => one::<u16>(comm, args, bytes, &place),
            DType::U32 => one::<u32>(comm, args, bytes, &place),
            DType::U64 => one::<u64>(comm, args, bytes, &place),
            DType::Bool => one::<ringway::Bool>(comm, args, bytes, &place),
        }?;
        wrong += row.wrong.unwrap_or(0);
        printout.row(row);
    }
    printout.finish()?;
    Ok(wrong)
}

/// Gathers who takes part, and prints the head on rank 0.
fn head<'a>(
    comm: &'a Communicator,
    args: &CollectiveArgs,
    place: &Place,
) -> Result<Printout<'a, Row>, BenchError> {
    let ranks = who(comm, &place.why())?;
    let title = format!(
        "ringway {} {}: {} ranks, {}",
        env!("CARGO_PKG_VERSION"),
        args.bench().name(),
        comm.size(),
        args.sweep.title(),
    );
    Ok(Printout::start(comm, args.sweep.format(), title, ranks))
}

/// Who takes part, and how each is reached; each rank says `first` of itself before that.
pub(super) fn who(comm: &Communicator, first: &str) -> Result<Vec<RankLine>, CollectiveError> {
    // A first barrier makes the connections whose descriptions are gathered.
    comm.barrier()?;
    let mut mine = [0u8; WHO_BYTES];
    let why = format!("{first}{}", describe(comm));
    let kept = why.len().min(WHO_BYTES);
    mine[..kept].copy_from_slice(&why.as_bytes()[..kept]);
    let mut all = vec![0u8; WHO_BYTES * comm.size() as usize];
    comm.all_gather(&mine, &mut all)?;
    let ranks = (0..).zip(comm.members()).zip(all.chunks_exact(WHO_BYTES)).map(|((rank, m), text)| {
        let end = text.iter().position(|b| *b == 0).unwrap_or(WHO_BYTES);
        let why = String::from_utf8_lossy(&text[..end]).into_owned();
        RankLine { rank, host: m.host.clone(), pid: m.pid, why }
    });
    Ok(ranks.collect())
}

/// This rank's transport and why so, by the first peer that it is connected to.
fn describe(comm: &Communicator) -> String {
    let routes = (0..comm.size()).filter_map(|rank| Some((rank, comm.route(rank)?)));
    let route = match routes.take(1).next() {
        Some((rank, route)) => format!("to rank {rank} by {route}"),
        None if comm.size() == 1 => "alone: nothing is sent".to_owned(),
        None => format!("{}, not connected yet", comm.transport_name()),
    };
    match allowed_cpus() {
        Ok(cpus) => format!("on CPUs {cpus}, {route}"),
        Err(_) => route,
    }
}

fn one<T: Element>(
    comm: &Communicator,
    args: &CollectiveArgs,
    bytes: u64,
    place: &Place,
) -> Result<Row, BenchError> {
    let CollectiveArgs { op, root, started, plain, .. } = *args;
    let call = Call { bench: args.bench(), op, root, started, plain };
    let mut case: Box<dyn Case + '_> = match place {
        Place::Host => Box::new(OnHost::<T>::new(comm, call, bytes)?),
        #[cfg(feature = "nccl")]
        Place::Gpu(gpu) => Box::new(super::gpu::OnGpu::<T>::new(gpu, call, bytes)?),
    };
    let case = &mut *case;
    let mut wrong = check(comm, args, case)?;
    case.fill()?;
    let warm = Instant::now();
    for _ in 0..args.sweep.warmup_iters {
        case.run()?;
    }
    let each = warm.elapsed() / u32::try_from(args.sweep.warmup_iters.max(1)).unwrap_or(u32::MAX);
    let iterations = agree(comm, args.sweep.iterations(each, MOST_ITERATIONS))?;
    let mut times = timed(comm, case, iterations, each, size_of::<T>())?;
    let how = case.how();
    comm.all_reduce(&mut times, ReduceOp::Max)?;
    wrong = match (wrong, check(comm, args, case)?) {
        (Some(before), Some(after)) => Some(before + after),
        _ => None,
    };
    Ok(row::<T>(comm, args, case.count(), times, how, wrong))
}

/// One run on fresh inputs; how many elements of any rank are wrong.
fn check(comm: &Communicator, args: &CollectiveArgs, case: &mut dyn Case) -> Result<Option<u64>, BenchError> {
    if !args.sweep.checks() {
        return Ok(None);
    }
    case.fill()?;
    case.run()?;
    let mut wrong = [case.wrong()?];
    comm.all_reduce(&mut wrong, ReduceOp::Sum)?;
    Ok(Some(wrong[0]))
}

/// Rank 0's number, on all ranks.
pub(super) fn agree(comm: &Communicator, mine: u64) -> Result<u64, CollectiveError> {
    let mut number = [mine];
    comm.broadcast(&mut number, 0)?;
    Ok(number[0])
}

/// Microseconds of each iteration on this rank.
fn timed(
    comm: &Communicator,
    case: &mut dyn Case,
    iterations: u64,
    each: Duration,
    element_bytes: usize,
) -> Result<Vec<f64>, BenchError> {
    let expected = each.saturating_mul(u32::try_from(iterations).unwrap_or(u32::MAX));
    let bar = (comm.rank() == 0 && expected > PATIENCE && std::io::stderr().is_terminal())
        .then(|| progress(iterations, case.count() * element_bytes));
    let mut times = Vec::with_capacity(iterations as usize);
    for _ in 0..iterations {
        comm.barrier()?;
        let begun = Instant::now();
        case.run()?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
        if let Some(bar) = &bar {
            bar.inc(1);
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(times)
}

fn progress(iterations: u64, bytes: usize) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(iterations), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{msg} {bar:40} {pos}/{len} {eta}") {
        bar.set_style(style);
    }
    bar.set_message(format!("{bytes} B"));
    // Rows that are on the screen already stay whole.
    let _ = std::io::stdout().flush();
    bar
}

/// What carries the bytes.
pub(super) fn transport(comm: &Communicator) -> String {
    if comm.size() == 1 { "none" } else { comm.transport_name() }.to_owned()
}

fn row<T: Element>(
    comm: &Communicator,
    args: &CollectiveArgs,
    count: usize,
    mut times: Vec<f64>,
    how: How,
    wrong: Option<u64>,
) -> Row {
    times.sort_by(f64::total_cmp);
    let bench = args.bench();
    let size_bytes = (count * size_of::<T>()) as u64;
    let time_us = times.iter().sum::<f64>() / times.len().max(1) as f64;
    let p50_us = percentile(&times, 0.5);
    // 1 byte per microsecond is 1 MB/s. The median carries the bandwidth: one stall of a shared machine is no speed.
    let algbw_gb_s = if p50_us > 0.0 { size_bytes as f64 / p50_us / 1e3 } else { 0.0 };
    Row {
        collective: bench.name(),
        ranks: comm.size(),
        size_bytes,
        count: count as u64,
        dtype: T::DTYPE.to_string(),
        redop: if bench.reduces() { args.op.to_string() } else { "none".to_owned() },
        root: if bench.is_rooted() { i64::from(args.root) } else { -1 },
        iterations: times.len() as u64,
        time_us,
        algbw_gb_s,
        busbw_gb_s: algbw_gb_s * bench.bus_factor(comm.size()),
        wrong,
        min_us: percentile(&times, 0.0),
        p50_us,
        p99_us: percentile(&times, 0.99),
        algorithm: how.algorithm,
        slice_bytes: how.slice_bytes,
        transport: how.transport,
    }
}
