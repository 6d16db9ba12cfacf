//! `ringway bench`: the table, its formats, and bad flags.

use crate::process::{Run, ringway};

fn bench(arguments: &[&str]) -> crate::process::End {
    let mut command = ringway(&["bench"]);
    command.args(arguments);
    Run::start(command).end()
}

#[test]
fn the_table_is_verified_and_names_the_transport() {
    let end = bench(&["all-reduce", "-n", "4", "--sizes", "0,4,12,64K,1M", "--iters", "3"]);
    assert_eq!(end.code(), 0, "{end:?}");
    let rows: Vec<&String> = end.stdout.iter().filter(|l| !l.starts_with('#')).collect();
    assert_eq!(rows.len(), 5, "{end:?}");
    for row in &rows {
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(words[8], "0", "#wrong of {row}");
        assert_eq!(words.last(), Some(&"shm"), "transport of {row}");
    }
    let who = end.stdout.iter().filter(|l| l.contains(" pid ") && l.contains(" by "));
    assert_eq!(who.count(), 4, "one line per rank says how it is reached: {end:?}");
    assert!(end.stdout.iter().any(|l| l.contains("0 OK")));
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let explained = ["all-reduce", "-n", "2", "--explain"];
    for arguments in
        [&["all-reduce", "-n", "3"][..], &["all-reduce", "-n", "2", "--json"], &explained, &["p2p"]]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = ringway(&["bench"]);
        command.args(arguments).args(["--sizes", "8,1K", "--iters", "3"]);
        let end = command.stdout(writer).output().unwrap();
        let said = String::from_utf8_lossy(&end.stderr);
        assert!(end.status.success() && said.is_empty(), "{arguments:?}: {end:?}");
    }
}

#[test]
fn a_table_that_cannot_be_written_fails_by_that_alone() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = ringway(&["bench", "all-reduce", "-n", "2", "--sizes", "8,1K", "--iters", "3"]);
    let end = command.stdout(full).output().unwrap();
    let said = String::from_utf8_lossy(&end.stderr);
    assert_eq!(end.status.code(), Some(1), "{said}");
    assert!(said.contains("rank 0: printing the table") && !said.contains("lost"), "{said}");
}

#[test]
fn tcp_is_used_and_named_when_it_is_chosen() {
    let mut command =
        ringway(&["bench", "all-reduce", "-n", "4", "--sizes", "0,4,12,64K,1M", "--iters", "3"]);
    command.env("RINGWAY_NET", "tcp");
    let end = Run::start(command).end();
    assert_eq!(end.code(), 0, "{end:?}");
    let rows: Vec<&String> = end.stdout.iter().filter(|l| !l.starts_with('#')).collect();
    assert_eq!(rows.len(), 5, "{end:?}");
    for row in rows {
        let words: Vec<&str> = row.split_whitespace().collect();
        assert!(words[8] == "0" && ["uring", "epoll"].contains(words.last().unwrap()), "{row}");
    }
}

#[test]
fn every_collective_is_verified_on_ranks_that_divide_nothing() {
    let all = [
        "reduce-scatter",
        "all-gather",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "all-to-all",
        "send-recv",
        "all-reduce",
        "all-gather-v",
        "reduce-scatter-v",
        "all-to-all-v",
        "scan",
        "exclusive-scan",
    ];
    for collective in all {
        let more: &[&str] = if ["broadcast", "reduce", "gather", "scatter"].contains(&collective) {
            &["-r", "2"]
        } else {
            &[]
        };
        let end = bench(
            &[&[collective, "-n", "3", "--sizes", "4,1000,300K", "--iters", "2", "--csv", "-d", "i16"], more]
                .concat(),
        );
        assert_eq!(end.code(), 0, "{collective}: {end:?}");
        let wrong: Vec<&str> = end.stdout.iter().skip(1).map(|l| l.split(',').nth(11).unwrap()).collect();
        assert_eq!(wrong, ["0", "0", "0"], "{collective}: {end:?}");
    }
}

#[test]
fn reproducible_sums_are_asked_for_by_flag_or_setting() {
    let sizes = ["all-reduce", "-n", "3", "--sizes", "64,300K", "--iters", "2", "--csv"];
    let algorithms = |end: &crate::process::End| -> Vec<String> {
        let column = |line: &String| {
            line.split(',').find(|word| ["chain", "exchange"].contains(word)).map(str::to_owned)
        };
        end.stdout.iter().skip(1).filter_map(column).collect()
    };
    let mut set = ringway(&[&["bench"], &sizes[..]].concat());
    set.env("RINGWAY_REPRODUCIBLE", "1");
    for end in [bench(&[&sizes[..], &["--reproducible"]].concat()), Run::start(set).end()] {
        assert_eq!(end.code(), 0, "{end:?}");
        // Which of the two that keep the order of ranks is a matter of costs.
        assert_eq!(algorithms(&end).len(), 2, "{end:?}");
    }
}

#[test]
fn json_is_json_and_one_rank_is_enough() {
    let end = bench(&["all-reduce", "-n", "1", "--sizes", "1K", "--iters", "2", "--json", "--started"]);
    assert_eq!(end.code(), 0, "{end:?}");
    let whole: serde_json::Value = serde_json::from_str(&end.stdout.join("\n")).unwrap();
    assert_eq!(whole["rows"][0]["wrong"], 0);
    assert_eq!(whole["ranks"].as_array().unwrap().len(), 1);
}

#[test]
fn the_epoll_driver_is_used_and_named_when_it_is_chosen() {
    let mut command = ringway(&["bench", "all-reduce", "-n", "2", "--sizes", "8,1M", "--iters", "2"]);
    command.env("RINGWAY_IO_DRIVER", "epoll").env("RINGWAY_NET", "tcp");
    let end = Run::start(command).end();
    assert_eq!(end.code(), 0, "{end:?}");
    assert!(end.stdout.iter().filter(|l| !l.starts_with('#')).all(|l| l.ends_with("epoll")), "{end:?}");
}

#[test]
fn flags_that_make_no_sense_are_refused_before_anything_starts() {
    for (arguments, says) in [
        (&["all-reduce", "-b", "8", "-e", "4"][..], "above"),
        (&["all-reduce", "-o", "xor", "-d", "f32"], "xor"),
        (&["all-reduce", "-d", "float128"], "float128"),
        (&["all-reduce", "-n", "0"], "0"),
        (&["all-reduce", "--sizes", "many"], "many"),
        (&["broadcast", "--started"], "started"),
        (&["no-such"], "no-such"),
    ] {
        let end = bench(arguments);
        assert!(end.code() != 0 && end.stderr.contains(says), "{arguments:?}: {end:?}");
        assert!(end.stdout.is_empty(), "{arguments:?}: {end:?}");
    }
}

#[test]
fn an_unknown_setting_is_refused_with_the_one_that_was_meant() {
    let mut command = ringway(&["bench", "all-reduce"]);
    command.env("RINGWAY_SLICE_BYTE", "4096");
    let end = Run::start(command).end();
    assert!(end.code() != 0 && end.stderr.contains("RINGWAY_SLICE_BYTES"), "{end:?}");
}

#[test]
fn the_log_setting_decides_what_is_logged() {
    let logged = |filter: &str| {
        let mut command = ringway(&["bench", "all-reduce", "-n", "2", "--sizes", "8", "--iters", "1"]);
        command.env("RINGWAY_LOG", filter);
        Run::start(command).end()
    };
    let (all, none, wrong) = (logged("trace"), logged("off"), logged("ringway=loud"));
    assert!(all.code() == 0 && all.stderr.contains("TRACE"), "{all:?}");
    assert!(none.code() == 0 && none.stderr.is_empty(), "{none:?}");
    assert!(wrong.code() != 0 && wrong.stderr.contains("RINGWAY_LOG=ringway=loud"), "{wrong:?}");
}

#[test]
fn messages_between_two_ranks_are_verified_both_ways() {
    for more in [&["--op", "send"][..], &["--op", "write", "--bidirectional"]] {
        let end = bench(
            &[&["p2p", "--sizes", "0,1,1000,300K", "--iters", "7", "--window", "3", "--csv"], more].concat(),
        );
        assert_eq!(end.code(), 0, "{end:?}");
        assert_eq!(end.stdout.len(), 5, "{end:?}");
        for row in end.stdout.iter().skip(1) {
            let words: Vec<&str> = row.split(',').collect();
            assert_eq!((words[0], words[2], words[13]), (more[1], "7", "0"), "{row}");
            assert_eq!(words[14], "shm", "{row}");
        }
    }
    let end = bench(&["p2p", "--sizes", "8", "--only", "latency", "--iters", "3", "--json"]);
    let whole: serde_json::Value = serde_json::from_str(&end.stdout.join("\n")).unwrap();
    let row = &whole["rows"][0];
    assert!(row["latency"]["typical_us"].as_f64().unwrap() > 0.0 && row["bandwidth"].is_null(), "{whole}");
}

#[test]
fn messages_are_between_two_ranks() {
    let mut command = ringway(&["run", "-n", "3", "--", env!("CARGO_BIN_EXE_ringway"), "bench", "p2p"]);
    command.env("RINGWAY_LOG", "off");
    let end = Run::start(command).end();
    assert!(end.code() != 0 && end.stderr.contains("between two ranks"), "{end:?}");
    let end = bench(&[]);
    assert!(end.code() != 0 && end.stderr.contains("--help"), "{end:?}");
}
