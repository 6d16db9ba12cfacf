//! Several calls that are begun together, as between NCCL's `ncclGroupStart` and `ncclGroupEnd`.

#![forbid(unsafe_code)]

use super::blocking::{Memory, lend, request};
use super::communicator::Communicator;
use super::core::{CallRegions, Failure, MAX_CALLS};
use super::error::{CollectiveError, InvalidCall};
use super::p2p::message;
use super::plan::{Request, What};
use crate::reduce::ReduceOp;
use crate::schedule::Collective;
use bytemuck::{cast_slice, cast_slice_mut};
use ringway_dataplane::memory::{Element, Region};

type Result<T> = std::result::Result<T, CollectiveError>;

/// Calls that are gathered first, and begun and ended together: none waits for another, so that ranks may send to each
/// other without thinking of who receives first. They may be on several communicators of one process, as made by
/// [`Communicator::split`].
///
/// Collectives of one communicator keep the order in which they were added, which is the same on all ranks; those of
/// different communicators need no common order. Messages between two ranks are added in one order on both sides, or are
/// fewer than a quarter of the transport's depth. At most [`MAX_CALLS`] calls may be under way at a time.
///
/// ```
/// # use ringway_collectives::engine::{CallGroup, CollectiveError, Communicator};
/// # use ringway_collectives::reduce::ReduceOp;
/// # fn exchange(comm: &Communicator, other: u32) -> Result<(), CollectiveError> {
/// let (mine, mut theirs, mut sum) = ([1.0f32; 8], [0.0f32; 8], [comm.rank()]);
/// let mut group = CallGroup::start();
/// group.send(comm, &mine, other, 0);
/// group.recv(comm, &mut theirs, other, 0);
/// group.all_reduce(comm, &mut sum, ReduceOp::Sum);
/// group.end()
/// # }
/// ```
#[must_use = "nothing is called before the group's end"]
#[derive(Default)]
pub struct CallGroup<'a> {
    calls: Vec<Added<'a>>,
}

impl std::fmt::Debug for CallGroup<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CallGroup({} calls)", self.calls.len())
    }
}

struct Added<'a> {
    comm: &'a Communicator,
    name: &'static str,
    request: Request,
    input: Memory<'a>,
    output: Memory<'a>,
    /// Why it will be refused.
    wrong: Option<InvalidCall>,
}

/// A call whose memory is lent.
struct Lent<'a, 'r> {
    comm: &'a Communicator,
    name: &'static str,
    request: Request,
    wrong: Option<InvalidCall>,
    input: &'r mut Option<Region>,
    output: &'r mut Option<Region>,
}

impl<'a> CallGroup<'a> {
    /// A group without calls.
    pub fn start() -> CallGroup<'a> {
        CallGroup::default()
    }

    fn add(
        &mut self,
        comm: &'a Communicator,
        name: &'static str,
        request: Request,
        (input, output): (Memory<'a>, Memory<'a>),
        wrong: Option<InvalidCall>,
    ) {
        let unsupported = match (request.op, request.dtype) {
            (Some(op), Some(dtype)) if !op.supports(dtype) => Some(InvalidCall::Unsupported { op, dtype }),
            _ => None,
        };
        let wrong = unsupported.or(wrong);
        self.calls.push(Added { comm, name, request, input, output, wrong });
    }

    /// Adds a [`Communicator::send`].
    pub fn send<T: Element>(&mut self, comm: &'a Communicator, buffer: &'a [T], to: u32, tag: u32) {
        let request = message::<T>(What::Send { to, tag }, buffer.len());
        let wrong = comm.wrong_message("destination", to, tag);
        self.add(comm, "send", request, (Memory::Read(cast_slice(buffer)), Memory::Nothing), wrong);
    }

    /// Adds a [`Communicator::recv`].
    pub fn recv<T: Element>(&mut self, comm: &'a Communicator, buffer: &'a mut [T], from: u32, tag: u32) {
        let request = message::<T>(What::Receive { from, tag }, buffer.len());
        let wrong = comm.wrong_message("source", from, tag);
        self.add(comm, "recv", request, (Memory::Nothing, Memory::Write(cast_slice_mut(buffer))), wrong);
    }

    /// Adds a [`Communicator::all_reduce`].
    pub fn all_reduce<T: Element>(&mut self, comm: &'a Communicator, buffer: &'a mut [T], op: ReduceOp) {
        let plain = request::<T>(Collective::AllReduce, buffer.len());
        let request = Request { op: Some(op), in_place: true, ..plain };
        self.add(comm, "all_reduce", request, (Memory::Write(cast_slice_mut(buffer)), Memory::Nothing), None);
    }

    /// Adds a [`Communicator::broadcast`].
    pub fn broadcast<T: Element>(&mut self, comm: &'a Communicator, buffer: &'a mut [T], root: u32) {
        let plain = request::<T>(Collective::Broadcast, buffer.len());
        let request = Request { root, in_place: true, ..plain };
        let memory = (Memory::Write(cast_slice_mut(buffer)), Memory::Nothing);
        self.add(comm, "broadcast", request, memory, no_root(comm, root));
    }

    /// Adds a [`Communicator::reduce`].
    pub fn reduce<T: Element>(
        &mut self,
        comm: &'a Communicator,
        buffer: &'a mut [T],
        op: ReduceOp,
        root: u32,
    ) {
        let plain = request::<T>(Collective::Reduce, buffer.len());
        let request = Request { op: Some(op), root, in_place: true, ..plain };
        let memory = (Memory::Write(cast_slice_mut(buffer)), Memory::Nothing);
        self.add(comm, "reduce", request, memory, no_root(comm, root));
    }

    /// Adds a [`Communicator::reduce_scatter`].
    pub fn reduce_scatter<T: Element>(
        &mut self,
        comm: &'a Communicator,
        input: &'a [T],
        output: &'a mut [T],
        op: ReduceOp,
    ) {
        let request = Request { op: Some(op), ..request::<T>(Collective::ReduceScatter, output.len()) };
        let wrong = other_length("input", input.len(), output.len().saturating_mul(comm.size_usize()));
        let memory = (Memory::Read(cast_slice(input)), Memory::Write(cast_slice_mut(output)));
        self.add(comm, "reduce_scatter", request, memory, wrong);
    }

    /// Adds a [`Communicator::all_gather`].
    pub fn all_gather<T: Element>(&mut self, comm: &'a Communicator, input: &'a [T], output: &'a mut [T]) {
        let request = request::<T>(Collective::AllGather, input.len());
        let wrong = other_length("output", output.len(), input.len().saturating_mul(comm.size_usize()));
        let memory = (Memory::Read(cast_slice(input)), Memory::Write(cast_slice_mut(output)));
        self.add(comm, "all_gather", request, memory, wrong);
    }

    /// Begins all calls, in the order in which they were added, and waits for all of them.
    ///
    /// # Errors
    /// The first error in that order. All calls are over then, those that were begun after it too.
    pub fn end(self) -> Result<()> {
        let Some(first) = self.calls.first().map(|call| call.comm) else { return Ok(()) };
        if let Some(call) = self.calls.iter().find(|call| !call.comm.owner.is(&first.owner)) {
            let why = InvalidCall::Group("its calls are on communicators of several endpoints".to_owned());
            return Err(CollectiveError::Invalid { rank: call.comm.rank, call: call.name, why });
        }
        // Each call's memory is lent within the last one's loan, on this thread's stack.
        if self.calls.len() > MAX_CALLS {
            return Err(CollectiveError::TooManyStarted { limit: MAX_CALLS });
        }
        let room = Vec::with_capacity(self.calls.len());
        let result = lend_all(first, self.calls.into_iter(), room);
        first.answer(first.owner.lock(), result)
    }
}

/// Lends the memory of the rest of the calls, then makes all of them.
fn lend_all<'a>(
    first: &Communicator,
    mut rest: std::vec::IntoIter<Added<'a>>,
    lent: Vec<Lent<'a, '_>>,
) -> std::result::Result<(), Failure> {
    let Some(Added { comm, name, request, input, output, wrong }) = rest.next() else {
        return make(first, lent);
    };
    let take = || first.owner.lock().ledgers.pop().unwrap_or_default();
    let (mut of_input, mut of_output) = (take(), take());
    let result = lend(input, &mut of_input, |input| {
        lend(output, &mut of_output, |output| {
            let mut lent: Vec<Lent<'a, '_>> = lent;
            lent.push(Lent { comm, name, request, wrong, input, output });
            lend_all(first, rest, lent)
        })
    });
    first.owner.lock().ledgers.extend([of_output, of_input]);
    result
}

fn make(first: &Communicator, mut lent: Vec<Lent<'_, '_>>) -> std::result::Result<(), Failure> {
    let mut core = first.owner.lock();
    if !core.has_room(lent.len()) {
        return Err(Box::new(CollectiveError::TooManyStarted { limit: MAX_CALLS }));
    }
    let mut begun = Vec::with_capacity(lent.len());
    for call in &mut lent {
        let index = call.comm.index;
        let refused = call.wrong.take().map(|why| {
            let error = CollectiveError::Invalid { rank: call.comm.rank, call: call.name, why };
            core.check(index)
                .map(|()| core.refuse(index, &call.request, &error))
                .map_or_else(|dead| dead, |()| error)
        });
        let regions = CallRegions { input: &mut *call.input, output: &mut *call.output };
        begun.push(match refused {
            Some(error) => Err(Box::new(error)),
            None => core.begin(index, call.name, &call.request, regions, false),
        });
    }
    first.owner.nudge(&core);
    let mut all = Ok(());
    for (call, begun) in lent.iter_mut().zip(begun) {
        let regions = CallRegions { input: &mut *call.input, output: &mut *call.output };
        let ended;
        (core, ended) = first.end(core, begun, regions);
        all = all.and(ended);
    }
    first.owner.see_off(&mut core);
    all
}

fn no_root(comm: &Communicator, rank: u32) -> Option<InvalidCall> {
    let size = comm.size();
    (rank >= size).then_some(InvalidCall::NoSuchRank { what: "root", rank, size })
}

fn other_length(buffer: &'static str, len: usize, expected: usize) -> Option<InvalidCall> {
    (len != expected).then_some(InvalidCall::WrongLength { buffer, len, expected })
}
