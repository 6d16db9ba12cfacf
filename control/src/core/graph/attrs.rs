//! The attributes of a node, typed.

use std::collections::HashMap;
use std::sync::Arc;

use ringway_proto::tensorflow::attr_value::{ListValue, Value};
use ringway_proto::tensorflow::{AttrValue, DataType, NameAttrList, TensorProto, TensorShapeProto};

use super::error::GraphError;
use super::signature::Signature;

/// Attributes as a node gives them, over the defaults of its operation. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Attrs {
    node: Arc<str>,
    op: Arc<str>,
    values: Arc<HashMap<String, AttrValue>>,
}

impl Attrs {
    /// The attributes of `node`, with the defaults of its operation. Those of a function's body that stand for one of
    /// the function's own attributes (`placeholder`) take its value from `outer`.
    ///
    /// # Errors
    /// [`GraphError::NoAttr`] when one that has no default is missing.
    pub fn new(
        node: &str,
        signature: &Signature,
        given: &HashMap<String, AttrValue>,
        outer: &HashMap<String, AttrValue>,
    ) -> Result<Attrs, GraphError> {
        let mut values = HashMap::with_capacity(given.len());
        for (name, value) in given {
            let value = match &value.value {
                Some(Value::Placeholder(outside)) => outer.get(outside).unwrap_or(value),
                _ => value,
            };
            values.insert(name.clone(), value.clone());
        }
        let mut attrs =
            Attrs { node: node.into(), op: signature.name.as_str().into(), values: Arc::default() };
        for spec in &signature.attrs {
            match (&spec.default, values.contains_key(&spec.name)) {
                (_, true) => {}
                (Some(default), false) => {
                    values.insert(spec.name.clone(), default.clone());
                }
                // What a list of types or a shape would have to be is found out where it is used.
                (None, false) => return Err(attrs.missing(&spec.name)),
            }
        }
        attrs.values = Arc::new(values);
        Ok(attrs)
    }

    /// The node that these are of.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The error for an attribute that has `problem`.
    #[must_use]
    pub fn wrong(&self, attr: &str, problem: &str) -> GraphError {
        GraphError::Attr {
            node: self.node.to_string(),
            op: self.op.to_string(),
            attr: attr.to_owned(),
            problem: problem.to_owned(),
        }
    }

    /// The error for an attribute that is not there.
    #[must_use]
    pub fn missing(&self, attr: &str) -> GraphError {
        let (node, op, attr) = (self.node.to_string(), self.op.to_string(), attr.to_owned());
        GraphError::NoAttr { node, op, attr }
    }

    /// The attribute as it is on the wire.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name).and_then(|value| value.value.as_ref())
    }

    /// All of them, as they are on the wire.
    #[must_use]
    pub fn all(&self) -> &HashMap<String, AttrValue> {
        &self.values
    }

    fn kind<'a, T>(
        &'a self,
        name: &str,
        kind: &str,
        take: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<T, GraphError> {
        match self.get(name) {
            None => Err(self.missing(name)),
            Some(value) => take(value).ok_or_else(|| self.wrong(name, &format!("is not of kind {kind}"))),
        }
    }

    /// A type.
    ///
    /// # Errors
    /// [`GraphError::NoAttr`] when it is missing, [`GraphError::Attr`] when it is of another kind; so for all that follow.
    pub fn dtype(&self, name: &str) -> Result<DataType, GraphError> {
        let element = self.kind(name, "type", |value| match value {
            Value::Type(number) => Some(*number),
            _ => None,
        })?;
        self.element(name, element)
    }

    fn element(&self, name: &str, number: i32) -> Result<DataType, GraphError> {
        let known = DataType::try_from(number).ok().filter(|element| *element != DataType::DtInvalid);
        known.ok_or_else(|| self.wrong(name, &format!("holds {number}, which is no type")))
    }

    /// An int.
    ///
    /// # Errors
    /// As above.
    pub fn int(&self, name: &str) -> Result<i64, GraphError> {
        self.kind(name, "int", |value| match value {
            Value::I(i) => Some(*i),
            _ => None,
        })
    }

    /// A float.
    ///
    /// # Errors
    /// As above.
    pub fn float(&self, name: &str) -> Result<f32, GraphError> {
        self.kind(name, "float", |value| match value {
            Value::F(f) => Some(*f),
            _ => None,
        })
    }

    /// A bool.
    ///
    /// # Errors
    /// As above.
    pub fn bool(&self, name: &str) -> Result<bool, GraphError> {
        self.kind(name, "bool", |value| match value {
            Value::B(b) => Some(*b),
            _ => None,
        })
    }

    /// A string of bytes.
    ///
    /// # Errors
    /// As above.
    pub fn bytes(&self, name: &str) -> Result<&[u8], GraphError> {
        self.kind(name, "string", |value| match value {
            Value::S(s) => Some(s.as_slice()),
            _ => None,
        })
    }

    /// A string that is text.
    ///
    /// # Errors
    /// As above, and when it is not UTF-8.
    pub fn text(&self, name: &str) -> Result<&str, GraphError> {
        std::str::from_utf8(self.bytes(name)?).map_err(|_| self.wrong(name, "is not UTF-8"))
    }

    /// A shape, any of whose sizes may be unknown.
    ///
    /// # Errors
    /// As above.
    pub fn shape(&self, name: &str) -> Result<&TensorShapeProto, GraphError> {
        self.kind(name, "shape", |value| match value {
            Value::Shape(shape) => Some(shape),
            _ => None,
        })
    }

    /// A tensor.
    ///
    /// # Errors
    /// As above.
    pub fn tensor(&self, name: &str) -> Result<&TensorProto, GraphError> {
        self.kind(name, "tensor", |value| match value {
            Value::Tensor(tensor) => Some(tensor),
            _ => None,
        })
    }

    /// A function.
    ///
    /// # Errors
    /// As above.
    pub fn function(&self, name: &str) -> Result<&NameAttrList, GraphError> {
        self.kind(name, "func", |value| match value {
            Value::Func(function) => Some(function),
            _ => None,
        })
    }

    /// A list, of whatever it is.
    ///
    /// # Errors
    /// As above.
    pub fn list(&self, name: &str) -> Result<&ListValue, GraphError> {
        self.kind(name, "list", |value| match value {
            Value::List(list) => Some(list),
            _ => None,
        })
    }

    /// A list of ints.
    ///
    /// # Errors
    /// As above.
    pub fn ints(&self, name: &str) -> Result<&[i64], GraphError> {
        self.list(name).map(|list| list.i.as_slice())
    }

    /// A list of types.
    ///
    /// # Errors
    /// As above.
    pub fn dtypes(&self, name: &str) -> Result<Vec<DataType>, GraphError> {
        self.list(name)?.r#type.iter().map(|number| self.element(name, *number)).collect()
    }
}
