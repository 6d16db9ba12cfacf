//! Wire messages to requests, and answers to wire messages. Everything that comes from outside is checked here.

use std::collections::BTreeMap;
use std::time::Duration;

use prost::Message;
use ringway_proto::ringway::rounds::v1::RegroupResponse;
use ringway_proto::ringway::v1 as session;
use ringway_proto::tensorflow as tf;
use ringway_topology::{Incarnation, TaskId};
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use tonic::{Request, Status};

use crate::core::coordination::errors::{Code, Origin, Refusal};
use crate::core::coordination::groups::GroupTable;
use crate::core::coordination::losses::Loss;
use crate::core::coordination::memory;
pub(super) use crate::core::coordination::memory::{wire_group, wire_loss, wire_process, wire_round};
use crate::core::coordination::request::{
    CallId, Device, Life, Process, Request as Ask, State, TaskStatus, Value,
};
use crate::core::coordination::rounds::RoundTable;

mod status;
mod xla;

pub(crate) use status::{life, task_name};
pub(super) use status::{named_task, overview};
pub(super) use xla::{XlaTasks, service_mismatch};

const SERVICE_ERROR_KEY: &str = "type.googleapis.com/tensorflow.CoordinationServiceError";
const BARRIER_ERROR_KEY: &str = "type.googleapis.com/tensorflow.BarrierError";

/// What TensorFlow puts into the trailer `grpc-status-details-bin`.
#[derive(Clone, PartialEq, Message)]
struct StatusDetails {
    #[prost(btree_map = "string, bytes", tag = "1")]
    payloads: BTreeMap<String, Vec<u8>>,
}

/// Says, in the metadata of an answer, that another process is to be asked: its address, or nothing where that is not known.
pub(super) const LEADER_METADATA: &str = "ringway-leader";

/// Which process is to be asked instead of the one that gave this answer, if it said so: its address, if it knew it.
pub(super) fn elsewhere(status: &Status) -> Option<Option<String>> {
    let said = status.metadata().get(LEADER_METADATA)?.to_str().unwrap_or_default();
    Some((!said.is_empty()).then(|| said.to_owned()))
}

/// A refusal as a gRPC status, with details for TensorFlow's clients.
pub(super) fn status(refusal: &Refusal) -> Status {
    if let Origin::Elsewhere { leader } = &refusal.origin {
        let mut status = Status::new(tonic::Code::from_i32(refusal.code.number()), &*refusal.message);
        // An address is ASCII.
        let leader = leader.as_deref().unwrap_or_default().parse().unwrap_or(MetadataValue::from_static(""));
        status.metadata_mut().insert(LEADER_METADATA, leader);
        return status;
    }
    let barrier = match &refusal.origin {
        Origin::Call | Origin::Elsewhere { .. } | Origin::Task { .. } => None,
        Origin::Barrier { id, counter } => {
            let error = tf::BarrierError { barrier_id: id.clone(), counter: *counter };
            Some((BARRIER_ERROR_KEY, error.encode_to_vec()))
        }
    };
    let general = (SERVICE_ERROR_KEY, error_payload(refusal).encode_to_vec());
    with_payloads(refusal.code, &refusal.message, barrier.into_iter().chain([general]))
}

/// A gRPC status with details as TensorFlow's and XLA's clients read them.
fn with_payloads(
    code: Code,
    message: &str,
    payloads: impl IntoIterator<Item = (&'static str, Vec<u8>)>,
) -> Status {
    let payloads = payloads.into_iter().map(|(key, payload)| (key.to_owned(), payload)).collect();
    let details = StatusDetails { payloads };
    let code = tonic::Code::from_i32(code.number());
    Status::with_details(code, message, details.encode_to_vec().into())
}

/// A gRPC status as a refusal.
pub(super) fn refusal(status: &Status) -> Refusal {
    Refusal::new(Code::from_number(status.code() as i32), status.message())
}

/// Says which task an error is of.
pub(super) fn error_payload(refusal: &Refusal) -> tf::CoordinationServiceError {
    match &refusal.origin {
        Origin::Task { task, reported } => tf::CoordinationServiceError {
            is_reported_error: *reported,
            source_task: Some(coordinated_task(task)),
        },
        Origin::Call | Origin::Elsewhere { .. } | Origin::Barrier { .. } => {
            tf::CoordinationServiceError::default()
        }
    }
}

/// Numbers a request that changes something, in its metadata, so that it can be asked again: the number, and the oldest that
/// the caller waits for, as "SEQUENCE OLDEST".
const CALL_METADATA: &str = "ringway-call";

/// Puts the number of a request, and the oldest that is waited for, into its metadata.
pub(super) fn number((sequence, oldest): (u64, u64), metadata: &mut MetadataMap) {
    // Digits are ASCII.
    if let Ok(words) = format!("{sequence} {oldest}").parse() {
        metadata.insert(CALL_METADATA, words);
    }
}

/// The number of a request, and the oldest that its caller waits for, if its metadata says so.
pub(super) fn sequence<T>(request: &Request<T>) -> Result<Option<(u64, u64)>, Status> {
    let Some(words) = request.metadata().get(CALL_METADATA) else { return Ok(None) };
    let words = words.to_str().unwrap_or_default();
    let numbers = words.split_once(' ').and_then(|(one, two)| Some((one.parse().ok()?, two.parse().ok()?)));
    numbers.map(Some).ok_or_else(|| invalid(format!("{CALL_METADATA}: {words:?} numbers no call")))
}

/// The request under its number, if it has one and says which life of a task it comes from.
pub(super) fn numbered(from: Option<Life>, sequence: Option<(u64, u64)>, request: Ask) -> Ask {
    let (Some(Life { task: Some(task), incarnation }), Some((sequence, oldest))) = (from, sequence) else {
        return request;
    };
    Ask::Once { call: CallId { task, incarnation, sequence, oldest }, request: Box::new(request) }
}

fn invalid(error: impl std::fmt::Display) -> Status {
    Status::invalid_argument(error.to_string())
}

/// Names the life of a task that a call comes from, in the metadata of TensorFlow's services, which have no field for it:
/// the task as "job:index".
const TASK_METADATA: &str = "ringway-task";
/// The other half: its incarnation, in decimal.
const INCARNATION_METADATA: &str = "ringway-incarnation";

/// Puts the life of a task that a call comes from into its metadata.
pub(super) fn sign(task: &TaskId, incarnation: Incarnation, metadata: &mut MetadataMap) {
    let words = [
        (TASK_METADATA, format!("{}:{}", task.job(), task.index())),
        (INCARNATION_METADATA, incarnation.0.to_string()),
    ];
    for (key, word) in words {
        // Names of jobs and numbers are ASCII.
        if let Ok(word) = word.parse::<MetadataValue<Ascii>>() {
            metadata.insert(key, word);
        }
    }
}

/// A request, and the life of a task that it comes from, if its metadata says so.
pub(super) fn signed<T>(request: Request<T>) -> Result<(Option<Life>, T), Status> {
    let word = |key| request.metadata().get(key).map(|word| word.to_str().unwrap_or_default());
    let life = match (word(TASK_METADATA), word(INCARNATION_METADATA)) {
        (Some(task), Some(incarnation)) => {
            let parts = task.rsplit_once(':').and_then(|(job, index)| Some((job, index.parse().ok()?)));
            let (job, index) =
                parts.ok_or_else(|| invalid(format!("{TASK_METADATA}: {task:?} is no task")))?;
            let number = incarnation.parse();
            let number = number
                .map_err(|_| invalid(format!("{INCARNATION_METADATA}: {incarnation:?} is no number")))?;
            let task = Some(TaskId::new(job, index).map_err(invalid)?);
            Some(Life { task, incarnation: Incarnation(number) })
        }
        _ => None,
    };
    Ok((life, request.into_inner()))
}

/// A task as TensorFlow names it.
pub(super) fn task(named: Option<tf::CoordinatedTask>) -> Result<TaskId, Status> {
    task_of(named, String::new(), 0)
}

/// The same, or as its first revision names it.
pub(super) fn task_of(named: Option<tf::CoordinatedTask>, job: String, task: i32) -> Result<TaskId, Status> {
    let (job, index) = match named {
        Some(named) => (named.job_name, named.task_id),
        None if job.is_empty() => return Err(invalid("the request names no task")),
        None => (job, task),
    };
    let index = u32::try_from(index).map_err(|_| invalid(format!("task {index} of a job does not exist")))?;
    TaskId::new(job, index).map_err(invalid)
}

/// Several tasks as TensorFlow names them.
pub(super) fn tasks(named: Vec<tf::CoordinatedTask>) -> Result<Vec<TaskId>, Status> {
    named.into_iter().map(|named| task(Some(named))).collect()
}

/// A task as TensorFlow names it.
pub(super) fn coordinated_task(task: &TaskId) -> tf::CoordinatedTask {
    // Indices come from the cluster's description, whose counts fit.
    let task_id = i32::try_from(task.index()).unwrap_or(i32::MAX);
    tf::CoordinatedTask { job_name: task.job().to_owned(), task_id, recoverable: false }
}

/// How a task is.
pub(super) fn state_info(status: &TaskStatus) -> tf::CoordinatedTaskStateInfo {
    let state = match status.state {
        State::Disconnected => tf::CoordinatedTaskState::TaskstateDisconnected,
        State::Connected => tf::CoordinatedTaskState::TaskstateConnected,
        State::Error => tf::CoordinatedTaskState::TaskstateError,
    };
    tf::CoordinatedTaskStateInfo {
        task: Some(coordinated_task(&status.task)),
        state: state.into(),
        error_code: status.error.as_ref().map_or(0, |error| error.code.number()),
        error_message: status.error.as_ref().map_or_else(String::new, |error| error.message.to_string()),
        error_payload: status.error.as_ref().map(error_payload),
        incarnation: status.incarnation.0,
    }
}

/// A key and its value.
pub(super) fn entry(key: String, value: &Value) -> tf::KeyValueEntry {
    tf::KeyValueEntry { key, value: value.to_vec() }
}

/// A barrier's time; what is negative counts as none.
pub(super) fn timeout(timeout_ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0))
}

/// The devices of a caller, whichever revision it is of.
pub(super) fn devices(request: tf::WaitForAllTasksRequest) -> Vec<Device> {
    let first = request.local_device_attributes.into_iter().map(Device::Attributes);
    let second = request.local_device_info.into_iter().flat_map(|info| {
        let list = info.tf.unwrap_or_default().devices.into_iter().map(Device::Attributes);
        let topology = (!info.xla.is_empty()).then_some(Device::Topology(info.xla));
        list.chain(topology)
    });
    let third = request.device_info.unwrap_or_default().device.into_iter();
    let third = third.map(|any| Device::Any { type_url: any.type_url, value: any.value });
    first.chain(second).chain(third).collect()
}

/// The devices of all tasks, in the forms of all revisions.
pub(super) fn all_devices(devices: &[Device], coordinator: Incarnation) -> tf::WaitForAllTasksResponse {
    let (mut attributes, mut xla, mut any) = (Vec::new(), Vec::new(), Vec::new());
    for device in devices {
        match device {
            Device::Attributes(bytes) => attributes.push(bytes.clone()),
            // Serialised messages that follow each other are one message with the lists of both.
            Device::Topology(bytes) => xla.extend_from_slice(bytes),
            Device::Any { type_url, value } => {
                any.push(prost_types::Any { type_url: type_url.clone(), value: value.clone() });
            }
        }
    }
    let second = tf::CoordinationServiceDeviceInfo {
        tf: (!attributes.is_empty()).then(|| tf::TfDeviceList { devices: attributes.clone() }),
        xla,
    };
    tf::WaitForAllTasksResponse {
        leader_incarnation: coordinator.0,
        cluster_device_info: (second != tf::CoordinationServiceDeviceInfo::default()).then_some(second),
        cluster_device_attributes: attributes,
        device_info: Some(tf::DeviceInfo { device: any }),
    }
}

/// A process as our own service names it.
pub(super) fn process(named: Option<session::Process>) -> Result<Process, Status> {
    memory::process(named).map_err(invalid)
}

/// A generation from the answer of the service.
pub(super) fn round(response: RegroupResponse) -> Result<RoundTable, Status> {
    memory::round(response).map_err(invalid)
}

/// A group from the answer of the service.
pub(super) fn group(response: session::JoinResponse) -> Result<GroupTable, Status> {
    memory::group(response).map_err(invalid)
}

/// A loss from the stream of the service.
pub(super) fn loss(wire: session::Loss) -> Result<Loss, Status> {
    memory::loss(wire).map_err(invalid)
}
