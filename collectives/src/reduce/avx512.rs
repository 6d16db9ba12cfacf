//! 512-bit vectors, as the compiler finds them.
#![forbid(unsafe_code)]

super::kernels::kernels! { #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")] }

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn f16(op: ReduceOp, operands: Operands<'_>) {
    float::<half::f16, 2>(op, operands);
}
