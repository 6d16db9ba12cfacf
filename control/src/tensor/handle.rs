//! Elements that are no numbers: names of resources, and variants.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use ringway_proto::tensorflow::resource_handle_proto::DtypeAndShape;
use ringway_proto::tensorflow::{DataType, ResourceHandleProto, VariantTensorDataProto};

use super::array::Tensor;
use super::error::TensorError;
use super::shape::PartialShape;

/// Names a resource of one device.
#[derive(Clone, Default)]
pub struct ResourceHandle {
    /// Full name of the device.
    pub device: String,
    /// Container on the device.
    pub container: String,
    /// Name in the container.
    pub name: String,
    /// Tells kinds of resources apart, as TensorFlow does; nothing here depends on it.
    pub hash_code: u64,
    /// Kind of the resource, in TensorFlow's words, where known.
    pub type_name: String,
    /// What the resource holds, where known.
    pub holds: Vec<(DataType, PartialShape)>,
    /// Keeps a resource that has no owner but its handles. Does not travel.
    pub keep: Option<Arc<dyn Any + Send + Sync>>,
}

impl ResourceHandle {
    /// From a message.
    ///
    /// # Errors
    /// [`TensorError`] when a type or a shape is none.
    pub fn from_proto(proto: &ResourceHandleProto) -> Result<ResourceHandle, TensorError> {
        let holds = proto.dtypes_and_shapes.iter().map(|holds| {
            let dtype =
                DataType::try_from(holds.dtype).map_err(|_| TensorError::NoType { number: holds.dtype })?;
            let shape = holds.shape.as_ref().map_or(Ok(PartialShape::unknown()), PartialShape::from_proto)?;
            Ok((dtype, shape))
        });
        Ok(ResourceHandle {
            holds: holds.collect::<Result<_, TensorError>>()?,
            device: proto.device.clone(),
            container: proto.container.clone(),
            name: proto.name.clone(),
            hash_code: proto.hash_code,
            type_name: proto.maybe_type_name.clone(),
            keep: None,
        })
    }

    /// As a message.
    #[must_use]
    pub fn to_proto(&self) -> ResourceHandleProto {
        let holds = |(dtype, shape): &(DataType, PartialShape)| DtypeAndShape {
            dtype: *dtype as i32,
            shape: Some(shape.to_proto()),
        };
        ResourceHandleProto {
            device: self.device.clone(),
            container: self.container.clone(),
            name: self.name.clone(),
            hash_code: self.hash_code,
            maybe_type_name: self.type_name.clone(),
            dtypes_and_shapes: self.holds.iter().map(holds).collect(),
        }
    }
}

impl fmt::Debug for ResourceHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResourceHandle({}/{} on {})", self.container, self.name, self.device)
    }
}

/// An element of type variant.
#[derive(Clone, Debug, Default)]
pub enum Variant {
    /// Nothing.
    #[default]
    Empty,
    /// A list of tensors.
    List(Arc<TensorList>),
    /// What this program passes on and does not read.
    Foreign(Arc<VariantTensorDataProto>),
}

/// A list of tensors of one type.
#[derive(Clone, Debug)]
pub struct TensorList {
    /// Type of the tensors.
    pub dtype: DataType,
    /// What is known of their shapes.
    pub shape: PartialShape,
    /// Most that it may hold, where there is such a limit.
    pub limit: Option<usize>,
    /// Those that are set.
    pub items: Vec<Option<Tensor>>,
}
