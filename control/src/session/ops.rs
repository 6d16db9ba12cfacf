//! The operations that most graphs are made of, by name. Any other is made with [`GraphBuilder::node`].

use ringway_proto::tensorflow::DataType;

use super::build::{GraphBuilder, Op, Output};
use crate::tensor::{PartialShape, Tensor};

/// Operations of one argument.
macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident = $op:literal;)*) => {
        impl GraphBuilder {
            $($(#[$doc])* pub fn $name(&mut self, x: &Output) -> Output { self.node($op).input(x).one() })*
        }
    };
}

/// Operations of two arguments, which may be broadcast to each other.
macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident = $op:literal;)*) => {
        impl GraphBuilder {
            $($(#[$doc])* pub fn $name(&mut self, x: &Output, y: &Output) -> Output {
                self.node($op).input(x).input(y).one()
            })*
        }
    };
}

unary! {
    /// The same value.
    identity = "Identity";
    /// -x.
    neg = "Neg";
    /// x squared.
    square = "Square";
    /// Larger of x and 0.
    relu = "Relu";
}

binary! {
    /// x + y.
    add = "AddV2";
    /// x - y.
    sub = "Sub";
    /// x * y, element by element.
    mul = "Mul";
    /// x / y.
    div = "RealDiv";
    /// x == y.
    equal = "Equal";
    /// A vector added to each row.
    bias_add = "BiasAdd";
    /// `gradients` where `features` are above 0.
    relu_grad = "ReluGrad";
}

impl GraphBuilder {
    /// A value that never changes.
    pub fn constant(&mut self, value: &Tensor) -> Output {
        self.node("Const").attr("dtype", value.dtype()).attr("value", value).one()
    }

    /// A value that every step is given anew. Sizes that may differ are unknown in `shape`.
    pub fn placeholder(&mut self, name: &str, dtype: DataType, shape: &PartialShape) -> Output {
        self.node("Placeholder").name(name).attr("dtype", dtype).attr("shape", shape).one()
    }

    /// A variable, kept by the task that it is placed on. What is returned names it.
    pub fn variable(&mut self, name: &str, dtype: DataType, shape: &PartialShape) -> Output {
        self.node("VarHandleOp")
            .name(name)
            .attr("shared_name", name)
            .attr("dtype", dtype)
            .attr("shape", shape)
            .one()
    }

    /// The value of a variable of type `dtype`.
    pub fn read(&mut self, variable: &Output, dtype: DataType) -> Output {
        self.node("ReadVariableOp").attr("dtype", dtype).input(variable).one()
    }

    /// Sets a variable.
    pub fn assign(&mut self, variable: &Output, value: &Output) -> Op {
        self.node("AssignVariableOp").input(variable).input(value).op()
    }

    /// Takes `rate` times `gradient` from a variable.
    pub fn gradient_descent(&mut self, variable: &Output, rate: &Output, gradient: &Output) -> Op {
        self.node("ResourceApplyGradientDescent").input(variable).input(rate).input(gradient).op()
    }

    /// The product of matrices, either of which is transposed first if so asked.
    pub fn matmul(&mut self, a: &Output, b: &Output, transpose_a: bool, transpose_b: bool) -> Output {
        self.node("MatMul")
            .attr("transpose_a", transpose_a)
            .attr("transpose_b", transpose_b)
            .input(a)
            .input(b)
            .one()
    }

    /// Sum over `axes`, which is a vector of type int32.
    pub fn sum(&mut self, x: &Output, axes: &Output) -> Output {
        self.node("Sum").input(x).input(axes).one()
    }

    /// Mean over `axes`, which is a vector of type int32.
    pub fn mean(&mut self, x: &Output, axes: &Output) -> Output {
        self.node("Mean").input(x).input(axes).one()
    }

    /// Sum of values of one shape.
    pub fn add_n(&mut self, values: &[Output]) -> Output {
        self.node("AddN").inputs(values).one()
    }

    /// Cross entropy of each row of `logits` with the class in `labels`, and its gradient by the logits.
    pub fn cross_entropy(&mut self, logits: &Output, labels: &Output) -> (Output, Output) {
        let node = self.node("SparseSoftmaxCrossEntropyWithLogits").input(logits).input(labels);
        let (loss, mut rest) = split_first(node.all(), logits);
        (loss, rest.pop().unwrap_or_else(|| logits.clone()))
    }

    /// The index of the largest element along `axis`, a scalar of type int32.
    pub fn arg_max(&mut self, x: &Output, axis: &Output) -> Output {
        self.node("ArgMax").input(x).input(axis).one()
    }

    /// Another type.
    pub fn cast(&mut self, x: &Output, dtype: DataType) -> Output {
        self.node("Cast").attr("DstT", dtype).input(x).one()
    }

    /// Does nothing, after all of `ops`.
    pub fn group(&mut self, name: &str, ops: &[Op]) -> Op {
        self.after(ops, |graph| graph.node("NoOp").name(name).op())
    }
}

/// What a node gives; where a mistake left it without results, `instead`, which no master sees.
fn split_first(mut outputs: Vec<Output>, instead: &Output) -> (Output, Vec<Output>) {
    if outputs.is_empty() {
        return (instead.clone(), outputs);
    }
    let rest = outputs.split_off(1);
    (outputs.remove(0), rest)
}
