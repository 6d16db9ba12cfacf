//! Runs programs: ready nodes in parallel, on a bounded pool.
//!
//! Cheap kernels run one after the other on the thread that found them ready; each expensive one but the last goes to another
//! thread. What waits for something (an edge, a function, a collective) holds no thread: its outputs come by a call.
//!
//! Invariants (cited by the tests):
//! - **X1** A run ends once, and when it ends no kernel of it runs any more.
//! - **X2** The first error is the run's result; nodes that were not begun then do not begin.
//! - **X3** No thread of the pool waits for anything but work.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ringway_proto::tensorflow::error::Code;

use super::away::Away;
use super::flow;
use super::pool::Pool;
use super::program::{Action, Op, Program};
use super::step::Step;
use crate::core::worker::{Execution, Ready};
use crate::kernels::{Call, OpError, Slot};
use crate::tensor::Tensor;
use crate::tensor::travel::Arrived;

/// Most calls of functions within each other. A function that calls itself without end fails then, instead of with the
/// memory of the machine.
pub const CALLS_LIMIT: usize = 10_000;

/// Most calls of functions of one step that are under way on one task. A function that calls itself more than once fails
/// by this, long before its calls are as deep as [`CALLS_LIMIT`].
pub const CALLS_UNDER_WAY_LIMIT: usize = 1 << 16;

/// What is called when a run is over.
pub type Done = Box<dyn FnOnce(Result<Vec<Slot>, OpError>) + Send>;

/// Runs programs on a pool.
#[derive(Clone, Debug)]
pub struct Executor {
    pool: Pool,
}

impl Executor {
    /// One that runs on `pool`.
    #[must_use]
    pub fn new(pool: Pool) -> Executor {
        Executor { pool }
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Begins to run a program. `done` is called once, by a thread of the pool, with the values of its `_Retval`s in
    /// order, or with the first error.
    pub fn start(&self, program: &Arc<Program>, args: Vec<Slot>, step: &Arc<Step>, done: Done) {
        self.start_within(0, program, args, step, done);
    }

    /// As [`Self::start`], within so many calls.
    pub(super) fn start_within(
        &self,
        calls: usize,
        program: &Arc<Program>,
        args: Vec<Slot>,
        step: &Arc<Step>,
        done: Done,
    ) {
        if calls > CALLS_LIMIT {
            let message = format!(
                "functions call each other more than {CALLS_LIMIT} deep: let the function that calls itself end \
                 sooner, or use a loop"
            );
            return done(Err(OpError::new(Code::ResourceExhausted, message)));
        }
        if !step.calls(CALLS_UNDER_WAY_LIMIT) {
            let message = format!(
                "more than {CALLS_UNDER_WAY_LIMIT} calls of functions are under way in one step: let functions that call \
                 themselves end sooner, or use a loop"
            );
            return done(Err(OpError::new(Code::ResourceExhausted, message)));
        }
        let (over, counted) = (done, step.clone());
        let done: Done = Box::new(move |result| {
            counted.returned();
            over(result);
        });
        let given = args.len();
        if given < program.args {
            let message = format!("the function takes {} values and was called with {given}", program.args);
            return done(Err(OpError::invalid(message)));
        }
        let mut returns = Vec::new();
        returns.resize_with(program.returns, Slot::default);
        let execution = Execution::new(program.plan.clone());
        let state = State { execution, args, returns, failed: None, done: Some(done), active: 0 };
        let run = Arc::new(Run {
            executor: self.clone(),
            program: program.clone(),
            step: step.clone(),
            calls,
            state: Mutex::new(state),
        });
        self.pool.spawn_next(move || run.begin());
    }

    /// As [`Self::start`], to be awaited.
    ///
    /// # Errors
    /// The first error of the run.
    pub async fn run(
        &self,
        program: &Arc<Program>,
        args: Vec<Slot>,
        step: &Arc<Step>,
    ) -> Result<Vec<Slot>, OpError> {
        let (tell, told) = tokio::sync::oneshot::channel();
        // The receiver is gone only if nobody waits any more.
        self.start(program, args, step, Box::new(move |result| drop(tell.send(result))));
        told.await.unwrap_or_else(|_| Err(OpError::internal("the executor lost a run")))
    }
}

struct State {
    execution: Execution<Slot>,
    args: Vec<Slot>,
    returns: Vec<Slot>,
    failed: Option<OpError>,
    done: Option<Done>,
    /// Nodes that are ready, run, or wait for their outputs.
    active: usize,
}

/// What became of a node.
pub(super) enum Outcome {
    /// Its outputs are set.
    Set,
    /// They come later, by [`Pending::finish`].
    Later,
}

/// One run of a program.
pub(super) struct Run {
    executor: Executor,
    program: Arc<Program>,
    step: Arc<Step>,
    /// Calls that it is within.
    calls: usize,
    state: Mutex<State>,
}

/// Vectors that are used again for each node.
#[derive(Default)]
struct Scratch {
    inputs: Vec<Slot>,
    outputs: Vec<Slot>,
    given: Vec<Option<Slot>>,
    ready: Vec<Ready>,
    local: VecDeque<Ready>,
    away: Vec<Ready>,
}

/// A node whose outputs come later. Must be finished exactly once.
pub(super) struct Pending {
    run: Arc<Run>,
    node: Ready,
    /// When it began, where the step is traced.
    began: Option<Instant>,
}

impl Pending {
    /// The step that the node is part of.
    pub(super) fn step(&self) -> &Arc<Step> {
        &self.run.step
    }

    /// What runs programs for the node.
    pub(super) fn caller(&self) -> Caller {
        Caller(self.run.clone())
    }

    /// Gives the node's outputs (an empty slot is a dead value), or the error.
    pub(super) fn finish(self, result: Result<Vec<Slot>, OpError>) {
        let pool = self.run.executor.pool.clone();
        pool.spawn_next(move || {
            if let Ok(outputs) = &result {
                self.run.trace(self.node, self.began, outputs);
            }
            self.run.come_back(self.node, result);
        });
    }
}

/// Runs programs for a node: one call further in than the node's own program.
pub(super) struct Caller(Arc<Run>);

impl Caller {
    pub(super) fn start(&self, program: &Arc<Program>, args: Vec<Slot>, done: Done) {
        let Run { executor, step, calls, .. } = &*self.0;
        executor.start_within(calls + 1, program, args, step, done);
    }
}

impl Run {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Kernels, which could panic, run without the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(self: Arc<Run>) {
        let mut scratch = Scratch::default();
        let mut state = self.lock();
        state.execution.start(&mut scratch.ready);
        state.active = scratch.ready.len();
        self.share(&mut scratch);
        let (first, over) = self.next(&mut state, &mut scratch);
        drop(state);
        self.go_on(scratch, first, over);
    }

    fn come_back(self: Arc<Run>, node: Ready, result: Result<Vec<Slot>, OpError>) {
        let mut scratch = Scratch::default();
        let outcome = result.map(|outputs| {
            scratch.outputs = outputs;
            Outcome::Set
        });
        let (next, over) = self.finish(node, outcome, &mut scratch);
        self.go_on(scratch, next, over);
    }

    /// Runs nodes until none is left for this thread.
    fn go_on(self: &Arc<Run>, mut scratch: Scratch, mut next: Option<Ready>, mut over: Over) {
        loop {
            for node in scratch.away.drain(..) {
                let run = self.clone();
                self.executor.pool.spawn(move || run.resume(node));
            }
            if let Some((done, result)) = over {
                done(result);
                return;
            }
            let Some(node) = next else { return };
            let began = self.began();
            let outcome = self.act(node, &mut scratch);
            if let Ok(Outcome::Set) = outcome {
                self.trace(node, began, &scratch.outputs);
            }
            (next, over) = self.finish(node, outcome, &mut scratch);
        }
    }

    /// A node that another thread left to this one.
    fn resume(self: Arc<Run>, node: Ready) {
        let mut scratch = Scratch::default();
        scratch.local.push_back(node);
        let mut state = self.lock();
        let (next, over) = self.next(&mut state, &mut scratch);
        drop(state);
        self.go_on(scratch, next, over);
    }

    /// A node is over: its outputs go where they are needed.
    fn finish(
        &self,
        node: Ready,
        outcome: Result<Outcome, OpError>,
        scratch: &mut Scratch,
    ) -> (Option<Ready>, Over) {
        let mut failure = None;
        let mut state = self.lock();
        match outcome {
            Ok(Outcome::Later) => {}
            Ok(Outcome::Set) if state.failed.is_none() => {
                let live = |slot: Slot| (!matches!(slot, Slot::Empty)).then_some(slot);
                scratch.given.extend(scratch.outputs.drain(..).map(live));
                state.execution.finish(node, &mut scratch.given, &mut scratch.ready);
                state.active += scratch.ready.len();
                state.active -= 1;
                self.share(scratch);
            }
            Ok(Outcome::Set) => state.active -= 1,
            Err(error) => {
                state.active -= 1;
                if state.failed.is_none() {
                    let error = self.named(node, error);
                    failure = Some(error.clone());
                    state.failed = Some(error);
                }
            }
        }
        scratch.given.clear();
        scratch.outputs.clear();
        if let Some(why) = failure {
            drop(state);
            // Whoever of this step waits for a value hears of it, which may finish nodes of this run.
            self.step.abort(&why);
            state = self.lock();
        }
        self.next(&mut state, scratch)
    }

    /// Which of the ready nodes this thread runs, and which others do.
    fn share(&self, scratch: &mut Scratch) {
        let mut last_expensive = None;
        for node in scratch.ready.drain(..) {
            if node.dead || self.op(node).action.is_cheap() {
                scratch.local.push_back(node);
            } else if let Some(before) = last_expensive.replace(node) {
                scratch.away.push(before);
            }
        }
        match last_expensive {
            Some(node) if scratch.local.is_empty() => scratch.local.push_back(node),
            Some(node) => scratch.away.push(node),
            None => {}
        }
    }

    /// The next node of this thread, with its inputs; or the end of the run (X1).
    fn next(&self, state: &mut State, scratch: &mut Scratch) -> (Option<Ready>, Over) {
        if state.failed.is_none() {
            state.failed = self.step.aborted();
        }
        if state.failed.is_some() {
            // X2. Nodes given away count until their thread comes to them.
            state.active -= scratch.local.len();
            scratch.local.clear();
        }
        if let Some(node) = scratch.local.pop_front() {
            let inputs = &mut scratch.inputs;
            inputs.clear();
            state.execution.take_inputs(&node, |input| inputs.push(input.unwrap_or_default()));
            return (Some(node), None);
        }
        if state.active > 0 {
            return (None, None);
        }
        let result = match state.failed.take() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut state.returns)),
        };
        (None, state.done.take().map(|done| (done, result)))
    }

    fn op(&self, node: Ready) -> &Op {
        &self.program.ops[node.node as usize]
    }

    /// The error with the node's name, as TensorFlow writes it.
    fn named(&self, node: Ready, mut error: OpError) -> OpError {
        if !error.message.contains("[[{{node ") {
            error.message = format!("{}\n\t [[{{{{node {}}}}}]]", error.message, self.op(node).name);
        }
        error
    }

    fn act(self: &Arc<Run>, node: Ready, scratch: &mut Scratch) -> Result<Outcome, OpError> {
        let op = self.op(node);
        scratch.outputs.resize_with(op.outputs, Slot::default);
        if node.dead && !op.action.is_transfer() {
            return Ok(Outcome::Set);
        }
        let (inputs, outputs) = (&mut scratch.inputs, &mut scratch.outputs);
        match &op.action {
            Action::Kernel(_) if self.is_away(op, inputs) => {
                outputs.clear();
                self.run_away(op, std::mem::take(inputs), self.pending(node));
                return Ok(Outcome::Later);
            }
            Action::Kernel(kernel) => {
                let mut call = Call::new(self.step.scope(), &op.name, inputs, outputs);
                catch_unwind(AssertUnwindSafe(|| kernel.run(&mut call)))
                    .unwrap_or_else(|_| Err(OpError::internal("the kernel panicked: this is a defect")))?;
            }
            Action::Arg(index) => {
                let mut state = self.lock();
                let arg = state.args.get_mut(*index).map(std::mem::take);
                outputs[0] = arg.unwrap_or_default();
            }
            Action::Return(index) => {
                let value = inputs.first_mut().map(std::mem::take).unwrap_or_default();
                self.lock().returns[*index] = value;
            }
            Action::Pass => outputs[0] = inputs.first_mut().map(std::mem::take).unwrap_or_default(),
            Action::Nothing => {}
            Action::Switch => {
                let taken = flow::is_true(&inputs[1].value()?)?;
                outputs[usize::from(taken)] = std::mem::take(&mut inputs[0]);
            }
            Action::Merge => {
                let first = inputs.iter().position(|input| !matches!(input, Slot::Empty));
                let first = first.ok_or_else(|| OpError::internal("a merge has no live input"))?;
                outputs[0] = std::mem::take(&mut inputs[first]);
                outputs[1] = Slot::Tensor(Tensor::scalar(first as i32)?);
            }
            Action::Send(edge) => {
                let key = edge.at(self.place(node))?;
                let dead = node.dead || matches!(inputs.first(), None | Some(Slot::Empty));
                let tensor = if dead { Tensor::scalar(0_f32)? } else { inputs[0].value()? };
                inputs.clear();
                self.step.exchange.send(&key, &tensor, dead)?;
            }
            Action::Recv(edge) => {
                let key = edge.at(self.place(node))?;
                let pending = self.pending(node);
                let then = move |arrived: Result<Arrived, OpError>| {
                    let slot = |arrived: Arrived| match arrived.is_dead {
                        true => Slot::Empty,
                        false => Slot::Tensor(arrived.tensor),
                    };
                    pending.finish(arrived.map(|arrived| vec![slot(arrived)]));
                };
                self.step.exchange.recv(&key, Box::new(then));
                return Ok(Outcome::Later);
            }
            Action::Call(_) | Action::If(_) | Action::Case(_) | Action::While { .. } => {
                outputs.clear();
                flow::call(&op.action, std::mem::take(inputs), self.pending(node));
                return Ok(Outcome::Later);
            }
            Action::Collective(collective) => {
                outputs.clear();
                collective.start(std::mem::take(inputs), self.pending(node));
                return Ok(Outcome::Later);
            }
        }
        Ok(Outcome::Set)
    }

    /// Whether a node uses a resource of another task.
    fn is_away(&self, op: &Op, inputs: &[Slot]) -> bool {
        op.uses.is_some()
            && self.step.elsewhere.is_some()
            && inputs.iter().any(|input| Away::of(input).is_some())
    }

    fn run_away(&self, op: &Op, inputs: Vec<Slot>, pending: Pending) {
        match (&op.uses, &self.step.elsewhere) {
            (Some(uses), Some(elsewhere)) => {
                elsewhere.run(uses, inputs, &self.step, Box::new(move |result| pending.finish(result)));
            }
            _ => pending.finish(Err(OpError::internal("there is no way to other tasks"))),
        }
    }

    fn place(&self, node: Ready) -> (u64, i64) {
        self.lock().execution.place(&node)
    }

    fn pending(self: &Arc<Run>, node: Ready) -> Pending {
        Pending { run: self.clone(), node, began: self.began() }
    }

    /// Now, where the step is traced.
    fn began(&self) -> Option<Instant> {
        self.step.trace.as_ref().map(|_| Instant::now())
    }

    /// A node that began then is done.
    fn trace(&self, node: Ready, began: Option<Instant>, outputs: &[Slot]) {
        let Some((trace, began)) = self.step.trace.as_ref().zip(began).filter(|_| !node.dead) else { return };
        let op = self.op(node);
        trace.node(&op.name, || self.program.label(op), began, outputs);
    }
}

/// The end of a run: whom to tell what.
type Over = Option<(Done, Result<Vec<Slot>, OpError>)>;

#[cfg(test)]
#[path = "executor/tests.rs"]
mod tests;
