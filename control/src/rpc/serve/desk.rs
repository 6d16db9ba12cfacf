//! The desk between calls and the coordinator: gives each caller a token, keeps who waits, and tells the coordinator
//! when a caller has gone.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use ringway_topology::TaskId;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::Stream;
use tonic::Status;

use super::ServerConfig;
use super::counter::{Counter, Ways};
use super::push::Pusher;
use crate::core::coordination::errors::Refusal;
use crate::core::coordination::request::{
    Effect, Event, Life, Notice, Process, Reply, ReplyTo, Request, WatchId,
};
use crate::rpc::driver::{Input, Outbox};

/// How many tasks are connected and whom they blame, for those outside the service's thread.
#[derive(Debug, Default)]
pub(super) struct Population {
    tasks: Mutex<u32>,
    changed: Condvar,
    blames: Mutex<HashMap<TaskId, TaskId>>,
}

impl Population {
    fn set(&self, tasks: u32) {
        *self.tasks.lock().unwrap_or_else(PoisonError::into_inner) = tasks;
        self.changed.notify_all();
    }

    fn blame(&self, reporter: TaskId, cause: TaskId) {
        let mut blames = self.blames.lock().unwrap_or_else(PoisonError::into_inner);
        blames.entry(reporter).or_insert(cause);
    }

    /// Whom this task blamed first.
    pub(super) fn blamed_by(&self, reporter: &TaskId) -> Option<TaskId> {
        self.blames.lock().unwrap_or_else(PoisonError::into_inner).get(reporter).cloned()
    }

    /// Waits until there is none.
    pub(super) fn wait_until_empty(&self, limit: Duration) -> bool {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(tasks, limit, |tasks| *tasks > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }
}

/// What comes with a request: where its answer goes, and the stream that it opens.
pub(super) struct Caller {
    reply: ReplyTo,
    answer: oneshot::Sender<Result<Reply, Refusal>>,
    stream: Option<(WatchId, mpsc::Sender<Notice>)>,
}

/// Where calls meet the coordinator.
#[derive(Clone)]
pub(super) struct Desk {
    counter: Arc<Counter>,
    next: Arc<AtomicU64>,
    notices_limit: usize,
}

impl Desk {
    /// A desk at a counter.
    pub(super) fn new(config: &ServerConfig, counter: Arc<Counter>) -> Desk {
        // A stream gets at most the whole log at once, and then one notice for each loss.
        let notices_limit = config.coordinator.tasks() as usize * 2 + 16;
        Desk { counter, next: Arc::new(AtomicU64::new(1)), notices_limit }
    }

    /// Asks, and waits for the answer. Dropping the future tells the coordinator that the caller has gone.
    pub(super) async fn ask(&self, request: Request) -> Result<Reply, Refusal> {
        self.ask_as(None, request).await
    }

    /// The same, for a caller that may have said which life of a task it is.
    pub(super) async fn ask_as(&self, from: Option<Life>, request: Request) -> Result<Reply, Refusal> {
        self.put(self.counter.ways()?, from, request, None).await
    }

    /// Opens a stream of notices.
    pub(super) async fn watch(&self, process: Process, since_epoch: u64) -> Result<Notices, Refusal> {
        let watch = WatchId(self.next.fetch_add(1, Ordering::Relaxed));
        let ways = self.counter.ways()?;
        let (notify, notices) = mpsc::channel(self.notices_limit);
        // Made before the coordinator hears of it, so that it hears of its end in any case.
        let notices = Notices { watch, notices, urgent: ways.urgent.clone() };
        let request = Request::Watch { watch, process, since_epoch };
        self.put(ways, None, request, Some((watch, notify))).await?;
        Ok(notices)
    }

    async fn put(
        &self,
        ways: Ways,
        from: Option<Life>,
        request: Request,
        stream: Option<(WatchId, mpsc::Sender<Notice>)>,
    ) -> Result<Reply, Refusal> {
        let reply = ReplyTo(self.next.fetch_add(1, Ordering::Relaxed));
        let (answer, answered) = oneshot::channel();
        let input = Input {
            event: Event::Ask { reply, from, request },
            attachment: Some(Caller { reply, answer, stream }),
        };
        ways.inbox.send(input).await.map_err(|_| self.counter.gone())?;
        let mut guard = Guard { reply, urgent: ways.urgent, armed: true };
        let result = answered.await;
        guard.armed = false;
        result.unwrap_or_else(|_| Err(self.counter.gone()))
    }
}

/// An answer of a kind that does not belong to the request: a fault of ours.
pub(super) fn unexpected(reply: &Reply) -> Status {
    Status::internal(format!("the coordinator gave an answer of the wrong kind: {reply:?}"))
}

/// Tells the coordinator when a caller goes before it is answered.
struct Guard {
    reply: ReplyTo,
    urgent: mpsc::UnboundedSender<Event>,
    armed: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.armed {
            // Without a driver there is nobody to tell.
            let _ = self.urgent.send(Event::Gone { reply: self.reply });
        }
    }
}

/// A stream of notices; dropping it, as happens when the connection breaks, tells the coordinator.
pub(super) struct Notices {
    watch: WatchId,
    notices: mpsc::Receiver<Notice>,
    urgent: mpsc::UnboundedSender<Event>,
}

impl Stream for Notices {
    type Item = Notice;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Notice>> {
        self.notices.poll_recv(cx)
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        // Without a driver there is nobody to tell.
        let _ = self.urgent.send(Event::WatchBroken { watch: self.watch });
    }
}

/// Callers and streams that are kept before those are looked for that have gone.
const SWEEP_FROM: usize = 1024;

/// Who waits for what: carries out the coordinator's effects.
pub(super) struct Files {
    callers: HashMap<ReplyTo, oneshot::Sender<Result<Reply, Refusal>>>,
    streams: HashMap<WatchId, mpsc::Sender<Notice>>,
    /// So many callers and streams are kept until they are looked through.
    sweep_at: usize,
    population: Arc<Population>,
    pusher: Pusher,
}

impl Files {
    /// Nobody waits yet.
    pub(super) fn new(population: Arc<Population>, pusher: Pusher) -> Files {
        Files { callers: HashMap::new(), streams: HashMap::new(), sweep_at: SWEEP_FROM, population, pusher }
    }

    /// Forgets callers and streams that have gone: the coordinator does not name them again. Each look is paid for by as many
    /// that came since the last.
    fn sweep(&mut self) {
        self.callers.retain(|_, answer| !answer.is_closed());
        self.streams.retain(|_, stream| !stream.is_closed());
        self.sweep_at = SWEEP_FROM.max(2 * (self.callers.len() + self.streams.len()));
    }
}

impl Outbox<Effect> for Files {
    type Attachment = Caller;

    fn attach(&mut self, caller: Caller) {
        self.callers.insert(caller.reply, caller.answer);
        self.streams.extend(caller.stream);
        if self.callers.len() + self.streams.len() >= self.sweep_at {
            self.sweep();
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            // Nothing outlives this process.
            Effect::Remember { .. } => {}
            Effect::Reply { to, result } => {
                if let Some(answer) = self.callers.remove(&to) {
                    // A caller that has gone meanwhile needs no answer.
                    let _ = answer.send(result);
                }
            }
            Effect::Notify { watch, notice } => {
                // A reader that lets the channel fill up loses the stream, and catches up by opening another.
                if self.streams.get(&watch).is_some_and(|stream| stream.try_send(notice).is_err()) {
                    self.streams.remove(&watch);
                }
            }
            Effect::CloseWatch { watch } => {
                self.streams.remove(&watch);
            }
            Effect::PushError { to, error } => self.pusher.push(&to, &error),
            Effect::Blamed { reporter, cause } => self.population.blame(reporter, cause),
            Effect::Connected { tasks } => self.population.set(tasks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::credentials::Credentials;

    #[test]
    fn who_has_gone_without_an_answer_is_not_kept() {
        let mut files = Files::new(Arc::default(), Pusher::new(&[], Credentials::default()));
        let mut stays = Vec::new();
        for n in 0..10 * SWEEP_FROM as u64 {
            let (answer, answered) = oneshot::channel();
            let (notify, _notices) = mpsc::channel(1);
            files.attach(Caller { reply: ReplyTo(n), answer, stream: Some((WatchId(n), notify)) });
            if n % 100 == 0 {
                stays.push(answered);
            }
        }
        assert!(files.callers.len() <= SWEEP_FROM && files.streams.len() <= SWEEP_FROM);
        for n in (0..10 * SWEEP_FROM as u64).step_by(100) {
            files.carry_out(Effect::Reply { to: ReplyTo(n), result: Ok(Reply::Done) });
        }
        assert!(stays.into_iter().all(|mut answered| answered.try_recv().is_ok()));
    }
}
