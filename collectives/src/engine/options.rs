//! What a user may set about an engine.

#![forbid(unsafe_code)]

use super::error::CollectiveError;
use super::flight::WriteDown;
use super::numerics::Numerics;
use crate::schedule::{Costs, FEWEST_IN_FLIGHT, MOST_IN_FLIGHT, Tuning, Wanted};
use ringway_dataplane::fabric::SpinPolicy;
use ringway_dataplane::memory::Pool;
use std::fmt;
use std::sync::Arc;

/// What most algorithms have under way with the default of [`EngineOptions::slices_in_flight`].
pub const DEFAULT_SLICES_IN_FLIGHT: u32 = FEWEST_IN_FLIGHT;
/// Most slices in flight that may be set: lanes of one call are numbered in as many bits.
pub const MAX_SLICES_IN_FLIGHT: u32 = MOST_IN_FLIGHT;
/// Default of [`EngineOptions::inquiry_ms`].
pub const DEFAULT_INQUIRY_MS: u64 = 100;
/// Default of [`EngineOptions::linger_ms`].
pub const DEFAULT_LINGER_MS: u64 = 1000;
/// Default of [`EngineOptions::recorded_calls`].
pub const DEFAULT_RECORDED_CALLS: usize = 4096;

/// What [`OnFailure`] calls, with the communicator's id and why it died.
pub type Told = dyn Fn(u32, &CollectiveError) + Send + Sync;

/// Told once of each communicator that dies, with the rank's own view of why. It runs on the thread that found out,
/// with the engine locked: it must return soon (put the error into a channel) and call nothing of the communicator.
#[derive(Clone)]
pub struct OnFailure(pub Arc<Told>);

impl fmt::Debug for OnFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnFailure")
    }
}

/// Called once on the progress thread, before anything else is done there: to bind it to CPUs, say.
#[derive(Clone)]
pub struct OnProgressThread(pub Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for OnProgressThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnProgressThread")
    }
}

/// Who moves started calls on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// A thread of the engine's own, which the first started collective makes.
    #[default]
    Thread,
    /// The program's threads alone, while they are in a call: any blocking one, [`Handle::wait`](super::Handle::wait) and
    /// [`Handle::is_done`](super::Handle::is_done), each poll of a handle that is awaited, and
    /// [`Communicator::progress`](super::Communicator::progress). No thread is made. A rank that makes no call moves nothing on, and
    /// neither answers nor passes on what others ask and tell, so that they may wait for it, and for its news, until it makes one.
    Caller,
}

/// Settings of an engine. All ranks of a group must agree on `slice_bytes`, `slices_in_flight`, `costs`, `wanted`, `tuning` and
/// `check`; disagreement is found as a mismatch.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Bytes of every chunk that one slice covers; `None` for what the cost model finds best.
    pub slice_bytes: Option<usize>,
    /// Slices of one call under way at a time, `1..=`[`MAX_SLICES_IN_FLIGHT`]; `None` for as many as the algorithm needs.
    /// Less where the transport is shallow.
    pub slices_in_flight: Option<u32>,
    /// What links between the ranks cost, inside hosts and between them: algorithms and slices are chosen by it.
    pub costs: Costs,
    /// Run collectives by these algorithms, where they exist.
    pub wanted: Wanted,
    /// What was measured to be quickest; its costs are for the caller to put into `costs`.
    pub tuning: Option<Arc<Tuning>>,
    /// How reductions are computed, where a communicator does not say otherwise
    /// ([`Communicator::set_numerics`](super::Communicator::set_numerics)).
    pub numerics: Numerics,
    /// Stamp messages with the call's fingerprint, so that mismatched calls are errors.
    pub check: bool,
    /// Who moves started calls on. Ranks need not agree on it.
    pub progress: Progress,
    /// How to pass the time before sleeping.
    pub spin: SpinPolicy,
    /// Where buffers and scratch come from.
    pub pool: Pool,
    /// Waiting without progress for this long makes a rank ask those it waits for what they are doing; then twice as
    /// long, up to [`super::MAX_INQUIRY_MS`].
    pub inquiry_ms: u64,
    /// How long leaving may take to flush what is queued.
    pub linger_ms: u64,
    /// Calls that the flight recorder keeps.
    pub recorded_calls: usize,
    /// Told of dead communicators.
    pub on_failure: Option<OnFailure>,
    /// Writes the flight record down after a failure.
    pub write_down: Option<WriteDown>,
    /// Called on the progress thread when it starts.
    pub on_progress_thread: Option<OnProgressThread>,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            slice_bytes: None,
            slices_in_flight: None,
            costs: Costs::default(),
            wanted: Wanted::ANY,
            tuning: None,
            numerics: Numerics::default(),
            check: true,
            progress: Progress::Thread,
            spin: SpinPolicy::Auto,
            pool: Pool::default(),
            inquiry_ms: DEFAULT_INQUIRY_MS,
            linger_ms: DEFAULT_LINGER_MS,
            recorded_calls: DEFAULT_RECORDED_CALLS,
            on_failure: None,
            write_down: None,
            on_progress_thread: None,
        }
    }
}
