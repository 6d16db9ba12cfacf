//! The v forms: collectives whose blocks are of unequal lengths.

#![forbid(unsafe_code)]

use super::blocking::{Memory, request};
use super::blocks::Blocks;
use super::communicator::Communicator;
use super::error::{CollectiveError, InvalidCall};
use super::handle::Handle;
use super::plan::Request;
use crate::reduce::ReduceOp;
use crate::schedule::Collective;
use bytemuck::{cast_slice, cast_slice_mut};
use ringway_dataplane::memory::{Buffer, Element};

type Result<T> = std::result::Result<T, CollectiveError>;

fn of_blocks<T: Element>(collective: Collective, blocks: &Blocks) -> Request {
    Request { blocks: Some(blocks.clone()), ..request::<T>(collective, blocks.total()) }
}

impl Communicator {
    fn fits(
        &self,
        name: &'static str,
        request: &Request,
        checked: std::result::Result<(), InvalidCall>,
    ) -> Result<()> {
        checked.map_err(|why| self.refuse(name, request, why))
    }

    fn own_block(
        &self,
        name: &'static str,
        request: &Request,
        (buffer, len): (&'static str, usize),
        blocks: &Blocks,
    ) -> Result<()> {
        let expected = blocks.count(self.rank);
        let wrong = InvalidCall::WrongLength { buffer, len, expected };
        self.fits(name, request, if len == expected { Ok(()) } else { Err(wrong) })
    }

    /// Gathers every rank's `input` in `output` on all ranks: rank `r`'s, of `blocks.count(r)` elements, where `blocks` puts
    /// it. Elements of `output` outside of all blocks are not touched. All ranks give the same counts (others are a
    /// mismatch); places may differ.
    ///
    /// # Errors
    /// [`CollectiveError`]; of kind [`CollectiveError::Invalid`] where blocks overlap or do not fit `output`, or `input` is
    /// not as long as this rank's.
    pub fn all_gather_v<T: Element>(&self, input: &[T], output: &mut [T], blocks: &Blocks) -> Result<()> {
        let request = of_blocks::<T>(Collective::AllGather, blocks);
        self.fits("all_gather_v", &request, blocks.check("output", output.len(), self.size(), true))?;
        self.own_block("all_gather_v", &request, ("input", input.len()), blocks)?;
        let (input, output) = (Memory::Read(cast_slice(input)), Memory::Write(cast_slice_mut(output)));
        self.run("all_gather_v", &request, input, output)
    }

    /// As [`Communicator::all_gather_v`], within one buffer in which each rank has filled its own block.
    ///
    /// # Errors
    /// As [`Communicator::all_gather_v`].
    pub fn all_gather_v_in_place<T: Element>(&self, buffer: &mut [T], blocks: &Blocks) -> Result<()> {
        let request = Request { in_place: true, ..of_blocks::<T>(Collective::AllGather, blocks) };
        self.fits("all_gather_v", &request, blocks.check("buffer", buffer.len(), self.size(), true))?;
        self.run("all_gather_v", &request, Memory::Write(cast_slice_mut(buffer)), Memory::Nothing)
    }

    /// Combines every rank's `input`, and leaves rank `r` with the result of block `r` of `blocks`, in `output` of
    /// `blocks.count(r)` elements. All ranks give the same counts (others are a mismatch); places may differ, and overlap.
    ///
    /// # Errors
    /// [`CollectiveError`]; of kind [`CollectiveError::Invalid`] where blocks do not fit `input`, or `output` is not as long
    /// as this rank's.
    pub fn reduce_scatter_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        blocks: &Blocks,
        op: ReduceOp,
    ) -> Result<()> {
        let request = Request { op: Some(op), ..of_blocks::<T>(Collective::ReduceScatter, blocks) };
        self.check_op("reduce_scatter_v", &request)?;
        self.fits("reduce_scatter_v", &request, blocks.check("input", input.len(), self.size(), false))?;
        self.own_block("reduce_scatter_v", &request, ("output", output.len()), blocks)?;
        let (input, output) = (Memory::Read(cast_slice(input)), Memory::Write(cast_slice_mut(output)));
        self.run("reduce_scatter_v", &request, input, output)
    }

    /// As [`Communicator::reduce_scatter_v`], within one buffer: this rank's block ends with the result, the others with
    /// partial results.
    ///
    /// # Errors
    /// As [`Communicator::reduce_scatter_v`]; blocks may not overlap.
    pub fn reduce_scatter_v_in_place<T: Element>(
        &self,
        buffer: &mut [T],
        blocks: &Blocks,
        op: ReduceOp,
    ) -> Result<()> {
        let request = self.scatter_in_place::<T>(buffer.len(), blocks, op)?;
        self.run("reduce_scatter_v", &request, Memory::Write(cast_slice_mut(buffer)), Memory::Nothing)
    }

    fn scatter_in_place<T: Element>(&self, len: usize, blocks: &Blocks, op: ReduceOp) -> Result<Request> {
        let plain = of_blocks::<T>(Collective::ReduceScatter, blocks);
        let request = Request { op: Some(op), in_place: true, ..plain };
        self.check_op("reduce_scatter_v", &request)?;
        self.fits("reduce_scatter_v", &request, blocks.check("buffer", len, self.size(), true))?;
        Ok(request)
    }

    /// Block `j` of `input`, as `sent` puts it, goes to rank `j`, and the block from rank `j` arrives where `received` puts
    /// it in `output`, of which nothing else is touched. What one rank sends to another is as long as what that one
    /// receives from it; where it is not, both lengths are shown as a mismatch.
    ///
    /// # Errors
    /// [`CollectiveError`]; of kind [`CollectiveError::Invalid`] where blocks do not fit their buffer, received ones overlap,
    /// or a rank's block for itself has two lengths.
    pub fn all_to_all_v<T: Element>(
        &self,
        input: &[T],
        sent: &Blocks,
        output: &mut [T],
        received: &Blocks,
    ) -> Result<()> {
        let plain = of_blocks::<T>(Collective::AllToAll, sent);
        let request = Request { received: Some(received.clone()), ..plain };
        self.fits("all_to_all_v", &request, sent.check("input", input.len(), self.size(), false))?;
        self.fits("all_to_all_v", &request, received.check("output", output.len(), self.size(), true))?;
        let (len, expected) = (sent.count(self.rank), received.count(self.rank));
        let own = InvalidCall::WrongLength { buffer: "block of a rank for itself", len, expected };
        self.fits("all_to_all_v", &request, if len == expected { Ok(()) } else { Err(own) })?;
        let (input, output) = (Memory::Read(cast_slice(input)), Memory::Write(cast_slice_mut(output)));
        self.run("all_to_all_v", &request, input, output)
    }

    /// Starts [`Communicator::all_gather_v_in_place`] on an owned buffer.
    ///
    /// # Errors
    /// As [`Communicator::all_gather_v`]; the buffer then goes back to the pool.
    pub fn all_gather_v_start<T: Element>(&self, buffer: Buffer<T>, blocks: &Blocks) -> Result<Handle<T>> {
        let request = Request { in_place: true, ..of_blocks::<T>(Collective::AllGather, blocks) };
        self.fits("all_gather_v", &request, blocks.check("buffer", buffer.len(), self.size(), true))?;
        self.start("all_gather_v", &request, buffer)
    }

    /// Starts [`Communicator::reduce_scatter_v_in_place`] on an owned buffer.
    ///
    /// # Errors
    /// As [`Communicator::reduce_scatter_v`]; the buffer then goes back to the pool.
    pub fn reduce_scatter_v_start<T: Element>(
        &self,
        buffer: Buffer<T>,
        blocks: &Blocks,
        op: ReduceOp,
    ) -> Result<Handle<T>> {
        let request = self.scatter_in_place::<T>(buffer.len(), blocks, op)?;
        self.start("reduce_scatter_v", &request, buffer)
    }
}
