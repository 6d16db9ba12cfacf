//! Rows of who a process is, and who may take part.

use super::{MAX_WORLD_SIZE, Setting, row};
use crate::settings::kind::Kind;

/// A number of ranks.
const fn ranks(name: &'static str, doc: &'static str) -> Setting {
    row(name, Kind::Number { min: 1, max: MAX_WORLD_SIZE }, None, "", doc)
}

/// In order.
pub(super) const ROWS: &[Setting] = &[
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
];
