//! One run of a [`Plan`]: which nodes may run now, and with what.
//!
//! The rules are those of TensorFlow's executor (tensorflow/core/common_runtime/propagator_state.cc): a value that a switch
//! did not pass on is dead, and so is what needs it; a merge takes the first live value; iterations of a loop run beside each
//! other up to the loop's limit, and an iteration is over when nothing of it is left to run and the one before it is over.
//!
//! Invariants (cited by the tests):
//! - **E1** Each node runs once per iteration of its frame at most, and only when all that it needs is there.
//! - **E2** A value is kept until its last reader has it; that one gets it without a copy.
//! - **E3** When nothing is outstanding, every frame has ended and nothing is kept.

use std::collections::VecDeque;
use std::sync::Arc;

use super::plan::{Counts, Kind, Plan, frame_id};

/// A node that may run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Which node.
    pub node: u32,
    /// On a branch that was not taken: it does not run, unless it is a transfer.
    pub dead: bool,
    frame: u32,
    iteration: u64,
}

/// One iteration of a frame.
#[derive(Debug)]
struct Iteration<V> {
    counts: Vec<Counts>,
    inputs: Vec<Option<V>>,
    /// Nodes of it that are ready or run.
    outstanding: u32,
    /// Frames inside of it that have not ended.
    frames: u32,
    /// These frames: which of the plan, and where they are.
    children: Vec<(u32, u32)>,
}

/// A loop that runs.
#[derive(Debug)]
struct Frame<V> {
    plan: u32,
    id: u64,
    parent: Option<(u32, u64)>,
    /// Number of the oldest iteration that is not over.
    first: u64,
    iterations: VecDeque<Iteration<V>>,
    /// Number of the latest iteration.
    latest: u64,
    /// `Enter`s that have not run.
    entries: u32,
    /// What begins the next iteration, once there is room for it.
    next: Vec<(u32, Option<V>)>,
    constants: Vec<(u32, Option<V>)>,
    /// `Exit`s that were dead in the latest iteration.
    dead_exits: Vec<u32>,
    /// What an iteration that is over leaves for another.
    spare: Option<Iteration<V>>,
}

impl<V> Frame<V> {
    fn new(plan: &Plan, of: u32, id: u64, parent: Option<(u32, u64)>) -> Frame<V> {
        let mut frame = Frame {
            plan: of,
            id,
            parent,
            first: 0,
            iterations: VecDeque::new(),
            latest: 0,
            entries: plan.frames[of as usize].entries,
            next: Vec::new(),
            constants: Vec::new(),
            dead_exits: Vec::new(),
            spare: None,
        };
        frame.begin(plan);
        frame
    }

    /// Makes room for one more iteration.
    fn begin(&mut self, plan: &Plan) {
        let of = &plan.frames[self.plan as usize];
        let iteration = match self.spare.take() {
            Some(mut used) => {
                used.counts.copy_from_slice(&of.counts);
                used.inputs.iter_mut().for_each(|input| *input = None);
                used.children.clear();
                used
            }
            None => Iteration {
                counts: of.counts.clone(),
                inputs: std::iter::repeat_with(|| None).take(of.inputs as usize).collect(),
                outstanding: 0,
                frames: 0,
                children: Vec::new(),
            },
        };
        self.iterations.push_back(iteration);
    }

    fn at(&mut self, iteration: u64) -> &mut Iteration<V> {
        let index = iteration - self.first;
        &mut self.iterations[index as usize]
    }

    fn is_over(&self, iteration: u64) -> bool {
        let oldest = self.iterations.front().filter(|_| iteration == self.first);
        oldest
            .is_some_and(|it| it.outstanding == 0 && it.frames == 0 && (iteration != 0 || self.entries == 0))
    }
}

/// One run of a plan, with values of type `V`.
#[derive(Debug)]
pub struct Execution<V> {
    plan: Arc<Plan>,
    frames: Vec<Option<Frame<V>>>,
    free: Vec<u32>,
    outstanding: usize,
}

impl<V: Clone> Execution<V> {
    /// A run that has not begun.
    #[must_use]
    pub fn new(plan: Arc<Plan>) -> Execution<V> {
        let root = Frame::new(&plan, 0, 0, None);
        Execution { plan, frames: vec![Some(root)], free: Vec::new(), outstanding: 0 }
    }

    /// Begins: nodes that wait for nothing are ready.
    pub fn start(&mut self, ready: &mut Vec<Ready>) {
        let sources = &self.plan.sources;
        if let Some(Some(root)) = self.frames.first_mut() {
            root.at(0).outstanding += sources.len() as u32;
        }
        self.outstanding += sources.len();
        ready.extend(sources.iter().map(|node| Ready { node: *node, dead: false, frame: 0, iteration: 0 }));
    }

    /// Whether nothing is ready or runs.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.outstanding == 0
    }

    /// Frame and iteration that the node runs in, as keys of tensors hold them; 0 and 0 outside of loops.
    #[must_use]
    pub fn place(&self, ready: &Ready) -> (u64, i64) {
        let id = self.frames[ready.frame as usize].as_ref().map_or(0, |frame| frame.id);
        (id, ready.iteration as i64)
    }

    /// Hands over the node's inputs. Those that are dead, and those that a merge did not take, are `None`.
    pub fn take_inputs(&mut self, ready: &Ready, mut take: impl FnMut(Option<V>)) {
        let node = &self.plan.nodes[ready.node as usize];
        let range = node.first_input as usize..(node.first_input + node.inputs) as usize;
        let iteration = frame(&mut self.frames, ready.frame).at(ready.iteration);
        iteration.inputs[range].iter_mut().for_each(|input| take(input.take()));
    }

    /// A node has run, or was dead: `outputs` are what it gave, `None` for what is dead. Nodes that may run then are added
    /// to `ready`.
    pub fn finish(&mut self, done: Ready, outputs: &mut [Option<V>], ready: &mut Vec<Ready>) {
        let before = ready.len();
        let plan = Arc::clone(&self.plan);
        match plan.nodes[done.node as usize].kind {
            Kind::Plain | Kind::Merge | Kind::ControlTrigger => {
                let iteration = frame(&mut self.frames, done.frame).at(done.iteration);
                activate(&plan, iteration, (done.frame, done.iteration), done, outputs, ready);
            }
            Kind::Enter { constant } => self.enter(&plan, done, constant, outputs, ready),
            Kind::Exit => self.exit(&plan, done, outputs, ready),
            Kind::NextIteration => self.next_iteration(&plan, done, outputs, ready),
        }
        frame(&mut self.frames, done.frame).at(done.iteration).outstanding -= 1;
        self.settle(&plan, (done.frame, done.iteration), ready);
        self.outstanding += ready.len() - before;
        self.outstanding -= 1;
    }

    fn enter(
        &mut self,
        plan: &Plan,
        done: Ready,
        constant: bool,
        outputs: &mut [Option<V>],
        ready: &mut Vec<Ready>,
    ) {
        let child = self.child(plan, done);
        let inner = frame(&mut self.frames, child);
        if constant {
            let value = outputs.first_mut().and_then(Option::take);
            for iteration in inner.first..=inner.latest {
                let again = &mut [value.clone()];
                activate(plan, inner.at(iteration), (child, iteration), done, again, ready);
            }
            inner.constants.push((done.node, value));
        } else {
            activate(plan, inner.at(0), (child, 0), done, outputs, ready);
        }
        inner.entries -= 1;
        if inner.entries == 0 {
            self.settle(plan, (child, 0), ready);
        }
    }

    /// The frame that an `Enter` leads into from where it is.
    fn child(&mut self, plan: &Plan, done: Ready) -> u32 {
        let of = plan.nodes[done.node as usize].child;
        let outer = frame(&mut self.frames, done.frame);
        let id = outer.id;
        let iteration = outer.at(done.iteration);
        if let Some((_, there)) = iteration.children.iter().find(|(plan, _)| *plan == of) {
            return *there;
        }
        let child = self.free.pop().unwrap_or(self.frames.len() as u32);
        let iteration = frame(&mut self.frames, done.frame).at(done.iteration);
        iteration.children.push((of, child));
        iteration.frames += 1;
        let id = frame_id(id, done.iteration, plan.frames[of as usize].name_hash);
        let inner = Some(Frame::new(plan, of, id, Some((done.frame, done.iteration))));
        match self.frames.get_mut(child as usize) {
            Some(place) => *place = inner,
            None => self.frames.push(inner),
        }
        child
    }

    fn exit(&mut self, plan: &Plan, done: Ready, outputs: &mut [Option<V>], ready: &mut Vec<Ready>) {
        let inner = frame(&mut self.frames, done.frame);
        if done.dead {
            // Whether the loop is over without this value is known when the loop is over.
            if done.iteration == inner.latest {
                inner.dead_exits.push(done.node);
            }
        } else if let Some((outer, iteration)) = inner.parent {
            let at = frame(&mut self.frames, outer).at(iteration);
            activate(plan, at, (outer, iteration), done, outputs, ready);
        }
    }

    fn next_iteration(
        &mut self,
        plan: &Plan,
        done: Ready,
        outputs: &mut [Option<V>],
        ready: &mut Vec<Ready>,
    ) {
        // A dead one ends here: the loop does not go round again.
        if done.dead {
            return;
        }
        let inner = frame(&mut self.frames, done.frame);
        if done.iteration == inner.latest {
            let parallel = plan.frames[inner.plan as usize].parallel as usize;
            if inner.iterations.len() >= parallel {
                inner.next.push((done.node, outputs.first_mut().and_then(Option::take)));
                return;
            }
            increment(plan, inner, done.frame, ready);
        }
        let next = done.iteration + 1;
        activate(plan, inner.at(next), (done.frame, next), done, outputs, ready);
    }

    /// Ends iterations and frames that are over, from the inside out (E3).
    fn settle(&mut self, plan: &Plan, mut at: (u32, u64), ready: &mut Vec<Ready>) {
        loop {
            let inner = frame(&mut self.frames, at.0);
            let mut iteration = at.1;
            while inner.is_over(iteration) {
                inner.spare = inner.iterations.pop_front();
                inner.first += 1;
                iteration += 1;
                if !inner.next.is_empty() {
                    increment(plan, inner, at.0, ready);
                }
            }
            if inner.entries > 0 || !inner.iterations.is_empty() {
                return;
            }
            let (parent, dead_exits) = (inner.parent, std::mem::take(&mut inner.dead_exits));
            self.frames[at.0 as usize] = None;
            self.free.push(at.0);
            let Some(parent) = parent else { return };
            let outer = frame(&mut self.frames, parent.0).at(parent.1);
            for node in dead_exits {
                let dead = Ready { node, dead: true, frame: at.0, iteration: 0 };
                activate(plan, outer, parent, dead, &mut [], ready);
            }
            outer.frames -= 1;
            at = parent;
        }
    }
}

fn frame<V>(frames: &mut [Option<Frame<V>>], at: u32) -> &mut Frame<V> {
    // A frame ends when nothing of it is outstanding, and only outstanding nodes and inner frames are asked for (E3).
    frames[at as usize].as_mut().unwrap_or_else(|| unreachable!("frame {at} has ended"))
}

/// Begins the next iteration with what waits for it, and with the loop's constants.
fn increment<V: Clone>(plan: &Plan, inner: &mut Frame<V>, at: u32, ready: &mut Vec<Ready>) {
    inner.latest += 1;
    inner.begin(plan);
    inner.dead_exits.clear();
    let latest = inner.latest;
    let (waiting, constants) = (std::mem::take(&mut inner.next), std::mem::take(&mut inner.constants));
    let iteration = inner.at(latest);
    let mut begin = |node: u32, value: Option<V>| {
        let done = Ready { node, dead: value.is_none(), frame: at, iteration: latest };
        activate(plan, iteration, (at, latest), done, &mut [value], ready);
    };
    waiting.into_iter().for_each(|(node, value)| begin(node, value));
    constants.iter().for_each(|(node, value)| begin(*node, value.clone()));
    inner.constants = constants;
}

/// Gives a node's outputs to their readers in one iteration.
fn activate<V: Clone>(
    plan: &Plan,
    iteration: &mut Iteration<V>,
    at: (u32, u64),
    done: Ready,
    outputs: &mut [Option<V>],
    ready: &mut Vec<Ready>,
) {
    let enters = matches!(plan.nodes[done.node as usize].kind, Kind::Enter { .. });
    for edge in plan.edges(done.node) {
        let to = &plan.nodes[edge.to as usize];
        let counts = &mut iteration.counts[to.local as usize];
        let value = outputs.get_mut(edge.output as usize).filter(|_| !done.dead);
        let live = value.as_ref().is_some_and(|value| value.is_some());
        let (is_ready, mut dead, takes) = if to.kind == Kind::Merge {
            merge(counts, to.inputs, edge.slot().is_some(), live, done.dead && enters)
        } else {
            counts.pending -= 1;
            let is_dead = done.dead || (edge.slot().is_some() && !live);
            counts.dead += u32::from(is_dead);
            (counts.pending == 0, counts.dead > 0, live)
        };
        if let (Some(slot), Some(value), true) = (edge.slot(), value, takes) {
            // E2.
            let given = if edge.last { value.take() } else { value.clone() };
            iteration.inputs[(to.first_input + slot) as usize] = given;
        }
        if is_ready {
            dead &= to.kind != Kind::ControlTrigger;
            iteration.outstanding += 1;
            ready.push(Ready { node: edge.to, dead, frame: at.0, iteration: at.1 });
        }
    }
}

/// Whether a merge is ready, whether it is dead, and whether it takes this value.
fn merge(counts: &mut Counts, inputs: u32, data: bool, live: bool, dead_entry: bool) -> (bool, bool, bool) {
    if !data {
        counts.pending -= 2;
        let dead = counts.dead == inputs;
        return (counts.pending == 0 || (counts.pending == 1 && dead), dead, false);
    }
    if live {
        // The low bit is set until the first live value.
        let (first, before) = (counts.pending & 1 == 1, counts.pending);
        counts.pending &= !1;
        return (before == 1, false, first);
    }
    counts.dead += 1;
    // The other value of a merge at the head of a loop never comes when the entry is dead.
    let dead = counts.dead == inputs || dead_entry;
    (counts.pending == 1 && dead, dead, false)
}

#[cfg(test)]
#[path = "execution/tests.rs"]
mod tests;
