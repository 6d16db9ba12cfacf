//! TensorFlow's `TF_CONFIG`: a cluster of jobs and tasks with their addresses, and which task this is.
//!
//! The ranks are the `chief` (or `master`) task, if there is one, and then the workers in the order of their
//! index. The first of them runs the coordination service at its own address. Parameter servers and evaluators
//! are no ranks.

use super::{Found, LaunchError, Launcher, Meeting, Vars, cluster, place, vars};

const ME: Launcher = Launcher::TfConfig;

/// The jobs whose tasks are ranks, in rank order.
const RANKED_JOBS: [&str; 3] = ["chief", "master", "worker"];

pub(super) fn found(vars: &Vars) -> Result<Option<Found>, LaunchError> {
    let Some(text) = vars.get("TF_CONFIG") else { return Ok(None) };
    let config = cluster::TfConfig::parse(text)?;
    if config.cluster.is_empty() {
        // TensorFlow takes an empty cluster for a program on its own, and so do we.
        return Ok(None);
    }
    let Some((job, index)) = config.task else {
        return Err(vars::half_set(ME, "the cluster in TF_CONFIG", "its task"));
    };
    let ranked: Vec<_> = RANKED_JOBS
        .iter()
        .flat_map(|name| config.cluster.tasks(name).map(move |(index, address)| (*name, index, address)))
        .collect();
    let Some(rank) = ranked.iter().position(|(name, at, _)| *name == job && *at == index) else {
        if RANKED_JOBS.contains(&job.as_str()) {
            return Err(
                cluster::ClusterError::NoSuchTask { job, index, known: config.cluster.summary() }.into()
            );
        }
        return Err(LaunchError::NotARank {
            remedy: format!(
                "run its service with `ringway serve --cluster ... --job {job} --task {index}` instead"
            ),
            job,
            index,
        });
    };
    let count = |n: usize| u32::try_from(n).expect("a cluster holds at most MAX_TASKS tasks");
    Ok(Some(Found {
        rank: count(rank),
        world_size: count(ranked.len()),
        local_rank: None,
        local_size: None,
        meeting: Meeting::At(ranked[0].2.clone()),
        job_id: format!("tf-{:016x}", place::fnv1a(config.cluster.summary().as_bytes())),
    }))
}
