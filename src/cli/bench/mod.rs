//! `ringway bench COLLECTIVE`: measures a collective in the manner of nccl-tests, every element checked; and
//! `ringway bench p2p`: messages between two ranks, in the manner of perftest.
//!
//! - [`args`]: the flags. [`sizes`]: byte counts and sweeps. [`values`]: inputs and what must come out. [`ragged`]: unequal blocks.
//! - [`case`]: one size's memory, call and check. [`measure`]: the sweep. [`table`]: a row of
//!   figures. [`printer`]: prints the rows of any benchmark.
//! - [`device`]: whose memory it is. `gpu`: that of GPUs.
//! - `explain`: the table that choices are made from. [`overlap`]: what is hidden under computation.
//! - [`p2p`]: all of that for messages. [`tune`]: `ringway tune`.

mod args;
mod case;
mod device;
mod explain;
#[cfg(feature = "nccl")]
mod gpu;
mod measure;
mod overlap;
mod p2p;
mod printer;
mod ragged;
mod sizes;
mod table;
pub(crate) mod tune;
mod values;

pub(crate) use args::BenchArgs as Args;
use args::{CollectiveArgs, Messages};
use ringway::{Communicator, Launch, LaunchError, Numerics, Settings, SettingsError, StartError};
use ringway_control::launch::Launcher;
pub(crate) use sizes::parse as size;
use std::process::ExitCode;

/// Ranks that are started on this host when neither `-n` nor a launcher says otherwise.
const DEFAULT_RANKS: u32 = 2;
/// Exit code when a collective failed or an element was wrong.
const EXIT_FAILED: u8 = 1;

/// Why the benchmark could not be run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// A setting is wrong.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The environment does not tell who this process is.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The ranks did not come together.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The flags do not fit each other or the job.
    #[error("{0}")]
    Flags(String),
    /// This program could not be started again as ranks.
    #[error(transparent)]
    Run(#[from] super::run::RunError),
    /// This program's own path is not known.
    #[error("cannot find this program to start it as ranks: {0}")]
    Itself(std::io::Error),
}

/// Measures, as a rank of the launcher's job, or by starting ranks of its own.
///
/// # Errors
/// When the benchmark could not begin. A failed call is an exit code.
pub(crate) fn run(args: &Args) -> Result<ExitCode, BenchError> {
    match &args.messages {
        Some(Messages::P2p(args)) => p2p::run(args),
        None => run_collective(&args.collective),
    }
}

fn run_collective(args: &CollectiveArgs) -> Result<ExitCode, BenchError> {
    args.check_flags().map_err(BenchError::Flags)?;
    let settings = Settings::from_env()?;
    device::check(args.device, &settings)?;
    let launch = Launch::from_env()?;
    let ranks = args.ranks.unwrap_or(DEFAULT_RANKS);
    if launch.found_by == Launcher::Single {
        args.check_root(ranks).map_err(BenchError::Flags)?;
        return launch_ranks(ranks);
    }
    args.check_root(launch.world_size).map_err(BenchError::Flags)?;
    if args.ranks.is_some_and(|n| n != launch.world_size) {
        let (n, size, by) = (ranks, launch.world_size, launch.found_by);
        return Err(BenchError::Flags(format!(
            "-n {n}, but the launcher ({by}) started {size} ranks: leave -n away to use those, or run it without a launcher"
        )));
    }
    let comm = Communicator::join(&launch, &settings)?;
    if args.reproducible {
        comm.set_numerics(Numerics { reproducible: true, ..comm.numerics() });
    }
    if args.overlap {
        let told = overlap::run(&comm, &args.sweep.size_list(), settings.progress);
        return Ok(ended(&comm, "bench", told.map(|()| 0)));
    }
    Ok(ended(&comm, "bench", measure::sweep(&comm, args)))
}

/// The exit code of a rank that found so many elements wrong.
fn ended(comm: &Communicator, command: &str, result: Result<u64, measure::BenchError>) -> ExitCode {
    let why = match result {
        Ok(0) => return ExitCode::SUCCESS,
        Ok(wrong) => format!("{wrong} elements were wrong"),
        Err(error) => error.to_string(),
    };
    super::say(&format!("{command}: rank {}: {why}", comm.rank()));
    ExitCode::from(EXIT_FAILED)
}

/// Starts this same command as ranks on this host.
fn launch_ranks(ranks: u32) -> Result<ExitCode, BenchError> {
    let itself = std::env::current_exe().map_err(BenchError::Itself)?;
    let mut program = vec![itself.into_os_string()];
    // The ranks are told their number by the launcher.
    program.extend(without_ranks(std::env::args_os().skip(1)));
    Ok(super::run::run(&super::run::Args::of(ranks, program))?)
}

/// The arguments without `-n N`, `-nN`, `--ranks N` or `--ranks=N`.
fn without_ranks(args: impl Iterator<Item = std::ffi::OsString>) -> Vec<std::ffi::OsString> {
    let mut kept = Vec::new();
    let mut skip = false;
    for arg in args {
        let text = arg.to_string_lossy();
        let joined = text.starts_with("--ranks=")
            || text
                .strip_prefix("-n")
                .is_some_and(|n| n.strip_prefix('=').unwrap_or(n).parse::<u32>().is_ok());
        if std::mem::take(&mut skip) || joined {
            continue;
        }
        skip = text == "-n" || text == "--ranks";
        if !skip {
            kept.push(arg);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_ranks_is_taken_out_however_it_is_written() {
        for line in [
            "bench x -n 4 -e 8",
            "bench x -n4 -e 8",
            "bench x --ranks 4 -e 8",
            "bench x -e 8 --ranks=4",
            "bench -n=4 x -e 8",
        ] {
            let kept = without_ranks(line.split(' ').map(Into::into));
            assert_eq!(kept, ["bench", "x", "-e", "8"], "{line}");
        }
    }
}
