//! Element types and reductions, by NCCL's numbers (`ncclDataType_t`, `ncclRedOp_t` of its header).

#![forbid(unsafe_code)]

use crate::reduce::ReduceOp;
use ringway_dataplane::memory::DType;

const INT8: u32 = 0;
const UINT8: u32 = 1;
const INT32: u32 = 2;
const UINT32: u32 = 3;
const INT64: u32 = 4;
const UINT64: u32 = 5;
const FLOAT16: u32 = 6;
const FLOAT32: u32 = 7;
const FLOAT64: u32 = 8;
const BFLOAT16: u32 = 9;

const SUM: u32 = 0;
const PROD: u32 = 1;
const MAX: u32 = 2;
const MIN: u32 = 3;
const AVG: u32 = 4;

/// How NCCL moves an element: a type, and how many of it.
pub(super) fn moved(dtype: DType) -> (u32, usize) {
    match dtype {
        // NCCL has no integers of 16 bits.
        DType::I16 | DType::U16 => (UINT8, 2),
        other => (arithmetic(other).unwrap_or(UINT8), 1),
    }
}

/// How NCCL reduces an element: a type, and a reduction; `None` where it does not.
pub(super) fn reduced(op: ReduceOp, dtype: DType) -> Option<(u32, u32)> {
    if dtype == DType::Bool {
        // Bytes of which 0 is false: or is the larger one, and is the smaller.
        let op = match op {
            ReduceOp::Sum | ReduceOp::Max | ReduceOp::Or => MAX,
            ReduceOp::Prod | ReduceOp::Min | ReduceOp::And | ReduceOp::Avg => MIN,
            ReduceOp::Xor => return None,
        };
        return Some((UINT8, op));
    }
    let op = match op {
        ReduceOp::Sum => SUM,
        ReduceOp::Prod => PROD,
        ReduceOp::Max => MAX,
        ReduceOp::Min => MIN,
        ReduceOp::Avg => AVG,
        ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => return None,
    };
    Some((arithmetic(dtype)?, op))
}

fn arithmetic(dtype: DType) -> Option<u32> {
    Some(match dtype {
        DType::I8 => INT8,
        DType::U8 | DType::Bool => UINT8,
        DType::I32 => INT32,
        DType::U32 => UINT32,
        DType::I64 => INT64,
        DType::U64 => UINT64,
        DType::F16 => FLOAT16,
        DType::F32 => FLOAT32,
        DType::F64 => FLOAT64,
        DType::Bf16 => BFLOAT16,
        DType::I16 | DType::U16 => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_moved_whole() {
        let sizes = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2];
        for dtype in DType::ALL {
            let (code, units) = moved(dtype);
            assert_eq!(sizes[code as usize] * units, dtype.size(), "{dtype}");
        }
    }

    #[test]
    fn what_nccl_cannot_reduce_is_known() {
        assert_eq!(reduced(ReduceOp::Avg, DType::Bf16), Some((BFLOAT16, AVG)));
        assert_eq!(reduced(ReduceOp::Or, DType::Bool), Some((UINT8, MAX)));
        for (op, dtype) in
            [(ReduceOp::Xor, DType::U32), (ReduceOp::Sum, DType::I16), (ReduceOp::Xor, DType::Bool)]
        {
            assert_eq!(reduced(op, dtype), None, "{op} {dtype}");
        }
    }
}
