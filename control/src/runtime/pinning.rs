//! Where this rank's threads run, as `RINGWAY_PIN` wants it.
//!
//! The calling thread is bound, and with it the threads that it starts later; the agent's thread, started before, stays
//! free. Nothing is bound beyond the mask that the process was given.

use super::transports::Neighbours;
use crate::launch::Launch;
use crate::settings::Pin;
use ringway_topology::host::pin::{PinError, parallelism, pin_current_thread};
use ringway_topology::host::{DiscoverError, discover, discover_processors};
use ringway_topology::model::cpuset::{CpuSet, CpuSetError};
use ringway_topology::model::ids::LocalRank;
use ringway_topology::model::machine::Machine;
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
        "RINGWAY_PIN=spread needs this rank's number on its host, which {launcher} does not tell: set RINGWAY_LOCAL_RANK \
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
        Pin::Spread => {
            let (Some(rank), Some(ranks)) = (launch.local_rank, launch.local_size) else {
                return Err(PinningError::NoLocalRank { launcher: launch.found_by });
            };
            match share(&discover_processors()?, rank, ranks)? {
                Some(cpus) => Ok(pin_current_thread(&cpus)?),
                None => Ok(()),
            }
        }
        Pin::Auto => {
            // A convenience: what stands in its way leaves the rank unbound.
            if let Err(why) = own_core(launch.into()).and_then(|cpus| match cpus {
                Some(cpus) => Ok(pin_current_thread(&cpus)?),
                None => Ok(()),
            }) {
                tracing::info!(%why, "not bound to processors");
            }
            Ok(())
        }
    }
}

/// A rank's share of the processors that it may use.
fn share(machine: &Machine, rank: LocalRank, ranks: u32) -> Result<Option<CpuSet>, PlaceError> {
    let placements = place(machine, &Request::plain(machine, ranks))?;
    Ok(placements.into_iter().find(|p| p.rank == rank).map(|mine| {
        tracing::info!(reason = %mine.reason, "bound to processors");
        mine.cpus
    }))
}

/// Where a rank that `ringway run` started runs, if all local ranks can have a core of their own. Other launchers bind
/// their ranks by rules of their own.
fn own_core(here: Neighbours) -> Result<Option<CpuSet>, PinningError> {
    let (true, Some(rank), Some(ranks @ 2..)) = (here.by_ringway, here.local_rank, here.local_size) else {
        return Ok(None);
    };
    // The time that control groups grant counts as well.
    if parallelism()?.effective < ranks {
        return Ok(None);
    }
    let machine = discover_processors()?;
    if has_core_each(&machine, ranks) { Ok(share(&machine, rank, ranks)?) } else { Ok(None) }
}

/// Whether each of `ranks` can have a core that no other has, with all its hardware threads.
fn has_core_each(machine: &Machine, ranks: u32) -> bool {
    let parts = machine.parts();
    let usable = parts.cores.iter().filter(|core| !core.cpus.and(&parts.allowed).is_empty());
    usable.count() >= ranks as usize
}

/// The NUMA node on which this rank's threads run, where they run on one alone and the machine has several.
pub(super) fn node(wanted: &Pin, here: Neighbours) -> Option<u32> {
    let machine = discover().ok()?;
    let cpus = match (wanted, here.local_rank, here.local_size) {
        (Pin::Cpus(cpus), ..) => CpuSet::of(cpus.iter().copied()).ok()?,
        (Pin::Spread, Some(rank), Some(ranks)) => share(&machine, rank, ranks).ok()??,
        (Pin::Auto, ..) => own_core(here).ok().flatten().unwrap_or_else(|| machine.parts().allowed.clone()),
        _ => machine.parts().allowed.clone(),
    };
    let nodes = &machine.parts().nodes;
    let around = nodes.iter().find(|node| !cpus.is_empty() && cpus.inside(&node.cpus))?;
    (nodes.len() > 1).then_some(around.index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{Explicit, Here, Launcher, Vars};
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
        let (settings, mut lost) = launch(&[("RINGWAY_PIN", "spread")]);
        lost.local_rank = None;
        assert!(matches!(pin(&settings.pin, &lost), Err(PinningError::NoLocalRank { .. })));
    }

    #[test]
    fn ranks_are_bound_by_default_where_each_has_a_core_and_never_beyond_their_mask() {
        let bound = |allowed: CpuSet, found_by: Launcher, rank: u32, ranks: u32| {
            // On a thread of its own: the binding stays.
            let bound = std::thread::spawn(move || {
                pin_current_thread(&allowed).unwrap();
                let (settings, mut launch) = launch(&[]);
                launch.found_by = found_by;
                (launch.local_rank, launch.local_size) = (Some(LocalRank(rank)), Some(ranks));
                pin(&settings.pin, &launch).unwrap();
                allowed_cpus().unwrap()
            });
            bound.join().unwrap()
        };
        let all = allowed_cpus().unwrap();
        let one = CpuSet::of(all.iter().take(1)).unwrap();
        let fits = parallelism().unwrap().effective >= 2 && has_core_each(&discover_processors().unwrap(), 2);
        let (first, second) =
            (bound(all.clone(), Launcher::Ringway, 0, 2), bound(all.clone(), Launcher::Ringway, 1, 2));
        if fits {
            assert!(
                first.and(&second).is_empty() && first.inside(&all) && second.inside(&all),
                "{first} {second}"
            );
        } else {
            assert_eq!((&first, &second), (&all, &all));
        }
        // Too many ranks, another launcher, a mask of one, a rank alone: all is left as it was.
        assert_eq!(bound(all.clone(), Launcher::Ringway, 0, 9000), all);
        assert_eq!(bound(all.clone(), Launcher::OpenMpi, 0, 2), all);
        assert_eq!(bound(one.clone(), Launcher::Ringway, 1, 2), one);
        assert_eq!(bound(all.clone(), Launcher::Ringway, 0, 1), all);
    }

    #[test]
    fn threads_of_one_core_are_no_two_cores() {
        let machine = ringway_topology::host::from_synthetic("core:2 pu:2");
        // Without hwloc there are no made-up machines.
        let Ok(machine) = machine else { return };
        assert!(has_core_each(&machine, 2) && !has_core_each(&machine, 3));
        let half = machine.with_allowed(CpuSet::of([0, 1]).unwrap()).unwrap();
        assert!(has_core_each(&half, 1) && !has_core_each(&half, 2));
    }
}
