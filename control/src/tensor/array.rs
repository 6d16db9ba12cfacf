//! Tensors: immutable, cheap to clone, over memory that transports send from in place.

use std::fmt;
use std::sync::{Arc, OnceLock};

use prost::bytes::Bytes;
use ringway_dataplane::memory::room::room;
use ringway_dataplane::memory::{AllocError, Pool, SharedBytes, UniqueBytes};
use ringway_proto::tensorflow::DataType;

use super::element::{Scalar, size_of};
use super::error::TensorError;
use super::handle::{ResourceHandle, Variant};
use super::shape::Shape;

/// Bytes that one tensor may have, whatever the machine has; a size from outside that is past it is refused unseen. Below,
/// it is the memory that is left that counts.
pub const TENSOR_BYTES_LIMIT: usize = 1 << 44;

/// The memory that all tensors of this process are kept in, so that blocks that transports know are used again.
#[must_use]
pub fn pool() -> &'static Pool {
    static POOL: OnceLock<Pool> = OnceLock::new();
    POOL.get_or_init(Pool::default)
}

/// A value (invariants T1 and T3).
#[derive(Clone)]
pub struct Tensor {
    dtype: DataType,
    shape: Shape,
    data: Data,
}

/// What the elements are kept in.
#[derive(Clone)]
enum Data {
    /// Elements of one size, in row-major order.
    Plain(SharedBytes),
    Strings(Arc<[Bytes]>),
    Handles(Arc<[ResourceHandle]>),
    Variants(Arc<[Variant]>),
}

impl Tensor {
    /// A copy of `values`.
    ///
    /// # Errors
    /// [`TensorError::Length`] when they are not as many as `shape` says; [`TensorError::Memory`].
    pub fn new<T: Scalar>(shape: Shape, values: &[T]) -> Result<Tensor, TensorError> {
        check_length(T::DTYPE, &shape, "elements", shape.elements(), values.len())?;
        Tensor::build(shape, |elements: &mut [T]| elements.copy_from_slice(values))
    }

    /// One element.
    ///
    /// # Errors
    /// [`TensorError::Memory`].
    pub fn scalar<T: Scalar>(value: T) -> Result<Tensor, TensorError> {
        Tensor::new(Shape::scalar(), &[value])
    }

    /// A row of elements.
    ///
    /// # Errors
    /// [`TensorError::Memory`].
    pub fn vector<T: Scalar>(values: &[T]) -> Result<Tensor, TensorError> {
        Tensor::new(Shape::vector(values.len())?, values)
    }

    /// A tensor whose elements `fill` writes; before that they hold anything.
    ///
    /// # Errors
    /// [`TensorError::Memory`].
    pub fn build<T: Scalar>(shape: Shape, fill: impl FnOnce(&mut [T])) -> Result<Tensor, TensorError> {
        let mut writer = Writer::new(T::DTYPE, shape)?;
        fill(writer.elements_mut::<T>()?);
        Ok(writer.freeze())
    }

    /// All zero; empty strings, and variants that hold nothing.
    ///
    /// # Errors
    /// [`TensorError::Memory`]; [`TensorError::NoType`] for resources, which have no zero.
    pub fn zeros(dtype: DataType, shape: Shape) -> Result<Tensor, TensorError> {
        match dtype {
            DataType::DtString => {
                let strings = vec![Bytes::new(); bounded::<Bytes>(dtype, &shape)?];
                Tensor::from_strings(shape, strings)
            }
            DataType::DtVariant => {
                let variants = vec![Variant::Empty; bounded::<Variant>(dtype, &shape)?];
                Tensor::from_variants(shape, variants)
            }
            _ => {
                let mut writer = Writer::new(dtype, shape)?;
                writer.bytes_mut().fill(0);
                Ok(writer.freeze())
            }
        }
    }

    /// A tensor over these bytes, which are copied only where they are not aligned for the type (T1).
    ///
    /// # Errors
    /// [`TensorError::Length`], [`TensorError::NoType`] for types without a size, [`TensorError::Memory`].
    pub fn from_bytes(dtype: DataType, shape: Shape, bytes: SharedBytes) -> Result<Tensor, TensorError> {
        let size = size_of(dtype).ok_or(TensorError::NoType { number: dtype as i32 })?;
        check_length(dtype, &shape, "bytes", shape.elements() * size, bytes.len())?;
        if !bytes.as_ptr().addr().is_multiple_of(size) {
            let mut writer = Writer::new(dtype, shape)?;
            writer.bytes_mut().copy_from_slice(&bytes);
            return Ok(writer.freeze());
        }
        Ok(Tensor { dtype, shape, data: Data::Plain(bytes) })
    }

    /// Strings of bytes.
    ///
    /// # Errors
    /// [`TensorError::Length`].
    pub fn from_strings(shape: Shape, strings: Vec<Bytes>) -> Result<Tensor, TensorError> {
        let dtype = DataType::DtString;
        check_length(dtype, &shape, "elements", shape.elements(), strings.len())?;
        Ok(Tensor { dtype, shape, data: Data::Strings(strings.into()) })
    }

    /// Handles of resources.
    ///
    /// # Errors
    /// [`TensorError::Length`].
    pub fn from_handles(shape: Shape, handles: Vec<ResourceHandle>) -> Result<Tensor, TensorError> {
        let dtype = DataType::DtResource;
        check_length(dtype, &shape, "elements", shape.elements(), handles.len())?;
        Ok(Tensor { dtype, shape, data: Data::Handles(handles.into()) })
    }

    /// One handle.
    #[must_use]
    pub fn handle(handle: ResourceHandle) -> Tensor {
        let data = Data::Handles(Arc::new([handle]));
        Tensor { dtype: DataType::DtResource, shape: Shape::scalar(), data }
    }

    /// Elements of type variant.
    ///
    /// # Errors
    /// [`TensorError::Length`].
    pub fn from_variants(shape: Shape, variants: Vec<Variant>) -> Result<Tensor, TensorError> {
        let dtype = DataType::DtVariant;
        check_length(dtype, &shape, "elements", shape.elements(), variants.len())?;
        Ok(Tensor { dtype, shape, data: Data::Variants(variants.into()) })
    }

    /// One element of type variant.
    #[must_use]
    pub fn variant(variant: Variant) -> Tensor {
        let data = Data::Variants(Arc::new([variant]));
        Tensor { dtype: DataType::DtVariant, shape: Shape::scalar(), data }
    }

    /// Type of the elements.
    #[must_use]
    pub fn dtype(&self) -> DataType {
        self.dtype
    }

    /// Sizes of the dimensions.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.elements()
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements.
    ///
    /// # Errors
    /// [`TensorError::Type`] when they are of another type.
    pub fn as_slice<T: Scalar>(&self) -> Result<&[T], TensorError> {
        match &self.data {
            // T1: the length is a whole number of elements, and the address fits.
            Data::Plain(bytes) if self.dtype == T::DTYPE => Ok(bytemuck::cast_slice(bytes.bytes())),
            _ => Err(self.type_error(T::DTYPE)),
        }
    }

    /// The one element of a tensor that has one.
    ///
    /// # Errors
    /// [`TensorError::Type`], and [`TensorError::Length`] when there are more or none.
    pub fn single<T: Scalar>(&self) -> Result<T, TensorError> {
        match self.as_slice::<T>()? {
            [one] => Ok(*one),
            all => Err(length_error(self.dtype, &Shape::scalar(), "elements", 1, all.len())),
        }
    }

    /// The bytes of the elements, of any type whose elements have one size. `None` for strings, resources and variants.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        self.shared().map(SharedBytes::bytes)
    }

    /// As [`Tensor::bytes`], to be shared.
    #[must_use]
    pub fn shared(&self) -> Option<&SharedBytes> {
        match &self.data {
            Data::Plain(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The strings.
    ///
    /// # Errors
    /// [`TensorError::Type`].
    pub fn strings(&self) -> Result<&[Bytes], TensorError> {
        match &self.data {
            Data::Strings(strings) => Ok(strings),
            _ => Err(self.type_error(DataType::DtString)),
        }
    }

    /// The handles.
    ///
    /// # Errors
    /// [`TensorError::Type`].
    pub fn handles(&self) -> Result<&[ResourceHandle], TensorError> {
        match &self.data {
            Data::Handles(handles) => Ok(handles),
            _ => Err(self.type_error(DataType::DtResource)),
        }
    }

    /// The variants.
    ///
    /// # Errors
    /// [`TensorError::Type`].
    pub fn variants(&self) -> Result<&[Variant], TensorError> {
        match &self.data {
            Data::Variants(variants) => Ok(variants),
            _ => Err(self.type_error(DataType::DtVariant)),
        }
    }

    /// The same elements in another shape.
    ///
    /// # Errors
    /// [`TensorError::Length`] when it is of another number of elements.
    pub fn with_shape(mut self, shape: Shape) -> Result<Tensor, TensorError> {
        check_length(self.dtype, &shape, "elements", shape.elements(), self.len())?;
        self.shape = shape;
        Ok(self)
    }

    /// The same bytes as elements of another type.
    ///
    /// # Errors
    /// As for [`Tensor::from_bytes`].
    pub fn with_type(self, dtype: DataType, shape: Shape) -> Result<Tensor, TensorError> {
        match self.data {
            Data::Plain(bytes) => Tensor::from_bytes(dtype, shape, bytes),
            _ => Err(TensorError::Type { expected: dtype, given: self.dtype }),
        }
    }

    /// The elements `at..at + len` in row-major order, without a copy where the alignment allows it.
    ///
    /// # Errors
    /// [`TensorError::Length`] when they are not as many as `shape` says, or not inside; [`TensorError::Memory`].
    pub fn part(&self, at: usize, shape: Shape) -> Result<Tensor, TensorError> {
        let len = shape.elements();
        let Some(end) = at.checked_add(len).filter(|end| *end <= self.len()) else {
            return Err(length_error(self.dtype, &shape, "elements", len, self.len().saturating_sub(at)));
        };
        match &self.data {
            Data::Plain(bytes) => {
                let size = size_of(self.dtype).ok_or(TensorError::NoType { number: self.dtype as i32 })?;
                Tensor::from_bytes(self.dtype, shape, bytes.slice(at * size..end * size))
            }
            Data::Strings(strings) => Tensor::from_strings(shape, strings[at..end].to_vec()),
            Data::Handles(handles) => Tensor::from_handles(shape, handles[at..end].to_vec()),
            Data::Variants(variants) => Tensor::from_variants(shape, variants[at..end].to_vec()),
        }
    }

    /// The tensor to write in place, when nobody else sees its memory (T3).
    ///
    /// # Errors
    /// The tensor as it was, when somebody does, or it has no plain elements.
    pub fn into_writer(self) -> Result<Writer, Tensor> {
        let Tensor { dtype, shape, data } = self;
        match data {
            Data::Plain(bytes) => match bytes.try_into_mut() {
                Ok(bytes) => Ok(Writer { dtype, shape, bytes }),
                Err(bytes) => Err(Tensor { dtype, shape, data: Data::Plain(bytes) }),
            },
            data => Err(Tensor { dtype, shape, data }),
        }
    }

    /// A writer that begins with the elements of this tensor: in place where it can be, else over a copy.
    ///
    /// # Errors
    /// [`TensorError::Memory`]; [`TensorError::NoType`] when it has no plain elements.
    pub fn into_writer_or_copy(self) -> Result<Writer, TensorError> {
        self.into_writer().or_else(|tensor| {
            let mut writer = Writer::new(tensor.dtype, tensor.shape.clone())?;
            writer.bytes_mut().copy_from_slice(tensor.bytes().unwrap_or_default());
            Ok(writer)
        })
    }

    /// The error for reading it as `expected`.
    fn type_error(&self, expected: DataType) -> TensorError {
        TensorError::Type { expected, given: self.dtype }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {})", super::element::type_name(self.dtype), self.shape)
    }
}

/// A tensor that nobody else sees yet, to write; then [`freeze`](Writer::freeze) it.
#[derive(Debug)]
pub struct Writer {
    dtype: DataType,
    shape: Shape,
    bytes: UniqueBytes,
}

impl Writer {
    /// A tensor whose elements hold anything.
    ///
    /// # Errors
    /// [`TensorError::Memory`], also past [`TENSOR_BYTES_LIMIT`]; [`TensorError::NoType`] for types without a size.
    pub fn new(dtype: DataType, shape: Shape) -> Result<Writer, TensorError> {
        let size = size_of(dtype).ok_or(TensorError::NoType { number: dtype as i32 })?;
        // T2: no overflow.
        let bytes = shape.elements() * size;
        let refused = |why: String| TensorError::Memory { dtype, shape: shape.to_string(), why };
        if bytes > TENSOR_BYTES_LIMIT {
            return Err(refused(format!(
                "{bytes} bytes are over the limit of {TENSOR_BYTES_LIMIT} for a tensor"
            )));
        }
        let bytes = UniqueBytes::new(bytes, pool()).map_err(|error| refused(error.to_string()))?;
        Ok(Writer { dtype, shape, bytes })
    }

    /// Sizes of the dimensions.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The elements.
    ///
    /// # Errors
    /// [`TensorError::Type`] when they are of another type.
    pub fn elements_mut<T: Scalar>(&mut self) -> Result<&mut [T], TensorError> {
        if self.dtype != T::DTYPE {
            return Err(TensorError::Type { expected: T::DTYPE, given: self.dtype });
        }
        // T1, as above.
        Ok(bytemuck::cast_slice_mut(&mut self.bytes))
    }

    /// The bytes of the elements.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The tensor, from now on read-only.
    #[must_use]
    pub fn freeze(self) -> Tensor {
        Tensor { dtype: self.dtype, shape: self.shape, data: Data::Plain(self.bytes.freeze()) }
    }
}

/// Number of elements, when so many `T` are below the limit, and there is memory for them.
pub(super) fn bounded<T>(dtype: DataType, shape: &Shape) -> Result<usize, TensorError> {
    let bytes = shape.elements().saturating_mul(std::mem::size_of::<T>());
    if bytes > TENSOR_BYTES_LIMIT {
        let why = format!("{bytes} bytes are over the limit of {TENSOR_BYTES_LIMIT} for a tensor");
        return Err(TensorError::Memory { dtype, shape: shape.to_string(), why });
    }
    let refused =
        |why: AllocError| TensorError::Memory { dtype, shape: shape.to_string(), why: why.to_string() };
    drop(room(bytes).map_err(refused)?);
    Ok(shape.elements())
}

fn length_error(
    dtype: DataType,
    shape: &Shape,
    what: &'static str,
    expected: usize,
    given: usize,
) -> TensorError {
    TensorError::Length { dtype, shape: shape.to_string(), what, expected, given }
}

pub(super) fn check_length(
    dtype: DataType,
    shape: &Shape,
    what: &'static str,
    expected: usize,
    given: usize,
) -> Result<(), TensorError> {
    if expected == given { Ok(()) } else { Err(length_error(dtype, shape, what, expected, given)) }
}
