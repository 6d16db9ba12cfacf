//! Runs one step: hands the parts to their workers, follows [`Step`], and gathers what was fetched.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use prost::Message;
use ringway_proto::tensorflow as tf;

use super::port::Answer;
use super::session::{Registered, Session, by, within};
use crate::core::coordination::errors::Code;
use crate::core::machine::Machine;
use crate::core::master::step::{Effect, Event, Failure, Step};
use crate::core::master::{MasterError, feed};
use crate::core::time::Time;
use crate::rpc::TENSORS_OF_A_MESSAGE_BYTES;

/// How long a worker has to forget a step.
const CLEAN_UP_LIMIT: Duration = Duration::from_secs(5);

/// What a step gives back.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    /// One for each fetch that was asked for.
    pub(super) tensors: Vec<tf::TensorProto>,
    pub(super) metadata: tf::RunMetadata,
}

/// What of a run is handed out now: everything, or one part of a run in parts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Share<'a> {
    Whole,
    Part { feeds: &'a [usize], fetches: &'a [usize], last: bool },
}

impl Share<'_> {
    fn gives(&self, feed: usize) -> bool {
        match self {
            Share::Whole => true,
            Share::Part { feeds, .. } => feeds.contains(&feed),
        }
    }

    fn asks(&self, fetch: usize) -> bool {
        match self {
            Share::Whole => true,
            Share::Part { fetches, .. } => fetches.contains(&fetch),
        }
    }

    fn is_last(&self) -> bool {
        matches!(self, Share::Whole | Share::Part { last: true, .. })
    }
}

/// A number for a step, as TensorFlow draws them: 56 random bits, never 0.
pub(super) fn step_id() -> i64 {
    ((crate::random::incarnation().0 & ((1 << 56) - 1)) | 1) as i64
}

/// Has workers forget a step, in the background; also when whoever waits for the step goes away.
pub(super) struct CleanUp {
    session: Arc<Session>,
    step: i64,
    tasks: Vec<usize>,
}

impl CleanUp {
    pub(super) fn new(session: &Arc<Session>, step: i64, registered: &Registered) -> CleanUp {
        let tasks = registered.plan.parts.iter().map(|part| part.task).collect();
        CleanUp { session: session.clone(), step, tasks }
    }

    /// The task cannot be told.
    fn spare(&mut self, task: usize) {
        self.tasks.retain(|known| *known != task);
    }
}

impl Drop for CleanUp {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        for task in &self.tasks {
            // A worker that does not hear of it forgets the step with its process or its session.
            runtime.spawn(within(CLEAN_UP_LIMIT, self.session.members[*task].port().clean_up(self.step)));
        }
    }
}

/// The options of a step that matter here.
#[derive(Clone, Debug, Default)]
pub(super) struct StepOptions {
    limit: Option<Duration>,
    traced: bool,
    graphs: bool,
}

impl StepOptions {
    pub(super) fn new(options: &tf::RunOptions, config: &tf::ConfigProto) -> StepOptions {
        let limit_ms =
            if options.timeout_in_ms > 0 { options.timeout_in_ms } else { config.operation_timeout_in_ms };
        StepOptions {
            limit: u64::try_from(limit_ms).ok().filter(|ms| *ms > 0).map(Duration::from_millis),
            traced: options.trace_level != 0,
            graphs: options.output_partition_graphs,
        }
    }
}

/// One step or one part of a run in parts.
pub(super) struct Run<'a> {
    pub(super) session: &'a Arc<Session>,
    pub(super) registered: &'a Registered,
    pub(super) step: i64,
    pub(super) options: &'a StepOptions,
    pub(super) share: Share<'a>,
}

impl Run<'_> {
    /// Checks the values and runs. `feeds` are by place; those that are not given now are `None`.
    ///
    /// The second value has the workers forget the step when it is dropped.
    pub(super) async fn run(
        &self,
        feeds: Vec<Option<tf::TensorProto>>,
        clean_up: &mut CleanUp,
    ) -> Result<Fetched, MasterError> {
        let plan = &self.registered.plan;
        for ((name, value), kind) in plan.signature.feeds.iter().zip(&feeds).zip(&plan.feed_types) {
            if let Some(value) = value {
                feed::check(name, value, *kind)?;
            }
        }
        let mut calls = self.calls(feeds);
        let mut answers: Vec<Option<tf::RunGraphResponse>> = calls.iter().map(|_| None).collect();
        let began = Instant::now();
        let now = || Time::ZERO + began.elapsed();
        let tasks = plan.parts.iter().map(|part| self.session.members[part.task].name.clone());
        let mut step = Step::new(self.step, tasks, Time::ZERO, self.options.limit);
        let mut ended = self.session.watch();
        let (mut effects, mut result) = (Vec::new(), None);
        if let Some(why) = ended.borrow_and_update().clone() {
            return Err(why);
        }
        while result.is_none() {
            let deadline = step.deadline().map(|deadline| began + Duration::from_nanos(deadline.0));
            tokio::select! {
                biased;
                (part, answer) = next(&mut calls) => {
                    let answer = answer.map(|response| answers[part] = Some(response));
                    if let Err(failure) = &answer {
                        self.suspect(part, failure, clean_up);
                    }
                    step.on_event(now(), Event::Answered { part, result: answer }, &mut effects);
                }
                () = reach(deadline) => step.on_time(now(), &mut effects),
                // The sender lives as long as the session, which is held here.
                _ = ended.changed() => {
                    let why = ended.borrow_and_update().clone();
                    let why = why.unwrap_or_else(|| MasterError::SessionClosed(self.session.handle.clone()));
                    step.on_event(now(), Event::Cancelled(why), &mut effects);
                }
            }
            for effect in effects.drain(..) {
                match effect {
                    Effect::Cancel(part) => calls[part] = None,
                    // `clean_up` does it for all when the step, or the last part of the run, is over.
                    Effect::CleanUp(_) => {}
                    Effect::Finish(how) => result = Some(how),
                }
            }
        }
        result.unwrap_or(Ok(()))?;
        self.gather(answers)
    }

    /// One call for each part.
    fn calls(&self, mut feeds: Vec<Option<tf::TensorProto>>) -> Vec<Option<Answer<tf::RunGraphResponse>>> {
        let parts = &self.registered.plan.parts;
        let mut uses = vec![0_u32; feeds.len()];
        parts.iter().flat_map(|part| &part.feeds).for_each(|(feed, _)| uses[*feed] += 1);
        let exec_opts = tf::ExecutorOpts {
            record_timeline: self.options.traced,
            record_costs: self.options.traced,
            record_partition_graphs: self.options.graphs,
            ..tf::ExecutorOpts::default()
        };
        let mut calls = Vec::with_capacity(parts.len());
        for (part, handle) in parts.iter().zip(&self.registered.handles) {
            let mut send = Vec::with_capacity(part.feeds.len());
            for (feed, key) in part.feeds.iter().filter(|(feed, _)| self.share.gives(*feed)) {
                uses[*feed] -= 1;
                let tensor = if uses[*feed] == 0 { feeds[*feed].take() } else { feeds[*feed].clone() };
                send.push(tf::NamedTensorProto { name: key.to_string(), tensor });
            }
            let asked =
                part.fetches.iter().filter(|(_, fetches)| fetches.iter().any(|at| self.share.asks(*at)));
            let request = tf::RunGraphRequest {
                session_handle: self.session.handle.clone(),
                create_worker_session_called: true,
                graph_handle: handle.clone(),
                step_id: self.step,
                exec_opts: Some(exec_opts),
                send,
                recv_key: asked.map(|(key, _)| key.to_string()).collect(),
                is_partial: matches!(self.share, Share::Part { .. }),
                is_last_partial_run: matches!(self.share, Share::Part { last: true, .. }),
                store_errors_in_response_body: true,
                request_id: step_id(),
            };
            calls.push(Some(self.session.members[part.task].port().run_graph(request)));
        }
        calls
    }

    /// Takes note of what a failure says about a worker.
    fn suspect(&self, part: usize, failure: &Failure, clean_up: &mut CleanUp) {
        let task = self.registered.plan.parts[part].task;
        self.session.members[task].hear(failure);
        if failure.lost {
            clean_up.spare(task);
        } else if failure.code == Code::Aborted && failure.message.contains("not found") {
            // What workers say to handles that another life of them gave out.
            self.session.distrust(self.registered, task);
        }
    }

    /// Puts what came back into the order of the fetches.
    fn gather(&self, answers: Vec<Option<tf::RunGraphResponse>>) -> Result<Fetched, MasterError> {
        let plan = &self.registered.plan;
        let mut tensors: Vec<Option<tf::TensorProto>> = vec![None; plan.signature.fetches.len()];
        let mut metadata = tf::RunMetadata::default();
        for (answer, part) in answers.into_iter().zip(&plan.parts) {
            let Some(answer) = answer else { continue };
            if let Some(stats) = answer.step_stats.filter(|_| self.options.traced) {
                metadata.step_stats.get_or_insert_default().dev_stats.extend(stats.dev_stats);
            }
            metadata.partition_graphs.extend(answer.partition_graph);
            for received in answer.recv {
                let fetch = part.fetches.iter().find(|(key, _)| **key == *received.name);
                let Some(((_, places), tensor)) = fetch.zip(received.tensor) else { continue };
                for place in &places[1..] {
                    tensors[*place] = Some(tensor.clone());
                }
                tensors[places[0]] = Some(tensor);
            }
        }
        let (mut fetched, mut bytes) = (Vec::with_capacity(tensors.len()), 0_usize);
        for (at, tensor) in tensors.into_iter().enumerate().filter(|(at, _)| self.share.asks(*at)) {
            let part =
                plan.parts.iter().find(|part| part.fetches.iter().any(|(_, places)| places.contains(&at)));
            let missing = || {
                let failure = Failure {
                    code: Code::Internal,
                    message: format!("the worker gave no value for {}", plan.signature.fetches[at]),
                    lost: false,
                };
                by(&self.session.members[part.map_or(0, |part| part.task)], failure)
            };
            let tensor = tensor.ok_or_else(missing)?;
            bytes = bytes.saturating_add(tensor.encoded_len());
            if bytes > TENSORS_OF_A_MESSAGE_BYTES {
                let fetch = plan.signature.fetches[at].clone();
                return Err(MasterError::FetchTooLarge { fetch, bytes, limit: TENSORS_OF_A_MESSAGE_BYTES });
            }
            fetched.push(tensor);
        }
        Ok(Fetched { tensors: fetched, metadata })
    }

    /// Whether nothing of the run comes after this.
    pub(super) fn is_last(&self) -> bool {
        self.share.is_last()
    }
}

/// The next answer; the call is taken out. Never ready when there is no call.
async fn next(
    calls: &mut [Option<Answer<tf::RunGraphResponse>>],
) -> (usize, Result<tf::RunGraphResponse, Failure>) {
    std::future::poll_fn(|cx| {
        for (at, call) in calls.iter_mut().enumerate() {
            if let Some(running) = call
                && let Poll::Ready(answer) = running.as_mut().poll(cx)
            {
                *call = None;
                return Poll::Ready((at, answer));
            }
        }
        Poll::Pending
    })
    .await
}

async fn reach(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
