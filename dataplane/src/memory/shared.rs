//! Bytes that many read and nobody writes: what tensors are kept in.
//!
//! A view is a pointer, a length and a count; cloning one and taking a part of one copies no bytes. Any number of leases
//! of it may be out at once, on any threads. Whoever holds the only view of some bytes may write them again
//! ([`SharedBytes::try_into_mut`]), so that a computation can work in place.
//!
//! Small blocks come from the process's allocator, so that a scalar costs no page; from [`POOL_BYTES`] on they are a pool's,
//! which transports register. All are aligned to [`ALIGN`] bytes at least.

use super::dtype::Element;
use super::lease::{ReadLease, Span};
use super::pool::{AllocError, Pool, Shelf, put_back};
use super::region::{Region, RegionId};
use std::alloc::Layout;
use std::any::Any;
use std::fmt;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, Weak};

/// Alignment in bytes of the first byte of a block: a cache line, and the widest vector.
pub const ALIGN: usize = 64;
/// Size from which a block is a pool's. Smaller messages are copied by every transport anyway.
pub const POOL_BYTES: usize = 8 << 10;

/// Memory with one owner, counted.
#[derive(Debug)]
pub(super) struct Owned {
    base: NonNull<u8>,
    len: usize,
    of: Origin,
}

enum Origin {
    /// No bytes at all.
    Nothing,
    /// The process's allocator, with this layout.
    Heap { id: RegionId, layout: Layout },
    /// Another process's memory, mapped here to be read, and what is to be done at the end.
    Foreign { id: RegionId, _keep: Arc<dyn Any + Send + Sync>, release: Option<Release> },
    /// A pool's block, and where it goes back to.
    Pool { region: Option<Region>, home: Weak<Mutex<Shelf>>, keep_bytes: usize },
}

/// What is to be done once nobody sees foreign memory any more, from whatever thread.
pub type Release = Box<dyn FnOnce() + Send + Sync>;

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::Nothing => "Nothing",
            Origin::Heap { .. } => "Heap",
            Origin::Foreign { .. } => "Foreign",
            Origin::Pool { .. } => "Pool",
        })
    }
}

/// Bytes of another process that are mapped here to be read, and that it leaves alone until it is told otherwise.
pub struct ForeignBytes {
    base: NonNull<u8>,
    len: usize,
    keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: an address range that is only read, and its owner.
unsafe impl Send for ForeignBytes {}
// SAFETY: as above.
unsafe impl Sync for ForeignBytes {}

impl ForeignBytes {
    /// These bytes.
    ///
    /// # Safety
    /// `len` bytes from `base` on are mapped for as long as `keep` lives, aligned to [`ALIGN`], and nobody writes them
    /// before the release of [`SharedBytes::of_foreign`] was called.
    pub(crate) unsafe fn new(
        base: NonNull<u8>,
        len: usize,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> ForeignBytes {
        ForeignBytes { base, len, keep }
    }
}

// SAFETY: the memory has no tie to a thread. It is written through a sole owner (`UniqueBytes`) and else only read (I5).
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Owned {
    fn heap(len: usize) -> Result<Owned, AllocError> {
        let too_large = AllocError::TooLarge { elements: len, element_bytes: 1 };
        let layout = Layout::from_size_align(len, ALIGN).map_err(|_| too_large)?;
        if len == 0 {
            return Ok(Owned { base: NonNull::<Line>::dangling().cast(), len, of: Origin::Nothing });
        }
        // SAFETY: the layout has a size.
        let base = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) });
        let refused = || AllocError::Refused { bytes: len, why: "the allocator has none".to_owned() };
        let base = base.ok_or_else(refused)?;
        Ok(Owned { base, len, of: Origin::Heap { id: RegionId::next(), layout } })
    }

    fn pool(region: Region, (home, keep_bytes): (Weak<Mutex<Shelf>>, usize)) -> Owned {
        let (base, len) = (region.as_ptr(), region.len());
        let base = NonNull::new(base).unwrap_or(NonNull::<Line>::dangling().cast());
        Owned { base, len, of: Origin::Pool { region: Some(region), home, keep_bytes } }
    }

    fn region(&self) -> Option<&Region> {
        match &self.of {
            Origin::Pool { region, .. } => region.as_ref(),
            Origin::Nothing | Origin::Heap { .. } | Origin::Foreign { .. } => None,
        }
    }
}

/// What an empty block's address is aligned as.
#[repr(align(64))]
struct Line;

const _: () = assert!(align_of::<Line>() == ALIGN);

impl Drop for Owned {
    fn drop(&mut self) {
        match &mut self.of {
            Origin::Nothing => {}
            Origin::Foreign { release, .. } => {
                if let Some(release) = release.take() {
                    release();
                }
            }
            // SAFETY: allocated in `heap` with this layout, and this is its one owner.
            Origin::Heap { layout, .. } => unsafe { std::alloc::dealloc(self.base.as_ptr(), *layout) },
            Origin::Pool { region, home, keep_bytes } => {
                if let (Some(region), Some(home)) = (region.take(), home.upgrade()) {
                    put_back(&home, *keep_bytes, region);
                }
            }
        }
    }
}

/// The bounds of a part of `len` bytes.
///
/// # Panics
/// When it is not inside.
fn within(len: usize, range: impl RangeBounds<usize>) -> (usize, usize) {
    let start = match range.start_bound() {
        Bound::Included(at) => *at,
        Bound::Excluded(at) => at.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(at) => at.saturating_add(1),
        Bound::Excluded(at) => *at,
        Bound::Unbounded => len,
    };
    assert!(start <= end && end <= len, "bytes {start}..{end} of {len}");
    (start, end)
}

/// Read-only bytes, shared: see the [module](self).
#[derive(Clone)]
pub struct SharedBytes {
    owned: Arc<Owned>,
    start: usize,
    len: usize,
}

impl SharedBytes {
    fn whole(owned: Owned) -> SharedBytes {
        let len = owned.len;
        SharedBytes { owned: Arc::new(owned), start: 0, len }
    }

    /// A copy of `bytes`; of a size for a pool, in a block of `pool`.
    ///
    /// # Errors
    /// [`AllocError`] when there is no memory.
    pub fn copy_of(bytes: &[u8], pool: &Pool) -> Result<SharedBytes, AllocError> {
        let mut copy = UniqueBytes::new(bytes.len(), pool)?;
        copy.copy_from_slice(bytes);
        Ok(copy.freeze())
    }

    /// The region's bytes, from now on read-only. Nothing is copied; the block goes back to `pool` in the end.
    ///
    /// # Errors
    /// The region, when it is borrowed or has leases out.
    #[allow(clippy::result_large_err)]
    pub fn from_region(region: Region, pool: &Pool) -> Result<SharedBytes, Region> {
        if !region.is_owned() || region.outstanding() > 0 {
            return Err(region);
        }
        Ok(SharedBytes::of_pool(region, pool.home()))
    }

    /// Another process's bytes. `release` is called once, when the last view of them is gone.
    #[must_use]
    pub fn of_foreign(bytes: ForeignBytes, release: Release) -> SharedBytes {
        let ForeignBytes { base, len, keep } = bytes;
        let of = Origin::Foreign { id: RegionId::next(), _keep: keep, release: Some(release) };
        SharedBytes::whole(Owned { base, len, of })
    }

    /// `region` is owned, and has no leases out.
    pub(super) fn of_pool(region: Region, home: (Weak<Mutex<Shelf>>, usize)) -> SharedBytes {
        SharedBytes::whole(Owned::pool(region, home))
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the view lies within its memory, which lives as long as `owned` and is written by nobody while there is
        // a view of it (I5).
        unsafe { std::slice::from_raw_parts(self.owned.base.as_ptr().add(self.start), self.len) }
    }

    /// The bytes as elements, or `None` when they are no whole number of them or not aligned for them (which only parts
    /// can be).
    #[must_use]
    pub fn elements<T: Element>(&self) -> Option<&[T]> {
        bytemuck::try_cast_slice(self.bytes()).ok()
    }

    /// A view of a part.
    ///
    /// # Panics
    /// When `range` is not inside.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> SharedBytes {
        let (start, end) = within(self.len, range);
        SharedBytes { owned: Arc::clone(&self.owned), start: self.start + start, len: end - start }
    }

    /// Lends the bytes to an operation that reads them. Others may be lent them at the same time. The lease need not come
    /// back to anybody: dropping it gives it back.
    #[must_use]
    pub fn lend(&self) -> ReadLease {
        let base = self.owned.base;
        let (region, keep) = match &self.owned.of {
            Origin::Nothing => (RegionId::next(), None),
            Origin::Heap { id, .. } | Origin::Foreign { id, .. } => (*id, None),
            Origin::Pool { .. } => match self.owned.region() {
                Some(region) => (region.id(), region.mapping()),
                None => unreachable!("a region leaves its block as the last of it is dropped"),
            },
        };
        // SAFETY: the view lies within its memory.
        let start = unsafe { base.as_ptr().add(self.start) };
        let whole = (base, self.owned.len);
        ReadLease(Span {
            start,
            len: self.len,
            region,
            slot: NO_SLOT,
            whole,
            device: false,
            keep,
            _shared: Some(Arc::clone(&self.owned)),
        })
    }

    /// Whether this is the only view of the memory, with no lease out, and the memory is this process's own.
    #[must_use]
    pub fn is_unique(&mut self) -> bool {
        Arc::get_mut(&mut self.owned).is_some_and(|owned| !matches!(owned.of, Origin::Foreign { .. }))
    }

    /// The same bytes, to write, when this is the only view of the memory and no lease is out (I5).
    ///
    /// # Errors
    /// The view as it was, when it is not.
    pub fn try_into_mut(mut self) -> Result<UniqueBytes, SharedBytes> {
        if self.is_unique() { Ok(UniqueBytes { only: self }) } else { Err(self) }
    }

    /// Whether both are views of the same bytes of memory.
    #[must_use]
    pub fn same_memory(&self, other: &SharedBytes) -> bool {
        Arc::ptr_eq(&self.owned, &other.owned) && (self.start, self.len) == (other.start, other.len)
    }
}

/// No place in a region's ledger.
const NO_SLOT: u32 = u32::MAX;

impl Default for SharedBytes {
    /// No bytes.
    fn default() -> SharedBytes {
        let base = NonNull::<Line>::dangling().cast();
        SharedBytes::whole(Owned { base, len: 0, of: Origin::Nothing })
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes()
    }
}

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.len)
    }
}

/// Bytes that nobody else sees yet, to write; then [`freeze`](UniqueBytes::freeze) them.
pub struct UniqueBytes {
    /// The only view of its memory, with no lease out.
    only: SharedBytes,
}

impl UniqueBytes {
    /// `len` bytes, zero or left by an earlier use of the block; of a size for a pool, in a block of `pool`.
    ///
    /// # Errors
    /// [`AllocError`] when there is no memory.
    pub fn new(len: usize, pool: &Pool) -> Result<UniqueBytes, AllocError> {
        let owned =
            if len < POOL_BYTES { Owned::heap(len)? } else { Owned::pool(pool.region(len)?, pool.home()) };
        Ok(UniqueBytes { only: SharedBytes::whole(owned) })
    }

    /// `len` bytes, all zero.
    ///
    /// # Errors
    /// [`AllocError`] when there is no memory.
    pub fn zeroed(len: usize, pool: &Pool) -> Result<UniqueBytes, AllocError> {
        let mut bytes = UniqueBytes::new(len, pool)?;
        if len >= POOL_BYTES {
            bytes.fill(0);
        }
        Ok(bytes)
    }

    /// From now on read-only.
    #[must_use]
    pub fn freeze(self) -> SharedBytes {
        self.only
    }

    /// The bytes as elements, or `None` as for [`SharedBytes::elements`].
    #[must_use]
    pub fn elements<T: Element>(&self) -> Option<&[T]> {
        self.only.elements()
    }

    /// The bytes as elements to write, or `None` as for [`SharedBytes::elements`].
    #[must_use]
    pub fn elements_mut<T: Element>(&mut self) -> Option<&mut [T]> {
        bytemuck::try_cast_slice_mut(self).ok()
    }
}

impl Deref for UniqueBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.only.bytes()
    }
}

impl DerefMut for UniqueBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        let SharedBytes { owned, start, len } = &self.only;
        // SAFETY: within its memory, of which this is the only view and no lease is out (I5): it was made so, and views
        // and leases are made by `freeze` alone. `&mut self` excludes others.
        unsafe { std::slice::from_raw_parts_mut(owned.base.as_ptr().add(*start), *len) }
    }
}

impl fmt::Debug for UniqueBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueBytes({} bytes)", self.only.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Bool, HugePages};

    fn counting(len: usize, pool: &Pool) -> SharedBytes {
        let mut bytes = UniqueBytes::new(len, pool).unwrap();
        bytes.iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
        bytes.freeze()
    }

    #[test]
    fn views_and_leases_see_the_same_memory() {
        let pool = Pool::default();
        for len in [0, 1, 4, 63, POOL_BYTES - 1, POOL_BYTES, 3 << 20] {
            let all = counting(len, &pool);
            assert_eq!(all.as_ptr().addr() % ALIGN, 0);
            let part = all.slice(len / 3..);
            assert_eq!(part.as_ptr(), all[len / 3..].as_ptr());
            let (a, b) = (part.lend(), all.lend());
            assert_eq!(a.block().is_owned(), len >= POOL_BYTES, "{len}");
            std::thread::scope(|scope| {
                let all = &all;
                scope.spawn(move || assert_eq!(a.bytes(), &all[len / 3..]));
                scope.spawn(move || assert_eq!(b.bytes(), &all[..]));
            });
        }
    }

    #[test]
    fn who_is_alone_may_write() {
        // I5
        let pool = Pool::default();
        for len in [16, POOL_BYTES] {
            let one = counting(len, &pool);
            let other = one.clone();
            let one = one.try_into_mut().unwrap_err();
            drop(other);
            let lease = one.lend();
            let one = one.try_into_mut().unwrap_err();
            drop(lease);
            let at = one.as_ptr();
            let mut part = one.slice(4..8);
            assert!(!part.is_unique());
            drop(one);
            let mut part = part.try_into_mut().unwrap();
            part.fill(9);
            assert_eq!(part.freeze().as_ptr(), at.wrapping_add(4));
        }
    }

    #[test]
    fn memory_outlives_its_views_and_then_goes_back() {
        // I2, I5: a lease alone keeps the block; the next user gets it once that is gone.
        let pool = Pool::default();
        let bytes = counting(100_000, &pool);
        let (at, lease) = (bytes.as_ptr(), bytes.lend());
        drop(bytes);
        let other = counting(100_000, &pool);
        assert_ne!(other.as_ptr(), at);
        assert_eq!(lease.bytes()[99_999], 99_999usize as u8);
        drop(lease);
        assert_eq!(UniqueBytes::new(100_000, &pool).unwrap().as_ptr(), at);
        // A pool that is gone takes nothing back.
        let pool = Pool::new(0, HugePages::Off);
        let last = counting(POOL_BYTES, &pool);
        drop(pool);
        assert_eq!(last[1], 1);
    }

    #[test]
    fn buffers_and_regions_are_taken_without_a_copy() {
        let pool = Pool::default();
        let mut buffer = pool.alloc::<f32>(5000).unwrap();
        buffer[4999] = 1.5;
        let at = buffer.as_ptr();
        let shared = buffer.into_shared();
        assert_eq!(shared.elements::<f32>().unwrap()[4999], 1.5);
        assert_eq!(shared.as_ptr().cast(), at);
        let mut region = pool.region(10_000).unwrap();
        let lease = region.lend_write(0..10).unwrap();
        let mut region = SharedBytes::from_region(region, &pool).unwrap_err();
        region.restore(lease).unwrap();
        assert_eq!(SharedBytes::from_region(region, &pool).unwrap().len(), 10_000);
    }

    #[test]
    fn foreign_bytes_are_read_and_released_once() {
        #[repr(align(64))]
        struct Other([u8; 128]);
        let other: Arc<Other> = Arc::new(Other([3; 128]));
        let base = NonNull::from(&other.0).cast();
        let released = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = Arc::clone(&released);
        // SAFETY: the array lives as long as its owner, and nobody writes it.
        let foreign = unsafe { ForeignBytes::new(base, 128, other) };
        let all = SharedBytes::of_foreign(
            foreign,
            Box::new(move || {
                count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }),
        );
        let (part, lease) = (all.slice(64..), all.lend());
        assert_eq!((&all[..2], part.len(), lease.block().is_owned()), (&[3, 3][..], 64, false));
        let now = || released.load(std::sync::atomic::Ordering::Relaxed);
        drop((all, lease));
        // I5: it is not this process's to write.
        let part = part.try_into_mut().unwrap_err();
        assert_eq!(now(), 0);
        drop(part);
        assert_eq!(now(), 1);
    }

    #[test]
    fn elements_are_whole_and_aligned() {
        let pool = Pool::default();
        let mut bytes = UniqueBytes::zeroed(8, &pool).unwrap();
        bytes.elements_mut::<u16>().unwrap()[3] = 0x0101;
        let bytes = bytes.freeze();
        assert_eq!(bytes.elements::<u32>(), Some(&[0, 0x0101_0000][..]));
        assert_eq!(bytes.slice(..6).elements::<u32>(), None);
        assert_eq!(bytes.slice(1..5).elements::<u32>(), None);
        assert_eq!(bytes.elements::<Bool>().unwrap().iter().filter(|b| b.get()).count(), 2);
        let copy = SharedBytes::copy_of(&bytes, &pool).unwrap();
        assert!(
            copy.bytes() == bytes.bytes() && !copy.same_memory(&bytes) && bytes.same_memory(&bytes.clone())
        );
        assert!(SharedBytes::default().is_empty() && UniqueBytes::zeroed(usize::MAX, &pool).is_err());
    }
}
