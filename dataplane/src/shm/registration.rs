//! Where payload is shown, and how what a peer shows is read.
//!
//! Nothing is registered: the blocks of this process's pools are one file ([`memory::arena`](crate::memory::arena)) that
//! each peer has mapped whole, so that its mappings need no cache, no limit and no eviction, and a block is read at the
//! speed of memory. Memory of any other kind is read by a system call, where the system permits it.
#![forbid(unsafe_code)]

use super::attach;
use super::handshake::Other;
use super::wire::{IN_BLOCKS, IN_MEMORY};
use crate::memory::{ReadLease, place_in_arena};
use crate::transport::matching::Place;

/// Where the bytes of a lease are, in terms that a peer understands.
pub(super) fn place_of(lease: &ReadLease) -> Place {
    let address = lease.as_ptr().addr() as u64;
    match place_in_arena(lease.as_ptr(), lease.len()) {
        // The address too, for a peer that could not map the blocks.
        Some(offset) => {
            Place { address: offset, keys: [IN_BLOCKS, address as u32, (address >> 32) as u32, 0] }
        }
        None => Place { address, keys: [IN_MEMORY, 0, 0, 0] },
    }
}

/// How payload was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// Out of the peer's blocks, mapped here.
    Mapped,
    /// By a system call.
    Attached,
    /// Not at all: it is to be sent.
    No,
}

impl Other {
    /// Reads the bytes from `offset` on of what is shown at `place`.
    pub(super) fn read(&self, place: &Place, offset: u64, into: &mut [u8]) -> Read {
        let address = match place.keys {
            [IN_BLOCKS, low, high, _] => {
                if let Ok(window) = &self.window {
                    let at = place.address.checked_add(offset);
                    let copied = at.is_some_and(|at| window.copy(at, into));
                    return if copied { Read::Mapped } else { Read::No };
                }
                u64::from(high) << 32 | u64::from(low)
            }
            [IN_MEMORY, ..] => place.address,
            _ => return Read::No,
        };
        match &self.attach {
            Ok(pid) if attach::read(*pid, address.wrapping_add(offset), into).is_ok() => Read::Attached,
            _ => Read::No,
        }
    }

    /// What is shown at `place`, where it lies, if it is in blocks that are mapped here.
    pub(super) fn shown(&self, place: &Place, bytes: usize) -> Option<&[u8]> {
        match (place.keys, &self.window) {
            ([IN_BLOCKS, ..], Ok(window)) => window.lend(place.address, bytes),
            _ => None,
        }
    }

    /// How large messages come from this peer, in words.
    pub(super) fn ways(&self) -> String {
        let blocks = match &self.window {
            Ok(_) => "mapped".to_owned(),
            Err(why) => format!("not mapped ({why})"),
        };
        let others = match &self.attach {
            Ok(_) => "by process_vm_readv".to_owned(),
            Err(why) => format!("through the queue ({why})"),
        };
        format!("large messages: its blocks are {blocks}, its other memory is read {others}")
    }
}
