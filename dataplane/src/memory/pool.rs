//! Page-aligned blocks, faulted in before use and used again and again.
//!
//! A first touch costs about 3 GB/s on common machines (23 GB/s with transparent huge pages), far below the wire, so
//! a block is faulted in when it is mapped and kept when it is given back.

use super::dtype::Element;
use super::region::{Mapping, Region, RegionId};
use super::room::room;
use super::shared::SharedBytes;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Size of the pages that blocks are rounded up to, and their alignment.
pub const PAGE_BYTES: usize = 4096;
/// Size from which a block is rounded to, and advised to use, huge pages.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Free blocks are kept up to this many bytes; beyond it they are unmapped as they come back.
pub const DEFAULT_KEEP_BYTES: usize = 256 << 20;
/// Most bytes that are faulted in by one call. The kernel holds the lock of the whole address space meanwhile, so for as
/// long every other thread that maps or first touches memory waits: seconds, for one block of several GiB.
pub const FAULT_STEP_BYTES: usize = 32 << 20;

/// Whether blocks of [`HUGE_PAGE_BYTES`] and more ask for transparent huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HugePages {
    /// Ask, and go on with small pages where the kernel declines.
    #[default]
    Auto,
    /// Do not ask.
    Off,
}

/// Why memory was not to be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// The byte count overflows the address space.
    #[error("{elements} elements of {element_bytes} bytes do not fit an address space")]
    TooLarge {
        /// Elements asked for.
        elements: usize,
        /// Size of each.
        element_bytes: usize,
    },
    /// The machine, or what is left of it to this process, has not so much.
    #[error(
        "{bytes} bytes are more than the {left_bytes} that this process may still take of its machine's memory: free \
         some, raise its limit (cgroup), or cut the work into smaller parts"
    )]
    NoRoom {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes that may be taken.
        left_bytes: u64,
    },
    /// The kernel refused.
    #[error(
        "the kernel refused to map {bytes} bytes ({why}): free memory, or raise the limit (ulimit -v, cgroup)"
    )]
    Refused {
        /// Bytes asked for.
        bytes: usize,
        /// The kernel's error.
        why: String,
    },
}

#[derive(Debug, Default)]
pub(super) struct Shelf {
    free: BTreeMap<usize, Vec<Arc<Mapping>>>,
    kept_bytes: usize,
}

/// Hands out blocks and takes them back. Cheap to clone; clones share the blocks.
#[derive(Clone, Debug)]
pub struct Pool {
    shelf: Arc<Mutex<Shelf>>,
    keep_bytes: usize,
    huge: HugePages,
}

impl Default for Pool {
    fn default() -> Pool {
        Pool::new(DEFAULT_KEEP_BYTES, HugePages::Auto)
    }
}

impl Pool {
    /// A pool that keeps up to `keep_bytes` of free blocks.
    pub fn new(keep_bytes: usize, huge: HugePages) -> Pool {
        Pool { shelf: Arc::default(), keep_bytes, huge }
    }

    /// What a block needs to find back here.
    pub(super) fn home(&self) -> (Weak<Mutex<Shelf>>, usize) {
        (Arc::downgrade(&self.shelf), self.keep_bytes)
    }

    fn shelf(shelf: &Mutex<Shelf>) -> MutexGuard<'_, Shelf> {
        // A panic while the lock was held leaves at worst a block unlisted, which is unmapped by its owner.
        shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rounded(bytes: usize) -> Option<usize> {
        let unit = if bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { PAGE_BYTES };
        bytes.max(1).checked_next_multiple_of(unit)
    }

    fn block(&self, bytes: usize) -> Result<Arc<Mapping>, AllocError> {
        let size = Pool::rounded(bytes)
            .filter(|s| isize::try_from(*s).is_ok())
            .ok_or(AllocError::TooLarge { elements: bytes, element_bytes: 1 })?;
        let mut shelf = Pool::shelf(&self.shelf);
        if let Some(block) = shelf.free.get_mut(&size).and_then(Vec::pop) {
            shelf.kept_bytes -= size;
            return Ok(block);
        }
        drop(shelf);
        map(size, self.huge)
    }

    /// A region of `bytes`, zeroed when new and with old contents when reused.
    ///
    /// # Errors
    /// [`AllocError`] when the kernel refuses.
    pub fn region(&self, bytes: usize) -> Result<Region, AllocError> {
        Ok(Region::owned(self.block(bytes)?, bytes))
    }

    /// Takes a region's block back for reuse. A block with leases out, or past the limit, is unmapped when its last
    /// holder lets go.
    pub fn recycle(&self, region: Region) {
        put_back(&self.shelf, self.keep_bytes, region);
    }

    /// A buffer of `len` elements, all zero.
    ///
    /// # Errors
    /// [`AllocError`] when the size overflows or the kernel refuses.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Buffer<T>, AllocError> {
        let element_bytes = size_of::<T>();
        let bytes =
            len.checked_mul(element_bytes).ok_or(AllocError::TooLarge { elements: len, element_bytes })?;
        let region = self.region(bytes)?;
        let mut buffer = Buffer {
            region: Some(region),
            len,
            home: Arc::downgrade(&self.shelf),
            keep_bytes: self.keep_bytes,
            of: PhantomData,
        };
        buffer.fill(T::zeroed());
        Ok(buffer)
    }
}

pub(super) fn put_back(shelf: &Mutex<Shelf>, keep_bytes: usize, region: Region) {
    if region.outstanding() > 0 || region.is_on_device() {
        return;
    }
    let Some(block) = region.into_mapping() else { return };
    let mut shelf = Pool::shelf(shelf);
    if block.is_free() && shelf.kept_bytes + block.len <= keep_bytes {
        shelf.kept_bytes += block.len;
        shelf.free.entry(block.len).or_default().push(block);
    }
}

/// Maps `size` bytes (a multiple of the page size), faulted in.
fn map(size: usize, huge: HugePages) -> Result<Arc<Mapping>, AllocError> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    let refused = |e: rustix::io::Errno| AllocError::Refused { bytes: size, why: e.to_string() };
    let _room = room(size)?;
    if let Some(base) = super::arena::allocate(size, huge == HugePages::Auto) {
        return Ok(Mapping::new(base, size));
    }
    let aligned = size >= HUGE_PAGE_BYTES;
    // Over-map so that the block can start on a huge page.
    let total = if aligned { size.checked_add(HUGE_PAGE_BYTES) } else { Some(size) }
        .ok_or(AllocError::TooLarge { elements: size, element_bytes: 1 })?;
    // SAFETY: a fresh anonymous mapping, of which nothing else knows.
    let start = unsafe {
        mmap_anonymous(std::ptr::null_mut(), total, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }
    .map_err(refused)?
    .cast::<u8>();
    let head = if aligned { start.align_offset(HUGE_PAGE_BYTES) } else { 0 };
    // SAFETY: `head + size <= total`; the trimmed ends are whole pages of the mapping made above.
    let base = unsafe {
        let base = start.add(head);
        let tail = total - head - size;
        if head > 0 {
            munmap(start.cast(), head).map_err(refused)?;
        }
        if tail > 0 {
            munmap(base.add(size).cast(), tail).map_err(refused)?;
        }
        base
    };
    let base = NonNull::new(base).ok_or(AllocError::Refused { bytes: size, why: "null mapping".into() })?;
    let mapping = Mapping::new(base, size);
    if aligned && huge == HugePages::Auto {
        // SAFETY: the range is the mapping just made. A refusal only means small pages.
        let _ = unsafe { madvise(base.as_ptr().cast(), size, Advice::LinuxHugepage) };
    }
    for (at, len) in steps(size) {
        // SAFETY: the range lies in the mapping just made. Faulting in early is a courtesy: an old kernel without
        // MADV_POPULATE_WRITE faults on first touch instead, which `Pool::alloc` does by zeroing.
        let done = unsafe { madvise(base.as_ptr().add(at).cast(), len, Advice::LinuxPopulateWrite) };
        if done.is_err() {
            break;
        }
    }
    Ok(mapping)
}

/// The pieces, of at most [`FAULT_STEP_BYTES`], in which `size` bytes are faulted in: where each begins and its length.
pub(super) fn steps(size: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..size).step_by(FAULT_STEP_BYTES).map(move |at| (at, (size - at).min(FAULT_STEP_BYTES)))
}

/// `len` elements in a pool's block: page-aligned, faulted in, registrable; given back to the pool when dropped.
#[derive(Debug)]
pub struct Buffer<T: Element> {
    region: Option<Region>,
    len: usize,
    home: Weak<Mutex<Shelf>>,
    keep_bytes: usize,
    of: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    /// Splits the buffer into its region, to lend from, and the claim to get the buffer back with.
    pub fn into_region(mut self) -> (Region, Claim<T>) {
        let region = self.region.take().unwrap_or_else(|| unreachable!("a live buffer has its region"));
        let claim = Claim {
            id: region.id(),
            len: self.len,
            home: std::mem::take(&mut self.home),
            keep_bytes: self.keep_bytes,
            of: PhantomData,
        };
        (region, claim)
    }

    /// The bytes, to be read by many from now on. Nothing is copied.
    pub fn into_shared(mut self) -> SharedBytes {
        let region = self.region.take().unwrap_or_else(|| unreachable!("a live buffer has its region"));
        SharedBytes::of_pool(region, (std::mem::take(&mut self.home), self.keep_bytes))
    }

    fn live(&self) -> &Region {
        self.region.as_ref().unwrap_or_else(|| unreachable!("a live buffer has its region"))
    }
}

impl<T: Element> Drop for Buffer<T> {
    fn drop(&mut self) {
        if let (Some(region), Some(home)) = (self.region.take(), self.home.upgrade()) {
            put_back(&home, self.keep_bytes, region);
        }
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let region = self.live();
        debug_assert_eq!(region.outstanding(), 0);
        // SAFETY: the region holds `len` elements, page-aligned, of a type that any bits may fill; a buffer's region
        // has no leases out (they are made after `into_region`, and `Claim::redeem` checks).
        unsafe { std::slice::from_raw_parts(region.as_ptr().cast(), self.len) }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let region = self.live();
        // SAFETY: as in `deref`, under `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(region.as_ptr().cast(), self.len) }
    }
}

/// What turns a region back into the typed buffer it was.
#[derive(Debug)]
pub struct Claim<T: Element> {
    id: RegionId,
    len: usize,
    home: Weak<Mutex<Shelf>>,
    keep_bytes: usize,
    of: PhantomData<T>,
}

impl<T: Element> Claim<T> {
    /// The buffer again, or `None` when `region` is another one or has leases out.
    pub fn redeem(self, region: Region) -> Option<Buffer<T>> {
        let fits = region.id() == self.id && region.outstanding() == 0 && region.is_owned();
        fits.then(|| Buffer {
            region: Some(region),
            len: self.len,
            home: self.home,
            keep_bytes: self.keep_bytes,
            of: PhantomData,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_zeroed_and_used_again() {
        let pool = Pool::default();
        let mut a = pool.alloc::<f32>(3 << 20).unwrap();
        assert_eq!(a.as_ptr() as usize % HUGE_PAGE_BYTES, 0);
        a[5] = 1.0;
        let at = a.as_ptr();
        let id = a.live().id();
        drop(a);
        let b = pool.alloc::<f32>(3 << 20).unwrap();
        assert_eq!((b.as_ptr(), b.live().id()), (at, id));
        assert!(b.iter().all(|x| *x == 0.0));
    }

    #[test]
    fn a_lease_outlives_its_region() {
        // I2: the pages stay mapped, and the block is not handed out again.
        let pool = Pool::default();
        let (mut region, claim) = pool.alloc::<u8>(100).unwrap().into_region();
        let mut lease = region.lend_write(0..100).unwrap();
        assert!(claim.redeem(region).is_none());
        lease.bytes_mut().fill(7);
        let other = pool.alloc::<u8>(100).unwrap();
        assert_ne!(other.as_ptr().cast_mut(), lease.as_ptr());
        assert_eq!(lease.bytes()[99], 7);
    }

    #[test]
    fn a_registered_block_is_used_again() {
        let pool = Pool::default();
        let (mut region, _) = pool.alloc::<u8>(100).unwrap().into_region();
        let lease = region.lend_read(0..100).unwrap();
        let (registered, again) = (lease.block(), region.block().clone());
        drop(again);
        region.restore(lease).unwrap();
        let at = region.as_ptr();
        pool.recycle(region);
        assert!(!registered.is_orphan(), "the pool has it");
        assert_eq!(pool.region(100).unwrap().as_ptr(), at);
        assert!(registered.is_orphan());
    }

    #[test]
    fn a_claim_needs_its_own_region() {
        let pool = Pool::default();
        let (a, of_a) = pool.alloc::<u8>(10).unwrap().into_region();
        let (b, of_b) = pool.alloc::<u8>(10).unwrap().into_region();
        assert!(of_a.redeem(b).is_none());
        assert!(of_b.redeem(a).is_none());
    }

    #[test]
    fn absurd_sizes_are_errors() {
        let pool = Pool::default();
        assert!(matches!(pool.alloc::<f64>(usize::MAX / 2), Err(AllocError::TooLarge { .. })));
        assert!(pool.alloc::<u8>(1 << 46).is_err());
        assert_eq!(pool.alloc::<u8>(0).unwrap().len(), 0);
    }

    #[test]
    fn blocks_are_faulted_in_piece_by_piece_and_whole() {
        for size in [1, PAGE_BYTES, FAULT_STEP_BYTES, FAULT_STEP_BYTES + PAGE_BYTES, 5 * FAULT_STEP_BYTES] {
            let mut end = 0;
            for (at, len) in steps(size) {
                assert_eq!(at, end, "no gap in {size}");
                assert!((1..=FAULT_STEP_BYTES).contains(&len));
                end += len;
            }
            assert_eq!(end, size);
        }
    }

    #[test]
    fn kept_bytes_are_bounded() {
        let pool = Pool::new(PAGE_BYTES, HugePages::Off);
        let (a, b) = (pool.region(10).unwrap(), pool.region(10).unwrap());
        pool.recycle(a);
        pool.recycle(b);
        assert_eq!(Pool::shelf(&pool.shelf).kept_bytes, PAGE_BYTES);
    }
}
