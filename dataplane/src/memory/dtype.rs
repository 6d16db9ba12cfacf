//! The element types that travel, by name, size and Rust type.
#![forbid(unsafe_code)]

use half::{bf16, f16};
use std::fmt;

/// The type of the elements of a tensor.
///
/// The discriminant is the wire code of the type (one byte in a message's stamp); codes are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DType {
    /// IEEE 754 binary16.
    F16 = 1,
    /// bfloat16.
    Bf16 = 2,
    /// IEEE 754 binary32.
    F32 = 3,
    /// IEEE 754 binary64.
    F64 = 4,
    /// Signed 8-bit integer.
    I8 = 5,
    /// Signed 16-bit integer.
    I16 = 6,
    /// Signed 32-bit integer.
    I32 = 7,
    /// Signed 64-bit integer.
    I64 = 8,
    /// Unsigned 8-bit integer.
    U8 = 9,
    /// Unsigned 16-bit integer.
    U16 = 10,
    /// Unsigned 32-bit integer.
    U32 = 11,
    /// Unsigned 64-bit integer.
    U64 = 12,
    /// One byte, 0 or 1 (see [`Bool`]).
    Bool = 13,
}

impl DType {
    /// Every type, in the order of their wire codes.
    pub const ALL: [DType; 13] = [
        DType::F16,
        DType::Bf16,
        DType::F32,
        DType::F64,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::Bool,
    ];

    /// Size of one element in bytes: 1, 2, 4 or 8.
    pub const fn size(self) -> usize {
        match self {
            DType::I8 | DType::U8 | DType::Bool => 1,
            DType::F16 | DType::Bf16 | DType::I16 | DType::U16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 | DType::I64 | DType::U64 => 8,
        }
    }

    /// The name that tables and error messages print, e.g. `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::Bool => "bool",
        }
    }

    /// The type with this wire code, or `None`.
    pub fn from_code(code: u8) -> Option<DType> {
        DType::ALL.into_iter().find(|t| *t as u8 == code)
    }

    /// Whether the type is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::Bf16 | DType::F32 | DType::F64)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for DType {
    type Err = UnknownDType;

    /// Reads a Ringway name (`f32`) or the nccl-tests one (`float`, `half`, `double`, `bfloat16`, `int32`, ...).
    fn from_str(s: &str) -> Result<DType, UnknownDType> {
        let alias = match s {
            "half" | "float16" => "f16",
            "bfloat16" => "bf16",
            "float" | "float32" => "f32",
            "double" | "float64" => "f64",
            "int8" => "i8",
            "int16" => "i16",
            "int32" => "i32",
            "int64" => "i64",
            "uint8" => "u8",
            "uint16" => "u16",
            "uint32" => "u32",
            "uint64" => "u64",
            other => other,
        };
        DType::ALL.into_iter().find(|t| t.name() == alias).ok_or_else(|| UnknownDType(s.to_owned()))
    }
}

/// A name that is no element type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no element type: use f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64 or bool")]
pub struct UnknownDType(pub String);

/// A truth value of one byte that any bit pattern may fill: 0 is false, all else is true.
///
/// Rust's own `bool` may only hold 0 and 1, which bytes from a network cannot promise.
#[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct Bool(pub u8);

impl Bool {
    /// The truth value.
    pub const fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Bool {
    fn from(b: bool) -> Bool {
        Bool(u8::from(b))
    }
}

impl PartialEq for Bool {
    fn eq(&self, other: &Bool) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Bool {}

impl fmt::Debug for Bool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

mod sealed {
    /// Closes [`super::Element`]: the wire codes are finite.
    pub trait Sealed {}
}

/// A Rust type whose values may travel.
pub trait Element: bytemuck::Pod + Send + Sync + sealed::Sealed + 'static {
    /// The type's wire name.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($t:ty => $d:ident),+ $(,)?) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t { const DTYPE: DType = DType::$d; }
        const _: () = assert!(std::mem::size_of::<$t>() == DType::$d.size());
    )+};
}

elements! {
    f16 => F16, bf16 => Bf16, f32 => F32, f64 => F64,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64, Bool => Bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_read_back() {
        for t in DType::ALL {
            assert_eq!(t.name().parse::<DType>(), Ok(t));
            assert_eq!(DType::from_code(t as u8), Some(t));
        }
        assert_eq!("float".parse::<DType>(), Ok(DType::F32));
        assert_eq!(DType::from_code(0), None);
        assert!("f33".parse::<DType>().is_err());
    }

    #[test]
    fn any_byte_is_a_bool() {
        assert_eq!(Bool(7), Bool::from(true));
        assert_ne!(Bool(0), Bool(255));
    }
}
