//! The CUDA driver, found at run time: cudarc looks for the library and has the types; the functions are resolved here.
//!
//! cudarc's own wrappers panic where the library or a symbol is missing, and answer a Rust enum, in which the number of an
//! error that a newer driver adds would be undefined behaviour. Here results are numbers, and all that may be missing is
//! looked for first.

use super::error::{CudaError, Unavailable, Version};
use super::symbols::symbols;
use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUmemRangeHandleType, CUstream, culib,
    is_culib_present,
};
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

/// The driver's results that mean something here.
pub(super) const SUCCESS: u32 = 0;
pub(super) const ERROR_OUT_OF_MEMORY: u32 = 2;
const ERROR_NO_DEVICE: u32 = 100;
pub(super) const ERROR_NOT_READY: u32 = 600;

symbols! {
    /// The functions that are used; all of them are in every driver since CUDA 11.
    struct Functions {
        cuInit: fn(c_uint) -> u32;
        cuDriverGetVersion: fn(*mut c_int) -> u32;
        cuGetErrorName: fn(u32, *mut *const c_char) -> u32;
        cuGetErrorString: fn(u32, *mut *const c_char) -> u32;
        cuDeviceGetCount: fn(*mut c_int) -> u32;
        cuDeviceGet: fn(*mut CUdevice, c_int) -> u32;
        cuDeviceGetName: fn(*mut c_char, c_int, CUdevice) -> u32;
        cuDeviceTotalMem_v2: fn(*mut usize, CUdevice) -> u32;
        cuDeviceGetAttribute: fn(*mut c_int, CUdevice_attribute, CUdevice) -> u32;
        cuDeviceGetPCIBusId: fn(*mut c_char, c_int, CUdevice) -> u32;
        cuDevicePrimaryCtxRetain: fn(*mut CUcontext, CUdevice) -> u32;
        cuDevicePrimaryCtxRelease_v2: fn(CUdevice) -> u32;
        cuCtxSetCurrent: fn(CUcontext) -> u32;
        cuMemAlloc_v2: fn(*mut CUdeviceptr, usize) -> u32;
        cuMemFree_v2: fn(CUdeviceptr) -> u32;
        cuMemAllocHost_v2: fn(*mut *mut c_void, usize) -> u32;
        cuMemFreeHost: fn(*mut c_void) -> u32;
        cuMemcpyHtoDAsync_v2: fn(CUdeviceptr, *const c_void, usize, CUstream) -> u32;
        cuMemcpyDtoHAsync_v2: fn(*mut c_void, CUdeviceptr, usize, CUstream) -> u32;
        cuMemcpyDtoDAsync_v2: fn(CUdeviceptr, CUdeviceptr, usize, CUstream) -> u32;
        cuMemsetD8Async: fn(CUdeviceptr, c_uchar, usize, CUstream) -> u32;
        cuStreamCreate: fn(*mut CUstream, c_uint) -> u32;
        cuStreamDestroy_v2: fn(CUstream) -> u32;
        cuStreamSynchronize: fn(CUstream) -> u32;
        cuStreamWaitEvent: fn(CUstream, CUevent, c_uint) -> u32;
        cuEventCreate: fn(*mut CUevent, c_uint) -> u32;
        cuEventDestroy_v2: fn(CUevent) -> u32;
        cuEventRecord: fn(CUevent, CUstream) -> u32;
        cuEventQuery: fn(CUevent) -> u32;
    }
}

symbols! {
    /// What drivers since CUDA 11.7 have besides.
    struct Newer {
        cuMemGetHandleForAddressRange: fn(*mut c_void, CUdeviceptr, usize, CUmemRangeHandleType, c_ulonglong) -> u32;
    }
}

symbols! {
    /// What drivers since CUDA 11.3 have besides.
    struct Flushing {
        cuFlushGPUDirectRDMAWrites: fn(c_uint, c_uint) -> u32;
    }
}

/// The driver of this host, started.
pub(super) struct Driver {
    pub(super) functions: Functions,
    /// `None` before CUDA 11.7.
    pub(super) newer: Option<Newer>,
    /// `None` before CUDA 11.3.
    pub(super) flushing: Option<Flushing>,
    pub(super) version: Version,
}

impl Driver {
    /// The driver, looked for and started once per process.
    ///
    /// # Errors
    /// When it is missing, too old, or does not start.
    pub(super) fn get() -> Result<&'static Driver, Unavailable> {
        static DRIVER: OnceLock<Result<Driver, Unavailable>> = OnceLock::new();
        DRIVER.get_or_init(Driver::start).as_ref().map_err(Clone::clone)
    }

    fn start() -> Result<Driver, Unavailable> {
        // SAFETY: opening the driver's library runs its initialisers, which are made to run in any process.
        if !unsafe { is_culib_present() } {
            return Err(Unavailable::NoDriver);
        }
        let find = |name: &'static str| {
            // SAFETY: the library is there, as was just seen; an address is read as one.
            unsafe { culib().get::<*const ()>(name.as_bytes()).ok().map(|symbol| *symbol) }
        };
        // SAFETY: cudarc has these functions with these arguments, from the driver's header; their result is an enum there
        // and of the same size here. cudarc never closes the library.
        let functions = unsafe { Functions::resolve(&find) };
        let functions = functions.map_err(|symbol| Unavailable::DriverIncomplete { symbol })?;
        // SAFETY: as above.
        let newer = unsafe { Newer::resolve(&find) }.ok();
        // SAFETY: as above.
        let flushing = unsafe { Flushing::resolve(&find) }.ok();
        let mut driver = Driver { functions, newer, flushing, version: Version::OLDEST_DRIVER };
        let mut code: c_int = 0;
        // SAFETY: the version may be asked for before anything else, and `code` is writable.
        let asked = driver.check("cuDriverGetVersion", unsafe { (functions.cuDriverGetVersion)(&mut code) });
        asked.map_err(Unavailable::DriverRefuses)?;
        driver.version = Version::of_driver(u32::try_from(code).unwrap_or(0));
        if driver.version < Version::OLDEST_DRIVER {
            return Err(Unavailable::DriverTooOld { found: driver.version });
        }
        // SAFETY: takes no memory; the only flag allowed is 0.
        match unsafe { (functions.cuInit)(0) } {
            ERROR_NO_DEVICE => Err(Unavailable::NoDevice),
            result => driver.check("cuInit", result).map_err(Unavailable::DriverRefuses).map(|()| driver),
        }
    }

    /// What a function's result says.
    pub(super) fn check(&self, call: &'static str, result: u32) -> Result<(), CudaError> {
        if result == SUCCESS { Ok(()) } else { Err(self.error(call, result)) }
    }

    #[cold]
    fn error(&self, call: &'static str, code: u32) -> CudaError {
        let words = |get: unsafe extern "C" fn(u32, *mut *const c_char) -> u32| {
            let mut text: *const c_char = std::ptr::null();
            // SAFETY: `text` is writable; it becomes null, or a text that lives as long as the driver.
            unsafe {
                get(code, &mut text);
                (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
            }
        };
        CudaError {
            call,
            code,
            name: words(self.functions.cuGetErrorName).unwrap_or_else(|| "an unknown error".to_owned()),
            text: words(self.functions.cuGetErrorString).unwrap_or_else(|| "not described".to_owned()),
        }
    }
}
