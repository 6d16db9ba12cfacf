//! An open device.

use super::error::last_errno;
use super::event::AsyncEvent;
use super::library::{DeviceList, Library, text};
use super::sys;
use super::{VerbsError, port};
use std::fmt;
use std::fs::OpenOptions;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// An open device. Everything else is made from one.
pub struct Context {
    raw: NonNull<sys::ibv_context>,
    name: String,
    sysfs: String,
    library: Arc<Library>,
}

// SAFETY: every verb may be called from any thread (I5), and the context itself is not changed after it was opened.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// What a device is and how much it can hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Version of its firmware; empty where it has none.
    pub firmware: String,
    /// PCI or IEEE number of its maker.
    pub vendor_id: u32,
    /// The maker's number for it.
    pub vendor_part_id: u32,
    /// Revision of the hardware.
    pub hardware_version: u32,
    /// Physical ports; the first is number 1.
    pub ports: u8,
    /// Most queue pairs.
    pub max_queue_pairs: u32,
    /// Most requests in one queue of a queue pair.
    pub max_requests: u32,
    /// Most pieces of one request.
    pub max_sges: u32,
    /// Most completion queues.
    pub max_completion_queues: u32,
    /// Most entries of one completion queue.
    pub max_completion_entries: u32,
    /// Most memory regions.
    pub max_regions: u32,
    /// Most bytes of one region.
    pub max_region_bytes: u64,
    /// Most shared receive queues; 0 where there are none.
    pub max_shared_queues: u32,
    /// Most receives in one of them.
    pub max_shared_requests: u32,
    /// Most pieces of such a receive.
    pub max_shared_sges: u32,
    /// Most reads and atomics that one queue pair serves at a time.
    pub max_reads_served: u8,
    /// Most reads and atomics that one queue pair has under way.
    pub max_reads_issued: u8,
    /// Whether it has atomic operations.
    pub atomics: bool,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Context {
    /// No device.
    #[cfg(test)]
    pub(super) fn double(name: &str, library: Arc<Library>) -> Arc<Context> {
        let (raw, name, sysfs) = (NonNull::dangling(), name.to_owned(), String::new());
        Arc::new(Context { raw, name, sysfs, library })
    }

    /// Opens the device of that name, as [`Library::device_names`] lists it.
    ///
    /// # Errors
    /// When there is no such device, its device file is missing or may not be opened, or the library has no driver
    /// for it.
    pub fn open(library: &Arc<Library>, name: &str) -> Result<Arc<Context>, VerbsError> {
        let devices = DeviceList::read(library)?;
        let Some(device) = devices.iter().find(|device| device.name == name) else {
            return Err(absent_error(name, &devices));
        };
        // SAFETY: the device belongs to `devices`, which lives.
        let raw = unsafe { library.sys.ibv_open_device(device.raw) };
        let Some(raw) = NonNull::new(raw) else {
            return Err(open_error(device.name, device.file, last_errno()));
        };
        let (library, name, sysfs) = (Arc::clone(library), device.name, device.sysfs);
        let context = Context { raw, name, sysfs, library };
        set_nonblocking(context.async_fd())
            .map_err(|errno| context.error("fcntl of the event file", errno))?;
        Ok(Arc::new(context))
    }

    /// Name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the device is and can hold.
    ///
    /// # Errors
    /// When the device does not answer.
    pub fn device(&self) -> Result<DeviceLimits, VerbsError> {
        // SAFETY: the attributes are plain numbers and arrays of them, for which all zeros are valid.
        let mut at: sys::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open (I1), `at` is writable for the call.
        let errno = unsafe { self.sys().ibv_query_device(self.raw(), &mut at) };
        self.check("ibv_query_device", errno)?;
        let count = |n: i32| u32::try_from(n).unwrap_or(0);
        let small = |n: i32| u8::try_from(n.max(0)).unwrap_or(u8::MAX);
        Ok(DeviceLimits {
            firmware: text(&at.fw_ver),
            vendor_id: at.vendor_id,
            vendor_part_id: at.vendor_part_id,
            hardware_version: at.hw_ver,
            ports: at.phys_port_cnt,
            max_queue_pairs: count(at.max_qp),
            max_requests: count(at.max_qp_wr),
            max_sges: count(at.max_sge),
            max_completion_queues: count(at.max_cq),
            max_completion_entries: count(at.max_cqe),
            max_regions: count(at.max_mr),
            max_region_bytes: at.max_mr_size,
            max_shared_queues: count(at.max_srq),
            max_shared_requests: count(at.max_srq_wr),
            max_shared_sges: count(at.max_srq_sge),
            max_reads_served: small(at.max_qp_rd_atom),
            max_reads_issued: small(at.max_qp_init_rd_atom),
            atomics: at.atomic_cap != sys::IBV_ATOMIC_NONE,
        })
    }

    /// What a port is and does now. Ports count from 1.
    ///
    /// # Errors
    /// When there is no such port or the device does not answer.
    pub fn port(&self, port: u8) -> Result<port::PortState, VerbsError> {
        port::query(self, port)
    }

    /// One entry of a port's GID table, all zeros where that is unused.
    ///
    /// # Errors
    /// When there is no such entry.
    pub fn gid(&self, port: u8, index: u32) -> Result<[u8; 16], VerbsError> {
        port::gid(self, port, index)
    }

    /// The used entries of a port's GID table, with the type and the interface of each, by index.
    ///
    /// # Errors
    /// When there is no such port or the kernel's table cannot be read.
    pub fn gids(&self, port: u8) -> Result<Vec<port::GidEntry>, VerbsError> {
        port::gids(self, port)
    }

    /// One entry of a port's table of partition keys.
    ///
    /// # Errors
    /// When there is no such entry.
    pub fn pkey(&self, port: u8, index: u16) -> Result<u16, VerbsError> {
        port::pkey(self, port, index)
    }

    /// Readable when [`Context::next_async_event`] has something to say.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the file is open as long as the context (I1).
        unsafe { BorrowedFd::borrow_raw((*self.raw()).async_fd) }
    }

    /// Takes the next event of this device, if there is one. Does not wait.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn next_async_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        // SAFETY: an event is a number and a union of pointers and a number, for which all zeros are valid.
        let mut event: sys::ibv_async_event = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open (I1), `event` is writable for the call, and its file does not block.
        if unsafe { self.sys().ibv_get_async_event(self.raw(), &mut event) } != 0 {
            return match last_errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                errno => Err(self.error("ibv_get_async_event", errno)),
            };
        }
        // SAFETY: the event was read just now and is not acknowledged yet.
        let seen = unsafe { AsyncEvent::of(&event) };
        // SAFETY: as above; it is acknowledged once (I3).
        unsafe { self.sys().ibv_ack_async_event(&mut event) };
        Ok(Some(seen))
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_context {
        self.raw.as_ptr()
    }

    pub(super) fn sys(&self) -> &sys::Verbs {
        &self.library.sys
    }

    /// As in `/sys/class/infiniband/rxe0`.
    pub(super) fn sysfs(&self) -> &Path {
        Path::new(&self.sysfs)
    }

    /// The device's own functions, which the header's inline verbs go through.
    pub(super) fn ops(&self) -> &sys::ibv_context_ops {
        // SAFETY: the context is open (I1), and its table of functions is complete and unchanged since.
        unsafe { &(*self.raw()).ops }
    }

    pub(super) fn error(&self, call: &'static str, errno: i32) -> VerbsError {
        VerbsError::Call { call, device: self.name.clone(), errno }
    }

    pub(super) fn refuse(&self, call: &'static str, reason: impl Into<String>) -> VerbsError {
        VerbsError::Argument { call, device: self.name.clone(), reason: reason.into() }
    }

    /// The result of a verb that returns an error number, or -1 and `errno`.
    pub(super) fn check(&self, call: &'static str, returned: i32) -> Result<(), VerbsError> {
        match returned {
            0 => Ok(()),
            -1 => Err(self.error(call, last_errno())),
            errno => Err(self.error(call, errno.abs())),
        }
    }

    /// The result of a verb that returns an object, or null and `errno`.
    pub(super) fn made<T>(&self, call: &'static str, object: *mut T) -> Result<NonNull<T>, VerbsError> {
        NonNull::new(object).ok_or_else(|| self.error(call, last_errno()))
    }

    /// Takes an object down in a `Drop`: nothing can be done about a failure but to tell of it.
    pub(super) fn taken_down(&self, call: &'static str, returned: i32) {
        if let Err(error) = self.check(call, returned) {
            tracing::error!("{error}");
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened once and closed once (I1); all that was made from it held it and is gone (I2).
        let returned = unsafe { self.sys().ibv_close_device(self.raw()) };
        self.taken_down("ibv_close_device", returned);
    }
}

/// Why a device that the library lists does not open. The library's own reason is not to be relied on: it says that
/// there is no file where one may not be opened.
pub(super) fn open_error(device: String, path: String, errno: i32) -> VerbsError {
    let opened = OpenOptions::new().read(true).write(true).open(&path);
    match opened.map_err(|error| error.raw_os_error().unwrap_or(errno)) {
        Err(errno @ (libc::EPERM | libc::EACCES)) => VerbsError::OpenDenied { device, path, errno },
        Err(libc::ENOENT | libc::ENXIO) => VerbsError::NoDeviceFile { device, path },
        Err(errno) => VerbsError::Call { call: "open", device: path, errno },
        Ok(_) => VerbsError::Call { call: "ibv_open_device", device, errno },
    }
}

/// Why the library does not list a device: it leaves out those that have no device file here, and those that it has
/// no driver for.
fn absent_error(name: &str, devices: &DeviceList<'_>) -> VerbsError {
    let device = name.to_owned();
    let of_kernel = Path::new("/sys/class/infiniband");
    if name.is_empty() || name.contains('/') || !of_kernel.join(name).exists() {
        return VerbsError::NoSuchDevice {
            device,
            known: devices.iter().map(|device| device.name).collect(),
        };
    }
    let files = std::fs::read_dir("/sys/class/infiniband_verbs").into_iter().flatten().flatten();
    let is_of_device =
        |folder: &Path| std::fs::read_to_string(folder.join("ibdev")).is_ok_and(|ibdev| ibdev.trim() == name);
    let file = files.map(|entry| entry.path()).find(|folder| is_of_device(folder));
    let file =
        file.as_deref().and_then(Path::file_name).map_or("uverbs".into(), |file| file.to_string_lossy());
    let path = format!("/dev/infiniband/{file}");
    match Path::new(&path).exists() {
        true => VerbsError::NoDriver { device },
        false => VerbsError::NoDeviceFile { device, path },
    }
}

/// Makes reads of a file return instead of wait.
pub(super) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<(), i32> {
    let flags = rustix::fs::fcntl_getfl(fd).map_err(rustix::io::Errno::raw_os_error)?;
    rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK).map_err(rustix::io::Errno::raw_os_error)
}
