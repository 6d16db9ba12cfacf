//! Resources of other tasks: a node that uses one is run where it is.
//!
//! A function of a remote eager client may take variables of several tasks. Such a variable comes as a handle that says
//! where it is. Nodes pass it on as any handle, into calls, branches and loops, up to the node that uses it.

use std::collections::HashMap;
use std::sync::Arc;

use ringway_proto::tensorflow::{AttrValue, DataType};

use super::step::Step;
use crate::core::graph::signature::{ArgKind, signature};
use crate::core::graph::{Node, Type};
use crate::kernels::{OpError, Slot};
use crate::tensor::{PartialShape, ResourceHandle, Tensor};

/// A resource of another task, as its client names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Away {
    /// The device that has it.
    pub device: String,
    /// The operation whose result its handle is.
    pub op_id: i64,
    /// Which of the results.
    pub output: i32,
}

impl Away {
    /// A handle of it; `holds` tells what is in it, where that is known.
    #[must_use]
    pub fn handle(self, holds: Vec<(DataType, PartialShape)>) -> Tensor {
        let device = self.device.clone();
        Tensor::handle(ResourceHandle { device, holds, keep: Some(Arc::new(self)), ..Default::default() })
    }

    /// The resource that a value is the handle of, if it is one of another task.
    #[must_use]
    pub fn of(value: &Slot) -> Option<Arc<Away>> {
        let Slot::Tensor(tensor) = value else { return None };
        if tensor.dtype() != DataType::DtResource {
            return None;
        }
        let [handle] = tensor.handles().ok()? else { return None };
        handle.keep.clone()?.downcast().ok()
    }
}

/// A node that uses a resource, to be run at another task.
#[derive(Debug)]
pub struct Use {
    /// Its operation.
    pub op: String,
    /// Its attributes.
    pub attrs: HashMap<String, AttrValue>,
    /// Types of what it gives.
    pub gives: Vec<DataType>,
}

impl Use {
    /// Of a node whose operation takes a resource, and not anything.
    pub(super) fn new(node: &Node) -> Option<Arc<Use>> {
        let takes = |kind: &ArgKind| match kind {
            ArgKind::Fixed(dtype) => *dtype == DataType::DtResource,
            ArgKind::Repeated { of, .. } => matches!(**of, ArgKind::Fixed(DataType::DtResource)),
            ArgKind::Attr(_) | ArgKind::List(_) => false,
        };
        let known = signature(node.op())?;
        if !known.inputs.iter().any(|input| takes(&input.kind)) {
            return None;
        }
        let gives = node.output_types.iter().map(|kind: &Type| kind.element).collect();
        Some(Arc::new(Use { op: node.op().to_owned(), attrs: node.def.attr.clone(), gives }))
    }
}

/// What is called with a node's outputs, once.
pub type Given = Box<dyn FnOnce(Result<Vec<Slot>, OpError>) + Send>;

/// The way to the tasks that have the resources.
pub trait Elsewhere: Send + Sync {
    /// Runs a node, of whose inputs one at least is [`Away`], where that is. An aborted step ends the wait.
    fn run(&self, node: &Arc<Use>, inputs: Vec<Slot>, step: &Arc<Step>, then: Given);
}
