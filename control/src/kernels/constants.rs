//! Constants, placeholders, and what passes values on.

use super::contract::{Call, Kernel, OpError};
use super::registry::{BuildError, Family};
use crate::core::graph::Node;
use crate::tensor::{Tensor, type_name};

/// Operations of this family.
pub(super) const OPS: Family = &[
    ("Const", constant),
    ("HostConst", constant),
    ("Identity", forward),
    ("IdentityN", forward),
    ("RefIdentity", forward),
    ("Snapshot", forward),
    ("StopGradient", forward),
    ("PreventGradient", forward),
    ("CheckPinned", forward),
    ("_EagerConst", forward),
    ("DebugGradientIdentity", forward),
    ("DebugGradientRefIdentity", forward),
    ("PlaceholderWithDefault", forward),
    ("NoOp", nothing),
    ("ControlTrigger", nothing),
    ("Placeholder", placeholder),
    ("PlaceholderV2", placeholder),
];

struct Constant(Tensor);

fn constant(node: &Node) -> Result<Box<dyn Kernel>, BuildError> {
    let value = Tensor::from_proto(node.attrs.tensor("value")?)
        .map_err(|error| node.attrs.wrong("value", &format!("is no tensor: {error}")))?;
    let dtype = node.attrs.dtype("dtype")?;
    if value.dtype() != dtype {
        let problem =
            format!("is of {}, and attr 'dtype' says {}", type_name(value.dtype()), type_name(dtype));
        return Err(node.attrs.wrong("value", &problem).into());
    }
    Ok(Box::new(Constant(value)))
}

impl Kernel for Constant {
    fn run(&self, call: &mut Call<'_>) -> Result<(), OpError> {
        call.set(0, self.0.clone())
    }
}

/// Passes each input on, reference or value. (A reference becomes a value where it is read as one.)
struct Forward {
    /// Outputs that are references stay so; others become values now, so that later writes do not change them.
    keeps_refs: bool,
}

fn forward(node: &Node) -> Result<Box<dyn Kernel>, BuildError> {
    Ok(Box::new(Forward { keeps_refs: node.output_types.iter().any(|kind| kind.is_ref) }))
}

impl Kernel for Forward {
    fn run(&self, call: &mut Call<'_>) -> Result<(), OpError> {
        for index in 0..call.outputs() {
            if self.keeps_refs {
                call.forward(index, index)?;
            } else {
                let value = call.take(index)?;
                call.set(index, value)?;
            }
        }
        Ok(())
    }
}

struct Nothing;

fn nothing(_: &Node) -> Result<Box<dyn Kernel>, BuildError> {
    Ok(Box::new(Nothing))
}

impl Kernel for Nothing {
    fn run(&self, _: &mut Call<'_>) -> Result<(), OpError> {
        Ok(())
    }
}

/// Fails: whoever runs a graph must feed it.
struct Placeholder {
    name: String,
    of: String,
}

fn placeholder(node: &Node) -> Result<Box<dyn Kernel>, BuildError> {
    let shape = crate::tensor::PartialShape::from_proto(node.attrs.shape("shape")?)
        .map_err(|error| node.attrs.wrong("shape", &error.to_string()))?;
    let mut of = format!("dtype {}", type_name(node.attrs.dtype("dtype")?));
    if shape.sizes().is_some_and(|sizes| !sizes.is_empty()) {
        of.push_str(&format!(" and shape {shape}"));
    }
    Ok(Box::new(Placeholder { name: node.name().to_owned(), of }))
}

impl Kernel for Placeholder {
    fn run(&self, _: &mut Call<'_>) -> Result<(), OpError> {
        let (name, of) = (&self.name, &self.of);
        Err(OpError::invalid(format!("You must feed a value for placeholder tensor '{name}' with {of}")))
    }
}
