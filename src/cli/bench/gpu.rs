//! Memory of GPUs for one size of a collective, and how it is used. Inputs are made on the host and copied; results are
//! copied back and checked there.

use super::args::Bench;
use super::case::{self, Call, Case, Extents, How, WIPED};
use super::measure::BenchError;
use ringway::Element;
use ringway_collectives::nccl::{DeviceBuffer, DeviceCommunicator, Hierarchy};

/// What the calls are made by.
pub(super) enum Gpus {
    /// NCCL alone.
    Flat(DeviceCommunicator),
    /// NCCL in parts, and our transports between; with this rank and the number of all.
    Layered(Box<Hierarchy>, (u32, u32)),
}

impl Gpus {
    /// What buffers are made and copied by.
    fn local(&self) -> &DeviceCommunicator {
        match self {
            Gpus::Flat(comm) => comm,
            Gpus::Layered(hierarchy, _) => hierarchy.inside(),
        }
    }

    /// This rank, and the number of all.
    fn place(&self) -> (u32, u32) {
        match self {
            Gpus::Flat(comm) => (comm.rank(), comm.size()),
            Gpus::Layered(_, place) => *place,
        }
    }

    /// What carries the bytes.
    pub(super) fn why(&self) -> String {
        match self {
            Gpus::Flat(comm) => comm.why(),
            Gpus::Layered(hierarchy, _) => hierarchy.why(),
        }
    }
}

/// One size, on GPUs.
pub(super) struct OnGpu<'a, T: Element> {
    gpus: &'a Gpus,
    call: Call,
    extents: Extents,
    /// Empty only while a started call has it.
    input: Option<DeviceBuffer<T>>,
    output: DeviceBuffer<T>,
    /// Of the length of the longer one.
    staged: Vec<T>,
}

impl<'a, T: Element> OnGpu<'a, T> {
    pub(super) fn new(gpus: &'a Gpus, call: Call, bytes: u64) -> Result<Self, BenchError> {
        let extents = Extents::of(call, gpus.place(), bytes, size_of::<T>());
        let comm = gpus.local();
        let (input, output) = (Some(comm.alloc(extents.input)?), comm.alloc(extents.output)?);
        let staged = vec![bytemuck::Zeroable::zeroed(); extents.input.max(extents.output)];
        Ok(OnGpu { gpus, call, extents, input, output, staged })
    }
}

impl<T: Element> Case for OnGpu<'_, T> {
    fn count(&self) -> usize {
        self.extents.count
    }

    fn fill(&mut self) -> Result<(), BenchError> {
        let (call, place) = (self.call, self.gpus.place());
        if let Some(input) = &mut self.input {
            let staged = &mut self.staged[..self.extents.input];
            case::fill_input(call, place, T::DTYPE, bytemuck::cast_slice_mut(staged));
            self.gpus.local().upload(input, staged)?;
        }
        let staged = &mut self.staged[..self.extents.output];
        bytemuck::cast_slice_mut::<T, u8>(staged).fill(WIPED);
        Ok(self.gpus.local().upload(&mut self.output, staged)?)
    }

    fn run(&mut self) -> Result<(), BenchError> {
        let Call { bench, op, root, started, .. } = self.call;
        let (rank, ranks) = self.gpus.place();
        let output = &mut self.output;
        let comm = match self.gpus {
            Gpus::Flat(comm) => comm,
            Gpus::Layered(hierarchy, _) => {
                let Some(input) = &mut self.input else { return Ok(()) };
                let (next, before) = (case::next(rank, ranks), case::before(rank, ranks));
                return Ok(match bench {
                    Bench::Broadcast => hierarchy.broadcast(input, root),
                    Bench::AllGather => hierarchy.all_gather(input, output),
                    Bench::SendRecv if ranks > 1 => hierarchy.sendrecv(input, next, output, before, 0),
                    _ => hierarchy.all_reduce(input, op),
                }?);
            }
        };
        if started && bench == Bench::AllReduce {
            let Some(buffer) = self.input.take() else { return Ok(()) };
            self.input = Some(comm.all_reduce_start(buffer, op)?.wait()?);
            return Ok(());
        }
        let Some(input) = &mut self.input else { return Ok(()) };
        let done = match bench {
            Bench::AllReduce => comm.all_reduce(input, op),
            Bench::Broadcast => comm.broadcast(input, root),
            Bench::Reduce => comm.reduce(input, op, root),
            Bench::ReduceScatter => comm.reduce_scatter(input, output, op),
            Bench::AllGather => comm.all_gather(input, output),
            Bench::Gather => comm.gather(input, output, root),
            Bench::Scatter => comm.scatter(input, output, root),
            // Of one rank it is a copy, too.
            Bench::SendRecv if ranks == 1 => comm.all_to_all(input, output),
            Bench::AllGatherV
            | Bench::ReduceScatterV
            | Bench::AllToAllV
            | Bench::Scan
            | Bench::ExclusiveScan => unreachable!("refused before any rank was started"),
            Bench::AllToAll => comm.all_to_all(input, output),
            Bench::SendRecv => {
                comm.sendrecv(input, case::next(rank, ranks), output, case::before(rank, ranks), 0)
            }
        };
        Ok(done?)
    }

    fn wrong(&mut self) -> Result<u64, BenchError> {
        let Some(input) = &self.input else { return Ok(0) };
        let mut output = vec![T::zeroed(); self.extents.output];
        let staged = &mut self.staged[..self.extents.input];
        self.gpus.local().download(input, staged)?;
        self.gpus.local().download(&self.output, &mut output)?;
        let both = (bytemuck::cast_slice(staged), bytemuck::cast_slice(&output));
        Ok(case::wrong(self.call, self.gpus.place(), T::DTYPE, self.extents.part, both))
    }

    fn how(&self) -> How {
        let (algorithm, transport) = match self.gpus {
            Gpus::Flat(_) => ("nccl", "nccl"),
            Gpus::Layered(..) => ("hosts", "nccl+host"),
        };
        How { algorithm: algorithm.to_owned(), slice_bytes: 0, transport: transport.to_owned() }
    }
}
