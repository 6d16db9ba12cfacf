//! K1, K2: no kernel panics or asks for absurd memory, whatever it is given.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ringway_control::core::graph::signature::{Arg, ArgKind};
use ringway_control::core::graph::{Attrs, Node, Type, signature};
use ringway_control::kernels::{Slot, Variable, registry};
use ringway_control::tensor::{PartialShape, ResourceHandle, Shape, Tensor, size_of};
use ringway_dataplane::transport::seed::Seeded;
use ringway_proto::tensorflow::attr_value::{ListValue, Value};
use ringway_proto::tensorflow::tensor_shape_proto::Dim;
use ringway_proto::tensorflow::{AttrValue, DataType, NodeDef, TensorProto, TensorShapeProto};

use crate::run::Bench;

/// Runs of each operation.
const ROUNDS: u64 = 60;

struct Random(Seeded);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// Mostly small; sometimes out of every range. None is a size that memory would be found for.
    fn int(&mut self) -> i64 {
        match self.below(24) {
            0 => self.one_of(&[i64::MIN, i64::MAX, 1 << 40, -(1 << 40), i64::from(i32::MIN), 1 << 62]),
            1 => -2,
            n => n as i64 % 5 - 1,
        }
    }

    fn shape(&mut self) -> Shape {
        let rank = self.one_of(&[0, 0, 1, 1, 1, 2, 2, 3, 4, 4, 5]);
        let sizes: Vec<usize> = (0..rank).map(|_| self.one_of(&[0, 1, 1, 2, 2, 2, 3, 3, 4])).collect();
        Shape::new(&sizes).unwrap()
    }

    fn tensor(&mut self, dtype: DataType, shape: Shape) -> Tensor {
        let len = shape.elements();
        match dtype {
            DataType::DtInt32 => {
                let all: Vec<i32> = (0..len).map(|_| self.int() as i32).collect();
                // As an int32 the absurd ones must not be sizes that memory is found for.
                let all: Vec<i32> = all.into_iter().map(|x| if x > 1 << 20 { -7 } else { x }).collect();
                Tensor::new(shape, &all).unwrap()
            }
            DataType::DtInt64 => {
                let all: Vec<i64> = (0..len).map(|_| self.int()).collect();
                Tensor::new(shape, &all).unwrap()
            }
            DataType::DtFloat => {
                let all: Vec<f32> = (0..len).map(|_| self.int() as f32 / 2.0).collect();
                Tensor::new(shape, &all).unwrap()
            }
            DataType::DtResource => {
                let handle = |at: u64| ResourceHandle { name: format!("v{at}"), ..Default::default() };
                let all = (0..len).map(|_| handle(self.below(3))).collect();
                Tensor::from_handles(shape, all).unwrap()
            }
            DataType::DtString | DataType::DtVariant => Tensor::zeros(dtype, shape).unwrap(),
            _ => {
                let bytes = len * size_of(dtype).unwrap();
                let content: Vec<u8> = (0..bytes).map(|_| self.0.next_u64() as u8).collect();
                let proto = TensorProto {
                    dtype: dtype as i32,
                    tensor_shape: Some(shape.to_proto()),
                    tensor_content: content.into(),
                    ..Default::default()
                };
                Tensor::from_proto(&proto).unwrap()
            }
        }
    }

    fn dtype(&mut self) -> DataType {
        use DataType as D;
        let common = [D::DtFloat, D::DtFloat, D::DtFloat, D::DtInt32, D::DtInt32, D::DtInt64, D::DtDouble];
        let rare = [
            D::DtHalf,
            D::DtBool,
            D::DtInt8,
            D::DtUint8,
            D::DtString,
            D::DtVariant,
            D::DtComplex64,
            D::DtResource,
        ];
        if self.below(5) == 0 { self.one_of(&rare) } else { self.one_of(&common) }
    }

    fn ints(&mut self) -> Vec<i64> {
        // Strides and windows, paddings, and anything.
        match self.below(4) {
            0 => (0..self.below(9)).map(|_| self.int()).collect(),
            _ => vec![1, self.below(3) as i64 + 1, self.below(3) as i64 + 1, 1],
        }
    }

    fn attr(&mut self, name: &str, kind: &str, default: Option<&AttrValue>) -> AttrValue {
        if let Some(default) = default.filter(|_| self.below(3) > 0) {
            return default.clone();
        }
        let words = ["NHWC", "SAME", "VALID", "EXPLICIT", "REFLECT", "SYMMETRIC", "LEFT_RIGHT", "", "v0"];
        let index = name.starts_with("Tidx") || name.starts_with("Tindices") || name.contains("out_type");
        AttrValue {
            value: Some(match kind {
                "type" if index => Value::Type(self.one_of(&[DataType::DtInt32, DataType::DtInt64]) as i32),
                "type" => Value::Type(self.dtype() as i32),
                "int" if name == "N" || name.starts_with("num") => Value::I(self.below(4) as i64),
                "int" => Value::I(self.int()),
                "float" => Value::F(self.int() as f32),
                "bool" => Value::B(self.below(2) == 0),
                "string" if name == "padding" => Value::S(self.one_of(&words[1..4]).into()),
                "string" => Value::S(self.one_of(&words).into()),
                "shape" => Value::Shape(TensorShapeProto {
                    dim: (0..self.below(3)).map(|_| Dim { size: self.int(), ..Default::default() }).collect(),
                    unknown_rank: self.below(4) == 0,
                }),
                "tensor" => {
                    let (dtype, shape) = (self.dtype(), self.shape());
                    Value::Tensor(self.tensor(dtype, shape).to_proto())
                }
                "list(int)" => Value::List(ListValue { i: self.ints(), ..Default::default() }),
                "list(type)" => {
                    let types = (0..self.below(3)).map(|_| self.dtype() as i32).collect();
                    Value::List(ListValue { r#type: types, ..Default::default() })
                }
                "list(string)" => {
                    let ops = ["BiasAdd", "Relu", "Elu", "Tanh", "Nonsense"].map(|op| op.as_bytes().to_vec());
                    let some = (0..self.below(3)).map(|_| self.below(5) as usize).map(|at| ops[at].clone());
                    Value::List(ListValue { s: some.collect(), ..Default::default() })
                }
                _ => Value::List(ListValue::default()),
            }),
        }
    }

    /// A node of this operation, or `None` when its attributes do not even give it types.
    fn node(&mut self, op: &str) -> Option<Node> {
        let known = signature(op).unwrap();
        let attr = known.attrs.iter();
        let attr =
            attr.map(|spec| (spec.name.clone(), self.attr(&spec.name, &spec.kind, spec.default.as_ref())));
        let def =
            NodeDef { name: "n".to_owned(), op: op.to_owned(), attr: attr.collect(), ..Default::default() };
        let attrs = Attrs::new("n", known, &def.attr, &Default::default()).ok()?;
        let (input_types, output_types) = (known.input_types(&attrs).ok()?, known.output_types(&attrs).ok()?);
        Some(Node {
            def: def.into(),
            attrs,
            device: Default::default(),
            inputs: Vec::new(),
            control: Vec::new(),
            input_types,
            output_types,
            stateful: known.stateful,
        })
    }

    /// Inputs of the types that the node takes, often of one shape.
    fn inputs(&mut self, node: &Node) -> Vec<Slot> {
        let (common, agrees) = (self.shape(), self.below(3) > 0);
        let vectors = shape_like(node);
        let one = |(at, kind): (usize, &Type)| {
            let shape = match vectors.get(at) {
                Some(true) if self.below(4) > 0 => Shape::vector(self.below(5) as usize).unwrap(),
                _ if agrees && self.below(5) > 0 => common.clone(),
                _ => self.shape(),
            };
            let value = self.tensor(kind.element, shape);
            if !kind.is_ref {
                return Slot::Tensor(value);
            }
            let variable = Variable::new("r", kind.element, PartialShape::unknown());
            if self.below(8) > 0 {
                variable.assign(value).unwrap();
            }
            Slot::Ref(variable.into())
        };
        node.input_types.iter().enumerate().map(one).collect()
    }
}

/// Which inputs are of a fixed index type, and so likely to be sizes or indices.
fn shape_like(node: &Node) -> Vec<bool> {
    let index = |arg: &Arg| match &arg.kind {
        ArgKind::Fixed(dtype) => *dtype == DataType::DtInt32,
        ArgKind::Attr(attr) => {
            attr.starts_with("Tidx")
                || matches!(
                    attr.as_str(),
                    "Tshape" | "Index" | "Tmultiples" | "Tpaddings" | "Tperm" | "index_type"
                )
        }
        _ => false,
    };
    signature(node.op()).unwrap().inputs.iter().map(index).collect()
}

#[test]
fn k1_k2_no_kernel_panics_whatever_it_is_given() {
    let bench = Bench::new();
    let (mut built, mut ran) = (0, std::collections::BTreeSet::new());
    let mut failed = Vec::new();
    for op in registry::names() {
        for round in 0..ROUNDS {
            let seed = round << 32
                | u64::from(op.bytes().fold(7u32, |hash, byte| hash.wrapping_mul(31) + u32::from(byte)));
            let result = catch_unwind(AssertUnwindSafe(|| {
                let mut random = Random(Seeded::new(seed));
                let node = random.node(op)?;
                let mut inputs = random.inputs(&node);
                Some(bench.call(&node, &mut inputs).is_ok())
            }));
            match result {
                Ok(None) => {}
                Ok(Some(ok)) => {
                    built += 1;
                    if ok {
                        ran.insert(op);
                    }
                }
                Err(panic) => {
                    let what = panic.downcast_ref::<String>().cloned();
                    let what = what.or(panic.downcast_ref::<&str>().map(|what| (*what).to_owned()));
                    failed.push(format!("{op} with seed {seed:#x}: {what:?}"));
                    break;
                }
            }
        }
    }
    assert!(failed.is_empty(), "{} operations panic:\n{}", failed.len(), failed.join("\n"));
    assert!(
        built > 5000 && ran.len() > 200,
        "{built} calls, of which {} operations once computed",
        ran.len()
    );
}
