//! All-reduce between two processes over TCP on this host: median and best microseconds by size.
//!
//! `cargo run --release -p ringway-collectives --example tcp_all_reduce [-- KEY=VALUE ...]` with any of
//! `slice=BYTES lanes=N algo=NAME driver=uring|epoll sizes=BYTES,BYTES seconds=S sockbuf=BYTES eager=BYTES`

use ringway_collectives::engine::{Communicator, EngineOptions, GroupInfo, Member};
use ringway_collectives::reduce::ReduceOp;
use ringway_dataplane::transport::{Address, Keyring, Peer, Transport};
use ringway_dataplane::uring::{Bind, Config, DriverChoice, TcpTransport};
use ringway_topology::model::order::Site;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

struct Wanted {
    options: EngineOptions,
    driver: DriverChoice,
    socket_buffer_bytes: Option<u32>,
    eager_bytes: Option<u32>,
    sizes: Vec<usize>,
    time_per_size: Duration,
}

fn wanted(arguments: &[String]) -> Wanted {
    let mut w = Wanted {
        options: EngineOptions::default(),
        driver: DriverChoice::Auto,
        socket_buffer_bytes: None,
        eager_bytes: None,
        sizes: vec![8, 2 << 10, 32 << 10, 512 << 10, 8 << 20, 64 << 20],
        time_per_size: Duration::from_millis(500),
    };
    for argument in arguments {
        let (key, value) =
            argument.split_once('=').unwrap_or_else(|| panic!("{argument}: KEY=VALUE expected"));
        let number = || value.parse::<f64>().unwrap_or_else(|e| panic!("{argument}: {e}"));
        match key {
            "slice" => w.options.slice_bytes = Some(number() as usize),
            "lanes" => w.options.slices_in_flight = Some(number() as u32),
            "algo" => w.options.wanted = value.parse().unwrap_or_else(|e| panic!("{e}")),
            "driver" if value == "uring" => w.driver = DriverChoice::Uring,
            "driver" if value == "epoll" => w.driver = DriverChoice::Epoll,
            "sockbuf" => w.socket_buffer_bytes = Some(number() as u32),
            "eager" => w.eager_bytes = Some(number() as u32),
            "sizes" => w.sizes = value.split(',').map(|s| s.parse().expect("bytes")).collect(),
            "seconds" => w.time_per_size = Duration::from_secs_f64(number()),
            _ => panic!("{argument}: unknown"),
        }
    }
    w
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let text = text.trim();
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("hex")).collect()
}

fn measure(comm: &Communicator, bytes: usize, time: Duration) -> (f64, f64) {
    let mut buffer = vec![0.0f32; bytes / 4];
    let mut round = |times: &mut Vec<f64>| {
        let start = Instant::now();
        comm.all_reduce(&mut buffer, ReduceOp::Sum).expect("the other rank is here");
        times.push(start.elapsed().as_secs_f64() * 1e6);
    };
    let mut warm = Vec::new();
    (0..5).for_each(|_| round(&mut warm));
    // The ranks agree on the number of rounds.
    let mut rounds = [(time.as_secs_f64() * 1e6 / warm[4]).clamp(10.0, 50_000.0) as u64];
    comm.broadcast(&mut rounds, 0).expect("the other rank is here");
    let mut times = Vec::new();
    (0..rounds[0]).for_each(|_| round(&mut times));
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[0])
}

fn rank(my_rank: u32, transport: TcpTransport, w: &Wanted) {
    let member = |r| Member {
        peer: Peer(r),
        host: "here".into(),
        pid: std::process::id(),
        incarnation: 1,
        site: Site::default(),
    };
    let group = GroupInfo { id: 1, my_rank, members: vec![member(0), member(1)] };
    let comm = Communicator::new(Box::new(transport), group, w.options.clone()).expect("a well-formed group");
    comm.barrier().expect("the other rank is here");
    if my_rank == 0 {
        println!("{}", comm.route(1).unwrap_or_default());
        println!(
            "{:>10} {:>12} {:>12} {:>10}  algorithm, slices",
            "bytes", "median us", "best us", "busbw GB/s"
        );
    }
    for bytes in &w.sizes {
        let (median, best) = measure(&comm, *bytes, w.time_per_size);
        if let (0, Some(choice)) = (my_rank, comm.last_choice()) {
            let busbw = *bytes as f64 / median / 1e3;
            let how = format!("{} x {} B", choice.slices, choice.slice_bytes);
            let algorithm = choice.algorithm.map_or("", |a| a.name());
            println!("{bytes:>10} {median:>12.1} {best:>12.1} {busbw:>10.2}  {algorithm}, {how}");
        }
    }
}

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let child = arguments.first().is_some_and(|a| a == "child");
    arguments.retain(|a| a != "child");
    let w = wanted(&arguments);
    let bind = vec![Bind::new([127, 0, 0, 1].into(), "lo")];
    let mut config =
        Config { driver: w.driver, ..Config::new(u32::from(child), Keyring::of([7; 32]), 1, bind) };
    config.socket_buffer_bytes = w.socket_buffer_bytes;
    config.eager_bytes = w.eager_bytes.unwrap_or(config.eager_bytes);
    let mut transport = TcpTransport::new(config).expect("a TCP transport");
    let mine = hex(&transport.address().0);
    if child {
        println!("{mine}");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).expect("the parent's address");
        transport.connect(Peer(0), &Address(unhex(&line))).expect("an address of the same kind");
        return rank(1, transport, &w);
    }
    let mut other = Command::new(std::env::current_exe().expect("this program"))
        .arg("child")
        .args(&arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a second process");
    let mut line = String::new();
    BufReader::new(other.stdout.take().expect("piped")).read_line(&mut line).expect("the child's address");
    writeln!(other.stdin.take().expect("piped"), "{mine}").expect("the child listens");
    transport.connect(Peer(1), &Address(unhex(&line))).expect("an address of the same kind");
    rank(0, transport, &w);
    other.wait().expect("the child ends");
}
