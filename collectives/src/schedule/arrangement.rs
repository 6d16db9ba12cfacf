//! Schedules over ranks that lie anywhere: in which order they are visited, and which of them share a host.
//!
//! A schedule knows positions `0..ranks`, of which neighbours are near each other. An [`Arrangement`] says which rank
//! stands at which position, so that a ring or tree crosses each slow link once however ranks are numbered. The order
//! must be the same on all ranks of a group.

#![forbid(unsafe_code)]

use super::algorithm::{Algorithm, Collective};
use super::any::AnySchedule;
use super::hierarchical::{LaneAllReduce, LeaderAllReduce};
use super::step::{Rank, Schedule, Span, Step};
use std::sync::Arc;

/// How the ranks of a group lie.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Arrangement {
    ranks: u32,
    order: Option<Order>,
    /// Ranks of each host, which stand together; the last host may have fewer.
    ranks_per_host: u32,
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
        Arrangement { ranks, order: None, ranks_per_host: ranks }
    }

    /// Ranks in this order, hosts after each other: `order[i]` is the rank at position `i`, and `hosts[i]` how many ranks
    /// the `i`-th host has. Hosts that differ in that are taken for as many hosts as ranks; but the last may have fewer.
    /// `None` unless the order holds every rank below its length once, and the hosts all of its ranks.
    pub fn new(order: &[Rank], hosts: &[u32]) -> Option<Arrangement> {
        let ranks = u32::try_from(order.len()).ok().filter(|ranks| *ranks <= super::MAX_RANKS)?;
        let mut positions = vec![Rank::MAX; order.len()];
        for (position, rank) in (0..).zip(order) {
            let place = positions.get_mut(*rank as usize).filter(|place| **place == Rank::MAX)?;
            *place = position;
        }
        let all = hosts.iter().try_fold(0u32, |sum, host| sum.checked_add(*host))?;
        let per_host = hosts.first().copied().unwrap_or(0);
        let (last, others) = hosts.split_last()?;
        if all != ranks || hosts.contains(&0) {
            return None;
        }
        let even = others.iter().all(|host| *host == per_host) && *last <= per_host;
        let order = (!order.iter().copied().eq(0..ranks))
            .then(|| Order { ranks: order.into(), positions: positions.into() });
        Some(Arrangement { ranks, order, ranks_per_host: if even { per_host } else { 1 } })
    }

    /// How many ranks there are.
    pub const fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Ranks of a host that stand together: all of them on one host, 1 where each rank has a host of its own or hosts have
    /// unequally many.
    pub const fn ranks_per_host(&self) -> u32 {
        self.ranks_per_host
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
    /// hosts have unequally many ranks or there is one of them.
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
        let per_host = self.ranks_per_host;
        let schedule = match (collective, algorithm) {
            (Collective::AllReduce, Algorithm::Leaders | Algorithm::Lanes) if !self.has_hosts() => None,
            (Collective::AllReduce, Algorithm::Leaders) => {
                LeaderAllReduce::new(self.ranks, per_host, Algorithm::Doubling).map(AnySchedule::from)
            }
            (Collective::AllReduce, Algorithm::Lanes) => {
                LaneAllReduce::new(self.ranks, per_host, Algorithm::Ring).map(AnySchedule::from)
            }
            _ => AnySchedule::new(collective, algorithm, self.ranks, root),
        }?;
        Some(Arranged { schedule, order, blocks })
    }

    /// Whether there are several hosts of several ranks.
    pub(super) fn has_hosts(&self) -> bool {
        1 < self.ranks_per_host && self.ranks_per_host < self.ranks
    }

    /// Hosts, the last one included that may have fewer ranks.
    pub(super) fn hosts(&self) -> u32 {
        self.ranks.div_ceil(self.ranks_per_host.max(1))
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

    fn steps(&self, rank: Rank) -> u32 {
        let position = self.order.as_ref().map_or(rank, |order| order.positions[rank as usize]);
        self.schedule.steps(position)
    }

    fn incoming_is_left(&self, rank: Rank, step: &Step) -> bool {
        match &self.order {
            Some(order) => order.positions[step.peer() as usize] < order.positions[rank as usize],
            None => step.incoming_is_left(rank),
        }
    }
}
