//! Prices a schedule by simulating it in time: slices, ports, hosts' network interfaces and cores.
//!
//! The closed formulas of [`estimate`](crate::schedule::estimate) are what ranks choose by; this is what checks them,
//! and what plans for machines of many hosts. A message passes its sender's port, between hosts also both hosts'
//! interfaces (and between switches the links that join those), and its receiver's port. It holds each for `message_us` (ports only) and its bytes over the bandwidth,
//! and is on the next while still on the one before; `latency_us` passes on the way. It starts when both sides have
//! posted it, and a port sends in the order of starts. A combine holds its rank's core, or where the link does not move
//! bytes by itself, the receiving port, since the same core takes bytes in. Where ranks share cores, half of a message's time
//! at a port is work of the core, one end's as the other's, and so are all combines; a core that passes from one rank to
//! another loses a moment. Each rank runs several slices at once, each
//! of them under the hazards I4.

#![forbid(unsafe_code)]

use super::Fault;
use crate::schedule::cost::LinkCosts;
use crate::schedule::{Collective, Rank, Schedule, Span, Step};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Steps of one rank and slice that are open at once.
const AHEAD: usize = 16;

/// Where a rank is: on which host, by which of the network's interfaces it reaches others, and at which switch that hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The host, by any number.
    pub host: u32,
    /// Its interface, by a number that no other host's has. Ranks that share it share its bandwidth.
    pub interface: u32,
    /// The switch that the interface hangs at: the rack's, or the rail's.
    pub switch: u32,
}

/// The machine that a schedule is priced on.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// By rank.
    pub places: Vec<Place>,
    /// Links between ranks of one host.
    pub inside: LinkCosts,
    /// Links between hosts; the bandwidth is that of an interface.
    pub between: LinkCosts,
    /// Bandwidth of each direction of the link that joins a switch with all others, in bytes per microsecond. Infinite
    /// where the network blocks nothing.
    pub uplink_bytes_per_us: f64,
    /// Where ranks share cores.
    pub shared: Option<SharedCores>,
}

/// Cores that ranks share, and that do what transports and combines do.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedCores {
    /// The core of each rank.
    pub cores: Vec<u32>,
    /// What it takes until another rank of a core runs, in microseconds.
    pub switch_us: f64,
}

impl Network {
    /// Every rank on a host of its own.
    pub fn flat(ranks: u32, costs: LinkCosts) -> Network {
        Network::hosts(ranks, 1, costs, costs)
    }

    /// Hosts of equally many neighbouring ranks (fewer on the last if need be) with one interface each, at one switch.
    pub fn hosts(ranks: u32, ranks_per_host: u32, inside: LinkCosts, between: LinkCosts) -> Network {
        let place = |rank: Rank| {
            let host = rank / ranks_per_host.max(1);
            Place { host, interface: host, switch: 0 }
        };
        let places = (0..ranks).map(place).collect();
        Network { places, inside, between, uplink_bytes_per_us: f64::INFINITY, shared: None }
    }
}

/// How much is moved, and in which pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// All chunks of one rank together (for an all-to-all, its send chunks), in bytes.
    pub bytes: u64,
    /// How many bytes of every chunk one slice covers; at least 1.
    pub slice_bytes: u64,
    /// Slices that one rank runs at once; at least 1.
    pub slices_in_flight: u32,
}

/// Something that is used by one message or combine at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// The sending side of a rank.
    Send(Rank),
    /// The receiving side of a rank.
    Receive(Rank),
    /// The core that combines for a rank.
    Core(Rank),
    /// Outward side of an interface.
    HostOut(u32),
    /// Inward side of an interface.
    HostIn(u32),
    /// From a switch to the others.
    SwitchOut(u32),
    /// From the other switches to one.
    SwitchIn(u32),
}

/// How long a resource was in use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// The resource.
    pub resource: Resource,
    /// Bytes through it.
    pub bytes: f64,
    /// Time in use, in microseconds.
    pub busy_us: f64,
}

/// What a schedule costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Price {
    /// When the last rank is done, in microseconds.
    pub time_us: f64,
    /// Every resource that was used.
    pub loads: Vec<Load>,
}

impl Price {
    /// The resource in use longest, if any was used.
    pub fn busiest(&self) -> Option<&Load> {
        self.loads.iter().max_by(|a, b| a.busy_us.total_cmp(&b.busy_us))
    }
}

/// Simulates `schedule` as `collective` on `network`, which has a place for each of its ranks. The schedule should have passed [`verify`](super::verify);
/// one that hangs is answered with [`Fault::Deadlock`].
///
/// # Panics
/// When the network has fewer places, or where cores are shared fewer of those, than the schedule ranks.
pub fn price<S: Schedule + ?Sized>(
    schedule: &S,
    collective: Collective,
    network: &Network,
    work: &Workload,
) -> Result<Price, Fault> {
    let mut clockwork = Clockwork::new(schedule, collective, network, work);
    clockwork.run()?;
    Ok(clockwork.price())
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Waiting,
    Posted,
    Moving,
    Arrived,
    Combining,
    Done,
}

/// One rank's part in one slice.
#[derive(Default)]
struct Program {
    base: u32,
    ended: bool,
    open: VecDeque<(Step, State)>,
    /// Sends posted to this program that no receive has met: the sending rank and the number of its step.
    unmatched: VecDeque<(Rank, u32)>,
}

impl Program {
    fn blocked(&self, place: usize) -> bool {
        let step = self.open[place].0;
        self.open.iter().take(place).any(|(s, state)| *state != State::Done && step.conflicts_with(s))
    }

    fn step(&self, index: u32) -> Step {
        self.open[(index - self.base) as usize].0
    }

    fn set(&mut self, index: u32, state: State) {
        self.open[(index - self.base) as usize].1 = state;
    }
}

/// A message under way: both sides' ranks and step numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Message {
    from: Rank,
    sent: u32,
    to: Rank,
    taken: u32,
}

/// Where a message is on its way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Hop {
    Send,
    HostOut,
    SwitchOut,
    SwitchIn,
    HostIn,
    Receive,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A step of a rank takes a new state.
    Moved { rank: Rank, index: u32, state: State },
    /// The first byte of a message reaches a hop.
    Reaches(Message, Hop),
}

/// Events are taken in the order of these fields.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    /// In nanoseconds; whole numbers, so that the order of events does not hang on rounding.
    at: u64,
    /// Of the messages that start at one time, those first in their senders' programs come first, after all else.
    start: Option<u32>,
    number: u64,
    slice: u32,
    what: What,
}

#[derive(Clone, Copy, Default)]
struct Use {
    free: u64,
    busy: u64,
    bytes: f64,
}

impl Use {
    /// Takes the resource for `time` as soon as it is free; answers when that is.
    fn hold(&mut self, now: u64, time: u64, bytes: f64) -> u64 {
        let start = now.max(self.free);
        self.free = start + time;
        self.busy += time;
        self.bytes += bytes;
        start
    }
}

/// A core that ranks share.
#[derive(Clone, Copy, Default)]
struct Held {
    free: u64,
    by: Option<Rank>,
}

struct Clockwork<'a, S: ?Sized> {
    schedule: &'a S,
    network: &'a Network,
    /// Bytes of a chunk in one slice.
    piece_bytes: f64,
    slices: u32,
    in_flight: u32,
    programs: Vec<Program>,
    /// By rank: slices begun and slices ended.
    begun: Vec<u32>,
    ended: Vec<u32>,
    send: Vec<Use>,
    receive: Vec<Use>,
    core: Vec<Use>,
    held: Vec<Held>,
    host_out: Vec<Use>,
    host_in: Vec<Use>,
    switch_out: Vec<Use>,
    switch_in: Vec<Use>,
    events: BinaryHeap<Reverse<Event>>,
    events_made: u64,
    now: u64,
}

fn nanoseconds(us: f64) -> u64 {
    (us * 1e3).round() as u64
}

impl<'a, S: Schedule + ?Sized> Clockwork<'a, S> {
    fn new(schedule: &'a S, collective: Collective, network: &'a Network, work: &Workload) -> Self {
        let ranks = schedule.ranks();
        let parts = match collective {
            Collective::AllToAll | Collective::ExclusiveScan => schedule.chunks() / 2,
            // Each chunk is the whole of a rank's.
            _ if schedule.gathers() => 1,
            _ => schedule.chunks(),
        };
        let bytes = if collective == Collective::Barrier { 0 } else { work.bytes };
        let chunk_bytes = bytes as f64 / f64::from(parts);
        let slices = ((chunk_bytes / work.slice_bytes.max(1) as f64).ceil() as u32).max(1);
        let per_rank = || vec![Use::default(); ranks as usize];
        let most =
            |of: fn(&Place) -> u32| network.places.iter().map(of).max().map_or(0, |most| most as usize + 1);
        let (interfaces, switches) = (most(|place| place.interface), most(|place| place.switch));
        Clockwork {
            schedule,
            network,
            piece_bytes: chunk_bytes / f64::from(slices),
            slices,
            in_flight: work.slices_in_flight.max(1),
            programs: (0..slices as usize * ranks as usize).map(|_| Program::default()).collect(),
            begun: vec![0; ranks as usize],
            ended: vec![0; ranks as usize],
            send: per_rank(),
            receive: per_rank(),
            core: per_rank(),
            held: vec![
                Held::default();
                network.shared.as_ref().map_or(0, |s| s
                    .cores
                    .iter()
                    .max()
                    .map_or(0, |most| *most as usize + 1))
            ],
            host_out: vec![Use::default(); interfaces],
            host_in: vec![Use::default(); interfaces],
            switch_out: vec![Use::default(); switches],
            switch_in: vec![Use::default(); switches],
            events: BinaryHeap::new(),
            events_made: 0,
            now: 0,
        }
    }

    fn at(&self, slice: u32, rank: Rank) -> usize {
        slice as usize * self.schedule.ranks() as usize + rank as usize
    }

    fn run(&mut self) -> Result<(), Fault> {
        for rank in 0..self.schedule.ranks() {
            self.begin(rank);
        }
        while let Some(Reverse(event)) = self.events.pop() {
            self.now = event.at;
            match event.what {
                What::Moved { rank, index, state } => {
                    let at = self.at(event.slice, rank);
                    self.programs[at].set(index, state);
                    self.advance(event.slice, rank);
                }
                What::Reaches(message, hop) => self.pass(event.slice, message, hop),
            }
        }
        let mut stuck =
            (0..).zip(&self.ended).filter(|(_, ended)| **ended < self.slices).map(|(rank, _)| rank);
        let Some(rank) = stuck.next() else { return Ok(()) };
        let stuck = 1 + stuck.count() as u32;
        let open = self.programs.iter().skip(rank as usize).step_by(self.ended.len());
        let oldest = open.filter_map(|program| Some((program.base, program.open.front()?.0))).next();
        let (index, step) = oldest.expect("a rank that has not ended has an open step");
        Err(Fault::Deadlock { rank, index, step, stuck })
    }

    /// Lets `rank` begin as many slices as it may.
    fn begin(&mut self, rank: Rank) {
        let r = rank as usize;
        while self.begun[r] < self.slices && self.begun[r] - self.ended[r] < self.in_flight {
            self.begun[r] += 1;
            self.advance(self.begun[r] - 1, rank);
        }
    }

    /// Posts and combines all that can be, in one slice of one rank.
    fn advance(&mut self, slice: u32, rank: Rank) {
        let at = self.at(slice, rank);
        self.refill(at, rank);
        let (mut sends_held, mut receives_held) = (false, false);
        for place in 0..self.programs[at].open.len() {
            let program = &mut self.programs[at];
            let (step, state) = program.open[place];
            let index = program.base + place as u32;
            let blocked = matches!(state, State::Waiting | State::Arrived) && program.blocked(place);
            match (state, step) {
                (State::Arrived, Step::Reduce { span, .. } | Step::Recv { span, .. }) if !blocked => {
                    program.open[place].1 = State::Combining;
                    self.combine(slice, rank, index, span);
                }
                (State::Waiting, Step::Send { to, .. }) => {
                    sends_held |= blocked;
                    if !sends_held {
                        self.post_send(slice, rank, index, to);
                    }
                }
                (State::Waiting, Step::Recv { from, .. } | Step::Reduce { from, .. }) => {
                    receives_held |= blocked && matches!(step, Step::Recv { .. });
                    if !receives_held {
                        self.post_receive(slice, rank, index, from);
                    }
                }
                _ => {}
            }
        }
        let program = &mut self.programs[at];
        if program.ended && program.open.is_empty() && self.begun[rank as usize] > slice {
            // Count the end once: a program that has ended is never advanced again.
            self.ended[rank as usize] += 1;
            self.begin(rank);
        }
    }

    fn refill(&mut self, at: usize, rank: Rank) {
        let program = &mut self.programs[at];
        while program.open.front().is_some_and(|(_, state)| *state == State::Done) {
            program.open.pop_front();
            program.base += 1;
        }
        while !program.ended && program.open.len() < AHEAD {
            match self.schedule.step(rank, program.base + program.open.len() as u32) {
                Some(step) => program.open.push_back((step, State::Waiting)),
                None => program.ended = true,
            }
        }
    }

    fn post_send(&mut self, slice: u32, rank: Rank, index: u32, to: Rank) {
        let (mine, theirs) = (self.at(slice, rank), self.at(slice, to));
        let receiver = &self.programs[theirs];
        let met = receiver
            .open
            .iter()
            .position(|(step, state)| *state == State::Posted && !step.is_send() && step.peer() == rank);
        match met {
            Some(place) => {
                let their_index = receiver.base + place as u32;
                self.start(slice, Message { from: rank, sent: index, to, taken: their_index });
            }
            None => {
                self.programs[mine].set(index, State::Posted);
                self.programs[theirs].unmatched.push_back((rank, index));
            }
        }
    }

    fn post_receive(&mut self, slice: u32, rank: Rank, index: u32, from: Rank) {
        let at = self.at(slice, rank);
        let program = &mut self.programs[at];
        match program.unmatched.iter().position(|sent| sent.0 == from) {
            Some(place) => {
                let (from, sent) = program.unmatched.remove(place).expect("the position was just found");
                self.start(slice, Message { from, sent, to: rank, taken: index });
            }
            None => program.set(index, State::Posted),
        }
    }

    fn start(&mut self, slice: u32, message: Message) {
        let (mine, theirs) = (self.at(slice, message.from), self.at(slice, message.to));
        self.programs[mine].set(message.sent, State::Moving);
        self.programs[theirs].set(message.taken, State::Moving);
        self.event(self.now, Some(message.sent), slice, What::Reaches(message, Hop::Send));
    }

    /// Takes a message over the hop that it has reached.
    fn pass(&mut self, slice: u32, message: Message, hop: Hop) {
        let Message { from, sent, to, taken } = message;
        // The sender may be past its step when the last bytes arrive; the receiver is at its own.
        let step = self.programs[self.at(slice, to)].step(taken);
        let bytes = self.bytes(step.span());
        let (out, into) = (self.network.places[from as usize], self.network.places[to as usize]);
        let far = out.host != into.host;
        let across = out.switch != into.switch;
        let costs = if far { &self.network.between } else { &self.network.inside };
        let latency = nanoseconds(costs.latency_us);
        let wire = nanoseconds(bytes / costs.bytes_per_us);
        let uplink = nanoseconds(bytes / self.network.uplink_bytes_per_us);
        let port = nanoseconds(costs.message_of(bytes)) + wire;
        match hop {
            Hop::Send => {
                let ready = self.runs(from, port / 2, costs);
                let start = self.send[from as usize].hold(ready, port, bytes);
                self.moved(start + port, slice, from, sent, State::Done);
                let (next, later) = if far { (Hop::HostOut, 0) } else { (Hop::Receive, latency) };
                self.event(start + later, None, slice, What::Reaches(message, next));
            }
            Hop::HostOut => {
                let start = self.host_out[out.interface as usize].hold(self.now, wire, bytes);
                let (next, later) = if across { (Hop::SwitchOut, 0) } else { (Hop::HostIn, latency) };
                self.event(start + later, None, slice, What::Reaches(message, next));
            }
            Hop::SwitchOut => {
                let start = self.switch_out[out.switch as usize].hold(self.now, uplink, bytes);
                self.event(start + latency, None, slice, What::Reaches(message, Hop::SwitchIn));
            }
            Hop::SwitchIn => {
                let start = self.switch_in[into.switch as usize].hold(self.now, uplink, bytes);
                self.event(start, None, slice, What::Reaches(message, Hop::HostIn));
            }
            Hop::HostIn => {
                let start = self.host_in[into.interface as usize].hold(self.now, wire, bytes);
                self.event(start, None, slice, What::Reaches(message, Hop::Receive));
            }
            Hop::Receive => {
                // What a narrower link lets through arrives no sooner than its last byte.
                let slowest = if far && across { port.max(uplink) } else { port };
                let ready = self.runs(to, port / 2, costs);
                let start = self.receive[to as usize].hold(ready, port, bytes);
                let end = (start + port).max(self.now + slowest);
                // What is gathered is combined when all has come, which takes as long.
                let reduces = matches!(step, Step::Reduce { .. }) || self.schedule.gathers();
                let state = if reduces { State::Arrived } else { State::Done };
                self.moved(end, slice, to, taken, state);
            }
        }
    }

    fn combine(&mut self, slice: u32, rank: Rank, index: u32, span: Span) {
        let bytes = self.bytes(span);
        let costs = &self.network.inside;
        let time = nanoseconds(bytes / costs.reduce_bytes_per_us);
        let ready = self.runs(rank, time, &LinkCosts { offloaded: false, ..*costs });
        let start = if costs.offloaded {
            self.core[rank as usize].hold(ready, time, bytes)
        } else {
            self.receive[rank as usize].hold(ready, time, 0.0)
        };
        self.moved(start + time, slice, rank, index, State::Done);
    }

    /// Has a rank's core work for `time`, where it shares one and the link does not move bytes by itself; answers when it
    /// begins.
    fn runs(&mut self, rank: Rank, time: u64, costs: &LinkCosts) -> u64 {
        let Some(shared) = self.network.shared.as_ref().filter(|_| !costs.offloaded) else { return self.now };
        let held = &mut self.held[shared.cores[rank as usize] as usize];
        let switch = if held.by == Some(rank) { 0 } else { nanoseconds(shared.switch_us) };
        let start = self.now.max(held.free) + switch;
        *held = Held { free: start + time, by: Some(rank) };
        start
    }

    fn bytes(&self, span: Span) -> f64 {
        f64::from(span.count) * self.piece_bytes
    }

    fn moved(&mut self, at: u64, slice: u32, rank: Rank, index: u32, state: State) {
        self.event(at, None, slice, What::Moved { rank, index, state });
    }

    fn event(&mut self, at: u64, start: Option<u32>, slice: u32, what: What) {
        self.events_made += 1;
        self.events.push(Reverse(Event { at, start, number: self.events_made, slice, what }));
    }

    fn price(&self) -> Price {
        type Kind = fn(u32) -> Resource;
        let kinds: [(&[Use], Kind); 7] = [
            (&self.send, Resource::Send),
            (&self.receive, Resource::Receive),
            (&self.core, Resource::Core),
            (&self.host_out, Resource::HostOut),
            (&self.host_in, Resource::HostIn),
            (&self.switch_out, Resource::SwitchOut),
            (&self.switch_in, Resource::SwitchIn),
        ];
        let mut loads = Vec::new();
        for (uses, kind) in kinds {
            for (number, used) in (0..).zip(uses).filter(|(_, used)| used.busy > 0) {
                let busy_us = used.busy as f64 / 1e3;
                loads.push(Load { resource: kind(number), bytes: used.bytes, busy_us });
            }
        }
        Price { time_us: self.now as f64 / 1e3, loads }
    }
}
