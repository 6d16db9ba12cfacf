//! Explicit values, and `RINGWAY_*` variables as `ringway run` sets them.

use super::{Explicit, Found, Here, LaunchError, Launcher, Meeting, vars};
use crate::settings::Settings;

const REMEDY: &str = "set RINGWAY_COORDINATOR=HOST:PORT on every rank, with a host on which rank 0 runs, or start \
                      the ranks of one host with `ringway run -n N -- PROGRAM`";

/// Values that the program passed in.
pub(super) fn explicit(explicit: &Explicit, here: &Here) -> Result<Option<Found>, LaunchError> {
    match (explicit.rank, explicit.world_size) {
        (None, None) => Ok(None),
        (Some(rank), Some(world_size)) => Ok(Some(numbered(rank, world_size, here))),
        (Some(_), None) => Err(vars::half_set(Launcher::Explicit, "the rank", "the world size")),
        (None, Some(_)) => Err(vars::half_set(Launcher::Explicit, "the world size", "the rank")),
    }
}

/// `RINGWAY_RANK` and `RINGWAY_WORLD_SIZE`. The world size alone is no launcher: a Kubernetes Job needs it beside
/// its own variable, and [`single`](super::single) refuses it when nothing else gives the rank.
pub(super) fn found(settings: &Settings, here: &Here) -> Result<Option<Found>, LaunchError> {
    match (settings.rank, settings.world_size) {
        (None, _) => Ok(None),
        (Some(rank), Some(world_size)) => Ok(Some(numbered(rank, world_size, here))),
        (Some(_), None) => Err(vars::half_set(Launcher::Ringway, "RINGWAY_RANK", "RINGWAY_WORLD_SIZE")),
    }
}

fn numbered(rank: u32, world_size: u32, here: &Here) -> Found {
    // Ranks that meet at a given address and name no job share the address, so one name serves them; a single
    // process is a job of its own.
    let job_id = if world_size == 1 { format!("single-{}", here.pid) } else { "ringway".to_owned() };
    Found {
        rank,
        world_size,
        local_rank: None,
        local_size: None,
        meeting: Meeting::Unknown(REMEDY.to_owned()),
        job_id,
    }
}
