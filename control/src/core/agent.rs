//! The agent: the coordinator's counterpart in each task, as a machine.
//!
//! It registers, says that its task is alive, keeps a stream of losses open, and notices when the coordinator itself
//! is gone. How requests travel is the driver's affair.
//!
//! - A1. Before it is ready it retries what may pass (no connection, an earlier life not dropped yet) until its
//!   deadline, and gives up at once on what may not.
//! - A2. Each loss is announced once; after a gap of the stream none is missed.
//! - A3. The coordinator is given up when it is silent for the limit, or when the stream broke and could not be
//!   opened again within the grace. Silence counts only while the agent itself runs.
//!   Where the service says that another goes on when it ends, both limits are as long as it asks for.
//! - A4. After [`Effect::Failed`] or [`Effect::Left`] it does nothing more.

use std::sync::Arc;
use std::time::Duration;

use super::coordination::errors::{Code, Refusal};
use super::coordination::losses::Loss;
use super::coordination::request::Notice;
use super::machine::Machine;
use super::time::Time;

/// First pause before something is tried again.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// Longest pause before something is tried again.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// How an agent behaves.
#[derive(Clone, Debug)]
pub struct AgentTimes {
    /// Between two heartbeats.
    pub heartbeat_every: Duration,
    /// Silence of the coordinator for so long means that it is lost.
    pub silence_limit: Duration,
    /// A stream that broke is tried again for so long.
    pub reconnect_grace: Duration,
    /// From the start until the task is registered.
    pub register_timeout: Duration,
}

/// Why a request had no good answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The coordinator was not reached, or not in time. In words.
    Unreachable(String),
    /// The coordinator said no.
    Refused(Refusal),
}

/// What happens to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It begins.
    Start,
    /// The answer to [`Effect::Register`].
    Registered(Result<(), Failure>),
    /// The answer to [`Effect::Beat`].
    Beaten(Result<(), Failure>),
    /// The service says that another goes on within this time when it ends.
    Failover(Duration),
    /// The stream is open.
    WatchOpened,
    /// The stream carries something.
    Noticed(Notice),
    /// The stream ended, or was not opened.
    WatchEnded(Failure),
    /// The task wants to leave.
    Leave,
    /// The answer to [`Effect::Shutdown`], good or not.
    ShutDown,
}

/// What the agent wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Ask to be registered.
    Register,
    /// Send a heartbeat.
    Beat,
    /// Open the stream of losses after this epoch.
    OpenWatch {
        /// Losses up to this epoch are known.
        since_epoch: u64,
    },
    /// The task is registered and hears of losses.
    Ready,
    /// A task is lost.
    Announce(Arc<Loss>),
    /// Ask to be disconnected.
    Shutdown,
    /// The coordinator ended in order.
    Closed,
    /// The task has left.
    Left,
    /// The agent gives up.
    Failed(Outage),
}

/// Why an agent gives up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outage {
    /// It could not register: the last failure, after so long.
    NotRegistered {
        /// Why the last try failed.
        last: Failure,
        /// Tries made.
        tries: u32,
    },
    /// The coordinator is gone or silent. In words.
    CoordinatorLost(String),
    /// The coordinator has given this task up.
    Dropped(Refusal),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Registering,
    Running,
    Leaving,
    Over,
}

/// Something that is tried until it succeeds.
#[derive(Debug)]
struct Retry {
    /// When to try next; `None` while a try is under way or none is wanted.
    next: Option<Time>,
    pause: Duration,
    tries: u32,
}

impl Retry {
    fn new() -> Self {
        Retry { next: None, pause: FIRST_PAUSE, tries: 0 }
    }

    fn later(&mut self, now: Time) {
        self.next = Some(now + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    fn due(&mut self, now: Time) -> bool {
        let due = self.next.is_some_and(|next| next <= now);
        if due {
            self.next = None;
            self.tries += 1;
        }
        due
    }
}

/// The agent of one task.
#[derive(Debug)]
pub struct Agent {
    times: AgentTimes,
    phase: Phase,
    register: Retry,
    register_by: Time,
    watch: Retry,
    /// Since when there is no stream; `None` while one is open.
    blind_since: Option<Time>,
    blind_why: String,
    ready: bool,
    next_beat: Option<Time>,
    /// When the coordinator was last heard of.
    heard: Time,
    /// When the agent last ran.
    awake: Time,
    epoch: u64,
}

impl Agent {
    /// An agent that has not begun.
    #[must_use]
    pub fn new(times: AgentTimes) -> Self {
        Agent {
            times,
            phase: Phase::Idle,
            register: Retry::new(),
            register_by: Time::ZERO,
            watch: Retry::new(),
            blind_since: None,
            blind_why: String::new(),
            ready: false,
            next_beat: None,
            heard: Time::ZERO,
            awake: Time::ZERO,
            epoch: 0,
        }
    }

    fn wake(&mut self, now: Time) {
        let asleep = now.since(self.awake);
        if asleep > self.times.silence_limit / 2 {
            self.heard = (self.heard + asleep).min(now);
            self.blind_since = self.blind_since.map(|since| (since + asleep).min(now));
        }
        self.awake = now;
    }

    fn fail(&mut self, outage: Outage, out: &mut Vec<Effect>) {
        self.phase = Phase::Over;
        out.push(Effect::Failed(outage));
    }

    fn registered(&mut self, now: Time, result: Result<(), Failure>, out: &mut Vec<Effect>) {
        if self.phase != Phase::Registering {
            return;
        }
        match result {
            Ok(()) => {
                self.phase = Phase::Running;
                self.heard = now;
                self.next_beat = Some(now + self.times.heartbeat_every);
                self.blind_since = Some(now);
                self.watch.next = Some(now);
            }
            Err(last) => {
                let passing = match &last {
                    Failure::Unreachable(_) => true,
                    Failure::Refused(refusal) => matches!(refusal.code, Code::Aborted | Code::Unavailable),
                };
                if passing && now < self.register_by {
                    self.register.later(now);
                } else {
                    self.fail(Outage::NotRegistered { last, tries: self.register.tries }, out);
                }
            }
        }
    }

    fn beaten(&mut self, now: Time, result: Result<(), Failure>, out: &mut Vec<Effect>) {
        match result {
            Ok(()) => self.heard = now,
            // A lost heartbeat is made up for by the next; only lasting silence counts.
            Err(Failure::Unreachable(_)) => {}
            Err(Failure::Refused(refusal)) if self.phase == Phase::Running => {
                self.fail(Outage::Dropped(refusal), out);
            }
            Err(Failure::Refused(_)) => {}
        }
    }

    fn noticed(&mut self, now: Time, notice: Notice, out: &mut Vec<Effect>) {
        self.heard = now;
        match notice {
            Notice::Loss(loss) if loss.epoch > self.epoch => {
                self.epoch = loss.epoch;
                out.push(Effect::Announce(loss));
            }
            // Surveys are answered beside the machine; one that comes is a sign of life.
            Notice::Loss(_) | Notice::Survey { .. } => {}
            Notice::Closing => {
                self.phase = Phase::Over;
                out.push(Effect::Closed);
            }
        }
    }

    fn watch_ended(&mut self, now: Time, failure: Failure, out: &mut Vec<Effect>) {
        if self.phase != Phase::Running {
            return;
        }
        match failure {
            Failure::Refused(refusal) if !matches!(refusal.code, Code::Unavailable | Code::Cancelled) => {
                self.fail(Outage::Dropped(refusal), out);
            }
            Failure::Refused(Refusal { message, .. }) => self.blind(now, message.to_string()),
            Failure::Unreachable(why) => self.blind(now, why),
        }
    }

    fn blind(&mut self, now: Time, why: String) {
        self.blind_since.get_or_insert(now);
        self.blind_why = why;
        self.watch.later(now);
    }

    /// The limit for a stream to stand: longer before the first, which may still find a slow coordinator.
    fn blind_limit(&self) -> Duration {
        if self.ready { self.times.reconnect_grace } else { self.times.silence_limit }
    }

    fn running(&mut self, now: Time, out: &mut Vec<Effect>) {
        let silent = now.since(self.heard);
        if silent >= self.times.silence_limit {
            let why = format!("the coordinator did not answer for {:.1} s", silent.as_secs_f64());
            return self.fail(Outage::CoordinatorLost(why), out);
        }
        if self.blind_since.is_some_and(|since| now.since(since) >= self.blind_limit()) {
            let why = format!("the connection to the coordinator ended: {}", self.blind_why);
            return self.fail(Outage::CoordinatorLost(why), out);
        }
        if self.watch.due(now) {
            out.push(Effect::OpenWatch { since_epoch: self.epoch });
        }
        if self.next_beat.is_some_and(|next| next <= now) {
            self.next_beat = Some(now + self.times.heartbeat_every);
            out.push(Effect::Beat);
        }
    }
}

impl Machine for Agent {
    type Event = Event;
    type Effect = Effect;

    fn on_event(&mut self, now: Time, event: Event, out: &mut Vec<Effect>) {
        self.wake(now);
        match event {
            _ if self.phase == Phase::Over => {}
            Event::Start => {
                self.phase = Phase::Registering;
                self.register_by = now + self.times.register_timeout;
                self.register.next = Some(now);
            }
            Event::Registered(result) => self.registered(now, result, out),
            Event::Beaten(result) => self.beaten(now, result, out),
            Event::Failover(span) => {
                self.times.reconnect_grace = self.times.reconnect_grace.max(span);
                self.times.silence_limit = self.times.silence_limit.max(span);
            }
            Event::WatchOpened => {
                self.heard = now;
                self.blind_since = None;
                self.watch = Retry::new();
                if !std::mem::replace(&mut self.ready, true) {
                    out.push(Effect::Ready);
                }
            }
            Event::Noticed(notice) => self.noticed(now, notice, out),
            Event::WatchEnded(failure) => self.watch_ended(now, failure, out),
            Event::Leave => {
                self.phase = Phase::Leaving;
                out.push(Effect::Shutdown);
            }
            Event::ShutDown => {
                self.phase = Phase::Over;
                out.push(Effect::Left);
            }
        }
        self.on_time(now, out);
    }

    fn on_time(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.wake(now);
        match self.phase {
            Phase::Idle | Phase::Leaving | Phase::Over => {}
            Phase::Registering => {
                if self.register.due(now) {
                    out.push(Effect::Register);
                }
            }
            Phase::Running => self.running(now, out),
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self.phase {
            Phase::Idle | Phase::Leaving | Phase::Over => None,
            Phase::Registering => self.register.next,
            Phase::Running => {
                let silent = Some(self.heard + self.times.silence_limit);
                let blind = self.blind_since.map(|since| since + self.blind_limit());
                [silent, blind, self.watch.next, self.next_beat].into_iter().flatten().min()
            }
        }
    }
}
