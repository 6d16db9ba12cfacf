//! Tasks with a rendezvous each, introduced to each other.

use ringway_dataplane::fabric::SpinPolicy;
use ringway_dataplane::memory::SharedBytes;
use ringway_dataplane::rendezvous::wire::{Message, notes};
use ringway_dataplane::rendezvous::{Key, Meta, Options, PeerInfo, Rendezvous, Value};
use ringway_dataplane::shm::{self, ShmTransport};
use ringway_dataplane::transport::{Event, Hub, Keyring, Loopback, LoopbackConfig, Peer, Transport};
use ringway_dataplane::uring::{Bind, Config, DriverChoice, TcpTransport};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a test waits for one thing.
pub(crate) const FAR: Duration = Duration::from_secs(60);

pub(crate) struct Tasks {
    pub(crate) name: String,
    pub(crate) all: Vec<Rendezvous>,
    /// Who has lost whom.
    pub(crate) losses: Arc<Mutex<BTreeSet<(u32, Peer)>>>,
    hub: Option<Hub>,
}

pub(crate) fn key(i: usize) -> Key {
    Key::new(&format!("key {i}")).unwrap()
}

/// Bytes that no other seed gives.
pub(crate) fn patterned(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64)
        .map(|i| ((i ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x2545_f491) >> 7) as u8)
        .collect()
}

pub(crate) fn value(seed: u64, bytes: usize) -> Value {
    let payload = SharedBytes::copy_of(&patterned(seed, bytes), &Default::default()).unwrap();
    Value::new(Meta::new(&seed.to_le_bytes()).unwrap(), payload)
}

pub(crate) fn who(task: u32) -> PeerInfo {
    PeerInfo { name: format!("task {task}"), host: format!("host{task}"), pid: task + 1, incarnation: 7 }
}

impl Tasks {
    fn start(&self, task: u32, transport: Box<dyn Transport>) -> Rendezvous {
        let losses = Arc::clone(&self.losses);
        let options = Options {
            spin: SpinPolicy::Micros(0).spin(1, 1),
            on_loss: Some(Arc::new(move |loss| {
                losses.lock().unwrap().insert((task, loss.peer));
            })),
            ..Options::default()
        };
        Rendezvous::start(transport, who(task), options).unwrap()
    }

    fn of(name: String, hub: Option<Hub>, transports: Vec<Box<dyn Transport>>) -> Tasks {
        let mut tasks = Tasks { name, all: Vec::new(), losses: Arc::default(), hub };
        for (task, transport) in transports.into_iter().enumerate() {
            let started = tasks.start(task as u32, transport);
            tasks.all.push(started);
        }
        for me in 0..tasks.all.len() {
            tasks.introduce(me);
        }
        tasks
    }

    /// Introduces all others to one.
    fn introduce(&self, me: usize) {
        for (other, task) in self.all.iter().enumerate().filter(|(other, _)| *other != me) {
            let other = other as u32;
            self.all[me].connect(Peer(other), who(other), &task.address()).unwrap();
        }
    }

    pub(crate) fn loopback(n: u32, eager_bytes: usize, depth: u32, reorder: bool) -> Tasks {
        let hub = Hub::new(LoopbackConfig { seed: 5, eager_bytes, depth, reorder });
        let transports = (0..n).map(|i| Box::new(hub.join(Peer(i)).unwrap()) as Box<dyn Transport>).collect();
        let name = format!("loopback with {eager_bytes} eager bytes, depth {depth}, reorder {reorder}");
        Tasks::of(name, Some(hub), transports)
    }

    fn tcp(n: u32, eager_bytes: u32, depth: u32) -> Tasks {
        let transport = |me: u32| {
            let bind = Bind::new(Ipv4Addr::LOCALHOST.into(), "lo");
            let config = Config {
                eager_bytes,
                depth,
                driver: DriverChoice::Auto,
                ..Config::new(me, Keyring::of([5; 32]), 1000 + u64::from(me), vec![bind])
            };
            Box::new(TcpTransport::new(config).unwrap()) as Box<dyn Transport>
        };
        let name = format!("TCP with {eager_bytes} eager bytes, depth {depth}");
        Tasks::of(name, None, (0..n).map(transport).collect())
    }

    /// Over shared memory; `maps` says who maps what the others show.
    pub(crate) fn shm(maps: &[bool], depth: u32) -> Tasks {
        let transport = |(me, map_blocks): (usize, &bool)| {
            let config = shm::Config {
                depth,
                map_blocks: *map_blocks,
                ..shm::Config::new(me as u32, Keyring::of([5; 32]), 1000 + me as u64)
            };
            Box::new(ShmTransport::new(config).unwrap()) as Box<dyn Transport>
        };
        let name = format!("shared memory, mapped by {maps:?}, depth {depth}");
        Tasks::of(name, None, maps.iter().enumerate().map(transport).collect())
    }

    pub(crate) fn of_every_kind(n: u32) -> impl Iterator<Item = Tasks> {
        let loopbacks =
            [(4096, 64, false), (0, 64, false), (4096, 1, false), (0, 1, false), (4096, 64, true)]
                .into_iter();
        let tcps = [(64 << 10, 128), (0, 1)].into_iter();
        let loopbacks =
            loopbacks.map(move |(eager, depth, reorder)| Tasks::loopback(n, eager, depth, reorder));
        let tcps = tcps.map(move |(eager, depth)| Tasks::tcp(n, eager, depth));
        let shm = [(true, 128), (false, 1)].into_iter();
        let shm = shm.map(move |(maps, depth)| Tasks::shm(&vec![maps; n as usize], depth));
        loopbacks.chain(tcps).chain(shm)
    }

    /// Ends a task as a crash would; it stays in the list.
    pub(crate) fn kill(&self, task: u32) {
        self.hub.as_ref().unwrap().kill(Peer(task));
        self.until(|| self.losses_but_of(task).len() >= self.all.len() - 1);
    }

    /// Who has lost whom, but for what a task that was killed hears of its own end, sooner or later.
    pub(crate) fn losses_but_of(&self, killed: u32) -> BTreeSet<(u32, Peer)> {
        self.losses.lock().unwrap().iter().filter(|(me, _)| *me != killed).copied().collect()
    }

    /// Gives a task another life, that all know.
    pub(crate) fn restart(&mut self, task: u32) {
        let transport = Box::new(self.hub.as_ref().unwrap().join(Peer(task)).unwrap());
        self.all[task as usize] = self.start(task, transport);
        for me in 0..self.all.len() {
            self.introduce(me);
        }
    }

    /// Waits for something that others bring about.
    pub(crate) fn until(&self, mut done: impl FnMut() -> bool) {
        let deadline = Instant::now() + FAR;
        while !done() {
            assert!(Instant::now() < deadline, "{}: it does not come about", self.name);
            std::thread::yield_now();
        }
    }
}

/// A peer of task 0 that says what it likes.
pub(crate) struct Puppet {
    pub(crate) transport: Loopback,
    pub(crate) heard: Vec<Vec<u8>>,
    events: Vec<Event>,
}

impl Tasks {
    pub(crate) fn puppet(&self, number: u32) -> Puppet {
        let mut transport = self.hub.as_ref().unwrap().join(Peer(number)).unwrap();
        transport.connect(Peer(0), &self.all[0].address()).unwrap();
        self.all[0].connect(Peer(number), who(number), &transport.address()).unwrap();
        Puppet { transport, heard: Vec::new(), events: Vec::new() }
    }
}

impl Puppet {
    pub(crate) fn say(&mut self, message: &Message<'_>) {
        let mut encoded = Vec::new();
        message.encode(&mut encoded);
        notes(&encoded).for_each(|note| self.transport.note(Peer(0), &note).unwrap());
        self.poll();
    }

    pub(crate) fn poll(&mut self) {
        self.transport.poll(&mut self.events);
        for event in self.events.drain(..) {
            if let Event::Note { note, .. } = event {
                self.heard.push(note.bytes()[1..].to_vec());
            }
        }
    }

    /// The number of the question that task 0 asks next.
    pub(crate) fn question(&mut self) -> u64 {
        let deadline = Instant::now() + FAR;
        loop {
            self.poll();
            for message in std::mem::take(&mut self.heard) {
                if let Ok(Message::Ask { request, .. }) = Message::decode(&message) {
                    return request;
                }
            }
            assert!(Instant::now() < deadline, "nothing is asked");
        }
    }
}
