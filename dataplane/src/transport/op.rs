//! Operations, their completions, and the words for what went wrong.

use crate::memory::{Lease, ReadLease, WriteLease};
use std::fmt;

/// Chosen by the poster; comes back with the completion. Ids in flight on one transport differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u64);

/// A peer by its number in the endpoint's table: the same number for every transport of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer(pub u32);

/// Names a sequence of messages between two peers: the k-th send on a tag matches the k-th receive on it.
///
/// `group` is the communicator's id, which carries its epoch: a late byte of an aborted group never matches. `lane`
/// tells concurrent sequences of one group apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag {
    /// Communicator and epoch.
    pub group: u32,
    /// Sequence within the communicator.
    pub lane: u32,
}

/// What a message is part of, in the engine's words; opaque to transports, which compare the two sides' for equality
/// when a send and a receive match.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Stamp(pub [u8; 24]);

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stamp(")?;
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))?;
        f.write_str(")")
    }
}

/// What a transport is asked to do. The lease comes back with the completion.
#[derive(Debug)]
pub enum Op {
    /// Send `bytes` to a peer.
    Send {
        /// Receiver.
        to: Peer,
        /// Sequence that the message belongs to.
        tag: Tag,
        /// Must equal the receive's.
        stamp: Stamp,
        /// Payload; may be empty.
        bytes: ReadLease,
    },
    /// Receive exactly `into.len()` bytes from a peer.
    Recv {
        /// Sender.
        from: Peer,
        /// Sequence that the message belongs to.
        tag: Tag,
        /// Must equal the send's.
        stamp: Stamp,
        /// Where the payload goes; may be empty.
        into: WriteLease,
    },
}

impl Op {
    /// The other side.
    pub fn peer(&self) -> Peer {
        match self {
            Op::Send { to, .. } => *to,
            Op::Recv { from, .. } => *from,
        }
    }

    /// The sequence.
    pub fn tag(&self) -> Tag {
        match self {
            Op::Send { tag, .. } | Op::Recv { tag, .. } => *tag,
        }
    }

    /// Payload length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Op::Send { bytes, .. } => bytes.len(),
            Op::Recv { into, .. } => into.len(),
        }
    }

    /// Whether the payload is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the payload is memory of a device.
    #[inline]
    pub fn is_on_device(&self) -> bool {
        match self {
            Op::Send { bytes, .. } => bytes.is_on_device(),
            Op::Recv { into, .. } => into.is_on_device(),
        }
    }

    /// Takes the lease out of an operation that will not run.
    pub fn into_lease(self) -> Lease {
        match self {
            Op::Send { bytes, .. } => bytes.into(),
            Op::Recv { into, .. } => into.into(),
        }
    }
}

/// Why a post was not taken; the operation comes back beside it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The peer's queue for this direction is full: post again after a completion.
    #[error("the queue to peer {} is full", .0.0)]
    Full(Peer),
    /// The peer is lost or has left; nothing more can be exchanged with it.
    #[error("peer {} is gone: {cause}", .peer.0)]
    Gone {
        /// The peer.
        peer: Peer,
        /// Why.
        cause: Cause,
    },
    /// No address is known: `connect` was never called for this peer.
    #[error("peer {} was never introduced to this transport", .0.0)]
    Unknown(Peer),
    /// Memory of a device that this way to the peer does not reach, or that is not registered with it
    /// ([`Transport::keep_registered`](super::Transport::keep_registered)).
    #[error("memory of a device was lent to an exchange with peer {}, which cannot reach it: {why}", .peer.0)]
    OnDevice {
        /// The peer.
        peer: Peer,
        /// Why not.
        why: &'static str,
    },
    /// The message is longer than the transport's `max_message_bytes`.
    #[error("a message of {bytes} bytes is over this transport's limit of {limit_bytes}")]
    TooLong {
        /// Its length.
        bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
}

/// How a peer was lost, in kinds that code may act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CauseKind {
    /// It closed the connection without saying goodbye (FIN): the process ended or crashed.
    Closed,
    /// Its host reset the connection (RST) or an error came back from the network.
    Reset,
    /// It could not be reached within the connect timeout.
    Unreachable,
    /// It answered, and refused: another job, another incarnation, another protocol version.
    Refused,
    /// It sent something that is not our protocol.
    Protocol,
    /// It said goodbye before the operation.
    Left,
    /// The control plane reported it (missed heartbeats, a closed control connection).
    Reported,
    /// This side closed it, or could not go on by its own limits: the peer is not to blame.
    Local,
}

/// Why a peer is gone: a kind, and the evidence in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// For code.
    pub kind: CauseKind,
    /// For people: what was seen, e.g. "FIN from 10.0.0.7:4123 after 3 of 12 messages".
    pub evidence: String,
}

impl Cause {
    /// A cause of `kind` with its evidence.
    pub fn new(kind: CauseKind, evidence: impl Into<String>) -> Cause {
        Cause { kind, evidence: evidence.into() }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.evidence)
    }
}

/// How an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// The peer was lost before the operation finished.
    #[error("peer {} was lost: {cause}", .peer.0)]
    PeerLost {
        /// The peer.
        peer: Peer,
        /// Why.
        cause: Cause,
    },
    /// The other side's matching operation has another stamp or length. No byte of it was delivered.
    #[error("the other side's message is stamped {theirs:?} with {their_bytes} bytes")]
    Mismatch {
        /// The other side's stamp.
        theirs: Stamp,
        /// The other side's length in bytes.
        their_bytes: u64,
    },
    /// `cancel` was called on this operation, or on the other side's half of the match.
    #[error("the operation was cancelled")]
    Cancelled,
}

/// The end of one operation.
#[derive(Debug)]
pub struct Completion {
    /// As posted.
    pub id: OpId,
    /// Nothing, or why not. On an error the bytes of a receive are unspecified.
    pub result: Result<(), OpError>,
    /// The operation's lease.
    pub lease: Lease,
}

/// A small message outside of any sequence, delivered by `poll` without a receive: how engines tell each other of
/// aborts and ask what a silent peer is doing. Delivery to a live peer is reliable and in order with other notes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Note {
    len: u16,
    bytes: [u8; Note::MAX_BYTES],
}

impl Note {
    /// Most bytes that a note carries.
    pub const MAX_BYTES: usize = 480;

    /// A note of these bytes, or `None` when there are over [`Note::MAX_BYTES`].
    pub fn new(content: &[u8]) -> Option<Note> {
        let mut bytes = [0; Note::MAX_BYTES];
        bytes.get_mut(..content.len())?.copy_from_slice(content);
        Some(Note { len: content.len() as u16, bytes })
    }

    /// The content.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Note({} bytes)", self.len)
    }
}

/// What `poll` has to say.
#[derive(Debug)]
pub enum Event {
    /// An operation ended. Each posted id comes exactly once.
    Done(Completion),
    /// A note arrived.
    Note {
        /// Sender.
        from: Peer,
        /// Content. Boxed: notes are rare, and would make every event as large as they are.
        note: Box<Note>,
    },
    /// A peer is lost (once per peer, after the completions of its pending operations).
    Lost {
        /// The peer.
        peer: Peer,
        /// Why.
        cause: Cause,
    },
    /// A peer has said goodbye; it is not a failure unless operations still need it.
    Left {
        /// The peer.
        peer: Peer,
    },
}
