//! Variables of both kinds: by handle and by reference.

use std::sync::Arc;

use ringway_dataplane::memory::Bool;

use super::contract::{Call, OpError};
use super::dispatch::{Built, by_number, by_type, index_vector, kernel};
use super::gather::{gathered, scatter_rows};
use super::number::Number;
use super::registry::{BuildError, Family};
use super::resources::{ANONYMOUS, one_handle};
use super::variable::{Held, Variable, update_all};
use crate::core::graph::Node;
use crate::tensor::{PartialShape, ResourceHandle, Scalar, Tensor, Writer, type_name};

/// Operations of this family.
pub(super) const OPS: Family = &[
    ("VarHandleOp", var_handle),
    ("ReadVariableOp", read_variable),
    ("AssignVariableOp", assign_variable),
    ("AssignAddVariableOp", assign_add_variable),
    ("AssignSubVariableOp", assign_sub_variable),
    ("VarIsInitializedOp", var_is_initialized),
    ("VariableShape", variable_shape),
    ("DestroyResourceOp", destroy),
    ("ResourceGather", resource_gather),
    ("ResourceScatterAdd", scatter_add),
    ("ResourceScatterSub", scatter_sub),
    ("ResourceScatterMul", scatter_mul),
    ("ResourceScatterDiv", scatter_div),
    ("ResourceScatterMin", scatter_min),
    ("ResourceScatterMax", scatter_max),
    ("ResourceScatterUpdate", scatter_update),
    ("Variable", variable_v2),
    ("VariableV2", variable_v2),
    ("IsVariableInitialized", is_variable_initialized),
    ("Assign", assign),
    ("AssignAdd", assign_add),
    ("AssignSub", assign_sub),
    ("ScatterAdd", scatter_add),
    ("ScatterSub", scatter_sub),
    ("ScatterMul", scatter_mul),
    ("ScatterDiv", scatter_div),
    ("ScatterMin", scatter_min),
    ("ScatterMax", scatter_max),
    ("ScatterUpdate", scatter_update),
];

/// The container and the name that a node's attributes give a resource.
pub(super) fn place(node: &Node, shared_name: &str) -> Result<[Arc<str>; 2], BuildError> {
    let name = match node.attrs.text(shared_name)? {
        "" => node.name(),
        name => name,
    };
    Ok([node.attrs.text("container")?.into(), name.into()])
}

fn partial_shape(node: &Node, attr: &str) -> Result<PartialShape, BuildError> {
    let shape = PartialShape::from_proto(node.attrs.shape(attr)?);
    Ok(shape.map_err(|error| node.attrs.wrong(attr, &error.to_string()))?)
}

fn var_handle(node: &Node) -> Built {
    let ([container, name], dtype) = (place(node, "shared_name")?, node.attrs.dtype("dtype")?);
    let shape = partial_shape(node, "shape")?;
    kernel(move |call| {
        let (device, resources) = (call.scope().device, call.resources());
        let handle = if *name == *ANONYMOUS {
            resources.make_anonymous(device, |name| Variable::new(name, dtype, shape.clone()))
        } else {
            ResourceHandle {
                device: device.to_owned(),
                container: resources.container(&container).to_owned(),
                name: name.to_string(),
                type_name: <Variable as super::Resource>::KIND.to_owned(),
                ..Default::default()
            }
        };
        call.set(0, Tensor::handle(ResourceHandle { holds: vec![(dtype, shape.clone())], ..handle }))
    })
}

/// The variable that an input is, by reference or by handle.
pub(super) fn variable_at(call: &Call<'_>, index: usize) -> Result<Arc<Variable>, OpError> {
    if call.is_ref(index) { call.variable(index) } else { call.resources().resolve(&call.tensor(index)?) }
}

/// After an update through a reference, the reference is the result; one through a handle has none.
pub(super) fn give_back(call: &mut Call<'_>) -> Result<(), OpError> {
    if call.outputs() == 0 { Ok(()) } else { call.forward(0, 0) }
}

fn read_variable(node: &Node) -> Built {
    let dtype = node.attrs.dtype("dtype")?;
    kernel(move |call| {
        let value = variable_at(call, 0)?.read()?;
        if value.dtype() != dtype {
            let (asked, held) = (type_name(dtype), type_name(value.dtype()));
            let message = format!("Trying to read variable with wrong dtype. Expected {asked} got {held}");
            return Err(OpError::invalid(message));
        }
        call.set(0, value)
    })
}

fn assign_variable(node: &Node) -> Built {
    let (dtype, validates) = (node.attrs.dtype("dtype")?, node.attrs.bool("validate_shape")?);
    kernel(move |call| {
        let (handle, value) = (call.tensor(0)?, call.take(1)?);
        let handle = one_handle(&handle)?;
        let shape = handle.holds.first().map(|(_, shape)| shape.clone()).unwrap_or_default();
        let make = || Ok(Variable::new(&handle.name, dtype, shape));
        let variable = call.resources().find_or_make(&handle.container, &handle.name, make)?;
        let mut held = variable.lock();
        if let Some(known) = held.read().ok().filter(|known| validates && known.shape() != value.shape()) {
            let (known, given) = (known.shape(), value.shape());
            return Err(OpError::invalid(format!(
                "Trying to assign to variable with tensor with wrong shape. Expected {known} got {given}"
            )));
        }
        held.assign(value)
    })
}

fn variable_v2(node: &Node) -> Built {
    let ([container, name], dtype) = (place(node, "shared_name")?, node.attrs.dtype("dtype")?);
    let shape = partial_shape(node, "shape")?;
    kernel(move |call| {
        let make = || Ok(Variable::new(&name, dtype, shape.clone()));
        let variable = call.resources().find_or_make(&container, &name, make)?;
        if variable.dtype() != dtype {
            let (asked, held) = (type_name(dtype), type_name(variable.dtype()));
            return Err(OpError::invalid(format!(
                "variable {name} is of {held}, and this node asks for {asked}"
            )));
        }
        call.set_ref(0, variable)
    })
}

fn assign(node: &Node) -> Built {
    let validates = node.attrs.bool("validate_shape")?;
    kernel(move |call| {
        let (variable, value) = (call.variable(0)?, call.take(1)?);
        let mut held = variable.lock();
        let known = match held.read() {
            Ok(value) => PartialShape::from(value.shape()),
            Err(_) => variable.shape().clone(),
        };
        if validates && !known.covers(value.shape()) {
            let given = value.shape();
            return Err(OpError::invalid(format!(
                "Assign requires shapes of both tensors to match. lhs shape= {known} rhs shape= {given}"
            )));
        }
        held.assign(value)?;
        drop(held);
        give_back(call)
    })
}

fn var_is_initialized(_: &Node) -> Built {
    kernel(|call| {
        let handle = call.tensor(0)?;
        let handle = one_handle(&handle)?;
        let variable: Option<Arc<Variable>> = call.resources().find(&handle.container, &handle.name);
        call.set(0, Tensor::scalar(Bool::from(variable.is_some_and(|variable| variable.is_initialized())))?)
    })
}

fn is_variable_initialized(_: &Node) -> Built {
    kernel(|call| {
        let is_set = call.variable(0)?.is_initialized();
        call.set(0, Tensor::scalar(Bool::from(is_set))?)
    })
}

fn variable_shape(node: &Node) -> Built {
    let out = node.attrs.dtype("out_type")?;
    kernel(move |call| {
        let value = variable_at(call, 0)?.read()?;
        call.set(0, index_vector(value.shape(), out)?)
    })
}

fn destroy(node: &Node) -> Built {
    let ignores = node.attrs.bool("ignore_lookup_error")?;
    kernel(move |call| {
        let tensor = call.tensor(0)?;
        let handle = one_handle(&tensor)?;
        if call.resources().remove(&handle.container, &handle.name) || ignores {
            return Ok(());
        }
        let (container, name) = (&handle.container, &handle.name);
        let message = format!("Resource {container}/{name} does not exist.");
        Err(OpError::new(ringway_proto::tensorflow::error::Code::NotFound, message))
    })
}

/// Changes one variable.
fn update(
    variable: &Variable,
    change: impl FnOnce(&mut Writer) -> Result<(), OpError>,
) -> Result<(), OpError> {
    update_all([variable.lock()], |[writer]| change(writer))
}

/// Combines all elements of the variable at input 0 with those of input 1.
fn combine<T: Scalar>(call: &mut Call<'_>, f: impl Fn(T, T) -> T) -> Result<(), OpError> {
    let (variable, value) = (variable_at(call, 0)?, call.tensor(1)?);
    let change = |held: Held<'_>| {
        let (known, given) = (held.read()?.shape(), value.shape());
        if known != given {
            return Err(OpError::invalid(format!(
                "Cannot update variable with shape {known} using a Tensor with shape {given}, shapes must be equal."
            )));
        }
        let from = value.as_slice::<T>()?;
        update_all([held], |[writer]| {
            writer.elements_mut::<T>()?.iter_mut().zip(from).for_each(|(to, from)| *to = f(*to, *from));
            Ok(())
        })
    };
    change(variable.lock())?;
    give_back(call)
}

macro_rules! combines {
    ($($name:ident: $attr:literal, $f:expr;)+) => {$(
        fn $name(node: &Node) -> Built {
            by_number!(node, $attr, T => kernel(|call| combine::<T>(call, $f)))
        }
    )+};
}

combines! {
    assign_add_variable: "dtype", Number::plus;
    assign_sub_variable: "dtype", Number::minus;
    assign_add: "T", Number::plus;
    assign_sub: "T", Number::minus;
}

fn resource_gather(node: &Node) -> Built {
    if node.attrs.int("batch_dims")? != 0 {
        return Err(node.attrs.wrong("batch_dims", "is not 0, which is all that is computed").into());
    }
    kernel(|call| {
        let value = variable_at(call, 0)?.read()?;
        let rows = gathered(&value, &call.tensor(1)?, 0, 0)?;
        call.set(0, rows)
    })
}

/// Combines rows of the variable at input 0, which input 1 names, with those of input 2.
fn scatter<T: Scalar>(call: &mut Call<'_>, f: impl Fn(T, T) -> T) -> Result<(), OpError> {
    let (variable, indices, updates) = (variable_at(call, 0)?, call.tensor(1)?, call.tensor(2)?);
    update(&variable, |writer| scatter_rows(writer, &indices, &updates, f))?;
    give_back(call)
}

/// The attribute that holds the type of a variable's elements.
pub(super) fn element_attr(node: &Node) -> &'static str {
    if node.op().starts_with("ResourceScatter") { "dtype" } else { "T" }
}

macro_rules! scatters {
    ($($name:ident: $f:expr;)+) => {$(
        fn $name(node: &Node) -> Built {
            by_number!(node, element_attr(node), T => kernel(|call| scatter::<T>(call, $f)))
        }
    )+};
}

scatters! {
    scatter_add: Number::plus;
    scatter_sub: Number::minus;
    scatter_mul: Number::times;
    scatter_div: |a: T, b: T| if T::IS_INT && b == T::ZERO { T::ZERO } else { a.over(b) };
    scatter_min: Number::smaller;
    scatter_max: Number::larger;
}

fn scatter_update(node: &Node) -> Built {
    by_type!(node, element_attr(node), [DtFloat f32, DtDouble f64, DtInt32 i32, DtInt64 i64, DtBool Bool, DtUint8 u8,
        DtInt8 i8, DtInt16 i16, DtHalf half::f16, DtBfloat16 half::bf16], T => {
        kernel(|call| scatter::<T>(call, |_, new| new))
    })
}
