//! The members of a communicator, and what this rank has called on it.

#![forbid(unsafe_code)]

use super::error::{CollectiveError, InvalidCall, Who};
use super::fingerprint::Call;
use super::history::Doubt;
use super::numerics::Numerics;
use super::options::EngineOptions;
use super::plan::{Among, Plan, Request};
use crate::schedule::{Arrangement, Costs, LinkCosts, Wanted};
use ringway_dataplane::transport::{Caps, Peer, Stamp, Transport};
use ringway_topology::Rank;
use ringway_topology::model::order::{
    Location, Site, hosts_in_order, nodes_in_order, rails_per_host, ring_order,
};
use std::sync::Arc;

/// Calls that a rank remembers per communicator, to answer inquiries about.
pub(super) const REMEMBERED_CALLS: usize = 256;
/// Plans that a communicator keeps, so that a repeated call is not planned again.
const KEPT_PLANS: usize = 8;

/// Most ranks among which [`LinkCosts::SHARED_BY_SOME`] decides. Of more, each to every other are more messages than what they
/// save is worth where ranks have cores of their own.
const MOST_SHARING: usize = 8;

/// A member of a communicator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// The endpoint's number of it.
    pub peer: Peer,
    /// Its host, for people.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// Which life of it: a restarted process has another.
    pub incarnation: u64,
    /// Where it runs: algorithms visit members in an order that crosses each slow link once.
    pub site: Site,
}

/// Who makes up a communicator. All members give the same, but for `my_rank`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupInfo {
    /// Identity on the wire, with the epoch in it: never used before between any two of the members.
    pub id: u32,
    /// This process's rank.
    pub my_rank: u32,
    /// All members, in rank order. The peers must have been introduced to the transport.
    pub members: Vec<Member>,
}

/// What a rank remembers of a call that it made.
#[derive(Clone, Debug)]
pub(super) enum Remembered {
    /// It was run.
    Made(Call),
    /// It was refused for its arguments.
    Refused(Call, String),
}

impl Remembered {
    pub(super) fn call(&self) -> &Call {
        match self {
            Remembered::Made(call) | Remembered::Refused(call, _) => call,
        }
    }
}

/// What another rank has said about a call: that it makes it, or that it was refused there.
#[derive(Clone, Debug)]
pub(super) enum Heard {
    Asks(Stamp),
    Refused(Stamp, String),
}

/// How the last call on a communicator was run.
#[derive(Debug, Default)]
pub(super) enum Last {
    /// There was none.
    #[default]
    None,
    Planned(Arc<Plan>),
    /// A message that went at once.
    AtOnce {
        bytes: usize,
    },
}

impl Last {
    pub(super) fn set(&mut self, plan: &Arc<Plan>) {
        if !matches!(self, Last::Planned(last) if Arc::ptr_eq(last, plan)) {
            *self = Last::Planned(Arc::clone(plan));
        }
    }
}

/// The collective calls of a communicator, by number.
#[derive(Debug)]
pub(super) struct Numbers {
    /// Number of the next one, and the digest of those before.
    pub(super) seq: u32,
    pub(super) history: u16,
    calls: Vec<Option<Remembered>>,
}

impl Numbers {
    /// Numbers a call and remembers it.
    pub(super) fn take(&mut self, mut call: Call, refused: Option<String>) -> Call {
        call.seq = self.seq;
        call.history = self.history;
        self.seq = self.seq.wrapping_add(1);
        let remembered = match refused {
            None => {
                self.history = call.history_after();
                Remembered::Made(call)
            }
            // Ranks that all refuse a call need not have refused the same arguments.
            Some(why) => {
                self.history = self.history.wrapping_add(1);
                Remembered::Refused(call, why)
            }
        };
        self.calls[call.seq as usize % REMEMBERED_CALLS] = Some(remembered);
        call
    }

    /// What this rank knows of its call number `seq`, if it has made it and remembers.
    pub(super) fn call(&self, seq: u32) -> Option<&Remembered> {
        let kept = self.calls[seq as usize % REMEMBERED_CALLS].as_ref()?;
        (kept.call().seq == seq).then_some(kept)
    }

    /// Whether call `seq` is still to come here.
    pub(super) fn is_ahead(&self, seq: u32) -> bool {
        seq.wrapping_sub(self.seq) < u32::MAX / 2
    }
}

/// One communicator's state in the engine.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) info: GroupInfo,
    /// The endpoint's number of each rank.
    pub(super) peers: Vec<Peer>,
    /// How the members lie: the same on all of them, since all hold the same members.
    pub(super) arrangement: Arrangement,
    pub(super) numbers: Numbers,
    /// Whether all its members share memory: what calls send there at once is with its receiver, and nothing is left to send (D6).
    pub(super) shares_memory: bool,
    /// What its links cost.
    pub(super) costs: Costs,
    /// What they cost besides, where that decides among algorithms that give the same bits alone (schedule invariant I9): the
    /// same on all ranks.
    pub(super) here: Option<LinkCosts>,
    /// The algorithms that it was told to use, in place of the engine's.
    pub(super) wanted: Option<Wanted>,
    /// How its reductions are computed.
    pub(super) numerics: Numerics,
    /// The latest unanswered word of each rank about a call that this rank has not reached.
    pub(super) heard: Vec<Option<(u32, Heard)>>,
    heard_any: u32,
    /// An earlier call differed, and it is being found out which.
    pub(super) doubt: Option<Doubt>,
    /// Why the communicator is dead.
    pub(super) dead: Option<CollectiveError>,
    /// Runs that have not been handed back, so that a closed group is retired after the last.
    pub(super) open_runs: u32,
    pub(super) closed: bool,
    /// Splits that were made of it.
    pub(super) splits: u32,
    /// How the last call was run.
    pub(super) last: Last,
    plans: Vec<(Request, Arc<Plan>)>,
    next_plan: usize,
}

impl Group {
    pub(super) fn new(info: GroupInfo) -> Result<Group, InvalidCall> {
        let size = info.members.len();
        if info.my_rank as usize >= size || size > crate::schedule::MAX_RANKS as usize {
            let why = format!("rank {} of {size} members", info.my_rank);
            return Err(InvalidCall::Group(why));
        }
        let peers: Vec<Peer> = info.members.iter().map(|m| m.peer).collect();
        let mut sorted = peers.clone();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|w| w[0] == w[1]) {
            return Err(InvalidCall::Group(format!("peer {} is a member twice", twice[0].0)));
        }
        Ok(Group {
            peers,
            arrangement: arrangement(&info.members),
            shares_memory: false,
            costs: Costs::default(),
            here: None,
            wanted: None,
            numerics: Numerics::default(),
            numbers: Numbers { seq: 0, history: 0, calls: vec![None; REMEMBERED_CALLS] },
            heard: vec![None; size],
            heard_any: 0,
            doubt: None,
            dead: None,
            open_runs: 0,
            closed: false,
            splits: 0,
            last: Last::None,
            plans: Vec::with_capacity(KEPT_PLANS),
            next_plan: 0,
            info,
        })
    }

    /// Whether all its members share memory. To share memory is an equivalence ([`Transport::shares_memory`]): if all do with one, all do
    /// with each other, and so all ranks say the same.
    pub(super) fn shares_memory_over(&self, transport: &dyn Transport) -> bool {
        let mut others = (0..).zip(&self.peers).filter(|(rank, _)| *rank != self.info.my_rank);
        others.all(|(_, peer)| transport.shares_memory(*peer))
    }

    /// What its links cost. Two ranks get the same bits whichever the algorithm (I1 of the kernels), so that
    /// theirs may depend on the transport; that of more must not.
    pub(super) fn costs_by(&self, options: &EngineOptions) -> Costs {
        match self.size() {
            2 if self.shares_memory && options.costs == Costs::default() => LinkCosts::SHARED_MEMORY.into(),
            _ => options.costs,
        }
    }

    /// What its links cost where all of more than two ranks share memory.
    pub(super) fn costs_here(&self, options: &EngineOptions) -> Option<LinkCosts> {
        let some = (3..=MOST_SHARING).contains(&self.peers.len()) && options.costs == Costs::default();
        (some && self.shares_memory).then_some(LinkCosts::SHARED_BY_SOME)
    }

    pub(super) fn size(&self) -> u32 {
        self.peers.len() as u32
    }

    pub(super) fn rank_of(&self, peer: Peer) -> Option<u32> {
        self.peers.iter().position(|p| *p == peer).map(|r| r as u32)
    }

    pub(super) fn who(&self, rank: u32) -> Who {
        let known = self.info.members.get(rank as usize);
        known.map_or(Who { rank, host: "(unknown)".into(), pid: 0 }, |m| Who {
            rank,
            host: m.host.clone(),
            pid: m.pid,
        })
    }

    /// Whether nothing but calls happens on it: it is alive, and no word of another rank waits for an answer.
    pub(super) fn is_calm(&self) -> bool {
        self.dead.is_none() && self.heard_any == 0 && self.doubt.is_none()
    }

    /// The plan of a request, if it is kept from before.
    pub(super) fn kept_plan(&self, request: &Request) -> Option<&Arc<Plan>> {
        self.plans.iter().find(|(r, _)| r == request).map(|(_, plan)| plan)
    }

    /// The plan of a request, made now or kept from before.
    pub(super) fn plan(
        &mut self,
        request: &Request,
        options: &EngineOptions,
        caps: &Caps,
    ) -> Result<Arc<Plan>, InvalidCall> {
        if let Some((_, plan)) = self.plans.iter().find(|(r, _)| r == request) {
            return Ok(Arc::clone(plan));
        }
        let (costs, here, numerics) = (&self.costs, self.here.as_ref(), self.numerics);
        let among =
            Among { group: &self.arrangement, costs, here, numerics, shares_memory: self.shares_memory };
        let plan = match self.wanted {
            None => Plan::new(request, self.info.my_rank, among, options, caps)?,
            Some(wanted) => {
                let options = EngineOptions { wanted, ..options.clone() };
                Plan::new(request, self.info.my_rank, among, &options, caps)?
            }
        };
        let plan = Arc::new(plan);
        if self.plans.len() < KEPT_PLANS {
            self.plans.push((request.clone(), Arc::clone(&plan)));
        } else {
            self.plans[self.next_plan] = (request.clone(), Arc::clone(&plan));
            self.next_plan = (self.next_plan + 1) % KEPT_PLANS;
        }
        Ok(plan)
    }

    /// Plans calls to come by these algorithms.
    pub(super) fn prefer(&mut self, wanted: Wanted) {
        self.wanted = Some(wanted);
        self.plans.clear();
        self.next_plan = 0;
    }

    /// Computes reductions so from now on.
    pub(super) fn set_numerics(&mut self, numerics: Numerics) {
        self.numerics = numerics;
        self.plans.clear();
        self.next_plan = 0;
    }

    /// Remembers another rank's word about a call that this rank has not reached.
    pub(super) fn hear(&mut self, rank: u32, seq: u32, what: Heard) {
        if self.heard[rank as usize].replace((seq, what)).is_none() {
            self.heard_any += 1;
        }
    }

    /// Takes a word about call `seq`, now that it is made here.
    pub(super) fn recall(&mut self, seq: u32) -> Option<(u32, Heard)> {
        if self.heard_any == 0 {
            return None;
        }
        let rank = self.heard.iter().position(|h| h.as_ref().is_some_and(|(s, _)| *s == seq))?;
        self.heard_any -= 1;
        self.heard[rank].take().map(|(_, heard)| (rank as u32, heard))
    }
}

/// How members lie, by their sites.
fn arrangement(members: &[Member]) -> Arrangement {
    let located =
        (0..).zip(members).map(|(rank, member)| Location { rank: Rank(rank), site: member.site.clone() });
    let locations: Vec<Location> = located.collect();
    let order: Vec<u32> = ring_order(&locations).into_iter().map(|rank| rank.0).collect();
    let made = Arrangement::new(&order, &hosts_in_order(&locations));
    let made =
        made.unwrap_or_else(|| unreachable!("the order holds every member once, and hosts are runs of it"));
    made.with_nodes(&nodes_in_order(&locations)).with_rails(rails_per_host(&locations))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(peers: &[u32], my_rank: u32) -> GroupInfo {
        let member = |p: &u32| Member {
            peer: Peer(*p),
            host: "h".into(),
            pid: 1,
            incarnation: 1,
            site: Site::default(),
        };
        GroupInfo { id: 1, my_rank, members: peers.iter().map(member).collect() }
    }

    #[test]
    fn a_group_holds_together() {
        assert!(Group::new(info(&[3, 1, 2], 2)).is_ok());
        assert!(matches!(Group::new(info(&[3, 1, 3], 2)), Err(InvalidCall::Group(_))));
        assert!(matches!(Group::new(info(&[3], 1)), Err(InvalidCall::Group(_))));
        assert!(matches!(Group::new(info(&[], 0)), Err(InvalidCall::Group(_))));
    }

    #[test]
    fn calls_are_numbered_and_the_last_ones_remembered() {
        let mut group = Group::new(info(&[0, 1], 0)).unwrap();
        let call = Call {
            collective: Some(crate::schedule::Collective::Barrier),
            dtype: None,
            op: None,
            algorithm: None,
            form: Default::default(),
            root: 0,
            count: 0,
            seq: 0,
            history: 0,
        };
        let made: Vec<Call> = (0..300).map(|_| group.numbers.take(call, None)).collect();
        assert_eq!((made[0].seq, made[299].seq), (0, 299));
        let numbers = &group.numbers;
        assert!(numbers.call(0).is_none() && numbers.call(300).is_none());
        assert_eq!(numbers.call(299).map(|r| *r.call()), Some(made[299]));
        assert!(numbers.is_ahead(300) && !numbers.is_ahead(299) && !numbers.is_ahead(0));
    }

    #[test]
    fn words_about_calls_to_come_are_recalled_once() {
        let mut group = Group::new(info(&[0, 1, 2], 0)).unwrap();
        group.hear(2, 5, Heard::Asks(Stamp::default()));
        group.hear(2, 7, Heard::Asks(Stamp::default()));
        assert!(group.recall(5).is_none());
        assert!(matches!(group.recall(7), Some((2, Heard::Asks(_)))));
        assert!(group.recall(7).is_none());
    }
}
