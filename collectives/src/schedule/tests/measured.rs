//! What the simulation in time has of how machines are measured: calls that cost something, small messages that leave at once, operands
//! that are combined where they lie, ranks that take turns on a core, and barriers before calls.

use crate::schedule::cost::LinkCosts;
use crate::schedule::simulate::{Network, SharedCores, Workload, price, price_behind_barrier};
use crate::schedule::{Algorithm, AnySchedule, Collective, EAGER_BYTES};

/// Only bytes cost something: 1,024 of them a microsecond.
const BYTES: LinkCosts = LinkCosts {
    latency_us: 0.0,
    message_us: 0.0,
    eager_message_us: 0.0,
    bytes_per_us: 1024.0,
    reduce_bytes_per_us: 2048.0,
    offloaded: false,
};

fn time(collective: Collective, algorithm: Algorithm, bytes: u64, network: &Network) -> f64 {
    let schedule = AnySchedule::new(collective, algorithm, network.places.len() as u32, 0).unwrap();
    let work = Workload { bytes, slice_bytes: bytes, slices_in_flight: 1 };
    price(&schedule, collective, network, &work).unwrap().time_us
}

/// Two ranks on one core, with a switch and a call of 1 us each.
fn sharing() -> Network {
    let shared = Some(SharedCores { cores: vec![0, 0], switch_us: 1.0 });
    Network { shared, call_us: 1.0, ..Network::hosts(2, 2, BYTES, BYTES) }
}

#[test]
fn small_messages_leave_before_their_receiver_is_ready() {
    let broadcast = |bytes| time(Collective::Broadcast, Algorithm::Tree, bytes, &sharing());
    let half = |bytes: u64| bytes as f64 / 1024.0 / 2.0;
    // The root calls and sends, then the other calls and receives.
    assert_eq!(broadcast(EAGER_BYTES), 2.0 * (1.0 + 1.0 + half(EAGER_BYTES)));
    // Both call, then one sends and the other receives.
    assert_eq!(broadcast(2 * EAGER_BYTES), 4.0 + 2.0 * (1.0 + half(2 * EAGER_BYTES)));
}

#[test]
fn no_slice_begins_before_its_call_has() {
    let bytes = 64 << 10;
    let schedule = AnySchedule::new(Collective::AllReduce, Algorithm::Ring, 2, 0).unwrap();
    let time = |call_us, slices_in_flight| {
        let network = Network { call_us, ..Network::hosts(2, 2, BYTES, BYTES) };
        let work = Workload { bytes, slice_bytes: bytes / 16, slices_in_flight };
        let at_once = price(&schedule, Collective::AllReduce, &network, &work).unwrap().time_us;
        let measured = price_behind_barrier(&schedule, Collective::AllReduce, &network, &work).unwrap();
        assert_eq!(measured.time_us, at_once);
        at_once
    };
    for slices_in_flight in 1..=8 {
        assert_eq!(time(1000.0, slices_in_flight), time(0.0, slices_in_flight) + 1000.0);
    }
}

#[test]
fn any_number_of_slices_may_end_as_they_begin() {
    let schedule = AnySchedule::new(Collective::AllReduce, Algorithm::Ring, 1, 0).unwrap();
    let work = Workload { bytes: 1 << 20, slice_bytes: 1, slices_in_flight: 2 };
    let priced = price(&schedule, Collective::AllReduce, &Network::flat(1, BYTES), &work);
    assert_eq!(priced.map(|price| price.time_us), Ok(0.0));
}

#[test]
fn what_nothing_holds_up_is_combined_in_passing() {
    let network = Network { passing_bytes_per_us: Some(8192.0), ..Network::hosts(2, 2, BYTES, BYTES) };
    let bytes = 64 << 10;
    // 64 us to move them, 32 to combine them afterwards, 8 in passing.
    assert_eq!(time(Collective::Reduce, Algorithm::Tree, bytes, &network), 64.0 + 8.0);
    // Each sends what it is to combine into, and gets it back before it does.
    assert_eq!(time(Collective::AllReduce, Algorithm::Doubling, bytes, &network), 64.0 + 32.0 + 64.0);
    let small = EAGER_BYTES;
    assert_eq!(
        time(Collective::AllReduce, Algorithm::Doubling, small, &network),
        16.0 + 8.0,
        "sent as a copy"
    );
    let apart = Network { passing_bytes_per_us: Some(8192.0), ..Network::flat(2, BYTES) };
    assert_eq!(time(Collective::Reduce, Algorithm::Tree, bytes, &apart), 64.0 + 32.0, "between hosts");
}

#[test]
fn calls_behind_barriers_take_as_long_as_on_the_rank_that_waits_longest() {
    let measured = |collective, algorithm, bytes, network: &Network| {
        let schedule = AnySchedule::new(collective, algorithm, network.places.len() as u32, 0).unwrap();
        let work = Workload { bytes, slice_bytes: bytes, slices_in_flight: 1 };
        price_behind_barrier(&schedule, collective, network, &work).unwrap().time_us
    };
    // With a core each, all leave a barrier at once.
    let alone = Network { call_us: 1.0, ..Network::hosts(4, 4, BYTES, BYTES) };
    for algorithm in [Algorithm::Ring, Algorithm::Doubling] {
        let bytes = 64 << 10;
        let at_once = time(Collective::AllReduce, algorithm, bytes, &alone);
        assert_eq!(measured(Collective::AllReduce, algorithm, bytes, &alone), at_once, "{algorithm}");
    }
    // On one core, who has left the barrier goes on at once: each waits for one turn of the other.
    let found = measured(Collective::AllReduce, Algorithm::Doubling, 8, &sharing());
    assert!(found < time(Collective::AllReduce, Algorithm::Doubling, 8, &sharing()), "{found}");
}
