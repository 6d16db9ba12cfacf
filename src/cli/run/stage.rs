//! Hidden subcommands: what `ringway run` starts itself again as, so that nothing outlives it.
//!
//! - I1: a rank's process dies with the launcher (`PR_SET_PDEATHSIG`), also when that is killed with SIGKILL. The
//!   request must be made in the child, between fork and the program; running this stage there needs no unsafe
//!   code. It holds for the rank's own process only.
//! - I2: what ranks start in their process group is ended by the guard, a process outside of those groups that
//!   reads a pipe which the launcher holds open and, at its end, kills every group that is still on its list. A
//!   rank puts its own group on the list before it becomes its program, so there is no moment at which the program
//!   runs and the guard does not know of it.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, BufRead, ErrorKind, PipeWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use clap::Subcommand;
use rustix::process::{Pid, Signal, getpid, getppid, kill_process_group, set_parent_process_death_signal};

use crate::cli::{EXIT_OWN_FAILURE, say};

/// This program's own file, also when it was replaced since it started.
pub(super) const OWN_PROGRAM: &str = "/proc/self/exe";

/// The exit code of a program that is there and cannot be run, as in shells.
const EXIT_CANNOT_RUN: u8 = 126;
/// The exit code of a program that is not there, as in shells.
const EXIT_NOT_FOUND: u8 = 127;

/// What the launcher starts itself again as.
#[derive(Subcommand)]
pub(crate) enum Stage {
    /// Dies with the launcher, and becomes the program of a rank.
    #[command(name = "__rank", hide = true)]
    Rank {
        /// The launcher's process.
        #[arg(long)]
        launcher: i32,
        /// The launcher's descriptor of the guard's pipe.
        #[arg(long)]
        guard: i32,
        /// Which rank this is.
        #[arg(long)]
        rank: u32,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        program: Vec<OsString>,
    },
    /// Ends what ranks started when the launcher is gone.
    #[command(name = "__guard", hide = true)]
    Guard,
}

impl Stage {
    pub(crate) fn run(self) -> ExitCode {
        match self {
            Stage::Rank { launcher, guard, rank, program } => match tie_to(launcher, guard) {
                Ok(()) => become_program(rank, &program),
                Err(error) => {
                    say(&format!("run: rank {rank} cannot be tied to the launcher: {error}"));
                    ExitCode::from(EXIT_OWN_FAILURE)
                }
            },
            Stage::Guard => guard(io::stdin().lock()),
        }
    }
}

/// I1 and I2.
fn tie_to(launcher: i32, guard: i32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The launcher may have died before the request was made.
    if getppid().map(Pid::as_raw_nonzero).map(i32::from) != Some(launcher) {
        return Err(io::Error::other("the launcher is gone"));
    }
    let mut pipe = OpenOptions::new().write(true).open(format!("/proc/{launcher}/fd/{guard}"))?;
    // One write below the size that pipes keep whole: the ranks share the pipe.
    pipe.write_all(format!("+{}\n", getpid()).as_bytes()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => io::Error::other(
            "the launcher's guard, which ends what ranks leave behind, was killed: start the job again",
        ),
        _ => error,
    })
}

/// Returns only when the program could not be started.
fn become_program(rank: u32, program: &[OsString]) -> ExitCode {
    let (program, arguments) = (&program[0], &program[1..]);
    let error = Command::new(program).args(arguments).exec();
    let (code, same_for_all) = match error.kind() {
        ErrorKind::NotFound => (EXIT_NOT_FOUND, true),
        ErrorKind::PermissionDenied => (EXIT_CANNOT_RUN, true),
        _ => (EXIT_CANNOT_RUN, false),
    };
    if rank == 0 || !same_for_all {
        let advice = match error.kind() {
            ErrorKind::NotFound => "; give a path, such as ./program, or a name in PATH",
            ErrorKind::PermissionDenied => "; is it executable (chmod +x)?",
            _ => "",
        };
        say(&format!("run: cannot start {}: {error}{advice}", program.display()));
    }
    ExitCode::from(code)
}

/// I2: `+GROUP` and `-GROUP` lines until the launcher is gone.
fn guard(lines: impl BufRead) -> ExitCode {
    let mut groups = HashSet::new();
    for line in lines.lines().map_while(Result::ok) {
        let group = line.get(1..).and_then(|digits| digits.parse::<i32>().ok()).and_then(Pid::from_raw);
        match (line.as_bytes().first(), group) {
            (Some(b'+'), Some(group)) => drop(groups.insert(group)),
            (Some(b'-'), Some(group)) => drop(groups.remove(&group)),
            _ => say(&format!("run: the guard was told {line:?}")),
        }
    }
    for group in groups {
        // The group may have gone by itself meanwhile.
        let _ = kill_process_group(group, Signal::KILL);
    }
    ExitCode::SUCCESS
}

/// The launcher's side of the guard.
pub(super) struct Guard {
    pipe: PipeWriter,
}

impl Guard {
    /// Starts the guard, in a process group of its own, so that what is sent to the launcher's does not reach it.
    pub(super) fn start() -> io::Result<Self> {
        let (reader, pipe) = io::pipe()?;
        Command::new(OWN_PROGRAM)
            .arg("__guard")
            .stdin(reader)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Guard { pipe })
    }

    /// The launcher's descriptor of the pipe, which ranks open by its number to put themselves on the list.
    pub(super) fn descriptor(&self) -> i32 {
        self.pipe.as_raw_fd()
    }

    /// Takes a group that has ended off the list: its number may be used again.
    pub(super) fn remove(&mut self, group: Pid) {
        // A guard that was killed cannot be told; the ranks themselves still die with the launcher (I1).
        let _ = self.pipe.write_all(format!("-{group}\n").as_bytes());
    }
}
