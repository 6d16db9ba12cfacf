//! Sizes of dimensions.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use ringway_proto::tensorflow::TensorShapeProto;
use ringway_proto::tensorflow::tensor_shape_proto::Dim;

use super::error::TensorError;

/// Most dimensions that a shape may have.
pub const RANK_LIMIT: usize = 254;
/// Bytes of the largest element, which the byte count of any shape is checked with.
const LARGEST_ELEMENT_BYTES: usize = 16;
/// So many sizes are kept without an allocation.
const INLINE: usize = 6;

/// A known shape (invariant T2). Reads as a slice of sizes, outermost first.
#[derive(Clone)]
pub struct Shape {
    elements: usize,
    sizes: Sizes,
}

#[derive(Clone)]
enum Sizes {
    Inline(u8, [usize; INLINE]),
    Shared(Arc<[usize]>),
}

impl Shape {
    /// The shape of these sizes.
    ///
    /// # Errors
    /// [`TensorError::Rank`], [`TensorError::Overflow`].
    pub fn new(sizes: &[usize]) -> Result<Shape, TensorError> {
        if sizes.len() > RANK_LIMIT {
            return Err(TensorError::Rank { rank: sizes.len(), limit: RANK_LIMIT });
        }
        let over = || TensorError::Overflow { shape: text(sizes) };
        let mut bytes = LARGEST_ELEMENT_BYTES;
        for size in sizes.iter().filter(|size| **size > 0) {
            bytes =
                bytes.checked_mul(*size).filter(|bytes| *bytes <= isize::MAX as usize).ok_or_else(over)?;
        }
        let elements = if sizes.contains(&0) { 0 } else { bytes / LARGEST_ELEMENT_BYTES };
        let kept = if sizes.len() <= INLINE {
            let mut inline = [0; INLINE];
            inline[..sizes.len()].copy_from_slice(sizes);
            Sizes::Inline(sizes.len() as u8, inline)
        } else {
            Sizes::Shared(sizes.into())
        };
        Ok(Shape { elements, sizes: kept })
    }

    /// The shape of sizes as they come from outside.
    ///
    /// # Errors
    /// As for [`Shape::new`], and [`TensorError::Negative`].
    pub fn from_sizes(sizes: &[i64]) -> Result<Shape, TensorError> {
        let mut known = Vec::with_capacity(sizes.len().min(RANK_LIMIT + 1));
        for (index, size) in sizes.iter().take(RANK_LIMIT + 1).enumerate() {
            known.push(usize::try_from(*size).map_err(|_| TensorError::Negative { index, size: *size })?);
        }
        Shape::new(&known)
    }

    /// The shape of one element alone.
    #[must_use]
    pub fn scalar() -> Shape {
        Shape { elements: 1, sizes: Sizes::Inline(0, [0; INLINE]) }
    }

    /// The shape of `len` elements in a row.
    ///
    /// # Errors
    /// [`TensorError::Overflow`].
    pub fn vector(len: usize) -> Result<Shape, TensorError> {
        Shape::new(&[len])
    }

    /// From a message; no message at all is a scalar.
    ///
    /// # Errors
    /// As for [`Shape::from_sizes`], and [`TensorError::UnknownRank`].
    pub fn from_proto(proto: Option<&TensorShapeProto>) -> Result<Shape, TensorError> {
        let Some(proto) = proto else { return Ok(Shape::scalar()) };
        if proto.unknown_rank {
            return Err(TensorError::UnknownRank);
        }
        if proto.dim.len() > RANK_LIMIT {
            return Err(TensorError::Rank { rank: proto.dim.len(), limit: RANK_LIMIT });
        }
        let sizes: Vec<i64> = proto.dim.iter().map(|dim| dim.size).collect();
        Shape::from_sizes(&sizes)
    }

    /// As a message.
    #[must_use]
    pub fn to_proto(&self) -> TensorShapeProto {
        let dim = |size: &usize| Dim { size: *size as i64, name: String::new() };
        TensorShapeProto { dim: self.iter().map(dim).collect(), unknown_rank: false }
    }

    /// Sizes, outermost first.
    #[must_use]
    pub fn sizes(&self) -> &[usize] {
        match &self.sizes {
            Sizes::Inline(len, sizes) => &sizes[..usize::from(*len)],
            Sizes::Shared(sizes) => sizes,
        }
    }

    /// Number of dimensions.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.sizes().len()
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Number of elements of the dimensions in `range`.
    ///
    /// # Panics
    /// When the range is not inside.
    #[must_use]
    pub fn product(&self, range: impl std::slice::SliceIndex<[usize], Output = [usize]>) -> usize {
        self.sizes()[range].iter().product()
    }

    /// How many elements apart neighbours along each dimension are, in row-major order.
    #[must_use]
    pub fn strides(&self) -> Vec<usize> {
        let mut strides = vec![1; self.rank()];
        for at in (1..self.rank()).rev() {
            strides[at - 1] = strides[at] * self[at].max(1);
        }
        strides
    }
}

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        self.sizes()
    }
}

impl PartialEq for Shape {
    fn eq(&self, other: &Shape) -> bool {
        self.sizes() == other.sizes()
    }
}

impl Eq for Shape {}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(self))
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(self))
    }
}

/// `[2,3]`, as users of TensorFlow know it.
fn text<T: fmt::Display>(sizes: &[T]) -> String {
    let sizes: Vec<String> = sizes.iter().map(T::to_string).collect();
    format!("[{}]", sizes.join(","))
}

/// A shape whose rank or sizes may be unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartialShape(Option<Vec<Option<usize>>>);

impl PartialShape {
    /// Nothing is known.
    #[must_use]
    pub fn unknown() -> PartialShape {
        PartialShape(None)
    }

    /// These sizes, where -1 is unknown.
    ///
    /// # Errors
    /// [`TensorError::Negative`], [`TensorError::Rank`], [`TensorError::Overflow`].
    pub fn from_sizes(sizes: &[i64]) -> Result<PartialShape, TensorError> {
        let known: Vec<i64> = sizes.iter().map(|size| if *size == -1 { 1 } else { *size }).collect();
        Shape::from_sizes(&known)?;
        Ok(PartialShape(Some(sizes.iter().map(|size| usize::try_from(*size).ok()).collect())))
    }

    /// From a message.
    ///
    /// # Errors
    /// As for [`PartialShape::from_sizes`].
    pub fn from_proto(proto: &TensorShapeProto) -> Result<PartialShape, TensorError> {
        if proto.unknown_rank {
            return Ok(PartialShape(None));
        }
        if proto.dim.len() > RANK_LIMIT {
            return Err(TensorError::Rank { rank: proto.dim.len(), limit: RANK_LIMIT });
        }
        PartialShape::from_sizes(&proto.dim.iter().map(|dim| dim.size).collect::<Vec<_>>())
    }

    /// As a message.
    #[must_use]
    pub fn to_proto(&self) -> TensorShapeProto {
        let Some(sizes) = &self.0 else {
            return TensorShapeProto { unknown_rank: true, ..Default::default() };
        };
        let dim =
            |size: &Option<usize>| Dim { size: size.map_or(-1, |size| size as i64), name: String::new() };
        TensorShapeProto { dim: sizes.iter().map(dim).collect(), unknown_rank: false }
    }

    /// The sizes, when the rank is known.
    #[must_use]
    pub fn sizes(&self) -> Option<&[Option<usize>]> {
        self.0.as_deref()
    }

    /// Whether a value of shape `full` has all that is known here.
    #[must_use]
    pub fn covers(&self, full: &[usize]) -> bool {
        self.0.as_ref().is_none_or(|sizes| {
            sizes.len() == full.len()
                && sizes.iter().zip(full).all(|(known, size)| known.is_none_or(|known| known == *size))
        })
    }

    /// What both know, or `None` when they differ.
    #[must_use]
    pub fn merge(&self, other: &PartialShape) -> Option<PartialShape> {
        let (Some(a), Some(b)) = (&self.0, &other.0) else {
            return Some(if self.0.is_some() { self.clone() } else { other.clone() });
        };
        if a.len() != b.len() {
            return None;
        }
        let both = a.iter().zip(b).map(|(a, b)| match (a, b) {
            (Some(a), Some(b)) if a != b => None,
            (a, b) => Some(a.or(*b)),
        });
        both.collect::<Option<Vec<_>>>().map(|sizes| PartialShape(Some(sizes)))
    }

    /// The shape, when all of it is known.
    #[must_use]
    pub fn full(&self) -> Option<Shape> {
        let sizes = self.0.as_ref()?.iter().copied().collect::<Option<Vec<_>>>()?;
        Shape::new(&sizes).ok()
    }
}

impl From<&Shape> for PartialShape {
    fn from(shape: &Shape) -> PartialShape {
        PartialShape(Some(shape.iter().map(|size| Some(*size)).collect()))
    }
}

impl fmt::Display for PartialShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("<unknown>"),
            Some(sizes) => {
                let size = |size: &Option<usize>| size.map_or("?".to_owned(), |size| size.to_string());
                f.write_str(&text(&sizes.iter().map(size).collect::<Vec<_>>()))
            }
        }
    }
}
