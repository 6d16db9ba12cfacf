//! The grammar of `ops.txt`.

use ringway_proto::tensorflow::attr_value::{ListValue, Value};
use ringway_proto::tensorflow::tensor_shape_proto::Dim;
use ringway_proto::tensorflow::{AttrValue, DataType, NameAttrList, TensorShapeProto};

use super::{Arg, ArgKind, AttrSpec, Signature};

/// TensorFlow's word for an element type, such as `float`.
pub(super) fn type_name(element: DataType) -> String {
    element.as_str_name().trim_start_matches("DT_").to_ascii_lowercase()
}

fn element(name: &str) -> Option<DataType> {
    DataType::from_str_name(&format!("DT_{}", name.to_ascii_uppercase()))
}

/// One line. `None` when it is not of the grammar.
pub(super) fn read(line: &str) -> Option<Signature> {
    let (stateful, line) = line.strip_prefix("stateful ").map_or((false, line), |rest| (true, rest));
    let (name, rest) = line.split_once('(')?;
    let (inputs, rest) = rest.split_once(") -> (")?;
    let (outputs, rest) = rest.split_once(')')?;
    let attrs = match rest.trim() {
        "" => Vec::new(),
        rest => attrs(rest.strip_prefix('[')?.strip_suffix(']')?)?,
    };
    let list =
        |text: &str| text.split(", ").filter(|arg| !arg.is_empty()).map(arg).collect::<Option<Vec<_>>>();
    let (inputs, outputs) = (list(inputs)?, list(outputs)?);
    Some(Signature { name: name.to_owned(), stateful, inputs, outputs, attrs })
}

fn arg(text: &str) -> Option<Arg> {
    let (name, kind) = text.split_once(':')?;
    // The mark of a reference stands before the whole, or before the type of many.
    let is_ref = kind.contains('&');
    let kind = kind.replace('&', "");
    let one = |kind: &str| element(kind).map_or_else(|| ArgKind::Attr(kind.to_owned()), ArgKind::Fixed);
    let kind = match kind.split_once('*') {
        None => one(&kind),
        Some(("", list)) => ArgKind::List(list.to_owned()),
        Some((count, of)) => ArgKind::Repeated { count: count.to_owned(), of: Box::new(one(of)) },
    };
    Some(Arg { name: name.to_owned(), is_ref, kind })
}

/// Cuts at `", "` outside of quotes and braces.
fn attrs(mut text: &str) -> Option<Vec<AttrSpec>> {
    let mut all = Vec::new();
    while !text.is_empty() {
        let end = end_of_attr(text);
        let (one, rest) = text.split_at(end);
        all.push(attr(one)?);
        text = rest.strip_prefix(", ").unwrap_or(rest);
    }
    Some(all)
}

fn end_of_attr(text: &str) -> usize {
    let (mut quoted, mut escaped, mut depth) = (false, false, 0_u32);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            '{' | '[' if !quoted => depth += 1,
            '}' | ']' if !quoted => depth = depth.saturating_sub(1),
            ',' if !quoted && depth == 0 => return at,
            _ => {}
        }
    }
    text.len()
}

fn attr(text: &str) -> Option<AttrSpec> {
    let (name, rest) = text.split_once(':')?;
    let (kind, default) = rest.split_once('=').map_or((rest, None), |(kind, default)| (kind, Some(default)));
    // A default tensor is written as the word; no operation here needs its value.
    let default = match default {
        None | Some("tensor") => None,
        Some(text) => Some(AttrValue { value: Some(value(kind, text)?) }),
    };
    Some(AttrSpec { name: name.to_owned(), kind: kind.to_owned(), default })
}

fn value(kind: &str, text: &str) -> Option<Value> {
    Some(match kind {
        "string" => Value::S(unquote(text)?),
        "int" => Value::I(text.parse().ok()?),
        "float" => Value::F(text.parse().ok()?),
        "bool" => Value::B(text.parse().ok()?),
        "type" => Value::Type(element(text)? as i32),
        "shape" => Value::Shape(shape(text)?),
        "func" => Value::Func(NameAttrList::default()),
        list => Value::List(list_value(list.strip_prefix("list(")?.strip_suffix(')')?, text)?),
    })
}

fn list_value(kind: &str, text: &str) -> Option<ListValue> {
    let mut list = ListValue::default();
    let text = text.strip_prefix('{')?.strip_suffix('}')?;
    let mut rest = text;
    while !rest.is_empty() {
        let end = end_of_attr(rest);
        match value(kind, &rest[..end])? {
            Value::S(s) => list.s.push(s),
            Value::I(i) => list.i.push(i),
            Value::F(f) => list.f.push(f),
            Value::B(b) => list.b.push(b),
            Value::Type(t) => list.r#type.push(t),
            Value::Shape(s) => list.shape.push(s),
            _ => return None,
        }
        rest = rest[end..].strip_prefix(',').unwrap_or(&rest[end..]);
    }
    Some(list)
}

fn shape(text: &str) -> Option<TensorShapeProto> {
    if text == "?" {
        return Some(TensorShapeProto { dim: Vec::new(), unknown_rank: true });
    }
    let sizes = text.strip_prefix('[')?.strip_suffix(']')?;
    let dim = |size: &str| size.parse().ok().map(|size| Dim { size, name: String::new() });
    let dim = sizes.split(',').filter(|size| !size.is_empty()).map(dim).collect::<Option<_>>()?;
    Some(TensorShapeProto { dim, unknown_rank: false })
}

fn unquote(text: &str) -> Option<Vec<u8>> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    let mut bytes = Vec::with_capacity(inner.len());
    let mut rest = inner.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next()? {
                b'n' => b'\n',
                b't' => b'\t',
                b'r' => b'\r',
                other => other,
            },
            byte => byte,
        });
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_read() {
        let lines: Vec<_> = include_str!("../ops.txt").lines().collect();
        let bad: Vec<_> = lines.iter().filter(|line| read(line).is_none()).collect();
        assert!(bad.is_empty(), "{bad:#?}");
        let names: std::collections::HashSet<_> =
            lines.iter().filter_map(|l| read(l)).map(|s| s.name).collect();
        assert_eq!(names.len(), lines.len(), "no operation stands there twice");
    }

    #[test]
    fn defaults_and_kinds_are_what_the_line_says() {
        let conv = read(
            r#"Conv2D(input:T, filter:T) -> (output:T) [T:type, strides:list(int), padding:string, explicit_paddings:list(int)={}, data_format:string="NHWC", dilations:list(int)={1,1,1,1}]"#,
        )
        .unwrap();
        assert_eq!(conv.inputs.len(), 2);
        assert_eq!(conv.attrs[4].default, Some(AttrValue { value: Some(Value::S(b"NHWC".to_vec())) }));
        let ones = ListValue { i: vec![1; 4], ..Default::default() };
        assert_eq!(conv.attrs[5].default, Some(AttrValue { value: Some(Value::List(ones)) }));
        let merge = read("RefMerge(inputs:N*&T) -> (output:&T, value_index:int32) [T:type, N:int]").unwrap();
        assert!(merge.inputs[0].is_ref && !merge.outputs[1].is_ref);
        assert!(read("NoOp").is_none());
    }
}
