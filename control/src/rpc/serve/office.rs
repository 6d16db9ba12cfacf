//! The office of the coordinator in a service whose state is kept: this candidate's part in the election, and while it
//! leads, a coordinator that goes on from what is remembered.
//!
//! - O1. What a coordinator wants done is done after what it wants remembered before is, and only while its lease stands. So
//!   nobody is told anything that the next leader does not know.
//! - O2. When a term ends, everybody who waits is told to ask elsewhere, and the coordinator is gone before the election goes
//!   on.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::counter::{Counter, Ways};
use super::desk::{Caller, Files};
use crate::core::coordination::request::Effect as Wish;
use crate::core::coordination::{Coordinator, CoordinatorConfig};
use crate::core::election::{Effect, Election, ElectionTimes, Event, Term};
use crate::core::time::Time;
use crate::rpc::driver::{Clock, INBOX_LIMIT, Input, Outbox, drive};
use crate::store::{Store, StoreError};

/// Between two tries of a candidate, and of a commit that did not reach the store.
const RETRY: Duration = Duration::from_millis(100);
/// A follower that hears of no change looks for itself this often.
const RECHECK: Duration = Duration::from_secs(3);
/// Wishes that are taken together: what they want remembered is remembered at once.
const BATCH: usize = 1024;

/// What an office is made for.
pub(super) struct Office<S> {
    pub(super) store: S,
    /// What this candidate goes by: where it is reached.
    pub(super) name: String,
    pub(super) config: CoordinatorConfig,
    pub(super) counter: Arc<Counter>,
    pub(super) files: Arc<dyn Fn() -> Files + Send + Sync>,
}

/// Stands for election until it is told to retire, and has done so.
pub(super) async fn stand<S: Store>(office: Office<S>, retire: oneshot::Receiver<()>) {
    let (events, urgent) = mpsc::unbounded_channel();
    // Nobody asks an election anything.
    let (_inbox, inputs) = mpsc::channel::<Input<Event, ()>>(1);
    let (retired, over) = oneshot::channel();
    // A lease ends also while this system is suspended.
    let clock = Clock::start_through_suspension();
    let clerk = Clerk {
        office: Arc::new(office),
        events: events.clone(),
        clock,
        good_until: Arc::new(AtomicU64::new(0)),
        watch: None,
        term: None,
        last_revoke: None,
        complained: Arc::default(),
        broken: Arc::default(),
        retired: Some(retired),
    };
    let election = Election::new(ElectionTimes { retry: RETRY, recheck: RECHECK });
    // The driver holds the receiver.
    let _ = events.send(Event::Start);
    tokio::select! {
        () = drive(election, clerk, clock, inputs, urgent) => {}
        _ = over => {}
        () = async {
            // An error means that the service is gone, which is the same.
            let _ = retire.await;
            let _ = events.send(Event::Retire);
            std::future::pending().await
        } => {}
    }
}

/// Carries out what the election wants.
struct Clerk<S> {
    office: Arc<Office<S>>,
    events: mpsc::UnboundedSender<Event>,
    clock: Clock,
    /// Until when the lease stands, as [`Time`] counts.
    good_until: Arc<AtomicU64>,
    watch: Option<JoinHandle<()>>,
    term: Option<JoinHandle<()>>,
    last_revoke: Option<JoinHandle<()>>,
    /// That the store does not answer was said, and it has not answered since.
    complained: Arc<AtomicBool>,
    /// Why no term can begin any more.
    broken: Arc<OnceLock<String>>,
    retired: Option<oneshot::Sender<()>>,
}

impl<S> Drop for Clerk<S> {
    fn drop(&mut self) {
        for task in [self.watch.take(), self.term.take()].into_iter().flatten() {
            task.abort();
        }
    }
}

impl<S: Store> Clerk<S> {
    fn ask<F>(&self, call: impl FnOnce(S) -> F + Send + 'static) -> JoinHandle<()>
    where
        F: Future<Output = Event> + Send + 'static,
    {
        let (store, events) = (self.office.store.clone(), self.events.clone());
        tokio::spawn(async move {
            // Without a driver the service has ended.
            let _ = events.send(call(store).await);
        })
    }

    fn lead(&mut self, term: Term) {
        let lead = Lead {
            office: self.office.clone(),
            term,
            clock: self.clock,
            good_until: self.good_until.clone(),
        };
        let (events, broken) = (self.events.clone(), self.broken.clone());
        self.term = Some(tokio::spawn(async move {
            let event = match lead.run().await {
                Fault::Over(why) => Event::Lost(term, why),
                Fault::Fatal(why) => {
                    tracing::error!("{why}");
                    // The first reason stays.
                    let _ = broken.set(why);
                    Event::Retire
                }
            };
            // Without a driver the service has ended.
            let _ = events.send(event);
        }));
    }

    /// O2
    fn step_down(&mut self, why: &str) {
        self.good_until.store(0, Ordering::Release);
        if let Some(term) = self.term.take() {
            term.abort();
        }
        let why = self.broken.get().map_or(why, String::as_str);
        tracing::warn!("{} leads no more: {why}", self.office.name);
        self.office.counter.close(format!("this candidate leads no more ({why})"), None);
    }
}

impl<S: Store> Outbox<Effect> for Clerk<S> {
    type Attachment = ();

    fn attach(&mut self, (): ()) {}

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Grant => {
                let complained = self.complained.clone();
                drop(
                    self.ask(|store| async move { Event::Granted(words(store.grant().await, &complained)) }),
                );
            }
            Effect::Claim(lease) => {
                let (name, complained) = (self.office.name.clone(), self.complained.clone());
                drop(self.ask(move |store| async move {
                    Event::Claimed(lease, words(store.claim(lease, &name).await, &complained))
                }));
            }
            Effect::Renew(lease) => {
                let complained = self.complained.clone();
                drop(self.ask(move |store| async move {
                    Event::Renewed(lease, words(store.renew(lease).await, &complained))
                }));
            }
            Effect::Revoke(lease) => {
                let store = self.office.store.clone();
                self.last_revoke = Some(tokio::spawn(async move {
                    // It ends by itself otherwise.
                    let _ = store.revoke(lease).await;
                }));
            }
            Effect::Watch(revision) => {
                let watch = self.ask(move |store| async move {
                    if let Err(error) = store.changed(revision).await {
                        tracing::debug!(%error, "cannot watch the leader");
                        tokio::time::sleep(RETRY).await;
                    }
                    Event::Changed(revision)
                });
                if let Some(before) = self.watch.replace(watch) {
                    before.abort();
                }
            }
            Effect::Lead(term, until) => {
                self.good_until.store(until.0, Ordering::Release);
                self.lead(term);
            }
            Effect::Until(until) => self.good_until.store(until.0, Ordering::Release),
            Effect::Follow(None) => {}
            Effect::Follow(Some(leader)) => {
                let why = "this candidate does not lead".to_owned();
                // A leader that went by this name is an earlier life of this process.
                let known = Some(leader).filter(|leader| !leader.is_empty() && *leader != self.office.name);
                self.office.counter.close(why, known);
            }
            Effect::StepDown(why) => self.step_down(&why),
            Effect::Retired => {
                let (last, retired) = (self.last_revoke.take(), self.retired.take());
                tokio::spawn(async move {
                    if let Some(last) = last {
                        // A panic there has said so.
                        let _ = last.await;
                    }
                    // Whoever waited may be gone.
                    let _ = retired.map(|retired| retired.send(()));
                });
            }
        }
    }
}

/// What the election hears of an answer. That the store does not answer is said to people once, until it does again.
fn words<T>(result: Result<T, StoreError>, complained: &AtomicBool) -> Result<T, String> {
    let before = complained.swap(result.is_err(), Ordering::Relaxed);
    if before && result.is_ok() {
        tracing::info!("the store of the coordination service answers again");
    }
    result.map_err(|error| {
        let why = error.to_string();
        if before {
            tracing::debug!("{why}");
        } else {
            tracing::warn!("{why}; trying again");
        }
        why
    })
}

/// Why a term is over.
enum Fault {
    /// Another term may begin.
    Over(String),
    /// It would end in the same way.
    Fatal(String),
}

/// One term.
struct Lead<S> {
    office: Arc<Office<S>>,
    term: Term,
    clock: Clock,
    good_until: Arc<AtomicU64>,
}

impl<S: Store> Lead<S> {
    /// Leads until that is over.
    async fn run(self) -> Fault {
        let entries = match self.office.store.load().await {
            Ok(entries) => entries,
            Err(error) => return fault(error),
        };
        let remembered = entries.len();
        let begins = self.clock.now();
        let coordinator = match Coordinator::restore(self.office.config.clone(), entries, begins) {
            Ok(coordinator) => coordinator,
            Err(error) => return Fault::Fatal(error.to_string()),
        };
        let tasks = coordinator.connected_tasks();
        tracing::info!(
            "{} leads, from revision {} on, with {remembered} keys and {tasks} tasks that are connected",
            self.office.name,
            self.term.revision
        );
        let (inbox, inputs) = mpsc::channel(INBOX_LIMIT);
        let (urgent, events) = mpsc::unbounded_channel();
        let mut files = (self.office.files)();
        files.carry_out(Wish::Connected { tasks });
        let (to, wishes) = mpsc::unbounded_channel();
        self.office.counter.open(Ways { inbox, urgent });
        tokio::select! {
            () = drive(coordinator, Ledger { to }, self.clock, inputs, events) => {
                Fault::Over("the coordinator has ended".to_owned())
            }
            fault = self.carry_out(files, wishes) => fault,
        }
    }

    /// Also a system that was suspended knows when it goes on that its lease ended meanwhile.
    fn stands(&self) -> bool {
        self.clock.now() < Time(self.good_until.load(Ordering::Acquire))
    }

    /// O1
    async fn carry_out(&self, mut files: Files, mut wishes: mpsc::UnboundedReceiver<Step>) -> Fault {
        let mut batch = Vec::with_capacity(BATCH);
        while wishes.recv_many(&mut batch, BATCH).await > 0 {
            let writes: Vec<_> = batch
                .iter()
                .filter_map(|step| match step {
                    Step::Wish(Wish::Remember { writes }) => Some(writes.clone()),
                    _ => None,
                })
                .collect();
            while !writes.is_empty() {
                match self.office.store.commit(self.term, writes.clone()).await {
                    Ok(()) => break,
                    Err(StoreError::Unreachable { .. }) if self.stands() => tokio::time::sleep(RETRY).await,
                    Err(error) => return fault(error),
                }
            }
            if !self.stands() {
                return Fault::Over("its lease is over".to_owned());
            }
            for step in batch.drain(..) {
                match step {
                    Step::Caller(caller) => files.attach(caller),
                    Step::Wish(Wish::Remember { .. }) => {}
                    Step::Wish(wish) => files.carry_out(wish),
                }
            }
        }
        Fault::Over("the coordinator has ended".to_owned())
    }
}

fn fault(error: StoreError) -> Fault {
    let why = error.to_string();
    match error {
        StoreError::Fenced | StoreError::Unreachable { .. } | StoreError::Refused { .. } => Fault::Over(why),
        _ => Fault::Fatal(why),
    }
}

/// What a coordinator wants done, in order, on its way to where it is carried out.
enum Step {
    Caller(Caller),
    Wish(Wish),
}

/// Takes down what a coordinator wants done. Who is to be answered is bounded by the requests under way, and so is this.
struct Ledger {
    to: mpsc::UnboundedSender<Step>,
}

impl Outbox<Wish> for Ledger {
    type Attachment = Caller;

    fn attach(&mut self, caller: Caller) {
        // The reader is gone when the term is over.
        let _ = self.to.send(Step::Caller(caller));
    }

    fn carry_out(&mut self, wish: Wish) {
        let _ = self.to.send(Step::Wish(wish));
    }
}
