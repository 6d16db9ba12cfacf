//! The lock around the engine, and who drives it.
//!
//! One thread at a time drives: it polls, and everybody's calls go on. A blocking caller drives until its own call is
//! over; another one that comes meanwhile begins its call and follows. The background thread drives while started
//! calls are under way and nobody else does, and hands over to any caller at once. Where started calls are the callers' to move on
//! ([`Progress::Caller`]), there is none, and who asks how they do moves them on as far as they go just then.
//!
//! - **D1** Nobody sleeps with the lock held. Who changes something while the driver sleeps wakes it.
//! - **D2** A driver that keeps polling lets go of the lock whenever somebody waits for it.
//! - **D3** Whoever stops driving tells those who follow, so that one of them takes over.
//! - **D4** No foreign code runs with the lock held, but for [`OnFailure`](super::OnFailure) and a user's
//!   [`Reduction`](super::Reduction).
//! - **D5** By [`Progress::Caller`] no thread is made, and no call that only looks waits: it polls while something moves, some turns
//!   at most, and only where nobody else drives.
//! - **D6** What a call that is over, or an abort, has left with the transport, since a peer had no room or is only being connected, goes
//!   without another call: by the background thread, or by [`Progress::Caller`] when a caller next looks.

#![forbid(unsafe_code)]

use super::communicator::flush;
use super::core::{CallRegions, Core, Driver, Failure};
use super::flight::{Flight, WriteDown};
use super::options::Progress;
use super::run::Phase;
use super::straight::Glance;
use ringway_dataplane::fabric::{Patience, Pause, Spin, sleep_on};
#[cfg(feature = "nccl")]
use ringway_dataplane::memory::RegionId;
use ringway_dataplane::transport::{Cause, Peer, Waker};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Turns between two looks at the clock while everything moves.
const TURNS_PER_TICK: u32 = 1024;
/// Naps on a transport that cannot be slept on.
const NAP: Duration = Duration::from_micros(200);

pub(super) type Guard<'a> = MutexGuard<'a, Core>;

/// What another thread wants of the engine.
enum Command {
    Loss(Peer, Cause),
    Abort(u32, String),
}

pub(super) struct Shared {
    core: Mutex<Core>,
    changed: Condvar,
    /// Threads that wait for the lock (D2).
    contenders: AtomicU32,
    inbox: Mutex<Vec<Command>>,
    called: AtomicBool,
    waker: Waker,
    sleep_fd: Option<OwnedFd>,
    spin: Spin,
    owners: AtomicUsize,
    /// Held while the flight record is written down, so that whoever fails of the same death waits until it is.
    writing: Mutex<()>,
}

fn ignore_poison<T>(result: Result<T, PoisonError<T>>) -> T {
    // The engine's own steps do not panic halfway; a user's waker or callback may have, after they were complete.
    result.unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(mut core: Core, spin: Spin) -> std::io::Result<Shared> {
        (core.patience, core.waits_at_once) = (Patience::new(spin), Patience::at_once(spin));
        let sleep_fd = core.transport.sleep_fd().map(|fd| fd.try_clone_to_owned()).transpose()?;
        let waker = core.transport.waker();
        Ok(Shared {
            core: Mutex::new(core),
            changed: Condvar::new(),
            contenders: AtomicU32::new(0),
            inbox: Mutex::default(),
            called: AtomicBool::new(false),
            waker,
            sleep_fd,
            spin,
            owners: AtomicUsize::new(0),
            writing: Mutex::new(()),
        })
    }

    /// Locks the engine (D2), and takes in what other threads have asked for.
    #[inline]
    pub(super) fn lock(&self) -> Guard<'_> {
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
        if !core.to_wake.is_empty() && core.driver == Driver::Nobody {
            self.changed.notify_all();
        }
        core
    }

    /// How long a call looks for a message at once.
    #[inline]
    pub(super) fn glance(&self) -> Glance<'_> {
        Glance { spin: self.spin, contenders: &self.contenders }
    }

    /// D1: after a change that the driver must see.
    #[inline]
    pub(super) fn nudge(&self, core: &Core) {
        if core.asleep > 0 {
            self.waker.wake();
        }
        if core.driver == Driver::Nobody && core.wants_background() {
            self.changed.notify_all();
        }
    }

    #[inline]
    fn obey(&self, core: &mut Core) {
        if self.called.load(Ordering::Acquire) {
            self.obey_commands(core);
        }
    }

    #[cold]
    fn obey_commands(&self, core: &mut Core) {
        self.called.store(false, Ordering::Release);
        let commands = std::mem::take(&mut *ignore_poison(self.inbox.lock()));
        for command in commands {
            match command {
                Command::Loss(peer, cause) => {
                    core.on_lost(peer, &cause);
                    core.transport.close(peer, cause);
                }
                Command::Abort(id, message) => {
                    let named = |g: &Option<super::group::Group>| g.as_ref().is_some_and(|g| g.info.id == id);
                    if let Some(index) = core.groups.iter().position(named) {
                        core.abort(index, message);
                    }
                }
            }
        }
    }

    fn call_out(&self, command: Command) {
        ignore_poison(self.inbox.lock()).push(command);
        self.called.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Waits until `done`, driving the engine or following who drives.
    pub(super) fn wait_until<'a>(&'a self, mut core: Guard<'a>, done: impl Fn(&Core) -> bool) -> Guard<'a> {
        loop {
            if done(&core) {
                return core;
            }
            if core.driver == Driver::Caller {
                core.followers += 1;
                core = ignore_poison(self.changed.wait(core));
                core.followers -= 1;
                continue;
            }
            // From nobody, or from the background thread.
            core.driver = Driver::Caller;
            core = self.drive(core, Driver::Caller, &done);
            core.driver = Driver::Nobody;
            core.unsent = core.background && core.transport.has_unsent();
            self.hand_on(&core);
            return core;
        }
    }

    /// D3
    fn hand_on(&self, core: &Core) {
        if core.followers > 0 || core.wants_background() {
            self.changed.notify_all();
            // The background thread may lie as it did when a caller took over, and what woke it since was taken in by that one.
            if core.asleep > 0 {
                self.waker.wake();
            }
        }
    }

    /// D5: moves all calls on as far as they go without waiting. Returns whether anything moved.
    pub(super) fn pass(&self, core: &mut Guard<'_>) -> bool {
        if core.driver != Driver::Nobody {
            return false;
        }
        let moved = flush(core);
        core.tick(Instant::now());
        self.hand_on(core);
        moved
    }

    /// Polls until `done`, or until somebody else took over driving.
    fn drive<'a>(&'a self, mut core: Guard<'a>, me: Driver, done: &impl Fn(&Core) -> bool) -> Guard<'a> {
        // When the thread began to wait, and when it last looked at the clock.
        let mut idle: Option<(Instant, Instant)> = None;
        let mut turns = 0u32;
        loop {
            let moved = core.turn();
            if moved && let Some((since, last)) = idle.take() {
                core.patience.learn(last.duration_since(since));
            }
            if core.ended {
                core.ended = false;
                if core.followers > 0 {
                    self.changed.notify_all();
                }
                if !core.to_wake.is_empty() {
                    core = self.rouse_tasks(core);
                    if core.driver != me {
                        return core;
                    }
                }
            }
            if done(&core) {
                return core;
            }
            if self.contenders.load(Ordering::Relaxed) > 0 {
                core = self.give_way(core);
                if core.driver != me {
                    return core;
                }
            }
            self.obey(&mut core);
            turns = turns.wrapping_add(1);
            if moved && !turns.is_multiple_of(TURNS_PER_TICK) {
                continue;
            }
            let now = Instant::now();
            core.tick(now);
            if moved || done(&core) {
                continue;
            }
            let since = idle.map_or(now, |(since, _)| since);
            idle = Some((since, now));
            core = match core.patience.pause(now.duration_since(since)) {
                Pause::None => {
                    std::hint::spin_loop();
                    continue;
                }
                Pause::GiveWay => {
                    // D1: who gets the core may want the lock.
                    drop(core);
                    std::thread::yield_now();
                    self.lock()
                }
                Pause::Sleep => {
                    let core = self.sleep(core, now);
                    idle = Some((since, Instant::now()));
                    core
                }
            };
            if core.driver != me {
                return core;
            }
        }
    }

    /// Wakes the tasks whose calls have ended, without the lock.
    fn rouse_tasks<'a>(&'a self, mut core: Guard<'a>) -> Guard<'a> {
        if core.to_wake.is_empty() {
            return core;
        }
        if core.fallen {
            core = self.write_down(core);
        }
        let tasks = std::mem::take(&mut core.to_wake);
        drop(core);
        tasks.into_iter().for_each(std::task::Waker::wake);
        self.lock()
    }

    /// Has the flight record written down if a communicator has died since it was last; waits for who is at it already.
    pub(super) fn write_down<'a>(&'a self, core: Guard<'a>) -> Guard<'a> {
        let Some(WriteDown(keep)) = core.options.write_down.clone() else { return core };
        // D4, and the order in which the two locks are taken.
        drop(core);
        let writing = ignore_poison(self.writing.lock());
        let mut core = self.lock();
        if std::mem::take(&mut core.fallen) {
            let flight = core.flight(true);
            drop(core);
            keep(&flight);
            core = self.lock();
        }
        drop(writing);
        core
    }

    /// D2
    fn give_way<'a>(&'a self, core: Guard<'a>) -> Guard<'a> {
        drop(core);
        while self.contenders.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        self.lock()
    }

    /// D1: until the transport has something to say, or a timer.
    fn sleep<'a>(&'a self, mut core: Guard<'a>, now: Instant) -> Guard<'a> {
        if !core.transport.prepare_sleep() {
            return core;
        }
        let mut longest = core.next_tick.saturating_duration_since(now);
        if let Some(timer_ms) = core.transport.next_timer_ms() {
            longest = longest.min(Duration::from_millis(timer_ms));
        }
        core.asleep += 1;
        drop(core);
        match &self.sleep_fd {
            Some(fd) => sleep_on(Some(fd.as_fd()), longest),
            None => sleep_on(None, longest.min(NAP)),
        }
        let mut core = self.lock();
        core.asleep -= 1;
        core
    }

    /// The background thread: wakes tasks, and drives while nobody else does and started calls are under way, or what calls left
    /// behind (D6).
    fn background(&self) {
        let mut core = self.lock();
        while !core.closing {
            core = self.rouse_tasks(core);
            if core.closing {
                break;
            }
            if !(core.started > 0 || core.unsent) || core.driver != Driver::Nobody {
                core = ignore_poison(self.changed.wait(core));
                continue;
            }
            core.driver = Driver::Background;
            let over = |core: &Core| core.started == 0 && !core.transport.has_unsent();
            core = self.drive(core, Driver::Background, &|core| over(core) || core.closing);
            if core.driver == Driver::Background {
                core.driver = Driver::Nobody;
                core.unsent = core.transport.has_unsent();
                self.hand_on(&core);
            }
        }
    }
}

/// A share in the engine. The last one to go shuts it down.
pub(super) struct Owner(Arc<Shared>);

impl Owner {
    pub(super) fn new(shared: Shared) -> Owner {
        shared.owners.store(1, Ordering::Relaxed);
        Owner(Arc::new(shared))
    }

    /// Whether it is a share in the same engine.
    pub(super) fn is(&self, other: &Owner) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn reporter(&self) -> Reporter {
        Reporter { shared: Arc::downgrade(&self.0) }
    }

    /// Makes sure that started calls go on without a caller, unless they are callers' to move on (D5).
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(super) fn start_background(&self, core: &mut Core) -> std::io::Result<()> {
        if core.background || core.is_by_caller() {
            return Ok(());
        }
        let shared = Arc::clone(&self.0);
        let begin = core.options.on_progress_thread.clone();
        let body = move || {
            begin.iter().for_each(|begin| (begin.0)());
            shared.background();
        };
        std::thread::Builder::new().name("ringway-progress".into()).spawn(body)?;
        core.background = true;
        Ok(())
    }

    /// D6: at the end of a call.
    #[inline]
    pub(super) fn see_off(&self, core: &mut Core) {
        if core.transport.has_unsent() {
            self.leave_behind(core);
        }
    }

    /// D6: at the end of a call of a group's that was made at once, of which shared memory keeps nothing back.
    #[inline]
    pub(super) fn see_off_at_once(&self, core: &mut Core, group: usize) {
        if !core.group(group).shares_memory {
            self.see_off(core);
        }
    }

    #[cold]
    fn leave_behind(&self, core: &mut Core) {
        if core.is_by_caller() {
            return;
        }
        if let Err(error) = self.start_background(core) {
            tracing::warn!(
                "what a peer had no room for waits for this process's next call: no thread to send it: {error}"
            );
            return;
        }
        core.unsent = true;
        // It may lie as it did before a caller took over and left (D3).
        self.nudge(core);
    }

    /// What an abort, or a call that was refused or has failed, has to tell the others is on its way then, by whatever group they know
    /// each other; or it is left behind (D6).
    pub(super) fn tell(&self, core: &mut Guard<'_>) {
        flush(core);
        self.nudge(core);
        if core.transport.has_unsent() {
            self.leave_behind(core);
        }
    }
}

impl Core {
    /// D5
    pub(super) fn is_by_caller(&self) -> bool {
        self.options.progress == Progress::Caller
    }

    /// Whether there is something to do for the background thread.
    fn wants_background(&self) -> bool {
        self.background && (self.started > 0 || self.unsent || !self.to_wake.is_empty())
    }
}

impl Clone for Owner {
    fn clone(&self) -> Owner {
        self.0.owners.fetch_add(1, Ordering::Relaxed);
        Owner(Arc::clone(&self.0))
    }
}

impl std::ops::Deref for Owner {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.0.owners.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.shut_down();
        }
    }
}

impl Shared {
    /// Lets calls whose handles were dropped end, for a while; then leaves.
    fn shut_down(&self) {
        let mut core = self.lock();
        let linger_ms = core.options.linger_ms;
        core.closing = true;
        self.changed.notify_all();
        if core.asleep > 0 {
            self.waker.wake();
        }
        let over = |core: &Core| core.active.is_empty();
        let deadline = Instant::now() + Duration::from_millis(linger_ms);
        core = self.wait_until(core, |core| over(core) || Instant::now() >= deadline);
        for index in 0..core.groups.len() {
            if core.runs.iter().any(|r| r.group == index && matches!(r.phase, Phase::Active | Phase::Queued))
            {
                core.abort(index, "it left with calls still under way".to_owned());
            }
        }
        core = self.wait_until(core, over);
        if core.fallen {
            core = self.write_down(core);
        }
        core.transport.leave(linger_ms);
    }
}

/// Reports failures to an engine, and looks at it, from any thread, whatever its calls are doing. Cheap to clone; it does not keep the
/// engine alive.
#[derive(Clone)]
pub struct Reporter {
    shared: std::sync::Weak<Shared>,
}

impl Reporter {
    /// Declares a peer lost, for a reason that came from elsewhere (missed heartbeats, the launcher): every
    /// communicator that it is a member of dies of [`CollectiveError::Lost`](super::CollectiveError::Lost).
    pub fn report_loss(&self, peer: Peer, cause: Cause) {
        if let Some(shared) = self.shared.upgrade() {
            shared.call_out(Command::Loss(peer, cause));
        }
    }

    /// What the engine knows now, with the calls that are over if `calls` is set; `None` once it has gone.
    pub fn flight(&self, calls: bool) -> Option<Flight> {
        self.shared.upgrade().map(|shared| shared.lock().flight(calls))
    }

    /// Has the flight record written down ([`EngineOptions::write_down`](super::EngineOptions)) if a communicator has died since it was last, the
    /// deaths that were reported before this call included. Returns when that is done.
    pub fn write_down(&self) {
        if let Some(shared) = self.shared.upgrade() {
            drop(shared.write_down(shared.lock()));
        }
    }

    /// Whether it is of the same engine.
    #[cfg(feature = "nccl")]
    pub(crate) fn is(&self, other: &Reporter) -> bool {
        self.shared.ptr_eq(&other.shared)
    }

    /// Has the transports forget the registration of memory that is about to be given back, unless an operation has it.
    #[cfg(feature = "nccl")]
    pub(crate) fn forget(&self, region: RegionId) {
        if let Some(shared) = self.shared.upgrade() {
            shared.lock().transport.deregister(region);
        }
    }

    /// Ends the communicator with this id, on all ranks, with this rank's message.
    pub fn abort(&self, group: u32, message: impl Into<String>) {
        if let Some(shared) = self.shared.upgrade() {
            shared.call_out(Command::Abort(group, message.into()));
        }
    }
}

impl std::fmt::Debug for Reporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reporter")
    }
}

impl Shared {
    /// Takes the outcome of a call that began well, once it is over.
    pub(super) fn finish_call<'a>(
        &'a self,
        core: Guard<'a>,
        slot: u16,
        regions: CallRegions<'_>,
    ) -> (Guard<'a>, Result<(), Failure>) {
        let mut core = self.wait_until(core, |core| core.runs[usize::from(slot)].phase == Phase::Done);
        let result = core.take(slot, regions);
        (core, result)
    }
}
