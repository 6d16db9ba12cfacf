//! The blocking collectives, over the caller's own slices.

#![forbid(unsafe_code)]

use super::communicator::Communicator;
use super::core::{CallRegions, Failure, MAX_CALLS};
use super::error::{CollectiveError, InvalidCall};
use super::plan::{Request, What};
use super::shared::Guard;
use super::straight::AtOnce;
use crate::reduce::ReduceOp;
use crate::schedule::Collective;
use bytemuck::{cast_slice, cast_slice_mut};
use ringway_dataplane::memory::{Element, Ledger, Region, lend_borrowed_in, lend_shared_in};

type Result<T> = std::result::Result<T, CollectiveError>;

/// A caller's memory for the length of a call.
pub(super) enum Memory<'a> {
    Nothing,
    Read(&'a [u8]),
    Write(&'a mut [u8]),
}

impl Memory<'_> {
    /// What is in it.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Memory::Nothing => &[],
            Memory::Read(bytes) => bytes,
            Memory::Write(bytes) => bytes,
        }
    }

    /// What may be written.
    ///
    /// # Panics
    /// When it was lent to be read alone, where no plan writes.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Nothing => &mut [],
            Memory::Read(_) => unreachable!("a plan writes to memory that was lent to be read"),
            Memory::Write(bytes) => bytes,
        }
    }
}

/// Lends memory as a region for the length of `f`.
pub(super) fn lend<R>(
    memory: Memory<'_>,
    ledger: &mut Ledger,
    f: impl FnOnce(&mut Option<Region>) -> R,
) -> R {
    match memory {
        Memory::Nothing => f(&mut None),
        Memory::Read(bytes) => lend_shared_in(bytes, ledger, f),
        Memory::Write(bytes) => lend_borrowed_in(bytes, ledger, f),
    }
}

pub(super) fn request<T: Element>(collective: Collective, count: usize) -> Request {
    Request {
        what: What::Collective(collective),
        dtype: Some(T::DTYPE),
        op: None,
        function: None,
        blocks: None,
        received: None,
        count,
        root: 0,
        in_place: false,
    }
}

impl Communicator {
    /// Makes a call over borrowed memory, to its end.
    pub(super) fn run<'m>(
        &self,
        name: &'static str,
        request: &Request,
        mut input: Memory<'m>,
        mut output: Memory<'m>,
    ) -> Result<()> {
        let mut core = self.owner.lock();
        let glance = self.owner.glance();
        let begun = match request.what {
            What::Collective(_) => {
                core.collective_at_once(self.index, request, (&mut input, &mut output), glance)
            }
            What::Receive { .. } if core.receive_at_once(self.index, request, output.bytes_mut(), glance) => {
                AtOnce::Over
            }
            What::Send { .. } | What::Receive { .. } => AtOnce::NotBegun,
        };
        let since = match &begun {
            AtOnce::Over => {
                self.owner.see_off_at_once(&mut core, self.index);
                return Ok(());
            }
            AtOnce::Begun(begun) => Some(begun.since),
            AtOnce::NotBegun => None,
        };
        let mut first = core.ledgers.pop().unwrap_or_default();
        let mut second = core.ledgers.pop().unwrap_or_default();
        let (mut core, result) = lend(input, &mut first, |input| {
            lend(output, &mut second, |output| {
                let regions = CallRegions { input: &mut *input, output: &mut *output };
                let begun = match begun {
                    AtOnce::Begun(begun) => core.go_on(self.index, name, request, regions, begun),
                    _ => core.begin(self.index, name, request, regions, false),
                };
                self.owner.nudge(&core);
                self.end(core, begun, CallRegions { input, output })
            })
        });
        core.ledgers.push(second);
        core.ledgers.push(first);
        if let Some(since) = since {
            core.waits_at_once.learn(since.elapsed());
        }
        self.answer(core, result)
    }

    /// Makes two calls at once, a send and a receive, to their ends.
    pub(super) fn run_pair(
        &self,
        name: &'static str,
        send: (&Request, Memory<'_>),
        receive: (&Request, Memory<'_>),
    ) -> Result<()> {
        let mut core = self.owner.lock();
        let mut first = core.ledgers.pop().unwrap_or_default();
        let mut second = core.ledgers.pop().unwrap_or_default();
        let (mut core, result) = lend(send.1, &mut first, |sends| {
            lend(receive.1, &mut second, |receives| {
                if !core.has_room(2) {
                    return (core, Err(Box::new(CollectiveError::TooManyStarted { limit: MAX_CALLS })));
                }
                let regions = CallRegions { input: &mut *sends, output: &mut None };
                let sent = core.begin(self.index, name, send.0, regions, false);
                let regions = CallRegions { input: &mut None, output: &mut *receives };
                let received = core.begin(self.index, name, receive.0, regions, false);
                self.owner.nudge(&core);
                let (core, sent) = self.end(core, sent, CallRegions { input: sends, output: &mut None });
                let regions = CallRegions { input: &mut None, output: receives };
                let (core, received) = self.end(core, received, regions);
                (core, sent.and(received))
            })
        });
        core.ledgers.push(second);
        core.ledgers.push(first);
        self.answer(core, result)
    }

    /// What a call returns. Of one that has failed, the news are on their way then, and written down.
    pub(super) fn answer(&self, mut core: Guard<'_>, result: std::result::Result<(), Failure>) -> Result<()> {
        match &result {
            Ok(()) => self.owner.see_off(&mut core),
            Err(_) => self.owner.tell(&mut core),
        }
        result.map_err(|failure| {
            drop(self.owner.write_down(core));
            *failure
        })
    }

    /// The outcome of a call, begun or not.
    pub(super) fn end<'a>(
        &'a self,
        core: Guard<'a>,
        begun: std::result::Result<u16, Failure>,
        regions: CallRegions<'_>,
    ) -> (Guard<'a>, std::result::Result<(), Failure>) {
        match begun {
            Ok(slot) => self.owner.finish_call(core, slot, regions),
            Err(failure) => (core, Err(failure)),
        }
    }

    pub(super) fn check_op(&self, name: &'static str, request: &Request) -> Result<()> {
        match (request.op, request.dtype) {
            (Some(op), Some(dtype)) if !op.supports(dtype) => {
                Err(self.refuse(name, request, InvalidCall::Unsupported { op, dtype }))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn check_root(&self, name: &'static str, request: &Request) -> Result<()> {
        let (rank, size) = (request.root, self.size());
        if rank < size {
            return Ok(());
        }
        Err(self.refuse(name, request, InvalidCall::NoSuchRank { what: "root", rank, size }))
    }

    fn check_len(
        &self,
        name: &'static str,
        request: &Request,
        buffer: &'static str,
        len: usize,
        expected: usize,
    ) -> Result<()> {
        if len == expected {
            return Ok(());
        }
        Err(self.refuse(name, request, InvalidCall::WrongLength { buffer, len, expected }))
    }

    /// The length of one rank's block in a buffer that holds one for each.
    pub(super) fn block(&self, name: &'static str, request: &Request, len: usize) -> Result<usize> {
        if len.is_multiple_of(self.size_usize()) {
            return Ok(len / self.size_usize());
        }
        Err(self.refuse(name, request, InvalidCall::NotAMultiple { len, size: self.size() }))
    }

    /// Combines every rank's `buffer` element by element; all ranks end with the result, the same bits on each.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn all_reduce<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let request =
            Request { op: Some(op), in_place: true, ..request::<T>(Collective::AllReduce, buffer.len()) };
        self.check_op("all_reduce", &request)?;
        self.run("all_reduce", &request, Memory::Write(cast_slice_mut(buffer)), Memory::Nothing)
    }

    /// As [`Communicator::all_reduce`], from `input` into `output` of the same length.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn all_reduce_into<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<()> {
        let request =
            Request { op: Some(op), in_place: true, ..request::<T>(Collective::AllReduce, input.len()) };
        self.check_op("all_reduce", &request)?;
        self.check_len("all_reduce", &request, "output", output.len(), input.len())?;
        output.copy_from_slice(input);
        self.run("all_reduce", &request, Memory::Write(cast_slice_mut(output)), Memory::Nothing)
    }

    /// Combines every rank's `input`, of one block of `output.len()` elements per rank, and leaves rank `r` with the
    /// result of block `r`.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn reduce_scatter<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<()> {
        let request = Request { op: Some(op), ..request::<T>(Collective::ReduceScatter, output.len()) };
        self.check_op("reduce_scatter", &request)?;
        let expected = output.len().saturating_mul(self.size_usize());
        self.check_len("reduce_scatter", &request, "input", input.len(), expected)?;
        let (input, output) = (Memory::Read(cast_slice(input)), Memory::Write(cast_slice_mut(output)));
        self.run("reduce_scatter", &request, input, output)
    }

    /// As [`Communicator::reduce_scatter`], within one buffer of a block per rank: this rank's block ends with the
    /// result, the others with partial results. No copy is made.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn reduce_scatter_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let of = |count| Request {
            op: Some(op),
            in_place: true,
            ..request::<T>(Collective::ReduceScatter, count)
        };
        self.check_op("reduce_scatter", &of(buffer.len()))?;
        let request = of(self.block("reduce_scatter", &of(buffer.len()), buffer.len())?);
        self.run("reduce_scatter", &request, Memory::Write(cast_slice_mut(buffer)), Memory::Nothing)
    }

    /// Gathers every rank's `input` in `output`, one block per rank in rank order, on all ranks.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let request = request::<T>(Collective::AllGather, input.len());
        let expected = input.len().saturating_mul(self.size_usize());
        self.check_len("all_gather", &request, "output", output.len(), expected)?;
        let (input, output) = (Memory::Read(cast_slice(input)), Memory::Write(cast_slice_mut(output)));
        self.run("all_gather", &request, input, output)
    }

    /// As [`Communicator::all_gather`], within one buffer in which each rank has filled its own block.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let of = |count| Request { in_place: true, ..request::<T>(Collective::AllGather, count) };
        let request = of(self.block("all_gather", &of(buffer.len()), buffer.len())?);
        self.run("all_gather", &request, Memory::Write(cast_slice_mut(buffer)), Memory::Nothing)
    }

    /// Copies `root`'s `buffer` into everybody's.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: u32) -> Result<()> {
        let request = Request { root, in_place: true, ..request::<T>(Collective::Broadcast, buffer.len()) };
        self.check_root("broadcast", &request)?;
        self.run("broadcast", &request, Memory::Write(cast_slice_mut(buffer)), Memory::Nothing)
    }

    /// Combines every rank's `buffer` into `root`'s. Elsewhere it ends with partial results.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn reduce<T: Element>(&self, buffer: &mut [T], op: ReduceOp, root: u32) -> Result<()> {
        let in_place = true;
        let request =
            Request { op: Some(op), root, in_place, ..request::<T>(Collective::Reduce, buffer.len()) };
        self.check_op("reduce", &request)?;
        self.check_root("reduce", &request)?;
        self.run("reduce", &request, Memory::Write(cast_slice_mut(buffer)), Memory::Nothing)
    }

    /// Gathers every rank's `input` in `root`'s `output`, one block per rank in rank order. Elsewhere `output` is not
    /// touched and may be empty.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn gather<T: Element>(&self, input: &[T], output: &mut [T], root: u32) -> Result<()> {
        let request = Request { root, ..request::<T>(Collective::Gather, input.len()) };
        self.check_root("gather", &request)?;
        let mut whole = Memory::Nothing;
        if self.rank == root {
            let expected = input.len().saturating_mul(self.size_usize());
            self.check_len("gather", &request, "output", output.len(), expected)?;
            whole = Memory::Write(cast_slice_mut(output));
        }
        self.run("gather", &request, Memory::Read(cast_slice(input)), whole)
    }

    /// Hands out `root`'s `input`, of one block of `output.len()` elements per rank: rank `r` gets block `r`.
    /// Elsewhere `input` is not read and may be empty.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn scatter<T: Element>(&self, input: &[T], output: &mut [T], root: u32) -> Result<()> {
        let request = Request { root, ..request::<T>(Collective::Scatter, output.len()) };
        self.check_root("scatter", &request)?;
        let mut whole = Memory::Nothing;
        if self.rank == root {
            let expected = output.len().saturating_mul(self.size_usize());
            self.check_len("scatter", &request, "input", input.len(), expected)?;
            whole = Memory::Read(cast_slice(input));
        }
        self.run("scatter", &request, whole, Memory::Write(cast_slice_mut(output)))
    }

    /// Block `j` of `input` goes to rank `j`, and block `j` of `output` comes from rank `j`.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let of = |count| request::<T>(Collective::AllToAll, count);
        let request = of(self.block("all_to_all", &of(input.len()), input.len())?);
        self.check_len("all_to_all", &request, "output", output.len(), input.len())?;
        let (input, output) = (Memory::Read(cast_slice(input)), Memory::Write(cast_slice_mut(output)));
        self.run("all_to_all", &request, input, output)
    }

    /// Returns once every rank has called it.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn barrier(&self) -> Result<()> {
        let request = Request {
            what: What::Collective(Collective::Barrier),
            dtype: None,
            op: None,
            function: None,
            blocks: None,
            received: None,
            count: 0,
            root: 0,
            in_place: true,
        };
        self.run("barrier", &request, Memory::Nothing, Memory::Nothing)
    }
}
