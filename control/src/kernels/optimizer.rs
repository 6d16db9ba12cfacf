//! Steps of optimisers, dense and by row, on variables by handle and by reference. The formulas are TensorFlow's
//! (`training_ops`).

use super::contract::{Call, OpError};
use super::dispatch::{Built, by_float, integers, kernel};
use super::number::Real;
use super::registry::Family;
use super::state::{give_back, variable_at};
use super::variable::{lock_all, update_all};
use crate::core::graph::Node;
use crate::tensor::Scalar;

/// Operations of this family.
pub(super) const OPS: Family = &[
    ("ApplyGradientDescent", gradient_descent),
    ("ResourceApplyGradientDescent", gradient_descent),
    ("ApplyMomentum", momentum),
    ("ResourceApplyMomentum", momentum),
    ("SparseApplyMomentum", momentum),
    ("ResourceSparseApplyMomentum", momentum),
    ("ResourceApplyKerasMomentum", keras_momentum),
    ("ResourceSparseApplyKerasMomentum", keras_momentum),
    ("ApplyAdam", adam),
    ("ResourceApplyAdam", adam),
    ("ApplyAdagrad", adagrad),
    ("ResourceApplyAdagrad", adagrad),
    ("SparseApplyAdagrad", adagrad),
    ("ResourceSparseApplyAdagrad", adagrad),
    ("ApplyAdagradV2", adagrad),
    ("ResourceApplyAdagradV2", adagrad),
    ("SparseApplyAdagradV2", adagrad),
    ("ResourceSparseApplyAdagradV2", adagrad),
    ("ApplyRMSProp", rms_prop),
    ("ResourceApplyRMSProp", rms_prop),
    ("SparseApplyRMSProp", rms_prop),
    ("ResourceSparseApplyRMSProp", rms_prop),
    ("ApplyCenteredRMSProp", centered_rms_prop),
    ("ResourceApplyCenteredRMSProp", centered_rms_prop),
];

/// A number that an input gives.
fn hyper<T: Scalar>(call: &Call<'_>, index: usize) -> Result<T, OpError> {
    let tensor = call.tensor(index)?;
    if tensor.shape().rank() != 0 {
        return Err(OpError::invalid(format!("input {index} is not a scalar: {}", tensor.shape())));
    }
    Ok(tensor.single()?)
}

/// Whether a node steps the rows that its indices name, and no others.
fn is_sparse(node: &Node) -> bool {
    node.op().contains("Sparse")
}

/// Steps the first `N` inputs, which are variables of one shape, by the gradient at input `gradient_at`; when `sparse`,
/// its rows go to the rows that the next input names. `step` makes new elements from old ones.
fn apply<T: Scalar, const N: usize>(
    call: &mut Call<'_>,
    gradient_at: usize,
    sparse: bool,
    step: impl Fn([T; N], T) -> [T; N],
) -> Result<(), OpError> {
    let gradient = call.tensor(gradient_at)?;
    let mut variables = Vec::with_capacity(N);
    for index in 0..N {
        variables.push(variable_at(call, index)?);
    }
    let held = lock_all::<N>(std::array::from_fn(|at| &variables[at]))?;
    let shape = held[0].read()?.shape().clone();
    for held in &held {
        let other = held.read()?.shape();
        if *other != shape {
            return Err(OpError::invalid(format!(
                "var and its slots do not have the same shape: {shape} {other}"
            )));
        }
    }
    let row = if sparse && shape.rank() > 0 { shape.product(1..) } else { shape.elements() };
    let (rows, expected) = if sparse {
        let (indices, count) = (call.tensor(gradient_at + 1)?, shape.first().copied().unwrap_or(0));
        let rows = integers(&indices)?;
        if let Some(bad) = rows.iter().find(|row| !(0..count as i64).contains(row)) {
            return Err(OpError::invalid(format!("Index {bad} is not in [0, {count}): rows of var")));
        }
        let inner = shape.get(1..).unwrap_or_default();
        (rows.into_iter().map(|row| row as usize).collect(), [&indices.shape()[..], inner].concat())
    } else {
        (vec![0], shape.to_vec())
    };
    if gradient.shape().sizes() != expected {
        let given = gradient.shape();
        return Err(OpError::invalid(format!("var and grad do not have the same shape {shape} {given}")));
    }
    let gradient = gradient.as_slice::<T>()?;
    update_all(held, |writers| {
        let mut slots: Vec<&mut [T]> = Vec::with_capacity(N);
        for writer in writers {
            slots.push(writer.elements_mut::<T>()?);
        }
        for (from, to) in rows.into_iter().enumerate() {
            for at in 0..row {
                let now = std::array::from_fn(|slot| slots[slot][to * row + at]);
                let next = step(now, gradient[from * row + at]);
                slots.iter_mut().zip(next).for_each(|(slot, next)| slot[to * row + at] = next);
            }
        }
        Ok(())
    })?;
    give_back(call)
}

fn gradient_descent(node: &Node) -> Built {
    by_float!(node, "T", T => kernel(|call| {
        let alpha: T = hyper(call, 1)?;
        apply::<T, 1>(call, 2, false, |[var], g| [var - g * alpha])
    }))
}

fn momentum(node: &Node) -> Built {
    let (nesterov, sparse) = (node.attrs.bool("use_nesterov")?, is_sparse(node));
    by_float!(node, "T", T => kernel(move |call| {
        let (rate, momentum): (T, T) = (hyper(call, 2)?, hyper(call, if sparse { 5 } else { 4 })?);
        apply::<T, 2>(call, 3, sparse, |[var, accum], g| {
            let accum = accum * momentum + g;
            let by = if nesterov { g * rate + accum * momentum * rate } else { accum * rate };
            [var - by, accum]
        })
    }))
}

fn keras_momentum(node: &Node) -> Built {
    let (nesterov, sparse) = (node.attrs.bool("use_nesterov")?, is_sparse(node));
    by_float!(node, "T", T => kernel(move |call| {
        let (rate, momentum): (T, T) = (hyper(call, 2)?, hyper(call, if sparse { 5 } else { 4 })?);
        apply::<T, 2>(call, 3, sparse, |[var, accum], g| {
            let accum = accum * momentum - g * rate;
            let by = if nesterov { accum * momentum - g * rate } else { accum };
            [var + by, accum]
        })
    }))
}

fn adam(node: &Node) -> Built {
    let nesterov = node.attrs.bool("use_nesterov")?;
    by_float!(node, "T", T => kernel(move |call| {
        let [beta1_power, beta2_power, rate, beta1, beta2, epsilon] =
            [3, 4, 5, 6, 7, 8].map(|index| hyper::<T>(call, index));
        let (beta1, beta2, epsilon) = (beta1?, beta2?, epsilon?);
        let alpha = rate? * (1.0 - beta2_power?).sqrt() / (1.0 - beta1_power?);
        apply::<T, 3>(call, 9, false, |[var, m, v], g| {
            let m = m + (g - m) * (1.0 - beta1);
            let v = v + (g * g - v) * (1.0 - beta2);
            let toward = if nesterov { g * (1.0 - beta1) + beta1 * m } else { m };
            [var - toward * alpha / (v.sqrt() + epsilon), m, v]
        })
    }))
}

fn adagrad(node: &Node) -> Built {
    let (updates, sparse) = (node.attrs.bool("update_slots")?, is_sparse(node));
    let second = node.op().ends_with("V2");
    by_float!(node, "T", T => kernel(move |call| {
        let (rate, epsilon): (T, T) = (hyper(call, 2)?, if second { hyper(call, 3)? } else { 0.0 });
        apply::<T, 2>(call, if second { 4 } else { 3 }, sparse, |[var, accum], g| {
            let accum = if updates { accum + g * g } else { accum };
            [var - g * rate / (accum.sqrt() + epsilon), accum]
        })
    }))
}

/// A running mean of squares, moved by `rho`.
fn toward<T: Real + std::ops::Sub<Output = T>>(mean: T, value: T, rho: T) -> T {
    mean.plus((value - mean).times(T::ONE - rho))
}

fn rms_prop(node: &Node) -> Built {
    let sparse = is_sparse(node);
    by_float!(node, "T", T => kernel(move |call| {
        let [rate, rho, momentum, epsilon] = [3, 4, 5, 6].map(|index| hyper::<T>(call, index));
        let (rate, rho, momentum, epsilon) = (rate?, rho?, momentum?, epsilon?);
        apply::<T, 3>(call, 7, sparse, |[var, ms, mom], g| {
            let ms = toward(ms, g * g, rho);
            let mom = mom * momentum + g * rate / (ms + epsilon).sqrt();
            [var - mom, ms, mom]
        })
    }))
}

fn centered_rms_prop(node: &Node) -> Built {
    by_float!(node, "T", T => kernel(move |call| {
        let [rate, rho, momentum, epsilon] = [4, 5, 6, 7].map(|index| hyper::<T>(call, index));
        let (rate, rho, momentum, epsilon) = (rate?, rho?, momentum?, epsilon?);
        apply::<T, 4>(call, 8, false, |[var, mg, ms, mom], g| {
            let (ms, mg) = (toward(ms, g * g, rho), toward(mg, g, rho));
            let mom = mom * momentum + g * rate / (ms - mg * mg + epsilon).sqrt();
            [var - mom, mg, ms, mom]
        })
    }))
}
