//! Where this rank's threads run and its memory comes from, as `RINGWAY_PIN` and its relatives want it.
//!
//! The calling thread is bound, and with it the threads that it starts later, but for the progress thread, which has CPUs
//! of its own where there are enough; the agent's thread, started before, stays free. Nothing is bound beyond the mask
//! that the process was given. Memory is preferred, not bound, to the rank's NUMA node: a full node costs time, and no
//! process.

use crate::launch::{Launch, Launcher};
use crate::settings::{Pin, Settings};
use ringway_collectives::engine::{OnProgressThread, Progress as MovedOnBy};
use ringway_topology::host::pin::{
    MemoryPolicy, PinError, parallelism, pin_current_thread, set_memory_policy,
};
use ringway_topology::host::{DiscoverError, discover_quickly};
use ringway_topology::model::cpuset::{CpuSet, CpuSetError};
use ringway_topology::model::ids::LocalRank;
use ringway_topology::model::machine::Machine;
use ringway_topology::model::order::Site;
use ringway_topology::model::place::{PlaceError, Placement, Progress, Request, place};
use std::sync::Arc;

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

/// What is known of the job's ranks on this host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Neighbours {
    /// This rank's number among them.
    local_rank: Option<LocalRank>,
    /// How many they are.
    local_size: Option<u32>,
    /// What started them: `ringway run` leaves it to them where they run.
    launcher: Launcher,
}

impl From<&Launch> for Neighbours {
    fn from(launch: &Launch) -> Neighbours {
        Neighbours { local_rank: launch.local_rank, local_size: launch.local_size, launcher: launch.found_by }
    }
}

/// What a rank is bound to. Nothing where nothing is to be bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Binding {
    /// CPUs of the calling thread.
    cpus: Option<CpuSet>,
    /// CPUs of the progress thread, where they differ.
    progress: Option<CpuSet>,
    /// The NUMA node to take memory from.
    node: Option<u32>,
    /// RDMA devices next to the rank's accelerator; empty where it has none.
    pub(super) near_devices: Vec<String>,
    /// Where in the machine that is; the machine has no name yet.
    pub(super) site: Site,
}

/// What the placement of `ranks` ranks on `machine` is asked for by these settings.
#[must_use]
pub fn request(machine: &Machine, ranks: u32, settings: &Settings) -> Request {
    let gpus = &machine.parts().gpus;
    let devices = match settings.pin_accelerators && gpus.len() >= ranks as usize {
        true => gpus.iter().take(ranks as usize).map(|gpu| gpu.pci).collect(),
        false => Vec::new(),
    };
    let progress = match settings.pin_progress {
        // A thread that is not made needs no core.
        Pin::Auto | Pin::Spread if settings.progress == MovedOnBy::Thread => Progress::Apart,
        _ => Progress::Shared,
    };
    Request { devices, progress, threads: settings.pin_threads, ..Request::plain(machine, ranks) }
}

impl Binding {
    /// What the settings bind this rank to. Nothing is bound yet.
    ///
    /// # Errors
    /// [`PinningError`] when it cannot be bound as asked.
    pub(super) fn plan(settings: &Settings, here: Neighbours) -> Result<Binding, PinningError> {
        let mut binding = match &settings.pin {
            Pin::Off => Binding::default(),
            Pin::Cpus(cpus) => {
                Binding { cpus: Some(CpuSet::of(cpus.iter().copied())?), ..Binding::default() }
            }
            Pin::Spread => match (here.local_rank, here.local_size) {
                (Some(rank), Some(ranks)) => share(&discover_quickly()?, rank, ranks, settings)?,
                _ => return Err(PinningError::NoLocalRank { launcher: here.launcher }),
            },
            // A convenience: what stands in its way leaves the rank unbound.
            Pin::Auto => own_core(settings, here).unwrap_or_else(|why| {
                tracing::info!(%why, "not bound to processors");
                Binding::default()
            }),
        };
        if let Pin::Cpus(cpus) = &settings.pin_progress {
            binding.progress = Some(CpuSet::of(cpus.iter().copied())?);
        }
        Ok(binding)
    }

    /// Binds the calling thread, and what it starts later.
    ///
    /// # Errors
    /// When the kernel refuses what was asked for by name, or `RINGWAY_PIN=spread`.
    pub(super) fn bind(&self, wanted: &Pin) -> Result<(), PinningError> {
        let Some(cpus) = &self.cpus else { return Ok(()) };
        match pin_current_thread(cpus) {
            Err(why) if *wanted == Pin::Auto => tracing::info!(%why, "not bound to processors"),
            bound => bound?,
        }
        self.prefer_node();
        Ok(())
    }

    /// Memory that the calling thread touches first comes from the rank's node, while there is some.
    fn prefer_node(&self) {
        let preferred = self.node.map_or(Ok(()), |node| set_memory_policy(MemoryPolicy::Prefer(node)));
        if let Err(why) = preferred {
            // Memory is taken near the thread that touches it first, which is bound.
            tracing::debug!(%why, "memory is not preferred from a NUMA node");
        }
    }

    /// Binds the progress thread when it starts.
    pub(super) fn on_progress_thread(&self) -> Option<OnProgressThread> {
        let cpus = self.progress.clone()?;
        let binding = self.clone();
        Some(OnProgressThread(Arc::new(move || {
            if let Err(why) = pin_current_thread(&cpus) {
                tracing::warn!(%why, "the progress thread is not bound: see RINGWAY_PIN_PROGRESS");
            }
            binding.prefer_node();
        })))
    }

    /// The NUMA node on which this rank's threads run, where they run on one alone and the machine has several.
    pub(super) fn near_node(&self) -> Option<u32> {
        let machine = discover_quickly().ok()?;
        let cpus = self.cpus.as_ref().unwrap_or(&machine.parts().allowed);
        let around = machine.node_around(cpus)?;
        (machine.parts().nodes.len() > 1).then_some(around.index)
    }
}

/// A rank's share of the machine.
fn share(machine: &Machine, rank: LocalRank, ranks: u32, settings: &Settings) -> Result<Binding, PlaceError> {
    let mut placements = place(machine, &request(machine, ranks, settings))?;
    let mine = placements.iter().position(|placement| placement.rank == rank);
    Ok(mine.map_or_else(Binding::default, |at| of(machine, placements.swap_remove(at))))
}

fn of(machine: &Machine, placement: Placement) -> Binding {
    let site = Site::of("", machine, &placement);
    tracing::info!(reason = %placement.reason(), "bound to processors");
    let Placement { cpus, progress, device, node, infiniband, .. } = placement;
    let near_devices = if device.is_some() { infiniband } else { Vec::new() };
    Binding { progress: (progress != cpus).then_some(progress), cpus: Some(cpus), node, near_devices, site }
}

/// What a rank that `ringway run` started is bound to, if all local ranks can have a core of their own. Other launchers
/// bind their ranks by rules of their own.
fn own_core(settings: &Settings, here: Neighbours) -> Result<Binding, PinningError> {
    let (true, Some(rank), Some(ranks @ 2..)) =
        (here.launcher == Launcher::Ringway, here.local_rank, here.local_size)
    else {
        return Ok(Binding::default());
    };
    // The time that control groups grant counts as well.
    if parallelism()?.effective < ranks {
        return Ok(Binding::default());
    }
    let machine = discover_quickly()?;
    if has_core_each(&machine, ranks) {
        Ok(share(&machine, rank, ranks, settings)?)
    } else {
        Ok(Binding::default())
    }
}

/// Whether each of `ranks` can have a core that no other has, with all its hardware threads.
fn has_core_each(machine: &Machine, ranks: u32) -> bool {
    let parts = machine.parts();
    let usable = parts.cores.iter().filter(|core| !core.cpus.and(&parts.allowed).is_empty());
    usable.count() >= ranks as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{Explicit, Here, Vars};
    use crate::settings::Settings;
    use ringway_topology::host::pin::{allowed_cpus, memory_policy};

    /// What [`join`](crate::runtime::join) does.
    fn pin(settings: &Settings, launch: &Launch) -> Result<Binding, PinningError> {
        let binding = Binding::plan(settings, launch.into())?;
        binding.bind(&settings.pin)?;
        Ok(binding)
    }

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
            pin(&settings, &launch).unwrap();
            (one, allowed_cpus().unwrap())
        });
        let (one, got) = bound.join().unwrap();
        assert_eq!(got, CpuSet::of([one]).unwrap());
    }

    #[test]
    fn processors_that_are_not_there_and_ranks_without_a_number_are_errors() {
        let (settings, one) = launch(&[("RINGWAY_PIN", "8191")]);
        assert!(matches!(pin(&settings, &one), Err(PinningError::Kernel(_))));
        let (settings, mut lost) = launch(&[("RINGWAY_PIN", "spread")]);
        lost.local_rank = None;
        assert!(matches!(pin(&settings, &lost), Err(PinningError::NoLocalRank { .. })));
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
                pin(&settings, &launch).unwrap();
                allowed_cpus().unwrap()
            });
            bound.join().unwrap()
        };
        let all = allowed_cpus().unwrap();
        let one = CpuSet::of(all.iter().take(1)).unwrap();
        let fits = parallelism().unwrap().effective >= 2 && has_core_each(&discover_quickly().unwrap(), 2);
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

    #[test]
    fn threads_and_memory_are_where_the_plan_says() {
        let machine = discover_quickly().unwrap();
        let ranks = 2;
        let placements = place(&machine, &request(&machine, ranks, &Settings::default())).unwrap();
        for placement in placements {
            let rank = placement.rank;
            // On a thread of its own: the binding stays.
            let bound = std::thread::spawn(move || {
                let (settings, mut launch) = launch(&[("RINGWAY_PIN", "spread")]);
                (launch.local_rank, launch.local_size) = (Some(rank), Some(ranks));
                let binding = pin(&settings, &launch).unwrap();
                let here = (allowed_cpus().unwrap(), memory_policy());
                // The progress thread is started by the bound one.
                let begin = binding.on_progress_thread();
                let progress = std::thread::spawn(move || {
                    begin.iter().for_each(|begin| (begin.0)());
                    allowed_cpus().unwrap()
                });
                (here, progress.join().unwrap())
            });
            let ((cpus, memory), progress) = bound.join().unwrap();
            assert_eq!((&cpus, &progress), (&placement.cpus, &placement.progress), "{}", placement.reason());
            // A kernel without NUMA or a container's filter of system calls keeps the policy as it was.
            if let (Ok(Some(MemoryPolicy::Prefer(node))), Some(planned)) = (memory, placement.node) {
                assert_eq!(node, planned);
            }
        }
    }

    #[test]
    fn the_progress_thread_goes_where_it_is_told_to() {
        let one = allowed_cpus().unwrap().last().unwrap();
        let text = one.to_string();
        let (settings, launch) = launch(&[("RINGWAY_PIN", "off"), ("RINGWAY_PIN_PROGRESS", text.as_str())]);
        let binding = Binding::plan(&settings, (&launch).into()).unwrap();
        let begin = binding.on_progress_thread().expect("it is told to go somewhere");
        let bound = std::thread::spawn(move || {
            (begin.0)();
            allowed_cpus().unwrap()
        });
        assert_eq!(bound.join().unwrap(), CpuSet::of([one]).unwrap());
        let (settings, launch) = self::launch(&[("RINGWAY_PIN", "off")]);
        assert!(Binding::plan(&settings, (&launch).into()).unwrap().on_progress_thread().is_none());
    }

    #[test]
    fn ranks_have_accelerators_where_there_are_enough() {
        let xml = include_str!("../../../topology/shapes/dgx-h100.xml");
        let machine = ringway_topology::host::from_xml(xml).unwrap();
        let devices = |ranks, settings: &Settings| request(&machine, ranks, settings).devices.len();
        assert_eq!([8, 4, 9].map(|ranks| devices(ranks, &Settings::default())), [8, 4, 0]);
        let (off, _) = launch(&[("RINGWAY_PIN_ACCELERATORS", "off"), ("RINGWAY_PIN_THREADS", "one")]);
        assert_eq!(devices(8, &off), 0);
        let mine = share(&machine, LocalRank(5), 8, &Settings::default()).unwrap();
        assert_eq!((mine.near_devices.join(" "), mine.node), ("mlx5_9".to_owned(), Some(1)));
        assert_eq!(mine.cpus.unwrap().to_string(), "70-82,182-194");
        assert_eq!(mine.progress.unwrap().to_string(), "83,195");
        let bare = share(&machine, LocalRank(5), 8, &off).unwrap();
        assert!(bare.near_devices.is_empty());
        assert_eq!(bare.cpus.unwrap().to_string(), "70-82", "one thread of each core");
        assert_eq!(bare.progress.unwrap().to_string(), "83,195", "a whole core");
        let (caller, _) = launch(&[("RINGWAY_PROGRESS", "caller")]);
        let whole = share(&machine, LocalRank(5), 8, &caller).unwrap();
        assert_eq!(
            whole.cpus.unwrap().to_string(),
            "70-83,182-195",
            "no core is kept for a thread that is not made"
        );
        assert_eq!(whole.progress, None);
    }
}
