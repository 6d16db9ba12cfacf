//! One file in memory that holds the blocks of every pool, so that another process of this host can be shown them all by
//! one descriptor and one mapping.
//!
//! Its size is the machine's memory, and none of it is backed until a block is. A block that is given back to the system
//! leaves a hole. Nothing of it is in a file system: `/dev/shm` and its size do not matter, and the kernel frees it with
//! the last process that has it mapped.

use super::pool::{HUGE_PAGE_BYTES, PAGE_BYTES, steps};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Smallest arena in bytes, however little memory the machine has.
pub const LEAST_ARENA_BYTES: usize = 1 << 30;
/// Largest arena in bytes; further blocks are private.
pub const MAX_ARENA_BYTES: usize = 1 << 40;
/// `MADV_COLLAPSE`, which rustix does not name: makes huge pages of a range now.
const COLLAPSE: i32 = 25;

/// The arena of this process.
#[derive(Debug)]
struct Arena {
    file: OwnedFd,
    base: NonNull<u8>,
    len: usize,
    /// Free ranges, by where they begin; neighbours are one.
    free: Mutex<BTreeMap<usize, usize>>,
}

// SAFETY: an address range that stays mapped for the life of the process, and a ledger under a lock. Who may touch which
// byte is its regions' business (I1).
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

static ARENA: OnceLock<Arena> = OnceLock::new();

/// Lets the blocks that pools make from now on be shown to other processes of this host. Doing it again changes nothing.
/// Returns the file to show, and its length in bytes.
///
/// # Errors
/// When the system refuses the file or the address space.
pub fn share_blocks() -> io::Result<(BorrowedFd<'static>, usize)> {
    static MAKING: Mutex<()> = Mutex::new(());
    let making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let arena = match ARENA.get() {
        Some(arena) => arena,
        None => {
            let arena = Arena::new(wanted_bytes())?;
            ARENA.get_or_init(|| arena)
        }
    };
    drop(making);
    Ok((arena.file.as_fd(), arena.len))
}

/// Where in the shared file these bytes are; `None` when they are not in it.
pub fn place_in_arena(start: *const u8, len: usize) -> Option<u64> {
    let arena = ARENA.get()?;
    let offset = start.addr().checked_sub(arena.base.as_ptr().addr())?;
    (offset < arena.len && len <= arena.len - offset).then_some(offset as u64)
}

fn wanted_bytes() -> usize {
    let memory = rustix::system::sysinfo();
    let bytes = usize::try_from(memory.totalram).unwrap_or(usize::MAX);
    let bytes = bytes.saturating_mul((memory.mem_unit as usize).max(1));
    bytes.clamp(LEAST_ARENA_BYTES, MAX_ARENA_BYTES).next_multiple_of(HUGE_PAGE_BYTES)
}

impl Arena {
    fn new(len: usize) -> io::Result<Arena> {
        super::room::within_file_limit(len)?;
        let file = memfd_create("ringway-blocks", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, len as u64)?;
        // Whoever maps it can rely on its length.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let base = map_aligned(file.as_fd(), len, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(Arena { file, base, len, free: Mutex::new(BTreeMap::from([(0, len)])) })
    }

    /// Takes `size` bytes of the first free range that has them.
    fn take(&self, size: usize) -> Option<usize> {
        let align = if size >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { PAGE_BYTES };
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, len, at) = free.iter().find_map(|(start, len)| {
            let at = start.next_multiple_of(align);
            (at - start <= *len && size <= len - (at - start)).then_some((*start, *len, at))
        })?;
        free.remove(&start);
        if at > start {
            free.insert(start, at - start);
        }
        let rest = start + len - (at + size);
        if rest > 0 {
            free.insert(at + size, rest);
        }
        Some(at)
    }

    fn give(&self, at: usize, size: usize) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut start, mut end) = (at, at + size);
        if let Some((before, len)) = free.range(..at).next_back().map(|(s, l)| (*s, *l))
            && before + len == at
        {
            free.remove(&before);
            start = before;
        }
        if let Some(len) = free.remove(&end) {
            end += len;
        }
        free.insert(start, end - start);
    }
}

/// Maps all of a file, so that its huge pages are huge pages here too.
pub(crate) fn map_aligned(file: BorrowedFd<'_>, len: usize, access: ProtFlags) -> io::Result<NonNull<u8>> {
    let total = len.checked_add(HUGE_PAGE_BYTES).ok_or_else(|| io::Error::other("too long to be mapped"))?;
    // SAFETY: a fresh reservation of addresses, of which nothing else knows.
    let start = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            total,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    }?
    .cast::<u8>();
    let head = start.align_offset(HUGE_PAGE_BYTES);
    // SAFETY: `head + len <= total`: the file replaces part of the reservation, and the rest is given up.
    unsafe {
        let base = start.add(head);
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
        if let Err(e) = mmap(base.cast(), len, access, flags, file, 0) {
            munmap(start.cast(), total)?;
            return Err(e.into());
        }
        if head > 0 {
            munmap(start.cast(), head)?;
        }
        if total - head > len {
            munmap(base.add(len).cast(), total - head - len)?;
        }
        NonNull::new(base).ok_or_else(|| io::Error::other("mapped at address 0"))
    }
}

/// Takes a block out of the arena, faulted in and all zero. `None` when blocks are not shared, or it is full.
pub(super) fn allocate(size: usize, huge: bool) -> Option<NonNull<u8>> {
    let arena = ARENA.get()?;
    let at = arena.take(size)?;
    // SAFETY: within the arena.
    let base = unsafe { arena.base.as_ptr().add(at) };
    if huge && size >= HUGE_PAGE_BYTES {
        // SAFETY: the range is the block's own. A refusal only means small pages. rustix has no name for this advice.
        unsafe { libc::madvise(base.cast(), size, COLLAPSE) };
    }
    for (from, len) in steps(size) {
        // SAFETY: the range lies in the block, which is the caller's own.
        match unsafe { madvise(base.add(from).cast(), len, Advice::LinuxPopulateWrite) } {
            Ok(()) => {}
            // An old kernel, without this advice, faults on first touch.
            Err(rustix::io::Errno::INVAL) => break,
            Err(_) => {
                release(base, size);
                return None;
            }
        }
    }
    NonNull::new(base)
}

/// Gives a block back, if it is the arena's: its memory goes to the system. `false`: it is not.
pub(super) fn release(base: *mut u8, size: usize) -> bool {
    let (Some(at), Some(arena)) = (place_in_arena(base, size), ARENA.get()) else { return false };
    // SAFETY: the range is a block of the arena that its last owner gives up; what reads of it later is zero.
    match unsafe { madvise(base.cast(), size, Advice::LinuxRemove) } {
        Ok(()) => arena.give(at as usize, size),
        // It is lost to the arena rather than handed out with old contents.
        Err(e) => tracing::error!("a block of {size} bytes was not given back: {e}"),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_split_and_joined() {
        let arena = Arena::new(8 * HUGE_PAGE_BYTES).unwrap();
        let free = || arena.free.lock().unwrap().clone();
        let small = arena.take(PAGE_BYTES).unwrap();
        let large = arena.take(3 * HUGE_PAGE_BYTES).unwrap();
        assert_eq!((small, large), (0, HUGE_PAGE_BYTES));
        let second = arena.take(2 * PAGE_BYTES).unwrap();
        assert_eq!(second, PAGE_BYTES);
        assert_eq!(arena.take(5 * HUGE_PAGE_BYTES), None);
        arena.give(small, PAGE_BYTES);
        arena.give(large, 3 * HUGE_PAGE_BYTES);
        assert_eq!(free().len(), 2);
        arena.give(second, 2 * PAGE_BYTES);
        assert_eq!(free(), BTreeMap::from([(0, 8 * HUGE_PAGE_BYTES)]));
    }

    #[test]
    fn blocks_are_in_the_file_and_their_memory_goes_back() {
        let (file, len) = share_blocks().unwrap();
        assert_eq!(share_blocks().unwrap().1, len);
        let pool = crate::memory::Pool::new(0, crate::memory::HugePages::Auto);
        let mut region = pool.region(3 << 20).unwrap();
        region.bytes_mut(0..3 << 20).unwrap().fill(7);
        let at = place_in_arena(region.as_ptr(), region.len()).unwrap();
        assert!(at.is_multiple_of(HUGE_PAGE_BYTES as u64));
        assert_eq!(place_in_arena(region.as_ptr(), len + 1), None);
        let read = |at: u64| {
            let mut byte = [0u8];
            rustix::io::pread(file, &mut byte, at).unwrap();
            byte[0]
        };
        assert_eq!(read(at + 5), 7);
        drop(region);
        assert_eq!(read(at + 5), 0);
    }
}
