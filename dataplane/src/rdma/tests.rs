//! Transports of one process, over the devices of this host.
#![forbid(unsafe_code)]

use super::choice::{Choice, RdmaConfig, choose};
use super::survey;
use super::{Config, RdmaTransport};
use crate::transport::conformance::{Depth, Mode, Rig, Skip};
use crate::transport::{Peer, Transport};

/// Says whether a missing device fails the tests, as where it is known to be there: `require`.
const WANTED: &str = "RINGWAY_TEST_RDMA";

/// The rails of this host, or why there are none.
fn rails(config: &RdmaConfig) -> Result<Choice, Skip> {
    let host = survey::this_host().unwrap_or_else(|e| panic!("{e}"));
    choose(&host, config).map_err(|why| {
        let wanted = std::env::var(WANTED).is_ok_and(|w| w == "require");
        assert!(!wanted, "{WANTED}=require, and there is no RDMA: {why}");
        Skip::new(format!("an RDMA device ({why})"))
    })
}

/// One device for each member, in turn, so that packets really travel.
fn open(me: u32, choice: &Choice, mode: Mode) -> Box<dyn Transport> {
    let rail = choice.rails[me as usize % choice.rails.len()].clone();
    let mine = Choice { rails: vec![rail], verdicts: Vec::new() };
    let mut config = Config::new(me, [7; 16], 1000 + u64::from(me));
    config.connect_timeout_ms = 5_000;
    config.rdma.timeout = 14;
    if mode.depth == Depth::One {
        config.depth = 1;
    }
    if !mode.eager {
        config.eager_bytes = 0;
    }
    Box::new(RdmaTransport::open(config, &mine).unwrap_or_else(|e| panic!("{e}")))
}

struct Devices;

impl Rig for Devices {
    fn members(&mut self, n: u32, mode: Mode) -> Result<Vec<Box<dyn Transport>>, Skip> {
        if mode.reorder {
            return Err(Skip::new("a wire that reorders"));
        }
        let choice = rails(&RdmaConfig::default())?;
        Ok((0..n).map(|me| open(me, &choice, mode)).collect())
    }
}

crate::transport_conformance!(Devices);

#[test]
fn peers_may_be_this_process_itself() {
    let Ok(choice) = rails(&RdmaConfig::default()) else { return };
    let mode = Mode { eager: true, depth: Depth::Own, reorder: false };
    let (a, mut b) = (open(0, &choice, mode), open(1, &choice, mode));
    assert_eq!(b.connect(Peer(0), &a.address()), Ok(()));
}
