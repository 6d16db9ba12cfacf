//! TCP between ranks, by io_uring where the kernel allows it and by plain system calls elsewhere.
//!
//! - [`transport`]: the [`crate::transport::Transport`]. [`device`]: addresses, listening, socket options.
//! - [`handshake`]: from a dialled or accepted socket to an agreement. [`connection`]: bytes of one that stands.
//! - `at_once`: small messages by one system call each.
//! - [`pulse`]: noticing dead links. [`wire`]: encoding, pure. [`driver`]: batches of system calls. [`registration`]: regions known to the kernel.
//!
//! `unsafe` is in `driver` and `registration` alone.
//!
//! Invariants (cited by the tests):
//! - **C1** One connection per pair of peers. When both dial at once, the one dialled by the lower number stays.
//! - **C2** No frame before a `Welcome`. A connection of another job, incarnation, peer or protocol never gets one, nor one
//!   that has not proven itself.
//! - **C3** Strangers harm nobody: their number ([`MAX_STRANGERS`], of one address [`MAX_STRANGERS_PER_SOURCE`]), their time
//!   ([`GREETING_TIMEOUT_MS`]) and what is kept of them (one greeting) are bounded.
//! - **C4** What is wrong with one connection ends that connection only.

mod at_once;
pub mod connection;
pub mod device;
pub mod driver;
mod farewell;
pub mod handshake;
mod links;
pub mod pulse;
pub mod registration;
mod strangers;
pub mod transport;
mod watch;
pub mod wire;

#[cfg(test)]
mod tests;

pub use device::Bind;
pub use driver::DriverChoice;
pub use transport::{OpenError, TcpTransport};

use crate::transport::Keyring;

/// Longest message.
pub const MAX_MESSAGE_BYTES: u64 = 1 << 46;
/// Largest depth that a configuration may ask for.
pub const MAX_DEPTH: u32 = 1 << 13;
/// Connections that have not greeted yet; the oldest goes first.
pub const MAX_STRANGERS: usize = 256;
/// Of one source address.
pub const MAX_STRANGERS_PER_SOURCE: usize = 128;
/// Time for an accepted connection to say who it is.
pub const GREETING_TIMEOUT_MS: u64 = 5_000;
/// Notes that may wait to be sent to one peer.
pub const MAX_NOTES: usize = 256;

/// What to do about TCP congestion control.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Congestion {
    /// `reno` where both ends are one host (loopback needs no pacing: bbr halves its speed), else the system's.
    #[default]
    Auto,
    /// The system's.
    System,
    /// This one, everywhere.
    Named(String),
}

/// How to make a [`TcpTransport`].
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses to listen on, best first: they are what others dial.
    pub bind: Vec<Bind>,
    /// What this side calls itself in greetings: any number that no other process of the job has. Its address carries it,
    /// so peers may number this side otherwise.
    pub me: u32,
    /// By what peers prove themselves, and this side to them: others are turned away.
    pub keys: Keyring,
    /// This process's incarnation.
    pub incarnation: u64,
    /// Identity of this host (0: unknown), by default its boot id: tells whether a peer is on the same host.
    pub host: u128,
    /// Messages up to this many bytes may go before their receive is posted. 0: none.
    pub eager_bytes: u32,
    /// Bytes of such messages that are kept for each peer.
    pub eager_window_bytes: u32,
    /// Operations in each direction of each peer, up to [`MAX_DEPTH`].
    pub depth: u32,
    /// How long to try to reach a peer.
    pub connect_timeout_ms: u64,
    /// Congestion control.
    pub congestion: Congestion,
    /// Socket buffers, or the system's own sizing.
    pub socket_buffer_bytes: Option<u32>,
    /// Driver.
    pub driver: DriverChoice,
}

impl Config {
    /// Defaults for peer number `me` of a job.
    pub fn new(me: u32, keys: Keyring, incarnation: u64, bind: Vec<Bind>) -> Config {
        Config {
            bind,
            me,
            keys,
            incarnation,
            host: device::host_identity(),
            eager_bytes: 64 << 10,
            eager_window_bytes: 4 << 20,
            depth: 128,
            connect_timeout_ms: 30_000,
            congestion: Congestion::Auto,
            socket_buffer_bytes: None,
            driver: DriverChoice::Auto,
        }
    }
}
