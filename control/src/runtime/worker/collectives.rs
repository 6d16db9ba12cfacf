//! Collective operations of graphs: found among tasks by group and instance, carried by Ringway's collectives.
//!
//! The members of a group find each other as TensorFlow's do, by CompleteGroup at the cluster's leader; each says there, in
//! the description of its device, where its end of the group's own data plane is. A group has a thread, which drives one
//! communicator. Which instance comes next is rank 0's word, so that members may begin instances in any order.
//!
//! Invariants (cited by the tests):
//! - **C1** All members run the same instance at the same time; one that lacks it waits for it.
//! - **C2** When a step that has begun an instance is aborted, the group is, on all tasks. A member that was idle hears of it by
//!   its next instance, which fails; what comes after that makes the group anew. One that is not done in the time that its node
//!   allows (`timeout_seconds`) ends the group in the same way.
//! - **C3** A group that is dead holds neither thread nor data plane, also one whose members never all came.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prost::Message;
use ringway_collectives::engine::{Communicator, EngineOptions, GroupInfo, Member, Reporter};
use ringway_collectives::reduce::ReduceOp;
use ringway_dataplane::transport::{Address, Peer, Transport};
use ringway_proto::ringway::v1::DataPlaneTask;
use ringway_proto::tensorflow as wire;
use ringway_proto::tensorflow::DataType;
use ringway_proto::tensorflow::error::Code;
use ringway_topology::model::order::Site;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

mod carry;

use self::carry::carry;
use super::Worker;
use super::convert::op_error;
use super::executor::Pending;
use super::groups::GROUP_LIMIT_MS;
use crate::core::graph::{GraphError, Node};
use crate::kernels::{OpError, Slot};
use crate::tensor::{Shape, Tensor};

/// How long a leader that was told of a time limit is given to say who is missing.
const LEADER_GRACE: Duration = Duration::from_millis(500);
/// Groups that a task is in at once: each has a thread.
pub const GROUPS_LIMIT: usize = 256;
/// How a member's device is described when it is one of ours; the rest is a `DataPlaneTask` in hexadecimal digits.
pub(super) const DESCRIPTION: &str = "ringway:";

/// What is done with the members' values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Reduce(ReduceOp),
    Gather,
    Send,
    Recv,
}

/// Where group and instance are found.
#[derive(Clone, Copy, Debug)]
enum Keys {
    /// In the inputs, from this one on: size, group, instance.
    Inputs(usize),
    Fixed {
        size: i32,
        group: i32,
        instance: i32,
    },
}

/// A collective node.
#[derive(Debug)]
pub(super) struct Collective {
    kind: Kind,
    keys: Keys,
    dtype: DataType,
    /// Of what is received, where the node says it itself.
    shape: Option<Shape>,
    /// How long the whole may take; for ever without.
    limit: Option<Duration>,
}

impl Collective {
    /// `None`: a collective that is not done here.
    pub(super) fn new(node: &Node) -> Result<Option<Collective>, GraphError> {
        let (name, second) = match node.op().strip_suffix("V2") {
            Some(name) => (name, true),
            None => (node.op(), false),
        };
        let kind = match name {
            "CollectiveReduce" => Kind::Reduce(merge_op(node)?),
            "CollectiveGather" => Kind::Gather,
            "CollectiveBcastSend" => Kind::Send,
            "CollectiveBcastRecv" => Kind::Recv,
            _ => return Ok(None),
        };
        let attrs = &node.attrs;
        let number = |name| i32::try_from(attrs.int(name)?).map_err(|_| attrs.wrong(name, "is over 32 bits"));
        let keys = match second {
            true => Keys::Inputs(usize::from(kind != Kind::Recv)),
            false => Keys::Fixed {
                size: number("group_size")?,
                group: number("group_key")?,
                instance: number("instance_key")?,
            },
        };
        let shape = match (kind, second) {
            (Kind::Recv, false) => Some(
                Shape::from_proto(Some(attrs.shape("shape")?))
                    .map_err(|error| attrs.wrong("shape", &error.to_string()))?,
            ),
            _ => None,
        };
        let limit = limit(attrs.float("timeout_seconds")?)
            .ok_or_else(|| attrs.wrong("timeout_seconds", "is no time"))?;
        Ok(Some(Collective { kind, keys, dtype: attrs.dtype("T")?, shape, limit }))
    }

    /// Begins it; its end is told to `pending`.
    pub(super) fn start(&self, inputs: Vec<Slot>, pending: Pending) {
        let Some(collectives) = pending.step().collectives.clone() else {
            let message = "this step has no collectives: run it by a worker's RunGraph";
            return pending.finish(Err(OpError::new(Code::FailedPrecondition, message)));
        };
        match self.request(inputs) {
            Ok((place, work)) => collectives.begin(place, work, self.limit, pending),
            Err(error) => pending.finish(Err(error)),
        }
    }

    fn request(&self, mut inputs: Vec<Slot>) -> Result<(Place, Work), OpError> {
        let number = |index: usize| -> Result<i32, OpError> {
            let slot = inputs.get(index).ok_or_else(|| OpError::internal("a collective lacks an input"))?;
            Ok(slot.value()?.single::<i32>()?)
        };
        let place = match self.keys {
            Keys::Fixed { size, group, instance } => Place { size, group, instance },
            Keys::Inputs(at) => {
                Place { size: number(at)?, group: number(at + 1)?, instance: number(at + 2)? }
            }
        };
        let value = match self.kind {
            Kind::Recv => {
                let shape = match &self.shape {
                    Some(shape) => shape.clone(),
                    None => shape_of(&inputs.get(3).unwrap_or(&Slot::Empty).value()?)?,
                };
                Tensor::zeros(self.dtype, shape)?
            }
            _ => match inputs.get_mut(0).map(std::mem::take) {
                Some(Slot::Tensor(tensor)) => tensor,
                Some(slot) => slot.value()?,
                None => return Err(OpError::internal("a collective lacks its input")),
            },
        };
        Ok((place, Work { kind: self.kind, value }))
    }
}

/// As TensorFlow has it: 0 is no limit. `None` for what is no time.
fn limit(seconds: f32) -> Option<Option<Duration>> {
    let limit = Duration::try_from_secs_f32(seconds).ok()?;
    Some((!limit.is_zero()).then_some(limit))
}

/// The sizes in a vector of int32 or int64.
fn shape_of(tensor: &Tensor) -> Result<Shape, OpError> {
    let sizes: Vec<i64> = match tensor.dtype() {
        DataType::DtInt32 => tensor.as_slice::<i32>()?.iter().map(|size| i64::from(*size)).collect(),
        _ => tensor.as_slice::<i64>()?.to_vec(),
    };
    Ok(Shape::from_sizes(&sizes)?)
}

fn merge_op(node: &Node) -> Result<ReduceOp, GraphError> {
    let attrs = &node.attrs;
    let last = attrs.text("final_op")?;
    if !matches!(last, "Id" | "Div") {
        return Err(attrs.wrong("final_op", "must be one of Id and Div"));
    }
    Ok(match (attrs.text("merge_op")?, last) {
        ("Add", "Div") => ReduceOp::Avg,
        ("Add", _) => ReduceOp::Sum,
        (_, "Div") => return Err(attrs.wrong("final_op", "is Div, which goes with Add alone")),
        ("Mul", _) => ReduceOp::Prod,
        ("Min", _) => ReduceOp::Min,
        ("Max", _) => ReduceOp::Max,
        _ => return Err(attrs.wrong("merge_op", "must be one of Add, Mul, Min and Max")),
    })
}

/// Which instance of which group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    size: i32,
    group: i32,
    instance: i32,
}

struct Work {
    kind: Kind,
    value: Tensor,
}

/// Opens a member's own end of a group's data plane.
pub type OpenEndpoint = Box<dyn Fn() -> Result<OwnEnd, String> + Send + Sync>;

/// A member's own end of a group's data plane.
pub struct OwnEnd {
    /// What it moves data with.
    pub transport: Box<dyn Transport>,
    /// What the other members learn of it.
    pub card: DataPlaneTask,
    /// Lets another member prove itself, known by its card; `false` when that holds no secret.
    pub admit: Box<dyn Fn(&DataPlaneTask) -> bool + Send>,
}

/// The groups that this task is in.
pub struct Collectives {
    worker: Worker,
    leader: String,
    open: Arc<OpenEndpoint>,
    groups: Arc<Groups>,
}

/// Groups by key.
#[derive(Default)]
pub(super) struct Groups(Mutex<HashMap<i32, Arc<Group>>>);

impl Groups {
    fn lock(&self) -> MutexGuard<'_, HashMap<i32, Arc<Group>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all groups, and so their threads.
    pub(super) fn end(&self, why: &OpError) {
        let all = std::mem::take(&mut *self.lock());
        all.values().for_each(|group| group.end(why));
    }
}

impl Collectives {
    /// The collectives of a worker whose groups come together at `leader` (`/job:worker/replica:0/task:0`).
    pub(super) fn new(
        worker: Worker,
        leader: String,
        open: Arc<OpenEndpoint>,
        groups: Arc<Groups>,
    ) -> Collectives {
        Collectives { worker, leader, open, groups }
    }

    fn begin(&self, place: Place, work: Work, limit: Option<Duration>, pending: Pending) {
        match self.group(place, limit) {
            Ok(group) => {
                let timer = limit.map(|limit| self.timer(&group, place, limit));
                group.submit(place.instance, work, timer, pending);
            }
            Err(error) => pending.finish(Err(error)),
        }
    }

    /// Ends the group once `limit` is over, unless it is dropped before.
    fn timer(&self, group: &Arc<Group>, place: Place, limit: Duration) -> Timer {
        let group = Arc::downgrade(group);
        let over = async move {
            tokio::time::sleep(limit).await;
            if group.upgrade().is_some_and(|group| !group.has_met()) {
                // The leader, which was told of the limit, knows better who is missing.
                tokio::time::sleep(LEADER_GRACE).await;
            }
            if let Some(group) = group.upgrade() {
                group.end(&overdue(place, limit, &group.missing()));
            }
        };
        Timer(self.worker.calls().spawn(over).abort_handle())
    }

    /// The group, made if this is its first use.
    fn group(&self, place: Place, limit: Option<Duration>) -> Result<Arc<Group>, OpError> {
        let mut groups = self.groups.lock();
        groups.retain(|_, group| !group.is_dead());
        if let Some(group) = groups.get(&place.group) {
            return Ok(group.clone());
        }
        if groups.len() >= GROUPS_LIMIT {
            let message =
                format!("this task is in {GROUPS_LIMIT} collective groups, the most that it may be in");
            return Err(OpError::new(Code::ResourceExhausted, message));
        }
        let group = Arc::new(Group::default());
        let driven = Driver {
            group: group.clone(),
            place,
            limit,
            worker: self.worker.clone(),
            leader: self.leader.clone(),
            open: self.open.clone(),
        };
        let thread = std::thread::Builder::new().name(format!("ringway-group-{}", place.group));
        let no_thread = |error| OpError::internal(format!("no thread for a collective group: {error}"));
        thread.spawn(move || driven.drive()).map_err(no_thread)?;
        groups.insert(place.group, group.clone());
        Ok(group)
    }
}

struct Waiting {
    instance: i32,
    work: Work,
    pending: Pending,
    timer: Option<Timer>,
}

/// Does something later, unless it is dropped before.
struct Timer(AbortHandle);

impl Drop for Timer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn overdue(place: Place, limit: Duration, missing: &str) -> OpError {
    let Place { size, group, instance } = place;
    let message = format!(
        "Collective has timed out: instance {instance} of group {group}, of {size} devices, was not done in {limit:?} \
         (timeout_seconds): {missing}"
    );
    OpError::new(Code::DeadlineExceeded, message)
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    dead: Option<OpError>,
    /// The communicator, once the members have met.
    met: Option<Met>,
}

/// What others than its thread need of a group's communicator.
struct Met {
    reporter: Reporter,
    id: u32,
    /// The members' devices, by rank.
    devices: Vec<String>,
}

impl Met {
    /// For whom this member waits.
    fn missing(&self) -> String {
        let waits = self.reporter.flight(false).map(|flight| flight.waits).unwrap_or_default();
        let ranks: BTreeSet<u32> = waits.iter().flat_map(|wait| &wait.on).map(|on| on.rank).collect();
        let named = |rank: &u32| self.devices.get(*rank as usize).map(|name| format!("{name} (rank {rank})"));
        match ranks.iter().filter_map(named).collect::<Vec<_>>().join(", ") {
            none if none.is_empty() => {
                "this device itself waits for nobody: its turn has not come".to_owned()
            }
            names => format!("nothing came from {names}"),
        }
    }
}

/// One group, as operations see it.
#[derive(Default)]
pub(super) struct Group {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Told when it has died, for whoever is not waiting at `changed`.
    died: Notify,
}

impl Group {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_dead(&self) -> bool {
        self.lock().dead.is_some()
    }

    fn has_met(&self) -> bool {
        self.lock().met.is_some()
    }

    /// Who is missing, as far as it is known here.
    fn missing(&self) -> String {
        let queue = self.lock();
        let unmet = || "its devices have not all come".to_owned();
        queue.met.as_ref().map_or_else(unmet, Met::missing)
    }

    fn submit(self: &Arc<Group>, instance: i32, work: Work, timer: Option<Timer>, pending: Pending) {
        let (group, step) = (Arc::downgrade(self), pending.step().clone());
        let mut queue = self.lock();
        if let Some(why) = queue.dead.clone() {
            drop(queue);
            return pending.finish(Err(why));
        }
        queue.waiting.push_back(Waiting { instance, work, pending, timer });
        drop(queue);
        self.changed.notify_all();
        // C2.
        step.when_aborted(Box::new(move |why| {
            if let Some(group) = group.upgrade() {
                group.end(why);
            }
        }));
    }

    /// The group is dead: whoever waits is told, and the thread's calls end.
    fn end(&self, why: &OpError) {
        let mut queue = self.lock();
        if queue.dead.is_some() {
            return;
        }
        queue.dead = Some(why.clone());
        if let Some(met) = queue.met.take() {
            met.reporter.abort(met.id, why.message.as_str());
        }
        let waiting = std::mem::take(&mut queue.waiting);
        drop(queue);
        self.changed.notify_all();
        self.died.notify_waiters();
        waiting.into_iter().for_each(|waiting| waiting.pending.finish(Err(why.clone())));
    }

    /// Waits until it is dead. The reason.
    async fn death(&self) -> OpError {
        loop {
            // Before the look, so that no word of it is missed.
            let died = self.died.notified();
            if let Some(why) = self.lock().dead.clone() {
                return why;
            }
            died.await;
        }
    }

    /// The reason of an error that the thread met: what ended the group, if it was ended.
    fn why(&self, met: OpError) -> OpError {
        self.lock().dead.clone().unwrap_or(met)
    }

    /// The next operation, of this instance if one is asked for; `None` when the group is dead.
    fn next(&self, instance: Option<i32>) -> Option<Waiting> {
        let mut queue = self.lock();
        loop {
            if queue.dead.is_some() {
                return None;
            }
            let found = queue.waiting.iter().position(|w| instance.is_none_or(|i| w.instance == i));
            if let Some(at) = found {
                return queue.waiting.remove(at);
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until there is something to do. Whether the group lives.
    fn wait_for_any(&self) -> bool {
        let mut queue = self.lock();
        while queue.dead.is_none() && queue.waiting.is_empty() {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.dead.is_none()
    }
}

/// The thread of a group.
struct Driver {
    group: Arc<Group>,
    place: Place,
    /// How long the members have to meet.
    limit: Option<Duration>,
    worker: Worker,
    leader: String,
    open: Arc<OpenEndpoint>,
}

impl Driver {
    fn drive(self) {
        let (comm, devices) = match self.meet() {
            Ok(met) => met,
            Err(error) => return self.group.end(&error),
        };
        let met = Met { reporter: comm.reporter(), id: comm.id(), devices };
        self.group.lock().met = Some(met);
        while self.group.wait_for_any() {
            if let Err(error) = self.turn(&comm) {
                return self.group.end(&error);
            }
        }
    }

    /// The members find each other. Their devices, by rank.
    fn meet(&self) -> Result<(Communicator, Vec<String>), OpError> {
        let unavailable = |why: String| OpError::new(Code::Unavailable, why);
        let OwnEnd { mut transport, card, admit } = (self.open)().map_err(unavailable)?;
        let described = hex(&card.encode_to_vec());
        let mut device = self.worker.devices().swap_remove(0);
        device.physical_device_desc = format!("{DESCRIPTION}{described}");
        let me = device.name.clone();
        let request = wire::CompleteGroupRequest {
            group_key: self.place.group,
            group_size: self.place.size,
            device_type: device.device_type.clone(),
            device_attributes: Some(device),
            ..Default::default()
        };
        let answer = async {
            tokio::select! {
                answer = self.worker.complete_group_at(&self.leader, request, self.limit) => answer,
                // Nobody waits for the others any more (C3).
                why = self.group.death() => Err(why),
            }
        };
        let all = self.worker.calls().block_on(answer)?.device_attributes;
        let (mut members, mut my_rank) = (Vec::with_capacity(all.len()), None);
        for (rank, device) in (0_u32..).zip(&all) {
            let task = card_of(device)?;
            if device.name == me {
                my_rank = Some(rank);
            } else {
                if !admit(&task) {
                    return Err(unavailable(format!("{} does not say its secret", device.name)));
                }
                let address = Address(task.address.clone());
                transport.connect(Peer(rank), &address).map_err(|error| {
                    unavailable(format!("{} on {} is not reached: {error}", device.name, task.host))
                })?;
            }
            members.push(Member {
                peer: Peer(rank),
                site: Site::on(task.host.as_str()),
                host: task.host,
                pid: task.pid,
                incarnation: task.incarnation,
            });
        }
        let my_rank = my_rank.ok_or_else(|| OpError::internal("this device is not in its own group"))?;
        let info = GroupInfo { id: self.place.group as u32, my_rank, members };
        let options =
            EngineOptions { pool: crate::tensor::array::pool().clone(), ..EngineOptions::default() };
        let comm =
            Communicator::new(transport, info, options).map_err(|error| unavailable(error.to_string()))?;
        Ok((comm, all.into_iter().map(|device| device.name).collect()))
    }

    /// One instance: which one is rank 0's word (C1).
    fn turn(&self, comm: &Communicator) -> Result<(), OpError> {
        let mut first = None;
        let mut word = [0_i32];
        if comm.rank() == 0 {
            let Some(waiting) = self.group.next(None) else { return Ok(()) };
            word = [waiting.instance];
            first = Some(waiting);
        }
        let said = comm.broadcast(&mut word, 0).map_err(|error| self.group.why(failed(&error)));
        let waiting = match (said, first) {
            (Ok(()), Some(waiting)) => waiting,
            (Ok(()), None) => match self.group.next(Some(word[0])) {
                Some(waiting) => waiting,
                None => return Ok(()),
            },
            (Err(error), waiting) => {
                if let Some(waiting) = waiting {
                    waiting.pending.finish(Err(error.clone()));
                }
                return Err(error);
            }
        };
        let Waiting { work, pending, timer, .. } = waiting;
        let result = carry(comm, work).map_err(|error| self.group.why(error));
        drop(timer);
        let failure = result.as_ref().err().cloned();
        pending.finish(result.map(|tensor| vec![Slot::Tensor(tensor)]));
        failure.map_or(Ok(()), Err)
    }
}

fn failed(error: &ringway_collectives::engine::CollectiveError) -> OpError {
    OpError::new(Code::Unavailable, error.to_string())
}

/// The bytes in hexadecimal digits, and back.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn card_of(device: &wire::DeviceAttributes) -> Result<DataPlaneTask, OpError> {
    let none = || {
        let message = format!(
            "{} is no Ringway task: a collective group is of tasks of one kind, all Ringway's or all TensorFlow's",
            device.name
        );
        OpError::new(Code::FailedPrecondition, message)
    };
    let digits = device.physical_device_desc.strip_prefix(DESCRIPTION).ok_or_else(none)?;
    let bytes: Option<Vec<u8>> = (0..digits.len() / 2)
        .map(|at| digits.get(2 * at..2 * at + 2).and_then(|two| u8::from_str_radix(two, 16).ok()))
        .collect();
    DataPlaneTask::decode(bytes.ok_or_else(none)?.as_slice()).map_err(|_| none())
}

impl Worker {
    /// CompleteGroup at the leader, waited for. The leader is told of the limit: TensorFlow's passes over that.
    async fn complete_group_at(
        &self,
        leader: &str,
        request: wire::CompleteGroupRequest,
        limit: Option<Duration>,
    ) -> Result<wire::CompleteGroupResponse, OpError> {
        if leader == self.task() {
            return self.complete_group_within(request, limit).await.map_err(|status| op_error(&status));
        }
        let peer = self.peers().find(leader)?;
        let mut request = tonic::Request::new(request);
        if let Some(limit) = limit {
            let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            request.metadata_mut().insert(GROUP_LIMIT_MS, limit_ms.into());
        }
        let answer = peer.client.clone().complete_group(request).await;
        answer.map(tonic::Response::into_inner).map_err(|status| super::peers::lost(leader, &status))
    }
}
