//! Diagonals of matrices.

use super::contract::{Call, OpError};
use super::dispatch::{Built, integer, integers, kernel};
use super::join::element_bytes;
use super::registry::{BuildError, Family};
use super::walk::blank;
use crate::core::graph::Node;
use crate::tensor::{Shape, Tensor};

/// Operations of this family.
pub(super) const OPS: Family = &[
    ("MatrixDiag", matrix_diag),
    ("MatrixDiagV2", matrix_diag),
    ("MatrixDiagV3", matrix_diag),
    ("MatrixDiagPart", matrix_diag_part),
    ("MatrixDiagPartV2", matrix_diag_part),
    ("MatrixDiagPartV3", matrix_diag_part),
    ("MatrixBandPart", matrix_band_part),
    ("Diag", diag),
];

/// Which of the diagonals above and below the main one are packed to the left.
#[derive(Clone, Copy)]
struct Align {
    above_left: bool,
    below_left: bool,
}

impl Align {
    fn of(node: &Node) -> Result<Align, BuildError> {
        if !node.op().ends_with("V3") {
            return Ok(Align { above_left: true, below_left: true });
        }
        match node.attrs.text("align")?.split_once('_') {
            Some((above @ ("LEFT" | "RIGHT"), below @ ("LEFT" | "RIGHT"))) => {
                Ok(Align { above_left: above == "LEFT", below_left: below == "LEFT" })
            }
            _ => Err(node.attrs.wrong("align", "is no alignment").into()),
        }
    }
}

/// Diagonals `low..=high` of matrices, packed as rows, the highest first.
struct Band {
    rows: usize,
    columns: usize,
    low: i64,
    high: i64,
    /// Length of a packed row.
    longest: usize,
    align: Align,
}

impl Band {
    /// # Errors
    /// `INVALID_ARGUMENT` when a diagonal is outside.
    fn new(rows: usize, columns: usize, [low, high]: [i64; 2], align: Align) -> Result<Band, OpError> {
        let (down, across) = (rows as i64, columns as i64);
        let inside = |k: i64| k == 0 || -down < k && k < across;
        if low > high || !inside(low) || !inside(high) {
            return Err(OpError::invalid(format!(
                "diagonals {low} to {high} are not inside a matrix of {rows} rows and {columns} columns"
            )));
        }
        let longest = (down + high.min(0)).min(across - low.max(0)).max(0) as usize;
        Ok(Band { rows, columns, low, high, longest, align })
    }

    fn count(&self) -> usize {
        (self.high - self.low + 1) as usize
    }

    /// Where the elements of a diagonal are: `run(in_packed, in_matrix)`.
    fn each(&self, mut run: impl FnMut(usize, usize)) {
        for k in self.low..=self.high {
            let (above, below) = (k.max(0) as usize, (-k).max(0) as usize);
            let len = self.rows.saturating_sub(below).min(self.columns.saturating_sub(above));
            let left = k >= 0 && self.align.above_left || k <= 0 && self.align.below_left;
            let offset = if left { 0 } else { self.longest - len };
            let first = (self.high - k) as usize * self.longest + offset;
            for at in 0..len {
                run(first + at, (at + below) * self.columns + at + above);
            }
        }
    }
}

/// The lowest and the highest diagonal that an input names; the main one where there is no such input.
fn bounds(call: &Call<'_>) -> Result<[i64; 2], OpError> {
    if call.inputs() == 1 {
        return Ok([0, 0]);
    }
    match integers(&call.tensor(1)?)?[..] {
        [one] => Ok([one, one]),
        [low, high] => Ok([low, high]),
        _ => Err(OpError::invalid("diag_index must be a scalar or a vector with one or two elements")),
    }
}

fn matrix_diag(node: &Node) -> Built {
    let align = Align::of(node)?;
    kernel(move |call| {
        let (packed, [low, high]) = (call.tensor(0)?, bounds(call)?);
        let count = high.checked_sub(low).and_then(|count| usize::try_from(count.checked_add(1)?).ok());
        let count = count.ok_or_else(|| OpError::invalid("the lowest diagonal is above the highest"))?;
        let shape = packed.shape();
        let taken = if count == 1 { 1 } else { 2 };
        if shape.rank() < taken || count > 1 && shape[shape.rank() - 2] != count {
            let message = format!("diagonal of shape {shape} does not hold {count} diagonals");
            return Err(OpError::invalid(message));
        }
        let (outer, longest) = (&shape[..shape.rank() - taken], shape[shape.rank() - 1]);
        let mut sizes = [-1, -1];
        if call.inputs() > 3 {
            sizes = [integer(&call.tensor(2)?, "num_rows")?, integer(&call.tensor(3)?, "num_cols")?];
        }
        // The smallest matrix that has these diagonals; square when neither size is given.
        let least = [-(high.min(0)), low.max(0)].map(|more| (longest as i64).saturating_add(more));
        let square = least[0].max(least[1]);
        let sizes = match sizes {
            [-1, -1] => [square, square],
            [-1, columns] => [least[0], columns],
            [rows, -1] => [rows, least[1]],
            both => both,
        };
        let matrix = Shape::from_sizes(&sizes)?;
        let band = Band::new(matrix[0], matrix[1], [low, high], align)?;
        if band.longest != longest {
            let message =
                format!("The number of rows and columns {matrix} does not fit diagonals of length {longest}");
            return Err(OpError::invalid(message));
        }
        let padding = if call.inputs() > 4 { Some(call.tensor(4)?) } else { None };
        let out_shape = Shape::new(&[outer, &matrix[..]].concat())?;
        let mut out = blank(packed.dtype(), out_shape, padding.as_ref())?;
        let size = element_bytes(&packed)?;
        let (from, to) = (packed.bytes().unwrap_or_default(), out.bytes_mut());
        for at in 0..outer.iter().product() {
            let (from, to) = (&from[at * count * longest * size..], &mut to[at * matrix.elements() * size..]);
            band.each(|packed, place| {
                to[place * size..][..size].copy_from_slice(&from[packed * size..][..size]);
            });
        }
        call.set(0, out.freeze())
    })
}

/// The shape of the batch and the sizes of the matrices of a value.
fn matrices(tensor: &Tensor) -> Result<(&[usize], [usize; 2]), OpError> {
    match tensor.shape().sizes() {
        [outer @ .., rows, columns] => Ok((outer, [*rows, *columns])),
        other => Err(OpError::invalid(format!("input must be at least 2-dim, received shape: {other:?}"))),
    }
}

fn matrix_diag_part(node: &Node) -> Built {
    let align = Align::of(node)?;
    kernel(move |call| {
        let tensor = call.tensor(0)?;
        let (outer, [rows, columns]) = matrices(&tensor)?;
        let band = Band::new(rows, columns, bounds(call)?, align)?;
        let count = band.count();
        let own = if count == 1 { vec![band.longest] } else { vec![count, band.longest] };
        let padding = if call.inputs() > 2 { Some(call.tensor(2)?) } else { None };
        let mut out = blank(tensor.dtype(), Shape::new(&[outer, &own].concat())?, padding.as_ref())?;
        let size = element_bytes(&tensor)?;
        let (from, to) = (tensor.bytes().unwrap_or_default(), out.bytes_mut());
        for at in 0..outer.iter().product() {
            let (from, to) =
                (&from[at * rows * columns * size..], &mut to[at * count * band.longest * size..]);
            band.each(|packed, place| {
                to[packed * size..][..size].copy_from_slice(&from[place * size..][..size]);
            });
        }
        call.set(0, out.freeze())
    })
}

fn matrix_band_part(_: &Node) -> Built {
    kernel(|call| {
        let tensor = call.take(0)?;
        let (below, above) =
            (integer(&call.tensor(1)?, "num_lower")?, integer(&call.tensor(2)?, "num_upper")?);
        let (_, [rows, columns]) = matrices(&tensor)?;
        let size = element_bytes(&tensor)?;
        let mut out = tensor.into_writer_or_copy()?;
        if rows * columns > 0 {
            for matrix in out.bytes_mut().chunks_exact_mut(rows * columns * size) {
                for (at, element) in matrix.chunks_exact_mut(size).enumerate() {
                    let (row, column) = ((at / columns) as i64, (at % columns) as i64);
                    let keeps = (below < 0 || row - column <= below) && (above < 0 || column - row <= above);
                    if !keeps {
                        element.fill(0);
                    }
                }
            }
        }
        call.set(0, out.freeze())
    })
}

fn diag(_: &Node) -> Built {
    kernel(|call| {
        let tensor = call.tensor(0)?;
        let shape = Shape::new(&[&tensor.shape()[..], &tensor.shape()[..]].concat())?;
        let mut out = blank(tensor.dtype(), shape, None)?;
        let size = element_bytes(&tensor)?;
        let from = tensor.bytes().unwrap_or_default();
        for at in 0..tensor.len() {
            let place = at * (tensor.len() + 1);
            out.bytes_mut()[place * size..][..size].copy_from_slice(&from[at * size..][..size]);
        }
        call.set(0, out.freeze())
    })
}
