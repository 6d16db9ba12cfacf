//! A network that parts the coordination service from a rank: both ways, one way, for a moment, and healed. Each host is a
//! network namespace; the two are joined by a pair of virtual devices.
//!
//! What is cut is cut silently: a side sends to a hardware address that nobody has. Needs root and iproute2.

use std::process::{Child, Command};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use crate::process::{Folder, command, example, lines, ringway};

/// A test that waits longer has failed.
const LIMIT: Duration = Duration::from_secs(60);
/// The service and its ranks give each other up after this time: longer than a busy machine keeps one of them from running.
const HEARTBEAT_MS: &str = "2500";
/// The same where nobody is to be given up.
const PATIENT_MS: &str = "60000";
/// The hosts: which is which in names and addresses.
const LEADER: usize = 0;
const FAR: usize = 1;

/// Why no namespaces can be made here, if none can.
fn obstacle() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("network namespaces need root".to_owned());
    }
    match Command::new("ip").arg("-V").output() {
        Ok(_) => None,
        Err(error) => Some(format!("no iproute2: {error}")),
    }
}

/// Two hosts with a wire between them.
struct Hosts {
    names: [String; 2],
}

impl Hosts {
    fn new(tag: &str) -> Result<Hosts, String> {
        let names = ["l", "f"].map(|host| format!("rw{}-{tag}{host}", std::process::id()));
        let hosts = Hosts { names };
        for name in &hosts.names {
            ip(&["netns", "add", name])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        let [near, far] = [LEADER, FAR].map(hardware);
        let [leader, other] = &hosts.names;
        ip(&[
            "-n", leader, "link", "add", "wire", "address", &near, "type", "veth", "peer", "name", "wire",
            "netns", other, "address", &far,
        ])?;
        for (at, name) in hosts.names.iter().enumerate() {
            ip(&["-n", name, "addr", "add", &format!("{}/24", address(at)), "dev", "wire"])?;
            ip(&["-n", name, "link", "set", "wire", "up"])?;
            hosts.reach(at, true)?;
        }
        Ok(hosts)
    }

    /// Whether what this host sends arrives.
    fn reach(&self, from: usize, arrives: bool) -> Result<(), String> {
        let to = if arrives { hardware(1 - from) } else { "02:00:00:00:77:ff".to_owned() };
        let peer = address(1 - from);
        ip(&[
            "-n",
            &self.names[from],
            "neigh",
            "replace",
            &peer,
            "lladdr",
            &to,
            "dev",
            "wire",
            "nud",
            "permanent",
        ])
    }

    /// The same command on a host.
    fn on(&self, at: usize, what: &Command) -> Command {
        let mut within = command("ip");
        within.args(["netns", "exec", &self.names[at]]).arg(what.get_program()).args(what.get_args());
        within
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| error.to_string())?;
    let words = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("ip {}: {}", arguments.join(" "), words.trim()))
    }
}

fn hardware(at: usize) -> String {
    format!("02:00:00:00:77:0{}", at + 1)
}

fn address(at: usize) -> String {
    format!("10.77.0.{}", at + 1)
}

/// A process on a host; it ends with the test.
struct Running {
    child: Child,
    said: Receiver<String>,
    errors: Receiver<String>,
}

impl Running {
    fn start(mut command: Command, heartbeat_ms: &str) -> Running {
        // The service listens beyond its host, so whoever takes part says the job's token.
        command
            .env("RINGWAY_TOKEN", "the-token-of-this-job")
            .env("RINGWAY_HEARTBEAT_TIMEOUT_MS", heartbeat_ms);
        let mut child = command.spawn().expect("it starts");
        let (said, errors) = (lines(child.stdout.take().unwrap()), lines(child.stderr.take().unwrap()));
        Running { child, said, errors }
    }

    fn rank(hosts: &Hosts, rank: usize, stop: &str, heartbeat_ms: &str) -> Running {
        let mut program = command(example("elastic"));
        program.args(["0", stop]);
        let mut program = hosts.on(rank, &program);
        program
            .env("RINGWAY_RANK", rank.to_string())
            .env("RINGWAY_WORLD_SIZE", "2")
            .env("RINGWAY_MIN_RANKS", "1")
            .env("RINGWAY_COORDINATOR", format!("{}:29400", address(LEADER)))
            .env("RINGWAY_COORDINATOR_BY", "outside");
        Running::start(program, heartbeat_ms)
    }

    /// Waits for a line with these words.
    fn says(&self, words: &str) -> String {
        loop {
            let line = self.said.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("it never says {words:?}"));
            if line.contains(words) {
                return line;
            }
        }
    }

    /// Waits for the end: whether it was a good one, and what was said of it.
    fn end(mut self) -> (bool, String) {
        let mut words = Vec::new();
        while let Ok(line) = self.errors.recv_timeout(LIMIT) {
            words.push(line);
        }
        (self.child.wait().expect("it can be waited for").success(), words.join("\n"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The service and rank 0 on one host, rank 1 on the other.
struct Job {
    hosts: Hosts,
    _folder: Folder,
    stop: String,
    service: Running,
    near: Running,
    far: Running,
}

impl Job {
    fn start(tag: &str, heartbeat_ms: &str) -> Option<Job> {
        if let Some(why) = obstacle() {
            eprintln!("SKIPPED: {why}");
            return None;
        }
        let hosts = match Hosts::new(tag) {
            Ok(hosts) => hosts,
            Err(why) => {
                eprintln!("SKIPPED: no network namespaces here: {why}");
                return None;
            }
        };
        let folder = Folder::new(&format!("partition-{tag}"));
        let stop = folder.path_of("stop");
        let bind = format!("{}:29400", address(LEADER));
        let serve = hosts.on(LEADER, &ringway(&["serve", "--ranks", "2", "--bind", &bind]));
        let service = Running::start(serve, heartbeat_ms);
        let first = service.errors.recv_timeout(LIMIT).expect("it serves");
        assert!(first.contains("coordination of 2 ranks"), "{first}");
        let [near, far] = [LEADER, FAR].map(|rank| Running::rank(&hosts, rank, &stop, heartbeat_ms));
        for rank in [&near, &far] {
            rank.says("of 2 (pid");
        }
        Some(Job { hosts, _folder: folder, stop, service, near, far })
    }

    /// Cuts these ways, until the far rank is given up: rank 0 goes on alone, the other ends by itself, and once the ways
    /// are healed a new process takes its place. Returns the last words of the old one.
    fn parted(self, ways: &[usize]) -> String {
        let Job { hosts, _folder, stop, service, near, far } = self;
        ways.iter().for_each(|from| hosts.reach(*from, false).unwrap());
        let alone = near.says("of 1 (pid");
        assert!(alone.starts_with("generation 2: rank 0 of 1"), "{alone}");
        let (well, words) = far.end();
        assert!(!well, "without the service nobody goes on: {words}");
        ways.iter().for_each(|from| hosts.reach(*from, true).unwrap());
        let again = Running::rank(&hosts, FAR, &stop, HEARTBEAT_MS);
        for (rank, running) in [&near, &again].into_iter().enumerate() {
            let whole = running.says("of 2 (pid");
            assert!(whole.starts_with(&format!("generation 3: rank {rank} of 2")), "{whole}");
        }
        std::fs::write(&stop, "").unwrap();
        for rank in [near, again] {
            rank.says("is done after");
            let (well, words) = rank.end();
            assert!(well, "{words}");
        }
        drop(service);
        words
    }
}

#[test]
fn a_rank_that_is_cut_off_both_ways_gives_up_and_the_others_go_on() {
    let Some(job) = Job::start("b", HEARTBEAT_MS) else { return };
    let words = job.parted(&[LEADER, FAR]);
    assert!(words.contains("did not answer for") || words.contains("was lost during"), "{words}");
}

#[test]
fn a_rank_that_does_not_hear_the_service_gives_up() {
    let Some(job) = Job::start("h", HEARTBEAT_MS) else { return };
    let words = job.parted(&[LEADER]);
    assert!(words.contains("did not answer for") || words.contains("was lost during"), "{words}");
}

#[test]
fn a_rank_that_the_service_does_not_hear_is_given_up() {
    let Some(job) = Job::start("s", HEARTBEAT_MS) else { return };
    let words = job.parted(&[FAR]);
    assert!(
        words.contains("given this rank up: no heartbeat for") || words.contains("did not answer for"),
        "{words}"
    );
}

/// Silence below the limit costs nothing but time: the same generation goes on to its end.
#[test]
fn a_network_that_heals_in_time_loses_nobody() {
    let Some(job) = Job::start("m", PATIENT_MS) else { return };
    let Job { hosts, _folder, stop, service, near, far } = job;
    [LEADER, FAR].iter().for_each(|from| hosts.reach(*from, false).unwrap());
    // The word of the end is given while nothing goes through, so that the last step needs the network to heal.
    std::fs::write(&stop, "").unwrap();
    [LEADER, FAR].iter().for_each(|from| hosts.reach(*from, true).unwrap());
    for rank in [near, far] {
        rank.says("of 2 is done after");
        let (well, words) = rank.end();
        assert!(well, "{words}");
    }
    drop(service);
}
