//! What a transport can do: what conformance skips by and what the fabric chooses by.

/// Capabilities and limits of one transport instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Short name that tables print: `uring`, `epoll`, `rdma`, `shm`, `loopback`.
    pub name: &'static str,
    /// What it speaks, which a peer must speak too. Drivers that differ only on this side of the wire share it: `uring` and
    /// `epoll` both speak `tcp`.
    pub speaks: &'static str,
    /// Longest message in bytes that one operation may carry.
    pub max_message_bytes: u64,
    /// Messages up to this many bytes may finish sending before their receive is posted. 0: every send finishes only
    /// when matched.
    pub eager_bytes: u64,
    /// Operations that may be posted to one peer, in each direction, before `post` answers `Full`.
    pub depth: u32,
    /// Whether registering a region makes its messages cheaper.
    pub registers: bool,
    /// Whether a thread can sleep until there is something to poll.
    pub sleepable: bool,
    /// Whether a withdrawn operation always ends without the peer. Not where the peer's device may be writing into the
    /// lent memory by itself: such a receive ends when the peer has confirmed, or is given up for not doing so (T7).
    pub withdraws_alone: bool,
    /// Whether both ends are in one process (then peer loss can only be simulated).
    pub in_process: bool,
}
