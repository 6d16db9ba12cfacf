//! The agent of a task: registers it, sends heartbeats, hears of losses, and asks the coordinator on its behalf.
//!
//! All of it happens on one thread with a small runtime. [`Agent`] is the handle for code that knows nothing of
//! that: its calls block the caller, each with a deadline, and end early when the agent ends.

pub mod status;
pub mod worker;

mod alarms;
mod connect;
mod errors;
mod link;
mod operations;
mod rounds;
mod route;
mod surveys;

use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};
use tonic::Status;

pub use self::alarms::Alarm;
pub use self::connect::Seen;
pub use self::errors::{AgentError, BarrierError, JoinError, LeaveError, ReportError, StoreError};
pub use self::operations::GroupRequest;
pub use self::rounds::RoundRequest;
pub use crate::core::agent::AgentTimes;
pub use crate::core::coordination::groups::{GroupMember, GroupTable};
pub use crate::core::coordination::losses::{Evidence, Loss};
pub use crate::core::coordination::request::Process;
pub use crate::core::coordination::rounds::{RoundLimits, RoundTable};

use self::alarms::Alarms;
use self::errors::CallFailure;
use self::link::{Link, Stage};
use self::route::Route;
use self::surveys::Surveys;
use super::credentials::Credentials;
use super::driver::{Clock, INBOX_LIMIT, Input, drive};
use crate::core::agent::{Agent as AgentMachine, Event, Failure, Outage};
use crate::window::{self, Page, WindowConfig};
use ringway_proto::ringway::v1::RankReport;

/// One try to register takes no longer.
const TRY_LIMIT: Duration = Duration::from_secs(3);

/// What an agent needs to know.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Where the coordinator is: "host:port"; or its candidates, with commas between them.
    pub coordinator: String,
    /// The task, this life of it, and where it runs.
    pub process: Process,
    /// Its times.
    pub times: AgentTimes,
    /// Calls that do not wait for others take no longer.
    pub call_timeout: Duration,
    /// What the coordinator is shown, and must show.
    pub credentials: Credentials,
}

impl AgentConfig {
    /// The usual times, for a coordinator that gives a task up after `heartbeat_limit`.
    #[must_use]
    pub fn new(coordinator: impl Into<String>, process: Process, heartbeat_limit: Duration) -> Self {
        AgentConfig {
            coordinator: coordinator.into(),
            process,
            times: AgentTimes {
                heartbeat_every: heartbeat_limit / 4,
                silence_limit: heartbeat_limit,
                reconnect_grace: Duration::from_millis(400),
                register_timeout: Duration::from_secs(60),
            },
            call_timeout: heartbeat_limit.max(Duration::from_secs(10)),
            credentials: Credentials::default(),
        }
    }
}

/// The agent of a task. Dropped without [`Agent::leave`], the task counts as lost.
pub struct Agent {
    process: Process,
    address: String,
    call_timeout: Duration,
    route: Route,
    alarms: Arc<Alarms>,
    surveys: Surveys,
    stage: watch::Receiver<Stage>,
    runtime: tokio::runtime::Handle,
    inbox: Option<mpsc::Sender<Input<Event, ()>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("process", &self.process)
            .field("coordinator", &self.address)
            .field("stage", &*self.stage.borrow())
            .finish_non_exhaustive()
    }
}

impl Agent {
    /// Starts an agent and waits until its task is registered.
    ///
    /// # Errors
    /// When the address is none, no coordinator answers there in time, another program does, or the coordinator does
    /// not take the task.
    pub fn start(config: AgentConfig) -> Result<Agent, AgentError> {
        let task = config.process.task.clone();
        let system = |source| AgentError::System { task: task.clone(), source };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(system)?;
        let alarms = Arc::new(Alarms::default());
        let route = {
            let _within = runtime.enter();
            let address = &config.coordinator;
            Route::new(address, config.credentials.clone())
                .map_err(|why| AgentError::BadAddress { address: address.clone(), why })?
        };
        let surveys = Surveys::new(config.process.clone());
        let (stage, seen_stage) = watch::channel(Stage::Starting);
        let (events, urgent) = mpsc::unbounded_channel();
        let (inbox, inputs) = mpsc::channel(INBOX_LIMIT);
        let (stop, stopped) = oneshot::channel();
        let link = Link {
            process: config.process.clone(),
            address: config.coordinator.clone(),
            route: route.clone(),
            alarms: alarms.clone(),
            surveys: surveys.clone(),
            stage,
            events: events.clone(),
            try_limit: TRY_LIMIT,
            beat_limit: config.times.silence_limit,
            beat_every: config.times.heartbeat_every,
            leave_limit: config.call_timeout,
        };
        let machine = AgentMachine::new(config.times.clone());
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new().name("ringway-agent".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = drive(machine, link, Clock::start(), inputs, urgent) => {}
                    // Also when the handle is dropped without a word.
                    _ = stopped => {}
                }
            });
        });
        let agent = Agent {
            process: config.process,
            address: config.coordinator,
            call_timeout: config.call_timeout,
            route,
            alarms,
            surveys,
            stage: seen_stage,
            runtime: handle,
            inbox: Some(inbox),
            stop: Some(stop),
            thread: Some(thread.map_err(system)?),
        };
        // The driver runs until the agent is dropped, so it takes this.
        let _ = events.send(Event::Start);
        agent.wait_until_ready()?;
        Ok(agent)
    }

    /// The task of this agent.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Where the coordinator is.
    #[must_use]
    pub fn coordinator(&self) -> &str {
        &self.address
    }

    /// Why the agent has ended, if it has: the coordinator is gone, or has given the task up.
    #[must_use]
    pub fn ended(&self) -> Option<String> {
        match &*self.stage.borrow() {
            Stage::Ended { why, .. } => Some(why.clone()),
            Stage::Starting | Stage::Ready => None,
        }
    }

    /// Calls `listener` for each loss, those before this call included.
    ///
    /// It is called on the agent's thread, for those before this call on the caller's, and must be quick; it must not call the
    /// agent.
    pub fn on_loss(&self, listener: impl Fn(&Alarm) + Send + 'static) {
        self.alarms.listen(Box::new(listener));
    }

    /// Has `tell` make this task's answer when somebody asks, through the coordinator, how it is: with its flight record, if
    /// that is asked for. Until then, and where it makes none, the answer says who the task is.
    ///
    /// It is called on a thread of its own, at most a few times at once.
    pub fn on_survey(&self, tell: impl Fn(bool) -> Option<RankReport> + Send + Sync + 'static) {
        self.surveys.told_by(Arc::new(tell));
    }

    /// Opens windows of this process on the agent's thread; they close when the agent ends.
    pub(crate) fn open_windows(&self, config: WindowConfig, text: Page, numbers: Page) {
        self.runtime.spawn(window::open(config, self.address.clone(), text, numbers));
    }

    /// Leaves in order, and ends the agent.
    ///
    /// # Errors
    /// When the coordinator did not confirm it. The agent has ended all the same.
    pub fn leave(mut self) -> Result<(), LeaveError> {
        let already = self.ended();
        let inbox = self.inbox.clone();
        let limit = self.call_timeout * 2;
        let mut stage = self.stage.clone();
        let left = self.run(limit, async move {
            if let Some(inbox) = inbox {
                // A driver that has ended has said so by the stage.
                let _ = inbox.send(Input { event: Event::Leave, attachment: None }).await;
            }
            // The sender lives as long as the driver.
            let _ = stage.wait_for(|stage| matches!(stage, Stage::Ended { .. })).await;
            Ok(())
        });
        let task = self.process.task.clone();
        self.end();
        match (already, left) {
            (Some(detail), _) => Err(LeaveError::Unconfirmed { task, detail }),
            (None, Ok(())) => Ok(()),
            (None, Err(failure)) => {
                Err(LeaveError::Unconfirmed { task, detail: failure.words(&self.address) })
            }
        }
    }

    fn end(&mut self) {
        self.inbox = None;
        // The receiver is gone only if the thread has ended already.
        let _ = self.stop.take().map(|stop| stop.send(()));
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(task = %self.process.task, "the agent ended in a panic");
        }
    }

    fn wait_until_ready(&self) -> Result<(), AgentError> {
        let begun = Instant::now();
        let mut stage = self.stage.clone();
        let (send, receive) = std::sync::mpsc::sync_channel(1);
        self.runtime.spawn(async move {
            let stage = stage.wait_for(|stage| !matches!(stage, Stage::Starting)).await;
            // Nobody waits any more only if the starter has panicked.
            let _ = send.send(stage.map(|stage| stage.clone()).ok());
        });
        let (task, address) = (self.process.task.clone(), self.address.clone());
        match receive.recv().ok().flatten() {
            Some(Stage::Ended { outage: Some(outage), .. }) => Err(match outage {
                Outage::NotRegistered { last: Failure::Refused(refusal), .. } | Outage::Dropped(refusal) => {
                    AgentError::Refused { task, address, reason: refusal.to_string() }
                }
                Outage::NotRegistered { tries, .. } => AgentError::Unreachable {
                    task,
                    address,
                    tries,
                    waited: begun.elapsed(),
                    seen: self.route.sight().last(),
                },
                Outage::CoordinatorLost(reason) => AgentError::Refused { task, address, reason },
            }),
            Some(Stage::Ended { why, outage: None }) => {
                Err(AgentError::Refused { task, address, reason: why })
            }
            Some(Stage::Starting | Stage::Ready) => Ok(()),
            None => {
                Err(AgentError::Refused { task, address, reason: "the agent's thread has ended".to_owned() })
            }
        }
    }

    /// Runs a call on the agent's thread and waits for it, for `limit` at most.
    fn run<T: Send + 'static>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> Result<T, CallFailure> {
        let (send, receive) = std::sync::mpsc::sync_channel(1);
        let sight = self.route.sight().clone();
        let mut stage = self.stage.clone();
        self.runtime.spawn(async move {
            let result = tokio::select! {
                biased;
                result = tokio::time::timeout(limit, call) => match result {
                    Ok(Ok(value)) => Ok(value),
                    Ok(Err(status)) => Err(match link::failure(&status, &sight) {
                        Failure::Refused(refusal) => CallFailure::Refused(refusal),
                        Failure::Unreachable(why) => CallFailure::Unreachable(why),
                    }),
                    Err(_) => Err(CallFailure::TimedOut(limit)),
                },
                why = ended(&mut stage) => Err(CallFailure::Ended(why)),
            };
            // Nobody waits any more only if the caller has panicked.
            let _ = send.send(result);
        });
        receive.recv().unwrap_or_else(|_| Err(CallFailure::Ended("the agent has ended".to_owned())))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits until the agent has ended.
async fn ended(stage: &mut watch::Receiver<Stage>) -> String {
    match stage.wait_for(|stage| matches!(stage, Stage::Ended { .. })).await.as_deref() {
        Ok(Stage::Ended { why, .. }) => why.clone(),
        _ => "the agent has ended".to_owned(),
    }
}
