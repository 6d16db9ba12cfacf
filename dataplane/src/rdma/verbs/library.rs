//! libibverbs, found at run time.

use super::VerbsError;
use super::error::{Words, last_errno};
use super::sys;
use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// The file that the dynamic loader is asked for.
pub const LIBRARY: &str = "libibverbs.so.1";

/// The verbs library, open.
pub struct Library {
    pub(super) sys: sys::Verbs,
    file: String,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("file", &self.file).finish_non_exhaustive()
    }
}

/// libibverbs cannot be used on this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The dynamic loader does not find or cannot open it.
    #[error(
        "{file} cannot be loaded ({reason}): install libibverbs1 and ibverbs-providers (Debian, Ubuntu), libibverbs \
         (Fedora, RHEL) or rdma-core (Arch)"
    )]
    NotFound {
        /// The file looked for.
        file: String,
        /// What the dynamic loader said.
        reason: String,
    },
    /// It lacks functions that every version since rdma-core 22 has.
    #[error("{file} has no {symbol}: it is not libibverbs, or older than rdma-core 22; install a newer one")]
    Incomplete {
        /// The file.
        file: String,
        /// The first function that is missing.
        symbol: &'static str,
    },
}

impl Library {
    /// Opens the machine's libibverbs. The first success is kept for the life of the process.
    ///
    /// # Errors
    /// When it is not installed or not usable.
    pub fn load() -> Result<Arc<Library>, LoadError> {
        static LOADED: OnceLock<Arc<Library>> = OnceLock::new();
        if let Some(library) = LOADED.get() {
            return Ok(Arc::clone(library));
        }
        let library = Library::open(LIBRARY)?;
        Ok(Arc::clone(LOADED.get_or_init(|| library)))
    }

    /// Opens the library in `file`, a name for the dynamic loader or a path.
    pub(super) fn open(file: &str) -> Result<Arc<Library>, LoadError> {
        // SAFETY: opening a library runs its initialisers; those of libibverbs only read its configuration, and a
        // file of another kind under that name would be a broken installation that no program survives.
        let sys = unsafe { sys::Verbs::new(file) };
        let sys = sys.map_err(|error| LoadError::NotFound { file: file.to_owned(), reason: said(&error) })?;
        if let Some(symbol) = missing(&sys) {
            return Err(LoadError::Incomplete { file: file.to_owned(), symbol });
        }
        // Keeps registered memory with this process when it forks, on kernels before 5.12; asked of the library
        // before anything else, as it demands.
        // SAFETY: takes no arguments.
        let errno = unsafe { sys.ibv_fork_init() };
        if errno != 0 {
            tracing::debug!("ibv_fork_init: {}: forking with RDMA in use is unsafe here", Words(errno));
        }
        Ok(Arc::new(Library { sys, file: file.to_owned() }))
    }

    /// These functions, in place of any library.
    #[cfg(test)]
    pub(super) fn double(sys: sys::Verbs) -> Arc<Library> {
        Arc::new(Library { sys, file: "a double".to_owned() })
    }

    /// Names of this machine's RDMA devices that can be opened here, in the kernel's order: not of those whose device
    /// file is missing or that have no driver in the library. Empty where the kernel has no support for RDMA.
    ///
    /// # Errors
    /// When the kernel's list cannot be read.
    pub fn device_names(&self) -> Result<Vec<String>, VerbsError> {
        let devices = DeviceList::read(self)?;
        Ok(devices.iter().map(|device| device.name.clone()).collect())
    }
}

/// The functions that everything here needs. All of them are in rdma-core 22.
fn missing(sys: &sys::Verbs) -> Option<&'static str> {
    macro_rules! absent {
        ($($name:ident)*) => {
            [$((stringify!($name), sys.$name.is_err())),*]
        };
    }
    let absent = absent! {
        ibv_get_device_list ibv_free_device_list ibv_open_device ibv_close_device ibv_fork_init
        ibv_query_device ibv_query_port ibv_query_gid ibv_query_pkey ibv_get_async_event ibv_ack_async_event
        ibv_alloc_pd ibv_dealloc_pd ibv_reg_mr ibv_dereg_mr
        ibv_create_comp_channel ibv_destroy_comp_channel ibv_get_cq_event ibv_ack_cq_events
        ibv_create_cq ibv_resize_cq ibv_destroy_cq ibv_create_srq ibv_modify_srq ibv_destroy_srq
        ibv_create_qp ibv_modify_qp ibv_query_qp ibv_destroy_qp ibv_create_ah ibv_destroy_ah
    };
    absent.into_iter().find(|(_, absent)| *absent).map(|(name, _)| name)
}

/// The loader's own words, which libloading keeps as the source of its error.
fn said(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// The library's list of devices; the devices stay valid while it lives.
pub(super) struct DeviceList<'l> {
    library: &'l Library,
    list: *mut *mut sys::ibv_device,
    len: usize,
}

/// One entry of a [`DeviceList`].
pub(super) struct Device {
    pub(super) raw: *mut sys::ibv_device,
    /// As in `rxe0`.
    pub(super) name: String,
    /// As in `/dev/infiniband/uverbs0`.
    pub(super) file: String,
    /// As in `/sys/class/infiniband/rxe0`.
    pub(super) sysfs: String,
}

impl<'l> DeviceList<'l> {
    pub(super) fn read(library: &'l Library) -> Result<DeviceList<'l>, VerbsError> {
        let mut len: c_int = 0;
        // SAFETY: `len` is writable for the call.
        let list = unsafe { library.sys.ibv_get_device_list(&mut len) };
        let errno = last_errno();
        if list.is_null() && errno != libc::ENOSYS && errno != libc::ENOENT {
            let device = library.file.clone();
            return Err(VerbsError::Call { call: "ibv_get_device_list", device, errno });
        }
        // ENOSYS, no list: a kernel without RDMA, which has no devices.
        let len = if list.is_null() { 0 } else { usize::try_from(len).unwrap_or(0) };
        Ok(DeviceList { library, list, len })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Device> {
        (0..self.len).map(|at| {
            // SAFETY: the list has `len` entries, each a valid device until the list is freed.
            let raw = unsafe { *self.list.add(at) };
            // SAFETY: as above; the names are arrays that the library ends with a zero byte.
            let (name, uverbs, sysfs) =
                unsafe { (text(&(*raw).name), text(&(*raw).dev_name), text(&(*raw).ibdev_path)) };
            Device { raw, name, file: format!("/dev/infiniband/{uverbs}"), sysfs }
        })
    }
}

impl Drop for DeviceList<'_> {
    fn drop(&mut self) {
        if !self.list.is_null() {
            // SAFETY: the list came from `ibv_get_device_list` and is freed once (I1).
            unsafe { self.library.sys.ibv_free_device_list(self.list) };
        }
    }
}

/// The text before the first zero byte of an array that a C library filled.
pub(super) fn text(array: &[c_char]) -> String {
    // SAFETY: `c_char` and `u8` have one size and alignment, and every value of either is one of the other.
    let bytes = unsafe { std::slice::from_raw_parts(array.as_ptr().cast::<u8>(), array.len()) };
    let text = CStr::from_bytes_until_nul(bytes).map_or(bytes, CStr::to_bytes);
    String::from_utf8_lossy(text).into_owned()
}
