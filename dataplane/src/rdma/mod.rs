//! Bytes between hosts over InfiniBand and RoCE.
//!
//! [`verbs`] holds the device interface: libibverbs, found at run time, behind owners that cannot be dropped in the
//! wrong order. The program starts and runs on a machine that has neither the library nor a device.

pub mod verbs;
