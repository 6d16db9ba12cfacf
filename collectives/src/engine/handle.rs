//! The end of a started call, to be waited for or awaited.

#![forbid(unsafe_code)]

use super::core::Core;
use super::error::{CollectiveError, InvalidCall};
#[cfg(doc)]
use super::options::Progress;
use super::run::Phase;
use super::shared::{Guard, Owner};
use ringway_dataplane::memory::pool::Claim;
use ringway_dataplane::memory::{Buffer, Element};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A call under way. Dropping it lets the call go on by itself; its buffer then goes back to the pool.
///
/// Where started calls are the caller's to move on ([`Progress::Caller`]), every poll of an awaited handle does so and asks to be polled
/// again at once: the executor then polls without sleeping, as other tasks of it let it. A thread that has nothing else to do
/// sleeps in [`Handle::wait`].
#[must_use = "a started call's result comes from its handle"]
pub struct Handle<T: Element>(State<T>);

enum State<T: Element> {
    UnderWay {
        owner: Owner,
        slot: u16,
        claim: Claim<T>,
    },
    /// It was over as it began.
    Over(Buffer<T>),
    /// The outcome was handed out.
    Taken,
}

impl<T: Element> std::fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let slot = match &self.0 {
            State::UnderWay { slot, .. } => Some(slot),
            State::Over(_) | State::Taken => None,
        };
        f.debug_struct("Handle").field("slot", &slot).finish_non_exhaustive()
    }
}

impl<T: Element> Handle<T> {
    pub(super) fn new(owner: Owner, slot: u16, claim: Claim<T>) -> Handle<T> {
        Handle(State::UnderWay { owner, slot, claim })
    }

    /// Of a call that was over as it began.
    pub(super) fn over(buffer: Buffer<T>) -> Handle<T> {
        Handle(State::Over(buffer))
    }

    /// Waits for the call on this thread, driving progress, and returns its buffer.
    ///
    /// # Errors
    /// [`CollectiveError`] when the communicator died; the buffer then goes back to the pool.
    pub fn wait(mut self) -> Result<Buffer<T>, CollectiveError> {
        match std::mem::replace(&mut self.0, State::Taken) {
            State::UnderWay { owner, slot, claim } => {
                let is_over = |core: &Core| core.runs[usize::from(slot)].phase == Phase::Done;
                let core = owner.wait_until(owner.lock(), is_over);
                redeem(core, &owner, slot, claim)
            }
            State::Over(buffer) => Ok(buffer),
            State::Taken => unreachable!("taken only here and when ready"),
        }
    }

    /// Whether the call is over. Unlike [`Handle::is_done`] it asks for no thread: who asks drives, by
    /// [`Communicator::look`](super::Communicator).
    #[cfg(feature = "nccl")]
    pub(crate) fn is_over(&self) -> bool {
        match &self.0 {
            State::UnderWay { owner, slot, .. } => owner.lock().runs[usize::from(*slot)].phase == Phase::Done,
            State::Over(_) | State::Taken => true,
        }
    }

    /// Whether the call is over, so that [`Handle::wait`] will return at once. Where started calls are the caller's to move on
    /// ([`Progress::Caller`]), asking does.
    pub fn is_done(&self) -> bool {
        let State::UnderWay { owner, slot, .. } = &self.0 else { return true };
        let mut core = owner.lock();
        let is_done = |core: &Core| core.runs[usize::from(*slot)].phase == Phase::Done;
        if !is_done(&core) && (core.is_by_caller() || owner.start_background(&mut core).is_err()) {
            // There is no thread, or none to be had: then whoever asks drives.
            owner.pass(&mut core);
        }
        owner.nudge(&core);
        is_done(&core)
    }
}

/// There is no thread for calls to go on by.
pub(super) fn no_thread(rank: u32, call: &'static str, error: &std::io::Error) -> CollectiveError {
    let why = format!("a thread to make progress on ({error}): raise the limit on processes (ulimit -u)");
    CollectiveError::Invalid { rank, call, why: InvalidCall::System(why) }
}

/// Takes the outcome of a call that is over. A failure is written down before anybody is told.
#[inline]
fn redeem<T: Element>(
    mut core: Guard<'_>,
    owner: &Owner,
    slot: u16,
    claim: Claim<T>,
) -> Result<Buffer<T>, CollectiveError> {
    owner.see_off(&mut core);
    let (region, result) = core.take_started(slot);
    match &result {
        Ok(()) => drop(core),
        Err(_) => {
            owner.tell(&mut core);
            drop(owner.write_down(core));
        }
    }
    let buffer = region.and_then(|r| claim.redeem(r));
    result.map_err(|failure| *failure)?;
    Ok(buffer.unwrap_or_else(|| unreachable!("R1: a run that is over has its region, with all leases home")))
}

impl<T: Element> Future for Handle<T> {
    type Output = Result<Buffer<T>, CollectiveError>;

    /// # Panics
    /// When polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let State::UnderWay { owner, slot, .. } = &this.0 {
            let mut core = owner.lock();
            if core.is_by_caller() && core.runs[usize::from(*slot)].phase != Phase::Done {
                let moved = owner.pass(&mut core);
                if core.runs[usize::from(*slot)].phase != Phase::Done {
                    drop(core);
                    if !moved {
                        std::thread::yield_now();
                    }
                    // The next poll is what moves it on. Foreign code, so without the lock.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
            let run = &mut core.runs[usize::from(*slot)];
            if run.phase != Phase::Done {
                let old = run.waker.replace(cx.waker().clone());
                let rank = run.rank;
                let thread = owner.start_background(&mut core);
                owner.nudge(&core);
                drop(core);
                // Foreign code, so without the lock.
                drop(old);
                return match thread {
                    Ok(()) => Poll::Pending,
                    Err(error) => Poll::Ready(Err(no_thread(rank, "await", &error))),
                };
            }
        }
        Poll::Ready(match std::mem::replace(&mut this.0, State::Taken) {
            State::UnderWay { owner, slot, claim } => redeem(owner.lock(), &owner, slot, claim),
            State::Over(buffer) => Ok(buffer),
            State::Taken => panic!("a handle is polled after it was ready"),
        })
    }
}

// The claim is a token without address.
impl<T: Element> Unpin for Handle<T> {}

impl<T: Element> Drop for Handle<T> {
    fn drop(&mut self) {
        let State::UnderWay { owner, slot, .. } = &self.0 else { return };
        let mut core = owner.lock();
        let run = &mut core.runs[usize::from(*slot)];
        if run.phase == Phase::Done {
            core.take_orphan(*slot);
        } else {
            run.orphan = true;
            let waker = run.waker.take();
            drop(core);
            // Foreign code, so without the lock.
            drop(waker);
        }
    }
}
