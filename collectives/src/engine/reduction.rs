//! Reductions of a user's own.

#![forbid(unsafe_code)]

use bytemuck::{try_cast_slice, try_cast_slice_mut};
use ringway_dataplane::memory::{DType, Element};
use std::any::Any;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A function that combines elements, for [`Communicator::all_reduce_with`](super::Communicator::all_reduce_with) and its
/// kind. Make it once and keep it: calls with the same one are planned once.
///
/// It must be associative, and it is given slices of any length that the two operands share; how a vector is cut into them
/// is not fixed, so it must treat every element alike. It runs on the thread that drives the communicator, with the engine
/// locked: it must call nothing of the communicator. A panic in it ends the communicator on all ranks with
/// [`CollectiveError::Aborted`](super::CollectiveError::Aborted) and the panic's message.
///
/// Ranks cannot compare functions: that all gave the same one is not checked. That all gave one, of a type and kind, is.
pub struct Reduction<T> {
    pub(super) function: Function,
    _of: PhantomData<fn(T)>,
}

impl<T> Clone for Reduction<T> {
    fn clone(&self) -> Reduction<T> {
        Reduction { function: self.function.clone(), _of: PhantomData }
    }
}

impl<T> std::fmt::Debug for Reduction<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.function.in_order { "Reduction(in order)" } else { "Reduction(commutative)" })
    }
}

impl<T: Element> Reduction<T> {
    /// A function that commutes: `combine(left, right)` leaves `left[i] op right[i]` in `right[i]`, as functions of MPI do.
    pub fn commutative(combine: impl Fn(&[T], &mut [T]) + Send + Sync + 'static) -> Reduction<T> {
        Reduction { function: Function::new(combine, false), _of: PhantomData }
    }

    /// A function that does not commute: results are `x0 op x1 op x2 ...` in the order of ranks, bracketed in some way.
    pub fn in_order(combine: impl Fn(&[T], &mut [T]) + Send + Sync + 'static) -> Reduction<T> {
        Reduction { function: Function::new(combine, true), _of: PhantomData }
    }
}

/// Combines bytes: `accumulator`, `incoming`, and whether the incoming operand stands on the left. Leaves the result in
/// the accumulator.
type Combine = dyn Fn(&mut [u8], &mut [u8], bool) -> Result<(), String> + Send + Sync;

/// A function without its type. Two are equal if they are one.
#[derive(Clone)]
pub(super) struct Function {
    combine: Arc<Combine>,
    pub(super) in_order: bool,
}

impl Function {
    fn new<T: Element>(combine: impl Fn(&[T], &mut [T]) + Send + Sync + 'static, in_order: bool) -> Function {
        let of_bytes = move |accumulator: &mut [u8], incoming: &mut [u8], incoming_left: bool| {
            let off = |_| format!("{} operands that are not aligned", T::DTYPE);
            let (left, right) = match incoming_left {
                true => (&*incoming, &mut *accumulator),
                false => (&*accumulator, &mut *incoming),
            };
            let left: &[T] = try_cast_slice(left).map_err(off)?;
            let right: &mut [T] = try_cast_slice_mut(right).map_err(off)?;
            // What the function has half written is thrown away with the communicator.
            catch_unwind(AssertUnwindSafe(|| combine(left, right))).map_err(|panic| {
                format!("the user's reduction of {} panicked: {}", T::DTYPE, message(&*panic))
            })?;
            if !incoming_left {
                accumulator.copy_from_slice(incoming);
            }
            Ok(())
        };
        Function { combine: Arc::new(of_bytes), in_order }
    }

    /// # Errors
    /// What a panic in the function said.
    pub(super) fn combine(
        &self,
        accumulator: &mut [u8],
        incoming: &mut [u8],
        incoming_left: bool,
    ) -> Result<(), String> {
        (self.combine)(accumulator, incoming, incoming_left)
    }
}

impl PartialEq for Function {
    fn eq(&self, other: &Function) -> bool {
        Arc::ptr_eq(&self.combine, &other.combine)
    }
}

impl Eq for Function {}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Function")
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Converts elements between floating-point types, rounding to nearest even where they become narrower.
///
/// # Errors
/// When one of them is no such type.
pub(super) fn convert(from: DType, source: &[u8], to: DType, target: &mut [u8]) -> Result<(), String> {
    use half::{bf16, f16};
    match (from, to) {
        (DType::F16, DType::F32) => each(source, target, |b| f16::from_ne_bytes(b).to_f32().to_ne_bytes()),
        (DType::Bf16, DType::F32) => each(source, target, |b| bf16::from_ne_bytes(b).to_f32().to_ne_bytes()),
        (DType::F32, DType::F16) => {
            each(source, target, |b| f16::from_f32(f32::from_ne_bytes(b)).to_ne_bytes())
        }
        (DType::F32, DType::Bf16) => {
            each(source, target, |b| bf16::from_f32(f32::from_ne_bytes(b)).to_ne_bytes())
        }
        _ => return Err(format!("{from} does not travel as {to}")),
    }
    Ok(())
}

fn each<const N: usize, const M: usize>(source: &[u8], target: &mut [u8], f: impl Fn([u8; N]) -> [u8; M]) {
    let (source, target) = (source.as_chunks::<N>().0, target.as_chunks_mut::<M>().0);
    for (from, to) in source.iter().zip(target) {
        *to = f(*from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_gets_its_operands_in_order_and_a_panic_is_an_error() {
        let first = Reduction::<u32>::in_order(|left, right| right.copy_from_slice(left));
        let (mut a, mut b) = (7u32.to_ne_bytes(), 9u32.to_ne_bytes());
        first.function.combine(&mut a, &mut b, false).unwrap();
        assert_eq!(u32::from_ne_bytes(a), 7);
        let mut b = 9u32.to_ne_bytes();
        first.function.combine(&mut a, &mut b, true).unwrap();
        assert_eq!(u32::from_ne_bytes(a), 9);
        let fails = Reduction::<u8>::commutative(|_, _| panic!("no good"));
        let said = fails.function.combine(&mut [1], &mut [2], true).unwrap_err();
        assert!(said.contains("no good"), "{said}");
        assert!(first.function == first.clone().function);
        assert!(first.function != Reduction::<u32>::in_order(|_, _| ()).function);
    }
}
