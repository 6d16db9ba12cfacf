//! The coordination service is killed under ranks that use it all the time: it is started again with its state file, or, over
//! etcd, another candidate goes on. No rank notices anything but the time that it takes.
//!
//! The long form, with 100 kills of the leader:
//! `RINGWAY_TEST_KILLS=100 cargo test --test cli failover -- --nocapture`

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::ports::free_ports;
use crate::process::{Folder, command, example, lines, ringway};

const RANKS: u32 = 4;
/// A test that waits longer has failed.
const LIMIT: Duration = Duration::from_secs(60);
/// A new leader is to be there within this time; checked in the long form, where nothing else is under test.
const TAKEOVER: Duration = Duration::from_secs(5);

/// A process that ends with the test, whose lines go to a channel with its name.
struct Running {
    child: Child,
}

impl Running {
    fn start(mut command: Command, name: usize, to: &Sender<(usize, String)>) -> Running {
        let mut child = command.spawn().expect("the program starts");
        for lines in [lines(child.stdout.take().unwrap()), lines(child.stderr.take().unwrap())] {
            let to = to.clone();
            std::thread::spawn(move || lines.iter().all(|line| to.send((name, line)).is_ok()));
        }
        Running { child }
    }

    fn kill(&mut self) {
        self.child.kill().expect("it is there");
        self.child.wait().expect("it can be waited for");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The ranks of a job, and what they say.
struct Ranks {
    ranks: Vec<Running>,
    said: Receiver<(usize, String)>,
    round: u64,
}

impl Ranks {
    /// Starts them, to run until `stop` is there.
    fn start(coordinator: &str, stop: &str) -> Ranks {
        let (to, said) = channel();
        let start = |rank: u32| {
            let mut command = command(example("failover"));
            command
                .args(["0", stop])
                .env("RINGWAY_RANK", rank.to_string())
                .env("RINGWAY_WORLD_SIZE", RANKS.to_string())
                .env("RINGWAY_COORDINATOR", coordinator)
                .env("RINGWAY_COORDINATOR_BY", "outside")
                .env("RINGWAY_HEARTBEAT_TIMEOUT_MS", "10000");
            Running::start(command, rank as usize, &to)
        };
        Ranks { ranks: (0..RANKS).map(start).collect(), said, round: 0 }
    }

    /// Waits until so many more rounds have ended. Whatever else a rank says is an error of it.
    fn go_on(&mut self, rounds: u64) {
        let goal = self.round + rounds;
        while self.round < goal {
            let (rank, line) = self.said.recv_timeout(LIMIT).expect("the ranks go on");
            match line.strip_prefix("round ").and_then(|round| round.parse().ok()) {
                Some(round) => self.round = round,
                None => panic!("rank {rank} after round {}: {line}", self.round),
            }
        }
    }

    /// Waits until all have ended, and gives the rounds that each of them made.
    fn end(mut self) -> u64 {
        let (mut done, mut ended) = (0, None);
        while let Ok((rank, line)) = self.said.recv_timeout(LIMIT) {
            if line.starts_with("round ") {
                continue;
            }
            let words = line.strip_prefix(&format!("rank {rank} is done after "));
            let rounds = words.and_then(|rest| rest.strip_suffix(" rounds"));
            let rounds: u64 = rounds.unwrap_or_else(|| panic!("rank {rank}: {line}")).parse().unwrap();
            assert_eq!(*ended.get_or_insert(rounds), rounds, "rank {rank} made as many as the others");
            done += 1;
            if done == RANKS {
                break;
            }
        }
        assert_eq!(done, RANKS, "all ranks came to the end");
        for running in &mut self.ranks {
            assert!(running.child.wait().expect("it can be waited for").success());
        }
        ended.expect("at least one rank")
    }
}

#[test]
fn a_service_that_is_killed_and_started_again_goes_on_from_its_state_file() {
    let folder = Folder::new("state");
    let (state, stop) = (folder.path_of("job.state"), folder.path_of("stop"));
    let address = format!("127.0.0.1:{}", free_ports(1));
    let (to, said) = channel();
    let serve = || {
        let mut command = ringway(&["serve", "--ranks", "4", "--bind", &address, "--state", &state]);
        command.env("RINGWAY_HEARTBEAT_TIMEOUT_MS", "10000");
        let served = Running::start(command, 0, &to);
        let (_, line) = said.recv_timeout(LIMIT).expect("it serves");
        assert!(line.contains(&format!("kept in {state}, at {address};")), "{line}");
        served
    };
    let mut service = serve();
    let elsewhere = format!("127.0.0.1:{}", free_ports(1));
    let second =
        ringway(&["serve", "--ranks", "4", "--bind", &elsewhere, "--state", &state]).output().unwrap();
    let words = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(second.status.code() == Some(125) && words.contains("in use by another process"), "{words}");

    let mut ranks = Ranks::start(&address, &stop);
    ranks.go_on(3);
    for _ in 0..3 {
        service.kill();
        service = serve();
        ranks.go_on(3);
    }
    // One of another cluster is refused, and says so.
    service.kill();
    let other = ringway(&["serve", "--ranks", "5", "--bind", &address, "--state", &state]).output().unwrap();
    let words = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(other.status.code() == Some(125) && words.contains("worker with 4 tasks"), "{words}");
    let _service = serve();
    ranks.go_on(1);
    std::fs::write(&stop, "").unwrap();
    assert!(ranks.end() > 10);
}

/// etcd's server, or why there is none here.
pub(crate) fn etcd() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    let unpacked = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("etcd").join("usr/bin");
    let folders = std::env::split_paths(&paths).chain([unpacked]);
    let found = folders.map(|folder| folder.join("etcd")).find(|path| path.exists());
    if found.is_none() {
        eprintln!("SKIPPED: no etcd on the PATH, and none that tests/etcd.sh has unpacked");
    }
    found
}

/// A member of etcd's cluster.
struct Member {
    port: u16,
    _process: Running,
}

/// Three members of etcd.
fn members(etcd: &Path, folder: &Folder) -> Vec<Member> {
    let (to, said) = channel();
    // What it says is of no use here, and must be read.
    std::thread::spawn(move || said.iter().for_each(drop));
    let ports: Vec<(u16, u16)> = (0..3).map(|_| (free_ports(1), free_ports(1))).collect();
    let peer = |at: usize| format!("http://127.0.0.1:{}", ports[at].1);
    let all = (0..3).map(|at| format!("m{at}={}", peer(at))).collect::<Vec<_>>().join(",");
    let start = |at: usize| {
        let client = format!("http://127.0.0.1:{}", ports[at].0);
        let mut command = Command::new(etcd);
        command
            .args(["--name", &format!("m{at}"), "--data-dir", &folder.path_of(&format!("m{at}"))])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer(at), "--initial-advertise-peer-urls", &peer(at)])
            .args(["--initial-cluster", &all, "--initial-cluster-state", "new"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Member { port: ports[at].0, _process: Running::start(command, at, &to) }
    };
    (0..3).map(start).collect()
}

/// A way to one member that can be cut.
struct Wire {
    port: u16,
    open: Arc<Mutex<Vec<TcpStream>>>,
    cut: Arc<Mutex<bool>>,
}

impl Wire {
    fn to(port: u16) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let wire =
            Wire { port: listener.local_addr().unwrap().port(), open: Arc::default(), cut: Arc::default() };
        let (open, cut) = (wire.open.clone(), wire.cut.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let mut all = open.lock().unwrap();
                for (mut from, mut to) in
                    [(near.try_clone(), far.try_clone()), (far.try_clone(), near.try_clone())]
                        .map(|(from, to)| (from.unwrap(), to.unwrap()))
                {
                    let cut = cut.clone();
                    std::thread::spawn(move || {
                        let mut bytes = [0; 16 << 10];
                        while let Ok(got @ 1..) = from.read(&mut bytes) {
                            // Nothing comes through, and nobody is told.
                            if !*cut.lock().unwrap() && to.write_all(&bytes[..got]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                all.extend([near, far]);
            }
        });
        wire
    }

    fn cut(&self, cut: bool) {
        *self.cut.lock().unwrap() = cut;
        if !cut {
            for stream in self.open.lock().unwrap().drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

/// Candidates, and what they say of who leads.
struct Candidates {
    all: Vec<(String, String, Running)>,
    to: Sender<(usize, String)>,
    said: Receiver<(usize, String)>,
}

impl Candidates {
    /// One at each of these stores.
    fn start(stores: &[String]) -> Candidates {
        let (to, said) = channel();
        let start = |(at, store): (usize, &String)| {
            let address = format!("127.0.0.1:{}", free_ports(1));
            let running = Running::start(candidate(&address, store), at, &to);
            (address, store.clone(), running)
        };
        Candidates { all: stores.iter().enumerate().map(start).collect(), to: to.clone(), said }
    }

    fn addresses(&self) -> String {
        self.all.iter().map(|(address, ..)| address.as_str()).collect::<Vec<_>>().join(",")
    }

    /// Waits until one says this, and tells which.
    fn who(&self, says: &str) -> usize {
        let end = Instant::now() + LIMIT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let (at, line) = self.said.recv_timeout(left).unwrap_or_else(|_| panic!("nobody says: {says}"));
            if line.contains(says) {
                return at;
            }
        }
    }

    /// Who leads by all that was said so far: on a busy machine a lease may end by itself.
    fn catch_up(&self, leader: &mut usize) {
        while let Ok((at, line)) = self.said.try_recv() {
            if line.contains("leads, from revision") {
                *leader = at;
            }
        }
    }

    fn kill(&mut self, at: usize) {
        self.all[at].2.kill();
    }

    fn start_again(&mut self, at: usize) {
        let (address, store, running) = &mut self.all[at];
        *running = Running::start(candidate(address, store), at, &self.to);
    }
}

fn candidate(address: &str, store: &str) -> Command {
    let mut command = ringway(&["serve", "--ranks", "4", "--bind", address, "--store", store]);
    command.env("RINGWAY_LOG", "info").env("RINGWAY_HEARTBEAT_TIMEOUT_MS", "10000");
    command
}

#[test]
fn over_etcd_another_candidate_goes_on_when_the_leader_is_killed() {
    let Some(etcd) = etcd() else { return };
    let kills: Option<u32> = std::env::var("RINGWAY_TEST_KILLS").ok().map(|kills| kills.parse().unwrap());
    let folder = Folder::new("failover");
    let mut members = members(&etcd, &folder);
    let wire = Wire::to(members[0].port);
    let all = members.iter().map(|member| format!("127.0.0.1:{}", member.port)).collect::<Vec<_>>().join(",");
    // The first candidate reaches etcd by a way that can be cut.
    let stores =
        [format!("etcd://127.0.0.1:{}", wire.port), format!("etcd://{all}"), format!("etcd://{all}")];
    let mut candidates = Candidates::start(&stores);
    let mut leader = candidates.who("leads, from revision");
    let stop = folder.path_of("stop");
    let mut ranks = Ranks::start(&candidates.addresses(), &stop);
    ranks.go_on(3);

    let mut longest = Duration::ZERO;
    for kill in 0..kills.unwrap_or(5) {
        candidates.catch_up(&mut leader);
        candidates.kill(leader);
        let killed = Instant::now();
        let next = candidates.who("leads, from revision");
        let took = killed.elapsed();
        longest = longest.max(took);
        assert!(next != leader && (kills.is_none() || took < TAKEOVER), "kill {kill}: {took:?}");
        candidates.start_again(leader);
        leader = next;
        ranks.go_on(2);
    }
    // A leader that does not reach etcd steps down, and another leads. To have the first one lead, the others go.
    candidates.catch_up(&mut leader);
    if leader != 0 {
        for other in [1, 2] {
            candidates.kill(other);
        }
        while candidates.who("leads, from revision") != 0 {}
        for other in [1, 2] {
            candidates.start_again(other);
        }
        ranks.go_on(2);
    }
    wire.cut(true);
    while candidates.who("leads no more") != 0 {}
    while candidates.who("leads, from revision") == 0 {}
    ranks.go_on(2);
    wire.cut(false);
    ranks.go_on(2);
    // Without one of etcd's members the others are a majority.
    drop(members.pop());
    ranks.go_on(3);
    std::fs::write(&stop, "").unwrap();
    let rounds = ranks.end();
    println!(
        "{} kills of the leader, {rounds} rounds: the next led after {longest:.1?} at most",
        kills.unwrap_or(5)
    );
}
