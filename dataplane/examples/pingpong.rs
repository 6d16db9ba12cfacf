//! Measures one TCP transport between two processes, spinning.
//!
//! ```text
//! pingpong server [auto|uring|epoll] [register|plain] [IP]     # prints its address; start it first
//! pingpong client ADDRESS [auto|uring|epoll] [register|plain] [IP]
//! ```
//! The client's address goes to the server through its standard input: paste the line that the client prints. With
//! `pingpong both …` the program starts its own second process. IP is the address to listen on, 127.0.0.1 if not given.

use ringway_dataplane::memory::{Pool, Region};
use ringway_dataplane::transport::{Address, Event, Keyring, Op, OpId, Peer, Stamp, Tag, Transport};
use ringway_dataplane::uring::{Bind, Config, DriverChoice, TcpTransport};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

const TAG: Tag = Tag { group: 1, lane: 1 };
const WINDOW: usize = 4;

fn hex(address: &Address) -> String {
    address.0.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Result<Address, Failure> {
    let text = text.trim();
    let bytes: Result<Vec<u8>, _> =
        (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16)).collect();
    Ok(Address(bytes?))
}

struct Side {
    transport: TcpTransport,
    peer: Peer,
    events: Vec<Event>,
    source: Region,
    target: Region,
    /// Sends and receives that ended before they were waited for.
    ahead: (usize, usize),
}

impl Side {
    fn send(&mut self, at: usize, len: usize) -> Result<(), Failure> {
        let bytes = self.source.lend_read(at..at + len)?;
        let op = Op::Send { to: self.peer, tag: TAG, stamp: Stamp::default(), bytes };
        self.transport.post(OpId(1), op).map_err(|(e, _)| e.into())
    }

    fn recv(&mut self, at: usize, len: usize) -> Result<(), Failure> {
        let into = self.target.lend_write(at..at + len)?;
        let op = Op::Recv { from: self.peer, tag: TAG, stamp: Stamp::default(), into };
        self.transport.post(OpId(2), op).map_err(|(e, _)| e.into())
    }

    /// Polls until `sends` and `recvs` more have ended.
    fn finish(&mut self, sends: usize, recvs: usize) -> Result<(), Failure> {
        while self.ahead.0 < sends || self.ahead.1 < recvs {
            self.transport.poll(&mut self.events);
            for event in self.events.drain(..) {
                match event {
                    Event::Done(c) => {
                        c.result?;
                        if c.id == OpId(1) {
                            self.ahead.0 += 1;
                            self.source.restore(c.lease)?;
                        } else {
                            self.ahead.1 += 1;
                            self.target.restore(c.lease)?;
                        }
                    }
                    // It was done before us.
                    Event::Left { .. } => {}
                    other => return Err(format!("{other:?}").into()),
                }
            }
        }
        self.ahead = (self.ahead.0 - sends, self.ahead.1 - recvs);
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), Failure> {
        self.recv(0, 1)?;
        self.send(0, 1)?;
        self.finish(1, 1)
    }

    fn ping(&mut self, first: bool, len: usize, rounds: u32) -> Result<Duration, Failure> {
        self.barrier()?;
        let began = Instant::now();
        for _ in 0..rounds {
            if first {
                self.recv(0, len)?;
                self.send(0, len)?;
                self.finish(1, 1)?;
            } else {
                self.recv(0, len)?;
                self.finish(0, 1)?;
                self.send(0, len)?;
                self.finish(1, 0)?;
            }
        }
        Ok(began.elapsed() / (2 * rounds))
    }

    fn swap(&mut self, len: usize, rounds: u32) -> Result<Duration, Failure> {
        self.barrier()?;
        let began = Instant::now();
        for _ in 0..rounds {
            self.recv(0, len)?;
            self.send(0, len)?;
            self.finish(1, 1)?;
        }
        Ok(began.elapsed() / rounds)
    }

    /// `WINDOW` messages of `len` in flight, each way if asked.
    fn flow(&mut self, sends: bool, recvs: bool, len: usize, rounds: usize) -> Result<f64, Failure> {
        self.barrier()?;
        let began = Instant::now();
        let (s, r) = (usize::from(sends), usize::from(recvs));
        for round in 0..rounds + WINDOW {
            if round >= WINDOW {
                self.finish(s, r)?;
            }
            if round < rounds {
                let at = round % WINDOW * len;
                if recvs {
                    self.recv(at, len)?;
                }
                if sends {
                    self.send(at, len)?;
                }
            }
        }
        Ok((len * rounds) as f64 / began.elapsed().as_secs_f64() / 1e9)
    }

    fn run(&mut self, first: bool) -> Result<(), Failure> {
        let say = |text: String| {
            if first {
                println!("{text}");
            }
        };
        self.ping(first, 8, 2000)?;
        say(self.transport.why(self.peer).unwrap_or_default());
        for len in [8, 2048, 32 << 10, 64 << 10] {
            let rounds = if len > 2048 { 1_000 } else { 5_000 };
            let (mut ping, mut swap) = (Duration::MAX, Duration::MAX);
            for _ in 0..3 {
                ping = ping.min(self.ping(first, len, rounds)?);
                swap = swap.min(self.swap(len, rounds)?);
            }
            say(format!("{len:>9} B  half round trip {ping:>9.2?}  exchange {swap:>9.2?}"));
        }
        for len in [256 << 10, 1 << 20, 4 << 20] {
            let rounds = (512 << 20) / len;
            let (mut stream, mut exchange) = (0f64, 0f64);
            for _ in 0..3 {
                stream = stream.max(self.flow(first, !first, len, rounds)?);
                exchange = exchange.max(self.flow(true, true, len, rounds)?);
            }
            say(format!("{len:>9} B  stream {stream:>6.2} GB/s  exchange {exchange:>6.2} GB/s each way"));
        }
        self.barrier()
    }
}

fn side(me: u32, driver: &str, register: &str, ip: &str) -> Result<Side, Failure> {
    let driver = match driver {
        "uring" => DriverChoice::Uring,
        "epoll" => DriverChoice::Epoll,
        _ => DriverChoice::Auto,
    };
    let ip = if ip.is_empty() { std::net::Ipv4Addr::LOCALHOST.into() } else { ip.parse()? };
    let bind = Bind::new(ip, "as given");
    let config = Config { driver, ..Config::new(me, Keyring::of([7; 32]), u64::from(me) + 1, vec![bind]) };
    let pool = Pool::default();
    let (source, target) = (pool.region(16 << 20)?, pool.region(16 << 20)?);
    let mut transport = TcpTransport::new(config)?;
    if register == "register" {
        for region in [&source, &target] {
            if let Err(e) = transport.register(region) {
                eprintln!("{e}");
            }
        }
    }
    Ok(Side { transport, peer: Peer(1 - me), events: Vec::new(), source, target, ahead: (0, 0) })
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |i: usize| args.get(i).map_or("", String::as_str);
    match arg(0) {
        "server" => {
            let mut side = side(0, arg(1), arg(2), arg(3))?;
            println!("{}", hex(&side.transport.address()));
            let mut line = String::new();
            std::io::stdin().read_line(&mut line)?;
            side.transport.connect(side.peer, &unhex(&line)?)?;
            side.run(false)?;
            side.transport.leave(1000);
        }
        "client" => {
            let mut side = side(1, arg(2), arg(3), arg(4))?;
            println!("{}", hex(&side.transport.address()));
            side.transport.connect(side.peer, &unhex(arg(1))?)?;
            side.run(true)?;
            side.transport.leave(1000);
        }
        "both" => {
            let mut server = Command::new(std::env::current_exe()?)
                .args(["server", arg(1), arg(2), arg(3)])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let (Some(mut to), Some(from)) = (server.stdin.take(), server.stdout.take()) else {
                return Err("no pipes to the server".into());
            };
            let mut line = String::new();
            BufReader::new(from).read_line(&mut line)?;
            let mut side = side(1, arg(1), arg(2), arg(3))?;
            writeln!(to, "{}", hex(&side.transport.address()))?;
            side.transport.connect(side.peer, &unhex(&line)?)?;
            side.run(true)?;
            side.transport.leave(1000);
            server.wait()?;
        }
        _ => return Err("say `server`, `client ADDRESS` or `both`".into()),
    }
    Ok(())
}
