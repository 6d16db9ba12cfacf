//! What is wrong with a value.

use ringway_proto::tensorflow::DataType;
use ringway_proto::tensorflow::error::Code;

use super::element::type_name;

/// Why a tensor cannot be made or read as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// A size below zero.
    #[error("Dimension {index} of the shape is {size}: a size must be at least 0")]
    Negative {
        /// Which dimension.
        index: usize,
        /// Its size.
        size: i64,
    },
    /// The rank is not known where it must be.
    #[error("a tensor's shape must be known, and this one has an unknown rank")]
    UnknownRank,
    /// Too many dimensions.
    #[error("Shape has {rank} dimensions, over the limit of {limit}")]
    Rank {
        /// How many.
        rank: usize,
        /// Most that there may be.
        limit: usize,
    },
    /// So many elements that their bytes overflow.
    #[error("Shape {shape} results in overflow when computing number of elements")]
    Overflow {
        /// The sizes, as text.
        shape: String,
    },
    /// The bytes or elements given are not what the shape needs.
    #[error("a {} tensor of shape {shape} needs {expected} {what}, and was given {given}", type_name(*.dtype))]
    Length {
        /// Type of the elements.
        dtype: DataType,
        /// The shape, as text.
        shape: String,
        /// What is counted.
        what: &'static str,
        /// How many there must be.
        expected: usize,
        /// How many there are.
        given: usize,
    },
    /// An element that its type cannot hold.
    #[error("element {index} of a {} tensor is {value}, which the type does not hold", type_name(*.dtype))]
    Element {
        /// Type of the elements.
        dtype: DataType,
        /// Which element.
        index: usize,
        /// It.
        value: i64,
    },
    /// Read as a type that it is not of.
    #[error("expected a tensor of {}, and this one is of {}", type_name(*.expected), type_name(*.given))]
    Type {
        /// Type asked for.
        expected: DataType,
        /// Type that it is of.
        given: DataType,
    },
    /// No type, or one that values cannot have.
    #[error("{number} is no type that a tensor can have")]
    NoType {
        /// The number on the wire.
        number: i32,
    },
    /// Over a limit, or no memory.
    #[error("OOM when allocating tensor with shape{shape} and type {}: {why}", type_name(*.dtype))]
    Memory {
        /// Type of the elements.
        dtype: DataType,
        /// The shape, as text.
        shape: String,
        /// The limit, or what the system said.
        why: String,
    },
    /// Bytes of the data plane that are no tensor.
    #[error("what arrived over the data plane is no tensor ({what}): the two tasks run different versions?")]
    Garbled {
        /// What is wrong with it.
        what: &'static str,
    },
}

impl TensorError {
    /// The status code that an operation fails with.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            TensorError::Memory { .. } => Code::ResourceExhausted,
            TensorError::Garbled { .. } => Code::DataLoss,
            _ => Code::InvalidArgument,
        }
    }
}
