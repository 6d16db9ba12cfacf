//! Collectives over memory of GPUs, by NCCL, with the failure contract of the engine around them.
//!
//! ```text
//! hierarchy, moves                NCCL inside of hosts, the engine between them: sums, and what only moves
//!   straight, staging             between GPUs of two hosts: whether straight or by way of the hosts' memory, and why
//! communicator, calls, group, handle   what users hold; the calls, some at once, or started
//!   exchange                      how NCCL's unique id gets to all ranks
//!   shared, pause                 beginning calls, waiting for them, and how the communicator dies
//!     watch                       a thread that looks after started calls
//!     order                       whether the other ranks call the same
//!     comm, kind                  NCCL's communicators, types and reductions
//! survey                          what this host has, and what is missing
//!   memory, stream                buffers on a GPU and pinned ones; streams and events
//!   dmabuf                        memory of a GPU as a file that a NIC can register
//!   driver, device                the CUDA driver by way of cudarc's types; GPUs and contexts
//!   library                       NCCL, by a loader of our own
//!     symbols                     tables of functions that are found by name
//! ```
//!
//! Nothing is linked: the same program runs where there is no driver and no NCCL, and says so.
//!
//! - **N1** No function of the driver or of NCCL is called before all that are used were found.
//! - **N2** What is made in a context holds a share in it, so that a context is released after all that was made in it.
//! - **N3** A communicator dies of its first cause, the same on all ranks: its control communicator, one of the engine over
//!   the same ranks, floods it and hears of it. NCCL is aborted then, so that no stream waits for ever.
//! - **N4** NCCL is asked for nothing while something that it was asked for goes on in the background.
//! - **N5** A blocking call returns well only if the GPU has done it and the ranks that it is compared with (`order`) called
//!   the same: in groups of up to 8 all of them.
//! - **N6** Memory that a call has given to NCCL is not given back before the call has ended well, or NCCL was aborted, however
//!   long the GPU takes for that.

mod calls;
mod comm;
mod communicator;
mod device;
mod dmabuf;
mod driver;
mod error;
mod exchange;
mod group;
mod handle;
mod hierarchy;
mod kind;
mod library;
mod memory;
mod moves;
mod order;
mod pause;
mod shared;
mod staging;
mod straight;
mod stream;
mod survey;
mod symbols;
mod watch;

pub use communicator::{DeviceCommunicator, DeviceOptions};
pub use device::{Context, Device};
pub use dmabuf::{DmabufError, Exported};
pub use error::{CudaError, DeviceError, NcclError, Unavailable, Version};
pub use exchange::Exchange;
pub use group::DeviceGroup;
pub use handle::DeviceHandle;
pub use hierarchy::Hierarchy;
pub use library::{FILES, Library, UniqueId};
pub use memory::{DeviceBuffer, PinnedBuffer};
pub use straight::Nearness;
pub use stream::{Event, Stream};
pub use survey::{DeviceFacts, DriverFacts, LibraryFacts, Survey};
