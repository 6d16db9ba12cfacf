//! What becomes of an elastic job when a rank fails. Pure.
//!
//! - I1: a rank that failed is started again as long as restarts are left; then the others go on without it, as long as they
//!   are enough; else the job ends as any other does.
//! - I2: a program that cannot be run, and a rank that fails when others have ended well, are not started again.

use super::ending::Outcome;

/// From this exit code on a program was not run, as in shells: 126 cannot be run, 127 is not there; 125 is our own failure.
const NOT_RUN: [u8; 3] = [125, 126, 127];

/// What to do about a rank that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Start it again; so many restarts are left after that.
    Restart(u32),
    /// Go on without it.
    Without,
    /// End the job.
    End,
}

/// The limits of an elastic job, and what is left of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elastic {
    least: u32,
    restarts: u32,
    well: bool,
}

impl Elastic {
    /// A job that goes on with `least` ranks, in which failed ranks are started again `restarts` times in all.
    pub(super) fn new(least: u32, restarts: u32) -> Self {
        Elastic { least, restarts, well: false }
    }

    /// A rank ended; `running` others go on. `None`: nothing is to be done, as it ended well.
    pub(super) fn ended(&mut self, outcome: Outcome, running: usize) -> Option<Fate> {
        if outcome.is_success() {
            self.well = true;
            return None;
        }
        let never = self.well || matches!(outcome, Outcome::Exited(code) if NOT_RUN.contains(&code));
        Some(match self.restarts.checked_sub(1) {
            _ if never => Fate::End,
            Some(left) => {
                self.restarts = left;
                Fate::Restart(left)
            }
            None if running >= self.least as usize => Fate::Without,
            None => Fate::End,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: Outcome = Outcome::Killed(9);

    /// I1.
    #[test]
    fn a_rank_is_started_again_then_done_without() {
        let mut job = Elastic::new(2, 2);
        assert_eq!(job.ended(KILLED, 3), Some(Fate::Restart(1)));
        assert_eq!(job.ended(Outcome::Exited(1), 0), Some(Fate::Restart(0)), "whoever is left");
        assert_eq!(job.ended(KILLED, 3), Some(Fate::Without));
        assert_eq!(job.ended(KILLED, 2), Some(Fate::Without));
        assert_eq!(job.ended(KILLED, 1), Some(Fate::End));
    }

    /// I2.
    #[test]
    fn what_cannot_be_run_and_what_comes_late_is_not_started_again() {
        for code in NOT_RUN {
            assert_eq!(Elastic::new(1, 9).ended(Outcome::Exited(code), 3), Some(Fate::End));
        }
        let mut job = Elastic::new(1, 9);
        assert_eq!(job.ended(Outcome::Exited(0), 3), None);
        assert_eq!(job.ended(KILLED, 2), Some(Fate::End));
    }
}
