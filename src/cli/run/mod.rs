//! `ringway run -n N -- PROGRAM ...`: starts the ranks of one host, passes signals on, and ends them together.
//!
//! - [`elastic`]: whether a rank that failed is started again (pure).
//! - [`ending`]: when the ranks are told to end, and the exit code (pure).
//! - [`output`]: lines marked with their rank.
//! - [`stage`]: what ties the ranks' lives to the launcher's.
//! - [`ranks`]: the ranks' processes.

mod elastic;
mod ending;
mod output;
mod ranks;
mod stage;

use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::value_parser;
use rustix::process::Signal;

use crate::cli::say;
use crate::cli::security::SecurityArgs;
use crate::cli::signals::{self, Signals};
use elastic::{Elastic, Fate};
use ending::{Ending, Failure, Outcome, Step};
use output::Output;
use ranks::{Job, Plan, Ranks};
use ringway::log::LogError;
use ringway_control::launch::RANK_JOB;
use ringway_control::rpc::serve::{ServeError, Server};
use ringway_control::runtime::start_coordinator;
use ringway_control::settings::{Family, HostPort, Settings, SettingsError};
use ringway_control::window::WindowConfig;
use ringway_control::window::socket::sweep;
use ringway_dataplane::transport::limits::in_words;
use ringway_topology::TaskId;
pub(crate) use stage::Stage;

/// Default of `--grace-ms`.
const DEFAULT_GRACE_MS: u64 = 2000;
/// The most ranks that one host is asked to run.
const MAX_LOCAL_RANKS: i64 = 1024;
/// The most ranks of an elastic job, wherever they run.
pub(super) const MAX_WORLD_RANKS: i64 = 1 << 20;

/// What is passed on to the ranks, and whether it asks them to end.
const FORWARDED: [(Signal, bool); 6] = [
    (Signal::INT, true),
    (Signal::TERM, true),
    (Signal::HUP, true),
    (Signal::QUIT, true),
    (Signal::USR1, false),
    (Signal::USR2, false),
];

/// Run a program as several ranks on this host
///
/// Starts N copies of PROGRAM, tells each its rank through RINGWAY_* variables, and runs the coordination service
/// that they meet at. The first rank that fails ends the others; its exit code becomes this command's (128 plus
/// the number of the signal if it was killed). With --min-ranks the job is elastic: it goes on while that many ranks
/// run, and failed ones are started again as --restarts allows. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed
/// on. Nothing that was started outlives this command.
#[derive(clap::Args)]
#[command(override_usage = "ringway run -n <N> [OPTIONS] [--] <PROGRAM> [ARGUMENTS]...")]
#[command(after_help = "Examples:
  ringway run -n 4 -- ./train --epochs 3
  ringway run -n 4 --tag -- python train.py    every line of output begins with its rank
  ringway run -n 2 --grace-ms 500 -- ./prog    half a second from a failure to SIGTERM
  ringway run -n 4 --min-ranks 2 --restarts 9 -- ./prog    goes on when ranks die, and starts them again

Over several hosts, let Slurm, mpirun or Kubernetes start the ranks: ringway recognises them.

Exit codes: that of the first rank that failed; 125 when ringway itself failed, 126 when
PROGRAM cannot be run, 127 when it is not found.")]
pub(crate) struct Args {
    /// How many ranks
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = value_parser!(u32).range(1..=MAX_LOCAL_RANKS))]
    ranks: u32,
    /// Begin every line of output with the rank that wrote it
    #[arg(long)]
    tag: bool,
    /// How long the other ranks may go on after one has failed, to print their own errors; as long again between
    /// SIGTERM and SIGKILL
    #[arg(long, value_name = "MS", allow_negative_numbers = true, default_value_t = DEFAULT_GRACE_MS, value_parser = value_parser!(u64).range(0..=600_000))]
    grace_ms: u64,
    /// Go on when ranks fail, as long as so many run: an elastic job
    #[arg(long, value_name = "M", value_parser = value_parser!(u32).range(1..=MAX_LOCAL_RANKS))]
    min_ranks: Option<u32>,
    /// Leave room for so many ranks in an elastic job, more than are started here; by default for N
    #[arg(long, value_name = "N", requires = "min_ranks", value_parser = value_parser!(u32).range(1..=MAX_WORLD_RANKS))]
    max_ranks: Option<u32>,
    /// Start ranks of an elastic job again when they fail, so many times in all
    #[arg(long, value_name = "R", requires = "min_ranks", default_value_t = 0)]
    restarts: u32,
    /// Meet at this coordination service instead of one of this command's own; several addresses are candidates
    #[arg(long, value_name = "HOST:PORT,...", value_parser = addresses)]
    coordinator: Option<String>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
    // Last, since its heading would be that of what comes after it.
    #[command(flatten)]
    security: SecurityArgs,
}

impl Args {
    /// Ranks of this host that run `program`, with the usual grace and plain output.
    pub(crate) fn of(ranks: u32, program: Vec<OsString>) -> Args {
        Args {
            ranks,
            tag: false,
            grace_ms: DEFAULT_GRACE_MS,
            min_ranks: None,
            max_ranks: None,
            restarts: 0,
            coordinator: None,
            security: SecurityArgs::default(),
            program,
        }
    }
}

/// Reads the addresses of a coordination service.
fn addresses(given: &str) -> Result<String, String> {
    match given.split(',').find(|address| HostPort::parse(address).is_none()) {
        None => Ok(given.to_owned()),
        Some(wrong) => {
            Err(format!("{wrong:?} is not HOST:PORT; an IPv6 address goes in brackets, as in [::1]:29400"))
        }
    }
}

/// Why the launcher itself failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// A `RINGWAY_*` variable is not allowed.
    #[error("{0}")]
    Settings(#[from] SettingsError),
    /// `RINGWAY_LOG` is wrong.
    #[error("{0}")]
    Log(#[from] LogError),
    /// The coordination service could not be started.
    #[error("{0}")]
    Coordinator(#[from] ServeError),
    /// A rank could not be started.
    #[error(
        "cannot start rank {rank} of {ranks}: {source}; the limits on processes (ulimit -u) and open files (ulimit -n) may be too low"
    )]
    Start {
        /// Which.
        rank: u32,
        /// Of how many.
        ranks: u32,
        /// What the system said.
        source: io::Error,
    },
    /// The limits of an elastic job contradict each other.
    #[error(
        "{least} to {most} ranks, and {ranks} to start: give --min-ranks at most -n, and --max-ranks at least"
    )]
    Limits {
        /// The least.
        least: u32,
        /// The most.
        most: u32,
        /// How many are started.
        ranks: u32,
    },
    /// Something that the system grants unless a limit is too low.
    #[error("cannot {what}: {}", in_words(source))]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// Starts the ranks, waits for them, and returns their exit code.
///
/// # Errors
/// When the settings are not allowed or the ranks cannot be started; a rank's own failure is an exit code.
pub(crate) fn run(args: &Args) -> Result<ExitCode, RunError> {
    let system = |what| move |source| RunError::System { what, source };
    let options = args.security.settings();
    let mut settings = Settings::from_env_and(&options)?;
    ringway::log::start(&settings)?;
    let most = args.max_ranks.unwrap_or(args.ranks);
    if let Some(least) = args.min_ranks.filter(|least| *least > args.ranks || most < args.ranks) {
        return Err(RunError::Limits { least, most, ranks: args.ranks });
    }
    // Before the first rank starts: a signal that comes now must not leave it behind.
    let caught = FORWARDED.map(|(signal, _)| signal).into_iter().chain([Signal::TSTP, Signal::CHILD]);
    let mut signals = Signals::catch(&caught.collect::<Vec<_>>()).map_err(system("receive signals"))?;
    // Processes whose rank has ended become ours, so that their end can be waited for.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| RunError::System { what: "adopt processes of ranks", source: error.into() })?;
    let job = Job::new(&settings).map_err(system("draw random numbers"))?;
    settings.token = Some(job.token.clone());
    let loopback = match settings.socket_family {
        Some(Family::V6) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        _ => IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
    let (server, coordinator) = match &args.coordinator {
        Some(outside) => (None, outside.clone()),
        None => {
            // Behind those of the ranks.
            let window = WindowConfig::new(&settings, "coordinator", &job.id, Some(args.ranks));
            let server = start_coordinator(SocketAddr::new(loopback, 0), most, &settings, window)?;
            let address = server.local_addr().to_string();
            (Some(server), address)
        }
    };
    let (program, tag) = (args.program.as_slice(), args.tag);
    let limits = args.min_ranks.map(|least| (least, most));
    let plan = Plan { program, ranks: args.ranks, limits, tag, job: &job, options: &options, coordinator };
    let mut ranks = Ranks::start(&plan)?;
    let mut outputs = Vec::new();
    let sockets = settings.status.socket.then_some(settings.status.runtime_dir.as_path());
    let notice = Notice { coordinator: server.as_ref(), grace: settings.preemption_grace, sockets };
    let code = wait_for_ranks(args, &plan, (&mut ranks, &mut outputs), notice, &mut signals);
    for output in outputs {
        output.finish();
    }
    Ok(ExitCode::from(code.map_err(system("wait for the ranks"))?))
}

/// Whom the launcher tells what becomes of its ranks, and what it does for those that are gone.
#[derive(Clone, Copy)]
struct Notice<'a> {
    coordinator: Option<&'a Server>,
    grace: Duration,
    /// The folder of status sockets, where ranks have such.
    sockets: Option<&'a Path>,
}

impl Notice<'_> {
    /// Tells the others that a rank has ended, and removes what it could not remove itself.
    fn ended(self, failure: Failure, ranks: u32) {
        if let Some(coordinator) = self.coordinator {
            tell_others(failure, ranks, coordinator);
        }
        if let Some(dir) = self.sockets.filter(|_| !failure.outcome.is_success()) {
            sweep(dir);
        }
    }

    /// Before the signal is passed on: tasks elsewhere hear of it, too.
    fn preempted(self) {
        if let Some(coordinator) = self.coordinator {
            coordinator.announce_preemption(self.grace);
        }
    }
}

/// The launcher's loop: signals, ends of processes, and deadlines, until nothing that was started is left.
fn wait_for_ranks(
    args: &Args,
    plan: &Plan<'_>,
    (ranks, outputs): (&mut Ranks, &mut Vec<Output>),
    notice: Notice<'_>,
    signals: &mut Signals,
) -> io::Result<u8> {
    let coordinator = notice.coordinator;
    let grace = Duration::from_millis(args.grace_ms);
    let start = Instant::now();
    let mut ending = Ending::new(grace);
    let mut elastic = args.min_ranks.map(|least| Elastic::new(least, args.restarts));
    loop {
        read_streams(ranks, outputs)?;
        for (rank, pid, outcome) in ranks.reap()? {
            let failure = Failure { rank, pid, outcome };
            notice.ended(failure, args.ranks);
            let elastic = elastic.as_mut().filter(|_| ending.is_open());
            let fate = elastic.and_then(|elastic| elastic.ended(outcome, ranks.running()));
            if !go_on(fate, failure, plan, ranks)? {
                ending.ended(failure, start.elapsed());
            }
        }
        read_streams(ranks, outputs)?;
        let blamed = |rank| coordinator?.blamed_by(&task(rank)?).map(|cause| cause.index());
        if let Some(failure) = ending.verdict(ranks.running(), start.elapsed(), blamed) {
            report_failure(failure, ranks.running(), args.ranks);
        }
        let mut steps = Vec::new();
        if ranks.running() == 0 {
            if !ranks.any_group_left() {
                return Ok(ending.exit_code());
            }
            steps.extend(ending.ranks_gone(start.elapsed()));
        }
        steps.extend(ending.due(start.elapsed()));
        for step in steps {
            take(step, ranks);
        }
        let timeout = ending.deadline().map(|deadline| deadline.saturating_sub(start.elapsed()));
        for signal in signals.wait(timeout)? {
            if signal == Signal::TERM {
                notice.preempted();
            }
            if let Some(step) = forward(signal, ranks, &mut ending, start) {
                take(step, ranks);
            }
        }
    }
}

/// Reads what new ranks write, where lines are marked.
fn read_streams(ranks: &mut Ranks, outputs: &mut Vec<Output>) -> io::Result<()> {
    let streams = ranks.take_streams();
    if !streams.is_empty() {
        outputs.push(Output::start(streams)?);
    }
    Ok(())
}

/// Has an elastic job go on after a failure. False where it does not.
fn go_on(fate: Option<Fate>, failure: Failure, plan: &Plan<'_>, ranks: &mut Ranks) -> io::Result<bool> {
    let Failure { rank, pid, outcome } = failure;
    let what = format!("run: rank {rank} of {} (pid {pid}) {}", plan.ranks, words(outcome));
    match fate {
        None | Some(Fate::End) => return Ok(false),
        Some(Fate::Restart(left)) => {
            say(&format!("{what}; starting it again, {left} restarts left"));
            ranks.restart(plan, rank)?;
        }
        Some(Fate::Without) => say(&format!("{what}; {} go on", counted(ranks.running(), "rank"))),
    }
    Ok(true)
}

/// Passes a signal on. Returns what follows from it for the ranks' end.
fn forward(signal: Signal, ranks: &Ranks, ending: &mut Ending, start: Instant) -> Option<Step> {
    match signal {
        Signal::CHILD => None,
        Signal::TSTP => {
            ranks.send(Signal::TSTP);
            // Stops this process as its user asked; it goes on after SIGCONT. Should it fail, we were never stopped.
            let _ = signal_hook::low_level::emulate_default_handler(signal.as_raw());
            ranks.send(Signal::CONT);
            None
        }
        other => {
            ranks.send(other);
            let ends = FORWARDED.iter().any(|(signal, ends)| *signal == other && *ends);
            ends.then(|| ending.asked(start.elapsed())).flatten()
        }
    }
}

fn take(step: Step, ranks: &Ranks) {
    if ranks.running() > 0 {
        let (signal, left) = (if step == Step::Kill { "SIGKILL" } else { "SIGTERM" }, ranks.running());
        say(&format!("run: {} still running: sending {signal}", counted(left, "rank")));
    }
    ranks.send(if step == Step::Kill { Signal::KILL } else { Signal::TERM });
    // A stopped process gets SIGTERM only once it goes on.
    ranks.send(Signal::CONT);
}

/// A rank's task of the coordination service.
fn task(rank: u32) -> Option<TaskId> {
    TaskId::new(RANK_JOB, rank).ok()
}

/// The end of a rank, to those that wait for it.
fn tell_others(Failure { rank, pid, outcome }: Failure, ranks: u32, coordinator: &Server) {
    if let Some(task) = task(rank) {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let how = format!("rank {rank} of {ranks} (pid {pid} on host {host}) {}", words(outcome));
        coordinator.process_ended(task, how);
    }
}

fn words(outcome: Outcome) -> String {
    match outcome {
        Outcome::Exited(code) => format!("exited with code {code}"),
        Outcome::Killed(signal) => format!("was killed by {}", signals::name(signal)),
    }
}

fn report_failure(Failure { rank, pid, outcome }: Failure, left: usize, ranks: u32) {
    let how = words(outcome);
    let rest =
        if left == 0 { String::new() } else { format!("; ending the other {}", counted(left, "rank")) };
    say(&format!("run: rank {rank} of {ranks} (pid {pid}) {how}{rest}"));
}

fn counted(n: usize, what: &str) -> String {
    if n == 1 { format!("{n} {what}") } else { format!("{n} {what}s") }
}
