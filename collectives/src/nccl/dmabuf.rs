//! Memory of a GPU as a dma-buf: a file that the kernel hands to a NIC's driver (`ibv_reg_dmabuf_mr`), so that the NIC
//! reaches the memory without the host's.

use super::error::CudaError;
use super::memory::DeviceBuffer;
use cudarc::driver::sys::CUmemRangeHandleType_enum::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
use ringway_dataplane::memory::{DeviceMemory, Element};
use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};

/// What an exported range begins and ends at a multiple of: the largest page of the hosts that GPUs are in.
const GRANULE_BYTES: u64 = 64 << 10;

/// Memory of a GPU, exported.
#[derive(Debug)]
pub struct Exported {
    /// The dma-buf. The memory is freed only after it is closed and nothing is registered by it any more.
    pub file: OwnedFd,
    /// Where the buffer begins in it.
    pub offset_bytes: u64,
    /// Its length from there.
    pub len_bytes: usize,
}

/// Why a buffer cannot be exported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DmabufError {
    /// The driver does not do it.
    #[error(
        "GPU {device}: its driver gives out no dma-buf: it needs CUDA 11.7 and the open kernel modules of NVIDIA"
    )]
    Unsupported {
        /// The GPU's number.
        device: u32,
    },
    /// The driver refuses.
    #[error("GPU {device}: {error}")]
    Refused {
        /// The GPU's number.
        device: u32,
        /// What it answered.
        error: CudaError,
    },
}

impl<T: Element> DeviceBuffer<T> {
    /// The memory, as transports register and lend it. Exported once.
    pub(super) fn on_device(&self) -> Result<&DeviceMemory, DmabufError> {
        let export = || {
            let device = self.context().device().ordinal();
            let Exported { file, offset_bytes, len_bytes } = self.export()?;
            let memory = DeviceMemory::new((self.address(), len_bytes), (file, offset_bytes), self.share());
            memory.ok_or(DmabufError::Unsupported { device })
        };
        self.exported.get_or_init(export).as_ref().map_err(Clone::clone)
    }

    /// Exports the pages that the buffer is in.
    ///
    /// # Errors
    /// [`DmabufError`].
    pub fn export(&self) -> Result<Exported, DmabufError> {
        let gpu = self.context().device();
        let device = gpu.ordinal();
        let refused = |error| DmabufError::Refused { device, error };
        let driver = self.context().enter().map_err(refused)?;
        let newer = driver.newer.filter(|_| gpu.has_dmabuf()).ok_or(DmabufError::Unsupported { device })?;
        let len_bytes = self.len() * size_of::<T>();
        let base = self.address() & !(GRANULE_BYTES - 1);
        let offset_bytes = self.address() - base;
        let bytes = (offset_bytes + len_bytes.max(1) as u64).next_multiple_of(GRANULE_BYTES);
        let mut file: c_int = -1;
        // SAFETY: for this kind of handle `file` is where a descriptor is written; the range is the driver's own to check.
        let result = unsafe {
            (newer.cuMemGetHandleForAddressRange)(
                (&raw mut file).cast(),
                base,
                bytes as usize,
                CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                0,
            )
        };
        driver.check("cuMemGetHandleForAddressRange", result).map_err(refused)?;
        // SAFETY: the descriptor is new and nobody else's.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        Ok(Exported { file, offset_bytes, len_bytes })
    }
}
