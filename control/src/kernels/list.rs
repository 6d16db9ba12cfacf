//! Stacks of loops, which live as long as their step, and lists of tensors, which are values.

use std::sync::{Arc, Mutex, PoisonError};

use ringway_dataplane::memory::room::room;
use ringway_proto::tensorflow::DataType;
use ringway_proto::tensorflow::error::Code;

use super::contract::{Call, OpError};
use super::dispatch::{Built, integer, integers, kernel};
use super::registry::Family;
use super::resources::Resource;
use crate::core::graph::Node;
use crate::tensor::{PartialShape, Shape, Tensor, TensorList, Variant, type_name};

/// Operations of this family.
pub(super) const OPS: Family = &[
    ("StackV2", stack),
    ("StackPushV2", stack_push),
    ("StackPopV2", stack_pop),
    ("StackCloseV2", stack_close),
    ("EmptyTensorList", empty_list),
    ("TensorListReserve", reserve),
    ("TensorListPushBack", push_back),
    ("TensorListPopBack", pop_back),
    ("TensorListLength", length),
    ("TensorListElementShape", element_shape),
    ("TensorListGetItem", get_item),
    ("TensorListSetItem", set_item),
    ("TensorListFromTensor", from_tensor),
    ("TensorListStack", stacked),
    ("TensorListGather", gather_list),
    ("TensorListResize", resize),
];

/// Tensors that one stack or list may hold.
const ITEMS_LIMIT: usize = 1 << 24;

/// What a loop's forward pass leaves for its gradient.
struct Stack {
    limit: Option<usize>,
    items: Mutex<Vec<Tensor>>,
}

impl Resource for Stack {
    const KIND: &'static str = "tensorflow::Stack";
}

fn stack(_: &Node) -> Built {
    kernel(|call| {
        let limit = usize::try_from(integer(&call.tensor(0)?, "Stack size")?).ok();
        let make = |_: &str| Stack { limit, items: Mutex::default() };
        let handle = call.scope().temporaries.make_anonymous(call.scope().device, make);
        call.set(0, Tensor::handle(handle))
    })
}

fn stack_at(call: &Call<'_>) -> Result<Arc<Stack>, OpError> {
    call.scope().temporaries.resolve(&call.tensor(0)?)
}

fn stack_push(_: &Node) -> Built {
    kernel(|call| {
        let (stack, value) = (stack_at(call)?, call.take(1)?);
        let mut items = stack.items.lock().unwrap_or_else(PoisonError::into_inner);
        if items.len() >= stack.limit.unwrap_or(ITEMS_LIMIT) {
            let message = format!("Stack[{}] overflowed its max_size ({})", call.node(), items.len());
            return Err(OpError::invalid(message));
        }
        items.push(value.clone());
        call.set(0, value)
    })
}

fn stack_pop(node: &Node) -> Built {
    let dtype = node.attrs.dtype("elem_type")?;
    kernel(move |call| {
        let stack = stack_at(call)?;
        let top = stack.items.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let top = top.ok_or_else(|| OpError::invalid("Stack is empty when calling Pop()."))?;
        check_type(dtype, top.dtype())?;
        call.set(0, top)
    })
}

fn stack_close(_: &Node) -> Built {
    kernel(|call| {
        stack_at(call)?.items.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(())
    })
}

fn check_type(expected: DataType, given: DataType) -> Result<(), OpError> {
    if expected == given {
        return Ok(());
    }
    let (expected, given) = (type_name(expected), type_name(given));
    Err(OpError::invalid(format!("Invalid data types; op elements {expected} but list elements {given}")))
}

/// The list in an input. When it is the edge's last use of it, its items may be written in place.
fn take_list(call: &mut Call<'_>, dtype: DataType) -> Result<TensorList, OpError> {
    let tensor = call.take(0)?;
    let list = match tensor.variants()? {
        [Variant::List(list)] => Arc::clone(list),
        _ => return Err(OpError::invalid("Input handle is not a list. Saw: another variant, or none")),
    };
    drop(tensor);
    check_type(dtype, list.dtype)?;
    Ok(Arc::unwrap_or_clone(list))
}

/// A shape that an input gives: a row of sizes, or -1 alone when nothing is known.
fn shape_at(call: &Call<'_>, index: usize) -> Result<PartialShape, OpError> {
    let tensor = call.tensor(index)?;
    match (tensor.shape().rank(), &integers(&tensor)?[..]) {
        (0, [-1]) => Ok(PartialShape::unknown()),
        (1, sizes) => Ok(PartialShape::from_sizes(sizes)?),
        _ => Err(OpError::invalid(
            "The only valid scalar shape tensor is the fully unknown shape specified as -1.",
        )),
    }
}

fn put(call: &mut Call<'_>, output: usize, list: TensorList) -> Result<(), OpError> {
    call.set(output, Tensor::variant(Variant::List(Arc::new(list))))
}

fn empty_list(node: &Node) -> Built {
    let dtype = node.attrs.dtype("element_dtype")?;
    kernel(move |call| {
        let (shape, limit) = (shape_at(call, 0)?, integer(&call.tensor(1)?, "max_num_elements")?);
        put(call, 0, TensorList { dtype, shape, limit: usize::try_from(limit).ok(), items: Vec::new() })
    })
}

fn count(given: i64) -> Result<usize, OpError> {
    let count = usize::try_from(given).ok().filter(|count| *count <= ITEMS_LIMIT);
    let count = count.ok_or_else(|| {
        OpError::invalid(format!("a list has 0 to {ITEMS_LIMIT} elements, and not {given}"))
    })?;
    let no_room =
        |error| OpError::new(Code::ResourceExhausted, format!("a list of {count} elements: {error}"));
    let _room = room(count * size_of::<Option<Tensor>>()).map_err(no_room)?;
    Ok(count)
}

fn reserve(node: &Node) -> Built {
    let dtype = node.attrs.dtype("element_dtype")?;
    kernel(move |call| {
        let (shape, len) = (shape_at(call, 0)?, count(integer(&call.tensor(1)?, "num_elements")?)?);
        put(call, 0, TensorList { dtype, shape, limit: None, items: vec![None; len] })
    })
}

fn resize(_: &Node) -> Built {
    kernel(|call| {
        let len = count(integer(&call.tensor(1)?, "size")?)?;
        let tensor = call.take(0)?;
        let [Variant::List(list)] = tensor.variants()? else {
            return Err(OpError::invalid("Input handle is not a list."));
        };
        let mut list = TensorList::clone(list);
        list.items.resize(len, None);
        put(call, 0, list)
    })
}

fn check_shape(list: &TensorList, item: &Tensor) -> Result<(), OpError> {
    if list.shape.covers(item.shape()) {
        return Ok(());
    }
    let (shape, given) = (&list.shape, item.shape());
    Err(OpError::invalid(format!(
        "Tried to append a tensor with incompatible shape to a list. Op element shape: {given} list shape: {shape}"
    )))
}

fn push_back(node: &Node) -> Built {
    let dtype = node.attrs.dtype("element_dtype")?;
    kernel(move |call| {
        let mut list = take_list(call, dtype)?;
        let item = call.take(1)?;
        check_shape(&list, &item)?;
        if list.items.len() >= list.limit.unwrap_or(ITEMS_LIMIT) {
            return Err(OpError::invalid("Tried to push item into a full list"));
        }
        list.items.push(Some(item));
        put(call, 0, list)
    })
}

/// What an item that is not set is read as.
fn unset(list: &TensorList, asked: &PartialShape) -> Result<Tensor, OpError> {
    let known = list.shape.merge(asked).and_then(|shape| shape.full());
    // Items that are set tell the shape of those that are not.
    let known = known.or_else(|| list.items.iter().flatten().next().map(|item| item.shape().clone()));
    let shape = known.ok_or_else(|| {
        OpError::invalid(
            "Trying to read an uninitialized element of a list whose elements' shape is not fully defined",
        )
    })?;
    Ok(Tensor::zeros(list.dtype, shape)?)
}

fn pop_back(node: &Node) -> Built {
    let dtype = node.attrs.dtype("element_dtype")?;
    kernel(move |call| {
        let asked = shape_at(call, 1)?;
        let mut list = take_list(call, dtype)?;
        let top = list.items.pop().ok_or_else(|| OpError::invalid("Trying to pop from an empty list."))?;
        let item = top.map_or_else(|| unset(&list, &asked), Ok)?;
        put(call, 0, list)?;
        call.set(1, item)
    })
}

fn length(_: &Node) -> Built {
    kernel(|call| {
        let tensor = call.tensor(0)?;
        let [Variant::List(list)] = tensor.variants()? else {
            return Err(OpError::invalid("Input handle is not a list."));
        };
        call.set(0, Tensor::scalar(list.items.len() as i32)?)
    })
}

fn element_shape(node: &Node) -> Built {
    let out = node.attrs.dtype("shape_type")?;
    kernel(move |call| {
        let tensor = call.tensor(0)?;
        let [Variant::List(list)] = tensor.variants()? else {
            return Err(OpError::invalid("Input handle is not a list."));
        };
        let shape = match (list.shape.sizes(), out) {
            (None, DataType::DtInt32) => Tensor::scalar(-1i32)?,
            (None, _) => Tensor::scalar(-1i64)?,
            (Some(sizes), DataType::DtInt32) => Tensor::vector(
                &sizes.iter().map(|size| size.map_or(-1, |size| size as i32)).collect::<Vec<_>>(),
            )?,
            (Some(sizes), _) => Tensor::vector(
                &sizes.iter().map(|size| size.map_or(-1, |size| size as i64)).collect::<Vec<_>>(),
            )?,
        };
        call.set(0, shape)
    })
}

fn item_index(call: &Call<'_>, len: usize) -> Result<usize, OpError> {
    let index = integer(&call.tensor(1)?, "index")?;
    let at = usize::try_from(index).ok().filter(|at| *at < len);
    at.ok_or_else(|| {
        OpError::invalid(format!("Trying to access element {index} in a list with {len} elements."))
    })
}

fn get_item(node: &Node) -> Built {
    let dtype = node.attrs.dtype("element_dtype")?;
    kernel(move |call| {
        let asked = shape_at(call, 2)?;
        let list = take_list(call, dtype)?;
        let at = item_index(call, list.items.len())?;
        let item = list.items[at].clone().map_or_else(|| unset(&list, &asked), Ok)?;
        call.set(0, item)
    })
}

fn set_item(node: &Node) -> Built {
    let dtype = node.attrs.dtype("element_dtype")?;
    let resizes = node.attrs.bool("resize_if_index_out_of_bounds").unwrap_or(false);
    kernel(move |call| {
        let mut list = take_list(call, dtype)?;
        let item = call.take(2)?;
        check_type(dtype, item.dtype())?;
        check_shape(&list, &item)?;
        if resizes {
            let wanted = count(integer(&call.tensor(1)?, "index")?.saturating_add(1))?;
            if wanted > list.items.len() {
                list.items.resize(wanted, None);
            }
        }
        let at = item_index(call, list.items.len())?;
        list.items[at] = Some(item);
        put(call, 0, list)
    })
}

fn from_tensor(node: &Node) -> Built {
    let dtype = node.attrs.dtype("element_dtype")?;
    kernel(move |call| {
        let (tensor, shape) = (call.take(0)?, shape_at(call, 1)?);
        let Some(len) = tensor.shape().first().copied() else {
            return Err(OpError::invalid("Tensor must be at least a vector, but saw shape: []"));
        };
        let one = Shape::new(&tensor.shape()[1..])?;
        if !shape.covers(&one) {
            let message = format!("Specified a list with shape {shape} from a tensor with shape {one}");
            return Err(OpError::invalid(message));
        }
        let part = |at: usize| tensor.part(at * one.elements(), one.clone()).map(Some);
        let items = (0..count(len as i64)?).map(part).collect::<Result<_, _>>()?;
        put(call, 0, TensorList { dtype, shape, limit: None, items })
    })
}

/// Items as one tensor, a row each.
fn rows(items: Vec<Tensor>, list: &TensorList, asked: &PartialShape) -> Result<Tensor, OpError> {
    let Some(first) = items.first() else {
        let known = list.shape.merge(asked).and_then(|shape| shape.full());
        let shape = known.ok_or_else(|| {
            OpError::invalid("Tried to stack elements of an empty list with non-fully-defined element_shape")
        })?;
        return Ok(Tensor::zeros(list.dtype, Shape::new(&[&[0], &shape[..]].concat())?)?);
    };
    let row = Shape::new(&[&[1], &first.shape()[..]].concat())?;
    let rows = items.into_iter().map(|item| item.with_shape(row.clone())).collect::<Result<Vec<_>, _>>();
    let rows = rows
        .map_err(|_| OpError::invalid("Tried to stack list which contains elements of different shapes"))?;
    super::join::joined(&rows, 0)
}

fn stacked(node: &Node) -> Built {
    let (dtype, expected) = (node.attrs.dtype("element_dtype")?, node.attrs.int("num_elements")?);
    kernel(move |call| {
        let asked = shape_at(call, 1)?;
        let list = take_list(call, dtype)?;
        if expected != -1 && list.items.len() as i64 != expected {
            let len = list.items.len();
            let message = format!(
                "Operation expected a list with {expected} elements but got a list with {len} elements."
            );
            return Err(OpError::invalid(message));
        }
        let all = list.items.iter().map(|item| item.clone().map_or_else(|| unset(&list, &asked), Ok));
        let all = all.collect::<Result<Vec<_>, _>>()?;
        call.set(0, rows(all, &list, &asked)?)
    })
}

fn gather_list(node: &Node) -> Built {
    let dtype = node.attrs.dtype("element_dtype")?;
    kernel(move |call| {
        let (indices, asked) = (integers(&call.tensor(1)?)?, shape_at(call, 2)?);
        let list = take_list(call, dtype)?;
        let one = |index: i64| {
            let item = usize::try_from(index).ok().and_then(|at| list.items.get(at));
            let item = item.ok_or_else(|| {
                let len = list.items.len();
                OpError::invalid(format!("Trying to gather element {index} in a list with {len} elements."))
            })?;
            item.clone().map_or_else(|| unset(&list, &asked), Ok)
        };
        let all = indices.into_iter().map(one).collect::<Result<Vec<_>, _>>()?;
        call.set(0, rows(all, &list, &asked)?)
    })
}

/// The sum of lists of one length, item by item; an item that is not set is as zero.
pub(super) fn add_lists(call: &mut Call<'_>) -> Result<(), OpError> {
    let lists = (0..call.inputs()).map(|index| match call.tensor(index)?.variants()? {
        [Variant::List(list)] => Ok(Arc::clone(list)),
        _ => Err(OpError::invalid("a variant that is no list cannot be added")),
    });
    let lists = lists.collect::<Result<Vec<_>, OpError>>()?;
    let Some((first, others)) = lists.split_first() else {
        return Err(OpError::invalid("there is nothing to add"));
    };
    let mut sum = TensorList::clone(first);
    for other in others {
        check_type(sum.dtype, other.dtype)?;
        if sum.items.len() != other.items.len() {
            return Err(OpError::invalid("Trying to add two lists of tensors with different lengths"));
        }
        for (a, b) in sum.items.iter_mut().zip(&other.items) {
            let Some(b) = b else { continue };
            *a = Some(match a.take() {
                None => b.clone(),
                Some(a) if a.dtype() == DataType::DtDouble => {
                    super::binary::combine::<f64>(a, b.clone(), |a, b| a + b)?
                }
                Some(a) => super::binary::combine::<f32>(a, b.clone(), |a, b| a + b)?,
            });
        }
    }
    put(call, 0, sum)
}
