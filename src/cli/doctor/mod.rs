//! `ringway doctor`: what this machine offers, what ringway would use of it and why, and what to do about the rest.
//!
//! - [`report`]: facts and findings, as text and as JSON (pure).
//! - [`settings`]: settings in force, and who this process would be.
//! - [`network`]: interfaces, their addresses, congestion control.
//! - [`rdma`]: RDMA devices, their ports and GIDs, which are used, and what is in the way of the others.
//! - [`shm`]: shared memory between the ranks of this host.
//! - [`gpu`]: GPUs, their driver, and NCCL.
//! - [`kernel`]: io_uring, locked memory, shared memory, huge pages.
//! - [`machine`]: processors, memory nodes, control groups, devices, and where ranks would go.

mod gpu;
mod kernel;
mod machine;
mod network;
mod rdma;
mod report;
mod settings;
mod shm;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::value_parser;

use report::Report;
use ringway_control::settings::Settings;

/// The exit code when something would stop ringway.
const EXIT_PROBLEM: u8 = 1;

/// Look at this machine: what ringway would use, why, and what is in the way
#[derive(clap::Args)]
#[command(after_help = "Examples:
  ringway doctor                     everything, problems with their remedies
  ringway doctor --settings          every RINGWAY_* setting with its range and meaning
  ringway doctor --json | jq .ok     for scripts
  RINGWAY_SOCKET_IFNAME=eth1 ringway doctor
                                     what a setting would change

Exit codes: 0 when ringway can work here, 1 when something would stop it.")]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print every setting with its value, range and meaning, and nothing else
    #[arg(long, conflicts_with = "json")]
    settings: bool,
    /// Show where this many ranks of this host would go [default: one per usable CPU, at most 8]
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = value_parser!(u32).range(1..=1024))]
    ranks: Option<u32>,
}

/// Looks at the machine and prints what was found.
///
/// # Errors
/// When standard output cannot be written.
pub(crate) fn run(args: &Args) -> io::Result<ExitCode> {
    let mut stdout = io::stdout().lock();
    let given = Settings::from_env();
    if args.settings {
        stdout.write_all(settings::listed(&given.unwrap_or_default()).as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let report = look(args, &given);
    let text = if args.json { report.to_json() } else { report.to_text() };
    stdout.write_all(text.as_bytes())?;
    Ok(if report.is_fit() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_PROBLEM) })
}

fn look(args: &Args, given: &Result<Settings, ringway_control::settings::SettingsError>) -> Report {
    // With settings that are not allowed, the rest of the report shows the defaults.
    let in_force = given.as_ref().map_or_else(|_| Settings::default(), Clone::clone);
    let mut sections =
        vec![settings::section(given), settings::launch(&in_force), settings::security(&in_force)];
    sections.extend([network::interfaces(&in_force), network::congestion(&in_force)]);
    sections.extend([rdma::section(&in_force), shm::section(&in_force)]);
    sections.push(gpu::section(&in_force));
    sections.extend([kernel::io_uring(&in_force), kernel::memory(&in_force)]);
    sections.extend(machine::sections(args.ranks, &in_force));
    let uname = rustix::system::uname();
    Report {
        version: env!("CARGO_PKG_VERSION"),
        host: uname.nodename().to_string_lossy().into_owned(),
        kernel: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
        sections,
    }
}

/// The first line of a small file of the kernel, without white space around it; `None` when it cannot be read.
fn kernel_file(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().next().map(|line| line.trim().to_owned())
}

/// A size in the largest binary unit that divides it to at least one.
fn size(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, shift)| bytes >> shift > 0) {
        Some((unit, shift)) => {
            let tenths = (u128::from(bytes) * 10) >> shift;
            format!("{}.{} {unit}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_read_at_a_glance() {
        assert_eq!(size(100), "100 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(64 << 20), "64.0 MiB");
        assert_eq!(size(u64::MAX), "17179869183.9 GiB");
    }
}
