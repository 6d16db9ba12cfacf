//! From the types in a node's attributes to kernels of Rust types.

use std::sync::Arc;

use half::{bf16, f16};
use ringway_proto::tensorflow::attr_value::Value;
use ringway_proto::tensorflow::{AttrValue, DataType};

use super::contract::{Call, Kernel, OpError, Slot};
use super::registry::{BuildError, Builder};
use crate::core::graph::{Attrs, Node, signature};
use crate::tensor::{Tensor, Writer};

/// What a builder gives.
pub(super) type Built = Result<Box<dyn Kernel>, BuildError>;

/// Picks the Rust type that the attribute `$attr` names, and makes the kernel with it.
macro_rules! by_type {
    ($node:expr, $attr:expr, [$($d:ident $t:ty),+ $(,)?], $T:ident => $made:expr) => {{
        const KNOWN: &[ringway_proto::tensorflow::DataType] =
            &[$(ringway_proto::tensorflow::DataType::$d),+];
        match $node.attrs.dtype($attr)? {
            $(ringway_proto::tensorflow::DataType::$d => { type $T = $t; $made })+
            given => Err($crate::kernels::dispatch::unsupported($node, $attr, given, KNOWN)),
        }
    }};
}

/// As `by_type`, for the floats that are computed as they are. (Builders behind [`widened`] see no others.)
macro_rules! by_float {
    ($node:expr, $attr:expr, $T:ident => $made:expr) => {
        $crate::kernels::dispatch::by_type!($node, $attr, [DtFloat f32, DtDouble f64], $T => $made)
    };
}

/// As `by_type`, for integers.
macro_rules! by_int {
    ($node:expr, $attr:expr, $T:ident => $made:expr) => {
        $crate::kernels::dispatch::by_type!($node, $attr, [DtInt32 i32, DtInt64 i64, DtInt16 i16, DtInt8 i8, DtUint8 u8, DtUint16 u16,
            DtUint32 u32, DtUint64 u64], $T => $made)
    };
}

/// As `by_type`, for all numbers that are computed as they are.
macro_rules! by_number {
    ($node:expr, $attr:expr, $T:ident => $made:expr) => {
        $crate::kernels::dispatch::by_type!($node, $attr, [DtFloat f32, DtDouble f64, DtInt32 i32, DtInt64 i64, DtInt16 i16, DtInt8 i8,
            DtUint8 u8, DtUint16 u16, DtUint32 u32, DtUint64 u64], $T => $made)
    };
}

/// As `by_type`, for the types of indices.
macro_rules! by_index {
    ($node:expr, $attr:expr, $T:ident => $made:expr) => {
        $crate::kernels::dispatch::by_type!($node, $attr, [DtInt32 i32, DtInt64 i64], $T => $made)
    };
}

pub(super) use {by_float, by_index, by_int, by_number, by_type};

/// The error for a type that a node's operation is not computed for.
pub(super) fn unsupported(
    node: &Node,
    attr: &str,
    given: DataType,
    known: &'static [DataType],
) -> BuildError {
    let (op, node) = (node.op().to_owned(), node.name().to_owned());
    BuildError::Type { op, node, attr: attr.to_owned(), given, known }
}

struct Simple<F> {
    run: F,
    is_cheap: bool,
}

impl<F: Fn(&mut Call<'_>) -> Result<(), OpError> + Send + Sync> Kernel for Simple<F> {
    fn run(&self, call: &mut Call<'_>) -> Result<(), OpError> {
        (self.run)(call)
    }

    fn is_cheap(&self) -> bool {
        self.is_cheap
    }
}

/// A kernel that takes little time for values of common sizes.
pub(super) fn kernel(run: impl Fn(&mut Call<'_>) -> Result<(), OpError> + Send + Sync + 'static) -> Built {
    Ok(Box::new(Simple { run, is_cheap: true }))
}

/// A kernel that is worth a thread of its own.
pub(super) fn heavy(run: impl Fn(&mut Call<'_>) -> Result<(), OpError> + Send + Sync + 'static) -> Built {
    Ok(Box::new(Simple { run, is_cheap: false }))
}

/// Computes a node of 16-bit floats in `f32`: the inputs are widened, and the outputs rounded once.
struct Widened {
    inner: Box<dyn Kernel>,
    narrow: DataType,
    /// Outputs that are of the narrow type.
    outputs: Vec<bool>,
}

/// Makes the kernel of a node whose type attribute may be a 16-bit float, which `builder` does not know.
pub(super) fn widened(node: &Node, builder: Builder) -> Built {
    let half = |value: &AttrValue| match value.value {
        Some(Value::Type(number)) => {
            [DataType::DtHalf, DataType::DtBfloat16].into_iter().find(|narrow| *narrow as i32 == number)
        }
        _ => None,
    };
    let Some(narrow) = node.attrs.all().get("T").and_then(half) else { return builder(node) };
    let mut attrs = node.attrs.all().clone();
    let wide = AttrValue { value: Some(Value::Type(DataType::DtFloat as i32)) };
    for value in attrs.values_mut().filter(|value| half(value) == Some(narrow)) {
        *value = wide.clone();
    }
    let Some(signature) = signature(node.op()) else { return builder(node) };
    let mut wide = node.clone();
    wide.attrs = Attrs::new(node.name(), signature, &attrs, &Default::default())?;
    for kind in wide.input_types.iter_mut().chain(&mut wide.output_types) {
        if kind.element == narrow {
            kind.element = DataType::DtFloat;
        }
    }
    let outputs = node.output_types.iter().map(|kind| kind.element == narrow).collect();
    Ok(Box::new(Widened { inner: builder(&wide)?, narrow, outputs }))
}

impl Kernel for Widened {
    fn run(&self, call: &mut Call<'_>) -> Result<(), OpError> {
        let mut inputs = Vec::with_capacity(call.inputs());
        for index in 0..call.inputs() {
            let tensor = call.take(index)?;
            let is_narrow = tensor.dtype() == self.narrow;
            inputs.push(Slot::Tensor(if is_narrow { to_wide(&tensor)? } else { tensor }));
        }
        let mut outputs = vec![Slot::Empty; call.outputs()];
        self.inner.run(&mut Call::new(call.scope(), call.node(), &mut inputs, &mut outputs))?;
        for (index, (slot, is_narrow)) in outputs.into_iter().zip(&self.outputs).enumerate() {
            let tensor = slot.value()?;
            call.set(index, if *is_narrow { to_narrow(&tensor, self.narrow)? } else { tensor })?;
        }
        Ok(())
    }

    fn is_cheap(&self) -> bool {
        self.inner.is_cheap()
    }
}

/// The same numbers as `f32`.
pub(super) fn to_wide(tensor: &Tensor) -> Result<Tensor, OpError> {
    let mut writer = Writer::new(DataType::DtFloat, tensor.shape().clone())?;
    let out = writer.elements_mut::<f32>()?;
    if tensor.dtype() == DataType::DtHalf {
        out.iter_mut().zip(tensor.as_slice::<f16>()?).for_each(|(to, from)| *to = from.to_f32());
    } else {
        out.iter_mut().zip(tensor.as_slice::<bf16>()?).for_each(|(to, from)| *to = from.to_f32());
    }
    Ok(writer.freeze())
}

/// `f32` rounded to `narrow`, a 16-bit float.
pub(super) fn to_narrow(tensor: &Tensor, narrow: DataType) -> Result<Tensor, OpError> {
    let mut writer = Writer::new(narrow, tensor.shape().clone())?;
    let from = tensor.as_slice::<f32>()?;
    if narrow == DataType::DtHalf {
        let out = writer.elements_mut::<f16>()?;
        out.iter_mut().zip(from).for_each(|(to, from)| *to = f16::from_f32(*from));
    } else {
        let out = writer.elements_mut::<bf16>()?;
        out.iter_mut().zip(from).for_each(|(to, from)| *to = bf16::from_f32(*from));
    }
    Ok(writer.freeze())
}

/// The integers of an input of type int32 or int64, as a row.
pub(super) fn integers(tensor: &Tensor) -> Result<Vec<i64>, OpError> {
    match tensor.dtype() {
        DataType::DtInt32 => Ok(tensor.as_slice::<i32>()?.iter().map(|value| i64::from(*value)).collect()),
        _ => Ok(tensor.as_slice::<i64>()?.to_vec()),
    }
}

/// The one integer of an input of type int32 or int64. `what` is what errors call it.
pub(super) fn integer(tensor: &Tensor, what: &str) -> Result<i64, OpError> {
    match integers(tensor)?[..] {
        [one] => Ok(one),
        _ => Err(OpError::invalid(format!("{what} must be a scalar, got shape {}", tensor.shape()))),
    }
}

/// A dimension from the front, for one that may count from the back.
pub(super) fn dimension(given: i64, rank: usize, what: &str) -> Result<usize, OpError> {
    let signed = rank as i64;
    let at = if given < 0 { given.saturating_add(signed) } else { given };
    usize::try_from(at)
        .ok()
        .filter(|at| *at < rank)
        .ok_or_else(|| OpError::invalid(format!("{what} = {given} is not in the range [-{rank}, {rank})")))
}

/// Integers as a row of the index type `dtype` (int32, or else int64).
pub(super) fn index_vector(values: &[usize], dtype: DataType) -> Result<Tensor, OpError> {
    if dtype != DataType::DtInt32 {
        return Ok(Tensor::vector(&values.iter().map(|value| *value as i64).collect::<Vec<_>>())?);
    }
    let narrow = |value: &usize| {
        i32::try_from(*value).map_err(|_| {
            OpError::invalid(format!("a size of {value} does not fit int32: ask for int64 (out_type)"))
        })
    };
    Ok(Tensor::vector(&values.iter().map(narrow).collect::<Result<Vec<_>, _>>()?)?)
}

/// Text of an attribute, shared by all runs.
pub(super) fn text(node: &Node, attr: &str) -> Result<Arc<str>, BuildError> {
    Ok(node.attrs.text(attr)?.into())
}
