//! Element by element, over two operands that are broadcast.

use ringway_dataplane::memory::Bool;
use ringway_proto::tensorflow::DataType;

use super::broadcast::{Broadcast, zip};
use super::contract::{Call, OpError};
use super::dispatch::{Built, by_float, by_int, by_number, by_type, kernel, widened};
use super::number::{Number, Real};
use super::registry::Family;
use crate::core::graph::Node;
use crate::tensor::{Scalar, Tensor, Writer};

/// Operations of this family.
pub(super) const OPS: Family = &[
    ("Add", add),
    ("AddV2", add),
    ("Sub", sub),
    ("Mul", mul),
    ("Div", div),
    ("RealDiv", real_div),
    ("DivNoNan", div_no_nan),
    ("MulNoNan", mul_no_nan),
    ("FloorDiv", floor_div),
    ("FloorMod", floor_mod),
    ("TruncateDiv", div),
    ("TruncateMod", truncate_mod),
    ("Mod", truncate_mod),
    ("Pow", pow),
    ("Maximum", maximum),
    ("Minimum", minimum),
    ("SquaredDifference", squared_difference),
    ("Atan2", atan2),
    ("Xdivy", xdivy),
    ("Xlogy", xlogy),
    ("Xlog1py", xlog1py),
    ("Less", less),
    ("LessEqual", less_equal),
    ("Greater", greater),
    ("GreaterEqual", greater_equal),
    ("Equal", equal),
    ("NotEqual", not_equal),
    ("LogicalAnd", logical_and),
    ("LogicalOr", logical_or),
    ("BitwiseAnd", bitwise_and),
    ("BitwiseOr", bitwise_or),
    ("BitwiseXor", bitwise_xor),
    ("LeftShift", left_shift),
    ("RightShift", right_shift),
];

/// Computes `f` of two operands into memory of one of them where nobody else holds it.
pub(super) fn arithmetic<T: Scalar>(
    call: &mut Call<'_>,
    f: impl Fn(T, T) -> T + Copy,
) -> Result<(), OpError> {
    let (a, b) = (call.take(0)?, call.take(1)?);
    let out = combine(a, b, f)?;
    call.set(0, out)
}

/// As [`arithmetic`], of two tensors.
pub(super) fn combine<T: Scalar>(
    mut a: Tensor,
    mut b: Tensor,
    f: impl Fn(T, T) -> T + Copy,
) -> Result<Tensor, OpError> {
    if a.shape() == b.shape() || b.len() == 1 && b.shape().rank() <= a.shape().rank() {
        match a.into_writer() {
            Ok(mut out) => {
                let elements = out.elements_mut::<T>()?;
                match b.as_slice::<T>()? {
                    [b] => elements.iter_mut().for_each(|a| *a = f(*a, *b)),
                    b => elements.iter_mut().zip(b).for_each(|(a, b)| *a = f(*a, *b)),
                }
                return Ok(out.freeze());
            }
            Err(shared) => a = shared,
        }
    }
    if a.shape() == b.shape() || a.len() == 1 && a.shape().rank() <= b.shape().rank() {
        match b.into_writer() {
            Ok(mut out) => {
                let elements = out.elements_mut::<T>()?;
                match a.as_slice::<T>()? {
                    [a] => elements.iter_mut().for_each(|b| *b = f(*a, *b)),
                    a => elements.iter_mut().zip(a).for_each(|(b, a)| *b = f(*a, *b)),
                }
                return Ok(out.freeze());
            }
            Err(shared) => b = shared,
        }
    }
    let plan = Broadcast::of([a.shape(), b.shape()])?;
    let mut out = Writer::new(T::DTYPE, plan.shape.clone())?;
    zip(&plan, a.as_slice::<T>()?, b.as_slice::<T>()?, out.elements_mut::<T>()?, f);
    Ok(out.freeze())
}

/// Computes `f` of two operands into truth values.
fn compare<T: Scalar>(call: &mut Call<'_>, f: impl Fn(T, T) -> bool + Copy) -> Result<(), OpError> {
    let (a, b) = (call.tensor(0)?, call.tensor(1)?);
    let plan = Broadcast::of([a.shape(), b.shape()])?;
    let mut out = Writer::new(DataType::DtBool, plan.shape.clone())?;
    let f = |a, b| Bool::from(f(a, b));
    zip(&plan, a.as_slice::<T>()?, b.as_slice::<T>()?, out.elements_mut::<Bool>()?, f);
    call.set(0, out.freeze())
}

/// Refuses integer divisors that are zero.
fn check_divisor<T: Number>(call: &Call<'_>) -> Result<(), OpError> {
    if !T::IS_INT || call.tensor(0)?.is_empty() {
        return Ok(());
    }
    let is_zero = call.tensor(1)?.as_slice::<T>()?.contains(&T::ZERO);
    if is_zero { Err(OpError::invalid("Integer division by zero")) } else { Ok(()) }
}

macro_rules! numbers {
    ($($name:ident: $f:expr;)+) => {$(
        fn $name(node: &Node) -> Built {
            widened(node, |node| by_number!(node, "T", T => kernel(|call| arithmetic::<T>(call, $f))))
        }
    )+};
}

numbers! {
    sub: Number::minus;
    mul: Number::times;
    maximum: Number::larger;
    minimum: Number::smaller;
    squared_difference: |a: T, b: T| a.minus(b).times(a.minus(b));
}

macro_rules! divisions {
    ($($name:ident: $f:expr;)+) => {$(
        fn $name(node: &Node) -> Built {
            widened(node, |node| by_number!(node, "T", T => kernel(|call| {
                check_divisor::<T>(call)?;
                arithmetic::<T>(call, $f)
            })))
        }
    )+};
}

divisions! {
    div: Number::over;
    floor_div: Number::floor_over;
    floor_mod: Number::floor_rest;
    truncate_mod: Number::rest;
}

macro_rules! reals {
    ($($name:ident: $f:expr;)+) => {$(
        fn $name(node: &Node) -> Built {
            widened(node, |node| by_float!(node, "T", T => kernel(|call| arithmetic::<T>(call, $f))))
        }
    )+};
}

reals! {
    real_div: |a: T, b: T| a / b;
    div_no_nan: |a: T, b: T| if b == 0.0 { 0.0 } else { a / b };
    mul_no_nan: |a: T, b: T| if b == 0.0 { 0.0 } else { a * b };
    atan2: Real::atan2;
    xdivy: |a: T, b: T| if a == 0.0 { 0.0 } else { a / b };
    xlogy: |a: T, b: T| if a == 0.0 { 0.0 } else { a * b.ln() };
    xlog1py: |a: T, b: T| if a == 0.0 { 0.0 } else { a * b.ln_1p() };
}

macro_rules! comparisons {
    ($($name:ident: $op:tt;)+) => {$(
        fn $name(node: &Node) -> Built {
            widened(node, |node| by_number!(node, "T", T => kernel(|call| compare::<T>(call, |a, b| a $op b))))
        }
    )+};
}

comparisons! {
    less: <;
    less_equal: <=;
    greater: >;
    greater_equal: >=;
}

macro_rules! bits {
    ($($name:ident: $f:expr;)+) => {$(
        fn $name(node: &Node) -> Built {
            by_int!(node, "T", T => kernel(|call| arithmetic::<T>(call, $f)))
        }
    )+};
}

bits! {
    bitwise_and: |a: T, b: T| a & b;
    bitwise_or: |a: T, b: T| a | b;
    bitwise_xor: |a: T, b: T| a ^ b;
    // Shifts past the width are those of the last bit, as TensorFlow clamps them.
    left_shift: |a: T, b: T| a << (b.clamp(0, (T::BITS - 1) as T));
    right_shift: |a: T, b: T| a >> (b.clamp(0, (T::BITS - 1) as T));
}

fn add(node: &Node) -> Built {
    if node.attrs.dtype("T")? == DataType::DtString {
        return kernel(join_strings);
    }
    widened(node, |node| by_number!(node, "T", T => kernel(|call| arithmetic::<T>(call, Number::plus))))
}

fn join_strings(call: &mut Call<'_>) -> Result<(), OpError> {
    let (a, b) = (call.tensor(0)?, call.tensor(1)?);
    let (from_a, from_b) = (a.strings()?, b.strings()?);
    let plan = Broadcast::of([a.shape(), b.shape()])?;
    let mut joined = Vec::new();
    plan.runs(|_, [at_a, at_b], len, steps| {
        joined.extend((0..len).map(|i| {
            let pair = [&from_a[at_a + i * steps[0]][..], &from_b[at_b + i * steps[1]][..]];
            prost::bytes::Bytes::from(pair.concat())
        }));
    });
    call.set(0, Tensor::from_strings(plan.shape, joined)?)
}

fn pow(node: &Node) -> Built {
    widened(node, |node| {
        by_number!(node, "T", T => kernel(|call| {
            if T::IS_INT && call.tensor(1)?.as_slice::<T>()?.iter().any(|exponent| exponent.is_below_zero()) {
                return Err(OpError::invalid("Integers to negative integer powers are not allowed"));
            }
            arithmetic::<T>(call, Number::power)
        }))
    })
}

fn equal(node: &Node) -> Built {
    equality(node, true)
}

fn not_equal(node: &Node) -> Built {
    equality(node, false)
}

/// Equality, or the lack of it. Without `incompatible_shape_error`, values whose shapes do not go together are unequal.
fn equality(node: &Node, wants: bool) -> Built {
    let strict = node.attrs.bool("incompatible_shape_error")?;
    let guarded = move |call: &mut Call<'_>, run: fn(&mut Call<'_>, bool) -> Result<(), OpError>| {
        let shapes = (call.tensor(0)?, call.tensor(1)?);
        if !strict && Broadcast::of([shapes.0.shape(), shapes.1.shape()]).is_err() {
            return call.set(0, Tensor::scalar(Bool::from(!wants))?);
        }
        drop(shapes);
        run(call, wants)
    };
    match node.attrs.dtype("T")? {
        DataType::DtHalf | DataType::DtBfloat16 if wants => return widened(node, equal),
        DataType::DtHalf | DataType::DtBfloat16 => return widened(node, not_equal),
        DataType::DtString => return kernel(move |call| guarded(call, equal_strings)),
        _ => {}
    }
    by_type!(node, "T", [DtFloat f32, DtDouble f64, DtInt32 i32, DtInt64 i64, DtInt16 i16, DtInt8 i8, DtUint8 u8,
        DtUint16 u16, DtUint32 u32, DtUint64 u64, DtBool Bool], T => {
        kernel(move |call| guarded(call, |call, wants| compare::<T>(call, move |a, b| (a == b) == wants)))
    })
}

fn equal_strings(call: &mut Call<'_>, wants: bool) -> Result<(), OpError> {
    let (a, b) = (call.tensor(0)?, call.tensor(1)?);
    let (from_a, from_b) = (a.strings()?, b.strings()?);
    let plan = Broadcast::of([a.shape(), b.shape()])?;
    let mut equal = Vec::new();
    plan.runs(|_, [at_a, at_b], len, steps| {
        let one = |i| (from_a[at_a + i * steps[0]] == from_b[at_b + i * steps[1]]) == wants;
        equal.extend((0..len).map(|i| Bool::from(one(i))));
    });
    call.set(0, Tensor::new(plan.shape, &equal)?)
}

fn logical_and(_: &Node) -> Built {
    kernel(|call| compare::<Bool>(call, |a, b| a.get() && b.get()))
}

fn logical_or(_: &Node) -> Built {
    kernel(|call| compare::<Bool>(call, |a, b| a.get() || b.get()))
}
