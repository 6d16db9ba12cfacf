//! Positions cut into runs of neighbours: those of one host, or of one NUMA node.

#![forbid(unsafe_code)]

use super::step::Rank;
use std::sync::Arc;

/// All positions from 0 on, cut into runs. Finding the run of a position allocates nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Runs(Cut);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Cut {
    /// `each` positions in every run; the last may have fewer.
    Even { positions: u32, each: u32 },
    /// Where each run starts, in order, and one past the last position.
    Uneven(Arc<[u32]>),
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Which of the runs it is, from 0.
    pub number: u32,
    /// Its first position.
    pub first: Rank,
    /// How many positions it has; at least 1.
    pub len: u32,
}

impl Run {
    /// Whether it holds a position.
    pub const fn holds(&self, position: Rank) -> bool {
        self.first <= position && position - self.first < self.len
    }
}

impl Runs {
    /// Runs of `each` positions, the last of what is left. `None` for no positions, or none in a run.
    pub fn even(positions: u32, each: u32) -> Option<Runs> {
        (positions > 0 && each > 0).then(|| Runs(Cut::Even { positions, each: each.min(positions) }))
    }

    /// Runs of these lengths, one after the other. `None` where there is none, one is empty, or all together are more than
    /// a `u32` counts.
    pub fn of(lengths: &[u32]) -> Option<Runs> {
        let (each, (last, others)) = (*lengths.first()?, lengths.split_last()?);
        let positions = lengths.iter().try_fold(0u32, |sum, len| sum.checked_add(*len))?;
        if lengths.contains(&0) {
            return None;
        }
        if others.iter().all(|len| *len == each) && *last <= each {
            return Runs::even(positions, each);
        }
        let mut starts = Vec::with_capacity(lengths.len() + 1);
        starts.push(0);
        for len in lengths {
            starts.push(starts[starts.len() - 1] + len);
        }
        Some(Runs(Cut::Uneven(starts.into())))
    }

    /// How many positions there are.
    pub fn positions(&self) -> u32 {
        match &self.0 {
            Cut::Even { positions, .. } => *positions,
            Cut::Uneven(starts) => starts.last().copied().unwrap_or(0),
        }
    }

    /// How many runs there are.
    pub fn count(&self) -> u32 {
        match &self.0 {
            Cut::Even { positions, each } => positions.div_ceil(*each),
            Cut::Uneven(starts) => starts.len() as u32 - 1,
        }
    }

    /// The run with this number, which is below [`Runs::count`].
    pub fn run(&self, number: u32) -> Run {
        match &self.0 {
            Cut::Even { positions, each } => {
                let first = number * each;
                Run { number, first, len: (*each).min(positions - first) }
            }
            Cut::Uneven(starts) => {
                let (first, past) = (starts[number as usize], starts[number as usize + 1]);
                Run { number, first, len: past - first }
            }
        }
    }

    /// The run of a position, which is below [`Runs::positions`].
    pub fn find(&self, position: Rank) -> Run {
        match &self.0 {
            Cut::Even { each, .. } => self.run(position / each),
            Cut::Uneven(starts) => self.run(starts.partition_point(|start| *start <= position) as u32 - 1),
        }
    }

    /// Positions of the shortest run.
    pub fn shortest(&self) -> u32 {
        self.lengths().min().unwrap_or(0)
    }

    /// Positions of the longest run.
    pub fn longest(&self) -> u32 {
        self.lengths().max().unwrap_or(0)
    }

    fn lengths(&self) -> impl Iterator<Item = u32> + '_ {
        // Of even runs only the last may differ.
        let step = if matches!(self.0, Cut::Even { .. }) { (self.count() - 1).max(1) } else { 1 };
        (0..self.count()).step_by(step as usize).map(|number| self.run(number).len)
    }

    /// Whether every run of `finer` lies within one of these, and there are more of those.
    pub fn is_cut_by(&self, finer: &Runs) -> bool {
        let within = |number| {
            let run = finer.run(number);
            self.find(run.first).holds(run.first + run.len - 1)
        };
        finer.positions() == self.positions()
            && finer.count() > self.count()
            && (0..finer.count()).all(within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_is_in_the_run_that_says_so() {
        for lengths in [&[3u32][..], &[1, 1, 1], &[4, 4, 2], &[2, 4, 4], &[1, 5, 2, 2], &[7, 1]] {
            let runs = Runs::of(lengths).unwrap();
            assert_eq!(runs.count() as usize, lengths.len());
            assert_eq!(
                (runs.shortest(), runs.longest()),
                (*lengths.iter().min().unwrap(), *lengths.iter().max().unwrap())
            );
            let mut first = 0;
            for (number, len) in (0..).zip(lengths) {
                let run = Run { number, first, len: *len };
                assert_eq!(runs.run(number), run);
                for position in first..first + len {
                    assert_eq!(runs.find(position), run, "{lengths:?} at {position}");
                }
                first += len;
            }
            assert_eq!(runs.positions(), first);
        }
    }

    #[test]
    fn what_is_no_cut_is_refused() {
        for lengths in [&[][..], &[0], &[2, 0, 1], &[u32::MAX, 1]] {
            assert_eq!(Runs::of(lengths), None, "{lengths:?}");
        }
        assert_eq!(Runs::even(0, 1), None);
        assert_eq!(Runs::of(&[2, 2, 1]), Runs::even(5, 2));
        assert!(Runs::of(&[4, 2]).unwrap().is_cut_by(&Runs::of(&[2, 2, 1, 1]).unwrap()));
        assert!(!Runs::of(&[4, 2]).unwrap().is_cut_by(&Runs::of(&[3, 3]).unwrap()));
        assert!(!Runs::of(&[4, 2]).unwrap().is_cut_by(&Runs::of(&[3, 1, 1]).unwrap()));
    }
}
