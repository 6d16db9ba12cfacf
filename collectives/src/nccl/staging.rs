//! Memory of the host that bytes pass through on their way between GPUs of different hosts.

#![forbid(unsafe_code)]

use super::device::Context;
use super::error::CudaError;
use super::memory::PinnedBuffer;
use super::shared::lock;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

/// Pinned memory that calls before have left. As many pieces as calls were under way at once.
#[derive(Debug, Default)]
pub(super) struct Staging(Mutex<Vec<PinnedBuffer<u8>>>);

/// A piece of it, for a call.
pub(super) struct Staged<'a> {
    of: &'a Staging,
    /// Taken when this is dropped.
    piece: Option<PinnedBuffer<u8>>,
}

impl Staging {
    /// At least `bytes` bytes.
    pub(super) fn take(&self, context: &Arc<Context>, bytes: usize) -> Result<Staged<'_>, CudaError> {
        let before = lock(&self.0).pop();
        let piece = match before.filter(|piece| piece.len() >= bytes) {
            Some(piece) => piece,
            None => PinnedBuffer::zeroed(context, bytes)?,
        };
        Ok(Staged { of: self, piece: Some(piece) })
    }
}

impl Deref for Staged<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.piece.as_deref().unwrap_or_default()
    }
}

impl DerefMut for Staged<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.piece.as_deref_mut().unwrap_or_default()
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        lock(&self.of.0).extend(self.piece.take());
    }
}
