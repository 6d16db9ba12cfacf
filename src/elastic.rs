//! Jobs that go on when ranks die, and let others in.
//!
//! The group of a job is a series of generations. When a rank dies, calls of the others fail; those who are left agree on the
//! next generation by [`Communicator::shrink`] or [`Communicator::grow`], with the same members in the same order on all of
//! them: first who was there before, in the order of their ranks, then who is new. So rank 0 has the job's state whenever
//! anybody has. A process that is started anew under the number of the dead one waits until the others let it in, at a step
//! of their own choice.
//!
//! [`run`] does all that for work that goes in steps:
//!
//! ```no_run
//! use ringway::elastic::{self, Progress, Turn};
//! use ringway::{CollectiveError, Communicator, ReduceOp};
//!
//! struct Training { step: u64, weights: Vec<f32> }
//!
//! impl Progress for Training {
//!     fn share(&mut self, comm: &Communicator) -> Result<(), CollectiveError> {
//!         let mut step = [self.step];
//!         comm.broadcast(&mut step, 0)?;
//!         comm.broadcast(&mut self.weights[..], 0)?;
//!         self.step = step[0];
//!         Ok(())
//!     }
//! }
//!
//! # fn gradients(_: &Training, _: u32, _: u32) -> Vec<f32> { Vec::new() }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut training = Training { step: 0, weights: vec![0.0; 1000] };
//! elastic::run(Communicator::from_env()?, &mut training, |comm, training| {
//!     let mut sum = gradients(training, comm.rank(), comm.size());
//!     comm.all_reduce(&mut sum[..], ReduceOp::Avg)?;
//!     // Only now: a step that fails must leave the state as it was.
//!     training.weights.iter_mut().zip(&sum).for_each(|(weight, change)| *weight -= change);
//!     training.step += 1;
//!     Ok(if training.step == 1000 { Turn::Done } else { Turn::Again })
//! })?;
//! # Ok(()) }
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ringway_control::runtime::Regrouping;

use crate::{CollectiveError, Communicator, JoinError, Launch, Settings, StartError, log};

/// How long the members of a generation wait for each other before the next, in [`run`].
pub const PATIENCE: Duration = Duration::from_secs(120);

impl Communicator {
    /// Enters, as a new process, a job that runs already: when its members let newcomers in. In a job with
    /// `RINGWAY_MIN_RANKS` (under `ringway run --min-ranks`) [`Communicator::from_env`] does so by itself.
    ///
    /// # Errors
    /// [`StartError`], when the members do not let it in within the join timeout, or have left in order.
    pub fn rejoin() -> Result<Communicator, StartError> {
        let settings = Settings::from_env()?;
        let launch = Launch::from_env()?;
        log::start(&settings)?;
        let (inner, world) = ringway_control::runtime::rejoin(&launch, &settings)?;
        Ok(Communicator { inner, world: Arc::new(world) })
    }

    /// Which generation of the job's group this process is in, from 1.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.world.generation()
    }

    /// How many ranks, those with the lowest numbers, were in the generation before. 0 when nobody was: then the state of
    /// the job is what it begins with, or what was saved of it.
    #[must_use]
    pub fn carried(&self) -> u32 {
        self.world.carried()
    }

    /// Whether this process has heard that newcomers wait to be let in by [`Communicator::grow`]. Other ranks may hear of it
    /// later, so one rank has to decide for all.
    #[must_use]
    pub fn has_newcomers(&self) -> bool {
        self.world.has_newcomers()
    }

    /// The group of those who are left, and of nobody else, whether this communicator is dead or not. All of them call it.
    /// Communicators that were split from this one are to be dropped before.
    ///
    /// # Errors
    /// [`JoinError::Group`] when members that live do not call it in time (they are named), or fewer are left than the job
    /// may have. This process has then left the job, unless it holds another communicator of it.
    pub fn shrink(self, timeout: Duration) -> Result<Communicator, JoinError> {
        self.regroup(Regrouping { newcomers: false, timeout })
    }

    /// The group of those who are left and of the newcomers that wait now; with too few of them it waits for more. All
    /// members that are left call it.
    ///
    /// # Errors
    /// As [`Communicator::shrink`].
    pub fn grow(self, timeout: Duration) -> Result<Communicator, JoinError> {
        self.regroup(Regrouping { newcomers: true, timeout })
    }

    fn regroup(self, wish: Regrouping) -> Result<Communicator, JoinError> {
        let Communicator { inner, world } = self;
        // Its data plane says goodbye to those that have not heard of the loss yet.
        drop(inner);
        let (inner, next) = world.regroup(wish)?;
        Ok(Communicator { inner, world: Arc::new(next) })
    }
}

/// The state of work that goes in steps.
pub trait Progress {
    /// Gives all ranks the state of rank 0, by collective calls. Called on all ranks of each generation, before its first
    /// step. On rank 0 the state is as its last whole step left it, or as the program made it where nobody is left.
    ///
    /// # Errors
    /// Those of its calls.
    fn share(&mut self, comm: &Communicator) -> Result<(), CollectiveError>;
}

/// What follows a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Another step.
    Again,
    /// Nothing: the work is done. All ranks say so after the same step.
    Done,
}

/// Why work did not come to its end on this rank. `Debug` prints the message.
#[derive(thiserror::Error)]
pub enum ElasticError {
    /// A call failed for another reason than another rank.
    #[error(transparent)]
    Call(#[from] CollectiveError),
    /// There is no next generation.
    #[error("after {why}: {source}")]
    Regroup {
        /// What ended the last one.
        why: String,
        /// Why there is none.
        source: Box<JoinError>,
    },
}

impl fmt::Debug for ElasticError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_string())
    }
}

/// Runs `step` on all ranks until it says [`Turn::Done`]. When another rank is lost, those who are left go on from the last
/// step that rank 0 has made; newcomers are let in between steps, and get rank 0's state. A step must leave `progress` as it
/// was until its calls have succeeded: it is made again.
///
/// Returns the communicator of the last generation.
///
/// # Errors
/// [`ElasticError`]: a call failed by this rank's own doing, or fewer ranks are left than the job may have and no other came
/// within [`PATIENCE`].
pub fn run<P: Progress>(
    mut comm: Communicator,
    progress: &mut P,
    mut step: impl FnMut(&Communicator, &mut P) -> Result<Turn, CollectiveError>,
) -> Result<Communicator, ElasticError> {
    loop {
        let why = match generation(&comm, progress, &mut step) {
            Ok(Turn::Done) => return Ok(comm),
            Ok(Turn::Again) => "newcomers were let in".to_owned(),
            Err(error) if is_of_another(&comm, &error) => error.to_string(),
            Err(error) => return Err(error.into()),
        };
        comm =
            comm.grow(PATIENCE).map_err(|source| ElasticError::Regroup { why, source: Box::new(source) })?;
    }
}

/// Steps of one generation: until the work is done, or newcomers wait.
fn generation<P: Progress>(
    comm: &Communicator,
    progress: &mut P,
    step: &mut impl FnMut(&Communicator, &mut P) -> Result<Turn, CollectiveError>,
) -> Result<Turn, CollectiveError> {
    progress.share(comm)?;
    while step(comm, progress)? == Turn::Again {
        // Rank 0 decides for all.
        let mut newcomers = [u8::from(comm.has_newcomers())];
        comm.broadcast(&mut newcomers, 0)?;
        if newcomers == [1] {
            return Ok(Turn::Again);
        }
    }
    Ok(Turn::Done)
}

/// Whether a call failed because of another rank, so that this one can go on without it.
fn is_of_another(comm: &Communicator, error: &CollectiveError) -> bool {
    match error {
        CollectiveError::Lost { who, .. } | CollectiveError::Aborted { who, .. } => who.rank != comm.rank(),
        _ => false,
    }
}
