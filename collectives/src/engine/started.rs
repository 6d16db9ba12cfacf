//! The started forms: an owned buffer in, a handle out; the call goes on while the caller does other things.

#![forbid(unsafe_code)]

use super::blocking::request;
use super::communicator::Communicator;
use super::error::{CollectiveError, InvalidCall};
use super::handle::Handle;
use super::plan::Request;
use crate::reduce::ReduceOp;
use crate::schedule::Collective;
use ringway_dataplane::memory::{Buffer, Element};

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

    fn start<T: Element>(
        &self,
        name: &'static str,
        request: &Request,
        buffer: Buffer<T>,
    ) -> Result<Handle<T>> {
        let (region, claim) = buffer.into_region();
        let mut core = self.owner.lock();
        if let Err(e) = self.owner.start_background(&mut core) {
            core.options.pool.recycle(region);
            let why = format!("a thread to make progress on ({e}): raise the limit on processes (ulimit -u)");
            let why = InvalidCall::System(why);
            return Err(CollectiveError::Invalid { rank: self.rank, call: name, why });
        }
        match core.begin(self.index, name, request, (Some(region), None), true) {
            Ok(slot) => {
                self.owner.nudge(&core);
                drop(core);
                Ok(Handle::new(self.owner.clone(), slot, claim))
            }
            Err((error, (region, _))) => {
                if let Some(region) = region {
                    core.options.pool.recycle(region);
                }
                Err(error)
            }
        }
    }
}
