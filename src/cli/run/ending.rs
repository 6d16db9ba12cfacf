//! When the ranks are told to end, and what the launcher's exit code is. Pure: events and a clock in, steps out.
//!
//! - I1: the exit code is that of the first rank that failed, whatever the others do when they are ended. A rank is often
//!   heard of after those that failed because of it, since its connections end before it does. So failures are collected
//!   for a moment ([`SETTLE`]): a rank that was killed comes first, then one that another, as that one said itself, failed
//!   because of, then the order in which they were heard of. One that is blamed and still runs is waited for as long as
//!   the grace lasts: a panic writes a backtrace first.
//! - I2: after a failure every phase has a deadline, so the launcher ends though ranks ignore SIGTERM.
//! - I3: ranks that the user asked to end (a forwarded signal) get longer than ranks left over by a failure, since
//!   they may be saving their work; a second signal cuts that short, a third kills.

use std::time::Duration;

/// How long ranks have to end by themselves after a signal from the user was forwarded to them.
pub(super) const ASKED_GRACE: Duration = Duration::from_secs(30);

/// How long a rank may be heard of after one that exited because of it.
const SETTLE: Duration = Duration::from_millis(200);
/// Signals that strike a process from outside or for a fault of its own: never a program's answer to another's failure,
/// as SIGABRT can be. By number, as waiting gives them: ILL, BUS, FPE, KILL, SEGV.
const STRIKES: [u8; 5] = [4, 7, 8, 9, 11];

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

/// A rank that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) rank: u32,
    pub(super) pid: i32,
    pub(super) outcome: Outcome,
}

impl Failure {
    /// Whether no other rank's failure can be the reason for it.
    fn is_a_cause(&self) -> bool {
        matches!(self.outcome, Outcome::Killed(signal) if STRIKES.contains(&signal))
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
    /// In the order heard of, until the first of them is settled.
    failures: Vec<Failure>,
    /// The first, once settled.
    first: Option<Failure>,
    /// Until when the first may yet be another; `None` before a failure and once it was told.
    settled: Option<Duration>,
    /// The blamed rank that is waited for.
    awaited: Option<u32>,
}

impl Ending {
    pub(super) fn new(grace: Duration) -> Self {
        Ending {
            grace,
            phase: Phase::Running,
            until: None,
            failures: Vec::new(),
            first: None,
            settled: None,
            awaited: None,
        }
    }

    /// Whether nothing has happened that ends the run.
    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Running
    }

    /// A rank ended.
    pub(super) fn ended(&mut self, failure: Failure, now: Duration) {
        if failure.outcome.is_success() {
            self.stop_awaiting(failure.rank, now);
            return;
        }
        let open = self.first.is_none() && self.phase < Phase::Terminating;
        // Not by the clock: the launcher, too, may be late.
        let in_time = self.settled.is_some();
        if self.failures.is_empty() {
            self.settled = Some(now + SETTLE.min(self.grace));
        }
        if self.failures.is_empty() || (open && in_time) {
            self.failures.push(failure);
            if failure.is_a_cause() {
                self.settled = Some(now);
            }
        }
        self.stop_awaiting(failure.rank, now);
        if self.phase == Phase::Running {
            self.enter(Phase::Failed, now + self.grace);
        }
    }

    fn stop_awaiting(&mut self, rank: u32, now: Duration) {
        if self.awaited.take_if(|awaited| *awaited == rank).is_some() && self.settled.is_some() {
            self.settled = Some(now);
        }
    }

    /// The first failure, once: as soon as no other can take its place. `blamed` tells because of whom a rank failed, by
    /// its own word.
    pub(super) fn verdict(
        &mut self,
        running: usize,
        now: Duration,
        blamed: impl Fn(u32) -> Option<u32>,
    ) -> Option<Failure> {
        let until = self.settled.take_if(|until| now >= *until || running == 0)?;
        let first = first_of(&self.failures, &blamed);
        let cause = first.and_then(|first| blamed(first.rank));
        self.awaited = cause.filter(|cause| running > 0 && self.failures.iter().all(|f| f.rank != *cause));
        let grace_ends = self.until.filter(|end| until < *end && self.phase == Phase::Failed);
        if self.awaited.is_some() && grace_ends.is_some() {
            self.settled = grace_ends;
            return None;
        }
        self.first = first;
        self.first
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

    /// When [`Ending::due`] or [`Ending::verdict`] has something to say.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.until.into_iter().chain(self.settled).min()
    }

    /// I1.
    pub(super) fn exit_code(&self) -> u8 {
        self.first.or(self.failures.first().copied()).map_or(0, |failure| failure.outcome.code())
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

/// I1: which of these failures came first.
fn first_of(failures: &[Failure], blamed: impl Fn(u32) -> Option<u32>) -> Option<Failure> {
    if let Some(struck) = failures.iter().find(|failure| failure.is_a_cause()) {
        return Some(*struck);
    }
    let mut first = *failures.first()?;
    // Ranks that blame each other in a circle come back to where they began.
    for _ in 0..failures.len() {
        let cause = blamed(first.rank).and_then(|rank| failures.iter().find(|failure| failure.rank == rank));
        match cause {
            Some(cause) => first = *cause,
            None => break,
        }
    }
    Some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nobody(_: u32) -> Option<u32> {
        None
    }

    /// I1.
    #[test]
    fn a_rank_that_others_failed_because_of_comes_first() {
        let (mut ending, now) = (Ending::new(s(2)), s(5));
        let [a, b, c] = [0, 1, 2].map(|rank| by(rank, Outcome::Exited(10 + rank as u8)));
        [a, b, c].into_iter().for_each(|failure| ending.ended(failure, now));
        assert_eq!(ending.verdict(1, now, nobody), None, "another may come yet");
        let because = |rank| [Some(1), Some(2), None, None][rank as usize];
        assert_eq!(ending.verdict(1, now + SETTLE, because), Some(c));
        assert_eq!(ending.exit_code(), 12);

        let first = |blamed: &dyn Fn(u32) -> Option<u32>| first_of(&[b, a, c], blamed);
        assert_eq!(first(&nobody), Some(b), "as they were heard of");
        assert_eq!(first(&|_| Some(3)), Some(b), "the one to blame has not failed");
        assert!(first(&|rank| Some((rank + 1) % 3)).is_some(), "a circle has no beginning, and an end");
        let killed = by(3, Outcome::Killed(9));
        assert_eq!(first_of(&[a, killed], |_| Some(0)), Some(killed));
    }

    /// I1.
    #[test]
    fn a_blamed_rank_that_still_runs_is_waited_for_while_the_grace_lasts() {
        let (exited, panicked) = (by(0, Outcome::Exited(1)), by(3, Outcome::Exited(101)));
        let because = |rank| (rank != 3).then_some(3);
        let waiting = || {
            let mut ending = Ending::new(s(2));
            ending.ended(exited, s(5));
            assert_eq!(ending.verdict(1, s(5) + SETTLE, because), None);
            assert_eq!(ending.deadline(), Some(s(7)));
            ending
        };
        let mut late = waiting();
        late.ended(panicked, s(6));
        assert_eq!((late.verdict(0, s(6), because), late.exit_code()), (Some(panicked), 101));
        let mut never = waiting();
        assert_eq!((never.verdict(1, s(7), because), never.due(s(7))), (Some(exited), Some(Step::Terminate)));
        never.ended(by(3, Outcome::Killed(15)), s(7));
        assert_eq!((never.verdict(0, s(8), because), never.exit_code()), (None, 1));
        let mut well = waiting();
        well.ended(by(3, Outcome::Exited(0)), s(6));
        assert_eq!(well.verdict(0, s(6), because), Some(exited));
    }

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn by(rank: u32, outcome: Outcome) -> Failure {
        Failure { rank, pid: 100 + rank as i32, outcome }
    }

    /// I1.
    #[test]
    fn a_killed_rank_is_the_cause_though_it_is_heard_of_late() {
        let (exited, killed) = (by(1, Outcome::Exited(1)), by(2, Outcome::Killed(9)));
        let mut ending = Ending::new(s(2));
        ending.ended(exited, s(5));
        ending.ended(by(0, Outcome::Killed(6)), s(5));
        ending.ended(killed, s(5) + SETTLE / 2);
        assert_eq!(
            ending.verdict(1, s(5) + SETTLE / 2, nobody),
            Some(killed),
            "at once: nothing can take its place"
        );
        assert_eq!(ending.exit_code(), 137);
        assert_eq!(ending.due(s(7)), Some(Step::Terminate), "the grace counts from the first failure");

        // Too late: told since nobody is left, or ended by us.
        let mut ending = Ending::new(s(2));
        ending.ended(exited, s(5));
        assert_eq!(ending.verdict(0, s(5), nobody), Some(exited));
        ending.ended(killed, s(5));
        assert_eq!((ending.verdict(0, s(9), nobody), ending.exit_code()), (None, 1));
        let mut ending = Ending::new(s(0));
        ending.ended(exited, s(5));
        assert_eq!(
            (ending.verdict(3, s(5), nobody), ending.due(s(5))),
            (Some(exited), Some(Step::Terminate))
        );
        ending.ended(killed, s(5));
        assert_eq!((ending.verdict(2, s(9), nobody), ending.exit_code()), (None, 1));
    }

    #[test]
    fn success_needs_no_end() {
        let mut ending = Ending::new(s(2));
        ending.ended(by(0, Outcome::Exited(0)), s(5));
        assert_eq!(ending.verdict(0, s(5), nobody), None);
        assert_eq!(ending.deadline(), None);
        assert_eq!(ending.exit_code(), 0);
    }

    /// I1 and I2.
    #[test]
    fn first_failure_ends_the_rest_and_gives_the_code() {
        let mut ending = Ending::new(s(2));
        let first = by(3, Outcome::Exited(7));
        ending.ended(first, s(10));
        assert_eq!(ending.verdict(3, s(10), nobody), None);
        assert_eq!(ending.deadline(), Some(s(10) + SETTLE));
        assert_eq!(ending.verdict(3, s(11), nobody), Some(first));
        ending.ended(by(1, Outcome::Killed(9)), s(11));
        assert_eq!(ending.verdict(2, s(11), nobody), None);
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
        ending.ended(by(0, Outcome::Killed(9)), s(0));
        assert_eq!(ending.exit_code(), 137);
        assert_eq!(ending.due(s(0)), Some(Step::Terminate), "no grace: at once");
    }

    /// I3.
    #[test]
    fn asked_ranks_get_longer_unless_asked_again() {
        let mut ending = Ending::new(s(2));
        assert_eq!(ending.asked(s(0)), None);
        ending.ended(by(1, Outcome::Killed(2)), s(1));
        assert_eq!(ending.due(s(4)), None, "a failure after the signal does not cut the time short");
        assert_eq!(ending.due(ASKED_GRACE), Some(Step::Terminate));

        let mut ending = Ending::new(s(2));
        ending.asked(s(0));
        assert_eq!(ending.asked(s(1)), Some(Step::Terminate));
        assert_eq!(ending.asked(s(1)), Some(Step::Kill));
        ending.ended(by(0, Outcome::Killed(15)), s(2));
        assert_eq!(ending.exit_code(), 143);
    }

    #[test]
    fn what_ranks_leave_behind_is_ended_too() {
        let mut ending = Ending::new(s(2));
        ending.ended(by(0, Outcome::Exited(0)), s(1));
        assert_eq!(ending.ranks_gone(s(1)), Some(Step::Terminate));
        assert_eq!(ending.ranks_gone(s(2)), None);
        assert_eq!(ending.due(s(3)), Some(Step::Kill));
        assert_eq!(ending.exit_code(), 0);
    }
}
