//! NCCL, found at run time by a loader of our own: cudarc looks for `libnccl.so` only, which packages without headers do
//! not have, and panics where it is missing.

use super::error::{NcclError, Unavailable, Version};
use super::symbols::symbols;
use cudarc::driver::sys::CUstream;
use cudarc::nccl::sys::{ncclComm_t, ncclConfig_t, ncclUniqueId};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// The files that the dynamic loader is asked for, in this order.
pub const FILES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

pub(super) const SUCCESS: u32 = 0;
pub(super) const IN_PROGRESS: u32 = 7;

symbols! {
    /// The functions that are used. Element types and reductions are numbers of NCCL's header.
    struct Functions {
        ncclGetUniqueId: fn(*mut ncclUniqueId) -> u32;
        ncclGetErrorString: fn(u32) -> *const c_char;
        ncclGetLastError: fn(ncclComm_t) -> *const c_char;
        ncclCommInitRankConfig: fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t) -> u32;
        ncclCommGetAsyncError: fn(ncclComm_t, *mut u32) -> u32;
        ncclCommFinalize: fn(ncclComm_t) -> u32;
        ncclCommDestroy: fn(ncclComm_t) -> u32;
        ncclCommAbort: fn(ncclComm_t) -> u32;
        ncclAllReduce: fn(*const c_void, *mut c_void, usize, u32, u32, ncclComm_t, CUstream) -> u32;
        ncclReduce: fn(*const c_void, *mut c_void, usize, u32, u32, c_int, ncclComm_t, CUstream) -> u32;
        ncclBroadcast: fn(*const c_void, *mut c_void, usize, u32, c_int, ncclComm_t, CUstream) -> u32;
        ncclReduceScatter: fn(*const c_void, *mut c_void, usize, u32, u32, ncclComm_t, CUstream) -> u32;
        ncclAllGather: fn(*const c_void, *mut c_void, usize, u32, ncclComm_t, CUstream) -> u32;
        ncclSend: fn(*const c_void, usize, u32, c_int, ncclComm_t, CUstream) -> u32;
        ncclRecv: fn(*mut c_void, usize, u32, c_int, ncclComm_t, CUstream) -> u32;
        ncclGroupStart: fn() -> u32;
        ncclGroupEnd: fn() -> u32;
    }
}

/// NCCL, open.
pub struct Library {
    pub(super) functions: Functions,
    version: Version,
    file: String,
    /// Never closed: NCCL keeps threads of its own for a while after its last communicator.
    _open: ManuallyDrop<libloading::Library>,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library")
            .field("file", &self.file)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl Library {
    /// Opens NCCL: the file that is given, or else the first of [`FILES`] that the dynamic loader finds.
    ///
    /// # Errors
    /// When it is missing, too old, or no NCCL.
    pub fn load(file: Option<&str>) -> Result<Arc<Library>, Unavailable> {
        let (mut found, mut first) = (None, None);
        for file in file.map_or(&FILES[..], |_| &[]).iter().copied().chain(file) {
            // SAFETY: opening a library runs its initialisers; NCCL's are made to run in any process, and another library
            // under that name would be a broken installation that no program survives.
            match unsafe { libloading::Library::new(file) } {
                Ok(library) => {
                    found = Some((file, library));
                    break;
                }
                // The first name's error is the one to be told: the second exists only beside it.
                Err(error) => first = first.or_else(|| Some(said(&error))),
            }
        }
        match found {
            Some((file, library)) => Library::look(file, library).map(Arc::new),
            None => Err(Unavailable::NoNccl { reason: first.unwrap_or_default() }),
        }
    }

    fn look(file: &str, library: libloading::Library) -> Result<Library, Unavailable> {
        let incomplete = |symbol| Unavailable::NcclIncomplete { file: file.to_owned(), symbol };
        // SAFETY: by NCCL's header, of all versions.
        let version = unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> u32>(b"ncclGetVersion\0") };
        let version = version.map_err(|_| incomplete("ncclGetVersion"))?;
        let mut code: c_int = 0;
        // SAFETY: `code` is writable.
        let result = unsafe { version(&mut code) };
        if result != SUCCESS {
            let (text, detail) = ("it does not tell its version".to_owned(), String::new());
            let error = NcclError { call: "ncclGetVersion", code: result, text, detail };
            return Err(Unavailable::NcclRefuses { file: file.to_owned(), error });
        }
        let version = Version::of_nccl(u32::try_from(code).unwrap_or(0));
        if version < Version::OLDEST_NCCL {
            return Err(Unavailable::NcclTooOld { file: file.to_owned(), found: version });
        }
        let find = |name: &'static str| {
            // SAFETY: an address is read as one.
            unsafe { library.get::<*const ()>(name.as_bytes()).ok().map(|symbol| *symbol) }
        };
        // SAFETY: the arguments and results are those of NCCL's header since 2.18, which has kept them since; the library is
        // never closed.
        let functions = unsafe { Functions::resolve(&find) }.map_err(incomplete)?;
        Ok(Library { functions, version, file: file.to_owned(), _open: ManuallyDrop::new(library) })
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The file that it was loaded from, as the dynamic loader was asked.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// A new unique id, by which the ranks of one communicator find each other. Its maker listens for them.
    ///
    /// # Errors
    /// When NCCL finds no network interface to listen on.
    pub fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut id = ncclUniqueId { internal: [0; UniqueId::BYTES] };
        // SAFETY: `id` is writable.
        let result = unsafe { (self.functions.ncclGetUniqueId)(&mut id) };
        self.check("ncclGetUniqueId", result, std::ptr::null_mut())?;
        Ok(UniqueId(id))
    }

    /// What a function's result says. One that goes on in the background is no error.
    pub(super) fn check(&self, call: &'static str, result: u32, comm: ncclComm_t) -> Result<(), NcclError> {
        if result == SUCCESS || result == IN_PROGRESS { Ok(()) } else { Err(self.error(call, result, comm)) }
    }

    #[cold]
    pub(super) fn error(&self, call: &'static str, code: u32, comm: ncclComm_t) -> NcclError {
        let words = |text: *const c_char| {
            // SAFETY: NCCL answers null, or a text that stays: a constant, or a buffer of the thread that is read at once.
            let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
            text.map_or(String::new(), |text| text.to_string_lossy().trim().to_owned())
        };
        // SAFETY: any number is allowed.
        let text = words(unsafe { (self.functions.ncclGetErrorString)(code) });
        // SAFETY: the communicator is null, which is allowed, or alive.
        let detail = words(unsafe { (self.functions.ncclGetLastError)(comm) });
        NcclError { call, code, text, detail }
    }
}

/// The loader's own words, which libloading keeps as the source of its error.
fn said(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// What the ranks of one NCCL communicator have in common: opaque bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub(super) ncclUniqueId);

impl UniqueId {
    /// Its length.
    pub const BYTES: usize = 128;

    /// Its bytes, to be handed to the other ranks.
    #[must_use]
    pub fn bytes(&self) -> [u8; UniqueId::BYTES] {
        self.0.internal.map(|byte| byte as u8)
    }

    /// One out of bytes that came from another rank; `None` when their number is wrong.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<UniqueId> {
        let bytes: [u8; UniqueId::BYTES] = bytes.try_into().ok()?;
        Some(UniqueId(ncclUniqueId { internal: bytes.map(|byte| byte as c_char) }))
    }
}

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Whoever has all of it may join.
        write!(f, "UniqueId({:02x?}..)", &self.bytes()[..4])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = Library::load(Some("/no/such/libnccl.so.2")).unwrap_err();
        assert!(
            matches!(&error, Unavailable::NoNccl { reason } if reason.contains("/no/such/libnccl.so.2")),
            "{error}"
        );
        assert!(error.to_string().contains("RINGWAY_NCCL_LIBRARY"));
    }

    #[test]
    fn a_library_of_another_kind_is_no_nccl() {
        let error = Library::load(Some("libc.so.6")).unwrap_err();
        let expected = Unavailable::NcclIncomplete { file: "libc.so.6".to_owned(), symbol: "ncclGetVersion" };
        assert_eq!(error, expected);
    }

    #[test]
    fn unique_ids_are_bytes() {
        let mut bytes = [0u8; UniqueId::BYTES];
        bytes[127] = 0xff;
        let id = UniqueId::from_bytes(&bytes).unwrap();
        assert_eq!(id.bytes(), bytes);
        assert!(UniqueId::from_bytes(&bytes[1..]).is_none());
    }
}
