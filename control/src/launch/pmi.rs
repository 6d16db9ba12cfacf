//! PMI: `PMI_RANK` and `PMI_SIZE`, set by Hydra, the launcher of MPICH and Intel MPI; `MPI_LOCALRANKID` and
//! `MPI_LOCALNRANKS` beside them.
//!
//! Hydra names its job nowhere in the environment. What all ranks of a host share and no other job does is the
//! control socket that they inherit, else the process that started them.

use super::{Found, Here, LaunchError, Launcher, Meeting, Vars, vars};

const ME: Launcher = Launcher::Pmi;

const REMEDY: &str = "the ranks are on several hosts, and mpiexec does not say where rank 0 runs: pass its host and \
                      a free port, as in `mpiexec -genv RINGWAY_COORDINATOR HOST:29400 ...`";

pub(super) fn found(vars: &Vars, here: &Here) -> Result<Option<Found>, LaunchError> {
    let rank = vars.number(ME, "PMI_RANK")?;
    let size = vars.number(ME, "PMI_SIZE")?;
    let (rank, world_size) = match (rank, size) {
        (Some(rank), Some(size)) => (rank, size),
        (Some(_), None) => return Err(vars::half_set(ME, "PMI_RANK", "PMI_SIZE")),
        (None, Some(_)) => return Err(vars::half_set(ME, "PMI_SIZE", "PMI_RANK")),
        (None, None) if vars.get("PMI_PORT").is_some() && vars.get("PMI_ID").is_some() => {
            return Err(vars::half_set(ME, "PMI_PORT", "PMI_RANK"));
        }
        (None, None) => return Ok(None),
    };
    if slurm_says_the_same(vars, rank, world_size)? {
        return Ok(None);
    }
    let local_rank = vars.number(ME, "MPI_LOCALRANKID")?;
    let local_size = vars.number(ME, "MPI_LOCALNRANKS")?;
    let meeting =
        if local_size == Some(world_size) { Meeting::ThisHost } else { Meeting::Unknown(REMEDY.to_owned()) };
    let job_id = match &here.control_socket {
        _ if local_size != Some(world_size) => "pmi".to_owned(),
        Some(socket) => format!("pmi-{socket}"),
        None => format!("pmi-{}", here.parent_pid),
    };
    Ok(Some(Found { rank, world_size, local_rank, local_size, meeting, job_id }))
}

/// Whether this is `srun --mpi=pmi2`: Slurm's own variables give the same numbers, and a meeting place besides.
fn slurm_says_the_same(vars: &Vars, rank: u32, world_size: u32) -> Result<bool, LaunchError> {
    let in_step = vars.get("SLURM_STEP_ID").is_some();
    let slurm = |name| vars.number(Launcher::Slurm, name);
    Ok(in_step && slurm("SLURM_PROCID")? == Some(rank) && slurm("SLURM_STEP_NUM_TASKS")? == Some(world_size))
}
