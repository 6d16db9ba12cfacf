//! What ranks say where RDMA is required and cannot be used. A filter that no device passes makes it so on machines
//! with RDMA as on those without.

use crate::process::script;

/// Two ranks with these settings, each to its own end.
fn two_ranks(first: &str, second: &str) -> String {
    let ranks = format!(
        "if [ $RINGWAY_RANK = 0 ]; then export {first}; else export {second}; fi\n\
         {program} bench all-reduce -b 8 -e 8 --iters 1\n\
         [ $? = 125 ] || echo \"rank $RINGWAY_RANK did not fail\"",
        program = env!("CARGO_BIN_EXE_ringway")
    );
    let end = script(&["-n", "2"], &ranks).end();
    assert!(end.stdout.iter().all(|line| !line.contains("did not fail")), "{end:?}");
    end.stderr
}

#[track_caller]
fn assert_said(stderr: &str, words: &[&str]) {
    let said = stderr.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(said, "nobody said {words:?}: {stderr}");
}

#[test]
fn a_rank_that_requires_rdma_and_one_that_has_it_off_each_hear_why() {
    let stderr = two_ranks("RINGWAY_RDMA=require RINGWAY_IB_HCA==no-such-device", "RINGWAY_RDMA=off");
    assert_said(&stderr, &["bench: rank 0: no way to move data: RDMA is required", "cannot be used here"]);
    assert_said(&stderr, &["bench: rank 1 has no way to rank 0", "it says: RDMA is required there"]);
}

#[test]
fn two_ranks_that_require_rdma_and_have_none_each_say_why() {
    let settings = "RINGWAY_NET=rdma RINGWAY_IB_HCA==no-such-device";
    let stderr = two_ranks(settings, settings);
    for rank in ["rank 0", "rank 1"] {
        assert_said(&stderr, &[&format!("bench: {rank}: no way to move data: RDMA is required")]);
        let why = format!("{rank}: ");
        let said = stderr.lines().filter(|line| line.contains(&why) && line.contains("cannot be used here"));
        assert_eq!(said.count(), 1, "{stderr}");
    }
}
