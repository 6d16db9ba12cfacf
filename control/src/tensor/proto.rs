//! To and from `TensorProto`.

use std::sync::Arc;

use prost::Message;
use prost::bytes::Bytes;
use ringway_proto::tensorflow::{DataType, TensorProto, TensorShapeProto, VariantTensorDataProto};

use super::array::{Tensor, Writer, bounded, check_length};
use super::element::size_of;
use super::error::TensorError;
use super::handle::{ResourceHandle, TensorList, Variant};
use super::shape::{PartialShape, Shape};

/// Bytes that one message may spread a few given elements over. Beyond that the elements must be in the message.
pub const SPREAD_BYTES_LIMIT: usize = 1 << 30;
/// How deep variants may hold variants.
const NESTING_LIMIT: usize = 8;
/// TensorFlow's name for a list of tensors as a variant.
const LIST_TYPE: &str = "tensorflow::TensorList";

impl Tensor {
    /// From a message.
    ///
    /// # Errors
    /// [`TensorError`]: an absurd shape, a length that does not fit it, a type that is none, no memory.
    pub fn from_proto(proto: &TensorProto) -> Result<Tensor, TensorError> {
        from_proto(proto, NESTING_LIMIT)
    }

    /// As a message. Plain elements are not copied: they are in `tensor_content`.
    #[must_use]
    pub fn to_proto(&self) -> TensorProto {
        let mut proto = TensorProto {
            dtype: self.dtype() as i32,
            tensor_shape: Some(self.shape().to_proto()),
            ..Default::default()
        };
        if let Some(bytes) = self.shared() {
            proto.tensor_content = Bytes::from_owner(bytes.clone());
        } else if let Ok(strings) = self.strings() {
            proto.string_val = strings.iter().map(|string| string.to_vec()).collect();
        } else if let Ok(handles) = self.handles() {
            proto.resource_handle_val = handles.iter().map(ResourceHandle::to_proto).collect();
        } else if let Ok(variants) = self.variants() {
            proto.variant_val = variants.iter().map(variant_to_proto).collect();
        }
        proto
    }
}

fn from_proto(proto: &TensorProto, nesting: usize) -> Result<Tensor, TensorError> {
    let no_type = TensorError::NoType { number: proto.dtype };
    let dtype = DataType::try_from(proto.dtype).map_err(|_| no_type.clone())?;
    let shape = Shape::from_proto(proto.tensor_shape.as_ref())?;
    match dtype {
        DataType::DtString => {
            let strings: Vec<Bytes> = proto.string_val.iter().map(|s| Bytes::copy_from_slice(s)).collect();
            let strings = spread(dtype, &shape, strings, Some(Bytes::new()))?;
            Tensor::from_strings(shape, strings)
        }
        DataType::DtResource => {
            let handles: Result<Vec<_>, _> =
                proto.resource_handle_val.iter().map(ResourceHandle::from_proto).collect();
            let handles = spread(dtype, &shape, handles?, None)?;
            Tensor::from_handles(shape, handles)
        }
        DataType::DtVariant => {
            let variants: Result<Vec<_>, _> =
                proto.variant_val.iter().map(|variant| variant_from_proto(variant, nesting)).collect();
            let variants = spread(dtype, &shape, variants?, Some(Variant::Empty))?;
            Tensor::from_variants(shape, variants)
        }
        _ => {
            let size = size_of(dtype).ok_or(no_type)?;
            if proto.tensor_content.is_empty() {
                return from_fields(proto, dtype, shape);
            }
            let content = &proto.tensor_content;
            check_length(dtype, &shape, "bytes", shape.elements() * size, content.len())?;
            let mut writer = Writer::new(dtype, shape)?;
            writer.bytes_mut().copy_from_slice(content);
            Ok(writer.freeze())
        }
    }
}

/// One value per element: those given, and then the last of them again and again; `none` when none is given.
fn spread<T: Clone>(
    dtype: DataType,
    shape: &Shape,
    mut values: Vec<T>,
    none: Option<T>,
) -> Result<Vec<T>, TensorError> {
    let len = bounded::<T>(dtype, shape)?;
    let wrong = |given| check_length(dtype, shape, "elements", len, given);
    if values.len() > len {
        wrong(values.len())?;
    }
    check_spread(dtype, shape, (len - values.len()).saturating_mul(std::mem::size_of::<T>()))?;
    match values.last().cloned().or(none) {
        Some(last) => values.resize(len, last),
        None => wrong(0)?,
    }
    Ok(values)
}

fn check_spread(dtype: DataType, shape: &Shape, bytes: usize) -> Result<(), TensorError> {
    if bytes <= SPREAD_BYTES_LIMIT {
        return Ok(());
    }
    let why =
        format!("{bytes} bytes without a value of their own are over the limit of {SPREAD_BYTES_LIMIT}");
    Err(TensorError::Memory { dtype, shape: shape.to_string(), why })
}

/// Elements from the field of their type.
fn from_fields(proto: &TensorProto, dtype: DataType, shape: Shape) -> Result<Tensor, TensorError> {
    use DataType as D;
    let ints = &proto.int_val;
    match dtype {
        D::DtFloat => given(dtype, shape, &proto.float_val),
        D::DtDouble => given(dtype, shape, &proto.double_val),
        D::DtInt32 | D::DtQint32 => given(dtype, shape, ints),
        D::DtInt64 => given(dtype, shape, &proto.int64_val),
        D::DtUint32 => given(dtype, shape, &proto.uint32_val),
        D::DtUint64 => given(dtype, shape, &proto.uint64_val),
        D::DtBool => given(dtype, shape, &proto.bool_val.iter().map(|v| u8::from(*v)).collect::<Vec<_>>()),
        D::DtInt16 | D::DtQint16 => given(dtype, shape, &narrow::<i16>(dtype, ints)?),
        D::DtInt8 | D::DtQint8 | D::DtInt4 | D::DtInt2 => given(dtype, shape, &narrow::<i8>(dtype, ints)?),
        D::DtUint16 | D::DtQuint16 => given(dtype, shape, &narrow::<u16>(dtype, ints)?),
        D::DtUint8 | D::DtQuint8 | D::DtUint4 | D::DtUint2 => {
            given(dtype, shape, &narrow::<u8>(dtype, ints)?)
        }
        // The bits of the 16-bit floats, in the low half of an int each.
        D::DtHalf | D::DtBfloat16 => given(dtype, shape, &narrow::<u16>(dtype, &proto.half_val)?),
        D::DtComplex64 => given(dtype, shape, &pairs(dtype, &proto.scomplex_val)?),
        D::DtComplex128 => given(dtype, shape, &pairs(dtype, &proto.dcomplex_val)?),
        _ => given(dtype, shape, &proto.float8_val[..]),
    }
}

fn narrow<T: TryFrom<i32>>(dtype: DataType, ints: &[i32]) -> Result<Vec<T>, TensorError> {
    let one = |(index, value): (usize, &i32)| {
        T::try_from(*value).map_err(|_| TensorError::Element { dtype, index, value: i64::from(*value) })
    };
    ints.iter().enumerate().map(one).collect()
}

/// Real and imaginary parts.
fn pairs<T: Copy>(dtype: DataType, values: &[T]) -> Result<Vec<[T; 2]>, TensorError> {
    if values.len() % 2 == 1 {
        let half = Shape::vector(values.len() / 2)?;
        check_length(dtype, &half, "parts", values.len() - 1, values.len())?;
    }
    Ok(values.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect())
}

/// Elements as they lie in memory: those given, and then the last of them again and again; zero when none is given.
fn given<T: bytemuck::Pod>(dtype: DataType, shape: Shape, values: &[T]) -> Result<Tensor, TensorError> {
    let len = shape.elements();
    if values.len() > len {
        check_length(dtype, &shape, "elements", len, values.len())?;
    }
    check_spread(dtype, &shape, (len - values.len()).saturating_mul(std::mem::size_of::<T>()))?;
    let mut writer = Writer::new(dtype, shape)?;
    let out: &mut [T] = bytemuck::cast_slice_mut(writer.bytes_mut());
    out[..values.len()].copy_from_slice(values);
    out[values.len()..].fill(values.last().copied().unwrap_or_else(T::zeroed));
    Ok(writer.freeze())
}

fn variant_to_proto(variant: &Variant) -> VariantTensorDataProto {
    match variant {
        Variant::Empty => VariantTensorDataProto::default(),
        Variant::Foreign(proto) => VariantTensorDataProto::clone(proto),
        Variant::List(list) => {
            let mut metadata = Vec::new();
            let unset: Vec<u64> =
                list.items.iter().zip(0..).filter(|(item, _)| item.is_none()).map(|(_, at)| at).collect();
            put_varint(&mut metadata, unset.len() as u64);
            unset.iter().for_each(|at| put_varint(&mut metadata, *at));
            put_varint(&mut metadata, list.dtype as u64);
            // -1 as TensorFlow writes it: as an int of 64 bits.
            put_varint(&mut metadata, list.limit.map_or(u64::MAX, |limit| limit as u64));
            list.shape.to_proto().encode(&mut metadata).ok();
            let tensors = list.items.iter().flatten().map(Tensor::to_proto).collect();
            VariantTensorDataProto { type_name: LIST_TYPE.to_owned(), metadata, tensors }
        }
    }
}

fn put_varint(out: &mut Vec<u8>, value: u64) {
    prost::encoding::encode_varint(value, out);
}

fn variant_from_proto(proto: &VariantTensorDataProto, nesting: usize) -> Result<Variant, TensorError> {
    let garbled = TensorError::Garbled { what: "its list of tensors" };
    if proto.type_name.is_empty() {
        return Ok(Variant::Empty);
    }
    if proto.type_name != LIST_TYPE {
        return Ok(Variant::Foreign(Arc::new(proto.clone())));
    }
    let nesting = nesting.checked_sub(1).ok_or(TensorError::Garbled { what: "lists in lists in lists" })?;
    let mut metadata = proto.metadata.as_slice();
    let mut next = || prost::encoding::decode_varint(&mut metadata).map_err(|_| garbled.clone());
    let unset = next()?;
    if unset > proto.metadata.len() as u64 {
        return Err(garbled);
    }
    let unset = (0..unset).map(|_| next()).collect::<Result<std::collections::HashSet<_>, _>>()?;
    let (dtype, limit) = (next()?, next()?);
    let number = i32::try_from(dtype).unwrap_or(-1);
    let dtype = DataType::try_from(number).map_err(|_| TensorError::NoType { number })?;
    let shape = TensorShapeProto::decode(metadata).map_err(|_| garbled.clone())?;
    let mut given = proto.tensors.iter();
    let mut items = Vec::with_capacity(unset.len() + proto.tensors.len());
    for at in 0..unset.len() + proto.tensors.len() {
        if unset.contains(&(at as u64)) {
            items.push(None);
        } else {
            items.push(Some(from_proto(given.next().ok_or_else(|| garbled.clone())?, nesting)?));
        }
    }
    let (shape, limit) = (PartialShape::from_proto(&shape)?, usize::try_from(limit as i64).ok());
    Ok(Variant::List(Arc::new(TensorList { dtype, shape, limit, items })))
}
