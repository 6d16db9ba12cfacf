//! All-reduce over hosts of several ranks: inside each host first, then among hosts, then inside again, so that the
//! links between hosts carry little. Both kinds are composed with any all-reduce among hosts.
//!
//! Ranks of a host are neighbours: host `h` has ranks `h * ranks_per_host ..`. A rank's number within its host is its
//! lane.
//!
//! Sources: P. Sanders, J. L. Träff, "The Hierarchical Factor Algorithm for All-to-all Communication" (2002) for
//! leaders; H. Mikami et al., "Massively Distributed SGD" (2018), the two-dimensional torus all-reduce, for lanes.

#![forbid(unsafe_code)]

use super::algorithm::{Algorithm, Collective};
use super::any::AnySchedule;
use super::ring;
use super::step::{Rank, Schedule, Span, Step};
use super::tree::Node;

/// The all-reduce among hosts.
fn among_hosts(algorithm: Algorithm, hosts: u32) -> Option<AnySchedule> {
    AnySchedule::new(Collective::AllReduce, algorithm, hosts, 0)
}

/// `step` of a schedule among hosts, as the rank with the given lane on each host takes it, over chunks that start at
/// `first`.
fn in_lane(step: Step, ranks_per_host: u32, lane: u32, first: u32) -> Step {
    let rank = |host: Rank| host * ranks_per_host + lane;
    let moved = |span: Span| Span::new(first + span.first, span.count);
    match step {
        Step::Send { to, span } => Step::Send { to: rank(to), span: moved(span) },
        Step::Recv { from, span } => Step::Recv { from: rank(from), span: moved(span) },
        Step::Reduce { from, span } => Step::Reduce { from: rank(from), span: moved(span) },
    }
}

/// All-reduce through one leader per host: up a tree to the host's first rank, an all-reduce among those, down the tree.
/// The fewest messages between hosts, so it is for short buffers. Keeps rank order if the part among hosts does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaderAllReduce {
    ranks: u32,
    ranks_per_host: u32,
    among: Algorithm,
}

impl LeaderAllReduce {
    /// `ranks` ranks, `ranks_per_host` on each host (fewer on the last if need be), with the all-reduce `among` hosts.
    /// `None` for no ranks at all or on a host, more than [`MAX_RANKS`](super::MAX_RANKS), or where there is no such
    /// all-reduce.
    pub fn new(ranks: u32, ranks_per_host: u32, among: Algorithm) -> Option<LeaderAllReduce> {
        if ranks == 0 || ranks > super::MAX_RANKS || ranks_per_host == 0 {
            return None;
        }
        let found = LeaderAllReduce { ranks, ranks_per_host: ranks_per_host.min(ranks), among };
        among_hosts(among, found.hosts())?;
        Some(found)
    }

    fn hosts(&self) -> u32 {
        self.ranks.div_ceil(self.ranks_per_host)
    }

    /// The schedule among hosts; `None` cannot be, since `new` has made it once.
    pub(super) fn inner(&self) -> Option<AnySchedule> {
        among_hosts(self.among, self.hosts())
    }
}

impl Schedule for LeaderAllReduce {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        self.inner().map_or(1, |inner| inner.chunks())
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let inner = self.inner()?;
        let all = Some(Span::new(0, inner.chunks()));
        let (host, lane) = (rank / self.ranks_per_host, rank % self.ranks_per_host);
        let first = rank - lane;
        let on_host = self.ranks_per_host.min(self.ranks - first);
        let node = Node::find(on_host, 0, lane);
        let fan = node.fan_steps();
        // The tree speaks of lanes of this host.
        let here = |step| in_lane(step, 1, first, 0);
        if index < fan {
            return node.fan_in(index, all).map(here);
        }
        let mut index = index - fan;
        if lane == 0 {
            if let Some(step) = inner.step(host, index) {
                return Some(in_lane(step, self.ranks_per_host, 0, 0));
            }
            index -= inner.steps(host);
        }
        node.fan_out(index, all).map(here)
    }
}

/// All-reduce by lanes: a ring reduce-scatter inside each host leaves every rank with one part of the buffer, the ranks
/// of each lane all-reduce their part among hosts, and a ring all-gather inside the host spreads the results. All ranks
/// of a host share the work between hosts, so it is for long buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaneAllReduce {
    hosts: u32,
    ranks_per_host: u32,
    among: Algorithm,
}

impl LaneAllReduce {
    /// `ranks` ranks, `ranks_per_host` on each host, with the all-reduce `among` hosts. `None` if the hosts would not
    /// all have equally many ranks, for more than [`MAX_RANKS`](super::MAX_RANKS) ranks, or where there is no such
    /// all-reduce.
    pub fn new(ranks: u32, ranks_per_host: u32, among: Algorithm) -> Option<LaneAllReduce> {
        let fits = ranks > 0 && ranks <= super::MAX_RANKS && ranks_per_host > 0;
        if !fits || !ranks.is_multiple_of(ranks_per_host) {
            return None;
        }
        let hosts = ranks / ranks_per_host;
        among_hosts(among, hosts)?;
        Some(LaneAllReduce { hosts, ranks_per_host, among })
    }

    /// The schedule among hosts; `None` cannot be, since `new` has made it once.
    fn inner(&self) -> Option<AnySchedule> {
        among_hosts(self.among, self.hosts)
    }
}

impl Schedule for LaneAllReduce {
    fn ranks(&self) -> u32 {
        self.hosts * self.ranks_per_host
    }

    /// Lane `l` answers for the `l`-th of `ranks_per_host` equal runs of chunks.
    fn chunks(&self) -> u32 {
        self.ranks_per_host * self.inner().map_or(1, |inner| inner.chunks())
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let inner = self.inner()?;
        let (lanes, run) = (self.ranks_per_host, inner.chunks());
        let (host, lane) = (rank / lanes, rank % lanes);
        // A chunk of the ring inside the host is the run of one lane.
        let here = |step| {
            let whole = |span: Span| Span::new(span.first * run, span.count * run);
            let step = match step {
                Step::Send { to, span } => Step::Send { to, span: whole(span) },
                Step::Recv { from, span } => Step::Recv { from, span: whole(span) },
                Step::Reduce { from, span } => Step::Reduce { from, span: whole(span) },
            };
            in_lane(step, 1, rank - lane, 0)
        };
        let half = ring::half_steps(lanes);
        if index < half {
            return Some(here(ring::reduce_scatter(lanes, lane, index)));
        }
        let index = index - half;
        if let Some(step) = inner.step(host, index) {
            return Some(in_lane(step, lanes, lane, lane * run));
        }
        let index = index - inner.steps(host);
        (index < half).then(|| here(ring::all_gather(lanes, lane, index)))
    }
}
