//! What the coordinator remembers beyond its own life, as values under keys, and how it begins again from them.
//!
//! At the end of each event the parts say what of theirs has changed, and one [`Effect::Remember`] carries the new values
//! ahead of every other effect of that event: whoever keeps them carries out nothing that follows before they are kept. So what
//! anybody was told is remembered, and a coordinator that begins again knows it.
//!
//! Remembered are tasks with their lives, errors and devices; losses; keys; groups and generations that were made; barriers that have ended;
//! and the answers to requests that change something, so that asking again changes nothing. Not remembered is who waits:
//! callers ask again, and a barrier that was under way begins anew with the calls that come again.
//!
//! - P1. What is restored from the changes remembered so far answers as the coordinator that remembered them would, but for
//!   those who wait.
//! - P2. Silence begins anew at the moment of restoring: nobody is blamed for a time in which there was no coordinator, and
//!   a task that died in it is found within its limit.

use std::sync::Arc;

use prost::Message;
use ringway_proto::ringway::rounds::v1 as rounds;
use ringway_proto::ringway::v1 as wire;
use ringway_topology::{HostId, Incarnation, TaskId};

use super::errors::{Code, Origin, Refusal};
use super::groups::{GroupMember, GroupTable};
use super::losses::{Evidence, Loss};
use super::membership::Slot;
use super::request::{Effect, Process, State, Value};
use super::rounds::RoundTable;
use super::{Coordinator, CoordinatorConfig};
use crate::core::time::Time;

/// Of the keys and values described in `coordinator_state.proto`.
const VERSION: u32 = 1;

/// A change: a value that is put under a key, or a key that is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The key.
    pub key: String,
    /// Its value from now on; `None` removes the key.
    pub value: Option<Value>,
}

impl Write {
    /// A message under a key.
    pub(super) fn put(key: String, message: &impl Message) -> Write {
        Write { key, value: Some(Arc::new(message.encode_to_vec())) }
    }

    /// No key any more.
    pub(super) fn remove(key: String) -> Write {
        Write { key, value: None }
    }
}

/// Why a coordinator cannot begin from what is remembered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// It is of another cluster.
    #[error(
        "the state is of a cluster of {theirs}, and this one is of {ours}: give the state of this cluster, or none"
    )]
    OtherCluster {
        /// Jobs and tasks of the coordinator that is started.
        ours: String,
        /// Those of the one that is remembered.
        theirs: String,
    },
    /// It was written by another version.
    #[error(
        "the state is of version {version}, and this program reads version {VERSION}: use the program that wrote it"
    )]
    Version {
        /// That version.
        version: u32,
    },
    /// A value is not what belongs under its key.
    #[error("the state under {key:?} cannot be read: {why}; start from a copy, or from none")]
    Malformed {
        /// The key.
        key: String,
        /// What is wrong.
        why: String,
    },
}

/// Reads the message under a key.
pub(super) fn message<M: Message + Default>(key: &str, value: &[u8]) -> Result<M, RestoreError> {
    M::decode(value).map_err(|error| malformed(key)(error.to_string()))
}

/// What is wrong under a key.
pub(super) fn malformed<W: ToString>(key: &str) -> impl Fn(W) -> RestoreError {
    let key = key.to_owned();
    move |why| RestoreError::Malformed { key: key.clone(), why: why.to_string() }
}

fn cluster(jobs: &[(String, u32)]) -> wire::StoredCluster {
    let mut jobs: Vec<wire::stored_cluster::Job> = jobs
        .iter()
        .map(|(name, tasks)| wire::stored_cluster::Job { name: name.clone(), tasks: *tasks })
        .collect();
    jobs.sort_by(|a, b| a.name.cmp(&b.name));
    wire::StoredCluster { jobs, version: VERSION }
}

fn describe(cluster: &wire::StoredCluster) -> String {
    super::list(cluster.jobs.iter().map(|job| format!("job {} with {} tasks", job.name, job.tasks)))
}

impl Coordinator {
    /// A coordinator that goes on from what an earlier one remembered: all keys with their last values. From nothing it is
    /// a new one. `now` is when it begins.
    ///
    /// # Errors
    /// When that was of another cluster or version, or is not what a coordinator remembers.
    pub fn restore(
        config: CoordinatorConfig,
        entries: impl IntoIterator<Item = (String, Value)>,
        now: Time,
    ) -> Result<Coordinator, RestoreError> {
        let mut whole = Coordinator::new(config);
        whole.awake = now;
        for (key, value) in entries {
            whole.recall(&key, value)?;
        }
        whole.barriers.recalled();
        // What was recalled is no change.
        whole.forget_changes();
        let connected: Vec<Slot> = whole.members.connected().collect();
        for slot in &connected {
            // P2
            whole.heartbeats.begin(*slot, whole.members.get(*slot).silence, now);
        }
        whole.gathering.resume(!connected.is_empty());
        Ok(whole)
    }

    fn recall(&mut self, key: &str, value: Value) -> Result<(), RestoreError> {
        let (kind, rest) = key.split_once('/').unwrap_or((key, ""));
        let slot = || {
            let known = self.members.everyone().len();
            let slot = rest.parse().ok().filter(|&index| (index as usize) < known).map(Slot);
            slot.ok_or_else(|| malformed(key)("there is no such task"))
        };
        match kind {
            "cluster" => {
                let theirs: wire::StoredCluster = message(key, &value)?;
                if theirs.version != VERSION {
                    return Err(RestoreError::Version { version: theirs.version });
                }
                let ours = cluster(&self.config.jobs);
                if ours != theirs {
                    let (ours, theirs) = (describe(&ours), describe(&theirs));
                    return Err(RestoreError::OtherCluster { ours, theirs });
                }
                self.remembered.cluster = true;
            }
            "epoch" => {
                self.epoch = message::<wire::StoredEpoch>(key, &value)?.epoch;
                self.remembered.epoch = self.epoch;
            }
            "member" => self.members.recall(key, slot()?, message(key, &value)?)?,
            "job" => self.members.recall_job(rest, message::<wire::StoredJob>(key, &value)?.version),
            "loss" => {
                let lost = loss(message(key, &value)?).map_err(malformed(key))?;
                self.losses.recall(slot()?, lost);
            }
            "once" => self.once.recall(slot()?, message(key, &value)?),
            "barrier" => self.barriers.recall(key, rest, message(key, &value)?)?,
            "group" => self.groups.recall(key, rest, message(key, &value)?)?,
            "round" => self.rounds.recall(key, rest, message(key, &value)?)?,
            "key" => self.store.recall(rest, value),
            _ => return Err(malformed(key)("it is of a kind that this version does not know")),
        }
        Ok(())
    }

    fn forget_changes(&mut self) {
        self.members.changes();
        self.losses.changes();
        self.groups.changes();
        self.rounds.changes();
        self.barriers.changes();
        self.store.changes();
        self.once.changes();
    }

    /// Puts what has changed ahead of the effects from `from` on.
    pub(super) fn remember(&mut self, from: usize, out: &mut Vec<Effect>) {
        if !self.config.durable {
            return self.forget_changes();
        }
        let mut writes = Vec::new();
        if self.epoch != self.remembered.epoch {
            self.remembered.epoch = self.epoch;
            writes.push(Write::put("epoch".to_owned(), &wire::StoredEpoch { epoch: self.epoch }));
        }
        writes.append(&mut self.losses.changes());
        writes.append(&mut self.members.changes());
        writes.append(&mut self.groups.changes());
        writes.append(&mut self.rounds.changes());
        writes.append(&mut self.barriers.changes());
        writes.append(&mut self.store.changes());
        // After what it stands for, should a batch be cut.
        writes.append(&mut self.once.changes());
        if writes.is_empty() {
            return;
        }
        if !std::mem::replace(&mut self.remembered.cluster, true) {
            writes.insert(0, Write::put("cluster".to_owned(), &cluster(&self.config.jobs)));
        }
        out.insert(from, Effect::Remember { writes });
    }

    /// How many tasks are connected.
    #[must_use]
    pub fn connected_tasks(&self) -> u32 {
        self.members.connected_count()
    }
}

/// What the coordinator knows to be remembered.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    cluster: bool,
    epoch: u64,
}

/// The stored form of an error.
pub(super) fn stored_refusal(refusal: &Refusal) -> wire::StoredRefusal {
    use wire::stored_refusal::{Barrier, Origin as Stored, Task};
    let origin = match &refusal.origin {
        Origin::Call | Origin::Elsewhere { .. } => None,
        Origin::Task { task, reported } => {
            Some(Stored::Task(Task { job: task.job().to_owned(), task: task.index(), reported: *reported }))
        }
        Origin::Barrier { id, counter } => {
            Some(Stored::Barrier(Barrier { id: id.clone(), counter: *counter }))
        }
    };
    wire::StoredRefusal { code: refusal.code.number(), message: refusal.message.to_string(), origin }
}

/// An error from its stored form.
pub(super) fn refusal(stored: wire::StoredRefusal) -> Result<Refusal, String> {
    use wire::stored_refusal::Origin as Stored;
    let origin = match stored.origin {
        None => Origin::Call,
        Some(Stored::Task(task)) => Origin::Task {
            task: TaskId::new(task.job, task.task).map_err(|error| error.to_string())?,
            reported: task.reported,
        },
        Some(Stored::Barrier(barrier)) => Origin::Barrier { id: barrier.id, counter: barrier.counter },
    };
    Ok(Refusal { code: Code::from_number(stored.code), message: stored.message.into(), origin })
}

/// The number of a state.
pub(super) fn stored_state(state: State) -> wire::stored_member::State {
    match state {
        State::Disconnected => wire::stored_member::State::Disconnected,
        State::Connected => wire::stored_member::State::Connected,
        State::Error => wire::stored_member::State::Error,
    }
}

/// A process as our own messages name it.
///
/// # Errors
/// In words, when it names none that can be.
pub fn process(named: Option<wire::Process>) -> Result<Process, String> {
    let named = named.ok_or("no process is named")?;
    Ok(Process {
        task: TaskId::new(named.job, named.task).map_err(|error| error.to_string())?,
        incarnation: Incarnation(named.incarnation),
        host: named.host.parse::<HostId>().map_err(|error| error.to_string())?,
        pid: named.pid,
    })
}

/// The message form of a process.
#[must_use]
pub fn wire_process(process: &Process) -> wire::Process {
    wire::Process {
        job: process.task.job().to_owned(),
        task: process.task.index(),
        incarnation: process.incarnation.0,
        host: process.host.to_text(),
        pid: process.pid,
    }
}

/// The message form of a group.
#[must_use]
pub fn wire_group(table: &GroupTable) -> wire::JoinResponse {
    let members = table.members.iter().map(|member| wire::Member {
        rank: member.rank,
        process: Some(wire_process(&member.process)),
        addresses: member.addresses.clone(),
        hosts_coordinator: member.hosts_coordinator,
    });
    wire::JoinResponse { members: members.collect(), epoch: table.epoch, secret: table.secret.to_vec() }
}

/// A group from its message form.
///
/// # Errors
/// In words, when it is none.
pub fn group(response: wire::JoinResponse) -> Result<GroupTable, String> {
    let secret = response.secret.try_into().map_err(|_| "the group's secret does not have 32 bytes")?;
    let members = response.members.into_iter().enumerate().map(|(position, member)| {
        if member.rank as usize != position {
            return Err(format!("the group's table has rank {} at position {position}", member.rank));
        }
        Ok(GroupMember {
            rank: member.rank,
            process: process(member.process)?,
            addresses: member.addresses,
            hosts_coordinator: member.hosts_coordinator,
        })
    });
    Ok(GroupTable { members: members.collect::<Result<_, _>>()?, epoch: response.epoch, secret })
}

/// The message form of a generation.
#[must_use]
pub fn wire_round(table: &RoundTable) -> rounds::RegroupResponse {
    rounds::RegroupResponse {
        table: Some(wire_group(&table.group)),
        generation: table.generation,
        carried: table.carried,
    }
}

/// A generation from its message form.
///
/// # Errors
/// In words, when it is none.
pub fn round(response: rounds::RegroupResponse) -> Result<RoundTable, String> {
    let rounds::RegroupResponse { table, generation, carried } = response;
    let group = group(table.ok_or("a generation without a table")?)?;
    if generation == 0 || carried as usize > group.members.len() {
        return Err(format!(
            "generation {generation} with {carried} of {} members carried over",
            group.members.len()
        ));
    }
    Ok(RoundTable { generation, carried, group })
}

/// The message form of a loss.
#[must_use]
pub fn wire_loss(loss: &Loss) -> wire::Loss {
    let evidence = match loss.evidence {
        Evidence::Heartbeat => wire::Evidence::Heartbeat,
        Evidence::Connection => wire::Evidence::Connection,
        Evidence::Peer => wire::Evidence::Peer,
        Evidence::Own => wire::Evidence::Self_,
        Evidence::Restart => wire::Evidence::Restart,
        Evidence::Coordinator => wire::Evidence::Coordinator,
        Evidence::Launcher => wire::Evidence::Launcher,
    };
    wire::Loss {
        process: Some(wire::Process {
            job: loss.task.job().to_owned(),
            task: loss.task.index(),
            incarnation: loss.incarnation.0,
            host: loss.host.as_ref().map_or_else(String::new, HostId::to_text),
            pid: loss.pid.unwrap_or(0),
        }),
        rank: loss.rank,
        evidence: evidence.into(),
        detail: loss.detail.clone(),
        epoch: loss.epoch,
    }
}

/// A loss from its message form.
///
/// # Errors
/// In words, when it is none.
pub fn loss(wire: wire::Loss) -> Result<Loss, String> {
    let evidence = match wire.evidence() {
        wire::Evidence::Unspecified => return Err("a loss without evidence".to_owned()),
        wire::Evidence::Heartbeat => Evidence::Heartbeat,
        wire::Evidence::Connection => Evidence::Connection,
        wire::Evidence::Peer => Evidence::Peer,
        wire::Evidence::Self_ => Evidence::Own,
        wire::Evidence::Restart => Evidence::Restart,
        wire::Evidence::Coordinator => Evidence::Coordinator,
        wire::Evidence::Launcher => Evidence::Launcher,
    };
    let named = wire.process.ok_or("a loss that names no process")?;
    let host = (!named.host.is_empty()).then(|| named.host.parse::<HostId>()).transpose();
    let host = host.map_err(|error| error.to_string())?;
    Ok(Loss {
        task: TaskId::new(named.job, named.task).map_err(|error| error.to_string())?,
        incarnation: Incarnation(named.incarnation),
        pid: host.is_some().then_some(named.pid),
        host,
        rank: wire.rank,
        evidence,
        detail: wire.detail,
        epoch: wire.epoch,
    })
}
