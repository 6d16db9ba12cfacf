//! What this host allows of shared memory, for people.
#![forbid(unsafe_code)]

use super::device::{Home, listen_anywhere};
use super::segment::Segment;
use crate::memory::share_blocks;
use std::io;

/// What was found.
#[derive(Debug)]
pub struct Survey {
    /// Where this process runs, as others must to reach it.
    pub home: io::Result<Home>,
    /// Whether queues can be made: a socket, and memory.
    pub queues: io::Result<()>,
    /// How many bytes of pools can be shown to peers.
    pub blocks: io::Result<usize>,
}

impl Survey {
    /// Looks at this process.
    #[must_use]
    pub fn here() -> Survey {
        Survey {
            home: Home::here(),
            queues: listen_anywhere().and_then(|_| Segment::new()).map(|_| ()),
            blocks: share_blocks().map(|(_, bytes)| bytes),
        }
    }
}
