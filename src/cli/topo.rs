//! `ringway topo`: a machine, this one or one that is described, with ranks placed on it: as text, as a picture, or as
//! hwloc's XML.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::value_parser;
use ringway::{Settings, SettingsError};
use ringway_control::runtime::pinning::request;
use ringway_topology::Machine;
use ringway_topology::host::{DiscoverError, discover, from_synthetic, from_xml_file};
use ringway_topology::model::cpuset::{CpuSet, CpuSetError};
use ringway_topology::model::export::to_xml;
use ringway_topology::model::machine::MachineError;
use ringway_topology::model::pci::{PciAddress, PciAddressError};
use ringway_topology::model::place::{PlaceError, Progress, Request, Threads, place};
use ringway_topology::model::plan::Plan;

/// Ranks that are placed where nobody says how many and there are no accelerators to go by.
const RANKS_SHOWN: u32 = 8;

/// Show a machine, where ranks go on it, and why
#[derive(clap::Args)]
#[command(after_help = "Examples:
  ringway topo                                  this machine, a rank per accelerator or CPU, at most 8
  ringway topo -n 4 -o machine.svg              a picture; .xml is for hwloc and --simulate
  ringway topo --simulate topology/shapes/dgx-h100.xml -n 8 -o dgx.svg
                                                another machine, as `lstopo machine.xml` describes it
  ringway topo --synthetic 'pack:2 numa:2 core:8 pu:2' -n 4
  ringway topo --cpus 0-3,8 --threads one       within a cpuset, one hardware thread of each core

What RINGWAY_PIN_THREADS, RINGWAY_PIN_PROGRESS and RINGWAY_PIN_ACCELERATORS say holds here as well,
unless a flag says otherwise.")]
pub(crate) struct Args {
    /// Show the machine that this XML file describes, as `lstopo machine.xml` of hwloc 2 writes it
    #[arg(long, value_name = "FILE.xml", conflicts_with = "synthetic")]
    simulate: Option<PathBuf>,
    /// Show the machine of a description in hwloc's synthetic notation
    #[arg(long, value_name = "TEXT")]
    synthetic: Option<String>,
    /// Ranks to place [default: one per accelerator, else one per CPU that may be used, at most 8]
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = value_parser!(u32).range(1..=4096))]
    ranks: Option<u32>,
    /// Accelerators of the ranks in order: auto, none, or their PCI addresses separated by commas
    #[arg(long, value_name = "LIST")]
    accelerators: Option<String>,
    /// CPUs that ranks may use, such as 0-3,8 [default: those that this process, or the described one, may use]
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,
    /// Hardware threads of its cores that a rank gets
    #[arg(long, value_parser = ["all", "one"])]
    threads: Option<String>,
    /// Where progress threads run: apart from their rank's CPUs, or shared with them
    #[arg(long, value_parser = ["apart", "shared"])]
    progress: Option<String>,
    /// Write to this file what its name ends in: .svg a picture, .xml hwloc's XML, .txt the text
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Why a machine could not be shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TopoError {
    /// A setting is wrong.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The machine could not be found out, or its description not read.
    #[error(transparent)]
    Machine(#[from] DiscoverError),
    /// The ranks cannot be placed.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// `--accelerators` names none.
    #[error("--accelerators: {0}, or auto, or none")]
    Accelerator(#[from] PciAddressError),
    /// `--cpus` is no list.
    #[error("--cpus: {0}")]
    Cpus(#[from] CpuSetError),
    /// `--cpus` names what the machine lacks.
    #[error("--cpus: {0}")]
    Allowed(#[from] MachineError),
    /// The file's name does not tell what to write.
    #[error("--output {}: a name that ends in .svg, .xml or .txt tells what to write", .0.display())]
    Kind(PathBuf),
    /// Nothing could be written.
    #[error("cannot write to {to}: {source}")]
    Write {
        /// Where to.
        to: String,
        /// What the system said.
        source: io::Error,
    },
}

/// Shows the machine.
///
/// # Errors
/// [`TopoError`]; the message says what to do.
pub(crate) fn run(args: &Args) -> Result<ExitCode, TopoError> {
    let settings = Settings::from_env()?;
    let machine = machine(args)?;
    let request = wanted(args, &machine, &settings)?;
    let placements = place(&machine, &request)?;
    let plan = Plan { machine: &machine, placements: &placements };
    let Some(path) = &args.output else {
        let written = io::stdout().write_all(plan.to_string().as_bytes());
        return done(written, "standard output");
    };
    let kind = path.extension().map(|kind| kind.to_string_lossy().to_lowercase());
    let text = match kind.as_deref() {
        Some("svg") => plan.to_svg(),
        Some("xml") => to_xml(&machine),
        Some("txt") => plan.to_string(),
        _ => return Err(TopoError::Kind(path.clone())),
    };
    done(std::fs::write(path, text), &shown(path))
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn done(written: io::Result<()>, to: &str) -> Result<ExitCode, TopoError> {
    match written {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(source) => Err(TopoError::Write { to: to.to_owned(), source }),
        Ok(()) => Ok(ExitCode::SUCCESS),
    }
}

fn machine(args: &Args) -> Result<Machine, TopoError> {
    let machine = match (&args.simulate, &args.synthetic) {
        (Some(path), _) => from_xml_file(path)?,
        (None, Some(text)) => from_synthetic(text)?,
        (None, None) => discover()?,
    };
    match &args.cpus {
        Some(list) => Ok(machine.with_allowed(list.parse::<CpuSet>()?)?),
        None => Ok(machine),
    }
}

/// What the settings ask for, with what the flags say in their place.
fn wanted(args: &Args, machine: &Machine, settings: &Settings) -> Result<Request, TopoError> {
    let parts = machine.parts();
    let usable = u32::try_from(parts.allowed.len()).unwrap_or(u32::MAX).clamp(1, RANKS_SHOWN);
    let gpus = u32::try_from(parts.gpus.len()).unwrap_or(u32::MAX);
    let by_accelerator =
        args.accelerators.as_deref() != Some("none") && settings.pin_accelerators && gpus > 0;
    let ranks = args.ranks.unwrap_or(if by_accelerator { gpus } else { usable });
    let mut wanted = request(machine, ranks, settings);
    match args.accelerators.as_deref() {
        None => {}
        Some("none") => wanted.devices = Vec::new(),
        Some("auto") => {
            wanted.devices = parts.gpus.iter().take(ranks as usize).map(|gpu| gpu.pci).collect();
        }
        Some(list) => {
            let addresses: Result<Vec<PciAddress>, _> =
                list.split(',').map(|one| one.trim().parse()).collect();
            wanted.devices = addresses?;
        }
    }
    match args.threads.as_deref() {
        Some("one") => wanted.threads = Threads::OnePerCore,
        Some(_) => wanted.threads = Threads::All,
        None => {}
    }
    match args.progress.as_deref() {
        Some("shared") => wanted.progress = Progress::Shared,
        Some(_) => wanted.progress = Progress::Apart,
        None => {}
    }
    Ok(wanted)
}
