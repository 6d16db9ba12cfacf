//! Everything that a stranger can do to the ports of a running job: floods, slow beginnings, declared lengths that nothing
//! follows, random bytes; on the coordination service's port and on those of the ranks' data planes. The job goes on, its
//! results are right, and the memory of its processes stays within a bound.
//!
//! `HOSTILE_SECONDS=600 cargo test --test hostile` does it for longer.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringway::parts::dataplane::transport::seed::Seeded;

/// How long it goes on, without `HOSTILE_SECONDS`.
const SECONDS: u64 = 3;
/// Connections that each attacker holds open.
const HELD: usize = 150;
/// What a process of the job may take while it is attacked.
const LIMIT_KIB: u64 = 512 << 10;
/// Attackers at work.
const ATTACKERS: u64 = 3;

fn noise(random: &mut Seeded, n: usize) -> Vec<u8> {
    (0..n).map(|_| random.next_u64() as u8).collect()
}

/// What is under attack: the job's processes, and the ports that they listen on.
#[derive(Default)]
struct Target {
    ports: Mutex<Vec<u16>>,
    over: AtomicBool,
    /// Connections made, so that a test in which none was fails.
    made: AtomicU64,
}

/// The processes that `root` has started, itself included.
fn family(root: u32) -> BTreeSet<u32> {
    let mut parents = BTreeMap::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // After the name, which is in parentheses: the state, and the parent.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
        parents.extend(parent.map(|parent: u32| (pid, parent)));
    }
    let mut family = BTreeSet::from([root]);
    while let Some(pid) = parents
        .iter()
        .find(|(pid, parent)| family.contains(parent) && !family.contains(pid))
        .map(|(pid, _)| *pid)
    {
        family.insert(pid);
    }
    family
}

/// The TCP ports on which these processes listen on 127.0.0.1.
fn ports(family: &BTreeSet<u32>) -> Vec<u16> {
    let mut inodes = BTreeSet::new();
    for pid in family {
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        for file in files.flatten() {
            let Ok(link) = fs::read_link(file.path()) else { continue };
            let inode = link
                .to_str()
                .and_then(|l| l.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok());
            inodes.extend(inode);
        }
    }
    let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let listening = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?.parse::<u64>().ok()?);
        let is_ours = *state == "0A" && inodes.contains(&inode);
        is_ours.then(|| u16::from_str_radix(local.rsplit(':').next()?, 16).ok()).flatten()
    });
    listening.collect()
}

/// The most memory that a process has had, in KiB.
fn peak_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// A frame of HTTP/2 (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A call of `path` whose message is said to have 1 GiB, of which some bytes come.
fn giant_call(random: &mut Seeded, path: &str) -> Vec<u8> {
    let mut headers = vec![0x83, 0x86];
    for (name, value) in
        [(":path", path), (":authority", "x"), ("content-type", "application/grpc"), ("te", "trailers")]
    {
        // A literal without indexing (RFC 7541, section 6.2.2).
        headers.extend([0x00, name.len() as u8]);
        headers.extend(name.as_bytes());
        headers.push(value.len() as u8);
        headers.extend(value.as_bytes());
    }
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    bytes.extend(frame(1, 4, 1, &headers));
    let mut data = vec![0];
    data.extend((1u32 << 30).to_be_bytes());
    data.extend(noise(random, 2000));
    bytes.extend(frame(0, 0, 1, &data));
    bytes
}

/// What a stranger says, at once or byte by byte.
fn words(random: &mut Seeded) -> Vec<u8> {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    match random.index(8) {
        0 => Vec::new(),
        1 => {
            let n = 1 + random.index(4000);
            noise(random, n)
        }
        2 => giant_call(random, "/tensorflow.CoordinationService/InsertKeyValue"),
        3 => giant_call(random, "/ringway.v1.SessionSetup/Join"),
        // A hello of the data plane, of the right form and of nobody; lengths of 1 GiB after it.
        4 => {
            let mut bytes = b"RWAY\x02\0\x01\0".to_vec();
            bytes.extend(noise(random, 120));
            bytes.extend([3, 0, 0, 0, 0, 0, 0, 0x40].repeat(16));
            bytes
        }
        5 => b"RWAY\x02\0".to_vec(),
        6 => [preface.as_slice(), &frame(1, 0, 1, &noise(random, 300))].concat(),
        // A length of a frame that nothing follows.
        _ => [preface.as_slice(), &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat(),
    }
}

fn attack(target: &Target, seed: u64) {
    let mut random = Seeded::new(seed);
    let mut held: Vec<(TcpStream, Vec<u8>)> = Vec::new();
    while !target.over.load(Ordering::Relaxed) {
        let ports = target.ports.lock().unwrap().clone();
        if ports.is_empty() {
            std::thread::yield_now();
            continue;
        }
        let at = SocketAddr::from(([127, 0, 0, 1], ports[random.index(ports.len())]));
        if let Ok(mut stream) = TcpStream::connect_timeout(&at, Duration::from_secs(1)) {
            target.made.fetch_add(1, Ordering::Relaxed);
            // A failure is the other side's good right.
            let _ = stream.set_nonblocking(true);
            let mut words = words(&mut random);
            match random.index(3) {
                0 => drop(stream.write(&words)),
                1 => {
                    let _ = stream.write(&words);
                    held.push((stream, Vec::new()));
                }
                _ => {
                    words.reverse();
                    held.push((stream, words));
                }
            }
        }
        // The slow ones: a byte more of each.
        for (stream, left) in &mut held {
            if let Some(byte) = left.pop() {
                let _ = stream.write(&[byte]);
            }
            let _ = stream.read(&mut [0; 256]);
        }
        if held.len() > HELD {
            held.swap_remove(random.index(held.len()));
        }
    }
}

/// One run of two ranks that verify all their results; looks at ports and memory meanwhile.
fn run_job(target: &Target, peaks: &mut BTreeMap<u32, u64>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    command.args(["bench", "all-reduce", "-n", "2", "-b", "8", "-e", "4K", "-f", "8", "--iters", "40"]);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RINGWAY_")) {
        command.env_remove(name);
    }
    command.env("RINGWAY_NET", "tcp").env("RINGWAY_SOCKET_IFNAME", "lo").stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let began = Instant::now();
    let (stdout, stderr) = std::thread::scope(|scope| {
        let read = scope.spawn(move || {
            let mut text = String::new();
            out.read_to_string(&mut text).map(|_| text)
        });
        let errors = scope.spawn(move || {
            let mut text = String::new();
            err.read_to_string(&mut text).map(|_| text)
        });
        while !read.is_finished() {
            let family = family(child.id());
            for pid in &family {
                let peak = peaks.entry(*pid).or_default();
                *peak = peak_kib(*pid).max(*peak);
            }
            *target.ports.lock().unwrap() = ports(&family);
            assert!(began.elapsed() < Duration::from_secs(120), "the job does not end");
            std::thread::yield_now();
        }
        target.ports.lock().unwrap().clear();
        (read.join().unwrap().unwrap(), errors.join().unwrap().unwrap())
    });
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}: {stdout}\n{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
}

#[test]
fn a_job_under_attack_goes_on() {
    let seconds = std::env::var("HOSTILE_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(SECONDS);
    let seed: u64 = std::env::var("HOSTILE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20);
    println!("HOSTILE_SEED={seed}");
    let (target, mut peaks) = (Target::default(), BTreeMap::new());
    let until = Instant::now() + Duration::from_secs(seconds);
    std::thread::scope(|scope| {
        for attacker in 0..ATTACKERS {
            let target = &target;
            scope.spawn(move || attack(target, seed.wrapping_mul(1000) + attacker));
        }
        // Also when a run fails, so that the attackers end.
        let runs = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            loop {
                run_job(&target, &mut peaks);
                if Instant::now() >= until {
                    return;
                }
            }
        }));
        target.over.store(true, Ordering::Relaxed);
        if let Err(panic) = runs {
            std::panic::resume_unwind(panic);
        }
    });
    let made = target.made.load(Ordering::Relaxed);
    let most = peaks.values().max().copied().unwrap_or(0);
    println!("{made} connections; the largest process took {} MiB", most >> 10);
    assert!(made > 100, "only {made} connections were made");
    assert!(most < LIMIT_KIB, "a process took {} MiB", most >> 10);
}
