//! The command line: one file or folder per subcommand, each with an `Args` and a `run`.

mod bench;
mod completions;
mod doctor;
mod keep;
mod run;
mod security;
mod serve;
mod signals;
mod simulate;
mod status;
mod topo;

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What the program itself failing looks like, as in `timeout` and `docker run`; 126 and 127 stand for a program
/// that cannot be run or found, everything else is a rank's own exit code.
const EXIT_OWN_FAILURE: u8 = 125;

/// Moves tensors between the machines of a cluster.
#[derive(Parser)]
#[command(name = "ringway", version, about, max_term_width = 110)]
#[command(after_help = "Examples:
  ringway run -n 4 -- ./train               four ranks on this host, one command
  ringway bench all-reduce -n 4             a verified table of sizes
  ringway run -n 2 --tag -- python x.py     every line of output marked by its rank
  ringway serve --cluster c.json --job worker --task 0
  ringway status                            what a running job does, and who waits for whom
  ringway doctor                            what this machine offers, and what is in the way
  ringway topo -o machine.svg               where ranks would go on it, and why, as a picture
  ringway tune -n 4 -o tuning.txt           the quickest algorithm by size, measured
  ringway simulate --ranks 8192 --hosts 1024 --size 1G
                                            what a collective would take there, by algorithm

Every setting is an environment variable, RINGWAY_...; ringway doctor --settings lists them.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The whole command line as users see it; completions are made from this.
#[derive(Parser)]
#[command(name = "ringway")]
struct VisibleCli {
    #[command(subcommand)]
    _command: Visible,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Visible(Box<Visible>),
    #[command(flatten)]
    Stage(run::Stage),
}

#[derive(Subcommand)]
enum Visible {
    Run(run::Args),
    Bench(bench::Args),
    Serve(serve::Args),
    Status(status::Args),
    Doctor(doctor::Args),
    Topo(topo::Args),
    Tune(bench::tune::Args),
    Simulate(simulate::Args),
    Completions(completions::Args),
}

/// Runs the program; the exit code is what its subcommand says.
pub(crate) fn main() -> ExitCode {
    let visible = match Cli::parse().command {
        Command::Visible(visible) => *visible,
        Command::Stage(stage) => return stage.run(),
    };
    match visible {
        Visible::Run(args) => done("run", run::run(&args)),
        Visible::Bench(args) => done("bench", bench::run(&args)),
        Visible::Serve(args) => done("serve", serve::run(&args)),
        Visible::Status(args) => done("status", status::run(&args)),
        Visible::Doctor(args) => done("doctor", doctor::run(&args)),
        Visible::Topo(args) => done("topo", topo::run(&args)),
        Visible::Tune(args) => done("tune", bench::tune::run(&args)),
        Visible::Simulate(args) => done("simulate", simulate::run(&args)),
        Visible::Completions(args) => done("completions", completions::run(&args)),
    }
}

/// The exit code of a subcommand, its error printed.
fn done<E: Display>(name: &str, result: Result<ExitCode, E>) -> ExitCode {
    result.unwrap_or_else(|error| {
        say(&format!("{name}: {error}"));
        ExitCode::from(EXIT_OWN_FAILURE)
    })
}

/// Says something on standard error in one write, so that it is not mixed with what the ranks say.
fn say(what: &str) {
    // When standard error is gone there is nobody to tell.
    let _ = std::io::stderr().write_all(format!("ringway {what}\n").as_bytes());
}
