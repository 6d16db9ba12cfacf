//! Slurm's srun: `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` (else `SLURM_NTASKS`), `SLURM_LOCALID`, and the node list,
//! whose first host runs rank 0.
//!
//! A batch script has `SLURM_PROCID=0` and `SLURM_NTASKS` too, although it is one process. Only a step that srun
//! started has `SLURM_STEP_ID`, so a program run from the script itself is not taken for rank 0 of many.

use super::{Found, LaunchError, Launcher, Meeting, Vars, hostlist, vars};

const ME: Launcher = Launcher::Slurm;

pub(super) fn found(vars: &Vars) -> Result<Option<Found>, LaunchError> {
    let step = vars.get("SLURM_STEP_ID").or_else(|| vars.get("SLURM_STEPID"));
    let (Some(step), Some(rank)) = (step, vars.number(ME, "SLURM_PROCID")?) else { return Ok(None) };
    let world_size = match vars.number(ME, "SLURM_STEP_NUM_TASKS")? {
        Some(size) => size,
        None => vars.required(ME, "SLURM_PROCID", "SLURM_NTASKS")?,
    };
    let list_name = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"]
        .into_iter()
        .find(|name| vars.get(name).is_some());
    let meeting = match list_name {
        Some(name) => Meeting::On(first_host(name, vars.get(name).unwrap_or_default())?),
        None if world_size == 1 => Meeting::ThisHost,
        None => return Err(vars::half_set(ME, "SLURM_PROCID", "SLURM_JOB_NODELIST")),
    };
    let job = match vars.get("SLURM_JOB_ID") {
        Some(job) => job,
        None if world_size == 1 => "unnamed",
        None => return Err(vars::half_set(ME, "SLURM_PROCID", "SLURM_JOB_ID")),
    };
    Ok(Some(Found {
        rank,
        world_size,
        local_rank: vars.number(ME, "SLURM_LOCALID")?,
        local_size: local_size(vars)?,
        meeting,
        job_id: format!("slurm-{job}-{step}"),
    }))
}

fn first_host(name: &str, list: &str) -> Result<String, LaunchError> {
    let hosts = hostlist::expand(list)
        .map_err(|error| vars::malformed(ME, name, list, &format!("a host list ({error})")))?;
    hosts.into_iter().next().ok_or_else(|| vars::malformed(ME, name, list, "a host list with a host"))
}

/// The tasks of this node from `SLURM_STEP_TASKS_PER_NODE`, such as `2(x3),1`, at `SLURM_NODEID`.
fn local_size(vars: &Vars) -> Result<Option<u32>, LaunchError> {
    let name = ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"]
        .into_iter()
        .find(|name| vars.get(name).is_some());
    let (Some(name), Some(node)) = (name, vars.number(ME, "SLURM_NODEID")?) else { return Ok(None) };
    let text = vars.get(name).unwrap_or_default();
    tasks_of_node(text, node)
        .ok_or_else(|| {
            vars::malformed(ME, name, text, &format!("a list of task counts that reaches node {node}"))
        })
        .map(Some)
}

fn tasks_of_node(text: &str, node: u32) -> Option<u32> {
    let mut nodes = 0u32;
    for part in text.split(',') {
        let (tasks, repeat) = match part.split_once("(x") {
            Some((tasks, repeat)) => (tasks, repeat.strip_suffix(')')?.parse().ok()?),
            None => (part, 1u32),
        };
        let tasks = tasks.parse().ok()?;
        nodes = nodes.checked_add(repeat)?;
        if node < nodes {
            return Some(tasks);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::tasks_of_node;

    #[test]
    fn task_counts_by_node() {
        assert_eq!(tasks_of_node("2(x3),1", 0), Some(2));
        assert_eq!(tasks_of_node("2(x3),1", 2), Some(2));
        assert_eq!(tasks_of_node("2(x3),1", 3), Some(1));
        assert_eq!(tasks_of_node("2(x3),1", 4), None);
        assert_eq!(tasks_of_node("2(x3", 0), None);
        assert_eq!(tasks_of_node("", 0), None);
        assert_eq!(tasks_of_node("4(x4294967295),4(x2)", 4_294_967_295), None, "no overflow");
    }
}
