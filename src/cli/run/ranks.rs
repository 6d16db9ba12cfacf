//! The ranks' processes: started all at once, each in a process group of its own.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process_group, test_kill_process_group, wait,
};

use super::RunError;
use super::ending::Outcome;
use super::output::{Stream, To};
use super::stage::{Guard, OWN_PROGRAM};
use ringway_control::random;
use ringway_control::settings::{Secret, Settings};

/// What the ranks of one run share.
pub(super) struct Job {
    /// Its name.
    pub(super) id: String,
    /// What they prove that they belong to it with.
    pub(super) token: Secret,
}

impl Job {
    /// Takes what the user set, and random values for the rest.
    pub(super) fn new(settings: &Settings) -> io::Result<Self> {
        let random: [u8; 24] = random::bytes()?;
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        Ok(Job {
            id: settings.job_id.clone().unwrap_or_else(|| format!("run-{}", hex(&random[..8]))),
            token: settings.token.clone().unwrap_or_else(|| Secret::new(hex(&random[8..]))),
        })
    }
}

/// What is to be started.
pub(super) struct Plan<'a> {
    /// The program and its arguments.
    pub(super) program: &'a [OsString],
    /// How many ranks.
    pub(super) ranks: u32,
    /// The least and the most ranks, of an elastic job.
    pub(super) limits: Option<(u32, u32)>,
    /// Whether their output is marked, hence read by the launcher.
    pub(super) tag: bool,
    /// What they share.
    pub(super) job: &'a Job,
    /// Settings that the launcher was given as options.
    pub(super) options: &'a [(&'static str, OsString)],
    /// Where they meet.
    pub(super) coordinator: String,
}

impl Plan<'_> {
    fn command(&self, rank: u32, guard: &Guard) -> Command {
        let mut command = Command::new(OWN_PROGRAM);
        command
            .arg("__rank")
            .arg(format!("--launcher={}", std::process::id()))
            .arg(format!("--guard={}", guard.descriptor()))
            .arg(format!("--rank={rank}"))
            .arg("--")
            .args(self.program)
            .process_group(0)
            .env("RINGWAY_RANK", rank.to_string())
            .env("RINGWAY_WORLD_SIZE", self.ranks.to_string())
            .env("RINGWAY_LOCAL_RANK", rank.to_string())
            .env("RINGWAY_LOCAL_SIZE", self.ranks.to_string())
            .env("RINGWAY_COORDINATOR", &self.coordinator)
            .env("RINGWAY_COORDINATOR_BY", "outside")
            .env("RINGWAY_JOB_ID", &self.job.id)
            .envs(self.options.iter().map(|(name, value)| (name, value)))
            // Where it was read from a file, its text is passed on.
            .env_remove("RINGWAY_TOKEN_FILE")
            .env("RINGWAY_TOKEN", self.job.token.reveal())
            .stdin(stdin_of(rank));
        if let Some((least, most)) = self.limits {
            command.env("RINGWAY_MIN_RANKS", least.to_string()).env("RINGWAY_MAX_RANKS", most.to_string());
        }
        if self.tag {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        command
    }
}

/// One process of a rank; its process group has the same number.
struct Member {
    rank: u32,
    pid: Pid,
    running: bool,
    group_left: bool,
}

/// The ranks of a run.
pub(super) struct Ranks {
    members: Vec<Member>,
    streams: Vec<Stream>,
    guard: Guard,
}

impl Ranks {
    /// Starts all ranks; when one cannot be started, ends those before it.
    pub(super) fn start(plan: &Plan<'_>) -> Result<Self, RunError> {
        let guard = Guard::start().map_err(|source| RunError::System { what: "start the guard", source })?;
        let mut ranks = Ranks { members: Vec::new(), streams: Vec::new(), guard };
        for rank in 0..plan.ranks {
            let started = plan.command(rank, &ranks.guard).spawn();
            if let Err(source) = started.and_then(|child| ranks.take_over(child, rank, plan.ranks)) {
                ranks.send(Signal::KILL);
                return Err(RunError::Start { rank, ranks: plan.ranks, source });
            }
        }
        Ok(ranks)
    }

    /// Starts a rank again, whose process has ended.
    pub(super) fn restart(&mut self, plan: &Plan<'_>, rank: u32) -> io::Result<()> {
        for member in self.members.iter().filter(|member| member.rank == rank && member.group_left) {
            // What it had started does not go on beside the new one. A group that has ended is no error.
            let _ = kill_process_group(member.pid, Signal::KILL);
        }
        let child = plan.command(rank, &self.guard).spawn()?;
        self.take_over(child, rank, plan.ranks)
    }

    fn take_over(&mut self, mut child: Child, rank: u32, count: u32) -> io::Result<()> {
        let pid = Pid::from_child(&child);
        self.members.push(Member { rank, pid, running: true, group_left: true });
        if let Some(stdin) = child.stdin.take() {
            relay_terminal(stdin)?;
        }
        if let Some(pipe) = child.stdout.take() {
            self.streams.push(Stream::new(pipe.into(), To::Stdout, rank, count)?);
        }
        if let Some(pipe) = child.stderr.take() {
            self.streams.push(Stream::new(pipe.into(), To::Stderr, rank, count)?);
        }
        Ok(())
    }

    /// The streams to be tagged, once.
    pub(super) fn take_streams(&mut self) -> Vec<Stream> {
        std::mem::take(&mut self.streams)
    }

    /// How many ranks have not ended.
    pub(super) fn running(&self) -> usize {
        self.members.iter().filter(|member| member.running).count()
    }

    /// Whether a process is left in the group of any rank.
    pub(super) fn any_group_left(&self) -> bool {
        self.members.iter().any(|member| member.group_left)
    }

    /// Collects the processes that have ended, and returns the ranks among them with their pid.
    pub(super) fn reap(&mut self) -> io::Result<Vec<(u32, i32, Outcome)>> {
        let mut ended = Vec::new();
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    let member = self.members.iter_mut().find(|member| member.pid == pid && member.running);
                    if let (Some(member), Some(outcome)) = (member, outcome(status)) {
                        member.running = false;
                        ended.push((member.rank, pid.as_raw_nonzero().get(), outcome));
                    }
                }
                Ok(None) | Err(rustix::io::Errno::CHILD) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        for member in &mut self.members {
            // An error means that no process is left which this user may signal: nothing more can be done to it.
            if member.group_left && !member.running && test_kill_process_group(member.pid).is_err() {
                member.group_left = false;
                self.guard.remove(member.pid);
            }
        }
        self.members.retain(|member| member.running || member.group_left);
        Ok(ended)
    }

    /// Sends a signal to every group that has a process left.
    pub(super) fn send(&self, signal: Signal) {
        for member in self.members.iter().filter(|member| member.group_left) {
            // A group that ended since the last reap is no error.
            let _ = kill_process_group(member.pid, signal);
        }
    }
}

fn outcome(status: WaitStatus) -> Option<Outcome> {
    let byte = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    let exited = status.exit_status().map(|code| Outcome::Exited(byte(code)));
    exited.or_else(|| status.terminating_signal().map(|signal| Outcome::Killed(byte(signal))))
}

/// Only rank 0 reads the launcher's input. From a terminal it is relayed: the rank is not in the terminal's
/// foreground group, so that reading it itself would stop the rank.
fn stdin_of(rank: u32) -> Stdio {
    match rank {
        0 if io::stdin().is_terminal() => Stdio::piped(),
        0 => Stdio::inherit(),
        _ => Stdio::null(),
    }
}

/// Copies the launcher's input to rank 0 for as long as both are there; the thread ends with the launcher.
fn relay_terminal(mut to: std::process::ChildStdin) -> io::Result<()> {
    let copy = move || drop(io::copy(&mut io::stdin().lock(), &mut to));
    std::thread::Builder::new().name("stdin".to_owned()).spawn(copy).map(drop)
}
