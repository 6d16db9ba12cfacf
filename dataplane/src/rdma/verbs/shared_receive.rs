//! Receives that several queue pairs share.

use super::context::Context;
use super::error::{PostError, VerbsError};
use super::memory::ProtectionDomain;
use super::posting::{self, ReceiveRequest};
use super::sys;
use std::fmt;
use std::mem::zeroed;
use std::ptr::NonNull;
use std::sync::Arc;

/// A queue of receives for all queue pairs that were made with it.
pub struct SharedReceiveQueue {
    raw: NonNull<sys::ibv_srq>,
    handle: u32,
    max_receives: u32,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: every verb may be called from any thread (I5).
unsafe impl Send for SharedReceiveQueue {}
// SAFETY: as above.
unsafe impl Sync for SharedReceiveQueue {}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("SharedReceiveQueue");
        f.field("handle", &self.handle).field("max_receives", &self.max_receives).finish_non_exhaustive()
    }
}

impl SharedReceiveQueue {
    /// Makes a queue of at least `max_receives`, each of up to `max_sges` pieces.
    ///
    /// # Errors
    /// When the device has no such queues, no more of them, or none so long.
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        max_receives: u32,
        max_sges: u32,
    ) -> Result<Arc<SharedReceiveQueue>, VerbsError> {
        let context = domain.context();
        // SAFETY: the attributes are numbers and a null pointer, for which all zeros are valid.
        let mut at: sys::ibv_srq_init_attr = unsafe { zeroed() };
        at.attr.max_wr = max_receives;
        at.attr.max_sge = max_sges;
        // SAFETY: the domain is alive, and the attributes are complete.
        let raw = unsafe { context.sys().ibv_create_srq(domain.raw(), &mut at) };
        let raw = context.made("ibv_create_srq", raw)?;
        // SAFETY: the queue was made just now.
        let handle = unsafe { raw.as_ref().handle };
        let (max_receives, domain) = (at.attr.max_wr.max(max_receives), Arc::clone(domain));
        Ok(Arc::new(SharedReceiveQueue { raw, handle, max_receives, domain }))
    }

    /// Its number in this context, as events name it.
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Receives that it holds.
    pub fn max_receives(&self) -> u32 {
        self.max_receives
    }

    /// Asks for one event when fewer than `receives` are left.
    ///
    /// # Errors
    /// When the device cannot.
    pub fn request_limit_event(&self, receives: u32) -> Result<(), VerbsError> {
        let mut at = sys::ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: receives };
        let mask = sys::IBV_SRQ_LIMIT as i32;
        // SAFETY: the queue is alive (I1), and the mask names the field that is set.
        let returned = unsafe { self.context().sys().ibv_modify_srq(self.raw(), &mut at, mask) };
        self.context().check("ibv_modify_srq", returned)
    }

    /// Adds receives. Allocates nothing.
    ///
    /// # Safety
    /// The memory of each stays mapped, and is neither read nor written by anybody else, until its completion has
    /// been polled, or this queue and all queue pairs on it have been dropped.
    ///
    /// # Errors
    /// When the queue is full or a request does not fit it; says how many were accepted.
    pub unsafe fn post_receive(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        let post = self.context().ops().post_srq_recv.expect("a device with such queues has it");
        // SAFETY: the queue is alive (I1); the memory is the caller's promise.
        unsafe {
            posting::receive("ibv_post_srq_recv", requests, |first, refused| post(self.raw(), first, refused))
        }
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_srq {
        self.raw.as_ptr()
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        self.domain.context()
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: made once and taken down once (I1); its queue pairs held it and are gone (I2).
        let returned = unsafe { self.context().sys().ibv_destroy_srq(self.raw()) };
        self.context().taken_down("ibv_destroy_srq", returned);
    }
}
