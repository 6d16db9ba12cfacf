//! Protection domains, and memory that a device may touch.

use super::VerbsError;
use super::context::Context;
use super::error::{last_errno, memlock_limit_bytes};
use super::sys;
use std::fmt;
use std::ops::BitOr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// What belongs together: queue pairs reach only the memory of their own domain.
pub struct ProtectionDomain {
    raw: NonNull<sys::ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: every verb may be called from any thread (I5).
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain").field("context", &self.context).finish_non_exhaustive()
    }
}

impl ProtectionDomain {
    /// Makes a domain.
    ///
    /// # Errors
    /// When the device has no more of them.
    pub fn new(context: &Arc<Context>) -> Result<Arc<ProtectionDomain>, VerbsError> {
        // SAFETY: the context is open.
        let raw = unsafe { context.sys().ibv_alloc_pd(context.raw()) };
        let raw = context.made("ibv_alloc_pd", raw)?;
        Ok(Arc::new(ProtectionDomain { raw, context: Arc::clone(context) }))
    }

    /// The device that it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: made once and taken down once (I1); all that was made from it held it and is gone (I2).
        let returned = unsafe { self.context.sys().ibv_dealloc_pd(self.raw()) };
        self.context.taken_down("ibv_dealloc_pd", returned);
    }
}

/// What may be done to a region or through a queue pair. Sending from a region needs no right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Access(u32);

impl Access {
    /// Sending only.
    pub const READ: Access = Access(0);
    /// The device may write: receives, and results of reads.
    pub const LOCAL_WRITE: Access = Access(sys::IBV_ACCESS_LOCAL_WRITE);
    /// Peers may write. A region needs [`Access::LOCAL_WRITE`] with it.
    pub const REMOTE_WRITE: Access = Access(sys::IBV_ACCESS_REMOTE_WRITE);
    /// Peers may read.
    pub const REMOTE_READ: Access = Access(sys::IBV_ACCESS_REMOTE_READ);
    /// Peers may use atomics. A region needs [`Access::LOCAL_WRITE`] with it.
    pub const REMOTE_ATOMIC: Access = Access(sys::IBV_ACCESS_REMOTE_ATOMIC);
    /// The device may let writes to this region pass each other on the bus. Bytes are sure to be there when the
    /// completion is polled, not when a later byte is. Ignored by libraries before rdma-core 28.
    pub const RELAXED_ORDERING: Access = Access(sys::IBV_ACCESS_RELAXED_ORDERING);

    /// Whether it has all rights of `other`.
    pub fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    pub(super) fn bits(self) -> u32 {
        self.0
    }

    pub(super) fn without(self, other: Access) -> Access {
        Access(self.0 & !other.0)
    }
}

impl BitOr for Access {
    type Output = Access;

    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

/// What registers memory of another device.
const DMABUF_CALL: &str = "ibv_reg_dmabuf_mr";

impl Context {
    /// What the library lacks to register memory of another device; `None` where it does, which says nothing of the device.
    #[must_use]
    pub fn lacks_dmabuf(&self) -> Option<VerbsError> {
        let lacks = self.sys().ibv_reg_dmabuf_mr.is_err();
        lacks.then_some(VerbsError::NotInLibrary { symbol: DMABUF_CALL, since: "34" })
    }
}

/// Memory that a device may touch. It is pinned while this lives.
pub struct MemoryRegion {
    raw: NonNull<sys::ibv_mr>,
    lkey: u32,
    rkey: u32,
    len: usize,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: every verb may be called from any thread (I5); the region itself is not changed after it was made.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("MemoryRegion");
        f.field("len", &self.len).field("lkey", &self.lkey).field("rkey", &self.rkey).finish_non_exhaustive()
    }
}

impl MemoryRegion {
    /// Registers `len` bytes from `base` on. Peers address them by the same numbers as this process.
    ///
    /// # Safety
    /// The bytes stay mapped until the region is dropped. With a right to write among `access`, whoever learns the
    /// region's keys may change them at any time until then, so no reference to what is written may be held.
    ///
    /// # Errors
    /// When the pages cannot be pinned, or the device has no more regions or none so large.
    pub unsafe fn register(
        domain: &Arc<ProtectionDomain>,
        base: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        let sys = domain.context.sys();
        let (pd, at) = (domain.raw(), base.as_ptr());
        let relaxed = access.contains(Access::RELAXED_ORDERING) && sys.ibv_reg_mr_iova2.is_ok();
        // SAFETY: the domain is alive; the caller promises that the bytes are mapped until the region is gone.
        let raw = unsafe {
            if relaxed {
                sys.ibv_reg_mr_iova2(pd, at.cast(), len, at.addr() as u64, access.bits())
            } else {
                let access = access.without(Access::RELAXED_ORDERING);
                sys.ibv_reg_mr(pd, at.cast(), len, access.bits() as i32)
            }
        };
        let call = if relaxed { "ibv_reg_mr_iova2" } else { "ibv_reg_mr" };
        MemoryRegion::registered(domain, call, raw, len)
    }

    /// Registers `len` bytes from `offset` on of a device's memory, a GPU's for one, that `dmabuf` stands for.
    /// Requests and peers address them from `iova` on.
    ///
    /// # Safety
    /// As [`MemoryRegion::register`]: with a right to write, the bytes may change at any time until the region is
    /// dropped. The kernel keeps the memory itself alive.
    ///
    /// # Errors
    /// As there, and when the library, the kernel or the device has no such regions.
    pub unsafe fn register_dmabuf(
        domain: &Arc<ProtectionDomain>,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        let sys = domain.context.sys();
        if let Some(why) = domain.context.lacks_dmabuf() {
            return Err(why);
        }
        let access = access.bits() as i32;
        // SAFETY: the domain is alive, the file is open for the call, and the kernel holds its memory from then on.
        let raw =
            unsafe { sys.ibv_reg_dmabuf_mr(domain.raw(), offset, len, iova, dmabuf.as_raw_fd(), access) };
        MemoryRegion::registered(domain, DMABUF_CALL, raw, len)
    }

    fn registered(
        domain: &Arc<ProtectionDomain>,
        call: &'static str,
        raw: *mut sys::ibv_mr,
        len: usize,
    ) -> Result<MemoryRegion, VerbsError> {
        let errno = last_errno();
        let raw = NonNull::new(raw).ok_or_else(|| match errno {
            libc::ENOMEM | libc::EPERM | libc::EAGAIN => VerbsError::PinRefused {
                device: domain.context.name().to_owned(),
                len_bytes: len,
                errno,
                memlock_limit_bytes: memlock_limit_bytes(),
            },
            errno => domain.context.error(call, errno),
        })?;
        // SAFETY: the region was made just now.
        let (lkey, rkey) = unsafe { (raw.as_ref().lkey, raw.as_ref().rkey) };
        Ok(MemoryRegion { raw, lkey, rkey, len, domain: Arc::clone(domain) })
    }

    /// The key for this process's own requests.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key for requests of peers.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Bytes of the region.
    #[expect(clippy::len_without_is_empty, reason = "no device registers nothing")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        let context = &self.domain.context;
        // SAFETY: made once and taken down once (I1).
        let returned = unsafe { context.sys().ibv_dereg_mr(self.raw.as_ptr()) };
        context.taken_down("ibv_dereg_mr", returned);
    }
}
