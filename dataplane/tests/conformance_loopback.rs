//! Loopback, the reference, against the conformance suite.

use ringway_dataplane::transport::conformance::{Depth, Mode, Rig, Skip};
use ringway_dataplane::transport::{Hub, LoopbackConfig, Peer, Transport};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // While a thread is torn down its counter is gone; nobody reads it then.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller's.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller's.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Loopbacks;

impl Rig for Loopbacks {
    fn members(&mut self, n: u32, mode: Mode) -> Result<Vec<Box<dyn Transport>>, Skip> {
        let depth = if mode.depth == Depth::One { 1 } else { 16 };
        let eager_bytes = if mode.eager { 4096 } else { 0 };
        let hub = Hub::new(LoopbackConfig { seed: 11, eager_bytes, depth, reorder: mode.reorder });
        let boxed = |i| Ok(Box::new(hub.join(Peer(i))?) as Box<dyn Transport>);
        (0..n)
            .map(boxed)
            .collect::<std::io::Result<_>>()
            .map_err(|e| Skip::new(format!("a file descriptor ({e})")))
    }

    fn allocations(&self) -> Option<u64> {
        ALLOCATIONS.try_with(Cell::get).ok()
    }

    fn huge(&self) -> bool {
        std::env::var_os("RINGWAY_TEST_HUGE").is_some()
    }
}

ringway_dataplane::transport_conformance!(Loopbacks);
