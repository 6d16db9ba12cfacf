//! One client's context: results, functions, variables.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringway_dataplane::rendezvous::Key;
use ringway_proto::tensorflow::eager::operation::input::Item as Input;
use ringway_proto::tensorflow::eager::queue_item::Item;
use ringway_proto::tensorflow::eager::{
    Operation, QueueItem, QueueResponse, RegisterFunctionOp, RemoteTensorHandle,
    RunComponentFunctionResponse, SendTensorOp,
};
use ringway_proto::tensorflow::error::Code;
use ringway_proto::tensorflow::{DataType, DeviceAttributes, ServerDef, TensorShapeProto};
use tokio::sync::watch;

use super::ended;
use super::operation::Operations;
use super::owners::Owners;
use crate::core::eager::{EagerError, Handle, Handles};
use crate::core::graph::{DeviceName, Library};
use crate::kernels::{OpError, Resources, Slot};
use crate::runtime::worker::away::Away;
use crate::runtime::worker::step::Received;
use crate::runtime::worker::{Exchange, Functions, Program, Step, Worker};
use crate::tensor::{PartialShape, Tensor};

/// Components of functions that one context may register.
pub const COMPONENTS_LIMIT: usize = 1 << 16;

/// One client's state on this task.
pub struct Context {
    /// Its number, which is also that of the step in which its single operations send and receive.
    step_id: i64,
    device: DeviceName,
    device_text: Arc<str>,
    /// Where single operations send and receive.
    exchange: Arc<dyn Exchange>,
    worker: Worker,
    handles: Mutex<Handles<Tensor>>,
    resources: Arc<Resources>,
    functions: Arc<Functions>,
    /// This task's parts of functions over several tasks, each with the functions that it may call.
    components: Mutex<HashMap<String, Arc<Functions>>>,
    operations: Operations,
    owners: Owners,
    /// How many things are being done.
    busy: watch::Sender<usize>,
    running: Mutex<Running>,
}

/// What runs in a context, and ends with it.
#[derive(Default)]
struct Running {
    steps: Vec<Arc<Step>>,
    ended: Option<OpError>,
}

impl Context {
    pub(super) fn new(id: u64, device: DeviceName, cluster: &ServerDef, worker: Worker) -> Context {
        let step_id = id as i64;
        let exchange = worker.exchange(step_id);
        learn(&worker, cluster);
        let device_text: Arc<str> = device.to_string().into();
        let owners = Owners::new(id, device_text.clone(), exchange.clone(), worker.clone());
        Context {
            step_id,
            exchange,
            device_text,
            owners,
            resources: Arc::new(Resources::new(&cluster.job_name)),
            device,
            worker,
            handles: Mutex::default(),
            functions: Arc::default(),
            components: Mutex::default(),
            operations: Operations::default(),
            busy: watch::Sender::new(0),
            running: Mutex::default(),
        }
    }

    /// The task's devices, under the name that the client's cluster has for the task.
    pub(super) fn devices(&self) -> Vec<DeviceAttributes> {
        let mut devices = self.worker.devices();
        for device in &mut devices {
            if let Some(name) = DeviceName::parse(&device.name) {
                let task = self.device.task_part();
                device.name = DeviceName { kind: name.kind, index: name.index, ..task }.to_string();
            }
        }
        devices
    }

    pub(super) fn set_cluster(&self, cluster: &ServerDef) {
        learn(&self.worker, cluster);
    }

    /// Learns which lives the devices of the client's cluster have.
    pub(super) fn set_lives(&self, devices: &[DeviceAttributes]) {
        self.owners.learn(devices);
    }

    /// Whoever still waits or computes in it fails, and its variables go.
    pub(super) fn end(&self, why: &str) {
        let why = ended(why);
        let running = {
            let mut running = lock(&self.running);
            running.ended.get_or_insert_with(|| why.clone());
            std::mem::take(&mut running.steps)
        };
        running.iter().for_each(|step| step.abort(&why));
        self.exchange.abort(&why);
        self.worker.end_step(self.step_id);
    }

    /// A step that ends at the latest when the context or its caller does.
    fn enter(&self, step: Arc<Step>) -> Result<Guard<'_>, OpError> {
        let mut running = lock(&self.running);
        if let Some(why) = &running.ended {
            return Err(why.clone());
        }
        running.steps.push(step.clone());
        Ok(Guard { context: self, step, over: false })
    }

    /// Waits until nothing is being done.
    pub(super) async fn idle(&self) {
        // The sender is `self`, which outlives the wait.
        let _ = self.busy.subscribe().wait_for(|busy| *busy == 0).await;
    }

    fn work(&self) -> Busy {
        self.busy.send_modify(|busy| *busy += 1);
        Busy(self.busy.clone())
    }

    /// Does one thing.
    pub(super) async fn run(&self, item: QueueItem) -> Result<QueueResponse, OpError> {
        let _busy = self.work();
        match item.item {
            Some(Item::Operation(operation)) => self.operation(operation).await,
            Some(Item::HandleToDecref(handle)) => {
                let handle = Handle { op_id: handle.op_id, output: handle.output_num };
                lock(&self.handles).release(handle)?;
                Ok(QueueResponse::default())
            }
            Some(Item::SendTensor(tensors)) => self.take(tensors),
            Some(Item::RegisterFunction(function)) => self.register(function),
            Some(Item::RemoveFunction(function)) => {
                let name = function.function_name;
                let component = lock(&self.components).remove(&name).is_some();
                if !component && !self.functions.remove(&name) {
                    return Err(EagerError::NoFunction { name }.into());
                }
                Ok(QueueResponse::default())
            }
            Some(Item::CleanupFunction(function)) => {
                self.worker.end_step(function.step_id);
                Ok(QueueResponse::default())
            }
            // What was queued before on this stream is done when its answer was sent.
            Some(Item::SyncRemoteExecutorForStream(_)) => Ok(QueueResponse::default()),
            Some(Item::SendPackedHandle(_)) => {
                let what = "packed handles, of variables on several devices, are not kept here: use one variable per task";
                Err(EagerError::Malformed { what: what.to_owned() }.into())
            }
            None => Err(EagerError::Malformed { what: "an item of the queue is empty".to_owned() }.into()),
        }
    }

    fn take(&self, sent: SendTensorOp) -> Result<QueueResponse, OpError> {
        self.check_device(&sent.device_name)?;
        let mut results = Vec::with_capacity(sent.tensors.len());
        for (output, tensor) in sent.tensors.iter().enumerate() {
            let handle = Handle { op_id: sent.op_id, output: output as i32 };
            results.push((handle, Tensor::from_proto(tensor)?));
        }
        lock(&self.handles).keep(results)?;
        Ok(QueueResponse::default())
    }

    fn register(&self, function: RegisterFunctionOp) -> Result<QueueResponse, OpError> {
        let what = || EagerError::Malformed { what: "RegisterFunction: there is no function".to_owned() };
        let def = function.function_def.ok_or_else(what)?;
        let invalid = |error: crate::core::graph::GraphError| OpError::invalid(error.to_string());
        let called = function.library.iter().flat_map(|library| &library.function);
        if !function.is_component_function {
            called.chain([&def]).try_for_each(|function| self.functions.add(function)).map_err(invalid)?;
            return Ok(QueueResponse::default());
        }
        let mut library = Library::default();
        called.chain([&def]).try_for_each(|function| library.add(function)).map_err(invalid)?;
        let name = def.signature.map(|signature| signature.name).unwrap_or_default();
        let mut components = lock(&self.components);
        if components.len() >= COMPONENTS_LIMIT {
            return Err(EagerError::TooMany { what: "component functions", limit: COMPONENTS_LIMIT }.into());
        }
        components.insert(name, Arc::new(Functions::new(Arc::new(library))));
        Ok(QueueResponse::default())
    }

    /// Only this task's devices are here; a name without a task means this one.
    fn check_device(&self, asked: &str) -> Result<(), EagerError> {
        let fits = DeviceName::parse(asked).is_some_and(|asked| asked.covers(&self.device));
        if fits {
            return Ok(());
        }
        Err(EagerError::NoDevice { device: asked.to_owned(), available: self.device_text.to_string() })
    }

    /// What an operation takes: results of this context, values that came along, and what other tasks have. Values of those
    /// are fetched; resources stay where they are.
    async fn inputs(&self, operation: &Operation) -> Result<Vec<Tensor>, OpError> {
        let mut inputs = Vec::with_capacity(operation.op_inputs.len());
        for input in &operation.op_inputs {
            inputs.push(match &input.item {
                Some(Input::RemoteHandle(handle)) => {
                    let here = Handle { op_id: handle.op_id, output: handle.output_num };
                    let found = lock(&self.handles).get(here).cloned();
                    match found {
                        Ok(found) => found,
                        Err(_) if self.is_elsewhere(handle) => self.away(handle).await?,
                        Err(missing) => return Err(missing.into()),
                    }
                }
                Some(Input::Tensor(tensor)) => Tensor::from_proto(tensor)?,
                None => {
                    let what = format!("{}: an input is neither a handle nor a tensor", operation.name);
                    return Err(EagerError::Malformed { what }.into());
                }
            });
        }
        Ok(inputs)
    }

    /// Whether a result is of another task.
    fn is_elsewhere(&self, handle: &RemoteTensorHandle) -> bool {
        let device = DeviceName::parse(&handle.device);
        device.is_some_and(|device| !device.task_part().covers(&self.device))
    }

    async fn away(&self, handle: &RemoteTensorHandle) -> Result<Tensor, OpError> {
        if handle.dtype != DataType::DtResource as i32 {
            return self.owners.value(handle).await;
        }
        let mut holds = Vec::with_capacity(handle.resource_dtypes_and_shapes.len());
        for held in &handle.resource_dtypes_and_shapes {
            let dtype = DataType::try_from(held.dtype).unwrap_or_default();
            let shape = held.shape.as_ref().map_or(Ok(PartialShape::unknown()), PartialShape::from_proto)?;
            holds.push((dtype, shape));
        }
        let RemoteTensorHandle { device, op_id, output_num: output, .. } = handle.clone();
        Ok(Away { device, op_id, output }.handle(holds))
    }

    /// The functions of the context or of the component that `name` is, if it is a function.
    fn functions_of(&self, name: &str) -> Option<Arc<Functions>> {
        if let Some(component) = lock(&self.components).get(name) {
            return Some(component.clone());
        }
        self.functions.library().get(name).map(|_| self.functions.clone())
    }

    fn program(
        &self,
        operation: &Operation,
        inputs: &[Tensor],
    ) -> Result<(Arc<Program>, Arc<Functions>), OpError> {
        if let Some(functions) = self.functions_of(&operation.name) {
            let program = functions.program(&operation.name, &operation.attrs)?;
            return Ok((program, functions));
        }
        let unknown = || EagerError::NoOperation {
            name: operation.name.clone(),
            task: self.device.task_part().to_string(),
        };
        if operation.is_function || crate::core::graph::signature(&operation.name).is_none() {
            return Err(unknown().into());
        }
        let program = self.operations.program(operation, inputs, self.functions.library())?;
        Ok((program, self.functions.clone()))
    }

    async fn operation(&self, operation: Operation) -> Result<QueueResponse, OpError> {
        self.check_device(&operation.device)?;
        let inputs = self.inputs(&operation).await?;
        let (program, functions) = self.program(&operation, &inputs)?;
        let exchange: Arc<dyn Exchange> = Arc::new(Lasting(self.exchange.clone()));
        let outputs = self.execute(&program, inputs, functions, exchange, self.step_id).await?;
        let shapes = outputs.iter().map(shape).collect();
        // An empty name for each result of a function, as TensorFlow's clients expect.
        let device = if operation.is_function { vec![String::new(); outputs.len()] } else { Vec::new() };
        let results = outputs.into_iter().enumerate();
        let results =
            results.map(|(output, tensor)| (Handle { op_id: operation.id, output: output as i32 }, tensor));
        lock(&self.handles).keep(results.collect())?;
        Ok(QueueResponse { shape: shapes, device, ..Default::default() })
    }

    pub(super) async fn run_component(
        &self,
        operation: Operation,
        output_num: &[i32],
    ) -> Result<RunComponentFunctionResponse, OpError> {
        let _busy = self.work();
        self.check_device(&operation.device)?;
        let inputs = self.inputs(&operation).await?;
        let (program, functions) = self.program(&operation, &inputs)?;
        let exchange = self.worker.exchange(operation.func_step_id);
        let outputs = self.execute(&program, inputs, functions, exchange, operation.func_step_id).await?;
        let shape = outputs.iter().map(shape).collect();
        // Results are numbered among those of the whole function, where the client says so.
        let number = |at: usize| output_num.get(at).copied().unwrap_or(at as i32);
        let results = outputs.into_iter().enumerate();
        let results = results.map(|(at, t)| (Handle { op_id: operation.id, output: number(at) }, t));
        lock(&self.handles).keep(results.collect())?;
        Ok(RunComponentFunctionResponse { shape, ..Default::default() })
    }

    async fn execute(
        &self,
        program: &Arc<Program>,
        inputs: Vec<Tensor>,
        functions: Arc<Functions>,
        exchange: Arc<dyn Exchange>,
        step_id: i64,
    ) -> Result<Vec<Tensor>, OpError> {
        let (device, resources) = (self.device_text.clone(), self.resources.clone());
        let step = Step::new(step_id, device, resources, exchange, functions);
        let step = Arc::new(step.with_elsewhere(Arc::new(self.owners.clone())));
        let args = inputs.into_iter().map(Slot::Tensor).collect();
        let mut guard = self.enter(step.clone())?;
        let (tell, told) = tokio::sync::oneshot::channel();
        // A run whose caller is gone is something that is being done until it has ended.
        let busy = self.work();
        let done = move |result: Result<Vec<Slot>, OpError>| {
            // Nobody may be waiting any more.
            drop(tell.send(result));
            drop(busy);
        };
        self.worker.executor().start(program, args, &step, Box::new(done));
        let result = told.await.unwrap_or_else(|_| Err(OpError::internal("the executor lost a run")));
        guard.over = true;
        result.map_err(plain)?.iter().map(Slot::value).collect()
    }
}

/// Aborts what runs for a caller that went away before it was over.
struct Guard<'a> {
    context: &'a Context,
    step: Arc<Step>,
    over: bool,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        lock(&self.context.running).steps.retain(|step| !Arc::ptr_eq(step, &self.step));
        if !self.over {
            self.step.abort(&OpError::new(Code::Cancelled, "the caller went away"));
        }
    }
}

/// A single operation has no node that its client could find.
fn plain(mut error: OpError) -> OpError {
    let node = format!("\n\t [[{{{{node {}}}}}]]", super::operation::NODE);
    if let Some(at) = error.message.find(&node) {
        error.message.truncate(at);
    }
    error
}

fn learn(worker: &Worker, def: &ServerDef) {
    if let Some(cluster) = &def.cluster {
        worker.learn(cluster);
    }
}

fn shape(tensor: &Tensor) -> TensorShapeProto {
    tensor.shape().to_proto()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these is whole between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Something that is being done.
struct Busy(watch::Sender<usize>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.send_modify(|busy| *busy -= 1);
    }
}

/// The step of a context lasts as long as the context: one operation that fails ends only itself.
struct Lasting(Arc<dyn Exchange>);

impl Exchange for Lasting {
    fn send(&self, key: &Key, tensor: &Tensor, is_dead: bool) -> Result<(), OpError> {
        self.0.send(key, tensor, is_dead)
    }

    fn recv(&self, key: &Key, then: Received) {
        self.0.recv(key, then);
    }

    fn abort(&self, _: &OpError) {}
}
