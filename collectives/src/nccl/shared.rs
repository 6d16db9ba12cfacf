//! What the handles, the watch and the caller of one communicator over GPUs have in common: beginning calls, waiting for
//! them, and how the communicator dies.

use super::comm::{Comm, Fault, Operation};
use super::device::Context;
use super::library::Library;
use super::memory::Kept;
use super::order::{Order, Said};
use super::pause::Pause;
use super::stream::{Event, Stream};
use crate::engine::{Call, CollectiveError, Communicator, During};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// How long a GPU may take to give up what is under way, before the call returns without it; or as long as a call may take,
/// where that is less. What the GPU may still be at is kept until it has (N6).
const ABORT_LIMIT: Duration = Duration::from_secs(5);
/// How long it is waited for the control plane to name who is lost, when NCCL notices a failure first.
const BLAME_LIMIT: Duration = Duration::from_millis(500);
/// How long the end of a communicator in order waits for the other ranks.
const LINGER: Duration = Duration::from_secs(5);
/// Rounds of a wait between looks at the control communicator and at NCCL, when only the GPU is waited for.
const ROUNDS_PER_LOOK: u32 = 16;

type Result<T> = std::result::Result<T, CollectiveError>;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call under way.
pub(super) struct Ticket {
    event: Option<Arc<Event>>,
    checks_until: u64,
    pub(super) call: Call,
    since: Instant,
    /// What the GPU is at.
    kept: Kept,
}

impl Ticket {
    /// The point in the stream behind the call.
    pub(super) fn event(&self) -> Option<&Event> {
        self.event.as_deref()
    }

    /// For the watch.
    pub(super) fn open(&self) -> Option<Open> {
        let event = Arc::clone(self.event.as_ref()?);
        Some(Open { event, checks_until: self.checks_until, call: self.call, since: self.since })
    }
}

/// A started call that nobody waits for yet.
#[derive(Clone)]
pub(super) struct Open {
    event: Arc<Event>,
    checks_until: u64,
    pub(super) call: Call,
    since: Instant,
}

/// Started calls that the watch looks after.
#[derive(Default)]
pub(super) struct Started {
    pub(super) open: Vec<Open>,
    pub(super) closing: bool,
}

/// What a GPU may be at while NCCL is being aborted (N6).
#[derive(Default)]
struct Remains {
    kept: Kept,
    /// The GPU has given up all work.
    over: bool,
}

/// Fields are dropped in this order: what NCCL holds, then what it was made with.
pub(super) struct Shared {
    /// `None` once it was aborted.
    comm: Mutex<Option<Comm>>,
    order: Mutex<Order>,
    dead: Mutex<Option<CollectiveError>>,
    remains: Arc<Mutex<Remains>>,
    pub(super) started: Mutex<Started>,
    pub(super) changed: Condvar,
    pub(super) stream: Stream,
    pub(super) copies: Stream,
    pub(super) context: Arc<Context>,
    pub(super) library: Arc<Library>,
    pub(super) control: Communicator,
    pub(super) timeout: Duration,
}

impl Shared {
    pub(super) fn new(
        control: Communicator,
        context: Arc<Context>,
        library: Arc<Library>,
        (stream, copies): (Stream, Stream),
        timeout: Duration,
    ) -> Shared {
        Shared {
            comm: Mutex::default(),
            order: Mutex::default(),
            dead: Mutex::default(),
            remains: Arc::default(),
            started: Mutex::default(),
            changed: Condvar::new(),
            stream,
            copies,
            context,
            library,
            control,
            timeout,
        }
    }

    /// Takes the communicator of NCCL once it is made, waiting for that. `hint` is what is known of why it may not be.
    pub(super) fn settle(&self, comm: Comm, hint: &str) -> Result<()> {
        // From now on it is aborted by whatever ends this one.
        *lock(&self.comm) = Some(comm);
        let pause = Pause::new();
        loop {
            let settled = lock(&self.comm).as_ref().map_or(Ok(false), Comm::is_settled);
            match settled {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(fault) if hint.is_empty() => return Err(self.by_fault(&fault, None)),
                Err(fault) => return Err(self.by_words(&format!("{fault}{hint}"), None)),
            }
            if let Err(error) = self.control.look() {
                return Err(self.die(error, None));
            }
            if pause.elapsed() > self.timeout {
                return Err(self.by_words(&late("NCCL is not set up", self.timeout), None));
            }
            pause.once();
        }
    }

    /// Why it is dead, if it is.
    pub(super) fn failure(&self) -> Option<CollectiveError> {
        if let Some(error) = lock(&self.dead).clone() {
            return Some(error);
        }
        self.control.failure().map(|error| self.die(error, None))
    }

    /// Begins a call: operations that go to NCCL as one, and what is said of them to other ranks. `calls` is not empty.
    ///
    /// # Safety
    /// The memory of the operations is that of `kept`, and is used by nobody else until the ticket is finished or the stream
    /// has come past it; [`Comm`] says which memory.
    pub(super) unsafe fn begin(
        &self,
        calls: &mut [Said],
        operations: &[Operation],
        kept: Kept,
    ) -> Result<Ticket> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        let mut order = lock(&self.order);
        if !order.has_room(&self.control, calls) {
            return Err(CollectiveError::TooManyStarted { limit: super::order::MAX_UNDER_WAY });
        }
        let since = Instant::now();
        for said in calls.iter_mut().filter(|said| said.call.collective.is_some()) {
            order.number(&mut said.call);
        }
        let call = calls[0].call;
        let mut comm = lock(&self.comm);
        let Some(live) = comm.as_mut() else {
            drop((comm, order));
            return Err(self.die_unknown(call));
        };
        // First the GPU gets its work; what is said to other ranks goes on in its shadow.
        // SAFETY: the caller promises it, and the memory is kept until the call is over or NCCL was aborted (N6).
        let enqueued = unsafe { live.enqueue(operations, &self.stream) };
        let said = calls.iter().try_for_each(|said| order.say(&self.control, said));
        let settled = enqueued.map(|()| said.and_then(|()| self.accepted(live, &mut order, call, since)));
        drop(comm);
        let recorded = match settled {
            Ok(Ok(())) => self.record(&mut order),
            Ok(Err(error)) => {
                drop(order);
                self.keep(kept);
                return Err(self.die(error, Some(call)));
            }
            Err(fault) => Err(fault),
        };
        let checks_until = order.until();
        drop(order);
        match recorded {
            Ok(event) => Ok(Ticket { event: Some(event), checks_until, call, since, kept }),
            Err(fault) => {
                self.keep(kept);
                Err(self.by_fault(&fault, Some(call)))
            }
        }
    }

    /// Waits until NCCL has taken a call over, which at first takes connections between the GPUs.
    fn accepted(&self, comm: &Comm, order: &mut Order, call: Call, since: Instant) -> Result<()> {
        let pause = Pause::new();
        loop {
            match comm.is_settled() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(fault) => return Err(self.aborted(fault.to_string(), Some(call))),
            }
            self.control.look()?;
            order.compare(&self.control, order.until())?;
            if since.elapsed() > self.timeout {
                return Err(self.aborted(late("NCCL has not taken the call over", self.timeout), Some(call)));
            }
            pause.once();
        }
    }

    /// Waits until the GPU has done all that it was given before, so that somebody else may touch its memory (S1 of
    /// `straight`).
    pub(super) fn drain(&self, call: Call) -> Result<()> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        let fault = |error| self.by_fault(&Fault::from(error), Some(call));
        let event = Event::new(&self.context).map_err(fault)?;
        event.record(&self.stream).map_err(fault)?;
        let (pause, since) = (Pause::new(), Instant::now());
        while !event.is_done().map_err(fault)? {
            let over = self.control.look().and_then(|()| self.glance(call, since, false));
            over.map_err(|error| self.die(error, Some(call)))?;
            pause.once();
        }
        Ok(())
    }

    fn record(&self, order: &mut Order) -> std::result::Result<Arc<Event>, Fault> {
        let event = order.events.pop().map_or_else(|| Event::new(&self.context).map(Arc::new), Ok)?;
        event.record(&self.stream)?;
        Ok(event)
    }

    /// Waits for the end of a call: the GPU has done it, and the neighbours have called the same.
    pub(super) fn finish(&self, ticket: &mut Ticket) -> Result<()> {
        let Some(event) = ticket.event.take() else { return Ok(()) };
        let kept = std::mem::take(&mut ticket.kept);
        match self.wait(&event, ticket) {
            Ok(()) => {
                lock(&self.order).events.push(event);
                Ok(())
            }
            Err(error) => {
                self.keep(kept);
                Err(self.die(error, Some(ticket.call)))
            }
        }
    }

    fn wait(&self, event: &Event, ticket: &Ticket) -> Result<()> {
        let (pause, mut rounds, mut agreed, mut done) = (Pause::new(), 0u32, false, false);
        loop {
            done = done || event.is_done().map_err(|e| self.aborted(e.to_string(), Some(ticket.call)))?;
            if !agreed {
                agreed = lock(&self.order).compare(&self.control, ticket.checks_until)?;
            }
            if done && agreed {
                return Ok(());
            }
            if !agreed || rounds.is_multiple_of(ROUNDS_PER_LOOK) {
                self.control.look()?;
            }
            if rounds.is_multiple_of(ROUNDS_PER_LOOK) {
                self.glance(ticket.call, ticket.since, done)?;
            }
            rounds = rounds.wrapping_add(1);
            pause.once();
        }
    }

    /// Looks for what the engine cannot see: NCCL's own errors, and time.
    fn glance(&self, call: Call, since: Instant, done: bool) -> Result<()> {
        // Who holds it sees the same.
        let state = self.comm.try_lock().ok().map(|comm| comm.as_ref().map(Comm::is_settled));
        match state {
            None | Some(Some(Ok(_))) => {}
            Some(None) => return Err(self.die_unknown(call)),
            Some(Some(Err(fault))) => return Err(self.blamed(&fault, Some(call))),
        }
        if since.elapsed() <= self.timeout {
            return Ok(());
        }
        let what = if done { "another rank has not made the call" } else { "the GPU has not finished" };
        Err(self.aborted(late(what, self.timeout), Some(call)))
    }

    /// For the watch: looks after a call that was started and that nobody waits for. Whether it is over.
    pub(super) fn watch_over(&self, open: &Open) -> bool {
        let looked = self.control.look().and_then(|()| {
            let agreed = {
                let mut order = lock(&self.order);
                let until = order.until();
                order.compare(&self.control, until)? || order.is_compared(open.checks_until)
            };
            let done = open.event.is_done().map_err(|e| self.aborted(e.to_string(), Some(open.call)))?;
            if done && agreed {
                return Ok(true);
            }
            self.glance(open.call, open.since, done).map(|()| false)
        });
        looked.unwrap_or_else(|error| {
            self.die(error, Some(open.call));
            true
        })
    }

    /// This rank ends it, with these words.
    fn aborted(&self, message: String, call: Option<Call>) -> CollectiveError {
        let during = call.map_or(During::Idle, During::Call);
        CollectiveError::Aborted { who: self.control.who(self.control.rank()), during, message }
    }

    /// What a failure of NCCL is: the loss of a rank, if the control plane tells of one, else this rank's own.
    fn blamed(&self, fault: &Fault, call: Option<Call>) -> CollectiveError {
        let pause = Pause::new();
        while pause.elapsed() < BLAME_LIMIT {
            if let Err(error) = self.control.look() {
                return error;
            }
            pause.once();
        }
        self.aborted(fault.to_string(), call)
    }

    pub(super) fn by_fault(&self, fault: &Fault, call: Option<Call>) -> CollectiveError {
        self.die(self.blamed(fault, call), call)
    }

    pub(super) fn by_words(&self, message: &str, call: Option<Call>) -> CollectiveError {
        self.die(self.aborted(message.to_owned(), call), call)
    }

    fn die_unknown(&self, call: Call) -> CollectiveError {
        self.failure().unwrap_or_else(|| self.by_words("its NCCL communicator is gone", Some(call)))
    }

    /// N3: the first cause wins, here and in the control communicator; NCCL is aborted, so that the GPU stops waiting.
    pub(super) fn die(&self, error: CollectiveError, call: Option<Call>) -> CollectiveError {
        let mut dead = lock(&self.dead);
        if let Some(first) = &*dead {
            return first.clone();
        }
        let cause = renamed(self.control.end_by(error), call);
        *dead = Some(cause.clone());
        drop(dead);
        self.abort_nccl();
        cause
    }

    /// N6: the call has failed, and the GPU may be at this memory until NCCL was aborted.
    fn keep(&self, kept: Kept) {
        let mut remains = lock(&self.remains);
        if !remains.over {
            remains.kept.extend(kept);
        }
    }

    /// On a thread of its own, as a GPU that has failed may never answer.
    fn abort_nccl(&self) {
        let Some(comm) = lock(&self.comm).take() else { return };
        let (tell, told) = mpsc::channel();
        let remains = Arc::clone(&self.remains);
        let limit = ABORT_LIMIT.min(self.timeout);
        let abort = move || {
            drop(comm);
            let mut remains = lock(&remains);
            remains.over = true;
            let kept = std::mem::take(&mut remains.kept);
            drop(remains);
            drop(kept);
            // Nobody waits any more once the limit has passed.
            let _ = tell.send(());
        };
        match std::thread::Builder::new().name("ringway-nccl-abort".into()).spawn(abort) {
            Ok(_) if told.recv_timeout(limit).is_ok() => {}
            Ok(_) => tracing::error!(
                "GPU {} has not given up its work within {limit:?}: its memory is kept until it has",
                self.ordinal()
            ),
            // It was aborted as the closure was dropped.
            Err(error) => tracing::debug!(%error, "no thread to abort on"),
        }
    }

    pub(super) fn ordinal(&self) -> u32 {
        self.context.device().ordinal()
    }
}

fn late(what: &str, limit: Duration) -> String {
    format!("{what} within {} ms (RINGWAY_DEVICE_TIMEOUT_MS)", limit.as_millis())
}

/// The control communicator does nothing but carry stamps: what happened during one happened during the call that it is of.
pub(super) fn renamed(error: CollectiveError, call: Option<Call>) -> CollectiveError {
    let carries = |during: &During| match during {
        During::Idle => true,
        During::Call(call) => call.collective.is_none() || call.algorithm.is_some(),
    };
    let Some(call) = call else { return error };
    let now = During::Call(call);
    match error {
        CollectiveError::Lost { who, during, kind, evidence } if carries(&during) => {
            CollectiveError::Lost { who, during: now, kind, evidence }
        }
        CollectiveError::Aborted { who, during, message } if carries(&during) => {
            CollectiveError::Aborted { who, during: now, message }
        }
        CollectiveError::Transport { who, during, evidence } if carries(&during) => {
            CollectiveError::Transport { who, during: now, evidence }
        }
        other => other,
    }
}

impl Drop for Shared {
    /// Ends it in order where it lives, with the other ranks, which do the same.
    fn drop(&mut self) {
        if std::thread::panicking() || self.control.failure().is_some() {
            return self.abort_nccl();
        }
        let Some(comm) = lock(&self.comm).take() else { return };
        let pause = Pause::new();
        let over = comm.finalize().and_then(|()| {
            loop {
                match comm.is_settled() {
                    Ok(false) if pause.elapsed() < LINGER && self.control.look().is_ok() => pause.once(),
                    other => return other,
                }
            }
        });
        match over {
            Ok(true) => drop(comm.destroy()),
            Ok(false) => {
                tracing::debug!("the other ranks have not ended their NCCL communicators: it is aborted")
            }
            Err(fault) => tracing::debug!(%fault, "at the end of an NCCL communicator"),
        }
    }
}
