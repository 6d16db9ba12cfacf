//! GPUs by their numbers, and their contexts.

use super::driver::Driver;
use super::error::{CudaError, Unavailable};
use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute};
use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;

/// `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER`: the GPU sees what a card has written without more ado.
const ORDERED_FOR_OWNER: u32 = 100;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST`: the driver has a function for that.
const FLUSHED_BY_HOST: u32 = 1;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX` and `_TO_OWNER`.
const FLUSH: (u32, u32) = (0, 100);

/// Room for a device's name or bus address.
const NAME_BYTES: usize = 128;

/// A GPU of this host.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    ordinal: u32,
    raw: CUdevice,
}

impl Device {
    /// GPUs that the driver sees.
    ///
    /// # Errors
    /// When there is no driver, or it sees none.
    pub fn count() -> Result<u32, Unavailable> {
        let driver = Driver::get()?;
        let mut count: c_int = 0;
        // SAFETY: `count` is writable.
        let asked =
            driver.check("cuDeviceGetCount", unsafe { (driver.functions.cuDeviceGetCount)(&mut count) });
        asked.map_err(Unavailable::DriverRefuses)?;
        u32::try_from(count).ok().filter(|count| *count > 0).ok_or(Unavailable::NoDevice)
    }

    /// The GPU with this number, from 0.
    ///
    /// # Errors
    /// When there is no driver or no such GPU.
    pub fn get(ordinal: u32) -> Result<Device, Unavailable> {
        let count = Device::count()?;
        let driver = Driver::get()?;
        let number = c_int::try_from(ordinal).ok().filter(|_| ordinal < count);
        let number = number.ok_or(Unavailable::NoSuchDevice { wanted: ordinal, count })?;
        let mut raw: CUdevice = 0;
        // SAFETY: `raw` is writable.
        let asked = driver.check("cuDeviceGet", unsafe { (driver.functions.cuDeviceGet)(&mut raw, number) });
        asked.map_err(Unavailable::DriverRefuses)?;
        Ok(Device { ordinal, raw })
    }

    /// Its number.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Its name, as `NVIDIA H200`.
    #[must_use]
    pub fn name(&self) -> String {
        self.text("cuDeviceGetName", |driver, to, room| {
            // SAFETY: `to` has `room` bytes, and the device is one of the driver's.
            unsafe { (driver.functions.cuDeviceGetName)(to, room, self.raw) }
        })
    }

    /// Its PCI address, as `0000:17:00.0`.
    #[must_use]
    pub fn pci_address(&self) -> String {
        self.text("cuDeviceGetPCIBusId", |driver, to, room| {
            // SAFETY: as above.
            unsafe { (driver.functions.cuDeviceGetPCIBusId)(to, room, self.raw) }
        })
    }

    /// Bytes of its memory; 0 where the driver does not tell.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let Ok(driver) = Driver::get() else { return 0 };
        let mut bytes = 0usize;
        // SAFETY: `bytes` is writable, and the device is one of the driver's.
        let asked = unsafe { (driver.functions.cuDeviceTotalMem_v2)(&mut bytes, self.raw) };
        if asked == 0 { bytes as u64 } else { 0 }
    }

    /// Compute capability, as (9, 0).
    #[must_use]
    pub fn capability(&self) -> (u32, u32) {
        use CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        (self.attribute(MAJOR).unwrap_or(0), self.attribute(MINOR).unwrap_or(0))
    }

    /// Whether the driver gives its memory out as dma-buf, by which a NIC reaches it.
    #[must_use]
    pub fn has_dmabuf(&self) -> bool {
        let newer = Driver::get().is_ok_and(|driver| driver.newer.is_some());
        newer && self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) == Some(1)
    }

    /// Whether the GPU sees what a network card has written into its memory by itself.
    fn orders_writes_of_others(&self) -> bool {
        let ordering =
            self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
        ordering.is_some_and(|ordering| ordering >= ORDERED_FOR_OWNER)
    }

    /// Whether there is a way to have the GPU see what a network card has written into its memory.
    ///
    /// # Errors
    /// What is missing, in words.
    pub(super) fn takes_writes_of_others(&self) -> Result<(), String> {
        let options =
            self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
        let flushes = options.is_some_and(|options| options & FLUSHED_BY_HOST != 0)
            && Driver::get().is_ok_and(|driver| driver.flushing.is_some());
        if flushes || self.orders_writes_of_others() {
            return Ok(());
        }
        Err(format!(
            "GPU {}: its driver has no way to tell when what a network card has written is there",
            self.ordinal
        ))
    }

    fn attribute(&self, which: CUdevice_attribute) -> Option<u32> {
        let driver = Driver::get().ok()?;
        let mut value: c_int = 0;
        // SAFETY: `value` is writable, and the device is one of the driver's.
        let asked = unsafe { (driver.functions.cuDeviceGetAttribute)(&mut value, which, self.raw) };
        (asked == 0).then(|| u32::try_from(value).ok()).flatten()
    }

    fn text(&self, call: &'static str, ask: impl Fn(&Driver, *mut c_char, c_int) -> u32) -> String {
        let Ok(driver) = Driver::get() else { return String::new() };
        let mut bytes = [0u8; NAME_BYTES];
        if let Err(error) = driver.check(call, ask(driver, bytes.as_mut_ptr().cast(), NAME_BYTES as c_int)) {
            return format!("unknown ({error})");
        }
        CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// A share in the context of a GPU that all libraries of the process have in common (its primary context).
pub struct Context {
    driver: &'static Driver,
    device: Device,
    raw: CUcontext,
}

// SAFETY: a context may be used and released by any thread, and by several at once.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("device", &self.device.ordinal).finish_non_exhaustive()
    }
}

impl Context {
    /// Takes a share in the context of `device`.
    ///
    /// # Errors
    /// When the driver refuses.
    ///
    /// # Panics
    /// Never: a device is there only where its driver is.
    pub fn retain(device: Device) -> Result<Arc<Context>, CudaError> {
        let driver = Driver::get().unwrap_or_else(|_| unreachable!("a device was given by the driver"));
        let mut raw: CUcontext = std::ptr::null_mut();
        // SAFETY: `raw` is writable, and the device is one of the driver's.
        let retained = unsafe { (driver.functions.cuDevicePrimaryCtxRetain)(&mut raw, device.raw) };
        driver.check("cuDevicePrimaryCtxRetain", retained)?;
        Ok(Arc::new(Context { driver, device, raw }))
    }

    /// The GPU.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    pub(super) fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// Has the GPU see all that network cards have written into its memory so far (S1 of `straight`).
    pub(super) fn see_writes_of_others(&self) -> Result<(), CudaError> {
        let driver = self.enter()?;
        let Some(flushing) = driver.flushing.filter(|_| !self.device.orders_writes_of_others()) else {
            return Ok(());
        };
        // SAFETY: takes no memory, and the thread is in the context.
        let flushed = unsafe { (flushing.cuFlushGPUDirectRDMAWrites)(FLUSH.0, FLUSH.1) };
        driver.check("cuFlushGPUDirectRDMAWrites", flushed)
    }

    /// Makes it the calling thread's, and gives the driver for calls in it.
    pub(super) fn enter(&self) -> Result<&'static Driver, CudaError> {
        // SAFETY: the context is retained while this lives (N2).
        let entered = unsafe { (self.driver.functions.cuCtxSetCurrent)(self.raw) };
        self.driver.check("cuCtxSetCurrent", entered).map(|()| self.driver)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once and released once; what was made in it held it and is gone (N2).
        let released = unsafe { (self.driver.functions.cuDevicePrimaryCtxRelease_v2)(self.device.raw) };
        if let Err(error) = self.driver.check("cuDevicePrimaryCtxRelease", released) {
            tracing::debug!(%error, "at the end of a context");
        }
    }
}
