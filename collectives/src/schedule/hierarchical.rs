//! Schedules over hosts of several ranks: inside each host first, then among hosts, then inside again, so that the
//! links between hosts carry little. Both kinds are composed with any schedule among hosts.
//!
//! Ranks of a host are neighbours; hosts may have any numbers of ranks. A rank's number within its host is its lane. Ranks
//! of a NUMA node are neighbours as well, so that a host of several nodes is one level more.
//!
//! Sources: P. Sanders, J. L. Träff, "The Hierarchical Factor Algorithm for All-to-all Communication" (2002) for
//! leaders; H. Mikami et al., "Massively Distributed SGD" (2018), the two-dimensional torus all-reduce, for lanes.

#![forbid(unsafe_code)]

use super::algorithm::{Algorithm, Collective};
use super::any::AnySchedule;
use super::ring;
use super::runs::{Run, Runs};
use super::step::{Rank, Schedule, Span, Step};
use super::symmetry::Symmetry;
use super::tree::Node;

/// A step with other names for its peer and its span.
fn renamed(step: Step, peer: impl Fn(u32) -> Rank, span: impl Fn(Span) -> Span) -> Step {
    match step {
        Step::Send { to, span: s } => Step::Send { to: peer(to), span: span(s) },
        Step::Recv { from, span: s } => Step::Recv { from: peer(from), span: span(s) },
        Step::Reduce { from, span: s } => Step::Reduce { from: peer(from), span: span(s) },
    }
}

/// Through one leader per host: up a tree to the leader, the collective among leaders, and down the tree again, or what
/// of that the collective has. In hosts of several NUMA nodes the tree has a leader per node. The fewest messages between
/// hosts, so it is for short buffers. Keeps rank order if the part among hosts does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaderSchedule {
    what: Collective,
    hosts: Runs,
    nodes: Option<Runs>,
    among: Algorithm,
    root: Rank,
}

/// A tree inside a host: of the ranks of one node (or of the host), or of the leaders of its nodes.
struct Inside {
    node: Node,
    /// The run that each member of the tree stands for: a position, or a node.
    units: Units,
}

/// What members of a tree, or of the schedule among hosts, stand for.
enum Units {
    /// Single positions from this one on.
    Positions(Rank),
    /// Runs from this number on.
    Runs(u32),
}

impl LeaderSchedule {
    /// All-reduce, broadcast, reduction, all-gather or barrier over `hosts`, by way of `nodes` where they cut hosts, with
    /// the algorithm `among` hosts. `None` for another collective, a root that is no rank, where there is no such schedule
    /// among hosts, and where that combines chunks in orders of their own: trees carry all chunks at once (I7).
    pub fn new(
        what: Collective,
        hosts: Runs,
        nodes: Option<Runs>,
        among: Algorithm,
        root: Rank,
    ) -> Option<LeaderSchedule> {
        use Collective::{AllGather, AllReduce, Barrier, Broadcast, Reduce};
        let root = if what.is_rooted() { root } else { 0 };
        let exists = matches!(what, AllReduce | Broadcast | Reduce | AllGather | Barrier);
        if !exists || root >= hosts.positions() || hosts.positions() > super::MAX_RANKS {
            return None;
        }
        let nodes = nodes.filter(|nodes| hosts.is_cut_by(nodes) && nodes.count() < hosts.positions());
        let found = LeaderSchedule { what, hosts, nodes, among, root };
        found.inner().is_some_and(|inner| inner.parts() == 1 && inner.gathers().is_none()).then_some(found)
    }

    /// The schedule among hosts; `None` cannot be, since `new` has made it once.
    pub(super) fn inner(&self) -> Option<AnySchedule> {
        let root = self.hosts.find(self.root).number;
        AnySchedule::new(self.what, self.among, self.hosts.count(), root)
    }

    /// Who speaks for a run.
    fn leader(&self, run: Run) -> Rank {
        if self.what.is_rooted() && run.holds(self.root) { self.root } else { run.first }
    }

    /// The trees inside the host that `rank` is a member of, its own node's first.
    fn inside(&self, rank: Rank, host: Run) -> [Option<Inside>; 2] {
        let positions = |run: Run| {
            let node = Node::find(run.len, self.leader(run) - run.first, rank - run.first);
            Some(Inside { node, units: Units::Positions(run.first) })
        };
        let Some(nodes) = &self.nodes else { return [positions(host), None] };
        let own = nodes.find(rank);
        if rank != self.leader(own) {
            return [positions(own), None];
        }
        let first = nodes.find(host.first).number;
        let count = nodes.find(host.first + host.len - 1).number - first + 1;
        let head = nodes.find(self.leader(host)).number;
        let node = Node::find(count, head - first, own.number - first);
        [positions(own), Some(Inside { node, units: Units::Runs(first) })]
    }

    /// What of every message is: all of the buffer, or for an all-gather on its way up the blocks of those concerned.
    fn whole(&self, chunks: u32, up: bool) -> Option<Span> {
        (self.what != Collective::AllGather || !up).then_some(Span::new(0, chunks))
    }

    fn has_up(&self) -> bool {
        self.what != Collective::Broadcast
    }

    fn has_down(&self) -> bool {
        self.what != Collective::Reduce
    }

    /// A step of a tree inside, in terms of positions.
    fn placed(&self, step: Step, units: &Units, blocks: bool) -> Step {
        let runs = self.nodes.as_ref().unwrap_or(&self.hosts);
        match *units {
            Units::Positions(first) => {
                let span = |span: Span| Span::new(span.first + u32::from(blocks) * first, span.count);
                renamed(step, |lane| first + lane, span)
            }
            Units::Runs(first) => {
                let peer = |unit| self.leader(runs.run(first + unit));
                let span =
                    |span: Span| if blocks { blocks_of(runs, first + span.first, span.count) } else { span };
                renamed(step, peer, span)
            }
        }
    }
}

/// The positions of `count` runs from number `first` on, as chunks of an all-gather.
fn blocks_of(runs: &Runs, first: u32, count: u32) -> Span {
    let (begin, last) = (runs.run(first), runs.run(first + count - 1));
    Span::new(begin.first, last.first + last.len - begin.first)
}

/// Whether all hosts have equally many ranks.
fn are_alike(hosts: &Runs) -> bool {
    hosts.longest() == hosts.shortest()
}

impl Schedule for LeaderSchedule {
    fn ranks(&self) -> u32 {
        self.hosts.positions()
    }

    fn chunks(&self) -> u32 {
        match self.what {
            Collective::AllGather => self.ranks(),
            _ => self.inner().map_or(1, |inner| inner.chunks()),
        }
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let inner = self.inner()?;
        let gathers = self.what == Collective::AllGather;
        let chunks = if gathers { self.ranks() } else { inner.chunks() };
        let host = self.hosts.find(rank);
        let trees = self.inside(rank, host);
        let mut index = index;
        if self.has_up() {
            for Inside { node, units } in trees.iter().flatten() {
                if let Some(step) = node.fan_in(index, self.whole(chunks, true)) {
                    return Some(self.placed(step, units, gathers));
                }
                index -= node.fan_steps();
            }
        }
        if rank == self.leader(host) {
            if let Some(step) = inner.step(host.number, index) {
                let span =
                    |span: Span| if gathers { blocks_of(&self.hosts, span.first, span.count) } else { span };
                return Some(renamed(step, |host| self.leader(self.hosts.run(host)), span));
            }
            index -= inner.steps(host.number);
        }
        if self.has_down() {
            for Inside { node, units } in trees.iter().rev().flatten() {
                if let Some(step) = node.fan_out(index, self.whole(chunks, false)) {
                    return Some(self.placed(step, units, false));
                }
                index -= node.fan_steps();
            }
        }
        None
    }

    fn symmetry(&self) -> Option<Symmetry> {
        // Hosts that are alike are moved as their leaders are.
        let alike = self.what == Collective::AllReduce && self.nodes.is_none() && are_alike(&self.hosts);
        Some(self.inner().filter(|_| alike)?.symmetry()?.of_groups(self.hosts.longest()))
    }
}

/// All-reduce by lanes: a ring reduce-scatter inside each host leaves every rank with one part of the buffer, the ranks
/// of each lane all-reduce their part among hosts, and a ring all-gather inside the host spreads the results. All ranks
/// of a host share the work between hosts, and all of its network interfaces where ranks have their own, so it is for long
/// buffers. There are as many lanes as the smallest host has ranks; further ranks of others hand all they have to a lane,
/// and get the result back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LaneAllReduce {
    hosts: Runs,
    lanes: u32,
    among: Algorithm,
}

impl LaneAllReduce {
    /// Over `hosts`, with the all-reduce `among` them. `None` for more than [`MAX_RANKS`](super::MAX_RANKS) ranks, or where
    /// there is no such all-reduce.
    pub fn new(hosts: Runs, among: Algorithm) -> Option<LaneAllReduce> {
        if hosts.positions() > super::MAX_RANKS {
            return None;
        }
        let lanes = hosts.shortest();
        let found = LaneAllReduce { hosts, lanes, among };
        found.inner().is_some_and(|inner| inner.gathers().is_none()).then_some(found)
    }

    /// Most chunks in one message: those of one part.
    pub fn widest(&self) -> u32 {
        self.inner().map_or(1, |inner| inner.chunks() / inner.parts())
    }

    /// Whether some ranks have no lane of their own: they hand all they have to one that has.
    pub fn has_others(&self) -> bool {
        self.hosts.longest() > self.lanes
    }

    /// The schedule among hosts; `None` cannot be, since `new` has made it once.
    fn inner(&self) -> Option<AnySchedule> {
        AnySchedule::new(Collective::AllReduce, self.among, self.hosts.count(), 0)
    }

    /// As [`AnySchedule::parts`]: those of each lane's run.
    pub(super) fn parts(&self) -> u32 {
        self.lanes * self.inner().map_or(1, |inner| inner.parts())
    }

    /// Steps of a lane: those of the host's ranks beyond the lanes that it takes in, then its own, then those it gives out
    /// to.
    fn lane_step(&self, host: Run, lane: u32, index: u32, inner: &AnySchedule) -> Option<Step> {
        let (lanes, run, parts) = (self.lanes, inner.chunks(), inner.parts());
        let part = |number: u32| Span::new(number * (run / parts), run / parts);
        let all_parts = lanes * parts;
        let beyond = (host.len - 1 - lane) / lanes * all_parts;
        let other = |number: u32| host.first + lane + lanes * (number / all_parts + 1);
        if index < beyond {
            return Some(Step::Reduce { from: other(index), span: part(index % all_parts) });
        }
        let index = index - beyond;
        // A chunk of the ring inside the host is the run of one lane, and goes part by part.
        let (half, pair) = (ring::half_steps(lanes) * parts, 2 * parts);
        let here = |index: u32, ring: fn(u32, Rank, u32) -> Step| {
            let step = ring(lanes, lane, index / pair * 2 + index % 2);
            let of_part = |span: Span| part(span.first * parts + index % pair / 2);
            renamed(step, |lane| host.first + lane, of_part)
        };
        if index < half {
            return Some(here(index, ring::reduce_scatter));
        }
        let index = index - half;
        if let Some(step) = inner.step(host.number, index) {
            let peer = |host| self.hosts.run(host).first + lane;
            return Some(renamed(step, peer, |span| Span::new(lane * run + span.first, span.count)));
        }
        let index = index - inner.steps(host.number);
        if index < half {
            return Some(here(index, ring::all_gather));
        }
        let index = index - half;
        (index < beyond).then(|| Step::Send { to: other(index), span: part(index % all_parts) })
    }
}

impl Schedule for LaneAllReduce {
    fn ranks(&self) -> u32 {
        self.hosts.positions()
    }

    /// Lane `l` answers for the `l`-th of as many equal runs of chunks as there are lanes.
    fn chunks(&self) -> u32 {
        self.lanes * self.inner().map_or(1, |inner| inner.chunks())
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let inner = self.inner()?;
        let host = self.hosts.find(rank);
        let lane = rank - host.first;
        if lane < self.lanes {
            return self.lane_step(host, lane, index, &inner);
        }
        let (by, parts) = (host.first + lane % self.lanes, self.parts());
        let width = self.chunks() / parts;
        let span = Span::new(index % parts * width, width);
        match index / parts {
            0 => Some(Step::Send { to: by, span }),
            1 => Some(Step::Recv { from: by, span }),
            _ => None,
        }
    }

    fn symmetry(&self) -> Option<Symmetry> {
        // Inside hosts the parts go in one order, so with several of them it is not the order that is moved among hosts.
        let alike = |inner: &AnySchedule| inner.parts() == 1 && are_alike(&self.hosts);
        Some(self.inner().filter(alike)?.symmetry()?.of_groups(self.lanes))
    }
}
