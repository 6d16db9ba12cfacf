//! Bytes between hosts over InfiniBand and RoCE.
//!
//! - [`choice`]: which devices, ports and GIDs are used, and what two sides agree on: pure.
//! - [`survey`]: what this host has, read from the kernel's files.
//! - [`verbs`]: the device interface: libibverbs, found at run time, behind owners that cannot be dropped in the
//!   wrong order. The program starts and runs on a machine that has neither the library nor a device.

pub mod choice;
pub mod survey;
pub mod verbs;

pub use choice::RdmaConfig;
