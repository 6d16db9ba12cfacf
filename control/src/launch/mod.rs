//! Rank discovery: who this process is, from whatever launched it.
//!
//! In order, the first that speaks wins: explicit values of the caller, `RINGWAY_*`, torchrun, Open MPI and PMIx,
//! PMI (MPICH, Intel MPI), Slurm, a Kubernetes indexed Job, `TF_CONFIG`, and last a single process on its own.
//! One file per launcher; each is pure over a map of variables ([`Vars`]). The environment is read at the edge
//! only ([`Launch::from_env`]).
//!
//! - I1: a launcher that is set by half is an error that names what is missing, never a silent single process.
//! - I2: all ranks of one launch compute the same coordinator address and job id, and exactly one of them, or
//!   something outside of them, runs the coordination service.
//! - I3: a launcher started inside another's allocation hides the outer one: mpirun under Slurm is mpirun's job.
#![forbid(unsafe_code)]

pub mod cluster;
mod fabric;
mod hostlist;
mod kubernetes;
mod openmpi;
mod place;
mod pmi;
mod ringway;
mod single;
mod slurm;
mod tf_config;
mod torchrun;
mod vars;

pub use fabric::{FABRIC_LIMIT_BYTES, Fabric, FabricError};
pub use hostlist::{HostlistError, expand as expand_hostlist};
pub use place::{CoordinatorPlace, DERIVED_PORTS, PortFrom};
pub use vars::{Here, Vars};

use crate::settings::{HostPort, Settings, SettingsError};
use ringway_topology::{LocalRank, Rank};

/// The job under which ranks register with the coordination service: rank r is task r of it.
pub const RANK_JOB: &str = "worker";

/// Who this process is in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// This process's rank, below `world_size`.
    pub rank: Rank,
    /// The number of ranks, at least 1.
    pub world_size: u32,
    /// This process's number among the ranks of its host; `None` when the launcher does not say.
    pub local_rank: Option<LocalRank>,
    /// The number of ranks on this host; `None` as above.
    pub local_size: Option<u32>,
    /// Where the coordination service is and who runs it.
    pub coordinator: CoordinatorPlace,
    /// Names the job; the same on all of its ranks, different between jobs that run at one time.
    pub job_id: String,
    /// Which launcher this was read from.
    pub found_by: Launcher,
    /// The network's switches above this host, the outermost first, where Slurm tells.
    pub switches: Vec<String>,
}

/// What starts processes and tells them their rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Launcher {
    /// Values that the program itself passed in.
    Explicit,
    /// `RINGWAY_*` variables: `ringway run`, or set by hand.
    Ringway,
    /// torchrun, or what else sets its variables.
    Torchrun,
    /// Open MPI, PRRTE, or another that speaks PMIx.
    OpenMpi,
    /// MPICH, Intel MPI, or another that speaks PMI.
    Pmi,
    /// Slurm's srun.
    Slurm,
    /// A Kubernetes Job with completionMode Indexed.
    Kubernetes,
    /// TensorFlow's `TF_CONFIG`.
    TfConfig,
    /// None: this process is the whole job.
    Single,
}

impl std::fmt::Display for Launcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Launcher::Explicit => "explicit values",
            Launcher::Ringway => "RINGWAY_* variables",
            Launcher::Torchrun => "torchrun",
            Launcher::OpenMpi => "Open MPI or PMIx",
            Launcher::Pmi => "PMI (MPICH, Intel MPI)",
            Launcher::Slurm => "Slurm",
            Launcher::Kubernetes => "a Kubernetes indexed Job",
            Launcher::TfConfig => "TF_CONFIG",
            Launcher::Single => "a single process",
        })
    }
}

/// Values that the program passes in itself; they go before everything found in the environment.
#[derive(Clone, Debug, Default)]
pub struct Explicit {
    /// This process's rank; needs `world_size`.
    pub rank: Option<u32>,
    /// The number of ranks; needs `rank`.
    pub world_size: Option<u32>,
    /// Where the coordination service listens.
    pub coordinator: Option<HostPort>,
    /// Names the job.
    pub job_id: Option<String>,
}

/// Why a process could not find out who it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// Some of a launcher's variables are there and others are not.
    #[error("the environment looks like {launcher} ({present} is set), but {missing} is not set: {remedy}")]
    HalfSet {
        /// The launcher that it looks like.
        launcher: Launcher,
        /// What is there.
        present: String,
        /// What is not.
        missing: String,
        /// What to do.
        remedy: String,
    },
    /// A launcher's variable holds something that it never should.
    #[error("{name}={given} (read as a variable of {launcher}) is not {expected}: {remedy}")]
    Malformed {
        /// The launcher whose variable it is.
        launcher: Launcher,
        /// The variable.
        name: String,
        /// Its value, shortened.
        given: String,
        /// What it should be.
        expected: String,
        /// What to do.
        remedy: String,
    },
    /// The rank is not below the world size, or a local number contradicts another.
    #[error("{what}, by {launcher}: {remedy}")]
    Contradiction {
        /// The launcher.
        launcher: Launcher,
        /// The numbers that do not fit each other.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// The launcher tells the rank, but no address at which the ranks could meet.
    #[error(
        "{launcher} started rank {rank} of {world_size}, but gives no address at which the ranks can meet: {remedy}"
    )]
    NoCoordinator {
        /// The launcher.
        launcher: Launcher,
        /// This process's rank.
        rank: u32,
        /// The number of ranks.
        world_size: u32,
        /// What to set, and where.
        remedy: String,
    },
    /// This process is a task of the cluster that takes no part in collectives.
    #[error("TF_CONFIG says that this is {job}:{index}, and {job} tasks are no ranks: {remedy}")]
    NotARank {
        /// The job of this task.
        job: String,
        /// Its index.
        index: u32,
        /// What to do.
        remedy: String,
    },
    /// The cluster description in `TF_CONFIG` is not sound.
    #[error("TF_CONFIG: {0}")]
    Cluster(#[from] cluster::ClusterError),
    /// A `RINGWAY_*` variable is not allowed.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

/// What one launcher's file found.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    rank: u32,
    world_size: u32,
    local_rank: Option<u32>,
    local_size: Option<u32>,
    meeting: Meeting,
    job_id: String,
}

/// Where the ranks can meet, as far as a launcher tells.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Meeting {
    /// At this address, which is free for rank 0 to listen on.
    At(HostPort),
    /// On this host, at a port derived from the job id.
    On(String),
    /// All ranks share one host.
    ThisHost,
    /// The launcher does not say; the remedy to tell.
    Unknown(String),
}

impl Launch {
    /// Finds out who this process is from its environment.
    ///
    /// # Errors
    /// When a launcher's variables are incomplete, malformed or contradictory, or give no meeting place.
    pub fn from_env() -> Result<Self, LaunchError> {
        let settings = Settings::from_env()?;
        Self::discover(&Explicit::default(), &settings, &Vars::from_env(), &Here::find())
    }

    /// As [`Launch::from_env`], from values given: nothing but the arguments is read.
    ///
    /// # Errors
    /// As [`Launch::from_env`].
    pub fn discover(
        explicit: &Explicit,
        settings: &Settings,
        vars: &Vars,
        here: &Here,
    ) -> Result<Self, LaunchError> {
        let (launcher, found) = find(explicit, settings, vars, here)?;
        let switches = fabric::from_slurm(vars, &here.host);
        Ok(Launch { switches, ..finish(launcher, found, explicit, settings)? })
    }
}

/// Asks each launcher in order (I3).
fn find(
    explicit: &Explicit,
    settings: &Settings,
    vars: &Vars,
    here: &Here,
) -> Result<(Launcher, Found), LaunchError> {
    let asked = |launcher, found: Result<Option<Found>, LaunchError>| match found {
        Ok(Some(found)) => Some(Ok((launcher, found))),
        Ok(None) => None,
        Err(error) => Some(Err(error)),
    };
    asked(Launcher::Explicit, ringway::explicit(explicit, here))
        .or_else(|| asked(Launcher::Ringway, ringway::found(settings, here)))
        .or_else(|| asked(Launcher::Torchrun, torchrun::found(vars)))
        .or_else(|| asked(Launcher::OpenMpi, openmpi::found(vars)))
        .or_else(|| asked(Launcher::Pmi, pmi::found(vars, here)))
        .or_else(|| asked(Launcher::Slurm, slurm::found(vars)))
        .or_else(|| asked(Launcher::Kubernetes, kubernetes::found(vars, settings)))
        .or_else(|| asked(Launcher::TfConfig, tf_config::found(vars)))
        .unwrap_or_else(|| single::found(vars, settings, here).map(|found| (Launcher::Single, found)))
}

/// Lets explicit values and settings overrule single parts of what a launcher gave, and checks that all fits.
fn finish(
    launcher: Launcher,
    found: Found,
    explicit: &Explicit,
    settings: &Settings,
) -> Result<Launch, LaunchError> {
    let job_id = explicit.job_id.clone().or_else(|| settings.job_id.clone()).unwrap_or(found.job_id);
    let local_rank = settings.local_rank.or(found.local_rank);
    let local_size = settings.local_size.or(found.local_size);
    let (rank, world_size) = (found.rank, found.world_size);
    check_numbers(launcher, rank, world_size, local_rank, local_size)?;
    if let Some(other) =
        settings.world_size.filter(|other| *other != world_size && explicit.world_size.is_none())
    {
        return Err(LaunchError::Contradiction {
            launcher,
            what: format!("{world_size} ranks while RINGWAY_WORLD_SIZE={other}"),
            remedy: "unset RINGWAY_WORLD_SIZE, or set RINGWAY_RANK too on every rank".to_owned(),
        });
    }
    let meeting = match explicit.coordinator.clone().or_else(|| settings.coordinator.clone()) {
        Some(address) => Meeting::At(address),
        None => found.meeting,
    };
    let coordinator = place::choose(meeting, settings, rank, world_size, &job_id)
        .map_err(|remedy| LaunchError::NoCoordinator { launcher, rank, world_size, remedy })?;
    Ok(Launch {
        rank: Rank(rank),
        world_size,
        local_rank: local_rank.map(LocalRank),
        local_size,
        coordinator,
        job_id,
        found_by: launcher,
        switches: Vec::new(),
    })
}

fn check_numbers(
    launcher: Launcher,
    rank: u32,
    world_size: u32,
    local_rank: Option<u32>,
    local_size: Option<u32>,
) -> Result<(), LaunchError> {
    let contradiction = |what: String| {
        let remedy = "ranks count from 0 up to one less than the number of ranks; correct the launcher's \
                      variables, or set RINGWAY_RANK and RINGWAY_WORLD_SIZE"
            .to_owned();
        Err(LaunchError::Contradiction { launcher, what, remedy })
    };
    if rank >= world_size {
        return contradiction(format!("rank {rank} of {world_size}"));
    }
    if let Some(size) = local_size.filter(|size| *size > world_size || *size == 0) {
        return contradiction(format!("{size} ranks on this host, of {world_size} in all"));
    }
    match (local_rank, local_size) {
        (Some(rank), Some(size)) if rank >= size => {
            contradiction(format!("local rank {rank} of {size} on this host"))
        }
        (Some(rank), None) if rank >= world_size => {
            contradiction(format!("local rank {rank} of {world_size} ranks"))
        }
        _ => Ok(()),
    }
}
