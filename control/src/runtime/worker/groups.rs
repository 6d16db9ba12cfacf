//! Who is in which collective group, and who its source is: what the leader of a cluster answers.
//!
//! Each device of a group says that it is there, on every task; when all are, each gets the whole list, and its place in
//! the list, sorted by name, is its rank (`CollectiveParamResolverLocal` in tensorflow/core/common_runtime).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringway_proto::tensorflow as wire;
use ringway_proto::tensorflow::error::Code;
use tokio::sync::watch;
use tonic::Status;

use super::Worker;
use super::collectives::DESCRIPTION;
use super::convert::status;
use super::exchange::is_of;
use crate::kernels::OpError;
use crate::random;

/// Devices of one group.
const GROUP_LIMIT: i32 = 1 << 16;
/// Groups, instances and step sequences that are remembered, each.
const REMEMBERED_LIMIT: usize = 1 << 16;
/// Bytes that name a group's communicator, as TensorFlow's are long.
const COMMUNICATOR_KEY_BYTES: usize = 16;

/// In the metadata of CompleteGroup: how many milliseconds the device waits for the others. Field of TensorFlow's there is none.
pub(in crate::runtime) const GROUP_LIMIT_MS: &str = "ringway-group-limit-ms";

type Outcome<T> = watch::Sender<Option<Result<T, OpError>>>;

struct Group {
    size: i32,
    device_type: String,
    members: BTreeMap<String, wire::DeviceAttributes>,
    complete: Outcome<wire::CompleteGroupResponse>,
}

struct Instance {
    arrived: std::collections::BTreeSet<String>,
    source: Option<i32>,
    complete: Outcome<i32>,
}

/// What the leader knows.
#[derive(Default)]
pub(super) struct Groups {
    groups: Mutex<HashMap<i32, Group>>,
    /// By group, instance and step.
    instances: Mutex<HashMap<(i32, i32, i64), Instance>>,
    sequences: Mutex<HashMap<i64, i64>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn full(what: &str) -> OpError {
    let message = format!("this task knows {REMEMBERED_LIMIT} {what}, the most it keeps");
    OpError::new(Code::ResourceExhausted, message)
}

async fn wait<T: Clone>(mut outcome: watch::Receiver<Option<Result<T, OpError>>>) -> Result<T, OpError> {
    match outcome.wait_for(Option::is_some).await.as_deref() {
        Ok(Some(result)) => result.clone(),
        _ => Err(OpError::new(Code::Cancelled, "the group's leader is ending")),
    }
}

impl Groups {
    /// A device joins its group; the answer comes when all have, or after `limit`, which says which of `tasks` have not.
    pub(super) async fn complete_group(
        &self,
        request: wire::CompleteGroupRequest,
        limit: Option<Duration>,
        tasks: &[String],
    ) -> Result<wire::CompleteGroupResponse, OpError> {
        let device = request.device_attributes.clone().unwrap_or_default();
        if !(1..=GROUP_LIMIT).contains(&request.group_size) || device.name.is_empty() {
            let (key, size) = (request.group_key, request.group_size);
            let message =
                format!("Collective group {key} of {size} devices, with device '{}': cannot be", device.name);
            return Err(OpError::invalid(message));
        }
        let _stay = Stay { groups: self, key: request.group_key, device: device.clone() };
        let outcome = self.join(&request, device)?;
        let Some(limit) = limit else { return wait(outcome).await };
        let late = |_| Err(self.late(&request, limit, tasks));
        tokio::time::timeout(limit, wait(outcome)).await.unwrap_or_else(late)
    }

    /// The error of a device that has waited for so long: who has come, and who has not.
    fn late(&self, request: &wire::CompleteGroupRequest, limit: Duration, tasks: &[String]) -> OpError {
        let (key, size) = (request.group_key, request.group_size);
        let came: Vec<String> = lock(&self.groups)
            .get(&key)
            .map(|group| group.members.keys().cloned().collect())
            .unwrap_or_default();
        let away = tasks.iter().filter(|task| !came.iter().any(|device| is_of(device, task)));
        let (away, missing): (Vec<&str>, _) =
            (away.map(String::as_str).collect(), (size as usize).saturating_sub(came.len()));
        let of = if away.len() == missing { "" } else { " of" };
        let message = format!(
            "Collective has timed out: group {key} of {size} devices has not come together in {limit:?} \
             (timeout_seconds): {} came; missing are {missing}{of}: {}",
            came.join(", "),
            away.join(", ")
        );
        OpError::new(Code::DeadlineExceeded, message)
    }

    fn join(
        &self,
        request: &wire::CompleteGroupRequest,
        device: wire::DeviceAttributes,
    ) -> Result<watch::Receiver<Option<Result<wire::CompleteGroupResponse, OpError>>>, OpError> {
        let mut groups = lock(&self.groups);
        if groups.len() >= REMEMBERED_LIMIT && !groups.contains_key(&request.group_key) {
            return Err(full("collective groups"));
        }
        let group = groups.entry(request.group_key).or_insert_with(|| Group {
            size: request.group_size,
            device_type: request.device_type.clone(),
            members: BTreeMap::new(),
            complete: watch::channel(None).0,
        });
        let (key, size) = (request.group_key, request.group_size);
        if group.size != size {
            let message =
                format!("Collective group {key} has size {}, and was asked for with {size}", group.size);
            return Err(OpError::invalid(message));
        }
        if group.device_type != request.device_type {
            let (there, given) = (&group.device_type, &request.device_type);
            let message =
                format!("Collective group {key} is of {there} devices, and was asked for with {given}");
            return Err(OpError::invalid(message));
        }
        let is_full = group.members.len() as i32 == size;
        match group.members.get(&device.name) {
            Some(there) if same_life(there, &device) => {}
            // A task that was started again: all of the group must find each other again.
            Some(_) if is_full => {
                group.members.clear();
                group.complete.send_replace(None);
            }
            Some(_) => {}
            None if is_full => {
                let message = format!("Collective group {key} is full: {} cannot join it", device.name);
                return Err(OpError::invalid(message));
            }
            None => {}
        }
        group.members.insert(device.name.clone(), device);
        if group.members.len() as i32 == size && group.complete.borrow().is_none() {
            group.complete.send_replace(Some(Ok(group.answer(key)?)));
        }
        Ok(group.complete.subscribe())
    }

    /// A device comes to an instance of a broadcast; the answer, the source's rank, comes when the source has come and
    /// all others are known.
    pub(super) async fn complete_instance(
        &self,
        request: wire::CompleteInstanceRequest,
    ) -> Result<wire::CompleteInstanceResponse, OpError> {
        let rank = {
            let groups = lock(&self.groups);
            let group = groups.get(&request.group_key).ok_or_else(|| {
                let message = format!("Collective group {} is not known here yet", request.group_key);
                OpError::new(Code::FailedPrecondition, message)
            })?;
            group.members.keys().position(|name| *name == request.device).ok_or_else(|| {
                let message = format!("{} is not in collective group {}", request.device, request.group_key);
                OpError::invalid(message)
            })? as i32
        };
        let outcome = {
            let mut instances = lock(&self.instances);
            if instances.len() >= REMEMBERED_LIMIT {
                instances.retain(|_, instance| instance.complete.borrow().is_none());
            }
            if instances.len() >= REMEMBERED_LIMIT {
                return Err(full("collective instances"));
            }
            let at = (request.group_key, request.instance_key, request.step_id);
            let instance = instances.entry(at).or_insert_with(|| Instance {
                arrived: Default::default(),
                source: None,
                complete: watch::channel(None).0,
            });
            instance.arrive(&request, rank);
            instance.complete.subscribe()
        };
        let (instance_key, source_rank) = (request.instance_key, wait(outcome).await?);
        Ok(wire::CompleteInstanceResponse { instance_key, source_rank })
    }

    /// The next step number of each collective graph, each given once; random at first, so that no two lives give the
    /// same. Members need not have the same number for a step here: instances are found by group and instance alone.
    pub(super) fn next_steps(&self, keys: &[i64]) -> Vec<wire::StepSequence> {
        let mut sequences = lock(&self.sequences);
        if sequences.len() + keys.len() > REMEMBERED_LIMIT {
            sequences.clear();
        }
        let next = |key: &i64| {
            let next = sequences.entry(*key).or_insert_with(|| (random::incarnation().0 >> 8) as i64);
            *next += 1;
            wire::StepSequence { graph_key: *key, next_step_id: *next }
        };
        keys.iter().map(next).collect()
    }
}

/// A device waits for the rest of its group. When it does so no more and they never came, it is not in the group: its end
/// of the data plane is gone, and the others must not be sent there. Only known of devices of ours, which come with another
/// end each time.
struct Stay<'a> {
    groups: &'a Groups,
    key: i32,
    device: wire::DeviceAttributes,
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        let mut groups = lock(&self.groups.groups);
        let Some(group) = groups.get_mut(&self.key).filter(|group| group.complete.borrow().is_none()) else {
            return;
        };
        let same = |there: &wire::DeviceAttributes| {
            there.physical_device_desc.starts_with(DESCRIPTION) && same_life(there, &self.device)
        };
        if group.members.get(&self.device.name).is_some_and(same) {
            group.members.remove(&self.device.name);
        }
    }
}

/// Whether a device says the same of itself as before: a task of ours that has given a group up comes with another end.
fn same_life(before: &wire::DeviceAttributes, now: &wire::DeviceAttributes) -> bool {
    (before.incarnation, &before.physical_device_desc) == (now.incarnation, &now.physical_device_desc)
}

impl Group {
    fn answer(&self, key: i32) -> Result<wire::CompleteGroupResponse, OpError> {
        let unlucky = |error| OpError::internal(format!("the system gives no random bytes: {error}"));
        let communicator_key: [u8; COMMUNICATOR_KEY_BYTES] = random::bytes().map_err(unlucky)?;
        let task =
            |name: &String| name.rsplit_once("/device:").map_or(name.clone(), |(task, _)| task.to_owned());
        let tasks: std::collections::BTreeSet<String> = self.members.keys().map(task).collect();
        Ok(wire::CompleteGroupResponse {
            group_key: key,
            group_size: self.size,
            device_type: self.device_type.clone(),
            num_tasks: tasks.len() as i32,
            communicator_key: communicator_key.to_vec(),
            device_attributes: self.members.values().cloned().collect(),
        })
    }
}

impl Instance {
    fn arrive(&mut self, request: &wire::CompleteInstanceRequest, rank: i32) {
        let twice = self.source.is_some_and(|source| request.is_source && source != rank);
        if request.is_source && self.source.is_none() {
            self.source = Some(rank);
        }
        self.arrived.insert(request.device.clone());
        let (group, instance) = (request.group_key, request.instance_key);
        if twice {
            let message = format!("Instance {instance} of collective group {group} has two sources");
            self.complete.send_replace(Some(Err(OpError::invalid(message))));
        } else if let Some(source) = self.source {
            self.complete.send_replace(Some(Ok(source)));
        } else if self.arrived.len() as i32 == request.group_size {
            let message = format!(
                "Instance {instance} found no source for broadcast in group {group}: all only receive"
            );
            self.complete.send_replace(Some(Err(OpError::internal(message))));
        }
    }
}

impl Worker {
    /// A device is there, for a collective group; answered when all of the group are.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` when it does not fit the group.
    pub async fn complete_group(
        &self,
        request: wire::CompleteGroupRequest,
    ) -> Result<wire::CompleteGroupResponse, Status> {
        self.complete_group_within(request, None).await
    }

    /// As [`Self::complete_group`], for a device that waits for so long at most.
    ///
    /// # Errors
    /// `DEADLINE_EXCEEDED` then, with those who have not come.
    pub async fn complete_group_within(
        &self,
        request: wire::CompleteGroupRequest,
        limit: Option<Duration>,
    ) -> Result<wire::CompleteGroupResponse, Status> {
        let tasks = self.shared.peers.tasks();
        self.shared.groups.complete_group(request, limit, &tasks).await.map_err(|error| status(&error))
    }

    /// The limit that the metadata of a CompleteGroup has.
    #[must_use]
    pub fn group_limit(metadata: &tonic::metadata::MetadataMap) -> Option<Duration> {
        metadata.get(GROUP_LIMIT_MS)?.to_str().ok()?.parse().ok().map(Duration::from_millis)
    }

    /// A device is there, for one broadcast of its group; answered when the source is known.
    ///
    /// # Errors
    /// When there is no such group, or not exactly one source.
    pub async fn complete_instance(
        &self,
        request: wire::CompleteInstanceRequest,
    ) -> Result<wire::CompleteInstanceResponse, Status> {
        self.shared.groups.complete_instance(request).await.map_err(|error| status(&error))
    }

    /// Step numbers for collective graphs.
    ///
    /// # Errors
    /// None.
    pub async fn get_step_sequence(
        &self,
        request: wire::GetStepSequenceRequest,
    ) -> Result<wire::GetStepSequenceResponse, Status> {
        let step_sequence = self.shared.groups.next_steps(&request.graph_key);
        Ok(wire::GetStepSequenceResponse { step_sequence })
    }

    /// A part of a collective's data: none of ours goes this way, since ours go over the data plane.
    ///
    /// # Errors
    /// `UNIMPLEMENTED`, always: a group has tasks of one kind.
    pub async fn recv_buf(&self, request: wire::RecvBufRequest) -> Result<wire::RecvBufResponse, Status> {
        let key = request.buf_rendezvous_key;
        let message = format!(
            "{key}: {} moves the data of collectives over Ringway's data plane: let all tasks of the group be Ringway's",
            self.shared.task
        );
        Err(status(&OpError::new(Code::Unimplemented, message)))
    }
}
