//! What is known of each operation: its arguments, results and attributes.
//!
//! `ops.txt` holds one operation per line, with the names, types and defaults that TensorFlow 2.21 registers:
//!
//! ```text
//! [stateful ]NAME(arg:TYPE, …) -> (result:TYPE, …) [attr:KIND[=DEFAULT], …]
//! ```
//!
//! A TYPE is an element type, the name of an attribute of kind `type`, `&TYPE` for a reference, `COUNT*TYPE` for as
//! many as the attribute COUNT says, or `*LIST` for the types that the attribute LIST holds.

use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;

use ringway_proto::tensorflow::op_def::ArgDef;
use ringway_proto::tensorflow::{AttrValue, DataType, OpDef};

use super::attrs::Attrs;
use super::error::GraphError;

mod table;

/// Values that one argument list or one node may have; past that a count is an attack, not a graph.
pub const ARGS_LIMIT: usize = 1 << 16;

/// The type of a value: elements, and whether it is a reference to a mutable tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Type {
    /// Type of the elements.
    pub element: DataType,
    /// A reference, which an operation may write through.
    pub is_ref: bool,
}

impl Type {
    /// A value of `element`.
    #[must_use]
    pub fn of(element: DataType) -> Type {
        Type { element, is_ref: false }
    }

    /// From the number on the wire, where references are 100 above.
    #[must_use]
    pub fn from_wire(number: i32) -> Option<Type> {
        let (element, is_ref) = if number > 100 { (number - 100, true) } else { (number, false) };
        DataType::try_from(element).ok().map(|element| Type { element, is_ref })
    }

    /// The number on the wire.
    #[must_use]
    pub fn to_wire(self) -> i32 {
        self.element as i32 + if self.is_ref { 100 } else { 0 }
    }

    /// Whether a value of this type may be passed where `expected` is asked for: a reference is also a value.
    #[must_use]
    pub fn fits(self, expected: Type) -> bool {
        self.element == expected.element && (self.is_ref || !expected.is_ref)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&table::type_name(self.element))?;
        f.write_str(if self.is_ref { "_ref" } else { "" })
    }
}

/// How the type of an argument is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArgKind {
    /// Always this one.
    Fixed(DataType),
    /// The one that the attribute holds.
    Attr(String),
    /// As many as the attribute `count` says, all of one type.
    Repeated {
        /// Attribute of kind int.
        count: String,
        /// [`ArgKind::Fixed`] or [`ArgKind::Attr`].
        of: Box<ArgKind>,
    },
    /// One for each type in the attribute.
    List(String),
}

/// An argument or a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arg {
    /// Its name.
    pub name: String,
    /// A reference.
    pub is_ref: bool,
    /// Its types.
    pub kind: ArgKind,
}

/// An attribute that an operation has.
#[derive(Clone, Debug, PartialEq)]
pub struct AttrSpec {
    /// Its name.
    pub name: String,
    /// Its kind, in TensorFlow's words: `int`, `list(type)`, `func`, …
    pub kind: String,
    /// Used where a node does not say.
    pub default: Option<AttrValue>,
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Signature {
    /// Its name.
    pub name: String,
    /// It has state, or effects, so that two of them are not one.
    pub stateful: bool,
    /// What it takes.
    pub inputs: Vec<Arg>,
    /// What it gives.
    pub outputs: Vec<Arg>,
    /// Its attributes.
    pub attrs: Vec<AttrSpec>,
}

/// The operation of this name, if there is one.
#[must_use]
pub fn signature(name: &str) -> Option<&'static Signature> {
    all().get(name)
}

/// Names of operations that are near `name`, nearest first; at most four.
#[must_use]
pub fn near(name: &str) -> Vec<String> {
    let mut near: Vec<(f64, &str)> = all()
        .keys()
        .map(|known| (strsim::jaro_winkler(known, name), known.as_str()))
        .filter(|(likeness, _)| *likeness > 0.85)
        .collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    near.into_iter().take(4).map(|(_, known)| known.to_owned()).collect()
}

fn all() -> &'static HashMap<String, Signature> {
    static ALL: OnceLock<HashMap<String, Signature>> = OnceLock::new();
    ALL.get_or_init(|| {
        let signatures = include_str!("ops.txt").lines().map(|line| {
            // The table is part of this program: `every_line_of_the_table_is_read` holds it to its grammar.
            table::read(line).unwrap_or_else(|| panic!("ops.txt: {line}"))
        });
        signatures.map(|signature| (signature.name.clone(), signature)).collect()
    })
}

impl Signature {
    /// The signature of a function or of an operation that a caller describes.
    ///
    /// # Errors
    /// When a type is none.
    pub fn from_op_def(def: &OpDef) -> Result<Signature, GraphError> {
        let bad = |arg: &ArgDef| GraphError::Function {
            function: def.name.clone(),
            problem: format!("argument '{}' has no type that is known", arg.name),
        };
        let args = |defs: &[ArgDef]| -> Result<Vec<Arg>, GraphError> {
            defs.iter().map(|arg| Arg::from_def(arg).ok_or_else(|| bad(arg))).collect()
        };
        let attr = |a: &ringway_proto::tensorflow::op_def::AttrDef| AttrSpec {
            name: a.name.clone(),
            kind: a.r#type.clone(),
            default: a.default_value.clone(),
        };
        Ok(Signature {
            name: def.name.clone(),
            stateful: def.is_stateful,
            inputs: args(&def.input_arg)?,
            outputs: args(&def.output_arg)?,
            attrs: def.attr.iter().map(attr).collect(),
        })
    }

    /// Types of what a node with these attributes takes, in order.
    ///
    /// # Errors
    /// [`GraphError::Attr`] when an attribute that a type depends on is missing or wrong.
    pub fn input_types(&self, attrs: &Attrs) -> Result<Vec<Type>, GraphError> {
        types(&self.inputs, attrs)
    }

    /// Types of what a node with these attributes gives, in order.
    ///
    /// # Errors
    /// As for [`Signature::input_types`].
    pub fn output_types(&self, attrs: &Attrs) -> Result<Vec<Type>, GraphError> {
        types(&self.outputs, attrs)
    }

    /// For each result by name: where its values begin among the outputs, and how many they are.
    ///
    /// # Errors
    /// As for [`Signature::input_types`].
    pub fn output_ranges<'a>(&'a self, attrs: &Attrs) -> Result<Vec<(&'a str, usize, usize)>, GraphError> {
        let mut from = 0;
        let mut ranges = Vec::with_capacity(self.outputs.len());
        for arg in &self.outputs {
            let len = arg.types(attrs)?.len();
            ranges.push((arg.name.as_str(), from, len));
            from += len;
        }
        Ok(ranges)
    }
}

fn types(args: &[Arg], attrs: &Attrs) -> Result<Vec<Type>, GraphError> {
    let mut all = Vec::with_capacity(args.len());
    for arg in args {
        all.extend(arg.types(attrs)?);
        if all.len() > ARGS_LIMIT {
            return Err(attrs.wrong(&arg.name, &format!("makes over {ARGS_LIMIT} values")));
        }
    }
    Ok(all)
}

impl Arg {
    fn from_def(def: &ArgDef) -> Option<Arg> {
        let one = || {
            if def.type_attr.is_empty() {
                DataType::try_from(def.r#type).ok().filter(|t| *t != DataType::DtInvalid).map(ArgKind::Fixed)
            } else {
                Some(ArgKind::Attr(def.type_attr.clone()))
            }
        };
        let kind = if !def.type_list_attr.is_empty() {
            ArgKind::List(def.type_list_attr.clone())
        } else if !def.number_attr.is_empty() {
            ArgKind::Repeated { count: def.number_attr.clone(), of: Box::new(one()?) }
        } else {
            one()?
        };
        Some(Arg { name: def.name.clone(), is_ref: def.is_ref, kind })
    }

    fn types(&self, attrs: &Attrs) -> Result<Vec<Type>, GraphError> {
        let typed = |element| Type { element, is_ref: self.is_ref };
        let one = |kind: &ArgKind| match kind {
            ArgKind::Attr(attr) => attrs.dtype(attr).map(typed),
            ArgKind::Fixed(element) => Ok(typed(*element)),
            ArgKind::List(attr) | ArgKind::Repeated { count: attr, .. } => {
                Err(attrs.wrong(attr, "is nested"))
            }
        };
        match &self.kind {
            ArgKind::List(attr) => Ok(attrs.dtypes(attr)?.into_iter().map(typed).collect()),
            ArgKind::Repeated { count, of } => {
                let many = usize::try_from(attrs.int(count)?).ok().filter(|many| *many <= ARGS_LIMIT);
                let many =
                    many.ok_or_else(|| attrs.wrong(count, &format!("is not between 0 and {ARGS_LIMIT}")))?;
                Ok(vec![one(of)?; many])
            }
            kind => Ok(vec![one(kind)?]),
        }
    }
}
