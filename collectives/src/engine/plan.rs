//! From the arguments of a call to what its run needs: schedule, layout, slices, lanes, scratch.

#![forbid(unsafe_code)]

use super::arrange::arrange;
use super::blocks::Blocks;
use super::error::InvalidCall;
use super::fingerprint::Form;
use super::hazard::WINDOW;
use super::layout::{Area, INPUT, Layout, OUTPUT, WORK};
use super::numerics::Numerics;
use super::options::{EngineOptions, MAX_SLICES_IN_FLIGHT};
use super::reduction::Function;
use super::slice::{Share, share, widest_message, widest_reduce};
use super::straight::MOST_BEGUN;
use crate::reduce::ReduceOp;
use crate::schedule::{
    Algorithm, Arranged, Arrangement, Basis, Choice, Collective, Costs, EAGER_BYTES, Estimate, LinkCosts,
    Order, Priced, Rank, Schedule, Span, Step, Wanted, Why, choose as cheapest, choose_alike,
    estimate_over_hosts, prices,
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
/// Messages of all-reduces go at once up to so many bytes between two ranks that share memory, where others of that length wait
/// at their sender: combined out of the queue, 64 KiB in all take 2.3 us in place of 4.5. Where ranks share cores it is no
/// quicker (3 ranks on 2 cores, 256 KiB: 35 us in place of 27).
const SHARED_AT_ONCE_BYTES: u64 = 64 << 10;
/// Vectors of up to so many bytes go in slices that short: 256 KiB take 8.6 us in place of 11.8. 384 KiB would take 14.2 in place of
/// 15.6, but a started call, which is a run, 25.7 in place of 22.6.
const SHARED_SLICED_BYTES: u64 = 256 << 10;

/// What is asked of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) what: What,
    pub(super) dtype: Option<DType>,
    pub(super) op: Option<ReduceOp>,
    /// A function of the user's, in place of `op`.
    pub(super) function: Option<Function>,
    /// Blocks of unequal lengths, and those that an all-to-all receives.
    pub(super) blocks: Option<Blocks>,
    pub(super) received: Option<Blocks>,
    /// Elements of the buffer, or of one rank's block where chunks are blocks; of all blocks where they are unequal.
    pub(super) count: usize,
    /// Root of a rooted collective, else 0.
    pub(super) root: Rank,
    /// Whether input and output are one buffer.
    pub(super) in_place: bool,
}

impl Request {
    /// What sets the call apart, as far as its caller says.
    pub(super) fn form(&self) -> Form {
        let in_order = self.function.as_ref().is_some_and(|f| f.in_order);
        Form::default()
            .and(Form::BLOCKS, self.blocks.is_some())
            .and(Form::FUNCTION, self.function.is_some())
            .and(Form::IN_ORDER, in_order)
    }

    /// Whether its blocks are equal, its elements travel as what they are, and kernels of the library combine them.
    fn is_plain(&self, wire: Option<DType>) -> bool {
        self.blocks.is_none() && self.function.is_none() && wire == self.dtype
    }
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

    fn incoming_is_left(&self, rank: Rank, step: &Step) -> bool {
        match self {
            Program::Collective(s) => s.incoming_is_left(rank, step),
            Program::Message(_) => false,
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

/// The ranks that a request is planned for.
#[derive(Clone, Copy)]
pub(super) struct Among<'a> {
    pub(super) group: &'a Arrangement,
    pub(super) costs: &'a Costs,
    /// What its links cost besides, as far as that may decide ([`Group::here`](super::group::Group)).
    pub(super) here: Option<&'a LinkCosts>,
    pub(super) numerics: Numerics,
    /// Whether all of them share memory.
    pub(super) shares_memory: bool,
}

impl Among<'_> {
    /// Whether they are two that share memory, and this is what these make at once beyond the eager limit.
    fn are_pair_for(&self, collective: Collective, request: &Request) -> bool {
        let is_plain = request.is_plain(self.numerics.wire(request).or(request.dtype));
        self.shares_memory && self.group.ranks() == 2 && collective == Collective::AllReduce && is_plain
    }
}

/// How a request is run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) program: Program,
    pub(super) algorithm: Option<Algorithm>,
    pub(super) form: Form,
    /// The type that elements are sent and combined as.
    pub(super) dtype: Option<DType>,
    /// What an average is divided by.
    pub(super) averaged: u32,
    /// Whether each pair of ranks has a length of its own, which its messages tell.
    pub(super) pairwise: bool,
    pub(super) layout: Layout,
    pub(super) lanes: u32,
    /// Messages per peer and direction that the run may have posted; 0 for a run that must be narrow.
    pub(super) depth: u32,
    /// Bytes of the work area ([`WORK`]).
    pub(super) work_bytes: usize,
    /// Bytes of one scratch slot, and slots per lane.
    pub(super) slot_bytes: usize,
    pub(super) slots: usize,
    /// Whether it can be run at once: small messages, of one slice or of a few that can go in rounds (A6 of the straight path), and
    /// what is plain ([`Request::is_plain`]).
    pub(super) at_once: bool,
    /// Messages of up to so many bytes are sent at once where that is possible.
    pub(super) at_once_bytes: u64,
    /// Messages beyond so many bytes wait at their sender.
    pub(super) eager_bytes: u64,
}

impl Plan {
    /// Plans `request` for `rank` of a group, whose links cost so much.
    pub(super) fn new(
        request: &Request,
        rank: Rank,
        among: Among<'_>,
        options: &EngineOptions,
        caps: &Caps,
    ) -> Result<Plan, InvalidCall> {
        let element_bytes = request.dtype.map_or(1, DType::size);
        match request.what {
            What::Collective(collective) => Plan::collective(collective, request, rank, among, options, caps),
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
            form: Form::default(),
            dtype: request.dtype,
            averaged: 1,
            pairwise: false,
            layout,
            lanes: 1,
            depth: 1,
            work_bytes: 0,
            slot_bytes: 0,
            slots: 0,
            at_once: false,
            at_once_bytes: caps.eager_bytes,
            eager_bytes: caps.eager_bytes,
        }
    }

    fn collective(
        collective: Collective,
        request: &Request,
        rank: Rank,
        among: Among<'_>,
        options: &EngineOptions,
        caps: &Caps,
    ) -> Result<Plan, InvalidCall> {
        let dtype = among.numerics.wire(request).or(request.dtype);
        let element_bytes = dtype.map_or(1, DType::size);
        let ranks = among.group.ranks();
        let (choice, schedule) = choose(collective, request, among, element_bytes, options)?;
        let kind = (collective, choice.algorithm);
        let order = match schedule.gathers() {
            Some(gathered) if !among.numerics.in_sequence(request) => gathered.order,
            _ => Order::Sequence,
        };
        let (mut layout, pieces) = arrange(kind, request, (rank, ranks), element_bytes, (&schedule, order));
        let pairwise = request.blocks.is_some() && collective == Collective::AllToAll;
        let widest = widest_message(schedule.among_positions());
        let wanted = options.slice_bytes.unwrap_or(usize::try_from(choice.slice_bytes).unwrap_or(usize::MAX));
        let limit = longest(caps, element_bytes);
        layout.slices = match layout.low {
            // What the two sides of a pair know of each other's blocks is the length of one.
            _ if pairwise => 1,
            Area::Parts { cut, .. } | Area::StagedParts { cut, .. } => slices(
                layout.elements.div_ceil(cut.chunks as usize),
                element_bytes,
                wanted.min(limit / widest as usize),
            ),
            _ if pieces || widest == 1 => slices(layout.elements, element_bytes, wanted.min(limit)),
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
            form: request
                .form()
                .and(Form::IN_SEQUENCE, among.numerics.in_sequence(request))
                .and(Form::AS_F32, dtype != request.dtype && dtype == Some(DType::F32))
                .and(Form::AS_BF16, dtype != request.dtype && dtype == Some(DType::Bf16)),
            dtype,
            averaged: match collective {
                Collective::Scan => rank + 1,
                Collective::ExclusiveScan => rank.max(1),
                _ => ranks,
            },
            pairwise,
            at_once: false,
            at_once_bytes: caps.eager_bytes,
            layout,
            lanes,
            depth,
            work_bytes: 0,
            slot_bytes: 0,
            slots: 0,
            eager_bytes: caps.eager_bytes,
        };
        plan.size_memory(collective, rank, &schedule);
        let of_pair = among.are_pair_for(collective, request);
        plan.at_once = request.is_plain(dtype) && plan.goes_at_once(rank, of_pair, longest_bytes);
        Ok(plan)
    }

    /// Whether all of it goes at once; messages of `longest_bytes` are its longest.
    fn goes_at_once(&mut self, rank: Rank, of_pair: bool, longest_bytes: u64) -> bool {
        if of_pair && self.eager_bytes > 0 {
            self.at_once_bytes = self.eager_bytes.max(SHARED_AT_ONCE_BYTES);
        }
        let bytes = (self.layout.elements * self.layout.element_bytes) as u64;
        let in_rounds = || of_pair && bytes <= SHARED_SLICED_BYTES && self.goes_in_rounds(rank);
        longest_bytes <= self.at_once_bytes && (self.layout.slices == 1 || in_rounds())
    }

    /// Whether its slices can be made at once (A6 of the straight path), of a plan that is in place.
    fn goes_in_rounds(&self, rank: Rank) -> bool {
        let Layout { before, after, gather, .. } = &self.layout;
        let is_in_place = self.work_bytes == 0 && before.is_none() && after.is_none() && gather.is_none();
        // A slice sends last in this round of its own, and waits last in that.
        let (mut sends, mut waits) = (0, 0);
        for step in (0..).map_while(|i| self.program.step(rank, i)) {
            if step.is_send() { sends = waits } else { waits += 1 }
        }
        // The next slice with the same tag begins behind that.
        is_in_place && (waits as usize) < MOST_BEGUN && sends < self.lanes && waits <= self.lanes
    }

    /// Sizes the work area and the scratch.
    fn size_memory(&mut self, collective: Collective, rank: Rank, schedule: &Arranged) {
        let block = self.layout.elements * self.layout.element_bytes;
        let lanes = self.lanes as usize;
        let piece = self.layout.longest_bytes(1);
        if let Area::Gathered { cut, part, .. } = self.layout.high {
            // Where elements are converted, the buffer is in the work area too, before what is gathered.
            let from_bytes = match self.layout.low {
                Area::StagedParts { cut, .. } => self.layout.lane_bytes(cut).next_multiple_of(SLOT_ALIGN),
                Area::Staged { chunks, .. } => (piece * chunks as usize).next_multiple_of(SLOT_ALIGN),
                _ => 0,
            };
            let ranks = self.program.ranks() as usize;
            let lane_bytes = from_bytes + ranks * self.layout.gathered_bytes(cut);
            match self.layout.low {
                Area::StagedParts { cut, .. } => self.layout.restage(Area::StagedParts { cut, lane_bytes }),
                Area::Staged { chunks, .. } => self.layout.restage(Area::Staged { chunks, lane_bytes }),
                _ => {}
            }
            self.layout.high = Area::Gathered { cut, part, from_bytes, lane_bytes };
            self.work_bytes = lane_bytes * lanes;
        } else if let Area::Staged { chunks, .. } = self.layout.low {
            let staged = Area::Staged { chunks, lane_bytes: piece * chunks as usize };
            self.layout.restage(staged);
            self.work_bytes = piece * chunks as usize * lanes;
        } else if let Area::StagedParts { cut, .. } = self.layout.low {
            let lane_bytes = self.layout.lane_bytes(cut);
            self.layout.restage(Area::StagedParts { cut, lane_bytes });
            self.work_bytes = lane_bytes * lanes;
        } else if let Area::Listed { place: WORK, list } = self.layout.low {
            let end =
                self.layout.lists[list].as_ref().and_then(|list| list.last()).map_or(0, |last| last.end);
            self.work_bytes = end * self.layout.element_bytes;
        } else if matches!(self.layout.low, Area::Blocks { place: WORK, .. }) {
            self.work_bytes = block * schedule.room(rank).count as usize;
        }
        let combines_at_once = collective.reduces() && schedule.gathers().is_none();
        if combines_at_once || collective == Collective::Barrier {
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
            if matches!(area, Area::Staged { .. } | Area::StagedParts { .. }) {
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
    among: Among<'_>,
    element_bytes: usize,
    options: &EngineOptions,
) -> Result<(Choice, Arranged), InvalidCall> {
    let Among { group, costs, here, numerics, .. } = among;
    let ranks = group.ranks();
    let is_blocked = matches!(
        collective,
        Collective::ReduceScatter
            | Collective::AllGather
            | Collective::Gather
            | Collective::Scatter
            | Collective::AllToAll
    );
    let bytes = match is_blocked && request.blocks.is_none() {
        true => request.count.saturating_mul(ranks as usize),
        false => request.count,
    };
    let bytes = bytes.saturating_mul(element_bytes) as u64;
    let costs = costs_for(collective, bytes, costs, options);
    let (costs, here) = (&costs, here_for(collective, bytes, here, ranks));
    let rule = Rule {
        // `a op b` is `b op a`: two ranks have one order.
        in_sequence: numerics.in_sequence(request) && (ranks > 2 || request.function.is_some()),
        in_order: request.function.as_ref().is_some_and(|f| f.in_order),
        one_block: request.blocks.is_some(),
    };
    // In the order of ranks, wherever they are.
    let numbered = Arrangement::together(ranks);
    let group = if rule.in_sequence || rule.in_order { &numbered } else { group };
    let basis = Basis { wanted: options.wanted, tuning: options.tuning.as_deref() };
    let choice = match rule.is_free() {
        true => match here {
            Some(here) => choose_alike(collective, group, bytes, (costs, here), basis),
            None => cheapest(collective, group, bytes, costs, basis),
        },
        false => rule.choose(collective, group, request.root, (bytes, costs), &options.wanted),
    };
    let choice = choice.map(|choice| match among.are_pair_for(collective, request) {
        true => at_once_sliced(choice, bytes),
        false => choice,
    });
    let found = choice.and_then(|c| c.schedule(collective, group, request.root).map(|s| (c, s)));
    found.ok_or(InvalidCall::NoSuchRank { what: "root", rank: request.root, size: ranks })
}

/// What a call of this size is priced by, in a group whose links cost so much. The limit is what goes at once by default
/// ([`EAGER_BYTES`]), not what does here: ranks may differ in that, and must not in their choice.
pub(super) fn costs_for(collective: Collective, bytes: u64, costs: &Costs, options: &EngineOptions) -> Costs {
    match collective {
        // Two ranks that share memory all-reduce by halves: each reads and combines half of the other's vector, and then reads
        // the other half of the result, where both would read all and combine it (512 KiB: 51 us by halves and 87, in another
        // state of the machine 17 and 25).
        Collective::AllReduce => *costs,
        // One that reads what it combines is done with it: round a ring its half would be moved once more (64 KiB: 1.8 us
        // down the tree and 3.7; 8 MiB: 180 and 226).
        Collective::Reduce => costs.combining_in_passing(),
        // What else there is goes beyond the eager limit as over other transports.
        _ if bytes <= 2 * EAGER_BYTES => *costs,
        _ => options.costs,
    }
}

/// What links cost besides, where that may decide for a call of this size: while each part of a rank's goes at once. Beyond,
/// bytes rule, and what is chosen for any transport is as good here; but a reduce-scatter by one exchange reads each block where
/// it lies, once, and by halves half of all and then a quarter (4 ranks on 2 cores, 512 KiB: 37 us and 52; 8 MiB: 740 to 1097
/// and 907 to 1192).
pub(super) fn here_for(
    collective: Collective,
    bytes: u64,
    here: Option<&LinkCosts>,
    ranks: u32,
) -> Option<&LinkCosts> {
    here.filter(|_| collective == Collective::ReduceScatter || bytes <= EAGER_BYTES * u64::from(ranks))
}

/// What a call asks of its algorithm.
#[derive(Clone, Copy)]
struct Rule {
    /// Operands are combined one after the other.
    in_sequence: bool,
    /// Operands are combined in the order of ranks.
    in_order: bool,
    /// Blocks are of unequal lengths, so that each message is one of them.
    one_block: bool,
}

impl Rule {
    fn is_free(self) -> bool {
        !(self.in_sequence || self.in_order || self.one_block)
    }

    fn admits(self, algorithm: Algorithm, schedule: &Arranged) -> bool {
        (!self.in_sequence || matches!(algorithm, Algorithm::Chain | Algorithm::Exchange))
            && (!self.in_order || schedule.keeps_rank_order())
            && (!self.one_block
                || widest_message(schedule.among_positions()) == 1 && schedule.gathers().is_none())
    }

    /// The cheapest algorithm that is admitted; of those asked for, if one of them is.
    fn choose(
        self,
        collective: Collective,
        group: &Arrangement,
        root: Rank,
        (bytes, costs): (u64, &Costs),
        wanted: &Wanted,
    ) -> Option<Choice> {
        let estimate = |algorithm| estimate_over_hosts(collective, algorithm, group, bytes, costs);
        let admitted = || {
            prices(collective, wanted, estimate).filter(|priced| {
                let schedule = group.schedule(collective, priced.algorithm, root);
                schedule.is_some_and(|schedule| self.admits(priced.algorithm, &schedule))
            })
        };
        let time_us = |priced: &Priced| priced.estimate.time_us;
        let cheaper = |a: &Priced, b: &Priced| time_us(a).total_cmp(&time_us(b));
        let asked = admitted().filter(|priced| priced.permitted).min_by(cheaper);
        let priced = asked.or_else(|| admitted().min_by(cheaper))?;
        let why = match (wanted.is_any(collective), priced.permitted) {
            (true, _) => Why::Cheapest,
            (false, true) => Why::Forced,
            (false, false) => Why::ForcedMissing,
        };
        let Estimate { time_us, slice_bytes, slices_in_flight } = priced.estimate;
        Some(Choice { algorithm: priced.algorithm, slice_bytes, slices_in_flight, time_us, why })
    }
}

/// What was chosen for an all-reduce of two ranks that share memory, in slices that can be made at once.
pub(super) fn at_once_sliced(choice: Choice, bytes: u64) -> Choice {
    match choice.why {
        Why::Tuned => choice,
        _ if bytes > SHARED_SLICED_BYTES => choice,
        _ => Choice { slice_bytes: choice.slice_bytes.min(SHARED_AT_ONCE_BYTES), ..choice },
    }
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
