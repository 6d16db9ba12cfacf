//! Schedules over ranks that lie anywhere: in which order they are visited, and which of them share a host.
//!
//! A schedule knows positions `0..ranks`, of which neighbours are near each other. An [`Arrangement`] says which rank
//! stands at which position, so that a ring or tree crosses each slow link once however ranks are numbered. The order
//! must be the same on all ranks of a group.

#![forbid(unsafe_code)]

use super::algorithm::{Algorithm, Collective};
use super::any::AnySchedule;
use super::gathered::Gathered;
use super::hierarchical::{LaneAllReduce, LeaderSchedule};
use super::runs::Runs;
use super::step::{Rank, Schedule, Span, Step};
use super::symmetry::Symmetry;
use std::sync::Arc;

/// How the ranks of a group lie.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Arrangement {
    ranks: u32,
    order: Option<Order>,
    /// Positions of each host, which stand together; `None` for one host.
    hosts: Option<Runs>,
    /// Positions of each NUMA node, where they cut hosts.
    nodes: Option<Runs>,
    /// Network interfaces that the ranks of a host share out among them.
    rails: u32,
}

/// An order of ranks that is not their own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Order {
    /// By position.
    ranks: Arc<[Rank]>,
    /// By rank.
    positions: Arc<[Rank]>,
}

impl Arrangement {
    /// Ranks of one host, in their own order.
    pub const fn together(ranks: u32) -> Arrangement {
        Arrangement { ranks, order: None, hosts: None, nodes: None, rails: 1 }
    }

    /// Ranks in this order, hosts after each other: `order[i]` is the rank at position `i`, and `hosts[i]` how many ranks
    /// the `i`-th host has.
    /// `None` unless the order holds every rank below its length once, and the hosts all of its ranks.
    pub fn new(order: &[Rank], hosts: &[u32]) -> Option<Arrangement> {
        let ranks = u32::try_from(order.len()).ok().filter(|ranks| *ranks <= super::MAX_RANKS)?;
        let mut positions = vec![Rank::MAX; order.len()];
        for (position, rank) in (0..).zip(order) {
            let place = positions.get_mut(*rank as usize).filter(|place| **place == Rank::MAX)?;
            *place = position;
        }
        let hosts = Runs::of(hosts).filter(|hosts| hosts.positions() == ranks)?;
        let order = (!order.iter().copied().eq(0..ranks))
            .then(|| Order { ranks: order.into(), positions: positions.into() });
        let hosts = (hosts.count() > 1).then_some(hosts);
        Some(Arrangement { ranks, order, hosts, nodes: None, rails: 1 })
    }

    /// The same with the ranks of each NUMA node told, in the order of positions, where hosts have several.
    #[must_use]
    pub fn with_nodes(mut self, nodes: &[u32]) -> Arrangement {
        let hosts = self.hosts.as_ref();
        self.nodes = Runs::of(nodes).filter(|nodes| hosts.is_some_and(|hosts| hosts.is_cut_by(nodes)));
        self
    }

    /// The same with so many network interfaces on each host, which its ranks share out among them; at least 1.
    #[must_use]
    pub fn with_rails(mut self, rails: u32) -> Arrangement {
        self.rails = rails.max(1);
        self
    }

    /// How many ranks there are.
    pub const fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The most ranks that a host has.
    pub fn most_per_host(&self) -> u32 {
        self.hosts.as_ref().map_or(self.ranks, Runs::longest)
    }

    /// The fewest ranks that a host has: as many lanes there are.
    pub fn fewest_per_host(&self) -> u32 {
        self.hosts.as_ref().map_or(self.ranks, Runs::shortest)
    }

    /// Network interfaces of a host that its ranks share out among them.
    pub const fn rails(&self) -> u32 {
        self.rails
    }

    /// The rank at a position.
    pub fn rank(&self, position: u32) -> Rank {
        self.order.as_ref().map_or(position, |order| order.ranks[position as usize])
    }

    /// Where a rank stands.
    pub fn position(&self, rank: Rank) -> u32 {
        self.order.as_ref().map_or(rank, |order| order.positions[rank as usize])
    }

    /// The schedule among these ranks. `None` where [`AnySchedule::new`] has none, and for an algorithm over hosts where
    /// there is one host, or as many as ranks; an all-gather through leaders needs ranks that stand in their own order.
    pub fn schedule(&self, collective: Collective, algorithm: Algorithm, root: Rank) -> Option<Arranged> {
        let rooted = collective.is_rooted();
        if rooted && root >= self.ranks {
            return None;
        }
        let blocks = match collective {
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce | Collective::Barrier => {
                Blocks::None
            }
            Collective::ReduceScatter | Collective::AllGather if is_by_block(algorithm) => Blocks::Ranks,
            // Every pair talks once, or blocks go in runs that are neighbours by rank: there is no other order.
            _ => Blocks::Fixed,
        };
        let order = self.order.clone().filter(|_| blocks != Blocks::Fixed);
        let position = |rank: Rank| order.as_ref().map_or(rank, |order| order.positions[rank as usize]);
        let root = if rooted { position(root) } else { 0 };
        let schedule = match among_hosts(collective, algorithm, self.hosts()) {
            None => AnySchedule::new(collective, algorithm, self.ranks, root),
            Some(_) if !self.has_hosts() || (blocks == Blocks::Fixed && self.order.is_some()) => None,
            Some(among) => self.over_hosts(collective, algorithm, among, root),
        }?;
        Some(Arranged { schedule, order, blocks })
    }

    fn over_hosts(
        &self,
        collective: Collective,
        algorithm: Algorithm,
        among: Algorithm,
        root: Rank,
    ) -> Option<AnySchedule> {
        let hosts = self.hosts.clone()?;
        match algorithm {
            Algorithm::Leaders => {
                LeaderSchedule::new(collective, hosts, self.nodes.clone(), among, root).map(AnySchedule::from)
            }
            _ => LaneAllReduce::new(hosts, among).map(AnySchedule::from),
        }
    }

    /// Whether there are several hosts, and one of several ranks.
    pub(super) fn has_hosts(&self) -> bool {
        self.hosts.as_ref().is_some_and(|hosts| hosts.count() < self.ranks)
    }

    /// How many hosts there are.
    pub fn hosts(&self) -> u32 {
        self.hosts.as_ref().map_or(1, Runs::count)
    }

    /// Whether positions are ranks.
    pub(super) const fn is_in_order(&self) -> bool {
        self.order.is_none()
    }
}

/// What an algorithm over hosts runs among them; `None` for an algorithm that knows no hosts, or a collective that it is
/// not for.
pub(super) fn among_hosts(collective: Collective, algorithm: Algorithm, hosts: u32) -> Option<Algorithm> {
    use {Algorithm as A, Collective as C};
    match (collective, algorithm) {
        (C::AllReduce, A::Leaders) => Some(A::Doubling),
        (C::Broadcast | C::Reduce, A::Leaders) => Some(A::Tree),
        (C::AllGather, A::Leaders) if hosts.is_power_of_two() => Some(A::Doubling),
        (C::AllGather, A::Leaders) => Some(A::Direct),
        (C::Barrier, A::Leaders) => Some(A::Dissemination),
        (C::AllReduce, A::Lanes) => Some(A::Ring),
        (C::AllReduce, A::LaneHalving) => Some(A::Halving),
        (C::AllReduce, A::LaneTrees) => Some(A::DoubleTree),
        _ => None,
    }
}

/// Whether each message is the block of one rank.
fn is_by_block(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::Ring | Algorithm::Direct)
}

/// What chunks have to do with ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Blocks {
    /// Nothing: they are parts of a buffer.
    None,
    /// Chunk `c` is the block of rank `c`.
    Ranks,
    /// The same, and ranks cannot be reordered.
    Fixed,
}

/// A schedule whose positions are taken by ranks in some order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Arranged {
    schedule: AnySchedule,
    order: Option<Order>,
    blocks: Blocks,
}

impl Arranged {
    /// The schedule among positions. It has as many ranks, chunks, steps and widths of messages.
    pub const fn among_positions(&self) -> &AnySchedule {
        &self.schedule
    }

    /// The chunks that `rank` reads or writes, as [`AnySchedule::room`].
    pub fn room(&self, rank: Rank) -> Span {
        // Only gathers and scatters have less than all, and those are never reordered.
        self.schedule.room(rank)
    }

    /// As [`AnySchedule::keeps_rank_order`]: never, when ranks are reordered.
    pub fn keeps_rank_order(&self) -> bool {
        self.order.is_none() && self.schedule.keeps_rank_order()
    }
}

impl From<AnySchedule> for Arranged {
    fn from(schedule: AnySchedule) -> Arranged {
        Arranged { schedule, order: None, blocks: Blocks::None }
    }
}

impl Schedule for Arranged {
    fn ranks(&self) -> u32 {
        self.schedule.ranks()
    }

    fn chunks(&self) -> u32 {
        self.schedule.chunks()
    }

    #[inline]
    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        let Some(Order { ranks, positions }) = &self.order else { return self.schedule.step(rank, index) };
        let step = self.schedule.step(positions[rank as usize], index)?;
        let peer = |position: u32| ranks[position as usize];
        let block = |span: Span| match self.blocks {
            Blocks::Ranks => Span::one(peer(span.first)),
            Blocks::None | Blocks::Fixed => span,
        };
        Some(match step {
            Step::Send { to, span } => Step::Send { to: peer(to), span: block(span) },
            Step::Recv { from, span } => Step::Recv { from: peer(from), span: block(span) },
            Step::Reduce { from, span } => Step::Reduce { from: peer(from), span: block(span) },
        })
    }

    fn gathers(&self) -> Option<Gathered> {
        self.schedule.gathers()
    }

    fn symmetry(&self) -> Option<Symmetry> {
        // Of ranks that stand in another order, positions are alike.
        self.schedule.symmetry().filter(|_| self.order.is_none())
    }

    fn position(&self, rank: Rank) -> u32 {
        self.order.as_ref().map_or(rank, |order| order.positions[rank as usize])
    }

    fn steps(&self, rank: Rank) -> u32 {
        self.schedule.steps(self.position(rank))
    }

    fn incoming_is_left(&self, rank: Rank, step: &Step) -> bool {
        match &self.order {
            Some(order) => order.positions[step.peer() as usize] < order.positions[rank as usize],
            None => step.incoming_is_left(rank),
        }
    }
}
