//! 256-bit vectors, as the compiler finds them.
#![forbid(unsafe_code)]

super::kernels::kernels! { #[target_feature(enable = "avx2,f16c")] }

#[target_feature(enable = "avx2,f16c")]
fn f16(op: ReduceOp, operands: Operands<'_>) {
    float::<half::f16, 2>(op, operands);
}
