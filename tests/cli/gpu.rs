//! Work on GPUs, as users meet it: what is said where something is missing, and collectives over the doubles of libcuda and
//! libnccl (`tests/gpu/double`), which reduce for real and write down what they were asked for.

use crate::process::{End, Folder, Run, example, ringway};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Command;
use std::sync::OnceLock;

/// The folder of the doubles, built once.
fn doubles() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(|| {
        let into = format!("{}/gpu-double", env!("CARGO_TARGET_TMPDIR"));
        let make = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gpu/double/make.sh");
        let made = Command::new("sh").arg(make).arg(&into).output().expect("a shell");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        into
    })
}

/// A run over the doubles, and the folder of their record.
struct Doubled {
    folder: Folder,
    command: Command,
    /// What the command needs besides.
    more: Option<Folder>,
}

impl Doubled {
    fn new(name: &str, arguments: &[&str]) -> Doubled {
        let folder = Folder::new(name);
        let mut command = ringway(arguments);
        let others = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        command.env("LD_LIBRARY_PATH", format!("{}:{others}", doubles()));
        for name in ["GPU_DOUBLE_RECORD", "GPU_DOUBLE_DIR"] {
            command.env(name, folder.path(""));
        }
        Doubled { folder, command, more: None }
    }

    fn set(mut self, name: &str, value: &str) -> Doubled {
        self.command.env(name, value);
        self
    }

    fn start(self) -> (Run, Folder) {
        (Run::start(self.command), self.folder)
    }

    fn end(self) -> End {
        self.end_with_calls().0
    }

    /// The end, and what each process has asked the doubles for.
    fn end_with_calls(mut self) -> (End, Vec<Vec<String>>) {
        let _more = self.more.take();
        let (run, folder) = self.start();
        let end = run.end();
        let calls = calls(&folder);
        (end, calls)
    }
}

/// The record of each process that made a communicator.
fn calls(folder: &Folder) -> Vec<Vec<String>> {
    let files =
        std::fs::read_dir(folder.path("")).expect("the folder is there").map(|file| file.unwrap().path());
    let records = files.filter(|path| path.extension().is_some_and(|extension| extension == "calls"));
    let records =
        records.map(|path| std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect());
    records.filter(|lines: &Vec<String>| lines.iter().any(|line| line.starts_with("ncclComm"))).collect()
}

fn bench(name: &str, arguments: &[&str]) -> Doubled {
    Doubled::new(name, &[&["bench"], arguments, &["--device", "cuda"]].concat())
}

#[test]
fn what_is_missing_for_gpus_is_one_sentence_and_no_rank_is_started() {
    let mut command = ringway(&["bench", "all-reduce", "--device", "cuda", "-n", "4"]);
    // Missing on every machine, also on one with GPUs.
    command.env("RINGWAY_NCCL_LIBRARY", "/no/such/libnccl.so.2");
    let end = Run::start(command).end();
    assert!(end.code() != 0 && end.stdout.is_empty(), "{end:?}");
    assert_eq!(end.stderr.lines().count(), 1, "{end:?}");
    for part in
        ["ringway bench: --device cuda: ", "NCCL is missing", "/no/such/libnccl.so.2", "install libnccl2"]
    {
        assert!(end.stderr.contains(part), "{part}: {end:?}");
    }
}

#[test]
fn each_thing_that_may_be_wrong_with_a_driver_or_nccl_is_named() {
    for (name, value, says) in [
        ("GPU_DOUBLE_CUINIT", "100", "sees no GPU"),
        ("GPU_DOUBLE_CUINIT", "999", "cuInit: CUDA_ERROR_UNKNOWN (999), unknown error"),
        ("GPU_DOUBLE_DEVICES", "0", "sees no GPU"),
        ("GPU_DOUBLE_DRIVER", "10020", "supports CUDA 10.2, and 11.0 or later is needed"),
        ("GPU_DOUBLE_NCCL", "2708", "libnccl.so.2 is NCCL 2.7.8, and 2.18 or later is needed"),
        ("RINGWAY_NCCL_LIBRARY", "libc.so.6", "libc.so.6 has no ncclGetVersion"),
    ] {
        let end = bench("gpu-missing", &["all-reduce", "-n", "2"]).set(name, value).end();
        assert!(end.code() != 0 && end.stdout.is_empty(), "{name}={value}: {end:?}");
        assert!(end.stderr.contains(says) && end.stderr.lines().count() == 1, "{name}={value}: {end:?}");
    }
    let end = Doubled::new("gpu-number", &["bench", "all-reduce", "-n", "2", "--device", "cuda:9"]).end();
    assert!(end.code() != 0 && end.stderr.contains("GPU 9 is not there: the driver sees 8"), "{end:?}");
}

#[test]
fn a_device_that_is_none_is_refused() {
    for (device, says) in [("rocm", "cpu, cuda, or cuda:N"), ("cuda:x", "no number of a GPU")] {
        let end = Run::start(ringway(&["bench", "all-reduce", "--device", device])).end();
        assert!(end.code() != 0 && end.stderr.contains(says), "{device}: {end:?}");
    }
}

#[test]
fn doctor_lists_what_the_driver_sees() {
    let end = Doubled::new("gpu-doctor", &["doctor"]).end();
    let text = end.stdout.join("\n");
    for part in
        ["supports CUDA 12.8", "GPU 7", "Double 7, 1.0 GiB, compute capability 9.0", "2.27.3, libnccl.so.2"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Of N4, and of the drop order (N2): what was made is taken down in the other order.
#[test]
fn four_ranks_reduce_on_four_gpus_and_leave_nothing() {
    let run = bench("gpu-table", &["all-reduce", "-n", "4", "--sizes", "8,64K,1M", "--iters", "3"]);
    let (end, calls) = run.end_with_calls();
    assert_eq!(end.code(), 0, "{end:?}");
    let text = end.stdout.join("\n");
    assert!(text.contains("Out of bounds values : 0 OK"), "{end:?}");
    for rank in 0..4 {
        assert!(
            text.contains(&format!("GPU {rank} (Double {rank}, PCI 0000:0{}:00.0), NCCL 2.27.3", rank + 1)),
            "{text}"
        );
    }
    assert_eq!(end.stdout.iter().filter(|line| line.ends_with("nccl")).count(), 3, "{text}");
    assert_eq!(calls.len(), 4, "a record of each rank");
    for lines in &calls {
        let at = |begins: &str| {
            let found = lines.iter().position(|line| line.starts_with(begins));
            found.unwrap_or_else(|| panic!("no {begins}: {lines:#?}"))
        };
        assert!(!lines.iter().any(|line| line.contains("VIOLATION")), "{lines:#?}");
        let all_reduces: Vec<usize> =
            (0..lines.len()).filter(|at| lines[*at].starts_with("ncclAllReduce ")).collect();
        assert!(all_reduces.len() >= 3 * 3, "{lines:#?}");
        for all_reduce in all_reduces {
            let stream = lines[all_reduce].split(' ').find(|word| word.starts_with("stream=")).unwrap();
            let next = &lines[all_reduce + 1];
            assert!(next.starts_with("cuEventRecord") && next.ends_with(stream), "{next} behind {stream}");
        }
        assert!(
            at("ncclCommInitRankConfig") < at("ncclAllReduce")
                && at("ncclAllReduce") < at("ncclCommFinalize")
        );
        assert!(at("ncclCommFinalize") < at("ncclCommDestroy"), "{lines:#?}");
        assert!(at("ncclCommDestroy") < at("cuDevicePrimaryCtxRelease"), "{lines:#?}");
        assert!(
            lines.iter().rfind(|line| line.starts_with("cuMemFree")).unwrap().ends_with("left=0"),
            "{lines:#?}"
        );
    }
}

#[test]
fn every_collective_of_every_kind_of_type_is_verified() {
    for (collective, more) in [
        ("all-reduce", &["-d", "bf16", "-o", "avg", "--started"][..]),
        ("reduce-scatter", &["-d", "f16", "-o", "prod"]),
        ("all-gather", &["-d", "u16"]),
        ("broadcast", &["-d", "i64", "-r", "2"]),
        ("reduce", &["-d", "u8", "-o", "max", "-r", "1"]),
        ("gather", &["-d", "bool", "-r", "2"]),
        ("scatter", &["-d", "f64", "-r", "1"]),
        ("all-to-all", &["-d", "i16"]),
        ("send-recv", &["-d", "i8"]),
        ("all-reduce", &["-d", "bool", "-o", "and"]),
    ] {
        let arguments =
            [&[collective, "-n", "3", "--sizes", "8,100001", "--iters", "2", "--csv"], more].concat();
        let end = bench("gpu-kinds", &arguments).end();
        assert_eq!(end.code(), 0, "{collective}: {end:?}");
        let wrong: Vec<&str> =
            end.stdout.iter().skip(1).map(|line| line.split(',').nth(11).unwrap()).collect();
        assert_eq!(wrong, ["0", "0"], "{collective}: {end:?}");
    }
}

#[test]
fn nccl_inside_of_parts_and_our_transports_between_make_the_same_sums() {
    for (inside, more) in
        [("2", &["-d", "f32"][..]), ("1", &["-d", "i32", "-o", "max"]), ("0", &["-d", "f64"])]
    {
        let arguments =
            [&["all-reduce", "-n", "4", "--sizes", "8,40,1000004,9M", "--iters", "1", "-w", "1"], more]
                .concat();
        let (end, calls) =
            bench("gpu-hosts", &[&arguments[..], &["--inside", inside]].concat()).end_with_calls();
        assert_eq!(end.code(), 0, "{inside}: {end:?}");
        let text = end.stdout.join("\n");
        assert!(
            text.contains("Out of bounds values : 0 OK") && text.contains("staged through pinned memory"),
            "{text}"
        );
        assert!(
            text.contains(&format!("among {} ranks", if inside == "0" { "4" } else { inside })),
            "{text}"
        );
        assert!(calls.iter().flatten().all(|line| !line.contains("VIOLATION")), "{calls:#?}");
        assert!(
            calls.iter().all(|lines| lines.iter().any(|l| l.starts_with("ncclReduceScatter"))),
            "{calls:#?}"
        );
    }
    let end = bench("gpu-uneven", &["all-reduce", "-n", "4", "--sizes", "8", "--inside", "3"]).end();
    assert!(end.code() != 0 && end.stderr.contains("parts of 4 and of 3 ranks"), "{end:?}");
}

#[test]
fn parts_that_share_no_memory_meet_over_the_network() {
    let arguments = ["all-reduce", "-n", "4", "--sizes", "8,1000004", "--iters", "1", "--inside", "2"];
    let end = bench("gpu-network", &arguments).set("RINGWAY_NET", "tcp").end();
    assert_eq!(end.code(), 0, "{end:?}");
    let text = end.stdout.join("\n");
    assert!(text.contains("by uring: tcp") && !text.contains("by shm"), "{text}");
    assert!(text.contains("Out of bounds values : 0 OK"), "{text}");
}

/// A benchmark of four ranks on two hosts, by turns: 0 and 2 on one, 1 and 3 on the other. `None` where this process may not
/// give hosts names.
fn on_two_hosts(name: &str, arguments: &[&str]) -> Option<Doubled> {
    let unshare = ["--uts", "true"];
    if !Command::new("unshare").args(unshare).status().is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no leave to give a process a host's name of its own");
        return None;
    }
    const HOSTS: &str = "case $RINGWAY_RANK in 0|2) host=near;; *) host=far;; esac\n\
        exec unshare --uts sh -c 'echo \"$0\" >/proc/sys/kernel/hostname && exec \"$@\"' $host \"$@\"\n";
    let script = Folder::new(&format!("{name}-hosts"));
    let hosts = script.file("hosts.sh", HOSTS);
    let run = ["run", "-n", "4", "--", "sh", &hosts, env!("CARGO_BIN_EXE_ringway"), "bench"];
    let gpus = ["--device", "cuda", "--inside", "0"];
    let mut doubled = Doubled::new(name, &[&run, arguments, &gpus].concat());
    doubled.more = Some(script);
    Some(doubled)
}

#[test]
fn what_goes_between_gpus_of_two_hosts_is_verified() {
    for (collective, more) in [
        ("all-reduce", &["-d", "f32"][..]),
        ("broadcast", &["-d", "i64", "-r", "3"]),
        ("broadcast", &["-d", "u8", "-r", "0"]),
        ("all-gather", &["-d", "u16"]),
        ("send-recv", &["-d", "f16"]),
    ] {
        let arguments = [&[collective, "--sizes", "8,100001,9M", "--iters", "1", "-w", "1"], more].concat();
        let Some(run) = on_two_hosts("gpu-two-hosts", &arguments) else { return };
        let (end, calls) = run.set("RINGWAY_NET", "tcp").end_with_calls();
        assert_eq!(end.code(), 0, "{collective}: {end:?}");
        let text = end.stdout.join("\n");
        for part in [
            "Out of bounds values : 0 OK",
            "NCCL 2.27.3 by libnccl.so.2 among 2 ranks; between 2 of them by ",
            "staged through pinned memory of the host, because ",
            " moves bytes by processors (rank 1, 3)",
            " moves bytes by processors (rank 0, 2)",
        ] {
            assert!(text.contains(part), "{collective}: {part}: {text}");
        }
        assert!(calls.iter().flatten().all(|line| !line.contains("VIOLATION")), "{calls:#?}");
    }
}

/// The real NCCL (`tests/gpu/fetch-nccl.sh`) over the double of the driver, which has less than NCCL needs.
#[test]
fn errors_of_the_real_nccl_are_told_in_its_own_words() {
    let fetch = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gpu/fetch-nccl.sh");
    let fetched = Command::new("sh").arg(fetch).output().expect("a shell");
    let file = String::from_utf8(fetched.stdout).unwrap();
    if file.is_empty() {
        eprintln!(
            "SKIPPED: the real NCCL cannot be fetched here: {}",
            String::from_utf8_lossy(&fetched.stderr)
        );
        return;
    }
    let end = bench("gpu-real-nccl", &["all-reduce", "-n", "2", "--sizes", "8"])
        .set("RINGWAY_NCCL_LIBRARY", file.trim())
        .end();
    assert_eq!(end.code(), 1, "{end:?}");
    for rank in 0..2 {
        let begins = format!("ringway bench: rank {rank}: ");
        let said = end.stderr.lines().find(|line| line.starts_with(&begins));
        let said = said.unwrap_or_else(|| panic!("{rank}: {end:?}"));
        for part in ["ncclCommInitRankConfig: ncclUnhandledCudaError (1), unhandled cuda error", "nvidia-smi"]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}

/// Y2.
#[test]
fn a_rank_that_is_lost_ends_all_parts() {
    let arguments = ["all-reduce", "-n", "4", "--sizes", "64K", "--iters", "100000000", "--inside", "2"];
    let end = bench("gpu-part", &arguments).set("GPU_DOUBLE_ASYNC_ERROR", "1:40:2").end();
    for rank in 0..4 {
        let begins = format!("ringway bench: rank {rank}: ");
        let said = end.stderr.lines().find(|line| line.starts_with(&begins));
        assert!(said.is_some_and(|said| said.contains("ncclSystemError")), "{rank}: {end:?}");
    }
}

#[test]
fn what_nccl_cannot_reduce_is_said_on_every_rank() {
    let end = bench("gpu-xor", &["all-reduce", "-n", "2", "-d", "u32", "-o", "xor", "--sizes", "8"]).end();
    assert!(end.code() != 0 && end.stderr.contains("NCCL has no xor of u32"), "{end:?}");
}

/// Kills rank 2 of 4 in the middle of a benchmark, and returns what the others said, and were asked to abort.
#[test]
fn a_rank_that_is_killed_is_named_by_all_others_and_their_nccl_is_aborted() {
    let arguments = ["all-reduce", "-n", "4", "--sizes", "64K", "--iters", "100000000"];
    let (run, folder) = bench("gpu-kill", &arguments).start();
    let pid = loop {
        let line = run.line();
        if let Some(of_rank) = line.strip_prefix("#   rank   2 on ") {
            break of_rank.split(' ').nth(2).unwrap().trim_end_matches(':').parse::<i32>().unwrap();
        }
    };
    // The head's last line: from here on the ranks are in the benchmark.
    while !run.line().starts_with("#        (B)") {}
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).expect("rank 2 is there");
    let end = run.end();
    assert_eq!(end.code(), 137, "{end:?}");
    for rank in [0, 1, 3] {
        let begins = format!("ringway bench: rank {rank}: rank 2 on host ");
        let said = end.stderr.lines().find(|line| line.starts_with(&begins));
        let said = said.unwrap_or_else(|| panic!("rank {rank} does not name it: {end:?}"));
        assert!(said.contains(&format!("(pid {pid}) was lost")), "{said}");
    }
    let aborted =
        calls(&folder).iter().filter(|lines| lines.iter().any(|l| l.starts_with("ncclCommAbort"))).count();
    assert_eq!(aborted, 3, "{:#?}", calls(&folder));
}

/// The rank dies when all have NCCL's id, and before the communicators are made. Nothing but the control plane tells of it: the
/// others would wait for ten minutes.
#[test]
fn a_rank_that_is_killed_while_nccl_is_set_up_is_named_by_all_others() {
    for dies in [0, 2] {
        let arguments = ["all-reduce", "-n", "4", "--sizes", "64K"];
        let run = bench("gpu-kill-init", &arguments).set("GPU_DOUBLE_DIES_IN_INIT", &dies.to_string());
        let (end, calls) = run.end_with_calls();
        assert_eq!(end.code(), 137, "{end:?}");
        for rank in (0..4).filter(|rank| *rank != dies) {
            let begins = format!("ringway bench: rank {rank}: rank {dies} on host ");
            let said = end.stderr.lines().find(|line| line.starts_with(&begins));
            assert!(said.is_some_and(|said| said.contains("was lost")), "rank {rank}: {end:?}");
        }
        let begun = |lines: &&Vec<String>| lines.iter().any(|l| l.starts_with("ncclCommInitRankConfig"));
        let aborted = |lines: &&Vec<String>| lines.iter().any(|l| l.starts_with("ncclCommAbort is over"));
        let survivors: Vec<_> = calls.iter().filter(begun).collect();
        // One that had not come so far has nothing to abort.
        assert!(survivors.iter().filter(|lines| aborted(lines)).count() + 1 == survivors.len(), "{calls:#?}");
    }
}

/// N6: a GPU that gives up late may be at the buffers of the call that has failed.
#[test]
fn memory_is_kept_until_an_abort_that_takes_long_is_over() {
    let arguments = ["all-reduce", "-n", "2", "--sizes", "64K", "--iters", "5"];
    let run = bench("gpu-late-abort", &arguments).set("GPU_DOUBLE_HANG", "0:3");
    let run = run.set("GPU_DOUBLE_SLOW_ABORT", "900").set("RINGWAY_DEVICE_TIMEOUT_MS", "300");
    let (end, calls) = run.end_with_calls();
    assert!(end.code() != 0 && end.stderr.contains("its memory is kept until it has"), "{end:?}");
    for lines in &calls {
        let last = lines.iter().rfind(|line| line.starts_with("ncclAllReduce ")).expect("a call");
        let from = last.split(' ').find_map(|word| word.strip_prefix("from=")).expect("an address");
        let at = |begins: String| lines.iter().position(|line| line.starts_with(&begins));
        assert!(at("ncclCommAbort comm".into()).is_some(), "{lines:#?}");
        // A process may end before its GPU has given up.
        let freed = at(format!("cuMemFree at={from} "));
        let over = at("ncclCommAbort is over".into());
        assert!(freed.is_none() || over.is_some_and(|over| Some(over) < freed), "{lines:#?}");
    }
}

#[test]
fn errors_of_nccl_are_those_of_all_ranks_with_its_words() {
    for (name, value, says) in [
        ("GPU_DOUBLE_ASYNC_ERROR", "1:2:6", "during all_reduce #2"),
        ("GPU_DOUBLE_ASYNC_ERROR", "1:2:6", "NCCL in the background: ncclRemoteError (6)"),
        ("GPU_DOUBLE_INIT_ERROR", "1:2", "ncclCommInitRankConfig: ncclSystemError (2)"),
    ] {
        let arguments = ["all-reduce", "-n", "3", "--sizes", "8,1K", "--iters", "2"];
        let (end, calls) = bench("gpu-errors", &arguments).set(name, value).end_with_calls();
        assert_ne!(end.code(), 0, "{end:?}");
        for rank in 0..3 {
            let said =
                end.stderr.lines().find(|line| line.starts_with(&format!("ringway bench: rank {rank}: ")));
            let said = said.unwrap_or_else(|| panic!("rank {rank} says nothing: {end:?}"));
            assert!(said.contains("rank 1 on host") && said.contains(says), "{says}: {said}");
        }
        assert!(calls.iter().flatten().all(|line| !line.contains("VIOLATION")), "{calls:#?}");
    }
}

#[test]
fn a_call_that_takes_too_long_is_ended_and_says_so() {
    let run = bench("gpu-late", &["all-reduce", "-n", "2", "--sizes", "8", "--iters", "5"]);
    let end = run.set("GPU_DOUBLE_HANG", "0:3").set("RINGWAY_DEVICE_TIMEOUT_MS", "700").end();
    assert_ne!(end.code(), 0, "{end:?}");
    assert!(end.stderr.contains("within 700 ms (RINGWAY_DEVICE_TIMEOUT_MS)"), "{end:?}");
}

#[test]
fn ranks_that_share_a_gpu_or_want_too_much_of_it_are_told() {
    let arguments = ["all-reduce", "-n", "2", "--sizes", "1M", "--iters", "1"];
    let end = bench("gpu-shared", &arguments).set("GPU_DOUBLE_DEVICES", "1").end();
    assert_ne!(end.code(), 0, "{end:?}");
    for part in ["ncclInvalidUsage (5)", "Duplicate GPU detected", "is also that of rank", "RINGWAY_DEVICE"] {
        assert!(end.stderr.contains(part), "{part}: {end:?}");
    }
    let end = bench("gpu-memory", &arguments).set("GPU_DOUBLE_MEMORY", "65536").end();
    assert!(end.code() != 0 && end.stderr.contains("CUDA_ERROR_OUT_OF_MEMORY (2), out of memory"), "{end:?}");
}

/// What the ranks of `examples/gpu.rs` say.
fn said(name: &str, words: &[&str]) -> (End, Vec<Vec<String>>) {
    Doubled::new(name, &[&["run", "-n", "4", "--", example("gpu")], words].concat()).end_with_calls()
}

#[test]
fn started_calls_groups_and_parts_do_what_they_say() {
    let (end, calls) = said("gpu-tour", &[]);
    assert_eq!(end.code(), 0, "{end:?}");
    assert_eq!(end.stdout.iter().filter(|line| line.ends_with(": all is well")).count(), 4, "{end:?}");
    for lines in &calls {
        // The ring and the sum are one group.
        let begin = lines.iter().position(|line| line == "ncclGroupStart").expect("a group");
        let inside: Vec<&str> = lines[begin + 1..]
            .iter()
            .take_while(|l| *l != "ncclGroupEnd")
            .map(|l| l.split(' ').next().unwrap())
            .collect();
        assert_eq!(inside, ["ncclSend", "ncclRecv", "ncclAllReduce"], "{lines:#?}");
        assert_eq!(
            lines.iter().filter(|line| line.starts_with("ncclCommInitRankConfig")).count(),
            2,
            "{lines:#?}"
        );
        assert!(!lines.iter().any(|line| line.contains("VIOLATION")), "{lines:#?}");
    }
}

#[test]
fn mistakes_reach_all_ranks_and_show_both_sides() {
    for (word, parts) in [
        ("count", &["mismatched calls", "f32 x 1000", "f32 x 2000"][..]),
        ("operation", &["mismatched calls", "sum", "max"]),
        ("order", &["mismatched calls", "all_reduce #1", "broadcast #1"]),
        ("refused", &["root 99"]),
        ("abort", &["the data of shard 7 is damaged", "rank 3 on host"]),
    ] {
        let (end, _) = said("gpu-mistakes", &[word]);
        assert_ne!(end.code(), 0, "{word}: {end:?}");
        for rank in 0..4 {
            let line = end.stdout.iter().find(|line| line.starts_with(&format!("rank {rank}: ")));
            let line = line.unwrap_or_else(|| panic!("{word}: rank {rank} says nothing: {end:?}"));
            assert!(parts.iter().all(|part| line.contains(part)), "{word}: {line}");
        }
    }
}

/// Y3, Y4: pieces that are alike, or none at all, are not taken for the same call, and ranks are those of the whole group.
#[test]
fn mistakes_between_hosts_show_both_sides_and_ranks_of_the_whole_group() {
    for (word, part) in [
        ("hosts-root", "f32 x 100000 root 1"),
        ("hosts-length", "f32 x 4194304"),
        ("hosts-empty", "f32 x 0 sum"),
        ("hosts-collective", "all_gather #0 f32 x 100000"),
        ("hosts-message", "f32 x 1048576"),
        ("hosts-lost", "was lost"),
    ] {
        let (end, _) = said("gpu-hosts-mistakes", &[word]);
        let lost = word == "hosts-lost";
        for rank in 0..if lost { 3 } else { 4 } {
            let line = end.stdout.iter().find(|line| line.starts_with(&format!("rank {rank}: ")));
            let line = line.unwrap_or_else(|| panic!("{word}: rank {rank} says nothing: {end:?}"));
            assert!(line.contains(part), "{word}: {line}");
            assert!(lost || line.contains("mismatched calls"), "{word}: {line}");
            let names = |rank: u32| line.contains(&format!("rank {rank} on host "));
            let right = if lost { names(3) } else { (names(2) && names(0)) || (names(3) && names(1)) };
            assert!(right, "{word}: {line}");
        }
    }
    let (end, _) = said("gpu-hosts-refused", &["hosts-refused"]);
    for rank in 0..4 {
        let line = end.stdout.iter().find(|line| line.starts_with(&format!("rank {rank}: ")));
        let refused =
            |line: &String| (2..4).any(|by| line.contains(&format!("all_reduce on rank {by}: NCCL has no")));
        assert!(line.is_some_and(refused), "rank {rank}: {end:?}");
    }
}

#[test]
fn a_handle_may_be_kept_for_longer_than_its_call_may_be_under_way() {
    let program = Doubled::new("gpu-kept", &["run", "-n", "4", "--", example("gpu"), "kept"]);
    let end = program.set("RINGWAY_DEVICE_TIMEOUT_MS", "3000").end();
    assert_eq!(end.code(), 0, "{end:?}");
    assert_eq!(end.stdout.iter().filter(|line| line.ends_with(": nothing went wrong")).count(), 4, "{end:?}");
}

#[test]
fn a_call_that_nobody_waits_for_is_aborted_when_a_rank_is_lost() {
    let (end, _) = said("gpu-abandoned", &["abandoned"]);
    for rank in 0..3 {
        let begins = format!("rank {rank}: rank 3 on host ");
        assert!(
            end.stdout.iter().any(|line| line.starts_with(&begins) && line.contains("was lost")),
            "{end:?}"
        );
    }
}
