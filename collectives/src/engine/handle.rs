//! The end of a started call, to be waited for or awaited.

#![forbid(unsafe_code)]

use super::core::{CallRegions, Failure};
use super::error::{CollectiveError, InvalidCall};
use super::run::Phase;
use super::shared::Owner;
use ringway_dataplane::memory::pool::Claim;
use ringway_dataplane::memory::{Buffer, Element};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A call under way. Dropping it lets the call go on by itself; its buffer then goes back to the pool.
#[must_use = "a started call's result comes from its handle"]
pub struct Handle<T: Element> {
    owner: Owner,
    slot: u16,
    /// Taken with the outcome.
    claim: Option<Claim<T>>,
}

impl<T: Element> std::fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl<T: Element> Handle<T> {
    pub(super) fn new(owner: Owner, slot: u16, claim: Claim<T>) -> Handle<T> {
        Handle { owner, slot, claim: Some(claim) }
    }

    /// Waits for the call on this thread, driving progress, and returns its buffer.
    ///
    /// # Errors
    /// [`CollectiveError`] when the communicator died; the buffer then goes back to the pool.
    pub fn wait(mut self) -> Result<Buffer<T>, CollectiveError> {
        let claim = self.claim.take().unwrap_or_else(|| unreachable!("taken only here and when ready"));
        let (mut input, mut output) = (None, None);
        let regions = CallRegions { input: &mut input, output: &mut output };
        let (core, result) = self.owner.finish_call(self.owner.lock(), self.slot, regions);
        match &result {
            Ok(()) => drop(core),
            Err(_) => drop(self.owner.write_down(core)),
        }
        redeem(claim, input.or(output), result)
    }

    /// Whether the call is over, so that [`Handle::wait`] will return at once.
    pub fn is_done(&self) -> bool {
        let mut core = self.owner.lock();
        let is_done = |core: &super::core::Core| core.runs[usize::from(self.slot)].phase == Phase::Done;
        if !is_done(&core) && self.owner.start_background(&mut core).is_err() {
            // There is no thread to be had: then whoever asks drives.
            core.turn();
        }
        self.owner.nudge(&core);
        is_done(&core)
    }
}

/// There is no thread for calls to go on by.
pub(super) fn no_thread(rank: u32, call: &'static str, error: &std::io::Error) -> CollectiveError {
    let why = format!("a thread to make progress on ({error}): raise the limit on processes (ulimit -u)");
    CollectiveError::Invalid { rank, call, why: InvalidCall::System(why) }
}

fn redeem<T: Element>(
    claim: Claim<T>,
    region: Option<ringway_dataplane::memory::Region>,
    result: Result<(), Failure>,
) -> Result<Buffer<T>, CollectiveError> {
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
        let mut core = this.owner.lock();
        let run = &mut core.runs[usize::from(this.slot)];
        if run.phase != Phase::Done {
            let old = run.waker.replace(cx.waker().clone());
            let rank = run.rank;
            let thread = this.owner.start_background(&mut core);
            this.owner.nudge(&core);
            drop(core);
            // Foreign code, so without the lock.
            drop(old);
            return match thread {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(no_thread(rank, "await", &error))),
            };
        }
        let claim = this.claim.take().expect("a handle is not polled after it was ready");
        let (mut input, mut output) = (None, None);
        let result = core.take(this.slot, CallRegions { input: &mut input, output: &mut output });
        drop(core);
        Poll::Ready(redeem(claim, input.or(output), result))
    }
}

// The claim is a token without address.
impl<T: Element> Unpin for Handle<T> {}

impl<T: Element> Drop for Handle<T> {
    fn drop(&mut self) {
        if self.claim.is_none() {
            return;
        }
        let mut core = self.owner.lock();
        let run = &mut core.runs[usize::from(self.slot)];
        if run.phase == Phase::Done {
            core.take_orphan(self.slot);
        } else {
            run.orphan = true;
            let waker = run.waker.take();
            drop(core);
            // Foreign code, so without the lock.
            drop(waker);
        }
    }
}
