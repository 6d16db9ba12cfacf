//! The whole coordination service and its agents, replayed on one thread under seeded chaos.
//!
//! Each task runs a real [`super::agent::Agent`] and a script: wait for all, enter a group, several rounds of keys and
//! barriers, leave. The network between them and a real [`super::coordination::Coordinator`] delays, reorders, loses
//! and repeats requests and answers and breaks streams; tasks are killed, stopped and restarted, and the coordinator
//! itself is stopped. What happens depends on the seed alone.
//!
//! Checked while it runs:
//! - S1. A barrier passes only after each of its tasks has called it, and all its callers get the same answer.
//! - S2. Nobody waits past the deadline of what it waits for, and every task comes to the end of its script.
//! - S3. The store answers each request as a plain map would that takes requests one after the other.
//! - S4. A life of a task that ends without a word is known to be lost within the heartbeat limit and one tick, and
//!   within the reconnect grace when its stream broke.
//! - S5. All members of a group have the same table, with each rank once, of lives that did enter.
//! - S6. Each request is answered at most once, and nothing is left waiting at the end.
//! - S7. An agent announces a loss once, and at the end every agent that runs knows of every loss that stands.
//! - S8. Where nothing is lost, broken or killed and no task is stopped, nobody is called lost, even when the
//!   coordinator itself was stopped; and when it was not, every step succeeds.
//! - S9. What a life sent that has registered and was replaced never makes the newest life lost.
//! - S10. Once a launcher has seen a process end, that life does not count as connected, and nobody waits for a group that
//!   needs it.
//! - S11. A coordinator that was killed at any point, and goes on from what it kept, answers as if it had not been: what was
//!   answered before stands, keys have the values of a plain map, a request that is asked again has one effect, and no task is
//!   blamed for the time in which there was none.

mod accidents;
mod check;
mod crashes;
mod elastic;
mod election;
mod model;
pub(in crate::core) mod random;
mod script;
mod tasks;
mod world;

use std::fmt;
use std::time::Duration;

pub use self::elastic::{ElasticReport, run_elastic};
pub use self::election::{ElectionReport, run_election};
use self::world::World;
use super::time::Time;

/// What goes wrong in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// Tasks of the cluster.
    pub tasks: u32,
    /// Of a thousand requests or answers, so many are lost.
    pub lost: u32,
    /// Of a thousand requests, so many arrive twice.
    pub doubled: u32,
    /// Of a thousand messages, so many are slow: up to [`Scenario::SLOW`] instead of a few milliseconds.
    pub slow: u32,
    /// Streams that break.
    pub breaks: u32,
    /// Tasks that are killed; most of them are started again.
    pub kills: u32,
    /// Tasks that are stopped for a while.
    pub stops: u32,
    /// The coordinator is stopped for up to twice its heartbeat limit.
    pub coordinator_stops: bool,
    /// The coordinator, which keeps what it must not forget, is killed so many times, and another goes on.
    pub crashes: u32,
    /// The coordinator lives in the tasks' launcher, which sees each of them end and starts none again.
    pub launcher: bool,
}

impl Scenario {
    /// Longest delay of a slow message.
    pub const SLOW: Duration = Duration::from_millis(300);

    /// Nothing goes wrong; messages are reordered all the same.
    #[must_use]
    pub fn calm(tasks: u32) -> Self {
        Scenario {
            tasks,
            lost: 0,
            doubled: 0,
            slow: 0,
            breaks: 0,
            kills: 0,
            stops: 0,
            coordinator_stops: false,
            crashes: 0,
            launcher: false,
        }
    }

    /// The scenario of a seed: a quarter calm, a quarter each with a bad network, with deaths, and with all at once; half
    /// of each under a launcher.
    #[must_use]
    pub fn of_seed(seed: u64, tasks: u32) -> Self {
        let calm = Scenario { launcher: seed % 16 >= 8, ..Scenario::calm(tasks) };
        let few = (tasks / 4).clamp(1, 64);
        match seed % 4 {
            0 => Scenario { coordinator_stops: seed % 8 == 4, ..calm },
            1 => Scenario { lost: 20, doubled: 50, slow: 50, breaks: few, ..calm },
            2 => Scenario { kills: few, stops: few, ..calm },
            _ => Scenario {
                lost: 20,
                doubled: 50,
                slow: 50,
                breaks: few,
                kills: few,
                stops: few,
                coordinator_stops: seed % 8 == 3,
                ..calm
            },
        }
    }

    /// The scenario of a seed in which the coordinator is killed, up to six times: a quarter with nothing else, a quarter each
    /// with a bad network, with deaths, and with both.
    #[must_use]
    pub fn with_crashes(seed: u64, tasks: u32) -> Self {
        let other = Scenario::of_seed(seed, tasks);
        Scenario { crashes: 1 + (seed / 4 % 6) as u32, coordinator_stops: false, launcher: false, ..other }
    }

    /// Whether nobody may be called lost.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        self.lost == 0 && self.breaks == 0 && self.kills == 0 && self.stops == 0 && self.slow == 0
    }
}

/// What happened in a run without a fault of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Messages, timers and accidents.
    pub happenings: u64,
    /// Lives that were announced as lost.
    pub losses: u64,
    /// Barriers that passed.
    pub barriers_passed: u64,
    /// Barriers that failed.
    pub barriers_failed: u64,
    /// Groups that were made.
    pub groups: u64,
    /// Ends of processes that a launcher saw.
    pub ends_seen: u64,
    /// Coordinators that went on from what was remembered.
    pub restored: u64,
    /// Answers of the store that were compared.
    pub store_answers: u64,
    /// Simulated time.
    pub time: Time,
}

/// A fault of ours: which of the checks failed, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The seed that shows it.
    pub seed: u64,
    /// Tasks in that run.
    pub tasks: u32,
    /// When, in simulated time.
    pub time: Time,
    /// Which check, and what was seen.
    pub what: String,
    /// What happened last before it.
    pub trace: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "    {line}")?;
        }
        write!(
            f,
            "at {}: {}\nreplay: cargo run -p ringway-control --example simulate -- --tasks {} --seed {}",
            self.time, self.what, self.tasks, self.seed
        )
    }
}

impl std::error::Error for Violation {}

/// Runs one seed.
///
/// # Errors
/// When a check fails: a fault in the coordinator, the agent, or the simulation.
pub fn run(seed: u64, scenario: &Scenario) -> Result<Report, Violation> {
    World::new(seed, scenario.clone()).run()
}
