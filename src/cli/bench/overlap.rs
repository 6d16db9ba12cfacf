//! `--overlap`: how much of a started all-reduce is hidden under computation.
//!
//! Three times per size, each the median of some runs: the call by itself (started and waited for), a computation
//! that is made to take as long, and both at once. Hidden is what both at once save, by the shorter of the two. Where started calls
//! are the caller's to move on (`RINGWAY_PROGRESS=caller`), it does that between pieces of the computation.

use super::measure::BenchError;
use super::table::{percentile, time};
use ringway::{Communicator, Progress, ReduceOp};
use std::hint::black_box;
use std::io::Write;
use std::time::Instant;

/// Runs of each, of which the median counts.
const RUNS: usize = 15;
/// Numbers that the computation goes over: they fit a first-level cache.
const NUMBERS: usize = 2048;
/// What a piece of the computation takes, about, after which the caller moves the call on.
const PIECE_US: f64 = 20.0;

/// Prints the table on rank 0.
///
/// # Errors
/// As the calls.
pub(super) fn run(comm: &Communicator, sizes: &[u64], progress: Progress) -> Result<(), BenchError> {
    let piece = (progress == Progress::Caller).then(|| loops_of(PIECE_US));
    let by = match progress {
        Progress::Thread => "by a thread".to_owned(),
        Progress::Caller => format!("by the caller, every {PIECE_US} us"),
    };
    let mut out = std::io::stdout().lock();
    if comm.rank() == 0 {
        writeln!(
            out,
            "# ringway {} all_reduce under computation: {} ranks, {by}",
            env!("CARGO_PKG_VERSION"),
            comm.size()
        )?;
        writeln!(
            out,
            "#       size   call alone  computation         both      hidden\n#        (B)         (us)         (us)         (us)         (%)"
        )?;
    }
    for &bytes in sizes {
        let elements = usize::try_from(bytes.div_ceil(4)).unwrap_or(usize::MAX);
        let alone = median(comm, || both(comm, elements, 0, piece))?;
        let loops = loops_of(alone);
        let computed = median(comm, || {
            compute(loops);
            Ok(())
        })?;
        let together = median(comm, || both(comm, elements, loops, piece))?;
        let hidden = 100.0 * (alone + computed - together) / alone.min(computed);
        if comm.rank() == 0 {
            let [alone, computed, together] = [alone, computed, together].map(time);
            writeln!(
                out,
                "{:>12} {alone:>12} {computed:>12} {together:>12} {hidden:>11.0}",
                elements * size_of::<f32>()
            )?;
        }
    }
    Ok(())
}

/// Starts a call, computes, in pieces of so many loops where the call is the caller's to move on, and waits for it.
fn both(comm: &Communicator, elements: usize, loops: u64, piece: Option<u64>) -> Result<(), BenchError> {
    let handle = comm.all_reduce_start(comm.alloc::<f32>(elements)?, ReduceOp::Sum)?;
    let mut left = loops;
    while let Some(piece) = piece.filter(|_| left > 0) {
        compute(piece.min(left));
        left = left.saturating_sub(piece);
        if !comm.progress()? {
            break;
        }
    }
    compute(left);
    handle.wait()?;
    Ok(())
}

/// So many times over the numbers.
fn compute(loops: u64) {
    let mut numbers = [1.0f32; NUMBERS];
    for _ in 0..loops {
        for number in black_box(&mut numbers) {
            *number = number.mul_add(0.999, 0.001);
        }
    }
}

/// How many loops take about so long.
fn loops_of(us: f64) -> u64 {
    const TRIED: u64 = 200;
    let begun = Instant::now();
    compute(TRIED);
    let each = begun.elapsed().as_secs_f64() * 1e6 / TRIED as f64;
    ((us / each) as u64).max(1)
}

/// The median time of some runs, each as long as on the slowest rank, in microseconds.
fn median(comm: &Communicator, mut run: impl FnMut() -> Result<(), BenchError>) -> Result<f64, BenchError> {
    run()?;
    let mut times = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        comm.barrier()?;
        let begun = Instant::now();
        run()?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    comm.all_reduce(&mut times, ReduceOp::Max)?;
    times.sort_by(f64::total_cmp);
    Ok(percentile(&times, 0.5))
}
