//! When the ranks are told to end, and what the launcher's exit code is. Pure: events and a clock in, steps out.
//!
//! - I1: the exit code is that of the first rank that failed, whatever the others do when they are ended.
//! - I2: after a failure every phase has a deadline, so the launcher ends though ranks ignore SIGTERM.
//! - I3: ranks that the user asked to end (a forwarded signal) get longer than ranks left over by a failure, since
//!   they may be saving their work; a second signal cuts that short, a third kills.

use std::time::Duration;

/// How long ranks have to end by themselves after a signal from the user was forwarded to them.
pub(super) const ASKED_GRACE: Duration = Duration::from_secs(30);

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// With an exit code.
    Exited(u8),
    /// By a signal.
    Killed(u8),
}

impl Outcome {
    pub(super) fn is_success(self) -> bool {
        self == Outcome::Exited(0)
    }

    /// The code that a shell would give it.
    pub(super) fn code(self) -> u8 {
        match self {
            Outcome::Exited(code) => code,
            Outcome::Killed(signal) => 128u8.saturating_add(signal),
        }
    }
}

/// What to do to the ranks that are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Send SIGTERM.
    Terminate,
    /// Send SIGKILL.
    Kill,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Running,
    /// The user's signal was forwarded.
    Asked,
    /// A rank failed; the others may print their own errors.
    Failed,
    Terminating,
    Killing,
}

/// The state of a run's end. Times count from the start of the run.
#[derive(Debug)]
pub(super) struct Ending {
    grace: Duration,
    phase: Phase,
    until: Option<Duration>,
    first: Option<(u32, Outcome)>,
}

impl Ending {
    pub(super) fn new(grace: Duration) -> Self {
        Ending { grace, phase: Phase::Running, until: None, first: None }
    }

    /// A rank ended. Returns whether it is the first that failed.
    pub(super) fn ended(&mut self, rank: u32, outcome: Outcome, now: Duration) -> bool {
        if outcome.is_success() || self.first.is_some() {
            return false;
        }
        self.first = Some((rank, outcome));
        if self.phase == Phase::Running {
            self.enter(Phase::Failed, now + self.grace);
        }
        true
    }

    /// A signal that asks to end was forwarded.
    pub(super) fn asked(&mut self, now: Duration) -> Option<Step> {
        match self.phase {
            Phase::Running => {
                self.enter(Phase::Asked, now + ASKED_GRACE.max(self.grace));
                None
            }
            Phase::Asked | Phase::Failed => Some(self.terminate(now)),
            Phase::Terminating | Phase::Killing => Some(self.kill()),
        }
    }

    /// All ranks have ended and processes that they started have not.
    pub(super) fn ranks_gone(&mut self, now: Duration) -> Option<Step> {
        (self.phase < Phase::Terminating).then(|| self.terminate(now))
    }

    /// The step whose time has come.
    pub(super) fn due(&mut self, now: Duration) -> Option<Step> {
        if self.until.is_none_or(|until| now < until) {
            return None;
        }
        Some(if self.phase < Phase::Terminating { self.terminate(now) } else { self.kill() })
    }

    /// When [`Ending::due`] has something to say.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.until
    }

    /// I1.
    pub(super) fn exit_code(&self) -> u8 {
        self.first.map_or(0, |(_, outcome)| outcome.code())
    }

    fn terminate(&mut self, now: Duration) -> Step {
        self.enter(Phase::Terminating, now + self.grace);
        Step::Terminate
    }

    fn kill(&mut self) -> Step {
        self.phase = Phase::Killing;
        self.until = None;
        Step::Kill
    }

    fn enter(&mut self, phase: Phase, until: Duration) {
        self.phase = phase;
        self.until = Some(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn success_needs_no_end() {
        let mut ending = Ending::new(s(2));
        assert!(!ending.ended(0, Outcome::Exited(0), s(5)));
        assert_eq!(ending.deadline(), None);
        assert_eq!(ending.exit_code(), 0);
    }

    /// I1 and I2.
    #[test]
    fn first_failure_ends_the_rest_and_gives_the_code() {
        let mut ending = Ending::new(s(2));
        assert!(ending.ended(3, Outcome::Exited(7), s(10)));
        assert!(!ending.ended(1, Outcome::Killed(15), s(11)));
        assert_eq!(ending.due(s(11)), None);
        assert_eq!(ending.due(s(12)), Some(Step::Terminate));
        assert_eq!(ending.due(s(13)), None);
        assert_eq!(ending.due(s(14)), Some(Step::Kill));
        assert_eq!(ending.deadline(), None);
        assert_eq!(ending.exit_code(), 7);
    }

    #[test]
    fn a_killed_rank_counts_as_in_a_shell() {
        let mut ending = Ending::new(s(0));
        ending.ended(0, Outcome::Killed(9), s(0));
        assert_eq!(ending.exit_code(), 137);
        assert_eq!(ending.due(s(0)), Some(Step::Terminate), "no grace: at once");
    }

    /// I3.
    #[test]
    fn asked_ranks_get_longer_unless_asked_again() {
        let mut ending = Ending::new(s(2));
        assert_eq!(ending.asked(s(0)), None);
        ending.ended(1, Outcome::Killed(2), s(1));
        assert_eq!(ending.due(s(4)), None, "a failure after the signal does not cut the time short");
        assert_eq!(ending.due(ASKED_GRACE), Some(Step::Terminate));

        let mut ending = Ending::new(s(2));
        ending.asked(s(0));
        assert_eq!(ending.asked(s(1)), Some(Step::Terminate));
        assert_eq!(ending.asked(s(1)), Some(Step::Kill));
        ending.ended(0, Outcome::Killed(15), s(2));
        assert_eq!(ending.exit_code(), 143);
    }

    #[test]
    fn what_ranks_leave_behind_is_ended_too() {
        let mut ending = Ending::new(s(2));
        ending.ended(0, Outcome::Exited(0), s(1));
        assert_eq!(ending.ranks_gone(s(1)), Some(Step::Terminate));
        assert_eq!(ending.ranks_gone(s(2)), None);
        assert_eq!(ending.due(s(3)), Some(Step::Kill));
        assert_eq!(ending.exit_code(), 0);
    }
}
