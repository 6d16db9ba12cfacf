//! Collectives over memory of GPUs, by NCCL, with the failure contract of the engine around them.
//!
//! ```text
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

mod device;
mod dmabuf;
mod driver;
mod error;
mod library;
mod memory;
mod stream;
mod survey;
mod symbols;

pub use device::{Context, Device};
pub use dmabuf::{DmabufError, Exported};
pub use error::{CudaError, DeviceError, NcclError, Unavailable, Version};
pub use library::{FILES, Library, UniqueId};
pub use memory::{DeviceBuffer, PinnedBuffer};
pub use stream::{Event, Stream};
pub use survey::{DeviceFacts, DriverFacts, LibraryFacts, Survey};
