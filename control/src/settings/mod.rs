//! Settings: every `RINGWAY_*` variable, read once at start into one typed [`Settings`].
//!
//! [`table::TABLE`] declares them; `value` reads single values. The environment is read here
//! ([`Settings::from_env`]) and in [`launch`](crate::launch), nowhere else in the project.
//!
//! - I1: a `RINGWAY_*` variable that no row declares is refused, so that a slip in a name is never a setting
//!   silently not taken.
//! - I2: every problem is reported, not only the first.
//! - I3: a default is read by the same code as a given value, so none can be outside of its own range.
#![forbid(unsafe_code)]

mod file;
mod gpu;
pub mod kind;
mod rdma;
mod security;
mod serve;
mod shm;
mod status;
pub mod table;
mod typed;
mod value;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::time::Duration;

use ringway_collectives::engine::{Numerics, Progress};
use ringway_collectives::schedule::Wanted;
use ringway_dataplane::fabric::Policy;
use ringway_dataplane::fabric::interface::{self, Filter};
use ringway_dataplane::rdma::RdmaConfig;
use ringway_topology::model::place::Threads;

pub use file::read_text;
pub use gpu::GpuSettings;
pub use security::TlsFiles;
pub use serve::ServeSettings;
pub use status::StatusSettings;
use table::{Kind, Setting, TABLE};
use typed::{Values, mismatch};
pub use value::{
    CongestionControl, CoordinatorBy, Family, HostPort, IoDriver, NameList, Pin, Secret, byte_count,
};

/// What the name of every setting begins with.
pub const PREFIX: &str = "RINGWAY_";

/// All settings, typed. `None` means "not given, found out by other means"; each field's meaning, range and
/// default is its row in [`TABLE`].
#[derive(Clone, Debug)]
pub struct Settings {
    /// `RINGWAY_RANK`.
    pub rank: Option<u32>,
    /// `RINGWAY_WORLD_SIZE`.
    pub world_size: Option<u32>,
    /// `RINGWAY_MIN_RANKS`; `None`: the job is of all its ranks.
    pub min_ranks: Option<u32>,
    /// `RINGWAY_MAX_RANKS`; `None` for the world size.
    pub max_ranks: Option<u32>,
    /// `RINGWAY_LOCAL_RANK`.
    pub local_rank: Option<u32>,
    /// `RINGWAY_LOCAL_SIZE`.
    pub local_size: Option<u32>,
    /// `RINGWAY_COORDINATOR`.
    pub coordinator: Option<HostPort>,
    /// The rest of `RINGWAY_COORDINATOR`: other candidates.
    pub other_coordinators: Vec<HostPort>,
    /// `RINGWAY_COORDINATOR_BY`.
    pub coordinator_by: CoordinatorBy,
    /// `RINGWAY_JOB_ID`.
    pub job_id: Option<String>,
    /// `RINGWAY_TOKEN`, or what is in `RINGWAY_TOKEN_FILE`.
    pub token: Option<Secret>,
    /// `RINGWAY_TLS_*`: all of them, or none.
    pub tls: Option<TlsFiles>,
    /// `RINGWAY_INSECURE`.
    pub insecure: bool,
    /// `RINGWAY_SOCKET_IFNAME`.
    pub socket_ifname: Option<Filter>,
    /// `RINGWAY_SOCKET_FAMILY`.
    pub socket_family: Option<Family>,
    /// `RINGWAY_NET`.
    pub net: NameList,
    /// `RINGWAY_IO_DRIVER`.
    pub io_driver: IoDriver,
    /// `RINGWAY_CONGESTION_CONTROL`.
    pub congestion_control: CongestionControl,
    /// `RINGWAY_SHM`.
    pub shm: Policy,
    /// `RINGWAY_SHM_CMA`.
    pub shm_cma: bool,
    /// `RINGWAY_RDMA`.
    pub rdma: Policy,
    /// `RINGWAY_IB_*`, but for the NUMA node, which the rank finds out.
    pub rdma_config: RdmaConfig,
    /// `RINGWAY_ALGO`.
    pub algo: Wanted,
    /// `RINGWAY_TUNING_FILE`.
    pub tuning_file: Option<String>,
    /// `RINGWAY_EAGER_BYTES`; `None` leaves it to the transport.
    pub eager_bytes: Option<u64>,
    /// `RINGWAY_SLICE_BYTES`; `None` leaves it to the engine.
    pub slice_bytes: Option<u64>,
    /// `RINGWAY_INTER_OP_THREADS`; `None` for as many as there are processors.
    pub inter_op_threads: Option<u32>,
    /// `RINGWAY_SLICES_IN_FLIGHT`; `None` leaves it to the engine.
    pub slices_in_flight: Option<u32>,
    /// `RINGWAY_CHECK`.
    pub check: bool,
    /// `RINGWAY_REPRODUCIBLE`, `RINGWAY_HALF_IN_F32` and `RINGWAY_F32_IN_BF16`.
    pub numerics: Numerics,
    /// `RINGWAY_SPIN_US`; `None` lets the rank find out.
    pub spin: Option<Duration>,
    /// `RINGWAY_PROGRESS`.
    pub progress: Progress,
    /// `RINGWAY_PIN`.
    pub pin: Pin,
    /// `RINGWAY_PIN_THREADS`.
    pub pin_threads: Threads,
    /// `RINGWAY_PIN_PROGRESS`.
    pub pin_progress: Pin,
    /// `RINGWAY_PIN_ACCELERATORS`.
    pub pin_accelerators: bool,
    /// `RINGWAY_TOPOLOGY_FILE`.
    pub topology_file: Option<String>,
    /// `RINGWAY_HUGE_PAGES`: whether to ask for them.
    pub huge_pages: bool,
    /// `RINGWAY_HEARTBEAT_TIMEOUT_MS`.
    pub heartbeat_timeout: Duration,
    /// The same for tasks that speak XLA's dialect.
    pub xla_heartbeat_timeout: Duration,
    /// `RINGWAY_PREEMPTION_GRACE_MS`.
    pub preemption_grace: Duration,
    /// `RINGWAY_FAILOVER_TIMEOUT_MS`.
    pub failover_timeout: Duration,
    /// `RINGWAY_LEASE_MS`.
    pub lease: Duration,
    /// `RINGWAY_CONNECT_TIMEOUT_MS`.
    pub connect_timeout: Duration,
    /// `RINGWAY_JOIN_TIMEOUT_MS`.
    pub join_timeout: Duration,
    /// `RINGWAY_LOG`.
    pub log: String,
    /// How long sessions live that nobody uses.
    pub serve: ServeSettings,
    /// What a process shows of itself.
    pub status: StatusSettings,
    /// Work on GPUs.
    pub gpu: GpuSettings,
    /// What the environment gave, as text, secrets masked.
    given: BTreeMap<&'static str, String>,
}

/// One row of the effective settings, for `ringway doctor`.
#[derive(Clone, Debug)]
pub struct Effective {
    /// The setting.
    pub setting: &'static Setting,
    /// Its value as text; a secret is masked; `None` when it is neither given nor has a default.
    pub value: Option<String>,
    /// Whether the environment gave it.
    pub given: bool,
}

/// What is wrong with the settings: one or more problems, each on its own line of the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError {
    /// At least one problem, in the order of the variables' names.
    pub problems: Vec<Problem>,
}

impl std::fmt::Display for SettingsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for SettingsError {}

/// One thing wrong with the settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// No such setting.
    #[error("{name} is no setting of ringway; {}", unknown_advice(name, *nearest))]
    Unknown {
        /// The variable as given.
        name: String,
        /// The setting that was probably meant.
        nearest: Option<&'static str>,
    },
    /// The value is of the wrong type or out of range.
    #[error("{name}={given} is not allowed: give {allowed}")]
    Invalid {
        /// The setting.
        name: &'static str,
        /// What was given, shortened, or `(hidden)` for a secret.
        given: String,
        /// What is allowed, in words.
        allowed: String,
    },
    /// Two settings want opposite things.
    #[error("{one} and {other} contradict each other: change one of them")]
    Contradiction {
        /// One, as `name=value`.
        one: String,
        /// The other.
        other: String,
    },
    /// A setting that needs another.
    #[error("{given} is given and {missing} is not: give both, or neither")]
    Incomplete {
        /// What was given.
        given: &'static str,
        /// What goes with it.
        missing: &'static str,
    },
    /// The file with the token cannot be used.
    #[error("RINGWAY_TOKEN_FILE={path}: {why}")]
    TokenFile {
        /// The file.
        path: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The value is not text.
    #[error("{name} is not valid UTF-8: give plain text")]
    NotText {
        /// The variable, with what is not text replaced.
        name: String,
    },
}

fn unknown_advice(name: &str, nearest: Option<&'static str>) -> String {
    match nearest {
        Some(nearest) => format!("did you mean {nearest}?"),
        None => format!("unset {name}; `ringway doctor --settings` lists them all"),
    }
}

impl Settings {
    /// Reads the settings from this process's environment.
    ///
    /// # Errors
    /// Every unknown `RINGWAY_*` name and every value that its setting does not allow.
    pub fn from_env() -> Result<Self, SettingsError> {
        Self::from_os_pairs(std::env::vars_os())
    }

    /// Reads the settings from name and value pairs; names that do not begin with `RINGWAY_` are passed over.
    ///
    /// # Errors
    /// As [`Settings::from_env`].
    pub fn from_pairs<N, V>(pairs: impl IntoIterator<Item = (N, V)>) -> Result<Self, SettingsError>
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        Self::from_os_pairs(pairs.into_iter().map(|(name, value)| (name.into(), value.into())))
    }

    fn from_os_pairs(pairs: impl Iterator<Item = (OsString, OsString)>) -> Result<Self, SettingsError> {
        let mut given = BTreeMap::new();
        let mut problems = Vec::new();
        let mut xdg = None;
        for (name, value) in pairs {
            if name == status::XDG_RUNTIME_DIR {
                xdg = Some(value);
                continue;
            }
            if !name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
                continue;
            }
            match check(&name, &value) {
                Ok((setting, text)) => drop(given.insert(setting.name, text)),
                Err(problem) => problems.push(problem),
            }
        }
        if problems.is_empty() {
            let mut settings = Self::typed(given, xdg.as_deref());
            problems.extend(settings.rdma_contradiction().or(settings.shm_contradiction()));
            problems.extend(settings.security_problems());
            if problems.is_empty() {
                return Ok(settings);
            }
        }
        problems.sort_by_cached_key(ToString::to_string);
        Err(SettingsError { problems })
    }

    /// The settings in force, in the table's order, with where each came from.
    pub fn effective(&self) -> impl Iterator<Item = Effective> + '_ {
        TABLE.iter().map(|setting| {
            let given = self.given.get(setting.name);
            let value = given.cloned().or(setting.default.map(str::to_owned));
            Effective { setting, value, given: given.is_some() }
        })
    }

    /// What the settings say about network interfaces, as [`interface::choose`] takes it; `all_local` when all
    /// ranks are known to be on this host.
    pub fn interfaces(&self, all_local: bool) -> interface::Wanted {
        let family = match self.socket_family {
            None => interface::Family::Any,
            Some(Family::V4) => interface::Family::V4,
            Some(Family::V6) => interface::Family::V6,
        };
        interface::Wanted { filter: self.socket_ifname.clone(), family, all_local }
    }

    /// Builds the typed form from texts that [`check`] has passed (I3: defaults go through the same reader).
    fn typed(given: BTreeMap<&'static str, String>, xdg: Option<&OsStr>) -> Self {
        let values = Values { given: &given };
        let masked = given.iter().map(|(name, text)| (*name, masked(name, text))).collect();
        Settings {
            rank: values.count("RINGWAY_RANK"),
            world_size: values.count("RINGWAY_WORLD_SIZE"),
            min_ranks: values.count("RINGWAY_MIN_RANKS"),
            max_ranks: values.count("RINGWAY_MAX_RANKS"),
            local_rank: values.count("RINGWAY_LOCAL_RANK"),
            local_size: values.count("RINGWAY_LOCAL_SIZE"),
            coordinator: values.addresses("RINGWAY_COORDINATOR").into_iter().next(),
            other_coordinators: values.addresses("RINGWAY_COORDINATOR").into_iter().skip(1).collect(),
            coordinator_by: match values.word("RINGWAY_COORDINATOR_BY") {
                Some("outside") => CoordinatorBy::Outside,
                _ => CoordinatorBy::Rank0,
            },
            job_id: values.text("RINGWAY_JOB_ID"),
            token: values.text("RINGWAY_TOKEN").map(Secret::new),
            tls: values.tls_files(),
            insecure: values.switch("RINGWAY_INSECURE"),
            socket_ifname: values.interfaces("RINGWAY_SOCKET_IFNAME"),
            socket_family: values.word("RINGWAY_SOCKET_FAMILY").map(|word| match word {
                "AF_INET6" => Family::V6,
                _ => Family::V4,
            }),
            net: values.names("RINGWAY_NET"),
            io_driver: match values.word("RINGWAY_IO_DRIVER") {
                Some("uring") => IoDriver::Uring,
                Some("epoll") => IoDriver::Epoll,
                _ => IoDriver::Auto,
            },
            congestion_control: match values.text("RINGWAY_CONGESTION_CONTROL").as_deref() {
                None | Some("auto") => CongestionControl::Auto,
                Some("system") => CongestionControl::System,
                Some(name) => CongestionControl::Named(name.to_owned()),
            },
            shm: values.policy("RINGWAY_SHM"),
            shm_cma: values.switch("RINGWAY_SHM_CMA"),
            rdma: values.policy("RINGWAY_RDMA"),
            rdma_config: values.rdma_config(),
            algo: values.algorithms("RINGWAY_ALGO"),
            tuning_file: values.text("RINGWAY_TUNING_FILE"),
            eager_bytes: values.number("RINGWAY_EAGER_BYTES"),
            slice_bytes: values.number("RINGWAY_SLICE_BYTES"),
            inter_op_threads: values.count("RINGWAY_INTER_OP_THREADS"),
            slices_in_flight: values.count("RINGWAY_SLICES_IN_FLIGHT"),
            check: values.switch("RINGWAY_CHECK"),
            numerics: Numerics {
                reproducible: values.switch("RINGWAY_REPRODUCIBLE"),
                half_in_f32: values.switch("RINGWAY_HALF_IN_F32"),
                f32_in_bf16: values.switch("RINGWAY_F32_IN_BF16"),
            },
            spin: values.number("RINGWAY_SPIN_US").map(Duration::from_micros),
            progress: match values.word("RINGWAY_PROGRESS") {
                Some("caller") => Progress::Caller,
                _ => Progress::Thread,
            },
            pin: values.pin("RINGWAY_PIN"),
            pin_threads: match values.word("RINGWAY_PIN_THREADS") {
                Some("one") => Threads::OnePerCore,
                _ => Threads::All,
            },
            pin_progress: values.pin("RINGWAY_PIN_PROGRESS"),
            pin_accelerators: values.switch("RINGWAY_PIN_ACCELERATORS"),
            topology_file: values.text("RINGWAY_TOPOLOGY_FILE"),
            huge_pages: values.word("RINGWAY_HUGE_PAGES") != Some("off"),
            heartbeat_timeout: values.millis("RINGWAY_HEARTBEAT_TIMEOUT_MS"),
            failover_timeout: values.millis("RINGWAY_FAILOVER_TIMEOUT_MS"),
            lease: values.millis("RINGWAY_LEASE_MS"),
            xla_heartbeat_timeout: values.millis("RINGWAY_XLA_HEARTBEAT_TIMEOUT_MS"),
            preemption_grace: values.millis("RINGWAY_PREEMPTION_GRACE_MS"),
            connect_timeout: values.millis("RINGWAY_CONNECT_TIMEOUT_MS"),
            join_timeout: values.millis("RINGWAY_JOIN_TIMEOUT_MS"),
            log: values.text("RINGWAY_LOG").unwrap_or_default(),
            serve: values.serve_settings(),
            status: values.status_settings(xdg),
            gpu: values.gpu_settings(),
            given: masked,
        }
    }
}

impl Default for Settings {
    /// Every setting at its default, nothing given.
    fn default() -> Self {
        Self::typed(BTreeMap::new(), None)
    }
}

/// Checks one variable against the table.
fn check(name: &OsString, value: &OsString) -> Result<(&'static Setting, String), Problem> {
    let not_text = || Problem::NotText { name: name.to_string_lossy().into_owned() };
    let name = name.to_str().ok_or_else(not_text)?;
    let setting = table::find(name).ok_or_else(|| Problem::Unknown {
        name: name.to_owned(),
        nearest: table::nearest(name).map(|setting| setting.name),
    })?;
    let text = value.to_str().ok_or_else(not_text)?.trim();
    match value::read(&setting.kind, text, setting.unit == "bytes") {
        Some(_) => Ok((setting, text.to_owned())),
        None => Err(Problem::Invalid {
            name: setting.name,
            given: shown(setting, text),
            allowed: setting.kind.allowed(setting.unit),
        }),
    }
}

/// A given value as it may be kept for display.
fn masked(name: &str, text: &str) -> String {
    match table::find(name) {
        Some(Setting { kind: Kind::Token, .. }) => "(hidden)".to_owned(),
        _ => text.to_owned(),
    }
}

/// A given value as an error shows it.
fn shown(setting: &Setting, text: &str) -> String {
    /// Characters of a wrong value that an error repeats.
    const SHOWN_CHARS: usize = 80;
    match (setting.kind, text) {
        (_, "") => "(empty)".to_owned(),
        (Kind::Token, _) => "(hidden)".to_owned(),
        _ if text.chars().count() > SHOWN_CHARS => {
            text.chars().take(SHOWN_CHARS).chain("...".chars()).collect()
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_collectives::schedule::{Algorithm, Collective};

    fn problems(pairs: &[(&str, &str)]) -> Vec<String> {
        Settings::from_pairs(pairs.iter().copied())
            .unwrap_err()
            .problems
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn defaults_are_those_of_the_table() {
        let settings = Settings::default();
        assert_eq!(settings.heartbeat_timeout, Duration::from_secs(10));
        assert_eq!(settings.slice_bytes, None);
        assert_eq!(settings.net, NameList::Auto);
        assert_eq!(settings.coordinator_by, CoordinatorBy::Rank0);
        assert!(settings.check && settings.huge_pages);
        assert_eq!(settings.log, "warn");
        assert!(settings.effective().all(|row| !row.given));
        assert_eq!(settings.effective().count(), TABLE.len());
    }

    #[test]
    fn given_values_are_typed() {
        let settings = Settings::from_pairs([
            ("RINGWAY_RANK", "3"),
            ("RINGWAY_COORDINATOR", "[::1]:29400"),
            ("RINGWAY_COORDINATOR_BY", "outside"),
            ("RINGWAY_SLICE_BYTES", "512K"),
            ("RINGWAY_SPIN_US", "0"),
            ("RINGWAY_PROGRESS", "caller"),
            ("RINGWAY_ALGO", "^ring"),
            ("RINGWAY_NET", "epoll"),
            ("RINGWAY_IO_DRIVER", "uring"),
            ("RINGWAY_CONGESTION_CONTROL", "reno"),
            ("RINGWAY_CHECK", "0"),
            ("RINGWAY_PIN", "0-1"),
            ("RINGWAY_SOCKET_FAMILY", "AF_INET6"),
            ("RINGWAY_SOCKET_IFNAME", "^docker,lo"),
            ("RINGWAY_HUGE_PAGES", "off"),
            ("RINGWAY_TOKEN", "hunter2.hunter2.hunter2"),
            ("RINGWAY_HEARTBEAT_TIMEOUT_MS", " 500 "),
            ("PATH", "/bin"),
        ])
        .unwrap();
        assert_eq!(settings.rank, Some(3));
        assert_eq!(settings.coordinator.as_ref().unwrap().to_string(), "[::1]:29400");
        assert_eq!(settings.coordinator_by, CoordinatorBy::Outside);
        assert_eq!(settings.slice_bytes, Some(512 << 10));
        assert_eq!((settings.spin, settings.progress), (Some(Duration::ZERO), Progress::Caller));
        let permits = |algorithm| settings.algo.permits(Collective::AllReduce, algorithm);
        assert!(!permits(Algorithm::Ring) && permits(Algorithm::Tree));
        assert!(settings.net.permits("epoll") && !settings.net.permits("uring"));
        assert_eq!(settings.io_driver, IoDriver::Uring);
        assert_eq!(settings.congestion_control, CongestionControl::Named("reno".into()));
        assert!(!settings.check && !settings.huge_pages);
        assert_eq!(settings.pin, Pin::Cpus(vec![0, 1]));
        assert_eq!(settings.socket_family, Some(Family::V6));
        let wanted = settings.interfaces(true);
        assert!(wanted.all_local && wanted.family == interface::Family::V6);
        assert!(wanted.filter.is_some_and(|filter| filter.admits("eth0") && !filter.admits("docker0")));
        assert_eq!(settings.heartbeat_timeout, Duration::from_millis(500));
        let shown = format!("{settings:?}{:?}", settings.effective().collect::<Vec<_>>());
        assert!(!settings.given.is_empty() && settings.token.as_ref().unwrap().reveal().len() == 23);
        assert!(!shown.contains("hunter2"), "a secret must not print: {shown}");
    }

    /// I1 and I2.
    #[test]
    fn unknown_and_wrong_are_all_reported() {
        let found = problems(&[
            ("RINGWAY_SOCKET_IFNAMES", "eth0"),
            ("RINGWAY_ZEBRA_CROSSING", "1"),
            ("RINGWAY_SLICE_BYTES", "64"),
            ("RINGWAY_SPIN_US", "soon"),
            ("RINGWAY_ALGO", "rings"),
            ("RINGWAY_JOB_ID", ""),
        ]);
        assert_eq!(
            found,
            [
                "RINGWAY_ALGO=rings is not allowed: give auto, or a list out of ring, tree, doubling, halving, direct, chain, \
                 scatterallgather, dissemination, leaders, lanes, doubletree, lanehalving, lanetrees, exchange separated by commas, or ^ and \
                 a list to leave out; for one collective with its name before, as in ring;allreduce:^tree;broadcast:chain",
                "RINGWAY_JOB_ID=(empty) is not allowed: give any text that is not empty",
                "RINGWAY_SLICE_BYTES=64 is not allowed: give auto, or a whole number from 4096 to 1073741824 bytes \
                 (K, M and G mean powers of 1024)",
                "RINGWAY_SOCKET_IFNAMES is no setting of ringway; did you mean RINGWAY_SOCKET_IFNAME?",
                "RINGWAY_SPIN_US=soon is not allowed: give auto, or a whole number from 0 to 1000000 us",
                "RINGWAY_ZEBRA_CROSSING is no setting of ringway; unset RINGWAY_ZEBRA_CROSSING; \
                 `ringway doctor --settings` lists them all",
            ]
        );
    }

    #[test]
    fn a_wrong_value_is_shortened() {
        let found = problems(&[("RINGWAY_RANK", &"9".repeat(5000))]);
        assert!(found[0].len() < 200, "{found:?}");
    }

    #[test]
    fn values_that_are_not_text_are_refused() {
        use std::os::unix::ffi::OsStringExt;
        let bad = OsString::from_vec(vec![0xff, 0xfe]);
        let error = Settings::from_pairs([("RINGWAY_LOG", bad)]).unwrap_err();
        assert_eq!(error.problems, [Problem::NotText { name: "RINGWAY_LOG".into() }]);
    }

    /// I3, and that every row is read by a field of its own kind: a value of each kind passes through.
    #[test]
    fn every_row_reads_its_default() {
        for setting in TABLE {
            if let Some(default) = setting.default {
                let read = Settings::from_pairs([(setting.name, default)]);
                assert!(read.is_ok(), "{}: {}", setting.name, read.unwrap_err());
            }
        }
    }
}
