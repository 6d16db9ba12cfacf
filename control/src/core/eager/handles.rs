//! Results that a client keeps on this task.

use std::collections::HashMap;

use super::error::EagerError;

/// Results of one context at once.
pub const HANDLES_LIMIT: usize = 1 << 20;

/// A result: which operation made it, and which of its outputs it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    /// The operation, as its client numbers them.
    pub op_id: i64,
    /// The output, from 0.
    pub output: i32,
}

/// The results of one context.
#[derive(Debug)]
pub struct Handles<V> {
    results: HashMap<Handle, V>,
}

impl<V> Default for Handles<V> {
    fn default() -> Self {
        Handles { results: HashMap::new() }
    }
}

impl<V> Handles<V> {
    /// Keeps results, each under its handle. All or none.
    ///
    /// # Errors
    /// [`EagerError::Twice`] when one is there already; [`EagerError::TooMany`].
    pub fn keep(&mut self, results: Vec<(Handle, V)>) -> Result<(), EagerError> {
        if self.results.len() + results.len() > HANDLES_LIMIT {
            return Err(EagerError::TooMany { what: "tensors", limit: HANDLES_LIMIT });
        }
        if let Some((handle, _)) = results.iter().find(|(handle, _)| self.results.contains_key(handle)) {
            return Err(EagerError::Twice { op_id: handle.op_id });
        }
        self.results.extend(results);
        Ok(())
    }

    /// A result.
    ///
    /// # Errors
    /// [`EagerError::NoHandle`].
    pub fn get(&self, handle: Handle) -> Result<&V, EagerError> {
        self.results.get(&handle).ok_or_else(|| missing(handle))
    }

    /// Gives a result up. What it was.
    ///
    /// # Errors
    /// [`EagerError::NoHandle`].
    pub fn release(&mut self, handle: Handle) -> Result<V, EagerError> {
        self.results.remove(&handle).ok_or_else(|| missing(handle))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.results.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.results.is_empty()
    }
}

fn missing(handle: Handle) -> EagerError {
    EagerError::NoHandle { op_id: handle.op_id, output: handle.output }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e4_a_result_is_there_until_it_is_released() {
        let mut handles = Handles::default();
        let handle = |output| Handle { op_id: 5, output };
        handles.keep(vec![(handle(0), "a"), (handle(1), "b")]).unwrap();
        assert_eq!(handles.get(handle(1)), Ok(&"b"));
        assert_eq!(
            handles.keep(vec![(handle(2), "c"), (handle(1), "d")]),
            Err(EagerError::Twice { op_id: 5 })
        );
        assert!(handles.get(handle(2)).is_err(), "all or none");
        assert_eq!(handles.release(handle(1)), Ok("b"));
        assert_eq!(handles.release(handle(1)), Err(EagerError::NoHandle { op_id: 5, output: 1 }));
        assert_eq!(handles.len(), 1);
    }
}
