//! The coordination service and its agents under seeded chaos: a subset that takes seconds.
//!
//! The full run is `cargo run --release -p ringway-control --example simulate`. A seed that fails is printed with the
//! command that replays it; `RINGWAY_SIMULATE_SEED=N` makes these tests run that seed alone.

use ringway_control::core::simulate::{
    ElasticReport, ElectionReport, Report, Scenario, run, run_elastic, run_election,
};

fn seeds(usual: std::ops::Range<u64>) -> std::ops::Range<u64> {
    match std::env::var("RINGWAY_SIMULATE_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("RINGWAY_SIMULATE_SEED is a number");
            seed..seed + 1
        }
        Err(_) => usual,
    }
}

fn run_all(tasks: u32, usual: std::ops::Range<u64>) -> Report {
    let mut total = Report::default();
    for seed in seeds(usual) {
        match run(seed, &Scenario::of_seed(seed, tasks)) {
            Ok(report) => {
                total.losses += report.losses;
                total.barriers_passed += report.barriers_passed;
                total.barriers_failed += report.barriers_failed;
                total.groups += report.groups;
                total.ends_seen += report.ends_seen;
                total.store_answers += report.store_answers;
            }
            Err(violation) => panic!("seed {seed}, {tasks} tasks:\n{violation}"),
        }
    }
    total
}

#[test]
fn many_seeds_of_sixteen_tasks() {
    let total = run_all(16, 0..300);
    if std::env::var_os("RINGWAY_SIMULATE_SEED").is_none() {
        // The chaos is real: each kind of thing that is checked did happen.
        assert!(total.losses > 100, "{total:?}");
        assert!(total.barriers_passed > 100 && total.barriers_failed > 100, "{total:?}");
        assert!(total.groups > 100 && total.ends_seen > 100 && total.store_answers > 1000, "{total:?}");
    }
}

#[test]
fn pairs_and_trios() {
    run_all(2, 0..100);
    run_all(3, 100..200);
}

#[test]
fn thousands_of_tasks() {
    // With deaths; the network is good.
    run_all(4096, 2..3);
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 0..8 {
        let scenario = Scenario::of_seed(seed, 16);
        assert_eq!(run(seed, &scenario), run(seed, &scenario), "seed {seed}");
    }
}

#[test]
fn a_coordinator_that_is_killed_at_any_point_goes_on() {
    let mut total = Report::default();
    for (tasks, usual) in [(2, 0..60), (16, 100..220)] {
        for seed in seeds(usual) {
            match run(seed, &Scenario::with_crashes(seed, tasks)) {
                Ok(report) => {
                    total.restored += report.restored;
                    total.losses += report.losses;
                    total.barriers_passed += report.barriers_passed;
                    total.store_answers += report.store_answers;
                }
                Err(violation) => panic!(
                    "seed {seed}, {tasks} tasks, with crashes:\n{violation} --crashes\nor: RINGWAY_SIMULATE_SEED={seed} cargo \
                     test -p ringway-control --test simulation killed_at_any_point"
                ),
            }
        }
    }
    if std::env::var_os("RINGWAY_SIMULATE_SEED").is_none() {
        assert!(total.restored > 300 && total.losses > 50, "{total:?}");
        assert!(total.barriers_passed > 300 && total.store_answers > 1000, "{total:?}");
    }
}

#[test]
fn elastic_groups_under_chaos() {
    let mut total = ElasticReport::default();
    for seed in seeds(0..300) {
        let tasks = 2 + (seed % 7) as u32;
        let least = 1 + (seed / 7 % u64::from(tasks)) as u32;
        match run_elastic(seed, tasks, least) {
            Ok(report) => {
                total.generations += report.generations;
                total.carried += report.carried;
                total.deaths += report.deaths;
                total.overdue += report.overdue;
                total.restored += report.restored;
            }
            Err(violation) => panic!(
                "seed {seed}, {tasks} tasks, at least {least}: at {}: {}\nreplay: RINGWAY_SIMULATE_SEED={seed} cargo test \
                 -p ringway-control --test simulation elastic",
                violation.time, violation.what
            ),
        }
    }
    if std::env::var_os("RINGWAY_SIMULATE_SEED").is_none() {
        // The chaos is real.
        assert!(total.generations > 5000 && total.carried > 5000 && total.deaths > 1000, "{total:?}");
        assert!(total.overdue > 10 && total.restored > 100, "{total:?}");
    }
}

#[test]
fn elections_under_chaos() {
    let mut total = ElectionReport::default();
    for seed in seeds(0..100) {
        let candidates = 1 + seed as usize % 5;
        match run_election(seed, candidates) {
            Ok(report) => {
                total.terms += report.terms;
                total.step_downs += report.step_downs;
                total.written += report.written;
                total.fenced += report.fenced;
                total.longest_gap = total.longest_gap.max(report.longest_gap);
            }
            Err(violation) => panic!(
                "seed {seed}, {candidates} candidates: {violation}\nreplay: RINGWAY_SIMULATE_SEED={seed} cargo test -p \
                 ringway-control --test simulation elections"
            ),
        }
    }
    if std::env::var_os("RINGWAY_SIMULATE_SEED").is_none() {
        // The chaos is real.
        assert!(total.terms > 500 && total.step_downs > 100, "{total:?}");
        assert!(total.written > 3000 && total.fenced > 0, "{total:?}");
    }
}
