//! What no well-behaved peer sends.

use super::{Kind, MAX_PARKED};

/// A frame that a well-behaved peer never sends. The connection is to be closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// More credit than there is window.
    #[error("gave back {units} units of credit, more than its window of {window}")]
    Credit {
        /// Units given back.
        units: u32,
        /// The window.
        window: u32,
    },
    /// An eager message beyond the window or over the agreed size.
    #[error("sent an eager message of {bytes} bytes, beyond the agreed window")]
    Window {
        /// Its length.
        bytes: u64,
    },
    /// The same number was announced twice.
    #[error("announced message {seq} of tag {tag:#x} twice ({kind:?})")]
    Twice {
        /// By this kind of frame.
        kind: Kind,
        /// The tag.
        tag: u64,
        /// The number.
        seq: u32,
    },
    /// A place number that was never given out, or bytes outside of it.
    #[error("sent {length} bytes at {offset} for place {slot:#x}, which does not exist or is smaller")]
    Place {
        /// The number.
        slot: u64,
        /// Where the bytes begin.
        offset: u64,
        /// How many.
        length: u64,
    },
    /// Payload for memory of a device (M7).
    #[error("sent {bytes} bytes in a message for memory of a device, which is only written to")]
    Device {
        /// How many.
        bytes: u64,
    },
    /// Over [`MAX_PARKED`].
    #[error("announced over {MAX_PARKED} messages that nobody asked for")]
    Parked,
    /// A kind that does not belong here.
    #[error("sent {0:?} out of place")]
    Kind(Kind),
}
