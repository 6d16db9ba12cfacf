//! Types of elements.

use half::{bf16, f16};
use ringway_dataplane::memory::Bool;
use ringway_proto::tensorflow::DataType;

/// A Rust type that elements can be read as. Any bytes are a value of it.
pub trait Scalar: bytemuck::Pod + Send + Sync + 'static {
    /// Its name on the wire.
    const DTYPE: DataType;
}

macro_rules! scalars {
    ($($t:ty => $d:ident),+ $(,)?) => {$(
        impl Scalar for $t {
            const DTYPE: DataType = DataType::$d;
        }
    )+};
}

scalars! {
    f16 => DtHalf, bf16 => DtBfloat16, f32 => DtFloat, f64 => DtDouble,
    i8 => DtInt8, i16 => DtInt16, i32 => DtInt32, i64 => DtInt64,
    u8 => DtUint8, u16 => DtUint16, u32 => DtUint32, u64 => DtUint64, Bool => DtBool,
}

/// Bytes of one element; `None` for types whose elements are not of one size (strings, resources, variants), and for
/// references and what is no type.
#[must_use]
pub fn size_of(dtype: DataType) -> Option<usize> {
    use DataType as D;
    Some(match dtype {
        D::DtInt8 | D::DtUint8 | D::DtBool | D::DtQint8 | D::DtQuint8 => 1,
        // Narrower elements have a byte each in memory.
        D::DtInt4 | D::DtUint4 | D::DtInt2 | D::DtUint2 | D::DtFloat4E2m1fn => 1,
        D::DtFloat8E5m2
        | D::DtFloat8E4m3fn
        | D::DtFloat8E4m3fnuz
        | D::DtFloat8E4m3b11fnuz
        | D::DtFloat8E5m2fnuz => 1,
        D::DtInt16 | D::DtUint16 | D::DtHalf | D::DtBfloat16 | D::DtQint16 | D::DtQuint16 => 2,
        D::DtFloat | D::DtInt32 | D::DtUint32 | D::DtQint32 => 4,
        D::DtDouble | D::DtInt64 | D::DtUint64 | D::DtComplex64 => 8,
        D::DtComplex128 => 16,
        _ => return None,
    })
}

/// The name that users know: `float`, `int32`, `float_ref`.
#[must_use]
pub fn type_name(dtype: DataType) -> String {
    dtype.as_str_name().trim_start_matches("DT_").to_ascii_lowercase()
}
