//! The flags of `ringway bench p2p`.

use crate::cli::bench::args::SweepArgs;
use clap::{Args, ValueEnum};

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli::bench) enum Op {
    /// As everywhere in Ringway: small messages eagerly, into memory of the transport, large ones once they are
    /// received, straight into the receiver's
    Send,
    /// Each straight into the memory of a receive that was posted before, however small: what a transport does with
    /// large messages (over RDMA, a one-sided write)
    Write,
    /// By the rendezvous: each message is a value that one rank has and the other asks for by its key
    Tensor,
}

impl Op {
    /// Name in titles, CSV and JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Op::Send => "send",
            Op::Write => "write",
            Op::Tensor => "tensor",
        }
    }
}

/// What is measured of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli::bench) enum Measure {
    /// Half of a round trip, one message at a time
    Latency,
    /// Many messages under way at once
    Bandwidth,
}

/// Latency and bandwidth of messages between two ranks, in the manner of perftest, all checked
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  ringway bench p2p                                two ranks on this host
  ringway bench p2p --op write -b 4K -e 8M -f 2    straight into posted receives
  ringway bench p2p --bidirectional --window 16    both ways at once
  ringway bench p2p --only latency --iters 10000   as ib_send_lat -n 10000
  ringway bench p2p --op tensor -b 8 -e 64M -f 8   values by key, asked for by rank 0
  mpirun -n 2 ringway bench p2p                    under a launcher: between its two ranks

Columns: t_min, t_typ (median), t_avg, t_p99 and t_max are of half a round trip, in
microseconds, as ib_send_lat prints them. MiB/s (2^20 bytes; perftest prints the same number
as MB/sec) and rate (millions of messages a second) are by the time from the first message
to the receiver's word that it has the last, over both directions with --bidirectional. Below
64 MiB of messages, --window of them are under way at once, or as many as the transport
takes. #wrong must be 0.

Round trips of up to 4 KiB are made by blocking sends and receives, one after the other, as
small questions and answers are; longer messages, and all with --op write, go into receives
that are posted ahead.

Both ranks poll while they wait, as perftest does; with --events they sleep after a while
(RINGWAY_SPIN_US), as ranks do everywhere else. With --op tensor they always do, half of a
round trip is half of the time from a question to its value, and a window of values is asked
for at a time.

Exit codes: 0; 1 when a call failed or a byte was wrong; 2 and 125 when flags or settings do not
fit, or ranks cannot reach each other.")]
pub(crate) struct P2pArgs {
    /// How messages travel
    #[arg(long, value_enum, default_value = "send")]
    pub(super) op: Op,
    #[command(flatten)]
    pub(super) sweep: SweepArgs,
    /// Measure only this
    #[arg(long, value_enum)]
    pub(super) only: Option<Measure>,
    /// Messages under way at once, per direction, while bandwidth is measured
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=128))]
    pub(super) window: u64,
    /// Sleep while there is nothing to do, instead of polling
    #[arg(long)]
    pub(super) events: bool,
    /// Measure bandwidth in both directions at once
    #[arg(long)]
    pub(super) bidirectional: bool,
}

impl P2pArgs {
    /// Whether this is measured.
    pub(super) fn measures(&self, what: Measure) -> bool {
        self.only.is_none_or(|only| only == what)
    }
}
