//! Values by key between the ranks of a job, without any graph: whoever has one sends it, whoever needs it asks the rank that
//! has it, in either order, and large ones travel from where they lie into a block of the receiver's pool.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ringway::rendezvous::{Key, Meta, Rendezvous, StepId, UniqueBytes, Value};
//! use std::time::Duration;
//!
//! let comm = ringway::Communicator::from_env()?;
//! let tensors = Rendezvous::over(&comm)?;
//! let (step, key) = (StepId(1), Key::new("weights")?);
//! if comm.rank() == 0 {
//!     let mut weights = UniqueBytes::zeroed(4 << 20, tensors.pool())?;
//!     weights.elements_mut::<f32>().expect("whole floats")[0] = 0.5;
//!     tensors.send(step, &key, Value::new(Meta::default(), weights.freeze()))?;
//! } else if comm.rank() == 1 {
//!     let weights = tensors.recv_wait(step, &key, tensors.rank(0), Duration::from_secs(10))?;
//!     assert_eq!(weights.payload.elements::<f32>().expect("whole floats")[0], 0.5);
//! }
//! comm.barrier()?; // The values that nobody has asked for yet go with their owner.
//! # Ok(()) }
//! ```
//!
//! The calls are those of [`ringway_dataplane::rendezvous::Rendezvous`], to which [`Rendezvous`] dereferences: blocking, with
//! a callback, or awaited; `cancel`, `abort` and `cleanup` of a step, and what went to and from each rank. Processes that
//! are no ranks use [`ringway_control::runtime::rendezvous::TaskRendezvous`].

use crate::{CollectiveError, Communicator};
use ringway_control::runtime::rendezvous::{IntroduceError, OpenError, TaskOptions, TaskRendezvous};
use ringway_control::settings::{Settings, SettingsError};
use std::fmt;
use std::ops::Deref;

pub use ringway_dataplane::memory::{AllocError, Pool, SharedBytes, UniqueBytes};
pub use ringway_dataplane::rendezvous::{
    Key, KeyError, Meta, Parts, PeerInfo, PeerLoss, Receive, RendezvousError, Source, StepId, Traffic, Value,
    WaiterId, Why,
};

/// Why ranks have no rendezvous. `Debug` prints the message.
#[derive(thiserror::Error)]
pub enum OverError {
    /// A setting is wrong.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// This rank has no transport for it.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The ranks could not tell each other where they are reached.
    #[error(transparent)]
    Exchange(#[from] CollectiveError),
    /// What a rank says of itself is too long.
    #[error(
        "rank {rank} is reached at so many addresses ({bytes} bytes) that others cannot be told: name one interface in RINGWAY_SOCKET_IFNAME"
    )]
    Address {
        /// The rank.
        rank: u32,
        /// Length of what it says.
        bytes: usize,
    },
    /// A rank is not reached.
    #[error(transparent)]
    Introduce(#[from] IntroduceError),
}

impl fmt::Debug for OverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_string())
    }
}

/// Most bytes in which a rank says where it is reached.
const CARD_BYTES: usize = 4096;

/// This rank's rendezvous with the others of a communicator.
pub struct Rendezvous {
    tasks: TaskRendezvous,
    sources: Vec<Source>,
}

impl Rendezvous {
    /// A rendezvous between the ranks of a communicator, with transports of its own as the settings in the environment want
    /// them. All ranks call it. A rank that the job loses is lost to its receives as well.
    ///
    /// # Errors
    /// [`OverError`]; every rank has one when one fails to tell the others where it is reached.
    pub fn over(comm: &Communicator) -> Result<Rendezvous, OverError> {
        Rendezvous::with_settings(comm, &Settings::from_env()?)
    }

    /// As [`Rendezvous::over`], with settings made otherwise.
    ///
    /// # Errors
    /// As [`Rendezvous::over`].
    pub fn with_settings(comm: &Communicator, settings: &Settings) -> Result<Rendezvous, OverError> {
        let members = comm.members();
        let all_local = members.iter().all(|m| m.host == members[0].host);
        let name = |rank: usize| format!("rank {rank}");
        let (pool, rank) = (Pool::default(), comm.rank());
        let options = TaskOptions {
            name: name(rank as usize),
            all_local,
            pool,
            on_loss: None,
            // Cards travel over the data plane, so no secret is in them.
            group: Some(comm.world().key().clone()),
        };
        let tasks = TaskRendezvous::open(settings, options)?;
        let card = tasks.to_bytes();
        let mut mine = vec![0u8; CARD_BYTES];
        let bytes = card.len();
        let fits = bytes + 4 <= CARD_BYTES;
        if fits {
            mine[..4].copy_from_slice(&(bytes as u32).to_le_bytes());
            mine[4..4 + bytes].copy_from_slice(&card);
        }
        let mut all = vec![0u8; CARD_BYTES * members.len()];
        comm.all_gather(&mine, &mut all)?;
        if !fits {
            return Err(OverError::Address { rank, bytes });
        }
        let mut sources = Vec::with_capacity(members.len());
        for (rank, card) in all.chunks_exact(CARD_BYTES).enumerate() {
            let bytes = card.first_chunk().map_or(0, |n| u32::from_le_bytes(*n)) as usize;
            let card = card.get(4..4 + bytes).filter(|card| !card.is_empty());
            let rank = rank as u32;
            let card = card.ok_or(OverError::Address { rank, bytes: CARD_BYTES })?;
            sources.push(tasks.introduce_bytes(card)?);
        }
        let lives: Vec<u64> = members.iter().map(|m| m.incarnation).collect();
        let told = tasks.clone();
        comm.world().on_loss(move |life, evidence| {
            if let Some(rank) = lives.iter().position(|l| *l == life) {
                told.report_lost_task(&name(rank), evidence);
            }
        });
        Ok(Rendezvous { tasks, sources })
    }

    /// Where the values of a rank of the communicator come from.
    ///
    /// # Panics
    /// When there is no such rank.
    #[must_use]
    pub fn rank(&self, rank: u32) -> Source {
        self.sources[rank as usize]
    }
}

impl Deref for Rendezvous {
    type Target = ringway_dataplane::rendezvous::Rendezvous;

    fn deref(&self) -> &Self::Target {
        &self.tasks
    }
}

impl fmt::Debug for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tasks.fmt(f)
    }
}
