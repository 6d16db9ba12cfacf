//! What a transport knows of each peer.
#![forbid(unsafe_code)]

use super::connection::Connection;
use super::device::Published;
use super::handshake::Dial;
use super::segment::Window;
use crate::transport::matching::Matcher;
use crate::transport::{Cause, Copies, Note, Peer};
use std::collections::VecDeque;
use std::sync::Arc;

/// How far the way to a peer is.
pub(super) enum Way {
    /// Nothing was sent yet.
    None,
    /// Being dialled.
    Dial(Box<Dial>),
    /// Connected.
    Up(Box<Connection>),
}

/// What is made at the first message with a peer.
pub(super) struct Channel {
    pub(super) matcher: Matcher,
    pub(super) notes: VecDeque<Note>,
    pub(super) way: Way,
    /// Since when sends that were taken back wait for the peer.
    pub(super) withdrawing_ms: Option<u64>,
    /// Payload of messages that left at their post.
    pub(super) at_once_bytes: u64,
}

/// One introduced peer.
pub(super) struct Link {
    pub(super) peer: Peer,
    pub(super) published: Published,
    /// Made at the first post or note, or when the peer dials.
    pub(super) channel: Option<Box<Channel>>,
    /// Lost or left.
    pub(super) gone: Option<Cause>,
    pub(super) why: Option<String>,
    /// The blocks of one that has said goodbye: what it had shown before can still be looked at.
    pub(super) window: Option<Arc<Window>>,
}

impl Link {
    pub(super) fn new(peer: Peer, published: Published) -> Link {
        Link { peer, published, channel: None, gone: None, why: None, window: None }
    }
}

impl Channel {
    /// How its payload has moved: by this side's hand, or by the peer's, straight out of the memory that was lent.
    pub(super) fn copies(&self) -> Copies {
        let moved = self.matcher.moved();
        Copies { copied_bytes: moved.sent + moved.received + self.at_once_bytes, placed_bytes: moved.shown }
    }

    /// Whether there is something to send, now or as soon as the queue has room.
    pub(super) fn has_output(&self) -> bool {
        !self.notes.is_empty() || self.matcher.has_output()
    }

    /// Whether there is what no send waits for: notes, and what was taken of the peer's messages, who waits to hear it.
    pub(super) fn has_unsent(&self) -> bool {
        !self.notes.is_empty() || self.matcher.has_small_output()
    }
}
