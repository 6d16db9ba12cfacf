//! What is recorded of steps for those who ask: when each node ran ([`Trace`], for `RunOptions.trace_level`), and which
//! tensors came from other tasks ([`Transfers`], for the Logging RPC).
//!
//! The words are those of TensorFlow's servers, which its tools take apart (`timeline.py`): a node's label is
//! `name = Op(inputs)`, and that of a tensor from another task `[bytes] [rate] tensor from DEVICE to DEVICE`
//! (`worker_cache_logger.cc`).

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ringway_dataplane::rendezvous::Key;
use ringway_proto::tensorflow as wire;

use super::step::Received;
use crate::kernels::{OpError, Slot};
use crate::tensor::Tensor;
use crate::tensor::travel::Arrived;

/// Nodes that one step's trace shows; how many more there were is its last entry.
pub const TRACED_NODES_LIMIT: usize = 1 << 18;
/// Tensors from other tasks that are kept until somebody fetches or clears them. Later ones are not recorded.
pub const TRANSFERS_LIMIT: usize = 1 << 16;
/// Who the memory of outputs is of, as TensorFlow's tools show it.
const ALLOCATOR: &str = "cpu";
/// From this on a count of bytes is written in mebibytes.
const MEBIBYTES_FROM: f64 = 0.1 * 1_048_576.0;

/// Turns moments into times of day that do not jump.
#[derive(Clone, Copy, Debug)]
struct Clock {
    origin: Instant,
    since_epoch: Duration,
}

impl Clock {
    fn new() -> Clock {
        // A clock before 1970 is wrong anyway.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { origin: Instant::now(), since_epoch }
    }

    /// Where something that took from `began` to now goes on the time line.
    fn span(&self, began: Instant) -> wire::NodeExecStats {
        let start = self.since_epoch + began.saturating_duration_since(self.origin);
        let took = began.elapsed();
        let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        let nanos = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        wire::NodeExecStats {
            all_start_micros: micros(start),
            op_end_rel_micros: micros(took),
            all_end_rel_micros: micros(took),
            scheduled_micros: micros(start),
            all_start_nanos: nanos(start),
            op_end_rel_nanos: nanos(took),
            all_end_rel_nanos: nanos(took),
            scheduled_nanos: nanos(start),
            thread_id: thread(),
            ..Default::default()
        }
    }
}

/// A small number for the thread that asks.
fn thread() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local!(static NUMBER: u32 = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|number| *number)
}

/// The trace of one step on this task.
#[derive(Debug)]
pub struct Trace {
    clock: Clock,
    device: Arc<str>,
    nodes: Mutex<Vec<wire::NodeExecStats>>,
    left_out: AtomicU32,
}

impl Trace {
    /// Empty, of a step on `device`.
    #[must_use]
    pub fn new(device: Arc<str>) -> Trace {
        Trace { clock: Clock::new(), device, nodes: Mutex::default(), left_out: AtomicU32::new(0) }
    }

    /// A node has run, from `began` to now.
    pub(super) fn node(&self, name: &str, label: impl FnOnce() -> String, began: Instant, outputs: &[Slot]) {
        self.add(|| wire::NodeExecStats {
            node_name: name.to_owned(),
            timeline_label: label(),
            output: (0..).zip(outputs).filter_map(|(slot, output)| described(slot, output)).collect(),
            ..self.clock.span(began)
        });
    }

    fn add(&self, stats: impl FnOnce() -> wire::NodeExecStats) {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        match nodes.len() < TRACED_NODES_LIMIT {
            true => nodes.push(stats()),
            false => drop(self.left_out.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Takes out what was recorded.
    #[must_use]
    pub fn take(&self) -> wire::StepStats {
        let mut node_stats = std::mem::take(&mut *self.nodes.lock().unwrap_or_else(PoisonError::into_inner));
        let left_out = self.left_out.swap(0, Ordering::Relaxed);
        if left_out > 0 {
            let node_name = format!("{left_out} more nodes, which are not shown");
            node_stats.push(wire::NodeExecStats { node_name, ..self.clock.span(Instant::now()) });
        }
        let device = self.device.to_string();
        wire::StepStats {
            dev_stats: vec![wire::DeviceStepStats { device, node_stats, ..Default::default() }],
        }
    }
}

fn described(slot: i32, output: &Slot) -> Option<wire::NodeOutput> {
    let Slot::Tensor(tensor) = output else { return None };
    let bytes = bytes_of(tensor) as i64;
    let memory = wire::AllocationDescription {
        requested_bytes: bytes,
        allocated_bytes: bytes,
        allocator_name: ALLOCATOR.to_owned(),
        ..Default::default()
    };
    let description = wire::TensorDescription {
        dtype: tensor.dtype() as i32,
        shape: Some(tensor.shape().to_proto()),
        allocation_description: Some(memory),
    };
    Some(wire::NodeOutput { slot, tensor_description: Some(description) })
}

/// Bytes of its elements; strings count with what they hold.
fn bytes_of(tensor: &Tensor) -> usize {
    let strings = || tensor.strings().map_or(0, |all| all.iter().map(|one| one.len()).sum());
    tensor.bytes().map_or_else(strings, <[u8]>::len)
}

/// The tensors that came from other tasks, by step, as long as somebody wants them recorded.
#[derive(Debug)]
pub struct Transfers {
    clock: Clock,
    wanted: AtomicBool,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// By step and receiving device.
    steps: HashMap<i64, BTreeMap<String, Vec<wire::NodeExecStats>>>,
    count: usize,
}

impl Default for Transfers {
    fn default() -> Transfers {
        Transfers { clock: Clock::new(), wanted: AtomicBool::new(false), kept: Mutex::default() }
    }
}

impl Transfers {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on they are recorded, or not any more. What was recorded stays.
    pub fn want(&self, wanted: bool) {
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    /// Forgets all.
    pub fn clear(&self) {
        *self.kept() = Kept::default();
    }

    /// Takes out what came for a step; nothing where nothing did.
    #[must_use]
    pub fn take(&self, step_id: i64) -> Option<wire::LabeledStepStats> {
        let mut kept = self.kept();
        let devices = kept.steps.remove(&step_id)?;
        kept.count -= devices.values().map(Vec::len).sum::<usize>();
        drop(kept);
        let device =
            |(device, node_stats)| wire::DeviceStepStats { device, node_stats, ..Default::default() };
        let step_stats = wire::StepStats { dev_stats: devices.into_iter().map(device).collect() };
        Some(wire::LabeledStepStats { step_id, step_stats: Some(step_stats) })
    }

    /// `then`, with the tensor recorded that comes for `key`: here where that is wanted, and in the step's trace if it has
    /// one.
    pub(super) fn watch(
        self: &Arc<Transfers>,
        step: i64,
        key: &Key,
        trace: Option<&Arc<Trace>>,
        then: Received,
    ) -> Received {
        let wanted = self.wanted.load(Ordering::Relaxed);
        if !wanted && trace.is_none() {
            return then;
        }
        let (transfers, trace, key) = (self.clone(), trace.cloned(), key.clone());
        let began = Instant::now();
        Box::new(move |arrived: Result<Arrived, OpError>| {
            if let (Ok(arrived), Ok(parts)) = (&arrived, key.parts()) {
                let bytes = bytes_of(&arrived.tensor);
                let stats = wire::NodeExecStats {
                    node_name: "RecvTensor".to_owned(),
                    timeline_label: label(bytes, began.elapsed(), &parts),
                    output: described(0, &Slot::Tensor(arrived.tensor.clone())).into_iter().collect(),
                    ..transfers.clock.span(began)
                };
                if wanted {
                    transfers.keep(step, parts.recv_device, stats.clone());
                }
                if let Some(trace) = trace {
                    trace.add(|| stats);
                }
            }
            then(arrived);
        })
    }

    fn keep(&self, step: i64, device: &str, stats: wire::NodeExecStats) {
        let mut kept = self.kept();
        if kept.count >= TRANSFERS_LIMIT {
            tracing::warn!(
                "{TRANSFERS_LIMIT} transfers are recorded and none was fetched: further ones are not"
            );
            return;
        }
        kept.count += 1;
        kept.steps.entry(step).or_default().entry(device.to_owned()).or_default().push(stats);
    }
}

/// As `WorkerCacheLogger::RecordDataTransfer` writes it.
fn label(bytes: usize, took: Duration, parts: &ringway_dataplane::rendezvous::key::Parts<'_>) -> String {
    let size = match bytes as f64 {
        large if large >= MEBIBYTES_FROM => format!("[{:.1}MB]", large / 1_048_576.0),
        small => format!("[{small}B]"),
    };
    // Megabits in a second are bits in a microsecond.
    let rate = 8.0 * bytes as f64 / (took.as_micros().max(1) as f64);
    let rate =
        if rate >= 1000.0 { format!("[{:.1}Gb/s]", rate / 1000.0) } else { format!("[{rate:.1}Mb/s]") };
    format!("{size} {rate} {} from {} to {}", parts.tensor_name, parts.send_device, parts.recv_device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Shape;

    const KEY: &str = "/job:w/replica:0/task:0/device:CPU:0;0000000000000007;/job:w/replica:0/task:1/device:CPU:0;edge_3_x;0:0";

    fn arrive(transfers: &Arc<Transfers>, step: i64, trace: Option<&Arc<Trace>>) {
        let key = Key::parse(KEY).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let then =
            transfers.watch(step, &key, trace, Box::new(move |arrived| tell.send(arrived.is_ok()).unwrap()));
        let tensor = Tensor::new(Shape::vector(50_000).unwrap(), &[1_f32; 50_000]).unwrap();
        then(Ok(Arrived { tensor, is_dead: false }));
        assert!(told.recv().unwrap());
    }

    #[test]
    fn transfers_are_kept_while_wanted_and_until_taken() {
        let transfers = Arc::<Transfers>::default();
        arrive(&transfers, 1, None);
        assert_eq!(transfers.take(1), None);
        transfers.want(true);
        arrive(&transfers, 1, None);
        arrive(&transfers, 1, None);
        arrive(&transfers, 2, None);
        transfers.want(false);
        arrive(&transfers, 1, None);
        let step = transfers.take(1).unwrap();
        let devices = step.step_stats.unwrap().dev_stats;
        assert_eq!((step.step_id, devices.len(), devices[0].node_stats.len()), (1, 1, 2));
        assert_eq!(devices[0].device, "/job:w/replica:0/task:1/device:CPU:0");
        let first = &devices[0].node_stats[0];
        assert_eq!(first.node_name, "RecvTensor");
        let words =
            "edge_3_x from /job:w/replica:0/task:0/device:CPU:0 to /job:w/replica:0/task:1/device:CPU:0";
        assert!(
            first.timeline_label.starts_with("[0.2MB] [") && first.timeline_label.ends_with(words),
            "{first:?}"
        );
        assert_eq!(transfers.take(1), None);
        transfers.clear();
        assert_eq!(transfers.take(2), None);
    }

    #[test]
    fn transfers_have_an_end() {
        let transfers = Arc::<Transfers>::default();
        for step in 0..TRANSFERS_LIMIT as i64 + 1 {
            transfers.keep(step, "d", wire::NodeExecStats::default());
        }
        assert_eq!(transfers.take(TRANSFERS_LIMIT as i64), None);
        assert!(transfers.take(0).is_some());
        transfers.keep(-1, "d", wire::NodeExecStats::default());
        assert!(transfers.take(-1).is_some());
    }

    #[test]
    fn a_trace_shows_nodes_and_transfers_and_has_an_end() {
        let trace = Arc::new(Trace::new("d".into()));
        let transfers = Arc::<Transfers>::default();
        arrive(&transfers, 1, Some(&trace));
        let output = Slot::Tensor(Tensor::scalar(1_f32).unwrap());
        trace.node("y", || "y = Neg(x)".to_owned(), Instant::now(), &[Slot::Empty, output]);
        for _ in 0..TRACED_NODES_LIMIT {
            trace.add(wire::NodeExecStats::default);
        }
        let stats = trace.take().dev_stats.swap_remove(0);
        assert_eq!((stats.device.as_str(), stats.node_stats.len()), ("d", TRACED_NODES_LIMIT + 1));
        assert_eq!(stats.node_stats[0].node_name, "RecvTensor");
        let node = &stats.node_stats[1];
        assert_eq!((node.node_name.as_str(), node.timeline_label.as_str()), ("y", "y = Neg(x)"));
        assert!(node.all_start_micros > 0);
        let output = &node.output[0];
        let memory = output.tensor_description.as_ref().unwrap().allocation_description.as_ref().unwrap();
        assert_eq!((output.slot, memory.requested_bytes), (1, 4));
        assert!(stats.node_stats.last().unwrap().node_name.starts_with("2 more nodes"));
        assert_eq!(transfers.take(1), None);
    }
}
