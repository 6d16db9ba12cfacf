//! Throughput of the reduction kernels, by operation, type, size and path, beside a plain copy.
//!
//! Bytes counted are those of one operand, as a busbw counts them: a combine reads twice as many and writes
//! once. `cargo bench --bench reduce -- 'sum f32'` runs one group.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ringway_collectives::reduce::{KernelPath, Kernels, ReduceOp};
use ringway_dataplane::memory::DType;
use std::hint::black_box;
use std::time::Duration;

/// In the first-level cache, in the second, and past them all.
const SIZES: [usize; 3] = [4 << 10, 256 << 10, 64 << 20];

/// What training and tests use most, and the costly ones: conversions, NaN rules, emulated multiplications.
const CASES: [(ReduceOp, DType); 10] = [
    (ReduceOp::Sum, DType::F32),
    (ReduceOp::Sum, DType::F64),
    (ReduceOp::Sum, DType::F16),
    (ReduceOp::Sum, DType::Bf16),
    (ReduceOp::Sum, DType::I32),
    (ReduceOp::Min, DType::F32),
    (ReduceOp::Max, DType::F16),
    (ReduceOp::Prod, DType::I64),
    (ReduceOp::Prod, DType::U8),
    (ReduceOp::And, DType::Bool),
];

fn paths() -> impl Iterator<Item = Kernels> {
    KernelPath::ALL.into_iter().filter_map(Kernels::on)
}

fn copy(c: &mut Criterion) {
    let mut group = c.benchmark_group("copy");
    for size in SIZES {
        let (from, mut to) = (vec![1u8; size], vec![0u8; size]);
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| black_box(&mut to[..]).copy_from_slice(black_box(&from)));
        });
    }
    group.finish();
}

fn combine(c: &mut Criterion) {
    for (op, dtype) in CASES {
        let mut group = c.benchmark_group(format!("{op} {dtype}"));
        for size in SIZES {
            // Zeros stay zeros: no overflow to infinity and no subnormal slows a later round.
            let (incoming, mut acc) = (vec![0u8; size], vec![0u8; size]);
            group.throughput(Throughput::Bytes(size as u64));
            for kernels in paths() {
                group.bench_function(BenchmarkId::new(kernels.path().name(), size), |b| {
                    b.iter(|| kernels.combine(op, dtype, black_box(&mut acc), black_box(&incoming)));
                });
            }
        }
        group.finish();
    }
}

fn combine_into(c: &mut Criterion) {
    let mut group = c.benchmark_group("sum f32 into");
    for size in SIZES {
        let (left, right, mut out) = (vec![0u8; size], vec![0u8; size], vec![0u8; size]);
        let (op, dtype) = (ReduceOp::Sum, DType::F32);
        group.throughput(Throughput::Bytes(size as u64));
        for kernels in paths() {
            group.bench_function(BenchmarkId::new(kernels.path().name(), size), |b| {
                b.iter(|| kernels.combine_into(op, dtype, black_box(&mut out), black_box(&left), &right));
            });
        }
    }
    group.finish();
}

fn average(c: &mut Criterion) {
    let mut group = c.benchmark_group("avg over 3 ranks");
    let size = SIZES[1];
    group.throughput(Throughput::Bytes(size as u64));
    for dtype in [DType::F32, DType::F16, DType::Bf16, DType::I32, DType::U8] {
        let mut bytes = vec![0u8; size];
        for kernels in paths() {
            group.bench_function(BenchmarkId::new(dtype.name(), kernels.path()), |b| {
                b.iter(|| kernels.finish(ReduceOp::Avg, dtype, black_box(&mut bytes), 3));
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .nresamples(1001)
        .without_plots()
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400));
    targets = copy, combine, combine_into, average
}
criterion_main!(benches);
