//! The decorators change nothing: loopback under a trace and under an empty fault plan, against the conformance suite.

mod counting_allocator;

use ringway_dataplane::transport::conformance::{Depth, Mode, Rig, Skip};
use ringway_dataplane::transport::{FaultPlan, Faulty, Hub, LoopbackConfig, Peer, Trace, Transport};

struct Decorated;

impl Rig for Decorated {
    fn members(&mut self, n: u32, mode: Mode) -> Result<Vec<Box<dyn Transport>>, Skip> {
        let depth = if mode.depth == Depth::One { 1 } else { 16 };
        let eager_bytes = if mode.eager { 4096 } else { 0 };
        let hub = Hub::new(LoopbackConfig { seed: 12, eager_bytes, depth, reorder: mode.reorder });
        let decorated = |i| {
            let faulty = Faulty::new(hub.join(Peer(i))?, FaultPlan::default())?;
            Ok(Box::new(Trace::new(faulty, 256)) as Box<dyn Transport>)
        };
        (0..n)
            .map(decorated)
            .collect::<std::io::Result<_>>()
            .map_err(|e| Skip::new(format!("a file descriptor ({e})")))
    }

    fn allocations(&self) -> Option<u64> {
        counting_allocator::allocations()
    }
}

ringway_dataplane::transport_conformance!(Decorated);
