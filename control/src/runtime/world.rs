//! From a launch and settings to a communicator over all ranks of the job.
//!
//! One round trip per rank: the agent registers, and the group's table (ranks, hosts, addresses) comes back when all
//! are there. Connections are made later, by the data plane, when they are needed.

use super::abort::Bridge;
use super::card::{self, Card, CardError};
use super::coordinator::start_coordinator;
use super::elastic::{self, Latest, Met};
use super::pinning::{Binding, PinningError};
use super::proof::group_key;
use super::report::{self, Eye, Me};
use super::site::{self, TopologyFileError};
use super::transports::{Identity, Opened, TransportsError, open};
use super::tuning::{self, TuningFileError};
use crate::launch::{Launch, RANK_JOB};
use crate::random::incarnation;
use crate::rpc::client::{
    self, Agent, AgentConfig, AgentError, Alarm, GroupMember, GroupRequest, JoinError as NotJoined, Process,
};
use crate::rpc::credentials::Credentials;
use crate::rpc::serve::{ServeError, Server};
use crate::rpc::tls::TlsError;
use crate::settings::{GpuSettings, Settings};
use crate::window::WindowConfig;
use ringway_collectives::engine::{CollectiveError, Communicator, EngineOptions, GroupInfo, Member};
use ringway_collectives::schedule::{Costs, Tuning};
use ringway_dataplane::fabric::SpinPolicy;
use ringway_dataplane::memory::{HugePages, Pool, pool};
use ringway_dataplane::transport::{ConnectError, Key, Keyring, Peer};
use ringway_topology::TaskId;
use ringway_topology::host::{DiscoverError, host_id};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Group id of the communicator over all ranks.
pub const WORLD_GROUP: u32 = 1;
/// How long the process that hosts the coordination service stays for others that are still there when it is done.
pub const HOST_LINGER: Duration = Duration::from_secs(10);
/// How long a rank that has no way to move data waits for the others before it says so.
const SAID_AFTER: Duration = Duration::from_secs(2);

/// Why a process could not join its job.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// This rank runs the coordination service and could not start it.
    #[error("rank {rank} hosts the coordination service and could not start it: {source}")]
    Serve {
        /// This rank.
        rank: u32,
        /// What happened.
        source: ServeError,
    },
    /// This rank runs the coordination service, and another program has the port.
    #[error("rank {rank} hosts the coordination service and cannot serve at {address}: {advice}")]
    PortTaken {
        /// This rank.
        rank: u32,
        /// Where it was to be.
        address: SocketAddr,
        /// What to do, by where the port comes from.
        advice: String,
    },
    /// The files of TLS cannot be used.
    #[error("rank {rank}: {source}")]
    Tls {
        /// This rank.
        rank: u32,
        /// Which, and why.
        source: TlsError,
    },
    /// The coordinator's host has no address.
    #[error(
        "rank {rank}: the coordinator's host {host:?} has no address ({why}): correct RINGWAY_COORDINATOR"
    )]
    Resolve {
        /// This rank.
        rank: u32,
        /// The name given.
        host: String,
        /// The resolver's words.
        why: String,
    },
    /// The coordination service was not reached, or did not take this rank.
    #[error("rank {rank} did not reach its coordination service: {source}")]
    Agent {
        /// This rank.
        rank: u32,
        /// What happened.
        source: AgentError,
    },
    /// Not all ranks came.
    #[error("rank {rank}: the job did not come together: {source}")]
    Group {
        /// This rank.
        rank: u32,
        /// Who is missing, or what the ranks disagree on.
        source: client::JoinError,
    },
    /// No transport could be opened.
    #[error("rank {rank}: no way to move data: {source}")]
    Transports {
        /// This rank.
        rank: u32,
        /// What happened.
        source: TransportsError,
    },
    /// A peer's addresses are of no use.
    #[error("rank {rank} has no way to rank {peer} on host {host}: {source}")]
    Connect {
        /// This rank.
        rank: u32,
        /// The other.
        peer: u32,
        /// Its host.
        host: String,
        /// What is wrong.
        source: ConnectError,
    },
    /// A peer's card cannot be read.
    #[error("rank {rank} cannot read what rank {peer} on host {host} tells of itself: {source}")]
    Card {
        /// This rank.
        rank: u32,
        /// The other.
        peer: u32,
        /// Its host.
        host: String,
        /// What is wrong.
        source: CardError,
    },
    /// The file of the network's switches is of no use.
    #[error("rank {rank}: {source}")]
    Topology {
        /// This rank.
        rank: u32,
        /// What is wrong.
        source: TopologyFileError,
    },
    /// This rank's threads could not be bound as asked.
    #[error("rank {rank}: {source}")]
    Pin {
        /// This rank.
        rank: u32,
        /// What happened.
        source: PinningError,
    },
    /// The file of what was measured is of no use.
    #[error("rank {rank}: {source}")]
    Tuning {
        /// This rank.
        rank: u32,
        /// What is wrong.
        source: TuningFileError,
    },
    /// This host has no usable name.
    #[error("rank {rank}: {source}")]
    Host {
        /// This rank.
        rank: u32,
        /// What is wrong.
        source: DiscoverError,
    },
    /// The communicator could not be made.
    #[error(transparent)]
    Engine(#[from] CollectiveError),
}

/// A process's membership in a group of its job. Drop the communicator first; with its last membership a process leaves the
/// job.
#[derive(Debug)]
pub struct World {
    pub(super) seat: Arc<Seat>,
    pub(super) latest: Latest,
}

/// A process's place in its job, whatever groups it is in.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) agent: Option<Arc<Agent>>,
    server: Option<Server>,
    pub(super) launch: Launch,
    pub(super) settings: Settings,
    pub(super) eye: Eye,
}

impl World {
    /// All ranks' processes, by rank.
    #[must_use]
    pub fn members(&self) -> &[GroupMember] {
        &self.latest.members
    }

    /// What the ranks prove themselves to each other with.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.latest.key
    }
}

impl World {
    /// This process's agent of the coordination service: keys, barriers and groups beyond the communicator. `None` while the
    /// membership ends.
    #[must_use]
    pub fn agent(&self) -> Option<&Agent> {
        self.seat.agent.as_deref()
    }

    /// For what asks the coordination service beside this.
    #[cfg(feature = "nccl")]
    pub(super) fn shared_agent(&self) -> Option<&Arc<Agent>> {
        self.seat.agent.as_ref()
    }

    /// The job's name.
    #[must_use]
    pub fn job(&self) -> &str {
        &self.seat.launch.job_id
    }

    /// What the settings say of GPUs.
    #[must_use]
    pub fn gpu(&self) -> &GpuSettings {
        &self.seat.settings.gpu
    }

    /// Tells of every process of the job that the control plane finds lost, those before included: its incarnation, and what
    /// was seen. Called from a thread of the control plane, which must not be held up.
    pub fn on_loss(&self, tell: impl Fn(u64, &str) + Send + 'static) {
        if let Some(agent) = &self.seat.agent {
            agent.on_loss(move |alarm| {
                if let Alarm::Lost(loss) = alarm {
                    tell(loss.incarnation.0, &loss.detail);
                }
            });
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // The engine's callback may still hold the agent for a moment; dropping it then counts as a loss of this rank,
        // in a job that has ended by one anyway.
        if let Some(Err(error)) = self.agent.take().and_then(Arc::into_inner).map(Agent::leave) {
            tracing::debug!(%error, "leaving");
        }
        if let Some(server) = self.server.take()
            && !server.wait_until_empty(HOST_LINGER)
        {
            tracing::warn!(
                "others are still connected to the coordination service, which ends now with this process"
            );
        }
    }
}

/// Joins the job: returns the communicator over all of its ranks, and the membership to keep while it is used.
///
/// # Errors
/// [`JoinError`], on every rank that is alive: within the connect timeout when the service is not reached, and within the
/// join timeout when it is and others are missing, whom it names.
///
/// Where the settings give a least number of ranks the group is elastic: the process enters its next generation.
pub fn join(launch: &Launch, settings: &Settings) -> Result<(Communicator, World), JoinError> {
    let how = if settings.min_ranks.is_some() { elastic::newcomer } else { all_ranks };
    enter(launch, settings, how)
}

/// Enters, as a new process, a job that runs already: when its members let newcomers in.
///
/// # Errors
/// As [`join`]; and when the members do not let it in within the join timeout, or have left in order.
pub fn rejoin(launch: &Launch, settings: &Settings) -> Result<(Communicator, World), JoinError> {
    enter(launch, settings, elastic::newcomer)
}

/// How a process meets the others of its group: with what others learn of it, until so long.
pub(super) type Meet = fn(&Launch, &Settings, &Agent, Vec<u8>) -> Result<Met, NotJoined>;

/// All ranks of the job, each with the rank that it was started with.
fn all_ranks(
    launch: &Launch,
    settings: &Settings,
    agent: &Agent,
    addresses: Vec<u8>,
) -> Result<Met, NotJoined> {
    let table = agent.join_group(GroupRequest {
        // The job's own name: a rank that has reached another job's service never joins its ranks.
        group: launch.job_id.clone(),
        rank: Some(launch.rank.0),
        size: launch.world_size,
        addresses,
        timeout: settings.join_timeout,
        hosts_coordinator: launch.coordinator.i_host,
    })?;
    Ok(Met { table, generation: 1, carried: 0 })
}

/// Starts the agent, and enters the job's group.
fn enter(launch: &Launch, settings: &Settings, meet: Meet) -> Result<(Communicator, World), JoinError> {
    let rank = launch.rank.0;
    let life = incarnation();
    let me = Identity { number: rank, keys: Keyring::default(), life };
    let (server, address) = coordinator(launch, settings)?;
    let process = Process {
        task: TaskId::new(RANK_JOB, rank).map_err(|e| JoinError::Host { rank, source: e.into() })?,
        incarnation: life,
        host: host_id().map_err(|source| JoinError::Host { rank, source })?,
        pid: std::process::id(),
    };
    let mut config = AgentConfig::new(address, process, settings.heartbeat_timeout);
    config.times.register_timeout = settings.connect_timeout;
    config.credentials =
        Credentials::from_settings(settings).map_err(|source| JoinError::Tls { rank, source })?;
    let agent = Agent::start(config).map_err(|source| JoinError::Agent { rank, source })?;
    // The service knows this rank from here on: the others hear of what stops it.
    let met = group(launch, settings, &me, &agent, |addresses| meet(launch, settings, &agent, addresses));
    match met {
        Ok((comm, met, bridge)) => {
            let agent = Arc::new(agent);
            let eye = Eye::new(comm.reporter());
            bridge.connect(&agent, met.table.members.clone(), rank, comm.reporter());
            report::show(&agent, &Me::new(launch, agent.process().clone()), &eye, settings);
            if settings.status.dump_dir.is_some() {
                // After the bridge, which tells the engine of the loss.
                report::write_down_on_loss(&agent, eye.clone());
            }
            let key = group_key(met.table.secret, &launch.job_id, settings);
            let latest = Latest::new(met, key, &agent, &launch.job_id);
            let (launch, settings) = (launch.clone(), settings.clone());
            let seat = Seat { agent: Some(agent), server, launch, settings, eye };
            Ok((comm, World { seat: Arc::new(seat), latest }))
        }
        Err(error) => {
            give_up(&agent, &error);
            Err(error)
        }
    }
}

/// Tells the others why this rank does not come. What the service itself has said is known to them.
fn give_up(agent: &Agent, error: &JoinError) {
    if matches!(error, JoinError::Group { .. }) {
        return;
    }
    let me = agent.process();
    if let Err(unsaid) = agent.report_loss(&me.task, me.incarnation, &error.to_string()) {
        tracing::debug!(%unsaid, "the others learn of it by the end of this rank's connection");
    }
}

/// Opens the transports, meets the others, and makes the communicator.
pub(super) fn group(
    launch: &Launch,
    settings: &Settings,
    me: &Identity,
    agent: &Agent,
    meet: impl FnOnce(Vec<u8>) -> Result<Met, NotJoined>,
) -> Result<(Communicator, Met, Arc<Bridge>), JoinError> {
    let rank = me.number;
    let failed = |source| JoinError::Transports { rank, source };
    let pinning = |source| JoinError::Pin { rank, source };
    let binding = Binding::plan(settings, launch.into()).map_err(pinning)?;
    let all_local = launch.local_size == Some(launch.world_size);
    let host = host_id().map_err(|source| JoinError::Host { rank, source })?;
    let site = site::site(&binding, &host, launch, settings)
        .map_err(|source| JoinError::Topology { rank, source })?;
    let opened = open(me, all_local, &binding, settings).map_err(failed)?;
    let tuning = tuning::told_by(rank, settings).map_err(|source| JoinError::Tuning { rank, source })?;
    let card = card::write(&Card { site, tuning, address: opened.address() });
    let met = match &opened {
        Opened::Endpoint(_) => meet(card),
        // The rank ends by it when the others have heard why.
        Opened::Unusable(unusable, _) => said_when_late(&format!("rank {rank}: {unusable}"), || meet(card)),
    };
    let met = met.map_err(|source| JoinError::Group { rank, source })?;
    let members = &met.table.members;
    let mut transport = match opened {
        Opened::Endpoint(endpoint) => endpoint,
        Opened::Unusable(unusable, _) => return Err(failed(unusable.into())),
    };
    let key = group_key(met.table.secret, &launch.job_id, settings);
    let mine = members.iter().position(|member| member.process == *agent.process());
    let mut group = GroupInfo { id: WORLD_GROUP, my_rank: mine.unwrap_or(0) as u32, members: Vec::new() };
    let mut measured = None;
    for member in members {
        let number = number(member);
        let host = member.process.host.name();
        let Card { site, tuning, address } = card::read(&member.addresses)
            .map_err(|source| JoinError::Card { rank, peer: member.rank, host: host.to_owned(), source })?;
        if number != rank {
            me.keys.admit(member.process.incarnation.0, key.clone());
            transport.connect(Peer(number), &address).map_err(|source| JoinError::Connect {
                rank,
                peer: member.rank,
                host: host.to_owned(),
                source,
            })?;
        }
        measured = measured.or(tuning);
        group.members.push(Member {
            peer: Peer(number),
            host: host.to_owned(),
            pid: member.process.pid,
            incarnation: member.process.incarnation.0,
            site,
        });
    }
    let bridge = Arc::new(Bridge::default());
    let mut options = options(settings, measured);
    options.on_failure = Some(bridge.on_failure());
    options.write_down = report::write_down(settings, Me::new(launch, agent.process().clone()));
    options.on_progress_thread = binding.on_progress_thread();
    let comm = Communicator::new(transport, group, options)?;
    binding.bind(&settings.pin).map_err(pinning)?;
    Ok((comm, met, bridge))
}

/// Waits, and says `why` meanwhile if that takes long: the others may never come.
fn said_when_late<T>(why: &str, wait: impl FnOnce() -> T) -> T {
    let (over, is_over) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_over.recv_timeout(SAID_AFTER) == Err(RecvTimeoutError::Timeout) {
                tracing::error!("{why}");
            }
        });
        let waited = wait();
        drop(over);
        waited
    })
}

/// What the data plane calls a member: the number that its process was started with, which it keeps while its rank changes.
pub(super) fn number(member: &GroupMember) -> u32 {
    member.process.task.index()
}

/// The service's address, and the service itself where this rank hosts it.
fn coordinator(launch: &Launch, settings: &Settings) -> Result<(Option<Server>, String), JoinError> {
    let place = &launch.coordinator;
    let rank = launch.rank.0;
    if !place.i_host {
        let all = std::iter::once(&place.address).chain(&place.others);
        let all: Vec<String> = all.map(ToString::to_string).collect();
        return Ok((None, all.join(",")));
    }
    let unresolved = |why: String| JoinError::Resolve { rank, host: place.address.host.clone(), why };
    let bind: SocketAddr = (place.address.host.as_str(), place.address.port)
        .to_socket_addrs()
        .map_err(|e| unresolved(e.to_string()))?
        .next()
        .ok_or_else(|| unresolved("the resolver knows none".to_owned()))?;
    // The metrics of this process are its rank's.
    let window = WindowConfig::new(settings, "coordinator", &launch.job_id, None);
    let server = start_coordinator(bind, elastic::limits(launch, settings).most, settings, window).map_err(
        |source| match source {
            ServeError::PortInUse { address } => {
                JoinError::PortTaken { rank, address, advice: place.when_taken() }
            }
            source => JoinError::Serve { rank, source },
        },
    )?;
    let address = server.local_addr().to_string();
    Ok((Some(server), address))
}

/// A spin of this length.
pub(super) fn micros(spin: Duration) -> SpinPolicy {
    SpinPolicy::Micros(u32::try_from(spin.as_micros()).unwrap_or(u32::MAX))
}

fn options(settings: &Settings, measured: Option<Tuning>) -> EngineOptions {
    let huge = if settings.huge_pages { HugePages::Auto } else { HugePages::Off };
    EngineOptions {
        slice_bytes: settings.slice_bytes.and_then(|b| usize::try_from(b).ok()),
        slices_in_flight: settings.slices_in_flight,
        costs: measured.as_ref().map_or_else(Costs::default, |measured| measured.costs),
        wanted: settings.algo,
        tuning: measured.map(Arc::new),
        check: settings.check,
        numerics: settings.numerics,
        progress: settings.progress,
        spin: settings.spin.map_or(SpinPolicy::Auto, micros),
        pool: Pool::new(pool::DEFAULT_KEEP_BYTES, huge),
        ..EngineOptions::default()
    }
}
