//! A client of a master: builds a graph, and runs steps of it over the tasks of a cluster.
//!
//! - [`build`]: a graph, operation by operation.
//! - [`client`]: a session with the master of some task, ours or TensorFlow's.
#![forbid(unsafe_code)]

pub mod build;
pub mod client;
pub mod error;
mod ops;

pub use build::{Attr, GraphBuilder, NodeBuilder, Op, Output};
pub use client::{Options, Session};
pub use error::SessionError;
pub use ringway_proto::tensorflow::attr_value::Value as AttrValue;
pub use ringway_proto::tensorflow::error::Code;
pub use ringway_proto::tensorflow::{ConfigProto, DataType, GraphDef};
