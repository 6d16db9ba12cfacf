//! No launcher: one process is the whole job. Refused where something hints at more ranks, since a job of many
//! that runs as many jobs of one computes wrong results in silence.

use super::{Found, Here, LaunchError, Launcher, Meeting, Vars, vars};
use crate::settings::Settings;

pub(super) fn found(vars: &Vars, settings: &Settings, here: &Here) -> Result<Found, LaunchError> {
    if settings.world_size.is_some_and(|size| size > 1) {
        return Err(vars::half_set(Launcher::Ringway, "RINGWAY_WORLD_SIZE", "RINGWAY_RANK"));
    }
    if vars.number(Launcher::Torchrun, "WORLD_SIZE")?.is_some_and(|size| size > 1) {
        return Err(vars::half_set(Launcher::Torchrun, "WORLD_SIZE", "RANK"));
    }
    Ok(Found {
        rank: 0,
        world_size: 1,
        local_rank: Some(0),
        local_size: Some(1),
        meeting: Meeting::ThisHost,
        job_id: format!("single-{}", here.pid),
    })
}
