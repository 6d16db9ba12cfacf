//! Work on GPUs, as users meet it: what is said where something is missing.

use crate::process::{Run, ringway};

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
fn a_device_that_is_none_is_refused() {
    for (device, says) in [("rocm", "cpu, cuda, or cuda:N"), ("cuda:x", "no number of a GPU")] {
        let end = Run::start(ringway(&["bench", "all-reduce", "--device", device])).end();
        assert!(end.code() != 0 && end.stderr.contains(says), "{device}: {end:?}");
    }
}
