//! Ringway moves tensors between the machines of a cluster at the speed of the wire,
//! and says by name what went wrong when it cannot.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let comm = ringway::Communicator::from_env()?;
//! let mut gradients = vec![0.5f32; 1_000_000];
//! comm.all_reduce(&mut gradients, ringway::ReduceOp::Sum)?;
//!
//! let buffer = comm.alloc::<f32>(1_000_000)?;
//! let handle = comm.all_reduce_start(buffer, ringway::ReduceOp::Avg)?;
//! // ... compute something else ...
//! let averaged = handle.wait()?;
//! # drop(averaged); Ok(()) }
//! ```
//!
//! Start it with `ringway run -n 4 -- program`, or under mpirun, srun, torchrun or Kubernetes: a process finds its rank
//! from its environment ([`ringway_control::launch`]). Settings are `RINGWAY_*` variables; `ringway doctor` prints them.
#![forbid(unsafe_code)]

pub mod elastic;
pub mod log;
pub mod rendezvous;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

pub use ringway_collectives::engine::{
    Blocks, Call, CallGroup, Choice, CollectiveError, During, Form, Handle, InvalidCall, Member, Numerics,
    Progress, Record, Reduction, Who,
};
pub use ringway_collectives::reduce::ReduceOp;
pub use ringway_collectives::schedule::Algorithm;
pub use ringway_control::launch::{Explicit, Launch, LaunchError};
pub use ringway_control::runtime::{JoinError, World};
pub use ringway_control::settings::{Settings, SettingsError};
pub use ringway_dataplane::memory::{Bool, Buffer, DType, Element};

/// A client of a master: graphs, and steps of them over the tasks of a cluster.
pub mod session {
    pub use ringway_control::rpc::credentials::Credentials;
    pub use ringway_control::session::{
        Attr, AttrValue, Code, ConfigProto, GraphBuilder, GraphDef, NodeBuilder, Op, Options, Output,
        Session, SessionError,
    };
}

/// Values that graphs are fed with and fetch.
pub mod tensor {
    pub use ringway_control::session::DataType;
    pub use ringway_control::tensor::{PartialShape, Scalar, Shape, Tensor, TensorError};
}

/// Memory of GPUs: [`Communicator::on_gpus`](crate::Communicator::on_gpus).
#[cfg(feature = "nccl")]
pub mod gpu {
    pub use ringway_collectives::nccl::{
        CudaError, DeviceBuffer, DeviceCommunicator, DeviceError, DeviceGroup, DeviceHandle, DeviceOptions,
        Event, Hierarchy, PinnedBuffer, Stream, Survey, Unavailable,
    };
}

/// The parts, for those who build on one of them alone.
pub mod parts {
    pub use ringway_collectives as collectives;
    pub use ringway_control as control;
    pub use ringway_dataplane as dataplane;
    pub use ringway_topology as topology;
}

/// Why a process has no communicator. `Debug` prints the message, as that of [`CollectiveError`] does.
#[derive(thiserror::Error)]
pub enum StartError {
    /// A setting is wrong.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The environment does not tell who this process is.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// `RINGWAY_LOG` is wrong.
    #[error(transparent)]
    Log(#[from] log::LogError),
    /// The job did not come together.
    #[error(transparent)]
    Join(#[from] JoinError),
}

impl fmt::Debug for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In one piece, as standard error has no buffer and other ranks write there too.
        f.write_str(&self.to_string())
    }
}

/// A group of ranks, and this process's place in it. Its calls are those of
/// [`ringway_collectives::engine::Communicator`], which it dereferences to.
///
/// Dropping the last communicator of a process leaves the job in order.
#[derive(Debug)]
pub struct Communicator {
    // Before the world: the data plane says goodbye first.
    inner: ringway_collectives::engine::Communicator,
    world: Arc<World>,
}

impl Communicator {
    /// The communicator over all ranks of the job that this process was started in, found out from its environment.
    ///
    /// # Errors
    /// [`StartError`] when the environment is incomplete, or not all ranks come within the join timeout.
    pub fn from_env() -> Result<Communicator, StartError> {
        let settings = Settings::from_env()?;
        let launch = Launch::from_env()?;
        Communicator::join(&launch, &settings)
    }

    /// As [`Communicator::from_env`], for a launch and settings made otherwise.
    ///
    /// # Errors
    /// [`StartError::Join`], or [`StartError::Log`].
    pub fn join(launch: &Launch, settings: &Settings) -> Result<Communicator, StartError> {
        log::start(settings)?;
        let (inner, world) = ringway_control::runtime::join(launch, settings)?;
        Ok(Communicator { inner, world: Arc::new(world) })
    }

    /// Communicators over the ranks that gave the same `color`, ranked by `key` and then by rank; `None` for ranks that
    /// gave no color. All ranks call it.
    ///
    /// # Errors
    /// [`CollectiveError`], as any collective.
    pub fn split(&self, color: Option<u32>, key: u32) -> Result<Option<Communicator>, CollectiveError> {
        let part = self.inner.split(color, key)?;
        Ok(part.map(|inner| Communicator { inner, world: self.world.clone() }))
    }

    /// A communicator over the GPUs of all ranks, as the settings say; `device`, where given, is the number of this rank's.
    /// All ranks call it.
    ///
    /// # Errors
    /// [`gpu::DeviceError`]: on the rank that lacks something, what it lacks; on the others, that rank and its words.
    #[cfg(feature = "nccl")]
    pub fn on_gpus(&self, device: Option<u32>) -> Result<gpu::DeviceCommunicator, gpu::DeviceError> {
        gpu::DeviceCommunicator::new(&self.inner, self.world.device_options(device))
    }

    /// As [`Communicator::on_gpus`], where NCCL has no network: it connects the ranks of each host, or so many neighbouring
    /// ranks as `inside` says, and this communicator's transports what is between. All ranks call it.
    ///
    /// # Errors
    /// As [`Communicator::on_gpus`].
    #[cfg(feature = "nccl")]
    pub fn on_gpus_of_hosts(
        &self,
        device: Option<u32>,
        inside: Option<u32>,
    ) -> Result<gpu::Hierarchy, gpu::DeviceError> {
        gpu::Hierarchy::new(&self.inner, inside, self.world.device_options(device))
    }

    /// The job that this process is in.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.world
    }
}

impl Deref for Communicator {
    type Target = ringway_collectives::engine::Communicator;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}
