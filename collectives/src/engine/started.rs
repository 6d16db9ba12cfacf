//! The started forms: an owned buffer in, a handle out; the call goes on while the caller does other things.
//!
//! Collectives go on by a background thread. Messages have too little to do for that: they go on while any call of
//! the process or any handle waits, and by the background thread from when a handle is awaited or asked whether it is
//! done. Where started calls are the callers' to move on ([`Progress::Caller`]), neither has a thread.

#![forbid(unsafe_code)]

use super::blocking::request;
use super::communicator::Communicator;
use super::core::CallRegions;
use super::error::CollectiveError;
use super::handle::{Handle, no_thread};
#[cfg(doc)]
use super::options::Progress;
use super::p2p::message;
use super::plan::{Request, What};
use crate::reduce::ReduceOp;
use crate::schedule::Collective;
use bytemuck::cast_slice;
use ringway_dataplane::memory::pool::Claim;
use ringway_dataplane::memory::{Buffer, Element, Region};

type Result<T> = std::result::Result<T, CollectiveError>;

impl Communicator {
    /// Starts [`Communicator::all_reduce`] on an owned buffer.
    ///
    /// # Errors
    /// [`CollectiveError`]; the buffer then goes back to the pool.
    pub fn all_reduce_start<T: Element>(&self, buffer: Buffer<T>, op: ReduceOp) -> Result<Handle<T>> {
        let request =
            Request { op: Some(op), in_place: true, ..request::<T>(Collective::AllReduce, buffer.len()) };
        self.check_op("all_reduce", &request)?;
        self.start("all_reduce", &request, buffer)
    }

    /// Starts [`Communicator::reduce_scatter_in_place`] on an owned buffer of one block per rank.
    ///
    /// # Errors
    /// [`CollectiveError`]; the buffer then goes back to the pool.
    pub fn reduce_scatter_start<T: Element>(&self, buffer: Buffer<T>, op: ReduceOp) -> Result<Handle<T>> {
        let of = |count| Request {
            op: Some(op),
            in_place: true,
            ..request::<T>(Collective::ReduceScatter, count)
        };
        self.check_op("reduce_scatter", &of(buffer.len()))?;
        let request = of(self.block("reduce_scatter", &of(buffer.len()), buffer.len())?);
        self.start("reduce_scatter", &request, buffer)
    }

    /// Starts [`Communicator::all_gather_in_place`] on an owned buffer in which this rank has filled its own block.
    ///
    /// # Errors
    /// [`CollectiveError`]; the buffer then goes back to the pool.
    pub fn all_gather_start<T: Element>(&self, buffer: Buffer<T>) -> Result<Handle<T>> {
        let of = |count| Request { in_place: true, ..request::<T>(Collective::AllGather, count) };
        let request = of(self.block("all_gather", &of(buffer.len()), buffer.len())?);
        self.start("all_gather", &request, buffer)
    }

    /// Starts [`Communicator::broadcast`] on an owned buffer.
    ///
    /// # Errors
    /// [`CollectiveError`]; the buffer then goes back to the pool.
    pub fn broadcast_start<T: Element>(&self, buffer: Buffer<T>, root: u32) -> Result<Handle<T>> {
        let request = Request { root, in_place: true, ..request::<T>(Collective::Broadcast, buffer.len()) };
        self.check_root("broadcast", &request)?;
        self.start("broadcast", &request, buffer)
    }

    /// Starts [`Communicator::send`] of an owned buffer, which comes back with the handle.
    ///
    /// Messages to a rank with a tag are matched in the order in which they were started or sent. Several of them
    /// may be under way at once, and more wait their turn; sends never hold up receives.
    ///
    /// # Errors
    /// [`CollectiveError`]; the buffer then goes back to the pool.
    pub fn send_start<T: Element>(&self, buffer: Buffer<T>, to: u32, tag: u32) -> Result<Handle<T>> {
        let request = message::<T>(What::Send { to, tag }, buffer.len());
        self.check_message("send", "destination", &request, to, tag)?;
        let mut core = self.owner.lock();
        if core.send_at_once(self.index, &request, cast_slice(&buffer)) {
            self.owner.see_off_at_once(&mut core, self.index);
            return Ok(Handle::over(buffer));
        }
        drop(core);
        let (region, claim) = buffer.into_region();
        self.begin_started("send", &request, Some(region), None).map(|slot| self.handle(slot, claim))
    }

    /// Starts [`Communicator::recv`] into an owned buffer, which comes back filled with the handle.
    ///
    /// # Errors
    /// [`CollectiveError`]; the buffer then goes back to the pool.
    pub fn recv_start<T: Element>(&self, buffer: Buffer<T>, from: u32, tag: u32) -> Result<Handle<T>> {
        let request = message::<T>(What::Receive { from, tag }, buffer.len());
        self.check_message("recv", "source", &request, from, tag)?;
        let (region, claim) = buffer.into_region();
        self.begin_started("recv", &request, None, Some(region)).map(|slot| self.handle(slot, claim))
    }

    pub(super) fn start<T: Element>(
        &self,
        name: &'static str,
        request: &Request,
        buffer: Buffer<T>,
    ) -> Result<Handle<T>> {
        let (region, claim) = buffer.into_region();
        let mut core = self.owner.lock();
        if let Err(e) = self.owner.start_background(&mut core) {
            core.options.pool.recycle(region);
            return Err(no_thread(self.rank, name, &e));
        }
        drop(core);
        self.begin_started(name, request, Some(region), None).map(|slot| self.handle(slot, claim))
    }

    fn begin_started(
        &self,
        name: &'static str,
        request: &Request,
        mut input: Option<Region>,
        mut output: Option<Region>,
    ) -> Result<u16> {
        let mut core = self.owner.lock();
        let regions = CallRegions { input: &mut input, output: &mut output };
        match core.begin(self.index, name, request, regions, true) {
            Ok(slot) => {
                self.owner.nudge(&core);
                Ok(slot)
            }
            Err(failure) => {
                [input, output].into_iter().flatten().for_each(|region| core.options.pool.recycle(region));
                drop(self.owner.write_down(core));
                Err(*failure)
            }
        }
    }

    fn handle<T: Element>(&self, slot: u16, claim: Claim<T>) -> Handle<T> {
        Handle::new(self.owner.clone(), slot, claim)
    }
}
