//! RDMA between ranks, over InfiniBand and RoCE.
//!
//! - [`transport`]: the [`crate::transport::Transport`]. [`choice`]: which devices, ports and GIDs are used, and what two
//!   sides agree on: pure. [`survey`]: what this host has, read from the kernel's files.
//! - `device`: an open device, and the datagrams by which connections begin. [`handshake`]: what these say, and how they are
//!   proven: pure.
//! - `connection`: small messages of one peer. `writes`: its large ones. `arrivals`: what comes over it. `rail`: one of its queue pairs. `ends`: when
//!   the end of a message that several carried may be believed, pure; `fences`: the same on queue pairs. `failover`:
//!   going on without one. [`wire`]: encoding, pure.
//! - `incoming`: what completions tell. `outgoing`: what is said at a post, and what at a poll. `resolver`: the way to a peer's port. `registration`: memory
//!   that the devices know. `request`: numbers of requests. `watch`: sleeping.
//! - [`verbs`]: the device interface: libibverbs, found at run time, behind owners that cannot be dropped in the
//!   wrong order. The program starts and runs on a machine that has neither the library nor a device.
//!
//! `unsafe` is in `verbs`, `registration`, `device`, `rail` and `connection` alone.

mod arrivals;
pub mod choice;
mod connection;
mod device;
mod ends;
mod failover;
mod farewell;
mod fences;
pub mod handshake;
mod incoming;
mod links;
mod outgoing;
mod pulse;
mod rail;
mod registration;
mod request;
mod resolver;
pub mod survey;
pub mod transport;
pub mod verbs;
mod watch;
pub mod wire;
mod writes;

#[cfg(test)]
mod tests;

pub use choice::RdmaConfig;
pub use transport::{OpenError, RdmaTransport, Traffic};

use crate::transport::Keyring;

/// Longest message.
pub const MAX_MESSAGE_BYTES: u64 = 1 << 46;
/// Largest depth that a configuration may ask for.
pub const MAX_DEPTH: u32 = 1 << 13;
/// Notes that may wait to be sent to one peer.
pub const MAX_NOTES: usize = 256;
/// Peers whose hello is kept until they are introduced.
pub const MAX_STRANGERS: usize = 4096;
/// Least payload bytes of a message, which memory that could not be registered is cut into.
pub const MIN_PAYLOAD_BYTES: u32 = 4096;
/// Largest eager message: each connection keeps a ring of messages of this size.
pub const MAX_EAGER_BYTES: u32 = 256 << 10;

/// How to make an [`RdmaTransport`].
#[derive(Clone, Debug)]
pub struct Config {
    /// What this side calls itself in hellos: any number that no other process of the job has. Its address carries it, so
    /// peers may number this side otherwise.
    pub me: u32,
    /// By what peers prove themselves, and this side to them: others are ignored.
    pub keys: Keyring,
    /// This process's incarnation.
    pub incarnation: u64,
    /// Messages up to this many bytes may go before their receive is posted, up to [`MAX_EAGER_BYTES`]. 0: none.
    pub eager_bytes: u32,
    /// Bytes of such messages that are kept for each peer.
    pub eager_window_bytes: u32,
    /// Operations in each direction of each peer, up to [`MAX_DEPTH`].
    pub depth: u32,
    /// How long to try to reach a peer.
    pub connect_timeout_ms: u64,
    /// Bytes of a write, where several rails share a message: larger ones are striped over them.
    pub stripe_bytes: u64,
    /// What the settings want of RDMA.
    pub rdma: RdmaConfig,
}

impl Config {
    /// Defaults for peer number `me` of a job.
    pub fn new(me: u32, keys: Keyring, incarnation: u64) -> Config {
        Config {
            me,
            keys,
            incarnation,
            eager_bytes: 16 << 10,
            eager_window_bytes: 1 << 20,
            depth: 128,
            connect_timeout_ms: 30_000,
            stripe_bytes: 256 << 10,
            rdma: RdmaConfig::default(),
        }
    }

    fn payload_bytes(&self) -> usize {
        self.eager_bytes.clamp(MIN_PAYLOAD_BYTES, MAX_EAGER_BYTES) as usize
    }
}
