//! `ringway status`: what a job is doing, who waits for whom, and the flight records of its ranks.
//!
//! - [`find`]: which job, and where its coordination service is.
//! - [`records`]: flight records as files, and as one trace.

mod find;
mod records;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::value_parser;

use find::FindError;
use records::RecordsError;
use ringway_control::core::status::{Look, text};
use ringway_control::rpc::client::status::{LookError, Place, Question, look};
use ringway_control::rpc::credentials::Credentials;
use ringway_control::rpc::tls::TlsError;
use ringway_control::settings::{Settings, SettingsError};

/// Default of `--timeout-ms`.
const DEFAULT_TIMEOUT_MS: u64 = 1000;
/// What clears a terminal and begins at its top.
const CLEAR: &str = "\x1b[H\x1b[2J\x1b[3J";

/// Look at a running job: its members, who waits for whom, how much goes where
///
/// Asks the job's coordination service, and through it every rank. A rank that does not answer is named, and so is the
/// rank behind a wait: the one that others wait for and that waits for nobody. Jobs of this host are found by their
/// status sockets; `nc -U` on one of them shows a single process.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  ringway status                               the job of this user on this host
  ringway status --watch                       again every second
  ringway status --coordinator node1:29400     a job elsewhere; of several candidates, all their addresses
  ringway status --json | jq '.reports[].waits'
  ringway status --dump=records                the flight record of every rank, as files
  ringway status --dump --perfetto trace.json  all of them on one time line, for ui.perfetto.dev
  ringway status --from records --perfetto trace.json
                                               the same from files, as RINGWAY_DUMP_DIR keeps them")]
pub(crate) struct Args {
    /// Where the coordination service is [default: RINGWAY_COORDINATOR, or that of a job on this host]
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    coordinator: Vec<String>,
    /// Which job of this host, by its id or the beginning of it
    #[arg(long, value_name = "ID", conflicts_with = "coordinator")]
    job: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Look again every so many seconds, until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1", value_parser = value_parser!(u64).range(1..=3600), conflicts_with_all = ["dump", "from", "perfetto"])]
    watch: Option<u64>,
    /// Collect the flight records of all ranks, as files in DIR [default: here; none with --perfetto]
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, conflicts_with = "json")]
    dump: Option<Option<PathBuf>>,
    /// Write the flight records as one trace that ui.perfetto.dev opens
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    perfetto: Option<PathBuf>,
    /// Take the flight records of a folder instead of asking
    #[arg(long, value_name = "DIR", requires = "perfetto", conflicts_with_all = ["coordinator", "job", "dump"])]
    from: Option<PathBuf>,
    /// How long the ranks have to answer
    #[arg(long, value_name = "MS", default_value_t = DEFAULT_TIMEOUT_MS, value_parser = value_parser!(u64).range(1..=10_000))]
    timeout_ms: u64,
}

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StatusError {
    /// A `RINGWAY_*` variable is not allowed.
    #[error("{0}")]
    Settings(#[from] SettingsError),
    /// There is no job, or more than one.
    #[error("{0}")]
    Find(#[from] FindError),
    /// The service does not answer.
    #[error("{0}")]
    Look(#[from] LookError),
    /// Flight records cannot be read or written.
    #[error("{0}")]
    Records(#[from] RecordsError),
    /// Standard output is gone.
    #[error("cannot print: {0}")]
    Print(#[from] io::Error),
    /// The files of TLS cannot be used.
    #[error("{0}")]
    Tls(#[from] TlsError),
}

/// Looks, and prints or writes what was found.
///
/// # Errors
/// [`StatusError`].
pub(crate) fn run(args: &Args) -> Result<ExitCode, StatusError> {
    if let (Some(from), Some(to)) = (&args.from, &args.perfetto) {
        let reports = records::read(from)?;
        say_written(records::write_trace(&reports, to)?, reports.len())?;
        return Ok(ExitCode::SUCCESS);
    }
    let settings = Settings::from_env()?;
    let places = match args.coordinator.as_slice() {
        [] => find::coordinator(&settings, args.job.as_deref())?,
        given => given.iter().map(|address| Place::Address(address.trim().to_owned())).collect(),
    };
    let credentials = Credentials::from_settings(&settings)?;
    let flight = args.dump.is_some() || args.perfetto.is_some();
    let question = Question { ranks: true, flight, patience: Duration::from_millis(args.timeout_ms) };
    if flight {
        return collect(args, &settings, ask(&places, question, &credentials)?);
    }
    let Some(every_s) = args.watch else {
        show(args.json, "", &ask(&places, question, &credentials)?)?;
        return Ok(ExitCode::SUCCESS);
    };
    let clear = if io::stdout().is_terminal() && !args.json { CLEAR } else { "" };
    loop {
        show(args.json, clear, &ask(&places, question, &credentials)?)?;
        std::thread::sleep(Duration::from_secs(every_s));
    }
}

/// Asks one place after the other, as of several candidates one leads. Where none tells, what the last says.
fn ask(places: &[Place], question: Question, credentials: &Credentials) -> Result<Look, LookError> {
    let mut told = Err(LookError::Address { address: String::new() });
    for place in places {
        told = look(place, question, credentials);
        if told.is_ok() {
            break;
        }
    }
    told
}

fn show(json: bool, clear: &str, look: &Look) -> io::Result<()> {
    let text = if json { look_as_json(look) } else { text::look(look) };
    let mut stdout = io::stdout().lock();
    // In one piece, so that a watcher sees no half of it.
    stdout.write_all(format!("{clear}{text}").as_bytes())?;
    stdout.flush()
}

/// A line of JSON.
fn look_as_json(look: &Look) -> String {
    serde_json::to_string(look).map_or_else(|error| error.to_string(), |json| json + "\n")
}

/// Writes the flight records that came, and names the ranks that did not answer.
fn collect(args: &Args, settings: &Settings, look: Look) -> Result<ExitCode, StatusError> {
    let dir = match (&args.dump, &args.perfetto) {
        (Some(Some(dir)), _) => Some(dir.clone()),
        (Some(None), None) => Some(PathBuf::from(".")),
        _ => None,
    };
    let silent: Vec<String> = look.silent.iter().map(|task| format!("{}:{}", task.job, task.task)).collect();
    if let Some(dir) = dir {
        for path in records::write_files(&look.reports, &dir, settings)? {
            println(&path.display().to_string())?;
        }
    }
    if let Some(to) = &args.perfetto {
        say_written(records::write_trace(&look.reports, to)?, look.reports.len())?;
    }
    if !silent.is_empty() {
        super::say(&format!("status: no flight record of {}, which did not answer", silent.join(", ")));
    }
    Ok(ExitCode::SUCCESS)
}

fn say_written(path: &std::path::Path, ranks: usize) -> io::Result<()> {
    println(&format!("{}: the flight records of {ranks} ranks; open it in ui.perfetto.dev", path.display()))
}

fn println(line: &str) -> io::Result<()> {
    io::stdout().lock().write_all(format!("{line}\n").as_bytes())
}
