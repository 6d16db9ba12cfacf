//! One collective of one size: its memory, its call, and the check of its result.

use super::args::Bench;
use super::values;
use ringway::{CollectiveError, Communicator, Element, ReduceOp};
use ringway_dataplane::memory::Buffer;

/// What is called, but for the size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) bench: Bench,
    pub(super) op: ReduceOp,
    pub(super) root: u32,
    /// Through the started form, where there is one.
    pub(super) started: bool,
}

/// Memory for one size, and how it is used.
pub(super) struct Case<'a, T: Element> {
    comm: &'a Communicator,
    call: Call,
    /// Elements of the whole vector of one rank.
    pub(super) count: usize,
    /// Elements of one rank's part, for blocked collectives the block.
    part: usize,
    /// The vector of in-place collectives, the input of others. Empty only while a started call has it.
    input: Option<Buffer<T>>,
    output: Buffer<T>,
}

impl<'a, T: Element> Case<'a, T> {
    /// Memory for a vector of at least `bytes`: blocked collectives round up to a whole element per block.
    pub(super) fn new(comm: &'a Communicator, call: Call, bytes: u64) -> Result<Self, CollectiveError> {
        let ranks = comm.size() as usize;
        let elements = usize::try_from(bytes.div_ceil(size_of::<T>() as u64)).unwrap_or(usize::MAX);
        let part = if call.bench.is_blocked() { elements.div_ceil(ranks) } else { elements };
        let count = if call.bench.is_blocked() { part.saturating_mul(ranks) } else { elements };
        use Bench::{
            AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter, SendRecv,
        };
        let is_root = comm.rank() == call.root;
        let (input, output) = match call.bench {
            AllReduce | Broadcast | Reduce => (count, 0),
            ReduceScatter => (count, part),
            AllGather => (part, count),
            Gather => (part, if is_root { count } else { 0 }),
            Scatter => (if is_root { count } else { 0 }, part),
            AllToAll | SendRecv => (count, count),
        };
        let (input, output) = (Some(comm.alloc(input)?), comm.alloc(output)?);
        Ok(Case { comm, call, count, part, input, output })
    }

    /// Writes every input afresh and wipes every output.
    pub(super) fn fill(&mut self) {
        let (rank, ranks) = (self.comm.rank(), self.comm.size());
        let op = self.call.bench.reduces().then_some(self.call.op);
        let sends = self.call.bench != Bench::Broadcast || rank == self.call.root;
        if let Some(input) = &mut self.input {
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(input);
            bytes.fill(0xa5);
            if sends {
                values::fill(T::DTYPE, op, rank, ranks, 0, bytes);
            }
        }
        bytemuck::cast_slice_mut::<T, u8>(&mut self.output).fill(0xa5);
    }

    /// Makes the call once.
    pub(super) fn run(&mut self) -> Result<(), CollectiveError> {
        let Call { bench, op, root, started } = self.call;
        if started && bench == Bench::AllReduce {
            return self.run_started();
        }
        let (next, before) = (self.next(), self.before());
        let Some(input) = &mut self.input else { return Ok(()) };
        let (comm, output) = (self.comm, &mut self.output);
        match bench {
            Bench::AllReduce => comm.all_reduce(input, op),
            Bench::Broadcast => comm.broadcast(input, root),
            Bench::Reduce => comm.reduce(input, op, root),
            Bench::ReduceScatter => comm.reduce_scatter(input, output, op),
            Bench::AllGather => comm.all_gather(input, output),
            Bench::Gather => comm.gather(input, output, root),
            Bench::Scatter => comm.scatter(input, output, root),
            Bench::AllToAll => comm.all_to_all(input, output),
            Bench::SendRecv if comm.size() == 1 => {
                output.copy_from_slice(input);
                Ok(())
            }
            Bench::SendRecv => comm.sendrecv(input, next, output, before, 0),
        }
    }

    /// The buffer goes in by value and comes back by value; after a failure it is gone, as is the communicator.
    fn run_started(&mut self) -> Result<(), CollectiveError> {
        let Some(buffer) = self.input.take() else { return Ok(()) };
        self.input = Some(self.comm.all_reduce_start(buffer, self.call.op)?.wait()?);
        Ok(())
    }

    fn next(&self) -> u32 {
        (self.comm.rank() + 1) % self.comm.size()
    }

    fn before(&self) -> u32 {
        (self.comm.rank() + self.comm.size() - 1) % self.comm.size()
    }

    /// After one run on fresh inputs: how many elements of this rank's result are not what they must be.
    pub(super) fn wrong(&self) -> u64 {
        let Call { bench, op, root, .. } = self.call;
        let (rank, ranks) = (self.comm.rank(), self.comm.size());
        let part = self.part as u64;
        let input: &[u8] = self.input.as_deref().map_or(&[], bytemuck::cast_slice);
        let output: &[u8] = bytemuck::cast_slice(&self.output);
        let block =
            |index: u32| &output[index as usize * self.part * size_of::<T>()..][..self.part * size_of::<T>()];
        let blocks = |first: &dyn Fn(u32) -> u64| {
            (0..ranks).map(|from| values::wrong_copy(T::DTYPE, from, ranks, first(from), block(from))).sum()
        };
        match bench {
            Bench::AllReduce => values::wrong_reduction(T::DTYPE, op, ranks, 0, input),
            Bench::Reduce if rank == root => values::wrong_reduction(T::DTYPE, op, ranks, 0, input),
            Bench::Reduce => 0,
            Bench::ReduceScatter => {
                values::wrong_reduction(T::DTYPE, op, ranks, part * u64::from(rank), output)
            }
            Bench::Broadcast => values::wrong_copy(T::DTYPE, root, ranks, 0, input),
            Bench::AllGather => blocks(&|_| 0),
            Bench::Gather if rank == root => blocks(&|_| 0),
            Bench::Gather => 0,
            Bench::Scatter => values::wrong_copy(T::DTYPE, root, ranks, part * u64::from(rank), output),
            Bench::AllToAll => blocks(&|_| part * u64::from(rank)),
            Bench::SendRecv => values::wrong_copy(T::DTYPE, self.before(), ranks, 0, output),
        }
    }
}
