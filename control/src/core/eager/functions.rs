//! The functions that a context knows.

use std::collections::HashMap;
use std::sync::Arc;

use ringway_proto::tensorflow::{FunctionDef, FunctionDefLibrary};

use super::error::EagerError;
use crate::core::graph::{GraphError, Library};

/// Components of functions that one context may register.
pub const COMPONENTS_LIMIT: usize = 1 << 16;

/// Functions by name. Cheap to take a snapshot of: whoever runs one keeps the library as it was.
#[derive(Debug, Default)]
pub struct Functions {
    shared: Arc<Library>,
    /// This task's parts of functions over several tasks, each with the functions that it may call.
    components: HashMap<String, Arc<Library>>,
}

impl Functions {
    /// Adds a function, with those that it calls. A component's do not mix with the others of the context.
    ///
    /// # Errors
    /// [`GraphError`] when a signature cannot be read or a limit is reached.
    pub fn register(
        &mut self,
        function: &FunctionDef,
        calls: Option<&FunctionDefLibrary>,
        is_component: bool,
    ) -> Result<(), GraphError> {
        let mut library = if is_component { Library::default() } else { (*self.shared).clone() };
        for called in calls.iter().flat_map(|calls| &calls.function) {
            library.add(called)?;
        }
        library.add(function)?;
        if !is_component {
            self.shared = Arc::new(library);
            return Ok(());
        }
        if self.components.len() >= COMPONENTS_LIMIT {
            let given = self.components.len() + 1;
            return Err(GraphError::TooLarge { what: "component functions", given, limit: COMPONENTS_LIMIT });
        }
        let name = function.signature.as_ref().map(|signature| signature.name.clone()).unwrap_or_default();
        self.components.insert(name, Arc::new(library));
        Ok(())
    }

    /// Forgets a function.
    ///
    /// # Errors
    /// [`EagerError::NoFunction`].
    pub fn remove(&mut self, name: &str) -> Result<(), EagerError> {
        if self.components.remove(name).is_some() {
            return Ok(());
        }
        let mut library = (*self.shared).clone();
        if !library.remove(name) {
            return Err(EagerError::NoFunction { name: name.to_owned() });
        }
        self.shared = Arc::new(library);
        Ok(())
    }

    /// The library in which the function `name` is to be looked up, if there is such a function.
    #[must_use]
    pub fn library_of(&self, name: &str) -> Option<Arc<Library>> {
        let found = self.components.get(name).or_else(|| self.shared.get(name).map(|_| &self.shared));
        found.cloned()
    }

    /// All functions that are no component's.
    #[must_use]
    pub fn shared(&self) -> &Arc<Library> {
        &self.shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_proto::tensorflow::OpDef;

    fn function(name: &str) -> FunctionDef {
        let signature = OpDef { name: name.to_owned(), ..Default::default() };
        FunctionDef { signature: Some(signature), ..Default::default() }
    }

    #[test]
    fn components_keep_to_themselves() {
        let mut functions = Functions::default();
        functions.register(&function("f"), None, false).unwrap();
        let calls = FunctionDefLibrary { function: vec![function("inner")], ..Default::default() };
        functions.register(&function("part"), Some(&calls), true).unwrap();
        assert!(functions.library_of("part").unwrap().get("inner").is_some());
        assert!(functions.library_of("inner").is_none());
        let before = functions.library_of("f").unwrap();
        functions.remove("f").unwrap();
        assert!(before.get("f").is_some(), "whoever runs it keeps it");
        assert_eq!(functions.remove("f"), Err(EagerError::NoFunction { name: "f".to_owned() }));
        functions.remove("part").unwrap();
    }
}
