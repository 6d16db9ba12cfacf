//! A warm blocking call allocates nothing (engine invariant E4).

#[allow(dead_code)]
mod harness;

use harness::ranks;
use ringway_collectives::engine::EngineOptions;
use ringway_collectives::reduce::ReduceOp;
use ringway_dataplane::transport::LoopbackConfig;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_warm_call_allocates_nothing() {
    let config = LoopbackConfig { eager_bytes: 0, ..LoopbackConfig::default() };
    // On a busy machine a rank may be kept from running for as long as makes the other ask after it, which allocates.
    let options = EngineOptions { inquiry_ms: 600_000, ..EngineOptions::default() };
    ranks(2, config, &options, |c| {
        let mut small = vec![1.0f64; 1];
        let mut large = vec![1.0f32; 300_000];
        let mut gathered = vec![0u32; 2000];
        let mut round = || {
            c.all_reduce(&mut small, ReduceOp::Avg).unwrap();
            c.all_reduce(&mut large, ReduceOp::Avg).unwrap();
            c.all_gather(&[c.rank(); 1000], &mut gathered).unwrap();
            c.barrier().unwrap();
        };
        // Long enough for the other side's buffers to have met every interleaving's depth.
        (0..200).for_each(|_| round());
        let before = ALLOCATIONS.get();
        (0..50).for_each(|_| round());
        let during = ALLOCATIONS.get() - before;
        // Keeps the other rank here while it counts: a goodbye is an event with words in it.
        c.barrier().unwrap();
        assert_eq!(during, 0, "rank {}", c.rank());
    });
}
