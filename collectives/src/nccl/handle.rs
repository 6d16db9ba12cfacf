//! The end of a call that was started on a GPU.

#![forbid(unsafe_code)]

use super::memory::DeviceBuffer;
use super::shared::{Shared, Ticket};
use super::stream::Stream;
use super::watch::Watch;
use crate::engine::CollectiveError;
use ringway_dataplane::memory::Element;
use std::sync::Arc;

/// A call under way on a GPU. Dropping it waits for the call.
#[must_use = "a started call's result comes from its handle"]
pub struct DeviceHandle<T: Element> {
    shared: Arc<Shared>,
    ticket: Ticket,
    buffer: Option<DeviceBuffer<T>>,
}

impl<T: Element> std::fmt::Debug for DeviceHandle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceHandle({})", self.ticket.call)
    }
}

impl<T: Element> DeviceHandle<T> {
    pub(super) fn new(shared: &Arc<Shared>, ticket: Ticket, buffer: DeviceBuffer<T>) -> DeviceHandle<T> {
        DeviceHandle { shared: Arc::clone(shared), ticket, buffer: Some(buffer) }
    }

    /// Waits for the call on this thread, and returns its buffer.
    ///
    /// # Errors
    /// [`CollectiveError`] when the communicator died; the buffer is then freed.
    pub fn wait(mut self) -> Result<DeviceBuffer<T>, CollectiveError> {
        self.end()?;
        Ok(self.buffer.take().unwrap_or_else(|| unreachable!("it is taken only here")))
    }

    /// Has later work of `stream` wait for the call. Returns at once.
    ///
    /// # Errors
    /// [`CollectiveError::Aborted`] when the driver refuses.
    pub fn before(&self, stream: &Stream) -> Result<(), CollectiveError> {
        let call = Some(self.ticket.call);
        let Some(event) = self.ticket.event() else { return Ok(()) };
        stream.wait_for(event).map_err(|error| self.shared.by_words(&error.to_string(), call))
    }

    fn end(&mut self) -> Result<(), CollectiveError> {
        Watch::leave(&self.shared, &self.ticket.call);
        self.shared.finish(&mut self.ticket)
    }
}

impl<T: Element> Drop for DeviceHandle<T> {
    fn drop(&mut self) {
        // Whoever calls next is told.
        let _ = self.end();
    }
}
