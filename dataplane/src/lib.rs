//! Moves bytes between ranks: memory, the [`transport::Transport`] trait, its transports, and the fabric
//! that picks one per peer, and the rendezvous that moves tensors by key over it.
//!
//! Arrows: this crate asks `topology` which host this is, and knows nothing of collectives or of the control plane.
//! `unsafe` lives in `memory` and in the transports' own modules, and nowhere else.

pub mod fabric;
pub mod memory;
pub mod rdma;
pub mod rendezvous;
pub mod shm;
pub mod transport;
pub mod uring;
