//! From one type of elements to another.

use half::{bf16, f16};
use ringway_dataplane::memory::Bool;
use ringway_proto::tensorflow::DataType;

use super::contract::OpError;
use super::dispatch::{Built, kernel, unsupported};
use super::registry::Family;
use crate::core::graph::Node;
use crate::tensor::{Scalar, Shape, Tensor, Writer, size_of};

/// Operations of this family.
pub(super) const OPS: Family = &[("Cast", cast), ("_HostCast", cast), ("Bitcast", bitcast)];

/// Types that are cast between.
const KNOWN: &[DataType] = &[
    DataType::DtFloat,
    DataType::DtDouble,
    DataType::DtHalf,
    DataType::DtBfloat16,
    DataType::DtInt8,
    DataType::DtInt16,
    DataType::DtInt32,
    DataType::DtInt64,
    DataType::DtUint8,
    DataType::DtUint16,
    DataType::DtUint32,
    DataType::DtUint64,
    DataType::DtBool,
];

/// Elements that are cast at a time when it takes two steps.
const CHUNK: usize = 256;

/// A type that is cast from and to, by way of a wide one that holds all of its values.
trait Castable: Scalar {
    fn to_float(self) -> f64;
    fn to_int(self) -> i128;
    fn of_float(value: f64) -> Self;
    fn of_int(value: i128) -> Self;
    const IS_FLOAT: bool;
}

macro_rules! castable {
    ($($t:ty, $is_float:literal;)+) => {$(
        impl Castable for $t {
            fn to_float(self) -> f64 { self as f64 }
            fn to_int(self) -> i128 { self as i128 }
            fn of_float(value: f64) -> Self { value as $t }
            fn of_int(value: i128) -> Self { value as $t }
            const IS_FLOAT: bool = $is_float;
        }
    )+};
}

castable! {
    f32, true; f64, true; i8, false; i16, false; i32, false; i64, false; u8, false; u16, false; u32, false; u64, false;
}

macro_rules! castable_halves {
    ($($t:ty),+) => {$(
        impl Castable for $t {
            fn to_float(self) -> f64 { self.to_f64() }
            fn to_int(self) -> i128 { self.to_f64() as i128 }
            fn of_float(value: f64) -> Self { <$t>::from_f64(value) }
            fn of_int(value: i128) -> Self { <$t>::from_f64(value as f64) }
            const IS_FLOAT: bool = true;
        }
    )+};
}

castable_halves!(f16, bf16);

impl Castable for Bool {
    fn to_float(self) -> f64 {
        f64::from(u8::from(self.get()))
    }
    fn to_int(self) -> i128 {
        i128::from(self.get())
    }
    fn of_float(value: f64) -> Self {
        Bool::from(value != 0.0)
    }
    fn of_int(value: i128) -> Self {
        Bool::from(value != 0)
    }
    const IS_FLOAT: bool = false;
}

macro_rules! with_castable {
    ($dtype:expr, $T:ident => $made:expr) => {
        match $dtype {
            DataType::DtFloat => {
                type $T = f32;
                $made
            }
            DataType::DtDouble => {
                type $T = f64;
                $made
            }
            DataType::DtHalf => {
                type $T = f16;
                $made
            }
            DataType::DtBfloat16 => {
                type $T = bf16;
                $made
            }
            DataType::DtInt8 => {
                type $T = i8;
                $made
            }
            DataType::DtInt16 => {
                type $T = i16;
                $made
            }
            DataType::DtInt32 => {
                type $T = i32;
                $made
            }
            DataType::DtInt64 => {
                type $T = i64;
                $made
            }
            DataType::DtUint8 => {
                type $T = u8;
                $made
            }
            DataType::DtUint16 => {
                type $T = u16;
                $made
            }
            DataType::DtUint32 => {
                type $T = u32;
                $made
            }
            DataType::DtUint64 => {
                type $T = u64;
                $made
            }
            _ => {
                type $T = Bool;
                $made
            }
        }
    };
}

fn cast(node: &Node) -> Built {
    let (from, to) = (node.attrs.dtype("SrcT")?, node.attrs.dtype("DstT")?);
    if from == to {
        return kernel(|call| call.forward(0, 0));
    }
    for (attr, dtype) in [("SrcT", from), ("DstT", to)] {
        if !KNOWN.contains(&dtype) {
            return Err(unsupported(node, attr, dtype, KNOWN));
        }
    }
    kernel(move |call| {
        let tensor = call.tensor(0)?;
        if tensor.dtype() != from {
            return Err(OpError::invalid("the input is not of the type that SrcT says"));
        }
        let out = converted(&tensor, to)?;
        call.set(0, out)
    })
}

/// The same values in another type.
fn converted(tensor: &Tensor, to: DataType) -> Result<Tensor, OpError> {
    let mut out = Writer::new(to, tensor.shape().clone())?;
    use DataType as D;
    // The common ones in one step.
    match (tensor.dtype(), to) {
        (D::DtInt32, D::DtFloat) => direct(tensor, &mut out, |x: i32| x as f32)?,
        (D::DtInt64, D::DtFloat) => direct(tensor, &mut out, |x: i64| x as f32)?,
        (D::DtUint8, D::DtFloat) => direct(tensor, &mut out, |x: u8| f32::from(x))?,
        (D::DtBool, D::DtFloat) => direct(tensor, &mut out, |x: Bool| f32::from(u8::from(x.get())))?,
        (D::DtFloat, D::DtInt32) => direct(tensor, &mut out, |x: f32| x as i32)?,
        (D::DtFloat, D::DtInt64) => direct(tensor, &mut out, |x: f32| x as i64)?,
        (D::DtFloat, D::DtDouble) => direct(tensor, &mut out, |x: f32| f64::from(x))?,
        (D::DtDouble, D::DtFloat) => direct(tensor, &mut out, |x: f64| x as f32)?,
        (D::DtInt32, D::DtInt64) => direct(tensor, &mut out, |x: i32| i64::from(x))?,
        (D::DtInt64, D::DtInt32) => direct(tensor, &mut out, |x: i64| x as i32)?,
        (from, to) => {
            let from_float = with_castable!(from, S => S::IS_FLOAT);
            let to_float = with_castable!(to, T => T::IS_FLOAT);
            for at in (0..tensor.len()).step_by(CHUNK) {
                let end = (at + CHUNK).min(tensor.len());
                // Between integers no float is exact enough.
                if from_float || to_float {
                    let mut wide = [0f64; CHUNK];
                    with_castable!(from, S => {
                        let chunk = &tensor.as_slice::<S>()?[at..end];
                        wide.iter_mut().zip(chunk).for_each(|(wide, x)| *wide = x.to_float());
                    });
                    with_castable!(to, T => {
                        let chunk = &mut out.elements_mut::<T>()?[at..end];
                        chunk.iter_mut().zip(wide).for_each(|(x, wide)| *x = T::of_float(wide));
                    });
                } else {
                    let mut wide = [0i128; CHUNK];
                    with_castable!(from, S => {
                        let chunk = &tensor.as_slice::<S>()?[at..end];
                        wide.iter_mut().zip(chunk).for_each(|(wide, x)| *wide = x.to_int());
                    });
                    with_castable!(to, T => {
                        let chunk = &mut out.elements_mut::<T>()?[at..end];
                        chunk.iter_mut().zip(wide).for_each(|(x, wide)| *x = T::of_int(wide));
                    });
                }
            }
        }
    }
    Ok(out.freeze())
}

fn direct<S: Scalar, T: Scalar>(
    tensor: &Tensor,
    out: &mut Writer,
    f: impl Fn(S) -> T,
) -> Result<(), OpError> {
    out.elements_mut::<T>()?.iter_mut().zip(tensor.as_slice::<S>()?).for_each(|(to, from)| *to = f(*from));
    Ok(())
}

fn bitcast(node: &Node) -> Built {
    let to = node.attrs.dtype("type")?;
    let Some(size) = size_of(to) else { return Err(unsupported(node, "type", to, KNOWN)) };
    kernel(move |call| {
        let tensor = call.take(0)?;
        let from = super::join::element_bytes(&tensor)?;
        let mut sizes = tensor.shape().to_vec();
        if from > size {
            sizes.push(from / size);
        } else if from < size && sizes.pop() != Some(size / from) {
            let (shape, ratio) = (tensor.shape(), size / from);
            let message = format!(
                "Cannot bitcast to a type of {size} bytes: the last dimension of {shape} is not {ratio}"
            );
            return Err(OpError::invalid(message));
        }
        call.set(0, tensor.with_type(to, Shape::new(&sizes)?)?)
    })
}
