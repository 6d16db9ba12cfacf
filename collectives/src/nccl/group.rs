//! Several calls that go to NCCL as one.

use super::calls::{message, receive, send};
use super::comm::Operation;
use super::communicator::DeviceCommunicator;
use super::memory::{DeviceBuffer, Kept};
use super::order::{Said, With};
use crate::engine::{CollectiveError, InvalidCall, MAX_TAG};
use crate::reduce::ReduceOp;
use ringway_dataplane::memory::Element;
use std::marker::PhantomData;

type Result<T> = std::result::Result<T, CollectiveError>;

/// Calls that are gathered and then made at once, by [`DeviceGroup::run`]: any messages, and all-reduces, in any order. The
/// buffers stay borrowed meanwhile. One that is dropped has done nothing.
#[must_use = "a group does nothing until it is run"]
pub struct DeviceGroup<'a> {
    comm: &'a DeviceCommunicator,
    said: Vec<Said>,
    operations: Vec<Operation>,
    kept: Kept,
    buffers: PhantomData<&'a mut [u8]>,
}

impl std::fmt::Debug for DeviceGroup<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceGroup({} calls, {:?})", self.said.len(), self.comm)
    }
}

impl<'a> DeviceGroup<'a> {
    pub(super) fn new(comm: &'a DeviceCommunicator) -> DeviceGroup<'a> {
        DeviceGroup { comm, said: Vec::new(), operations: Vec::new(), kept: Vec::new(), buffers: PhantomData }
    }

    /// Adds [`DeviceCommunicator::send`].
    ///
    /// # Errors
    /// [`CollectiveError::Invalid`].
    pub fn send<T: Element>(&mut self, buffer: &'a DeviceBuffer<T>, to: u32, tag: u32) -> Result<()> {
        let call = message(T::DTYPE, tag, buffer.len());
        self.check("send", "destination", call, to, tag)?;
        self.said.push(Said { call, with: With::To(to) });
        self.operations.push(send(buffer, 0, buffer.len(), to));
        self.kept.push(buffer.share());
        Ok(())
    }

    /// Adds [`DeviceCommunicator::recv`].
    ///
    /// # Errors
    /// [`CollectiveError::Invalid`].
    pub fn recv<T: Element>(&mut self, buffer: &'a mut DeviceBuffer<T>, from: u32, tag: u32) -> Result<()> {
        let call = message(T::DTYPE, tag, buffer.len());
        self.check("recv", "source", call, from, tag)?;
        self.said.push(Said { call, with: With::From(from) });
        self.operations.push(receive(buffer, 0, buffer.len(), from));
        self.kept.push(buffer.share());
        Ok(())
    }

    /// Adds [`DeviceCommunicator::all_reduce`].
    ///
    /// # Errors
    /// [`CollectiveError::Invalid`].
    pub fn all_reduce<T: Element>(&mut self, buffer: &'a mut DeviceBuffer<T>, op: ReduceOp) -> Result<()> {
        let place = (buffer.address(), buffer.address());
        let planned = self.comm.plan_all_reduce::<T>(place, buffer.len(), op)?;
        self.kept.push(buffer.share());
        self.said.push(Said { call: planned.call, with: With::Group });
        self.operations.push(planned.operation);
        Ok(())
    }

    /// Makes the calls, and waits for the end of all.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn run(mut self) -> Result<()> {
        if self.said.is_empty() {
            return Ok(());
        }
        let shared = &self.comm.shared;
        // SAFETY: the buffers are borrowed for as long as this group lives, which is until the ticket is finished.
        let mut ticket = unsafe { shared.begin(&mut self.said, &self.operations, self.kept) }?;
        shared.finish(&mut ticket)
    }

    fn check(
        &self,
        name: &'static str,
        what: &'static str,
        call: crate::engine::Call,
        rank: u32,
        tag: u32,
    ) -> Result<()> {
        let size = self.comm.size();
        let why = if rank >= size {
            InvalidCall::NoSuchRank { what, rank, size }
        } else if rank == self.comm.rank() {
            InvalidCall::WithItself
        } else if tag > MAX_TAG {
            InvalidCall::TagTooLarge { tag, max: MAX_TAG }
        } else {
            return Ok(());
        };
        Err(self.comm.refuse(name, call, why))
    }
}
