//! Element by element, over one operand; and the gradients that go with such operations.

use ringway_dataplane::memory::Bool;
use ringway_proto::tensorflow::DataType;

use super::binary::combine;
use super::contract::{Call, OpError};
use super::dispatch::{Built, by_float, by_int, by_number, kernel, widened};
use super::number::{Number, Real};
use super::registry::Family;
use crate::core::graph::Node;
use crate::tensor::{Scalar, Tensor, Writer};

/// Operations of this family.
pub(super) const OPS: Family = &[
    ("Neg", neg),
    ("Abs", abs),
    ("Sign", sign),
    ("Square", square),
    ("Sqrt", sqrt),
    ("Rsqrt", rsqrt),
    ("Exp", exp),
    ("Expm1", expm1),
    ("Log", log),
    ("Log1p", log1p),
    ("Sin", sin),
    ("Cos", cos),
    ("Tan", tan),
    ("Asin", asin),
    ("Acos", acos),
    ("Atan", atan),
    ("Sinh", sinh),
    ("Cosh", cosh),
    ("Tanh", tanh),
    ("Asinh", asinh),
    ("Acosh", acosh),
    ("Atanh", atanh),
    ("Sigmoid", sigmoid_of),
    ("Erf", erf),
    ("Erfc", erfc),
    ("Lgamma", lgamma),
    ("Floor", floor),
    ("Ceil", ceil),
    ("Round", round),
    ("Rint", rint),
    ("Reciprocal", reciprocal),
    ("Inv", reciprocal),
    ("IsNan", is_nan),
    ("IsInf", is_inf),
    ("IsFinite", is_finite),
    ("LogicalNot", logical_not),
    ("Invert", invert),
    ("Relu", relu),
    ("Relu6", relu6),
    ("LeakyRelu", leaky_relu),
    ("Elu", elu),
    ("Selu", selu),
    ("Softplus", softplus),
    ("Softsign", softsign),
    ("ReluGrad", relu_grad),
    ("Relu6Grad", relu6_grad),
    ("LeakyReluGrad", leaky_relu_grad),
    ("EluGrad", elu_grad),
    ("SeluGrad", selu_grad),
    ("SoftplusGrad", softplus_grad),
    ("SoftsignGrad", softsign_grad),
    ("SigmoidGrad", sigmoid_grad),
    ("TanhGrad", tanh_grad),
    ("SqrtGrad", sqrt_grad),
    ("RsqrtGrad", rsqrt_grad),
    ("ReciprocalGrad", reciprocal_grad),
    ("InvGrad", reciprocal_grad),
];

/// Scale of [`selu`], and its slope below zero times that scale.
const SELU: [f64; 2] = [1.050_700_987_355_480_5, 1.758_099_340_847_376_6];

/// Computes `f` of each element, in place where nobody else holds the memory.
fn map<T: Scalar>(call: &mut Call<'_>, f: impl Fn(T) -> T) -> Result<(), OpError> {
    let out = mapped(call.take(0)?, f)?;
    call.set(0, out)
}

/// As [`map`], of a tensor.
pub(super) fn mapped<T: Scalar>(tensor: Tensor, f: impl Fn(T) -> T) -> Result<Tensor, OpError> {
    let tensor = match tensor.into_writer() {
        Ok(mut out) => {
            out.elements_mut::<T>()?.iter_mut().for_each(|value| *value = f(*value));
            return Ok(out.freeze());
        }
        Err(shared) => shared,
    };
    let mut out = Writer::new(T::DTYPE, tensor.shape().clone())?;
    let elements = out.elements_mut::<T>()?;
    elements.iter_mut().zip(tensor.as_slice::<T>()?).for_each(|(out, value)| *out = f(*value));
    Ok(out.freeze())
}

/// Computes a truth value of each element.
fn test<T: Scalar>(call: &mut Call<'_>, f: impl Fn(T) -> bool) -> Result<(), OpError> {
    let tensor = call.tensor(0)?;
    let mut out = Writer::new(DataType::DtBool, tensor.shape().clone())?;
    let elements = out.elements_mut::<Bool>()?;
    elements.iter_mut().zip(tensor.as_slice::<T>()?).for_each(|(out, value)| *out = Bool::from(f(*value)));
    call.set(0, out.freeze())
}

macro_rules! numbers {
    ($($name:ident: $f:expr;)+) => {$(
        fn $name(node: &Node) -> Built {
            widened(node, |node| by_number!(node, "T", T => kernel(|call| map::<T>(call, $f))))
        }
    )+};
}

numbers! {
    neg: Number::negative;
    abs: Number::magnitude;
    sign: Number::sign;
    square: |x: T| x.times(x);
    relu: |x: T| if x.is_below_zero() { T::ZERO } else { x };
    relu6: |x: T| if x.is_below_zero() { T::ZERO } else { x.smaller(T::of_f64(6.0)) };
}

macro_rules! reals {
    ($($name:ident: $f:expr;)+) => {$(
        fn $name(node: &Node) -> Built {
            widened(node, |node| by_float!(node, "T", T => kernel(|call| map::<T>(call, $f))))
        }
    )+};
}

reals! {
    sqrt: Real::sqrt;
    rsqrt: |x: T| 1.0 / x.sqrt();
    exp: Real::exp;
    expm1: Real::exp_m1;
    log: Real::ln;
    log1p: Real::ln_1p;
    sin: Real::sin;
    cos: Real::cos;
    tan: Real::tan;
    asin: Real::asin;
    acos: Real::acos;
    atan: Real::atan;
    sinh: Real::sinh;
    cosh: Real::cosh;
    tanh: Real::tanh;
    asinh: Real::asinh;
    acosh: Real::acosh;
    atanh: Real::atanh;
    sigmoid_of: sigmoid;
    erf: Real::erf;
    erfc: Real::erfc;
    lgamma: Real::lgamma;
    floor: Real::floor;
    ceil: Real::ceil;
    rint: Real::round_even;
    reciprocal: |x: T| 1.0 / x;
    elu: |x: T| if x < 0.0 { x.exp_m1() } else { x };
    selu: |x: T| if x < 0.0 { T::of_f64(SELU[1]) * x.exp_m1() } else { T::of_f64(SELU[0]) * x };
    softplus: soft_plus;
    softsign: |x: T| x / (1.0 + x.abs());
}

macro_rules! tests {
    ($($name:ident: $f:expr;)+) => {$(
        fn $name(node: &Node) -> Built {
            widened(node, |node| by_float!(node, "T", T => kernel(|call| test::<T>(call, $f))))
        }
    )+};
}

tests! {
    is_nan: Real::is_nan;
    is_inf: Real::is_infinite;
    is_finite: Real::is_finite;
}

/// Integers are round.
fn round(node: &Node) -> Built {
    match node.attrs.dtype("T")? {
        DataType::DtInt32 | DataType::DtInt64 | DataType::DtInt8 | DataType::DtInt16 => {
            kernel(|call| call.forward(0, 0))
        }
        _ => widened(node, |node| by_float!(node, "T", T => kernel(|call| map::<T>(call, Real::round_even)))),
    }
}

/// Without an overflow on either side.
pub(super) fn sigmoid<T: Real>(x: T) -> T {
    if x < T::ZERO {
        let e = x.exp();
        T::of_f64(e.to_f64() / (1.0 + e.to_f64()))
    } else {
        T::of_f64(1.0 / (1.0 + (-x).exp().to_f64()))
    }
}

/// `ln(1 + e^x)`, without an overflow.
fn soft_plus<T: Real>(x: T) -> T {
    x.larger(T::ZERO).plus((-x.magnitude()).exp().ln_1p())
}

fn logical_not(_: &Node) -> Built {
    kernel(|call| map::<Bool>(call, |x| Bool::from(!x.get())))
}

fn invert(node: &Node) -> Built {
    by_int!(node, "T", T => kernel(|call| map::<T>(call, |x| !x)))
}

fn leaky_relu(node: &Node) -> Built {
    widened(node, |node| {
        let alpha = node.attrs.float("alpha")?;
        by_float!(node, "T", T => {
            let alpha = T::from(alpha);
            kernel(move |call| map::<T>(call, move |x| if x > 0.0 { x } else { x * alpha }))
        })
    })
}

fn leaky_relu_grad(node: &Node) -> Built {
    widened(node, |node| {
        let alpha = node.attrs.float("alpha")?;
        by_float!(node, "T", T => {
            let alpha = T::from(alpha);
            kernel(move |call| gradient::<T>(call, move |g, x| if x > 0.0 { g } else { g * alpha }))
        })
    })
}

/// Computes `f` of two operands of one shape.
fn gradient<T: Scalar>(call: &mut Call<'_>, f: impl Fn(T, T) -> T + Copy) -> Result<(), OpError> {
    let (a, b) = (call.take(0)?, call.take(1)?);
    if a.shape() != b.shape() {
        let (a, b) = (a.shape(), b.shape());
        return Err(OpError::invalid(format!("Inputs to operation must have the same shape: {a} vs. {b}")));
    }
    let out = combine(a, b, f)?;
    call.set(0, out)
}

macro_rules! gradients {
    ($($name:ident: $f:expr;)+) => {$(
        fn $name(node: &Node) -> Built {
            widened(node, |node| by_float!(node, "T", T => kernel(|call| gradient::<T>(call, $f))))
        }
    )+};
}

// Of (gradient, features or outputs), or of (outputs, gradient), as TensorFlow has it.
gradients! {
    relu_grad: |g: T, x: T| if x > 0.0 { g } else { 0.0 };
    relu6_grad: |g: T, x: T| if x > 0.0 && x < 6.0 { g } else { 0.0 };
    elu_grad: |g: T, y: T| if y < 0.0 { (y + 1.0) * g } else { g };
    selu_grad: |g: T, y: T| if y < 0.0 { g * (y + T::of_f64(SELU[1])) } else { g * T::of_f64(SELU[0]) };
    softplus_grad: |g: T, x: T| g * sigmoid(x);
    softsign_grad: |g: T, x: T| g / ((1.0 + x.abs()) * (1.0 + x.abs()));
    sigmoid_grad: |y: T, dy: T| dy * y * (1.0 - y);
    tanh_grad: |y: T, dy: T| dy * (1.0 - y * y);
    sqrt_grad: |y: T, dy: T| 0.5 * dy / y;
    rsqrt_grad: |y: T, dy: T| -0.5 * dy * y * y * y;
    reciprocal_grad: |y: T, dy: T| -dy * y * y;
}
