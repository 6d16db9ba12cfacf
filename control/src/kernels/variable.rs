//! Variables: tensors that outlive steps.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringway_proto::tensorflow::DataType;

use super::contract::OpError;
use super::resources::Resource;
use crate::tensor::{PartialShape, Tensor, Writer};

/// A tensor that can be replaced. A reader has what it held at one moment, which later updates do not change: an update
/// writes in place when no reader holds the value any more, and into a copy else.
#[derive(Debug)]
pub struct Variable {
    name: String,
    dtype: DataType,
    shape: PartialShape,
    value: Mutex<Option<Tensor>>,
}

impl Variable {
    /// One without a value. `name` is what errors call it, and `shape` what is known of the values that it will have.
    #[must_use]
    pub fn new(name: &str, dtype: DataType, shape: PartialShape) -> Variable {
        Variable { name: name.to_owned(), dtype, shape, value: Mutex::new(None) }
    }

    /// What was known of its shape when it was made.
    #[must_use]
    pub fn shape(&self) -> &PartialShape {
        &self.shape
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Type of its elements.
    #[must_use]
    pub fn dtype(&self) -> DataType {
        self.dtype
    }

    /// Whether it has a value.
    #[must_use]
    pub fn is_initialized(&self) -> bool {
        self.lock().value.is_some()
    }

    /// The value.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` when there is none yet.
    pub fn read(&self) -> Result<Tensor, OpError> {
        let held = self.lock();
        held.value.clone().ok_or_else(|| self.uninitialized())
    }

    /// Replaces the value.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` when it is of another type.
    pub fn assign(&self, value: Tensor) -> Result<(), OpError> {
        self.lock().assign(value)
    }

    /// Holds it, from a first read to a last write.
    #[must_use]
    pub fn lock(&self) -> Held<'_> {
        Held { variable: self, value: self.value.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    fn uninitialized(&self) -> OpError {
        OpError::precondition(format!("Attempting to use uninitialized value {}", self.name))
    }
}

impl Resource for Variable {
    const KIND: &'static str = "tensorflow::Var";
}

/// A variable that nobody else reads or writes meanwhile.
pub struct Held<'a> {
    variable: &'a Variable,
    value: MutexGuard<'a, Option<Tensor>>,
}

impl Held<'_> {
    /// The value.
    ///
    /// # Errors
    /// As for [`Variable::read`].
    pub fn read(&self) -> Result<&Tensor, OpError> {
        self.value.as_ref().ok_or_else(|| self.variable.uninitialized())
    }

    /// Replaces the value.
    ///
    /// # Errors
    /// As for [`Variable::assign`].
    pub fn assign(&mut self, value: Tensor) -> Result<(), OpError> {
        if value.dtype() != self.variable.dtype {
            return Err(OpError::invalid(format!(
                "Trying to assign variable with wrong dtype. Expected {} got {}",
                crate::tensor::type_name(self.variable.dtype),
                crate::tensor::type_name(value.dtype())
            )));
        }
        *self.value = Some(value);
        Ok(())
    }

    /// The elements, to be written: in place when no reader holds them, else a copy of them. The variable has no value
    /// in the first case, and the old one in the second, until [`Held::put`].
    ///
    /// # Errors
    /// As for [`Variable::read`], and no memory.
    fn check_out(&mut self) -> Result<Writer, OpError> {
        let value = self.value.take().ok_or_else(|| self.variable.uninitialized())?;
        value.into_writer().or_else(|shared| {
            *self.value = Some(shared.clone());
            Ok(shared.into_writer_or_copy()?)
        })
    }
}

/// Changes the elements of several variables that are held: in place where no reader holds them, else in copies. When
/// `change` fails they are what it left of them.
///
/// # Errors
/// `FAILED_PRECONDITION` when one has no value, no memory, and what `change` says.
pub fn update_all<const N: usize>(
    mut held: [Held<'_>; N],
    change: impl FnOnce(&mut [Writer; N]) -> Result<(), OpError>,
) -> Result<(), OpError> {
    let mut writers = Vec::with_capacity(N);
    let mut result = Ok(());
    for held in &mut held {
        match held.check_out() {
            Ok(writer) => writers.push(writer),
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    let writers = match <[Writer; N]>::try_from(writers) {
        Ok(mut all) => {
            result = change(&mut all);
            Vec::from(all)
        }
        Err(some) => some,
    };
    for (held, writer) in held.iter_mut().zip(writers) {
        *held.value = Some(writer.freeze());
    }
    result
}

/// Holds several variables, each from a first read to a last write (K3). They are locked in one order everywhere, so that
/// two such calls never wait for each other.
///
/// # Errors
/// `INVALID_ARGUMENT` when one is named twice.
pub fn lock_all<'a, const N: usize>(variables: [&'a Arc<Variable>; N]) -> Result<[Held<'a>; N], OpError> {
    let mut order: [usize; N] = std::array::from_fn(|at| at);
    order.sort_by_key(|at| Arc::as_ptr(variables[*at]).addr());
    if order.windows(2).any(|pair| Arc::ptr_eq(variables[pair[0]], variables[pair[1]])) {
        return Err(OpError::invalid("the same variable is given twice to an operation that updates both"));
    }
    let mut held: [Option<Held<'a>>; N] = std::array::from_fn(|_| None);
    for at in order {
        held[at] = Some(variables[at].lock());
    }
    let held: Vec<Held<'a>> = held.into_iter().flatten().collect();
    held.try_into().map_err(|_| OpError::internal("a variable was not locked"))
}
