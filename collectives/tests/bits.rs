//! Bits and errors of all-reduces: random ones out of fixed seeds (`cargo run --release -p ringway-collectives --example
//! random_all_reduces -- 10000` makes more), and the types that travel as others.

#[path = "harness/random.rs"]
mod random;

#[test]
fn random_all_reduces_give_the_same_bits_and_the_right_results() {
    for seed in 0..25 {
        let tally = random::round(seed);
        assert!(tally.vectors > 0 && tally.calls > tally.vectors);
    }
}

#[test]
fn slices_change_no_bit() {
    // E2
    assert!(random::slices_change_no_bit(7) > 50);
}

#[test]
fn sharing_memory_changes_no_bit() {
    // E2, I9 of schedules
    assert!(random::memory_changes_no_bit(11) > 50);
}
