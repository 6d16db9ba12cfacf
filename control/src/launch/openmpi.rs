//! Open MPI (`OMPI_COMM_WORLD_*`), and PMIx for the job's name.
//!
//! A PMIx launcher that is not Open MPI (srun --mpi=pmix, PRRTE) sets `PMIX_RANK` and `PMIX_NAMESPACE` but no world
//! size: it is told over PMIx's own protocol. Slurm's variables, which come along, say it instead; without them
//! the environment is set by half.

use super::{Found, LaunchError, Launcher, Meeting, Vars, vars};

const ME: Launcher = Launcher::OpenMpi;

const REMEDY: &str = "the ranks are on several hosts, and mpirun does not say where rank 0 runs: pass its host and \
                      a free port, as in `mpirun -x RINGWAY_COORDINATOR=HOST:29400 ...`";

pub(super) fn found(vars: &Vars) -> Result<Option<Found>, LaunchError> {
    let rank = vars.number(ME, "OMPI_COMM_WORLD_RANK")?;
    let size = vars.number(ME, "OMPI_COMM_WORLD_SIZE")?;
    let (rank, world_size) = match (rank, size) {
        (Some(rank), Some(size)) => (rank, size),
        (Some(_), None) => return Err(vars::half_set(ME, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")),
        (None, Some(_)) => return Err(vars::half_set(ME, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")),
        (None, None) if vars.get("PMIX_RANK").is_some() && vars.get("SLURM_STEP_ID").is_none() => {
            return Err(vars::half_set(ME, "PMIX_RANK", "OMPI_COMM_WORLD_SIZE"));
        }
        (None, None) => return Ok(None),
    };
    let local_rank = vars.number(ME, "OMPI_COMM_WORLD_LOCAL_RANK")?;
    let local_size = vars.number(ME, "OMPI_COMM_WORLD_LOCAL_SIZE")?;
    let job = vars.get("PMIX_NAMESPACE").or_else(|| vars.get("OMPI_MCA_ess_base_jobid"));
    let meeting = match job {
        Some(_) if local_size == Some(world_size) => Meeting::ThisHost,
        _ => Meeting::Unknown(REMEDY.to_owned()),
    };
    let job_id = format!("openmpi-{}", job.unwrap_or("unnamed"));
    Ok(Some(Found { rank, world_size, local_rank, local_size, meeting, job_id }))
}
