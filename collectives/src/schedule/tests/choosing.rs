//! The cost model: simulation in time against formulas, and what is chosen by them.

use crate::schedule::simulate::{Fault, Load, Network, Resource, SharedCores, Workload, price};
use crate::schedule::*;

/// A 100 Gbit/s fabric with remote direct memory access.
const RDMA: LinkCosts = LinkCosts {
    latency_us: 1.5,
    message_us: 0.2,
    eager_message_us: 0.2,
    bytes_per_us: 12_000.0,
    reduce_bytes_per_us: 50_000.0,
    offloaded: true,
};

const COSTS: [LinkCosts; 3] = [LinkCosts::TCP_LOOPBACK, LinkCosts::SHARED_MEMORY, RDMA];

/// The choice for ranks of one host.
fn choose(
    collective: Collective,
    ranks: u32,
    bytes: u64,
    costs: &LinkCosts,
    forced: Option<Algorithm>,
) -> Option<Choice> {
    let group = Arrangement::together(ranks);
    let basis = forced.map_or(Basis::default(), Basis::from);
    super::super::choose(collective, &group, bytes, &Costs::from(*costs), basis)
}

fn simulated_us(
    collective: Collective,
    algorithm: Algorithm,
    ranks: u32,
    bytes: u64,
    costs: &LinkCosts,
) -> f64 {
    let estimate = estimate(collective, algorithm, ranks, bytes, costs).unwrap();
    let schedule = AnySchedule::new(collective, algorithm, ranks, 0).unwrap();
    let Estimate { slice_bytes, slices_in_flight, .. } = estimate;
    let work = Workload { bytes, slice_bytes, slices_in_flight };
    price(&schedule, collective, &Network::flat(ranks, *costs), &work).unwrap().time_us
}

#[test]
fn the_choice_is_within_a_fifth_of_the_best_by_simulation() {
    for costs in COSTS {
        for collective in Collective::ALL {
            for ranks in [2, 3, 4, 8, 13, 32] {
                for bytes in [8, 2 << 10, 32 << 10, 512 << 10, 8 << 20, 64 << 20] {
                    let choice = choose(collective, ranks, bytes, &costs, None).unwrap();
                    let simulated = |algorithm| simulated_us(collective, algorithm, ranks, bytes, &costs);
                    let exists = |a: &Algorithm| AnySchedule::new(collective, *a, ranks, 0).is_some();
                    let all = collective.algorithms().iter().copied().filter(exists);
                    let (time, best) =
                        all.map(|a| (simulated(a), a)).min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
                    let mine = simulated(choice.algorithm);
                    assert!(
                        mine <= 1.2 * time,
                        "{collective} of {ranks} ranks, {bytes} B: {} takes {mine} us, {best} {time} us; {costs:?}",
                        choice.algorithm,
                    );
                }
            }
        }
    }
}

/// Whether the algorithm sends the whole buffer in every round.
fn is_for_short(collective: Collective, algorithm: Algorithm) -> bool {
    let whole = matches!(algorithm, Algorithm::Doubling | Algorithm::Tree | Algorithm::Exchange);
    whole || (collective, algorithm) == (Collective::Broadcast, Algorithm::Direct)
}

#[test]
fn short_buffers_get_few_rounds_and_long_ones_few_bytes() {
    for costs in COSTS {
        // The tree of three ranks is a chain.
        for ranks in 4..=130 {
            let chosen = |collective, bytes| choose(collective, ranks, bytes, &costs, None).unwrap();
            let short = chosen(Collective::AllReduce, 8).algorithm;
            // Where ranks are folded and messages cost next to nothing, one exchange with everybody is as quick.
            let quick = is_for_short(Collective::AllReduce, short)
                || (short == Algorithm::Direct && !ranks.is_power_of_two());
            assert!(quick, "{short}, {ranks} ranks, {costs:?}");
            let long = chosen(Collective::AllReduce, 1 << 30).algorithm;
            assert!(matches!(long, Algorithm::Ring | Algorithm::Halving), "{long}, {ranks} ranks, {costs:?}");
            let long = chosen(Collective::Broadcast, 1 << 30).algorithm;
            let full = matches!(long, Algorithm::Chain | Algorithm::DoubleTree);
            assert!(full, "{long}, {ranks} ranks, {costs:?}");
        }
    }
}

#[test]
fn more_bytes_take_more_time_and_never_lead_back_to_whole_buffer_rounds() {
    for costs in COSTS {
        for collective in [Collective::AllReduce, Collective::Broadcast, Collective::Reduce] {
            for ranks in 4..=130 {
                let (mut time_us, mut left_short) = (0.0, false);
                for bytes in (0..32).map(|bit| 1 << bit) {
                    let choice = choose(collective, ranks, bytes, &costs, None).unwrap();
                    let place = format!("{choice:?} for {collective} of {ranks} ranks, {bytes} B, {costs:?}");
                    assert!(choice.time_us >= time_us, "{time_us} us for half of it: {place}");
                    let short = is_for_short(collective, choice.algorithm);
                    assert!(!(left_short && short), "{place}");
                    time_us = choice.time_us;
                    left_short |= !short;
                }
            }
        }
    }
}

#[test]
fn messages_stay_within_the_largest_slice() {
    for collective in Collective::ALL {
        for ranks in [1, 2, 3, 8, 30] {
            for &algorithm in collective.algorithms() {
                for bytes in [0, 1, 1 << 20, 12_345_678, 1 << 33] {
                    let costs = LinkCosts::default();
                    let Some(estimate) = estimate(collective, algorithm, ranks, bytes, &costs) else {
                        continue;
                    };
                    let schedule = AnySchedule::new(collective, algorithm, ranks, 0).unwrap();
                    let schedule = &schedule;
                    let steps = (0..ranks).flat_map(|rank| (0..).map_while(move |i| schedule.step(rank, i)));
                    let most = steps.map(|step| step.span().count).max().unwrap_or(1);
                    let message = u64::from(most) * estimate.slice_bytes;
                    assert!(
                        message <= if ranks == 2 { PAIR_MESSAGE_BYTES } else { SLICE_MESSAGE_BYTES[0] },
                        "{algorithm} {collective}, {ranks} ranks: {message} B"
                    );
                }
            }
        }
    }
}

#[test]
fn a_forced_algorithm_is_taken_where_it_exists_and_named_where_not() {
    let costs = LinkCosts::default();
    let forced =
        |collective, ranks, algorithm| choose(collective, ranks, 8, &costs, Some(algorithm)).unwrap();
    let choice = forced(Collective::AllReduce, 4, Algorithm::Ring);
    assert_eq!((choice.algorithm, choice.why), (Algorithm::Ring, Why::Forced));
    let choice = forced(Collective::ReduceScatter, 3, Algorithm::Halving);
    assert_eq!(choice.why, Why::ForcedMissing);
    assert!(choice.schedule(Collective::ReduceScatter, &Arrangement::together(3), 0).is_some());
    assert!(choice.why.to_string().contains("what was asked for does not exist here"));
    let choice = choose(Collective::Barrier, 3, 0, &costs, None).unwrap();
    assert_eq!((choice.algorithm, choice.why), (Algorithm::Dissemination, Why::Only));
    assert_eq!(choose(Collective::Barrier, 0, 0, &costs, None), None);
}

/// I9: what links cost here decides among algorithms of equal bits, and among no others.
#[test]
fn links_decide_among_algorithms_that_give_the_same_bits() {
    let (any, here) = (Costs::default(), LinkCosts::SHARED_BY_SOME);
    let mut changed = 0;
    for collective in Collective::ALL {
        for ranks in 1..=33 {
            let group = Arrangement::together(ranks);
            for bytes in (0..28).map(|bit| 1 << bit) {
                let plain = super::super::choose(collective, &group, bytes, &any, Basis::default()).unwrap();
                let basis = Basis::default();
                let found = choose_alike(collective, &group, bytes, (&any, &here), basis).unwrap();
                assert!(collective.are_alike(plain.algorithm, found.algorithm), "{plain:?} {found:?}");
                changed += u32::from(plain.algorithm != found.algorithm);
                let forced = Basis::from(plain.algorithm);
                let forced = choose_alike(collective, &group, bytes, (&any, &here), forced).unwrap();
                assert_eq!(forced.algorithm, plain.algorithm);
            }
        }
    }
    assert!(changed > 100, "{changed}");
    let four = |bytes| {
        let group = Arrangement::together(4);
        let basis = Basis::default();
        choose_alike(Collective::AllReduce, &group, bytes, (&any, &here), basis).unwrap().algorithm
    };
    use Algorithm::{Direct, Doubling, Exchange};
    let chosen = [8, 1 << 10, 4 << 10, 16 << 10, 32 << 10, 64 << 10].map(four);
    assert_eq!(chosen, [Exchange, Exchange, Doubling, Doubling, Direct, Direct]);
}

/// One slice, no waiting: the simulation has to give the formula's time.
#[test]
fn a_ring_of_one_slice_takes_the_time_of_the_formula() {
    let costs = LinkCosts { reduce_bytes_per_us: 6_000.0, ..RDMA };
    let (ranks, bytes) = (4u32, 12_000_000u64);
    let work = Workload { bytes, slice_bytes: bytes, slices_in_flight: 1 };
    let found =
        price(&RingAllReduce { ranks }, Collective::AllReduce, &Network::flat(ranks, costs), &work).unwrap();
    let wanted = 6.0 * (1.7 + 3e6 / 12_000.0) + 3.0 * 3e6 / 6_000.0;
    assert!((found.time_us - wanted).abs() < 0.01, "{} for {wanted}", found.time_us);
    for rank in 0..ranks {
        let load = |resource| *found.loads.iter().find(|load| load.resource == resource).unwrap();
        assert_eq!(load(Resource::Send(rank)).bytes, 18e6);
        assert_eq!(load(Resource::Receive(rank)).bytes, 18e6);
        let core = Load { resource: Resource::Core(rank), bytes: 9e6, busy_us: 1_500.0 };
        assert_eq!(load(Resource::Core(rank)), core);
    }
}

#[test]
fn slices_fill_a_chain() {
    let time = |slice_bytes| {
        let work = Workload { bytes: 16 << 20, slice_bytes, slices_in_flight: 4 };
        let schedule = ChainBroadcast { ranks: 8, root: 3 };
        price(&schedule, Collective::Broadcast, &Network::flat(8, RDMA), &work).unwrap().time_us
    };
    let wire = (16 << 20) as f64 / RDMA.bytes_per_us;
    assert!(time(16 << 20) > 7.0 * wire);
    assert!(time(1 << 18) < 1.2 * wire);
}

#[test]
fn ranks_of_a_host_share_its_interface() {
    let inside = LinkCosts { bytes_per_us: 100_000.0, ..LinkCosts::SHARED_MEMORY };
    let network = Network::hosts(8, 4, inside, RDMA);
    let work = Workload { bytes: 8_000_000, slice_bytes: 8_000_000, slices_in_flight: 1 };
    let loads = |schedule: AnySchedule| {
        let found = price(&schedule, Collective::AllReduce, &network, &work).unwrap();
        let out = found.loads.iter().filter(|load| matches!(load.resource, Resource::HostOut(_)));
        (out.map(|load| load.bytes).collect::<Vec<_>>(), found.busiest().unwrap().resource)
    };
    // The ring crosses once: 14 messages of an eighth. In doubling all four ranks of a host cross with everything.
    assert_eq!(loads(RingAllReduce { ranks: 8 }.into()).0, [14e6, 14e6]);
    let (bytes, busiest) = loads(DoublingAllReduce { ranks: 8 }.into());
    assert_eq!(bytes, [32e6, 32e6]);
    assert!(matches!(busiest, Resource::HostOut(_) | Resource::HostIn(_)), "{busiest:?}");
}

#[test]
fn ranks_that_share_a_core_take_turns() {
    let costs = LinkCosts { offloaded: false, ..RDMA };
    let time = |cores: Option<Vec<u32>>| {
        let shared = cores.map(|cores| SharedCores { cores, switch_us: 1.0 });
        let network = Network { shared, ..Network::flat(4, costs) };
        let work = Workload { bytes: 1_200_000, slice_bytes: 300_000, slices_in_flight: 1 };
        price(&RingAllReduce { ranks: 4 }, Collective::AllReduce, &network, &work).unwrap().time_us
    };
    let (apart, pairs, one) = (time(None), time(Some(vec![0, 0, 1, 1])), time(Some(vec![0; 4])));
    // Six rounds in which every rank sends and receives 25 us each, half of it work; and three in which all combine 6 us.
    let work_of_all = 4.0 * (6.0 * 25.2 + 3.0 * 6.0);
    assert!(apart < pairs && pairs < one && one > work_of_all, "{apart} {pairs} {one} {work_of_all}");
}

#[test]
fn a_schedule_that_hangs_has_no_price() {
    struct Stuck;
    impl Schedule for Stuck {
        fn ranks(&self) -> u32 {
            2
        }
        fn chunks(&self) -> u32 {
            1
        }
        fn step(&self, rank: Rank, index: u32) -> Option<Step> {
            (index == 0).then_some(Step::Recv { from: 1 - rank, span: Span::one(0) })
        }
    }
    let work = Workload { bytes: 8, slice_bytes: 8, slices_in_flight: 1 };
    let found = price(&Stuck, Collective::AllReduce, &Network::flat(2, RDMA), &work);
    let step = Step::Recv { from: 1, span: Span::one(0) };
    assert_eq!(found, Err(Fault::Deadlock { rank: 0, index: 0, step, stuck: 2 }));
}
