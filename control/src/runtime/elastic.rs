//! Groups that shrink and grow: a rank goes from one generation of its job's group to the next.
//!
//! Each generation has a data plane of its own, with connections that nobody had before: what an earlier one still has under
//! way ends with it. A rank's number there is the one that its process was started with; its rank in the group may change.
//!
//! - **E1** A generation's communicator is made of the table that the coordination service gave to all of its members.
//! - **E2** The data plane of the generation before is closed before that of the next is opened, unless the user kept a
//!   communicator that was split from it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringway_collectives::engine::Communicator;
use ringway_dataplane::transport::{Key, Keyring};

use super::proof::group_key;
use super::transports::Identity;
use super::world::{JoinError, World, group};
use crate::launch::Launch;
use crate::rpc::client::{
    Agent, GroupMember, GroupTable, JoinError as NotJoined, RoundLimits, RoundRequest, RoundTable,
};
use crate::settings::Settings;

/// A job that begins with fewer ranks than it was started with waits so long for more, once it has the least.
pub const LAST_CALL: Duration = Duration::from_secs(5);

/// What a rank wants of the next generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regrouping {
    /// Newcomers may enter. They do when all members say so.
    pub newcomers: bool,
    /// How long to wait for the other members, and, with too few of them, for newcomers.
    pub timeout: Duration,
}

/// The group that a process met, and which generation it is.
#[derive(Debug)]
pub(super) struct Met {
    pub(super) table: GroupTable,
    pub(super) generation: u64,
    pub(super) carried: u32,
}

impl From<RoundTable> for Met {
    fn from(table: RoundTable) -> Met {
        Met { table: table.group, generation: table.generation, carried: table.carried }
    }
}

/// The generation that a membership is of.
#[derive(Debug)]
pub(super) struct Latest {
    pub(super) members: Vec<GroupMember>,
    /// What they prove themselves to each other with.
    pub(super) key: Key,
    generation: u64,
    carried: u32,
    newcomers: Arc<AtomicBool>,
}

impl Latest {
    pub(super) fn new(met: Met, key: Key, agent: &Agent, group: &str) -> Latest {
        let newcomers = Arc::new(AtomicBool::new(false));
        let seen = newcomers.clone();
        agent.on_newcomers(group, met.generation, move || seen.store(true, Ordering::Release));
        Latest {
            members: met.table.members,
            key,
            generation: met.generation,
            carried: met.carried,
            newcomers,
        }
    }
}

/// How few and how many ranks the job's group may have. Without settings: as few as one, as many as were started.
pub(super) fn limits(launch: &Launch, settings: &Settings) -> RoundLimits {
    let least = settings.min_ranks.unwrap_or(1);
    let most = settings.max_ranks.unwrap_or(launch.world_size);
    RoundLimits { least, most: most.max(launch.world_size) }
}

/// A process that was in no generation enters the next one.
pub(super) fn newcomer(
    launch: &Launch,
    settings: &Settings,
    agent: &Agent,
    addresses: Vec<u8>,
) -> Result<Met, NotJoined> {
    let round = RoundRequest {
        group: launch.job_id.clone(),
        after: 0,
        limits: limits(launch, settings),
        enough: launch.world_size,
        last_call: LAST_CALL,
        newcomers: true,
        addresses,
        timeout: settings.join_timeout,
        hosts_coordinator: launch.coordinator.i_host,
    };
    agent.next_round(round).map(Met::from)
}

impl World {
    /// Which generation of the job's group this is. The first is 1; a group of all ranks is the first.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.latest.generation
    }

    /// How many members were in the generation before: those with the lowest ranks. 0 for the first generation, and when
    /// none of the last is left.
    #[must_use]
    pub fn carried(&self) -> u32 {
        self.latest.carried
    }

    /// Whether this process has heard that newcomers wait to be let in. Other ranks may hear of it later.
    #[must_use]
    pub fn has_newcomers(&self) -> bool {
        self.latest.newcomers.load(Ordering::Acquire)
    }

    /// Enters the next generation of the job's group, together with all members of this one that are left: each of them
    /// calls it. The communicator of this generation is to be dropped before.
    ///
    /// # Errors
    /// [`JoinError::Group`] when members do not come in time (they are named) or are too few; others as for joining.
    pub fn regroup(&self, wish: Regrouping) -> Result<(Communicator, World), JoinError> {
        let seat = &self.seat;
        let (launch, settings) = (&seat.launch, &seat.settings);
        let rank = launch.rank.0;
        let Some(agent) = &seat.agent else {
            unreachable!("a seat has its agent until it is dropped, and this membership holds it")
        };
        let life = agent.process().incarnation;
        let me = Identity { number: rank, keys: Keyring::default(), life };
        let round = |addresses| RoundRequest {
            group: launch.job_id.clone(),
            after: self.latest.generation,
            limits: limits(launch, settings),
            // Those who are left go on at once; whoever comes later waits for the next time.
            enough: 0,
            last_call: Duration::ZERO,
            newcomers: wish.newcomers,
            addresses,
            timeout: wish.timeout,
            hosts_coordinator: launch.coordinator.i_host,
        };
        let meet = |addresses| agent.next_round(round(addresses)).map(Met::from);
        let (comm, met, bridge) = group(launch, settings, &me, agent, meet)?;
        bridge.connect(agent, met.table.members.clone(), rank, comm.reporter());
        seat.eye.turn(comm.reporter());
        let key = group_key(met.table.secret, &launch.job_id, settings);
        let latest = Latest::new(met, key, agent, &launch.job_id);
        Ok((comm, World { seat: seat.clone(), latest }))
    }
}
