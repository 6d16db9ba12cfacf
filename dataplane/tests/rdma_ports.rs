//! Ports that go down and come back: connections that begin meanwhile do without. It makes a device of its own, so it
//! runs in the guest of `tests/soft-roce` alone.
#![forbid(unsafe_code)]

mod rdma_rig;

use rdma_rig::{carry, introduce, open, rails_of};
use ringway_dataplane::memory::Pool;
use ringway_dataplane::rdma::choice::{Choice, HcaFilter};
use ringway_dataplane::rdma::{RdmaConfig, RdmaTransport};
use ringway_dataplane::transport::{Peer, Transport};
use std::process::Command;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(60);

fn sh(command: &str) {
    let done = Command::new("sh").args(["-ec", command]).output().expect("a shell");
    assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A device on an interface of its own, since an end of a veth pair takes the other end with it.
struct Extra;

impl Extra {
    fn new() -> Extra {
        sh("ip link add rail type dummy; ip addr add 10.77.1.1/24 dev rail; ip link set rail up;
            rdma link add rxe2 type rxe netdev rail");
        let extra = Extra;
        extra.until("ACTIVE");
        extra
    }

    fn until(&self, state: &str) {
        let since = Instant::now();
        let file = "/sys/class/infiniband/rxe2/ports/1/state";
        while !std::fs::read_to_string(file).is_ok_and(|text| text.contains(state)) {
            assert!(since.elapsed() < DEADLINE, "rxe2 is not {state}");
            std::thread::yield_now();
        }
    }
}

impl Drop for Extra {
    fn drop(&mut self) {
        for args in [["rdma", "link", "delete", "rxe2"], ["ip", "link", "delete", "rail"]] {
            let _ = Command::new(args[0]).args(&args[1..]).status();
        }
    }
}

/// Two members that have not met.
fn strangers(choice: &Choice, incarnation: u64) -> [RdmaTransport; 2] {
    let member = |me| {
        open(me, choice, 2, |config| {
            config.incarnation = incarnation + u64::from(me);
            config.stripe_bytes = 64 << 10;
        })
    };
    let mut sides = [member(0), member(1)];
    introduce(&mut sides);
    sides
}

/// Sends a message of several stripes, and tells over which rails they are connected.
fn send_over(sides: &mut [RdmaTransport; 2]) -> String {
    let pool = Pool::default();
    let (mut from, mut into) = (pool.region(200_000).unwrap(), pool.region(200_000).unwrap());
    from.bytes_mut(0..200_000).unwrap().fill(7);
    carry(sides, &mut from, &mut into);
    assert!(into.bytes(0..200_000).unwrap().iter().all(|b| *b == 7), "F1");
    sides[0].why(Peer(1)).unwrap()
}

#[test]
fn connections_begin_without_a_port_that_is_down_and_with_one_that_is_back() {
    if std::env::var("SOFTROCE").is_err() {
        return println!("skipped: a guest in which devices may be made is missing");
    }
    let extra = Extra::new();
    let hca = Some("=rxe0,rxe2".parse::<HcaFilter>().expect("a filter"));
    let choice = rails_of(&RdmaConfig { hca, ..RdmaConfig::default() }).expect("two devices");
    assert_eq!(choice.rails.len(), 2);

    // One that stands, loses a rail, and goes on.
    let mut old = strangers(&choice, 1000);
    let why = send_over(&mut old);
    assert_eq!(why.matches("MTU").count(), 2, "{why}");
    // Two that have looked at their ports and not met.
    let mut new = strangers(&choice, 2000);
    sh("ip link set rail down");
    extra.until("DOWN");
    send_over(&mut old);
    let why = send_over(&mut new);
    assert!(why.matches("MTU").count() == 1 && why.contains("rxe0"), "{why}");
    send_over(&mut old);

    sh("ip link set rail up");
    extra.until("ACTIVE");
    let mut newest = strangers(&choice, 3000);
    let why = send_over(&mut newest);
    assert_eq!(why.matches("MTU").count(), 2, "{why}");
    send_over(&mut new);
    send_over(&mut old);
}
