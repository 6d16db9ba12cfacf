//! Loopback, the reference, against the conformance suite.

mod counting_allocator;

use ringway_dataplane::transport::conformance::{Depth, Mode, Rig, Skip};
use ringway_dataplane::transport::{Hub, LoopbackConfig, Peer, Transport};

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
        counting_allocator::allocations()
    }

    fn huge(&self) -> bool {
        std::env::var_os("RINGWAY_TEST_HUGE").is_some()
    }
}

ringway_dataplane::transport_conformance!(Loopbacks);
