//! Scans, reductions by a user's own function, and how reductions are computed.

#![forbid(unsafe_code)]

use super::blocking::{Memory, request};
use super::communicator::Communicator;
use super::error::{CollectiveError, InvalidCall};
use super::handle::Handle;
use super::numerics::Numerics;
use super::plan::Request;
use super::reduction::Reduction;
use crate::reduce::ReduceOp;
use crate::schedule::Collective;
use bytemuck::{cast_slice, cast_slice_mut};
use ringway_dataplane::memory::{Buffer, Element};

type Result<T> = std::result::Result<T, CollectiveError>;

fn in_place<T: Element>(collective: Collective, count: usize) -> Request {
    Request { in_place: true, ..request::<T>(collective, count) }
}

fn by<T: Element>(reduction: &Reduction<T>, request: Request) -> Request {
    Request { function: Some(reduction.function.clone()), ..request }
}

impl Communicator {
    /// Computes reductions so from the next call on. All ranks set the same between the same two calls; a rank that does
    /// not is found out by the first reduction that differs. Calls under way are not concerned.
    pub fn set_numerics(&self, numerics: Numerics) {
        self.owner.lock().group(self.index).set_numerics(numerics);
    }

    /// How reductions are computed: what was set, or what the communicator that this one was split from had, or
    /// [`EngineOptions::numerics`](super::EngineOptions).
    pub fn numerics(&self) -> Numerics {
        self.owner.lock().group(self.index).numerics
    }

    /// Inclusive scan: rank `r`'s `buffer` ends with the reduction of ranks `0..=r`, element by element, in the order of
    /// ranks. An average is that of these ranks.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn scan<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        self.prefix("scan", Collective::Scan, buffer, op)
    }

    /// Exclusive scan: rank `r`'s `buffer` ends with the reduction of ranks `0..r`, element by element, in the order of
    /// ranks. Rank 0's is left as it was: nothing comes before it, and no value stands for that in every operation.
    ///
    /// Each rank sends twice as much as in a [`Communicator::scan`].
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn exclusive_scan<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        self.prefix("exclusive_scan", Collective::ExclusiveScan, buffer, op)
    }

    fn prefix<T: Element>(
        &self,
        name: &'static str,
        collective: Collective,
        buffer: &mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        let request = Request { op: Some(op), ..in_place::<T>(collective, buffer.len()) };
        self.check_op(name, &request)?;
        self.run(name, &request, Memory::Write(cast_slice_mut(buffer)), Memory::Nothing)
    }

    /// Starts [`Communicator::scan`] on an owned buffer.
    ///
    /// # Errors
    /// [`CollectiveError`]; the buffer then goes back to the pool.
    pub fn scan_start<T: Element>(&self, buffer: Buffer<T>, op: ReduceOp) -> Result<Handle<T>> {
        let request = Request { op: Some(op), ..in_place::<T>(Collective::Scan, buffer.len()) };
        self.check_op("scan", &request)?;
        self.start("scan", &request, buffer)
    }

    /// Starts [`Communicator::exclusive_scan`] on an owned buffer.
    ///
    /// # Errors
    /// [`CollectiveError`]; the buffer then goes back to the pool.
    pub fn exclusive_scan_start<T: Element>(&self, buffer: Buffer<T>, op: ReduceOp) -> Result<Handle<T>> {
        let request = Request { op: Some(op), ..in_place::<T>(Collective::ExclusiveScan, buffer.len()) };
        self.check_op("exclusive_scan", &request)?;
        self.start("exclusive_scan", &request, buffer)
    }

    /// As [`Communicator::all_reduce`], by a function of the user's.
    ///
    /// # Errors
    /// [`CollectiveError`]; a panic of the function is [`CollectiveError::Aborted`] on all ranks.
    pub fn all_reduce_with<T: Element>(&self, buffer: &mut [T], reduction: &Reduction<T>) -> Result<()> {
        let request = by(reduction, in_place::<T>(Collective::AllReduce, buffer.len()));
        self.run("all_reduce", &request, Memory::Write(cast_slice_mut(buffer)), Memory::Nothing)
    }

    /// Starts [`Communicator::all_reduce_with`] on an owned buffer.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_with`]; the buffer then goes back to the pool.
    pub fn all_reduce_with_start<T: Element>(
        &self,
        buffer: Buffer<T>,
        reduction: &Reduction<T>,
    ) -> Result<Handle<T>> {
        let request = by(reduction, in_place::<T>(Collective::AllReduce, buffer.len()));
        self.start("all_reduce", &request, buffer)
    }

    /// As [`Communicator::reduce`], by a function of the user's.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_with`].
    pub fn reduce_with<T: Element>(
        &self,
        buffer: &mut [T],
        reduction: &Reduction<T>,
        root: u32,
    ) -> Result<()> {
        let request = by(reduction, Request { root, ..in_place::<T>(Collective::Reduce, buffer.len()) });
        self.check_root("reduce", &request)?;
        self.run("reduce", &request, Memory::Write(cast_slice_mut(buffer)), Memory::Nothing)
    }

    /// As [`Communicator::reduce_scatter`], by a function of the user's.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_with`].
    pub fn reduce_scatter_with<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        reduction: &Reduction<T>,
    ) -> Result<()> {
        let request = by(reduction, request::<T>(Collective::ReduceScatter, output.len()));
        let expected = output.len().saturating_mul(self.size_usize());
        if input.len() != expected {
            let why = InvalidCall::WrongLength { buffer: "input", len: input.len(), expected };
            return Err(self.refuse("reduce_scatter", &request, why));
        }
        let (input, output) = (Memory::Read(cast_slice(input)), Memory::Write(cast_slice_mut(output)));
        self.run("reduce_scatter", &request, input, output)
    }

    /// As [`Communicator::scan`], by a function of the user's.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_with`].
    pub fn scan_with<T: Element>(&self, buffer: &mut [T], reduction: &Reduction<T>) -> Result<()> {
        let request = by(reduction, in_place::<T>(Collective::Scan, buffer.len()));
        self.run("scan", &request, Memory::Write(cast_slice_mut(buffer)), Memory::Nothing)
    }

    /// As [`Communicator::exclusive_scan`], by a function of the user's.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_with`].
    pub fn exclusive_scan_with<T: Element>(&self, buffer: &mut [T], reduction: &Reduction<T>) -> Result<()> {
        let request = by(reduction, in_place::<T>(Collective::ExclusiveScan, buffer.len()));
        self.run("exclusive_scan", &request, Memory::Write(cast_slice_mut(buffer)), Memory::Nothing)
    }
}
