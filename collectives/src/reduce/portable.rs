//! What every processor can do: SSE2 on x86-64, NEON on aarch64, as the compiler finds it.
#![forbid(unsafe_code)]

super::kernels::kernels! {}

fn f16(op: ReduceOp, operands: Operands<'_>) {
    float::<half::f16, 2>(op, operands);
}
