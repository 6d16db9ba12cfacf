//! How a rank's share is divided between its own threads and its progress thread.

use super::nearest::{Candidate, how_far};
use super::share::partition;
use super::{PROGRESS_CORE_FROM, Progress, Request, Threads};
use crate::model::cpuset::CpuSet;
use crate::model::link::{Distance, Part};
use crate::model::machine::Machine;

/// How far a CPU is from a network device; the nearest first.
type Far = (Distance, u32);

/// A rank's CPUs, and those of its progress thread.
pub(super) struct Split {
    pub(super) cpus: CpuSet,
    pub(super) progress: CpuSet,
    /// Why the progress thread is where it is, if it was asked to be apart.
    pub(super) reason: Option<String>,
}

/// The shares of all ranks, and what is left.
pub(super) struct Shares<'m> {
    machine: &'m Machine,
    threads: Threads,
    progress: Progress,
    shares: Vec<CpuSet>,
    /// What no rank has, core by core.
    spare: Vec<CpuSet>,
}

impl<'m> Shares<'m> {
    pub(super) fn new(
        machine: &'m Machine,
        request: &Request,
        allowed: &CpuSet,
        shares: impl Iterator<Item = CpuSet>,
    ) -> Self {
        let shares: Vec<CpuSet> = shares.collect();
        let left = shares.iter().fold(allowed.clone(), |left, share| left.minus(share));
        let spare = cores(machine, &left);
        Shares { machine, threads: request.threads, progress: request.progress, shares, spare }
    }

    /// Divides the share of a rank whose network device is `beside`. Each spare core is given away once.
    pub(super) fn split(&mut self, rank: usize, beside: Option<&Candidate<'_>>) -> Split {
        let share = self.shares[rank].clone();
        let alone = !self.shares.iter().enumerate().any(|(other, cpus)| other != rank && cpus.meets(&share));
        let (cpus, siblings) = match self.threads {
            Threads::OnePerCore if alone => first_threads(self.machine, &share),
            Threads::OnePerCore | Threads::All => (share, CpuSet::new()),
        };
        if self.progress == Progress::Shared {
            return Split { progress: cpus.clone(), cpus, reason: None };
        }
        // The last of the nearest: the first CPU of a machine has the most of the system's own work.
        let far = |core: &CpuSet| self.far(core, beside);
        let nearest = |cores: &[CpuSet]| cores.iter().rev().min_by_key(|core| far(core)).cloned();
        let own = cores(self.machine, &cpus);
        let best = own.iter().map(far).min();
        if let Some(spare) = nearest(&self.spare).filter(|spare| Some(far(spare)) <= best) {
            self.spare.retain(|core| *core != spare);
            return self.apart(cpus, spare, beside, "a core of no rank");
        }
        if alone
            && own.len() >= PROGRESS_CORE_FROM
            && let Some(core) = nearest(&own)
        {
            // With all its hardware threads, those left over included.
            let with_siblings = cores(self.machine, &cpus.or(&siblings));
            let whole = with_siblings.into_iter().find(|whole| core.inside(whole)).unwrap_or(core);
            return self.apart(cpus.minus(&whole), whole, beside, "a core of its own");
        }
        if let Some(sibling) = nearest(&cores(self.machine, &siblings)) {
            return self.apart(cpus, sibling, beside, "a hardware thread left over");
        }
        let reason = "progress thread on the same CPUs, too few to leave it a core".to_owned();
        Split { progress: cpus.clone(), cpus, reason: Some(reason) }
    }

    fn apart(&self, cpus: CpuSet, progress: CpuSet, beside: Option<&Candidate<'_>>, what: &str) -> Split {
        let place = beside.map_or(String::new(), |candidate| {
            let (step, _) = self.far(&progress, Some(candidate));
            format!(" ({} {step})", candidate.name)
        });
        let reason = Some(format!("progress thread on {progress}, {what}{place}"));
        Split { cpus, progress, reason }
    }

    /// From the CPUs of a core to the nearest place of a network device.
    fn far(&self, core: &CpuSet, beside: Option<&Candidate<'_>>) -> Far {
        const FARTHEST: Far = (Distance::Network, u32::MAX);
        let (Some(candidate), Some(cpu)) = (beside, core.first()) else { return FARTHEST };
        let far = candidate.places.iter().filter_map(|&place| how_far(self.machine, Part::Cpu(cpu), place));
        far.min().unwrap_or(FARTHEST)
    }
}

/// `cpus` core by core.
fn cores(machine: &Machine, cpus: &CpuSet) -> Vec<CpuSet> {
    let sets: Vec<CpuSet> = machine.parts().cores.iter().map(|core| core.cpus.clone()).collect();
    partition(&sets, cpus)
}

/// The first hardware thread of each core, and the others.
fn first_threads(machine: &Machine, share: &CpuSet) -> (CpuSet, CpuSet) {
    let first = cores(machine, share).iter().fold(CpuSet::new(), |sum, core| {
        let first = core.first().and_then(|cpu| CpuSet::of([cpu]).ok());
        first.map_or(sum.clone(), |first| sum.or(&first))
    });
    let others = share.minus(&first);
    (first, others)
}
