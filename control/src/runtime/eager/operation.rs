//! Single operations as programs of one node.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use prost::Message;
use ringway_proto::tensorflow::attr_value::Value;
use ringway_proto::tensorflow::eager::Operation;
use ringway_proto::tensorflow::{AttrValue, NodeDef};

use crate::core::graph::{Attrs, Graph, Library, Type, signature};
use crate::kernels::{OpError, is_executor_op};
use crate::runtime::worker::{Program, ProgramError};
use crate::tensor::Tensor;

/// Name of the node of a single operation.
pub(super) const NODE: &str = "_op";
/// Programs that are kept for operations like them.
const PROGRAMS_LIMIT: usize = 4096;

/// Programs of single operations, by operation, attributes and the types of the inputs.
#[derive(Debug, Default)]
pub(super) struct Operations {
    ready: Mutex<HashMap<Vec<u8>, Arc<Program>>>,
}

impl Operations {
    /// The program of an operation with these inputs.
    pub(super) fn program(
        &self,
        operation: &Operation,
        inputs: &[Tensor],
        library: Arc<Library>,
    ) -> Result<Arc<Program>, OpError> {
        // Each send has a name of its own, and calls look their functions up anew.
        if is_executor_op(&operation.name) {
            return Ok(Arc::new(build(operation, inputs, library)?));
        }
        let id = identity(operation, inputs);
        if let Some(ready) = self.ready.lock().unwrap_or_else(PoisonError::into_inner).get(&id) {
            return Ok(ready.clone());
        }
        let program = Arc::new(build(operation, inputs, library)?);
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if ready.len() >= PROGRAMS_LIMIT {
            ready.clear();
        }
        ready.insert(id, program.clone());
        Ok(program)
    }
}

fn identity(operation: &Operation, inputs: &[Tensor]) -> Vec<u8> {
    let mut attrs: Vec<_> = operation.attrs.iter().collect();
    attrs.sort_by_key(|(name, _)| *name);
    let mut id = operation.name.as_bytes().to_vec();
    for (name, value) in attrs {
        id.push(0);
        id.extend_from_slice(name.as_bytes());
        id.push(0);
        // With its length before it, so that no two lists of attributes read the same.
        id.extend_from_slice(&value.encode_length_delimited_to_vec());
    }
    id.push(0);
    inputs.iter().for_each(|input| id.extend_from_slice(&(input.dtype() as i32).to_le_bytes()));
    id
}

fn build(operation: &Operation, inputs: &[Tensor], library: Arc<Library>) -> Result<Program, ProgramError> {
    let mut nodes = Vec::with_capacity(inputs.len() + 2);
    for (index, input) in inputs.iter().enumerate() {
        nodes.push(port("_Arg", &format!("_arg{index}"), index, Type::of(input.dtype()), Vec::new()));
    }
    nodes.push(NodeDef {
        name: NODE.to_owned(),
        op: operation.name.clone(),
        input: (0..inputs.len()).map(|index| format!("_arg{index}")).collect(),
        attr: operation.attrs.clone(),
        ..Default::default()
    });
    for (index, kind) in outputs(operation)?.into_iter().enumerate() {
        let name = format!("_retval{index}");
        nodes.push(port("_Retval", &name, index, kind, vec![format!("{NODE}:{index}")]));
    }
    Program::new(&Graph::from_nodes(&nodes, library, &HashMap::new())?)
}

/// Types of what it gives; none of an operation that there is not, which the check of the graph then says.
fn outputs(operation: &Operation) -> Result<Vec<Type>, ProgramError> {
    let Some(known) = signature(&operation.name) else { return Ok(Vec::new()) };
    let attrs = Attrs::new(NODE, known, &operation.attrs, &HashMap::new())?;
    Ok(known.output_types(&attrs)?)
}

fn port(op: &str, name: &str, index: usize, kind: Type, input: Vec<String>) -> NodeDef {
    let attr = |value| AttrValue { value: Some(value) };
    let attrs = [
        ("T".to_owned(), attr(Value::Type(kind.to_wire()))),
        ("index".to_owned(), attr(Value::I(index as i64))),
    ];
    NodeDef { name: name.to_owned(), op: op.to_owned(), input, attr: attrs.into(), ..Default::default() }
}
