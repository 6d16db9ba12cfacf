//! Members over real sockets of this host, for both drivers.

use ringway_dataplane::transport::conformance::{Depth, Mode, Rig, Skip};
use ringway_dataplane::transport::{Keyring, Transport};
use ringway_dataplane::uring::{Bind, Config, DriverChoice, TcpTransport};
use std::net::Ipv4Addr;

/// Transports with this driver.
pub(crate) struct TcpRig(pub(crate) DriverChoice);

impl Rig for TcpRig {
    fn members(&mut self, n: u32, mode: Mode) -> Result<Vec<Box<dyn Transport>>, Skip> {
        if mode.reorder {
            return Err(Skip::new("a wire that reorders (TCP does not)"));
        }
        let member = |me| {
            let bind = Bind::new(Ipv4Addr::LOCALHOST.into(), "lo");
            let config = Config {
                eager_bytes: if mode.eager { 64 << 10 } else { 0 },
                depth: if mode.depth == Depth::One { 1 } else { 128 },
                connect_timeout_ms: 10_000,
                driver: self.0,
                ..Config::new(me, Keyring::of([5; 32]), 1000 + u64::from(me), vec![bind])
            };
            let transport = TcpTransport::new(config).map_err(|e| Skip::new(e.to_string()))?;
            Ok(Box::new(transport) as Box<dyn Transport>)
        };
        (0..n).map(member).collect()
    }

    fn allocations(&self) -> Option<u64> {
        super::counting_allocator::allocations()
    }
}
