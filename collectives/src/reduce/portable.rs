//! What every processor can do: SSE2 on x86-64, NEON on aarch64, as the compiler finds it.
#![forbid(unsafe_code)]

super::kernels::kernels! {}

fn wide<T: Wire<N> + Ordered + Number, const N: usize>(op: ReduceOp, operands: Operands<'_>) {
    float::<T, N>(op, operands);
}

fn combine_f16(op: ReduceOp, operands: Operands<'_>) {
    float::<f16, 2>(op, operands);
}

fn average_f16(bytes: &mut [u8], ranks: u32) {
    each::<f16, 2>(bytes, |x| x.over(ranks));
}
