//! A thousand peers that come and are killed leave nothing behind: alone in its process, so that it can count.
#![forbid(unsafe_code)]

use ringway_dataplane::memory::Pool;
use ringway_dataplane::rdma::choice::{Choice, choose};
use ringway_dataplane::rdma::{Config, RdmaConfig, RdmaTransport, survey};
use ringway_dataplane::transport::{Cause, CauseKind, Event, Keyring, Op, OpId, Peer, Stamp, Tag, Transport};

/// Says whether a missing device fails the test, as where it is known to be there: `require`.
const WANTED: &str = "RINGWAY_TEST_RDMA";

fn rails() -> Option<Choice> {
    let host = survey::this_host().unwrap_or_else(|e| panic!("{e}"));
    choose(&host, &RdmaConfig::default())
        .inspect_err(|why| {
            let wanted = std::env::var(WANTED).is_ok_and(|w| w == "require");
            assert!(!wanted, "{WANTED}=require, and there is no RDMA: {why}");
            println!("skipped: an RDMA device is missing ({why})");
        })
        .ok()
}

/// One device for each member, so that packets really travel.
fn open(me: u32, incarnation: u64, choice: &Choice) -> RdmaTransport {
    let rail = choice.rails[me as usize % choice.rails.len()].clone();
    let mut config = Config::new(me, Keyring::of([7; 32]), incarnation);
    config.rdma.timeout = 14;
    RdmaTransport::open(config, &Choice { rails: vec![rail], verdicts: Vec::new() }).unwrap()
}

/// What is in use by this process and in its devices: open files, and objects as `rdma resource` counts them.
fn in_use() -> (usize, String) {
    let files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let counts = std::process::Command::new("rdma").args(["resource", "show"]).output();
    (files, counts.map_or_else(|e| e.to_string(), |o| String::from_utf8_lossy(&o.stdout).into_owned()))
}

#[test]
fn a_thousand_connections_leave_nothing() {
    let Some(choice) = rails() else { return };
    let mut stays = open(0, 1000, &choice);
    let pool = Pool::default();
    let mut before = None;
    for round in 0..1000u32 {
        // Another incarnation each time, as of a process that was killed and started again.
        let mut comes = open(1, 5000 + u64::from(round), &choice);
        stays.connect(Peer(1), &comes.address()).unwrap();
        comes.connect(Peer(0), &stays.address()).unwrap();
        let (tag, stamp) = (Tag { group: round, lane: 0 }, Stamp::default());
        let (mut a, mut b) = (pool.region(20_000).unwrap(), pool.region(20_000).unwrap());
        let into = a.lend_write(0..20_000).unwrap();
        stays.post(OpId(1), Op::Recv { from: Peer(1), tag, stamp, into }).unwrap();
        let bytes = b.lend_read(0..20_000).unwrap();
        comes.post(OpId(2), Op::Send { to: Peer(0), tag, stamp, bytes }).unwrap();
        // One more that the kill meets half way.
        let mut c = pool.region(20_000).unwrap();
        let into = c.lend_write(0..20_000).unwrap();
        stays.post(OpId(3), Op::Recv { from: Peer(1), tag, stamp, into }).unwrap();
        let (mut events, mut theirs) = (Vec::new(), Vec::new());
        while events.is_empty() {
            stays.poll(&mut events);
            comes.poll(&mut theirs);
        }
        drop(comes);
        stays.close(Peer(1), Cause::new(CauseKind::Reported, "killed"));
        while events.len() < 3 {
            stays.poll(&mut events);
        }
        for event in events {
            match event {
                Event::Done(done) if done.id == OpId(1) => a.restore(done.lease).unwrap(),
                Event::Done(done) => c.restore(done.lease).unwrap(),
                Event::Lost { .. } => {}
                other => panic!("round {round}: {other:?}"),
            }
        }
        pool.recycle(a);
        pool.recycle(c);
        stays.retire(round);
        if round == 9 {
            before = Some(in_use());
        }
    }
    assert_eq!(Some(in_use()), before);
}
