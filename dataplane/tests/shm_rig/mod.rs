//! Members over shared memory, all of this process.

use ringway_dataplane::shm::{Config, ShmTransport};
use ringway_dataplane::transport::conformance::{Depth, Mode, Rig, Skip};
use ringway_dataplane::transport::{Keyring, Transport};

/// Transports with these ways for large messages.
pub(crate) struct ShmRig {
    pub(crate) map_blocks: bool,
    pub(crate) attach: bool,
}

impl Rig for ShmRig {
    fn members(&mut self, n: u32, mode: Mode) -> Result<Vec<Box<dyn Transport>>, Skip> {
        if mode.reorder {
            return Err(Skip::new("a wire that reorders (a queue does not)"));
        }
        let member = |me| {
            let config = Config {
                eager_bytes: if mode.eager { 16 << 10 } else { 0 },
                depth: if mode.depth == Depth::One { 1 } else { 128 },
                connect_timeout_ms: 10_000,
                map_blocks: self.map_blocks,
                attach: self.attach,
                ..Config::new(me, Keyring::of([5; 32]), 1000 + u64::from(me))
            };
            let transport = ShmTransport::new(config).map_err(|e| Skip::new(e.to_string()))?;
            Ok(Box::new(transport) as Box<dyn Transport>)
        };
        (0..n).map(member).collect()
    }

    fn allocations(&self) -> Option<u64> {
        super::counting_allocator::allocations()
    }
}
