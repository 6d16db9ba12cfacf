//! How algorithms are chosen: measured by `ringway tune`, explained by `ringway bench`, foretold by `ringway simulate`.

use crate::process::{Folder, Run, ringway};

#[test]
fn what_was_tuned_is_chosen_and_a_broken_file_is_told_by_its_line() {
    let folder = Folder::new("tuning");
    let file = folder.path_of("tuning.txt");
    let tune = ["tune", "-n", "2", "--sizes", "8,64K", "-o", &file];
    let end = Run::start(ringway(&tune)).end();
    assert_eq!(end.code(), 0, "{}", end.stderr);
    let written = std::fs::read_to_string(&file).expect("rank 0 wrote it");
    assert!(written.starts_with("ringway-tuning 2\nlink inside "), "{written}");

    assert!(written.contains("\ncore call_us=") && written.contains("\nwidth inside "), "{written}");
    // Two ranks that share a core, as they would be measured.
    let simulate = ["simulate", "--ranks", "2", "--cores", "1", "--size", "64K", "--slice", "64K", "--json"];
    let end = Run::start(ringway(&[&simulate[..], &["--tuning", &file, "--behind-barrier"]].concat())).end();
    let rows: serde_json::Value = serde_json::from_str(&end.stdout.join("\n")).expect("JSON");
    let right = |row: &serde_json::Value| row["by"] == "simulated" && row["slice_bytes"] == 64 << 10;
    assert!(rows.as_array().is_some_and(|rows| !rows.is_empty() && rows.iter().all(right)), "{rows}");

    let mut bench = ringway(&["bench", "all-reduce", "-n", "2", "--sizes", "8", "--iters", "2", "--explain"]);
    bench.env("RINGWAY_TUNING_FILE", &file);
    let end = Run::start(bench).end();
    let shown = end.stdout.join("\n");
    assert!(end.code() == 0 && shown.contains("quickest as measured"), "{shown}{}", end.stderr);

    let nowhere = folder.path_of("nowhere/tuning.txt");
    let end = Run::start(ringway(&["tune", "-n", "2", "-o", &nowhere])).end();
    assert_eq!(end.code(), 125, "before it measures: {}", end.stderr);
    assert!(end.stderr.starts_with(&format!("ringway tune: cannot write {nowhere}: ")), "{}", end.stderr);

    let broken = folder.file("broken.txt", "ringway-tuning 2\nlink inside latency_us=soon\n");
    let mut bench = ringway(&["bench", "all-reduce", "-n", "2", "--sizes", "8", "--iters", "2"]);
    bench.env("RINGWAY_TUNING_FILE", &broken);
    let end = Run::start(bench).end();
    assert!(end.code() != 0 && end.stderr.contains("line 2"), "{}", end.stderr);
}

#[test]
fn a_simulation_tells_time_load_and_choice() {
    let simulate = ["simulate", "--ranks", "64", "--hosts", "8", "--size", "1M", "--json"];
    let end = Run::start(ringway(&simulate)).end();
    assert_eq!(end.code(), 0, "{}", end.stderr);
    let rows: serde_json::Value = serde_json::from_str(&end.stdout.join("\n")).expect("JSON");
    let rows = rows.as_array().expect("a list");
    assert_eq!(rows.iter().filter(|row| row["chosen"] == true).count(), 1);
    assert!(rows.iter().all(|row| row["time_us"].as_f64().is_some_and(|us| us > 0.0)), "{rows:?}");
    let lanes = rows.iter().find(|row| row["algorithm"] == "Lanes").expect("hosts have lanes");
    // Twice seven eighths of the buffer leave a host.
    let out = lanes["interface_bytes"].as_f64().expect("it was simulated");
    assert!((out / (1 << 20) as f64 - 1.75).abs() < 0.01, "{out}");

    let uneven = Run::start(ringway(&["simulate", "--ranks", "10", "--hosts", "4"])).end();
    assert!(uneven.code() != 0 && uneven.stderr.contains("do not stand evenly"), "{}", uneven.stderr);
    for (flag, limit) in [("--tuning", "16384"), ("--topology", "16777216")] {
        let endless = Run::start(ringway(&["simulate", "--ranks", "4", flag, "/dev/zero"])).end();
        let says = format!("/dev/zero: longer than {limit} bytes");
        assert!(endless.code() != 0 && endless.stderr.contains(&says), "{}", endless.stderr);
    }
}
