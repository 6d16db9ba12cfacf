//! Regions that the kernel has mapped for good, so that reads and writes skip the page walk.

use crate::memory::{Region, RegionId, Trace, unmapped_blocks};
use crate::transport::{RegionKey, RegisterError};
use io_uring::IoUring;
use std::collections::HashMap;
use std::io;

/// Buffers of a ring's table. A region takes one per [`PIECE_BYTES`].
const TABLE: usize = 1024;
/// The kernel's limit for one buffer.
const PIECE_BYTES: usize = 1 << 30;

struct Entry {
    base: usize,
    len: usize,
    first: u16,
    trace: Trace,
}

/// Where a span is registered.
#[derive(Clone, Copy)]
pub(super) struct Registered {
    /// The kernel's index.
    pub(super) index: u16,
    /// Bytes of the span that lie in this buffer.
    pub(super) most: usize,
}

/// The ring's table of buffers.
pub(super) struct Table {
    entries: HashMap<RegionId, Entry>,
    used: Vec<bool>,
    /// Blocks that had been unmapped when this was last looked through for them.
    swept: u64,
}

fn pieces(len: usize) -> usize {
    len.div_ceil(PIECE_BYTES)
}

impl Table {
    pub(super) fn new(ring: &IoUring) -> io::Result<Table> {
        ring.submitter().register_buffers_sparse(TABLE as u32)?;
        Ok(Table { entries: HashMap::new(), used: vec![false; TABLE], swept: 0 })
    }

    #[cfg(test)]
    pub(super) fn regions(&self) -> Vec<RegionId> {
        self.entries.keys().copied().collect()
    }

    /// First of `n` free places in a row.
    fn room(&self, n: usize) -> Option<usize> {
        self.used.windows(n).position(|w| !w.contains(&true))
    }

    pub(super) fn add(&mut self, ring: &IoUring, region: &Region) -> Result<RegionKey, RegisterError> {
        self.forget_unmapped(ring);
        match self.entries.get(&region.id()) {
            Some(known) if known.len >= region.len() => return Ok(RegionKey(known.first.into())),
            // A pool's block, registered when a shorter region was made of it.
            Some(_) => self.remove(ring, region.id()),
            None => {}
        }
        let Some(trace) = region.trace().filter(|_| !region.is_empty()) else {
            return Err(RegisterError::Useless);
        };
        let (base, len) = (region.as_ptr() as usize, region.len());
        let n = pieces(len);
        let first = self.room(n).ok_or(RegisterError::TableFull { limit: TABLE })?;
        let parts: Vec<libc::iovec> = (0..n)
            .map(|i| libc::iovec {
                iov_base: (base + i * PIECE_BYTES) as *mut _,
                iov_len: PIECE_BYTES.min(len - i * PIECE_BYTES),
            })
            .collect();
        // SAFETY: the parts are the region's own mapping, which is alive. The kernel takes references to its pages,
        // so that they outlive even an unmapping; a region id is never used again for other memory, so a stale
        // entry is never found.
        unsafe { ring.submitter().register_buffers_update(first as u32, &parts, None) }
            .map_err(|e| RegisterError::Refused { bytes: len, why: e.to_string() })?;
        self.used[first..first + n].fill(true);
        self.entries.insert(region.id(), Entry { base, len, first: first as u16, trace });
        Ok(RegionKey(first as u64))
    }

    /// Gives up the entries whose memory is unmapped, so that the kernel frees their pages.
    pub(super) fn forget_unmapped(&mut self, ring: &IoUring) {
        let unmapped = unmapped_blocks();
        if std::mem::replace(&mut self.swept, unmapped) == unmapped {
            return;
        }
        let gone = self.entries.iter().filter(|(_, entry)| entry.trace.is_gone());
        for region in gone.map(|(region, _)| *region).collect::<Vec<_>>() {
            self.remove(ring, region);
        }
    }

    pub(super) fn remove(&mut self, ring: &IoUring, region: RegionId) {
        let Some(entry) = self.entries.remove(&region) else { return };
        let (first, n) = (usize::from(entry.first), pieces(entry.len));
        let nothing = vec![libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; n];
        // SAFETY: empty entries refer to no memory.
        match unsafe { ring.submitter().register_buffers_update(first as u32, &nothing, None) } {
            Ok(()) => self.used[first..first + n].fill(false),
            // The places stay taken: the pages are pinned until the ring is closed.
            Err(e) => tracing::warn!("a region of {} bytes stays registered: {e}", entry.len),
        }
    }

    /// Where `len` bytes at `start` of a region are registered.
    pub(super) fn find(&self, region: RegionId, start: *const u8, len: usize) -> Option<Registered> {
        let entry = self.entries.get(&region)?;
        let offset = (start as usize).checked_sub(entry.base)?;
        if offset + len > entry.len {
            return None;
        }
        let piece = offset / PIECE_BYTES;
        let most = ((piece + 1) * PIECE_BYTES - offset).min(len);
        Some(Registered { index: entry.first + piece as u16, most })
    }
}
