//! Whether a fed value is what its tensor is, and is whole.

use ringway_proto::tensorflow::{DataType, TensorProto};

use super::error::MasterError;
use crate::core::graph::Type;

/// Dimensions of a tensor, at most, as in TensorFlow.
pub const DIMENSIONS_LIMIT: usize = 254;

/// Checks a value before it goes to a worker. An empty shape is a scalar.
///
/// # Errors
/// [`MasterError::FeedType`] and [`MasterError::FeedMalformed`].
pub fn check(name: &str, value: &TensorProto, expected: Type) -> Result<(), MasterError> {
    let wrong = |problem: String| MasterError::FeedMalformed { name: name.to_owned(), problem };
    let given = Type::from_wire(value.dtype).filter(|kind| kind.element != DataType::DtInvalid);
    let given = given.ok_or_else(|| wrong(format!("its type is {}, which is none", value.dtype)))?;
    if given.element != expected.element || given.is_ref {
        let expected = Type { is_ref: false, ..expected };
        return Err(MasterError::FeedType { name: name.to_owned(), given, expected });
    }
    let elements = elements(value).map_err(wrong)?;
    let Some(size) = size_bytes(given.element) else { return Ok(()) };
    let content = value.tensor_content.len() as u64;
    if content > 0 && elements.checked_mul(size) != Some(content) {
        return Err(wrong(format!(
            "its shape has {elements} elements of {size} bytes, and its content is of {content} bytes"
        )));
    }
    Ok(())
}

/// Elements that the shape has.
fn elements(value: &TensorProto) -> Result<u64, String> {
    let Some(shape) = &value.tensor_shape else { return Ok(1) };
    if shape.unknown_rank {
        return Err("its shape is not known".to_owned());
    }
    if shape.dim.len() > DIMENSIONS_LIMIT {
        return Err(format!("it has {} dimensions, over the limit of {DIMENSIONS_LIMIT}", shape.dim.len()));
    }
    let mut elements: u64 = 1;
    for dim in &shape.dim {
        let size = u64::try_from(dim.size).map_err(|_| format!("a dimension is of size {}", dim.size))?;
        // No tensor has more than an i64 counts, also where another dimension is 0.
        elements = elements
            .checked_mul(size)
            .filter(|elements| i64::try_from(*elements).is_ok())
            .ok_or_else(|| "its shape has more elements than can be counted".to_owned())?;
    }
    Ok(elements)
}

/// Bytes of an element; `None` for types whose elements have no fixed size, or less than a byte.
fn size_bytes(element: DataType) -> Option<u64> {
    use DataType as D;
    Some(match element {
        D::DtBool | D::DtInt8 | D::DtUint8 | D::DtQint8 | D::DtQuint8 => 1,
        D::DtHalf | D::DtBfloat16 | D::DtInt16 | D::DtUint16 | D::DtQint16 | D::DtQuint16 => 2,
        D::DtFloat | D::DtInt32 | D::DtUint32 | D::DtQint32 => 4,
        D::DtDouble | D::DtInt64 | D::DtUint64 | D::DtComplex64 => 8,
        D::DtComplex128 => 16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_proto::tensorflow::TensorShapeProto;
    use ringway_proto::tensorflow::tensor_shape_proto::Dim;

    fn value(dtype: DataType, sizes: &[i64], content: usize) -> TensorProto {
        let dim = sizes.iter().map(|size| Dim { size: *size, name: String::new() }).collect();
        TensorProto {
            dtype: dtype as i32,
            tensor_shape: Some(TensorShapeProto { dim, unknown_rank: false }),
            tensor_content: vec![0; content].into(),
            ..TensorProto::default()
        }
    }

    #[test]
    fn whole_values_of_the_type_are_taken() {
        let float = Type::of(DataType::DtFloat);
        check("x:0", &value(DataType::DtFloat, &[2, 3], 24), float).unwrap();
        check("x:0", &value(DataType::DtFloat, &[0, 3], 0), float).unwrap();
        check("x:0", &value(DataType::DtFloat, &[], 4), Type { is_ref: true, ..float }).unwrap();
        check("s:0", &value(DataType::DtString, &[5], 0), Type::of(DataType::DtString)).unwrap();
    }

    #[test]
    fn others_are_refused_by_name() {
        let float = Type::of(DataType::DtFloat);
        let said = |value: TensorProto| check("x:0", &value, float).unwrap_err().to_string();
        assert!(said(value(DataType::DtInt64, &[], 8)).contains("x:0 is of type int64"));
        assert!(said(value(DataType::DtFloat, &[2, 3], 23)).contains("23 bytes"));
        assert!(said(value(DataType::DtFloat, &[-1], 0)).contains("of size -1"));
        assert!(said(value(DataType::DtFloat, &[1 << 40, 1 << 40], 0)).contains("more elements"));
        assert!(said(value(DataType::DtFloat, &[1; 300], 4)).contains("300 dimensions"));
        assert!(said(TensorProto { dtype: 999, ..TensorProto::default() }).contains("999"));
    }
}
