//! Every collective, algorithm and kind of transport, against a plain reference.

use super::world::{World, info};
use crate::engine::group::Group;
use crate::engine::options::EngineOptions;
use crate::engine::plan::{Request, What};
use crate::reduce::{ReduceOp, combine, finish};
use crate::schedule::{Algorithm, AnySchedule, Collective};
use half::{bf16, f16};
use ringway_dataplane::memory::DType;
use ringway_dataplane::transport::LoopbackConfig;
use ringway_dataplane::transport::seed::Seeded;

/// Small numbers as elements of a type: exact in all of them, and so are their sums and products.
fn encode(dtype: DType, values: impl Iterator<Item = u32>) -> Vec<u8> {
    let one = |v: u32| -> Vec<u8> {
        match dtype {
            DType::F16 => f16::from_f32(v as f32).to_ne_bytes().to_vec(),
            DType::Bf16 => bf16::from_f32(v as f32).to_ne_bytes().to_vec(),
            DType::F32 => (v as f32).to_ne_bytes().to_vec(),
            DType::F64 => f64::from(v).to_ne_bytes().to_vec(),
            DType::I8 | DType::U8 => vec![v as u8],
            DType::Bool => vec![v as u8 & 1],
            DType::I16 | DType::U16 => (v as u16).to_ne_bytes().to_vec(),
            DType::I32 | DType::U32 => v.to_ne_bytes().to_vec(),
            DType::I64 | DType::U64 => u64::from(v).to_ne_bytes().to_vec(),
        }
    };
    values.flat_map(one).collect()
}

/// Elements `0..len` of rank `rank`.
fn values(dtype: DType, rank: u32, len: usize) -> Vec<u8> {
    encode(dtype, (0..len as u32).map(|i| 1 + (rank * 5 + i * 3 + i / 7) % 2))
}

/// One call on all ranks: what each brings, and what each must end with.
struct Case {
    request: Request,
    inputs: Vec<Option<Vec<u8>>>,
    outputs: Vec<Option<Vec<u8>>>,
    /// Range of bytes to look at, in the input (in-place calls) or the output, and what must be there.
    expected: Vec<Option<(usize, Vec<u8>)>>,
}

fn total(op: ReduceOp, dtype: DType, inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut sum = inputs[0].clone();
    inputs[1..].iter().for_each(|i| combine(op, dtype, &mut sum, i).unwrap());
    finish(op, dtype, &mut sum, inputs.len() as u32).unwrap();
    sum
}

fn case(
    collective: Collective,
    n: u32,
    count: usize,
    dtype: DType,
    op: ReduceOp,
    root: u32,
    in_place: bool,
) -> Case {
    use Collective as C;
    let size = dtype.size();
    let block = count * size;
    let each = |f: &dyn Fn(u32) -> Option<Vec<u8>>| (0..n).map(f).collect::<Vec<_>>();
    let brings = |len: usize| (0..n).map(|r| values(dtype, r, len)).collect::<Vec<_>>();
    let some = |v: &[Vec<u8>]| v.iter().cloned().map(Some).collect::<Vec<_>>();
    let empty = |blocks: usize| vec![0xee; block * blocks];
    let nothing = vec![None; n as usize];
    let all = n as usize;
    let request = |op, root, in_place| Request {
        what: What::Collective(collective),
        dtype: (collective != C::Barrier).then_some(dtype),
        op,
        function: None,
        blocks: None,
        received: None,
        count,
        root,
        in_place,
    };
    let joined = |v: &[Vec<u8>]| v.concat();
    let (request, inputs, outputs, expected) = match collective {
        C::AllReduce | C::Reduce | C::Broadcast => {
            let data = brings(count);
            let result = match collective {
                C::Broadcast => data[root as usize].clone(),
                _ => total(op, dtype, &data),
            };
            let reduces = collective.reduces().then_some(op);
            let root = if collective.is_rooted() { root } else { 0 };
            let gets = |r: u32| collective != C::Reduce || r == root;
            let expected = (0..n).map(|r| gets(r).then(|| (0, result.clone()))).collect();
            (request(reduces, root, true), some(&data), nothing, expected)
        }
        C::ReduceScatter => {
            let data = brings(count * all);
            let result = total(op, dtype, &data);
            let at = |r: usize| r * block;
            let mine = |r: usize| result[at(r)..at(r) + block].to_vec();
            let expected = (0..all).map(|r| Some((if in_place { at(r) } else { 0 }, mine(r)))).collect();
            let outputs = if in_place { nothing } else { vec![Some(empty(1)); all] };
            (request(Some(op), 0, in_place), some(&data), outputs, expected)
        }
        C::AllGather => {
            let data = brings(count);
            let expected = vec![Some((0, joined(&data))); all];
            if in_place {
                let whole = |r: usize| {
                    let mut whole = empty(all);
                    whole[r * block..(r + 1) * block].copy_from_slice(&data[r]);
                    Some(whole)
                };
                (request(None, 0, true), (0..all).map(whole).collect(), nothing, expected)
            } else {
                (request(None, 0, false), some(&data), vec![Some(empty(all)); all], expected)
            }
        }
        C::Gather => {
            let data = brings(count);
            let outputs = each(&|r| (r == root).then(|| empty(all)));
            let expected = (0..n).map(|r| (r == root).then(|| (0, joined(&data)))).collect();
            (request(None, root, false), some(&data), outputs, expected)
        }
        C::Scatter => {
            let data = brings(count);
            let inputs = each(&|r| (r == root).then(|| joined(&data)));
            let expected = data.iter().map(|d| Some((0, d.clone()))).collect();
            (request(None, root, false), inputs, vec![Some(empty(1)); all], expected)
        }
        C::AllToAll => {
            let data = brings(count * all);
            let from =
                |to: usize| data.iter().flat_map(|d| d[to * block..(to + 1) * block].to_vec()).collect();
            let expected = (0..all).map(|r| Some((0, from(r)))).collect();
            (request(None, 0, false), some(&data), vec![Some(empty(all)); all], expected)
        }
        C::Scan | C::ExclusiveScan => {
            let data = brings(count);
            let short = usize::from(collective == C::ExclusiveScan);
            let upto = |r: usize| total(op, dtype, &data[..(r + 1 - short).max(1)]);
            // Nothing is done to what rank 0 brings.
            let expected = (0..all).map(|r| Some((0, if r < short { data[r].clone() } else { upto(r) })));
            (request(Some(op), 0, true), some(&data), nothing, expected.collect())
        }
        C::Barrier => {
            (Request { count: 0, ..request(None, 0, true) }, nothing.clone(), nothing, vec![None; all])
        }
    };
    Case { request, inputs, outputs, expected }
}

/// Runs a case on all ranks, begun in a random order, and returns what each ended with.
fn run(world: &mut World, case: &Case, label: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let n = world.cores.len();
    let first = world.rng.index(n);
    let mut calls = Vec::new();
    for i in 0..n {
        let rank = (first + i) % n;
        let slot =
            world.begin(rank, 0, &case.request, case.inputs[rank].as_deref(), case.outputs[rank].as_deref());
        calls.push((rank, slot.unwrap_or_else(|e| panic!("{label}: {e}"))));
        if world.rng.index(3) == 0 {
            let other = world.rng.index(n);
            world.cores[other].turn();
        }
    }
    world.settle(&calls);
    calls.sort_unstable();
    let take = |(rank, slot): (usize, u16)| {
        let (result, input, output) = world.take(rank, slot);
        result.unwrap_or_else(|e| panic!("{label}, rank {rank}: {e}"));
        (input, output)
    };
    calls.into_iter().map(take).collect()
}

fn check(case: &Case, ends: &[(Vec<u8>, Vec<u8>)], label: &str) {
    for (rank, (expected, (input, output))) in case.expected.iter().zip(ends).enumerate() {
        let Some((at, bytes)) = expected else { continue };
        let found = if case.outputs[rank].is_some() { output } else { input };
        assert!(found[*at..*at + bytes.len()] == bytes[..], "{label}: wrong result on rank {rank}");
    }
}

/// All collectives of one algorithm among `n` ranks.
fn sweep(n: u32, config: LoopbackConfig, algorithm: Algorithm, rng: &mut Seeded) {
    let options = EngineOptions {
        wanted: algorithm.into(),
        slice_bytes: Some([8, 24, 200, 4096][rng.index(4)]),
        slices_in_flight: Some(1 + rng.index(5) as u32),
        ..EngineOptions::default()
    };
    let mut world = World::new(n, config, &options);
    for collective in Collective::ALL.into_iter().filter(|c| c.algorithms().contains(&algorithm)) {
        let root = rng.index(n as usize) as u32;
        if AnySchedule::new(collective, algorithm, n, root).is_none() {
            continue;
        }
        for count in [0, 1, 13, 97 + rng.index(300)] {
            let dtype = DType::ALL[rng.index(13)];
            let ops: Vec<ReduceOp> = ReduceOp::ALL.into_iter().filter(|o| o.supports(dtype)).collect();
            let op = ops[rng.index(ops.len())];
            let label = format!(
                "{collective} {algorithm} {n} ranks {dtype} {op} x {count} root {root} {config:?} {options:?}"
            );
            let case = case(collective, n, count, dtype, op, root, rng.index(2) == 0);
            let ends = run(&mut world, &case, &label);
            check(&case, &ends, &label);
            assert!(world.cores.iter().all(|c| c.active.is_empty()), "{label}");
        }
    }
}

#[test]
fn every_collective_is_right_on_every_kind_of_transport() {
    // E1, E3, and the deadlock freedom of schedules on transports without buffers and of depth 1.
    let seed = 0x5eed;
    println!("seed {seed}");
    let mut rng = Seeded::new(seed);
    for n in 1..=9 {
        for eager_bytes in [0, 64 << 10] {
            for depth in [1, 5, 64] {
                for reorder in [false, true] {
                    for algorithm in Algorithm::ALL {
                        let config = LoopbackConfig { seed: rng.below(1 << 30), eager_bytes, depth, reorder };
                        sweep(n, config, algorithm, &mut rng);
                    }
                }
            }
        }
    }
}

#[test]
fn the_chosen_algorithm_is_right_too() {
    for n in [1, 2, 3, 8] {
        for collective in Collective::ALL {
            for count in [0, 3, 20_000, 300_000 / n as usize] {
                let config = LoopbackConfig { seed: 11, ..LoopbackConfig::default() };
                let mut world = World::new(n, config, &EngineOptions::default());
                let case = case(collective, n, count, DType::F32, ReduceOp::Sum, n - 1, false);
                let label = format!("{collective} {n} ranks x {count}");
                let ends = run(&mut world, &case, &label);
                check(&case, &ends, &label);
            }
        }
    }
}

#[test]
fn sums_that_round_are_the_same_bits_on_all_ranks_and_every_time() {
    // E2
    let n = 5u32;
    let count = 1003;
    let input = |rank: u32| -> Vec<u8> {
        let mut rng = Seeded::new(u64::from(rank) * 77 + 5);
        (0..count).flat_map(|_| (rng.below(1 << 20) as f32 * 1.7e-3 - 600.0).to_ne_bytes()).collect()
    };
    for algorithm in Collective::AllReduce.algorithms() {
        let mut first: Option<Vec<u8>> = None;
        for (seed, eager_bytes) in [(1, 0), (2, 65536), (3, 0)] {
            let options =
                EngineOptions { wanted: (*algorithm).into(), slice_bytes: Some(512), ..Default::default() };
            let config = LoopbackConfig { seed, eager_bytes, depth: 64, reorder: true };
            let mut world = World::new(n, config, &options);
            let mut case = case(Collective::AllReduce, n, count, DType::F32, ReduceOp::Sum, 0, true);
            case.inputs = (0..n).map(|r| Some(input(r))).collect();
            for (end, _) in run(&mut world, &case, "bits") {
                let first = first.get_or_insert_with(|| end.clone());
                assert!(*first == end, "{algorithm}: other bits with seed {seed}");
            }
        }
    }
}

#[test]
fn calls_in_flight_together_do_not_mix() {
    // C2, C3: more calls than a shallow transport holds, in one group.
    for (depth, seed) in [(1, 3), (8, 4), (64, 5)] {
        let options = EngineOptions { slice_bytes: Some(64), ..EngineOptions::default() };
        let config = LoopbackConfig { seed, eager_bytes: 0, depth, reorder: true };
        let n = 3u32;
        let mut world = World::new(n, config, &options);
        let cases: Vec<Case> = (0..40)
            .map(|i| {
                let collective = [Collective::AllReduce, Collective::AllGather, Collective::Broadcast][i % 3];
                case(collective, n, 1 + 7 * i, DType::I32, ReduceOp::Sum, 1, false)
            })
            .collect();
        let mut slots = Vec::new();
        for rank in 0..n as usize {
            for case in &cases {
                let (input, output) = (case.inputs[rank].as_deref(), case.outputs[rank].as_deref());
                slots.push((rank, world.begin(rank, 0, &case.request, input, output).unwrap()));
            }
        }
        world.settle(&slots);
        let ends: Vec<_> = slots.iter().map(|(rank, slot)| world.take(*rank, *slot)).collect();
        for (i, case) in cases.iter().enumerate() {
            let of_case = (0..n as usize).map(|r| {
                let (result, input, output) = &ends[r * cases.len() + i];
                assert_eq!(*result, Ok(()));
                (input.clone(), output.clone())
            });
            check(case, &of_case.collect::<Vec<_>>(), "together");
        }
    }
}

#[test]
fn calls_started_in_different_orders_on_several_groups_end() {
    // C2: each of them alone fills the depth.
    for (depth, seed) in [(4, 6), (16, 7), (64, 8)] {
        let options = EngineOptions {
            wanted: Algorithm::Ring.into(),
            slice_bytes: Some(64),
            ..EngineOptions::default()
        };
        let config = LoopbackConfig { seed, eager_bytes: 0, depth, reorder: seed % 2 == 0 };
        let n = 4u32;
        let mut world = World::new(n, config, &options);
        for (rank, core) in world.cores.iter_mut().enumerate() {
            for id in [2, 3] {
                core.add_group(Group::new(info(id, &[0, 1, 2, 3], rank as u32)).unwrap());
            }
        }
        let case = case(Collective::AllReduce, n, 2000, DType::I32, ReduceOp::Sum, 0, true);
        let mut slots = Vec::new();
        for rank in 0..n as usize {
            for i in 0..3 {
                for again in 0..2 {
                    let slot =
                        world.begin(rank, (rank + i) % 3, &case.request, case.inputs[rank].as_deref(), None);
                    slots.push((rank, slot.unwrap_or_else(|e| panic!("{again}: {e}"))));
                }
            }
        }
        world.settle(&slots);
        for (rank, slot) in slots {
            let (result, input, _) = world.take(rank, slot);
            assert!(result.is_ok() && Some(&input) == case.expected[rank].as_ref().map(|(_, bytes)| bytes));
        }
    }
}
