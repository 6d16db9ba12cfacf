//! What users hold: a rank's membership in a group whose memory is that of GPUs.

#![forbid(unsafe_code)]

use super::comm::{Comm, Fault};
use super::device::{Context, Device};
use super::error::{DeviceError, Unavailable, Version};
use super::exchange::{self, Exchange, Missed};
use super::library::{Library, UniqueId};
use super::memory::DeviceBuffer;
use super::shared::Shared;
use super::straight::Nearness;
use super::stream::{Event, Stream};
use super::watch::Watch;
use crate::engine::{CollectiveError, Communicator, InvalidCall, Member};
use ringway_dataplane::memory::Element;
use std::sync::Arc;
use std::time::Duration;

/// How a communicator over GPUs is made.
#[derive(Clone)]
pub struct DeviceOptions {
    /// The number of this rank's GPU; `None` takes the one with the rank's number on its host, from the first again behind
    /// the last.
    pub device: Option<u32>,
    /// NCCL's file; `None` leaves it to the dynamic loader.
    pub library: Option<String>,
    /// How long a call may be under way, and how long the ranks may take to come together.
    pub timeout: Duration,
    /// How NCCL's unique id travels; `None` sends it by the communicator itself.
    pub exchange: Option<Arc<dyn Exchange>>,
    /// Judges which network cards may read and write the GPU's memory; `None` takes all that can.
    pub nearness: Option<Arc<dyn Nearness>>,
}

impl Default for DeviceOptions {
    /// The GPU with the rank's number, NCCL by the dynamic loader, 10 minutes.
    fn default() -> DeviceOptions {
        DeviceOptions {
            device: None,
            library: None,
            timeout: Duration::from_secs(600),
            exchange: None,
            nearness: None,
        }
    }
}

impl std::fmt::Debug for DeviceOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceOptions")
            .field("device", &self.device)
            .field("library", &self.library)
            .field("timeout", &self.timeout)
            .field("exchange", &self.exchange.is_some())
            .field("nearness", &self.nearness.is_some())
            .finish()
    }
}

/// A group of ranks, and this process's place in it: the calls of [`Communicator`], over memory of GPUs.
///
/// Calls block their thread until this rank's part is done, except for the `*_start` forms. All ranks of a group make the
/// same collective calls in the same order, and threads that share a communicator keep that order together. What is different
/// from memory of the host: messages to one rank are received in the order in which they were sent, whatever their tags; and
/// a call that is refused for its arguments ends the communicator on all ranks.
pub struct DeviceCommunicator {
    /// Before what it watches.
    watch: Watch,
    pub(super) shared: Arc<Shared>,
    options: DeviceOptions,
}

impl std::fmt::Debug for DeviceCommunicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceCommunicator(GPU {}, {:?})", self.shared.ordinal(), self.shared.control)
    }
}

/// What a rank needs before it meets the others.
struct Prepared {
    library: Arc<Library>,
    context: Arc<Context>,
    streams: (Stream, Stream),
}

impl DeviceCommunicator {
    /// A communicator over the GPUs of all ranks of `comm`, which all call it.
    ///
    /// # Errors
    /// [`DeviceError`]: on the rank that lacks something, what it lacks; on the others, that rank and its words.
    pub fn new(comm: &Communicator, options: DeviceOptions) -> Result<DeviceCommunicator, DeviceError> {
        let control = comm.split(Some(0), comm.rank())?;
        let control = control.unwrap_or_else(|| unreachable!("this rank gave a color"));
        DeviceCommunicator::over(control, options)
    }

    fn over(control: Communicator, options: DeviceOptions) -> Result<DeviceCommunicator, DeviceError> {
        let prepared = prepare(&control, &options).inspect_err(|error| {
            // The others wait for this rank: they are told why it does not come.
            control.abort(error.to_string());
        })?;
        let Prepared { library, context, streams } = prepared;
        same_version(&control, library.version())?;
        let neighbours = shared_gpus(&control, context.device())?;
        let shared = Arc::new(Shared::new(control, context, library, streams, options.timeout));
        let id = meet(&shared, &options)?;
        let place = (shared.control.rank(), shared.control.size());
        let begun = Comm::begin(&shared.library, &shared.context, id, place);
        let told = |fault: Fault| shared.by_words(&format!("{fault}{neighbours}"), None);
        let made = begun.map_err(told).and_then(|comm| shared.settle(comm, &neighbours));
        let made = made.and_then(|()| shared.control.barrier().map_err(|error| shared.die(error, None)));
        if let Some(exchange) = options.exchange.as_ref().filter(|_| shared.control.rank() == 0) {
            exchange.forget(&exchange::key(&shared.control));
        }
        made?;
        Ok(DeviceCommunicator { watch: Watch::new(&shared), shared, options })
    }

    /// This process's rank, from 0.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.shared.control.rank()
    }

    /// Number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.shared.control.size()
    }

    /// All members, in rank order.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        self.shared.control.members()
    }

    /// This rank's GPU.
    #[must_use]
    pub fn device(&self) -> Device {
        self.shared.context.device()
    }

    /// The context that buffers of this rank are in.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.shared.context
    }

    /// What carries the bytes, in one line.
    #[must_use]
    pub fn why(&self) -> String {
        let (device, library) = (self.device(), &self.shared.library);
        let (name, at) = (device.name(), device.pci_address());
        format!(
            "GPU {} ({name}, PCI {at}), NCCL {} by {}",
            device.ordinal(),
            library.version(),
            library.file()
        )
    }

    /// A zeroed buffer of `len` elements in the memory of this rank's GPU.
    ///
    /// # Errors
    /// [`DeviceError::Cuda`] when the GPU has no more memory.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<DeviceBuffer<T>, DeviceError> {
        DeviceBuffer::zeroed(&self.shared.context, len, &self.shared.copies).map_err(|e| self.cuda(e))
    }

    /// Copies `from` into `buffer`, and waits for that.
    ///
    /// # Errors
    /// [`DeviceError::Cuda`] when the GPU has failed.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn upload<T: Element>(&self, buffer: &mut DeviceBuffer<T>, from: &[T]) -> Result<(), DeviceError> {
        buffer.copy_from(from, &self.shared.copies).map_err(|e| self.cuda(e))
    }

    /// Copies `buffer` to `to`, and waits for that.
    ///
    /// # Errors
    /// [`DeviceError::Cuda`] when the GPU has failed.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn download<T: Element>(&self, buffer: &DeviceBuffer<T>, to: &mut [T]) -> Result<(), DeviceError> {
        buffer.copy_to(to, &self.shared.copies).map_err(|e| self.cuda(e))
    }

    /// Has later calls wait for `event`: for a kernel that fills a buffer. Returns at once.
    ///
    /// # Errors
    /// [`DeviceError::Cuda`] when the driver refuses.
    pub fn after(&self, event: &Event) -> Result<(), DeviceError> {
        self.shared.stream.wait_for(event).map_err(|e| self.cuda(e))
    }

    fn cuda(&self, error: super::error::CudaError) -> DeviceError {
        DeviceError::Cuda { rank: self.rank(), device: self.shared.ordinal(), error }
    }

    /// Splits the communicator: as [`Communicator::split`]. Each part is an NCCL communicator of its own.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn split(&self, color: Option<u32>, key: u32) -> Result<Option<DeviceCommunicator>, DeviceError> {
        let control = self.shared.control.split(color, key).map_err(|error| self.shared.die(error, None))?;
        control.map(|control| DeviceCommunicator::over(control, self.options.clone())).transpose()
    }

    /// Ends the communicator on all ranks: every pending and later call answers [`CollectiveError::Aborted`] with `message`.
    pub fn abort(&self, message: &str) {
        self.shared.by_words(message, None);
    }

    /// Why the communicator is dead, if it is.
    #[must_use]
    pub fn failure(&self) -> Option<CollectiveError> {
        self.shared.failure()
    }

    pub(super) fn watched(&self) -> &Watch {
        &self.watch
    }
}

/// Finds the libraries and this rank's GPU.
fn prepare(control: &Communicator, options: &DeviceOptions) -> Result<Prepared, DeviceError> {
    let me = control.who(control.rank());
    let lacks = |what: Unavailable| DeviceError::Unavailable {
        rank: me.rank,
        host: me.host.clone(),
        what: Box::new(what),
    };
    // The driver's absence is the more telling one.
    let count = Device::count().map_err(lacks)?;
    let library = Library::load(options.library.as_deref()).map_err(lacks)?;
    let ordinal = options.device.unwrap_or_else(|| number_on_host(control) % count);
    let device = Device::get(ordinal).map_err(lacks)?;
    let cuda = |error| DeviceError::Cuda { rank: me.rank, device: ordinal, error };
    let context = Context::retain(device).map_err(cuda)?;
    let streams = Stream::new(&context).and_then(|one| Ok((one, Stream::new(&context)?))).map_err(cuda)?;
    Ok(Prepared { library, context, streams })
}

/// How many ranks below this one are on its host.
fn number_on_host(control: &Communicator) -> u32 {
    let members = control.members();
    let mine = &members[control.rank() as usize].host;
    members.iter().take(control.rank() as usize).filter(|member| member.host == *mine).count() as u32
}

/// Versions of NCCL do not understand each other.
fn same_version(control: &Communicator, version: Version) -> Result<(), DeviceError> {
    let mut all = vec![0u32; 3 * control.size() as usize];
    control.all_gather(&[version.major, version.minor, version.patch], &mut all)?;
    let versions: Vec<Version> =
        all.chunks_exact(3).map(|v| Version { major: v[0], minor: v[1], patch: v[2] }).collect();
    match versions.iter().position(|other| *other != versions[0]) {
        None => Ok(()),
        Some(other) => Err(DeviceError::Versions {
            a: 0,
            a_version: versions[0],
            b: other as u32,
            b_version: versions[other],
        }),
    }
}

/// Words on ranks that share a GPU, which NCCL refuses without naming them; empty where none do.
fn shared_gpus(control: &Communicator, device: Device) -> Result<String, DeviceError> {
    let mut mine = [0u8; 16];
    let address = device.pci_address();
    let kept = address.len().min(mine.len());
    mine[..kept].copy_from_slice(&address.as_bytes()[..kept]);
    let mut all = vec![0u8; mine.len() * control.size() as usize];
    control.all_gather(&mine, &mut all)?;
    let members = control.members();
    let place = |rank: usize| (&members[rank].host, &all[rank * mine.len()..][..mine.len()]);
    let me = control.rank() as usize;
    let beside: Vec<String> = (0..members.len())
        .filter(|other| *other != me && place(*other) == place(me))
        .map(|other| other.to_string())
        .collect();
    if beside.is_empty() {
        return Ok(String::new());
    }
    Ok(format!(
        "; GPU {} of {} is also that of rank {}: give each rank its own (RINGWAY_DEVICE), or start fewer",
        device.ordinal(),
        members[me].host,
        beside.join(", ")
    ))
}

/// Rank 0 makes the id of the NCCL communicator, and the others get it.
fn meet(shared: &Shared, options: &DeviceOptions) -> Result<UniqueId, DeviceError> {
    let control = &shared.control;
    let made = (control.rank() == 0).then(|| shared.library.unique_id());
    let made = made.transpose().map_err(|error| shared.by_fault(&Fault::from(error), None))?;
    let Some(exchange) = options.exchange.as_deref() else {
        let mut bytes = made.map_or([0; UniqueId::BYTES], |id| id.bytes());
        control.broadcast(&mut bytes, 0)?;
        let id = UniqueId::from_bytes(&bytes);
        return Ok(id.unwrap_or_else(|| unreachable!("an array of its length")));
    };
    let key = exchange::key(control);
    if let Some(id) = made {
        let published = exchange.publish(&key, &id.bytes());
        published.map_err(|why| {
            shared.by_words(&format!("NCCL's unique id cannot be left for the others: {why}"), None)
        })?;
        return Ok(id);
    }
    exchange::fetch(exchange, &key, control, options.timeout).map_err(|missed| {
        DeviceError::from(match missed {
            Missed::Dead(error) => shared.die(error, None),
            Missed::Why(why) => shared.by_words(&why, None),
        })
    })
}

impl DeviceCommunicator {
    /// Refuses a call for its arguments: the other ranks would wait for it for ever, so the communicator ends.
    pub(super) fn refuse(
        &self,
        name: &'static str,
        call: crate::engine::Call,
        why: InvalidCall,
    ) -> CollectiveError {
        if let Some(dead) = self.failure() {
            return dead;
        }
        let error = CollectiveError::Invalid { rank: self.rank(), call: name, why };
        self.shared.by_words(&error.to_string(), Some(call));
        error
    }
}
