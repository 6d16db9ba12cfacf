//! Streams, in which a GPU works in order, and events, by which one stream or the host waits for another.

use super::device::Context;
use super::driver::ERROR_NOT_READY;
use super::error::CudaError;
use cudarc::driver::sys::{CUevent, CUstream};
use std::ffi::{c_uint, c_void};
use std::sync::Arc;

/// `CU_STREAM_NON_BLOCKING`: it does not wait for the stream that everything else is in.
const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`: cheaper to wait for.
const WITHOUT_TIMES: c_uint = 2;

/// Work for a GPU, in order.
pub struct Stream {
    raw: CUstream,
    owned: bool,
    context: Arc<Context>,
}

// SAFETY: a stream may be used by any thread, and by several at once: the driver locks.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({:p}, {:?})", self.raw, self.context)
    }
}

impl Stream {
    /// A new stream, which waits for no other.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn new(context: &Arc<Context>) -> Result<Stream, CudaError> {
        let driver = context.enter()?;
        let mut raw: CUstream = std::ptr::null_mut();
        // SAFETY: `raw` is writable, and the thread is in the context.
        let made = unsafe { (driver.functions.cuStreamCreate)(&mut raw, NON_BLOCKING) };
        driver.check("cuStreamCreate", made)?;
        Ok(Stream { raw, owned: true, context: Arc::clone(context) })
    }

    /// A stream that something else has made: a framework's.
    ///
    /// # Safety
    /// `raw` is a stream of `context`, and outlives this.
    pub unsafe fn borrowed(context: &Arc<Context>, raw: *mut c_void) -> Stream {
        Stream { raw: raw.cast(), owned: false, context: Arc::clone(context) }
    }

    pub(super) fn raw(&self) -> CUstream {
        self.raw
    }

    /// What it is in.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Blocks until all work that was given to it so far is done. It has no limit: nothing in the stream may wait for other
    /// ranks.
    ///
    /// # Errors
    /// When the GPU has failed.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let driver = self.context.enter()?;
        // SAFETY: the stream is alive.
        driver.check("cuStreamSynchronize", unsafe { (driver.functions.cuStreamSynchronize)(self.raw) })
    }

    /// Has what is given to it from now on wait for `event`. Returns at once.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        let driver = self.context.enter()?;
        // SAFETY: both are alive; the driver keeps what it needs of the event.
        let asked = unsafe { (driver.functions.cuStreamWaitEvent)(self.raw, event.raw, 0) };
        driver.check("cuStreamWaitEvent", asked)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        // SAFETY: made once and destroyed once; the driver lets what is in it end.
        let destroy =
            |driver: &super::driver::Driver| unsafe { (driver.functions.cuStreamDestroy_v2)(self.raw) };
        let done = self.context.enter().and_then(|d| d.check("cuStreamDestroy", destroy(d)));
        if let Err(error) = done {
            tracing::debug!(%error, "at the end of a stream");
        }
    }
}

/// A point in a stream.
pub struct Event {
    raw: CUevent,
    context: Arc<Context>,
}

// SAFETY: as for streams.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Event({:p}, {:?})", self.raw, self.context)
    }
}

impl Event {
    /// An event that is nowhere yet, and done.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn new(context: &Arc<Context>) -> Result<Event, CudaError> {
        let driver = context.enter()?;
        let mut raw: CUevent = std::ptr::null_mut();
        // SAFETY: `raw` is writable, and the thread is in the context.
        let made = unsafe { (driver.functions.cuEventCreate)(&mut raw, WITHOUT_TIMES) };
        driver.check("cuEventCreate", made)?;
        Ok(Event { raw, context: Arc::clone(context) })
    }

    /// Moves it behind all that `stream` was given so far.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        let driver = self.context.enter()?;
        // SAFETY: both are alive and of one context.
        driver.check("cuEventRecord", unsafe { (driver.functions.cuEventRecord)(self.raw, stream.raw) })
    }

    /// Whether all before it is done.
    ///
    /// # Errors
    /// When the GPU has failed.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        let driver = self.context.driver();
        // SAFETY: the event is alive; asking needs no context.
        match unsafe { (driver.functions.cuEventQuery)(self.raw) } {
            ERROR_NOT_READY => Ok(false),
            result => driver.check("cuEventQuery", result).map(|()| true),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let driver = self.context.driver();
        // SAFETY: made once and destroyed once.
        let destroyed = unsafe { (driver.functions.cuEventDestroy_v2)(self.raw) };
        if let Err(error) = driver.check("cuEventDestroy", destroyed) {
            tracing::debug!(%error, "at the end of an event");
        }
    }
}
