//! Schedules broken on purpose, one for each fault that the simulator names.

use crate::schedule::simulate::{Check, Fault, Posting, verify};
use crate::schedule::*;

/// Any schedule, given as a function.
struct Made<F> {
    ranks: u32,
    chunks: u32,
    step: F,
}

impl<F: Fn(Rank, u32) -> Option<Step> + Send + Sync> Schedule for Made<F> {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn chunks(&self) -> u32 {
        self.chunks
    }

    fn step(&self, rank: Rank, index: u32) -> Option<Step> {
        (self.step)(rank, index)
    }
}

/// `inner` with step `index` of `rank` replaced.
fn edited(inner: impl Schedule, rank: Rank, index: u32, to: Option<Step>) -> impl Schedule {
    let (ranks, chunks) = (inner.ranks(), inner.chunks());
    let step = move |r, i| if (r, i) == (rank, index) { to } else { inner.step(r, i) };
    Made { ranks, chunks, step }
}

const SEED: u64 = 0x5eed;

fn fault(schedule: &impl Schedule, collective: Collective, posting: Posting) -> Fault {
    verify(schedule, collective, 0, &Check::new(posting, SEED)).expect_err("the schedule is broken")
}

const ALL_POSTINGS: [Posting; 3] = [Posting::STRICT, Posting::WIDE, Posting::BUFFERED];

fn send(to: Rank, chunk: u32) -> Option<Step> {
    Some(Step::Send { to, span: Span::one(chunk) })
}

fn receive(from: Rank, chunk: u32) -> Option<Step> {
    Some(Step::Recv { from, span: Span::one(chunk) })
}

fn reduce(from: Rank, chunk: u32) -> Option<Step> {
    Some(Step::Reduce { from, span: Span::one(chunk) })
}

#[test]
fn ranks_that_all_receive_first_deadlock_even_with_buffers() {
    let step = |rank: Rank, index| match index {
        0 => receive((rank + 3) % 4, 0),
        1 => send((rank + 1) % 4, 0),
        _ => None,
    };
    for posting in ALL_POSTINGS {
        let found = fault(&Made { ranks: 4, chunks: 1, step }, Collective::AllReduce, posting);
        let first = Step::Recv { from: 3, span: Span::one(0) };
        assert_eq!(found, Fault::Deadlock { rank: 0, index: 0, step: first, stuck: 4 });
    }
}

#[test]
fn a_swap_in_place_needs_buffers_and_deadlocks_without() {
    // Each receives over what it sends: the receive waits for the send, which waits for the other's receive.
    let step = |rank: Rank, index| match index {
        0 => send(1 - rank, 0),
        1 => receive(1 - rank, 0),
        _ => None,
    };
    let swap = Made { ranks: 2, chunks: 1, step };
    assert!(matches!(fault(&swap, Collective::AllReduce, Posting::WIDE), Fault::Deadlock { stuck: 2, .. }));
    assert!(matches!(
        fault(&swap, Collective::AllReduce, Posting::BUFFERED),
        Fault::Wrong { rank: 0, chunk: 0 }
    ));
}

#[test]
fn a_program_that_looks_too_far_ahead_deadlocks_with_the_least_credit() {
    // Two sends before the two receives: without buffers it takes a look-ahead of three steps.
    let step = |rank: Rank, index| match index {
        0 => send(1 - rank, rank),
        1 => send(1 - rank, rank),
        2 | 3 => receive(1 - rank, 1 - rank),
        _ => None,
    };
    let greedy = Made { ranks: 2, chunks: 2, step };
    assert!(matches!(fault(&greedy, Collective::AllGather, Posting::STRICT), Fault::Deadlock { .. }));
    assert!(verify(&greedy, Collective::AllGather, 0, &Check::new(Posting::WIDE, SEED)).is_ok());
}

#[test]
fn a_wrong_chunk_or_a_double_count_gives_a_wrong_value() {
    for posting in ALL_POSTINGS {
        let wrong = edited(RingAllReduce { ranks: 5 }, 2, 4, send(3, 0));
        assert!(matches!(fault(&wrong, Collective::AllReduce, posting), Fault::Wrong { .. }));
        let twice = |rank: Rank, index| match (rank, index) {
            (1, 0 | 1) => send(0, 0),
            (0, 0 | 1) => reduce(1, 0),
            (0, 2) => send(1, 0),
            (1, 2) => receive(0, 0),
            _ => None,
        };
        let twice = Made { ranks: 2, chunks: 1, step: twice };
        assert_eq!(fault(&twice, Collective::AllReduce, posting), Fault::Wrong { rank: 0, chunk: 0 });
    }
}

#[test]
fn an_all_to_all_that_overwrites_a_block_to_send_is_wrong() {
    let clobbers = edited(DirectAllToAll { ranks: 3 }, 1, 1, receive(0, 1));
    assert!(matches!(fault(&clobbers, Collective::AllToAll, Posting::STRICT), Fault::Wrong { rank: 1, .. }));
}

#[test]
fn a_chunk_that_no_sample_shows_is_still_stepped_through() {
    let schedule = edited(RingAllGather { ranks: 9 }, 4, 3, receive(3, 4));
    let check = Check { sampled_chunks: 2, ..Check::new(Posting::STRICT, SEED) };
    let found = verify(&schedule, Collective::AllGather, 0, &check);
    // Chunk 2 never reaches rank 4, which passes junk on; the sample holds chunks 0 and 8 only.
    assert!(found.is_ok(), "{found:?}");
    assert!(matches!(fault(&schedule, Collective::AllGather, Posting::STRICT), Fault::Wrong { .. }));
}

/// One step out of 33 million, or one message of 17 million.
#[test]
fn one_wrong_step_is_found_among_4096_ranks() {
    const RANKS: u32 = 4096;
    let ring = RingReduceScatter { ranks: RANKS };
    assert_eq!(ring.step(2500, 4000), send(2501, 499));
    let wrong_chunk = edited(ring, 2500, 4000, send(2501, 498));
    let found = fault(&wrong_chunk, Collective::ReduceScatter, Posting::STRICT);
    // Chunk 499 goes on with what chunk 498 held, and ends at its owner.
    assert_eq!(found, Fault::Wrong { rank: 499, chunk: 499 });

    let gather = RingAllGather { ranks: RANKS };
    assert_eq!(gather.step(1000, 8189), receive(999, 1001));
    let misplaced = edited(gather, 1000, 8189, receive(999, 1002));
    let found = fault(&misplaced, Collective::AllGather, Posting::STRICT);
    assert_eq!(found, Fault::Wrong { rank: 1000, chunk: 1001 });

    let direct = DirectReduceScatter { ranks: RANKS };
    let last = direct.steps(4095) - 1;
    assert_eq!(direct.step(4095, last), send(0, 0));
    let unsent = edited(direct, 4095, last, None);
    let found = fault(&unsent, Collective::ReduceScatter, Posting::STRICT);
    assert!(matches!(found, Fault::Orphan { rank: 0, .. }), "{found:?}");
}

#[test]
fn a_step_without_its_match_is_an_orphan() {
    for posting in ALL_POSTINGS {
        let last = DoublingAllReduce { ranks: 3 };
        // Rank 1 is folded into rank 0 and gets the total back last: once nobody takes it, once nobody sends it.
        let untaken = edited(last, 1, 1, None);
        let step = last.step(0, 3).unwrap();
        assert_eq!(step, Step::Send { to: 1, span: Span::one(0) });
        assert_eq!(
            fault(&untaken, Collective::AllReduce, posting),
            Fault::Orphan { rank: 0, index: 3, step }
        );
        let unsent = edited(last, 0, 3, None);
        let step = last.step(1, 1).unwrap();
        assert_eq!(fault(&unsent, Collective::AllReduce, posting), Fault::Orphan { rank: 1, index: 1, step });
    }
}

#[test]
fn sizes_that_differ_are_named_on_both_sides() {
    let whole = HalvingAllReduce { ranks: 4 };
    let expected = Span::new(0, 1);
    assert_eq!(whole.step(0, 1), Some(Step::Reduce { from: 1, span: Span::new(0, 2) }));
    let short = edited(whole, 0, 1, Some(Step::Reduce { from: 1, span: expected }));
    for posting in ALL_POSTINGS {
        let sent = Span::new(0, 2);
        let wanted = Fault::SpanMismatch { from: 1, from_index: 0, sent, to: 0, to_index: 1, expected };
        assert_eq!(fault(&short, Collective::AllReduce, posting), wanted);
    }
}

#[test]
fn equal_sums_by_different_expressions_disagree() {
    // Everybody sends to everybody and combines in its own order.
    let step = |rank: Rank, index: u32| match index {
        0 | 1 => send((rank + 1 + index) % 3, 0),
        // Rank 0 takes 1 then 2, rank 1 takes 2 then 0, rank 2 takes 0 then 1.
        2 | 3 => reduce((rank + index - 1) % 3, 0),
        _ => None,
    };
    let schedule = Made { ranks: 3, chunks: 1, step };
    let found = fault(&schedule, Collective::AllReduce, Posting::WIDE);
    assert_eq!(found, Fault::Disagree { rank: 1, other: 0, chunk: 0 });
}

#[test]
fn a_ring_does_not_keep_rank_order() {
    let check = Check { rank_order: true, ..Check::new(Posting::STRICT, SEED) };
    let found = verify(&RingAllReduce { ranks: 4 }, Collective::AllReduce, 0, &check);
    assert!(matches!(found, Err(Fault::OutOfOrder { .. })), "{found:?}");
}

#[test]
fn a_hole_in_a_program_is_found() {
    let holed = edited(RingAllGather { ranks: 4 }, 2, 3, None);
    assert_eq!(fault(&holed, Collective::AllGather, Posting::STRICT), Fault::Hole { rank: 2, index: 3 });
}

#[test]
fn steps_out_of_bounds_are_found() {
    let outside = [send(0, 0), send(4, 0), send(1, 4), Some(Step::Send { to: 1, span: Span::new(0, 0) })]
        .into_iter()
        .chain([receive(0, 0), Some(Step::Reduce { from: 1, span: Span::new(3, u32::MAX) })]);
    for step in outside {
        let schedule = edited(RingAllGather { ranks: 4 }, 0, 0, step);
        let found = fault(&schedule, Collective::AllGather, Posting::STRICT);
        assert_eq!(found, Fault::Bounds { rank: 0, index: 0, step: step.unwrap() });
    }
}

#[test]
fn a_barrier_that_lacks_a_round_is_left_early() {
    let full = DisseminationBarrier { ranks: 5 };
    let step = move |rank, index| if index < 4 { full.step(rank, index) } else { None };
    let short = Made { ranks: 5, chunks: 1, step };
    for posting in ALL_POSTINGS {
        assert_eq!(fault(&short, Collective::Barrier, posting), Fault::Early { rank: 0, unheard: 1 });
    }
}

#[test]
fn faults_say_where_they_are() {
    let step = Step::Send { to: 4, span: Span::new(2, 3) };
    let told = Fault::Orphan { rank: 7, index: 9, step }.to_string();
    assert_eq!(told, "step 9 of rank 7 has no match (send chunks 2..5 to rank 4): the peer has ended");
}
