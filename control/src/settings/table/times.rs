//! Rows of how long things may take, of GPUs, and of what a process says.

use super::{Setting, row};
use crate::settings::kind::Kind;

/// One day in milliseconds: the longest wait that any setting may ask for.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Longest lease.
const YEAR_MS: u64 = 365 * DAY_MS;

/// In order.
pub(super) const ROWS: &[Setting] = &[
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
