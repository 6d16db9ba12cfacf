//! Moving elements of any one size by index: slices, transposes, pads and gathers are all this.

use ringway_proto::tensorflow::DataType;

use super::contract::OpError;
use super::join::element_bytes;
use crate::tensor::{Shape, Tensor, Writer};

/// Where the elements of a result come from, in its row-major order: dimension by dimension, a start and a step each.
pub(super) struct Walk {
    /// Shape of the result.
    pub(super) shape: Shape,
    /// The element that the first one is.
    pub(super) start: isize,
    /// How far each dimension moves.
    pub(super) steps: Vec<isize>,
}

impl Walk {
    /// Calls `run(at, from, len, step)` for runs along the innermost dimension.
    pub(super) fn runs(&self, mut run: impl FnMut(usize, isize, usize, isize)) {
        if self.shape.elements() == 0 {
            return;
        }
        // Dimensions that go on where the next inner one ends are one.
        let mut joined: Vec<(usize, isize)> = Vec::with_capacity(self.steps.len());
        for (size, step) in self.shape.iter().zip(&self.steps).rev() {
            if *size == 1 {
                continue;
            }
            match joined.last_mut() {
                Some((inner, inner_step)) if *step == *inner_step * *inner as isize => *inner *= size,
                _ => joined.push((*size, *step)),
            }
        }
        let (len, step) = joined.first().copied().unwrap_or((1, 1));
        let outer = joined.get(1..).unwrap_or_default();
        let mut index = vec![0; outer.len()];
        let (mut at, mut from) = (0, self.start);
        loop {
            run(at, from, len, step);
            at += len;
            let mut dim = 0;
            loop {
                let Some((size, step)) = outer.get(dim).copied() else { return };
                index[dim] += 1;
                from += step;
                if index[dim] < size {
                    break;
                }
                from -= step * size as isize;
                index[dim] = 0;
                dim += 1;
            }
        }
    }

    /// The elements of `tensor` that the walk passes.
    ///
    /// # Errors
    /// No memory, or a type that has no elements of one size.
    pub(super) fn read(&self, tensor: &Tensor) -> Result<Tensor, OpError> {
        if let Ok(strings) = tensor.strings() {
            let mut all = Vec::with_capacity(self.shape.elements());
            self.runs(|_, from, len, step| {
                all.extend((0..len as isize).map(|i| strings[(from + i * step) as usize].clone()));
            });
            return Ok(Tensor::from_strings(self.shape.clone(), all)?);
        }
        let size = element_bytes(tensor)?;
        let mut out = Writer::new(tensor.dtype(), self.shape.clone())?;
        let from = tensor.bytes().unwrap_or_default();
        match size {
            1 => self.copy::<u8>(from, out.bytes_mut()),
            2 => self.copy::<u16>(from, out.bytes_mut()),
            4 => self.copy::<u32>(from, out.bytes_mut()),
            8 => self.copy::<u64>(from, out.bytes_mut()),
            _ => self.copy::<[u64; 2]>(from, out.bytes_mut()),
        }
        Ok(out.freeze())
    }

    fn copy<W: bytemuck::Pod>(&self, from: &[u8], to: &mut [u8]) {
        let (from, to): (&[W], &mut [W]) = (bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to));
        self.runs(|at, first, len, step| {
            let to = &mut to[at..at + len];
            if step == 1 {
                to.copy_from_slice(&from[first as usize..][..len]);
            } else {
                to.iter_mut().zip(0..).for_each(|(to, i)| *to = from[(first + i * step) as usize]);
            }
        });
    }

    /// Puts the elements of `part`, which is of this walk's shape, where the walk passes in `whole`.
    pub(super) fn write(&self, part: &Tensor, whole: &mut Writer) -> Result<(), OpError> {
        let size = element_bytes(part)?;
        let (from, to) = (part.bytes().unwrap_or_default(), whole.bytes_mut());
        self.runs(|at, first, len, step| {
            for i in 0..len {
                let to_at = (first + i as isize * step) as usize * size;
                to[to_at..to_at + size].copy_from_slice(&from[(at + i) * size..][..size]);
            }
        });
        Ok(())
    }
}

/// Steps of whole dimensions, as signed numbers.
pub(super) fn steps(shape: &Shape) -> Vec<isize> {
    shape.strides().into_iter().map(|stride| stride as isize).collect()
}

/// Elements all equal to the one in `value`, or zero.
pub(super) fn blank(dtype: DataType, shape: Shape, value: Option<&Tensor>) -> Result<Writer, OpError> {
    let tensor = match value {
        Some(value) => super::shapes::filled(value, shape)?,
        None => Tensor::zeros(dtype, shape)?,
    };
    Ok(tensor.into_writer_or_copy()?)
}
