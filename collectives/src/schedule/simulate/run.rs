//! The simulated engine: every rank's window of open steps, and the messages between them.

#![forbid(unsafe_code)]

use super::value::{Columns, Goal, Value};
use super::{Check, Fault, Posting, Stats};
use crate::schedule::{Bracket, Collective, Rank, Schedule, Span, Step};
use std::collections::VecDeque;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not posted yet.
    Waiting,
    /// Posted, not matched.
    Posted,
    /// A reduction whose message is in scratch and whose combine waits for hazards.
    Arrived,
    Done,
}

/// What a message carries, in the columns of its span.
#[derive(Default)]
enum Payload {
    /// No column of the span is in the sample.
    #[default]
    Nothing,
    /// One column, as nearly all messages of large worlds have.
    One(Value),
    Many(Vec<Value>),
    /// In a barrier: a bit for each rank that the sender has heard of.
    Heard(Vec<u64>),
}

struct Open {
    step: Step,
    state: State,
    scratch: Payload,
}

/// A send that no receive has met yet.
struct Unmatched {
    from: Rank,
    index: u32,
    span: Span,
    /// The data, if the send was buffered.
    payload: Option<Payload>,
}

#[derive(Default)]
struct Program {
    /// Index of the oldest open step.
    base: u32,
    ended: bool,
    open: VecDeque<Open>,
    /// Whether what was gathered is combined (I10).
    gathered: bool,
    sends: u32,
    receives: u32,
    /// Sends to this rank that wait for their receive, in the order they came.
    unmatched: VecDeque<Unmatched>,
    queued: bool,
}

impl Program {
    fn finished(&self) -> bool {
        self.ended && self.open.is_empty()
    }

    /// Whether the open step at `place` must wait for an earlier one (I4).
    fn blocked(&self, place: usize) -> bool {
        let step = self.open[place].step;
        self.open
            .iter()
            .take(place)
            .any(|earlier| earlier.state != State::Done && step.conflicts_with(&earlier.step))
    }
}

pub(super) struct Run<'a, S: ?Sized> {
    schedule: &'a S,
    goal: Goal,
    posting: Posting,
    columns: Columns,
    /// Values by rank and column.
    memory: Vec<Value>,
    /// In a barrier: bits by rank of the ranks heard of.
    heard: Vec<u64>,
    words: usize,
    programs: Vec<Program>,
    ready: Vec<Rank>,
    spare: Vec<Vec<Value>>,
    stats: Stats,
}

impl<'a, S: Schedule + ?Sized> Run<'a, S> {
    pub(super) fn new(schedule: &'a S, collective: Collective, root: Rank, check: &Check) -> Run<'a, S> {
        let ranks = schedule.ranks();
        let chunks = schedule.gathers().map_or(schedule.chunks(), |gathered| gathered.chunks);
        let goal = Goal { collective, ranks, chunks, root, seed: check.seed, rank_order: check.rank_order };
        // In an all-to-all a block leaves one chunk and arrives in another, so a sample of chunks is of no use.
        let most = if collective == Collective::AllToAll { u32::MAX } else { check.sampled_chunks };
        let columns = Columns::new(schedule.chunks(), most, check.seed);
        let memory = (0..ranks)
            .flat_map(|rank| (0..columns.len()).map(move |column| (rank, column)))
            .map(|(rank, column)| goal.start(rank, columns.chunk(column)))
            .collect();
        let words = if collective == Collective::Barrier { ranks.div_ceil(64) as usize } else { 0 };
        let mut heard = vec![0; words * ranks as usize];
        if words > 0 {
            for rank in 0..ranks as usize {
                heard[rank * words + rank / 64] |= 1 << (rank % 64);
            }
        }
        Run {
            schedule,
            goal,
            posting: check.posting,
            columns,
            memory,
            heard,
            words,
            programs: (0..ranks).map(|_| Program { queued: true, ..Program::default() }).collect(),
            ready: (0..ranks).collect(),
            spare: Vec::new(),
            stats: Stats::default(),
        }
    }

    pub(super) fn stats(&self) -> Stats {
        self.stats
    }

    /// Runs until nothing moves; fails unless every program has ended.
    pub(super) fn finish(&mut self) -> Result<(), Fault> {
        // The rank woken last goes first: it shares what the processor's cache still holds. The outcome is the same in
        // any order, since matches follow program order alone.
        while let Some(rank) = self.ready.pop() {
            self.programs[rank as usize].queued = false;
            while self.advance(rank)? {}
        }
        self.leftovers()
    }

    /// Checks what every rank holds.
    pub(super) fn result(&self) -> Result<(), Fault> {
        let width = self.columns.len();
        for column in 0..width {
            self.goal
                .check(self.columns.chunk(column), |rank| self.memory[rank as usize * width + column])?;
        }
        if self.words > 0 {
            for rank in 0..self.goal.ranks {
                let bits = &self.heard[rank as usize * self.words..][..self.words];
                let unheard = (0..self.goal.ranks).find(|&r| bits[r as usize / 64] >> (r % 64) & 1 == 0);
                if let Some(unheard) = unheard {
                    return Err(Fault::Early { rank, unheard });
                }
            }
        }
        Ok(())
    }

    fn leftovers(&self) -> Result<(), Fault> {
        let mut waiting = None;
        let mut stuck = 0;
        for (rank, program) in (0..).zip(&self.programs) {
            // A buffered send is done for its sender; it is found here if its receiver has ended.
            if program.finished() {
                let Some(left) = program.unmatched.front() else { continue };
                let step = Step::Send { to: rank, span: left.span };
                return Err(Fault::Orphan { rank: left.from, index: left.index, step });
            }
            stuck += 1;
            for (index, open) in (program.base..).zip(&program.open) {
                if open.state == State::Posted && self.programs[open.step.peer() as usize].finished() {
                    return Err(Fault::Orphan { rank, index, step: open.step });
                }
            }
            let oldest = &program.open[0];
            waiting = waiting.or(Some((rank, program.base, oldest.step)));
        }
        match waiting {
            Some((rank, index, step)) => Err(Fault::Deadlock { rank, index, step, stuck }),
            None => Ok(()),
        }
    }

    /// Takes finished steps out of the window of `rank` and opens new ones.
    fn refill(&mut self, rank: Rank) -> Result<(), Fault> {
        let program = &mut self.programs[rank as usize];
        while program.open.front().is_some_and(|open| open.state == State::Done) {
            program.open.pop_front();
            program.base += 1;
        }
        while !program.ended && program.open.len() < self.posting.ahead as usize {
            let index = program.base + program.open.len() as u32;
            // I10
            if self.schedule.gathers().is_some_and(|gathered| gathered.steps == index) && !program.gathered {
                if !program.open.is_empty() {
                    break;
                }
                program.gathered = true;
                gather(self.schedule, rank, &self.columns, &mut self.memory);
            }
            let Some(step) = self.schedule.step(rank, index) else {
                program.ended = true;
                let later = [index + 1, index + 2, index + 7, u32::MAX];
                if later.iter().any(|&later| self.schedule.step(rank, later).is_some()) {
                    return Err(Fault::Hole { rank, index });
                }
                break;
            };
            let (span, peer) = (step.span(), step.peer());
            let chunks = u64::from(self.schedule.chunks());
            let within = span.count > 0 && u64::from(span.first) + u64::from(span.count) <= chunks;
            if !within || peer == rank || peer >= self.goal.ranks {
                return Err(Fault::Bounds { rank, index, step });
            }
            program.open.push_back(Open { step, state: State::Waiting, scratch: Payload::default() });
        }
        Ok(())
    }

    /// Lets `rank` do all it can in one pass over its window; whether anything moved.
    fn advance(&mut self, rank: Rank) -> Result<bool, Fault> {
        self.refill(rank)?;
        let mut moved = false;
        let (mut sends_held, mut receives_held) = (false, false);
        for place in 0..self.programs[rank as usize].open.len() {
            let program = &self.programs[rank as usize];
            let open = &program.open[place];
            match (open.state, open.step) {
                (State::Posted | State::Done, _) => {}
                (State::Arrived, _) => {
                    if !program.blocked(place) {
                        self.combine(rank, place);
                        moved = true;
                    }
                }
                (State::Waiting, Step::Send { to, span }) => {
                    sends_held |= program.sends == self.posting.sends || program.blocked(place);
                    if !sends_held {
                        self.post_send(rank, place, to, span)?;
                        moved = true;
                    }
                }
                (State::Waiting, Step::Recv { from, .. } | Step::Reduce { from, .. }) => {
                    let replaces = matches!(open.step, Step::Recv { .. });
                    receives_held |= program.receives == self.posting.receives;
                    receives_held |= replaces && program.blocked(place);
                    if !receives_held {
                        self.post_receive(rank, place, from)?;
                        moved = true;
                    }
                }
            }
        }
        Ok(moved)
    }

    fn post_send(&mut self, rank: Rank, place: usize, to: Rank, span: Span) -> Result<(), Fault> {
        let index = self.programs[rank as usize].base + place as u32;
        self.stats.messages += 1;
        self.stats.chunks += u64::from(span.count);
        let receiver = &self.programs[to as usize];
        let posted = receiver
            .open
            .iter()
            .position(|open| open.state == State::Posted && !open.step.is_send() && open.step.peer() == rank);
        if let Some(at) = posted {
            let payload = self.read(rank, span);
            self.programs[rank as usize].open[place].state = State::Done;
            self.wake(to);
            return self.deliver((rank, index, span), to, at, payload);
        }
        let payload = self.posting.buffered.then(|| self.read(rank, span));
        let sender = &mut self.programs[rank as usize];
        if payload.is_some() {
            sender.open[place].state = State::Done;
        } else {
            sender.open[place].state = State::Posted;
            sender.sends += 1;
        }
        self.programs[to as usize].unmatched.push_back(Unmatched { from: rank, index, span, payload });
        Ok(())
    }

    fn post_receive(&mut self, rank: Rank, place: usize, from: Rank) -> Result<(), Fault> {
        let program = &mut self.programs[rank as usize];
        program.receives += 1;
        program.open[place].state = State::Posted;
        let Some(at) = program.unmatched.iter().position(|sent| sent.from == from) else {
            return Ok(());
        };
        let sent = program.unmatched.remove(at).expect("the position was just found");
        let payload = match sent.payload {
            Some(payload) => payload,
            None => {
                let sender = &mut self.programs[from as usize];
                let place = (sent.index - sender.base) as usize;
                sender.open[place].state = State::Done;
                sender.sends -= 1;
                self.wake(from);
                self.read(from, sent.span)
            }
        };
        self.deliver((from, sent.index, sent.span), rank, place, payload)
    }

    /// Hands a message to the posted receive at `place` of rank `to`.
    fn deliver(
        &mut self,
        (from, from_index, sent): (Rank, u32, Span),
        to: Rank,
        place: usize,
        mut payload: Payload,
    ) -> Result<(), Fault> {
        let program = &mut self.programs[to as usize];
        let open = &mut program.open[place];
        let expected = open.step.span();
        if sent.count != expected.count {
            let to_index = program.base + place as u32;
            return Err(Fault::SpanMismatch { from, from_index, sent, to, to_index, expected });
        }
        if sent.first != expected.first && self.columns.sampled() {
            // The sampled columns of the one span say nothing about the other's.
            payload = match self.columns.of(expected).len() {
                0 => Payload::Nothing,
                1 => Payload::One(self.goal.unknown()),
                columns => Payload::Many(vec![self.goal.unknown(); columns]),
            };
        }
        if matches!(open.step, Step::Reduce { .. }) {
            open.scratch = payload;
            open.state = State::Arrived;
        } else {
            open.state = State::Done;
            program.receives -= 1;
            self.write(to, expected, payload, |_, new| new);
        }
        Ok(())
    }

    fn combine(&mut self, rank: Rank, place: usize) {
        let program = &mut self.programs[rank as usize];
        program.receives -= 1;
        let open = &mut program.open[place];
        open.state = State::Done;
        let (span, payload) = (open.step.span(), std::mem::take(&mut open.scratch));
        if self.schedule.incoming_is_left(rank, &open.step) {
            self.write(rank, span, payload, |old, new| Value::combine(new, old));
        } else {
            self.write(rank, span, payload, Value::combine);
        }
    }

    /// Copies what `rank` holds in the columns of `span`.
    fn read(&mut self, rank: Rank, span: Span) -> Payload {
        if self.words > 0 {
            return Payload::Heard(self.heard[rank as usize * self.words..][..self.words].to_vec());
        }
        let base = rank as usize * self.columns.len();
        let columns = self.columns.of(span);
        match &self.memory[base + columns.start..base + columns.end] {
            [] => Payload::Nothing,
            [value] => Payload::One(*value),
            values => {
                let mut copy = self.spare.pop().unwrap_or_default();
                copy.extend_from_slice(values);
                Payload::Many(copy)
            }
        }
    }

    fn write(&mut self, rank: Rank, span: Span, payload: Payload, put: impl Fn(Value, Value) -> Value) {
        let base = rank as usize * self.columns.len();
        let columns = self.columns.of(span);
        let cells = &mut self.memory[base + columns.start..base + columns.end];
        match payload {
            Payload::Nothing => {}
            Payload::One(value) => cells[0] = put(cells[0], value),
            Payload::Many(mut values) => {
                for (cell, &value) in cells.iter_mut().zip(&values) {
                    *cell = put(*cell, value);
                }
                values.clear();
                self.spare.push(values);
            }
            Payload::Heard(heard) => {
                for (bits, new) in self.heard[rank as usize * self.words..].iter_mut().zip(heard) {
                    *bits |= new;
                }
            }
        }
    }

    fn wake(&mut self, rank: Rank) {
        let program = &mut self.programs[rank as usize];
        if !std::mem::replace(&mut program.queued, true) {
            self.ready.push(rank);
        }
    }
}

/// Combines what `rank` has gathered. Where chunks are sampled there are values of no operands to combine.
fn gather<S: Schedule + ?Sized>(schedule: &S, rank: Rank, columns: &Columns, memory: &mut [Value]) {
    let Some(gathered) = schedule.gathers().filter(|_| !columns.sampled()) else { return };
    let (base, own) = (rank as usize * columns.len(), schedule.position(rank));
    let place = |position: u32| {
        let chunk = if position == own { gathered.part(own) } else { gathered.chunks + position };
        base + chunk as usize
    };
    for Bracket { into, from, incoming_is_left } in gathered.order.brackets(schedule.ranks(), own) {
        let (old, new) = (memory[place(into)], memory[place(from)]);
        memory[place(into)] =
            if incoming_is_left { Value::combine(new, old) } else { Value::combine(old, new) };
    }
}
