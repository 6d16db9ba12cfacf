//! What a collective costs, by closed formula.
//!
//! The model is Hockney's (a message of `m` bytes takes `latency + m / bandwidth`) with the per-message overhead of
//! LogP (D. Culler et al. 1993) and a term for combining. The formulas are those of R. Thakur, R. Rabenseifner,
//! W. Gropp, "Optimization of Collective Communication Operations in MPICH" (2005), sections 4.1 to 4.5, extended by
//! pipelining: with `k` slices the time is that of one slice on its longest path, and `k - 1` times what a slice
//! occupies the busiest port or core.

#![forbid(unsafe_code)]

mod hosts;

use super::algorithm::{Algorithm, Collective};
use super::arrangement::Arrangement;

/// Costs of a link between two ranks and of the cores at its ends. They are an input of the choice of algorithm, so all
/// ranks of a group must hold equal ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkCosts {
    /// One way, from the end of sending to the receiver's acting on it, in microseconds.
    pub latency_us: f64,
    /// What each message costs its sender and its receiver whatever its size, in microseconds, where it waits for its
    /// receiver's word: beyond [`EAGER_BYTES`].
    pub message_us: f64,
    /// The same for a message of no more than that, which goes at once.
    pub eager_message_us: f64,
    /// Bandwidth of each direction while both are in use, in bytes per microsecond (1,000 is 1 GB/s).
    pub bytes_per_us: f64,
    /// How fast one rank combines a slice that is in its cache, in bytes of one operand per microsecond.
    pub reduce_bytes_per_us: f64,
    /// Whether bytes move without the rank's core, which then combines meanwhile: true for RDMA, false for sockets and
    /// shared memory, where the core that combines is the one that copies.
    pub offloaded: bool,
}

/// Longest message that goes without its receiver's word, for what it costs ([`LinkCosts::eager_message_us`]); what
/// transports do by default.
pub const EAGER_BYTES: u64 = 16 << 10;

impl LinkCosts {
    /// What a message of so many bytes costs at its ends beside its bytes, in microseconds.
    pub fn message_of(&self, bytes: f64) -> f64 {
        if bytes <= EAGER_BYTES as f64 { self.eager_message_us } else { self.message_us }
    }

    /// TCP between processes of one host, as measured on a two-core machine: 4.5 GB/s in exchange, combining at 50 GB/s
    /// from the second-level cache (20 GB/s from memory). A message costs what makes the choices right where they are
    /// close: with 2 ranks, doubling and ring cost the same at 64 KiB and again at 1 MiB (measured: at 2 MiB), and doubling is ahead
    /// between them, since a message beyond the eager limit waits for its receiver's word. One within it is priced alike (8 B
    /// alone take 5 us): with 4 ranks on 2 cores doubling stays ahead of what has more messages and fewer hops up to 64 KiB.
    pub const TCP_LOOPBACK: LinkCosts = LinkCosts {
        latency_us: 3.0,
        message_us: 10.0,
        eager_message_us: 10.0,
        bytes_per_us: 4_500.0,
        reduce_bytes_per_us: 50_000.0,
        offloaded: false,
    };

    /// TCP over a network of 25 Gbit/s: its width, and what a message usually takes there. It was not measured;
    /// `ringway tune` measures yours.
    pub const NETWORK: LinkCosts = LinkCosts {
        latency_us: 10.0,
        message_us: 10.0,
        eager_message_us: 10.0,
        bytes_per_us: 3_000.0,
        reduce_bytes_per_us: 50_000.0,
        offloaded: false,
    };

    /// Shared memory between two ranks of one host, as measured on a two-core machine: 9.5 GB/s in exchange, through queues
    /// that fit a second-level cache.
    pub const SHARED_MEMORY: LinkCosts = LinkCosts {
        latency_us: 0.1,
        message_us: 0.1,
        eager_message_us: 0.1,
        bytes_per_us: 9_500.0,
        reduce_bytes_per_us: 50_000.0,
        offloaded: false,
    };

    /// Shared memory among 3 to 8 ranks ([`estimate_in_memory`]): what makes the choices right with 4 ranks on 2 cores, where a
    /// message that is waited for may be a switch of processes. There all-reduces take, in us: `Exchange` 7.6 of 8 B, 9.0 of 2
    /// KiB and 12.5 of 8 KiB; `Doubling` 8.3, 9.0, 10.3 and 12.5 of 16 KiB, 24.2 of 32 KiB, which waits for its receiver's word;
    /// `Direct` 13.6 to 17 of 16 KiB and 16.5 to 18.7 of 32 KiB.
    pub const SHARED_BY_SOME: LinkCosts = LinkCosts {
        latency_us: 0.72,
        message_us: 2.0,
        eager_message_us: 0.4,
        bytes_per_us: 8_000.0,
        reduce_bytes_per_us: 50_000.0,
        offloaded: false,
    };
}

impl Default for LinkCosts {
    fn default() -> LinkCosts {
        LinkCosts::TCP_LOOPBACK
    }
}

/// What links cost inside a host and between hosts. All ranks of a group must hold equal ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Between ranks of one host.
    pub inside: LinkCosts,
    /// Between hosts; the bandwidth is that of one interface, shared by the ranks that use it.
    pub between: LinkCosts,
}

impl Default for Costs {
    /// The same whatever carries the bytes, so that equal groups get equal bits over every transport.
    fn default() -> Costs {
        Costs { inside: LinkCosts::TCP_LOOPBACK, between: LinkCosts::NETWORK }
    }
}

impl Costs {
    /// The same where a rank combines what it reads in another's memory as it reads it, which costs it nothing more: between
    /// two ranks that share memory, if no rank sends what it combines into.
    #[must_use]
    pub fn combining_in_passing(self) -> Costs {
        if self.inside != LinkCosts::SHARED_MEMORY {
            return self;
        }
        LinkCosts { reduce_bytes_per_us: f64::INFINITY, ..self.inside }.into()
    }
}

impl From<LinkCosts> for Costs {
    fn from(costs: LinkCosts) -> Costs {
        Costs { inside: costs, between: costs }
    }
}

/// The longest path of a schedule run as one slice, and what it asks of its busiest rank. Bytes are counted in chunks.
#[derive(Clone, Copy, Debug, Default)]
struct Shape {
    /// Parts the buffer is cut into.
    parts: f64,
    /// The most chunks in one message.
    largest: f64,
    /// Messages in sequence on the longest path, each of which waits for the one before.
    hops: f64,
    /// Messages in sequence on the longest path, including those that only share a port.
    messages: f64,
    /// Chunks in them.
    sent: f64,
    /// Chunks combined on the longest path and not hidden behind messages.
    combined: f64,
    /// Messages through the busiest port in one direction.
    port_messages: f64,
    /// Chunks in them.
    port_sent: f64,
    /// Chunks combined by the busiest rank.
    core_combined: f64,
    /// Above 0 where a rank's part in a slice lasts about as long as the longest path, most of it waiting, so that further
    /// slices have to be under way meanwhile: this many times as many as would follow each other on that path without a gap.
    lasting: f64,
}

impl Shape {
    /// A shape in which every rank is busy all the way: `hops` messages of together `sent` chunks, in sequence.
    fn even(parts: f64, largest: f64, hops: f64, sent: f64, combined: f64) -> Shape {
        Shape {
            parts,
            largest,
            hops,
            messages: hops,
            sent,
            combined,
            port_messages: hops,
            port_sent: sent,
            core_combined: combined,
            lasting: 0.0,
        }
    }

    /// One part after another.
    fn then(self, next: Shape) -> Shape {
        Shape {
            parts: self.parts,
            largest: self.largest.max(next.largest),
            hops: self.hops + next.hops,
            messages: self.messages + next.messages,
            sent: self.sent + next.sent,
            combined: self.combined + next.combined,
            port_messages: self.port_messages + next.port_messages,
            port_sent: self.port_sent + next.port_sent,
            core_combined: self.core_combined + next.core_combined,
            lasting: self.lasting.max(next.lasting),
        }
    }

    /// The same with every received chunk combined.
    fn reducing(self) -> Shape {
        Shape { combined: self.sent, core_combined: self.port_sent, ..self }
    }
}

/// A part of an algorithm that runs over links of one kind.
struct Part {
    shape: Shape,
    costs: LinkCosts,
    /// How much of an interface's bandwidth a message gets: less than 1 where ranks of a host send through it at once.
    share: f64,
}

impl Part {
    /// Over links that nobody else uses.
    fn alone(shape: Shape, costs: LinkCosts) -> Part {
        Part { shape, costs, share: 1.0 }
    }
}

/// A number of ranks, with what the formulas make of it.
struct Group {
    ranks: u32,
    n: f64,
    /// Rounds of a power of two of ranks, rounded down.
    floor: f64,
    /// The same rounded up: depth of the trees.
    depth: f64,
    /// 1 if ranks have to be folded to make a power of two, else 0.
    fold: f64,
}

impl Group {
    fn of(ranks: u32) -> Group {
        let even = ranks.is_power_of_two();
        Group {
            ranks,
            n: f64::from(ranks),
            floor: f64::from(ranks.ilog2()),
            depth: f64::from(ranks.next_power_of_two().ilog2()),
            fold: if even { 0.0 } else { 1.0 },
        }
    }

    /// Once round the ring, one chunk at a time.
    fn ring(&self) -> Shape {
        Shape::even(self.n, 1.0, self.n - 1.0, self.n - 1.0, 0.0)
    }

    /// The whole buffer past every rank, `ways` times, combined once; each slice goes `passes` times through a port.
    fn chain(&self, ways: f64, passes: f64) -> Shape {
        let hops = ways * (self.n - 1.0);
        let some = 1.0_f64.min(self.n - 1.0);
        Shape {
            port_messages: passes * some,
            port_sent: passes * some,
            core_combined: some,
            ..Shape::even(1.0, 1.0, hops, hops, self.n - 1.0)
        }
    }

    /// One block after the other up the chain, then each to its rank.
    fn blocks_up_the_chain(&self) -> Shape {
        let some = 1.0_f64.min(self.n - 1.0);
        let way = 3.0 * (self.n - 1.0);
        Shape {
            port_messages: (2.0 * self.n - 1.0) * some,
            port_sent: (2.0 * self.n - 1.0) * some,
            core_combined: self.n * some,
            ..Shape::even(self.n, 1.0, way, way, 2.0 * (self.n - 1.0))
        }
    }

    /// Every rank to every other, or one rank to or from all others: one hop, through one port.
    fn exchange(&self) -> Shape {
        Shape { hops: 1.0_f64.min(self.n - 1.0), ..self.ring() }
    }

    /// The two sweeps of the direct reduce-scatter keep rank order at the price of crowding at one receiver after the
    /// other, which nearly doubles the time.
    fn sweeps(&self) -> Shape {
        let crowded = (2.0 * (self.n - 1.0) - 1.0).max(0.0);
        let exchange = self.exchange();
        let sent = Shape {
            messages: crowded,
            sent: crowded,
            port_messages: crowded,
            port_sent: crowded,
            ..exchange
        };
        Shape { combined: self.n - 1.0, core_combined: self.n - 1.0, ..sent }
    }

    /// The whole buffer down the tree. The path counts all levels; the busiest port is that of a rank with a child at
    /// each level of a power of two.
    fn tree(&self) -> Shape {
        Shape {
            port_messages: self.floor,
            port_sent: self.floor,
            ..Shape::even(1.0, 1.0, self.depth, self.depth, 0.0)
        }
    }

    /// Two trees, each with one half, in one direction: two messages of a half on each level for the rank that waits for
    /// both; every port carries the whole buffer once.
    fn two_trees(&self) -> Shape {
        let port = DOUBLE_TREE_PORT.min(2.0 * (self.n - 1.0));
        let messages = 2.0 * self.depth;
        Shape {
            hops: self.depth,
            port_messages: port,
            port_sent: port,
            lasting: 1.0,
            ..Shape::even(2.0, 1.0, messages, messages, 0.0)
        }
    }

    /// Blocks that halve (or double) from round to round: of a range of ranks, the larger half on the longest path.
    fn halves(&self) -> Shape {
        let (mut sent, mut range) = (0.0, self.ranks);
        while range > 1 {
            range = range.div_ceil(2);
            sent += f64::from(range);
        }
        let largest = f64::from(self.ranks.div_ceil(2));
        Shape { port_sent: self.n - 1.0, ..Shape::even(self.n, largest, self.depth, sent, 0.0) }
    }

    /// Recursive doubling or halving with `per_round` messages a round, of together `sent` of `parts` chunks; before and
    /// after it the fold. Ranks that did not wait for a fold send early and crowd the ports of those that did.
    fn folded(&self, parts: f64, per_round: f64, sent: f64, combined: f64) -> Shape {
        let rounds = per_round * self.floor + 2.0 * self.fold;
        let whole = self.fold * parts;
        let port_sent = sent + 1.5 * whole;
        let largest = if self.fold > 0.0 || per_round == 1.0 { parts } else { (parts / 2.0).max(1.0) };
        Shape {
            messages: rounds + self.fold * self.floor / 2.0,
            sent: sent + 2.0 * whole + self.fold * sent / (2.0 * per_round),
            port_messages: rounds - self.fold / 2.0,
            port_sent,
            ..Shape::even(parts, largest, rounds, port_sent, combined + whole)
        }
    }
}

fn shape(collective: Collective, algorithm: Algorithm, ranks: u32) -> Option<Shape> {
    use {Algorithm as A, Collective as C};
    let group = Group::of(ranks);
    let even = ranks.is_power_of_two();
    Some(match (collective, algorithm) {
        (C::AllReduce, A::Ring) => group.ring().reducing().then(group.ring()),
        (C::AllReduce, A::Tree) => {
            // Down and up use the two directions of a port; a rank inside the tree has its parent besides its children.
            let (port_messages, port_sent) = (group.depth, group.depth);
            Shape { port_messages, port_sent, lasting: 1.0, ..group.tree().reducing().then(group.tree()) }
        }
        (C::AllReduce, A::DoubleTree) => {
            Shape { lasting: 1.5, ..group.two_trees().reducing().then(group.two_trees()) }
        }
        (C::AllReduce, A::Doubling) => group.folded(1.0, 1.0, group.floor, group.floor),
        (C::AllReduce, A::Halving) => {
            let parts = f64::from(1u32 << ranks.ilog2());
            group.folded(parts, 2.0, 2.0 * (parts - 1.0), parts - 1.0)
        }
        (C::AllReduce, A::Direct) => group.sweeps().then(group.exchange()),
        // Messages hold the whole buffer.
        (C::AllReduce, A::Exchange) => Shape { parts: 1.0, ..group.exchange() }.reducing(),
        (C::ReduceScatter, A::Ring) => group.ring().reducing(),
        (C::ReduceScatter, A::Halving) if even => group.halves().reducing(),
        (C::ReduceScatter, A::Direct) => group.sweeps(),
        (C::ReduceScatter, A::Exchange) if even => group.exchange().reducing(),
        (C::AllGather, A::Ring) => group.ring(),
        (C::AllGather, A::Doubling) if even => group.halves(),
        (C::AllGather | C::AllToAll, A::Direct) => group.exchange(),
        (C::Broadcast, A::Tree) => group.tree(),
        (C::Broadcast, A::Chain) => {
            let port = 1.0_f64.min(group.n - 1.0);
            let hops = group.n - 1.0;
            Shape { port_messages: port, port_sent: port, ..Shape::even(1.0, 1.0, hops, hops, 0.0) }
        }
        (C::Broadcast, A::Direct) => Shape { parts: 1.0, ..group.exchange() },
        (C::Broadcast, A::DoubleTree) => group.two_trees(),
        (C::Reduce, A::DoubleTree) => group.two_trees().reducing(),
        // The two directions of a rank's link are counted as one: what goes up and what comes down are the same bytes.
        (C::AllReduce, A::Chain) => group.chain(2.0, 2.0),
        (C::Reduce, A::Chain) => group.chain(1.0, 2.0),
        (C::Scan, A::Chain) => group.chain(1.0, 1.0),
        (C::ExclusiveScan, A::Chain) => group.chain(1.0, 2.0),
        (C::ReduceScatter, A::Chain) => group.blocks_up_the_chain(),
        (C::Broadcast, A::ScatterAllGather) => group.halves().then(group.ring()),
        (C::Reduce, A::Tree) => group.tree().reducing(),
        (C::Reduce, A::Ring) => group.ring().reducing().then(group.exchange()),
        (C::Gather | C::Scatter, A::Direct) => group.exchange(),
        (C::Gather | C::Scatter, A::Tree) => group.halves(),
        (C::Barrier, A::Dissemination) => Shape::even(1.0, 1.0, group.depth, group.depth, 0.0),
        _ => return None,
    })
}

/// Largest message of a slice, in bytes, from which [`estimate`] takes the cheapest. Below 64 KiB the per-message cost
/// rules; above 512 KiB two slices in flight, with their operands, leave a second-level cache of 1 MiB before they are
/// combined (measured over TCP with 4 ranks on 2 cores and 8 MiB: 4 % more by 1 MiB).
pub const SLICE_MESSAGE_BYTES: [u64; 4] = [512 << 10, 256 << 10, 128 << 10, 64 << 10];

/// Largest message of a slice between two ranks of one host that share no memory. Fewer messages that wait for their receiver's word
/// are worth more there than the cache: over TCP all operations take 1 to 14 % less from 768 KiB up than by 512 KiB. Over soft-RoCE
/// it makes no difference; between hosts, where the wire's time hides the combining of small slices, it was not measured.
pub const PAIR_MESSAGE_BYTES: u64 = 1 << 20;

/// Further ones for algorithms that have to have many slices under way ([`Estimate::slices_in_flight`]).
const FINE_MESSAGE_BYTES: [u64; 2] = [32 << 10, 16 << 10];

/// Slices under way at a time where a rank is busy with one all the way: one is combined while the next is on the wire.
/// More of them leave the cache (measured over TCP with 2 ranks and 64 MiB: 15.7 ms with 2, 17.6 ms with 4).
pub const FEWEST_IN_FLIGHT: u32 = 2;
/// Most slices under way at a time that are ever asked for.
pub const MOST_IN_FLIGHT: u32 = 16;
/// Messages that a double tree holds a port for per slice and direction: two of a half each, and what is lost where the
/// two trees wait for each other (a quarter, by simulation of 8 to 127 ranks).
const DOUBLE_TREE_PORT: f64 = 2.5;

/// What an algorithm costs with its best slice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The time on the slowest rank, in microseconds.
    pub time_us: f64,
    /// How many bytes of every chunk one slice covers; at least 1. A chunk of `c` bytes is run in
    /// `ceil(c / slice_bytes)` slices.
    pub slice_bytes: u64,
    /// Slices of a rank that should be under way at a time.
    pub slices_in_flight: u32,
}

/// Estimates `collective` by `algorithm` over `bytes` bytes: all chunks of one rank together (for an all-to-all, its
/// send chunks). `None` where the algorithm does not exist, as for [`AnySchedule::new`](super::AnySchedule::new).
pub fn estimate(
    collective: Collective,
    algorithm: Algorithm,
    ranks: u32,
    bytes: u64,
    costs: &LinkCosts,
) -> Option<Estimate> {
    estimate_over_hosts(collective, algorithm, &Arrangement::together(ranks), bytes, &Costs::from(*costs))
}

/// As [`estimate`], for ranks that lie on hosts as `group` says. `None` where
/// [`Arrangement::schedule`] has no schedule.
pub fn estimate_over_hosts(
    collective: Collective,
    algorithm: Algorithm,
    group: &Arrangement,
    bytes: u64,
    costs: &Costs,
) -> Option<Estimate> {
    if group.ranks() == 0 || group.ranks() > super::MAX_RANKS {
        return None;
    }
    let pair = group.ranks() == 2 && group.hosts() == 1 && costs.inside != LinkCosts::SHARED_MEMORY;
    Some(with_best_slice(collective, &hosts::parts(collective, algorithm, group, costs)?, bytes, pair))
}

/// As [`estimate`], for ranks that all share memory, whose links cost so much. A receiver takes messages there when it gets to
/// them, so that ranks which send to the same one at once do not crowd it.
pub fn estimate_in_memory(
    collective: Collective,
    algorithm: Algorithm,
    ranks: u32,
    bytes: u64,
    costs: &LinkCosts,
) -> Option<Estimate> {
    if ranks == 0 || ranks > super::MAX_RANKS {
        return None;
    }
    let group = Group::of(ranks);
    let shape = match (collective, algorithm) {
        (Collective::AllReduce, Algorithm::Direct) => {
            let gathered = group.exchange();
            let all = gathered.then(gathered);
            Shape { combined: gathered.sent, core_combined: gathered.sent, ..all }
        }
        // Those that wait for their receivers wait at the same time.
        (Collective::ReduceScatter, Algorithm::Exchange) if bytes > EAGER_BYTES * u64::from(ranks) => {
            let shape = shape(collective, algorithm, ranks)?;
            Shape { messages: shape.hops, ..shape }
        }
        _ => shape(collective, algorithm, ranks)?,
    };
    Some(with_best_slice(collective, &[Part::alone(shape, *costs)], bytes, false))
}

fn with_best_slice(collective: Collective, parts: &[Part], bytes: u64, pair: bool) -> Estimate {
    let bytes = if collective == Collective::Barrier { 0 } else { bytes };
    let cut = parts.iter().map(|part| part.shape.parts).fold(1.0, f64::max);
    let largest = parts.iter().map(|part| part.shape.largest.ceil() as u64).max().unwrap_or(1).max(1);
    let chunk_bytes = bytes.div_ceil(cut as u64);
    let mut best = Estimate { time_us: f64::INFINITY, slice_bytes: 1, slices_in_flight: FEWEST_IN_FLIGHT };
    let lasting = parts.iter().any(|part| part.shape.lasting > 0.0);
    let fine = if lasting { &FINE_MESSAGE_BYTES[..] } else { &[] };
    let large = if pair { &[PAIR_MESSAGE_BYTES][..] } else { &[] };
    for &message_bytes in large.iter().chain(&SLICE_MESSAGE_BYTES).chain(fine) {
        let slice_bytes = (message_bytes / largest).clamp(1, chunk_bytes.max(1));
        let slices = chunk_bytes.div_ceil(slice_bytes).max(1);
        // Slices of equal size: no small one is left over at the end.
        let slice_bytes = chunk_bytes.div_ceil(slices).max(1);
        let (time_us, slices_in_flight) = time_us(parts, bytes as f64 / cut, slices as f64);
        if time_us < best.time_us {
            best = Estimate { time_us, slice_bytes, slices_in_flight };
        }
    }
    best
}

/// One slice goes through all parts; each further one takes as long as what it occupies longest, or as its share of the
/// whole path where no more are under way. Answers with how many should be.
fn time_us(parts: &[Part], chunk_bytes: f64, slices: f64) -> (f64, u32) {
    let slice = chunk_bytes / slices;
    let (mut path, mut port, mut core, mut interface) = (0.0, 0.0, 0.0, 0.0_f64);
    let (mut offloaded, mut lasting) = (true, 0.0_f64);
    for Part { shape, costs, share } in parts {
        let message_us = costs.message_of(shape.largest * slice);
        path += shape.hops * costs.latency_us
            + shape.messages * message_us
            + shape.sent * slice / (costs.bytes_per_us * share)
            + shape.combined * slice / costs.reduce_bytes_per_us;
        if *share < 1.0 {
            interface += shape.port_sent * slice / (costs.bytes_per_us * share);
        }
        port += shape.port_messages * message_us + shape.port_sent * slice / costs.bytes_per_us;
        core += shape.core_combined * slice / costs.reduce_bytes_per_us;
        offloaded &= costs.offloaded;
        lasting = lasting.max(shape.lasting);
    }
    let busy = if offloaded { port.max(core) } else { port + core }.max(interface);
    let (fewest, most) = (f64::from(FEWEST_IN_FLIGHT), f64::from(MOST_IN_FLIGHT));
    if lasting == 0.0 || busy == 0.0 {
        return (path + (slices - 1.0) * busy, FEWEST_IN_FLIGHT);
    }
    let in_flight = (lasting * path / busy).ceil().clamp(fewest, most);
    let each = busy.max(path / in_flight);
    (path + (slices - 1.0) * each, in_flight as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: LinkCosts = LinkCosts {
        latency_us: 5.0,
        message_us: 1.0,
        eager_message_us: 1.0,
        bytes_per_us: 1_000.0,
        reduce_bytes_per_us: 10_000.0,
        offloaded: true,
    };

    fn time(collective: Collective, algorithm: Algorithm, ranks: u32, bytes: u64) -> f64 {
        estimate(collective, algorithm, ranks, bytes, &COSTS).unwrap().time_us
    }

    /// Thakur et al. (2005), with alpha = latency + message, beta = 1 / bandwidth, gamma = 1 / combining.
    #[test]
    fn messages_of_one_slice_cost_what_the_paper_says() {
        let (alpha, beta, gamma) = (6.0, 1e-3, 1e-4);
        let (p, m) = (8u32, 8_000.0);
        let (n, lg) = (f64::from(p), 3.0);
        let part = (n - 1.0) / n * m;
        let cases = [
            (Collective::AllGather, Algorithm::Ring, (n - 1.0) * alpha + part * beta),
            (Collective::AllGather, Algorithm::Doubling, lg * alpha + part * beta),
            (Collective::Broadcast, Algorithm::Tree, lg * (alpha + m * beta)),
            (Collective::Broadcast, Algorithm::ScatterAllGather, (lg + n - 1.0) * alpha + 2.0 * part * beta),
            (Collective::ReduceScatter, Algorithm::Halving, lg * alpha + part * (beta + gamma)),
            (Collective::Reduce, Algorithm::Tree, lg * (alpha + m * beta + m * gamma)),
            (Collective::AllReduce, Algorithm::Doubling, lg * (alpha + m * beta + m * gamma)),
            (Collective::AllReduce, Algorithm::Halving, 2.0 * lg * alpha + 2.0 * part * beta + part * gamma),
            (
                Collective::AllReduce,
                Algorithm::Ring,
                2.0 * (n - 1.0) * alpha + 2.0 * part * beta + part * gamma,
            ),
        ];
        for (collective, algorithm, wanted) in cases {
            let found = time(collective, algorithm, p, m as u64);
            assert!((found - wanted).abs() < 1e-9, "{algorithm} {collective}: {found} for {wanted}");
        }
    }

    #[test]
    fn slices_hide_the_combining_and_fill_the_chain() {
        let bytes = 64 << 20;
        let ring = time(Collective::AllReduce, Algorithm::Ring, 4, bytes);
        let wire = 1.5 * bytes as f64 / COSTS.bytes_per_us;
        assert!(ring > wire && ring < 1.05 * wire, "{ring} for {wire}");
        let chain = time(Collective::Broadcast, Algorithm::Chain, 16, bytes);
        let wire = bytes as f64 / COSTS.bytes_per_us;
        assert!(chain > wire && chain < 1.15 * wire, "{chain} for {wire}");
    }

    #[test]
    fn an_estimate_exists_exactly_where_a_schedule_does() {
        for ranks in 0..=70 {
            for collective in Collective::ALL {
                for algorithm in Algorithm::ALL {
                    let schedule = crate::schedule::AnySchedule::new(collective, algorithm, ranks, 0);
                    let found = estimate(collective, algorithm, ranks, 1000, &COSTS);
                    assert_eq!(
                        found.is_some(),
                        schedule.is_some(),
                        "{algorithm} {collective}, {ranks} ranks"
                    );
                    let Some(found) = found else { continue };
                    assert!(found.time_us.is_finite() && found.time_us >= 0.0 && found.slice_bytes >= 1);
                    if ranks == 1 {
                        assert_eq!(found.time_us, 0.0, "{algorithm} {collective}");
                    }
                }
            }
        }
    }
}
