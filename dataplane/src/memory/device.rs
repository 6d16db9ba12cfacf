//! Memory of a device, a GPU for one, that a network card reads and writes and no processor touches.
//!
//! It is lent as any other memory is: by [`Region`]s, whose leases travel with operations, and with the life of a block
//! (I2). What stands for it with the kernel is a dma-buf: a file that a driver gives out and another takes. Transports that
//! move bytes by processors refuse it (I6).

use super::lease::Block;
use super::region::{LendError, Mapping, Region, RegionId};
use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// What a [`Mapping`] of a device's memory has in place of pages. Dropped in this order: the file before the memory.
pub(super) struct Backing {
    file: OwnedFd,
    offset_bytes: u64,
    _owner: Box<dyn Send + Sync>,
}

impl fmt::Debug for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backing").field("file", &self.file).field("offset_bytes", &self.offset_bytes).finish()
    }
}

/// Memory of a device that was exported. Cheap to clone; the memory stays until the last clone, lease and registration has
/// gone.
#[derive(Clone, Debug)]
pub struct DeviceMemory(Arc<Mapping>);

impl DeviceMemory {
    /// `len` bytes at `address`, in the device's own addresses, that lie in `file`, a dma-buf, from `offset_bytes` on. `owner`
    /// keeps the memory: it is dropped after the file is closed. `None` for address 0, where there is none.
    #[must_use]
    pub fn new(
        (address, len): (u64, usize),
        (file, offset_bytes): (OwnedFd, u64),
        owner: impl Send + Sync + 'static,
    ) -> Option<DeviceMemory> {
        let base = NonNull::new(std::ptr::without_provenance_mut(usize::try_from(address).ok()?))?;
        let backing = Backing { file, offset_bytes, _owner: Box::new(owner) };
        Some(DeviceMemory(Mapping::of_device(base, len, backing)))
    }

    /// Its identity, for [`Transport::deregister`](crate::transport::Transport::deregister).
    #[must_use]
    pub fn id(&self) -> RegionId {
        self.0.id
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// A part of it, to lend from. Who makes several that overlap sees to it that they are not written at once: a ledger
    /// knows its own region alone.
    ///
    /// # Errors
    /// [`LendError::OutOfBounds`].
    pub fn region(&self, span: Range<usize>) -> Result<Region, LendError> {
        Region::of_device(Arc::clone(&self.0), span)
    }
}

impl Block {
    /// Of a device's memory: the dma-buf, and where in it the block begins. `None` for memory of the host.
    #[must_use]
    pub fn backing(&self) -> Option<(BorrowedFd<'_>, u64)> {
        let backing = self.mapping()?.device.as_ref()?;
        Some((backing.file.as_fd(), backing.offset_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Pool;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn file() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    struct Owner(Arc<AtomicBool>);

    impl Drop for Owner {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }

    #[test]
    fn no_processor_touches_memory_of_a_device() {
        // I6: the address is that of nothing, and reading it would end the test.
        let memory = DeviceMemory::new((1 << 40, 1000), (file(), 0), ()).unwrap();
        let mut region = memory.region(100..300).unwrap();
        assert!(region.is_on_device() && region.len() == 200 && region.id() == memory.id());
        assert_eq!(region.bytes(0..1).unwrap_err(), LendError::OnDevice);
        assert_eq!(region.bytes_mut(0..1).unwrap_err(), LendError::OnDevice);
        let (read, mut write) = (region.lend_read(0..10).unwrap(), region.lend_write(10..20).unwrap());
        assert_eq!((read.bytes(), write.bytes()), (&[][..], &[][..]));
        assert_eq!((write.bytes_mut().len(), write.len(), write.as_ptr().addr()), (0, 10, (1 << 40) + 110));
        assert!(read.is_on_device() && write.is_on_device());
        let block = read.block();
        assert_eq!((block.base().addr().get(), block.len()), (1 << 40, 1000), "all of it is registered");
        region.restore(read).unwrap();
        region.restore(write).unwrap();
        assert!(matches!(memory.region(0..1001), Err(LendError::OutOfBounds { .. })));
        assert!(DeviceMemory::new((0, 1), (file(), 0), ()).is_none());
    }

    #[test]
    fn it_stays_until_nobody_has_a_share() {
        // I2: a lease, a registration, and never a pool.
        let gone = Arc::new(AtomicBool::new(false));
        let memory = DeviceMemory::new((1 << 40, 4096), (file(), 64), Owner(Arc::clone(&gone))).unwrap();
        let mut region = memory.region(0..4096).unwrap();
        let lease = region.lend_read(0..4096).unwrap();
        let registered = lease.block();
        assert_eq!(registered.backing().unwrap().1, 64);
        Pool::default().recycle(memory.region(0..1).unwrap());
        drop((memory, region));
        assert!(!gone.load(Ordering::Acquire) && !registered.is_orphan());
        drop(lease);
        assert!(!gone.load(Ordering::Acquire) && registered.is_orphan());
        drop(registered);
        assert!(gone.load(Ordering::Acquire));
        let pool = Pool::default();
        assert!(pool.region(10).unwrap().block().backing().is_none());
    }
}
