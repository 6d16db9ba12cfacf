//! Calls of functions, and the control flow that is made of them.

use std::sync::Arc;

use ringway_dataplane::memory::Bool;
use ringway_proto::tensorflow::DataType;

use super::executor::Pending;
use super::program::{Action, Callee, Program};
use crate::kernels::{OpError, Slot};
use crate::tensor::Tensor;

/// Whether a value counts as true: as in Python, a number other than 0, a text that is not empty; a tensor that is no
/// scalar when it has elements (`ToBool` of tensorflow/core/kernels/functional_ops.cc).
pub(super) fn is_true(tensor: &Tensor) -> Result<bool, OpError> {
    if tensor.shape().rank() > 0 {
        return Ok(!tensor.is_empty());
    }
    Ok(match tensor.dtype() {
        DataType::DtBool => tensor.single::<Bool>()?.get(),
        DataType::DtString => tensor.strings()?.first().is_some_and(|text| !text.is_empty()),
        DataType::DtFloat => tensor.single::<f32>()? != 0.0,
        DataType::DtDouble => tensor.single::<f64>()? != 0.0,
        DataType::DtInt32 => tensor.single::<i32>()? != 0,
        DataType::DtInt64 => tensor.single::<i64>()? != 0,
        other => match tensor.bytes() {
            Some(bytes) => bytes.iter().any(|byte| *byte != 0),
            None => {
                let name = crate::tensor::type_name(other);
                return Err(OpError::invalid(format!("a value of type {name} cannot be a condition")));
            }
        },
    })
}

/// Begins what a node that calls functions does.
pub(super) fn call(action: &Action, mut inputs: Vec<Slot>, pending: Pending) {
    let chosen = match action {
        Action::Call(callee) => Ok(callee),
        Action::If([then, other]) => {
            let condition = inputs.remove(0);
            condition.value().and_then(|value| is_true(&value)).map(|taken| if taken { then } else { other })
        }
        Action::Case(branches) => {
            let index = inputs.remove(0);
            index.value().and_then(|value| Ok(value.single::<i32>()?)).map(|index| {
                // One that there is not means the last, as in TensorFlow.
                let last = branches.len() - 1;
                &branches[usize::try_from(index).unwrap_or(last).min(last)]
            })
        }
        Action::While { cond, body } => return Loop::begin(cond, body, inputs, pending),
        _ => Err(OpError::internal("this node calls no function")),
    };
    let program = chosen.and_then(|callee| get(&pending, callee));
    match program {
        Ok(program) => start(&program, inputs, pending),
        Err(error) => pending.finish(Err(error)),
    }
}

fn get(pending: &Pending, callee: &Callee) -> Result<Arc<Program>, OpError> {
    Ok(pending.step().functions.get(callee)?)
}

fn start(program: &Arc<Program>, args: Vec<Slot>, pending: Pending) {
    let caller = pending.caller();
    caller.start(program, args, Box::new(move |result| pending.finish(result)));
}

/// A `While` that goes round.
struct Loop {
    cond: Arc<Program>,
    body: Arc<Program>,
    pending: Pending,
}

impl Loop {
    fn begin(cond: &Callee, body: &Callee, values: Vec<Slot>, pending: Pending) {
        let programs = get(&pending, cond).and_then(|cond| Ok((cond, get(&pending, body)?)));
        match programs {
            Ok((cond, body)) => Loop { cond, body, pending }.test(values),
            Err(error) => pending.finish(Err(error)),
        }
    }

    fn test(self, values: Vec<Slot>) {
        if let Some(why) = self.pending.step().aborted() {
            return self.pending.finish(Err(why));
        }
        let (caller, cond, args) = (self.pending.caller(), self.cond.clone(), values.clone());
        let then = move |result: Result<Vec<Slot>, OpError>| match result.and_then(|given| goes_on(&given)) {
            Ok(true) => self.round(values),
            Ok(false) => self.pending.finish(Ok(values)),
            Err(error) => self.pending.finish(Err(error)),
        };
        caller.start(&cond, args, Box::new(then));
    }

    fn round(self, values: Vec<Slot>) {
        let (caller, body) = (self.pending.caller(), self.body.clone());
        let then = move |result: Result<Vec<Slot>, OpError>| match result {
            Ok(values) => self.test(values),
            Err(error) => self.pending.finish(Err(error)),
        };
        caller.start(&body, values, Box::new(then));
    }
}

fn goes_on(given: &[Slot]) -> Result<bool, OpError> {
    let first = given.first().ok_or_else(|| OpError::invalid("the condition of a loop gives nothing"))?;
    is_true(&first.value()?)
}
