//! Values: what flows along the edges of a graph.
//!
//! - [`shape`]: sizes of dimensions, checked once. [`element`]: the types of elements.
//! - [`mod@array`]: [`Tensor`], immutable and cheap to clone, and [`Writer`], which makes one.
//! - [`handle`]: names of resources, and elements of type variant.
//! - [`proto`]: to and from `TensorProto`. [`travel`]: to and from what the data plane carries.
//!
//! Invariants (cited by the tests):
//! - **T1** A tensor holds exactly as many elements as its shape says, and their bytes are aligned for their type.
//! - **T2** The element count of a [`Shape`] and its byte count for any type fit an `isize`, even without its zeros.
//! - **T3** A tensor that a second owner sees is never written.
//! - **T4** Nothing from outside makes a conversion panic, or take memory past the named limits.
#![forbid(unsafe_code)]

pub mod array;
pub mod element;
pub mod error;
pub mod handle;
pub mod proto;
pub mod shape;
pub mod travel;

pub use array::{Tensor, Writer};
pub use element::{Scalar, size_of, type_name};
pub use error::TensorError;
pub use handle::{ResourceHandle, TensorList, Variant};
pub use shape::{PartialShape, Shape};

#[cfg(test)]
mod tests;
