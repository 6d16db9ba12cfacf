//! Where this rank's threads run, as `RINGWAY_PIN` wants it.
//!
//! The calling thread is bound, and with it the threads that it starts later; the agent's thread, started before, stays
//! free. That is why it is off unless asked for.

use super::transports::Neighbours;
use crate::launch::Launch;
use crate::settings::Pin;
use ringway_topology::host::pin::{PinError, pin_current_thread};
use ringway_topology::host::{DiscoverError, discover};
use ringway_topology::model::cpuset::{CpuSet, CpuSetError};
use ringway_topology::model::place::{PlaceError, Request, place};

/// Why a rank was not bound as asked.
#[derive(Debug, thiserror::Error)]
pub enum PinningError {
    /// The machine could not be found out.
    #[error("{0}; RINGWAY_PIN=off leaves threads where the system puts them")]
    Discover(#[from] DiscoverError),
    /// The machine has no place for so many ranks.
    #[error("{0}; RINGWAY_PIN=off leaves threads where the system puts them")]
    Place(#[from] PlaceError),
    /// The list names a processor that cannot be.
    #[error("RINGWAY_PIN: {0}")]
    List(#[from] CpuSetError),
    /// The kernel refused.
    #[error("RINGWAY_PIN: {0}")]
    Kernel(#[from] PinError),
    /// The launcher does not tell which of the host's ranks this is.
    #[error(
        "RINGWAY_PIN=auto needs this rank's number on its host, which {launcher} does not tell: set RINGWAY_LOCAL_RANK \
         and RINGWAY_LOCAL_SIZE, or name the processors"
    )]
    NoLocalRank {
        /// The launcher.
        launcher: crate::launch::Launcher,
    },
}

/// Binds the calling thread.
///
/// # Errors
/// [`PinningError`] when it cannot be bound as asked.
pub fn pin(wanted: &Pin, launch: &Launch) -> Result<(), PinningError> {
    match wanted {
        Pin::Off => Ok(()),
        Pin::Cpus(cpus) => Ok(pin_current_thread(&CpuSet::of(cpus.iter().copied())?)?),
        Pin::Auto => {
            let (Some(rank), Some(ranks)) = (launch.local_rank, launch.local_size) else {
                return Err(PinningError::NoLocalRank { launcher: launch.found_by });
            };
            let machine = discover()?;
            let placements = place(&machine, &Request::plain(&machine, ranks))?;
            if let Some(mine) = placements.iter().find(|p| p.rank == rank) {
                tracing::info!(reason = %mine.reason, "pinned");
                pin_current_thread(&mine.cpus)?;
            }
            Ok(())
        }
    }
}

/// The NUMA node on which this rank's threads run, where they run on one alone and the machine has several.
pub(super) fn node(wanted: &Pin, here: Neighbours) -> Option<u32> {
    let machine = discover().ok()?;
    let cpus = match (wanted, here.local_rank, here.local_size) {
        (Pin::Cpus(cpus), ..) => CpuSet::of(cpus.iter().copied()).ok()?,
        (Pin::Auto, Some(rank), Some(ranks)) => {
            let placements = place(&machine, &Request::plain(&machine, ranks)).ok()?;
            placements.into_iter().find(|p| p.rank == rank)?.cpus
        }
        _ => machine.parts().allowed.clone(),
    };
    let nodes = &machine.parts().nodes;
    let around = nodes.iter().find(|node| !cpus.is_empty() && cpus.inside(&node.cpus))?;
    (nodes.len() > 1).then_some(around.index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{Explicit, Here, Vars};
    use crate::settings::Settings;
    use ringway_topology::host::pin::allowed_cpus;

    fn launch(pairs: &[(&str, &str)]) -> (Settings, Launch) {
        let settings = Settings::from_pairs(pairs.iter().copied()).unwrap();
        let launch =
            Launch::discover(&Explicit::default(), &settings, &Vars::default(), &Here::default()).unwrap();
        (settings, launch)
    }

    #[test]
    fn a_processor_that_is_asked_for_is_the_one_that_runs_it() {
        // On a thread of its own: the binding stays.
        let bound = std::thread::spawn(|| {
            let one = allowed_cpus().unwrap().last().unwrap();
            let text = one.to_string();
            let (settings, launch) = launch(&[("RINGWAY_PIN", text.as_str())]);
            pin(&settings.pin, &launch).unwrap();
            (one, allowed_cpus().unwrap())
        });
        let (one, got) = bound.join().unwrap();
        assert_eq!(got, CpuSet::of([one]).unwrap());
    }

    #[test]
    fn processors_that_are_not_there_and_ranks_without_a_number_are_errors() {
        let (settings, one) = launch(&[("RINGWAY_PIN", "8191")]);
        assert!(matches!(pin(&settings.pin, &one), Err(PinningError::Kernel(_))));
        let (settings, mut lost) = launch(&[("RINGWAY_PIN", "auto")]);
        lost.local_rank = None;
        assert!(matches!(pin(&settings.pin, &lost), Err(PinningError::NoLocalRank { .. })));
    }
}
