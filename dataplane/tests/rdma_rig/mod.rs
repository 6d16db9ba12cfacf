//! Members over the RDMA devices of this host, which the guest of `tests/soft-roce` has.
#![allow(dead_code)]

use ringway_dataplane::memory::Region;
use ringway_dataplane::rdma::choice::{Choice, choose};
use ringway_dataplane::rdma::{Config, RdmaConfig, RdmaTransport, survey};
use ringway_dataplane::transport::conformance::{Depth, Mode, Rig, Skip};
use ringway_dataplane::transport::{Event, Keyring, Op, OpId, Peer, Stamp, Tag, Transport};
use std::time::{Duration, Instant};

/// Says whether a missing device fails the test, as where it is known to be there: `require`.
const WANTED: &str = "RINGWAY_TEST_RDMA";
const DEADLINE: Duration = Duration::from_secs(280);

/// The rails of this host, or `None` where there are none, which is said.
pub(crate) fn rails() -> Option<Choice> {
    rails_of(&RdmaConfig::default())
}

/// The same with a configuration.
pub(crate) fn rails_of(config: &RdmaConfig) -> Option<Choice> {
    let host = survey::this_host().unwrap_or_else(|e| panic!("{e}"));
    choose(&host, config)
        .inspect_err(|why| {
            let wanted = std::env::var(WANTED).is_ok_and(|w| w == "require");
            assert!(!wanted, "{WANTED}=require, and there is no RDMA: {why}");
            println!("skipped: an RDMA device is missing ({why})");
        })
        .ok()
}

/// A member with `rails` of these, the first another for each, so that packets really travel.
pub(crate) fn open(me: u32, choice: &Choice, rails: usize, tune: impl FnOnce(&mut Config)) -> RdmaTransport {
    let mut mine = Choice { rails: choice.rails.clone(), verdicts: Vec::new() };
    mine.rails.rotate_left(me as usize % choice.rails.len());
    mine.rails.truncate(rails);
    let mut config = Config::new(me, Keyring::of([7; 32]), 1000 + u64::from(me));
    config.connect_timeout_ms = 5_000;
    config.rdma.timeout = 14;
    tune(&mut config);
    RdmaTransport::open(config, &mine).unwrap_or_else(|e| panic!("{e}"))
}

/// Introduces two to each other.
pub(crate) fn introduce(sides: &mut [impl Transport; 2]) {
    let addresses = [sides[0].address(), sides[1].address()];
    sides[0].connect(Peer(1), &addresses[1]).unwrap();
    sides[1].connect(Peer(0), &addresses[0]).unwrap();
}

/// Sends `from` of member 0 into `into` of member 1.
pub(crate) fn carry(sides: &mut [impl Transport; 2], from: &mut Region, into: &mut Region) {
    let (tag, stamp, len) = (Tag { group: 1, lane: 1 }, Stamp::default(), from.len());
    let wanted = into.lend_write(0..len).unwrap();
    sides[1].post(OpId(1), Op::Recv { from: Peer(0), tag, stamp, into: wanted }).unwrap();
    let bytes = from.lend_read(0..len).unwrap();
    sides[0].post(OpId(1), Op::Send { to: Peer(1), tag, stamp, bytes }).unwrap();
    let deadline = Instant::now() + DEADLINE;
    let mut open = [true, true];
    while open.contains(&true) {
        assert!(Instant::now() < deadline, "T1: {len} bytes are still under way");
        for (side, transport) in sides.iter_mut().enumerate() {
            let mut events = Vec::new();
            transport.poll(&mut events);
            for event in events {
                let Event::Done(done) = event else { panic!("{event:?}") };
                assert_eq!(done.result, Ok(()), "T1");
                let region = if side == 0 { &mut *from } else { &mut *into };
                region.restore(done.lease).unwrap();
                open[side] = false;
            }
        }
    }
}

/// For conformance: members with so many rails each.
pub(crate) struct Members {
    pub(crate) rails: usize,
    pub(crate) allocations: fn() -> Option<u64>,
}

impl Rig for Members {
    fn members(&mut self, n: u32, mode: Mode) -> Result<Vec<Box<dyn Transport>>, Skip> {
        if mode.reorder {
            return Err(Skip::new("a wire that reorders"));
        }
        let choice = rails().ok_or_else(|| Skip::new("an RDMA device"))?;
        if choice.rails.len() < self.rails {
            return Err(Skip::new(format!("a host with {} devices", self.rails)));
        }
        let tune = |config: &mut Config| {
            config.stripe_bytes = 4096;
            if mode.depth == Depth::One {
                config.depth = 1;
            }
            if !mode.eager {
                config.eager_bytes = 0;
            }
        };
        Ok((0..n).map(|me| Box::new(open(me, &choice, self.rails, tune)) as Box<dyn Transport>).collect())
    }

    fn allocations(&self) -> Option<u64> {
        (self.allocations)()
    }
}
