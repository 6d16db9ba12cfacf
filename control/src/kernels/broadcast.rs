//! Values of several shapes as one: a size of 1, or a missing outer dimension, repeats.

use super::contract::OpError;
use crate::tensor::Shape;

/// How `N` operands are walked together. Dimensions over which all of them go on in the same way are joined.
pub(super) struct Broadcast<const N: usize> {
    /// Shape of the result.
    pub(super) shape: Shape,
    /// Sizes of the joined dimensions, and how far each operand moves along them.
    joined: Vec<(usize, [usize; N])>,
}

impl<const N: usize> Broadcast<N> {
    /// # Errors
    /// `INVALID_ARGUMENT` when the shapes do not go together.
    pub(super) fn of(shapes: [&[usize]; N]) -> Result<Broadcast<N>, OpError> {
        let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
        let size =
            |shape: &[usize], at: usize| (at + shape.len()).checked_sub(rank).map_or(1, |at| shape[at]);
        let mut sizes = vec![1; rank];
        for (at, out) in sizes.iter_mut().enumerate() {
            for shape in shapes {
                match (*out, size(shape, at)) {
                    (_, 1) => {}
                    (1, given) => *out = given,
                    (known, given) if known == given => {}
                    _ => return Err(incompatible(&shapes)),
                }
            }
        }
        let mut joined: Vec<(usize, [usize; N])> = Vec::with_capacity(rank);
        // From the innermost outwards; `after` is how many elements of each operand the inner dimensions have.
        let mut after = [1; N];
        for at in (0..rank).rev() {
            let steps: [usize; N] =
                std::array::from_fn(|n| if size(shapes[n], at) == 1 { 0 } else { after[n] });
            for (after, shape) in after.iter_mut().zip(shapes) {
                *after *= size(shape, at);
            }
            if sizes[at] == 1 {
                continue;
            }
            match joined.last_mut() {
                Some((inner, inner_steps)) if (0..N).all(|n| steps[n] == inner_steps[n] * *inner) => {
                    *inner *= sizes[at];
                }
                _ => joined.push((sizes[at], steps)),
            }
        }
        joined.reverse();
        Ok(Broadcast { shape: Shape::new(&sizes)?, joined })
    }

    /// Walks the result in order, in runs along the innermost dimension: `run(at, operands_at, len, steps)`, where each
    /// step is 0 or 1.
    pub(super) fn runs(&self, mut run: impl FnMut(usize, [usize; N], usize, [usize; N])) {
        if self.shape.elements() == 0 {
            return;
        }
        let (len, steps) = self.joined.last().copied().unwrap_or((1, [0; N]));
        let outer = &self.joined[..self.joined.len().saturating_sub(1)];
        let mut index = vec![0; outer.len()];
        let (mut at, mut operands) = (0, [0; N]);
        loop {
            run(at, operands, len, steps);
            at += len;
            let mut dim = outer.len();
            loop {
                let Some(next) = dim.checked_sub(1) else { return };
                dim = next;
                let (size, steps) = outer[dim];
                index[dim] += 1;
                if index[dim] < size {
                    operands.iter_mut().zip(steps).for_each(|(operand, step)| *operand += step);
                    break;
                }
                index[dim] = 0;
                operands.iter_mut().zip(steps).for_each(|(operand, step)| *operand -= step * (size - 1));
            }
        }
    }
}

fn incompatible(shapes: &[&[usize]]) -> OpError {
    let shapes: Vec<String> = shapes.iter().map(|shape| format!("{shape:?}").replace(' ', "")).collect();
    OpError::invalid(format!("Incompatible shapes: {}", shapes.join(" vs. ")))
}

/// One result per element of two broadcast operands.
pub(super) fn zip<A: Copy, B: Copy, R>(
    plan: &Broadcast<2>,
    a: &[A],
    b: &[B],
    out: &mut [R],
    f: impl Fn(A, B) -> R + Copy,
) {
    plan.runs(|at, [from_a, from_b], len, steps| {
        let out = &mut out[at..at + len];
        match steps {
            [1, 1] => {
                let (a, b) = (&a[from_a..from_a + len], &b[from_b..from_b + len]);
                out.iter_mut().zip(a.iter().zip(b)).for_each(|(out, (a, b))| *out = f(*a, *b));
            }
            [1, _] => {
                let (a, b) = (&a[from_a..from_a + len], b[from_b]);
                out.iter_mut().zip(a).for_each(|(out, a)| *out = f(*a, b));
            }
            [_, 1] => {
                let (a, b) = (a[from_a], &b[from_b..from_b + len]);
                out.iter_mut().zip(b).for_each(|(out, b)| *out = f(a, *b));
            }
            _ => out.iter_mut().for_each(|out| *out = f(a[from_a], b[from_b])),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_walks_equal_plain_ones() {
        let shapes: [&[usize]; 8] = [&[], &[1], &[3], &[2, 3], &[2, 1], &[4, 2, 3], &[4, 1, 3], &[1, 2, 1]];
        for a in shapes {
            for b in shapes {
                let plan = Broadcast::of([a, b]).unwrap();
                let index = |shape: &[usize], at: &[usize]| {
                    let at = &at[at.len() - shape.len()..];
                    shape.iter().zip(at).fold(0, |sum, (size, at)| sum * size + at % size)
                };
                let mut seen = Vec::new();
                plan.runs(|_, from, len, steps| {
                    seen.extend((0..len).map(|i| [from[0] + i * steps[0], from[1] + i * steps[1]]));
                });
                let sizes = plan.shape.sizes();
                let expected: Vec<[usize; 2]> = (0..plan.shape.elements())
                    .map(|mut flat| {
                        let mut at = vec![0; sizes.len()];
                        for dim in (0..sizes.len()).rev() {
                            (at[dim], flat) = (flat % sizes[dim], flat / sizes[dim]);
                        }
                        [index(a, &at), index(b, &at)]
                    })
                    .collect();
                assert_eq!(seen, expected, "{a:?} {b:?}");
            }
        }
        let error = Broadcast::of([&[2, 3][..], &[4]]).err().unwrap();
        assert_eq!(error.message, "Incompatible shapes: [2,3] vs. [4]");
        Broadcast::of([&[0, 3][..], &[1]]).unwrap().runs(|_, _, _, _| panic!("nothing to walk"));
    }
}
