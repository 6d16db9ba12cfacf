//! A tensor as the data plane carries it: a few bytes that say what it is, and its elements, which are sent from where
//! they lie.
//!
//! ```text
//! meta:  version (1) | flags: 1 dead, 2 encoded | type (u8) | rank (u8) | rank sizes (u64, little-endian)
//! bytes: the elements; or, when encoded (strings, resources, variants), a TensorProto
//! ```
//!
//! Elements are little-endian in memory, as on the wire.

use prost::Message;
use ringway_dataplane::memory::SharedBytes;
use ringway_dataplane::rendezvous::value::{Meta, Value};
use ringway_proto::tensorflow::{DataType, TensorProto};

use super::array::{Tensor, pool};
use super::error::TensorError;
use super::shape::Shape;

#[cfg(target_endian = "big")]
compile_error!("tensors travel as they lie in memory, which must be little-endian");

const VERSION: u8 = 1;
const DEAD: u8 = 1;
const ENCODED: u8 = 2;
const HEAD_BYTES: usize = 4;

/// What arrived: a value, or the word that there is none because the branch of the graph that makes it was not taken.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// The value; of no meaning when dead.
    pub tensor: Tensor,
    /// Not taken.
    pub is_dead: bool,
}

impl Tensor {
    /// As the data plane carries it. Plain elements are not copied.
    ///
    /// # Errors
    /// [`TensorError::Memory`] when there is none for what has to be encoded.
    pub fn to_value(&self, is_dead: bool) -> Result<Value, TensorError> {
        let payload = match self.shared() {
            Some(bytes) => bytes.clone(),
            None => {
                let encoded = self.to_proto().encode_to_vec();
                SharedBytes::copy_of(&encoded, pool()).map_err(|error| TensorError::Memory {
                    dtype: self.dtype(),
                    shape: self.shape().to_string(),
                    why: error.to_string(),
                })?
            }
        };
        let flags = if is_dead { DEAD } else { 0 } | if self.shared().is_none() { ENCODED } else { 0 };
        let mut meta = Vec::with_capacity(HEAD_BYTES + 8 * self.shape().rank());
        // All types are below 100, and ranks below 255.
        meta.extend([VERSION, flags, self.dtype() as u8, self.shape().rank() as u8]);
        for size in self.shape().iter() {
            meta.extend((*size as u64).to_le_bytes());
        }
        // The rank's limit is what the meta's limit is made for.
        let meta = Meta::new(&meta).ok_or(TensorError::Garbled { what: "too many dimensions" })?;
        Ok(Value::new(meta, payload))
    }

    /// From what the data plane brought. Plain elements are not copied.
    ///
    /// # Errors
    /// [`TensorError::Garbled`], and what else can be wrong with a tensor from outside.
    pub fn from_value(value: Value) -> Result<Arrived, TensorError> {
        let garbled = |what| TensorError::Garbled { what };
        let [version, flags, dtype, rank, sizes @ ..] = &*value.meta else {
            return Err(garbled("its head is short"));
        };
        if *version != VERSION || flags & !(DEAD | ENCODED) != 0 {
            return Err(garbled("another version"));
        }
        if sizes.len() != 8 * usize::from(*rank) {
            return Err(garbled("the number of its sizes"));
        }
        let number = i32::from(*dtype);
        let dtype = DataType::try_from(number).map_err(|_| TensorError::NoType { number })?;
        let is_dead = flags & DEAD != 0;
        let size = |bytes: &[u8]| bytes.try_into().map_or(-1, i64::from_le_bytes);
        let shape = Shape::from_sizes(&sizes.chunks_exact(8).map(size).collect::<Vec<_>>())?;
        let tensor = if flags & ENCODED == 0 {
            Tensor::from_bytes(dtype, shape, value.payload)?
        } else {
            let proto =
                TensorProto::decode(value.payload.bytes()).map_err(|_| garbled("its encoded elements"))?;
            let tensor = Tensor::from_proto(&proto)?;
            if tensor.dtype() != dtype || *tensor.shape() != shape {
                return Err(garbled("its elements and its head differ"));
            }
            tensor
        };
        Ok(Arrived { tensor, is_dead })
    }
}
