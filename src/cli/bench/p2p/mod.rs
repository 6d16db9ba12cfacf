//! `ringway bench p2p`: latency and bandwidth of messages between two ranks, in the manner of perftest.
//!
//! - [`args`]: the flags. [`pair`]: one size's memory, and the messages over it; [`keyed`]: the same by the rendezvous.
//! - [`table`]: a row of what is printed.

mod args;
mod keyed;
mod pair;
mod table;

pub(crate) use args::P2pArgs;

use super::measure::{self, BenchError as Failed};
use super::printer::Printout;
use super::{BenchError, ended, launch_ranks};
use args::{Measure, Op};
use keyed::Keyed;
use pair::{Exchange, Pair};
use ringway::rendezvous::{Rendezvous, StepId};
use ringway::{Communicator, Launch, ReduceOp, Settings};
use ringway_control::launch::Launcher;
use std::process::ExitCode;
use std::time::Duration;
use table::{Bandwidth, Latency, Row};

/// Messages have two ends.
const RANKS: u32 = 2;
/// How long a rank polls before it sleeps, where it is to poll: longer than anything here takes, but no tighter a loop
/// than need be when the other rank has died.
const POLL: Duration = Duration::from_secs(10);
/// The most round trips, and the most messages one way, when they are chosen by time.
const MOST_ROUND_TRIPS: u64 = 5000;
const MOST_MESSAGES: u64 = 100_000;

/// Measures, as one of the launcher's two ranks, or by starting two ranks.
///
/// # Errors
/// When the benchmark could not begin. A failed call is an exit code.
pub(super) fn run(args: &P2pArgs) -> Result<ExitCode, BenchError> {
    args.sweep.check_flags().map_err(BenchError::Flags)?;
    let mut settings = Settings::from_env()?;
    let launch = Launch::from_env()?;
    if launch.found_by == Launcher::Single {
        return launch_ranks(RANKS);
    }
    if launch.world_size != RANKS {
        return Err(BenchError::Flags(format!(
            "p2p is between two ranks, and the launcher ({}) started {}",
            launch.found_by, launch.world_size
        )));
    }
    if args.op == Op::Write {
        // Then no message travels before the receiver has said where it goes.
        settings.eager_bytes = Some(0);
    }
    if !args.events && args.op != Op::Tensor && settings.spin.is_none() {
        settings.spin = Some(POLL);
    }
    let comm = Communicator::join(&launch, &settings)?;
    Ok(ended(&comm, "bench", sweep(&comm, args)))
}

/// Runs the whole sweep. Returns how many bytes were wrong on either rank.
fn sweep(comm: &Communicator, args: &P2pArgs) -> Result<u64, Failed> {
    let ranks = measure::who(comm, "")?;
    let title = format!(
        "ringway {} p2p {}: rank 0 to rank 1, window {}, {}, {}",
        env!("CARGO_PKG_VERSION"),
        args.op.name(),
        args.window,
        if args.bidirectional { "both ways" } else { "one way" },
        args.sweep.title(),
    );
    let mut printout = Printout::start(comm, args.sweep.format(), title, ranks);
    let mut wrong = 0;
    let tensors = (args.op == Op::Tensor).then(|| Rendezvous::over(comm)).transpose();
    let tensors = tensors.map_err(|error| Failed::Tensors(Box::new(error)))?;
    let mut step = StepId(0);
    for bytes in args.sweep.size_list() {
        if !printout.goes_on()? {
            break;
        }
        let mut pair: Box<dyn Exchange + '_> = match &tensors {
            Some(tensors) => Box::new(Keyed::new(comm, tensors, &mut step, bytes, args.window)?),
            None => Box::new(Pair::new(comm, args.op, bytes, args.window)?),
        };
        let row = one(comm, args, bytes, &mut *pair)?;
        wrong += row.wrong.unwrap_or(0);
        printout.row(row);
    }
    printout.finish()?;
    Ok(wrong)
}

/// Measures one size, between two checks. The times are rank 0's.
fn one(comm: &Communicator, args: &P2pArgs, bytes: u64, pair: &mut dyn Exchange) -> Result<Row, Failed> {
    let before = check(comm, args, pair)?;
    let latency = args.measures(Measure::Latency).then(|| latency(comm, args, pair)).transpose()?;
    let bandwidth = args.measures(Measure::Bandwidth).then(|| bandwidth(comm, args, pair)).transpose()?;
    let after = check(comm, args, pair)?;
    Ok(Row {
        op: args.op.name(),
        size_bytes: bytes,
        latency,
        bandwidth,
        wrong: before.zip(after).map(|(before, after)| before + after),
        transport: measure::transport(comm),
    })
}

fn check(comm: &Communicator, args: &P2pArgs, pair: &mut dyn Exchange) -> Result<Option<u64>, Failed> {
    if !args.sweep.checks() {
        return Ok(None);
    }
    let mut wrong = [pair.wrong()?];
    comm.all_reduce(&mut wrong, ReduceOp::Sum)?;
    Ok(Some(wrong[0]))
}

fn latency(comm: &Communicator, args: &P2pArgs, pair: &mut dyn Exchange) -> Result<Latency, Failed> {
    let warm = args.sweep.warmup_iters.max(1);
    let each: Duration = pair.round_trips(warm)?.iter().sum::<Duration>() / warm as u32;
    let round_trips = measure::agree(comm, args.sweep.iterations(each, MOST_ROUND_TRIPS))?;
    let times = pair.round_trips(round_trips)?;
    Ok(Latency::of(times.iter().map(|time| time.as_secs_f64() * 1e6 / 2.0).collect()))
}

fn bandwidth(comm: &Communicator, args: &P2pArgs, pair: &mut dyn Exchange) -> Result<Bandwidth, Failed> {
    let window = pair.window();
    let warm = args.sweep.warmup_iters.max(window);
    let each = pair.stream(warm, args.bidirectional)? / warm as u32;
    let messages = measure::agree(comm, args.sweep.iterations(each, MOST_MESSAGES).max(window))?;
    let took = pair.stream(messages, args.bidirectional)?;
    let directions = 1 + u64::from(args.bidirectional);
    Ok(Bandwidth::of(messages, directions, window, pair.bytes(), took))
}
