//! The coordination service and its agents under seeded chaos: a subset that takes seconds.
//!
//! The full run is `cargo run --release -p ringway-control --example simulate`. A seed that fails is printed with the
//! command that replays it; `RINGWAY_SIMULATE_SEED=N` makes these tests run that seed alone.

use ringway_control::core::simulate::{Report, Scenario, run};

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
