//! What one pair of elements must give, written a second time, plainly, element by element: integers in
//! i128, halves by the `half` crate, minimum and maximum by the words of IEEE 754-2019.

use crate::reduce::ReduceOp;
use half::{bf16, f16};
use ringway_dataplane::memory::DType;

/// The bytes of `left op right` for one element.
pub(super) fn combine(op: ReduceOp, dtype: DType, left: &[u8], right: &[u8]) -> Vec<u8> {
    match dtype {
        DType::Bool => vec![u8::from(truth(op, left[0] != 0, right[0] != 0))],
        DType::F16 => {
            let (a, b) = (f16::from_bits(word(left)), f16::from_bits(word(right)));
            // By way of f32, as the crate's conversion from f64 drops low bits before it rounds.
            let wide = float(op, f64::from(a), f64::from(b)) as f32;
            let bits = if wide.is_nan() { 0x7e00 } else { f16::from_f32_const(wide).to_bits() };
            bits.to_ne_bytes().to_vec()
        }
        DType::Bf16 => {
            let (a, b) = (bf16::from_bits(word(left)), bf16::from_bits(word(right)));
            let wide = float(op, f64::from(a), f64::from(b)) as f32;
            let bits = if wide.is_nan() { 0x7fc0 } else { bf16::from_f32_const(wide).to_bits() };
            bits.to_ne_bytes().to_vec()
        }
        DType::F32 => {
            let (a, b) = (f32::from_bits(int(dtype, left) as u32), f32::from_bits(int(dtype, right) as u32));
            // The f64 sum or product of two f32, rounded again, is their f32 sum or product.
            let wide = float(op, f64::from(a), f64::from(b)) as f32;
            let bits = if wide.is_nan() { 0x7fc0_0000 } else { wide.to_bits() };
            bits.to_ne_bytes().to_vec()
        }
        DType::F64 => {
            let (a, b) = (f64::from_bits(int(dtype, left) as u64), f64::from_bits(int(dtype, right) as u64));
            let result = float(op, a, b);
            let bits = if result.is_nan() { 0x7ff8_0000_0000_0000 } else { result.to_bits() };
            bits.to_ne_bytes().to_vec()
        }
        _ => {
            let result = integer(op, int(dtype, left), int(dtype, right)) as u64;
            match dtype.size() {
                1 => vec![result as u8],
                2 => (result as u16).to_ne_bytes().to_vec(),
                4 => (result as u32).to_ne_bytes().to_vec(),
                _ => result.to_ne_bytes().to_vec(),
            }
        }
    }
}

fn word(bytes: &[u8]) -> u16 {
    u16::from_ne_bytes(bytes.try_into().unwrap())
}

/// The value of an integer, or the bits of a float.
fn int(dtype: DType, bytes: &[u8]) -> i128 {
    match dtype {
        DType::I8 => i8::from_ne_bytes(bytes.try_into().unwrap()).into(),
        DType::I16 => i16::from_ne_bytes(bytes.try_into().unwrap()).into(),
        DType::I32 => i32::from_ne_bytes(bytes.try_into().unwrap()).into(),
        DType::I64 => i64::from_ne_bytes(bytes.try_into().unwrap()).into(),
        DType::U8 => bytes[0].into(),
        DType::U16 => word(bytes).into(),
        DType::U32 | DType::F32 => u32::from_ne_bytes(bytes.try_into().unwrap()).into(),
        DType::U64 | DType::F64 => u64::from_ne_bytes(bytes.try_into().unwrap()).into(),
        DType::F16 | DType::Bf16 | DType::Bool => unreachable!("read elsewhere"),
    }
}

fn integer(op: ReduceOp, a: i128, b: i128) -> i128 {
    match op {
        ReduceOp::Sum | ReduceOp::Avg => a + b,
        ReduceOp::Prod => a.wrapping_mul(b),
        ReduceOp::Min => a.min(b),
        ReduceOp::Max => a.max(b),
        ReduceOp::And => a & b,
        ReduceOp::Or => a | b,
        ReduceOp::Xor => a ^ b,
    }
}

fn truth(op: ReduceOp, a: bool, b: bool) -> bool {
    match op {
        ReduceOp::And | ReduceOp::Min => a && b,
        ReduceOp::Or | ReduceOp::Max => a || b,
        ReduceOp::Xor => a != b,
        ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Avg => unreachable!("not defined on bool"),
    }
}

fn float(op: ReduceOp, a: f64, b: f64) -> f64 {
    match op {
        ReduceOp::Sum | ReduceOp::Avg => a + b,
        ReduceOp::Prod => a * b,
        _ if a.is_nan() || b.is_nan() => f64::NAN,
        // Without NaN, the total order is the order of the numbers with -0 below +0.
        ReduceOp::Min if a.total_cmp(&b).is_le() => a,
        ReduceOp::Max if a.total_cmp(&b).is_ge() => a,
        ReduceOp::Min | ReduceOp::Max => b,
        ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => unreachable!("not defined on floats"),
    }
}
