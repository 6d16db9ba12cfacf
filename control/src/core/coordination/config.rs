//! What a coordinator is told when it starts.

use std::time::Duration;

/// Longest time that a barrier may be given.
pub const BARRIER_TIMEOUT_LIMIT: Duration = Duration::from_secs(30 * 24 * 3600);

/// What the coordinator holds at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Keys in the store.
    pub keys: usize,
    /// Length of a key, of a barrier's id and of a group's name, in bytes.
    pub key_bytes: usize,
    /// Length of a value, in bytes; where the state is kept, also of a group with the addresses of all its members, and of
    /// the devices of a task.
    pub value_bytes: usize,
    /// Keys and values together, in bytes.
    pub store_bytes: usize,
    /// Length of one answer that lists a directory, in bytes.
    pub reply_bytes: usize,
    /// Callers that wait for something.
    pub waiting: usize,
    /// Barriers under way.
    pub barriers: usize,
    /// Barriers that have ended and are remembered.
    pub ended_barriers: usize,
    /// Groups, made and forming.
    pub groups: usize,
    /// Addresses of one member of a group, in bytes.
    pub address_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            keys: 1 << 20,
            key_bytes: 4 << 10,
            value_bytes: 64 << 20,
            store_bytes: 1 << 30,
            reply_bytes: 64 << 20,
            waiting: 1 << 18,
            barriers: 1 << 14,
            ended_barriers: 1 << 14,
            groups: 1 << 12,
            address_bytes: 64 << 10,
        }
    }
}

/// How a coordinator behaves.
#[derive(Clone, Debug)]
pub struct CoordinatorConfig {
    /// Jobs and how many tasks each has.
    pub jobs: Vec<(String, u32)>,
    /// Silence for so long means that a task is lost.
    pub heartbeat_limit: Duration,
    /// A task whose stream of notices broke has so long to open another.
    pub reconnect_grace: Duration,
    /// Longest wait for all tasks, counted from the first that waits.
    pub register_timeout: Duration,
    /// Longest wait for a group, where the caller sets none.
    pub join_timeout: Duration,
    /// Tasks leave together, and wait so long for each other; `None`: each leaves when it wants.
    pub shutdown_timeout: Option<Duration>,
    /// What changes is said in [`Effect::Remember`](super::request::Effect::Remember), so that another coordinator can go on
    /// from it.
    pub durable: bool,
    /// What is held at most.
    pub limits: Limits,
}

impl CoordinatorConfig {
    /// One job of `tasks` tasks with the usual times.
    #[must_use]
    pub fn one_job(name: &str, tasks: u32) -> Self {
        CoordinatorConfig {
            jobs: vec![(name.to_owned(), tasks)],
            heartbeat_limit: Duration::from_secs(10),
            reconnect_grace: Duration::from_millis(200),
            register_timeout: Duration::from_secs(300),
            join_timeout: Duration::from_secs(300),
            shutdown_timeout: None,
            durable: false,
            limits: Limits::default(),
        }
    }

    /// All tasks of all jobs.
    #[must_use]
    pub fn tasks(&self) -> u32 {
        self.jobs.iter().map(|(_, tasks)| tasks).sum()
    }
}
