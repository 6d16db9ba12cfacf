//! Move-only tokens for a span of a region: what a transport holds while a device may touch the bytes.
//!
//! A lease is made by [`Region::lend_read`](super::Region::lend_read) or
//! [`Region::lend_write`](super::Region::lend_write), travels by value into an operation, comes back with its
//! completion, and is handed to [`Region::restore`](super::Region::restore). One that is dropped on the way
//! leaves its span lent for good: the region then refuses to be reused, which is safe.

use super::region::{Mapping, RegionId};
use super::shared::Owned;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What both kinds of lease are made of.
#[derive(Debug)]
pub(super) struct Span {
    pub(super) start: *mut u8,
    pub(super) len: usize,
    pub(super) region: RegionId,
    /// Index of the span in its region's ledger.
    pub(super) slot: u32,
    /// All of the region's memory.
    pub(super) whole: (NonNull<u8>, usize),
    /// Of a device's memory (I6).
    pub(super) device: bool,
    /// Keeps owned memory mapped (I2). Borrowed memory has none: its scope waits for the lease (I3).
    pub(super) keep: Option<Arc<Mapping>>,
    /// Keeps shared memory from being reused (I5).
    pub(super) _shared: Option<Arc<Owned>>,
}

// SAFETY: a span is exclusive or shared-read by the ledger's rule (I1) whichever thread holds it, and the memory
// outlives it (I2, I3). Nothing in it is tied to a thread.
unsafe impl Send for Span {}

/// All of the memory that a region or lease is of: what a transport registers with a device.
#[derive(Debug)]
pub struct Block {
    region: RegionId,
    base: NonNull<u8>,
    len: usize,
    keep: Option<Arc<Mapping>>,
}

impl Clone for Block {
    fn clone(&self) -> Block {
        Block::new(self.region, (self.base, self.len), self.keep.clone())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(mapping) = &self.keep {
            mapping.blocks.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

// SAFETY: a block is an address range and a count of those who need it mapped; it gives no access to the bytes.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    pub(super) fn new(
        region: RegionId,
        (base, len): (NonNull<u8>, usize),
        keep: Option<Arc<Mapping>>,
    ) -> Block {
        match &keep {
            Some(mapping) => {
                mapping.blocks.fetch_add(1, Ordering::AcqRel);
                Block { region, base: mapping.base, len: mapping.len, keep }
            }
            None => Block { region, base, len, keep },
        }
    }

    pub(super) fn mapping(&self) -> Option<&Arc<Mapping>> {
        self.keep.as_ref()
    }

    /// The region.
    pub fn region(&self) -> RegionId {
        self.region
    }

    /// Address of the first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the memory stays mapped for as long as this block lives. Otherwise it is borrowed for a call, and
    /// stays until the last of its leases is given back (I3).
    pub fn is_owned(&self) -> bool {
        self.keep.is_some()
    }

    /// Whether nobody but this block needs the memory any more.
    pub fn is_orphan(&self) -> bool {
        self.keep.as_ref().is_some_and(|keep| Arc::strong_count(keep) == 1)
    }
}

/// The right to read a span of bytes. Others may read the same bytes; nobody writes them.
#[derive(Debug)]
pub struct ReadLease(pub(super) Span);

/// The sole right to read and write a span of bytes.
#[derive(Debug)]
pub struct WriteLease(pub(super) Span);

impl ReadLease {
    /// The bytes; none of memory of a device (I6).
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        if self.0.device {
            return &[];
        }
        // SAFETY: the span is mapped for as long as the lease lives (I2, I3) and the ledger lends it to readers
        // only (I1), so nobody writes it.
        unsafe { std::slice::from_raw_parts(self.0.start, self.0.len) }
    }
}

impl WriteLease {
    /// The bytes; none of memory of a device (I6).
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        if self.0.device {
            return &[];
        }
        // SAFETY: as in `bytes_mut`; `&self` forbids a write by the holder meanwhile.
        unsafe { std::slice::from_raw_parts(self.0.start, self.0.len) }
    }

    /// The bytes, to write; none of memory of a device (I6).
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if self.0.device {
            return &mut [];
        }
        // SAFETY: the span is mapped for as long as the lease lives (I2, I3), and the ledger lends it to nobody
        // else (I1).
        unsafe { std::slice::from_raw_parts_mut(self.0.start, self.0.len) }
    }
}

macro_rules! span_facts {
    ($($t:ty),+) => {$(
        impl $t {
            /// Length in bytes.
            pub fn len(&self) -> usize {
                self.0.len
            }

            /// Whether the span has no bytes.
            pub fn is_empty(&self) -> bool {
                self.0.len == 0
            }

            /// Whether it is of a device's memory, whose bytes no processor touches (I6).
            #[inline]
            pub fn is_on_device(&self) -> bool {
                self.0.device
            }

            /// The region that lent it: what a transport looks its registration up by.
            pub fn region(&self) -> RegionId {
                self.0.region
            }

            /// The memory that it is of, for registration.
            pub fn block(&self) -> Block {
                Block::new(self.0.region, self.0.whole, self.0.keep.clone())
            }

            /// Address of the first byte, for a device. Reading or writing through it is the caller's `unsafe`.
            pub fn as_ptr(&self) -> *mut u8 {
                self.0.start
            }
        }
    )+};
}

span_facts!(ReadLease, WriteLease);

/// Either kind, as it comes back with a completion.
#[derive(Debug)]
pub enum Lease {
    /// Of a send.
    Read(ReadLease),
    /// Of a receive.
    Write(WriteLease),
}

impl Lease {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Lease::Read(l) => l.len(),
            Lease::Write(l) => l.len(),
        }
    }

    /// Whether the span has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes; none of memory of a device (I6).
    pub fn bytes(&self) -> &[u8] {
        match self {
            Lease::Read(l) => l.bytes(),
            Lease::Write(l) => l.bytes(),
        }
    }

    /// The region that lent it.
    pub fn region(&self) -> RegionId {
        match self {
            Lease::Read(l) => l.region(),
            Lease::Write(l) => l.region(),
        }
    }
}

impl From<ReadLease> for Lease {
    fn from(l: ReadLease) -> Lease {
        Lease::Read(l)
    }
}

impl From<WriteLease> for Lease {
    fn from(l: WriteLease) -> Lease {
        Lease::Write(l)
    }
}
