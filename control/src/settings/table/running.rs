//! Rows of how collectives are run, and how a process uses its machine.

use super::{Setting, row};
use crate::settings::kind::Kind;

/// In order.
pub(super) const ROWS: &[Setting] = &[
    // How collectives are cut up and sent.
    row(
        "RINGWAY_ALGO",
        Kind::Algorithms,
        Some("auto"),
        "",
        "The algorithms that collectives may run by, where they exist for them. Of those, and of all with auto, the one is \
         taken that was measured (RINGWAY_TUNING_FILE) or computed to be quickest for the size and the machines at hand.",
    ),
    row(
        "RINGWAY_TUNING_FILE",
        Kind::Text,
        None,
        "",
        "What `ringway tune` wrote: costs of links, and the quickest algorithm by size. The file of rank 0's host holds for \
         all ranks.",
    ),
    row(
        "RINGWAY_EAGER_BYTES",
        Kind::AutoOrNumber { min: 0, max: 1 << 30 },
        Some("auto"),
        "bytes",
        "Messages up to this size are sent before the receiver has posted its buffer; 0 sends none so. Those of all-reduces of \
         two ranks in shared memory may have 64 KiB, unless it is 0.",
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
    row(
        "RINGWAY_REPRODUCIBLE",
        Kind::Switch,
        Some("off"),
        "",
        "Combine floating-point numbers in the order of ranks, so that results are the same bits for any algorithm, places \
         of ranks and split into calls. docs/collectives.md says what it costs. The same on all ranks.",
    ),
    row(
        "RINGWAY_HALF_IN_F32",
        Kind::Switch,
        Some("off"),
        "",
        "Send and combine f16 and bf16 as f32, and round once, at the end: twice the bytes. The same on all ranks.",
    ),
    row(
        "RINGWAY_F32_IN_BF16",
        Kind::Switch,
        Some("off"),
        "",
        "Send and combine f32 as bf16: half the bytes, and an error of a sum of up to (ranks + 1) / 256 of the sum of sizes. \
         The same on all ranks.",
    ),
    // How this process uses its machine.
    row(
        "RINGWAY_SPIN_US",
        Kind::AutoOrNumber { min: 0, max: 1_000_000 },
        Some("auto"),
        "us",
        "How long a waiting rank polls before it sleeps. auto polls a little, then gives way between polls to \
         others that want its core, and sleeps after 20 us, or after up to 200 while its waits end within that. Where \
         the ranks of a host outnumber its cores it gives way at once and sleeps after 25 us. A number is kept to.",
    ),
    row(
        "RINGWAY_PROGRESS",
        Kind::OneOf(&["thread", "caller"]),
        Some("thread"),
        "",
        "Who moves started calls on: a thread of the library's, or only the program's own threads while they make any \
         call, wait for a handle, ask whether it is done, poll it, or call Communicator::progress. A rank that computes \
         for long between such calls holds the others up for as long, and hears of failures when it makes the next.",
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
        "Where the thread runs that moves started calls on, unless RINGWAY_PROGRESS=caller: auto takes a core beside the \
         rank's network device and off the rank's other threads, where ranks are spread and the share has four cores or \
         more; off leaves it with the others, a list names processors for it.",
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
];
