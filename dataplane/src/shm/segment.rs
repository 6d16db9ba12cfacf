//! Memory that this process shows to others, and memory of theirs that is mapped here.
//!
//! Every file is in memory alone (memfd) and sealed in its length, so that no peer can make a read or write of it fail
//! (SIGBUS) by cutting it short. What a peer's file is must be checked before it is mapped ([`check`]).
//!
//! A ring is mapped twice, one right after the other, so that what wraps around is in one piece here.

use super::queue::{Consumer, Corrupt, Lane, Producer};
use super::wire::HEADER_BYTES;
use crate::memory::ForeignBytes;
use crate::memory::arena::map_aligned;
use crate::memory::room::within_file_limit;
use crate::memory::shared::ALIGN;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Size of one direction's ring in bytes: it stays in the second-level cache (measured: 256 KiB streams at 20 GB/s, 1 MiB
/// at 12).
pub(super) const RING_BYTES: usize = 256 << 10;
/// What the shared words of both directions take, before the rings.
const WORDS_BYTES: usize = 4096;
/// Size of a connection's file.
const FILE_BYTES: usize = WORDS_BYTES + 2 * RING_BYTES;
/// Size of the file with a process's word.
const BELL_BYTES: usize = 4096;

const _: () = assert!(2 * size_of::<Lane<AtomicU64>>() <= WORDS_BYTES);
const _: () = assert!(RING_BYTES.is_power_of_two() && RING_BYTES.is_multiple_of(4096));

/// An address range that is unmapped with its last owner.
#[derive(Debug)]
struct Range {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address range; what is in it is reached by atomics and by copies that the queue's rules order (Q1).
unsafe impl Send for Range {}
// SAFETY: as above.
unsafe impl Sync for Range {}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: the range was mapped for this owner, which nothing outlives.
        if let Err(e) = unsafe { munmap(self.base.as_ptr().cast(), self.len) } {
            tracing::error!("munmap of {} bytes failed: {e}", self.len);
        }
    }
}

fn sealed(name: &str, len: usize) -> io::Result<OwnedFd> {
    within_file_limit(len)?;
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, len as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// The length of a peer's file, which can be relied on.
///
/// # Errors
/// When it could be cut short.
pub(super) fn check(file: impl AsFd) -> io::Result<usize> {
    let file = file.as_fd();
    if !fcntl_get_seals(file)?.contains(SealFlags::SHRINK) {
        return Err(io::Error::other("a shared file is not sealed in its length"));
    }
    usize::try_from(fstat(file)?.st_size).map_err(|_| io::Error::other("a shared file is too long"))
}

fn expect(file: &OwnedFd, len: usize) -> io::Result<()> {
    match check(file)? {
        found if found == len => Ok(()),
        found => Err(io::Error::other(format!("a shared file has {found} bytes instead of {len}"))),
    }
}

/// Both directions between two processes.
#[derive(Debug)]
pub(super) struct Segment {
    range: Arc<Range>,
}

impl Segment {
    /// A new one, and the file to show to the peer.
    pub(super) fn new() -> io::Result<(Segment, OwnedFd)> {
        let file = sealed("ringway-queue", FILE_BYTES)?;
        Ok((Segment::map(file.as_fd())?, file))
    }

    /// The peer's.
    pub(super) fn of_peer(file: &OwnedFd) -> io::Result<Segment> {
        expect(file, FILE_BYTES)?;
        Segment::map(file.as_fd())
    }

    fn map(file: BorrowedFd<'_>) -> io::Result<Segment> {
        let len = WORDS_BYTES + 4 * RING_BYTES;
        // SAFETY: a fresh reservation of addresses, of which nothing else knows.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE)?.cast::<u8>()
        };
        let base = NonNull::new(base).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        let range = Range { base, len };
        let place = |at: usize, bytes: usize, from: usize| {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
            // SAFETY: `at + bytes <= len`, within the reservation made above.
            unsafe { mmap(base.as_ptr().add(at).cast(), bytes, access, flags, file, from as u64) }
        };
        place(0, WORDS_BYTES, 0)?;
        for lane in 0..2 {
            let (at, from) = (WORDS_BYTES + 2 * lane * RING_BYTES, WORDS_BYTES + lane * RING_BYTES);
            place(at, RING_BYTES, from)?;
            place(at + RING_BYTES, RING_BYTES, from)?;
        }
        Ok(Segment { range: Arc::new(range) })
    }

    /// The ends of this side: who made the segment sends on its first lane.
    pub(super) fn ends(self, maker: bool) -> (Outlet, Inlet) {
        let (out, into) = if maker { (0, 1) } else { (1, 0) };
        let capacity = RING_BYTES as u64;
        let outlet = Outlet { ring: Ring::new(&self.range, out), end: Producer::new(capacity) };
        let inlet = Inlet { ring: Ring::new(&self.range, into), end: Consumer::new(capacity) };
        (outlet, inlet)
    }
}

/// One lane's words and bytes.
#[derive(Debug)]
struct Ring {
    range: Arc<Range>,
    lane: usize,
}

impl Ring {
    fn new(range: &Arc<Range>, lane: usize) -> Ring {
        Ring { range: Arc::clone(range), lane }
    }

    fn words(&self) -> &Lane<AtomicU64> {
        let at = self.lane * size_of::<Lane<AtomicU64>>();
        // SAFETY: within the words' page, which is mapped for as long as the range lives, aligned for a lane, and zero or
        // what atomics have written; all bits are valid.
        unsafe { &*self.range.base.as_ptr().add(at).cast::<Lane<AtomicU64>>() }
    }

    /// The byte at `position`, from which [`RING_BYTES`] are mapped in a row.
    fn at(&self, position: u64) -> *mut u8 {
        let at = WORDS_BYTES + 2 * self.lane * RING_BYTES + (position as usize & (RING_BYTES - 1));
        // SAFETY: within the range, whatever the position.
        unsafe { self.range.base.as_ptr().add(at) }
    }
}

/// Length of a record: its header and payload, to the next cache line.
pub(super) fn record_bytes(payload: usize) -> usize {
    HEADER_BYTES + payload.next_multiple_of(64)
}

/// The writing end of a connection.
#[derive(Debug)]
pub(super) struct Outlet {
    ring: Ring,
    end: Producer,
}

impl Outlet {
    /// Whether a record with this much payload fits.
    pub(super) fn has_room(&mut self, payload: usize) -> Result<bool, Corrupt> {
        self.end.has_room(self.ring.words(), record_bytes(payload) as u64)
    }

    /// Asks to be roused when there is room.
    pub(super) fn ask_for_room(&mut self) {
        self.end.ask_for_room(self.ring.words());
    }

    /// Writes and publishes a record for which [`Self::has_room`] has found room.
    ///
    /// # Panics
    /// When the payload is longer than a ring.
    pub(super) fn push(&mut self, header: &[u8; HEADER_BYTES], payload: &[u8]) {
        assert!(record_bytes(payload.len()) <= RING_BYTES, "a record of {} bytes", payload.len());
        let at = self.ring.at(self.end.position());
        // SAFETY: the consumer has released these bytes (Q1), of which a whole ring is mapped in a row from any position.
        unsafe {
            std::ptr::copy_nonoverlapping(header.as_ptr(), at, HEADER_BYTES);
            std::ptr::copy_nonoverlapping(payload.as_ptr(), at.add(HEADER_BYTES), payload.len());
        }
        self.end.publish(self.ring.words(), record_bytes(payload.len()) as u64);
    }

    /// Says that what was shown may change from now on.
    pub(super) fn close(&self) {
        self.end.close(self.ring.words());
    }
}

/// The reading end of a connection.
#[derive(Debug)]
pub(super) struct Inlet {
    ring: Ring,
    end: Consumer,
}

impl Inlet {
    /// The next record's header, copied out once: what it says is not read again from memory that the peer may change.
    pub(super) fn header(&mut self) -> Result<Option<[u8; HEADER_BYTES]>, Corrupt> {
        let published = self.end.available(self.ring.words())?;
        if published == 0 {
            return Ok(None);
        }
        if published < HEADER_BYTES as u64 {
            return Err(Corrupt::Record { record: HEADER_BYTES as u64, published });
        }
        let mut header = [0; HEADER_BYTES];
        self.copy(0, &mut header);
        Ok(Some(header))
    }

    /// Whether all of a record with this much payload was published.
    pub(super) fn check(&mut self, payload: usize) -> Result<(), Corrupt> {
        let (record, published) = (record_bytes(payload) as u64, self.end.available(self.ring.words())?);
        if record > published { Err(Corrupt::Record { record, published }) } else { Ok(()) }
    }

    fn copy(&self, from: usize, into: &mut [u8]) {
        debug_assert!(from + into.len() <= RING_BYTES);
        let at = self.ring.at(self.end.position() + from as u64);
        // SAFETY: from any position a whole ring is mapped in a row; the bytes are published (Q1). A peer that breaks the
        // rules changes what is copied, and nothing else.
        unsafe { std::ptr::copy_nonoverlapping(at, into.as_mut_ptr(), into.len()) }
    }

    /// Copies out the first bytes of the record's payload, which [`Self::check`] has found.
    ///
    /// # Panics
    /// When they are more than a ring holds.
    pub(super) fn payload(&self, into: &mut [u8]) {
        assert!(record_bytes(into.len()) <= RING_BYTES, "a payload of {} bytes", into.len());
        self.copy(HEADER_BYTES, into);
    }

    /// The record's payload where it lies, which [`Self::check`] has found. The peer may change it: what is decided by it is
    /// decided once.
    ///
    /// # Panics
    /// When it is more than a ring holds.
    pub(super) fn lend(&self, payload: usize) -> &[u8] {
        assert!(record_bytes(payload) <= RING_BYTES, "a payload of {payload} bytes");
        let at = self.ring.at(self.end.position() + HEADER_BYTES as u64);
        // SAFETY: from any position a whole ring is mapped in a row; the bytes are published, and not given back while this
        // is borrowed (Q1). A peer that breaks the rules spoils what is read, and nothing else: all bits are valid.
        unsafe { std::slice::from_raw_parts(at, payload) }
    }

    /// The record is read.
    pub(super) fn advance(&mut self, payload: usize) -> Result<(), Corrupt> {
        self.end.advance(record_bytes(payload) as u64)
    }

    /// Bytes that were read and not given back.
    pub(super) fn unreleased(&self) -> u64 {
        self.end.unreleased()
    }

    /// Gives room back. Returns whether the peer waits to be roused for it.
    pub(super) fn release(&mut self) -> bool {
        if self.end.unreleased() == 0 {
            return false;
        }
        self.end.release(self.ring.words());
        self.end.is_room_wanted(self.ring.words())
    }

    /// Whether there is something that was not read.
    pub(super) fn has_news(&self) -> bool {
        self.end.has_news(self.ring.words())
    }

    /// Whether what the peer has shown may have changed before it was read.
    pub(super) fn is_closed(&self) -> bool {
        self.end.is_closed(self.ring.words())
    }
}

/// A process's word, which says whether it sleeps.
#[derive(Debug)]
pub(super) struct Bell {
    range: Range,
}

impl Bell {
    /// This process's, and the file to show.
    pub(super) fn new() -> io::Result<(Bell, OwnedFd)> {
        let file = sealed("ringway-bell", BELL_BYTES)?;
        Ok((Bell::map(file.as_fd(), ProtFlags::READ | ProtFlags::WRITE)?, file))
    }

    /// A peer's, to read.
    pub(super) fn of_peer(file: &OwnedFd) -> io::Result<Bell> {
        expect(file, BELL_BYTES)?;
        Bell::map(file.as_fd(), ProtFlags::READ)
    }

    fn map(file: BorrowedFd<'_>, access: ProtFlags) -> io::Result<Bell> {
        // SAFETY: a fresh mapping, of which nothing else knows.
        let base = unsafe { mmap(std::ptr::null_mut(), BELL_BYTES, access, MapFlags::SHARED, file, 0)? };
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Bell { range: Range { base, len: BELL_BYTES } })
    }

    /// The word. A peer's is only read.
    pub(super) fn word(&self) -> &AtomicU64 {
        // SAFETY: mapped for as long as `self` lives, aligned, and of a type that all bits are valid for.
        unsafe { &*self.range.base.as_ptr().cast::<AtomicU64>() }
    }
}

/// A peer's blocks, mapped here to be read.
#[derive(Debug)]
pub(super) struct Window {
    range: Range,
}

impl Window {
    /// Of this file.
    pub(super) fn new(file: &OwnedFd) -> io::Result<Window> {
        let len = check(file)?;
        Ok(Window { range: Range { base: map_aligned(file.as_fd(), len, ProtFlags::READ)?, len } })
    }

    /// Where these bytes are, if they are all in it.
    fn find(&self, offset: u64, bytes: usize) -> Option<usize> {
        let at = usize::try_from(offset).ok()?;
        (at <= self.range.len && bytes <= self.range.len - at).then_some(at)
    }

    /// Bytes where they lie; `None`: they are not all in it. The peer may change them: what is decided by them is decided
    /// once.
    pub(super) fn lend(&self, offset: u64, bytes: usize) -> Option<&[u8]> {
        let at = self.find(offset, bytes)?;
        // SAFETY: within the mapping, which `self` keeps and whose file is sealed in its length. The sender leaves the bytes
        // alone until it hears that they are read; one that does not spoils what is read, and nothing else: all bits are
        // valid.
        unsafe { Some(std::slice::from_raw_parts(self.range.base.as_ptr().add(at), bytes)) }
    }

    /// Copies bytes out. `false`: they are not all in it.
    pub(super) fn copy(&self, offset: u64, into: &mut [u8]) -> bool {
        let Some(at) = self.find(offset, into.len()) else { return false };
        // SAFETY: within the mapping, whose file is sealed in its length. The sender leaves the bytes alone until it hears
        // that they are read; one that does not changes what is copied, and nothing else.
        unsafe {
            std::ptr::copy_nonoverlapping(self.range.base.as_ptr().add(at), into.as_mut_ptr(), into.len());
        }
        true
    }
}

/// What a peer shows, to be read where it is. `None`: it is not all there, or not aligned.
pub(super) fn view(window: &Arc<Window>, offset: u64, bytes: u64) -> Option<ForeignBytes> {
    let bytes = usize::try_from(bytes).ok()?;
    let at = window.find(offset, bytes).filter(|at| at.is_multiple_of(ALIGN))?;
    // SAFETY: within the mapping, which its owner keeps and whose file is sealed in its length; mappings are aligned to
    // pages. The peer leaves the bytes alone until it is told that they are seen no more. One that breaks its word spoils
    // what is read, and nothing else: all bits are valid, and nothing is decided twice by them.
    unsafe {
        let base = NonNull::new(window.range.base.as_ptr().add(at))?;
        Some(ForeignBytes::new(base, bytes, Arc::<Window>::clone(window)))
    }
}

/// For the model of the queue, which keeps free of unsafe code.
#[cfg(test)]
pub(super) fn write_word(cell: *mut u64, item: u64) {
    // SAFETY: the model lends the pointer for the length of the call.
    unsafe { cell.write(item) }
}

/// As [`write_word`].
#[cfg(test)]
pub(super) fn read_word(cell: *const u64) -> u64 {
    // SAFETY: the model lends the pointer for the length of the call.
    unsafe { cell.read() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_wrap_around_in_one_piece() {
        let (mine, file) = Segment::new().unwrap();
        let theirs = Segment::of_peer(&file).unwrap();
        let ((mut out, mut back), (mut answer, mut into)) = (mine.ends(true), theirs.ends(false));
        assert!(into.header().unwrap().is_none());
        let payload: Vec<u8> = (0..40_000).map(|i| i as u8).collect();
        for round in 0..30u8 {
            let mut pushed = 0;
            while out.has_room(payload.len()).unwrap() {
                out.push(&[round; HEADER_BYTES], &payload);
                pushed += 1;
            }
            assert!(pushed >= 5);
            for _ in 0..pushed {
                assert_eq!(into.header().unwrap(), Some([round; HEADER_BYTES]));
                into.check(payload.len()).unwrap();
                let mut got = vec![0; payload.len()];
                into.payload(&mut got);
                assert!(got == payload);
                into.advance(payload.len()).unwrap();
            }
            assert!(into.unreleased() > 0 && !into.has_news() && !into.release());
        }
        assert!(answer.has_room(0).unwrap());
        answer.push(&[9; HEADER_BYTES], &[]);
        assert!(back.header().unwrap().is_some() && back.check(1).is_err());
    }

    #[test]
    fn files_that_could_be_cut_short_are_refused() {
        let open = memfd_create("x", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&open, FILE_BYTES as u64).unwrap();
        assert!(Segment::of_peer(&open).is_err() && Window::new(&open).is_err());
        let other = sealed("x", BELL_BYTES).unwrap();
        assert!(Segment::of_peer(&other).is_err());
        let window = Window::new(&other).unwrap();
        let mut into = [1; 4];
        assert!(window.copy(4092, &mut into) && into == [0; 4]);
        assert!(!window.copy(4093, &mut into) && !window.copy(u64::MAX, &mut into));
    }
}
