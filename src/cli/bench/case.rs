//! One collective of one size: its memory, its call, and the check of its result. Here what is the same wherever the memory
//! is, and memory of the host.

use super::args::Bench;
use super::measure::BenchError;
use super::{ragged, values};
use ringway::{Blocks, CollectiveError, Communicator, DType, Element, ReduceOp};
use ringway_dataplane::memory::Buffer;

/// What is called, but for the size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) bench: Bench,
    pub(super) op: ReduceOp,
    pub(super) root: u32,
    /// Through the started form, where there is one.
    pub(super) started: bool,
    /// In the program's own memory.
    pub(super) plain: bool,
}

/// How the last calls were run.
pub(super) struct How {
    pub(super) algorithm: String,
    pub(super) slice_bytes: u64,
    pub(super) transport: String,
}

/// One size of a collective, ready to be called.
pub(super) trait Case {
    /// Elements of the whole vector of one rank.
    fn count(&self) -> usize;
    /// Writes every input afresh and wipes every output.
    fn fill(&mut self) -> Result<(), BenchError>;
    /// Makes the call once.
    fn run(&mut self) -> Result<(), BenchError>;
    /// After one run on fresh inputs: how many elements of this rank's result are not what they must be.
    fn wrong(&mut self) -> Result<u64, BenchError>;
    /// How it was run.
    fn how(&self) -> How;
}

/// The lengths of a size, in elements, on one rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extents {
    /// The whole vector of one rank.
    pub(super) count: usize,
    /// One rank's part, for blocked collectives the block.
    pub(super) part: usize,
    /// The vector of in-place collectives, the input of others.
    pub(super) input: usize,
    pub(super) output: usize,
}

impl Extents {
    /// Of a vector of at least `bytes`: blocked collectives round up to a whole element per block.
    pub(super) fn of(call: Call, (rank, ranks): (u32, u32), bytes: u64, element_bytes: usize) -> Extents {
        use Bench::*;
        let (all, ranks) = (ranks, ranks as usize);
        let elements = usize::try_from(bytes.div_ceil(element_bytes as u64)).unwrap_or(usize::MAX);
        let part = if call.bench.is_blocked() { elements.div_ceil(ranks) } else { elements };
        let count = if call.bench.is_blocked() { part.saturating_mul(ranks) } else { elements };
        let is_root = rank == call.root;
        let own = || ragged::lengths(all, part)[rank as usize];
        let (input, output) = match call.bench {
            AllReduce | Broadcast | Reduce | Scan | ExclusiveScan => (count, 0),
            ReduceScatter => (count, part),
            ReduceScatterV => (count, own()),
            AllGather => (part, count),
            AllGatherV => (own(), count),
            Gather => (part, if is_root { count } else { 0 }),
            Scatter => (if is_root { count } else { 0 }, part),
            AllToAll | AllToAllV | SendRecv => (count, count),
        };
        Extents { count, part, input, output }
    }
}

/// A rank's input afresh; where the call brings it, what must not be left of it.
pub(super) fn fill_input(call: Call, (rank, ranks): (u32, u32), dtype: DType, bytes: &mut [u8]) {
    let op = call.bench.reduces().then_some(call.op);
    bytes.fill(WIPED);
    if call.bench != Bench::Broadcast || rank == call.root {
        values::fill(dtype, op, rank, ranks, 0, bytes);
    }
}

/// What an output is filled with before a call.
pub(super) const WIPED: u8 = 0xa5;

/// How many elements of a rank's result are not what they must be.
pub(super) fn wrong(
    call: Call,
    (rank, ranks): (u32, u32),
    dtype: DType,
    part: usize,
    (input, output): (&[u8], &[u8]),
) -> u64 {
    let Call { bench, op, root, .. } = call;
    let equal = vec![part; ranks as usize];
    // Of blocks of these lengths, each from the rank of its number, whose vector it was cut out of at `first`.
    let blocks = |lengths: &[usize], first: &dyn Fn(u32) -> u64| {
        let block = |from| {
            let place = ragged::place(lengths, from);
            &output[place.start * dtype.size()..place.end * dtype.size()]
        };
        (0..ranks).map(|from| values::wrong_copy(dtype, from, ranks, first(from), block(from))).sum()
    };
    let start = |lengths: &[usize], index| ragged::place(lengths, index).start as u64;
    let (part_of, unequal) = (part, || ragged::lengths(ranks, part));
    let part = part as u64;
    match bench {
        Bench::AllGatherV => blocks(&unequal(), &|_| 0),
        Bench::ReduceScatterV => values::wrong_reduction(dtype, op, ranks, start(&unequal(), rank), output),
        Bench::AllToAllV => blocks(&ragged::between(ranks, part_of, rank), &|from| {
            start(&ragged::between(ranks, part_of, from), rank)
        }),
        Bench::Scan => values::wrong_prefix(dtype, op, (rank + 1, ranks), 0, input),
        // There is nothing before rank 0, whose buffer stays as it is.
        Bench::ExclusiveScan => values::wrong_prefix(dtype, op, (rank.max(1), ranks), 0, input),
        Bench::AllReduce => values::wrong_reduction(dtype, op, ranks, 0, input),
        Bench::Reduce if rank == root => values::wrong_reduction(dtype, op, ranks, 0, input),
        Bench::Reduce => 0,
        Bench::ReduceScatter => values::wrong_reduction(dtype, op, ranks, part * u64::from(rank), output),
        Bench::Broadcast => values::wrong_copy(dtype, root, ranks, 0, input),
        Bench::AllGather => blocks(&equal, &|_| 0),
        Bench::Gather if rank == root => blocks(&equal, &|_| 0),
        Bench::Gather => 0,
        Bench::Scatter => values::wrong_copy(dtype, root, ranks, part * u64::from(rank), output),
        Bench::AllToAll => blocks(&equal, &|_| part * u64::from(rank)),
        Bench::SendRecv => values::wrong_copy(dtype, before(rank, ranks), ranks, 0, output),
    }
}

/// Who a rank sends to.
pub(super) fn next(rank: u32, ranks: u32) -> u32 {
    (rank + 1) % ranks
}

/// Who a rank receives from.
pub(super) fn before(rank: u32, ranks: u32) -> u32 {
    (rank + ranks - 1) % ranks
}

/// A vector in memory of the host.
enum Vector<T: Element> {
    /// That transports know before.
    Known(Buffer<T>),
    /// As any program has it.
    Plain(Vec<T>),
}

impl<T: Element> Vector<T> {
    fn new(comm: &Communicator, elements: usize, plain: bool) -> Result<Self, CollectiveError> {
        Ok(if plain {
            Vector::Plain(vec![T::zeroed(); elements])
        } else {
            Vector::Known(comm.alloc(elements)?)
        })
    }
}

impl<T: Element> std::ops::Deref for Vector<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Vector::Known(buffer) => buffer,
            Vector::Plain(vector) => vector,
        }
    }
}

impl<T: Element> std::ops::DerefMut for Vector<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Vector::Known(buffer) => buffer,
            Vector::Plain(vector) => vector,
        }
    }
}

/// Memory of the host for one size, and how it is used.
pub(super) struct OnHost<'a, T: Element> {
    comm: &'a Communicator,
    call: Call,
    extents: Extents,
    /// Empty only while a started call has it.
    input: Option<Vector<T>>,
    output: Vector<T>,
    /// Of this rank, where they are of unequal lengths: those of all, or for an all-to-all those that it sends, which are as
    /// long as those that it receives.
    blocks: Option<Blocks>,
}

impl<'a, T: Element> OnHost<'a, T> {
    pub(super) fn new(comm: &'a Communicator, call: Call, bytes: u64) -> Result<Self, CollectiveError> {
        let extents = Extents::of(call, (comm.rank(), comm.size()), bytes, size_of::<T>());
        let vector = |elements| Vector::new(comm, elements, call.plain);
        let (input, output) = (Some(vector(extents.input)?), vector(extents.output)?);
        let lengths = match call.bench {
            Bench::AllToAllV => Some(ragged::between(comm.size(), extents.part, comm.rank())),
            bench => bench.is_ragged().then(|| ragged::lengths(comm.size(), extents.part)),
        };
        let blocks = lengths.map(|lengths| ragged::packed(&lengths));
        Ok(OnHost { comm, call, extents, input, output, blocks })
    }

    fn place(&self) -> (u32, u32) {
        (self.comm.rank(), self.comm.size())
    }

    /// The buffer goes in by value and comes back by value; after a failure it is gone, as is the communicator.
    fn run_started(&mut self) -> Result<(), BenchError> {
        let Some(Vector::Known(buffer)) = self.input.take() else { return Ok(()) };
        self.input = Some(Vector::Known(self.comm.all_reduce_start(buffer, self.call.op)?.wait()?));
        Ok(())
    }
}

impl<T: Element> Case for OnHost<'_, T> {
    fn count(&self) -> usize {
        self.extents.count
    }

    fn fill(&mut self) -> Result<(), BenchError> {
        let (call, place) = (self.call, self.place());
        if let Some(input) = &mut self.input {
            fill_input(call, place, T::DTYPE, bytemuck::cast_slice_mut(input));
        }
        bytemuck::cast_slice_mut::<T, u8>(&mut self.output).fill(WIPED);
        Ok(())
    }

    fn run(&mut self) -> Result<(), BenchError> {
        let Call { bench, op, root, started, .. } = self.call;
        if started && bench == Bench::AllReduce {
            return self.run_started();
        }
        let (rank, ranks) = self.place();
        let Some(input) = &mut self.input else { return Ok(()) };
        let (comm, output) = (self.comm, &mut self.output);
        if let Some(blocks) = &self.blocks {
            let done = match bench {
                Bench::AllGatherV => comm.all_gather_v(input, output, blocks),
                Bench::ReduceScatterV => comm.reduce_scatter_v(input, output, blocks, op),
                _ => comm.all_to_all_v(input, blocks, output, blocks),
            };
            return Ok(done?);
        }
        let done = match bench {
            Bench::AllGatherV | Bench::ReduceScatterV | Bench::AllToAllV => {
                unreachable!("these have blocks, which were called with above")
            }
            Bench::Scan => comm.scan(input, op),
            Bench::ExclusiveScan => comm.exclusive_scan(input, op),
            Bench::AllReduce => comm.all_reduce(input, op),
            Bench::Broadcast => comm.broadcast(input, root),
            Bench::Reduce => comm.reduce(input, op, root),
            Bench::ReduceScatter => comm.reduce_scatter(input, output, op),
            Bench::AllGather => comm.all_gather(input, output),
            Bench::Gather => comm.gather(input, output, root),
            Bench::Scatter => comm.scatter(input, output, root),
            Bench::AllToAll => comm.all_to_all(input, output),
            Bench::SendRecv if ranks == 1 => {
                output.copy_from_slice(input);
                Ok(())
            }
            Bench::SendRecv => comm.sendrecv(input, next(rank, ranks), output, before(rank, ranks), 0),
        };
        Ok(done?)
    }

    fn wrong(&mut self) -> Result<u64, BenchError> {
        let input: &[u8] = self.input.as_deref().map_or(&[], bytemuck::cast_slice);
        let both = (input, bytemuck::cast_slice(&self.output));
        Ok(wrong(self.call, self.place(), T::DTYPE, self.extents.part, both))
    }

    fn how(&self) -> How {
        let choice = self.comm.last_choice();
        let algorithm = choice.and_then(|c| c.algorithm);
        How {
            algorithm: algorithm.map_or("direct".to_owned(), |a| a.to_string().to_ascii_lowercase()),
            slice_bytes: choice.map_or(0, |c| c.slice_bytes as u64),
            transport: super::measure::transport(self.comm),
        }
    }
}
