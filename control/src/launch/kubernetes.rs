//! A Kubernetes Job with `completionMode: Indexed`: `JOB_COMPLETION_INDEX` is the rank.
//!
//! Kubernetes tells a pod neither how many there are nor where pod 0 is, so both come from settings in the Job's
//! manifest: `RINGWAY_WORLD_SIZE` and `RINGWAY_COORDINATOR`, which is pod 0 by its name in the headless service.

use super::{Found, LaunchError, Launcher, Meeting, Vars};
use crate::settings::Settings;

const ME: Launcher = Launcher::Kubernetes;

pub(super) fn found(vars: &Vars, settings: &Settings) -> Result<Option<Found>, LaunchError> {
    let Some(rank) = vars.number(ME, "JOB_COMPLETION_INDEX")? else { return Ok(None) };
    let Some(world_size) = settings.world_size else {
        return Err(LaunchError::HalfSet {
            launcher: ME,
            present: "JOB_COMPLETION_INDEX".to_owned(),
            missing: "RINGWAY_WORLD_SIZE".to_owned(),
            remedy: "Kubernetes does not tell a pod how many there are: add RINGWAY_WORLD_SIZE, equal to \
                     spec.completions, to the container's env in the Job's manifest"
                .to_owned(),
        });
    };
    let job = job_name(vars, rank);
    let pod = job.unwrap_or("JOB");
    let remedy = format!(
        "add RINGWAY_COORDINATOR={pod}-0.SERVICE:29400 to the container's env in the Job's manifest, where SERVICE \
         is a headless service that selects the Job's pods and is named in spec.template.spec.subdomain"
    );
    Ok(Some(Found {
        rank,
        world_size,
        local_rank: None,
        local_size: None,
        meeting: Meeting::Unknown(remedy),
        job_id: format!("kubernetes-{}", job.unwrap_or("unnamed")),
    }))
}

/// The Job's name: the host name of an indexed pod is `NAME-INDEX`.
fn job_name(vars: &Vars, rank: u32) -> Option<&str> {
    vars.get("HOSTNAME")?.strip_suffix(&format!("-{rank}"))
}
