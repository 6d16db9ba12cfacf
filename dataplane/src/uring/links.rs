//! What a transport knows of each peer.
#![forbid(unsafe_code)]

use super::connection::Connection;
use super::device::Published;
use super::handshake::Dial;
use crate::transport::matching::Matcher;
use crate::transport::{Cause, Copies, Note, Peer};
use std::collections::VecDeque;
use std::net::SocketAddr;

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
    /// Payload of messages that went at once.
    pub(super) at_once_bytes: u64,
}

/// One introduced peer.
pub(super) struct Link {
    pub(super) peer: Peer,
    pub(super) published: Published,
    pub(super) candidates: Vec<SocketAddr>,
    /// Made at the first post or note, or when the peer dials.
    pub(super) channel: Option<Box<Channel>>,
    /// Lost or left.
    pub(super) gone: Option<Cause>,
    /// In the list of links that each poll looks at.
    pub(super) active: bool,
    /// Watched for room to send.
    pub(super) watched_for_room: bool,
    pub(super) why: Option<String>,
}

impl Link {
    pub(super) fn new(peer: Peer, published: Published, candidates: Vec<SocketAddr>) -> Link {
        Link {
            peer,
            published,
            candidates,
            channel: None,
            gone: None,
            active: false,
            watched_for_room: false,
            why: None,
        }
    }
}

impl Channel {
    /// How its payload has moved: all by the kernel's hand.
    pub(super) fn copies(&self) -> Copies {
        let moved = self.matcher.moved();
        Copies { copied_bytes: moved.sent + moved.received + self.at_once_bytes, placed_bytes: 0 }
    }

    /// Whether there is something to send, now or as soon as the socket has room.
    pub(super) fn has_output(&self) -> bool {
        match &self.way {
            Way::Up(c) => c.has_output() || !self.notes.is_empty() || self.matcher.has_output(),
            Way::None | Way::Dial(_) => false,
        }
    }

    /// Whether each poll should look at it.
    pub(super) fn is_busy(&self) -> bool {
        self.has_output() || self.matcher.expects() || matches!(&self.way, Way::Up(c) if c.in_frame())
    }
}
