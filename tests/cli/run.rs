//! `ringway run` as users meet it: exit codes, output, signals, and that nothing outlives it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::Stdio;
use std::sync::mpsc::channel;

use rustix::process::Signal;

use crate::process::{Folder, Run, command, lines, ringway, script};

#[test]
fn ranks_are_told_who_they_are() {
    let run = script(
        &["-n", "3"],
        "echo $RINGWAY_RANK/$RINGWAY_WORLD_SIZE $RINGWAY_LOCAL_RANK/$RINGWAY_LOCAL_SIZE $RINGWAY_COORDINATOR_BY; \
         test -n \"$RINGWAY_JOB_ID\" -a -n \"$RINGWAY_TOKEN\" -a -n \"$RINGWAY_COORDINATOR\"",
    );
    assert_eq!(run.sorted_lines(3), ["0/3 0/3 outside", "1/3 1/3 outside", "2/3 2/3 outside"]);
    let end = run.end();
    assert_eq!((end.code(), end.stderr.as_str()), (0, ""));
}

#[test]
fn the_help_lists_the_program_apart_from_who_may_take_part() {
    let end = Run::start(ringway(&["run", "--help"])).end();
    let at = |words: &str| end.stdout.iter().position(|line| line.contains(words));
    let (program, security) = (at("The program and its arguments"), at("Who may take part:"));
    assert!(program.is_some() && program < security, "{end:?}");
}

#[test]
fn many_ranks_are_all_started() {
    let end = script(&["-n", "48"], "echo $RINGWAY_RANK").end();
    let ranks: BTreeSet<u32> = end.stdout.iter().map(|line| line.parse().unwrap()).collect();
    assert_eq!(ranks.len(), 48);
    assert_eq!(end.code(), 0);
}

#[test]
fn the_first_failure_ends_the_rest_and_gives_the_code() {
    let end =
        script(&["-n", "4", "--grace-ms", "0"], "[ $RINGWAY_RANK = 2 ] && exit 7; exec sleep 1000").end();
    assert_eq!(end.code(), 7);
    assert!(end.stderr.contains("rank 2 of 4 (pid "), "{}", end.stderr);
    assert!(end.stderr.contains("exited with code 7; ending the other 3 ranks"), "{}", end.stderr);
    assert!(end.stderr.contains("3 ranks still running: sending SIGTERM"), "{}", end.stderr);
}

#[test]
fn the_others_may_say_their_own_error_first() {
    let folder = Folder::new("grace");
    let fifo = folder.fifo("rank1");
    // Rank 0 reads until rank 1 is gone, and only then speaks.
    let end = script(
        &["-n", "2", "--grace-ms", "600000"],
        &format!(
            "if [ $RINGWAY_RANK = 1 ]; then exec 3>{fifo}; exit 5; fi; cat {fifo}; echo rank 1 is gone >&2"
        ),
    )
    .end();
    assert_eq!(end.code(), 5, "{}", end.stderr);
    assert!(end.stderr.contains("rank 1 is gone"), "{}", end.stderr);
    assert!(!end.stderr.contains("SIGTERM"), "{}", end.stderr);
}

#[test]
fn a_killed_rank_counts_as_in_a_shell() {
    let end =
        script(&["-n", "2", "--grace-ms", "0"], "[ $RINGWAY_RANK = 0 ] && kill -9 $$; exec sleep 1000").end();
    assert_eq!(end.code(), 128 + 9);
    assert!(end.stderr.contains("rank 0 of 2"), "{}", end.stderr);
    assert!(end.stderr.contains("was killed by SIGKILL"), "{}", end.stderr);
}

#[test]
fn ranks_that_ignore_sigterm_are_killed() {
    let folder = Folder::new("ignore");
    let fifo = folder.fifo("ready");
    let end = script(
        &["-n", "2", "--grace-ms", "1"],
        &format!("trap '' TERM; if [ $RINGWAY_RANK = 0 ]; then cat {fifo}; exit 3; fi; : > {fifo}; sleep 1000; sleep 1000"),
    )
    .end();
    assert_eq!(end.code(), 3);
    assert!(end.stderr.contains("1 rank still running: sending SIGKILL"), "{}", end.stderr);
}

#[test]
fn a_stopped_rank_is_ended_too() {
    let end = script(&["-n", "2", "--grace-ms", "0"], "[ $RINGWAY_RANK = 0 ] && exit 3; kill -STOP $$").end();
    assert_eq!(end.code(), 3);
}

#[test]
fn signals_reach_every_rank() {
    for (signal, name) in
        [(Signal::USR1, "USR1"), (Signal::USR2, "USR2"), (Signal::INT, "INT"), (Signal::HUP, "HUP")]
    {
        let run = script(
            &["-n", "2"],
            &format!("trap 'echo got $RINGWAY_RANK; exit 0' {name}; echo ready; sleep 1000 & wait"),
        );
        assert_eq!(run.sorted_lines(2), ["ready", "ready"]);
        run.signal(signal);
        assert_eq!(run.sorted_lines(2), ["got 0", "got 1"], "{name}");
        assert_eq!(run.end().code(), 0, "{name}");
    }
}

#[test]
fn a_signal_that_ends_the_ranks_gives_its_code() {
    for (signal, number) in [(Signal::TERM, 15), (Signal::INT, 2), (Signal::QUIT, 3)] {
        // A core dump of SIGQUIT is of no use to anybody.
        let run = script(&["-n", "3"], "ulimit -c 0; echo ready; exec sleep 1000");
        run.sorted_lines(3);
        run.signal(signal);
        assert_eq!(run.end().code(), 128 + number);
    }
}

#[test]
fn a_second_signal_does_not_wait() {
    let run = script(
        &["-n", "2", "--grace-ms", "1"],
        "trap 'echo asked' INT TERM; echo ready; while :; do sleep 1000 & wait; done",
    );
    run.sorted_lines(2);
    run.signal(Signal::INT);
    assert_eq!(run.sorted_lines(2), ["asked", "asked"]);
    run.signal(Signal::INT);
    assert_eq!(run.end().code(), 128 + 9);
}

#[test]
fn nohup_is_respected() {
    let mut command = command("sh");
    command.args([
        "-c",
        "trap '' HUP; exec \"$@\"",
        "sh",
        env!("CARGO_BIN_EXE_ringway"),
        "run",
        "-n",
        "1",
        "--",
    ]);
    command.args(["sh", "-c", "trap 'echo alive' USR1; echo ready; sleep 1000 & wait; exec sleep 1000"]);
    let run = Run::start(command);
    assert_eq!(run.line(), "ready");
    run.signal(Signal::HUP);
    run.signal(Signal::USR1);
    assert_eq!(run.line(), "alive");
    run.signal(Signal::TERM);
    assert_eq!(run.end().code(), 128 + 15);
}

/// The pipe's end shows that the ranks and what they started are gone.
#[test]
fn nothing_outlives_a_killed_launcher() {
    let run =
        script(&["-n", "3"], "sleep 1000 & (trap '' HUP TERM; sleep 1000; sleep 1000) & echo ready; wait");
    assert_eq!(run.sorted_lines(3), ["ready", "ready", "ready"]);
    run.signal(Signal::KILL);
    let end = run.end();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&end.status), Some(9));
}

#[test]
fn what_ranks_leave_behind_is_ended() {
    let end =
        script(&["-n", "2", "--grace-ms", "1"], "(trap '' TERM; sleep 1000; sleep 1000) & echo done").end();
    assert_eq!(end.code(), 0, "leftovers are no failure: {}", end.stderr);
    assert_eq!(end.stdout, ["done", "done"]);
}

#[test]
fn only_rank_0_reads_the_input() {
    let mut command = ringway(&["run", "-n", "3", "--tag", "--", "cat"]);
    command.stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"one\ntwo").unwrap();
    let stdout = lines(child.stdout.take().unwrap());
    let stderr = lines(child.stderr.take().unwrap());
    let end = Run { child, stdout, stderr }.end();
    assert_eq!(end.stdout, ["[0] one", "[0] two"]);
    assert_eq!(end.code(), 0);
}

#[test]
fn tagged_lines_are_whole_and_in_order() {
    let lines_per_rank = 300;
    let end = script(
        &["-n", "4", "--tag"],
        &format!("i=0; while [ $i -lt {lines_per_rank} ]; do printf 'line '; printf '%s\\n' $i; i=$((i+1)); done; echo end >&2"),
    )
    .end();
    assert_eq!(end.code(), 0);
    let mut by_rank: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in &end.stdout {
        let (tag, text) = line.split_once(' ').unwrap_or_else(|| panic!("no tag: {line:?}"));
        by_rank.entry(tag).or_default().push(text);
    }
    assert_eq!(
        by_rank.keys().copied().collect::<Vec<_>>(),
        ["[0]", "[1]", "[2]", "[3]"],
        "and no colours in a pipe"
    );
    let expected: Vec<String> = (0..lines_per_rank).map(|i| format!("line {i}")).collect();
    for (tag, text) in by_rank {
        assert_eq!(text, expected, "{tag}");
    }
    let mut errors: Vec<&str> = end.stderr.lines().collect();
    errors.sort_unstable();
    assert_eq!(errors, ["[0] end", "[1] end", "[2] end", "[3] end"]);
}

#[test]
fn a_reader_that_leaves_ends_the_ranks() {
    let mut command = ringway(&["run", "-n", "2", "--tag", "--grace-ms", "0", "--", "yes"]);
    let mut child = command.spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first == "[0] y\n" || first == "[1] y\n", "{first:?}");
    let stderr = lines(child.stderr.take().unwrap());
    let run = Run { child, stdout: channel().1, stderr };
    assert_eq!(run.end().code(), 128 + 13, "as without a launcher: SIGPIPE");
}

#[test]
fn programs_that_cannot_run_are_named() {
    let end = Run::start(ringway(&["run", "-n", "2", "--", "no-such-program"])).end();
    assert_eq!(end.code(), 127);
    assert!(end.stderr.contains("cannot start no-such-program"), "{}", end.stderr);
    let end = Run::start(ringway(&["run", "-n", "1", "--", "/"])).end();
    assert_eq!(end.code(), 126);
    assert!(end.stderr.contains("cannot start /"), "{}", end.stderr);
}

#[test]
fn a_rank_does_not_start_without_the_guard() {
    // I2: what the launcher starts for a rank after somebody has killed the guard, which had the pipe's other end.
    let (reader, pipe) = std::io::pipe().unwrap();
    drop(reader);
    let (launcher, guard) = (std::process::id().to_string(), pipe.as_raw_fd().to_string());
    let stage = ["__rank", "--launcher", &launcher, "--guard", &guard, "--rank", "1", "echo", "started"];
    let end = Run::start(ringway(&stage)).end();
    assert_eq!((end.code(), end.stdout.len()), (125, 0), "{end:?}");
    assert!(end.stderr.contains("rank 1 cannot be tied to the launcher: the launcher's guard"), "{end:?}");
}

#[test]
fn bad_arguments_are_explained() {
    for (arguments, said) in [
        (&["run", "-n", "0", "true"][..], "1..=1024"),
        (&["run", "-n", "x", "true"], "invalid digit"),
        (&["run", "-n", "2"], "<PROGRAM>"),
        (&["run", "true"], "--ranks <N>"),
        (&["run", "-n", "2", "--grace-ms", "-1", "true"], "--grace-ms"),
        (&["run", "-n", "2", "--tga", "true"], "unexpected argument '--tga'"),
        (&["fly"], "unrecognized subcommand"),
    ] {
        let end = Run::start(ringway(arguments)).end();
        assert_eq!(end.code(), 2, "{arguments:?}");
        assert!(end.stderr.contains(said), "{arguments:?}: {}", end.stderr);
    }
}

#[test]
fn a_setting_that_is_none_is_refused_once_before_any_rank_starts() {
    let mut command = ringway(&["run", "-n", "4", "--", "echo", "started"]);
    command.env("RINGWAY_SOCKET_IFNAMES", "eth0").env("RINGWAY_SLICE_BYTES", "much");
    let end = Run::start(command).end();
    assert_eq!(end.code(), 125);
    assert!(end.stdout.is_empty());
    assert_eq!(end.stderr.matches("did you mean RINGWAY_SOCKET_IFNAME?").count(), 1, "{}", end.stderr);
    assert!(end.stderr.contains("RINGWAY_SLICE_BYTES=much is not allowed"), "{}", end.stderr);
}

#[test]
fn completions_know_the_subcommands() {
    for shell in ["bash", "zsh", "fish"] {
        let end = Run::start(ringway(&["completions", shell])).end();
        assert_eq!(end.code(), 0);
        let script = end.stdout.join("\n");
        assert!(script.contains("completions") && script.contains("grace-ms"), "{shell}");
        assert!(!script.contains("__rank"), "{shell}: hidden stages are nobody's business");
    }
    assert_eq!(Run::start(ringway(&["completions", "cmd"])).end().code(), 2);
}
