//! Several transports behind one endpoint, against the conformance suite: some peers meet on the first, some on the
//! second.

mod counting_allocator;

use ringway_dataplane::fabric::{Endpoint, Policy};
use ringway_dataplane::transport::conformance::{Depth, Mode, Rig, Skip};
use ringway_dataplane::transport::{FaultPlan, Faulty, Hub, LoopbackConfig, Named, Peer, Transport};

struct Endpoints;

impl Rig for Endpoints {
    fn members(&mut self, n: u32, mode: Mode) -> Result<Vec<Box<dyn Transport>>, Skip> {
        let depth = if mode.depth == Depth::One { 1 } else { 16 };
        let eager_bytes = if mode.eager { 4096 } else { 0 };
        let hub = |seed| Hub::new(LoopbackConfig { seed, eager_bytes, depth, reorder: mode.reorder });
        let (near, far) = ([hub(1), hub(2)], hub(3));
        (0..n)
            .map(|i| {
                let no_fd = |e| Skip::new(format!("a file descriptor ({e})"));
                // Two "hosts": members of the same parity reach each other by the first transport.
                let first = near[i as usize % 2].join(Peer(i)).map_err(no_fd)?;
                let second = far.join(Peer(i)).map_err(no_fd)?;
                let second = Faulty::new(second, FaultPlan::default()).map_err(no_fd)?;
                let ways: Vec<(Box<dyn Transport>, Policy)> = vec![
                    (Box::new(Named::new(first, "near")), Policy::Prefer),
                    (Box::new(second), Policy::Prefer),
                ];
                let endpoint = Endpoint::new(ways).map_err(|e| Skip::new(e.to_string()))?;
                Ok(Box::new(endpoint) as Box<dyn Transport>)
            })
            .collect()
    }

    fn allocations(&self) -> Option<u64> {
        counting_allocator::allocations()
    }
}

ringway_dataplane::transport_conformance!(Endpoints);
