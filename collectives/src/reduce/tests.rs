//! The public operations, by name, refusal and value. The paths are held to one reference in `paths`.

mod paths;
mod reference;

use super::*;

#[test]
fn names_and_codes_read_back() {
    for op in ReduceOp::ALL {
        assert_eq!(op.name().parse::<ReduceOp>(), Ok(op));
        assert_eq!(ReduceOp::from_code(op as u8), Some(op));
    }
    assert_eq!(ReduceOp::from_code(0), None);
    assert_eq!(ReduceOp::from_code(9), None);
    let error = "mean".parse::<ReduceOp>().unwrap_err().to_string();
    assert!(error.contains("`mean`") && error.contains("avg"), "{error}");
}

#[test]
fn what_is_undefined_is_refused_and_changes_nothing() {
    let mut acc = [1u8; 8];
    for op in ReduceOp::ALL {
        for dtype in DType::ALL {
            let result = combine(op, dtype, &mut acc.clone(), &[1; 8]);
            assert_eq!(result.is_ok(), op.supports(dtype), "{op} {dtype}");
        }
    }
    let error = combine(ReduceOp::Xor, DType::F32, &mut acc, &[1; 8]).unwrap_err();
    assert_eq!(error.to_string(), "xor is not defined on f32: use it on integers or bool");
    let error = combine(ReduceOp::Sum, DType::Bool, &mut acc, &[1; 8]).unwrap_err();
    assert_eq!(error.to_string(), "sum is not defined on bool: use and, or, xor, min or max on bool");
    assert!(matches!(
        combine(ReduceOp::Sum, DType::F32, &mut acc, &[1; 4]),
        Err(ReduceError::Length { acc: 8, incoming: 4, .. })
    ));
    assert!(combine(ReduceOp::Sum, DType::F32, &mut acc[..7], &[1; 7]).is_err());
    assert!(combine_into(ReduceOp::Sum, DType::F32, &mut acc, &[1; 8], &[1; 4]).is_err());
    assert!(finish(ReduceOp::Avg, DType::F32, &mut acc[..6], 2).is_err());
    assert_eq!(finish(ReduceOp::Avg, DType::F32, &mut acc, 0), Err(ReduceError::NoRanks));
    assert_eq!(acc, [1; 8]);
}

#[test]
fn an_average_divides_once_and_truncates() {
    let mut x: Vec<u8> = [-7i32, 7, -8, i32::MIN].iter().flat_map(|v| v.to_ne_bytes()).collect();
    finish(ReduceOp::Avg, DType::I32, &mut x, 4).unwrap();
    let expected: Vec<u8> = [-1i32, 1, -2, i32::MIN / 4].iter().flat_map(|v| v.to_ne_bytes()).collect();
    assert_eq!(x, expected);
    let mut small = [(-128i8) as u8, 127];
    finish(ReduceOp::Avg, DType::I8, &mut small, 300).unwrap();
    assert_eq!(small, [0, 0]);
    let mut third = 1.0f32.to_ne_bytes();
    finish(ReduceOp::Avg, DType::F32, &mut third, 3).unwrap();
    assert_eq!(f32::from_ne_bytes(third), 1.0 / 3.0);
    finish(ReduceOp::Sum, DType::F32, &mut third, 3).unwrap();
    assert_eq!(f32::from_ne_bytes(third), 1.0 / 3.0);
}
