//! Shared memory between processes of one host.
//!
//! - [`transport`]: the [`crate::transport::Transport`]. [`device`]: who and where this process is, and its socket.
//! - `handshake`: from a dialled or accepted socket to an agreement with a peer that has proven itself
//!   ([`crate::transport::authentication`]). `connection`: records of one that stands.
//! - [`queue`]: the words that two processes share, pure and model-checked. `segment`: the memory that they are in.
//! - [`wire`]: encoding, pure. `registration`: where payload is shown and how it is read. `attach`: by a system call.
//!
//! Two processes meet over a unix socket, which then stays silent: its end tells that the other process has ended, however
//! it did. Small messages and all control go through one queue per direction. Payload of large ones is copied once, by the
//! receiver, straight out of the sender's memory, if that is in the blocks of its pools, which each peer has mapped. Of other
//! memory, pieces go through the queue: two copies within the second-level cache take half the time of one by
//! `process_vm_readv`, which has the kernel find each page first ([`Config::attach`]). Whoever has
//! news for a process that sleeps rings its doorbell (an eventfd); while both look, no system call is made.
//!
//! What a host allows of it is in [`survey`].
//!
//! `unsafe` is in `segment` and `attach` alone.
//!
//! Invariants (cited by the tests):
//! - **S1** One connection per pair of peers. When both dial at once, the one dialled by the lower number stays.
//! - **S2** Nothing outlives its process: files are in memory, names in the network namespace's abstract space.
//! - **S3** What is read of memory that a peer can write is copied out once and checked. A peer that breaks the rules is
//!   lost, with what it did, and can do no more than spoil its own messages.
//! - **S4** Strangers harm nobody: their number ([`MAX_STRANGERS`]) and their time ([`GREETING_TIMEOUT_MS`]) are bounded, and
//!   other users' have no place at all.
//! - **S5** Lent memory that a peer may be reading stays lent until the peer has left it, or is lost for not doing so
//!   within [`WITHDRAW_MS`]; then whatever it read is not delivered.
//! - **S6** No queue, word or block is shown to a process that has not proven itself, and that the kernel does not name as
//!   the one that its address says.

mod attach;
mod connection;
pub mod device;
mod farewell;
mod handshake;
mod links;
pub mod queue;
mod registration;
mod segment;
mod strangers;
pub mod survey;
pub mod transport;
mod watch;
pub mod wire;

#[cfg(test)]
mod tests;

pub use device::Home;
pub use transport::{OpenError, ShmTransport};

use crate::transport::Keyring;

/// Longest message.
pub const MAX_MESSAGE_BYTES: u64 = 1 << 46;
/// Largest depth that a configuration may ask for.
pub const MAX_DEPTH: u32 = 1 << 13;
/// Largest eager message, and largest that goes at once: some of them fit a queue.
pub const MAX_EAGER_BYTES: usize = 64 << 10;
/// Connections that belong to no peer yet; the oldest goes first.
pub const MAX_STRANGERS: usize = 256;
/// Time for an accepted connection to say who it is.
pub const GREETING_TIMEOUT_MS: u64 = 5_000;
/// A peer that does not confirm in so long that it leaves withdrawn memory alone is given up.
pub const WITHDRAW_MS: u64 = 2_000;
/// Notes that may wait to be sent to one peer.
pub const MAX_NOTES: usize = 256;

/// How to make a [`ShmTransport`].
#[derive(Clone, Debug)]
pub struct Config {
    /// What this side calls itself in greetings: any number that no other process of the job has. Its address carries it,
    /// so peers may number this side otherwise.
    pub me: u32,
    /// By what peers prove themselves, and this side to them: others are turned away.
    pub keys: Keyring,
    /// This process's incarnation.
    pub incarnation: u64,
    /// Messages that are posted may go before their receive is, up to so many bytes, at most [`MAX_EAGER_BYTES`]; what is sent at
    /// once (`Transport::send_now`) up to that. 0: none.
    pub eager_bytes: u32,
    /// Bytes of such messages that are kept for each peer.
    pub eager_window_bytes: u32,
    /// Operations in each direction of each peer, up to [`MAX_DEPTH`].
    pub depth: u32,
    /// How long to try to reach a peer.
    pub connect_timeout_ms: u64,
    /// Whether blocks of pools are shown to peers, and theirs mapped. Blocks that pools have made before are not in the
    /// file that is shown, so the transport is opened before buffers are allocated.
    pub map_blocks: bool,
    /// Whether other memory of peers is read by `process_vm_readv`, where that is permitted, and not sent through the queue:
    /// the sender then need not take part. It was slower at every length that was measured.
    pub attach: bool,
}

impl Config {
    /// Defaults for peer number `me` of a job.
    pub fn new(me: u32, keys: Keyring, incarnation: u64) -> Config {
        Config {
            me,
            keys,
            incarnation,
            eager_bytes: 16 << 10,
            eager_window_bytes: 4 << 20,
            depth: 128,
            connect_timeout_ms: 30_000,
            map_blocks: true,
            attach: false,
        }
    }

    fn means(&self) -> handshake::Means {
        handshake::Means { map: self.map_blocks, attach: self.attach }
    }
}
