//! Memory of GPUs, and memory of the host that a GPU reaches by itself.

use super::device::Context;
use super::dmabuf::DmabufError;
use super::error::CudaError;
use super::shared::lock;
use super::stream::Stream;
use crate::engine::Reporter;
use cudarc::driver::sys::CUdeviceptr;
use ringway_dataplane::memory::{DeviceMemory, Element};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock};

/// A span of a GPU's memory, for as long as somebody has a share in it: a buffer, a call that is under way on the GPU, or a
/// NIC that it is registered with.
pub(super) struct Memory {
    at: CUdeviceptr,
    owner: Owner,
    context: Arc<Context>,
}

/// Who gives the memory back.
enum Owner {
    /// The driver.
    Driver,
    /// Something else, which does so when this is dropped.
    Other(#[expect(dead_code, reason = "it is there to be dropped")] Box<dyn Send + Sync>),
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !matches!(self.owner, Owner::Driver) {
            return;
        }
        // SAFETY: allocated once and freed once, as the last share goes; the driver waits for the work that uses it.
        let free = |driver: &super::driver::Driver| unsafe { (driver.functions.cuMemFree_v2)(self.at) };
        let done = self.context.enter().and_then(|d| d.check("cuMemFree", free(d)));
        if let Err(error) = done {
            tracing::debug!(%error, "at the end of a buffer");
        }
    }
}

/// Memory that is not given back before a call on it is over, or NCCL was aborted.
pub(super) type Kept = Vec<Arc<Memory>>;

/// Elements in the memory of a GPU.
///
/// The memory is given back when this is dropped and no call goes on with it; freeing it waits for the GPU, as the driver does
/// it. So memory is never given to others under work that goes on.
pub struct DeviceBuffer<T: Element> {
    memory: Arc<Memory>,
    len: usize,
    /// For network cards, and whose transports have registered it with them.
    pub(super) exported: OnceLock<Result<DeviceMemory, DmabufError>>,
    known_to: Mutex<Vec<Reporter>>,
    elements: PhantomData<T>,
}

impl<T: Element> std::fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "DeviceBuffer({} x {} at {:#x}, {:?})",
            T::DTYPE,
            self.len,
            self.memory.at,
            self.memory.context
        )
    }
}

impl<T: Element> DeviceBuffer<T> {
    /// `len` zeroed elements.
    ///
    /// # Errors
    /// When the GPU has no more memory.
    pub fn zeroed(context: &Arc<Context>, len: usize, stream: &Stream) -> Result<DeviceBuffer<T>, CudaError> {
        let driver = context.enter()?;
        // The driver gives no memory of length 0.
        let bytes = len.saturating_mul(size_of::<T>()).max(1);
        let mut at: CUdeviceptr = 0;
        // SAFETY: `at` is writable, and the thread is in the context.
        driver.check("cuMemAlloc", unsafe { (driver.functions.cuMemAlloc_v2)(&mut at, bytes) })?;
        let buffer = DeviceBuffer::of(Memory { at, owner: Owner::Driver, context: Arc::clone(context) }, len);
        // SAFETY: there are `bytes` bytes at `at`, which nobody else knows.
        let filled = unsafe { (driver.functions.cuMemsetD8Async)(at, 0, bytes, stream.raw()) };
        driver.check("cuMemsetD8Async", filled)?;
        stream.synchronize()?;
        Ok(buffer)
    }

    fn of(memory: Memory, len: usize) -> DeviceBuffer<T> {
        let (exported, known_to) = (OnceLock::new(), Mutex::default());
        DeviceBuffer { memory: Arc::new(memory), len, exported, known_to, elements: PhantomData }
    }

    /// Memory that something else has allocated: a framework's tensor, in which `owner` is a share. It is dropped with this, or,
    /// where a GPU does not give up a call that has failed, when the GPU has.
    ///
    /// # Safety
    /// There are `len` elements at `address` in the memory of the GPU of `context`, which stay there until `owner` is dropped
    /// and are used by nobody else while a call on this is under way.
    pub unsafe fn borrowed(
        context: &Arc<Context>,
        address: u64,
        len: usize,
        owner: impl Send + Sync + 'static,
    ) -> DeviceBuffer<T> {
        let owner = Owner::Other(Box::new(owner));
        DeviceBuffer::of(Memory { at: address, owner, context: Arc::clone(context) }, len)
    }

    /// An engine's transports have it registered: they are told when it goes.
    pub(super) fn is_known_to(&self, engine: &Reporter) {
        let mut known_to = lock(&self.known_to);
        if !known_to.iter().any(|known| known.is(engine)) {
            known_to.push(engine.clone());
        }
    }

    /// A share in the memory, for a call.
    pub(super) fn share(&self) -> Arc<Memory> {
        Arc::clone(&self.memory)
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it is, in the GPU's addresses.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.memory.at
    }

    /// What it is in.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.memory.context
    }

    /// Where element `index` is.
    pub(super) fn address_of(&self, index: usize) -> u64 {
        debug_assert!(index <= self.len);
        self.memory.at + (index * size_of::<T>()) as u64
    }

    /// Copies `from` here, through `stream`, and waits for it.
    ///
    /// # Errors
    /// When the GPU has failed.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn copy_from(&mut self, from: &[T], stream: &Stream) -> Result<(), CudaError> {
        assert_eq!(from.len(), self.len, "copy_from: a slice of another length");
        self.copy_part_from(0, from, stream)
    }

    /// Copies what is here to `to`, through `stream`, and waits for it.
    ///
    /// # Errors
    /// When the GPU has failed.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn copy_to(&self, to: &mut [T], stream: &Stream) -> Result<(), CudaError> {
        assert_eq!(to.len(), self.len, "copy_to: a slice of another length");
        self.copy_part_to(0, to, stream)
    }

    /// Copies `from` to the elements from `first` on, through `stream`, and waits for it.
    ///
    /// # Errors
    /// When the GPU has failed.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn copy_part_from(&mut self, first: usize, from: &[T], stream: &Stream) -> Result<(), CudaError> {
        assert!(first <= self.len && from.len() <= self.len - first, "copy_part_from: behind the end");
        if from.is_empty() {
            return Ok(());
        }
        let driver = self.memory.context.enter()?;
        let (at, bytes) = (self.address_of(first), size_of_val(from));
        // SAFETY: there are as many bytes on both sides, and the copy is waited for before the loans end.
        let begun =
            unsafe { (driver.functions.cuMemcpyHtoDAsync_v2)(at, from.as_ptr().cast(), bytes, stream.raw()) };
        driver.check("cuMemcpyHtoDAsync", begun).and(stream.synchronize())
    }

    /// Copies the elements from `first` on to `to`, through `stream`, and waits for it.
    ///
    /// # Errors
    /// When the GPU has failed.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn copy_part_to(&self, first: usize, to: &mut [T], stream: &Stream) -> Result<(), CudaError> {
        assert!(first <= self.len && to.len() <= self.len - first, "copy_part_to: behind the end");
        if to.is_empty() {
            return Ok(());
        }
        let driver = self.memory.context.enter()?;
        let (at, bytes) = (self.address_of(first), size_of_val(to));
        // SAFETY: as above; any bits are an element.
        let begun = unsafe {
            (driver.functions.cuMemcpyDtoHAsync_v2)(to.as_mut_ptr().cast(), at, bytes, stream.raw())
        };
        driver.check("cuMemcpyDtoHAsync", begun).and(stream.synchronize())
    }
}

impl<T: Element> Drop for DeviceBuffer<T> {
    /// The registration goes before the memory (S2 of `straight`), which it would otherwise keep until room is needed.
    fn drop(&mut self) {
        let Some(Ok(memory)) = self.exported.take() else { return };
        let id = memory.id();
        drop(memory);
        lock(&self.known_to).iter().for_each(|engine| engine.forget(id));
    }
}

/// Elements in memory of the host that does not move, so that a GPU copies them by itself.
pub struct PinnedBuffer<T: Element> {
    at: NonNull<T>,
    len: usize,
    context: Arc<Context>,
}

// SAFETY: it is plain memory that it owns.
unsafe impl<T: Element> Send for PinnedBuffer<T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for PinnedBuffer<T> {}

impl<T: Element> std::fmt::Debug for PinnedBuffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PinnedBuffer({} x {}, {:?})", T::DTYPE, self.len, self.context)
    }
}

impl<T: Element> PinnedBuffer<T> {
    /// `len` zeroed elements.
    ///
    /// # Errors
    /// When the system pins no more memory.
    pub fn zeroed(context: &Arc<Context>, len: usize) -> Result<PinnedBuffer<T>, CudaError> {
        let driver = context.enter()?;
        let bytes = len.saturating_mul(size_of::<T>()).max(1);
        let mut at: *mut c_void = std::ptr::null_mut();
        // SAFETY: `at` is writable, and the thread is in the context.
        driver.check("cuMemAllocHost", unsafe { (driver.functions.cuMemAllocHost_v2)(&mut at, bytes) })?;
        let refused = || driver.check("cuMemAllocHost", super::driver::ERROR_OUT_OF_MEMORY);
        let Some(at) = NonNull::new(at.cast::<T>()) else {
            return refused().map(|()| unreachable!("that is an error"));
        };
        // SAFETY: there are `bytes` bytes, page-aligned, which nobody else knows.
        unsafe { at.as_ptr().cast::<u8>().write_bytes(0, bytes) };
        Ok(PinnedBuffer { at, len, context: Arc::clone(context) })
    }
}

impl<T: Element> Deref for PinnedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: there are `len` elements, all of them initialised; any bits are an element.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl<T: Element> DerefMut for PinnedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and it is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl<T: Element> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        // SAFETY: allocated once and freed once; the driver waits for copies that use it.
        let free = |driver: &super::driver::Driver| unsafe {
            (driver.functions.cuMemFreeHost)(self.at.as_ptr().cast())
        };
        let done = self.context.enter().and_then(|d| d.check("cuMemFreeHost", free(d)));
        if let Err(error) = done {
            tracing::debug!(%error, "at the end of a pinned buffer");
        }
    }
}
