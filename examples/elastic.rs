//! A sum that is counted on while ranks die and others take their places.
//!
//! ```sh
//! cargo build --release --examples --bins
//! target/release/ringway run -n 4 --min-ranks 2 --restarts 10 -- target/release/examples/elastic 10000
//! kill -9 PID                                   # of any rank, as often as you like
//! ```
//!
//! Each step shares its items out over the ranks that are there, sums over all ranks, and adds the sum to a total. Which ranks
//! there are must not show in it: every rank checks every sum, and the total at the end. It ends after so many steps, or, of
//! 0, when the file that is named is there; and after the step in which rank 0 hears that a rank was told to end by SIGTERM.
#![forbid(unsafe_code)]

use ringway::elastic::{self, Progress, Turn};
use ringway::{CollectiveError, Communicator, ReduceOp};
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What a rank that was told to end takes to be its time.
const GRACE: Duration = Duration::from_secs(30);
/// Items of one step.
const ITEMS: u64 = 1000;

/// The work, as far as it has come.
#[derive(Default)]
struct Count {
    step: u64,
    total: u64,
    /// A sum that was wrong.
    wrong: Option<String>,
}

impl Progress for Count {
    fn share(&mut self, comm: &Communicator) -> Result<(), CollectiveError> {
        let mut state = [self.step, self.total];
        comm.broadcast(&mut state, 0)?;
        [self.step, self.total] = state;
        say(&format!(
            "generation {}: rank {} of {} (pid {}), {} carried over, from step {}",
            comm.generation(),
            comm.rank(),
            comm.size(),
            std::process::id(),
            comm.carried(),
            self.step
        ));
        Ok(())
    }
}

/// One line in one write: ranks share the output.
fn say(line: &str) {
    // Who does not listen any more is told nothing.
    let _ = std::io::stdout().write_all(format!("{line}\n").as_bytes());
}

fn item(step: u64, i: u64) -> u64 {
    (step + 1) * (i + 1)
}

fn sum_of(step: u64) -> u64 {
    (step + 1) * (ITEMS * (ITEMS + 1) / 2)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(steps) = args.first().and_then(|steps| steps.parse().ok()) else {
        eprintln!("usage: elastic STEPS [FILE]");
        return ExitCode::from(2);
    };
    match work(steps, args.get(1).map(PathBuf::from)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // In one piece.
            let _ = std::io::stderr().write_all(format!("{error}\n").as_bytes());
            ExitCode::FAILURE
        }
    }
}

fn work(steps: u64, until: Option<PathBuf>) -> Result<(), Box<dyn Error>> {
    let mut count = Count::default();
    let comm = Communicator::from_env()?;
    let (told, heard) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, told.clone())?;
    let hears = heard.clone();
    comm.world()
        .agent()
        .ok_or("this process has left its job")?
        .on_preemption(move |_| hears.store(true, Ordering::Release));
    let comm = elastic::run(comm, &mut count, |comm, count| {
        if told.swap(false, Ordering::AcqRel)
            && let Some(Err(error)) = comm.world().agent().map(|agent| agent.announce_preemption(GRACE))
        {
            say(&format!("the others do not hear of this rank's end: {error}"));
        }
        let (rank, ranks) = (u64::from(comm.rank()), u64::from(comm.size()));
        let mine = (0..ITEMS).filter(|i| i % ranks == rank).map(|i| item(count.step, i)).sum();
        let over = (steps > 0 && count.step + 1 >= steps)
            || heard.load(Ordering::Acquire)
            || until.as_ref().is_some_and(|file| file.exists());
        // Rank 0's word counts.
        let mut sums: [u64; 2] = [mine, u64::from(over && rank == 0)];
        comm.all_reduce(&mut sums, ReduceOp::Sum)?;
        if sums[0] != sum_of(count.step) {
            count.wrong = Some(format!("step {}: {} instead of {}", count.step, sums[0], sum_of(count.step)));
            return Ok(Turn::Done);
        }
        count.total += sums[0];
        count.step += 1;
        Ok(if sums[1] == 1 { Turn::Done } else { Turn::Again })
    })?;
    let total: u64 = (0..count.step).map(sum_of).sum();
    if let Some(wrong) = count.wrong.or((count.total != total).then(|| format!("a total of {}", count.total)))
    {
        return Err(format!("rank {} of {}: {wrong}", comm.rank(), comm.size()).into());
    }
    say(&format!("rank {} of {} is done after {} steps: {total}", comm.rank(), comm.size(), count.step));
    Ok(())
}
