//! All-reduce where NCCL reaches only the GPUs of one host: NCCL inside, the transports of the engine between.
//!
//! ```text
//! each GPU       reduce_scatter inside: it has the sum of its host of one block
//!                the block, through pinned memory: all_reduce between the ranks of the same number on all hosts
//!                all_gather inside: it has all blocks
//! ```
//!
//! A long vector goes in pieces, so that GPUs are at work on one while the network has another. The sums between hosts are
//! made by processors, so the bytes are staged in memory of the host, and a NIC's own way to a GPU (dma-buf) would not
//! shorten that.
//!
//! - **Y1** All ranks begin the same calls of NCCL in the same order, whatever the network does meanwhile.
//! - **Y2** A failure inside ends the communicator between, and the other way, so that it comes to all ranks.

use super::calls::{Planned, collective};
use super::comm::Operation;
use super::communicator::{DeviceCommunicator, DeviceOptions};
use super::error::{CudaError, DeviceError};
use super::kind;
use super::memory::{DeviceBuffer, PinnedBuffer};
use super::order::{Said, With};
use super::shared::{Ticket, lock};
use crate::engine::{Call, CollectiveError, Communicator, During, InvalidCall};
use crate::reduce::ReduceOp;
use crate::schedule::Collective;
use ringway_dataplane::memory::Element;
use std::ops::Range;
use std::sync::Mutex;

/// Bytes of a rank's block of one piece, at most.
const PIECE_BYTES: usize = 4 << 20;

type Result<T> = std::result::Result<T, CollectiveError>;

/// A group of ranks on several hosts whose vectors are in memory of GPUs, reduced by NCCL inside of hosts and by the engine
/// between them.
pub struct Hierarchy {
    inside: DeviceCommunicator,
    between: Communicator,
    /// Kept from call to call.
    staged: Mutex<Option<PinnedBuffer<u8>>>,
}

impl std::fmt::Debug for Hierarchy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hierarchy({:?} inside, {:?} between)", self.inside, self.between)
    }
}

/// A piece of the vector: where it begins, and the length of one rank's block of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    first: usize,
    block: usize,
}

/// Cuts `len` elements of `element_bytes` into pieces of one block per rank, and a rest of less than one element per rank.
fn cut(len: usize, ranks: usize, element_bytes: usize) -> (Vec<Piece>, Range<usize>) {
    let longest = (PIECE_BYTES / element_bytes).max(1);
    let blocks = len / ranks;
    let pieces = blocks.div_ceil(longest);
    let cut = (0..pieces).map(|piece| {
        let (from, to) = (piece * longest, ((piece + 1) * longest).min(blocks));
        Piece { first: from * ranks, block: to - from }
    });
    (cut.collect(), blocks * ranks..len)
}

impl Hierarchy {
    /// Over all ranks of `comm`, which all call it. `inside`: NCCL connects so many neighbouring ranks; `None`: those of each
    /// host.
    ///
    /// # Errors
    /// [`DeviceError`]; [`DeviceError::Uneven`] when the hosts have different numbers of ranks.
    pub fn new(
        comm: &Communicator,
        inside: Option<u32>,
        options: DeviceOptions,
    ) -> std::result::Result<Hierarchy, DeviceError> {
        let (part, number) = place(comm, inside)?;
        let some = || unreachable!("this rank gave a color");
        let mine = comm.split(Some(part), comm.rank())?.unwrap_or_else(some);
        let between = comm.split(Some(number), part)?.unwrap_or_else(some);
        let inside =
            DeviceCommunicator::new(&mine, options).inspect_err(|error| between.abort(error.to_string()))?;
        Ok(Hierarchy { inside, between, staged: Mutex::default() })
    }

    /// The ranks that NCCL connects, with which buffers are allocated and copied.
    #[must_use]
    pub fn inside(&self) -> &DeviceCommunicator {
        &self.inside
    }

    /// What carries the bytes, in one line.
    #[must_use]
    pub fn why(&self) -> String {
        let dmabuf = if self.inside.device().has_dmabuf() { "has" } else { "does not have" };
        let between = (0..self.between.size()).find_map(|rank| self.between.route(rank));
        format!(
            "{} among {} ranks; between {} of them by {}, staged through pinned memory of the host, as processors make \
             the sums (the GPU {dmabuf} dma-buf)",
            self.inside.why(),
            self.inside.size(),
            self.between.size(),
            between.unwrap_or_else(|| self.between.transport_name().to_owned()),
        )
    }

    /// Combines every rank's `buffer` element by element; all ranks end with the result. An average is taken inside and then
    /// between.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn all_reduce<T: Element>(&self, buffer: &mut DeviceBuffer<T>, op: ReduceOp) -> Result<()> {
        let call = Call { op: Some(op), ..collective(Collective::AllReduce, T::DTYPE, buffer.len()) };
        let (kind, code) = kind::reduced(op, T::DTYPE).ok_or_else(|| {
            let error =
                self.inside.refuse("all_reduce", call, InvalidCall::NotByNccl { op, dtype: T::DTYPE });
            self.between.abort(error.to_string());
            error
        })?;
        let (pieces, rest) = cut(buffer.len(), self.inside.size() as usize, size_of::<T>());
        self.reduce_pieces(buffer, &pieces, op, (kind, code))
            .and_then(|()| self.reduce_rest(buffer, rest, op))
            .map_err(|error| self.die(error, call))
    }

    /// Y1: scatter 0, scatter 1, gather 0, scatter 2, gather 1, ...
    fn reduce_pieces<T: Element>(
        &self,
        buffer: &mut DeviceBuffer<T>,
        pieces: &[Piece],
        op: ReduceOp,
        (kind, code): (u32, u32),
    ) -> Result<()> {
        let rank = self.inside.rank() as usize;
        let base = buffer.address();
        let at_element = |index: usize| base + (index * size_of::<T>()) as u64;
        let scatter = |piece: &Piece| {
            let (from, to) = (at_element(piece.first), at_element(piece.first + rank * piece.block));
            let call = Call { op: Some(op), ..collective(Collective::ReduceScatter, T::DTYPE, piece.block) };
            Planned {
                call,
                operation: Operation::ReduceScatter { from, to, count: piece.block, kind, op: code },
            }
        };
        let gather = |piece: &Piece| {
            let (moved, units) = kind::moved(T::DTYPE);
            let (from, to) = (at_element(piece.first + rank * piece.block), at_element(piece.first));
            let operation = Operation::AllGather { from, to, count: piece.block * units, kind: moved };
            Planned { call: collective(Collective::AllGather, T::DTYPE, piece.block), operation }
        };
        let mut gathers: Vec<Ticket> = Vec::with_capacity(pieces.len());
        let mut scattered = pieces.first().map(|piece| self.begin(&scatter(piece))).transpose()?;
        for (at, piece) in pieces.iter().enumerate() {
            let Some(mut ticket) = scattered.take() else { break };
            scattered = pieces.get(at + 1).map(|next| self.begin(&scatter(next))).transpose()?;
            self.inside.shared.finish(&mut ticket)?;
            let first = piece.first + rank * piece.block;
            self.between_hosts(buffer, first..first + piece.block, op)?;
            gathers.push(self.begin(&gather(piece))?);
            // Few are under way at once, however long the vector is.
            if let Some(before) = at.checked_sub(1) {
                self.inside.shared.finish(&mut gathers[before])?;
            }
        }
        gathers.iter_mut().try_for_each(|ticket| self.inside.shared.finish(ticket))
    }

    /// What is not a whole element per rank: every rank reduces all of it, inside and then between.
    fn reduce_rest<T: Element>(
        &self,
        buffer: &mut DeviceBuffer<T>,
        rest: Range<usize>,
        op: ReduceOp,
    ) -> Result<()> {
        if rest.is_empty() {
            return Ok(());
        }
        let at = buffer.address_of(rest.start);
        let planned = self.inside.plan_all_reduce::<T>((at, at), rest.len(), op)?;
        self.inside.shared.finish(&mut self.begin(&planned)?)?;
        self.between_hosts(buffer, rest, op)
    }

    fn begin(&self, planned: &Planned) -> Result<Ticket> {
        // SAFETY: the buffer is borrowed mutably until `all_reduce` returns, by when every ticket is finished, or NCCL was
        // aborted; memory is freed by the driver only when the GPU has left it.
        unsafe {
            self.inside
                .shared
                .begin(&mut [Said { call: planned.call, with: With::Group }], &[planned.operation])
        }
    }

    /// Reduces a part of the buffer with the ranks of the same number on all hosts, through pinned memory.
    fn between_hosts<T: Element>(
        &self,
        buffer: &mut DeviceBuffer<T>,
        part: Range<usize>,
        op: ReduceOp,
    ) -> Result<()> {
        if self.between.size() == 1 {
            return Ok(());
        }
        let bytes = part.len() * size_of::<T>();
        let mut pinned = lock(&self.staged);
        let failed = |error: CudaError| self.inside.shared.by_words(&error.to_string(), None);
        if pinned.as_ref().is_none_or(|pinned| pinned.len() < bytes) {
            *pinned = None;
            *pinned = Some(PinnedBuffer::zeroed(self.inside.context(), bytes).map_err(failed)?);
        }
        let Some(pinned) = &mut *pinned else { unreachable!("it was just made") };
        let host: &mut [T] = bytemuck::cast_slice_mut(&mut pinned[..bytes]);
        let copies = &self.inside.shared.copies;
        buffer.copy_part_to(part.start, host, copies).map_err(failed)?;
        self.between.all_reduce(host, op)?;
        buffer.copy_part_from(part.start, host, copies).map_err(failed)
    }

    /// Y2: whichever communicator has died, the other ends with it, in this rank's words.
    fn die(&self, error: CollectiveError, call: Call) -> CollectiveError {
        self.inside.shared.by_words(&error.to_string(), Some(call));
        let who = self.between.who(self.between.rank());
        let message = error.to_string();
        self.between.end_by(CollectiveError::Aborted { who, during: During::Call(call), message });
        error
    }
}

/// Which part a rank is in, and its number there.
fn place(comm: &Communicator, inside: Option<u32>) -> std::result::Result<(u32, u32), DeviceError> {
    let (rank, size) = (comm.rank(), comm.size());
    if let Some(inside) = inside {
        return match size.is_multiple_of(inside.max(1)) && inside > 0 {
            true => Ok((rank / inside, rank % inside)),
            false => Err(DeviceError::Uneven { a: size, b: inside }),
        };
    }
    let members = comm.members();
    let on = |host: &str| members.iter().filter(|member| member.host == host).count() as u32;
    let mine = &members[rank as usize].host;
    if let Some(other) = members.iter().find(|member| on(&member.host) != on(mine)) {
        return Err(DeviceError::Uneven { a: on(mine), b: on(&other.host) });
    }
    let below = &members[..rank as usize];
    let first = members.iter().position(|member| member.host == *mine).unwrap_or(0);
    Ok((first as u32, below.iter().filter(|member| member.host == *mine).count() as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every element is in one piece or in the rest, and every block is as long on all ranks.
    #[test]
    fn pieces_cover_the_vector_once() {
        for (len, ranks, bytes) in
            [(0, 4, 4), (3, 4, 4), (4, 4, 4), (1 << 22, 3, 4), (9_000_001, 2, 8), (5, 1, 1)]
        {
            let (pieces, rest) = cut(len, ranks, bytes);
            let mut next = 0;
            for piece in &pieces {
                assert_eq!(piece.first, next, "{len} {ranks}");
                assert!(piece.block > 0 && piece.block * bytes <= PIECE_BYTES);
                next += piece.block * ranks;
            }
            assert_eq!((rest.start, rest.end), (next, len));
            assert!(rest.len() < ranks);
        }
    }
}
