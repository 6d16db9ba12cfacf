//! The simulation in time that prices a schedule: what each step waits for, and what each message and combine holds.

#![forbid(unsafe_code)]

use super::Fault;
use super::price::{Load, Network, Place, Price, Resource, Workload};
use super::program::{AHEAD, Program, Row, Unmatched, bit};
use super::queue::Queue;
use crate::schedule::cost::{EAGER_BYTES, LinkCosts};
use crate::schedule::symmetry::Blocks;
use crate::schedule::{Collective, DisseminationBarrier, Gathered, Rank, Schedule, Step};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// A message under way: both sides' ranks and step numbers, who the sender is to the receiver, and chunks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Message {
    from: Rank,
    sent: u32,
    to: Rank,
    /// [`UNMET`] of one that left before its receive was posted.
    taken: u32,
    known_as: Rank,
    chunks: u32,
}

const UNMET: u32 = u32::MAX;

/// Where a message is on its way.
#[derive(Clone, Copy)]
enum Hop {
    HostOut,
    SwitchOut,
    SwitchIn,
    HostIn,
    Receive,
}

#[derive(Clone, Copy)]
enum Event {
    /// What a rank receives has come, and is to be combined.
    Arrived { slice: u32, rank: Rank, index: u32 },
    /// A step of a rank is over.
    Done { slice: u32, rank: Rank, index: u32 },
    /// The first byte of a message reaches a hop.
    Reaches { slice: u32, message: Message, hop: Hop },
    /// A core that ranks share has done what it was at.
    Free { core: u32 },
    /// A rank has come so far that it can make the steps of a call.
    Called { slice: u32, rank: Rank },
}

/// What a core does for a rank.
#[derive(Clone, Copy)]
enum Work {
    Send { slice: u32, message: Message },
    Receive { slice: u32, message: Message },
    Combine { slice: u32, rank: Rank, index: u32 },
    Call { slice: u32, rank: Rank },
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

/// A core that ranks share. A rank has it until it has nothing to do there, as a process has that waits only then.
#[derive(Default)]
struct Shared {
    busy: bool,
    by: Option<Rank>,
    /// What is to be done, and for how long, in the order in which it came up.
    waiting: VecDeque<(Rank, u64, Work)>,
}

impl Shared {
    /// What is done next: of the rank that has the core, if there is anything.
    fn next(&mut self) -> Option<(Rank, u64, Work)> {
        let same = self.waiting.iter().position(|(rank, ..)| Some(*rank) == self.by);
        self.waiting.remove(same.unwrap_or(0))
    }
}

/// A schedule under simulation. Of ranks that do alike, those of the first block run for all: a message to another block comes
/// to the rank that stands for its receiver, from the rank that its sender is when the receiver is moved there.
pub(super) struct Clockwork<'a, S: ?Sized> {
    schedule: &'a S,
    network: &'a Network,
    blocks: Blocks,
    gathers: Option<Gathered>,
    /// Bytes of a chunk in one slice.
    piece_bytes: f64,
    /// Of one call.
    slices: u32,
    in_flight: u32,
    /// What stands before each call, as a slice of its own, and how often both are made.
    barrier: Option<DisseminationBarrier>,
    rounds: u32,
    /// By rank: when it came out of the last barrier, and when it was done.
    left: Vec<u64>,
    over: Vec<u64>,
    rows: Vec<Row>,
    /// By rank: slices begun and slices ended.
    begun: Vec<u32>,
    ended: Vec<u32>,
    send: Vec<Use>,
    receive: Vec<Use>,
    core: Vec<Use>,
    shared: Vec<Shared>,
    freed: Vec<u32>,
    host_out: Vec<Use>,
    host_in: Vec<Use>,
    switch_out: Vec<Use>,
    switch_in: Vec<Use>,
    events: Queue<Event>,
    /// Messages that start at the present moment, after all else: those first in their senders' programs first, then in the
    /// order in which both sides had posted them.
    starts: BinaryHeap<Reverse<(u32, u64, u32, Message)>>,
    started: u64,
    /// In nanoseconds; whole numbers, so that the order of events does not hang on rounding.
    now: u64,
}

fn nanoseconds(us: f64) -> u64 {
    (us * 1e3).round() as u64
}

impl<'a, S: Schedule + ?Sized> Clockwork<'a, S> {
    pub(super) fn new(
        schedule: &'a S,
        collective: Collective,
        network: &'a Network,
        work: &Workload,
        blocks: Blocks,
    ) -> Self {
        let ranks = blocks.each() as usize;
        let parts = match collective {
            Collective::AllToAll | Collective::ExclusiveScan => schedule.chunks() / 2,
            _ => schedule.gathers().map_or(schedule.chunks(), |gathered| gathered.chunks),
        };
        let bytes = if collective == Collective::Barrier { 0 } else { work.bytes };
        let chunk_bytes = bytes as f64 / f64::from(parts);
        let slices = ((chunk_bytes / work.slice_bytes.max(1) as f64).ceil() as u32).max(1);
        let per_rank = || vec![Use::default(); ranks];
        let most =
            |of: fn(&Place) -> u32| network.places.iter().map(of).max().map_or(0, |most| most as usize + 1);
        let (interfaces, switches) = (most(|place| place.interface), most(|place| place.switch));
        let cores = network.shared.as_ref().and_then(|shared| shared.cores.iter().max().copied());
        Clockwork {
            schedule,
            network,
            blocks,
            gathers: schedule.gathers(),
            piece_bytes: chunk_bytes / f64::from(slices),
            slices,
            in_flight: work.slices_in_flight.max(1),
            barrier: None,
            rounds: 1,
            left: vec![0; ranks],
            over: vec![0; ranks],
            rows: (0..ranks).map(|_| Row::default()).collect(),
            begun: vec![0; ranks],
            ended: vec![0; ranks],
            send: per_rank(),
            receive: per_rank(),
            core: per_rank(),
            shared: (0..cores.map_or(0, |most| most + 1)).map(|_| Shared::default()).collect(),
            freed: Vec::new(),
            host_out: vec![Use::default(); interfaces],
            host_in: vec![Use::default(); interfaces],
            switch_out: vec![Use::default(); switches],
            switch_in: vec![Use::default(); switches],
            events: Queue::new(),
            starts: BinaryHeap::new(),
            started: 0,
            now: 0,
        }
    }

    /// The same in calls one after another, each behind a barrier. Of ranks that are all simulated.
    pub(super) fn behind_barriers(mut self, rounds: u32) -> Self {
        (self.barrier, self.rounds) = (Some(DisseminationBarrier { ranks: self.schedule.ranks() }), rounds);
        self
    }

    /// Slices of a call and of what stands before it.
    fn period(&self) -> u32 {
        self.slices + u32::from(self.barrier.is_some())
    }

    fn is_barrier(&self, slice: u32) -> bool {
        self.barrier.is_some() && slice.is_multiple_of(self.period())
    }

    /// What is gathered in a slice.
    fn gathered_in(&self, slice: u32) -> Option<Gathered> {
        self.gathers.filter(|_| !self.is_barrier(slice))
    }

    fn program(&mut self, slice: u32, rank: Rank) -> &mut Program {
        self.rows[rank as usize].at(slice)
    }

    pub(super) fn run(&mut self) -> Result<(), Fault> {
        for rank in 0..self.blocks.each() {
            self.begin(rank);
        }
        loop {
            if let Some(event) = self.events.next_of_now() {
                self.take(event);
            } else if let Some(Reverse((_, _, slice, message))) = self.starts.pop() {
                self.leave(slice, message);
            } else if let Some(core) = self.freed.pop() {
                self.give(core);
            } else if let Some(now) = self.events.advance() {
                self.now = now;
            } else {
                break;
            }
        }
        let all = self.rounds * self.period();
        let mut stuck = (0..).zip(&self.ended).filter(|(_, ended)| **ended < all).map(|(rank, _)| rank);
        let Some(rank) = stuck.next() else { return Ok(()) };
        let stuck = (1 + stuck.count() as u32) * self.blocks.count();
        let open = self.rows[rank as usize].programs.iter().find(|program| program.open > 0);
        let oldest = open.map(|program| (program.base, program.step(program.base)));
        let (index, step) = oldest.expect("a rank that has not ended has an open step");
        Err(Fault::Deadlock { rank, index, step, stuck })
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Arrived { slice, rank, index } => {
                self.program(slice, rank).arrived |= bit(index);
                self.go_on(slice, rank);
            }
            Event::Done { slice, rank, index } => {
                self.program(slice, rank).finish(index);
                self.go_on(slice, rank);
            }
            Event::Reaches { slice, message, hop } => self.pass(slice, message, hop),
            Event::Called { slice, rank } => {
                self.rows[rank as usize].reach(slice);
                self.advance(slice, rank);
                self.begin(rank);
            }
            Event::Free { core } => {
                self.shared[core as usize].busy = false;
                self.freed.push(core);
            }
        }
    }

    /// Gives a core that was freed at the present moment to who waits for it, once nothing else happens at that moment.
    fn give(&mut self, core: u32) {
        let shared = &mut self.shared[core as usize];
        let next = if shared.busy { None } else { shared.next() };
        if let Some((rank, time, work)) = next {
            self.begin_work(core, rank, time, work);
        }
    }

    /// Has a rank's core work for `time`, once it can where ranks share it and the link does not move bytes by itself.
    fn work(&mut self, rank: Rank, time: u64, offloaded: bool, work: Work) {
        let shared = self.network.shared.as_ref().filter(|_| !offloaded);
        match shared.map(|shared| shared.cores[rank as usize]) {
            None => self.do_work(self.now, work),
            Some(core) if self.shared[core as usize].busy => {
                self.shared[core as usize].waiting.push_back((rank, time, work));
            }
            Some(core) => self.begin_work(core, rank, time, work),
        }
    }

    fn begin_work(&mut self, core: u32, rank: Rank, time: u64, work: Work) {
        let held = &mut self.shared[core as usize];
        let switch_us = self.network.shared.as_ref().map_or(0.0, |shared| shared.switch_us);
        let switch = if held.by == Some(rank) { 0 } else { nanoseconds(switch_us) };
        (held.busy, held.by) = (true, Some(rank));
        let start = self.now + switch;
        self.events.push(start + time, Event::Free { core });
        self.do_work(start, work);
    }

    fn do_work(&mut self, ready: u64, work: Work) {
        match work {
            Work::Send { slice, message } => self.send_from(ready, slice, message),
            Work::Receive { slice, message } => self.receive_at(ready, slice, message),
            Work::Combine { slice, rank, index } => self.combine_at(ready, slice, rank, index),
            Work::Call { slice, rank } => {
                let call = nanoseconds(self.network.call_us);
                self.events.push(ready + call, Event::Called { slice, rank });
            }
        }
    }

    /// Lets `rank` begin as many slices as it may.
    fn begin(&mut self, rank: Rank) {
        let (r, all) = (rank as usize, self.rounds * self.period());
        while self.begun[r] < all {
            let (slice, open) = (self.begun[r], self.begun[r] - self.ended[r]);
            // Calls and barriers come one after another.
            let alone =
                self.is_barrier(slice) || slice.checked_sub(1).is_some_and(|last| self.is_barrier(last));
            if open >= if alone { 1 } else { self.in_flight } {
                break;
            }
            if slice + self.slices == all {
                self.left[r] = self.now;
            }
            self.begun[r] += 1;
            let call = nanoseconds(self.network.call_us);
            if call > 0 && (slice == 0 || alone) {
                // No slice begins before the call has.
                return self.work(rank, call, false, Work::Call { slice, rank });
            }
            self.rows[r].reach(slice);
            self.advance(slice, rank);
        }
    }

    /// Advances a slice, and begins others if that was the end of it.
    fn go_on(&mut self, slice: u32, rank: Rank) {
        if self.advance(slice, rank) {
            self.begin(rank);
        }
    }

    /// Posts and combines all that can be, in one slice of one rank. Whether that was the end of it.
    fn advance(&mut self, slice: u32, rank: Rank) -> bool {
        self.refill(slice, rank);
        let (mut sends_held, mut receives_held) = (false, false);
        let program = self.program(slice, rank);
        for index in program.in_order(program.waiting | program.arrived) {
            let program = self.program(slice, rank);
            let (step, blocked) = (program.step(index), program.is_blocked(index));
            if program.arrived & bit(index) != 0 {
                if !blocked {
                    program.arrived &= !bit(index);
                    self.combine(slice, rank, index);
                }
                continue;
            }
            match step {
                Step::Send { to, .. } => {
                    sends_held |= blocked;
                    if !sends_held {
                        self.post_send(slice, rank, index, to);
                    }
                }
                Step::Recv { from, .. } | Step::Reduce { from, .. } => {
                    receives_held |= blocked && matches!(step, Step::Recv { .. });
                    if !receives_held {
                        if !blocked {
                            self.program(slice, rank).passing |= bit(index);
                        }
                        self.post_receive(slice, rank, index, from);
                    }
                }
            }
        }
        let ended = self.program(slice, rank).has_ended();
        if ended {
            // A program that has ended is never advanced again, so that its end is counted once.
            self.ended[rank as usize] += 1;
            self.over[rank as usize] = self.now;
            self.rows[rank as usize].drop_ended();
        }
        ended
    }

    fn refill(&mut self, slice: u32, rank: Rank) {
        let (schedule, gathers) = (self.schedule, self.gathered_in(slice));
        let barrier = self.barrier.filter(|_| self.is_barrier(slice));
        let program = self.program(slice, rank);
        program.retire();
        while !program.ended && program.open < AHEAD {
            let index = program.base + program.open;
            // I10
            if program.open > 0 && gathers.is_some_and(|gathered| gathered.steps == index) {
                break;
            }
            match barrier.map_or_else(|| schedule.step(rank, index), |barrier| barrier.step(rank, index)) {
                Some(step) => program.push(step),
                None => program.ended = true,
            }
        }
    }

    fn post_send(&mut self, slice: u32, rank: Rank, index: u32, to: Rank) {
        let program = self.program(slice, rank);
        program.waiting &= !bit(index);
        let chunks = program.step(index).span().count;
        let at_once = self.bytes(slice, chunks) <= EAGER_BYTES as f64;
        let taker = self.blocks.stands_for(to);
        let known_as = self.blocks.moved(rank, to / self.blocks.each());
        let Some(receiver) = self.rows[taker as usize].reach(slice) else { return };
        let met = receiver.in_order(receiver.posted).find(|at| receiver.step(*at).peer() == known_as);
        let message = Message { from: rank, sent: index, to: taker, taken: UNMET, known_as, chunks };
        match met {
            Some(taken) => self.start(slice, Message { taken, ..message }),
            None => {
                receiver.unmatched.push(Unmatched {
                    from: known_as,
                    sent: index,
                    at_once,
                    taken: None,
                    here: false,
                });
                if at_once {
                    self.start(slice, message);
                }
            }
        }
    }

    fn post_receive(&mut self, slice: u32, rank: Rank, index: u32, from: Rank) {
        let giver = self.blocks.stands_for(from);
        let program = self.program(slice, rank);
        program.waiting &= !bit(index);
        let chunks = program.step(index).span().count;
        let first = program.unmatched.iter().position(|sent| sent.from == from && sent.taken.is_none());
        let Some(place) = first else {
            program.posted |= bit(index);
            return;
        };
        let Unmatched { sent, at_once, here, .. } = program.unmatched[place];
        let message = Message { from: giver, sent, to: rank, taken: index, known_as: from, chunks };
        if at_once && !here {
            program.unmatched[place].taken = Some(index);
            return;
        }
        program.unmatched.remove(place);
        match here {
            true => self.receive(slice, message),
            false => self.start(slice, message),
        }
    }

    fn start(&mut self, slice: u32, message: Message) {
        if message.taken != UNMET {
            self.program(slice, message.to).start(message.taken);
        }
        self.started += 1;
        self.starts.push(Reverse((message.sent, self.started, slice, message)));
    }

    /// What the link of a message costs, whether it goes between hosts, and whether between switches.
    fn way(&self, message: Message) -> (&'a LinkCosts, bool, bool) {
        let network = self.network;
        let (out, into) = (network.places[message.known_as as usize], network.places[message.to as usize]);
        let far = out.host != into.host;
        (if far { &network.between } else { &network.inside }, far, out.switch != into.switch)
    }

    /// How long a message holds a port.
    fn port(costs: &LinkCosts, bytes: f64) -> u64 {
        nanoseconds(costs.message_of(bytes)) + nanoseconds(bytes / costs.bytes_per_us)
    }

    /// How long a message keeps an end busy: where cores are shared and move the bytes, each does one half.
    fn end_of(&self, costs: &LinkCosts, bytes: f64) -> u64 {
        let port = Self::port(costs, bytes);
        if self.network.shared.is_some() && !costs.offloaded { port / 2 } else { port }
    }

    /// Sends a message that both sides have posted, or that goes at once.
    fn leave(&mut self, slice: u32, message: Message) {
        let (costs, ..) = self.way(message);
        let busy = self.end_of(costs, self.bytes(slice, message.chunks));
        self.work(message.from, busy, costs.offloaded, Work::Send { slice, message });
    }

    fn send_from(&mut self, ready: u64, slice: u32, message: Message) {
        let Message { from, sent, .. } = message;
        let (costs, far, _) = self.way(message);
        let bytes = self.bytes(slice, message.chunks);
        let port = self.end_of(costs, bytes);
        let start = self.send[from as usize].hold(ready, port, bytes);
        self.events.push(start + port, Event::Done { slice, rank: from, index: sent });
        let (hop, later) =
            if far { (Hop::HostOut, 0) } else { (Hop::Receive, nanoseconds(costs.latency_us)) };
        self.reaches(start + later, slice, message, hop);
    }

    /// Takes a message over the hop that it has reached.
    fn pass(&mut self, slice: u32, message: Message, hop: Hop) {
        let Message { from, to, .. } = message;
        let (costs, _, across) = self.way(message);
        let bytes = self.bytes(slice, message.chunks);
        let (out, into) = (self.network.places[from as usize], self.network.places[to as usize]);
        let latency = nanoseconds(costs.latency_us);
        let wire = nanoseconds(bytes / costs.bytes_per_us);
        let uplink = nanoseconds(bytes / self.network.uplink_bytes_per_us);
        match hop {
            Hop::HostOut => {
                let start = self.host_out[out.interface as usize].hold(self.now, wire, bytes);
                let (next, later) = if across { (Hop::SwitchOut, 0) } else { (Hop::HostIn, latency) };
                self.reaches(start + later, slice, message, next);
            }
            Hop::SwitchOut => {
                let start = self.switch_out[out.switch as usize].hold(self.now, uplink, bytes);
                self.reaches(start + latency, slice, message, Hop::SwitchIn);
            }
            Hop::SwitchIn => {
                let start = self.switch_in[into.switch as usize].hold(self.now, uplink, bytes);
                self.reaches(start, slice, message, Hop::HostIn);
            }
            Hop::HostIn => {
                let start = self.host_in[into.interface as usize].hold(self.now, wire, bytes);
                self.reaches(start, slice, message, Hop::Receive);
            }
            Hop::Receive => {
                let taken = match message.taken {
                    UNMET => self.program(slice, to).comes(message.known_as, message.sent),
                    taken => Some(taken),
                };
                if let Some(taken) = taken {
                    self.receive(slice, Message { taken, ..message });
                }
            }
        }
    }

    /// Takes in a message that has come and that a receive was posted for.
    fn receive(&mut self, slice: u32, message: Message) {
        let (costs, ..) = self.way(message);
        let busy = self.end_of(costs, self.bytes(slice, message.chunks));
        self.work(message.to, busy, costs.offloaded, Work::Receive { slice, message });
    }

    fn receive_at(&mut self, ready: u64, slice: u32, message: Message) {
        let Message { to: rank, taken: index, .. } = message;
        let (costs, far, across) = self.way(message);
        let step = self.program(slice, rank).step(index);
        let bytes = self.bytes(slice, message.chunks);
        let port = self.end_of(costs, bytes);
        // What a narrower link lets through arrives no sooner than its last byte.
        let uplink = nanoseconds(bytes / self.network.uplink_bytes_per_us);
        let slowest = if far && across { port.max(uplink) } else { port };
        let start = self.receive[rank as usize].hold(ready, port, bytes);
        let end = (start + port).max(self.now + slowest);
        // What is gathered is combined when all has come, which takes as long.
        let gathered = self.gathered_in(slice).is_some_and(|gathered| step.span().first >= gathered.chunks);
        let reduces = matches!(step, Step::Reduce { .. }) || gathered;
        let event = match reduces {
            true => Event::Arrived { slice, rank, index },
            false => Event::Done { slice, rank, index },
        };
        self.events.push(end, event);
    }

    fn reaches(&mut self, at: u64, slice: u32, message: Message, hop: Hop) {
        self.events.push(at, Event::Reaches { slice, message, hop });
    }

    fn combine(&mut self, slice: u32, rank: Rank, index: u32) {
        let time = self.combining(slice, rank, index);
        self.work(rank, time, false, Work::Combine { slice, rank, index });
    }

    fn combining(&mut self, slice: u32, rank: Rank, index: u32) -> u64 {
        let program = self.program(slice, rank);
        let (step, passing) = (program.step(index), program.passing & bit(index) != 0);
        let network = self.network;
        let near = network.places[step.peer() as usize].host == network.places[rank as usize].host;
        let bytes = self.bytes(slice, step.span().count);
        let held_up = bytes / network.inside.reduce_bytes_per_us;
        nanoseconds(match network.passing_bytes_per_us.filter(|_| near) {
            None => held_up,
            Some(speed) if passing => bytes / speed,
            // The other has read it in this rank's memory, from where it is to be had back before it is written.
            Some(_) if bytes > EAGER_BYTES as f64 => held_up + bytes / network.inside.bytes_per_us,
            Some(_) => held_up,
        })
    }

    fn combine_at(&mut self, ready: u64, slice: u32, rank: Rank, index: u32) {
        let span = self.program(slice, rank).step(index).span();
        let (bytes, time) = (self.bytes(slice, span.count), self.combining(slice, rank, index));
        let start = if self.network.inside.offloaded {
            self.core[rank as usize].hold(ready, time, bytes)
        } else {
            self.receive[rank as usize].hold(ready, time, 0.0)
        };
        self.events.push(start + time, Event::Done { slice, rank, index });
    }

    fn bytes(&self, slice: u32, chunks: u32) -> f64 {
        if self.is_barrier(slice) { 0.0 } else { f64::from(chunks) * self.piece_bytes }
    }

    pub(super) fn price(&self) -> Price {
        let mut loads = Vec::new();
        let mut add = |resource: Resource, used: &Use| {
            if used.busy > 0 {
                let rounds = f64::from(self.rounds);
                let (bytes, busy_us) = (used.bytes / rounds, used.busy as f64 / 1e3 / rounds);
                loads.push(Load { resource, bytes, busy_us });
            }
        };
        type OfRank = fn(Rank) -> Resource;
        let of_ranks: [(&[Use], OfRank); 3] =
            [(&self.send, Resource::Send), (&self.receive, Resource::Receive), (&self.core, Resource::Core)];
        let ranks = self.blocks.each() * self.blocks.count();
        for (uses, kind) in of_ranks {
            (0..ranks).for_each(|rank| add(kind(rank), &uses[self.blocks.stands_for(rank) as usize]));
        }
        // Each interface with the one that stands for it.
        let place = |rank: Rank| self.network.places[rank as usize].interface;
        let pair = |rank: Rank| (place(rank), place(self.blocks.stands_for(rank)));
        let interfaces: BTreeMap<u32, u32> = (0..ranks).map(pair).collect();
        for (interface, first) in interfaces {
            add(Resource::HostOut(interface), &self.host_out[first as usize]);
            add(Resource::HostIn(interface), &self.host_in[first as usize]);
        }
        for (switch, (out, into)) in (0..).zip(self.switch_out.iter().zip(&self.switch_in)) {
            add(Resource::SwitchOut(switch), out);
            add(Resource::SwitchIn(switch), into);
        }
        // Without barriers all begin at 0.
        let longest = self.left.iter().zip(&self.over).map(|(left, over)| over - left).max();
        Price { time_us: longest.unwrap_or(0) as f64 / 1e3, loads }
    }
}
