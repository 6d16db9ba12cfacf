//! One instance, carried by a group's communicator.

use ringway_collectives::engine::{CollectiveError, Communicator};
use ringway_collectives::reduce::ReduceOp;
use ringway_proto::tensorflow::DataType;

use super::{Kind, Work, failed};
use crate::kernels::OpError;
use crate::tensor::{Shape, Tensor, Writer, type_name};

/// Does something with `$elements`, the elements of `$dtype` as type `$t`.
macro_rules! for_type {
    ($dtype:expr, $t:ident => $do:expr) => {{
        match $dtype {
            DataType::DtFloat => {
                type $t = f32;
                $do
            }
            DataType::DtDouble => {
                type $t = f64;
                $do
            }
            DataType::DtHalf => {
                type $t = half::f16;
                $do
            }
            DataType::DtBfloat16 => {
                type $t = half::bf16;
                $do
            }
            DataType::DtInt8 => {
                type $t = i8;
                $do
            }
            DataType::DtInt16 => {
                type $t = i16;
                $do
            }
            DataType::DtInt32 => {
                type $t = i32;
                $do
            }
            DataType::DtInt64 => {
                type $t = i64;
                $do
            }
            DataType::DtUint8 => {
                type $t = u8;
                $do
            }
            DataType::DtUint16 => {
                type $t = u16;
                $do
            }
            DataType::DtUint32 => {
                type $t = u32;
                $do
            }
            DataType::DtUint64 => {
                type $t = u64;
                $do
            }
            DataType::DtBool => {
                type $t = ringway_dataplane::memory::Bool;
                $do
            }
            other => Err(OpError::invalid(format!("collectives carry no {}", type_name(other)))),
        }
    }};
}

/// Does one instance with the other members. Its value.
pub(super) fn carry(comm: &Communicator, work: Work) -> Result<Tensor, OpError> {
    let Work { kind, value } = work;
    let dtype = value.dtype();
    let gone = |error: CollectiveError| failed(&error);
    match kind {
        Kind::Reduce(op) => for_type!(dtype, T => {
            let mut writer = value.into_writer_or_copy()?;
            comm.all_reduce::<T>(writer.elements_mut::<T>()?, op).map_err(gone)?;
            Ok(writer.freeze())
        }),
        Kind::Gather => for_type!(dtype, T => {
            let [first, rest @ ..] = value.shape().sizes() else {
                return Err(OpError::invalid("CollectiveGather needs a value of at least one dimension"));
            };
            let long = first.saturating_mul(comm.size() as usize);
            let mut writer = Writer::new(dtype, Shape::new(&[&[long], rest].concat())?)?;
            comm.all_gather::<T>(value.as_slice::<T>()?, writer.elements_mut::<T>()?).map_err(gone)?;
            Ok(writer.freeze())
        }),
        Kind::Send | Kind::Recv => for_type!(dtype, T => {
            // Whose value it is: all learn the highest rank that sends, and all see to it that it is the only one.
            let mut source = [if kind == Kind::Send { i64::from(comm.rank()) } else { -1 }];
            comm.all_reduce(&mut source, ReduceOp::Max).map_err(gone)?;
            let root = u32::try_from(source[0]).map_err(|_| {
                OpError::internal("no member of the group sends: found no source for broadcast")
            })?;
            if kind == Kind::Send && root != comm.rank() {
                return Err(OpError::invalid("two members of the group send in one broadcast"));
            }
            let mut writer = value.into_writer_or_copy()?;
            comm.broadcast::<T>(writer.elements_mut::<T>()?, root).map_err(gone)?;
            Ok(writer.freeze())
        }),
    }
}
