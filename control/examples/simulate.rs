//! Replays the coordination service under seeded chaos, and prints how far it came.
//!
//! `cargo run --release -p ringway-control --example simulate -- --tasks 16 --seeds 10000`
//! `cargo run --release -p ringway-control --example simulate -- --tasks 4096 --seeds 20`
//! `... --crashes` kills the coordinator, which goes on from what it has kept.
//! `... --tasks 16 --seed 4711` replays one seed and prints what happened.

use std::process::ExitCode;
use std::time::Instant;

use ringway_control::core::simulate::{Report, Scenario, run};

const USAGE: &str = "usage: simulate [--crashes] [--tasks N] [--seeds COUNT [--from FIRST] | --seed SEED]";

struct Arguments {
    tasks: u32,
    from: u64,
    seeds: u64,
    crashes: bool,
}

fn arguments() -> Result<Arguments, String> {
    let mut found = Arguments { tasks: 16, from: 0, seeds: 10_000, crashes: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--crashes" {
            found.crashes = true;
            continue;
        }
        let value = words.next().and_then(|value| value.parse::<u64>().ok());
        let value = value.ok_or_else(|| format!("{word} needs a number\n{USAGE}"))?;
        match word.as_str() {
            "--tasks" => found.tasks = u32::try_from(value).map_err(|_| USAGE.to_owned())?.max(2),
            "--seeds" => found.seeds = value,
            "--from" => found.from = value,
            "--seed" => (found.from, found.seeds) = (value, 1),
            _ => return Err(format!("unknown argument {word}\n{USAGE}")),
        }
    }
    Ok(found)
}

fn main() -> ExitCode {
    let Arguments { tasks, from, seeds, crashes } = match arguments() {
        Ok(arguments) => arguments,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let begun = Instant::now();
    let mut total = Report::default();
    for seed in from..from + seeds {
        let scenario = if crashes { Scenario::with_crashes } else { Scenario::of_seed };
        match run(seed, &scenario(seed, tasks)) {
            Ok(report) => {
                total.happenings += report.happenings;
                total.losses += report.losses;
                total.barriers_passed += report.barriers_passed;
                total.barriers_failed += report.barriers_failed;
                total.groups += report.groups;
                total.ends_seen += report.ends_seen;
                total.store_answers += report.store_answers;
                total.restored += report.restored;
                total.time = total.time.max(report.time);
            }
            Err(violation) => {
                eprintln!("seed {seed}, {tasks} tasks:\n{violation}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!(
        "{seeds} seeds from {from} of {tasks} tasks in {:.1} s: no violation.\n\
         {} happenings, {} losses, {} barriers passed, {} failed, {} groups, {} ends seen by a launcher, {} store answers, {} coordinators that went on, longest run {}",
        begun.elapsed().as_secs_f64(),
        total.happenings,
        total.losses,
        total.barriers_passed,
        total.barriers_failed,
        total.groups,
        total.ends_seen,
        total.store_answers,
        total.restored,
        total.time
    );
    ExitCode::SUCCESS
}
