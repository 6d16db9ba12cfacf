//! The tasks that have what a function here takes: their values are fetched, and what uses their resources runs there.
//!
//! Everything is said in operations that TensorFlow's eager service has, so that the other task may be TensorFlow's: the
//! node itself, a `_Recv` for each value that it reads and a `_Send` for each that it gives. Between tasks of ours the values
//! then travel over the data plane. Results at the other task are given up by the same request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use ringway_dataplane::rendezvous::{Key, Parts};
use ringway_proto::tensorflow::attr_value::Value;
use ringway_proto::tensorflow::eager::eager_service_client::EagerServiceClient;
use ringway_proto::tensorflow::eager::operation::{Input, input};
use ringway_proto::tensorflow::eager::queue_item::Item;
use ringway_proto::tensorflow::eager::{EnqueueRequest, Operation, QueueItem, RemoteTensorHandle};
use ringway_proto::tensorflow::{AttrValue, DataType, DeviceAttributes};

use crate::core::graph::DeviceName;
use crate::kernels::{OpError, Slot};
use crate::random::incarnation;
use crate::rpc::TENSOR_MESSAGE_LIMIT_BYTES;
use crate::rpc::credentials::SecureChannel;
use crate::runtime::worker::away::{Away, Elsewhere, Given, Use};
use crate::runtime::worker::peers::lost;
use crate::runtime::worker::{Exchange, Step, Worker};
use crate::tensor::Tensor;

/// The way of one context to other tasks. Cheap to clone.
#[derive(Clone)]
pub(super) struct Owners(Arc<Inner>);

struct Inner {
    context_id: u64,
    /// This task's device, in the words of the client's cluster.
    device: Arc<str>,
    /// Lives of the devices of the client's cluster.
    lives: RwLock<HashMap<String, u64>>,
    exchange: Arc<dyn Exchange>,
    worker: Worker,
    /// Of operations that are asked of other tasks: below 0, where clients have none, and far from other tasks' ones.
    number: AtomicI64,
}

/// A request to one task, in the making.
struct Request<'a> {
    owners: &'a Owners,
    device: &'a str,
    items: Vec<Item>,
    /// What it leaves at that task.
    left: Vec<RemoteTensorHandle>,
    /// Under which keys its values come.
    keys: Vec<Key>,
}

impl Owners {
    pub(super) fn new(
        context_id: u64,
        device: Arc<str>,
        exchange: Arc<dyn Exchange>,
        worker: Worker,
    ) -> Owners {
        let number = AtomicI64::new(-((incarnation().0 >> 2) as i64) - 1);
        let lives = RwLock::default();
        Owners(Arc::new(Inner { context_id, device, lives, exchange, worker, number }))
    }

    /// Learns the lives of devices.
    pub(super) fn learn(&self, devices: &[DeviceAttributes]) {
        let mut lives = self.0.lives.write().unwrap_or_else(PoisonError::into_inner);
        lives.extend(devices.iter().map(|device| (device.name.clone(), device.incarnation)));
    }

    fn life(&self, device: &str) -> Result<u64, OpError> {
        if *device == *self.0.device {
            return Ok(self.0.worker.incarnation());
        }
        let lives = self.0.lives.read().unwrap_or_else(PoisonError::into_inner);
        let unknown = || OpError::invalid(format!("{device} is no device of the cluster of this context"));
        lives.get(device).copied().ok_or_else(unknown)
    }

    fn next(&self) -> i64 {
        self.0.number.fetch_sub(1, Ordering::Relaxed)
    }

    /// A value of another task.
    pub(super) async fn value(&self, handle: &RemoteTensorHandle) -> Result<Tensor, OpError> {
        let dtype = DataType::try_from(handle.dtype).unwrap_or_default();
        let mut request = Request::new(self, &handle.device);
        request.give(at(handle.op_id, handle.output_num, &handle.device), dtype)?;
        let mut values = request.make().await?;
        values.pop().ok_or_else(|| OpError::internal("a value was asked for and did not come"))
    }

    async fn use_there(&self, node: &Use, inputs: Vec<Slot>) -> Result<Vec<Slot>, OpError> {
        let away: Vec<_> = inputs.iter().map(Away::of).collect();
        let device = away.iter().flatten().next().map(|away| away.device.clone()).unwrap_or_default();
        if let Some(other) = away.iter().flatten().find(|away| away.device != device) {
            let message = format!(
                "{} uses resources on {device} and on {}: place them on one task",
                node.op, other.device
            );
            return Err(OpError::invalid(message));
        }
        let mut request = Request::new(self, &device);
        let mut read = Vec::with_capacity(inputs.len());
        for (input, away) in inputs.iter().zip(away) {
            read.push(match away {
                Some(away) => at(away.op_id, away.output, &device),
                None => request.take(&input.value()?)?,
            });
        }
        let id = self.next();
        request.operation(id, &node.op, read, node.attrs.clone());
        for (output, dtype) in (0..).zip(&node.gives) {
            let given = at(id, output, &device);
            request.left.push(given.clone());
            request.give(given, *dtype)?;
        }
        Ok(request.make().await?.into_iter().map(Slot::Tensor).collect())
    }
}

impl Elsewhere for Owners {
    fn run(&self, node: &Arc<Use>, inputs: Vec<Slot>, step: &Arc<Step>, then: Given) {
        let (owners, node, step) = (self.clone(), node.clone(), step.clone());
        self.0.worker.calls().spawn(async move {
            let result = tokio::select! {
                result = owners.use_there(&node, inputs) => result,
                why = step.abortion() => Err(why),
            };
            then(result);
        });
    }
}

impl<'a> Request<'a> {
    fn new(owners: &'a Owners, device: &'a str) -> Request<'a> {
        Request { owners, device, items: Vec::new(), left: Vec::new(), keys: Vec::new() }
    }

    fn operation(
        &mut self,
        id: i64,
        op: &str,
        read: Vec<RemoteTensorHandle>,
        attrs: HashMap<String, AttrValue>,
    ) {
        let input = |handle| Input { item: Some(input::Item::RemoteHandle(handle)) };
        self.items.push(Item::Operation(Operation {
            id,
            name: op.to_owned(),
            op_inputs: read.into_iter().map(input).collect(),
            attrs,
            device: self.device.to_owned(),
            ..Default::default()
        }));
    }

    /// The edge of this number: its key, and the attributes of both its ends.
    fn edge(&self, number: i64, from: &str, to: &str) -> Result<(Key, HashMap<String, AttrValue>), OpError> {
        let (tensor_name, send_incarnation) = (format!("elsewhere_{number}"), self.owners.life(from)?);
        let parts = Parts {
            send_device: from,
            send_incarnation,
            recv_device: to,
            tensor_name: &tensor_name,
            frame: 0,
            iteration: 0,
        };
        let key = Key::build(&parts).map_err(|error| OpError::invalid(error.to_string()))?;
        let text = |text: &str| Value::S(text.as_bytes().to_vec());
        let attrs = [
            ("tensor_name", text(&tensor_name)),
            ("send_device", text(from)),
            ("recv_device", text(to)),
            ("send_device_incarnation", Value::I(send_incarnation as i64)),
        ];
        let attr = |(name, value): (&str, Value)| (name.to_owned(), AttrValue { value: Some(value) });
        Ok((key, attrs.map(attr).into()))
    }

    /// A value of this task goes there. Its name there.
    fn take(&mut self, value: &Tensor) -> Result<RemoteTensorHandle, OpError> {
        let id = self.owners.next();
        let (key, mut attrs) = self.edge(id, &self.owners.0.device, self.device)?;
        attrs.insert("tensor_type".to_owned(), of_type(value.dtype()));
        self.owners.0.exchange.send(&key, value, false)?;
        self.operation(id, "_Recv", Vec::new(), attrs);
        let handle = at(id, 0, self.device);
        self.left.push(handle.clone());
        Ok(handle)
    }

    /// A value of there comes here.
    fn give(&mut self, value: RemoteTensorHandle, dtype: DataType) -> Result<(), OpError> {
        let id = self.owners.next();
        let (key, mut attrs) = self.edge(id, self.device, &self.owners.0.device)?;
        attrs.insert("T".to_owned(), of_type(dtype));
        self.operation(id, "_Send", vec![value], attrs);
        self.keys.push(key);
        Ok(())
    }

    /// Makes the request. The values that come, in order.
    async fn make(self) -> Result<Vec<Tensor>, OpError> {
        let task = DeviceName::parse(self.device).map(|device| device.task_part().to_string());
        let task = task.ok_or_else(|| OpError::invalid(format!("{} is no device", self.device)))?;
        let Request { owners, mut items, left, keys, .. } = self;
        let Inner { context_id, exchange, worker, .. } = &*owners.0;
        let mut client = EagerServiceClient::new(worker.channel(&task)?)
            .max_decoding_message_size(TENSOR_MESSAGE_LIMIT_BYTES)
            .max_encoding_message_size(TENSOR_MESSAGE_LIMIT_BYTES);
        items.extend(left.iter().cloned().map(Item::HandleToDecref));
        if let Err(status) = client.enqueue(request(*context_id, items)).await {
            give_up(client, *context_id, left).await;
            return Err(lost(&task, &status));
        }
        // They have been sent, and wait.
        let mut values = Vec::with_capacity(keys.len());
        for key in &keys {
            let (tell, told) = tokio::sync::oneshot::channel();
            // Nobody waits any more when the step was aborted.
            exchange.recv(key, Box::new(move |arrived| drop(tell.send(arrived))));
            let arrived = told.await.unwrap_or_else(|_| Err(OpError::internal("a receive was forgotten")));
            values.push(arrived?.tensor);
        }
        Ok(values)
    }
}

/// Gives up what a request left that failed on its way; those that it did not come to are not there.
async fn give_up(
    mut client: EagerServiceClient<SecureChannel>,
    context_id: u64,
    left: Vec<RemoteTensorHandle>,
) {
    for handle in left {
        let _ = client.enqueue(request(context_id, vec![Item::HandleToDecref(handle)])).await;
    }
}

fn request(context_id: u64, items: Vec<Item>) -> EnqueueRequest {
    let queue = items.into_iter().map(|item| QueueItem { item: Some(item) }).collect();
    EnqueueRequest { context_id, queue }
}

fn at(op_id: i64, output_num: i32, device: &str) -> RemoteTensorHandle {
    let (device, op_device) = (device.to_owned(), device.to_owned());
    RemoteTensorHandle { op_id, output_num, device, op_device, ..Default::default() }
}

fn of_type(dtype: DataType) -> AttrValue {
    AttrValue { value: Some(Value::Type(dtype as i32)) }
}
