//! The flags of `ringway bench`: those of nccl-tests where they mean the same, and for messages those of perftest.

use super::device::On;
use super::p2p::P2pArgs;
use super::printer::Format;
use super::sizes::{self, Growth};
use clap::{Args, Subcommand, ValueEnum};
use ringway_collectives::reduce::ReduceOp;
use ringway_collectives::schedule::Collective;
use ringway_dataplane::memory::DType;
use std::time::Duration;

/// Timed iterations when they are chosen by time: fewest.
const FEWEST_ITERATIONS: u64 = 10;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Bench {
    /// Every rank ends with the reduction of all vectors
    #[value(alias = "all_reduce", alias = "allreduce")]
    AllReduce,
    /// Rank r ends with the r-th block of the reduction
    #[value(alias = "reduce_scatter", alias = "reducescatter")]
    ReduceScatter,
    /// Every rank ends with the blocks of all
    #[value(alias = "all_gather", alias = "allgather")]
    AllGather,
    /// Every rank ends with the root's vector
    Broadcast,
    /// The root ends with the reduction of all vectors
    Reduce,
    /// The root ends with the blocks of all
    Gather,
    /// Every rank ends with its block of the root's vector
    Scatter,
    /// Rank r ends with the r-th block of every rank
    #[value(alias = "all_to_all", alias = "alltoall")]
    AllToAll,
    /// As all-gather, in blocks whose lengths rise from rank to rank
    #[value(alias = "all_gather_v", alias = "allgatherv")]
    AllGatherV,
    /// As reduce-scatter, in such blocks
    #[value(alias = "reduce_scatter_v", alias = "reducescatterv")]
    ReduceScatterV,
    /// As all-to-all, in such blocks
    #[value(alias = "all_to_all_v", alias = "alltoallv")]
    AllToAllV,
    /// Rank r ends with the reduction of ranks 0 to r
    Scan,
    /// Rank r ends with the reduction of the ranks below it
    #[value(alias = "exclusive_scan", alias = "exscan")]
    ExclusiveScan,
    /// Every rank sends to the next and receives from the one before
    #[value(alias = "send_recv", alias = "sendrecv")]
    SendRecv,
}

impl Bench {
    /// Name in CSV and JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Bench::AllReduce => "all_reduce",
            Bench::ReduceScatter => "reduce_scatter",
            Bench::AllGather => "all_gather",
            Bench::Broadcast => "broadcast",
            Bench::Reduce => "reduce",
            Bench::Gather => "gather",
            Bench::Scatter => "scatter",
            Bench::AllToAll => "all_to_all",
            Bench::AllGatherV => "all_gather_v",
            Bench::ReduceScatterV => "reduce_scatter_v",
            Bench::AllToAllV => "all_to_all_v",
            Bench::Scan => "scan",
            Bench::ExclusiveScan => "exclusive_scan",
            Bench::SendRecv => "sendrecv",
        }
    }

    /// The collective that it calls; `None` for messages.
    pub(super) fn collective(self) -> Option<Collective> {
        let name = self.name();
        name.strip_suffix("_v").unwrap_or(name).parse().ok()
    }

    /// Whether its blocks are of unequal lengths.
    pub(super) fn is_ragged(self) -> bool {
        matches!(self, Bench::AllGatherV | Bench::ReduceScatterV | Bench::AllToAllV)
    }

    /// Whether its results are of the ranks up to each one.
    pub(super) fn is_scan(self) -> bool {
        matches!(self, Bench::Scan | Bench::ExclusiveScan)
    }

    /// Whether a rank's vector is made of one block per rank.
    pub(super) fn is_blocked(self) -> bool {
        use Bench::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
        self.is_ragged() || matches!(self, ReduceScatter | AllGather | Gather | Scatter | AllToAll)
    }

    /// Whether it combines values.
    pub(super) fn reduces(self) -> bool {
        use Bench::{AllReduce, Reduce, ReduceScatter, ReduceScatterV};
        self.is_scan() || matches!(self, AllReduce | ReduceScatter | ReduceScatterV | Reduce)
    }

    /// Whether it is measured where NCCL connects parts of the ranks alone.
    fn crosses_hosts_of_gpus(self) -> bool {
        matches!(self, Bench::AllReduce | Bench::Broadcast | Bench::AllGather | Bench::SendRecv)
    }

    /// Whether one rank is special.
    pub(super) fn is_rooted(self) -> bool {
        matches!(self, Bench::Broadcast | Bench::Reduce | Bench::Gather | Bench::Scatter)
    }

    /// busbw / algbw, as nccl-tests defines it (its doc/PERFORMANCE.md); for a scan, which it has not, that of a reduction.
    pub(super) fn bus_factor(self, ranks: u32) -> f64 {
        let n = f64::from(ranks);
        match self {
            Bench::AllReduce => 2.0 * (n - 1.0) / n,
            _ if self.is_blocked() => (n - 1.0) / n,
            _ => 1.0,
        }
    }
}

/// Measure a collective in the manner of nccl-tests, or messages in that of perftest; all is checked
#[derive(Args, Clone, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "ringway bench [OPTIONS] <COLLECTIVE>\n       ringway bench p2p [OPTIONS]"
)]
#[command(subcommand_help_heading = "Messages between two ranks")]
#[command(after_help = "Examples:
  ringway bench all-reduce -n 4                     four ranks on this host
  ringway bench all-gather -n 2 -b 1K -e 16M -f 2   each size twice the one before
  ringway bench broadcast -n 3 -r 1 --sizes 4K,1M   two sizes, from rank 1
  ringway bench all-reduce -n 4 --csv > table.csv   for a spreadsheet; --json for scripts
  mpirun -n 4 ringway bench all-reduce              under a launcher: its ranks, on any hosts
  RINGWAY_ALGO=ring ringway bench all-reduce -n 4   what a setting changes
  ringway bench p2p --op write                      messages: ringway bench p2p --help

Columns: time is the mean of the timed iterations, p50 and p99 their percentiles. algbw is
size / p50, and busbw is algbw times nccl-tests' factor: the traffic that each rank's link
carries. size is rounded up to whole elements, to whole blocks of all ranks where the
collective has blocks. #wrong must be 0.

As in nccl-tests, except: -n is the number of ranks (iterations: --iters), and the defaults
of -e and -f.

Exit codes: 0; 1 when a call failed or an element was wrong; 2 and 125 when flags or settings do not
fit, or ranks cannot reach each other.")]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(super) collective: CollectiveArgs,
    #[command(subcommand)]
    pub(super) messages: Option<Messages>,
}

/// What is measured between two ranks.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Messages {
    P2p(P2pArgs),
}

/// The flags of a collective.
#[derive(Args, Clone, Debug)]
pub(crate) struct CollectiveArgs {
    /// What to measure
    #[arg(value_enum, required = true)]
    collective: Option<Bench>,
    /// Ranks to start on this host; under a launcher (ringway run, mpirun, srun, torchrun) it joins that one's instead
    #[arg(short = 'n', long, value_name = "RANKS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(super) ranks: Option<u32>,
    #[command(flatten)]
    pub(super) sweep: SweepArgs,
    /// Element type: f16, bf16, f32, f64, i8 .. i64, u8 .. u64, bool
    #[arg(short = 'd', long, default_value = "f32")]
    pub(super) datatype: DType,
    /// Reduction: sum, prod, min, max, avg, and, or, xor
    #[arg(short = 'o', long, default_value = "sum")]
    pub(super) op: ReduceOp,
    /// Root of broadcast, reduce, gather and scatter
    #[arg(short = 'r', long, default_value_t = 0)]
    pub(super) root: u32,
    /// Whose memory: cpu, cuda (each rank's own GPU, by NCCL), or cuda:N
    #[arg(long, default_value = "cpu")]
    pub(super) device: On,
    /// With --device cuda: NCCL connects so many neighbouring ranks (0: those of each host), and ringway's transports the rest
    #[arg(long, value_name = "RANKS")]
    pub(super) inside: Option<u32>,
    /// Use the started (asynchronous) form where there is one
    #[arg(long)]
    pub(super) started: bool,
    /// Buffers of the program's own memory, instead of memory that transports know before
    #[arg(long, conflicts_with = "started")]
    pub(super) plain: bool,
    /// Combine in the order of ranks: the same bits for any algorithm, places and split into calls (RINGWAY_REPRODUCIBLE)
    #[arg(long)]
    pub(super) reproducible: bool,
    /// Before measuring, print what each size is run by, and what every algorithm would cost by the model
    #[arg(long, conflicts_with_all = ["json", "csv"])]
    pub(super) explain: bool,
    /// Measure how much of a started all-reduce is hidden under computation instead, by a thread or by the caller
    /// (RINGWAY_PROGRESS)
    #[arg(long, conflicts_with_all = ["json", "csv", "explain"])]
    pub(super) overlap: bool,
}

/// Which sizes are measured, how often, and how the table is printed.
#[derive(Args, Clone, Debug)]
pub(crate) struct SweepArgs {
    /// Smallest size of the sweep in bytes; K, M and G mean powers of 1024
    #[arg(short = 'b', long, value_parser = sizes::parse, default_value = "8")]
    minbytes: u64,
    /// Largest size of the sweep
    #[arg(short = 'e', long, value_parser = sizes::parse, default_value = "64M")]
    maxbytes: u64,
    /// Each size is the one before times this
    #[arg(short = 'f', long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..))]
    stepfactor: u64,
    /// Each size is the one before plus this many bytes, instead of -f
    #[arg(short = 'i', long, value_parser = sizes::parse)]
    stepbytes: Option<u64>,
    /// These sizes, instead of a sweep (comma-separated)
    #[arg(long, value_delimiter = ',', value_parser = sizes::parse, conflicts_with_all = ["stepbytes"])]
    sizes: Vec<u64>,
    /// Timed iterations per size; otherwise at least 10, and as many as fit --budget-ms
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    iters: Option<u64>,
    /// Time per size that the number of iterations is chosen by
    #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u64).range(1..))]
    budget_ms: u64,
    /// Warm-up iterations per size
    #[arg(short = 'w', long, default_value_t = 5)]
    pub(super) warmup_iters: u64,
    /// Check all that arrives, before and after the timed iterations: 1 yes, 0 no
    #[arg(short = 'c', long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    check: u8,
    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print comma-separated values
    #[arg(long)]
    csv: bool,
}

impl CollectiveArgs {
    /// What to measure.
    pub(super) fn bench(&self) -> Bench {
        self.collective.unwrap_or_else(|| unreachable!("required where messages are not what is measured"))
    }

    /// Refuses flags that do not fit each other, before any rank is started.
    pub(super) fn check_flags(&self) -> Result<(), String> {
        self.sweep.check_flags()?;
        if self.bench().reduces() && !self.op.supports(self.datatype) {
            return Err(format!("-o {} is not defined on -d {}", self.op, self.datatype));
        }
        if self.inside.is_some()
            && (self.device == On::Cpu || !self.bench().crosses_hosts_of_gpus() || self.started)
        {
            return Err("--inside measures all-reduce, broadcast, all-gather and send-recv, blocking, with --device cuda \
                        only"
                .to_owned());
        }
        if self.plain && (self.device != On::Cpu || self.overlap) {
            return Err("--plain measures blocking collectives in memory of the host only".to_owned());
        }
        if self.overlap && (self.bench() != Bench::AllReduce || self.device != On::Cpu) {
            return Err("--overlap measures all-reduce in memory of the host only".to_owned());
        }
        if self.explain && (self.bench() == Bench::SendRecv || self.device != On::Cpu) {
            return Err("--explain tells of collectives in memory of the host only".to_owned());
        }
        if self.device != On::Cpu && (self.bench().is_ragged() || self.bench().is_scan() || self.reproducible)
        {
            return Err("unequal blocks, scans and --reproducible are for memory of the host only".to_owned());
        }
        if self.started && self.bench() != Bench::AllReduce {
            return Err("--started measures all-reduce only".to_owned());
        }
        Ok(())
    }

    /// Refuses a root that is not among the ranks.
    pub(super) fn check_root(&self, ranks: u32) -> Result<(), String> {
        if self.root < ranks {
            return Ok(());
        }
        let last = ranks.saturating_sub(1);
        Err(format!("-r {} is no rank: give one from 0 to {last}, or start more with -n", self.root))
    }
}

impl SweepArgs {
    /// Refuses flags that do not fit each other.
    pub(super) fn check_flags(&self) -> Result<(), String> {
        if self.minbytes > self.maxbytes && self.sizes.is_empty() {
            return Err(format!("-b {} is above -e {}", self.minbytes, self.maxbytes));
        }
        Ok(())
    }

    /// The sizes to measure, in order.
    pub(super) fn size_list(&self) -> Vec<u64> {
        if !self.sizes.is_empty() {
            return self.sizes.clone();
        }
        let growth = self.stepbytes.map_or(Growth::Factor(self.stepfactor), Growth::Step);
        sizes::sweep(self.minbytes, self.maxbytes, growth)
    }

    /// Whether all that arrives is checked.
    pub(super) fn checks(&self) -> bool {
        self.check == 1
    }

    /// Timed iterations of a size whose iterations take so long, `most` unless the flags say how many.
    pub(super) fn iterations(&self, each: Duration, most: u64) -> u64 {
        self.iters.unwrap_or_else(|| {
            let fit = u128::from(self.budget_ms) * 1_000_000 / each.as_nanos().max(1);
            u64::try_from(fit).unwrap_or(u64::MAX).clamp(FEWEST_ITERATIONS, most)
        })
    }

    /// The part of a table's title about the sweep.
    pub(super) fn title(&self) -> String {
        let sizes = self.size_list();
        format!(
            "{} B to {} B, warm-up {}, {}",
            sizes.first().copied().unwrap_or(0),
            sizes.last().copied().unwrap_or(0),
            self.warmup_iters,
            if self.checks() { "every element checked" } else { "not checked" },
        )
    }

    /// How rows are printed.
    pub(super) fn format(&self) -> Format {
        match (self.json, self.csv) {
            (true, _) => Format::Json,
            (_, true) => Format::Csv,
            _ => Format::Table,
        }
    }
}
