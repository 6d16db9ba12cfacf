//! A span of bytes with a ledger of what is lent out of it.

use super::device::Backing;
use super::lease::{Block, Lease, ReadLease, Span, WriteLease};
use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};

/// Identity of a region's memory, unique in the process and never reused. Blocks that a pool hands out again keep
/// theirs, so that a transport registers them once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(pub u64);

impl RegionId {
    pub(super) fn next() -> RegionId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        RegionId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Most leases that one region has out at a time. An engine's window is far below it.
pub const MAX_LEASES: usize = 4096;

/// Pages that are unmapped when the last owner or lease lets go (I2).
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) base: NonNull<u8>,
    pub(super) len: usize,
    pub(super) id: RegionId,
    /// How many [`Block`]s there are of it: registrations, which do not keep it from being used again.
    pub(super) blocks: AtomicUsize,
    /// What memory of a device has in place of pages; the address is then the device's own.
    pub(super) device: Option<Backing>,
}

// SAFETY: a mapping is an address range; who may touch which byte is the ledger's business (I1).
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// The mappings of pools that live, by address: memory of ours that comes back as a plain borrow is known again, so
/// that it is registered once and not for each call.
static LIVE: RwLock<BTreeMap<usize, (usize, Weak<Mapping>)>> = RwLock::new(BTreeMap::new());

/// Mappings of pools that have been unmapped.
static UNMAPPED: AtomicU64 = AtomicU64::new(0);

/// How many blocks of pools this process has unmapped so far: a cheap look at whether any [`Trace`] can have changed.
pub fn unmapped_blocks() -> u64 {
    UNMAPPED.load(Ordering::Acquire)
}

/// Tells whether a pool's block is still mapped, without keeping it so.
#[derive(Clone, Debug)]
pub struct Trace(Weak<Mapping>);

impl Trace {
    /// Whether the last owner and lease have let go.
    pub fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl Mapping {
    /// A new mapping of one mmap call, or block of the arena.
    pub(super) fn new(base: NonNull<u8>, len: usize) -> Arc<Mapping> {
        let (id, blocks) = (RegionId::next(), AtomicUsize::new(0));
        let mapping = Arc::new(Mapping { base, len, id, blocks, device: None });
        let mut live = LIVE.write().unwrap_or_else(PoisonError::into_inner);
        live.insert(base.as_ptr().addr(), (len, Arc::downgrade(&mapping)));
        mapping
    }

    /// Memory of a device. It is not found by its address, which may be one of the host's too.
    pub(super) fn of_device(base: NonNull<u8>, len: usize, device: Backing) -> Arc<Mapping> {
        let (id, blocks) = (RegionId::next(), AtomicUsize::new(0));
        Arc::new(Mapping { base, len, id, blocks, device: Some(device) })
    }

    /// Whether the one who asks is the only one to use the memory, whoever has it registered.
    pub(super) fn is_free(self: &Arc<Mapping>) -> bool {
        // A block is counted after it has its share and uncounted before it lets go of it, so the answer is no while either
        // happens.
        let blocks = self.blocks.load(Ordering::Acquire);
        Arc::strong_count(self) == 1 + blocks
    }

    /// The mapping that all of these bytes lie in.
    fn of(base: NonNull<u8>, len: usize) -> Option<Arc<Mapping>> {
        let at = base.as_ptr().addr();
        let live = LIVE.read().unwrap_or_else(PoisonError::into_inner);
        let (start, (bytes, mapping)) = live.range(..=at).next_back()?;
        let inside = at - start <= *bytes && len <= *bytes - (at - start);
        mapping.upgrade().filter(|_| inside && len > 0)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.device.is_some() {
            return;
        }
        // Before the address can be another mapping's.
        LIVE.write().unwrap_or_else(PoisonError::into_inner).remove(&self.base.as_ptr().addr());
        UNMAPPED.fetch_add(1, Ordering::Release);
        if super::arena::release(self.base.as_ptr(), self.len) {
            return;
        }
        // SAFETY: `base` and `len` are those of one mmap call, and this is the last reference to it (I2).
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        if let Err(e) = unmapped {
            tracing::error!("munmap of {} bytes failed: {e}", self.len);
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Lent {
    start: usize,
    end: usize,
    write: bool,
    live: bool,
}

/// A span of bytes that can be lent, in pieces, to operations.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    id: RegionId,
    keep: Option<Arc<Mapping>>,
    writable: bool,
    /// Of a device's memory (I6).
    device: bool,
    ledger: Vec<Lent>,
    free: Vec<u32>,
}

// SAFETY: the region is the one owner of its span apart from the leases that its ledger counts (I1), on any thread.
unsafe impl Send for Region {}
// SAFETY: `&Region` only reads bytes that no write lease covers, and lends nothing.
unsafe impl Sync for Region {}

/// Why a span was not lent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LendError {
    /// The span ends past the region.
    #[error("bytes {start}..{end} are outside of a region of {len} bytes")]
    OutOfBounds {
        /// First byte asked for.
        start: usize,
        /// Byte after the last one asked for.
        end: usize,
        /// Length of the region.
        len: usize,
    },
    /// Part of the span is lent in a way that excludes this use.
    #[error("bytes {start}..{end} overlap bytes {other_start}..{other_end}, which are lent to a {}",
        if *.other_write { "writer" } else { "reader" })]
    Lent {
        /// First byte asked for.
        start: usize,
        /// Byte after the last one asked for.
        end: usize,
        /// First byte of the span that is out.
        other_start: usize,
        /// Byte after its last.
        other_end: usize,
        /// Whether that span is out for writing.
        other_write: bool,
    },
    /// The region was made from shared memory and cannot be written.
    #[error("the region is read-only: it was made from a shared borrow")]
    ReadOnly,
    /// The memory is a device's: it is lent to transports that reach it, and to nobody else.
    #[error("the region is memory of a device, which no processor reads or writes")]
    OnDevice,
    /// [`MAX_LEASES`] are out.
    #[error("{MAX_LEASES} leases of this region are out: complete some operations first")]
    TooMany,
    /// The lease came from another region, or came back twice (I4).
    #[error("a lease of region {found:?} came back to region {expected:?}")]
    Foreign {
        /// The region asked.
        expected: RegionId,
        /// The lease's region.
        found: RegionId,
    },
}

impl Region {
    pub(super) fn owned(mapping: Arc<Mapping>, len: usize) -> Region {
        debug_assert!(len <= mapping.len);
        Region { base: mapping.base, len, id: mapping.id, keep: Some(mapping), ..Region::blank() }
    }

    fn blank() -> Region {
        Region {
            base: NonNull::dangling(),
            len: 0,
            id: RegionId(0),
            keep: None,
            writable: true,
            device: false,
            ledger: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Memory that is borrowed for a call. Where it is a pool's, it is known by the identity of its block.
    fn borrowed(base: NonNull<u8>, len: usize) -> Region {
        let keep = Mapping::of(base, len);
        let id = keep.as_ref().map_or_else(RegionId::next, |mapping| mapping.id);
        Region { base, len, id, keep, ..Region::blank() }
    }

    /// A part of a device's memory.
    pub(super) fn of_device(mapping: Arc<Mapping>, span: Range<usize>) -> Result<Region, LendError> {
        let (start, end, len) = (span.start, span.end, mapping.len);
        if start > end || end > len {
            return Err(LendError::OutOfBounds { start, end, len });
        }
        // It is an address to count with, and no more.
        let base = mapping.base.map_addr(|at| at.saturating_add(start));
        Ok(Region {
            base,
            len: end - start,
            id: mapping.id,
            keep: Some(mapping),
            device: true,
            ..Region::blank()
        })
    }

    pub(super) fn mapping(&self) -> Option<Arc<Mapping>> {
        self.keep.clone()
    }

    pub(super) fn into_mapping(self) -> Option<Arc<Mapping>> {
        self.keep
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Identity of the memory.
    pub fn id(&self) -> RegionId {
        self.id
    }

    /// Whether the memory belongs to the region (and may be registered for good) or is borrowed for a call.
    pub fn is_owned(&self) -> bool {
        self.keep.is_some()
    }

    /// Whether it is memory of a device (I6), which only operations with peers that
    /// [`reaches_devices`](crate::transport::Transport::reaches_devices) names a way to may be lent.
    #[inline]
    pub fn is_on_device(&self) -> bool {
        self.device
    }

    /// Address of the first byte, for registration.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// All of its memory, for registration.
    pub fn block(&self) -> Block {
        Block::new(self.id, (self.base, self.len), self.keep.clone())
    }

    /// The life of the block that it is made of; `None` for borrowed memory.
    pub fn trace(&self) -> Option<Trace> {
        self.keep.as_ref().map(|mapping| Trace(Arc::downgrade(mapping)))
    }

    /// How many leases are out.
    pub fn outstanding(&self) -> usize {
        self.ledger.len() - self.free.len()
    }

    /// Makes room for `leases` at once, so that lending them allocates nothing.
    pub fn reserve(&mut self, leases: usize) {
        self.ledger.reserve(leases.min(MAX_LEASES).saturating_sub(self.ledger.len()));
        self.free.reserve(leases.min(MAX_LEASES).saturating_sub(self.free.len()));
    }

    #[inline]
    fn check(&self, span: &Range<usize>, write: bool) -> Result<(), LendError> {
        let (start, end) = (span.start, span.end);
        if start > end || end > self.len {
            return Err(LendError::OutOfBounds { start, end, len: self.len });
        }
        if write && !self.writable {
            return Err(LendError::ReadOnly);
        }
        // Empty spans share no byte with anything.
        let overlaps = |l: &Lent| l.start.max(start) < l.end.min(end);
        let clash = self.ledger.iter().find(|l| l.live && (write || l.write) && overlaps(l));
        match clash {
            Some(l) => Err(LendError::Lent {
                start,
                end,
                other_start: l.start,
                other_end: l.end,
                other_write: l.write,
            }),
            None => Ok(()),
        }
    }

    /// I6
    #[inline]
    fn check_host(&self) -> Result<(), LendError> {
        if self.device { Err(LendError::OnDevice) } else { Ok(()) }
    }

    #[inline]
    fn lend(&mut self, span: Range<usize>, write: bool) -> Result<Span, LendError> {
        self.check(&span, write)?;
        let entry = Lent { start: span.start, end: span.end, write, live: true };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.ledger[slot as usize] = entry;
                slot
            }
            None if self.ledger.len() < MAX_LEASES => {
                self.ledger.push(entry);
                (self.ledger.len() - 1) as u32
            }
            None => return Err(LendError::TooMany),
        };
        // `check` has bounded the span by the region's length.
        let start = self.base.as_ptr().wrapping_add(span.start);
        let whole = (self.base, self.len);
        Ok(Span {
            start,
            len: span.len(),
            region: self.id,
            slot,
            whole,
            device: self.device,
            keep: self.keep.clone(),
            _shared: None,
        })
    }

    /// Lends `span` (bytes) to a reader.
    ///
    /// # Errors
    /// [`LendError`] when the span is out of bounds or any of it is lent to a writer (I1).
    pub fn lend_read(&mut self, span: Range<usize>) -> Result<ReadLease, LendError> {
        self.lend(span, false).map(ReadLease)
    }

    /// Lends `span` (bytes) to the one writer.
    ///
    /// # Errors
    /// [`LendError`] when the span is out of bounds, the region is read-only, or any of the span is lent (I1).
    pub fn lend_write(&mut self, span: Range<usize>) -> Result<WriteLease, LendError> {
        self.lend(span, true).map(WriteLease)
    }

    /// Takes a lease back.
    ///
    /// # Errors
    /// [`LendError::Foreign`] when the lease is not of this region (I4). The lease's span then stays lent.
    #[inline]
    pub fn restore(&mut self, lease: impl Into<Lease>) -> Result<(), LendError> {
        let (span, write) = match lease.into() {
            Lease::Read(ReadLease(span)) => (span, false),
            Lease::Write(WriteLease(span)) => (span, true),
        };
        match self.ledger.get_mut(span.slot as usize) {
            Some(l) if span.region == self.id && l.live && l.write == write => {
                l.live = false;
                self.free.push(span.slot);
                Ok(())
            }
            _ => Err(LendError::Foreign { expected: self.id, found: span.region }),
        }
    }

    /// Reads `span` in place.
    ///
    /// # Errors
    /// [`LendError`] when the span is out of bounds or any of it is lent to a writer, or memory of a device.
    pub fn bytes(&self, span: Range<usize>) -> Result<&[u8], LendError> {
        self.check(&span, false)?;
        self.check_host()?;
        // SAFETY: in bounds, mapped while `self` lives, and no writer has any of it (I1).
        Ok(unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(span.start), span.len()) })
    }

    /// Writes `span` in place.
    ///
    /// # Errors
    /// [`LendError`] when the span is out of bounds, the region is read-only, any of the span is lent, or it is memory of a
    /// device.
    pub fn bytes_mut(&mut self, span: Range<usize>) -> Result<&mut [u8], LendError> {
        self.check(&span, true)?;
        self.check_host()?;
        // SAFETY: in bounds, mapped while `self` lives, lent to nobody (I1), and `&mut self` excludes others.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(span.start), span.len()) })
    }
}

/// Ends the process if a borrowed region is about to be given back to its owner with leases out (I3).
struct Scope(Option<RegionId>);

impl Drop for Scope {
    fn drop(&mut self) {
        if let Some(id) = self.0 {
            // The owner would free or reuse bytes that a kernel or a device still writes.
            eprintln!(
                "ringway: borrowed memory (region {id:?}) is still lent at the end of its call: aborting"
            );
            std::process::abort();
        }
    }
}

/// Room for the ledgers of regions, one after another: lending from borrowed memory with one kept between calls
/// allocates nothing once it has grown.
#[derive(Debug, Default)]
pub struct Ledger {
    lent: Vec<Lent>,
    free: Vec<u32>,
}

fn scoped<R>(mut region: Region, ledger: &mut Ledger, f: impl FnOnce(&mut Option<Region>) -> R) -> R {
    let id = region.id;
    let mut scope = Scope(Some(id));
    region.ledger = std::mem::take(&mut ledger.lent);
    region.free = std::mem::take(&mut ledger.free);
    let mut lent = Some(region);
    let result = f(&mut lent);
    if let Some(back) = &mut lent
        && back.id == id
        && back.outstanding() == 0
    {
        scope.0 = None;
        back.ledger.clear();
        back.free.clear();
        *ledger = Ledger { lent: std::mem::take(&mut back.ledger), free: std::mem::take(&mut back.free) };
    }
    result
}

/// Runs `f` with the region itself.
fn with_region<R>(f: impl FnOnce(Region) -> (Region, R)) -> impl FnOnce(&mut Option<Region>) -> R {
    |lent| {
        let region = lent.take().unwrap_or_else(|| unreachable!("a scope begins with its region"));
        let (back, result) = f(region);
        *lent = Some(back);
        result
    }
}

/// Lends the caller's own memory as a region for the length of `f`, which must hand the region back.
///
/// # Aborts
/// The process ends (I3) if `f` unwinds, returns another region, or returns with leases out.
pub fn with_borrowed<R>(bytes: &mut [u8], f: impl FnOnce(Region) -> (Region, R)) -> R {
    with_borrowed_in(bytes, &mut Ledger::default(), f)
}

/// As [`with_borrowed`], with a ledger that the caller keeps.
///
/// # Aborts
/// As [`with_borrowed`].
pub fn with_borrowed_in<R>(
    bytes: &mut [u8],
    ledger: &mut Ledger,
    f: impl FnOnce(Region) -> (Region, R),
) -> R {
    lend_borrowed_in(bytes, ledger, with_region(f))
}

/// As [`with_borrowed_in`], with the region in a place that `f` may take it from, and must put it back into.
///
/// # Aborts
/// As [`with_borrowed`].
pub fn lend_borrowed_in<R>(
    bytes: &mut [u8],
    ledger: &mut Ledger,
    f: impl FnOnce(&mut Option<Region>) -> R,
) -> R {
    let base = NonNull::from(&mut *bytes).cast();
    scoped(Region::borrowed(base, bytes.len()), ledger, f)
}

/// As [`with_borrowed`], for memory that is only read: the region lends to readers alone.
pub fn with_shared<R>(bytes: &[u8], f: impl FnOnce(Region) -> (Region, R)) -> R {
    with_shared_in(bytes, &mut Ledger::default(), f)
}

/// As [`with_shared`], with a ledger that the caller keeps.
///
/// # Aborts
/// As [`with_borrowed`].
pub fn with_shared_in<R>(bytes: &[u8], ledger: &mut Ledger, f: impl FnOnce(Region) -> (Region, R)) -> R {
    lend_shared_in(bytes, ledger, with_region(f))
}

/// As [`with_shared_in`], with the region in a place that `f` may take it from, and must put it back into.
///
/// # Aborts
/// As [`with_borrowed`].
pub fn lend_shared_in<R>(bytes: &[u8], ledger: &mut Ledger, f: impl FnOnce(&mut Option<Region>) -> R) -> R {
    let base = NonNull::from(bytes).cast();
    scoped(Region { writable: false, ..Region::borrowed(base, bytes.len()) }, ledger, f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_readers_or_one_writer() {
        // I1
        let mut bytes = [0u8; 100];
        with_borrowed(&mut bytes, |mut r| {
            let a = r.lend_read(0..50).unwrap();
            let b = r.lend_read(10..60).unwrap();
            assert!(matches!(r.lend_write(59..61), Err(LendError::Lent { other_write: false, .. })));
            let w = r.lend_write(60..100).unwrap();
            assert!(matches!(r.lend_read(50..61), Err(LendError::Lent { other_write: true, .. })));
            assert!(r.bytes(0..60).is_ok() && r.bytes(60..61).is_err() && r.bytes_mut(0..1).is_err());
            for lease in [Lease::from(a), b.into(), w.into()] {
                r.restore(lease).unwrap();
            }
            assert!(r.bytes_mut(0..100).is_ok());
            (r, ())
        });
    }

    #[test]
    fn spans_are_bounded_and_may_be_empty() {
        let mut bytes = [0u8; 4];
        with_borrowed(&mut bytes, |mut r| {
            assert!(matches!(r.lend_read(0..5), Err(LendError::OutOfBounds { .. })));
            #[allow(clippy::reversed_empty_ranges)]
            let reversed = 3..2;
            assert!(matches!(r.lend_read(reversed), Err(LendError::OutOfBounds { .. })));
            let (a, b) = (r.lend_write(0..4).unwrap(), r.lend_write(2..2).unwrap());
            assert!(b.is_empty());
            r.restore(a).unwrap();
            r.restore(b).unwrap();
            (r, ())
        });
    }

    #[test]
    fn a_foreign_lease_changes_nothing() {
        // I4
        let (mut x, mut y) = ([0u8; 8], [0u8; 8]);
        with_borrowed(&mut x, |mut a| {
            with_borrowed(&mut y, |mut b| {
                let lease = a.lend_read(0..8).unwrap();
                assert!(matches!(b.restore(lease), Err(LendError::Foreign { .. })));
                assert_eq!((a.outstanding(), b.outstanding()), (1, 0));
                // The token is gone for good; undo by hand so that the scope may end.
                a.ledger.clear();
                (b, ())
            });
            (a, ())
        });
    }

    #[test]
    fn a_kept_ledger_starts_every_call_empty() {
        let mut ledger = Ledger::default();
        for _ in 0..3 {
            with_borrowed_in(&mut [0u8; 8], &mut ledger, |mut r| {
                assert_eq!(r.outstanding(), 0);
                let (a, b) = (r.lend_write(0..4).unwrap(), r.lend_write(4..8).unwrap());
                r.restore(a).unwrap();
                r.restore(b).unwrap();
                (r, ())
            });
            assert!(ledger.lent.capacity() >= 2 && ledger.lent.is_empty() && ledger.free.is_empty());
        }
    }

    #[test]
    fn memory_of_a_pool_is_known_again() {
        let pool = crate::memory::Pool::default();
        let mut region = pool.region(10_000).unwrap();
        let (id, block) = (region.id(), region.block());
        let bytes = region.bytes_mut(100..300).unwrap();
        with_borrowed(bytes, |r| {
            assert!(r.id() == id && r.is_owned() && r.len() == 200);
            assert_eq!((r.block().base(), r.block().len()), (block.base(), block.len()));
            (r, ())
        });
        with_shared(region.bytes(0..10_000).unwrap(), |r| {
            assert!(r.id() == id && r.is_owned());
            (r, ())
        });
        let at = (block.base(), block.len());
        assert!(Mapping::of(at.0, at.1).is_some() && Mapping::of(at.0, at.1 + 1).is_none());
        drop((pool, region, block));
        assert!(Mapping::of(at.0, 1).is_none());
        with_borrowed(&mut [0; 10], |r| {
            assert!(!r.is_owned());
            (r, ())
        });
    }

    #[test]
    fn shared_memory_is_never_written() {
        with_shared(&[1, 2, 3], |mut r| {
            assert_eq!(r.lend_write(0..1).unwrap_err(), LendError::ReadOnly);
            assert_eq!(r.bytes(1..3).unwrap(), &[2, 3]);
            (r, ())
        });
    }
}
