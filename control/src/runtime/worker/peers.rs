//! The other tasks of the cluster: where they are, and how tensors come from them.
//!
//! A tensor of another task is asked for by RecvTensor, with a word of how this task is reached on the data plane. A task of
//! ours answers with how it is reached itself, and from then on tensors are asked for there, with no gRPC. A task of
//! TensorFlow's passes over what it does not know, and sends the tensor.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prost_types::Any;
use ringway_dataplane::rendezvous::{Key, Rendezvous, RendezvousError, Source, StepId};
use ringway_proto::tensorflow as wire;
use ringway_proto::tensorflow::worker_service_client::WorkerServiceClient;
use tokio::sync::watch;
use tonic::transport::Endpoint;
use tonic::{Code, Status};

use super::convert::{op_error, rendezvous_error};
use super::step::Received;
use super::trace::Transfers;
use crate::kernels::OpError;
use crate::rpc::TENSOR_MESSAGE_LIMIT_BYTES;
use crate::rpc::credentials::{Credentials, SecureChannel};
use crate::tensor::Tensor;
use crate::tensor::travel::Arrived;

/// Type of the word that two tasks of ours have about the data plane.
pub const DATA_PLANE_TASK: &str = "type.googleapis.com/ringway.v1.DataPlaneTask";
/// One try to connect takes no longer.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// What a peer may send before it is told to go on.
const WINDOW_BYTES: u32 = 16 << 20;

/// How this task meets others on the data plane.
pub struct DataPlane {
    /// What values go through.
    pub rendezvous: Rendezvous,
    /// How this task is reached: an encoded `ringway.v1.DataPlaneTask`.
    pub card: Vec<u8>,
    /// Makes another task, known by its card, a source of values; or says why there is no way to it.
    pub introduce: Introduce,
}

/// See [`DataPlane::introduce`].
pub type Introduce = Box<dyn Fn(&[u8]) -> Result<Source, String> + Send + Sync>;

impl std::fmt::Debug for DataPlane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.rendezvous)
    }
}

/// What was received from other tasks by gRPC.
#[derive(Debug, Default)]
pub(super) struct Counted {
    pub(super) tensors: AtomicU64,
    pub(super) bytes: AtomicU64,
}

impl Counted {
    pub(super) fn add(&self, bytes: usize) {
        self.tensors.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// One other task.
pub(super) struct Peer {
    /// `/job:worker/replica:0/task:1`.
    pub(super) name: String,
    pub(super) channel: SecureChannel,
    pub(super) client: WorkerServiceClient<SecureChannel>,
    /// Where it is on the data plane, once that is known, and in which life of its device: that in the keys of its tensors.
    source: Mutex<Option<(Source, u64)>>,
}

impl Peer {
    /// Where it is in the life that is meant. Another life of it is another process, and is asked for anew.
    fn source(&self, life: u64) -> Option<Source> {
        let known = *self.source.lock().unwrap_or_else(PoisonError::into_inner);
        known.and_then(|(source, of)| (of == life).then_some(source))
    }

    fn set_source(&self, source: Option<(Source, u64)>) {
        *self.source.lock().unwrap_or_else(PoisonError::into_inner) = source;
    }
}

/// A tensor of another task that is wanted.
pub(super) struct Wanted {
    pub(super) step: i64,
    pub(super) key: Key,
    /// The life of the device that makes it, which is in the key.
    pub(super) life: u64,
}

/// The other tasks.
pub(super) struct Peers {
    plane: Arc<DataPlane>,
    runtime: tokio::runtime::Handle,
    credentials: Credentials,
    addresses: Mutex<HashMap<String, String>>,
    known: Mutex<HashMap<String, Arc<Peer>>>,
    pub(super) by_grpc: Counted,
    pub(super) transfers: Arc<Transfers>,
}

impl Peers {
    pub(super) fn new(
        plane: Arc<DataPlane>,
        runtime: tokio::runtime::Handle,
        addresses: HashMap<String, String>,
        credentials: Credentials,
    ) -> Peers {
        let (addresses, known) = (Mutex::new(addresses), Mutex::default());
        Peers {
            plane,
            runtime,
            credentials,
            addresses,
            known,
            by_grpc: Counted::default(),
            transfers: Arc::default(),
        }
    }

    /// Learns where tasks are; a task that has moved is another one.
    pub(super) fn learn(&self, cluster: &wire::ClusterDef) {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        for job in &cluster.job {
            for (task, address) in &job.tasks {
                let name = format!("/job:{}/replica:0/task:{task}", job.name);
                if addresses.insert(name.clone(), address.clone()).is_none_or(|before| before != *address) {
                    self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
                }
            }
        }
    }

    /// The names of all tasks, in order.
    pub(super) fn tasks(&self) -> Vec<String> {
        let addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tasks: Vec<String> = addresses.keys().cloned().collect();
        tasks.sort_unstable();
        tasks
    }

    /// The task of this name.
    pub(super) fn find(&self, name: &str) -> Result<Arc<Peer>, OpError> {
        if let Some(peer) = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(name) {
            return Ok(peer.clone());
        }
        let address = self.addresses.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        let address = address.ok_or_else(|| {
            OpError::invalid(format!("{name} is no task of the cluster that this server knows"))
        })?;
        let wrong = |error| OpError::invalid(format!("{name} is at {address}, which is no address: {error}"));
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(wrong)?;
        let endpoint =
            endpoint.initial_stream_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
        let channel = {
            let _inside = self.runtime.enter();
            endpoint.connect_with_connector_lazy(self.credentials.connector(&address, CONNECT_LIMIT))
        };
        let channel = self.credentials.on(channel);
        let client = WorkerServiceClient::new(channel.clone())
            .max_decoding_message_size(TENSOR_MESSAGE_LIMIT_BYTES)
            .max_encoding_message_size(TENSOR_MESSAGE_LIMIT_BYTES);
        let peer = Arc::new(Peer { name: name.to_owned(), channel, client, source: Mutex::new(None) });
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), peer.clone());
        Ok(peer)
    }

    /// Receives a value of another task. `cancelled` turns true when nobody wants it any more.
    pub(super) fn recv(
        self: &Arc<Peers>,
        peer: Arc<Peer>,
        wanted: Wanted,
        cancelled: watch::Receiver<bool>,
        then: Received,
    ) {
        if let Some(source) = peer.source(wanted.life) {
            return self.recv_there(peer, source, &wanted, then);
        }
        let peers = self.clone();
        self.runtime.spawn(async move { peers.ask(peer, wanted, cancelled, then).await });
    }

    /// From a task that is known on the data plane.
    fn recv_there(&self, peer: Arc<Peer>, source: Source, wanted: &Wanted, then: Received) {
        let rendezvous = &self.plane.rendezvous;
        rendezvous.recv(StepId(wanted.step), &wanted.key, source, move |result| {
            if let Err(RendezvousError::Lost { .. } | RendezvousError::Unknown { .. }) = &result {
                // Another life of it may be elsewhere.
                peer.set_source(None);
            }
            let arrived = result.map_err(|error| rendezvous_error(&error));
            then(arrived.and_then(|value| Ok(Tensor::from_value(value)?)));
        });
    }

    /// By RecvTensor; goes over to the data plane if the answer says so.
    async fn ask(
        self: Arc<Peers>,
        peer: Arc<Peer>,
        wanted: Wanted,
        mut cancelled: watch::Receiver<bool>,
        then: Received,
    ) {
        let card = Any { type_url: DATA_PLANE_TASK.to_owned(), value: self.plane.card.clone() };
        let request = wire::RecvTensorRequest {
            step_id: wanted.step,
            rendezvous_key: wanted.key.text().to_owned(),
            transport_options: Some(card),
            request_id: crate::random::incarnation().0 as i64,
            ..Default::default()
        };
        let mut client = peer.client.clone();
        let answer = tokio::select! {
            answer = client.recv_tensor(request) => answer,
            // An error means that the step is gone, and nobody waits.
            _ = cancelled.wait_for(|cancelled| *cancelled) => {
                return then(Err(OpError::new(wire::error::Code::Cancelled, "RecvTensor: the step was aborted")));
            }
        };
        match answer {
            Ok(answer) => self.answered(peer, &wanted, answer.into_inner(), then),
            Err(status) => then(Err(lost(&peer.name, &status))),
        }
    }

    fn answered(&self, peer: Arc<Peer>, wanted: &Wanted, answer: wire::RecvTensorResponse, then: Received) {
        let card = answer.transport_options.as_ref().filter(|any| any.type_url == DATA_PLANE_TASK);
        if let (Some(card), None) = (card, &answer.tensor) {
            return match (self.plane.introduce)(&card.value) {
                Ok(source) => {
                    tracing::debug!(peer = peer.name, "tensors come over the data plane from now on");
                    peer.set_source(Some((source, wanted.life)));
                    self.recv_there(peer, source, wanted, then);
                }
                Err(why) => {
                    let message = format!("no way to {} on the data plane: {why}", peer.name);
                    then(Err(OpError::new(wire::error::Code::Unavailable, message)));
                }
            };
        }
        let tensor = answer.tensor.unwrap_or_default();
        let bytes = prost::Message::encoded_len(&tensor);
        let arrived = if answer.is_dead {
            Tensor::scalar(0_f32).map(|tensor| Arrived { tensor, is_dead: true })
        } else {
            Tensor::from_proto(&tensor).map(|tensor| Arrived { tensor, is_dead: false })
        };
        self.by_grpc.add(bytes);
        then(arrived.map_err(OpError::from));
    }
}

/// What a failed call says of the other task.
pub(in crate::runtime) fn lost(peer: &str, status: &Status) -> OpError {
    let mut error = op_error(status);
    if status.code() == Code::Unavailable || std::error::Error::source(status).is_some() {
        error.code = wire::error::Code::Unavailable;
        error.message = format!(
            "{peer} cannot be reached ({}): its process ended, or its host is away",
            status.message()
        );
    } else if !error.message.contains(peer) {
        error.message = format!("{} (from {peer})", error.message);
    }
    error
}
