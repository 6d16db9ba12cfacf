//! From the arguments of a call to what its run needs: schedule, layout, slices, lanes, scratch.

#![forbid(unsafe_code)]

use super::error::InvalidCall;
use super::hazard::WINDOW;
use super::layout::{Area, Copy, INPUT, Layout, OUTPUT, WORK};
use super::options::{EngineOptions, MAX_SLICES_IN_FLIGHT};
use super::slice::{Share, share, widest_message, widest_reduce};
use crate::reduce::ReduceOp;
use crate::schedule::{
    Algorithm, Arranged, Arrangement, Basis, Choice, Collective, Costs, Rank, Schedule, Span, Step,
    choose as cheapest,
};
use ringway_dataplane::memory::DType;
use ringway_dataplane::transport::Caps;

/// Scratch of one lane, in bytes: as many receives of reductions wait in it as fit, and at least [`MIN_SLOTS`].
const LANE_SCRATCH_BYTES: usize = 1 << 20;
/// Fewest receives of reductions that a lane takes in ahead of their combines. Two are what the schedules' look-ahead
/// asks for (schedule invariant I3): the one before may still wait for a send.
const MIN_SLOTS: usize = 2;
/// Scratch slots start on cache lines.
const SLOT_ALIGN: usize = 64;

/// What is asked of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) what: What,
    pub(super) dtype: Option<DType>,
    pub(super) op: Option<ReduceOp>,
    /// Elements of the buffer, or of one rank's block where chunks are blocks.
    pub(super) count: usize,
    /// Root of a rooted collective, else 0.
    pub(super) root: Rank,
    /// Whether input and output are one buffer.
    pub(super) in_place: bool,
}

/// A collective, or one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Collective(Collective),
    Send { to: Rank, tag: u32 },
    Receive { from: Rank, tag: u32 },
}

/// Runs of a kind share depth, and wait for each other's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Collective,
    Send,
    Receive,
}

/// How many there are.
pub(super) const KINDS: usize = 3;

/// The steps of a run.
#[derive(Clone, Debug)]
pub(super) enum Program {
    Collective(Arranged),
    Message(Step),
}

impl Schedule for Program {
    fn ranks(&self) -> u32 {
        match self {
            Program::Collective(s) => s.ranks(),
            Program::Message(_) => 2,
        }
    }

    fn chunks(&self) -> u32 {
        match self {
            Program::Collective(s) => s.chunks(),
            Program::Message(_) => 1,
        }
    }

    #[inline]
    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        match self {
            Program::Collective(s) => s.step(rank, index),
            Program::Message(step) => (index == 0).then_some(*step),
        }
    }
}

/// How a request is run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) program: Program,
    pub(super) algorithm: Option<Algorithm>,
    pub(super) layout: Layout,
    pub(super) lanes: u32,
    /// Messages per peer and direction that the run may have posted; 0 for a run that must be narrow.
    pub(super) depth: u32,
    /// Bytes of the work area ([`WORK`]).
    pub(super) work_bytes: usize,
    /// Bytes of one scratch slot, and slots per lane.
    pub(super) slot_bytes: usize,
    pub(super) slots: usize,
    /// Whether it can be run at once: a few small messages, within the caller's one buffer.
    pub(super) at_once: bool,
    /// Messages beyond so many bytes wait at their sender.
    pub(super) eager_bytes: u64,
}

impl Plan {
    /// Plans `request` for `rank` of a group, whose links cost so much.
    pub(super) fn new(
        request: &Request,
        rank: Rank,
        group: (&Arrangement, &Costs),
        options: &EngineOptions,
        caps: &Caps,
    ) -> Result<Plan, InvalidCall> {
        let element_bytes = request.dtype.map_or(1, DType::size);
        match request.what {
            What::Collective(collective) => {
                Plan::collective(collective, request, rank, group, element_bytes, options, caps)
            }
            What::Send { to, .. } => {
                Ok(Plan::message(Step::Send { to, span: Span::one(0) }, INPUT, request, element_bytes, caps))
            }
            What::Receive { from, .. } => Ok(Plan::message(
                Step::Recv { from, span: Span::one(0) },
                OUTPUT,
                request,
                element_bytes,
                caps,
            )),
        }
    }

    fn message(step: Step, place: usize, request: &Request, element_bytes: usize, caps: &Caps) -> Plan {
        let mut layout = Layout::of(Area::Blocks { place, first: 0 }, request.count, element_bytes);
        layout.slices = slices(request.count, element_bytes, longest(caps, element_bytes));
        Plan {
            program: Program::Message(step),
            algorithm: None,
            layout,
            lanes: 1,
            depth: 1,
            work_bytes: 0,
            slot_bytes: 0,
            slots: 0,
            at_once: false,
            eager_bytes: caps.eager_bytes,
        }
    }

    fn collective(
        collective: Collective,
        request: &Request,
        rank: Rank,
        group: (&Arrangement, &Costs),
        element_bytes: usize,
        options: &EngineOptions,
        caps: &Caps,
    ) -> Result<Plan, InvalidCall> {
        let (choice, schedule) = choose(collective, request, group, element_bytes, (options, caps))?;
        let (mut layout, pieces) =
            arrange(collective, request, rank, group.0.ranks(), element_bytes, &schedule);
        let widest = widest_message(schedule.among_positions());
        let wanted = options.slice_bytes.unwrap_or(usize::try_from(choice.slice_bytes).unwrap_or(usize::MAX));
        let limit = longest(caps, element_bytes);
        layout.slices = match layout.low {
            // Every slice is a run of the buffer with a piece of each chunk in it.
            Area::Parts { chunks, .. } => slices(
                request.count.div_ceil(chunks as usize),
                element_bytes,
                wanted.min(limit / widest as usize),
            ),
            _ if pieces || widest == 1 => slices(request.count, element_bytes, wanted.min(limit)),
            _ => 1,
        };
        let longest_bytes = layout.longest_bytes(widest) as u64;
        if longest_bytes > caps.max_message_bytes {
            let limit_bytes = caps.max_message_bytes;
            return Err(InvalidCall::MessageTooLong { collective, bytes: longest_bytes, limit_bytes });
        }
        let wanted =
            options.slices_in_flight.unwrap_or(choice.slices_in_flight).clamp(1, MAX_SLICES_IN_FLIGHT);
        let Share { lanes, depth } = share(schedule.among_positions(), wanted, layout.slices, caps.depth / 2);
        let mut plan = Plan {
            program: Program::Collective(schedule.clone()),
            algorithm: Some(choice.algorithm),
            layout,
            lanes,
            depth,
            work_bytes: 0,
            slot_bytes: 0,
            slots: 0,
            at_once: longest_bytes <= caps.eager_bytes && layout.is_one_run(),
            eager_bytes: caps.eager_bytes,
        };
        plan.size_memory(collective, rank, &schedule);
        Ok(plan)
    }

    /// Sizes the work area and the scratch.
    fn size_memory(&mut self, collective: Collective, rank: Rank, schedule: &Arranged) {
        let block = self.layout.elements * self.layout.element_bytes;
        let piece = self.layout.longest_bytes(1);
        if let Area::Staged { chunks, .. } = self.layout.low {
            let staged = Area::Staged { chunks, lane_bytes: piece * chunks as usize };
            self.layout.restage(staged);
            self.work_bytes = piece * chunks as usize * self.lanes as usize;
        } else if matches!(self.layout.low, Area::Blocks { place: WORK, .. }) {
            self.work_bytes = block * schedule.room(rank).count as usize;
        }
        if collective.reduces() || collective == Collective::Barrier {
            let longest = self.layout.longest_bytes(widest_reduce(schedule.among_positions()));
            self.slot_bytes = longest.next_multiple_of(SLOT_ALIGN);
            self.slots = (LANE_SCRATCH_BYTES / self.slot_bytes.max(1)).clamp(MIN_SLOTS, WINDOW);
        }
    }

    /// Bytes of scratch for all lanes.
    pub(super) fn scratch_bytes(&self) -> usize {
        self.slot_bytes * self.slots * self.lanes as usize
    }
}

impl Layout {
    /// Replaces the staged area wherever it is mentioned.
    fn restage(&mut self, staged: Area) {
        let swap = |area: &mut Area| {
            if matches!(area, Area::Staged { .. }) {
                *area = staged;
            }
        };
        swap(&mut self.low);
        swap(&mut self.high);
        for copy in [&mut self.before, &mut self.after].into_iter().flatten() {
            swap(&mut copy.from);
            swap(&mut copy.to);
        }
        if let Some((area, _)) = &mut self.total {
            swap(area);
        }
    }
}

/// The algorithm and slice of a collective, and its schedule.
fn choose(
    collective: Collective,
    request: &Request,
    (group, costs): (&Arrangement, &Costs),
    element_bytes: usize,
    (options, caps): (&EngineOptions, &Caps),
) -> Result<(Choice, Arranged), InvalidCall> {
    let ranks = group.ranks();
    let bytes = match collective {
        Collective::AllReduce | Collective::Broadcast | Collective::Reduce | Collective::Barrier => {
            request.count
        }
        _ => request.count.saturating_mul(ranks as usize),
    };
    let bytes = bytes.saturating_mul(element_bytes) as u64;
    let costs = costs_for(bytes, costs, options, caps);
    let basis = Basis { wanted: options.wanted, tuning: options.tuning.as_deref() };
    let choice = cheapest(collective, group, bytes, costs, basis);
    let found = choice.and_then(|c| c.schedule(collective, group, request.root).map(|s| (c, s)));
    found.ok_or(InvalidCall::NoSuchRank { what: "root", rank: request.root, size: ranks })
}

/// What a call of this size is priced by, in a group whose links cost so much.
pub(super) fn costs_for<'a>(
    bytes: u64,
    costs: &'a Costs,
    options: &'a EngineOptions,
    caps: &Caps,
) -> &'a Costs {
    // Beyond what goes at once by halves, exchanging all and combining it by oneself is as quick over shared memory too
    // (512 KiB between 2 ranks: 55 us, 64 by halves), and is what other transports do.
    if bytes <= caps.eager_bytes.saturating_mul(2) { costs } else { &options.costs }
}

/// The longest message in bytes that holds whole elements.
fn longest(caps: &Caps, element_bytes: usize) -> usize {
    let limit = usize::try_from(caps.max_message_bytes).unwrap_or(usize::MAX).min(isize::MAX as usize);
    (limit - limit % element_bytes).max(element_bytes)
}

/// How many slices `count` elements make, none over `slice_bytes`.
fn slices(count: usize, element_bytes: usize, slice_bytes: usize) -> u32 {
    let elements = (slice_bytes / element_bytes).max(1);
    u32::try_from(count.div_ceil(elements)).unwrap_or(u32::MAX).max(1)
}

/// Where the chunks of a collective are, and whether spans of blocks can be cut into pieces.
fn arrange(
    collective: Collective,
    request: &Request,
    rank: Rank,
    ranks: u32,
    element_bytes: usize,
    schedule: &Arranged,
) -> (Layout, bool) {
    let of = |area: Area| Layout::of(area, request.count, element_bytes);
    let own = Span::one(rank);
    let blocks = |place, first| Area::Blocks { place, first };
    let parts = Area::Parts { place: INPUT, chunks: schedule.chunks() };
    let all = Span::new(0, schedule.chunks());
    let root = request.root == rank;
    let layout = match collective {
        Collective::AllReduce => Layout { total: Some((parts, all)), ..of(parts) },
        Collective::Reduce => Layout { total: root.then_some((parts, all)), ..of(parts) },
        Collective::Broadcast => of(parts),
        // The one chunk of a barrier has no bytes; they are taken from the scratch's own neighbour.
        Collective::Barrier => of(Area::Parts { place: WORK, chunks: 1 }),
        Collective::ReduceScatter if request.in_place => {
            Layout { total: Some((blocks(INPUT, 0), own)), ..of(blocks(INPUT, 0)) }
        }
        Collective::ReduceScatter => {
            let staged = Area::Staged { chunks: ranks, lane_bytes: 0 };
            let before = Copy { from: blocks(INPUT, 0), to: staged, span: all, to_first: 0 };
            let after = Copy { from: staged, to: blocks(OUTPUT, rank), span: own, to_first: rank };
            let total = Some((staged, own));
            return (Layout { before: Some(before), after: Some(after), total, ..of(staged) }, true);
        }
        Collective::AllGather if request.in_place => of(blocks(INPUT, 0)),
        Collective::AllGather => {
            let to = blocks(OUTPUT, 0);
            let before = Copy { from: blocks(INPUT, rank), to, span: own, to_first: rank };
            Layout { before: Some(before), ..of(to) }
        }
        Collective::Gather => {
            let room = schedule.room(rank);
            let to = if root { blocks(OUTPUT, 0) } else { blocks(WORK, room.first) };
            let before = Copy { from: blocks(INPUT, rank), to, span: own, to_first: rank };
            match root || room.count > 1 {
                true => Layout { before: Some(before), ..of(to) },
                false => of(blocks(INPUT, rank)),
            }
        }
        Collective::Scatter => {
            let room = schedule.room(rank);
            let from = if root { blocks(INPUT, 0) } else { blocks(WORK, room.first) };
            let after = Copy { from, to: blocks(OUTPUT, rank), span: own, to_first: rank };
            match root || room.count > 1 {
                true => Layout { after: Some(after), ..of(from) },
                false => of(blocks(OUTPUT, rank)),
            }
        }
        Collective::AllToAll => {
            let (low, high) = (blocks(INPUT, 0), blocks(OUTPUT, 0));
            let before = Copy { from: low, to: high, span: own, to_first: rank };
            Layout { high, split: ranks, before: Some(before), ..of(low) }
        }
    };
    (layout, false)
}
