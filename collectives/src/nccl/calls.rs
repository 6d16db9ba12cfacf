//! The calls, checked and turned into operations of NCCL.

use super::comm::Operation;
use super::communicator::DeviceCommunicator;
use super::group::DeviceGroup;
use super::handle::DeviceHandle;
use super::kind;
use super::memory::{DeviceBuffer, Kept};
use super::order::{Said, With};
use super::shared::Ticket;
use crate::engine::{Call, CollectiveError, InvalidCall};
use crate::reduce::ReduceOp;
use crate::schedule::Collective;
use ringway_dataplane::memory::{DType, Element};

type Result<T> = std::result::Result<T, CollectiveError>;

/// A collective call, without its place among the others.
pub(super) fn collective(which: Collective, dtype: DType, count: usize) -> Call {
    Call {
        collective: Some(which),
        dtype: Some(dtype),
        op: None,
        algorithm: None,
        form: Default::default(),
        root: 0,
        count: count as u64,
        seq: 0,
        history: 0,
    }
}

/// A message between two ranks.
pub(super) fn message(dtype: DType, tag: u32, count: usize) -> Call {
    Call { collective: None, root: tag, ..collective(Collective::AllReduce, dtype, count) }
}

/// A collective over one buffer in place, ready to begin.
pub(super) struct Planned {
    pub(super) call: Call,
    pub(super) operation: Operation,
}

/// Shares in the memory of a call's two buffers.
fn both<T: Element>(one: &DeviceBuffer<T>, other: &DeviceBuffer<T>) -> Kept {
    vec![one.share(), other.share()]
}

impl DeviceCommunicator {
    /// Makes a call to its end. The buffers of the operations are borrowed by the caller of this, and `kept` is their memory.
    fn run(&self, call: Call, operations: &[Operation], kept: Kept) -> Result<()> {
        let mut ticket = self.begin(call, operations, kept)?;
        self.shared.finish(&mut ticket)
    }

    pub(super) fn begin(&self, call: Call, operations: &[Operation], kept: Kept) -> Result<Ticket> {
        // SAFETY: every caller in this module borrows or owns the buffers until the ticket is finished, and hands in shares in
        // their memory.
        unsafe { self.shared.begin(&mut [Said { call, with: With::Group }], operations, kept) }
    }

    fn start<T: Element>(&self, planned: Planned, buffer: DeviceBuffer<T>) -> Result<DeviceHandle<T>> {
        let ticket = self.begin(planned.call, &[planned.operation], vec![buffer.share()])?;
        if let Some(open) = ticket.open() {
            self.watched().take(open);
        }
        Ok(DeviceHandle::new(&self.shared, ticket, buffer))
    }

    /// NCCL's numbers of a reduction.
    fn reduction(&self, name: &'static str, call: &Call, op: ReduceOp) -> Result<(u32, u32)> {
        let dtype = call.dtype.unwrap_or(DType::U8);
        if !op.supports(dtype) {
            return Err(self.refuse(name, *call, InvalidCall::Unsupported { op, dtype }));
        }
        kind::reduced(op, dtype).ok_or_else(|| self.refuse(name, *call, InvalidCall::NotByNccl { op, dtype }))
    }

    fn check_root(&self, name: &'static str, call: &Call) -> Result<()> {
        let (rank, size) = (call.root, self.size());
        if rank < size {
            return Ok(());
        }
        Err(self.refuse(name, *call, InvalidCall::NoSuchRank { what: "root", rank, size }))
    }

    fn check_len(
        &self,
        name: &'static str,
        call: &Call,
        buffer: &'static str,
        len: usize,
        expected: usize,
    ) -> Result<()> {
        if len == expected {
            return Ok(());
        }
        Err(self.refuse(name, *call, InvalidCall::WrongLength { buffer, len, expected }))
    }

    /// The length of one rank's block in a buffer that holds one for each.
    fn block(&self, name: &'static str, call: Call, len: usize) -> Result<usize> {
        let size = self.size();
        if len.is_multiple_of(size as usize) {
            return Ok(len / size as usize);
        }
        Err(self.refuse(name, call, InvalidCall::NotAMultiple { len, size }))
    }

    fn blocks(&self, count: usize) -> usize {
        count.saturating_mul(self.size() as usize)
    }

    pub(super) fn plan_all_reduce<T: Element>(
        &self,
        (from, to): (u64, u64),
        len: usize,
        op: ReduceOp,
    ) -> Result<Planned> {
        let call = Call { op: Some(op), ..collective(Collective::AllReduce, T::DTYPE, len) };
        let (kind, op) = self.reduction("all_reduce", &call, op)?;
        Ok(Planned { call, operation: Operation::AllReduce { from, to, count: len, kind, op } })
    }

    fn plan_reduce_scatter<T: Element>(&self, buffer: &DeviceBuffer<T>, op: ReduceOp) -> Result<Planned> {
        let of = |count| Call { op: Some(op), ..collective(Collective::ReduceScatter, T::DTYPE, count) };
        let count = self.block("reduce_scatter", of(buffer.len()), buffer.len())?;
        let (kind, op) = self.reduction("reduce_scatter", &of(count), op)?;
        let (from, to) = (buffer.address(), buffer.address_of(count * self.rank() as usize));
        Ok(Planned { call: of(count), operation: Operation::ReduceScatter { from, to, count, kind, op } })
    }

    fn plan_all_gather<T: Element>(&self, buffer: &DeviceBuffer<T>) -> Result<Planned> {
        let of = |count| collective(Collective::AllGather, T::DTYPE, count);
        let count = self.block("all_gather", of(buffer.len()), buffer.len())?;
        let (kind, units) = kind::moved(T::DTYPE);
        let (from, to) = (buffer.address_of(count * self.rank() as usize), buffer.address());
        Ok(Planned {
            call: of(count),
            operation: Operation::AllGather { from, to, count: count * units, kind },
        })
    }

    fn plan_broadcast<T: Element>(&self, buffer: &DeviceBuffer<T>, root: u32) -> Result<Planned> {
        let call = Call { root, ..collective(Collective::Broadcast, T::DTYPE, buffer.len()) };
        self.check_root("broadcast", &call)?;
        let (kind, units) = kind::moved(T::DTYPE);
        let (from, to) = (buffer.address(), buffer.address());
        let operation = Operation::Broadcast { from, to, count: buffer.len() * units, kind, root };
        Ok(Planned { call, operation })
    }

    /// Combines every rank's `buffer` element by element; all ranks end with the result.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn all_reduce<T: Element>(&self, buffer: &mut DeviceBuffer<T>, op: ReduceOp) -> Result<()> {
        let planned = self.plan_all_reduce::<T>((buffer.address(), buffer.address()), buffer.len(), op)?;
        self.run(planned.call, &[planned.operation], vec![buffer.share()])
    }

    /// As [`DeviceCommunicator::all_reduce`], from `input` into `output` of the same length.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn all_reduce_into<T: Element>(
        &self,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
        op: ReduceOp,
    ) -> Result<()> {
        let planned = self.plan_all_reduce::<T>((input.address(), output.address()), input.len(), op)?;
        self.check_len("all_reduce", &planned.call, "output", output.len(), input.len())?;
        self.run(planned.call, &[planned.operation], both(input, output))
    }

    /// Starts [`DeviceCommunicator::all_reduce`] on an owned buffer.
    ///
    /// # Errors
    /// [`CollectiveError`]; the buffer is then freed.
    pub fn all_reduce_start<T: Element>(
        &self,
        buffer: DeviceBuffer<T>,
        op: ReduceOp,
    ) -> Result<DeviceHandle<T>> {
        let planned = self.plan_all_reduce::<T>((buffer.address(), buffer.address()), buffer.len(), op)?;
        self.start(planned, buffer)
    }

    /// Combines every rank's `input`, of one block of `output.len()` elements per rank, and leaves rank `r` with the result
    /// of block `r`.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
        op: ReduceOp,
    ) -> Result<()> {
        let count = output.len();
        let call = Call { op: Some(op), ..collective(Collective::ReduceScatter, T::DTYPE, count) };
        let (kind, op) = self.reduction("reduce_scatter", &call, op)?;
        self.check_len("reduce_scatter", &call, "input", input.len(), self.blocks(count))?;
        let (from, to) = (input.address(), output.address());
        self.run(call, &[Operation::ReduceScatter { from, to, count, kind, op }], both(input, output))
    }

    /// As [`DeviceCommunicator::reduce_scatter`], within one buffer of a block per rank: this rank's block ends with the
    /// result.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn reduce_scatter_in_place<T: Element>(
        &self,
        buffer: &mut DeviceBuffer<T>,
        op: ReduceOp,
    ) -> Result<()> {
        let planned = self.plan_reduce_scatter(buffer, op)?;
        self.run(planned.call, &[planned.operation], vec![buffer.share()])
    }

    /// Starts [`DeviceCommunicator::reduce_scatter_in_place`] on an owned buffer.
    ///
    /// # Errors
    /// [`CollectiveError`]; the buffer is then freed.
    pub fn reduce_scatter_start<T: Element>(
        &self,
        buffer: DeviceBuffer<T>,
        op: ReduceOp,
    ) -> Result<DeviceHandle<T>> {
        self.start(self.plan_reduce_scatter(&buffer, op)?, buffer)
    }

    /// Gathers every rank's `input` in `output`, one block per rank in rank order, on all ranks.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn all_gather<T: Element>(
        &self,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
    ) -> Result<()> {
        let call = collective(Collective::AllGather, T::DTYPE, input.len());
        self.check_len("all_gather", &call, "output", output.len(), self.blocks(input.len()))?;
        let (kind, units) = kind::moved(T::DTYPE);
        let (from, to) = (input.address(), output.address());
        let operation = Operation::AllGather { from, to, count: input.len() * units, kind };
        self.run(call, &[operation], both(input, output))
    }

    /// As [`DeviceCommunicator::all_gather`], within one buffer in which each rank has filled its own block.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut DeviceBuffer<T>) -> Result<()> {
        let planned = self.plan_all_gather(buffer)?;
        self.run(planned.call, &[planned.operation], vec![buffer.share()])
    }

    /// Starts [`DeviceCommunicator::all_gather_in_place`] on an owned buffer.
    ///
    /// # Errors
    /// [`CollectiveError`]; the buffer is then freed.
    pub fn all_gather_start<T: Element>(&self, buffer: DeviceBuffer<T>) -> Result<DeviceHandle<T>> {
        self.start(self.plan_all_gather(&buffer)?, buffer)
    }

    /// Copies `root`'s `buffer` into everybody's.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn broadcast<T: Element>(&self, buffer: &mut DeviceBuffer<T>, root: u32) -> Result<()> {
        let planned = self.plan_broadcast(buffer, root)?;
        self.run(planned.call, &[planned.operation], vec![buffer.share()])
    }

    /// Starts [`DeviceCommunicator::broadcast`] on an owned buffer.
    ///
    /// # Errors
    /// [`CollectiveError`]; the buffer is then freed.
    pub fn broadcast_start<T: Element>(&self, buffer: DeviceBuffer<T>, root: u32) -> Result<DeviceHandle<T>> {
        self.start(self.plan_broadcast(&buffer, root)?, buffer)
    }

    /// Combines every rank's `buffer` into `root`'s. Elsewhere it keeps what it had.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn reduce<T: Element>(&self, buffer: &mut DeviceBuffer<T>, op: ReduceOp, root: u32) -> Result<()> {
        let call = Call { op: Some(op), root, ..collective(Collective::Reduce, T::DTYPE, buffer.len()) };
        let (kind, op) = self.reduction("reduce", &call, op)?;
        self.check_root("reduce", &call)?;
        let (from, to, count) = (buffer.address(), buffer.address(), buffer.len());
        self.run(call, &[Operation::Reduce { from, to, count, kind, op, root }], vec![buffer.share()])
    }

    /// Gathers every rank's `input` in `root`'s `output`, one block per rank in rank order. Elsewhere `output` is not touched
    /// and may be empty.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn gather<T: Element>(
        &self,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
        root: u32,
    ) -> Result<()> {
        let call = Call { root, ..collective(Collective::Gather, T::DTYPE, input.len()) };
        self.check_root("gather", &call)?;
        if self.rank() != root {
            return self.run(call, &[send(input, 0, input.len(), root)], vec![input.share()]);
        }
        self.check_len("gather", &call, "output", output.len(), self.blocks(input.len()))?;
        let count = input.len();
        let operations: Vec<Operation> = (0..self.size())
            .map(|from| match from as usize * count {
                at if from == root => copy(input, 0, output, at, count),
                at => receive(output, at, count, from),
            })
            .collect();
        self.run(call, &operations, both(input, output))
    }

    /// Hands out `root`'s `input`, of one block of `output.len()` elements per rank: rank `r` gets block `r`. Elsewhere
    /// `input` is not read and may be empty.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn scatter<T: Element>(
        &self,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
        root: u32,
    ) -> Result<()> {
        let count = output.len();
        let call = Call { root, ..collective(Collective::Scatter, T::DTYPE, count) };
        self.check_root("scatter", &call)?;
        if self.rank() != root {
            return self.run(call, &[receive(output, 0, count, root)], vec![output.share()]);
        }
        self.check_len("scatter", &call, "input", input.len(), self.blocks(count))?;
        let operations: Vec<Operation> = (0..self.size())
            .map(|to| match to as usize * count {
                at if to == root => copy(input, at, output, 0, count),
                at => send(input, at, count, to),
            })
            .collect();
        self.run(call, &operations, both(input, output))
    }

    /// Block `j` of `input` goes to rank `j`, and block `j` of `output` comes from rank `j`.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn all_to_all<T: Element>(
        &self,
        input: &DeviceBuffer<T>,
        output: &mut DeviceBuffer<T>,
    ) -> Result<()> {
        let of = |count| collective(Collective::AllToAll, T::DTYPE, count);
        let count = self.block("all_to_all", of(input.len()), input.len())?;
        self.check_len("all_to_all", &of(count), "output", output.len(), input.len())?;
        let me = self.rank();
        let exchange = |rank: u32| {
            let at = rank as usize * count;
            [send(input, at, count, rank), receive(output, at, count, rank)]
        };
        let mut operations: Vec<Operation> =
            (0..self.size()).filter(|rank| *rank != me).flat_map(exchange).collect();
        operations.push(copy(input, me as usize * count, output, me as usize * count, count));
        self.run(of(count), &operations, both(input, output))
    }

    /// Returns once every rank has called it, and its GPU has done all earlier calls.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn barrier(&self) -> Result<()> {
        let call = Call { dtype: None, ..collective(Collective::Barrier, DType::U8, 0) };
        self.run(call, &[], Vec::new())?;
        // The stamps of neighbours are no barrier of all; the control communicator has one.
        self.shared.control.barrier().map_err(|error| self.shared.die(error, Some(call)))
    }

    /// Sends `buffer` to rank `to`. Both sides give the same tag.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn send<T: Element>(&self, buffer: &DeviceBuffer<T>, to: u32, tag: u32) -> Result<()> {
        let mut group = self.group();
        group.send(buffer, to, tag)?;
        group.run()
    }

    /// Receives `buffer.len()` elements from rank `from`. Both sides give the same tag.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn recv<T: Element>(&self, buffer: &mut DeviceBuffer<T>, from: u32, tag: u32) -> Result<()> {
        let mut group = self.group();
        group.recv(buffer, from, tag)?;
        group.run()
    }

    /// Sends `output` to rank `to` and receives `input` from rank `from` at the same time, both with `tag`.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn sendrecv<T: Element>(
        &self,
        output: &DeviceBuffer<T>,
        to: u32,
        input: &mut DeviceBuffer<T>,
        from: u32,
        tag: u32,
    ) -> Result<()> {
        let mut group = self.group();
        group.send(output, to, tag)?;
        group.recv(input, from, tag)?;
        group.run()
    }

    /// Calls that go to NCCL as one, so that none of them waits for another.
    pub fn group(&self) -> DeviceGroup<'_> {
        DeviceGroup::new(self)
    }
}

pub(super) fn send<T: Element>(from: &DeviceBuffer<T>, at: usize, count: usize, peer: u32) -> Operation {
    let (kind, units) = kind::moved(T::DTYPE);
    Operation::Send { from: from.address_of(at), count: count * units, kind, peer }
}

pub(super) fn receive<T: Element>(to: &DeviceBuffer<T>, at: usize, count: usize, peer: u32) -> Operation {
    let (kind, units) = kind::moved(T::DTYPE);
    Operation::Receive { to: to.address_of(at), count: count * units, kind, peer }
}

fn copy<T: Element>(
    from: &DeviceBuffer<T>,
    at: usize,
    to: &DeviceBuffer<T>,
    to_at: usize,
    count: usize,
) -> Operation {
    Operation::Copy { from: from.address_of(at), to: to.address_of(to_at), bytes: count * size_of::<T>() }
}
