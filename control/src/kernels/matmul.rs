//! Products of matrices. The work is `ndarray`'s, which has a blocked, vectorised product for floats.

use std::num::Wrapping;

use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2, LinalgScalar};

use super::broadcast::Broadcast;
use super::contract::{Call, OpError};
use super::dispatch::{Built, by_type, heavy, widened};
use super::registry::{BuildError, Family};
use super::unary::{mapped, sigmoid};
use crate::core::graph::Node;
use crate::tensor::{Scalar, Shape, Tensor, Writer};

/// Operations of this family.
pub(super) const OPS: Family = &[
    ("MatMul", mat_mul),
    ("_FusedMatMul", fused_mat_mul),
    ("BatchMatMul", batch_mat_mul),
    ("BatchMatMulV2", batch_mat_mul),
    ("BatchMatMulV3", batch_mat_mul),
];

/// Types that matrices are multiplied in.
pub(super) trait Factor: Scalar + LinalgScalar {
    /// The same bytes as what does not fail past the range of the type: integers wrap.
    type Wrapped: LinalgScalar + bytemuck::Pod;
    const NONE: Self::Wrapped;
    const UNIT: Self::Wrapped;
}

impl Factor for f32 {
    type Wrapped = f32;
    const NONE: f32 = 0.0;
    const UNIT: f32 = 1.0;
}

impl Factor for f64 {
    type Wrapped = f64;
    const NONE: f64 = 0.0;
    const UNIT: f64 = 1.0;
}

impl Factor for i32 {
    type Wrapped = Wrapping<i32>;
    const NONE: Wrapping<i32> = Wrapping(0);
    const UNIT: Wrapping<i32> = Wrapping(1);
}

impl Factor for i64 {
    type Wrapped = Wrapping<i64>;
    const NONE: Wrapping<i64> = Wrapping(0);
    const UNIT: Wrapping<i64> = Wrapping(1);
}

/// A matrix in row-major order, to be read as it is or transposed.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a, T> {
    pub(super) elements: &'a [T],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) is_transposed: bool,
}

impl<'a, T: Factor> Matrix<'a, T> {
    fn view(self) -> Result<ArrayView2<'a, T::Wrapped>, OpError> {
        let elements = bytemuck::cast_slice(self.elements);
        let view = ArrayView2::from_shape((self.rows, self.columns), elements);
        let view =
            view.map_err(|error| OpError::internal(format!("a matrix is not of its shape: {error}")))?;
        Ok(if self.is_transposed { view.reversed_axes() } else { view })
    }
}

/// `out = a b`, or `out += a b`.
pub(super) fn multiply<T: Factor>(
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    out: &mut [T],
    adds: bool,
) -> Result<(), OpError> {
    let (a, b) = (a.view()?, b.view()?);
    let out = ArrayViewMut2::from_shape((a.nrows(), b.ncols()), bytemuck::cast_slice_mut(out));
    let mut out =
        out.map_err(|error| OpError::internal(format!("a product is not of its shape: {error}")))?;
    if a.ncols() != b.nrows() {
        return Err(OpError::internal("the inner sizes of a product differ"));
    }
    if a.ncols() == 0 {
        if !adds {
            out.fill(T::NONE);
        }
        return Ok(());
    }
    let before = if adds { T::UNIT } else { T::NONE };
    general_mat_mul(T::UNIT, &a, &b, before, &mut out);
    Ok(())
}

/// The product of two matrices, each as it is or transposed.
fn product<T: Factor>(a: &Tensor, b: &Tensor, transposes: [bool; 2]) -> Result<Tensor, OpError> {
    let (of_a, of_b) = (a.shape(), b.shape());
    if of_a.rank() != 2 || of_b.rank() != 2 {
        return Err(OpError::invalid(format!(
            "In[0] and In[1] has different ndims: {of_a} vs. {of_b}; both must be matrices"
        )));
    }
    let side = |shape: &Shape, transposed: bool, side: usize| shape[side ^ usize::from(transposed)];
    if side(of_a, transposes[0], 1) != side(of_b, transposes[1], 0) {
        return Err(OpError::invalid(format!("Matrix size-incompatible: In[0]: {of_a}, In[1]: {of_b}")));
    }
    let shape = Shape::new(&[side(of_a, transposes[0], 0), side(of_b, transposes[1], 1)])?;
    let mut out = Writer::new(T::DTYPE, shape)?;
    let [a, b] = [(a, transposes[0]), (b, transposes[1])].map(|(tensor, is_transposed)| {
        let (rows, columns) = (tensor.shape()[0], tensor.shape()[1]);
        Ok::<_, OpError>(Matrix { elements: tensor.as_slice::<T>()?, rows, columns, is_transposed })
    });
    multiply(a?, b?, out.elements_mut::<T>()?, false)?;
    Ok(out.freeze())
}

fn mat_mul(node: &Node) -> Built {
    widened(node, |node| {
        let transposes = [node.attrs.bool("transpose_a")?, node.attrs.bool("transpose_b")?];
        by_type!(node, "T", [DtFloat f32, DtDouble f64, DtInt32 i32, DtInt64 i64], T => heavy(move |call| {
            let out = product::<T>(&call.tensor(0)?, &call.tensor(1)?, transposes)?;
            call.set(0, out)
        }))
    })
}

/// What is done to a product, or to the result of a convolution, before anybody sees it.
#[derive(Clone, Copy)]
pub(super) enum Fused {
    BiasAdd,
    Relu,
    Relu6,
    LeakyRelu(f32),
    Elu,
    Tanh,
    Sigmoid,
    GeluExact,
    GeluApproximate,
}

impl Fused {
    /// What the attribute `fused_ops` lists.
    pub(super) fn list(node: &Node) -> Result<Vec<Fused>, BuildError> {
        let alpha = node.attrs.float("leakyrelu_alpha")?;
        let one = |name: &Vec<u8>| {
            Ok(match &name[..] {
                b"BiasAdd" => Fused::BiasAdd,
                b"Relu" => Fused::Relu,
                b"Relu6" => Fused::Relu6,
                b"LeakyRelu" => Fused::LeakyRelu(alpha),
                b"Elu" => Fused::Elu,
                b"Tanh" => Fused::Tanh,
                b"Sigmoid" => Fused::Sigmoid,
                b"GeluExact" => Fused::GeluExact,
                b"GeluApproximate" => Fused::GeluApproximate,
                other => {
                    let problem =
                        format!("names {}, which is not fused here", String::from_utf8_lossy(other));
                    return Err(node.attrs.wrong("fused_ops", &problem).into());
                }
            })
        };
        let all = node.attrs.list("fused_ops")?.s.iter().map(one).collect::<Result<Vec<_>, BuildError>>()?;
        let biases = all.iter().filter(|op| matches!(op, Fused::BiasAdd)).count();
        if biases > 1 || biases == 1 && node.input_types.len() < 3 {
            return Err(node.attrs.wrong("fused_ops", "adds a bias that is not there").into());
        }
        Ok(all)
    }

    /// Does all of `ops` to `out`, of which the bias is input 2.
    pub(super) fn apply(ops: &[Fused], mut out: Tensor, call: &Call<'_>) -> Result<Tensor, OpError> {
        for op in ops {
            out = match *op {
                Fused::BiasAdd => {
                    let bias = call.tensor(2)?;
                    if bias.shape().rank() != 1 || out.shape().last() != bias.shape().first() {
                        let (bias, out) = (bias.shape(), out.shape());
                        return Err(OpError::invalid(format!(
                            "Must provide as many biases as the last dimension of the input: {bias} vs. {out}"
                        )));
                    }
                    super::binary::combine::<f32>(out, bias, |a, b| a + b)?
                }
                Fused::Relu => mapped(out, |x: f32| if x < 0.0 { 0.0 } else { x })?,
                Fused::Relu6 => mapped(out, |x: f32| if x < 0.0 { 0.0 } else { x.min(6.0) })?,
                Fused::LeakyRelu(alpha) => mapped(out, |x: f32| if x > 0.0 { x } else { x * alpha })?,
                Fused::Elu => mapped(out, |x: f32| if x < 0.0 { x.exp_m1() } else { x })?,
                Fused::Tanh => mapped(out, f32::tanh)?,
                Fused::Sigmoid => mapped(out, sigmoid::<f32>)?,
                Fused::GeluExact => mapped(out, |x: f32| 0.5 * x * (1.0 + libm::erff(x / 2f32.sqrt())))?,
                Fused::GeluApproximate => mapped(out, |x: f32| {
                    let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
                    0.5 * x * (1.0 + inner.tanh())
                })?,
            };
        }
        Ok(out)
    }
}

fn fused_mat_mul(node: &Node) -> Built {
    widened(node, |node| {
        let transposes = [node.attrs.bool("transpose_a")?, node.attrs.bool("transpose_b")?];
        let ops = Fused::list(node)?;
        by_type!(node, "T", [DtFloat f32], T => heavy(move |call| {
            let out = product::<T>(&call.tensor(0)?, &call.tensor(1)?, transposes)?;
            let out = Fused::apply(&ops, out, call)?;
            call.set(0, out)
        }))
    })
}

fn batch_mat_mul(node: &Node) -> Built {
    widened(node, |node| {
        let transposes = [node.attrs.bool("adj_x")?, node.attrs.bool("adj_y")?];
        let type_attr = if node.op() == "BatchMatMulV3" { "Ta" } else { "T" };
        by_type!(node, type_attr, [DtFloat f32, DtDouble f64, DtInt32 i32, DtInt64 i64], T => heavy(move |call| {
            let out = batched::<T>(&call.tensor(0)?, &call.tensor(1)?, transposes, call)?;
            call.set(0, out)
        }))
    })
}

fn batched<T: Factor>(
    a: &Tensor,
    b: &Tensor,
    transposes: [bool; 2],
    call: &Call<'_>,
) -> Result<Tensor, OpError> {
    let (of_a, of_b) = (a.shape(), b.shape());
    let ([Some(outer_a), Some(outer_b)], elements) =
        ([of_a.rank().checked_sub(2), of_b.rank().checked_sub(2)], (a.as_slice::<T>()?, b.as_slice::<T>()?))
    else {
        return Err(OpError::invalid(format!("In[0] and In[1] ndims must be >= 2: {of_a} and {of_b}")));
    };
    let plan = Broadcast::of([&of_a[..outer_a], &of_b[..outer_b]]).map_err(|_| {
        OpError::invalid(format!("In[0] and In[1] must have compatible batch dimensions: {of_a} vs. {of_b}"))
    })?;
    let side = |shape: &Shape, transposed: bool, side: usize| {
        shape[shape.rank() - 2 + (side ^ usize::from(transposed))]
    };
    if side(of_a, transposes[0], 1) != side(of_b, transposes[1], 0) {
        return Err(OpError::invalid(format!(
            "Matrix size-incompatible: In[0] mismatch In[1] shape: {of_a} vs. {of_b}, adj_x={}, adj_y={}",
            transposes[0], transposes[1]
        )));
    }
    let (rows, columns) = (side(of_a, transposes[0], 0), side(of_b, transposes[1], 1));
    let shape = Shape::new(&[&plan.shape[..], &[rows, columns]].concat())?;
    let mut out = Writer::new(T::DTYPE, shape)?;
    let to = out.elements_mut::<T>()?;
    let (len_a, len_b, len) = (of_a.product(outer_a..), of_b.product(outer_b..), rows * columns);
    let mut result = Ok(());
    plan.runs(|at, [from_a, from_b], many, [step_a, step_b]| {
        for i in 0..many {
            if result.is_err() || call.is_cancelled() {
                return;
            }
            let (a_at, b_at) = (from_a + i * step_a, from_b + i * step_b);
            let [a, b] = [(elements.0, a_at, len_a, of_a, 0), (elements.1, b_at, len_b, of_b, 1)].map(
                |(elements, at, len, shape, which)| Matrix {
                    elements: &elements[at * len..][..len],
                    rows: shape[shape.rank() - 2],
                    columns: shape[shape.rank() - 1],
                    is_transposed: transposes[which],
                },
            );
            result = multiply(a, b, &mut to[(at + i) * len..][..len], false);
        }
    });
    result?;
    Ok(out.freeze())
}
