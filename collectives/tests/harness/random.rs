//! Random all-reduces: types, operations, lengths, ranks, slices, transports and algorithms out of a seed.
//!
//! Each vector is reduced several times. By default the bits are the same from one run to the next, over any transport, in
//! any slices;
//! reproducibly they are the same whatever the algorithm, the places of the ranks, the slices, the transport and the
//! split into calls; and each result is as near to the one in f64 as [`Numerics`] says.

use ringway_collectives::engine::{Communicator, EngineOptions, GroupInfo, Member, Numerics};
use ringway_collectives::reduce::ReduceOp;
use ringway_collectives::schedule::{Algorithm, Collective, Wanted};
use ringway_dataplane::memory::{DType, Element};
use ringway_dataplane::shm::{self, ShmTransport};
use ringway_dataplane::transport::seed::Seeded;
use ringway_dataplane::transport::{Address, Hub, Keyring, LoopbackConfig, Peer, Transport};
use ringway_dataplane::uring::{self, Bind, TcpTransport};
use ringway_topology::model::order::Site;

/// One of these.
fn pick<T: Copy>(rng: &mut Seeded, of: &[T]) -> T {
    of[rng.index(of.len())]
}

/// Vectors of one round, which share their worlds.
const VECTORS: usize = 10;
/// Types whose sums are rounded, and some whose are not.
const TYPES: [DType; 8] =
    [DType::F16, DType::Bf16, DType::F32, DType::F64, DType::I8, DType::I32, DType::U16, DType::U64];
const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg];

/// What is reduced.
#[derive(Clone, Copy, Debug)]
struct Vector {
    dtype: DType,
    op: ReduceOp,
    len: usize,
    seed: u64,
}

/// Where and how.
#[derive(Clone, Copy, Debug)]
struct World {
    ranks: u32,
    transport: u8,
    algorithm: Option<Algorithm>,
    slice_bytes: usize,
    slices_in_flight: u32,
    /// Hosts that the ranks are dealt out to.
    hosts: u32,
    seed: u64,
    numerics: Numerics,
    /// Every vector is reduced in two calls.
    split: bool,
}

impl World {
    fn random(rng: &mut Seeded, ranks: u32, numerics: Numerics) -> World {
        let algorithm = rng.index(Algorithm::ALL.len() + 1);
        World {
            ranks,
            transport: rng.index(8) as u8,
            algorithm: Algorithm::ALL.get(algorithm).copied(),
            slice_bytes: pick(rng, &[64, 200, 1 << 12, 1 << 16]),
            slices_in_flight: 1 + rng.index(4) as u32,
            hosts: 1 + rng.index(3) as u32,
            seed: rng.next_u64(),
            numerics,
            split: rng.index(2) == 0,
        }
    }
}

/// Counts of what was done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Vectors of random type, operation and length.
    pub(crate) vectors: u64,
    /// All-reduces made of them, over all ranks one each.
    pub(crate) calls: u64,
}

/// Makes one round out of a seed. Panics, with the seed, where a bit differs or a result is off.
pub(crate) fn round(seed: u64) -> Tally {
    let mut rng = Seeded::new(seed);
    let ranks = 1 + rng.index(6) as u32;
    let vector = |rng: &mut Seeded| Vector {
        dtype: pick(rng, &TYPES),
        op: pick(rng, &OPS),
        len: pick(rng, &[0, 1, 2, 3, 17, 100, 1000, 5003]),
        seed: rng.next_u64(),
    };
    let vectors: Vec<Vector> = (0..VECTORS).map(|_| vector(&mut rng)).collect();
    let plain = World { split: false, ..World::random(&mut rng, ranks, Numerics::default()) };
    // E2: another run, over another transport, in other slices.
    let again = World::random(&mut rng, ranks, Numerics::default());
    let again = World { algorithm: plain.algorithm, hosts: plain.hosts, split: false, ..again };
    let fixed = Numerics { reproducible: true, half_in_f32: rng.index(2) == 0, f32_in_bf16: false };
    let one = World::random(&mut rng, ranks, fixed);
    let other = World::random(&mut rng, ranks, fixed);
    let narrow = Numerics { f32_in_bf16: true, half_in_f32: true, reproducible: false };
    let narrow = World::random(&mut rng, ranks, narrow);
    let results: Vec<Vec<Vec<u8>>> =
        [plain, again, one, other, narrow].iter().map(|w| reduce(w, &vectors)).collect();
    for (index, vector) in vectors.iter().enumerate() {
        let told = format!("seed {seed}: {vector:?}");
        assert!(results[0][index] == results[1][index], "{told}: differs between {plain:?} and {again:?}");
        assert!(results[2][index] == results[3][index], "{told}: differs between {one:?} and {other:?}");
        near(vector, ranks, &plain.numerics, &results[0][index], &told);
        near(vector, ranks, &fixed, &results[2][index], &told);
        near(vector, ranks, &narrow.numerics, &results[4][index], &told);
    }
    let calls = 5 * VECTORS as u64;
    Tally { vectors: VECTORS as u64, calls }
}

/// Checks that no bit depends on slices (E2), for any algorithm and number of ranks to 6. Answers how many cases differ
/// from one another by algorithm, ranks or hosts.
#[allow(dead_code, reason = "the example makes random rounds alone")]
pub(crate) fn slices_change_no_bit(seed: u64) -> u32 {
    let vector = |dtype, op, len| Vector { dtype, op, len, seed };
    let vectors = [
        vector(DType::F32, ReduceOp::Sum, 1501),
        vector(DType::F64, ReduceOp::Avg, 700),
        vector(DType::F16, ReduceOp::Avg, 900),
    ];
    let mut cases = 0;
    for (ranks, hosts) in [(3, 1), (3, 2), (4, 1), (4, 2), (5, 1), (5, 2), (6, 1), (6, 2), (6, 3)] {
        for algorithm in Collective::AllReduce.algorithms() {
            let world = |slice_bytes, slices_in_flight| World {
                ranks,
                transport: 7,
                algorithm: Some(*algorithm),
                slice_bytes,
                slices_in_flight,
                hosts,
                seed,
                numerics: Numerics { half_in_f32: true, ..Numerics::default() },
                split: false,
            };
            let whole = reduce(&world(1 << 20, 2), &vectors);
            for (slice_bytes, slices_in_flight) in [(64, 3), (200, 1), (1 << 10, 2)] {
                let cut = reduce(&world(slice_bytes, slices_in_flight), &vectors);
                assert!(
                    cut == whole,
                    "seed {seed}: {ranks} ranks on {hosts} hosts by {algorithm} in slices of {slice_bytes}: other bits"
                );
            }
            cases += 1;
        }
    }
    cases
}

/// Checks that no bit depends on whether ranks share memory, which has other algorithms chosen (schedule invariant I9): of
/// lengths on both sides of where they change. Answers how many cases there were.
#[allow(dead_code, reason = "the example makes random rounds alone")]
pub(crate) fn memory_changes_no_bit(seed: u64) -> u32 {
    let vector = |dtype, op, len| Vector { dtype, op, len, seed };
    let vectors = [
        vector(DType::F32, ReduceOp::Sum, 2),
        vector(DType::F16, ReduceOp::Avg, 300),
        vector(DType::F64, ReduceOp::Sum, 1501),
        vector(DType::F32, ReduceOp::Prod, 9001),
        vector(DType::Bf16, ReduceOp::Sum, 40_001),
    ];
    let mut cases = 0;
    for (ranks, hosts) in [(3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (4, 2), (6, 3)] {
        for half_in_f32 in [false, true] {
            let world = |transport| World {
                ranks,
                transport,
                algorithm: None,
                slice_bytes: 1 << 16,
                slices_in_flight: 2,
                hosts,
                seed,
                numerics: Numerics { half_in_f32, ..Numerics::default() },
                split: false,
            };
            // Twice each: the first call has no plan yet, and is not made at once.
            let twice: Vec<Vector> = vectors.iter().chain(&vectors).copied().collect();
            let (shared, apart) = (reduce(&world(1), &twice), reduce(&world(7), &twice));
            assert!(
                shared == apart,
                "seed {seed}: {ranks} ranks on {hosts} hosts: other bits in shared memory"
            );
            cases += twice.len() as u32;
        }
    }
    cases
}

/// Every vector's result, the same on all ranks.
fn reduce(world: &World, vectors: &[Vector]) -> Vec<Vec<u8>> {
    match world.transport {
        0 => over(tcp(world.ranks), world, vectors),
        1..=3 => over(shared(world.ranks), world, vectors),
        _ => {
            let eager_bytes = if world.transport < 6 { 0 } else { 1 << 12 };
            let config = LoopbackConfig { seed: world.seed, eager_bytes, ..LoopbackConfig::default() };
            over(Hub::new(config).group(world.ranks).expect("descriptors"), world, vectors)
        }
    }
}

fn over(transports: Vec<impl Transport + 'static>, world: &World, vectors: &[Vector]) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<Vec<u8>>> = std::thread::scope(|scope| {
        let rank = |(transport, rank)| scope.spawn(move || of_rank(transport, rank, world, vectors));
        let threads: Vec<_> = transports.into_iter().zip(0u32..).map(rank).collect();
        let ended = |t: std::thread::ScopedJoinHandle<'_, _>| {
            t.join().unwrap_or_else(|_| panic!("a rank failed: {world:?} {vectors:?}"))
        };
        threads.into_iter().map(ended).collect()
    });
    let first = all.swap_remove(0);
    assert!(all.iter().all(|other| *other == first), "ranks differ: {world:?} {vectors:?}");
    first
}

/// A rank's results. It leaves at once after its last call, whatever the others are doing.
fn of_rank(
    transport: impl Transport + 'static,
    rank: u32,
    world: &World,
    vectors: &[Vector],
) -> Vec<Vec<u8>> {
    let options = EngineOptions {
        wanted: world.algorithm.map_or(Wanted::ANY, Wanted::only),
        slice_bytes: Some(world.slice_bytes),
        slices_in_flight: Some(world.slices_in_flight),
        numerics: world.numerics,
        ..EngineOptions::default()
    };
    let member = |r: u32| Member {
        peer: Peer(r),
        host: "here".into(),
        pid: r,
        incarnation: 1,
        site: Site::on(format!("machine{}", r % world.hosts)),
    };
    let group = GroupInfo { id: 1, my_rank: rank, members: (0..world.ranks).map(member).collect() };
    let comm = Communicator::new(Box::new(transport), group, options).expect("a well-formed group");
    let results = vectors.iter().map(|vector| match vector.dtype {
        DType::F16 => bits::<half::f16>(&comm, rank, world, vector),
        DType::Bf16 => bits::<half::bf16>(&comm, rank, world, vector),
        DType::F32 => bits::<f32>(&comm, rank, world, vector),
        DType::F64 => bits::<f64>(&comm, rank, world, vector),
        DType::I8 => bits::<i8>(&comm, rank, world, vector),
        DType::U16 => bits::<u16>(&comm, rank, world, vector),
        DType::U64 => bits::<u64>(&comm, rank, world, vector),
        _ => bits::<i32>(&comm, rank, world, vector),
    });
    results.collect()
}

fn bits<T: Element>(comm: &Communicator, rank: u32, world: &World, vector: &Vector) -> Vec<u8> {
    let bytes: Vec<u8> = (0..vector.len).flat_map(|i| store(vector.dtype, value(vector, rank, i))).collect();
    let mut buffer: Vec<T> = vec![T::zeroed(); vector.len];
    bytemuck::cast_slice_mut(&mut buffer).copy_from_slice(&bytes);
    let (first, second) = buffer.split_at_mut(if world.split { vector.len / 3 } else { 0 });
    if world.split {
        comm.all_reduce(first, vector.op).expect("no rank fails");
    }
    comm.all_reduce(second, vector.op).expect("no rank fails");
    bytemuck::cast_slice(&buffer).to_vec()
}

/// What a rank brings: floats of very different sizes, and small integers.
fn value(vector: &Vector, rank: u32, i: usize) -> f64 {
    let mut rng = Seeded::new(vector.seed ^ (u64::from(rank) << 40) ^ i as u64);
    if !vector.dtype.is_float() {
        return 1.0 + rng.index(2) as f64;
    }
    let fraction = (rng.next_u64() >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
    let exponent = rng.index(16) as i32 - 8;
    load(vector.dtype, &store(vector.dtype, fraction * f64::from(exponent).exp2()))
}

fn store(dtype: DType, x: f64) -> Vec<u8> {
    match dtype {
        DType::F16 => half::f16::from_f64(x).to_ne_bytes().to_vec(),
        DType::Bf16 => half::bf16::from_f64(x).to_ne_bytes().to_vec(),
        DType::F32 => (x as f32).to_ne_bytes().to_vec(),
        DType::F64 => x.to_ne_bytes().to_vec(),
        _ => (x as i64).to_le_bytes()[..dtype.size()].to_vec(),
    }
}

fn load(dtype: DType, bytes: &[u8]) -> f64 {
    let two = || [bytes[0], bytes[1]];
    match dtype {
        DType::F16 => half::f16::from_ne_bytes(two()).to_f64(),
        DType::Bf16 => half::bf16::from_ne_bytes(two()).to_f64(),
        DType::F32 => f64::from(f32::from_ne_bytes(bytes.try_into().expect("4 bytes"))),
        DType::F64 => f64::from_ne_bytes(bytes.try_into().expect("8 bytes")),
        _ => {
            let mut whole = [0u8; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            i64::from_le_bytes(whole) as f64
        }
    }
}

/// Half the distance of 1 to the next number.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => (-11f64).exp2(),
        DType::Bf16 => (-8f64).exp2(),
        DType::F32 => (-24f64).exp2(),
        _ => (-53f64).exp2(),
    }
}

/// Checks a result against the one in f64, within the bound that [`Numerics`] documents.
fn bound(dtype: DType, op: ReduceOp, ranks: u32, numerics: &Numerics, inputs: &[f64]) -> (f64, f64) {
    let n = f64::from(ranks);
    let (sum, size) = inputs.iter().fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
    let u = unit(dtype);
    // Of the reference itself.
    let own = n * (-53f64).exp2() * size;
    let sum_bound = match (dtype, numerics) {
        (DType::F16 | DType::Bf16, Numerics { half_in_f32: true, .. }) => {
            u * f64::abs(sum) * 1.001 + n * (-24f64).exp2() * size
        }
        (DType::F32, Numerics { f32_in_bf16: true, .. }) => (n + 1.0) * (-8f64).exp2() * size,
        _ => (n - 1.0) * u * size / (1.0 - n * u),
    };
    // Below the normal numbers of f16, rounding is absolute.
    let least = if dtype == DType::F16 { (-25f64).exp2() } else { 0.0 };
    match op {
        ReduceOp::Avg => (sum / n, (sum_bound + own + u * (sum.abs() + sum_bound)) / n + least),
        _ => (sum, sum_bound + own + least),
    }
}

fn near(vector: &Vector, ranks: u32, numerics: &Numerics, result: &[u8], told: &str) {
    for (i, bytes) in result.chunks_exact(vector.dtype.size()).enumerate() {
        let inputs: Vec<f64> = (0..ranks).map(|rank| value(vector, rank, i)).collect();
        let found = load(vector.dtype, bytes);
        let (wanted, off) = match vector.op {
            ReduceOp::Min => (inputs.iter().copied().fold(f64::INFINITY, f64::min), 0.0),
            ReduceOp::Max => (inputs.iter().copied().fold(f64::NEG_INFINITY, f64::max), 0.0),
            // Products of these leave the range of the narrow types: only their bits are compared.
            ReduceOp::Prod if vector.dtype.is_float() => continue,
            ReduceOp::Prod => (inputs.iter().product(), 0.0),
            op if vector.dtype.is_float() => bound(vector.dtype, op, ranks, numerics, &inputs),
            ReduceOp::Avg => ((inputs.iter().sum::<f64>() / f64::from(ranks)).trunc(), 0.0),
            _ => (inputs.iter().sum(), 0.0),
        };
        assert!((found - wanted).abs() <= off, "{told}: element {i} is {found}, not {wanted} within {off}");
    }
}

/// `n` transports of this process over TCP that know each other.
fn tcp(n: u32) -> Vec<TcpTransport> {
    let open = |me| {
        let bind = vec![Bind::new([127, 0, 0, 1].into(), "lo")];
        TcpTransport::new(uring::Config::new(me, Keyring::of([3; 32]), 1, bind)).expect("a TCP transport")
    };
    introduced((0..n).map(open).collect())
}

/// As [`tcp`], over shared memory.
fn shared(n: u32) -> Vec<ShmTransport> {
    let open = |me| {
        ShmTransport::new(shm::Config::new(me, Keyring::of([5; 32]), 70 + u64::from(me)))
            .expect("shared memory")
    };
    introduced((0..n).map(open).collect())
}

fn introduced<T: Transport>(mut all: Vec<T>) -> Vec<T> {
    let addresses: Vec<Address> = all.iter().map(Transport::address).collect();
    for (me, transport) in all.iter_mut().enumerate() {
        for (peer, address) in addresses.iter().enumerate().filter(|(peer, _)| *peer != me) {
            transport.connect(Peer(peer as u32), address).expect("an address of the same kind");
        }
    }
    all
}
