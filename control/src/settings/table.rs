//! The one table of settings: every `RINGWAY_*` variable with its type, default, unit, allowed range and meaning.
//!
//! To add a setting, add a row here and a field to [`Settings`](super::Settings) that reads it. Everything
//! else (the check for unknown names, the error texts, `ringway doctor`) follows from the row.

pub use super::kind::Kind;

/// One setting: a row of [`TABLE`].
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The variable's whole name, `RINGWAY_...`.
    pub name: &'static str,
    /// What may be given, with its range.
    pub kind: Kind,
    /// The value taken when the variable is unset, as it would be written; `None` where unset means
    /// "not given", because something else (a launcher, the transport) knows it.
    pub default: Option<&'static str>,
    /// The unit of a number, empty for everything else.
    pub unit: &'static str,
    /// What it does, in one or two sentences.
    pub doc: &'static str,
}

/// The largest world: a rank fits 20 bits with room to spare in every wire header.
pub const MAX_WORLD_SIZE: u64 = 1 << 20;

/// One day in milliseconds: the longest wait that any setting may ask for.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Longest lease.
const YEAR_MS: u64 = 365 * DAY_MS;

/// The algorithms of the collectives, in lower case.
const ALGORITHMS: &[&str] = &[
    "ring",
    "tree",
    "doubling",
    "halving",
    "direct",
    "chain",
    "scatterallgather",
    "dissemination",
    "leaders",
    "lanes",
];

const fn row(
    name: &'static str,
    kind: Kind,
    default: Option<&'static str>,
    unit: &'static str,
    doc: &'static str,
) -> Setting {
    Setting { name, kind, default, unit, doc }
}

/// A number of ranks.
const fn ranks(name: &'static str, doc: &'static str) -> Setting {
    row(name, Kind::Number { min: 1, max: MAX_WORLD_SIZE }, None, "", doc)
}

/// Every setting, in the order in which `ringway doctor` shows them.
pub const TABLE: &[Setting] = &[
    // Who this process is. A launcher sets these, or its own variables are read instead.
    row(
        "RINGWAY_RANK",
        Kind::Number { min: 0, max: MAX_WORLD_SIZE - 1 },
        None,
        "",
        "This process's rank. Unset, it is taken from the launcher's own variables.",
    ),
    ranks("RINGWAY_WORLD_SIZE", "The number of ranks in the job."),
    ranks(
        "RINGWAY_MIN_RANKS",
        "Makes the job elastic: its group goes on with as few ranks as this, and lets others in. The same on all ranks.",
    ),
    ranks(
        "RINGWAY_MAX_RANKS",
        "How many ranks an elastic job may have at most; unset, as many as RINGWAY_WORLD_SIZE. The same on all ranks.",
    ),
    row(
        "RINGWAY_LOCAL_RANK",
        Kind::Number { min: 0, max: MAX_WORLD_SIZE - 1 },
        None,
        "",
        "This process's number among the ranks of its host. Unset, it is taken from the launcher's own variables.",
    ),
    ranks("RINGWAY_LOCAL_SIZE", "The number of ranks on this host."),
    row(
        "RINGWAY_COORDINATOR",
        Kind::HostPorts,
        None,
        "",
        "Where the coordination service listens: an address that every rank can reach. Several addresses, with commas \
         between them, are those of candidates outside of the ranks (ringway serve --store), of which one leads.",
    ),
    row(
        "RINGWAY_COORDINATOR_BY",
        Kind::OneOf(&["rank0", "outside"]),
        Some("rank0"),
        "",
        "Who runs the coordination service: rank 0 inside its own process, or something outside of the ranks \
         (ringway run, ringway serve).",
    ),
    row(
        "RINGWAY_JOB_ID",
        Kind::Text,
        None,
        "",
        "Names the job. Ranks with different names refuse to join each other.",
    ),
    // Who may take part.
    row(
        "RINGWAY_TOKEN",
        Kind::Token,
        None,
        "",
        "A secret that a job's processes share; others' calls and connections are refused. `openssl rand -hex 32` makes one.",
    ),
    row(
        "RINGWAY_TOKEN_FILE",
        Kind::Text,
        None,
        "",
        "A file with that secret, readable by its user alone, where all hosts find it.",
    ),
    row(
        "RINGWAY_TLS_CERT",
        Kind::Text,
        None,
        "",
        "This process's certificate and those that lead to its authority, PEM. With RINGWAY_TLS_KEY and RINGWAY_TLS_CA, \
         every gRPC connection is TLS 1.3, and both sides show certificates.",
    ),
    row("RINGWAY_TLS_KEY", Kind::Text, None, "", "The key of RINGWAY_TLS_CERT, PEM, not encrypted."),
    row("RINGWAY_TLS_CA", Kind::Text, None, "", "The authorities whose certificates are taken, PEM."),
    row(
        "RINGWAY_TLS_NAME",
        Kind::Text,
        None,
        "",
        "The name that servers' certificates have; unset, the host called.",
    ),
    row(
        "RINGWAY_INSECURE",
        Kind::Switch,
        Some("off"),
        "",
        "Lets a service listen beyond this host with neither token nor TLS.",
    ),
    // Which network, and how it is driven.
    row(
        "RINGWAY_SOCKET_IFNAME",
        Kind::Interfaces,
        None,
        "",
        "Which network interfaces carry tensors. Unset, a real interface that reaches the peer is preferred to \
         loopback, docker and bridges.",
    ),
    row(
        "RINGWAY_SOCKET_FAMILY",
        Kind::OneOf(&["AF_INET", "AF_INET6"]),
        None,
        "",
        "Use only IPv4 or only IPv6 addresses. Unset, either.",
    ),
    row(
        "RINGWAY_NET",
        Kind::SomeOf(&["shm", "rdma", "tcp", "uring", "epoll"]),
        Some("auto"),
        "",
        "Which transports may be used; tcp stands for both of its drivers. With a list, a peer that none of them \
         reaches is an error.",
    ),
    row(
        "RINGWAY_IO_DRIVER",
        Kind::OneOf(&["auto", "uring", "epoll"]),
        Some("auto"),
        "",
        "How sockets are driven: auto takes io_uring where the kernel allows it and epoll elsewhere; uring fails \
         where it is not allowed.",
    ),
    row(
        "RINGWAY_CONGESTION_CONTROL",
        Kind::Text,
        Some("auto"),
        "",
        "TCP congestion control of data connections: auto picks one fit for loopback between ranks of one host \
         and leaves the system's choice elsewhere, system never changes it, any other word is the kernel's name \
         of one (reno, cubic, bbr).",
    ),
    row(
        "RINGWAY_SHM",
        Kind::OneOf(&["require", "prefer", "off"]),
        Some("prefer"),
        "",
        "Whether processes of one host move tensors by shared memory: prefer uses it between those that reach each \
         other so (one user, one network namespace); require makes it an error where they do not; off leaves them \
         to the other transports (NCCL_SHM_DISABLE=1).",
    ),
    // How RDMA is used, named as in NCCL.
    row(
        "RINGWAY_RDMA",
        Kind::OneOf(&["require", "prefer", "off"]),
        Some("prefer"),
        "",
        "Whether tensors travel by RDMA: prefer uses it with the peers that can, and TCP with the others, but \
         shared memory within a host; require makes it an error where it cannot be used, within a host too.",
    ),
    row(
        "RINGWAY_IB_HCA",
        Kind::Hcas,
        None,
        "",
        "Which RDMA devices and ports carry tensors. Unset, the fastest ones that work, near the rank's NUMA node \
         first.",
    ),
    row(
        "RINGWAY_IB_GID_INDEX",
        Kind::Index { max: 255 },
        Some("auto"),
        "",
        "The GID that RoCE uses, by its index, on every port. auto finds one by type, address family and the subnet \
         shared with the peer.",
    ),
    row(
        "RINGWAY_IB_ADDR_FAMILY",
        Kind::OneOf(&["AF_INET", "AF_INET6"]),
        None,
        "",
        "Use only RoCE GIDs that are IPv4 or only those that are IPv6 addresses. Unset, either, IPv4 first.",
    ),
    row(
        "RINGWAY_IB_ADDR_RANGE",
        Kind::AddressRange,
        None,
        "",
        "Use only RoCE GIDs within this range of addresses.",
    ),
    row(
        "RINGWAY_IB_ROCE_VERSION",
        Kind::OneOf(&["1", "2"]),
        None,
        "",
        "Use only this version of RoCE. Unset, version 2 where both sides have it.",
    ),
    row(
        "RINGWAY_IB_TC",
        Kind::Number { min: 0, max: 255 },
        Some("0"),
        "",
        "Traffic class of RDMA packets: on RoCE the byte that holds DSCP and ECN, as the switches' lossless queue wants it.",
    ),
    row("RINGWAY_IB_SL", Kind::Number { min: 0, max: 15 }, Some("0"), "", "InfiniBand's service level."),
    row(
        "RINGWAY_IB_PKEY",
        Kind::Number { min: 0, max: 255 },
        Some("0"),
        "",
        "The partition key, by its index in the port's table.",
    ),
    row(
        "RINGWAY_IB_TIMEOUT",
        Kind::Number { min: 1, max: 22 },
        Some("16"),
        "",
        "How long RDMA waits before it sends again: 4.096 us times two to this power (16: 0.27 s). NCCL's 20 takes over \
         half a minute to give up a dead path.",
    ),
    row(
        "RINGWAY_IB_RETRY_CNT",
        Kind::Number { min: 0, max: 7 },
        Some("7"),
        "",
        "How often RDMA sends again before a connection counts as broken. 7 counts as 6: soft-RoCE takes 7 for \
         ever.",
    ),
    row(
        "RINGWAY_IB_PINNED_BYTES",
        Kind::AutoOrNumber { min: 1 << 20, max: 1 << 46 },
        Some("auto"),
        "bytes",
        "How much lent memory RDMA keeps pinned at a time, counted once per device. auto: 16 GiB, or what the system \
         allows where it refuses more.",
    ),
    // How collectives are cut up and sent.
    row(
        "RINGWAY_ALGO",
        Kind::SomeOf(ALGORITHMS),
        Some("auto"),
        "",
        "The algorithm that collectives run by, where it exists for them. auto prices all of them for the size and the \
         machines at hand.",
    ),
    row(
        "RINGWAY_EAGER_BYTES",
        Kind::AutoOrNumber { min: 0, max: 1 << 30 },
        Some("auto"),
        "bytes",
        "Messages up to this size are sent before the receiver has posted its buffer; 0 sends none so.",
    ),
    row(
        "RINGWAY_SLICE_BYTES",
        Kind::AutoOrNumber { min: 4096, max: 1 << 30 },
        Some("auto"),
        "bytes",
        "Large collectives are cut into slices of this size, so that reduction and wire time overlap.",
    ),
    row(
        "RINGWAY_INTER_OP_THREADS",
        Kind::AutoOrNumber { min: 1, max: 1024 },
        Some("auto"),
        "",
        "Threads on which a task of `ringway serve` computes. auto takes as many as there are processors it may use.",
    ),
    row(
        "RINGWAY_SLICES_IN_FLIGHT",
        Kind::AutoOrNumber { min: 1, max: 16 },
        Some("auto"),
        "",
        "How many slices of one collective are under way at once.",
    ),
    row(
        "RINGWAY_CHECK",
        Kind::Switch,
        Some("on"),
        "",
        "Compare operation, type, count, reduction and order of every call between ranks, so that mismatched \
         calls are errors. It costs no round trip.",
    ),
    // How this process uses its machine.
    row(
        "RINGWAY_SPIN_US",
        Kind::AutoOrNumber { min: 0, max: 1_000_000 },
        Some("auto"),
        "us",
        "How long a waiting rank polls before it sleeps. auto polls a little, then gives way between polls to \
         others that want its core: at once where the ranks of a host outnumber its cores.",
    ),
    row(
        "RINGWAY_PIN",
        Kind::Cpus,
        Some("auto"),
        "",
        "Which processors the thread that joins, and those it starts later, run on: spread gives each local rank its \
         share of those that it may use, auto does so under ringway run while each rank has a core, a list names \
         them, off leaves it to the launcher and the system.",
    ),
    row(
        "RINGWAY_PIN_THREADS",
        Kind::OneOf(&["all", "one"]),
        Some("all"),
        "",
        "Which hardware threads of its cores a rank is bound to where ranks are spread: all, or one of each core.",
    ),
    row(
        "RINGWAY_PIN_PROGRESS",
        Kind::Cpus,
        Some("auto"),
        "",
        "Where the thread runs that moves started calls on: auto takes a core beside the rank's network device and off the \
         rank's other threads, where ranks are spread and the share has four cores or more; off leaves it with the \
         others, a list names processors for it.",
    ),
    row(
        "RINGWAY_PIN_ACCELERATORS",
        Kind::Switch,
        Some("on"),
        "",
        "Where ranks are spread and the host has as many accelerators as ranks, or more: local rank i belongs to the i-th \
         of them in the order of PCI addresses, and takes the processors, memory and RDMA device nearest to it.",
    ),
    row(
        "RINGWAY_TOPOLOGY_FILE",
        Kind::Text,
        None,
        "",
        "A file that tells which hosts hang at which switch, in the form of Slurm's topology.conf: rings and trees visit \
         ranks rack by rack. Unset, Slurm's own variables tell where its topology plugin is on.",
    ),
    row(
        "RINGWAY_HUGE_PAGES",
        Kind::OneOf(&["auto", "off"]),
        Some("auto"),
        "",
        "Ask for huge pages for tensor memory where the system allows them.",
    ),
    // How long to wait.
    row(
        "RINGWAY_HEARTBEAT_TIMEOUT_MS",
        Kind::Number { min: 100, max: DAY_MS },
        Some("10000"),
        "ms",
        "A rank that is not heard of for this long is declared dead.",
    ),
    row(
        "RINGWAY_FAILOVER_TIMEOUT_MS",
        Kind::Number { min: 1000, max: 24 * 3600 * 1000 },
        Some("60000"),
        "ms",
        "How long ranks wait for a coordination service that keeps its state (ringway serve --state or --store) when it \
         is gone, before they give up. Set where the service runs.",
    ),
    row(
        "RINGWAY_LEASE_MS",
        Kind::Number { min: 1000, max: 600_000 },
        Some("2000"),
        "ms",
        "How long a leading coordination service that has ended keeps others from leading (ringway serve --store), rounded \
         up to whole seconds; etcd may give more. Set where the service runs.",
    ),
    row(
        "RINGWAY_XLA_HEARTBEAT_TIMEOUT_MS",
        Kind::Number { min: 100, max: DAY_MS },
        Some("100000"),
        "ms",
        "The same for tasks of JAX: not less than the heartbeat_timeout_seconds that they are given.",
    ),
    row(
        "RINGWAY_PREEMPTION_GRACE_MS",
        Kind::Number { min: 0, max: DAY_MS },
        Some("20000"),
        "ms",
        "How long `ringway serve` stays after SIGTERM while tasks are connected, which are told at once.",
    ),
    row(
        "RINGWAY_SESSION_LEASE_MS",
        Kind::Number { min: 0, max: YEAR_MS },
        Some("86400000"),
        "ms",
        "How long a session of `ringway serve` lives at its master while its client asks nothing; 0 for ever.",
    ),
    row(
        "RINGWAY_WORKER_SESSION_LEASE_MS",
        Kind::Number { min: 0, max: YEAR_MS },
        Some("172800000"),
        "ms",
        "How long a session of `ringway serve` lives at a worker, with its graphs, while its master asks nothing; 0 for ever. \
         Longer than the master's.",
    ),
    row(
        "RINGWAY_CONNECT_TIMEOUT_MS",
        Kind::Number { min: 10, max: DAY_MS },
        Some("30000"),
        "ms",
        "How long a rank keeps trying to reach the coordination service or a peer.",
    ),
    row(
        "RINGWAY_JOIN_TIMEOUT_MS",
        Kind::Number { min: 10, max: DAY_MS },
        Some("120000"),
        "ms",
        "How long a rank that has reached the coordination service waits for the others to join.",
    ),
    // Work on GPUs.
    row(
        "RINGWAY_NCCL_LIBRARY",
        Kind::Text,
        None,
        "",
        "NCCL's file. Unset, the dynamic loader looks for libnccl.so.2, then libnccl.so.",
    ),
    row(
        "RINGWAY_DEVICE",
        Kind::AutoOrNumber { min: 0, max: 1023 },
        Some("auto"),
        "",
        "The GPU of this rank. auto takes the one with the rank's number on its host, from the first again behind the last.",
    ),
    row(
        "RINGWAY_DEVICE_TIMEOUT_MS",
        Kind::Number { min: 10, max: DAY_MS },
        Some("600000"),
        "ms",
        "How long a call may be under way on a GPU before its communicator is aborted.",
    ),
    // What it says.
    row(
        "RINGWAY_LOG",
        Kind::Text,
        Some("warn"),
        "",
        "What is logged to standard error, as a filter: warn, debug, ringway_dataplane=trace,info.",
    ),
    row(
        "RINGWAY_STATUS_SOCKET",
        Kind::Switch,
        Some("on"),
        "",
        "Whether each process has a local socket that answers with its status as text (nc -U), by which ringway status \
         finds jobs.",
    ),
    row(
        "RINGWAY_RUNTIME_DIR",
        Kind::Text,
        None,
        "",
        "The folder of the status sockets. Unset, it is ringway in XDG_RUNTIME_DIR, or else /tmp/ringway-UID.",
    ),
    row(
        "RINGWAY_METRICS_BIND",
        Kind::HostPort,
        None,
        "",
        "Where Prometheus finds metrics: rank r of its host at the port plus r, the coordination service of ringway run \
         behind the last rank, that of ringway serve at the port. Unset, nowhere.",
    ),
    row(
        "RINGWAY_DUMP_DIR",
        Kind::Text,
        None,
        "",
        "The folder that a rank writes its flight record to when a communicator dies. Unset, none is written.",
    ),
    row(
        "RINGWAY_DUMP_FILES",
        Kind::Number { min: 1, max: 1 << 20 },
        Some("1024"),
        "",
        "Flight records in that folder, at most: where there are so many, no more are written.",
    ),
];

/// The row of `name`, if there is such a setting.
pub fn find(name: &str) -> Option<&'static Setting> {
    TABLE.iter().find(|setting| setting.name == name)
}

/// The setting whose name is nearest to `name`, if one is near enough to have been meant: at most a third of the
/// letters differ.
pub fn nearest(name: &str) -> Option<&'static Setting> {
    let prefix = super::PREFIX.len();
    let near = |other: &str| edit_distance(&name[prefix.min(name.len())..], &other[prefix..]);
    let best = TABLE.iter().min_by_key(|setting| near(setting.name))?;
    (near(best.name) * 3 <= best.name.len() - prefix + 2).then_some(best)
}

/// Levenshtein distance in bytes; setting names are ASCII.
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_prefixed_and_documented() {
        for (i, setting) in TABLE.iter().enumerate() {
            assert!(setting.name.starts_with(super::super::PREFIX), "{}", setting.name);
            assert!(setting.doc.ends_with('.'), "{}: the doc is not a sentence", setting.name);
            assert!(!TABLE[..i].iter().any(|other| other.name == setting.name), "{} twice", setting.name);
            if let Some(unit) = setting.name.strip_prefix("RINGWAY_").and_then(|n| n.rsplit('_').next()) {
                let expected = match unit {
                    "BYTES" => "bytes",
                    "MS" => "ms",
                    "US" => "us",
                    _ => "",
                };
                assert_eq!(setting.unit, expected, "{}: the unit is last in the name", setting.name);
            }
        }
    }

    #[test]
    fn every_algorithm_can_be_asked_for() {
        use ringway_collectives::schedule::Algorithm;
        let names: Vec<String> =
            Algorithm::ALL.iter().map(|algorithm| algorithm.to_string().to_lowercase()).collect();
        assert_eq!(names, ALGORITHMS);
        for name in ALGORITHMS {
            assert!(name.parse::<Algorithm>().is_ok(), "{name}");
        }
    }

    #[test]
    fn nearest_finds_slips_and_not_strangers() {
        assert_eq!(nearest("RINGWAY_SOCKET_IFNAM").unwrap().name, "RINGWAY_SOCKET_IFNAME");
        assert_eq!(nearest("RINGWAY_HEARTBEAT_TIMEOUT").unwrap().name, "RINGWAY_HEARTBEAT_TIMEOUT_MS");
        assert_eq!(nearest("RINGWAY_ALGOS").unwrap().name, "RINGWAY_ALGO");
        assert!(nearest("RINGWAY_FAVOURITE_COLOUR").is_none());
    }

    #[test]
    fn edit_distance_of_known_pairs() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("same", "same"), 0);
    }
}
