//! A double of libibverbs, as far as memory is registered: no device, only functions that write down what they were asked
//! for. What each thread asks is its own.

use super::super::context::Context;
use super::super::{Library, ProtectionDomain, sys};
use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

thread_local! {
    static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static DMABUF_ERRNO: Cell<c_int> = const { Cell::new(0) };
}

/// Writes a line of the record.
pub(in crate::rdma) fn record(call: impl Into<String>) {
    CALLS.with_borrow_mut(|calls| calls.push(call.into()));
}

/// What was asked for since this was called last.
pub(in crate::rdma) fn calls() -> Vec<String> {
    CALLS.take()
}

/// Has dma-bufs refused from now on; 0 takes them.
pub(in crate::rdma) fn refuse_dmabuf(errno: c_int) {
    DMABUF_ERRNO.set(errno);
}

/// A protection domain of no device.
pub(in crate::rdma) fn domain(with_dmabuf: bool) -> Arc<ProtectionDomain> {
    let this = libloading::os::unix::Library::this();
    // SAFETY: looks for functions in the program itself, and keeps what it finds under its own name.
    let mut verbs = unsafe { sys::Verbs::from_library(this) }.expect("the program is open");
    verbs.ibv_alloc_pd = Ok(alloc_pd);
    verbs.ibv_dealloc_pd = Ok(dealloc_pd);
    verbs.ibv_close_device = Ok(close_device);
    verbs.ibv_reg_mr = Ok(reg_mr);
    verbs.ibv_dereg_mr = Ok(dereg_mr);
    if with_dmabuf {
        verbs.ibv_reg_dmabuf_mr = Ok(reg_dmabuf_mr);
    }
    let context = Context::double("double0", Library::double(verbs));
    ProtectionDomain::new(&context).expect("the double refuses none")
}

unsafe extern "C" fn alloc_pd(_: *mut sys::ibv_context) -> *mut sys::ibv_pd {
    NonNull::dangling().as_ptr()
}

unsafe extern "C" fn dealloc_pd(_: *mut sys::ibv_pd) -> c_int {
    0
}

unsafe extern "C" fn close_device(_: *mut sys::ibv_context) -> c_int {
    0
}

fn region(number: u32) -> *mut sys::ibv_mr {
    // SAFETY: plain numbers and pointers, of which none is followed.
    let empty: sys::ibv_mr = unsafe { std::mem::zeroed() };
    Box::into_raw(Box::new(sys::ibv_mr { lkey: number, rkey: number + 1, ..empty }))
}

unsafe extern "C" fn reg_mr(_: *mut sys::ibv_pd, _: *mut c_void, len: usize, _: c_int) -> *mut sys::ibv_mr {
    record(format!("ibv_reg_mr len={len}"));
    region(1)
}

unsafe extern "C" fn reg_dmabuf_mr(
    _: *mut sys::ibv_pd,
    offset: u64,
    len: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut sys::ibv_mr {
    // SAFETY: asks about a descriptor, whatever it is.
    let open = unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0;
    record(format!(
        "ibv_reg_dmabuf_mr offset={offset} len={len} iova={iova:#x} open={open} access={access:#x}"
    ));
    let errno = DMABUF_ERRNO.get();
    if errno == 0 {
        return region(7);
    }
    // SAFETY: this thread's own errno.
    unsafe { *libc::__errno_location() = errno };
    std::ptr::null_mut()
}

unsafe extern "C" fn dereg_mr(mr: *mut sys::ibv_mr) -> c_int {
    // SAFETY: made by `region`, and taken down once.
    let mr = unsafe { Box::from_raw(mr) };
    record(format!("ibv_dereg_mr lkey={}", mr.lkey));
    0
}
