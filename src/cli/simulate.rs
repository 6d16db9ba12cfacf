//! `ringway simulate`: what a collective would take on machines that are not there, by algorithm: its time, who is busiest,
//! and what would be chosen.

use ringway::{Settings, SettingsError};
use ringway_collectives::schedule::simulate::{
    Network, Place, Price, Resource, SharedCores, Workload, distinct_ranks, price, price_behind_barrier,
};
use ringway_collectives::schedule::{
    Arranged, Arrangement, Basis, Choice, Collective, Costs, Estimate, Priced, Schedule, TUNING_LIMIT_BYTES,
    Tuning, TuningError, choose, estimate_over_hosts, prices,
};
use ringway_control::launch::{FABRIC_LIMIT_BYTES, Fabric, FabricError};
use ringway_control::settings::read_text;
use ringway_topology::Rank;
use ringway_topology::model::order::{Location, Site, hosts_in_order, rails_per_host, ring_order};
use serde::Serialize;
use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// The most messages (of all slices, and of all ranks that do not do the same) that are simulated one by one.
const MOST_MESSAGES: u64 = 4_000_000;
/// What it takes until another rank of a core runs, in microseconds, where nothing was measured.
const SWITCH_US: f64 = 1.0;
/// The most steps of a rank whose peers are counted.
const MOST_STEPS: u64 = 100_000;
/// Rounds of slices in flight after which a run is in its stride, for what is extended from there.
const STRIDES: [u32; 2] = [3, 6];

/// Say what a collective would take on machines that are not there
#[derive(clap::Args)]
#[command(after_help = "Examples:
  ringway simulate --ranks 8192 --hosts 1024 --size 1G
  ringway simulate --ranks 512 --hosts 64 --sizes 8,64K,1M,64M --collective broadcast
  ringway simulate --ranks 64 --hosts 8 --topology topology.conf --size 64M --json
  ringway simulate --ranks 64 --hosts 8 --rails 8 --tuning tuning.txt

Ranks stand host by host. --topology is a file in the form of Slurm's topology.conf whose hosts are host0, host1 and so on;
ranks are then visited switch by switch, and --uplink is how much the links between switches carry. Costs of links are
those that are chosen by without a measurement, or those of a file of ringway tune.

Column by: simulated, every message of every slice (of ranks that do the same on hosts that are alike, those of one host for
all); extended, several slices were simulated and the rest goes on at the pace
of the last; formula, too many messages even for that.")]
pub(crate) struct Args {
    /// Ranks
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    ranks: u32,
    /// Hosts that they are on, evenly [default: 1]
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    hosts: u32,
    /// Network interfaces of each host
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    rails: u32,
    /// Cores of each host, where its ranks have to share them [default: one for each]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    cores: Option<u32>,
    /// What it takes until another rank of a core runs, in microseconds [default: what ringway tune measured, else 1]
    #[arg(long, value_name = "US", requires = "cores", value_parser = switch_us)]
    switch_us: Option<f64>,
    /// Which hosts hang at which switch
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// What a switch's link to the others carries, in GB/s [default: as much as its hosts send]
    #[arg(long, value_name = "GB/S", requires = "topology")]
    uplink: Option<f64>,
    /// Bytes; K, M and G mean powers of 1024
    #[arg(long, alias = "sizes", value_delimiter = ',', value_parser = super::bench::size, default_value = "64M")]
    size: Vec<u64>,
    /// The collective
    #[arg(long, default_value = "all_reduce")]
    collective: Collective,
    /// Algorithms, in the grammar of RINGWAY_ALGO [default: what that says]
    #[arg(long)]
    algo: Option<ringway_collectives::schedule::Wanted>,
    /// Costs and choices from a file of ringway tune [default: RINGWAY_TUNING_FILE]
    #[arg(long, value_name = "FILE")]
    tuning: Option<PathBuf>,
    /// Bytes of every chunk that a slice covers [default: what is chosen for the size]
    #[arg(long, value_name = "BYTES", value_parser = super::bench::size)]
    slice: Option<u64>,
    /// The time as ringway bench measures it: the longest on any rank, from when it leaves a barrier
    #[arg(long)]
    behind_barrier: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Why nothing was simulated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SimulateError {
    /// A setting is wrong.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A file cannot be read.
    #[error("{path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file of switches says what cannot be.
    #[error("{path}: {source}", path = path.display())]
    Fabric {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: FabricError,
    },
    /// The file of what was measured says what cannot be.
    #[error("{path}: {source}", path = path.display())]
    Tuning {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: TuningError,
    },
    /// The flags do not fit each other.
    #[error("{0}")]
    Flags(String),
    /// The table could not be printed.
    #[error("printing the table: {0}")]
    Output(#[from] std::io::Error),
}

/// A line of the table. Times in microseconds.
#[derive(Debug, Serialize)]
struct Row {
    collective: String,
    ranks: u32,
    hosts: u32,
    size_bytes: u64,
    algorithm: String,
    chosen: bool,
    why: Option<String>,
    time_us: f64,
    by: &'static str,
    algbw_gb_s: f64,
    slice_bytes: u64,
    slices_in_flight: u32,
    /// Peers that the busiest rank sends to or receives from; absent where there are too many messages to look at.
    peers: Option<usize>,
    /// What is in use longest, and the share of the time it is; absent where messages were not simulated.
    busiest: Option<String>,
    busiest_share: Option<f64>,
    /// Bytes over it.
    busiest_bytes: Option<f64>,
    /// Bytes that the busiest interface of a host sends.
    interface_bytes: Option<f64>,
}

/// The machine, and what is chosen by.
struct Machine {
    group: Arrangement,
    network: Network,
    costs: Costs,
    tuning: Option<Tuning>,
    wanted: ringway_collectives::schedule::Wanted,
}

/// Simulates, and prints the table.
///
/// # Errors
/// [`SimulateError`]; the message says what to do.
pub(crate) fn run(args: &Args) -> Result<ExitCode, SimulateError> {
    let settings = Settings::from_env()?;
    let machine = Machine::of(args, &settings)?;
    let mut rows = Vec::new();
    for &bytes in &args.size {
        rows.extend(machine.rows(args, bytes));
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &rows).map_err(std::io::Error::from)?;
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        out,
        "# ringway {} simulate: {} of {} ranks on {} hosts, interfaces of each: {}",
        env!("CARGO_PKG_VERSION"),
        args.collective,
        args.ranks,
        args.hosts,
        args.rails
    )?;
    writeln!(
        out,
        "#       size  algorithm              time (us)   algbw  by            slice  in flight  peers  busiest"
    )?;
    for row in &rows {
        let mark = if row.chosen { "*" } else { " " };
        let peers = row.peers.map_or("-".to_owned(), |peers| peers.to_string());
        let busiest = match (&row.busiest, row.busiest_share, row.busiest_bytes) {
            (Some(name), Some(share), Some(bytes)) => {
                format!("{name} {:.0} % of the time, {:.3} MB", share * 100.0, bytes / 1e6)
            }
            _ => "-".to_owned(),
        };
        writeln!(
            out,
            "{:>12} {mark} {:<16} {:>14.1}  {:>6.2}  {:<9}  {:>9}  {:>9}  {:>5}  {busiest}",
            row.size_bytes,
            row.algorithm,
            row.time_us,
            row.algbw_gb_s,
            row.by,
            row.slice_bytes,
            row.slices_in_flight,
            peers
        )?;
    }
    writeln!(out, "# * is chosen")?;
    Ok(ExitCode::SUCCESS)
}

/// A time that makes sense.
fn switch_us(text: &str) -> Result<f64, String> {
    let us: Result<f64, _> = text.parse();
    us.ok()
        .filter(|us| (0.0..=1e6).contains(us))
        .ok_or_else(|| "give microseconds, from 0 to 1000000".to_owned())
}

fn read(path: &PathBuf, limit_bytes: u64) -> Result<String, SimulateError> {
    read_text(path, limit_bytes).map_err(|source| SimulateError::Read { path: path.clone(), source })
}

impl Machine {
    fn of(args: &Args, settings: &Settings) -> Result<Machine, SimulateError> {
        if args.hosts > args.ranks || !args.ranks.is_multiple_of(args.hosts) {
            let (ranks, hosts) = (args.ranks, args.hosts);
            return Err(SimulateError::Flags(format!(
                "--ranks {ranks} do not stand evenly on --hosts {hosts}: give a multiple"
            )));
        }
        let tuned = args.tuning.clone().or_else(|| settings.tuning_file.as_ref().map(PathBuf::from));
        let tuning = match tuned {
            None => None,
            Some(path) => {
                let parsed = read(&path, TUNING_LIMIT_BYTES as u64)?.parse();
                Some(parsed.map_err(|source| SimulateError::Tuning { path, source })?)
            }
        };
        let costs = tuning.as_ref().map_or_else(Costs::default, |tuning: &Tuning| tuning.costs);
        let wanted = args.algo.unwrap_or(settings.algo);
        let (locations, places) = laid_out(args)?;
        let order: Vec<u32> = ring_order(&locations).into_iter().map(|rank| rank.0).collect();
        let group = Arrangement::new(&order, &hosts_in_order(&locations))
            .ok_or_else(|| SimulateError::Flags(format!("{} ranks are too many", args.ranks)))?
            .with_rails(rails_per_host(&locations));
        let uplink_bytes_per_us = args.uplink.map_or(f64::INFINITY, |gigabytes| gigabytes * 1e3);
        let core_costs = tuning.as_ref().and_then(Tuning::core);
        let shared = args.cores.filter(|cores| *cores < args.ranks / args.hosts).map(|cores| {
            let per_host = args.ranks / args.hosts;
            // As ranks are bound: dealt out (I2 of `topology/src/model/place`).
            let core = |rank: u32| rank / per_host * cores + rank % per_host % cores;
            let measured = core_costs.and_then(|core| core.switch_us);
            let switch_us = args.switch_us.or(measured).unwrap_or(SWITCH_US);
            SharedCores { cores: (0..args.ranks).map(core).collect(), switch_us }
        });
        let (inside, between) = (costs.inside, costs.between);
        let call_us = core_costs.map_or(0.0, |core| core.call_us);
        let passing_bytes_per_us = None;
        let network =
            Network { places, inside, between, uplink_bytes_per_us, call_us, passing_bytes_per_us, shared };
        Ok(Machine { group, network, costs, tuning, wanted })
    }

    fn rows(&self, args: &Args, bytes: u64) -> Vec<Row> {
        let basis = Basis { wanted: self.wanted, tuning: self.tuning.as_ref() };
        let choice = choose(args.collective, &self.group, bytes, &self.costs, basis);
        let all = prices(args.collective, &self.wanted, |algorithm| {
            estimate_over_hosts(args.collective, algorithm, &self.group, bytes, &self.costs)
        });
        let permitted = all.filter(|p| p.permitted || choice.is_some_and(|c| c.algorithm == p.algorithm));
        permitted.filter_map(|priced| self.row(args, bytes, priced, choice)).collect()
    }

    fn row(&self, args: &Args, bytes: u64, priced: Priced, choice: Option<Choice>) -> Option<Row> {
        let Priced { algorithm, estimate, .. } = priced;
        let chosen = choice.filter(|choice| choice.algorithm == algorithm);
        let (slice_bytes, slices_in_flight) = match chosen {
            Some(choice) => (choice.slice_bytes, choice.slices_in_flight),
            None => (estimate.slice_bytes, estimate.slices_in_flight),
        };
        let slice_bytes = args.slice.unwrap_or(slice_bytes).max(1);
        let schedule = self.group.schedule(args.collective, algorithm, 0)?;
        let distinct =
            if args.behind_barrier { args.ranks } else { distinct_ranks(&schedule, &self.network) };
        let messages = messages(&schedule, distinct);
        let work = Workload { bytes, slice_bytes, slices_in_flight };
        // Large vectors lie in memory, small ones in caches.
        let costs = self.tuning.as_ref().map_or(self.costs, |tuning| tuning.costs_of(bytes));
        let passing_bytes_per_us = self.tuning.as_ref().and_then(|tuning| tuning.passing_bytes_per_us(bytes));
        let network = Network { inside: costs.inside, passing_bytes_per_us, ..self.network.clone() };
        let call =
            Call { schedule: &schedule, network: &network, collective: args.collective, work, messages };
        let found = call.time(args.behind_barrier, &estimate);
        let load = found.price.as_ref().and_then(Price::busiest);
        let interface = found.price.as_ref().and_then(|price| {
            let out = price.loads.iter().filter(|load| matches!(load.resource, Resource::HostOut(_)));
            out.map(|load| load.bytes).max_by(f64::total_cmp)
        });
        Some(Row {
            collective: args.collective.to_string(),
            ranks: args.ranks,
            hosts: args.hosts,
            size_bytes: bytes,
            algorithm: algorithm.to_string(),
            chosen: chosen.is_some(),
            why: chosen.map(|choice| choice.why.to_string()),
            time_us: found.time_us,
            by: found.by,
            algbw_gb_s: if found.time_us > 0.0 { bytes as f64 / found.time_us / 1e3 } else { 0.0 },
            slice_bytes,
            slices_in_flight,
            peers: (u64::from(schedule.steps(0)) <= MOST_STEPS).then(|| peers(&schedule)),
            busiest: load.map(|load| name(load.resource)),
            busiest_share: load.map(|load| load.busy_us / found.simulated_us.max(1e-9)),
            busiest_bytes: load.map(|load| load.bytes * found.scale),
            interface_bytes: interface.map(|bytes| bytes * found.scale),
        })
    }
}

/// What is to be simulated.
struct Call<'a> {
    schedule: &'a Arranged,
    network: &'a Network,
    collective: Collective,
    work: Workload,
    /// Of one slice.
    messages: u64,
}

impl Call<'_> {
    /// The time of a schedule, as exactly as its number of messages allows.
    fn time(&self, behind_barrier: bool, estimate: &Estimate) -> Found {
        let Call { schedule, network, collective, ref work, messages } = *self;
        let by_formula =
            Found { time_us: estimate.time_us, simulated_us: 0.0, by: "formula", price: None, scale: 1.0 };
        let slices = slices(schedule, collective, work);
        let simulated = |slices_run: u64| {
            let share = slices_run as f64 / slices as f64;
            let bytes = (work.bytes as f64 * share).ceil() as u64;
            // Chunks of a part have as many bytes in each slice as those of the whole.
            let work = Workload { bytes, ..*work };
            let priced = match behind_barrier {
                true => price_behind_barrier(schedule, collective, network, &work),
                false => price(schedule, collective, network, &work),
            };
            priced.ok()
        };
        if messages.saturating_mul(slices) <= MOST_MESSAGES {
            let Some(price) = simulated(slices) else { return by_formula };
            let time_us = price.time_us;
            return Found { time_us, simulated_us: time_us, by: "simulated", price: Some(price), scale: 1.0 };
        }
        let [few, more] = STRIDES.map(|strides| u64::from(strides * work.slices_in_flight));
        if messages.saturating_mul(few + more) > MOST_MESSAGES || more >= slices {
            return by_formula;
        }
        let (Some(first), Some(second)) = (simulated(few), simulated(more)) else { return by_formula };
        let each = (second.time_us - first.time_us) / (more - few) as f64;
        let time_us = second.time_us + (slices - more) as f64 * each;
        let scale = slices as f64 / more as f64;
        Found { time_us, simulated_us: second.time_us, by: "extended", price: Some(second), scale }
    }
}

/// A time, and how it was found.
struct Found {
    time_us: f64,
    /// The time of what was simulated, and what it took; the whole is `scale` times as much.
    simulated_us: f64,
    by: &'static str,
    price: Option<Price>,
    scale: f64,
}

/// Where each rank is: host by host, each rank at its share of the host's interfaces.
fn laid_out(args: &Args) -> Result<(Vec<Location>, Vec<Place>), SimulateError> {
    let fabric = match &args.topology {
        None => None,
        Some(path) => {
            let parsed = Fabric::parse(&read(path, FABRIC_LIMIT_BYTES)?);
            Some((path, parsed.map_err(|source| SimulateError::Fabric { path: path.clone(), source })?))
        }
    };
    let per_host = args.ranks / args.hosts;
    let rails = args.rails.min(per_host);
    let mut numbers: HashMap<Vec<String>, u32> = HashMap::new();
    let (mut locations, mut places) = (Vec::new(), Vec::new());
    for host in 0..args.hosts {
        let name = format!("host{host}");
        let switches = match &fabric {
            None => Vec::new(),
            Some((path, fabric)) => fabric
                .above(&name)
                .map_err(|source| SimulateError::Fabric { path: (*path).clone(), source })?,
        };
        let next = numbers.len() as u32;
        let switch = *numbers.entry(switches.clone()).or_insert(next);
        for lane in 0..per_host {
            let rail = lane * rails / per_host;
            let site = Site {
                switches: switches.clone(),
                rail: (rails > 1).then_some(rail),
                ..Site::on(name.clone())
            };
            locations.push(Location { rank: Rank(host * per_host + lane), site });
            places.push(Place { host, interface: host * rails + rail, switch });
        }
    }
    Ok((locations, places))
}

/// Messages of one slice, over the first `ranks`, which stand for all.
fn messages(schedule: &Arranged, ranks: u32) -> u64 {
    let steps: u64 = (0..ranks).map(|rank| u64::from(schedule.steps(rank))).sum();
    steps.div_ceil(2)
}

/// Slices that the work is cut into.
fn slices(schedule: &Arranged, collective: Collective, work: &Workload) -> u64 {
    let parts = match collective {
        Collective::AllToAll => schedule.chunks() / 2,
        _ => schedule.gathers().map_or(schedule.chunks(), |gathered| gathered.chunks),
    };
    work.bytes.div_ceil(u64::from(parts)).div_ceil(work.slice_bytes).max(1)
}

/// The most peers of a rank, of the first ones and the last: schedules repeat themselves.
fn peers(schedule: &Arranged) -> usize {
    const LOOKED_AT: u32 = 64;
    let ranks = schedule.ranks();
    let looked_at = (0..ranks.min(LOOKED_AT)).chain(ranks.saturating_sub(LOOKED_AT).max(LOOKED_AT)..ranks);
    let count = |rank| {
        let steps = (0..).map_while(|index| schedule.step(rank, index));
        steps.map(|step| step.peer()).collect::<std::collections::HashSet<_>>().len()
    };
    looked_at.map(count).max().unwrap_or(0)
}

fn name(resource: Resource) -> String {
    match resource {
        Resource::Send(rank) => format!("rank {rank} sending"),
        Resource::Receive(rank) => format!("rank {rank} receiving"),
        Resource::Core(rank) => format!("rank {rank}'s core"),
        Resource::HostOut(interface) => format!("interface {interface} outward"),
        Resource::HostIn(interface) => format!("interface {interface} inward"),
        Resource::SwitchOut(switch) => format!("switch {switch} outward"),
        Resource::SwitchIn(switch) => format!("switch {switch} inward"),
    }
}
