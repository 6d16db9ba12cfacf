//! A task's rendezvous: what the threads of a process hold.
//!
//! Values of this task go from the thread that sends to the one that receives, through the table alone. What concerns
//! other tasks goes by the data plane, which one thread of its own keeps polling; a caller that finds nobody at it says
//! what it has to say itself, and wakes nobody.
//!
//! - **P1** No call is made with a lock held, and a receive's call is made once: by who sends, who receives, who ends the
//!   step or cancels, or by the thread of the data plane; where the data plane has a part in it, by the last alone.
//! - **P2** Who asks for something while the data plane's thread sleeps either leaves the transport ready for that sleep,
//!   or ends it.

use super::error::RendezvousError;
use super::key::Key;
use super::peer::{PeerInfo, PeerLoss, Source, Traffic};
use super::remote::Core;
use super::table::{MAX_WAITERS, Received, Rest, Sent, StepId, WaiterId, Why};
use super::value::Value;
use super::waiter::{Call, Ready, Stage, Then, Waiter, Waiters, refused};
use crate::fabric::{Pause, Spin, SpinPolicy, sleep_on};
use crate::memory::{AllocError, Pool};
use crate::transport::{Address, Cause, ConnectError, Peer, Transport, Waker};
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Largest value that is received, unless the options say otherwise.
pub const DEFAULT_MAX_VALUE_BYTES: u64 = 64 << 30;
/// How long a rendezvous that ends waits for payloads that are under way, unless the options say otherwise.
pub const DEFAULT_LINGER_MS: u64 = 2_000;
/// The longest sleep while something waits for room in the transport.
const STUCK_SLEEP: Duration = Duration::from_millis(1);
/// The longest sleep otherwise, and naps where the transport cannot be slept on.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
const NAP: Duration = Duration::from_micros(200);
/// Polls of a caller for what it has just said, before it leaves the rest to the thread.
const CALLER_POLLS: usize = 2;

/// Who is told of a task that is lost.
pub type OnLoss = Arc<dyn Fn(&PeerLoss) + Send + Sync>;

/// How to make a rendezvous.
#[derive(Clone)]
pub struct Options {
    /// Blocks for received payloads.
    pub pool: Pool,
    /// How the data plane's thread waits before it sleeps.
    pub spin: Spin,
    /// Larger values are refused.
    pub max_value_bytes: u64,
    /// How long to wait at the end for payloads that are under way, in milliseconds.
    pub linger_ms: u64,
    /// Called once for every task that is lost, from any thread.
    pub on_loss: Option<OnLoss>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            pool: Pool::default(),
            spin: SpinPolicy::Auto.here(1),
            max_value_bytes: DEFAULT_MAX_VALUE_BYTES,
            linger_ms: DEFAULT_LINGER_MS,
            on_loss: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("max_value_bytes", &self.max_value_bytes)
            .field("linger_ms", &self.linger_ms)
            .finish_non_exhaustive()
    }
}

/// A rendezvous was not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no memory.
    #[error(transparent)]
    Memory(#[from] AllocError),
    /// The system gives no thread or file descriptor.
    #[error(
        "the rendezvous of {who} cannot run: {why}: raise the limits on threads and open files (ulimit -u, -n)"
    )]
    System {
        /// This task.
        who: PeerInfo,
        /// The system's words.
        why: std::io::Error,
    },
}

/// What a thread wants of the data plane while another is at it.
enum Command {
    Ask { peer: Peer, step: StepId, key: Key, id: WaiterId },
    Answer { peer: Peer, request: u64, value: Value },
    NeverMind { peer: Peer, id: WaiterId, stage: Stage },
    End { step: StepId, rest: Vec<(WaiterId, Waiter)> },
    Abort { step: StepId, why: Why, rest: Vec<(WaiterId, Waiter)> },
}

impl Command {
    fn run(self, core: &mut Core) {
        match self {
            Command::Ask { peer, step, key, id } => core.ask(peer, step, &key, id),
            Command::Answer { peer, request, value } => core.answer(peer, request, &value),
            Command::NeverMind { peer, id, stage } => core.never_mind(peer, id, stage),
            Command::End { step, rest } => core.end_step(step, rest),
            Command::Abort { step, why, rest } => core.tell_abort(step, &why, rest, None),
        }
    }
}

struct Shared {
    table: Arc<Mutex<Waiters>>,
    core: Mutex<Core>,
    inbox: Mutex<Vec<Command>>,
    called: AtomicBool,
    /// Threads that wait for the core.
    contenders: AtomicU32,
    closing: AtomicBool,
    waker: Waker,
    sleep_fd: Option<OwnedFd>,
    address: Address,
    me: PeerInfo,
    options: Options,
    /// Until when the data plane's thread sleeps, if it does; changed with the core locked.
    sleeps_until: Mutex<Option<Instant>>,
}

fn ignore_poison<T>(result: Result<T, PoisonError<T>>) -> T {
    // What is locked is left consistent before anything that could panic.
    result.unwrap_or_else(PoisonError::into_inner)
}

/// Makes the calls of receives that are over (P1).
fn call(ready: Vec<Ready>) {
    for (call, result) in ready {
        if catch_unwind(AssertUnwindSafe(move || call(result))).is_err() {
            tracing::error!("what was to be done with a received value panicked; the rendezvous goes on");
        }
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Waiters> {
        ignore_poison(self.table.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        let mut core = match self.core.try_lock() {
            Ok(core) => core,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.contenders.fetch_add(1, Ordering::Relaxed);
                let core = ignore_poison(self.core.lock());
                self.contenders.fetch_sub(1, Ordering::Relaxed);
                core
            }
        };
        self.obey(&mut core);
        core
    }

    fn obey(&self, core: &mut Core) {
        if self.called.swap(false, Ordering::AcqRel) {
            let commands = std::mem::take(&mut *ignore_poison(self.inbox.lock()));
            commands.into_iter().for_each(|command| command.run(core));
        }
    }

    /// Has the data plane do something: at once, if nobody is at it.
    fn tell(&self, command: Command) {
        match self.core.try_lock() {
            Ok(mut core) => {
                self.obey(&mut core);
                command.run(&mut core);
                self.leave(core);
            }
            Err(_) => {
                ignore_poison(self.inbox.lock()).push(command);
                self.called.store(true, Ordering::Release);
                self.waker.wake();
            }
        }
    }

    /// Lets go of the core after a change: what was said is on its way, and the thread sleeps well or is woken (P2).
    fn leave(&self, mut core: MutexGuard<'_, Core>) {
        let sleeps_until = *ignore_poison(self.sleeps_until.lock());
        let mut rest = sleeps_until.is_none();
        if !rest {
            rest = (0..CALLER_POLLS).any(|_| {
                core.turn();
                core.transport.prepare_sleep()
            });
            let timer = core.transport.next_timer_ms().map(|ms| Instant::now() + Duration::from_millis(ms));
            let late = timer.is_some_and(|timer| sleeps_until.is_some_and(|until| timer < until));
            rest &= !late && !core.is_stuck();
        }
        // Calls are the thread's to make: one made here could ask again, and so on, ever deeper.
        rest &= core.ready.is_empty() && core.losses.is_empty();
        // Getting the transport ready for the sleep may have taken a wake that was meant for the thread.
        rest &= !self.called.load(Ordering::Acquire) && !self.closing.load(Ordering::Acquire);
        drop(core);
        if !rest {
            self.waker.wake();
        }
    }

    fn finish(&self, ready: Vec<Ready>, losses: Vec<PeerLoss>) {
        call(ready);
        if let Some(on_loss) = &self.options.on_loss {
            losses.iter().for_each(|loss| on_loss(loss));
        }
    }

    /// The data plane's thread.
    fn progress(&self) {
        let mut idle_since = None;
        loop {
            let mut core = self.lock();
            if self.closing.load(Ordering::Acquire) {
                return self.close(core);
            }
            let moved = core.turn();
            if !core.ready.is_empty() || !core.losses.is_empty() {
                let (ready, losses) = (std::mem::take(&mut core.ready), std::mem::take(&mut core.losses));
                drop(core);
                self.finish(ready, losses);
                idle_since = None;
                continue;
            }
            if moved {
                idle_since = None;
                drop(core);
                self.give_way();
                continue;
            }
            let now = Instant::now();
            let since = *idle_since.get_or_insert(now);
            match self.options.spin.pause(now.duration_since(since)) {
                Pause::None => {
                    drop(core);
                    std::hint::spin_loop();
                    self.give_way();
                }
                Pause::GiveWay => {
                    drop(core);
                    std::thread::yield_now();
                }
                Pause::Sleep => self.sleep(core, now),
            }
        }
    }

    fn give_way(&self) {
        while self.contenders.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
    }

    fn sleep(&self, mut core: MutexGuard<'_, Core>, now: Instant) {
        if !core.transport.prepare_sleep() {
            return;
        }
        let timer = core.transport.next_timer_ms().map_or(LONGEST_SLEEP, Duration::from_millis);
        let stuck = if core.is_stuck() { STUCK_SLEEP } else { LONGEST_SLEEP };
        let longest = timer.min(stuck).min(LONGEST_SLEEP);
        *ignore_poison(self.sleeps_until.lock()) = Some(now + longest);
        drop(core);
        match &self.sleep_fd {
            Some(fd) => sleep_on(Some(fd.as_fd()), longest),
            None => sleep_on(None, longest.min(NAP)),
        }
        *ignore_poison(self.sleeps_until.lock()) = None;
    }

    /// The end: payloads under way are waited for, everybody who waits is told, and then the peers are.
    fn close(&self, mut core: MutexGuard<'_, Core>) {
        core.shut_down();
        let deadline = Instant::now() + Duration::from_millis(self.options.linger_ms);
        while core.is_busy() && Instant::now() < deadline {
            if !core.turn() {
                std::thread::sleep(NAP);
            }
        }
        let left = deadline.saturating_duration_since(Instant::now()).as_millis() as u64;
        core.transport.leave(left.max(1));
        let (ready, losses) = (std::mem::take(&mut core.ready), std::mem::take(&mut core.losses));
        drop(core);
        self.finish(ready, losses);
    }
}

/// Receives of this task's own values, and all else that waited.
fn split(waiters: Vec<(WaiterId, Waiter)>) -> (Vec<Then>, Vec<(WaiterId, Waiter)>) {
    let (mut local, mut rest) = (Vec::new(), Vec::new());
    for (id, waiter) in waiters {
        match waiter {
            Waiter::Local(then) => local.push(then),
            other => rest.push((id, other)),
        }
    }
    (local, rest)
}

/// The last handle to go ends the thread.
struct Owner {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        self.shared.waker.wake();
        let thread = ignore_poison(self.thread.lock()).take();
        // A call made by the thread itself may hold the last handle.
        if let Some(thread) = thread.filter(|t| t.thread().id() != std::thread::current().id()) {
            // It catches what others' calls do, and has nothing to panic over itself.
            let _ = thread.join();
        }
    }
}

/// A task's rendezvous. Cheap to clone, to use from any thread; the last clone to go says goodbye to the peers.
#[derive(Clone)]
pub struct Rendezvous {
    owner: Arc<Owner>,
}

impl fmt::Debug for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rendezvous of {}", self.owner.shared.me)
    }
}

impl Rendezvous {
    /// A rendezvous over `transport`, for the task `me`. Its thread is named `ringway-tensors`.
    ///
    /// # Errors
    /// [`StartError`] when the system gives no memory, thread or file descriptor.
    pub fn start(
        transport: Box<dyn Transport>,
        me: PeerInfo,
        options: Options,
    ) -> Result<Rendezvous, StartError> {
        let system = |why| StartError::System { who: me.clone(), why };
        let table = Arc::new(Mutex::new(Waiters::default()));
        let sleep_fd = transport.sleep_fd().map(|fd| fd.try_clone_to_owned()).transpose().map_err(system)?;
        let (waker, address) = (transport.waker(), transport.address());
        let core = Core::new(transport, Arc::clone(&table), options.pool.clone(), options.max_value_bytes)?;
        let shared = Arc::new(Shared {
            table,
            core: Mutex::new(core),
            inbox: Mutex::default(),
            called: AtomicBool::new(false),
            contenders: AtomicU32::new(0),
            closing: AtomicBool::new(false),
            waker,
            sleep_fd,
            address,
            me: me.clone(),
            options,
            sleeps_until: Mutex::new(None),
        });
        let mine = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("ringway-tensors".into())
            .spawn(move || mine.progress())
            .map_err(system)?;
        Ok(Rendezvous { owner: Arc::new(Owner { shared, thread: Mutex::new(Some(thread)) }) })
    }

    fn shared(&self) -> &Shared {
        &self.owner.shared
    }

    /// This task, as errors of others should name it.
    #[must_use]
    pub fn me(&self) -> &PeerInfo {
        &self.shared().me
    }

    /// The pool that received payloads come from: values sent out of its blocks need no copy.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.shared().options.pool
    }

    /// Where others reach this task: opaque bytes for their [`connect`](Self::connect).
    #[must_use]
    pub fn address(&self) -> Address {
        self.shared().address.clone()
    }

    /// Introduces a task under a number of this side's choice; the other side must introduce this one as well. The
    /// connection is made at the first question between the two. Idempotent for the same address; another address is
    /// another life of the task, and whatever waits for the earlier one fails.
    ///
    /// # Errors
    /// [`ConnectError`] when no transport reaches that address.
    pub fn connect(&self, peer: Peer, who: PeerInfo, address: &Address) -> Result<(), ConnectError> {
        let mut core = self.shared().lock();
        let result = core.connect(peer, who, address);
        self.shared().leave(core);
        result
    }

    /// Forgets a task: whatever waits for it fails. Unknown ones are ignored.
    pub fn forget(&self, peer: Peer) {
        let mut core = self.shared().lock();
        core.forget(peer);
        self.shared().leave(core);
    }

    /// Declares a task lost for a reason that came from elsewhere, missed heartbeats say: whatever waits for it fails.
    pub fn report_loss(&self, peer: Peer, cause: Cause) {
        let mut core = self.shared().lock();
        core.close(peer, cause);
        self.shared().leave(core);
    }

    /// Gives a value to whoever receives it, in this task or another: at once if somebody waits for it, else when somebody
    /// asks. Never waits.
    ///
    /// # Errors
    /// [`RendezvousError`] when the step has ended, or a value of this key is there already.
    pub fn send(&self, step: StepId, key: &Key, value: Value) -> Result<(), RendezvousError> {
        let sent = self.shared().table().send(step, key, value);
        match sent {
            Ok(Sent::Kept) => {}
            Ok(Sent::Met(value, Waiter::Asked { peer, request })) => {
                self.shared().tell(Command::Answer { peer, request, value });
            }
            Ok(Sent::Met(value, Waiter::Local(then) | Waiter::Away { then, .. })) => {
                call(vec![(then.call, Ok(value))]);
            }
            Err(refusal) => {
                let key = key.text().to_owned();
                return Err(refused(refusal, step, key, super::table::MAX_VALUES));
            }
        }
        Ok(())
    }

    /// Receives a value: `then` is called once, with it or with the reason why there is none. It is called at once, by this
    /// thread, where that is known already; it must not block, since others wait behind it.
    ///
    /// The number that comes back is good for [`cancel`](Self::cancel).
    pub fn recv(
        &self,
        step: StepId,
        key: &Key,
        from: Source,
        then: impl FnOnce(Result<Value, RendezvousError>) + Send + 'static,
    ) -> WaiterId {
        self.recv_boxed(step, key, from, Box::new(then))
    }

    pub(super) fn recv_boxed(&self, step: StepId, key: &Key, from: Source, then: Call) -> WaiterId {
        const OVER: WaiterId = WaiterId(u64::MAX);
        let then = Then { key: key.clone(), call: then };
        let outcome = match from {
            Source::Local => self.shared().table().recv(step, key, Waiter::Local(then)),
            Source::Peer(peer) => {
                let waiter = Waiter::Away { peer, then, stage: Stage::Asked };
                self.shared().table().wait_for_answer(step, waiter).map(Received::Waits)
            }
        };
        match (outcome, from) {
            (Ok(Received::Waits(id)), Source::Local) => id,
            (Ok(Received::Waits(id)), Source::Peer(peer)) => {
                self.shared().tell(Command::Ask { peer, step, key: key.clone(), id });
                id
            }
            (Ok(Received::Met(value, Waiter::Local(then) | Waiter::Away { then, .. })), _) => {
                call(vec![(then.call, Ok(value))]);
                OVER
            }
            (Err((refusal, Waiter::Local(then) | Waiter::Away { then, .. })), _) => {
                call(vec![then.fail(|key| refused(refusal, step, key, MAX_WAITERS))]);
                OVER
            }
            (Ok(Received::Met(_, Waiter::Asked { .. })) | Err((_, Waiter::Asked { .. })), _) => OVER,
        }
    }

    /// Takes a receive back: it ends with [`RendezvousError::Cancelled`], unless it is over already.
    pub fn cancel(&self, id: WaiterId) {
        self.cancel_as(id, false);
    }

    pub(super) fn cancel_as(&self, id: WaiterId, timed_out: bool) {
        let taken = {
            let mut table = self.shared().table();
            // Questions of other tasks are theirs to take back.
            let mine = table.waiter(id).filter(|(_, w)| !matches!(w, Waiter::Asked { .. }));
            let step = mine.map(|(step, _)| step);
            step.and_then(|step| Some((step, table.take(id)?)))
        };
        let Some((step, waiter)) = taken else { return };
        let cancelled = |key| RendezvousError::Cancelled { step, key, timed_out };
        match waiter {
            Waiter::Local(then) => call(vec![then.fail(cancelled)]),
            Waiter::Away { peer, then, stage } => {
                self.shared().tell(Command::NeverMind { peer, id, stage });
                call(vec![then.fail(cancelled)]);
            }
            Waiter::Asked { .. } => {}
        }
    }

    /// Ends a step because something failed: every receive in it fails with this reason, here and in the tasks that this
    /// one has asked in the step or was asked by, and so do later sends and receives in it. Only the first reason counts.
    pub fn abort(&self, step: StepId, why: Why) {
        let rest = self.shared().table().abort(step, why.clone());
        if let Some(Rest { waiters, values }) = rest {
            let (local, rest) = split(waiters);
            let aborted = |key| RendezvousError::Aborted { step, key, why: why.clone() };
            let ready = local.into_iter().map(|then| then.fail(aborted)).collect();
            self.shared().tell(Command::Abort { step, why: why.clone(), rest });
            call(ready);
            drop(values);
        }
    }

    /// Ends a step that is over: what nobody has received is given up, and receives that still wait fail. The step's number
    /// is not to be used again.
    pub fn cleanup(&self, step: StepId) {
        let rest = self.shared().table().cleanup(step);
        if let Some(Rest { waiters, values }) = rest {
            let (local, rest) = split(waiters);
            if !rest.is_empty() {
                self.shared().tell(Command::End { step, rest });
            }
            call(
                local.into_iter().map(|then| then.fail(|key| RendezvousError::Over { step, key })).collect(),
            );
            drop(values);
        }
    }

    /// What went over the data plane to and from each task that was introduced, by their numbers.
    #[must_use]
    pub fn traffic(&self) -> Vec<(Peer, Traffic)> {
        self.shared().lock().traffic()
    }

    /// How a task is reached and why so, in one line; `None` before it was introduced.
    #[must_use]
    pub fn why(&self, peer: Peer) -> Option<String> {
        self.shared().lock().why(peer)
    }

    /// How many values wait for somebody here, and how many receives wait for a value.
    #[must_use]
    pub fn waiting(&self) -> (usize, usize) {
        let (values, waiters, _) = self.shared().table().counts();
        (values, waiters)
    }
}
