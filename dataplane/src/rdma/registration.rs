//! Memory that the devices know: the queues' own, and a cache of what operations lend.
//!
//! Invariants (cited by the tests):
//! - **G1** A registration lasts as long as an operation holds it. Without one it is dropped when its memory is no
//!   longer needed by anybody else, when room is needed for others, or at once if the memory was borrowed for a call.
//! - **G2** What is pinned stays within the limit in bytes. What does not fit is not registered, and travels in frames.
//! - **G3** A refusal of the system is not asked for again at every operation: it lowers the limit to what was pinned then
//!   ([`Limit`]), for [`RETRY_AFTER`] refusals.
//! - **G4** Memory of a device is registered by its dma-buf, counted and dropped like any other, and never without a
//!   registration while an operation has it: it is held from before it is lent ([`Registry::keep`]).

use super::verbs::{Access, MemoryRegion, ProtectionDomain, VerbsError};
use crate::memory::{Block, RegionId};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Page-aligned memory of the queues themselves, registered with some devices.
pub(super) struct Pinned {
    // Dropped before the memory is unmapped.
    regions: Vec<Option<MemoryRegion>>,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to this value alone, and its methods say who may touch it; no tie to a thread.
unsafe impl Send for Pinned {}

impl Pinned {
    /// `len` zeroed bytes that the devices may read and write; some may be left out.
    pub(super) fn new(domains: &[Option<Arc<ProtectionDomain>>], len: usize) -> Result<Pinned, VerbsError> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let device = domains.iter().flatten().next().map_or("", |d| d.context().name());
        let refused = |errno| VerbsError::Call { call: "mmap", device: device.to_owned(), errno };
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a new mapping overlaps nothing.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) };
        let base = base.map_err(|e| refused(e.raw_os_error()))?;
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| refused(libc::ENOMEM))?;
        let mut pinned = Pinned { regions: Vec::with_capacity(domains.len()), base, len };
        for domain in domains {
            let register = |domain: &Arc<ProtectionDomain>| {
                // SAFETY: unmapped after the regions are dropped; bytes are touched by the rules of `bytes` and
                // `bytes_mut`.
                unsafe { MemoryRegion::register(domain, base, len, Access::LOCAL_WRITE) }
            };
            pinned.regions.push(domain.as_ref().map(register).transpose()?);
        }
        Ok(pinned)
    }

    /// This process's key with the device of this index among those given.
    pub(super) fn lkey(&self, device: usize) -> u32 {
        self.regions.get(device).and_then(Option::as_ref).map_or(0, MemoryRegion::lkey)
    }

    /// Address of the byte at `at`.
    #[inline]
    pub(super) fn address(&self, at: usize) -> u64 {
        self.base.as_ptr().addr() as u64 + at as u64
    }

    #[inline]
    fn check(&self, at: usize, len: usize) {
        assert!(at <= self.len && len <= self.len - at, "{len} bytes at {at} of a queue of {}", self.len);
    }

    /// Reads bytes.
    ///
    /// # Safety
    /// No receive into them is posted while the slice lives.
    #[inline]
    pub(super) unsafe fn bytes(&self, at: usize, len: usize) -> &[u8] {
        self.check(at, len);
        // SAFETY: in bounds and mapped while `self` lives; the caller keeps the device from writing.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(at), len) }
    }

    /// Writes bytes.
    ///
    /// # Safety
    /// No request that reads or writes them is posted while the slice lives.
    #[inline]
    pub(super) unsafe fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        self.check(at, len);
        // SAFETY: in bounds and mapped while `self` lives; the caller keeps the device away.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(at), len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.regions.clear();
        // SAFETY: the mapping is this value's own, whole, and no device knows it any more.
        if let Err(e) = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) } {
            tracing::error!("munmap of {} bytes failed: {e}", self.len);
        }
    }
}

/// Memory of a region, registered with every device of the transport.
#[derive(Debug)]
pub(super) struct Registered {
    // Dropped before the block that keeps the memory mapped. Without those of devices that are of no use any more.
    regions: Vec<Option<MemoryRegion>>,
    writable: bool,
    used: AtomicU64,
    block: Block,
}

impl Registered {
    /// This process's key with the device of this index.
    pub(super) fn lkey(&self, device: usize) -> u32 {
        self.regions.get(device).and_then(Option::as_ref).map_or(0, MemoryRegion::lkey)
    }

    /// The peers' key with the device of this index.
    pub(super) fn rkey(&self, device: usize) -> u32 {
        self.regions.get(device).and_then(Option::as_ref).map_or(0, MemoryRegion::rkey)
    }

    fn bytes(&self) -> u64 {
        (self.block.len() * self.regions.iter().flatten().count()) as u64
    }
}

/// Refusals that a lowered limit answers by itself before the system is asked again.
const RETRY_AFTER: u32 = 4096;

/// How much may be pinned: pure.
#[derive(Debug)]
struct Limit {
    /// As configured.
    set_bytes: u64,
    /// As the system has shown, and how many refusals that has answered.
    learned_bytes: Option<u64>,
    answered: u32,
}

impl Limit {
    fn new(set_bytes: u64) -> Limit {
        Limit { set_bytes, learned_bytes: None, answered: 0 }
    }

    fn bytes(&self) -> u64 {
        self.learned_bytes.unwrap_or(self.set_bytes)
    }

    /// The system refused to pin `need` more than `pinned`. Returns whether that is news.
    fn refused(&mut self, pinned: u64, need: u64) -> bool {
        let learned = pinned.saturating_add(need).saturating_sub(1).min(self.set_bytes);
        let news = self.learned_bytes.is_none_or(|known| learned < known / 2);
        self.learned_bytes = Some(learned);
        self.answered = 0;
        news
    }

    /// Something did not fit.
    fn answer(&mut self) {
        self.answered += 1;
        if self.answered >= RETRY_AFTER {
            *self = Limit::new(self.set_bytes);
        }
    }
}

/// The registrations of a transport.
#[derive(Debug)]
pub(super) struct Registry {
    domains: Vec<Option<Arc<ProtectionDomain>>>,
    known: HashMap<RegionId, Vec<Arc<Registered>>>,
    /// What is held besides by operations, and how often (G4).
    kept: HashMap<RegionId, (Arc<Registered>, u32)>,
    pinned_bytes: u64,
    limit: Limit,
    clock: u64,
}

impl Registry {
    /// For these devices, in their order; pins up to `limit_bytes` at a time.
    pub(super) fn new(domains: Vec<Arc<ProtectionDomain>>, limit_bytes: u64) -> Registry {
        let (known, kept) = (HashMap::new(), HashMap::new());
        let domains = domains.into_iter().map(Some).collect();
        Registry { domains, known, kept, pinned_bytes: 0, limit: Limit::new(limit_bytes), clock: 0 }
    }

    /// Registers the memory, or finds that it is; `None`: it cannot be.
    pub(super) fn hold(&mut self, block: &Block, write: bool) -> Option<Arc<Registered>> {
        if block.is_empty() {
            return None;
        }
        self.clock += 1;
        let known = self.known.get(&block.region()).and_then(|all| all.iter().find(|r| r.writable || !write));
        if let Some(found) = known {
            found.used.store(self.clock, Ordering::Relaxed);
            return Some(Arc::clone(found));
        }
        self.register(block, write).unwrap_or(None)
    }

    /// Registers owned memory ahead of its use. `false`: it is over the limit.
    pub(super) fn register_once(&mut self, block: &Block) -> Result<bool, VerbsError> {
        if self.known.contains_key(&block.region()) {
            return Ok(true);
        }
        self.register(block, true).map(|made| made.is_some())
    }

    /// Registers the memory, and holds it until [`Self::release_kept`] (G4). `false`: it is over the limit.
    pub(super) fn keep(&mut self, block: &Block) -> Result<bool, VerbsError> {
        if let Some((_, times)) = self.kept.get_mut(&block.region()) {
            *times += 1;
            return Ok(true);
        }
        self.clock += 1;
        let found = self.known.get(&block.region()).and_then(|all| all.iter().find(|r| r.writable).cloned());
        let held = match found {
            Some(found) => Some(found),
            None => self.register(block, true)?,
        };
        let Some(held) = held else { return Ok(false) };
        held.used.store(self.clock, Ordering::Relaxed);
        self.kept.insert(block.region(), (held, 1));
        Ok(true)
    }

    /// Takes one [`Self::keep`] back.
    pub(super) fn release_kept(&mut self, region: RegionId) {
        let Some((_, times)) = self.kept.get_mut(&region) else { return };
        *times -= 1;
        if *times == 0 {
            self.kept.remove(&region);
        }
    }

    /// As [`Self::hold`], with the reason for a refusal; `Ok(None)` is over the limit.
    fn register(&mut self, block: &Block, write: bool) -> Result<Option<Arc<Registered>>, VerbsError> {
        self.sweep();
        let need = (block.len() * self.domains.iter().flatten().count()) as u64;
        if !self.make_room(need) {
            if self.limit.learned_bytes.is_none() && self.limit.answered == 0 {
                let (len, limit) = (block.len(), self.limit.set_bytes);
                tracing::warn!(
                    "memory of {len} bytes is not pinned, over the limit of {limit} bytes: such messages are copied, \
                     which is slower; raise RINGWAY_IB_PINNED_BYTES"
                );
            }
            self.limit.answer();
            return Ok(None);
        }
        let can_pass = |why: &VerbsError| {
            matches!(why.errno(), Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM | libc::ENOSPC))
        };
        let made = self.make(block, write).or_else(|why| {
            if block.backing().is_some() && !can_pass(&why) {
                // The device does not do it at all.
                return Err(why);
            }
            // Others may have to go for it: the system's limit is not ours to know.
            self.evict_all();
            self.make(block, write)
        });
        let made = made.inspect_err(|why| {
            if can_pass(why) && self.limit.refused(self.pinned_bytes, need) {
                tracing::warn!("{why}; such messages are copied, which is slower");
            }
        })?;
        let made = Arc::new(made);
        self.pinned_bytes += made.bytes();
        self.known.entry(block.region()).or_default().push(Arc::clone(&made));
        Ok(Some(made))
    }

    fn make(&self, block: &Block, write: bool) -> Result<Registered, VerbsError> {
        // What a pool lends is written sooner or later; what is borrowed may be read-only.
        let writable = write || block.is_owned();
        let access = if writable {
            // Over several devices, a message's end must not be seen before its bytes.
            let relaxed = if self.domains.len() == 1 { Access::RELAXED_ORDERING } else { Access::READ };
            Access::LOCAL_WRITE | Access::REMOTE_WRITE | relaxed
        } else {
            Access::READ
        };
        let mut regions = Vec::with_capacity(self.domains.len());
        for domain in &self.domains {
            let register = |domain: &Arc<ProtectionDomain>| {
                if let Some((file, offset)) = block.backing() {
                    let (len, iova) = (block.len(), block.base().addr().get() as u64);
                    // SAFETY: no reference to memory of a device is ever made (I6 of `memory`), and the memory stays as long as
                    // `block`, which is dropped after the regions (G1, G4).
                    return unsafe { MemoryRegion::register_dmabuf(domain, file, offset, len, iova, access) };
                }
                // SAFETY: owned memory stays mapped as long as `block`, which is dropped after the regions; borrowed
                // memory as long as its leases, each of whose operations holds this registration, which goes with the
                // last of them (G1). Peers write only where a receive was announced, whose lease nobody reads.
                unsafe { MemoryRegion::register(domain, block.base(), block.len(), access) }
            };
            regions.push(domain.as_ref().map(register).transpose()?);
        }
        Ok(Registered { regions, writable, used: AtomicU64::new(self.clock), block: block.clone() })
    }

    /// Registers no more with a device.
    pub(super) fn leave_out(&mut self, device: usize) {
        self.domains[device] = None;
    }

    /// Gives a hold back (G1).
    pub(super) fn release(&mut self, held: Arc<Registered>) {
        if !held.block.is_owned() && Arc::strong_count(&held) == 2 {
            self.forget(&held);
        }
    }

    /// Forgets a region, for as far as no operation holds it.
    pub(super) fn forget_region(&mut self, region: RegionId) {
        let idle = |all: &Vec<Arc<Registered>>| -> Vec<Arc<Registered>> {
            all.iter().filter(|r| Arc::strong_count(r) == 1).cloned().collect()
        };
        for registered in self.known.get(&region).map(idle).unwrap_or_default() {
            self.forget(&registered);
        }
    }

    fn forget(&mut self, registered: &Arc<Registered>) {
        let region = registered.block.region();
        if let Some(all) = self.known.get_mut(&region) {
            all.retain(|r| !Arc::ptr_eq(r, registered));
            if all.is_empty() {
                self.known.remove(&region);
            }
            self.pinned_bytes -= registered.bytes().min(self.pinned_bytes);
        }
    }

    fn idle(&self, also: impl Fn(&Registered) -> bool) -> Vec<Arc<Registered>> {
        let all = self.known.values().flatten();
        all.filter(|r| Arc::strong_count(r) == 1 && also(r)).cloned().collect()
    }

    /// Drops registrations of memory that nobody needs any more.
    fn sweep(&mut self) {
        for orphan in self.idle(|r| r.block.is_orphan()) {
            self.forget(&orphan);
        }
    }

    fn evict_all(&mut self) {
        for idle in self.idle(|_| true) {
            self.forget(&idle);
        }
    }

    /// Drops the longest unused until `need` bytes fit (G2).
    fn make_room(&mut self, need: u64) -> bool {
        let limit_bytes = self.limit.bytes();
        if need > limit_bytes {
            return false;
        }
        if self.pinned_bytes + need <= limit_bytes {
            return true;
        }
        let mut idle = self.idle(|_| true);
        idle.sort_by_key(|r| r.used.load(Ordering::Relaxed));
        for registered in idle {
            self.forget(&registered);
            if self.pinned_bytes + need <= limit_bytes {
                return true;
            }
        }
        self.pinned_bytes + need <= limit_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::verbs::tests::double;
    use super::*;
    use crate::memory::DeviceMemory;

    #[test]
    fn a_refusal_is_remembered_and_tried_again_in_the_end() {
        // G3
        let mut limit = Limit::new(1000);
        assert!(limit.refused(100, 50), "news");
        assert_eq!(limit.bytes(), 149);
        assert!(!limit.refused(90, 50), "little less is no news");
        assert!(limit.refused(0, 20) && limit.bytes() == 19);
        for _ in 1..RETRY_AFTER {
            limit.answer();
        }
        assert_eq!(limit.bytes(), 19);
        limit.answer();
        assert_eq!(limit.bytes(), 1000);
        assert!(limit.refused(u64::MAX, 9) && limit.bytes() == 1000);
    }

    #[test]
    fn what_is_over_the_limit_is_not_asked_for() {
        // G2
        let pool = crate::memory::Pool::default();
        let region = pool.region(5000).unwrap();
        let mut registry = Registry::new(Vec::new(), 4096);
        assert_eq!(registry.register_once(&region.block()), Ok(true), "no device, nothing to pin");
        registry.limit.refused(0, 1);
        assert!(registry.make_room(0) && !registry.make_room(1));
    }

    /// Tells the double's record when the memory is given back.
    struct Owner;

    impl Drop for Owner {
        fn drop(&mut self) {
            double::record("freed");
        }
    }

    fn on_device(len: usize) -> DeviceMemory {
        let file = std::fs::File::open("/dev/null").unwrap();
        DeviceMemory::new((0x7000_0000_1000, len), (file.into(), 4096), Owner).unwrap()
    }

    #[test]
    fn memory_of_a_device_is_registered_by_its_file_and_dropped_before_it_is_freed() {
        // G4, over the double of the verbs.
        let mut registry = Registry::new(vec![double::domain(true)], 10_000);
        let memory = on_device(8192);
        let block = memory.region(100..200).unwrap().block();
        assert_eq!(registry.keep(&block), Ok(true));
        assert_eq!(registry.keep(&block), Ok(true), "once for each call that has it");
        let held = registry.hold(&block, false).expect("it is registered");
        assert_eq!((held.lkey(0), held.rkey(0)), (7, 8));
        let asked = double::calls();
        assert_eq!(asked.len(), 1, "{asked:?}");
        let expected = "ibv_reg_dmabuf_mr offset=4096 len=8192 iova=0x700000001000 open=true";
        assert!(asked[0].starts_with(expected), "{asked:?}");
        registry.release(held);
        registry.release_kept(memory.id());
        // G2: what is held is not dropped for others, and what is over the limit is not asked for.
        let pool = crate::memory::Pool::default();
        let other = pool.region(4096).unwrap();
        assert_eq!(registry.register_once(&other.block()), Ok(false));
        registry.forget_region(memory.id());
        assert!(double::calls().is_empty());
        registry.release_kept(memory.id());
        assert_eq!(registry.register_once(&other.block()), Ok(true), "now it goes for the other");
        drop((memory, block));
        assert_eq!(double::calls(), ["ibv_dereg_mr lkey=7", "ibv_reg_mr len=4096", "freed"]);
    }

    #[test]
    fn memory_of_a_device_that_is_gone_is_not_kept_by_its_registration() {
        let mut registry = Registry::new(vec![double::domain(true)], 10_000);
        let memory = on_device(4096);
        let id = memory.id();
        assert_eq!(registry.keep(&memory.region(0..4096).unwrap().block()), Ok(true));
        registry.release_kept(id);
        drop(memory);
        double::calls();
        registry.forget_region(id);
        assert_eq!(double::calls(), ["ibv_dereg_mr lkey=7", "freed"]);
        assert_eq!(registry.pinned_bytes, 0);
    }

    #[test]
    fn a_device_that_takes_no_file_costs_no_other_registration() {
        let mut registry = Registry::new(vec![double::domain(true)], 100_000);
        let pool = crate::memory::Pool::default();
        let other = pool.region(4096).unwrap();
        assert_eq!(registry.register_once(&other.block()), Ok(true));
        double::calls();
        double::refuse_dmabuf(libc::EOPNOTSUPP);
        let memory = on_device(4096);
        let block = memory.region(0..4096).unwrap().block();
        let refused = registry.keep(&block).unwrap_err();
        assert!(refused.to_string().contains("ibv_reg_dmabuf_mr"), "{refused}");
        assert!(registry.hold(&block, true).is_none() && registry.kept.is_empty());
        let asked = double::calls();
        assert!(
            asked.len() == 2 && asked.iter().all(|call| call.starts_with("ibv_reg_dmabuf_mr")),
            "{asked:?}"
        );
        double::refuse_dmabuf(0);
        // A library before rdma-core 34.
        let old = double::domain(false);
        let lacks = old.context().lacks_dmabuf().unwrap().to_string();
        assert!(lacks.contains("ibv_reg_dmabuf_mr") && lacks.contains("rdma-core 34"), "{lacks}");
        assert!(Registry::new(vec![old], 100_000).keep(&block).is_err());
        assert!(double::calls().is_empty());
    }
}
