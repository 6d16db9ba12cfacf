//! torchrun: `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`; also set by the
//! Kubernetes training operators.
//!
//! Only `RANK` shows that it is at work: job scripts set `MASTER_ADDR`, `MASTER_PORT` and `WORLD_SIZE` by hand
//! before `srun`. Where torchrun's own agent listens on `MASTER_PORT` (`TORCHELASTIC_USE_AGENT_STORE`), rank 0
//! cannot, so the port is derived from the run; the restart count is part of the job, so that ranks of a gang that
//! was restarted never meet those of the one before.

use super::{Found, LaunchError, Launcher, Meeting, Vars, vars};
use crate::settings::HostPort;

const ME: Launcher = Launcher::Torchrun;

pub(super) fn found(vars: &Vars) -> Result<Option<Found>, LaunchError> {
    let Some(rank) = vars.number(ME, "RANK")? else { return Ok(None) };
    let world_size = vars.required(ME, "RANK", "WORLD_SIZE")?;
    let address = vars.get("MASTER_ADDR");
    let port = match vars.get("MASTER_PORT") {
        None => None,
        Some(text) => match text.parse::<u16>() {
            Ok(port) if port != 0 => Some(port),
            _ => return Err(vars::malformed(ME, "MASTER_PORT", text, "a port from 1 to 65535")),
        },
    };
    let agent_holds_port =
        vars.get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|flag| flag.eq_ignore_ascii_case("true"));
    let meeting = match (address, port) {
        (Some(host), Some(_)) if agent_holds_port => Meeting::On(host.to_owned()),
        (Some(host), Some(port)) => Meeting::At(HostPort { host: host.to_owned(), port }),
        _ if world_size == 1 => Meeting::ThisHost,
        (None, _) => return Err(vars::half_set(ME, "RANK", "MASTER_ADDR")),
        (Some(_), None) => return Err(vars::half_set(ME, "RANK", "MASTER_PORT")),
    };
    let part = |name| vars.get(name).unwrap_or("none");
    let job_id = format!(
        "torchrun-{}-{}-{}-{}",
        part("MASTER_ADDR"),
        part("MASTER_PORT"),
        part("TORCHELASTIC_RUN_ID"),
        vars.get("TORCHELASTIC_RESTART_COUNT").unwrap_or("0"),
    );
    Ok(Some(Found {
        rank,
        world_size,
        local_rank: vars.number(ME, "LOCAL_RANK")?,
        local_size: vars.number(ME, "LOCAL_WORLD_SIZE")?,
        meeting,
        job_id,
    }))
}
